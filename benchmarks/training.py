"""Gradients through messages of many cases, with an own matrix for each edge: `train` against the general engine.

    python benchmarks/training.py [--repeats 5]

Seconds of one gradient of a function of the messages after ten iterations, of 32 cases, with respect to the matrices of
all edges; float32, medians of runs in turn. The engine is `run` under `jax.vmap`, of the same tables.
"""

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables
from kbpjax.training.potentials import ClosedForm, model_of
from kbpjax.training.propagation import DAMPING, Network

RESULTS = Path("benchmarks/results")
CASES, ITERATIONS = 32, 10


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, in turn (default: 5)")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ValueError(f"--repeats must be >= 1; got {args.repeats}. Raise it.")
    rng = np.random.default_rng(args.seed)
    dense = list(itertools.combinations(range(12), 2))
    near = {(min(i, j), max(i, j)) for i in range(70) for j in rng.choice(70, 4, replace=False).tolist() if i != j}
    graphs = {"12 nodes, all pairs": (12, dense), "70 nodes, about 4 neighbors drawn for each": (70, sorted(near))}
    rows = []
    for name, (nodes, edges) in list(graphs.items())[: 1 if args.quick else None]:
        rows.append(measure(name, kbp.Graph.from_edges(edges, nodes), 1 if args.quick else args.repeats, rng))
    tables.print_table(rows)
    results.write_results(args.out / "training.json", {"repeats": args.repeats, "cases": CASES}, rows)


def measure(name: str, graph: kbp.Graph, repeats: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the seconds of a gradient by both, and by how much their messages' beliefs differ."""
    nodes = graph.num_nodes
    x = rng.normal(size=(40, 1)) + rng.normal(size=(40, nodes))
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5), ridge=0.1, relation="counts")
    closed = ClosedForm.of(model, graph, own=True)
    start = closed.start(model)
    tables_model = model_of(model, closed, start, (), nodes)
    typed = tables_model.graph_of(graph)
    (network,) = Network.of([typed], closed)
    levels = tables_model.sizes[0]
    local = jnp.asarray(np.exp(rng.normal(size=(CASES, nodes, levels))), closed.log_ratios.dtype)
    exponents = network.appearance

    def by_training(potentials: Any) -> jax.Array:
        return jnp.sum(network.beliefs(closed, potentials, jnp.log(jnp.swapaxes(local, 0, 1)), ITERATIONS)[0] ** 2)

    def by_engine(potentials: Any) -> jax.Array:
        own = model_of(model, closed, potentials, (), nodes)
        options = {"num_iters": ITERATIONS, "damping": DAMPING, "exponents": exponents}
        return jnp.sum(jax.vmap(lambda one: kbp.run(own, typed, one, **options).messages)(local) ** 2)

    gradients = {"train_s": jax.jit(jax.grad(by_training)), "engine_s": jax.jit(jax.grad(by_engine))}
    seconds: dict[str, list[float]] = {key: [] for key in gradients}
    for gradient in gradients.values():
        jax.block_until_ready(gradient(start))
    for _ in range(repeats):
        for key, gradient in gradients.items():
            since = time.perf_counter()
            jax.block_until_ready(gradient(start))
            seconds[key].append(time.perf_counter() - since)
    found = {key: statistics.median(values) for key, values in seconds.items()}
    row = {"graph": name, "edges": len(network.kinds), "levels": levels, **found}
    return row | {"engine / train": found["engine_s"] / found["train_s"]}


if __name__ == "__main__":
    sys.exit(main())
