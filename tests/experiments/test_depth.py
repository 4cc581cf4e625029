"""Depth from images: reading scenes, features and graphs against plain formulas, and the experiment as run."""

import json
from functools import partial
from io import BytesIO
from zipfile import ZipFile

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from experiments.depth import data, features, models, regression, run
from experiments.depth.features import patch_features
from tests.programs import SHORT, experiment, inside, needs

program = partial(experiment, "depth", **SHORT)


def picture(seed, height=24, width=20):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def street(folder, count=16, **changed):
    """Write a street of 16 frames of 3 x 5 cells: one cell and one frame without run."""
    depth = np.random.default_rng(0).uniform(2, 30, (count, 3, 5)).astype(np.float16)
    depth[0, 1, 2] = depth[4] = np.nan
    ids = np.array([f"street_{i}" for i in range(count)])
    arrays = {"ids": ids, "depth_wide": depth, "box_wide": np.array([0, 0, 20, 24]), "frame": np.arange(count)}
    (folder / "depth").mkdir()
    np.savez(folder / "depth" / "street_depth.npz", **(arrays | changed))
    with ZipFile(folder / "depth" / "street_images.zip", "w") as archive:
        for i, name in enumerate(ids):
            archive.writestr(f"{name}.jpg", picture(i))
    return depth


