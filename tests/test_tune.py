"""Tuning: two small learnable problems, and the mechanics on answers so simple that NumPy can tell every step."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
import pytest

import kbpjax as kbp
from kbpjax.tuning import tune as tuning
from kbpjax.tuning.parameters import FreeNumbers
from tests.refusals import complaints

mpl.use("Agg")

# --- a chain to denoise -----------------------------------------------------------------------------------------------

CHAIN = kbp.chain_graph(5)
POINTS = np.linspace(-3, 3, 13)
NOISE, STEPS, EVERY = 0.6, 10, 4


def walks(key, count):
    """Draw stationary chains in which neighbors are alike."""
    first, *steps = jax.random.normal(key, (5, count))
    values = [first]
    for step in steps:
        values.append(0.9 * values[-1] + np.sqrt(1 - 0.81) * step)
    return jnp.stack(values, axis=1)


def noisy(key, x):
    return x + NOISE * jax.random.normal(key, x.shape)


KEYS = list(jax.random.split(jax.random.key(0), 6))
TRAIN, TRUTH, FRESH = walks(KEYS[0], 30), walks(KEYS[1], 20), walks(KEYS[2], 60)
DATA = kbp.pool(CHAIN, TRAIN, noisy(KEYS[3], TRAIN))


def chain_settings():
    kernels = kbp.RBF(4.0), kbp.RBF(4.0)  # about four times too wide
    options = {"ridge": {0: 1e-2}, "obs_ridge": 1e-2, "exponents": {0: 1.0}, "damping": 0.2}
    options |= {"schedule": kbp.Synchronous(), "num_iters": 3, "tol": None}
    return kbp.Hyperparameters(*kernels, rule=kbp.ConstantTime(eps=1e-2, max_rank=5), **options)


def fresh_error(settings):
    """Mean squared error on chains and noise that nobody has seen."""
    model = settings.fit(DATA)
    answer = jax.jit(jax.vmap(lambda s, m, y: kbp.mean(s.answer(m, CHAIN, y, POINTS)), (None, None, 0)))
    means = answer(settings, model, noisy(KEYS[4], FRESH))
    return jnp.mean((means - FRESH) ** 2)


@pytest.fixture(scope="module")
def learned():
    options = {"steps": STEPS, "every": EVERY, "batch": 8, "optimizer": optax.adam(0.15), "progress": False}
    return kbp.tune(chain_settings(), DATA, CHAIN, TRUTH, lambda key: noisy(key, TRUTH), POINTS, **options)


def test_the_loss_goes_down_and_fresh_noise_agrees(learned):
    assert min(learned.checks.values()) < 0.97 * learned.checks[0]
    assert fresh_error(learned.hyperparameters) < 0.97 * fresh_error(chain_settings())


def test_checks_are_at_every_few_steps_and_after_the_last(learned):
    assert list(learned.checks) == [0, 4, 8, 10]
    assert learned.losses.shape == (STEPS,)
    assert np.all(np.isfinite(learned.losses))
    assert learned.stopped == "all steps done"


def test_history_has_all_learned_numbers_from_the_start(learned):
    names = ["kernel.bandwidth", "obs_kernel.bandwidth", "ridge[0]", "obs_ridge", "floor", "damping", "exponents[0]"]
    assert sorted(learned.history) == sorted([*names, "evidence_power", "temperature"])
    start = [4.0, 4.0, 1e-2, 1e-2, 1e-3, 0.2, 1.0]
    for name, value in zip(names, start, strict=True):
        assert learned.history[name].shape == (STEPS,)
        np.testing.assert_allclose(learned.history[name][0], value, rtol=1e-12)
        assert np.all(learned.history[name] > 0)
        assert learned.history[name][-1] != learned.history[name][0], f"{name} is not learned"
    for name in ("floor", "damping"):
        assert np.all(learned.history[name] < 1)


def test_the_best_settings_are_those_of_the_best_check_and_the_model_is_theirs(learned):
    best = min(learned.checks, key=learned.checks.get)
    after = {name: values[best] for name, values in learned.history.items()} if best < STEPS else {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(learned.hyperparameters)[0]:
        name = jax.tree_util.keystr(path).removeprefix(".")
        np.testing.assert_array_equal(leaf, after.get(name, leaf))
    model = learned.hyperparameters.fit(DATA)
    for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(learned.model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert isinstance(learned.hyperparameters.rule, kbp.ConstantTime)


def test_plot_draws_losses_and_numbers_on_labelled_axes(learned):
    left, right = learned.plot()
    assert (left.get_xlabel(), left.get_ylabel(), right.get_xlabel()) == ("step", "loss", "step")
    assert right.get_ylabel() == "multiple of the first value"
    assert len(left.lines) == 2
    np.testing.assert_array_equal(left.lines[1].get_xdata(), [0, 4, 8, 10])
    assert {line.get_label() for line in right.lines} == set(learned.history)
    assert all(line.get_ydata()[0] == 1 for line in right.lines)
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    assert learned.plot(axes=axes)[1] is axes[1]


@pytest.mark.slow
def test_two_node_types_with_all_by_type_and_a_loss_over_types():
    graph = kbp.chain_graph(4, node_type=[0, 1, 0, 1])
    x = walks(KEYS[5], 18)[:, :4]
    seen, own = noisy(KEYS[4], x), {0: jnp.array([0, 2]), 1: jnp.array([1, 3])}
    data = kbp.pool(graph, x[:10], seen[:10])
    truth, seen = ({v: a[10:, nodes] for v, nodes in own.items()} for a in (x, seen))
    points = {0: POINTS, 1: POINTS[::2]}
    start = kbp.Hyperparameters(
        {0: kbp.RBF(3.0), 1: kbp.RBF(2.0)}, kbp.RBF(2.0), ridge=1e-2, num_iters=2, rule=kbp.FullRank()
    )

    def loss(found, true):
        return sum(len(true[v]) * kbp.SquaredError()(found[v], true[v]) for v in (0, 1)) / 4

    def frozen(s):
        return [v for field, v in vars(s).items() if field not in ("temperature", "rule", "schedule", "evidence_model")]

    assert {"kernel[0].bandwidth", "kernel[1].bandwidth"} < set(FreeNumbers.of(start, lambda s: ()).names)
    options = {"loss": loss, "steps": 3, "every": 3, "progress": False, "frozen": frozen}  # one slope is quick
    tuned = kbp.tune(start, data, graph, truth, seen, points, **options)
    assert tuned.checks[3] < tuned.checks[0]
    assert list(tuned.history) == ["temperature"]
    found = jax.jit(lambda s: jax.vmap(lambda y: s.answer(s.fit(data), graph, y, points))(seen))(start)
    errors = [(np.asarray(found[v].weights) @ points[v] - np.asarray(truth[v])) ** 2 for v in own]
    np.testing.assert_allclose(tuned.checks[0], np.mean(errors), rtol=1e-8)
    np.testing.assert_allclose(tuned.losses[0], np.mean(errors), rtol=1e-8)


# --- mechanics: an answer that is the bandwidth times what was seen ---------------------------------------------------

PAIR = kbp.chain_graph(2)
FEW = kbp.pool(PAIR, np.array([[0.0, 0.1], [1.0, 0.8], [-0.7, -1.0]]))
Y = np.array([[1.0, 2.0], [0.5, -1.0], [1.5, 0.3], [-0.4, 0.8]])
SQUARE = float(np.mean(Y**2))


def settings(bandwidth=2.0, **changed):
    return kbp.Hyperparameters(kbp.RBF(bandwidth), rule=kbp.FullRank(), **{"ridge": 0.0} | changed)


def product(settings, model, graph, y, points):
    return settings.kernel.bandwidth * y


def mean_square(got, true):
    return jnp.mean((got - true) ** 2)


def tune(start=None, observations=Y, goal=0.5, truth=None, **options):
    """Tune the toy: its loss is (bandwidth - goal)^2 SQUARE."""
    given = {"answer": product, "loss": mean_square, "steps": 4, "every": 2, "optimizer": optax.sgd(0.1)}
    given |= {"progress": False} | options
    start = settings() if start is None else start
    return kbp.tune(start, FEW, PAIR, goal * Y if truth is None else truth, observations, None, **given)


def descent(bandwidth, rate, steps, goal=0.5):
    """Gradient descent in the logarithm of the bandwidth, in NumPy: bandwidths and losses before each step."""
    bandwidths = [bandwidth]
    for _ in range(steps):
        b = bandwidths[-1]
        bandwidths.append(b * np.exp(-rate * 2 * (b - goal) * SQUARE * b))
    return np.array(bandwidths), (np.array(bandwidths) - goal) ** 2 * SQUARE


def test_steps_losses_and_checks_are_those_of_gradient_descent_in_the_logarithm():
    tuned = tune(steps=5, every=2)
    bandwidths, losses = descent(2.0, 0.1, 5)
    np.testing.assert_allclose(tuned.history["kernel.bandwidth"], bandwidths[:5], rtol=1e-10)
    np.testing.assert_allclose(tuned.losses, losses[:5], rtol=1e-10)
    assert list(tuned.checks) == [0, 2, 4, 5]
    np.testing.assert_allclose(list(tuned.checks.values()), losses[[0, 2, 4, 5]], rtol=1e-10)
    np.testing.assert_allclose(tuned.hyperparameters.kernel.bandwidth, bandwidths[5], rtol=1e-10)
    assert tuned.model.bases[0].kernel.bandwidth == tuned.hyperparameters.kernel.bandwidth


def test_each_of_the_two_functions_is_compiled_once():
    """Not again because the first numbers have another (weak) type than those after a step."""
    tune(answer=chex.assert_max_traces(product, n=2), optimizer=None)


def test_shares_move_as_logits_others_as_logarithms_and_zeros_stay():
    def answer(settings, model, graph, y, points):
        return jnp.stack([settings.damping, settings.temperature, settings.ridge + settings.floor]) * y[0]

    truth, seen = np.array([[0.5, 2.0, 1.0]]), np.ones((1, 1))
    start = settings(damping=0.2, schedule=kbp.Synchronous(), temperature=1.0, ridge=0.0, floor=0.0)
    tuned = tune(start, seen, truth=truth, answer=answer, steps=1)
    assert {"ridge", "floor"}.isdisjoint(tuned.history)
    assert tuned.hyperparameters.ridge == tuned.hyperparameters.floor == 0
    logit = np.log(0.2 / 0.8) - 0.1 * (2 / 3) * (0.2 - 0.5) * 0.2 * 0.8
    np.testing.assert_allclose(tuned.hyperparameters.damping, 1 / (1 + np.exp(-logit)), rtol=1e-10)
    np.testing.assert_allclose(tuned.hyperparameters.temperature, np.exp(-0.1 * (2 / 3) * (1 - 2)), rtol=1e-10)


@pytest.mark.slow
def test_noise_and_batches_are_those_of_the_key():
    def run(key):
        options = {"observations": lambda key: Y + 0.3 * jax.random.normal(key, Y.shape), "batch": 2, "key": key}
        return tune(**options)

    one, none, raw, other = run(jax.random.key(0)), run(None), run(jax.random.PRNGKey(0)), run(jax.random.key(1))
    for same in (none, raw):
        for field in ("losses", "checks", "history"):
            np.testing.assert_equal(getattr(one, field), getattr(same, field))
        assert one.hyperparameters.kernel.bandwidth == same.hyperparameters.kernel.bandwidth
    assert np.all(one.losses != other.losses)
    assert one.checks[0] != other.checks[0]


def test_every_step_draws_other_noise_and_the_check_keeps_its_own():
    tuned = tune(observations=lambda key: Y + 0.3 * jax.random.normal(key, Y.shape), optimizer=optax.sgd(0.0))
    assert len(np.unique(tuned.losses)) == len(tuned.losses) == 4
    assert len(set(tuned.checks.values())) == 1


def test_a_batch_is_of_different_cases_and_the_check_of_all():
    tuned = tune(batch=3, steps=6, optimizer=optax.sgd(0.0), patience=9)
    of_case = 1.5**2 * np.mean(Y**2, axis=1)
    possible = [(of_case.sum() - left_out) / 3 for left_out in of_case]
    gaps = np.abs(tuned.losses[:, None] - np.array(possible)[None])
    np.testing.assert_allclose(gaps.min(axis=1), 0, atol=1e-12)
    assert len(set(gaps.argmin(axis=1).tolist())) > 1
    np.testing.assert_allclose(tuned.checks[0], of_case.mean(), rtol=1e-12)


def test_frozen_numbers_stay_to_the_bit():
    start = settings(temperature=1.1, obs_ridge=0.3, evidence_power=0.7)

    def answer(settings, model, graph, y, points):
        return settings.kernel.bandwidth * settings.temperature * settings.evidence_power * settings.obs_ridge * y

    tuned = tune(start, answer=answer, frozen=lambda s: (s.temperature, [s.obs_ridge]))
    assert list(tuned.history) == ["kernel.bandwidth", "floor", "evidence_power"]
    assert tuned.hyperparameters.temperature is start.temperature
    assert tuned.hyperparameters.obs_ridge is start.obs_ridge
    assert tuned.hyperparameters.evidence_power != start.evidence_power


def test_data_of_kernels_are_not_learned():
    known = kbp.kernels.Precomputed(np.eye(3) + 1)
    projected = 2.0 * kbp.kernels.RandomProjection(4, 3) + kbp.kernels.Projected(np.eye(3), kbp.RBF(0.5))
    names = FreeNumbers.of(kbp.Hyperparameters(projected, known), lambda s: ()).names
    assert {name for name in names if "kernel" in name} == {"kernel.left.weight", "kernel.right.base.bandwidth"}


def test_only_what_is_named_is_frozen_of_kernels_that_are_one_object():
    kernel = kbp.RBF(2.0)
    names = FreeNumbers.of(kbp.Hyperparameters(kernel, kernel), lambda s: s.obs_kernel).names
    assert "kernel.bandwidth" in names
    assert "obs_kernel.bandwidth" not in names


def test_validation_chooses():
    tuned = tune(validation=(2 * Y[:2], Y[:2]))
    assert tuned.hyperparameters.kernel.bandwidth == 2.0
    assert tuned.losses[-1] < tuned.losses[0]
    values = list(tuned.checks.values())
    assert values[0] < 1e-20
    assert values == sorted(values)
    bandwidths, _ = descent(2.0, 0.1, 4)
    np.testing.assert_allclose(values, (bandwidths[[0, 2, 4]] - 2) ** 2 * np.mean(Y[:2] ** 2), rtol=1e-10, atol=1e-20)


def test_patience_ends_a_descent_that_gets_no_better():
    tuned = tune(steps=50, every=3, patience=2, optimizer=optax.sgd(0.0))
    assert tuned.stopped == "no better"
    assert list(tuned.checks) == [0, 3, 6]
    assert len(tuned.losses) == len(tuned.history["kernel.bandwidth"]) == 6
    np.testing.assert_array_equal(tuned.hyperparameters.kernel.bandwidth, np.exp(np.log(2.0)))


def fine_above(least):
    """The toy's answer, NaN for bandwidths below the least, of validation cases only or of all."""

    def answer(settings, model, graph, y, points):
        b = settings.kernel.bandwidth
        return jnp.where((b < least) & (y[0] != 0.5), jnp.nan, b * y)

    return answer


