"""Small utilities: file writes, optional packages, matrix products in full precision, loops, texts of objects."""

import dataclasses
import functools
import glob
import importlib
import os
import secrets
import shutil
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

# By default, accelerators round f32 inputs of a product to 10 or 7 bits of mantissa. This is too coarse for normal
# equations, and coarser than the residuals that incomplete Cholesky must resolve.
matmul = functools.partial(jnp.matmul, precision="highest")
einsum = functools.partial(jnp.einsum, precision="highest")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LEVELS: dict[str, dict[str, Any]] = {
    "quick": {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1},
    "quickest": {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0},
}
"""Options of XLA on CPUs for programs that run for less time than they take to compile (`fit_s`, `infer_s` of
`benchmarks.first_try`; `benchmarks/fit.py` for many pairs), unlike iterations of messages, which are optimized; and for
those that run for milliseconds: half the seconds to compile, three to five times as many to run
(`benchmarks/first_call.py`).
"""


def inside_others() -> bool:
    """Return whether a function that is compiled is being traced, also if no argument is a tracer."""
    return isinstance(jax.device_put(np.float32(0)), Tracer)


MAPPED = 0.6
"""Share of the memory maps that a process may have above which `make_room` forgets compiled programs."""


def make_room(most: int | None = None) -> None:
    """Forget compiled programs before they are more than a process can map, at which it would end (on Linux).

    A `fit` maps some thousand pieces of memory, and Linux allows 65,530.

    Args:
        most: number of maps that a process may have; None: that of the system.
    """
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text()) if most is None else most
        with open("/proc/self/maps", "rb") as file:
            count = sum(1 for _ in file)
    except (OSError, ValueError):  # another system
        return
    if count > MAPPED * most and not inside_others():
        jax.clear_caches()


def quick_jit(
    function: Callable[P, R], level: Callable[P, str] = lambda *_, **__: "quick", **options: Any
) -> Callable[P, R]:
    """Return `jax.jit` of a function that is compiled quickly, except inside other compiled functions.

    How quickly is one of `LEVELS`, which may depend on the arguments. `program()` of what is returned is the compiled
    function that is called outside of others. Where JAX is set to compile even more quickly
    (`jax_disable_most_optimizations`), there are no levels.
    """
    inside = jax.jit(function, **options)
    at = functools.cache(lambda level: jax.jit(function, compiler_options=_known_options(level), **options))

    def program(level: str = "quick") -> Any:
        return inside if jax.config.read("jax_disable_most_optimizations") else at(level)

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        nested = inside_others() or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, keywords)))
        return (inside if nested else program(level(*args, **keywords)))(*args, **keywords)

    call.__dict__["program"] = program
    return call


@functools.cache
def _known_options(level: str) -> dict[str, Any]:
    """Return the options that this version of XLA has; none on devices on which they were not measured."""
    if jax.default_backend() != "cpu":
        return {}
    known = {}
    for name, value in LEVELS[level].items():
        with suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda: 0, compiler_options={name: value})()
            known[name] = value
    return known


DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, TypeError, AttributeError),
    *(KeyError, IndexError, SyntaxError, RuntimeError, MemoryError, OverflowError),
)
"""Exceptions of the readers of zip archives, arrays and JSON on damaged files."""


def vary_like(constants: Any, arrays: Any) -> Any:
    """Return constants placed on the mesh of some arrays, as the first carry of a loop must be.

    Under `jax.shard_map`, they are marked as different on the devices on which any of the arrays are. On a mesh with
    explicit axes, they are replicated. Elsewhere they are returned unchanged.
    """
    types: list[Any] = [jax.typeof(leaf) for leaf in jax.tree.leaves(arrays)]
    varying = frozenset().union(*(kind.mat.varying for kind in types if hasattr(kind, "mat")))
    meshes = {kind.sharding.mesh for kind in types if hasattr(kind, "sharding")}
    explicit = [mesh for mesh in meshes if mesh.explicit_axes]

    def place(constant: Any) -> Any:
        kind: Any = jax.typeof(constant)
        missing = tuple(sorted(varying - kind.mat.varying, key=str))
        if missing:
            return jax.lax.pcast(constant, missing, to="varying")
        if explicit and kind.sharding.mesh.empty:
            return jax.reshard(constant, NamedSharding(explicit[0], PartitionSpec()))
        return constant

    return jax.tree.map(place, constants)


fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None
"""Locks of files on POSIX systems; None elsewhere."""


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `path` only if the block raises no exception.

    A symbolic link stays, and its target is replaced; a file that is replaced keeps its permissions. Temporary files
    that killed processes have left of the same path are removed.
    """
    path = path.resolve()
    _remove_leftovers(path)
    temporary, file = _open_locked(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, temporary)
            if fcntl is not None:
                os.replace(temporary, path)  # while it is locked
        if fcntl is None:  # Windows replaces closed files only
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _open_locked(path: Path) -> tuple[Path, IO[bytes]]:
    """Return a new temporary file beside a path, locked until it is closed or the process ends."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        file = temporary.open("xb")
        if fcntl is not None:
            with suppress(OSError):  # file systems without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        if temporary.exists():  # else another process took it for a leftover before it was locked
            return temporary, file
        file.close()


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files beside a path that no process has locked."""
    if fcntl is None:
        return
    for old in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError), old.open("rb") as file:  # locked, or removed meanwhile
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            old.unlink()


def need(module: str, extra: str) -> Any:
    """Return an imported module, or raise ImportError with the extra of this package that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {package}. Install it: pip install 'kbpjax[{extra}]'") from error


