"""Few rows: no belief is certain for want of data, and relations that are there are found."""

import warnings

import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.differing import share_well
from kbpjax.tuning import comparison, line_search
from kbpjax.tuning.comparison import Outcome
from kbpjax.tuning.held_out import hold_out
from kbpjax.tuning.problem import Found, drawn_to_independence
from kbpjax.tuning.search import Choice, Search

TRIANGLE = kbp.Graph.from_edges([(0, 1), (1, 2), (0, 2)], 3, node_type=range(3))


def learn(rows, seed=0, effort="auto", labels=None):
    """Fit three columns that do not depend on each other."""
    rng = np.random.default_rng(seed)
    b = rng.integers(0, 3, rows) if labels is None else np.asarray(labels)
    x = {0: rng.uniform(size=(rows, 1)), 1: np.array(["p", "q", "r"])[b][:, None], 2: rng.uniform(size=(rows, 1))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kbp.KbpWarning)
        return kbp.fit(kbp.pool(TRIANGLE, x), effort=effort), b


def beliefs_of_label(model, first, last):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kbp.EvidenceWarning)  # of one row, most values are far
        evidence = kbp.clamp(model, TRIANGLE, [0, 2], {0: [first], 2: [last]})
    return np.asarray(kbp.infer(model, TRIANGLE, evidence=evidence).by_type[1].weights[0], float)


def spread(posterior):
    """Return the standard deviation of the first number."""
    return float(kbp.std(posterior.by_type[0])[0])


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_of_a_few_rows_beliefs_are_near_the_shares(rows):
    model, b = learn(rows)
    share = np.bincount(b, minlength=3)[np.unique(b)] / rows
    for first, last in ((0.1, 0.2), (0.5, 0.9)):
        assert np.abs(beliefs_of_label(model, first, last) - share).max() < 0.25


@pytest.mark.slow
def test_of_twenty_rows_independent_columns_say_little():
    model, b = learn(20, seed=5)
    share = np.bincount(b, minlength=3) / 20
    errors = [
        np.abs(beliefs_of_label(model, *ask) - share).max() for ask in np.random.default_rng(1).uniform(size=(8, 2))
    ]
    assert np.mean(errors) < 0.2
    known = kbp.clamp(model, TRIANGLE, [1, 2], {1: ["q"], 2: [0.4]})
    assert spread(kbp.infer(model, TRIANGLE, evidence=known)) > 0.2  # of a uniform number: 0.29


@pytest.mark.parametrize("labels", [[0, 1, 2], pytest.param([0] * 9 + [1], marks=pytest.mark.slow)])
def test_categories_of_one_row(labels):
    """A label that was seen once is as likely as it was often, and does not make numbers certain."""
    model, b = learn(len(labels), labels=labels)
    count = np.bincount(b)
    got = beliefs_of_label(model, 0.5, 0.5)
    assert np.abs(got - count / count.sum()).max() < 0.3 and got.max() < 0.97
    known = kbp.clamp(model, TRIANGLE, [1], {1: ["q"]})
    assert spread(kbp.infer(model, TRIANGLE, evidence=known)) > 0.1


def test_a_strong_relation_of_twenty_rows_is_found():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 1))
    x = np.hstack([x, x + 0.3 * rng.normal(size=x.shape)])
    pair = kbp.chain_graph(2)
    model = kbp.fit(kbp.pool(pair, x))
    posterior = kbp.infer(model, pair, evidence=kbp.clamp(model, pair, [0], [1.0]))
    assert abs(float(kbp.mean(posterior)[1]) - 1) < 0.4 and 0.2 < float(kbp.std(posterior)[1]) < 0.7


def test_the_number_of_pairs_is_said():
    x = np.random.default_rng(0).normal(size=(12, 2))
    with pytest.warns(kbp.RelationWarning, match="edge type 0 rest on 12 pairs, and are drawn to independence by"):
        kbp.fit(kbp.pool(kbp.chain_graph(2), x))


def test_the_largest_share_within_one_standard_error_is_taken():
    scores = line_search.Scores(None, Search())
    sums = np.array([1.0, 1.0, 1.0, 1.0])
    worse = {0.03: 0.0, 0.1: 0.05, 0.2: 0.05, 0.35: 0.2, 0.5: 0.4, 0.7: 0.8, 0.85: 1.0, 1.0: 1.2}
    spread = np.array([1.0, -1.0, 1.0, -1.0]) * 0.1  # of which the standard error of the mean is 0.058
    of = lambda apart: Outcome(None, None, True, 0.0, 0.0, sums + apart, np.ones(4))
    scores.tried[Choice(ridge=1e-3)] = of(0)
    for share, loss in worse.items():
        scores.tried[Choice(ridge=share)] = of(loss + spread)
        scores.tried[Choice(ridge=0.2, obs_ridge=share)] = of(1.0)
    assert (
        drawn_to_independence(Found(Choice(ridge=1e-3), scores, None, None), ["ridge", "obs_ridge"]).choice.ridge == 0.2
    )


def test_folds_hold_out_different_cases():
    data = kbp.pool(kbp.chain_graph(2), np.arange(40.0).reshape(20, 2))
    held = [set(np.asarray(hold_out(data, fold=fold)[1].truth[0]).tolist()) for fold in range(4)]
    assert set.union(*held) == set(np.arange(40.0).tolist()) and sum(map(len, held)) == 40


def test_scores_of_folds_are_means_and_keep_all_cases():
    one = Outcome(np.array([1.0, 2.0]), np.array([0.8, 1.0]), True, 0.1, np.array([0.3, 0.0]), np.ones(2), np.ones(2))
    other = one._replace(
        scores=np.array([3.0, 4.0]), converged=False, residual=0.2, sums=2 * np.ones(3), counts=np.ones(3)
    )
    found = line_search._mean(one, other)
    assert found.scores.tolist() == [2, 3] and not found.converged and found.residual == 0.2
    assert found.sums.tolist() == [1, 1, 2, 2, 2] and len(found.counts) == 5
    np.testing.assert_allclose(found.errors, [0.3 / np.sqrt(2), 0])


def test_only_nodes_that_hear_of_evidence_are_scored():
    graph = kbp.Graph.from_edges([(0, 1), (2, 3), (3, 4)], 6)
    assert comparison._told(graph, np.array([1, 4])).tolist() == [True, True, True, True, True, False]


@pytest.mark.parametrize(("slope", "alike"), [(0.9, True), (-0.9, False)])
def test_edges_are_surely_alike(slope, alike):
    rng = np.random.default_rng(0)
    x = [rng.normal(size=2000)]
    for factor in (0.9, slope, 0.9):
        x.append(factor * x[-1] + 0.44 * rng.normal(size=2000))
    assert share_well(kbp.pool(kbp.chain_graph(4), np.stack(x, axis=1)), 0.02) is alike
