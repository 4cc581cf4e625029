"""What messages add, and how kernel belief propagation compares with the best baseline: a table with a line for each
measurement (docs/comparisons.md), and one for each task in percent (README.md).

All numbers are from the committed results. Our variant of a line is the one that its experiment is about, and the
baseline is the best of that experiment on the test data, which favors the baseline. A number is bold only if it is
ahead by more than two standard errors of the difference.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from experiments.lib.results import standard_error

Row = dict[str, Any]
IMPUTER, ROWS = "GraphImputer", ", three rows"


class Score(NamedTuple):
    """A measured value with its standard error, None where the results have none."""

    value: float
    error: float | None = None


class Line(NamedTuple):
    """One task of the table.

    Attributes:
        task: the first column.
        page: the page that describes it.
        measure: what is measured.
        less: whether less is better.
        shape: the format of a value.
        without: the same evidence without messages, None where it was not measured.
        ours: kernel belief propagation.
        baseline: name of the best baseline.
        best: its score.
        ahead: how far ours is ahead of it, positive is better; its error is that of the difference.
        messages: how far ours is ahead of `without`; None where that was not measured.
        family: the line of the short table that it belongs to.
    """

    task: str
    page: str
    measure: str
    less: bool
    shape: str
    without: Score | None
    ours: Score
    baseline: str
    best: Score
    ahead: Score
    messages: Score | None = None
    family: str = ""


def lines(results: dict[str, list[Row]]) -> list[Line]:
    """Return the lines of all measurements. `results`: the rows of each experiment by its name."""
    return [
        *_series(results["series"]),
        *_rotations(results["orientation"]),
        *_tables(results["imputation"]),
        *_proteins(results["protein"]),
        *_translations(results["retrieval"]),
        *_citations(results["categories"]),
        *_depth(results["depth"]),
        *_photographs(results["photographs"]),
    ]


def summary(results: dict[str, list[Row]]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the long table. `results`: as for `lines`."""
    header = ["task", "measure", "without messages", "kernel BP", "best baseline", "messages add", "ahead by"]
    return header, [_cells(line) for line in lines(results)]


