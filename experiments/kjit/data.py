"""Four sets of binary classification of the UCI Machine Learning Repository, with the split of the authors of KJIT."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.lib import datasets

SETS = ("banknote", "blood_transfusion", "fertility", "ionosphere")
"""In the order in which an operator meets them."""
SOURCE = (
    "uci/{name}.npz (X [row, column], y [row] of 0 and 1, train [row] of booleans, X_norm [row, column kept]). Make it "
    "from the UCI Machine Learning Repository (archive.ics.uci.edu: Banknote Authentication, Blood Transfusion Service "
    "Center, Fertility, Ionosphere) and from the split in github.com/wittawatj/kernel-ep, Saved/data"
)
AGREES = 1e-8
"""Most that our standardized columns may differ from those of the authors, in standard deviations."""


class Classification(NamedTuple):
    """A set, standardized.

    Attributes:
        name: of the set.
        x: columns of mean 0 and standard deviation 1 (with n - 1) over all rows, constant ones left out [row, column].
        y: labels 0 or 1 [row].
        train: which rows are to be learned from [row].
        dropped: constant columns.
        differs: the largest difference from the authors' standardized columns.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    train: np.ndarray
    dropped: int
    differs: float


def load(name: str, directory: Path | None) -> Classification:
    """Load one of `SETS`.

    Args:
        name: of the set.
        directory: the folder of `datasets.data_directory`.

    Raises:
        ValueError: no such file, which says where it comes from; a damaged one, or one with other content.
    """
    layout = SOURCE.format(name=name)
    return datasets.read(directory, f"uci/{name}.npz", layout, lambda path: _read(name, path))


def standardize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns of mean 0 and standard deviation 1 (with n - 1), constant ones left out, and which were kept."""
    kept = x.max(axis=0) > x.min(axis=0)
    some = x[:, kept]
    return (some - some.mean(axis=0)) / some.std(axis=0, ddof=1), kept


def _read(name: str, path: Path) -> Classification:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        x, y, train, theirs = (np.asarray(archive[key]) for key in ("X", "y", "train", "X_norm"))
    fits = x.ndim == 2 and len(x) > 1 and y.shape == train.shape == x.shape[:1] and train.dtype == bool
    if not fits or not np.isfinite(x).all() or not np.isin(y, [0, 1]).all():
        raise ValueError("shapes that do not fit, or values that are missing")
    scaled, kept = standardize(x.astype(np.float64))
    if scaled.shape != theirs.shape or np.abs(scaled - theirs).max() > AGREES:
        raise ValueError("other columns than the authors' X_norm")
    differs = float(np.abs(scaled - theirs).max())
    return Classification(name, scaled, y.astype(int), train, int((~kept).sum()), differs)
