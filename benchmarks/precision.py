"""Gradients through `fit` and `infer` in float32 against those in float64, by ridge.

    python -m benchmarks.precision

The losses are squared errors of the posterior means of five cases, with 100 others to learn from. Their gradients are
with respect to the logarithms of the bandwidths of variables and observations and of the ridge, at landmarks that are
the same in both precisions. Errors are norms of the differences over all cases, relative to those in float64.
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
LEARNED, ASKED = 100, 5


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
        x = draw(problems[name], LEARNED + ASKED, args.seed)
        exact, found = (gradients(problems[name], x, width, ridges, wide) for wide in (True, False))
        errors = np.linalg.norm(found - exact, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
        for row, error in zip(rows, errors, strict=True):
            row[f"{name}, bandwidth {width:g}"] = float(error)
    tables.print_table(rows)
    results.write_results(args.out / "precision.json", {"learned": LEARNED, "asked": ASKED, "seed": args.seed}, rows)


def draw(graph: kbp.Graph, count: int, seed: int) -> np.ndarray:
    """Return draws [count, node] of a Gaussian whose precision matrix has the zeros of the graph, of variance 1."""
    links = np.zeros((graph.num_nodes, graph.num_nodes))
    links[np.asarray(graph.senders), np.asarray(graph.receivers)] = 1
    precision = 1.05 * np.linalg.eigvalsh(links)[-1] * np.eye(len(links)) - links
    z = np.random.default_rng(seed).normal(size=(count, len(links)))
    x = z @ np.linalg.cholesky(np.linalg.inv(precision)).T
    return (x / x.std()).astype(np.float32)


def gradients(graph: kbp.Graph, x: np.ndarray, width: float, ridges: tuple[float, ...], wide: bool) -> np.ndarray:
    """Return the gradients [ridge, case, parameter] in float64, if wide, or in float32."""
    y = (x + 0.5 * np.random.default_rng(1).normal(size=x.shape)).astype(np.float32)
    data = kbp.pool(graph, x[:LEARNED], y[:LEARNED])
    kernels = kbp.RBF(width), kbp.RBF(width)
    rule = kbp.fix_landmarks(data, kernel=kernels[0], obs_kernel=kernels[1])
    dtype = np.float64 if wide else np.float32
    cast = lambda leaf: np.asarray(leaf).astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    with jax.enable_x64(wide):
        data, rule = kbp.pool(graph, *(of[:LEARNED].astype(dtype) for of in (x, y))), jax.tree.map(cast, rule)
        seen, truth = (jnp.asarray(of[LEARNED:], dtype) for of in (y, x))
        points = jnp.linspace(-4, 4, 81, dtype=dtype)

        def losses(logarithms: jax.Array) -> jax.Array:
            width, obs_width, ridge = jnp.exp(logarithms)
            options = {"kernel": kbp.RBF(width), "obs_kernel": kbp.RBF(obs_width), "ridge": ridge, "rule": rule}
            model = kbp.fit(data, **options, nonnegative=None if graph.forest else kbp.Clipped())
            ask = lambda y: kbp.mean(kbp.infer(model, graph, y, points=points, tol=1e-5))
            return jnp.mean((jax.vmap(ask)(seen) - truth) ** 2, axis=1)

        gradient = jax.jit(jax.jacrev(losses))
        at = [jnp.log(jnp.asarray([width, width, ridge], dtype)) for ridge in ridges]
        return np.stack([np.asarray(gradient(one), np.float64) for one in at])


if __name__ == "__main__":
    sys.exit(main())
