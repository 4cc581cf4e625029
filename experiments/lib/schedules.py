"""Schedules of the literature that the library does not need: damping by agreement, and residual belief propagation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

import kbpjax as kbp
from kbpjax import _checks
from kbpjax.inference.operators import Products, normalize
from kbpjax.inference.schedules import (
    Problem,
    changes,
    in_rows,
    largest_change,
    send_all,
    updates_of_one,
)
from kbpjax.inference.update import PlanPart, cavities, gather, in_order_sent, project

TIE = 1e-3
"""Relative difference up to which changes count as equal, so that rounding does not decide between them."""


class Sizes(NamedTuple):
    """The state of `Agreement`, which stays the same.

    Attributes:
        reference: norm of the update of 1 of each message [sent, 1].
        part: the nodes with local factors of maximum 1.
    """

    reference: Array
    part: PlanPart


class Agreement(kbp.Synchronous):
    """Updates that change a message less where its incoming messages disagree, as in the authors' program of 2011.

    With damping d, m <- normalize(d m + (1 - d) u / u_1), with the update u not normalized, and u_1 the norm of the
    update of 1: where incoming messages and the evidence, scaled to maximum 1, disagree, u is small.
    """

    def init(self, problem: Problem) -> Sizes:
        """Return what the sizes of updates are compared with."""
        ones = in_rows(updates_of_one(problem.operators), problem.plan)
        reference = jnp.sum(ones * normalize(ones), axis=1, keepdims=True)
        part = jax.tree.map(lambda array: array[0], problem.parts)
        largest = [jnp.max(local, axis=-1, keepdims=True) for local in part.local]
        scaled = [local / jnp.where(most > 0, most, 1) for local, most in zip(part.local, largest, strict=True)]
        return Sizes(reference, eqx.tree_at(lambda part: part.local, part, tuple(scaled)))

    def sweep(self, problem: Problem, state: Sizes, messages: Array, damping: Array) -> tuple[Array, Array, Sizes]:
        """Do one iteration; return the messages [row, coordinate], the residual of the old ones, and the state."""
        operators, (reference, part) = problem.operators, state
        products = cavities(operators, part, gather(part, messages), len(messages))
        raw = project(operators, part, products)
        new = normalize(raw)
        along = jnp.sum(raw * new, axis=1, keepdims=True)
        size = along * jnp.exp(removed_logs(part, products)) / jnp.where(reference > 0, reference, 1)
        change = jax.lax.stop_gradient(new - messages)
        kept = jnp.where(new == 0, 0, damping * messages)
        return normalize(kept + (1 - damping) * size * new), largest_change(operators, messages, change), state


def removed_logs(part: PlanPart, products: Sequence[Products]) -> Any:
    """Return the logarithm of the scale divided out of the cavity product of each outgoing message."""
    if all(product.removed is None for product in products):
        return 0.0
    logs = [jnp.zeros_like(p.values[..., :1]) if p.removed is None else p.removed for p in products]
    return in_order_sent(part, logs).reshape(-1, 1)


class ResidualFirst(kbp.Synchronous):
    """Residual belief propagation: update only the messages that would change most (after Elidan et al. 2006).

    All updates are computed to select them, so an iteration costs as much as a synchronous one. The gain is stability
    where synchronous updates oscillate.

    Args:
        share: share of the messages to update, in (0, 1].

    Raises:
        ValueError: share out of range.
    """

    share: float = eqx.field(static=True, default=0.25, converter=float)

    def __check_init__(self) -> None:
        _checks.require_number("share", self.share, above=0, most=1)

    def sweep(self, problem: Problem, state: Any, messages: Array, damping: Array) -> tuple[Array, Array, Any]:
        """Do one iteration; return the messages [row, coordinate], the residual of the old ones, and the state."""
        new, change = send_all(problem, messages, damping)
        if change.size == 0:
            return messages, jnp.zeros_like(damping), state
        sizes = changes(problem.operators, messages, change)
        count = max(1, round(self.share * len(problem.plan.position)))
        smallest = jax.lax.top_k(sizes, count)[0][-1]
        chosen = (sizes >= (1 - TIE) * smallest) | jnp.isnan(sizes)  # NaN must stay visible
        return jnp.where(chosen[:, None], new, messages), jnp.max(sizes), state
