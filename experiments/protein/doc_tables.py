"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table, or_blank, with_error

HEADLINE = "kernel BP on the network"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"protein": protein(results["rows"])}


def protein(rows: list[Row]) -> str:
    """Return a table of methods by window, with more columns for the widest window."""
    rows = [row for row in rows if row["study"] == "summary"]
    widths = list(dict.fromkeys(row["window"] for row in rows))
    header = [
        "method",
        *(text for width in widths for text in (f"window {width}", "messages add", f"{HEADLINE} ahead by")),
    ]
    formats = {
        "cosine_mode": ".3f",
        "untempered": ".2f",
        "coverage": ".2f",
        "half": ".2f",
        "theta": ".1f",
        "tau": ".1f",
    }
    formats |= {"fit_s": ".1f", "run_s": ".2g"}
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {row["window"]: row for row in rows if row["method"] == method}
        cells = [method]
        for width in widths:
            row = of[width]
            shown = method not in (HEADLINE, "particle BP") and "part" not in method
            cells.append(with_error(row["cosine"], row["se"], 3))
            cells.append(with_error(row["messages"], row["messages_se"], 4, "+") if "messages" in row else "")
            cells.append(with_error(row["gain"], row["gain_se"], 4, "+") if shown else "")
        body.append(cells + [or_blank(of[widths[-1]].get(key), shape) for key, shape in formats.items()])
    return markdown_table([*header, "mode", "90 % untempered", "90 %", "50 %", "theta", "tau", "fit s", "run s"], body)