def test_a_step_that_is_not_finite_is_retried_halfway_back():
    bandwidths, _ = descent(2.0, 0.1, 4)
    least = (bandwidths[2] + bandwidths[3]) / 2
    tuned = tune(answer=fine_above(least), steps=5, every=9)
    tried = tuned.history["kernel.bandwidth"]
    np.testing.assert_allclose(tried[:4], bandwidths[:4], rtol=1e-10)
    np.testing.assert_allclose(tried[4], np.sqrt(bandwidths[2] * bandwidths[3]), rtol=1e-10)  # of logarithms
    assert np.isfinite(tuned.losses).tolist() == [True, True, True, False, tried[4] >= least]
    assert tuned.stopped == "all steps done" and tuned.retried >= 1
    assert "retried" in repr(tuned) and "retried" not in repr(tune())


def test_a_start_without_a_derivative_is_retried_at_larger_ridges_and_floor():
    """The toy's answer is NaN in all steps for small ridges, but not in the check, of case 0 only."""

    def answer(settings, model, graph, y, points):
        small = (settings.ridge < 3e-2) | (settings.floor < 5e-3)
        return jnp.where(small & (y[0] != Y[0, 0]), jnp.nan, settings.kernel.bandwidth * y)

    only = {"observations": Y[1:2], "truth": 0.5 * Y[1:2], "validation": (0.5 * Y[:1], Y[:1])}
    tuned = tune(settings(ridge=1e-3, floor=1e-3), answer=answer, **only)
    ridges, floors = tuned.history["ridge"], tuned.history["floor"]
    np.testing.assert_allclose(ridges[:2], [1e-3, 1e-3 * 1000**0.5], rtol=1e-10)
    np.testing.assert_allclose(floors[1] / (1 - floors[1]), 10 * 1e-3 / (1 - 1e-3), rtol=1e-10)
    assert np.isfinite(tuned.losses).tolist() == [False, True, True, True]
    assert tuned.stopped == "all steps done" and tuned.retried == 1
    assert min(tuned.checks.values()) < tuned.checks[0]


