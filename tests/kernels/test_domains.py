"""Kernels on vectors, spheres, rotations, orders and finite sets, against naive twins and other libraries."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.transform
import scipy.stats
from sklearn.gaussian_process import kernels as gaussian_process
from sklearn.metrics import pairwise

import kbpjax as kbp
from kbpjax import kernels
from tests.refusals import not_refused

ROTATION = scipy.spatial.transform.Rotation


def vectors(rng, count):
    return rng.normal(size=(count, 3))


def unit(rng, count):
    x = vectors(rng, count)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def rotations(rng, count):
    return ROTATION.from_quat(rng.normal(size=(count, 4))).as_matrix()


def quaternions(rng, count):
    return ROTATION.from_quat(rng.normal(size=(count, 4))).as_quat()


def orders(rng, count):
    return np.stack([rng.permutation(6) for _ in range(count)])


def subsets(rng, count):
    return rng.integers(0, 2, (count, 8))


def distance(x, y):
    return math.dist(x.tolist(), y.tolist())


def matern(nu):
    def value(x, y):
        s = math.sqrt(2 * nu) * distance(x, y) / 0.7
        factor = {0.5: 1, 1.5: 1 + s, 2.5: 1 + s + s * s / 3}
        return factor[nu] * math.exp(-s)

    return value


def angle(x, y):
    """Of the rotation that turns one into the other, by a way of its own."""
    make = ROTATION.from_matrix if x.ndim == 2 else ROTATION.from_quat
    return float((make(x).inv() * make(y)).magnitude())


def heat(x, y, bandwidth=0.5):
    """From the definition: characters sin((2 l + 1) a / 2) / sin(a / 2)."""
    half = max(angle(x, y) / 2, 1e-9)
    weights = [(2 * l + 1) * math.exp(-l * (l + 1) * bandwidth**2 / 2) for l in range(60)]
    at = sum(w * math.sin((2 * l + 1) * half) / math.sin(half) for l, w in enumerate(weights))
    return at / sum(w * (2 * l + 1) for l, w in enumerate(weights))


def discordant(x, y):
    pairs = [(i, j) for i in range(len(x)) for j in range(i)]
    return sum((x[i] < x[j]) != (y[i] < y[j]) for i, j in pairs) / len(pairs)


A = np.random.default_rng(5).normal(size=(20, 3))
KNOWN = np.random.default_rng(6).normal(size=(40, 4))
KNOWN /= np.linalg.norm(KNOWN, axis=1, keepdims=True)
PROJECTION = kernels.RandomProjection(7, 3, seed=1)
ROWS = np.random.default_rng(8).normal(size=(2, 3))
CASES = {
    "laplace": (kernels.Laplace(0.7), vectors, lambda x, y: math.exp(-np.abs(x - y).sum() / 0.7)),
    "matern 1/2": (kernels.Matern(0.7, 0.5), vectors, matern(0.5)),
    "matern 3/2": (kernels.Matern(0.7), vectors, matern(1.5)),
    "matern 5/2": (kernels.Matern(0.7, 2.5), vectors, matern(2.5)),
    "rational quadratic": (
        kernels.RationalQuadratic(0.7, 1.3),
        vectors,
        lambda x, y: (1 + distance(x, y) ** 2 / (2 * 1.3 * 0.49)) ** -1.3,
    ),
    "periodic": (
        kernels.Periodic(2.0, 0.9),
        vectors,
        lambda x, y: math.exp(-2 * sum(math.sin(math.pi * d / 2.0) ** 2 for d in x - y) / 0.81),
    ),
    "polynomial": (kernels.Polynomial(3, 0.5), vectors, lambda x, y: (float(x @ y) + 0.5) ** 3),
    "ard": (
        kernels.ARD([0.5, 1.0, 4.0]),
        vectors,
        lambda x, y: math.exp(-0.5 * sum(((x - y) / [0.5, 1, 4]) ** 2)),
    ),
    "tied ard": (
        kernels.ARD([0.5, 4.0], [0, 1, 0]),
        vectors,
        lambda x, y: math.exp(-0.5 * sum(((x - y) / [0.5, 4, 0.5]) ** 2)),
    ),
    "projected": (
        kernels.Projected(ROWS, kbp.RBF(0.7)),
        vectors,
        lambda x, y: math.exp(-(((ROWS @ x - ROWS @ y) / 0.7) ** 2).sum() / 2),
    ),
    "projected to a number": (
        kernels.Projected(ROWS[:1], kernels.Periodic(2.0, 1.0)),
        vectors,
        lambda x, y: math.exp(-2 * math.sin(math.pi * float(ROWS[0] @ (x - y)) / 2) ** 2),
    ),
    "random projection": (
        PROJECTION,
        vectors,
        lambda x, y: float((np.asarray(PROJECTION.matrix) @ x) @ (np.asarray(PROJECTION.matrix) @ y)),
    ),
    "explicit features": (
        kernels.Transformed(lambda x: jnp.tanh(jnp.asarray(A, x.dtype) @ x), kbp.Linear()),
        vectors,
        lambda x, y: float(np.tanh(A @ x) @ np.tanh(A @ y)),
    ),
    "scaled sum": (
        0.3 * kbp.RBF(0.5) + kbp.Linear() * 2.0,
        vectors,
        lambda x, y: 0.3 * math.exp(-(distance(x, y) ** 2) / 0.5) + 2 * float(x @ y),
    ),
    "normalized": (
        kernels.Normalized(kernels.Polynomial(2)),
        vectors,
        lambda x, y: (x @ y + 1) ** 2 / ((x @ x + 1) * (y @ y + 1)),
    ),
    "parts": (
        kernels.Part(kbp.RBF(0.5), 0, 2) * kernels.Part(kernels.Laplace(2.0), 2, 3, ()),
        vectors,
        lambda x, y: math.exp(-(distance(x[:2], y[:2]) ** 2) / 0.5 - abs(x[2] - y[2]) / 2),
    ),
    "sphere": (kernels.Sphere(2.5), unit, lambda x, y: math.exp(2.5 * (float(x @ y) - 1))),
    "rotations": (kernels.Rotations(3.0), rotations, lambda x, y: math.exp(3 * (math.cos(angle(x, y)) - 1))),
    "quaternions": (kernels.Rotations(3.0), quaternions, lambda x, y: math.exp(3 * (math.cos(angle(x, y)) - 1))),
    "heat": (kernels.Heat(0.5), rotations, heat),
    "heat of quaternions": (kernels.Heat(0.5), quaternions, heat),
    "kendall": (kernels.Kendall(), orders, lambda x, y: scipy.stats.kendalltau(x, y).statistic),
    "mallows": (kernels.Mallows(2.0), orders, lambda x, y: math.exp(-2 * discordant(x, y))),
    "jaccard": (
        kernels.Jaccard(),
        subsets,
        lambda x, y: (
            len(set(np.flatnonzero(x)) & set(np.flatnonzero(y))) / len({*np.flatnonzero(x), *np.flatnonzero(y)})
            if (x | y).any()
            else 1.0
        ),
    ),
    "precomputed": (
        kernels.Precomputed((KNOWN @ KNOWN.T) ** 2),
        lambda rng, count: rng.integers(0, 40, count),
        lambda x, y: float(KNOWN[x] @ KNOWN[y]) ** 2,
    ),
}


gram = jax.jit(kbp.gram)
SLOPES = {"laplace", "matern 3/2", "rational quadratic", "periodic", "polynomial", "ard", "tied ard"}
SLOPES |= {"heat", "sphere", "mallows"}


@partial(jax.jit, static_argnums=5)
def program(kernel, low, x, single, reals, with_slope):
    """Return all that is compared of a kernel; as one program, for the compilation is what takes time."""

    def slopes(kernel, y):
        found = jax.grad(lambda k, a: k(a, reals[0]), argnums=(0, 1), allow_int=True)(kernel, y)
        leaves = [leaf for leaf in jax.tree.leaves(found) if leaf.dtype != jax.dtypes.float0]
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves])

    leaves, structure = jax.tree.flatten(kernel)
    value = lambda leaves: jax.tree.unflatten(structure, leaves)(x[0], x[1])
    along = ()
    if with_slope:
        shifted = [[leaf + sign * 1e-6 for leaf in leaves] for sign in (1.0, -1.0)]
        along = jax.grad(value)(leaves), *(value(of) for of in shifted)
    finite = jax.vmap(slopes, (None, 0))(kernel, reals)
    return {
        "gram": kbp.gram(kernel, x, x),
        "single": kbp.gram(low, single, single),
        "double": kbp.gram(kernel, x[:30], x[:30]),
        "finite": finite,
        "along": along,
    }


@cache
def measured(name):
    """Return 200 points, and what `program` says of them."""
    kernel, draw, _ = CASES[name]
    x = draw(np.random.default_rng(1), 200)
    low = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32) if np.ndim(leaf) else leaf, kernel)
    single = np.float32(x[:30])
    kernel.check("x", jnp.asarray(x))
    low.check("x", jnp.asarray(single))
    return x, jax.tree.map(np.asarray, program(kernel, low, x, single, x[:2].astype(float), name in SLOPES))


@pytest.mark.parametrize("name", CASES)
def test_gram_equals_the_naive_twin(name):
    x, found = measured(name)
    expected = np.array([[CASES[name][2](a, b) for b in x[:7]] for a in x[:12]])
    np.testing.assert_allclose(found["gram"][:12, :7], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_gram_of_200_points_is_symmetric_and_positive_semidefinite(name):
    x, found = measured(name)
    matrix = found["gram"]
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12, atol=1e-14)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[0] >= -1e-13 * len(x) * eigenvalues[-1] and eigenvalues[-1] > 0


@pytest.mark.parametrize("name", CASES)
def test_single_precision_is_close(name):
    single, double = (measured(name)[1][of] for of in ("single", "double"))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, atol=3e-6 * np.abs(double).max())


def test_gradients_are_finite_where_points_coincide():
    wrong = [name for name in CASES if not measured(name)[1]["finite"].all()]
    assert not wrong


@pytest.mark.parametrize("name", sorted(SLOPES))
def test_gradient_in_the_parameters(name):
    slope, up, down = measured(name)[1]["along"]
    total = 1e-6 * sum(np.sum(of) for of in slope)
    np.testing.assert_allclose(total, (up - down) / 2, rtol=1e-5, atol=1e-15)


KINKS = {"laplace": kernels.Laplace(0.7), "matern 1/2": kernels.Matern(0.7, 0.5)}
SMOOTH = {
    "rbf": (kbp.RBF(0.7), -1 / 0.49),
    "rational quadratic": (kernels.RationalQuadratic(0.7, 1.3), -1 / 0.49),
    "matern 3/2": (kernels.Matern(0.7), -3 / 0.49),
    "matern 5/2": (kernels.Matern(0.7, 2.5), -5 / 3 / 0.49),
}


STEP = 1e-5


@cache
def derivatives():
    """Return gradients of KINKS at a point, and second derivatives of SMOOTH where points are one or apart."""

    def second(kernel, x, y):
        steps = STEP * jnp.eye(2)
        own, mixed = jax.hessian(kernel)(x, y), jax.jacfwd(jax.grad(kernel), argnums=1)(x, y)
        same, other = (
            kbp.gram(kernel, x[None] + steps, y[None] + sign * steps)
            + kbp.gram(kernel, x[None] - steps, y[None] - sign * steps)
            for sign in (1.0, -1.0)
        )
        return own, mixed, (same - other) / (4 * STEP**2)

    @jax.jit
    def both(kinks, smooth, x, apart):
        first = {name: jax.grad(kernel, argnums=(0, 1))(x, x) for name, kernel in kinks.items()}
        one_equal = jax.grad(kinks["laplace"])(x, apart[2])
        return first, one_equal, {name: jax.vmap(partial(second, k, x))(apart[:2]) for name, k in smooth.items()}

    x = np.array([0.3, -1.2])
    apart = x + np.array([[0.0, 0.0], [0.8, 0.0], [1.0, 0.0]])
    return jax.tree.map(np.asarray, both(KINKS, {name: kernel for name, (kernel, _) in SMOOTH.items()}, x, apart))


def test_the_gradient_at_a_kink_is_0():
    first, one_equal, _ = derivatives()
    np.testing.assert_array_equal([first[name] for name in KINKS], np.zeros((2, 2, 2)))
    np.testing.assert_allclose(one_equal, [math.exp(-1 / 0.7) / 0.7, 0])


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_are_those_of_finite_differences(name):
    own, mixed, differences = derivatives()[2][name]
    np.testing.assert_allclose(mixed, differences, atol=1e-3)
    np.testing.assert_allclose(own, -mixed, atol=1e-12)  # of a kernel of x - y
    np.testing.assert_allclose(own[0], SMOOTH[name][1] * np.eye(2), rtol=1e-12)


@pytest.mark.parametrize(
    "name,theirs",
    {
        "laplace": lambda x: pairwise.laplacian_kernel(x, gamma=1 / 0.7),
        "polynomial": lambda x: pairwise.polynomial_kernel(x, degree=3, gamma=1, coef0=0.5),
        "matern 1/2": gaussian_process.Matern(0.7, nu=0.5),
        "matern 3/2": gaussian_process.Matern(0.7, nu=1.5),
        "matern 5/2": gaussian_process.Matern(0.7, nu=2.5),
        "rational quadratic": gaussian_process.RationalQuadratic(0.7, 1.3),
        "ard": gaussian_process.RBF([0.5, 1.0, 4.0]),
    }.items(),
)
def test_gram_equals_another_library(name, theirs):
    x, found = measured(name)
    np.testing.assert_allclose(found["gram"][:20, :20], theirs(x[:20]), rtol=1e-12)


def test_the_periodic_kernel_of_numbers_is_that_of_another_library():
    """Theirs takes the sine of the distance, which is no kernel of vectors; ours adds squares of sines."""
    x = np.random.default_rng(7).normal(size=20)
    theirs = gaussian_process.ExpSineSquared(0.9, 2.0)(x[:, None])
    np.testing.assert_allclose(gram(kernels.Periodic(2.0, 0.9), x, x), theirs, rtol=1e-12)


def test_blocks_give_the_same_gram():
    x = jnp.asarray(vectors(np.random.default_rng(8), 11))
    sizes = (None, 1, 4, 11, 100)
    whole, *others = jax.jit(lambda x: [kbp.gram(kbp.RBF(1.0), x, x[:5], block_size=size) for size in sizes])(x)
    for other in others:
        np.testing.assert_allclose(other, whole, rtol=1e-15)
    with pytest.raises(ValueError, match="^block_size: must be an integer >= 1; got 0"):
        kbp.gram(kbp.RBF(1.0), x, x, block_size=0)


def test_what_belongs_to_one_point_is_computed_once():
    calls = []

    def feature(x):
        jax.debug.callback(lambda shape: calls.append(shape), jnp.float32(0), ordered=False)
        return x

    x = jnp.asarray(vectors(np.random.default_rng(8), 30))
    jax.block_until_ready(kbp.gram(kernels.Transformed(feature, kbp.Linear()), x, x))
    jax.effects_barrier()
    assert len(calls) <= 2 * len(x)


def test_the_kernel_of_large_vectors_is_normalised_in_single_precision():
    x = jnp.asarray([[1e18, 0.0], [1e18, 1e18]], jnp.float32)
    result = gram(kernels.Normalized(kbp.Linear()), x, x)
    np.testing.assert_allclose(result, [[1, 0.5**0.5], [0.5**0.5, 1]], rtol=1e-6)


def test_a_zero_feature_is_like_nothing_and_has_no_gradient():
    kernel = kernels.Normalized(kbp.Linear())
    (value, slope), own = jax.jit(lambda x, y: (jax.value_and_grad(kernel)(x, y), kernel(x, x)))(
        np.zeros(2), np.ones(2)
    )
    assert float(value) == 0 and float(own) == 0
    assert np.isfinite(slope).all()


def test_the_heat_kernel_is_narrow_like_a_gaussian_of_the_angle():
    turn = ROTATION.from_rotvec([[0, 0, 0], [0, 0, 0.1]]).as_matrix()
    value = float(gram(kernels.Heat(0.1), turn[:1], turn[1:])[0, 0])
    assert value == pytest.approx(math.exp(-0.5) * 0.05 / math.sin(0.05), rel=1e-3)


def test_the_nearest_rotation_is_that_of_scipy():
    noisy = rotations(np.random.default_rng(1), 20) + 0.3 * np.random.default_rng(2).normal(size=(20, 3, 3))
    result = kernels.nearest_rotations(noisy)
    left, _, right = np.linalg.svd(noisy)
    sign = np.sign(np.linalg.det(left @ right))
    diagonal = np.stack([np.ones(20), np.ones(20), sign], -1)
    np.testing.assert_allclose(result, np.einsum("nij,nj,njk->nik", left, diagonal, right), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(result), 1)


def test_median_concentration_makes_the_kernel_of_the_median_pair_1_over_e():
    x = unit(np.random.default_rng(3), 50)
    kernel = kernels.Sphere(kernels.median_concentration(x))
    values = np.asarray(gram(kernel, x, x))[np.triu_indices(50, 1)]
    assert np.median(values) == pytest.approx(math.exp(-1), rel=1e-2)


def test_a_random_projection_keeps_inner_products():
    x = np.zeros((3, 400))
    for row, (start, stop) in enumerate([(0, 5), (3, 9), (20, 40)]):
        x[row, start:stop] = 1
    kernel = kernels.RandomProjection(4000, 400)
    found, features = gram(kernel, x, x), np.asarray(kernel.features(jnp.asarray(x)))
    np.testing.assert_allclose(found, x @ x.T, atol=1.5)
    np.testing.assert_allclose(features @ features.T, found, rtol=1e-9)


# --- bad input --------------------------------------------------------------------------------------------------------

MATRIX = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.9], [0.0, 0.9, 1.0]])


def zeros(*shape):
    return jnp.asarray(np.zeros(shape))


def ones(*shape):
    return jnp.asarray(np.ones(shape))


WRONG = {
    "matern": (lambda: kernels.Matern(1.0, 2.0), "nu: must be 0.5, 1.5 or 2.5; got 2.0"),
    "degree": (lambda: kernels.Polynomial(0), "degree: must be an integer >= 1"),
    "offset": (lambda: kernels.Polynomial(2, -1.0), "offset: must be finite and > 0"),
    "weight": (lambda: -1.0 * kbp.Linear(), "weight: must be finite and > 0"),
    "bandwidths": (lambda: kernels.ARD([1.0, 0.0]), "bandwidths: must be > 0; got a minimum of 0.0"),
    "ard shape": (
        lambda: kernels.ARD([1.0, 2.0])(zeros(3), zeros(3)),
        r"points: must have shape \(2,\), as bandwidths",
    ),
    "transform": (lambda: kernels.Transformed(3, kbp.Linear()), "transform: must be a function; got 3"),
    "base": (lambda: kernels.Transformed(jnp.sin, 1), "base: must be a Kernel; got 1"),
    "part": (lambda: kernels.Part(kbp.Linear(), 2, 2), "start, stop: must be 0 <= start < stop; got 2, 2"),
    "part shape": (lambda: kernels.Part(kbp.Linear(), 0, 9, (3, 2)), "shape: must have the size of the part"),
    "short": (
        lambda: kbp.gram(kernels.Part(kbp.Linear(), 0, 4), zeros(2, 3), zeros(2, 3)),
        "points: must have at least 4 entries",
    ),
    "projection": (lambda: kernels.RandomProjection(5, 0), "dim: must be an integer >= 1"),
    "matrix": (lambda: kernels.Projected([1.0, 2.0], kbp.Linear()), r"matrix: must be a matrix; got shape \(2,\)"),
    "matrix of NaN": (lambda: kernels.Projected([[np.nan]], kbp.Linear()), "matrix: must be finite; got 1 NaN"),
    "base of projected": (lambda: kernels.Projected(ROWS, 1), "base: must be a Kernel; got 1"),
    "too long": (
        lambda: kernels.Projected(ROWS, kbp.Linear())(zeros(4), zeros(4)),
        "points: must be vectors of length 3",
    ),
    "seed": (lambda: kernels.RandomProjection(5, 3, seed=-1), "seed: must be an integer >= 0"),
    "projected": (
        lambda: PROJECTION(zeros(4), zeros(4)),
        "points: must be vectors of length",
    ),
    "sphere": (
        lambda: kbp.gram(kernels.Sphere(1.0), ones(2, 3), ones(2, 3)),
        r"x: must be unit vectors; got a norm of 1.732. Normalize them: kbpjax.kernels.unit_vectors\(x\).",
    ),
    "no vector": (lambda: kernels.unit_vectors([[0.0, 0.0]]), "x: must have no vector of length 0; got 1"),
    "no rotation": (
        lambda: kbp.gram(kernels.Rotations(1.0), jnp.asarray(1.1 * np.eye(3)[None]), jnp.asarray(np.eye(3)[None])),
        r"x: must be orthogonal matrices; got R'R with an error of 0.21. Use the nearest rotations",
    ),
    "reflection": (
        lambda: kbp.gram(kernels.Heat(1.0), jnp.asarray(-np.eye(3)[None]), jnp.asarray(np.eye(3)[None])),
        "x: must have determinant 1; got 1 reflections",
    ),
    "quaternion": (
        lambda: kbp.gram(kernels.Heat(1.0), ones(1, 4), ones(1, 4)),
        "x: must be unit quaternions; got a norm that is 1 from 1",
    ),
    "rotation shape": (
        lambda: kbp.gram(kernels.Heat(1.0), ones(1, 3), ones(1, 3)),
        "x: must be rotations; got points of shape",
    ),
    "heat": (lambda: kernels.Heat(0.01), "bandwidth: must be finite and >= 0.0666.*Pass num_orders >= 6 / bandwidth"),
    "matrices": (lambda: kernels.nearest_rotations(np.ones(3)), "x: must be matrices"),
    "not square": (lambda: kernels.Precomputed(np.ones((2, 3))), "matrix: must be square"),
    "not symmetric": (
        lambda: kernels.Precomputed([[1.0, 0.5], [0.2, 1.0]]),
        "matrix: must be symmetric; got entries that differ by 0.3 of 1",
    ),
    "not a kernel": (
        lambda: kernels.Precomputed(MATRIX),
        r"matrix: must be positive semidefinite; got eigenvalues from -0.273 to 2.27. Clip them",
    ),
    "index": (
        lambda: kbp.gram(kernels.Precomputed(np.eye(3)), jnp.array([0, 3]), jnp.array([-1])),
        r"x: must be indices among 0 .. 2, rows of the Gram matrix; got \[3\]",
    ),
    "indices": (
        lambda: kernels.Precomputed(np.eye(3))(zeros(2), zeros(2)),
        "points: must be single indices",
    ),
    "negative": (
        lambda: kbp.gram(kernels.Jaccard(), -ones(1, 2), ones(1, 2)),
        "x: must be >= 0; got -1.0",
    ),
    "ties": (
        lambda: kbp.gram(kernels.Mallows(1.0), zeros(2, 3), zeros(1, 3)),
        "x: must rank all items differently; got 2 points with ties",
    ),
    "one item": (
        lambda: kernels.Kendall()(zeros(1), zeros(1)),
        "points: must be rankings",
    ),
}


def test_bad_input_says_what_to_do():
    assert not not_refused({name: (call, "^" + message) for name, (call, message) in WRONG.items()})


def test_clipping_makes_a_gram_matrix_of_similarities():
    nearest = kernels.nearest_gram(MATRIX)
    assert np.linalg.eigvalsh(nearest)[0] >= -1e-12
    found = gram(kernels.Precomputed(nearest), np.arange(3), np.arange(3))
    np.testing.assert_allclose(found, nearest, rtol=1e-6, atol=1e-12)


def test_fit_observe_clamp_and_beliefs_refuse_points_outside_the_domain():
    rng = np.random.default_rng(0)
    graph, x = kbp.chain_graph(3), unit(rng, 60).reshape(20, 3, 3)
    kernel = kernels.Sphere(3.0)
    with pytest.raises(ValueError, match=r"^nodes\[0\]: must be unit vectors; got a norm of 2"):
        kbp.fit(kbp.pool(graph, 2 * x), kernel=kernel)
    with pytest.raises(ValueError, match=r"^observations\[0\]: must be unit vectors"):
        kbp.fit(kbp.pool(graph, x, 2 * x), kernel=kernel, obs_kernel=kernel)
    with pytest.raises(ValueError, match=r"^edges\[0\]: must be unit vectors"):
        kbp.fit(kbp.TrainingData({0: (2 * x[:, 0], x[:, 1])}, {0: x[:, 0]}), kernel=kernel)
    fit = jax.jit(lambda x: kbp.fit(kbp.pool(graph, x, x), kernel=kernel, obs_kernel=kernel, rule=kbp.FullRank()))
    model = fit(x)
    with pytest.raises(ValueError, match="^y: must be unit vectors"):
        kbp.observe(model, graph, 2 * x[0])
    kbp.observe(model, graph, np.array([1, 1, 2])[:, None] * x[0], mask=np.array([True, True, False]))
    with pytest.raises(ValueError, match="^values: must be unit vectors"):
        kbp.clamp(model, graph, [1], 2 * x[0, :1])
    evidence = kbp.clamp(model, graph, [1], x[0, :1])
    solution = jax.jit(kbp.run_tree)(model, graph, evidence)
    with pytest.raises(ValueError, match="^points: must be unit vectors"):
        kbp.beliefs(model, graph, evidence, solution, 2 * x[0])
    assert bool(jnp.isfinite(kbp.beliefs(model, graph, evidence, solution, x[0]).weights).all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rotations", "heat of quaternions", "mallows", "precomputed", "jaccard", "sphere"])
def test_a_chain_of_any_domain_finds_the_middle_of_three_equal_values(name):
    kernel, draw, _ = CASES[name]
    graph = kbp.chain_graph(3)
    values = draw(np.random.default_rng(9), 40)
    samples = np.stack([values] * 3, axis=1)

    @jax.jit
    def middle(kernel, samples, values):
        model = kbp.fit(kbp.pool(graph, samples), kernel=kernel, rule=kbp.FullRank(), ridge=1e-4)
        evidence = kbp.clamp(model, graph, [0, 2], samples[5, :2])
        solution = kbp.run_tree(model, graph, evidence)
        return kbp.mode(kbp.beliefs(model, graph, evidence, solution, values, marginal=kbp.Empirical()))[1]

    np.testing.assert_array_equal(middle(kernel, samples, values), values[5])
