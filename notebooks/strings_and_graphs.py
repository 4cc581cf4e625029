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
# # Strings and graphs as variables
#
# This notebook shows how to
#
# - encode words and labelled graphs, and choose a kernel for them;
# - learn how words change along the edges of a tree of languages, and molecules along a chain;
# - rank candidates by their beliefs;
# - compare with simple baselines: edit distance, nearest neighbor and a hidden Markov model.
#
# It runs in about a minute on simulated data. The graphs are trees and chains, so `run_tree` gives exact inference for the learned model.

# %%
import re

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

import kbpjax as kbp
from kbpjax.kernels import (
    Alphabet,
    Mismatch,
    Normalized,
    Precomputed,
    ShortestPath,
    Spectrum,
    Subsequence,
    WeisfeilerLehman,
    encode_graphs,
)

rng = np.random.default_rng(7)

# %% [markdown]
# ## A family of languages
#
# Five languages form a tree. Along each edge, the sound laws of the daughter language apply to every word. In addition, 6 % of the letters change at random,
# and 10 % of the words are replaced by new ones. North has lost final vowels, Coast has changed many of its sounds, Isle almost none.

# %%
languages = ["Old", "North", "South", "Coast", "Isle"]
tree = [(0, 1), (0, 2), (1, 3), (2, 4)]
laws = {
    1: [("p", "f"), ("t", "s"), ("k", "h"), ("[aeiou]$", "")],
    2: [("l", "r"), ("b", "v"), ("(?<=[aeiou])t(?=[aeiou])", "d"), ("u", "o")],
    3: [("b", "p"), ("d", "t"), ("g", "k"), ("o", "u"), ("a", "o"), ("e", "i")],
    4: [("ke", "ce")],
}
consonants, vowels = list("ptkbdglmnrs"), list("aeiou")
concepts, known_concepts = 160, 120
train, test = np.arange(known_concepts), np.arange(known_concepts, concepts)


def new_word():
    """Draw two or three syllables."""
    body = "".join(
        rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.integers(2, 4))
    )
    return body + rng.choice(["", "", "", "n", "s", "r"])


def descend(word, language):
    """Apply the sound laws of a language, and random changes."""
    if rng.random() < 0.1:
        return new_word()
    for before, after in laws[language]:
        word = re.sub(before, after, word)
    return "".join(
        rng.choice(vowels if c in vowels else consonants) if rng.random() < 0.06 else c
        for c in word
    )


words = [[new_word() for _ in range(concepts)]]
for parent, child in sorted(tree, key=lambda edge: edge[1]):
    words.append([descend(word, child) for word in words[parent]])
for row in [languages, *list(zip(*words, strict=True))[:6]]:
    print("".join(f"{word:11}" for word in row))

# %% [markdown]
# `Alphabet` encodes words as arrays of integers. `^` and `$` mark both ends, so that first and last letters are distinguished. The kernel is the cosine
# between counts of letters and of pairs of letters. Blocks of its Gram matrix are pairs of languages. A bright diagonal
# inside a block means that words of the same meaning are similar.

# %%
marked = [f"^{word}$" for of in words for word in of]
codes = Alphabet.of(marked).encode(marked)
print(f"{codes.shape[0]} words of up to {codes.shape[1]} symbols")
print(f"{marked[0]} is {codes[0].tolist()}")
spectrum = Normalized(Spectrum(1) + Spectrum(2))
gram = np.asarray(kbp.gram(spectrum, codes, codes, block_size=50))

shown = 12
first = np.concatenate(
    [concepts * language + np.arange(shown) for language in range(5)]
)
figure, ax = plt.subplots(figsize=(5.6, 5), layout="constrained")
shade = ax.imshow(gram[np.ix_(first, first)], cmap="magma", vmin=0, vmax=1)
middle = shown * np.arange(5) + (shown - 1) / 2
ax.set(xticks=middle, xticklabels=languages, yticks=middle, yticklabels=languages)
ax.set(
    xlabel="word, by language",
    ylabel="word, by language",
    title=f"Gram matrix of {shown} words per language",
)
for line in shown * np.arange(1, 5) - 0.5:
    ax.axhline(line, color="w", linewidth=0.6)
    ax.axvline(line, color="w", linewidth=0.6)
