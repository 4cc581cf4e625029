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
# # Custom kernels
#
# A kernel measures the similarity of two points, and is all that a model needs to know about a domain. This notebook shows how to
#
# - write a kernel in a few lines;
# - use a similarity that is computed in plain Python, through its Gram matrix;
# - combine kernels for a variable with several parts.
#
# It runs in less than a minute on simulated data. All graphs are chains, so `run_tree` gives exact inference for the learned model.

# %%
import warnings

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp
from kbpjax.kernels import Part, Precomputed, nearest_gram

rng = np.random.default_rng(0)

# %% [markdown]
# ## A kernel of directions
#
# A kernel is a class with one method on two single points. Directions are angles in radians, and -180 and 180 degrees are the same
# direction. The cosine makes the kernel periodic. (`kbpjax.kernels.Periodic` is the same kernel with another parameter.)


# %%
class Compass(kbp.Kernel):
    """Directions in radians: exp(concentration (cos(x - y) - 1))."""

    concentration: jax.Array

    def __call__(self, x, y):
        """Return the kernel of two directions."""
        return jnp.exp(self.concentration * (jnp.cos(x - y) - 1))


circle = jnp.linspace(-np.pi, np.pi, 72, endpoint=False)
compass, at = Compass(jnp.array(4.0)), jnp.array([3.0])
figure, ax = plt.subplots(
    figsize=(4, 3.6), subplot_kw={"projection": "polar"}, layout="constrained"
)
ax.plot(circle, kbp.gram(compass, circle, at)[:, 0], label="Compass")
ax.plot(
    circle, kbp.gram(kbp.RBF(0.5), circle, at)[:, 0], "--", label="RBF of the angle"
)
ax.set(title="k(x, 172°)", yticks=[0.5, 1])
ax.legend(loc="lower right")
plt.show()

# %% [markdown]
# The RBF of the angle breaks off at 180 degrees; `Compass` does not.
#
# Next, a direction follows a random walk along a chain of eight nodes, and each node has a noisy compass reading. The model is learned from twenty
# chains with their readings, and applied to 100 new ones.

# %%
graph = kbp.chain_graph(8)


def wrap(angle):
    """Bring angles to -pi to pi."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def draw(count):
    """Draw directions [case, node] and readings of them."""
    steps = np.cumsum(0.3 * rng.normal(size=(count, 8)), axis=1)
    x = wrap(rng.uniform(-np.pi, np.pi, size=(count, 1)) + steps)
    return x, wrap(x + 0.8 * rng.normal(size=x.shape))


rule = kbp.ConstantTime(eps=1e-2, max_rank=40)
data, (truth, readings) = kbp.pool(graph, *draw(20)), draw(100)
model = kbp.fit(data, kernel=compass, obs_kernel=compass, ridge=1e-2, rule=rule)


@jax.jit
def directions(y):
    """Return beliefs over the circle, and their mean direction."""
    evidence = kbp.observe(model, graph, y)
    solution = kbp.run_tree(model, graph, evidence)
    belief = kbp.beliefs(model, graph, evidence, solution, circle)
    vector = lambda x: jnp.array([jnp.cos(x), jnp.sin(x)])
    east, north = kbp.expectation(belief, vector).T
    return belief.weights, jnp.arctan2(north, east)


weights, estimates = jax.vmap(directions)(jnp.asarray(readings))
for name, angles in (("readings", readings), ("estimates", estimates)):
    error = np.degrees(np.mean(np.abs(wrap(angles - truth))))
    print(f"mean error of the {name}: {error:.0f} degrees")

# %% [markdown]
# Below are the beliefs of one chain that crosses 180 degrees. They are continuous across the cut. At node 3 the
# reading contradicts the neighbors, and the belief has two modes.

# %%
case = int(np.argmax(np.any(np.abs(np.diff(truth)) > np.pi, axis=1)))
figure, axes = plt.subplots(
    2, 4, figsize=(10, 5.4), subplot_kw={"projection": "polar"}, layout="constrained"
)
for node, ax in enumerate(axes.flat):
    ax.fill(circle, weights[case, node], alpha=0.4)
    top = float(weights[case].max())
    ax.plot([truth[case, node]] * 2, [0, top], "k-", label="truth")
    ax.plot([readings[case, node]] * 2, [0, top], "C3:", label="reading")
    ax.set(title=f"node {node}", yticks=[], xticks=np.radians([0, 90, 180, 270]))
axes[0, 0].legend(loc="lower left")
plt.show()

# %% [markdown]
# ## A similarity in plain Python
#
# The data are names of months with typing errors. Their similarity is based on the edit distance, a loop that JAX cannot trace. Such a
# kernel is given by its Gram matrix for all strings that occur, and points are row numbers.

# %%
months = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
letters = "abcdefghijklmnopqrstuvwxyz"


def distance(a, b):
    """Return Levenshtein's edit distance."""
    row = list(range(len(b) + 1))
    for i, s in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, t in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (s != t))
    return row[-1]


