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
# After this notebook you can put documents on a tree of languages, learn from translated pairs of neighbouring languages only,
# find the document of a language at the far end from what you have in others, combine several of them, and say how sure you
# are. You will also see which simple rivals do as well or better. It takes less than a minute and needs no data set.

# %%
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import kbpjax as kbp

# %% [markdown]
# ## Five languages that do not exist
#
# Nuvi is in the middle; Boro, Kesh, Lin and Tolu each have translations from and to Nuvi, and from and to nobody else. We can read
# Boro, Kesh and Lin, and want the document in **Tolu**.
#
# A text is a string of words. Its author mixes topics, and draws concepts from them; each language has one or two words for
# a concept, and some words mean two. Translators put another concept in the place of some. Every translation is made from Nuvi, so that
# the tree is the truth here. Real translations keep to it less well: [the same with texts of a parliament](../docs/structured.md).

# %%
LANGUAGES = ["Boro", "Kesh", "Lin", "Nuvi", "Tolu"]
TREE = ((0, 3), (1, 3), (2, 3), (3, 4))
NUVI, TOLU = 3, 4
MISTAKES = [0.25, 0.25, 0.25, 0.0, 0.1]  # share of concepts that a translator replaces
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
documents = dict(
    zip(
        LANGUAGES,
        zip(*(translations() for _ in range(count)), strict=True),
        strict=True,
    )
)
for language, texts in documents.items():
    print(f"{language:5} {texts[0][:70]} ...")

# %% [markdown]
# ## From strings to points
#
# A document becomes a vector of word counts, weighted by how rare a word is (tf-idf), of length 1. Weights need no translations, so all texts
# of a language give them. The columns are the most common words; a language with fewer has columns of zeros, and all
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


vectors = np.stack(
    [tfidf(documents[language]) for language in LANGUAGES]
)  # [language, document, word]
bandwidths = np.array([kbp.median_bandwidth(x) for x in vectors])
print(
    "different words:",
    {
        name: int((x.sum(0) > 0).sum())
        for name, x in zip(LANGUAGES, vectors, strict=True)
    },
)
print("median distance of documents:", bandwidths.round(2))

# %% [markdown]
# ## The tree, and pairs on its edges
#
# A node is a language and its value a document. Every language has a node type of its own, with its own kernel, and every edge a type
# of its own, with its own pairs. No two edges share a document: nobody has ever seen a document in Boro *and* in Tolu.


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
    """Learn from pairs of documents, given by their numbers [edge, pair]."""
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
# Full rank keeps every known document. With thousands of them take `kbp.ConstantTime(eps=1e-2, max_rank=200)` instead.
#
# ## Ask: which document of Tolu is it?
#
# What we have is *clamped*: the values of these nodes are known. Messages go through the tree once, and the belief of Tolu is asked
# at the candidates. `DensityRatio` says that a known document is that document, not one like it; `Empirical` says that candidates are samples, all
# alike before anything is seen. One `vmap` asks for all test documents.


# %%
@jax.jit
def ask(model, graph, nodes, known, candidates):
    """Return the belief of the last language [query, candidate] for documents known in some [query, node, word]."""
    target = graph.num_nodes - 1
    points = {
        v: candidates if v == target else candidates[:1] for v in range(target + 1)
    }  # the others do not matter

    def one(values):
        evidence = kbp.clamp(model, graph, nodes, values, form=kbp.DensityRatio())
        solution = kbp.run_tree(model, graph, evidence)
        found = kbp.beliefs(
            model, graph, evidence, solution, points, marginal=kbp.Empirical()
        )
        return found[target].weights[0]

    return kbp.Belief(candidates, jax.vmap(one)(known))


def ask_all(model, nodes, test):
    """Return the beliefs of Tolu for all test documents, known in some languages; document i is candidate i."""
    known = vectors[np.array(nodes)][:, test].swapaxes(0, 1)
    return ask(model, graph, jnp.array(nodes), known, vectors[TOLU, test])


def ranks(score):
    """Return the rank of candidate i for query i, from 1; the right one stands last among equals."""
    score = np.asarray(score)
    return (score >= np.diag(score)[:, None]).sum(axis=1)


def quality(score):
    """Return the share of true documents that are ranked first, and the mean reciprocal rank."""
    return np.array([np.mean(ranks(score) == 1), np.mean(1 / ranks(score))])


SETS = [(0,), (0, 1), (0, 1, 2)]
names = [" + ".join(LANGUAGES[v] for v in nodes) for nodes in SETS]
belief = {len(nodes): ask_all(model, nodes, test) for nodes in SETS}
for name, found in zip(names, belief.values(), strict=True):
    first, reciprocal = quality(found.weights)
    print(f"{name:18} ranked first {first:.0%}, mean reciprocal rank {reciprocal:.2f}")
