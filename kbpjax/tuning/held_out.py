"""Held-out problems: cases, or blocks of nodes, on which hyperparameters are compared.

Hyperparameters are scored by the beliefs after message passing, on data that the model has not seen. With four cases or
more, whole cases are left out. With fewer, blocks of neighboring nodes are: the model is learned from the pairs outside
of them, and the beliefs of the nodes inside are scored.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kbpjax.graphs.graph import Graph
from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.margins import estimate_margins, standardized_cases
from kbpjax.learning.patterns import partly_seen
from kbpjax.learning.starts import start_samples, starts_by_type
from kbpjax.tuning.parts import ball, interior, neighbors_of
from kbpjax.tuning.search import Search


class HeldOut(NamedTuple):
    """The disjoint union of the held-out problems.

    Attributes:
        graph: the graph of all of them.
        truth: {node type: values [node_of_type, *dim]}.
        present: {node type: mask of the nodes to be scored, with a value and inside their block [node_of_type]}.
        observations: {node type: observations [node_of_type, *obs_dim]}.
        observed: {node type: mask of the nodes with an observation, of which entries may be NaN [node_of_type]}.
        place: {node type: numbers of the nodes among the nodes of the type of their graph [node_of_type]}.
        problem: {node type: number of the problem of each node [node_of_type]}.
    """

    graph: Graph
    truth: dict[int, Any]
    present: dict[int, Any]
    observations: dict[int, Any]
    observed: dict[int, Any]
    place: dict[int, Any]
    problem: dict[int, Any]


def hold_out(
    data: TrainingData, search: Search = Search(), own_margins: Sequence[int] = (), fold: int = 0
) -> tuple[TrainingData, HeldOut]:
    """Return the training data without some cases or blocks, thinned, and the problems that were left out.

    The values of node types with `own_margins` are standardized, with the margins of what is not left out. Folds have
    different cases, as far as there are enough.
    """
    rng = np.random.default_rng(search.seed)
    held, cases = _held(data.cases, search, rng, fold), data.cases
    if own_margins:
        cases = standardized_cases(cases, *estimate_margins(cases, own_margins, held))
    return _training(data, cases, held, search.most_pairs, rng), _union(cases, held, search.margin)


def _held(cases: tuple[Cases, ...], search: Search, rng: np.random.Generator, fold: int = 0) -> list[NDArray[np.bool_]]:
    """Return the mask of the held-out nodes of each graph [case, node]."""
    counts = [len(next(iter(one.samples.values()))) for one in cases]
    held = [np.zeros((count, one.graph.num_nodes), bool) for one, count in zip(cases, counts, strict=True)]
    budget = min(search.most_nodes, sum(mask.size for mask in held) // search.share)
    everything = [(g, case) for g, count in enumerate(counts) for case in range(count)]
    if len(everything) >= search.min_cases:
        for number in np.roll(rng.permutation(len(everything)), -fold * (len(everything) // search.share)):
            g, case = everything[number]
            if budget <= 0:
                break
            held[g][case] = True
            budget -= held[g].shape[1]
        return held
    largest = max(range(len(cases)), key=lambda g: held[g].shape[1])
    neighbors = neighbors_of(cases[largest].graph)
    size = min(search.block, max(1, budget // 4))
    for number, start in enumerate(rng.permutation(cases[largest].graph.num_nodes)):
        if budget <= 0:
            break
        case = number % counts[largest]
        block = ball(neighbors, int(start), size)
        if not held[largest][case, block].any():
            held[largest][case, block] = True
            budget -= len(block)
    return held


class _Ends(NamedTuple):
    """The edges of one type of a graph: node numbers, and positions within the node types, of both ends."""

    first: NDArray
    second: NDArray
    rows: tuple[NDArray, NDArray]


def _edges(graph: Graph) -> Iterator[tuple[int, _Ends]]:
    """Yield (edge type, its edges)."""
    half = graph.num_edges // 2
    senders, receivers = np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]
    kind, within = np.asarray(graph.edge_type)[:half], _within(graph)
    for k, *_ in graph.edge_types:
        first, second = senders[kind == k], receivers[kind == k]
        yield k, _Ends(first, second, (within[first], within[second]))


def _within(graph: Graph) -> NDArray:
    """Return the position of each node among the nodes of its type [node]."""
    within = np.empty(graph.num_nodes, int)
    for v, *_ in graph.node_types:
        nodes = np.asarray(graph.nodes_of_type(v))
        within[nodes] = np.arange(len(nodes))
    return within


def _training(
    data: TrainingData,
    cases: tuple[Cases, ...],
    held: list[NDArray[np.bool_]],
    most_pairs: int,
    rng: np.random.Generator,
) -> TrainingData:
    """Return the data outside of what is held out, at most `most_pairs` of each type."""
    nodes: dict[int, list] = {}
    observed: dict[int, list] = {}
    edges: dict[int, list] = {}
    partly: dict[int, list] = {}
    starts: dict[int, list] = {}
    for one, mask in zip(cases, held, strict=True):
        free = {v: ~mask[:, np.asarray(one.graph.nodes_of_type(v))] & np.asarray(one.present[v]) for v in one.samples}
        values = {v: np.asarray(x) for v, x in one.samples.items()}
        for v, x in values.items():
            nodes.setdefault(v, []).append(x[free[v]])
            if v in data.starts:
                first = starts_by_type(one.graph)[v][None]
                starts.setdefault(v, []).append((x[free[v] & first], x[free[v] & ~first]))
            if v in one.observations:
                both = free[v] & np.asarray(one.observed[v])
                observed.setdefault(v, []).append((x[both], np.asarray(one.observations[v])[both]))
                if v in data.partly:
                    both = free[v] & np.asarray(one.used[v])
                    partly.setdefault(v, []).append((x[both], np.asarray(one.observations[v])[both]))
        ends = {k: (a, b) for k, a, b in one.graph.edge_types}
        for k, edge in _edges(one.graph):
            (a, b), (first, second) = ends[k], edge.rows
            both = free[a][:, first] & free[b][:, second]
            edges.setdefault(k, []).append((values[a][:, first][both], values[b][:, second][both]))

    def thin(count: int) -> NDArray:
        return rng.permutation(count)[:most_pairs]

    def pairs(parts: list) -> tuple[NDArray, NDArray] | None:
        first, second = (np.concatenate(column) for column in zip(*parts, strict=True))
        rows = thin(len(first))
        return (first[rows], second[rows]) if len(rows) else None

    joined = {v: np.concatenate(parts) for v, parts in nodes.items()}
    some_edges = {k: pair for k, parts in edges.items() if (pair := pairs(parts)) is not None}
    thinned = {v: x[thin(len(x))] for v, x in joined.items()}
    observations = {v: pair for v, parts in observed.items() if (pair := pairs(parts)) is not None}
    seen = {v: pair for v, parts in partly.items() if v in observations and (pair := pairs(parts)) is not None}
    entries = {v: partly_seen(data.partly[v].patterns, data.partly[v].counts, *pair, 1) for v, pair in seen.items()}
    inside = {v: [some_edges[k] for k, *pair in data.ends if k in some_edges and pair == [v, v]] for v in starts}
    both = {v: [np.concatenate(column) for column in zip(*parts, strict=True)] for v, parts in starts.items()}
    begun = {v: start_samples(first, later, inside[v]) for v, (first, later) in both.items()}
    return TrainingData(
        edges=some_edges,
        nodes=thinned,
        observations=observations,
        ends={k: (a, b) for k, a, b in data.ends if k in some_edges},
        degrees=dict(data.degrees),
        partly={v: one for v, one in entries.items() if one is not None},
        starts={v: one for v, one in begun.items() if one is not None},
    )


def _union(cases: tuple[Cases, ...], held: list[NDArray[np.bool_]], margin: int) -> HeldOut:
    """Return the disjoint union of what is held out."""
    edges, edge_type, node_type = [], [], []
    columns: dict[str, dict[int, list]] = {name: {} for name in HeldOut._fields[1:]}
    offset, problems = 0, 0
    for one, mask in zip(cases, held, strict=True):
        chosen, kind = np.flatnonzero(mask.any(axis=1)), np.asarray(one.graph.node_type)
        inside = mask[chosen]
        scored = [row if row.all() else interior(one.graph, row, margin) for row in inside]
        number = np.full(inside.shape, -1)
        number[inside] = offset + np.arange(inside.sum())
        offset += int(inside.sum())
        node_type.append(np.broadcast_to(kind, inside.shape)[inside])
        for k, (first, second, _) in _edges(one.graph):
            both = inside[:, first] & inside[:, second]
            edges.append(np.stack([number[:, first][both], number[:, second][both]], axis=1))
            edge_type.append(np.full(int(both.sum()), k))
        for v in one.samples:
            nodes = np.asarray(one.graph.nodes_of_type(v))
            here = inside[:, nodes]
            problem, place = np.nonzero(here)
            rows = chosen[problem], place
            columns["place"].setdefault(v, []).append(place.astype(np.int32))
            columns["problem"].setdefault(v, []).append((problems + problem).astype(np.int32))
            columns["truth"].setdefault(v, []).append(np.asarray(one.samples[v])[rows])
            of_type = np.stack(scored)[:, nodes][here] if len(chosen) else np.zeros(0, bool)
            columns["present"].setdefault(v, []).append(np.asarray(one.present[v])[rows] & of_type)
            if v in one.observations:
                columns["observations"].setdefault(v, []).append(np.asarray(one.observations[v])[rows])
                columns["observed"].setdefault(v, []).append(np.asarray(one.used[v])[rows])
        problems += len(chosen)
    graph = Graph.from_edges(
        np.concatenate(edges) if edges else np.zeros((0, 2), int),
        offset,
        edge_type=np.concatenate(edge_type) if edges else None,
        node_type=np.concatenate(node_type),
    )
    # Blocks may lack a node type, which then has no entries.
    there = {v for v, *_ in graph.node_types}
    joined = {n: {v: np.concatenate(parts) for v, parts in of.items() if v in there} for n, of in columns.items()}
    return HeldOut(graph, **joined)
