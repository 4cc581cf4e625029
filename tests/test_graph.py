"""Graphs against plain loops: what every index array must mean, orientation, default types, and what is refused.

Plans, the index arrays of message passing, are checked as synchronous iterations have them, for runs of nodes and for
colors; `check_plan` also serves the tests of graphs on several devices.
"""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.graphs.coloring import color_nodes
from kbpjax.graphs.counting import components, groups, ranked, stable_order


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


def check_plan(plan, graph, part_of_node=None):
    """Compare a plan of a graph with what plain loops say that it must be."""
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    senders, receivers, reverse = map(np.asarray, (graph.senders, graph.receivers, graph.reverse))
    owner = np.zeros(num_nodes, int) if part_of_node is None else np.asarray(part_of_node)
    edges, count = np.asarray(plan.edges), 1 + owner.max()
    assert plan.num_parts == count

    # Every directed edge has one column, among those of the part of its sender.
    assert np.all(edges <= num_edges)
    assert sorted(edges[edges < num_edges].tolist()) == list(range(num_edges))
    assert edges[np.asarray(plan.position)].tolist() == list(range(num_edges))
    sent = edges.reshape(count, -1)
    for part in range(count):
        assert np.all(owner[senders[sent[part, sent[part] < num_edges]]] == part)

    # A tile of columns has one kind.
    kinds = 2 * np.asarray(graph.edge_type) + (np.arange(num_edges) >= num_edges // 2)
    tiles = edges.reshape(np.asarray(plan.kinds).size, -1) if edges.size else np.zeros((0, 1), int)
    for row, kind in zip(tiles, np.asarray(plan.kinds).ravel(), strict=True):
        assert np.all(kinds[row[row < num_edges]] == kind)

    # Every node stands once, in its part, in a tile of its type, with just its incoming messages.
    expected = [[] for _ in range(num_nodes)]
    for edge, node in enumerate(receivers.tolist()):
        expected[node].append(edge)
    edge_of, node_type, seen = np.append(edges, num_edges), np.asarray(graph.node_type), []
    for block in plan.blocks:
        types, nodes, incoming = map(np.asarray, (block.types, block.nodes, block.incoming))
        slots = incoming.shape[2]
        assert types.shape == nodes.shape[:2] == incoming.shape[:2]
        assert nodes.shape[2] == incoming.shape[3]
        assert np.all((incoming >= 0) & (incoming <= edges.size))
        for (part, tile, row), node in np.ndenumerate(nodes):
            listed = edge_of[incoming[part, tile, :, row]]
            listed = sorted(listed[listed < num_edges].tolist())
            if node == num_nodes:
                assert not listed
                continue
            assert listed == expected[node]
            assert (owner[node], node_type[node]) == (part, types[part, tile])
            assert len(plan.blocks) == 1 or slots < 2 * max(1, len(listed))
            seen.append(int(node))
    assert sorted(seen) == list(range(num_nodes))

    # A message is the cavity product of the node that sends it, without the message that comes back.
    if plan.route is None:
        assert len(plan.blocks) == 1
        assert plan.kinds.shape == plan.blocks[0].incoming.shape[:3]
    else:
        assert plan.route.shape[:2] == plan.kinds.shape
    for part in range(count):
        without = np.concatenate([edge_of[np.asarray(block.incoming)[part]].ravel() for block in plan.blocks])
        place = np.arange(without.size) if plan.route is None else np.asarray(plan.route)[part].ravel()
        assert place.shape == sent[part].shape
        assert np.all((place >= 0) & (place < without.size))
        real = sent[part] < num_edges
        assert np.array_equal(without[place[real]], reverse[sent[part, real]])


def width_of(plan):
    """Return the number of slots of each block."""
    return [block.incoming.shape[2] for block in plan.blocks]


def places_of(plan):
    """Return the number of places for incoming messages."""
    return sum(block.incoming.size for block in plan.blocks)


def runs(graph, count):
    """Return the part of each node: runs of about as many nodes."""
    return np.arange(graph.num_nodes) * count // graph.num_nodes


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

    check_plan(graph.plan, graph)
    incoming = [[e for e, (_, to) in enumerate(directed) if to == node] for node in range(num_nodes)]
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
    for parts in (runs(graph, 2), np.random.default_rng(seed).permutation(runs(graph, min(num_nodes, 5)))):
        check_plan(graph.plan_of(parts), graph, parts)


def test_types_of_a_networkx_graph_are_whole_numbers():
    graph = networkx.path_graph(3)
    networkx.set_edge_attributes(graph, np.int64(4), "type")
    assert kbp.Graph.from_networkx(graph)[0].edge_types == ((4, 0, 0),)
    graph.edges[0, 1]["type"] = 1.5
    with pytest.raises(ValueError, match='^edges: must have integers as "type", or names for all; got .*1.5'):
        kbp.Graph.from_networkx(graph)


def test_types_of_a_networkx_graph_may_have_names():
    graph = networkx.path_graph(4)
    networkx.set_node_attributes(graph, dict(enumerate(["wind", "temp", "wind", "rain"])), "type")
    networkx.set_edge_attributes(graph, {(0, 1): "near", (1, 2): "near", (2, 3): "far"}, "type")
    node_types, edge_types = kbp.Graph.networkx_types(graph)
    assert node_types == {"rain": 0, "temp": 1, "wind": 2} and edge_types == {"far": 0, "near": 1}
    made, names = kbp.Graph.from_networkx(graph)
    assert names == [0, 1, 2, 3] and made.node_type.tolist() == [2, 1, 2, 0]
    assert made.edge_types == ((0, 0, 2), (1, 1, 2))
    assert kbp.Graph.networkx_types(networkx.path_graph(2)) == ({0: 0}, {})
    for mixed in ({"type": 3}, {}, {"type": ["wind"]}):
        other = networkx.Graph(graph)
        other.add_node(9, **mixed)
        with pytest.raises(ValueError, match='^nodes: must have integers as "type", or names for all; got'):
            kbp.Graph.from_networkx(other)


def test_several_tiles_of_a_type_are_used_and_right():
    # 200 nodes of type 0 and three of type 5: more than one tile for type 0, the last one padded.
    edges = [(i, i + 1) for i in range(202)]
    node_type = [0] * 200 + [5] * 3
    graph = kbp.Graph.from_edges(edges, 203, node_type=node_type)
    assert graph.plan.blocks[0].types.tolist()[0].count(0) > 1
    assert graph.plan.blocks[0].nodes.size > 203
    check_graph(graph, edges, 203, node_type, [0] * 199 + [1] + [2] * 2)


def test_evenly_typed_rows_in_order_stay_in_place():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4, node_type=[0, 0, 1, 1])
    assert graph.plan.blocks[0].nodes.tolist() == [[[0, 1], [2, 3]]]


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
def test_grid_graph_joins_four_neighbors(height, width):
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
    assert len(graph.plan.blocks) > 3
    joined = sorted({tuple(sorted(node_type[list(edge)].tolist())) for edge in edges})
    types = [joined.index(tuple(sorted(node_type[list(edge)].tolist()))) for edge in edges]
    check_graph(graph, edges, num_nodes, node_type, types)


