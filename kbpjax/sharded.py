"""Several devices: batches of problems in parallel, or one graph in blocks that exchange their boundary messages.

A batch needs no special code: `shard_batch` places it, and a function compiled for it runs on all devices. One graph
is split by `partition_graph`, whose result is a schedule: each device then updates the outgoing messages of its nodes,
and `kbpjax.run` and `kbpjax.infer` return the same solution as on one device. On several hosts, the application must
call `jax.distributed.initialize`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import values_or_shapes
from kbpjax._public import Checked, public
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.partition import Blocks, blocks_of, mesh_of
from kbpjax.graphs.plan import Plan
from kbpjax.inference.implicit import Iteration
from kbpjax.inference.operators import Operators, normalize
from kbpjax.inference.schedules import Problem, largest_change
from kbpjax.inference.update import PlanPart, lay_out, of_edges, send, update

__all__ = ["Partition", "partition_graph", "shard_batch"]

Batch = TypeVar("Batch")


@public
def shard_batch(batch: Batch, devices: Mesh | int | None = None) -> Batch:
    """Return arrays split along their first axis over devices; a compiled function of them runs on all devices.

    Problems of a batch are independent: `jax.jit(jax.vmap(fn))` of it needs no communication, and results stay where
    they were computed.

    Args:
        batch: arrays whose first axis counts problems [batch, ...], in any pytree.
        devices: a mesh, whose axes all split the batch; or a number of devices, the first of `jax.devices()`; None: all
            of them.

    Returns:
        The same arrays, with an equal share on each device.

    Raises:
        ValueError: an array without axes or with masked entries, or a first axis that the number of devices does not
            divide.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.sharded import shard_batch
        >>> shard_batch(jnp.zeros((3, 5)), 1).shape
        (3, 5)
    """
    mesh = mesh_of(devices)
    batch = jax.tree.map(_plain, batch)
    for leaf in jax.tree.leaves(batch):
        shape, kind = np.shape(leaf), leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        kinds = np.bool_, np.number, jax.dtypes.prng_key
        ok = any(jnp.issubdtype(kind, one) for one in kinds)
        _checks.require(ok, "batch", "must be arrays of numbers", f"dtype {kind}", "Leave it out.")
        fix = "Pass arrays [batch, ...]; leave out arrays that all problems share."
        _checks.require(len(shape) > 0, "batch", "must be arrays with a first axis", "a scalar", fix)
        fix = f"Pad it to {-(-shape[0] // mesh.size) * mesh.size} and drop the results of the padding."
        rule = f"must have a first axis that {mesh.size} devices divide"
        _checks.require(shape[0] % mesh.size == 0, "batch", rule, f"shape {shape}", fix)
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(mesh.axis_names)))


def _plain(leaf: Any) -> Any:
    """Return frames and masked arrays as arrays, in native byte order; raise ValueError if entries are hidden."""
    leaf = _checks.as_numpy("batch", leaf) if isinstance(leaf, np.ma.MaskedArray | _checks.Frame) else leaf
    return leaf.astype(leaf.dtype.newbyteorder("=")) if isinstance(leaf, np.ndarray) else leaf


class Partition(Checked):
    """The schedule of a graph in blocks, one for each device, which all send at once; made by `partition_graph`.

    An iteration exchanges the halo (the messages that cross between blocks) and the residual. Each device holds the
    local factors and the outgoing messages of its nodes. The solution is that of the whole graph, on every device.

    Attributes:
        blocks: the graph in blocks of nodes, and what they exchange.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> graph, table = kbp.chain_graph(4), jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> operators = kbp.Operators(jnp.eye(2)[None], table[None])
        >>> partition = kbp.sharded.partition_graph(graph, 1)
        >>> solution = kbp.run(operators, graph, schedule=partition, num_iters=3)
        >>> solution.messages.shape, bool(solution.converged)
        ((6, 2), True)
    """

    blocks: Blocks

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.blocks.graph

    @property
    def boundary(self) -> int:
        """The number of directed edges between blocks: messages that are exchanged in an iteration."""
        return self.blocks.boundary

    @property
    def exchanged(self) -> int:
        """Messages sent per iteration, including padding: at least `boundary`."""
        return self.blocks.exchanged

    @property
    def mesh(self) -> Mesh:
        """The devices, along one axis."""
        return self.blocks.mesh

    @values_or_shapes
    def __repr__(self) -> str:
        return f"Partition({self.mesh.size} devices, {self.boundary} messages between them)"

    def plan(self, graph: Graph) -> Plan:
        """Return the plan with one part per device; raise ValueError for another graph."""
        own, fix = self.blocks.graph, "Make it with kbpjax.sharded.partition_graph(graph) for the same graph."
        got, needed = (own.num_nodes, own.num_edges), (graph.num_nodes, graph.num_edges)
        _checks.require(got == needed, "schedule", f"must be of a graph of (nodes, edges) {needed}", got, fix)
        arrays = [(one.senders, one.receivers, one.edge_type, one.node_type) for one in (own, graph)]
        if own is not graph and not _checks.is_unread(arrays):
            same = all(np.array_equal(one, other) for one, other in zip(*arrays, strict=True))
            _checks.require(same, "schedule", "must be of this graph", "one of the same size", fix)
        return self.blocks.plan

    def parts(self, plan: Plan, local: Array, clamped: Array | None, exponents: Array | None) -> PlanPart:
        """Return the parts of the devices, with the local factors of their nodes."""
        halo = self.blocks.halo
        split = NamedSharding(self.mesh, PartitionSpec(self.blocks.axis))
        blocks, held = plan.blocks, halo.edges.shape[1]
        if clamped is not None:
            of_devices = clamped.at[halo.nodes].get(mode="fill", fill_value=False)
            blocks = jax.vmap(lambda blocks, nodes: tuple(b.without_incoming(nodes, held) for b in blocks))(
                blocks, of_devices
            )
        rows = local.at[halo.nodes].get(mode="fill", fill_value=1)
        powers = None if exponents is None else of_edges(exponents)[halo.edges]
        laid_out = jax.vmap(lay_out)(blocks, rows, powers)
        part = PlanPart(blocks, plan.kinds, plan.route, plan.present, *laid_out)
        return jax.lax.with_sharding_constraint(part, split)

    def place(self, rows: Array) -> Array:
        """Return messages [row, coordinate] split over the devices."""
        split = NamedSharding(self.mesh, PartitionSpec(self.blocks.axis))
        return jax.lax.with_sharding_constraint(rows, split)

    def replicate(self, rows: Array) -> Array:
        """Return messages in the order of edges [edge, coordinate], on every device."""
        return jax.lax.with_sharding_constraint(rows, NamedSharding(self.mesh, PartitionSpec()))

    def iteration(self, operators: Operators, parts: PlanPart, tol: Array, most: Array) -> "_OfDevices":
        """Return the iteration whose fixed point is differentiated."""
        return _OfDevices(operators, parts, self.blocks.plan.place, tol, most, self.blocks)

    def init(self, problem: Problem) -> Any:
        """Return (): there is no state."""
        del problem
        return ()

    def sweep(self, problem: Problem, state: Any, messages: Array, damping: Array) -> tuple[Array, Array, Any]:
        """Do one iteration; return the messages, the residual of the old ones, and the state."""
        operators, blocks = problem.operators, self.blocks

        def compute(part: PlanPart, operators: Operators, old: Array, received: Array, damping: Any) -> Any:
            new, change = send(operators, part, old, received, damping)
            every = jax.lax.all_gather(largest_change(operators, old, change), blocks.axis)
            return new, jnp.max(every)  # pmax ignores NaN on CPUs

        out = PartitionSpec(blocks.axis), PartitionSpec()
        return *_on_devices(blocks, operators, problem.parts, compute, out, messages, damping), state


@public
def partition_graph(graph: Graph, devices: Mesh | int | None = None, *, parts: Numbers | None = None) -> Partition:
    """Return the schedule of a graph in blocks of nodes, one per device: `kbpjax.run(..., schedule=partition)`.

    Build it once per graph, outside `jax.jit`, and pass it in.

    Args:
        graph: the graph.
        devices: a mesh with one axis; or the number of devices, the first of `jax.devices()`; None: all of them.
        parts: the block of each node [node], integers 0 .. devices - 1, each used at least once. None: equal blocks in
            the order of node numbers (strips of a grid) or in the reverse Cuthill-McKee order, whichever cuts fewer
            edges.

    Returns:
        The partition, with its arrays on the devices.

    Raises:
        ValueError: a traced graph, fewer nodes than devices, a mesh of several axes, parts of another shape or a device
            without nodes.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.sharded import partition_graph
        >>> partition_graph(kbp.grid_graph(4, 3), 1).boundary
        0
    """
    return Partition(blocks_of(graph, devices, parts))


def _on_devices(
    blocks: Blocks,
    operators: Operators,
    parts: PlanPart,
    compute: Callable[..., Any],
    out: Any,
    messages: Array,
    more: Any,
) -> Any:
    """Return `compute(part, operators, outgoing messages, outgoing messages and halo, more)` of all devices."""

    def on_device(part: PlanPart, outgoing: Any, operators: Operators, own: Array, more: Any) -> Any:
        part, outgoing = jax.tree.map(lambda array: array[0], (part, outgoing))
        pairs = zip(outgoing, blocks.routes, strict=True)
        received = [jax.lax.ppermute(own[rows], blocks.axis, to) for rows, to in pairs]
        return compute(part, operators, own, jnp.concatenate([own, *received]), more)

    of_device, shared = PartitionSpec(blocks.axis), PartitionSpec()
    specs = (of_device, of_device, shared, of_device, shared)
    mapped = jax.shard_map(on_device, mesh=blocks.mesh, in_specs=specs, out_specs=out, check_vma=False)
    return mapped(parts, blocks.halo.outgoing, operators, messages, more)


class _OfDevices(Iteration):
    """An undamped iteration in which each device updates the outgoing messages of its block, for derivatives.

    The messages [row, coordinate] are ordered by device. `parts` has one part per device.

    Attributes:
        blocks: the graph in blocks.
    """

    blocks: Blocks

    def updates(self, messages: Array, matrices: Array | None = None) -> Array:
        """Return the updates of all messages, not normalized (`kbpjax.inference.update.update`)."""

        def compute(part: PlanPart, operators: Operators, old: Array, received: Array, more: Any) -> Array:
            del old
            return update(operators, part, received, more)

        out = PartitionSpec(self.blocks.axis)
        return _on_devices(self.blocks, self.operators, self.parts, compute, out, messages, matrices)

    def once(self, messages: Array) -> Array:
        """Do one undamped iteration."""
        return normalize(self.updates(messages))

    def pull(self, messages: Array, cotangent: Array) -> Array:
        """Return the vector-Jacobian product of one iteration: the cotangent of its input messages."""
        # The barrier keeps XLA from moving the forward pass out of the solver's loop, where it would stay in memory.
        messages, cotangent = jax.lax.optimization_barrier((messages, cotangent))
        return jax.vjp(self.once, messages)[1](cotangent)[0]
