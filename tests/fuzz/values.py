"""The grammar of hostile values: what stands in for a right argument, and what an answer to it must be."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Kind(Enum):
    """What a value is: of a wrong kind (to be refused), of the right kind with hostile numbers, or only a rare form."""

    WRONG = "wrong"
    BAD = "bad"
    RARE = "rare"


@dataclass
class Value:
    """A hostile value; `plain` is what a masked array hides, and a tracer of `value` is passed if `traced`."""

    label: str
    value: Any
    kind: Kind
    plain: Any = None
    traced: bool = False


class Column:
    """A frame as pandas and polars have them, as far as they are read."""

    def __init__(self, array: Any):
        self.array = np.asarray(array)

    def to_numpy(self, **options: Any) -> Any:
        """Return the values."""
        del options
        return self.array


def hostile(good: Any, stranger: Any) -> Iterator[Value]:
    """Yield the values that stand in for an argument; `stranger` is a record of another class."""
    yield from wrong_kinds(good, stranger)
    if is_number(good):
        yield from numbers(good)
    elif is_array(good):
        yield from arrays(np.asarray(good))
    elif is_labels(good):
        yield from labels(list(good))
    elif isinstance(good, Mapping):
        yield from mappings(good)
    elif callable(good) and not isinstance(good, type) and not is_record(good):
        yield Value("function that returns None", lambda *given, **options: None, Kind.WRONG)
        yield Value("function that returns text", lambda *given, **options: "text", Kind.WRONG)


def is_number(value: Any) -> bool:
    """Return whether a value is one real number, not a bool."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def is_record(value: Any) -> bool:
    """Return whether a value is an object of the package, or a pytree of such."""
    return type(value).__module__.startswith("kbpjax")


def is_array(value: Any) -> bool:
    """Return whether a value is an array of numbers, or lists of them."""
    if isinstance(value, jax.Array):
        return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if isinstance(value, list | tuple):
        try:
            value = np.asarray(value)
        except ValueError:
            return False
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size > 0


def is_labels(value: Any) -> bool:
    """Return whether a value is a list, tuple or array of texts."""
    several = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return several and len(value) > 0 and all(isinstance(one, str) for one in value)


def wrong_kinds(good: Any, stranger: Any) -> Iterator[Value]:
    """Yield values of other kinds than a right one."""
    others = {
        "None": None,
        "text": "text",
        "object": object(),
        "class": int,
        "set": {1.5},
        "bytes": b"text",
        "ragged list": [[1.0, 2.0], [3.0]],
        "list of others": ["a", "b"],
        "record": stranger,
        "array of objects": np.array([None, object()], dtype=object),
        "complex": 1 + 2j,
    }
    if isinstance(good, str) or hasattr(good, "__fspath__"):
        del others["text"]
        yield Value("empty text", "", Kind.BAD)
    if callable(good) and not is_record(good):
        del others["class"]
    if isinstance(good, list | tuple) and good and isinstance(good[0], str):
        others["list of others"] = [1, 2]
    for label, value in others.items():
        yield Value(label, value, Kind.WRONG)


def numbers(good: Any) -> Iterator[Value]:
    """Yield hostile numbers."""
    for label, value in {
        "NaN": np.nan,
        "inf": np.inf,
        "-inf": -np.inf,
        "-1": -1,
        "0": 0,
        "fraction": 0.37,
        "1e39": 1e39,
        "1e300": 1e300,
        "1e-50": 1e-50,
        "subnormal": 1e-310,
        "2^31": 2**31,
        "2^63": 2**63,
        "10^30": 10**30,
        "10^12": 10**12,
    }.items():
        yield Value(label, value, Kind.BAD)
    for label, value in {"number as text": str(good), "vector of 2": [good, good], "masked": np.ma.masked}.items():
        yield Value(label, value, Kind.WRONG if label == "number as text" else Kind.BAD)
    for label, value in {
        "True": True,
        "float16": np.float16(good),
        "bfloat16": jnp.asarray(good, jnp.bfloat16),
        "array of no axes": np.asarray(good),
        "big-endian": np.asarray(good, np.asarray(good).dtype.newbyteorder(">")),
    }.items():
        yield Value(label, value, Kind.RARE)
    yield Value("tracer", good, Kind.RARE, traced=True)


