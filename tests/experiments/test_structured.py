"""Retrieval through languages and guessing words, as a user runs them; their rivals against plain formulas."""

import json
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from experiments import corpora, retrieval, words
from tests.programs import SHORT, experiment, inside, needs

program = partial(experiment, **SHORT)


@needs("europarl")
def test_quick_retrieval_finds_documents_through_a_language(tmp_path):
    outcome = program("retrieval", "--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "retrieval.json").read_text())["rows"]
    found = {(row["tree"], row["count"], row["method"]): row["recall@5"] for row in rows}
    assert {"length", "leaves", "leaf"} <= {tree for tree, *_ in found} and all(0 <= r <= 1 for r in found.values())
    chance = 5 / 100  # five of a hundred documents
    assert all(found[tree, 2, retrieval.METHODS[0]] > 2 * chance for tree in ("length", "leaves"))
    assert (tmp_path / "retrieval.png").stat().st_size > 10_000


@needs("strings")
def test_quick_words_are_guessed(tmp_path):
    outcome = program("words", "--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "words.json").read_text())["rows"]
    found = {row["method"]: row["recall@5"] for row in rows if row["target"] == "all"}
    chance = 5 / 60  # five of sixty concepts
    assert set(words.METHODS) <= set(found) and all(2 * chance < recall <= 1 for recall in found.values())
    assert (tmp_path / "words.png").stat().st_size > 10_000


@pytest.mark.parametrize("name,wanted", [("retrieval", "statmt.org/europarl"), ("words", "panlex.org")])
def test_without_data_one_line_says_where_to_get_them(name, wanted, tmp_path):
    outcome = inside(name, "--quick", "--out", tmp_path, KBPJAX_DATA="")
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1
    assert wanted in outcome.stderr and "Pass --data or set KBPJAX_DATA" in outcome.stderr


def test_damaged_data_are_refused(tmp_path):
    (tmp_path / "strings").mkdir()
    (tmp_path / "strings" / "swadesh207_13lang.json").write_text("{")
    with pytest.raises(ValueError, match=r"data must be readable; got .*swadesh207_13lang.json, which is damaged"):
        corpora.swadesh(tmp_path)


def test_phonetic_spellings_and_glosses_are_left_out():
    assert corpora._spellings(["jag", "yog", "1 sg.", "trEd"]) == ["jag", "yog"]
    assert corpora._spellings(["Baum"]) == ["baum"]
    assert corpora._spellings(["rainy weather", "r3n"]) == ["rainyweather", "rn"]


def edit_distance(a, b):
    """The textbook recursion."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def test_edit_similarity_is_one_less_the_share_of_edits():
    left, right = ["hus", "baum", "a"], ["haus", "tree", "maus", "hus", "b"]
    expected = [[1 - edit_distance(a, b) / max(len(a), len(b)) for b in right] for a in left]
    np.testing.assert_allclose(words.edit_similarity(left, right), expected, atol=1e-12)


def test_rank_of_a_concept_is_that_of_its_best_word_and_ties_share():
    score = np.array([[0.1, 0.9, 0.5, 0.5], [0.1, 0.2, 0.3, 0.3]])
    concepts = np.array([4, 7, 7, 9])
    np.testing.assert_array_equal(words.rank_of_concept(score, concepts, np.array([9, 9])), [2, 1.5])


def test_scores_that_are_no_numbers_are_not_ranked_first():
    with pytest.raises(ValueError, match="score must be finite"):
        words.rank_of_concept(np.array([[np.nan, 0.5]]), np.array([1, 2]), np.array([1]))
    with pytest.raises(ValueError, match="score must be finite"):
        retrieval.rank_of_own(np.array([[np.nan, 0.5], [0.1, 0.2]]))


@pytest.mark.parametrize("centred", [True, False])
def test_ridge_weights_are_those_of_ridge_regression(centred):
    rng = np.random.default_rng(0)
    x, y, new = rng.normal(size=(12, 5)) + 1, rng.normal(size=(12, 3)), rng.normal(size=(4, 5)) + 1
    weights = retrieval.ridge_weights(x @ x.T, new @ x.T, 0.1, centred)
    expected = Ridge(alpha=0.1 * 12, fit_intercept=centred).fit(x, y).predict(new)
    np.testing.assert_allclose(weights @ y, expected, atol=1e-10)


@pytest.mark.parametrize("centred", [True, False])
def test_candidates_are_ranked_by_their_cosines_with_the_prediction(centred):
    rng = np.random.default_rng(1)
    y = rng.normal(size=(10, 4)) + 1
    rows, test = np.arange(6), np.arange(6, 10)
    weight = rng.random((4, 6))
    weight /= weight.sum(1, keepdims=True)
    mean = y[rows].mean(0) if centred else 0
    predicted = weight @ y[rows] - mean
    lengths = np.linalg.norm(predicted, axis=1, keepdims=True)
    cosines = predicted @ (y[test] - mean).T / lengths / np.linalg.norm(y[test] - mean, axis=1)
    found = retrieval.predicted_cosines(y @ y.T, rows, weight, test, centred)
    np.testing.assert_allclose(found / lengths, cosines, atol=1e-10)


def test_bad_arguments_give_one_line_and_status_2(tmp_path):
    outcome = inside("retrieval", "--out", tmp_path, "--lengths", 11)
    assert outcome.returncode == 2 and "--lengths 1 .. 10" in outcome.stderr and outcome.stderr.count("\n") == 1
