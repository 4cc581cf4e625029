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
# # Quickstart: learn a model from one image, clean another
#
# After this notebook you can learn a kernel Markov random field from samples, pass messages on a graph, and read off
# estimates with their uncertainty. It takes about a minute and needs no data.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp

# %% [markdown]
# ## The data: an image, and two noisy copies of it
#
# A variable is the true grey value of a pixel. We see one image together with a noisy copy and learn from that pair; the
# second noisy copy is the one to clean. Nobody tells the model that the noise is Gaussian, or how strong it is.

# %%
rng = np.random.default_rng(0)
height, width = 60, 60
i, j = np.mgrid[:height, :width]
clean = np.minimum(np.hypot(i - 59, j - 30) * 4, 240).round().ravel()
noisy, y = clean + 30 * rng.standard_normal((2, clean.size))


def show(images, titles, **options):
    """Draw images of one value a pixel side by side."""
    figure, axes = plt.subplots(
        1, len(images), figsize=(3.6 * len(images), 3.4), layout="constrained"
    )
    for ax, image, title in zip(axes, images, titles, strict=True):
        shade = ax.imshow(np.reshape(image, (height, width)), **options)
        ax.set(title=title, xlabel="column", ylabel="row")
    figure.colorbar(shade, ax=axes, label="grey value")


grey = {"cmap": "gray", "vmin": 0, "vmax": 255}
show(
    [clean, noisy, y],
    ["truth", "noisy copy to learn from", "noisy copy to clean"],
    **grey,
)

# %% [markdown]
# ## The graph and the training pairs
#
# Neighbouring pixels depend on each other: a four-neighbour grid. `pool` turns samples on the graph into training pairs: all
# edges are of one type, so every pair of neighbours is a sample of the same relation. Samples have the shape
# `[sample, node]`; one image is one sample, hence `clean[None]`.

# %%
graph = kbp.grid_graph(height, width)
data = kbp.pool(graph, clean[None], noisy[None])
print({name: [x.shape for x in pair] for name, pair in data.edges.items()})

# %% [markdown]
# ## Learning
#
# `fit` chooses landmarks and estimates conditional expectations by ridge regression. The bandwidth is the scale on which grey
# values differ: too wide and single values cannot be told apart, too narrow and there are too few samples at each value.
# The median distance between samples is the usual first guess; for this task a quarter of it does better.

# %%
print(
    f"median bandwidths: {kbp.median_bandwidth(clean):.0f} (pixels), {kbp.median_bandwidth(noisy):.0f} (observations)"
)
model = kbp.fit(data, kernel=kbp.RBF(20.0), obs_kernel=kbp.RBF(25.0), ridge=1e-3)
print("ranks of messages and of their products:", model.ranks)

# %% [markdown]
# ## Message passing
#
# `observe` turns the noisy image into evidence, `run` passes messages along all edges at once. A grid has loops, so messages
# need not settle; damping keeps a part of the old message. Look at the residuals before you trust an answer.

# %%
evidence = kbp.observe(model, graph, y)
solution = kbp.run(model, graph, evidence, num_iters=30, damping=0.2)

figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.semilogy(np.arange(1, 31), solution.residuals, "o-")
ax.set(
    xlabel="iteration",
    ylabel="residual",
    title="Distance of the messages to their undamped update",
)
ax.grid(alpha=0.3)
print("converged:", bool(solution.converged))

# %% [markdown]
# ## Answers, with their uncertainty
#
# A belief is a distribution over candidate values, here the grey values of the training image. Estimates are read off it.

# %%
belief = kbp.beliefs(model, graph, evidence, solution, np.unique(clean))
x_map, x_mean, (lo, hi) = kbp.mode(belief), kbp.mean(belief), kbp.interval(belief, 0.9)


def rmse(estimate):
    """Root mean squared error, in grey values."""
    return float(np.sqrt(np.mean((np.asarray(estimate) - clean) ** 2)))


print(f"RMSE: noisy {rmse(y):.1f}, mode {rmse(x_map):.1f}, mean {rmse(x_mean):.1f}")
print(f"inside the 90 % interval: {np.mean((lo <= clean) & (clean <= hi)):.0%}")
show([y, x_mean], ["noisy", "posterior mean"], **grey)
show(
    [np.abs(x_mean - clean), jnp.sqrt(kbp.variance(belief))],
    ["error", "posterior standard deviation"],
    vmin=0,
    vmax=20,
)

# %% [markdown]
# The belief of one pixel, before and after its neighbours have spoken. Without messages, `beliefs` would only know the
# pixel's own observation: compare with a graph that has no edges.

# %%
pixel = 15 * width + 20
alone = kbp.Graph.from_edges([], graph.num_nodes)
evidence_alone = kbp.observe(model, alone, y)
belief_alone = kbp.beliefs(
    model,
    alone,
    evidence_alone,
    kbp.run(model, alone, evidence_alone),
    np.unique(clean),
)

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.plot(belief.points, belief_alone.weights[pixel], label="own observation only")
ax.plot(belief.points, belief.weights[pixel], label="with messages")
ax.axvline(clean[pixel], color="black", linestyle=":", label="truth")
ax.set(
    xlabel="grey value",
    ylabel="probability",
    title=f"Belief of pixel (15, 20); observed {y[pixel]:.0f}",
)
ax.legend()

# %% [markdown]
# ## Many images at once
#
# Everything is a pure function, so `jax.vmap` cleans a stack of noisy images in one compiled call.


# %%
@jax.jit
@jax.vmap
def clean_up(y):
    """Return the posterior mean of one noisy image."""
    evidence = kbp.observe(model, graph, y)
    solution = kbp.run(model, graph, evidence, num_iters=30, damping=0.2)
    return kbp.mean(kbp.beliefs(model, graph, evidence, solution, np.unique(clean)))


stack = clean + 30 * rng.standard_normal((5, clean.size))
print(
    "RMSE of five new noisy images:",
    [round(rmse(image), 1) for image in clean_up(stack)],
)

# %% [markdown]
# ## Gradients
#
# `jax.grad` goes through learning and inference, so bandwidths can be learned. Here is the slope of the squared error in the
# logarithm of the bandwidth: negative means that a wider bandwidth would do better on this image.


# %%
def loss(log_bandwidth):
    """Return the mean squared error of the posterior mean."""
    kernel = kbp.RBF(jnp.exp(log_bandwidth))
    model = kbp.fit(
        data,
        kernel=kernel,
        obs_kernel=kbp.RBF(25.0),
        ridge=1e-3,
        rule=kbp.ConstantTime(eps=1e-2),
    )
    evidence = kbp.observe(model, graph, y)
    solution = kbp.run(model, graph, evidence, num_iters=10, damping=0.2)
    return jnp.mean(
        (
            kbp.mean(kbp.beliefs(model, graph, evidence, solution, np.unique(clean)))
            - clean
        )
        ** 2
    )


value, slope = jax.value_and_grad(loss)(jnp.log(20.0))
print(f"squared error {value:.1f}, slope in log bandwidth {slope:.1f}")
