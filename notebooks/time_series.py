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
# # A time series behind an unknown sensor
#
# A level moves up and down, and a sensor that saturates measures it, with noise and gaps. We have past series in which
# the level was measured by other means. Neither the sensor nor the movement is modelled: both are learned.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp
from kbpjax import series

rng = np.random.default_rng(0)
DECAY, SPREAD, NOISE = 0.95, 0.6, 0.15


def sensor(x):
    """Return what the sensor shows without noise."""
    return 3 / (1 + np.exp(-1.5 * x))


def simulate(count, length):
    """Draw levels and measurements [series, time]; the level falls faster than it rises."""
    x, rows = rng.normal(size=count), []
    for _ in range(length):
        x = DECAY * x + SPREAD * (rng.gamma(2.0, 1.0, count) - 2) / np.sqrt(2)
        rows.append(x)
    x = np.stack(rows, axis=1)
    return x, sensor(x) + NOISE * rng.normal(size=x.shape)


known, measured = simulate(120, 60)
truth, y = simulate(40, 70)
y[:, 25:37] = np.nan
y = y[:, :60]

# %% [markdown]
# ## The answer
#
# `fit` learns from the past, `smooth` answers a series of any length, with gaps and some steps to come. Every summary of
# `kbpjax` takes the result.

# %%
model = series.fit(known, measured)
posterior = series.smooth(model, y, steps=10)
mean = np.asarray(kbp.mean(posterior))

# %%
shown, time = 0, np.arange(70)
figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(9, 5.5), sharex=True, constrained_layout=True
)
for coverage, shade in ((0.95, 0.2), (0.8, 0.3), (0.5, 0.4)):
    ends = kbp.interval(posterior, coverage)
    top.fill_between(
        time, *(np.asarray(end)[shown] for end in ends), color="C0", alpha=shade, lw=0
    )
top.plot(time, mean[shown], color="C0", label="mean, and 50, 80 and 95 %")
top.plot(time, truth[shown], "k", lw=1, label="level, unknown")
top.axvspan(25, 36, color="0.9", zorder=0)
top.axvspan(59, 69, color="0.95", zorder=0)
top.set_ylabel("level")
top.legend(loc="upper left", fontsize=8)
bottom.plot(time[:60], y[shown], ".", color="C1")
bottom.set(
    xlabel="time", ylabel="sensor", title="what is seen: a gap, and ten steps to come"
)
figure.suptitle("The level behind a sensor that saturates, with its uncertainty")
plt.show()

# %% [markdown]
# ## Paths, and the probability of a threshold
#
# Intervals say what each time may be. Whether the level exceeds a threshold at *any* time of the gap is a question about
# all of them together. Joint draws answer it; draws of each time by itself do not: they jump from time to time.

# %%
gap = range(25, 37)
paths = series.sample_paths(model, y[shown], jax.random.key(0), 2000, steps=10)
alone = kbp.sample(
    series.smooth(model, y[shown], steps=10), jax.random.key(0), 2000, joint=False
)
figure, axes = plt.subplots(
    1, 2, figsize=(9, 2.8), sharey=True, constrained_layout=True
)
for ax, (title, drawn) in zip(
    axes, {"joint draws": paths, "each time by itself": alone}.items(), strict=True
):
    ax.plot(np.arange(20, 70), np.asarray(drawn)[:8, 20:].T, lw=0.8)
    ax.plot(np.arange(20, 70), truth[shown, 20:], "k", lw=1.5)
    ax.set(title=title, xlabel="time")
axes[0].set_ylabel("level")
plt.show()

threshold = 2.0
exceeds = lambda path: path.max() > threshold
one = series.smooth(model, y[shown], steps=10)
found = kbp.expectation(one, exceeds, nodes=gap, num_samples=4000)
print(f"P(above {threshold} in the gap) = {found.value:.3f} +- {found.error:.3f}")
independent = (np.asarray(alone)[:, list(gap)].max(axis=1) > threshold).mean()
print(f"from draws of each time by itself: {independent:.3f}")

