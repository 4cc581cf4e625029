"""Predict the categories of papers from their texts and from the papers that they cite or that cite them.

A node is a paper, a link of the citation graph an edge; a third of the papers, all with many links among them, have
known categories; the text of each is observed (Song et al. 2011, supplement section 4). The linear kernel on texts acts
through ridge regression, whose predictions are the observations. Two models: in one the value of a node is the set of
the paper's categories, with the paper's kernel <A y, A y'>; in the other it is one category of the paper.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from experiments.categories import baselines, data
from experiments.categories.data import Papers, Split
from experiments.categories.models import (
    FEATURES,
    ITERATIONS,
    LENGTH,
    MESSAGES,
    Problem,
    infer_sets,
    mean_of_sets,
    one_category,
    unit_mode,
)
from experiments.lib import command_line, datasets, results, steps, tables
from experiments.lib.choices import Choices, add_use_argument
from experiments.lib.results import standard_error
from experiments.lib.search import coordinate_search, on_edge
from kbpjax.kernels import RandomProjection

RANKS = (1, 2, 3, 5, 7, 10, 15, 20, 25, 30)
"""Numbers of best categories at which recall is reported."""
SPLITS = {"citeulike_t": 5, "cora_hierarchical": 5, "acmv9": 5}
QUICK_PAPERS = 1_800
GROUPS = {"all": (0, 10**9), "linked": (1, 10**9), "0": (0, 0), "1": (1, 1), "2": (2, 2), "3+": (3, 10**9)}
"""Test papers by the number of neighbors whose categories are known."""
BELIEF, NO_LINKS = "KBP, one category", "KBP, one category, no links"
ON_SPREAD, ON_SPREAD_ALONE = "KBP on label spreading", "KBP on label spreading, no links"
AHEAD = f"{ON_SPREAD} less this"
MAP, MEAN = "KBP, sets, MAP and OMP", "KBP, sets, mean"
COMPRESSED, REGRESSION, REGRESSED = "compressed sensing", "ridge regression", "ridge regression and neighbors"
NEAREST, BOTH, LINKED, FREQUENT = "nearest texts", "nearest texts and neighbors", "neighbors", "most frequent"
SPREAD, PAGERANK = "label spreading on ridge regression", "personalized PageRank on ridge regression"
METHODS = (ON_SPREAD, ON_SPREAD_ALONE, BELIEF, NO_LINKS, MAP, MEAN, SPREAD, PAGERANK, REGRESSED, REGRESSION, COMPRESSED)
METHODS += (NEAREST, BOTH, LINKED, FREQUENT)
SPACES: dict[str, dict[str, tuple]] = {
    REGRESSION: {"ridge": (1.5, 6.0)},
    COMPRESSED: {"ridge": (1.5, 6.0)},
    BELIEF: {"messages": MESSAGES, "ridge": (1e-3, 1e-2), "min_prediction": (1e-2, 3e-2), "power": (1.0, 2.0)},
    MAP: {"ridge": (1e-1, 1.0), "power": (4.0, 16.0)},
    SPREAD: {"weight": (2.0, 8.0), "iterations": (10, 30), "clamped": (True, False), "centered": (False, True)},
    PAGERANK: {"weight": (2.0, 8.0), "iterations": (10, 30)},
    ON_SPREAD: {"ridge": (1e-2, 1e-1), "share": (1.0, 0.25), "messages": MESSAGES, "power": (1.0, 2.0)},
    REGRESSED: {"weight": (0.2, 0.8)},
    NEAREST: {"count": (40, 160)},
    BOTH: {"count": (40, 160), "weight": (0.2, 0.8)},
}
"""Options that are searched, for the best recall on papers set aside; in this order. Searches start at the first
values, extend a grid twice at most at each end, and refine it until all trials are made."""
TRIALS = {"citeulike_t": 8, "cora_hierarchical": 10, "acmv9": 10}
"""Trials of each method. Those of the largest set are the slowest, and lack the converged messages."""
CHOSEN_BY = (1, 3, 10)
"""Options are chosen by the mean recall at these ranks, of those that are less than the number of categories."""
LEAST = 3e-3
"""Least score of label spreading that is evidence (`min_prediction`)."""
Settings = dict[str, dict[str, Any]]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.categories", description=(__doc__ or "").split("\n")[0]
    )
    command_line.add_common_arguments(parser, "experiments/categories/results")
    add_use_argument(parser)
    parser.add_argument("--set", choices=data.SETS, nargs="+", help="which papers (default: all; the first if quick)")
    parser.add_argument("--splits", type=int, help="random splits (default: 5; 1 if quick)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    if args.splits is not None and args.splits < 1:
        raise ValueError(f"--splits must be at least 1; got {args.splits}. Ask for one or more.")
    start = steps.clock()
    names = args.set or data.SETS[: 1 if args.quick else None]
    directory, rows, sets, trials = datasets.data_directory(args.data), [], [], []
    choices = Choices(args.use)
    for name in names:
        papers = data.load(directory, name)
        papers = data.part(papers, QUICK_PAPERS) if args.quick else papers
        splits = args.splits or (1 if args.quick else SPLITS[name])
        found, described, tried = predict_set(papers, splits, args.seed, args.quick, choices)
        sets.append({"set": name, **data.counts(papers), **described})
        trials += [{"set": name, **trial} for trial in tried]
        rows += summarize(papers, found)
        tables.print_table(sets[-1:], list(data.counts(papers)))
        tables.print_table(table(rows, name))
        jax.clear_caches()
    config = {"seed": args.seed, "quick": args.quick, "iterations": ITERATIONS, "features": FEATURES}
    more = {"trials": trials, "chosen": choices.chosen, "seconds": steps.clock() - start}
    results.write_results(args.out / "categories.json", config, rows, sets=sets, **more)
    results.save_figure(figure(rows), args.out / "categories.png")
    print(f"Wrote {args.out / 'categories.json'} and {args.out / 'categories.png'}")


def predict_set(
    papers: Papers, splits: int, seed: int, quick: bool, choices: Choices
) -> tuple[list[Any], dict[str, Any], list[dict[str, Any]]]:
    """Choose options on the training part of an unreported split, then predict in the others.

    Papers of that training part are not scored in the other splits, so no category that options were chosen by is
    predicted.

    Returns:
        Of each split {(method, group of papers): mean recall at the ranks}, and how many papers are in each group; the
        options, counts and median seconds; and all trials.
    """
    graph, sizes, found = kbp.Graph.from_edges(papers.links, len(papers.labels)), {}, []
    exponents = kbp.tree_reweighting(graph)
    first = np.random.default_rng([seed, 0])
    development = data.split(papers, first).train
    inner = data.hold_out(papers, development, first)
    settings, trials = choices.search(papers.name, choose, papers, graph, exponents, inner, quick)
    seconds: dict[str, list[float]] = {}

    def predict(number: int) -> Any:
        split = data.split(papers, np.random.default_rng([seed, number]))
        split = split._replace(test=np.setdiff1d(split.test, development))
        timer = Timer()
        scores, problem = predict_split(papers, graph, exponents, split, settings, seed + number, timer, quick)
        sizes = {
            "training": len(problem.train),
            "test": len(problem.queries),
            "links in training": len(problem.joined) // 2,
        }
        return recalls(problem, scores), timer.seconds, sizes

    for number in command_line.progress(range(1, splits + 1), papers.name):
        shares, spent, sizes = steps.step(f"{papers.name} {number}", predict, number)
        found.append(shares)
        for part, value in spent.items():
            seconds.setdefault(part, []).append(value)
    chosen = {f"{method}: {key}": value for method, own in settings.items() for key, value in own.items()}
    medians = {f"{part} s": float(np.median(spent)) for part, spent in seconds.items()}
    return found, {"splits": splits, **sizes, **chosen, **medians}, trials


class Timer:
    """Seconds of the parts of a split."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, part: str, call: Callable[[], Any]) -> Any:
        """Call a function, and add its seconds to a part."""
        start = time.perf_counter()
        found = call()
        self.seconds[part] = self.seconds.get(part, 0) + time.perf_counter() - start
        return found


