import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from tests import reference


def twin_of(graph, edges):
    """The twin's graph with the pairs as the user gave them."""
    kinds = graph.edge_type[: len(edges)].tolist()
    return reference.Graph([tuple(e) for e in np.asarray(edges).tolist()], graph.node_type.tolist(), kinds)


def rows(*arrays):
    """Samples of several arrays side by side, sorted: pooling promises which samples pair up, not their order."""
    arrays = [np.asarray(a).reshape(len(a), -1) for a in arrays]
    together = np.concatenate(arrays, axis=1)
    return together[np.lexsort(together.T[::-1])]


def grid(height, width):
    pixel = np.arange(height * width).reshape(height, width)
    return [(pixel[i, j], pixel[i, j + 1]) for i in range(height) for j in range(width - 1)] + [
        (pixel[i, j], pixel[i + 1, j]) for i in range(height - 1) for j in range(width)
    ]


LOOPY = reference.loopy_example()[0]
GRAPHS = {
    "grid": (kbp.grid_graph(3, 2), grid(3, 2)),
    "chain": (kbp.chain_graph(4), [(0, 1), (1, 2), (2, 3)]),
    "grid with two edge types": (kbp.grid_graph(2, 2, edge_type=[0, 0, 1, 1]), grid(2, 2)),
    "chain of two node types": (kbp.chain_graph(4, node_type=[1, 0, 0, 1]), [(0, 1), (1, 2), (2, 3)]),
    "mixed orientation": (
        kbp.Graph.from_edges(LOOPY.edges, 7, edge_type=LOOPY.edge_type, node_type=LOOPY.node_type),
        LOOPY.edges,
    ),
    "gaps in the types": (
        kbp.Graph.from_edges([(0, 1), (2, 1), (0, 3)], 4, edge_type=[2, 2, 5], node_type=[1, 4, 1, 1]),
        [(0, 1), (2, 1), (0, 3)],
    ),
    "no edges": (kbp.Graph.from_edges([], 2), []),
    "one node": (kbp.chain_graph(1), []),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
@pytest.mark.parametrize("observed", [True, False])
def test_pool_equals_twin(name, shape, observed):
    graph, edges = GRAPHS[name]
    twin = twin_of(graph, edges)
    samples = np.arange(3 * graph.num_nodes * int(np.prod(shape)), dtype=float).reshape(3, graph.num_nodes, *shape)
    observations = 1000 + samples[..., None] if observed else None
    data = kbp.pool(graph, samples, observations)
    expected_edges, expected_nodes, expected_observations, degrees = reference.pool(twin, samples, observations)

    assert data.edges.keys() == expected_edges.keys()
    for k, pair in expected_edges.items():
        assert [x.shape for x in data.edges[k]] == [x.shape for x in pair]
        np.testing.assert_array_equal(rows(*data.edges[k]), rows(*pair))
    assert data.nodes.keys() == expected_nodes.keys()
    for v, x in expected_nodes.items():
        np.testing.assert_array_equal(rows(data.nodes[v]), rows(x))
    assert data.observations.keys() == expected_observations.keys()
    for v, pair in expected_observations.items():
        assert [x.shape for x in data.observations[v]] == [x.shape for x in pair]
        np.testing.assert_array_equal(rows(*data.observations[v]), rows(*pair))
    assert dict(data.degrees) == degrees
    assert {k: (a, b) for k, a, b in data.ends} == twin.ends()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int32])
def test_pool_keeps_the_type_of_the_samples(dtype):
    samples = np.arange(8).reshape(2, 4).astype(dtype)
    data = kbp.pool(kbp.chain_graph(4), samples, samples)
    values = (data.edges, data.nodes, data.observations)
    assert {leaf.dtype for leaf in jax.tree.leaves(values)} == {np.dtype(dtype)}


def test_pool_takes_lists_and_jax_arrays():
    graph = kbp.chain_graph(2)
    for samples in ([[0.0, 1.0]], jnp.array([[0.0, 1.0]])):
        assert [x.tolist() for x in kbp.pool(graph, samples).edges[0]] == [[0.0], [1.0]]


def test_pool_under_jit():
    graph = kbp.chain_graph(3)
    data = jax.jit(lambda x: kbp.pool(graph, x))(jnp.arange(6.0).reshape(2, 3))
    assert data.edges[0][1].tolist() == [1.0, 2.0, 4.0, 5.0] and dict(data.degrees) == {0: 2}


