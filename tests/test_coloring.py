"""Colorings: neighbors differ, colors are few and without gaps, and formulas say how many there are."""

import itertools

import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.graphs.coloring import color_nodes


def ends(edges):
    return np.asarray(edges, int).reshape(-1, 2).T


def color(edges, num_nodes):
    senders, receivers = ends(edges)
    return color_nodes(senders, receivers, num_nodes)


def check(edges, num_nodes):
    """Color a graph, check what must always hold, and return the number of colors."""
    senders, receivers = ends(edges)
    colors = color(edges, num_nodes)
    assert colors.shape == (num_nodes,)
    assert np.issubdtype(colors.dtype, np.integer)
    assert np.all(colors[senders] != colors[receivers])
    count = int(colors.max()) + 1
    assert set(colors.tolist()) == set(range(count))
    degree = np.bincount(np.concatenate([senders, receivers]), minlength=num_nodes)
    assert count <= degree.max() + 1
    return count


def cycle(num_nodes):
    return [(i, (i + 1) % num_nodes) for i in range(num_nodes)]


@pytest.mark.parametrize(
    "edges, num_nodes, expected",
    [
        ([], 1, 1),
        ([], 5, 1),
        ([(3, 1)], 5, 2),
        (cycle(6), 6, 2),
        (cycle(3), 3, 3),
        (cycle(7), 7, 3),
        (cycle(1001), 1001, 3),
        ([(0, i) for i in range(1, 50)], 50, 2),
        ([(i, 49) for i in range(49)], 50, 2),
        ([(i, j) for i in range(5) for j in range(5, 12)], 12, 2),
        (list(itertools.combinations(range(4), 2)), 4, 4),
        (list(itertools.combinations(range(40), 2)), 40, 40),
        (cycle(8) + [(0, i) for i in range(9, 12)] + [(a + 20, b + 20) for a, b in cycle(5)], 30, 3),
    ],
)
def test_number_of_colours(edges, num_nodes, expected):
    assert check(edges, num_nodes) == expected


@pytest.mark.parametrize("height, width", [(2, 2), (1, 9), (7, 10), (300, 300)])
def test_grids_have_two_colours_whichever_way_their_edges_are_listed(height, width):
    graph = kbp.grid_graph(height, width)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    both = color_nodes(senders, receivers, graph.num_nodes)
    half = color_nodes(senders[: len(senders) // 2], receivers[: len(senders) // 2], graph.num_nodes)
    i, j = np.divmod(np.arange(graph.num_nodes), width)
    assert both.tolist() == half.tolist() == ((i + j) % 2).tolist()


def test_long_chain_alternates():
    nodes = np.arange(100_000)
    assert np.array_equal(color_nodes(nodes[:-1], nodes[1:], len(nodes)), nodes % 2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("num_nodes, num_edges", [(6, 8), (30, 60), (200, 300), (60, 900)])
def test_random_graphs(seed, num_nodes, num_edges):
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(num_nodes), 2)))
    check(rng.permutation(pairs)[:num_edges], num_nodes)


def test_few_colours_on_a_sparse_graph_with_hubs():
    rng = np.random.default_rng(0)
    edges = {(0, 1), (1, 2), (0, 2)}
    for new in range(3, 400):  # each new node joins two ends of edges drawn at random: degrees up to tens
        ended = [end for edge in sorted(edges) for end in edge]
        edges |= {(int(old), new) for old in rng.choice(ended, 2)}
    degree = np.bincount(ends(sorted(edges)).reshape(-1))
    assert degree.max() > 20
    assert check(sorted(edges), 400) <= 5


def test_bipartite_components_keep_two_colours_beside_others():
    grid = np.stack([kbp.grid_graph(4, 5).senders, kbp.grid_graph(4, 5).receivers], axis=1)
    clique = np.array(list(itertools.combinations(range(20, 26), 2)))
    edges = np.concatenate([clique, grid])
    colors = color(edges, 26)
    assert set(colors[:20].tolist()) == {0, 1}
    assert sorted(colors[20:].tolist()) == list(range(6))


def test_repeated_call_and_order_of_edges_change_nothing():
    rng = np.random.default_rng(5)
    edges = rng.permutation(np.array(list(itertools.combinations(range(40), 2))))[:150]
    first = color(edges, 40).tolist()
    assert color(edges, 40).tolist() == first
    assert color(edges[::-1, ::-1], 40).tolist() == first
    assert color(np.concatenate([edges, edges[:, ::-1]]), 40).tolist() == first


def test_colors_of_many_components_have_about_as_many_nodes():
    """A color is a table padded to the largest: of stars, one color would have all leaves."""
    star, triangle = [(0, i) for i in range(1, 6)], [(0, 1), (1, 2), (0, 2)]
    shapes = [(star, 6), (star, 6), (triangle, 3)] * 20
    first = np.cumsum([0, *(size for _, size in shapes)])
    edges = np.concatenate([np.array(ends) + start for (ends, _), start in zip(shapes, first[:-1], strict=True)])
    colors = color_nodes(edges[:, 0], edges[:, 1], int(first[-1]))
    assert (colors[edges[:, 0]] != colors[edges[:, 1]]).all()
    counts = np.bincount(colors)
    assert len(counts) == 3 and counts.max() < 1.7 * counts.min()
