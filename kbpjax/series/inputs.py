"""Series as users have them: one or many, of one length or several, at regular times or with steps left out."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.learning.labels import are_labels
from kbpjax.series.dates import are_dates, dates_of


def as_series(argument: str, values: Any, dim: int | None, times: Any = None) -> tuple[Any, bool, list[int]]:
    """Return series as an array [series, time, *dim], NaN (labels: None) where missing.

    Args:
        argument: the argument's name, for errors.
        values: one series [time, *dim], several [series, time, *dim], or a list of series of several lengths, which are
            continued by missing values.
        dim: number of axes of one value; None: values are numbers, unless there are three axes.
        times: increasing integers [time]; one list for all series, or one for each; None: 0, 1, ...

    Returns:
        The array; whether only one series was given; the number of times of each series up to its last value.
    """
    ok, fix = not isinstance(values, str | bytes), "Pass one series [time, *dim], or several."
    _checks.require(ok, argument, "must be a series", repr(values)[:40], fix)
    if are_labels(values) or (isinstance(values, Sequence) and len(values) and are_labels(values[0])):
        return _labels(argument, values, times)
    if isinstance(values, list | tuple) and values and np.ndim(values[0]) > 0:
        rows = [np.asarray(_checks.as_numpy(f"{argument}[{i}]", one)) for i, one in enumerate(values)]
        single = False
    else:
        if isinstance(values, jax.Array) and _checks.is_traced(values):
            fix = "Pass series with times outside of compiled functions."
            _checks.require(times is None, "times", "must be None for traced series", "times", fix)
            axes = values.ndim - 1 if dim is None else dim
            single = values.ndim == axes + 1
            several = values[None] if single else values
            return several, single, [several.shape[1]] * len(several)
        array = np.asarray(_checks.as_numpy(argument, values))
        axes = max(dim, 0) if dim is not None else (0 if array.ndim < 3 else array.ndim - 2)
        ok, fix = array.ndim in (axes + 1, axes + 2), "Pass one series [time, *dim], or several [series, time, *dim]."
        _checks.require(ok, argument, f"must have {axes + 1} or {axes + 2} axes", f"shape {array.shape}", fix)
        single = array.ndim == axes + 1
        fix = f"Pass one column, {argument}[name]; {argument}.T for a series in each column; or for one series of "
        fix += f"vectors {argument}.to_numpy()[None]."
        _checks.require(single or dates_of(values) is None, argument, "must have series in rows", "dates in rows", fix)
        rows = [array] if single else list(array)
    fix = "Pass at least one series with values."
    _checks.require(bool(rows) and all(len(one) for one in rows), argument, "must have values", "none", fix)
    shapes = {one.shape[1:] for one in rows}
    _checks.require(len(shapes) == 1, argument, "must have values of one shape", sorted(shapes), "Check each series.")
    places = _places(times, [len(one) for one in rows])
    return _placed(rows, places), single, _lengths(places)


def _labels(argument: str, values: Any, times: Any) -> tuple[Any, bool, list[int]]:
    frame = getattr(values, "to_numpy", None)
    values = values if frame is None else frame()
    one = are_labels(values) and np.ndim(np.asarray(values, object)) == 1
    rows = [np.asarray(row, object) for row in ([values] if one else values)]
    fix = "Pass labels [time], or [series, time]."
    ok = all(row.ndim == 1 and len(row) for row in rows)
    _checks.require(ok, argument, "must be series of labels", [row.shape for row in rows][:5], fix)
    places = _places(times, [len(row) for row in rows])
    length = 1 + max(int(at[-1]) for at in places)
    table = np.full((len(rows), length), None, object)
    for row, at, own in zip(table, places, rows, strict=True):
        row[at] = own
    return table, one, _lengths(places)


def _lengths(places: list[NDArray[np.int64]]) -> list[int]:
    return [1 + int(at[-1]) for at in places]


def _places(times: Any, lengths: list[int]) -> list[NDArray[np.int64]]:
    """Return the step of each value of each series."""
    if times is None:
        return [np.arange(length) for length in lengths]
    several = isinstance(times, list | tuple) and len(times) > 0 and hasattr(times[0], "__len__")
    fix = "Count steps, for instance of an hour: np.round((times - times[0]) / np.timedelta64(1, 'h'))."
    dates = any(are_dates(one) for one in (times if several else [times]))
    _checks.require(not dates, "times", "must be increasing integers", "dates", fix)
    rows: Any = times if several else np.asarray(_checks.as_numpy("times", times))
    shared = not several and rows.ndim < 2
    given = [np.asarray(_checks.as_numpy("times", one)) for one in (len(lengths) * [rows] if shared else rows)]
    shapes = [one.shape for one in given]
    fix = "Pass an integer for each value."
    _checks.require(shapes == [(n,) for n in lengths], "times", f"must have lengths {lengths[:5]}", shapes[:5], fix)
    for one in given:
        _checks.require_real("times", one)
        whole = np.issubdtype(one.dtype, np.number) and np.all(one == np.round(one)) and np.all(np.diff(one) > 0)
        rule, fix = "must be increasing integers", "Count steps: np.round((times - times[0]) / step)."
        _checks.require(bool(whole), "times", rule, one[:5].tolist(), fix)
    first = min(int(one[0]) for one in given) if shared else None
    return [one.astype(np.int64) - (int(one[0]) if first is None else first) for one in given]


def _placed(rows: list[Any], places: list[NDArray[np.int64]]) -> Any:
    """Return series at their steps [series, time, *dim], NaN at all others."""
    length = 1 + max(int(at[-1]) for at in places)
    full = all(len(row) == length for row in rows)
    dtype = np.result_type(*rows)
    if full:
        return np.stack(rows).astype(dtype)
    dtype = dtype if np.issubdtype(dtype, np.floating) else np.result_type(float)
    table = np.full((len(rows), length, *rows[0].shape[1:]), np.nan, dtype)
    for own, at, row in zip(table, places, rows, strict=True):
        own[at] = row
    return table
