"""Pivoted Cholesky: landmarks whose features span all training features up to a tolerance (section 5.1).

Greedy Gram-Schmidt in feature space selects the point with the largest residual, orthogonalizes and repeats. The
residual of a point is ||phi(x) - P phi(x)||, with P the projection onto the span of the landmarks' features. Let L be
the Cholesky factor of the landmarks' Gram matrix. The coordinates of a point in an orthonormal basis of the span are
r(x) = L^{-1} k(landmarks, x), and <r(x), r(y)> is close to k(x, y).

Greedy selection favors outliers, because their residuals are largest. Randomly pivoted Cholesky (Chen, Epperly, Tropp
and Webber 2022) draws each landmark with probability proportional to its squared residual. Outliers then compete with
all other points, and the sum of squared residuals is close to the minimum for the rank.

The selection of landmarks has no gradient. For fixed landmarks, everything here is differentiable in the kernel.
"""

import contextlib
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._misc import inside_others, matmul, quick_jit, show_fields
from kbpjax._public import Checked, finite
from kbpjax.features.base import FeatureMap, LandmarkSelector
from kbpjax.kernels import Kernel, diagonal, gram

NEAREST = 4
"""Number of points with a weight in `Neighbors`."""


class Basis(FeatureMap):
    """An orthonormal basis of the span of the features of landmarks.

    Attributes:
        landmarks: points [rank, *dim].
        kernel: the kernel of the features.
        transform: change of basis [rank, rank], L^{-T}; the features of x are k(x, landmarks) @ transform.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import cholesky_basis
        >>> basis = cholesky_basis(kbp.RBF(1.0), jnp.array([0.0, 2.0]))
        >>> basis.rank, basis(jnp.linspace(-1, 3, 9)).shape
        (2, (9, 2))
        >>> basis.landmarks.tolist()
        [0.0, 2.0]
    """

    landmarks: Shaped[Array, "rank *dim"]
    kernel: Kernel
    transform: Float[Array, "rank rank"]

    @finite("x")
    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the coordinates r(x) of points [sample, *dim] in the basis."""
        return matmul(gram(self.kernel, x, self.landmarks), self.transform)

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points lie in the domain of the kernel."""
        self.kernel.check(argument, x)

    @property
    def rank(self) -> int:
        """The number of landmarks, including padding."""
        return self.transform.shape[1]

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a landmark."""
        return jax.ShapeDtypeStruct(self.landmarks.shape[1:], self.landmarks.dtype)


class RelativeBasis(Basis):
    r"""Features divided by the density of the samples, $\phi(x) / \langle \phi(x), \mu \rangle$.

    A function $\langle \phi(x), c \rangle$ with $c = \mathbb{E}[v \, \phi(X)]$ becomes the smoothed conditional mean
    of v at x, $\sum_i k(x, x_i) v_i / \sum_i k(x, x_i)$ (Nadaraya 1964, Watson 1964).

    Attributes:
        mean: mean of the features of the samples, mu [rank].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features.cholesky import RelativeBasis, cholesky_basis
        >>> x, v = jnp.array([0.0, 1.0, 2.0]), jnp.array([5.0, 5.0, 8.0])
        >>> basis = cholesky_basis(kbp.RBF(0.1), x)
        >>> relative = RelativeBasis.of(basis, basis(x).mean(axis=0))
        >>> print((relative(x) @ (v[:, None] * basis(x)).mean(axis=0)).round(3))
        [5. 5. 8.]
    """

    mean: Float[Array, " rank"]

    @classmethod
    def of(cls, basis: Basis, mean: Float[Array, " rank"]) -> "RelativeBasis":
        """Return the features of a basis divided by their mean."""
        return cls.trusted(basis.landmarks, basis.kernel, basis.transform, mean)

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of points [sample, *dim]; far from all samples, they tend to 0."""
        at_points = plain_features(self, x)
        mean = self.mean.astype(at_points.dtype)
        least = RARE * jnp.sum(mean**2)  # of the mean density of the samples
        density = jnp.maximum(matmul(at_points, mean), jnp.where(least > 0, least, 1))
        return at_points / density[:, None]


