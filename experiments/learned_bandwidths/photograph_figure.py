"""The figure of the photographs: some test pictures with standard deviations, and reliability."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from kbpjax.plotting import plot_reliability

METHODS = ("kernel BP, no messages", "kernel BP", "kernel BP with BM3D, no messages", "kernel BP with BM3D")
PICTURES = 3


def draw(shown: dict[float, dict[str, Any]]) -> Any:
    """Draw pictures of the middle noise level, and a reliability diagram for each level."""
    from matplotlib.figure import Figure

    sigmas = sorted(shown)
    figure = Figure(figsize=(15, 13), layout="constrained")
    panels: Any = figure.subfigures(2, 1, height_ratios=[3, 1.3])
    level = shown[sigmas[len(sigmas) // 2]]
    chosen = np.linspace(0, len(level["names"]) - 1, PICTURES).round().astype(int)
    for line, i in zip(panels[0].subplots(PICTURES, 5, squeeze=False), chosen, strict=True):
        _draw_picture(panels[0], line, level, int(i))
    for axis, sigma in zip(panels[1].subplots(1, len(sigmas), squeeze=False)[0], sigmas, strict=True):
        _draw_reliability(axis, shown[sigma])
        axis.set_title(f"reliability on the test pictures, noise {sigma:g}")
    return figure


def _draw_picture(figure: Any, line: Any, level: dict[str, Any], i: int) -> None:
    ours = [method for method in METHODS if method in level][-1]
    clean, copy, answer = level["pictures"][i], level["copies"][i], level[ours][i]
    smoother = "BM3D" if "BM3D" in ours else "non-local means, h = 0.6 sigma"
    images = {"clean": clean, "noisy": copy.noisy, smoother: copy.smoothed}
    images |= {ours: answer.mean, f"{ours}, deviation": answer.deviation}
    for axis, (name, image) in zip(line, images.items(), strict=True):
        spread = name.endswith("deviation")
        span = {"cmap": "magma", "vmin": 0} if spread else {"cmap": "gray", "vmin": 0, "vmax": 255}
        shade = axis.imshow(image, interpolation="nearest", **span)
        error = "" if spread or name == "clean" else f", RMSE {np.sqrt(np.mean((image - clean) ** 2)):.1f}"
        axis.set_title(f"{level['names'][i]}:\n{name}{error}", fontsize=9)
        axis.set_axis_off()
        if spread:
            figure.colorbar(shade, ax=axis, shrink=0.6, label="gray levels")


def _draw_reliability(axis: Any, level: dict[str, Any]) -> None:
    for method in (one for one in METHODS if one in level):
        answers = level[method]
        belief = kbp.Belief(answers[0].belief.points, jnp.concatenate([one.belief.weights for one in answers]))
        pairs = zip(answers, level["pictures"], strict=True)
        plot_reliability(belief, np.concatenate([one.residual(clean) for one, clean in pairs]), label=method, ax=axis)
