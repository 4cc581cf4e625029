"""Checks of arguments; each raises a `ValueError` with the argument, the rule, the value and the fix.

Under `jax.jit`, `jax.vmap` or `jax.grad`, arrays are tracers: their shapes are checked, but not their values.
Elsewhere, `skip_value_checks` does the same for arrays of JAX.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
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


ARRAYS = (jax.Array, np.ndarray, np.generic)
NUMBERS = (int, float, complex, *ARRAYS)
FLOAT32 = float(np.finfo(np.float32).max)


def is_traced(value: Any) -> bool:
    """Return True if any array in a pytree is a tracer, so its values are not available."""
    return isinstance(value, Tracer) or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


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
    if type(value) is not float:
        require(np.ndim(value) == 0, argument, "must be a single number", f"shape {np.shape(value)}", "Pass a scalar.")
        if is_unread(value):
            return
        array = np.asarray(value)
        if not is_real(array.dtype) or array.dtype == bool:
            require(False, argument, "must be a real number", repr(value), "Pass a float.")
    given = float(value)  # in single precision, the largest bounds overflow
    lower = (above is None or given > above) and (least is None or given >= least)
    upper = (below is None or given < below) and (most is None or given <= most)
    if not (math.isfinite(given) and lower and upper):
        bounds = {">": above, ">=": least, "<": below, "<=": most}
        interval = " and ".join(f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None)
        require(False, argument, f"must be finite and {interval}", f"{value}", fix or f"Pass a value {interval}.")


def number(argument: str, value: Any) -> Any:
    """Return a single real number, or an array of shape () of one; raise ValueError if it overflows in float32."""
    if type(value) is float and -FLOAT32 <= value <= FLOAT32:
        return value
    if isinstance(value, (list, tuple)):
        value = read(argument, value)[0]
    require(np.ndim(value) == 0, argument, "must be a single number", f"shape {np.shape(value)}", "Pass a scalar.")
    if isinstance(value, complex) or (isinstance(value, ARRAYS) and not is_real(value.dtype)):
        got = repr(value) if isinstance(value, complex) else f"an array {value.dtype}[]"
        require(False, argument, "must be a real number", got, "Pass a float.")
    if isinstance(value, np.ndarray):
        return as_array(argument, value)
    if isinstance(value, int | np.integer) and not -(2**31) <= int(value) < 2**31:
        value = float(value) if abs(int(value)) < FLOAT32 else np.inf
    if isinstance(value, (float, np.floating)):
        require_range(argument, np.asarray(value))
    return value


def require_in_range(argument: str, value: Any, dtype: Any) -> None:
    """Raise ValueError unless a number is > 0, and it and its inverse are neither 0 nor infinite in a precision."""
    require_number(argument, value, above=0)
    limits = jnp.finfo(dtype)
    least, most = (float(f"{bound:.3g}") for bound in (1.01 / limits.max, 0.99 * limits.max))
    require_number(argument, value, least=max(least, float(limits.tiny)), most=most)


def in_range(argument: str, value: Any, dtype: Any) -> jax.Array:
    """Return a number in a precision, by `require_in_range`."""
    require_in_range(argument, value, dtype)
    return jnp.asarray(value, dtype)


def require_count(argument: str, value: Any) -> None:
    """Raise ValueError unless a value is a Python or NumPy integer >= 1 that fits in 32 bits."""
    ok = is_whole(value) and value >= 1
    require(ok, argument, "must be an integer >= 1", repr(value)[:80], "Pass a positive integer.")
    require(value < 2**31, argument, "must be an integer >= 1 and < 2^31", repr(value)[:80], "Pass a smaller one.")


def memory() -> int:
    """Return the memory of the default device in bytes."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 16 * 2**30


def gib(size: int) -> str:
    """Return a number of bytes as a text in GiB."""
    return f"{size / 2**30:.3g} GiB"


