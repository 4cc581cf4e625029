"""The estimator of scikit-learn: right on chains, grids and graphs, clonable, in a grid search; graphs of networkx."""

import networkx as nx
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import kbpjax as kbp
from kbpjax.estimator import GraphRegressor


def walks(count, length=10, seed=0):
    rng = np.random.default_rng(seed)
    y = np.cumsum(rng.normal(size=(count, length)), axis=1)
    return y + rng.normal(size=y.shape), y


@pytest.fixture(scope="module")
def fitted():
    return GraphRegressor().fit(*walks(60))


def test_chain_is_near_the_best_linear_answer(fitted):
    x, y = walks(200, seed=1)
    precision = np.eye(10) + np.linalg.inv(np.minimum.outer(np.arange(1, 11), np.arange(1, 11)).astype(float))
    best = np.mean((np.linalg.solve(precision, x.T).T - y) ** 2)
    found = np.mean((fitted.predict(x) - y) ** 2)
    assert best <= found < 1.2 * best < np.mean((x - y) ** 2)
    assert fitted.score(x, y) == pytest.approx(1 - found / np.var(y), abs=1e-9)


def test_intervals_cover_on_a_tree(fitted):
    x, y = walks(200, seed=1)
    low, high = fitted.predict_interval(x, 0.8)
    assert low.shape == high.shape == y.shape
    assert 0.75 < np.mean((low <= y) & (y <= high)) < 0.95
    wider = fitted.predict_interval(x, 0.95)
    assert (wider[0] <= low).all() and (wider[1] >= high).all()


def test_nan_is_not_observed(fitted):
    x, _ = walks(3, seed=2)
    x[0, 4] = np.nan
    found = fitted.predict(x)
    assert np.isfinite(found).all()
    low, high = fitted.predict_interval(x)
    assert (high - low)[0, 4] > (high - low)[1:, 4].max()


def test_predictions_are_those_of_the_library(fitted):
    x, _ = walks(2, seed=3)
    graph = kbp.chain_graph(10)
    evidence = kbp.observe(fitted.model_, graph, x[1])
    solution = kbp.run_tree(fitted.model_, graph, evidence)
    belief = kbp.beliefs(fitted.model_, graph, evidence, solution, fitted.points_)
    np.testing.assert_allclose(fitted.predict(x)[1], kbp.mean(belief), rtol=1e-5)


def test_images_and_several_numbers_a_pixel():
    rng = np.random.default_rng(0)
    y = np.sin(np.mgrid[:5, :6].sum(0) / 3 + rng.uniform(0, 6, (30, 1, 1)))
    x = np.stack([y + 0.5 * rng.normal(size=y.shape), -y + 0.5 * rng.normal(size=y.shape)], axis=-1)
    model = GraphRegressor(num_iters=5).fit(x[:20], y[:20])
    assert model.predict(x[20:]).shape == (10, 5, 6)
    assert model.score(x[20:], y[20:]) > 0.7


def test_a_given_graph(fitted):
    x, y = walks(60)
    order = np.random.default_rng(0).permutation(10)
    place = np.argsort(order)
    graph = kbp.Graph.from_edges([(place[i], place[i + 1]) for i in range(9)], 10)
    shuffled = GraphRegressor().fit(x[:, order], y[:, order], graph)
    np.testing.assert_allclose(shuffled.predict(x[:, order]), fitted.predict(x)[:, order], atol=0.05)


def test_grid_search_pipeline_and_clone():
    x, y = walks(24, 6)
    grid = {"bandwidth": [0.3, 0.6], "ridge": [1e-2]}
    # All bases have the largest rank, so that every fit and every fold has the same shapes.
    search = GridSearchCV(GraphRegressor(max_rank=6), grid, cv=2).fit(x, y, graph=kbp.chain_graph(6))
    assert search.best_params_["bandwidth"] in (0.3, 0.6) and search.best_score_ > 0.5
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()
    pipeline = make_pipeline(FunctionTransformer(lambda x: 2 * x), GraphRegressor(max_rank=6)).fit(x, y)
    assert pipeline.predict(x).shape == y.shape