def typed(word):
    """Omit each letter with probability 0.2, replace it with probability 0.45."""
    kept = [c for c in word if rng.random() > 0.2]
    return "".join(
        letters[rng.integers(26)] if rng.random() < 0.45 else c for c in kept
    )


def write(count):
    """Draw sequences of six months, mostly consecutive, and what was typed."""
    steps = np.cumsum(rng.choice([0, 1, 1, 1, 1, 2], size=(count, 6)), axis=1)
    x = (rng.integers(12, size=(count, 1)) + steps) % 12
    return x, [[typed(months[m]) for m in row] for row in x]


(x, y), (truth, seen) = write(50), write(30)
strings = sorted({s for row in y + seen for s in row})
apart = np.array([[distance(a, b) for b in strings] for a in strings])

# %% [markdown]
# exp(-distance / 2) is not positive definite: its Gram matrix has negative eigenvalues. `Precomputed` rejects it and names a
# remedy.

# %%
similar = np.exp(-apart / 2)
try:
    Precomputed(similar)
except ValueError as fault:
    print(fault)
matrix = nearest_gram(similar)
print(f"largest change of an entry: {np.abs(matrix - similar).max():.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
first = np.argsort(
    [np.argmin([distance(s, m) for m in months]) for s in strings], kind="stable"
)
shade = left.imshow(matrix[np.ix_(first[::3], first[::3])])
left.set(title="Gram matrix, every third string", xlabel="string", ylabel="string")
figure.colorbar(shade, ax=left)
right.plot(np.linalg.eigvalsh(similar)[:30], "o", label="exp(-distance / 2)")
right.plot(np.linalg.eigvalsh(matrix)[:30], "x", label="nearest Gram matrix")
right.set(title="30 smallest eigenvalues", xlabel="index", ylabel="eigenvalue")
right.legend()
plt.show()

# %% [markdown]
# The hidden variables are the months, compared by `Delta`; the strings are their observations. The model learns from 50 sequences which
# month follows which, how months are spelled and how typing errors look.

# %%
numbers = {s: i for i, s in enumerate(strings)}
y, readings = (
    np.array([[numbers[s] for s in row] for row in rows]) for rows in (y, seen)
)
chain, year = kbp.chain_graph(6), jnp.arange(12)
months_model = kbp.fit(
    kbp.pool(chain, x, y),
    kernel=kbp.Delta(),
    obs_kernel=Precomputed(matrix),
    ridge=1e-3,
    rule=kbp.ConstantTime(eps=1e-2),
)


@jax.jit
@jax.vmap
def read(y):
    """Return the most probable month of each string."""
    evidence = kbp.observe(months_model, chain, y, evidence_model=kbp.DensityRatio())
    solution = kbp.run_tree(months_model, chain, evidence)
    return kbp.mode(kbp.beliefs(months_model, chain, evidence, solution, year))


answers = read(jnp.asarray(readings))
nearest = np.array(
    [[np.argmin([distance(s, m) for m in months]) for s in row] for row in seen]
)
print(f"correct by edit distance alone: {np.mean(nearest == truth):.0%}")
print(f"correct by the model: {np.mean(answers == truth):.0%}\n")
for row in range(3):
    estimated, true = ([months[m] for m in of[row]] for of in (answers, truth))
    for name, line in (("typed", seen[row]), ("model", estimated), ("truth", true)):
        print(f"{name:6}", " ".join(f"{word:9}" for word in line).rstrip())
    print()

# %% [markdown]
# ## A variable with several parts
#
# A robot drives in left turns. Its state is a position and a heading, in one array (east, north, heading). Observed is only the position, with
# noise. The kernel is a product of kernels on the parts, so two states are similar if both position and heading are.

# %%
road = kbp.chain_graph(10)
state = Part(kbp.RBF(0.6), 0, 2) * Part(Compass(jnp.array(2.0)), 2, 3, shape=())


def drive(count):
    """Draw states [case, node, 3] and noisy positions [case, node, 2]."""
    place = rng.uniform(-1, 1, (count, 2))
    heading, states = rng.uniform(-np.pi, np.pi, count), []
    for _ in range(10):
        states.append(np.column_stack([place, wrap(heading)]))
        heading = heading + 0.35 + 0.25 * rng.normal(size=count)
        place = place + 0.5 * np.stack([np.cos(heading), np.sin(heading)], axis=1)
    x = np.stack(states, axis=1)
    return x, x[..., :2] + 0.35 * rng.normal(size=(count, 10, 2))


x, y = drive(150)
truth, seen = drive(30)
candidates = jnp.asarray(x.reshape(-1, 3)[:800])
with warnings.catch_warnings():
    # In three dimensions 150 landmarks are coarse, but quick.
    warnings.simplefilter("ignore", kbp.RankWarning)
    robot = kbp.fit(
        kbp.pool(road, x, y),
        kernel=state,
        obs_kernel=kbp.RBF(0.5),
        ridge=1e-3,
        rule=kbp.ConstantTime(eps=3e-2, max_rank=150),
    )


@jax.jit
@jax.vmap
def follow(y):
    """Return the mean position and heading at each node."""
    evidence = kbp.observe(robot, road, y)
    solution = kbp.run_tree(robot, road, evidence)
    belief = kbp.beliefs(robot, road, evidence, solution, candidates)
    vector = lambda x: jnp.array([x[0], x[1], jnp.cos(x[2]), jnp.sin(x[2])])
    mean = kbp.expectation(belief, vector)
    return mean[:, :2], jnp.arctan2(mean[:, 3], mean[:, 2])


places, headings = follow(jnp.asarray(seen))
moved = np.diff(seen, axis=1)
from_moves = np.arctan2(moved[..., 1], moved[..., 0])


def off(estimate, true):
    """Return the mean error of positions."""
    return np.mean(np.linalg.norm(estimate - true[..., :2], axis=-1))


print("mean error of")
print(f"  positions: observed {off(seen, truth):.2f}, model {off(places, truth):.2f}")
by_moves = np.degrees(np.mean(np.abs(wrap(from_moves - truth[:, 1:, 2]))))
by_model = np.degrees(np.mean(np.abs(wrap(headings - truth[..., 2]))))
print(f"  headings: observed moves {by_moves:.0f}, model {by_model:.0f} degrees")

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
for case, ax in enumerate(axes):
    for place, heading, color, name in (
        (truth[case, :, :2], truth[case, :, 2], "black", "truth"),
        (places[case], headings[case], "C0", "estimate"),
    ):
        ax.quiver(
            *place.T,
            np.cos(heading),
            np.sin(heading),
            color=color,
            label=name,
            scale=12,
            width=0.008,
        )
    ax.plot(*seen[case].T, "C3.", label="observed")
    ax.set(aspect="equal", xlabel="east", ylabel="north")
axes[0].legend()
plt.show()

# %% [markdown]
# More on kernels, with a table of those in the library: [kernels](../docs/kernels.md).
