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
# # Quickstart: learn from one picture, clean another
#
# This notebook learns a kernel Markov random field from samples, runs belief propagation until it converges, and reads
# off estimates with their uncertainty. It takes about a minute and needs no data.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp

# %% [markdown]
# ## Data
#
# A variable is the true gray value of a pixel, an observation is its noisy value. The model learns from one picture and
# a noisy copy of it. It is never given the noise distribution. A second noisy copy serves to calibrate, and the picture
# to clean is a different one.


# %%
def picture(row, col):
    """Draw circles around a point, gray values 0 to 240."""
    i, j = np.mgrid[:60, :60]
    return np.minimum(5 * np.hypot(i - row, j - col), 240).round().ravel()


rng = np.random.default_rng(0)
train, truth = picture(20, 10), picture(59, 30)
noisy, y, second = (
    image + 30 * rng.standard_normal(image.size) for image in (train, truth, train)
)


def show(images, titles, **options):
    """Draw images with one value per pixel side by side."""
    width = 3.0 * len(images)
    figure, axes = plt.subplots(
        1, len(images), figsize=(width, 2.9), layout="constrained"
    )
    for ax, image, title in zip(axes, images, titles, strict=True):
        shade = ax.imshow(np.reshape(image, (60, 60)), **options)
        ax.set(title=title, xticks=[], yticks=[])
    figure.colorbar(shade, ax=axes, label="gray value")


gray = {"cmap": "gray", "vmin": 0, "vmax": 255}
show(
    [train, noisy, truth, y],
    ["to learn from", "its noisy copy", "truth", "to clean"],
    **gray,
)

# %% [markdown]
# ## Graph and training pairs
#
# Neighboring pixels depend on each other: a grid with four neighbors. All edges have the same type, so each pair of
# neighbors is a sample of the same relation, and `pool` collects these pairs. Samples have the shape `[sample, node]`;
# one picture is one sample, hence `train[None]`.

# %%
graph = kbp.grid_graph(60, 60)
data = kbp.pool(graph, train[None], noisy[None])
print({name: [x.shape for x in pair] for name, pair in data.edges.items()})

# %% [markdown]
# ## Learning
#
# `fit` chooses landmarks and estimates conditional expectations by ridge regression. The bandwidth is the scale on which
# gray values differ. A quarter of the median distance between samples is a good first choice; the two bandwidths below
# were set by hand near it, with errors on these drawings in view.
#
# `nonnegative=kbp.Clipped()` makes the learned operators nonnegative, as conditional expectations are. Belief propagation on
# a graph with cycles converges much more easily with it.

# %%
print(f"median distance of gray values: {kbp.median_bandwidth(train):.0f}")
print(f"median distance of observations: {kbp.median_bandwidth(noisy):.0f}")
model = kbp.fit(
    data,
    kernel=kbp.RBF(15.0),
    obs_kernel=kbp.RBF(20.0),
    ridge=1e-3,
    nonnegative=kbp.Clipped(),
)
print("ranks of messages and of their products:", model.ranks)

# %% [markdown]
# ## Belief propagation
#
# `observe` turns the noisy picture into evidence, `run` passes messages. A grid has cycles, so the messages are iterated
# to a fixed point. Tree-reweighting, a schedule in which the two colors of a checkerboard take turns, and Anderson
# acceleration converge here in about twenty iterations. On a chain or a tree none of this is needed: `kbp.run_tree` is exact.
#
# `kbp.check` returns the solution if it converged, and otherwise raises an error that says what to try.

# %%
loopy = {
    "exponents": kbp.tree_reweighting(graph),
    "schedule": kbp.colored(graph),
    "acceleration": kbp.Anderson(),
    "damping": 0.0,
    "num_iters": 200,
    "tol": 1e-4,
}
points = np.arange(241.0)  # the values over which beliefs are distributed


@jax.jit
def posterior(y):
    """Return the solution, and the belief of each pixel over `points`."""
    evidence = kbp.observe(model, graph, y)
    solution = kbp.run(model, graph, evidence, **loopy)
    return solution, kbp.beliefs(model, graph, evidence, solution, points)


solution, belief = posterior(y)
kbp.check(solution)

residuals = solution.residuals[: solution.num_iters]
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.semilogy(np.arange(1, len(residuals) + 1), residuals, "o-")
ax.axhline(1e-4, color="black", linestyle=":", label="tolerance")
ax.set(xlabel="iteration", ylabel="residual", title="Change of the messages")
ax.legend()
ax.grid(alpha=0.3)
print(
    "converged:", bool(solution.converged), "in", int(solution.num_iters), "iterations"
)

