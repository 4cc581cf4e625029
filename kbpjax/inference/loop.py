"""Iteration loops: a fixed number of iterations, or until the residual is at most a tolerance.

An iteration is a sweep of a schedule: a function from the schedule's state, messages and damping to new messages, the
residual and the next state.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kbpjax._misc import vary_like
from kbpjax.inference.acceleration import AdaptiveDamping, Anderson

Sweep = Callable[[Any, Array, Array], tuple[Array, Array, Any]]

LENGTH = 1000
"""Number of residuals that a run with a tolerance keeps; longer runs keep every k-th."""


KEPT = 2**28
"""Largest number of bytes of the states of all iterations for which reverse mode stores every state.

Above it, some states are stored and the others are recomputed. Storing every state is a third faster.
"""


class State(eqx.Module):
    """The state between two iterations.

    Attributes:
        messages: the messages.
        residual: largest difference between the previous messages and their undamped updates.
        count: number of iterations done.
        damping: weight of the old messages in the next iteration.
        history: the `History` of `Anderson`, or None.
        schedule: the state of the schedule.
    """

    messages: Float[Array, "row coordinate"]
    residual: Float[Array, ""]
    count: Int[Array, ""]
    damping: Float[Array, ""]
    history: Any
    schedule: Any


def iterate(
    sweep: Sweep,
    start: Any,
    messages: Float[Array, "row coordinate"],
    damping: Any,
    acceleration: Anderson | None,
    tol: Array | None,
    num_iters: Any,
) -> tuple[State, Float[Array, " some"]]:
    """Return the state after the last iteration, and the residuals.

    Args:
        sweep: does one iteration.
        start: the initial state of the schedule.
        messages: the initial messages; under `jax.shard_map`, they must vary as those after an iteration do.
        damping: weight of the old message, or `AdaptiveDamping()`.
        acceleration: `Anderson(depth)`, or None.
        tol: residual at which to stop; None: all iterations are done.
        num_iters: number of iterations; with `tol`, the maximum, which may be traced.
    """

    def advance(state: State) -> State:
        new, residual, of_schedule = sweep(state.schedule, state.messages, state.damping)
        weight, history = state.damping, state.history
        if isinstance(damping, AdaptiveDamping):
            weight = damping.next(weight, state.residual, residual)
        if acceleration is not None:
            history, mixed = acceleration.advance(history, state.messages, new, residual)
            # A converged update is not extrapolated: the residual of the result would be unknown.
            new = mixed if tol is None else jnp.where(residual <= tol, new, mixed)
        return State(new, residual, state.count + 1, weight, history, of_schedule)

    first = damping.start if isinstance(damping, AdaptiveDamping) else damping
    history = None if acceleration is None else acceleration.start(messages)
    dtype = messages.dtype
    state = State(messages, jnp.array(jnp.inf, dtype), jnp.int32(0), jnp.asarray(first, dtype), history, start)
    state = vary_like(state, messages)
    return _count(advance, state, num_iters) if tol is None else _until(advance, state, tol, num_iters)


def _count(advance: Callable[[State], State], state: State, num_iters: int) -> tuple[State, Array]:
    """Iterate n times. Reverse mode keeps all states if small, else, by two nested loops, about 2 sqrt(n) of them."""

    def one(state: State, _: None) -> tuple[State, Array]:
        state = advance(state)
        return state, state.residual

    def repeat(body: Callable[..., Any], state: State, length: int) -> tuple[State, Array]:
        return jax.lax.scan(jax.checkpoint(body, prevent_cse=False), state, length=length)

    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    root = num_iters if num_iters * size <= KEPT else math.isqrt(num_iters)
    divisors = [d for d in range((root + 1) // 2, root + 1) if num_iters % d == 0]
    inner = divisors[-1] if divisors else root
    outer, rest = divmod(num_iters, inner)
    if outer == 1:
        state, residuals = repeat(one, state, inner)
    else:
        state, residuals = repeat(lambda state, _: repeat(one, state, inner), state, outer)
    residuals = residuals.reshape(-1)
    if rest:
        state, last = repeat(one, state, rest)
        residuals = jnp.concatenate([residuals, last])
    return state, residuals


def _until(advance: Callable[[State], State], state: State, tol: Array, num_iters: Any) -> tuple[State, Array]:
    """Iterate until the residual is at most `tol`, or NaN, or `num_iters` iterations are done."""
    most = jnp.asarray(num_iters, jnp.int32)
    stride = -(-most // LENGTH)

    def unfinished(carry: tuple[State, Array]) -> Array:
        return (carry[0].count < most) & (carry[0].residual > tol)

    def one(carry: tuple[State, Array]) -> tuple[State, Array]:
        state, residuals = carry
        new = advance(state)
        return new, residuals.at[state.count // stride].set(new.residual)

    residuals = vary_like(jnp.full(LENGTH, jnp.nan, tol.dtype), state)
    return jax.lax.while_loop(unfinished, one, (state, residuals))
