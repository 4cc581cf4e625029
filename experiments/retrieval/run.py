"""Find the Swedish translation of a document through a tree of languages.

The document retrieval of "Nonparametric tree graphical models" (Song, Gretton, Guestrin, AISTATS 2010) on Europarl
documents of five sentences: a document is observed in one language or several, and the candidates are the test
documents in Swedish. Training pairs join neighboring languages only, so evidence must pass through all languages on the
way. The options of every method are searched in each split, on a part of its training documents.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, datasets, results, steps, tables
from experiments.lib.choices import Choices, add_use_argument
from experiments.lib.results import standard_error
from experiments.lib.search import coordinate_search, on_edge
from experiments.retrieval import data

SOURCE, TARGET = "en", "sv"
LEAVES = ("en", "fi", "el", "it")
"""Languages whose documents are observed together, in the order in which they are added."""
HUB = "da"
LENGTHS = (1, 2, 3, 5)
TEST = 100
INNER_TEST = 75
"""Training documents of a split that are queries while options are chosen."""
BELIEF, TOGETHER, CENTERED = "kernel belief propagation", "one ridge on all leaves", "centered ridge"
RIDGE, DIRECT = "ridge", "direct pairs"
METHODS = (BELIEF, TOGETHER, CENTERED, RIDGE, DIRECT)
KERNELS = {"kernel": ("linear", "gaussian")}
SPACES: dict[str, dict[str, tuple]] = {
    BELIEF: {**KERNELS, "ridge": (1e-4, 1e-3), "obs_ridge": (1e-2, 1e-1)},
    **{method: {**KERNELS, "ridge": (1e-5, 1e-3)} for method in METHODS[1:]},
}
"""Options that are searched, from the first values on; grids are extended twice at most at each end."""
TRIALS = 6
AHEAD = f"{BELIEF} less this"


class Regime(NamedTuple):
    """Assignment of training documents to edges: `pairs` for each edge, from `blocks` that alternate."""

    name: str
    pairs: int
    blocks: int


Chosen = dict[str, dict[str, dict[str, Any]]]
"""Options of each method in each split."""
REGIMES = (Regime("same 300", 300, 1), Regime("same 50", 50, 1), Regime("apart 150", 150, 2))
"""The same documents on every edge, few of them, and documents that no two neighboring edges share."""


class Task(NamedTuple):
    """A tree of languages, its training pairs, and the documents to find."""

    edges: tuple[tuple[int, int], ...]  # of nodes, away from the observed ones
    grams: np.ndarray  # cosines of all documents in the language of each node [node, item, item]
    pairs: np.ndarray  # documents in both languages of each edge [edge, pair]
    blocks: int
    test: np.ndarray  # [query]
    observed: np.ndarray  # nodes [leaf]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.retrieval", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/retrieval/results")
    add_use_argument(parser)
    parser.add_argument("--splits", type=int, help="random splits into training and test (default: 10; 1 if quick)")
    parser.add_argument(
        "--lengths", type=int, nargs="+", help="edges from English to Swedish (default: 1 2 3 5; 2 if quick)"
    )
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    splits = args.splits or (1 if args.quick else 10)
    lengths = tuple(args.lengths or (LENGTHS[1:2] if args.quick else LENGTHS))
    if splits < 1 or not all(1 <= n <= len(data.LANGUAGES) - 1 for n in lengths):
        raise ValueError(f"--splits must be at least 1 and --lengths 1 .. 10; got {splits} and {list(lengths)}.")
    documents = data.europarl(datasets.data_directory(args.data))
    regimes, most = (REGIMES[1:2], 2) if args.quick else (REGIMES, len(LEAVES))
    start = steps.clock()
    jobs = [(regime, "length", n) for regime in regimes for n in lengths]
    jobs += [(regime, "leaves", n) for regime in regimes for n in range(1, most + 1)]
    choices, rows, trials = Choices(args.use), [], []
    for regime, kind, count in command_line.progress(jobs, "retrieval"):
        name = f"{regime.name}, {kind} {count}"
        given = documents, regime, kind, count, splits, args.seed, choices.of(name)
        found, tried, choices.chosen[name] = steps.step(name, compare, *given)
        rows, trials = rows + found, trials + tried
    rows += [steps.step("length", length_only, documents, splits, args.seed)]
    config = {"splits": splits, "lengths": list(lengths), "seed": args.seed, "quick": args.quick}
    tables.print_table(rows)
    more = {"trials": trials, "chosen": choices.chosen, "seconds": steps.clock() - start}
    results.write_results(args.out / "retrieval.json", config, rows, **more)
    results.save_figure(figure(rows), args.out / "retrieval.png")
    print(f"Wrote {args.out / 'retrieval.json'} and {args.out / 'retrieval.png'}")


def compare(
    documents: Any, regime: Regime, kind: str, count: int, splits: int, seed: int, given: Chosen | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Chosen]:
    """Return the recall of all methods on one tree in one regime, all trials of their options, and those chosen.

    Options are searched in each split if none are given.
    """
    found: dict[str, list[np.ndarray]] = {}
    edges_of: dict[str, list[str]] = {}
    trials: list[dict[str, Any]] = []
    chosen: Chosen = {}
    if given is not None and len(given) < splits:
        raise ValueError(f"--use: must hold {splits} splits; got {len(given)}. Ask for fewer --splits.")
    for split in range(1, splits + 1):
        rng = np.random.default_rng([seed, split])
        tree = draw_tree(documents, kind, count, rng)
        order = rng.permutation(len(documents[TARGET]))
        test, train = order[:TEST], order[TEST:]
        task = make_task(documents, regime, tree, train, test)
        inner = make_task(documents, regime, tree, train[INNER_TEST:], train[:INNER_TEST])
        for method in METHODS:
            if method == TOGETHER and len(tree.observed) == 1:  # the same as the centered ridge
                continue
            space, rank = SPACES[method], RANKERS[method]
            start = {option: values[0] for option, values in space.items()}
            loss = lambda options, rank=rank, inner=inner: -float(np.mean(1 / rank(inner, **options)))
            if given is None:
                best, tried = coordinate_search(start, space, loss, budget=TRIALS, extensions=2)
            else:
                best, tried = given[str(split)][method], []
            chosen.setdefault(str(split), {})[method] = best
            found.setdefault(method, []).append(rank(task, **best))
            edges_of.setdefault(method, []).extend(on_edge(best, tried))
            about = {"regime": regime.name, "tree": kind, "count": count, "split": split, "method": method}
            trials += [about | t.options | {"loss": t.loss, "chosen": t.options == best} for t in tried]
    ours = [np.mean(ranks <= 1) for ranks in found[BELIEF]]
    rows = []
    for method, ranks in found.items():
        less = np.array(ours) - [np.mean(rank <= 1) for rank in ranks]
        row = {"regime": regime.name, "tree": kind, "count": count, "method": method, **scores(ranks)}
        row |= {AHEAD: float(less.mean()), f"{AHEAD}, se": standard_error(less)}
        rows.append(row | {"options on an edge": len(edges_of[method]) / splits})
    return rows, trials, chosen


class Tree(NamedTuple):
    """Languages of the nodes, edges away from the observed ones to the target, and the observed nodes."""

    languages: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    observed: tuple[int, ...]


def draw_tree(documents: Any, kind: str, count: int, rng: np.random.Generator) -> Tree:
    """Draw a chain of `count` edges, or return `count` leaves around a hub."""
    if kind == "length":
        between = rng.permutation([code for code in documents if code not in (SOURCE, TARGET)])[: count - 1].tolist()
        return Tree((SOURCE, *between, TARGET), tuple((k, k + 1) for k in range(count)), (0,))
    edges = (*((leaf, count) for leaf in range(count)), (count, count + 1))
    return Tree((*LEAVES[:count], HUB, TARGET), edges, tuple(range(count)))


def make_task(documents: Any, regime: Regime, tree: Tree, train: np.ndarray, test: np.ndarray) -> Task:
    """Assign training documents to edges, all of them where there are fewer than the regime has."""
    leaves, edges = len(tree.observed), tree.edges
    # Blocks take turns from the target on, so that two edges of a chain that meet share no document.
    turn = [(len(edges) - 1 - k) if leaves == 1 else int(k < len(edges) - 1) for k in range(len(edges))]
    pairs = min(regime.pairs, len(train) // regime.blocks)
    blocks = [np.sort(train[(t % regime.blocks) * pairs :][:pairs]) for t in turn]
    used = np.unique(np.concatenate(blocks))
    grams = np.stack([cosines(documents[code], used) for code in tree.languages])
    return Task(edges, grams, np.stack(blocks), regime.blocks, test, np.array(tree.observed))


def together(task: Task) -> Task:
    """Return the task with all leaves as one node, whose kernel is the mean of theirs."""
    leaves = len(task.observed)
    if leaves == 1:
        return task
    grams = np.concatenate([task.grams[:leaves].mean(0, keepdims=True), task.grams[leaves:]])
    return task._replace(edges=((0, 1), (1, 2)), grams=grams, pairs=task.pairs[leaves - 1 :], observed=np.array([0]))


def direct(task: Task) -> Task:
    """Return the task with an edge from all leaves to the target, which has the pairs of the last edge."""
    task = together(task)
    return task._replace(edges=((0, 1),), grams=task.grams[[0, -1]], pairs=task.pairs[-1:])


def cosines(documents: list[list[str]], train: np.ndarray) -> np.ndarray:
    """Return cosines of tf-idf vectors of all documents, words and their weights being those of the known ones."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    as_they_are: Any = list  # the documents are lists of words already
    vectorizer = TfidfVectorizer(analyzer=as_they_are, sublinear_tf=True).fit([documents[i] for i in train])
    vectors = vectorizer.transform(documents)
    return (vectors @ vectors.T).toarray().astype(np.float32)


