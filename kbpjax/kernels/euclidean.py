"""Kernels on R^d, for points of any fixed shape including scalars, and the median heuristic for bandwidths.

All kernels are positive definite in any dimension. Gradients of the stationary kernels at x = y are 0. `Laplace` and
`Matern` with smoothness 1/2 have a kink there, and 0 is the mean of the one-sided gradients.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul
from kbpjax._public import public
from kbpjax.kernels.base import Kernel, as_floats, positive_number, random_rows


class RBF(Kernel):
    r"""The Gaussian kernel $\exp(-\|x - y\|^2 / (2 \sigma^2))$ with bandwidth $\sigma$; its gradient at x = y is 0.

    Args:
        bandwidth: length scale > 0, in the units of the points; `median_bandwidth` estimates it.

    Raises:
        ValueError: bandwidth is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.RBF(2.0)(jnp.array(1.0), jnp.array(3.0))), 4)
        0.6065
    """

    bandwidth: Float[Array, ""]

    def __init__(self, bandwidth: ScalarLike):
        self.bandwidth = positive_number("bandwidth", bandwidth)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(-||x - y||^2 / (2 bandwidth^2))."""
        return jnp.exp(-0.5 * jnp.sum(_scaled(x, y, self.bandwidth) ** 2))


class ARD(Kernel):
    r"""The Gaussian kernel with a bandwidth for each coordinate: $\exp(-\sum_i (x_i - y_i)^2 / (2 \sigma_i^2))$.

    Optimized bandwidths indicate relevance (automatic relevance determination): an irrelevant coordinate gets a large
    bandwidth. Coordinates of one group share a bandwidth, for instance the entries of a window that symmetries exchange
    (`kbpjax.window_orbits`).

    Args:
        bandwidths: length scales > 0 [*dim], in the units of the coordinates; with groups [group].
        groups: number of the bandwidth of each coordinate [dim]. None: each coordinate has its own.

    Raises:
        ValueError: a bandwidth is not positive and finite, groups are not numbers of bandwidths, or points have another
            shape than `bandwidths` or `groups`.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = kbp.kernels.ARD(jnp.array([1.0, 1e6]))  # ignores the second coordinate
        >>> round(float(kernel(jnp.array([0.0, 5.0]), jnp.array([1.0, 9.0]))), 4)
        0.6065
        >>> tied = kbp.kernels.ARD([1.0, 1e6], groups=[1, 0, 1])  # ignores both neighbors of the center
        >>> round(float(tied([7.0, 0.0, 5.0], [8.0, 1.0, 9.0])), 4)
        0.6065
    """

    bandwidths: Float[Array, "*dim"]
    groups: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __init__(self, bandwidths: Numbers, groups: Numbers | None = None):
        array = as_floats(_checks.as_array("bandwidths", bandwidths))
        fix = "Pass one number per coordinate."
        ok = array.ndim == 0 or array.size > 0
        _checks.require(ok, "bandwidths", "must hold a number", f"shape {array.shape}", fix)
        _checks.require_finite("bandwidths", array, fix)
        if not _checks.is_traced(array):
            lowest = float(np.min(np.asarray(array), initial=np.inf))
            _checks.require(lowest > 0, "bandwidths", "must be > 0", f"a minimum of {lowest}", "Pass positive numbers.")
        self.bandwidths = array
        self.groups = None if groups is None else _groups(groups, array.shape)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(-sum_i (x_i - y_i)^2 / (2 bandwidth_i^2))."""
        bandwidths = self.bandwidths if self.groups is None else self.bandwidths[np.asarray(self.groups)]
        name = "bandwidths" if self.groups is None else "groups"
        fix = "Pass one bandwidth, or one group, per coordinate of a point."
        rule = f"must have shape {bandwidths.shape}, as {name}"
        _checks.require(x.shape == bandwidths.shape, "points", rule, x.shape, fix)
        return jnp.exp(-0.5 * jnp.sum(_scaled(x, y, bandwidths) ** 2))


class Laplace(Kernel):
    r"""The Laplace kernel $\exp(-\|x - y\|_1 / \sigma)$, for rough functions with sharp changes along coordinates.

    Args:
        bandwidth: length scale > 0, in the units of the points.

    Raises:
        ValueError: bandwidth is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.kernels.Laplace(2.0)(jnp.array(1.0), jnp.array(3.0))), 4)
        0.3679
    """

    bandwidth: Float[Array, ""]

    def __init__(self, bandwidth: ScalarLike):
        self.bandwidth = positive_number("bandwidth", bandwidth)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(-||x - y||_1 / bandwidth)."""
        difference = _scaled(x, y, self.bandwidth)
        return jnp.exp(-jnp.sum(difference * jnp.sign(difference)))  # derivative 0 at 0, unlike jnp.abs


