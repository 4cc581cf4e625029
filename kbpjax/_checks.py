"""Checks of arguments; each raises a `ValueError` with the argument, the rule, the value and the fix.

Under `jax.jit`, `jax.vmap` or `jax.grad`, arrays are tracers: their shapes are checked, but not their values.
Elsewhere, `skip_value_checks` does the same for arrays of JAX.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Key


@runtime_checkable
class Frame(Protocol):
    """A table or column of pandas or polars: anything with the method `to_numpy`."""

    def to_numpy(self) -> Any:
        """Return the values as a NumPy array [row] or [row, column]."""
        ...


Numbers = jax.Array | np.ndarray | np.generic | float | int | Sequence[Any] | Frame
"""Type of array-like arguments: arrays, numbers, nested lists or tuples, and frames of pandas or polars."""


def is_traced(value: Any) -> bool:
    """Return True if any array in a pytree is a tracer, so its values are not available."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


_skips_values: ContextVar[bool] = ContextVar("skips_values", default=False)


@contextmanager
def skip_value_checks() -> Iterator[None]:
    """Check shapes and types of JAX arrays but not their values, in this thread, so that no call waits for the device.

    Outside `jax.jit`, `observe`, `clamp`, `likelihood`, products of evidence, `beliefs` and `edge_beliefs` read values
    from the device, each once, to check them; `run` does so only for arrays in `exponents`, `start`, `damping` and
    `tol`. They then wait for all earlier work. Inside this block they return at once. Values that fail a check then
    give NaN or an arbitrary answer instead of an error, as inside `jax.jit`, and warnings are not given.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x, observations=x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
        >>> with kbp.skip_value_checks():
        ...     evidence = kbp.observe(model, graph, [0.5, 0.5, np.nan], mask=[True, True, True])
        >>> bool(np.isfinite(evidence.local).all())
        False
    """
    token = _skips_values.set(True)
    try:
        yield
    finally:
        _skips_values.reset(token)


def is_unread(value: Any) -> bool:
    """Return True if values of a pytree must not be read: of tracers, and of JAX arrays in `skip_value_checks`."""
    skipped = _skips_values.get() and any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
    return skipped or is_traced(value)


Check = tuple[Any, Callable[[Any], None]]
"""Arrays, and a function of their values that raises an error or warns."""


def read_and_check(checks: Sequence[Check]) -> None:
    """Do several checks after a single transfer of their arrays from the device; none of arrays that `is_unread`."""
    known = [check for check in checks if not is_unread(check[0])]
    for values, (_, check) in zip(jax.device_get([arrays for arrays, _ in known]), known, strict=True):
        check(values)


def check_domain(check: Callable[[str, Any], None], argument: str, points: Any) -> None:
    """Call the `check` of a kernel or feature map; in `skip_value_checks`, with shapes only."""
    if _skips_values.get():
        jax.eval_shape(lambda points: check(argument, points), points)
    else:
        check(argument, points)


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
    if is_unread(value):
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


def read(argument: str, values: Any) -> tuple[Any, np.ndarray | None]:
    """Return array-like values as a JAX or NumPy array, and the mask of a NumPy masked array, True where hidden.

    A frame of pandas or polars becomes an array [row, column]; its missing values become NaN.

    Raises:
        ValueError: values of dtype object, for instance rows of different lengths.
    """
    if isinstance(values, jax.Array):
        return values, None
    if is_traced(values):
        return jnp.asarray(values), None
    if isinstance(values, list | tuple) and any(isinstance(one, np.ma.MaskedArray) for one in values):
        values = np.ma.array(values)
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    got, fix = type(values).__name__, "Convert it to an array of numbers, with NaN where values are missing."
    try:
        array = _frame(values) if isinstance(values, Frame) else np.asarray(values)
        got = f"{got} of dtype {array.dtype}"
    except ValueError:  # a ragged list
        array = np.array(None)
        got = f"{got} of rows of different lengths"
    require(array.dtype != object, argument, "must be rectangular numbers", got, fix)
    return array, hidden


def _frame(frame: Any) -> np.ndarray:
    """Return the values of a frame; the nullable columns of pandas have dtype object, and become floats."""
    array = np.asarray(frame.to_numpy())
    if array.dtype != object:
        return array
    try:
        return np.asarray(frame.to_numpy(dtype=float, na_value=np.nan))
    except (TypeError, ValueError):  # text, or polars
        return array


