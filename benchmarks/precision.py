"""Gradients through `fit` and `infer` in float32 against those in float64, by ridge.

    python -m benchmarks.precision

The losses are squared errors of the posterior means of five cases, with 100 others to learn from. Their gradients are
with respect to the logarithms of the bandwidths of variables and observations and of the ridge, at landmarks that are
the same in both precisions. Errors are norms of the differences over all cases, relative to those in float64. They are
errors of rounding, which differ from draw to draw and between machines: three draws in four are below the first figure
of a problem, and the second is the largest.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables

RESULTS = Path("benchmarks/results")
RIDGES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
LEARNED, ASKED, DRAWS = 100, 5, 8


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Measure the gradients of all problems, and write their errors."""
    ridges = RIDGES[::3] if args.quick else RIDGES
    rows: list[dict[str, Any]] = [{"ridge": ridge} for ridge in ridges]
    problems = {"chain of 20": kbp.chain_graph(20), "grid of 8 x 8": kbp.grid_graph(8, 8)}
    jobs = [(name, width) for name in problems for width in (0.5, 0.25)][: 1 if args.quick else None]
    for name, width in command_line.progress(jobs, "precision"):
        found = errors(problems[name], width, ridges, 2 if args.quick else DRAWS, args.seed, max_rank=80)
        for row, column in zip(rows, found.T, strict=True):
            row[f"{name}, bandwidth {width:g}"] = float(np.quantile(column, 0.75))
            row[f"{name}, bandwidth {width:g}, largest"] = float(column.max())
    tables.print_table(rows)
    config = {"learned": LEARNED, "asked": ASKED, "seed": args.seed}
    results.write_results(args.out / "precision.json", config, rows)


def errors(
    graph: kbp.Graph, width: float, ridges: tuple[float, ...], count: int, seed: int, max_rank: int
) -> np.ndarray:
    """Return the relative errors [draw, ridge] of the gradients in float32, for `count` draws."""
    draws = [draw(graph, LEARNED + ASKED, [seed, number]) for number in range(count)]
    exact, found = (gradients(graph, draws, width, ridges, wide, max_rank) for wide in (True, False))
    return np.linalg.norm(found - exact, axis=(2, 3)) / np.linalg.norm(exact, axis=(2, 3))


def draw(graph: kbp.Graph, count: int, seed: int | list[int]) -> np.ndarray:
    """Return draws [count, node] of a Gaussian whose precision matrix has the zeros of the graph, of variance 1."""
    links = np.zeros((graph.num_nodes, graph.num_nodes))
    links[np.asarray(graph.senders), np.asarray(graph.receivers)] = 1
    precision = 1.05 * np.linalg.eigvalsh(links)[-1] * np.eye(len(links)) - links
    z = np.random.default_rng(seed).normal(size=(count, len(links)))
    x = z @ np.linalg.cholesky(np.linalg.inv(precision)).T
    return (x / x.std()).astype(np.float32)


def gradients(
    graph: kbp.Graph, draws: list[np.ndarray], width: float, ridges: tuple[float, ...], wide: bool, max_rank: int
) -> np.ndarray:
    """Return the gradients [draw, ridge, case, parameter] in float64, if wide, or in float32.

    Landmarks are padded to `max_rank`, with features that are 0, so that draws share one compiled program.
    """
    dtype = np.float64 if wide else np.float32
    cast = lambda leaf: np.asarray(leaf).astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def losses(logarithms: jax.Array, data: Any, rule: Any, seen: jax.Array, truth: jax.Array) -> jax.Array:
        width, obs_width, ridge = jnp.exp(logarithms)
        options = {"kernel": kbp.RBF(width), "obs_kernel": kbp.RBF(obs_width), "ridge": ridge, "rule": rule}
        model = kbp.fit(data, **options, nonnegative=None if graph.forest else kbp.Clipped())
        points = jnp.linspace(-4, 4, 81, dtype=dtype)
        ask = lambda y: kbp.mean(kbp.infer(model, graph, y, points=points, tol=1e-5))
        return jnp.mean((jax.vmap(ask)(seen) - truth) ** 2, axis=1)

    gradient, found = jax.jit(jax.jacrev(losses)), []
    for x in draws:
        y = (x + 0.5 * np.random.default_rng(1).normal(size=x.shape)).astype(np.float32)
        narrow = kbp.pool(graph, x[:LEARNED], y[:LEARNED])
        rule = kbp.fix_landmarks(
            narrow, kernel=kbp.RBF(width), obs_kernel=kbp.RBF(width), rule=kbp.ConstantTime(max_rank=max_rank), pad=True
        )
        with jax.enable_x64(wide):
            data = kbp.pool(graph, *(of[:LEARNED].astype(dtype) for of in (x, y)))
            seen, truth = (jnp.asarray(of[LEARNED:], dtype) for of in (y, x))
            at = [jnp.log(jnp.asarray([width, width, ridge], dtype)) for ridge in ridges]
            rule = jax.tree.map(cast, rule)
            found.append([np.asarray(gradient(one, data, rule, seen, truth), np.float64) for one in at])
    return np.array(found)


if __name__ == "__main__":
    sys.exit(main())
