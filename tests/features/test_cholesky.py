from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import Basis, cholesky_basis, features, incomplete_cholesky, represented
from tests import reference

KERNELS = {
    "rbf": (kbp.RBF(0.7), reference.rbf(0.7)),
    "power": (kbp.RBF(0.7) ** 3, reference.power(reference.rbf(0.7), 3)),
    "linear": (kbp.Linear(), reference.linear()),
    "sum": (kbp.RBF(0.7) + kbp.Linear(), reference.add(reference.rbf(0.7), reference.linear())),
}
X = np.random.default_rng(3).normal(size=(30, 2))


jitted_basis = jax.jit(cholesky_basis)
jitted_features = jax.jit(features)
pivots_of = jax.jit(incomplete_cholesky, static_argnums=3)
gram = jax.jit(kbp.gram)


def basis_of(kernel, x, eps, max_rank):
    pivots = pivots_of(kernel, x, eps, max_rank)
    landmarks = np.asarray(x)[np.asarray(pivots.indices)[: int(pivots.rank)]]
    return jitted_basis(kernel, jnp.asarray(landmarks)), pivots


@pytest.fixture(params=KERNELS, ids=str)
def both(request):
    return KERNELS[request.param]


@pytest.mark.parametrize(("eps", "max_rank"), [(0.3, 30), (1e-3, 12)])
def test_equals_twin(both, eps, max_rank):
    kernel, twin = both
    basis, pivots = basis_of(kernel, jnp.asarray(X), eps, max_rank)
    indices, residual = reference.incomplete_cholesky(twin, X, eps, max_rank)
    assert pivots.indices[: int(pivots.rank)].tolist() == indices
    assert pivots.indices.shape == (max_rank,) and not pivots.indices[int(pivots.rank) :].any()
    np.testing.assert_allclose(pivots.residual, residual, rtol=1e-7, atol=1e-7)
    new = np.random.default_rng(4).normal(size=(30, 2))
    np.testing.assert_allclose(
        jitted_features(basis, jnp.asarray(new)), reference.gram_schmidt(twin, X[indices], new), rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_points_of_any_shape(shape):
    x = np.random.default_rng(0).normal(size=(12, *shape))
    basis, pivots = basis_of(kbp.RBF(0.7), jnp.asarray(x), 0.3, 12)
    indices, _ = reference.incomplete_cholesky(reference.rbf(0.7), x, 0.3, 12)
    assert pivots.indices[: len(indices)].tolist() == indices and int(pivots.rank) == len(indices)
    assert basis.landmarks.shape == (len(indices), *shape)


@pytest.mark.parametrize("eps", [0.5, 0.1, 1e-2, 1e-4])
@pytest.mark.parametrize("count", [1, 30])
def test_inner_products_reproduce_the_gram_matrix_within_eps(both, eps, count):
    kernel, twin = both
    x = jnp.asarray(X[:count])
    pivots, r = pivots_and_features(kernel, x, eps, 30)
    error = reference.gram(twin, x, x) - np.asarray(r @ r.T)
    largest = np.diag(reference.gram(twin, x, x)).max()
    assert np.abs(error).max() <= largest * (eps**2 + 1e-12)
    assert np.linalg.eigvalsh(error)[0] >= -1e-12 * largest  # the error is a Gram matrix, of what the projection leaves
    assert float(pivots.residual) <= eps
    left = np.sqrt(np.diag(error).max(initial=0).clip(0) / largest)
    np.testing.assert_allclose(left, pivots.residual, atol=2e-6)


@pytest.mark.parametrize("max_rank", [1, 7])
def test_rank_stops_at_max_rank_and_says_what_is_left(both, max_rank):
    kernel, twin = both
    pivots = pivots_of(kernel, jnp.asarray(X), 1e-9, max_rank)
    rank = min(max_rank, 2) if kernel is KERNELS["linear"][0] else max_rank
    assert int(pivots.rank) == rank
    indices = pivots.indices[:rank].tolist()
    assert len(set(indices)) == rank
    left = np.sqrt(reference.residuals(twin, X, indices).clip(0).max() / reference.residuals(twin, X, []).max())
    np.testing.assert_allclose(pivots.residual, left, rtol=1e-9, atol=1e-7)


def test_the_first_landmark_has_the_largest_feature():
    pivots = pivots_of(kbp.Linear(), jnp.array([1.0, -5.0, 3.0]), 1e-3, 3)
    assert int(pivots.indices[0]) == 1 and int(pivots.rank) == 1
    assert float(pivots.residual) < 1e-7


@pytest.mark.parametrize("max_rank", [5, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_more_landmarks_than_samples(max_rank, dtype):
    x = jnp.asarray(np.arange(5), dtype)
    pivots = pivots_of(kbp.RBF(0.5), x, 1e-3, max_rank)
    assert int(pivots.rank) == 5 and pivots.indices.shape == (5,)
    assert sorted(pivots.indices.tolist()) == [0, 1, 2, 3, 4]
    assert float(pivots.residual) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [kbp.RBF(1.0), kbp.RBF(1.0) ** 4, kbp.Delta()], ids=["rbf", "power", "delta"])
@pytest.mark.parametrize("distinct", [1, 5])
def test_duplicates_end_the_loop(dtype, kernel, distinct):
    values = np.array([0.0, 1.5, 3.1, -2.2, 7.0], dtype)[:distinct]
    x = jnp.asarray(np.random.default_rng(0).permutation(np.resize(values, 40)))
    pivots, r = pivots_and_features(kernel, x, 1e-6, 40)
    assert int(pivots.rank) == distinct
    assert sorted(np.asarray(x)[np.asarray(pivots.indices)[:distinct]].tolist()) == sorted(values.tolist())
    tolerance = 3e-3 if dtype == np.float32 else 1e-7
    assert float(pivots.residual) <= tolerance
    assert r.dtype == dtype
    np.testing.assert_allclose(r @ r.T, gram(kernel, x, x), atol=tolerance**2 + 1e-15)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e6, 1e-6])