figure.colorbar(shade, ax=ax, label="k(x, y), a cosine")
plt.show()

# %% [markdown]
# The diagonals fade with the distance on the tree.
#
# ## Learning from cognates
#
# Each edge learns from pairs of words of the same meaning. All words are known in advance, so points are row numbers and the kernel is
# the matrix above (`Precomputed`). For new words, pass the kernel itself, and codes as points. Pairs are repeated up
# to a fixed length, so that one compiled program serves any number of pairs; this does not change the estimates.

# %%
family = kbp.Graph.from_edges(
    tree, 5, node_type=np.arange(5), edge_type=np.arange(len(tree))
)
words_rule = kbp.ConstantTime(eps=3e-3, max_rank=known_concepts)


def learn_words(matrix, known):
    """Learn all edges from the known concepts."""
    of = {language: concepts * language + known for language in range(5)}
    pairs = {k: (of[a], of[b]) for k, (a, b) in enumerate(tree)}
    data = kbp.TrainingData(pairs, of, ends=dict(enumerate(tree)))
    kernels = dict.fromkeys(of, Precomputed(matrix))
    return kbp.fit(data, kernel=kernels, rule=words_rule, ridge=1e-2, obs_ridge=1e-2)


@jax.jit
def infer_words(model, given):
    """Return beliefs over the test concepts [case, language, concept]."""
    points = {
        language: jnp.asarray(concepts * language + test) for language in range(5)
    }

    def answer(of_two):
        languages_known, known = of_two
        evidence = kbp.clamp(
            model, family, languages_known, known, evidence_model=kbp.DensityRatio()
        )
        solution = kbp.run_tree(model, family, evidence)
        found = kbp.beliefs(
            model, family, evidence, solution, points, marginal=kbp.Empirical()
        )
        return jnp.stack([found[language].weights[0] for language in range(5)])

    return jax.lax.map(answer, given, batch_size=20)


def ranked(model, known, target):
    """Return beliefs of the target language for each test concept [case, candidate]."""
    given = np.broadcast_to(known, (len(test), len(known)))
    return np.asarray(
        infer_words(
            model, (jnp.asarray(given), jnp.asarray(concepts * given + test[:, None]))
        )
    )[:, target]


def share_right(scores):
    """Return the share of test concepts whose own word has the highest score."""
    return float(np.mean(np.argmax(scores, axis=1) == np.arange(len(scores))))


def distance(a, b):
    """Return Levenshtein's edit distance."""
    row = list(range(len(b) + 1))
    for i, s in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, t in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (s != t))
    return row[-1]


def apart(known, target):
    """Return edit distances of test words of two languages [case, candidate]."""
    return np.array(
        [[distance(words[known][c], words[target][d]) for d in test] for c in test]
    )


# %% [markdown]
# The words of one language are hidden, and its candidates, the words of all test concepts, are ranked by belief. The baseline takes the candidate with the
# smallest edit distance to a known word. With two known words, it uses the smaller distance (*nearest*) or the average (*mean*).

# %%
questions = {
    "Old to Coast": ([0], 3),
    "North to Coast": ([1], 3),
    "Isle to Coast": ([4], 3),
    "South to Isle": ([2], 4),
    "Old to South": ([0], 2),
    "Old, Coast to North": ([0, 3], 1),
    "North, South to Old": ([1, 2], 0),
}
model = learn_words(gram, train)
edits = {
    name: np.stack([apart(known, target) for known in of])
    for name, (of, target) in questions.items()
}
print(f"{len(test)} candidates; standard errors up to {0.5 / len(test) ** 0.5:.0%}")
print(f"{'share correct':22}{'belief':>8}{'nearest':>9}{'mean':>7}")
for name, (known, target) in questions.items():
    by_belief = share_right(ranked(model, known, target))
    nearest = share_right(-edits[name].min(axis=0))
    mean = share_right(-edits[name].mean(axis=0))
    print(f"{name:22}{by_belief:8.0%}{nearest:9.0%}{mean:7.0%}")

