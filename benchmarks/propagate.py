"""Time message passing on a 100 x 100 grid against the bare matrix products of the same sizes.

    python benchmarks/propagate.py [--repeats 15]

The loop and the products run in turn, 30 iterations each, and ratios are medians over pairs, so that a machine whose
speed drifts does not decide. `first_s`: the products as in the loop, the long axis (messages) first; `last_s`: the long
axis last. A second table has exact inference on large trees, beside one iteration of the loop on them.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables, timing

RANKS = ((6, 11), (17, 31), (39, 73))
ITERS = 30
SIDE = 100
NODES = 10_001
RESULTS = Path("benchmarks/results")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each, in turn (default: 15)")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ValueError(f"--repeats: must be at least 1; got {args.repeats}. Ask for one or more timed runs.")
    repeats = 3 if args.quick else args.repeats
    graph = kbp.grid_graph(SIDE, SIDE)
    print(f"{SIDE} x {SIDE} grid, {graph.num_edges} messages, {ITERS} iterations, f32, {jax.devices()[0].device_kind}")
    sizes = [compare(graph, rank, points, repeats) for rank, points in command_line.progress(RANKS, "ranks")]
    tables.print_table(sizes)
    print()
    exact = [tree(name, repeats) for name in command_line.progress(("chain", "star", "random tree"), "trees")]
    tables.print_table(exact)
    results.write_results(args.out / "propagate.json", {"repeats": repeats}, sizes, trees=exact)


def compare(graph: kbp.Graph, rank: int, points: int, repeats: int) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    evaluate = jax.random.uniform(keys[0], (1, points, rank))
    project = jax.random.uniform(keys[1], (2, rank, points))
    local = jax.random.uniform(keys[2], (graph.num_nodes, points))
    operators = kbp.Operators(evaluate, project, 1e-6)
    messages = jnp.ones((graph.num_edges, rank))

    def loop() -> jax.Array:
        return kbp.run(operators, graph, local, num_iters=ITERS).messages

    @jax.jit
    def first(messages: jax.Array) -> jax.Array:
        def products(messages, _):
            values = (messages @ evaluate[0].T).reshape(2, -1, points)
            return jnp.einsum("tep,trp->ter", values, project).reshape(-1, rank) / points, None

        return jax.lax.scan(products, messages, length=ITERS)[0]

    @jax.jit
    def last(messages: jax.Array) -> jax.Array:
        def products(messages, _):
            return project[0] @ (evaluate[0] @ messages) / points, None

        return jax.lax.scan(products, messages, length=ITERS)[0]

    start = time.perf_counter()
    jax.block_until_ready(loop())
    call1 = time.perf_counter() - start
    times = timing.in_turn((loop, lambda: first(messages), lambda: last(messages.T)), repeats)
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    ratios = [statistics.median(row[0] / row[i] for row in times) for i in (1, 2)]
    seconds_of = dict(zip(("first_call_s", "loop_s", "first_s", "last_s"), (call1, *medians), strict=True))
    return {"rank": rank, "points": points, **seconds_of, "loop/first": ratios[0], "loop/last": ratios[1]}


def tree(name: str, repeats: int) -> dict[str, Any]:
    rank, points = RANKS[0]
    child = np.arange(1, NODES)
    parent = {"chain": child - 1, "star": 0 * child, "random tree": np.random.default_rng(0).integers(0, child)}[name]
    start = time.perf_counter()
    graph = kbp.Graph.from_edges(np.stack([parent, child], axis=1), NODES)
    build_s = time.perf_counter() - start
    keys = jax.random.split(jax.random.key(0), 3)
    project = jax.random.uniform(keys[1], (2, rank, points))
    operators = kbp.Operators(jax.random.uniform(keys[0], (1, points, rank)), project, 1e-6)
    local = jax.random.uniform(keys[2], (NODES, points), jnp.float32, 0.1)
    solution = kbp.run_tree(operators, graph, local)
    calls = (lambda: kbp.run_tree(operators, graph, local), lambda: kbp.run(operators, graph, local, num_iters=1))
    tree_s, run_s = map(statistics.median, zip(*timing.in_turn(calls, repeats), strict=True))
    levels = int(solution.num_iters)
    return {
        "tree": name,
        "nodes": NODES,
        "levels": levels,
        "build_s": build_s,
        "run_tree_s": tree_s,
        "iteration_s": run_s,
    }


if __name__ == "__main__":
    sys.exit(main())
