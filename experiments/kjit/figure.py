"""The figures of the experiment on just-in-time learning of messages, one for each part."""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.kjit.config import Row
from experiments.kjit.uncertainty import PLACES

BLUE, ORANGE, GREEN, PURPLE, SKY, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "0.55"
"""Colors that color-blind readers can tell apart (Okabe and Ito)."""
COLORS = {"KJIT, relative": BLUE, "KJIT, absolute": ORANGE, "extra trees, absolute": GREEN}
COLORS |= {"Breiman forest, absolute": PURPLE, "the incoming message": GREY}
OF_TARGETS = {"relative": BLUE, "absolute": ORANGE}
STYLES = {("quadrature", 64): "-", ("quadrature", 32): ":", ("importance sampling", 64): "--"}


def _figure(width: float, panels: int, ratios: tuple[float, ...] | None = None) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.2), layout="constrained")
    return figure, np.ravel(figure.subplots(1, panels, width_ratios=ratios))


def _finish(ax: Any, **labels: Any) -> None:
    ax.set(**labels)
    ax.grid(alpha=0.3)


def batch(rows: list[Row], found: dict[tuple[str, str], np.ndarray]) -> Any:
    """Draw histograms of log KL, and the means of all methods with the published ones."""
    figure, (left, right) = _figure(14, 2, (1, 1.1))
    for method, color in COLORS.items():
        values = found["all", method]
        left.hist(
            values[np.isfinite(values)], np.arange(-32, 3, 0.5), histtype="step", color=color, lw=1.6, label=method
        )
    left.legend(fontsize=8, loc="upper left")
    _finish(left, xlabel="log KL(exact belief || predicted belief)", ylabel="test messages", title="messages to z")
    mine = [row for row in rows if row.get("to") == "z" and row["sweeps"] == "all" and row["mean"] is not None]
    mine.sort(key=lambda row: row["mean"], reverse=True)
    places = np.arange(len(mine))
    colors = [BLUE if "KJIT" in row["method"] else "0.75" for row in mine]
    right.barh(places, [row["mean"] for row in mine], xerr=[row["sd"] for row in mine], color=colors, ecolor="0.4")
    theirs = [(place, row["published_mean"]) for place, row in zip(places, mine) if row["published_mean"] is not None]
    if theirs:
        right.plot(*np.array(theirs)[:, ::-1].T, "D", color=ORANGE, ms=5, label="published")
        right.legend(fontsize=8, loc="lower left")
    right.set(yticks=places, yticklabels=[row["method"] for row in mine])
    right.tick_params(axis="y", labelsize=8)
    _finish(right, xlabel="mean log KL and standard deviation (less is better)")
    return figure


def uncertainty(rows: list[Row], found: dict[str, Any]) -> Any:
    """Draw log variance against log KL of KJIT, and the uncertainty along the two curves."""
    del rows
    figure, axes = _figure(16, 4)
    unsure, errors, _ = found["KJIT, absolute"]
    axes[0].plot(unsure, errors, ".", color=ORANGE, ms=2, alpha=0.4)
    _finish(axes[0], xlabel="log predictive variance", ylabel="log KL", title="KJIT, absolute, test messages")
    shown = ("KJIT, absolute", "Breiman forest, absolute", "extra trees, absolute")
    for ax, method in zip(axes[1:], shown, strict=True):
        for (name, values), color in zip(found[method][2].items(), (BLUE, ORANGE), strict=True):
            ax.plot(PLACES, values, color=color, lw=1, label=name)
        _finish(ax, xlabel="mean of the incoming message", title=method, ylabel="log variance")
        ax.legend(fontsize=8)
    return figure