# %% [markdown]
# ## Online
#
# A state is one message. One more measurement updates it in constant time, and forecasts start from it.

# %%
step = jax.jit(lambda state, seen: series.update(model, state, seen))
state = series.start(model)
for seen in y[shown, :50]:
    state, belief, log_density = step(state, seen)
ahead = series.forecast(model, state, 10)
print(
    f"now {kbp.mean(belief)[0]:.2f}, in ten steps {kbp.mean(ahead)[-1]:.2f} +- {kbp.std(ahead)[-1]:.2f}"
)

# %% [markdown]
# ## Beside a Kalman smoother and a particle smoother
#
# The Kalman smoother is that of the linear Gaussian model with the moments of the same past. The particle smoother knows
# the true movement, the true sensor and the true noise. CRPS, lower is better:


# %%
def kalman_smoother(y):
    """Return means and deviations, by regression on all measurements with the moments of the past."""
    decay, shift = np.polyfit(known[:, :-1].ravel(), known[:, 1:].ravel(), 1)
    gain, offset = np.polyfit(known.ravel(), measured.ravel(), 1)
    noise = np.var(measured - gain * known - offset)
    level = shift / (1 - decay)
    prior = known.var() * decay ** np.abs(np.subtract.outer(time, time))
    seen = np.flatnonzero(np.isfinite(y))
    among = gain**2 * prior[np.ix_(seen, seen)] + noise * np.eye(len(seen))
    weights = np.linalg.solve(among, gain * prior[seen]).T
    mean = level + weights @ (y[seen] - offset - gain * level)
    var = np.diag(prior) - np.einsum("ij,ij->i", weights, gain * prior[:, seen])
    return mean[:, None] + np.sqrt(np.maximum(var, 0))[:, None] * rng.normal(
        size=(len(time), 300)
    )


def log_step(new, old):
    """Return the log density of a step of the true movement."""
    push = np.maximum((new - DECAY * old) * np.sqrt(2) / SPREAD + 2, 1e-12)
    return np.where(push > 1e-12, np.log(push) - push, -np.inf)


def particle_smoother(y, count=400):
    """Return paths [time, particle] of the true model, by backward simulation (Godsill et al. 2004)."""
    x, clouds = rng.normal(size=count), []
    for t in time:
        x = DECAY * x + SPREAD * (rng.gamma(2.0, 1.0, count) - 2) / np.sqrt(2)
        if t < len(y) and np.isfinite(y[t]):
            weights = np.exp(-((y[t] - sensor(x)) ** 2) / (2 * NOISE**2)) + 1e-300
            x = x[rng.choice(count, count, p=weights / weights.sum())]
        clouds.append(x)
    paths = [clouds[-1]]
    for cloud in clouds[-2::-1]:
        weights = np.exp(log_step(paths[-1][:, None], cloud[None])) + 1e-300
        sums = np.cumsum(weights, axis=1)
        paths.append(cloud[(sums < rng.random((count, 1)) * sums[:, -1:]).sum(axis=1)])
    return np.stack(paths[::-1])


def crps(drawn, right):
    """Return the CRPS of ensembles [..., draw]."""
    ranked = np.sort(drawn, axis=-1)
    count = ranked.shape[-1]
    spread = ((2 * np.arange(count) - count + 1) * ranked).sum(axis=-1) / count**2
    return np.abs(drawn - right[..., None]).mean(axis=-1) - spread


ours = np.moveaxis(np.asarray(kbp.sample(posterior, jax.random.key(1), 300)), 1, -1)
methods = {
    "kernel belief propagation": ours,
    "Kalman smoother": np.stack([kalman_smoother(row) for row in y]),
    "particle smoother, true model": np.stack([particle_smoother(row) for row in y]),
}
parts = {
    "seen": [*range(25), *range(37, 60)],
    "gap": list(gap),
    "forecast": list(range(60, 70)),
}
for name, drawn in methods.items():
    scores = [
        f"{part} {crps(drawn, truth)[:, at].mean():.3f}" for part, at in parts.items()
    ]
    print(f"{name:30}", ", ".join(scores))
