"""The tables, and what is hidden in them: cells at random, a whole column for a week, blocks, one column mostly."""

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lib import datasets

Rng = np.random.Generator

SOURCES = {
    "sensors/wind.npz": "Make it from `wind` of the R package gstat (keys speed, date, position)",
    "sensors/pm10.npz": "Make it from `air` of the R package spacetime (keys pm10, date, position)",
    "climate/colorado.npz": "Make it from `COmonthlyMet` of the R package fields (keys rain, tmin, tmax, year, month)",
    "climate/ozone.npz": "Make it from `ozone2` of the R package fields (keys ozone, position)",
}

MIXED = ("wine", "diabetes", "affairs", "elections", "health")
"""Tables of scikit-learn and statsmodels."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A table to learn from and one to fill.

    Attributes:
        train: rows to learn from [row, column], NaN where missing; labels are codes 0, 1, ...
        test: rows to fill, in their order of time.
        truth: values that are asked for [row, column], NaN elsewhere.
        labels: numbers of the columns that hold labels.
        kinds: {column: kind} of columns whose kind is not to be found.
        position: places of the columns [column, 2], or None.
        series: whether rows are successive times.
    """

    train: np.ndarray
    test: np.ndarray
    truth: np.ndarray
    labels: tuple[int, ...] = ()
    kinds: Mapping[int, str] = dataclasses.field(default_factory=dict)
    position: np.ndarray | None = None
    series: bool = False


def cells(share: float) -> Callable[[Rng, np.ndarray], np.ndarray]:
    """Return a pattern that hides each cell with a probability."""
    return lambda rng, x: rng.random(x.shape) < share


