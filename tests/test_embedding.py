import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import kbpjax as kbp
import kbpjax.learning.embedding as embedding
from kbpjax.features import RandomFourier, cholesky_basis, incomplete_cholesky
from kbpjax.learning.embedding import (
    conditional_operator,
    covariances,
    error_bound,
    feature_residual,
    mean_embedding,
    operator_error,
    ridge_solve,
)
from tests import reference

CENTRES = np.linspace(-1.5, 1.5, 4)


def given(x):
    return jnp.exp(-((x[:, None] - CENTRES[None].astype(x.dtype)) ** 2))


def target(x):
    return jnp.stack([x, x**2, jnp.cos(x)], axis=1)


def pairs(count, dtype: type = np.float64, seed=0):
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
    fit = jax.jit(conditional_operator, static_argnums=(0, 1))
    result = np.asarray(fit(lambda x: jnp.stack([x, x, 0 * x], axis=1), target, x, y, 0.0))
    assert np.isfinite(result).all()
    alone = fit(lambda x: x[:, None], target, x, y, 0.0)
    np.testing.assert_allclose(result[0] + result[1] + 0 * result[2], alone[0], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_samples_than_features(count):
    x, y = pairs(count)
    result = operator(x, y, 1e-3)
    expected = reference.conditional_operator_dual(np.asarray(given(x)), np.asarray(target(y)), 1e-3)
    np.testing.assert_allclose(result, expected, rtol=1e-8, atol=1e-10)


def test_the_ridge_counts_per_sample():
    x, y = pairs(25)
    once, twice = operator(x, y, 0.1), operator(jnp.tile(x, 2), jnp.tile(y, 2), 0.1)
    np.testing.assert_allclose(once, twice, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 8, 17, *(pytest.param(count, marks=pytest.mark.slow) for count in (7, 9, 16))])
def test_chunks_do_not_matter(monkeypatch, count):
    x, y = pairs(count)
    monkeypatch.setattr(embedding, "CHUNK", 8)
    chunked, mean = jax.jit(lambda x, y: (covariances(given, target, x, y), mean_embedding(given, x)))(x, y)
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
    mean_of = jax.jit(lambda x: mean_embedding(given, x))
    mean = mean_of(x.astype(jnp.float32))
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean, mean_of(x), rtol=1e-6)


def test_gradient_in_the_ridge():
    x, y = pairs(25)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)))

    @jax.jit
    def total(ridge):
        return jnp.sum(weights * operator(x, y, ridge))

    slope = jax.jit(jax.grad(total))
    for ridge in (0.0, 1e-3, 0.5):
        h = 1e-5 * (ridge + 0.01)
        expected = (total(ridge + h) - total(ridge - h)) / (2 * h)
        np.testing.assert_allclose(slope(ridge), expected, rtol=1e-6)


@pytest.mark.parametrize("chunk", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_gradient_in_the_feature_maps(monkeypatch, chunk):
    monkeypatch.setattr(embedding, "CHUNK", chunk)
    x, y = pairs(21)

    @jax.jit
    def total(scale):
        return jnp.sum(conditional_operator(lambda x: given(scale * x), lambda y: target(scale * y), x, y, 1e-2) ** 2)

    h = 1e-6
    expected = (total(0.8 + h) - total(0.8 - h)) / (2 * h)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(0.8), expected, rtol=1e-6)


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


# --- padding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_pairs_beyond_the_count_are_padding(monkeypatch, chunk):
    monkeypatch.setattr(embedding, "CHUNK", chunk)

    def padded(scale, count, x, y):
        return conditional_operator(lambda x: given(scale * x), target, x, y, 0.1, count)

    slope_of, padded = jax.jit(jax.jacobian(padded)), jax.jit(padded)
    h = 1e-6
    for count, padding in itertools.product((1, 8, 13, 25), (np.nan, 3.0)):
        x, y = (np.array(array) for array in pairs(25))
        alone = reference.conditional_operator(np.asarray(given(x[:count])), np.asarray(target(y[:count])), 0.1)
        x[count:] = y[count:] = padding
        for number in (count, np.int32(count)):
            np.testing.assert_allclose(padded(1.0, number, x, y), alone, rtol=1e-9, atol=1e-12)
        slope = np.asarray(padded(1 + h, count, x, y) - padded(1 - h, count, x, y)) / (2 * h)
        np.testing.assert_allclose(slope_of(1.0, count, x, y), slope, rtol=1e-5, atol=1e-7)


