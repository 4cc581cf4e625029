"""Positive updates: learned operators between values made into tables of probabilities.

A learned update takes values v of a product at the sender's points to values at the receiver's, evaluate @ project @ v.
A true conditional expectation is positive and keeps constants: the matrix B = evaluate @ project has no negative entry
and rows that sum to 1. An estimate has many negative entries; `positivity` says how many. The two objects below replace
B by a table of probabilities, so that positive messages stay positive.

| object           | the table                                           | cost for l' x l' points and rank l |
| ---------------- | --------------------------------------------------- | ---------------------------------- |
| `Clipped`        | negative entries of B set to 0, rows scaled         | O(l'^2 l), once                    |
| `ConstrainedFit` | the best fit to the training pairs among all tables | O(l'^2 l) per iteration            |

On strongly dependent Gaussian pairs the constrained fit has half to four fifths of the error of clipping. Where the
points stand further apart than the conditional distributions are wide, neither table is good and clipping can be ahead.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._misc import matmul

# On Gaussian pairs these two bring rows within a few hundredths of the limit in a quarter to a tenth of the iterations
# that 1 and 1 need.
PENALTY = 0.1
"""Weight rho of the constraint, as a share of tr(A) / tr(E'E)."""

RELAXATION = 1.6
"""Over-relaxation of the steps, in (0, 2)."""


class Clipped(eqx.Module):
    """Set negative entries to 0 and scale rows: B_ij = max(B_ij, 0) / sum_j max(B_ij, 0).

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5), nonnegative=kbp.Clipped())
        >>> bool((model.operators.nonnegative >= 0).all())
        True
        >>> forth, back = model.positivity[0]  # of the estimate: share of negative entries, and of their mass
        >>> bool(forth[0] > 0.2)
        True
    """

    def operator(
        self,
        evaluate: Float[Array, "point rank"],
        covariance: Float[Array, "rank rank"],
        cross: Float[Array, "rank other"],
        project: Float[Array, "rank other"],
    ) -> Float[Array, "point other"]:
        """Return the positive part of evaluate @ project, its rows scaled to sum 1.

        Args:
            evaluate: from coefficients of a message to its values at the receiver's points.
            covariance: not used.
            cross: not used.
            project: from values at the sender's points to coefficients of a message.

        Returns:
            Entries >= 0; rows sum to 1, but a row without a positive entry is 0.
        """
        del covariance, cross
        positive = jnp.maximum(matmul(evaluate, project), 0)
        total = jnp.sum(positive, axis=1, keepdims=True)
        return positive / jnp.where(total > 0, total, 1)


class ConstrainedFit(eqx.Module):
    """Fit the ridge regression of the update among operators whose rows are probabilities.

    With A the covariance of the receiver's features plus the penalty, X the cross-covariance and E = evaluate,

        min_U tr(U' A U) - 2 tr(U' X)   with the rows of Z = E U in the simplex.

    The alternating direction method of multipliers (Boyd et al. 2011, sections 3.1 and 3.4.3) starts from
    Z = simplex_rows(E project) and Y = 0, and with a = 1.6 repeats

        U = (A + rho E'E)^{-1} (X + rho E'(Z - Y)),   V = a E U + (1 - a) Z + Y,   Z = simplex_rows(V),   Y = V - Z.

    Args:
        num_iters: number of iterations, >= 1. Z is a table of probabilities after any number of them; its answers
            settle within 100, its single entries within some hundreds.

    Raises:
        ValueError: num_iters out of range.

    Examples:
        >>> import jax.numpy as jnp, numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5), nonnegative=kbp.ConstrainedFit(num_iters=100))
        >>> table = model.operators.nonnegative
        >>> bool((table >= 0).all()), bool(jnp.allclose(table.sum(axis=2), 1.0, atol=1e-4))
        (True, True)
    """

    num_iters: int = eqx.field(static=True, converter=_checks.whole, default=500)

    def __check_init__(self) -> None:
        _checks.require_count("num_iters", self.num_iters)

    def operator(
        self,
        evaluate: Float[Array, "point rank"],
        covariance: Float[Array, "rank rank"],
        cross: Float[Array, "rank other"],
        project: Float[Array, "rank other"],
    ) -> Float[Array, "point other"]:
        """Return the table Z of the constrained fit.

        Args:
            evaluate: E, from coefficients of a message to its values at the receiver's points; rows of padding are 0.
            covariance: A, summed over the training pairs, with the penalty on its diagonal.
            cross: X, between the receiver's features and the coefficients of products, summed over the training pairs.
            project: from values at the sender's points to coefficients of a message; where its column and that of
                `cross` are 0 stands padding.

        Returns:
            Entries >= 0; rows sum to 1, but rows and columns of padding are 0.
        """
        row = jnp.any(evaluate != 0, axis=1, keepdims=True)
        column = jnp.any((cross != 0) | (project != 0), axis=0, keepdims=True)

        def nearest(values: Array) -> Array:
            return jnp.where(row, simplex_rows(jnp.where(column, values, -jnp.inf)), 0)

        # Divided by rho the system does not depend on the number of pairs, and single precision can hold it.
        trace = jnp.trace(covariance)
        squares = matmul(evaluate.T, evaluate)
        size = jnp.trace(squares)
        rho = PENALTY * trace / jnp.where(size > 0, size, 1)
        # As in `ridge_solve`: with the rounding error of the sums the factor exists even at penalty 0.
        rounding = jnp.finfo(covariance.dtype).eps * trace * jnp.eye(len(covariance), dtype=covariance.dtype)
        factor = jnp.linalg.cholesky((covariance + rounding) / rho + squares)
        # E (A / rho + E'E)^{-1} E' = W'W is a contraction; the product of its halves keeps it one in single precision.
        half = jax.scipy.linalg.solve_triangular(factor, evaluate.T, lower=True)
        start = matmul(half.T, jax.scipy.linalg.solve_triangular(factor, cross / rho, lower=True))

        def step(state, _):
            table, dual = state
            values = start + matmul(half.T, matmul(half, table - dual))
            values = RELAXATION * values + (1 - RELAXATION) * table + dual
            table = nearest(values)
            return (table, values - table), None

        table = nearest(matmul(evaluate, project))
        (table, _), _ = jax.lax.scan(step, (table, jnp.zeros_like(table)), length=self.num_iters)
        return table


def simplex_rows(values: Float[Array, "*axes other"]) -> Float[Array, "*axes other"]:
    """Project rows on the probability simplex: max(v_j - t, 0), with the t at which they sum to 1.

    With u_1 >= u_2 >= ... the sorted entries, t = max_j (u_1 + ... + u_j - 1) / j. That of optax 0.2.8
    does not work under jax's strict promotion of types, which the rest of this package does.

    Args:
        values: finite entries, or -inf where the projection has to be 0.

    Returns:
        The nearest rows with entries >= 0 and sum 1; 0 for a row of -inf alone.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.learning.nonnegative import simplex_rows
        >>> simplex_rows(jnp.array([0.75, 0.75, -1.0])).tolist()
        [0.5, 0.5, 0.0]
    """
    highest = jnp.max(values, axis=-1, keepdims=True)
    seen = highest > -jnp.inf
    # Entries below the highest by 1 or more get nothing: with the highest at 0 no sum cancels.
    shifted = values - jnp.where(seen, highest, 0)
    descending = -jnp.sort(-shifted, axis=-1)
    counts = jnp.arange(1, values.shape[-1] + 1, dtype=values.dtype)
    means = (jnp.cumsum(descending, axis=-1) - 1) / counts.reshape((1,) * (values.ndim - 1) + (-1,))
    threshold = jnp.where(seen, jnp.max(means, axis=-1, keepdims=True), 0)
    return jnp.maximum(shifted - threshold, 0)


def positivity(
    operator: Float[Array, "*axes point other"],
) -> tuple[Float[Array, "*axes"], Float[Array, "*axes"]]:
    """Measure how far operators between values are from positive.

    Args:
        operator: evaluate @ project, of one or more updates. Zeros of padding count as entries.

    Returns:
        The share of the entries that are negative, and the share sum_ij max(-B_ij, 0) / sum_ij |B_ij| of the mass.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.learning.nonnegative import positivity
        >>> share, mass = positivity(jnp.array([[1.5, -0.5], [0.0, 2.0]]))
        >>> float(share), float(mass)
        (0.25, 0.125)
    """
    negative = jnp.maximum(-operator, 0)
    total = jnp.sum(jnp.abs(operator), axis=(-2, -1))
    share = jnp.mean((operator < 0).astype(operator.dtype), axis=(-2, -1))
    return share, jnp.sum(negative, axis=(-2, -1)) / jnp.where(total > 0, total, 1)
