"""Scenes: images with a measured depth for each patch of a grid, from depth sensors and laser scanners.

`kitchen`, `tabletop` and `street` are three real sets; `make3d` is the published layout of Make3D, for those who have
it. All are brought to one form: an image of `CELL` x `CELL` pixels for each cell of the grid, and the cell's depth.
"""

import dataclasses
import io
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from PIL import Image

from experiments.lib import datasets

CELL = 4
"""Pixels of a cell's side, in the images that features are made from."""
MAKE3D_GRID = (107, 86)
"""Rows and columns of the paper's grid."""
SETS = ("kitchen", "tabletop", "street", "make3d")
SOURCES = {
    "kitchen": "frames 0, 5, ..., 895 of the red kitchen of Microsoft Research's RGB-D Dataset 7-Scenes",
    "tabletop": "the Object Segmentation Database (OSD) of ACIN, TU Wien",
    "street": "every second frame of drive 2011_09_26 of the KITTI raw data, laser returns projected into the image",
}
LAYOUT = (
    "depth/{name}_depth.npz (keys ids [scene]; depth [scene, row, column], metres, NaN where there is no measurement, "
    "with box (x0, y0, x1, y1) in pixels, or depth_wide with box_wide; and block, split or frame [scene]) and "
    "depth/{name}_images.zip ({{id}}.jpg). Make them from {source}"
)
MAKE3D = (
    "make3d/Train400Img/img-ID.jpg, make3d/Train400Depth/depth_sph_corr-ID.mat (Position3DGrid [55, 305, 4], the last "
    "is the distance in metres) and the same in Test134 and Test134Depth: the Make3D Range Image Data (Stanford, later "
    "Cornell), unpacked"
)


@dataclasses.dataclass(frozen=True)
class Scenes:
    """A set of scenes.

    Attributes:
        name: of the set.
        ids: names of the scenes.
        images: colors 0 .. 255 [scene, CELL * row, CELL * column, 3], uint8.
        depth: metres [scene, row, column], NaN where there is no measurement.
        folds: of the scenes to learn from, which part they belong to when one is held out, >= 0; -1: not learned from.
        test: which scenes are to be predicted [scene].
    """

    name: str
    ids: list[str]
    images: np.ndarray
    depth: np.ndarray
    folds: np.ndarray
    test: np.ndarray

    @property
    def train(self) -> np.ndarray:
        """Mask of the training scenes [scene]."""
        return self.folds >= 0

    def part(self, chosen: np.ndarray) -> "Scenes":
        """Return some of the scenes."""
        ids = [name for name, keep in zip(self.ids, chosen, strict=True) if keep]
        return Scenes(self.name, ids, self.images[chosen], self.depth[chosen], self.folds[chosen], self.test[chosen])

    def describe(self) -> dict[str, Any]:
        """Count scenes and measured cells."""
        return {
            "set": self.name,
            "rows": self.depth.shape[1],
            "columns": self.depth.shape[2],
            "train_scenes": int(self.train.sum()),
            "test_scenes": int(self.test.sum()),
            "other_scenes": int((~self.train & ~self.test).sum()),
            "scenes_without_depth": int(np.isnan(self.depth).all(axis=(1, 2)).sum()),
            "cells": int(self.depth.size),
            "cells_without_depth": int(np.isnan(self.depth).sum()),
        }


class _Raw(NamedTuple):
    """The arrays of a depth file."""

    ids: list[str]
    depth: np.ndarray
    box: tuple[int, int, int, int]
    frames: np.ndarray | None
    blocks: np.ndarray | None
    split: np.ndarray | None


def load(name: str, directory: Path | None) -> Scenes:
    """Load a set of scenes.

    kitchen: learn from blocks 0-6, in folds of two or three neighboring blocks, predict block 8; block 7 is a gap, as
    views overlap. tabletop: the split that comes with it, three random folds. street: learn from the first three
    quarters of the drive, in three successive folds, predict the last quarter, less a gap of three frames. make3d: its
    published split, three random folds.

    Args:
        name: one of `SETS`.
        directory: the folder of the data sets.

    Raises:
        ValueError: no such set, no such file (says where to get it), or a damaged one.
    """
    if name not in SETS:
        raise ValueError(f"set must be one of {', '.join(SETS)}; got {name!r}. Choose one of these.")
    if name == "make3d":
        return _make3d(directory)
    layout = LAYOUT.format(name=name, source=SOURCES[name])
    raw = datasets.read(directory, f"depth/{name}_depth.npz", layout, _arrays)
    depth = _checked(name, raw.depth)
    images = datasets.read(
        directory, f"depth/{name}_images.zip", layout, lambda file: _unzip(file, raw.ids, raw.box, depth.shape[1:])
    )
    return _scenes(name, raw.ids, images, depth, *_split(name, raw))


