"""Losses of beliefs against NumPy, differences, and what a proper score has to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from tests.reference import interpolated_quantile

POINTS = np.array([0.5, -1.0, 2.0, 0.0, 1.2])
TRUTH = np.array([0.4, -3.0, 1.9])


def weights(seed=0, size=(3, 5)):
    drawn = np.random.default_rng(seed).uniform(0.05, 1, size=size)
    return drawn / drawn.sum(axis=1, keepdims=True)


def belief(w=None, points=POINTS):
    return kbp.Belief(jnp.asarray(points), jnp.asarray(weights() if w is None else w))


def interval_score(points, rows, truth, coverage):
    outside, total = 1 - coverage, 0.0
    for w, x in zip(rows, truth, strict=True):
        low, high = (interpolated_quantile(points, w, level) for level in (outside / 2, 1 - outside / 2))
        total += high - low + (2 / outside) * ((low - x) * (x < low) + (x - high) * (x > high))
    return total / len(truth)


def test_squared_error_is_that_of_the_mean():
    expected = np.mean((weights() @ POINTS - TRUTH) ** 2)
    np.testing.assert_allclose(kbp.SquaredError()(belief(), jnp.asarray(TRUTH)), expected, rtol=1e-12)


def test_squared_error_of_vectors_is_the_squared_distance():
    points, truth = np.random.default_rng(1).normal(size=(5, 2)), np.random.default_rng(2).normal(size=(3, 2))
    expected = np.mean(np.sum((weights() @ points - truth) ** 2, axis=1))
    got = kbp.SquaredError()(belief(points=points), jnp.asarray(truth))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [None, 2])
def test_negative_log_belief_is_of_the_nearest_candidate(dim):
    shape = () if dim is None else (dim,)
    points = np.random.default_rng(1).normal(size=(5, *shape))
    truth = np.random.default_rng(2).normal(size=(3, *shape))
    flat = [a.reshape(len(a), -1) for a in (points, truth)]
    nearest = [min(range(5), key=lambda i, x=x: np.linalg.norm(flat[0][i] - x)) for x in flat[1]]
    expected = -np.mean([np.log(row[i]) for row, i in zip(weights(), nearest, strict=True)])
    got = kbp.NegativeLogBelief()(belief(points=points), jnp.asarray(truth))
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert len(set(nearest)) > 1


def test_a_candidate_of_weight_zero_costs_much_and_leaves_gradients_finite():
    row = jnp.array([[0.0, 1.0]])
    value, slope = jax.value_and_grad(
        lambda w: kbp.NegativeLogBelief()(kbp.Belief(jnp.array([0.0, 1.0]), w), jnp.zeros(1))
    )(row)
    assert 500 < value < 1000
    assert np.all(np.isfinite(slope))


@pytest.mark.parametrize("coverage", [0.5, 0.9])
@pytest.mark.parametrize("column", [False, True])
def test_interval_score_equals_the_oracle(coverage, column):
    shape = (-1, 1) if column else (-1,)
    got = kbp.IntervalScore(coverage)(belief(points=POINTS.reshape(shape)), jnp.asarray(TRUTH.reshape(shape)))
    np.testing.assert_allclose(got, interval_score(POINTS, weights(), TRUTH, coverage), rtol=1e-12)


def test_interval_score_of_a_sure_belief_is_finite_with_finite_gradient():
    """All weight on one candidate: the distribution function is flat but for one jump."""
    row = jnp.array([[0.0, 0.0, 1.0, 0.0, 0.0]])
    value, slope = jax.value_and_grad(lambda w: kbp.IntervalScore()(belief(w), jnp.array([0.5])))(row)
    assert np.isfinite(value)
    assert np.all(np.isfinite(slope))


# --- the CRPS ---------------------------------------------------------------------------------------------------------


def energy_score(points, rows, truth):
    """E|X - x| - E|X - X'| / 2, pair by pair."""
    far = lambda a, b: np.linalg.norm(np.ravel(a - b))
    near = [sum(p * far(z, x) for p, z in zip(w, points, strict=True)) for w, x in zip(rows, truth, strict=True)]
    pairs = [[far(a, b) for a in points] for b in points]
    return np.mean(near) - np.mean([w @ pairs @ w for w in rows]) / 2


@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 3)])
def test_crps_is_the_energy_score_of_all_pairs(shape):
    rng = np.random.default_rng(1)
    points, truth = rng.normal(size=(5, *shape)), rng.normal(size=(3, *shape))
    points[3] = truth[1]  # gradients stay finite where points are one
    got, slopes = jax.value_and_grad(lambda points: kbp.CRPS()(belief(points=points), jnp.asarray(truth)))(
        jnp.asarray(points)
    )
    np.testing.assert_allclose(got, energy_score(points, weights(), truth), rtol=1e-12)
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("loss", [kbp.SquaredError(), kbp.NegativeLogBelief(), kbp.IntervalScore(0.8), kbp.CRPS()])
def test_unknown_values_are_left_out(loss):
    truth = np.array([0.4, np.nan, 1.9])
    expected = loss(belief(weights()[[0, 2]]), jnp.asarray(truth[[0, 2]]))
    np.testing.assert_allclose(loss(belief(), jnp.asarray(truth)), expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [None, 2])
def test_the_true_distribution_has_the_least_expected_crps(dim):
    points = np.random.default_rng(4).normal(size=(5,) if dim is None else (5, dim))
    true, *others = weights(5, (20, 5))
    of = jax.jit(lambda w: jnp.stack([kbp.CRPS()(belief(w[None], points), x[None]) for x in jnp.asarray(points)]))
    best = true @ of(true)
    assert all(true @ of(0.9 * true + 0.1 * other) > best for other in others)


