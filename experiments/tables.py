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
