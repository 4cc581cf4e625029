"""The just-in-time loop against a plain loop, and against what it must do at its limits."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kbpjax import ep
from tests.ep.families import Broken
from tests.refusals import not_refused

KEY = jax.random.key(0)
LIKE = ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)
ORACLE = ep.LogisticToZ(num_nodes=400)
FEW = ep.Learner(num_inner=30, num_outer=40)
INITIAL = 12


def stream(num_messages, seed=0, spread=4.0):
    """Draw messages to the logistic factor, of labels and of log odds."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=num_messages)
    z = ep.Gaussian.from_moments(spread * rng.normal(size=num_messages), rng.uniform(0.5, 3, num_messages))
    return ep.Beta(1.0 + y, 2.0 - y), z


def fresh(threshold=-4.0):
    return init_operator(LIKE, np.broadcast_to(np.asarray(threshold, float), 2))


@jax.jit
def init_operator(like, threshold):
    return ep.init_operator(KEY, like, variable=1, num_initial=INITIAL, threshold=threshold, learner=FEW)


@jax.jit
def run(operator, incoming, oracle=ORACLE):
    keys = jax.random.split(KEY, len(incoming[1].shift))
    return jax.lax.scan(lambda state, of: ep.step(of[1], state, of[0], oracle), operator, (incoming, keys))


@pytest.fixture(scope="module")
def trained():
    return run(fresh(), stream(80))


def same(one, other, **tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, **tolerance)


def saved_and_read(folder, state):
    """Return what is read of a file that a state was written to."""
    leaves, structure = jax.tree.flatten(state)
    is_key = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    np.savez(folder / "state.npz", *(jax.random.key_data(a) if k else a for a, k in zip(leaves, is_key)))
    with np.load(folder / "state.npz") as saved:
        read = [jnp.asarray(saved[f"arr_{i}"]) for i in range(len(leaves))]
    return jax.tree.unflatten(structure, [jax.random.wrap_key_data(a) if k else a for a, k in zip(read, is_key)])


@jax.jit
def exact(incoming):
    return ep.ratio(ep.logistic_integrals(*incoming).z, incoming[1])


# --- what is asked ---------------------------------------------------------------------------------


def test_the_scan_equals_a_plain_loop_that_was_interrupted_and_resumed_from_a_file(tmp_path, trained):
    operator, record = trained
    incoming, state, records = jax.tree.map(np.asarray, stream(80)), fresh(), []
    one = jax.jit(lambda state, incoming: ep.step(KEY, state, incoming, ORACLE))
    for i in range(80):
        if i in (7, 30):  # while collecting, and after training
            assert bool(state.trained) == (i == 30)
            state = saved_and_read(tmp_path, state)
        state, happened = one(state, jax.tree.map(lambda leaf, i=i: leaf[i], incoming))
        records.append(happened)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *records)
    np.testing.assert_array_equal(stacked.asked, record.asked)
    same(stacked, record, rtol=1e-9, atol=1e-9)
    same(state, operator, rtol=1e-9, atol=1e-9)
    assert INITIAL < int(record.asked.sum()) < 80


def test_messages_are_asked_for_as_a_plain_regression_would(trained):
    """Learn in NumPy from the features that the operator has drawn, and decide by the variance."""
    operator, record = trained
    incoming = stream(80)
    points = FEW.representation.points(incoming)
    features = np.asarray(jax.vmap(lambda maps: maps(points))(operator.maps))
    target, message = incoming[1], exact(incoming)
    outputs = np.asarray(jax.jit(lambda target, message: (target * message).relative_outputs(target))(target, message))
    decoded = jax.jit(lambda guess, own: ep.ratio(ep.Gaussian.from_relative(guess, own), own))
    noise, known = FEW.noise, list(range(INITIAL))
    incoming, record, target = jax.tree.map(np.asarray, (incoming, record, target))
    for i in range(INITIAL, 80):
        log_variance, guess = [], []
        for out, phi in enumerate(features):
            covariance = np.linalg.inv(phi[known].T @ phi[known] / noise + np.eye(40))
            guess.append(phi[i] @ covariance @ phi[known].T @ outputs[known, out] / noise)
            log_variance.append(np.log(phi[i] @ covariance @ phi[i] + noise))
        np.testing.assert_allclose(record.log_variance[i], log_variance, atol=1e-7)
        assert bool(record.asked[i]) == (max(log_variance) >= -4.0)
        if record.asked[i]:
            known.append(i)
            expected = message.precision[i], message.shift[i]
        else:
            own = jax.tree.map(lambda leaf, i=i: leaf[i], target)
            expected = jax.tree.leaves(decoded(np.array(guess), own))
        sent = record.message.precision[i], record.message.shift[i]
        np.testing.assert_allclose(sent, expected, rtol=1e-6, atol=1e-7)
    assert len(known) == int(record.asked.sum())


