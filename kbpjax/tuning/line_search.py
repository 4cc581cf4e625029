"""Coordinate search: numbers changed one after the other, as long as held-out beliefs become better."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kbpjax.learning.learn import candidate_points
from kbpjax.tuning.comparison import Comparison, Outcome, evaluate
from kbpjax.tuning.search import Choice, Search
from kbpjax.tuning.tried import Log


def coarse(score: "Scores", starts: Mapping[str, tuple[float, ...]], names: list[str]) -> Choice:
    """Return the best choice of a search from the best of the combinations of some values, in coarse steps."""
    return by_coordinates(score, first(score, starts, names), names, 1.0)


def first(score: "Scores", starts: Mapping[str, tuple[float, ...]], names: list[str]) -> Choice:
    """Return the best of the combinations of some values."""
    varied = {name: values for name, values in starts.items() if name in names}
    choices = (Choice(**dict(zip(varied, values, strict=True))) for values in itertools.product(*varied.values()))
    return min(choices, key=score)


def by_coordinates(score: "Scores", best: Choice, names: list[str], root: float) -> Choice:
    """Return the best choice of a search along one number after the other."""
    for _ in range(score.search.rounds):
        before = best
        for name in names:
            best = _line(score, best, name, root)
        if best == before:
            break
    return best


CLEAR = 2.0
"""Number of standard errors by which the score of a temperature must be better than that of 1 to count."""


class Scores:
    """The scores of choices on held-out problems, each computed once."""

    def __init__(
        self,
        comparison: Comparison,
        search: Search,
        penalized: bool = True,
        log: Log | None = None,
        folds: Sequence[Comparison] = (),
    ):
        self.comparison = comparison
        self.folds = tuple(folds)  # other splits of few cases, over which scores are means
        self.penalized = penalized  # where bases are not resolved
        self.search = search
        self.log = Log() if log is None else log
        self.tried: dict[Choice, Outcome] = {}
        self.of_rank: dict[int, Scores] = {}

    def at_rank(self, rank: int) -> "Scores":
        """Return the scores of choices at another rank of the compared models."""
        if rank not in self.of_rank:
            nodes, count = self.comparison.data.nodes, self.search.fine_points
            points = {v: candidate_points(nodes[v], count) for v in self.comparison.points}
            self.of_rank[rank] = self._with(rank=rank, points=points)
        return self.of_rank[rank]

    def with_starts(self, node_types: tuple[int, ...]) -> "Scores":
        """Return the scores of choices where the starts of node types have a separate marginal."""
        known = tuple(v for v in node_types if v in self.comparison.data.starts)
        return self._with(starts=known)

    def _with(self, **options: Any) -> "Scores":
        """Return the scores of comparisons with other options."""
        first, *others = (dataclasses.replace(one, **options) for one in (self.comparison, *self.folds))
        return Scores(first, self.search, self.penalized, self.log, others)

    def outcome(self, choice: Choice) -> Outcome:
        """Return how good the beliefs of a choice are; scores that are not finite are infinite."""
        if choice not in self.tried:
            self.log.evaluated += 1
            dtype = jnp.result_type(float)
            numbers = Choice(*(jnp.asarray(value, dtype) for value in choice))
            found = _mean(*(jax.device_get(evaluate(one, numbers)) for one in (self.comparison, *self.folds)))
            scores = np.where(np.isfinite(found.scores), np.asarray(found.scores, float), np.inf)
            self.tried[choice] = found._replace(scores=scores)
        return self.tried[choice]

    def __call__(self, choice: Choice) -> float:
        """Return the score at the best of the temperatures that count."""
        scores = np.array(list(self.by_temperature(choice).values()))
        return float(np.min(scores[self._counting(choice)]))

    def _counting(self, choice: Choice) -> np.ndarray:
        """Return a mask of the temperatures that count: 1, and those that are better by two standard errors.

        On a few problems whose values hang together, such as the sign of a series, sharp beliefs may be right by luck.
        Without errors, on blocks of nodes, all count.
        """
        found, temperatures = self.outcome(choice), np.array(self.search.temperatures)
        errors = np.nan_to_num(np.broadcast_to(found.errors, temperatures.shape))
        if not errors.any():
            return np.ones(len(temperatures), bool)
        one = found.scores[temperatures == 1.0]
        return (temperatures == 1.0) | (found.scores < one - CLEAR * errors)

    def by_temperature(self, choice: Choice) -> dict[float, float]:
        """Return {temperature: score}, with penalties for what was not resolved."""
        found = self.outcome(choice)
        unresolved = max(0.0, float(found.residual) - self.search.resolved) if self.penalized else 0.0
        unresolved += 0.0 if bool(found.converged) else self.search.unconverged
        scores = (float(score) * (1 + unresolved) for score in found.scores)
        return dict(zip(self.search.temperatures, scores, strict=True))

    def temperature(self, choice: Choice) -> float:
        """Return the temperature with the best coverage, of those that count and score about as well as the best.

        The energy score is flat around its minimum. The coverage, the share of true values inside the regions of a
        belief, is not. Of equal coverages, the temperature nearest to 1 is taken.
        """
        found, search = self.outcome(choice), self.search
        counts = self._counting(choice)
        flat = counts & (found.scores <= (1 + search.flat) * np.min(found.scores[counts]))
        gaps = np.where(flat, np.abs(found.inside - search.inside), np.inf)
        right = np.flatnonzero(gaps <= np.min(gaps) + search.tie)
        return min((search.temperatures[number] for number in right), key=lambda one: abs(np.log(one)))

    def loss(self, choice: Choice, best: Choice) -> tuple[float, float]:
        """Return how much worse a choice is than another at temperature 1, and the standard error over the problems."""
        apart = self.outcome(choice).sums - self.outcome(best).sums
        total, number = max(float(np.sum(self.outcome(best).counts)), 1.0), np.size(apart)
        spread = np.sqrt(np.sum((apart - np.mean(apart)) ** 2) * number / max(number - 1, 1))
        return float(np.sum(apart)) / total, float(spread) / total


def _mean(*found: Outcome) -> Outcome:
    """Return the outcome over several splits."""
    if len(found) == 1:
        return found[0]
    mean = lambda values: np.mean(np.stack(values), axis=0)
    scores, inside, converged, residual, errors, sums, counts = zip(*found, strict=True)
    error = np.sqrt(mean(np.square(errors)) / len(found))
    joined = np.concatenate(sums), np.concatenate(counts)
    return Outcome(mean(scores), mean(inside), bool(np.all(converged)), np.max(residual), error, *joined)


def _line(score: "Scores", best: Choice, name: str, root: float) -> Choice:
    """Return the best choice along one number: steps in either direction as long as they gain."""
    for step in _steps(name, root, score.search):
        moved = False
        while (following := step(best)) is not None and score(following) < (1 - score.search.gain) * score(best):
            best, moved = following, True
        if moved:
            break
    return best


def _steps(name: str, root: float, search: Search) -> Iterator[Callable[[Choice], Choice | None]]:
    """Yield functions that change one number of a choice; they return None outside of its range."""
    if name == "ratio":
        yield lambda choice: choice._replace(ratio=1.0) if choice.ratio == 0 else None
        yield lambda choice: choice._replace(ratio=0.0) if choice.ratio == 1 else None
        return
    low, high, factor = (getattr(of, name) for of in (search.lowest, search.highest, search.factors))
    for change in (factor**-root, factor**root):

        def step(choice: Choice, change: float = change) -> Choice | None:
            value = getattr(choice, name) * change
            return choice._replace(**{name: value}) if low * 0.99 <= value <= high * 1.01 else None

        yield step