def test_sample_weights_of_a_score(fitted):
    x, y = walks(4, seed=5)
    repeated = [0, 0, 0, 1, 2, 3]
    weighted = fitted.score(x, y, sample_weight=[3, 1, 1, 1])
    assert weighted == pytest.approx(fitted.score(x[repeated], y[repeated]), abs=1e-6)


WRONG = {
    "shapes": (lambda x, y: GraphRegressor().fit(x[:, :4], y), "^X, y: must have the same samples and nodes"),
    "nan": (lambda x, y: GraphRegressor().fit(x, np.full_like(y, np.nan)), "^y: must be finite"),
    "nan in X": (lambda x, y: GraphRegressor().fit(np.full_like(x, np.nan), y), "^X: must be finite"),
    "bandwidth": (lambda x, y: GraphRegressor(bandwidth=0).fit(x, y), "^bandwidth: must be finite and > 0"),
    "obs": (lambda x, y: GraphRegressor(obs_bandwidth=-1).fit(x, y), "^obs_bandwidth: must be"),
    "power": (lambda x, y: GraphRegressor(evidence_power=0).fit(x, y), "^evidence_power: must be"),
    "ridge": (lambda x, y: GraphRegressor(ridge=-1).fit(x, y), "ridge.*: must be"),
    "rank": (lambda x, y: GraphRegressor(max_rank=0).fit(x, y), "^max_rank: must be"),
    "points": (lambda x, y: GraphRegressor(num_points=0).fit(x, y), "^num_points: must be"),
    "graph": (lambda x, y: GraphRegressor().fit(x, y, kbp.chain_graph(3)), "samples"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused(name):
    call, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        call(*walks(5, 6))


def test_wrong_questions_are_refused(fitted):
    with pytest.raises(NotFittedError):
        GraphRegressor().predict(np.zeros((1, 10)))
    with pytest.raises(ValueError, match=r"^X: must have samples of shape \(10,\); got \(4,\)"):
        fitted.predict(np.zeros((1, 4)))
    with pytest.raises(ValueError, match="^coverage: must be"):
        fitted.predict_interval(np.zeros((1, 10)), 1.0)


def test_graphs_of_networkx_there_and_back():
    given = nx.Graph()
    given.add_nodes_from([("c", {"type": 1}), ("a", {}), ("b", {})])
    given.add_edges_from([("a", "b", {"type": 0}), ("a", "c", {"type": 2})])
    graph, names = kbp.Graph.from_networkx(given)
    assert names == ["c", "a", "b"] and graph.node_type.tolist() == [1, 0, 0]
    back = graph.to_networkx()
    assert {frozenset(edge): back.edges[edge]["type"] for edge in back.edges} == {
        frozenset({1, 2}): 0,
        frozenset({0, 1}): 2,
    }
    assert [back.nodes[v]["type"] for v in range(3)] == [1, 0, 0]
    again, _ = kbp.Graph.from_networkx(back)
    assert sorted(again.edge_types) == sorted(graph.edge_types)
    lonely, _ = kbp.Graph.from_networkx(nx.empty_graph(3))
    assert lonely.num_nodes == 3 and lonely.num_edges == 0


@pytest.mark.parametrize("wrong", [nx.DiGraph(), nx.MultiGraph(), [(0, 1)]])
def test_other_graphs_are_refused(wrong):
    with pytest.raises(ValueError, match="^graph: must be a networkx.Graph; got"):
        kbp.Graph.from_networkx(wrong)


def test_whole_numbers_are_answered_like_floats():
    x, y = walks(40)
    options = {"evidence_power": 0.5, "num_points": 50}
    whole, floats = (GraphRegressor(**options).fit(x, kind(np.round(y))) for kind in (np.int32, np.float64))
    np.testing.assert_allclose(whole.predict(x[:5]), floats.predict(x[:5]), atol=1e-6)
    low, high = whole.predict_interval(x[:5])
    assert (high - low).min() > 0.5


@pytest.mark.parametrize("damping", [-1.0, 1.0, 1.5])
def test_damping_out_of_range_is_refused(damping):
    with pytest.raises(ValueError, match="damping: must be"):
        GraphRegressor(damping=damping).fit(*walks(5))


def test_no_iterations_are_refused():
    with pytest.raises(ValueError, match="num_iters: must be"):
        GraphRegressor(num_iters=0).fit(*walks(5))
