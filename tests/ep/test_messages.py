"""The algebra of messages: products, ratios, projections and divergences, against integrals by SciPy."""

import inspect
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from kbpjax import ep
from tests.ep.families import LogNormal

KEY = jax.random.key(0)
# Two of each family, and the range of the variable.
PAIRS = {
    "gaussian": (ep.Gaussian.from_moments(0.3, 0.5), ep.Gaussian.from_moments(-0.4, 2.0), (-14, 14)),
    "beta": (ep.Beta(2.5, 4.0), ep.Beta(1.2, 1.5), (0, 1)),
    "gamma": (ep.Gamma(3.5, 2.0), ep.Gamma(1.5, 0.7), (0, 40)),
}
FAMILIES = pytest.mark.parametrize("name", PAIRS)
log_density = jax.jit(lambda of, x: of.log_density(x))


def scipys(of):
    """Return SciPy's distribution."""
    if isinstance(of, ep.Gaussian):
        return stats.norm(of.mean, np.sqrt(of.variance))
    return stats.beta(of.alpha, of.beta) if isinstance(of, ep.Beta) else stats.gamma(of.shape, scale=1 / of.rate)


def integral(function, ends):
    return integrate.quad(function, *ends, epsabs=1e-12, epsrel=1e-12, limit=300)[0]


def close(one, other, **tolerance):
    chex.assert_trees_all_close(jax.tree.leaves(one), jax.tree.leaves(other), **({"rtol": 1e-7} | tolerance))


# --- moments and densities --------------------------------------------------------------------------


@FAMILIES
def test_moments_and_densities_are_scipys(name):
    for of in PAIRS[name][:2]:
        expected = scipys(of)
        np.testing.assert_allclose((of.mean, of.variance), expected.stats(), rtol=1e-12)
        x = expected.ppf([0.01, 0.3, 0.9])
        np.testing.assert_allclose(log_density(of, x), expected.logpdf(x), rtol=1e-11, atol=1e-12)
        assert bool(of.proper)


@FAMILIES
def test_moments_and_outputs_are_inverted(name):
    of, reference, _ = PAIRS[name]
    family = type(of)
    close(family.from_moments(of.mean, of.variance), of, rtol=1e-12)
    close(family.from_outputs(of.outputs), of, rtol=1e-12)
    close(family.from_relative(of.relative_outputs(reference), reference), of, rtol=1e-12)
    np.testing.assert_allclose(reference.relative_outputs(reference), np.zeros(2), atol=1e-14)


def test_outputs_are_those_of_the_paper():
    np.testing.assert_allclose(ep.Gaussian.from_moments(3.0, 2.0).outputs, [3, np.log(2)], rtol=1e-12)
    np.testing.assert_allclose(ep.Beta(2.0, 5.0).outputs, np.log([2, 5]), rtol=1e-12)
    np.testing.assert_allclose(ep.Gamma(2.0, 5.0).outputs, np.log([2, 5]), rtol=1e-12)
    relative = ep.Gaussian.from_moments(3.0, 2.0).relative_outputs(ep.Gaussian.from_moments(1.0, 4.0))
    np.testing.assert_allclose(relative, [1, np.log(0.5)], rtol=1e-12)


@FAMILIES
def test_samples_and_characteristic_functions_are_of_the_distribution(name):
    of, frequencies = PAIRS[name][0], jnp.array([0.1, 1.0, 4.0, 15.0])
    x = of.sample(KEY, 100_000)
    assert stats.kstest(np.asarray(x), scipys(of).cdf).pvalue > 1e-3
    cosine, sine = of.characteristic(frequencies)
    expected = scipys(of)
    for w, c, s in zip(frequencies, cosine, sine):
        ends = PAIRS[name][2]
        np.testing.assert_allclose(c, integral(lambda x, w=w: np.cos(w * x) * expected.pdf(x), ends), atol=1e-9)
        np.testing.assert_allclose(s, integral(lambda x, w=w: np.sin(w * x) * expected.pdf(x), ends), atol=1e-9)


@pytest.mark.parametrize("alpha, beta", [(0.5, 0.5), (2, 1), (0.1, 3), (40, 70), (5e3, 200)])
def test_the_characteristic_function_of_beta_is_right_for_any_shape(alpha, beta):
    w = jnp.array([0.5, 3.0, 20.0])
    cosine, sine = jax.jit(lambda of: of.characteristic(w))(ep.Beta(alpha, beta))
    k = np.arange(120)  # 1F1(alpha; alpha + beta; i w) by its series
    logs = special.gammaln(alpha + k) - special.gammaln(alpha) - special.gammaln(k + 1)
    logs += special.gammaln(alpha + beta) - special.gammaln(alpha + beta + k)
    expected = (np.exp(logs) * (1j * np.asarray(w)[:2, None]) ** k).sum(axis=1)
    np.testing.assert_allclose(np.asarray(cosine)[:2] + 1j * np.asarray(sine)[:2], expected, atol=1e-8)
    assert float(cosine[2] ** 2 + sine[2] ** 2) <= 1


