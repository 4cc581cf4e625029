"""Loops over iterations: a fixed number of them, or until the residual is small enough.

The loops know an iteration only as a sweep, a function from messages and damping to messages and their change. Between
iterations messages stay turned as they are computed on (`kbpjax.layout`).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kbpjax.acceleration import AdaptiveDamping, Anderson
from kbpjax.layout import long_first, long_last

Sweep = Callable[[Array, Array, Array], tuple[Array, Array]]


class BPState(eqx.Module):
    """What one iteration leaves to the next.

    Attributes:
        messages: coefficients of each directed edge's message [edge, rank], of 2-norm 1 (or 0).
        residual: largest difference between a coefficient of a message and of its undamped update, both of 2-norm 1; of
            positive messages, which are values, between these scaled to maximum 1. 0 at a fixed point.
        count: iterations done.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(3), jnp.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
        >>> state = kbp.step(agree, graph, local, kbp.init(agree, graph), damping=0.0)
        >>> int(state.count), state.messages.shape, bool(state.residual > 0)
        (1, (4, 2), True)
    """

    messages: Float[Array, "edge rank"]
    residual: Float[Array, ""]
    count: Int[Array, ""]


def iterate(
    sweep: Sweep,
    local: Float[Array, "node point"],
    messages: Float[Array, "edge coordinate"],
    damping: Any,
    acceleration: Anderson | None,
    tol: Any,
    num_iters: int,
) -> tuple[BPState, Array]:
    """Iterate; return the last state and all residuals.

    Args:
        sweep: function of local factors, messages and damping that does one iteration.
        local: local factors.
        messages: where to start.
        damping: weight of the old message, or `AdaptiveDamping()`.
        acceleration: `Anderson(depth)`, or None.
        tol: residual at which to stop; None: all iterations are done.
        num_iters: number of iterations; with `tol` the most there can be.
    """
    by_point = long_last(local)

    def iteration(state: BPState, damping: Array) -> BPState:
        messages, change = sweep(long_first(by_point), long_first(state.messages), damping)
        return BPState(long_last(messages), change, state.count + 1)

    enough = None if tol is None else jnp.asarray(tol, messages.dtype)
    carry, advance = _begin(iteration, damping, acceleration, start_state(long_last(messages)), enough)
    last, residuals = _count(carry, advance, num_iters) if enough is None else _until(carry, advance, enough, num_iters)
    return replace(last, messages=long_first(last.messages)), residuals


def start_state(messages: Array) -> BPState:
    """Return the state before the first iteration."""
    return BPState(messages, jnp.array(jnp.inf, messages.dtype), jnp.int32(0))


def _count(carry: Any, advance: Callable[[Any], Any], num_iters: int) -> tuple[BPState, Array]:
    """Iterate a fixed number of times, in nested loops; return the last state and all residuals.

    Reverse mode keeps what each loop starts its turns from, of one turn of the loop around it at a time.
    """

    def iterate(carry: Any, _: None) -> Any:
        carry = advance(carry)
        return carry, carry[0].residual

    def repeat(body: Callable[..., Any], turns: int) -> Callable[..., Any]:
        return lambda carry, _: jax.lax.scan(jax.checkpoint(body, prevent_cse=False), carry, length=turns)

    loops, rest = _loops(num_iters)
    carry, residuals = reduce(repeat, loops, iterate)(carry, None)
    residuals = residuals.reshape(-1)
    if rest:
        carry, last = repeat(iterate, rest)(carry, None)
        residuals = jnp.concatenate([residuals, last])
    return carry[0], residuals


def _loops(num_iters: int) -> tuple[list[int], int]:
    """Split a number of iterations into turns of up to three nested loops, the inner first, and a rest after them.

    The sum of the turns, what reverse mode keeps, is the least there is. As many as the inner loops have can come after
    them at no cost: they are done with when the inner loops begin.
    """
    if num_iters <= 8:
        return [num_iters], 0
    few = range(1, 1 + math.isqrt(num_iters))
    ways = [((i, j, k := num_iters // (i * j)), num_iters - i * j * k) for i in few for j in few if i * j <= num_iters]
    good = [(sum(way), rest > 0, way, rest) for way, rest in ways if rest <= way[0] + way[1] and rest != 1]
    _, _, way, rest = min(good)
    return [turns for turns in way if turns > 1], rest


def _until(carry: Any, advance: Callable[[Any], Any], enough: Array, num_iters: int) -> tuple[BPState, Array]:
    """Iterate until the residual is small enough; return the last state and all residuals."""

    def unfinished(carry: Any) -> Array:
        (state, *_), _ = carry
        return (state.count < num_iters) & (state.residual > enough)

    def iterate(carry: Any) -> Any:
        before, residuals = carry
        after = advance(before)
        return after, residuals.at[before[0].count].set(after[0].residual)

    residuals = jnp.full(num_iters, jnp.nan, enough.dtype)
    (last, *_), residuals = jax.lax.while_loop(unfinished, iterate, (carry, residuals))
    return last, residuals


def _begin(
    iteration: Callable[..., BPState],
    damping: Any,
    acceleration: Anderson | None,
    state: BPState,
    enough: Array | None,
) -> tuple[Any, Callable[[Any], Any]]:
    """Return what a loop carries at first, and the function that does one damped and accelerated iteration on it."""
    adaptive = isinstance(damping, AdaptiveDamping)
    weight = jnp.asarray(damping.start if adaptive else damping, state.messages.dtype)
    history = None if acceleration is None else acceleration.start(long_first(state.messages))

    def advance(carry: Any) -> Any:
        state, weight, history = carry
        new = iteration(state, weight)
        if adaptive:
            weight = damping.next(weight, state.residual, new.residual)
        if acceleration is not None:
            both = long_first(state.messages), long_first(new.messages)
            history, mixed = acceleration.advance(history, *both, new.residual)
            mixed = long_last(mixed)
            if enough is not None:  # what has converged is not extrapolated: its residual would not be known
                mixed = jnp.where(new.residual <= enough, new.messages, mixed)
            new = replace(new, messages=mixed)
        return new, weight, history

    return (state, weight, history), advance
