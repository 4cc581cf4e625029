"""Values that are far from the others, such as a wrong unit or a fault of a sensor."""

import numpy as np
from numpy.typing import NDArray

REACH = 8
"""Number of standard deviations, as the quartiles give them, beyond which values are far."""

RARE = 1000
"""Far values are left out if there is at most one, or at most one in `RARE` values; more of them are a long tail."""

FEWEST = 100
"""Number of values below which none is far: the quartiles of fewer say too little."""


def reach_of(x: NDArray) -> tuple[NDArray, NDArray]:
    """Return the smallest and largest values that are not far [1, *others], of values along axis 0, NaN where missing.

    They are infinite where the quartiles are equal, or not known.
    """
    ordered = np.sort(x, axis=0)  # NaN at the end
    last = np.maximum(np.isfinite(x).sum(axis=0) - 1, 0)
    low, middle, high = (
        np.take_along_axis(ordered, np.round(last * level).astype(int)[None], axis=0) for level in (0.25, 0.5, 0.75)
    )
    reach = REACH * (high - low) / 1.349  # the distance of the quartiles of a Gaussian of standard deviation 1
    reach = np.where(reach > 0, reach, np.inf)
    return middle - reach, middle + reach


def moved_near(x: NDArray) -> NDArray:
    """Return values of which those that are far are moved to the nearest that is not, along axis 0."""
    return np.clip(x, *reach_of(x))


def are_far(x: NDArray) -> NDArray[np.bool_]:
    """Return which numbers are far from the others, if they are so few that they are no tail of the distribution."""
    values = x.astype(np.float64)
    low, high = reach_of(values)
    far = (values < low) | (values > high)
    return far & (len(x) >= FEWEST) & (far.sum() <= max(1, len(x) // RARE))
