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
# After this notebook you can use directions as variables, learn one template from many chains of different lengths, infer
# whole sets of new chains at once, read answers off a belief on a sphere, see doubt grow where observations are missing, and
# check whether credible sets hold what they promise. It takes half a minute and needs no data: it draws chains of its own.
#
# Each residue of a protein has two angles between successive C-alpha atoms: a bond angle $\theta$ of 0 to 180 degrees and a
# torsion $\tau$ of -180 to 180. What is known is not the angles but a *profile*: which amino acids stand at that place in
# related proteins. The same on real proteins, with rivals, is `experiments/protein.py`.

# %%
from typing import NamedTuple

import jax
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp

rng = np.random.default_rng(0)

# %% [markdown]
# ## Chains to play with
#
# A hidden state, helix, sheet or coil, walks along the chain. It scatters the angles around centres of its own (von
# Mises-Fisher on the sphere), and it prefers some of the 20 amino acids. The profile is their share in five related
# proteins. The numbers are made up, but helices lie near $\tau$ = 50 degrees and sheets across $\tau$ = 180, as in nature.

# %%
STATES = ("helix", "sheet", "coil")
STEP = np.array(
    [[0.90, 0.01, 0.09], [0.01, 0.85, 0.14], [0.10, 0.12, 0.78]]
)  # from state to state
CENTRES = (  # of each state: share, theta, tau, concentration
    np.array([[1.0, 91, 51, 120]]),
    np.array([[1.0, 123, -172, 30]]),
    np.array([[0.30, 95, 58, 25], [0.45, 118, -165, 12], [0.25, 102, -85, 8]]),
)
RELATED = 5
preference = np.exp(0.75 * rng.normal(size=(3, 20)))
preference /= preference.sum(axis=1, keepdims=True)


class Chain(NamedTuple):
    """One chain: states [residue], directions [residue, 3] and profiles [residue, 20]."""

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


