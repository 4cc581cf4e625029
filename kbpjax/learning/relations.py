"""Relations of edges of one type that differ: by features of the edges, and of single edges.

Edges with similar features, such as distances, share a relation: cells of the space of features are edge types of their
own. Samples of many cases of one graph also say how the relation of each edge differs from that of its type. The sums
over its pairs, from which operators are learned, are those of its own pairs and of a number of average pairs of its
type:

    sums_e + strength * (sum of sums_e' over the type) / (number of pairs of the type).

With few pairs, or a large strength, that is the relation of the type. So it is for cells of features.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.graphs.graph import Graph, StaticGraph
from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.margins import FEW
from kbpjax.learning.pooling import pool_cases
from kbpjax.learning.sums import EdgeSums

MOST = 1000
"""Largest number of edges that each have a separate relation."""

SPLITS = 3
"""Number of times that the edges of a type are split in halves by their features."""

FEWEST = 100
"""Smallest number of pairs of a cell of features that is split off, on average."""

PAIRS = 30.0
"""Number of pairs that the relation of an edge type counts for in those of its cells of features."""

Own = tuple[tuple[int, int, int, int], ...]
"""(first node, second node, own edge type, shared edge type) of each edge of a graph."""


class Cells(NamedTuple):
    """The edge types of an edge type whose relation varies with features of edges.

    Attributes:
        shared: the edge type.
        types: the edge type of each cell.
        centers: features of the center of each cell; an edge is in the cell of the nearest center.
        scales: the units of the features.
    """

    shared: int
    types: tuple[int, ...]
    centers: tuple[tuple[float, ...], ...]
    scales: tuple[float, ...]

    def of_types(self, present: Set[int]) -> "Cells":
        """Return the cells of some edge types."""
        kept = [(kind, center) for kind, center in zip(self.types, self.centers, strict=True) if kind in present]
        types, centers = zip(*kept, strict=True) if kept else ((), ())
        return self._replace(types=types, centers=centers)

    def types_of(self, features: NDArray) -> NDArray:
        """Return the types of edges with some features [edge, feature]."""
        centers, scales = np.asarray(self.centers), np.asarray(self.scales)
        rule = f"must be {len(scales)} of each edge, as in training"
        fix = "Build the graph with these features, or fit with sharing='type'."
        ok = features.shape[1] == len(scales)
        _checks.require(ok, "edge_features", rule, f"{features.shape[1]} features", fix)
        away = (features[:, None] - centers[None]) / scales
        return np.asarray(self.types)[np.argmin(np.sum(away**2, axis=2), axis=1)]


class OwnRelations(NamedTuple):
    """What `learn_model` needs to know of relations of cells of features and of single edges.

    Attributes:
        edges: the edges that have their own, and their types.
        ends: (edge type, node type of first end, node type of second end) of the types that these types are of.
        strength: number of pairs of its type that are added to those of an edge.
        num_nodes: number of nodes of the graph.
        cells: the cells of features.
    """

    edges: Own
    ends: tuple[tuple[int, int, int], ...]
    strength: Any
    num_nodes: int
    cells: tuple[Cells, ...] = ()

    @property
    def parents(self) -> tuple[dict[int, int], dict[int, int]]:
        """{own edge type: its type} and {edge type of a cell: its type}."""
        of_cells = {kind: one.shared for one in self.cells for kind in one.types}
        return {own: k for _, _, own, k in self.edges}, of_cells

    def of_types(self, present: Set[int]) -> "OwnRelations":
        """Return the relations of the edge types that have pairs, and of those that they are of."""
        edges = tuple(edge for edge in self.edges if edge[2] in present)
        present = present | {edge[3] for edge in edges}
        cells = [one.of_types(present) for one in self.cells]
        present = present | {one.shared for one in cells if one.types}
        ends = tuple(end for end in self.ends if end[0] in present)
        return self._replace(edges=edges, cells=tuple(one for one in cells if one.types), ends=ends)

    def known(self, edge_type: int, present: Set[int]) -> int:
        """Return the edge type, or that which it is of and has a relation if types with pairs are some."""
        of_edges, of_cells = self.parents
        ends = present | {k for k, *_ in self.of_types(present).ends}
        for parents in (of_edges, of_cells):
            edge_type = edge_type if edge_type in ends else parents.get(edge_type, edge_type)
        return edge_type

    def drawn(self, sums: Iterable[tuple[list[int], EdgeSums]]) -> Iterator[tuple[list[int], EdgeSums]]:
        """Yield groups of edge types and their sums, drawn to those of their types; then those of the types."""
        of_edges, of_cells = self.parents
        groups = [(types, _in_floats(one)) for types, one in sums]
        totals = _totals(groups, of_edges)
        shared = _totals([*groups, *_each(totals)], of_cells)
        means = {k: _scaled(total, PAIRS) for k, total in shared.items()}
        totals = {k: jax.tree.map(lambda x: x[0], _added([k], total, of_cells, means)) for (k,), total in _each(totals)}
        means |= {k: _scaled(total, self.strength) for k, total in totals.items()}
        for types, one in groups:
            yield types, _added(types, one, of_edges | of_cells, means)
        yield from _each(totals | shared)


def _each(sums: dict[int, EdgeSums]) -> Iterator[tuple[list[int], EdgeSums]]:
    """Yield each edge type as a group."""
    for k, one in sums.items():
        yield [k], jax.tree.map(lambda x: x[None], one)


def _totals(groups: Iterable[tuple[list[int], EdgeSums]], parents: Mapping[int, int]) -> dict[int, EdgeSums]:
    """Return {edge type: the sums over the types that are of it}."""
    totals: dict[int, EdgeSums] = {}
    for types, one in groups:
        for k in sorted({parents[kind] for kind in types if kind in parents}):
            rows = np.array([row for row, kind in enumerate(types) if parents.get(kind) == k])
            total = jax.tree.map(lambda of_types, rows=rows: jnp.sum(of_types[rows], axis=0), one)
            totals[k] = total if k not in totals else jax.tree.map(jnp.add, totals[k], total)
    return totals


def _added(types: list[int], sums: EdgeSums, parents: Mapping[int, int], means: Mapping[int, EdgeSums]) -> EdgeSums:
    """Return the sums of edge types with those over average pairs of the types that they are of."""
    known = sorted({parents[kind] for kind in types if kind in parents})
    if not known:
        return sums
    nothing = jax.tree.map(jnp.zeros_like, means[known[0]])
    stacked = jax.tree.map(lambda *x: jnp.stack(x), nothing, *(means[k] for k in known))
    rows = np.array([1 + known.index(parents[kind]) if kind in parents else 0 for kind in types])
    return jax.tree.map(lambda x, more: x + more[rows], sums, stacked)


def _in_floats(sums: EdgeSums) -> EdgeSums:
    """Return sums whose number of pairs is a float, as it is a mean number with those of the type."""
    return eqx.tree_at(lambda one: one.count, sums, jnp.asarray(sums.count).astype(jnp.asarray(sums.first).dtype))


def _scaled(total: EdgeSums, strength: Any) -> EdgeSums:
    """Return the sums over a number of average pairs."""
    factor = jnp.asarray(strength).astype(total.count.dtype) / total.count
    return jax.tree.map(lambda x: x * factor.astype(x.dtype), total)


def features_vary(data: TrainingData) -> bool:
    """Return whether the edges of the graphs have features that differ within an edge type."""
    given = [one.graph.edge_features for one in data.cases]
    if not given or any(one is None for one in given) or _checks.is_traced((given, data)):
        return False
    return any(np.ptp(features, axis=0).any() for _, features, _ in _features(data))


def _features(data: TrainingData) -> Iterator[tuple[int, NDArray, NDArray]]:
    """Yield edge types, the features of their edges with pairs [edge, feature], and the numbers of pairs [edge]."""
    parts: dict[int, list[tuple[NDArray, NDArray]]] = {}
    for one in data.cases:
        kinds, ends = _edges(one.graph)
        pairs, features = _pairs_of(one, ends), np.asarray(one.graph.edge_features)
        for k, *_ in one.graph.edge_types:
            rows = (kinds == k) & (pairs > 0)
            parts.setdefault(k, []).append((features[rows], pairs[rows]))
    for k, of_type in parts.items():
        widths = {features.shape[1] for features, _ in of_type}
        rule, fix = "must have as many features of edges in all graphs", "Pass the same features."
        _checks.require(len(widths) == 1, "graph", rule, sorted(widths), fix)
        features, pairs = (np.concatenate(column) for column in zip(*of_type, strict=True))
        if len(features):
            yield k, features, pairs


def with_cells(data: TrainingData) -> tuple[TrainingData, OwnRelations]:
    """Return the data with an edge type for each cell of the features of edges, and what the cells are.

    The edges of a type are split in halves of about as many pairs, each time along the feature that varies most. An
    edge is in the cell of the nearest center, in standard deviations of the features.

    Raises:
        ValueError: graphs without features, or with other numbers of them; traced data.
    """
    known = bool(data.cases) and not _checks.is_traced(data.cases)
    rule, fix = "must be cases of known graphs where relations vary with features", "Pool the cases of graphs."
    _checks.require(known, "data", rule, "a traced graph" if data.cases else "no cases", fix)
    given = [one.graph.edge_features for one in data.cases]
    fix = "Build all graphs with edge_features, or fit with sharing='type'."
    _checks.require(all(one is not None for one in given), "data", "must have features of edges", "none", fix)
    number = 1 + max((k for k, *_ in data.ends), default=0)
    cells = []
    for k, features, pairs in _features(data):
        scales = np.std(features, axis=0)
        scales = np.where(scales > 0, scales, 1.0)
        depth = int(np.clip(np.floor(np.log2(max(pairs.sum() / FEWEST, 1))), 0, SPLITS))
        centers = _centers(features / scales, pairs, depth) * scales
        if len(centers) > 1:
            types = tuple(range(number, number + len(centers)))
            number += len(centers)
            cells.append(Cells(k, types, tuple(map(tuple, centers.tolist())), tuple(scales.tolist())))
    shared = {one.shared for one in cells}
    ends = tuple(one for one in data.ends if one[0] in shared)
    pooled = _with_graphs(data, [_typed(StaticGraph(one.graph), tuple(cells), ()) for one in data.cases])
    return pooled, OwnRelations((), ends, 0.0, 0, tuple(cells))


def _centers(features: NDArray, pairs: NDArray, depth: int) -> NDArray:
    """Return the means of the cells of features [cell, feature], each of which is the nearest of some edge."""
    parts = [np.arange(len(features))]
    for _ in range(depth):
        parts = [half for rows in parts for half in _halves(features, pairs, rows)]
    centers = np.stack([features[rows].mean(axis=0) for rows in parts])
    nearest = np.argmin(np.sum((features[:, None] - centers[None]) ** 2, axis=2), axis=1)
    return centers[np.unique(nearest)]


def _halves(features: NDArray, pairs: NDArray, rows: NDArray) -> list[NDArray]:
    """Return the rows of either side of the weighted median of the feature that varies most, or all rows."""
    values = features[rows, np.argmax(np.ptp(features[rows], axis=0))]
    order = np.argsort(values, kind="stable")
    below = np.cumsum(pairs[rows][order])
    cut = values[order][np.searchsorted(below, below[-1] / 2)]
    left = values < cut if np.any(values < cut) else values <= cut
    return [rows] if left.all() else [rows[left], rows[~left]]


def can_have_own_relations(data: TrainingData) -> bool:
    """Return whether data hold enough cases of one graph for relations of single edges."""
    if len(data.cases) != 1:
        return False
    (one,) = data.cases
    edges = one.graph.num_edges // 2
    shared = edges > len(one.graph.edge_types)
    return shared and edges <= MOST and len(next(iter(one.samples.values()))) >= FEW


def with_own_relations(
    data: TrainingData, strength: float, cells: OwnRelations | None = None
) -> tuple[TrainingData, OwnRelations]:
    """Return the data with an edge type for each edge of their graph that has pairs, and what they are.

    Args:
        data: the data; with cells of features, those of `with_cells`.
        strength: number of pairs of its type that are added to those of an edge.
        cells: the cells of features.

    Raises:
        ValueError: data that are not cases of one graph, or whose graph or missing values are traced.
    """
    rule, fix = "must be cases of one graph where edges have own relations", "Pool the cases of one graph."
    _checks.require(len(data.cases) == 1, "data", rule, f"{len(data.cases)} graphs", fix)
    (one,) = data.cases
    rule, fix = "must be None where data are traced", "Give the edges types instead: graph.with_edge_types."
    _checks.require(not _checks.is_traced((one.graph, one.present)), "own_strength", rule, "a number", fix)
    graph = one.graph
    kinds, ends = _edges(graph)
    known = np.flatnonzero(_pairs_of(one, ends))
    own = 1 + max((k for k, *_ in data.ends), default=0) + np.arange(len(known))
    edges = tuple(zip(*(column.tolist() for column in (*ends[known].T, own, kinds[known])), strict=True))
    typed = Graph.from_edges(ends[known], graph.num_nodes, edge_type=own, node_type=np.asarray(graph.node_type))
    pooled, above = _with_graphs(data, [typed]), cells or OwnRelations((), (), 0.0, 0)
    return pooled, OwnRelations(edges, data.ends + above.ends, strength, graph.num_nodes, above.cells)


def _edges(graph: Graph) -> tuple[NDArray, NDArray]:
    """Return the types [edge] and the ends [edge, 2] of undirected edges."""
    half = graph.num_edges // 2
    ends = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)[:half]
    return np.asarray(graph.edge_type)[:half], ends


def _with_graphs(data: TrainingData, graphs: Sequence[Graph]) -> TrainingData:
    """Return the data pooled from their cases on graphs with other edges."""
    cases = [dataclasses.replace(one, graph=graph) for one, graph in zip(data.cases, graphs, strict=True)]
    pooled = pool_cases(cases, data.labels, data.obs_labels)
    of = lambda data: (data.margins, data.obs_margins, data.front_ends, data.starts)
    return eqx.tree_at(of, pooled, of(data), is_leaf=lambda x: isinstance(x, dict))


def _pairs_of(one: Cases, ends: np.ndarray) -> np.ndarray:
    """Return the number of complete pairs of each edge."""
    there = np.zeros((len(next(iter(one.present.values()))), one.graph.num_nodes), bool)
    for v, present in one.present.items():
        there[:, np.asarray(one.graph.nodes_of_type(v))] = np.asarray(present)
    return np.sum(there[:, ends[:, 0]] & there[:, ends[:, 1]], axis=0)


def graph_with(cells: tuple[Cells, ...], edges: Own, num_nodes: int, graph: Graph) -> Graph:
    """Return a graph whose edges have the types of their cells, or their own, as far as they are known.

    A traced graph, and one that has these types already, are returned as they are. In a graph with another number of
    nodes, edges have no separate types. Edges without features are in no cell.
    """
    edges = edges if graph.num_nodes == num_nodes else ()
    cells = cells if graph.edge_features is not None else ()
    if not (edges or cells) or _checks.is_traced(graph):
        return graph
    known = {kind for *_, kind, _ in edges} | {kind for one in cells for kind in one.types}
    if any(k in known for k, *_ in graph.edge_types):
        return graph
    return _typed(StaticGraph(graph), cells, edges)


@lru_cache(maxsize=8)
def _typed(fixed: StaticGraph, cells: tuple[Cells, ...], edges: Own) -> Graph:
    graph = fixed.graph
    kinds, ends = _edges(graph)
    features, types = np.asarray(graph.edge_features), kinds.copy()
    for one in cells:
        rows = kinds == one.shared
        types[rows] = one.types_of(features[rows])
    own = {(a, b, k): kind for a, b, kind, k in edges}
    found = [own.get((a, b, k), k) for (a, b), k in zip(ends.tolist(), types.tolist(), strict=True)]
    with jax.ensure_compile_time_eval():
        return graph.with_edge_types(found)
