"""Kernels on finite sets: labels, sets of labels, rankings, and points with a precomputed Gram matrix."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.kernels.base import Kernel, as_floats, positive_number


class Delta(Kernel):
    """The Kronecker kernel: 1 if two points are equal in every entry, else 0. It gives a discrete model.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.Delta()(jnp.array(3), jnp.array(3)))
        1.0
    """

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return 1 if x equals y, else 0."""
        return jnp.all(x == y).astype(as_floats(x).dtype)


class Precomputed(Kernel):
    """A kernel with a precomputed Gram matrix: points are indices, and k(i, j) = matrix[i, j].

    Any program may compute the kernel, including plain Python. `matrix` must include all points: training samples,
    observations and evaluation points.

    Args:
        matrix: Gram matrix [item, item], symmetric and positive semidefinite.
        tolerance: maximum asymmetry relative to the largest entry, and maximum negative eigenvalue relative to the
            largest eigenvalue.

    Raises:
        ValueError: the matrix is not square, symmetric or positive semidefinite (the message has the violation), or
            indices are out of range (tracers are not checked).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> words = ["tree", "three", "free"]
        >>> common = [[len(set(a) & set(b)) for b in words] for a in words]
        >>> float(kbp.kernels.Precomputed(common)(jnp.array(0), jnp.array(1)))
        3.0
    """

    matrix: Float[Array, "item item"]

    def __init__(self, matrix: Numbers, *, tolerance: float = 1e-5):
        array = as_floats(_checks.as_array("matrix", matrix))
        square = array.ndim == 2 and array.shape[0] == array.shape[1] and array.size > 0
        fix = "Compute the kernel of all pairs of points."
        _checks.require(square, "matrix", "must be square", f"shape {array.shape}", fix)
        _checks.require_finite("matrix", array, fix)
        _checks.require_number("tolerance", tolerance, least=0)
        if not _checks.is_traced(array):
            _check_gram(np.asarray(array, np.float64), float(tolerance))
        self.matrix = array

    @property
    def constants(self) -> tuple[str, ...]:
        """The matrix, which is data."""
        return ("matrix",)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return matrix[x, y]."""
        fix = "Pass one index per point, [sample]."
        _checks.require(x.ndim == 0, "points", "must be single indices", f"points of shape {x.shape}", fix)
        return self.matrix[x.astype(jnp.int32), y.astype(jnp.int32)]

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are indices of the matrix."""
        if _checks.is_traced(points) or points.size == 0:
            return
        x, last = np.asarray(points), len(self.matrix) - 1
        wrong = x[(x != np.round(x)) | (x < 0) | (x > last)]
        rule = f"must be indices among 0 .. {last}, rows of the Gram matrix"
        _checks.require(wrong.size == 0, argument, rule, wrong[:5].tolist(), "Compute a larger matrix.")


def _check_gram(matrix: np.ndarray, tolerance: float) -> None:
    largest = float(np.max(np.abs(matrix)))
    skew = float(np.max(np.abs(matrix - matrix.T)))
    fix = "Average it with its transpose if this is rounding error; otherwise correct the kernel."
    rule = "must be symmetric"
    _checks.require(
        skew <= tolerance * largest, "matrix", rule, f"entries that differ by {skew:.3g} of {largest:.3g}", fix
    )
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    rule, got = "must be positive semidefinite", f"eigenvalues from {eigenvalues[0]:.3g} to {eigenvalues[-1]:.3g}"
    fix = "Clip them: kbpjax.kernels.nearest_gram(matrix)."
    _checks.require(eigenvalues[0] >= -tolerance * max(eigenvalues[-1], 0), "matrix", rule, got, fix)


