"""Ways for `kbpjax.run` to take other steps than the update alone: Anderson acceleration, and kinds of damping."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from kbpjax import _checks
from kbpjax.inference.operators import normalize

ENOUGH = 20_000
"""Coordinates of which differences are compared: all would cost as much as the messages' products."""

GROWTH = 2.0
"""How far the residual may rise above its least before acceleration starts afresh."""

PATIENCE = 4
"""In so many times `depth` iterations the residual is to be halved; if not, as many are plain."""


class History(NamedTuple):
    """What `Anderson` remembers.

    Attributes:
        updates: the last updates, one a row.
        differences: how far they were from what they updated, of some of the messages.
        taken: iterations since the memory was emptied.
        least: the least residual since then.
        mark: the residual that is to be halved.
        waited: iterations since it was set.
    """

    updates: Float[Array, "depth coefficient"]
    differences: Float[Array, "depth some"]
    taken: Int[Array, ""]
    least: Float[Array, ""]
    mark: Float[Array, ""]
    waited: Int[Array, ""]


class Anderson(eqx.Module):
    """Anderson acceleration: combine the last updates so that the differences that they would make cancel.

    Safeguarded: where the residual rises to more than twice its least, the plain update is taken and the memory
    emptied; and where it is not halved in 4 depth iterations, as near a fixed point that the plain updates would leave,
    the next 4 depth are plain. It pays near a fixed point that is reached slowly, and brings nothing where messages
    swing far from one. Where there are several, it may find another than plain iterations, even one that these would
    leave: it is for problems of one fixed point, as with exponents of `tree_reweighting`.

    Args:
        depth: updates to remember, >= 2, from 3 on with effect; each takes as much memory as all messages.

    Raises:
        ValueError: depth out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.5, 1.0], [1.0, 2.5]]]))
        >>> graph, local = kbp.grid_graph(4, 4), jnp.ones((16, 2)).at[0, 0].set(2.0)
        >>> options = dict(num_iters=200, damping=0.0, tol=1e-5)
        >>> plain = kbp.run(agree, graph, local, **options)
        >>> quick = kbp.run(agree, graph, local, acceleration=kbp.Anderson(depth=5), **options)
        >>> 2 * int(quick.num_iters) < int(plain.num_iters)
        True
    """

    depth: int = eqx.field(static=True, converter=_checks.whole, default=5)

    def __check_init__(self) -> None:
        _checks.require_count("depth", self.depth)
        _checks.require(self.depth >= 2, "depth", "must be at least 2", self.depth, "Pass for instance 5.")

    def start(self, messages: Float[Array, "coordinate column"]) -> History:
        """Return an empty memory."""
        updates = jnp.zeros((self.depth, messages.size), messages.dtype)
        differences = jnp.zeros((self.depth, _some(messages).size), messages.dtype)
        least = mark = jnp.array(jnp.inf, messages.dtype)
        return History(updates, differences, jnp.int32(0), least, mark, jnp.int32(0))

    def advance(
        self,
        history: History,
        old: Float[Array, "coordinate column"],
        new: Float[Array, "coordinate column"],
        residual: Float[Array, ""],
    ) -> tuple[History, Float[Array, "coordinate column"]]:
        """Return the memory, and the messages to go on from, given those of an iteration and its residual."""
        patience = PATIENCE * self.depth
        fresh = (residual <= history.mark / 2) | (history.waited >= 2 * patience)
        mark, waited = jnp.where(fresh, residual, history.mark), jnp.where(fresh, 0, history.waited + 1)
        steady = (residual <= GROWTH * history.least) & (waited < patience)  # false for NaN
        slot = jnp.where(steady, history.taken, 0) % self.depth
        difference = _some(new - old)
        updates = history.updates.at[slot].set(new.reshape(-1))
        differences = history.differences.at[slot].set(difference)
        taken = jnp.where(steady, history.taken + 1, 1)
        known = jnp.arange(self.depth, dtype=jnp.int32) < taken
        weights = _weights(differences, known)
        mixed = normalize(jnp.sum(weights[:, None] * updates, axis=0).reshape(new.shape))
        take = steady & (taken > 1) & jnp.all(jnp.isfinite(weights))
        least = jnp.where(steady, jnp.minimum(history.least, residual), residual)
        return History(updates, differences, taken, least, mark, waited), jnp.where(take, mixed, new)


def _some(messages: Float[Array, "coordinate column"]) -> Float[Array, " some"]:
    """Return the coordinates of some messages drawn at random, enough to compare differences."""
    rank, count = messages.shape
    if messages.size <= ENOUGH:
        return messages.reshape(-1)
    chosen = np.random.default_rng(0).choice(count, size=max(1, ENOUGH // rank), replace=False)
    return messages[:, np.sort(chosen)].reshape(-1)


def _weights(differences: Float[Array, "depth some"], known: Bool[Array, " depth"]) -> Float[Array, " depth"]:
    """Return the weights, of sum 1, of the differences whose combination is smallest; 0 for those not known.

    They solve R^T R w = 1, up to scale, with the triangular factor R of the differences and a small ridge: this keeps
    the condition number of the differences, which their inner products would square.
    """
    rows = jnp.where(known[:, None], differences, 0)
    largest = jnp.max(jnp.abs(rows))
    ridge = jnp.where(known, jnp.finfo(rows.dtype).eps, 1).astype(rows.dtype)
    both = jnp.concatenate([rows.T / jnp.where(largest > 0, largest, 1), jnp.diag(ridge)])
    triangle = jnp.linalg.qr(both, mode="r")
    half = jax.scipy.linalg.solve_triangular(triangle, known.astype(rows.dtype), trans="T")
    weights = jnp.where(known, jax.scipy.linalg.solve_triangular(triangle, half), 0)
    return weights / jnp.sum(weights)


class AgreementDamping(eqx.Module):
    """Damping that moves a message less where its incoming messages disagree, as in the authors' program of 2011.

    m <- normalize(d m + (1 - d) u / u_1), with the update u not normalized, and u_1 the norm of the update of 1: where
    incoming messages and the evidence, scaled to maximum 1, disagree, u is small.

    Args:
        damping: weight d of the old message, in [0, 1).

    Raises:
        ValueError: damping out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(3), jnp.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
        >>> bool(kbp.run(agree, graph, local, damping=kbp.AgreementDamping(0.2)).converged)
        True
    """

    damping: ScalarLike = 0.2

    def __check_init__(self) -> None:
        check_damping(self.damping)


def check_damping(damping: Any) -> None:
    """Raise ValueError for a weight of the old message that is no number in [0, 1)."""
    fix = "It is the weight of the OLD message: 0 takes the new one whole, 0.2 to 0.8 help where loops oscillate."
    _checks.require_number("damping", damping, least=0, below=1, fix=fix)


class AdaptiveDamping(eqx.Module):
    """Damping that rises while the residual rises and falls while it falls; pass it as `damping`.

    The share of the new message is halved after an iteration whose residual was larger than the one before, and grows
    by a tenth after any other.

    Args:
        start: the first damping, in [0, 1).
        most: the largest, in [start, 1).

    Raises:
        ValueError: start or most out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
        >>> differ = kbp.Operators(jnp.eye(2)[None], jnp.array([[[1.0, 4.0], [4.0, 1.0]]]))  # neighbors want to differ
        >>> local = jnp.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
        >>> [bool(kbp.run(differ, graph, local, damping=d).converged) for d in (0.0, kbp.AdaptiveDamping())]
        [False, True]
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
