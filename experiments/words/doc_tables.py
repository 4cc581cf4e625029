"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"words": words(results["rows"])}


def words(rows: list[Row]) -> str:
    """Return a table of recall at 1 and 5 over all target languages, a line for each number of observed languages."""
    rows = [row for row in rows if row["target"] == "all"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    body = []
    for count in dict.fromkeys(row["observed"] for row in rows):
        of = {row["method"]: row for row in rows if row["observed"] == count}
        body.append([str(count), *(f"{of[m]['recall@1']:.2f}, {of[m]['recall@5']:.2f}" for m in methods)])
    return markdown_table(["observed", *methods], body)
