"""Own relations: each edge of a graph has its own, drawn to the one that its edge type shares.

Samples of many cases of one graph say how the relation of each edge differs from that of its type. The sums over its
pairs, from which operators are learned, are those of its own pairs and of a number of average pairs of its type:

    sums_e + strength * (sum of sums_e' over the type) / (number of pairs of the type).

With few pairs, or a large strength, that is the relation of the type.
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
from kbpjax.learning.margins import FEW
from kbpjax.learning.pooling import pool_cases
from kbpjax.learning.sums import EdgeSums

MOST = 1000
"""Largest number of edges that have relations of their own."""

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
    of = lambda data: (data.margins, data.obs_margins, data.front_ends, data.starts)
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
