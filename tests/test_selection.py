import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import kbpjax as kbp
from kbpjax.features import cholesky_basis
from kbpjax.learning import embedding
from kbpjax.tuning.scores import generalized_cross_validation, leave_one_out

SCORES = [leave_one_out, generalized_cross_validation]
CENTRES = np.linspace(-1.5, 1.5, 4)


def given(x):
    return jnp.exp(-((x[:, None] - CENTRES[None].astype(x.dtype)) ** 2))


def target(x):
    return jnp.stack([x, x**2, jnp.cos(x)], axis=1)


def pairs(count, dtype: type = np.float64, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=count)
    return jnp.asarray(x.astype(dtype)), jnp.asarray((np.sin(2 * x) + 0.3 * random.normal(size=count)).astype(dtype))


def refitted(rows, values, ridge):
    """Leave each pair out in turn, learn from the others with the penalty of all, and measure the error at the pair."""
    total = 0.0
    for i in range(len(rows)):
        r, g = np.delete(rows, i, axis=0), np.delete(values, i, axis=0)
        operator = np.linalg.solve(r.T @ r + ridge * len(rows) * np.eye(rows.shape[1]), r.T @ g)
        total += np.sum((values[i] - rows[i] @ operator) ** 2)
    return total / len(rows)


def by_hat_matrix(rows, values, ridge):
    penalty = ridge * len(rows) * np.eye(len(rows))
    rest = penalty @ np.linalg.inv(rows @ rows.T + penalty)  # I - H
    return np.mean(np.sum((rest @ values) ** 2, axis=1)) / (np.trace(rest) / len(rows)) ** 2


@partial(jax.jit, static_argnums=(0, 1, 2))
def scored(score, given, target, x, y, ridge):
    return score(given, target, x, y, ridge)


ORACLES = {leave_one_out: refitted, generalized_cross_validation: by_hat_matrix}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("count", [3, 4, 25, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 5))])
def test_equals_refits_and_the_hat_matrix(score, count):
    """With more pairs than features, as many, and fewer."""
    x, y = pairs(count)
    f = partial(scored, score, given, target, x, y)
    assert f(0.1).shape == () and f(0.1).dtype == jnp.float64
    for ridge in (1e-3, 0.1, 10.0):
        expected = ORACLES[score](np.asarray(given(x)), np.asarray(target(y)), ridge)
        np.testing.assert_allclose(f(ridge), expected, rtol=1e-9)


def test_without_ridge():
    x, y = pairs(25)
    rows, values = np.asarray(given(x)), np.asarray(target(y))
    np.testing.assert_allclose(scored(leave_one_out, given, target, x, y, 0.0), refitted(rows, values, 0), rtol=1e-9)
    expected = np.sum((values - rows @ np.linalg.lstsq(rows, values)[0]) ** 2) / 25 / (1 - 4 / 25) ** 2
    np.testing.assert_allclose(scored(generalized_cross_validation, given, target, x, y, 0.0), expected, rtol=1e-9)


# Each score with each size, each precision with each size, and each score in each precision.
@pytest.mark.parametrize(
    ("score", "dtype", "count", "columns"),
    [
        pytest.param(score, np.float64, *size, marks=pytest.mark.slow) if (i + j) % 2 else (score, np.float32, *size)
        for (i, score), (j, size) in itertools.product(enumerate(SCORES), enumerate([(4, 4), (4, 6), (1, 1), (1, 5)]))
    ],
)
def test_fits_without_error_stay_finite(score, dtype, count, columns):
    """No more pairs than features and no ridge: residuals and 1 - leverage are rounding errors or 0, scores are not."""
    x, y = pairs(count, dtype)
    used = np.arange(columns)[None] < count  # features of 0, as those of padding are
    features = lambda x: jnp.where(used, x[:, None] ** np.arange(columns, dtype=dtype)[None], 0)
    f = lambda scale, ridge: score(lambda x: features(scale * x), target, x, y, ridge)
    value, slopes = jax.jit(jax.value_and_grad(f, (0, 1)))(dtype(1), dtype(0))
    assert value.dtype == dtype and np.isfinite([value, *slopes]).all()
    assert value > 1e-2 * np.mean(np.sum(np.asarray(target(y)) ** 2, axis=1))


