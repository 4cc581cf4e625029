"""Tables of several programs as named columns, and back: NumPy, pandas and polars."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import describe
from kbpjax.inference.diagnostics import MissingWarning
from kbpjax.series.dates import dates_of, uneven_steps

Values = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns of a table.

    Attributes:
        names: the names of the columns, or their numbers.
        columns: {name: values [row]}; missing ones are NaN, NaT, None or NA.
        orders: {name: categories in their order} of categorical columns.
        source: the table as it was given; of arrays, the array of floats or objects.
        program: "numpy", "pandas" or "polars".
    """

    names: tuple[Any, ...]
    columns: Mapping[Any, Values]
    orders: Mapping[Any, Sequence[Any]]
    source: Any
    program: str

    @classmethod
    def of(cls, table: Any) -> "Table":
        """Return the columns of a frame of pandas or polars, or of an array [row, column].

        Raises:
            ValueError: another kind of table, no rows, no columns, or names that are not different.
        """
        program = type(table).__module__.partition(".")[0]
        if program == "pandas" and hasattr(table, "columns"):
            found = _of_pandas(table)
        elif program == "polars" and hasattr(table, "columns"):
            found = _of_polars(table)
        else:
            found = _of_array(table)
        fix = "Pass rows of a table [row, column]."
        if not found.names or not len(next(iter(found.columns.values()))):
            what = "0 sample(s)" if found.names else "0 feature(s)"  # as scikit-learn says it
            text = f"{what} (shape={np.shape(found.source)}) while a minimum of 1 is required"
            raise ValueError(f"X: must have 1 row and 1 column or more; got {text}. {fix}")
        return found

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.columns[self.names[0]])

    def filled(self, values: Mapping[Any, tuple[NDArray[np.bool_], Values]]) -> Any:
        """Return a table of the same program and types, in which some cells have other values.

        Args:
            values: {name: (mask of the cells [row], a value for each [cell])}.
        """
        values = {name: (mask, self._dated(name, new)) for name, (mask, new) in values.items()}
        if self.program == "numpy":
            result = np.array(self.source)
            for i, name in enumerate(self.names):
                if name in values:
                    mask, new = values[name]
                    result[mask, i] = new
            return result
        if self.program == "pandas":
            return self._filled_pandas(values)
        import polars as pl

        frame = self.source
        for name, (mask, new) in values.items():
            if mask.any():
                column = frame[name]
                cells = column.to_list()
                new = new.astype("datetime64[D]") if column.dtype == pl.Date else new
                for row, value in zip(np.flatnonzero(mask).tolist(), new.tolist(), strict=True):
                    cells[row] = round(value) if column.dtype.is_integer() else value
                frame = frame.with_columns(pl.Series(name, cells, dtype=column.dtype))
        return frame

    def _dated(self, name: Any, new: Values) -> Values:
        """Return days since 1970 as dates, to the second, for a column of dates; other values as they are."""
        if self.columns[name].dtype.kind != "M":
            return new
        return np.round(new.astype(float) * 86400).astype("datetime64[s]")

    def _filled_pandas(self, values: Mapping[Any, tuple[NDArray[np.bool_], Values]]) -> Any:
        import pandas as pd

        frame = self.source.copy()
        for name, (mask, new) in values.items():
            if mask.any():
                column = frame[name]
                whole = pd.api.types.is_integer_dtype(column.dtype)
                cells = np.round(new.astype(float)).astype(int) if whole else new
                if getattr(column.dtype, "kind", "O") == "f":
                    cells = cells.astype(f"f{column.dtype.itemsize}")
                position = np.flatnonzero(mask)
                if getattr(column.dtype, "tz", None) is not None:  # as of the clock on the wall, as they were read
                    later = {"nonexistent": "shift_forward", "ambiguous": np.zeros(len(cells), bool)}
                    cells = pd.DatetimeIndex(cells).tz_localize(column.dtype.tz, **later)
                column = column.copy()
                column.iloc[position] = cells.tolist() if column.dtype == object or whole else cells
                frame[name] = column
        return frame

    def numbers(self, values: NDArray[np.floating], dates: Sequence[Any] = ()) -> Any:
        """Return a table of floats [row, column] of the same program, with the same names and index.

        Args:
            values: the values.
            dates: names of columns whose values are days since 1970; in frames they become dates, where a cell is
                missing, and are that cell elsewhere.
        """
        if self.program == "numpy":
            return values
        cells = {}
        for name in dates:
            mask = np.isnat(self.columns[name])
            cells[name] = mask, values[mask, self.names.index(name)]
        dated = self.filled(cells) if cells else self.source
        if self.program == "pandas":
            import pandas as pd

            frame = pd.DataFrame(values, columns=self.source.columns, index=self.source.index)
            for name in dates:
                frame[name] = dated[name]
            return frame
        import polars as pl

        return pl.DataFrame({name: dated[name] if name in dates else values[:, i] for i, name in enumerate(self.names)})


