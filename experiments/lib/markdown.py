"""Tables of Markdown for the pages of the documentation."""

from typing import Any

Row = dict[str, Any]
Results = dict[str, Any]
"""The content of a results file."""


def markdown_table(header: list[str], body: list[list[str]]) -> str:
    """Return a table whose first column is aligned to the left, the others to the right."""
    lines = [header, [":---", *["---:"] * (len(header) - 1)], *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def with_error(value: float, error: float | None, digits: int, sign: str = "") -> str:
    """Return a number with its standard error, if there is one."""
    text = f"{value:{sign}.{digits}f}"
    return text if error is None else f"{text} ± {error:.{digits}f}"


def or_blank(value: float | None, shape: str) -> str:
    """Return a number in a format; nothing for None."""
    return "" if value is None else format(value, shape)
