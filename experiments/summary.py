"""The table of the README: kernel belief propagation beside its rivals, a line for each task.

All numbers are from the committed results. The first method of a line is ours: the variant that its experiment is
about, chosen before and not for being the best on the test. Rivals are at their best settings.
"""

from typing import Any, NamedTuple

Row = dict[str, Any]


class Line(NamedTuple):
    """One task: where it is described, what is measured, whether less is better, how it is shown, and all results."""

    task: str
    page: str
    measure: str
    less: bool
    shape: str
    found: dict[str, float]


def summary(results: dict[str, list[Row]]) -> tuple[list[str], list[list[str]]]:
    """Lay the tasks out; the best of each line is bold. `results`: the rows of each experiment by its name."""
    tasks = [*_images(results), *_real(results), *_structured(results), *_messages(results)]
    body = []
    for line in tasks:
        best = min(line.found.values()) if line.less else max(line.found.values())
        cells = [
            (f"**{value:{line.shape}}** {name}" if value == best else f"{value:{line.shape}} {name}").strip()
            for name, value in line.found.items()
        ]
        arrow = "↓" if line.less else "↑"
        others = cells[1:] + [""] * (3 - len(cells[1:]))
        body.append([f"[{line.task}]({line.page})", f"{line.measure} {arrow}", cells[0], *others])
    return ["task", "measure", "kernel belief propagation", "rivals", "", ""], body


def _images(results: dict[str, list[Row]]) -> list[Line]:
    rows, page = results["learned_bandwidths"], "docs/learning.md"
    names = {"learned": "bandwidths learned", "BM3D": "BM3D", "non-local means": "", "total variation": ""}
    lines = []
    for task, study in (("cleaning a known kind of picture", "sunset"), ("a photograph", "photograph")):
        found = {text or name: _mean(rows, "rmse_mean", study=study, method=name) for name, text in names.items()}
        lines.append(Line(task, page, "RMSE in grey levels", True, ".2f", found))
    mine = {"image": "whole", "setting": "tuned"}
    names = {"kernel BP": "searched", "discrete BP": "discrete BP, told the noise", "Gaussian BP": "Gaussian BP, too"}
    found = {text: _mean(results["figure1"], "rmse", method=name, **mine) for name, text in names.items()}
    return [
        *lines,
        Line("the same among kinds of BP", "docs/competitors.md", "RMSE in grey levels", True, ".1f", found),
    ]


def _real(results: dict[str, list[Row]]) -> list[Line]:
    page, lines = "docs/real_data.md", []
    names = {
        "kernel BP on boosting": "on boosting",
        "discrete BP on boosting": "discrete BP on it",
        "boosting": "boosting",
    }
    for place in ("kitchen", "tabletop", "street"):
        found = {text: _mean(results["depth"], "mae", set=place, method=name) for name, text in names.items()}
        lines.append(Line(f"depth of one image, {place}", page, "error of log10 depth", True, ".4f", found))
    rows = [row for row in results["protein"] if row["study"] == "summary"]
    widest = max(row["window"] for row in rows)
    names = {
        "kernel BP": "",
        "boosting": "boosting",
        "kernel regression": "kernel regression",
        "particle BP": "particle BP",
    }
    found = {text: _mean(rows, "cosine", window=widest, method=name) for name, text in names.items()}
    lines.append(Line("backbone angles of proteins", page, "mean cosine", False, ".3f", found))
    names = {"KBP, one category": "", "ridge regression and neighbours": "ridge regression and neighbours"}
    names |= {"nearest texts and neighbours": "nearest texts and neighbours"}
    for name, text, k in (("citeulike_t", "CiteULike", 10), ("cora_hierarchical", "Cora", 10), ("acmv9", "ACM", 1)):
        mine = {"set": name, "papers": "all", "k": k}
        found = {
            short: _mean(results["categories"], "recall", method=method, **mine) for method, short in names.items()
        }
        lines.append(Line(f"categories of papers, {text}", page, f"recall at {k}", False, ".3f", found))
    return lines


def _structured(results: dict[str, list[Row]]) -> list[Line]:
    page = "docs/structured.md"
    names = {"kernel BP, trace": "", "neighbours, forward-backward": "discretised, forward-backward"}
    names |= {"regression": "regression, frame by frame"}
    found = {text: _mean(results["orientation"], "degrees", frames="ambiguous", method=m) for m, text in names.items()}
    lines = [Line("rotations of a camera", page, "degrees", True, ".1f", found)]
    mine = {"regime": "apart 150", "tree": "leaves", "count": 4}
    names = {"kernel belief propagation": "", "centred ridge": "centred ridge", "ridge": "ridge"}
    found = {text: _mean(results["retrieval"], "recall@1", method=name, **mine) for name, text in names.items()}
    lines.append(Line("translations through a tree of languages", page, "recall at 1", False, ".2f", found))
    names = {"kernel belief propagation": "", "edit distance, best": "edit distance, best"}
    found = {
        text: _mean(results["words"], "recall@1", target="all", observed=12, method=m) for m, text in names.items()
    }
    return [*lines, Line("words from 12 related languages", page, "recall at 1", False, ".2f", found)]


def _messages(results: dict[str, list[Row]]) -> list[Line]:
    rows = [row for row in results["kjit"] if row["part"] == "batch" and "method" in row]
    names = {
        "KJIT, relative": "KJIT",
        "extra trees, relative": "extra trees",
        "Breiman forest, relative": "random forest",
    }
    found = {text: _mean(rows, "mean", to="z", sweeps="all", method=name) for name, text in names.items()}
    page = "docs/expectation_propagation.md"
    return [Line("messages of expectation propagation", page, "log KL divergence", True, ".1f", found)]


def _mean(rows: list[Row], key: str, **chosen: Any) -> float:
    values = [row[key] for row in rows if all(row.get(name) == value for name, value in chosen.items())]
    if not values:
        raise ValueError(f"no result has {chosen}")
    return sum(values) / len(values)
