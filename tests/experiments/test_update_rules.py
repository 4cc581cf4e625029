"""The study of the update rules and the benchmark of fit, as a user runs them."""

import json

import pytest
from PIL import Image

from tests.programs import experiment, inside, python


def test_quick_study_compares_the_three_rules(tmp_path):
    outcome = experiment("update_rules", "--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "update_rules.json").read_text())["rows"]
    small = {(row["rule"], row["eps"]): row for row in rows if row["side"] == 10}
    full = small["full", None]
    assert len(small) == 7 and full["rank"] == full["points"] == 100  # all pixels
    assert {(row["rule"], row["eps"]) for row in rows if row["side"] == 20} == set(small) - {("full", None)}
    for eps in (1e-2, 1e-3):
        for rule in ("constant", "linear"):
            assert small[rule, eps]["rmse_mode"] == pytest.approx(full["rmse_mode"], rel=0.05)
        assert small["linear", eps]["rank"] == small["constant", eps]["rank"] < small["linear", eps]["points"]
        assert small["constant", eps]["residual"] <= eps
    with Image.open(tmp_path / "update_rules.png") as picture:
        assert picture.width > 800 and picture.height > 400
    assert "full/constant s" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "word"), [(("--side", 1), "side"), (("--levels", 7), "levels"), (("--data", "nowhere"), "nowhere")]
)
def test_bad_arguments_give_one_line_and_status_2(tmp_path, arguments, word):
    outcome = inside("update_rules", "--out", tmp_path, *arguments)
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1 and word in outcome.stderr


@pytest.mark.slow
def test_fit_stays_within_its_memory():
    outcome = python("benchmarks/fit.py", "--one", 20_000, 50)
    assert outcome.returncode == 0, outcome.stderr
    row = json.loads(outcome.stdout)
    assert (row["pairs"], row["rank"], row["points"]) == (20_000, 50, 50)
    assert row["peak_gib"] is None or row["peak_gib"] <= row["bound_gib"]
