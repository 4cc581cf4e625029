"""Expectation propagation in linear models and of precisions, against quadrature, plain loops and known answers."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from kbpjax import ep
from tests.ep.families import Broken, Drawn
from tests.refusals import not_refused

KEY = jax.random.key(0)
ORACLE = ep.LogisticToZ(num_nodes=400)


def problem(num_data, dim, seed=0):
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(num_data, dim)), rng.normal(size=dim)
    return x, (rng.random(num_data) < special.expit(x @ w)).astype(int)


X, Y = problem(40, 3)


@pytest.fixture(scope="module")
def converged():
    return ep.logistic_regression(X, Y, num_sweeps=40)


def twin(x, y, num_sweeps, damping=0.0, prior_variance=1.0, in_turn=False):
    """Run expectation propagation in NumPy, with moments by SciPy's quadrature rule of many nodes."""
    precision, shift = np.zeros(len(x)), np.zeros(len(x))
    nodes = (np.arange(2000) + 0.5) / 2000 * 24 - 12
    weight = stats.norm.pdf(nodes)

    def posterior():
        covariance = np.linalg.inv(np.eye(x.shape[1]) / prior_variance + (x.T * precision) @ x)
        return covariance @ x.T @ shift, covariance

    def new_site(i, mean, covariance):
        v = x[i] @ covariance @ x[i]
        cavity = 1 / v - precision[i], x[i] @ mean / v - shift[i]
        z = (cavity[1] + np.sqrt(cavity[0]) * nodes) / cavity[0]
        w = weight * special.expit(z if y[i] else -z)
        m = (w * z).sum() / w.sum()
        belief = w.sum() / (w * (z - m) ** 2).sum()
        return belief - cavity[0], belief * m - cavity[1]

    for _ in range(num_sweeps):
        found = posterior()
        new = np.stack([precision, shift])
        for i in range(len(x)):
            site = new_site(i, *(posterior() if in_turn else found))
            new[:, i] = damping * new[:, i] + (1 - damping) * np.array(site)
            if in_turn:
                precision, shift = new.copy()
        precision, shift = new
    return posterior(), new


# --- exact messages --------------------------------------------------------------------------------


@pytest.mark.parametrize("label, x, prior", [(1, 1.7, 1.0), (0, 0.4, 5.0)])
def test_one_weight_and_one_datum_is_exact(label, x, prior):
    density = lambda w: special.expit(w * x if label else -w * x) * stats.norm.pdf(w, 0, prior**0.5)
    moments = [integrate.quad(lambda w, k=k: w**k * density(w), -40, 40, epsabs=1e-13)[0] for k in range(3)]
    mean = moments[1] / moments[0]
    found = ep.logistic_regression([[x]], [label], num_sweeps=2, prior_variance=prior)
    np.testing.assert_allclose(found.mean[0], mean, rtol=1e-9)
    np.testing.assert_allclose(found.covariance[0, 0], moments[2] / moments[0] - mean**2, rtol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": ep.Sequential(), "damping": 0.2},
        *(pytest.param(of, marks=pytest.mark.slow) for of in ({"damping": 0.4}, {"prior_variance": 7.0})),
    ],
)
def test_sweeps_equal_a_plain_loop(options):
    (mean, covariance), sites = twin(
        X, Y, 3, options.get("damping", 0.0), options.get("prior_variance", 1.0), "schedule" in options
    )
    found = ep.logistic_regression(X, Y, num_sweeps=3, **options)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found.sites.precision, sites[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.sites.shift, sites[1], rtol=1e-8, atol=1e-10)


