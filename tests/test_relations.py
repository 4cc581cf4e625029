"""Relations of single edges, drawn to those of their types."""

import jax
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.model import learn_model
from kbpjax.learning.relations import with_own_relations

KERNELS = {"kernel": kbp.RBF(0.4), "obs_kernel": kbp.RBF(0.2), "ridge": 1e-4}


def draw(rng, count):
    """Return values of a tree whose edges are different functions."""
    a = rng.uniform(-2, 2, count)
    b, c = np.sin(2 * a), -a
    x = np.stack([a, b + 0.2 * rng.normal(size=count), c + 0.2 * rng.normal(size=count), np.abs(b)], axis=1)
    return x


GRAPH = kbp.Graph.from_edges([(0, 1), (0, 2), (1, 3)], 4)
X = draw(np.random.default_rng(0), 400)
DATA = kbp.pool(GRAPH, X, X)


def own(strength, **options):
    data, relations = with_own_relations(DATA, strength)
    return learn_model(data, **KERNELS | options, own=relations)


@pytest.fixture(scope="module")
def chosen():
    return kbp.fit(DATA), kbp.fit(DATA, sharing="type")


def test_a_tree_of_different_functions_is_answered_by_their_own(chosen):
    truth = draw(np.random.default_rng(1), 100)
    y = np.where(np.random.default_rng(2).random(truth.shape) < 0.4, np.nan, truth)
    means = [jax.vmap(lambda one, model=model: kbp.mean(kbp.infer(model, GRAPH, one)))(y) for model in chosen]
    alone, shared = (np.sqrt(np.mean((mean - truth)[np.isnan(y)] ** 2)) for mean in means)
    assert alone < 0.8 * shared
    assert chosen[0].own_edges and not chosen[1].own_edges
    assert "relations of their own" in repr(chosen[0])


def test_a_large_strength_shares_and_none_fits_each_edge():
    y = np.array([0.5, np.nan, np.nan, np.nan])
    typed = GRAPH.with_edge_types([0, 1, 2])
    shared, separate = (learn_model(data, **KERNELS) for data in (DATA, kbp.pool(typed, X, X)))
    answers = [kbp.mean(kbp.infer(model, GRAPH, y)) for model in (own(1e7), shared)]
    assert np.allclose(*answers, atol=2e-2)
    by_type = kbp.mean(kbp.infer(separate, typed, y))
    assert np.allclose(kbp.mean(kbp.infer(own(0.0), GRAPH, y)), by_type, atol=2e-2)


@pytest.mark.parametrize("relation", ["ridge", "counts"])
def test_infer_equals_its_long_form(relation, tmp_path):
    model = own(10.0, relation=relation)
    kbp.save(tmp_path / "model.npz", model)
    model = kbp.load(tmp_path / "model.npz")
    y = np.array([0.5, np.nan, -0.5, np.nan])
    evidence = kbp.observe(model, GRAPH, y)
    posterior = kbp.Posterior.of(model, GRAPH, evidence, kbp.run_tree(model, GRAPH, evidence))
    assert np.allclose(posterior.belief.weights, kbp.infer(model, GRAPH, y).belief.weights)
    assert model.graph_of(GRAPH).edge_types != GRAPH.edge_types
    assert model.graph_of(model.graph_of(GRAPH)).edge_types == model.graph_of(GRAPH).edge_types


def test_other_graphs_have_the_relations_of_the_types():
    model, shared = own(10.0), learn_model(DATA, **KERNELS)
    graph = kbp.chain_graph(6)
    y = np.array([0.5, np.nan, np.nan, 0.2, np.nan, np.nan])
    answers = [kbp.mean(kbp.infer(one, graph, y)) for one in (model, shared)]
    assert np.allclose(*answers, atol=1e-3)


def test_edges_without_pairs_have_the_relation_of_their_type():
    x = X.copy()
    x[:, 3] = np.nan
    x[:5, 3], x[:5, 1] = X[:5, 3], np.nan  # never together with its neighbor
    data, relations = with_own_relations(kbp.pool(GRAPH, x, X), 1.0)
    assert len(relations.edges) == 2
    model = learn_model(data, **KERNELS, own=relations)
    kinds = np.asarray(model.graph_of(GRAPH).edge_type)[:3].tolist()
    assert kinds[2] == 0 and 0 not in kinds[:2]
