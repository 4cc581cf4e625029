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
# # Baselines: discrete, Gaussian, particle and kernel belief propagation
#
# This notebook runs four kinds of belief propagation on one problem, with the same graph and the same interface. It shows
# what each needs to be given, how accurate it is here and how long it takes. It runs in about a minute.
#
# All methods learn from one picture and clean another. Bandwidths, pseudo-count and precision were chosen by a small grid search
# on a third picture, which is not part of this notebook; the settings of the particle method were not searched.

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
    """Draw rings around a point, each a ramp of 12 gray values."""
    return (np.floor(np.hypot(i - row, j - column)) % 12 * 20.0).ravel()


known, unknown = rings(side, 12), rings(0, 4)
copy = known + noise * rng.normal(size=known.size)
y = unknown + noise * rng.normal(size=known.size)
graph = kbp.grid_graph(side, side)
data = kbp.pool(graph, known[None], copy[None])
gray = np.unique(known)
estimates, seconds = {"noisy": y}, {}


def rmse(estimate):
    """Return the root mean squared error in gray values."""
    return float(np.sqrt(np.mean((estimate - unknown) ** 2)))


def keep(name, infer):
    """Run a method twice; keep its estimate, and the seconds of the second run."""
    jax.block_until_ready(infer())
    start = time.perf_counter()
    estimates[name] = np.asarray(jax.block_until_ready(infer()))
    seconds[name] = time.perf_counter() - start
    print(f"{name}: RMSE {rmse(estimates[name]):.1f}")


# %% [markdown]
# ## Kernel belief propagation: potentials and noise are learned
#
# The only input is the training picture with its noisy copy. A grid has cycles, so this notebook uses the recipe that converges:
# positive operators, tree-reweighted messages, a colored schedule and Anderson acceleration. `kbp.check` raises an error if a run has
# not converged.

# %%
model = kbp.fit(
    data,
    kernel=kbp.RBF(24.0),
    obs_kernel=kbp.RBF(11.0),
    ridge=1e-3,
    nonnegative=kbp.Clipped(),
)
to_convergence = {
    "num_iters": 200,
    "tol": 1e-4,
    "damping": 0.0,
    "exponents": kbp.tree_reweighting(graph),
    "schedule": kbp.colored(graph),
    "acceleration": kbp.Anderson(),
}


def posterior_mean(operators, evidence):
    """Run to convergence; return the posterior mean."""
    solution = kbp.run(operators, graph, evidence, **to_convergence)
    kbp.check(solution)
    return kbp.mean(kbp.beliefs(operators, graph, evidence, solution, gray))


print(f"noisy: RMSE {rmse(y):.1f}")
keep("kernel", lambda: posterior_mean(model, kbp.observe(model, graph, y)))

# %% [markdown]
# ## Discrete: one state per gray value
#
# Potentials are counts of neighboring values. The list of gray values is given, and so is the true likelihood. Twelve states are
# few. With 250 states, or with two coordinates per variable, tables grow quadratically and counts become sparse.


# %%
def likelihood(x):
    """Return the true likelihood of all pixels, at common points or at one point each."""
    return jnp.exp(-0.5 * ((y[:, None] - x) / noise) ** 2)


table = discrete.fit(data, gray, pseudo_count=1e-3)
keep(
    "discrete",
    lambda: posterior_mean(table, kbp.likelihood(table, graph, likelihood)),
)

# %% [markdown]
# All baselines here are given the true likelihood. With the same likelihood, the kernel model is about as accurate as discrete
# belief propagation: most of its larger error above comes from a noise model learned from 576 pixels.

# %%
keep(
    "kernel, true likelihood",
    lambda: posterior_mean(model, kbp.likelihood(model, graph, likelihood)),
)

# %% [markdown]
# ## Gaussian: neighbors have similar values
#
# The thin-membrane model penalizes squared differences of neighbors. Means are exact once it has converged, but the model cannot
# represent edges and blurs them.

# %%
field = gaussian.thin_membrane(graph, edge_precision=0.00015)
observed = gaussian.likelihood(field, graph, y, noise=noise)


def membrane():
    """Return the posterior mean."""
    solution = gaussian.run(
        field, graph, observed, num_iters=200, damping=0.0, tol=1e-4
    )
    return kbp.mean(gaussian.beliefs(field, graph, observed, solution, gray))


keep("Gaussian", membrane)

# %% [markdown]
# ## Particles: weighted samples
#
# Pairwise densities are learned by least squares. A message is a sum over 30 particles per pixel, which are redrawn as beliefs
# move. These are 20 iterations of plain loopy belief propagation, and not a fixed point.

# %%
densities = pairwise.fit(jax.random.key(0), data)


def particles():
    """Return the posterior mean."""
    evidence = kbp.likelihood(densities, graph, likelihood)
    solution = particle.run(
        densities,
        graph,
        evidence,
        key=jax.random.key(1),
        num_particles=30,
        num_iters=20,
        damping=0.0,
        resample_every=5,
    )
    return kbp.mean(particle.beliefs(densities, graph, evidence, solution, gray))


keep("particles", particles)

# %% [markdown]
# ## All methods

# %%
figure, axes = plt.subplots(2, 4, figsize=(9.5, 5.2), layout="constrained")
pictures = {**estimates, "truth": unknown}
for ax in axes.flat:
    ax.set_axis_off()
for ax, (name, picture) in zip(axes.flat, pictures.items(), strict=False):
    shade = ax.imshow(picture.reshape(side, side), cmap="gray", vmin=0, vmax=230)
    ax.set_title(name)
figure.colorbar(shade, ax=axes, label="gray value", shrink=0.8)
plt.show()

# %% [markdown]
# Times are those of a second run, without compilation, on two cores of a CPU. They depend on the machine.

# %% tags=["loose"]
for name, duration in seconds.items():
    print(f"{name:24}{duration:7.3f} s")
costs = {name: (seconds[name], rmse(estimates[name])) for name in seconds}
ax = plotting.plot_costs(costs, error="RMSE (gray values)", baseline=rmse(y))
ax.set_title("Time against error")
plt.show()

# %% [markdown]
# ## Which one?
#
# - **Few states and a known likelihood**: discrete.
# - **Everything jointly Gaussian**: Gaussian, whose means are exact.
# - **Continuous variables with densities that can be evaluated**: particles, or mixtures (`kbpjax.baselines.nonparametric`) where messages have
#   several peaks; mixtures are slower still.
# - **Unknown potentials, unknown noise, any domain with a kernel**: kernels.
#
# Larger pictures, tuned hyperparameters and the settings of the paper: [docs/baselines.md](../docs/baselines.md).
