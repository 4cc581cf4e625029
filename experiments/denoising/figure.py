"""The figure of the denoising experiment."""

from typing import Any

from experiments.denoising.models import AUTOMATIC_TOL, COVERAGES, TOL

COLORS = ("#009E73", "#0072B2", "#D55E00", "#CC79A7")


def draw(rows: list[dict[str, Any]], pictures: list[dict[str, Any]]) -> Any:
    """Draw one problem (images, uncertainty), coverage and residuals; with several sunsets, RMSE over gray levels."""
    from matplotlib.figure import Figure

    shown = min(range(len(rows)), key=lambda i: (abs(rows[i]["levels"] - 100), rows[i]["setting"] != "convergent"))
    sunsets = [i for i, row in enumerate(rows) if row["image"].startswith("sunset")]
    top = ["train", "clean", "noisy", "mean", "deviation"]
    panels = [*(["rmse"] if len(sunsets) > 1 else []), "cover", "residual"]
    figure = Figure(figsize=(15, 7), layout="constrained")
    rows_of_panels: Any = figure.subfigures(2, 1, height_ratios=[1, 1.1])
    above, below = rows_of_panels
    axes = dict(zip(top, above.subplots(1, len(top)), strict=True))
    axes |= dict(zip(panels, below.subplots(1, len(panels)), strict=True))
    row = rows[shown]
    titles = (
        "learned from (with a noisy copy)",
        f"truth: {row['image']}",
        f"noisy: RMSE {row['noisy']:.1f}",
        f"posterior mean: RMSE {row['rmse_mean']:.1f}",
        "posterior standard deviation",
    )
    for name, title, image in zip(top, titles, pictures[shown]["images"], strict=True):
        span = {"cmap": "viridis", "vmin": 0} if name == "deviation" else {"cmap": "gray", "vmin": 0, "vmax": 255}
        shade = axes[name].imshow(image, interpolation="nearest", **span)
        axes[name].set_title(title, fontsize=11)
        axes[name].set_axis_off()
        if name == "deviation":
            above.colorbar(shade, ax=axes[name], shrink=0.8, label="gray levels")
    for setting, color in zip(dict.fromkeys(row["setting"] for row in rows), COLORS, strict=False):
        mine = [i for i, row in enumerate(rows) if row["setting"] == setting]
        for i in mine:
            label = setting if i == mine[0] else None
            residuals = pictures[i]["residuals"]
            axes["residual"].semilogy(range(1, len(residuals) + 1), residuals, color=color, alpha=0.6, label=label)
            axes["cover"].plot(COVERAGES, pictures[i]["coverages"], "o-", color=color, alpha=0.6, label=label)
        if "rmse" in axes:
            mine = [i for i in mine if i in sunsets]
            for key, style, answer in (("rmse_mode", "o-", "mode"), ("rmse_mean", "s--", "mean")):
                values = [[rows[i][name] for i in mine] for name in ("levels", key)]
                axes["rmse"].plot(*values, style, color=color, markersize=4, label=f"{setting}: {answer}")
    if "rmse" in axes:
        axes["rmse"].set(xlabel="gray levels of the sunset image", ylabel="RMSE (gray levels), lower is better")
        axes["rmse"].set_ylim(bottom=0)
    axes["cover"].plot([0, 1], [0, 1], ":", color="black", label="calibrated")
    axes["cover"].set(
        xlabel="probability of the interval", ylabel="share of pixels inside", xlim=(0, 1), ylim=(0, 1.02)
    )
    axes["residual"].set(xlabel="iteration", ylabel="residual of the worst noisy image")
    tolerances = {AUTOMATIC_TOL if row["setting"] == "automatic" else TOL for row in rows}
    for tolerance in tolerances:
        axes["residual"].axhline(tolerance, color="black", linestyle=":", label=f"tolerance {tolerance:g}")
    for name in panels:
        axes[name].grid(alpha=0.3)
        axes[name].legend(**({"fontsize": 8, "loc": "lower left", "ncols": 3} if name == "rmse" else {"fontsize": 9}))
    return figure
