"""Checks of what users pass in: each raises a `ValueError` that names the argument, the rule, what was got and the fix.

Values are only looked at where they are known: under `jax.jit`, `jax.vmap` or `jax.grad` an array is a tracer, its
shape is still checked and its values are not.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

Numbers = jax.Array | np.ndarray | np.generic | float | int | Sequence[Any]
"""What users may pass where an array of numbers is wanted: arrays, numbers, nested lists or tuples."""


def is_traced(value: Any) -> bool:
    """Say whether any array in a pytree is a tracer, so that its values cannot be looked at."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def require(ok: bool | np.bool_, argument: str, rule: str, got: object, fix: str) -> None:
    """Raise the project's one form of error text unless `ok`."""
    if not ok:
        raise ValueError(f"{argument}: {rule}; got {got}. {fix}")


def require_number(
    argument: str,
    value: Any,
    *,
    above: float | int | None = None,
    least: float | int | None = None,
    below: float | int | None = None,
    most: float | int | None = None,
    fix: str = "",
) -> None:
    """Check that a scalar, if its value is known, is finite, > above, >= least, < below and <= most."""
    require(np.ndim(value) == 0, argument, "must be a single number", f"shape {np.shape(value)}", "Pass a scalar.")
    if is_traced(value):
        return
    known = np.asarray(value)  # of JAX's arrays, so that nothing here is traced
    kind = known.dtype
    real = np.issubdtype(kind, np.integer) or np.issubdtype(kind, np.floating) or kind.name == "bfloat16"
    require(real, argument, "must be a real number", repr(value), "Pass a float.")
    bounds = {
        f"> {above}": above is None or known > above,
        f">= {least}": least is None or known >= least,
        f"< {below}": below is None or known < below,
        f"<= {most}": most is None or known <= most,
    }
    interval = " and ".join(bound for bound in bounds if not bound.endswith("None"))
    inside = bool(np.isfinite(known)) and all(map(bool, bounds.values()))
    require(inside, argument, f"must be finite and {interval}", f"{value}", fix or f"Pass a value {interval}.")


def require_count(argument: str, value: Any) -> None:
    """Check that a value is a Python or NumPy integer >= 1."""
    ok = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
    require(ok, argument, "must be an integer >= 1", repr(value), "Pass a positive integer.")


def whole(value: Any) -> Any:
    """Return an integer of NumPy as one of Python, which may be a static field, and anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def require_seed(seed: Any) -> None:
    """Check that the seed of random numbers is an integer >= 0."""
    ok = isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 2**32
    require(ok, "seed", "must be an integer >= 0 and < 2^32", repr(seed), "Pass for instance 0.")


def require_key(key: Any) -> None:
    """Check that a value is a random key of JAX, of either kind."""
    kind, shape = getattr(key, "dtype", None), np.shape(key)
    typed = kind is not None and jnp.issubdtype(kind, jax.dtypes.prng_key) and shape == ()
    ok = typed or (kind == np.uint32 and len(shape) == 1)
    require(ok, "key", "must be a random key", repr(key)[:80], "Pass jax.random.key(0).")


def require_finite(argument: str, array: Any, fix: str) -> None:
    """Check that an array of numbers, if its values are known, has no NaN and no infinity."""
    if is_traced(array):
        return
    values = np.asarray(array)
    numeric = np.issubdtype(values.dtype, np.number) or values.dtype == bool
    real = numeric and not np.issubdtype(values.dtype, np.complexfloating)
    require(real, argument, "must hold real numbers", f"dtype {values.dtype}", "Encode the values as numbers first.")
    bad = int(np.size(values) - np.sum(np.isfinite(values)))
    require(bad == 0, argument, "must be finite", f"{bad} NaN or infinite of {values.size} values", fix)


def as_array(argument: str, values: Any) -> jax.Array:
    """Make a jax array, and refuse integers that its precision would wrap round."""
    array = values if isinstance(values, jax.Array) else np.asarray(values)
    numeric = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    require(numeric, argument, "must hold real numbers", f"dtype {array.dtype}", "Encode the values as numbers first.")
    result = jnp.asarray(array)
    if np.issubdtype(array.dtype, np.integer) and result.dtype != array.dtype:
        fix = "Subtract an offset, convert to float, or enable jax_enable_x64."
        same = bool(np.array_equal(array.astype(result.dtype), array))
        require(same, argument, f"must fit in {result.dtype}", f"values up to {np.abs(array).max()}", fix)
    return result