def rank_by_beliefs(task: Task, kernel: str, ridge: float, obs_ridge: float) -> np.ndarray:
    """Return the ranks of the right documents by the beliefs of the target [query].

    All leaves are one node, whose kernel is the mean of theirs. In tries, a message from each of several leaves was
    behind it with the same documents on all edges, and level with it otherwise.

    Args:
        task: the task.
        kernel: linear or gaussian; it is centered, scaled to 1 for equal documents, and has a constant of 1, so that
            messages can be positive.
        ridge: of the messages between languages.
        obs_ridge: of the observed documents.
    """
    task = together(task)
    grams = [centered(gram, rows) + 1 for gram, rows in zip(kernels(task, kernel).grams, known(task), strict=True)]
    arrays = np.stack(grams).astype(np.float32), task.pairs, task.test, task.observed, [ridge, obs_ridge]
    weights = _beliefs(*map(jnp.asarray, arrays), task.edges, task.blocks == 1)
    return rank_of_own(np.asarray(weights))


def known(task: Task) -> list[np.ndarray]:
    """Return the training documents of each node."""
    edges = list(zip(task.edges, task.pairs, strict=True))
    return [np.unique(np.concatenate([pairs for edge, pairs in edges if v in edge])) for v in range(len(task.grams))]


def kernels(task: Task, kernel: str) -> Task:
    """Return the task with the kernel `linear`, cosines as they are, or `gaussian`."""
    if kernel == "linear":
        return task
    grams = [gaussian(gram, rows) for gram, rows in zip(task.grams, known(task), strict=True)]
    return task._replace(grams=np.stack(grams))


