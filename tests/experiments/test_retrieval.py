"""Retrieval of documents through languages, as a user runs it; its baselines against plain formulas."""

import json
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from experiments.retrieval import run as retrieval
from tests.programs import SHORT, experiment, inside, needs

program = partial(experiment, **SHORT)


@needs("europarl")
def test_quick_retrieval_finds_documents_through_a_language(tmp_path):
    outcome = program("retrieval", "--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "retrieval.json").read_text())["rows"]
    found = {(row["tree"], row["count"], row["method"]): row["recall@5"] for row in rows}
    assert {"length", "leaves"} <= {tree for tree, *_ in found} and all(0 <= r <= 1 for r in found.values())
    chance = 5 / 100  # five of a hundred documents
    assert all(found[tree, 2, retrieval.METHODS[0]] > 2 * chance for tree in ("length", "leaves"))
    assert (tmp_path / "retrieval.png").stat().st_size > 10_000


def test_without_data_one_line_says_where_to_get_them(tmp_path):
    outcome = inside("retrieval", "--quick", "--out", tmp_path, KBPJAX_DATA="")
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1
    assert "statmt.org/europarl" in outcome.stderr and "Pass --data or set KBPJAX_DATA" in outcome.stderr


def test_scores_that_are_no_numbers_are_not_ranked_first():
    with pytest.raises(ValueError, match="score must be finite"):
        retrieval.rank_of_own(np.array([[np.nan, 0.5], [0.1, 0.2]]))


@pytest.mark.parametrize("centered", [True, False])
def test_ridge_weights_are_those_of_ridge_regression(centered):
    rng = np.random.default_rng(0)
    x, y, new = rng.normal(size=(12, 5)) + 1, rng.normal(size=(12, 3)), rng.normal(size=(4, 5)) + 1
    weights = retrieval.ridge_weights(x @ x.T, new @ x.T, 0.1, centered)
    expected = Ridge(alpha=0.1 * 12, fit_intercept=centered).fit(x, y).predict(new)
    np.testing.assert_allclose(weights @ y, expected, atol=1e-10)


@pytest.mark.parametrize("centered", [True, False])
def test_candidates_are_ranked_by_their_cosines_with_the_prediction(centered):
    rng = np.random.default_rng(1)
    y = rng.normal(size=(10, 4)) + 1
    rows, test = np.arange(6), np.arange(6, 10)
    weight = rng.random((4, 6))
    weight /= weight.sum(1, keepdims=True)
    mean = y[rows].mean(0) if centered else 0
    predicted = weight @ y[rows] - mean
    lengths = np.linalg.norm(predicted, axis=1, keepdims=True)
    cosines = predicted @ (y[test] - mean).T / lengths / np.linalg.norm(y[test] - mean, axis=1)
    found = retrieval.predicted_cosines(y @ y.T, rows, weight, test, centered)
    np.testing.assert_allclose(found / lengths, cosines, atol=1e-10)


def test_centered_kernels_are_correlations_and_leaves_join_to_one_node():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(9, 4)) + 1
    rows = np.arange(6)
    away = x - x[rows].mean(0)
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    np.testing.assert_allclose(retrieval.centered(x @ x.T, rows), away @ away.T, atol=1e-12)
    tree = retrieval.draw_tree({}, "leaves", 3, rng)
    grams = rng.normal(size=(5, 9, 9))
    task = retrieval.Task(tree.edges, grams, np.tile(rows, (4, 1)), 1, np.arange(6, 9), np.arange(3))
    joined, limit = retrieval.together(task), retrieval.direct(task)
    assert joined.edges == ((0, 1), (1, 2)) and joined.pairs.shape == (2, 6) and joined.observed.tolist() == [0]
    np.testing.assert_allclose(joined.grams[0], grams[:3].mean(0))
    assert limit.edges == ((0, 1),) and limit.grams.shape == (2, 9, 9) and limit.pairs.shape == (1, 6)


def test_bad_arguments_give_one_line_and_status_2(tmp_path):
    outcome = inside("retrieval", "--out", tmp_path, "--lengths", 11)
    assert outcome.returncode == 2 and "--lengths 1 .. 10" in outcome.stderr and outcome.stderr.count("\n") == 1