@public
def nearest_gram(matrix: Numbers) -> np.ndarray:
    """Return the nearest symmetric positive semidefinite matrix: negative eigenvalues are set to 0.

    It converts similarities that are not positive definite, for instance exp(-edit distance), to a Gram matrix. The
    result is a kernel on these points only: each entry depends on all other points.

    Args:
        matrix: similarities [item, item].

    Raises:
        ValueError: the matrix is not square, or has NaN or infinite entries.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> kbp.kernels.nearest_gram(np.array([[0.0, 1.0], [1.0, 0.0]])).round(6).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    array = np.asarray(_checks.as_numpy("matrix", matrix), np.float64)
    square = array.ndim == 2 and array.shape[0] == array.shape[1]
    _checks.require(square, "matrix", "must be square", f"shape {array.shape}", "Compare all pairs of points.")
    _checks.require_finite("matrix", array, "Compare all pairs of points.")
    values, vectors = np.linalg.eigh((array + array.T) / 2)
    return (vectors * np.maximum(values, 0)) @ vectors.T


class Jaccard(Kernel):
    """The Jaccard kernel of sets, |x and y| / |x or y|; for counts, sum_i min(x_i, y_i) / sum_i max(x_i, y_i).

    A point [item] holds an indicator or a count >= 0 of each item. Positive definite; also called the Tanimoto or
    MinMax kernel. The kernel of two empty sets is 1.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.kernels.Jaccard()(jnp.array([1, 1, 0, 0]), jnp.array([0, 1, 1, 1])))
        0.25
    """

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return sum_i min(x_i, y_i) / sum_i max(x_i, y_i)."""
        x, y = as_floats(x), as_floats(y)
        union = jnp.sum(jnp.maximum(x, y))
        overlap = jnp.sum(jnp.minimum(x, y))
        return jnp.where(union > 0, overlap / jnp.where(union > 0, union, 1), 1)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError for entries below 0."""
        if not _checks.is_traced(points) and points.size:
            lowest = np.min(np.asarray(points))
            _checks.require(lowest >= 0, argument, "must be >= 0", lowest, "Pass indicators or counts.")


class Kendall(Kernel):
    """The Kendall kernel of two rankings: (concordant pairs - discordant pairs) / all pairs of items.

    A point [item] holds the rank of each item, or any score; only the order of scores matters, and ties contribute 0.
    Positive definite (Jiao and Vert 2015). O(item^2) per pair of points; requires at least two items.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.kernels.Kendall()(jnp.array([0, 1, 2]), jnp.array([0, 2, 1]))), 4)
        0.3333
    """

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return the mean over pairs of items of sign(x_i - x_j) sign(y_i - y_j)."""
        return jnp.sum(_orders(x) * _orders(y)) / (len(x) * (len(x) - 1))


class Mallows(Kernel):
    """The Mallows kernel of two rankings: exp(-concentration (fraction of discordant pairs of items)).

    A point [item] holds the rank of each item, without ties. Positive definite (Jiao and Vert 2015).

    Args:
        concentration: number > 0; the kernel of a ranking and its reverse is exp(-concentration).

    Raises:
        ValueError: concentration is not positive and finite, or points have ties (tracers are not checked).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.kernels.Mallows(3.0)(jnp.array([0, 1, 2]), jnp.array([0, 2, 1]))), 4)
        0.3679
    """

    concentration: Float[Array, ""]

    def __init__(self, concentration: ScalarLike):
        self.concentration = positive_number("concentration", concentration)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return exp(-concentration (1 - Kendall) / 2)."""
        discordant = (1 - Kendall()(x, y)) / 2
        return jnp.exp(-self.concentration.astype(discordant.dtype) * discordant)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError if a point has ties."""
        if _checks.is_traced(points) or points.ndim != 2:
            return
        ordered = np.sort(np.asarray(points), axis=1)
        ties = int(np.sum(np.any(ordered[:, 1:] == ordered[:, :-1], axis=1)))
        fix = "Break the ties, or use kbpjax.kernels.Kendall()."
        _checks.require(ties == 0, argument, "must rank all items differently", f"{ties} points with ties", fix)


def _orders(x: Shaped[Array, "*dim"]) -> Float[Array, "item item"]:
    """Return the sign of x_i - x_j for all pairs of items."""
    fix = "Pass the ranks of two or more items, [sample, item]."
    _checks.require(x.ndim == 1 and len(x) > 1, "points", "must be rankings", f"points of shape {x.shape}", fix)
    return (x[:, None] > x[None]).astype(as_floats(x).dtype) - (x[:, None] < x[None]).astype(as_floats(x).dtype)
