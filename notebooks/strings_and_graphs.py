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
# # Variables that are strings, variables that are graphs
#
# After this notebook you can encode words and labelled graphs, choose a kernel for them, learn how they change along the edges
# of a tree or a chain, rank candidates by belief, and check this against a rival that learns nothing. All data are made here.

# %%
import re
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

import kbpjax as kbp
from kbpjax.kernels import (
    Alphabet,
    Mismatch,
    Normalised,
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
# Five languages on a tree. On its way down each word passes the sound laws of its edge; now and then a letter changes by chance,
# and some words are replaced by new ones. North has lost final vowels, Coast has moved nearly all of its sounds, Isle almost none.

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
concepts, learnt = 160, 120
train, test = np.arange(learnt), np.arange(learnt, concepts)


def new_word():
    """Draw two or three syllables."""
    body = "".join(
        rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.integers(2, 4))
    )
    return body + rng.choice(["", "", "", "n", "s", "r"])


def descend(word, language):
    """Apply the laws of a language, and chance."""
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
# `Alphabet` turns words into arrays of codes, `^` and `$` mark both ends, so that a first letter is not like a last one. The kernel
# counts common letters and common pairs of letters, as a cosine. In its Gram matrix blocks are pairs of languages; a bright diagonal
# inside a block says that words of one meaning are alike.

# %%
marked = [f"^{word}$" for of in words for word in of]
codes = Alphabet.of(marked).encode(marked)
print(
    f"{codes.shape[0]} words of up to {codes.shape[1]} symbols; the first: {codes[0].tolist()}"
)
gram = np.asarray(
    kbp.gram(Normalised(Spectrum(1) + Spectrum(2)), codes, codes, block_size=50)
)

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
    title=f"Gram matrix of {shown} words a language",
)
for line in shown * np.arange(1, 5) - 0.5:
    ax.axhline(line, color="w", linewidth=0.6)
    ax.axvline(line, color="w", linewidth=0.6)
figure.colorbar(shade, ax=ax, label="k(x, y), a cosine")
figure.supxlabel(
    "Diagonals of blocks fade with the distance on the tree.", fontsize="medium"
)

# %% [markdown]
# ## Learn from cognates
#
# Each edge learns from pairs of words of one meaning. As all words are known beforehand, points are their numbers and the kernel is
# the matrix above (`Precomputed`); for words that come later pass the kernel itself, and codes as points. Pairs are repeated up
# to one length, which changes no estimate, so that one compiled program serves any number of pairs.

# %%
family = kbp.Graph.from_edges(
    tree, 5, node_type=np.arange(5), edge_type=np.arange(len(tree))
)
words_rule = kbp.ConstantTime(eps=3e-3, max_rank=learnt)


@jax.jit
def learn_words(matrix, known):
    """Learn all edges from the known concepts."""
    of = {language: concepts * language + known for language in range(5)}
    pairs = {k: (of[a], of[b]) for k, (a, b) in enumerate(tree)}
    data = kbp.TrainingData(pairs, of, ends=dict(enumerate(tree)))
    kernels = dict.fromkeys(of, Precomputed(matrix))
    return kbp.fit(data, kernel=kernels, rule=words_rule, ridge=1e-2, obs_ridge=1e-2)


@jax.jit
def ask(model, given):
    """Return beliefs over the test concepts [case, language, concept], given words of two languages."""
    points = {
        language: jnp.asarray(concepts * language + test) for language in range(5)
    }

    def answer(of_two):
        languages_known, known = of_two
        evidence = kbp.clamp(
            model, family, languages_known, known, form=kbp.DensityRatio()
        )
        solution = kbp.run_tree(model, family, evidence)
        found = kbp.beliefs(
            model, family, evidence, solution, points, marginal=kbp.Empirical()
        )
        return jnp.stack([found[language].weights[0] for language in range(5)])

    return jax.lax.map(answer, given, batch_size=20)


