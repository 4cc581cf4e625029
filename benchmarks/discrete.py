"""Time discrete belief propagation on a 100 x 100 grid with one shared table, against dense code and another package.

    python benchmarks/discrete.py [--repeats 5] [--peer PYTHON]

The dense reference is made for grids: messages as four arrays [row, column, state], shifted by hand, with the same two
matrix products. Both run in turn, 30 iterations each, and ratios are medians over pairs. `--peer` names a Python of an
environment of its own that has PGMax, which is run in a process of its own, as is the memory of ours.
"""

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables, timing
from kbpjax.baselines import discrete
from kbpjax.inference.operators import MaxProduct

STATES = (10, 50, 100)
ITERS, SIDE, DAMPING = 30, 100, 0.2
RESULTS = Path("benchmarks/results")
PEER_LIMIT_S = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, in turn (default: 5)")
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="Python of an environment with PGMax")
    parser.add_argument("--memory-of", type=int, metavar="STATES", help="print the peak memory of one run in GiB")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ValueError(f"--repeats: must be at least 1; got {args.repeats}. Ask for one or more timed runs.")
    if args.memory_of:
        jax.block_until_ready(ours(*problem(args.memory_of)).messages)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    repeats = 2 if args.quick else args.repeats
    rows = [compare(states, repeats, args.peer) for states in command_line.progress(STATES, "states")]
    tables.print_table(rows)
    results.write_results(args.out / "discrete.json", {"repeats": repeats, "peer": bool(args.peer)}, rows)


def problem(states: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table that is not symmetric, and local factors."""
    rng = np.random.default_rng(states)
    table, local = rng.random((states, states)) + 0.1, rng.random((SIDE * SIDE, states)) + 0.1
    return table.astype(np.float32), local.astype(np.float32)


def ours(table: np.ndarray, local: np.ndarray, arithmetic: Any = None) -> kbp.Solution:
    """Run the package."""
    states = len(table)
    more = {} if arithmetic is None else {"arithmetic": arithmetic}
    model = discrete.from_potentials(np.arange(states), np.ones(states, np.float32), table[None], **more)
    return kbp.run(model, kbp.grid_graph(SIDE, SIDE), local, num_iters=ITERS, damping=DAMPING)


@jax.jit
def dense(table: jax.Array, local: jax.Array) -> jax.Array:
    """Run the code made for grids; return beliefs [node, state]."""
    shape = (SIDE, SIDE, len(table))
    local = local.reshape(shape)

    def unit(messages: jax.Array) -> jax.Array:
        return messages / jnp.linalg.norm(messages, axis=-1, keepdims=True)

    def iterate(messages: list[jax.Array], _: None) -> tuple[list[jax.Array], None]:
        west, east, north, south = messages  # what comes in from there
        across, along = north * south * local, west * east * local
        to_east = jnp.matmul((west * across)[:, :-1], table, precision="highest")
        to_west = jnp.matmul((east * across)[:, 1:], table.T, precision="highest")
        to_south = jnp.matmul((north * along)[:-1], table, precision="highest")
        to_north = jnp.matmul((south * along)[1:], table.T, precision="highest")
        old = west[:, 1:], east[:, :-1], north[1:], south[:-1]
        sent = (to_east, to_west, to_south, to_north)
        mixed = [unit(DAMPING * a + (1 - DAMPING) * b) for a, b in zip(old, sent, strict=True)]
        places = (slice(None), slice(1, None)), (slice(None), slice(-1)), (slice(1, None),), (slice(-1),)
        return [jnp.ones(shape).at[place].set(m) for place, m in zip(places, mixed, strict=True)], None

    forth, back = (unit(jnp.broadcast_to(jnp.sum(table, axis=axis), shape)) for axis in (0, 1))
    borders = (slice(None), 0), (slice(None), -1), (0,), (-1,)
    first = [m.at[border].set(1) for m, border in zip((forth, back, forth, back), borders, strict=True)]
    west, east, north, south = jax.lax.scan(iterate, first, length=ITERS)[0]
    beliefs = west * east * north * south * local
    return (beliefs / jnp.sum(beliefs, axis=-1, keepdims=True)).reshape(-1, len(table))


def compare(states: int, repeats: int, peer: Path | None) -> dict[str, Any]:
    table, local = problem(states)
    model = discrete.from_potentials(np.arange(states), np.ones(states, np.float32), table[None])
    largest = discrete.from_potentials(
        np.arange(states), np.ones(states, np.float32), table[None], arithmetic=MaxProduct()
    )
    graph = kbp.grid_graph(SIDE, SIDE)
    scale = max(table.sum(0).max(), table.sum(1).max())  # as the package does, so that damping means the same
    scaled, own = jnp.asarray(table / scale), jnp.asarray(local)
    calls = (
        lambda: kbp.run(model, graph, own, num_iters=ITERS, damping=DAMPING).messages,
        lambda: dense(scaled, own),
        lambda: kbp.run(largest, graph, own, num_iters=ITERS, damping=DAMPING).messages,
    )
    times = timing.in_turn(calls, repeats)
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    solution = kbp.run(model, graph, own, num_iters=ITERS, damping=DAMPING)
    # What beliefs read is one update further than what is passed on, and has no damping.
    solution = dataclasses.replace(solution, messages=solution.values)
    evidence = kbp.likelihood(model, graph, lambda x: own[:, x])
    weights = kbp.beliefs(model, graph, evidence, solution, np.arange(states)).weights
    command = [sys.executable, __file__, "--memory-of", str(states)]
    memory = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = {
        "states": states,
        "run_s": medians[0],
        "dense_s": medians[1],
        "run/dense": statistics.median(row[0] / row[1] for row in times),
        "max_product_s": medians[2],
        "peak_gib": float(memory),
        "differ_by": float(jnp.max(jnp.abs(weights - dense(scaled, own)))),
    }
    return row | (ask(peer, states, np.asarray(weights), repeats) if peer else {})


def ask(peer: Path, states: int, weights: np.ndarray, repeats: int) -> dict[str, Any]:
    """Run PGMax in its own environment; empty entries where it fails or takes too long."""
    script = Path(__file__).with_name("peer_discrete.py")
    command = [str(peer), str(script), *map(str, (states, SIDE, ITERS, 1))]
    names = ("build_s", "first_s", "run_s", "peak_gib")
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=PEER_LIMIT_S, check=True)
        told = json.loads(found.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, IndexError, json.JSONDecodeError):
        return {f"pgmax_{name}": None for name in names} | {"pgmax_differs_by": None}
    differ = np.abs(np.asarray(told["marginals"]) - weights[:3]).max()
    return {f"pgmax_{name}": told[name] for name in names} | {"pgmax_differs_by": float(differ)}


if __name__ == "__main__":
    sys.exit(main())
