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
# # Angles of a protein: variables on a sphere, along chains
#
# This notebook shows how to
#
# - use directions as variables, with a kernel on the sphere;
# - learn one model from many chains of different lengths, and infer many new chains in one call;
# - summarize a belief on a sphere: mode, mean direction, credible set;
# - see uncertainty grow where observations are missing, and check the coverage of credible sets.
#
# It runs in about half a minute on simulated chains. Chains have no cycles, so inference is exact for the learned model.
#
# Each residue of a protein has two angles between successive C-alpha atoms: a bond angle $\theta$ from 0 to 180 degrees and a
# torsion $\tau$ from -180 to 180. The angles are not observed. Observed is a *profile*: the frequencies of amino acids at that
# position in related proteins. The same task on real proteins, with baselines: `experiments/protein`.

# %%
import warnings
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp

rng = np.random.default_rng(0)

# %% [markdown]
# ## Simulated chains
#
# A hidden state (helix, sheet or coil) follows a Markov chain. Each state has one or more centers on the sphere, around which the angles follow
# a von Mises-Fisher distribution, and its own probabilities of the 20 amino acids. The profile is their share in five related
# proteins. The numbers are invented, but helices lie near $\tau$ = 50 degrees and sheets across $\tau$ = 180, as in nature.

# %%
STATES = ("helix", "sheet", "coil")
# Transition probabilities of the states.
STEP = np.array([[0.90, 0.01, 0.09], [0.01, 0.85, 0.14], [0.10, 0.12, 0.78]])
CENTRES = (  # of each state: share, theta, tau, concentration
    np.array([[1.0, 91, 51, 120]]),
    np.array([[1.0, 123, -172, 30]]),
    np.array([[0.30, 95, 58, 25], [0.45, 118, -165, 12], [0.25, 102, -85, 8]]),
)
RELATED = 5
preference = np.exp(0.75 * rng.normal(size=(3, 20)))
preference /= preference.sum(axis=1, keepdims=True)


class Chain(NamedTuple):
    """A chain: states [residue], directions [residue, 3], profiles [residue, 20]."""

    state: np.ndarray
    direction: np.ndarray
    profile: np.ndarray


def to_vectors(angles):
    """Turn theta and tau in degrees [.., 2] into unit vectors [.., 3]."""
    theta, tau = np.moveaxis(np.deg2rad(angles), -1, 0)
    return np.stack(
        [np.sin(theta) * np.cos(tau), np.sin(theta) * np.sin(tau), np.cos(theta)],
        axis=-1,
    )


def to_angles(vectors):
    """Turn vectors of any length [.., 3] into theta and tau in degrees [.., 2]."""
    x, y, z = np.moveaxis(np.asarray(vectors), -1, 0)
    return np.rad2deg(
        np.stack([np.arctan2(np.hypot(x, y), z), np.arctan2(y, x)], axis=-1)
    )


def scatter(center, concentration):
    """Draw from von Mises-Fisher distributions around centers [residue, 3]."""
    cosine = (
        1
        + np.log1p(-rng.random(len(center)) * (1 - np.exp(-2 * concentration)))
        / concentration
    )
    across = rng.normal(size=center.shape)
    across -= np.sum(across * center, axis=1, keepdims=True) * center
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    return (
        cosine[:, None] * center
        + np.sqrt(np.maximum(1 - cosine**2, 0))[:, None] * across
    )


def draw(length):
    """Draw a chain."""
    state = [rng.choice(3)]
    for _ in range(length - 1):
        state.append(rng.choice(3, p=STEP[state[-1]]))
    rows = [rng.choice(len(CENTRES[s]), p=CENTRES[s][:, 0]) for s in state]
    around = np.array([CENTRES[s][row] for s, row in zip(state, rows, strict=True)])
    profile = rng.multinomial(RELATED, preference[state]) / RELATED
    return Chain(
        np.array(state), scatter(to_vectors(around[:, 1:3]), around[:, 3]), profile
    )


train = [draw(length) for length in rng.integers(60, 140, size=25)]
lengths = rng.integers(60, 140, size=30)
validation, test = ([draw(length) for length in lengths] for _ in range(2))


def joined(chains, field):
    """Concatenate a field of all chains."""
    return np.concatenate([getattr(chain, field) for chain in chains])


