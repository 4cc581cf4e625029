"""The part of the experiment on learned bandwidths with photographs: split, evidence, records, a quick run."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.learned_bandwidths import doc_tables, photograph_models, photographs, run, smoothers
from experiments.learned_bandwidths.records import numbers_of, with_numbers

pytest.importorskip("skimage", reason="scikit-image is not installed")

RESULTS = Path(__file__).resolve().parents[2] / "experiments/learned_bandwidths/results/photographs.json"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("photographs")
    assert run.main(["--quick", "--part", "photographs", "--out", str(out)]) == 0
    assert (out / "photographs.png").stat().st_size > 10_000
    return out / "photographs.json"


def test_quick_run_compares_all_methods(quick):
    rows = json.loads(quick.read_text())["rows"]
    summary = {row["method"]: row for row in rows if row["study"] == "summary"}
    ours = photographs.OURS["nlm"]
    assert {"total variation", "non-local means", photographs.alone(ours), ours} <= set(summary)
    assert all(0 < row["rmse"] < 30 for row in summary.values())  # the noise has 30
    for method in (photographs.alone(ours), ours):
        assert 0 < summary[method]["cover90"] <= 1 and 0 < summary[method]["crps"] < 30


def test_given_results_are_used_without_a_search_and_clean_a_picture(quick, tmp_path):
    from PIL import Image

    noisy = np.clip(128 + 30 * np.random.default_rng(0).standard_normal((32, 36)), 0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(tmp_path / "gray.png")
    more = ["--use", str(quick), "--image", str(tmp_path / "gray.png"), "--out", str(tmp_path)]
    assert run.main(["--quick", "--part", "photographs", *more]) == 0
    first, again = (json.loads(path.read_text())["rows"] for path in (quick, tmp_path / "photographs.json"))
    assert not [row for row in again if row["study"] == "trial"]
    errors = [[row["rmse"] for row in rows if row["study"] == "photographs"] for rows in (first, again)]
    np.testing.assert_allclose(*errors, rtol=1e-4)
    cleaned = np.asarray(Image.open(tmp_path / "gray-cleaned.png"), float)
    assert cleaned.shape == noisy.shape and np.std(cleaned) < np.std(noisy) / 2


def test_the_error_of_a_picture_is_over_all_its_pixels():
    image = np.zeros((2, 3))
    image[0] = 3.0  # one of two rows is wrong by 3: the mean over rows of their errors would be 1.5
    assert photographs.rmse_of_picture(image, np.zeros((2, 3))) == pytest.approx(np.sqrt(4.5))


def test_no_picture_is_on_both_sides():
    names = photographs.NAMES
    assert len(names) == 20 and not set(names[::2]) & set(names[1::2])


@pytest.mark.parametrize("key", photographs.SPACES)
def test_every_denoiser_has_the_same_number_of_trials(key):
    assert 1 + sum(len(values) - 1 for values in photographs.SPACES[key].values()) == photographs.TRIALS


def test_a_picture_without_truth_has_evidence_and_no_residual():
    noisy = np.random.default_rng(0).uniform(0, 255, (24, 28)).astype(np.float32)
    copy = smoothers.copy_of(noisy, 20.0)
    assert copy.inputs.shape == (24, 28, 9) and np.isfinite(copy.inputs).all() and np.isfinite(copy.spreads).all()
    assert np.isnan(copy.residual).all()


def test_evidence_with_bm3d_has_it_as_its_base():
    pytest.importorskip("bm3d", reason="its license allows non-commercial use only")
    clean = np.kron([[40.0, 200.0], [120.0, 80.0]], np.ones((16, 16)))
    noisy = (clean + 20 * np.random.default_rng(2).standard_normal(clean.shape)).astype(np.float32)
    copy = smoothers.copy_of(noisy, 20.0, clean, "bm3d")
    assert copy.inputs.shape == (32, 32, 12) and np.std(copy.smoothed - clean) < 5
    np.testing.assert_allclose(copy.residual, (clean - copy.smoothed) / 20, rtol=1e-5, atol=1e-6)


def test_observations_of_training_copies_are_predicted_from_the_others():
    rng = np.random.default_rng(1)
    clean = [rng.uniform(0, 255, (24, 24)).astype(np.float32) for _ in range(2)]
    copies = [
        smoothers.copy_of(one + 20 * rng.standard_normal((24, 24)).astype(np.float32), 20.0, one) for one in clean
    ]
    observer, observed = smoothers.observer_of(copies)
    assert observer(copies[0]).shape == observed[0].shape == (24, 24, 3)
    assert not np.allclose(observer(copies[0])[..., 0], observed[0][..., 0], atol=1e-3)


def test_numbers_of_hyperparameters_make_them_again():
    first = photograph_models.start()
    changed = with_numbers(first, {name: 2 * value for name, value in numbers_of(first).items()})
    assert numbers_of(changed) == pytest.approx({name: 2 * value for name, value in numbers_of(first).items()})
    with pytest.raises(ValueError, match=r"^--use: must hold kernel\.bandwidth"):
        with_numbers(first, {})


@pytest.mark.parametrize(
    "option",
    [
        ["--noise", "0", "--part", "photographs"],
        ["--use", "missing.json", "--part", "photographs"],
        ["--image", "missing.png", "--part", "photographs"],
        ["--noise", "30", "--part", "sunset"],
    ],
)
def test_wrong_arguments_are_refused(option, tmp_path, capsys):
    assert run.main(["--quick", "--out", str(tmp_path), *option]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_committed_results_have_all_methods_at_all_levels():
    results = json.loads(RESULTS.read_text())
    rows = [row for row in results["rows"] if row["study"] == "summary"]
    assert {row["sigma"] for row in rows} == {15, 30, 50} and all(row["pictures"] == 10 for row in rows)
    assert all(0 < row["rmse"] < row["sigma"] for row in rows)
    tables = doc_tables.tables_of_photographs(results)
    assert set(tables) == {"photographs", "photograph_options"}
