"""What potentials learned through inference are worth: methods by problem, sample sizes, and shares of what is hidden.

    python -m benchmarks.potentials [--only wind sizes] [--accept]

The problems are those of `first_try` where potentials can be learned, with the same cases. Rows:

- fit: `fit` and `infer` without options;
- closed form: `fit(relation="counts")`, ratios of pairs;
- scaled, corrected: `train` from the closed form, the few numbers or also corrections of the potentials;
- pseudo-likelihood: potentials of largest pseudo-likelihood, and the same trained through inference;
- Gaussian: the walk-summable Gaussian copula of the graph, and the same trained through inference;
- joint Gaussian, copula: those of all pairs of nodes, from the committed results of `first_try`.

*Sizes* are numbers of training days of wind, and *shares* the shares of its stations that are hidden, or one station
on all days; each model is then learned once. Seconds are those of `train`, or of `fit`.
"""

import argparse
import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from benchmarks.first_try import networks, tuned
from benchmarks.first_try.__main__ import SAVED, build, parser_of
from benchmarks.first_try.problems import hide
from benchmarks.first_try.scoring import Draw, Problem, score, score_prediction
from experiments.lib import command_line, datasets, results, tables

PROBLEMS = ("four-numbers", "readme-grid", "random-regular", "wind", "pm10")
SIZES, SHARES = (100, 300, 1000, 3000), (0.1, 0.3, 0.6, 0.9)
STATION = "one station"
ITERATIONS = 12
"""Rounds of expectation maximization of the joint Gaussian."""

FIT, JOINT, COUNTS, CORRECTED = "fit", "joint Gaussian", "closed form", "corrected"
WAYS: dict[str, dict[str, Any]] = {
    "scaled": {"start": "closed form", "way": "scaled"},
    CORRECTED: {"start": "closed form"},
    "pseudo-likelihood": {"start": "pseudo-likelihood", "way": "scaled", "steps": 1},
    "pseudo-likelihood, corrected": {"start": "pseudo-likelihood"},
    "Gaussian": {"start": "gaussian", "way": "scaled", "steps": 1},
    "Gaussian, corrected": {"start": "gaussian"},
}
"""{name: options of `train`}; one step of the few numbers leaves a start as it is, or makes it better."""

Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return command_line.main(run, parser_of("benchmarks.potentials", __doc__, (*PROBLEMS, *PARTS)), argv)


def run(args: argparse.Namespace) -> None:
    """Run the parts; results are written after each, and the rows of parts that were not run are kept."""
    if args.quick and args.accept:
        raise ValueError("--accept: must not be with --quick; got both. A quick run does not replace results.")
    build_one = functools.partial(build, seed=args.seed, quick=args.quick, data=datasets.data_directory(args.data))
    path = (SAVED if args.accept else args.out) / "potentials.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    chosen = args.only or (*PROBLEMS, *PARTS)
    for name in chosen:
        problem = build_one(name if name in PROBLEMS else "wind")
        part = methods(name, problem, args.quick) if name in PROBLEMS else PARTS[name](problem, args.quick)
        print(f"{name} ...", flush=True)
        kept = [row for row in kept if row["part"] != name]
        for row in part:
            kept.append({"part": name, **row})
            tables.print_table([kept[-1]])
            results.write_results(path, {"quick": args.quick, "seed": args.seed}, kept)


def methods(name: str, problem: Problem, quick: bool) -> Iterator[Row]:
    """Yield the scores of all methods on a problem."""
    saved = json.loads((SAVED / "first_try.json").read_text(encoding="utf-8"))["rows"]
    (best,) = (row for row in saved if row["problem"] == name)
    scored = lambda model, seconds: scores_of(model, problem, problem.test, seconds, best["baseline_crps"])
    model, seconds = timed(lambda: kbp.fit(problem.pool()))
    yield {"potentials": FIT, **scored(model, seconds)}
    counts, seconds = timed(lambda: kbp.fit(problem.pool(), relation="counts"))
    yield {"potentials": COUNTS, **scored(counts, seconds)}
    for way, options in WAYS.items():
        try:
            model, seconds = timed(lambda: kbp.train(counts, problem.pool(), **options | few(quick)))  # noqa: B023
        except ValueError as error:  # no Gaussian, of states or of one picture
            if "gaussian" not in str(error):
                raise
            continue
        yield {"potentials": way, **scored(model, seconds)}
    for method in (JOINT, "copula"):
        if f"crps of {method}" in best:
            crps = best[f"crps of {method}"]
            yield {"potentials": method, "crps": crps, "/ baseline": crps / best["baseline_crps"]}