def short(results: dict[str, list[Row]]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the short table: a line for each family, in percent of its baselines' scores.

    A percentage is the mean over all measurements of a family, with the error of independent ones; where these have no
    errors, it is the standard error over the measurements.
    """
    header = ["task", "measure, times", "best baseline", "messages add, %", "ahead by, %"]
    families: dict[str, list[Line]] = {}
    for line in lines(results):
        families.setdefault(line.family, []).append(line)
    rows = []
    for family, mine in families.items():
        gap = _percent([(line.ahead, line.best) for line in mine])
        added = [(line.messages, line.without) for line in mine if line.messages and line.without]
        best = list(dict.fromkeys(line.baseline.removesuffix(ROWS) for line in mine))
        measures = dict.fromkeys(line.measure.partition(" at ")[0] for line in mine)
        bold = "**" if gap.error is not None and abs(gap.value) > 2 * gap.error else ""
        rows.append(
            [
                f"[{family}]({mine[0].page})",
                f"{', '.join(measures)}, {len(mine)}",
                ", ".join(best) if len(best) < 3 else "best each time",
                _signed(_percent(added)) if added else "",
                f"{bold}{_signed(gap)}{bold}",
            ]
        )
    return header, rows


def _percent(pairs: list[tuple[Score, Score]]) -> Score:
    """Return the mean of differences in percent of scores."""
    values = [100 * gap.value / of.value for gap, of in pairs]
    errors = [100 * gap.error / of.value for gap, of in pairs if gap.error is not None]
    error = math.hypot(*errors) / len(pairs) if len(errors) == len(pairs) else standard_error(np.array(values))
    return Score(sum(values) / len(values), error)


def _signed(score: Score) -> str:
    digits = 1 if score.error is None or score.error >= 0.1 else 2
    return f"{score.value:+.{digits}f}" + ("" if score.error is None else f" ± {score.error:.{digits}f}")


def _cells(line: Line) -> list[str]:
    show = lambda score, sign="": (
        f"{score.value:{sign}{line.shape}}" + ("" if score.error is None else f" ± {score.error:{line.shape}}")
    )
    gap = line.ahead
    clear = gap.error is not None and abs(gap.value) > 2 * gap.error
    bold = lambda text, wins: f"**{text}**" if clear and wins else text
    return [
        f"[{line.task}]({line.page.removeprefix('docs/')})",  # on a page of docs
        f"{line.measure} {'↓' if line.less else '↑'}",
        "" if line.without is None else show(line.without),
        bold(show(line.ours), gap.value > 0),
        f"{bold(show(line.best), gap.value < 0)} {line.baseline}",
        "" if line.messages is None else show(line.messages, "+"),
        show(gap, "+"),
    ]


def _line(
    rows: list[Row],
    columns: tuple[str, str | None],
    ours: str,
    without: str | None,
    baselines: list[str],
    ahead: tuple[str, str, int] | None = None,
    **words: Any,
) -> Line:
    """Return the line of some rows, of which there is one for each method.

    Args:
        rows: the rows.
        columns: names of the column of the value and of that of its error, None where there is none.
        ours: our method.
        without: the method without messages, if there is one.
        baselines: methods of which the best is shown.
        ahead: names of the columns of the paired difference from ours and of its error, and 1 or -1 where positive is
            better or worse for ours; None takes the difference of the values, with the error of independent ones.
        words: the other attributes of the line.
    """
    value, error = columns
    of = {row["method"]: row for row in rows}
    scores = {name: Score(row[value], row[error] if error else None) for name, row in of.items()}
    best = (min if words["less"] else max)(baselines, key=lambda name: scores[name].value)
    messages = None
    if ahead is not None:
        difference, its_error, sign = ahead
        paired = lambda name: Score(sign * of[name][difference], of[name][its_error])
        gap = paired(best)
        messages = paired(without) if without else None
    else:
        sign = -1 if words["less"] else 1
        errors = (scores[ours].error, scores[best].error)
        both = math.hypot(*(e or 0 for e in errors)) if error else None
        gap = Score(sign * (scores[ours].value - scores[best].value), both)
    known = scores[without] if without else None
    measured = {"without": known, "ours": scores[ours], "baseline": best, "best": scores[best], "ahead": gap}
    return Line(**measured, messages=messages, **words)


def _series(rows: list[Row]) -> list[Line]:
    """Systems of which neither the steps nor the sensor are given; the smoother."""
    words: Row = {"page": "docs/time_series.md", "measure": "CRPS", "less": True, "shape": ".3f"}
    words |= {"family": "smoothing series (simulated)"}
    found = []
    for row in rows:
        if row["task"] != "smooth" or "alone" not in row:
            continue
        best = min(("Kalman", "forest on windows"), key=row.__getitem__)
        words["task"] = f"smoothing series, {row['system']} (simulated)"
        scores = {"without": Score(row["alone"]), "ours": Score(row["crps"]), "best": Score(row[best])}
        gaps = {"ahead": Score(row["ahead"], row["ahead, se"])}
        gaps["messages"] = Score(row["messages add"], row["messages add, se"])
        found.append(Line(baseline=best, **scores, **gaps, **words))
    return found


def _tables(rows: list[Row]) -> list[Line]:
    """Tables with cells hidden on purpose; CRPS relative to draws from the column, averaged over columns."""
    words: Row = {"page": "docs/tables.md", "measure": "CRPS", "less": True, "shape": ".3f"}
    words |= {"family": "tables with holes"}
    found = []
    for place in dict.fromkeys((row["set"], row["pattern"], row["method"].endswith(ROWS)) for row in rows):
        mine = [row for row in rows if (row["set"], row["pattern"], row["method"].endswith(ROWS)) == place]
        others = [row["method"] for row in mine if not row["method"].startswith(IMPUTER)]
        words["task"] = f"holes of a table, {place[0]}{ROWS * place[2]}, {place[1]}"
        found.append(_line(mine, ("crps", None), IMPUTER + ROWS * place[2], None, others, **words))
    return found


def _citations(rows: list[Row]) -> list[Line]:
    ours = "KBP on label spreading"
    sets = {"acmv9": ("ACM, 5 areas", (1, 3)), "cora_hierarchical": ("Cora, 81 topics", (1, 3, 10))}
    sets["citeulike_t"] = ("CiteULike, 367 tags", (1, 3, 10))
    ahead = (f"{ours} less this", f"{ours} less this, se", 1)
    present = {row["set"] for row in rows}
    lines = []
    for name, (text, ranks) in ((name, of) for name, of in sets.items() if name in present):
        for k in ranks:
            mine = [row for row in rows if (row["set"], row["papers"], row["k"]) == (name, "all", k)]
            others = [row["method"] for row in mine if not row["method"].startswith("KBP")]
            words: Row = {"task": f"topics of papers, {text}", "page": "docs/papers.md", "measure": f"recall at {k}"}
            words |= {"less": False, "shape": ".4f", "family": "topics of papers"}
            lines.append(_line(mine, ("recall", "stderr"), ours, f"{ours}, no links", others, ahead, **words))
    return lines


def _translations(rows: list[Row]) -> list[Line]:
    ours = "kernel belief propagation"
    ahead = (f"{ours} less this", f"{ours} less this, se", 1)
    leaves = [row for row in rows if row["tree"] == "leaves"]
    most = max(row["count"] for row in leaves)
    words: Row = {"page": "docs/structured.md", "measure": "recall at 1", "less": False, "shape": ".3f"}
    words |= {"family": "translated documents"}
    lines = []
    for regime in dict.fromkeys(row["regime"] for row in leaves):
        mine = [row for row in leaves if (row["regime"], row["count"]) == (regime, most)]
        others = [row["method"] for row in mine if row["method"] not in (ours, "direct pairs")]
        words["task"] = f"translations, {most} leaves, {regime} pairs"
        lines.append(_line(mine, ("recall@1", "se@1"), ours, None, others, ahead, **words))
    return lines


def _proteins(rows: list[Row]) -> list[Line]:
    rows = [row for row in rows if row["study"] == "summary"]
    residues = max(row["residues"] for row in rows)  # methods on a part of the residues do not compare
    rows = [row for row in rows if row["residues"] == residues]
    windows = sorted({row["window"] for row in rows})
    words: Row = {"page": "docs/protein.md", "measure": "mean cosine", "less": False, "shape": ".3f"}
    words |= {"family": "backbone angles of proteins"}
    lines = []
    for window in windows:
        mine = [row for row in rows if row["window"] == window]
        others = [row["method"] for row in mine if not row["method"].startswith("kernel BP")]
        words["task"] = f"backbone angles of proteins, window of {window}"
        ours, ahead = "kernel BP on the network", ("gain", "gain_se", 1)
        lines.append(_line(mine, ("cosine", "se"), ours, f"{ours}, no chain", others, ahead, **words))
    return lines


def _depth(rows: list[Row]) -> list[Line]:
    ahead = ("gain", "gain_se", 1)
    words: Row = {"page": "docs/depth.md", "measure": "error of log10 depth", "less": True, "shape": ".4f"}
    words |= {"family": "depth from one image"}
    lines = []
    for place in ("kitchen", "tabletop", "street"):
        mine = [row for row in rows if row["set"] == place]
        ours = next(row["method"] for row in mine if "gain" not in row)  # all others are compared with the headline
        whole = max((row["scenes"], row["cells_each"]) for row in mine)  # samplers ran on a part of the images
        mine = [row for row in mine if (row["scenes"], row["cells_each"]) == whole]
        others = [row["method"] for row in mine if not row["method"].startswith("kernel BP")]
        words["task"] = f"depth from one image, {place}"
        lines.append(_line(mine, ("mae", "se"), ours, f"{ours}, patches alone", others, ahead, **words))
    return lines


def _rotations(rows: list[Row]) -> list[Line]:
    mine = [row for row in rows if row["frames"] == "ambiguous"]
    others = [row["method"] for row in mine if not row["method"].startswith("kernel BP")]
    ours, ahead = "kernel BP, trace", ("ours_ahead", "ours_ahead_stderr", 1)
    words: Row = {"task": "rotations of a camera (simulated)", "page": "docs/structured.md", "measure": "degrees"}
    words |= {"less": True, "shape": ".1f", "family": "directions of a camera (simulated)"}
    return [_line(mine, ("degrees", "stderr"), ours, f"{ours}, no chain", others, ahead, **words)]


def _photographs(rows: list[Row]) -> list[Line]:
    """Return the lines of evidence from two denoisers, and from these and BM3D."""
    words: Row = {"page": "docs/learning.md", "measure": "RMSE in gray levels", "less": True, "shape": ".2f"}
    rows = [row for row in rows if row["study"] == "summary"]
    kinds = {
        "kernel BP": ("ahead", ""),
        "kernel BP with BM3D": ("ahead with BM3D", ", BM3D in the evidence"),
    }
    lines = []
    for ours, (key, also) in kinds.items():
        words |= {"family": f"photographs, noise added{also}"}
        for sigma in dict.fromkeys(row["sigma"] for row in rows):
            mine = [row for row in rows if row["sigma"] == sigma]
            others = [row["method"] for row in mine if not row["method"].startswith("kernel BP")]
            words |= {"task": f"ten photographs, noise of {sigma:g} added{also}"}
            without, ahead = f"{ours}, no messages", (key, f"{key}, se", -1)
            lines.append(_line(mine, ("rmse", "rmse_se"), ours, without, others, ahead, **words))
    return lines