print(f"by chance {1 / TEST:.0%}, {np.mean(1 / np.arange(1, TEST + 1)):.2f}")

# %% [markdown]
# One question in detail: of all, a quarter gains more ranks by the second and third language.

# %%
gain = ranks(belief[1].weights) - ranks(belief[3].weights)
query = int(np.argsort(gain)[3 * len(gain) // 4])
figure, ax = plt.subplots(figsize=(9.5, 3.5), layout="constrained")
for k, (colour, style) in {1: ("#D55E00", "o"), 3: ("#0072B2", "s")}.items():
    rank = ranks(belief[k].weights)[query]
    ax.plot(
        belief[k].weights[query],
        style,
        color=colour,
        markersize=4,
        label=f"{names[k - 1]}: rank {rank}",
    )
ax.axvline(query, color="0.6", linewidth=1, zorder=0, label="the true document")
ax.axhline(
    1 / TEST, color="0.6", linestyle=":", zorder=0, label="before anything is seen"
)
ax.set(xlabel="candidate (number)", ylabel="belief (probability)")
ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
figure.supxlabel(
    f"Belief over {TEST} documents of Tolu, for test document {query}.",
    fontsize="medium",
)
plt.show()

# %% [markdown]
# ## Rivals, and how much more evidence helps
#
# - **Ridge through Nuvi**: ridge regression from each known language to Nuvi, the mean of what they predict, ridge regression to Tolu, and the
#   cosine with each candidate, with means subtracted. It has the same pairs and knows the tree.
# - **Ridge with direct pairs**: somebody has translated as many documents straight into Tolu, from all known languages at once. This is
#   what one would want, and may not have.
#
# Each method has the best setting of a small grid on split 0, which does not count; then come other splits of the same texts. The bandwidth
# is in the grid too: documents are far from each other, and kernels wider than the median distance can do better.


# %%
def regress(x, y, query, ridge):
    """Return what ridge regression with an intercept predicts."""
    centred = x - x.mean(0)
    weights = np.linalg.solve(
        centred @ centred.T + ridge * len(x) * np.eye(len(x)), y - y.mean(0)
    )
    return y.mean(0) + (query - x.mean(0)) @ centred.T @ weights


def cosines(predicted, candidates, mean):
    """Return cosines of predictions with candidates [query, candidate], a mean subtracted from both."""
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
    """Score the candidates by a regression on pairs that the others do not have."""
    last, known = pairs[-1], np.concatenate([vectors[v] for v in nodes], axis=1)
    predicted = regress(known[last], vectors[TOLU][last], known[test], ridge)
    return cosines(predicted, vectors[TOLU][test], vectors[TOLU][last].mean(0))


def best(settings, score):
    """Return the setting of the largest sum of mean reciprocal ranks over the sets of known languages, on split 0."""
    return max(
        settings,
        key=lambda setting: sum(quality(score(nodes, setting))[1] for nodes in SETS),
    )


RIDGES = [3e-4, 1e-3, 3e-3, 1e-2]
SETTINGS = [
    (1, 1e-3, 0.3),
    (2, 3e-4, 0.3),
    (4, 1e-4, 0.1),
]  # median distances, ridge, obs_ridge
models = {
    setting: learn(vectors, setting[0] * bandwidths, pairs, *setting[1:])
    for setting in SETTINGS
}
chosen = best(
    SETTINGS, lambda nodes, setting: ask_all(models[setting], nodes, test).weights
)
two = best(
    [(a, b) for a in RIDGES for b in RIDGES],
    lambda nodes, ridges: through_nuvi(nodes, test, pairs, ridges),
)
one = best(RIDGES, lambda nodes, ridge: direct(nodes, test, pairs, ridge))
rivals = {
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
results = {name: np.zeros((len(SPLITS), len(SETS), 2)) for name in (KBP, *rivals)}
kept = []
for i, number in enumerate(SPLITS):
    some, apart = split(number)
    model = learn(vectors, chosen[0] * bandwidths, apart, *chosen[1:])
    found = [ask_all(model, nodes, some) for nodes in SETS]
    kept.append(found[-1])
    results[KBP][i] = [quality(one.weights) for one in found]
    for name, (rival, ridge) in rivals.items():
        results[name][i] = [quality(rival(nodes, some, apart, ridge)) for nodes in SETS]

figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
colours, styles = ("#0072B2", "#D55E00", "0.5"), ("o-", "s--", "^:")
for k, (ax, label) in enumerate(
    zip(axes, ("share ranked first", "mean reciprocal rank"), strict=True)
):
    for shift, (name, values), style, colour in zip(
        (-0.04, 0, 0.04), results.items(), styles, colours, strict=True
    ):
        mean, error = (
            values.mean(0)[:, k],
            values.std(0, ddof=1)[:, k] / np.sqrt(len(values)),
        )
        ax.errorbar(
            np.arange(1, 4) + shift,
            mean,
            error,
            fmt=style,
            color=colour,
            capsize=3,
            label=name,
        )
    ax.set(
        xlabel="known languages (number)",
        ylabel=label,
        xticks=[1, 2, 3],
        ylim=(0, None),
    )
    ax.grid(alpha=0.3)
axes[0].legend(fontsize="small", loc="upper left")
axes[0].set_ylim(0, 1.3 * max(values.mean(0).max() for values in results.values()))
figure.supxlabel(
    f"Of {TEST} candidates; bars: standard error over {len(SPLITS)} splits of one corpus.",
    fontsize="medium",
)
plt.show()
for name, values in results.items():
    print(
        f"{name:26}",
        "; ".join(
            f"{first:.2f}, {reciprocal:.2f}" for first, reciprocal in values.mean(0)
        ),
    )
gap = results[KBP] - results["ridge through Nuvi"]
for k, label in enumerate(("ranked first", "reciprocal rank")):
    by_set = zip(
        gap.mean(0)[:, k], gap.std(0, ddof=1)[:, k] / np.sqrt(len(gap)), strict=True
    )
    print(
        f"ahead of ridge through Nuvi, {label}:",
        "; ".join(f"{mean:+.3f} ± {error:.3f}" for mean, error in by_set),
    )

# %% [markdown]
# More known languages help all methods. Whoever has direct pairs should take them: a plain regression is
# then ahead of a model that must pass through Nuvi. Against the rival that has the same pairs, look at the last two lines before
# you decide: a lead below two standard errors is none. What regression does not give is a belief.
#
# ## How sure is it, and is that right?
#
# The belief of the first candidate should be the share of times that it is the true one. Count, for three known languages. A temperature,
# chosen on split 0 by the mean log belief of the true document, mends beliefs that are too flat (it is below 1) or too sure (above 1); it
# changes no rank.


# %%
def log_score(belief):
    """Return the mean logarithm of the belief of the true document."""
    return float(np.mean(np.log(np.diag(belief.weights) + 1e-12)))


held_out = ask_all(models[chosen], SETS[-1], test)
temperatures = np.geomspace(1e-4, 2.0, 60)
temperature = max(temperatures, key=lambda t: log_score(kbp.temper(held_out, t)))
versions = {
    "as it is": kept,
    f"temperature {temperature:.1g}": [kbp.temper(one, temperature) for one in kept],
}

figure, ax = plt.subplots(figsize=(5.5, 4.5), layout="constrained")
for (name, found), style, colour in zip(
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
    ax.errorbar(middle, share, error, fmt=style, color=colour, capsize=3, label=name)
    print(
        f"{name:17} says {mass.mean():.2f}, right {right.mean():.2f}, log score {np.mean([*map(log_score, found)]):.2f}"
    )
ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, zorder=0, label="calibrated")
ax.set(
    xlabel="belief of the first candidate (probability)",
    ylabel="share that is right",
    xlim=(0, 1),
    ylim=(0, 1),
)
ax.legend(fontsize="small", loc="lower right")
figure.supxlabel(
    f"{len(groups)} groups of {len(groups[0])} questions each; bars: standard error.",
    fontsize="medium",
)
plt.show()
print(f"log score of guessing: {-np.log(TEST):.2f}")

# %% [markdown]
# As it is, the belief ranks well and says far too little: a message is a smooth function over documents of a wide kernel, so that even the
# best candidate has little more than its share. Never read it as a probability before it was tempered on documents whose answer
# is known. Compare what it says with what is right in the lines above: a temperature chosen on so few documents is off by
# some, too. It also belongs to a number of candidates and of known languages: choose it for yours.
#
# ## Your own documents
#
# One list of strings for each language; those of one number are translations of each other. The last language is the target, and
# `pairs` says which numbers each edge learns from, as many for every edge. Here both edges learn from the first four, and the last two
# are asked for. For real texts drop stop words and take word stems first, as `experiments/corpora.py` does.

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
asked = [4, 5]
answer = ask(
    mine, make_tree(edges, len(own)), jnp.array([0]), x[0][asked][:, None], x[-1][asked]
)
for row, found in zip(asked, np.argmax(answer.weights, axis=1), strict=True):
    print(f"{own['English'][row]} -> {own['Swedish'][asked[found]]}")

# %% [markdown]
# ## What next
#
# - [Variables that are no numbers](../docs/structured.md): eleven languages, real texts, longer paths, and words as strings.
# - Another kernel of texts, one of strings or a program of your own: [kernels](../docs/kernels.md).
# - `kbp.pool` makes the training data where all languages have the same documents.