def require_memory(argument: str, what: str, need: int, fix: str) -> None:
    """Raise ValueError unless `what` fits in half of the memory."""
    if need > 2**28:  # below, the memory of the device need not be read
        rule = f"{what} must fit in half of {gib(memory())} memory"
        require(need <= memory() / 2, argument, rule, gib(need), fix)


def require_draws(num_samples: int, size: int) -> None:
    """Raise ValueError unless `num_samples` >= 1 and the draws, of `size` numbers each, fit in half of the memory."""
    require_count("num_samples", num_samples)
    require_memory("num_samples", "the draws", 8 * int(num_samples) * max(size, 1), "Draw fewer, or in parts.")


MOST_TYPES = 10**5
"""Above this, numbers of node or edge types are taken for names: tables have an entry for each number."""


def require_types(argument: str, largest: int) -> None:
    """Raise ValueError unless the largest number of a type is one that tables can have entries for."""
    rank_100 = (1 + int(largest)) * 2 * 100**2 * 4
    got = f"{largest}, for which tables of rank 100 take {gib(rank_100)}"
    require(largest < MOST_TYPES, argument, "must be numbered from 0", got, "Number the types 0, 1, 2, ...")


def is_whole(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def whole(value: Any) -> Any:
    """Return a NumPy integer as a Python integer, which may be a static field; return other values unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def require_seed(seed: Any) -> None:
    """Raise ValueError unless a seed is an integer >= 0 and < 2^32."""
    ok = is_whole(seed) and 0 <= seed < 2**32
    require(ok, "seed", "must be an integer >= 0 and < 2^32", repr(seed), "Pass for instance 0.")


def require_key(key: Any) -> Any:
    """Return a JAX random key, typed or raw; raise ValueError for other values."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    ok = typed or (dtype == np.uint32 and shape is not None and len(shape) == 1)
    require(ok, "key", "must be a random key", repr(key)[:80], "Pass jax.random.key(0).")
    return key


def as_path(argument: str, path: Any) -> Path:
    """Return a path; raise ValueError unless it is a text that is not empty or a `pathlib.Path`."""
    ok = isinstance(path, str | os.PathLike) and isinstance(os.fspath(path), str)
    text = os.fspath(path) if ok else ""
    fix = "Pass a name such as 'model.kbp'."
    require(text != "" and "\0" not in text, argument, "must be the path of a file", repr(path)[:80], fix)
    return Path(text)


def path_to_write(argument: str, path: Any) -> Path:
    """Return the path of a file to write; raise ValueError unless its folder can be written and it is no device."""
    file = as_path(argument, path)
    require(file.parent.is_dir(), argument, "must be in an existing folder", str(file), "Create the folder first.")
    ok = os.path.isfile(file) or not os.path.exists(file)  # those of `Path` raise in closed folders
    require(ok, argument, "must be a file", f"{file}, which is a folder or a device", "Add the name of a file.")
    folder = file.resolve().parent  # that of the target of a link, where the file is written first
    fix = "Change its permissions, or choose another folder."
    require(os.access(folder, os.W_OK | os.X_OK), argument, "must be in a folder that can be written", str(folder), fix)
    return file


def read(argument: str, values: Any, *, gaps: bool = False) -> tuple[Any, np.ndarray | None]:
    """Return array-like values as a JAX or NumPy array, and the mask of a NumPy masked array, True where hidden.

    A frame of pandas or polars becomes an array [row, column]; its missing values become NaN. Floats of 16 bits become
    floats of 32 bits, and bytes get the order of this machine.

    Args:
        argument: the argument's name, for errors.
        values: the values.
        gaps: whether None and NA among numbers become NaN, too.

    Raises:
        ValueError: values of dtype object, for instance rows of different lengths.
    """
    if isinstance(values, jax.Array):
        return _wide(values), None
    if is_traced(values):
        try:
            return _wide(jnp.asarray(values)), None
        except (TypeError, ValueError) as error:
            got, fix = f"{type(values).__name__} of traced values", "Make them one array: jnp.stack([...])."
            raise ValueError(f"{argument}: must be rectangular numbers; got {got}. {fix}") from error
    if isinstance(values, list | tuple) and any(isinstance(one, np.ma.MaskedArray) for one in values):
        values = np.ma.array(values)
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    got, fix = type(values).__name__, "Convert it to an array of numbers, with NaN where values are missing."
    try:
        array = _frame(values) if isinstance(values, Frame) else np.asarray(values)
        array = _with_nan(array) if gaps and array.dtype == object and array.ndim else array
        got = f"{got} of dtype {array.dtype}"
        if array.dtype == object and any(one is None for one in array.flat):
            got, fix = f"{got} with None", "Pass an array of floats, with NaN instead of None where values are missing."
    except ValueError:  # a ragged list
        array = np.array(None)
        got = f"{got} of rows of different lengths"
    require(array.dtype != object, argument, "must be rectangular numbers", got, fix)
    return _wide(array.astype(array.dtype.newbyteorder("="), copy=False)), hidden


def _with_nan(array: np.ndarray) -> np.ndarray:
    """Return objects that are numbers, None or NA as floats, NaN where missing; other objects unchanged."""
    entries = array.reshape(-1).tolist()
    gone = np.array([one is None or type(one).__name__ in ("NAType", "NaTType") for one in entries], bool)
    known = [one for one, out in zip(entries, gone, strict=True) if not out]
    if not all(isinstance(one, int | float | np.number) and not isinstance(one, bool) for one in known):
        return array
    try:
        return np.where(gone.reshape(array.shape), np.nan, array).astype(float)
    except (OverflowError, TypeError):  # integers beyond all floats, and complex numbers
        return array


def _wide(array: Any) -> Any:
    """Return floats of fewer than 32 bits with 32, for which solvers exist."""
    narrow = array.dtype.itemsize < 4 and jnp.issubdtype(array.dtype, np.floating)
    return array.astype(np.float32) if narrow else array


def overflows(array: Any) -> np.ndarray:
    """Return a mask of the finite numbers of an array that are infinite in the precision of JAX."""
    values = np.asarray(array)
    if not np.issubdtype(values.dtype, np.floating):
        return np.zeros(values.shape, bool)
    largest = np.finfo(jax.dtypes.canonicalize_dtype(values.dtype)).max
    return np.isfinite(values) & (np.abs(values) > largest)


def _frame(frame: Any) -> np.ndarray:
    """Return the values of a frame; nullable columns of pandas, of dtype object, become floats; texts stay."""
    array = np.asarray(frame.to_numpy())
    if array.dtype != object or any(isinstance(one, str) for one in array.flat):
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
    require_real(argument, values)
    finite = _all(np.isfinite(values) & ~overflows(values), axes)
    if hidden is None and finite.all():
        return finite, np.zeros(shape, bool)
    there = _all(~np.isnan(values) if hidden is None else ~(np.isnan(values) | hidden), axes)
    return there, there & ~finite


def _all(ok: np.ndarray, axes: int) -> np.ndarray:
    return np.asarray(ok.all(axis=tuple(range(axes, ok.ndim)))) if ok.ndim > axes else ok


@functools.cache
def is_real(dtype: Any) -> bool:
    """Return whether a dtype is one of booleans, integers or floats."""
    return jnp.issubdtype(dtype, np.bool_) or jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)