GRAPH = kbp.chain_graph(3)
FINE = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("samples", "observations", "argument", "rule"),
    [
        (np.zeros(3), None, "samples", r"must have shape \[sample, 3, ...\]; got shape \(3,\)"),
        (np.zeros((2, 4)), None, "samples", r"must have shape \[sample, 3, ...\]; got shape \(2, 4\)"),
        (np.zeros((3, 2)), None, "samples", "must have shape"),
        (1.0, None, "samples", "must have shape"),
        (np.zeros((0, 3)), None, "samples", "must hold at least one sample"),
        (np.zeros((2, 3, 0)), None, "samples", "must hold at least one sample"),
        (np.array([[0, np.inf, 0]]), None, "samples", "must be finite, or NaN where missing; got infinity in 1 of 3"),
        (np.array([["a", 1, "c"]], object), None, "samples", "must have labels of one type"),
        (FINE, np.zeros(3), "observations", "must have shape"),
        (FINE, np.zeros((2, 4)), "observations", "must have shape"),
        (FINE, np.zeros((3, 3)), "observations", "must have 2 samples, as samples; got 3"),
        (FINE, np.zeros((0, 3)), "observations", "must hold at least one sample"),
        (FINE, np.full((2, 3), -np.inf), "observations", "must be finite"),
    ],
)
def test_pool_names_what_is_wrong(samples, observations, argument, rule):
    with pytest.raises(ValueError, match=f"^{argument}: {rule}"):
        kbp.pool(GRAPH, samples, observations)


X = np.arange(4.0)
VECTORS = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("arguments", "argument", "rule"),
    [
        ({"nodes": {}}, "nodes", "must hold samples of at least one node type"),
        ({"nodes": {0: np.zeros(0)}}, r"nodes\[0\]", "must hold at least one sample"),
        ({"nodes": {0: 1.0}}, r"nodes\[0\]", "must hold at least one sample"),
        ({"nodes": {0: [np.nan]}}, r"nodes\[0\]", "must hold a complete sample; got none of 1"),
        ({"nodes": {0: [0.0, np.inf]}}, r"nodes\[0\]", "must be finite, or NaN where missing; got infinity in 1 of 2"),
        ({"nodes": {0: ["a"]}}, r"nodes\[0\]", "must hold real numbers"),
        ({"edges": {0: X}}, r"edges\[0\]", "must (be a tuple of 2|have 2 items)"),
        ({"edges": {0: (X, X, X)}}, r"edges\[0\]", "must (be a tuple of 2|have 2 items)"),
        ({"edges": {0: (X, X[:3])}}, r"edges\[0\]", "must have the same number of samples at both ends; got 4 and 3"),
        ({"edges": {0: (X, np.append(X[:3], np.inf))}}, r"edges\[0\]\[1\]", "must be finite"),
        ({"edges": {0: (X, np.full(4, np.nan))}}, r"edges\[0\]", "must hold a complete sample; got none of 4"),
        ({"cases": [X]}, r"cases\[0\]", "must be a Cases"),
        ({"edges": {0: (X[:0], X[:0])}}, r"edges\[0\]\[0\]", "must hold at least one sample"),
        ({"edges": {0: (X, VECTORS)}}, r"edges\[0\]", r"must have points of shape \(\); got \(2,\)"),
        ({"observations": {0: (X, X[:3])}}, r"observations\[0\]", "must have the same number of samples"),
        ({"observations": {0: (X, np.full(4, np.inf))}}, r"observations\[0\]\[1\]", "must be finite"),
        ({"observations": {0: (VECTORS, X)}}, r"observations\[0\]", r"must have points of shape \(\)"),
        ({"observations": {1: (X, X)}}, r"observations\[1\]", r"must use node types \[0\]; got 1"),
        ({"ends": {}}, "ends", r"must have a pair of node types for each of the edge types \[0\]"),
        ({"ends": {0: (0, 0), 1: (0, 0)}}, "ends", r"must have a pair of node types for each of the edge types \[0\]"),
        ({"ends": {1: (0, 0)}}, "ends", r"must have a pair of node types for each of the edge types \[0\]"),
        ({"ends": {0: (0, 0, 0)}}, r"ends\[0\]", "must have 2 items"),
        ({"nodes": {0: X * 1j}}, r"nodes\[0\]", "must hold real numbers"),
        ({"degrees": {0: -1}}, "degrees", r"must be >= 0, with node types among \[0\]"),
        ({"degrees": {3: 2}}, "degrees", r"must be >= 0, with node types among \[0\]"),
        ({"nodes": {-1: X}}, "nodes", "must have integers >= 0 as keys"),
        ({"edges": {-2: (X, X)}}, "edges", "must have integers >= 0 as keys"),
        ({"ends": {0: (0, 1)}}, r"edges\[0\]", r"must use node types \[0\]; got 1"),
        ({"nodes": {0: X, 1: VECTORS}}, "ends", "must be given if there are several node types"),
        ({"nodes": {0: X, 1: VECTORS}, "ends": {0: (0, 1)}}, r"edges\[0\]", r"must have points of shape \(2,\)"),
    ],
)
def test_training_data_name_what_is_wrong(arguments, argument, rule):
    fine = {"edges": {0: (X, X)}, "nodes": {0: X}}
    with pytest.raises(ValueError, match=f"^{argument}: {rule}"):
        kbp.TrainingData(**(fine | arguments))


