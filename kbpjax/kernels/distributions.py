"""Kernels on probability distributions, computed from mean embeddings of Gaussians with the same moments.

A point is a tuple of independent distributions with d coordinates in total. Its array is [2, d], with means in row 0
and variances in row 1, or [1 + d, d], with the mean in row 0 and the covariance matrix below. For d = 1 the two agree.
A distribution that is not Gaussian is represented by the Gaussian with its moments, as in Jitkrittum et al. 2015
("Kernel-Based Just-In-Time Learning for Passing Expectation Propagation Messages", UAI, arXiv:1503.02551, section 4).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.kernels.base import Kernel, as_floats, positive_number, random_rows

SHAPES = "Pass points [2, d] of means and variances, or [1 + d, d] of a mean and a covariance matrix."


class _EmbeddingKernel(Kernel):
    """Base class of kernels on the mean embeddings of distributions."""

    bandwidths: Float[Array, "..."]

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are distributions with a coordinate for each bandwidth."""
        check_distributions(argument, points)
        _check_width(argument, "bandwidths", self.bandwidths, points.shape[-1])


class ExpectedProduct(_EmbeddingKernel):
    r"""The inner product of the mean embeddings of two distributions, $E \exp(-\sum_l (x_l - y_l)^2 / (2 \sigma_l^2))$.

    With $x \sim N(m, V)$, $y \sim N(n, W)$, $S = \operatorname{diag}(\sigma^2)$ and $T = V + W + S$, the expected
    product kernel (Jitkrittum et al. 2015, section 4) is

    $$\sqrt{\det S / \det T} \; \exp(-\tfrac{1}{2} (m - n)^\top T^{-1} (m - n)).$$

    For independent coordinates it is the product of the kernels of the coordinates. k(x, x) is below 1, and decreases
    with the variance of x.

    Args:
        bandwidths: length scales > 0, in the units of the coordinates: one number, or one per coordinate [d].

    Raises:
        ValueError: a bandwidth is not positive and finite, or points are not distributions.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> p, q = jnp.array([[0.3], [0.5]]), jnp.array([[-0.2], [1.1]])  # N(0.3, 0.5) and N(-0.2, 1.1)
        >>> round(float(kbp.kernels.ExpectedProduct(0.8**0.5)(p, q)), 4)
        0.548
    """

    def __init__(self, bandwidths: Numbers):
        self.bandwidths = positive_numbers("bandwidths", bandwidths)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the inner product of the embeddings."""
        return jnp.exp(_log_inner(*_scaled_pair(x, y, self.bandwidths)))

    def squared_distance(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the squared distance of the embeddings, >= 0 and exactly 0 if x = y, with a finite gradient."""
        return _squared_distance(*_scaled_pair(x, y, self.bandwidths))


