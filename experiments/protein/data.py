"""Protein chains: sequence profiles and C-alpha angles of real structures, as vectors, and cut where chains break."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.lib import datasets

NAME = "protein/graphppis_ca_angles.npz"
LAYOUT = (
    f"{NAME} (arrays offsets [chain + 1], and for each residue aa, pssm [residue, 20], theta, tau in degrees, ca_bond "
    "in angstrom). Make it from structures of the Protein Data Bank (rcsb.org) and PSI-BLAST profiles, or from the "
    "arrays of GitHub biomed-AI/GraphPPIS (MIT), which have both"
)
BOND = (2.5, 4.2)
"""Distances of successive C-alpha atoms in angstrom between which a chain is unbroken."""
RESIDUES = "ARNDCQEGHILKMFPSTWYV"


class Chains(NamedTuple):
    """Residues of all chains, one chain after the other; NaN where something is missing."""

    offsets: np.ndarray  # first residue of each chain, and the number of residues [chain + 1]
    kinds: np.ndarray  # place in RESIDUES [residue]
    profiles: np.ndarray  # PSI-BLAST scores through the logistic function, in 0 .. 1 [residue, 20]
    vectors: np.ndarray  # the angle pair as a unit vector [residue, 3]
    linked: np.ndarray  # whether the next residue belongs to the same unbroken chain [residue]

    @property
    def chain(self) -> np.ndarray:
        """The number of the chain of each residue."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def scored(self) -> np.ndarray:
        """Mask of the residues with both angles."""
        return np.asarray(np.isfinite(self.vectors).all(axis=1))

    @property
    def observed(self) -> np.ndarray:
        """Mask of the residues with a complete profile."""
        return np.asarray(np.isfinite(self.profiles).all(axis=1))

    def counts(self) -> dict[str, int]:
        """Say how much there is, and how much is missing."""
        inside = np.ones(len(self.linked), bool)
        inside[self.offsets[1:] - 1] = False
        return {
            "chains": len(self.offsets) - 1,
            "residues": len(self.kinds),
            "without_angles": int(np.sum(~self.scored)),
            "without_profile": int(np.sum(~self.observed)),
            "breaks": int(np.sum(inside & ~self.linked)),
        }

    def part(self, chosen: np.ndarray) -> "Chains":
        """Return some of the chains, by their numbers."""
        bounds = self.offsets.tolist()
        rows = np.concatenate([np.arange(bounds[c], bounds[c + 1]) for c in chosen])
        offsets = np.cumsum([0, *np.diff(self.offsets)[chosen]])
        return Chains(offsets, *(array[rows] for array in self[1:]))


def load(directory: Path | None) -> Chains:
    """Load all chains.

    Args:
        directory: the folder of the data sets.

    Raises:
        ValueError: no such file, which says where to get it; a damaged one; one whose arrays do not fit together.
    """
    return datasets.read(directory, NAME, LAYOUT, _read)


def _read(path: Path) -> Chains:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        offsets, kinds = (archive[key].astype(np.int64) for key in ("offsets", "aa"))
        scores, theta, tau, bond = (archive[key].astype(np.float64) for key in ("pssm", "theta", "tau", "ca_bond"))
    count = len(kinds)
    fits = scores.shape == (count, 20) and all(array.shape == (count,) for array in (theta, tau, bond))
    whole = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == count and bool(np.all(np.diff(offsets) > 0))
    within = not np.any((theta < 0) | (theta > 180) | (np.abs(tau) > 180) | (kinds < 0) | (kinds >= len(RESIDUES)))
    if not (fits and whole and within):
        raise ValueError("arrays do not fit together")
    linked = (bond >= BOND[0]) & (bond <= BOND[1])
    linked[offsets[1:] - 1] = False
    profiles = 1 / (1 + np.exp(-np.where(np.isfinite(scores), scores, np.nan)))
    return Chains(offsets, kinds, profiles.astype(np.float32), vectors_of(theta, tau).astype(np.float32), linked)


