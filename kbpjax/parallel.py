"""Several devices: batches of problems side by side, or one graph in blocks that exchange their boundary messages.

A batch needs no code of its own: `shard_batch` places it, and a program compiled for it runs on all devices. One graph
is split by `partition_graph`; each device then updates the messages that its nodes send, and `run` here gives what
`kbpjax.run` gives. Neither starts anything: on several hosts it is the application that calls
`jax.distributed.initialize`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, ScalarLike

from kbpjax import _checks, parts
from kbpjax.acceleration import AdaptiveDamping
from kbpjax.graph import Graph
from kbpjax.implicit import Iteration, fixed_point, trust
from kbpjax.layout import long_first, long_last
from kbpjax.loops import BPState, iterate
from kbpjax.partition import Block, mesh_of
from kbpjax.partition import Partition as Partition
from kbpjax.partition import partition_graph as partition_graph
from kbpjax.propagate import Exponents, Solution, check_options, first_messages, pair_exponents, problem
from kbpjax.schedules import Synchronous, changes, mix
from kbpjax.update import Operators, check_types, flatten, of_type, unit, updates

Batch = TypeVar("Batch")

_SHARED = PartitionSpec()
"""The same on every device."""


def shard_batch(batch: Batch, devices: Mesh | int | None = None) -> Batch:
    """Split arrays along their first axis over devices, so that a compiled function of them runs on all of these.

    Test problems are independent: `jax.jit(jax.vmap(fn))` of a batch so placed needs no exchange, and its results stay
    where they were computed.

    Args:
        batch: arrays whose first axis counts problems [batch, ...], in any pytree.
        devices: a mesh, over all axes of which the batch is split; or the number of devices, the first of
            `jax.devices()`; None: all of them.

    Returns:
        The same arrays, each device holding an equal share.

    Raises:
        ValueError: an array without axes, or a first axis that the number of devices does not divide.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.parallel import shard_batch
        >>> shard_batch(jnp.zeros((3, 5)), 1).shape
        (3, 5)
    """
    mesh = mesh_of(devices)
    for leaf in jax.tree.leaves(batch):
        shape = np.shape(leaf)
        fix = "Pass arrays [batch, ...]; what all problems share needs no placing."
        _checks.require(len(shape) > 0, "batch", "must be arrays with a first axis", "a scalar", fix)
        fix = f"Pad it to {-(-shape[0] // mesh.size) * mesh.size} and drop the results of the padding."
        rule = f"must have a first axis that {mesh.size} devices divide"
        _checks.require(shape[0] % mesh.size == 0, "batch", rule, f"shape {shape}", fix)
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(mesh.axis_names)))


def run(
    model: Any,
    partition: Any,
    evidence: Any = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike | AdaptiveDamping = 0.2,
    tol: ScalarLike | None = None,
    exponents: Exponents = None,
    start: Any = None,
) -> Solution:
    """Do what `kbpjax.run` does, with all messages updated at once, on a graph in blocks.

    Each device holds the local factors of its nodes and the messages that these send, and an iteration exchanges
    messages between blocks, and the residual. The solution is that of the whole graph, on every device.

    Args:
        model: a `KernelMRF`, or `Operators` of one's own.
        partition: the graph in blocks, of `partition_graph`.
        evidence: `Evidence` of the whole graph, or local factors [node, point], or None for none.
        num_iters: iterations, >= 1; with `tol` the most there can be.
        damping: weight of the old message, in [0, 1), or `AdaptiveDamping()`.
        tol: stop once the residual is at most this; derivatives are then those of the fixed point. None: run all
            iterations, and differentiate through them.
        exponents: exponent of each undirected edge [pair], > 0, or one for all. None: 1.
        start: where to start: a solution, or messages as `Solution.passed_on` has them. None: constant messages.

    Returns:
        The messages of the whole graph and how they got there, as `kbpjax.run` returns them.

    Raises:
        ValueError: as `kbpjax.run`; something else than a partition.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax import parallel
        >>> graph, table = kbp.chain_graph(4), jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> operators = kbp.Operators(jnp.eye(2)[None], table[None])
        >>> solution = parallel.run(operators, parallel.partition_graph(graph, 1), num_iters=3)
        >>> solution.messages.shape, bool(solution.converged)
        ((6, 2), True)
    """
    ok, fix = isinstance(partition, Partition), "Make it with kbpjax.parallel.partition_graph(graph)."
    _checks.require(ok, "partition", "must be a partition of a graph", type(partition).__name__, fix)
    check_options(num_iters, damping, tol, Synchronous(), None)
    graph = partition.graph
    operators, known, local = problem(model, graph, evidence)
    check_types(operators, graph)
    powers = pair_exponents(graph, exponents, local.dtype)
    first = None if start is None else first_messages(operators, graph, start)
    clamped = None if known is graph else evidence.clamped
    damping = damping if isinstance(damping, AdaptiveDamping) else jnp.asarray(damping, local.dtype)
    tol = None if tol is None else jnp.asarray(tol, local.dtype)
    block, messages, *rows = _enter(operators, partition, local, clamped, first, powers)
    turns = InBlocks(replace(partition, block=block))
    last, residuals = _run(operators, turns, messages, *rows, damping, tol, num_iters)
    return _leave(operators, turns, last, residuals, *rows, powers, tol)


class InBlocks(Synchronous):
    """Update all messages at once, each device those of its block.

    All arrays hold the rows of one device after those of another: messages, local factors, and exponents, one for each
    message of a block, which `kbpjax.update.slot_powers` then finds by its number.

    Attributes:
        partition: the graph in blocks.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax import parallel
        >>> graph, table = kbp.chain_graph(4), jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> operators, local = kbp.Operators(jnp.eye(2)[None], table[None]), jnp.ones((4, 2)).at[0, 0].set(3.0)
        >>> turns, messages = parallel.InBlocks(parallel.partition_graph(graph, 1)), jnp.full((6, 2), 0.5**0.5)
        >>> once = jax.jit(lambda turns, old: turns.sweep(operators, graph, local, old, jnp.array(0.0), None))
        >>> messages, change = once(turns, messages)
        >>> messages.shape, round(float(change), 3)
        ((6, 2), 0.126)
    """

    partition: Partition

    def sweep(
        self, operators: Operators, graph: Graph, local: Array, messages: Array, damping: Array, exponents: Array | None
    ) -> tuple[Array, Array]:
        """Do one iteration; return the messages, and the largest difference between one and its undamped update."""
        del graph

        def turn(block: Block, operators: Operators, damping: Array, *rows: Any) -> tuple[Array, Array]:
            local, old, exponents = rows
            update = updates(operators, block.part, local, self._heard(block, old), exponents, operators.passed_on)
            update, size = unit(flatten([update]))
            change = jnp.max(changes(operators, old, update), where=block.real, initial=0)
            new = jnp.where(block.real[:, None], mix(old, update, size, damping), 0)
            every = jax.lax.all_gather(change, self.partition.axis)
            return new, jnp.max(every)  # not pmax, which on CPUs passes over NaN

        return self._on_devices(turn, (self._rows, _SHARED))(operators, damping, local, messages, exponents)

    def coefficients(
        self, operators: Operators, local: Array, messages: Array, exponents: Array | None
    ) -> Float[Array, "edge rank"]:
        """Return what beliefs read of positive messages, as `kbpjax.update.coefficients` does."""

        def turn(block: Block, operators: Operators, _: Array, *rows: Any) -> Array:
            local, messages, exponents = rows
            heard = self._heard(block, messages)
            return unit(flatten([updates(operators, block.part, local, heard, exponents, operators.project)]))[0]

        return self._on_devices(turn, self._rows)(operators, jnp.int32(0), local, messages, exponents)

    @property
    def _rows(self) -> PartitionSpec:
        return PartitionSpec(self.partition.axis)

    def _on_devices(self, turn: Callable[..., Any], out: Any) -> Callable[..., Any]:
        """Have each device do a turn with its block, the operators, a damping, and its own rows of the rest."""

        def on_device(block: Block, *rest: Any) -> Any:
            return turn(jax.tree.map(lambda array: array[0], block), *rest)

        specs = (self._rows, _SHARED, _SHARED, self._rows, self._rows, self._rows)
        mesh = self.partition.mesh
        mapped = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
        return partial(mapped, self.partition.block)

    def _heard(self, block: Block, own: Array) -> Float[Array, "message coordinate"]:
        """Return the messages of a block: its own, and those that other devices send it."""
        columns, axis = long_last(own), self.partition.axis
        pairs = zip(block.leaving, self.partition.routes, strict=True)
        heard = [jax.lax.ppermute(columns[:, leaving], axis, to) for leaving, to in pairs]
        return long_first(jnp.concatenate([columns, *heard], axis=1))


@jax.jit
def _enter(
    operators: Operators,
    partition: Partition,
    local: Array,
    clamped: Array | None,
    first: Array | None,
    exponents: Array | None,
) -> tuple[Block, Array, Array, Array | None]:
    """Give each device what it needs: its block, messages to start from, local factors and exponents."""
    block, split = partition.block, NamedSharding(partition.mesh, PartitionSpec(partition.axis))
    if clamped is not None:
        block = _ignore_incoming(block, clamped)
    local = flatten([local.at[block.nodes].get(mode="fill", fill_value=1)])
    exponents = None if exponents is None else exponents[block.pairs].reshape(-1)
    messages = _constant(operators, block) if first is None else first.at[block.sends].get(mode="fill", fill_value=0)
    rows = flatten([jnp.where(block.real[..., None], messages, 0)]), local, exponents
    return block, *jax.lax.with_sharding_constraint(rows, split)


@partial(jax.jit, static_argnames="num_iters")
def _run(
    operators: Operators,
    turns: InBlocks,
    messages: Array,
    local: Array,
    exponents: Array | None,
    damping: Any,
    tol: ScalarLike | None,
    num_iters: int,
) -> tuple[BPState, Array]:
    """Iterate; return the last state and all residuals."""
    given = operators, messages, local, exponents, damping
    if tol is not None:  # derivatives are of what is found, not of how
        given = jax.lax.stop_gradient(given)
    known, start, rows, others, weight = given

    def sweep(local: Array, messages: Array, damping: Array) -> tuple[Array, Array]:
        return turns.sweep(known, turns.partition.graph, local, messages, damping, others)

    last, residuals = iterate(sweep, rows, start, weight, None, tol, num_iters)
    if tol is None or turns.partition.graph.num_edges == 0:
        return last, residuals
    enough = jnp.asarray(tol, messages.dtype)
    weight = jnp.asarray(0.5 if isinstance(damping, AdaptiveDamping) else damping, messages.dtype)
    graph, most = turns.partition.graph, 2 * int(num_iters)
    messages = fixed_point(Iteration(operators, graph, local, weight, exponents, turns, enough, most), last.messages)
    return replace(last, messages=trust(messages, last.residual <= enough)), residuals


@jax.jit
def _leave(
    operators: Operators,
    turns: InBlocks,
    last: BPState,
    residuals: Array,
    local: Array,
    exponents: Array | None,
    powers: Array | None,
    tol: ScalarLike | None,
) -> Solution:
    """Put the solution of the whole graph together, on every device."""

    def whole(messages: Array) -> Array:
        everywhere = NamedSharding(turns.partition.mesh, PartitionSpec())
        return jax.lax.with_sharding_constraint(messages[turns.partition.edge_place], everywhere)

    converged = last.residual <= jnp.asarray(1e-3 if tol is None else tol, residuals.dtype)
    if operators.positive is None:
        return Solution(whole(last.messages), converged, last.count, residuals, powers)
    read = turns.coefficients(operators, local, last.messages, exponents)
    return Solution(whole(read), converged, last.count, residuals, powers, whole(last.messages))


def _constant(operators: Operators, block: Block) -> Float[Array, "device message coordinate"]:
    """Return the constant messages, as `kbpjax.init` does, of each device those that it sends."""
    tiles = block.part.edge_tiles
    ones = jnp.sum(of_type(operators.passed_on, tiles.types), axis=-1)
    spread = jnp.broadcast_to(ones[..., None, :], (*tiles.rows.shape, ones.shape[-1]))
    return unit(spread.reshape(*block.sends.shape, ones.shape[-1]))[0]


def _ignore_incoming(block: Block, clamped: Array) -> Block:
    """Return the blocks in which the incoming messages of clamped nodes count as 1."""
    clamped = clamped.at[block.nodes].get(mode="fill", fill_value=False)
    return replace(block, part=replace(block.part, slots=jax.vmap(parts.ignore_incoming)(block.part, clamped)))