def test_before_training_it_asks_and_sends_what_the_oracle_says(trained):
    _, record = trained
    assert record.asked[:INITIAL].all() and not record.failed.any()
    assert np.isnan(record.log_variance[:INITIAL]).all() and np.isfinite(record.log_variance[INITIAL:]).all()
    expected, asked = exact(stream(80)), np.asarray(record.asked)
    np.testing.assert_allclose(record.message.precision[asked], expected.precision[asked], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(record.message.shift[asked], expected.shift[asked], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "threshold, times",
    [(-np.inf, 80), (np.inf, INITIAL), pytest.param([np.inf, np.inf], INITIAL, marks=pytest.mark.slow)],
)
def test_infinite_thresholds_ask_always_and_never_again(threshold, times):
    _, record = run(fresh(threshold), stream(80))
    assert int(record.asked.sum()) == times and record.asked[:times].all()


def test_each_output_has_its_threshold():
    _, record = run(fresh([np.inf, -4.0]), stream(80))
    np.testing.assert_array_equal(record.asked[INITIAL:], record.log_variance[INITIAL:, 1] >= -4.0)


def test_the_same_messages_again_and_again_are_soon_known():
    few = stream(5, seed=3)
    again = jax.tree.map(lambda leaf: jnp.tile(leaf, 16), few)
    operator, record = run(fresh(-8.5), again)
    asked = np.flatnonzero(record.asked)
    assert asked[-1] < INITIAL + 10
    np.testing.assert_allclose(record.message.precision[60:], exact(again).precision[60:], atol=0.02)
    _, later = run(operator, again)
    assert not later.asked.any()


def test_the_variance_never_falls_below_the_noise(trained):
    _, record = trained
    assert record.log_variance[INITIAL:].min() > np.log(FEW.noise)


def test_a_second_problem_asks_less(trained):
    operator, record = trained
    _, second = run(operator, stream(80, seed=5))
    assert int(second.asked.sum()) < int(record.asked[INITIAL:].sum())
    _, unrelated = run(operator, stream(80, seed=5, spread=40.0))
    assert int(unrelated.asked.sum()) > 2 * int(second.asked.sum())


def test_an_operator_learned_in_a_batch_goes_on_learning():
    incoming = stream(200, seed=1)
    learn = jax.jit(partial(ep.learn, variable=1, threshold=-7.5, learner=FEW))
    batch = learn(KEY, incoming, incoming[1] * exact(incoming))
    after, record = run(batch, stream(80, seed=5))
    assert 0 < int(record.asked.sum()) < 80 and np.isfinite(record.log_variance).all()
    assert np.trace(after.regressions.covariance[0]) < np.trace(batch.regressions.covariance[0])


def test_independent_streams_are_mapped(trained):
    operator, _ = trained
    streams = [stream(80, seed=seed) for seed in (7, 8)]
    both = jax.tree.map(lambda *leaves: np.stack(leaves), *streams)
    mapped = jax.jit(jax.vmap(lambda incoming: run(operator, incoming)))(both)
    for i, incoming in enumerate(streams):
        same(jax.tree.map(lambda leaf, i=i: leaf[i], mapped), run(operator, incoming), rtol=1e-8, atol=1e-8)


# --- oracles that fail -----------------------------------------------------------------------------


def test_failed_answers_are_recorded_and_not_learned():
    incoming, broken = stream(80), Broken(jnp.asarray(2.0))
    operator, record = run(fresh(), incoming, broken)
    failed = np.asarray(record.failed)
    np.testing.assert_array_equal(failed, np.asarray(record.asked) & np.asarray(incoming[1].mean > 2))
    assert 0 < failed.sum() < record.asked.sum() < 80
    assert np.all(record.message.precision[failed] == 0) and np.all(record.message.shift[failed] == 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((operator.regressions, record.message)))
    # The same without them: they come last, where there is nothing more to learn, so that the program is the same one.
    order = np.argsort(failed, kind="stable")
    without, clean = run(fresh(), jax.tree.map(lambda leaf: np.asarray(leaf)[order], incoming), broken)
    np.testing.assert_array_equal(clean.asked[: (~failed).sum()], record.asked[~failed])
    assert not clean.failed[: (~failed).sum()].any()
    same(without, operator, rtol=1e-9, atol=1e-9)


def test_an_oracle_without_answers_leaves_the_operator_untrained():
    operator, record = run(fresh(), stream(80), Broken(jnp.asarray(-100.0)))
    assert record.failed.all() and int(operator.buffer.count) == 0 and not bool(operator.trained)


def test_messages_that_are_no_distributions_are_recorded_as_failures(trained):
    p, z = stream(80)
    z = jax.jit(ep.Gaussian)(z.precision.at[:3].set(jnp.array([-1.0, 0.0, jnp.nan])), z.shift)
    operator, record = run(trained[0], (p, z))
    assert record.asked[:3].all() and record.failed[:3].all() and not record.failed[3:].any()
    assert np.isfinite(record.message.precision).all() and np.isfinite(record.message.shift).all()
    assert np.isfinite(operator.regressions.mean).all()


# --- precision and refusals ------------------------------------------------------------------------


def test_single_precision_learns_too(trained):
    like, incoming = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (LIKE, stream(80)))
    _, record = run(init_operator(like, np.full(2, -4.0)), incoming)
    assert record.message.precision.dtype == record.log_variance.dtype == jnp.float32
    assert np.sum(np.asarray(record.asked) != np.asarray(trained[1].asked)) <= 3
    error = np.abs(np.asarray(record.message.precision) - np.asarray(trained[1].message.precision))
    assert np.median(error) < 1e-3 and np.isfinite(error).all()


