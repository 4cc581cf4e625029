"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table, with_error

BELIEF = "kernel belief propagation"
AHEAD = f"{BELIEF} less this"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    rows, trials = results["rows"], results["trials"]
    return {
        "lengths": recalls(rows, "length", "edges"),
        "leaves": recalls(rows, "leaves", "observed"),
        "retrieval_trials": budgets(rows, trials),
    }


def recalls(rows: list[Row], tree: str, label: str) -> str:
    """Return a table of recall at 1, and of its differences from the second method to the last, with errors.

    Args:
        rows: the rows of the results.
        tree: length or leaves.
        label: the header of the counts.
    """
    body = []
    for row in (row for row in rows if row["tree"] == tree):
        cells = [row["regime"], str(row["count"]), row["method"]]
        cells += [with_error(row[key], row[error], 3) for key, error in (("recall@1", "se@1"), ("recall@5", "se@5"))]
        less = "" if row["method"] == BELIEF else with_error(row[AHEAD], row[f"{AHEAD}, se"], 3, "+")
        body.append([*cells, less])
    return markdown_table(["pairs", label, "method", "@1", "@5", "KBP less this, @1"], body)


def budgets(rows: list[Row], trials: list[Row]) -> str:
    """Return a table of trials per search, and of how many searches ended at an end of a grid, by method."""
    body = []
    for method in dict.fromkeys(row["method"] for row in trials):
        mine = [row for row in trials if row["method"] == method]
        searches = {tuple(row[key] for key in ("regime", "tree", "count", "split")) for row in mine}
        edges = [row["options on an edge"] for row in rows if row["method"] == method]
        body.append([method, f"{len(mine) / len(searches):.1f}", str(len(searches)), f"{sum(edges) / len(edges):.2f}"])
    return markdown_table(["method", "trials a search", "searches", "options at an end of their grid, a search"], body)
