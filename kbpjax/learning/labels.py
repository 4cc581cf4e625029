"""Labels as values of variables and observations: texts, categories of pandas, and what else is not a number.

`pool` encodes labels as numbers 0, 1, 2, ... and the model keeps the labels, so that `observe` and `clamp` take labels,
and `mode` and `sample` return them. Integers and booleans are values as they are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks

Values = Any
"""Numbers or labels, array-like."""

Labels = tuple[Any, ...]
"""The labels of a node type; label i has the code i."""
ByType = tuple[tuple[int, Labels], ...]
"""(node type, its labels) of the types that have labels."""

KINDS = (str, int, float, bool)


def are_labels(values: Any) -> bool:
    """Return whether array-like values are texts or categories, not numbers."""
    if isinstance(values, jax.Array | Mapping) or values is None or _checks.is_traced(values):
        return False
    if _categories(values) is not None:
        return True
    array = _entries(values)
    if array.dtype.kind in "US":
        return True
    return array.dtype == object and any(isinstance(one, str) for one in array.reshape(-1))


def _categories(values: Any) -> list[Any] | None:
    """Return the categories of a categorical of pandas, in their order; None for other values."""
    columns = [values[name] for name in values.columns] if hasattr(values, "columns") else [values]
    kinds = [getattr(getattr(column, "dtype", None), "categories", None) for column in columns]
    if not kinds or any(kind is None for kind in kinds):
        return None
    found: dict[Any, None] = {}
    for kind in kinds:
        found |= dict.fromkeys(kind if kind is not None else ())
    return list(found)


def _entries(values: Any) -> NDArray:
    """Return array-like values as an array of NumPy; the missing ones of a masked array become None."""
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        convert: Any = getattr(values, "to_numpy", None)
        array = np.asarray(values if convert is None else convert())
    except ValueError:  # a ragged list
        return np.zeros(0)
    if hidden is not None and hidden.any():
        array = array.astype(object)
        array[hidden] = None
    return array


def _is_missing(one: Any) -> bool:
    return one is None or one != one or type(one).__name__ == "NAType"


def labels_in(argument: str, arrays: Iterable[Any]) -> Labels:
    """Return the labels of arrays: categories in their order, and others sorted."""
    found: dict[Any, None] = {}
    ordered = True
    for values in arrays:
        known = _categories(values)
        ordered = ordered and known is not None
        entries = known if known is not None else _entries(values).reshape(-1).tolist()
        found |= dict.fromkeys(_plain(argument, one) for one in entries if not _is_missing(one))
    kinds = Counter(type(one) for one in found)
    if not ordered and len(kinds) != 1:
        rarest = min(kinds, key=lambda kind: (kinds[kind], kind is not str), default=None)
        odd = ", ".join(repr(one) for one in found if type(one) is rarest)[:40]
        got = f"{sorted(kind.__name__ for kind in kinds)}{f', odd ones: {odd}' if odd else ''}"
        fix = "Use NaN where numbers are missing, or texts for all labels (None where missing)."
        _checks.require(False, argument, "must have labels of one type", got, fix)
    return tuple(found) if ordered else tuple(sorted(found))


def _plain(argument: str, label: Any) -> Any:
    """Return a label as a value of Python."""
    value = label.item() if isinstance(label, np.generic) else label
    value = value.decode() if isinstance(value, bytes) else value
    fix = "Convert the labels to texts."
    ok = isinstance(value, KINDS)
    _checks.require(ok, argument, "must have texts, integers or booleans as labels", type(value).__name__, fix)
    return str(value) if isinstance(value, str) else value


def encode(argument: str, values: Any, labels: Labels | None, *, used: Any = None) -> Any:
    """Return labels as a masked array of their codes, hidden where missing; other values unchanged.

    Args:
        argument: name of the argument.
        values: labels, or anything else.
        labels: the known labels; None: there are none.
        used: mask of the entries that must be known; None: all.

    Raises:
        ValueError: a label that is not among the known ones.
    """
    if labels is None or not are_labels(values):
        return values
    array = _entries(values)
    number = {label: code for code, label in enumerate(labels)}
    plain = [None if _is_missing(one) else _plain(argument, one) for one in array.reshape(-1).tolist()]
    codes = np.array([number.get(one, -1) for one in plain], np.int32).reshape(array.shape)
    hidden = np.array([one is None for one in plain], bool).reshape(array.shape)
    wanted = np.ones(array.shape, bool) if used is None else np.broadcast_to(np.asarray(used, bool), array.shape)
    unknown = sorted(
        {repr(one) for one, c, h, w in zip(plain, codes.flat, hidden.flat, wanted.flat) if w and c < 0 and not h}
    )
    known = f"one of the {len(labels)} labels of the training data, such as {list(labels[:5])}"
    fix = "Correct the label, or mark the value as missing: None, or a mask."
    _checks.require(not unknown, argument, f"must be {known}", ", ".join(unknown[:3]), fix)
    return np.ma.array(np.maximum(codes, 0), mask=hidden | (codes < 0))


def decode(codes: Any, labels: Labels) -> NDArray:
    """Return the labels of codes, an array of NumPy."""
    return np.array(labels)[np.asarray(codes)]
