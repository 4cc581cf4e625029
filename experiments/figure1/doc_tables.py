"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    rows = results["rows"]
    both = [(image, setting) for image in ("whole", "part") for setting in ("paper", "tuned")]
    return {f"{image}_{setting}": figure1(rows, image, setting) for image, setting in both}


def figure1(rows: list[Row], image: str, setting: str) -> str:
    """Return a table of methods by gray levels: RMSE, seconds per image in brackets, the smallest error in bold."""
    mine = [row for row in rows if (row["image"], row["setting"]) == (image, setting)]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    body = []
    for levels in dict.fromkeys(row["levels"] for row in mine):
        found = {row["method"]: row for row in mine if row["levels"] == levels}
        best = min(row["rmse"] for row in found.values())
        cells = [f"{levels}"]
        for method in methods:
            row = found[method]
            error = f"**{row['rmse']:.1f}**" if row["rmse"] == best else f"{row['rmse']:.1f}"
            cells.append(f"{error} ({row['run_s']:.2g})")
        body.append(cells)
    return markdown_table(["levels", *methods], body)
