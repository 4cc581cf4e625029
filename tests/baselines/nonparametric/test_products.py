"""Products of mixtures against brute force in NumPy over all labels, quadrature, and closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kbpjax.baselines.nonparametric.mixtures import GaussianMixture
from kbpjax.baselines.nonparametric.products import (
    build_trees,
    exact_product,
    partition_labels,
    pick,
    prepare,
    sample_gibbs,
    sample_multiscale,
)

SAMPLES = 4000
EXACT = jax.jit(exact_product)
READY = jax.jit(lambda mixtures: prepare(mixtures, None))
PLANT = jax.jit(build_trees)
COVER = jax.jit(partition_labels, static_argnums=3)


def chains(key, mixtures, present):
    return sample_gibbs(key, mixtures, SAMPLES, num_sweeps=20, present=present)


def boxes(key, mixtures, present):
    number, components = mixtures.weights.shape
    exact_from = 2 ** (((components - 1).bit_length() - 1) * number)
    return sample_multiscale(key, mixtures, SAMPLES, capacity=exact_from // 2, present=present)


MANY_CHAINS, MANY_BOXES = jax.jit(jax.vmap(chains)), jax.jit(jax.vmap(boxes))
CHAINS, BOXES = jax.jit(chains), jax.jit(boxes)  # compiled once, for two factors of five components in single precision
BOTH = jnp.ones(2, bool)


def stacked(weights, means, bandwidth, dtype=jnp.float64):
    """One pytree of mixtures; unflattened, as vmap makes it, for `GaussianMixture` itself takes one mixture."""
    leaves = (jnp.asarray(leaf, dtype) for leaf in (weights, means, bandwidth))
    single = GaussianMixture(jnp.ones(1), jnp.ones((1, 1)), jnp.ones(1))
    return jax.tree.unflatten(jax.tree.structure(single), list(leaves))


def random_factors(factors, components, dim, seed=0):
    """Overlapping mixtures, one component of each with weight 0."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(components), factors)
    weights[:, 1] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    return weights, rng.normal(size=(factors, components, dim)), rng.uniform(0.5, 1.0, (factors, dim))


def brute_force(weights, means, bandwidth):
    """Log weights, means and variance of the product over all labels, the last factor's the fastest, and its integral.

    The integral of a product of Gaussians N(x; mu_j, S_j) by the formula for one Gaussian over all of (mu_1 ... mu_d).
    """
    factors, components, _ = means.shape
    variance = 1 / np.sum(bandwidth**-2.0, axis=0)
    log_weights, centers = [], []
    for labels in itertools.product(range(components), repeat=factors):
        chosen = means[range(factors), labels]
        center = variance * np.sum(chosen / bandwidth**2, axis=0)
        heights = -0.5 * ((center - chosen) / bandwidth) ** 2 - np.log(bandwidth) - 0.5 * np.log(2 * np.pi)
        with np.errstate(divide="ignore"):
            own = np.sum(np.log(weights[range(factors), labels]))
        log_weights.append(own + np.sum(heights) + 0.5 * np.sum(np.log(2 * np.pi * variance)))
        centers.append(center)
    log_integral = np.logaddexp.reduce(log_weights)
    return np.array(log_weights) - log_integral, np.array(centers), variance, log_integral


def brute_moments(weights, means, bandwidth):
    log_weights, centers, variance, _ = brute_force(weights, means, bandwidth)
    shares = np.exp(log_weights)
    mean = shares @ centers
    return mean, np.einsum("c,ci,cj->ij", shares, centers - mean, centers - mean) + np.diag(variance)


# --- the exact product ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("shape", [(3, 5, 2), (1, 4, 3)], ids=str)
def test_exact_equals_brute_force(shape, dtype):
    factors = random_factors(*shape)
    log_weights, means, variance, log_integral = brute_force(*factors)
    product, log_normalizer = EXACT(stacked(*factors, dtype))
    rtol = 1e-12 if dtype == jnp.float64 else 1e-5
    np.testing.assert_allclose(product.weights, np.exp(log_weights), rtol=rtol, atol=rtol * 1e-2)
    np.testing.assert_allclose(product.means[log_weights > -30], means[log_weights > -30], rtol=rtol, atol=rtol)
    np.testing.assert_allclose(product.bandwidth, np.sqrt(variance), rtol=rtol)
    np.testing.assert_allclose(log_normalizer, log_integral, rtol=rtol, atol=rtol)
    assert product.means.dtype == log_normalizer.dtype == dtype


