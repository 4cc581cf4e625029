"""Parts of the benchmarks of series and of accelerators, against plain formulas."""

import numpy as np

from benchmarks import device, series


def test_the_score_of_weighted_points_is_that_of_an_ensemble():
    rng = np.random.default_rng(0)
    truth, points = rng.normal(size=(2, 3)), rng.normal(size=5)
    drawn = rng.integers(5, size=(6, 40))
    weights = np.stack([np.bincount(row, minlength=5) / 40 for row in drawn]).reshape(2, 3, 5)
    expected = series.ensemble_crps(points[drawn], truth.ravel()).reshape(2, 3).mean(axis=1)
    np.testing.assert_allclose(series.crps_of(points, weights, truth), expected)
    one = series.ensemble_crps(np.array([[0.0, 2.0]]), np.array([1.0]))
    np.testing.assert_allclose(one, 0.5)  # E|X - y| - E|X - X'| / 2 = 1 - 1 / 2


def test_the_difference_is_to_the_best_baseline():
    ours, alone = np.array([1.0, 2.0]), np.array([3.0, 6.0])
    found = series.compared(ours, alone, {"weak": alone + 1, "strong": ours + np.array([0.5, 1.5])})
    assert found["ahead"] == 1.0 and found["ahead, se"] == 0.5 and found["messages add"] == 3.0


def test_a_forest_on_windows_finds_a_state_that_its_window_shows(monkeypatch):
    monkeypatch.setattr(series, "TREES", 40)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 20))
    later = np.concatenate([np.full((40, 1), np.nan), x[:, :-1]], axis=1)  # the observation at t is the state at t - 1
    smoother, filtered = (series.Forest(x, later, ahead).crps(later[:4], x[:4]).mean() for ahead in (True, False))
    assert smoother < 0.15 < 0.4 < filtered


def test_parts_of_the_run_on_a_device():
    (row,) = device.messages(4, quick=True)
    assert row["messages"] == 48 and row["G_messages_per_s"] > 0 and "failed" not in row
    (row,) = device.copy(quick=True)
    assert row["GB_per_s"] > 0
    assert len(device.parts(quick=False, largest=1e6)) == 3 + 3  # grids of up to a million messages