def test_steps_that_are_never_finite_end_it_with_the_best_so_far():
    tuned = tune(answer=fine_above(1.9999), steps=50, every=50)
    assert tuned.stopped == "not finite"
    assert tuned.retried == tuning.RETRIES == len(tuned.losses) - 1
    np.testing.assert_allclose(tuned.hyperparameters.kernel.bandwidth, 2.0, rtol=1e-12)


def test_a_check_that_is_not_finite_is_no_better():
    """Only the validation loss turns NaN: it counts against patience as any other that is not better."""
    only = {"observations": Y[1:2], "truth": 0.5 * Y[1:2], "validation": (0.5 * Y[:1], Y[:1])}
    tuned = tune(answer=fine_above(1.999), steps=9, every=1, patience=2, **only)
    assert tuned.stopped == "no better"
    assert list(tuned.checks) == [0, 1, 2]
    assert np.isfinite(list(tuned.checks.values())).tolist() == [True, False, False]


def test_a_loss_that_is_not_finite_at_the_start_is_refused():
    with pytest.raises(ValueError, match="^hyperparameters: must give a finite validation loss; got nan"):
        tune(answer=fine_above(3.0))


def stop_after(monkeypatch, step):
    """Make Ctrl-C happen before a step."""

    def bar(steps, progress, start=0):
        yield from range(start, step)
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "progress_bar", bar)