def test_constant_data_have_rank_one(value):
    x = jnp.full(20, value)
    pivots, r = pivots_and_features(kbp.RBF(0.3), x, 1e-3, 10)
    assert int(pivots.rank) == 1 and float(pivots.residual) == 0
    np.testing.assert_allclose(r @ r.T, np.ones((20, 20)), rtol=1e-14)


def test_a_kernel_that_vanishes_has_rank_zero():
    pivots = pivots_of(kbp.Linear(), jnp.zeros(4), 1e-3, 3)
    assert int(pivots.rank) == 0 and float(pivots.residual) == 0


def test_no_points_are_refused():
    with pytest.raises(ValueError, match="^x: must hold a point"):
        incomplete_cholesky(kbp.RBF(1.0), np.zeros((0, 2)), 0.1, 5)


@pytest.mark.parametrize("scale", [0.2, 5.0])
def test_represented_is_the_share_of_the_squared_norm_of_a_feature(scale):
    kernel = scale * kbp.RBF(0.7) + kbp.Linear()
    landmarks, x = np.array([0.2, 0.9]), np.array([-1.5, 0.2, 0.5, 4.0])
    inside, across = (np.asarray(kbp.gram(kernel, landmarks, of)) for of in (landmarks, x))
    shares = np.sum(across * np.linalg.solve(inside, across), axis=0) / (scale + x**2)
    np.testing.assert_allclose(represented(cholesky_basis(kernel, landmarks), x), shares, rtol=1e-9)
    assert shares[0] < 0.99 and shares[1] > 1 - 1e-9
    of_line = cholesky_basis(kbp.Linear(), np.array([0.5]))
    np.testing.assert_allclose(represented(of_line, np.array([0.0, 3.0])), [0, 1], rtol=1e-12)  # k(0, 0) = 0


def test_one_sample():
    basis, pivots = basis_of(kbp.RBF(0.3), jnp.array([2.0]), 1e-3, 8)
    assert int(pivots.rank) == 1 and float(pivots.residual) == 0
    np.testing.assert_allclose(jitted_features(basis, jnp.array([2.0, 2.3])), [[1.0], [np.exp(-0.5)]], rtol=1e-14)


