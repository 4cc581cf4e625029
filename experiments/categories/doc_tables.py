"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table, with_error


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    rows = results["rows"]
    sets = dict.fromkeys(row["set"] for row in rows)
    return {f"categories_{name}": categories([row for row in rows if row["set"] == name]) for name in sets}


def categories(rows: list[Row]) -> str:
    """Return a table of the recall of categories in one data set, a line for each method."""
    ranks = [k for k in (1, 3, 10, 20) if any(row["k"] == k for row in rows)]
    columns = [("all", k) for k in ranks] + [("linked", k) for k in ranks if k >= 10 or len(ranks) < 4]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {(row["papers"], row["k"]): row for row in rows if row["method"] == method}
        body.append([method, *(with_error(of[key]["recall"], of[key]["stderr"], 3) for key in columns)])
    return markdown_table(["method", *(f"{'linked: ' if group == 'linked' else ''}@{k}" for group, k in columns)], body)
