"""Memory and time of gradients through message passing, against the run itself, on a 100 x 100 grid.

    python benchmarks/gradients.py [--repeats 7]

Memory is what XLA plans for: temporary arrays and outputs of the compiled program, in MiB; the operators and local
factors, its inputs, are not counted. `messages_mib` is one array of all messages, and `kept` what a gradient keeps of
its iterations in such arrays: its temporary arrays beyond those of the gradient through one iteration. Ranks 17 and 31;
gradients with respect to operators and local factors; float32.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables, timing

RESULTS = Path("benchmarks/results")
RANK, POINTS = 17, 31
COUNTS = (1, 10, 30, 100, 300)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each, in turn (default: 7)")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ValueError(f"--repeats must be >= 1; got {args.repeats}. Raise it.")
    graph = kbp.grid_graph(30, 30) if args.quick else kbp.grid_graph(100, 100)
    counts = COUNTS[:2] if args.quick else COUNTS
    jobs = [(name, n) for name in ("plain", "positive, exponents") for n in (*counts, None)]
    rows: list[dict[str, Any]] = []
    for name, n in command_line.progress(jobs, "gradients"):
        first = next((row["gradient_temp_mib"] for row in rows if row["model"] == name), None)
        rows.append(measure(graph, name, n, first, 1 if args.quick else args.repeats))
    tables.print_table(rows)
    results.write_results(args.out / "gradients.json", {"repeats": args.repeats, "nodes": graph.num_nodes}, rows)


def problem(graph: kbp.Graph, positive: bool) -> tuple[kbp.Operators, jax.Array, jax.Array | None]:
    """Return operators near those of the constant message, whose iterations converge, and local factors."""
    rng = np.random.default_rng(0)

    def near(*shape: int) -> jax.Array:
        return jnp.asarray(1 + 0.1 * rng.normal(size=shape), jnp.float32)

    table = near(2, POINTS, POINTS) / POINTS if positive else None
    operators = kbp.Operators(near(1, POINTS, RANK) / RANK, near(2, RANK, POINTS) / POINTS, 1e-3, table)
    return operators, near(graph.num_nodes, POINTS), jnp.float32(0.7) if positive else None


def measure(graph: kbp.Graph, name: str, num_iters: int | None, first: float | None, repeats: int) -> dict[str, Any]:
    """Compile a run and the gradient of a scalar of its messages; num_iters None: to a tolerance."""
    operators, local, exponents = problem(graph, name != "plain")
    options = {"num_iters": 100, "tol": 1e-4} if num_iters is None else {"num_iters": num_iters}

    def messages(operators: kbp.Operators, local: jax.Array) -> kbp.Solution:
        return kbp.run(operators, graph, local, exponents=exponents, **options)

    def total(operators: kbp.Operators, local: jax.Array) -> jax.Array:
        return jnp.sum(messages(operators, local).messages ** 3)

    forward, gradient = (jax.jit(f).lower(operators, local).compile() for f in (messages, jax.grad(total, (0, 1))))
    taken = [_mib(compiled) for compiled in (forward, gradient)]
    calls: list[Callable[[], Any]] = [lambda f=f: f(operators, local) for f in (forward, gradient)]
    times = timing.in_turn(calls, repeats)
    size = graph.num_edges * operators.update.shape[1] * 4 / 2**20
    return {
        "model": name,
        "iterations": "to tol" if num_iters is None else str(num_iters),
        "messages_mib": size,
        "run_mib": sum(taken[0]),
        "gradient_mib": sum(taken[1]),
        "gradient / run": sum(taken[1]) / sum(taken[0]),
        "gradient_temp_mib": taken[1][0],
        "kept": None if num_iters is None or first is None else (taken[1][0] - first) / size,
        "run_s": statistics.median(row[0] for row in times),
        "gradient_s / run_s": statistics.median(row[1] / row[0] for row in times),
    }


def _mib(compiled: Any) -> tuple[float, float]:
    sizes = compiled.memory_analysis()
    return sizes.temp_size_in_bytes / 2**20, sizes.output_size_in_bytes / 2**20


if __name__ == "__main__":
    sys.exit(main())
