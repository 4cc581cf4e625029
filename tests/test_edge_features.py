"""Relations that vary with features of edges."""

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.learn import learn_model
from kbpjax.learning.relations import PAIRS, features_vary, with_cells, with_own_relations
from kbpjax.learning.rules import ConstantTime, build_bases
from kbpjax.learning.sums import edge_sums

KERNELS = {"kernel": kbp.RBF(0.4), "obs_kernel": kbp.RBF(0.2), "ridge": 1e-4}
DECAY = 0.9


def series(rng, steps, count):
    """Return a stationary autoregression at times with some steps between them [series, time]."""
    x = [rng.normal(size=count)]
    for step in steps:
        keep = DECAY**step
        x.append(keep * x[-1] + np.sqrt(1 - keep**2) * rng.normal(size=count))
    return np.stack(x, axis=1)


STEPS = np.random.default_rng(0).choice([1.0, 12.0], 9)
CHAIN = kbp.chain_graph(10, edge_features=STEPS)
X = series(np.random.default_rng(1), STEPS, 300)
DATA = kbp.pool(CHAIN, X, X)


def varying(data=DATA, **options):
    typed, cells = with_cells(data)
    return learn_model(typed, **KERNELS | options, own=cells)


def test_graphs_hold_features():
    graph = kbp.Graph.from_edges([(2, 0), (1, 2), (0, 1)], 3, edge_features=[[1, 2], [3, 4], [5, 6]])
    assert graph.edge_features.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert "2 feature(s)" in repr(graph)
    assert graph.with_edge_types([0, 1, 0]).edge_features.tolist() == graph.edge_features.tolist()
    assert graph.subgraph([2, 1]).edge_features.tolist() == [[3, 4]]
    assert kbp.chain_graph(2).edge_features is None
    again, _ = kbp.Graph.from_networkx(graph.to_networkx())
    ends = lambda one: np.sort(np.stack([one.senders, one.receivers], axis=1)[:3], axis=1).tolist()
    of = lambda one: sorted(zip(ends(one), one.edge_features.tolist(), strict=True))
    assert of(again) == of(graph)
    assert kbp.Graph.from_networkx(networkx.path_graph(3))[0].edge_features is None
    assert kbp.Graph.from_edges(np.zeros((0, 2), int), 2, edge_features=np.zeros((0, 1))).num_edges == 0


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_neighbor_graphs_join_the_nearest(dim):
    places = np.random.default_rng(dim).normal(size=(40, dim))
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    order = np.argsort(distance, axis=1)[:, 1:4]
    expected = {(min(a, b), max(a, b)) for a in range(40) for b in order[a].tolist()}
    graph = kbp.neighbor_graph(places[:, 0] if dim == 1 else places, 3)
    half = graph.num_edges // 2
    found = list(zip(graph.senders[:half].tolist(), graph.receivers[:half].tolist(), strict=True))
    assert found == sorted(expected)
    assert np.allclose(graph.edge_features[:, 0], [distance[a, b] for a, b in found], rtol=1e-5)


def test_neighbor_graphs_of_one_place_and_of_equal_places():
    assert kbp.neighbor_graph([[1.0, 2.0]]).num_edges == 0
    assert kbp.neighbor_graph(np.zeros((3, 2)), 2).num_edges == 6


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: kbp.chain_graph(3, edge_features=[1.0]), "edge_features"),
        (lambda: kbp.chain_graph(3, edge_features=[1.0, np.nan]), "edge_features"),
        (lambda: kbp.chain_graph(3, edge_features=[["a"], ["b"]]), "edge_features"),
        (lambda: jax.jit(lambda f: kbp.chain_graph(3, edge_features=f))(jnp.ones(2)), "edge_features"),
        (lambda: kbp.neighbor_graph(np.zeros((2, 2, 2))), "positions"),
        (lambda: kbp.neighbor_graph([[0.0, np.inf]]), "positions"),
        (lambda: kbp.neighbor_graph(np.zeros((0, 2))), "positions"),
        (lambda: kbp.neighbor_graph(np.zeros((2, 2)), 0), "num_neighbors"),
        (lambda: kbp.fit(kbp.pool(kbp.chain_graph(10), X, X), sharing="feature"), "sharing"),
        (lambda: kbp.fit(kbp.pool(kbp.chain_graph(10), X, X), **KERNELS, sharing="feature"), "sharing"),
        (lambda: kbp.Hyperparameters(**KERNELS, edge_features=True).fit(kbp.pool(kbp.chain_graph(10), X, X)), "data"),
        (lambda: kbp.infer(varying(), kbp.chain_graph(10, edge_features=np.ones((9, 2))), X[0]), "edge_features"),
    ],
)
def test_bad_features_are_refused(call, argument):
    with pytest.raises(ValueError, match=f"^{argument}"):
        call()


