"""Guessing words from other languages, as a user runs it; its word lists and edit distances against plain formulas."""

import json
from functools import partial

import numpy as np
import pytest

from experiments.words import data
from experiments.words import run as words
from tests.programs import SHORT, experiment, inside, needs

program = partial(experiment, **SHORT)


@needs("strings")
def test_quick_words_are_guessed(tmp_path):
    outcome = program("words", "--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "words.json").read_text())["rows"]
    found = {row["method"]: row["recall@5"] for row in rows if row["target"] == "all"}
    chance = 5 / 60  # five of sixty concepts
    assert set(words.METHODS) <= set(found) and all(2 * chance < recall <= 1 for recall in found.values())
    assert (tmp_path / "words.png").stat().st_size > 10_000


def test_without_data_one_line_says_where_to_get_them(tmp_path):
    outcome = inside("words", "--quick", "--out", tmp_path, KBPJAX_DATA="")
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1
    assert "panlex.org" in outcome.stderr and "Pass --data or set KBPJAX_DATA" in outcome.stderr


def test_damaged_data_are_refused(tmp_path):
    (tmp_path / "strings").mkdir()
    (tmp_path / "strings" / "swadesh207_13lang.json").write_text("{")
    with pytest.raises(ValueError, match=r"data must be readable; got .*swadesh207_13lang.json, which is damaged"):
        data.swadesh(tmp_path)


def test_phonetic_spellings_and_glosses_are_left_out():
    assert data._spellings(["jag", "yog", "1 sg.", "trEd"]) == ["jag", "yog"]
    assert data._spellings(["Baum"]) == ["baum"]
    assert data._spellings(["rainy weather", "r3n"]) == ["rainyweather", "rn"]


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
