"""Random features of distributions against sampling, exact kernels, and the errors that theory and prototype expect."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import kbpjax as kbp
from kbpjax import kernels
from kbpjax.features import (
    Concatenated,
    EmbeddingFeatures,
    FeatureMap,
    Kronecker,
    MeanVarianceFeatures,
    Restricted,
    SampleFeatures,
    TwoStage,
    draw_frequencies,
    draw_phases,
    features,
)
from kbpjax.kernels import Coordinates, EmbeddingRBF, ExpectedProduct, MeanVariance
from tests.refusals import not_refused

SCALES = np.array([0.8, 2.0])
KEY = jax.random.key(0)
EIGHT = EmbeddingFeatures.draw(KEY, 8, 2, SCALES)
gram = jax.jit(kbp.gram)
features_of = jax.jit(features)
draw_one = jax.jit(EmbeddingFeatures.draw, static_argnums=(1, 2))


def variances(count=5, width=2, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.normal(size=(count, width)), rng.gamma(2.0, 0.5, size=(count, width))], axis=1)


def covariances(count=5, width=2, seed=0, scale=0.25):
    rng = np.random.default_rng(seed)
    matrices = scipy.stats.wishart(width + 2, scale * np.eye(width)).rvs(count, random_state=rng)
    return np.concatenate([rng.normal(size=(count, 1, width)), np.reshape(matrices, (count, width, width))], axis=1)


POINTS = {"variances": variances(), "covariances": covariances()}


@pytest.fixture(params=POINTS, ids=str)
def points(request):
    return POINTS[request.param]


@partial(jax.jit, static_argnums=(1, 2, 5))
def two_stage(key, inner, outer, width, bandwidths, count=2):
    first, second = jax.random.split(key)
    return TwoStage.draw(second, outer, EmbeddingFeatures.draw(first, inner, count, bandwidths), width)


def small():
    return two_stage(KEY, 20, 30, 0.4, SCALES)


def each(key, make, count=20):
    """Maps of the first and of the second coordinate."""
    keys = jax.random.split(key)
    return [make(keys[l], count, 1, SCALES[l]) for l in range(2)]


# --- one stage --------------------------------------------------------------------------------------------------------


def of_samples(phi, x, draws):
    """Means of the cosines over draws, with their standard errors."""
    values = np.cos(draws @ np.asarray(phi.frequencies).T + np.asarray(phi.phases)) * (2 / phi.rank) ** 0.5
    return values.mean(axis=0), values.std(axis=0) / len(values) ** 0.5


def test_expected_cosines_equal_means_over_samples(points):
    phi = EIGHT
    found = np.asarray(features_of(phi, jnp.asarray(points)))
    rng = np.random.default_rng(1)
    for x, value in zip(points[:2], found[:2], strict=True):
        spread = np.diag(x[1]) if len(x) == 2 else x[1:]
        mean, error = of_samples(phi, x, rng.multivariate_normal(x[0], spread, size=250_000))
        assert error.max() < 2e-3
        np.testing.assert_array_less(np.abs(value - mean), 4 * error)


@pytest.mark.parametrize("rows", [2, 3])
def test_cosines_of_points_without_spread(rows):
    phi = EIGHT
    x = np.zeros((3, rows, 2))
    x[:, 0] = np.random.default_rng(0).normal(size=(3, 2))
    expected = [
        [np.cos(w @ m + b) / 2 for w, b in zip(*map(np.asarray, (phi.frequencies, phi.phases)))] for m in x[:, 0]
    ]
    np.testing.assert_allclose(features_of(phi, jnp.asarray(x)), expected, rtol=1e-12, atol=1e-13)
    samples = SampleFeatures(phi.frequencies, phi.phases)
    np.testing.assert_allclose(features_of(samples, jnp.asarray(x[:, :1])), expected, rtol=1e-12, atol=1e-13)


def test_features_of_samples_are_means_over_draws():
    rng = np.random.default_rng(0)
    draws = rng.gamma(2.0, size=(3, 50_000, 2))
    phi = SampleFeatures.draw(KEY, 8, 2, SCALES)
    expected = [of_samples(phi, None, x)[0] for x in draws]
    np.testing.assert_allclose(features_of(phi, jnp.asarray(draws)), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(phi.frequencies, EIGHT.frequencies, rtol=1e-5)


def test_variances_are_diagonal_covariances():
    x = POINTS["variances"]
    full = np.stack([np.concatenate([a[:1], np.diag(a[1])]) for a in x])
    phi = small()
    np.testing.assert_allclose(
        features_of(phi, jnp.asarray(x)), features_of(phi, jnp.asarray(full)), rtol=1e-11, atol=1e-13
    )


FIRST, SECOND = (Coordinates(ExpectedProduct(SCALES[l]), l, l + 1) for l in range(2))


def restricted(key):
    return [Restricted(phi, l, l + 1) for l, phi in enumerate(each(key, EmbeddingFeatures.draw))]


MAPS = {
    "product": (lambda key: EmbeddingFeatures.draw(key, 20, 2, SCALES), ExpectedProduct(SCALES)),
    "one bandwidth": (lambda key: EmbeddingFeatures.draw(key, 20, 2, 0.7), ExpectedProduct(0.7)),
    "product of parts": (lambda key: Kronecker(*restricted(key)), FIRST * SECOND),
    "sum of parts": (lambda key: Concatenated(*restricted(key)), FIRST + SECOND),
    "mean variance": (lambda key: MeanVarianceFeatures.draw(key, 20, 2, 0.7, SCALES), MeanVariance(0.7, SCALES)),
}


ON = {"one bandwidth": "variances", "sum of parts": "covariances", "product of parts": "covariances"}
CASES = [("product", "covariances"), *((name, ON.get(name, "variances")) for name in MAPS)]


@pytest.mark.parametrize("name,of", CASES)
def test_mean_inner_products_are_the_kernel(name, of):
    points = POINTS[of]
    draw, kernel = MAPS[name]

    def inner(key):
        phi = draw(key)(jnp.asarray(points))
        return phi @ phi.T

    values = np.asarray(jax.jit(jax.vmap(inner))(jax.random.split(KEY, 400)))
    error = values.std(axis=0, ddof=1) / 20
    expected = gram(kernel, jnp.asarray(points), jnp.asarray(points))
    np.testing.assert_array_less(np.abs(values.mean(axis=0) - expected), 4 * error)
    assert error.max() < 0.03


def test_combinations_are_what_they_say():
    left, right = restricted(KEY)
    x = jnp.asarray(POINTS["covariances"])
    a, b = np.asarray(left(x)), np.asarray(right(x))
    both, pairs = Concatenated(left, right), Kronecker(left, right)
    np.testing.assert_array_equal(both(x), np.hstack([a, b]))
    np.testing.assert_allclose(pairs(x), [np.kron(*rows) for rows in zip(a, b)], rtol=1e-14)
    assert both.rank == 40 and pairs.rank == 400 and both.point.shape == pairs.point.shape == (2, 2)


# --- two stages -------------------------------------------------------------------------------------------------------


def test_two_stages_are_cosines_of_features():
    phi = small()
    x = jnp.asarray(POINTS["variances"])
    inner = np.asarray(phi.inner(x))
    expected = np.cos(inner @ np.asarray(phi.frequencies).T + np.asarray(phi.phases)) / 15**0.5
    np.testing.assert_allclose(features_of(phi, x), expected, rtol=1e-12, atol=1e-13)
    assert abs(phi.frequencies.std() - 1 / 0.4) < 0.2 and phi.rank == 30 and phi.point.shape == (2, 2)


def rms(kernel, phi, x):
    psi = np.asarray(features_of(phi, x))
    return np.sqrt(np.mean((psi @ psi.T - np.asarray(gram(kernel, x, x))) ** 2))


def messages(count=300):
    """Tuples as logistic regression has them: a Beta of a label, and a Gaussian."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, count)
    means = np.stack([(1 + label) / 3, 4 * rng.normal(size=count)], axis=1)
    spread = np.stack([np.full(count, 1 / 18), rng.gamma(2.0, 2.0, size=count)], axis=1)
    return jnp.asarray(np.stack([means, spread], axis=1))


