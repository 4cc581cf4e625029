"""Flat records as tables of text."""

import math
from collections.abc import Sequence
from typing import Any

from experiments.lib.results import Row, plain


def format_table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """Lay out flat records as text: header, rule, a line each; floats show four significant digits.

    Args:
        rows: The records; a missing, NaN or infinite value shows as `-`.
        columns: Keys to show, in order; None shows all in the order of their first appearance.
    """
    known = list(dict.fromkeys(key for row in rows for key in row))
    columns = known if columns is None else list(columns)
    if rows and not set(columns) <= set(known):
        raise ValueError(f"columns must be keys of the rows; got {columns}. Choose among {known}.")
    table = [[plain(row.get(key)) for row in rows] for key in columns]
    blocks = []
    for key, column in zip(columns, table, strict=True):
        cells = [key, *map(_cell, column)]
        width = max(map(len, cells))
        align = "<" if any(isinstance(value, str) for value in column) else ">"
        cells.insert(1, "-" * width)
        blocks.append([f"{cell:{align}{width}}" for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*blocks, strict=True)) or "(no rows)"


def print_table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Print `format_table` on standard output."""
    print(format_table(rows, columns))


def _cell(value: Any) -> str:
    """Write one plain value for a table."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if not isinstance(value, float):
        return str(value)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
