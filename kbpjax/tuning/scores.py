"""Closed-form scores for selecting the ridge, kernel or landmarks of a conditional embedding operator.

Both scores estimate the mean squared error of E[target(X) | x] as a prediction of target(X) at new pairs. They cost
about twice as much as the operator, and stream over pairs in chunks.

**Compare only scores of the same target features.** A wide target kernel makes all target features nearly equal, so
every error is small: these scores would select the widest target kernel, which is useless. Fix the target features and
vary only `given` and `ridge`. Use the features of a reference kernel such as `RBF(median_bandwidth(x))`, or scalar
targets, `lambda x: x[:, None]`. The final operator may use other targets.

Pairs that share points are dependent, for instance pairs that `pool` takes from one sample. Their scores are too low.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._misc import matmul
from kbpjax._public import finite
from kbpjax.learning.embedding import covariances


@finite("x_given", "x_target")
def leave_one_out(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "partner *target_dim"],
    ridge: ScalarLike,
    count: ScalarLike | None = None,
) -> Float[Array, ""]:
    r"""Return the leave-one-out mean squared error of the operator.

    With $r$ and $g$ the features of a pair, $U$ the operator of all $m$ pairs and $U_{-i}$ the operator without pair
    $i$, the score is the mean of $\|g_i - U_{-i}^\top r_i\|^2$, and

    $$g_i - U_{-i}^\top r_i = \frac{g_i - U^\top r_i}{1 - r_i^\top (R^\top R + \lambda m I)^{-1} r_i}.$$

    The penalty is fixed: $U_{-i}$ uses `ridge` times m, not m - 1, plus the rounding error that `ridge_solve` adds.
    Ridges below machine epsilon times the mean of ||r||^2 therefore have equal scores. Differentiable in `ridge` and in
    the parameters of the feature maps. O(m rank^2) time. With at most as many pairs as features and a tiny ridge,
    1 - r_i' (...)^{-1} r_i is of rounding size: the result is then finite and not small, but has no correct digits.

    Args:
        given: feature map from points [n, *dim] to [n, rank].
        target: map from points [n, *target_dim] to [n, target_rank]; the same for all compared scores (see above).
        x_given: conditioning points of the pairs.
        x_target: target points of the pairs.
        ridge: lambda of eq. 11, >= 0; it is multiplied by the number of pairs.
        count: number of pairs, >= 1; later rows are padding. None: all rows.

    Raises:
        ValueError: the numbers of points differ, or ridge or count is out of range.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.tuning.scores import leave_one_out
        >>> x = jnp.linspace(-3, 3, 60)
        >>> basis, _ = kbp.PivotedCholesky().feature_map(kbp.RBF(0.5), x, eps=1e-2, max_rank=30)
        >>> values = jnp.sin(x) + 0.5 * jax.random.normal(jax.random.key(0), 60, x.dtype)
        >>> min([1e-4, 1e-2, 1.0], key=lambda r: float(leave_one_out(basis, lambda y: y[:, None], x, values, r)))
        0.01
    """
    factor, penalty, _, _, mean_square = _fit(given, target, x_given, x_target, ridge, count)

    def leave_out(rows: Array, residuals: Array) -> Array:
        leverage = jnp.sum(solve_triangular(factor, rows.T, lower=True) ** 2, axis=0)
        # A lower bound of 1 - leverage, attained if no other pair overlaps. It keeps rounding from giving 0.
        minimum = penalty / (penalty + jnp.sum(rows**2, axis=1))
        return residuals / jnp.maximum(1 - leverage, minimum)[:, None]

    return mean_square(leave_out)


@finite("x_given", "x_target")
def generalized_cross_validation(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "partner *target_dim"],
    ridge: ScalarLike,
    count: ScalarLike | None = None,
) -> Float[Array, ""]:
    """Return mean_i ||g_i - U' r_i||^2 / (1 - tr(H) / m)^2, H = R (R'R + ridge m I)^{-1} R' (Golub et al. 1979).

    It replaces each leverage H_ii in `leave_one_out` by their mean, so isolated pairs have less weight. The residuals
    are summed pair by pair in a second pass. The normal equations, tr(G'G) - tr(U'R'G) - ..., would avoid this pass,
    but subtract large numbers, which in single precision leaves only noise when the fit is good.

    Arguments, gradients and errors are the same as for `leave_one_out`.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.tuning.scores import generalized_cross_validation
        >>> x = jnp.linspace(-3, 3, 60)
        >>> basis, _ = kbp.PivotedCholesky().feature_map(kbp.RBF(0.5), x, eps=1e-2, max_rank=30)
        >>> values = jnp.sin(x) + 0.5 * jax.random.normal(jax.random.key(0), 60, x.dtype)
        >>> score = lambda ridge: float(generalized_cross_validation(basis, lambda y: y[:, None], x, values, ridge))
        >>> min([1e-4, 1e-2, 1.0], key=score)
        0.01
    """
    factor, penalty, trace, pairs, mean_square = _fit(given, target, x_given, x_target, ridge, count)
    inverse = solve_triangular(factor, jnp.eye(len(factor), dtype=factor.dtype), lower=True)
    # m - tr(H) = m - rank + penalty tr((R'R + penalty I)^{-1}); by convexity its minimum is at equal leverages.
    free = (pairs - len(factor) + penalty * jnp.sum(inverse**2)) / pairs
    scale = jnp.maximum(free, penalty / (penalty + trace / pairs))
    return mean_square(lambda _, residuals: residuals / scale)


def _fit(
    given: Callable, target: Callable, x: Array, y: Array, ridge: ScalarLike, count: ScalarLike | None
) -> tuple[Array, Array, Array, Array, Callable]:
    """Check the arguments and fit the operator, with the rounding error that `ridge_solve` adds to the penalty.

    Returns:
        The Cholesky factor of R'R + penalty I, the penalty, the trace of R'R, the number of pairs, and a function that
        computes the mean over pairs of ||scaled(features, residuals)||^2 in chunks.
    """
    rule, fix = f"must have as many points as x_given, {len(x)}", "Pass one or more pairs."
    _checks.require(len(x) == len(y) > 0, "x_target", rule, len(y), fix)
    _checks.require_number("ridge", ridge, least=0)
    _checks.require_number("count", len(x) if count is None else count, least=1, most=len(x))
    covariance, cross = covariances(given, target, x, y, count)
    pairs = jnp.asarray(len(x) if count is None else count, covariance.dtype)
    eps, trace = jnp.finfo(covariance.dtype).eps, jnp.trace(covariance)
    penalty = jnp.asarray(ridge, covariance.dtype) * pairs + eps * trace
    factor = jnp.linalg.cholesky(covariance + penalty * jnp.eye(len(covariance), dtype=covariance.dtype))
    operator = cho_solve((factor, True), cross)

    def mean_square(scaled: Callable[[Array, Array], Array]) -> Array:
        def squares(index: Array) -> Array:
            rows = given(x[index])
            values = target(y[index]).astype(rows.dtype)
            # Include the rounding error of residuals: their divisor may be as small, and 0 / eps would look perfect.
            residuals = jnp.concatenate([values - matmul(rows, operator), eps * values], axis=1)
            return jnp.sum(scaled(rows, residuals) ** 2, axis=1, keepdims=True)

        ones, index = jnp.ones((len(x), 1), factor.dtype), jnp.arange(len(x), dtype=jnp.int32)
        return covariances(lambda one: one, squares, ones, index, count)[1][0, 0] / pairs

    return factor, penalty, trace, pairs, mean_square