# %% [markdown]
# Beliefs are more accurate for Coast, where many sounds have changed by law. Edit distance counts each change as an error, while the model has learned
# the changes, also over several edges: no training pair joins Old and Coast. Where words hardly changed, or where two known
# words both resemble the hidden one, edit distance is as accurate or better, because it assumes that letters stay the same. The model must learn that
# too, as the next figure shows.

# %%
sizes = [10, 20, 40, 80, known_concepts]
curves = {name: [] for name in ("Old to Coast", "North to Coast", "South to Isle")}
for size in sizes:
    of_size = learn_words(
        gram, np.resize(rng.permutation(known_concepts)[:size], known_concepts)
    )
    for name, curve in curves.items():
        curve.append(share_right(ranked(of_size, *questions[name])))
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for number, (name, curve) in enumerate(curves.items()):
    ax.plot(sizes, curve, "o-", color=f"C{number}", label=f"{name}, belief")
    ax.axhline(
        share_right(-edits[name].min(axis=0)),
        color=f"C{number}",
        linestyle="--",
        label=f"{name}, edit distance",
    )
ax.set(xscale="log", xticks=sizes, xticklabels=sizes, ylim=(0, 1))
ax.minorticks_off()
ax.set(xlabel="training concepts", ylabel="share correct")
ax.set_title(f"The correct one of {len(test)} words")
ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# Two queries from North to Coast: one where only the belief is correct, and one where it is wrong. The correct word is green. The
# edit distance to the known word is in brackets. In the second query, Coast has replaced the word by a new one, so no method can identify it.

# %%
belief, steps = ranked(model, *questions["North to Coast"]), edits["North to Coast"][0]
found = np.argmax(belief, axis=1) == np.arange(len(test))
by_edits = np.argmin(steps, axis=1) == np.arange(len(test))
cases = [np.flatnonzero(found & ~by_edits)[0], np.flatnonzero(~found)[0]]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for ax, case in zip(axes, cases, strict=True):
    top = np.argsort(-belief[case])[:7]
    top = top if case in top else np.append(top[:-1], case)
    labels = [f"{words[3][test[c]]} ({steps[case, c]})" for c in top]
    ax.barh(
        labels, belief[case, top], color=["C2" if c == case else "0.7" for c in top]
    )
    ax.invert_yaxis()
    ax.set(
        xlabel="belief",
        ylabel="candidate in Coast",
        title=f"Old {words[0][test[case]]}, North {words[1][test[case]]}",
    )
plt.show()

# %% [markdown]
# ## Graphs: growing molecules, noisy copies
#
# A molecule has a ring and two side chains. At each of six steps one side chain grows, or nothing happens. The molecules are hidden. Observed is a noisy copy of
# each: atoms are mistaken, bonds and atoms are missing, and the order of atoms is random. For a third of the steps there is no copy.

# %%
rings = ["CCCCCC", "NCCCCC", "NCNCCC", "OCCCC", "OCNCC"]
atoms, colors = "CNO", np.array(["0.6", "C0", "C3"])
longest, length, mistakes = 2, 6, 0.08


def molecule(ring, carbon, other):
    """Return a ring with two side chains: carbon, and nitrogen with oxygen."""
    symbols, n = rings[ring] + "C" * carbon + "NO"[:other], len(rings[ring])
    drawn = nx.cycle_graph(n)
    nx.add_path(drawn, [n - 1, *range(n, n + carbon)])
    nx.add_path(drawn, [n - 3, *range(n + carbon, n + carbon + other)])
    nx.set_node_attributes(
        drawn, {i: atoms.index(a) for i, a in enumerate(symbols)}, "label"
    )
    return drawn