def test_the_first_cavities_are_those_of_the_prior(converged):
    incoming = converged.record.incoming[1]
    np.testing.assert_allclose(incoming.mean[0], np.zeros(40), atol=1e-12)
    np.testing.assert_allclose(incoming.variance[0], (X**2).sum(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(converged.record.incoming[0].alpha[3], 1.0 + Y)
    assert converged.record.asked.all() and not converged.record.failed.any()
    assert np.isnan(converged.record.log_variance).all()


def test_it_converges_as_fast_as_it_should():
    x, y = problem(300, 20, seed=4)
    found = ep.logistic_regression(x, y, num_sweeps=30, oracle=ep.LogisticToZ(num_nodes=300))
    changes = np.asarray(found.changes)
    left = np.cumsum(changes[::-1])[::-1]  # a bound on what is still to come before each sweep
    assert 1e-3 < left[3] < 1e-1 and left[10] < 1e-4 and left[20] < 1e-8 and changes[-1] < 1e-10
    assert np.all(found.sites.precision >= 0)
    eigenvalues = np.linalg.eigvalsh(found.covariance)
    assert eigenvalues.min() > 0 and eigenvalues.max() < 1


@pytest.mark.parametrize("options", [{"schedule": ep.Sequential()}, {"damping": 0.5}])
def test_schedules_and_damping_change_the_way_and_not_the_end(converged, options):
    found = ep.logistic_regression(X, Y, num_sweeps=40, **options)
    np.testing.assert_allclose(found.mean, converged.mean, atol=1e-9)
    np.testing.assert_allclose(found.covariance, converged.covariance, atol=1e-9)
    np.testing.assert_allclose(found.sites.shift, converged.sites.shift, atol=1e-8)


def test_expectation_propagation_is_near_the_true_posterior(converged):
    draws = np.random.default_rng(0).normal(size=(200_000, 3))
    logs = special.log_expit(draws @ (X * (2 * Y[:, None] - 1)).T).sum(axis=1)
    weight = np.exp(logs - logs.max())
    mean = weight @ draws / weight.sum()
    np.testing.assert_allclose(converged.mean, mean, atol=0.02)
    spread = ((draws - mean) ** 2 * weight[:, None]).sum(axis=0) / weight.sum()
    np.testing.assert_allclose(np.diag(converged.covariance), spread, rtol=0.05)


def test_mirrored_labels_give_the_mirrored_posterior(converged):
    found = ep.logistic_regression(X, 1 - Y, num_sweeps=40)
    np.testing.assert_allclose(found.mean, -converged.mean, atol=1e-11)


def test_the_predictive_is_the_averaged_logistic_function(converged):
    fresh = np.array([[0.0, 0.1, 0.0], [1.0, -2.0, 3.0], [30.0, 0.0, -20.0], [-4.0, 1.0, 1.0]])
    expected = []
    for row in fresh:
        mean, sd = row @ converged.mean, np.sqrt(row @ converged.covariance @ row)
        density = lambda e, mean=mean, sd=sd: special.expit(mean + sd * e) * stats.norm.pdf(e)
        expected.append(integrate.quad(density, -12, 12, epsabs=1e-13, limit=200)[0])
    np.testing.assert_allclose(ep.logistic_predictive(converged, jnp.asarray(fresh)), expected, rtol=1e-8)


def test_the_predictive_is_right_at_any_variance(converged):
    mean, spreads, found, expected = 1.3, (0.0, 0.01, 0.5, 0.999, 1.001, 5.0, 100.0, 1e4), [], []
    for spread in spreads:
        moments = jnp.asarray([mean, 0, 0]), jnp.asarray(np.diag([spread**2, 1, 1]))
        posterior = eqx.tree_at(lambda p: (p.mean, p.covariance), converged, moments)
        found.append(float(ep.logistic_predictive(posterior, jnp.asarray([[1.0, 0, 0]]))[0]))
        e = np.linspace(-12, 12, 4_000_001 if spread > 10 else 400_001)  # the slope is steep in e
        density = special.expit(mean + spread * e) * np.exp(-0.5 * e**2) / np.sqrt(2 * np.pi)
        expected.append(np.trapezoid(density, e))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_single_precision_is_usable(converged):
    found = ep.logistic_regression(X.astype(np.float32), Y, num_sweeps=40)
    assert found.mean.dtype == found.sites.shift.dtype == found.covariance.dtype == jnp.float32
    np.testing.assert_allclose(found.mean, np.asarray(converged.mean, np.float32), atol=1e-4)


def test_an_oracle_that_fails_leaves_the_other_data():
    x, y = problem(40, 3)
    found = ep.logistic_regression(x, y, oracle=Broken(jnp.asarray(1.0)), num_sweeps=5)
    failed = np.asarray(found.record.failed)
    assert 0 < failed.sum() < failed.size and np.isfinite(found.mean).all()
    assert np.all(found.sites.precision[failed[-1]] == 0) and np.all(found.sites.shift[failed[-1]] == 0)


def test_any_factor_will_do():
    # Counts y ~ Poisson(exp(z)): the child's message is Gamma(1 + y, 1) of the rate exp(z).
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 2)) / 2
    counts = rng.poisson(np.exp(x @ np.array([1.0, -1.0])))
    factor = ep.ForwardSampler(lambda key, z: jnp.exp(z), (ep.Gaussian.from_moments(0.0, 2.0),))
    oracle = ep.ImportanceSampling(factor, variable=1, num_samples=50_000)
    found = ep.linear_model(x, ep.Gamma(1.0 + counts, np.ones(30)), oracle=oracle, num_sweeps=3)
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-3, 3, 301)], indexing="ij"), axis=-1).reshape(-1, 2)
    z = grid @ x.T
    logs = (z * counts - np.exp(z)).sum(axis=1) - 0.5 * (grid**2).sum(axis=1)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    mean = weight @ grid
    np.testing.assert_allclose(found.mean, mean, atol=0.03)
    np.testing.assert_allclose(np.diag(found.covariance), weight @ (grid - mean) ** 2, rtol=0.1)


