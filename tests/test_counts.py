"""Relations estimated by smoothed counts, against NumPy, counted tables and exact posteriors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines import discrete
from kbpjax.features import cholesky_basis, features
from kbpjax.features.cholesky import Hats, Neighbors, Shares
from kbpjax.learning import rules, sums

OPTIONS = {"kernel": kbp.RBF(0.4), "obs_kernel": kbp.RBF(0.4), "ridge": 0.0, "relation": "counts"}


def series(rng, count=300, length=5):
    x = [rng.normal(size=count)]
    for _ in range(length - 1):
        x.append(0.8 * x[-1] + 0.6 * rng.normal(size=count))
    x = np.stack(x, axis=1)
    return x, x + 0.5 * rng.normal(size=x.shape)


@pytest.fixture(scope="module")
def chain():
    x, y = series(np.random.default_rng(0))
    graph = kbp.chain_graph(5)
    return graph, x, y, kbp.pool(graph, x, y)


@pytest.mark.parametrize(
    "rule", [pytest.param(kbp.FullRank(), marks=pytest.mark.slow), kbp.ConstantTime(eps=1e-4, max_rank=200)]
)
def test_messages_are_means_weighted_by_the_kernel(rule):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (40, 2))
    data = kbp.pool(kbp.chain_graph(2), x)
    model = kbp.fit(data, kernel=kbp.RBF(0.3), ridge=0.25, rule=rule, relation="counts", nonnegative=kbp.Clipped())
    points, table = np.asarray(model.points[0]), np.asarray(model.operators.nonnegative[0])  # forth: to the second end
    assert (table >= 0).all() and np.allclose(table.sum(axis=1), 1, atol=1e-5)
    product = np.cos(2 * points)
    order = np.argsort(points)
    at_samples = np.interp(x[:, 0], points[order], product[order])
    everywhere = np.interp(x.ravel(), points[order], product[order]).mean()
    weights = np.exp(-((points[:, None] - x[None, :, 1]) ** 2) / (2 * 0.3**2))
    density = np.exp(-((points[:, None] - x.ravel()[None]) ** 2) / (2 * 0.3**2)).mean(axis=1)
    mean = 0.75 * (weights * at_samples).mean(axis=1) / density + 0.25 * everywhere
    total = 0.75 * weights.mean(axis=1) / density + 0.25  # of the constant 1: the ends differ from all samples
    assert np.allclose(table @ product, mean / total, atol=0.02)


def test_counts_of_states_are_the_tables_of_counts():
    rng = np.random.default_rng(2)
    x = rng.integers(0, 3, (200, 1))
    x = np.where(rng.random((200, 4)) < 0.7, x, rng.integers(0, 3, (200, 4)))
    graph = kbp.chain_graph(4)
    data = kbp.pool(graph, x)
    model = kbp.fit(data, kernel=kbp.kernels.Delta(), ridge=0.0, relation="counts")
    belief = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0], np.array([2])))
    pairs = np.zeros((3, 3))
    for a, b in zip(x[:, :-1].ravel(), x[:, 1:].ravel(), strict=True):
        pairs[a, b] += 1
    marginal = np.bincount(x.ravel(), minlength=3) / x.size
    ratio = pairs / pairs.sum() / np.outer(marginal, marginal)
    message = np.eye(3)[2]
    for number in range(3):
        message = ratio.T @ (message / marginal[2] * marginal if number == 0 else message * marginal)
    expected = message * marginal / (message * marginal).sum()
    assert np.allclose(belief.weights[3], expected, atol=2e-3)
    assert int(kbp.mode(belief)[0]) == 2


@pytest.mark.slow
def test_beliefs_of_a_gaussian_chain_are_nearly_exact(chain):
    graph, _, _, data = chain
    model = kbp.fit(data, **OPTIONS | {"kernel": kbp.RBF(0.2), "obs_kernel": kbp.RBF(0.2), "ridge": 1e-3})
    y = np.array([1.0, np.nan, 0.5, np.nan, -1.0])
    posterior = kbp.infer(model, graph, y)
    covariance = 0.8 ** np.abs(np.subtract.outer(range(5), range(5)))
    seen = ~np.isnan(y)
    gain = covariance[:, seen] @ np.linalg.inv(covariance[np.ix_(seen, seen)] + 0.25 * np.eye(3))
    assert np.allclose(kbp.mean(posterior), gain @ y[seen], atol=0.2)
    exact = np.sqrt(np.diag(covariance - gain @ covariance[seen]))
    assert np.allclose(kbp.std(posterior), exact, rtol=0.3)
    pair = kbp.edge_beliefs(posterior, [(0, 1)])
    assert np.allclose(pair.weights[0].sum(axis=1), posterior.belief.weights[0], atol=1e-5)


@pytest.mark.slow
def test_the_share_of_independence_makes_messages_flat(chain):
    graph, _, _, data = chain
    model = kbp.fit(data, **OPTIONS | {"ridge": {0: 1.0}, "obs_ridge": 1e-3})
    posterior = kbp.infer(model, graph, np.array([2.0, np.nan, np.nan, np.nan, np.nan]))
    alone = kbp.infer(model, graph)
    assert np.allclose(posterior.belief.weights[1:], alone.belief.weights[1:], atol=1e-4)


@pytest.mark.slow
def test_transforms_files_and_hyperparameters(chain, tmp_path):
    graph, _, y, data = chain
    chosen = kbp.Hyperparameters(kbp.RBF(0.4), kbp.RBF(0.4), ridge=1e-3, relation="counts", reweighting=1.5)
    model = chosen.fit(data)
    kbp.save(tmp_path / "model.npz", model)
    loaded = kbp.load(tmp_path / "model.npz")
    mean = jax.jit(lambda y: kbp.mean(kbp.infer(loaded, graph, y)))
    expected = np.stack([kbp.mean(kbp.infer(model, graph, one)) for one in y[:2]])
    assert np.allclose(jax.vmap(mean)(y[:2]), expected, atol=1e-4)
    assert float(loaded.reweighting) == 1.5


@pytest.mark.slow
def test_the_derivative_in_the_bandwidth_is_a_difference(chain):
    graph, _, y, data = chain
    rule = kbp.fix_landmarks(data, kernel=kbp.RBF(0.4), obs_kernel=kbp.RBF(0.4))

    def mean(bandwidth):
        model = kbp.fit(data, **OPTIONS | {"kernel": kbp.RBF(bandwidth), "rule": rule})
        return kbp.mean(kbp.infer(model, graph, y[0], points=np.linspace(-3, 3, 50)))[2]

    step = 1e-4
    difference = (mean(0.4 + step) - mean(0.4 - step)) / (2 * step)
    assert np.isclose(jax.grad(mean)(0.4), difference, rtol=1e-3)


@pytest.mark.slow
def test_exponents_are_appearance_probabilities_times_a_factor_at_most_1():
    rng = np.random.default_rng(3)
    graph = kbp.grid_graph(3, 3)
    x = rng.normal(size=(40, 1)) + rng.normal(size=(40, 9))
    model = kbp.fit(kbp.pool(graph, x, x), **OPTIONS | {"ridge": 1e-2})
    appearance = kbp.tree_reweighting(graph)
    for factor in (0.5, 4.0):
        other = dataclasses.replace(model, reweighting=jnp.asarray(factor))
        exponents = kbp.infer(other, graph, x[0]).solution.exponents
        assert np.allclose(exponents, np.minimum(appearance * factor, 1))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"relation": "count"}, "relation"),
        ({"sharing": "edge"}, "sharing"),
        ({"sharing": "node"}, "sharing"),
        ({"nonnegative": kbp.ConstrainedFit()}, "nonnegative"),
        ({"ridge": 2.0}, "ridge"),
        ({"rule": kbp.LinearTime(features=kbp.RandomFourier(10))}, "rule"),
    ],
)
def test_options_that_do_not_go_with_counts_are_refused(chain, options, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        kbp.fit(chain[3], **OPTIONS | options)


def smoothing(x, samples, bandwidth):
    """Kernel weights of samples in points [point, sample], which sum to 1."""
    squared = np.sum((x[:, None] - samples[None]) ** 2, axis=tuple(range(2, x.ndim + 1)))
    near = np.exp(-squared / (2 * bandwidth**2))
    return near / near.sum(axis=1, keepdims=True)


PAIR = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
FINE = kbp.ConstantTime(eps=1e-5, max_rank=150)


@pytest.mark.parametrize(
    "rule",
    [
        kbp.FullRank(),
        *(pytest.param(rule, marks=pytest.mark.slow) for rule in (FINE, kbp.LinearTime(eps=1e-5, max_rank=150))),
    ],
)
def test_updates_between_types_are_those_of_nadaraya_and_watson(rule):
    """Where all samples are ends of pairs, the density is that of the ends."""
    x = series(np.random.default_rng(4), 150)[0][:, :2]
    model = kbp.fit(kbp.pool(PAIR, x), kernel=kbp.RBF(0.3), relation="counts", ridge=0.2, rule=rule)
    at, product = np.linspace(-1.5, 1.5, 11), lambda s: np.exp(-((s - 0.4) ** 2))
    expected = 0.8 * smoothing(at, x[:, 1], 0.3) @ product(x[:, 0]) + 0.2 * product(x[:, 0]).mean()
    project = model.operators.project[0, : model.ranks[1][0], : model.ranks[0][1]]
    found = features(model.bases[1], jnp.asarray(at)) @ project @ product(np.asarray(model.points[0]))
    assert np.allclose(found, expected, atol=1e-3 if isinstance(rule, kbp.ConstantTime) else 1e-6)
    table = np.asarray(features(model.bases[1], model.points[1]) @ project)
    assert table.min() > -1e-5 and np.allclose(table.sum(axis=1), 1, atol=1e-6)


def test_products_of_vectors_are_interpolated_by_the_shares_of_landmarks():
    rng = np.random.default_rng(5)
    first = rng.normal(size=(120, 2))
    x = np.stack([first, 0.8 * first + 0.6 * rng.normal(size=(120, 2))], axis=1)
    model = kbp.fit(kbp.pool(PAIR, x), kernel=kbp.RBF(0.8), relation="counts", ridge=0.1, rule=FINE)
    landmarks = np.asarray(model.points[0])
    values = np.exp(-np.sum(landmarks**2, axis=1))
    shares = smoothing(x[:, 0], landmarks, 0.8)
    expected = 0.9 * smoothing(x[:7, 1], x[:, 1], 0.8) @ (shares @ values) + 0.1 * (shares @ values).mean()
    project = model.operators.project[0, : model.ranks[1][0], : model.ranks[0][1]]
    assert np.allclose(features(model.bases[1], jnp.asarray(x[:7, 1])) @ project @ values, expected, atol=1e-4)


def test_observations_are_smoothed_in_the_same_way():
    x, y = (both[:, 0] for both in series(np.random.default_rng(6), 200))
    alone = kbp.Graph.from_edges(np.zeros((0, 2), int), 1)
    options = OPTIONS | {"kernel": kbp.RBF(0.2), "obs_ridge": 0.3, "rule": FINE}
    model = kbp.fit(kbp.pool(alone, x[:, None], y[:, None]), **options)
    at, similar = np.linspace(-1, 1, 9), np.exp(-((y - 0.3) ** 2) / (2 * 0.4**2))
    expected = 0.7 * smoothing(at, x, 0.2) @ similar + 0.3 * similar.mean()
    prior = kbp.infer(model, alone, points=at).belief.weights
    for kind in (kbp.Expectation(), kbp.DensityRatio()):
        evidence = kbp.observe(model, alone, np.array([0.3]), evidence_model=kind)
        ratio = (kbp.infer(model, alone, evidence=evidence, points=at).belief.weights / prior)[0]
        assert np.allclose(ratio / ratio.sum(), expected / expected.sum(), atol=1e-4)


@pytest.mark.slow  # models of several types
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_labels_have_the_tables_of_the_discrete_baseline(share):
    rng = np.random.default_rng(7)
    x = rng.integers(3, size=(90, 3))
    for t in (1, 2):
        x[:, t] = np.where(rng.random(90) < 0.6, x[:, t - 1], x[:, t])
    graph = kbp.chain_graph(3, edge_type=[0, 1], node_type=[0, 1, 2])
    data = kbp.pool(graph, x)
    margins = [np.bincount(x[:, v], minlength=3) / 90 for v in range(3)]
    ratios = [np.histogram2d(x[:, t], x[:, t + 1], 3)[0] / 90 / np.outer(margins[t], margins[t + 1]) for t in (0, 1)]
    tables = {t: (1 - share) * ratio + share for t, ratio in enumerate(ratios)}
    states = dict.fromkeys(range(3), np.arange(3))
    mixed = discrete.from_potentials(states, dict(enumerate(margins)), tables, ends={0: (0, 1), 1: (1, 2)})
    models = [kbp.fit(data, kernel=kbp.Delta(), relation="counts", ridge=share), mixed]
    models += [] if share else [discrete.fit(data, pseudo_count=0)]
    middle = []
    for one in models:
        evidence = kbp.clamp(one, graph, [0], [2])
        found = kbp.beliefs(one, graph, evidence, kbp.run_tree(one, graph, evidence), states)
        middle.append(np.concatenate([found[1].weights, found[2].weights]))
    assert all(np.allclose(middle[0], other, atol=1e-4) for other in middle[1:])


@pytest.mark.slow
def test_clamped_nodes_have_their_value_and_modes_are_refined(chain):
    graph, _, _, data = chain
    model = kbp.fit(data, **OPTIONS | {"kernel": kbp.RBF(0.3), "ridge": 1e-2})
    evidence = kbp.clamp(model, graph, [1], [0.7])
    posterior = kbp.infer(model, graph, evidence=evidence, points=np.linspace(-2, 2, 21))
    modes, best = kbp.refine_mode(posterior), kbp.mode(posterior)
    assert modes[1] == 0.7 and abs(best[1] - 0.7) < 0.11
    height = lambda x: kbp.log_belief(posterior, jnp.asarray(x)[:, None])[jnp.array([0, 2, 3, 4]), 0]
    assert (height(modes) >= height(best) - 1e-9).all()
    assert kbp.std(posterior)[1] < 1e-3 < kbp.std(posterior)[2] and 0 < kbp.mean(posterior)[2] < 0.7
    assert (features(model.bases[0], jnp.array([40.0, -60.0])) == 0).all()  # far from all samples


def test_interpolation_is_that_of_numpy_and_shares_sum_to_1():
    points, values, at = np.array([-1.0, 0.5, 0.7, 3.0]), np.array([2.0, 5.0, -1.0, 0.5]), np.linspace(-2, 4, 61)
    hats = Hats.at(kbp.RBF(1.0), jnp.asarray(points))(jnp.asarray(at))
    assert np.allclose(hats @ values, np.interp(at, points, values)) and (hats >= 0).all()
    assert np.allclose(Hats.at(kbp.RBF(1.0), jnp.array([0.3]))(jnp.array([-5.0, 7.0])), 1)
    shares = Shares.of(cholesky_basis(kbp.RBF(1.0), jnp.array([0.0, 1.0, 9.0]), jnp.array([True, True, False])))
    assert np.allclose(shares(jnp.array([0.5, 500.0])), [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])


def test_weights_of_neighbors_interpolate_continuously():
    rng = np.random.default_rng(0)
    points = jnp.asarray(rng.normal(size=(20, 2)))
    neighbors = Neighbors.at(kbp.RBF(1.0), points)
    assert np.allclose(neighbors(points), np.eye(20), atol=1e-5)
    path = jnp.asarray(np.linspace(-1, 1, 4001)[:, None] * np.array([1.0, 0.5]))
    weights = np.asarray(neighbors(path))
    assert (weights >= 0).all() and np.allclose(weights.sum(axis=1), 1) and ((weights > 1e-6).sum(axis=1) <= 4).all()
    assert np.abs(np.diff(weights, axis=0)).max() < 0.02
    scaled = Neighbors.at(kbp.kernels.Scaled(kbp.RBF(1.0), 1e6), points)(path)
    assert np.allclose(scaled, weights, atol=1e-4)
    # Of three points all have weights but the farthest; of one, that one.
    assert np.allclose(Neighbors.at(kbp.RBF(1.0), points[:3])(path[:5]).sum(axis=1), 1)
    assert np.allclose(Neighbors.at(kbp.RBF(1.0), points[:1])(path[:5]), 1)


@pytest.mark.slow  # searches
@pytest.mark.parametrize(
    "options",
    [
        {"nonnegative": kbp.ConstrainedFit(50)},
        {"rule": kbp.ConstantTime(features=kbp.RandomFourier(50))},
        {"ridge": 1.5},
        {},
    ],
)
def test_fit_takes_counts_only_where_the_options_allow_them(options):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 1)) + 0.3 * rng.normal(size=(60, 16))
    z = np.sign(z) * np.abs(z) ** 0.3  # two modes, for which counts are better
    data = kbp.pool(kbp.grid_graph(4, 4), z, z + rng.normal(size=z.shape))
    assert kbp.fit(data, **options).hyperparameters.relation == ("ridge" if options else "counts")


@pytest.mark.parametrize("relation", ["counts", "ridge"])
def test_features_of_each_node_once_give_the_model_of_each_pair(relation, monkeypatch):
    """Where each edge has a type of its own: mixed node types, holes, several blocks of cases."""
    rng = np.random.default_rng(3)
    pairs, node_type = [(0, 1), (1, 2), (0, 2), (2, 3)], [0, 0, 0, 1]
    graph = kbp.Graph.from_edges(pairs, 4, node_type=node_type, edge_type=range(4))
    numbers, labels = rng.normal(size=(70, 3)), rng.integers(0, 3, (70, 1))
    masks = {0: rng.random((70, 3)) < 0.8, 1: rng.random((70, 1)) < 0.9}
    data = kbp.pool(graph, {0: numbers, 1: labels}, mask=masks)
    options = {"kernel": {0: kbp.RBF(0.4), 1: kbp.kernels.Delta()}, "ridge": 0.1, "relation": relation}
    fit = lambda: kbp.fit(data, rule=kbp.ConstantTime(eps=1e-2), **options)
    assert sums._own_types(rules.build_bases(data, options["kernel"], None, kbp.ConstantTime())[0], data)
    monkeypatch.setattr(sums, "CELLS", 4 * 60 * 30)
    once = fit()
    monkeypatch.setattr(sums, "_own_types", lambda bases, data: False)
    each = fit()
    np.testing.assert_allclose(once.operators.project, each.operators.project, atol=2e-4)
    assert np.abs(each.operators.project).max() > 0.1