def test_counts_in_single_precision_and_over_a_batch():
    x, y = pairs(25, np.float32)
    counts = np.array([3, 25, 10])
    batched = jax.jit(jax.vmap(lambda count: conditional_operator(given, target, x, y, 0.1, count)))(counts)
    assert batched.dtype == jnp.float32
    for result, count in zip(np.asarray(batched), counts, strict=True):
        alone = operator(np.asarray(x)[:count], np.asarray(y)[:count], 0.1)
        np.testing.assert_allclose(result, alone, atol=1e-5)
    one = conditional_operator(given, target, x, y, 0.1, 1)
    np.testing.assert_allclose(one, operator(np.asarray(x)[:1], np.asarray(y)[:1], 0.1), atol=1e-5)


def test_no_pairs_sum_to_zero():
    x, _ = pairs(5)
    sums = jax.jit(lambda x, y: covariances(given, target, x, y, 0))(x, np.full(5, np.nan))
    assert sums[0].shape == (4, 4) and sums[1].shape == (4, 3)
    assert not sums[0].any() and not sums[1].any()


@pytest.mark.parametrize("count", [-1, 6])
def test_count_is_checked(count):
    with pytest.raises(ValueError, match="count: must be finite and >= 0 and <= 5"):
        covariances(given, target, *pairs(5), count)


# --- error of features on landmarks -----------------------------------------------------------------------------------


class Half(kbp.Kernel):
    """Half a kernel, so that a sum of two has features of norm 1."""

    base: kbp.Kernel

    def __call__(self, x, y):
        return 0.5 * self.base(x, y)


UNIT = np.random.default_rng(7).normal(size=(40, 5)) * 0.4 ** np.arange(5)
UNIT /= np.linalg.norm(UNIT, axis=1, keepdims=True)
LINE = np.random.default_rng(8).normal(size=40)
GREY = np.random.default_rng(9).integers(0, 6, size=40)
CASES = {
    "narrow": (kbp.RBF(0.1), LINE),
    "middle": (kbp.RBF(1.0), LINE),
    "wide": (kbp.RBF(5.0), LINE),
    "delta": (kbp.Delta(), GREY),
    "linear": (kbp.Linear(), UNIT),
    "sum": (Half(kbp.RBF(0.7)) + Half(kbp.Linear()), UNIT),
    "product": (kbp.RBF(0.7) * kbp.Linear(), UNIT),
}


def noise(ridge):
    """Errors that double precision shows where there are none."""
    return 1e-8 / ridge + 1e-7


def padded_basis(kernel, x, eps, max_rank):
    """Return the basis of selected landmarks with room for `max_rank`, so that it can be built inside jit."""
    max_rank = min(max_rank, len(x))
    pivots = incomplete_cholesky(kernel, x, eps, max_rank)
    return cholesky_basis(kernel, x[pivots.indices], jnp.arange(max_rank, dtype=jnp.int32) < pivots.rank)


@partial(jax.jit, static_argnames="max_rank")
def errors(kernel, products, x, partner, eps, ridges, max_rank):
    """The two feature residuals, and the operator errors with projected and exact products at each ridge."""
    basis, product_basis = padded_basis(kernel, x, eps, max_rank), padded_basis(products, partner, eps, max_rank)
    residuals = feature_residual(kernel, basis, x), feature_residual(products, product_basis, partner)
    both = [
        jax.lax.map(lambda ridge, p=p: operator_error(kernel, products, basis, p, x, partner, ridge), ridges)
        for p in (product_basis, None)
    ]
    return residuals, both


