"""The estimator of scikit-learn: right on chains, grids and graphs, clonable, in a grid search; graphs of networkx."""

import pickle

import networkx as nx
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import kbpjax as kbp
from kbpjax.estimator import GraphRegressor

GIVEN = {"kernel": kbp.RBF(0.8), "obs_kernel": kbp.RBF(0.8), "ridge": 1e-3, "obs_ridge": 1e-3}


def given(**options):
    """Return an estimator with nothing left to choose."""
    return GraphRegressor(**{**GIVEN, **options})


def walks(count, length=10, seed=0):
    rng = np.random.default_rng(seed)
    y = np.cumsum(rng.normal(size=(count, length)), axis=1)
    return y + rng.normal(size=y.shape), y


@pytest.fixture(scope="module")
def fitted():
    return given().fit(*walks(60))


@pytest.mark.slow
def test_chain_is_near_the_best_linear_answer(fitted):
    x, y = walks(200, seed=1)
    precision = np.eye(10) + np.linalg.inv(np.minimum.outer(np.arange(1, 11), np.arange(1, 11)).astype(float))
    best = np.mean((np.linalg.solve(precision, x.T).T - y) ** 2)
    found = np.mean((fitted.predict(x) - y) ** 2)
    assert best <= found < 1.2 * best < np.mean((x - y) ** 2)
    assert fitted.score(x, y) == pytest.approx(1 - found / np.var(y), abs=1e-9)


@pytest.mark.slow
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
    mean, std = fitted.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert std[0, 4] > std[1:, 4].max()


def test_predictions_are_those_of_the_library(fitted):
    x, _ = walks(2, seed=3)
    graph = kbp.chain_graph(10)
    belief = kbp.infer(fitted.model_, graph, x[1])
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(mean[1], kbp.mean(belief), rtol=1e-5)
    np.testing.assert_allclose(std[1] ** 2, kbp.variance(belief), rtol=1e-5)
    np.testing.assert_allclose(fitted.predict_interval(x, 0.7)[0][1], kbp.interval(belief, 0.7)[0], rtol=1e-5)


@pytest.mark.slow
def test_hyperparameters_that_are_none_are_chosen(monkeypatch):
    x, y = walks(40, length=4)
    asked = []

    def choose(data, **options):
        asked.append(options)
        rule = options["rule"] or kbp.ConstantTime(max_rank=20)
        chosen = kbp.Hyperparameters(kbp.RBF(0.9), kbp.RBF(0.8), ridge=1e-3, temperature=2.0, rule=rule)
        return chosen, data, None

    monkeypatch.setattr("kbpjax.fitting.choose", choose)
    regressor = given(kernel=None, ridge=None, max_rank=20).fit(x, y)
    (options,) = asked
    assert options["kernel"] is None and options["ridge"] is None and options["rule"].max_rank == 20
    assert options["obs_kernel"] is GIVEN["obs_kernel"] and options["obs_ridge"] == 1e-3
    assert float(regressor.model_.hyperparameters.temperature) == 2
    low, _ = regressor.predict_interval(x[:2])
    belief = kbp.infer(regressor.model_, kbp.chain_graph(4), x[0])
    np.testing.assert_allclose(low[0], kbp.interval(belief)[0], rtol=1e-6)
    assert given().fit(x, y).model_.hyperparameters is None and len(asked) == 1
    many, pictures = images()
    given(kernel=None, obs_kernel=None, effort="low").fit(many[:4], pictures[:4])
    assert asked[1]["effort"] == "low" and asked[1]["nonnegative"] is None and asked[1]["rule"] is None


@pytest.mark.slow
def test_the_choice_is_that_of_the_library():
    x, y = walks(40, length=3)
    chosen = GraphRegressor().fit(x, y)
    model = kbp.fit(kbp.pool(kbp.chain_graph(3), y, x))
    assert str(chosen.model_.hyperparameters) == str(model.hyperparameters)
    np.testing.assert_allclose(chosen.predict(x)[0], kbp.mean(kbp.infer(model, kbp.chain_graph(3), x[0])), rtol=1e-5)
    assert chosen.score(x, y) > 0.5


