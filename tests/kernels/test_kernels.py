import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.kernels import Constant, Delta, diagonal
from kbpjax.kernels.base import random_rows
from tests import reference

KERNELS = {
    "rbf": (kbp.RBF(0.8), reference.rbf(0.8)),
    "linear": (kbp.Linear(), reference.linear()),
    "delta": (Delta(), reference.delta()),
    "constant": (Constant(2.5), lambda x, y: 2.5),
    "sum with a constant": (1.5 + kbp.Linear(), reference.add(reference.linear(), lambda x, y: 1.5)),
    "sum": (kbp.RBF(0.8) + kbp.Linear(), reference.add(reference.rbf(0.8), reference.linear())),
    "product": (kbp.RBF(0.8) * kbp.Linear(), reference.multiply(reference.rbf(0.8), reference.linear())),
    "power": (kbp.RBF(0.8) ** 3, reference.power(reference.rbf(0.8), 3)),
    "power of sum": (
        (kbp.Linear() + Delta()) ** 2,
        reference.power(reference.add(reference.linear(), reference.delta()), 2),
    ),
    "nested": (
        kbp.RBF(2.0) * kbp.RBF(0.8) ** 2 + Delta() * kbp.Linear(),
        reference.add(
            reference.multiply(reference.rbf(2.0), reference.power(reference.rbf(0.8), 2)),
            reference.multiply(reference.delta(), reference.linear()),
        ),
    ),
}
SHAPES = {"scalar": (), "vector": (3,), "matrix": (2, 2)}


def points(shape, count=9, seed=0):
    """Points with some coincidences."""
    x = np.random.default_rng(seed).normal(size=(count, *shape))
    x[-2:] = x[:2]
    return x


@pytest.fixture(params=KERNELS, ids=str)
def both(request):
    return KERNELS[request.param]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 2e-6)])
def test_gram_equals_twin(both, shape, dtype, tolerance):
    kernel, twin = both
    x, y = points(shape).astype(dtype), points(shape)[[0, 8, 3, 5, 1, 1]].astype(dtype)
    result = kbp.gram(kernel, jnp.asarray(x), jnp.asarray(y))
    assert result.dtype == dtype and result.shape == (9, 6)
    expected = reference.gram(twin, x, y)
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_points_may_be_numbers_and_lists(both):
    kernel, twin = both
    x, y = points((3,), 3), points(())
    np.testing.assert_allclose(kernel(float(y[0]), float(y[2])), twin(y[0], y[2]), rtol=1e-12)
    np.testing.assert_allclose(kernel(x[0].tolist(), jnp.asarray(x[1])), twin(x[0], x[1]), rtol=1e-12)
    np.testing.assert_allclose(kernel(1, 1), twin(np.float64(1), np.float64(1)), rtol=1e-12)
    np.testing.assert_array_equal(
        kbp.gram(kernel, x.tolist(), x[:1]), kbp.gram(kernel, jnp.asarray(x), jnp.asarray(x[:1]))
    )
    traced = jax.jit(lambda a: kernel([a, 1.0], [2.0, 3.0]))(0.5)
    np.testing.assert_allclose(traced, twin(np.array([0.5, 1.0]), np.array([2.0, 3.0])), rtol=1e-12)


def test_points_of_a_custom_kernel_are_arrays():
    class Ratio(kbp.Kernel):
        def __call__(self, x, y):
            return x.min() * y.max()

    class Twice(Ratio):
        def __call__(self, x, y):
            """Return twice the value."""
            return 2 * super().__call__(x, y)

    assert Ratio()([2, 3], [4, 5]) == 10 and Twice()(2.0, 5.0) == 20 and Twice.__call__.__doc__
    with pytest.raises(ValueError, match=r"^y: must be rectangular numbers; got list of rows of different lengths"):
        Ratio()(1.0, [1.0, [2.0]])
    with pytest.raises(ValueError, match=r"^x: must have shape \[point, \*dim\]; got shape \(\). One point is \[x\]"):
        kbp.gram(Ratio(), 1.0, [2.0])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gram_is_symmetric_and_positive_semidefinite(both, shape):
    x = jnp.asarray(points(shape, 12))
    matrix = np.asarray(kbp.gram(both[0], x, x))
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-14, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[0] >= -1e-13 * eigenvalues[-1]
    assert eigenvalues[-1] > 0


def test_diagonal_is_the_diagonal_of_gram(both):
    x = jnp.asarray(points((3,)))
    np.testing.assert_allclose(diagonal(both[0], x), np.diag(kbp.gram(both[0], x, x)), rtol=1e-14)


def differences(f, x, h=1e-5):
    """Central finite differences of a scalar function of an array."""
    x = np.asarray(x, float)
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        gradient[i] = (f(jnp.asarray(up)) - f(jnp.asarray(down))) / (2 * h)
    return gradient