# --- products and ratios ----------------------------------------------------------------------------


@FAMILIES
def test_products_multiply_densities(name):
    p, q, ends = PAIRS[name]
    x = np.linspace(*ends, 9)[1:-1]
    gap = scipys(p).logpdf(x) + scipys(q).logpdf(x) - np.asarray(log_density(p * q, x))
    np.testing.assert_allclose(gap, np.full(7, gap[0]), rtol=1e-9)
    close(p * p.uniform(), p, rtol=1e-14)


@FAMILIES
def test_a_ratio_times_the_incoming_message_is_the_belief(name):
    p, q, _ = PAIRS[name]
    belief = p * q
    assert bool(belief.exceeds(q))
    for improper in (ep.MeanPreserving(), ep.Uniform()):
        close(ep.ratio(belief, q, improper=improper) * q, belief, rtol=1e-12)


@pytest.mark.parametrize(
    "belief, incoming",
    [
        (ep.Gaussian.from_moments(1.5, 3.0), ep.Gaussian.from_moments(0.5, 2.0)),
        (ep.Beta(2.0, 5.0), ep.Beta(3.0, 2.0)),
        (ep.Beta(2.0, 5.0), ep.Beta(1.5, 8.0)),
        (ep.Gamma(2.0, 5.0), ep.Gamma(3.0, 2.0)),
        (ep.Gamma(2.0, 5.0), ep.Gamma(1.5, 8.0)),
        (ep.Gamma(2.0, 0.5), ep.Gamma(3.0, 4.0)),
    ],
)
def test_improper_ratios_keep_the_mean_or_say_nothing(belief, incoming):
    assert not bool(belief.exceeds(incoming))
    sent = ep.ratio(belief, incoming)
    np.testing.assert_allclose((sent * incoming).mean, belief.mean, rtol=1e-12)
    assert bool((sent * incoming).proper)
    nothing = ep.ratio(belief, incoming, improper=ep.Uniform())
    close(nothing * incoming, incoming, rtol=1e-14)
    natural = sent * sent.uniform()
    least = {"Gaussian": (0, -np.inf), "Beta": (1, 1), "Gamma": (1, 0)}[type(sent).__name__]
    assert all(leaf >= bound for leaf, bound in zip(jax.tree.leaves(natural), least, strict=True))


def test_the_rules_are_chosen_for_each_of_a_batch():
    belief = ep.Gaussian.from_moments(np.array([1.0, 1.0]), np.array([0.5, 4.0]))
    incoming = ep.Gaussian.from_moments(np.zeros(2), np.ones(2))
    sent = ep.ratio(belief, incoming)
    np.testing.assert_allclose(sent.precision, [1, 0], atol=1e-14)
    np.testing.assert_allclose(sent.shift, [2, 1], rtol=1e-12)


@FAMILIES
def test_ratios_have_the_right_gradient_away_from_the_switch(name):
    p, q, _ = PAIRS[name]

    @jax.jit
    def loss(amount, belief):
        moved = jax.tree.map(lambda leaf: leaf * (1 + amount), belief)
        return sum(jax.tree.leaves(ep.ratio(moved, q)))

    for belief in (p * q, q / p * q.uniform() if name == "gaussian" else type(q)(*np.array(jax.tree.leaves(q)) / 2)):
        slope = (loss(1e-6, belief) - loss(-1e-6, belief)) / 2e-6
        np.testing.assert_allclose(jax.grad(loss)(0.0, belief), slope, rtol=1e-6, atol=1e-7)


# --- divergences and projections --------------------------------------------------------------------


@FAMILIES
def test_divergences_equal_numerical_integrals(name):
    p, q, ends = PAIRS[name]
    for one, other in ((p, q), (q, p)):
        a, b = scipys(one), scipys(other)
        expected = integral(lambda x, a=a, b=b: a.pdf(x) * (a.logpdf(x) - b.logpdf(x)) if a.pdf(x) else 0.0, ends)
        np.testing.assert_allclose(ep.kl(one, other), expected, rtol=1e-8, atol=1e-8)
        assert float(ep.kl(one, other)) > 0
    np.testing.assert_allclose(ep.kl(p, p), 0, atol=1e-14)


@FAMILIES
def test_projections_of_samples_are_the_nearest_members(name):
    of, _, _ = PAIRS[name]
    x = of.sample(KEY, 500)
    weights = jax.nn.softmax(jax.random.normal(jax.random.key(1), (500,)))
    found = type(of).project(x, weights)
    leaves, structure = jax.tree.flatten(found)

    def loss(leaves):
        return -jnp.sum(weights * jax.tree.unflatten(structure, leaves).log_density(x))

    gradient = jnp.stack(jax.jit(jax.grad(loss))(leaves)) * jnp.stack(leaves)
    assert float(jnp.abs(gradient).max()) < 1e-9