@pytest.mark.slow
def test_missing_values_in_training_data_are_left_out():
    x, y = walks(80, length=4)
    rng = np.random.default_rng(5)
    gaps, holes = (rng.random(y.shape) < 0.2 for _ in range(2))
    marked = given().fit(np.where(holes, np.nan, x), np.where(gaps, np.nan, y))
    data = kbp.pool(kbp.chain_graph(4), y, x, mask=~gaps, observation_mask=~holes)
    model = kbp.fit(data, **GIVEN)
    np.testing.assert_allclose(marked.model_.operators.project, model.operators.project, atol=1e-12)
    known = marked.predict(x)
    missing = np.where(gaps, np.nan, y)
    expected = 1 - np.sum((known - y)[~gaps] ** 2) / np.sum((y[~gaps] - y[~gaps].mean()) ** 2)
    assert marked.score(x, missing) == pytest.approx(expected)


def images():
    rng = np.random.default_rng(0)
    y = np.sin(np.mgrid[:5, :6].sum(0) / 3 + rng.uniform(0, 6, (30, 1, 1)))
    return np.stack([y + 0.5 * rng.normal(size=y.shape), -y + 0.5 * rng.normal(size=y.shape)], axis=-1), y


@pytest.mark.slow
def test_images_and_several_numbers_a_pixel():
    x, y = images()
    model = given(kernel=kbp.RBF(0.5), ridge=1e-2).fit(x[:20], y[:20])
    assert model.predict(x[20:]).shape == (10, 5, 6)  # a warning, had the messages not converged, is an error
    assert model.score(x[20:], y[20:]) > 0.7
    x[20, 2, 3, 0] = np.nan  # one of two numbers
    assert np.isfinite(model.predict(x[20:])).all()


def test_messages_that_have_not_converged_are_reported():
    x, y = images()
    model = given(kernel=kbp.RBF(0.5), ridge=1e-2, num_iters=2).fit(x[:20], y[:20])
    with pytest.warns(kbp.ConvergenceWarning, match="of 10 of 10 samples have not converged in 2 iterations.* More"):
        model.predict(x[20:])


def test_one_node_is_a_regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=100)
    model = given(kernel=kbp.RBF(0.3), obs_kernel=kbp.RBF(0.4)).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (100,) and model.score(x, y) > 0.7


def test_a_given_graph(fitted):
    x, y = walks(60)
    order = np.random.default_rng(0).permutation(10)
    place = np.argsort(order)
    graph = kbp.Graph.from_edges([(place[i], place[i + 1]) for i in range(9)], 10)
    shuffled = given().fit(x[:, order], y[:, order], graph)
    np.testing.assert_allclose(shuffled.predict(x[:, order]), fitted.predict(x)[:, order], atol=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kbpjax.RankWarning")
def test_grid_search_pipeline_clone_and_pickle():
    x, y = walks(24, 6)
    grid = {"kernel": [kbp.RBF(0.8), kbp.RBF(1.6)], "ridge": [1e-2]}
    # All bases have the largest rank, so that every fit and every fold has the same shapes.
    search = GridSearchCV(given(max_rank=6), grid, cv=2).fit(x, y, graph=kbp.chain_graph(6))
    best = search.best_estimator_
    assert best.kernel in grid["kernel"] and search.best_score_ > 0.5
    copied, original = clone(best).get_params(), best.get_params()
    assert copied.keys() == original.keys()
    assert float(copied["kernel"].bandwidth) == float(original["kernel"].bandwidth)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(best)).predict(x), best.predict(x))
    pipeline = make_pipeline(FunctionTransformer(lambda x: 2 * x), given(max_rank=6)).fit(x, y)
    assert pipeline.predict(x).shape == y.shape


def test_sample_weights_of_a_score(fitted):
    x, y = walks(4, seed=5)
    repeated = [0, 0, 0, 1, 2, 3]
    weighted = fitted.score(x, y, sample_weight=[3, 1, 1, 1])
    assert weighted == pytest.approx(fitted.score(x[repeated], y[repeated]), abs=1e-6)


