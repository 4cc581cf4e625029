"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table, or_blank, with_error


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    rows = results["rows"]
    sets = dict.fromkeys(row["set"] for row in rows)
    return {f"depth_{name}": depth([row for row in rows if row["set"] == name]) for name in sets}


def depth(rows: list[Row]) -> str:
    """Return a table of the errors of depth, a line for each method; returns header and body."""
    ours = next(row["method"] for row in rows if "gain" not in row)  # all others are compared with the headline
    header = ["method", "MAE of log10 depth", "messages add", f"{ours} ahead by"]
    header += ["relative error", "cover of 90 %", "s an image"]
    body = []
    for row in rows:
        whole = row["scenes"] == rows[0]["scenes"]
        name = row["method"] if whole else f"{row['method']} ({row['scenes']} images, {row['cells_each']} patches each)"
        cells = [name, with_error(row["mae"], row["se"], 4)]
        for key in ("messages", "gain"):
            cells.append(with_error(row[key], row[f"{key}_se"], 4, "+") if key in row else "")
        cells += [f"{row['relative']:.3f}", or_blank(row["cover"], ".2f"), or_blank(row["answer_s"], ".2g")]
        body.append(cells)
    return markdown_table(header, body)