@pytest.mark.parametrize("name", ["rbf", "linear", "power", "product", "constant"])
@pytest.mark.parametrize("coincident", [True, False])
def test_gradient_in_a_point(name, coincident):
    kernel = KERNELS[name][0]
    y = jnp.array([0.3, -0.7, 1.1])
    x = y if coincident else jnp.array([0.1, 0.2, 0.4])
    gradient = jax.grad(lambda x: kernel(x, y))(x)
    np.testing.assert_allclose(gradient, differences(jax.jit(lambda x: kernel(x, y)), x), atol=1e-9)


@pytest.mark.parametrize("distance", [0.0, 1.0, 1e3])
def test_gradient_in_the_bandwidth(distance):
    def value(bandwidth):
        return kbp.RBF(bandwidth)(jnp.array(0.0), jnp.array(distance))

    gradient = jax.grad(value)(0.8)
    assert np.isclose(gradient, differences(value, 0.8), atol=1e-8)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, bool])
@pytest.mark.parametrize("name", ["rbf", "linear", "delta", "constant", "sum", "product", "power"])
def test_whole_numbers_do_not_wrap_around(name, dtype):
    kernel, twin = KERNELS[name]
    x = np.array([0, 1, 3, 100, 127], dtype=dtype)
    scaled = kbp.RBF(30.0) if name == "rbf" else kernel
    scaled_twin = reference.rbf(30.0) if name == "rbf" else twin
    result = kbp.gram(scaled, jnp.asarray(x), jnp.asarray(x))
    assert jnp.issubdtype(result.dtype, jnp.floating)
    np.testing.assert_allclose(result, reference.gram(scaled_twin, x, x), rtol=1e-11, atol=1e-300)


def test_largest_byte_values():
    x = jnp.array([255, 1], jnp.uint8)
    assert kbp.gram(kbp.Linear(), x, x).tolist() == [[65025.0, 255.0], [255.0, 1.0]]
    assert float(kbp.RBF(100.0)(x[1], x[0])) == pytest.approx(np.exp(-0.5 * 2.54**2))


def test_delta_needs_every_entry_to_be_equal():
    x = jnp.array([[1, 2], [1, 3], [1, 2]])
    assert kbp.gram(Delta(), x, x).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_rbf_depends_on_scaled_points_only(scale):
    x = jnp.asarray(points((2,)).astype(np.float32))
    np.testing.assert_allclose(
        kbp.gram(kbp.RBF(0.5 * scale), x * np.float32(scale), x * np.float32(scale)),
        kbp.gram(kbp.RBF(0.5), x, x),
        atol=2e-6,
    )


@pytest.mark.parametrize("bandwidth", [0, 0.0, -1.0, float("nan"), float("inf"), np.float32(-2), jnp.array(0.0)])
def test_bandwidth_must_be_positive_and_finite(bandwidth):
    with pytest.raises(ValueError, match=r"^bandwidth: must be finite and > 0; got"):
        kbp.RBF(bandwidth)


@pytest.mark.parametrize("bandwidth", [[1.0, 2.0], np.ones(1), jnp.ones((2, 2))])
def test_bandwidth_must_be_one_number(bandwidth):
    with pytest.raises(ValueError, match="^bandwidth: must be a single number; got shape"):
        kbp.RBF(bandwidth)


@pytest.mark.parametrize("bandwidth", [2, np.float32(2), np.float64(2), jnp.array(2), jnp.array(2.0, jnp.float32)])
def test_bandwidth_of_any_number_type(bandwidth):
    x = jnp.array([0.0, 1.0], jnp.float32)
    result = kbp.gram(kbp.RBF(bandwidth), x, x)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result[0, 1], np.exp(-1 / 8), rtol=1e-6)


@pytest.mark.parametrize("exponent", [0, -1, 1.5, True, "2"])
def test_exponent_must_be_a_positive_whole_number(exponent):
    with pytest.raises(ValueError, match="^exponent: must be an integer( >= 1)?; got"):
        kbp.RBF(1.0) ** exponent


def test_kernels_build_under_vmap_over_bandwidths():
    bandwidths = jnp.array([0.5, 1.0, 2.0])
    x = jnp.asarray(points(()))
    stacked = jax.vmap(lambda b: kbp.gram(kbp.RBF(b), x, x))(bandwidths)
    for bandwidth, matrix in zip(bandwidths, stacked):
        np.testing.assert_allclose(matrix, kbp.gram(kbp.RBF(bandwidth), x, x), rtol=1e-14)


# --- median_bandwidth -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("count", [2, 3, 4, 17])
def test_median_bandwidth_equals_twin(shape, count):
    x = np.random.default_rng(count).normal(size=(count, *shape))
    result = kbp.median_bandwidth(x)
    assert result.shape == () and result.dtype == np.float64
    assert float(result) == pytest.approx(reference.median_bandwidth(x), rel=1e-12)
    assert kbp.median_bandwidth(jnp.asarray(x)) == result