def test_exact_is_the_product_of_densities():
    mixtures = stacked(*random_factors(3, 4, 1))
    x = jnp.linspace(-12, 12, 4001)[:, None]
    product, log_normalizer = EXACT(mixtures)
    log_densities = jax.jit(jax.vmap(lambda mixture: mixture.log_density(x)))(mixtures)
    log_product = np.sum(np.asarray(log_densities), axis=0)
    log_density = jax.jit(lambda mixture: mixture.log_density(x))(product)
    np.testing.assert_allclose(log_density + log_normalizer, log_product, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.sum(np.exp(log_product)) * 24 / 4000, np.exp(log_normalizer), rtol=1e-10)


def test_exact_without_a_factor():
    weights, means, bandwidth = random_factors(4, 3, 2)
    masked = [leaf.copy() for leaf in (weights, means, bandwidth)]
    for leaf in masked:
        leaf[[0, 2]] = np.nan
    product, log_normalizer = EXACT(stacked(*masked), jnp.array([False, True, False, True]))
    expected, log_expected = EXACT(stacked(weights[1::2], means[1::2], bandwidth[1::2]))
    positive = np.flatnonzero(product.weights)
    assert len(positive) == 4 == np.count_nonzero(expected.weights)
    first = np.arange(81).reshape(3, 3, 3, 3)[0, :, 0].reshape(-1)
    np.testing.assert_allclose(product.weights[first], expected.weights, rtol=1e-12)
    np.testing.assert_allclose(product.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(product.variance, expected.variance, rtol=1e-12)
    np.testing.assert_allclose(log_normalizer, log_expected, rtol=1e-12)


# --- moments of samples --------------------------------------------------------------------------------------------


def assert_moments(samples, mean, covariance):
    """Compare with 4 standard errors of independent samples."""
    deviations = np.asarray(samples) - mean
    standard_error = np.sqrt(np.diag(covariance) / len(samples))
    np.testing.assert_array_less(np.abs(deviations.mean(axis=0)), 4 * standard_error)
    products = np.einsum("si,sj->sij", deviations, deviations)
    np.testing.assert_array_less(
        np.abs(products.mean(axis=0) - covariance), 4 * products.std(axis=0) / np.sqrt(len(samples))
    )
    assert (4 * standard_error < 0.2 * np.sqrt(np.diag(covariance))).all()  # or the test would say nothing


@pytest.mark.parametrize(("shape", "dtype"), [((2, 5, 1), jnp.float32), ((3, 7, 2), jnp.float64)], ids=["32", "64"])
def test_samples_have_the_moments_of_the_product(shape, dtype):
    factors = random_factors(*shape)
    fewer = [leaf.copy() for leaf in factors]
    for leaf in fewer:
        leaf[1] = np.nan
    mixtures = jax.tree.map(lambda *leaves: jnp.stack(leaves), stacked(*factors, dtype), stacked(*fewer, dtype=dtype))
    present = jnp.ones((2, shape[0]), bool).at[1, 1].set(False)
    keys = jax.random.split(jax.random.key(1), 2)
    draws, bounds = MANY_BOXES(keys, mixtures, present)
    rest = [np.delete(leaf, 1, axis=0) for leaf in factors]
    for samples in (MANY_CHAINS(keys, mixtures, present), draws):
        assert samples.dtype == dtype
        for drawn, expected in zip(np.asarray(samples, np.float64), (factors, rest), strict=True):
            assert_moments(drawn, *brute_moments(*expected))
    assert (bounds <= 1e-3).all()


def test_vmap_equals_loop():
    two = [stacked(*random_factors(2, 5, 1, seed), jnp.float32) for seed in (0, 3)]
    keys = jax.random.split(jax.random.key(2), 2)
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *two)
    for single, batch in ((CHAINS, MANY_CHAINS), (BOXES, MANY_BOXES)):
        apart = [single(key, m, BOTH) for key, m in zip(keys, two, strict=True)]
        together = batch(keys, many, jnp.stack([BOTH, BOTH]))
        for got, expected in zip(jax.tree.leaves(together), map(np.stack, zip(*map(jax.tree.leaves, apart)))):
            assert np.mean(~np.isclose(got, expected, rtol=1e-4, atol=1e-5)) < 1e-3  # rounding may change a label
            assert not np.array_equal(got[0], got[1])


