"""Tables of this experiment in the documentation."""

from experiments.categories.data import SETS
from experiments.lib.markdown import Results, Row, markdown_table, with_error

HEADLINE = "KBP on label spreading"
AHEAD = f"{HEADLINE} less this"
MISSING = "Not measured yet by the present protocol.\n"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages; a sentence where a set is not in the results."""
    sets = {name: [row for row in results["rows"] if row["set"] == name] for name in SETS}
    found = {f"categories_{name}": categories(rows) if rows else MISSING for name, rows in sets.items()}
    return found | {"categories_trials": trials(results.get("trials", []))}


def trials(rows: list[Row]) -> str:
    """Return a table of the chosen options, the number of trials and the options at an end of their grid."""
    body = []
    for row in (row for row in rows if row["chosen"]):
        count = sum((other["set"], other["method"]) == (row["set"], row["method"]) for other in rows)
        rest = {key: row[key] for key in row if key not in ("set", "method", "recall", "chosen", "on_edge")}
        options = ", ".join(f"{key} {value}" for key, value in rest.items())
        body.append([row["set"], row["method"], str(count), options, row["on_edge"]])
    return markdown_table(["set", "method", "trials", "chosen", "at an end of its grid"], body)


def categories(rows: list[Row]) -> str:
    """Return a table of the recall of categories in one data set, a line for each method."""
    ranks = [k for k in (1, 3, 10, 20) if any(row["k"] == k for row in rows)]
    columns = [("all", k) for k in ranks] + [("linked", k) for k in ranks if k >= 10 or len(ranks) < 4]
    compared = [k for k in ranks if k <= 10]
    header = ["method", *(f"{'linked: ' if group == 'linked' else ''}@{k}" for group, k in columns)]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {(row["papers"], row["k"]): row for row in rows if row["method"] == method}
        cells = [with_error(of[key]["recall"], of[key]["stderr"], 3) for key in columns]
        main = [of["all", k] for k in compared]
        less = ["" if method == HEADLINE else with_error(row[AHEAD], row[f"{AHEAD}, se"], 4, "+") for row in main]
        body.append([method, *cells, *less])
    return markdown_table([*header, *(f"ahead by, @{k}" for k in compared)], body)
