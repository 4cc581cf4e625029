"""Closed-form scores by which to choose the ridge, the kernel or the landmarks of one conditional embedding operator.

Both estimate how far E[target(X) | x] is from target(X) at new pairs: a mean of squared norms of target features. They
cost about twice the operator, and stream over pairs as it does.

**Compare only scores of the same target features.** Wide kernels make all features of X nearly equal, and so every
error small: by these scores the widest kernel of the targets is the best, and it is useless. Set the target features
once, and vary only `given` and `ridge`: take the features of a reference kernel (`RBF(median_bandwidth(x))`, say),
or scalars themselves, `lambda x: x[:, None]`. The operator of the chosen kernel may then use other targets.

Pairs that share points, as those that `pool` takes from one sample do, tell each other's answers: scores are too low.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._misc import matmul
from kbpjax.learning.embedding import covariances


def leave_one_out(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "partner *target_dim"],
    ridge: ScalarLike,
    count: ScalarLike | None = None,
) -> Float[Array, ""]:
    r"""Return the mean squared error at each pair of the operator learned from all other pairs.

    With $r$ and $g$ the features of a pair, $U$ the operator of all $m$ pairs and $U_{-i}$ that of all but pair $i$,
    it is the mean of $\|g_i - U_{-i}^\top r_i\|^2$, and

    $$g_i - U_{-i}^\top r_i = \frac{g_i - U^\top r_i}{1 - r_i^\top (R^\top R + \lambda m I)^{-1} r_i}.$$

    The penalty is held fixed: $U_{-i}$ has `ridge` times m too, not times m - 1, and the rounding error that
    `ridge_solve` adds: ridges below machine epsilon times the mean of ||r||^2 score alike. Differentiable in `ridge`
    and in what the feature maps depend on. O(m rank^2) time. Where 1 - r_i' (...)^{-1} r_i is of rounding size, as with
    no more pairs than features and hardly a ridge, the result is finite and not small, but has no correct digits.

    Args:
        given: feature map from points [n, *dim] to [n, rank].
        target: map from points [n, *target_dim] to [n, target_rank]; the same for all that is compared (see above).
        x_given: conditioning points of the pairs.
        x_target: the other points of the pairs, as many.
        ridge: lambda of eq. 11, >= 0; it is multiplied by the number of pairs.
        count: number of pairs, >= 1; what follows them is padding. None: all.

    Raises:
        ValueError: lengths that differ, or ridge or count out of range.

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
        # 1 - leverage is never less than if no other pair were near: with the bound, rounding cannot make it 0.
        least = penalty / (penalty + jnp.sum(rows**2, axis=1))
        return residuals / jnp.maximum(1 - leverage, least)[:, None]

    return mean_square(leave_out)


def generalized_cross_validation(
    given: Callable[[Array], Array],
    target: Callable[[Array], Array],
    x_given: Shaped[Array, "sample *dim"],
    x_target: Shaped[Array, "partner *target_dim"],
    ridge: ScalarLike,
    count: ScalarLike | None = None,
) -> Float[Array, ""]:
    """Return mean_i ||g_i - U' r_i||^2 / (1 - tr(H) / m)^2, H = R (R'R + ridge m I)^{-1} R' (Golub et al. 1979).

    It is `leave_one_out` with the mean of the leverages H_ii in place of each, so single pairs far from all others
    weigh less. The residuals are summed pair by pair: their sum by the normal equations, tr(G'G) - tr(U'R'G) - ...,
    needs no second pass but is a small difference of large numbers, noise in single precision where the fit is good.

    Arguments, gradients and errors are those of `leave_one_out`.
    """
    factor, penalty, trace, pairs, mean_square = _fit(given, target, x_given, x_target, ridge, count)
    inverse = solve_triangular(factor, jnp.eye(len(factor), dtype=factor.dtype), lower=True)
    # m - tr(H) = m - rank + penalty tr((R'R + penalty I)^{-1}), and by convexity it is least where all leverages agree.
    free = (pairs - len(factor) + penalty * jnp.sum(inverse**2)) / pairs
    scale = jnp.maximum(free, penalty / (penalty + trace / pairs))
    return mean_square(lambda _, residuals: residuals / scale)


def _fit(
    given: Callable, target: Callable, x: Array, y: Array, ridge: ScalarLike, count: ScalarLike | None
) -> tuple[Array, Array, Array, Array, Callable]:
    """Check the arguments and learn the operator, with the rounding error that `ridge_solve` adds to its penalty.

    Returns the Cholesky factor of R'R + penalty I, that penalty, the trace of R'R, the number of pairs, and a function
    that takes the mean over pairs of ||scaled(features, residuals)||^2, chunk by chunk.
    """
    rule, fix = f"must pair with x_given, of {len(x)} points", "Pass one or more pairs."
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
            # The rounding error of residuals counts: what it is divided by may be as small, and 0 / eps look perfect.
            residuals = jnp.concatenate([values - matmul(rows, operator), eps * values], axis=1)
            return jnp.sum(scaled(rows, residuals) ** 2, axis=1, keepdims=True)

        ones, index = jnp.ones((len(x), 1), factor.dtype), jnp.arange(len(x), dtype=jnp.int32)
        return covariances(lambda one: one, squares, ones, index, count)[1][0, 0] / pairs

    return factor, penalty, trace, pairs, mean_square
