"""A part of a large graph, on which `tune` compares hyperparameters in a fraction of the time.

A dozen numbers need far fewer than ten thousand nodes. The part consists of a few connected pieces at random places.
Nodes near the edge of a piece lack some of their neighbors' messages: they pass messages, but are not scored.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from kbpjax.graphs.graph import Graph

PIECES = 3
"""Number of connected pieces; of a graph with more node types, as many."""

MARGIN = 4
"""Distance from the rest of the graph, in edges, up to which a node is not scored."""

LEAST = 0.25
"""Smallest share of scored nodes; where neighborhoods grow fast, the margin is smaller."""


class Part(NamedTuple):
    """Some nodes of a graph.

    Attributes:
        graph: the graph of these nodes.
        nodes: their numbers [node].
        scored: which of them are scored [node].
        by_type: {node type: (positions among all nodes of the type, which of them are scored)}.
    """

    graph: Graph
    nodes: NDArray[np.int32]
    scored: NDArray[np.bool_]
    by_type: dict[int, tuple[NDArray[np.int32], NDArray[np.bool_]]]

    def cut(self, cases: Any) -> Any:
        """Return values [case, node, ...] (or by node type) of the nodes of the part."""
        if isinstance(cases, Mapping):
            return {v: values[:, self.by_type[v][0]] for v, values in cases.items() if v in self.by_type}
        return cases[:, self.nodes]

    def truth(self, cases: Any) -> Any:
        """Return `cut`, NaN where a node is not scored; values that are not floats are all scored."""
        cut = self.cut(cases)
        if isinstance(cut, Mapping):
            return {v: _masked(values, self.by_type[v][1]) for v, values in cut.items()}
        return _masked(cut, self.scored)


def _masked(values: Any, scored: NDArray[np.bool_]) -> Any:
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values
    return jnp.where(scored.reshape(1, -1, *(1,) * (values.ndim - 2)), values, jnp.nan)


def part_of(graph: Graph, size: int, seed: int = 0) -> Part:
    """Return a part of about `size` nodes, the same for the same seed."""
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    return _part(graph, neighbors_of(graph), size, order, PIECES)


def parts_of(graph: Graph, size: int, most: int, seed: int = 0) -> list[Part]:
    """Return parts of about `size` nodes that score all nodes, or as many as `most` parts do, the same for a seed."""
    order, neighbors = np.random.default_rng(seed).permutation(graph.num_nodes), neighbors_of(graph)
    scored, found = np.zeros(graph.num_nodes, bool), []
    while len(found) < most and not scored.all():
        part = _part(graph, neighbors, size, np.concatenate([order[~scored[order]], order[scored[order]]]), 1)
        scored[part.nodes[part.scored]] = True
        found.append(part)
    return found


def _part(graph: Graph, neighbors: list[NDArray], size: int, order: NDArray, pieces: int) -> Part:
    """Return a part of connected pieces, around the first nodes of an order."""
    kind = np.asarray(graph.node_type)
    of_types = order[np.unique(kind[order], return_index=True)[1]]  # every type has a piece
    pieces = max(pieces, len(of_types))
    chosen = np.zeros(graph.num_nodes, bool)
    for start in [*of_types.tolist(), *order.tolist()]:
        left = size - int(chosen.sum())
        if left <= 0:
            break
        if not chosen[start]:
            chosen[ball(neighbors, start, min(left, -(-size // pieces)))] = True
    nodes = np.flatnonzero(chosen).astype(np.int32)
    scored = interior(graph, chosen)[nodes]
    by_type = {}
    for v, *_ in graph.node_types:
        of_type = kind[nodes] == v
        by_type[v] = np.searchsorted(np.flatnonzero(kind == v), nodes[of_type]).astype(np.int32), scored[of_type]
    return Part(graph.subgraph(nodes), nodes, scored, by_type)


def interior(graph: Graph, chosen: NDArray[np.bool_], margin: int = MARGIN) -> NDArray[np.bool_]:
    """Return which chosen nodes are more than `margin` edges from the others, or fewer where that leaves too few."""
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    near, far = ~chosen, chosen
    for _ in range(margin):
        wider = near.copy()
        wider[receivers[near[senders]]] = True
        if (~wider).sum() < LEAST * chosen.sum():
            break
        near, far = wider, ~wider
    return far


def neighbors_of(graph: Graph) -> list[NDArray]:
    """Return the neighbors of each node."""
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    order = np.argsort(receivers, kind="stable")
    return np.split(senders[order], np.searchsorted(receivers[order], np.arange(1, graph.num_nodes)))


def ball(neighbors: list[NDArray], start: int, size: int) -> list[int]:
    """Return the nodes nearest to a node, in the number of edges."""
    queue, seen = [start], {start}
    for node in queue:
        for other in neighbors[node].tolist():
            if len(queue) < size and other not in seen:
                seen.add(other)
                queue.append(other)
    return queue
