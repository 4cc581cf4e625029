"""Edge appearance probabilities against all spanning trees of small graphs, formulas, and what sampling promises."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.graphs import spanning_trees as reweighting
from kbpjax.graphs.spanning_trees import tree_reweighting

COMPLETE4 = (list(itertools.combinations(range(4), 2)), 4)
GRID = ([(3 * i + j, 3 * i + j + 1) for i in range(3) for j in range(2)] + [(i, i + 3) for i in range(6)], 9)
BRIDGES = ([(4, 3), (0, 1), (2, 1), (0, 2), (2, 3), (5, 4), (3, 5), (6, 0)], 7)
APART = ([(7, 5), (0, 1), (1, 2), (6, 7), (2, 0), (5, 6), (3, 0), (5, 4), (4, 7)], 9)  # node 8 is alone
SMALL = {"complete": COMPLETE4, "grid": GRID, "bridges": BRIDGES, "apart": APART}


def num_components(edges, num_nodes):
    """Count connected components by merging labels."""
    label = list(range(num_nodes))
    for a, b in edges:
        label = [label[b] if each == label[a] else each for each in label]
    return len(set(label))


def spanning_forests(edges, num_nodes):
    """List all sets of edges with no cycle and as many edges as can be, as rows of zeros and ones."""
    size = num_nodes - num_components(edges, num_nodes)
    chosen = itertools.combinations(range(len(edges)), size)
    trees = [t for t in chosen if num_components([edges[i] for i in t], num_nodes) == num_nodes - size]
    return np.array([[i in t for i in range(len(edges))] for t in trees], float)


def regular(num_nodes, seed):
    """Draw a connected graph, of degree 4 but for doubled edges: two random cycles."""
    rng = np.random.default_rng(seed)
    cycles = [rng.permutation(num_nodes) for _ in range(2)]
    ends = np.concatenate([np.stack([c, np.roll(c, 1)], axis=1) for c in cycles])
    return np.unique(np.sort(ends, axis=1), axis=0), num_nodes


def small_world(num_nodes, seed):
    """Draw a cycle with chords."""
    rng = np.random.default_rng(seed)
    cycle = np.stack([np.arange(num_nodes), (np.arange(num_nodes) + 1) % num_nodes], axis=1)
    chords = np.stack([np.arange(0, num_nodes, 3), rng.permutation(num_nodes)[: -(-num_nodes // 3)]], axis=1)
    edges = np.sort(np.concatenate([cycle, chords]), axis=1)
    return np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0), num_nodes


def square_grid(side):
    graph = kbp.grid_graph(side, side)
    return np.stack([graph.senders, graph.receivers], axis=1)[: graph.num_edges // 2], side * side


LARGER = {"grid": square_grid(12), "regular": regular(150, 0), "small world": small_world(140, 1)}


@pytest.fixture(params=["dense", "sparse"])
def path(request, monkeypatch):
    """Go the dense or the sparse way; the sparse one in several blocks."""
    if request.param == "sparse":
        monkeypatch.setattr(reweighting, "DENSE", 0)
        monkeypatch.setattr(reweighting, "BLOCK", 3)
    return request.param


@pytest.mark.parametrize("name", SMALL)
def test_default_is_the_share_of_all_spanning_forests(name, path):
    edges, num_nodes = SMALL[name]
    expected = spanning_forests(edges, num_nodes).mean(axis=0)
    found = tree_reweighting(kbp.Graph.from_edges(edges, num_nodes))
    assert found.dtype == jnp.result_type(float)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_bridges_are_exactly_one_and_others_are_less(path):
    edges, num_nodes = BRIDGES
    found = tree_reweighting(kbp.Graph.from_edges(edges, num_nodes))
    assert [edge for edge, value in zip(edges, found.tolist(), strict=True) if value == 1.0] == [(2, 3), (6, 0)]


@pytest.mark.parametrize("num_nodes", [3, 10, 101])
def test_cycle_complete_graph_and_tree_follow_their_formulas(num_nodes, path):
    cycle = [(i, (i + 1) % num_nodes) for i in range(num_nodes)]
    found = tree_reweighting(kbp.Graph.from_edges(cycle, num_nodes))
    np.testing.assert_allclose(found, np.full(num_nodes, (num_nodes - 1) / num_nodes), rtol=1e-12)

    complete = list(itertools.combinations(range(min(num_nodes, 30)), 2))
    found = tree_reweighting(kbp.Graph.from_edges(complete, min(num_nodes, 30)))
    np.testing.assert_allclose(found, np.full(len(complete), 2 / min(num_nodes, 30)), rtol=1e-12)

    rng = np.random.default_rng(num_nodes)
    tree = [(int(rng.integers(i)), i) for i in range(1, num_nodes)]
    assert tree_reweighting(kbp.Graph.from_edges(tree, num_nodes)).tolist() == [1.0] * (num_nodes - 1)


@pytest.mark.parametrize("num_trees", [None, 5])
@pytest.mark.parametrize("name", LARGER)
def test_larger_graphs_add_up_and_dense_agrees_with_sparse(name, num_trees, monkeypatch):
    graph = kbp.Graph.from_edges(*LARGER[name])
    found = tree_reweighting(graph, num_trees=num_trees)
    assert np.all(found > 0) and np.all(found <= 1)
    np.testing.assert_allclose(found.sum(), graph.num_nodes - 1, rtol=1e-12)
    monkeypatch.setattr(reweighting, "DENSE", 0)
    np.testing.assert_allclose(tree_reweighting(graph, num_trees=num_trees), found, rtol=1e-10)


@pytest.mark.parametrize("edges, num_nodes", [*SMALL.values(), *LARGER.values()], ids=[*SMALL, *LARGER])
def test_sampled_trees_are_spanning_forests_and_cover_every_edge(edges, num_nodes, monkeypatch):
    import scipy.sparse.csgraph as csgraph

    trees, draw = [], csgraph.minimum_spanning_tree

    def listed(graph):
        tree = draw(graph)
        trees.append(np.stack(tree.nonzero(), axis=1).tolist())
        return tree

    monkeypatch.setattr(csgraph, "minimum_spanning_tree", listed)
    found = np.asarray(tree_reweighting(kbp.Graph.from_edges(edges, num_nodes), num_trees=3))
    parts = num_components(edges, num_nodes)
    for tree in trees:
        assert len(tree) == num_nodes - parts
        assert num_components(tree, num_nodes) == parts
    drawn = [tuple(edge) for tree in trees for edge in tree]
    share = np.array([drawn.count(tuple(edge)) for edge in np.asarray(edges).tolist()]) / len(trees)
    assert len(trees) >= 3
    assert np.all(found > 0)
    np.testing.assert_allclose(found, share, rtol=1e-12)


def test_trees_are_added_until_every_edge_is_covered():
    edges = list(itertools.combinations(range(12), 2))
    found = np.asarray(tree_reweighting(kbp.Graph.from_edges(edges, 12), num_trees=1))
    drawn = round(1 / np.min(found))  # the last edge that was covered is in one tree only
    assert np.all(found > 0)
    assert 6 <= drawn <= 9  # 66 edges, 11 to a tree
    np.testing.assert_allclose(found * drawn, np.round(found * drawn), atol=1e-9)
    np.testing.assert_allclose(found.sum(), 11, rtol=1e-12)


def test_many_trees_of_a_symmetric_graph_come_close_to_uniform_ones():
    edges = list(itertools.combinations(range(8), 2))
    found = tree_reweighting(kbp.Graph.from_edges(edges, 8), num_trees=400)
    np.testing.assert_allclose(found, np.full(28, 2 / 8), atol=0.01)


def test_key_chooses_the_trees():
    graph = kbp.grid_graph(5, 5)
    keys = (jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(4), jax.random.key(0), None)
    typed, raw, other, zero, none = (tree_reweighting(graph, num_trees=7, key=key).tolist() for key in keys)
    assert typed == raw != other and zero == none != other
    wide = jax.random.key(3, impl="rbg")  # four words
    assert tree_reweighting(graph, num_trees=7, key=wide).tolist() not in (typed, zero)
    with pytest.raises(ValueError, match="^key: must be known; got a traced key. Call the function outside jax.jit"):
        jax.jit(lambda key: tree_reweighting(graph, num_trees=7, key=key))(keys[0])


def test_probabilities_of_a_known_graph_are_the_same_inside_jit():
    graph = kbp.grid_graph(3, 4)
    inside = jax.jit(lambda x: x * tree_reweighting(graph, num_trees=7))(1.0)
    np.testing.assert_allclose(inside, tree_reweighting(graph, num_trees=7), rtol=1e-6)


def test_large_graphs_are_sampled(monkeypatch):
    graph = kbp.grid_graph(4, 4)
    exact = tree_reweighting(graph).tolist()
    monkeypatch.setattr(reweighting, "DENSE", 8)  # smaller components are exact, however many
    monkeypatch.setattr(reweighting, "EXACT", 16)
    np.testing.assert_allclose(tree_reweighting(graph), exact, rtol=1e-12)
    monkeypatch.setattr(reweighting, "EXACT", 15)
    assert tree_reweighting(graph).tolist() == tree_reweighting(graph, num_trees=100).tolist() != exact


def test_components_have_the_probabilities_that_they_have_alone(monkeypatch):
    parts = [kbp.grid_graph(3, 3), kbp.chain_graph(4), kbp.grid_graph(2, 2), kbp.grid_graph(4, 5), kbp.grid_graph(3, 4)]
    first = np.cumsum([0, *(part.num_nodes for part in parts)])
    ends = [np.stack([part.senders, part.receivers], axis=1)[: part.num_edges // 2] for part in parts]
    graph = kbp.Graph.from_edges(np.concatenate([e + f for e, f in zip(ends, first[:-1], strict=True)]), int(first[-1]))
    expected = np.concatenate([tree_reweighting(part) for part in parts])
    monkeypatch.setattr(reweighting, "EXACT", 0)  # which counts nodes of large components only
    np.testing.assert_allclose(tree_reweighting(graph), expected, rtol=1e-12)
    monkeypatch.setattr(reweighting, "EXACT", 100)
    for dense, batch in [(9, 2**23), (2000, 1), (1, 1)]:
        monkeypatch.setattr(reweighting, "DENSE", dense)
        monkeypatch.setattr(reweighting, "BATCH", batch)
        np.testing.assert_allclose(tree_reweighting(graph), expected, rtol=1e-12)


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("keywords", [{}, {"num_trees": 2}, {"probabilities": []}])
def test_graphs_without_edges_have_no_probabilities(num_nodes, keywords):
    found = tree_reweighting(kbp.Graph.from_edges([], num_nodes), **keywords)
    assert found.shape == (0,)
    assert found.dtype == jnp.result_type(float)


@pytest.mark.parametrize("kind", [list, np.float32, jnp.asarray])
def test_probabilities_that_keep_the_rules_are_passed_on(kind):
    edges, num_nodes = BRIDGES
    values = spanning_forests(edges, num_nodes)[:9].mean(axis=0)
    found = tree_reweighting(kbp.Graph.from_edges(edges, num_nodes), probabilities=kind(values))
    assert found.dtype == jnp.result_type(float)
    np.testing.assert_allclose(found, values, rtol=1e-6)


def test_rounding_above_one_is_clipped():
    found = tree_reweighting(kbp.chain_graph(3), probabilities=np.array([1 + 2e-7, 1], np.float32))
    assert found.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "keywords, text",
    [
        ({"probabilities": [0.75] * 3}, "probabilities: must have shape (4,), one for each undirected edge; got"),
        ({"probabilities": [[0.75] * 4]}, "probabilities: must have shape (4,)"),
        ({"probabilities": 0.75}, "probabilities: must have shape (4,)"),
        ({"probabilities": [0.75, 0.75, 0.75, np.nan]}, "probabilities: must be finite"),
        ({"probabilities": ["a", "b", "c", "d"]}, "probabilities: must hold real numbers"),
        ({"probabilities": [1.0, 1.0, 1.0, 0.0]}, "probabilities: must be in (0, 1]; got 0.0 for edge 3"),
        ({"probabilities": [1.1, 0.9, 0.5, 0.5]}, "probabilities: must be in (0, 1]; got 1.1 for edge 0"),
        ({"probabilities": [1.0, 1.0, 1.0, 1.0]}, "probabilities: must add up to 3, the number of nodes less"),
        ({"probabilities": [0.75, 0.75, 0.75, 0.74]}, "probabilities: must add up to 3"),
        ({"probabilities": [0.75] * 4, "num_trees": 3}, "num_trees: must be None with probabilities; got 3"),
        ({"num_trees": 0}, "num_trees: must be an integer >= 1; got 0"),
        ({"num_trees": 2, "key": -1}, "key: must be a random key or None; got -1"),
    ],
)
def test_what_breaks_the_rules_is_refused(keywords, text):
    square = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], 4)
    with pytest.raises(ValueError, match=re.escape(text)):
        tree_reweighting(square, **keywords)


def test_traced_graphs_and_probabilities_are_refused():
    graph = kbp.chain_graph(3)
    with pytest.raises(ValueError, match="outside jax.jit"):
        jax.jit(tree_reweighting)(graph)
    with pytest.raises(ValueError, match="outside jax.jit"):
        jax.jit(lambda values: tree_reweighting(graph, probabilities=values))(jnp.ones(2))