known, truth = joined(train, "direction"), joined(test, "direction")
shares = np.bincount(joined(train, "state")) / len(known)
print(f"{len(train)} training chains, {len(known)} residues;", end=" ")
print(
    ", ".join(f"{share:.0%} {name}" for share, name in zip(shares, STATES, strict=True))
)

# %% [markdown]
# ## Angles are points on a sphere
#
# The pair ($\theta$, $\tau$) is a point on a sphere, where $\theta$ is its distance from the pole. Two sheets at $\tau$ = 175 and
# -175 degrees are neighbors on the sphere, but far apart as numbers. `kbp.kernels.Sphere` is the exponential of the
# inner product of unit vectors. Near a point it is close to an RBF of the angle, of width 1 / sqrt(concentration) radians. The figure
# shows both at the same width.

# %%
width = 25.0  # degrees
on_sphere, on_numbers = kbp.kernels.Sphere(1 / np.deg2rad(width) ** 2), kbp.RBF(width)
COLOURS = ("#D55E00", "#0072B2", "0.55")


def axes_of_angles(ax, title):
    """Label axes for theta against tau."""
    ax.set(
        title=title,
        xlabel="tau (degrees)",
        xlim=(-180, 180),
        ylim=(0, 180),
        xticks=range(-180, 181, 90),
    )


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
for s in (2, 0, 1):
    theta, tau = to_angles(known[joined(train, "state") == s]).T
    left.plot(tau, theta, ".", markersize=2, color=COLOURS[s], label=STATES[s])
axes_of_angles(left, "training residues")
left.set_ylabel("theta (degrees)")
left.legend(markerscale=5, loc="lower left", ncols=3)
place, tau = np.array([[120.0, 165.0]]), np.linspace(-180, 180, 361)
line = np.stack([np.full(len(tau), 120.0), tau], axis=1)
right.plot(
    tau,
    kbp.gram(on_sphere, to_vectors(line), to_vectors(place))[:, 0],
    label="Sphere on points",
)
right.plot(tau, kbp.gram(on_numbers, line, place)[:, 0], "--", label="RBF on angles")
right.set(
    title="k(x, x') at theta = 120, x' at tau = 165",
    xlabel="tau of x (degrees)",
    ylabel="kernel (no unit)",
)
right.set(xlim=(-180, 180), xticks=range(-180, 181, 90))
right.legend(loc="upper center")
plt.show()

# %% [markdown]
# Left: sheets, and much of coil, lie across the seam at 180 = -180 degrees. Right: only the kernel on the sphere is continuous there.
#
# ## One model from many chains
#
# `kbp.pool` takes a list of graphs of any sizes, with an array of samples [sample, node, ...] for each. The edges of all
# chains share one operator. The two ridges, of messages and of evidence, are chosen on validation chains by the log score: the mean
# logarithm of the belief in the candidate nearest to the truth.
#
# All test chains form *one* graph, a forest, and exact inference (`run_tree`) runs on it in one call. Candidates are
# training samples, so the belief is a set of weights on them: `marginal=kbp.Empirical()`. The mode is different: it is the point of
# largest *density*, which needs the default marginal.

# %%
graphs = [kbp.chain_graph(len(chain.state)) for chain in train]
profiles = [chain.profile[None] for chain in train]
chosen = rng.permutation(len(known))[:800]
points = known[chosen]
obs_kernel = kbp.RBF(kbp.median_bandwidth(joined(train, "profile")))


def learn(data, kernel, ridge, obs_ridge):
    """Fit a model."""
    rule = kbp.ConstantTime(eps=1e-3, max_rank=64)
    options = {"ridge": ridge, "obs_ridge": obs_ridge, "floor": 1e-3, "rule": rule}
    with warnings.catch_warnings():
        # 64 landmarks leave a residual of 0.3 to 0.4: coarse, but quick.
        warnings.simplefilter("ignore", kbp.RankWarning)
        return kbp.fit(data, kernel=kernel, obs_kernel=obs_kernel, **options)


