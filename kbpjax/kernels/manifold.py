"""Kernels on spheres and rotations.

Gaussian functions of geodesic distances are not kernels: exp(-angle^2) is not positive definite on spheres or on
rotations. Power series of inner products with coefficients >= 0 are kernels, and so is the heat kernel.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.kernels.base import Kernel, as_floats, positive_number
from kbpjax.kernels.euclidean import median_distance

TOLERANCE = 1e-3
"""Tolerance on the difference of a norm from 1, and of R'R from the identity."""


class Sphere(Kernel):
    r"""The exponential kernel of unit vectors: $\exp(\kappa (\langle x, y \rangle - 1))$.

    $\kappa$ is the concentration. Positive definite on spheres of any dimension (Song et al. 2011, section 7, protein
    structure).

    Args:
        concentration: number > 0; the kernel falls to half at an angle of about 1.2 / sqrt(concentration) radians.
            `median_concentration` estimates it.

    Raises:
        ValueError: concentration is not positive and finite, or points are not unit vectors (tracers are not checked).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.kernels.Sphere(2.0)(jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 1.0, 0.0]))), 4)
        0.1353
    """

    concentration: Float[Array, ""]

    def __init__(self, concentration: ScalarLike):
        self.concentration = positive_number("concentration", concentration)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(concentration (<x, y> - 1))."""
        inner = jnp.sum(as_floats(x) * as_floats(y))
        return jnp.exp(self.concentration.astype(inner.dtype) * (inner - 1))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are unit vectors."""
        fix = "Pass vectors [sample, dim]."
        _checks.require(points.ndim >= 2, argument, "must be vectors", f"shape {points.shape}", fix)
        if _checks.is_traced(points):
            return
        flat = np.asarray(points, np.float64).reshape(len(points), int(np.prod(points.shape[1:])))
        norms = np.linalg.norm(flat, axis=1)
        worst = norms[np.argmax(np.abs(norms - 1))] if len(norms) else 1.0
        fix = "Normalize them: kbpjax.kernels.unit_vectors(x)."
        _checks.require(abs(worst - 1) <= TOLERANCE, argument, "must be unit vectors", f"a norm of {worst:.4g}", fix)


class Rotations(Kernel):
    r"""The exponential of the trace inner product on SO(3): $\exp(\kappa (\operatorname{tr}(R^\top S) - 3) / 2)$.

    It equals $\exp(\kappa (\cos a - 1))$, with $\kappa$ the concentration and $a$ the angle between R and S. Rotations
    are matrices [3, 3] or unit quaternions [4] (q and -q are the same rotation).

    Args:
        concentration: number > 0. The kernel is close to a Gaussian of the angle with bandwidth
            1 / sqrt(concentration) radians.

    Raises:
        ValueError: concentration is not positive and finite, or points are not rotations (tracers are not checked).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> half_turn = jnp.diag(jnp.array([1.0, -1.0, -1.0]))
        >>> round(float(kbp.kernels.Rotations(1.0)(jnp.eye(3), half_turn)), 4)
        0.1353
    """

    concentration: Float[Array, ""]

    def __init__(self, concentration: ScalarLike):
        self.concentration = positive_number("concentration", concentration)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(concentration (cos(angle) - 1))."""
        cosine = cosine_between(x, y)
        return jnp.exp(self.concentration.astype(cosine.dtype) * (cosine - 1))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are rotations."""
        _check_rotations(argument, points)


