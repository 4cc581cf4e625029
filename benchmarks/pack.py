"""A thousand different graphs of 20 to 60 nodes: one call of `infer` on the packed graph, and a call for each.

    python benchmarks/pack.py [--graphs 1000] [--loop 30]

Times include compilation: each way runs in a process of its own, in which only the model is known. A loop over a
thousand graphs takes an hour, so it is timed on the first graphs of which no two share what is compiled, cold and
again. The time of all is extrapolated: as many cold calls as the graphs have different shapes, and warm calls for the
others. Graphs are built beforehand.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables

RESULTS = Path("benchmarks/results")
KINDS = ("trees", "with cycles")
OTHERS = 4  # further batches of other graphs


def build(kind: str, count: int, seed: int) -> tuple[list[kbp.Graph], list[np.ndarray]]:
    """Return random graphs with at most three children of a node, and observations of their nodes."""
    rng = np.random.default_rng(seed)
    graphs, observed = [], []
    for size in rng.integers(20, 61, size=count).tolist():
        later = np.arange(1, size)
        edges = np.stack([rng.integers(np.maximum(later - 3, 0), later), later], axis=1)
        if kind == "with cycles":  # a triangle, and a chord for every fourth node
            chords = np.sort(rng.integers(0, size, size=(size // 4, 2)), axis=1)
            edges = np.concatenate([edges, [(0, 1), (0, 2), (1, 2)], chords[chords[:, 0] < chords[:, 1]]])
        graphs.append(kbp.Graph.from_edges(np.unique(edges, axis=0), size))
        observed.append(rng.normal(size=size))
    return graphs, observed


def learn() -> kbp.KernelMRF:
    """Return a model of numbers that follow an autoregression along edges, observed with noise."""
    rng = np.random.default_rng(0)
    x = np.zeros((60, 30))
    for t in range(1, 30):
        x[:, t] = 0.8 * x[:, t - 1] + 0.6 * rng.normal(size=60)
    data = kbp.pool(kbp.chain_graph(30), x, x + 0.4 * rng.normal(size=x.shape))
    return kbp.fit(data, kernel=kbp.RBF(0.7), obs_kernel=kbp.RBF(0.7))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--graphs", type=int, default=1000, help="number of graphs (default: 1000)")
    parser.add_argument(
        "--loop", type=int, default=30, help="number of graphs that are solved one by one (default: 30)"
    )
    parser.add_argument("--one", nargs=2, metavar=("KIND", "WAY"), help="measure one process and print JSON")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if not 1 <= args.loop <= args.graphs:
        raise ValueError(f"--loop must be 1 .. {args.graphs}; got {args.loop}. Choose fewer graphs than --graphs.")
    count, loop = (60, 4) if args.quick else (args.graphs, args.loop)
    if args.one:
        kind, way = args.one
        print(json.dumps(packed(kind, count) if way == "packed" else each(kind, count, loop)))
        return
    rows = [compare(kind, count, loop) for kind in command_line.progress(KINDS, "kinds of graphs")]
    tables.print_table(rows)
    results.write_results(args.out / "pack.json", {"graphs": count, "loop": loop}, rows)


def compare(kind: str, count: int, loop: int) -> dict[str, Any]:
    """Return the times of both ways, and the largest difference of their means on the graphs of the loop."""
    one, other = alone(kind, "packed", count, loop), alone(kind, "loop", count, loop)
    means, solved = one.pop("means"), other.pop("means")
    difference = max(float(np.max(np.abs(np.subtract(means[int(i)], solved[i])))) for i in solved)
    different = other["different"]
    loop_s = different * other["cold_s"] + (count - different) * other["warm_s"]
    return {
        "kind": kind,
        "graphs": count,
        **one,
        "loop_cold_s": other["cold_s"],
        "loop_warm_s": other["warm_s"],
        "different": different,
        "loop_s": loop_s,
        "loop / packed": loop_s / one["first_s"],
        "difference": difference,
    }


def alone(kind: str, way: str, count: int, loop: int) -> dict[str, Any]:
    """Measure one way in a fresh process."""
    command = [sys.executable, __file__, "--one", kind, way, "--graphs", str(count), "--loop", str(loop)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{kind}, {way}, failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def packed(kind: str, count: int) -> dict[str, Any]:
    """Return the seconds of a first call, of new observations, and of other batches, one after the other."""
    programs: list[str] = []
    listen = lambda event, *_, **__: programs.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    model = learn()
    graphs, y = build(kind, count, 1)
    batches = [build(kind, count, seed) for seed in range(2, 2 + OTHERS)]
    start = time.perf_counter()
    pack = kbp.pack(graphs)
    built = time.perf_counter() - start
    posterior = kbp.infer(model, pack.graph, pack.join(y))
    means = pack.split(kbp.mean(posterior))
    first = time.perf_counter() - start

    start = time.perf_counter()
    pack.split(kbp.mean(kbp.infer(model, pack.graph, pack.join([2 * one for one in y]))))
    again = time.perf_counter() - start

    others, compiled = [], []
    for other, other_y in batches:
        start, before = time.perf_counter(), len(programs)
        pack = kbp.pack(other)
        pack.split(kbp.mean(kbp.infer(model, pack.graph, pack.join(other_y))))
        others.append(time.perf_counter() - start)
        compiled.append(len(programs) - before)
    return {
        "nodes": int(sum(graph.num_nodes for graph in graphs)),
        "edges": sum(graph.num_edges // 2 for graph in graphs),
        "padded_nodes": posterior.graph.num_nodes,
        "padded_edges": posterior.graph.num_edges // 2,
        "iterations": int(posterior.solution.num_iters),
        "pack_s": built,
        "first_s": first,
        "again_s": again,
        "other_s": ", ".join(f"{seconds:.1f}" for seconds in others),
        "other_programs": ", ".join(map(str, compiled)),
        "means": [one.tolist() for one in means],
    }


def each(kind: str, count: int, loop: int) -> dict[str, Any]:
    """Return the mean seconds of a cold and a warm call for one graph, and the number of different shapes of graphs."""
    model = learn()
    graphs, y = build(kind, count, 1)
    number: dict[Any, int] = {}  # the first graph of each shape
    for i, graph in enumerate(graphs):
        number.setdefault((jax.tree.structure(graph), *(np.shape(leaf) for leaf in jax.tree.leaves(graph))), i)
    chosen = list(number.values())[:loop]
    kbp.mean(kbp.infer(model, kbp.chain_graph(3), np.zeros(3)))  # what all graphs share
    seconds, means = [], {}
    for scale in (1.0, 2.0):
        start = time.perf_counter()
        found = [np.asarray(kbp.mean(kbp.infer(model, graphs[i], scale * y[i]))) for i in chosen]
        seconds.append((time.perf_counter() - start) / len(chosen))
        means = means or {i: one.tolist() for i, one in zip(chosen, found, strict=True)}
    return {"cold_s": seconds[0], "warm_s": seconds[1], "different": len(number), "means": means}


if __name__ == "__main__":
    sys.exit(main())
