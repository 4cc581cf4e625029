"""The choice of numbers for training data with some margins and an estimator of relations, and the search for them."""

import dataclasses
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from kbpjax import _checks
from kbpjax.kernels import gram
from kbpjax.kernels.base import random_rows
from kbpjax.learning.data import TrainingData
from kbpjax.learning.relations import OwnRelations, with_cells, with_own_relations
from kbpjax.learning.rules import ConstantTime, Rule
from kbpjax.learning.starts import differs
from kbpjax.tuning.comparison import Given, ScaledKernels, make_comparison
from kbpjax.tuning.line_search import Scores, by_coordinates, coarse, first
from kbpjax.tuning.search import Choice, Search
from kbpjax.tuning.steep import smallest_noise
from kbpjax.tuning.tried import Log

SHARES = 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0
"""Shares of independence to which smoothed counts of few pairs are drawn."""

SOME = 200
"""Number of samples at which the sign of a kernel is looked at."""


def fewest_pairs(data: TrainingData) -> int:
    """Return the smallest number of pairs of an edge type; of data without edges, a large number."""
    return min((len(first) for first, _ in data.edges.values()), default=10**9)


class Found(NamedTuple):
    """The numbers that a search found.

    Attributes:
        choice: the numbers.
        scores: the scores among which they are best.
        obs_kernels: the observation kernels.
        rule: the update rule.
    """

    choice: Choice
    scores: Scores
    obs_kernels: ScaledKernels
    rule: Rule


