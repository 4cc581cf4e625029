"""Draw docs/assets/how_it_works.png: samples, a conditional, a message, beliefs.

python docs/figures/how_it_works.py [FILE]

The numbers are those of the program in docs/how_it_works.md.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import kbpjax as kbp
from kbpjax.plotting import BLUE, GREEN, GREY, ORANGE

TARGET = Path(__file__).resolve().parents[1] / "assets" / "how_it_works.png"
KNOWN, READING, NOISE, STAY = 1.0, 0.8, 0.2, 0.9
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.5,
}


def simulate() -> tuple[np.ndarray, np.ndarray]:
    """Return currents and readings [sample, day] of three successive days."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 3))
    for day in (1, 2):
        x[:, day] = STAY * x[:, day - 1] + np.sqrt(1 - STAY**2) * x[:, day]
    return x, np.abs(x) + NOISE * rng.normal(size=x.shape)


def exact(x: np.ndarray, known: bool) -> np.ndarray:
    """Return the exact posterior density of the second day."""
    center, variance = (STAY * KNOWN, 1 - STAY**2) if known else (0, 1)
    density = np.exp(
        -((x - center) ** 2) / variance / 2 - ((np.abs(x) - READING) / NOISE) ** 2 / 2
    )
    return density / np.trapezoid(density, x)


def main(target: str | Path = TARGET) -> None:
    """Learn, infer and draw."""
    x, y = simulate()
    graph = kbp.chain_graph(3)
    model = kbp.fit(
        kbp.pool(graph, x, y),
        kernel=kbp.RBF(0.35),
        obs_kernel=kbp.RBF(0.07),
        ridge=1e-3,
    )
    yesterday, seen = kbp.clamp(model, graph, [0], [KNOWN]), [np.nan, READING, np.nan]
    nothing, neighbor = (
        kbp.infer(model, graph),
        kbp.infer(model, graph, evidence=yesterday),
    )
    before, after = (
        kbp.infer(model, graph, seen),
        kbp.infer(model, graph, seen, evidence=yesterday),
    )

    points = np.asarray(nothing.points)
    joint = np.asarray(kbp.edge_beliefs(nothing, [(0, 1)]).weights[0])
    conditional = joint / joint.sum(axis=1, keepdims=True) / np.gradient(points)
    density = {
        name: np.asarray(p.weights[1]) / np.gradient(points)
        for name, p in (("b", before), ("a", after))
    }
    message = np.asarray(neighbor.weights[1] / nothing.weights[1])

    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(8, 6.2), layout="constrained")
        pairs, learned, sent, belief = axes.flat
        pairs.plot(
            *np.vstack([x[:, :2], x[:, 1:]]).T, ".", ms=2.5, color=BLUE, alpha=0.5
        )
        pairs.set(
            title="1. Training samples of a pair", xlabel="yesterday", ylabel="today"
        )
        levels = np.linspace(0, 1.2, 9)
        learned.contourf(
            points, points, conditional.T.clip(0), levels, cmap="cividis", extend="max"
        )
        learned.axvline(KNOWN, color="white", ls="--")
        learned.text(KNOWN - 0.08, -2.3, "yesterday = 1", color="white", ha="right")
        learned.set(
            title="2. Learned: today given yesterday",
            xlabel="yesterday",
            ylabel="today",
        )
        for ax in (pairs, learned):
            ax.set(xlim=(-2.5, 2.5), ylim=(-2.5, 2.5))
        sent.plot(points, message, color=ORANGE, lw=2)
        sent.axhline(1, color=GREY, ls=":")
        sent.text(
            -2.4, 1.07, "above 1: more probable", color=GREY, va="bottom", fontsize=10
        )
        sent.set(
            title="3. Message from yesterday to today", xlabel="today", ylabel="factor"
        )
        belief.fill_between(points, density["b"], color=GREY, alpha=0.3, lw=0)
        belief.plot(points, density["b"], color=GREY, lw=2, label="before")
        belief.plot(points, density["a"], color=GREEN, lw=2, label="after")
        fine = np.linspace(-2.5, 2.5, 501)
        belief.plot(fine, exact(fine, False), "k:", lw=1.2, label="exact, both")
        belief.plot(fine, exact(fine, True), "k:", lw=1.2)
        belief.set(
            title="4. Belief about today",
            xlabel="today",
            ylabel="density",
            ylim=(0, None),
        )
        belief.legend(frameon=False, loc="upper left", fontsize=10)
        for ax in (sent, belief):
            ax.set(xlim=(-2.5, 2.5))
        figure.savefig(target, dpi=110, metadata={"Software": None})
    with Image.open(target) as picture:  # 64 colors are enough
        picture.convert("RGB").quantize(64).save(target, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