def test_projections_of_many_shapes_return_the_member_itself():
    shapes = np.exp(np.random.default_rng(0).uniform(np.log(0.05), np.log(2e3), (2, 300)))
    a, b = shapes
    start = ep.Beta(np.sqrt(a), np.sqrt(b))
    logs = [jnp.asarray(special.psi(of) - special.psi(a + b)) for of in (a, b)]
    close(ep.Beta.from_statistics(*logs, start), ep.Beta(a, b), rtol=1e-8)
    gamma = ep.Gamma.from_statistics(jnp.asarray(a / b), jnp.asarray(special.psi(a) - np.log(b)))
    close(gamma, ep.Gamma(a, b), rtol=1e-8)


def test_samples_at_the_ends_are_projected():
    weights = jnp.full(4, 0.25)
    assert bool(ep.Beta.project(jnp.array([0.0, 0.3, 0.9, 1.0]), weights).proper)
    assert bool(ep.Gamma.project(jnp.array([0.0, 0.3, 0.9, 7.0]), weights).proper)
    same = jnp.full(4, 0.5)
    for family in (ep.Gaussian, ep.Beta):  # no member has variance 0
        assert not bool(jax.jit(family.project)(same, weights).proper)
        with pytest.raises(ValueError, match=f"^x, weights: must give a finite {family.__name__}; got"):
            family.project(same, weights)


def test_densities_are_0_outside_of_the_domain():
    x = jnp.array([-1.0, 0.0, 0.4, 1.0, 2.0])
    for of in (ep.Beta(2.0, 3.0), ep.Gamma(2.0, 3.0)):
        np.testing.assert_allclose(of.log_density(x), scipys(of).logpdf(x), rtol=1e-12)
        slopes = jax.vmap(jax.grad(lambda of, x: of.log_density(x), argnums=1), (None, 0))(of, x)
        assert bool(jnp.isfinite(slopes).all())


