"""Random pivots, Fourier features and the choosers; tests/features/test_cholesky.py has the greedy landmarks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import (
    Basis,
    FeatureMap,
    FourierBasis,
    PivotedCholesky,
    RandomFourier,
    RandomlyPivotedCholesky,
    cholesky_basis,
    features,
    incomplete_cholesky,
)
from tests import reference

X = np.random.default_rng(3).normal(size=(30, 2))
CHOOSERS = {
    "greedy": PivotedCholesky(),
    "random": RandomlyPivotedCholesky(seed=3),
    "fourier": RandomFourier(64, seed=3),
}


@pytest.fixture(params=CHOOSERS, ids=str)
def chooser(request):
    return CHOOSERS[request.param]


# --- random pivots ----------------------------------------------------------------------------------------------------


def draw_many(kernel, x, count, eps, max_rank):
    keys = jax.random.split(jax.random.key(0), count)
    pivots = jax.jit(jax.vmap(lambda key: incomplete_cholesky(kernel, x, eps, max_rank, key)))(keys)
    return np.asarray(pivots.indices), np.asarray(pivots.rank)


def test_pivots_are_drawn_in_proportion_to_squared_residuals():
    """First picks in proportion to k(x, x), second ones to what each first leaves, as the twin computes it."""
    random = np.random.default_rng(0)
    x = random.normal(size=(6, 3)) * np.array([1, 1, 1.5, 0.5, 0.1, 0])[:, None]
    draws, ranks = draw_many(kbp.Linear(), jnp.asarray(x), 40_000, 1e-6, 2)
    assert (ranks == 2).all()

    def check(picks, weights):
        expected = weights / weights.sum()
        observed = np.bincount(picks, minlength=6) / len(picks)
        np.testing.assert_array_less(np.abs(observed - expected), 4.5 * np.sqrt(expected / len(picks)) + 1e-12)
        assert not observed[weights <= 0].any()

    check(draws[:, 0], reference.residuals(reference.linear(), x, []))
    for first in range(4):
        left = reference.residuals(reference.linear(), x, [first])
        check(draws[draws[:, 0] == first, 1], np.where(left < 1e-12, 0, left))


@pytest.mark.parametrize("eps", [0.3, 1e-2, 1e-4])
def test_random_pivots_stop_by_the_rule_of_the_greedy_ones(eps):
    kernel, x = kbp.RBF(0.7), jnp.asarray(X)
    pivots = incomplete_cholesky(kernel, x, eps, 30, jax.random.key(1))
    rank = int(pivots.rank)
    chosen = pivots.indices[:rank].tolist()
    assert len(set(chosen)) == rank and not pivots.indices[rank:].any()
    left = [np.sqrt(reference.residuals(reference.rbf(0.7), X, chosen[:n]).max().clip(0)) for n in (rank - 1, rank)]
    assert left[0] > eps >= left[1]
    np.testing.assert_allclose(pivots.residual, left[1], rtol=1e-6, atol=1e-7)
    few = incomplete_cholesky(kernel, x, eps, 3, jax.random.key(1))
    assert int(few.rank) == 3 and few.indices.tolist() == chosen[:3]


def test_outliers_draw_the_greedy_choice_away_from_the_mass():
    """At a fixed rank random pivots leave a smaller sum of squared residuals on data with many outliers."""
    random = np.random.default_rng(0)
    cloud, outliers = random.normal(size=(600, 2)), 60 * random.normal(size=(60, 2))
    x = jnp.asarray(np.concatenate([cloud, outliers]))
    kernel, rank = kbp.RBF(1.0), 40

    def trace(pivots):
        assert int(pivots.rank) == rank
        basis = cholesky_basis(kernel, x[pivots.indices])
        return float(np.sum(1 - np.sum(np.asarray(features(basis, x)) ** 2, axis=1)))

    greedy = trace(incomplete_cholesky(kernel, x, 1e-9, rank))
    drawn = [trace(incomplete_cholesky(kernel, x, 1e-9, rank, jax.random.key(seed))) for seed in range(10)]
    best = np.linalg.eigvalsh(np.asarray(kbp.gram(kernel, x, x)))[:-rank].sum()
    assert best < np.mean(drawn) < 0.5 * greedy


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [kbp.RBF(1.0), kbp.RBF(1.0) ** 4, kbp.Delta()], ids=["rbf", "power", "delta"])
@pytest.mark.parametrize("distinct", [1, 5])
def test_random_pivots_never_take_a_duplicate(dtype, kernel, distinct):
    values = np.array([0.0, 1.5, 3.1, -2.2, 7.0], dtype)[:distinct]
    x = np.random.default_rng(0).permutation(np.resize(values, 40))
    for seed in range(20):
        pivots = incomplete_cholesky(kernel, jnp.asarray(x), 1e-6, 40, jax.random.key(seed))
        assert int(pivots.rank) == distinct
        assert sorted(x[np.asarray(pivots.indices)[:distinct]].tolist()) == sorted(values.tolist())
        assert float(pivots.residual) <= (3e-3 if dtype == np.float32 else 1e-7)


def test_random_pivots_of_a_kernel_that_vanishes_are_none():
    pivots = incomplete_cholesky(kbp.Linear(), jnp.zeros(4), 1e-3, 3, jax.random.key(0))
    assert int(pivots.rank) == 0 and float(pivots.residual) == 0


def test_residuals_up_to_eight_roundings_count_as_nothing():
    for roundings, rank in ((8, 1), (10, 2)):
        vectors = jnp.array([[1.0, 0.0], [1.0, (roundings * jnp.finfo(float).eps) ** 0.5]])
        assert int(incomplete_cholesky(kbp.Linear(), vectors, 0.0, 2).rank) == rank


def test_a_residual_near_rounding_error_is_drawn_where_there_is_no_larger_one():
    """Two vectors that differ by a few roundings: the second to be drawn is the other, not the same again."""
    vectors = jnp.array([[1.0, 0.0], [1.0, (12 * jnp.finfo(float).eps) ** 0.5]])
    for seed in range(4):
        pivots = incomplete_cholesky(kbp.Linear(), vectors, 0.0, 2, jax.random.key(seed))
        assert sorted(pivots.indices.tolist()) == [0, 1] and int(pivots.rank) == 2


@pytest.mark.parametrize(("seed", "bandwidth"), [*enumerate([0.01, 0.1, 1.0, 10.0, 1e4])])
@pytest.mark.parametrize("exponent", [1, 3])
def test_random_pivots_in_single_precision_make_no_false_claim(seed, bandwidth, exponent):
    x = np.random.default_rng(1).normal(size=300).astype(np.float32)
    exact = np.exp(-exponent * (x[:, None].astype(float) - x[None]) ** 2 / (2 * float(np.float32(bandwidth)) ** 2))
    basis, residual = RandomlyPivotedCholesky(seed).feature_map(
        kbp.RBF(bandwidth) ** exponent, jnp.asarray(x), 1e-4, 200
    )
    r = np.asarray(features(basis, jnp.asarray(x)), np.float64)
    assert np.isfinite(r).all() and residual.dtype == jnp.float32
    # near neighbors among the landmarks magnify the rounding of up to 200 of them, 14 epsilons or 1.7e-6
    assert np.abs(exact - r @ r.T).max() <= float(residual) ** 2 + 1e-4
    assert basis.rank == 200 or float(residual) <= 1e-3


# --- Fourier features -------------------------------------------------------------------------------------------------


def fourier(kernel, x, num_features, seed=0):
    return RandomFourier(num_features, seed).feature_map(kernel, x, 1e-3, 10)


def test_error_falls_as_the_root_of_the_number_of_features():
    x = jnp.asarray(X)
    exact = reference.gram(reference.rbf(1.5), X, X)
    sizes = [64, 256, 1024, 4096]

    def error(num_features):
        squares = []
        for seed in range(5):
            phi = np.asarray(features(fourier(kbp.RBF(1.5), x, num_features, seed)[0], x))
            assert phi.shape == (30, num_features)
            np.testing.assert_allclose(np.sum(phi**2, axis=1), 1, rtol=1e-13)
            squares.append(np.mean((phi @ phi.T - exact) ** 2))
        return np.sqrt(np.mean(squares))

    errors = [error(size) for size in sizes]
    assert errors[-1] < 0.015
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4


@pytest.mark.parametrize("exponent", [1, 4])
def test_features_are_their_formula(exponent):
    kernel = kbp.RBF(0.8) if exponent == 1 else kbp.RBF(0.8) ** exponent
    basis, _ = fourier(kernel, jnp.asarray(X), 6)
    w = np.asarray(basis.frequencies)
    assert w.shape == (3, 2) and basis.rank == 6
    rows = []
    for x in X:
        angles = [w[j] @ x * np.sqrt(exponent) / 0.8 for j in range(3)]
        rows.append(np.sqrt(2 / 6) * np.concatenate([np.cos(angles), np.sin(angles)]))
    np.testing.assert_allclose(features(basis, jnp.asarray(X)), rows, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kernel", [kbp.RBF(2.0) ** 3, (kbp.RBF(2.0 * 2**0.5) ** 2) ** 3], ids=["power", "nested"])
def test_powers_have_a_narrower_bandwidth(kernel):
    x = jnp.asarray(X)
    phi = features(fourier(kernel, x, 20_000)[0], x)
    phi = np.asarray(phi)
    np.testing.assert_allclose(phi @ phi.T, reference.gram(reference.power(reference.rbf(2.0), 3), X, X), atol=0.05)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_points_of_any_shape_and_type(shape, dtype):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 9, size=(12, *shape)).astype(dtype))
    basis, residual = fourier(kbp.RBF(6.0), x, 4000)
    phi = features(basis, x)
    expected = jnp.float32 if dtype == np.float32 else jnp.float64
    assert phi.dtype == residual.dtype == expected and phi.shape == (12, 4000)
    assert basis.point == jax.ShapeDtypeStruct(shape, dtype)
    phi, flat = np.asarray(phi, float), np.asarray(x, float).reshape(12, -1)
    exact = np.exp(-np.sum((flat[:, None] - flat[None]) ** 2, axis=-1) / (2 * 6.0**2))
    np.testing.assert_allclose(phi @ phi.T, exact, atol=0.1)


def test_a_seed_means_the_same_features_in_any_precision():
    double = fourier(kbp.RBF(0.8), jnp.asarray(X), 32)[0]
    single = fourier(kbp.RBF(0.8), jnp.asarray(X, np.float32), 32)[0]
    np.testing.assert_array_equal(double.frequencies, single.frequencies)
    x = jnp.asarray(X)
    np.testing.assert_allclose(single(x.astype(np.float32)), double(x), atol=1e-5)
    other = fourier(kbp.RBF(0.8), x, 32, seed=1)[0]
    assert np.all(np.asarray(other.frequencies) != np.asarray(double.frequencies))


def test_fourier_residual_is_the_largest_error_of_thinned_pairs(monkeypatch):
    x = np.random.default_rng(0).normal(size=(11, 2))
    monkeypatch.setattr("kbpjax.features.fourier.PROBES", 6)
    basis, residual = fourier(kbp.RBF(0.8), jnp.asarray(x), 32)
    probes = x[::2]
    phi = np.asarray(features(basis, jnp.asarray(probes)))
    error = np.abs(reference.gram(reference.rbf(0.8), probes, probes) - phi @ phi.T).max()
    np.testing.assert_allclose(residual, np.sqrt(error), rtol=1e-9)


def test_fourier_gradients():
    weights = jnp.asarray(np.random.default_rng(5).normal(size=(30, 16)))
    direction = jnp.asarray(np.random.default_rng(6).normal(size=X.shape))
    x = jnp.asarray(X)

    @jax.jit
    def total(parameters):
        bandwidth, shift = parameters
        basis, residual = RandomFourier(16).feature_map(kbp.RBF(bandwidth) ** 3, x, 1e-3, 10)
        return jnp.sum(weights * features(basis, x + shift * direction)) + residual - jax.lax.stop_gradient(residual)

    h = 1e-6
    at = jnp.array([0.7, 0.1])
    expected = [(total(at + h * step) - total(at - h * step)) / (2 * h) for step in jnp.eye(2)]
    np.testing.assert_allclose(jax.jit(jax.grad(total))(at), expected, rtol=1e-6)


@pytest.mark.parametrize("num_features", [0, 1, 7, -2, True])
def test_fourier_refuses_odd_numbers(num_features):
    with pytest.raises(ValueError, match="num_features: must be an (even )?integer"):
        RandomFourier(num_features)


@pytest.mark.parametrize("kernel", [kbp.Linear(), kbp.Delta() ** 2, kbp.RBF(1.0) * kbp.RBF(1.0)], ids=str)
def test_fourier_refuses_other_kernels(kernel):
    with pytest.raises(ValueError, match=r"kernel: must be RBF or a power of it.*PivotedCholesky\(\)"):
        fourier(kernel, jnp.asarray(X), 8)


# --- choosers ---------------------------------------------------------------------------------------------------------


def test_a_chooser_gives_a_feature_map_and_its_residual(chooser):
    x = jnp.asarray(X)
    feature_map, residual = chooser.feature_map(kbp.RBF(0.7), x, 0.3, 25)
    assert isinstance(feature_map, FeatureMap)
    r = features(feature_map, x)
    assert r.shape == (30, feature_map.rank)
    assert feature_map.point == jax.ShapeDtypeStruct((2,), jnp.float64)
    np.testing.assert_array_equal(r, jax.jit(lambda f, x: f(x))(feature_map, x))
    error = np.abs(np.asarray(r @ r.T) - reference.gram(reference.rbf(0.7), X, X)).max()
    np.testing.assert_allclose(np.sqrt(error), residual, rtol=1e-6)
    if isinstance(feature_map, Basis):
        assert feature_map.rank < 25 and float(residual) <= 0.3


def test_choosers_of_landmarks_choose_as_incomplete_cholesky():
    x = jnp.asarray(X)
    for chooser, key in (
        (PivotedCholesky(), None),
        (RandomlyPivotedCholesky(), jax.random.key(0)),
        (RandomlyPivotedCholesky(7), jax.random.key(7)),
    ):
        basis, residual = chooser.feature_map(kbp.RBF(0.7), x, 0.05, 25)
        pivots = incomplete_cholesky(kbp.RBF(0.7), x, 0.05, 25, key)
        np.testing.assert_array_equal(basis.landmarks, x[pivots.indices[: int(pivots.rank)]])
        assert float(residual) == float(pivots.residual)


@pytest.mark.parametrize(("transform", "shape"), [(jax.jit, ()), (jax.grad, ()), (jax.vmap, (2,))])
@pytest.mark.parametrize("name", ["greedy", "random"])
def test_landmarks_are_not_chosen_among_tracers(name, transform, shape):
    def of_kernel(bandwidth):
        return CHOOSERS[name].feature_map(kbp.RBF(bandwidth), jnp.asarray(X), 0.2, 25)[1]

    def of_samples(shift):
        return CHOOSERS[name].feature_map(kernel, jnp.asarray(X) + shift.reshape(1, 1), 0.2, 25)[1]

    kernel = kbp.RBF(0.7)
    for of in (of_kernel, of_samples):
        with pytest.raises(ValueError, match="^kernel, x: must be known inside jax.jit, vmap or grad; got a tracer"):
            transform(of)(jnp.ones(shape))


def test_inside_jit_landmarks_of_known_samples_are_those_outside(chooser):
    kernel, x = kbp.RBF(0.7), jnp.asarray(X)
    outside, residual = chooser.feature_map(kernel, x, 0.2, 25)

    @jax.jit
    def inside():
        feature_map, residual = chooser.feature_map(kernel, x, 0.2, 25)
        return features(feature_map, x), residual

    r, residual_inside = inside()
    assert r.shape[1] == outside.rank
    np.testing.assert_allclose(r, features(outside, x), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(residual_inside, residual, rtol=1e-9)


def test_inside_jit_random_features_need_no_values():
    """The gradient is the one with frequencies held fixed; the residual has none."""
    x, chooser = jnp.asarray(X), CHOOSERS["fourier"]
    fixed, _ = chooser.feature_map(kbp.RBF(0.7), x, 0.2, 25)

    @jax.jit
    def total(bandwidth):
        feature_map, residual = chooser.feature_map(kbp.RBF(bandwidth), x, 0.2, 25)
        return jnp.sum(jnp.sin(features(feature_map, x))) + residual

    @jax.jit
    def of_fixed(bandwidth):
        return jnp.sum(jnp.sin(features(FourierBasis(fixed.frequencies, bandwidth, fixed.dtype), x)))

    h = 1e-6
    expected = (of_fixed(jnp.float64(0.7 + h)) - of_fixed(jnp.float64(0.7 - h))) / (2 * h)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(0.7), expected, rtol=1e-6)


def test_products_need_landmarks():
    assert PivotedCholesky().products == PivotedCholesky()
    assert RandomlyPivotedCholesky(4).products == RandomlyPivotedCholesky(4)
    assert RandomFourier(8).products == PivotedCholesky()


@pytest.mark.parametrize("chooser", [PivotedCholesky(), RandomlyPivotedCholesky()], ids=str)
def test_landmarks_refuse_a_kernel_that_vanishes(chooser):
    with pytest.raises(ValueError, match="kernel: must not vanish on the training samples"):
        chooser.feature_map(kbp.Linear(), jnp.zeros(4), 1e-3, 3)


@pytest.mark.parametrize("seed", [-1, 2**32, True])
def test_seeds_are_whole_numbers(seed):
    with pytest.raises(ValueError, match="seed: must be an integer"):
        RandomlyPivotedCholesky(seed)
    with pytest.raises(ValueError, match="seed: must be an integer"):
        RandomFourier(8, seed)


def test_counts_and_seeds_may_be_those_of_numpy():
    x, kernel = jnp.linspace(0, 1, 5), kbp.RBF(1.0)
    one, other = (
        of.feature_map(kernel, x, 1e-2, 3)[0] for of in (RandomFourier(np.int64(8), np.int64(1)), RandomFourier(8, 1))
    )
    np.testing.assert_array_equal(one.frequencies, other.frequencies)
    assert RandomlyPivotedCholesky(np.int64(4)) == RandomlyPivotedCholesky(4)
    assert kbp.ConstantTime(1e-2, np.int64(8)) == kbp.ConstantTime(1e-2, 8)


def test_choosers_are_static():
    """As options of a jitted function they are compared, not traced."""
    for chooser in CHOOSERS.values():
        assert not jax.tree.leaves(chooser)
        assert hash(chooser) == hash(chooser)


class Thinned(kbp.features.LandmarkSelector):
    """Landmarks at even steps through the samples."""

    products = kbp.PivotedCholesky()

    def feature_map(self, kernel, x, eps, max_rank):
        basis = kbp.features.cholesky_basis(kernel, x[:: -(-len(x) // max_rank)], rounding=max_rank)
        return basis, kbp.learning.embedding.feature_residual(kernel, basis, x)


def test_landmarks_of_ones_own_are_learned_with():
    x = np.random.default_rng(0).normal(size=(40, 4)).cumsum(axis=1)
    rule = kbp.ConstantTime(max_rank=6, features=Thinned())
    model = kbp.fit(kbp.pool(kbp.chain_graph(4), x), kernel=kbp.RBF(1.0), rule=rule)
    assert model.ranks[0][0] <= 6
    np.testing.assert_array_equal(np.asarray(model.bases[0].landmarks), x.ravel()[:: -(-x.size // 6)])


def test_a_chooser_whose_products_have_no_landmarks_is_refused():
    class Waves(Thinned):
        products = RandomFourier(8)

    data = kbp.pool(kbp.chain_graph(4), np.random.default_rng(0).normal(size=(5, 4)))
    with pytest.raises(ValueError, match="features: must have products on a `Basis`"):
        kbp.fit(data, kernel=kbp.RBF(1.0), rule=kbp.ConstantTime(features=Waves()))