@pytest.mark.parametrize(  # every two of these meet
    ("layout", "exponent", "eps"),
    [
        ("normal", 1, 1e-6),
        ("normal", 3, 1e-4),
        ("sorted", 1, 1e-4),
        ("sorted", 3, 1e-6),
        ("plane", 1, 1e-6),
        ("plane", 3, 1e-4),
    ],
)
def test_single_precision_never_gives_nan(eps, exponent, layout):
    """Smooth kernels of up to 200 landmarks are singular in f32: nothing may overflow, and no claim be false."""
    random = np.random.default_rng(1)
    x = {
        "normal": random.normal(size=300),
        "sorted": np.linspace(-1, 1, 300),
        "plane": random.normal(size=(300, 2)),
    }[layout].astype(np.float32)
    for bandwidth in [1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e4]:
        pivots, r = pivots_and_features(kbp.RBF(bandwidth) ** exponent, jnp.asarray(x), eps, 200)
        assert pivots.residual.dtype == jnp.float32 and r.dtype == jnp.float32
        rank = int(pivots.rank)
        assert 1 <= rank <= 200
        assert np.isfinite(r).all(), f"bandwidth {bandwidth}, rank {rank}"
        assert np.isfinite(pivots.residual)
        if rank < 200:  # it stopped because of the tolerance, or of what single precision can see
            assert float(pivots.residual) <= max(eps, 1e-3)
        exact = gram64(x, bandwidth, exponent)
        error = np.abs(exact - np.asarray(r, np.float64) @ np.asarray(r, np.float64).T).max()
        assert error <= float(pivots.residual) ** 2 + 3e-5, f"bandwidth {bandwidth}, rank {rank}, error {error}"
        assert np.all(np.sum(r**2, axis=1) <= 1 + 1e-4)  # a projection is no longer than the feature


@partial(jax.jit, static_argnums=3)
def pivots_and_features(kernel, x, eps, max_rank):
    pivots = incomplete_cholesky(kernel, x, eps, max_rank)
    valid = jnp.arange(len(pivots.indices), dtype=jnp.int32) < pivots.rank
    return pivots, features(cholesky_basis(kernel, x[pivots.indices], valid), x)


def gram64(x, bandwidth, exponent):
    flat = x.reshape(len(x), -1).astype(np.float64)
    squared = np.sum((flat[:, None] - flat[None]) ** 2, axis=-1)
    return np.exp(-exponent * squared / (2 * float(np.float32(bandwidth)) ** 2))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_of_a_linear_kernel(scale, dtype):
    """The tolerance is a share of the largest feature: the outcome scales with the points."""
    x = jnp.asarray(X * scale, dtype)
    pivots, r = pivots_and_features(kbp.Linear(), x, 1e-2, 10)
    assert int(pivots.rank) == 2
    expected = np.asarray(x, np.float64) @ np.asarray(x, np.float64).T
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(r @ r.T, expected, rtol=0, atol=tolerance * np.abs(expected).max())


# --- transformations --------------------------------------------------------------------------------------------------


def test_inside_jit_is_the_same():
    x = jnp.asarray(X)
    outside = incomplete_cholesky(kbp.RBF(0.7), x, 1e-2, 12)
    inside = jax.jit(lambda b, x, eps: incomplete_cholesky(kbp.RBF(b), x, eps, 12))(0.7, x, 1e-2)
    assert outside.indices.tolist() == inside.indices.tolist()
    np.testing.assert_allclose(outside.residual, inside.residual, rtol=1e-9)


def test_vmap_over_bandwidths_equals_a_loop():
    x = jnp.asarray(X)
    bandwidths = jnp.array([0.3, 0.7, 2.0, 50.0])
    stacked = jax.jit(jax.vmap(lambda b: incomplete_cholesky(kbp.RBF(b), x, 0.05, 12)))(bandwidths)
    ranks = set()
    for i, bandwidth in enumerate(bandwidths):
        single = pivots_of(kbp.RBF(bandwidth), x, 0.05, 12)
        assert stacked.indices[i].tolist() == single.indices.tolist()
        assert int(stacked.rank[i]) == int(single.rank)
        np.testing.assert_allclose(stacked.residual[i], single.residual, rtol=1e-9)
        ranks.add(int(single.rank))
    assert len(ranks) > 1  # lanes that end at different times


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["rbf", "linear", "product"])
def test_padding_gives_zero_features_and_leaves_the_others(name, dtype, scale):
    kernel = {"rbf": kbp.RBF(0.7 * scale), "linear": kbp.Linear(), "product": kbp.Linear() * kbp.Linear()}[name]
    x = jnp.asarray(X * scale, dtype)
    landmarks = x[jnp.array([0, 5])]
    alone = jitted_features(jitted_basis(kernel, landmarks), x)
    valid = jnp.array([True, True, False, False])
    padded = jitted_features(jitted_basis(kernel, x[jnp.array([0, 5, 0, 0])], valid), x)
    largest = np.abs(alone).max()
    assert largest > 0 and padded.dtype == dtype
    np.testing.assert_allclose(padded[:, :2], alone, rtol=0, atol=(1e-5 if dtype == np.float32 else 1e-12) * largest)
    assert not padded[:, 2:].any()


