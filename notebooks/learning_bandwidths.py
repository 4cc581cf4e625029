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
# # Learning bandwidths and everything else
#
# After this notebook you can choose bandwidths in three ways: guess them from the data, score them without passing any
# message, and learn them, with every other number of the model, by gradient descent on the error of the answers. You can
# see the path of the descent, check its gradients, and descend on a loss of your own. It takes about a minute or two.

# %%
import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp
from kbpjax.selection import leave_one_out

jax.config.update(
    "jax_enable_x64", True
)  # to compare gradients with finite differences

# %% [markdown]
# ## The data: half rings with 30 grey values and sharp edges
#
# The model is learned from one image and a noisy copy, settings from a second image, and judgement is passed on a third.
# Settings that are learned from the image of the model trust it too much: the answers are in it.

# %%
rng = np.random.default_rng(0)
height, width, noise = 40, 40, 30.0
i, j = np.mgrid[:height, :width]


def rings(row, column):
    """Draw rings around a point, each a ramp from black to white in 30 steps."""
    radius = np.hypot(i - row, j - column)
    return (np.floor(radius) % 30 * 255 / 29).ravel()


clean, second, other = rings(39, 20), rings(14, 0), rings(0, 12)
copy, y, y_other = (
    x + noise * rng.standard_normal(x.size) for x in (clean, second, other)
)
graph, levels = kbp.grid_graph(height, width), np.unique(clean)
data = kbp.pool(graph, clean[None], copy[None])


# %%
def show(images, titles, caption, vmax=255, cmap="gray"):
    """Draw images of one value a pixel side by side."""
    figure, axes = plt.subplots(
        1, len(images), figsize=(3.6 * len(images), 3.7), layout="constrained"
    )
    for ax, image, title in zip(axes, images, titles, strict=True):
        shade = ax.imshow(
            np.reshape(image, (height, width)), vmin=0, vmax=vmax, cmap=cmap
        )
        ax.set(title=title, xlabel="column (pixels)", ylabel="row (pixels)")
    figure.colorbar(shade, ax=axes, label="grey value")
    figure.supxlabel(caption, fontsize="medium")


titles = ["for the model", "its noisy copy", "for settings", "to judge"]
show([clean, copy, second, other], titles, "Grey values 0 to 255, noise of 30.")

# %% [markdown]
# ## A first guess: the median distance
#
# All numbers between data and answers are one object, `Settings`. The median distance between samples is the usual first
# bandwidth.

# %%
rule = kbp.ConstantTime(eps=1e-2, max_rank=24)
guess = kbp.Settings(
    kernel=kbp.RBF(kbp.median_bandwidth(clean)),
    obs_kernel=kbp.RBF(kbp.median_bandwidth(copy)),
    ridge=1e-3,
    damping=0.2,
    rule=rule,
    num_iters=8,
)
print(
    f"median bandwidths: {guess.kernel.bandwidth:.0f} and {guess.obs_kernel.bandwidth:.0f} grey values"
)

# %% [markdown]
# A function that judges settings on the other image: errors in grey values, over all pixels and over those at an edge, and how
# many true values lie inside the 90 % intervals, and how wide these are.


# %%
def edges(x):
    """Mark the pixels that differ by more than 60 from a neighbour."""
    image = np.reshape(x, (height, width))
    steps = [
        np.abs(image - np.roll(image, shift, axis))
        for axis in (0, 1)
        for shift in (1, -1)
    ]
    return (np.max(steps, axis=0) > 60).ravel()


@jax.jit
def judge(settings):
    """Return RMSE, RMSE at edges, coverage and width of intervals, and the estimate."""
    belief = settings.answer(settings.fit(data), graph, y_other, levels)
    estimate, (low, high) = kbp.mean(belief), kbp.interval(belief, 0.9)
    squares = (estimate - other) ** 2
    inside = jnp.mean((low <= other) & (other <= high))
    at_edges = jnp.mean(squares[np.flatnonzero(edges(other))])
    return (
        jnp.sqrt(jnp.mean(squares)),
        jnp.sqrt(at_edges),
        inside,
        jnp.mean(high - low),
        estimate,
    )


results = {"median": judge(guess)}
print(
    f"RMSE {results['median'][0]:.1f}; of the noisy image itself {np.std(y_other - other):.1f}"
)