@pytest.mark.parametrize("hub", [0, 10_000])
def test_a_star_of_10000_leaves_has_small_tables(hub):
    leaves = np.setdiff1d(np.arange(10_001), [hub])
    graph = kbp.Graph.from_edges(np.stack([np.full(10_000, hub), leaves], axis=1), 10_001)
    assert sorted(block.incoming.shape for block in graph.plan.blocks) == [(1, 1, 1, 10_000), (1, 1, 10_000, 1)]
    assert graph.plan.edges.shape == (20_000,)
    check_plan(graph.plan, graph)


def test_a_hub_of_a_rare_type_gets_a_small_tile():
    # The hub and the leaves are of one class each, and 64 leaves of another type share none of the hub's width.
    edges = [(0, leaf) for leaf in range(1, 2000)]
    graph = kbp.Graph.from_edges(edges, 2000, node_type=[1] + [0] * 1935 + [2] * 64)
    assert places_of(graph.plan) < 5000


def test_graphs_of_alike_degrees_are_one_class():
    for graph, slots in ((kbp.grid_graph(40, 50), 4), (kbp.chain_graph(5000), 2)):
        assert width_of(graph.plan) == [slots]


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
        ([(0, 1, 2)], {}, "edges: must be integers of shape [edge, 2]; got shape (1, 3)"),
        ([0, 1], {}, "edges: must be integers of shape [edge, 2]; got shape (2,)"),
        ([(0.0, 1.0)], {}, "edges: must be integers of shape [edge, 2]; got shape (1, 2), dtype float64"),
        ([(True, False)], {}, "edges: must be integers"),
        (TWO, {"node_type": [0, 0]}, "node_type: must be 3 integers >= 0, one for each node; got shape (2,)"),
        (TWO, {"node_type": [0.0, 0.0, 1.0]}, "node_type: must be 3 integers >= 0"),
        (TWO, {"node_type": [0, -1, 0]}, "node_type: must be 3 integers >= 0"),
        (TWO, {"node_type": [[0], [0], [0]]}, "node_type: must be 3 integers >= 0"),
        (TWO, {"edge_type": [0]}, "edge_type: must be 2 integers >= 0, one for each edge; got shape (1,)"),
        (TWO, {"edge_type": [0.5, 1.0]}, "edge_type: must be 2 integers >= 0"),
        (TWO, {"edge_type": [0, -2]}, "edge_type: must be 2 integers >= 0"),
        ([], {"edge_type": [0]}, "edge_type: must be 0 integers"),
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
    with pytest.raises(ValueError, match="^edge_type: must be 7 integers"):
        kbp.grid_graph(2, 3, edge_type=[0] * 6)
    with pytest.raises(ValueError, match="^node_type: must be 6 integers"):
        kbp.grid_graph(2, 3, node_type=[0] * 5)


