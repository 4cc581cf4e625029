"""Merged nodes: relations of three variables, evidence on parts, beliefs of parts, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.triples import triples_beyond_pairs

GRAPH = kbp.Graph.from_edges([(0, 2), (1, 2), (2, 3)], 4)


@pytest.fixture(scope="module")
def bits():
    """Two bits, their exclusive or, and that again with noise; the model of the first two merged."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (300, 2))
    either = x[:, 0] ^ x[:, 1]
    rows = np.c_[x, either, np.where(rng.random(300) < 0.1, 1 - either, either)]
    merged = kbp.merge(GRAPH, kbp.pool(GRAPH, rows), [0, 1])
    return rows, merged, kbp.fit(merged.data, effort="low")


@pytest.mark.slow
def test_the_exclusive_or_of_two_bits_which_pairs_cannot_say(bits):
    _, merged, model = bits
    for a in (0, 1):
        for b in (0, 1):
            evidence = merged.evidence(model, [a, b, np.nan, np.nan])
            posterior = kbp.infer(model, merged.graph, evidence=evidence)
            assert [int(kbp.mode(merged.part(posterior, i))[0]) for i in (2, 3)] == [a ^ b] * 2


def test_one_bit_and_the_result_say_the_other(bits):
    _, merged, model = bits
    for a in (0, 1):
        for c in (0, 1):
            posterior = kbp.infer(model, merged.graph, evidence=merged.evidence(model, [a, np.nan, c, np.nan]))
            other, own = merged.part(posterior, 1), merged.part(posterior, 0)
            assert other.points.tolist() == [0, 1]
            assert other.weights[0, a ^ c] > 0.7
            assert own.weights[0, a] > 0.9


def test_evidence_under_vmap_is_that_of_single_cases(bits):
    rows, merged, model = bits
    asked = np.where(np.arange(4) == 2, np.nan, rows[:5])
    posterior = jax.vmap(lambda row: kbp.infer(model, merged.graph, evidence=merged.evidence(model, row)))(
        jnp.asarray(asked)
    )
    for i, row in enumerate(asked):
        alone = kbp.infer(model, merged.graph, evidence=merged.evidence(model, row))
        for v, weights in posterior.probabilities.items():
            np.testing.assert_allclose(weights[i], alone.probabilities[v], atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_product_of_two_numbers():
    rng, graph = np.random.default_rng(0), kbp.Graph.from_edges([(0, 2), (1, 2)], 3)

    def draw(count):
        x = rng.normal(size=(count, 3))
        x[:, 2] = x[:, 0] * x[:, 1] + 0.1 * x[:, 2]
        return x

    merged = kbp.merge(graph, kbp.pool(graph, draw(1000)), [0, 1])
    model = kbp.fit(merged.data)
    test = draw(60)
    found = []
    for a, b, _ in test:
        posterior = kbp.infer(model, merged.graph, evidence=merged.evidence(model, [a, b, np.nan]))
        found.append(float(kbp.mean(merged.part(posterior, 2))[0]))
    assert np.sqrt(np.mean((np.array(found) - test[:, 2]) ** 2)) < 0.35 * test[:, 2].std()


def test_what_pairs_cannot_say_is_named():
    rng, graph = np.random.default_rng(0), kbp.Graph.from_edges([(0, 2), (1, 2)], 3)
    bits = rng.integers(0, 2, (400, 2))
    (found,) = triples_beyond_pairs(kbp.pool(graph, np.c_[bits, bits[:, 0] ^ bits[:, 1]]))
    assert found.nodes == (2, 0, 1)
    assert found.nats == pytest.approx(np.log(2), abs=0.05)
    x = rng.normal(size=(1000, 3))
    product = np.c_[x[:, :2], x[:, 0] * x[:, 1] + 0.1 * x[:, 2]]
    with pytest.warns(
        kbp.RelationWarning, match=r"node 2 depends on nodes 0 and 1 together .*merge\(graph, data, \[0, 1\]\)"
    ):
        kbp.fit(kbp.pool(graph, np.clip(product, -3, 3)), kernel=kbp.RBF(1.0))
    for simple in (np.c_[x[:, :2], x[:, 0] + x[:, 1] + 0.1 * x[:, 2]], x, np.cumsum(x, axis=1)):
        assert not triples_beyond_pairs(kbp.pool(graph, simple))


def test_values_and_edges_of_merged_nodes():
    rng = np.random.default_rng(0)
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (0, 3)], 4, node_type=[0, 1, 0, 1])
    x = {0: rng.normal(size=(30, 2)), 1: rng.normal(3, 2, size=(30, 2, 2))}
    merged = kbp.merge(graph, kbp.pool(graph, x), [[1, 0], [2, 3]])
    assert merged.graph.num_nodes == 2 and merged.graph.num_edges == 2  # one edge, both ways
    assert merged.new == (0, 0, 1, 1)
    values = merged.values(x)
    assert {v: one.shape for v, one in values.items()} == {2: (30, 1, 3), 3: (30, 1, 3)}
    first = merged.parts[1]
    np.testing.assert_allclose(values[2][:, 0, :2] * first.scale + first.location, x[1][:, 0])
    np.testing.assert_allclose(values[3][:, 0, 0] * merged.parts[2].scale + merged.parts[2].location, x[0][:, 1])


@pytest.mark.slow
def test_labels_of_parts_come_back():
    rng = np.random.default_rng(0)
    graph = kbp.Graph.from_edges([(0, 2), (1, 2)], 3)
    x = rng.integers(0, 2, (200, 2))
    words = np.array(["no", "yes"])[np.c_[x, x[:, 0] ^ x[:, 1]]]
    merged = kbp.merge(graph, kbp.pool(graph, words), [0, 1])
    model = kbp.fit(merged.data, effort="low")
    posterior = kbp.infer(model, merged.graph, evidence=merged.evidence(model, ["yes", None, "yes"]))
    assert [kbp.mode(merged.part(posterior, i)).tolist() for i in range(3)] == [["yes"], ["no"], ["yes"]]


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ([0], "nodes: must be two or more"),
        ([0, 0], "nodes: must be different"),
        ([0, 9], "nodes: must be numbers of 4 nodes"),
        ([[0, 1], [1, 2]], "nodes: must be different"),
    ],
)
def test_nodes_that_cannot_be_merged(nodes, match):
    data = kbp.pool(GRAPH, np.random.default_rng(0).normal(size=(20, 4)))
    with pytest.raises(ValueError, match=match):
        kbp.merge(GRAPH, data, nodes)


def test_several_cases_are_refused_and_unseen_parts_named(bits):
    rows, merged, model = bits
    with pytest.raises(ValueError, match="given: must be the values of one case"):
        merged.evidence(model, rows[:5])
    with pytest.warns(kbp.EvidenceWarning, match="which say nothing"):
        merged.evidence(model, [9, np.nan, np.nan, np.nan])


def test_data_of_another_graph_and_values_of_another_shape(bits):
    _, merged, _ = bits
    with pytest.raises(ValueError, match="data: must be cases of this graph"):
        kbp.merge(GRAPH, kbp.pool(kbp.chain_graph(3), np.zeros((5, 3))), [0, 1])
    with pytest.raises(ValueError, match="given: must have 4 nodes"):
        merged.values(np.zeros(3))
    with pytest.raises(ValueError, match="given: must have node types among"):
        merged.values({5: np.zeros(3)})
    with pytest.raises(ValueError, match="given: must be finite, or NaN where missing"):
        merged.values([np.inf, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="given: must be rectangular numbers"):
        merged.values(np.array([None, object(), 0, 0], object))