def test_frames_are_split_by_time_and_cells_without_depth_are_counted(tmp_path):
    written = street(tmp_path)
    read = data.load("street", tmp_path)
    np.testing.assert_array_equal(read.depth, written.astype(np.float32))
    assert read.images.shape == (16, 12, 20, 3)
    np.testing.assert_array_equal(read.folds[:12], [0, 0, 0, 0, -1, 1, 1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(np.flatnonzero(read.test), [15])
    told = read.describe()
    counted = {key: told[key] for key in ("cells_without_depth", "scenes_without_depth", "train_scenes")}
    assert counted == {"cells_without_depth": 16, "scenes_without_depth": 1, "train_scenes": 11}


@pytest.mark.parametrize(
    "changed,wanted",
    [
        ({"ids": np.array(["street_0"])}, "which is damaged"),
        ({"box_wide": np.array([0, 0, 20])}, "which is damaged"),
        ({"depth_wide": np.full((16, 3, 5), -1.0)}, "must be positive metres, or NaN .*; got 240 other values"),
        ({"depth_wide": np.full((16, 3, 5), np.inf)}, "must be positive metres"),
        ({"depth_wide": np.full((16, 3, 5), np.nan)}, "must have scenes with depth"),
    ],
)
def test_arrays_that_make_no_scenes_are_refused(changed, wanted, tmp_path):
    street(tmp_path, **changed)
    with pytest.raises(ValueError, match=wanted):
        data.load("street", tmp_path)


@pytest.mark.parametrize("name", ["street_depth.npz", "street_images.zip"])
def test_truncated_and_missing_files_name_the_source(name, tmp_path):
    street(tmp_path)
    path = tmp_path / "depth" / name
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match="which is damaged.*KITTI"):
        data.load("street", tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match=f"without depth/{name}.*"):
        data.load("street", tmp_path)


def test_unknown_sets_are_refused():
    with pytest.raises(ValueError, match="set must be one of kitchen"):
        data.load("bathroom", None)


def make3d(folder):
    """Write three training scenes and one test scene in the published layout."""
    laser = np.random.default_rng(1).uniform(1, 80, (4, 55, 305, 4))
    laser[0, 0, 1, 3] = 0  # the nearest to the first cell
    for i, place in enumerate(("Train400", "Train400", "Train400", "Test134")):
        pictures, depths = ("Train400Img" if i < 3 else place), f"{place}Depth"
        for part in (pictures, depths):
            (folder / "make3d" / part).mkdir(parents=True, exist_ok=True)
        (folder / "make3d" / pictures / f"img-math{i}.jpg").write_bytes(picture(i, 60, 40))
        savemat(folder / "make3d" / depths / f"depth_sph_corr-math{i}.mat", {"Position3DGrid": laser[i]})
    return laser


def test_the_published_layout_of_make3d_is_read(tmp_path):
    laser = make3d(tmp_path)
    read = data.load("make3d", tmp_path)
    assert read.ids == ["math0", "math1", "math2", "math3"]
    assert read.depth.shape == (4, 107, 86) and read.images.shape == (4, 428, 344, 3)
    np.testing.assert_array_equal(read.test, [False, False, False, True])
    assert sorted(read.folds.tolist()) == [-1, 0, 1, 2]
    for row, column in ((1, 0), (50, 40), (106, 85)):
        near = round((row + 0.5) * 55 / 107 - 0.5), round((column + 0.5) * 305 / 86 - 0.5)
        assert read.depth[2, row, column] == pytest.approx(laser[2][(*near, 3)])
    assert np.isnan(read.depth[0, 0, 0]) and np.isfinite(read.depth[1:]).all()
    (tmp_path / "make3d" / "Test134Depth" / "depth_sph_corr-math3.mat").write_bytes(b"MATLAB")
    with pytest.raises(ValueError, match="which is damaged.*Make3D Range Image Data"):
        data.load("make3d", tmp_path)


def test_without_make3d_the_error_says_where_it_is(tmp_path):
    for directory in (None, tmp_path):
        with pytest.raises(ValueError, match="Make3D Range Image Data"):
            data.load("make3d", directory)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("street")
    street(folder)
    return data.load("street", folder)


def test_there_are_273_features_and_windows_are_means(few):
    found = patch_features(few)
    assert found.shape == (16, 3, 5, 273) and found.dtype == np.float32 and np.isfinite(found).all()
    np.testing.assert_array_equal(found[0, :, 0, -1], [1, 0, -1])
    filtered = features._filtered(few.images[2])
    assert len(filtered) == 17
    cell = (slice(None), slice(4, 8), slice(8, 12))
    inside = filtered[cell].astype(np.float64)
    own = found[2, 1, 2, :34]
    np.testing.assert_allclose(own[:3], inside[:3].mean((1, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(own[3:17], np.sqrt((inside[3:] ** 2).mean((1, 2))), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(own[17:20], inside[:3].std((1, 2)), rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(own[20:], (inside[3:] ** 4).mean((1, 2)) ** 0.25, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[2, 0, :, 238:272], found[2, :1, :, :34].mean(1).repeat(5, 0), rtol=1e-5)


def test_filters_of_a_slope_see_its_direction():
    image = np.broadcast_to(np.arange(40, dtype=np.float32)[None, :, None], (40, 40, 3)).astype(np.uint8)
    filtered = features._filtered(image)[:, 20, 20]
    np.testing.assert_allclose(filtered[1:3], 0, atol=1e-6)  # gray has no color
    np.testing.assert_allclose(filtered[11:], np.cos(np.arange(6) * np.pi / 6) / 255, atol=1e-5)


def test_regressions_do_not_see_the_scene_that_they_predict(few):
    features = patch_features(few)
    begin = regression.BOOSTING | {"max_iter": 5, "min_samples_leaf": 2}
    drawn = regression.draw_cells(few, 150, 0)
    regression.standardize(features, drawn)
    first = regression.regress(few, features, drawn, begin, 0, trials=1)
    other = few.depth.copy()
    other[few.folds == 1] *= 7
    changed = data.Scenes(few.name, few.ids, few.images, other, few.folds, few.test)
    again = regression.regress(changed, features, drawn, begin, 0, trials=1)
    for name in ("ridge", "boosting", "boosting, filtered"):
        for fold, alike in ((1, True), (0, False)):
            a, b = (found.of[name][few.folds == fold] for found in (first, again))
            assert np.allclose(a, b, rtol=1e-4, atol=1e-4) == alike
    assert [trial["method"] for trial in first.trials] == list(first.of)


def test_the_second_stage_sees_the_predictions_around():
    maps = np.random.default_rng(0).standard_normal((2, 30, 40)).astype(np.float32)
    seen = regression.around(maps)
    assert seen.shape == (2, 30, 40, 1 + len(regression.AROUND) + 3 + 2 + 2)
    for k, (i, j) in enumerate(regression.AROUND):
        assert seen[1, 14, 20, 1 + k] == maps[1, 14 + i, 20 + j] - maps[1, 14, 20]
    np.testing.assert_allclose(seen[0, 10, 9, -7], maps[0, 8:13, 7:12].mean(), rtol=1e-4)
    np.testing.assert_allclose(seen[0, 3, :, -4], maps[0, 3].mean(), rtol=1e-4)


@pytest.mark.parametrize("kind", ["gaussian", "median", "total variation"])
def test_filters_smooth_each_map_by_itself(kind):
    noisy = np.random.default_rng(0).standard_normal((2, 20, 20)).astype(np.float32)
    noisy[1] += 100
    smoothed = regression.smooth(noisy, kind, 8.0)
    assert smoothed.shape == noisy.shape and (smoothed.std(axis=(1, 2)) < 0.9 * noisy.std(axis=(1, 2))).all()
    np.testing.assert_allclose(smoothed.mean(axis=(1, 2)), noisy.mean(axis=(1, 2)), atol=0.1)


@pytest.mark.parametrize("bands", [1, 2, 4])
def test_bands_of_rows_have_edges_and_pairs_of_their_own(bands):
    rows, columns = 4, 3
    grid = models.Grid(rows, columns, bands)
    graph = grid.graph
    values = np.arange(2 * rows * columns, dtype=np.float32).reshape(2, rows, columns)
    values[1, 0, 0] = np.nan
    sample = grid.sample(values, values + 100, np.random.default_rng(0))
    assert {k: (a, b) for k, a, b in graph.edge_types} == sample.ends
    assert len(sample.ends) == (2 * bands if bands < rows else 2 * rows - 1) + (bands - 1) * (bands < rows)
    expected = {k: set() for k in sample.ends}
    half = graph.num_edges // 2
    for a, b, k in zip(*(np.asarray(x)[:half] for x in (graph.senders, graph.receivers, graph.edge_type)), strict=True):
        pairs = [tuple(values[i].ravel()[[a, b]].tolist()) for i in range(2)]
        expected[int(k)] |= {pair for pair in pairs if not np.isnan(pair).any()}
    found = {k: set(zip(*(x.tolist() for x in pair), strict=True)) for k, pair in sample.edges.items()}
    assert found == expected
    for v, (own, observations) in sample.observed.items():
        assert len(own) == 2 * np.sum(grid.band == v) * columns - (v == 0)
        np.testing.assert_array_equal(observations, own + 100)


def test_a_band_without_depth_learns_from_all_rows():
    values = np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    values[:, :2] = np.nan
    sample = models.Grid(6, 4, 3).sample(values, values, np.random.default_rng(0))
    known = np.arange(8.0, 24).tolist()
    assert sorted(sample.observed[0][0].tolist()) == known == sorted(sample.observed[0][1].tolist())
    assert sorted(sample.observed[1][0].tolist()) == known[:8]
    assert len(sample.edges[0][0]) == 12 and len(sample.edges[1][0]) == 6  # of all rows, and of two


def test_discrete_answers_lie_between_the_centers_of_bins():
    truth = np.linspace(0, 1, 400, dtype=np.float32).reshape(1, 20, 20)
    observations = truth + 0.02 * np.random.default_rng(0).standard_normal(truth.shape).astype(np.float32)
    setting = models.Setting(power=1.0, obs_ridge=0.1, bins=10)
    grid = models.Grid(20, 20)
    learned = models.learn_discrete(grid.sample(truth, observations, np.random.default_rng(1)), setting)
    found = models.estimate(learned, grid.graph, observations, np.linspace(0, 1, 201, dtype=np.float32), setting)
    errors = np.abs(found[:, 0] - truth)
    assert errors.mean() < 0.9 * 0.25 / setting.bins  # what an answer at the center of the right bin has


def test_an_image_is_smoothed_and_intervals_hold_the_truth():
    rng = np.random.default_rng(3)
    i, j = np.mgrid[:10, :12]
    truth = np.stack([np.where(i + k > 8, 0.2, 0.6) + 0.01 * j for k in range(12)]).astype(np.float32)
    observations = (truth + 0.1 * rng.standard_normal(truth.shape)).astype(np.float32)
    grid = models.Grid(10, 12)
    sample = grid.sample(truth[:8], observations[:8], rng)
    points = np.linspace(0.2, 0.71, 52, dtype=np.float32)
    for learn, obs_ridge in ((models.learn_kernel, 1e-3), (models.learn_discrete, 1.0)):
        setting = models.Setting(power=1.0, ridge=1e-3, obs_ridge=obs_ridge)
        found = models.estimate(learn(sample, setting), grid.graph, observations[8:], points, setting)
        assert found.shape == (4, 3, 10, 12)
        assert np.abs(found[:, 0] - truth[8:]).mean() < 0.5 * np.abs(observations[8:] - truth[8:]).mean()
        assert (found[:, 1] <= found[:, 0]).all() and (found[:, 0] <= found[:, 2]).all()
    with pytest.raises(ValueError, match="one band"):
        models.learn_discrete(models.Grid(10, 12, 2).sample(truth, observations, rng), setting)


def test_search_keeps_the_best_of_each_option():
    wanted = models.Setting(power=1.0, exponent=0.5, ridge=3e-2)

    def error(setting):
        return sum(getattr(setting, name) != getattr(wanted, name) for name in ("power", "exponent", "ridge"))

    found, trials = models.search("kernel", error)
    assert error(found) == 0 and found.bandwidth == models.Setting().bandwidth
    assert len(trials) == regression.TRIALS


def test_the_headline_has_the_evidence_of_least_error_out_of_fold():
    trials = [
        {"method": run.ON_BOOSTING, "mae": 0.05},
        {"method": run.ON_SECOND, "mae": 0.04},
        {"method": run.ON_BOOSTING, "mae": 0.03},
        {"method": "boosting", "mae": 0.01},
    ]
    assert run.headline(trials) == run.ON_BOOSTING and run.headline(trials[:2]) == run.ON_SECOND


@needs("depth")
def test_quick_run_on_the_kitchen(tmp_path):
    outcome = program("--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "cells have no depth" in outcome.stdout
    written = json.loads((tmp_path / "depth.json").read_text())
    found = {row["method"]: row for row in written["rows"]}
    ours = found[run.ON_BOOSTING]
    assert max(ours["mae"], found["boosting"]["mae"]) < found["constant"]["mae"] and 0.3 < ours["cover"] < 1
    assert written["sets"][0]["cells_without_depth"] > 0
    assert written["sets"][0]["headline"] == run.ON_BOOSTING and "gain" in found["boosting"] and "gain" not in ours
    assert (tmp_path / "depth.png").stat().st_size > 10_000


def test_without_data_one_line_says_where_to_get_them(tmp_path):
    outcome = inside("depth", "--quick", "--out", tmp_path, KBPJAX_DATA="")
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1
    assert "7-Scenes" in outcome.stderr and "Pass --data or set KBPJAX_DATA" in outcome.stderr
