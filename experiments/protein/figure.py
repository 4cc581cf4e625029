"""The picture of the protein experiment: angles true and predicted, accuracy of all methods, and one chain."""

from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from experiments.protein.data import angles_of

LEVEL, SHOWN = 0.9, 80


def paint(rows: list[dict[str, Any]], task: Any, found: Any) -> Any:
    """Draw densities of the angles, mean cosines, and tau along one chain.

    Args:
        rows: results, of which those of study "summary" are drawn.
        task: the fold shown.
        found: our answer to it, with beliefs.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    top, bottom = np.ravel(figure.subfigures(2, 1, squeeze=False))
    known = task.chains.scored[found.rows]
    belief = kbp.Belief(found.belief.points, found.belief.weights[known])
    draws = np.asarray(kbp.sample(belief, jax.random.key(0), 1))[0]
    clouds = {"true": task.chains.vectors[found.rows][known], "samples of the beliefs": draws}
    clouds |= {"modes of the beliefs": found.mode[known], "means of the beliefs": found.direction[known]}
    panels = top.subplots(1, 4, sharey=True)
    for ax, (title, vectors) in zip(panels, clouds.items(), strict=True):
        _density(ax, title, vectors)
    panels[0].set_ylabel("theta, degrees")
    left, right = bottom.subplots(1, 2, width_ratios=(1, 1.5))
    _bars(left, [row for row in rows if row["study"] == "summary"])
    _chain(right, task, found)
    return figure


def _density(ax: Any, title: str, vectors: np.ndarray) -> None:
    theta, tau = angles_of(vectors)
    count, *_ = np.histogram2d(theta, tau, bins=(45, 72), range=((60, 180), (-180, 180)))
    ax.imshow(np.log1p(count), extent=(-180, 180, 60, 180), origin="lower", aspect="auto", cmap="magma")
    ax.set(title=title, xlabel="tau, degrees", xticks=(-180, -90, 0, 90, 180))


def _bars(ax: Any, rows: list[dict[str, Any]]) -> None:
    rows = [row for row in rows if not row["method"].endswith(", part")]
    methods, widths = (list(dict.fromkeys(row[key] for row in rows)) for key in ("method", "window"))
    for i, width in enumerate(widths):
        of = {row["method"]: row for row in rows if row["window"] == width}
        place = np.arange(len(methods)) + (i - (len(widths) - 1) / 2) * 0.8 / len(widths)
        lengths, errors = ([of[method][key] or 0 for method in methods] for key in ("cosine", "se"))
        ax.barh(place, lengths, 0.8 / len(widths), xerr=np.nan_to_num(errors), label=f"window of {width}")
    ax.set(yticks=range(len(methods)), yticklabels=methods, xlabel="mean cosine similarity")
    ax.invert_yaxis()
    ax.grid(axis="x", alpha=0.3)
    ax.legend(fontsize=8)


def _chain(ax: Any, task: Any, found: Any) -> None:
    """Draw tau of the first test chain: the truth, the mean, and the beliefs as candidates of the credible set."""
    chain = task.chains.chain[found.rows]
    rows = np.flatnonzero(chain == chain[0])[:SHOWN]
    weights, points = np.asarray(found.belief.weights)[rows], np.asarray(found.belief.points)
    order = np.argsort(-weights, axis=1)
    ranked = np.take_along_axis(weights, order, axis=1)
    within = np.cumsum(ranked, axis=1) - ranked < LEVEL
    _, of_points = angles_of(points)
    place = np.broadcast_to(np.arange(len(rows))[:, None], order.shape)
    ax.scatter(place[within], of_points[order[within]], s=3, color="C0", alpha=0.25, label=f"{LEVEL:.0%} credible set")
    ax.plot(angles_of(task.chains.vectors[found.rows[rows]])[1], "ko", ms=4, label="true")
    ax.plot(angles_of(found.direction[rows])[1], "C1_", ms=8, mew=2, label="mean")
    ax.set(xlabel="residue of one test chain", ylabel="tau, degrees", ylim=(-180, 180), yticks=(-180, -90, 0, 90, 180))
    ax.legend(fontsize=8, ncols=3, loc="upper right", framealpha=0.9)