@jax.jit
def infer(model, graph, y, mask, candidates):
    """Return beliefs as weights on samples, and modes; mask marks observed residues."""
    evidence = kbp.observe(
        model, graph, y, mask=mask, evidence_model=kbp.DensityRatio()
    )
    solution = kbp.run_tree(model, graph, evidence)
    mode = kbp.mode(kbp.beliefs(model, graph, evidence, solution, candidates))
    weights = kbp.Empirical()
    belief = kbp.beliefs(model, graph, evidence, solution, candidates, marginal=weights)
    return belief, mode


def forest(chains, edges=True):
    """Return all chains as one graph, or the residues alone, without edges."""
    last = np.cumsum([len(chain.state) for chain in chains]) - 1
    first = np.setdiff1d(np.arange(last[-1]), last) if edges else np.zeros(0, int)
    return kbp.Graph.from_edges(np.stack([first, first + 1], axis=1), last[-1] + 1)


def log_score(belief, true):
    """Return the mean log weight of the candidate nearest to the truth."""
    nearest = np.argmax(true @ points.T, axis=1)
    weights = np.asarray(belief.weights)
    return float(np.mean(np.log(weights[np.arange(len(true)), nearest])))


def choose(values, kernel, candidates):
    """Return the model whose ridges score best on validation chains, and all scores."""
    data = kbp.pool(graphs, values, profiles)
    graph, y = forest(validation), joined(validation, "profile")
    best, tried = None, {}
    for ridges in [(1e-3, 1e-3), (1e-3, 1e-2), (1e-2, 1e-3), (1e-2, 1e-2)]:
        model = learn(data, kernel, *ridges)
        belief, _ = infer(model, graph, y, np.ones(len(y), bool), candidates)
        tried[ridges] = log_score(belief, joined(validation, "direction"))
        best = model if tried[ridges] == max(tried.values()) else best
    return best, tried


model, tried = choose([chain.direction[None] for chain in train], on_sphere, points)
for (ridge, obs_ridge), score in tried.items():
    print(f"ridge {ridge:g}, obs_ridge {obs_ridge:g}: log score {score:.3f}")
print(f"uniform weights: {-np.log(len(points)):.3f}; ranks {model.ranks[0]}")

# %% [markdown]
# ## Estimates on a sphere
#
# - The **mode** is a candidate, and so lies on the sphere.
# - **Samples** of the belief (`kbp.sample`) are candidates too.
# - The **mean** of unit vectors is shorter than 1. Its direction minimizes the expected squared distance. Its length
#   measures certainty: 1 for a single point, 0 for no preferred direction.
# - The candidate of **least expected angle** is found from a sum over weights, like any other expectation.
#
# The error is the angle between estimate and truth. Compared are the model with messages (*chain*), the same model on a graph
# without edges (*alone*), and the single direction with the least mean angle to the training residues (*constant*). Because the chains are simulated, the best
# possible posterior is known too (*limit*): forward-backward with the true probabilities of states, amino acids and centers.

# %%
unit = kbp.kernels.unit_vectors


def angle(a, b):
    """Return the angle between unit vectors in degrees."""
    return np.rad2deg(
        np.arccos(np.clip(np.sum(np.asarray(a) * np.asarray(b), axis=-1), -1, 1))
    )


between = np.rad2deg(np.arccos(np.clip(points @ points.T, -1, 1)))


def least_angle(belief):
    """Return the candidate of least expected angle."""
    return points[np.argmin(np.asarray(belief.weights) @ between, axis=1)]


def limit(chains):
    """Return posterior mean directions by forward-backward, of the true model."""
    shrink = [(1 / np.tanh(of[:, 3]) - 1 / of[:, 3]) * of[:, 0] for of in CENTRES]
    means = np.stack(
        [by @ to_vectors(of[:, 1:3]) for by, of in zip(shrink, CENTRES, strict=True)]
    )
    found = []
    for chain in chains:
        seen = np.exp(RELATED * chain.profile @ np.log(preference).T)
        ahead, back = [seen[0]], [np.ones(3)]
        for now, later in zip(seen[1:], seen[:0:-1], strict=True):
            ahead.append(now * (ahead[-1] @ STEP) / ahead[-1].sum())
            back.append(STEP @ (later * back[-1]) / back[-1].sum())
        found.append(np.array(ahead) * np.array(back[::-1]))
    return unit(np.concatenate(found) @ means)


