"""Time series: filter, smoother, forecasts and paths, against each other, enumeration and the Kalman filter."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import series
from kbpjax.baselines import discrete

RNG = np.random.default_rng(0)
DECAY, NOISE = 0.9, 0.5
OPTIONS = {"kernel": kbp.RBF(0.7), "obs_kernel": kbp.RBF(0.3), "ridge": 1e-4}


def walk(count, length, rng=RNG):
    """Return states and observations of an AR(1) process with variance 1."""
    x = [rng.standard_normal(count)]
    for _ in range(length - 1):
        x.append(DECAY * x[-1] + np.sqrt(1 - DECAY**2) * rng.standard_normal(count))
    x = np.stack(x, axis=1)
    return x.astype(np.float32), (x + NOISE * rng.standard_normal(x.shape)).astype(np.float32)


X, Y = walk(80, 25)
LATER, SEEN = walk(4, 12, np.random.default_rng(1))
GAPS = np.where(np.random.default_rng(2).random(SEEN.shape) < 0.3, np.nan, SEEN)


@pytest.fixture(scope="module")
def model():
    return series.fit(X, Y, **OPTIONS)


@pytest.fixture(scope="module")
def filtered(model):
    return series.filter(model, GAPS)


def kalman(y):
    """Return means, standard deviations and log densities of the exact filter of one series."""
    mean, var, found = 0.0, 1.0, []
    for one in y:
        total = var + NOISE**2
        density = -((one - mean) ** 2) / (2 * total) - np.log(2 * np.pi * total) / 2
        if np.isfinite(one):
            gain = var / total
            mean, var = mean + gain * (one - mean), (1 - gain) * var
        found.append((mean, np.sqrt(var), density))
        mean, var = DECAY * mean, DECAY**2 * var + 1 - DECAY**2
    return np.array(found).T


def test_the_filter_is_the_last_belief_of_what_was_seen_so_far(model, filtered):
    for end in (1, 5, 12):
        whole = series.smooth(model, GAPS[:, :end])
        np.testing.assert_allclose(filtered.posterior.weights[:, end - 1], whole.weights[:, -1], atol=2e-6)


@pytest.mark.slow
def test_messages_of_the_filter_are_those_of_run_tree(model):
    graph = model.chain(12)
    solution = kbp.run_tree(model.model, graph, kbp.observe(model.model, graph, GAPS[0]))
    state, messages = series.start(model), []
    for y in GAPS[0, :-1]:
        state, *_ = series.update(model, state, y)
        messages.append(state.message)
    np.testing.assert_allclose(np.stack(messages), solution.messages[:11, : len(state.message)], atol=1e-6)


def test_updates_one_by_one_equal_the_filter(model, filtered):
    step = jax.jit(lambda state, y: series.update(model, state, y))
    state = series.start(model)
    for t, y in enumerate(GAPS[0]):
        state, belief, log_density = step(state, y)
        np.testing.assert_allclose(belief.weights[0], filtered.posterior.weights[0, t], atol=2e-6)
        np.testing.assert_allclose(log_density, filtered.log_densities[0, t], atol=1e-5)
    np.testing.assert_allclose(state.message, filtered.state.message[0], atol=1e-6)


@pytest.mark.slow
def test_a_series_is_continued_from_its_state(model, filtered):
    first = series.filter(model, GAPS[:, :5])
    rest = series.filter(model, GAPS[:, 5:], state=first.state)
    np.testing.assert_allclose(rest.posterior.weights, filtered.posterior.weights[:, 5:], atol=2e-6)
    np.testing.assert_allclose(rest.log_densities, filtered.log_densities[:, 5:], atol=1e-5)


def test_smoothing_is_inference_on_a_chain(model):
    found, graph = series.smooth(model, GAPS[0]), kbp.chain_graph(12)
    np.testing.assert_allclose(found.weights, kbp.infer(model.model, graph, GAPS[0]).weights, atol=1e-6)


@pytest.mark.slow
def test_forecasts_are_the_smoother_of_a_longer_series(model, filtered):
    longer = series.smooth(model, GAPS, steps=3)
    for past in (GAPS, filtered, filtered.state):
        found = series.forecast(model, past, 3)
        np.testing.assert_allclose(found.weights, longer.weights[:, -3:], atol=2e-6)
    assert series.forecast(model, GAPS[0], 2).weights.shape == (2, 256)


@pytest.mark.slow
def test_answers_are_near_those_of_the_kalman_filter(model, filtered):
    exact = np.stack([kalman(y) for y in GAPS])
    np.testing.assert_allclose(kbp.mean(filtered.posterior), exact[:, 0], atol=0.25)
    np.testing.assert_allclose(kbp.std(filtered.posterior), exact[:, 1], rtol=0.35)
    there = np.isfinite(GAPS)
    assert np.isnan(np.asarray(filtered.log_densities)[~there]).all()
    assert abs(np.asarray(filtered.log_densities)[there].mean() - exact[:, 2][there].mean()) < 0.1


def test_an_outlier_has_a_low_density(model):
    y = np.array(SEEN[0])
    y[6] = 4.0
    assert int(np.argmin(series.filter(model, y).log_densities)) == 6


def test_paths_are_joint_draws(model):
    paths = series.sample_paths(model, GAPS[0], jax.random.key(0), 4000, steps=2)
    assert paths.shape == (4000, 14)
    whole = series.smooth(model, GAPS[0], steps=2)
    np.testing.assert_allclose(paths.mean(axis=0), kbp.mean(whole), atol=0.06)
    pair = kbp.edge_beliefs(whole, [(12, 13)])
    deviations = pair.first - (pair.weights[0].sum(axis=1) @ pair.first), pair.second - kbp.mean(whole)[13]
    covariance = deviations[0] @ pair.weights[0] @ deviations[1]
    got = np.cov(np.asarray(paths)[:, 12:].T)[0, 1]
    assert abs(got - float(covariance)) < 0.05


@pytest.mark.slow
def test_one_series_of_many_is_answered_as_alone(model, filtered):
    alone = series.filter(model, GAPS[2])
    np.testing.assert_allclose(alone.posterior.weights, filtered.posterior.weights[2], atol=2e-6)
    assert alone.log_densities.shape == (12,)


@pytest.mark.slow
def test_series_of_several_lengths_are_continued_without_observations(model, filtered):
    found = series.filter(model, [GAPS[0], GAPS[1, :7]])
    np.testing.assert_allclose(found.posterior.weights[0], filtered.posterior.weights[0], atol=2e-6)
    np.testing.assert_allclose(found.posterior.weights[1, :7], filtered.posterior.weights[1, :7], atol=2e-6)
    short = series.smooth(model, [GAPS[0], GAPS[1, :7]])
    np.testing.assert_allclose(kbp.mean(short)[1, :7], kbp.mean(series.smooth(model, GAPS[1, :7])), atol=5e-3)


@pytest.mark.slow
def test_forecasts_of_several_lengths_begin_where_each_series_ends(model):
    found = series.forecast(model, [GAPS[0], SEEN[1, :7]], 2)
    np.testing.assert_allclose(found.weights[0], series.forecast(model, GAPS[0], 2).weights, atol=2e-6)
    np.testing.assert_allclose(found.weights[1], series.forecast(model, SEEN[1, :7], 2).weights, atol=2e-6)


def test_times_that_are_left_out_are_steps_without_observations(model):
    at = np.array([3, 4, 7, 10])
    dense = np.full(8, np.nan, np.float32)
    dense[at - 3] = SEEN[0, :4]
    found = series.smooth(model, SEEN[0, :4], times=at)
    np.testing.assert_allclose(found.weights, series.smooth(model, dense).weights, atol=1e-6)


@pytest.mark.slow
def test_training_series_of_several_lengths_with_gaps_in_time():
    x, y = [X[0], X[1, :9], *X[2:40]], [Y[0], Y[1, :9], *Y[2:40]]
    model = series.fit(x, y, times=[np.arange(len(one)) + (np.arange(len(one)) > 4) for one in x], **OPTIONS)
    assert np.isfinite(kbp.mean(series.smooth(model, GAPS[0]))).all()


@pytest.mark.slow
def test_long_series_are_cut_without_losing_a_pair():
    x = walk(2, 200)[0]
    model = series.fit(x, **OPTIONS)
    whole = kbp.fit(kbp.pool(kbp.chain_graph(200), x, x), **OPTIONS)
    assert abs(float(kbp.mean(series.forecast(model, x[0], 1))[0]) - DECAY * x[0, -1]) < 0.3
    y = x[0, :6]
    near = kbp.mean(kbp.infer(whole, kbp.chain_graph(6), y))
    np.testing.assert_allclose(kbp.mean(series.smooth(model, y)), near, atol=0.05)


@pytest.mark.slow
def test_labels_and_forbidden_steps():
    names = np.array(["dry", "wet", "storm"])
    step = np.array([[0.8, 0.2, 0.0], [0.3, 0.4, 0.3], [0.0, 0.7, 0.3]])
    rng, rows = np.random.default_rng(0), []
    for _ in range(60):
        row = [int(rng.integers(3))]
        for _ in range(29):
            row.append(int(rng.choice(3, p=step[row[-1]])))
        rows.append(row)
    states = np.array(rows)
    seen = np.where(rng.random(states.shape) < 0.2, rng.integers(3, size=states.shape), states)
    model = series.fit(names[states], names[seen], kernel=kbp.kernels.Delta(), obs_kernel=kbp.kernels.Delta(), floor=0)
    found = series.smooth(model, names[seen[:3]])
    assert set(np.unique(kbp.mode(found))) <= set(names.tolist())
    assert (kbp.mode(found) == names[states[:3]]).mean() > 0.7
    state = series.filter(model, names[seen[0]]).state
    assert series.update(model, state, "wet").belief.labels is not None


@pytest.mark.slow
def test_two_successive_values_as_states_follow_an_oscillation():
    rng = np.random.default_rng(0)
    old, new, rows = rng.standard_normal(60), rng.standard_normal(60), []
    for _ in range(40):
        old, new = new, 1.8 * new - 0.95 * old + 0.2 * rng.standard_normal(60)
        rows.append(new)
    x = np.stack(rows, axis=1).astype(np.float32)
    learn, test = x[:50], x[50:]
    options = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(0.3)}
    errors = {}
    for order in (1, 2):
        model = series.fit(learn, order=order, **options)
        ahead = series.forecast(model, test[:, :30], 3)
        assert kbp.mean(ahead).shape == (10, 3)
        errors[order] = np.sqrt(np.mean((kbp.mean(ahead)[:, -1] - test[:, 32]) ** 2))
        assert kbp.sample(ahead, jax.random.key(0), 5).shape == (10, 5, 3)
    assert errors[2] < 0.75 * errors[1]


@pytest.mark.slow
def test_vectors_and_partly_missing_observations():
    x = np.stack([X, np.sin(X)], axis=-1)
    y = x + 0.1 * RNG.standard_normal(x.shape).astype(np.float32)
    y[RNG.random(y.shape) < 0.2] = np.nan
    model = series.fit(x, y, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
    found = series.smooth(model, y[:2])
    assert kbp.mean(found).shape == (2, 25, 2)
    assert np.abs(np.asarray(kbp.mean(found)) - x[:2]).mean() < 0.2


def test_answers_of_known_tables_equal_enumeration():
    """Filter, forecast and log densities of a hidden Markov model, with the joint table as the oracle."""
    first, step = np.array([0.6, 0.4]), np.array([[0.7, 0.3], [0.2, 0.8]])
    see = np.array([[0.9, 0.1], [0.3, 0.7]])
    states = (np.random.default_rng(0).random((400, 1)) < first[1]).astype(int)
    rng = np.random.default_rng(1)
    rows = [states[:, 0]]
    for _ in range(19):
        rows.append((rng.random(400) < step[rows[-1], 1]).astype(int))
    states = np.stack(rows, axis=1)
    seen = (rng.random(states.shape) < see[states, 1]).astype(int)
    delta = kbp.kernels.Delta()
    model = series.fit(states, seen, kernel=delta, obs_kernel=delta, ridge=1e-9, obs_ridge=1e-9, floor=0, starts="own")
    y, ahead = np.array([0, 1, 1, 0, 1]), first
    found = series.filter(model, y)
    for t, one in enumerate(y):
        both = ahead * see[:, one]
        assert abs(float(found.log_densities[t]) - np.log(both.sum())) < 0.15
        np.testing.assert_allclose(found.posterior.weights[t], both / both.sum(), atol=0.06)
        ahead = (both / both.sum()) @ step
    np.testing.assert_allclose(series.forecast(model, found, 2).weights[1], ahead @ step, atol=0.05)


@pytest.mark.slow
def test_compilation_gradients_and_double_precision(model):
    mean = lambda y: jnp.sum(kbp.mean(series.filter(model, y).posterior))
    y = jnp.asarray(SEEN[0])
    np.testing.assert_allclose(jax.jit(mean)(y), mean(y), rtol=1e-4)
    slope, small = jax.grad(mean)(y), 1e-2
    ahead = [(mean(y.at[i].add(small)) - mean(y.at[i].add(-small))) / (2 * small) for i in (2, 7)]
    np.testing.assert_allclose(slope[jnp.array([2, 7])], ahead, rtol=0.05, atol=5e-3)
    with jax.enable_x64(True):
        wide = series.fit(X.astype(np.float64), Y.astype(np.float64), **OPTIONS)
        assert series.filter(wide, SEEN[0].astype(np.float64)).log_densities.dtype == jnp.float64


@pytest.mark.slow
def test_dates_that_are_no_steps_are_reported(model):
    pd = pytest.importorskip("pandas")
    hours = pd.date_range("2024-03-30", periods=12, freq="h", tz="Europe/Berlin")  # a clock is moved between them
    even = pd.Series(SEEN[0], hours)
    months, work = (
        pd.Series(SEEN[0], pd.DatetimeIndex(list(pd.date_range("2024-01-01", periods=12, freq=step))))
        for step in ("MS", "B")
    )
    whole = kbp.mean(series.smooth(model, SEEN[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monthly = pd.Series(SEEN[0], pd.period_range("2024-01", periods=12, freq="M"))
        abroad = pd.Series(SEEN[0], pd.DatetimeIndex(list(work.index.tz_localize("Asia/Tokyo"))))
        for one in even, months, work, monthly, abroad, even.to_frame().T:
            np.testing.assert_array_equal(np.squeeze(kbp.mean(series.smooth(model, one))), whole)
        gap = even.drop(hours[3:6])
        filled = series.smooth(model, gap.asfreq("h"))
        steps = np.round((gap.index - gap.index[0]) / np.timedelta64(1, "h"))
        np.testing.assert_array_equal(kbp.mean(series.smooth(model, gap, times=steps)), kbp.mean(filled))
        series.smooth(model, gap.to_numpy())
    for call in (
        lambda: series.smooth(model, gap),
        lambda: series.filter(model, [even, gap]),
        lambda: series.smooth(model, even.iloc[[0, 1, 3, 2, 4]]),
        lambda: series.smooth(
            model, pd.Series(SEEN[0][:11], pd.period_range("2024-01", periods=12, freq="M").delete(4))
        ),
    ):
        with pytest.warns(kbp.MissingWarning, match=r"y: dates of its index are not at equal distances.*asfreq"):
            call()
    states = pd.Series(X[0], pd.date_range("2024-03-30", periods=25, freq="h"))
    for x, y, name in (states.drop(states.index[4]), None, "x"), (X[0, 1:], states.drop(states.index[4]), "y"):
        with pytest.warns(kbp.MissingWarning, match=f"{name}: dates of its index"):
            series.fit(x, y, **OPTIONS)
    with pytest.raises(ValueError, match=r"y: must have the dates of x; got others. Reindex y"):
        series.fit(states, states.shift(1, freq="h"), **OPTIONS)
    with pytest.raises(ValueError, match=r"y: must have series in rows; got dates in rows. Pass one column"):
        series.smooth(model, even.to_frame())
    with pytest.raises(ValueError, match=r"x: must have series in rows; got dates in rows. .* x.T for a series"):
        series.fit(states.to_frame(), **OPTIONS)
    for times in (hours, hours - hours[0], list(hours), [hours.to_numpy()], hours.to_pydatetime()):
        with pytest.raises(
            ValueError, match=r"times: must be increasing integers; got dates. Count steps.*timedelta64"
        ):
            series.smooth(model, even, times=times)


WRONG = {
    "times that fall": (lambda m: series.smooth(m, SEEN[0], times=np.arange(12)[::-1]), "times"),
    "a set of times": (lambda m: series.smooth(m, SEEN[0], times={1, 2}), "times"),
    "times that are a class": (lambda m: series.smooth(m, SEEN[0], times=int), "times"),
    "times that are text": (lambda m: series.smooth(m, SEEN[0], times="text"), "times"),
    "text for observations": (lambda m: series.fit(X, "text"), "y"),
    "a number for observations": (lambda m: series.fit(X, 1.0), "y"),
    "chain of more times than memory": (lambda m: m.chain(2**31), "length"),
    "times apart of more than memory": (lambda m: m.apart(10**30), "length"),
    "times of another number": (lambda m: series.smooth(m, SEEN[0], times=[0, 1]), "times"),
    "vectors for numbers": (lambda m: series.filter(m, np.zeros((2, 3, 4))), "y"),
    "state of one series for several": (lambda m: series.filter(m, SEEN, state=series.start(m)), "state"),
    "no steps": (lambda m: series.forecast(m, SEEN[0], 0), "steps"),
    "posterior of smooth": (
        lambda m: series.forecast(m, series.smooth(m, SEEN[0]), 5),
        "past: must be observations, or a state; got Posterior. Pass the observations, or",
    ),
    "no series": (lambda m: series.fit([], []), "x"),
    "labels of order 2": (lambda m: series.fit(np.array([["a", "b", "a"]]), order=2), "order"),
    "other numbers of observations": (lambda m: series.fit(X, Y[:, :5]), "y"),
    "observations of fewer times": (
        lambda m: series.fit(X, Y[:, 1:]),
        r"y: must have the series and times of x, \(80, 25\); got shape \(80, 24\), and x has shape \(80, 25\). Pass",
    ),
    "observations of fewer series": (
        lambda m: series.fit(list(X), list(Y[1:])),
        "y: .* got 79 series, and x has 80 series",
    ),
    "infinite states": (lambda m: series.fit(np.where(X > 1, np.inf, X), Y), "^x: must be finite"),
    "infinite observations": (lambda m: series.fit(X, np.where(X > 1, np.inf, X)), "^y: must be finite"),
    "states of one time": (lambda m: series.fit(X[:, ::24] * [1, np.nan]), "^x: must have at least one pair"),
    "model of own margins": (
        lambda m: series.SeriesModel.of(kbp.fit(kbp.pool(kbp.chain_graph(25), X), kernel=kbp.RBF(1.0), margins="node")),
        "model",
    ),
    "model of two kinds": (
        lambda m: series.SeriesModel.of(
            discrete.from_potentials(jnp.arange(2), jnp.ones(2), jnp.ones((2, 2, 2))),
        ),
        "model",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_named(model, name):
    call, argument = WRONG[name]
    with pytest.raises(ValueError, match=rf"{argument}\b"):
        call(model)
