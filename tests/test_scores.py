"""Hyperparameters from training data alone: medians of distances, and scores of operators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.tuning.scores import generalized_cross_validation, leave_one_out

GRAPH = kbp.chain_graph(4)


def draw(noise=0.3, count=120):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(count, 1)) + 0.2 * rng.normal(size=(count, 4))
    return kbp.pool(GRAPH, x, x + noise * rng.normal(size=x.shape))


def test_median_settings_are_medians_and_options_win():
    data = draw()
    settings = kbp.median_hyperparameters(data, ridge=1e-2, num_iters=7)
    assert float(settings.kernel[0].bandwidth) == kbp.median_bandwidth(data.nodes[0])
    assert float(settings.obs_kernel[0].bandwidth) == kbp.median_bandwidth(data.observations[0][1])
    assert float(settings.ridge) == 1e-2 and settings.num_iters == 7
    guessed = kbp.median_hyperparameters(data)
    assert float(guessed.ridge[0]) == 1 / len(data.edges[0][0])
    answer = jax.jit(lambda model: settings.answer(model, GRAPH, np.zeros(4), np.linspace(-2, 2, 5)))
    assert answer(settings.fit(data)).weights.shape == (4, 5)


def test_median_settings_without_observations():
    settings = kbp.median_hyperparameters(kbp.pool(GRAPH, np.random.default_rng(0).normal(size=(9, 4))))
    assert settings.obs_kernel is None


@pytest.mark.parametrize("score", [leave_one_out, generalized_cross_validation])
@pytest.mark.slow
def test_select_lowers_the_score_that_it_is_given(score):
    data = draw()
    rule = kbp.ConstantTime(eps=1e-4, max_rank=16)
    start = kbp.Hyperparameters(kbp.RBF(4.0), kbp.RBF(0.1), ridge=1.0, rule=rule)
    chosen = kbp.select(start, data, score=score, steps=25, every=5)
    x, y = data.observations[0]
    reference, _ = kbp.PivotedCholesky().feature_map(start.kernel, x, 1e-4, 16)

    def error(settings):
        basis, _ = kbp.PivotedCholesky().feature_map(settings.obs_kernel, y, 1e-4, 16)
        return score(basis, reference, y, x, settings.ridge)

    assert error(chosen) < 0.5 * error(start)
    assert chosen.floor == start.floor and chosen.temperature == start.temperature


def test_frozen_numbers_stay_and_ridges_by_type_are_chosen_apart():
    data = draw()
    start = kbp.median_hyperparameters(data, rule=kbp.ConstantTime(eps=1e-3, max_rank=12))
    chosen = kbp.select(start, data, frozen=lambda s: s.kernel, steps=6, every=3)
    assert chosen.kernel[0].bandwidth == start.kernel[0].bandwidth
    assert chosen.ridge[0] != start.ridge[0] and chosen.obs_ridge[0] != start.obs_ridge[0]
    assert chosen.obs_kernel[0].bandwidth != start.obs_kernel[0].bandwidth


@pytest.mark.slow
def test_noisier_observations_are_given_wider_kernels():
    rule, widths = kbp.ConstantTime(eps=1e-3, max_rank=16), []
    for noise in (0.1, 1.0):
        pooled = draw(noise)
        data = kbp.TrainingData({}, pooled.nodes, pooled.observations)  # edges have no say in it
        chosen = kbp.select(kbp.median_hyperparameters(data, rule=rule), data, steps=30)
        widths.append(float(chosen.obs_kernel[0].bandwidth))
    assert widths[1] > 1.5 * widths[0]


@pytest.mark.parametrize("option", [{"steps": 0}, {"every": 0}])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        kbp.select(kbp.Hyperparameters(kbp.RBF(1.0), kbp.RBF(1.0)), draw(), **option)


def test_scores_that_are_not_finite_are_refused():
    data = draw()
    nothing = lambda *args: jnp.full((), jnp.nan) * jax.tree.leaves(args[0])[0].sum()
    with pytest.raises(ValueError, match="finite scores"):
        kbp.select(kbp.Hyperparameters(kbp.RBF(1.0), kbp.RBF(1.0)), data, score=nothing, steps=2)
