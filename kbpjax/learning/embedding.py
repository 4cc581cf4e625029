"""Conditional embedding operators: ridge regression from features to features (Song et al. 2009; 2011, eq. 11).

The operator maps a function g of X_t to x_s -> E[g(X_t) | x_s]. It is estimated from m pairs (x_s, x_t) by
U = (R'R + ridge m I)^{-1} R' G, with R the features of the x_s and G values or features of the x_t. R'R and R'G are
sums over pairs and are computed in chunks: memory does not grow with the number of pairs.

`operator_error` computes the error of the operator that landmarks cause; `error_bound` bounds it (supplement,
section 8).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._misc import matmul, vary_like
from kbpjax._public import finite, public
from kbpjax.features import Basis, FeatureMap, features
from kbpjax.kernels import Kernel, diagonal, gram
from kbpjax.kernels.base import as_floats

CHUNK = 8192
"""Number of pairs whose features are in memory at the same time."""


@finite("x_given", "x_target")
def conditional_operator(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "sample *target_dim"],
    ridge: ScalarLike,
    count: ScalarLike | None = None,
) -> Float[Array, "rank target_rank"]:
    """Return the ridge regression estimate of E[target(X) | x_given] as a linear map of given(x_given).

    Args:
        given: feature map from points [n, *dim] to [n, rank].
        target: map from points [n, *target_dim] to [n, target_rank].
        x_given: conditioning points of the pairs.
        x_target: target points of the pairs.
        ridge: lambda of eq. 11, >= 0; it is multiplied by the number of pairs.
        count: number of pairs, >= 1; later rows are padding. None: all rows.

    Returns:
        U [rank, target_rank], with E[target(X) | x] close to given(x) @ U.

    Raises:
        ValueError: there are no pairs, numbers of points differ, or count or ridge is out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.learning.embedding import conditional_operator
        >>> x = jnp.linspace(-1, 1, 50)
        >>> basis = kbp.features.cholesky_basis(kbp.RBF(0.5), x[::7])
        >>> operator = conditional_operator(basis, lambda y: y[:, None], x, x**2, ridge=1e-6)
        >>> round(float((basis(jnp.array([0.5])) @ operator)[0, 0]), 2)  # E[X_t | x_s = 0.5]
        0.25
    """
    _check_pairs(x_given, x_target)
    _checks.require_number("ridge", ridge, least=0)
    if count is not None:
        _checks.require_number("count", count, least=1, most=len(x_given))
    covariance, cross = covariances(given, target, x_given, x_target, count)
    num_pairs = jnp.asarray(len(x_given) if count is None else count, covariance.dtype)
    return ridge_solve(covariance, cross, jnp.asarray(ridge, covariance.dtype) * num_pairs)


def _check_pairs(x_given: Array, x_target: Array) -> None:
    sizes, fix = (len(x_given), len(x_target)), "Pass both points of each pair."
    rule = "must have the same number of points, at least one"
    _checks.require(0 < sizes[0] == sizes[1], "x_given, x_target", rule, sizes, fix)


def mean_embedding(feature_map: Callable[[Array], Array], x: Shaped[Array, "sample *dim"]) -> Float[Array, " rank"]:
    """Return the mean embedding E[phi(X)]: the mean of features over samples, computed in chunks."""
    _checks.require(len(x) > 0, "x", "must have at least one sample", 0, "Pass samples.")
    ones = jnp.ones(len(x), jax.eval_shape(feature_map, x[:1]).dtype)
    return covariances(feature_map, lambda one: one[:, None], x, ones)[1][:, 0] / len(x)


def covariances(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "sample *target_dim"],
    count: ScalarLike | None = None,
) -> tuple[Float[Array, "rank rank"], Float[Array, "rank target_rank"]]:
    """Return the sums over pairs of outer products of features, (R'R, R'G), computed in chunks.

    Pairs from `count` on are padding; their values are ignored and may be NaN.
    """

    def products(valid: Array, x_given: Array, x_target: Array) -> tuple[Array, Array]:
        left = jnp.where(valid, given(x_given), 0)
        right = jnp.where(valid, target(x_target).astype(left.dtype), 0)
        return matmul(left.T, left), matmul(left.T, right)

    return sum_chunks(products, (x_given, x_target), count)


def sum_chunks(products: Callable[..., Any], columns: Sequence[Array], count: ScalarLike | None = None) -> Any:
    """Return the sum of a function over samples, computed in chunks of at most `CHUNK` samples.

    Args:
        products: function of a mask of valid samples [chunk, 1] and the samples of each column [chunk, *dim]; it
            returns a pytree of sums over valid samples.
        columns: arrays with the same number of samples.
        count: number of samples, >= 1; later rows are padding, are ignored and may be NaN. None: all rows.

    Returns:
        The sums over all samples.

    Raises:
        ValueError: count is out of range.
    """
    num_samples = len(columns[0])
    if count is not None:
        _checks.require_number("count", count, least=0, most=num_samples)
    total = jnp.asarray(num_samples if count is None else count, jnp.int32)
    chunk = min(CHUNK, num_samples)
    starts = jnp.arange(0, num_samples, chunk, dtype=jnp.int32)

    @jax.checkpoint
    def add(sums, start):
        rows = start + jnp.arange(chunk, dtype=jnp.int32)
        clipped = jnp.clip(rows, 0, jnp.maximum(total - 1, 0))  # never evaluate features of padding
        more = products((rows < total)[:, None], *(column[clipped] for column in columns))
        return jax.tree.map(jnp.add, sums, more), None

    shapes = jax.eval_shape(lambda: products(jnp.ones((1, 1), bool), *(column[:1] for column in columns)))
    zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    return jax.lax.scan(add, vary_like(zeros, shapes), starts)[0]


@finite("covariance", "cross")
def ridge_solve(
    covariance: Float[Array, "rank rank"],
    cross: Float[Array, "rank target_rank"],
    penalty: ScalarLike,
) -> Float[Array, "rank target_rank"]:
    """Return the solution U of (covariance + penalty I) U = cross, by Cholesky factorization.

    The rounding error of the sums, machine epsilon times the trace, is added to the penalty. Smaller eigenvalues are
    noise, and the factorization exists even at penalty 0.

    Raises:
        ValueError: shapes that do not fit, a penalty < 0, or a covariance that is not positive semidefinite (not
            checked under tracing).

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.learning.embedding import ridge_solve
        >>> ridge_solve(jnp.diag(jnp.array([1.0, 3.0])), jnp.array([[2.0], [8.0]]), penalty=1.0).round(3).tolist()
        [[1.0], [2.0]]
    """
    rank, shapes = len(cross), f"{covariance.shape} and {cross.shape}"
    rule, fix = "must have shapes [rank, rank] and [rank, target_rank]", "Pass R'R and R'G of the same features R."
    _checks.require(covariance.shape == (rank, rank), "covariance, cross", rule, shapes, fix)
    _checks.require_number("penalty", penalty, least=0)
    identity = jnp.eye(len(covariance), dtype=covariance.dtype)
    rounding = jnp.finfo(covariance.dtype).eps * jnp.trace(covariance)
    shift = jnp.asarray(penalty, covariance.dtype) + rounding
    factor = jax.scipy.linalg.cho_factor(covariance + shift * identity, lower=True)
    exists = _checks.is_unread(factor[0]) or bool(jnp.isfinite(factor[0]).all())
    fix = "Pass a sum of outer products, or a larger penalty."
    _checks.require(exists, "covariance", "must be positive semidefinite", "a matrix without a Cholesky factor", fix)
    return jax.scipy.linalg.cho_solve(factor, cross)


@public
def error_bound(eps: ScalarLike, ridge: ScalarLike) -> Float[Array, ""]:
    r"""Return a bound on `operator_error`, $2 \epsilon (\lambda^{-1} + \lambda^{-3/2})$ (supplement, section 8).

    The bound holds if all features of both kernels have norm at most 1.

    Args:
        eps: maximum residual norm of the features of conditioning points and of products, >= 0; see
            `feature_residual`.
        ridge: lambda of eq. 11, > 0; it is multiplied by the number of pairs.

    Returns:
        The bound on the Hilbert-Schmidt norm.

    Raises:
        ValueError: eps or ridge is out of range, or the bound overflows.

    Examples:
        >>> from kbpjax.learning.embedding import error_bound
        >>> round(float(error_bound(1e-3, 0.25)), 3)
        0.024
    """
    _checks.require_number("eps", eps, least=0)
    _checks.require_number("ridge", ridge, above=0)
    eps = as_floats(jnp.asarray(eps))
    ridge = jnp.asarray(ridge, eps.dtype)
    bound = 2 * eps * (1 + 1 / jnp.sqrt(ridge)) / ridge
    fix = "Pass a larger ridge, a smaller eps, or enable jax_enable_x64."
    ok = _checks.is_unread(bound) or bool(jnp.isfinite(bound))
    _checks.require(ok, "eps, ridge", f"must give a bound that is finite in {bound.dtype}", bound, fix)
    return bound


@finite("x")
def feature_residual(kernel: Kernel, feature_map: FeatureMap, x: Shaped[Array, "sample *dim"]) -> Float[Array, ""]:
    """Return the maximum residual norm of features on a basis over points: max_x sqrt(k(x, x) - ||r(x)||^2).

    Squared residuals below the rounding error of k(x, x) cannot be resolved: the smallest norm is about 1e-8 in double
    and 1e-3 in single precision.

    Args:
        kernel: the kernel.
        feature_map: basis of landmarks; for other feature maps the residual is not a distance.
        x: points [sample, *dim].

    Raises:
        ValueError: the feature map is not a basis.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import cholesky_basis
        >>> basis = cholesky_basis(kbp.Delta(), jnp.array([1, 2]))
        >>> float(kbp.learning.embedding.feature_residual(kbp.Delta(), basis, jnp.array([1, 2, 3])))
        1.0
    """
    _check_basis("feature_map", feature_map)
    _checks.require(len(x) > 0, "x", "must have at least one point", 0, "Pass points.")
    return _feature_residual(kernel, feature_map, x)


@finite("x_given", "x_target")
def operator_error(
    kernel: Kernel,
    product_kernel: Kernel,
    feature_map: FeatureMap,
    product_map: FeatureMap | None,
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "sample *target_dim"],
    ridge: ScalarLike,
) -> Float[Array, ""]:
    """Return the Hilbert-Schmidt norm of the error of a conditional embedding operator that landmarks cause.

    The exact operator is U = Xi (K + ridge m I)^{-1} Phi' (eq. 11), with Phi the features of x_given and Xi the
    features of x_target. The operator of projected features is U~ = Q Xi (K~ + ridge m I)^{-1} Phi' P. The error of an
    outgoing message is at most this norm times the norm of the product of incoming messages. Let A and A~ be the two
    inverses, and G the Gram matrix of Xi. The projections are orthogonal, so the parts of U - U~ inside and outside of
    the spans are orthogonal, and a sum of nonnegative terms remains:

        ||U - U~||^2 = tr(A (G - G~) A K~) + tr(A G A (K - K~)) + tr(D' G~ D K~),   D = A - A~ = A (K~ - K) A~.

    O(sample^3) time, O(sample^2) memory. The entries of G - G~ and K - K~ have rounding errors of machine epsilon times
    the entries of G and K. Operator errors below about (machine epsilon / m)^{1/2} / ridge cannot be resolved.

    Args:
        kernel: kernel k of the conditioning points.
        product_kernel: kernel of the targets, k^{d - 1} for products of d - 1 messages.
        feature_map: basis of the conditioning points' features.
        product_map: basis of the targets' features. None: unprojected target features (the linear-time rule).
        x_given: conditioning points of the pairs.
        x_target: target points of the pairs.
        ridge: lambda of eq. 11, > 0; it is multiplied by the number of pairs.

    Raises:
        ValueError: a feature map is not a basis, numbers of points differ, or the ridge is out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.learning.embedding import error_bound, feature_residual, operator_error
        >>> from kbpjax.features import cholesky_basis
        >>> x, k = jnp.linspace(0, 1, 20), kbp.RBF(1.0)
        >>> basis = cholesky_basis(k, x[::6])
        >>> error = operator_error(k, k, basis, basis, x, x[::-1], ridge=0.1)
        >>> bool(error <= error_bound(feature_residual(k, basis, x), 0.1))
        True
    """
    _check_basis("feature_map", feature_map)
    if product_map is not None:
        _check_basis("product_map", product_map)
    _check_pairs(x_given, x_target)
    _checks.require_number("ridge", ridge, above=0)
    return _operator_error(kernel, product_kernel, feature_map, product_map, x_given, x_target, ridge)


def _check_basis(argument: str, feature_map: FeatureMap) -> None:
    fix = "Select landmarks with kbpjax.features.PivotedCholesky() or RandomlyPivotedCholesky()."
    ok = isinstance(feature_map, Basis)
    _checks.require(ok, argument, "must project on landmarks (a Basis)", type(feature_map).__name__, fix)


@jax.jit
def _feature_residual(kernel: Kernel, feature_map: FeatureMap, x: Array) -> Array:
    squared = diagonal(kernel, x) - jnp.sum(features(feature_map, x) ** 2, axis=1)
    return jnp.sqrt(jnp.maximum(jnp.max(squared), 0))


@jax.jit
def _operator_error(
    kernel: Kernel,
    product_kernel: Kernel,
    feature_map: FeatureMap,
    product_map: FeatureMap | None,
    x_given: Array,
    x_target: Array,
    ridge: ScalarLike,
) -> Array:
    def grams(kernel: Kernel, basis: FeatureMap | None, x: Array) -> tuple[Array, Array]:
        """Return the Gram matrices of features and of projected features."""
        full = gram(kernel, x, x)
        coordinates = None if basis is None else features(basis, x)
        return full, full if coordinates is None else matmul(coordinates, coordinates.T)

    def trace(operator: Array, left: Array, right: Array) -> Array:
        """Return tr(operator' left operator right) for symmetric left and right."""
        return jnp.sum(matmul(operator.T, matmul(left, operator)) * right)

    given, given_low = grams(kernel, feature_map, x_given)
    target, target_low = (g.astype(given.dtype) for g in grams(product_kernel, product_map, x_target))
    identity = jnp.eye(len(given), dtype=given.dtype)
    penalty = jnp.asarray(ridge, given.dtype) * len(given)
    inverse = ridge_solve(given, identity, penalty)
    change = matmul(inverse, ridge_solve(given_low, given_low - given, penalty).T)
    outside = trace(inverse, target - target_low, given_low) + trace(inverse, target, given - given_low)
    return jnp.sqrt(jnp.maximum(outside + trace(change, target_low, given_low), 0))
