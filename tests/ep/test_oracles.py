"""Exact messages: golden values, identities, other quadratures, and what happens out of their reach."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from kbpjax import ep
from tests.refusals import not_refused

# (a, b, m, v): log Z, mean z, var z, mean p, var p, E log p, E log(1 - p). Quadrature in NumPy, apart from the library.
LOGISTIC = {
    (2, 1, 0, 1): (0, 0.4132419283, 0.8292311087, 0.5867580717, 0.0358520729, -0.5994382192, -1.0126801475),
    (2, 1, -4, 0.25): (
        *(-3.2079659902, -3.7563992483, 0.2484623718, 0.0255969930, 0.0001698676),
        *(-3.7824203045, -0.0260210562),
    ),
    (1, 2, 3, 20): (
        *(-0.6288422813, -2.1159797875, 7.1271116775, 0.2557989894, 0.0790918228),
        *(-2.5664743035, -0.4504945159),
    ),
    (3.5, 1.2, 0.7, 2): (
        *(0.3245251243, 1.5110616611, 1.1347614728, 0.7757293220, 0.0253672061),
        *(-0.2810311321, -1.7920927932),
    ),
    (0.5, 0.5, 1, 3): (
        *(0.0435318017, 1.6931757359, 4.7695073992, 0.7310585786, 0.0840764338),
        *(-0.4919921539, -2.1851678898),
    ),
}
# (a, b): E t, var t, E log t; rate to send; shape and rate of equal moments; those nearest in KL. From SciPy's hyperu.
COMPOUND = {
    (6, 1): (
        *(4.4229167606, 4.12947437122, 1.37929366015, 0.3565708614),
        *(4.737211304, 1.071060470, 4.811342524, 1.087821179),
    ),
    (6, 0.01): (
        *(400.661230064, 40000.5325257, 5.86348403715, 0.004975244795),
        *(4.013182104, 0.010016397, 4.016165191, 0.010023843),
    ),
    (51, 20): (
        *(2.47903602328, 0.122934430198, 0.897836222695, 0.5725126707),
        *(49.991036643, 20.165514407, 49.998859490, 20.168670007),
    ),
}
KEY = jax.random.key(0)


# With as many nodes as under jit; how many the messages need is counted in `test_enough_nodes_are_chosen`.
logistic_integrals = jax.jit(ep.logistic_integrals)
compound_integrals = jax.jit(lambda oracle, of: oracle.integrals(of))


def messages(cases):
    a, b, m, v = np.array(cases, float).reshape(-1, 4).T
    return ep.Beta(a, b), ep.Gaussian.from_moments(m, v)


def midpoint(a, b, m, v, num_nodes=100_000):
    """Return log Z, mean and variance of z by a plain midpoint rule on a wide range."""
    low, high = (side * 11 * np.sqrt(v) + v * max(side * (a - 1), side * (1 - b), 0) * side for side in (-1, 1))
    z = m + low + (np.arange(num_nodes) + 0.5) / num_nodes * (high - low)
    log_weight = (a - 1) * special.log_expit(z) + (b - 1) * special.log_expit(-z) + stats.norm.logpdf(z, m, v**0.5)
    weight = np.exp(log_weight - log_weight.max())
    total, moved = weight.sum(), z - m
    center = (weight * moved).sum() / total
    log_z = np.log(total * (high - low) / num_nodes) + log_weight.max() - special.betaln(a, b)
    return log_z, m + center, (weight * (moved - center) ** 2).sum() / total


# --- the logistic factor --------------------------------------------------------------------------


def test_logistic_golden_values():
    found = logistic_integrals(*messages(list(LOGISTIC)))
    got = (found.log_normalizer, found.z.mean, found.z.variance, *found[2:])
    np.testing.assert_allclose(np.stack(got, axis=1), list(LOGISTIC.values()), rtol=1e-9, atol=1e-10)


def test_labels_give_the_derivatives_of_the_averaged_logistic_function():
    m, v = np.array([0.0, -3.0, 2.0, 6.0, -1.0]), np.array([1.0, 0.3, 10.0, 4.0, 40.0])
    nodes = (np.arange(20_000) + 0.5) / 20_000 * 26 - 13
    weight = stats.norm.pdf(nodes) * 26 / 20_000
    s = special.expit(m[:, None] + np.sqrt(v)[:, None] * nodes)
    s0, s1, s2 = ((of * weight).sum(axis=1) for of in (s, s * (1 - s), s * (1 - s) * (1 - 2 * s)))
    ones = np.ones(5)
    found = logistic_integrals(ep.Beta(2 * ones, ones), ep.Gaussian.from_moments(m, v))
    np.testing.assert_allclose(found.log_normalizer, np.log(2 * s0), atol=1e-10)
    np.testing.assert_allclose(found.z.mean, m + v * s1 / s0, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.z.variance, v + v**2 * (s2 / s0 - (s1 / s0) ** 2), rtol=1e-10)
    assert np.all(found.z.variance < v)


def test_the_other_label_is_the_mirror_image():
    cases = np.array(list(LOGISTIC))
    here = logistic_integrals(*messages(cases))
    there = logistic_integrals(*messages(cases[:, [1, 0, 2, 3]] * np.array([1, 1, -1, 1])))
    for one, other in ((here.z.mean, -there.z.mean), (here.z.variance, there.z.variance), (here.mean, 1 - there.mean)):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(here.mean_log, there.mean_log_complement, rtol=1e-12)
    np.testing.assert_allclose(here.log_normalizer, there.log_normalizer, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("v", [0.001, 0.05, 0.3, 1, 20, 200])
@pytest.mark.slow
def test_enough_nodes_are_chosen(v):
    sizes = (0.5, 1, 2, 5, 20)
    cases = [(a, b, (-8, 0.7, 25)[(i + j) % 3], v) for i, a in enumerate(sizes) for j, b in enumerate(sizes)]
    found = ep.logistic_integrals(*messages(cases))
    expected = np.array([midpoint(*case) for case in cases])
    got = np.stack([found.log_normalizer, found.z.mean, found.z.variance], axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_too_few_nodes_give_nan_and_not_a_wrong_answer():
    incoming = messages([(2, 1, 0, 1), (2, 1, 0, 250), (2, 1, 0, 300), (5, 5, 0, 200)])
    belief = jax.jit(lambda *of: ep.LogisticToZ()(of))(*incoming)
    assert np.isfinite(belief.mean).tolist() == [True, True, False, False]
    few = jax.jit(lambda *of: ep.logistic_integrals(*of, num_nodes=20).mean_log)(*incoming)
    assert not np.isfinite(few[1:]).any()
    assert np.isfinite(ep.logistic_integrals(*incoming).z.mean).all()


def test_messages_that_are_no_distributions_give_nan():
    z = jax.jit(ep.Gaussian)(jnp.array([-1.0, 0.0, jnp.nan, 1.0]), jnp.array([0.0, 1.0, 0.0, 1.0]))
    belief = logistic_integrals(ep.Beta(2.0, 1.0), z).z
    assert np.isfinite(belief.mean).tolist() == [False, False, False, True]


def test_messages_to_p_keep_what_the_projection_says():
    incoming = messages([of for of in LOGISTIC if of != (2, 1, -4, 0.25)])
    found = logistic_integrals(*incoming)
    nearest, matching = (
        jax.jit(lambda *of, oracle=oracle: oracle(of))(*incoming)
        for oracle in (ep.LogisticToP(), ep.LogisticToP(projection=ep.MatchingMoments()))
    )
    np.testing.assert_allclose(matching.mean, found.mean, rtol=1e-11)
    np.testing.assert_allclose(matching.variance, found.variance, rtol=1e-11)
    total = special.psi(np.asarray(nearest.alpha + nearest.beta))
    np.testing.assert_allclose(special.psi(np.asarray(nearest.alpha)) - total, found.mean_log, atol=1e-11)
    np.testing.assert_allclose(special.psi(np.asarray(nearest.beta)) - total, found.mean_log_complement, atol=1e-11)
    assert np.all(np.abs(np.log(nearest.alpha / matching.alpha)) > 1e-3)


@pytest.mark.parametrize("to", [ep.LogisticToZ(), ep.LogisticToP()])
def test_gradients_equal_finite_differences(to):
    @jax.jit
    @jax.value_and_grad
    def loss(parameters):
        a, b, m, v = parameters
        return jnp.sum(to((ep.Beta(a, b), ep.Gaussian(1 / v, m / v))).outputs * jnp.array([1.0, 0.7]))

    at, h = np.array([2.5, 1.5, 0.8, 2.0]), 1e-5
    slopes = [(loss(at + h * of)[0] - loss(at - h * of)[0]) / (2 * h) for of in np.eye(4)]
    np.testing.assert_allclose(loss(at)[1], slopes, rtol=1e-6, atol=1e-8)


# --- compound gamma -------------------------------------------------------------------------------


def test_compound_gamma_golden_values():
    a, b = np.array(list(COMPOUND), float).T
    incoming, expected = ep.Gamma(a, b), np.array(list(COMPOUND.values()))
    found = compound_integrals(ep.CompoundGamma(), incoming)
    got = np.stack([found.mean, found.variance, found.mean_log], axis=1)
    np.testing.assert_allclose(got, expected[:, :3], rtol=1e-9)
    matching = ep.MatchingMoments().gamma(found)
    np.testing.assert_allclose(np.stack([matching.shape, matching.rate], axis=1), expected[:, 4:6], rtol=1e-7)
    nearest = ep.KLProjection().gamma(found)
    np.testing.assert_allclose(np.stack([nearest.shape, nearest.rate], axis=1), expected[:, 6:], rtol=5e-8)
    sent = ep.ratio(matching, incoming)
    np.testing.assert_allclose(sent.shape, np.ones(3), rtol=1e-12)
    np.testing.assert_allclose(sent.rate, expected[:, 3], rtol=1e-8)


@pytest.mark.parametrize("s2, s1, r1", [(1, 1, 1), (2, 3, 0.5), (0.5, 1.5, 4)])
def test_compound_gamma_equals_tricomi(s2, s1, r1):
    a, b = np.array([1.5, 3.0, 6.0, 12.0, 20.0]), np.array([2.0, 0.5, 1.0, 3.0, 8.0])
    power, decay = a + s2 - 1, s1 + s2
    u = [special.hyperu(power + k, power + k - decay + 1, b * r1) for k in range(3)]
    first, second = power * r1 * u[1] / u[0], power * (power + 1) * r1**2 * u[2] / u[0]
    constant = special.gammaln(decay) - special.gammaln(s1) - special.gammaln(s2) + s1 * np.log(r1)
    log_z = constant + special.gammaln(power) + (power - decay) * np.log(r1) + np.log(u[0])
    found = compound_integrals(ep.CompoundGamma(s2, s1, r1), ep.Gamma(a, b))
    np.testing.assert_allclose(found.mean, first, rtol=1e-9)
    np.testing.assert_allclose(found.variance, second - first**2, rtol=1e-8)
    np.testing.assert_allclose(found.log_normalizer, log_z + a * np.log(b) - special.gammaln(a), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("a, b, s2, s1, r1", [(6, 1, 1, 1, 1), (3, 0.2, 2, 1.5, 0.7), (51, 20, 1, 1, 1)])
def test_compound_gamma_equals_quadrature_over_both_variables(a, b, s2, s1, r1):
    def density(log_t, log_r):
        t, r = np.exp(log_t), np.exp(log_r)
        logs = stats.gamma.logpdf(t, s2, scale=1 / r) + stats.gamma.logpdf(r, s1, scale=1 / r1)
        return np.exp(logs + stats.gamma.logpdf(t, a, scale=1 / b) + log_t + log_r)

    log_t, log_r = np.linspace(-14, 8, 1500), np.linspace(-24, 7, 1500)
    table = density(log_t[:, None], log_r[None, :])
    cell = (log_t[1] - log_t[0]) * (log_r[1] - log_r[0])
    marginal = table.sum(axis=1) / table.sum()
    mean = (marginal * np.exp(log_t)).sum()
    found = compound_integrals(ep.CompoundGamma(s2, s1, r1), ep.Gamma(*np.asarray((a, b), float)))
    np.testing.assert_allclose(found.log_normalizer, np.log(table.sum() * cell), rtol=1e-8)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(found.variance, (marginal * (np.exp(log_t) - mean) ** 2).sum(), rtol=1e-8)
    np.testing.assert_allclose(found.mean_log, (marginal * log_t).sum(), rtol=1e-8)


def test_compound_gamma_reaches_flat_and_sharp_messages():
    def expected(a, b):
        log_weight = lambda u: a * u - b * np.exp(u) - 2 * np.logaddexp(u, 0)
        u = np.linspace(-150, 40, 2_000_001)
        weight = np.exp(log_weight(u) - log_weight(u).max())
        return (weight * np.exp(u)).sum() / weight.sum(), (weight * u).sum() / weight.sum()

    cases = [(0.4, 1e-6), (1.0, 1e-8), (1.0, 50.0), (2e3, 5.0), (1e3, 1e6)]
    found = compound_integrals(ep.CompoundGamma(), ep.Gamma(*np.array(cases).T))
    np.testing.assert_allclose(
        np.stack([found.mean, found.mean_log], axis=1), [expected(*of) for of in cases], rtol=1e-8
    )
    few = compound_integrals(ep.CompoundGamma(num_nodes=40), ep.Gamma(*np.array(cases).T))
    assert np.isnan(few.mean[0]) and np.isnan(few.mean[1])


def test_compound_gamma_of_no_distribution_is_nan():
    a, b = np.array([1.0, 2.0, -1.0, 2.0, 2.0]), np.array([0.0, -1.0, 1.0, 1.0, 2.0])
    found = compound_integrals(ep.CompoundGamma(), ep.Gamma(a, b))
    assert np.isfinite(found.mean).tolist() == [False, False, False, True, True]


# --- precision and refusals -----------------------------------------------------------------------


def test_single_precision_is_right_to_single_precision():
    p, z = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), messages(list(LOGISTIC)))
    found, expected = logistic_integrals(p, z), np.array(list(LOGISTIC.values()))
    assert found.z.mean.dtype == found.mean_log.dtype == jnp.float32
    np.testing.assert_allclose(np.stack([found.z.mean, found.z.variance], axis=1), expected[:, 1:3], rtol=3e-5)
    t = ep.Gamma(*np.array(list(COMPOUND), np.float32).T)
    of_t = compound_integrals(ep.CompoundGamma(), t)
    assert of_t.mean.dtype == jnp.float32
    np.testing.assert_allclose(of_t.mean, [of[0] for of in COMPOUND.values()], rtol=3e-5)
    np.testing.assert_allclose(of_t.variance, [of[1] for of in COMPOUND.values()], rtol=1e-3)


REFUSED = [
    (partial(ep.LogisticToZ, num_nodes=0), "num_nodes: must be an integer >= 1; got 0"),
    (partial(ep.LogisticToP, num_nodes=-1), "num_nodes: must be an integer >= 1; got -1"),
    (partial(ep.logistic_integrals, *messages([(2, 1, 0, 1)]), num_nodes=0), "num_nodes: must be an integer >= 1"),
    (partial(ep.CompoundGamma, num_nodes=0), "num_nodes: must be an integer >= 1; got 0"),
    (partial(ep.CompoundGamma, 0.0), "shape: must be .*> 0"),
    (partial(ep.CompoundGamma, rate_shape=-1.0), "rate_shape: must be .*> 0"),
    (partial(ep.CompoundGamma, rate_rate=float("nan")), "rate_rate: must be finite"),
    (lambda: ep.LogisticToZ()((ep.Gaussian(1.0, 0.0), ep.Beta(2.0, 1.0))), "incoming: must be a Beta and a Gauss"),
    (lambda: ep.LogisticToP()((ep.Beta(2.0, 1.0),)), "incoming: must be a Beta and a Gaussian message; got"),
    (lambda: ep.CompoundGamma()((ep.Beta(2.0, 1.0),)), "incoming: must be one Gamma message; got .'Beta'."),
    (
        lambda: ep.logistic_integrals(ep.Beta(np.ones(2), np.ones(2)), ep.Gaussian(np.ones(3), np.ones(3))),
        "p, z: must have shapes that broadcast",
    ),
]


def test_bad_arguments_are_refused_by_name():
    calls = {f"{number} {message}": (call, "^" + message) for number, (call, message) in enumerate(REFUSED)}
    assert not not_refused(calls)


def test_the_normaliser_is_that_of_the_product_of_the_messages():
    a, b, m, v = 3.5, 1.2, 0.7, 2.0
    density = lambda z: stats.beta.pdf(special.expit(z), a, b) * stats.norm.pdf(z, m, v**0.5)
    expected = integrate.quad(density, -12, 14, epsabs=1e-13, epsrel=1e-12)[0]
    found = logistic_integrals(*messages(list(LOGISTIC))).log_normalizer[list(LOGISTIC).index((a, b, m, v))]
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-9)
