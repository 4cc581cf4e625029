"""The comparison of Figure 1 runs on the real data, and its committed results are those of a full run."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.figure1 import run as figure1
from experiments.figure1.methods import METHODS
from experiments.lib import gray_images

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


def test_options_are_searched_one_after_the_other():
    image = gray_images.rings(10, 24).astype(np.float32)
    best, trials = figure1.search(METHODS["Gaussian BP"], image, 0)
    least = min(trials, key=lambda trial: trial["rmse"])
    assert str(best[least["option"]]) == least["value"]
    assert len(trials) == 6 + 3 - 1  # the best of the first option is not tried again with the second


def test_committed_results_have_all_methods_at_all_levels(committed):
    rows = committed["rows"]
    for setting in ("paper", "tuned"):
        whole, part = (select(rows, image, setting) for image in ("whole", "part"))
        assert list(whole) == FAST and list(part) == [*FAST, *SLOW]
        assert all(len(found) == len(gray_images.SUNSET_LEVELS) for found in (*whole.values(), *part.values()))
        assert all(row["draws"] == 10 for found in whole.values() for row in found.values())
    assert {trial["method"] for trial in committed["searches"]} == set(METHODS)


@pytest.mark.parametrize("option", [["--draws", "0"], ["--part-draws", "0"], ["--levels", "7"], ["--methods", "x"]])
def test_wrong_arguments_are_refused(option, tmp_path):
    assert figure1.main(["--quick", "--out", str(tmp_path), *option]) == 2


def test_keeping_leaves_the_results_of_other_methods(tmp_path):
    path = tmp_path / "figure1.json"
    with pytest.raises(ValueError, match="--keep: needs results in figure1.json; got none"):
        figure1.kept(path, FAST)
    records = [{"method": name} for name in METHODS]
    path.write_text(json.dumps({"rows": records, "searches": records}))
    rows, searches = figure1.kept(path, FAST)
    assert [row["method"] for row in rows] == [row["method"] for row in searches] == SLOW
