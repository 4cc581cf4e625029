"""Time message passing on a 100 x 100 grid against the bare matrix products of the same sizes.

    python benchmarks/propagate.py [--repeats 15]

The loop and the products run in turn, 30 iterations each, and ratios are medians over pairs, so that a machine whose
speed drifts does not decide. `first_s`: the products as in the loop, the long axis (messages) first; `last_s`: the long
axis last. A second table shows that the loop does not depend on the number of training samples.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments import _harness

RANKS = ((6, 11), (17, 31), (39, 73))
ITERS = 30
SIDE = 100
RESULTS = Path("benchmarks/results")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    _harness.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each, in turn (default: 15)")
    return _harness.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ValueError(f"--repeats: must be at least 1; got {args.repeats}. Ask for one or more timed runs.")
    repeats = 3 if args.quick else args.repeats
    graph = kbp.grid_graph(SIDE, SIDE)
    print(f"{SIDE} x {SIDE} grid, {graph.num_edges} messages, {ITERS} iterations, f32, {jax.devices()[0].device_kind}")
    sizes = [compare(graph, rank, points, repeats) for rank, points in _harness.progress(RANKS, "ranks")]
    _harness.print_table(sizes)
    print()
    samples = [grow(graph, count, repeats) for count in _harness.progress((1_000, 100_000), "training samples")]
    _harness.print_table(samples)
    _harness.write_results(args.out / "propagate.json", {"repeats": repeats}, sizes, training_samples=samples)


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

    call1 = seconds(loop)
    calls = (loop, lambda: first(messages), lambda: last(messages.T))
    times = in_turn(calls, repeats)
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    ratios = [statistics.median(row[0] / row[i] for row in times) for i in (1, 2)]
    seconds_of = dict(zip(("first_call_s", "loop_s", "first_s", "last_s"), (call1, *medians), strict=True))
    return {"rank": rank, "points": points, **seconds_of, "loop/first": ratios[0], "loop/last": ratios[1]}


def grow(graph: kbp.Graph, samples: int, repeats: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 255, samples).astype(np.float32)
    neighbour = (x + 10 * rng.standard_normal(samples)).astype(np.float32)
    noisy = (x + 30 * rng.standard_normal(samples)).astype(np.float32)
    y = jnp.asarray(rng.uniform(0, 255, graph.num_nodes), jnp.float32)
    data = kbp.TrainingData(edges={0: (x, neighbour)}, nodes={0: x}, observations={0: (x, noisy)})
    start = time.perf_counter()
    model = kbp.fit(data, kernel=kbp.RBF(30.0), obs_kernel=kbp.RBF(20.0), rule=kbp.ConstantTime(eps=1e-2))
    jax.block_until_ready(model)
    fit_s = time.perf_counter() - start
    evidence = kbp.observe(model, graph, y)
    times = in_turn((lambda: kbp.run(model, graph, evidence, num_iters=ITERS).messages,), repeats)
    rank, points = model.ranks[0]
    loop_s = statistics.median(row[0] for row in times)
    return {"training samples": samples, "rank": rank, "points": points, "fit_s": fit_s, "loop_s": loop_s}


def in_turn(calls: tuple[Callable[[], jax.Array], ...], repeats: int) -> list[tuple[float, ...]]:
    for call in calls:
        seconds(call)
    return [tuple(seconds(call) for call in calls) for _ in range(repeats)]


def seconds(call: Callable[[], jax.Array]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