# --- operators -------------------------------------------------------------------------------------


@jax.jit
def operator(threshold):
    like = ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)
    few = ep.Learner(num_inner=30, num_outer=60)
    return ep.init_operator(KEY, like, variable=1, num_initial=60, threshold=threshold, learner=few)


@pytest.mark.parametrize("schedule", [ep.Parallel(), ep.Sequential()])
@pytest.mark.slow
def test_an_operator_that_always_asks_is_exact(schedule):
    exact = ep.logistic_regression(X, Y, oracle=ORACLE, num_sweeps=8, schedule=schedule)
    found = ep.logistic_regression(X, Y, oracle=ORACLE, operator=operator(-np.inf), num_sweeps=8, schedule=schedule)
    assert found.record.asked.all() and bool(found.operator.trained)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-10)
    np.testing.assert_allclose(found.covariance, exact.covariance, atol=1e-10)


def test_an_operator_asks_less_and_less_and_is_close(converged):
    found = ep.logistic_regression(X, Y, oracle=ORACLE, operator=operator(-6.0), num_sweeps=8)
    asked = np.asarray(found.record.asked).sum(axis=1)
    assert asked[0] == 40 and asked[-1] < 10 and 60 <= asked.sum() < 200
    np.testing.assert_allclose(found.mean, converged.mean, atol=0.05)
    x, y = problem(40, 3, seed=9)
    later = ep.logistic_regression(x, y, oracle=ORACLE, operator=found.operator, num_sweeps=8)
    assert int(later.record.asked.sum()) < asked.sum() // 2
    np.testing.assert_allclose(later.mean, ep.logistic_regression(x, y, oracle=ORACLE, num_sweeps=8).mean, atol=0.1)


# --- refusals --------------------------------------------------------------------------------------


REFUSED = [
    ({"x": X[0]}, "x: must be .datum, dim., one of each at least; got shape .3,.. Give a row to each datum."),
    ({"x": np.where(X > 2, np.nan, X)}, "x: must be finite; got .* NaN or infinite"),
    ({"y": Y[:5]}, "child: must have shape .40,.; got .5,."),
    ({"y": 2 * Y - 1}, "y: must be labels 0 or 1; got"),
    ({"y": np.where(Y > 0, 1.0, np.nan)}, "y: must be labels 0 or 1; got"),
    ({"y": Y[:, None]}, "child: must have shape .40,.; got .40, 1."),
    ({"oracle": ep.LogisticToP()}, "oracle: must answer for variable 1, z; got 0"),
    ({"num_sweeps": 0}, "num_sweeps: must be an integer >= 1; got 0"),
    ({"damping": 1.0}, "damping: must be finite and >= 0 and < 1; got 1.0"),
    ({"damping": -0.1}, "damping: must be finite and >= 0 and < 1; got -0.1"),
    ({"prior_variance": 0.0}, "prior_variance: must be finite and > 0; got 0.0"),
]


