"""The camera in the room: what it sees against the geometry of a cube, baselines against all paths, and a quick run."""

import itertools
import json
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments.orientation import baselines, data, models, rendering
from experiments.orientation import run as orientation
from experiments.orientation.rendering import degrees_between, rotations_of
from tests.programs import ROOT, experiment

SIDE = 40
LOOKS = {"front": (0, 0), "back": (180, 0), "left": (90, 0), "right": (-90, 0), "ceiling": (0, 90), "floor": (0, -90)}


def look(yaw, pitch=0.0, roll=0.0):
    """Return one rotation [1, 3, 3] from angles in degrees."""
    return rotations_of(*(np.deg2rad(np.array([float(angle)])) for angle in (yaw, pitch, roll)))


def random_rotations(rng, count):
    q, _ = np.linalg.qr(rng.normal(size=(count, 3, 3)))
    return q * np.linalg.det(q)[:, None, None]


def world_of(wall, row, column):
    """Return the points of the room [.., 3] at places on a wall, as shares from the top and from the left."""
    down, across, one = 2 * row - 1, 2 * column - 1, np.ones_like(row)
    points = {
        "front": (one, -across, -down),
        "back": (-one, across, -down),
        "left": (across, one, -down),
        "right": (-across, -one, -down),
        "ceiling": (down, -across, one),
        "floor": (-down, -across, -one),
    }
    return np.stack(points[wall], axis=-1)


def paint_walls(gray):
    """Return a room whose walls show a function of the place in the world."""
    row, column = np.meshgrid(*[(np.arange(SIDE) + 0.5) / SIDE] * 2, indexing="ij")
    return rendering.Room(np.stack([gray(world_of(wall, row, column)) for wall in rendering.NORMALS]))


@pytest.mark.parametrize("wall", rendering.NORMALS)
def test_each_wall_is_where_its_name_says(wall):
    room = rendering.Room(np.arange(6.0)[:, None, None] * np.ones((1, 4, 4)))
    rotation, camera = look(*LOOKS[wall]), rendering.Camera()
    np.testing.assert_allclose(room.frames(camera, rotation), list(rendering.NORMALS).index(wall))
    np.testing.assert_allclose(room.share(camera, rotation, (wall,)), 1)
    np.testing.assert_allclose(rotation[0, :, 0], rendering.NORMALS[wall], atol=1e-12)


def test_pixels_see_what_the_ray_through_them_meets():
    def gray(x):
        return 100 + x @ np.array([20.0, 30.0, 40.0])  # interpolation is exact

    room, camera = paint_walls(gray), rendering.Camera(height=7, width=10, field=70, rays=1)
    rotations = random_rotations(np.random.default_rng(0), 50)
    focal = 5 / np.tan(np.deg2rad(35))
    for i, j in itertools.product(range(7), range(10)):
        ray = rotations @ np.array([focal, 4.5 - j, 3.0 - i])  # forward, to the left, up
        place = ray / np.max(np.abs(ray), axis=1, keepdims=True)
        inside = np.sort(np.abs(place), axis=1)[:, 1] < 1 - 1 / SIDE  # beyond the last center nothing is interpolated
        seen = room.frames(camera, rotations)[:, i, j]
        np.testing.assert_allclose(seen[inside], gray(place[inside]), atol=1e-9)
        assert inside.mean() > 0.8


def test_pixels_are_means_of_their_rays():
    room, rotation = rendering.Room(np.random.default_rng(0).uniform(0, 255, (6, 32, 32))), look(30, 10, 5)
    fine = room.frames(rendering.Camera(height=36, width=48, rays=1), rotation)
    coarse = room.frames(rendering.Camera(height=12, width=16, rays=3), rotation)
    np.testing.assert_allclose(coarse, fine.reshape(1, 12, 3, 16, 3).mean(axis=(2, 4)))