# --- plans ------------------------------------------------------------------------------------------------------------


EVEN = {
    "grid": lambda: kbp.grid_graph(20, 30),
    "chain": lambda: kbp.chain_graph(500),
    "two kinds of nodes": lambda: kbp.grid_graph(20, 20, node_type=np.add.outer(range(20), range(20)).ravel() % 2),
    "rows of their own": lambda: kbp.grid_graph(8, 40, node_type=np.repeat(np.arange(8), 40)),
    "cycle": lambda: kbp.Graph.from_edges([(i, (i + 1) % 50) for i in range(50)], 50),
}
UNEVEN = {
    "edge types": lambda: kbp.grid_graph(20, 20, edge_type=np.random.default_rng(0).integers(30, size=760)),
    "hubs": lambda: kbp.Graph.from_edges(attachment_edges(0, 300, 2), 300),
    "star": lambda: kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 1500)], 1500),
}


@functools.cache
def graph_of(name):
    """Return a graph whose nodes are alike, so that products need no reordering, or one whose nodes are not."""
    return (EVEN | UNEVEN)[name]()


@pytest.mark.parametrize("name", [*EVEN])
def test_nodes_that_are_alike_send_their_products_as_they_stand(name):
    graph = graph_of(name)
    in_runs = graph.plan_of(runs(graph, 3))
    assert graph.plan.route is None
    assert in_runs.route is None or name == "rows of their own"  # whose tiles are cut
    for plan in (graph.plan, in_runs):
        assert graph.num_edges <= len(plan.edges)
        assert plan.route is not None or len(plan.edges) == places_of(plan) <= 1.25 * graph.num_edges


@pytest.mark.parametrize("name", [*UNEVEN])
def test_products_of_nodes_that_differ_are_reordered(name):
    graph = graph_of(name)
    assert graph.plan.route is not None
    assert len(graph.plan.edges) < 4 * graph.num_edges
    assert places_of(graph.plan) <= max(4096, 4 * (graph.num_nodes + graph.num_edges))
    degree = np.bincount(np.asarray(graph.receivers), minlength=graph.num_nodes)
    for block in graph.plan.blocks:  # as many slots as the largest degree needs
        assert block.incoming.shape[2] == max(1, np.append(degree, 0)[np.asarray(block.nodes)].max())


