"""What can be seen of the answers of an imputer: on cells hidden on purpose, and where cells are missing."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kbpjax.estimator.columns import Angles, Code, Labels
from kbpjax.estimator.rows import interval_ends

Floats = NDArray[np.floating]

FEWEST = 20
"""Smallest number of cells that are missing, and that are there, where dependence is looked for."""

STRONG, RARE = 0.15, 1e-4
"""Smallest difference of two groups, as an area of ranks beyond a half, and largest probability of it by chance."""


class Report(NamedTuple):
    """How good the answers of a column are.

    Attributes:
        column: name.
        kind: kind.
        cells: number of hidden cells.
        error: root mean squared error of numbers, in degrees of the period for angles; share of wrong labels.
        relative_crps: mean score relative to that of the column's own distribution: 1 says that others do not help.
        coverage_50, coverage_90: shares of the cells within the intervals, or sets, of these probabilities.
    """

    column: Any
    kind: str
    cells: int
    error: float
    relative_crps: float
    coverage_50: float
    coverage_90: float


class Holes(NamedTuple):
    """A column whose holes depend on the values of another.

    Attributes:
        column: name of the column with holes.
        other: name of the column whose values differ.
        area: probability that a value of the other is larger where the cell is missing than where it is there; of
            labels, half plus half of the distance of their distributions.
    """

    column: Any
    other: Any
    area: float


def report(
    name: Any,
    kind: str,
    code: Code,
    levels: Floats,
    marginal: Floats,
    beliefs: Floats,
    codes: Floats,
    asked: NDArray[np.bool_],
) -> Report:
    """Return the scores of the beliefs of a column.

    Args:
        name: its name.
        kind: its kind.
        code: how it is coded.
        levels: levels of its codes [level].
        marginal: weights of its own distribution [level or more].
        beliefs: beliefs [row, level or more].
        codes: true codes [row].
        asked: which of them were hidden [row].
    """
    if not asked.any():
        return Report(name, kind, 0, *[float("nan")] * 4)
    size = len(code.labels) if isinstance(code, Labels) else len(levels)
    weights, truth = beliefs[asked, :size], codes[asked]
    own = marginal[:size] / marginal[:size].sum()
    if isinstance(code, Labels):
        hot = np.eye(size)[truth.astype(int)]
        score, base = ((weights - hot) ** 2).sum(axis=1).mean(), ((own - hot) ** 2).sum(axis=1).mean()
        error = float(np.mean(np.argmax(weights, axis=1) != truth))
        inside = [float(np.mean(_in_set(weights, truth.astype(int), share))) for share in (0.5, 0.9)]
        return Report(name, kind, int(asked.sum()), error, _ratio(score, base), *inside)
    values, true = code.decode(levels), code.decode(truth)
    round_ = isinstance(code, Angles)
    period = code.period if isinstance(code, Angles) else 1.0
    distance = (lambda d: np.abs((d + period / 2) % period - period / 2)) if round_ else np.abs
    between = distance(values[:, None] - values[None])
    to_truth = distance(values[None] - true[:, None])
    crps = lambda w: np.mean((w * to_truth).sum(axis=1) - np.einsum("rp,pq,rq->r", w, between, w) / 2)
    if round_:
        turn = weights @ np.exp(2j * np.pi * values / period)
        middle = np.angle(turn) * period / (2 * np.pi)
    else:
        middle = weights @ values
    error = float(np.sqrt(np.mean(distance(middle - true) ** 2)))
    inside = []
    for share in (0.5, 0.9):
        low, high = interval_ends(levels, weights, ((1 - share) / 2, (1 + share) / 2), round_)
        if round_:
            shift = np.round((truth - (low + high) / 2) / (2 * np.pi)) * 2 * np.pi
            within = (truth - shift >= low) & (truth - shift <= high)
        else:  # of values, as `interval` returns them: the code of a repeated value is its middle rank, not all of them
            within = (true >= code.decode(low)) & (true <= code.decode(high))
        inside.append(float(np.mean(within)))
    return Report(
        name, kind, int(asked.sum()), error, _ratio(crps(weights), crps(np.tile(own, (len(true), 1)))), *inside
    )


def _ratio(score: float, base: float) -> float:
    return float(score / base) if base > 0 else float("nan")


def _in_set(weights: Floats, truth: NDArray[np.integer], share: float) -> NDArray[np.bool_]:
    """Return whether labels are in the smallest set with a probability of at least the share."""
    own = weights[np.arange(len(truth)), truth]
    return np.where(weights > own[:, None], weights, 0).sum(axis=1) < share


def holes(names: Sequence[Any], codes: Floats, words: Sequence[str]) -> list[Holes]:
    """Return the columns whose holes depend on values of other columns, the strongest dependence of each.

    Args:
        names: names of the columns.
        codes: their codes [row, column], NaN where missing.
        words: "number", "angle" or "label" for each.
    """
    from scipy.stats import chi2_contingency, mannwhitneyu

    gone, found = np.isnan(codes), []
    limit = RARE / max(len(names), 1) ** 2
    for i, name in enumerate(names):
        best = None
        if min(gone[:, i].sum(), (~gone[:, i]).sum()) < FEWEST:
            continue
        for j, other in enumerate(names):
            there = ~gone[:, j]
            first, second = codes[there & gone[:, i], j], codes[there & ~gone[:, i], j]
            if i == j or words[j] == "angle" or min(len(first), len(second)) < FEWEST:
                continue
            if words[j] == "label":
                size = int(np.nanmax(codes[:, j])) + 1
                table = np.stack([np.bincount(one.astype(int), minlength=size) for one in (first, second)])
                table = table[:, table.sum(axis=0) > 0]
                if table.shape[1] < 2:
                    continue
                chance = float(np.asarray(chi2_contingency(table)[1]))
                shares = table / table.sum(axis=1, keepdims=True)
                area = 0.5 + np.abs(shares[0] - shares[1]).sum() / 4
            else:
                test = mannwhitneyu(first, second)
                chance, area = test.pvalue, float(test.statistic / (len(first) * len(second)))
            strength = abs(area - 0.5)
            if chance < limit and strength > STRONG and (best is None or strength > abs(best.area - 0.5)):
                best = Holes(name, other, float(area))
        if best is not None:
            found.append(best)
    return sorted(found, key=lambda one: -abs(one.area - 0.5))
