"""Calibration: the same as a search by hand, intervals that hold what they promise, and warnings at the edge."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp

CHAIN = kbp.chain_graph(6)
POINTS = np.linspace(-4, 4, 41)
RNG = np.random.default_rng(0)


def draw(count):
    """Draw stationary chains in which neighbors are alike, and noisy observations."""
    x = RNG.normal(size=(count, 6))
    for i in range(1, 6):
        x[:, i] = 0.9 * x[:, i - 1] + np.sqrt(1 - 0.81) * x[:, i]
    return x, x + 0.7 * RNG.normal(size=x.shape)


TRAIN, HELD_OUT, OTHERS = draw(200), draw(100), draw(300)
START = kbp.Hyperparameters(
    kbp.RBF(0.7), kbp.RBF(0.7), ridge=1e-3, temperature=0.3, evidence_power=2.5, rule=kbp.ConstantTime(1e-2, 12)
)
MODEL = START.fit(kbp.pool(CHAIN, *TRAIN))


@jax.jit
def beliefs(given, model, y):
    """Return the weights of the beliefs of all cases [case node, point]."""
    weights = jax.vmap(lambda one: given.answer(model, CHAIN, one, POINTS).weights)(y)
    return kbp.Belief(jnp.asarray(POINTS), weights.reshape(-1, len(POINTS)))


@pytest.fixture(scope="module")
def calibrated():
    return kbp.calibrate(START, MODEL, CHAIN, *HELD_OUT, POINTS)


def test_calibrated_intervals_hold_what_they_promise_on_other_cases(calibrated):
    truth, y = OTHERS
    before, after = (kbp.coverage(beliefs(one, MODEL, y), truth.ravel()) for one in (START, calibrated))
    assert before[1] < 0.7
    assert 0.87 < after[1] < 0.93 and 0.45 < after[0] < 0.55


@pytest.mark.slow
def test_the_result_is_that_of_a_search_by_hand(calibrated):
    truth, y = jnp.asarray(HELD_OUT[0]).reshape(-1), HELD_OUT[1]

    @jax.jit
    def loss(power, temperature):
        given = dataclasses.replace(START, evidence_power=power, temperature=temperature)
        return kbp.CRPS()(beliefs(given, MODEL, y), truth)

    power, temperature = 2.5, 0.3
    for octave in (1, 4, 16):
        powers = [power * 2 ** (k / octave) for k in range(-4, 5)]
        temperatures = [temperature * 2 ** (k / {1: 2, 4: 16, 16: 128}[octave]) for k in range(-8, 9)]
        losses = {(p, t): float(loss(p, t)) for p in powers for t in temperatures}
        power, temperature = min(losses, key=lambda pair: losses[pair])
    np.testing.assert_allclose([calibrated.evidence_power, calibrated.temperature], [power, temperature], rtol=1e-12)


def test_all_other_hyperparameters_stay(calibrated):
    same = dataclasses.replace(calibrated, evidence_power=START.evidence_power, temperature=START.temperature)
    assert same == START


@pytest.mark.slow
def test_other_losses_and_beliefs_by_type_of_cases_with_gaps():
    graph = kbp.chain_graph(6, node_type=[0, 1] * 3)
    model = START.fit(kbp.pool(graph, *TRAIN))
    truth, y = (np.where(RNG.random((6, 6)) < 0.2, np.nan, values[:6]) for values in HELD_OUT)
    true, seen = ({v: values[:, v::2] for v in (0, 1)} for values in (truth, y))
    score = kbp.IntervalScore(0.9)
    of_types = lambda belief, truth: score(belief[0], truth[0]) + score(belief[1], truth[1])
    found = kbp.calibrate(START, model, graph, true, seen, {0: POINTS, 1: POINTS}, loss=of_types)
    losses = []
    for given in (START, found):
        answers = [given.answer(model, graph, one, {0: POINTS, 1: POINTS}) for one in y]
        pairs = zip(answers, truth, strict=True)
        losses.append(np.mean([of_types(b, {v: jnp.asarray(x[v::2]) for v in (0, 1)}) for b, x in pairs]))
    assert losses[1] < 0.9 * losses[0]


def test_the_best_at_the_edge_is_warned_of():
    far = dataclasses.replace(START, temperature=0.001)
    with pytest.warns(kbp.KbpWarning, match="the best temperature is at the edge of the range, a factor of 16"):
        kbp.calibrate(far, MODEL, CHAIN, HELD_OUT[0][:5], HELD_OUT[1][:5], POINTS)


def test_wrong_cases_and_traced_arguments_are_refused():
    truth, y = HELD_OUT
    with pytest.raises(ValueError, match=r"^truth, observations: must have the same number of cases.*\[3, 4\]"):
        kbp.calibrate(START, MODEL, CHAIN, truth[:3], y[:4], POINTS)
    with pytest.raises(ValueError, match="^loss: must be finite at some power and temperature; got none"):
        kbp.calibrate(START, MODEL, CHAIN, truth[:2], y[:2], POINTS, loss=lambda belief, truth: jnp.array(jnp.nan))
    with pytest.raises(ValueError, match="^loss: must be a function; got the class CRPS"):
        kbp.calibrate(START, MODEL, CHAIN, truth, y, POINTS, loss=kbp.CRPS)
    with pytest.raises(ValueError, match="^observations: must be known; got traced arrays. Call calibrate outside"):
        jax.jit(lambda y: kbp.calibrate(START, MODEL, CHAIN, truth, y, POINTS).temperature)(y)


@pytest.mark.slow
def test_a_graph_with_cycles_is_solved_as_by_infer():
    rng = np.random.default_rng(3)
    graph, x = kbp.grid_graph(3, 3), rng.normal(size=(60, 1)) + 0.4 * rng.normal(size=(60, 9))
    y, points = x + 0.5 * rng.normal(size=x.shape), np.linspace(-4, 4, 33)
    start = kbp.Hyperparameters(kbp.RBF(0.7), kbp.RBF(0.7), ridge=1e-2, temperature=0.3, rule=kbp.FullRank())
    model = start.fit(kbp.pool(graph, x[:10], y[:10]))
    calibrated = kbp.calibrate(start, model, graph, x[30:], y[30:], points)
    before, after = (
        np.mean([float(kbp.CRPS()(s.answer(model, graph, y[i], points), jnp.asarray(x[i]))) for i in range(30, 60)])
        for s in (start, calibrated)
    )
    assert after < before and float(calibrated.temperature) > 0.3
