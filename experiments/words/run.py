"""Guess the word for a concept in one language from the words in others: strings as variables on a tree of languages.

207 basic concepts (Swadesh lists) in 13 European languages. A node is a language and its value the word for a concept,
a string. From part of the concepts each edge learns which words go with which; of the others the words in some
languages are observed, and the words of another language are ranked. Each edge also learns that a word may be the same
in both languages, from pairs of equal words: 147 concepts are too few to learn that letters are preserved.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

import kbpjax as kbp
from experiments.lib import command_line, datasets, results, steps, tables
from experiments.lib.choices import Choices, add_use_argument
from experiments.lib.results import standard_error
from experiments.lib.search import coordinate_search, on_edge
from experiments.words import data
from kbpjax.kernels import Alphabet, Normalized, Precomputed, Spectrum

TREE = (
    ("is", "nb"),
    ("nb", "da"),
    ("nb", "sv"),
    ("sv", "fi"),
    ("da", "de"),
    ("de", "nl"),
    ("nl", "en"),
    ("en", "fr"),
    ("fr", "it"),
    ("it", "es"),
    ("es", "pt"),
    ("it", "el"),
)
"""Neighbors: the families of the languages, joined where one has borrowed from another."""
OBSERVED = (1, 3, 6, 12)
"""Numbers of languages, drawn for each question, in which the word is known."""
TRAIN = 147
SPACE = {"ridge": (1e-3, 3e-3), "obs_ridge": (3e-3, 1e-2)}
"""Of the messages between languages, and of the observed words."""
TRIALS = 10
"""Of each of the two variants; edit distances have no options."""
KERNEL = Normalized(Spectrum(1) + Spectrum(2))
RULE = kbp.ConstantTime(eps=3e-3, max_rank=600)
OURS = {"kernel belief propagation": True, "the same, without pairs of equal words": False}
"""Whether edges learn from pairs of equal words."""
BY_EDITS = ("edit distance, nearest", "edit distance, best", "edit distance, mean")
METHODS = (*OURS, *BY_EDITS)
SIZES = {"samples": 1000, "pairs": 1200, "candidates": 160}
"""Lengths to which lists are repeated, so that programs are compiled once and not for each split."""


class Words(NamedTuple):
    """All words of a language."""

    spellings: list[str]
    concepts: np.ndarray  # of each word


class Tree(NamedTuple):
    """The variables of all languages: what words are possible, and how alike they are.

    The words that are possible in a language are its own, first, and those of its neighbors, which it may borrow.
    """

    words: list[Words]
    graph: kbp.Graph
    domains: list[np.ndarray]  # of each language, words by their numbers over all languages
    kernels: dict[int, Precomputed]
    starts: np.ndarray  # number of the first word of each language, over all languages


class Queries(NamedTuple):
    """The target language, the concept and the observed words of each query."""

    targets: np.ndarray  # language [question]
    concepts: np.ndarray  # [question]
    known: np.ndarray  # languages [question, observed]
    words: np.ndarray  # numbers of the words in them [question, observed]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.words", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/words/results")
    add_use_argument(parser)
    parser.add_argument("--splits", type=int, help="random splits of the concepts (default: 10; 1 if quick)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    splits = args.splits or (1 if args.quick else 10)
    if splits < 1:
        raise ValueError(f"--splits must be at least 1; got {splits}. Ask for one or more.")
    lists = data.swadesh(datasets.data_directory(args.data))
    start = steps.clock()
    languages = sorted({language for edge in TREE for language in edge})
    words = [flatten(lists[language]) for language in languages]
    edits, tree = similarities(words), grow(words, languages)
    counts = OBSERVED[1:2] if args.quick else OBSERVED
    choices, answers, trials = Choices(args.use), [], []

    def draw(split: int, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray, list[Queries]]:
        rng = np.random.default_rng([args.seed, split])
        order = rng.permutation(len(lists[languages[0]]))
        known, test = np.sort(order[:TRAIN]), np.sort(order[TRAIN:])
        return known, test, [draw_queries(words, test, count, rng) for count in counts]

    def answer(split: int) -> list[Any]:
        known, test, queries = draw(split, counts)
        models = {method: learn(tree, known, **choices.chosen[method], equal=equal) for method, equal in OURS.items()}
        found = []
        for count, some in zip(counts, queries, strict=True):
            ranked = {method: rank_by_beliefs(tree, model, some, test) for method, model in models.items()}
            ranked |= rank_by_edits(words, edits, some, known, test)
            found += [(count, method, some.targets, ranks) for method, ranks in ranked.items()]
        return found

    for method, equal in command_line.progress(OURS.items(), "search"):
        known, test, (queries,) = draw(0, [3])  # a split that is not reported
        _, tried = choices.search(method, choose, tree, queries, known, test, equal, args.quick)
        trials += [{"method": method, **trial} for trial in tried]
    for split in command_line.progress(range(1, splits + 1), "splits"):
        answers += steps.step(f"split {split}", answer, split)
    rows = summarize(answers, languages)
    config = {"splits": splits, "seed": args.seed, "quick": args.quick, "trials": TRIALS}
    tables.print_table([row for row in rows if row["target"] == "all"])
    more = {"searches": trials, "chosen": choices.chosen, "seconds": steps.clock() - start}
    results.write_results(args.out / "words.json", config, rows, **more)
    results.save_figure(figure(rows, languages), args.out / "words.png")
    print(f"Wrote {args.out / 'words.json'} and {args.out / 'words.png'}")


def flatten(concepts: list[list[str]]) -> Words:
    """List the words of a language."""
    pairs = [(word, number) for number, synonyms in enumerate(concepts) for word in synonyms]
    return Words([word for word, _ in pairs], np.array([number for _, number in pairs]))


def grow(words: list[Words], languages: list[str]) -> Tree:
    """Compute the string kernel between all words that may meet, with marks at both ends, and build the graph."""
    marked = [f"^{word}$" for of in words for word in of.spellings]
    codes = jnp.asarray(Alphabet.of(marked).encode(marked))
    gram = np.asarray(kbp.gram(KERNEL, codes, codes, block_size=50))
    starts = np.cumsum([0, *(len(of.spellings) for of in words)])
    ends = [(languages.index(a), languages.index(b)) for a, b in TREE]
    near = [[v, *(b for a, b in ends if a == v), *(a for a, b in ends if b == v)] for v in range(len(words))]
    domains = [np.concatenate([np.arange(starts[u], starts[u + 1]) for u in group]) for group in near]
    count = len(words)
    graph = kbp.Graph.from_edges(ends, count, edge_type=np.arange(len(ends)), node_type=np.arange(count))
    kernels = {v: Precomputed(gram[np.ix_(domain, domain)]) for v, domain in enumerate(domains)}
    return Tree(words, graph, domains, kernels, starts)


def similarities(words: list[Words]) -> dict[tuple[int, int], np.ndarray]:
    """Return 1 - edit distance / length of the longer word, for all words of all pairs of languages."""
    return {(a, b): edit_similarity(x.spellings, y.spellings) for a, x in enumerate(words) for b, y in enumerate(words)}


def edit_similarity(left: list[str], right: list[str]) -> np.ndarray:
    """Return 1 - (insertions, deletions, substitutions) / (length of the longer) of all pairs [left, right]."""
    return process.cdist(left, right, scorer=Levenshtein.normalized_similarity, dtype=np.float64)


def draw_queries(words: list[Words], test: np.ndarray, observed: int, rng: np.random.Generator) -> Queries:
    """Draw a query for each test concept and target language, with one observed word in some other languages."""
    targets, concepts, known, given = [], [], [], []
    for target in range(len(words)):
        others = np.delete(np.arange(len(words)), target)
        for concept in test:
            some = rng.permutation(others)[:observed]
            targets.append(target)
            concepts.append(concept)
            known.append(some)
            given.append([rng.choice(np.flatnonzero(words[of].concepts == concept)) for of in some])
    return Queries(*map(np.array, (targets, concepts, known, given)))


def choose(
    tree: Tree, queries: Queries, known: np.ndarray, test: np.ndarray, equal: bool, quick: bool
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return the ridges of the best mean reciprocal rank, and all trials."""
    start = {option: values[0] for option, values in SPACE.items()}
    if quick:
        return start, []

    def loss(options: dict[str, float]) -> float:
        return -float(np.mean(1 / rank_by_beliefs(tree, learn(tree, known, **options, equal=equal), queries, test)))

    best, trials = coordinate_search(start, SPACE, loss, budget=TRIALS, extensions=2)
    edges = ", ".join(on_edge(best, trials))
    return best, [
        {**trial.options, "reciprocal_rank": -trial.loss} | ({"on_edge": edges} if trial.options == best else {})
        for trial in trials
    ]