INAPPLICABLE = {
    "check_supervised_y_2d": "y [sample, 1] has one node: its observations are X [sample, 1, dim], not [sample, dim]",
    "check_regressor_multioutput": "every value of y has an observation: X [sample, node] or [sample, node, dim]",
}
"""{check of scikit-learn: why it cannot pass}."""


MANY_SCALES = {"kernel": kbp.RBF(1.0) + kbp.RBF(50.0), "obs_kernel": kbp.RBF(1.0)}  # for targets of any range


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::kbpjax.RankWarning")
@parametrize_with_checks([given(**MANY_SCALES)], expected_failed_checks=lambda _: INAPPLICABLE)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


WRONG = {
    "shapes": (lambda x, y: given().fit(x[:, :4], y), "^X, y: must have the same samples and nodes"),
    "no y": (lambda x, y: given().fit(x, None), "requires y to be passed"),
    "nan": (lambda x, y: given().fit(x, np.full_like(y, np.nan)), "samples"),
    "infinity": (lambda x, y: given().fit(x, np.full_like(y, np.inf)), "Input y contains infinity"),
    "infinity in X": (lambda x, y: given().fit(np.full_like(x, np.inf), y), "Input X contains infinity"),
    "ridge": (lambda x, y: given(ridge=-1).fit(x, y), "ridge.*: must be"),
    "rank": (lambda x, y: given(max_rank=0).fit(x, y), "^max_rank: must be"),
    "effort": (lambda x, y: given(effort="some").fit(x, y), "^effort: must be"),
    "iterations": (lambda x, y: given(num_iters=0).fit(x, y), "^num_iters: must be"),
    "an object": (lambda x, y: given().fit(x, object()), "^y: must be known real numbers; got an object"),
    "an object to score": (lambda x, y: given().fit(x, y).score(x, object()), "^y: must be known real numbers; got an"),
    "no weights": (lambda x, y: given().fit(x, y).score(x, y, np.zeros(len(y))), "^y: must have a value that is known"),
    "graph": (lambda x, y: given().fit(x, y, kbp.chain_graph(3)), "^graph: must have one node per value of a sample"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused(name):
    call, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        call(*walks(5, 6))


def test_wrong_questions_are_refused(fitted):
    with pytest.raises(NotFittedError):
        GraphRegressor().predict(np.zeros((1, 10)))
    with pytest.raises(ValueError, match="X has 4 features, but GraphRegressor is expecting 10 features"):
        fitted.predict(np.zeros((1, 4)))
    with pytest.raises(ValueError, match=r"^X: must have samples of shape \(10,\); got \(10, 2\)"):
        fitted.predict(np.zeros((1, 10, 2)))
    with pytest.raises(ValueError, match="^coverage: must be"):
        fitted.predict_interval(np.zeros((1, 10)), 1.0)


@pytest.mark.slow
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


@pytest.mark.slow
def test_whole_numbers_are_answered_like_floats():
    x, y = walks(40)
    whole, floats = (given().fit(x, kind(np.round(y))) for kind in (np.int32, np.float64))
    np.testing.assert_allclose(whole.predict(x[:5]), floats.predict(x[:5]), atol=1e-6)
    low, high = whole.predict_interval(x[:5])
    assert np.mean(high - low) > 0.5


def test_the_posterior_of_samples_has_the_means_of_predictions():
    rng = np.random.default_rng(0)
    y = np.cumsum(rng.normal(size=(30, 5)), axis=1)
    x = y + rng.normal(size=y.shape)
    given = {"kernel": kbp.RBF(0.8), "obs_kernel": kbp.RBF(1.0), "ridge": 1e-3, "obs_ridge": 1e-3}
    regressor = GraphRegressor(**given).fit(x, y)
    posterior = regressor.posterior(x[:3])
    assert posterior.batch == (3,)
    np.testing.assert_allclose(kbp.mean(posterior), regressor.predict(x[:3]), atol=1e-4)
    low, high = kbp.interval(posterior, 0.9)
    np.testing.assert_allclose(np.stack([low, high]), regressor.predict_interval(x[:3]), atol=1e-3)
