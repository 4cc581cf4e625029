"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    rows = results["rows"]
    return {"lengths": lengths(rows), "leaves": leaves(rows)}


def lengths(rows: list[Row]) -> str:
    """Return a table of recall against the length of the chain, a line for each length."""
    return _recalls(rows, "length", "edges")


def leaves(rows: list[Row]) -> str:
    """Return a table of recall against the number of observed leaves."""
    return _recalls(rows, "leaves", "observed")


def _recalls(rows: list[Row], tree: str, label: str) -> str:
    rows = [row for row in rows if row["tree"] == tree]
    columns = list(dict.fromkeys((row["regime"], row["method"]) for row in rows))
    body = []
    for count in dict.fromkeys(row["count"] for row in rows):
        of = {(row["regime"], row["method"]): row for row in rows if row["count"] == count}
        body.append([str(count), *(f"{of[key]['recall@1']:.2f} ± {of[key]['se@1']:.2f}" for key in columns)])
    short = {"kernel belief propagation": "KBP"}
    return markdown_table([label, *(f"{regime}: {short.get(method, method)}" for regime, method in columns)], body)
