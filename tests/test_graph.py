"""Graphs against plain loops: what every index array must mean, orientation, default types, and what is refused."""

import inspect
import re

import jax.numpy as jnp
import networkx
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.parts import parts_of


def random_edges(seed, num_nodes, num_edges, node_kinds, split):
    """Draw edges with uneven node types, and edge types (with gaps) each of which joins one pair of node types."""
    rng = np.random.default_rng(seed)
    node_type = np.minimum(rng.geometric(0.4, num_nodes) - 1, node_kinds - 1) * 2 + 1
    pairs = [(a, b) for a in range(num_nodes) for b in range(a + 1, num_nodes)]
    edges = np.array([pairs[i] for i in rng.permutation(len(pairs))[:num_edges]])
    flip = rng.random(num_edges) < 0.5
    edges = np.where(flip[:, None], edges[:, ::-1], edges)
    joined = sorted({tuple(sorted(node_type[edge].tolist())) for edge in edges})
    of_pair = [joined.index(tuple(sorted(node_type[edge].tolist()))) for edge in edges]
    edge_type = 3 * (split * np.array(of_pair) + np.minimum(rng.geometric(0.5, num_edges) - 1, split - 1)) + 2
    return edges, node_type, edge_type


def oriented(edges, node_type, edge_type):
    """Turn edges round by the rule of `from_edges`, one by one."""
    ends, result = {}, []
    for (a, b), k in zip(edges.tolist(), edge_type.tolist(), strict=True):
        ends[k] = tuple(sorted((int(node_type[a]), int(node_type[b]))))
        result.append((a, b) if node_type[a] <= node_type[b] else (b, a))
    return result, ends


def check_tiles(tiles, place, types):
    """Every row stands once, in a tile of its type; `place` finds it in all tiles."""
    count = len(types)
    flat = np.concatenate([np.asarray(each.rows).ravel() for each in tiles])
    assert sorted(flat[flat < count].tolist()) == list(range(count))
    assert np.all(flat[flat >= count] == count)
    for each in tiles:
        for tile_rows, tile_type in zip(np.asarray(each.rows), np.asarray(each.types), strict=True):
            assert all(types[row] == tile_type for row in tile_rows if row < count)
    if place is None:
        assert len(tiles) == 1
        assert flat.tolist() == list(range(count))
    else:
        assert flat[np.asarray(place)].tolist() == list(range(count))


def check_graph(graph, edges, num_nodes, node_type, edge_type):
    """Compare every array of a graph with what plain loops say it must be."""
    edges, node_type, edge_type = np.asarray(edges).reshape(-1, 2), np.asarray(node_type), np.asarray(edge_type)
    pairs, ends = oriented(edges, node_type, edge_type)
    half = len(pairs)
    directed = pairs + [(b, a) for a, b in pairs]
    senders, receivers, reverse = map(np.asarray, (graph.senders, graph.receivers, graph.reverse))
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, 2 * half)
    assert list(zip(senders.tolist(), receivers.tolist(), strict=True)) == directed
    assert reverse.tolist() == [directed.index((b, a)) for a, b in directed]
    assert graph.edge_type.tolist() == [*edge_type.tolist(), *edge_type.tolist()]
    assert graph.node_type.tolist() == node_type.tolist()

    check_tiles(graph.node_tiles, graph.node_place, node_type.tolist())
    check_tiles([graph.edge_tiles], graph.edge_place, [2 * k + d for d in (0, 1) for k in edge_type.tolist()])

    incoming = [[e for e, (_, to) in enumerate(directed) if to == node] for node in range(num_nodes)]
    assert len(graph.slots) == len(graph.node_tiles)
    for tiles, table in zip(graph.node_tiles, graph.slots, strict=True):
        assert table.shape[:2] == tiles.rows.shape
        for node, listed in zip(np.asarray(tiles.rows).ravel(), np.asarray(table).reshape(tiles.rows.size, -1)):
            assert np.all(listed <= 2 * half)
            assert sorted(listed[listed < 2 * half].tolist()) == (incoming[node] if node < num_nodes else [])
    slots = np.concatenate([np.swapaxes(table, -1, -2).ravel() for table in graph.slots])

    route, edge_rows = np.asarray(graph.route).ravel(), np.asarray(graph.edge_tiles.rows).ravel()
    for place, e in enumerate(edge_rows.tolist()):
        assert 0 <= route[place] < slots.size
        if e < 2 * half:
            assert slots[route[place]] == reverse[e]

    present = sorted(set(node_type.tolist()))
    degrees = {v: [len(incoming[n]) for n in range(num_nodes) if node_type[n] == v] for v in present}
    assert graph.node_types == tuple((v, len(degrees[v]), max(degrees[v])) for v in present)
    for v in present:
        nodes = np.flatnonzero(node_type == v)
        assert graph.nodes_of_type(v).tolist() == nodes.tolist()
        rows, owner = graph.inboxes[v]
        assert rows.shape[1] <= 8
        inbox = {n: [] for n in nodes.tolist()}
        for row, position in zip(rows.tolist(), range(len(nodes)) if owner is None else owner.tolist(), strict=True):
            inbox[int(nodes[position])] += [e for e in row if e < graph.num_edges]
        assert {n: sorted(edges) for n, edges in inbox.items()} == {n: sorted(incoming[n]) for n in inbox}
    assert graph.edge_types == tuple((k, *ends[k]) for k in sorted(ends))


