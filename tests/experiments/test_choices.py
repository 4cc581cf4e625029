"""Options of earlier results replace a search; what those results lack is said."""

import json

import pytest

from experiments.lib import results
from experiments.lib.choices import Choices
from experiments.retrieval import run as retrieval
from tests.programs import needs


@pytest.fixture
def earlier(tmp_path):
    choices, options = Choices(None), {"ridge": 1e-3, "kernel": "linear", "grid": (1, (2.5, None))}
    assert choices.search("images", lambda: (options, ["trial"])) == (options, ["trial"])
    path = tmp_path / "earlier.json"
    results.write_results(path, {}, [], chosen=choices.chosen)
    return path, options


def test_given_options_are_those_that_were_chosen(earlier):
    path, options = earlier
    choices = Choices(path)
    assert choices.search("images", lambda: pytest.fail("searched")) == (options, [])
    assert choices.chosen == {"images": options} and Choices(None).of("images") is None


def test_a_search_that_is_not_in_the_results_is_named(earlier):
    with pytest.raises(ValueError, match="--use: must hold options of 'words'; got images. Ask for what"):
        Choices(earlier[0]).search("words", lambda: pytest.fail("searched"))


@pytest.mark.parametrize("text", [None, "{", "[]", '{"rows": []}'])
def test_a_file_without_options_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"--use: must be results with chosen options; got 'other.json'. Pass"):
        Choices(path)


@needs("europarl")
def test_an_experiment_with_the_options_of_earlier_results_finds_the_same(tmp_path):
    found = []
    for folder, more in (("one", []), ("two", ["--use", str(tmp_path / "one" / "retrieval.json")])):
        options = ["--quick", "--lengths", "2", "--out", str(tmp_path / folder), *more]
        assert retrieval.main(options) == 0
        found.append(json.loads((tmp_path / folder / "retrieval.json").read_text()))
    searched, given = found
    names = [{key: row[key] for key in row if key != "options on an edge"} for row in searched["rows"]]
    assert [{key: row[key] for key in names[i]} for i, row in enumerate(given["rows"])] == names
    assert searched["trials"] and not given["trials"] and searched["chosen"] == given["chosen"]
