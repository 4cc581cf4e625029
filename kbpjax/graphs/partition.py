"""Partition of a graph over several devices: the nodes of each device, and its halo.

A device holds the nodes of its block and their outgoing messages. From other devices it needs only the halo: the
messages that cross into its block. They are exchanged by distance (receiver minus sender device, cyclic), one distance
at a time. The tables are computed once in NumPy, with one row per device.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.plan import Block, Plan


class Halo(eqx.Module):
    """The nodes and messages of each device, one row per device.

    Attributes:
        nodes: the nodes of each device, numbered as in the whole graph [device, node]; padding holds the number of
            nodes.
        edges: the directed edges of the messages on a device, outgoing messages first, then the halo [device, message];
            padding holds the number of edges.
        outgoing: for each distance, the indices of the outgoing messages for the device at that distance [device,
            message]; 0 in padding.
    """

    nodes: Int[Array, "*device node"]
    edges: Int[Array, "*device message"]
    outgoing: tuple[Int[Array, "*device _"], ...]


class Blocks(eqx.Module):
    """A graph in blocks of nodes, one for each device, with what they exchange.

    Attributes:
        graph: the graph.
        plan: the plan of the graph with one part per device. In its blocks, nodes and incoming messages are numbered as
            on their device (messages as in `Halo.edges`).
        halo: the nodes and messages of each device.
        routes: for each distance, the pairs (from, to) of devices that exchange messages.
        boundary: number of directed edges between blocks: messages that are exchanged in an iteration.
        mesh: the devices, along one axis.
    """

    graph: Graph
    plan: Plan
    halo: Halo
    routes: tuple[tuple[tuple[int, int], ...], ...] = eqx.field(static=True)
    boundary: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)

    @property
    def exchanged(self) -> int:
        """Messages sent per iteration, including padding: at least `boundary`."""
        pairs = zip(self.routes, self.halo.outgoing, strict=True)
        return sum(len(devices) * messages.shape[-1] for devices, messages in pairs)

    @property
    def axis(self) -> str:
        """The name of the mesh axis."""
        return self.mesh.axis_names[0]


def blocks_of(graph: Graph, devices: Mesh | int | None, parts: Numbers | None) -> Blocks:
    """Return the blocks of a graph (see `kbpjax.sharded.partition_graph`)."""
    fix = "Make the partition before you compile, and pass it in."
    _checks.require(not _checks.is_traced(graph), "graph", "must be known", "a traced graph", fix)
    mesh = mesh_of(devices)
    rule, fix = "must be a mesh of one axis", "Make it with jax.make_mesh((count,), ('device',))."
    _checks.require(len(mesh.axis_names) == 1, "devices", rule, f"axes {mesh.axis_names}", fix)
    count, fix = mesh.size, "Use fewer devices."
    _checks.require(count <= graph.num_nodes, "devices", f"must be at most {graph.num_nodes} nodes", count, fix)
    owner = _blocks(graph, count) if parts is None else _given(parts, graph.num_nodes, count)
    return Blocks(graph, *_localize(graph, owner, count, partial(_put, mesh), mesh.axis_names[0]), mesh)


def mesh_of(devices: Mesh | int | None) -> Mesh:
    """Return a mesh with automatic axes: the given one, or one of the first devices, or of all."""
    if isinstance(devices, Mesh):
        return Mesh(devices.devices, devices.axis_names, axis_types=(AxisType.Auto,) * len(devices.axis_names))
    available = jax.devices()
    count = len(available) if devices is None else devices
    _checks.require_count("devices", count)
    fix = "On a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count before JAX starts."
    rule = f"must be at most {len(available)}, the number of available devices"
    _checks.require(count <= len(available), "devices", rule, count, fix)
    return jax.make_mesh((count,), ("device",), axis_types=(AxisType.Auto,), devices=available[:count])


def _put(mesh: Mesh, axis: str | None, array: Any) -> Array:
    """Return an array split along a mesh axis (None: replicated), placed without communication between devices."""
    values = np.asarray(array)
    values = values if values.dtype == bool else values.astype(np.int32)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _given(parts: Numbers, num_nodes: int, count: int) -> NDArray:
    """Check blocks that the user has chosen."""
    owner = np.asarray(parts)
    ok = owner.shape == (num_nodes,) and np.issubdtype(owner.dtype, np.integer)
    ok = ok and np.array_equal(np.unique(owner), np.arange(count))
    rule = f"must be {num_nodes} integers among which are just 0 .. {count - 1}"
    fix = "Pass the number of the device of each node, and no device without nodes."
    got = f"{owner.dtype}{owner.shape}, values {np.unique(owner)[:5]}"
    _checks.require(ok, "parts", rule, got, fix)
    return owner.astype(int)


def _blocks(graph: Graph, count: int) -> NDArray:
    """Return the block of each node: equal runs of the order (node numbers or Cuthill-McKee) that cuts fewer edges."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    run = np.arange(graph.num_nodes) * count // graph.num_nodes
    joined = coo_array((np.ones(len(senders), np.int8), (senders, receivers)), shape=(graph.num_nodes,) * 2)
    ordered = np.empty_like(run)
    ordered[reverse_cuthill_mckee(joined.tocsr(), symmetric_mode=True)] = run
    return min((run, ordered), key=lambda owner: np.sum(owner[senders] != owner[receivers]))


