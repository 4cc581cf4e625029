"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table, or_blank, with_error


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    rows = results["rows"]
    return {"learned": learned(rows), "levers": levers(rows), "transfer": transfer(rows)}


def tables_of_photographs(results: Results) -> dict[str, str]:
    """Return the tables of the photographs by the name of their place in the pages."""
    rows = results["rows"]
    return {"photographs": photographs(rows), "photograph_options": options(rows)}


def photographs(rows: list[Row]) -> str:
    """Return a table of methods by noise level, with means over the test pictures and standard errors."""
    body, differences = [], {"ahead": "kernel BP", "ahead with BM3D": "kernel BP with BM3D"}
    for row in (row for row in rows if row["study"] == "summary"):
        cells = [f"{row['sigma']:g}", row["method"], with_error(row["rmse"], row["rmse_se"], 2)]
        for key, ours in differences.items():
            known = key in row and row["method"] != ours
            cells.append(with_error(row[key], row[f"{key}, se"], 2, "+") if known else "")
        body.append([*cells, *(or_blank(row.get(key), ".2f") for key in ("crps", "cover90", "run_s", "learn_s"))])
    header = ["noise", "method", "RMSE", *(f"{ours} less this" for ours in differences.values())]
    return markdown_table([*header, "CRPS", "coverage", "run s", "learn s"], body)


def options(rows: list[Row]) -> str:
    """Return a table of what was chosen on the pictures to learn from."""
    body = []
    for row in (row for row in rows if row["study"] == "options"):
        where = {"study", "sigma", "method", "at the edge"}
        chosen = {key: value for key, value in row.items() if key not in where and value is not None}
        shown = (
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in chosen.items()
        )
        trials = [
            r for r in rows if r["study"] == "trial" and (r["sigma"], r["method"]) == (row["sigma"], row["method"])
        ]
        edge = row.get("at the edge") or ""
        body.append([f"{row['sigma']:g}", row["method"], str(len(trials)), ", ".join(shown), edge])
    return markdown_table(["noise", "method", "trials", "chosen", "at the edge of its grid"], body)


def learned(rows: list[Row]) -> str:
    """Return a table of the comparison of denoisers: RMSE of the posterior mean, in brackets seconds an image."""
    mine = [row for row in rows if row["study"] == "sunset"]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    body = []
    for image in dict.fromkeys(row["image"] for row in mine):
        found = {row["method"]: row for row in mine if row["image"] == image}
        best = min(row["rmse_mean"] for row in found.values())
        cells = [image.removeprefix("sunset ")]
        for method in methods:
            row = found[method]
            error = f"{row['rmse_mean']:.2f}"
            cells.append((f"**{error}**" if row["rmse_mean"] == best else error) + f" ({row['run_s']:.2g})")
        body.append([*cells, f"{found['learned']['cover90']:.2f}", f"{found['learned']['learn_s']:.0f}"])
    return markdown_table(["image", *methods, "learned: coverage", "learned: s to learn"], body)


def levers(rows: list[Row]) -> str:
    """Return a table of what each group of learned numbers is worth."""
    mine = [row for row in rows if row["study"] == "levers"]
    body = [
        [("+ " if i else "") + row["method"], *(f"{row[key]:.2f}" for key in ("rmse_mean", "rmse_mode", "cover90"))]
        for i, row in enumerate(mine)
    ]
    return markdown_table(["learned", "RMSE of the mean", "of the mode", "coverage"], body)


def transfer(rows: list[Row]) -> str:
    """Return a table of what one image teaches for others."""
    mine = [row for row in rows if row["study"] == "transfer"]
    methods = list(dict.fromkeys(row["method"] for row in mine))
    body = []
    for image in dict.fromkeys(row["image"] for row in mine):
        found = {row["method"]: row["rmse_mean"] for row in mine if row["image"] == image}
        body.append([image, *(f"{found[method]:.2f}" for method in methods)])
    return markdown_table(["tested on", *methods], body)