def test_turning_the_camera_moves_the_picture():
    room = rendering.Room(np.random.default_rng(0).uniform(0, 255, (6, 32, 32)))
    camera = rendering.Camera(height=12, width=12)
    upright = room.frames(camera, look(20, 10))[0]
    np.testing.assert_allclose(room.frames(camera, look(20, 10, 90))[0], np.rot90(upright), atol=1e-6)
    room = paint_walls(lambda x: 255.0 * (x[..., 1] > 0))  # bright on the left
    brightness = [room.frames(camera, look(yaw)).mean() for yaw in (-20, 0, 20)]
    assert brightness[0] < brightness[1] < brightness[2]
    room = paint_walls(lambda x: 255.0 * (x[..., 2] > 0))  # bright above
    brightness = [room.frames(camera, look(0, pitch)).mean() for pitch in (-20, 0, 20)]
    assert brightness[0] < brightness[1] < brightness[2]


def test_only_the_repeated_walls_look_alike_after_half_a_turn():
    room, camera = rendering.Room.of_photographs(), rendering.Camera()
    there = np.concatenate([look(5, 3, 2), look(45), look(90), look(140)])
    share = room.share(camera, there)
    np.testing.assert_allclose(share[[0, 2]], [1, 0])
    assert 0.4 < share[1] < 0.6
    change = room.frames(camera, look(180) @ there) - room.frames(camera, there)
    change = np.sqrt(np.mean(change**2, axis=(1, 2)))
    assert change[0] < 1e-9
    assert change[1:].min() > 40  # of 255, twice the noise of a pixel


def test_panorama_has_the_front_in_the_middle_and_the_left_wall_on_its_left():
    flat = rendering.Room(np.arange(6.0)[:, None, None] * np.ones((1, 4, 4))).unfolded(72)
    names = list(rendering.NORMALS)
    seen = [names[round(flat[row, column])] for row, column in ((18, 36), (18, 18), (18, 54), (18, 0), (0, 9), (35, 9))]
    assert seen == ["front", "left", "right", "back", "ceiling", "floor"]


def test_pictures_are_reduced_by_averages_of_areas():
    picture = np.random.default_rng(0).uniform(0, 255, (8, 14))
    np.testing.assert_allclose(rendering.square(picture, 4), picture[:, 3:11].reshape(4, 2, 4, 2).mean(axis=(1, 3)))
    np.testing.assert_allclose(rendering.square(picture, 3).mean(), picture[:, 3:11].mean())


def test_distances_are_angles_of_turns():
    rng = np.random.default_rng(0)
    x, angles = random_rotations(rng, 6), np.array([0.0, 1e-4, 10.0, 90.0, 179.0, 180.0])
    turns = np.concatenate([look(0, 0, angle) for angle in angles])
    np.testing.assert_allclose(degrees_between(x, x @ turns), angles, atol=1e-6)
    assert np.all(np.linalg.det(look(50, 20, 10)) > 0)


def test_motion_is_smooth_and_goes_all_around():
    path = data.walk(np.random.default_rng(0), 50, 60)
    np.testing.assert_allclose(path @ path.swapaxes(-1, -2), np.broadcast_to(np.eye(3), path.shape), atol=1e-9)
    steps = degrees_between(path[:, 1:], path[:, :-1])
    assert 2 < steps.mean() < 8 and steps.max() < 25
    assert np.histogram(np.arctan2(path[..., 1, 0], path[..., 0, 0]), bins=4)[0].min() > 0.1 * path[..., 0, 0].size


def test_features_are_principal_components_whatever_the_brightness():
    rng = np.random.default_rng(0)
    train, test = (
        data.Frames(np.zeros((m, 5, 3, 3)), rng.normal(size=(m, 5, 8)), np.zeros((m, 5), bool)) for m in (6, 2)
    )
    found = data.features_of(train, test, 3)
    plain = [frames.pixels - frames.pixels.mean(axis=-1, keepdims=True) for frames in (train, test)]
    rows = [(x / np.linalg.norm(x, axis=-1, keepdims=True)).reshape(-1, 8) for x in plain]
    _, _, axes = np.linalg.svd(rows[0] - rows[0].mean(axis=0))
    for features, expected in zip(found, rows):
        expected = (expected - rows[0].mean(axis=0)) @ axes[:3].T
        np.testing.assert_allclose(abs(features.reshape(expected.shape)), abs(expected), atol=1e-12)
    brighter = data.Frames(test.rotations, 3 * test.pixels + 40, test.ambiguous)
    np.testing.assert_allclose(data.features_of(train, brighter, 3)[1], found[1], atol=1e-12)


