"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"rules": rules(results["rows"])}


def rules(rows: list[Row]) -> str:
    """Return a table of the rows of the study of update rules on the small image, with multiples of constant time."""
    side = min(row["side"] for row in rows)
    mine = [row for row in rows if row["side"] == side]
    body = []
    for row in mine:
        same = [other for other in mine if other["rule"] == "constant" and other["eps"] == (row["eps"] or 1e-3)]
        name = "full rank" if row["rule"] == "full" else f"{row['rule']} time"
        eps = "" if row["eps"] is None else f"{row['eps']:g}"
        cells = [name, eps, f"{row['rank']}, {row['points']}", f"{row['rmse_mode']:.2f}", f"{row['run_s']:.3g}"]
        body.append([*cells, f"{row['run_s'] / same[0]['run_s']:.0f}"])
    return markdown_table(["rule", "eps", "rank, points", "RMSE of the mode", "run s", "run s / constant"], body)
