import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import kbpjax.embedding as embedding
from kbpjax.embedding import conditional_operator, covariances, mean_embedding, ridge_solve
from tests import reference

CENTRES = np.linspace(-1.5, 1.5, 4)


def given(x):
    return jnp.exp(-((x[:, None] - CENTRES[None].astype(x.dtype)) ** 2))


def target(x):
    return jnp.stack([x, x**2, jnp.cos(x)], axis=1)


def pairs(count, dtype=np.float64, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=count)
    return jnp.asarray(x.astype(dtype)), jnp.asarray((np.sin(2 * x) + 0.3 * random.normal(size=count)).astype(dtype))


@jax.jit
def operator(x, y, ridge):
    return conditional_operator(given, target, x, y, ridge)


@pytest.mark.parametrize("ridge", [1e-8, 1e-3, 1.0, 100.0])
def test_equals_the_normal_equations_and_the_dual(ridge):
    x, y = pairs(25)
    rows, values = np.asarray(given(x)), np.asarray(target(y))
    result = operator(x, y, ridge)
    assert result.shape == (4, 3)
    np.testing.assert_allclose(result, reference.conditional_operator(rows, values, ridge), rtol=1e-9, atol=1e-12)
    rtol = 1e-5 if ridge < 1e-6 else 1e-9  # the dual matrix is singular without its ridge
    np.testing.assert_allclose(result, reference.conditional_operator_dual(rows, values, ridge), rtol=rtol, atol=1e-9)


def test_without_ridge_it_is_least_squares():
    x, y = pairs(25)
    expected = np.linalg.lstsq(np.asarray(given(x)), np.asarray(target(y)))[0]
    np.testing.assert_allclose(operator(x, y, 0.0), expected, rtol=1e-8, atol=1e-10)


def test_without_ridge_collinear_features_stay_finite():
    """The least penalty is the rounding error of the sums, so a singular matrix gives a finite fit, and a good one."""
    x, y = pairs(25)
    result = conditional_operator(lambda x: jnp.stack([x, x, 0 * x], axis=1), target, x, y, 0.0)
    assert np.isfinite(result).all()
    alone = conditional_operator(lambda x: x[:, None], target, x, y, 0.0)
    np.testing.assert_allclose(result[0] + result[1] + 0 * result[2], alone[0], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_samples_than_features(count):
    x, y = pairs(count)
    result = conditional_operator(given, target, x, y, 1e-3)
    expected = reference.conditional_operator_dual(np.asarray(given(x)), np.asarray(target(y)), 1e-3)
    np.testing.assert_allclose(result, expected, rtol=1e-8, atol=1e-10)


def test_the_ridge_counts_per_sample():
    x, y = pairs(25)
    once, twice = operator(x, y, 0.1), operator(jnp.tile(x, 2), jnp.tile(y, 2), 0.1)
    np.testing.assert_allclose(once, twice, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_chunks_do_not_matter(monkeypatch, count):
    x, y = pairs(count)
    monkeypatch.setattr(embedding, "CHUNK", 8)
    chunked = covariances(given, target, x, y)
    mean = mean_embedding(given, x)
    monkeypatch.undo()
    assert embedding.CHUNK > 25
    rows, values = np.asarray(given(x)), np.asarray(target(y))
    np.testing.assert_allclose(chunked[0], rows.T @ rows, rtol=1e-13)
    np.testing.assert_allclose(chunked[1], rows.T @ values, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-13)


def test_single_precision_is_close_to_double():
    """Relative to the size of the operator, within a modest multiple of the rounding error over the ridge."""
    x, y = pairs(25)
    exact = operator(x, y, 1e-2)
    result = operator(x.astype(jnp.float32), y.astype(jnp.float32), 1e-2)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, exact, atol=2e-5 * np.abs(exact).max())
    mean = mean_embedding(given, x.astype(jnp.float32))
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, mean_embedding(given, x), rtol=1e-6)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.5])
def test_gradient_in_the_ridge(ridge):
    x, y = pairs(25)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)))

    @jax.jit
    def total(ridge):
        return jnp.sum(weights * operator(x, y, ridge))

    h = 1e-5 * (ridge + 0.01)
    expected = (total(ridge + h) - total(ridge - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(total)(ridge), expected, rtol=1e-6)


@pytest.mark.parametrize("chunk", [8, 1000])
def test_gradient_in_the_feature_maps(monkeypatch, chunk):
    monkeypatch.setattr(embedding, "CHUNK", chunk)
    x, y = pairs(21)

    @jax.jit
    def total(scale):
        return jnp.sum(conditional_operator(lambda x: given(scale * x), lambda y: target(scale * y), x, y, 1e-2) ** 2)

    h = 1e-6
    expected = (total(0.8 + h) - total(0.8 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(total)(0.8), expected, rtol=1e-6)


def test_ridge_solve_solves():
    random = np.random.default_rng(0)
    rows = random.normal(size=(9, 4))
    covariance, cross = rows.T @ rows, random.normal(size=(4, 2))
    result = np.asarray(ridge_solve(jnp.asarray(covariance), jnp.asarray(cross), 0.3))
    np.testing.assert_allclose(covariance @ result + 0.3 * result, cross, rtol=1e-12, atol=1e-13)


def shapes_in(jaxpr):
    """The shapes of every value that a computation makes, loops and calls included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for sub in jaxprs_in_params(equation.params):
            yield from shapes_in(sub)


@pytest.mark.parametrize("of_gradient", [False, True])
def test_no_features_of_the_whole_sample(monkeypatch, of_gradient):
    monkeypatch.setattr(embedding, "CHUNK", 64)
    count = 1024

    def total(scale, x, y):
        result = conditional_operator(lambda x: given(scale * x), target, x, y, 1e-2)
        return jnp.sum(result) + jnp.sum(mean_embedding(lambda x: given(scale * x), x))

    traced = jax.make_jaxpr(jax.grad(total) if of_gradient else total)(0.8, *pairs(count))
    sizes = [int(np.prod(shape)) for shape in shapes_in(traced.jaxpr)]
    assert len(sizes) > 20
    assert max(sizes) <= count, "an array larger than the sample itself"