def test_padding_does_not_reach_gradients():
    x = jnp.asarray(X)

    def total(bandwidth, indices, valid):
        basis = cholesky_basis(kbp.RBF(bandwidth), x[np.array(indices)], valid)
        return jnp.sum(jnp.sin(features(basis, x)))

    alone = jax.jit(jax.grad(lambda b: total(b, [0, 5, 9], None)))(0.7)
    valid = np.array([True, True, True, False, False])
    padded = jax.jit(jax.grad(lambda b: total(b, [0, 5, 9, 0, 0], jnp.asarray(valid))))(0.7)
    assert np.isfinite(padded)
    np.testing.assert_allclose(padded, alone, rtol=1e-9)


def test_gradient_in_the_bandwidth_with_landmarks_held_fixed():
    x = jnp.asarray(X)
    landmarks = x[pivots_of(kbp.RBF(0.7), x, 0.05, 12).indices]
    weights = jnp.asarray(np.random.default_rng(5).normal(size=(30, 12)))

    def total(bandwidth):
        return jnp.sum(weights * features(cholesky_basis(kbp.RBF(bandwidth), landmarks), x))

    all_three = jax.jit(lambda at: (*jax.jvp(total, (at,), (jnp.ones_like(at),)), jax.grad(total)(at)))
    (down, *_), (_, forward, backward), (up, *_) = (all_three(0.7 + step) for step in (-1e-5, 0, 1e-5))
    expected = (up - down) / 2e-5
    np.testing.assert_allclose(backward, expected, rtol=1e-6)
    np.testing.assert_allclose(forward, expected, rtol=1e-6)


def test_gradient_in_the_landmarks():
    x, landmarks = jnp.asarray(X), jnp.asarray(X[:4])
    direction = jnp.asarray(np.random.default_rng(6).normal(size=(4, 2)))

    @jax.jit
    @jax.value_and_grad
    def total(shift):
        basis = cholesky_basis(kbp.RBF(0.7), landmarks + shift * direction)
        return jnp.sum(jnp.sin(features(basis, x)))

    h = 1e-5
    np.testing.assert_allclose(total(0.0)[1], (total(h)[0] - total(-h)[0]) / (2 * h), rtol=1e-6)


def test_memory_grows_with_rank_and_not_with_pairs():
    samples, max_rank = 20_000, 10
    x = jax.ShapeDtypeStruct((samples,), jnp.float32)
    compiled = jax.jit(lambda x: incomplete_cholesky(kbp.RBF(0.1), x, 1e-3, max_rank)).lower(x).compile()
    held = compiled.memory_analysis().temp_size_in_bytes
    assert 0 < held < 4 * samples * 4 * max_rank  # a Gram matrix would take 1.6 GB, this is 3 MB


def test_is_a_pytree():
    basis = cholesky_basis(kbp.RBF(0.7), jnp.asarray(X[:3]))
    again = jax.tree.map(lambda leaf: leaf, basis)
    assert isinstance(again, Basis) and len(jax.tree.leaves(basis)) == 3


@pytest.mark.parametrize("dim,decay,bandwidth", [(12, 0.6, 1.5), (6, 0.8, 3.0)])
def test_hundreds_of_landmarks_in_single_precision_have_a_finite_basis(dim, decay, bandwidth):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(900, dim)) * decay ** np.arange(dim), jnp.float32)
    kernel = kbp.RBF(jnp.float32(bandwidth))
    indices = np.asarray(incomplete_cholesky(kernel, x, 1e-3, 600).indices)
    basis = jitted_basis(kernel, x[indices[: len(np.unique(indices))]])
    assert basis.rank > 300
    assert np.isfinite(basis.transform).all()


@pytest.mark.parametrize("size", [0.01, 0.3, 40.0])
def test_the_residual_is_a_share_of_the_largest_feature(size):
    x = jnp.asarray(np.random.default_rng(0).normal(size=30))
    plain, scaled = (incomplete_cholesky(kernel, x, 1e-6, 4) for kernel in (kbp.RBF(1.0), size * kbp.RBF(1.0)))
    assert plain.indices.tolist() == scaled.indices.tolist()
    np.testing.assert_allclose(scaled.residual, plain.residual, rtol=1e-6)
