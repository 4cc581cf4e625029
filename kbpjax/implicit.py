r"""Derivatives of a fixed point by the implicit function theorem: of what it is, not of how it was reached.

At x = F(x, theta), dx = (I - J)^{-1} dF with J = dF/dx. Neither direction needs the iterations that led to x, so memory
does not grow with their number: forward mode solves with J, reverse mode with its transpose, both by the iteration

    v  <-  J v + b,

which converges where x <- F(x) does. Messages of norm 1 whatever the scale of those before them have a J that is 0
along each message, so their free scale does no harm.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, ScalarLike


def fixed_point(
    iterate: Callable[[Array], Array],
    search: Callable[[Array], tuple[Array, Any]],
    start: Float[Array, "edge coordinate"],
    *,
    tol: ScalarLike,
    most: int,
) -> tuple[Float[Array, "edge coordinate"], Any]:
    """Find messages that an iteration leaves as they are, and differentiate them by what they are.

    Args:
        iterate: one iteration; it may close over what to differentiate by.
        search: finds the fixed point from a start; returns it and anything else, of which there is no derivative.
        start: where to start; no derivative either.
        tol: largest change of the derivative in its last iteration, relative to its largest part.
        most: most iterations for the derivative, which is NaN where they are not enough.

    Returns:
        The fixed point, and the rest of what `search` returned.
    """

    def root(messages: Array) -> Array:
        return iterate(messages) - messages

    def solve(minus: Callable[[Array], Array], rhs: Array) -> Array:
        """Solve J v - v = rhs, where minus(v) = J v - v, or the same with the transpose."""
        enough = tol * jnp.max(jnp.abs(rhs), initial=0)

        def unfinished(carry: Any) -> Array:
            _, change, count = carry
            return (change > enough) & (count < most)

        def go_on(carry: Any) -> Any:
            vector, _, count = carry
            step = minus(vector) - rhs
            return vector + step, jnp.max(jnp.abs(step), initial=0), count + 1

        first = (jnp.zeros_like(rhs), jnp.array(jnp.inf, rhs.dtype), jnp.int32(0))
        vector, change, _ = jax.lax.while_loop(unfinished, go_on, first)
        return jnp.where(change <= enough, vector, jnp.nan)

    def tangent(minus: Callable[[Array], Array], rhs: Array) -> Array:
        return jax.lax.custom_linear_solve(minus, rhs, solve, transpose_solve=solve)

    return jax.lax.custom_root(root, start, lambda _, guess: search(guess), tangent, has_aux=True)


@jax.custom_jvp
def trust(messages: Float[Array, "edge coordinate"], converged: Bool[Array, ""]) -> Float[Array, "edge coordinate"]:
    """Return the messages, whose derivatives are NaN unless they have converged."""
    del converged
    return messages


@trust.defjvp
def _(primals: Any, tangents: Any) -> Any:
    messages, converged = primals
    return messages, tangents[0] * jnp.where(converged, 1, jnp.nan).astype(messages.dtype)