def require_real(argument: str, values: Any) -> None:
    """Raise ValueError unless an array holds real numbers."""
    if not is_real(values.dtype):
        fix = "Encode the values as numbers first."
        require(False, argument, "must hold real numbers", f"dtype {values.dtype}", fix)


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


def require_finite(argument: str, array: Any, fix: str = "") -> None:
    """Raise ValueError if an array or number has NaN, infinite or non-real values; tracers pass."""
    if (type(array) is float and -FLOAT32 <= array <= FLOAT32) or is_unread(array):
        return
    values = np.asarray(as_numpy(argument, array))
    require_real(argument, values)
    finite = np.isfinite(values)
    if not finite.all():
        bad = f"{np.sum(~finite)} NaN or infinite of {values.size} values"
        fix = fix or ("Drop or correct these values." if values.ndim else "Pass a finite number.")
        require(False, argument, "must be finite", bad if values.ndim else f"{values}", fix)
    require_range(argument, values)


def finite_result(arguments: str, made: Any) -> Any:
    """Return an object that was computed from arguments; raise ValueError if it has NaN or infinity."""
    arrays = [leaf for leaf in jax.tree.leaves(made) if jnp.issubdtype(leaf.dtype, np.floating)]
    if not is_unread(arrays):
        bad = sum(int(np.sum(~np.isfinite(np.asarray(array)))) for array in arrays)
        rule, got = f"must give a finite {type(made).__name__}", f"{bad} parameters that are NaN or infinite"
        require(bad == 0, arguments, rule, got, "Check their range; rescale them if they are extreme.")
    return made


