"""The figure of `experiments.learned_bandwidths`."""

from typing import Any

import numpy as np

COLORS = {
    "authors' bandwidths": "#999999",
    "leave-one-out": "#56B4E9",
    "learned": "#D55E00",
    **{"total variation": "#CC79A7", "non-local means": "#009E73", "BM3D": "#000000"},
}


def draw(rows: list[dict], pictures: dict[str, Any]) -> Any:
    """Draw RMSE over gray levels, what each lever is worth, transfer, and pictures."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 8), layout="constrained")
    panels: Any = figure.subfigures(2, 1, height_ratios=[3, 2])
    above, below = panels
    left, middle, right = above.subplots(1, 3, width_ratios=[3, 2, 2])
    _draw_levels(left, [row for row in rows if row["study"] == "sunset"])
    _draw_bars(middle, [row for row in rows if row["study"] == "levers"])
    _draw_transfer(right, [row for row in rows if row["study"] == "transfer"])
    shown = ["noisy", "authors' bandwidths", "learned", "learned, deviation", "BM3D"]
    axes = below.subplots(len(pictures), len(shown), squeeze=False)
    for line, (subject, images) in zip(axes, pictures.items(), strict=True):
        for axis, name in zip(line, shown, strict=True):
            _draw_picture(below, axis, subject, name, images)
    return figure


def _draw_picture(figure: Any, axis: Any, subject: str, name: str, images: dict[str, np.ndarray]) -> None:
    axis.set_axis_off()
    if name not in images:
        axis.text(0.5, 0.5, f"no {name}", ha="center")
        return
    spread = name.endswith("deviation")
    span = {"cmap": "magma", "vmin": 0} if spread else {"cmap": "gray", "vmin": 0, "vmax": 255}
    shade = axis.imshow(images[name], interpolation="nearest", **span)
    error = np.sqrt(np.mean((images[name] - images["clean"]) ** 2))
    axis.set_title(f"{subject}:\n{name}" + ("" if spread else f", RMSE {error:.1f}"), fontsize=9)
    if spread:
        figure.colorbar(shade, ax=axis, shrink=0.6, label="gray levels")


def _draw_levels(axis: Any, rows: list[dict]) -> None:
    for method, color in COLORS.items():
        mine = [row for row in rows if row["method"] == method]
        if mine:
            counts = [int(row["image"].split()[-1]) for row in mine]
            axis.plot(counts, [row["rmse_mean"] for row in mine], "o-", color=color, label=method)
    axis.set(xlabel="gray levels of the sunset image", ylabel="RMSE (gray values of 0 .. 255)", ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, ncols=2, loc=(0.35, 0.48))


def _draw_bars(axis: Any, rows: list[dict]) -> None:
    names = [("" if i == 0 else "+ ") + row["method"] for i, row in enumerate(rows)]
    errors = [row["rmse_mean"] for row in rows]
    axis.barh(range(len(rows)), errors, color="#E69F00")
    for i, (name, error) in enumerate(zip(names, errors, strict=True)):
        axis.text(0.05, i, f"{name}: {error:.2f}", va="center", fontsize=9)
    axis.invert_yaxis()
    axis.set(xlabel="RMSE after learning", yticks=[], title=rows[0]["image"] if rows else "")


def _draw_transfer(axis: Any, rows: list[dict]) -> None:
    images, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("image", "method"))
    for i, method in enumerate(methods):
        errors = [row["rmse_mean"] for row in rows if row["method"] == method]
        color = COLORS.get(method, COLORS["learned"])
        axis.bar(np.arange(len(images)) + 0.2 * i, errors, 0.2, color=color, label=method)
    axis.set_xticks(
        np.arange(len(images)) + 0.3, [image.replace(" turned", "\nturned") for image in images], fontsize=8
    )
    axis.set(xlabel="tested on", ylabel="RMSE", title="transfer", ylim=(0, 8))
    axis.legend(fontsize=8)
