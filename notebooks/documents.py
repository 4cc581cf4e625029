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
# # Documents: find a translation through a tree of languages
#
# This notebook shows how to
#
# - model documents as nodes of a tree of languages, and learn from translated pairs of neighboring languages only;
# - retrieve the translation in another language, from one or several known ones;
# - compare with two baselines of ridge regression;
# - calibrate beliefs, so that they can be read as probabilities.
#
# It runs in about a minute on simulated texts. The graph is a tree, so inference is exact for the learned model.

# %%
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp

# %% [markdown]
# ## Five invented languages
#
# Nuvi is the center of the tree. Boro, Kesh, Lin and Tolu each have translations to and from Nuvi, and no others. Given a document in
# Boro, Kesh or Lin, or in several of them, find its translation among documents in **Tolu**.
#
# Each text mixes topics, and concepts are drawn from the topics. A language has one or two words per
# concept, and some words have two meanings. Translators replace a share of the concepts by random ones. All translations are made from Nuvi, so
# the tree is correct here. Real translations follow a tree less closely: [texts of a parliament](../docs/structured.md).

# %%
LANGUAGES = ["Boro", "Kesh", "Lin", "Nuvi", "Tolu"]
TREE = ((0, 3), (1, 3), (2, 3), (3, 4))
NUVI, TOLU = 3, 4
MISTAKES = [0.25, 0.25, 0.25, 0.0, 0.1]  # share of concepts that are replaced
CONCEPTS, TOPICS, PAIRS, TEST = 80, 8, 80, 100

rng = np.random.default_rng(0)
topics = rng.dirichlet(np.full(CONCEPTS, 0.1), TOPICS)  # probability of each concept
syllables = [
    [c + v for c in rng.permutation(list("bdfgklmnprstvz"))[:5] for v in "aio"]
    for _ in LANGUAGES
]
lexicon = [
    [
        ["".join(rng.choice(own, 2)) for _ in range(rng.integers(1, 3))]
        for _ in range(CONCEPTS)
    ]
    for own in syllables
]


def translations():
    """Draw one text, in all languages."""
    length = rng.integers(40, 80)
    meaning = rng.choice(
        CONCEPTS, length, p=rng.dirichlet(np.full(TOPICS, 0.3)) @ topics
    )
    texts = []
    for words, mistakes in zip(lexicon, MISTAKES, strict=True):
        other = rng.choice(CONCEPTS, length, p=topics.mean(0))
        said = np.where(rng.random(length) < mistakes, other, meaning)
        texts.append(" ".join(rng.choice(words[concept]) for concept in said))
    return texts


count = len(TREE) * PAIRS + TEST
columns = zip(*(translations() for _ in range(count)), strict=True)
documents = dict(zip(LANGUAGES, columns, strict=True))
for language, texts in documents.items():
    print(f"{language:5} {texts[0][:70]} ...")

# %% [markdown]
# ## From texts to vectors
#
# Documents become tf-idf vectors of length 1: word counts, weighted by how rare a word is. These weights need no translations, so they are computed from
# all texts of a language. Columns are the 150 most common words. A language with fewer words has columns of zeros, so all
# languages have vectors of the same shape.


# %%
def tfidf(texts, size=150):
    """Return tf-idf vectors [document, word] of length 1."""
    bags = [Counter(text.lower().split()) for text in texts]
    total = sum(bags, Counter())
    column = {word: i for i, (word, _) in enumerate(total.most_common(size))}
    x = np.zeros((len(texts), size), np.float32)
    for row, bag in zip(x, bags, strict=True):
        for word in bag.keys() & column.keys():
            row[column[word]] = 1 + np.log(bag[word])
    x *= np.log(len(texts) / np.maximum(1, (x > 0).sum(axis=0)))
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)


# [language, document, word]
vectors = np.stack([tfidf(documents[language]) for language in LANGUAGES])
bandwidths = np.array([kbp.median_bandwidth(x) for x in vectors])
words = (vectors.sum(axis=1) > 0).sum(axis=1)
print("words:", dict(zip(LANGUAGES, words.tolist(), strict=True)))
print("median distance of documents:", bandwidths.round(2))

