"""The denoising experiment as a user runs it: files, figures that the issue asks for, and one-line errors."""

import json

import numpy as np
import pytest
from PIL import Image

from experiments.denoising import models
from tests.programs import experiment, inside


def denoise(*arguments, out):
    """Run the experiment as a program."""
    return experiment("denoising", *arguments, "--out", out)


@pytest.fixture
def photo(tmp_path):
    """A color picture that varies in both directions."""
    i, j = np.mgrid[:40, :30]
    path = tmp_path / "photo.png"
    Image.fromarray(np.stack([6 * i, 8 * j, 200 - 2 * i], axis=-1).astype(np.uint8)).save(path)
    return path


def test_demo_converges_on_a_picture_that_it_has_not_seen(tmp_path):
    outcome = denoise("--quick", out=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    results = json.loads((tmp_path / "denoising.json").read_text())
    (row,), (residuals,) = results["rows"], results["residuals"]
    assert (row["image"], row["setting"], row["converged"]) == ("circles", "automatic", True)
    assert residuals[-1] <= models.AUTOMATIC_TOL and residuals[-1] < 0.01 * max(residuals)
    assert row["rmse_mean"] < 0.25 * row["noisy"] and 29 < row["noisy"] < 31
    assert 0.85 < row["cover90"] < 0.98
    assert 0 < row["temperature"] <= 1
    with Image.open(tmp_path / "denoising.png") as picture:
        assert picture.width > 800 and picture.height > 400
    assert str(tmp_path / "denoising.png") in outcome.stdout


def test_plain_settings_reach_the_published_errors(tmp_path):
    options = ("--levels", 10, 100, "--settings", "paper", "narrow", "--draws", 3)
    outcome = denoise(*options, out=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    results = json.loads((tmp_path / "denoising.json").read_text())
    rows = {(row["levels"], row["setting"]): row for row in results["rows"]}
    assert set(rows) == {(count, setting) for count in (10, 100) for setting in ("paper", "narrow")}
    # The authors' own program: 8.6 and 7.9 (design notes); 9.0 and 8.0 are the bounds that we set ourselves.
    assert rows[10, "paper"]["rmse_mode"] <= 9.0
    assert rows[100, "paper"]["rmse_mode"] <= 8.0
    assert rows[100, "narrow"]["rmse_mean"] <= 5.0
    assert all(29 < row["noisy"] < 31 and 0.8 < row["cover90"] <= 1 for row in rows.values())
    assert not any(row["converged"] for row in rows.values())  # the table says so
    assert "sunset 100" in outcome.stdout


def test_own_image_is_learned_from_and_cleaned(tmp_path, photo):
    outcome = denoise("--image", photo, "--draws", 2, "--settings", "narrow", out=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    (row,) = json.loads((tmp_path / "denoising.json").read_text())["rows"]
    assert row["image"] == "photo"
    assert row["rmse_mean"] < 0.5 * row["noisy"]


def test_learn_from_one_image_and_clean_another_of_other_size(tmp_path, photo):
    other = tmp_path / "other.jpg"
    with Image.open(photo) as picture:
        picture.crop((0, 0, 20, 25)).save(other)
    options = ("--train", photo, "--test", other, "--draws", 1, "--settings", "narrow", "--iters", 5, "--damping", 0.5)
    options += ("--bandwidth", 20, "--obs-bandwidth", 25, "--ridge", 1e-3, "--eps", 0.05)
    outcome = denoise(*options, out=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    results = json.loads((tmp_path / "denoising.json").read_text())
    (row,) = results["rows"]
    assert (row["damping"], row["bandwidth"], row["obs_bandwidth"], row["ridge"]) == (0.5, 20, 25, 1e-3)
    assert len(results["residuals"][0]) == 5
    assert row["rmse_mean"] < row["noisy"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--levels", 7), ("levels", "7", "10, 25")),
        (("--levels", 10, "--bandwidth", 0), ("bandwidth", "> 0")),
        (("--levels", 10, "--damping", 1), ("damping", "< 1")),
        (("--draws", 0), ("draws", "at least 1")),
        (("--image", "no-such-file.png"), ("no-such-file.png",)),
        (("--train", "a.png"), ("--train A --test B",)),
        (("--image", "a.png", "--levels", 10), ("--levels", "image")),
        (("--data", "no-such-folder"), ("no-such-folder",)),
    ],
)
def test_bad_arguments_give_one_line_and_status_2(tmp_path, arguments, words):
    outcome = inside("denoising", *arguments, "--quick", "--out", tmp_path)
    assert outcome.returncode == 2
    assert outcome.stderr.count("\n") == 1
    assert all(word in outcome.stderr for word in words)


@pytest.mark.parametrize("pixels", [np.zeros((1, 1), np.uint8), np.full((9, 9), 7, np.uint8)])
def test_image_with_nothing_to_learn_from(tmp_path, pixels):
    path = tmp_path / "poor.png"
    Image.fromarray(pixels).save(path)
    outcome = inside("denoising", "--image", path, "--out", tmp_path)
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("\n") == 1
