"""Checks of arguments; each raises a `ValueError` with the argument, the rule, the value and the fix.

Under `jax.jit`, `jax.vmap` or `jax.grad`, arrays are tracers: their shapes are checked, but not their values.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Key

Numbers = jax.Array | np.ndarray | np.generic | float | int | Sequence[Any]
"""Type of array-like arguments: arrays, numbers, nested lists or tuples."""


def is_traced(value: Any) -> bool:
    """Return True if any array in a pytree is a tracer, so its values are not available."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def require(ok: bool | np.bool_, argument: str, rule: str, got: object, fix: str) -> None:
    """Raise ValueError "argument: rule; got ... fix" unless `ok`."""
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
    """Raise ValueError unless a scalar is finite, > above, >= least, < below and <= most; tracers pass."""
    require(np.ndim(value) == 0, argument, "must be a single number", f"shape {np.shape(value)}", "Pass a scalar.")
    if is_traced(value):
        return
    number = np.asarray(value)  # NumPy, so that no operation below is traced
    dtype = number.dtype
    real = np.issubdtype(dtype, np.integer) or np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"
    require(real, argument, "must be a real number", repr(value), "Pass a float.")
    bounds = {
        f"> {above}": above is None or number > above,
        f">= {least}": least is None or number >= least,
        f"< {below}": below is None or number < below,
        f"<= {most}": most is None or number <= most,
    }
    interval = " and ".join(bound for bound in bounds if not bound.endswith("None"))
    inside = bool(np.isfinite(number)) and all(map(bool, bounds.values()))
    require(inside, argument, f"must be finite and {interval}", f"{value}", fix or f"Pass a value {interval}.")


def require_count(argument: str, value: Any) -> None:
    """Raise ValueError unless a value is a Python or NumPy integer >= 1."""
    ok = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
    require(ok, argument, "must be an integer >= 1", repr(value), "Pass a positive integer.")


def whole(value: Any) -> Any:
    """Return a NumPy integer as a Python integer, which may be a static field; return other values unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def require_seed(seed: Any) -> None:
    """Raise ValueError unless a seed is an integer >= 0 and < 2^32."""
    ok = isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 2**32
    require(ok, "seed", "must be an integer >= 0 and < 2^32", repr(seed), "Pass for instance 0.")


def require_key(key: Any) -> None:
    """Raise ValueError unless a value is a JAX random key, typed or raw."""
    dtype, shape = getattr(key, "dtype", None), np.shape(key)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    ok = typed or (dtype == np.uint32 and len(shape) == 1)
    require(ok, "key", "must be a random key", repr(key)[:80], "Pass jax.random.key(0).")


def random_key(key: Any) -> Key[jax.Array, ""]:
    """Return a random key as a typed key; None: `jax.random.key(0)`."""
    if key is None:
        return jax.random.key(0)
    require_key(key)
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def words_of_key(key: Any) -> list[int]:
    """Return the data of a random key as integers, for example [0, 7] of `jax.random.key(7)`; None: of key 0."""
    fix = "Call the function outside jax.jit, jax.vmap and jax.grad."
    require(not is_traced(key), "key", "must be known", "a traced key", fix)
    return np.asarray(jax.random.key_data(random_key(key))).tolist()


def host_seed(key: Any) -> int:
    """Return the data of a random key as one integer, a seed of NumPy; it is s for `jax.random.key(s)`."""
    return sum(word << 32 * i for i, word in enumerate(reversed(words_of_key(key))))


def require_finite(argument: str, array: Any, fix: str) -> None:
    """Raise ValueError if an array has NaN, infinite or non-real values; tracers pass."""
    if is_traced(array):
        return
    values = np.asarray(array)
    numeric = np.issubdtype(values.dtype, np.number) or values.dtype == bool
    real = numeric and not np.issubdtype(values.dtype, np.complexfloating)
    require(real, argument, "must hold real numbers", f"dtype {values.dtype}", "Encode the values as numbers first.")
    bad = int(np.size(values) - np.sum(np.isfinite(values)))
    require(bad == 0, argument, "must be finite", f"{bad} NaN or infinite of {values.size} values", fix)


def as_array(argument: str, values: Any) -> jax.Array:
    """Return values as a JAX array; raise ValueError if integers would overflow."""
    array = values if isinstance(values, jax.Array) else np.asarray(values)
    numeric = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    require(numeric, argument, "must hold real numbers", f"dtype {array.dtype}", "Encode the values as numbers first.")
    result = jnp.asarray(array)
    if np.issubdtype(array.dtype, np.integer) and result.dtype != array.dtype:
        fix = "Subtract an offset, convert to float, or enable jax_enable_x64."
        same = bool(np.array_equal(array.astype(result.dtype), array))
        require(same, argument, f"must fit in {result.dtype}", f"values up to {np.abs(array).max()}", fix)
    return result
