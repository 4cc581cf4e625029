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
# # Messages that are learned: expectation propagation with a factor of your own
#
# After this notebook you can take a factor that you can only *sample from*, infer the posterior of a model around it by
# expectation propagation, and let a kernel regression learn to send its messages: it asks the expensive sampler only where
# it is unsure, and you will see the moment when new data make it ask again. It takes about a minute.

# %%
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from kbpjax import ep

jax.config.update(
    "jax_enable_x64", True
)  # the regression's posterior likes the digits; single precision works too

# %% [markdown]
# ## The model: visits at a shop
#
# The number of visits on a day is Poisson, at a rate that depends on $d = 5$ things we know of the day, through weights
# that we do not know: $z_i = w'x_i$, $r_i = \log(1 + e^{z_i})$ times a disturbance of the day, $y_i \sim \text{Poisson}(r_i)$.
#
# The factor between $z$ and the rate has no formula for its messages. We can *draw from it*, and that is all that is needed.
# A count $y$ says of its rate what the message $\text{Gamma}(1 + y, 1)$ says.


# %%
def visits(key, z):
    """Draw the rate of a day from its log odds."""
    disturbance = jnp.exp(0.3 * jax.random.normal(key, z.shape, z.dtype))
    return jax.nn.softplus(z) * disturbance


factor = ep.ForwardSampler(visits, proposals=(ep.Gaussian.from_moments(0.0, 20.0),))
oracle = ep.ImportanceSampling(
    factor, variable=1, num_samples=100_000
)  # variable 1: the message to z

incoming = (
    ep.Gamma(4.0, 1.0),
    ep.Gaussian.from_moments(0.0, 1.0),
)  # three visits; z about 0
belief, effective = oracle.weigh(incoming, jax.random.key(0))
print(
    f"belief of z: mean {belief.mean:.3f}, variance {belief.variance:.3f}; effective sample size {effective:.0f}"
)

# %% [markdown]
# ## The posterior, asking the sampler for every message
#
# 100 days, 6 sweeps: 600 messages of 100,000 draws each.

# %%
rng = np.random.default_rng(0)
weights = rng.normal(size=5)


def days(number, scale=1.0):
    """Draw days and their visits."""
    x = scale * rng.normal(size=(number, 5))
    rate = np.log1p(np.exp(x @ weights)) * np.exp(0.3 * rng.normal(size=number))
    return x, rng.poisson(rate)


def infer(x, y, operator=None, seed=0):
    """Run expectation propagation; return the posterior and the seconds that it took."""
    start = time.perf_counter()
    child, key = ep.Gamma(1.0 + y, np.ones(len(y))), jax.random.key(seed)
    posterior = ep.linear_model(
        x, child, oracle=oracle, operator=operator, num_sweeps=6, key=key
    )
    jax.block_until_ready(posterior.mean)
    return posterior, time.perf_counter() - start


def distance(found, other):
    """Return the largest difference of posterior means, in posterior standard deviations."""
    return float(
        jnp.max(
            jnp.abs(found.mean - other.mean) / jnp.sqrt(jnp.diagonal(other.covariance))
        )
    )


x, y = days(100)
other, _ = infer(x, y, seed=1)
sampled, seconds = infer(x, y)  # without the time of compilation
print(
    f"{seconds:.1f} s; with other draws the means are within {distance(other, sampled):.3f} standard deviations"
)
for name, values in {
    "true": weights,
    "mean": sampled.mean,
    "sd": jnp.sqrt(jnp.diagonal(sampled.covariance)),
}.items():
    print(f"{name:5}", " ".join(f"{value:6.2f}" for value in values))

# %% [markdown]
# ## An operator that learns the messages
#
# It collects its first 150 answers, chooses its kernel by their medians, and from then on predicts. `noise` is the variance
# of what it learns from, here that of the sampler; `threshold` is on the log predictive variance, which cannot fall below log noise.

# %%
learner = ep.Learner(noise=1e-3)
threshold = float(np.log(1e-3)) + 0.3
options = {"num_initial": 150, "threshold": threshold, "learner": learner}
operator = ep.untrained(jax.random.key(1), incoming, variable=1, **options)
history, MONTHS = [], 6
for month in range(MONTHS):
    x, y = days(100)
    learned, seconds = infer(x, y, operator)
    operator = learned.operator
    exact, exact_seconds = infer(x, y)
    history.append(learned.record)
    took = f"{seconds:5.2f} s (sampler {exact_seconds:.2f} s)"
    asked = int(learned.record.asked.sum())
    print(
        f"month {month}: asked {asked:3d} of 600, {took}, means within {distance(learned, exact):.3f}"
    )

# %% [markdown]
# The first month compiles. From then on the operator asks for a few messages in a hundred, and its
# posterior is as close to the sampler's as two runs of the sampler are to each other.
#
# ## The moment where it asks for help
#
# Now a month that is like none before: everything is three times as large. The predictive variance knows.

# %%
x, y = days(100, scale=3.0)
strange, seconds = infer(x, y, operator)
history.append(strange.record)
x, y = days(100, scale=3.0)
again, _ = infer(x, y, strange.operator)
history.append(again.record)
print(
    f"strange month: asked {int(strange.record.asked.sum())} of 600; the next one: {int(again.record.asked.sum())}"
)

# %%
log_variance = np.concatenate(
    [np.asarray(record.log_variance).reshape(-1, 2).max(axis=1) for record in history]
)
asked = np.concatenate([np.asarray(record.asked).ravel() for record in history])
number = np.arange(len(asked))

figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(9, 5), sharex=True, layout="constrained"
)
top.plot(
    number[~asked],
    log_variance[~asked],
    ".",
    color="#0072B2",
    markersize=2,
    label="sent by the operator",
)
top.plot(
    number[asked],
    log_variance[asked],
    "x",
    color="#D55E00",
    markersize=4,
    label="asked the sampler",
)
top.axhline(threshold, color="0.3", linewidth=1, label="threshold")
top.set(ylabel="log predictive variance")
top.legend(loc="upper center")
bottom.plot(number, np.cumsum(asked), color="#D55E00")
bottom.set(xlabel="message", ylabel="questions asked so far")
for ax in (top, bottom):
    ax.axvline(MONTHS * 600, color="0.6", linestyle="--", linewidth=1)
bottom.text(
    MONTHS * 600 - 60,
    0,
    "days three times as large from here",
    ha="right",
    va="bottom",
    fontsize="small",
)
caption = "Months of 600 messages; the first 150 are asked to learn from, before there is any variance."
figure.supxlabel(caption, fontsize="medium")
plt.show()

# %% [markdown]
# ## What next
#
# - `ep.logistic_regression` and `ep.precision_posteriors` are models with exact oracles; `ep.send` is one step of the loop, for a
#   model of your own inside `jax.lax.scan`.
# - The operator is a pytree: `jax.tree.leaves(operator)` can be saved, and learning goes on where it stopped.
# - `ep.select` chooses kernel and noise by closed-form leave-one-out error or by the evidence.