def weeks(rng: Rng, x: np.ndarray) -> np.ndarray:
    """Hide in each week a fifth of the columns, at least one, on all its days."""
    week = np.arange(len(x)) // 7
    chosen = rng.random((week.max() + 1, x.shape[1]))
    return (chosen <= np.sort(chosen, axis=1)[:, [max(x.shape[1] // 5, 1) - 1]])[week]


def block(rng: Rng, x: np.ndarray) -> np.ndarray:
    """Hide half of the columns, drawn once for every ten rows."""
    turn = np.arange(len(x)) // 10
    return (rng.random((turn.max() + 1, x.shape[1])) < 0.5)[turn]


def one_column(rng: Rng, x: np.ndarray) -> np.ndarray:
    """Hide 80 % of the column in the middle, and 5 % of the others."""
    hidden = rng.random(x.shape) < 0.05
    hidden[:, x.shape[1] // 2] = rng.random(len(x)) < 0.8
    return hidden


def hide(pattern: Callable, rng: Rng, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows with hidden cells, and their values; a row keeps one cell."""
    hidden = pattern(rng, x) & np.isfinite(x)
    empty = np.flatnonzero(~(np.isfinite(x) & ~hidden).any(axis=1) & hidden.any(axis=1))
    for row in empty:
        hidden[row, rng.choice(np.flatnonzero(hidden[row]))] = False
    return np.where(hidden, np.nan, x), np.where(hidden, x, np.nan)


def wind(rng: Rng, data: Path | None, pattern: Callable) -> Task:
    """Square roots of daily wind speeds at 12 stations, without the season; 1961-69, and 1970-72 to fill."""
    speed, date, position = _load(data, "sensors/wind.npz", "speed", "date", "position")
    x, train, test = _without_season(np.sqrt(speed), date, 1970)
    return Task(x[train], *hide(pattern, rng, x[test]), position=position, series=True)


def pm10(rng: Rng, data: Path | None, pattern: Callable) -> Task:
    """Logarithms of PM10 at stations with 30 values or more in 1998-2003, without the season; 2004-05 to fill."""
    found, date, position = _load(data, "sensors/pm10.npz", "pm10", "date", "position")
    x, train, test = _without_season(np.log(np.maximum(found, 1)), date, 2004)
    kept = np.isfinite(x[train]).sum(axis=0) >= 30
    return Task(x[train][:, kept], *hide(pattern, rng, x[test][:, kept]), position=position[kept], series=True)


def climate(rng: Rng, data: Path | None, pattern: Callable, name: str, stations: int | None = None) -> Task:
    """Monthly weather of Colorado, less the mean of the calendar month; 1960-85, and 1986-93 to fill.

    Args:
        rng: random numbers.
        data: folder of the data.
        pattern: what is hidden.
        name: "rain" (square roots), or "all": rain, warmest and coldest temperature of some stations.
        rng: random numbers.
        stations: number of stations; None: all with 60 months.
    """
    keys = ("rain", "tmax", "tmin", "year", "month", "position")
    *values, year, month, position = _load(data, "climate/colorado.npz", *keys)
    values[0] = np.sqrt(values[0])
    before = year < 1986
    enough = [np.isfinite(x[before]).sum(axis=0) >= 60 for x in (values if name == "all" else values[:1])]
    kept = np.flatnonzero(np.all(enough, axis=0))
    kept = kept if stations is None else np.sort(rng.choice(kept, stations, replace=False))
    x = np.concatenate([_without_months(one[:, kept], before, month) for one in values[: 3 if name == "all" else 1]], 1)
    places = np.tile(position[kept], (x.shape[1] // len(kept), 1))
    return Task(x[before], *hide(pattern, rng, x[~before]), position=places if name != "all" else None)


def ozone(rng: Rng, data: Path | None, pattern: Callable) -> Task:
    """Ozone on 69 days of a summer at 153 stations, less those without values on the first 46 days; 23 days to fill."""
    x, position = _load(data, "climate/ozone.npz", "ozone", "position")
    x = np.sqrt(np.maximum(x, 0))
    known = np.isfinite(x[:46]).sum(axis=0) > 1
    x, position = x[:, known], position[known]
    return Task(x[:46], *hide(pattern, rng, x[46:]), position=position)


def mixed(rng: Rng, name: str, pattern: Callable, rows: int = 2000) -> Task:
    """Return a table of a package: up to so many rows, 70 % to learn from; the pattern hides in both parts."""
    x, labels = _mixed_table(name)
    x = x[rng.permutation(len(x))[:rows]]
    first = len(x) * 7 // 10
    given, truth = hide(pattern, rng, x)
    return Task(given[:first], given[first:], truth[first:], labels, dict.fromkeys(labels, "category"))


def _mixed_table(name: str) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return a table and the numbers of its columns of labels."""
    if name in ("wine", "diabetes"):
        from sklearn import datasets as of_sklearn

        found: Any = of_sklearn.load_wine() if name == "wine" else of_sklearn.load_diabetes(scaled=False)
        x = np.concatenate([found.data, found.target[:, None]], axis=1).astype(float)
        if name == "diabetes":
            x[:, 1] -= 1  # sex
        return x, (13,) if name == "wine" else (1,)
    try:
        of_statsmodels = importlib.import_module("statsmodels.datasets")  # so that type checks do not need the package
    except ImportError:
        raise ValueError("data must come with statsmodels: pip install 'kbpjax[imputation]'.") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = getattr(of_statsmodels, {"affairs": "fair", "elections": "anes96", "health": "randhie"}[name])
        table = frame.load_pandas().data
    if name == "elections":
        table = table.drop(columns="logpopul")
    x = table.to_numpy(float)
    labels = {"affairs": ("occupation", "occupation_husb"), "elections": ("vote",), "health": ("idp", "hlthg")}
    numbers = [table.columns.get_loc(one) for one in labels[name]]
    for i in numbers:
        x[:, i] = np.unique(x[:, i], return_inverse=True)[1]
    return x, tuple(numbers)


def _load(data: Path | None, name: str, *keys: str) -> tuple[np.ndarray, ...]:
    def read(path: Path) -> Any:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return tuple(archive[key].astype(np.float64) for key in keys)

    return datasets.read(data, name, f"{name}. {SOURCES[name]}", read)


def _without_season(x: np.ndarray, date: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Subtract a constant and two harmonics of the year, fitted to the mean of the training days."""
    year = date.astype("datetime64[D]").astype("datetime64[Y]").astype(int) + 1970
    train, phase = year < first, 2 * np.pi * date / 365.25
    waves = np.stack([np.ones(len(date)), *(f(k * phase) for k in (1, 2) for f in (np.cos, np.sin))], axis=1)
    used = train & np.isfinite(x).any(axis=1)
    season = waves @ np.linalg.lstsq(waves[used], np.nanmean(x[used], axis=1), rcond=None)[0]
    return x - season[:, None], train, ~train


def _without_months(x: np.ndarray, before: np.ndarray, month: np.ndarray) -> np.ndarray:
    """Subtract the mean of each calendar month of the training years; without data, that of all months."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        every = np.nanmean(x[before], axis=0)
        means = np.stack([np.nanmean(x[before & (month == m)], axis=0) for m in range(12)])
    return x - np.where(np.isfinite(means), means, every)[month.astype(int)]
