"""What each thing that `fit` learns is worth: CRPS on problems of `first_try` with one thing after the other.

    python -m benchmarks.first_try.ablation [--only NAME ...] [--accept]

Columns: one relation for all edges and one margin for all nodes, estimated by ridge regression; the same with own
margins, with smoothed counts, and with own relations alone. Front ends and the exponents are chosen in all of them.
Each is one call of `fit` and of `infer`, on the cases of `first_try`, whose results have those of all of them, as `fit`
chooses by default. Ratios are those to the CRPS of the best baseline in the committed results of `first_try`.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from benchmarks.first_try import tuned
from benchmarks.first_try.__main__ import ORDER, SAVED, build, parser_of
from benchmarks.first_try.scoring import score
from experiments.lib import command_line, datasets, results, tables

PLAIN = {"margins": "type", "relation": "ridge", "sharing": "type", "starts": "pooled"}
WAYS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "own margins": PLAIN | {"margins": "auto"},
    "counts": PLAIN | {"relation": "counts"},
    "own relations": PLAIN | {"sharing": "auto"},
}

Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return command_line.main(run, parser_of("benchmarks.first_try.ablation", __doc__, ORDER), argv)


def run(args: argparse.Namespace) -> None:
    """Run the problems; results are written after each, and the rows of problems that were not run are kept."""
    if args.quick and args.accept:
        raise ValueError("--accept: must not be with --quick; got both. A quick run does not replace results.")
    data = datasets.data_directory(args.data)
    path = (SAVED if args.accept else args.out) / "ablation.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    best = {row["problem"]: row for row in json.loads((SAVED / "first_try.json").read_text(encoding="utf-8"))["rows"]}
    for name in [name for name in ORDER if args.only is None or name in args.only]:
        print(f"{name} ...", flush=True)
        rows = measure(name, args.seed, args.quick, data, best)
        tables.print_table(rows)
        kept = [row for row in kept if row["problem"].partition(":")[0] != name] + rows
        kept.sort(key=lambda row: ORDER.index(row["problem"].partition(":")[0]))
        results.write_results(path, {"quick": args.quick, "seed": args.seed}, kept)


def measure(name: str, seed: int, quick: bool, data: Path | None, best: dict[str, Row]) -> list[Row]:
    """Return the CRPS of each way, over that of the best baseline, and the seconds of `fit`, for each quantity."""
    problem = build(name, seed, quick, data)
    kernels = {"kernel": problem.kernel, "obs_kernel": problem.obs_kernel}
    given = {key: kernel for key, kernel in kernels.items() if kernel}
    titles = [f"{name}: {q.name}" if q.name else name for q in problem.quantities]
    rows: list[Row] = [{"problem": title} for title in titles]
    for way, options in WAYS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kbp.KbpWarning)
            since = time.perf_counter()
            model = kbp.fit(problem.pool(), **given, **options)
            jax.block_until_ready(jax.tree.leaves(model))
            seconds = time.perf_counter() - since
            found, converged = tuned.infer(model, problem.graph, problem.test)
        for row, quantity in zip(rows, problem.quantities, strict=True):
            scores = score(quantity, found[quantity.node_type], problem.test.truth)
            baseline = best.get(row["problem"], {}).get("baseline_crps", np.nan)
            row |= {way: scores["crps"] / baseline, f"{way}: in 90 %": scores["coverage_90"]}
            row |= {f"{way}: fit s": seconds, f"{way}: converged": float(np.mean(converged))}
    return rows


if __name__ == "__main__":
    sys.exit(main())