@pytest.mark.parametrize(
    "loss", [kbp.SquaredError(), kbp.NegativeLogBelief(), kbp.IntervalScore(0.8), kbp.CRPS()], ids=repr
)
def test_gradients_equal_differences(loss):
    def of(logits):
        return loss(belief(jax.nn.softmax(logits, axis=-1)), jnp.asarray(TRUTH))

    logits, of = jnp.log(jnp.asarray(weights())), jax.jit(of)
    slopes, h = np.asarray(jax.grad(of)(logits)), 1e-5
    for i in np.ndindex(slopes.shape):
        step = np.zeros(slopes.shape)
        step[i] = h
        np.testing.assert_allclose(slopes[i], (of(logits + step) - of(logits - step)) / (2 * h), atol=1e-8)
    assert np.abs(slopes).max() > 0.05


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_honest_beliefs_have_the_least_interval_score(coverage):
    points = np.linspace(-4, 4, 161)
    draws = np.random.default_rng(3).normal(size=4000)

    def score(width):
        w = np.exp(-0.5 * (points / width) ** 2)
        rows = jnp.asarray(np.broadcast_to(w / w.sum(), (len(draws), len(points))))
        return float(kbp.IntervalScore(coverage)(kbp.Belief(jnp.asarray(points), rows), jnp.asarray(draws)))

    true, narrow, wide = score(1.0), score(0.7), score(1.4)
    assert true < narrow - 0.02
    assert true < wide - 0.02


def test_losses_take_whole_numbers():
    points, truth = np.arange(5), jnp.array([0, 4, 2])
    for loss in (kbp.SquaredError(), kbp.NegativeLogBelief(), kbp.IntervalScore(), kbp.CRPS()):
        expected = loss(belief(points=points.astype(float)), truth.astype(float))
        np.testing.assert_allclose(loss(belief(points=points), truth), expected, rtol=1e-12)


def test_interval_score_refuses_vectors():
    points, truth = np.zeros((5, 2)), jnp.zeros((3, 2))
    with pytest.raises(ValueError, match="^belief: must have scalar points; got shape"):
        kbp.IntervalScore()(belief(points=points), truth[:, :1])


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 90, np.nan])
def test_coverage_out_of_range_is_refused(coverage):
    with pytest.raises(ValueError, match="^coverage: must be finite and > 0 and < 1"):
        kbp.IntervalScore(coverage)


@pytest.mark.parametrize("loss", [kbp.SquaredError(), kbp.NegativeLogBelief(), kbp.IntervalScore(0.8), kbp.CRPS()])
@pytest.mark.parametrize("points, truth", [(POINTS[:, None], TRUTH), (POINTS, TRUTH[:, None]), (POINTS, TRUTH[:2])])
def test_truth_of_another_shape_than_a_point_is_refused_and_not_broadcast(loss, points, truth):
    with pytest.raises(ValueError, match="truth: must have shape"):
        loss(belief(points=points), jnp.asarray(truth))


def test_infinite_values_are_refused():
    with pytest.raises(ValueError, match="^truth: must be finite, or NaN where missing; got 1 infinite of 3 values"):
        kbp.CRPS()(belief(), jnp.array([0.4, jnp.inf, 1.9]))


@pytest.mark.parametrize("shape", [(), (2,), pytest.param((1,), marks=pytest.mark.slow)])
def test_losses_on_own_points_are_those_of_each_node(shape):
    rng = np.random.default_rng(5)
    scale, z = rng.uniform(0.3, 2, (3, 1, *shape)), rng.normal(size=(1, 5, *shape))
    points = jnp.asarray(rng.normal(size=(3, 1, *shape)) + scale * z)
    losses = [kbp.SquaredError(), kbp.NegativeLogBelief(), kbp.CRPS()] + [kbp.IntervalScore(0.6)] * (shape != (2,))
    truth = rng.normal(size=(2, 3, *shape))
    truth[1, 1] = np.nan

    def together(w, truth):
        own = kbp.Belief(points, w, own_points=True)
        return jnp.stack([loss(own, truth) for loss in losses])

    def alone(w, truth):
        each = [[loss(belief(w[s : s + 1], points[s]), truth[s : s + 1]) for loss in losses] for s in range(3)]
        known = jnp.sum(~jnp.isnan(truth.reshape(3, -1)[:, 0]), dtype=float)
        return jnp.sum(jnp.array(each), axis=0) / known

    results = []
    for of in (together, alone):
        both = lambda w, truth, of=of: (of(w, truth), jax.jacobian(of)(w, truth))
        results.append(jax.jit(jax.vmap(both, in_axes=(None, 0)))(jnp.asarray(weights()), jnp.asarray(truth)))
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_energy_scores_of_many_nodes_are_computed_in_parts(monkeypatch):
    rng = np.random.default_rng(6)
    points, truth = jnp.asarray(rng.normal(size=(7, 5, 2))), jnp.asarray(rng.normal(size=(7, 2)))
    own = kbp.Belief(points, jnp.asarray(weights(size=(7, 5))), own_points=True)
    whole = kbp.CRPS()(own, truth)
    monkeypatch.setattr("kbpjax.tuning.losses.PAIRS", 60)  # two nodes at a time, and a rest
    np.testing.assert_allclose(kbp.CRPS()(own, truth), whole, rtol=1e-12)