def test_bad_arguments_are_refused_by_name():
    def call(x=X, y=Y, **options):
        ep.logistic_regression(x, y, **options)

    without_data = r"x: must be \[datum, dim\], one of each at least; got shape"
    changes = [*REFUSED, *(({"x": np.zeros(of), "y": np.zeros(of[0])}, without_data) for of in ((0, 3), (3, 0)))]
    assert not not_refused({str(change): (partial(call, **change), "^" + message) for change, message in changes})


def test_an_operator_for_another_factor_is_refused():
    like = (ep.Gamma(6.0, 1.0),)
    few = ep.Learner(num_inner=5, num_outer=5)
    other = jax.jit(lambda: ep.init_operator(KEY, like, variable=0, num_initial=5, learner=few))()
    with pytest.raises(ValueError, match="^oracle: must answer for variable 0; got 1"):
        ep.logistic_regression(X, Y, operator=other)


# --- precisions ------------------------------------------------------------------------------------


def samples(num_problems, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(10, 101, num_problems)
    precision = rng.gamma(1, 1 / rng.gamma(1, 1, num_problems))
    return counts, rng.chisquare(counts) / precision


def test_posteriors_of_precisions_are_the_projected_truth():
    counts, squares = samples(6)
    matching = ep.CompoundGamma(projection=ep.MatchingMoments())
    posterior, none, record = ep.precision_posteriors(counts, squares, oracle=matching)
    truth = jax.jit(lambda of: matching.integrals(of))(ep.Gamma(1.0 + counts / 2, squares / 2))
    np.testing.assert_allclose(posterior.mean, truth.mean, rtol=1e-10)  # kept, though the ratio is improper
    np.testing.assert_allclose(posterior.shape, 1 + counts / 2, rtol=1e-12)  # as in the paper's figure
    assert none is None and record.asked.all() and not record.failed.any()
    nearest, *_ = ep.precision_posteriors(counts, squares)
    np.testing.assert_allclose(nearest.mean, truth.mean, rtol=1e-9)


def test_operators_of_precisions_learn_the_message():
    like, (counts, squares) = (ep.Gamma(6.0, 1.0),), samples(300)
    learner = ep.Learner(num_inner=60, num_outer=100, targets=ep.Message())
    start = jax.jit(lambda: ep.init_operator(KEY, like, variable=0, num_initial=20, threshold=-6.0, learner=learner))()
    oracle = ep.CompoundGamma(projection=ep.MatchingMoments(), num_nodes=1000)
    posterior, trained, record = ep.precision_posteriors(counts, squares, oracle=oracle, operator=start)
    exact, *_ = ep.precision_posteriors(counts, squares, oracle=oracle)
    assert 20 < int(record.asked.sum()) < 100 and bool(trained.trained)
    learned = ~np.asarray(record.asked)
    assert np.corrcoef(np.log(posterior.rate)[learned], np.log(exact.rate)[learned])[0, 1] > 0.9998
    assert np.corrcoef(np.log(posterior.shape)[learned], np.log(exact.shape)[learned])[0, 1] > 0.9998


BAD_PROBLEMS = [
    ([0.0], [1.0], "counts: must be >= 1|counts: must be > 0"),
    ([3.0], [0.0], "squares: must be > 0; got one that is not"),
    ([3.0], [np.nan], "squares: must be > 0"),
    (3.0, 1.0, "counts: must be a list of numbers; got shape"),
    ([1.0, 2.0], [1.0, 2.0, 3.0], "counts, squares: must have shapes that broadcast; got"),
]


def test_bad_problems_are_refused():
    calls = {str(of): (partial(ep.precision_posteriors, *of), f"^({message})") for *of, message in BAD_PROBLEMS}
    assert not not_refused(calls)


def test_a_family_of_ones_own_has_a_factor_with_one_message():
    log_factor = lambda t: -0.5 * jnp.log(t) ** 2
    oracle = ep.ImportanceSampling(ep.LogDensity(log_factor, (Drawn.of(0.0, 4.0),)), variable=0, num_samples=100_000)
    belief = oracle((Drawn.of(1.0, 2.0),), KEY)
    expected = ep.Gaussian.from_moments(0.0, 1.0) * ep.Gaussian.from_moments(1.0, 2.0)
    assert isinstance(belief, Drawn)
    np.testing.assert_allclose(belief.log.mean, 1 / 3, atol=0.03)
    np.testing.assert_allclose(belief.log.variance, expected.variance, rtol=0.05)
