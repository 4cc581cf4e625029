"""How much of one end of a relation the other end leaves open: relations that leave little need narrow kernels."""

import numpy as np
from numpy.typing import NDArray

from kbpjax.learning.data import TrainingData

MOST = 16_000
"""Largest number of pairs that are looked at."""

GAUSSIAN = 0.9539
"""Median of the absolute difference of two draws of a standard Gaussian."""


def smallest_noise(data: TrainingData) -> float:
    """Return the smallest noise of an end of an edge type given the other end, for numbers.

    It is a standard deviation, estimated from the differences of successive values after sorting by the other end
    (von Neumann 1941, Rice 1984), by their median.

    Returns:
        The noise, in the units of the values; infinite without pairs of different numbers.
    """
    noises = [np.inf]
    for pair in data.edges.values():
        first, second = (np.asarray(x, float)[:MOST] for x in pair)
        noises += [_noise(first, second), _noise(second, first)]
    return float(min(noises))


def _noise(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Return the noise of y given x [sample]."""
    if x.ndim > 1 or y.ndim > 1 or len(np.unique(x)) < len(x) / 2 or len(np.unique(y)) < len(y) / 2:
        return np.inf  # no numbers, or states, or gray levels
    return float(np.median(np.abs(np.diff(y[np.argsort(x)]))) / GAUSSIAN)
