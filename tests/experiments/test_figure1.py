"""The comparison of Figure 1 runs on the real data, and its committed results are those of a full run."""

import collections
import dataclasses
import json
from pathlib import Path

import chex
import numpy as np
import pytest

from experiments.denoising.models import SETTINGS
from experiments.figure1 import doc_tables
from experiments.figure1 import run as figure1
from experiments.figure1.methods import METHODS
from experiments.lib import gray_images
from experiments.lib.results import plain

RESULTS = Path(__file__).resolve().parents[2] / "experiments/figure1/results/figure1.json"
FAST = [name for name, method in METHODS.items() if not method.slow]
SLOW = [name for name, method in METHODS.items() if method.slow]


@pytest.fixture(scope="module")
def committed():
    return json.loads(RESULTS.read_text())


def select(rows, image, setting):
    found = {}
    for row in rows:
        if (row["image"], row["setting"]) == (image, setting):
            found.setdefault(row["method"], {})[row["levels"]] = row
    return found


def test_quick_run_compares_the_fast_methods(tmp_path):
    assert figure1.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "figure1.json").read_text())["rows"]
    assert [row["method"] for row in rows if row["image"] == "whole"] == FAST
    assert all(0 < row["rmse"] < 30 for row in rows)  # the noise has 30
    assert (tmp_path / "figure1.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", METHODS)
def test_options_are_what_results_can_hold(name):
    method = METHODS[name]
    for options in (
        method.paper,
        method.start,
        *({key: value} for key, values in method.search.items() for value in values),
    ):
        assert plain(options) == dict(options)


def test_the_papers_settings_are_those_of_its_program():
    expected = dataclasses.asdict(SETTINGS["paper"])
    assert {name: METHODS["kernel BP"].paper[name] for name in expected} == expected


def test_options_are_searched_one_after_the_other():
    image = gray_images.rings(10, 24).astype(np.float32)
    best, trials = figure1.search(METHODS["Gaussian BP"], image, "whole", 0, trials=8)
    least = min(trials, key=lambda trial: trial["rmse"])
    assert str(best[least["option"]]) == least["value"]
    assert len(trials) == 8


def test_a_table_smoothed_by_nothing_is_that_of_the_counts():
    pair = figure1.training_pair_of(gray_images.rings(10, 24).astype(np.float32), 0)
    options = {**METHODS["discrete BP"].paper, "width": 1e-3}
    names = "discrete BP", "discrete BP, smoothed table"
    ours, theirs = (METHODS[name].learn(pair, options) for name in names)
    chex.assert_trees_all_close(ours.operators, theirs.operators, rtol=1e-5)
    chex.assert_trees_all_close(ours.moments, theirs.moments, rtol=1e-5)
    wide = METHODS[names[1]].learn(pair, {**options, "width": 1e4})
    np.testing.assert_allclose(wide.interaction(0) / wide.interaction(0)[0, 0], 1, rtol=1e-4)  # no dependence is left


def test_committed_results_have_all_methods_at_all_levels(committed):
    rows = committed["rows"]
    for setting in ("paper", "tuned"):
        whole, part = (select(rows, image, setting) for image in ("whole", "part"))
        assert list(whole) == FAST and list(part) == [*FAST, *SLOW]
        assert all(len(found) == len(gray_images.SUNSET_LEVELS) for found in (*whole.values(), *part.values()))
        assert all(row["draws"] == 10 for found in whole.values() for row in found.values())
    counts = collections.Counter((x["method"], x["image"], x["levels"]) for x in committed["searches"])
    at = [(name, size, n) for name in METHODS for size in figure1.TUNED_AT for n in figure1.TUNED_AT[size]]
    assert set(counts) == {(name, size, n) for name, size, n in at if size == "part" or name in FAST}
    assert set(counts.values()) == {figure1.TRIALS}


@pytest.mark.parametrize("option", [["--draws", "0"], ["--part-draws", "0"], ["--levels", "7"], ["--methods", "x"]])
def test_wrong_arguments_are_refused(option, tmp_path):
    assert figure1.main(["--quick", "--out", str(tmp_path), *option]) == 2


def test_the_smallest_error_is_bold_only_if_ahead_by_two_standard_errors():
    errors = {"kernel BP": "3.0 3.2 3.1", "kernel BP, true likelihood": "2.9 3.3 3.0", "discrete BP": "4.0 4.1 4.2"}
    rows = [
        {"method": name, "setting": "tuned", "image": "part", "levels": 10, "run_s": 0.1, "errors": each}
        | {"rmse": float(np.mean([float(error) for error in each.split()]))}
        for name, each in errors.items()
    ]
    assert "**" not in doc_tables.figure1(rows, "part", "tuned")
    assert "**3.10**" in doc_tables.figure1(
        [rows[0], rows[2], {**rows[1], "errors": "4 4 4", "rmse": 4}], "part", "tuned"
    )
    assert doc_tables.ahead(rows[0], rows[2]) == pytest.approx((1.0, 0.1 / 3**0.5))