def problem_of(
    papers: Papers, graph: kbp.Graph, exponents: Any, split: Split, predicted: np.ndarray, seed: int
) -> Problem:
    """Leave out papers without categories, which can be neither learned from nor scored; they stay in the graph."""
    train, queries = (part[papers.labeled[part]] for part in split)
    return Problem(papers, graph, train, queries, predicted, seed, exponents)


def choose(
    papers: Papers, graph: kbp.Graph, exponents: Any, split: Split, quick: bool
) -> tuple[Settings, list[dict[str, Any]]]:
    """Return the options of the best recall on the papers of a split that were set aside, and all trials."""
    chosen: Settings = {}
    trials: list[dict[str, Any]] = []
    regressions: dict[float, np.ndarray] = {}
    ranks = np.array([k for k in CHOSEN_BY if k < papers.labels.shape[1]])

    def loss(method: str, options: dict[str, Any]) -> float:
        own = method in (REGRESSION, COMPRESSED)
        ridge = options["ridge"] if own else chosen[REGRESSION]["ridge"]
        if ridge not in regressions:
            regressions[ridge] = baselines.regress(papers, split.train, ridge)
        problem = problem_of(papers, graph, exponents, split, regressions[ridge], 0)
        also = {"spreading": chosen[SPREAD]} if method == ON_SPREAD else {}
        scores = PREDICTORS[method](problem, **({} if own else options | also))
        return -float(baselines.recall_at(scores, papers.labels[problem.queries], ranks[-1])[:, ranks - 1].mean())

    for method, values in SPACES.items():
        space = dict(values)
        if "messages" in space and TRIALS[papers.name] < max(TRIALS.values()):
            space["messages"] = MESSAGES[:2]
        chosen[method] = {option: grid[0] for option, grid in space.items()}
        if quick and method in (BELIEF, MAP, ON_SPREAD):  # their programs take most of the time
            continue
        start, budget = chosen[method], TRIALS[papers.name]
        best, tried = coordinate_search(start, space, partial(loss, method), budget=budget, extensions=2)
        chosen[method] = best
        edges = ", ".join(on_edge(best, tried))
        for trial in tried:
            taken = trial.options == best
            record = {"method": method, **trial.options, "recall": -trial.loss, "chosen": taken}
            trials.append(record | ({"on_edge": edges} if taken else {}))
    return chosen, trials