# %% [markdown]
# ## Without messages: leave-one-out
#
# Every learned operator is a ridge regression, and the error at each pair of the regression on all others has a closed form. Here
# both regressions predict the same features of a pixel, those of a narrow kernel, so that scores of different bandwidths may
# be compared: a pixel from its neighbour, and a pixel from its observation. (`kbp.select` does this for whole settings.)

# %%
fine, _ = kbp.Greedy().feature_map(kbp.RBF(15.0), data.nodes[0], eps=1e-2, max_rank=24)
pairs = {"neighbour": data.edges[0], "observation": data.observations[0][::-1]}


@jax.jit
def score(bandwidth, given, target):
    """Return the error of predicting the features of `target` from `given`, as a share of their square."""
    basis, _ = kbp.Greedy().feature_map(
        kbp.RBF(bandwidth), given, eps=1e-2, max_rank=24
    )
    return leave_one_out(basis, fine, given, target, 1e-3)


bandwidths = np.geomspace(4, 200, 14)
scores = {
    name: [float(score(b, *pair)) for b in bandwidths] for name, pair in pairs.items()
}
best = {name: float(bandwidths[np.argmin(values)]) for name, values in scores.items()}

# %%
figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
for (name, values), style, colour in zip(
    scores.items(), ["o-", "s--"], ["#0072B2", "#D55E00"], strict=True
):
    ax.semilogx(bandwidths, values, style, color=colour, label=f"from its {name}")
ax.set(
    xlabel="bandwidth (grey values)",
    ylabel="leave-one-out error (share)",
    title="How well a pixel is predicted",
)
ax.legend()
figure.supxlabel(
    "The observation's curve is flat over a wide range: noise is what is left.",
    fontsize="medium",
)

# %%
chosen = dataclasses.replace(
    guess, kernel=kbp.RBF(best["neighbour"]), obs_kernel=kbp.RBF(best["observation"])
)
results["leave-one-out"] = judge(chosen)
print(best, f"RMSE {results['leave-one-out'][0]:.1f}")

# %% [markdown]
# Sharper edges, but no smaller error on the whole: a score of single operators does not see how messages are multiplied and
# where loops lead. It costs no inference, and is a start.
#
# ## Learning both bandwidths from the error of the answers
#
# `tune` learns the model anew in each step, passes messages, and differentiates through all of it. `frozen` names what is to
# stay; only the two bandwidths are left, so that the path can be drawn. `history` has it.


# %%
def all_but_bandwidths(s):
    """Name what is not learned."""
    return s.ridge, s.floor, s.damping, s.evidence_power, s.temperature


cases = {"truth": second[None], "observations": y[None], "points": levels}
tuned = kbp.tune(
    guess,
    data,
    graph,
    **cases,
    frozen=all_but_bandwidths,
    steps=45,
    every=5,
    progress=False,
)
results["two bandwidths"] = judge(tuned.settings)
print(
    f"{tuned.settings.kernel.bandwidth:.1f} and {tuned.settings.obs_kernel.bandwidth:.1f},",
    tuned.stopped,
)

# %% [markdown]
# The loss that it descends on, over both bandwidths: one compiled call for the whole grid.


# %%
def error(settings, rule=rule):
    """Return the mean squared error on the image that settings are learned from."""
    settings = dataclasses.replace(settings, rule=rule)
    return jnp.mean(
        (kbp.mean(settings.answer(settings.fit(data), graph, y, levels)) - second) ** 2
    )


axis = jnp.geomspace(6, 150, 10)
grid = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
at = lambda pair: error(
    dataclasses.replace(guess, kernel=kbp.RBF(pair[0]), obs_kernel=kbp.RBF(pair[1]))
)
surface = np.sqrt(jax.jit(lambda grid: jax.lax.map(at, grid))(grid)).reshape(
    len(axis), len(axis)
)

