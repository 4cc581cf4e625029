"""One run on what JAX finds, such as a GPU: numbers against the CPU, messages a second against bandwidth, first calls.

    python -m benchmarks --device [--seconds 480] [--largest 1e8] [--quick]

It needs kbpjax alone, downloads nothing, stops asking for more once `--seconds` are over, and writes device.json after
each part, so that a run that is stopped keeps what it has. Parts:

- `equal`: the largest difference of beliefs on the device to those on the CPU of the same machine, f32, by problem;
  where that is the same CPU it is 0.
- `copy`: GB/s of writing 2 x for an array x of 1 GiB (bytes read and written).
- `messages`: 30 iterations of a grid at rank 17 with 31 points, in one compiled call: messages a second, and the GB/s
  of reading and writing each message once in an iteration.
- `fit`, `gradient`, `batch`: seconds of the second call, and of the first.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import results, tables, timing

RANK, POINTS, ITERS = 17, 31, 30
SIDES = (50, 158, 500, 1581, 5000)
"""Grids of 1e4 .. 1e8 messages."""
Row = dict[str, Any]


def run(args: argparse.Namespace) -> None:
    """Run the parts and write device.json."""
    start, rows, path = time.perf_counter(), list[Row](), args.out / "device.json"
    device = jax.devices()[0]
    config = {"platform": device.platform, "device": device.device_kind, "devices": jax.device_count()}
    print(f"{config['device']} ({config['platform']}), {config['devices']} of them")
    for part in parts(args.quick, args.largest):
        if time.perf_counter() - start > args.seconds:
            print(f"{args.seconds:g} s are over: later parts are left out")
            break
        for row in part():
            rows.append(row)
            tables.print_table([row])
            results.write_results(path, config | {"quick": args.quick}, rows, seconds=time.perf_counter() - start)


def parts(quick: bool, largest: float) -> list[Callable[[], Iterator[Row]]]:
    """Return the parts, cheap ones first."""
    sides = [side for side in SIDES if 4 * side * side <= 1.01 * largest][: 1 if quick else None]
    sizes = [lambda side=side: messages(side, quick) for side in sides]
    return [equal, lambda: copy(quick), *sizes[:3], lambda: learning(quick), *sizes[3:]]


def problem(graph: kbp.Graph) -> tuple[kbp.Operators, jax.Array]:
    """Return positive operators near those of the constant message, and local factors [node, point]."""
    rng = np.random.default_rng(0)
    near = lambda *shape: jnp.asarray(1 + 0.1 * rng.normal(size=shape), jnp.float32)
    local = 1 + 0.1 * jax.random.normal(jax.random.key(0), (graph.num_nodes, POINTS), jnp.float32)
    return kbp.Operators(near(1, POINTS, RANK) / RANK, near(2, RANK, POINTS) / POINTS, 1e-3), local


def messages(side: int, quick: bool) -> Iterator[Row]:
    """Yield messages a second of a grid."""
    since = time.perf_counter()
    graph = kbp.grid_graph(side, side)
    built = time.perf_counter() - since
    solve = lambda operators, local: kbp.run(operators, graph, local, num_iters=ITERS).messages
    row: Row = {"part": "messages", "messages": graph.num_edges, "graph_s": built}
    try:
        _, first, seconds = timing.timed(solve, *problem(graph), repeats=1 if quick else 5)
    except jax.errors.JaxRuntimeError as error:  # out of memory
        yield row | {"failed": str(error).splitlines()[0][:120]}
        return
    rate = graph.num_edges * ITERS / seconds
    row |= {"first_s": first, "ms": 1e3 * seconds, "G_messages_per_s": rate / 1e9}
    yield row | {"message_GB_per_s": 2 * 4 * RANK * rate / 1e9}


def copy(quick: bool) -> Iterator[Row]:
    """Yield GB/s of reading and writing an array."""
    x = jnp.ones((2**20 if quick else 2**28,), jnp.float32)
    _, first, seconds = timing.timed(jax.jit(lambda x: 2 * x), x, repeats=5)
    yield {"part": "copy", "GB_per_s": 2 * x.nbytes / seconds / 1e9, "first_s": first}


def equal() -> Iterator[Row]:
    """Yield the largest differences of beliefs between the device and the CPU, at what was learned on the CPU."""
    rng = np.random.default_rng(0)
    for name, graph in {"chain": kbp.chain_graph(30), "grid": kbp.grid_graph(12, 12)}.items():
        x = np.cumsum(rng.normal(size=(200, graph.num_nodes)), axis=1).astype(np.float32)
        x = (x - x.mean(0)) / x.std(0)
        y = x + 0.5 * rng.normal(size=x.shape).astype(np.float32)
        found = []
        with jax.default_device(jax.devices("cpu")[0]):
            model = kbp.fit(
                kbp.pool(graph, x[1:], y[1:]), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), rule=kbp.ConstantTime()
            )
        for place in (jax.devices("cpu")[0], jax.devices()[0]):
            with jax.default_device(place):
                posterior = kbp.infer(*jax.device_put((model, graph), place), jax.device_put(jnp.asarray(y[0]), place))
                found.append(np.asarray(posterior.weights))
        yield {"part": "equal", "problem": name, "difference": float(np.abs(found[0] - found[1]).max())}


def learning(quick: bool) -> Iterator[Row]:
    """Yield seconds of `fit`, of a gradient through `fit` and `infer`, and of a batch of pictures."""
    side, rng = 20 if quick else 100, np.random.default_rng(0)
    graph = kbp.grid_graph(side, side)
    x = np.cumsum(rng.normal(size=(2, graph.num_nodes)), axis=1).astype(np.float32)
    x = (x - x.mean()) / x.std()
    y = x + 0.5 * rng.normal(size=x.shape).astype(np.float32)
    data = kbp.pool(graph, x, y)
    rule = kbp.fix_landmarks(data, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
    learn = lambda width: kbp.fit(data, kernel=kbp.RBF(width), obs_kernel=kbp.RBF(0.5), rule=rule)
    points = jnp.linspace(-4, 4, POINTS)
    mean = lambda model, y: kbp.mean(kbp.infer(model, graph, y, points=points))
    loss = lambda width: jnp.mean((mean(learn(width), jnp.asarray(y[0])) - x[0]) ** 2)
    model = jax.jit(learn)(jnp.float32(0.5))
    batch = jnp.asarray(np.tile(y[:1], (4 if quick else 32, 1)))
    calls = {
        "fit": (learn, jnp.float32(0.5)),
        "gradient": (jax.grad(loss), jnp.float32(0.5)),
        "batch": (lambda batch: jax.vmap(lambda y: mean(model, y))(batch), batch),
    }
    for name, (call, argument) in calls.items():
        _, first, seconds = timing.timed(jax.jit(call), argument, repeats=1 if quick else 5)
        yield {"part": name, "nodes": graph.num_nodes, "first_s": first, "ms": 1e3 * seconds}