@dataclasses.dataclass(eq=False)
class Problem:
    """The choice of numbers for training data with some margins, and an estimator of relations.

    Attributes:
        source: the training data.
        data: the same, with standardized values of the node types with own margins.
        given: the options of learning.
        search: the options of the search.
        own_margins: the node types with own margins.
        in_units_of: the node types whose scores are in standard deviations of each node.
        rule: the update rule that was given.
        log: where evaluations are counted.
        relation: the estimator of relations.
        cells: the cells of features of edges, which are edge types of the data; None: relations do not vary with them.
    """

    source: TrainingData
    data: TrainingData
    given: Given
    search: Search
    own_margins: tuple[int, ...]
    in_units_of: tuple[int, ...]
    rule: Rule | None
    log: Log
    relation: str = "ridge"
    cells: OwnRelations | None = None

    @cached_property
    def names(self) -> list[str]:
        """The names of the numbers that vary."""
        given, data = self.given, self.data
        free = {
            "bandwidth": given.kernels.vary,
            "obs_bandwidth": given.obs_kernels.vary,
            "ridge": given.ridge is None and bool(data.edges),
            "obs_ridge": given.obs_ridge is None and bool(data.observations),
            "ratio": self.relation == "ridge",
            "power": bool(data.observations),
            "reweighting": any(one.graph.forest is None for one in data.cases),
        }
        return [name for name, varies in free.items() if varies]

    @property
    def starts(self) -> dict[str, tuple[float, ...]]:
        """{name: first values}."""
        search = self.search
        starts = {"bandwidth": search.bandwidths, "obs_bandwidth": search.obs_bandwidths, "power": search.powers}
        counts = {"bandwidth": search.count_bandwidths, "power": (1.0,)}
        return starts | (counts if self.relation == "counts" else {})

    def with_features(self) -> "Problem":
        """Return the same choice for relations that vary with the features of edges."""
        source, cells = with_cells(self.source)
        return dataclasses.replace(self, source=source, cells=cells)

    def with_counts(self) -> "Problem":
        """Return the same choice for smoothed counts."""
        return dataclasses.replace(self, relation="counts")

    def scores_of(self, **options: Any) -> Scores:
        """Return the scores of choices, with other options of `make_comparison` or its defaults."""
        margins: Any = {"own_margins": self.own_margins, "in_units_of": self.in_units_of}
        defaults: Any = {"data": self.source, "given": self.given, "relation": self.relation, "own": self.cells}
        options = defaults | margins | options
        first, *others = (make_comparison(search=self.search, fold=fold, **options) for fold in range(self.folds))
        return Scores(first, self.search, self.scalar, self.log, others)

    @property
    def folds(self) -> int:
        """Number of splits into training data and held-out cases: several of few cases."""
        cases = sum(len(next(iter(one.samples.values()))) for one in self.data.cases)
        return self.search.folds if self.is_small and cases >= self.search.min_cases else 1

    @property
    def is_small(self) -> bool:
        """Whether an edge type has so few pairs that relations are drawn to independence."""
        return fewest_pairs(self.data) < self.search.few_pairs

    def can_count(self) -> bool:
        """Return whether variables are numbers whose kernels are not negative, as weights of counts have to be."""
        if not self.scalar:
            return False
        for v, kernel in self.given.kernels.scaled(1.0).items():
            x = np.asarray(self.data.nodes[v])
            some = x[random_rows(len(x), SOME)]
            if not np.all(np.asarray(gram(kernel, some, some)) >= 0):
                return False
        return bool(self.data.edges)

    @property
    def scalar(self) -> bool:
        """Whether all variables are numbers."""
        return all(x.ndim == 1 for x in self.data.nodes.values())

    @property
    def fine_rank(self) -> int:
        """The rank at which kernels are compared where a smaller one limits them; 0: at none."""
        if self.relation == "counts":
            return 0
        rank = self.search.number_rank if self.scalar else self.search.fine_rank
        return rank if self.rule is None else min(rank, getattr(self.rule, "max_rank", 0))

    @cached_property
    def scores(self) -> Scores:
        """The scores of choices."""
        return self.scores_of()

    def rank_limits(self, scores: Scores, best: Choice) -> bool:
        """Return whether kernels need a larger rank: those of vectors have one, or narrower ones of numbers would.

        Kernels of numbers are compared as far as they are resolved, and relations may have less noise. Graphs with
        cycles need many iterations, which cost too much at a larger rank.
        """
        if not self.scalar:
            return bool(scores.outcome(best).residual > self.search.resolved)
        if any(one.graph.forest is None for one in self.data.cases):
            return False
        return smallest_noise(self.data, self.given.kernels.scales) < self.search.steep * best.bandwidth

    def first_choice(self) -> Choice:
        """Return the best choice of the first values."""
        return first(self.scores, self.starts, self.names)

    def first_score(self) -> float:
        """Return the best score of the first values."""
        return self.scores(self.first_choice())

    def resolved_score(self, starts: str) -> float:
        """Return the best score of the first values, with a larger rank and own starts where they apply.

        Both depend on own margins. Relations with little noise need narrow kernels: where these need a larger rank, the
        score is that of a short search at this rank, if it is better. Own starts are for nodes without own margins, and
        compared unless `starts` is "pooled".
        """
        choice, rank, scores = self.first_choice(), self.fine_rank, self.scores
        if rank > scores.comparison.rank and self.rank_limits(scores, choice):
            fine = scores.at_rank(rank)
            widths = [name for name in self.names if name in ("bandwidth", "obs_bandwidth")]
            narrow = by_coordinates(fine, choice, widths, 1.0)
            scores, choice = (fine, narrow) if fine(narrow) < scores(choice) else (scores, choice)
        types = start_types(self, choice, starts) if starts != "pooled" else ()
        return min(scores(choice), scores.with_starts(types)(choice)) if types else scores(choice)

    @property
    def wide(self) -> list[int]:
        """The node types of numbers whose observations may have a front end: vectors of many coordinates."""
        given, pairs = self.given, self.data.observations
        chosen = [v for v in given.obs_kernels.scales if v in given.kernels.scales and v not in self.own_margins]
        vectors = [v for v in chosen if pairs[v][1].ndim == 2]
        least = lambda x: max(self.search.wide, 1 + x.size // len(x))
        return [v for v in vectors if pairs[v][1].shape[1] >= least(pairs[v][0])]

    @cached_property
    def compared(self) -> list[tuple[ScaledKernels, Scores, dict[str, tuple[float, ...]]]]:
        """Observation kernels, their scores, and first values: with many coordinates, also those of projections."""
        given, search, starts = self.given, self.search, self.starts
        compared = [(given.obs_kernels, self.scores, starts)]
        projected = given.obs_kernels.projected(self.data, given.kernels.scales, search.many)
        if projected is not None:
            scores = self.scores_of(projected=True)
            if scores.comparison.given.obs_kernels.matrices:  # else too few samples are not held out
                of_many = starts | {"obs_bandwidth": search.many_bandwidths}
                compared = [(*compared[0][:2], of_many), (projected, scores, starts)]
        return compared

    def best_first_score(self) -> float:
        """Return the best score of the first values of all observation kernels, or `resolved_score`."""
        scores = [scores(first(scores, starts, self.names)) for _, scores, starts in self.compared]
        return min(*scores, self.resolved_score("pooled"))

    def searched_score(self) -> float:
        """Return the best score after a search of all numbers."""
        found = search_numbers(self, Log())
        return found.scores(found.choice)


def search_numbers(problem: Problem, log: Log) -> Found:
    """Return the best numbers: search in coarse steps, then fine.

    Where observations have many coordinates, kernels of all of them and of their projections are compared at the start.
    Where kernels of vectors are so narrow that the rank limits them, the search continues at a larger rank.
    """
    search, names = problem.search, problem.names
    refined = [name for name in names if name in search.refined]
    begin, found = coarse if search.compares else first, {}
    for word, (kernels, scores, starts) in zip(("all", "projected"), problem.compared, strict=False):
        found[word] = kernels, scores, begin(scores, starts, names)
        if len(problem.compared) > 1:
            log.add("observations", word, scores(found[word][2]))
    taken = min(found, key=lambda word: found[word][1](found[word][2]))
    log.take("observations", taken)
    kernels, scores, best = found[taken]
    if not search.compares:
        best = by_coordinates(scores, best, names, 1.0)
    best = by_coordinates(scores, best, refined, 0.5)
    log.add("numbers", "searched", scores(best))
    log.take("numbers", "searched")
    rule, rank = ConstantTime() if problem.rule is None else problem.rule, problem.fine_rank
    if rank > scores.comparison.rank and (search.searched or problem.rank_limits(scores, best)):
        fine = scores.at_rank(rank)
        narrowed = by_coordinates(fine, best, ["bandwidth"] if "bandwidth" in refined else [], 1.0)
        finer = by_coordinates(fine, narrowed, refined, 0.5)
        gains = fine(finer) < (1 - search.gain) * scores(best)
        log.add("rank", "small", scores(best))
        log.add("rank", "large", fine(finer))
        log.take("rank", "large" if gains else "small")
        if gains:
            scores, best, rule = fine, finer, ConstantTime(max_rank=rank) if problem.rule is None else rule
    fix = "Pass kernels and ridges."
    _checks.require(np.isfinite(scores(best)), "data", "must give finite beliefs on held-out problems", "NaN", fix)
    return Found(best, scores, kernels, rule)


def drawn_to_independence(found: Found, names: list[str]) -> Found:
    """Return what was found, with the largest shares of independence whose score is within one standard error.

    Shares are the ridges among the names of the numbers that vary.

    The rule of one standard error (Breiman, Friedman, Olshen and Stone 1984), for few pairs.
    """
    choice, scores = found.choice, found.scores
    for name in [name for name in names if name in ("ridge", "obs_ridge")]:
        larger = [choice._replace(**{name: share}) for share in SHARES if share > getattr(choice, name)]
        for one in larger:
            loss, error = scores.loss(one, found.choice)
            choice = one if loss <= error else choice
    return found._replace(choice=choice)


def with_own(problem: Problem, found: Found, sharing: str) -> Found:
    """Return what was found, or with relations of single edges, if held-out beliefs are clearly better."""
    search, shared = problem.search, found.scores(found.choice)
    typed, own = with_own_relations(problem.source, 0.0, problem.cells)
    given = eqx.tree_at(lambda g: g.obs_kernels, problem.given, found.obs_kernels)
    scores = problem.scores_of(data=typed, given=given, projected=bool(found.obs_kernels.matrices), own=own)
    scores = scores.at_rank(found.scores.comparison.rank).with_starts(found.scores.comparison.starts)
    best = min((found.choice._replace(strength=value) for value in search.strengths), key=scores)
    if sharing == "edge" or search.searched or scores(best) < shared:
        best = by_coordinates(scores, best, ["strength"], 1.0)
    if "strength" in search.refined:
        best = by_coordinates(scores, best, ["strength"], 0.5)
    problem.log.add("sharing", "type", shared)
    problem.log.add("sharing", "edge", scores(best))
    taken = sharing == "edge" or scores(best) < (1 - search.clear) * shared
    problem.log.take("sharing", "edge" if taken else "type")
    return found._replace(choice=best, scores=scores) if taken else found


def start_types(problem: Problem, choice: Choice, starts: str) -> tuple[int, ...]:
    """Return the node types whose starts may have a separate marginal: those that differ, or all with starts="own"."""
    pooled, kernels = problem.source.starts, problem.given.kernels.scaled(choice.bandwidth)
    types = tuple(v for v in pooled if v not in problem.own_margins)
    if starts == "own":
        return types
    cases = sum(len(next(iter(one.samples.values()))) for one in problem.source.cases)
    whole = cases >= problem.search.min_cases  # else blocks are held out, which begin anywhere
    return tuple(v for v in types if whole and differs(pooled[v], kernels[v]))


def with_starts(problem: Problem, found: Found, starts: str) -> tuple[Found, tuple[int, ...]]:
    """Return what was found, with scores of models whose starts have a separate marginal, and their node types.

    Starts have a separate marginal with starts="own", or if they differ clearly and held-out beliefs are not worse.
    """
    types = start_types(problem, found.choice, starts)
    if not types:
        return found, ()
    scores = found.scores.with_starts(types)
    problem.log.add("starts", "pooled", found.scores(found.choice))
    problem.log.add("starts", "own", scores(found.choice))
    taken = starts == "own" or scores(found.choice) <= found.scores(found.choice)
    problem.log.take("starts", "own" if taken else "pooled")
    return (found._replace(scores=scores), types) if taken else (found, ())
