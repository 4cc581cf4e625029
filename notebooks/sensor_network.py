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
# # A network of sensors, before and after learning its potentials together
#
# Twelve stations measure once a day. Some fail, and we want the missing values with their uncertainty. Their positions
# are known, and 500 days of measurements with holes. Nothing else is given.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp

rng = np.random.default_rng(0)
stations, days = 12, 460
place = rng.random((stations, 2))
distance = np.linalg.norm(place[:, None] - place[None], axis=-1)


def field(count):
    """Draw days of a skewed quantity, smooth in space, with other levels at other stations."""
    root = np.linalg.cholesky(np.exp(-distance / 0.5) + 1e-6 * np.eye(stations))
    return np.exp(0.6 * rng.normal(size=(count, stations)) @ root.T + place[:, 0])


everything = field(days)
truth = everything[400:]
history = np.where(rng.random((400, stations)) < 0.2, np.nan, everything[:400])

# %% [markdown]
# ## The answer
#
# `neighbor_graph` joins the nearest stations and notes their distances. `fit` learns from the history, and `infer` answers
# a day on which the stations of one corner are silent.

# %%
graph = kbp.neighbor_graph(place, 4)
model = kbp.fit(kbp.pool(graph, history, history))
silent = np.linalg.norm(place - 1, axis=1) < 0.55
today = np.where(silent, np.nan, truth[0])
posterior = kbp.infer(model, graph, today)
mean = np.asarray(kbp.mean(posterior))
low, high = (np.asarray(end) for end in kbp.interval(posterior, 0.9))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
half = graph.num_edges // 2
for a, b in zip(graph.senders[:half].tolist(), graph.receivers[:half].tolist()):
    left.plot(*place[[a, b]].T, color="0.8", zorder=0)
colors = {
    "vmin": truth[0].min(),
    "vmax": truth[0].max(),
    "cmap": "viridis",
    "edgecolors": "black",
}
points = left.scatter(
    *place[~silent].T, c=truth[0][~silent], s=80, label="measured", **colors
)
left.scatter(
    *place[silent].T, c=mean[silent], s=80, marker="s", label="inferred", **colors
)
figure.colorbar(points, ax=left)
left.set(title="One day", xticks=[], yticks=[])
left.legend(loc="upper left")
order = np.flatnonzero(silent)
spread = np.stack([mean - low, high - mean])[:, order]
right.errorbar(
    np.arange(len(order)),
    mean[order],
    spread,
    fmt="s",
    color="C0",
    label="mean and 90 % interval",
)
right.plot(truth[0][order], "x", color="C1", label="truth")
right.set(xticks=range(len(order)), xticklabels=order)
right.set(title="Silent stations", xlabel="number of the station", ylabel="value")
right.legend()
plt.show()

# %% [markdown]
# ## What `fit` chose
#
# Each choice was compared on days that were held out. *Potentials* says whether relations of pairs, learned one by one,
# answer better than the Gaussian copula of the whole graph.

# %%
for tried in model.selection:
    if tried.taken:
        print(f"{tried.choice}: {tried.alternative}")

# %% [markdown]
# ## Before and after
#
# We hide 40 % of the values of 60 other days, and compare
#
# - relations of pairs, each learned alone, as smoothed counts,
# - the same, with potentials trained through inference: their powers, and corrections that say what several neighbors
#   together mean,
# - the default, which chose as above,
# - for comparison, a joint Gaussian of the logarithms: the family that made the data, with a covariance for each pair of
#   stations, learned from the complete history. That is more than the others are given.

# %%
hidden = rng.random(truth.shape) < 0.4
y = np.where(hidden, np.nan, truth)


def scores(means, lows, highs):
    """Return the root mean square error, and the share of the truth inside intervals."""
    inside = (lows <= truth) & (truth <= highs)
    return np.sqrt(np.mean((means - truth)[hidden] ** 2)), inside[hidden].mean()


def answers(one):
    """Return means and 90 % intervals of all days."""

    def of_day(day):
        posterior = kbp.infer(one, graph, day)
        return kbp.mean(posterior), *kbp.interval(posterior, 0.9)

    return jax.jit(lambda y: jax.lax.map(of_day, y))(y)


def joint_gaussian():
    """Return the same for the conditional Gaussian of the logarithms."""
    logs = np.log(everything[:400])
    center, covariance = logs.mean(axis=0), np.cov(logs.T)
    found = []
    for day in y:
        seen, free = np.flatnonzero(~np.isnan(day)), np.flatnonzero(np.isnan(day))
        gain = np.linalg.solve(
            covariance[np.ix_(seen, seen)], covariance[np.ix_(seen, free)]
        ).T
        log_mean = center[free] + gain @ (np.log(day[seen]) - center[seen])
        variance = np.diag(
            covariance[np.ix_(free, free)] - gain @ covariance[np.ix_(seen, free)]
        )
        row = np.tile(day, (3, 1))
        row[0, free] = np.exp(log_mean + variance / 2)
        row[1:, free] = np.exp(
            log_mean + np.array([[-1.645], [1.645]]) * np.sqrt(variance)
        )
        found.append(row)
    return np.swapaxes(found, 0, 1)


data = kbp.pool(graph, history, history)
pairs = kbp.fit(data, relation="counts", effort="low")
trained = kbp.train(pairs, data, steps=100, progress=False)
for name, found in {
    "pairs": answers(pairs),
    "trained": answers(trained),
    "default": answers(model),
    "joint Gaussian, complete data": joint_gaussian(),
}.items():
    error, inside = scores(*found)
    print(f"{name:30} RMSE {error:.2f}, in 90 %: {inside:.2f}")

# %% [markdown]
# Next: [what is chosen and how](../docs/choosing.md), and [all first-try problems](../docs/first_try.md) with measured
# networks among them.