def test_median_bandwidth_takes_lists_and_bytes():
    assert kbp.median_bandwidth([0, 1, 3]) == pytest.approx(2.0)
    assert kbp.median_bandwidth(np.array([0, 100, 255], np.uint8)) == pytest.approx(155.0)


@pytest.mark.parametrize("zeros", [3, 8, 30])
def test_median_bandwidth_where_many_pairs_coincide(zeros):
    x = np.concatenate([np.zeros(zeros), [1.0, 2.5]])
    assert kbp.median_bandwidth(x) == pytest.approx(reference.median_bandwidth(x))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_median_bandwidth_scales_with_the_points(scale):
    x = points((2,))
    assert kbp.median_bandwidth(scale * x) == pytest.approx(scale * float(kbp.median_bandwidth(x)), rel=1e-6)


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e9])
def test_median_bandwidth_does_not_depend_on_the_origin(offset):
    x = np.arange(0, 64, dtype=float) / 64  # exact at every offset
    assert kbp.median_bandwidth(x + offset) == pytest.approx(reference.median_bandwidth(x), rel=1e-4)


@pytest.mark.parametrize("x", [np.ones(5), np.full((4, 3), 0.1), np.zeros((2, 2)), [3.0], np.full(9, 1e-300)])
def test_median_bandwidth_of_equal_points(x):
    with pytest.raises(ValueError, match="^points: must not all be equal; got"):
        kbp.median_bandwidth(x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_median_bandwidth_of_missing_points(bad):
    with pytest.raises(ValueError, match="^points: must be finite; got 1 NaN or infinite of 3"):
        kbp.median_bandwidth([0.0, bad, 1.0])


@pytest.mark.parametrize("x", [[], 1.0, np.zeros((0, 3))])
def test_median_bandwidth_of_too_few_points(x):
    with pytest.raises(ValueError, match="^points: "):
        kbp.median_bandwidth(x)


@pytest.mark.parametrize("max_points", [0, 1, -3])
def test_median_bandwidth_needs_two_points_to_compare(max_points):
    with pytest.raises(ValueError, match="^max_points: "):
        kbp.median_bandwidth([0.0, 1.0, 3.0], max_points=max_points)


def test_median_bandwidth_has_bounded_cost():
    x = np.random.default_rng(0).normal(size=1_000_000)
    tracemalloc.start()
    result = kbp.median_bandwidth(x, max_points=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**27  # all pairs would take terabytes
    assert result == kbp.median_bandwidth(x, max_points=500)
    assert result == pytest.approx(0.9539, rel=0.1)  # the median of |N(0, 2)|


def test_median_bandwidth_of_periodic_points_sees_the_whole_period():
    x = np.arange(4 * 499 + 1) % 4  # every fourth point is 0
    assert float(kbp.median_bandwidth(x, max_points=500)) == 1


def test_random_rows_are_distinct_sorted_and_the_same_in_every_call():
    rows = random_rows(1000, 30)
    assert len(rows) == 30 and (np.diff(rows) > 0).all() and rows[0] >= 0 and rows[-1] < 1000
    assert 300 < rows.mean() < 700
    np.testing.assert_array_equal(rows, random_rows(1000, 30))
    np.testing.assert_array_equal(random_rows(30, 30), np.arange(30))


@pytest.mark.parametrize("value", ["1", None, 1j, True])
def test_a_bandwidth_that_is_no_real_number(value):
    with pytest.raises(ValueError, match="^bandwidth: must be a real number"):
        kbp.RBF(value)


def test_numbers_and_sums_of_kernels():
    x = jnp.asarray(points((3,)))
    plain, narrow = np.asarray(kbp.gram(kbp.RBF(0.8), x, x)), np.asarray(kbp.gram(kbp.RBF(0.3), x, x))
    for kernel in (kbp.RBF(0.8) + 2.5, np.float32(2.5) + kbp.RBF(0.8), Constant(2.5) + kbp.RBF(0.8)):
        np.testing.assert_allclose(kbp.gram(kernel, x, x), plain + 2.5, rtol=1e-13)
    np.testing.assert_allclose(kbp.gram(sum([kbp.RBF(0.8), kbp.RBF(0.3)]), x, x), plain + narrow, rtol=1e-13)
    at = jnp.zeros(3)
    assert float(jax.grad(lambda c: (kbp.RBF(0.8) + c)(at, at))(2.5)) == 1
    assert kbp.gram(Constant(1.0), jnp.arange(3), jnp.arange(2)).tolist() == [[1.0, 1.0]] * 3
    with pytest.raises(ValueError, match=r"^value: must be finite and > 0; got -1"):
        _ = kbp.RBF(1.0) + -1.0


def test_a_kernel_combines_with_kernels_and_numbers_only():
    for combine in (lambda k: k + np.ones(2), lambda k: k + "2", lambda k: k * np.ones(2), lambda k: k * "2"):
        with pytest.raises(TypeError, match="unsupported operand|does not support|multiply sequence"):
            combine(kbp.RBF(1.0))
