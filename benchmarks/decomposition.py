"""What each part of a model of a network is worth: Gaussian analogues of what `fit` learns, by exact inference.

    python -m benchmarks.decomposition [--only wind pm10] [--accept]

The networks are those of stations of `first_try`, with the same hidden values. All rows are joint Gaussians, and each
gives up more of what the training data say:

- all pairs: mean and covariance of all stations;
- neighbors: maximum likelihood among the Gaussians whose precision matrix has the zeros of the graph;
- pairs: products of the ratios p(x, y) / (p(x) p(y)) of each edge and of the margins, each learned alone. The ratios
  have the edge appearance probabilities as exponents, as in `infer`;
- one relation: the same, with one correlation for all edges;
- one margin: the same, with one mean and one variance for all stations.

Beside them, the beliefs that `fit` and `infer` give without options, from the committed results of `first_try`. CRPS
and root mean square errors are those of hidden values; `crps / all` is over that of all pairs.
"""

import argparse
import json
import sys
import zlib
from typing import Any

import numpy as np

import kbpjax as kbp
from benchmarks.first_try import networks, real
from benchmarks.first_try.__main__ import SAVED, parser_of
from benchmarks.first_try.scoring import Prediction, Problem, score_prediction
from experiments.lib import command_line, datasets, results, tables

NAMES = {"wind": "wind speed, 12 stations", "pm10": "PM10, 70 stations"}
NETWORKS = {"wind": real.wind, "pm10": real.pm10}
PARTS = ("all pairs", "neighbors", "pairs", "one relation", "one margin")
FIT = "fit and infer, without options"
ITERATIONS, SWEEPS, FEWEST = 12, 200, 30
COLORS = {"wind": "#0072B2", "pm10": "#E69F00"}

Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return command_line.main(run, parser_of("benchmarks.decomposition", __doc__, tuple(NAMES)), argv)


def run(args: argparse.Namespace) -> None:
    """Score all parts on the networks; write the rows and the figure."""
    if args.accept and (args.quick or args.only):
        raise ValueError("--accept: must not be with --quick or --only; got both. Committed results are of all.")
    data, rows = datasets.data_directory(args.data), []
    for name in args.only or NAMES:
        rng = np.random.default_rng([args.seed, zlib.crc32(name.encode())])  # the hidden values of `first_try`
        problem = NETWORKS[name](rng, args.quick, data, compared=False)
        rows += measure(name, problem) + of_fit(name)
    tables.print_table(rows)
    path = (SAVED if args.accept else args.out) / "decomposition.json"
    results.write_results(path, {"quick": args.quick, "seed": args.seed}, rows)
    results.save_figure(figure(rows), path.with_suffix(".png"))


def of_fit(name: str) -> list[Row]:
    """Return the row of `fit` and `infer` without options, as the committed results of `first_try` have it."""
    rows = {row["problem"]: row for row in json.loads((SAVED / "first_try.json").read_text(encoding="utf-8"))["rows"]}
    if name not in rows or "crps" not in rows[name]:
        return []
    found, best = rows[name], rows[name]["crps of joint Gaussian"]
    values = {"error": found["error"], "crps": found["crps"], "in 90 %": found["coverage_90"]}
    return [{"network": name, "part": FIT, **values, "crps / all": found["crps"] / best}]


def measure(name: str, problem: Problem) -> list[Row]:
    """Return the scores of all parts on the test cases of a network."""
    rows: list[Row] = []
    for part, (mean, covariance) in zip(PARTS, gaussians(problem.graph, np.asarray(problem.samples)), strict=True):
        found = networks.gaussian(mean, covariance)(problem, problem.test)[""]
        assert isinstance(found, Prediction) and found.std is not None
        error, crps, own = score_prediction(problem.quantities[0], found, problem.test.truth, np.zeros(0))
        truth = np.asarray(problem.test.truth).reshape(-1)
        inside = np.abs(own) <= 1.645 * np.asarray(found.std).reshape(-1)[np.isfinite(truth)]
        rows.append({"network": name, "part": part, "error": error, "crps": crps, "in 90 %": float(inside.mean())})
    return [{**row, "crps / all": row["crps"] / rows[0]["crps"]} for row in rows]