def ranked(model, known, target):
    """Return the beliefs of the target's candidates for each test concept [case, candidate]."""
    given = np.broadcast_to(known, (len(test), len(known)))
    return np.asarray(
        ask(model, (jnp.asarray(given), jnp.asarray(concepts * given + test[:, None])))
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
# Now hide the words of one language and rank its candidates, the words of all test concepts. The rival takes the candidate of the
# smallest edit distance to a known word; with two known words, to the nearer one (*nearest*) or to both (*mean*).

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
print(
    f"{len(test)} candidates; a share has a standard error of up to {0.5 / len(test) ** 0.5:.0%}\n{'':22}{'belief':>8}{'nearest':>9}{'mean':>7}"
)
for name, (known, target) in questions.items():
    ours = share_right(ranked(model, known, target))
    nearest, mean = (
        share_right(-edits[name].min(axis=0)),
        share_right(-edits[name].mean(axis=0)),
    )
    print(f"{name:22}{ours:8.0%}{nearest:9.0%}{mean:7.0%}")

# %% [markdown]
# Beliefs win where many sounds have moved by law: edit distance counts each of them as an error, while the model has learned what
# becomes of what, over several edges too (no pair of Old and Coast was ever shown). Where words hardly changed, and where two known
# words both resemble the hidden one, edit distance is about as good or better: it knows from the start that letters keep. The same is seen
# in how many pairs the model needs.

# %%
sizes = [10, 20, 40, 80, learnt]
curves = {name: [] for name in ("Old to Coast", "North to Coast", "South to Isle")}
for size in sizes:
    of_size = learn_words(gram, np.resize(rng.permutation(learnt)[:size], learnt))
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
ax.set(
    xlabel="concepts to learn from",
    ylabel="share found",
    title=f"The right one of {len(test)} words",
)
ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
figure.supxlabel(
    "Sound laws must be learned; edit distance starts with all it will ever know.",
    fontsize="medium",
)

# %% [markdown]
# Two words of Coast, the North word being known: one that only the belief finds, and one that the belief misses. In brackets is the
# edit distance to the known word.

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
        title=f"North: {words[1][test[case]]}",
    )
figure.supxlabel(
    f"Green: the word of this meaning, from Old {words[0][test[cases[0]]]} and {words[0][test[cases[1]]]}.",
    fontsize="medium",
)

# %% [markdown]
# ## Graphs: molecules that grow, badly read
#
# A molecule has a ring and two side chains. At each of six steps one of them grows, or nothing happens. A scanner reads the
# drawing of each step: it mistakes atoms, misses bonds and atoms, and has no fixed order of them. Hidden are the molecules, and a
# third of the steps was not read at all.

# %%
rings = ["CCCCCC", "NCCCCC", "NCNCCC", "OCCCC", "OCNCC"]
atoms, colours = "CNO", np.array(["0.6", "C0", "C3"])
longest, length, mistakes = 2, 6, 0.08


def molecule(ring, carbon, other):
    """Return a ring with a side chain of carbon and one of nitrogen and oxygen; labels are numbers of atoms."""
    symbols, n = rings[ring] + "C" * carbon + "NO"[:other], len(rings[ring])
    drawn = nx.cycle_graph(n)
    nx.add_path(drawn, [n - 1, *range(n, n + carbon)])
    nx.add_path(drawn, [n - 3, *range(n + carbon, n + carbon + other)])
    nx.set_node_attributes(
        drawn, {i: atoms.index(a) for i, a in enumerate(symbols)}, "label"
    )
    return drawn


def grow(count):
    """Draw molecules by their numbers in the library [case, step]."""
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
    """Return a bad copy, its nodes in random order."""
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
repeats = 8
sample = np.repeat(
    np.arange(len(library)), repeats
)  # to learn the scanner: each molecule read some times
copies = [read(library[i]) for i in [*sample, *truth.ravel()]]
points = encode_graphs(library + copies)
of_sample = len(library) + np.arange(len(sample))
of_test = len(library) + len(sample) + np.arange(truth.size).reshape(truth.shape)
print(
    f"{len(library)} molecules, {len(copies)} copies; encoded {points.shape}: a column of atoms, then a matrix of bonds"
)

