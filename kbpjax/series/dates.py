"""Dates of pandas: whether rows are successive steps, which is how series and tables with lags read them."""

import datetime
from typing import Any

import numpy as np

from kbpjax._misc import MissingWarning, warn

UNEVEN = 1.2
"""Ratio to the usual distance of dates from which on one is no step; a month may have 28 days of the usual 31."""


def dates_of(values: Any) -> Any:
    """Return the index of a frame or series of pandas if it is of dates, periods or spans of time, else None."""
    index = getattr(values, "index", None) if hasattr(values, "to_numpy") else None
    return index if hasattr(index, "asi8") else None


def uneven_steps(dates: Any) -> tuple[int, int, str] | None:
    """Return how many steps between dates are not the usual one, of how many, and the usual one; None if all are.

    Days and months of several lengths count as usual, and so do working days.
    """
    times = getattr(getattr(dates, "dtype", None), "kind", "O") in "mM"  # periods are numbered, whatever their length
    if dates is None or len(dates) < 2 or (times and dates.freq is not None):
        return None
    steps = np.diff(dates.asi8)
    forth = np.sort(steps[steps > 0])
    usual = int(forth[len(forth) // 2]) if len(forth) else 1
    uneven = (UNEVEN * steps < usual) | (steps > UNEVEN * usual)
    period = np.timedelta64(usual, dates.unit) if times else None
    if period == np.timedelta64(1, "D") and dates.dtype.kind == "M":
        days = np.asarray(dates.tz_localize(None), "datetime64[D]")
        if np.is_busday(days).all():
            uneven = np.busday_count(days[:-1], days[1:]) != 1
    if not uneven.any():
        return None
    if period is None:
        return int(uneven.sum()), len(steps), f"{usual} periods"
    exact = (unit for unit in ("D", "h", "m", "s") if period % np.timedelta64(1, unit) == np.timedelta64(0))
    return int(uneven.sum()), len(steps), str(period.astype(f"timedelta64[{next(exact, 'ns')}]"))


def check_dates(argument: str, values: Any, times: Any) -> None:
    """Give a MissingWarning if series have dates at unequal distances and no `times`: rows are read as the steps."""
    series = values if isinstance(values, list | tuple) else [values]
    if times is None and any(uneven_steps(dates_of(one)) for one in series):
        text = f"{argument}: dates of its index are not at equal distances, and rows are read as successive steps."
        fix = "Sort the rows and insert missing ones, such as by .asfreq('1h'), or pass times=."
        warn(f"{text} {fix} If rows are the steps, pass .to_numpy().", MissingWarning)


def are_dates(times: Any) -> bool:
    """Return whether times are dates or spans of time."""
    array = np.asarray(times)
    kinds = datetime.date, datetime.timedelta
    return array.dtype.kind in "mM" or (array.dtype == object and any(isinstance(one, kinds) for one in array.flat))