@FAMILIES
def test_single_precision_stays_single(name):
    p, q, _ = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), PAIRS[name])
    weights = jnp.full(100, 0.01, jnp.float32)
    results = (p * q, ep.ratio(p, q), type(p).project(p.sample(KEY, 100), weights), ep.kl(p, q), p.outputs)
    assert {leaf.dtype for leaf in jax.tree.leaves(results)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(ep.kl(p, q), np.float32(ep.kl(*PAIRS[name][:2])), rtol=1e-4)


# --- Gaussians of vectors ---------------------------------------------------------------------------


def test_gaussians_of_vectors():
    rng = np.random.default_rng(0)
    (m1, m2), roots = rng.normal(size=(2, 4)), rng.normal(size=(2, 4, 6))
    v1, v2 = roots @ roots.transpose(0, 2, 1)
    p, q = ep.MultivariateGaussian.from_moments(m1, v1), ep.MultivariateGaussian.from_moments(m2, v2)
    np.testing.assert_allclose(p.mean, m1, rtol=1e-9)
    np.testing.assert_allclose(p.covariance, v1, rtol=1e-9, atol=1e-10)
    trace = np.trace(np.linalg.solve(v2, v1)) + (m2 - m1) @ np.linalg.solve(v2, m2 - m1) - 4
    expected = 0.5 * (trace - np.linalg.slogdet(v1)[1] + np.linalg.slogdet(v2)[1])
    np.testing.assert_allclose(p.kl(q), expected, rtol=1e-9)
    np.testing.assert_allclose(p.kl(p), 0, atol=1e-12)
    product = p * q
    np.testing.assert_allclose(product.covariance, np.linalg.inv(np.linalg.inv(v1) + np.linalg.inv(v2)), rtol=1e-8)
    close(product / q, p, rtol=1e-9, atol=1e-11)
    both = ep.MultivariateGaussian.from_moments(np.stack([m1, m2]), np.stack([v1, v2]))
    np.testing.assert_allclose(both.kl(jax.tree.map(lambda leaf: leaf[::-1], both))[0], expected, rtol=1e-9)


# --- refusals ---------------------------------------------------------------------------------------

MULTIVARIATE = ep.MultivariateGaussian


@pytest.mark.parametrize(
    "call, message",
    [
        (partial(ep.Gaussian, np.ones(2), np.ones(3)), "precision, shift: must have shapes that broadcast; got .2,"),
        (partial(ep.Gamma, "a", 1.0), "shape: must be an array; got .a."),
        (partial(ep.Beta, np.nan, 1.0), "alpha: must be finite; got nan"),
        (partial(ep.Gamma, 1.0, [1.0, np.inf]), "rate: must be finite; got 1 NaN or infinite of 2"),
        (partial(MULTIVARIATE, np.eye(2) * np.nan, np.ones(2)), "precision: must be finite; got 4 NaN"),
        (partial(MULTIVARIATE.from_moments, [0.0, np.nan], np.eye(2)), "mean, covariance: must give a finite Multiv"),
        (partial(ep.Gaussian.from_moments, np.nan, 1.0), "mean, variance: must give a finite Gaussian; got 1 param"),
        (partial(ep.Gamma.from_moments, 1e300, 1.0), "mean, variance: must give a finite Gamma; got 1 param"),
        (partial(ep.Beta.from_outputs, np.full(2, 1e4)), "outputs: must give a finite Beta; got 2 param"),
        (
            partial(ep.Beta.from_statistics, jnp.zeros(0), jnp.zeros(0), ep.Beta(2.0, 1.0)),
            "mean_log, mean_log_complement, start: must have one shape",
        ),
        (partial(ep.Gamma.from_outputs, jnp.zeros(0)), r"outputs: must have shape \[\*batch, 2\]; got shape \(0,\)"),
        (partial(ep.Gaussian.from_relative, jnp.zeros(3), ep.Gaussian(1.0, 0.0)), "outputs: must have shape"),
        (partial(ep.Gaussian.from_moments, 0.0, 0.0), "variance: must be > 0; got 0.0 as the least"),
        (partial(ep.Gaussian.from_moments, 0.0, np.array([1.0, np.nan])), "variance: must be > 0; got nan"),
        (partial(ep.Beta.from_moments, 0.5, 0.3), "mean, variance: must be .*; got mean 0.5 and variance 0.3"),
        (partial(ep.Beta.from_moments, [0.5, 1.5], 0.1), "mean, variance: must be 0 < mean < 1 .*; got mean 1.5"),
        (partial(ep.Beta.from_moments, np.nan, 0.1), "mean, variance: must be .*; got mean nan"),
        (partial(ep.Beta.from_moments, 0.5, -0.1), "variance: must be > 0"),
        (partial(ep.Gamma.from_moments, -1.0, 1.0), "mean: must be > 0; got -1.0"),
        (partial(ep.Gamma.from_moments, 1.0, 0.0), "variance: must be > 0; got 0.0"),
        (partial(MULTIVARIATE, np.eye(2), np.ones(3)), "precision, shift: must have shapes"),
        (partial(MULTIVARIATE, 1.0, 1.0), "precision, shift: must have shapes"),
        (
            partial(MULTIVARIATE.from_moments, np.zeros(2), np.diag([1.0, -1.0])),
            "covariance: must be symmetric and pos",
        ),
        (partial(MULTIVARIATE.from_moments, np.zeros(2), np.zeros((2, 2))), "covariance: must be symmetric and pos"),
        (
            partial(MULTIVARIATE.from_moments, np.zeros(2), np.array([[1, 0.5], [0, 1]])),
            "covariance: must be .*; got an asymmetric matrix",
        ),
        (
            partial(MULTIVARIATE.from_moments, np.zeros(2), np.full((2, 2), np.nan)),
            "covariance: must be finite; got 4 NaN",
        ),
        (partial(MULTIVARIATE.from_moments, np.zeros(2), np.eye(3)), "mean, covariance: must have shapes"),
        (partial(MULTIVARIATE.from_moments, 0.0, 1.0), "mean, covariance: must have shapes"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match="^" + message):
        inspect.unwrap(call.func)(*call.args) if isinstance(call.func, type(lambda: 0)) else call()


def test_two_families_are_refused():
    p, q = ep.Gaussian(1.0, 0.0), ep.Beta(1.0, 1.0)
    with pytest.raises(ValueError, match="^belief, incoming: must be of one family; got Gaussian and Beta"):
        ep.ratio(p, q)
    with pytest.raises(ValueError, match="^p, q: must be of one family; got Beta and Gaussian"):
        ep.kl(q, p)


def test_a_family_without_sampler_or_characteristic_says_so():
    of = LogNormal.of(0.0, 1.0)
    with pytest.raises(ValueError, match="^LogNormal: must have a sampler to be drawn from; got .* Give the class"):
        of.sample(KEY, 3)
    with pytest.raises(ValueError, match=r"^LogNormal: must have characteristic\(frequencies\) for Exact\(\); got"):
        of.characteristic(jnp.ones(2))


def test_known_numbers_inside_a_compiled_function_are_checked():
    mean, variance, wrong = jnp.zeros(3), jnp.ones(3), jnp.zeros(3)
    assert jax.jit(lambda: ep.Gaussian.from_moments(mean, variance))().mean.shape == (3,)
    with pytest.raises(ValueError, match="must be > 0"):
        jax.jit(lambda: ep.Gaussian.from_moments(mean, wrong))()