# --- the error of multiscale sampling ------------------------------------------------------------------------------


def labels_of(forest, found):
    """Share out the weight of each tuple of nodes among the leaves below, by their own weights: [leaf, ..., leaf]."""
    forest, found = jax.tree.map(np.asarray, (forest, found))
    number, nodes = forest.log_mass.shape
    below = np.zeros((number, nodes, nodes // 2))
    for node in range(nodes - 1, 0, -1):
        row = np.eye(nodes // 2)[node - nodes // 2][None] if node >= nodes // 2 else 0
        mass = np.exp(forest.log_mass[:, node])[:, None]
        below[:, node] = row * mass if node >= nodes // 2 else below[:, 2 * node] + below[:, 2 * node + 1]
    below /= np.maximum(below.sum(axis=2, keepdims=True), 1e-300)
    weights = np.exp(found.log_weights - np.logaddexp.reduce(found.log_weights, axis=None))
    total = np.zeros((nodes // 2,) * number)
    for tuple_, child in np.argwhere(weights > 0):
        drawn = [2 * node + (child >> factor) % 2 for factor, node in enumerate(found.nodes[tuple_])]
        outer = weights[tuple_, child]
        for factor, node in enumerate(drawn):
            outer = np.multiply.outer(outer, below[factor, node])
        total += outer
    return total


@pytest.mark.parametrize("shape", [(3, 7, 2), (2, 20, 1), (1, 6, 2)], ids=str)
def test_labels_are_within_the_bound(shape):
    factors = random_factors(*shape)
    ready = READY(stacked(*factors))
    forest = PLANT(ready)
    leaves = forest.lower.shape[1] // 2
    expected = np.exp(
        brute_force(np.exp(forest.log_mass[:, leaves:]), np.asarray(forest.lower[:, leaves:]), factors[2])[0]
    ).reshape((leaves,) * shape[0])

    def bound_and_distance(eps, capacity):
        found = COVER(forest, ready.precisions, jnp.asarray(eps), capacity)
        return float(found.bound), 0.5 * np.abs(labels_of(forest, found) - expected).sum()

    ample = (leaves // 2) ** shape[0]
    bound, distance = bound_and_distance(1e-14, ample)
    assert bound < 1e-12 and distance < 1e-12
    for eps, capacity in [(0.3, ample), (0.05, ample), (1e-14, 5)]:
        bound, distance = bound_and_distance(eps, capacity)
        assert distance <= bound + 1e-12
        assert bound <= (eps if capacity == ample else 1)
        assert shape[0] == 1 or capacity > 5 or bound > eps  # too few to reach eps, and it says so


def test_trees_hold_the_components_in_their_boxes():
    weights, means, bandwidth = random_factors(2, 13, 2)
    ready = READY(stacked(weights, means, bandwidth))
    lower, upper, log_mass = map(np.asarray, PLANT(ready))
    for factor in range(2):
        leaves = {tuple(mean.round(9)): mass for mean, mass in zip(lower[factor, 16:], np.exp(log_mass[factor, 16:]))}
        own = np.asarray(ready.means[factor])[weights[factor] > 0].round(9)
        held = np.array([mean for mean, mass in zip(lower[factor, 16:], log_mass[factor, 16:]) if mass > -1e9])
        np.testing.assert_array_equal(np.sort(held.round(9), axis=0), np.sort(own, axis=0))
        assert len(leaves) == 12
    np.testing.assert_array_equal(lower[:, 16:], upper[:, 16:])
    children = np.arange(2, 32)
    assert (lower[:, children // 2] <= lower[:, children]).all() and (
        upper[:, children // 2] >= upper[:, children]
    ).all()
    np.testing.assert_allclose(np.exp(log_mass[:, 1]), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(log_mass[:, 2:32:2]) + np.exp(log_mass[:, 3:32:2]), np.exp(log_mass[:, 1:16]))
    width = upper - lower
    for factor, node in itertools.product(range(2), range(1, 8)):  # halved where widest, so children part there
        widest = np.argmax(width[factor, node])
        assert upper[factor, 2 * node, widest] <= lower[factor, 2 * node + 1, widest]


# --- hard numbers --------------------------------------------------------------------------------------------------


def test_far_mixtures_are_finite_in_single_precision():
    means = np.array([0, 1e4])[:, None, None] + np.array([0, 1, 2, 3, 5])[None, :, None]
    factors = (np.full((2, 5), 0.2), means, np.full((2, 1), 0.1))
    mixtures = stacked(*factors, jnp.float32)
    product, log_normalizer = EXACT(mixtures)
    mean, covariance = brute_moments(*factors)
    np.testing.assert_allclose(log_normalizer, brute_force(*factors)[3], rtol=1e-5)
    np.testing.assert_allclose(product.mean, mean, rtol=1e-6)
    samples, bound = BOXES(jax.random.key(0), mixtures, BOTH)
    assert bound <= 1e-3 and samples.dtype == jnp.float32
    for values in (samples, CHAINS(jax.random.key(0), mixtures, BOTH)):
        assert_moments(np.asarray(values, np.float64), mean, covariance)


def test_no_factor_present_is_finite():
    mixtures, neither = stacked(*random_factors(2, 5, 1), jnp.float32), jnp.zeros(2, bool)
    values = [draw(jax.random.key(0), mixtures, neither) for draw in (CHAINS, BOXES)]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves([values, EXACT(mixtures, neither)]))


def test_components_without_weight_are_never_chosen():
    weights = np.array([[0.5, 0.0, 0.25, 0.0, 0.25], [1.0, 0.0, 0.0, 0.0, 0.0]])
    means = np.array([[0.0, 1, 2, np.inf, 4], [1, 2, 3, 4, np.nan]])[..., None]
    mixtures = stacked(weights, means, np.array([[1e-3], [1e3]]), jnp.float32)
    for samples in (CHAINS(jax.random.key(0), mixtures, BOTH), BOXES(jax.random.key(0), mixtures, BOTH)[0]):
        found, counts = np.unique(np.asarray(samples).round(1), return_counts=True)
        np.testing.assert_array_equal(found, [0, 2, 4])
        np.testing.assert_allclose(counts / SAMPLES, [0.5, 0.25, 0.25], atol=4 * 0.5 / np.sqrt(SAMPLES))


def test_pick_inverts_the_distribution_function():
    logits = np.full(70, -1e30, np.float32)
    logits[[3, 40, 41, 66]] = np.log([0.1, 0.2, 0.3, 0.4]) - 2e4
    uniforms = np.array([0.0, 0.05, 0.15, 0.35, 0.7, 1 - 2**-24], np.float32)
    np.testing.assert_array_equal(pick(jnp.asarray(uniforms), jnp.asarray(logits)[None]), [3, 3, 40, 41, 66, 66])


# --- errors --------------------------------------------------------------------------------------------------------


def test_errors_name_what_is_wrong():
    mixtures, key = stacked(*random_factors(2, 4, 1)), jax.random.key(0)
    for draw in (sample_gibbs, sample_multiscale):
        with pytest.raises(ValueError, match=r"^num_samples: must be an integer >= 1; got 0\."):
            draw(key, mixtures, 0)
        with pytest.raises(ValueError, match=r"^present: must be \[factor\], 2 long; got \(3,\)\."):
            draw(key, mixtures, 1, present=jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"^num_sweeps: must be an integer >= 1; got 0\."):
        sample_gibbs(key, mixtures, 1, num_sweeps=0)
    with pytest.raises(ValueError, match=r"^capacity: must be an integer >= 1; got 0\."):
        sample_multiscale(key, mixtures, 1, capacity=0)
    for eps in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match=r"^eps: must be finite and > 0"):
            sample_multiscale(key, mixtures, 1, eps=eps)
    weights, means, bandwidth = random_factors(2, 4, 1)
    rule = r"^mixtures: must be weights \[factor, component\].*Stack the leaves"
    for wrong in ((weights[0], means[0], bandwidth[0]), (weights, means, bandwidth[0]), (weights.T, means, bandwidth)):
        with pytest.raises(ValueError, match=rule):
            exact_product(stacked(*wrong))
    with pytest.raises(ValueError, match=r"^mixtures: must have at most 4194304 comb.*got 5\^10\. Sample.*gibbs"):
        EXACT(stacked(*random_factors(10, 5, 1)))