# %% [markdown]
# `WeisfeilerLehman` counts equal neighbourhoods of atoms, blind to their order. Cosines of counts are all large; a fourth power
# pulls them apart. The same matrix compares molecules with molecules (for messages) and copies with copies (for the scanner).

# %%
graph_gram = (
    np.asarray(kbp.gram(Normalised(WeisfeilerLehman(2)), points, points, block_size=50))
    ** 4
)
chain, no_edges = (
    kbp.chain_graph(length),
    kbp.Graph.from_edges(np.zeros((0, 2), int), length),
)
everything = jnp.arange(len(library))
graphs_rule = kbp.ConstantTime(eps=1e-3, max_rank=200)


@jax.jit
def learn_graphs(hidden, copied, x):
    """Learn steps from chains [case, step], and the scanner from its sample."""
    scanned = jnp.asarray(sample), jnp.asarray(of_sample)
    data = kbp.TrainingData(
        {0: (x[:, :-1].ravel(), x[:, 1:].ravel())}, {0: x.ravel()}, {0: scanned}
    )
    kernels = {"kernel": Precomputed(hidden), "obs_kernel": Precomputed(copied)}
    return kbp.fit(data, rule=graphs_rule, ridge=1e-2, obs_ridge=1e-2, **kernels)


@jax.jit
def restore(model, graph):
    """Return beliefs over the library [case, step, molecule]."""

    def answer(case):
        evidence = kbp.observe(
            model, graph, case[0], mask=case[1], form=kbp.DensityRatio()
        )
        solution = kbp.run_tree(model, graph, evidence)
        return kbp.beliefs(
            model, graph, evidence, solution, everything, marginal=kbp.Empirical()
        ).weights

    return jax.lax.map(answer, (jnp.asarray(of_test), jnp.asarray(seen)), batch_size=25)


def shares(scores):
    """Return the share of molecules found where there is a copy, and where there is none."""
    right = np.argmax(scores, axis=-1) == truth
    return np.array([right[seen].mean(), right[~seen].mean()])


def some(count):
    """Return chains to learn from, repeated up to one number."""
    return np.resize(chains[:count], chains.shape)


by_graphs = learn_graphs(graph_gram, graph_gram, chains)
together, alone = (np.asarray(restore(by_graphs, graph)) for graph in (chain, no_edges))
nearest = graph_gram[of_test][:, :, : len(library)]
print(f"nearest in the library {shares(nearest)[0]:.0%} of the copies")
for name, weights in (("without messages", alone), ("with messages", together)):
    print(
        f"belief {name:17} {shares(weights)[0]:.0%} of the copies, {shares(weights)[1]:.0%} where none was read"
    )

# %% [markdown]
# A lone copy is better looked up than left to the belief without messages, a regression that must learn what is alike; messages
# make up for that, and guess the steps of which there is no copy. Below is a copy that only the chain explains.

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
    ("what was read", "the molecule"),
    strict=False,
):
    drawn = copies[number] if title == "what was read" else library[number]
    place = nx.kamada_kawai_layout(library[hidden])
    kinds = [drawn.nodes[v]["label"] for v in drawn]
    style = {"node_color": colours[kinds], "font_color": "w", "node_size": 380}
    nx.draw_networkx(
        drawn,
        place,
        ax=ax,
        labels={v: atoms[k] for v, k in zip(drawn, kinds, strict=True)},
        **style,
    )
    ax.set(title=f"step {step}: {title}", aspect="equal", xlabel="layout, no units")
    ax.margins(0.15)