class Heat(Kernel):
    r"""The normalized heat kernel on SO(3): the solution of the heat equation at S for a point source at R.

    With $a$ the angle between R and S, $\sigma$ the bandwidth and $\chi_l(a) = 1 + 2 \sum_{j \le l} \cos(j a)$ the
    character of order $l$, it is

    $$\sum_l (2 l + 1) \, e^{-l (l + 1) \sigma^2 / 2} \, \chi_l(a),$$

    divided by its value at $a = 0$. For small bandwidths it is close to a Gaussian of the angle. Rotations have the
    formats of `Rotations`.

    Args:
        bandwidth: bandwidth in radians, > 0.
        num_orders: number of terms of the sum, l < num_orders. Any number gives a kernel. Weights of omitted terms are
            below 1e-3 of the largest weight from 4 / bandwidth terms on, and below rounding error from 6 / bandwidth.

    Raises:
        ValueError: bandwidth is not a positive finite number or is below 4 / num_orders, or points are not rotations
            (tracers are not checked).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> turn = jnp.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        >>> round(float(kbp.kernels.Heat(0.5)(jnp.eye(3), turn)), 3)
        0.008
    """

    bandwidth: Float[Array, ""]
    num_orders: int = eqx.field(static=True, converter=_checks.whole)

    def __init__(self, bandwidth: ScalarLike, num_orders: Any = 60):
        _checks.require_count("num_orders", num_orders)
        self.bandwidth, self.num_orders = positive_number("bandwidth", bandwidth), int(num_orders)
        fix = "Pass num_orders >= 6 / bandwidth."
        _checks.require_number("bandwidth", self.bandwidth, least=4 / self.num_orders, fix=fix)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the heat at y divided by the heat at x."""
        cosine = cosine_between(x, y)
        order = jnp.arange(self.num_orders, dtype=cosine.dtype)
        decay = jnp.exp(-0.5 * order * (order + 1) * self.bandwidth.astype(cosine.dtype) ** 2)
        weights = (2 * order + 1) * decay  # weights of chi_l, which has a term cos(j a) for all j <= l
        of_cosines = jnp.cumsum(weights[::-1])[::-1] * jnp.where(order > 0, 2, 1).astype(cosine.dtype)
        return _clenshaw(of_cosines, cosine) / jnp.sum(of_cosines)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are rotations."""
        _check_rotations(argument, points)


def _clenshaw(coefficients: Float[Array, " order"], cosine: Float[Array, ""]) -> Float[Array, ""]:
    """Return sum_j c_j cos(j a) as a polynomial in cos(a), with a finite gradient at a = 0."""

    def step(later, coefficient):
        following, after = later
        return (coefficient + 2 * cosine * following - after, following), None

    zero = jnp.zeros_like(cosine)
    (first, second), _ = jax.lax.scan(step, (zero, zero), coefficients[:0:-1])
    return coefficients[0] + cosine * first - second