def test_graphs_with_other_numbers_of_features_are_refused():
    graphs = [CHAIN, kbp.chain_graph(10, edge_features=np.ones((9, 2)))]
    with pytest.raises(ValueError, match="^graph: must have as many features"):
        with_cells(kbp.pool(graphs, [X, X]))


def test_cells_halve_the_pairs_of_a_type():
    rng = np.random.default_rng(3)
    features = np.stack([rng.exponential(size=400), 100 * rng.normal(size=400)], axis=1)
    graph = kbp.chain_graph(401, edge_features=features)
    _, relations = with_cells(kbp.pool(graph, rng.normal(size=(10, 401))))
    (one,) = relations.cells
    assert len(one.types) == 8
    away = (features[:, None] - np.asarray(one.centers)[None]) / features.std(axis=0)
    expected = 1 + np.argmin((away**2).sum(axis=2), axis=1)
    assert one.types_of(features).tolist() == expected.tolist()
    assert np.bincount(expected)[1:].min() > 15


def test_a_feature_that_does_not_vary_has_no_cells():
    data = kbp.pool(kbp.chain_graph(10, edge_features=np.ones(9)), X, X)
    assert not features_vary(data) and features_vary(DATA)
    assert with_cells(data)[1].cells == ()
    few = kbp.pool(CHAIN, X[:3], X[:3])  # less than a hundred pairs for each cell
    assert with_cells(few)[1].cells == ()


@pytest.mark.slow
def test_answers_are_those_of_edge_types():
    """Cells are edge types, drawn to all edges by some pairs."""
    rule = kbp.fix_landmarks(DATA, kernel=KERNELS["kernel"], obs_kernel=KERNELS["obs_kernel"])
    kinds = (STEPS > 5).astype(int)
    typed = CHAIN.with_edge_types(kinds)
    y = np.where(np.random.default_rng(5).random(10) < 0.5, np.nan, X[0])
    shared, varies = learn_model(DATA, **KERNELS, rule=rule), varying(rule=rule)
    by_type = learn_model(kbp.pool(typed, X, X), **KERNELS, rule=rule)
    assert varies.edge_types == ((1, 0, 0), (2, 0, 0), (0, 0, 0))
    project = lambda model, k: np.asarray(model.operators.project)[2 * k]
    assert np.allclose(project(varies, 0), project(shared, 0), atol=1e-4)
    for cell, k in ((1, 0), (2, 1)):
        own, all_edges = project(by_type, k), project(shared, 0)
        assert np.abs(project(varies, cell) - own).max() < 0.2 * np.abs(own - all_edges).max()
    answers = [kbp.mean(kbp.infer(*pair, y)) for pair in ((varies, CHAIN), (by_type, typed), (shared, CHAIN))]
    assert np.abs(answers[0] - answers[1]).max() < 0.2 * np.abs(answers[0] - answers[2]).max()


