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
# # Images: missing pixels, colors, calibrated intervals, saved models
#
# This notebook shows how to
#
# - clean color pictures, with one three-dimensional variable per pixel;
# - fill in pixels that were not observed;
# - measure the coverage of intervals, and calibrate them;
# - save a model to a file.
#
# It runs in less than a minute. The model is learned from one picture and applied to others.

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
    """Draw hills under a sky: a picture [row, column, color] with values in [0, 1]."""
    draw = np.random.default_rng(seed)
    sky = [0.5 + 0.3 * i / height, 0.7 + 0.2 * i / height, np.full(i.shape, 0.95)]
    picture = np.stack(sky, axis=-1)
    for depth in range(4):
        wave = np.sin(j / draw.uniform(5, 9) + draw.uniform(0, 6))
        color = [0.2 + 0.1 * depth, 0.55 - 0.08 * depth, 0.15 + 0.05 * depth]
        picture[i > 12 + 9 * depth + 4 * wave] = color + 0.01 * draw.normal(size=3)
    return picture


def show(pictures, titles):
    """Draw pictures side by side."""
    size = (3.2 * len(pictures), 3.4)
    _, axes = plt.subplots(1, len(pictures), figsize=size, layout="constrained")
    for ax, picture, title in zip(axes, pictures, titles, strict=True):
        ax.imshow(np.clip(picture, 0, 1))
        ax.set(title=title, xlabel="column (pixels)", ylabel="row (pixels)")
    plt.show()


noise = 0.15
known, unknown = landscape(0), landscape(1)
copy = known + noise * rng.normal(size=known.shape)
noisy = unknown + noise * rng.normal(size=known.shape)
titles = ["training picture", "its noisy copy", "another picture, to clean"]
show([known, copy, noisy], titles)

# %% [markdown]
# ## Colors: a three-dimensional variable
#
# The variable of a pixel is a point in color space. One kernel compares all three numbers, so red, green and blue are cleaned
# together. The model learns which colors are neighbors. Candidates are the colors of the training picture.
#
# A grid has cycles, and plain belief propagation need not converge on it. The recipe below does: positive operators,
# tree-reweighted messages, a colored schedule and Anderson acceleration. `kbp.check` raises an error if a run has not converged.

# %%
graph = kbp.grid_graph(height, width)
flat = lambda picture: picture.reshape(1, -1, 3)
data = kbp.pool(graph, flat(known), flat(copy))
bandwidth = kbp.median_bandwidth(flat(known)[0])
model = kbp.fit(
    data,
    kernel=kbp.RBF(0.25 * bandwidth),
    obs_kernel=kbp.RBF(0.35 * bandwidth),
    ridge=1e-3,
    rule=kbp.ConstantTime(eps=1e-2, max_rank=60),
    nonnegative=kbp.Clipped(),
)
candidates = np.unique(flat(known)[0].round(2), axis=0)
print(f"ranks {model.ranks[0]}; {len(candidates)} candidate colors")

to_convergence = {
    "num_iters": 200,
    "tol": 1e-4,
    "damping": 0.0,
    "exponents": kbp.tree_reweighting(graph),
    "schedule": kbp.colored(graph),
    "acceleration": kbp.Anderson(),
}


@jax.jit
def clean_up(y, mask):
    """Return the belief of a picture [pixel, 3] of which some pixels are observed."""
    evidence = kbp.observe(model, graph, y, mask=mask)
    solution = kbp.run(model, graph, evidence, **to_convergence)
    return kbp.beliefs(model, graph, evidence, solution, candidates), solution


def rmse(found):
    """Return the root mean squared error over pixels and colors."""
    difference = np.asarray(found).reshape(unknown.shape) - unknown
    return float(np.sqrt(np.mean(difference**2)))


belief, solution = clean_up(flat(noisy)[0], np.ones(height * width, bool))
kbp.check(solution)
cleaned = np.asarray(kbp.mean(belief)).reshape(unknown.shape)
mode = np.asarray(kbp.mode(belief)).reshape(unknown.shape)
print(f"RMSE: noisy {rmse(noisy):.3f},", end=" ")
print(f"posterior mean {rmse(cleaned):.3f}, mode {rmse(mode):.3f}")
show([noisy, cleaned, mode, unknown], ["noisy", "posterior mean", "mode", "truth"])

