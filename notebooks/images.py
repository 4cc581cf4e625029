# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Images: missing pixels, colours, honest intervals, saved models
#
# After this notebook you can fill in pixels that nobody has seen, clean colour pictures with a variable of three numbers a
# pixel, check whether intervals hold what they promise and mend them, and keep a model in a file. It takes about a minute.

# %%
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp
from kbpjax import plotting

rng = np.random.default_rng(0)
height, width = 48, 48
i, j = np.mgrid[:height, :width]


def landscape(seed):
    """Draw hills of one colour each under a sky: a picture [row, column, colour] of 0 .. 1."""
    draw = np.random.default_rng(seed)
    picture = np.stack(
        [0.5 + 0.3 * i / height, 0.7 + 0.2 * i / height, np.full(i.shape, 0.95)],
        axis=-1,
    )
    for depth in range(4):
        ridge = 12 + 9 * depth + 4 * np.sin(j / draw.uniform(5, 9) + draw.uniform(0, 6))
        colour = np.array([0.2 + 0.1 * depth, 0.55 - 0.08 * depth, 0.15 + 0.05 * depth])
        picture[i > ridge] = colour + 0.01 * draw.normal(size=3)
    return picture


def show(pictures, titles, caption, **options):
    """Draw pictures side by side."""
    figure, axes = plt.subplots(
        1, len(pictures), figsize=(3.2 * len(pictures), 3.5), layout="constrained"
    )
    for ax, picture, title in zip(axes, pictures, titles, strict=True):
        ax.imshow(np.clip(picture, 0, 1), **options)
        ax.set(title=title, xlabel="column (pixels)", ylabel="row (pixels)")
    figure.supxlabel(caption, fontsize="medium")


known, unknown = landscape(0), landscape(1)
noise = 0.15
copy, noisy = (
    known + noise * rng.normal(size=known.shape),
    unknown + noise * rng.normal(size=known.shape),
)
show(
    [known, copy, noisy],
    ["to learn from", "its noisy copy", "to clean"],
    "Colours of 0 to 1, noise of 0.15.",
)

# %% [markdown]
# ## Colours: a variable of three numbers
#
# A pixel is a point in colour space, with one kernel for all three numbers: red, green and blue are cleaned together, and
# what is learned is which colours lie side by side. Candidates are colours of the training picture.

# %%
graph = kbp.grid_graph(height, width)
flat = lambda picture: picture.reshape(1, -1, 3)
data = kbp.pool(graph, flat(known), flat(copy))
bandwidth = kbp.median_bandwidth(flat(known)[0])
kernels = {"kernel": kbp.RBF(0.25 * bandwidth), "obs_kernel": kbp.RBF(0.35 * bandwidth)}
model = kbp.fit(
    data, ridge=1e-3, rule=kbp.ConstantTime(eps=1e-2, max_rank=60), **kernels
)
candidates = np.unique(flat(known)[0].round(2), axis=0)
print(f"rank and points: {model.ranks[0]}; {len(candidates)} candidate colours")


@jax.jit
def clean_up(y, mask):
    """Return the belief of a picture [pixel, 3] of which some pixels are seen."""
    evidence = kbp.observe(model, graph, y, mask=mask)
    solution = kbp.run(model, graph, evidence, num_iters=12, damping=0.2)
    return kbp.beliefs(model, graph, evidence, solution, candidates)


def rmse(found):
    """Root mean squared error over pixels and colours."""
    return float(
        np.sqrt(np.mean((np.asarray(found).reshape(unknown.shape) - unknown) ** 2))
    )


belief = clean_up(flat(noisy)[0], np.ones(height * width, bool))
cleaned = np.asarray(kbp.mean(belief)).reshape(unknown.shape)
print(f"RMSE {rmse(noisy):.3f} before, {rmse(cleaned):.3f} after")
show(
    [noisy, cleaned, unknown],
    ["noisy", "posterior mean", "truth"],
    "Another picture than the one learned from.",
)

