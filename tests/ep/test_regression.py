"""Bayesian regression on features against NumPy: updates, its dual, evidence, leave-one-out."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kbpjax import ep

NOISE = 1e-2


def data(num_samples, num_features, seed=0, spread=0.1):
    """Draw random cosines of bounded norm, as feature maps have them, and a noisy function of them."""
    rng = np.random.default_rng(seed)
    angles = rng.normal(size=(num_samples, 3)) @ rng.normal(size=(3, num_features)) + rng.uniform(0, 6.28, num_features)
    phi = np.sqrt(2 / num_features) * np.cos(angles)
    y = phi @ rng.normal(size=num_features) + spread * rng.normal(size=num_samples)
    return jnp.asarray(phi), jnp.asarray(y)


@jax.jit
def in_turn(regression, phi, y):
    return jax.lax.scan(lambda state, of: (state.update(*of), None), regression, (phi, y))[0]


@jax.jit
def in_blocks(regression, phi, y):
    body = lambda state, of: (state.update_block(*of), None)
    return jax.lax.scan(body, regression, (phi.reshape(-1, 20, phi.shape[1]), y.reshape(-1, 20)))[0]


def dense(phi, y, noise, variance=1.0):
    """Return mean and covariance of the weights."""
    phi, y = np.asarray(phi), np.asarray(y)
    covariance = np.linalg.inv(phi.T @ phi / noise + np.eye(phi.shape[1]) / variance)
    return covariance @ phi.T @ y / noise, covariance


# --- learning -------------------------------------------------------------------------------------


def test_batch_updates_and_blocks_agree_in_any_order():
    phi, y = data(1000, 200)
    prior = ep.BayesianRegression.prior(200, noise=NOISE)
    order = np.random.default_rng(1).permutation(1000)
    mean, covariance = dense(phi, y, NOISE)
    for found in (
        ep.fit_regression(phi, y, NOISE),
        in_turn(prior, phi, y),
        in_blocks(prior, phi, y),
        in_turn(prior, phi[order], y[order]),
    ):
        np.testing.assert_allclose(found.mean, mean, atol=1e-9)
        np.testing.assert_allclose(found.covariance, covariance, atol=1e-9)
        np.testing.assert_array_equal(found.covariance, found.covariance.T)
        assert float(found.noise) == NOISE


def test_batch_then_updates_is_all_in_a_batch():
    phi, y = data(120, 30)
    first = ep.fit_regression(phi[:50], y[:50], NOISE, 2.0)
    found = in_turn(first, phi[50:], y[50:])
    mean, covariance = dense(phi, y, NOISE, variance=2.0)
    np.testing.assert_allclose(found.mean, mean, atol=1e-10)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-10)


def test_the_mean_is_ridge_regression_and_the_dual_gaussian_process():
    (phi, fresh), (y, _) = (np.split(of, [60]) for of in data(70, 25))
    variance = 1.7
    mean, spread = ep.fit_regression(phi, y, NOISE, variance).predict(fresh)
    ridge = np.linalg.lstsq(np.vstack([phi, np.sqrt(NOISE / variance) * np.eye(25)]), np.append(y, np.zeros(25)))[0]
    np.testing.assert_allclose(mean, fresh @ ridge, rtol=1e-8)
    across, gram = variance * fresh @ phi.T, variance * phi @ phi.T + NOISE * np.eye(60)
    np.testing.assert_allclose(mean, across @ np.linalg.solve(gram, y), rtol=1e-8)
    own = variance * (fresh**2).sum(axis=1) - (across * np.linalg.solve(gram, across.T).T).sum(axis=1)
    np.testing.assert_allclose(spread, own + NOISE, rtol=1e-8)


def test_repeats_shrink_the_variance_as_the_formula_says():
    phi, y = data(40, 25)
    regression = ep.fit_regression(phi, y, NOISE)
    point = data(1, 25, seed=5)[0]
    before = float(regression.predict(point)[1][0]) - NOISE
    for k in range(1, 6):
        regression = regression.update(point[0], jnp.asarray(0.3))
        after = float(regression.predict(point)[1][0])
        np.testing.assert_allclose(after - NOISE, before * NOISE / (NOISE + k * before), rtol=1e-10)
        assert after > NOISE


def test_the_prior_predicts_nothing_and_its_own_variance():
    phi, _ = data(5, 10)
    mean, variance = ep.BayesianRegression.prior(10, noise=0.5, variance=3.0).predict(phi)
    np.testing.assert_array_equal(mean, np.zeros(5))
    np.testing.assert_allclose(variance, 3 * (phi**2).sum(axis=1) + 0.5, rtol=1e-12)


def test_the_variance_does_not_depend_on_what_was_observed():
    phi, y = data(30, 12)
    one, other = (ep.fit_regression(phi, values, NOISE).predict(phi)[1] for values in (y, 100 * y))
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_an_observation_of_zero_features_changes_nothing():
    phi, y = data(30, 12)
    before = ep.fit_regression(phi, y, NOISE)
    after = before.update(jnp.zeros(12), jnp.asarray(7.0))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), before, after))


@pytest.mark.slow
def test_single_precision_bears_3000_updates():
    noise = 1e-4
    (phi, fresh), (y, _) = (np.split(of, [3000]) for of in data(3200, 500, seed=2, spread=noise**0.5))
    found = []
    for kind in (np.float32, np.float64):
        state = ep.BayesianRegression(jnp.zeros(500, kind), jnp.eye(500, dtype=kind), jnp.asarray(noise, kind))
        mean, variance = in_turn(state, phi.astype(kind), y.astype(kind)).predict(fresh.astype(kind))
        assert mean.dtype == kind
        found.append((mean, np.log(variance)))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=2e-3)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=0.02)


def test_outputs_are_mapped():
    phi, y = data(30, 12)
    both = jnp.stack([y, -2 * y])
    mapped = jax.vmap(lambda of: ep.fit_regression(phi, of, NOISE).update(phi[0], of[0]))(both)
    alone = ep.fit_regression(phi, both[1], NOISE).update(phi[0], both[1, 0])
    np.testing.assert_allclose(mapped.mean[1], alone.mean, rtol=1e-12)
    np.testing.assert_allclose(mapped.covariance[0], alone.covariance, atol=1e-14)


def smooth_data():
    """Draw 500 features of 300 samples that nearly all say the same, in single precision."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=300)
    phi = np.sqrt(2 / 500) * np.cos(np.outer(x, rng.normal(size=500)) + rng.uniform(0, 6.28, 500))
    return jnp.asarray(phi, jnp.float32), jnp.asarray(np.sin(x) + 0.01 * rng.normal(size=300), jnp.float32)