top = np.argsort(-np.maximum(together, alone)[case, step])[:6]
name_of = lambda ring, i, j: f"{rings[ring]}, {'C' * i or 'none'}, {'NO'[:j] or 'none'}"
names = [name_of(*parts[number]) for number in top]
axes[2].barh(np.arange(6) - 0.2, together[case, step, top], 0.4, label="with messages")
axes[2].barh(
    np.arange(6) + 0.2, alone[case, step, top], 0.4, label="without", color="0.7"
)
axes[2].set(
    yticks=range(6), yticklabels=names, xlabel="belief", ylabel="ring, two side chains"
)
axes[2].set(
    title=f"truth: {name_of(*parts[hidden])}",
    xlim=(0, 1.5 * together[case, step].max()),
)
axes[2].invert_yaxis()
axes[2].legend()
figure.supxlabel(
    "Grey carbon, blue nitrogen, red oxygen. Atoms are placed alike on both sides.",
    fontsize="medium",
)

# %% [markdown]
# ## How many chains does it take?
#
# With few chains many molecules of the library never occurred, and looking up the nearest one, which needs no chains, is hard to
# beat. A kernel on the *hidden* graphs lets the model pass from one molecule to others like it; with `Delta`, here the unit
# matrix, it cannot. The rival is a hidden Markov model with counted transitions. It is *told* what the others learn, that a copy
# is like its molecule: its likelihood is a power of the kernel between them, the one that finds most of these very copies.


# %%
def counted(x, power):
    """Return forward-backward products of counted transitions [case, step, molecule]."""
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
    rival = max(
        (shares(counted(chains[:count], power)) for power in (3, 6, 10, 20)),
        key=lambda of: of[0],
    )
    for name, row in zip(results, (*map(shares, of_kernels), rival), strict=True):
        results[name].append(row)
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True)
for column, (ax, title) in enumerate(
    zip(axes, ("with a copy", "with none"), strict=True)
):
    for (name, rows), style in zip(results.items(), ("o-", "s-", "^-"), strict=True):
        ax.plot(numbers, np.array(rows)[:, column], style, label=name)
    ax.set(
        xscale="log",
        xticks=numbers,
        xticklabels=numbers,
        xlabel="chains to learn from",
        title=title,
    )
    ax.minorticks_off()
axes[0].axhline(
    shares(alone)[0], color="0.5", linestyle=":", label="copies alone, no messages"
)
axes[0].axhline(
    shares(nearest)[0], color="0.5", linestyle="--", label="nearest in the library"
)
axes[0].set(ylabel="share found", ylim=(0, 1))
axes[0].legend(fontsize="small", loc="upper left")
figure.supxlabel(
    f"Molecules that occur in the chains: {', '.join(str(len(np.unique(chains[:n]))) for n in numbers)} of {len(library)}.",
    fontsize="medium",
)
for name, rows in results.items():
    print(f"{name:25}", " ".join(f"{row[0]:.0%}" for row in rows))

# %% [markdown]
# ## Which kernel?
#
# A kernel is one line, so try several. Time is that of the Gram matrix, with its compilation; accuracy is the share found, for
# words from Old to Coast and from South to Isle, for graphs of steps with a copy and without.

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
print(f"{'kernel, as a cosine':28}{'power':>6}{'seconds':>9}   shares found")
for name, (kernel, power) in candidates.items():
    start, over_words = time.perf_counter(), power == 1
    x = codes if over_words else points
    matrix = np.asarray(kbp.gram(Normalised(kernel), x, x, block_size=50)) ** power
    seconds = time.perf_counter() - start
    if over_words:
        learned = learn_words(matrix, train)
        of_kernel = [
            share_right(ranked(learned, *questions[of]))
            for of in ("Old to Coast", "South to Isle")
        ]
    else:
        of_kernel = shares(restore(learn_graphs(matrix, matrix, chains), chain))
    print(f"{name:28}{power:6}{seconds:9.2f}   {of_kernel[0]:.0%}, {of_kernel[1]:.0%}")

# %% [markdown]
# All kernels, and what each expects: `docs/kernels.md`. Real words and documents, against rivals: `docs/structured.md`.