graph, seen = forest(test), joined(test, "profile")
everywhere = np.ones(len(seen), bool)
belief, mode = infer(model, graph, seen, everywhere, points)
alone, mode_alone = infer(model, forest(test, edges=False), seen, everywhere, points)
constant = points[np.argmin(np.arccos(np.clip(points @ known.T, -1, 1)).mean(axis=1))]
answers = {
    "constant": constant,
    "alone, mode": mode_alone,
    "alone, least expected angle": least_angle(alone),
    "alone, mean": unit(kbp.mean(alone)),
    "chain, one draw": kbp.sample(belief, jax.random.key(0), 1)[0],
    "chain, mode": mode,
    "chain, least expected angle": least_angle(belief),
    "chain, mean": unit(kbp.mean(belief)),
    "limit: true probabilities, mean": limit(test),
}


number = np.repeat(np.arange(len(test)), lengths)  # of the chain of each residue
residue = np.concatenate([np.arange(length) for length in lengths])


def over_chains(values, rows=everywhere):
    """Return the mean over residues, and its standard error for independent chains."""
    mean = np.mean(values[rows])
    sums = np.bincount(number[rows], values[rows] - mean)
    return f"{mean:5.1f} ± {np.sqrt(np.sum(sums**2)) / np.sum(rows):.1f}"


errors = {name: angle(answer, truth) for name, answer in answers.items()}
print("mean angle to the truth, degrees, ± standard error")
for name, error in errors.items():
    print(f"{name:32} {over_chains(error)}")
gain = errors["alone, mean"] - errors["chain, mean"]
print(f"{'gain by messages (paired, mean)':32} {over_chains(gain)}")

# %% [markdown]
# Messages reduce the error by about a third, and close most of the gap to the limit. Among the estimates, the candidate of least
# expected angle has the least mean angle, as it should.
#
# ## The same on raw angles: what breaks at the seam
#
# The same model is now learned with an RBF of the same width on ($\theta$, $\tau$) in degrees, its ridges chosen by the
# same search. *Near the seam* means that the true $\tau$ is beyond ± 150 degrees. Both the kernel and the estimate may fail there, so
# three estimates are compared: modes; the direction of the mean of points on the sphere; the means of the two numbers.

# %%
angles = [to_angles(chain.direction)[None] for chain in train]
flat_model, flat_tried = choose(angles, on_numbers, to_angles(points))
flat, flat_mode = infer(flat_model, graph, seen, everywhere, to_angles(points))
near = np.abs(to_angles(truth)[:, 1]) > 150
compared = {
    "Sphere on points, mode": mode,
    "RBF on angles, mode": to_vectors(flat_mode),
    "Sphere on points, mean of points": answers["chain, mean"],
    "RBF on angles, mean of points": unit(np.asarray(flat.weights) @ points),
    "RBF on angles, mean of angles": to_vectors(kbp.mean(flat)),
}
scores = max(tried.values()), max(flat_tried.values())
print(f"validation log score: sphere {scores[0]:.3f}, angles {scores[1]:.3f}")
print(f"{near.mean():.0%} of the residues are near the seam\n")
print(f"{'mean angle to the truth, degrees':33} near the seam     elsewhere")
for name, answer in compared.items():
    error = angle(answer, truth)
    print(f"{name:33} {over_chains(error, near):>13} {over_chains(error, ~near):>13}")
lost = angle(to_vectors(flat_mode), truth) - errors["chain, mode"]
name = "modes, paired: loss by the RBF"
print(f"{name:33} {over_chains(lost, near):>13} {over_chains(lost, ~near):>13}")
print(f"{'over all residues':33} {over_chains(lost):>13}")

# %% [markdown]
# Means of angles are useless near the seam: 175 and -175 have the mean 0. The kernel alone costs less. An
# RBF can learn both sides of the seam separately, each from its share of the data, but it cannot add them up to one cluster. Its modes
# are therefore worse near the seam. Elsewhere they are slightly better, because the clusters there win more often.
#
# ## A stretch without observations
#
# In each test chain, fifteen residues have no profile. Entries of `y` that `mask` excludes are ignored and may be NaN. The belief
# there comes from the neighbors in the chain only. Its uncertainty is summarized by the expected angle between estimate and truth, under the belief
# itself.

# %%
hidden = (residue >= 25) & (residue < 40)
partly = np.where(hidden[:, None], np.nan, seen)
filled, filled_mode = infer(model, graph, partly, ~hidden, points)


