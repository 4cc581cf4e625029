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
# # Tables with holes
#
# A survey with missing answers becomes ten completed tables and a regression on them; then twelve stations fill the
# outage of one. `GraphImputer` learns from the rows with holes, and says how certain each filled cell is.

# %%
import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from kbpjax.estimator import GraphImputer

rng = np.random.default_rng(0)


def survey(count):
    """Draw a table: incomes rise with age and training, which differ by region."""
    region = rng.choice(["coast", "hills", "plain"], count, p=[0.5, 0.2, 0.3])
    years = rng.poisson(np.where(region == "coast", 6, 3))
    age = 20 + 5 * rng.gamma(4, 1, count)
    noise = 0.4 * rng.normal(size=count)
    income = np.exp(2 + 0.02 * age + 0.12 * years + 0.2 * (region == "hills") + noise)
    columns = {"age": age.round(1), "region": region, "years": years}
    return pd.DataFrame(columns | {"income": income.round(2)})


complete = survey(700)
holes = complete.mask(rng.random(complete.shape) < 0.25)
text = holes.to_csv(index=False)
print(text[:110])

# %% [markdown]
# ## From a file to ten completed tables
#
# The kinds of the columns are found from their types and values. Of `income`, the right tail is long: nothing is
# transformed by hand.

# %%
table = pd.read_csv(io.StringIO(text))
imputer = GraphImputer(effort="low").fit(table)
tables = imputer.sample(table, 10)
print(imputer.kinds_)
print(tables[0].head(3))

# %% [markdown]
# The effect of a year of training on the logarithm of the income, given age and region, is 0.12. Each table gives an
# estimate and its variance; the pooled variance is that within tables plus that between them (Rubin 1987). A table that
# was filled once, with means, hides that its cells were guessed.


# %%
def effect(table):
    """Return the coefficient of the years, and its variance, by least squares."""
    hills, plain = (table["region"] == name for name in ("hills", "plain"))
    columns = [np.ones(len(table)), table["years"], table["age"], hills, plain]
    x = np.stack([np.asarray(column, float) for column in columns], axis=1)
    y = np.log(table["income"].to_numpy(float))
    inverse = np.linalg.inv(x.T @ x)
    beta = inverse @ x.T @ y
    return beta[1], inverse[1, 1] * np.sum((y - x @ beta) ** 2) / (len(y) - x.shape[1])


def pooled(tables):
    """Return the estimate of several completed tables and its standard error."""
    found, within = np.transpose([effect(table) for table in tables])
    more = (1 + 1 / len(tables)) * found.var(ddof=1) if len(tables) > 1 else 0.0
    return found.mean(), np.sqrt(within.mean() + more)


answers = {
    "without holes": pooled([complete]),
    "rows without a hole": pooled([table.dropna()]),
    "filled once, with means": pooled([imputer.transform(table)]),
    "ten draws, pooled": pooled(tables),
}
for name, (estimate, error) in answers.items():
    print(f"{name:24} {estimate:.3f} +- {error:.3f}")

# %%
figure, axis = plt.subplots(figsize=(6, 2.2), constrained_layout=True)
for place, (estimate, error) in enumerate(answers.values()):
    axis.errorbar(
        estimate, -place, xerr=2 * error, fmt="o", color=f"C{place}", capsize=3
    )
axis.axvline(0.12, color="k", lw=1)
axis.set(
    yticks=-np.arange(4),
    yticklabels=answers,
    xlabel="effect of a year of training, and 2 standard errors",
)
plt.show()

# %% [markdown]
# ## An outage among stations
#
# Twelve stations measure the wind of each day. Fronts move from west to east, so the days before and after tell
# something, too: `lags=1`. `positions=` joins near stations first. Station 4 is out of service for three weeks.

# %%
days, stations, gone = 500, 12, slice(460, 481)
places = rng.uniform(0, 10, (stations, 2))
fronts = np.cumsum(rng.normal(size=(days + 40, 1)), axis=0)
front = np.array(
    [
        np.interp(np.arange(days) + 30 - x, np.arange(days + 40), fronts[:, 0])
        for x in places[:, 0]
    ]
).T
front = front - pd.DataFrame(front).rolling(15, min_periods=1).mean().to_numpy()
wind = np.exp(1 + 0.35 * front + 0.15 * rng.normal(size=front.shape))
measured = np.where(rng.random(wind.shape) < 0.05, np.nan, wind)
measured[gone, 4] = np.nan
network = GraphImputer(effort="low", positions=places, lags=1).fit(measured)
low, high = network.interval(measured, 0.9)
filled = network.transform(measured)
inside = (wind[gone, 4] >= low[gone, 4]) & (wind[gone, 4] <= high[gone, 4])
print(f"{inside.sum()} of {len(inside)} days of the outage are in their 90 % interval")
error = np.sqrt(np.mean((filled[gone, 4] - wind[gone, 4]) ** 2))
alone = np.sqrt(np.mean((np.nanmean(measured[:, 4]) - wind[gone, 4]) ** 2))
print(f"root mean squared error {error:.2f}, of the mean of the station {alone:.2f}")

# %%
figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.4), width_ratios=[2, 1], constrained_layout=True
)
days_shown = np.arange(450, 491)
for coverage, shade in ((0.9, 0.25), (0.5, 0.4)):
    ends = network.interval(measured, coverage)
    left.fill_between(
        days_shown, *(end[days_shown, 4] for end in ends), color="C0", alpha=shade, lw=0
    )
left.plot(days_shown, filled[days_shown, 4], color="C0", label="filled, 50 and 90 %")
left.plot(
    days_shown, wind[days_shown, 4], "k", lw=1, label="wind, hidden in the outage"
)
left.axvspan(gone.start, gone.stop - 1, color="0.93", zorder=0)
left.set(xlabel="day", ylabel="wind at station 4")
left.legend(fontsize=8)
shown = right.scatter(
    *places.T, c=network.dependence_[4], s=140, cmap="viridis", edgecolor="k"
)
for station, place in enumerate(places):
    right.annotate(str(station), place, ha="center", va="center", fontsize=7, color="w")
figure.colorbar(shown, ax=right, label="dependence with station 4")
right.set(xlabel="east", ylabel="north")
plt.show()

# %% [markdown]
# ## What is certain, and what is not
#
# `report` hides cells on purpose and compares: on rows that `fit` has not seen, its figures hold for others. What no
# method can see is a hole that depends on the missing value itself.

# %%
for one in imputer.report(survey(300)):
    print(one)