@pytest.mark.parametrize(
    "seed, num_nodes, num_edges, node_kinds, split",
    [(0, 2, 1, 1, 1), (1, 7, 12, 2, 1), (2, 12, 30, 4, 3), (3, 40, 60, 6, 4), (4, 170, 240, 3, 2), (5, 30, 435, 1, 1)],
)
def test_random_graphs_mean_what_plain_loops_say(seed, num_nodes, num_edges, node_kinds, split):
    edges, node_type, edge_type = random_edges(seed, num_nodes, num_edges, node_kinds, split)
    graph = kbp.Graph.from_edges(edges, num_nodes, edge_type=edge_type, node_type=node_type)
    check_graph(graph, edges, num_nodes, node_type, edge_type)


def test_types_of_a_networkx_graph_are_whole_numbers():
    graph = networkx.path_graph(3)
    networkx.set_edge_attributes(graph, np.int64(4), "type")
    assert kbp.Graph.from_networkx(graph)[0].edge_types == ((4, 0, 0),)
    graph.edges[0, 1]["type"] = 1.5
    with pytest.raises(ValueError, match='^edges: must have whole numbers as "type"; got .1.5.'):
        kbp.Graph.from_networkx(graph)


def test_several_tiles_of_a_type_are_used_and_right():
    # 200 nodes of type 0 and three of type 5: more than one tile for type 0, the last one padded.
    edges = [(i, i + 1) for i in range(202)]
    node_type = [0] * 200 + [5] * 3
    graph = kbp.Graph.from_edges(edges, 203, node_type=node_type)
    assert graph.node_tiles[0].types.tolist().count(0) > 1
    assert graph.node_place is not None
    check_graph(graph, edges, 203, node_type, [0] * 199 + [1] + [2] * 2)


def test_evenly_typed_rows_in_order_stay_in_place():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4, node_type=[0, 0, 1, 1])
    assert graph.node_place is None
    assert graph.node_tiles[0].rows.tolist() == [[0, 1], [2, 3]]


def test_edges_run_from_the_smaller_node_type_to_the_larger():
    # Type 7 joins node types 0 and 1, so two of its edges are turned; type 4 joins like nodes and is left alone.
    edges = [(2, 0), (0, 3), (1, 0), (3, 1)]
    graph = kbp.Graph.from_edges(edges, 4, edge_type=[7, 7, 4, 7], node_type=[0, 0, 1, 1])
    assert list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))[:4] == [
        (0, 2),
        (0, 3),
        (1, 0),
        (1, 3),
    ]
    assert graph.edge_types == ((4, 0, 0), (7, 0, 1))


