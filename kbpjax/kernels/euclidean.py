"""Kernels on R^d (points of any fixed shape; scalars too), and the bandwidth heuristic that goes with them."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax.kernels.base import Kernel, as_floats


class RBF(Kernel):
    """The Gaussian kernel exp(-||x - y||^2 / (2 bandwidth^2)); its gradient at x = y is 0.

    Args:
        bandwidth: length scale > 0, in the units of the points; `median_bandwidth` suggests one.

    Raises:
        ValueError: bandwidth is not a positive finite number.

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.RBF(2.0)(jnp.array(1.0), jnp.array(3.0))), 4)
        0.6065
    """

    bandwidth: Float[Array, ""]

    def __init__(self, bandwidth: ScalarLike):
        _checks.require_number("bandwidth", bandwidth, above=0)
        given = as_floats(jnp.asarray(bandwidth))
        self.bandwidth = given.astype(given.dtype)  # of no weak type, which would compile twice
        _checks.require_number(
            "bandwidth", self.bandwidth, above=0, fix="Scale the data: it vanishes in this precision."
        )

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(-||x - y||^2 / (2 bandwidth^2))."""
        difference = as_floats(x) - as_floats(y)
        scaled = difference / self.bandwidth.astype(difference.dtype)
        return jnp.exp(-0.5 * jnp.sum(scaled**2))


class Linear(Kernel):
    """The inner product <x, y>.

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.Linear()(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])))
        11.0
    """

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return <x, y>."""
        return jnp.sum(as_floats(x) * as_floats(y))


def median_bandwidth(points: Numbers, *, max_points: int = 3000) -> float:
    """Return the median distance between pairs of points, the usual first choice of an RBF bandwidth (section 7).

    Points beyond `max_points` are thinned evenly, so that the cost stays bounded and the answer repeatable. Where over
    half of the pairs coincide the median of the others is returned. Not differentiable: call it outside `jax.jit`.

    Args:
        points: training points [sample, *dim], finite, at least two of them different.
        max_points: the most points to compare, >= 2.

    Raises:
        ValueError: too few, non-finite or all equal points.

    Example:
        >>> import kbpjax as kbp
        >>> kbp.median_bandwidth([0.0, 1.0, 3.0])
        2.0
    """
    _checks.require_finite("points", points, "Drop or impute the missing points first.")
    _checks.require_count("max_points", max_points)
    _checks.require(
        max_points >= 2, "max_points", "must be an integer >= 2", max_points, "A distance needs two points."
    )
    flat = np.asarray(points, np.float64)
    _checks.require(flat.size > 0, "points", "must hold at least two points", f"shape {flat.shape}", "Add points.")
    flat = flat.reshape(len(flat), -1) if flat.ndim else flat.reshape(1, -1)
    if len(flat) > max_points:
        flat = flat[np.linspace(0, len(flat) - 1, max_points).round().astype(int)]
    flat = flat - flat.mean(axis=0)
    norms = np.sum(flat**2, axis=1)
    squared = norms[:, None] + norms[None] - 2 * flat @ flat.T
    distances = np.sqrt(np.maximum(squared[np.triu_indices(len(flat), 1)], 0))
    distinct = distances > 1e-7 * np.sqrt(norms.max(initial=0))
    fix = "Pass at least two different points, or choose a bandwidth yourself."
    _checks.require(bool(distinct.any()), "points", "must not all be equal", f"{len(flat)} equal points", fix)
    median = np.median(np.where(distinct, distances, 0))
    return float(median if median > 0 else np.median(distances[distinct]))