OWN = ("kbpjax", "equinox", "jaxtyping", "beartype", "functools", "contextlib")
"""Packages whose lines a warning does not name."""
WIDTH = 100
"""Number of characters above which the text of an object has one line for each field."""
LONGEST = 8
"""Length of the longest vector whose entries are shown."""


class KbpWarning(UserWarning):
    """Base class of all warnings of kbpjax; `warnings.filterwarnings` filters them by their class.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.filterwarnings("error", category=kbp.ConvergenceWarning)  # here, raise it as an error
    """


class MissingWarning(KbpWarning):
    """Given by `fit` and `fit_chunks` if vectors of which some entries are missing are dropped as a whole.

    Also given by `kbpjax.estimator.GraphImputer` if columns have no values, or if a word makes a column of numbers one
    of labels, and by it and `kbpjax.series` if dates of an index of pandas are not at equal distances.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.MissingWarning)  # here, it is not shown
    """


def warn(text: str, category: type[Warning]) -> None:
    """Give a warning at the line of the user's code that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def show(value: Any) -> str:
    """Return a readable text of a value: numbers and short vectors in full, other arrays as dtype[shape]."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _show_array(value)
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {show(item)}" for key, item in value.items()) + "}"
    if type(value) in (tuple, list):
        text = ", ".join(map(show, value)) + ("," if len(value) == 1 and isinstance(value, tuple) else "")
        ends = "()" if isinstance(value, tuple) else "[]"
        return ends[0] + text + ends[1] if len(text) < WIDTH else f"{type(value).__name__} of length {len(value)}"
    if isinstance(value, eqx.Module) and type(value).__repr__ is eqx.Module.__repr__:
        return show_fields(value)
    function = value.func if isinstance(value, functools.partial) else value
    return getattr(function, "__name__", None) or repr(value)


def show_number(value: Any) -> str:
    """Return a number with four digits; floats have a point or an exponent."""
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    text = f"{float(value):.4g}"
    return text + ".0" if text.lstrip("-").isdigit() else text


def by_value(cls: type[T]) -> type[T]:
    """Make `==` of a record, a dataclass or named tuple with arrays, one boolean, as of modules; there is no hash.

    Records are equal if they are of one class and their fields have equal values and dtypes; NaN equals nothing.
    """
    names = getattr(cls, "_fields", None) or [field.name for field in dataclasses.fields(cast(Any, cls))]

    def equal(self: Any, other: object) -> bool:
        if type(other) is not type(self):
            return False
        return bool(eqx.tree_equal(*([getattr(one, name) for name in names] for one in (self, other))))

    def differ(self: Any, other: object) -> bool:
        return not equal(self, other)

    for name, method in {"__eq__": equal, "__ne__": differ, "__hash__": None}.items():
        setattr(cls, name, method)
    return cls


def show_fields(self: Any) -> str:
    """Return "Name(field=value, ...)" of a dataclass, with values where they are known; `__repr__` of many classes."""
    fields = [field for field in dataclasses.fields(self) if not field.name.startswith("_")]
    values = {field.name: getattr(self, field.name, None) for field in fields}
    hidden = (None, False)
    absent = {f.name for f in fields if any(f.default is x and values[f.name] is x for x in hidden)}
    return show_parts(type(self).__name__, [f"{name}={show(v)}" for name, v in values.items() if name not in absent])


def show_parts(name: str, parts: Sequence[str]) -> str:
    """Return "name(part, ...)", with one line for each part if one line would be too long."""
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= WIDTH and "\n" not in line else show_lines(name, [f"{part}," for part in parts])


def show_lines(name: str, lines: Sequence[str]) -> str:
    """Return a text with one indented line for each part."""
    return "\n".join([f"{name}(", *("  " + line.replace("\n", "\n  ") for line in lines), ")"])


def show_list(items: Sequence[str], most: int = 10) -> list[str]:
    """Return the first few of a list of texts, and how many more there are."""
    return [*items[:most], *([f"... {len(items) - most} more"] if len(items) > most else [])]


def values_or_shapes(text: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a `__repr__`: `text` if all arrays are known; else, as for arguments inside `jax.jit`, shapes."""

    @functools.wraps(text)
    def __repr__(self: Any) -> str:
        if not all(map(_is_known, jax.tree.leaves(self))):
            return show_fields(self)
        try:
            with jax.ensure_compile_time_eval():  # constants inside jax.jit are known too
                return text(self)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # other leaves, as eqx.partition gives
            return show_fields(self)

    return __repr__


def _show_array(array: Any) -> str:
    numeric = array.dtype == bool or jnp.issubdtype(array.dtype, np.number)
    if not (numeric and _is_known(array)) or array.ndim > 1 or array.size > LONGEST:
        return eqx.tree_pformat(array).removesuffix("(numpy)").removeprefix("weak_").removeprefix("weak_")
    values = np.asarray(array)
    if values.ndim == 0:
        return show_number(values[()])
    return "[" + ", ".join(show_number(x).removesuffix(".0") for x in values) + "]"


def _is_known(leaf: Any) -> bool:
    """Return whether the values of a leaf of a pytree can be read."""
    if isinstance(leaf, jax.Array):
        return not isinstance(leaf, Tracer) and leaf.is_fully_addressable and not leaf.is_deleted()
    return isinstance(leaf, np.ndarray | np.generic | int | float)