@pytest.mark.parametrize("noise", [1e-9, *(pytest.param(noise, marks=pytest.mark.slow) for noise in (1e-4, 1e-6))])
def test_single_precision_bears_little_noise(noise):
    phi, y = smooth_data()
    noise = np.float32(noise)
    found = ep.fit_regression(phi, y, noise)
    mean, variance = found.predict(phi)
    left, evidence = ep.leave_one_out_residuals(phi, y, noise), ep.log_evidence(phi, y, noise)
    assert {leaf.dtype for leaf in (mean, variance, found.covariance, left, evidence)} == {np.dtype(np.float32)}
    seen = float(max(noise, np.finfo(np.float32).eps * (phi**2).sum()))  # what counts as noise in this precision
    double = (phi.astype(float), y.astype(float), seen)
    np.testing.assert_allclose(mean, ep.fit_regression(*double).predict(double[0])[0], atol=0.01)
    np.testing.assert_allclose(left, ep.leave_one_out_residuals(*double), atol=0.02)
    np.testing.assert_allclose(evidence, ep.log_evidence(*double), rtol=0.05)
    assert float(variance.min()) >= noise and float(variance.max()) < 1


def test_as_many_features_as_samples_leave_finite_residuals():
    phi = jnp.eye(50, dtype=jnp.float32) + 1e-3
    left = ep.leave_one_out_residuals(phi, jnp.ones(50, jnp.float32), np.float32(1e-8))
    assert np.isfinite(left).all() and float(jnp.abs(left).min()) > 0.1