class EmbeddingRBF(_EmbeddingKernel):
    r"""The Gaussian kernel of mean embeddings, $\exp(-\|\mu_x - \mu_y\|^2 / (2 \gamma^2))$ with width $\gamma$.

    $\mu_x$ is the mean embedding of x, with inner product `ExpectedProduct`. This is the kernel of KJIT (Jitkrittum et
    al. 2015). k(x, x) = 1.

    Args:
        bandwidths: bandwidths of the embeddings, as in `ExpectedProduct`.
        width: length scale > 0 of distances between embeddings, which are below sqrt(2). `median_embedding` estimates
            both parameters.

    Raises:
        ValueError: a parameter is not positive and finite, or points are not distributions.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> p, q = jnp.array([[0.3], [0.5]]), jnp.array([[-0.2], [1.1]])
        >>> kernel = kbp.kernels.EmbeddingRBF(0.9, width=0.3)
        >>> float(kernel(p, p)), round(float(kernel(p, q)), 2)
        (1.0, 0.62)
    """

    width: Float[Array, ""]

    def __init__(self, bandwidths: Numbers, width: ScalarLike):
        self.bandwidths = positive_numbers("bandwidths", bandwidths)
        self.width = positive_number("width", width)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(-||mu_x - mu_y||^2 / (2 width^2))."""
        square = _squared_distance(*_scaled_pair(x, y, self.bandwidths))
        return jnp.exp(-0.5 * square / self.width.astype(square.dtype) ** 2)


class MeanVariance(Kernel):
    r"""The Gaussian kernel of means and variances.

    For means m, n with widths a, and variances v, w with widths b, the MV kernel (Jitkrittum et al. 2015, section 5.1)
    is

    $$\exp\Big(-\sum_l \frac{(m_l - n_l)^2}{2 a_l^2} - \sum_l \frac{(v_l - w_l)^2}{2 b_l^2}\Big).$$

    Points [2, d] have independent coordinates.

    Args:
        mean_widths: widths > 0, in the units of the coordinates: one number, or one per coordinate [d].
        variance_widths: widths > 0, in squared units. `median_mean_variance` estimates both parameters.

    Raises:
        ValueError: a width is not positive and finite, or points are not means and variances.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> p, q = jnp.array([[0.0], [1.0]]), jnp.array([[1.0], [1.0]])
        >>> round(float(kbp.kernels.MeanVariance(1.0, 1.0)(p, q)), 4)
        0.6065
    """

    mean_widths: Float[Array, "..."]
    variance_widths: Float[Array, "..."]

    def __init__(self, mean_widths: Numbers, variance_widths: Numbers):
        self.mean_widths = positive_numbers("mean_widths", mean_widths)
        self.variance_widths = positive_numbers("variance_widths", variance_widths)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the Gaussian kernel of the scaled means and variances."""
        _check_same("points", x, y)
        check_independent("points", x.shape)
        difference = as_floats(x) - as_floats(y)
        means = difference[0] / self.mean_widths.astype(difference.dtype)
        variances = difference[1] / self.variance_widths.astype(difference.dtype)
        return jnp.exp(-0.5 * jnp.sum(means**2 + variances**2))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are means and variances with a coordinate for each width."""
        check_distributions(argument, points)
        check_independent(argument, points.shape[1:])
        _check_width(argument, "mean_widths", self.mean_widths, points.shape[-1])
        _check_width(argument, "variance_widths", self.variance_widths, points.shape[-1])


class Coordinates(Kernel):
    """A kernel of the marginal distribution of the coordinates start .. stop - 1.

    Use it for sums and products of kernels of single messages in a tuple, for instance
    `Coordinates(first, 0, 1) + Coordinates(second, 1, 2)`.

    Args:
        base: the kernel of the marginal distribution.
        start: first coordinate, >= 0.
        stop: coordinate after the last one, > start.

    Raises:
        ValueError: start or stop is out of range, or points are not distributions.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.kernels import Coordinates, ExpectedProduct
        >>> x = jnp.array([[0.0, 5.0], [1.0, 2.0]])
        >>> each = Coordinates(ExpectedProduct(1.0), 0, 1) * Coordinates(ExpectedProduct(3.0), 1, 2)
        >>> bool(jnp.isclose(each(x, x), ExpectedProduct(jnp.array([1.0, 3.0]))(x, x)))
        True
    """

    base: Kernel
    start: int = eqx.field(static=True, converter=_checks.whole)
    stop: int = eqx.field(static=True, converter=_checks.whole)

    def __check_init__(self) -> None:
        check_range(self.start, self.stop)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the kernel of the marginal distributions."""
        return self.base(marginal(x, self.start, self.stop), marginal(y, self.start, self.stop))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless the marginal distributions lie in the domain of the base kernel."""
        check_shape(argument, points.shape[1:])
        self.base.check(argument, jax.vmap(lambda x: marginal(x, self.start, self.stop))(points))


@public
def median_embedding(
    points: Numbers, *, max_points: int = 2000
) -> tuple[Float[Array, " coordinate"], Float[Array, ""]]:
    """Return bandwidths [d] and width of `EmbeddingRBF` by the median heuristic (Jitkrittum et al. 2015, section 5).

    bandwidths^2 is the average variance of each coordinate. width^2 is the median squared distance between embeddings
    over all pairs of samples, including pairs of a sample with itself. Works inside `jax.jit`.

    Args:
        points: distributions [sample, 2, d] or [sample, 1 + d, d].
        max_points: maximum number of points to compare, >= 1: of more, a random subset with a fixed seed.

    Raises:
        ValueError: points are not distributions. Outside `jax.jit` also: a coordinate has only variances 0, or more
            than half of the pairs are equal.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> x = jnp.stack([jnp.linspace(-1, 1, 9), jnp.full(9, 0.25)], axis=1)[:, :, None]
        >>> bandwidths, width = kbp.kernels.median_embedding(x)
        >>> bandwidths.tolist(), round(float(width), 2)
        ([0.5], 0.6)
    """
    array, few = _samples(points, max_points)
    spread = array[:, 1] if array.shape[1] == 2 else jnp.diagonal(array[:, 1:], axis1=1, axis2=2)
    bandwidths = jnp.sqrt(jnp.mean(spread, axis=0))
    fix = "Set the parameters manually."
    concrete = not _checks.is_traced(bandwidths)
    positive = not concrete or bool(jnp.all(bandwidths > 0))
    _checks.require(positive, "points", "must have a variance > 0 in each coordinate", "only 0 in one", fix)
    width = jnp.sqrt(jnp.median(_squared_distances(few, bandwidths)))
    differ = not concrete or bool(width > jnp.finfo(width.dtype).eps)  # equal points differ by rounding
    _checks.require(differ, "points", "must differ in over half of the pairs", "a median distance of 0", fix)
    return bandwidths, width


@public
def median_mean_variance(
    points: Numbers, *, max_points: int = 2000
) -> tuple[Float[Array, " coordinate"], Float[Array, " coordinate"]]:
    """Return the widths of `MeanVariance` by the median heuristic: sqrt(median^2 + 1e-4) of each coordinate.

    The median is over the absolute differences of all pairs of samples, including pairs of a sample with itself. The
    term 1e-4 keeps the widths of constant coordinates above 0. Works inside `jax.jit`.

    Args:
        points: means and variances [sample, 2, d].
        max_points: maximum number of points to compare, >= 1: of more, a random subset with a fixed seed.

    Returns:
        The widths of the means [d] and of the variances [d].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> x = jnp.array([[[0.0], [1.0]], [[4.0], [1.0]], [[8.0], [1.0]]])
        >>> means, variances = kbp.kernels.median_mean_variance(x)
        >>> round(float(means[0]), 2), round(float(variances[0]), 2)
        (4.0, 0.01)
    """
    array, few = _samples(points, max_points)
    check_independent("points", array.shape[1:])
    columns = few.reshape(len(few), -1).T
    medians = jax.lax.map(lambda column: jnp.median(jnp.abs(column[:, None] - column[None, :])), columns)
    widths = jnp.sqrt(medians**2 + 1e-4).reshape(few.shape[1:])
    return widths[0], widths[1]


def check_distributions(argument: str, points: Shaped[Array, "sample *dim"]) -> None:
    """Raise ValueError, naming the argument, unless points are distributions; only the shape of tracers is checked."""
    check_shape(argument, points.shape[1:])
    if _checks.is_traced(points) or points.size == 0:
        return
    _checks.require_finite(argument, points, "Drop or impute missing distributions first.")
    values = np.asarray(points, np.float64)
    tolerance = float(jnp.finfo(jax.eval_shape(as_floats, points).dtype).eps) ** 0.5
    if values.shape[1] == 2:
        lowest = float(values[:, 1].min())
        _checks.require(lowest >= 0, argument, "must have variances >= 0", f"{lowest:.4g}", "Row 1 holds variances.")
        return
    _check_covariances(argument, values[:, 1:], tolerance)


def check_range(start: Any, stop: Any) -> None:
    """Raise ValueError unless 0 <= start < stop."""
    rule, got = "must be 0 <= start < stop", f"{start}, {stop}"
    _checks.require(0 <= start < stop, "start, stop", rule, got, "Number the coordinates from 0.")


def marginal(x: Shaped[Array, "*dim"], start: int, stop: int) -> Shaped[Array, "*dim_of_part"]:
    """Return the marginal distribution of the coordinates start .. stop - 1 of a point."""
    check_shape("points", x.shape)
    rule = f"must have at least {stop} coordinates"
    _checks.require(stop <= x.shape[1], "points", rule, f"shape {x.shape}", "Use stop <= d.")
    if x.shape[0] == 2:
        return x[:, start:stop]
    return jnp.concatenate([x[:1, start:stop], x[1 + start : 1 + stop, start:stop]])


def positive_numbers(argument: str, values: Numbers) -> Float[Array, "..."]:
    """Return a number or vector as a float array; raise ValueError unless all entries are finite and > 0."""
    given = as_floats(_checks.as_array(argument, values))
    array = given.astype(given.dtype)  # strong type: a weak type would compile twice
    fix = "Pass one positive number, or one per coordinate."
    ok = array.ndim <= 1 and array.size > 0
    _checks.require(ok, argument, "must be a number or a vector", f"shape {array.shape}", fix)
    _checks.require_finite(argument, array, fix)
    if not _checks.is_traced(array):
        lowest = float(np.min(np.asarray(array)))
        _checks.require(lowest > 0, argument, "must be > 0", f"a minimum of {lowest}", fix)
    return array


def _samples(
    points: Numbers, max_points: int
) -> tuple[Float[Array, "sample row coordinate"], Float[Array, "few row coordinate"]]:
    """Return checked samples, and at most `max_points` of them."""
    _checks.require_count("max_points", max_points)
    array = as_floats(_checks.as_array("points", points))
    check_distributions("points", array)
    _checks.require(len(array) > 0, "points", "must hold at least one sample", f"shape {array.shape}", "Add points.")
    return array, array[random_rows(len(array), max_points)]


@jax.jit
def _squared_distances(
    points: Float[Array, "sample row coordinate"], bandwidths: Float[Array, " coordinate"]
) -> Float[Array, "sample sample"]:
    one = lambda x: jax.vmap(lambda y: _squared_distance(*_scaled_pair(x, y, bandwidths)))(points)
    return jax.lax.map(one, points)


def _scaled_pair(
    x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"], bandwidths: Float[Array, "..."]
) -> tuple[Float[Array, "row coordinate"], Float[Array, "row coordinate"]]:
    """Return two distributions in units in which all bandwidths are 1."""
    _check_same("points", x, y)
    check_shape("points", x.shape)
    _check_width("points", "bandwidths", bandwidths, x.shape[1])
    x, y = as_floats(x), as_floats(y)
    scale = jnp.broadcast_to(bandwidths.astype(x.dtype), x.shape[1:])
    return _in_units(x, scale), _in_units(y, scale)


def _in_units(x: Float[Array, "row coordinate"], scale: Float[Array, " coordinate"]) -> Float[Array, "row coordinate"]:
    """Return the distribution of coordinates divided by their scales."""
    divided = x / scale[None]
    left = scale[None] if x.shape[0] == 2 else scale[:, None]
    return jnp.concatenate([divided[:1], divided[1:] / left])


def _log_inner(x: Float[Array, "row coordinate"], y: Float[Array, "row coordinate"]) -> Float[Array, ""]:
    """Return the logarithm of the inner product of embeddings with bandwidths 1."""
    difference = x[0] - y[0]
    if x.shape[0] == 2:
        spread = x[1] + y[1]
        return -0.5 * jnp.sum(jnp.log1p(spread) + difference**2 / (1 + spread))
    root = jnp.linalg.cholesky(jnp.eye(x.shape[1], dtype=x.dtype) + x[1:] + y[1:])
    whitened = jax.scipy.linalg.solve_triangular(root, difference, lower=True)
    return -jnp.sum(jnp.log(jnp.diagonal(root))) - 0.5 * jnp.sum(whitened**2)


def _squared_distance(x: Float[Array, "row coordinate"], y: Float[Array, "row coordinate"]) -> Float[Array, ""]:
    """Return |x|^2 + |y|^2 - 2 <x, y> = (|x| - |y|)^2 + 2 |x| |y| (1 - cosine) of embeddings, without cancellation."""
    x_half, y_half = 0.5 * _log_inner(x, x), 0.5 * _log_inner(y, y)
    cosine_less_one = jnp.expm1(_log_cosine(x, y, x_half + y_half))
    return (jnp.exp(x_half) - jnp.exp(y_half)) ** 2 - 2 * jnp.exp(x_half + y_half) * cosine_less_one


def _log_cosine(
    x: Float[Array, "row coordinate"], y: Float[Array, "row coordinate"], log_norms: Float[Array, ""]
) -> Float[Array, ""]:
    """Return log(<x, y> / (|x| |y|)) <= 0, exactly 0 if x = y."""
    if x.shape[0] == 2:
        a, b = 1 + 2 * x[1], 1 + 2 * y[1]
        # The determinants contribute -log((a + b)^2 / (4 a b)) / 4, with (a + b)^2 / (4 a b) = 1 + (a - b)^2 / (4 a b).
        widths = jnp.log1p((a - b) / a * ((a - b) / b) / 4)
        return -0.25 * jnp.sum(widths) - jnp.sum((x[0] - y[0]) ** 2 / (a + b))
    return jnp.where(jnp.all(x == y), 0, jnp.minimum(_log_inner(x, y) - log_norms, 0))


def check_shape(argument: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a single point has the shape of a distribution."""
    ok = len(shape) == 2 and shape[1] >= 1 and shape[0] in (2, 1 + shape[1])
    _checks.require(ok, argument, "must be distributions", f"points of shape {shape}", SHAPES)


