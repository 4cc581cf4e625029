"""Importance sampling against quadrature and Gaussian algebra."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from kbpjax import ep
from tests.ep.families import Drawn, LogNormal

KEY = jax.random.key(0)
# (m, v) of messages with Beta(2, 1), and standard deviations of the error of mean and log variance at 1e5 draws:
# measured in NumPy, apart from the library.
SPREADS = {
    (0, 20): (0.0132, 0.0060),
    (-3, 1): (0.0079, 0.0107),
    (5, 0.2): (0.0047, 0.0170),
    (12, 0.05): (0.0030, 0.0197),
}


def errors(num_samples, num_runs, cases):
    """Return errors of mean and log variance [run, case, 2]."""
    oracle = ep.ImportanceSampling(ep.logistic_sampler(), variable=1, num_samples=num_samples)
    m, v = np.array(cases, float).T
    two = ep.Beta(2.0, 1.0)

    def one(key, m, v):
        return oracle((two, ep.Gaussian.from_moments(m, v)), key).outputs

    keys = jax.random.split(KEY, num_runs)
    found = jax.jit(
        lambda: jax.lax.map(lambda of: jax.vmap(one, (None, 0, 0))(of, jnp.asarray(m), jnp.asarray(v)), keys)
    )()
    truth = ep.logistic_integrals(two, ep.Gaussian.from_moments(m, v), num_nodes=400).z.outputs
    return np.asarray(found - truth[None])


def test_it_is_as_close_to_quadrature_as_it_should_be():
    found, spread = errors(100_000, 15, list(SPREADS)), np.array(list(SPREADS.values()))
    assert np.all(np.abs(found) < 4 * spread)
    share = np.sqrt((found**2).mean(axis=0)) / spread
    assert np.all(share > 0.5) and np.all(share < 1.7)


@pytest.mark.slow
def test_errors_halve_in_variance_where_draws_double():
    few, many = (errors(n, 400, [(-3, 1)]).var(axis=0) for n in (5_000, 10_000))
    np.testing.assert_allclose(few / many, 2 * np.ones((1, 2)), rtol=0.4)


def normal(x, z):
    return -0.5 * (x - z) ** 2


SUM = ep.ForwardSampler(
    lambda key, z: z + jax.random.normal(key, z.shape, z.dtype), (ep.Gaussian.from_moments(0.0, 9.0),)
)
WIDE = ep.Gaussian.from_moments(0.0, 9.0)
DENSITY = ep.LogDensity(normal, (WIDE, WIDE))


@pytest.mark.parametrize("factor", [SUM, DENSITY])
def test_samplers_and_densities_give_the_same_beliefs(factor):
    # x ~ N(z, 1): the message to z is N(1, 0.5 + 1), and that to x is N(-0.5, 2 + 1).
    incoming = ep.Gaussian.from_moments(1.0, 0.5), ep.Gaussian.from_moments(-0.5, 2.0)
    expected = incoming[0] * ep.Gaussian.from_moments(-0.5, 3.0), incoming[1] * ep.Gaussian.from_moments(1.0, 1.5)
    for variable in (0, 1):
        oracle = ep.ImportanceSampling(factor, variable=variable, num_samples=100_000)
        belief, size = jax.jit(lambda key, oracle=oracle: oracle.weigh(incoming, key))(KEY)
        truth, error = expected[variable], 5 / np.sqrt(size)
        assert 1_000 < float(size) < 100_000
        assert abs(float((belief.mean - truth.mean) * jnp.sqrt(truth.precision))) < error
        assert abs(float(jnp.log(belief.variance / truth.variance))) < 2 * error


def test_the_effective_sample_size_is_that_of_the_weights():
    incoming = ep.Gaussian.from_moments(1.0, 0.5), ep.Gaussian.from_moments(-0.5, 2.0)
    oracle = ep.ImportanceSampling(DENSITY, variable=1, num_samples=2_000)
    belief, size = oracle.weigh(incoming, KEY)
    x, z = (np.asarray(of) for of in DENSITY.draw(KEY, 2_000)[0])
    weight = np.exp(normal(x, z)) * stats.norm.pdf(x, 1, 0.5**0.5) * stats.norm.pdf(z, -0.5, 2**0.5)
    weight /= stats.norm.pdf(x, 0, 3) * stats.norm.pdf(z, 0, 3)
    np.testing.assert_allclose(size, weight.sum() ** 2 / (weight**2).sum(), rtol=1e-9)
    np.testing.assert_allclose(belief.mean, weight @ z / weight.sum(), rtol=1e-9)
    same = ep.ImportanceSampling(ep.LogDensity(lambda x: jnp.zeros_like(x), (WIDE,)), variable=0, num_samples=500)
    np.testing.assert_allclose(same.weigh((WIDE,), KEY)[1], 500, rtol=1e-9)


@pytest.mark.slow
def test_messages_to_other_families():
    incoming = ep.Beta(2.0, 3.0), ep.Gaussian.from_moments(0.5, 2.0)
    oracle = ep.ImportanceSampling(ep.logistic_sampler(), variable=0, num_samples=200_000)
    found, truth = oracle(incoming, KEY), ep.LogisticToP()(incoming)
    assert isinstance(found, ep.Beta) and float(ep.kl(truth, found)) < 1e-3
    compound = ep.ForwardSampler(lambda key, r: jax.random.gamma(key, 1.0, r.shape) / r, (ep.Gamma(1.0, 1.0),))
    # The rate's own message is the factor's Gamma(1, 1), so that proposal and message cancel.
    of_t = ep.ImportanceSampling(compound, variable=0, num_samples=40_000)(
        (ep.Gamma(6.0, 1.0), ep.Gamma(1.0, 1.0)), KEY
    )
    assert float(ep.kl(ep.CompoundGamma()((ep.Gamma(6.0, 1.0),)), of_t)) < 5e-3


def test_a_family_of_ones_own():
    # rate ~ LogNormal, z = log rate.
    factor = ep.ForwardSampler(lambda key, z: jnp.exp(z), (ep.Gaussian.from_moments(0.0, 9.0),))
    incoming = LogNormal.of(1.0, 2.0), ep.Gaussian.from_moments(0.0, 1.0)
    # A message LogNormal is a density of the rate: N(log rate) / rate, and 1 / rate moves its mean by -2.
    expected = ep.Gaussian.from_moments(-1.0, 2.0) * incoming[1]
    to_z = ep.ImportanceSampling(factor, variable=1, num_samples=100_000)(incoming, KEY)
    assert float(ep.kl(expected, to_z)) < 1e-3
    to_rate = ep.ImportanceSampling(factor, variable=0, num_samples=100_000)(incoming, KEY)
    assert isinstance(to_rate, LogNormal) and float(ep.kl(expected, to_rate.log)) < 1e-3


def test_a_batch_of_messages_is_no_larger_than_memory_bears():
    sizes = [ep.ImportanceSampling(DENSITY, variable=1, num_samples=n).batch_size for n in (500_000, 200_000, 1_000)]
    assert sizes == [1, 1, 200]


def test_messages_without_a_draw_are_no_distributions():
    incoming = ep.Gaussian.from_moments(1e4, 1e-6), ep.Gaussian.from_moments(-1e4, 1e-6)
    belief, size = ep.ImportanceSampling(SUM, variable=1, num_samples=100).weigh(incoming, KEY)
    assert not bool(belief.proper) or float(size) < 2
    nothing = ep.ImportanceSampling(ep.LogDensity(lambda x: x * jnp.nan, (WIDE,)), variable=0, num_samples=100)
    assert not bool(nothing((WIDE,), KEY).proper)


def test_single_precision_is_right_to_single_precision():
    factor = ep.ForwardSampler(lambda key, z: jax.nn.sigmoid(z), (ep.Gaussian(jnp.float32(0.1), jnp.float32(0)),))
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (ep.Beta(2.0, 1.0), ep.Gaussian(1.0, 0.0)))
    belief = ep.ImportanceSampling(factor, variable=1, num_samples=100_000)(single, KEY)
    assert belief.precision.dtype == jnp.float32
    np.testing.assert_allclose(belief.mean, np.float32(0.41324), atol=0.02)


TWO = ep.Beta(2.0, 1.0), WIDE


@pytest.mark.parametrize(
    "call, message",
    [
        (partial(ep.ForwardSampler, 3, (WIDE,)), "function: must be a function; got 3"),
        (partial(ep.ForwardSampler, jnp.sin, ()), "proposals: must be single distributions"),
        (partial(ep.LogDensity, normal, (ep.Gaussian(np.ones(2), np.ones(2)),)), "proposals: must be single distrib"),
        (partial(ep.ImportanceSampling, SUM, 1, 0), "num_samples: must be an integer >= 1; got 0"),
        (partial(ep.ImportanceSampling, SUM, -1), "variable: must be an integer >= 0; got -1"),
        (partial(ep.ImportanceSampling(SUM, 1, 9), (WIDE,), KEY), "incoming: must be 2 messages; got 1"),
        (
            partial(ep.ImportanceSampling(SUM, 2, 9), (WIDE, WIDE), KEY),
            "incoming: must be 2 messages; got 2, with variable=2",
        ),
        (
            partial(ep.ForwardSampler(lambda key, z: z.sum(), (WIDE,)).draw, KEY, 9),
            r"function: must return shape \(9,\); got \(\)",
        ),
        (
            partial(ep.LogDensity(lambda x: x[:, None], (WIDE,)).draw, KEY, 9),
            r"function: must return shape \(9,\); got \(9, 1\)",
        ),
        (partial(ep.ForwardSampler(jnp.add, (LogNormal.of(0.0, 1.0),)).draw, KEY, 9), "LogNormal: must have a sampler"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match="^" + message):
        call()


def test_one_proposal_needs_no_tuple():
    values, log_weights = ep.LogDensity(lambda t: -t, Drawn.of(0.0, 1.0)).draw(KEY, 9)
    assert len(values) == 1 and log_weights.shape == (9,)