def test_default_edge_types_number_the_pairs_of_node_types_in_sorted_order():
    # Pairs that are joined: {1, 4} {0, 1} {4, 4} {0, 4}; sorted: (0, 1) (0, 4) (1, 4) (4, 4).
    node_type = [4, 1, 0, 4]
    graph = kbp.Graph.from_edges([(0, 1), (2, 1), (0, 3), (3, 2)], 4, node_type=node_type)
    assert graph.edge_type.tolist()[:4] == [2, 0, 3, 1]
    check_graph(graph, [(0, 1), (2, 1), (0, 3), (3, 2)], 4, node_type, [2, 0, 3, 1])


def test_types_default_to_zero():
    graph = kbp.Graph.from_edges([(0, 1), (2, 1)], 3)
    check_graph(graph, [(0, 1), (2, 1)], 3, [0, 0, 0], [0, 0])


@pytest.mark.parametrize("height, width", [(1, 1), (1, 4), (3, 1), (3, 5)])
def test_grid_graph_joins_four_neighbours(height, width):
    horizontal = [(i * width + j, i * width + j + 1) for i in range(height) for j in range(width - 1)]
    vertical = [(i * width + j, (i + 1) * width + j) for i in range(height - 1) for j in range(width)]
    edges, count = horizontal + vertical, height * width
    check_graph(kbp.grid_graph(height, width), edges, count, [0] * count, [0] * len(edges))
    kinds = [0] * len(horizontal) + [1] * len(vertical)
    check_graph(kbp.grid_graph(height, width, edge_type=kinds), edges, count, [0] * count, kinds)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_chain_graph_joins_successors(length):
    edges = [(i, i + 1) for i in range(length - 1)]
    check_graph(kbp.chain_graph(length), edges, length, [0] * length, [0] * len(edges))
    own = list(range(length - 1))
    check_graph(kbp.chain_graph(length, edge_type=own), edges, length, [0] * length, own)


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("edges", [[], np.zeros((0, 2), int), np.zeros((0, 2))])
def test_graph_without_edges(num_nodes, edges):
    graph = kbp.Graph.from_edges(edges, num_nodes)
    check_graph(graph, np.zeros((0, 2), int), num_nodes, [0] * num_nodes, np.zeros(0, int))
    assert graph.edge_types == ()


def test_isolated_nodes_have_no_incoming_edge():
    edges, node_type = [(1, 4)], [0, 0, 2, 0, 0, 2]
    check_graph(kbp.Graph.from_edges(edges, 6, node_type=node_type), edges, 6, node_type, [0])


def test_star_with_500_leaves():
    edges = [(0, leaf) if leaf % 2 else (leaf, 0) for leaf in range(1, 501)]
    check_graph(kbp.Graph.from_edges(edges, 501), edges, 501, [0] * 501, [0] * 500)


def attachment_edges(seed, num_nodes, links):
    """Let each node choose earlier ones, in proportion to how often they were chosen: a few become hubs."""
    rng = np.random.default_rng(seed)
    ends, edges = [0], []
    for node in range(1, num_nodes):
        chosen = {ends[i] for i in rng.integers(len(ends), size=links)}
        edges += [(node, int(other)) for other in chosen]
        ends += [node, *chosen]
    return edges


@pytest.mark.parametrize("seed, num_nodes, links, kinds", [(0, 300, 1, 1), (1, 400, 2, 3), (2, 250, 1, 5)])
def test_graphs_with_hubs_are_grouped_by_degree(seed, num_nodes, links, kinds):
    edges = attachment_edges(seed, num_nodes - 20, links)  # and 20 isolated nodes
    node_type = np.random.default_rng(seed).integers(kinds, size=num_nodes)
    graph = kbp.Graph.from_edges(edges, num_nodes, node_type=node_type)
    assert len(graph.node_tiles) > 3
    joined = sorted({tuple(sorted(node_type[list(edge)].tolist())) for edge in edges})
    types = [joined.index(tuple(sorted(node_type[list(edge)].tolist()))) for edge in edges]
    check_graph(graph, edges, num_nodes, node_type, types)


