"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table, or_blank, with_error


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"protein": protein(results["rows"])}


def protein(rows: list[Row]) -> str:
    """Return a table of methods by window, with more columns for the widest window."""
    rows = [row for row in rows if row["study"] == "summary"]
    widths = list(dict.fromkeys(row["window"] for row in rows))
    header = ["method", *(text for width in widths for text in (f"window {width}", "kernel BP ahead by"))]
    formats = {"cosine_mode": ".3f", "coverage": ".2f", "theta": ".1f", "tau": ".1f", "fit_s": ".1f", "run_s": ".2g"}
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {row["window"]: row for row in rows if row["method"] == method}
        cells = [method]
        for width in widths:
            row = of[width]
            shown = row["gain"] != 0 and "part" not in method
            cells.append(with_error(row["cosine"], row["se"], 3))
            cells.append(with_error(row["gain"], row["gain_se"], 3, "+") if shown else "")
        body.append(cells + [or_blank(of[widths[-1]].get(key), shape) for key, shape in formats.items()])
    return markdown_table([*header, "mode", "coverage", "theta", "tau", "fit s", "run s"], body)