class Matern(Kernel):
    r"""The Matern kernel of smoothness 1/2, 3/2 or 5/2, for functions that are 0, 1 or 2 times differentiable.

    With $s = \sqrt{2 \nu} \, \|x - y\| / \sigma$ for smoothness $\nu$ and bandwidth $\sigma$, it is $e^{-s}$,
    $(1 + s) e^{-s}$ or $(1 + s + s^2 / 3) e^{-s}$ (Rasmussen and Williams 2006, eq. 4.17).

    Args:
        bandwidth: length scale > 0, in the units of the points.
        nu: smoothness: 0.5, 1.5 or 2.5; `RBF` is the limit of infinite nu.

    Raises:
        ValueError: bandwidth is not a positive finite number, or nu is not 0.5, 1.5 or 2.5.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.kernels.Matern(1.0, nu=0.5)(jnp.array(0.0), jnp.array(1.0))), 4)
        0.3679
    """

    bandwidth: Float[Array, ""]
    nu: float = eqx.field(static=True)

    def __init__(self, bandwidth: ScalarLike, nu: float = 1.5):
        rule = "must be 0.5, 1.5 or 2.5"
        fix = "Use RBF for smoother functions; other orders require Bessel functions."
        _checks.require(nu in (0.5, 1.5, 2.5), "nu", rule, nu, fix)
        self.bandwidth, self.nu = positive_number("bandwidth", bandwidth), float(nu)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the Matern kernel of order nu."""
        square = 2 * self.nu * jnp.sum(_scaled(x, y, self.bandwidth) ** 2)
        return _matern(int(self.nu), square)


class RationalQuadratic(Kernel):
    r"""The rational quadratic kernel $(1 + \|x - y\|^2 / (2 \alpha \sigma^2))^{-\alpha}$.

    It is a mixture of Gaussian kernels with many length scales: their inverse squared bandwidths have a gamma
    distribution of shape $\alpha$.

    Args:
        bandwidth: length scale > 0, in the units of the points.
        alpha: number > 0; smaller values give heavier tails, and `RBF` is the limit of large alpha.

    Raises:
        ValueError: bandwidth or alpha is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.kernels.RationalQuadratic(1.0, alpha=0.5)(jnp.array(0.0), jnp.array(0.0)))
        1.0
    """

    bandwidth: Float[Array, ""]
    alpha: Float[Array, ""]

    def __init__(self, bandwidth: ScalarLike, alpha: ScalarLike = 1.0):
        self.bandwidth = positive_number("bandwidth", bandwidth)
        self.alpha = positive_number("alpha", alpha)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return (1 + r^2 / (2 alpha))^-alpha."""
        square = jnp.sum(_scaled(x, y, self.bandwidth) ** 2)
        alpha = self.alpha.astype(square.dtype)
        return jnp.exp(-alpha * jnp.log1p(square / (2 * alpha)))


class Periodic(Kernel):
    r"""The periodic kernel $\exp(-2 \sum_i \sin^2(\pi (x_i - y_i) / p) / \sigma^2)$ of period $p$.

    Use it for angles, hours and phases.

    Args:
        period: number > 0, in the units of the points; 2 pi for angles in radians.
        bandwidth: dimensionless number > 0, the length scale on a circle of radius 1. None: chosen by `kbp.fit`
            outside of `jax.jit`, and 1 everywhere else.
        learn_period: whether `kbp.tune` and `kbp.select` optimize the period too. The period of an angle is known: a
            learned one would cut the circle.

    Raises:
        ValueError: period or bandwidth is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = kbp.kernels.Periodic(period=24.0)
        >>> bool(kernel(jnp.array(23.0), jnp.array(1.0)) > kernel(jnp.array(23.0), jnp.array(12.0)))
        True
    """

    period: Float[Array, ""]
    bandwidth: Float[Array, ""]
    learn_period: bool = eqx.field(static=True, default=False)
    to_choose: bool = eqx.field(static=True, default=False)

    def __init__(self, period: ScalarLike, bandwidth: ScalarLike | None = None, *, learn_period: bool = False):
        self.period = positive_number("period", period)
        self.bandwidth = positive_number("bandwidth", 1.0 if bandwidth is None else bandwidth)
        self.learn_period, self.to_choose = bool(learn_period), bandwidth is None

    def with_bandwidth(self, bandwidth: ScalarLike) -> "Periodic":
        """Return the kernel with a given bandwidth, > 0.

        Examples:
            >>> import kbpjax as kbp
            >>> float(kbp.kernels.Periodic(24.0).with_bandwidth(0.5).bandwidth)
            0.5
        """
        return Periodic(self.period, bandwidth, learn_period=self.learn_period)

    @property
    def constants(self) -> tuple[str, ...]:
        """The period, unless it is to be learned."""
        return () if self.learn_period else ("period",)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(-2 sum_i sin^2(pi (x_i - y_i) / period) / bandwidth^2)."""
        sines = jnp.sin(jnp.pi * _scaled(x, y, self.period))
        return jnp.exp(-2 * jnp.sum((sines / self.bandwidth.astype(sines.dtype)) ** 2))


class Linear(Kernel):
    r"""The linear kernel $\langle x, y \rangle$.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.Linear()(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])))
        11.0
    """

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return <x, y>."""
        return jnp.sum(as_floats(x) * as_floats(y))