def scatter(centre, concentration):
    """Draw from von Mises-Fisher distributions around centres [residue, 3]."""
    cosine = (
        1
        + np.log1p(-rng.random(len(centre)) * (1 - np.exp(-2 * concentration)))
        / concentration
    )
    across = rng.normal(size=centre.shape)
    across -= np.sum(across * centre, axis=1, keepdims=True) * centre
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    return (
        cosine[:, None] * centre
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
aside, test = (
    [draw(length) for length in lengths] for _ in range(2)
)  # to choose settings on; to judge


def joined(chains, field):
    """Put a field of all chains one after the other."""
    return np.concatenate([getattr(chain, field) for chain in chains])


known, truth = joined(train, "direction"), joined(test, "direction")
shares = np.bincount(joined(train, "state")) / len(known)
print(f"{len(train)} chains to learn from, {len(known)} residues;", end=" ")
print(
    ", ".join(f"{share:.0%} {name}" for share, name in zip(shares, STATES, strict=True))
)

# %% [markdown]
# ## Angles are points on a sphere
#
# The pair ($\theta$, $\tau$) is a point on a sphere, $\theta$ its distance from the pole. Two sheets at $\tau$ = 175 and
# -175 degrees are neighbours there, and as far apart as can be as numbers. `kbp.kernels.Sphere` is the exponential of the
# inner product of unit vectors; near a point it is close to an RBF of the angle, of width 1 / sqrt(sharpness) radians. Here
# are both, at the same width.

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
caption = "Left: sheets (and much of coil) lie across the seam at 180 = -180. Right: only one kernel goes over it."
figure.supxlabel(caption, fontsize="medium")
plt.show()

# %% [markdown]
# ## One template from many chains
#
# `kbp.pool` takes a list of graphs of any sizes, with an array of samples [sample, node, ...] for each; all edges of all
# chains teach one operator. What matters most are the two ridges, of messages and of evidence. They are chosen on chains set
# aside, by the log score: the logarithm of what the belief gives to the candidate nearest to the truth.
#
# All chains to be asked are *one* graph, a forest, and exact inference (`run_tree`) answers it in one call. Candidates are
# training samples, so that the belief is weights on them: `marginal=kbp.Empirical()`. Not so for the mode: it is where the
# *density* is largest, and that needs the marginal, the default.

# %%
graphs = [kbp.chain_graph(len(chain.state)) for chain in train]
profiles = [chain.profile[None] for chain in train]
chosen = rng.permutation(len(known))[:800]
points = known[chosen]
obs_kernel = kbp.RBF(kbp.median_bandwidth(joined(train, "profile")))


@jax.jit
def learn(data, kernel, ridge, obs_ridge):
    """Learn a template."""
    rule = kbp.ConstantTime(eps=1e-3, max_rank=64)
    options = {"ridge": ridge, "obs_ridge": obs_ridge, "floor": 1e-3, "rule": rule}
    return kbp.fit(data, kernel=kernel, obs_kernel=obs_kernel, **options)


@jax.jit
def infer(model, graph, y, mask, candidates):
    """Return beliefs as weights on samples, and modes; mask says which residues are observed."""
    evidence = kbp.observe(model, graph, y, mask=mask, form=kbp.DensityRatio())
    solution = kbp.run_tree(model, graph, evidence)
    mode = kbp.mode(kbp.beliefs(model, graph, evidence, solution, candidates))
    return kbp.beliefs(
        model, graph, evidence, solution, candidates, marginal=kbp.Empirical()
    ), mode


def forest(chains, edges=True):
    """Return all chains as one graph, or the residues alone, without edges."""
    last = np.cumsum([len(chain.state) for chain in chains]) - 1
    first = np.setdiff1d(np.arange(last[-1]), last) if edges else np.zeros(0, int)
    return kbp.Graph.from_edges(np.stack([first, first + 1], axis=1), last[-1] + 1)


def log_score(belief, true):
    """Return the mean log weight of the candidate nearest to the truth."""
    nearest = np.argmax(true @ points.T, axis=1)
    return float(
        np.mean(np.log(np.asarray(belief.weights)[np.arange(len(true)), nearest]))
    )


def choose(values, kernel, candidates):
    """Learn at several ridges; return the model of best log score on the chains set aside, and all scores."""
    data, graph, y = (
        kbp.pool(graphs, values, profiles),
        forest(aside),
        joined(aside, "profile"),
    )
    best, tried = None, {}
    for ridges in [(1e-3, 1e-3), (1e-3, 1e-2), (1e-2, 1e-3), (1e-2, 1e-2)]:
        model = learn(data, kernel, *ridges)
        belief, _ = infer(model, graph, y, np.ones(len(y), bool), candidates)
        tried[ridges] = log_score(belief, joined(aside, "direction"))
        best = model if tried[ridges] == max(tried.values()) else best
    return best, tried


model, tried = choose([chain.direction[None] for chain in train], on_sphere, points)
for (ridge, obs_ridge), score in tried.items():
    print(f"ridge {ridge:g}, obs_ridge {obs_ridge:g}: log score {score:.3f}")
print(f"uniform weights: {-np.log(len(points)):.3f}; ranks {model.ranks[0]}")

# %% [markdown]
# ## Answers on a sphere
#
# - The **mode** is a candidate, and so on the sphere.
# - **Draws** from the belief (`kbp.sample`) are candidates too.
# - The **mean** of unit vectors is shorter than 1. Its direction is the answer of least squared distance, and its length
#   says how sure the belief is: 1 for certainty, 0 for no direction at all.
# - The answer of **least expected angle** is a sum over weights, like any other expectation.
#
# The error is the angle between answer and truth. What do messages add? *Alone* is the same model on a graph without edges.
# *Constant* is the one candidate of least mean angle to the training residues. And as these chains are drawn, there is a
# limit: forward-backward with the true probabilities of states, preferences and centres, of which the model is told nothing.

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
    """Return posterior mean directions by forward-backward with the probabilities that the chains are drawn from."""
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
    """Return the mean of a value over some residues and its standard error, as chains are drawn and not residues."""
    mean = np.mean(values[rows])
    sums = np.bincount(number[rows], values[rows] - mean)  # of each chain
    return f"{mean:5.1f} ± {np.sqrt(np.sum(sums**2)) / np.sum(rows):.1f}"


errors = {name: angle(answer, truth) for name, answer in answers.items()}
print("mean angle to the truth, degrees, ± standard error")
for name, error in errors.items():
    print(f"{name:32} {over_chains(error)}")
print(
    f"messages gain (paired, mean)     {over_chains(errors['alone, mean'] - errors['chain, mean'])}"
)

# %% [markdown]
# The mean answers for squared distances, the candidate of least expected angle for angles: choose by what an error costs.
#
# ## The same on raw angles: what breaks at the seam
#
# Now the same template, the same chains, an RBF of the same width on ($\theta$, $\tau$) in degrees, its ridges chosen by the
# same search. *Near the seam*: the true $\tau$ is beyond ± 150 degrees. The kernel and the answer may both break, so take
# them apart: modes; directions of the mean of the points that candidates stand for; means of the two numbers.

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
print(
    f"log score on chains set aside: {scores[0]:.3f} on the sphere, {scores[1]:.3f} on angles"
)
print(
    f"mean angle to the truth, degrees; {near.mean():.0%} of the residues are near the seam"
)
for name, answer in compared.items():
    error = angle(answer, truth)
    print(
        f"{name:33} near the seam {over_chains(error, near)}, elsewhere {over_chains(error, ~near)}"
    )
lost = angle(to_vectors(flat_mode), truth) - errors["chain, mode"]
print("modes, paired: what the RBF loses", end=" ")
print(
    f"near the seam {over_chains(lost, near)}, elsewhere {over_chains(lost, ~near)}, all {over_chains(lost)}"
)

# %% [markdown]
# The mean of angles is what nobody should report: 175 and -175 have the mean 0. The price of the kernel alone is smaller. An
# RBF can learn both sides apart, each from its own share of the data, but it cannot add them up to one cluster. So modes
# near the seam are the first to suffer: other clusters win too often, which even helps where these are the truth.
#
# ## A stretch without observations
#
# In each test chain fifteen residues have no profile: `mask` says so, and what `y` holds there does not matter. The belief is
# then what the chain says. How unsure it is, is the angle to expect between the answer and the truth, by the belief alone.

# %%
hidden = (residue >= 25) & (residue < 40)
filled, filled_mode = infer(
    model, graph, np.where(hidden[:, None], np.nan, seen), ~hidden, points
)


def expected_error(belief):
    """Return the mean direction, and the angle from it that the belief expects."""
    direction = np.asarray(unit(kbp.mean(belief)))
    cosines = np.clip(direction @ points.T, -1, 1)
    return direction, np.sum(
        np.asarray(belief.weights) * np.rad2deg(np.arccos(cosines)), axis=1
    )


def by_residue(values, last=60):
    """Average over test chains, residue by residue."""
    rows = residue < last
    return np.bincount(residue[rows], values[rows]) / np.bincount(residue[rows])


direction, doubt = expected_error(filled)
_, doubt_seen = expected_error(belief)
middle = (residue >= 30) & (residue < 35)
found = angle(direction, truth)
for name, rows in {
    "middle of the stretch": middle,
    "outside the stretch": ~hidden,
}.items():
    print(
        f"{name:22} expected {doubt[rows].mean():.1f} degrees, found {found[rows].mean():.1f};",
        end=" ",
    )
    print(
        f"with all profiles {doubt_seen[rows].mean():.1f} and {errors['chain, mean'][rows].mean():.1f}"
    )
print(f"constant answer: {errors['constant'].mean():.1f}")

# %%
LEVEL = 0.9


def better(belief):
    """Return for each candidate how much of the belief lies on better ones [node, point]."""
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
    color="#0072B2",
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
bottom.plot(by_residue(doubt), color="#0072B2", label="expected by the belief")
bottom.plot(by_residue(found), "k.-", linewidth=0.6, label="found")
bottom.plot(
    by_residue(doubt_seen), ":", color="#0072B2", label="expected, with all profiles"
)
bottom.axhline(
    errors["constant"].mean(),
    color="0.5",
    linestyle="--",
    linewidth=1,
    label="constant answer",
)
bottom.set(xlabel="residue", ylabel="angular error (degrees)", ylim=(0, None))
bottom.set_title(f"mean of {len(lengths)} test chains")
for ax in (top, bottom):
    ax.axvspan(24.5, 39.5, color="0.9", zorder=0)
    ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
figure.supxlabel(
    "Grey: no profiles. Dots above are training samples in the credible set.",
    fontsize="medium",
)
plt.show()

# %% [markdown]
# ## Do credible sets hold what they promise?
#
# On a sphere there are no intervals. The smallest set of candidates that holds 90 % of the belief is a region, of any shape, in
# several parts if need be. Count how often the candidate nearest to the truth is in it.

# %%
nearest = np.argmax(truth @ points.T, axis=1)
judged = {
    "alone": (alone, everywhere),
    "chain": (belief, everywhere),
    "missing stretch": (filled, hidden),
}
levels = np.array([0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
figure, ax = plt.subplots(figsize=(5.5, 4), layout="constrained")
ax.plot([0, 100], [0, 100], color="0.5", linewidth=1, label="as promised")
for (name, (of, rows)), style in zip(judged.items(), ("s--", "o-", "^:"), strict=True):
    held = better(of)
    own = held[
        np.arange(len(nearest)), nearest
    ]  # the belief on candidates better than the true one
    size = np.mean(held[rows] < LEVEL)
    share = over_chains(100.0 * (own < LEVEL), rows)
    print(
        f"{name:16} {LEVEL:.0%} sets hold {share} % of the true angles, and {size:.0%} of the candidates"
    )
    ax.plot(
        100 * levels,
        [100 * np.mean(own[rows] < level) for level in levels],
        style,
        markersize=4,
        label=name,
    )
ax.set(
    xlabel="promised (%)",
    ylabel="true angles inside (%)",
    title="Cover of credible sets",
)
ax.legend()
figure.supxlabel("Below the line: too sure. Above: too careful.", fontsize="medium")
plt.show()

# %% [markdown]
# Where beliefs are too sure on data of your own, `kbp.temper` mends it with one number, chosen on known chains: the notebook
# on images does that.
#
# ## A look at one belief
#
# The residue is the one in the middle of a missing stretch whose true angles are nearest to the seam: first with its profile,
# then without those of the stretch. Where a belief has several clusters, its mean may lie where no residue ever is, and is
# short; then take the mode, or say the set.

# %%
centre = np.flatnonzero(residue == 32)
node = centre[np.argmax(np.abs(to_angles(truth[centre])[:, 1]))]
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
    axes_of_angles(
        ax,
        f"belief, {title}\n{far:.0%} beyond ± 150; mean of length {np.linalg.norm(mean):.2f}",
    )
    ax.legend(loc="lower left", fontsize="small", ncols=3)
caption = "A dot is a training sample, its area the weight. The left and the right edge are one line on the sphere."
figure.supxlabel(caption, fontsize="medium")
plt.show()

# %% [markdown]
# ## Real proteins
#
# In a checkout, with the data that `experiments/chains.py` describes in the folder named by `KBPJAX_DATA`, this returns real
# chains in the same form, cut where a structure has a gap. Nothing here calls it. Put them in place of `train`, `aside` and
# `test`, with `lengths` those of the test chains, and leave out what uses states: the colours and the limit.
# [What the full experiment finds](../docs/real_data.md).


# %%
def real_chains(least=60):
    """Return the unbroken stretches of at least `least` residues of real proteins; their states are unknown."""
    from experiments import chains, data

    every = chains.load(data.data_directory())
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
# - Rotations, orders, sets, strings: the same program with another kernel, [docs/kernels.md](../docs/kernels.md).
# - A window of profiles observes more than one residue's; and operators may differ by residue type (`edge_type=`). Both are in
#   `experiments/protein.py`.
# - Candidates need not be samples: with an even grid on the sphere drop `Empirical()`, and `kbp.refine_mode(retract=...)` climbs
#   between them.