def _check_same(argument: str, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> None:
    got = f"{x.shape} and {y.shape}"
    fix = "Convert variances to covariance matrices."
    _checks.require(x.shape == y.shape, argument, "must have one shape", got, fix)


def check_independent(argument: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a single point has the shape of means and variances."""
    check_shape(argument, shape)
    fix = "Use the diagonals of the covariance matrices."
    _checks.require(shape[0] == 2, argument, "must be means and variances [2, d]", f"points of shape {shape}", fix)


def _check_width(argument: str, of: str, scales: Float[Array, "..."], width: int) -> None:
    rule = f"must have {scales.size} coordinates, as {of}"
    ok = scales.ndim == 0 or scales.shape == (width,)
    _checks.require(ok, argument, rule, f"{width} coordinates", f"Pass one entry of {of} per coordinate.")


def _check_covariances(argument: str, matrices: np.ndarray, tolerance: float) -> None:
    """Raise ValueError unless matrices are symmetric and positive semidefinite, up to a tolerance."""
    largest = np.maximum(np.abs(matrices).max(axis=(1, 2)), np.finfo(np.float64).tiny)
    skew = float((np.abs(matrices - np.swapaxes(matrices, 1, 2)).max(axis=(1, 2)) / largest).max())
    rule, got = "must have symmetric covariance matrices", f"entries that differ by {skew:.2g} of the largest"
    _checks.require(skew <= tolerance, argument, rule, got, "Pass (V + V') / 2.")
    lowest = float((np.linalg.eigvalsh(matrices)[:, 0] / largest).min())
    rule = "must have positive semidefinite covariance matrices"
    got = f"an eigenvalue {lowest:.2g} of the largest entry"
    _checks.require(lowest >= -tolerance, argument, rule, got, "Clip the eigenvalues at 0.")