def grow(count):
    """Draw chains of molecules, as indices into the library [case, step]."""
    rows = []
    for _ in range(count):
        ring, parts = rng.integers(5), rng.integers(2, size=2)
        rows.append([])
        for _ in range(length):
            rows[-1].append(places[ring, *parts])
            grown = parts + [(1, 0), (0, 1), (0, 0)][rng.choice(3, p=[0.45, 0.35, 0.2])]
            parts = np.minimum(grown, longest)
    return np.array(rows)


def read(drawn):
    """Return a noisy copy, its nodes in random order."""
    kept = [v for v in rng.permutation(len(drawn)) if rng.random() > mistakes / 2]
    wrong = {v: int(rng.integers(3)) for v in kept if rng.random() < mistakes}
    copy = nx.Graph()
    copy.add_nodes_from(
        (v, {"label": wrong.get(v, drawn.nodes[v]["label"])}) for v in kept
    )
    copy.add_edges_from(
        (u, v)
        for u, v in drawn.edges
        if u in copy and v in copy and rng.random() > mistakes / 1.5
    )
    return copy


parts = [
    (r, i, j) for r in range(5) for i in range(longest + 1) for j in range(longest + 1)
]
places = {part: number for number, part in enumerate(parts)}
library = [molecule(*part) for part in parts]
chains, truth = grow(120), grow(50)
seen = rng.random(truth.shape) < 2 / 3
# Training pairs of molecule and copy: eight copies of each molecule.
sample = np.repeat(np.arange(len(library)), 8)
copies = [read(library[i]) for i in [*sample, *truth.ravel()]]
points = encode_graphs(library + copies)
of_sample = len(library) + np.arange(len(sample))
of_test = len(library) + len(sample) + np.arange(truth.size).reshape(truth.shape)
print(f"{len(library)} molecules, {len(copies)} copies")
print(f"encoded as {points.shape}: a column of atoms and a matrix of bonds for each")

# %% [markdown]
# `WeisfeilerLehman` counts equal neighborhoods of atoms, whatever their order. The cosines of these counts are mostly above one half, and their fourth power
# separates them better. The same matrix compares molecules with molecules (for messages) and copies with copies (for evidence).

# %%
neighborhoods = Normalized(WeisfeilerLehman(2))
graph_gram = np.asarray(kbp.gram(neighborhoods, points, points, block_size=50)) ** 4
chain = kbp.chain_graph(length)
no_edges = kbp.Graph.from_edges(np.zeros((0, 2), int), length)
everything = jnp.arange(len(library))
graphs_rule = kbp.ConstantTime(eps=1e-3, max_rank=200)


def learn_graphs(hidden, copied, x):
    """Learn steps from chains [case, step], and evidence from the training pairs."""
    steps, copied_pairs = (x[:, :-1].ravel(), x[:, 1:].ravel()), (sample, of_sample)
    pairs = tuple(map(jnp.asarray, copied_pairs))
    data = kbp.TrainingData({0: steps}, {0: x.ravel()}, {0: pairs})
    kernels = {"kernel": Precomputed(hidden), "obs_kernel": Precomputed(copied)}
    return kbp.fit(data, rule=graphs_rule, ridge=1e-2, obs_ridge=1e-2, **kernels)


@jax.jit
def restore(model, graph):
    """Return beliefs over the library [case, step, molecule]."""

    def answer(case):
        evidence = kbp.observe(
            model, graph, case[0], mask=case[1], evidence_model=kbp.DensityRatio()
        )
        solution = kbp.run_tree(model, graph, evidence)
        return kbp.beliefs(
            model, graph, evidence, solution, everything, marginal=kbp.Empirical()
        ).weights

    return jax.lax.map(answer, (jnp.asarray(of_test), jnp.asarray(seen)), batch_size=25)


def shares(scores):
    """Return the share correct of steps with a copy, and of steps without."""
    right = np.argmax(scores, axis=-1) == truth
    return np.array([right[seen].mean(), right[~seen].mean()])


def some(count):
    """Return training chains, repeated up to a fixed number."""
    return np.resize(chains[:count], chains.shape)