@pytest.mark.parametrize("name", [*EVEN, *UNEVEN])
def test_plans_in_parts_mean_what_plain_loops_say(name):
    graph = graph_of(name)
    colors = color_nodes(np.asarray(graph.senders), np.asarray(graph.receivers), graph.num_nodes)
    gaps = 2 * runs(graph, 2) + 1  # no node sends in parts 0 and 2
    for parts in (np.zeros(graph.num_nodes, int), runs(graph, 3), colors, gaps):
        check_plan(graph.plan_of(parts), graph, parts)
    check_plan(kbp.colored(graph).colors, graph, colors)


@pytest.mark.parametrize("parts", [1, 3])
def test_messages_are_laid_out_by_the_plan_and_back(parts):
    graph = kbp.grid_graph(5, 6, node_type=np.arange(30) % 3)
    plan = graph.plan_of(runs(graph, parts))
    messages = jnp.asarray(np.random.default_rng(0).normal(size=(graph.num_edges, 2)))
    rows = np.asarray(plan.laid_out(messages))
    assert np.array_equal(plan.present, (plan.edges < graph.num_edges).reshape(parts, -1))
    for row, edge in zip(rows, plan.edges.tolist(), strict=True):
        assert np.array_equal(row, messages[edge] if edge < graph.num_edges else [0, 0])
    assert np.array_equal(plan.of_edges(jnp.asarray(rows)), messages)


@pytest.mark.parametrize("name", ["grid", "hubs"])
def test_clamped_nodes_receive_nothing_and_send_as_before(name):
    graph = graph_of(name)
    clamped = np.random.default_rng(0).random(graph.num_nodes) < 0.3
    for plan in (graph.plan, graph.plan_of(runs(graph, 3))):
        without = jax.jit(lambda plan, nodes: plan.without_incoming(nodes))(plan, jnp.asarray(clamped))
        for before, after in zip(plan.blocks, without.blocks, strict=True):
            marked = np.append(clamped, False)[np.asarray(before.nodes)][..., None, :]
            expected = np.where(marked, len(plan.edges), np.asarray(before.incoming))
            assert np.array_equal(after.incoming, expected)
            assert np.array_equal(after.nodes, before.nodes)
        assert np.array_equal(without.edges, plan.edges)
        assert plan.without_incoming(None) is plan


def test_counting_equals_sorting():
    """Of many keys, which are counted, of few, and of keys much larger than their number."""
    rng = np.random.default_rng(0)
    for most, count in ((50, 100), (1000, 100_000), (2**40, 70_000)):
        keys = rng.integers(0, most, count)
        np.testing.assert_array_equal(stable_order(keys), np.argsort(keys, kind="stable"))
    first, second = rng.integers(0, 30, (2, 500))
    index, place = ranked(first, second)
    pairs = np.stack([first, second], axis=1)
    expected, inverse = np.unique(pairs, axis=0, return_inverse=True)
    np.testing.assert_array_equal(pairs[index], expected)
    np.testing.assert_array_equal(place, inverse.reshape(-1))
    places, inverse, counts = np.unique(first, return_inverse=True, return_counts=True)
    for found, right in zip(groups(first), (places, counts, inverse), strict=True):
        np.testing.assert_array_equal(found, right)


def test_components_are_the_nodes_that_paths_reach():
    """Also of edges that are listed 256 times, of both directions, and of nodes without edges."""
    rng = np.random.default_rng(0)
    for num_edges in (0, 5, 12):
        first, second = np.tile(rng.integers(0, 15, (2, num_edges)), 256)
        adjacent = np.eye(15, dtype=bool)
        adjacent[first, second] = adjacent[second, first] = True
        reached = np.linalg.matrix_power(adjacent.astype(int), 15) > 0
        for ends in ((first, second), (np.append(first, second), np.append(second, first))):
            found = components(*ends, 15)
            np.testing.assert_array_equal(found[:, None] == found, reached)
            assert set(found) == set(range(1 + found.max()))
