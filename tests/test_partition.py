"""A graph in blocks: who sends what to whom, against lists made edge by edge, and faults in what is passed in."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.graphs.plan import Block
from kbpjax.sharded import partition_graph as schedule_of
from tests.test_graph import check_plan


def cut(graph, owner):
    """Return the directed edges between blocks."""
    ends = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    return [e for e, (a, b) in enumerate(ends) if owner[a] != owner[b]]


def partition_graph(graph, devices=None, **options):
    """Return the blocks of a partition, which is a schedule."""
    return schedule_of(graph, devices, **options).blocks


def owner_of(partition):
    """Return the block of each node."""
    owner = np.full(partition.graph.num_nodes + 1, -1)
    for device, nodes in enumerate(np.asarray(partition.halo.nodes)):
        owner[nodes] = device
    return owner[:-1]


def hub_graph(seed=0, num_nodes=150):
    """Return a random graph with a node that neighbors all others, several node types and edge types."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(1, num_nodes, (2 * num_nodes, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    star = np.stack([np.zeros(num_nodes - 1, int), np.arange(1, num_nodes)], axis=1)
    return kbp.Graph.from_edges(np.concatenate([star, pairs]), num_nodes, node_type=rng.integers(0, 3, num_nodes))


def delivered(partition, known):
    """Send messages between devices as lists: those that each device has, then those that it receives."""
    own, count = known, partition.mesh.size
    for devices, outgoing in zip(partition.routes, partition.halo.outgoing, strict=True):
        received = [[None] * outgoing.shape[1] for _ in range(count)]
        for source, target in devices:
            received[target] = [own[source][number] for number in outgoing[source].tolist()]
        known = [before + more for before, more in zip(known, received, strict=True)]
    return known


def of_whole_graph(partition):
    """Return the plan of a partition with nodes and columns in the numbers of the whole graph."""
    plan, halo, graph = partition.plan, partition.halo, partition.graph
    nodes, edges = (np.pad(table, ((0, 0), (0, 1)), constant_values=0) for table in (halo.nodes, halo.edges))
    nodes[:, -1], edges[:, -1] = graph.num_nodes, graph.num_edges
    device = np.arange(len(nodes))
    column = np.append(plan.position, len(plan.edges))
    blocks = tuple(
        Block(
            block.types,
            jnp.asarray(nodes[device[:, None, None], block.nodes]),
            jnp.asarray(column[edges[device[:, None, None, None], block.incoming]]),
        )
        for block in plan.blocks
    )
    return replace(plan, blocks=blocks)


@pytest.mark.parametrize("graph", [kbp.grid_graph(8, 5), hub_graph()], ids=["grid", "hub"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_devices_hold_the_messages_that_they_send_and_those_that_cross_into_their_block(graph, count):
    partition = partition_graph(graph, count)
    owner, none = owner_of(partition), graph.num_edges
    senders, receivers = graph.senders.tolist(), graph.receivers.tolist()
    assert sorted(set(owner)) == list(range(count))
    assert np.bincount(owner).max() - np.bincount(owner).min() <= 1
    check_plan(of_whole_graph(partition), graph, owner)

    own, held = np.asarray(partition.plan.edges).reshape(count, -1), np.asarray(partition.halo.edges)
    known = delivered(partition, own.tolist())
    crossing = cut(graph, owner)
    assert partition.boundary == len(crossing)
    for device in range(count):
        sent = [e for e in range(none) if owner[senders[e]] == device]
        assert sorted(own[device][own[device] < none].tolist()) == sent
        expected = np.array([none if edge is None else edge for edge in known[device]])
        assert held[device].shape == expected.shape
        real = held[device] < none
        assert np.array_equal(held[device][real], expected[real])
        halo = held[device][own.shape[1] :]
        assert sorted(halo[halo < none].tolist()) == [e for e in crossing if owner[receivers[e]] == device]


def test_strips_of_a_grid_exchange_the_rows_at_their_edges_and_nothing_else():
    partition = partition_graph(kbp.grid_graph(8, 5), 4)
    assert np.array_equal(owner_of(partition), np.repeat(range(4), 10))
    assert partition.boundary == partition.exchanged == 3 * 2 * 5
    assert partition.routes == (((0, 1), (1, 2), (2, 3)), ((1, 0), (2, 1), (3, 2)))


def test_padding_is_counted_where_pairs_of_devices_exchange_uneven_numbers():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3), (0, 2)], 4)
    partition = partition_graph(graph, 3, parts=[0, 1, 2, 2])
    assert partition.boundary == 8  # 1 each way between 0 and 1, and 0 and 2; 2 each way between 1 and 2
    assert partition.exchanged == 3 * 2 + 3 * 2


def test_order_of_nodes_is_chosen_by_the_edges_that_it_cuts():
    shuffled = np.random.default_rng(0).permutation(60)
    chain = np.stack([shuffled[:-1], shuffled[1:]], axis=1)
    assert partition_graph(kbp.Graph.from_edges(chain, 60), 4).boundary == 2 * 3
    assert partition_graph(kbp.chain_graph(60), 4).boundary == 2 * 3
    wide = partition_graph(kbp.grid_graph(3, 80), 4)
    assert wide.boundary <= 3 * 2 * 2 * 3  # strips of rows would cut 80 edges and more


def test_blocks_of_ones_own():
    graph, owner = kbp.grid_graph(4, 4), np.arange(16) % 4 // 2 + 2 * (np.arange(16) // 8)
    partition = partition_graph(graph, 4, parts=owner)
    assert np.array_equal(owner_of(partition), owner)
    assert partition.boundary == 2 * 8
    with pytest.raises(ValueError, match=r"parts: must be 16 integers among which are just 0 \.\. 3"):
        partition_graph(graph, 4, parts=np.minimum(owner, 2))
    with pytest.raises(ValueError, match="parts: must be 16 integers"):
        partition_graph(graph, 4, parts=owner[1:])
    with pytest.raises(ValueError, match="parts: must be 16 integers"):
        partition_graph(graph, 4, parts=owner.astype(float))


def test_mesh_of_ones_own():
    mesh = jax.make_mesh((2,), ("hosts",), devices=jax.devices()[2:])
    partition = partition_graph(kbp.chain_graph(6), mesh)
    assert partition.axis == "hosts"
    assert partition.plan.blocks[0].incoming.sharding == partition.halo.nodes.sharding
    assert partition.halo.nodes.sharding.device_set == set(jax.devices()[2:])
    assert partition_graph(kbp.chain_graph(6)).mesh.size == len(jax.devices())


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (5, "devices: must be at most 4, the number of available devices; got 5. On a CPU"),
        (0, "devices: must be an integer >= 1"),
        (4, "devices: must be at most 3 nodes; got 4"),
    ],
)
def test_numbers_of_devices_that_do_not_fit(devices, words):
    with pytest.raises(ValueError, match=words):
        partition_graph(kbp.chain_graph(3), devices)


def test_mesh_of_two_axes_is_refused():
    mesh = jax.make_mesh((2, 2), ("a", "b"))
    with pytest.raises(ValueError, match="devices: must be a mesh of one axis"):
        partition_graph(kbp.chain_graph(9), mesh)


def test_traced_graph_is_refused():
    with pytest.raises(ValueError, match="graph: must be known; got a traced graph"):
        jax.jit(lambda graph: partition_graph(graph, 2).halo.nodes)(kbp.chain_graph(9))