@pytest.mark.parametrize("score", SCORES)
def test_a_pair_far_from_all_others_counts_its_whole_target(score):
    """Nothing is learned of it from the others, though all of them together fit it well."""
    x, y = jnp.arange(2), jnp.asarray([2.0, 3.0])
    result = scored(score, lambda index: jnp.eye(2)[index], lambda y: y[:, None], x, y, 1e-9)
    np.testing.assert_allclose(result, 6.5, rtol=1e-6)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("chunk", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_gradients_in_kernels_landmarks_and_ridge(monkeypatch, score, chunk):
    monkeypatch.setattr(embedding, "CHUNK", chunk)
    x, y = pairs(21)

    def f(theta):
        basis = cholesky_basis(kbp.RBF(theta[0]), theta[1] * jnp.asarray(CENTRES))
        products = cholesky_basis(kbp.RBF(theta[2]), jnp.asarray(CENTRES))
        return score(basis, products, x, y, theta[3])

    both = jax.jit(jax.value_and_grad(f))
    for ridge in (1e-3, 0.3):
        theta, h = np.array([0.7, 1.1, 0.9, ridge]), 1e-5 * np.array([1, 1, 1, ridge])
        expected = [(both(theta + step)[0] - both(theta - step)[0]) / (2 * size) for size, step in zip(h, np.diag(h))]
        assert np.abs(expected).min() > 1e-4
        np.testing.assert_allclose(both(theta)[1], expected, rtol=1e-6)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("count", [17, *(pytest.param(count, marks=pytest.mark.slow) for count in (8, 9))])
def test_chunks_do_not_matter(monkeypatch, score, count):
    x, y = pairs(count)
    whole = jax.jit(lambda x, y: score(given, target, x, y, 0.01))(x, y)
    monkeypatch.setattr(embedding, "CHUNK", 8)
    in_chunks = jax.jit(lambda x, y: score(given, target, x, y, 0.01))(x, y)
    np.testing.assert_allclose(in_chunks, whole, rtol=1e-12)


def shapes_in(jaxpr):
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for sub in jaxprs_in_params(equation.params):
            yield from shapes_in(sub)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("of_gradient", [False, True])
def test_no_features_of_the_whole_sample(monkeypatch, score, of_gradient):
    monkeypatch.setattr(embedding, "CHUNK", 64)
    f = lambda scale, x, y: score(lambda x: given(scale * x), target, x, y, 1e-2)
    traced = jax.make_jaxpr(jax.grad(f) if of_gradient else f)(0.8, *pairs(1024))
    sizes = [int(np.prod(shape)) for shape in shapes_in(traced.jaxpr)]
    assert len(sizes) > 20 and max(sizes) <= 1024


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("count", [13, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 8))])
def test_pairs_beyond_the_count_are_padding(monkeypatch, score, count):
    monkeypatch.setattr(embedding, "CHUNK", 8)
    f = lambda scale, x, y, count: score(lambda x: given(scale * x), target, x, y, 0.1, count)
    both, value = jax.jit(jax.value_and_grad(f)), jax.jit(f)
    x, y = (np.array(array) for array in pairs(25))
    expected = both(1.0, x[:count], y[:count], None)
    x[count:] = y[count:] = np.nan
    np.testing.assert_allclose(value(1.0, x, y, count), expected[0], rtol=1e-9)
    result = both(1.0, x, y, np.int32(count))
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)  # the slope of a single pair's is 0


@pytest.mark.parametrize("score", [leave_one_out, pytest.param(generalized_cross_validation, marks=pytest.mark.slow)])
def test_single_precision_is_close_to_double(score):
    """Also where the fit is so good that the squared residuals are below the rounding error of the squared targets."""
    x, y = pairs(200)
    near = lambda y: given(y + 1e-3)
    for fitted, points, ridge, rtol in ((target, y, 1e-2, 2e-6), (target, y, 1e-4, 1e-5), (near, x, 1e-7, 1e-2)):
        exact = scored(score, given, fitted, x, points, ridge)
        result = scored(score, given, fitted, x.astype(np.float32), points.astype(np.float32), ridge)
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result, exact, rtol=rtol)


@pytest.mark.parametrize("score", SCORES)
def test_a_batch_of_ridges_equals_a_loop(score):
    x, y = pairs(25)
    f, ridges = partial(scored, score, given, target, x, y), np.array([0.0, 1e-4, 0.1, 3.0])
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(ridges), [f(ridge) for ridge in ridges], rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_the_least_score_predicts_well(score):
    """Noisy values on a line: nearly the best ridge of a grid for new pairs, whose ends are much worse."""
    random = np.random.default_rng(0)
    sample = lambda m: (x := random.uniform(-3, 3, size=m), np.sin(2 * x) + 0.5 * random.normal(size=m))
    (x, y), (new_x, new_y) = (map(jnp.asarray, sample(m)) for m in (80, 2000))
    basis, value = cholesky_basis(kbp.RBF(0.3), jnp.linspace(-3, 3, 25)), lambda y: y[:, None]
    ridges = np.logspace(-8, 1, 19)

    def held_out(ridge):
        return jnp.mean((new_y - (basis(new_x) @ embedding.conditional_operator(basis, value, x, y, ridge))[:, 0]) ** 2)

    both = jax.jit(jax.vmap(lambda ridge: (score(basis, value, x, y, ridge), held_out(ridge))))
    scores, errors = map(np.asarray, both(ridges))
    assert errors[np.argmin(scores)] <= 1.05 * errors.min() < 1.2 * errors.min() < min(errors[0], errors[-1])


@pytest.mark.parametrize("score", SCORES)
def test_bad_arguments(score):
    x, y = pairs(5)
    for ridge in (-0.1, np.nan):
        with pytest.raises(ValueError, match=r"ridge: must be finite and >= 0; got .*\. Pass a value"):
            score(given, target, x, y, ridge)
    for count in (0, 6):
        with pytest.raises(ValueError, match=f"count: must be finite and >= 1 and <= 5; got {count}. Pass a value"):
            score(given, target, x, y, 0.1, count)
    with pytest.raises(
        ValueError, match="x_target: must have as many points as x_given, 5; got 4. Pass one or more pairs"
    ):
        score(given, target, x, y[:4], 0.1)
    with pytest.raises(ValueError, match="x_target: must have as many points as x_given, 0; got 0"):
        score(given, target, x[:0], y[:0], 0.1)
