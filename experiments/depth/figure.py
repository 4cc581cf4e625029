"""The figure of the depth experiment: an image of each set, its depth, predictions and uncertainty, and errors."""

from typing import Any

import numpy as np


def draw(rows: list[dict[str, Any]], pictures: dict[str, Any]) -> Any:
    """Draw a row of pictures and a bar chart for each set.

    Args:
        rows: scores of all sets and methods.
        pictures: {set: (problem, {method: (answers [scene, 3, row, column], seconds, scenes)}, the method to draw)}.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 3.6 * len(pictures)), layout="constrained")
    axes = np.atleast_2d(figure.subplots(len(pictures), 6, width_ratios=(1, 1, 1, 1, 1, 1.6)))
    for line, (name, (problem, found, ours)) in zip(axes, pictures.items(), strict=True):
        _pictures(figure, line[:5], name, problem, found, ours)
        _bars(line[5], [row for row in rows if row["set"] == name])
    return figure


def _pictures(figure: Any, axes: Any, name: str, problem: Any, found: dict[str, Any], ours: str) -> None:
    """Draw image, truth, a regression, the graph's answer and the width of its interval, of the middle test scene."""
    plain = "boosting" if "boosting" in ours else "second stage"
    place = len(problem.test) // 2
    scene = problem.test[place]
    truth = problem.log_depth[scene]
    estimates = found[ours][0][place]
    axes[0].imshow(problem.scenes.images[scene])
    axes[0].set(title=name)
    limits = {"vmin": np.nanmin(truth), "vmax": np.nanmax(truth), "cmap": "viridis"}
    maps = {"measured": truth, plain: found[plain][0][place, 0], ours: estimates[0]}
    shown = [ax.imshow(values, **limits) for ax, values in zip(axes[1:4], maps.values(), strict=True)]
    figure.colorbar(shown[0], ax=axes[3], label="log10 metres", shrink=0.8)
    for ax, title in zip(axes[1:4], maps, strict=True):
        ax.set(title=title)
    width = axes[4].imshow(estimates[2] - estimates[1], cmap="magma", vmin=0)
    axes[4].set(title="width of the 90 % interval")
    figure.colorbar(width, ax=axes[4], shrink=0.8)
    for ax in axes:
        ax.set(xticks=[], yticks=[])


def _bars(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the errors of all methods that answer whole scenes."""
    most = max(row["scenes"] for row in rows)
    whole = [row for row in rows if row["scenes"] == most][::-1]
    colors = ["#0072B2" if "kernel" in row["method"] and "alone" not in row["method"] else "0.7" for row in whole]
    names = [row["method"] for row in whole]
    ax.barh(names, [row["mae"] for row in whole], xerr=[row["se"] or 0 for row in whole], color=colors)
    ax.set(xlabel="mean absolute error of log10 depth")
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="x", alpha=0.3)
