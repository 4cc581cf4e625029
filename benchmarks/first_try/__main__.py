"""Solve problems by one call of `fit` and one of `infer`, without options, and compare with other methods.

    python -m benchmarks.first_try [--quick] [--only NAME ...] [--effort low|auto|high] [--accept]

Per quantity: error of the mean (root mean square; angles: mean absolute degrees), CRPS, coverage of the central 50 %
and 90 % intervals, fraction of converged cases, seconds of the first `fit` and `infer` with their compilation. Beside
them: the simple method of smallest error on the test cases, the true posterior where it is known, and `fit` with
options that a small grid search chose on validation cases. Ratios are errors of the one call to those of the others.

At the end the geometric mean of the ratios of CRPS to those of the best baselines is printed, and the worst three.

Results are written after each problem, to benchmarks/out or, with --accept, into the committed file. With --only, the
rows of other problems are kept. Those of other efforts than auto are in a file of their own, without hand-tuned
options, which do not depend on it.
"""

import argparse
import json
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from benchmarks.first_try import problems, real, tuned
from benchmarks.first_try.scoring import Problem, Quantity, score, score_prediction
from experiments.lib import command_line, datasets, results, tables
from experiments.readme.benchmarks import first_try_summary

SAVED, OUT = Path("benchmarks/results"), Path("benchmarks/out")
ORDER = (
    "four-numbers",
    "gaussian-chain",
    "bimodal-chain",
    "stochastic-volatility",
    "pendulum",
    "readme-grid",
    "sunset-100",
    "sunset-10",
    "sensor-network",
    "inpainting",
    "wind",
    "pm10",
    "rain",
    "random-regular",
    "small-world",
    "protein",
    "depth",
)
SHOWN = ("problem", "error", "crps", "coverage_50", "coverage_90", "converged", "fit_s", "infer_s", "baseline_error")
SHOWN += ("exact_error", "tuned_error", "error/baseline", "error/exact", "error/tuned", "failed")

Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = parser_of("benchmarks.first_try", __doc__, ORDER)
    parser.add_argument("--effort", choices=("low", "auto", "high"), default="auto", help="effort of fit")
    return command_line.main(run, parser, argv)


def parser_of(module: str, text: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of a benchmark of problems with some names, described by the first line of a text."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(text or "").split("\n")[0])
    command_line.add_common_arguments(parser, OUT)
    parser.add_argument("--accept", action="store_true", help="write the run into the committed files")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"problems: {', '.join(names)}")
    return parser


def run(args: argparse.Namespace) -> None:
    """Run the problems; results are written after each."""
    if args.quick and args.accept:
        raise ValueError("--accept: must not be with --quick; got both. A quick run does not replace results.")
    data = datasets.data_directory(args.data)
    name = "first_try.json" if args.effort == "auto" else f"first_try_{args.effort}.json"
    path = (SAVED if args.accept else args.out) / name
    names = [name for name in ORDER if args.only is None or name in args.only]
    kept = _saved(path) if args.only else {}
    for name in names:
        print(f"{name} ...", flush=True)
        jax.clear_caches()  # a process can only map so many programs
        kept[name] = rows = attempt(name, args.seed, args.quick, data, args.effort)
        tables.print_table(rows, [key for key in SHOWN if any(key in row for row in rows)])
        _print_methods(rows)
        config = {"quick": args.quick, "seed": args.seed, "effort": args.effort}
        results.write_results(path, config, [row for one in ORDER for row in kept.get(one, [])])
    print(first_try_summary([row for one in ORDER for row in kept.get(one, [])]), end="")


def build(name: str, seed: int, quick: bool, data: Path | None) -> Problem:
    """Return a problem, the same for the same seed."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if name in problems.PROBLEMS:
        return problems.PROBLEMS[name](rng, quick)
    return real.PROBLEMS[name](rng, quick, data)


def attempt(name: str, seed: int, quick: bool, data: Path | None, effort: str = "auto") -> list[Row]:
    """Return the rows of a problem; if it cannot be built, one row with the reason."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    start = time.perf_counter()
    try:
        problem = build(name, seed, quick, data)
    except Exception as error:  # missing data are an error that begins so
        text = str(error) if str(error).startswith("data must") else f"{type(error).__name__}: {error}"
        print(f"{name}: skipped: {text}", file=sys.stderr)
        return [{"problem": name, "failed": f"skipped: {text}"}]
    rows = solve(name, problem, quick, effort)
    return [{**row, "load": load, "total_s": time.perf_counter() - start} for row in rows]


def solve(name: str, problem: Problem, quick: bool, effort: str = "auto") -> list[Row]:
    """Return one row per quantity; what fails is named in the column `failed`, and the rest goes on."""
    rows: list[Row] = [{"problem": f"{name}: {q.name}" if q.name else name} for q in problem.quantities]
    parts: tuple[Callable[..., list[Row]], ...] = (_one_call, _tuned, _exact, _baselines)
    for part in parts if effort == "auto" else (part for part in parts if part is not _tuned):
        try:
            found = _one_call(problem, quick, effort) if part is _one_call else part(problem, quick)
        except Exception as error:  # any failure of a method is a result
            found = [{"failed": f"{part.__name__[1:]}: {type(error).__name__}: {error}"} for _ in rows]
        for row, more in zip(rows, found, strict=True):
            failures = [one["failed"] for one in (row, more) if "failed" in one]
            row.update(more)
            if failures:
                row["failed"] = "; ".join(failures)
    for row in rows:
        for other in ("baseline", "exact", "tuned"):
            if "error" in row and f"{other}_error" in row:
                row[f"error/{other}"] = row["error"] / row[f"{other}_error"]
    return rows