def expected_error(belief):
    """Return the mean direction, and the expected angle from it under the belief."""
    direction = np.asarray(unit(kbp.mean(belief)))
    cosines = np.clip(direction @ points.T, -1, 1)
    angles = np.rad2deg(np.arccos(cosines))
    return direction, np.sum(np.asarray(belief.weights) * angles, axis=1)


def by_residue(values, last=60):
    """Average over test chains, residue by residue."""
    rows = residue < last
    return np.bincount(residue[rows], values[rows]) / np.bincount(residue[rows])


direction, expected = expected_error(filled)
_, expected_all = expected_error(belief)
actual, actual_all = angle(direction, truth), errors["chain, mean"]
middle = (residue >= 30) & (residue < 35)
places = {"middle of the stretch": middle, "outside the stretch": ~hidden}
print("mean angle in degrees      expected  actual   all profiles: expected  actual")
for name, rows in places.items():
    first = f"{name:24}{expected[rows].mean():11.1f}{actual[rows].mean():8.1f}"
    print(f"{first}{expected_all[rows].mean():25.1f}{actual_all[rows].mean():8.1f}")
print(f"{'constant':24}{errors['constant'].mean():19.1f}")

# %% [markdown]
# In the middle of the stretch, the observed neighbors are too far away to be informative. The error is that of the constant estimate, and the expected error is
# nearly as large. Within a few residues of an observed profile, both fall.

# %%
LEVEL = 0.9


def better(belief):
    """Return the belief in all candidates of higher weight than each [node, point]."""
    weights = np.asarray(belief.weights)
    order = np.argsort(-weights, axis=1)
    ranked = np.take_along_axis(weights, order, axis=1)
    held = np.empty_like(weights)
    np.put_along_axis(held, order, np.cumsum(ranked, axis=1) - ranked, axis=1)
    return held


shown = np.flatnonzero((number == 0) & (residue < 60))
where, which = np.nonzero(better(filled)[shown] < LEVEL)
figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(10, 6), sharex=True, layout="constrained"
)
top.scatter(
    where,
    to_angles(points)[which, 1],
    s=2,
    color="C0",
    alpha=0.15,
    label=f"{LEVEL:.0%} credible set",
)
top.plot(to_angles(truth[shown])[:, 1], "k.", markersize=7, label="true")
top.set(
    ylabel="tau (degrees)",
    ylim=(-180, 180),
    yticks=range(-180, 181, 90),
    title="one test chain",
)
bottom.plot(by_residue(expected), color="C0", label="expected under the belief")
bottom.plot(by_residue(actual), "k.-", linewidth=0.6, label="actual")
bottom.plot(by_residue(expected_all), "C0:", label="expected, with all profiles")
bottom.axhline(errors["constant"].mean(), color="0.5", label="constant, actual")
bottom.set(xlabel="residue", ylabel="angular error (degrees)", ylim=(0, None))
bottom.set_title(f"mean of {len(lengths)} test chains")
for ax in (top, bottom):
    ax.axvspan(24.5, 39.5, color="0.9", zorder=0)
    ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# Gray: residues without profile. The dots in the upper panel are the training samples in the credible set of each residue.
#
# ## Are credible sets calibrated?
#
# On a sphere there are no intervals. The 90 % credible set is the smallest set of candidates that holds 90 % of the belief, and
# may have several parts. Its coverage is the share of residues for which it contains the candidate nearest to the truth.