def key_rank(papers: Papers) -> int:
    """Return the rank at which recall is reported by number of neighbors: 10, or 1 where categories are few."""
    return 10 if papers.labels.shape[1] > 20 else 1


def predict_split(
    papers: Papers,
    graph: kbp.Graph,
    exponents: Any,
    split: Split,
    settings: Settings,
    seed: int,
    timer: Timer,
    quick: bool,
) -> tuple[dict[str, np.ndarray], Problem]:
    """Return the scores of the methods for the test papers [paper, category]; two that compile long not if `quick`."""
    ridge, other = (settings[method]["ridge"] for method in (REGRESSION, COMPRESSED))
    predicted = timer("regression", lambda: baselines.regress(papers, split.train, ridge))
    problem = problem_of(papers, graph, exponents, split, predicted, seed)
    also = problem if other == ridge else problem._replace(predicted=baselines.regress(papers, split.train, other))
    scores = {COMPRESSED: PREDICTORS[COMPRESSED](also)}
    if not quick:
        scores[NO_LINKS] = one_category(problem, **settings[BELIEF], links=False)
        scores[ON_SPREAD_ALONE] = on_spreading(problem, settings[SPREAD], **settings[ON_SPREAD], links=False)
    scores[BELIEF] = timer("one category", lambda: one_category(problem, **settings[BELIEF]))
    scores[ON_SPREAD] = on_spreading(problem, settings[SPREAD], **settings[ON_SPREAD])
    model = timer("sets", lambda: infer_sets(problem, **settings[MAP]))
    scores[MAP] = timer("MAP", lambda: unit_mode(problem, model))
    if not quick:
        scores[MEAN] = timer("mean", lambda: mean_of_sets(problem, model))
    for method in (REGRESSION, LINKED, FREQUENT):
        scores[method] = PREDICTORS[method](problem)
    for method in (SPREAD, PAGERANK, REGRESSED, NEAREST, BOTH):
        scores[method] = PREDICTORS[method](problem, **settings[method])
    return scores, problem


