"""The baseline denoisers: what they reach on a small image, the search for their options, missing packages."""

import json
import logging
import sys

import numpy as np
import pytest

from experiments.denoising.data import SIGMA, add_noise
from experiments.learned_bandwidths import baselines
from experiments.lib.gray_images import rings

pytest.importorskip("skimage", reason="scikit-image is not installed")


SMALL = {
    "tv": baselines.SEARCHES["tv"],
    "nlm": baselines.Search(
        start={"h": 0.6, "patch_size": 5, "patch_distance": 7, "fast_mode": True},
        stages=({"patch_size": (5, 7), "h": (0.6, 0.9)}, {"fast_mode": (False,)}),
        fine="h",
        steps=(1.15,),
    ),
    "bm3d": baselines.Search(
        start=baselines.SEARCHES["bm3d"].start,
        stages=({"profile": ("np", "lc", "vn", "high")}, {"group": (32,), "transform": ("dct",), "stages": ("first",)}),
        fine="filter_strength",
        steps=(1.2,),
    ),
}
"""Searches of few trials, which reach every branch of every denoiser."""


def error(image: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((image - truth) ** 2)))


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    return rings(10)[20:60, 30:70].astype(np.float32)


@pytest.fixture(scope="module")
def noisy(truth) -> np.ndarray:
    return add_noise(np.random.default_rng(0), truth)


@pytest.fixture(scope="module")
def tuned(truth, noisy) -> dict[str, baselines.Denoiser]:
    return baselines.tune_denoisers(truth, [noisy], searches=SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_denoiser_halves_the_error_at_least(tuned, truth, noisy, name):
    if name == "bm3d":
        pytest.importorskip("bm3d", reason="bm3d, whose license allows non-commercial use only, is not installed")
    denoiser = tuned[name]
    denoised = denoiser(noisy)
    assert denoiser.name == name and denoiser.sigma == SIGMA
    assert denoised.shape == truth.shape and denoised.min() >= 0 and denoised.max() <= 255
    assert denoiser.rmse == pytest.approx(error(denoised, truth), rel=1e-12)
    fresh = add_noise(np.random.default_rng(1), truth)
    for copy in (noisy, fresh):
        assert error(denoiser(copy), truth) < error(copy, truth) / 2
    np.testing.assert_array_equal(denoiser(fresh), denoiser(fresh))
    assert json.loads(json.dumps(denoiser.options)) == denoiser.options


def test_no_weight_and_algorithm_of_the_grid_is_better(tuned, truth, noisy):
    (stage,) = SMALL["tv"].stages
    errors = {
        (algorithm, weight): error(
            baselines.Denoiser("tv", {"algorithm": algorithm, "weight": weight}, 0.0)(noisy), truth
        )
        for algorithm in stage["algorithm"]
        for weight in stage["weight"]
    }
    options = tuned["tv"].options
    assert tuned["tv"].rmse <= min(errors.values())
    assert options["algorithm"] == min(errors, key=lambda key: errors[key])[0]
    # A little more or less is worse: the last step of the search found no better neighbor.
    for factor in (1.04, 1 / 1.04):
        neighbor = baselines.Denoiser("tv", {**options, "weight": options["weight"] * factor}, 0.0)
        assert error(neighbor(noisy), truth) >= tuned["tv"].rmse


def test_the_noise_level_scales_the_options(truth):
    # The same picture with half the contrast and half the noise is the same problem.
    noisy = np.clip(add_noise(np.random.default_rng(2), truth), 0, 255)
    for name, tolerance in (("tv", 0.1), ("nlm", 1e-6)):
        start = SMALL[name].start
        whole = baselines.Denoiser(name, start, 0.0)(noisy)
        half = baselines.Denoiser(name, start, 0.0, sigma=SIGMA / 2)(noisy / 2)
        np.testing.assert_allclose(2 * half, whole, atol=tolerance)


def test_the_error_is_the_mean_over_the_copies(truth, noisy):
    other = add_noise(np.random.default_rng(3), truth)
    search = baselines.Search({"algorithm": "chambolle", "weight": 1.0}, (), "weight", ())
    denoiser = baselines.tune_denoisers(truth, [noisy, other], searches={"tv": search})["tv"]
    assert denoiser.options == search.start
    assert denoiser.rmse == pytest.approx((error(denoiser(noisy), truth) + error(denoiser(other), truth)) / 2)


def test_a_search_leaves_a_bad_start(truth, noisy):
    search = baselines.Search({"algorithm": "chambolle", "weight": 0.1}, (), "weight", (1.7, 1.2))
    denoiser = baselines.tune_denoisers(truth, [noisy], searches={"tv": search})["tv"]
    assert 0.7 < denoiser.options["weight"] < 4


def test_without_bm3d_it_is_left_out_and_said(truth, noisy, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "bm3d", None)
    searches = {
        "tv": baselines.Search({"algorithm": "chambolle", "weight": 1.0}, (), "weight", ()),
        "bm3d": SMALL["bm3d"],
    }
    with caplog.at_level(logging.WARNING):
        assert list(baselines.tune_denoisers(truth, [noisy], searches=searches)) == ["tv"]
    assert caplog.messages == [baselines.BM3D_NOTE]
    assert "non-commercial" in baselines.BM3D_NOTE


def test_without_scikit_image_the_error_says_what_to_install(truth, noisy, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(ValueError, match=r"^the baselines need scikit-image; .*pip install 'kbpjax\[baselines\]'"):
        baselines.tune_denoisers(truth, [noisy])


@pytest.mark.parametrize("copies", [[], [np.zeros((40, 41))], [np.zeros((40, 40)), np.zeros(1600)]])
def test_noisy_copies_have_the_shape_of_the_image(truth, copies):
    with pytest.raises(ValueError, match=r"^noisy must hold one or more images of the shape .*\(40, 40\)"):
        baselines.tune_denoisers(truth, copies)


def test_an_unknown_denoiser_is_refused(truth, noisy):
    with pytest.raises(ValueError, match=r"^searches must be named tv, nlm, bm3d; got \['median'\]"):
        baselines.tune_denoisers(truth, [noisy], searches={"median": SMALL["tv"]})
