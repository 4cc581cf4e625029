"""Shared code of the baselines: checks of the options of `run`, and the iteration loop."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ScalarLike

from kbpjax import _checks
from kbpjax.inference.acceleration import check_damping

CONVERGED = 1e-3
"""Residual at which messages count as converged where no tolerance was given, as in `kbpjax.run`."""


def check_options(num_iters: Any, damping: Any, tol: Any) -> None:
    """Raise ValueError unless the options that every `run` takes are in range."""
    _checks.require_count("num_iters", num_iters)
    what, fix = "the residuals of all iterations", "Pass a smaller number."
    _checks.require_memory("num_iters", what, 8 * num_iters, fix)
    check_damping(damping)
    if tol is not None:
        _checks.require_number("tol", tol, above=0)


def iterate(
    advance: Callable[[Any, Any], tuple[Any, tuple[Array, ...]]],
    state: Any,
    inputs: Any,
    num_iters: int,
    tol: ScalarLike | None,
) -> tuple[Any, tuple[Array, ...], Array, Array]:
    """Iterate a fixed number of times, or until the residual is at most `tol` or NaN.

    Args:
        advance: function of a state and one iteration's input to the next state and a record, a tuple of scalars whose
            first is the residual.
        state: the first state.
        inputs: inputs of all iterations, stacked on a first axis [num_iters], or None.
        num_iters: number of iterations; with `tol`, the maximum.
        tol: residual at which to stop, or None.

    Returns:
        The last state; the records, each entry [num_iters], NaN after the last iteration; the number of iterations;
        whether the last residual is at most `tol` (None: `CONVERGED`).
    """
    if tol is None:
        state, records = jax.lax.scan(advance, state, inputs, length=num_iters)
        return state, records, jnp.int32(num_iters), records[0][-1] <= CONVERGED
    entries = jax.eval_shape(advance, state, jax.tree.map(lambda a: a[0], inputs))[1]
    empty = tuple(jnp.full(num_iters, jnp.nan, entry.dtype) for entry in entries)
    threshold = jnp.asarray(tol, entries[0].dtype)

    def unfinished(carry: Any) -> Array:
        _, _, residual, count = carry
        return (count < num_iters) & (residual > threshold)

    def step(carry: Any) -> Any:
        state, records, _, count = carry
        state, record = advance(state, jax.tree.map(lambda a: a[count], inputs))
        records = tuple(all_of.at[count].set(one) for all_of, one in zip(records, record, strict=True))
        return state, records, record[0], count + 1

    carry = state, empty, jnp.full((), jnp.inf, threshold.dtype), jnp.int32(0)
    state, records, residual, count = jax.lax.while_loop(unfinished, step, carry)
    return state, records, count, residual <= threshold