def _localize(
    graph: Graph, owner: NDArray, count: int, put: Callable[[str | None, Any], Array], axis: str
) -> tuple[Plan, Halo, tuple, int]:
    """Return the plan with nodes and messages numbered by device, the halo, the routes, and the boundary."""
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    plan = graph.plan_of(owner)
    edges, row = np.asarray(plan.edges).reshape(count, -1), np.asarray(plan.position)
    own = edges.shape[1]

    cut = np.flatnonzero(owner[senders] != owner[receivers])
    crossing, received = _exchange(owner[senders[cut]], owner[receivers[cut]], count)
    total = own + sum(most for _, most in crossing.values())
    number = np.append(row % max(1, own), total)
    number[cut] = own + received
    held = np.full((count, total), graph.num_edges)
    held[:, :own] = edges
    held[owner[receivers[cut]], number[cut]] = cut
    outgoing, first = [], 0
    distance = (owner[receivers[cut]] - owner[senders[cut]]) % count
    for step, (_, most) in crossing.items():
        goes = distance == step
        outgoing.append(np.zeros((count, most), int))
        outgoing[-1][owner[senders[cut[goes]]], received[goes] - first] = row[cut[goes]] % own
        first += most

    nodes, node_number = _nodes(owner, count)
    by_row = np.append(np.append(number[:-1], 0)[np.asarray(plan.edges)], total)
    of_device, everywhere = partial(put, axis), partial(put, None)
    blocks = tuple(
        Block(
            of_device(block.types),
            of_device(node_number[np.asarray(block.nodes)]),
            of_device(by_row[np.asarray(block.incoming)]),
        )
        for block in plan.blocks
    )
    route = None if plan.route is None else of_device(plan.route)
    tables = map(everywhere, (plan.edges, row, plan.place))
    local = Plan(blocks, of_device(plan.kinds), route, *tables)
    halo = Halo(of_device(nodes), of_device(held), tuple(map(of_device, outgoing)))
    return local, halo, tuple(devices for devices, _ in crossing.values()), len(cut)


def _nodes(owner: NDArray, count: int) -> tuple[NDArray, NDArray]:
    """Return the nodes of each block [device, node], and the number of each node in its block (and of padding)."""
    members = [np.flatnonzero(owner == device) for device in range(count)]
    largest = max(map(len, members))
    number = np.full(len(owner) + 1, largest)
    for group in members:
        number[group] = np.arange(len(group))
    padded = [np.pad(group, (0, largest - len(group)), constant_values=len(owner)) for group in members]
    return np.stack(padded), number


def _exchange(source: NDArray, target: NDArray, count: int) -> tuple[dict[int, tuple[tuple, int]], NDArray]:
    """Group messages between devices by distance.

    Args:
        source: the device that sends each message [message].
        target: the device that receives it [message].
        count: number of devices.

    Returns:
        {distance: (pairs of devices, largest number of messages of a pair)}, and the position of each message in the
        halo of its receiver, padded to that number at each distance [message].
    """
    messages = np.zeros((count, count), int)
    np.add.at(messages, (source, target), 1)
    order = np.lexsort((target, source))
    starts = np.cumsum(messages.reshape(-1)) - messages.reshape(-1)
    within = np.empty(len(source), int)
    within[order] = np.arange(len(source)) - np.repeat(starts, messages.reshape(-1))
    crossing, first, total = {}, np.zeros(count, int), 0
    for step in range(1, count):
        pairs = tuple((i, (i + step) % count) for i in range(count) if messages[i, (i + step) % count])
        if pairs:
            crossing[step] = pairs, max(int(messages[pair]) for pair in pairs)
            first[step], total = total, total + crossing[step][1]
    return crossing, first[(target - source) % count] + within
