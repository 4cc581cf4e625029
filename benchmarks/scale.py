"""Time and memory of message passing against the size and the kind of graph, in f32.

    python benchmarks/scale.py [--repeats 7]

Each case runs in a process of its own, whose peak memory is its row's (Python and JAX included). It is timed in turn
with the bare matrix products of as many messages, long axis last, and with the 100 x 100 grid, both in the same
process: `loop/bare`, and `to grid`, the time per message against that of the grid. 30 iterations at rank 17 with 31
points; 5 on the largest graph.

- `hand`: hand-written code for a grid, arrays shifted by one row or column, with the same outcome; its `to grid` is
  what graphs as index arrays cost.
- `types`: a 107 x 86 grid whose rows have edge types of their own (426 with directions), and the same with one.
- `attachment`: a preferential-attachment graph of 1e5 nodes, four links each, and its largest degree.
- `batch`: denoising of many small images in one compiled call, by `jax.lax.map` with a batch size.
- `partition`: one grid in blocks over two devices of this CPU.
- `discrete`: discrete belief propagation with 50 states; bare: one product with a table of 50 x 50.
- `fit`: learning from 2e5 pairs with observations at rank 100, a pair counted as a message; bare: the products of the
  normal equations.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables, timing
from kbpjax.inference.loopy import constant_messages

RESULTS = Path("benchmarks/results")
RANK, POINTS = 17, 31
GRIDS = ("grid 100", "grid 316", "grid 1000")
OTHERS = ("hand", "types 1", "types 426", "attachment", "batch", "partition", "discrete", "fit")
CASES = GRIDS + OTHERS
Call = Callable[[], Any]


class Case(NamedTuple):
    """What is timed, what it is compared with, and for how many messages and iterations."""

    call: Call
    bare: Call
    messages: int
    iters: int
    more: dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each, in turn (default: 7)")
    parser.add_argument("--one", choices=CASES, help="measure one case and print JSON")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ValueError(f"--repeats: must be at least 1; got {args.repeats}. Ask for one or more timed runs.")
    repeats = 3 if args.quick else args.repeats
    if args.one:
        print(json.dumps(measure(args.one, repeats)))
        return
    cases = [case for case in CASES if not (args.quick and case == GRIDS[-1])]
    rows = [alone(case, repeats) for case in command_line.progress(cases, "cases")]
    tables.print_table(rows)
    results.write_results(args.out / "scale.json", {"repeats": repeats}, rows)


def alone(case: str, repeats: int) -> dict[str, Any]:
    """Measure one case in a fresh process."""
    flags = "--xla_force_host_platform_device_count=2" if case == "partition" else ""
    known = {**os.environ, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    command = [sys.executable, __file__, "--one", case, "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=known)
    if done.returncode:
        raise ValueError(f"{case}: must be measured; got exit status {done.returncode}. {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(case: str, repeats: int) -> dict[str, Any]:
    build: dict[str, Callable[[], Case]] = {
        "hand": hand,
        "types 1": lambda: on_graph(typed(1)),
        "types 426": lambda: on_graph(typed(426)),
        "attachment": lambda: on_graph(attachment(100_000, 4)),
        "batch": batch,
        "partition": partition,
        "discrete": discrete,
        "fit": fit,
        GRIDS[0]: lambda: on_graph(kbp.grid_graph(100, 100)),
        GRIDS[1]: lambda: on_graph(kbp.grid_graph(316, 316)),
        GRIDS[2]: lambda: on_graph(kbp.grid_graph(1000, 1000), 5),
    }
    begin = time.perf_counter()
    one = build[case]()
    build_s = time.perf_counter() - begin
    begin = time.perf_counter()
    jax.block_until_ready(one.call())
    first_s = time.perf_counter() - begin
    grid = build[GRIDS[0]]()
    times = timing.in_turn((one.call, one.bare, grid.call), repeats)
    loop_s, bare_s, _ = map(statistics.median, zip(*times, strict=True))
    share = one.messages * one.iters / (grid.messages * grid.iters)
    return {
        "case": case,
        "messages": one.messages,
        "build_s": build_s,
        "first_call_s": first_s,
        "s": loop_s,
        "bare_s": bare_s,
        "ns_per_message": 1e9 * loop_s / (one.messages * one.iters),
        "loop/bare": statistics.median(row[0] / row[1] for row in times),
        "to grid": statistics.median(row[0] / row[2] for row in times) / share,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        **one.more,
    }


def problem(graph: kbp.Graph) -> tuple[kbp.Operators, jax.Array]:
    """Return operators for a graph, drawn at random, and local factors."""
    rng = np.random.default_rng(0)
    kinds = 2 + 2 * max(k for k, *_ in graph.edge_types)
    project = jnp.asarray(rng.uniform(size=(kinds, RANK, POINTS)), jnp.float32)
    local = jnp.asarray(rng.uniform(0.1, 1, (graph.num_nodes, POINTS)), jnp.float32)
    return kbp.Operators(jnp.asarray(rng.uniform(size=(1, POINTS, RANK)), jnp.float32), project, 1e-6), local


def on_graph(graph: kbp.Graph, iters: int = 30) -> Case:
    operators, local = problem(graph)
    degree = max(degree for *_, degree in graph.node_types)

    def call() -> jax.Array:
        return kbp.run(operators, graph, local, num_iters=iters).messages

    return Case(call, bare(graph.num_edges, iters), graph.num_edges, iters, {"max_degree": degree})


def bare(messages: int, iters: int, *sizes: tuple[int, int]) -> Call:
    """Return matrix products with so many messages, long axis last, by default evaluation and projection."""
    rng = np.random.default_rng(0)
    shapes = sizes or ((POINTS, RANK), (RANK, POINTS))
    matrices = [jnp.asarray(rng.uniform(size=shape), jnp.float32) for shape in shapes]
    start = jnp.ones((shapes[-1][0], messages))

    @jax.jit
    def products(start: jax.Array) -> jax.Array:
        def once(messages: jax.Array, _: None) -> tuple[jax.Array, None]:
            for matrix in matrices:
                messages = matrix @ messages / len(messages)
            return messages, None

        return jax.lax.scan(once, start, length=iters)[0]

    return lambda: products(start)


def typed(kinds: int) -> kbp.Graph:
    """Return a 107 x 86 grid with one edge type, or 213, one for each row across and down (426 with directions)."""
    height, width = 107, 86
    across, down = np.repeat(np.arange(height), width - 1), np.repeat(np.arange(height, 2 * height - 1), width)
    return kbp.grid_graph(height, width, edge_type=np.concatenate([across, down]) if kinds > 1 else None)


def attachment(num_nodes: int, links: int) -> kbp.Graph:
    """Grow a graph whose new nodes are linked to nodes in proportion to their degrees (Barabasi and Albert 1999)."""
    rng = np.random.default_rng(0)
    ends = list(range(links))
    edges = []
    for node in range(links, num_nodes):
        chosen: set[int] = set()
        while len(chosen) < links:
            chosen.add(ends[rng.integers(len(ends))])
        edges += [(other, node) for other in chosen]
        ends += [*chosen, *[node] * links]
    return kbp.Graph.from_edges(edges, num_nodes)


def hand() -> Case:
    """Return message passing on a grid by shifted arrays [direction, rank, row, column], and how near it comes."""
    side, iters, damping = 100, 30, 0.2
    graph = kbp.grid_graph(side, side)
    operators, local = problem(graph)
    evaluate, (forth, back) = operators.evaluate[0], operators.project
    by_point = local.T.reshape(POINTS, side, side)

    def scale(messages: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Term by term, as a compiler makes quick code of.
        norm = jnp.sqrt(sum((messages[q] ** 2 for q in range(1, RANK)), messages[0] ** 2))
        return messages / jnp.where(norm > 0, norm, 1), norm

    def heard(messages: jax.Array, rows: tuple[int, int], columns: tuple[int, int]) -> jax.Array:
        """Shift messages to their receivers and evaluate them; 1 where there is no neighbor."""
        shape = messages.shape[1:]
        values = jnp.maximum(evaluate @ messages.reshape(RANK, -1), 1e-6).reshape(POINTS, *shape)
        return jnp.pad(values, ((0, 0), rows, columns), constant_values=1)

    def send(matrix: jax.Array, product: jax.Array) -> jax.Array:
        return (matrix @ product.reshape(POINTS, -1)).reshape(RANK, *product.shape[1:])

    def iterate(state: tuple[jax.Array, ...], _: None) -> tuple[tuple[jax.Array, ...], jax.Array]:
        right, left, down, up = state
        from_left, from_right = heard(right, (0, 0), (1, 0)), heard(left, (0, 0), (0, 1))
        from_above, from_below = heard(down, (1, 0), (0, 0)), heard(up, (0, 1), (0, 0))
        across, along = by_point * from_left * from_right, by_point * from_above * from_below
        sent = (
            send(forth, (along * from_left)[:, :, :-1]),
            send(back, (along * from_right)[:, :, 1:]),
            send(forth, (across * from_above)[:, :-1]),
            send(back, (across * from_below)[:, 1:]),
        )
        new, changes = [], []
        for old, update in zip(state, sent, strict=True):
            direction, norm = scale(update)
            changes.append(jnp.max(jnp.abs(direction - old)))
            share = (1 - damping) * norm / (damping + (1 - damping) * norm)
            new.append(scale((1 - share) * old + share * direction)[0])
        return tuple(new), jnp.max(jnp.stack(changes))

    start = constant_messages(operators, graph)
    across = side * (side - 1)
    parts = [start[:across], start[2 * across : 3 * across], start[across : 2 * across], start[3 * across :]]
    wide, tall = (side, side - 1), (side - 1, side)
    state = tuple(part.T.reshape(RANK, *shape) for part, shape in zip(parts, (wide, wide, tall, tall), strict=True))
    compiled = jax.jit(lambda state: jax.lax.scan(iterate, state, length=iters))

    def call() -> Any:
        return compiled(state)

    by_hand = call()[0][0].reshape(RANK, -1).T
    ours = kbp.run(operators, graph, local, num_iters=iters, damping=damping).messages[:across]
    more = {"differ_by": float(jnp.max(jnp.abs(by_hand - ours)))}
    return Case(call, bare(graph.num_edges, iters), graph.num_edges, iters, more)


def batch() -> Case:
    """Return a run on 1,000 images of 28 x 28, 50 at a time."""
    images, side, at_once, iters = 1000, 28, 50, 10
    graph = kbp.grid_graph(side, side)
    operators, _ = problem(graph)
    locals_ = jax.random.uniform(jax.random.key(0), (images, side * side, POINTS), minval=0.1)

    def one(local: jax.Array) -> jax.Array:
        return jnp.mean(kbp.run(operators, graph, local, num_iters=iters).messages, axis=1)

    compiled = jax.jit(lambda batch: jax.lax.map(one, batch, batch_size=at_once))
    messages = images * graph.num_edges
    return Case(lambda: compiled(locals_), bare(messages, iters), messages, iters, {})


def partition() -> Case:
    """Return a run of a 300 x 300 grid in two blocks."""
    graph, iters = kbp.grid_graph(300, 300), 30
    operators, local = problem(graph)
    blocks = kbp.sharded.partition_graph(graph)
    ours = kbp.run(operators, graph, local, schedule=blocks, num_iters=iters).messages
    whole = kbp.run(operators, graph, local, num_iters=iters).messages
    more = {
        "differ_by": float(jnp.max(jnp.abs(ours - jax.device_put(whole, ours.sharding)))),
        "exchanged_bytes": 4 * RANK * blocks.exchanged,
    }

    def call() -> jax.Array:
        return kbp.run(operators, graph, local, schedule=blocks, num_iters=iters).messages

    return Case(call, bare(graph.num_edges, iters), graph.num_edges, iters, more)


def discrete() -> Case:
    """Return discrete belief propagation on a grid, messages being tables."""
    graph, states, iters = kbp.grid_graph(100, 100), 50, 30
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.uniform(0.1, 1, (1, states, states)), jnp.float32)
    local = jnp.asarray(rng.uniform(0.1, 1, (graph.num_nodes, states)), jnp.float32)
    operators = kbp.Operators(jnp.eye(states)[None], table, 0.0, table)
    return Case(
        lambda: kbp.run(operators, graph, local, num_iters=iters).messages,
        bare(graph.num_edges, iters, (states, states)),
        graph.num_edges,
        iters,
        {},
    )


def fit() -> Case:
    """Return learning, and the products of features that it needs."""
    pairs, rank = 200_000, 100
    rng = np.random.default_rng(0)
    first = rng.uniform(size=pairs).astype(np.float32)
    second, seen = (first + rng.normal(0, 0.1, pairs).astype(np.float32) for _ in range(2))
    data = kbp.TrainingData({0: (first, second)}, {0: first}, {0: (first, seen)})
    rule = kbp.ConstantTime(eps=1e-6, max_rank=rank)
    settings = {"kernel": kbp.RBF(0.005), "obs_kernel": kbp.RBF(0.005)}
    held = kbp.fix_landmarks(data, rule=rule, **settings)
    features = jnp.asarray(rng.uniform(size=(3, pairs, rank)), jnp.float32)

    @jax.jit
    def products(features: jax.Array) -> jax.Array:
        both = [(0, 0), (1, 1), (0, 1), (1, 0), (0, 1), (0, 0), (0, 0), (0, 2), (2, 2)]  # of pairs, nodes, observations
        return jnp.stack([features[i].T @ (features[j] + n) for n, (i, j) in enumerate(both)])

    return Case(
        lambda: kbp.fit(data, rule=held, **settings).operators.project, lambda: products(features), pairs, 1, {}
    )


if __name__ == "__main__":
    sys.exit(main())