def test_sums_of_cells_and_of_single_edges_are_drawn_to_those_above():
    """The number of pairs is a sum like the others: each level adds its number of pairs."""
    typed, cells = with_cells(DATA)
    typed, own = with_own_relations(typed, 7.0, cells)
    assert len(own.edges) == 9 and {k for k, *_ in own.ends} == {0, 1, 2}
    bases, _ = build_bases(typed, KERNELS["kernel"], KERNELS["obs_kernel"], ConstantTime())
    found = {
        k: float(one.count[row]) for kinds, one in own.drawn(edge_sums(bases, typed)) for row, k in enumerate(kinds)
    }
    short = 300.0 * np.sum(STEPS < 5)
    assert found == {0: 2700.0, 1: short + PAIRS, 2: 2700 - short + PAIRS} | {3 + i: 307.0 for i in range(9)}
    model = learn_model(typed, **KERNELS, own=own)
    kinds = np.asarray(model.graph_of(CHAIN).edge_type)[:9].tolist()
    assert kinds == list(range(3, 12)) and [model.shared_type(k) for k in kinds] == [0] * 9
    other = kbp.chain_graph(4, edge_features=[1.0, 11.0, 2.0])
    assert np.asarray(model.graph_of(other).edge_type)[:3].tolist() == [1, 2, 1]


def test_a_chain_of_other_steps_is_answered_by_their_relations(tmp_path):
    """The mean of a value between its neighbors, known for a Gaussian autoregression."""
    model = varying()
    kbp.save(tmp_path / "model.npz", model)
    model = kbp.load(tmp_path / "model.npz")
    steps = np.array([1.0, 12.0, 12.0, 1.0, 1.0])
    graph = kbp.chain_graph(6, edge_features=steps)
    times = np.concatenate([[0], np.cumsum(steps)])
    covariance = DECAY ** np.abs(times[:, None] - times[None])
    seen, hidden = [0, 2, 3, 5], [1, 4]
    value = np.array([1.0, -0.5, 0.8, 0.2])
    expected = covariance[np.ix_(hidden, seen)] @ np.linalg.solve(covariance[np.ix_(seen, seen)], value)
    posterior = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, seen, value))
    assert np.allclose(kbp.mean(posterior)[jnp.array(hidden)], expected, atol=0.12)
    with pytest.warns(kbp.RelationWarning, match="no features of edges"):
        pooled = kbp.infer(model, kbp.chain_graph(6), evidence=kbp.clamp(model, kbp.chain_graph(6), seen, value))
    assert np.abs(kbp.mean(pooled)[1] - expected[0]) > 0.2
    joint = kbp.edge_beliefs(posterior, [(0, 1), (1, 2)])  # of one type, with several cells
    assert joint.weights.shape[0] == 2


@pytest.mark.slow  # searches
def test_fit_takes_features_that_help():
    model = kbp.fit(DATA, effort="low")
    assert [len(one.types) for one in model.cells] == [2] and model.hyperparameters.edge_features
    assert "varies with features: 2 cells" in repr(model)
    given = kbp.fit(DATA, **KERNELS, sharing="feature")
    assert np.allclose(given.operators.project, varying().operators.project, atol=1e-5)
    again = model.hyperparameters.fit(DATA)
    assert np.allclose(again.operators.project, model.operators.project)
    with pytest.warns(kbp.RelationWarning, match="differ, and share one relation"):
        assert not kbp.fit(DATA, effort="low", sharing="type").cells


@pytest.mark.slow  # a search
def test_fit_compares_features():
    model = kbp.fit(DATA)
    assert model.selection.taken["edge features"] == "used"
    noise = kbp.chain_graph(10, edge_features=np.random.default_rng(0).normal(size=9))
    x = series(np.random.default_rng(1), np.ones(9), 60)
    scores = {
        one.alternative: one.score for one in kbp.fit(kbp.pool(noise, x, x)).selection if one[0] == "edge features"
    }
    assert scores["used"] > 0.97 * scores["ignored"]


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["type", "edge"])
def test_training_starts_from_cells(sharing):
    x = series(np.random.default_rng(1), STEPS, 60)
    model = varying(kbp.pool(CHAIN, x, x), relation="counts")
    trained = kbp.train(model, kbp.pool(CHAIN, x, x), steps=4, sharing=sharing, way="scaled")
    y = np.where(np.arange(10) % 2, np.nan, x[0])
    found = kbp.mean(kbp.infer(trained, CHAIN, y))
    assert np.abs(found - kbp.mean(kbp.infer(model, CHAIN, y))).max() < 0.5