def _of_pandas(frame: Any) -> Table:
    names = tuple(frame.columns)
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    fix = "Rename them: frame.columns = [...]."
    _checks.require(not twice, "X", "must have column names that are different", f"{twice} twice", fix)
    columns, orders = {}, {}
    for name in names:
        column = frame[name]
        kind = column.dtype
        if hasattr(kind, "categories"):
            orders[name] = list(kind.categories)
            columns[name] = column.astype(object).to_numpy()
        elif getattr(kind, "kind", "O") in "iuf":
            columns[name] = column.to_numpy(dtype=float, na_value=np.nan)
        elif getattr(kind, "kind", "O") == "M":
            plain = column.dt.tz_localize(None) if getattr(column.dt, "tz", None) is not None else column
            columns[name] = plain.to_numpy().astype("datetime64[s]")
        elif kind == bool:  # noqa: E721
            columns[name] = column.to_numpy()
        else:
            columns[name] = column.to_numpy(dtype=object)
    return Table(names, columns, orders, frame, "pandas")


def _of_polars(frame: Any) -> Table:
    columns, orders = {}, {}
    for name in frame.columns:
        column = frame[name]
        if column.dtype.is_numeric():
            columns[name] = column.cast(float).to_numpy().astype(float)
        elif column.dtype.is_temporal():
            columns[name] = column.to_numpy().astype("datetime64[s]")
        else:
            columns[name] = np.array([*column.to_list(), None], object)[:-1]
            if hasattr(column.dtype, "categories") and type(column.dtype).__name__ == "Enum":
                orders[name] = column.dtype.categories.to_list()
    return Table(tuple(frame.columns), columns, orders, frame, "polars")


def _of_array(table: Any) -> Table:
    if isinstance(table, np.ma.MaskedArray):
        kind = table.dtype.kind
        table = (
            np.ma.filled(table, np.datetime64("NaT"))
            if kind == "M"
            else table.astype(float if kind in "iubf" else object)
        )
        table = np.ma.filled(table, np.nan if kind in "iubf" else None)
    if hasattr(table, "toarray"):
        raise ValueError("X: must be dense; got a sparse matrix. Pass X.toarray(), with NaN where cells are missing.")
    array = np.asarray(table)
    if array.dtype.kind in "iub":
        array = array.astype(float)
    elif array.dtype.kind in "US":
        array = array.astype(object)
    rule, fix = "must be a table [row, column]", "Reshape your data: X.reshape(-1, 1) of a single column."
    _checks.require(array.ndim == 2, "X", rule, f"{describe(table)}: Expected 2D array", fix)
    fix = "Pass numbers, texts or categories; dates as a frame of pandas or polars."
    _checks.require(
        array.dtype.kind in "fOM", "X", "must have real values: Complex data not supported", array.dtype, fix
    )
    names = tuple(range(array.shape[1]))
    columns: dict[Any, Values] = {}
    for i in names:
        column = array[:, i]
        if column.dtype == object:
            column = _plain(column)
        columns[i] = column
    return Table(names, columns, {}, array, "numpy")


def _plain(column: Values) -> Values:
    """Return a column of objects that are all numbers, or missing, as floats."""
    numbers = (int, float, np.integer, np.floating)
    known = [one for one in column.tolist() if one is not None]
    if known and all(isinstance(one, numbers) and not isinstance(one, bool) for one in known):
        return np.array([np.nan if one is None else float(one) for one in column.tolist()])
    return column


def warn_of_gaps(table: Any) -> None:
    """Warn if dates are left out of the index of a frame of pandas, whose rows count as successive steps."""
    found = uneven_steps(dates_of(table))
    if found is not None:
        count, total, usual = found
        text = f"X: {count} of {total} steps between its dates are not the usual {usual}, but rows count as successive."
        fix = "Insert the dates that are left out, X.asfreq(...), or take means: X.resample(...).mean()."
        warn(f"{text} {fix}", MissingWarning)
