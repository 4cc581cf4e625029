"""Operators that learn messages in a batch: targets, representations, choice of parameters."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from kbpjax import ep
from kbpjax.ep.representations import ExactFeatures
from kbpjax.features import EmbeddingFeatures
from tests.ep.families import Drawn, LogNormal
from tests.refusals import not_refused

KEY = jax.random.key(0)
FEW = ep.Learner(num_inner=60, num_outer=100)


def logistic(num_samples, seed=0, kind=np.float64):
    """Draw messages to the logistic factor."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=num_samples)
    mean, variance = (of.astype(kind) for of in (3 * rng.normal(size=num_samples), rng.uniform(0.3, 3, num_samples)))
    incoming = ep.Beta((1 + y).astype(kind), (2 - y).astype(kind)), ep.Gaussian.from_moments(mean, variance)
    return incoming


@jax.jit
def exact(p, z):
    found = ep.logistic_integrals(p, z, num_nodes=300)
    return found.z, ep.KLProjection().beta(found)


TRAIN, TEST = ((incoming, *exact(*incoming)) for incoming in (logistic(400), logistic(100, seed=1)))


learn_as_given = jax.jit(ep.learn, static_argnames="variable")
predict = jax.jit(ep.predict)
divergence = jax.jit(ep.kl)


def learn(key, incoming, beliefs, *, variable, learner=FEW, parameters=None, threshold=-8.5):
    """Learn with parameters and thresholds of each of two outputs, so that most calls are of one compiled program."""
    given = learner.parameters if parameters is None else parameters
    given, threshold = jax.tree.map(lambda of: np.broadcast_to(of, 2), (given, np.asarray(threshold, float)))
    options = {"learner": learner, "parameters": given, "threshold": threshold}
    return learn_as_given(key, incoming, beliefs, variable=variable, **options)


def errors(operator, incoming, truth):
    return np.log(np.maximum(divergence(truth, predict(operator, incoming).belief), 1e-30))


# --- learning and targets ---------------------------------------------------------------------------


@pytest.mark.parametrize("targets, variable, most", [
    (ep.RelativeBelief(), 1, -8.0),
    pytest.param(ep.AbsoluteBelief(), 1, -6.0, marks=pytest.mark.slow),
    pytest.param(ep.RelativeBelief(), 0, -6.0, marks=pytest.mark.slow),
    (ep.AbsoluteBelief(), 0, -6.0),
])  # fmt: skip
def test_beliefs_are_learned(targets, variable, most):
    learner = ep.Learner(num_inner=60, num_outer=100, targets=targets)
    beliefs = TRAIN[2 - variable]
    operator = learn(KEY, TRAIN[0], beliefs, variable=variable, learner=learner)
    found = errors(operator, TEST[0], TEST[2 - variable])
    repeat = np.log(divergence(TEST[2 - variable], TEST[0][variable]))
    assert np.mean(found) < most and np.mean(found) < np.mean(repeat) - 2
    prediction = predict(operator, TEST[0])
    assert type(prediction.message) is type(beliefs) and prediction.log_variance.shape == (100, 2)
    product, proper = prediction.message * TEST[0][variable], np.asarray(prediction.belief.exceeds(TEST[0][variable]))
    np.testing.assert_allclose(product.mean[proper], prediction.belief.mean[proper], rtol=1e-9, atol=1e-12)


def test_targets_are_inverted():
    incoming, belief = TEST[0][1], TEST[1]
    message = ep.ratio(belief, incoming)
    for targets in (ep.RelativeBelief(), ep.AbsoluteBelief(), ep.Message()):
        outputs = targets.encode(belief, message, incoming)
        for found, expected in zip(targets.decode(outputs, incoming, ep.MeanPreserving()), (belief, message)):
            np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8, atol=1e-9)
            np.testing.assert_allclose(found.precision, expected.precision, rtol=1e-8, atol=1e-9)


def test_messages_of_the_compound_gamma_factor_are_learned():
    rng = np.random.default_rng(0)
    n = rng.integers(10, 101, 300)
    incoming = ep.Gamma(1 + n / 2, n * np.exp(rng.normal(size=300)) / 2)
    oracle = ep.CompoundGamma(projection=ep.MatchingMoments())
    beliefs = oracle.projection.gamma(jax.jit(lambda t: oracle.integrals(t))(incoming))
    learner = ep.Learner(num_inner=60, num_outer=100, targets=ep.Message())
    part = lambda of, rows: jax.tree.map(lambda leaf: leaf[rows], of)
    operator = learn(KEY, (part(incoming, slice(200)),), part(beliefs, slice(200)), variable=0, learner=learner)
    found = predict(operator, (part(incoming, slice(200, 300)),))
    expected = ep.ratio(part(beliefs, slice(200, 300)), part(incoming, slice(200, 300)))
    np.testing.assert_allclose(found.message.shape, np.ones(100), atol=0.05)
    assert np.corrcoef(np.log(found.message.rate), np.log(expected.rate))[0, 1] > 0.999
    np.testing.assert_allclose(found.belief.mean, (found.message * part(incoming, slice(200, 300))).mean, rtol=1e-12)