def learn(tree: Tree, known: np.ndarray, ridge: float, obs_ridge: float, equal: bool) -> kbp.KernelMRF:
    """Learn from pairs of words of the same meaning and, if `equal`, from pairs of equal words."""
    concepts = np.concatenate([of.concepts for of in tree.words])
    training = np.isin(concepts, known)
    samples = {v: _repeat(np.flatnonzero(training[domain]), "samples") for v, domain in enumerate(tree.domains)}
    pairs, ends = {}, {k: (a, b) for k, a, b in tree.graph.edge_types}
    for k, (a, b) in ends.items():
        first, second = pairs_of(tree.words[a].concepts, tree.words[b].concepts, known)
        first, second = first + tree.starts[a], second + tree.starts[b]
        own = np.concatenate([np.arange(tree.starts[v], tree.starts[v + 1]) for v in (a, b)])
        same = own[training[own]] if equal else own[:0]
        both = zip((a, b), (first, second), strict=True)
        pairs[k] = tuple(_repeat(_places(tree.domains[v], np.concatenate([x, same])), "pairs") for v, x in both)
    data = kbp.TrainingData(pairs, samples, ends=ends)
    rule = kbp.fix_landmarks(data, kernel=tree.kernels, rule=RULE, pad=True)  # all splits share one compiled program
    return _fit(data, tree.kernels, rule, ridge, obs_ridge)