def _scenes(name: str, ids: list[str], images: Any, depth: Any, folds: Any, test: Any) -> Scenes:
    """Keep scenes in which nothing was measured, but neither learn from them nor predict them."""
    measured = np.isfinite(depth).any(axis=(1, 2))
    found = Scenes(name, ids, images, depth, np.where(measured, folds, -1), test & measured)
    if len(np.unique(found.folds[found.train])) < 2 or not found.test.any():
        raise ValueError(
            f"{name} must have scenes with depth in two parts to learn from, and some to predict; got "
            f"{found.describe()}. Get all scenes."
        )
    return found


def _arrays(file: Path) -> _Raw:
    with file.open("rb") as handle, np.load(handle, allow_pickle=False) as npz:
        kind = "depth" if "depth" in npz else "depth_wide"
        box = tuple(int(edge) for edge in npz["box" if kind == "depth" else "box_wide"])
        extra = [npz.get(key) for key in ("frame", "block", "split")]
        ids, depth = [str(name) for name in npz["ids"]], npz[kind].astype(np.float32)
    if depth.ndim != 3 or len(ids) != len(depth) or len(box) != 4:
        raise ValueError("depth must be [scene, row, column], with as many ids, and a box of four numbers")
    return _Raw(ids, depth, box, *extra)  # type: ignore[arg-type]


def _checked(name: str, depth: np.ndarray) -> np.ndarray:
    """Refuse depths that no sensor measures; missing ones are NaN."""
    wrong = int(np.sum(np.isinf(depth) | (depth <= 0)))
    if wrong:
        raise ValueError(
            f"depth of {name} must be positive metres, or NaN where there is no measurement; got {wrong} other values. "
            "Set them to NaN."
        )
    return depth


def _unzip(file: Path, ids: list[str], box: Any, grid: tuple[int, ...]) -> np.ndarray:
    with ZipFile(file) as archive:
        pictures = [Image.open(io.BytesIO(archive.read(f"{name}.jpg"))) for name in ids]
        return np.stack([_fitted(picture, box, grid) for picture in pictures])


def _fitted(picture: Image.Image, box: Any, grid: tuple[int, ...]) -> np.ndarray:
    """Bring the part of a picture that has depth to `CELL` pixels a cell."""
    size = (CELL * grid[1], CELL * grid[0])
    part = picture.convert("RGB").resize(size, Image.Resampling.BOX, box=box)
    return np.asarray(part)


def _split(name: str, raw: _Raw) -> tuple[np.ndarray, np.ndarray]:
    """Return the folds of the scenes to learn from, -1 elsewhere, and which scenes are to be predicted."""
    count = len(raw.ids)
    if name == "kitchen" and raw.blocks is not None:
        return np.where(raw.blocks < 7, np.minimum(raw.blocks // 2, 2), -1), raw.blocks == 8
    if name == "tabletop" and raw.split is not None:
        train = raw.split == "train"
        return _dealt(train), ~train
    order = np.arange(count) if raw.frames is None else np.argsort(np.argsort(raw.frames))
    learned = order < 3 * count // 4
    return np.where(learned, order * 4 // count, -1), order >= 3 * count // 4 + 3


def _dealt(train: np.ndarray) -> np.ndarray:
    """Deal the scenes to learn from into three random folds, always the same."""
    folds = np.full(len(train), -1)
    folds[train] = np.random.default_rng(0).permutation(np.arange(train.sum()) % 3)
    return folds


def _make3d(directory: Path | None) -> Scenes:
    """Load Make3D; the laser's maps are brought to the paper's grid by the nearest cell."""
    parts = [("Train400Img", "Train400Depth"), ("Test134", "Test134Depth")]
    names, images, depth, trained = [], [], [], []
    for part, (folder, depths) in enumerate(parts):
        root = Path(directory or ".") / "make3d"
        found = sorted(root.glob(f"{folder}/img-*.jpg")) if directory else []
        if not found:
            datasets.read(directory, f"make3d/{folder}/img-*.jpg", MAKE3D, Path.read_bytes)
        for file in found:
            name = file.stem.removeprefix("img-")
            names.append(name)
            trained.append(part == 0)
            images.append(datasets.read(directory, f"make3d/{folder}/{file.name}", MAKE3D, _whole_picture))
            depth.append(datasets.read(directory, f"make3d/{depths}/depth_sph_corr-{name}.mat", MAKE3D, _laser))
    train = np.array(trained)
    return _scenes("make3d", names, np.stack(images), _checked("make3d", np.stack(depth)), _dealt(train), ~train)


def _whole_picture(file: Path) -> np.ndarray:
    with Image.open(file) as picture:
        return _fitted(picture, None, MAKE3D_GRID)


def _laser(file: Path) -> np.ndarray:
    from scipy.io import loadmat, matlab

    try:
        distance = np.asarray(loadmat(file)["Position3DGrid"])[..., 3].astype(np.float32)
    except (TypeError, NotImplementedError, matlab.MatReadError) as fault:
        raise ValueError("no MATLAB file of versions 4 to 7.2") from fault
    rows, columns = (
        (np.arange(want) * 2 + 1) * have // (2 * want) for want, have in zip(MAKE3D_GRID, distance.shape, strict=True)
    )
    near = distance[np.ix_(rows, columns)]
    return np.where(near > 0, near, np.nan)