REFUSED = [
    ({"num_initial": 0}, "num_initial: must be an integer >= 1; got 0"),
    ({"num_initial": 1}, "num_initial: must be at least 2; got 1"),
    ({"variable": 2}, "variable: must be an index of 2 messages; got 2"),
    ({"variable": -1}, "variable: must be an index of 2 messages; got -1"),
    ({"threshold": [1.0, 2.0, 3.0]}, "threshold: must be one number or 2 of them; got shape"),
    ({"threshold": float("nan")}, "threshold: must not be NaN; got NaN"),
]


def test_bad_options_are_refused_by_name():
    make = lambda change: ep.init_operator(KEY, LIKE, **{"variable": 1, "learner": FEW, **change})
    assert not not_refused({str(change): (partial(make, change), "^" + message) for change, message in REFUSED})


def test_an_oracle_of_another_variable_is_refused(trained):
    with pytest.raises(ValueError, match="^oracle: must answer for variable 1; got 0. Make operator and oracle"):
        ep.step(KEY, trained[0], LIKE, ep.LogisticToP())


def test_messages_of_other_families_are_refused(trained):
    with pytest.raises(ValueError, match=r"^incoming: must be \['Beta', 'Gaussian'\]; got \['Gaussian', 'Beta'\]"):
        ep.step(KEY, trained[0], LIKE[::-1], ORACLE)


# --- messages that are all known -------------------------------------------------------------------


scan = jax.jit(ep.scan)


@pytest.mark.parametrize("num_messages", [1, 80])
@pytest.mark.slow
def test_looking_ahead_changes_nothing(num_messages):
    incoming = stream(num_messages)
    keys = jax.random.split(KEY, num_messages)
    operator, record = scan(keys, fresh(), incoming, ORACLE)
    expected, one_by_one = run(fresh(), incoming)
    np.testing.assert_array_equal(record.asked, one_by_one.asked)
    same(record, one_by_one, rtol=1e-9, atol=1e-9)
    same(operator, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("threshold", [-np.inf, np.inf])
def test_looking_ahead_at_the_limits(threshold, trained):
    operator = dataclasses.replace(trained[0], thresholds=jnp.asarray(np.full(2, threshold)))
    _, record = scan(jax.random.split(KEY, 80), operator, stream(80, 1), ORACLE)
    assert bool(record.asked.all()) == (threshold == -np.inf) and bool(record.asked.any()) == (threshold == -np.inf)
    same(record, run(operator, stream(80, 1))[1], rtol=1e-9, atol=1e-9)


def test_looking_ahead_goes_on_where_the_oracle_fails():
    broken = Broken(jnp.array(-jnp.inf))
    operator, record = scan(jax.random.split(KEY, 40), fresh(), stream(40), broken)
    assert record.asked.all() and record.failed.all() and not bool(operator.trained)


def test_messages_of_another_precision_are_refused():
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), stream(3))
    keys = jax.random.split(KEY, 3)
    with pytest.raises(ValueError, match="^incoming: must be float64, as the operator; got float32. Convert"):
        ep.scan(keys, fresh(), single, ORACLE)


def test_no_messages_are_refused():
    with pytest.raises(ValueError, match="^keys: must be one for each message"):
        ep.scan(jax.random.split(KEY, 0), fresh(), stream(0), ORACLE)


@pytest.mark.slow
def test_a_stream_in_which_most_messages_are_equal_is_learned():
    x = np.where(np.random.default_rng(0).random((200, 5)) < 0.5, 1.0, -1.0)
    like = (ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0))
    operator = jax.jit(lambda: ep.init_operator(jax.random.key(1), like, variable=1, num_initial=100))()
    found = ep.logistic_regression(x, x[:, 0] > 0, operator=operator, num_sweeps=3)
    asked = np.asarray(found.record.asked).reshape(3, -1).sum(axis=1)
    assert asked[0] < 200 and asked[2] < asked[0]