# %% [markdown]
# ## Missing pixels
#
# Half of the pixels and a whole block are not observed: `mask` marks the observed ones. Masked entries of `y` are ignored and may
# be NaN. Messages fill in the rest. The standard deviation is largest at the skyline, where a missing pixel may be sky or hill.

# %%
seen = rng.random((height, width)) < 0.5
seen[18:28, 18:28] = False
y = np.where(seen[..., None], noisy, np.nan).reshape(-1, 3)
belief, solution = clean_up(y, seen.ravel())
kbp.check(solution)
filled = np.asarray(kbp.mean(belief)).reshape(unknown.shape)
deviation = np.sqrt(np.asarray(kbp.variance(belief)).sum(axis=1))
deviation = deviation.reshape(height, width, 1) * np.ones(3)
print(f"RMSE with half of the pixels: {rmse(filled):.3f}")
observed = np.where(seen[..., None], noisy, 1.0)
titles = ["observed (white: missing)", "posterior mean", "standard deviation"]
show([observed, filled, deviation / deviation.max()], titles)

# %% [markdown]
# ## Are intervals calibrated?
#
# Beliefs on a graph with cycles are approximate, and so are their widths. Plain belief propagation tends to be overconfident;
# tree-reweighted messages, as here, tend to give beliefs that are too wide. So count how many true values lie inside the 90 %
# intervals of a picture whose truth is known. `kbp.temper` raises beliefs to the power 1 / temperature: below 1 they become
# narrower. The temperature with the best coverage on one picture is then applied to another. This model has one number per pixel, the brightness.

# %%
gray = lambda picture: picture.mean(axis=2).reshape(1, -1)
bright = kbp.fit(
    kbp.pool(graph, gray(known), gray(copy)),
    kernel=kbp.RBF(0.06),
    obs_kernel=kbp.RBF(0.05),
    ridge=1e-3,
    nonnegative=kbp.Clipped(),
)
levels = np.linspace(0.1, 0.9, 400)


@jax.jit
def brightness(y):
    """Return the belief of brightness."""
    evidence = kbp.observe(bright, graph, y)
    solution = kbp.run(bright, graph, evidence, **to_convergence)
    return kbp.beliefs(bright, graph, evidence, solution, levels), solution


def coverage(belief, truth, temperature):
    """Return the share of true values inside their 90 % intervals."""
    low, high = kbp.interval(kbp.temper(belief, temperature), 0.9)
    return float(np.mean((low <= truth) & (truth <= high)))


validation = landscape(2)
noisy_validation = validation + noise * rng.normal(size=validation.shape)
pictures = {
    "validation picture": (validation, noisy_validation),
    "test picture": (unknown, noisy),
}
temperatures = [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2]
shares = {}
for name, (truth, y) in pictures.items():
    belief, solution = brightness(gray(y)[0])
    kbp.check(solution)
    shares[name] = [coverage(belief, gray(truth)[0], t) for t in temperatures]
best = int(np.argmin(np.abs(np.array(shares["validation picture"]) - 0.9)))
before, after = (shares["test picture"][k] for k in (temperatures.index(1), best))
print(f"coverage on the test picture: {before:.0%} at temperature 1,", end=" ")
print(f"{after:.0%} at temperature {temperatures[best]:.3g}")

figure, ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
for name, style in zip(shares, ("o-", "s--"), strict=True):
    ax.plot(np.log2(temperatures), shares[name], style, label=name)
ax.axhline(0.9, color="0.4", linewidth=1, label="nominal")
ax.set(xlabel="log2 temperature", ylabel="share of true values inside")
ax.set_title("Coverage of 90 % intervals")
ax.legend()
plt.show()

# %% [markdown]
# ## Plots, and a saved model
#
# `kbpjax.plotting` draws a belief and the landmarks of a model. `kbp.save` writes a model without its training data.

# %%
pixel = 20 * width + 15
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
truth = float(gray(unknown)[0, pixel])
calibrated = kbp.temper(belief, temperatures[best])
plotting.plot_belief(calibrated, pixel, truth=truth, label="brightness", ax=axes[0])
plotting.plot_landmarks(bright, samples=gray(known)[0], ax=axes[1])
plt.show()

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "landscapes.kbp"
    kbp.save(path, model)
    loaded = kbp.load(path)
    same = bool(jnp.all(loaded.operators.project == model.operators.project))
    print(f"{path.stat().st_size / 1024:.0f} KiB; loaded model is equal: {same}")

# %% [markdown]
# From a shell: `python -m kbpjax denoise noisy.png cleaned.png --learn clean.png`.
