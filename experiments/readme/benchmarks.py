"""Tables of the benchmarks."""

import math
from typing import Any

from experiments.lib.markdown import Row, markdown_table, or_blank


def propagate(rows: list[Row]) -> str:
    """Return a table of the rows of the benchmark of message passing."""
    header = ["ranks", "first call s", "loop s", "products s", "loop / products"]
    keys = ("first_call_s", "loop_s", "last_s")
    body = [
        [f"{row['rank']}, {row['points']}", *(f"{row[key]:.3f}" for key in keys), f"{row['loop/last']:.2f}"]
        for row in rows
    ]
    return markdown_table(header, body)


def first_call(rows: list[Row]) -> str:
    """Return a table of the rows of the benchmark of first calls."""
    header = ["problem", "first call s", "programs", "with a cache s", "ratio", "again s", "programs"]
    body = [
        [
            row["problem"],
            f"{row['cold_s']:.1f}",
            f"{row['programs']:.0f}",
            f"{row['cached_s']:.1f}",
            f"{row['cached / cold']:.2f}",
            f"{row['again_s']:.1f}",
            f"{row['again_programs']:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(header, body)


def pack(rows: list[Row]) -> str:
    """Return a table of the rows of the benchmark of many small graphs."""
    header = ["graphs", "packed", "again", "other graphs", "programs", "loop", "shapes", "loop / packed"]
    body = [
        [
            f"{row['graphs']:,} {row['kind']}".replace("with", "graphs with"),
            f"{row['first_s']:.1f}",
            f"{row['again_s']:.2f}",
            row["other_s"],
            row["other_programs"],
            f"{row['loop_s']:,.0f}",
            f"{row['different']:,}",
            f"{row['loop / packed']:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(header, body)


def scale(rows: list[Row]) -> str:
    """Return a table of the rows of the benchmark of sizes and kinds of graphs."""
    header = ["case", "messages", "build s", "ns a message", "loop / products", "to grid", "peak GiB"]
    body = [
        [row["case"], f"{row['messages']:,}", f"{row['build_s']:.2g}", f"{row['ns_per_message']:.0f}"]
        + [f"{row[key]:.2f}" for key in ("loop/bare", "to grid", "peak_gib")]
        for row in rows
        if row["case"] not in ("discrete", "fit")
    ]
    return markdown_table(header, body)


def expect(rows: list[Row]) -> str:
    """Return a table of estimates for large graphs, from time and memory per message on the largest grid."""
    grids = [row for row in rows if row["case"].startswith("grid")]
    seconds = grids[-1]["ns_per_message"] / 1e9
    held = 2**30 * (grids[-1]["peak_gib"] - grids[0]["peak_gib"]) / (grids[-1]["messages"] - grids[0]["messages"])
    body = [
        [f"{count:.0e}".replace("e+", "e"), _amount(held * count / 2**30, "GiB"), _amount(30 * seconds * count, "s")]
        for count in (1e6, 1e8, 1e10)
    ]
    return markdown_table(["messages", f"memory ({held:.0f} bytes each)", "30 iterations, two cores"], body)


def streaming(rows: list[Row]) -> str:
    """Return a table of the rows of the benchmark of learning out of core."""
    header = ["pairs", "fit s", "microseconds a pair", "fit / products", "peak GiB"]
    keys = ("fit_s", "us_per_pair", "fit/products", "peak_gib")
    body = [[f"{row['pairs']:,}", *(f"{row[key]:.2g}" for key in keys)] for row in rows]
    return markdown_table(header, body)


def fit(rows: list[Row]) -> str:
    """Return a table of the rows of the benchmark of fit."""
    header = ["pairs", "rank", "first fit s", "fit s", "peak GiB", "3 x features + 1 GiB"]
    body = [
        [
            f"{row['pairs']:,}",
            f"{row['rank']}",
            *(f"{row[key]:.2g}" for key in ("fit_s", "again_s")),
            *(f"{row[key]:.2f}" for key in ("peak_gib", "bound_gib")),
        ]
        for row in rows
    ]
    return markdown_table(header, body)


def tables_of_states(rows: list[Row]) -> str:
    """Return a table of the benchmark of discrete belief propagation."""
    header = ["states", "run s", "dense s", "run / dense", "peak GiB", "max-product s"]
    header += ["PGMax s", "its set-up s", "its peak GiB"]
    keys = ("run_s", "dense_s", "run/dense", "peak_gib", "max_product_s")
    keys += ("pgmax_run_s", "pgmax_build_s", "pgmax_peak_gib")
    body = [[f"{row['states']}", *("" if row.get(key) is None else f"{row[key]:.2f}" for key in keys)] for row in rows]
    return markdown_table(header, body)


def gradients(rows: list[Row]) -> str:
    """Return a table of memory and time of gradients."""
    header = ["model", "iterations", "run MiB", "gradient MiB", "gradient / run", "kept, in messages", "time / run"]
    body = []
    for row in rows:
        cells = [row["model"], row["iterations"], *(f"{row[key]:.0f}" for key in ("run_mib", "gradient_mib"))]
        cells += [f"{row['gradient / run']:.2f}", "" if row["kept"] is None else f"{row['kept']:.1f}"]
        body.append([*cells, f"{row['gradient_s / run_s']:.1f}"])
    return markdown_table(header, body)


def trees(rows: list[Row]) -> str:
    """Return a table of the rows of the benchmark of exact trees."""
    header = ["tree", "nodes", "levels", "build s", "run_tree s", "one iteration of run s"]
    keys = ("build_s", "run_tree_s", "iteration_s")
    body = [
        [row["tree"], f"{row['nodes']:,}", f"{row['levels']:,}", *(f"{row[key]:.2g}" for key in keys)] for row in rows
    ]
    return markdown_table(header, body)


def first_try(rows: list[Row]) -> str:
    """Return a table of beliefs of one call each of `fit` and `infer`."""
    header = ["problem", "nodes", "edges", "error", "CRPS", "in 50 %", "in 90 %", "converged", "fit s", "infer s"]
    shapes = {"error": "#.3g", "crps": "#.3g", "coverage_50": ".2f", "coverage_90": ".2f", "converged": ".0%"}
    shapes |= {"fit_s": ".0f", "infer_s": ".0f"}
    body = [
        [row["problem"], *(or_blank(row.get(key), ",") for key in ("nodes", "edges"))]
        + [or_blank(row.get(key), shape) for key, shape in shapes.items()]
        for row in rows
    ]
    return markdown_table(header, body)


def first_try_compared(rows: list[Row]) -> str:
    """Return a table of errors and CRPS of other methods on the same problems, and their ratios."""
    header = ["problem", "error", "best baseline", "exact", "hand-tuned", "/ baseline", "/ exact", "/ hand-tuned"]
    header += ["CRPS", "baseline", "/ baseline", "exact", "hand-tuned"]
    body = []
    for row in rows:
        number = lambda key, row=row: or_blank(row.get(key), "#.3g")
        ratios = [or_blank(row.get(f"error/{other}"), ".2f") for other in ("baseline", "exact", "tuned")]
        crps = [
            number("crps"),
            number("baseline_crps"),
            or_blank(_ratio(row), ".2f"),
            number("exact_crps"),
            number("tuned_crps"),
        ]
        best = f"{number('baseline_error')} {row.get('baseline') or ''}".strip()
        errors = [number("error"), best, number("exact_error"), number("tuned_error")]
        body.append([row["problem"], *errors, *ratios, *crps])
    return markdown_table(header, body)


def first_try_summary(rows: list[Row]) -> str:
    """Return the geometric mean of the ratios of CRPS to those of the best baselines, and the worst three."""
    ratios = {row["problem"]: ratio for row in rows if (ratio := _ratio(row)) is not None}
    if not ratios:
        return "No problem has a baseline.\n"
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = sorted(ratios.items(), key=lambda item: -item[1])[:3]
    behind = sum(ratio > 1 for ratio in ratios.values())
    return (
        f"CRPS over that of the best baseline: geometric mean {mean:.3f} over {len(ratios)} rows, above 1 on {behind}. "
        f"Worst: {', '.join(f'{name} {ratio:.2f}' for name, ratio in worst)}.\n"
    )


def first_try_ablation(rows: list[Row], default: list[Row]) -> str:
    """Return a table of the CRPS of parts of what `fit` learns, over that of the best baseline, and of the default."""
    ways = ("plain", "own margins", "counts", "own relations")
    whole = {row["problem"]: _ratio(row) for row in default}
    body = [
        [row["problem"], *(f"{row[way]:.2f}" for way in ways), or_blank(whole.get(row["problem"]), ".2f")]
        for row in rows
    ]
    return markdown_table(["problem", *ways, "default"], body)


def first_try_efforts(default: list[Row], high: list[Row]) -> str:
    """Return a table of CRPS over that of the best baseline, sets of 90 % and seconds of `fit`, by effort."""
    of_high = {row["problem"]: row for row in high}
    both = [(row, of_high[row["problem"]]) for row in default if row["problem"] in of_high]
    header = ["problem", "default", "high", "default: in 90 %", "high: in 90 %", "default: fit s", "high: fit s"]
    body = [
        [rows[0]["problem"], *(or_blank(_ratio(row), ".2f") for row in rows)]
        + [or_blank(row.get("coverage_90"), ".2f") for row in rows]
        + [or_blank(row.get("fit_s"), ".0f") for row in rows]
        for rows in both
    ]
    ratios = [[_ratio(row) for row in rows] for rows in both]
    means = [math.exp(sum(math.log(one) for one in side if one) / len(side)) for side in zip(*ratios, strict=True)]
    return markdown_table(header, [*body, ["geometric mean", *(f"{mean:.3f}" for mean in means), "", "", "", ""]])


def _ratio(row: Row) -> float | None:
    """Return the CRPS over that of the best baseline."""
    return row["crps"] / row["baseline_crps"] if "crps" in row and row.get("baseline") else None


def potentials_methods(rows: list[Row]) -> str:
    """Return a table of methods by problem: CRPS over that of the best baseline, sets of 90 %, seconds."""
    rows = [row for row in rows if "/ baseline" in row]
    problems = list(dict.fromkeys(row["part"] for row in rows))
    shapes = {"/ baseline": ".2f", "in 90 %": ".2f", "seconds": ".0f"}
    return _side_by_side(rows, "potentials", "part", problems, shapes)


def potentials_sizes(rows: list[Row]) -> str:
    """Return a table of the CRPS of methods by the number of training cases."""
    return _side_by_side(rows, "potentials", "cases", sorted({row["cases"] for row in rows if "cases" in row}))


def potentials_shares(rows: list[Row]) -> str:
    """Return a table of the CRPS of methods by the share of hidden values."""
    rows = [row for row in rows if "hidden" in row]
    return _side_by_side(rows, "potentials", "hidden", list(dict.fromkeys(row["hidden"] for row in rows)))


def joint_graphs(rows: list[Row]) -> str:
    """Return a table of the errors of joint draws on random graphs by the strength of their tables."""
    rows = [row for row in rows if row["part"] == "graphs"]
    strengths = list(dict.fromkeys(row["strength"] for row in rows))
    return _side_by_side(rows, "draws", "strength", strengths, {"pairs": ".3f"})


def joint_wind(rows: list[Row]) -> str:
    """Return a table of the scores of joint draws of hidden stations."""
    rows = [row for row in rows if row["part"] == "wind"]
    body = [[row["draws"], f"{row['energy score']:.3f}", f"{row['largest in 90 %']:.2f}"] for row in rows]
    return markdown_table(["draws", "energy score", "largest in 90 %"], body)


def series_tasks(rows: list[Row]) -> str:
    """Return a table of systems and tasks: CRPS, exact, without messages and of baselines; coverage."""
    names = ["system", "task", "CRPS", "exact", "CRPS / exact", "no messages / exact", "Kalman / exact"]
    names += ["forest / exact", "in 90 %"]
    body = [
        [
            row["system"],
            row["task"],
            f"{row['crps']:.3f}",
            f"{row['exact']:.3f}",
            f"{row['/ exact']:.2f}",
            *(
                or_blank(row[key] / row["exact"] if key in row else None, ".2f")
                for key in ("alone", "Kalman", "forest on windows")
            ),
            f"{row['in 90 %']:.2f}",
        ]
        for row in rows
    ]
    return markdown_table(names, body)


def series_speed(rows: list[Row]) -> str:
    """Return a table of systems: log densities of observations, and the times of filtering."""
    columns = {"rank": ".0f", "log density": ".3f", "exact log density": ".3f", "step_us": ".0f", "many_s": ".2f"}
    titles = ["system", "rank", "log density", "exact", "microseconds of a step", "seconds of 10,000 series"]
    rows = [row for row in rows if "step_us" in row]
    return markdown_table(
        titles, [[row["system"], *(f"{row[key]:{shape}}" for key, shape in columns.items())] for row in rows]
    )


def _side_by_side(
    rows: list[Row], of_line: str, of_column: str, columns: list[Any], shapes: dict[str, str] | None = None
) -> str:
    """Return a table with a line for each value of one key, and columns for those of another."""
    shapes = {"crps": ".3f"} if shapes is None else shapes
    what = {"/ baseline": "", "in 90 %": ", in 90 %", "seconds": ", s", "crps": "", "pairs": ""}
    header = [of_line, *(f"{column}{what[key]}" for column in columns for key in shapes)]
    found = {(row[of_line], row[of_column]): row for row in rows if of_column in row}
    body = [
        [line, *(or_blank(found.get((line, c), {}).get(key), shape) for c in columns for key, shape in shapes.items())]
        for line in dict.fromkeys(line for line, _ in found)
    ]
    return markdown_table(header, body)


def decomposition(rows: list[Row]) -> str:
    """Return a table of the parts of a model of a network, with the scores of each network beside each other."""
    titles = {
        "all pairs": "joint Gaussian of all stations",
        "neighbors": "Gaussian of the graph, maximum likelihood",
        "pairs": "a relation for each edge, learned alone",
        "one relation": "one relation for all edges, a margin for each station",
        "one margin": "one relation and one margin",
    }
    networks = list(dict.fromkeys(row["network"] for row in rows))
    header = ["model"] + [f"{name}: {what}" for name in networks for what in ("error", "CRPS", "/ joint Gaussian")]
    body = []
    for part in dict.fromkeys(row["part"] for row in rows):
        found = {row["network"]: row for row in rows if row["part"] == part}
        cells = [titles.get(part, part)]
        for name in networks:
            row = found.get(name, {})
            cells += [or_blank(row.get(key), shape) for key, shape in SCORES]
        body.append(cells)
    return markdown_table(header, body)


SCORES = (("error", ".3f"), ("crps", ".3f"), ("crps / all", ".2f"))
"""(column, format) of the scores of a network."""


def precision(rows: list[Row]) -> str:
    """Return a table of the errors of gradients in float32, by ridge: of three draws in four, and the largest."""
    problems = [key for key in rows[0] if key != "ridge" and not key.endswith(", largest")]
    percent = lambda share: f"{100 * share:.0f} %" if share > 0.1 else f"{100 * share:.2g} %"
    show = lambda row, name: f"{percent(row[name])} ({percent(row[f'{name}, largest'])})"
    body = [[f"{row['ridge']:.0e}".replace("e-0", "e-"), *(show(row, name) for name in problems)] for row in rows]
    return markdown_table(["ridge", *problems], body)


def field_cases(rows: list[Row]) -> str:
    """Return a table of the answers to questions from the field."""
    header = ["case", "question", "quantity", "found", "right", "asked", "met", "s"]
    body, last = [], ""
    for row in rows:
        name, question = (row["case"], row["question"]) if row["case"] != last else ("", "")
        last = row["case"]
        if "failed" in row:
            body.append([name, question, row["failed"], "", "", "", "no", f"{row['seconds']:.0f}"])
            continue
        numbers = [f"{row[key]:.3g}" for key in ("found", "right")]
        met = "yes" if row["good"] else "no"
        body.append(
            [name, question, row["quantity"], *numbers, row["asked"], met, f"{row['seconds']:.0f}" if name else ""]
        )
    return markdown_table(header, body)


def first_try_failed(rows: list[Row]) -> str:
    """Return a table of what failed or was skipped, and of warnings; a sentence if there is nothing."""
    body = [
        [row["problem"], row.get("failed") or row["warned"]] for row in rows if row.get("failed") or row.get("warned")
    ]
    return markdown_table(["problem", "what happened"], body) if body else "Nothing failed, and nothing warned.\n"


def _amount(number: float, unit: str) -> str:
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
