"""Densities learned for the baselines, against quadrature, plain NumPy twins and brute-force refits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kbpjax.baselines.nonparametric.density import (
    ConditionalDensity,
    RegressionLikelihood,
    _deal,
    _distinct,
    _least_squares,
    fit_conditional,
    fit_likelihood,
    fit_parzen,
)

KEY = jax.random.key(3)
table_of = jax.jit(ConditionalDensity.log_density)
mixture_of = jax.jit(ConditionalDensity.mixture)
RNG = np.random.default_rng(0)
WIDTHS, RIDGES = np.array([0.15, 0.4, 1.1]), np.array([0.01, 0.3])
SMALL = {"num_centers": 12, "folds": 3}  # one shape, and so one compiled program, for most tests of the fit


def small(seed):
    """Sixty pairs of a number and a vector, in three clumps; some seeds make them narrow, others wide."""
    rng = np.random.default_rng(seed)
    clump, noise = rng.integers(3, size=60), 10 ** rng.uniform(-1.5, 0.3)
    u = np.column_stack([clump, 20 * clump**2]) + noise * rng.normal(size=(60, 2)) * [1, 20]
    return np.sin(3.0 * clump) + noise * rng.normal(size=60), u


def bimodal(count, seed):
    rng = np.random.default_rng(seed)
    u = rng.uniform(-2, 2, count)
    return rng.choice([-1, 1], count) * u + 0.2 * rng.normal(size=count), u


def normal(x, mean, deviation):
    return np.exp(-(((x - mean) / deviation) ** 2) / 2) / (np.sqrt(2 * np.pi) * deviation)


def apart(x, y, scale):
    return (((x[:, None] - y[None]) / scale) ** 2).sum(-1) / 2


def rings(levels, axis=1, side=60):
    """Gray values of pixels that are neighbors along an axis, in both orders."""
    i, j = np.mgrid[:side, :side]
    gray = np.round((np.sin(np.hypot(i - 30, j - 20) / 6) + 1) / 2 * (levels - 1)) * (240 / (levels - 1))
    gray = np.moveaxis(gray, axis, 0).astype(np.float32)
    left, right = gray[:-1].ravel(), gray[1:].ravel()
    return np.concatenate([left, right]), np.concatenate([right, left])


@pytest.fixture(scope="module")
def by_hand():
    weights = jnp.asarray([0.3, 0.0, 0.5, 0.2])
    given_centers, centers = jnp.asarray(RNG.normal(size=(4, 3))), jnp.asarray(RNG.normal(size=(4, 2)))
    return ConditionalDensity(weights, given_centers, centers, jnp.asarray([0.5, 1.0, 2.0]), jnp.asarray([0.3, 0.5]))


@pytest.fixture(scope="module")
def learned():
    v, u = bimodal(1500, 1)
    return fit_conditional(KEY, v, u)


# --- the conditional density ---------------------------------------------------------------------------------------


def test_it_is_the_ratio_that_it_says(by_hand):
    u, v = RNG.normal(size=(5, 3)), RNG.normal(size=(6, 2))
    alpha, given, centers = map(np.asarray, (by_hand.weights, by_hand.given_centers, by_hand.centers))
    near = alpha * np.exp(-apart(u, given, np.asarray(by_hand.given_bandwidth)))
    density = np.exp(-apart(v, centers, np.asarray(by_hand.bandwidth))) / (2 * np.pi * 0.3 * 0.5)
    expected = density @ (near / near.sum(1, keepdims=True)).T
    table = table_of(by_hand, jnp.asarray(v), jnp.asarray(u))
    np.testing.assert_allclose(table, np.log(expected), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_hand.log_density(jnp.asarray(v), jnp.asarray(u)), table, rtol=1e-12, atol=1e-13)


def test_the_table_equals_the_mixtures_and_a_stack_equals_its_parts(by_hand):
    u, v = jnp.asarray(RNG.normal(size=(5, 3))), jnp.asarray(3 * RNG.normal(size=(7, 2)))
    rows = jax.jit(jax.vmap(lambda one: by_hand.mixture(one).log_density(v)))(u)
    np.testing.assert_allclose(table_of(by_hand, v, u), rows.T, rtol=1e-10, atol=1e-12)
    other = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[::-1] * 1.5), by_hand)
    stack = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), by_hand, other)
    tables = jax.jit(jax.vmap(lambda one: one.log_density(v, u)))(stack)
    np.testing.assert_allclose(tables[1], table_of(other, v, u), rtol=1e-12, atol=1e-12)
    assert np.abs(np.asarray(tables[0]) - np.asarray(tables[1])).max() > 0.1


@pytest.mark.slow
def test_densities_integrate_to_one(by_hand, learned):
    step = float(learned.bandwidth[0]) / 4
    v = np.arange(-5, 5, step)[:, None]
    u = np.array([[-2.0], [-0.3], [0.0], [1.7], [40.0], [-1e9]])  # within, and where all kappa underflow
    areas = np.exp(table_of(learned, jnp.asarray(v), jnp.asarray(u))).sum(0) * step
    np.testing.assert_allclose(areas, 1, atol=1e-6)

    axis = np.arange(-6, 6, 0.1)
    plane = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    areas = np.exp(table_of(by_hand, jnp.asarray(plane), jnp.asarray([[0.0, 0, 0], [1e5, 0, 3]]))).sum(0) * 0.1**2
    np.testing.assert_allclose(areas, 1, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_infinite_far_from_all_centers(by_hand, dtype):
    density = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), by_hand)
    far = np.array([[0.0, 0, 0], [1e6, -1e6, 3], [1e9, 0, 0]], dtype)

    @jax.jit
    def ask(v, u):
        slopes = jax.grad(lambda v, u: density.log_density(v, u).sum(), (0, 1))(v[:1], u[:1])
        return density.log_density(v, u), jax.vmap(density.mixture)(u).weights, slopes

    table, weights, slopes = ask(jnp.asarray(far[:, :2]), jnp.asarray(far))
    assert table.dtype == dtype and np.isfinite(table).all()
    np.testing.assert_allclose(np.asarray(weights).sum(1), 1, rtol=1e-6)
    assert all(np.isfinite(slope).all() and np.any(slope) for slope in slopes)
    # Of the centers with weight the nearest decides, however far.
    nearest = np.argmin(apart(far[1:2], np.asarray(by_hand.given_centers)[[0, 2, 3]], np.array([0.5, 1, 2])))
    assert weights[1, [0, 2, 3][nearest]] > 0.99


def test_samples_have_the_moments_of_the_mixture(by_hand):
    u, count = jnp.asarray([[0.0, 0.2, -0.5], [1.0, -1.0, 2.0]]), 20_000
    draws = jax.jit(ConditionalDensity.sample)(by_hand, KEY, jnp.asarray(np.repeat(u, count, axis=0)))
    draws = np.asarray(draws).reshape(2, count, 2)
    for one, drawn in zip(u, draws, strict=True):
        mixture = mixture_of(by_hand, one)
        weights, means = np.asarray(mixture.weights), np.asarray(mixture.means)
        mean = weights @ means
        variance = weights @ (means - mean) ** 2 + np.array([0.3, 0.5]) ** 2
        assert (np.abs(drawn.mean(0) - mean) < 4 * np.sqrt(variance / count)).all()
        squares = (drawn - mean) ** 2
        assert (np.abs(squares.mean(0) - variance) < 4 * squares.std(0) / np.sqrt(count)).all()
    assert not np.allclose(draws[0].mean(0), draws[1].mean(0), atol=0.1)  # u matters


# --- its fit -------------------------------------------------------------------------------------------------------


def least_squares(v, u, density, ridge, step=0.02):
    """The weights from H by quadrature over v, of kappa as it is written."""
    scale_u, scale_v, q, r = (
        np.asarray(part)
        for part in (density.given_bandwidth, density.bandwidth, density.given_centers, density.centers)
    )
    axis = np.arange(r.min() - 8 * scale_v[0], r.max() + 8 * scale_v[0], step * scale_v[0])
    bumps = np.exp(-apart(axis[:, None], r, scale_v))
    near = np.exp(-apart(u, q, scale_u))
    H = near.T @ near / len(u) * (bumps.T @ bumps) * (axis[1] - axis[0])
    h = (near * np.exp(-apart(v[:, None], r, scale_v))).mean(0)
    alpha = np.maximum(np.linalg.solve(H + ridge * np.mean(np.diag(H)) * np.eye(len(H)), h), 0)
    return alpha / alpha.sum()


def test_weights_equal_those_of_an_integral_by_quadrature():
    v, u = small(0)
    for width, ridge in ((0.4, 0.3), (1.1, 0.01), (0.15, 0.01)):
        density = fit_conditional(KEY, v, u, widths=np.full(3, width), ridges=np.full(2, ridge), **SMALL)
        np.testing.assert_allclose(density.bandwidth, width * v.std(), rtol=1e-12)
        np.testing.assert_allclose(density.given_bandwidth, width * u.std(0), rtol=1e-12)
        pairs = np.concatenate([np.asarray(density.given_centers), np.asarray(density.centers)], axis=1)
        known = {tuple(pair) for pair in np.column_stack([u, v])}
        assert len({tuple(pair) for pair in pairs} & known) == 12  # different training pairs
        expected = least_squares(v, u, density, ridge)
        np.testing.assert_allclose(density.weights, expected, atol=1e-8)
        assert (expected == 0).any() or width != 1.1  # some are clipped


def best_of(v, u, key):
    """The width and ridge of largest held-out log likelihood, pair by pair; the draw of centers and folds is shared."""
    draw, deal = jax.random.split(key)
    chosen = np.asarray(_distinct(jnp.column_stack([u, v]), draw, 12))
    folds = [np.asarray(rows)[np.asarray(present)] for rows, present in zip(*_deal(deal, 60, 3), strict=True)]
    scores = np.zeros((3, 2))
    for i, width in enumerate(WIDTHS):
        parts = (jnp.asarray(u[chosen]), jnp.asarray(v[chosen, None]), jnp.asarray(width * u.std(0)))
        for j, ridge in enumerate(RIDGES):
            for fold in folds:
                kept = np.setdiff1d(np.arange(60), fold)
                density = ConditionalDensity(jnp.ones(12), *parts, jnp.asarray([width * v.std()]))
                alpha = least_squares(v[kept], u[kept], density, ridge, step=0.1)
                for pair in fold:
                    near = alpha * np.exp(-apart(u[[pair]], u[chosen], width * u.std(0))[0]) * (chosen != pair)
                    density_of_v = normal(v[pair], v[chosen], width * v.std())
                    scores[i, j] += np.log(near @ density_of_v / near.sum())
    return np.unravel_index(np.argmax(scores), scores.shape)


@pytest.mark.slow
def test_width_and_ridge_are_the_best_on_held_out_pairs():
    found = []
    for seed in range(4):
        v, u = small(seed)
        i, j = best_of(v, u, jax.random.key(seed))
        density = fit_conditional(jax.random.key(seed), v, u, widths=WIDTHS, ridges=RIDGES, **SMALL)
        np.testing.assert_allclose(density.bandwidth, WIDTHS[i] * v.std(), rtol=1e-12)
        np.testing.assert_allclose(density.weights, least_squares(v, u, density, RIDGES[j]), atol=1e-8)
        found.append((i, j))
    assert len({i for i, _ in found}) > 1 and len({j for _, j in found}) > 1  # a rule that never looks would fail


def test_folds_are_a_partition():
    rows, present = _deal(KEY, 11, 4)
    assert sorted(np.asarray(rows)[np.asarray(present)].tolist()) == list(range(11))
    assert sorted(np.asarray(present).sum(1).tolist()) == [2, 3, 3, 3]


def test_fits_may_be_compiled_and_mapped():
    both = [small(seed) for seed in (0, 1)]
    v, u = (np.stack(part) for part in zip(*both, strict=True))
    fit = lambda v, u: fit_conditional(KEY, v, u, widths=WIDTHS, ridges=RIDGES, **SMALL)
    mapped = jax.jit(jax.vmap(fit))(jnp.asarray(v), jnp.asarray(u))
    for i in range(2):
        for got, expected in zip(jax.tree.leaves(mapped), jax.tree.leaves(fit(v[i], u[i])), strict=True):
            np.testing.assert_allclose(got[i], expected, rtol=1e-8, atol=1e-10)


def test_two_branches_are_seen_where_a_line_sees_none(learned):
    v, u = bimodal(2000, 2)
    score = np.diag(table_of(learned, jnp.asarray(v[:, None]), jnp.asarray(u[:, None]))).mean()
    train_v, train_u = bimodal(1500, 1)
    line = np.polyfit(train_u, train_v, 1)
    deviation = np.std(train_v - np.polyval(line, train_u))
    gaussian = np.log(normal(v, np.polyval(line, u), deviation)).mean()
    truth = np.log((normal(v, u, 0.2) + normal(v, -u, 0.2)) / 2).mean()
    assert gaussian + 0.8 < score < truth
    assert score > truth - 0.3


def test_grey_values_in_single_precision():
    v, u = rings(10)
    density = fit_conditional(KEY, v, u, num_centers=60)
    assert {leaf.dtype for leaf in jax.tree.leaves(density)} == {jnp.dtype(jnp.float32)}
    assert (
        all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(density)) and (np.asarray(density.weights) >= 0).all()
    )
    levels = np.unique(u)
    spacing = levels[1] - levels[0]
    assert len(levels) == 10 and float(density.bandwidth[0]) < spacing / 8  # sharp
    table = np.exp(table_of(density, jnp.asarray(levels[:, None]), jnp.asarray(levels[:, None])))
    assert np.isfinite(table).all() and (table.argmax(0) == np.arange(10)).all()
    height = 1 / (np.sqrt(2 * np.pi) * float(density.bandwidth[0]))
    observed = np.array([[np.mean(v[u == given] == level) for given in levels] for level in levels])
    np.testing.assert_allclose(table / height, observed, atol=0.03)
    # Every kind of pair is a center, so duplicates fill the rest up; the solve has survived them.
    kinds = {tuple(pair) for pair in np.column_stack([u, v])}
    pairs = zip(np.asarray(density.given_centers)[:, 0], np.asarray(density.centers)[:, 0], strict=True)
    assert len(kinds) < 60 and {tuple(pair) for pair in pairs} == kinds
    # Between two levels, and outside of all, the nearest level decides.
    for given, level in ((levels[4] + 0.3 * spacing, levels[4]), (-500.0, levels[0])):
        mixture = mixture_of(density, jnp.asarray([given], jnp.float32))
        masses = np.asarray(mixture.weights) @ (np.asarray(mixture.means) == levels[None])
        assert levels[np.argmax(masses)] == level


def test_the_narrowest_width_is_not_chosen_where_centers_miss_kinds_of_pairs():
    v, u = rings(50)
    held_out = [jnp.asarray(part[:, None]) for part in rings(50, axis=0)]
    score = jax.jit(
        lambda density, v, u: jax.vmap(lambda v, u: density.mixture(u).log_density(v[None])[0])(v, u).mean()
    )
    chosen = fit_conditional(KEY, v, u, num_centers=60)
    narrow = fit_conditional(KEY, v, u, num_centers=60, widths=np.full(8, 0.02))
    assert chosen.bandwidth[0] > narrow.bandwidth[0]
    assert score(chosen, *held_out) > score(narrow, *held_out) + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda v, u: (v * 0 + 7.3, u),
        lambda v, u: (v, u * [1, 0] + [0, 1e6]),
        lambda v, u: (v * 0, u * 0),
        lambda v, u: (np.sign(v), np.sign(u)),
        lambda v, u: (v * 1e-6, u * 1e6),
    ],
    ids=["v constant", "one u constant", "all constant", "ties", "scales"],
)
def test_constants_and_ties_do_no_harm(change):
    v, u = change(*small(0))
    density = fit_conditional(KEY, v, u, widths=WIDTHS, ridges=RIDGES, **SMALL)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(density))
    assert (np.asarray(density.bandwidth) > 0).all() and (np.asarray(density.given_bandwidth) > 0).all()
    np.testing.assert_allclose(np.sum(density.weights), 1, rtol=1e-12)
    mixture = mixture_of(density, jnp.asarray(u[0]))
    assert abs(np.asarray(mixture.weights) @ np.asarray(mixture.means)[:, 0] - v.mean()) < 2 * v.std() + 1e-9


def test_weights_are_uniform_where_none_is_positive_and_harmless_where_centers_coincide():
    solve, ridges = jax.jit(_least_squares), jnp.asarray([1e-3, 1.0, 1e-12], jnp.float32)
    one, zero = (np.full((12, 12), value, np.float32) for value in (1, 0))
    for gram, hits in ((np.eye(12, dtype=np.float32), -one[0]), (zero, zero[0]), (one, one[0])):
        weights = np.asarray(solve(gram, hits, ridges))
        np.testing.assert_allclose(weights[:2], np.full((2, 12), 1 / 12), rtol=1e-2)
        np.testing.assert_allclose(weights[2].sum(), 1, rtol=1e-6)  # below rounding, noise, but a proper density


@pytest.mark.parametrize("count", [1, 100])
def test_one_centre_and_more_than_there_are_pairs(count):
    v, u = np.array([1, 2, 4, 9]), np.array([[0.0], [1.0], [2.0], [3.0]])
    density = fit_conditional(KEY, v, u, folds=2, num_centers=count, widths=[0.5])
    assert len(set(np.asarray(density.centers)[:, 0].tolist()) & {1, 2, 4, 9}) == min(count, 4)
    np.testing.assert_allclose(np.sum(density.weights), 1, rtol=1e-12)


def test_equal_samples_are_drawn_once_while_there_are_others():
    x = jnp.asarray([[1.0, 0], [1, 0], [1, 1], [1, 0], [2, 0], [1, 1]])
    draw = jax.jit(_distinct, static_argnums=2)
    drawn = {tuple(np.asarray(x)[draw(x, jax.random.key(seed), 3)].ravel().tolist()) for seed in range(8)}
    assert len(drawn) > 1  # in several orders
    assert {frozenset(zip(order[::2], order[1::2], strict=True)) for order in drawn} == {
        frozenset({(1.0, 0.0), (1.0, 1.0), (2.0, 0.0)})
    }
    assert sorted(np.asarray(draw(x, KEY, 6)).tolist()) == list(range(6))


# --- Parzen --------------------------------------------------------------------------------------------------------


def left_out(x, centers, width):
    """The log likelihood of each sample under the Gaussians at the other samples."""
    logs = np.zeros(len(x))
    for i, one in enumerate(x):
        others = x[[j for j in centers if j != i]]
        logs[i] = np.log(np.exp(-apart(one[None], others, width * x.std(0))[0]).mean()) - x.shape[1] * np.log(width)
    return logs.mean()


@pytest.mark.parametrize("count", [None, 15], ids=["all", "some"])
def test_parzen_width_is_the_best_by_leaving_one_out(count):
    widths, found = np.geomspace(0.1, 1.5, 6), set()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(70, 2)) * [1, 50] + (seed % 2) * 12 * rng.integers(2, size=(70, 1)) * [1, 50]
        mixture = fit_parzen(x, widths=widths, num_centers=count, key=KEY if count else None)
        centers = [int(np.argmin(np.abs(x - mean).sum(1))) for mean in np.asarray(mixture.means)]
        assert len(set(centers)) == (count or 70)
        best = widths[np.argmax([left_out(x, centers, width) for width in widths])]
        np.testing.assert_allclose(mixture.bandwidth, best * x.std(0), rtol=1e-12)
        np.testing.assert_allclose(mixture.weights, 1 / (count or 70), rtol=1e-12)
        np.testing.assert_array_equal(x[centers], mixture.means)
        found.add(best)
    assert len(found) > 1


def test_parzen_sees_two_modes_and_integrates_to_one():
    x, held_out = (3 * np.sign(RNG.normal(size=300)) + RNG.normal(size=300) for _ in range(2))
    mixture, single, ties = fit_parzen(x), fit_parzen(x.astype(np.float32)), fit_parzen(np.round(x))
    means, width = np.asarray(mixture.means)[:, 0], float(mixture.bandwidth[0])
    np.testing.assert_allclose(
        normal(np.arange(-15, 15, 0.02)[:, None], means, width).mean(1).sum() * 0.02, 1, atol=1e-6
    )
    gaussian = np.log(normal(held_out, x.mean(), x.std())).mean()
    assert np.log(normal(held_out[:, None], means, width).mean(1)).mean() > gaussian + 0.25
    thumb = (4 / 900) ** 0.2
    ratios = width / (thumb * x.std()) / np.geomspace(0.1, 2, 10)
    assert np.abs(ratios - 1).min() < 1e-12 and ratios.min() > 0.1 and ratios.max() > 1.5  # of the grid, not its end
    # Ties drive the width to the least of the grid, a tenth of the rule of thumb.
    np.testing.assert_allclose(ties.bandwidth, 0.1 * thumb * np.round(x).std(), rtol=1e-12)
    assert single.bandwidth.dtype == jnp.float32
    np.testing.assert_allclose(single.bandwidth, width, rtol=1e-5)


def test_parzen_of_one_value_and_of_one_center():
    for mixture in (fit_parzen(np.full(300, 5)), fit_parzen(np.arange(300.0), num_centers=1, key=KEY)):
        assert np.isfinite(mixture.bandwidth).all() and (np.asarray(mixture.bandwidth) > 0).all()


# --- regression ----------------------------------------------------------------------------------------------------


def ridge_regression(x, y, centers, bandwidth, penalty):
    """Coefficients of kernels at centers and of the constant, which is not penalized."""
    features = np.column_stack([np.exp(-apart(y, centers, bandwidth)), np.ones(len(y))])
    penalties = np.zeros((len(centers) + 1,) * 2)
    penalties[:-1, :-1] = penalty * np.exp(-apart(centers, centers, bandwidth))
    return np.linalg.solve(features.T @ features + penalties, features.T @ x)


def test_regression_equals_brute_force_refits():
    widths, ridges, found = np.array([0.3, 0.6, 1.5]), np.array([1e-4, 1e-2]), set()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        y = rng.normal(size=(40, 2)) * [1, 9]
        slow = np.column_stack([np.sin(y[:, 0]), y[:, 1] ** 2])
        x = slow + np.array([1, 30]) * 10 ** rng.uniform(-3, 0) * rng.normal(size=(40, 2))
        got = fit_likelihood(jax.random.key(seed), x, y, widths=widths, ridges=ridges, num_centers=10)
        centers = np.asarray(got.centers)
        errors = np.zeros((3, 2, 2))
        for i, width in enumerate(widths):
            for j, ridge in enumerate(ridges):
                for k in range(40):
                    kept = np.arange(40) != k
                    solved = ridge_regression(x[kept], y[kept], centers, width * y.std(0), 40 * ridge)
                    seen = np.append(np.exp(-apart(y[[k]], centers, width * y.std(0))[0]), 1)
                    errors[i, j] += (x[k] - seen @ solved) ** 2 / 40
        i, j = np.unravel_index(np.argmin((errors / x.var(0)).sum(-1)), (3, 2))
        np.testing.assert_allclose(got.bandwidth, widths[i] * y.std(0), rtol=1e-12)
        np.testing.assert_allclose(got.deviation, np.sqrt(errors[i, j]), rtol=1e-7)
        solved = ridge_regression(x, y, centers, widths[i] * y.std(0), 40 * ridges[j])
        new = rng.normal(size=(7, 2)) * [1, 9]
        expected = np.exp(-apart(new, centers, widths[i] * y.std(0))) @ solved[:-1] + solved[-1]
        np.testing.assert_allclose(got.predict(jnp.asarray(new)), expected, rtol=1e-6, atol=1e-6 * x.std())
        logs = np.log(normal(x[None, :5], expected[:, None], np.asarray(got.deviation))).sum(-1)
        np.testing.assert_allclose(got.log_likelihood(jnp.asarray(x[:5]), jnp.asarray(new)), logs, rtol=1e-4, atol=1e-4)
        found.add((i, j))
    assert len(found) > 1


def test_regression_beats_a_line_in_single_precision():
    y = RNG.uniform(-3, 3, size=(800, 1)).astype(np.float32)
    x = (np.sin(2 * y[:, 0]) + 0.1 * RNG.normal(size=800)).astype(np.float32)
    got = fit_likelihood(KEY, x[:400], y[:400], num_centers=50)
    assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype(jnp.float32)}
    predicted = jax.jit(RegressionLikelihood.predict)(got, jnp.asarray(y[400:]))
    line = np.polyval(np.polyfit(y[:400, 0], x[:400], 1), y[400:, 0])
    assert np.std(x[400:] - line) > 0.6
    assert np.sqrt(np.mean((np.asarray(predicted)[:, 0] - x[400:]) ** 2)) < 0.12
    np.testing.assert_allclose(got.deviation, 0.1, rtol=0.15)


def test_regression_of_constants_and_ties():
    ties = np.repeat(np.arange(4.0), 10)
    x, y = np.column_stack([ties**2, ties * 0 + 3]), np.column_stack([ties, ties * 0])
    got = fit_likelihood(KEY, x, y, widths=[0.3, 0.6, 1.5], ridges=[1e-4, 1e-2], num_centers=10)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got)) and (np.asarray(got.deviation) > 0).all()
    predicted = np.exp(-apart(np.array([[2.0, 0.0]]), np.asarray(got.centers), np.asarray(got.bandwidth)))
    predicted = predicted @ np.asarray(got.coefficients) + np.asarray(got.offset)
    np.testing.assert_allclose(predicted, [[4, 3]], atol=0.02)


# --- errors --------------------------------------------------------------------------------------------------------

V, U = small(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_conditional(KEY, V, U[:-1]), r"^u: must pair with v, of 60 samples; got 59\."),
        (lambda: fit_conditional(KEY, V[:0], U), r"^v: must hold samples; got shape \(0,\)\."),
        (lambda: fit_conditional(KEY, np.where(V > 0, V, np.nan), U), "^v: must be finite; got .* NaN"),
        (lambda: fit_conditional(KEY, V, U * np.inf), "^u: must be finite; got"),
        (lambda: fit_conditional(KEY, V, U, num_centers=0), "^num_centers: must be an integer >= 1; got 0"),
        (lambda: fit_conditional(KEY, V, U, folds=1), "^folds: must be >= 2; got 1"),
        (lambda: fit_conditional(KEY, V, U, folds=2.5), "^folds: must be an integer; got 2.5"),
        (lambda: fit_conditional(KEY, V[:4], U[:4]), "^v: must hold a sample for each of 5 folds; got 4"),
        (lambda: fit_conditional(KEY, V, U, widths=[0.1, 0.0]), "^widths: must be > 0; got 0 as the least"),
        (lambda: fit_conditional(KEY, V, U, widths=0.1), r"^widths: must list candidates; got shape \(\)"),
        (lambda: fit_conditional(KEY, V, U, ridges=[]), r"^ridges: must list candidates; got shape \(0,\)"),
        (lambda: fit_conditional(KEY, V, U, ridges=[np.nan]), "^ridges: must be finite; got"),
        (lambda: fit_conditional(KEY, V, U, ridges=[-1.0]), "^ridges: must be > 0; got"),
        (lambda: fit_parzen([1.0]), "^x: must hold two samples or more; got 1"),
        (lambda: fit_parzen([1.0, np.nan]), "^x: must be finite; got 1 NaN"),
        (lambda: fit_parzen(V, num_centers=5), "^key: must be given where num_centers is, to draw centers; got None"),
        (lambda: fit_parzen(V, num_centers=0, key=KEY), "^num_centers: must be an integer >= 1; got 0"),
        (lambda: fit_parzen(V, widths=[-0.1]), "^widths: must be > 0; got"),
        (lambda: fit_likelihood(KEY, V, U[:-1]), r"^y: must pair with x, of 60 samples; got 59\."),
        (lambda: fit_likelihood(KEY, V[:1], U[:1]), "^x: must hold two samples or more; got 1"),
        (lambda: fit_likelihood(KEY, V, U * np.nan), "^y: must be finite; got"),
        (lambda: fit_likelihood(KEY, V, U, num_centers=-1), "^num_centers: must be an integer >= 1; got -1"),
        (lambda: fit_likelihood(KEY, V, U, widths=[0]), "^widths: must be > 0; got"),
        (lambda: fit_likelihood(KEY, V, U, ridges=[[1.0]]), r"^ridges: must list candidates; got shape \(1, 1\)"),
    ],
)
def test_errors_name_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()