def test_training_data_of_types_on_different_domains():
    data = kbp.TrainingData(
        edges={3: (X, VECTORS)},
        nodes={0: X, 1: VECTORS},
        observations={1: (VECTORS, np.zeros((4, 5, 6)))},
        ends={3: (0, 1)},
        degrees={1: 2},
    )
    assert data.ends == ((3, 0, 1),) and data.degrees == ((1, 2),)
    assert data.observations[1][1].shape == (4, 5, 6)
    again = jax.tree.map(lambda x: x, data)
    assert again.ends == data.ends and jax.tree.structure(again) == jax.tree.structure(data)


def test_training_data_of_one_type_need_no_ends():
    data = kbp.TrainingData({0: (X, X), 7: (X, X)}, {2: X})
    assert data.ends == ((0, 2, 2), (7, 2, 2)) and data.observations == {}


def test_training_data_without_edges_need_no_ends():
    data = kbp.TrainingData({}, {0: X, 1: VECTORS})
    assert data.ends == () and data.edges == {}


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "argument", "rule"),
    [
        ({}, "rows", "must hold a pair of index arrays for each edge type"),
        ({0: [0, 1, 2, 3, 4]}, r"rows\[0\]", "must have 2 items"),
        (
            {0: ([0, 1, 2], [3, 2, 1, 0])},
            r"rows\[0\]",
            r"must have 4 rows of nodes\[0\] with the samples of edges\[0\]",
        ),
        ({0: ([0, 1, 2, 3], [0, 1, 2, 3])}, r"rows\[0\]", "must have 4 rows .* got other rows"),
        ({0: ([0, 1, 2, 4], [3, 2, 1, 0])}, r"rows\[0\]", "must have 4 rows .* got other rows"),
        ({0: ([0, 1, 2, -1], [3, 2, 1, 0])}, r"rows\[0\]", "must have 4 rows .* got other rows"),
    ],
)
def test_rows_must_be_where_the_samples_stand(rows, argument, rule):
    with pytest.raises(ValueError, match=f"^{argument}: {rule}"):
        kbp.TrainingData({0: (X, X[::-1])}, {0: X}, rows=rows)


def test_rows_turn_round_with_their_pairs():
    """A type given from node type 1 to 0 is kept from 0 to 1, its rows with it."""
    a, b = np.array([5.0, 6.0, 7.0]), np.array([1.0, 2.0])
    data = kbp.TrainingData(
        {2: (b[[1, 1, 0]], a[[0, 2, 1]])}, {0: a, 1: b}, ends={2: (1, 0)}, rows={2: ([1, 1, 0], [0, 2, 1])}
    )
    assert data.ends == ((2, 0, 1),)
    assert [x.tolist() for x in data.edges[2]] == [[5.0, 7.0, 6.0], [2.0, 2.0, 1.0]]
    assert [x.tolist() for x in data.places(2)] == [[0, 2, 1], [1, 1, 0]]
    assert data.points(0).tolist() == a.tolist() and data.points(1).tolist() == b.tolist()


def test_places_without_rows_are_where_the_points_hold_the_pairs():
    """Both ends of one edge type after those of another; a node type without edges has its samples."""
    rng = np.random.default_rng(0)
    edges = {1: rng.normal(size=(2, 3)), 4: rng.normal(size=(2, 2)), 0: rng.normal(size=(2, 4))}
    ends = {1: (0, 0), 4: (0, 1), 0: (1, 1)}
    nodes = {0: X, 1: X, 2: X + 7}
    data = kbp.TrainingData({k: tuple(pair) for k, pair in edges.items()}, nodes, ends=ends)
    assert {v: len(data.points(v)) for v in nodes} == {0: 8, 1: 10, 2: 4}
    for k, (a, b) in ends.items():
        for v, x, place in zip((a, b), edges[k], data.places(k)):
            np.testing.assert_array_equal(data.points(v)[place], x)
    taken = [i for k in (0, 1, 4) for v, place in zip(ends[k], data.places(k)) if v == 1 for i in place.tolist()]
    assert sorted(taken) == list(range(10)), "every point belongs to one end of one pair"
    np.testing.assert_array_equal(data.points(2), nodes[2])
