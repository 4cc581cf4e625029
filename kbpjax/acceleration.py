"""Ways for `kbpjax.run` to take better steps than the update alone: Anderson acceleration, and damping that adapts."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kbpjax import _checks
from kbpjax._precision import matmul
from kbpjax.update import unit

GROWTH = 2.0
"""How far the residual may rise above its least before acceleration starts afresh."""


class History(NamedTuple):
    """What `Anderson` remembers: the last updates and differences, one a row, how many, and the least residual."""

    updates: Float[Array, "depth coefficient"]
    differences: Float[Array, "depth coefficient"]
    taken: Int[Array, ""]
    least: Float[Array, ""]


class Anderson(eqx.Module):
    """Anderson acceleration: combine the last updates so that the differences that they would make cancel.

    Safeguarded: where the residual rises to more than twice its least, the plain update is taken and the memory
    emptied. It pays near a fixed point that is reached slowly, and brings nothing where messages swing far from one.

    Args:
        depth: updates to remember, >= 2, from 3 on with effect; each takes twice as much memory as all messages.

    Raises:
        ValueError: depth out of range.
    """

    depth: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        _checks.require_count("depth", self.depth)
        _checks.require(self.depth >= 2, "depth", "must be at least 2", self.depth, "Pass for instance 5.")

    def start(self, messages: Float[Array, "edge coordinate"]) -> History:
        """Return an empty memory."""
        empty = jnp.zeros((self.depth, messages.size), messages.dtype)
        return History(empty, empty, jnp.int32(0), jnp.array(jnp.inf, messages.dtype))

    def advance(
        self,
        history: History,
        old: Float[Array, "edge coordinate"],
        new: Float[Array, "edge coordinate"],
        residual: Float[Array, ""],
    ) -> tuple[History, Float[Array, "edge coordinate"]]:
        """Return the memory, and the messages to go on from, given those of an iteration and its residual."""
        steady = residual <= GROWTH * history.least  # false for NaN
        slot = jnp.where(steady, history.taken, 0) % self.depth
        difference = (new - old).reshape(-1)
        updates = history.updates.at[slot].set(new.reshape(-1))
        differences = history.differences.at[slot].set(difference)
        taken = jnp.where(steady, history.taken + 1, 1)
        known = jnp.arange(self.depth, dtype=jnp.int32) < taken
        weights = _weights(differences, known)
        mixed, _ = unit(matmul(weights, updates).reshape(new.shape))
        take = steady & (taken > 1) & jnp.all(jnp.isfinite(weights))
        least = jnp.where(steady, jnp.minimum(history.least, residual), residual)
        return History(updates, differences, taken, least), jnp.where(take, mixed, new)


def _weights(differences: Float[Array, "depth coefficient"], known: Bool[Array, " depth"]) -> Float[Array, " depth"]:
    """Return the weights, of sum 1, of the rows whose combination is smallest; 0 for those that are not known."""
    rows = jnp.where(known[:, None], differences, 0)
    square = matmul(rows, rows.T)
    largest = jnp.max(jnp.diagonal(square))
    square = square / jnp.where(largest > 0, largest, 1)
    penalty = jnp.where(known, jnp.finfo(square.dtype).eps, 1).astype(square.dtype)
    weights = jnp.where(known, jnp.linalg.solve(square + jnp.diag(penalty), known.astype(square.dtype)), 0)
    return weights / jnp.sum(weights)


class AdaptiveDamping(eqx.Module):
    """Damping that rises while the residual rises and falls while it falls; pass it as `damping`.

    The share of the new message is halved after an iteration whose residual was larger than the one before, and grows
    by a tenth after any other.

    Args:
        start: the first damping, in [0, 1).
        most: the largest, in [start, 1).

    Raises:
        ValueError: start or most out of range.
    """

    start: float = eqx.field(static=True, default=0.0, converter=float)
    most: float = eqx.field(static=True, default=0.95, converter=float)

    def __check_init__(self) -> None:
        _checks.require_number("start", self.start, least=0, below=1)
        _checks.require_number("most", self.most, least=self.start, below=1)

    def next(self, damping: Array, before: Array, now: Array) -> Array:
        """Return the damping of the next iteration, from the residuals of the last two."""
        new = 1 - damping
        return jax.lax.stop_gradient(jnp.clip(1 - jnp.where(now > before, new / 2, 1.1 * new), 0, self.most))
