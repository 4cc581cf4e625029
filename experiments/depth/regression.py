"""Regressions of log10 depth, in and out of fold: of single patches, of filtered maps, and of the predictions around.

These predictions are the observations of the graphical models and, by themselves, baselines. Predictions for a training
scene come from regressions that were trained without its fold.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.depth.data import Scenes
from experiments.lib.search import coordinate_search

Options = dict[str, Any]

TRIALS = 14
"""Settings that are tried for each method and set of scenes."""

EXTENSIONS = 1
"""How often the grid of an option is extended at each end, at most."""

BOOSTING = {"max_iter": 150, "max_leaf_nodes": 31, "max_features": 0.3, "min_samples_leaf": 100, "learning_rate": 0.1}
"""Settings that the search begins with; a small share of the features at each split speeds it up and helps."""

SEARCH = {
    "ridge": {"alpha": (100.0, 1000.0, 10000.0)},
    "boosting": {"max_leaf_nodes": (31, 15), "max_features": (0.3, 0.15), "min_samples_leaf": (100, 30)},
    "filter": {"kind": ("gaussian", "median", "total variation"), "strength": (1.0, 2.0, 4.0)},
}
"""Values to try, one option after the other, each with the best of those before."""

AROUND = tuple(
    [(i, j) for i in range(-3, 4) for j in range(-3, 4) if i or j]
    + [(far * i, far * j) for far in (6, 12) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
)
"""Rows and columns between a patch and those whose predictions the second stage sees."""


@dataclasses.dataclass(frozen=True)
class Regressions:
    """Predictions of log10 metres for all cells of all scenes.

    Attributes:
        of: {name: [scene, row, column]}: `ridge` and `boosting` of the patch, `boosting, filtered`, and the `second
            stage` on boosting's predictions around. Of the scenes to learn from out of fold, of others by all of those.
        constant: median of the scenes to learn from.
        chosen: {name: the settings that were best out of fold}.
        trials: all settings tried, with their mean absolute error out of fold.
    """

    of: dict[str, np.ndarray]
    constant: float
    chosen: dict[str, Any]
    trials: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class _Cells:
    """Cells with a depth, drawn at random from the scenes to learn from."""

    features: np.ndarray
    depth: np.ndarray
    folds: np.ndarray

    def without(self, fold: int | None) -> tuple[np.ndarray, np.ndarray]:
        keep = np.ones(len(self.folds), bool) if fold is None else self.folds != fold
        return self.features[keep], self.depth[keep]

    def some(self, step: int) -> "_Cells":
        """Every so many-th cell."""
        return _Cells(self.features[::step], self.depth[::step], self.folds[::step])


def draw_cells(scenes: Scenes, most: int, seed: int) -> np.ndarray:
    """Return the cells to learn from [cell], drawn at random; more do not help, as neighbors are alike."""
    usable = np.flatnonzero(np.isfinite(scenes.depth) & scenes.train[:, None, None])
    return np.sort(np.random.default_rng(seed).choice(usable, min(most, len(usable)), replace=False))


def regress(
    scenes: Scenes,
    features: np.ndarray,
    drawn: np.ndarray,
    start: Options,
    seed: int,
    trials: int,
    given: dict[str, Any] | None = None,
) -> Regressions:
    """Learn all regressions, with settings of least mean absolute error out of fold, and predict all cells.

    Settings of boosting are chosen on a quarter of the cells.

    Args:
        scenes: the scenes.
        features: of their cells [scene, row, column, feature], standardized.
        drawn: the cells to learn from [cell].
        start: settings of gradient boosting that the search begins with.
        seed: of boosting.
        trials: number of settings to try for each regression.
        given: {name: settings} of an earlier run; None: they are searched.
    """
    log_depth = np.log10(scenes.depth)
    fold_of = np.broadcast_to(scenes.folds[:, None, None], log_depth.shape).ravel()
    of, chosen, tried = {}, {}, []

    def learn(
        name: str, kind: Callable[[Options], Any], begin: Options, space: str, seen: np.ndarray, step: int
    ) -> None:
        cells = _Cells(seen.reshape(-1, seen.shape[-1])[drawn], log_depth.ravel()[drawn], fold_of[drawn])
        some = cells.some(step)
        choose(name, space, begin, lambda options: _error(kind(options), some))
        of[name] = _predict(kind(chosen[name]), cells, scenes, seen)

    def choose(name: str, space: str, begin: Options, error: Callable[[Options], float]) -> None:
        if given is not None:
            chosen[name] = given[name]
            return
        chosen[name], found = coordinate_search(begin, SEARCH[space], error, budget=trials, extensions=EXTENSIONS)
        tried.extend({"method": name, "option": one.option, "value": str(one.value), "mae": one.loss} for one in found)

    booster = lambda options: _booster(**options, seed=seed)
    learn("ridge", lambda options: _ridge(**options), {"alpha": 1000.0}, "ridge", features, 1)
    learn("boosting", booster, start, "boosting", features, 4)
    some = np.flatnonzero(scenes.train)[::4]
    of_filter = lambda options: float(np.nanmean(np.abs(smooth(of["boosting"][some], **options) - log_depth[some])))
    choose("boosting, filtered", "filter", {"kind": "gaussian", "strength": 1.0}, of_filter)
    of["boosting, filtered"] = smooth(of["boosting"], **chosen["boosting, filtered"])
    seen = around(of["boosting"])
    standardize(seen, drawn)
    learn("second stage", booster, start, "boosting", seen, 4)
    return Regressions(of, float(np.median(log_depth.ravel()[drawn])), {"learned_cells": len(drawn), **chosen}, tried)


def smooth(maps: np.ndarray, kind: str, strength: float) -> np.ndarray:
    """Smooth maps of log10 depth [scene, row, column].

    Args:
        maps: the maps.
        kind: `gaussian`, of standard deviation `strength` cells; `median`, over 2 `strength` + 1 cells in each
            direction; or `total variation`, of weight 0.03 `strength`.
        strength: see `kind`.
    """
    ndimage: Any = importlib.import_module("scipy.ndimage")
    if kind == "gaussian":
        return ndimage.gaussian_filter(maps, (0, strength, strength), mode="nearest")
    if kind == "median":
        size = 2 * max(1, round(strength)) + 1
        return ndimage.median_filter(maps, (1, size, size), mode="nearest")
    from skimage.restoration import denoise_tv_chambolle

    return np.stack([denoise_tv_chambolle(one, weight=0.03 * strength) for one in maps])


def around(maps: np.ndarray) -> np.ndarray:
    """Return what the second stage sees of each cell [scene, row, column, feature].

    These are the predictions for the cells `AROUND`, relative to its own; its own; means of windows of 5, 11 and 21
    cells; means of its row and of the map; and the places of its row and column.
    """
    ndimage: Any = importlib.import_module("scipy.ndimage")
    rows, columns = maps.shape[1:]
    reach = max(max(pair) for pair in AROUND)
    padded = np.pad(maps, ((0, 0), (reach, reach), (reach, reach)), mode="edge")
    moved = [padded[:, reach + i : reach + i + rows, reach + j : reach + j + columns] - maps for i, j in AROUND]
    windows = [ndimage.uniform_filter(maps, (0, size, size), mode="nearest") for size in (5, 11, 21)]
    whole = [np.broadcast_to(maps.mean(axes, keepdims=True), maps.shape) for axes in ((2,), (1, 2))]
    places = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    own = [np.broadcast_to(place, maps.shape) for place in places]
    return np.stack([maps, *moved, *windows, *whole, *own], axis=-1).astype(np.float32)


def standardize(features: np.ndarray, drawn: np.ndarray) -> None:
    """Standardize features [scene, row, column, feature] in place by those of the drawn cells."""
    flat = features.reshape(-1, features.shape[-1])
    mean, deviation = flat[drawn].mean(0), flat[drawn].std(0) + 1e-6
    np.subtract(flat, mean, out=flat)
    np.divide(flat, deviation, out=flat)


def _ridge(alpha: float) -> Any:
    from sklearn.linear_model import Ridge

    return Ridge(alpha=alpha, solver="cholesky")


def _booster(seed: int, **kind: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    settings: Any = {**kind, "l2_regularization": 10.0, "early_stopping": False, "random_state": seed}
    return HistGradientBoostingRegressor(**settings | {"max_features": min(1.0, settings["max_features"])})


def _error(model: Any, cells: _Cells) -> float:
    """Return the mean absolute error on held-out folds."""

    def of_fold(fold: int) -> float:
        held = cells.folds == fold
        return float(np.abs(model.fit(*cells.without(fold)).predict(cells.features[held]) - cells.depth[held]).mean())

    return float(np.mean([of_fold(fold) for fold in np.unique(cells.folds)]))


def _predict(model: Any, cells: _Cells, scenes: Scenes, features: np.ndarray) -> np.ndarray:
    """Predict the scenes of each fold from the other folds, and all other scenes from all folds."""
    found = np.empty(features.shape[:-1], np.float32)
    for fold in (*np.unique(cells.folds), None):
        model.fit(*cells.without(fold))
        for scene in np.flatnonzero(scenes.folds == fold if fold is not None else ~scenes.train):
            cell = features[scene].reshape(-1, features.shape[-1])
            found[scene] = model.predict(cell).reshape(found.shape[1:])
    return found