def gaussians(graph: kbp.Graph, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return mean and covariance [node], [node, node] of each part, of training rows [case, node]."""
    mean, covariance = networks.expectation_maximization(x, ITERATIONS)
    covariance = covariance + 1e-6 * np.eye(len(mean))
    first, second = (np.asarray(of)[: graph.num_edges // 2] for of in (graph.senders, graph.receivers))
    std, exponents = np.sqrt(np.diag(covariance)), np.asarray(kbp.tree_reweighting(graph), np.float64)
    there = np.isfinite(x)
    both = there[:, first] & there[:, second]
    known = both.sum(axis=0) >= FEWEST
    rho = covariance[first, second] / (std[first] * std[second])
    shared = np.tanh(np.mean(np.arctanh(np.clip(rho[known], -0.999, 0.999))))
    rho = np.where(known, rho, shared)  # as `fit` does

    one_mean, one_std = np.full_like(mean, np.mean(x[there])), np.full_like(std, np.std(x[there]))
    z = np.where(there, (x - one_mean) / one_std, 0)
    pooled = np.mean((z[:, first] * z[:, second]).sum(axis=0)[known] / both.sum(axis=0)[known])

    ends = first, second, exponents
    return [
        (mean, covariance),
        (mean, likeliest(covariance, first, second)),
        (mean, of_ratios(std, rho, *ends)),
        (mean, of_ratios(std, np.full_like(rho, shared), *ends)),
        (one_mean, of_ratios(one_std, np.full_like(rho, pooled), *ends)),
    ]


def of_ratios(
    std: np.ndarray, correlation: np.ndarray, first: np.ndarray, second: np.ndarray, exponents: np.ndarray
) -> np.ndarray:
    """Return the covariance of the product of Gaussian margins and ratios of pairs to the power of exponents.

    The ratio of a pair with correlation r adds r² / (1 - r²) to the precisions of its ends and -r / (1 - r²) between
    them, in standard deviations.
    """
    factor = exponents / (1 - correlation**2)
    precision = np.eye(len(std))
    for ends in (first, second):
        np.add.at(precision, (ends, ends), factor * correlation**2)
    np.add.at(precision, (first, second), -factor * correlation)
    np.add.at(precision, (second, first), -factor * correlation)
    return np.linalg.inv(precision) * np.outer(std, std)


def likeliest(covariance: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the covariance of maximum likelihood whose inverse is 0 where the graph has no edge.

    It has the given variances and covariances of edges. Each node in turn is regressed on its neighbors (Hastie,
    Tibshirani and Friedman 2009, algorithm 17.1).
    """
    linked = np.zeros(covariance.shape, bool)
    linked[first, second] = linked[second, first] = True
    found = covariance.copy()
    for _ in range(SWEEPS):
        before = found.copy()
        for node, near in enumerate(linked):
            others = np.arange(len(linked)) != node
            slopes = np.linalg.solve(found[np.ix_(near, near)], covariance[near, node])
            found[others, node] = found[node, others] = found[np.ix_(others, near)] @ slopes
        if np.abs(found - before).max() < 1e-8 * np.abs(found).max():
            break
    return found


def figure(rows: list[Row]) -> Any:
    """Return a figure of bars: the CRPS of each part, in percent above that of all pairs."""
    from matplotlib.figure import Figure

    shown = [*PARTS[1:], FIT]
    labels = {
        "neighbors": "neighbors only,\nlearned together",
        "pairs": "each pair\nlearned alone",
        "one relation": "and one relation\nfor all edges",
        "one margin": "and one margin\nfor all stations",
        FIT: "fit and infer,\nwithout options",
    }
    fig = Figure(figsize=(7.5, 3.4), layout="constrained")
    axes = fig.subplots()
    names = [name for name in NAMES if any(row["network"] == name for row in rows)]
    for i, name in enumerate(names):
        loss = {row["part"]: 100 * (row["crps / all"] - 1) for row in rows if row["network"] == name}
        places = [(k + 0.4 * (i - (len(names) - 1) / 2), loss[part]) for k, part in enumerate(shown) if part in loss]
        bars = axes.bar(*zip(*places, strict=True), width=0.38, color=COLORS[name], label=NAMES[name])
        axes.bar_label(bars, fmt="%.0f", padding=2)
    axes.set_xticks(range(len(shown)), [labels[part] for part in shown], fontsize=8)
    axes.set_ylabel("CRPS, % above\na joint Gaussian")
    axes.axvline(len(shown) - 1.5, color="0.7", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    return fig


if __name__ == "__main__":
    sys.exit(main())
