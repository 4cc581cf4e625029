"""Regression of log10 depth from the features of a single patch: ridge and gradient boosting, in and out of fold.

These predictions are the observations of the graphical models and, by themselves, baselines. Predictions for a training
scene come from regressions that were trained without its fold.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.depth.data import Scenes

BOOSTING = (
    {"max_iter": 150, "learning_rate": 0.1, "max_leaf_nodes": 31, "max_features": 0.3, "min_samples_leaf": 100},
    {"max_iter": 200, "learning_rate": 0.1, "max_leaf_nodes": 15, "max_features": 0.2, "min_samples_leaf": 200},
)
"""Settings of gradient boosting to choose from; a small share of the features at each split speeds it up and helps."""
ALPHAS = (100.0, 1000.0, 10000.0)
"""Penalties of ridge regression to choose from, on standardized features."""


@dataclasses.dataclass(frozen=True)
class Regressions:
    """Predictions of log10 metres for all cells of all scenes.

    Attributes:
        ridge: [scene, row, column]; of the scenes to learn from out of fold, of others by all scenes to learn from.
        boosting: the same of gradient boosting.
        constant: median of the scenes to learn from.
        chosen: the settings that were best out of fold.
    """

    ridge: np.ndarray
    boosting: np.ndarray
    constant: float
    chosen: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Cells:
    """Cells with a depth, drawn at random from the scenes to learn from."""

    features: np.ndarray
    depth: np.ndarray
    folds: np.ndarray

    def without(self, fold: int | None) -> tuple[np.ndarray, np.ndarray]:
        keep = np.ones(len(self.folds), bool) if fold is None else self.folds != fold
        return self.features[keep], self.depth[keep]


def regress(scenes: Scenes, features: np.ndarray, most: int, candidates: Sequence[Any], seed: int) -> Regressions:
    """Learn both regressions, with settings of least mean absolute error out of fold, and predict all cells.

    Args:
        scenes: the scenes.
        features: of their cells [scene, row, column, feature]; they are standardized in place.
        most: cells to learn from, drawn at random; more do not help, as neighbors are alike.
        candidates: settings of gradient boosting to choose from.
        seed: of the draw.
    """
    log_depth = np.log10(scenes.depth)
    usable = np.isfinite(log_depth) & scenes.train[:, None, None]
    count = min(most, int(usable.sum()))
    drawn = np.sort(np.random.default_rng(seed).choice(np.flatnonzero(usable), count, replace=False))
    flat = features.reshape(-1, features.shape[-1])
    mean, deviation = flat[drawn].mean(0), flat[drawn].std(0) + 1e-6
    np.subtract(flat, mean, out=flat)
    np.divide(flat, deviation, out=flat)
    fold_of = np.broadcast_to(scenes.folds[:, None, None], log_depth.shape).ravel()
    cells = _Cells(flat[drawn], log_depth.ravel()[drawn], fold_of[drawn])
    ridges, boosters = [_ridge(alpha) for alpha in ALPHAS], [_booster(**kind, seed=seed) for kind in candidates]
    alpha = _best(ridges, cells)
    kind = _best(boosters, cells)
    of_ridge, of_boosting = (_predict(model, cells, scenes, features) for model in (ridges[alpha], boosters[kind]))
    chosen = {"ridge_alpha": ALPHAS[alpha], **{f"boosting_{key}": value for key, value in candidates[kind].items()}}
    return Regressions(of_ridge, of_boosting, float(np.median(cells.depth)), {"learned_cells": count, **chosen})


def _ridge(alpha: float) -> Any:
    from sklearn.linear_model import Ridge

    return Ridge(alpha=alpha, solver="cholesky")


def _booster(seed: int, **kind: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    settings: Any = {**kind, "l2_regularization": 10.0, "early_stopping": False, "random_state": seed}
    return HistGradientBoostingRegressor(**settings)


def _best(models: list[Any], cells: _Cells) -> int:
    """Return the place of the model whose mean absolute error on held-out folds is least."""
    if len(models) == 1:
        return 0

    def error(model: Any, fold: int) -> float:
        held = cells.folds == fold
        return float(np.abs(model.fit(*cells.without(fold)).predict(cells.features[held]) - cells.depth[held]).mean())

    return int(np.argmin([np.mean([error(model, fold) for fold in np.unique(cells.folds)]) for model in models]))


def _predict(model: Any, cells: _Cells, scenes: Scenes, features: np.ndarray) -> np.ndarray:
    """Predict the scenes of each fold from the other folds, and all other scenes from all folds."""
    found = np.empty(features.shape[:-1], np.float32)
    for fold in (*np.unique(cells.folds), None):
        model.fit(*cells.without(fold))
        for scene in np.flatnonzero(scenes.folds == fold if fold is not None else ~scenes.train):
            cell = features[scene].reshape(-1, features.shape[-1])
            found[scene] = model.predict(cell).reshape(found.shape[1:])
    return found