@pytest.mark.parametrize("best_path", [True, False])
def test_linked_neighbors_agree_with_all_paths(best_path):
    rng = np.random.default_rng(0)
    rotations, motion, sharpness = rotations_of(*rng.uniform(-0.3, 0.3, (3, 5))), 0.3, 0.7
    seen, y = rng.normal(size=(5, 2)), rng.normal(size=(1, 4, 2))
    arguments = (np.float32(array) for array in (seen, rotations, y, motion, sharpness))
    found = baselines._link(*map(jnp.asarray, arguments), count=5, best_path=best_path)[0]
    local = -sharpness * ((y[0][:, None] - seen[None]) ** 2).sum(axis=-1)
    moves = -((np.deg2rad(degrees_between(rotations[:, None], rotations[None])) / motion) ** 2) / 2
    paths = np.array(list(itertools.product(range(5), repeat=4)))
    logs = local[np.arange(4), paths].sum(axis=1) + moves[paths[:, 1:], paths[:, :-1]].sum(axis=1)
    if best_path:
        expected = rotations[paths[np.argmax(logs)]]
    else:  # all candidates are close to each other: the mean near the mode is the mean
        weights = np.exp(logs - logs.max())
        weights = np.stack([np.bincount(column, weights, 5) for column in paths.T])
        near = degrees_between(rotations[np.argmax(weights, axis=1)][:, None], rotations[None]) <= models.NEAR
        left, _, right = np.linalg.svd(np.einsum("tp,pij->tij", weights * near, rotations))
        expected = left @ right
    np.testing.assert_allclose(degrees_between(found, expected), 0, atol=0.05)


def test_summary_takes_trajectories_as_draws():
    errors = np.array([[1.0], [5.0], [12.0]])
    found = orientation.summary(errors, np.ones_like(errors, bool))
    assert found["degrees"] == 6 and found["median"] == 5 and found["below10"] == pytest.approx(2 / 3)
    assert found["stderr"] == pytest.approx(errors.std(ddof=1) / np.sqrt(3))
    repeated = orientation.summary(np.repeat(errors, 7, axis=1), np.ones((3, 7), bool))
    assert repeated["stderr"] == pytest.approx(found["stderr"])  # not a seventh of the variance
    assert np.isnan(orientation.summary(errors, np.zeros_like(errors, bool))["degrees"])


program = partial(experiment, "orientation")


def degrees(rows, frames):
    return {row["method"]: row["degrees"] for row in rows if row["frames"] == frames}


def test_quick_run_shows_what_the_chain_is_for(tmp_path):
    outcome = program("--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "orientation.json").read_text())["rows"]
    found = degrees(rows, "ambiguous")
    assert all(0 < error < 180 for error in found.values())
    assert found["kernel BP, trace, no chain"] > 45  # two answers half a turn apart
    assert found["kernel BP, trace"] < found["kernel BP, trace, no chain"] / 2
    (same,) = (row for row in rows if row["method"] == "kernel BP, trace" and row["frames"] == "all")
    assert same["ours_ahead"] == same["ours_ahead_stderr"] == 0
    ahead = {row["method"]: row["ours_ahead"] for row in rows if row["frames"] == "ambiguous"}
    assert ahead["regression"] == pytest.approx(found["regression"] - found["kernel BP, trace"], abs=1e-3)
    for name in ("orientation.png", "orientation_beliefs.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width > 800 and picture.height > 400
    assert "neighbors, Viterbi" in outcome.stdout


def test_committed_results_name_every_option_that_was_searched():
    results = json.loads((ROOT / "experiments/orientation/results/orientation.json").read_text())
    assert not results["config"]["quick"]
    tried = {(trial["method"], trial["option"]) for trial in results["searches"]}
    for name, options in results["chosen"].items():
        assert {option for method, option in tried if method == name} == set(options)


@pytest.mark.parametrize(
    ("arguments", "word"), [(("--seeds", 0), "--seeds"), (("--noise", "nan"), "--noise"), (("--kernels", "x"), "trace")]
)
def test_bad_arguments_give_status_2(tmp_path, arguments, word, capsys):
    assert orientation.main(["--quick", "--out", str(tmp_path), *map(str, arguments)]) == 2
    assert word in capsys.readouterr().err
