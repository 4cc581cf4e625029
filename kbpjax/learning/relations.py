"""Own relations: each edge of a graph has its own, drawn to the one that its edge type shares.

Samples of many cases of one graph say how the relation of each edge differs from that of its type. The sums over its
pairs, from which operators are learned, are those of its own pairs and of a number of average pairs of its type:

    sums_e + strength * (sum of sums_e' over the type) / (number of pairs of the type).

With few pairs, or a large strength, that is the relation of the type.

`differing_relations` says where the edges of a type differ, so that one relation loses much.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kbpjax import _checks
from kbpjax.graphs.graph import Graph, StaticGraph
from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.margins import FEW, MANY, TINY
from kbpjax.learning.pooling import pool_cases
from kbpjax.learning.sums import EdgeSums

MOST = 1000
"""Largest number of edges that have relations of their own."""

BINS = 8
"""Largest number of bins of one end of an edge, in which the other end is compared between edges."""

LEAST, LEAST_VARIANCE = 3, 0.01
"""Number of pairs of an edge in a bin from which they are compared, and the share of the variance of all values that
is added to that in a bin, which may be 0."""

SOME = 200_000
"""Number of pairs, about, in which differences between edges are looked for."""

Own = tuple[tuple[int, int, int, int], ...]
"""(first node, second node, own edge type, shared edge type) of each edge of a graph."""


class OwnRelations(NamedTuple):
    """What `learn_model` needs to know of own relations.

    Attributes:
        edges: the edges and their types.
        ends: (edge type, node type of first end, node type of second end) of the shared types.
        strength: number of pairs of its type that are added to those of an edge.
        num_nodes: number of nodes of the graph.
    """

    edges: Own
    ends: tuple[tuple[int, int, int], ...]
    strength: Any
    num_nodes: int

    def drawn(self, sums: Iterable[tuple[list[int], EdgeSums]]) -> Iterator[tuple[list[int], EdgeSums]]:
        """Yield groups of edge types and their sums, drawn to those of their types; then those of the types."""
        shared = {own: k for _, _, own, k in self.edges}
        groups = [(types, _in_floats(one)) for types, one in sums]
        totals: dict[int, EdgeSums] = {}
        for types, one in groups:
            for k in sorted({shared[own] for own in types}):
                rows = np.array([row for row, own in enumerate(types) if shared[own] == k])
                total = jax.tree.map(lambda of_types, rows=rows: jnp.sum(of_types[rows], axis=0), one)
                totals[k] = total if k not in totals else jax.tree.map(jnp.add, totals[k], total)
        for types, one in groups:
            means = [_scaled(totals[shared[own]], self.strength) for own in types]
            yield types, jax.tree.map(lambda x, *more: x + jnp.stack(more), one, *means)
        for k, total in totals.items():
            yield [k], jax.tree.map(lambda x: x[None], total)


def _in_floats(sums: EdgeSums) -> EdgeSums:
    """Return sums whose number of pairs is a float, as it is a mean number with those of the type."""
    return eqx.tree_at(lambda one: one.count, sums, jnp.asarray(sums.count).astype(jnp.asarray(sums.first).dtype))


def _scaled(total: EdgeSums, strength: Any) -> EdgeSums:
    """Return the sums over a number of average pairs."""
    factor = jnp.asarray(strength).astype(total.count.dtype) / total.count
    return jax.tree.map(lambda x: x * factor.astype(x.dtype), total)


def can_have_own_relations(data: TrainingData) -> bool:
    """Return whether data hold enough cases of one graph for relations of single edges."""
    if len(data.cases) != 1:
        return False
    (one,) = data.cases
    edges = one.graph.num_edges // 2
    shared = edges > len(one.graph.edge_types)
    return shared and edges <= MOST and len(next(iter(one.samples.values()))) >= FEW


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
            pooled[:, nodes] = _normal_scores(values.reshape(-1, 1)).reshape(values.shape)
            own[:, nodes] = _normal_scores(values)
    graph, half = one.graph, one.graph.num_edges // 2
    ends = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)])[:, :half]
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


def _normal_scores(x: np.ndarray) -> np.ndarray:
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


def with_own_relations(data: TrainingData, strength: float) -> tuple[TrainingData, OwnRelations]:
    """Return the data with an edge type for each edge of their graph that has pairs, and what they are.

    Raises:
        ValueError: data that are not cases of one graph, or whose graph or missing values are traced.
    """
    rule, fix = "must be cases of one graph where edges have own relations", "Pool the cases of one graph."
    _checks.require(len(data.cases) == 1, "data", rule, f"{len(data.cases)} graphs", fix)
    (one,) = data.cases
    rule, fix = "must be None where data are traced", "Give the edges types instead: graph.with_edge_types."
    _checks.require(not _checks.is_traced((one.graph, one.present)), "own_strength", rule, "a number", fix)
    graph, half = one.graph, one.graph.num_edges // 2
    kinds = np.asarray(graph.edge_type)[:half]
    ends = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)[:half]
    known = np.flatnonzero(_pairs_of(one, ends))
    own = 1 + int(kinds.max(initial=0)) + np.arange(len(known))
    edges = tuple(zip(*(column.tolist() for column in (*ends[known].T, own, kinds[known])), strict=True))
    typed = Graph.from_edges(ends[known], graph.num_nodes, edge_type=own, node_type=np.asarray(graph.node_type))
    cases = Cases(typed, one.samples, one.observations, one.present, one.observed, one.partly, one.dropped)
    pooled = pool_cases([cases], data.labels, data.obs_labels)
    of = lambda data: (data.margins, data.obs_margins, data.front_ends)
    pooled = eqx.tree_at(of, pooled, of(data), is_leaf=lambda x: isinstance(x, dict))
    return pooled, OwnRelations(edges, data.ends, strength, graph.num_nodes)


def _pairs_of(one: Cases, ends: np.ndarray) -> np.ndarray:
    """Return the number of complete pairs of each edge."""
    there = np.zeros((len(next(iter(one.present.values()))), one.graph.num_nodes), bool)
    for v, present in one.present.items():
        there[:, np.asarray(one.graph.nodes_of_type(v))] = np.asarray(present)
    return np.sum(there[:, ends[:, 0]] & there[:, ends[:, 1]], axis=0)


def graph_with(edges: Own, num_nodes: int, graph: Graph) -> Graph:
    """Return a graph whose edges have their own types, as far as they are known; other types stay.

    A traced graph, one of another number of nodes, and one that has the own types already are returned as they are.
    """
    if not edges or graph.num_nodes != num_nodes or _checks.is_traced(graph):
        return graph
    own = {kind for *_, kind, _ in edges}
    if any(k in own for k, *_ in graph.edge_types):
        return graph
    return _typed(StaticGraph(graph), edges)


@lru_cache(maxsize=8)
def _typed(fixed: StaticGraph, edges: Own) -> Graph:
    graph, half = fixed.graph, fixed.graph.num_edges // 2
    own = {(a, b, k): kind for a, b, kind, k in edges}
    columns = (np.asarray(of)[:half].tolist() for of in (graph.senders, graph.receivers, graph.edge_type))
    types = [own.get(edge, edge[2]) for edge in zip(*columns, strict=True)]
    with jax.ensure_compile_time_eval():
        return graph.with_edge_types(types)
