"""Conditional embedding operators: ridge regression from features to features (Song et al. 2009; 2011, eq. 11).

The operator that takes a function g of X_t to x_s -> E[g(X_t) | x_s] is estimated from pairs (x_s, x_t) by
U = (R'R + ridge m I)^{-1} R' G, with R the features of the x_s and G any m values or features of the x_t. R'R and R'G
are sums over pairs, so they stream: memory does not grow with the number of pairs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax._precision import matmul

CHUNK = 8192
"""Pairs whose features are held at one time."""


def conditional_operator(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "sample *target_dim"],
    ridge: ScalarLike,
) -> Float[Array, "rank target_rank"]:
    """Estimate E[target(X) | x_given] as a linear map of given(x_given), by ridge regression.

    Args:
        given: feature map from points [n, *dim] to [n, rank].
        target: map from points [n, *target_dim] to [n, target_rank].
        x_given: conditioning points of the pairs.
        x_target: the other points of the pairs.
        ridge: lambda of eq. 11, >= 0; it is multiplied by the number of pairs.

    Returns:
        U [rank, target_rank], with E[target(X) | x] close to given(x) @ U.
    """
    covariance, cross = covariances(given, target, x_given, x_target)
    return ridge_solve(covariance, cross, ridge * len(x_given))


def mean_embedding(feature_map: Callable[[Array], Array], x: Shaped[Array, "sample *dim"]) -> Float[Array, " rank"]:
    """Return the mean of features over samples, chunk by chunk: E[phi(X)], the embedding of the distribution of X."""
    ones = jnp.ones(len(x), jax.eval_shape(feature_map, x[:1]).dtype)
    return covariances(feature_map, lambda one: one[:, None], x, ones)[1][:, 0] / len(x)


def covariances(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "sample *target_dim"],
) -> tuple[Float[Array, "rank rank"], Float[Array, "rank target_rank"]]:
    """Sum the outer products of features over pairs, chunk by chunk: (R'R, R'G)."""
    num_samples = len(x_given)
    chunk = min(CHUNK, num_samples)
    starts = jnp.arange(0, num_samples, chunk, dtype=jnp.int32)

    @jax.checkpoint
    def add(sums, start):
        rows = start + jnp.arange(chunk, dtype=jnp.int32)
        clipped = jnp.minimum(rows, num_samples - 1)
        left = given(x_given[clipped])
        left = jnp.where((rows < num_samples)[:, None], left, 0)
        right = target(x_target[clipped]).astype(left.dtype)
        return (sums[0] + matmul(left.T, left), sums[1] + matmul(left.T, right)), None

    shapes = jax.eval_shape(lambda: (given(x_given[:1]), target(x_target[:1])))
    rank, target_rank = shapes[0].shape[1], shapes[1].shape[1]
    dtype = shapes[0].dtype
    zeros = (jnp.zeros((rank, rank), dtype), jnp.zeros((rank, target_rank), dtype))
    return jax.lax.scan(add, zeros, starts)[0]


def ridge_solve(
    covariance: Float[Array, "rank rank"],
    cross: Float[Array, "rank target_rank"],
    penalty: ScalarLike,
) -> Float[Array, "rank target_rank"]:
    """Solve (covariance + penalty I) U = cross by Cholesky.

    The rounding error of the sums, machine epsilon times the trace, is added to the penalty: eigenvalues that small are
    noise, and with it the factorisation exists even at penalty 0.
    """
    identity = jnp.eye(len(covariance), dtype=covariance.dtype)
    rounding = jnp.finfo(covariance.dtype).eps * jnp.trace(covariance)
    shift = jnp.asarray(penalty, covariance.dtype) + rounding
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(covariance + shift * identity, lower=True), cross)