by_graphs = learn_graphs(graph_gram, graph_gram, chains)
together, alone = (np.asarray(restore(by_graphs, graph)) for graph in (chain, no_edges))
nearest = graph_gram[of_test][:, :, : len(library)]
print(f"{'share correct':25}{'copy':>8}{'no copy':>9}")
print(f"{'nearest in the library':25}{shares(nearest)[0]:8.0%}{'-':>9}")
for name, weights in (("without messages", alone), ("with messages", together)):
    copied, missing = shares(weights)
    print(f"{'belief ' + name:25}{copied:8.0%}{missing:9.0%}")

# %% [markdown]
# Messages raise the share from 42 % to 68 %, and find a third of the steps without a copy. For a single copy, the nearest molecule in the library is about as good
# as the belief without messages, which has to learn the similarity of copy and molecule. Below is a copy that is identified only by the chain.

# %%
best, best_alone = np.argmax(together, axis=-1), np.argmax(alone, axis=-1)
case, step = np.argwhere(seen & (best == truth) & (best_alone != truth))[0]
hidden = int(truth[case, step])
figure, axes = plt.subplots(
    1, 3, figsize=(11, 4), layout="constrained", width_ratios=[1, 1, 1.3]
)
for ax, number, title in zip(
    axes,
    (of_test[case, step] - len(library), hidden),
    ("noisy copy", "molecule"),
    strict=False,
):
    drawn = copies[number] if title == "noisy copy" else library[number]
    place = nx.kamada_kawai_layout(library[hidden])
    kinds = [drawn.nodes[v]["label"] for v in drawn]
    style = {"node_color": colors[kinds], "font_color": "w", "node_size": 380}
    labels = {v: atoms[k] for v, k in zip(drawn, kinds, strict=True)}
    nx.draw_networkx(drawn, place, ax=ax, labels=labels, **style)
    ax.set(title=f"step {step}: {title}", aspect="equal")
    ax.margins(0.15)
top = np.argsort(-np.maximum(together, alone)[case, step])[:6]
name_of = lambda ring, i, j: f"{rings[ring]}, {'C' * i or 'none'}, {'NO'[:j] or 'none'}"
names = [name_of(*parts[number]) for number in top]
axes[2].barh(np.arange(6) - 0.2, together[case, step, top], 0.4, label="with messages")
gray = {"label": "without messages", "color": "0.7"}
axes[2].barh(np.arange(6) + 0.2, alone[case, step, top], 0.4, **gray)
axes[2].set(yticks=range(6), yticklabels=names, xlabel="belief")
axes[2].set(ylabel="ring, two side chains", title=f"truth: {name_of(*parts[hidden])}")
axes[2].set(xlim=(0, 1.5 * together[case, step].max()))
axes[2].invert_yaxis()
axes[2].legend()
plt.show()

# %% [markdown]
# Carbon is gray, nitrogen blue, oxygen red.
#
# ## How many training chains are needed?
#
# With few training chains, many molecules of the library have never occurred. A kernel on the *hidden* graphs lets the model generalize from one
# molecule to similar ones. With `Delta`, here the unit matrix, it cannot. The baseline is a hidden Markov model with counted transitions. Its likelihood is given
# and not learned: a power of the kernel between copy and molecule. The power is the best of four on the test copies, which favors this baseline.


# %%
def counted(x, power):
    """Return posteriors of the hidden Markov model, unscaled [case, step, molecule]."""
    moves = np.full((len(library),) * 2, 0.02)
    np.add.at(moves, (x[:, :-1].ravel(), x[:, 1:].ravel()), 1)
    moves /= moves.sum(axis=1, keepdims=True)
    like = graph_gram[of_test][:, :, : len(library)] ** power
    like = np.where(seen[..., None], like / like.max(axis=-1, keepdims=True), 1)
    forward, backward = [like[:, 0]], [np.ones_like(like[:, 0])]
    for t in range(1, length):
        forward.append(forward[-1] @ moves * like[:, t])
        backward.insert(0, (backward[0] * like[:, length - t]) @ moves.T)
    return np.stack(forward, axis=1) * np.stack(backward, axis=1)


