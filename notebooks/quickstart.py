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
# a noisy copy of it. It is never given the noise distribution. The picture to clean is a different one.


# %%
def picture(row, col):
    """Draw circles around a point, gray values 0 to 240."""
    i, j = np.mgrid[:60, :60]
    return np.minimum(5 * np.hypot(i - row, j - col), 240).round().ravel()


rng = np.random.default_rng(0)
train, truth = picture(20, 10), picture(59, 30)
noisy, y = (image + 30 * rng.standard_normal(image.size) for image in (train, truth))


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
# `fit` chooses landmarks and estimates conditional expectations by ridge regression. Hyperparameters that are not given
# are chosen from the data: `fit` leaves out blocks of pixels, infers them from their noisy values, and compares the beliefs
# with the truth. It chooses bandwidths, ridges, the evidence model and the temperature of the beliefs in about ten
# seconds. Then it trains the potentials through inference for about twenty, and keeps them if beliefs are better.
# `model.hyperparameters` holds the choice; `model.hyperparameters.fit(data)` uses it again, without the training.
# `model.selection` holds what was compared, with scores on what was left out: lower is better.

# %% tags=["loose"]
model = kbp.fit(data)
print(model)
chosen = model.hyperparameters
print("evidence:", chosen.evidence_model, "to the power", float(chosen.evidence_power))
print("temperature of the beliefs:", float(chosen.temperature))

# %% [markdown]
# ## Belief propagation
#
# `infer` turns the noisy picture into evidence, passes messages and returns the posterior of all pixels. A grid has cycles,
# so the messages are iterated to a fixed point; they are nonnegative, and the two colors of a checkerboard take turns.
# On a chain or a tree `infer` is exact.
#
# The residual is the largest change of a value of a message in an iteration; messages have maximum 1. It falls below the
# tolerance, so the beliefs belong to a fixed point. If it did not, `infer` would give a `kbp.ConvergenceWarning`.

# %%
posterior = kbp.infer(model, graph, y)
solution = posterior.solution

residuals = solution.residuals[: solution.num_iters]
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.semilogy(np.arange(1, len(residuals) + 1), residuals, "o-")
ax.axhline(1e-3, color="black", linestyle=":", label="tolerance")
ax.set(xlabel="iteration", ylabel="residual", title="Change of the messages")
ax.legend()
ax.grid(alpha=0.3)
print(
    "converged:", bool(solution.converged), "in", int(solution.num_iters), "iterations"
)

# %% [markdown]
# ## Calibration
#
# A 90 % interval should hold the true value in 90 % of the pixels. The temperature was chosen on the training picture, so this
# transfers only to pictures of the same kind.


# %%
low, high = kbp.interval(posterior, 0.9)
inside = float(np.mean((low <= truth) & (truth <= high)))
print(f"{inside:.1%} of the pixels are inside their 90 % interval")

# %% [markdown]
# ## Estimates and their uncertainty


# %%
def rmse(estimate):
    """Return the root mean squared error in gray values."""
    return float(np.sqrt(np.mean((np.asarray(estimate) - truth) ** 2)))


x_mode, x_mean = kbp.mode(posterior), kbp.mean(posterior)
print(f"RMSE: noisy {rmse(y):.1f}, mode {rmse(x_mode):.1f}, mean {rmse(x_mean):.1f}")
show([y, x_mean], ["noisy", "posterior mean"], **gray)
show(
    [np.abs(x_mean - truth), kbp.std(posterior)],
    ["absolute error", "posterior standard deviation"],
    vmin=0,
    vmax=20,
)

# %% [markdown]
# Without messages, the belief of a pixel is that of its own observation: the same model on a graph without edges.

# %%
pixel = 15 * 60 + 20
alone = kbp.Graph.from_edges([], graph.num_nodes)
posterior_alone = kbp.infer(model, alone, y)
points = posterior.points  # the values over which beliefs are distributed

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(points, posterior_alone.weights[pixel], label="own observation only")
ax.plot(points, posterior.weights[pixel], label="with messages")
ax.axvline(truth[pixel], color="black", linestyle=":", label="truth")
ax.set(xlabel="gray value", ylabel="probability")
ax.set_title(f"Belief of pixel (15, 20); observed {y[pixel]:.0f}")
ax.legend()
print(f"RMSE without messages: {rmse(kbp.mean(posterior_alone)):.1f}")

# %% [markdown]
# ## Many pictures at once
#
# Every step is a pure function, so `jax.vmap` cleans a stack of noisy pictures in one compiled call. Inside `jax.jit` and
# `jax.vmap` there is no warning: return the solution, and call `kbp.check`.


# %%
def clean(model, y):
    """Return the posterior mean and the solution."""
    posterior = kbp.infer(model, graph, y)
    return kbp.mean(posterior), posterior.solution


stack = truth + 30 * rng.standard_normal((4, truth.size))
means, solutions = jax.jit(jax.vmap(clean, in_axes=(None, 0)))(model, stack)
kbp.check(solutions)
print("RMSE of four new noisy pictures:", [round(rmse(image), 1) for image in means])

# %% [markdown]
# ## Gradients
#
# `jax.grad` goes through learning and inference with given kernels, so a loss of your own can choose bandwidths. Here is
# the derivative of the squared error of a second noisy copy of the training picture with respect to the logarithm of the
# bandwidth, at half the chosen one. At the chosen bandwidth it is small, and single precision does not resolve it.

# %%
second = jnp.asarray(train + 30 * rng.standard_normal(train.size))
obs_kernel = chosen.obs_kernel[0]
rule = kbp.fix_landmarks(data, kernel=chosen.kernel, obs_kernel=obs_kernel)


def loss(log_bandwidth):
    """Return the mean squared error on the second noisy copy of the training picture."""
    kernels = {"kernel": kbp.RBF(jnp.exp(log_bandwidth)), "obs_kernel": obs_kernel}
    model = kbp.fit(data, **kernels, ridge=chosen.ridge, rule=rule)
    posterior = kbp.infer(model, graph, second, points=points)
    return jnp.mean((kbp.mean(posterior) - train) ** 2)


value, slope = jax.value_and_grad(loss)(jnp.log(chosen.kernel[0].bandwidth / 2))
print(f"squared error {value:.1f}, derivative {slope:.1f}")

# %% [markdown]
# Next: [getting started](../docs/start.md) with your own data, [learning bandwidths](learning_bandwidths.ipynb),
# [what to do on graphs with cycles](../docs/loops.md).