def as_numpy(argument: str, values: Any) -> Any:
    """Return array-like values as a JAX or NumPy array without missing entries; as `read`."""
    array, hidden = read(argument, values)
    count = 0 if hidden is None else int(hidden.sum())
    require(count == 0, argument, "must have no masked entries", f"{count} masked", "Fill them or leave them out.")
    return array


def complete(argument: str, array: Any, hidden: np.ndarray | None, axes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return masks of the complete and of the infinite entries of an array over its first axes.

    An entry is complete if none of its numbers is NaN or hidden. It is infinite if it is complete but not finite. All
    entries of a tracer count as complete and finite.

    Raises:
        ValueError: the array does not hold real numbers.
    """
    shape = array.shape[:axes]
    if is_traced(array):
        return np.ones(shape, bool), np.zeros(shape, bool)
    values = np.asarray(array)
    _require_real(argument, values)
    finite = _all(np.isfinite(values), axes)
    if hidden is None and finite.all():
        return finite, np.zeros(shape, bool)
    there = _all(~np.isnan(values) if hidden is None else ~(np.isnan(values) | hidden), axes)
    return there, there & ~finite


def _all(ok: np.ndarray, axes: int) -> np.ndarray:
    return np.asarray(ok.all(axis=tuple(range(axes, ok.ndim)))) if ok.ndim > axes else ok


def _require_real(argument: str, values: np.ndarray) -> None:
    numeric = np.issubdtype(values.dtype, np.number) or values.dtype == bool
    real = numeric and not np.issubdtype(values.dtype, np.complexfloating)
    require(real, argument, "must hold real numbers", f"dtype {values.dtype}", "Encode the values as numbers first.")


def as_mask(argument: str, mask: Any, *shapes: tuple[int, ...], fix: str = "") -> Any:
    """Return a mask as a boolean JAX or NumPy array; raise ValueError unless it is boolean or 0 and 1, of a shape.

    Args:
        argument: name of the argument.
        mask: the mask, True where something is present; a masked entry of a NumPy masked array is False.
        shapes: the valid shapes.
        fix: what to do; "": the default.
    """
    array, hidden = read(argument, mask)
    whole_numbers = array.dtype == bool or np.issubdtype(array.dtype, np.integer)
    kind = whole_numbers or isinstance(mask, Frame)  # pandas has masks of dtype object, which are read as floats
    values = np.zeros(0) if array.dtype == bool or is_unread(array) or not kind else np.asarray(array)
    ok = kind and array.shape in shapes and bool(np.all((values == 0) | (values == 1)))
    rule = f"must be boolean, or 0 and 1, of shape {' or '.join(map(str, shapes))}"
    fix = fix or "Pass a boolean for each node, True where it is present."
    other = np.unique(values[(values != 0) & (values != 1)])[:3].tolist()
    require(ok, argument, rule, f"{array.dtype}{array.shape}{f' with {other}' if other else ''}", fix)
    array = array.astype(bool)
    return array if hidden is None else array & ~hidden


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
    with jax.ensure_compile_time_eval():  # a key made under jit is else a tracer
        return np.asarray(jax.random.key_data(random_key(key))).tolist()


def host_seed(key: Any) -> int:
    """Return the data of a random key as one integer, a seed of NumPy; it is s for `jax.random.key(s)`."""
    return sum(word << 32 * i for i, word in enumerate(reversed(words_of_key(key))))


def require_finite(argument: str, array: Any, fix: str) -> None:
    """Raise ValueError if an array has NaN, infinite or non-real values; tracers pass."""
    if is_unread(array):
        return
    values = np.asarray(as_numpy(argument, array))
    _require_real(argument, values)
    bad = int(np.size(values) - np.sum(np.isfinite(values)))
    require(bad == 0, argument, "must be finite", f"{bad} NaN or infinite of {values.size} values", fix)


def as_array(argument: str, values: Any) -> jax.Array:
    """Return values as a JAX array; raise ValueError if integers would overflow."""
    array = as_numpy(argument, values)
    numeric = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    require(numeric, argument, "must hold real numbers", f"dtype {array.dtype}", "Encode the values as numbers first.")
    result = jnp.asarray(array)
    if np.issubdtype(array.dtype, np.integer) and result.dtype != array.dtype:
        fix = "Subtract an offset, convert to float, or enable jax_enable_x64."
        same = bool(np.array_equal(array.astype(result.dtype), array))
        require(same, argument, f"must fit in {result.dtype}", f"values up to {np.abs(array).max()}", fix)
    return result
