"""Tables of the experiments on real data, for the pages that `experiments.readme` writes."""

from typing import Any

Row = dict[str, Any]


def depth(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay the errors of depth out, a line for each method; returns header and body."""
    ours = {"on ridge": "kernel BP on ridge", "on boosting": "kernel BP on boosting"}
    header = ["method", "MAE of log10 depth", "relative error", "cover of 90 %", "s an image"]
    header += [f"kernel BP {on} ahead by" for on in ours]
    body = []
    for row in rows:
        whole = row["scenes"] == rows[0]["scenes"]
        name = row["method"] if whole else f"{row['method']} ({row['scenes']} images, {row['cells_each']} patches each)"
        cells = [name, _with_error(row["mae"], row["se"], 4), f"{row['relative']:.3f}"]
        cells += [_or_blank(row["cover"], ".2f"), _or_blank(row["answer_s"], ".2g")]
        for theirs in ours.values():
            gain = row.get(f"{theirs} less this")
            shown = gain is not None and row["method"] != theirs
            cells.append(_with_error(-(gain or 0), row[f"{theirs} less this, se"], 4, "+") if shown else "")
        body.append(cells)
    return header, body


def protein(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay the accuracy of angles of proteins out, a line for each method: window by window, then more of the widest."""
    rows = [row for row in rows if row["study"] == "summary"]
    widths = list(dict.fromkeys(row["window"] for row in rows))
    header = ["method", *(text for width in widths for text in (f"window {width}", "kernel BP ahead by"))]
    formats = {"cosine_mode": ".3f", "coverage": ".2f", "theta": ".1f", "tau": ".1f", "fit_s": ".1f", "run_s": ".2g"}
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {row["window"]: row for row in rows if row["method"] == method}
        cells = [method]
        for width in widths:
            row = of[width]
            shown = row["gain"] != 0 and "part" not in method
            cells.append(_with_error(row["cosine"], row["se"], 3))
            cells.append(_with_error(row["gain"], row["gain_se"], 3, "+") if shown else "")
        body.append(cells + [_or_blank(of[widths[-1]].get(key), shape) for key, shape in formats.items()])
    return [*header, "mode", "cover", "theta", "tau", "fit s", "run s"], body


def categories(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay the recall of categories in one data set out, a line for each method."""
    ranks = [k for k in (1, 3, 10, 20) if any(row["k"] == k for row in rows)]
    columns = [("all", k) for k in ranks] + [("linked", k) for k in ranks if k >= 10 or len(ranks) < 4]
    body = []
    for method in dict.fromkeys(row["method"] for row in rows):
        of = {(row["papers"], row["k"]): row for row in rows if row["method"] == method}
        body.append([method, *(_with_error(of[key]["recall"], of[key]["stderr"], 3) for key in columns)])
    return ["method", *(f"{'linked: ' if group == 'linked' else ''}@{k}" for group, k in columns)], body


def _with_error(value: float, error: float | None, digits: int, sign: str = "") -> str:
    text = f"{value:{sign}.{digits}f}"
    return text if error is None else f"{text} ± {error:.{digits}f}"


def _or_blank(value: float | None, shape: str) -> str:
    return "" if value is None else format(value, shape)


def kjit_batch(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay log KL of learned messages out, a line for each method, range of sweeps and variable."""
    header = ["method", "to", "sweeps", "mean", "sd", "5 %", "median", "95 %", "99 %", "published mean (sd)"]
    body = []
    for row in _of(rows, "batch", "method"):
        published = row["published_mean"]
        theirs = "" if published is None else f"{published:.2f} ({row['published_sd']:.2f})"
        cells = [_or_blank(row[key], ".2f") for key in ("mean", "sd", "q5", "median", "q95", "q99")]
        body.append([row["method"], row["to"], row["sweeps"], *cells, theirs])
    return header, body


def kjit_uncertainty(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay the uncertainty of learned messages out, a line for each method and range of sweeps."""
    header = ["method", "sweeps", "Spearman", "mean log KL by quartile of uncertainty", "step: line, parabola"]
    body = []
    for row in _of(rows, "uncertainty", "method"):
        quartiles = ", ".join(f"{row[f'quartile_{i}']:.1f}" for i in (1, 2, 3, 4))
        steps, rises = (f"{row[f'{key}_line']:.2f}, {row[f'{key}_parabola']:.2f}" for key in ("step", "rise"))
        cells = [row["method"], row["sweeps"], f"{row['spearman']:.2f}", quartiles, steps]
        body.append([*cells, f"{row['line_above']:.0%}", rises])
    return [*header, "line above parabola", "rise: line, parabola"], body


def kjit_online(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay the streams of logistic regressions out, a line for each kind of targets, oracle and precision."""
    header = ["targets", "oracle", "bits", "problems", "questions: all", "1st, 2nd, 5th, 10th, 30th", "error"]
    header += ["of exact EP", "largest gap", "KL: median, most", "ms a message", "sure of all", "asks and learns"]
    body = []
    for row in (row for row in _of(rows, "online", "study") if row["study"] == "summary"):
        queries = ", ".join(str(row[f"queries_{i}"]) for i in (1, 2, 5, 10, 30) if row.get(f"queries_{i}") is not None)
        cells = [row["targets"], row["oracle"], f"{row['bits']}", f"{row['problems']}", f"{row['queries']}", queries]
        cells += [f"{row[key]:.4f}" for key in ("error", "exact_error", "largest_gap")]
        cells.append(f"{row['kl_median']:.2g}, {row['kl_max']:.2g}")
        times = (row.get(key) for key in ("ms_a_message", "predict_ms", "predict_and_update_ms"))
        body.append([*cells, *(_or_blank(value, ".2g") for value in times)])
    for row in (row for row in _of(rows, "online", "study") if row["study"] == "oracle"):
        cells = ["no operator", row["oracle"], f"{row['bits']}", "", *[""] * (len(header) - 7)]
        body.append([*cells, f"{row['ms_a_message']:.2g}", "", ""])
    return header, body


def kjit_gamma(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay the stream of precisions with a compound gamma prior out, beside the published numbers."""
    mine = [row for row in _of(rows, "gamma", "study") if row["study"] != "time"]
    header = ["", "questions", "correlation of log shapes", "of log rates", "log KL: 5, 50, 95, 99 %", "ms a problem"]
    body = []
    for i, row in enumerate(mine):
        quantiles = ", ".join(f"{row[key]:.1f}" for key in ("q5", "median", "q95", "q99"))
        correlations = [f"{row[f'correlation_{name}']:.7f}" for name in ("shape", "rate")]
        body.append([f"stream {i + 1}", f"{row['queries']}", *correlations, quantiles, f"{row['ms']:.2g}"])
    theirs = ["published", f"{mine[0]['published_queries']}", "1", f"{mine[0]['published_correlation_rate']:.6f}"]
    return header, [*body, [*theirs, "", "8"]]


def kjit_real(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay the real sets out, a line for each set and kind of targets."""
    header = ["set", "targets", "exact EP wrong", "KJIT wrong", "questions", "KL to exact EP", "published: exact, KJIT"]
    body = []
    for row in _of(rows, "real", "set"):
        published = f"{row['published_exact']:.4f}, {row['published_kjit']:.4f}"
        wrong = [f"{row[key]}/{row['test']} ({row[key] / row['test']:.4f})" for key in ("exact_wrong", "wrong")]
        queries = f"{row['queries']} of {row['messages']}"
        body.append([row["set"], row["targets"], *wrong, queries, f"{row['kl']:.2g}", published])
    return header, body


def kjit_bands(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Lay out what was expected, and whether it was met."""
    body = []
    for row in _of(rows, "bands", "what"):
        ends = [_or_blank(row[key], "g") for key in ("least", "most")]
        expected = " to ".join(ends) if all(ends) else f">= {ends[0]}" if ends[0] else f"<= {ends[1]}"
        body.append([row["of"], row["what"], f"{row['value']:.4g}", expected, "met" if row["met"] else "missed"])
    return ["part", "number", "ours", "expected", ""], body


def _of(rows: list[Row], part: str, key: str) -> list[Row]:
    """Return the rows of a part that have a key."""
    return [row for row in rows if row["part"] == part and key in row]
