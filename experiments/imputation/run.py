"""Fill the holes of tables: sensors, climate and mixed tables of packages, beside nine other imputers."""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.imputation import data, methods, scoring
from experiments.imputation.data import Task
from experiments.lib import command_line, datasets, results, steps, tables

CELLS, WEEK, BLOCK, COLUMN = "cells", "a week", "blocks", "one column"

METHODS: dict[str, methods.Method] = {
    methods.OURS: methods.graph_imputer,
    "own distribution": methods.own_distribution,
    "joint Gaussian": methods.joint_gaussian,
    "Gaussian copula": partial(methods.joint_gaussian, scores=True),
    "IterativeImputer": methods.iterative,
    "random forests": methods.forests,
    "miceforest": methods.miceforest,
    "nearest rows": methods.nearest_rows,
    "kriging": methods.kriging,
}
"""Methods that see one row at a time."""

IN_TIME: dict[str, methods.Method] = {
    f"{methods.OURS}, three rows": partial(methods.graph_imputer, lags=1),
    "joint Gaussian, three rows": partial(methods.joint_gaussian, lags=1),
}
"""Methods that see the rows before and after, too."""

Make = Callable[[np.random.Generator], Task]


def tasks(folder: Any) -> dict[tuple[str, str], Make]:
    """Return {(set, pattern): a function of random numbers}."""
    found: dict[tuple[str, str], Make] = {}
    for name in data.MIXED:
        for pattern, hide in ((CELLS, data.cells(0.2)), (COLUMN, data.one_column)):
            found[name, pattern] = partial(data.mixed, name=name, pattern=hide)
    for pattern, hide in ((CELLS, data.cells(0.3)), (WEEK, data.weeks), (BLOCK, data.block)):
        found["wind", pattern] = partial(data.wind, data=folder, pattern=hide)
    found["rain", CELLS] = partial(data.climate, data=folder, pattern=data.cells(0.1), name="rain")
    found["ozone", CELLS] = partial(data.ozone, data=folder, pattern=data.cells(0.1))
    found["weather", BLOCK] = partial(data.climate, data=folder, pattern=data.block, name="all", stations=15)
    for pattern, hide in ((CELLS, data.cells(0.1)), (WEEK, data.weeks)):
        found["pm10", pattern] = partial(data.pm10, data=folder, pattern=hide)
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m experiments.imputation", description=description)
    command_line.add_common_arguments(parser, "experiments/imputation/results")
    parser.add_argument("--only", nargs="+", metavar="SET", help="sets to run (default: all)")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="methods to run (default: all)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: tables on standard output, and a JSON file in `args.out`."""
    every = tasks(datasets.data_directory(args.data))
    known = sorted({name for name, _ in every})
    wrong = sorted(set(args.only or ()) - set(known))
    if wrong:
        raise ValueError(f"--only must be sets among {known}; got {wrong}. Leave the others out.")
    chosen = args.only or (["diabetes"] if args.quick else known)
    rows = []
    for number, ((name, pattern), make) in enumerate(every.items()):
        if name in chosen:
            task = make(np.random.default_rng([args.seed, number]))  # the same with --only
            for row in steps.step(f"{name}, {pattern}", compared, task, args.methods, args.seed, args.quick):
                rows.append({"set": name, "pattern": pattern, **row})
            tables.print_table([row for row in rows if (row["set"], row["pattern"]) == (name, pattern)])
            results.write_results(args.out / "imputation.json", {"seed": args.seed, "quick": args.quick}, rows)
    print(f"Wrote {args.out / 'imputation.json'}")


def compared(task: Task, only: list[str] | None, seed: int, quick: bool) -> list[dict[str, Any]]:
    """Return the scores of all methods on a task."""
    chosen = METHODS | (IN_TIME if task.series else {})
    chosen = {name: method for name, method in chosen.items() if not only or name in only}
    if quick:
        chosen = {name: chosen[name] for name in (methods.OURS, "own distribution", "joint Gaussian") if name in chosen}
        chosen |= {methods.OURS: partial(methods.graph_imputer, effort="low")}
    if task.position is None:
        chosen.pop("kriging", None)
    if task.train.shape[1] > 40:  # minutes for each round
        chosen.pop("miceforest", None)
        chosen.pop("random forests", None)
    base = scoring.column_scores(task, methods.own_distribution(task, seed))
    base = np.where(base > 0, base, np.nan)
    found = []
    for name, method in chosen.items():
        start = time.perf_counter()
        try:
            draws = method(task, seed)
        except Exception as error:  # a failure of another package is a result: it has no row
            if name.startswith(methods.OURS):
                raise
            print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        seconds = time.perf_counter() - start
        row: dict[str, Any] = {"method": name, **scoring.scores(task, draws, base)}
        found.append(row | {"seconds": seconds, "rows": len(task.train), "columns": task.train.shape[1]})
        jax.clear_caches()
    return found