# %%
nearest = np.argmax(truth @ points.T, axis=1)
judged = {
    "alone": (alone, everywhere),
    "chain": (belief, everywhere),
    "missing stretch": (filled, hidden),
}
levels = np.array([0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
figure, ax = plt.subplots(figsize=(5.5, 4), layout="constrained")
ax.plot([0, 100], [0, 100], color="0.5", linewidth=1, label="calibrated")
for (name, (of, rows)), style in zip(judged.items(), ("s--", "o-", "^:"), strict=True):
    held = better(of)
    # The belief in candidates of higher weight than the one nearest to the truth.
    above = held[np.arange(len(nearest)), nearest]
    size = np.mean(held[rows] < LEVEL)
    print(f"{name:16} {LEVEL:.0%} sets: coverage", end=" ")
    print(f"{over_chains(100.0 * (above < LEVEL), rows)} %,", end=" ")
    print(f"{size:.0%} of the candidates")
    coverage = [100 * np.mean(above[rows] < level) for level in levels]
    ax.plot(100 * levels, coverage, style, markersize=4, label=name)
ax.set(xlabel="nominal (%)", ylabel="coverage (%)", title="Coverage of credible sets")
ax.legend()
plt.show()

# %% [markdown]
# Sets of the chain are nearly calibrated, and smaller than those of single residues. Where beliefs are over- or underconfident on your own data,
# `kbp.temper` corrects them with one number chosen on validation data, as the [notebook on images](images.ipynb) shows.
#
# ## One belief in detail
#
# Among the residues in the middle of a missing stretch, this is the one whose true angles are nearest to the seam: with all profiles, and
# without those of the stretch. Where a belief has several clusters, its mean is short and may point to a direction that no residue
# has. Then report the mode or the credible set.

# %%
center = np.flatnonzero(residue == 32)
node = center[np.argmax(np.abs(to_angles(truth[center])[:, 1]))]
figure, panels = plt.subplots(1, 3, figsize=(12, 4), sharey=True, layout="constrained")
panels[0].plot(*to_angles(truth)[:, ::-1].T, ".", markersize=2, color="0.4")
axes_of_angles(panels[0], "true angles of test residues")
panels[0].set_ylabel("theta (degrees)")
views = {"all profiles": (belief, mode), "stretch missing": (filled, filled_mode)}
for ax, (title, (of, top)) in zip(panels[1:], views.items(), strict=True):
    weight = np.asarray(of.weights)[node]
    tau = to_angles(points)[:, 1]
    ax.scatter(
        tau,
        to_angles(points)[:, 0],
        s=8000 * weight,
        color="#0072B2",
        alpha=0.35,
        linewidth=0,
    )
    mean = kbp.mean(of)[node]
    marks = {
        "mode": (top[node], "yD"),
        "mean direction": (mean, "kP"),
        "truth": (truth[node], "r*"),
    }
    for size, (name, (at, style)) in zip((8, 10, 15), marks.items(), strict=True):
        options = {
            "markersize": size,
            "markeredgecolor": "white",
            "clip_on": False,
            "zorder": 5,
        }
        ax.plot(*to_angles(at)[::-1], style, label=name, **options)
    far = weight[np.abs(tau) > 150].sum()
    summary = f"{far:.0%} beyond ± 150; mean of length {np.linalg.norm(mean):.2f}"
    axes_of_angles(ax, f"belief, {title}\n{summary}")
    ax.legend(loc="lower left", fontsize="small", ncols=3)
plt.show()

# %% [markdown]
# Each dot is a training sample; its area is its weight. The left and the right edge are the same line on the sphere.
#
# ## Real proteins
#
# The next function returns real chains in the same form, cut where a structure has a gap. It needs a checkout and the data that
# `experiments/protein/data.py` describes, in the folder named by `KBPJAX_DATA`; this notebook does not call it. To use it, replace `train`, `validation`
# and `test`, set `lengths` to those of the test chains, and omit what uses the simulated states: the colors and the limit.
# Results of the full experiment: [real data](../docs/real_data.md).


# %%
def real_chains(least=60):
    """Return stretches without gaps of at least `least` residues of real proteins."""
    from experiments.lib import datasets
    from experiments.protein import data

    every = data.load(datasets.data_directory())
    whole = every.scored & every.observed
    joins = every.linked[:-1] & whole[:-1] & whole[1:]
    stretches = np.split(np.arange(len(whole)), np.flatnonzero(~joins) + 1)
    return [
        Chain(np.full(len(rows), -1), every.vectors[rows], every.profiles[rows])
        for rows in stretches
        if whole[rows[0]] and len(rows) >= least
    ]


# %% [markdown]
# ## What next
#
# - Rotations, rankings, sets, strings: the same program with another kernel, see [kernels](../docs/kernels.md).
# - A window of profiles observes several residues at once, and operators may differ by residue type (`edge_type=`). Both are in
#   `experiments/protein`.
# - Candidates need not be samples: with a uniform grid on the sphere omit `Empirical()`, and `kbp.refine_mode(retract=...)` climbs
#   between them.
