"""`fit`: a model of series, learned from series of known states and their observations."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks, fitting
from kbpjax._public import public
from kbpjax.graphs.graph import chain_graph
from kbpjax.learning.labels import Values, are_labels
from kbpjax.learning.pooling import pool
from kbpjax.series.dates import check_dates, dates_of
from kbpjax.series.inputs import as_series
from kbpjax.series.model import SeriesModel

FEWEST = 30
"""Number of training series below which long ones are cut into parts, so that some can be held out."""

SHORTEST = 30
"""Least number of times of a part."""


@public
def fit(x: Values, y: Values | None = None, *, order: int = 1, times: Any = None, **options: Any) -> SeriesModel:
    """Return a model of series, learned from known states and observations of them.

    Nothing else is given: neither how states change nor how they are observed. States may be numbers, vectors or
    labels; so may observations. Everything is chosen from the data, as by `kbpjax.fit`.

    Args:
        x: states of one series [time, *dim], of several [series, time, *dim], or a list of series of several lengths;
            NaN where unknown. Dates of a series of pandas are not read, but a `MissingWarning` says if rows are absent.
        y: observations of the same shape, with *obs_dim; NaN where missing. None: the states are observed themselves.
        order: number of successive values that the next one depends on, >= 1. From 2 on, of numbers and vectors. The
            model then has them as its state; answers are of the present value.
        times: steps of the values, as in `filter`; values one step apart are needed.
        options: options of `kbpjax.fit`.

    Returns:
        The model, for series of any length.

    Raises:
        ValueError: series of different shapes or dates, no two successive states, labels with order > 1; as
            `kbpjax.fit`.

    Examples:
        >>> import numpy as np
        >>> from kbpjax import series
        >>> rng = np.random.default_rng(0)
        >>> x = np.cumsum(rng.normal(size=(40, 25)), axis=1)
        >>> model = series.fit(x, np.tanh(x) + 0.1 * rng.normal(size=x.shape))
        >>> model.order
        1
    """
    _checks.require_count("order", order)
    states, *_ = as_series("x", x, None, times)
    seen = states if y is None else as_series("y", y, _axes(y, states), times)[0]
    name, dated = ("y", y) if dates_of(x) is None and dates_of(y) is not None else ("x", x)
    check_dates(name, dated, times)
    if states.shape[:2] != seen.shape[:2]:
        given = [_described(one) for one in (y, x)]
        rule = "must have the series and times of x" + (f", {np.shape(x)[:2]}" if hasattr(x, "shape") else "")
        fix = "Pass an observation for each state, NaN where there is none."
        _checks.require(False, "y", rule, f"{given[0]}, and x has {given[1]}", fix)
    dates, own = dates_of(x), dates_of(y)
    same, fix = dates is None or own is None or dates.equals(own), "Reindex y: y.reindex(x.index)."
    _checks.require(same, "y", "must have the dates of x", "others", fix)
    if order > 1:
        states = _stacked(states, order)
    cut = len(states) < FEWEST
    parts = _parts(states.shape[1], len(states)) if cut else [slice(None)]
    of_parts = [(states[:, part], seen[:, part]) for part in parts]
    lengths = sorted({one.shape[1] for one, _ in of_parts})
    grouped = [[np.concatenate(all_) for all_ in zip(*[p for p in of_parts if p[0].shape[1] == n])] for n in lengths]
    graphs = [chain_graph(n) for n in lengths]
    known: dict[str, Any] = {"margins": "type", "sharing": "type"} | ({"starts": "pooled"} if len(parts) > 1 else {})
    try:
        data = pool(graphs, [one for one, _ in grouped], [one for _, one in grouped])
    except ValueError as error:
        raise ValueError(_renamed(str(error))) from None
    return SeriesModel.of(fitting.fit(data, **(known | options)), order=order)


def _described(values: Any) -> str:
    """Return the shape of series as they were given, or the number of those of a list."""
    if hasattr(values, "shape"):
        return f"shape {values.shape}"
    return f"{len(values)} {'series' if np.ndim(values[0]) else 'times'}"


def _renamed(error: str) -> str:
    """Return an error of `pool` with the names of the arguments of `fit`."""
    argument, _, rest = error.partition(":")
    names = {"samples": "x", "observations": "y"}
    return f"{names.get(argument.partition('[')[0], argument)}:{rest}"


def _axes(y: Any, states: Any) -> int | None:
    """Return the number of axes of an observation, from the number of series and times."""
    if are_labels(y) or isinstance(y, list | tuple):
        return None
    axes = np.ndim(y)
    return axes - 2 if np.shape(y)[:2] == states.shape[:2] and axes >= 2 else axes - 1


def _stacked(x: NDArray, order: int) -> NDArray:
    """Return vectors of successive values, the latest first [series, time, order dim]; NaN before the first ones."""
    ok = np.issubdtype(np.asarray(x).dtype, np.number)
    _checks.require(ok, "order", "must be 1 for labels", order, "Pass numbers or vectors.")
    flat = np.asarray(x, np.result_type(x, np.float32)).reshape(*x.shape[:2], -1)
    late = [np.full_like(flat, np.nan) for _ in range(order)]
    for lag, one in enumerate(late):
        one[:, lag:] = flat[:, : flat.shape[1] - lag]
    whole = np.concatenate(late, axis=2)
    return np.where(np.isnan(whole).any(axis=2, keepdims=True), np.nan, whole)


def _parts(length: int, count: int) -> list[slice]:
    """Return the parts of series, each with the last time of the one before, so that no pair of times is lost."""
    number = max(1, min(-(-FEWEST // count), (length - 1) // SHORTEST))
    size = -(-(length - 1) // number)
    return [slice(first, min(first + size, length - 1) + 1) for first in range(0, length - 1, size)] or [slice(None)]
