"""The variables of a table, of which each is a column, or a vector of several: codes from their cells, and cells back.

`columns` codes the values of one column; here are the columns of a table, by name.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kbpjax as kbp
from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax.estimator.columns import (
    KINDS,
    Angles,
    Code,
    Labels,
    Numbers,
    are_dates,
    as_numbers,
    code_of,
    kind_of,
    missing,
    odd_among_numbers,
)
from kbpjax.estimator.rows import level_ends
from kbpjax.estimator.tables import Table

Floats = NDArray[np.floating]


@dataclasses.dataclass(frozen=True)
class Variables:
    """The variables of the table of `fit`.

    Attributes:
        columns: names of the columns of the table, of frames and arrays.
        framed: whether the table was a frame.
        kinds: {name: kind} of the variables that have values. Vectors have tuples of names.
        codes: how their values are coded.
        kept: their numbers among all variables.
        empty: names of the variables that have no values.
    """

    columns: tuple[Any, ...]
    framed: bool
    kinds: dict[Any, str]
    codes: tuple[Code, ...]
    kept: list[int]
    empty: list[Any]

    @classmethod
    def of(cls, table: Table, given: Mapping[Any, Any]) -> "Variables":
        """Return the variables of a table; some of their kinds may be given."""
        kinds, periods = kinds_of(table, given)
        values = {name: _values(table, name, kind) for name, kind in kinds.items()}
        gone = {name: missing(x) for name, x in values.items()}
        empty = [name for name, one in gone.items() if (one if one.ndim == 1 else one.any(axis=1)).all()]
        _checks.require(len(empty) < len(gone), "X", "must have values", "none", "Pass rows that have some.")
        if empty:
            text = f"{', '.join(map(repr, empty[:5]))} ({len(empty)} columns) have no values: their cells stay missing"
            warn(f"{text}. Leave them out, or give them values.", kbp.MissingWarning)
        kept = [i for i, name in enumerate(kinds) if name not in empty]
        kinds = {name: kind for name, kind in kinds.items() if name not in empty}
        codes = tuple(
            code_of(name, kind, values[name], periods.get(name, 360.0), table.orders.get(name))
            for name, kind in kinds.items()
        )
        return cls(table.names, table.program != "numpy", kinds, codes, kept, empty)

    @property
    def names(self) -> tuple[Any, ...]:
        """Names of the variables that have values."""
        return tuple(self.kinds)

    @property
    def words(self) -> list[str]:
        """Of each variable, whether its values are numbers, angles or labels."""
        return [
            "label" if isinstance(code, Labels) else "angle" if isinstance(code, Angles) else "number"
            for code in self.codes
        ]

    def places(self, name: Any) -> list[int]:
        """Return the numbers of the table's columns of a variable."""
        return [self.columns.index(one) for one in (name if name not in self.columns else (name,))]

    def values(self, table: Table, name: Any) -> NDArray[Any]:
        """Return the values of a variable [row], or [row, coordinate]."""
        return _values(table, name, self.kinds[name])

    def encode(self, table: Table) -> Floats:
        """Return the codes of a table [row, variable], NaN where values are missing."""
        found = []
        for name, code in zip(self.names, self.codes, strict=True):
            x = self.values(table, name)
            found.append(code.encode(x, name) if isinstance(code, Labels) else code.encode(x))
        return np.stack(found, axis=1)

    def read(self, X: Any) -> tuple[Table, Floats]:
        """Return a table and its codes; raise ValueError for other columns than in `fit`."""
        table = Table.of(X)
        names = list(self.columns)
        gone = [name for name in names if name not in table.names] if self.framed and table.program != "numpy" else []
        fix = "Pass the columns of fit, in the same order."
        if len(table.names) != len(names):
            raise ValueError(
                f"X has {len(table.names)} features, but GraphImputer is expecting {len(names)} features as input"
                f"{f', without {gone[:5]}' if gone else ''}. {fix}"
            )
        same = table.program == "numpy" or list(table.names) == names
        _checks.require(same, "X", f"must have the columns {names[:5]} ...", list(table.names)[:5], fix)
        if table.program == "numpy" and self.framed:
            columns = {name: table.columns[i] for i, name in enumerate(names)}
            table = dataclasses.replace(table, names=self.columns, columns=columns)
        return table, self.encode(table)

    def summary(self, variable: int, levels: Floats, weights: Floats) -> tuple[NDArray[Any], Floats]:
        """Return what cells are filled with, and how uncertain that is.

        Args:
            variable: the number of the variable.
            levels: the levels of its codes [level].
            weights: beliefs of its cells [cell, level or more].
        """
        code, kind = self.codes[variable], self.kinds[self.names[variable]]
        if isinstance(code, Labels) and kind in ("category", "boolean", "text"):
            weights = weights[:, : len(code.labels)]
            best = np.argmax(weights, axis=1)
            return code.labels[best], 1 - weights[np.arange(len(best)), best]
        if isinstance(code, Labels):
            values = np.asarray(code.labels, float)
            weights = weights[:, : len(values)]
        else:
            values, weights = code.decode(levels), weights[:, : len(levels)]
        if isinstance(code, Angles):
            turn = np.exp(1j * (2 * np.pi / code.period) * values)
            mean = weights @ turn
            length = np.clip(np.abs(mean), 1e-12, 1)
            unit = code.period / (2 * np.pi)
            return np.mod(np.angle(mean), 2 * np.pi) * unit, np.sqrt(-2 * np.log(length)) * unit
        mean = weights @ values
        return mean, np.sqrt(np.maximum(weights @ values**2 - mean**2, 0))

    def between(self, variable: int, points: Floats, levels: NDArray[np.integer], rng: np.random.Generator) -> Floats:
        """Return codes of drawn levels: of numbers and angles, anywhere in their intervals."""
        code = self.codes[variable]
        if isinstance(code, Labels):
            return levels.astype(float)
        edges = level_ends(points, isinstance(code, Angles))
        levels = np.minimum(levels, len(points) - 1)
        return edges[levels] + np.diff(edges)[levels] * rng.random(levels.shape)

    def decode(
        self, table: Table, codes: Floats, gone: NDArray[np.bool_]
    ) -> dict[Any, tuple[NDArray[np.bool_], NDArray[Any]]]:
        """Return {column of the table: (mask, values)} of the cells that were drawn."""
        found = {}
        for i, (name, code) in enumerate(zip(self.names, self.codes, strict=True)):
            mask = gone[:, i]
            if not mask.any() or self.kinds[name] == "date":
                continue
            own = codes[mask, i]
            values = code.labels[own.astype(int)] if isinstance(code, Labels) else code.decode(own)
            if isinstance(code, Numbers) and code.whole:
                values = np.round(values)
            for one, cells, new, _ in self.cells(table, i, mask, values, values):
                found[one] = cells, new
        return found

    def cells(
        self, table: Table, variable: int, gone: NDArray[np.bool_], value: NDArray[Any], spread: Floats
    ) -> Iterator[tuple[Any, NDArray[np.bool_], NDArray[Any], Floats]]:
        """Yield (name of a column of the table, mask of its holes, values, spreads) of a variable."""
        name = self.names[variable]
        if self.kinds[name] != "vector":
            yield name, gone, value, spread
            return
        for i, one in enumerate(name):
            mask = np.isnan(as_numbers(str(one), table.columns[one]))  # what is there is kept
            inside = mask[gone]
            yield one, mask, value[inside, i], spread[inside, i]