@jax.jit
def _fit(
    data: kbp.TrainingData, kernels: dict[int, Precomputed], rule: Any, ridge: Any, obs_ridge: Any
) -> kbp.KernelMRF:
    return kbp.fit(data, kernel=kernels, rule=rule, ridge=ridge, obs_ridge=obs_ridge)


def _places(domain: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return where words stand in a domain that has them."""
    order = np.argsort(domain)
    return order[np.searchsorted(domain, words, sorter=order)]


def _repeat(values: np.ndarray, what: str) -> np.ndarray:
    return np.resize(values, SIZES[what]).astype(np.int32)


def rank_by_beliefs(tree: Tree, model: kbp.KernelMRF, queries: Queries, test: np.ndarray) -> np.ndarray:
    """Rank the concepts of each question by the largest belief of their words."""
    candidates = [np.flatnonzero(np.isin(of.concepts, test)) for of in tree.words]
    points = {v: jnp.asarray(_repeat(of, "candidates")) for v, of in enumerate(candidates)}
    beliefs = _beliefs(model, tree.graph, jnp.asarray(queries.known), jnp.asarray(queries.words), points)
    ranks = np.empty(len(queries.targets))
    for v, of in enumerate(candidates):
        mine = queries.targets == v
        score = np.asarray(beliefs[v])[mine, : len(of)]
        ranks[mine] = rank_of_concept(score, tree.words[v].concepts[of], queries.concepts[mine])
    return ranks


@jax.jit
def _beliefs(model: Any, graph: Any, known: jax.Array, given: jax.Array, points: Any) -> Any:
    """Return the beliefs of all languages for each question, {language: [question, candidate]}."""

    def answer(question: tuple[jax.Array, jax.Array]) -> Any:
        evidence = kbp.clamp(model, graph, *question, evidence_model=kbp.DensityRatio())
        solution = kbp.run_tree(model, graph, evidence)
        found = kbp.beliefs(model, graph, evidence, solution, points, marginal=kbp.Empirical())
        return {v: belief.weights[0] for v, belief in found.items()}

    return jax.lax.map(answer, (known, given), batch_size=60)


def pairs_of(left: np.ndarray, right: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of words of two languages with the same meaning, of known concepts."""
    first, second = np.nonzero((left[:, None] == right[None]) & np.isin(left, known)[:, None])
    return first, second


def rank_by_edits(words: Any, edits: Any, queries: Queries, known: Any, test: Any) -> dict[str, np.ndarray]:
    """Rank by edit distance to the word of the nearest observed language, to the most similar one, and on average."""
    near = nearness(words, edits, known)
    ranks = {method: np.empty(len(queries.targets)) for method in BY_EDITS}
    for q, (target, concept, some, given) in enumerate(zip(*queries, strict=True)):
        candidates = np.flatnonzero(np.isin(words[target].concepts, test))
        similar = np.stack([edits[of, target][word, candidates] for of, word in zip(some, given, strict=True)])
        nearest = max(range(len(some)), key=lambda i, some=some, target=target: near[some[i], target])
        for method, score in zip(BY_EDITS, (similar[nearest], similar.max(0), similar.mean(0)), strict=True):
            found = rank_of_concept(score[None], words[target].concepts[candidates], np.array([concept]))
            ranks[method][q] = found[0]
    return ranks


def nearness(words: Any, edits: Any, known: Any) -> np.ndarray:
    """Return the mean similarity of the words of known concepts for each pair of languages."""
    near = np.zeros((len(words), len(words)))
    for (a, b), similar in edits.items():
        near[a, b] = similar[pairs_of(words[a].concepts, words[b].concepts, known)].mean()
    return near


def rank_of_concept(score: np.ndarray, concepts: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the rank of the target concept; a concept has the score of its best word.

    Ties share the mean of their ranks.
    """
    if not np.isfinite(score).all():  # NaN would compare as the best of all
        raise ValueError("score must be finite; got NaN or infinity. Raise the ridge or eps.")
    every = np.unique(concepts)
    best = np.stack([score[:, concepts == concept].max(1) for concept in every], axis=1)
    own = best[np.arange(len(wanted)), np.searchsorted(every, wanted)][:, None]
    return 1 + np.sum(best > own, axis=1) + (np.sum(best == own, axis=1) - 1) / 2


def summarize(answers: list[Any], languages: list[str]) -> list[dict[str, Any]]:
    """Return recall at 1 and 5 of each method and number of observed languages, by target and over all."""
    rows = []
    for count, method in dict.fromkeys((count, method) for count, method, _, _ in answers):
        mine = [(targets, ranks) for c, m, targets, ranks in answers if (c, m) == (count, method)]
        for v, target in [*enumerate(languages), (None, "all")]:
            row: dict[str, Any] = {"observed": count, "method": method, "target": target}
            for k in (1, 5):
                recalls = np.array([np.mean(r[(t == v) | (v is None)] <= k) for t, r in mine])
                row |= {f"recall@{k}": float(recalls.mean()), f"se@{k}": standard_error(recalls)}
            rows.append(row)
    return rows


def figure(rows: list[dict[str, Any]], languages: list[str]) -> Any:
    """Draw recall against the number of observed languages, and by target."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12, 4), layout="constrained")
    axes = drawn.subplots(1, 3, width_ratios=(1, 1, 2))
    for ax, k in zip(axes, (1, 5), strict=False):
        for method, style in zip(METHODS, ("o-", "o:", "s--", "^:", "v:"), strict=True):
            mine = [row for row in rows if (row["method"], row["target"]) == (method, "all")]
            x, y, se = (np.array([row[key] for row in mine], float) for key in ("observed", f"recall@{k}", f"se@{k}"))
            ax.errorbar(x, y, se, fmt=style, label=method, capsize=2)
        ax.set(
            xlabel="observed languages",
            ylabel=f"recall@{k}, of 60 concepts",
            xticks=sorted({row["observed"] for row in rows}),
            ylim=(0, 1),
        )
        ax.grid(alpha=0.3)
    most = max(row["observed"] for row in rows if row["observed"] <= 3)
    for shift, method in zip((-0.3, -0.15, 0, 0.15, 0.3), METHODS, strict=True):
        mine = {row["target"]: row["recall@1"] for row in rows if (row["method"], row["observed"]) == (method, most)}
        axes[2].bar(np.arange(len(languages)) + shift, [mine[code] for code in languages], 0.14, label=method)
    axes[2].set(xticks=range(len(languages)), ylabel="recall@1", title=f"{most} observed languages, by target")
    axes[2].set_xticklabels(languages)
    axes[2].legend(fontsize=8, ncols=2)
    axes[2].set_ylim(top=0.75)
    return drawn