def arrays(good: np.ndarray) -> Iterator[Value]:
    """Yield arrays with hostile numbers, of other shapes and of rare types."""
    numeric = good.astype(float)
    for label, number in {
        "NaN": np.nan,
        "inf": np.inf,
        "-inf": -np.inf,
        "1e39": 1e39,
        "1e300": 1e300,
        "-5": -5.0,
        "10^8": 1e8,
    }.items():
        yield Value(f"an entry {label}", changed(numeric, number), Kind.BAD)
    yield Value("all NaN", np.full_like(numeric, np.nan), Kind.BAD)
    yield Value("all 0", np.zeros_like(numeric), Kind.BAD)
    yield Value("all 1e30", np.full_like(numeric, 1e30), Kind.BAD)
    yield Value("subnormal", np.full_like(numeric, 1e-310), Kind.BAD)
    yield Value("2^40", np.full(good.shape, 2**40), Kind.BAD)
    yield Value("empty", good[:0] if good.ndim else np.zeros(0), Kind.BAD)
    yield Value("one axis more", good[None], Kind.BAD)
    yield Value("one axis less", good[0] if good.ndim else good, Kind.BAD)
    yield Value("one entry less", good[:-1] if good.ndim else good, Kind.BAD)
    yield Value("complex numbers", good + 1j, Kind.WRONG)
    yield Value("text", good.astype(str), Kind.WRONG)
    yield Value("objects", good.astype(object), Kind.RARE)
    for dtype in ("float16", ">f8", "float64"):
        yield Value(dtype, good.astype(dtype), Kind.RARE)
    yield Value("bfloat16", good.astype(jnp.bfloat16), Kind.RARE)
    for dtype in ("int8", "uint64", ">i4", "bool"):
        if np.array_equal(good.astype(dtype), good):
            yield Value(dtype, good.astype(dtype), Kind.RARE)
    yield Value("a list", good.tolist(), Kind.RARE)
    yield Value("a frame", Column(good), Kind.RARE)
    yield from other_homes(good)
    yield from frames(good)
    yield Value("labels", np.full(good.shape, "a", object), Kind.WRONG)
    yield Value("strided", np.repeat(good, 2, axis=0)[::2] if good.ndim else good, Kind.RARE)
    if good.ndim and good.dtype != bool:
        hidden = np.zeros(good.shape, bool)
        hidden.flat[-1] = True
        under = changed(good.astype(float), 0.55, last=True)
        yield Value("masked", np.ma.array(under, mask=hidden), Kind.RARE, plain=under)
    yield Value("tracer", jnp.asarray(good), Kind.RARE, traced=True)


def other_homes(good: np.ndarray) -> Iterator[Value]:
    """Yield an array that cannot be written, and one that is in a file."""
    fixed = good.copy()
    fixed.flags.writeable = False
    yield Value("read-only", fixed, Kind.RARE)
    if good.size:
        with tempfile.NamedTemporaryFile() as file:
            mapped = np.memmap(file, good.dtype, "w+", shape=good.shape)
        mapped[...] = good
        yield Value("memory-mapped", mapped, Kind.RARE)


def frames(good: np.ndarray) -> Iterator[Value]:
    """Yield an array as the libraries that are installed have it, and with a value missing as they mark it."""
    good = good.astype(good.dtype.newbyteorder("="))
    if good.ndim in (1, 2) and good.size:
        under = changed(good.astype(float), 0.55, last=True)
        columns = {f"c{i}": column for i, column in enumerate(good.reshape(len(good), -1).T)}
        if find_spec("pandas"):
            pandas = import_module("pandas")
            frame = pandas.DataFrame(columns) if good.ndim == 2 else pandas.Series(good)
            yield Value("pandas", frame, Kind.RARE)
            hidden = changed(np.zeros(good.shape), 1.0, last=True).astype(bool)
            yield Value("pandas with NA", frame.astype("Float64").mask(hidden), Kind.RARE, plain=under)
            yield Value("categories of pandas", frame.astype(str).astype("category"), Kind.WRONG)
        if find_spec("polars"):
            polars = import_module("polars")
            frame = polars.DataFrame(columns) if good.ndim == 2 else polars.Series("c", good)
            yield Value("polars", frame, Kind.RARE)
            lists = changed(good.astype(object), None, last=True).reshape(len(good), -1).T.tolist()
            table = polars.DataFrame(dict(zip(columns, lists, strict=True)))
            null = table if good.ndim == 2 else table.to_series()
            yield Value("polars with null", null, Kind.RARE, plain=under)
    if find_spec("xarray"):
        yield Value("xarray", import_module("xarray").DataArray(good), Kind.RARE)
    if find_spec("torch"):
        yield Value("torch", import_module("torch").tensor(good), Kind.RARE)


def labels(good: list[str]) -> Iterator[Value]:
    """Yield texts in other arrays, and with one missing."""
    yield Value("objects", np.array(good, object), Kind.RARE)
    yield Value("array of texts", np.array(good), Kind.RARE)
    for library in filter(find_spec, ("pandas", "polars")):
        series = import_module(library).Series
        yield Value(library, series(good), Kind.RARE)
        yield Value(f"{library}, one missing", series([None, *good[1:]]), Kind.BAD)
    yield Value("one missing", np.array([None, *good[1:]], object), Kind.BAD)
    yield Value("one NaN", [np.nan, *good[1:]], Kind.BAD)


def changed(array: np.ndarray, number: float | None, last: bool = False) -> np.ndarray:
    """Return a copy with one entry replaced, the first or the last."""
    array = array.copy()
    array.flat[-1 if last else 0] = number
    return array


def mappings(good: Mapping) -> Iterator[Value]:
    """Yield dictionaries with wrong keys or values."""
    first = next(iter(good.values()), None)
    if not all(isinstance(key, str) for key in good):
        yield Value("keys of text", {"a": first}, Kind.WRONG)
    for label, value in {"values None": {0: None}, "values text": {0: "text"}}.items():
        yield Value(label, value, Kind.WRONG)
    for label, value in {"empty": {}, "key -1": {-1: first}, "key 10^8": {10**8: first}, "key 7": {7: first}}.items():
        yield Value(label, value, Kind.BAD)
