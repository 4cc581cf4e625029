"""A graph in blocks: who sends what to whom, against lists made edge by edge, and faults in what is passed in."""

import jax
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.parallel import partition_graph


def cut(graph, owner):
    """Return the directed edges between blocks."""
    return [e for e in range(graph.num_edges) if owner[graph.senders[e]] != owner[graph.receivers[e]]]


def owner_of(partition):
    """Return the block of each node."""
    owner = np.full(partition.graph.num_nodes + 1, -1)
    for device, nodes in enumerate(np.asarray(partition.block.nodes)):
        owner[nodes] = device
    return owner[:-1]


def hub_graph(seed=0, num_nodes=150):
    """Return a random graph with a node that neighbours all others, several node types and edge types."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(1, num_nodes, (2 * num_nodes, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    star = np.stack([np.zeros(num_nodes - 1, int), np.arange(1, num_nodes)], axis=1)
    return kbp.Graph.from_edges(np.concatenate([star, pairs]), num_nodes, node_type=rng.integers(0, 3, num_nodes))


@pytest.mark.parametrize("graph", [kbp.grid_graph(8, 5), hub_graph()], ids=["grid", "hub"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_messages_that_are_heard_are_those_that_cross_into_the_block(graph, count):
    partition = partition_graph(graph, count)
    owner, block = owner_of(partition), jax.tree.map(np.asarray, partition.block)
    assert sorted(set(owner)) == list(range(count))
    assert np.bincount(owner).max() - np.bincount(owner).min() <= 1
    crossing = cut(graph, owner)
    assert partition.boundary == len(crossing)
    # What each device has in its numbers, after an exchange carried out message by message.
    own = [np.where(block.real[d], block.sends[d], -1).tolist() for d in range(count)]
    known = [list(messages) for messages in own]
    for devices, leaving in zip(partition.routes, block.leaving, strict=True):
        heard = [[-1] * leaving.shape[1] for _ in range(count)]
        for source, target in devices:
            heard[target] = [own[source][row] for row in leaving[source]]
        known = [before + more for before, more in zip(known, heard, strict=True)]
    for device in range(count):
        sent = [e for e in range(graph.num_edges) if owner[graph.senders[e]] == device]
        assert sorted(e for e in own[device] if e >= 0) == sent
        assert len(known[device]) == block.part.num_edges
        numbers = np.concatenate([slots[device].reshape(-1) for slots in block.part.slots])
        received = [known[device][number] for number in numbers if number < block.part.num_edges]
        assert sorted(received) == [e for e in range(graph.num_edges) if owner[graph.receivers[e]] == device]
        for number in numbers[numbers < block.part.num_edges]:
            assert block.pairs[device][number] == known[device][number] % (graph.num_edges // 2)


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
    with pytest.raises(ValueError, match=r"parts: must be 16 whole numbers among which are just 0 \.\. 3"):
        partition_graph(graph, 4, parts=np.minimum(owner, 2))
    with pytest.raises(ValueError, match="parts: must be 16 whole numbers"):
        partition_graph(graph, 4, parts=owner[1:])
    with pytest.raises(ValueError, match="parts: must be 16 whole numbers"):
        partition_graph(graph, 4, parts=owner.astype(float))


def test_mesh_of_ones_own():
    mesh = jax.make_mesh((2,), ("hosts",), devices=jax.devices()[2:])
    partition = partition_graph(kbp.chain_graph(6), mesh)
    assert partition.axis == "hosts"
    assert partition.block.nodes.sharding.device_set == set(jax.devices()[2:])
    assert partition_graph(kbp.chain_graph(6)).mesh.size == len(jax.devices())


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (5, "devices: must be at most 4, which there are; got 5. On a CPU"),
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
        jax.jit(lambda graph: partition_graph(graph, 2).block.nodes)(kbp.chain_graph(9))
