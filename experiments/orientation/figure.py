"""The figure of `experiments.orientation`."""

from typing import Any

import numpy as np

from experiments.orientation import rendering
from experiments.orientation.rendering import degrees_between

SHOWN = ("", "regression", "nearest neighbor")
"""Methods in the panel of errors over time; the first is kernel belief propagation."""

COLORS = ("#D55E00", "#0072B2", "#009E73")
STRIP = 14
"""Frames in the strip."""


def paint(rows: list[dict], found: dict[str, Any], test: Any) -> Any:
    """Draw room and path, frames, errors and beliefs over time of one trajectory, and mean errors of all.

    The trajectory is that with the most ambiguous frames of the first test set.

    Args:
        rows: the records of all methods.
        found: {method: its `Estimates` to the first test set}.
        test: the first test set, `Frames`.
    """
    from matplotlib.figure import Figure

    number = int(np.argmax(test.ambiguous.sum(axis=1)))
    main = next(name for name in found if found[name].yaw)
    figure = Figure(figsize=(15, 13), layout="constrained")
    layout: Any = [
        ["room", "bars"],
        ["strip", "strip"],
        ["errors", "errors"],
        ["no chain", "no chain"],
        ["chain", "chain"],
    ]
    axes = figure.subplot_mosaic(layout, height_ratios=[4, 1.1, 2.6, 2.2, 2.2], width_ratios=[5, 4])
    _draw_room(axes["room"], test.rotations[number])
    _draw_bars(axes["bars"], rows)
    _draw_strip(axes["strip"], test.pixels[number], test.ambiguous[number])
    _draw_errors(axes["errors"], found, main, test, number)
    truth = _yaw(test.rotations[number])
    for kind, panel in ((", no chain", "no chain"), ("", "chain")):
        title = f"{main}: belief over the yaw, " + ("from all frames" if not kind else "from each frame alone")
        _draw_belief(axes[panel], found[main].yaw[kind][number], truth, title)
    axes["chain"].set_xlabel("frame")
    return figure


def paint_beliefs(found: dict[str, Any], test: Any) -> Any:
    """Draw the frames of one trajectory and the beliefs about the yaw: from single frames, and from all frames.

    Args:
        found: {method: its `Estimates` to the first test set}.
        test: the first test set, `Frames`.
    """
    from matplotlib.figure import Figure

    number = int(np.argmax(test.ambiguous.sum(axis=1)))
    yaw = next(estimates.yaw for estimates in found.values() if estimates.yaw)
    truth = _yaw(test.rotations[number])
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    strip, no_edges, together = figure.subplots(3, 1, height_ratios=[1, 2.4, 2.4])
    _draw_strip(strip, test.pixels[number], test.ambiguous[number])
    strip.set_title("what is observed: 16 x 12 noisy pixels; bold: only the walls that look alike are in view")
    _draw_belief(no_edges, yaw[", no chain"][number], truth, "without messages: belief given the frame itself")
    _draw_belief(together, yaw[""][number], truth, "with messages along the chain: belief given all frames")
    together.set_xlabel("frame")
    return figure


def _yaw(rotations: np.ndarray) -> np.ndarray:
    """Return the direction in which cameras look, in degrees from -180 to 180."""
    return np.rad2deg(np.arctan2(rotations[:, 1, 0], rotations[:, 0, 0]))


def _draw_room(axis: Any, rotations: np.ndarray) -> None:
    axis.imshow(rendering.Room.of_photographs().unfolded(720), cmap="gray", extent=(180, -180, -90, 90), alpha=0.8)
    yaw, pitch = _yaw(rotations), np.rad2deg(np.arcsin(np.clip(rotations[:, 2, 0], -1, 1)))
    shade = axis.scatter(yaw, pitch, c=np.arange(len(yaw)), s=14, cmap="autumn")
    axis.figure.colorbar(shade, ax=axis, label="frame", shrink=0.8, location="right", pad=0.01)
    axis.set(xlabel="yaw (degrees; to the left)", ylabel="pitch (degrees)", xticks=range(-180, 181, 90))
    axis.set_title("the room, and where the camera looks on one test trajectory", fontsize=11)