# %% [markdown]
# ## The tree, and pairs on its edges
#
# A node is a language, and its value is a document. Every language has its own node type and kernel, and every edge its own edge type
# and training pairs. No two edges share a document: no training document is known in both Boro *and* Tolu.


# %%
def make_tree(edges, num_languages):
    """Return the graph of a tree of languages."""
    return kbp.Graph.from_edges(
        list(edges),
        num_languages,
        node_type=np.arange(num_languages),
        edge_type=np.arange(len(edges)),
    )


@partial(jax.jit, static_argnames="edges")
def learn(vectors, bandwidths, pairs, ridge, obs_ridge, edges=TREE):
    """Fit a model to pairs of documents, given by their indices [edge, pair]."""
    of_language = [
        jnp.concatenate([pairs[k] for k, e in enumerate(edges) if v in e])
        for v in range(len(vectors))
    ]
    data = kbp.TrainingData(
        edges={
            k: (vectors[a][pairs[k]], vectors[b][pairs[k]])
            for k, (a, b) in enumerate(edges)
        },
        nodes={v: vectors[v][rows] for v, rows in enumerate(of_language)},
        ends=dict(enumerate(edges)),
    )
    kernel = {v: kbp.RBF(bandwidths[v]) for v in range(len(vectors))}
    return kbp.fit(
        data, kernel=kernel, rule=kbp.FullRank(), ridge=ridge, obs_ridge=obs_ridge
    )


def split(number):
    """Draw test documents, and pairs of each edge from the others."""
    order = np.random.default_rng(number).permutation(count)
    return order[:TEST], order[TEST:].reshape(len(TREE), PAIRS)


graph = make_tree(TREE, len(LANGUAGES))
test, pairs = split(0)
model = learn(vectors, 2 * bandwidths, pairs, 3e-4, 0.3)
print(
    "documents known in each language:",
    {LANGUAGES[v]: points for v, (_, points) in model.ranks.items()},
)

# %% [markdown]
# `FullRank` keeps every training document. For thousands of documents use `kbp.ConstantTime(eps=1e-2, max_rank=200)` instead.
#
# ## Retrieval
#
# The known documents are *clamped*: the values of their nodes are given. Messages pass through the tree once, and the belief of Tolu is evaluated
# at the candidates. With `DensityRatio`, the evidence is the density of exactly this document, relative to its marginal. With `Empirical`, candidates count as samples of the
# marginal, so all have the same prior weight. `vmap` runs over all test documents.


# %%
@jax.jit
def retrieve(model, graph, nodes, known, candidates):
    """Return the belief of the last language [query, candidate].

    The documents `known` [query, node, word] are the values of `nodes`.
    """
    target = graph.num_nodes - 1
    # Beliefs of the other languages are not used.
    points = dict.fromkeys(range(target), candidates[:1]) | {target: candidates}

    def one(values):
        evidence = kbp.clamp(
            model, graph, nodes, values, evidence_model=kbp.DensityRatio()
        )
        solution = kbp.run_tree(model, graph, evidence)
        found = kbp.beliefs(
            model, graph, evidence, solution, points, marginal=kbp.Empirical()
        )
        return found[target].weights[0]

    return kbp.Belief(candidates, jax.vmap(one)(known))


def retrieve_all(model, nodes, test):
    """Return beliefs of Tolu for all test documents; document i is candidate i."""
    known = vectors[np.array(nodes)][:, test].swapaxes(0, 1)
    return retrieve(model, graph, jnp.array(nodes), known, vectors[TOLU, test])


def ranks(score):
    """Return the rank of candidate i for query i, from 1; the last among ties."""
    score = np.asarray(score)
    return (score >= np.diag(score)[:, None]).sum(axis=1)


def quality(score):
    """Return the share of true documents ranked first, and the mean reciprocal rank."""
    return np.array([np.mean(ranks(score) == 1), np.mean(1 / ranks(score))])