def online(rows: list[Row], found: dict[Any, list[np.ndarray]]) -> Any:
    """Draw queries, log variances, errors and times of the streams."""
    figure, axes = _figure(18, 4)
    for (targets, oracle, bits), variances in found.items():
        style = {"color": OF_TARGETS[targets], "ls": STYLES[oracle, bits], "label": f"{targets}, {oracle}, {bits} bits"}
        wanted = {"study": "problem", "targets": targets, "oracle": oracle, "bits": bits}
        mine = [row for row in rows if wanted.items() <= row.items()]
        axes[0].plot(np.arange(1, len(mine) + 1), np.cumsum([row["queries"] for row in mine]), **style)
        errors = ([row[key] for row in mine] for key in ("exact_error", "error"))
        face = style["color"] if oracle == "quadrature" else "none"
        axes[2].plot(*errors, "o", ms=4, color=style["color"], mfc=face)
        axes[3].plot(np.arange(1, len(mine) + 1), [row["ms"] / row["messages"] for row in mine], **style)
        if (oracle, bits) == ("quadrature", 64):
            _log_variances(axes[1], np.concatenate(variances), OF_TARGETS[targets], targets)
    axes[1].axhline(-8.5, color="k", lw=1, ls="--", label="threshold")
    ends = axes[2].get_xlim()
    axes[2].plot(ends, ends, color="k", lw=0.8)
    _finish(axes[0], xlabel="problem", ylabel="questions to the oracle so far")
    _finish(axes[1], xlabel="message", ylabel="log predictive variance", title="median and 99 % of 300 messages")
    _finish(axes[2], xlabel="error of exact EP", ylabel="error of KJIT", title="disagreement with the true weights")
    _finish(axes[3], xlabel="problem", ylabel="ms a message", yscale="log")
    for ax in axes[:2]:
        ax.legend(fontsize=7)
    return figure


def _log_variances(ax: Any, values: np.ndarray, color: str, label: str) -> None:
    """Draw quantiles of groups of 300 messages."""
    whole = values[: len(values) // 300 * 300].reshape(-1, 300)
    whole = whole[np.isfinite(whole).all(axis=1)]
    places = 300 * (np.arange(len(whole)) + 1.5)
    ax.plot(places, np.median(whole, axis=1), color=color, label=label)
    ax.plot(places, np.percentile(whole, 99, axis=1), color=color, lw=0.7, alpha=0.7)


def gamma(rows: list[Row], found: dict[str, np.ndarray]) -> Any:
    """Draw posterior shapes and rates of KJIT against the exact ones, and log KL."""
    del rows
    figure, axes = _figure(15, 4)
    for ax, name in zip(axes, ("shape", "rate"), strict=False):
        truth, guess = found[f"exact_{name}"], found[f"kjit_{name}"]
        ax.plot(truth, guess, ".", color=BLUE, ms=3)
        ax.plot([truth.min(), truth.max()], [truth.min(), truth.max()], color="k", lw=0.8)
        _finish(ax, xlabel=f"log {name}, exact", ylabel=f"log {name}, KJIT", title="posteriors without a question")
    axes[2].hist(found["log_kl"], 40, color=SKY)
    _finish(axes[2], xlabel="log KL(exact posterior || KJIT posterior)", ylabel="problems")
    asked = np.cumsum(found["asked"])
    axes[3].plot(np.arange(1, len(asked) + 1), asked, color=BLUE)
    _finish(axes[3], xlabel="problem", ylabel="questions to the oracle so far")
    return figure


def real(rows: list[Row], found: Any) -> Any:
    """Draw errors, queries and divergences of the real sets."""
    del found
    rows = [row for row in rows if "set" in row]
    figure, axes = _figure(15, 3)
    sets = list(dict.fromkeys(row["set"] for row in rows))
    places = np.arange(len(sets))
    of = {(row["set"], row["targets"]): row for row in rows}
    some = [of[name, "relative"] for name in sets]
    axes[0].bar(places - 0.27, [row["exact_wrong"] / row["test"] for row in some], 0.25, color=GREY, label="exact EP")
    axes[0].plot(places - 0.27, [row["published_exact"] for row in some], "kD", ms=4, label="published, Infer.NET")
    for shift, (targets, color) in zip((0, 0.27), OF_TARGETS.items(), strict=True):
        mine = [of[name, targets] for name in sets]
        label = f"KJIT, {targets}"
        axes[0].bar(places + shift, [row["wrong"] / row["test"] for row in mine], 0.25, color=color, label=label)
        axes[1].bar(places + shift, [row["queries"] for row in mine], 0.25, color=color, label=label)
        axes[2].bar(places + shift, [row["kl"] for row in mine], 0.25, color=color, label=label)
    axes[2].set_yscale("log")
    titles = ("test error", "questions to the oracle", "KL(exact posterior || KJIT posterior)")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(xticks=places, xticklabels=[name.replace("_", "\n") for name in sets])
        _finish(ax, ylabel=title, xlabel="set, in the order of the stream")
        ax.legend(fontsize=8)
    return figure


DRAW: dict[str, Callable[[list[Row], Any], Any]] = {
    "batch": batch,
    "uncertainty": uncertainty,
    "online": online,
    "gamma": gamma,
    "real": real,
}
