"""Graph coloring in NumPy: neighbors have different colors.

Nodes of one color send no messages to one another, so that they can be updated at once. Components without odd cycles
have at most two colors. Others are colored greedily in rounds of many nodes, nodes of largest degree first (Jones and
Plassmann 1993, A parallel graph coloring heuristic).
"""

import numpy as np
from numpy.typing import NDArray

from kbpjax.graphs.counting import components


def color_nodes(senders: NDArray, receivers: NDArray, num_nodes: int) -> NDArray:
    """Return a coloring of the nodes in which neighbors differ.

    Args:
        senders: first end of each edge [edge]; edges may be listed in one direction or both; no self-loops.
        receivers: second end of each edge [edge].
        num_nodes: number of nodes, >= 1.

    Returns:
        The color of each node [node], 0 .. k - 1, all of them used. Components without odd cycles have at most two
        colors, others at most one more than the largest degree. The result is deterministic.
    """
    sources = np.concatenate([senders, receivers]).astype(np.int64)
    targets = np.concatenate([receivers, senders]).astype(np.int64)
    sides, component = _sides(sources, targets, num_nodes)
    left = sides[sources] < 0
    color = _greedy(sources[left], targets[left], sides)
    # Colors of components are rotated, so that each color has about as many nodes: tables are padded to the largest.
    count = 1 + int(color.max())
    turn = np.random.default_rng(0).integers(count, size=1 + int(component.max()))
    return (color + (turn - turn[0])[component]) % count


def _sides(sources: NDArray, targets: NDArray, num_nodes: int) -> tuple[NDArray, NDArray]:
    """Return the side, 0 or 1, of each node of a bipartite component, -1 for nodes of others; and its component.

    In the bipartite double cover, every edge a - b becomes a - b' and a' - b. A node and its copy are connected there
    if and only if the component has an odd cycle.
    """
    label, copy = components(sources, targets + num_nodes, 2 * num_nodes).reshape(2, num_nodes)
    component = np.unique(np.minimum(label, copy), return_inverse=True)[1]
    return np.where(label == copy, -1, (label > copy).astype(int)), component


def _greedy(sources: NDArray, targets: NDArray, color: NDArray) -> NDArray:
    """Color the nodes marked -1, in rounds: each round colors the nodes whose neighbors of higher rank are colored.

    Args:
        sources: first end of each edge between nodes marked -1, in both directions; repeats are harmless.
        targets: second end of each.
        color: color of each node, or -1 [node].

    Returns:
        The color of each node [node].
    """
    color, num_nodes = color.copy(), len(color)
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    degree = np.bincount(sources, minlength=num_nodes)
    first = np.cumsum(degree) - degree
    tie_break = np.random.default_rng(0).permutation(num_nodes)
    rank = np.empty(num_nodes, int)
    rank[np.lexsort((tie_break, degree))] = np.arange(num_nodes)
    higher_left = np.bincount(sources[rank[targets] > rank[sources]], minlength=num_nodes)
    ready = np.flatnonzero((color < 0) & (higher_left == 0))
    while len(ready):
        # Only edges of ready nodes are visited: each edge is visited once over all rounds.
        owner = np.repeat(np.arange(len(ready)), degree[ready])
        edges = np.arange(len(owner)) + np.repeat(
            first[ready] - (np.cumsum(degree[ready]) - degree[ready]), degree[ready]
        )
        near = targets[edges]
        done = color[near] >= 0
        color[ready] = _smallest_free(owner[done], color[near[done]], len(ready))
        waiting = near[~done]
        np.subtract.at(higher_left, waiting, 1)
        ready = np.unique(waiting[higher_left[waiting] == 0])
    return color


def _smallest_free(owner: NDArray, taken: NDArray, num_owners: int) -> NDArray:
    """Return the smallest integer >= 0 that each owner has not taken."""
    owner, taken = np.unique(np.stack([owner, taken]), axis=1)
    count = np.bincount(owner, minlength=num_owners)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return np.bincount(owner[taken == within], minlength=num_owners)
