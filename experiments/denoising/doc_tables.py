"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"denoising": denoising(results["rows"])}


def denoising(rows: list[Row]) -> str:
    """Return a table of the rows of the denoising experiment, the settings side by side."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    columns = ["mode", "mean", "coverage", "iterations"]
    body = []
    for image in dict.fromkeys(row["image"] for row in rows):
        cells = [image]
        for setting in settings:
            (row,) = (row for row in rows if row["image"] == image and row["setting"] == setting)
            cells += [f"{row['rmse_mode']:.1f}", f"{row['rmse_mean']:.1f}", f"{row['cover90']:.2f}"]
            cells.append(f"{row['iterations']}" + ("" if row["converged"] else "*"))
        body.append(cells)
    return markdown_table(["image", *(f"{name}: {key}" for name in settings for key in columns)], body)
