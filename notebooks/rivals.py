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
# # The rivals: discrete, Gaussian, particles, mixtures, kernels
#
# After this notebook you can run every kind of belief propagation of this library on one problem, with the same graph,
# evidence and answers, see where each is strong, and tell which one yours asks for. It takes about two minutes.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp
from kbpjax import plotting
from kbpjax.baselines import discrete, gaussian, pairwise, particle

rng = np.random.default_rng(0)
side, noise = 24, 30.0
i, j = np.mgrid[:side, :side]


def rings(row, column):
    """Draw rings around a point, each a ramp of 12 grey values."""
    return (np.floor(np.hypot(i - row, j - column)) % 12 * 20.0).ravel()


known, unknown = rings(side, 12), rings(0, 4)
copy, y = (
    known + noise * rng.normal(size=known.size),
    unknown + noise * rng.normal(size=known.size),
)
graph = kbp.grid_graph(side, side)
data = kbp.pool(graph, known[None], copy[None])
grey = np.unique(known)
estimates, seconds = {"noisy": y}, {}


def keep(name, answer):
    """Run a method twice, keep its estimate and the seconds of the second run."""
    jax.block_until_ready(answer())
    start = time.perf_counter()
    estimates[name] = np.asarray(jax.block_until_ready(answer()))
    seconds[name] = time.perf_counter() - start
    print(
        f"{name:22} RMSE {np.sqrt(np.mean((estimates[name] - unknown) ** 2)):5.1f}, {seconds[name]:.3f} s"
    )


# %% [markdown]
# ## Kernel belief propagation: potentials and noise are learned
#
# It knows the pair of pictures above and nothing else. Its settings, and those of the others, are the best of a short search on a third
# ring.

# %%
model = kbp.fit(data, kernel=kbp.RBF(8.0), obs_kernel=kbp.RBF(15.0), ridge=1e-3)


def kernel_answer():
    """Return the posterior mean."""
    evidence = kbp.observe(model, graph, y)
    solution = kbp.run(model, graph, evidence, num_iters=20, damping=0.2)
    return kbp.mean(kbp.beliefs(model, graph, evidence, solution, grey))


keep("kernel", kernel_answer)


# %% [markdown]
# ## Discrete: a number for each grey value
#
# Potentials are counts of neighbouring values. It is told the grey values, and here the true noise. With twelve values that is hard
# to beat; with two hundred and fifty, or two coordinates, tables grow and counts thin out.


# %%
def likelihood(x):
    """Return the likelihood of all pixels, at common points or at points of their own."""
    return jnp.exp(-0.5 * ((y[:, None] - x) / noise) ** 2)


table = discrete.fit(data, grey, pseudo_count=1e-3)


def discrete_answer():
    """Return the posterior mean."""
    evidence = kbp.likelihood(table, graph, likelihood)
    solution = kbp.run(table, graph, evidence, num_iters=20, damping=0.2)
    return kbp.mean(kbp.beliefs(table, graph, evidence, solution, grey))


keep("discrete", discrete_answer)

# %% [markdown]
# The rivals are told the likelihood. Told it too, the kernel model is about as good as with the one that it learned: what it lacks here,
# beside a table of twelve values, is not the noise.


# %%
def told_answer():
    """Return the posterior mean of the kernel model with the true likelihood."""
    evidence = kbp.likelihood(model, graph, likelihood)
    solution = kbp.run(model, graph, evidence, num_iters=20, damping=0.2)
    return kbp.mean(kbp.beliefs(model, graph, evidence, solution, grey))


keep("kernel, told the noise", told_answer)

# %% [markdown]
# ## Gaussian: neighbours are alike
#
# Exact for the thin membrane, and a membrane has no edges: it blurs them.

# %%
field = gaussian.thin_membrane(graph, y, noise=noise, edge_precision=0.00015)
keep(
    "Gaussian",
    lambda: kbp.mean(
        gaussian.beliefs(gaussian.run(field, graph, num_iters=200, tol=1e-4), grey)
    ),
)

# %% [markdown]
# ## Particles: samples with weights
#
# Densities are learned by least squares; messages are sums over thirty particles a pixel, drawn anew as beliefs move.

# %%
densities = pairwise.fit(data, jax.random.key(0))


def particle_answer():
    """Return the posterior mean."""
    evidence = kbp.likelihood(densities, graph, likelihood)
    options = {
        "key": jax.random.key(1),
        "num_particles": 30,
        "num_iters": 20,
        "resample_every": 5,
    }
    solution = particle.run(densities, graph, evidence, **options)
    return kbp.mean(particle.beliefs(densities, graph, evidence, solution, grey))


keep("particles", particle_answer)

# %% [markdown]
# ## Side by side

# %%
figure, axes = plt.subplots(1, 7, figsize=(17, 3), layout="constrained")
for ax, (name, image) in zip(
    axes, {**estimates, "truth": unknown}.items(), strict=True
):
    shade = ax.imshow(image.reshape(side, side), cmap="gray", vmin=0, vmax=230)
    ax.set(title=name, xlabel="column", ylabel="row")
figure.colorbar(shade, ax=axes, label="grey value")
figure.supxlabel(
    "Rings of 12 grey values, noise of 30; all learned from another ring.",
    fontsize="medium",
)

errors = {
    name: float(np.sqrt(np.mean((image - unknown) ** 2)))
    for name, image in estimates.items()
}
costs = {name: (seconds[name], errors[name]) for name in seconds}
ax = plotting.plot_costs(costs, error="RMSE (grey values)", baseline=errors["noisy"])
ax.set_title("time against error")
plt.show()

# %% [markdown]
# ## Which one?
#
# - **Few states, or bins of one coordinate, and a known noise**: discrete.
# - **Everything jointly Gaussian**: Gaussian, which is exact.
# - **Densities that you can write down, continuous variables**: particles; mixtures (`kbpjax.baselines.mixture`) where messages have
#   several peaks, at a hundred times the cost of the others.
# - **Unknown potentials, unknown noise, any domain with a kernel**: kernels.
#
# Whole pictures, tuned settings and the paper's settings: docs/competitors.md.