def require_finite_or_nan(argument: str, array: Any) -> None:
    """Raise ValueError if an array has infinite or non-real values; NaN, for a missing value, and tracers pass."""
    if is_unread(array):
        return
    infinite = int(np.sum(complete(argument, array, None, np.ndim(array))[1]))
    got, fix = f"{infinite} infinite of {np.size(array)} values", "Correct these values, or mark them by NaN."
    require(infinite == 0, argument, "must be finite, or NaN where missing", got, fix)


def require_squares(argument: str, array: Any) -> None:
    """Raise ValueError if the sum of the squares of an array overflows in its precision; tracers pass."""
    if is_unread(array):
        return
    require_finite(argument, array)
    values = np.asarray(array)
    most = float(f"{(float(jnp.finfo(values.dtype).max) / max(values.size, 1)) ** 0.5:.2g}")
    largest = float(np.max(np.abs(values), initial=0))
    rule = f"must be within {most:g}, so that squares do not overflow in {values.dtype}"
    require(largest <= most, argument, rule, f"{largest:.4g}", "Rescale the values.")


def require_range(argument: str, values: Any) -> None:
    """Raise ValueError if finite numbers are infinite in the precision of JAX."""
    if values.dtype.itemsize > 4 and not isinstance(values, jax.Array) and not jax.config.read("jax_enable_x64"):
        beyond = overflows(values)
        got = f"values up to {np.max(np.abs(values), where=beyond, initial=0):.4g}"
        fix = "Rescale the values, or enable jax_enable_x64."
        require(not beyond.any(), argument, "must be finite in float32, up to 3.4e38", got, fix)


def to_jax(array: Any, dtype: Any = None) -> jax.Array:
    """Return an array of NumPy as one of JAX, a copy, without compiling anything; an array of JAX stays what it is.

    `jnp.asarray` compiles a program for every new shape, 30 ms each with jax 0.10.2: most of what a graph costs. And
    `jax.device_put` by itself may share the memory of an array that its owner then changes.
    """
    if isinstance(array, jax.Array):
        return array if dtype is None else array.astype(dtype)
    return jax.device_put(np.array(array, dtype))


def as_array(argument: str, values: Any) -> jax.Array:
    """Return values as a JAX array; raise ValueError if they would overflow, or are not real numbers."""
    array = as_numpy(argument, values)
    require_real(argument, array)
    require_range(argument, array)
    result = to_jax(array)
    if np.issubdtype(array.dtype, np.integer) and result.dtype != array.dtype:
        fix = "Subtract an offset, convert to float, or enable jax_enable_x64."
        same = bool(np.array_equal(array.astype(result.dtype), array))
        got = f"values up to {np.abs(array).max(initial=0)}"
        require(same, argument, f"must fit in {result.dtype}", got, fix)
    return result


def as_arrays(argument: str, values: Any) -> Any:
    """Return values, or {node type: values}, as arrays of JAX."""
    if isinstance(values, Mapping):
        return {v: as_array(f"{argument}[{v}]", of_type) for v, of_type in values.items()}
    return as_array(argument, values)