class Shares(Basis):
    r"""The shares of landmarks in a point, $k(x, x_p) / \sum_q k(x, x_q)$: nonnegative, with sum 1.

    Values v_p at the landmarks become the function $\sum_p v_p k(x, x_p) / \sum_q k(x, x_q)$ between them.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features.cholesky import Shares, cholesky_basis
        >>> shares = Shares.of(cholesky_basis(kbp.RBF(1.0), jnp.array([0.0, 2.0])))
        >>> shares(jnp.array([1.0])).tolist(), shares.transform.tolist()
        ([[0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]])
    """

    @classmethod
    def of(cls, basis: Basis) -> "Shares":
        """Return the shares of the valid landmarks of a basis."""
        valid = (jnp.diagonal(basis.transform) != 0).astype(basis.transform.dtype)
        return cls.trusted(basis.landmarks, basis.kernel, jnp.diag(valid))

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the shares of points [sample, *dim]; 0 for points far from all landmarks."""
        near = jnp.maximum(plain_features(self, x), 0)
        total = jnp.sum(near, axis=1, keepdims=True)
        return near / jnp.where(total > 0, total, 1)


class Hats(Shares):
    """The weights of sorted numbers in linear interpolation; outside of them, the nearest has weight 1.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features.cholesky import Hats
        >>> hats = Hats.at(kbp.RBF(1.0), jnp.array([0.0, 1.0, 3.0]))
        >>> hats(jnp.array([0.25, 2.0, 9.0])).tolist()
        [[0.75, 0.25, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    """

    @classmethod
    def at(cls, kernel: Kernel, points: Shaped[Array, " rank"]) -> "Hats":
        """Return the weights of sorted points."""
        return cls.trusted(points, kernel, _checks.to_jax(np.eye(len(points)), jnp.result_type(float)))

    def __call__(self, x: Shaped[Array, " sample"]) -> Float[Array, "sample rank"]:
        """Return the weights of the points in each x."""
        dtype, last = self.transform.dtype, len(self.landmarks) - 1
        points, x = self.landmarks.astype(dtype), x.astype(dtype)
        left = jnp.clip(jnp.searchsorted(points, x, side="right") - 1, 0, max(last - 1, 0))
        right = jnp.minimum(left + 1, last)
        gap = points[right] - points[left]
        share = jnp.clip((x - points[left]) / jnp.where(gap > 0, gap, 1), 0, 1)[:, None]
        weights = [jax.nn.one_hot(one, last + 1, dtype=dtype) for one in (left, right)]
        return (1 - share) * weights[0] + share * weights[1]


class Levels(Basis):
    """Weights of linear interpolation between sorted numbers as features: coefficients are values at these numbers.

    A point outside of the numbers has the features of the nearest one, up to a quarter of their range away. Points
    farther away have features 0.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features.cholesky import Levels
        >>> Levels.at(kbp.RBF(1.0), jnp.array([0.0, 1.0, 3.0]))(jnp.array([0.25, 3.5, 9.0])).tolist()
        [[0.75, 0.25, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """

    @classmethod
    def at(cls, kernel: Kernel, points: Shaped[Array, " rank"]) -> "Levels":
        """Return the features of sorted points."""
        return cls.trusted(points, kernel, jnp.eye(len(points), dtype=jnp.result_type(float)))

    def __call__(self, x: Shaped[Array, " sample"]) -> Float[Array, "sample rank"]:
        """Return the features of numbers."""
        weights = Hats.__call__(self, x)  # type: ignore[arg-type]
        points = self.landmarks.astype(weights.dtype)
        outside = jnp.maximum(points[0] - x.astype(weights.dtype), x.astype(weights.dtype) - points[-1])
        return jnp.where((outside <= (points[-1] - points[0]) / 4)[:, None], weights, 0)


class Neighbors(Basis):
    r"""Weights of the points that are nearest to x in the feature space of the kernel: nonnegative, with sum 1.

    The four nearest points have weights $(1 / d_p - 1 / d)^2$ up to a factor, with $d_p$ their distances and $d$ that
    of the fifth (Franke and Little 1979). Values at the points become a continuous function with these values there.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features.cholesky import Neighbors
        >>> weights = Neighbors.at(kbp.RBF(1.0), jnp.array([[0.0, 0.0], [3.0, 0.0], [9.0, 0.0]]))
        >>> weights(jnp.array([[3.0, 0.0], [1.5, 0.0]])).round(3).tolist()
        [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
    """

    @classmethod
    def at(cls, kernel: Kernel, points: Shaped[Array, "rank *dim"]) -> "Neighbors":
        """Return the weights of different points."""
        return cls.trusted(points, kernel, _checks.to_jax(np.eye(len(points)), jnp.result_type(float)))

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the weights of the points in each x [sample, *dim]."""
        points = self.landmarks
        products = gram(self.kernel, x, points)
        norms = diagonal(self.kernel, points)
        square = diagonal(self.kernel, x)[:, None] + norms[None] - 2 * products
        near, which = jax.lax.top_k(-square, min(NEAREST + 1, len(points)))
        rounding = jnp.finfo(near.dtype).eps * jnp.max(norms)
        distance = jnp.sqrt(jnp.maximum(-near, jnp.where(rounding > 0, rounding, 1)))
        weights = (distance[:, -1:] / distance - 1) ** 2
        weights = weights.at[:, 0].add(jnp.finfo(near.dtype).eps)  # where all are equally far
        rows = jnp.arange(len(x))[:, None]
        return jnp.zeros_like(square).at[rows, which].set(weights / jnp.sum(weights, axis=1, keepdims=True))


def plain_features(basis: FeatureMap, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
    """Return features whose products are close to the kernel, also of a `RelativeBasis`."""
    return Basis.__call__(basis, x) if isinstance(basis, RelativeBasis | Shares) else basis(x)


class Pivots(Checked):
    """The pivots of an incomplete Cholesky factorization.

    Attributes:
        indices: indices of the selected points, in order of selection; entries from `rank` on are padding (0).
        rank: number of selected points.
        residual: maximum residual norm over all points, relative to the maximum feature norm.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import incomplete_cholesky
        >>> x = jnp.array([1, 1, 1, 2, 2, 3])
        >>> pivots = incomplete_cholesky(kbp.Delta(), x, eps=0.1, max_rank=5)
        >>> int(pivots.rank), x[pivots.indices[: int(pivots.rank)]].tolist(), float(pivots.residual)
        (3, [1, 2, 3], 0.0)
    """

    indices: Int[Array, " max_rank"]
    rank: Int[Array, ""]
    residual: Float[Array, ""]

    __repr__ = show_fields


@finite("x")
@partial(quick_jit, static_argnames="max_rank")
def incomplete_cholesky(
    kernel: Kernel,
    x: Shaped[Array, "sample *dim"],
    eps: ScalarLike,
    max_rank: int,
    key: PRNGKeyArray | None = None,
) -> Pivots:
    """Return landmarks, selected until all residual norms are <= eps or `max_rank` landmarks are selected.

    O(sample max_rank^2) time, O(sample max_rank) memory; kernel columns are computed when needed. Single precision
    cannot resolve squared residuals below about 1e-6 k(x, x), so an eps below 1e-3 is not reached. `Pivots.residual` is
    the residual that was reached.

    Args:
        kernel: the kernel.
        x: points [sample, *dim]; duplicates of a landmark have residual 0 and are never selected.
        eps: tolerance > 0 on the residual norms, relative to the maximum feature norm, sqrt(max k(x, x)).
        max_rank: maximum number of landmarks, >= 1; the number of samples is also a bound.
        key: random key; landmarks are then drawn with probability proportional to their squared residual norms. None:
            the next landmark is the point with the largest residual.

    Returns:
        The pivots.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import incomplete_cholesky
        >>> x = jnp.linspace(0, 1, 200)
        >>> greedy = incomplete_cholesky(kbp.RBF(0.5), x, 1e-2, 20)
        >>> drawn = incomplete_cholesky(kbp.RBF(0.5), x, 1e-2, 20, key=jax.random.key(0))
        >>> bool(greedy.rank < 10), bool(drawn.rank < 15), bool(drawn.residual <= 1e-2)
        (True, True, True)
    """
    _checks.require_count("max_rank", max_rank)
    _checks.require(x.size > 0, "x", "must hold a point", f"shape {x.shape}", "Pass [sample, *dim].")
    max_rank = min(max_rank, x.shape[0])
    variance = diagonal(kernel, x)
    scale = jnp.max(variance)
    rounding = 8 * jnp.finfo(variance.dtype).eps * scale
    tolerance = jnp.maximum(scale * jnp.asarray(eps, variance.dtype) ** 2, rounding)

    def unfinished(carry):
        _, residual, _, rank = carry
        return (rank < max_rank) & (jnp.max(residual) > tolerance)

    def choose(carry):
        rows, residual, indices, rank = carry
        if key is None:
            scores = residual
        else:  # Gumbel-max sampling; a residual near rounding error is drawn only if there is no larger one
            gumbel = jax.random.gumbel(jax.random.fold_in(key, rank), residual.shape, residual.dtype)
            threshold = jnp.minimum(16 * rounding, jnp.max(residual) / 2)
            scores = jnp.where(residual > threshold, jnp.log(residual) + gumbel, -jnp.inf)
        pivot = jnp.argmax(scores).astype(jnp.int32)
        column = jax.vmap(partial(kernel, x[pivot]))(x)
        row = (column - matmul(rows[:, pivot], rows)) * jax.lax.rsqrt(residual[pivot])
        residual = jnp.maximum(residual - row**2, 0).at[pivot].set(0)
        return rows.at[rank].set(row), residual, indices.at[rank].set(pivot), rank + 1

    rows = jnp.zeros((max_rank, x.shape[0]), variance.dtype)
    start = (rows, variance, jnp.zeros(max_rank, jnp.int32), jnp.int32(0))
    _, residual, indices, rank = jax.lax.while_loop(unfinished, choose, start)
    return Pivots(indices, rank, jnp.sqrt(jnp.max(residual) / jnp.where(scale > 0, scale, 1)))


@finite("landmarks")
@quick_jit
def cholesky_basis(
    kernel: Kernel,
    landmarks: Shaped[Array, "rank *dim"],
    valid: Bool[Array, " rank"] | None = None,
    rounding: ScalarLike | None = None,
) -> Basis:
    """Return the orthonormal basis of given landmarks; differentiable in the kernel and the landmarks.

    Args:
        kernel: the kernel.
        landmarks: points [rank, *dim] with linearly independent features.
        valid: mask of valid landmarks; features of invalid landmarks are 0. None: all landmarks are valid.
        rounding: jitter on the diagonal, in units of machine epsilon times max k(x, x), so that the factorization
            exists. None: max(4, sqrt(number of landmarks)), sufficient for landmarks selected by residuals. For
            arbitrary points use the number of points.

    Returns:
        The basis.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import cholesky_basis
        >>> landmarks = jnp.array([0.0, 1.0, 2.0])
        >>> phi = cholesky_basis(kbp.RBF(1.0), landmarks)(landmarks)
        >>> bool(abs(phi @ phi.T - kbp.gram(kbp.RBF(1.0), landmarks, landmarks)).max() < 1e-5)
        True
    """
    _checks.require(len(landmarks) > 0, "landmarks", "must have at least one point", 0, "Pass points.")
    gram_matrix = gram(kernel, landmarks, landmarks)
    identity = jnp.eye(len(landmarks), dtype=gram_matrix.dtype)
    used = jnp.ones(len(landmarks), bool) if valid is None else valid
    scale = jnp.max(jnp.where(used, jnp.diagonal(gram_matrix), 0))
    gram_matrix = jnp.where(used[:, None] & used[None], gram_matrix, scale * identity)
    factor_of_eps = max(4.0, len(landmarks) ** 0.5) if rounding is None else rounding
    jitter = jnp.asarray(factor_of_eps, scale.dtype) * jnp.finfo(scale.dtype).eps * scale
    factor = jnp.linalg.cholesky(gram_matrix + jitter * identity)
    inverse = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    return Basis(landmarks, kernel, jnp.where(used[:, None] & used[None], inverse.T, 0))


RARE = 1e-4
"""Density, relative to the mean density of samples, below which a relative basis divides by no less."""

FAR = 1e-3
"""Share of the squared norm of a feature that a basis must represent for its point to be near the training samples."""


@finite("x")
@jax.jit
def represented(basis: Basis, x: Shaped[Array, "sample *dim"]) -> Float[Array, " sample"]:
    """Return the share of the squared norm of each feature that a basis represents, in [0, 1].

    Of `Levels` it is the sum of the weights, and of `Neighbors` the share that the most similar point represents.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import cholesky_basis, represented
        >>> represented(cholesky_basis(kbp.RBF(1.0), jnp.array([0.0, 1.0])), jnp.array([0.0, 9.0])).round(3).tolist()
        [1.0, 0.0]
    """
    norms = diagonal(basis.kernel, x)
    if isinstance(basis, Levels):  # weights, not coordinates of features; 0 far from all
        return jnp.sum(basis(x), axis=1).astype(norms.dtype)
    if isinstance(basis, Neighbors):
        products = norms[:, None] * diagonal(basis.kernel, basis.landmarks)[None]
        return jnp.max(gram(basis.kernel, x, basis.landmarks) ** 2 / jnp.where(products > 0, products, 1), axis=1)
    return jnp.sum(plain_features(basis, x) ** 2, axis=1).astype(norms.dtype) / jnp.where(norms > 0, norms, 1)


NARROW = 3
"""Largest number of coordinates of vectors that have gaps to fill."""


def in_gaps(basis: Basis, x: Shaped[Array, "sample *dim"]) -> Shaped[Array, "sample *dim"]:
    """Return numbers and short vectors of which those between landmarks, but far from all, are the nearest landmark.

    Values that few samples are near to are in gaps wider than a narrow kernel.
    """
    if x.ndim > 2 or not jnp.issubdtype(x.dtype, jnp.floating) or x.shape[1:] > (NARROW,):
        return x
    points, at = (one.reshape(len(one), -1) for one in (basis.landmarks.astype(x.dtype), x))
    valid = (jnp.diagonal(basis.transform) != 0)[:, None]
    low, high = jnp.min(jnp.where(valid, points, jnp.inf), axis=0), jnp.max(jnp.where(valid, points, -jnp.inf), axis=0)
    inside = jnp.all((at >= low[None]) & (at <= high[None]), axis=1)
    away = jnp.sum((at[:, None] - points[None]) ** 2, axis=2)
    first = jnp.argmin(jnp.where(valid[:, 0][None], away, jnp.inf), axis=1)
    chosen = (first[:, None] == jnp.arange(len(points), dtype=first.dtype)[None]).astype(x.dtype)
    nearest = matmul(chosen, points).reshape(x.shape)  # a product, which explicit axes of devices allow
    gap = inside & (represented(basis, x) < FAR)
    return jnp.where(gap.reshape(-1, *(1,) * (x.ndim - 1)), nearest, x)


class PivotedCholesky(LandmarkSelector):
    """Pivoted Cholesky: landmarks with the largest residuals, which bound the residual of every sample.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import PivotedCholesky
        >>> basis, residual = PivotedCholesky().feature_map(kbp.RBF(1.0), jnp.linspace(0, 1, 50), eps=1e-2, max_rank=20)
        >>> basis.rank, bool(residual <= 1e-2)
        (4, True)
    """

    def feature_map(
        self, kernel: Kernel, x: Shaped[Array, "sample *dim"], eps: ScalarLike, max_rank: int
    ) -> tuple[Basis, Float[Array, ""]]:
        """Select landmarks among the samples; return the basis of their features and the residual.

        Raises:
            ValueError: the kernel or the samples are traced, or the kernel vanishes on the samples.
        """
        return _landmark_basis(kernel, x, eps, max_rank, None)

    @property
    def products(self) -> "PivotedCholesky":
        """This selector."""
        return self


class RandomlyPivotedCholesky(LandmarkSelector):
    """Randomly pivoted Cholesky: landmarks drawn in proportion to squared residuals, which is robust to outliers.

    Args:
        seed: seed of the draw, an integer >= 0; not a key, because this object is hashable and compared by value.

    Raises:
        ValueError: seed is out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import RandomlyPivotedCholesky
        >>> x = jnp.linspace(0, 1, 50)
        >>> basis, residual = RandomlyPivotedCholesky(seed=1).feature_map(kbp.RBF(1.0), x, eps=1e-2, max_rank=20)
        >>> basis.rank < 20, bool(residual <= 1e-2)
        (True, True)
    """

    seed: int = eqx.field(static=True, default=0, converter=_checks.whole)

    def __check_init__(self) -> None:
        _checks.require_seed(self.seed)

    def feature_map(
        self, kernel: Kernel, x: Shaped[Array, "sample *dim"], eps: ScalarLike, max_rank: int
    ) -> tuple[Basis, Float[Array, ""]]:
        """Draw landmarks from the samples; return the basis of their features and the residual.

        Raises:
            ValueError: the kernel or the samples are traced, or the kernel vanishes on the samples.
        """
        return _landmark_basis(kernel, x, eps, max_rank, self.seed)

    @property
    def products(self) -> "RandomlyPivotedCholesky":
        """This selector."""
        return self


def _landmark_basis(kernel: Kernel, x: Array, eps: ScalarLike, max_rank: int, seed: int | None) -> tuple[Basis, Array]:
    """Return the basis of selected landmarks, whose number depends on the values of the samples, and its residual."""
    fix = "Select landmarks outside, and pass them in: kbpjax.features.cholesky_basis(kernel, landmarks)."
    traced = _checks.is_traced((kernel, x, eps))
    _checks.require(not traced, "kernel, x", "must be known inside jax.jit, vmap or grad", "a tracer", fix)
    with jax.ensure_compile_time_eval() if inside_others() else contextlib.nullcontext():  # of constants
        key = None if seed is None else jax.random.key(seed)
        pivots = incomplete_cholesky(kernel, x, eps, max_rank, key)
    rank, indices = int(pivots.rank), np.asarray(pivots.indices)
    fix = "Use a kernel or bandwidth for which k(x, x) is positive and finite."
    _checks.require(rank > 0, "kernel", "must not vanish on the training samples", "k(x, x) = 0 or NaN", fix)
    return _basis_at(kernel, x, indices[:rank]), pivots.residual


@quick_jit
def _basis_at(kernel: Kernel, x: Array, indices: Any) -> Basis:
    return cholesky_basis(kernel, x[indices])