@pytest.mark.parametrize("hub", [0, 10_000])
def test_a_star_of_10000_leaves_has_small_tables(hub):
    leaves = np.setdiff1d(np.arange(10_001), [hub])
    graph = kbp.Graph.from_edges(np.stack([np.full(10_000, hub), leaves], axis=1), 10_001)
    assert sorted(table.shape for table in graph.slots) == [(1, 1, 10_000), (1, 10_000, 1)]
    check_tiles(graph.node_tiles, graph.node_place, [0] * 10_001)
    slots = np.concatenate([np.swapaxes(table, -1, -2).ravel() for table in graph.slots])
    edges = np.asarray(graph.edge_tiles.rows).ravel()
    assert slots[np.asarray(graph.route).ravel()].tolist() == np.asarray(graph.reverse)[edges].tolist()


def test_a_hub_of_a_rare_type_gets_a_small_tile():
    # The hub and the leaves are of one class each, and 64 leaves of another type share none of the hub's width.
    edges = [(0, leaf) for leaf in range(1, 2000)]
    graph = kbp.Graph.from_edges(edges, 2000, node_type=[1] + [0] * 1935 + [2] * 64)
    assert sum(table.size for table in graph.slots) < 5000


def test_graphs_of_alike_degrees_are_one_class():
    assert len(kbp.grid_graph(40, 50).slots) == 1
    assert kbp.grid_graph(40, 50).node_place is None
    assert len(kbp.chain_graph(5000).slots) == 1


def test_an_edge_type_for_each_of_300_edges():
    own = np.random.default_rng(0).permutation(300)
    edges = [(i, i + 1) for i in range(300)]
    check_graph(kbp.Graph.from_edges(edges, 301, edge_type=own), edges, 301, [0] * 301, own)


def test_edges_may_be_jax_arrays_and_unsigned():
    for edges in (jnp.array([[0, 1], [2, 1]]), np.array([[0, 1], [2, 1]], np.uint8)):
        check_graph(kbp.Graph.from_edges(edges, 3), [(0, 1), (2, 1)], 3, [0] * 3, [0, 0])