def _draw_bars(axis: Any, rows: list[dict]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for offset, subset, color in ((-0.2, "ambiguous", "#D55E00"), (0.2, "clear", "#56B4E9")):
        mine = {row["method"]: row for row in rows if row["frames"] == subset}
        errors, spreads = ([mine[name][key] for name in methods] for key in ("degrees", "stderr"))
        places = np.arange(len(methods)) + offset
        axis.barh(places, errors, 0.38, xerr=spreads, color=color, label=f"{subset} frames", capsize=2)
        for place, error, spread in zip(places, errors, spreads, strict=True):
            axis.text((error + spread) * 1.06, place, f"{error:.1f}", va="center", fontsize=8)
    axis.set(
        yticks=range(len(methods)), yticklabels=methods, xscale="log", xlim=(1, 300), ylim=(len(methods) - 0.4, -2.2)
    )
    axis.set_xlabel("mean error in degrees, with one standard error over trajectories")
    axis.legend(fontsize=9, loc="upper right", ncols=2)
    axis.grid(alpha=0.3, axis="x")


def _draw_strip(axis: Any, pixels: np.ndarray, ambiguous: np.ndarray) -> None:
    camera = rendering.Camera()
    height, width = camera.height, camera.width
    numbers = np.linspace(0, len(pixels) - 1, STRIP).round().astype(int)
    for place, number in enumerate(numbers):
        left = place * (width + 2)
        frame = pixels[number].reshape(height, width)
        axis.imshow(frame, cmap="gray", vmin=0, vmax=255, extent=(left, left + width, 0, height))
        note = {"color": "#D55E00", "weight": "bold"} if ambiguous[number] else {}
        axis.text(left + width / 2, height + 1, f"{number}", ha="center", fontsize=9, **note)
    axis.set(xlim=(-1, STRIP * (width + 2) - 1), ylim=(-0.5, height + 5))
    axis.set_axis_off()
    axis.set_title("frames as they are observed (number in bold: ambiguous)", fontsize=11)


def _draw_errors(axis: Any, found: dict[str, Any], main: str, test: Any, number: int) -> None:
    truth, ambiguous = test.rotations[number], test.ambiguous[number]
    for start in np.flatnonzero(ambiguous):
        axis.axvspan(start - 0.5, start + 0.5, color="#D55E00", alpha=0.15, linewidth=0)
    for name, color in zip([main, *SHOWN[1:]], COLORS, strict=True):
        errors = degrees_between(found[name].rotations[""][number], truth)
        axis.plot(errors, "o-", markersize=3, linewidth=1.2, color=color, label=name)
    ticks = (1, 3, 10, 30, 90, 180)
    axis.set(yscale="log", ylim=(0.2, 900), yticks=ticks, yticklabels=ticks, xlim=(-0.5, len(truth) - 0.5))
    axis.minorticks_off()
    axis.set_ylabel("error in degrees")
    axis.set_title("error over time (shaded: ambiguous frames)", fontsize=11)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9, ncols=3, loc="upper left")


def _draw_belief(axis: Any, belief: np.ndarray, truth: np.ndarray, title: str) -> None:
    """Draw beliefs over the yaw [frame, bin], bins from -180 degrees on, with the two like walls inside the axis."""
    quarter = belief.shape[1] // 4
    # The square root shows faint beliefs too.
    axis.imshow(
        np.roll(belief, -quarter, axis=1).T ** 0.5,
        origin="lower",
        aspect="auto",
        extent=(-0.5, len(belief) - 0.5, -90, 270),
        cmap="Blues",
        vmin=0,
        interpolation="nearest",
    )
    axis.plot((truth + 90) % 360 - 90, ".", color="#D55E00", markersize=4, label="truth")
    axis.set(ylabel="yaw (degrees)", yticks=range(-90, 271, 90))
    axis.set_title(title, fontsize=11)
    axis.legend(fontsize=9, loc="upper right")