def test_uncertainty_grows_away_from_what_was_learned():
    operator = learn(KEY, TRAIN[0], TRAIN[1], variable=1)
    near, far = (
        predict(operator, (ep.Beta(np.full(100, 2.0), np.ones(100)), ep.Gaussian.from_moments(mean, np.ones(100))))
        for mean in (np.linspace(-3, 3, 100), np.linspace(15, 40, 100))
    )
    assert float(near.log_variance.max()) < float(far.log_variance.min())
    assert float(near.log_variance.min()) > np.log(1e-4)


def test_the_same_key_gives_the_same_operator_and_another_another():
    one, same, other = (learn(key, *TRAIN[:2], variable=1) for key in (KEY, KEY, jax.random.key(1)))
    np.testing.assert_array_equal(one.regressions.mean, same.regressions.mean)
    assert not np.allclose(one.regressions.mean, other.regressions.mean)
    assert not np.allclose(one.maps.frequencies[0], one.maps.frequencies[1])  # outputs have their own features


def test_noise_and_thresholds_may_differ_between_outputs():
    parameters = ep.Parameters(noise=np.array([1e-3, 0.5]))
    operator = learn(KEY, *TRAIN[:2], variable=1, parameters=parameters, threshold=[-3.0, np.inf])
    np.testing.assert_array_equal(operator.regressions.noise, [1e-3, 0.5])
    np.testing.assert_array_equal(operator.thresholds, [-3, np.inf])
    assert float(predict(operator, TEST[0]).log_variance[:, 1].min()) > np.log(0.5)


def test_an_untrained_operator_predicts_nothing():
    like = ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)
    found = predict(jax.jit(lambda: ep.init_operator(KEY, like, variable=1, learner=FEW))(), TEST[0])
    assert all(np.isnan(leaf).all() for leaf in (found.belief.precision, found.log_variance))


def test_single_precision_is_usable():
    incoming = logistic(400, kind=np.float32)
    z = jax.jit(lambda *of: ep.logistic_integrals(*of).z)(*incoming)
    operator = learn_as_given(KEY, incoming, z, variable=1, learner=FEW)
    found = predict(operator, logistic(100, 1, np.float32))
    assert found.message.shift.dtype == found.log_variance.dtype == jnp.float32
    truth = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), TEST[1])
    assert np.median(divergence(truth, found.belief)) < 1e-4


# --- representations --------------------------------------------------------------------------------


def test_exact_features_are_expectations_of_cosines():
    incoming = (ep.Beta(2.0, 0.7), ep.Gaussian.from_moments(0.4, 0.3), ep.Gamma(3.0, 2.0))
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[None], incoming)
    features = jax.jit(ep.Exact().draw, static_argnums=1)(KEY, 5, batch, np.array([0.3, 1.0, 2.0]))
    assert isinstance(features, ExactFeatures)
    found = jax.jit(lambda features, batch: features(ep.Exact().points(batch))[0])(features, batch)
    places = (np.arange(20_000) + 0.5) / 20_000
    draws = (
        special.betaincinv(2.0, 0.7, places),
        stats.norm.ppf(places, 0.4, 0.3**0.5),
        stats.gamma.ppf(places, 3) / 2,
    )
    w = np.asarray(features.frequencies)
    characteristic = [np.exp(1j * np.outer(w[:, i], of)).mean(axis=1) for i, of in enumerate(draws)]
    expected = np.sqrt(2 / 5) * np.real(np.prod(characteristic, axis=0) * np.exp(1j * np.asarray(features.phases)))
    np.testing.assert_allclose(found, expected, atol=2e-4)