def _one_call(problem: Problem, quick: bool, effort: str = "auto") -> list[Row]:
    """Solve the problem as a newcomer does."""
    del quick
    kernels = {"kernel": problem.kernel, "obs_kernel": problem.obs_kernel}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start, cpu = time.perf_counter(), time.process_time()
        data = problem.pool()
        model = kbp.fit(data, effort=effort, **{name: kernel for name, kernel in kernels.items() if kernel})
        jax.block_until_ready(jax.tree.leaves(model))
        fit_s, fit_cpu_s = time.perf_counter() - start, time.process_time() - cpu
        start, cpu = time.perf_counter(), time.process_time()
        found, converged = tuned.infer(model, problem.graph, problem.test)
        infer_s, infer_cpu_s = time.perf_counter() - start, time.process_time() - cpu
    chosen = model.hyperparameters
    more = {
        "converged": float(np.mean(converged)),
        "fit_s": fit_s,
        "infer_s": infer_s,
        "fit_cpu_s": fit_cpu_s,
        "infer_cpu_s": infer_cpu_s,
        "cases": len(converged),
        "nodes": problem.graph.num_nodes,
        "edges": problem.graph.num_edges // 2,
        "ridge": float(chosen.ridge),
        "obs_ridge": float(chosen.obs_ridge),
        "evidence_model": type(chosen.evidence_model).__name__,
        "evidence_power": float(chosen.evidence_power),
        "temperature": float(chosen.temperature),
        "warned": "; ".join(sorted({str(w.message) for w in caught if issubclass(w.category, kbp.ConvergenceWarning)})),
    }
    return [
        {**score(q, found[q.node_type], problem.test.truth), **more, **_peak(problem, q, found)}
        for q in problem.quantities
    ]


def _peak(problem: Problem, quantity: Quantity, found: tuned.Found) -> Row:
    """Return the peak signal-to-noise ratio of pictures."""
    if problem.peak is None:
        return {}
    error = score(quantity, found[quantity.node_type], problem.test.truth)["error"]
    return {"psnr": 20 * np.log10(problem.peak / error)}


def _tuned(problem: Problem, quick: bool) -> list[Row]:
    """Choose explicit options on the validation cases, and solve the test cases with them."""
    start = time.perf_counter()
    data = problem.pool()
    options, chosen = tuned.search(problem, data, quick)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kbp.ConvergenceWarning)
        found, converged = tuned.infer(kbp.fit(data, **options), problem.graph, problem.test)
    more = {f"tuned_{key}": value for key, value in chosen.items()}
    more |= {"tuned_converged": float(np.mean(converged)), "tuned_s": time.perf_counter() - start}
    rows = []
    for quantity in problem.quantities:
        scores = score(quantity, found[quantity.node_type], problem.test.truth)
        rows.append({f"tuned_{key}": value for key, value in scores.items()} | more)
    return rows


def _exact(problem: Problem, quick: bool) -> list[Row]:
    """Score the true posterior."""
    del quick
    if problem.exact is None:
        return [{} for _ in problem.quantities]
    found = problem.exact(problem.test)
    return [
        {f"exact_{key}": value for key, value in score(q, found[q.name], problem.test.truth).items()}
        for q in problem.quantities
    ]


def _baselines(problem: Problem, quick: bool) -> list[Row]:
    """Score the simple methods, and return the best on the test cases for each quantity.

    Methods that see more than the model are scored, and are never the best.
    """
    del quick
    rows: list[Row] = [{} for _ in problem.quantities]
    for name, method in {**problem.baselines, **problem.seeing_more}.items():
        start = time.perf_counter()
        validation, test = (method(problem, draw) for draw in (problem.validation, problem.test))
        seconds = time.perf_counter() - start
        for row, quantity in zip(rows, problem.quantities, strict=True):
            empty = np.zeros(0)
            residuals = score_prediction(quantity, validation[quantity.name], problem.validation.truth, empty)[2]
            error, crps, _ = score_prediction(quantity, test[quantity.name], problem.test.truth, residuals)
            row |= {f"error of {name}": error, f"crps of {name}": crps}
            if name in problem.baselines and error < row.get("baseline_error", np.inf):
                row |= {"baseline": name, "baseline_error": error, "baseline_crps": crps, "baseline_s": seconds}
                if problem.peak is not None:
                    row["baseline_psnr"] = 20 * np.log10(problem.peak / error)
    return rows


def _print_methods(rows: list[Row]) -> None:
    """Print error and CRPS of every simple method."""
    for row in rows:
        names = [key.removeprefix("error of ") for key in row if key.startswith("error of ")]
        scores = [f"{name} {row[f'error of {name}']:#.3g} / {row[f'crps of {name}']:#.3g}" for name in names]
        print(f"{row['problem']}, error / CRPS: {', '.join(scores)}")


def _saved(path: Path) -> dict[str, list[Row]]:
    """Read the rows of a committed run by problem; none where there is no file."""
    found: dict[str, list[Row]] = {}
    if path.exists():
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            found.setdefault(row["problem"].partition(":")[0], []).append(row)
    return found


if __name__ == "__main__":
    sys.exit(main())
