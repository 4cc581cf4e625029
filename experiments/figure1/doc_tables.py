"""Tables of this experiment in the documentation."""

import numpy as np

from experiments.lib.markdown import Results, Row, markdown_table, with_error

OURS = ("kernel BP", "kernel BP, true likelihood")


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    rows = results["rows"]
    both = [(image, setting) for image in ("whole", "part") for setting in ("paper", "tuned")]
    return {f"{image}_{setting}": figure1(rows, image, setting) for image, setting in both}


def figure1(rows: list[Row], image: str, setting: str) -> str:
    """Return a table of methods by gray levels: RMSE, seconds per image in brackets.

    In bold: smaller than all others by more than two standard errors of the difference.

    The last columns are the mean differences of the RMSE over noisy images, from the best of the other methods.
    """
    mine = [row for row in rows if (row["image"], row["setting"]) == (image, setting)]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    body = []
    for levels in dict.fromkeys(row["levels"] for row in mine):
        found = {row["method"]: row for row in mine if row["levels"] == levels}
        first, second = sorted(found.values(), key=lambda row: row["rmse"])[:2]
        gain, deviation = ahead(first, second)
        cells = [f"{levels}"]
        for method in methods:
            row = found[method]
            error = f"**{row['rmse']:.2f}**" if row is first and gain > 2 * deviation else f"{row['rmse']:.2f}"
            cells.append(f"{error} ({row['run_s']:.2g})")
        other = min((row for name, row in found.items() if name not in OURS), key=lambda row: row["rmse"])
        body.append([*cells, *(with_error(*ahead(found[name], other), 2, "+") for name in OURS)])
    return markdown_table(["levels", *methods, *(f"{name}, ahead by" for name in OURS)], body)


def ahead(ours: Row, other: Row) -> tuple[float, float]:
    """Return the mean and standard error, over noisy images, of the RMSE of another method minus ours."""
    a, b = (np.array(row["errors"].split(), float) for row in (ours, other))
    gain = b - a
    return float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(len(gain)))