numbers = [8, 15, 30, 60, len(chains)]
unit = np.eye(len(graph_gram))
results = {
    "kernel on hidden graphs": [],
    "Delta on hidden graphs": [],
    "counted transitions": [],
}
for count in numbers:
    of_kernels = [
        restore(learn_graphs(matrix, graph_gram, some(count)), chain)
        for matrix in (graph_gram, unit)
    ]
    baseline = max(
        (shares(counted(chains[:count], power)) for power in (3, 6, 10, 20)),
        key=lambda of: of[0],
    )
    rows = (*map(shares, of_kernels), baseline)
    for name, row in zip(results, rows, strict=True):
        results[name].append(row)
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True)
for column, (ax, title) in enumerate(
    zip(axes, ("steps with a copy", "steps without a copy"), strict=True)
):
    for (name, rows), style in zip(results.items(), ("o-", "s-", "^-"), strict=True):
        ax.plot(numbers, np.array(rows)[:, column], style, label=name)
    ax.set(
        xscale="log",
        xticks=numbers,
        xticklabels=numbers,
        xlabel="training chains",
        title=title,
    )
    ax.minorticks_off()
lines = {"belief without messages": (alone, ":"), "nearest": (nearest, "--")}
for name, (scores, style) in lines.items():
    axes[0].axhline(shares(scores)[0], color="0.5", linestyle=style, label=name)
axes[0].set(ylabel="share correct", ylim=(0, 1))
axes[0].legend(fontsize="small", loc="upper left")
plt.show()
print(f"{'training chains':25}", "".join(f"{count:6}" for count in numbers))
occurring = [len(np.unique(chains[:count])) for count in numbers]
print(f"{'molecules that occur':25}", "".join(f"{count:6}" for count in occurring))
print("share correct of steps with a copy:")
for name, rows in results.items():
    print(f"{name:25}", "".join(f"{row[0]:6.0%}" for row in rows))

# %% [markdown]
# The kernel on hidden graphs is better than `Delta` for every number of chains. The hidden Markov model, whose likelihood is given, is ahead for steps with a copy with eight chains, and by less than these steps can tell with more.
#
# ## Which kernel?
#
# Kernels can be exchanged in one line. The table compares some by their accuracy on the test data: for words, the share correct
# from Old to Coast and from South to Isle; for graphs, the share correct of steps with and without a copy.

# %%
candidates = {
    "Spectrum(1)": (Spectrum(1), 1),
    "Spectrum(2)": (Spectrum(2), 1),
    "Spectrum(1) + Spectrum(2)": (Spectrum(1) + Spectrum(2), 1),
    "Mismatch(3, 1)": (Mismatch(3, 1, int(codes.max())), 1),
    "Subsequence(2, 0.5)": (Subsequence(2, 0.5), 1),
    "WeisfeilerLehman(1)": (WeisfeilerLehman(1), 4),
    "WeisfeilerLehman(2)": (WeisfeilerLehman(2), 4),
    "ShortestPath(3)": (ShortestPath(3), 4),
}
print(f"{'kernel, as a cosine':28}{'power':>6}   shares correct")
for name, (kernel, power) in candidates.items():
    over_words = power == 1
    x = codes if over_words else points
    matrix = np.asarray(kbp.gram(Normalized(kernel), x, x, block_size=50)) ** power
    if over_words:
        learned = learn_words(matrix, train)
        of_kernel = [
            share_right(ranked(learned, *questions[of]))
            for of in ("Old to Coast", "South to Isle")
        ]
    else:
        of_kernel = shares(restore(learn_graphs(matrix, matrix, chains), chain))
    print(f"{name:28}{power:6}   {of_kernel[0]:.0%}, {of_kernel[1]:.0%}")

# %% [markdown]
# All kernels and their inputs: [kernels](../docs/kernels.md). Real words and documents, with baselines: [structured variables](../docs/structured.md).