SETS = [(0,), (0, 1), (0, 1, 2)]
names = [" + ".join(LANGUAGES[v] for v in nodes) for nodes in SETS]
belief = {len(nodes): retrieve_all(model, nodes, test) for nodes in SETS}
for name, found in zip(names, belief.values(), strict=True):
    first, reciprocal = quality(found.weights)
    print(f"{name:18} ranked first {first:.0%}, mean reciprocal rank {reciprocal:.2f}")
print(f"by chance: {1 / TEST:.0%}, {np.mean(1 / np.arange(1, TEST + 1)):.2f}")

# %% [markdown]
# One query in detail. It gains more ranks by the second and third language than three quarters of all queries.

# %%
gain = ranks(belief[1].weights) - ranks(belief[3].weights)
query = int(np.argsort(gain)[3 * len(gain) // 4])
figure, ax = plt.subplots(figsize=(9.5, 3.5), layout="constrained")
for k, (color, style) in {1: ("#D55E00", "o"), 3: ("#0072B2", "s")}.items():
    rank = ranks(belief[k].weights)[query]
    label = f"{names[k - 1]}: rank {rank}"
    ax.plot(belief[k].weights[query], style, color=color, markersize=4, label=label)
ax.axvline(query, color="0.6", linewidth=1, zorder=0, label="true document")
ax.axhline(1 / TEST, color="0.6", linestyle=":", zorder=0, label="prior")
ax.set(xlabel="candidate (number)", ylabel="belief (probability)")
ax.set_title(f"belief over {TEST} documents in Tolu, test document {query}")
ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
plt.show()

# %% [markdown]
# ## Baselines, and the effect of more evidence
#
# - **Ridge through Nuvi**: ridge regression from each known language to Nuvi, the mean of the predictions, ridge regression to Tolu, and the
#   cosine with each candidate after subtracting means. It uses the same training pairs and the same tree.
# - **Ridge with direct pairs**: ridge regression from all known languages to Tolu, trained on as many documents that are translated into all of them. Such direct pairs
#   are often not available.
#
# Hyperparameters of each method are the best of a small grid on split 0, some of them at its edge. Results are means over five other splits of the same texts. The bandwidth
# is part of the grid.


# %%
def regress(x, y, query, ridge):
    """Return predictions of ridge regression with an intercept."""
    centered = x - x.mean(0)
    weights = np.linalg.solve(
        centered @ centered.T + ridge * len(x) * np.eye(len(x)), y - y.mean(0)
    )
    return y.mean(0) + (query - x.mean(0)) @ centered.T @ weights


def cosines(predicted, candidates, mean):
    """Return centered cosines of predictions with candidates [query, candidate]."""
    p, c = predicted - mean, candidates - mean
    return (p @ c.T) / np.linalg.norm(p, axis=1)[:, None] / np.linalg.norm(c, axis=1)


def through_nuvi(nodes, test, pairs, ridges):
    """Score the candidates by two regressions."""
    last, x = pairs[-1], vectors
    nuvi = np.mean(
        [
            regress(x[v][pairs[v]], x[NUVI][pairs[v]], x[v][test], ridges[0])
            for v in nodes
        ],
        axis=0,
    )
    predicted = regress(x[NUVI][last], x[TOLU][last], nuvi, ridges[1])
    return cosines(predicted, x[TOLU][test], x[TOLU][last].mean(0))


def direct(nodes, test, pairs, ridge):
    """Score the candidates by a regression on direct pairs."""
    last, known = pairs[-1], np.concatenate([vectors[v] for v in nodes], axis=1)
    predicted = regress(known[last], vectors[TOLU][last], known[test], ridge)
    return cosines(predicted, vectors[TOLU][test], vectors[TOLU][last].mean(0))


def best(settings, score):
    """Return the setting with the largest sum of mean reciprocal ranks on split 0."""
    return max(
        settings,
        key=lambda setting: sum(quality(score(nodes, setting))[1] for nodes in SETS),
    )


RIDGES = [3e-4, 1e-3, 3e-3, 1e-2]
# Bandwidth in median distances, ridge, obs_ridge.
SETTINGS = [(1, 1e-3, 0.3), (2, 3e-4, 0.3), (4, 1e-4, 0.1)]
models = {
    setting: learn(vectors, setting[0] * bandwidths, pairs, *setting[1:])
    for setting in SETTINGS
}
chosen = best(
    SETTINGS, lambda nodes, setting: retrieve_all(models[setting], nodes, test).weights
)
two = best(
    [(a, b) for a in RIDGES for b in RIDGES],
    lambda nodes, ridges: through_nuvi(nodes, test, pairs, ridges),
)
one = best(RIDGES, lambda nodes, ridge: direct(nodes, test, pairs, ridge))
baselines = {
    "ridge through Nuvi": (through_nuvi, two),
    "ridge with direct pairs": (direct, one),
}
print(
    "bandwidth {:g} medians, ridge {:g}, obs_ridge {:g};".format(*chosen),
    f"through Nuvi {two}, direct {one}",
)

# %%
SPLITS = range(1, 6)
KBP = "kernel belief propagation"
results = {name: np.zeros((len(SPLITS), len(SETS), 2)) for name in (KBP, *baselines)}
kept = []
for i, number in enumerate(SPLITS):
    some, apart = split(number)
    model = learn(vectors, chosen[0] * bandwidths, apart, *chosen[1:])
    found = [retrieve_all(model, nodes, some) for nodes in SETS]
    kept.append(found[-1])
    results[KBP][i] = [quality(one.weights) for one in found]
    for name, (method, ridge) in baselines.items():
        scores = [method(nodes, some, apart, ridge) for nodes in SETS]
        results[name][i] = [quality(score) for score in scores]


def mean_and_error(values):
    """Return the mean over splits and its standard error."""
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


_, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
colors, styles = ("#0072B2", "#D55E00", "0.5"), ("o-", "s--", "^:")
for k, (ax, label) in enumerate(
    zip(axes, ("share ranked first", "mean reciprocal rank"), strict=True)
):
    for shift, (name, values), style, color in zip(
        (-0.04, 0, 0.04), results.items(), styles, colors, strict=True
    ):
        mean, error = mean_and_error(values[..., k])
        options = {"fmt": style, "color": color, "capsize": 3, "label": name}
        ax.errorbar(np.arange(1, 4) + shift, mean, error, **options)
    ax.set(xlabel="known languages (number)", ylabel=label, xticks=[1, 2, 3])
    ax.grid(alpha=0.3)
axes[0].legend(fontsize="small", loc="upper left")
axes[0].set_ylim(0, 1.3 * max(values.mean(0).max() for values in results.values()))
plt.show()
print(f"{'share ranked first, by known languages':40}{1:8}{2:8}{3:8}")
for name, values in results.items():
    print(f"{name:40}", "".join(f"{value:8.2f}" for value in values.mean(0)[:, 0]))
gap = results[KBP] - results["ridge through Nuvi"]
print("kernel belief propagation minus ridge through Nuvi:")
for k, label in enumerate(("share ranked first", "mean reciprocal rank")):
    mean, error = mean_and_error(gap[..., k])
    by_set = (f"{m:+.3f} ± {e:.3f}" for m, e in zip(mean, error, strict=True))
    print(f"  {label}:", "; ".join(by_set))

# %% [markdown]
# Bars are standard errors over five splits of one corpus, which share texts. More known languages help all methods. With direct pairs, plain regression is
# more accurate than a model that passes through Nuvi. With the same training pairs, kernel belief propagation is ahead of ridge regression by more than two standard errors only for
# three known languages. Regression gives scores, but no belief.
#
# ## Are beliefs calibrated?
#
# A belief in the first candidate is calibrated if it equals the share of queries for which this candidate is the true one. The check uses three known
# languages. A temperature below 1 sharpens beliefs that are too flat, and one above 1 flattens overconfident ones; ranks do not change. It is
# chosen on split 0 by the mean log belief in the true document.


# %%
def log_score(belief):
    """Return the mean logarithm of the belief in the true document."""
    return float(np.mean(np.log(np.diag(belief.weights) + 1e-12)))


held_out = retrieve_all(models[chosen], SETS[-1], test)
temperatures = np.geomspace(1e-4, 2.0, 60)
temperature = max(temperatures, key=lambda t: log_score(kbp.temper(held_out, t)))
versions = {
    "temperature 1": kept,
    f"temperature {temperature:.1g}": [kbp.temper(one, temperature) for one in kept],
}

figure, ax = plt.subplots(figsize=(5.5, 4.5), layout="constrained")
for (name, found), style, color in zip(
    versions.items(), ("o", "s"), ("#D55E00", "#0072B2"), strict=True
):
    mass = np.concatenate([np.asarray(one.weights).max(axis=1) for one in found])
    right = np.concatenate([ranks(one.weights) == 1 for one in found])
    groups = np.array_split(np.argsort(mass), 5)
    share = np.array([right[group].mean() for group in groups])
    error = [
        np.sqrt(p * (1 - p) / len(group))
        for p, group in zip(share, groups, strict=True)
    ]
    middle = [mass[group].mean() for group in groups]
    ax.errorbar(middle, share, error, fmt=style, color=color, capsize=3, label=name)
    score = np.mean([log_score(one) for one in found])
    print(f"{name:17} mean belief {mass.mean():.2f},", end=" ")
    print(f"share correct {right.mean():.2f}, log score {score:.2f}")
ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, zorder=0, label="calibrated")
ax.set(
    xlabel="belief of the first candidate (probability)",
    ylabel="share correct",
    xlim=(0, 1),
    ylim=(0, 1),
)
ax.set_title(f"{len(groups)} groups of {len(groups[0])} queries")
ax.legend(fontsize="small", loc="lower right")
plt.show()
print(f"log score of a uniform belief: {-np.log(TEST):.2f}")

# %% [markdown]
# Without tempering, the belief ranks well but is nearly uniform. With a wide kernel, a message is a smooth function over documents, so even the
# best candidate gets little more than the average weight. Temper such beliefs on validation documents before reading them as probabilities. After tempering they are
# close to calibrated, still somewhat too low. The temperature depends on the number of candidates and of known languages, so
# choose it for each application.
#
# ## Your own documents
#
# Give one list of strings per language; strings with the same index are translations of each other. The last language is the target, and
# `pairs` holds the training indices of each edge, equally many for every edge. Here both edges learn from the first four documents, and the last two
# are the queries, with two candidates. For real texts, remove stop words and stem the words first, as `experiments/retrieval/data.py` does.

# %%
own = {
    "English": [
        "the cat sleeps",
        "the dog eats",
        "a red house",
        "a green door",
        "the cat eats",
        "a red door",
    ],
    "French": [
        "le chat dort",
        "le chien mange",
        "une maison rouge",
        "une porte verte",
        "le chat mange",
        "une porte rouge",
    ],
    "Swedish": [
        "katten sover",
        "hunden äter",
        "ett rött hus",
        "en grön dörr",
        "katten äter",
        "en röd dörr",
    ],
}
edges = ((0, 1), (1, 2))  # English with French, French with Swedish
x = np.stack([tfidf(texts, size=20) for texts in own.values()])
widths = np.array([kbp.median_bandwidth(v) for v in x])
mine = learn(x, widths, np.array([[0, 1, 2, 3]] * 2), 1e-3, 1e-2, edges=edges)
queries, english = [4, 5], jnp.array([0])
small_tree = make_tree(edges, len(own))
found = retrieve(mine, small_tree, english, x[0][queries][:, None], x[-1][queries])
for row, column in zip(queries, np.argmax(found.weights, axis=1), strict=True):
    print(f"{own['English'][row]} -> {own['Swedish'][queries[column]]}")

# %% [markdown]
# ## What next
#
# - [Structured variables](../docs/structured.md): eleven languages, real texts, longer paths, and words as strings.
# - Other kernels on texts, kernels on strings, and custom kernels: [kernels](../docs/kernels.md).
# - `kbp.pool` builds the training data if all languages have the same documents.