class ByColumn(dict):
    """{name: answers} of the columns of labels, with an error that says why another column has none."""

    def __init__(self, answers: Mapping[Any, Any], kinds: Mapping[Any, str]):
        super().__init__(answers)
        self.kinds = kinds

    def __missing__(self, name: Any) -> Any:
        got = f"{name!r}, of the kind {self.kinds[name]!r}" if name in self.kinds else repr(name)
        fix = "Numbers, angles and dates have intervals: call interval(X)."
        raise KeyError(f"column: must be one of labels, such as {list(self)[:5]}; got {got}. {fix}")


def kinds_of(table: Table, given: Mapping[Any, Any]) -> tuple[dict[Any, str], dict[Any, float]]:
    """Return {name: kind} of the variables, given or found, and {name: period} of angles with a given one."""
    periods = {}
    vectors = [name for name in given if isinstance(name, tuple) and name not in table.names]
    inside = {one for name in vectors for one in name}
    unknown = [one for one in [*inside, *(name for name in given if name not in vectors)] if one not in table.names]
    fix = "Pass names of columns; of an array, their numbers."
    _checks.require(not unknown, "kinds", f"must be of columns among {table.names[:5]} ...", unknown[:3], fix)
    kinds = {}
    for name in (*(one for one in table.names if one not in inside), *vectors):
        word = given.get(name)
        if isinstance(word, tuple) and len(word) == 2 and word[0] == "angle":
            _checks.require_number(f"kinds[{name!r}]", word[1], above=0)
            word, periods[name] = "angle", float(word[1])
        if word is None:
            word = "category" if name in table.orders else kind_of(table.columns[name])
            _warn_of_words(name, word, table)
        fix = 'Angles of other periods are ("angle", period).'
        ok = isinstance(word, str) and word in KINDS
        _checks.require(ok, f"kinds[{name!r}]", f"must be one of {KINDS}", repr(word), fix)
        fits = (word == "vector") == (name in vectors)
        rule, fix = "must be of several columns for a vector, and of one else", 'Pass {("x", "y"): "vector"}.'
        _checks.require(fits, f"kinds[{name!r}]", rule, word, fix)
        kinds[name] = word
    return kinds, periods


def _values(table: Table, name: Any, kind: str) -> NDArray[Any]:
    if kind == "vector":
        return np.stack([as_numbers(str(one), table.columns[one]) for one in name], axis=1)
    x = table.columns[name]
    return x if kind in ("category", "boolean", "text") else as_numbers(str(name), x)


def _warn_of_words(name: Any, kind: str, table: Table) -> None:
    """Warn of a column that was found to be of labels, though nearly all of its values are numbers or dates."""
    if kind not in ("category", "text") or name in table.orders:
        return
    x, right = table.columns[name], f"or pass kinds={{{name!r}: {kind!r}}} if it is right."
    if are_dates(x):
        convert = {"pandas": "pd.to_datetime(column)", "polars": "column.str.to_datetime()"}
        fix = f"Convert it to dates: {convert.get(table.program, 'numpy.datetime64')}; {right}"
        warn(f"column {name!r} is of the kind {kind!r}, but its values are dates as texts. {fix}", kbp.MissingWarning)
        return
    odd = odd_among_numbers(x)
    if odd is None or not (odd or kind == "text"):  # a few different texts of digits are names, such as "0" and "1"
        return
    what = f"is of the kind {kind!r}, but nearly all of its values are numbers"
    what = f"{what}, others are {', '.join(map(repr, odd[:3]))}" if odd else f"{what} as texts"
    coerce = {"pandas": 'pd.to_numeric(column, errors="coerce")', "polars": "column.cast(pl.Float64, strict=False)"}
    fix = coerce.get(table.program, "floats, with NaN instead of words")
    warn(f"column {name!r} {what}. Convert it to numbers: {fix}; {right}", kbp.MissingWarning)
