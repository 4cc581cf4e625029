"""Relations estimated by smoothed counts, against NumPy, counted tables and exact posteriors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp

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


@pytest.mark.parametrize("rule", [kbp.FullRank(), kbp.ConstantTime(eps=1e-4, max_rank=200)])
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


def test_the_share_of_independence_makes_messages_flat(chain):
    graph, _, _, data = chain
    model = kbp.fit(data, **OPTIONS | {"ridge": {0: 1.0}, "obs_ridge": 1e-3})
    posterior = kbp.infer(model, graph, np.array([2.0, np.nan, np.nan, np.nan, np.nan]))
    alone = kbp.infer(model, graph)
    assert np.allclose(posterior.belief.weights[1:], alone.belief.weights[1:], atol=1e-4)


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