def vectors_of(theta: Any, tau: Any) -> np.ndarray:
    """Return (sin theta cos tau, sin theta sin tau, cos theta) of degrees [.., 3]; NaN where an angle is missing."""
    polar, around = np.deg2rad(theta), np.deg2rad(tau)
    vectors = np.stack([np.sin(polar) * np.cos(around), np.sin(polar) * np.sin(around), np.cos(polar)], axis=-1)
    return np.where(np.isfinite(vectors).all(axis=-1, keepdims=True), vectors, np.nan)


def angles_of(vectors: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return theta in 0 .. 180 and tau in -180 .. 180 degrees of vectors of any length [.., 3]."""
    x, y, z = np.moveaxis(np.asarray(vectors, np.float64), -1, 0)
    return np.rad2deg(np.arctan2(np.hypot(x, y), z)), np.rad2deg(np.arctan2(y, x))


def circular_error(found: Any, true: Any) -> np.ndarray:
    """Return the absolute difference of angles in degrees, the short way round."""
    return np.abs((np.asarray(found) - true + 180) % 360 - 180)


def windows(chains: Chains, width: int) -> np.ndarray:
    """Return the profiles of `width` residues around each one [residue, 21 width].

    Each has 20 numbers and one that says that it is there: 21 zeros stand for those beyond the ends of the chain, and
    for those without a profile.
    """
    profiles = np.concatenate([np.nan_to_num(chains.profiles), np.ones((len(chains.kinds), 1), np.float32)], axis=1)
    return around(chains, profiles * chains.observed[:, None], width)


def around(chains: Chains, values: np.ndarray, width: int) -> np.ndarray:
    """Return the values of `width` residues around each one, zeros beyond the ends of its chain [residue, width n].

    Args:
        chains: the chains.
        values: of each residue [residue, n].
        width: odd number of residues.
    """
    count, half, chain = len(values), width // 2, chains.chain
    columns = []
    for shift in range(-half, width - half):
        rows = np.arange(count) + shift
        inside = (rows >= 0) & (rows < count)
        rows = np.clip(rows, 0, count - 1)
        columns.append(values[rows] * (inside & (chain[rows] == chain))[:, None])
    return np.concatenate(columns, axis=1)


def harmonics(vectors: Any) -> np.ndarray:
    """Return the eight spherical harmonics of degrees one and two of unit vectors [.., 8], the vectors first."""
    x, y, z = np.moveaxis(np.asarray(vectors), -1, 0)
    second = [x * y, y * z, x * z, (x * x - y * y) / 2, (3 * z * z - 1) / np.sqrt(12.0)]
    return np.stack([x, y, z, *(np.sqrt(5.0) * value for value in second)], axis=-1)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors of length one; zero stays zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def inside(weights: np.ndarray, points: np.ndarray, true: np.ndarray, level: float = 0.9) -> np.ndarray:
    """Say whether the candidate nearest to the truth is in the smallest set of candidates that holds `level` [node].

    Args:
        weights: beliefs [node, point].
        points: candidates, unit vectors [point, 3].
        true: the truth, unit vectors [node, 3].
        level: probability that the set holds.
    """
    nearest = np.argmax(true @ points.T, axis=1)
    own = np.take_along_axis(weights, nearest[:, None], axis=1)
    above = np.sum(np.where(weights > own, weights, 0), axis=1)  # what the better candidates hold already
    return above < level * weights.sum(axis=1)


def sphere_grid(count: int) -> np.ndarray:
    """Return points spread evenly over the sphere along a spiral [count, 3]."""
    height = 1 - (2 * np.arange(count) + 1) / count
    around = np.pi * (1 + np.sqrt(5.0)) * np.arange(count)
    ring = np.sqrt(1 - height**2)
    return np.stack([ring * np.cos(around), ring * np.sin(around), height], axis=1).astype(np.float32)