class Polynomial(Kernel):
    r"""The polynomial kernel $(\langle x, y \rangle + c)^d$ with offset $c$: all monomials up to degree $d$.

    Args:
        degree: an integer >= 1.
        offset: number > 0; larger values increase the weights of low degrees. For offset 0 use `Linear() ** degree`.

    Raises:
        ValueError: degree is not an integer >= 1, or offset is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.kernels.Polynomial(2)(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0])))
        16.0
    """

    degree: int = eqx.field(static=True, converter=_checks.whole)
    offset: Float[Array, ""]

    def __init__(self, degree: Any, offset: ScalarLike = 1.0):
        _checks.require_count("degree", degree)
        self.degree, self.offset = int(degree), positive_number("offset", offset)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return (<x, y> + offset)^degree."""
        inner = jnp.sum(as_floats(x) * as_floats(y))
        return (inner + self.offset.astype(inner.dtype)) ** self.degree


class RandomProjection(Kernel):
    r"""The kernel of random projections, $\langle A x, A y \rangle$, with entries of A from $N(0, 1 / D)$.

    A has D rows. The kernel approximates `Linear` in few dimensions, for instance for long sparse vectors of labels
    (Song et al. 2011, supplement section 4).

    Args:
        num_features: number of rows D of A, >= 1.
        dim: number of entries of a point, >= 1.
        seed: seed of the random matrix, an integer >= 0; not a key, so that a kernel is written down by plain numbers.

    Raises:
        ValueError: an argument is out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel, x = kbp.kernels.RandomProjection(100, dim=1000), jnp.zeros(1000).at[7].set(1.0)
        >>> bool(abs(kernel(x, x) - 1) < 0.5)
        True
    """

    matrix: Float[Array, "feature dim"]

    def __init__(self, num_features: Any, dim: Any, *, seed: Any = 0):
        _checks.require_count("num_features", num_features)
        _checks.require_count("dim", dim)
        _checks.require_seed(seed)
        self.matrix = jax.random.normal(jax.random.key(seed), (num_features, dim)) * float(num_features) ** -0.5

    @property
    def constants(self) -> tuple[str, ...]:
        """The matrix, which is data."""
        return ("matrix",)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return <A x, A y>."""
        rule, fix = f"must be vectors of length {self.matrix.shape[1]}", "Set dim to the number of entries of a point."
        _checks.require(x.shape == self.matrix.shape[1:], "points", rule, x.shape, fix)
        return matmul(self.features(x), self.features(y))

    def features(self, x: Shaped[Array, "*sample dim"]) -> Float[Array, "*sample feature"]:
        """Return A x of one or more points."""
        x = as_floats(x)
        return matmul(x, self.matrix.T.astype(x.dtype))


