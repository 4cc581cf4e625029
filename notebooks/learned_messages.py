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
# # Learned messages: expectation propagation with a custom factor
#
# Some factors have no formula for their messages, but can be sampled. This notebook infers the posterior of a model around such a factor
# by expectation propagation, first with importance sampling for every message. A kernel regression then learns to predict the messages. It
# queries the expensive sampler only where its predictive variance is large, and it notices when the data change. It runs in
# about a minute.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from kbpjax import ep

# Double precision for the regression; single precision works too.
jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## The model: visits to a shop
#
# The number of visits $y_i$ on day $i$ is Poisson. Its rate depends on $d = 5$ known features $x_i$ of the day through unknown
# weights $w$, and on a random disturbance $u_i$ of the day:
#
# $$z_i = w^\top x_i, \qquad r_i = \log(1 + e^{z_i}) \, e^{0.3 u_i}, \qquad y_i \sim \text{Poisson}(r_i), \qquad u_i \sim N(0, 1).$$
#
# The factor between $z_i$ and the rate $r_i$ has no formula for its messages, but it is easy to sample from. A count $y_i$ sends
# the message $\text{Gamma}(1 + y_i, 1)$ to its rate.


# %%
def visits(key, z):
    """Draw the rate of a day, given its linear predictor z."""
    disturbance = jnp.exp(0.3 * jax.random.normal(key, z.shape, z.dtype))
    return jax.nn.softplus(z) * disturbance


factor = ep.ForwardSampler(visits, proposals=(ep.Gaussian.from_moments(0.0, 20.0),))
# Variable 1 is z: the oracle computes messages to z.
oracle = ep.ImportanceSampling(factor, variable=1, num_samples=100_000)

# Three visits, and a prior of z around 0.
incoming = (ep.Gamma(4.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0))
belief, effective = oracle.weigh(incoming, jax.random.key(0))
print(f"belief of z: mean {belief.mean:.3f}, variance {belief.variance:.3f}")
print(f"effective sample size: {effective:.0f}")

# %% [markdown]
# ## The posterior, with the sampler for every message
#
# The data are 100 days, and expectation propagation makes 6 sweeps: 600 messages of 100,000 samples each.

# %%
rng = np.random.default_rng(0)
weights = rng.normal(size=5)


def days(number, scale=1.0):
    """Draw features of days and their visits."""
    x = scale * rng.normal(size=(number, 5))
    rate = np.log1p(np.exp(x @ weights)) * np.exp(0.3 * rng.normal(size=number))
    return x, rng.poisson(rate)


def infer(x, y, operator=None, seed=0):
    """Run expectation propagation; return the posterior and the seconds it took."""
    start = time.perf_counter()
    posterior = ep.linear_model(
        x,
        ep.Gamma(1.0 + y, np.ones(len(y))),
        oracle=oracle,
        operator=operator,
        num_sweeps=6,
        key=jax.random.key(seed),
    )
    jax.block_until_ready(posterior.mean)
    return posterior, time.perf_counter() - start


def distance(found, other):
    """Return the largest difference of means, in posterior standard deviations."""
    deviations = jnp.sqrt(jnp.diagonal(other.covariance))
    return float(jnp.max(jnp.abs(found.mean - other.mean) / deviations))


x, y = days(100)
sampled, _ = infer(x, y)
other, _ = infer(x, y, seed=1)
print(f"two runs of the sampler differ by {distance(other, sampled):.3f} sd")
rows = {
    "true": weights,
    "mean": sampled.mean,
    "sd": jnp.sqrt(jnp.diagonal(sampled.covariance)),
}
for name, values in rows.items():
    print(f"{name:5}", " ".join(f"{value:6.2f}" for value in values))

# %% [markdown]
# ## An operator that learns the messages
#
# The operator collects 150 sampled messages and chooses its kernel by their medians. From then on it predicts, and queries the
# sampler where the log predictive variance is above `threshold`. `noise` is the variance of the training messages, here that of the sampler;
# the predictive variance cannot fall below it.
#
# The operator is used for six months of 100 days, and keeps what it has learned from one month to the next. Each month is also inferred
# with the sampler alone, for comparison.

# %%
noise = 1e-3
threshold = float(np.log(noise)) + 0.3
operator = ep.init_operator(
    jax.random.key(1),
    incoming,
    variable=1,
    num_initial=150,
    threshold=threshold,
    learner=ep.Learner(noise=noise),
)
history, times, months = [], [], 6
for month in range(months):
    x, y = days(100)
    learned, seconds = infer(x, y, operator)
    exact, exact_seconds = infer(x, y)
    operator = learned.operator
    history.append(learned.record)
    times.append((seconds, exact_seconds))
    queries = int(learned.record.asked.sum())
    print(f"month {month}: {queries:3d} queries in 600 messages,", end=" ")
    print(f"means within {distance(learned, exact):.2f} sd of the sampler's")

# %% tags=["loose"]
for month, (seconds, exact_seconds) in enumerate(times):
    print(f"month {month}: operator {seconds:5.2f} s, sampler {exact_seconds:5.2f} s")

# %% [markdown]
# The time of month 0 includes compilation. Queries become rare, and the time falls with them. The posterior means stay nearly as close to
# those of the sampler as two runs of the sampler are to each other.
#
# ## When the data change
#
# In the next two months all features are three times as large. The predictive variance of the new messages is large, so the
# operator queries the sampler again and learns.

# %%
for name in ("first", "second"):
    x, y = days(100, scale=3.0)
    learned, _ = infer(x, y, operator)
    operator = learned.operator
    history.append(learned.record)
    queries = int(learned.record.asked.sum())
    print(f"{name} month with large features: {queries} queries in 600 messages")

# %%
log_variance = np.concatenate(
    [np.asarray(r.log_variance).reshape(-1, 2).max(axis=1) for r in history]
)
queried = np.concatenate([np.asarray(r.asked).ravel() for r in history])
number = np.arange(len(queried))

figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(9, 5), sharex=True, layout="constrained"
)
top.plot(number[~queried], log_variance[~queried], "C0.", ms=2, label="predicted")
top.plot(number[queried], log_variance[queried], "C1x", ms=4, label="sampled (query)")
top.axhline(threshold, color="0.3", linewidth=1, label="threshold")
top.set(ylabel="log predictive variance")
top.legend(loc="upper center", fontsize="small")
bottom.plot(number, np.cumsum(queried), "C1")
bottom.set(xlabel="message", ylabel="queries so far")
for ax in (top, bottom):
    ax.axvline(months * 600, color="0.6", linestyle="--", linewidth=1)
note = {"ha": "right", "va": "bottom", "fontsize": "small"}
bottom.text(months * 600 - 60, 0, "features three times as large from here", **note)
plt.show()

# %% [markdown]
# The first 150 messages are all sampled, before there is a predictive variance.
#
# ## What next
#
# - `ep.logistic_regression` and `ep.precision_posteriors` are models with exact oracles. `ep.step` is one step of the loop, for
#   custom models inside `jax.lax.scan`.
# - The operator is a pytree: save `jax.tree.leaves(operator)` to resume learning later.
# - `ep.select_parameters` chooses kernel and noise by closed-form leave-one-out error or by the marginal likelihood.