def centered(gram: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return cosines after the mean of the training documents is subtracted from all features [item, item]."""
    mean = gram[:, train].mean(1, dtype=np.float64)
    inner = gram - mean[:, None] - mean + mean[train].mean()
    length = np.sqrt(np.diag(inner))
    return inner / length[:, None] / length


def gaussian(gram: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Turn cosines into a Gaussian kernel at the median distance of known documents."""
    squared = 2 - 2 * gram
    median = np.median(squared[np.ix_(train, train)][np.triu_indices(len(train), 1)])
    return np.exp(-squared / (2 * median))


@partial(jax.jit, static_argnames=("edges", "shared"))
def _beliefs(grams: Any, pairs: Any, test: Any, observed: Any, ridges: Any, edges: Any, shared: bool) -> jax.Array:
    """Learn from pairs of documents and return the belief of the target [query, candidate], for the query's leaves."""
    count = len(grams)
    graph = kbp.Graph.from_edges(list(edges), count, edge_type=np.arange(count - 1), node_type=np.arange(count))
    of_node = {
        v: jnp.concatenate([pairs[k] for k, edge in enumerate(edges) if v in edge][: 1 if shared else None])
        for v in range(count)
    }
    whole = jnp.arange(pairs.shape[1])
    samples = kbp.TrainingData(
        edges={k: (pair, pair) for k, pair in enumerate(pairs)},
        nodes=of_node,
        ends=dict(enumerate(edges)),
        rows=dict.fromkeys(range(len(edges)), (whole, whole)) if shared else None,
    )
    kernel = {v: kbp.kernels.Precomputed(gram) for v, gram in enumerate(grams)}
    model = kbp.fit(samples, kernel=kernel, rule=kbp.FullRank(), ridge=ridges[0], obs_ridge=ridges[1])

    def belief(document: jax.Array) -> jax.Array:
        values = jnp.broadcast_to(document, observed.shape)
        evidence = kbp.clamp(model, graph, observed, values, evidence_model=kbp.DensityRatio())
        solution = kbp.run_tree(model, graph, evidence)
        return kbp.beliefs(model, graph, evidence, solution, test, marginal=kbp.Empirical()).weights[-1]

    return jax.lax.map(belief, test, batch_size=25)


def rank_by_ridge(task: Task, kernel: str, ridge: float, *, centered: bool) -> np.ndarray:
    """Rank the right document by its cosine with the prediction of composed ridge regressions.

    A prediction is a weighting of the training documents of the last edge. Predictions of several leaves are averaged.
    """
    task = kernels(task, kernel)
    weights: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # node: documents, and a weight of each for each query
    for (first, second), rows in zip(task.edges, task.pairs, strict=True):
        gram = task.grams[first]
        if first in task.observed:
            towards = gram[np.ix_(task.test, rows)]
        else:
            documents, weight = weights[first]
            towards = weight @ gram[np.ix_(documents, rows)]
        update = ridge_weights(gram[np.ix_(rows, rows)], towards, ridge, centered)
        # Leaves around one hub have the same training documents, so their weights can be added.
        weights[second] = rows, update + (weights[second][1] if second in weights else 0)
    rows, weight = weights[len(task.grams) - 1]
    weight = weight / weight.sum(1, keepdims=True) if centered else weight
    return rank_of_own(predicted_cosines(task.grams[-1].astype(np.float64), rows, weight, task.test, centered))


def ridge_weights(gram: np.ndarray, towards: np.ndarray, ridge: float, centered: bool) -> np.ndarray:
    """Return the weights of training targets in the ridge prediction of each query; centered ones sum to 1."""
    count = len(gram)
    if not centered:
        return np.linalg.solve(gram + ridge * count * np.eye(count), towards.T).T
    centring = np.eye(count) - 1 / count
    offset = towards - gram.mean(0)
    inner = centring @ gram @ centring + ridge * count * np.eye(count)
    return 1 / count + np.linalg.solve(inner, centring @ offset.T).T @ centring


def predicted_cosines(
    gram: np.ndarray, rows: np.ndarray, weight: np.ndarray, test: np.ndarray, centered: bool
) -> np.ndarray:
    """Return the cosine of each prediction with each candidate [query, candidate], up to the prediction's length."""
    inner, length = weight @ gram[np.ix_(rows, test)], gram[test, test]
    if centered:
        to_mean = gram[np.ix_(rows, test)].mean(0)
        own_mean = gram[np.ix_(rows, rows)].mean(0)
        inner = inner - to_mean - (weight @ own_mean)[:, None] + own_mean.mean()
        length = length - 2 * to_mean + own_mean.mean()
    return inner / np.sqrt(length)


def length_only(documents: Any, splits: int, seed: int) -> dict[str, Any]:
    """Rank candidates by how near their numbers of words are to the source's, both standardized."""
    ranks = []
    for split in range(1, splits + 1):
        order = np.random.default_rng([seed, split]).permutation(len(documents[TARGET]))
        logs = {code: np.log([max(1, len(words)) for words in documents[code]]) for code in (SOURCE, TARGET)}
        scores_of = {code: (x - x[order[TEST:]].mean()) / x[order[TEST:]].std() for code, x in logs.items()}
        test = order[:TEST]
        ranks.append(rank_of_own(-np.abs(scores_of[SOURCE][test][:, None] - scores_of[TARGET][test])))
    return {"regime": "all", "tree": "none", "count": 0, "method": "number of words", **scores(ranks)}


def rank_of_own(score: np.ndarray) -> np.ndarray:
    """Return the rank of candidate i for query i, from 1; candidates of equal score stand before it."""
    if not np.isfinite(score).all():  # NaN would compare as the best of all
        raise ValueError("score must be finite; got NaN or infinity. Raise the ridge.")
    own = np.diag(score)[:, None]
    return np.sum(score >= own, axis=1)


def scores(ranks: list[np.ndarray]) -> dict[str, float]:
    """Return recall at 1 and 5 over splits, with standard errors."""
    row = {}
    for k in (1, 5):
        recalls = np.array([np.mean(rank <= k) for rank in ranks])
        row |= {f"recall@{k}": float(recalls.mean()), f"se@{k}": standard_error(recalls)}
    return row


RANKERS: dict[str, Callable[..., np.ndarray]] = {
    BELIEF: rank_by_beliefs,
    TOGETHER: lambda task, **options: rank_by_ridge(together(task), centered=True, **options),
    CENTERED: partial(rank_by_ridge, centered=True),
    RIDGE: partial(rank_by_ridge, centered=False),
    DIRECT: lambda task, **options: rank_by_ridge(direct(task), centered=True, **options),
}
"""Functions that return the ranks of the right documents, with the options of `SPACES`. Direct pairs are a limit."""


def figure(rows: list[dict[str, Any]]) -> Any:
    """Draw recall@1 against the length of the chain, and against the number of observed leaves."""
    from matplotlib.figure import Figure

    regimes = list(dict.fromkeys(row["regime"] for row in rows if row["tree"] == "length"))
    drawn = Figure(figsize=(4.2 * len(regimes), 7), layout="constrained")
    axes = drawn.subplots(2, len(regimes), squeeze=False, sharey=True)
    words = next(row["recall@1"] for row in rows if row["tree"] == "none")
    for column, regime in enumerate(regimes):
        for line, (tree, label) in enumerate(
            (("length", "edges from English to Swedish"), ("leaves", "observed leaves"))
        ):
            ax = axes[line, column]
            for method, style in zip(METHODS, ("o-", "d-", "^:", "s--", "-"), strict=True):
                mine = [r for r in rows if (r["regime"], r["tree"], r["method"]) == (regime, tree, method)]
                x, y, se = (np.array([r[key] for r in mine], float) for key in ("count", "recall@1", "se@1"))
                ax.errorbar(x, y, se, fmt=style, label=method, capsize=2)
            ax.axhline(words, color="gray", lw=0.8, label="number of words")
            ax.set(xlabel=label, ylim=(0, 1.03), xticks=sorted({row["count"] for row in rows if row["tree"] == tree}))
            ax.grid(alpha=0.3)
        pairs = {"same": "the same documents on every edge", "apart": "no document on two edges that meet"}
        kind, number = regime.split()
        axes[0, column].set_title(f"{number} pairs an edge,\n{pairs[kind]}", fontsize=10)
    axes[0, 0].set_ylabel("recall@1, of 100 candidates")
    axes[1, 0].set_ylabel("recall@1, of 100 candidates")
    axes[1, 0].legend(fontsize=8)
    return drawn
