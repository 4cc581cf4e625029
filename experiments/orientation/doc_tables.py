"""Tables of this experiment in the documentation."""

from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"orientation": orientation(results["rows"])}


def orientation(rows: list[Row]) -> str:
    """Return a table of the errors of the camera's orientation, a line for each method."""
    header = ["method", "ambiguous frames", "behind by", "median", "under 10 degrees", "clear frames", "median"]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {row["frames"]: row for row in rows if row["method"] == method}
        hard, clear = of["ambiguous"], of["clear"]
        behind = f"{hard['ours_ahead']:+.1f} ± {hard['ours_ahead_stderr']:.1f}" if body else ""
        body.append([method, f"{hard['degrees']:.1f} ± {hard['stderr']:.1f}", behind, f"{hard['median']:.1f}"])
        body[-1] += [
            f"{hard['below10']:.0%}",
            f"{clear['degrees']:.1f} ± {clear['stderr']:.1f}",
            f"{clear['median']:.1f}",
        ]
    return markdown_table(header, body)