# One exponent is compiled for both of these tests, and the other for one kernel of each kind of samples.
@pytest.mark.parametrize(
    ("name", "exponent"),
    [
        *((name, 3) for name in CASES),
        *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("middle", "delta", "sum")),
    ],
)
def test_the_bound_holds(name, exponent):
    kernel, x = CASES[name]
    x, partner = jnp.asarray(x), jnp.asarray(np.roll(x, 1, axis=0))
    ridges = np.array([1e-4, 1e-2, 0.3, 10.0])
    largest = 0
    for eps in (0.3, 0.03, 1e-3):
        residuals, (error, linear) = errors(kernel, kernel**exponent, x, partner, eps, jnp.asarray(ridges), 40)
        assert max(residuals) <= eps
        for i, ridge in enumerate(ridges):
            assert error[i] <= error_bound(max(residuals), ridge) + noise(ridge)
            assert linear[i] <= error_bound(residuals[0], ridge) + noise(ridge)
        largest = max(largest, *error.tolist())
    assert largest > 1e-2 or name == "delta"  # whose six features no tolerance leaves out


@pytest.mark.parametrize("name", CASES)
def test_no_error_with_all_points_as_landmarks(name):
    kernel, x = CASES[name]
    ridges = np.array([1e-4, 1e-2, 0.3, 10.0])
    x, partner = jnp.asarray(x), jnp.asarray(x[::-1])
    residuals, both = errors(kernel, kernel**3, x, partner, 1e-12, jnp.asarray(ridges), 40)
    assert max(residuals) < 1e-7
    for error in both:
        np.testing.assert_array_less(error, noise(ridges))


def tensor_power(rows, exponent):
    result = rows
    for _ in range(exponent - 1):
        result = np.stack([np.kron(a, b) for a, b in zip(result, rows)])
    return result


compiled_basis, compiled_error = jax.jit(cholesky_basis), jax.jit(operator_error)


