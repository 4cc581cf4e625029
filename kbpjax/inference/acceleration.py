"""Anderson acceleration, and damping, for `kbpjax.run`."""

from functools import reduce
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kbpjax import _checks
from kbpjax._misc import show_fields
from kbpjax._public import Checked
from kbpjax.inference.operators import normalize, split

ENOUGH = 20_000
"""Number of coordinates that Anderson mixing compares; all of them would cost as much as the message products."""

GROWTH = 2.0
"""Factor by which the residual may rise above its minimum before acceleration restarts."""

PATIENCE = 4
"""If the residual is not halved in PATIENCE * depth iterations, the same number of plain iterations follow."""


class History(NamedTuple):
    """The memory of `Anderson`.

    Attributes:
        updates: the last updates.
        differences: update minus old message, for a sample of the messages, one row per update.
        taken: iterations since the last restart.
        least: smallest residual since the last restart.
        mark: reference residual, which must be halved within the patience.
        waited: iterations since `mark` was set.
    """

    updates: Float[Array, "depth row coordinate"]
    differences: Float[Array, "depth some"]
    taken: Int[Array, ""]
    least: Float[Array, ""]
    mark: Float[Array, ""]
    waited: Int[Array, ""]


class Anderson(Checked):
    """Anderson acceleration: combine the last updates so that their residuals cancel as far as possible.

    Two safeguards apply. If the residual exceeds twice its minimum, the plain update is used and the memory is cleared.
    If it is not halved in 4 depth iterations, as near an unstable fixed point, the next 4 depth iterations are plain.

    It helps near a fixed point to which plain iterations converge slowly, and has no benefit while messages oscillate.
    If there are several fixed points, it may find another than plain iterations, even an unstable one. Use it for
    problems with a single fixed point, as with the exponents of `tree_reweighting`.

    Args:
        depth: number of updates to keep, >= 2; an effect begins at 3. Each takes as much memory as all messages.

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

    def start(self, messages: Float[Array, "row coordinate"]) -> History:
        """Return an empty memory."""
        updates = jnp.zeros((self.depth, *messages.shape), messages.dtype)
        differences = jnp.zeros((self.depth, _some(messages).size), messages.dtype)
        least = mark = jnp.array(jnp.inf, messages.dtype)
        return History(updates, differences, jnp.int32(0), least, mark, jnp.int32(0))

    def advance(
        self,
        history: History,
        old: Float[Array, "row coordinate"],
        new: Float[Array, "row coordinate"],
        residual: Float[Array, ""],
    ) -> tuple[History, Float[Array, "row coordinate"]]:
        """Return the memory and the next messages, given the old and new messages of an iteration and its residual."""
        if new.size == 0:  # no edges
            return history, new
        patience = PATIENCE * self.depth
        reset = (residual <= history.mark / 2) | (history.waited >= 2 * patience)
        mark, waited = jnp.where(reset, residual, history.mark), jnp.where(reset, 0, history.waited + 1)
        steady = (residual <= GROWTH * history.least) & (waited < patience)  # False for NaN
        slot = jnp.where(steady, history.taken, 0) % self.depth
        difference = _some(new - old)
        updates = history.updates.at[slot].set(new)
        differences = history.differences.at[slot].set(difference)
        taken = jnp.where(steady, history.taken + 1, 1)
        filled = jnp.arange(self.depth, dtype=jnp.int32) < taken
        weights = _weights(differences, filled)
        mixed = normalize(reduce(jnp.add, map(jnp.multiply, split(weights, 0), split(updates, 0))))
        accept = steady & (taken > 1) & jnp.all(jnp.isfinite(weights))
        least = jnp.where(steady, jnp.minimum(history.least, residual), residual)
        mixed = jnp.where(new == 0, 0, mixed)  # values of impossible states stay 0
        return History(updates, differences, taken, least, mark, waited), jnp.where(accept, mixed, new)

    __repr__ = show_fields


def _some(messages: Float[Array, "row coordinate"]) -> Float[Array, " some"]:
    """Return about `ENOUGH` coordinates, those of a fixed random sample of the messages."""
    count, rank = messages.shape
    if messages.size <= ENOUGH:
        return messages.reshape(-1)
    chosen = np.random.default_rng(0).choice(count, size=max(1, ENOUGH // rank), replace=False)
    return messages[np.sort(chosen)].reshape(-1)


def _weights(differences: Float[Array, "depth some"], filled: Bool[Array, " depth"]) -> Float[Array, " depth"]:
    """Return the weights, with sum 1, of the smallest combination of differences; 0 for rows not yet filled.

    They solve R^T R w = 1, up to scale, with the triangular factor R (QR) of the differences and a small ridge. The
    normal equations would square the condition number.
    """
    rows = jnp.where(filled[:, None], differences, 0)
    largest = jnp.max(jnp.abs(rows))
    ridge = jnp.where(filled, jnp.finfo(rows.dtype).eps, 1).astype(rows.dtype)
    both = jnp.concatenate([rows.T / jnp.where(largest > 0, largest, 1), jnp.diag(ridge)])
    triangle = jnp.linalg.qr(both, mode="r")
    half = jax.scipy.linalg.solve_triangular(triangle, filled.astype(rows.dtype), trans="T")
    weights = jnp.where(filled, jax.scipy.linalg.solve_triangular(triangle, half), 0)
    return weights / jnp.sum(weights)


def check_damping(damping: Any) -> None:
    """Raise ValueError unless damping is a number in [0, 1)."""
    fix = "It is the weight of the OLD message: 0 means no damping; 0.2 to 0.8 help if messages oscillate."
    _checks.require_number("damping", damping, least=0, below=1, fix=fix)


class AdaptiveDamping(Checked):
    """Damping that increases while the residual increases, and decreases otherwise; pass it as `damping`.

    The weight of the new message is halved after an iteration with a larger residual than the previous one, and grows
    by a tenth after any other.

    Args:
        start: the first damping, in [0, 1).
        most: the largest damping, in [start, 1).

    Raises:
        ValueError: start or most out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
        >>> differ = kbp.Operators(jnp.eye(2)[None], jnp.array([[[1.0, 4.0], [4.0, 1.0]]]))  # neighbors tend to differ
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

    __repr__ = show_fields
