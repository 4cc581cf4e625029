"""Relations with little noise: how it is estimated, and the larger rank that they get."""

import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.learn import candidate_points
from kbpjax.tuning.steep import smallest_noise

OPTIMISED = True  # searches run for longer than they compile


def pairs(function, noise, count=1000, seed=0):
    """Return values of x and of y = function(x) + noise [case, 2]."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, count)
    return np.stack([x, function(x) + noise * rng.normal(size=count)], axis=1)


@pytest.mark.parametrize(("function", "noise"), [(np.cos, 0.2), (np.abs, 0.1), (np.square, 0.5)])
def test_the_noise_of_a_function_is_estimated(function, noise):
    data = kbp.pool(kbp.chain_graph(2), pairs(function, noise, 4000))
    np.testing.assert_allclose(smallest_noise(data, {0: 1.0}), noise, rtol=0.1)


def test_the_noise_is_the_smaller_one_of_both_ends():
    x = pairs(lambda x: x**2, 0.01)
    forth, back = (smallest_noise(kbp.pool(kbp.chain_graph(2), x[:, ends]), {0: 1.0}) for ends in ([0, 1], [1, 0]))
    assert forth == pytest.approx(back)
    assert forth < 0.02  # x is one of two roots, and y is known


@pytest.mark.parametrize(
    "x", [np.round(pairs(np.sin, 0.1)), pairs(np.sin, 0.1, 1), np.zeros((50, 2)), np.zeros((50, 2, 3))]
)
def test_states_constants_and_vectors_have_no_noise(x):
    assert smallest_noise(kbp.pool(kbp.chain_graph(2), x), {0: 1.0}) == np.inf


def test_the_noise_is_in_units_of_the_type():
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    x = pairs(np.cos, 0.2, 4000)
    data = kbp.pool(graph, {0: x[:, :1], 1: 1000 * x[:, 1:]})
    np.testing.assert_allclose(smallest_noise(data, {1: 1000.0}), 0.2, rtol=0.1)
    of_first = smallest_noise(data, {0: 1.0})
    assert of_first < 1
    assert smallest_noise(data, {0: 10.0, 1: 1000.0}) == pytest.approx(of_first / 10)


def test_vectors_of_floats_have_more_candidates_than_other_values():
    x = np.random.default_rng(0).normal(size=(3000, 2))
    assert len(candidate_points(x)) == 2048
    assert len(candidate_points((10 * x).astype(np.int32))) == 512  # strings, for instance
    assert len(candidate_points(x[:, 0])) == 256


@pytest.mark.slow
def test_a_steep_relation_gets_a_larger_rank_and_a_narrow_kernel():
    graph, x = kbp.chain_graph(2), pairs(lambda x: x**3, 0.01, 430, seed=10)
    model = kbp.fit(kbp.pool(graph, x[:400]))
    assert ("rank", "large") in {(one.choice, one.alternative) for one in model.selection if one.taken}
    clamped = [kbp.clamp(model, graph, [0], [value]) for value in x[400:, 0]]
    means = np.array([kbp.mean(kbp.infer(model, graph, evidence=evidence))[1] for evidence in clamped])
    assert np.sqrt(np.mean((means - x[400:, 1]) ** 2)) < 0.1  # y has a deviation of 3


@pytest.mark.slow  # a search
def test_a_smooth_relation_is_not_compared_at_a_larger_rank():
    x = pairs(lambda x: x, 1.0, 300)
    model = kbp.fit(kbp.pool(kbp.chain_graph(2), x, x))
    assert "rank" not in {one.choice for one in model.selection}