def test_of_gaussians_exact_features_are_those_of_moments():
    z = (TEST[0][1],)

    @jax.jit
    def both(z):
        exact, moments = (of.draw(KEY, 20, z, jnp.array([1.5])) for of in (ep.Exact(), ep.Moments()))
        assert isinstance(moments, EmbeddingFeatures)
        same = ExactFeatures(moments.frequencies, moments.phases, exact.families)
        return same(ep.Exact().points(z)), moments(ep.Moments().points(z))

    np.testing.assert_allclose(*both(z), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("representation", [ep.Exact(), ep.Draws(100)])
@pytest.mark.slow
def test_any_representation_learns(representation):
    learner = ep.Learner(num_inner=60, num_outer=100, representation=representation)
    operator = learn(KEY, TRAIN[0], TRAIN[1], variable=1, learner=learner)
    assert np.mean(errors(operator, TEST[0], TEST[1])) < -7


def test_draws_of_a_family_of_ones_own_are_learned():
    rng = np.random.default_rng(2)
    incoming = Drawn.of(rng.normal(size=120), rng.uniform(0.1, 1, 120))
    # The factor's message is always the same one.
    beliefs = incoming * Drawn.of(np.zeros(120), np.ones(120))
    learner = ep.Learner(num_inner=60, num_outer=80, representation=ep.Draws(50))
    operator = learn(KEY, (incoming,), beliefs, variable=0, learner=learner)
    found = predict(operator, (incoming,))
    assert isinstance(found.belief, Drawn) and float(np.median(divergence(beliefs, found.belief))) < 1e-2
    points = ep.Draws(50).points((incoming,))
    alone = ep.Draws(50).points((jax.tree.map(lambda leaf: leaf[7], incoming),))
    assert points.shape == (120, 50, 1)
    np.testing.assert_array_equal(points[7], alone)


@pytest.mark.parametrize(
    "representation, message",
    [(ep.Draws(), "LogNormal: must have a sampler"), (ep.Exact(), "LogNormal: must have char")],
)
def test_a_family_that_cannot_be_represented_says_so(representation, message):
    incoming = LogNormal.of(np.arange(9.0), np.arange(1.0, 10.0))
    learner = ep.Learner(num_inner=5, num_outer=5, representation=representation)
    with pytest.raises(ValueError, match="^" + message):
        learn_as_given(KEY, (incoming,), incoming, variable=0, learner=learner)


# --- choice of parameters ---------------------------------------------------------------------------


# A constant kernel, one of no neighbors, the planted one, noise that drowns everything, and a wide one.
CANDIDATES = ep.Parameters(
    np.array([1e7, 1e-6, 0.5, 0.5, 2.0]), np.array([1, 1, 1, 1, 0.5]), np.array([1e-4, 1e-4, 1e-4, 1e3, 1e-3])
)


@cache
def selected(criterion):
    return ep.select_parameters(KEY, *TRAIN[:2], CANDIDATES, variable=1, learner=FEW, criterion=criterion)


@pytest.mark.parametrize("criterion", [ep.LeaveOneOut(), ep.NegativeLogEvidence()])
def test_the_planted_candidate_is_chosen(criterion):
    best, losses = selected(criterion)
    assert losses.shape == (5, 2) and np.argmin(losses, axis=0).tolist() == [2, 2]
    np.testing.assert_allclose(best.width_scale, [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(best.noise, [1e-4, 1e-4], rtol=1e-6)


def test_losses_are_those_of_leaving_one_out_of_the_operator():
    _, losses = selected(ep.LeaveOneOut())
    last = jax.tree.map(lambda leaf: np.asarray(leaf)[-1], CANDIDATES)
    operator = learn(KEY, *TRAIN[:2], variable=1, parameters=last)

    @jax.jit
    def expected(maps, incoming, belief):
        phi = jax.vmap(lambda of: of(ep.Moments().points(incoming)))(maps)
        y = belief.relative_outputs(incoming[1])
        return jnp.stack([jnp.mean(ep.leave_one_out_residuals(phi[i], y[:, i], 1e-3) ** 2) for i in range(2)])

    np.testing.assert_allclose(losses[-1], expected(operator.maps, *TRAIN[:2]), rtol=1e-6)


def test_what_was_chosen_is_learned_with():
    candidates = ep.random_candidates(jax.random.key(1), 8, noises=(1e-6, 1e-3))
    best, losses = ep.select_parameters(KEY, *TRAIN[:2], candidates, variable=1, learner=FEW)
    assert np.isfinite(losses).all()
    operator = learn(KEY, *TRAIN[:2], variable=1, parameters=best)
    np.testing.assert_allclose(operator.regressions.noise, best.noise)
    default = learn(KEY, *TRAIN[:2], variable=1)
    assert np.mean(errors(operator, *TEST[:2])) < np.mean(errors(default, *TEST[:2])) + 0.5


def test_candidates_of_grids_and_at_random():
    grid = ep.grid_candidates([0.1, 1.0], [1e-3, 1e-2, 1e-1])
    np.testing.assert_allclose(grid.width_scale, [0.1] * 3 + [1.0] * 3)
    np.testing.assert_allclose(grid.noise, [1e-3, 1e-2, 1e-1] * 2)
    assert ep.grid_candidates().noise.shape == (40,)
    drawn = ep.random_candidates(KEY, 2000, width_scales=(0.5, 2.0), noises=(1e-4, 1e-4))
    logs = np.log(drawn.width_scale) / np.log(2)
    assert np.all(np.abs(logs) <= 1 + 1e-6) and stats.kstest(logs, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    np.testing.assert_allclose(drawn.noise, np.full(2000, 1e-4), rtol=1e-6)


# --- refusals ---------------------------------------------------------------------------------------


def bad(messages):
    return jax.tree.map(lambda leaf: leaf.at[3].set(jnp.nan), messages)


def learned(**change):
    arguments = {"incoming": TRAIN[0], "beliefs": TRAIN[1], "variable": 1, "learner": FEW, **change}
    return ep.learn(KEY, arguments.pop("incoming"), arguments.pop("beliefs"), **arguments)


REFUSED = [
    (lambda: ep.Learner(num_inner=0), "num_inner: must be an integer >= 1; got 0"),
    (lambda: ep.Learner(num_outer=-3), "num_outer: must be an integer >= 1; got -3"),
    (lambda: ep.Learner(noise=0.0), "noise: must be finite and > 0; got 0.0"),
    (lambda: ep.Learner(width_scale=-1.0), "width_scale: must be finite and > 0; got -1.0"),
    (lambda: ep.Parameters(width_scale=0.0), "width_scale: must be > 0; got 0.0 as the least"),
    (lambda: ep.Parameters(bandwidth_scale=-1.0), "bandwidth_scale: must be > 0; got -1.0 as the least"),
    (lambda: ep.Parameters(noise=[1.0, 0.0]), "noise: must be > 0; got 0.0 as the least. Pass positive"),
    (lambda: ep.Parameters([1.0] * 2, [1.0] * 3), "width_scale, bandwidth_scale, noise: must have shapes"),
    (lambda: ep.random_candidates(KEY, 0), "num_candidates: must be an integer >= 1; got 0"),
    (lambda: ep.random_candidates(KEY, 3, noises=(1.0, 0.1)), "noises: must be 0 < least <= most; got 1.0, 0.1"),
    (lambda: ep.random_candidates(KEY, 3, width_scales=(0.0, 0.1)), "width_scales: must be 0 < least <= most"),
    (lambda: ep.Draws(0), "num_draws: must be an integer >= 1; got 0"),
    (lambda: ep.Draws(seed=-1), "seed: must be an integer >= 0"),
    (lambda: learned(variable=2), "variable: must be an index of 2 messages; got 2"),
    (lambda: learned(threshold=[1.0, 2.0, 3.0]), "threshold: must be one number or 2 of them"),
    (lambda: learned(parameters=ep.Parameters(noise=[1.0] * 3)), "parameters: must be single or 2 of them; got"),
    (lambda: learned(beliefs=bad(TRAIN[1])), "beliefs: must be distributions; got 1 that"),
    (lambda: learned(incoming=(TRAIN[0][0], bad(TRAIN[0][1]))), "incoming: must be distributions; got 1 that"),
    (lambda: learned(incoming=()), "incoming: must be a tuple of messages"),
    (lambda: learned(beliefs=TRAIN[2]), "belief, incoming: must be of one family; got Beta and Gaussian"),
    (lambda: learned(beliefs=TEST[1]), r"beliefs: must have shape \(400,\); got \(100,\)"),
    (lambda: learned(incoming=(TRAIN[0][0], TEST[0][1])), "incoming: must be messages of one shape"),
    (lambda: learned(beliefs=jax.tree.map(jnp.negative, TRAIN[1])), "beliefs: must be distributions; got 400 that"),
    (lambda: predict(learn(KEY, *TRAIN[:2], variable=1), TEST[0][::-1]), r"incoming: must be \['Beta', "),
    (
        lambda: ep.select_parameters(KEY, *TRAIN[:2], ep.Parameters(), variable=1),
        r"candidates: must be a list of them \[candidate\]; got shape \(\)",
    ),
    (
        lambda: ep.select_parameters(KEY, *TRAIN[:2], ep.random_candidates(KEY, 2), variable=7),
        "variable: must be an index of 2 messages; got 7",
    ),
]


def test_bad_arguments_are_refused_by_name():
    assert not not_refused({message: (call, "^" + message) for call, message in REFUSED})