class Projected(Kernel):
    r"""A kernel of linear features of vectors, $k(A x, A y)$.

    `fit` chooses it for observations of many coordinates, with the matrix of a ridge regression of the variables on
    the observations.

    Args:
        matrix: the matrix A [feature, dim].
        base: the kernel of the features [feature]; if A has one row, of the number.

    Raises:
        ValueError: matrix is not a finite matrix, base is not a kernel, or points are not vectors of length dim.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = kbp.kernels.Projected([[1.0, -1.0, 0.0]], kbp.RBF(2.0))
        >>> round(float(kernel(jnp.array([1.0, 0.0, 5.0]), jnp.array([4.0, 1.0, 7.0]))), 4)  # RBF(2)(1, 3)
        0.6065
    """

    matrix: Float[Array, "feature dim"]
    base: Kernel

    def __init__(self, matrix: Numbers, base: Any):
        array = _checks.as_array("matrix", matrix)
        fix = "Pass [feature, dim]."
        _checks.require(array.ndim == 2 and array.size > 0, "matrix", "must be a matrix", f"shape {array.shape}", fix)
        _checks.require_finite("matrix", array, "Drop those rows or columns.")
        fix = "Pass for instance kbpjax.RBF(1.0)."
        _checks.require(isinstance(base, Kernel), "base", "must be a kernel", repr(base), fix)
        self.matrix = as_floats(array)
        self.base = base

    @property
    def constants(self) -> tuple[str, ...]:
        """The matrix, which is data."""
        return ("matrix",)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(A x, A y)."""
        rule, fix = f"must be vectors of length {self.matrix.shape[1]}", "Pass points of the columns of the matrix."
        _checks.require(x.shape == self.matrix.shape[1:], "points", rule, x.shape, fix)
        return self.base(self.features(x), self.features(y))

    def features(self, x: Shaped[Array, "*sample dim"]) -> Float[Array, "..."]:
        """Return A x of one or more points; numbers if A has one row."""
        x = as_floats(x)
        features = matmul(x, self.matrix.T.astype(x.dtype))
        return features[..., 0] if len(self.matrix) == 1 else features


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern(order: int, square: Float[Array, ""]) -> Float[Array, ""]:
    """Return the Matern kernel of smoothness order + 1/2 as a function of s^2, with correct derivatives at 0.

    The derivative in s^2 is -1/2 or -1/6 times the kernel of the next lower order. Differentiation through s would lose
    second derivatives at 0, because ds/d(s^2) is infinite there.
    """
    square = jnp.minimum(square, 1e6)  # where the kernel is 0 in any precision
    s = jnp.sqrt(square)
    factor = (1, 1 + s, 1 + s + square / 3)[order]
    return factor * jnp.exp(-s)


@_matern.defjvp
def _matern_slope(order: int, primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (square,), (tangent,) = primals, tangents
    if order:
        slope = _matern(order - 1, square) * (-1 / 2, -1 / 6)[order - 1]
    else:  # infinite at 0, where points coincide; 0 is the mean of the one-sided derivatives
        safe = jnp.where(square > 0, square, 1)
        slope = jnp.where(square > 0, -_matern(0, safe) / (2 * jnp.sqrt(safe)), 0)
    return _matern(order, square), slope * tangent


def _groups(groups: Numbers, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of the bandwidth of each coordinate."""
    array = np.asarray(_checks.as_numpy("groups", groups))
    ok = array.ndim == 1 and array.size > 0 and np.issubdtype(array.dtype, np.integer) and len(shape) == 1
    ok = ok and array.min() >= 0 and array.max() < shape[0]
    rule = "must be a vector of numbers of bandwidths, which are a vector too"
    got = f"{array.dtype}{array.shape} for bandwidths of shape {shape}"
    _checks.require(ok, "groups", rule, got, "Number the bandwidths from 0, as kbpjax.window_orbits does.")
    return tuple(array.tolist())


def _scaled(x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"], scale: Float[Array, "..."]) -> Float[Array, "*dim"]:
    """Return (x - y) / scale."""
    difference = as_floats(x) - as_floats(y)
    return difference / scale.astype(difference.dtype)


@public
def median_bandwidth(points: Numbers, *, max_points: int = 3000) -> Float[Array, ""]:
    """Return the median distance between pairs of points, the median heuristic for RBF bandwidths (section 7).

    Of more than `max_points` points a random subset with a fixed seed is compared, so the cost is bounded and the
    result deterministic. If more than half of the pairs coincide, the median of the other pairs is returned. Not
    differentiable; call it outside `jax.jit`.

    Args:
        points: training points [sample, *dim], finite, with at least two distinct points.
        max_points: maximum number of points to compare, >= 2.

    Returns:
        The distance, in the default float precision.

    Raises:
        ValueError: points are too few, not finite or all equal.

    Examples:
        >>> import kbpjax as kbp
        >>> float(kbp.median_bandwidth([0.0, 1.0, 3.0]))
        2.0
    """
    return jnp.asarray(median_distance(points, max_points), jnp.result_type(float))


def median_distance(points: Numbers, max_points: int) -> float:
    """Return the number of `median_bandwidth` in double precision, computed by NumPy."""
    _checks.require_finite("points", points, "Drop or impute the missing points first.")
    _checks.require_count("max_points", max_points)
    _checks.require(
        max_points >= 2, "max_points", "must be an integer >= 2", max_points, "A distance needs two points."
    )
    flat = np.asarray(_checks.as_numpy("points", points), np.float64)
    _checks.require(flat.size > 0, "points", "must hold at least two points", f"shape {flat.shape}", "Add points.")
    flat = flat.reshape(len(flat), -1) if flat.ndim else flat.reshape(1, -1)
    flat = flat[random_rows(len(flat), max_points)]
    flat = flat - flat.mean(axis=0)
    norms = np.sum(flat**2, axis=1)
    squared = norms[:, None] + norms[None] - 2 * flat @ flat.T
    distances = np.sqrt(np.maximum(squared[np.tri(len(flat), k=-1, dtype=bool)], 0))
    distinct = distances > 1e-7 * np.sqrt(norms.max(initial=0))
    fix = "Pass at least two distinct points, or set the bandwidth manually."
    _checks.require(bool(distinct.any()), "points", "must not all be equal", f"{len(flat)} equal points", fix)
    median = np.median(np.where(distinct, distances, 0))
    return float(median if median > 0 else np.median(distances[distinct]))
