r"""Derivatives of a fixed point by the implicit function theorem: of what it is, not of how it was reached.

At x = F(x, theta), dx = (I - J)^{-1} dF with J = dF/dx. Neither direction needs the iterations that led to x, so memory
does not grow with their number: forward mode solves (I - J) v = b, reverse mode the transposed system, both by GMRES
(Saad and Schultz 1986), which needs only products with J. Iterating v <- J v + b instead would diverge at fixed points
that acceleration or another schedule has found although the plain iteration moves away from them. Messages of norm 1
whatever the scale of those before them have a J that is 0 along each message, so their free scale does no harm.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kbpjax.graph import Graph
from kbpjax.parts import Part, ignore_incoming, parts_of
from kbpjax.schedules import Exponents, Schedule, mix
from kbpjax.update import Operators, flatten, outgoing, unit

PARTS = 16
"""Parts of a graph of which one at a time is differentiated."""

RESTARTS = 4, 16
"""Fewest and most products with J after which GMRES restarts; each takes as much memory as all messages."""

KRYLOV = 2**19
"""Numbers that the basis of GMRES may hold where it has more than the fewest products: large graphs lack memory."""

LEAST = 512
"""Directed edges of a part below which parts are not worth while."""


class InParts(eqx.Module):
    """Update all messages at once, as `Synchronous` does, in the memory of those that some nodes send.

    Every message is received by one node and sent by one, so the derivatives of the parts do not overlap.

    Attributes:
        parts: some nodes each and what they send, stacked on a first axis [part, ...].
    """

    parts: Part

    def sweep(
        self, operators: Operators, graph: Graph, local: Array, messages: Array, damping: Array, exponents: Exponents
    ) -> tuple[Array, Array]:
        """Do one iteration; return the messages, and 0."""
        del graph

        def turn(new: Array, part: Part) -> tuple[Array, None]:
            rows, old = _sent(part, messages)
            sent = _send(operators, part, local, damping, exponents, _received(part, messages), old)
            return new.at[rows].set(sent, mode="drop"), None

        new, _ = jax.lax.scan(jax.checkpoint(turn, prevent_cse=False), jnp.zeros_like(messages), self.parts)
        return new, jnp.zeros_like(messages, shape=())

    def coefficients(
        self, operators: Operators, graph: Graph, local: Array, messages: Array, exponents: Exponents
    ) -> Float[Array, "edge rank"]:
        """Return what beliefs read of positive messages, as `kbpjax.update.coefficients` does."""
        del graph

        def turn(read: Array, part: Part) -> tuple[Array, None]:
            gathered = _received(part, messages)
            update = outgoing(operators, part, local, gathered, exponents, operators.project)
            return read.at[part.edge_tiles.rows.reshape(-1)].set(unit(flatten([update]))[0], mode="drop"), None

        empty = jnp.zeros_like(messages, shape=(len(messages), operators.project.shape[1]))
        return jax.lax.scan(jax.checkpoint(turn, prevent_cse=False), empty, self.parts)[0]

    def pull(
        self,
        operators: Operators,
        local: Array,
        messages: Array,
        damping: Array,
        exponents: Exponents,
        cotangent: Float[Array, "edge coordinate"],
    ) -> Float[Array, "edge coordinate"]:
        """Map a cotangent of the messages after `sweep` to one of those before."""

        def turn(total: Array, part: Part) -> tuple[Array, None]:
            rows, old = _sent(part, messages)
            send = partial(_send, operators, part, local, damping, exponents)
            to_incoming, to_old = jax.vjp(send, _received(part, messages), old)[1](
                cotangent.at[rows].get(mode="fill", fill_value=0)
            )
            for slots, values in zip(part.slots, to_incoming, strict=True):
                total = total.at[slots].add(values, mode="drop")
            return total.at[rows].add(to_old, mode="drop"), None

        return jax.lax.scan(turn, jnp.zeros_like(messages), self.parts)[0]


def _received(part: Part, messages: Array) -> tuple[Array, ...]:
    """Do what `kbpjax.update.gather` does, without a padded copy of all messages."""
    return tuple(messages.at[slots].get(mode="fill", fill_value=0) for slots in part.slots)


def _sent(part: Part, messages: Array) -> tuple[Array, Array]:
    """Return the numbers of the messages that a part sends, padding included, and these messages."""
    rows = part.edge_tiles.rows.reshape(-1)
    return rows, messages[jnp.minimum(rows, len(messages) - 1)]


def _send(
    operators: Operators,
    part: Part,
    local: Array,
    damping: Array,
    exponents: Exponents,
    gathered: tuple[Array, ...],
    old: Array,
) -> Array:
    update = outgoing(operators, part, local, gathered, exponents, operators.passed_on)
    update, size = unit(flatten([update]))
    return mix(old, update, size, damping)


def in_parts(graph: Graph, ignored: Bool[Array, " node"] | None) -> InParts | None:
    """Split a known graph into parts of about as many edges; None where it is too small for that.

    Args:
        graph: the graph.
        ignored: the nodes that ignore their incoming messages [node]; None: none.
    """
    if graph.num_edges < PARTS * LEAST:
        return None
    degree = np.bincount(np.asarray(graph.receivers), minlength=graph.num_nodes)
    parts = parts_of(graph, (np.cumsum(degree) - degree) * PARTS // graph.num_edges)
    if ignored is not None:
        parts = eqx.tree_at(lambda part: part.slots, parts, ignore_incoming(parts, ignored))
    return InParts(parts)


class Iteration(eqx.Module):
    """What a fixed point is one of, and how far its derivatives are pursued.

    Attributes:
        operators, graph, local, damping, exponents: as in `kbpjax.step`.
        turns: the order of updates.
        tol: residual of the linear system, relative to its right-hand side.
        most: most products with J for a derivative, which is NaN where they are not enough.
    """

    operators: Operators
    graph: Graph
    local: Float[Array, "node point"]
    damping: Float[Array, ""]
    exponents: Exponents
    turns: Schedule | InParts
    tol: Float[Array, ""]
    most: int = eqx.field(static=True)

    def once(self, messages: Array) -> Array:
        """Do one iteration."""
        args = self.operators, self.graph, self.local, messages, self.damping, self.exponents
        return self.turns.sweep(*args)[0]

    def pull(self, messages: Array, cotangent: Array) -> Array:
        """Map a cotangent of the messages after one iteration to one of those before."""
        if isinstance(self.turns, InParts):
            args = self.operators, self.local, messages, self.damping, self.exponents
            return self.turns.pull(*args, cotangent)
        messages, cotangent = jax.lax.optimization_barrier((messages, cotangent))  # not kept through a loop
        return jax.vjp(self.once, messages)[1](cotangent)[0]

    def solve(self, times: Callable[[Array], Array], rhs: Array) -> Array:
        """Solve v - times(v) = rhs; NaN where that does not converge."""
        tol = jnp.maximum(self.tol.astype(rhs.dtype), 20 * jnp.finfo(rhs.dtype).eps)
        return gmres(lambda vector: vector - times(vector), rhs, tol, self.most)


def gmres(apply: Callable[[Array], Array], rhs: Array, tol: Array, most: int) -> Array:
    """Solve apply(v) = rhs for a linear function by restarted GMRES, starting from 0.

    Args:
        apply: a linear function of arrays of the shape of rhs.
        rhs: the right-hand side, of any shape.
        tol: 2-norm of the residual at which to stop, relative to that of rhs.
        most: products with `apply`, rounded up to whole cycles.

    Returns:
        The solution; NaN where the tolerance was not reached.
    """
    enough = tol * jnp.linalg.norm(rhs.reshape(-1))

    def unfinished(carry: Any) -> Array:
        _, _, size, count = carry
        return (size > enough) & (count < most)

    def cycle(carry: Any) -> Any:
        vector, residual, size, count = carry
        flat_apply = lambda flat: apply(flat.reshape(rhs.shape)).reshape(-1)
        basis, hessenberg = _arnoldi(flat_apply, residual.reshape(-1), restart)
        first = jnp.zeros(restart + 1, rhs.dtype).at[0].set(size)
        weights = jnp.linalg.lstsq(hessenberg, first)[0]
        vector = vector + (weights @ basis[:-1]).reshape(rhs.shape)
        residual = rhs - apply(vector)
        return vector, residual, jnp.linalg.norm(residual.reshape(-1)), count + restart

    restart = int(np.clip(KRYLOV // max(rhs.size, 1), *RESTARTS))
    start = jnp.zeros_like(rhs), rhs, jnp.linalg.norm(rhs.reshape(-1)), jnp.int32(0)
    vector, _, size, _ = jax.lax.while_loop(unfinished, cycle, start)
    return jnp.where(size <= enough, vector, jnp.nan)


def _arnoldi(apply: Callable[[Array], Array], first: Array, count: int) -> tuple[Array, Array]:
    """Return an orthonormal basis of first, A first, A^2 first, .. [k + 1, size], and A on it [k + 1, k].

    Rows of the basis are 0 from where the products bring nothing new.
    """

    def extend(carry: tuple[Array, Array], j: Array) -> tuple[tuple[Array, Array], None]:
        basis, hessenberg = carry
        product = apply(basis[j])
        new, column = product, jnp.zeros(count + 1, first.dtype)
        for _ in range(2):  # once loses orthogonality to rounding, twice does not
            along = basis @ new
            new, column = new - along @ basis, column + along
        size = jnp.linalg.norm(new)
        fresh = size > 10 * jnp.finfo(first.dtype).eps * jnp.linalg.norm(product)
        basis = basis.at[j + 1].set(jnp.where(fresh, new / jnp.where(fresh, size, 1), 0))
        return (basis, hessenberg.at[:, j].set(column.at[j + 1].set(jnp.where(fresh, size, 0)))), None

    size = jnp.linalg.norm(first)
    basis = jnp.zeros((count + 1, len(first)), first.dtype).at[0].set(first / size)
    empty = jnp.zeros((count + 1, count), first.dtype)
    return jax.lax.scan(extend, (basis, empty), jnp.arange(count, dtype=jnp.int32))[0]


@eqx.filter_custom_jvp
def fixed_point(iteration: Iteration, messages: Float[Array, "edge coordinate"]) -> Float[Array, "edge coordinate"]:
    """Return messages that an iteration leaves as they are, with derivatives by what the iteration depends on."""
    del iteration
    return messages


@fixed_point.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    iteration, messages = primals
    messages = fixed_point(iteration, messages)  # for derivatives of derivatives

    def after(iteration: Iteration) -> Array:
        return jax.checkpoint(lambda changed: changed.once(messages))(iteration)

    _, rhs = eqx.filter_jvp(after, (iteration,), (tangents[0],))
    _, push = jax.linearize(jax.checkpoint(lambda messages: iteration.once(messages)), messages)
    tangent = jax.lax.custom_linear_solve(
        lambda vector: vector - push(vector),
        rhs,
        lambda minus, rhs: iteration.solve(lambda vector: vector - minus(vector), rhs),
        lambda _, rhs: iteration.solve(partial(iteration.pull, messages), rhs),
    )
    return messages, tangent


@jax.custom_jvp
def trust(messages: Float[Array, "edge coordinate"], converged: Bool[Array, ""]) -> Float[Array, "edge coordinate"]:
    """Return the messages, whose derivatives are NaN unless they have converged."""
    del converged
    return messages


@trust.defjvp
def _(primals: Any, tangents: Any) -> Any:
    messages, converged = primals
    return messages, tangents[0] * jnp.where(converged, 1, jnp.nan).astype(messages.dtype)
