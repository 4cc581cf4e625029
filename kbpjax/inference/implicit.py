r"""Derivatives of a fixed point by the implicit function theorem, independent of the iterations that led to it.

At x = F(x, theta), dx = (I - J)^{-1} dF with J = dF/dx. Forward mode solves (I - J) v = b, reverse mode the transposed
system, both by GMRES (Saad and Schultz 1986), which needs only products with J. Memory does not grow with the number of
iterations. As long as v <- J v + b halves the residual, it comes first, for it is cheaper. Alone it would diverge at
fixed points that are unstable under plain iterations but were found by acceleration or another schedule. Updates are
normalized whatever the scale of their inputs, so J is 0 along each message, and the free scale of messages does no
harm.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kbpjax import _checks
from kbpjax._misc import vary_like
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.plan import Plan
from kbpjax.inference.operators import Operators, normalize
from kbpjax.inference.update import PlanPart, cavities, each_part, factors_of, gather, project, update_from

PARTS = 4
"""Number of parts of a large graph; one part at a time is differentiated, to save memory."""

RESTARTS = 4, 16
"""Smallest and largest restart length of GMRES; each basis vector takes as much memory as all messages."""

KRYLOV = 2**19
"""Target size of the GMRES basis, in numbers; it sets the restart length within `RESTARTS`."""

SMALLEST = 512
"""Smallest number of directed edges per part; smaller graphs are differentiated in one piece."""


def plan_in_parts(graph: Graph) -> Plan:
    """Return a plan of a graph in `PARTS` parts with about equal numbers of edges; one part if small or traced."""
    if graph.num_edges < PARTS * SMALLEST or _checks.is_traced(graph):
        return graph.plan
    degree = np.bincount(np.asarray(graph.receivers), minlength=graph.num_nodes)
    return graph.plan_of(np.minimum((np.cumsum(degree) - degree) * PARTS // graph.num_edges, PARTS - 1))


def most_products(num_iters: Int[Array, ""]) -> Int[Array, ""]:
    """Return the number of products with J after which a derivative is given up: two for each iteration."""
    return 2 * jnp.minimum(num_iters, 2**29)  # so that counts fit in 32 bits


class Iteration(eqx.Module):
    """An undamped iteration of all messages, and the accuracy of the derivatives of its fixed point.

    Attributes:
        operators: the model's operators.
        parts: parts of the graph with their local factors.
        place: `place` of the plan.
        tol: residual of the linear system, relative to its right-hand side.
        most: maximum number of products with J per derivative; the derivative is NaN if GMRES needs more.
    """

    operators: Operators
    parts: PlanPart
    place: Int[Array, " row"]
    tol: Float[Array, ""]
    most: Int[Array, ""]

    def once(self, messages: Float[Array, "row coordinate"]) -> Float[Array, "row coordinate"]:
        """Do one iteration."""
        factors = factors_of(self.operators, self.parts, messages)
        return each_part(lambda part: normalize(update_from(self.operators, part, factors)), self.parts)

    def pull(self, messages: Array, cotangent: Array) -> Array:
        """Return the vector-Jacobian product of one iteration: the cotangent of its input messages.

        Every message has one receiver: its cotangent is taken from the part of that node.
        """
        count = len(messages)

        def body(_: None, given: tuple[PlanPart, Array]) -> tuple[None, Array]:
            part, of_part = given
            send = lambda incoming: normalize(
                project(self.operators, part, cavities(self.operators, part, incoming, count))
            )
            (to_incoming,) = jax.vjp(send, gather(part, factors))[1](of_part)
            return None, jnp.concatenate([block.reshape(-1, block.shape[-1]) for block in to_incoming])

        # The barrier keeps XLA from moving the forward pass out of the solver's loop, where it would stay in memory.
        messages, cotangent = jax.lax.optimization_barrier((messages, cotangent))
        factors, to_messages = jax.vjp(partial(factors_of, self.operators, self.parts), messages)
        of_parts = cotangent.reshape(*self.parts.present.shape, -1)
        taken = jax.lax.scan(body, None, (self.parts, of_parts))[1]
        return to_messages(taken.reshape(-1, cotangent.shape[1]).at[self.place].get(mode="fill", fill_value=0))[0]

    def solve(self, times: Callable[[Array], Array], rhs: Array) -> Array:
        """Solve v - times(v) = rhs by GMRES; NaN unless it converges."""
        tol = jnp.maximum(self.tol.astype(rhs.dtype), 20 * jnp.finfo(rhs.dtype).eps)
        return gmres(lambda vector: vector - times(vector), rhs, tol, self.most)


def gmres(apply: Callable[[Array], Array], rhs: Array, tol: Array, most: Int[Array, ""] | int) -> Array:
    """Solve apply(v) = rhs for a linear function by restarted GMRES, starting from 0.

    Before, v <- v + residual is iterated as long as that halves the residual. Near a fixed point that iterations find
    quickly, it is all that is needed, and saves the basis of GMRES: half of the time (`benchmarks/gradients.py`).

    Args:
        apply: a linear function of arrays of the shape of rhs.
        rhs: the right-hand side, of any shape.
        tol: 2-norm of the residual at which to stop, relative to that of rhs.
        most: maximum number of calls of `apply`, rounded up to a multiple of the restart length.

    Returns:
        The solution; NaN if the tolerance was not reached.
    """
    target = tol * jnp.linalg.norm(rhs.reshape(-1))

    def unfinished(carry: Any) -> Array:
        _, _, size, count = carry
        return (size > target) & (count < most)

    def halves(carry: Any) -> Array:
        state, halved = carry
        return halved & unfinished(state)

    def halve(carry: Any) -> Any:
        vector, residual, size, count = carry[0]
        next_residual = residual - apply(residual)
        next_size = jnp.linalg.norm(next_residual.reshape(-1))
        less = next_size < size
        next_state = jax.tree.map(partial(jnp.where, less), (vector + residual, next_residual, next_size), carry[0][:3])
        return (*next_state, count + 1), next_size <= size / 2

    def cycle(carry: Any) -> Any:
        vector, residual, size, count = carry
        flat_apply = lambda flat: apply(flat.reshape(rhs.shape)).reshape(-1)
        basis, hessenberg = _arnoldi(flat_apply, residual.reshape(-1), restart)
        first = jnp.zeros(restart + 1, rhs.dtype).at[0].set(size)
        weights = jnp.linalg.lstsq(hessenberg, first)[0]
        vector = vector + (weights @ basis[:-1]).reshape(rhs.shape)
        residual = ((first - hessenberg @ weights) @ basis).reshape(rhs.shape)  # rhs - apply(vector), without a product
        return vector, residual, jnp.linalg.norm(residual.reshape(-1)), count + restart

    restart = int(np.clip(KRYLOV // max(rhs.size, 1), *RESTARTS))
    start = (jnp.zeros_like(rhs), rhs, jnp.linalg.norm(rhs.reshape(-1)), jnp.int32(0)), jnp.array(True)
    state, _ = jax.lax.while_loop(halves, halve, vary_like(start, (rhs, tol, most)))
    vector, _, size, _ = jax.lax.while_loop(unfinished, cycle, state)
    return jnp.where(size <= target, vector, jnp.nan)


def _arnoldi(apply: Callable[[Array], Array], first: Array, count: int) -> tuple[Array, Array]:
    """Return an orthonormal basis of the Krylov space of `first` [k + 1, size], and the Hessenberg matrix [k + 1, k].

    If the space has a smaller dimension, the remaining rows of the basis are 0.
    """

    def extend(carry: tuple[Array, Array], j: Array) -> tuple[tuple[Array, Array], None]:
        basis, hessenberg = carry
        product = apply(basis[j])
        new, column = product, jnp.zeros(count + 1, first.dtype)
        for _ in range(2):  # one pass loses orthogonality to rounding, two do not
            along = basis @ new
            new, column = new - along @ basis, column + along
        size = jnp.linalg.norm(new)
        fresh = size > 10 * jnp.finfo(first.dtype).eps * jnp.linalg.norm(product)
        basis = basis.at[j + 1].set(jnp.where(fresh, new / jnp.where(fresh, size, 1), 0))
        return (basis, hessenberg.at[:, j].set(column.at[j + 1].set(jnp.where(fresh, size, 0)))), None

    size = jnp.linalg.norm(first)
    basis = jnp.zeros((count + 1, len(first)), first.dtype).at[0].set(first / size)
    empty = jnp.zeros((count + 1, count), first.dtype)
    start = vary_like((basis, empty), first)
    return jax.lax.scan(extend, start, jnp.arange(count, dtype=jnp.int32))[0]


@eqx.filter_custom_jvp
def fixed_point(iteration: Iteration, messages: Float[Array, "row coordinate"]) -> Float[Array, "row coordinate"]:
    """Return the messages, a fixed point of an iteration, with derivatives with respect to the iteration's arrays."""
    del iteration
    return messages


@fixed_point.def_jvp
def _(primals: Any, tangents: Any) -> Any:
    iteration, messages = primals
    messages = fixed_point(iteration, messages)  # for higher derivatives

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
def trust(messages: Array, converged: Bool[Array, ""]) -> Float[Array, "row coordinate"]:
    """Return the messages, with derivatives that are NaN unless they have converged."""
    del converged
    return messages


@trust.defjvp
def _(primals: Any, tangents: Any) -> Any:
    messages, converged = primals
    return messages, tangents[0] * jnp.where(converged, 1, jnp.nan).astype(messages.dtype)