def sizes(problem: Problem, quick: bool) -> Iterator[Row]:
    """Yield the scores of models that are learned from so many days."""
    every = np.asarray(problem.samples)
    order = np.random.default_rng(0).permutation(len(every))
    for size in SIZES[: 1 if quick else None]:
        x = every[order[:size]]
        yield {"cases": size, "potentials": JOINT, "crps": joint(x)(problem.test)}
        for name, model, seconds in learned(problem.graph, x, quick):
            yield {"cases": size, "potentials": name, **scores_of(model, problem, problem.test, seconds)}


def shares(problem: Problem, quick: bool) -> Iterator[Row]:
    """Yield the scores of models where some of the stations are hidden, the same models for all."""
    x, test = np.asarray(problem.samples), np.asarray(problem.test.y)
    test = np.where(np.isnan(test), np.asarray(problem.test.truth), test)
    draws = {f"{share:.0%}": hide(np.random.default_rng(i), test, share) for i, share in enumerate(SHARES)}
    draws[STATION] = whole_nodes(test)
    for share, draw in draws.items():
        yield {"hidden": share, "potentials": JOINT, "crps": joint(x)(draw)}
    for name, model, seconds in learned(problem.graph, x, quick):
        for share, draw in draws.items():
            yield {"hidden": share, "potentials": name, **scores_of(model, problem, draw, seconds)}


def whole_nodes(x: np.ndarray) -> Draw:
    """Return cases of which one node is hidden, each node in an equal share of the cases."""
    hidden = np.arange(x.shape[1]) == (np.arange(len(x)) % x.shape[1])[:, None]
    return Draw(np.where(hidden, np.nan, x), np.where(hidden, x, np.nan))


def learned(graph: kbp.Graph, x: np.ndarray, quick: bool) -> Iterator[tuple[str, kbp.KernelMRF, float]]:
    """Yield the name, the model and the seconds of the default, the closed form, and potentials trained from it."""
    data = kbp.pool(graph, x, x)
    yield FIT, *timed(lambda: kbp.fit(data))
    counts, seconds = timed(lambda: kbp.fit(data, relation="counts"))
    yield COUNTS, counts, seconds
    yield CORRECTED, *timed(lambda: kbp.train(counts, data, **WAYS[CORRECTED] | few(quick)))


def joint(x: np.ndarray) -> Callable[[Draw], float]:
    """Return a function from cases to the CRPS of the joint Gaussian of training rows."""
    mean, covariance = networks.expectation_maximization(x, ITERATIONS)
    predict = networks.gaussian(mean, covariance + 1e-6 * np.eye(len(mean)))

    def crps(draw: Draw) -> float:
        problem: Any = Problem(kbp.chain_graph(x.shape[1]), x, x, draw, draw)
        return score_prediction(problem.quantities[0], predict(problem, draw)[""], draw.truth, np.zeros(0))[1]

    return crps


PARTS = {"sizes": sizes, "shares": shares}


def few(quick: bool) -> dict[str, int]:
    """Return the options of a quick run."""
    return {"steps": 2} if quick else {}


def timed(make: Callable[[], kbp.KernelMRF]) -> tuple[kbp.KernelMRF, float]:
    """Return a model and the seconds that it took."""
    since = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kbp.KbpWarning)
        model = jax.block_until_ready(make())
    return model, time.perf_counter() - since


def scores_of(
    model: kbp.KernelMRF, problem: Problem, draw: Draw, seconds: float, baseline: float | None = None
) -> dict[str, float]:
    """Return the scores of a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kbp.KbpWarning)
        found, converged = tuned.infer(model, problem.graph, draw)
    scores = score(problem.quantities[0], found[problem.quantities[0].node_type], draw.truth)
    row = {"error": scores["error"], "crps": scores["crps"]}
    row |= {} if baseline is None else {"/ baseline": scores["crps"] / baseline}
    return row | {"in 90 %": scores["coverage_90"], "converged": float(np.mean(converged)), "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