# %% [markdown]
# ## Calibration
#
# Tree-reweighted messages of smoothed operators give beliefs that are too wide: far more than 90 % of the pixels lie in
# their 90 % interval. `kbp.temper(belief, temperature)` sharpens them. The temperature is chosen where the truth is known,
# on the second noisy copy of the training picture, by the interval score: it rewards intervals that are narrow and hold.

# %%
score = kbp.IntervalScore(0.9)
_, known = posterior(second)
temperatures = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
scores = [float(score(kbp.temper(known, t), jnp.asarray(train))) for t in temperatures]
temperature = temperatures[int(np.argmin(scores))]
print("scores:", dict(zip(temperatures, np.round(scores, 1).tolist(), strict=True)))
print("temperature:", temperature)


def coverage(belief, truth):
    """Return the share of pixels inside their 90 % interval, to half a gray level: the truth is rounded."""
    low, high = kbp.interval(belief, 0.9)
    return float(np.mean((low - 0.5 <= truth) & (truth <= high + 0.5)))


sharp = kbp.temper(belief, temperature)
print(f"the other picture, before: {coverage(belief, truth):.1%} inside")
print(f"the other picture, after: {coverage(sharp, truth):.1%} inside")

# %% [markdown]
# ## Estimates and their uncertainty


# %%
def rmse(estimate):
    """Return the root mean squared error in gray values."""
    return float(np.sqrt(np.mean((np.asarray(estimate) - truth) ** 2)))


x_mode, x_mean = kbp.mode(sharp), kbp.mean(sharp)
print(f"RMSE: noisy {rmse(y):.1f}, mode {rmse(x_mode):.1f}, mean {rmse(x_mean):.1f}")
show([y, x_mean], ["noisy", "posterior mean"], **gray)
show(
    [np.abs(x_mean - truth), jnp.sqrt(kbp.variance(sharp))],
    ["absolute error", "posterior standard deviation"],
    vmin=0,
    vmax=20,
)

# %% [markdown]
# Without messages, the belief of a pixel is that of its own observation: the same model on a graph without edges.

# %%
pixel = 15 * 60 + 20
alone = kbp.Graph.from_edges([], graph.num_nodes)
evidence = kbp.observe(model, alone, y)
solution_alone = kbp.run_tree(model, alone, evidence)
belief_alone = kbp.beliefs(model, alone, evidence, solution_alone, points)

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(points, belief_alone.weights[pixel], label="own observation only")
ax.plot(points, sharp.weights[pixel], label="with messages")
ax.axvline(truth[pixel], color="black", linestyle=":", label="truth")
ax.set(xlabel="gray value", ylabel="probability")
ax.set_title(f"Belief of pixel (15, 20); observed {y[pixel]:.0f}")
ax.legend()
print(f"RMSE without messages: {rmse(kbp.mean(belief_alone)):.1f}")

# %% [markdown]
# ## Many pictures at once
#
# Every step is a pure function, so `jax.vmap` cleans a stack of noisy pictures in one compiled call.

# %%
stack = truth + 30 * rng.standard_normal((4, truth.size))
solutions, beliefs = jax.jit(jax.vmap(posterior))(stack)
kbp.check(solutions)
means = jax.vmap(lambda belief: kbp.mean(kbp.temper(belief, temperature)))(beliefs)
print("RMSE of four new noisy pictures:", [round(rmse(image), 1) for image in means])

# %% [markdown]
# ## Gradients
#
# `jax.grad` goes through learning and inference, so bandwidths can be learned. Here is the derivative of the squared error
# of the training picture with respect to the logarithm of the bandwidth.


# %%
def loss(log_bandwidth):
    """Return the mean squared error on the second noisy copy of the training picture."""
    rule = kbp.ConstantTime(eps=1e-2)
    kernels = {"kernel": kbp.RBF(jnp.exp(log_bandwidth)), "obs_kernel": kbp.RBF(20.0)}
    model = kbp.fit(data, **kernels, ridge=1e-3, rule=rule, nonnegative=kbp.Clipped())
    evidence = kbp.observe(model, graph, second)
    few = {**loopy, "num_iters": 15, "tol": None, "acceleration": None}
    solution = kbp.run(model, graph, evidence, **few)
    estimate = kbp.mean(kbp.beliefs(model, graph, evidence, solution, points))
    return jnp.mean((estimate - train) ** 2)


value, slope = jax.value_and_grad(loss)(jnp.log(15.0))
print(f"squared error {value:.1f}, derivative {slope:.1f}")

# %% [markdown]
# Next: [getting started](../docs/start.md) with your own data, [learning bandwidths](learning_bandwidths.ipynb),
# [what to do on graphs with cycles](../docs/loops.md).