# %% [markdown]
# ## Missing pixels
#
# Half of the pixels, and a whole block, are not observed: `mask` says which are. Messages fill them in, and the standard
# deviation says where they are guesses.

# %%
seen = rng.random((height, width)) < 0.5
seen[18:28, 18:28] = False
holes = clean_up(np.where(seen[..., None], noisy, np.nan).reshape(-1, 3), seen.ravel())
filled = np.asarray(kbp.mean(holes)).reshape(unknown.shape)
spread = np.sqrt(np.asarray(kbp.variance(holes)).sum(axis=1)).reshape(height, width)
print(f"RMSE with half of the pixels: {rmse(filled):.3f}")
pictures = [
    np.where(seen[..., None], noisy, 1.0),
    filled,
    spread[..., None] / spread.max() * np.ones(3),
]
show(
    pictures,
    ["seen (white: not)", "filled in", "standard deviation"],
    "White in the last: the least sure.",
)

# %% [markdown]
# ## Do intervals hold what they promise?
#
# On a graph with cycles evidence is counted more than once, and beliefs are too sure. Count how many true values are inside,
# on a picture that is known, and temper: the power of a belief that covers 90 % there is kept for others. Here with one
# number a pixel, the brightness.

# %%
grey = lambda picture: picture.mean(axis=2).reshape(1, -1)
bright = kbp.fit(
    kbp.pool(graph, grey(known), grey(copy)),
    kernel=kbp.RBF(0.06),
    obs_kernel=kbp.RBF(0.05),
    ridge=1e-3,
)
levels = np.linspace(0.1, 0.9, 160)


@jax.jit
def judge(y):
    """Return the belief of brightness."""
    evidence = kbp.observe(bright, graph, y)
    return kbp.beliefs(
        bright,
        graph,
        evidence,
        kbp.run(bright, graph, evidence, num_iters=10, damping=0.2),
        levels,
    )


def cover(belief, truth, temperature):
    """Return the share of true values inside their 90 % intervals."""
    low, high = kbp.interval(kbp.temper(belief, temperature), 0.9)
    return float(np.mean((low <= truth) & (truth <= high)))


third = landscape(2)
noisy_third = third + noise * rng.normal(size=third.shape)
temperatures = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
shares = {
    "known picture": [
        cover(judge(grey(noisy_third)[0]), grey(third)[0], t) for t in temperatures
    ],
    "new picture": [
        cover(judge(grey(noisy)[0]), grey(unknown)[0], t) for t in temperatures
    ],
}
best = min(
    temperatures,
    key=lambda t: abs(shares["known picture"][temperatures.index(t)] - 0.9),
)
figure, ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
for name, style in zip(shares, ("o-", "s--"), strict=True):
    ax.plot(np.log2(temperatures), shares[name], style, label=name)
ax.axhline(0.9, color="0.4", linewidth=1, label="promised")
ax.set(
    xlabel="log2 temperature",
    ylabel="share of true values inside",
    title="Cover of 90 % intervals",
)
ax.legend()
print(
    f"temperature {best}: covers {shares['new picture'][temperatures.index(best)]:.0%} of the new picture"
)

# %% [markdown]
# ## Look closer, and keep it
#
# `kbpjax.plotting` draws what one usually wants to see; `kbp.save` keeps the model, without its training data.

# %%
pixel = 20 * width + 15
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
plotting.plot_belief(
    judge(grey(noisy)[0]),
    pixel,
    truth=float(grey(unknown)[0, pixel]),
    label="brightness",
    ax=axes[0],
)
plotting.plot_landmarks(bright, samples=grey(known)[0], ax=axes[1])

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "landscapes.kbp"
    kbp.save(path, model)
    again = kbp.load(path)
    print(
        f"{path.stat().st_size / 1024:.0f} KiB; the same: {bool(jnp.all(again.joints == model.joints))}"
    )

# %% [markdown]
# The same from a shell: `python -m kbpjax denoise noisy.png cleaned.png --learn clean.png`.
