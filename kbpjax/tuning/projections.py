"""Linear features of observations of many coordinates: a ridge regression of the variables on them.

In hundreds of dimensions, all samples are about equally far from each other, and a Gaussian kernel on a few dozen
landmarks hardly distinguishes them. The regression reduces an observation to a prediction of the variable, which has as
many coordinates as the variable.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

RIDGES = 10.0 ** np.arange(-7, 1)
"""Ridges that are compared, relative to the mean variance of the coordinates."""


def regression_matrix(
    x: Float[NDArray, "sample *dim"], y: Float[NDArray, "sample obs_dim"]
) -> Float[NDArray, "feature obs_dim"] | None:
    """Return the coefficients of x in a ridge regression on y.

    None unless there are more samples than coordinates, and both x and y vary.

    The ridge is that of the smallest generalized cross-validation error (Golub, Heath and Wahba 1979).
    """
    x, y = x.reshape(len(x), -1).astype(float), y.astype(float)
    count, width = y.shape
    spread = np.std(y, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    if count <= width or not (np.ptp(x, axis=0).any() and np.ptp(y, axis=0).any()):
        return None
    x, y = x - np.mean(x, axis=0), (y - np.mean(y, axis=0)) / spread
    values, vectors = np.linalg.eigh(y.T @ y / count)
    values, rotated = np.maximum(values, 0.0), vectors.T @ (y.T @ x) / count
    ridges = RIDGES[:, None] * np.mean(values)
    shrunk = values / (values + ridges)
    explained = (shrunk * (2 - shrunk))[..., None] * rotated**2 / np.where(values > 0, values, np.inf)[:, None]
    left = np.mean(x**2, axis=0).sum() - explained.sum(axis=(1, 2))
    best = int(np.argmin(left / (1 - shrunk.sum(axis=1) / count) ** 2))
    return (vectors @ (rotated / (values + ridges[best])[:, None])).T / spread
