"""Tables of this experiment in the documentation."""

from experiments.imputation.methods import OURS
from experiments.lib.markdown import Results, Row, markdown_table


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the name of their place in the pages."""
    return {"imputation": scores(results["rows"])}


def scores(rows: list[Row]) -> str:
    """Return a line for each set and pattern: ours, the best other method of one row at a time, and coverage."""
    head = ["table", "hidden", "CRPS", "best other", "its CRPS", "ratio", "in 90 %", "energy", "best other energy", "s"]
    body = []
    for key in dict.fromkeys((row["set"], row["pattern"]) for row in rows):
        of = {row["method"]: row for row in rows if (row["set"], row["pattern"]) == key}
        for suffix in ("", ", three rows"):
            ours = of.get(OURS + suffix)
            others = {
                k: v for k, v in of.items() if not k.startswith(OURS) and k.endswith("three rows") == bool(suffix)
            }
            if ours is None or not others:
                continue
            best = min(others, key=lambda name: others[name]["crps"])
            energies = [row["energy"] for row in others.values() if row["energy"] is not None]
            number = lambda x: "" if x is None else f"{x:.3f}"
            line = [
                key[0] + suffix,
                key[1],
                number(ours["crps"]),
                best.removesuffix(suffix),
                number(others[best]["crps"]),
            ]
            line += [f"{ours['crps'] / others[best]['crps']:.2f}", number(ours["coverage_90"]), number(ours["energy"])]
            body.append([*line, number(min(energies, default=None)), f"{ours['seconds']:.0f}"])
    return markdown_table(head, body)
