"""The experiment on learned bandwidths runs on the real data, and its committed results are those of a full run."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.learned_bandwidths import run as learned_bandwidths
from experiments.lib import gray_images

RESULTS = Path(__file__).resolve().parents[2] / "experiments/learned_bandwidths/results/learned_bandwidths.json"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("learned")
    assert learned_bandwidths.main(["--quick", "--part", "sunset", "--out", str(out)]) == 0
    assert (out / "learned_bandwidths.png").stat().st_size > 10_000
    return json.loads((out / "learned_bandwidths.json").read_text())


def test_quick_run_compares_all_methods_on_all_studies(quick):
    assert {row["study"] for row in quick["rows"]} == {"sunset", "levers", "transfer"}
    methods = {row["method"] for row in quick["rows"] if row["study"] == "sunset"}
    assert {"authors' bandwidths", "leave-one-out", "learned", "total variation", "non-local means"} <= methods
    assert all(0 < row["rmse_mean"] < 30 for row in quick["rows"])  # the noise has 30


def test_noise_of_the_test_is_no_noise_of_the_training():
    image = np.zeros((50, 50), np.float32)
    args = type("Args", (), {"seed": 0, "draws": 2})
    tests, copies = learned_bandwidths.tests_of(image, args), learned_bandwidths.task_of(image + 1, "", 0).copies - 1
    noises = [*tests, *copies]
    correlations = np.corrcoef([noise.ravel() for noise in noises]) - np.eye(len(noises))
    assert np.abs(correlations).max() < 0.1


def test_copies_add_observations_and_no_pairs_of_neighbors():
    task = learned_bandwidths.task_of(gray_images.rings(10).astype(np.float32)[30:40, 30:40], "", 0)
    one, many = task.training(separate_types=False), task.training_of_copies()
    np.testing.assert_array_equal(many.edges[0][0], one.edges[0][0])
    x, y = many.observations[0]
    assert len(x) == learned_bandwidths.COPIES * 100 and many.degrees == one.degrees
    np.testing.assert_array_equal(y[:100], one.observations[0][1])
    np.testing.assert_array_equal(x[-100:], task.image.ravel())
    assert np.std(y - x) == pytest.approx(30, rel=0.1)


def test_turned_and_plain_grids_have_the_types_of_the_model():
    task = learned_bandwidths.task_of(gray_images.rings(10).astype(np.float32), "", 0)
    assert [k for k, *_ in task.graph(True).edge_types] == [0, 1]
    assert [k for k, *_ in task.graph(False).edge_types] == [0]
    edge_type = np.asarray(task.graph(True).edge_type)
    apart = np.abs(np.asarray(task.graph(True).senders) - np.asarray(task.graph(True).receivers))
    np.testing.assert_array_equal(apart, np.where(edge_type == 0, 1, 100))  # in rows, in columns


def test_committed_results_have_all_images():
    rows = json.loads(RESULTS.read_text())["rows"]
    learned = {row["image"]: row for row in rows if row["study"] == "sunset" and row["method"] == "learned"}
    assert len(learned) == len(gray_images.SUNSET_LEVELS)
    assert all(0 < row["rmse_mean"] < 30 for row in learned.values())  # the noise has 30


@pytest.mark.parametrize("option", [["--draws", "0"], ["--steps", "0"], ["--levels", "7"]])
def test_wrong_arguments_are_refused(option, tmp_path):
    assert learned_bandwidths.main(["--quick", "--part", "sunset", "--out", str(tmp_path), *option]) == 2