@pytest.mark.parametrize(
    "inner,outer,most",
    [
        (300, 500, 0.06),
        pytest.param(500, 1000, 0.045, marks=pytest.mark.slow),
        pytest.param(4000, 8000, 0.02, marks=pytest.mark.slow),
    ],
)
def test_gram_errors_of_two_stages(inner, outer, most):
    x = messages().astype(np.float32)
    bandwidths, width = jax.jit(kernels.median_embedding)(x)
    error = rms(EmbeddingRBF(bandwidths, width), two_stage(KEY, inner, outer, width, bandwidths), x)
    assert most / 10 < error <= most


@pytest.mark.slow
@pytest.mark.parametrize("count,mean,deviation", [(500, 0.022, 0.011), (10_000, 0.004, 0.003)])
def test_figure_of_one_stage(count, mean, deviation):
    """Mean |error| over pairs of 400 messages: the band is four standard errors of a mean of five draws."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(np.stack([3 * rng.normal(size=400), rng.gamma(3.0, 4.0, size=400)], axis=1)[..., None], "f4")
    exact = gram(ExpectedProduct(np.float32(3**0.5)), x, x)
    errors = []
    for key in jax.random.split(KEY, 5):
        phi = np.asarray(features_of(draw_one(key, count, 1, np.float32(3**0.5)), x))
        errors.append(np.mean(np.abs(phi @ phi.T - exact)))
    assert abs(np.mean(errors) - mean) < 4 * deviation / 5**0.5


@pytest.mark.slow
@pytest.mark.parametrize("inner,outer,mean,deviation", [(100, 100, 0.080, 0.036), (600, 700, 0.022, 0.012)])
def test_figure_of_two_stages(inner, outer, mean, deviation):
    """The same of the root mean square over pairs of 300 Gaussians in space."""
    rng = np.random.default_rng(0)
    matrices = scipy.stats.wishart(5, np.eye(3)).rvs(300, random_state=rng)
    x = jnp.asarray(np.concatenate([rng.normal(size=(300, 1, 3)), matrices], axis=1), "f4")
    root = np.float32(2**0.5)
    kernel = EmbeddingRBF(root, np.float32(1))
    errors = [rms(kernel, two_stage(key, inner, outer, np.float32(1), root, 3), x) for key in jax.random.split(KEY, 5)]
    assert abs(np.mean(errors) - mean) < 4 * deviation / 5**0.5


# --- draws, precision, programs ---------------------------------------------------------------------------------------


def test_frequencies_and_phases():
    w = np.asarray(draw_frequencies(KEY, (20_000, 2), jnp.asarray(SCALES)))
    np.testing.assert_allclose(w.std(axis=0), 1 / SCALES, rtol=0.03)
    assert scipy.stats.kstest(w[:, 1] * SCALES[1], "norm").pvalue > 1e-3
    b = np.asarray(draw_phases(KEY, 20_000, np.dtype(np.float64)))
    assert scipy.stats.kstest(b / (2 * np.pi), "uniform").pvalue > 1e-3
    phi = EmbeddingFeatures.draw(KEY, 200, 2, SCALES)
    assert abs(np.corrcoef(phi.frequencies[:, 0], phi.phases)[0, 1]) < 0.3


def test_a_key_means_the_same_features_in_any_precision(points):
    values = {}
    for dtype in (np.float32, np.float64):
        phi = two_stage(KEY, 20, 30, np.asarray(0.4, dtype), SCALES.astype(dtype))
        x = jnp.asarray(points.astype(np.float32), dtype)
        values[dtype] = features_of(phi, x)
        assert values[dtype].dtype == phi.frequencies.dtype == phi.point.dtype == dtype
    np.testing.assert_allclose(values[np.float32], values[np.float64], atol=3e-6)
    mixed = features_of(small(), jnp.asarray(points, np.float32))
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, values[np.float64], atol=3e-6)


def test_gradients_in_parameters_and_points(points):
    def f(free):
        x = free[:-3].reshape(1, *points[0].shape)
        return jnp.sum(two_stage(KEY, 6, 7, free[-1], free[-3:-1])(x) ** 2)

    free = jnp.concatenate([jnp.asarray(points[0]).ravel(), jnp.asarray(SCALES), jnp.array([0.4])])
    slopes = jax.jit(jax.value_and_grad(f))
    steps = 1e-6 * np.eye(len(free))
    expected = [(slopes(free + step)[0] - slopes(free - step)[0]) / 2e-6 for step in steps]
    found = slopes(free)[1]
    assert np.abs(found).min() > 1e-6
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_a_single_point_is_a_row_of_many(points):
    phi = small()
    one, all_of_them = features_of(phi, jnp.asarray(points[:1])), features_of(phi, jnp.asarray(points))
    np.testing.assert_allclose(one[0], all_of_them[0], rtol=1e-12, atol=1e-14)
    mapped = jax.jit(jax.vmap(lambda x: phi(x[None])[0]))(jnp.asarray(points))
    np.testing.assert_allclose(mapped, all_of_them, rtol=1e-12, atol=1e-14)


# --- what is refused --------------------------------------------------------------------------------------------------

INNER = EmbeddingFeatures.draw(KEY, 3, 2, SCALES)
DRAWS = {
    "embedding": lambda count: EmbeddingFeatures.draw(KEY, count, 2, SCALES),
    "samples": lambda count: SampleFeatures.draw(KEY, count, 2, SCALES),
    "two stages": lambda count: TwoStage.draw(KEY, count, INNER, 1.0),
    "mean variance": lambda count: MeanVarianceFeatures.draw(KEY, count, 2, 1.0, 1.0),
}


def test_there_must_be_features():
    for draw in DRAWS.values():
        assert isinstance(draw(1), FeatureMap) and draw(1).rank == 1
    calls = {f"{name} {count}": partial(draw, count) for name, draw in DRAWS.items() for count in (0, -1)}
    assert not not_refused({of: (call, "^num_features: must be an integer >= 1") for of, call in calls.items()})


BAD = [
    ("bandwidths", lambda: EmbeddingFeatures.draw(KEY, 3, 2, [1.0, 0.0])),
    ("bandwidths", lambda: EmbeddingFeatures.draw(KEY, 3, 2, np.ones(3))),
    ("num_coordinates", lambda: EmbeddingFeatures.draw(KEY, 3, 0, 1.0)),
    ("width", lambda: TwoStage.draw(KEY, 3, INNER, 0.0)),
    ("mean_widths", lambda: MeanVarianceFeatures.draw(KEY, 3, 2, -1.0, 1.0)),
    ("variance_widths", lambda: MeanVarianceFeatures.draw(KEY, 3, 2, 1.0, np.ones(3))),
    ("start, stop", lambda: Restricted(INNER, 2, 2)),
    ("points", lambda: INNER(jnp.ones((1, 2, 3)))),
    ("points", lambda: INNER(jnp.ones((1, 5, 2)))),
    ("points", lambda: SampleFeatures.draw(KEY, 3, 2, 1.0)(jnp.ones((1, 4, 3)))),
    ("points", lambda: MeanVarianceFeatures.draw(KEY, 3, 2, 1.0, 1.0)(jnp.ones((1, 3, 2)))),
    ("points", lambda: Restricted(INNER, 1, 3)(jnp.ones((1, 2, 2)))),
    ("x", lambda: TwoStage.draw(KEY, 3, INNER, 1.0).check("x", -jnp.ones((1, 2, 2)))),
    ("x", lambda: Concatenated(INNER, INNER).check("x", -jnp.ones((1, 2, 2)))),
    ("x", lambda: Restricted(INNER, 0, 2).check("x", -jnp.ones((1, 2, 2)))),
    ("x", lambda: MeanVarianceFeatures.draw(KEY, 3, 2, 1.0, 1.0).check("x", jnp.eye(2)[None][:, [0, 0, 1]])),
]


def test_bad_arguments():
    assert not not_refused({f"{i} {name}": (draw, f"^{name}: must ") for i, (name, draw) in enumerate(BAD)})
