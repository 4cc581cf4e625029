"""Features of the patches of an image."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.depth.data import CELL, Scenes

LAWS = ((0.25, 0.5, 0.25), (-0.5, 0.0, 0.5), (-0.25, 0.5, -0.25))
"""Level, edge and spot: their outer products are the nine masks."""


def patch_features(scenes: Scenes, progress: Callable[[Any], Any] = iter) -> np.ndarray:
    """Describe every patch by 273 numbers, near in kind and number to those of the paper and of Make3D.

    Seventeen filters: the nine 3 x 3 Laws masks of the brightness, the brightness average of the two color
    differences (Cb, Cr), and the derivative of a Gaussian of one pixel in six directions. Of each filter's output two
    numbers over a window: the root of its mean square and the fourth root of its mean fourth power; of the three
    averages the mean and the standard deviation. That is 34 numbers; they are taken
    - of the patch at three scales: windows of 1, 3 and 9 cells (102);
    - of the four windows of 3 cells beside it, above and below, minus those of its own (136);
    - of its row of cells (34);
    - and the height of the row, -1 .. 1 (1).

    Args:
        scenes: the scenes.
        progress: wraps the iteration over images.

    Returns:
        Features [scene, row, column, 273], float32.
    """
    return np.stack([_of_image(image) for image in progress(scenes.images)])


def _of_image(image: np.ndarray) -> np.ndarray:
    cells = [_statistics(_filtered(image), scale) for scale in (1, 3, 9)]
    rows, columns, width = cells[0].shape
    own = cells[1]
    padded = np.pad(own, ((3, 3), (3, 3), (0, 0)), mode="edge")
    moves = ((0, 3), (6, 3), (3, 0), (3, 6))
    beside = [padded[i : i + rows, j : j + columns] - own for i, j in moves]
    row = np.broadcast_to(cells[0].mean(1, keepdims=True), (rows, columns, width))
    height = np.broadcast_to(np.linspace(1, -1, rows, dtype=np.float32)[:, None, None], (rows, columns, 1))
    return np.concatenate([*cells, *beside, row, height], axis=-1, dtype=np.float32)


def _filtered(image: np.ndarray) -> np.ndarray:
    """Return the outputs of the filters [filter, row, column], the three averages first."""
    ndimage: Any = importlib.import_module("scipy.ndimage")
    red, green, blue = np.moveaxis(image.astype(np.float32) / 255, -1, 0)
    bright = 0.299 * red + 0.587 * green + 0.114 * blue
    level, edge, spot = (np.array(mask, np.float32) for mask in LAWS)
    masks = [np.outer(a, b) for a in (level, edge, spot) for b in (level, edge, spot)]
    laws = [ndimage.correlate(bright, mask, mode="nearest") for mask in masks]
    colors = [ndimage.correlate(c - bright, masks[0], mode="nearest") for c in (blue, red)]
    across = [ndimage.gaussian_filter(bright, 1.0, order=order, mode="nearest") for order in ((0, 1), (1, 0))]
    angles = np.arange(6) * np.pi / 6
    oriented = [np.float32(np.cos(a)) * across[0] + np.float32(np.sin(a)) * across[1] for a in angles]
    return np.stack([laws[0], *colors, *laws[1:], *oriented])


def _statistics(filtered: np.ndarray, scale: int) -> np.ndarray:
    """Return two numbers of each filter over windows of `scale` cells around each cell [row, column, 2 filter]."""
    ndimage: Any = importlib.import_module("scipy.ndimage")

    def window(values: np.ndarray) -> np.ndarray:
        blocks = values.reshape(len(values), values.shape[1] // CELL, CELL, values.shape[2] // CELL, CELL)
        return ndimage.uniform_filter(blocks.mean((2, 4)), (0, scale, scale), mode="nearest")

    mean = window(filtered[:3])
    deviation = np.sqrt(np.maximum(window(filtered[:3] ** 2) - mean**2, 0))
    energy = np.sqrt(np.maximum(window(filtered[3:] ** 2), 0))
    fourth = np.maximum(window(filtered[3:] ** 4), 0) ** 0.25
    return np.moveaxis(np.concatenate([mean, energy, deviation, fourth]), 0, -1)