def recalls(problem: Problem, scores: dict[str, np.ndarray]) -> dict[tuple[str, str], tuple[np.ndarray, int]]:
    """Return the mean recall of each method at the ranks, and the number of papers, in each group of papers."""
    joined = data.adjacency(problem.papers)[problem.queries][:, problem.train]
    neighbors = np.asarray(joined.sum(1)).reshape(-1)
    labels, found = problem.papers.labels[problem.queries], {}
    for method in filter(scores.__contains__, METHODS):
        recall = baselines.recall_at(scores[method], labels, RANKS[-1])[:, np.array(RANKS) - 1]
        for group, (min_prediction, most) in GROUPS.items():
            mine = (neighbors >= min_prediction) & (neighbors <= most)
            found[method, group] = recall[mine].mean(0) if mine.any() else np.full(len(RANKS), np.nan), int(mine.sum())
    return found


def summarize(papers: Papers, found: list[Any]) -> list[dict[str, Any]]:
    """Return recall of each method by rank and group of papers, mean and standard error over splits."""
    rows = []
    ranks = [k for k in RANKS if k < papers.labels.shape[1]]
    for (method, group), k in itertools.product(found[0], ranks):
        if group not in ("all", "linked") and k != key_rank(papers):
            continue
        values = np.array([of[method, group][0][RANKS.index(k)] for of in found])
        count = float(np.mean([of[method, group][1] for of in found]))
        less = np.array([of[ON_SPREAD, group][0][RANKS.index(k)] for of in found]) - values
        row = {"set": papers.name, "method": method, "papers": group, "k": k, "count": count}
        row |= {AHEAD: float(less.mean()), f"{AHEAD}, se": standard_error(less)}
        rows.append({**row, "recall": float(values.mean()), "stderr": standard_error(values)})
    return rows