# %%
figure, ax = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
shade = ax.contourf(axis, axis, surface, levels=20, cmap="viridis")
path = tuned.history["kernel.bandwidth"], tuned.history["obs_kernel.bandwidth"]
ax.plot(*path, "o-", color="white", markersize=3, label="descent")
ax.plot(
    path[0][0],
    path[1][0],
    "s",
    color="white",
    markeredgecolor="black",
    label="median distances",
)
ax.plot(
    best["neighbour"],
    best["observation"],
    "^",
    color="white",
    markeredgecolor="black",
    label="leave-one-out",
)
ends = tuned.settings.kernel.bandwidth, tuned.settings.obs_kernel.bandwidth
ax.plot(
    *ends, "*", color="white", markeredgecolor="black", markersize=15, label="learned"
)
ax.set(xscale="log", yscale="log", xlabel="bandwidth of pixels (grey values)")
ax.set(
    ylabel="bandwidth of observations (grey values)",
    title="Error of the answers, and the path of `tune`",
)
ax.legend(facecolor="0.5", labelcolor="white")
figure.colorbar(shade, label="RMSE of the posterior mean (grey values)")
figure.supxlabel(
    "Landmarks are chosen anew at each point of the grid, and every five steps on the path.",
    fontsize="medium",
)

# %% [markdown]
# ## Are the gradients right?
#
# Landmarks are held, as between two checks of `tune`; then the loss is smooth, and central differences must agree.

# %%
held = guess.hold(data)
names = ("bandwidth", "obs_bandwidth", "ridge", "floor", "damping")


def of_logarithms(logs):
    """Return the error as a function of logarithms."""
    values = dict(zip(names, jnp.exp(logs), strict=True))
    kernels = {
        "kernel": kbp.RBF(values.pop("bandwidth")),
        "obs_kernel": kbp.RBF(values.pop("obs_bandwidth")),
    }
    return error(dataclasses.replace(guess, **kernels, **values), held)


logs = jnp.log(
    jnp.array([guess.kernel.bandwidth, guess.obs_kernel.bandwidth, 1e-3, 1e-3, 0.2])
)
both = jax.jit(jax.value_and_grad(of_logarithms))
slopes = both(logs)[1]
print(f"{'number':14}{'gradient':>14}{'difference':>14}{'relative':>10}")
for name, slope, step in zip(names, slopes, 1e-5 * np.eye(5), strict=True):
    difference = (both(logs + step)[0] - both(logs - step)[0]) / 2e-5
    print(
        f"{name:14}{slope:14.6f}{difference:14.6f}{abs(slope / difference - 1):10.0e}"
    )

# %% [markdown]
# ## A loss of your own, and all numbers
#
# A loss is a function of a belief and the truth. Suppose that edges matter most: count their squares five times. Now
# ridge, floor, damping, temperature and power of the evidence are learned too, from fresh noise at each step.

# %%
weights = jnp.where(edges(second), 5.0, 1.0)


def at_edges(belief, truth):
    """Return the weighted squared error."""
    return jnp.sum(weights * (kbp.mean(belief) - truth) ** 2) / jnp.sum(weights)


fresh = {
    **cases,
    "observations": lambda key: (
        second + noise * jax.random.normal(key, (1, second.size))
    ),
}
sharp = kbp.tune(
    tuned.settings,
    data,
    graph,
    **fresh,
    loss=at_edges,
    steps=30,
    every=10,
    progress=False,
)
results["edges count"] = judge(sharp.settings)
sharp.plot(axes=plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")[1])

# %% [markdown]
# ## Honest intervals
#
# The interval score (Gneiting and Raftery) fines a truth outside the interval and charges for the width: its best answer is an
# interval that is as narrow as its coverage allows.

# %%
score_90 = kbp.IntervalScore(0.9)
honest = kbp.tune(
    tuned.settings,
    data,
    graph,
    **fresh,
    loss=score_90,
    steps=30,
    every=10,
    progress=False,
)
results["interval score"] = judge(honest.settings)
print(f"{'settings':16}{'RMSE':>8}{'at edges':>10}{'inside 90 %':>13}{'width':>8}")
for name, (rmse, edge, inside, wide, _) in results.items():
    print(f"{name:16}{rmse:8.1f}{edge:10.1f}{inside:13.0%}{wide:8.0f}")

# %% [markdown]
# What remains of the noise, on the image that nobody has seen, with the first guess and with learned settings:

# %%
errors = [
    np.abs(results[name][-1] - other)
    for name in ("median", "two bandwidths", "interval score")
]
caption = (
    "Distance of the posterior mean from the truth; largest at the edges of the rings."
)
show(
    errors,
    ["median distances", "two bandwidths learned", "interval score"],
    caption,
    vmax=80,
    cmap="cividis",
)
