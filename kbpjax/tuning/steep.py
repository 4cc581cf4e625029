"""How much of one end of a relation the other end leaves open: relations that leave little need narrow kernels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbpjax.learning.data import TrainingData

MOST, FEWEST = 16_000, 30
"""Largest number of pairs that are looked at, and the smallest number that says something."""

GAUSSIAN = 0.9539
"""Median of the absolute difference of two draws of a standard Gaussian."""


def smallest_noise(data: TrainingData, scales: Mapping[int, Any]) -> float:
    """Return the smallest noise of an end of an edge type given the other end, for numbers.

    It is a standard deviation, estimated from the differences of successive values after sorting by the other end
    (von Neumann 1941, Rice 1984), by their median.

    Args:
        data: the training data.
        scales: {node type: unit of the noise of its numbers}; other types are not looked at.

    Returns:
        The noise, in these units; infinite without thirty pairs of different numbers.
    """
    noises = [np.inf]
    for k, *types in data.ends:
        ends = [np.asarray(x)[:MOST] for x in data.edges[k]]
        noises += [
            _noise(given, x) / float(scales[v])
            for v, x, given in zip(types, ends, ends[::-1], strict=True)
            if v in scales
        ]
    return float(min(noises))


def _noise(x: NDArray, y: NDArray) -> float:
    """Return the noise of y given x [sample]."""
    if len(x) < FEWEST or x.ndim > 1 or y.ndim > 1 or min(len(np.unique(x)), len(np.unique(y))) < len(x) / 2:
        return np.inf  # no numbers, or states, or gray levels
    return float(np.median(np.abs(np.diff(y[np.argsort(x)].astype(float)))) / GAUSSIAN)