def cosine_between(x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
    """Return the cosine of the angle between two rotations, matrices [3, 3] or unit quaternions [4]."""
    fix = "Pass matrices [sample, 3, 3] or quaternions [sample, 4]."
    _checks.require(x.shape in ((3, 3), (4,)), "points", "must be rotations", f"points of shape {x.shape}", fix)
    inner = jnp.sum(as_floats(x) * as_floats(y))  # tr(R'S) = 1 + 2 cos(angle); <p, q> = cos(angle / 2)
    return (inner - 1) / 2 if x.ndim == 2 else 2 * inner**2 - 1


@public
def unit_vectors(x: Numbers) -> Float[Array, "*sample dim"]:
    """Return vectors divided by their norms.

    Args:
        x: vectors [*sample, dim], none of them 0.

    Returns:
        Unit vectors [*sample, dim].

    Raises:
        ValueError: a vector is 0, NaN or infinite, or its norm overflows.

    Examples:
        >>> import kbpjax as kbp
        >>> [round(float(c), 4) for c in kbp.kernels.unit_vectors([3.0, 4.0])]
        [0.6, 0.8]
    """
    array = as_floats(_checks.as_array("x", x))
    _checks.require_finite("x", array, "Drop these vectors.")
    norm = jnp.linalg.norm(array, axis=-1, keepdims=True)
    if not _checks.is_traced(norm):
        largest, fix = float(np.max(np.asarray(norm), initial=0)), "Scale the vectors down."
        _checks.require(np.isfinite(largest), "x", f"must have norms that are finite in {norm.dtype}", largest, fix)
        zeros = int(np.sum(~(np.asarray(norm) > 0)))
        _checks.require(zeros == 0, "x", "must have no vector of length 0", f"{zeros} zero vectors", "Drop them.")
    return array / norm


@public
def nearest_rotations(x: Numbers) -> Float[Array, "*sample 3 3"]:
    """Return the nearest rotation to each matrix in the Frobenius norm.

    The mean of rotations, for instance `mean` of a belief, is not a rotation. The rotation nearest to it minimizes the
    expected squared chordal error.

    Args:
        x: matrices [*sample, 3, 3].

    Returns:
        Rotations [*sample, 3, 3].

    Raises:
        ValueError: the shape is not [..., 3, 3], or entries are NaN or infinite.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> bool(jnp.allclose(kbp.kernels.nearest_rotations(0.5 * jnp.eye(3)), jnp.eye(3)))
        True
    """
    array = as_floats(_checks.as_array("x", x))
    _checks.require(array.shape[-2:] == (3, 3), "x", "must be matrices [..., 3, 3]", f"shape {array.shape}", "Reshape.")
    _checks.require_finite("x", array, "Drop or impute missing matrices first.")
    left, _, right = jnp.linalg.svd(array)
    sign = jnp.sign(jnp.linalg.det(jnp.matmul(left, right, precision="highest")))
    signs = jnp.stack([jnp.ones_like(sign), jnp.ones_like(sign), sign], axis=-1)
    return jnp.matmul(left * signs[..., None, :], right, precision="highest")


@public
def median_concentration(points: Numbers, *, max_points: int = 3000) -> Float[Array, ""]:
    """Return 1 / (1 - median inner product) over pairs of unit vectors, the median heuristic for `Sphere`.

    The kernel of the median pair is then exp(-1). Of more than `max_points` points a random subset with a fixed seed is
    compared. Not differentiable.

    Args:
        points: unit vectors [sample, dim], with at least two distinct points.
        max_points: maximum number of points to compare, >= 2.

    Returns:
        The concentration, in the default float precision.

    Raises:
        ValueError: points are not unit vectors, too few, or all equal.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.kernels.median_concentration(jnp.eye(3))), 4)
        1.0
    """
    Sphere(1.0).check("points", _checks.as_array("points", points))
    return jnp.asarray(2 / median_distance(points, max_points) ** 2, jnp.result_type(float))


def _check_rotations(argument: str, points: Shaped[Array, "sample *dim"]) -> None:
    """Raise ValueError unless points are rotation matrices or unit quaternions."""
    shape = points.shape[1:]
    fix = "Pass matrices [sample, 3, 3] or quaternions [sample, 4]."
    _checks.require(shape in ((3, 3), (4,)), argument, "must be rotations", f"points of shape {shape}", fix)
    if _checks.is_traced(points) or len(points) == 0:
        return
    x = np.asarray(points, np.float64)
    if x.ndim == 2:
        worst = float(np.max(np.abs(np.linalg.norm(x, axis=1) - 1)))
        fix = "Normalize them: kbpjax.kernels.unit_vectors(q)."
        rule = "must be unit quaternions"
        _checks.require(worst <= TOLERANCE, argument, rule, f"a norm that is {worst:.2g} from 1", fix)
        return
    fix = "Use the nearest rotations: kbpjax.kernels.nearest_rotations(x)."
    worst = float(np.max(np.abs(np.swapaxes(x, 1, 2) @ x - np.eye(3))))
    rule = "must be orthogonal matrices"
    _checks.require(worst <= TOLERANCE, argument, rule, f"R'R with an error of {worst:.2g}", fix)
    mirrored = int(np.sum(np.linalg.det(x) < 0))
    _checks.require(mirrored == 0, argument, "must have determinant 1", f"{mirrored} reflections", fix)
