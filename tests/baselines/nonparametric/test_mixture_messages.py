"""Nonparametric belief propagation against exact Gaussians and a fine grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines import nonparametric, pairwise
from kbpjax.baselines.nonparametric import mixture_messages
from kbpjax.baselines.nonparametric.mixtures import GaussianMixture, log_normal, rule_of_thumb

COUPLING = 1.5
GRAPH = kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3), (3, 4)], 5)
SEEN = np.array([1.0, -0.5, 0.3, 2.0, -1.5])


class Spring(pairwise.EdgePotential):
    """psi_st = exp(-COUPLING (x_s - x_t)^2 / 2)."""

    stiffness: jax.Array

    def log_table(self, receiver, sender):
        return log_normal(receiver, sender, self.stiffness[None] ** -0.5)

    def propose(self, key, sender):
        noise = jax.random.normal(key, sender.shape, sender.dtype)
        return sender + noise * self.stiffness**-0.5, jnp.zeros(len(sender), sender.dtype)


def springs(dtype=np.float64):
    """Return the model with psi_s = N(0, 1), psi_st a spring."""
    node = GaussianMixture(*(jnp.asarray(a, dtype) for a in ([[1.0]], [[[0.0]]], [[1.0]])))
    return pairwise.PairwiseMRF(node, Spring(jnp.array([COUPLING], dtype)))


def seen(model, graph=GRAPH, noise=0.7):
    y = jnp.asarray(SEEN, model.sizes[2])
    return kbp.likelihood(model, graph, lambda x: jnp.exp(-0.5 * ((y[:, None] - jnp.atleast_2d(x)) / noise) ** 2))


def exact_posterior(noise=0.7):
    precision = np.eye(5) * (1 + noise**-2)
    for a, b in zip(np.asarray(GRAPH.senders)[:4], np.asarray(GRAPH.receivers)[:4], strict=True):
        precision[[a, b], [a, b]] += COUPLING
        precision[[a, b], [b, a]] -= COUPLING
    covariance = np.linalg.inv(precision)
    return covariance @ (SEEN / noise**2), np.sqrt(np.diag(covariance))


POINTS = np.linspace(-4, 4, 81)


@pytest.mark.parametrize(
    "sampler",
    [nonparametric.GibbsSampler(10), nonparametric.MultiscaleSampler(capacity=64), nonparametric.ExactSampler()],
    ids=["gibbs", "multiscale", "exact"],
)
@pytest.mark.slow
def test_means_and_deviations_on_a_gaussian_tree(sampler):
    """Over 8 keys; the rule of thumb widens every message, which pulls means and widens beliefs by a few per cent."""
    model = springs()
    evidence = seen(model)
    count = 12 if isinstance(sampler, nonparametric.ExactSampler) else 50

    @jax.jit
    @jax.vmap
    def estimate(key):
        solution = nonparametric.run(
            model, GRAPH, evidence, key=key, num_components=count, num_iters=5, sampler=sampler
        )
        belief = nonparametric.beliefs(model, GRAPH, evidence, solution, POINTS)
        return kbp.mean(belief), jnp.sqrt(kbp.variance(belief)), solution.bounds, solution.effective

    means, deviations, bounds, effective = map(np.asarray, estimate(jax.random.split(jax.random.key(0), 8)))
    expected, spread = exact_posterior()
    error = means.std(axis=0, ddof=1) / np.sqrt(8)
    assert np.all(np.abs(means.mean(axis=0) - expected) < 4 * error + 0.06 * spread)
    np.testing.assert_allclose(deviations.mean(axis=0), spread, rtol=0.15)
    assert means.shape == (8, 5) and effective.shape == (8, 5) and 0.2 < effective.min() <= effective.max() <= 1
    assert np.isnan(bounds).all() if isinstance(sampler, nonparametric.GibbsSampler) else (bounds[:, 0] < 1e-6).all()


@pytest.mark.slow
def test_learned_potentials_of_both_forms_agree_with_a_grid():
    """A skew chain; averages over 6 keys."""
    rng = np.random.default_rng(0)
    x = np.zeros((400, 3))
    x[:, 0] = rng.gamma(3.0, 0.6, 400) - 1.8
    for i in (1, 2):
        x[:, i] = 0.9 * x[:, i - 1] + 0.5 * rng.standard_normal(400)
    graph, points = kbp.chain_graph(3), np.linspace(-4, 4, 81)
    at = jnp.tile(jnp.asarray(points)[None, :, None], (3, 1, 1))
    y, keys = jnp.array([0.6, 0.3, 0.4]), jax.random.split(jax.random.key(1), 6)
    for potentials in (pairwise.Ratios(), pairwise.Conditionals()):
        model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), potentials=potentials, num_centers=60)
        evidence = kbp.likelihood(model, graph, lambda x: jnp.exp(-0.5 * (y[:, None] - jnp.atleast_2d(x)) ** 2))

        @jax.jit
        @jax.vmap
        def estimate(key, model=model, evidence=evidence):
            options = {"num_components": 60, "num_iters": 3, "damping": 0.0, "sampler": nonparametric.GibbsSampler(20)}
            solution = nonparametric.run(model, graph, evidence, key=key, **options)
            return nonparametric.beliefs(model, graph, evidence, solution, points).weights[1]

        weights = np.asarray(estimate(keys))
        own = np.exp(pairwise.log_nodes(model, graph, evidence, at))
        tables = np.exp(pairwise.log_tables(model, graph, at, at))  # messages 0 > 1, 1 > 2, 1 > 0, 2 > 1
        expected = own[1] * (tables[0] @ own[0]) * (tables[3] @ own[2])
        expected = expected / expected.sum()
        shift = np.abs(np.cumsum(weights.mean(axis=0)) - np.cumsum(expected)).max()
        assert shift < 0.08, potentials


@pytest.mark.slow
def test_keys_batches_and_precision():
    model = springs(np.float32)
    evidence = seen(model)
    options = {"num_components": 16, "num_iters": 2, "sampler": nonparametric.GibbsSampler(2)}
    keys = jax.random.split(jax.random.key(3), 2)

    def run(key):
        return nonparametric.run(model, GRAPH, evidence, key=key, **options)

    one, again, other = run(keys[0]), run(keys[0]), run(keys[1])
    assert one.messages.means.dtype == jnp.float32
    np.testing.assert_array_equal(one.messages.means, again.messages.means)
    assert not np.allclose(one.messages.means, other.messages.means)
    both = jax.vmap(run)(keys)
    np.testing.assert_allclose(both.messages.means[1], other.messages.means, atol=1e-4)
    np.testing.assert_allclose(one.messages.weights.sum(axis=1), 1, atol=1e-5)


def test_residuals_and_damping_of_mixtures():
    """The residual is the distance in closed form, checked by quadrature; damping resamples both messages."""
    single = jax.tree.structure(GaussianMixture(jnp.ones(1), jnp.ones((1, 1)), jnp.ones(1)))
    old = jax.tree.unflatten(single, [jnp.array([[0.2, 0.8]]), jnp.array([[[-1.0], [2.0]]]), jnp.array([[0.5]])])
    new = jax.tree.unflatten(single, [jnp.array([[0.6, 0.4]]), jnp.array([[[0.0], [1.0]]]), jnp.array([[0.8]])])
    grid = np.linspace(-9, 9, 4001)
    density = lambda m: np.exp(jax.tree.map(lambda a: a[0], m).log_density(jnp.asarray(grid)[:, None]))
    p, q = density(old), density(new)
    inner = lambda f, g: np.trapezoid(f * g, grid)
    expected = np.sqrt(inner(p - q, p - q) / (inner(p, p) + inner(q, q)))
    np.testing.assert_allclose(mixture_messages._largest_distance(old, new), expected, rtol=1e-9)
    np.testing.assert_allclose(mixture_messages._largest_distance(old, old), 0, atol=1e-7)
    many = jax.tree.map(lambda a: jnp.repeat(a, 400, axis=0), (old, new))
    keys = jax.random.split(jax.random.key(0), 400)
    kept = np.asarray(mixture_messages._mix(keys, *many, jnp.array(0.25), jnp.array([0.1])).means)
    shares = [(kept == value).mean() for value in (-1, 2, 0, 1)]
    np.testing.assert_allclose(shares, [0.25 * 0.2, 0.25 * 0.8, 0.75 * 0.6, 0.75 * 0.4], atol=0.05)


def test_bandwidths_follow_the_rule_of_thumb():
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((50, 2)) * [1, 3], np.full(50, 1 / 50)
    got = rule_of_thumb(jnp.asarray(x), jnp.asarray(weights), jnp.zeros(2))
    np.testing.assert_allclose(got, (4 / (4 * 50)) ** (1 / 6) * x.std(axis=0), rtol=1e-12)
    same = rule_of_thumb(jnp.ones((5, 1)), jnp.full(5, 0.2), jnp.array([0.3]))
    np.testing.assert_allclose(same, [0.3])


def test_mixture_densities_and_samples():
    weights, means, bandwidth = [0.3, 0.7, 0.0], [[-1.0], [2.0], [9.0]], [0.5]
    mixed = GaussianMixture(*map(jnp.asarray, (weights, means, bandwidth)))
    grid = np.linspace(-5, 6, 2001)
    density = np.exp(mixed.log_density(jnp.asarray(grid)[:, None]))
    np.testing.assert_allclose(np.trapezoid(density, grid), 1, atol=1e-6)
    np.testing.assert_allclose(mixed.mean, np.trapezoid(density * grid, grid), atol=1e-6)
    np.testing.assert_allclose(mixed.variance, np.trapezoid(density * grid**2, grid) - mixed.mean**2, atol=1e-5)
    drawn = mixed.sample(jax.random.key(0), 4000)
    np.testing.assert_allclose(drawn.mean(axis=0), mixed.mean, atol=4 * float(np.sqrt(mixed.variance[0] / 4000)))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"key": 0}, r"key: must be a random key or None; got 0. Pass jax.random.key\(0\)"),
        ({"num_components": 0}, r"num_components: must be an integer >= 1; got 0"),
        ({"num_iters": 0}, r"num_iters: must be an integer >= 1"),
        ({"min_bandwidth": 0.0}, r"min_bandwidth: must be finite and > 0"),
        ({"sampler": "gibbs"}, r"sampler: must be an ExactSampler, a GibbsSampler or a MultiscaleSampler; got 'gibbs'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nonparametric.run(springs(), GRAPH, **({"key": jax.random.key(0)} | options))


def test_bad_problems_are_refused():
    model = springs()
    with pytest.raises(ValueError, match=r"num_sweeps: must be an integer >= 1"):
        nonparametric.GibbsSampler(0)
    with pytest.raises(ValueError, match=r"eps: must be finite and > 0"):
        nonparametric.MultiscaleSampler(eps=0.0)
    other = kbp.chain_graph(2)
    messages = GaussianMixture(jnp.ones((2, 1)), jnp.zeros((2, 1, 1)), jnp.ones((2, 1)))
    solution = nonparametric.NonparametricSolution(
        messages, jnp.array(False), jnp.int32(1), jnp.ones(1), jnp.zeros(1), jnp.ones(1)
    )
    with pytest.raises(ValueError, match=r"solution: must have 8 messages; got 2"):
        nonparametric.beliefs(model, GRAPH, None, solution, POINTS)
    with pytest.raises(ValueError, match=r"points: must have shape \[point, \*\(\)\]; got shape \(1, 2\)"):
        nonparametric.beliefs(model, other, None, solution, [[0.0, 1.0]])
    with pytest.raises(ValueError, match=r"evidence: must be of 2 nodes; got 5"):
        nonparametric.run(model, other, seen(model), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"graph: must have an edge; got none"):
        nonparametric.run(model, kbp.Graph.from_edges([], 2), key=jax.random.key(0))