def test_an_interrupt_ends_it_with_the_best_so_far(monkeypatch):
    stop_after(monkeypatch, 3)
    tuned = tune(steps=50, every=1)
    assert tuned.stopped == "interrupted"
    assert len(tuned.losses) == 3
    bandwidths, losses = descent(2.0, 0.1, 3)
    np.testing.assert_allclose(tuned.hyperparameters.kernel.bandwidth, bandwidths[2], rtol=1e-10)
    np.testing.assert_allclose(list(tuned.checks.values()), losses[:3], rtol=1e-10)
    assert tuned.model.points[0].shape == (6,)
    left, right = tuned.plot()
    assert left.get_xlabel() == right.get_xlabel() == "step"


def test_an_interrupt_before_the_first_check_is_raised(monkeypatch):
    """There is nothing to return: not even the initial loss."""
    stop_after(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        tune(steps=50)


@pytest.mark.parametrize("place", ["advance", "validate", "fit"])
def test_an_interrupt_anywhere_keeps_what_is_known(monkeypatch, place):
    """In a step and in a check, whose results are lost; and in the last fit, which is made once more."""
    calls, stopped = [], "interrupted"
    expected = {"advance": ([0, 2], 3), "validate": ([0, 2], 4), "fit": ([0, 2, 4], 4)}[place]
    if place == "fit":
        fit, stopped = kbp.Hyperparameters.fit, "all steps done"
        fails_at = 1
        monkeypatch.setattr(
            kbp.Hyperparameters, "fit", lambda s, data: fails(fit, s, data) if known(s) else fit(s, data)
        )
        known = lambda s: not isinstance(s.kernel.bandwidth, jax.core.Tracer)
    else:
        compiled, fails_at = tuning._compiled, {"advance": 4, "validate": 3}[place]
        position = ["validate", "advance"].index(place)

        def compile_both(*arguments):
            both = list(compiled(*arguments))
            both[position] = lambda *given, call=both[position], **more: fails(call, *given, **more)
            return both

        monkeypatch.setattr(tuning, "_compiled", compile_both)

    def fails(call, *given, **more):
        calls.append(1)
        if len(calls) == fails_at:
            raise KeyboardInterrupt
        return call(*given, **more)

    tuned = tune(steps=4, every=2)
    assert tuned.stopped == stopped and len(calls) >= fails_at
    assert (list(tuned.checks), len(tuned.losses)) == expected
    assert {len(values) for values in tuned.history.values()} == {len(tuned.losses)}
    assert tuned.model.points[0].shape == (6,)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def same(one, other):
    chex.assert_trees_all_equal(one.hyperparameters, other.hyperparameters)
    chex.assert_trees_all_equal(one.model, other.model)
    np.testing.assert_array_equal(one.losses, other.losses)
    assert one.checks == other.checks and one.stopped == other.stopped and one.history.keys() == other.history.keys()
    for name, values in one.history.items():
        np.testing.assert_array_equal(values, other.history[name])


def test_a_resumed_descent_gives_the_same_bits(monkeypatch, tmp_path):
    """Interrupted before a check, in the middle between two, and finished; noise and batches are random."""
    options = {"steps": 6, "every": 4, "batch": 2, "observations": lambda key: Y + jax.random.normal(key, Y.shape)}
    whole, path, bar = tune(**options), tmp_path / "tuned.npz", tuning.progress_bar
    for step in (2, 4, 5):
        stop_after(monkeypatch, step)
        part = tune(**options, checkpoint=path)
        assert part.stopped == "interrupted" and len(part.losses) == step
    monkeypatch.setattr(tuning, "progress_bar", bar)
    same(tune(**options, checkpoint=path), whole)
    monkeypatch.setattr(tuning._Search, "_step", None)
    same(tune(**options, checkpoint=str(path)), whole)  # without a step
    assert [file.name for file in tmp_path.iterdir()] == ["tuned.npz"]


def test_checkpoints_of_other_calls_are_refused(tmp_path):
    path, wrong = tmp_path / "tuned.npz", []
    tune(checkpoint=path)
    before = path.read_bytes()
    (tmp_path / "notes").write_text("mine")
    for options, text in [
        ({"steps": 9}, "checkpoint: must have been written with the same options; got another steps in"),
        ({"observations": Y + 1}, "checkpoint: .*another observations, validation in"),
        ({"truth": 2 * Y}, "checkpoint: .*another truth, validation in"),
        ({"start": settings(3.0)}, "checkpoint: .*another hyperparameters in"),
        ({"key": jax.random.key(1)}, "checkpoint: .*another key in"),
        ({"loss": lambda means, truth: jnp.mean(jnp.abs(means - truth))}, "checkpoint: .*another loss in"),
        ({"optimizer": optax.adam(0.1)}, "checkpoint: must have been written with.*another optimizer in"),
        ({"checkpoint": tmp_path / "notes"}, "checkpoint: must be a file written by tune"),
        ({"checkpoint": tmp_path}, "checkpoint: must be a file; got"),
        ({"checkpoint": tmp_path / "none" / "a.npz"}, "checkpoint: must be in an existing folder"),
    ]:
        wrong += complaints(text, tune, **{"checkpoint": path} | options)
    assert not wrong
    assert path.read_bytes() == before and (tmp_path / "notes").read_text() == "mine"


def test_tuning_goes_on_from_where_it_ended():
    first = tune()
    second = tune(first.hyperparameters)
    best = min(first.checks.values())
    np.testing.assert_allclose([second.checks[0], second.losses[0]], best, rtol=1e-10)
    assert second.checks[4] < best
    bandwidths, _ = descent(2.0, 0.1, 8)
    np.testing.assert_allclose(second.hyperparameters.kernel.bandwidth, bandwidths[8], rtol=1e-10)


class Polynomial(kbp.Kernel):
    """The kernel of one feature, a polynomial whose coefficients may have any sign, plus 1 where points are equal."""

    weights: jax.Array

    def __call__(self, x, y):
        def feature(z):
            return jnp.sum(self.weights * jnp.stack([jnp.ones_like(z), z, z**2]))

        return feature(x) * feature(y) + jnp.exp(-50 * (x - y) ** 2)


def test_kernel_parameters_of_any_sign_are_learned_as_they_are():
    weights, goal = np.array([0.5, -1.0, 0.0]), np.array([-0.5, -1.0, 1.0])
    start = dataclasses.replace(settings(), kernel=Polynomial(jnp.asarray(weights)))
    seen = np.ones((1, 3))
    options = {"truth": goal[None], "answer": lambda s, model, graph, y, points: s.kernel.weights * y}
    tuned = tune(start, seen, steps=6, every=6, optimizer=optax.sgd(0.5), **options)
    expected = [goal + (weights - goal) * (1 - 0.5 * 2 / 3) ** k for k in range(7)]
    np.testing.assert_allclose(tuned.history["kernel.weights"], expected[:6], atol=1e-12)
    np.testing.assert_allclose(tuned.hyperparameters.kernel.weights, expected[6], atol=1e-12)
    assert tuned.hyperparameters.kernel.weights[0] < 0
    _, right = tuned.plot()  # with a first value of 0 too, without a warning
    assert right.get_xlabel() == "step"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_tune_names_what_is_wrong():
    wrong = []
    for options, text in [
        ({"observations": Y[:3]}, "observations: must have 4 cases"),
        ({"observations": lambda key: Y[:3]}, "observations: must have 4 cases"),
        ({"observations": int}, "observations: must be no class"),
        ({"observations": {0: Y, 1: Y[:2]}}, "observations: must have the same number of cases"),
        ({"validation": (Y[:2], Y[:3])}, "validation: must have 2 cases"),
        ({"truth": {0: Y, 1: Y[:3]}}, "truth: must have the same number of cases"),
        ({"truth": np.zeros((0, 2))}, "truth: must have the same number of cases in all arrays, at least 1"),
        ({"truth": 1.0}, "truth: must have the same number of cases"),
        ({"batch": 5}, "batch: must be at most the 4 cases"),
        ({"batch": 0}, "batch: must be"),
        ({"steps": 0}, "steps: must be"),
        ({"every": 0}, "every: must be"),
        ({"patience": 0}, "patience: must be"),
        ({"frozen": lambda s: s}, "hyperparameters: must have numbers to optimize"),
    ]:
        wrong += complaints(text, tune, **options)
    assert not wrong


def test_a_bar_is_shown_only_where_somebody_sees_it(monkeypatch):
    assert tuning.progress_bar(3, True) == range(3)  # pytest catches standard error
    monkeypatch.setattr(tuning.sys.stderr, "isatty", lambda: True, raising=False)
    assert tuning.progress_bar(3, False) == range(3)
    with tuning.progress_bar(3, True) as bar:
        assert hasattr(bar, "set_postfix")
        assert list(bar) == [0, 1, 2]
