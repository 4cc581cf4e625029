"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"loops": loops(results["rows"]), "fixed": fixed(results["fixed_points"])}


def loops(rows: list[Row]) -> str:
    """Return a table of iterations to the tolerance, by method and problem.

    Where a run did not reach the tolerance, its last residual is in brackets.
    """
    problems = list(dict.fromkeys((row["problem"], row["setting"]) for row in rows))
    found = {(row["method"], row["problem"], row["setting"]): row for row in rows}

    def cell(row: dict) -> str:
        return f"{row['iters_to_tol']}" if row["iters_to_tol"] else f"({row['last_residual']:.1g})"

    body = [
        [method, *(cell(found[method, *problem]) for problem in problems)]
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    names = [name if setting == "graphs" else f"{name.removeprefix('sunset ')} {setting}" for name, setting in problems]
    return markdown_table(["method", *names], body)


def fixed(rows: list[Row]) -> str:
    """Return a table of the fixed points of the sunset images."""
    ways = ("synchronous", "colored", "colored, Anderson")
    header = ["levels", "setting", "ranks", *(f"{way}: iterations (s)" for way in ways), "mode", "mean"]
    body = []
    for row in rows:
        cells = [row["problem"].removeprefix("sunset "), row["setting"], f"{row['rank']}, {row['points']}"]
        cells += [f"{row[f'{way}: iters']} ({row[f'{way}: s']:.2f})" for way in ways]
        cells += [f"{row['rmse_mode']:.1f}", f"{row['rmse_mean']:.1f}"]
        cells += [f"{row['starts_differ_by']:.0e}", f"{row['bp_residual']:.1f}"]
        body.append([*cells, f"{row['constrained: iters']}, {row['constrained: rmse_mode']:.1f}"])
    return markdown_table([*header, "starts differ by", "plain: residual", "constrained: iterations, mode"], body)