def table(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return a line for each method: recall at a few ranks, of all test papers and of those with known neighbors."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows if row["set"] == name):
        mine = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        some = [row for row in mine if row["papers"] in ("all", "linked") and row["k"] in (1, 3, 5, 10, 20)]
        lines.append({"method": method, **{f"{row['papers']} @{row['k']}": row["recall"] for row in some}})
    return lines


def figure(rows: list[dict[str, Any]]) -> Any:
    """Draw recall against the number of categories, and what known neighbors add; a row for each set."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["set"] for row in rows))
    drawn = Figure(figsize=(13, 4.2 * len(names)), layout="constrained")
    axes = drawn.subplots(len(names), 3, squeeze=False)
    for (whole, linked, bars), name in zip(axes, names, strict=True):
        mine = [row for row in rows if row["set"] == name]
        for ax, group in ((whole, "all"), (linked, "linked")):
            draw_curves(ax, [row for row in mine if row["papers"] == group])
            ax.set(title=f"{name}: {'all test papers' if group == 'all' else 'with known neighbors'}")
        draw_bars(bars, mine)
        whole.legend(fontsize=6)
    return drawn


def draw_curves(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Draw recall@k of each method, with standard errors."""
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        mine = [row for row in rows if row["method"] == method]
        k, recall, error = (np.array([row[key] for row in mine], float) for key in ("k", "recall", "stderr"))
        style = {"linewidth": 2.2, "marker": "o"} if method == ON_SPREAD else {"linewidth": 1, "marker": ".v^s"[i % 4]}
        ax.errorbar(k, recall, error, label=method, markersize=4, capsize=2, color=f"C{i % 10}", **style)
    ax.set(xlabel="best categories, k", ylabel="recall@k", ylim=(0, 1))
    ax.grid(alpha=0.3)


def draw_bars(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Draw recall by the number of neighbors whose categories are known."""
    groups = [group for group in GROUPS if group not in ("all", "linked")]
    rank = next(row["k"] for row in rows if row["papers"] == groups[0])
    present = {row["method"] for row in rows}
    shown = [
        method for method in (ON_SPREAD, BELIEF, NO_LINKS, SPREAD, PAGERANK, REGRESSED, LINKED) if method in present
    ]
    for i, method in enumerate(shown):
        of = {row["papers"]: row for row in rows if row["method"] == method and row["k"] == rank}
        values, errors = (np.array([of[group][key] for group in groups], float) for key in ("recall", "stderr"))
        ax.bar(np.arange(len(groups)) + 0.12 * (i - 3), values, 0.11, yerr=errors, label=method)
    ax.set(xticks=range(len(groups)), xlabel="neighbors with known categories", ylabel=f"recall@{rank}")
    ax.set_xticklabels(groups)
    ax.set_ylim(top=1.3)
    ax.legend(fontsize=6, ncols=2, loc="upper left")


def known_or_predicted(problem: Problem) -> np.ndarray:
    """Return the label vectors of known papers and the predictions from texts of the others [paper, category]."""
    start = problem.predicted.copy()
    start[problem.train] = problem.labels[problem.train]
    return start


def spread(problem: Problem, **options: Any) -> np.ndarray:
    """Return predictions and known labels spread to the queries [query, category]. Options: as `SPACES` has them."""
    return spread_to_all(problem, **options)[problem.queries]


def spread_to_all(problem: Problem, **options: Any) -> np.ndarray:
    """Return predictions and known labels spread along the links [paper, category]."""
    links = data.adjacency(problem.papers)
    return baselines.label_spreading(links, known_or_predicted(problem), problem.train, **options)


def on_spreading(
    problem: Problem, spreading: dict[str, Any], share: float = 1.0, links: bool = True, **settings: Any
) -> np.ndarray:
    """Return the beliefs in categories whose evidence is label spreading on ridge regression [query, category].

    Its scores of a paper are scaled to the mean number of categories, as predictions from texts are.

    Args:
        problem: the split with predictions.
        spreading: options of label spreading.
        share: factor of its weight of the neighbors; below 1 more is left to the messages.
        links: whether to listen to neighbors.
        settings: other options of `one_category`.
    """
    scores = spread_to_all(problem, **spreading | {"weight": share * spreading["weight"]})
    scores = np.maximum(scores, 0)
    scores *= problem.labels[problem.train].sum(1).mean() / np.maximum(scores.sum(1, keepdims=True), 1e-6)
    options: dict[str, Any] = {"min_prediction": LEAST} | settings
    return one_category(problem, **options, links=links, predicted=scores)


def walk(problem: Problem, weight: float, iterations: int) -> np.ndarray:
    """Return predictions and known labels averaged by personalized PageRank from the queries [paper, category]."""
    links = data.adjacency(problem.papers)
    return baselines.personalized_pagerank(links, known_or_predicted(problem), weight, iterations)[problem.queries]


def linked_votes(problem: Problem) -> np.ndarray:
    """Count the categories of known neighbors [paper, category]."""
    return data.adjacency(problem.papers)[problem.queries][:, problem.train] @ problem.labels[problem.train]


def with_votes(problem: Problem, scores: np.ndarray, weight: float) -> np.ndarray:
    """Add the mean label vector of known neighbors to scores."""
    joined = data.adjacency(problem.papers)[problem.queries][:, problem.train]
    return scores + weight * baselines.vote(joined, problem.labels[problem.train])


def nearest_votes(problem: Problem, count: float) -> np.ndarray:
    """Return the mean label vector of the training papers with the most similar texts."""
    similar = baselines.cosines(problem.papers.texts, problem.queries, problem.train)
    return baselines.vote(baselines.nearest(similar, int(count)), problem.labels[problem.train])


def frequency(problem: Problem) -> np.ndarray:
    """Return how often categories are in training, for each paper alike."""
    return np.tile(problem.labels[problem.train].mean(0), (len(problem.queries), 1))


def compressed(problem: Problem) -> np.ndarray:
    """Decode A y predicted by ridge regression from texts (Hsu et al. 2009)."""
    matrix = np.asarray(RandomProjection(FEATURES, problem.labels.shape[1], seed=0).matrix)
    return baselines.matching_pursuit(matrix, problem.predicted[problem.queries] @ matrix.T, LENGTH)


PREDICTORS: dict[str, Callable[..., np.ndarray]] = {
    BELIEF: one_category,
    SPREAD: spread,
    ON_SPREAD: on_spreading,
    PAGERANK: walk,
    MAP: lambda problem, **settings: unit_mode(problem, infer_sets(problem, **settings)),
    COMPRESSED: compressed,
    REGRESSION: lambda problem: problem.predicted[problem.queries],
    REGRESSED: lambda problem, weight: with_votes(problem, problem.predicted[problem.queries], weight),
    NEAREST: nearest_votes,
    BOTH: lambda problem, count, weight: with_votes(problem, nearest_votes(problem, count), weight),
    LINKED: lambda problem: linked_votes(problem) + 1e-3 * frequency(problem),
    FREQUENT: frequency,
}
"""Functions that return scores of the categories of the query papers, with the settings of `SPACES`."""
