"""Incomplete Cholesky: a few landmarks whose features span all training features up to a tolerance (section 5.1).

Greedy Gram-Schmidt in feature space: take the point whose feature is worst represented by the landmarks so far,
orthogonalise, repeat. The residual of a point is ||phi(x) - P phi(x)||, with P the projection onto the span of the
landmarks. With L the Cholesky factor of the landmarks' Gram matrix, a point has the coordinates r(x) = L^{-1}
k(landmarks, x) in an orthonormal basis of that span, and <r(x), r(y)> is close to k(x, y).

Which points become landmarks has no gradient; given the landmarks everything here is differentiable in the kernel.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike, Shaped

from kbpjax._precision import matmul
from kbpjax.kernels import Kernel, diagonal, gram


class Basis(eqx.Module):
    """An orthonormal basis of the span of some landmarks' features.

    Attributes:
        landmarks: points [rank, *dim].
        kernel: the kernel whose features they are.
        transform: change of basis [rank, rank], L^{-T}; features(x) = k(x, landmarks) @ transform.
    """

    landmarks: Shaped[Array, "rank *dim"]
    kernel: Kernel
    transform: Float[Array, "rank rank"]


class Pivots(eqx.Module):
    """Which points an incomplete Cholesky chose.

    Attributes:
        indices: positions of the chosen points, in order of choice; entries from `rank` on are padding (0).
        rank: how many were chosen.
        residual: the largest residual norm left over all points, as a share of the largest feature norm.
    """

    indices: Int[Array, " max_rank"]
    rank: Int[Array, ""]
    residual: Float[Array, ""]


@partial(jax.jit, static_argnames="max_rank")
def incomplete_cholesky(kernel: Kernel, x: Shaped[Array, "sample *dim"], eps: ScalarLike, max_rank: int) -> Pivots:
    """Choose landmarks greedily until every residual norm is <= eps or `max_rank` are chosen.

    O(sample max_rank^2) time, O(sample max_rank) memory; kernel columns are made when needed. In single precision
    squared residuals cannot be seen below about 1e-6 k(x, x), so eps under 1e-3 stops there: `Pivots.residual` says
    what was reached.

    Args:
        kernel: the kernel.
        x: points [sample, *dim]; duplicates have no residual once one of them is chosen, and end the loop.
        eps: tolerance > 0 on the residual norms, as a share of the largest feature norm, sqrt(max k(x, x)).
        max_rank: most landmarks, >= 1; no more than there are samples are chosen.

    Returns:
        The pivots.
    """
    max_rank = min(max_rank, x.shape[0])
    variance = diagonal(kernel, x)
    scale = jnp.max(variance)
    tolerance = scale * jnp.maximum(jnp.asarray(eps, variance.dtype) ** 2, 8 * jnp.finfo(variance.dtype).eps)

    def unfinished(carry):
        _, residual, _, rank = carry
        return (rank < max_rank) & (jnp.max(residual) > tolerance)

    def choose(carry):
        rows, residual, indices, rank = carry
        pivot = jnp.argmax(residual).astype(jnp.int32)
        column = jax.vmap(partial(kernel, x[pivot]))(x)
        row = (column - matmul(rows[:, pivot], rows)) * jax.lax.rsqrt(residual[pivot])
        residual = jnp.maximum(residual - row**2, 0).at[pivot].set(0)
        return rows.at[rank].set(row), residual, indices.at[rank].set(pivot), rank + 1

    rows = jnp.zeros((max_rank, x.shape[0]), variance.dtype)
    start = (rows, variance, jnp.zeros(max_rank, jnp.int32), jnp.int32(0))
    _, residual, indices, rank = jax.lax.while_loop(unfinished, choose, start)
    return Pivots(indices, rank, jnp.sqrt(jnp.max(residual) / jnp.where(scale > 0, scale, 1)))


@jax.jit
def cholesky_basis(
    kernel: Kernel, landmarks: Shaped[Array, "rank *dim"], valid: Bool[Array, " rank"] | None = None
) -> Basis:
    """Build the orthonormal basis of given landmarks; differentiable in the kernel and the landmarks.

    Args:
        kernel: the kernel.
        landmarks: points [rank, *dim] with linearly independent features.
        valid: which landmarks count; the features of the others are 0. None: all.

    Returns:
        The basis.
    """
    gram_matrix = gram(kernel, landmarks, landmarks)
    identity = jnp.eye(len(landmarks), dtype=gram_matrix.dtype)
    used = jnp.ones(len(landmarks), bool) if valid is None else valid
    scale = jnp.max(jnp.where(used, jnp.diagonal(gram_matrix), 0))
    gram_matrix = jnp.where(used[:, None] & used[None], gram_matrix, scale * identity)
    rounding = 4 * jnp.finfo(gram_matrix.dtype).eps * scale
    factor = jnp.linalg.cholesky(gram_matrix + rounding * identity)
    inverse = jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    return Basis(landmarks, kernel, jnp.where(used[:, None] & used[None], inverse.T, 0))


@jax.jit
def features(basis: Basis, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
    """Return the coordinates r(x) of points in a basis: <r(x), r(y)> is close to k(x, y).

    Args:
        basis: the basis.
        x: points [sample, *dim].

    Returns:
        Coordinates [sample, rank].
    """
    return matmul(gram(basis.kernel, x, basis.landmarks), basis.transform)