@pytest.mark.parametrize("exponent", [1, 2, 3])
@pytest.mark.parametrize("exact_products", [False, True])
def test_operator_error_equals_matrices_written_out(exponent, exact_products):
    """Features of the linear kernel are the vectors, and those of its powers their Kronecker powers."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)), random.normal(size=(12, 3))
    kernel, products = kbp.Linear(), kbp.Linear() ** exponent
    phi, xi = x, tensor_power(y, exponent)

    def projection(landmarks):
        q, _ = np.linalg.qr(landmarks.T)
        return q @ q.T

    def operator(xi, phi, ridge):
        return xi.T @ np.linalg.solve(phi @ phi.T + ridge * 12 * np.eye(12), phi)

    low_phi = phi @ projection(x[:2])
    low_xi = xi if exact_products else xi @ projection(xi[3:5])
    basis = compiled_basis(kernel, x[:2])
    product_basis = None if exact_products else compiled_basis(products, y[3:5])
    for ridge in (1e-3, 0.1, 3.0):
        expected = np.linalg.norm(operator(xi, phi, ridge) - operator(low_xi, low_phi, ridge))
        assert expected > 1e-3
        result = compiled_error(kernel, products, basis, product_basis, x, y, ridge)
        np.testing.assert_allclose(result, expected, rtol=1e-9)
    largest = np.linalg.norm(phi - low_phi, axis=1).max()
    np.testing.assert_allclose(jax.jit(feature_residual)(kernel, basis, x), largest, rtol=1e-9)


def test_operator_error_equals_traces_of_gram_matrices():
    """|U|^2 - 2 <U, U~> + |U~|^2, where projections make <phi(x), P phi(y)> the Gram matrix of projected features."""
    x, y, ridge = LINE, np.roll(LINE, 1), 0.02
    basis = compiled_basis(kbp.RBF(0.7), x[:4])
    products = compiled_basis(kbp.RBF(0.7) ** 3, x[:5])
    full, full_products = reference.rbf(0.7), reference.power(reference.rbf(0.7), 3)
    r, s = reference.gram_schmidt(full, x[:4], x), reference.gram_schmidt(full_products, x[:5], y)
    k, g = reference.gram(full, x, x), reference.gram(full_products, y, y)
    a, a_low = (np.linalg.inv(matrix + ridge * 40 * np.eye(40)) for matrix in (k, r @ r.T))
    cross = np.trace(a @ s @ s.T @ a_low @ r @ r.T)
    low = np.trace(a_low @ s @ s.T @ a_low @ r @ r.T)
    expected = np.sqrt(np.trace(a @ g @ a @ k) - 2 * cross + low)
    result = compiled_error(kbp.RBF(0.7), kbp.RBF(0.7) ** 3, basis, products, x, y, ridge)
    np.testing.assert_allclose(result, expected, rtol=1e-8)


def test_operator_error_in_single_precision():
    kernel, ridge = kbp.RBF(1.0), 0.1
    errors = []
    for dtype in (np.float32, np.float64):
        x = jnp.asarray(LINE, dtype)
        basis = compiled_basis(kernel, np.array([-1.5, 0.0, 1.5], dtype))
        errors.append(compiled_error(kernel, kernel**3, basis, None, x, LINE[::-1].astype(dtype), ridge))
    assert errors[0].dtype == jnp.float32
    np.testing.assert_allclose(errors[0], errors[1], rtol=1e-3)


def test_error_bound_is_its_formula():
    np.testing.assert_allclose(error_bound(0.1, 0.25), 2 * 0.1 * (4 + 8), rtol=1e-12)
    assert float(error_bound(0, 1.0)) == 0
    np.testing.assert_allclose(jax.jit(error_bound)(jnp.float32(0.1), jnp.float64(0.25)), 2.4, rtol=1e-6)


def test_errors_of_operators_refuse_what_they_cannot_measure():
    x = jnp.asarray(LINE)
    basis = compiled_basis(kbp.RBF(1.0), LINE[:2])
    fourier, _ = RandomFourier(8).feature_map(kbp.RBF(1.0), x, 1e-3, 8)
    with pytest.raises(ValueError, match="ridge: must be finite and > 0"):
        operator_error(kbp.RBF(1.0), kbp.RBF(1.0), basis, basis, x, x, 0.0)
    with pytest.raises(ValueError, match="ridge: must be finite and > 0"):
        error_bound(0.1, 0.0)
    with pytest.raises(ValueError, match="eps: must be finite and >= 0"):
        error_bound(-0.1, 1.0)
    for maps in ((fourier, basis), (basis, fourier)):
        with pytest.raises(ValueError, match=r"must project on landmarks \(a Basis\)"):
            operator_error(kbp.RBF(1.0), kbp.RBF(1.0), *maps, x, x, 0.1)
    with pytest.raises(ValueError, match=r"must project on landmarks \(a Basis\)"):
        feature_residual(kbp.RBF(1.0), fourier, x)


@pytest.mark.parametrize(
    "x, y, ridge, count, named",
    [
        (np.zeros((0, 1)), np.zeros((0, 1)), 0.1, None, "x_given, x_target"),
        (np.zeros((3, 1)), np.zeros((3, 1)), -0.1, None, "ridge"),
        (np.zeros((3, 1)), np.zeros((3, 1)), 0.1, 0, "count"),
    ],
)
def test_an_operator_of_what_is_no_sample_is_refused(x, y, ridge, count, named):
    with pytest.raises(ValueError, match=f"^{named}: must"):
        conditional_operator(given, target, jnp.asarray(x), jnp.asarray(y), ridge, count)


def test_the_mean_of_no_samples_is_refused():
    with pytest.raises(ValueError, match="^x: must have at least one sample; got 0"):
        embedding.mean_embedding(given, jnp.zeros((0, 1)))
