"""The experiment on tables with holes: scores against sums by hand, patterns, and a quick run."""

import json

import numpy as np
import pytest

from experiments.imputation import data, methods, run, scoring

pytestmark = pytest.mark.experiments


def task(truth, test=None, labels=()):
    truth = np.asarray(truth, float)
    test = np.full(truth.shape, np.nan) if test is None else test
    return data.Task(np.random.default_rng(0).normal(size=(30, truth.shape[1])), test, truth, labels)


def test_scores_of_draws_are_the_sums_over_all_pairs():
    x, truth = np.random.default_rng(0).normal(size=(5, 3)), np.array([0.1, -1.0, 2.0])
    pairs = [np.abs(x[i] - x[j]) for i in range(5) for j in range(5) if i != j]
    expected = np.abs(x - truth).mean(axis=0) - np.mean(pairs, axis=0) / 2
    np.testing.assert_allclose(scoring.fair_crps(x, truth), expected)
    labels, true = np.array([[0, 1], [0, 2], [1, 2], [0, 0]], float), np.array([0.0, 1.0])
    same = [labels[i] == labels[j] for i in range(4) for j in range(4) if i != j]
    expected = 1 - 2 * (labels == true).mean(axis=0) + np.mean(same, axis=0)
    np.testing.assert_allclose(scoring.fair_probability_score(labels, true), expected)


def test_the_energy_score_is_that_of_all_pairs_of_draws():
    draws = np.random.default_rng(1).normal(size=(6, 2, 2))
    one = task([[0.5, -0.5], [1.0, np.nan]])
    scale = one.train.std(axis=0) + 1e-9
    x, truth = draws[:, 0] / scale, one.truth[0] / scale
    between = [np.linalg.norm(x[i] - x[j]) for i in range(6) for j in range(6) if i != j]
    expected = np.mean([np.linalg.norm(one - truth) for one in x]) - np.mean(between) / 2
    assert scoring.energy(one, draws, np.arange(2)) == pytest.approx(expected)  # the other row has one cell


def test_patterns_hide_what_they_say_and_leave_a_cell_in_each_row():
    rng, x = np.random.default_rng(0), np.arange(700.0).reshape(70, 10)
    weeks = data.weeks(rng, x)
    assert (weeks.sum(axis=1) == 2).all() and (weeks[:7] == weeks[0]).all() and (weeks[7:14] == weeks[7]).all()
    blocks = data.block(rng, x)
    assert (blocks[:10] == blocks[0]).all() and (blocks[10:20] == blocks[10]).all() and 0.2 < blocks.mean() < 0.8
    assert 0.7 < data.one_column(rng, x)[:, 5].mean() < 0.9
    given, truth = data.hide(lambda rng, x: np.ones(x.shape, bool), rng, x)
    assert (np.isfinite(given).sum(axis=1) == 1).all()
    np.testing.assert_array_equal(np.where(np.isfinite(given), given, truth), x)


@pytest.mark.parametrize("name", ["joint_gaussian", "iterative", "forests", "nearest_rows"])
def test_methods_keep_what_is_there_and_learn_a_dependence(name):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 1)) + 0.1 * rng.normal(size=(120, 3))
    given, truth = data.hide(data.cells(0.2), rng, x)
    one = data.Task(given[:80], given[80:], truth[80:])
    draws = getattr(methods, name)(one, 0)
    known = np.isfinite(one.test)
    assert np.isfinite(draws).all() and (draws[:, known] == one.test[known]).all()
    base = scoring.column_scores(one, methods.own_distribution(one, 0))
    assert scoring.scores(one, draws, base)["crps"] < 0.5


def test_a_quick_run_writes_a_row_for_each_method(tmp_path):
    assert run.main(["--quick", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "imputation.json").read_text(encoding="utf-8"))
    assert {row["method"] for row in found["rows"]} == {methods.OURS, "own distribution", "joint Gaussian"}
    assert all(np.isfinite([row["crps"], row["energy"], row["coverage_90"]]).all() for row in found["rows"])
