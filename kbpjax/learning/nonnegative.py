"""Nonnegative updates: learned operators replaced by row-stochastic (Markov) matrices.

A learned update maps values v of a product at the sender's points to values at the receiver's points,
evaluate @ project @ v. A true conditional expectation is positive and keeps constants: B = evaluate @ project has
nonnegative entries and rows that sum to 1. An estimate has many negative entries; `positivity` measures them. The two
classes below replace B by a row-stochastic matrix, so positive messages stay positive.

| class            | matrix                                                    | cost for l' x l' points and rank l |
| ---------------- | --------------------------------------------------------- | ---------------------------------- |
| `Clipped`        | negative entries of B set to 0, rows normalized           | O(l'^2 l), once                    |
| `ConstrainedFit` | best fit to the training pairs among stochastic matrices  | O(l'^2 l) per iteration            |

On strongly dependent Gaussian pairs the constrained fit has half to four fifths of the error of clipping. If the
spacing of the points exceeds the width of the conditional distributions, neither is accurate, and clipping may be
better.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit
from kbpjax._public import Checked
from kbpjax.inference.operators import Operators

# On Gaussian pairs these two values need a tenth to a quarter of the iterations that 1 and 1 need, until rows are
# within a few hundredths of the limit.
PENALTY = 0.1
"""Weight rho of the constraint, relative to tr(A) / tr(E'E)."""

RELAXATION = 1.6
"""Over-relaxation of the steps, in (0, 2)."""


class Clipped(Checked):
    """Clipped operators: negative entries set to 0 and rows normalized, max(B_ij, 0) / sum_j max(B_ij, 0).

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5), nonnegative=kbp.Clipped())
        >>> bool((model.operators.nonnegative >= 0).all())
        True
        >>> forth, back = model.positivity[0]  # fraction of negative entries and of negative mass in the estimate
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
        """Return the positive part of evaluate @ project, with rows normalized to sum 1.

        Args:
            evaluate: map from coefficients of a message to its values at the receiver's points.
            covariance: not used.
            cross: not used.
            project: map from values at the sender's points to coefficients of a message.

        Returns:
            Entries >= 0; rows sum to 1, except that a row without positive entries is 0.
        """
        del covariance, cross
        positive = jnp.maximum(matmul(evaluate, project), 0)
        total = jnp.sum(positive, axis=1, keepdims=True)
        return positive / jnp.where(total > 0, total, 1)


def clipped(
    operators: Operators, edge_types: tuple[tuple[int, int, int], ...]
) -> Float[Array, "edge_direction point point"]:
    """Return the nonnegative operators of `Clipped` for learned operators [edge_direction, point, point].

    Args:
        operators: learned operators, of coefficients.
        edge_types: (type, node type of first end, node type of second end) of each edge type.
    """
    receivers = np.zeros(len(operators.project), np.int32)
    for k, first, second in edge_types:
        receivers[2 * k], receivers[2 * k + 1] = second, first
    return _clipped(operators.evaluate, operators.project, receivers)


@quick_jit
def _clipped(evaluate: Array, project: Array, receivers: Any) -> Array:
    positive = jnp.maximum(matmul(evaluate[receivers], project), 0)
    total = jnp.sum(positive, axis=-1, keepdims=True)
    return positive / jnp.where(total > 0, total, 1)


class ConstrainedFit(Checked):
    """Ridge regression of the update, constrained to operators whose rows are probabilities.

    With A the covariance of the receiver's features plus the penalty, X the cross-covariance and E = evaluate, solve

        min_U tr(U' A U) - 2 tr(U' X)   with the rows of Z = E U in the simplex.

    The alternating direction method of multipliers (Boyd et al. 2011, sections 3.1 and 3.4.3) starts from
    Z = simplex_rows(E project) and Y = 0. With a = 1.6 it iterates

        U = (A + rho E'E)^{-1} (X + rho E'(Z - Y)),   V = a E U + (1 - a) Z + Y,   Z = simplex_rows(V),   Y = V - Z.

    Args:
        num_iters: number of iterations, >= 1. Rows of Z are probabilities after any number of iterations. Beliefs
            converge within 100 iterations, single entries of Z within some hundreds.

    Raises:
        ValueError: num_iters is out of range.

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
            evaluate: E, map from coefficients of a message to its values at the receiver's points; padded rows are 0.
            covariance: A, summed over the training pairs, with the penalty on its diagonal.
            cross: X, between the receiver's features and the coefficients of products, summed over the training pairs.
            project: map from values at the sender's points to coefficients of a message; columns that are 0 here and in
                `cross` are padding.

        Returns:
            Entries >= 0; rows sum to 1, except that padded rows and columns are 0.
        """
        row = jnp.any(evaluate != 0, axis=1, keepdims=True)
        column = jnp.any((cross != 0) | (project != 0), axis=0, keepdims=True)

        def nearest(values: Array) -> Array:
            return jnp.where(row, simplex_rows(jnp.where(column, values, -jnp.inf)), 0)

        # Division by rho makes the system independent of the number of pairs, within range of single precision.
        trace = jnp.trace(covariance)
        squares = matmul(evaluate.T, evaluate)
        size = jnp.trace(squares)
        rho = PENALTY * trace / jnp.where(size > 0, size, 1)
        # As in `ridge_solve`, adding the rounding error of the sums makes the factor exist even at penalty 0.
        rounding = jnp.finfo(covariance.dtype).eps * trace * jnp.eye(len(covariance), dtype=covariance.dtype)
        factor = jnp.linalg.cholesky((covariance + rounding) / rho + squares)
        # E (A / rho + E'E)^{-1} E' = W'W is a contraction; the factored form keeps this in single precision.
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
    """Return rows projected on the probability simplex: max(v_j - t, 0), with t such that each row sums to 1.

    With sorted entries u_1 >= u_2 >= ..., t = max_j (u_1 + ... + u_j - 1) / j. The projection of optax 0.2.8 fails
    under strict dtype promotion in JAX, which this package supports.

    Args:
        values: finite entries, or -inf to force a projection of 0.

    Returns:
        The nearest rows with entries >= 0 and sum 1; a row with only -inf becomes 0.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.learning.nonnegative import simplex_rows
        >>> simplex_rows(jnp.array([0.75, 0.75, -1.0])).tolist()
        [0.5, 0.5, 0.0]
    """
    highest = jnp.max(values, axis=-1, keepdims=True)
    nonempty = highest > -jnp.inf
    # Entries that are lower than the highest by 1 or more become 0: with the highest at 0, no sum cancels.
    shifted = values - jnp.where(nonempty, highest, 0)
    descending = -jnp.sort(-shifted, axis=-1)
    counts = jnp.arange(1, values.shape[-1] + 1, dtype=values.dtype)
    means = (jnp.cumsum(descending, axis=-1) - 1) / counts.reshape((1,) * (values.ndim - 1) + (-1,))
    threshold = jnp.where(nonempty, jnp.max(means, axis=-1, keepdims=True), 0)
    return jnp.maximum(shifted - threshold, 0)


def positivity(
    operator: Float[Array, "*axes point other"],
) -> tuple[Float[Array, "*axes"], Float[Array, "*axes"]]:
    """Return the fraction of negative entries and of negative mass in operators between values.

    Args:
        operator: evaluate @ project of one or more updates. Zeros of padding count as entries.

    Returns:
        The fraction of negative entries, and the fraction of negative mass, sum_ij max(-B_ij, 0) / sum_ij |B_ij|.

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