# --- evidence and leave-one-out --------------------------------------------------------------------


@pytest.mark.parametrize("num_samples, num_features", [(40, 12), (15, 60)])
def test_leave_one_out_equals_refitting(num_samples, num_features):
    phi, y = data(num_samples, num_features, seed=7)
    expected = []
    for j in range(num_samples):
        rest = np.arange(num_samples) != j
        mean, _ = dense(phi[rest], y[rest], NOISE)
        expected.append(y[j] - phi[j] @ mean)
    np.testing.assert_allclose(ep.leave_one_out_residuals(phi, y, NOISE), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("num_samples, num_features", [(40, 12), (15, 60)])
def test_evidence_equals_the_dense_gaussian(num_samples, num_features):
    phi, y = data(num_samples, num_features, seed=7)
    for noise, variance in ((1e-2, 1.0), (0.5, 3.0), (1e-5, 1.0)):
        covariance = variance * phi @ phi.T + noise * np.eye(num_samples)
        expected = stats.multivariate_normal(np.zeros(num_samples), covariance).logpdf(y)
        np.testing.assert_allclose(ep.log_evidence(phi, y, noise, variance), expected, rtol=1e-7)


def test_evidence_has_the_right_gradient():
    phi, y = data(40, 12)
    loss = lambda log_noise: ep.log_evidence(phi, y, jnp.exp(log_noise))
    h = 1e-5
    np.testing.assert_allclose(jax.grad(loss)(-4.0), (loss(-4.0 + h) - loss(-4.0 - h)) / (2 * h), rtol=1e-6)
    assert float(loss(-4.6)) > float(loss(2.0)) and float(loss(-4.6)) > float(loss(-14.0))  # the noise that it has


# --- refusals -------------------------------------------------------------------------------------

PHI, Y = data(4, 3)


@pytest.mark.parametrize(
    "call, message",
    [
        (partial(ep.BayesianRegression.prior, 0, noise=1.0), "num_features: must be an integer >= 1; got 0"),
        (partial(ep.BayesianRegression.prior, 3, noise=0.0), "noise: must be finite and > 0"),
        (partial(ep.BayesianRegression.prior, 3, noise=1.0, variance=-1.0), "variance: must be finite and > 0"),
        (partial(ep.BayesianRegression.prior(3, noise=1.0).update, jnp.ones(2), Y[0]), r"phi: must have shape \(3,\)"),
        (
            partial(ep.BayesianRegression.prior(3, noise=1.0).predict, jnp.ones((5, 2))),
            r"phi: must have shape \(5, 3\)",
        ),
        (partial(ep.fit_regression, PHI, Y, 0.0), "noise: must be finite and > 0; got 0.0"),
        (partial(ep.fit_regression, PHI, Y, float("nan")), "noise: must be finite and > 0; got nan"),
        (partial(ep.fit_regression, PHI, Y, 1.0, -1.0), "variance: must be finite and > 0; got -1.0"),
        (partial(ep.leave_one_out_residuals, PHI, Y, 0.0), "ridge: must be finite and > 0; got 0.0"),
        (partial(ep.log_evidence, PHI, Y, -1.0), "noise: must be finite and > 0; got -1.0"),
        (partial(ep.log_evidence, PHI, Y, 1.0, 0.0), "variance: must be finite and > 0; got 0.0"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match="^" + message):
        call()


def test_whole_numbers_are_noises_too():
    one, other = (ep.fit_regression(PHI, Y, noise, variance) for noise, variance in ((1, 2), (1.0, 2.0)))
    np.testing.assert_array_equal(one.mean, other.mean)


def test_shapes_that_do_not_fit_are_refused():
    for function in (ep.fit_regression, ep.leave_one_out_residuals, ep.log_evidence):
        with pytest.raises(
            ValueError, match=r"^phi, y: must be \[sample, feature\] and \[sample\]; got shapes \(4, 3\)"
        ):
            inspect.unwrap(function)(PHI, Y[:3], 1.0)
