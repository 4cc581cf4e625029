"""Front ends: regressions of variables on observations of many coordinates, learned out of fold."""

import sys
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.front_ends import KernelRidge, Trees
from kbpjax.tuning import front_ends, held_out
from kbpjax.tuning.search import Search

LENGTH = 6
GRAPH = kbp.chain_graph(LENGTH)


def samples(count, seed=0):
    """Smooth chains, and observations of 20 coordinates whose dependence on the values is not linear."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(count, LENGTH + 2))
    x = (noise[:, :-2] + noise[:, 1:-1] + noise[:, 2:]) / 3**0.5
    y = rng.normal(size=(count, LENGTH, 20))
    sign = np.where(rng.random(x.shape) < 0.5, -1.0, 1.0)
    y[..., 3] = sign * np.exp(0.5 * x + 0.2 * y[..., 3])  # of which no linear feature says x
    return x, y


@pytest.fixture(scope="module", autouse=True)
def _few_trees():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front_ends, "TREES", {**front_ends.TREES, "max_iter": 15, "min_samples_leaf": 8})
        patch.setattr(front_ends, "LANDMARKS", 64)
        yield


@pytest.fixture(scope="module")
def data():
    x, y = samples(80)
    y[0, 1], x[1, 2] = np.nan, np.nan
    return kbp.pool(GRAPH, x, y)


@pytest.fixture(scope="module")
def learned(data):
    """Training data with both kinds of front ends."""
    return {kind: front_ends.with_front_ends(data, [(0, kind)]) for kind in front_ends.KINDS}


def hyperparameters(kind=None, obs_kernel=None):
    return kbp.Hyperparameters(
        kbp.RBF(0.4),
        kbp.RBF(0.3) if obs_kernel is None else obs_kernel,
        ridge=1e-3,
        obs_ridge=1e-3,
        front_ends=() if kind is None else ((0, kind),),
    )


@pytest.fixture(scope="module")
def model(learned):
    return hyperparameters("trees").fit(learned["trees"])


@pytest.mark.parametrize("outputs", [1, 3])
def test_converted_trees_predict_what_scikit_learn_predicts(outputs):
    boosting = pytest.importorskip(
        "sklearn.ensemble", reason="scikit-learn is not installed"
    ).HistGradientBoostingRegressor
    rng = np.random.default_rng(1)
    y = np.round(rng.normal(size=(400, 5)), 1).astype(np.float32)  # with ties, which thresholds divide
    x = np.stack([y[:, k] * y[:, k + 1] + rng.normal(size=400) for k in range(outputs)], axis=1)
    models = [boosting(max_iter=7, max_leaf_nodes=6 + k, random_state=0).fit(y, x[:, k]) for k in range(outputs)]
    found = front_ends.converted(models, () if outputs == 1 else (outputs,), 5)
    others = np.concatenate([y, 3 * rng.normal(size=(100, 5)).astype(np.float32)])
    want = np.stack([one.predict(others) for one in models], axis=1)
    got = np.asarray(jax.jit(lambda trees, y: trees(y))(found, jnp.asarray(others)))
    assert got.shape == ((500,) if outputs == 1 else (500, outputs))
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)


def test_thresholds_divide_the_numbers_of_single_precision_as_those_of_double():
    rng = np.random.default_rng(0)
    a = rng.normal(size=2000).astype(np.float32)
    b = np.nextafter(a, np.float32(np.inf))
    middle = (a.astype(float) + b.astype(float)) / 2
    rounded = front_ends._rounded_down(middle, np.float32)
    assert rounded.dtype == np.float32
    assert (a <= rounded).all() and not (b <= rounded).any()
    assert (b <= middle.astype(np.float32)).any()  # rounding to the nearest would not do


def test_kernel_ridge_regression_is_that_of_numpy():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(70, 3)) * [1.0, 5.0, 0.0]
    x = np.stack([np.sin(y[:, 0]), y[:, 1]], axis=1) + 0.1 * rng.normal(size=(70, 2))
    fold, known = np.arange(70) % 3, np.arange(70) % 10 > 0
    found = front_ends.kernel_ridge(front_ends.Rows(x, y, known, fold, (2,)))
    assert found is not None
    spread = np.where(np.std(y[known], axis=0) > 0, np.std(y[known], axis=0), 1.0)
    z, offset = y / spread, x[known].mean(axis=0)
    squared = ((z[:, None] - z[None]) ** 2).sum(axis=-1)
    median = np.median(np.sqrt(squared[known][:, known][np.triu_indices(63, 1)]))
    best = (np.inf,)
    for factor in front_ends.BANDWIDTHS:
        gram = np.exp(-squared / (2 * (factor * median) ** 2))
        for ridge in front_ends.RIDGES:
            predicted = np.empty_like(x)
            for f in (0, 1, 2):
                train, test = known & (fold != f), fold == f
                predicted[test] = offset + gram[test][:, known] @ solved(gram, known, train, ridge, x - offset)
            error = ((predicted - x)[known] ** 2).sum()
            if error < best[0]:
                full = offset + gram[:, known] @ solved(gram, known, known, ridge, x - offset)
                best = error, predicted, full
    np.testing.assert_allclose(found.predicted, best[1], atol=1e-4)
    np.testing.assert_allclose(found.front_end(jnp.asarray(y)), best[2], atol=1e-4)


def solved(gram, landmarks, train, ridge, x):
    """Coefficients of the kernel functions of landmarks whose squared error and norm are smallest."""
    across, among = gram[train][:, landmarks], gram[landmarks][:, landmarks]
    penalty = train.sum() * ridge * (among + front_ends.JITTER * np.eye(len(among)))
    return np.linalg.solve(across.T @ across + penalty, across.T @ x[train])


def test_folds_are_whole_cases_or_connected_blocks():
    x = np.zeros((12, LENGTH))
    (folds,) = front_ends._folds(kbp.pool(GRAPH, x).cases)
    assert folds.shape == x.shape and (folds == folds[:, :1]).all()
    assert set(np.unique(folds[:, 0], return_counts=True)[1]) == {2, 3} and len(np.unique(folds)) == 5
    grid = kbp.grid_graph(20, 30)
    (folds,) = front_ends._folds(kbp.pool(grid, np.zeros((2, 600))).cases)
    assert (folds[0] == folds[1]).all()  # copies of a picture are in one fold
    first, second = np.asarray(grid.senders), np.asarray(grid.receivers)
    assert np.mean(folds[0, first] == folds[0, second]) > 0.8
    counts = np.bincount(folds[0])
    assert len(counts) == 5 and counts.min() > 60


@pytest.mark.parametrize("kind", front_ends.KINDS)
def test_predictions_of_training_samples_do_not_know_them(data, learned, kind):
    """The predictions of a case stay what they are if its own values are others, and those of new data do not."""
    before = learned[kind]
    samples = np.asarray(data.cases[0].samples[0])
    folds = front_ends._folds(data.cases)[0]
    others = samples.copy()
    others[folds == 2] += 10
    y = np.where(np.asarray(data.cases[0].observed[0])[..., None], data.cases[0].observations[0], np.nan)
    x = np.where(np.asarray(data.cases[0].present[0]), others, np.nan)
    after = front_ends.with_front_ends(kbp.pool(GRAPH, x, y), [(0, kind)])
    own = folds == 2
    first, second = (np.asarray(one.cases[0].observations[0]) for one in (before, after))
    assert first.shape == samples.shape and first.dtype == samples.dtype
    if kind == "trees":  # the bandwidth and ridge of the other are chosen by all folds
        np.testing.assert_array_equal(first[own], second[own])
    assert np.abs(first[~own] - second[~own]).max() > 1
    inside = np.asarray(before.front_ends[0](jnp.asarray(y[own])))
    assert np.mean((inside - samples[own]) ** 2) < np.mean((first[own] - samples[own]) ** 2)


def test_a_few_large_cases_are_held_out_in_parts():
    search, grid = Search(), kbp.grid_graph(20, 30)
    five, forty = (kbp.pool(graph, np.zeros((count, graph.num_nodes))) for graph, count in ((grid, 5), (GRAPH, 40)))
    assert front_ends.of_predictions(search, forty.cases).lowest.obs_bandwidth == front_ends.NARROWEST
    assert front_ends.of_predictions(search, forty.cases).min_cases == search.min_cases
    both = front_ends.of_predictions(search, five.cases * 2)
    assert both.min_cases == search.min_cases  # of several graphs, only one would be held out in parts
    (mask,) = held_out._held(five.cases, front_ends.of_predictions(search, five.cases), np.random.default_rng(0))
    assert mask.any(axis=1).sum() > 2 and not mask.all(axis=1).any()
    (mask,) = held_out._held(five.cases, search, np.random.default_rng(0))
    assert mask.all(axis=1).sum() == 2


def test_what_is_missing_stays_missing(data, learned):
    for one in learned.values():
        assert not one.cases[0].observed[0][0, 1] and one.cases[0].observations[0][0, 1] == 0
        assert one.cases[0].observed[0][1, 2] and one.cases[0].observations[0][1, 2] != 0  # without a value: predicted
        assert len(one.observations[0][0]) == len(one.observations[0][1]) == 80 * LENGTH - 2
        assert front_ends.with_front_ends(one, [(0, "trees")]) is one


def test_random_labels_have_no_front_end():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(60, LENGTH)), rng.normal(size=(60, LENGTH, 20))
    data = kbp.pool(GRAPH, x, y)
    assert front_ends.with_best_front_ends(data, [0]) is data
    memory = front_ends.trees(front_ends._rows(data, 0))
    assert abs(np.corrcoef(memory.predicted[:, 0], x.reshape(-1))[0, 1]) < 0.15
    inside = np.asarray(memory.front_end(jnp.asarray(y.reshape(-1, 20))))
    assert np.corrcoef(inside, x.reshape(-1))[0, 1] > 0.5  # it has memorized some


def test_without_cases_folds_are_blocks_of_rows(data):
    (x, y), ends = data.observations[0], data.edges
    pooled = kbp.TrainingData(ends, data.nodes, {0: (x, y)})
    found = front_ends.with_front_ends(pooled, [(0, "kernel ridge")])
    assert found.observations[0][1].shape == x.shape


def test_without_scikit_learn_there_are_no_trees(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert front_ends.trees(front_ends._rows(data, 0)) is None
    x, y = samples(60)
    few = kbp.pool(GRAPH, x, y[..., 2:5])
    assert isinstance(front_ends.with_best_front_ends(few, [0]).front_ends[0], KernelRidge)
    with pytest.raises(ValueError, match=r"front_ends: must be learned; got no trees of node type 0\. Install a v"):
        front_ends.with_front_ends(data, [(0, "trees")])


def test_trees_of_other_versions_are_not_used(data, monkeypatch):
    assert front_ends.converted([object()], (), 3) is None
    rows = front_ends._rows(data, 0)
    convert = front_ends.converted
    wrong = lambda *given: convert(*given).__class__(**{**vars(convert(*given)), "offset": jnp.array(1.0)})
    monkeypatch.setattr(front_ends, "converted", wrong)
    assert front_ends.trees(rows) is None


def test_beliefs_with_a_front_end_are_better(data, model):
    x, y = samples(40, seed=1)
    wide = kbp.RBF(0.5 * kbp.median_bandwidth(data.observations[0][1]))
    errors = []
    for one in (model, hyperparameters(obs_kernel=wide).fit(data)):
        posterior = jax.jit(jax.vmap(lambda y, one=one: kbp.infer(one, GRAPH, y)))(jnp.asarray(y))
        errors.append(np.sqrt(np.mean((np.asarray(kbp.mean(posterior)) - x) ** 2)))
    direct = np.asarray(model.observations[0].basis.front_end(jnp.asarray(y.reshape(-1, 20))))
    assert errors[0] < 0.6 * errors[1]
    assert errors[0] < np.sqrt(np.mean((direct.reshape(x.shape) - x) ** 2))  # neighbors help


@pytest.mark.slow
def test_a_front_end_works_in_jit_and_vmap_and_with_missing_observations(model):
    _, y = samples(3, seed=2)
    y[1, 2], y[2] = np.nan, np.nan
    y = jnp.asarray(y)
    alone = [kbp.infer(model, GRAPH, one) for one in y]
    together = jax.jit(jax.vmap(lambda y: kbp.infer(model, GRAPH, y)))(y)
    for case, one in enumerate(alone):
        np.testing.assert_allclose(one.belief.weights, together.belief.weights[case], atol=1e-4)
    assert not alone[1].evidence.observed[0, 2] and alone[1].evidence.observed[0, [0, 1, 3, 4, 5]].all()
    with pytest.raises(ValueError, match=r"y must have shape \(6, 20\)|must have shape \(6, 20\)"):
        kbp.observe(model, GRAPH, y[0, :, 0])


def test_the_evidence_is_that_of_the_prediction(model):
    _, y = samples(1, seed=4)
    y = jnp.asarray(y[0])
    own = model.observations[0]
    plain = eqx.tree_at(lambda m: m.observations, model, {0: replace(own, basis=own.basis.base)})
    predicted = own.basis.front_end(y)
    np.testing.assert_array_equal(kbp.observe(plain, GRAPH, predicted).local, kbp.observe(model, GRAPH, y).local)


@pytest.mark.parametrize("kind", front_ends.KINDS)
def test_models_with_front_ends_are_saved(learned, kind, tmp_path):
    model = hyperparameters(kind).fit(learned[kind])
    _, y = samples(1, seed=5)
    kbp.save(tmp_path / "model.kbp", (model, hyperparameters(kind)))
    loaded, numbers = kbp.load(tmp_path / "model.kbp")
    assert numbers.front_ends == ((0, kind),)
    first, second = (kbp.infer(one, GRAPH, jnp.asarray(y[0])) for one in (model, loaded))
    np.testing.assert_array_equal(first.belief.weights, second.belief.weights)
    assert ("regression trees" if kind == "trees" else "kernel ridge regression with") in repr(loaded)


def test_vectors_have_one_regression_for_each_coordinate():
    x, y = samples(60)
    both = np.stack([x, y[..., 11]], axis=-1)
    found = front_ends.with_best_front_ends(kbp.pool(GRAPH, both, y), [0])
    assert found.observations[0][1].shape == (360, 2)
    assert isinstance(found.front_ends[0], Trees) and set(found.front_ends[0].coordinate.tolist()) == {0, 1}


def test_front_ends_are_refused_where_nothing_can_be_learned(data):
    with pytest.raises(ValueError, match=r"must be of the kinds \['kernel ridge', 'trees'\]; got \['tree'\]"):
        kbp.Hyperparameters(kbp.RBF(1.0), front_ends=((0, "tree"),))
    with pytest.raises(ValueError, match="must be of observations of numbers with two folds; got node type 3"):
        front_ends.with_front_ends(data, [(3, "trees")])
    single = kbp.pool(kbp.Graph.from_edges(np.zeros((0, 2), int), 1), np.zeros((3, 1)), np.zeros((3, 1, 20)))
    assert front_ends._rows(single, 0) is None
    with pytest.raises(ValueError, match="front_ends: must be of known data; got tracers. Learn front ends outside"):
        jax.eval_shape(hyperparameters("trees").fit, data)


@pytest.mark.slow  # two searches
def test_fit_chooses_a_front_end_where_beliefs_are_better(data):
    model = kbp.fit(data)
    chosen = model.hyperparameters
    assert chosen.front_ends and isinstance(chosen.obs_kernel[0], kbp.RBF)
    x, y = samples(40, seed=1)
    posterior = jax.jit(jax.vmap(lambda y: kbp.infer(model, GRAPH, y)))(jnp.asarray(y))
    assert np.sqrt(np.mean((np.asarray(kbp.mean(posterior)) - x) ** 2)) < 0.5
    again = chosen.fit(data)
    np.testing.assert_allclose(again.observations[0].ratio, model.observations[0].ratio, rtol=1e-4, atol=1e-5)
