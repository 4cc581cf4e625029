"""Where the edges of a type differ so much that one relation for all of them loses much."""

from typing import NamedTuple

import numpy as np

from kbpjax.learning.data import TrainingData
from kbpjax.learning.margins import FEW, MANY, TINY
from kbpjax.learning.relations import can_have_own_relations

BINS = 8
"""Largest number of bins of one end of an edge, in which the other end is compared between edges."""

LEAST, LEAST_VARIANCE = 3, 0.01
"""Number of pairs of an edge in a bin from which they are compared, and the share of the variance of all values that
is added to that in a bin, which may be 0."""

SOME = 200_000
"""Number of pairs, about, in which differences between edges are looked for."""


class Difference(NamedTuple):
    """How much the relations of the edges of a type differ.

    Attributes:
        loss: mean logarithm of the factor by which sharing widens an end, given the other; without what is chance.
        chance: the standard deviation that the loss has where all edges have one relation.
        lowest: smallest rank correlation of the ends of an edge.
        highest: the largest one.
    """

    loss: float
    chance: float
    lowest: float
    highest: float


def differing_relations(data: TrainingData) -> dict[int, Difference]:
    """Return how much the relations of edges differ, for each edge type with two edges of numbers or more.

    In bins of one end, mean and variance of the other are those of the edge, or those of all edges of the type. The
    logarithm of the ratio of their standard deviations is the loss of sharing, in nats of a Gaussian in each bin, as a
    mean over pairs. Values are normal scores of ranks, among all nodes of a type and among those of their node. The
    smallest loss of both, and of both directions, counts: margins that differ make others large.

    Edges with fewer than `FEW` complete pairs, or with an end that is constant, are left out.
    """
    if not can_have_own_relations(data):
        return {}
    (one,) = data.cases
    count, node_type = len(next(iter(one.samples.values()))), np.asarray(one.graph.node_type)
    step = max(1, count // MANY, count * one.graph.num_edges // 2 // SOME)
    step = min(step, max(1, count // (2 * FEW)))
    pooled = np.full((len(range(0, count, step)), len(node_type)), np.nan)
    own = pooled.copy()
    for v, x in one.samples.items():
        if np.ndim(x) == 2 and np.issubdtype(x.dtype, np.floating):
            values = np.where(np.asarray(one.present[v]), x, np.nan)[::step].astype(np.float64)
            nodes = np.flatnonzero(node_type == v)
            pooled[:, nodes] = rank_scores(values.reshape(-1, 1)).reshape(values.shape)
            own[:, nodes] = rank_scores(values)
    graph, half = one.graph, one.graph.num_edges // 2
    ends = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)])[:, :half].astype(int)
    kinds, there = np.asarray(graph.edge_type)[:half], np.isfinite(own)
    varies = np.fmax.reduce(own, axis=0) > np.fmin.reduce(own, axis=0)
    known = ((there[:, ends[0]] & there[:, ends[1]]).sum(axis=0) >= FEW) & varies[ends].all(axis=0)
    found = {}
    for k, *_ in graph.edge_types:
        first, second = ends[:, known & (kinds == k)]
        if len(first) > 1:
            losses = [_loss_of_sharing(z[:, first], z[:, second]) for z in (pooled, own)]
            correlations = _correlations(own[:, first], own[:, second])
            found[k] = Difference(*min(losses), float(correlations.min()), float(correlations.max()))
    return found


def share_well(data: TrainingData, least: float) -> bool:
    """Return whether all edges are between numbers, and the loss of sharing is surely below `least` in all types."""
    found = differing_relations(data)
    numbers = all(np.issubdtype(np.asarray(x).dtype, np.floating) and np.ndim(x) == 1 for x in data.nodes.values())
    return (
        numbers and set(found) == set(data.edges) and all(one.loss + 2 * one.chance < least for one in found.values())
    )


def rank_scores(x: np.ndarray) -> np.ndarray:
    """Return normal scores of values along axis 0, the same for equal ones; NaN where missing."""
    from scipy.special import ndtri  # a dependency of JAX, imported where it is needed

    ranks = lambda x: np.argsort(np.argsort(x, axis=0, kind="stable"), axis=0)
    middle = (ranks(x) + ranks(x[::-1])[::-1]) / 2  # NaN is last, and equal values are in either order
    there = np.isfinite(x)
    return np.where(there, ndtri(np.where(there, (middle + 1) / (there.sum(axis=0) + 1), 0.5)), np.nan)


def _correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the correlation of each column [case, edge] over complete pairs."""
    there = np.isfinite(x) & np.isfinite(y)
    x, y = (np.where(there, z, 0) - np.where(there, z, 0).sum(axis=0) / there.sum(axis=0) for z in (x, y))
    x, y = np.where(there, x, 0), np.where(there, y, 0)
    return (x * y).sum(axis=0) / np.maximum(np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0)), TINY)


def _loss_of_sharing(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the smaller loss of one relation for all edges of both directions, and its deviation by chance."""
    there = np.isfinite(x) & np.isfinite(y)
    number = int(np.clip(np.median(there.sum(axis=0)) // 10, 2, BINS))
    return min(_loss_given(*ends, there, number) for ends in ((x, y), (y, x)))


def _loss_given(given: np.ndarray, other: np.ndarray, there: np.ndarray, number: int) -> tuple[float, float]:
    """Return the loss of one relation for the second end, given the first, of pairs [case, edge] that are there."""
    edges, (x, y) = np.nonzero(there)[1], (given[there], other[there])
    bins = np.searchsorted(np.quantile(x, np.arange(1, number) / number), x)
    least = LEAST_VARIANCE * np.var(y)
    size = number * there.shape[1]
    sums = [np.bincount(bins + number * edges, of, minlength=size) for of in (np.ones_like(y), y, y**2)]
    count, *own = (of.reshape(-1, number) for of in sums)
    total, *shared = (of.sum(axis=0) for of in (count, *own))
    variance = lambda count, y, squares: np.maximum(squares - y**2 / count, 0) / count + least
    with np.errstate(invalid="ignore", divide="ignore"):
        gains = count / 2 * np.log(variance(total, *shared) / variance(count, *own))
        of_chance = [n / (n - 1) for n in (count, total)]  # of the logarithm of a variance of n values
    used, compared = count >= LEAST, (count >= LEAST).any(axis=0)
    chance = of_chance[0][used].sum() - of_chance[1][compared].sum()
    pairs, freedom = max(count[used].sum(), 1), used.sum() - compared.sum()
    return float((gains[used].sum() - chance) / pairs), float(np.sqrt(max(freedom, 0)) / pairs)