TWO = [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    "edges, options, message",
    [
        ([(0, 3)], {}, "edges: must join nodes 0 .. 2; got [[0, 3]]"),
        ([(-1, 0)], {}, "edges: must join nodes 0 .. 2; got [[-1, 0]]"),
        ([(0, 1), (2, 2)], {}, "edges: must have no self-loops; got [[2, 2]]"),
        ([(0, 1), (1, 2), (0, 1)], {}, "edges: must name each unordered pair once; got duplicates [[0, 1]]"),
        ([(0, 1), (1, 2), (2, 1)], {}, "edges: must name each unordered pair once; got duplicates [[1, 2]]"),
        ([(0, 1, 2)], {}, "edges: must be whole numbers of shape [edge, 2]; got shape (1, 3)"),
        ([0, 1], {}, "edges: must be whole numbers of shape [edge, 2]; got shape (2,)"),
        ([(0.0, 1.0)], {}, "edges: must be whole numbers of shape [edge, 2]; got shape (1, 2), dtype float64"),
        ([(True, False)], {}, "edges: must be whole numbers"),
        (TWO, {"node_type": [0, 0]}, "node_type: must be 3 whole numbers >= 0, one for each node; got shape (2,)"),
        (TWO, {"node_type": [0.0, 0.0, 1.0]}, "node_type: must be 3 whole numbers >= 0"),
        (TWO, {"node_type": [0, -1, 0]}, "node_type: must be 3 whole numbers >= 0"),
        (TWO, {"node_type": [[0], [0], [0]]}, "node_type: must be 3 whole numbers >= 0"),
        (TWO, {"edge_type": [0]}, "edge_type: must be 2 whole numbers >= 0, one for each edge; got shape (1,)"),
        (TWO, {"edge_type": [0.5, 1.0]}, "edge_type: must be 2 whole numbers >= 0"),
        (TWO, {"edge_type": [0, -2]}, "edge_type: must be 2 whole numbers >= 0"),
        ([], {"edge_type": [0]}, "edge_type: must be 0 whole numbers"),
        (
            TWO,
            {"edge_type": [3, 3], "node_type": [0, 1, 2]},
            "edge_type: edges of type 3 must all join node types (0, 1); got edge (1, 2) of node types (1, 2)",
        ),
    ],
)
def test_bad_edges_and_types_are_refused_by_name(edges, options, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kbp.Graph.from_edges(edges, 3, **options)


@pytest.mark.parametrize("count", [0, -1, 1.5, 2.0, True, "3", None])
def test_counts_must_be_whole_and_positive(count):
    # The functions themselves, without the run-time type checks of the test suite, which refuse a float before they do.
    from_edges = inspect.unwrap(kbp.Graph.from_edges.__func__)
    chain, grid = inspect.unwrap(kbp.chain_graph), inspect.unwrap(kbp.grid_graph)
    with pytest.raises(ValueError, match="^num_nodes: must be an integer >= 1; got"):
        from_edges(kbp.Graph, [], count)
    with pytest.raises(ValueError, match="^num_nodes: must be an integer >= 1; got"):
        chain(count)
    with pytest.raises(ValueError, match="^height: must be an integer >= 1; got"):
        grid(count, 2)
    with pytest.raises(ValueError, match="^width: must be an integer >= 1; got"):
        grid(2, count)


def test_grid_types_must_fit_the_grid():
    with pytest.raises(ValueError, match="^edge_type: must be 7 whole numbers"):
        kbp.grid_graph(2, 3, edge_type=[0] * 6)
    with pytest.raises(ValueError, match="^node_type: must be 6 whole numbers"):
        kbp.grid_graph(2, 3, node_type=[0] * 5)


# --- columns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grid", "chain", "two kinds of nodes", "rows of their own", "cycle"])
def test_nodes_that_are_alike_stand_in_columns(name):
    graph = {
        "grid": kbp.grid_graph(30, 40),
        "chain": kbp.chain_graph(500),
        "two kinds of nodes": kbp.grid_graph(20, 20, node_type=np.add.outer(np.arange(20), np.arange(20)).ravel() % 2),
        "rows of their own": kbp.grid_graph(8, 40, node_type=np.repeat(np.arange(8), 40)),
        "cycle": kbp.Graph.from_edges([(i, (i + 1) % 50) for i in range(50)], 50),
    }[name]
    assert graph.in_columns
    places = graph.edge_tiles.rows.size
    assert graph.num_edges <= places <= 1.25 * graph.num_edges
    assert np.asarray(graph.route)[np.asarray(graph.edge_tiles.rows) < graph.num_edges].tolist() == (
        np.flatnonzero(np.asarray(graph.edge_tiles.rows).ravel() < graph.num_edges).tolist()
    )
    parts = parts_of(graph, np.arange(graph.num_nodes) * 3 // graph.num_nodes)
    assert parts.in_columns or name == "rows of their own"  # whose tiles are cut
    rows = np.asarray(parts.edge_tiles.rows)
    assert sorted(rows[rows < graph.num_edges].tolist()) == list(range(graph.num_edges))
    kinds = 2 * np.asarray(graph.edge_type) + (np.arange(graph.num_edges) >= graph.num_edges // 2)
    for part_rows, part_types in zip(rows, np.asarray(parts.edge_tiles.types), strict=True):
        for edges, kind in zip(part_rows, part_types, strict=True):
            assert set(kinds[edges[edges < graph.num_edges]].tolist()) <= {int(kind)}


def test_nodes_that_differ_do_not():
    rng = np.random.default_rng(0)
    typed = kbp.grid_graph(20, 20, edge_type=rng.integers(30, size=760))
    hubs = kbp.Graph.from_edges(attachment_edges(0, 300, 2), 300)
    assert not typed.in_columns and not hubs.in_columns
