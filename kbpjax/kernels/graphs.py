"""Kernels on graphs with labels: Weisfeiler-Lehman subtrees and shortest paths.

A graph of up to n nodes is one array [n, 1 + n], which `encode_graphs` makes. Column 0 holds 1 + the label of each
node, and 0 where there is no node; the other columns hold 1 + the label of each edge, and 0 where there is no edge.
Both kernels count pairs of equal parts, so the largest graphs are most like everything: `Normalized` makes cosines.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import matmul
from kbpjax.kernels.base import Kernel, as_floats

LARGEST_LABEL = 2**24 - 2
"""So that 1 + a label is exact in 32 bit floats."""


class WeisfeilerLehman(Kernel):
    """The subtree kernel: pairs of nodes of equal color, summed over rounds of coloring (Shervashidze et al. 2011).

    Round 0 colors nodes by label; each further round by the color before and the multiset of the edges' labels and
    the neighbors' colors, as in section 3 of the paper (which has no edge labels; where all are equal, they change
    nothing). Nodes of equal color after round i have equal neighborhoods up to depth i, as trees.

    A color is a hash of 32 bits, so that nothing is looked up. Two different neighborhoods get the same color with a
    probability of about 2^-32, or 2^(v - 32) where they differ only in how often, by multiples of 2^v, equal neighbors
    occur: among 10,000 different ones two or more share a color with a probability of about 1 %. Then a kernel value
    counts some pairs too many; it is positive semidefinite all the same, and the same on every machine.

    Counts are exact up to 2^24 in 32 bit floats. A pair of graphs costs iterations n^2; colors, iterations n^2 a
    graph, are found once for each point of `gram`.

    Args:
        iterations: rounds after the first, >= 0; 0 compares only how often labels occur. Usual are 1 to 10.

    Raises:
        ValueError: iterations is not an integer >= 0.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.kernels.graphs import WeisfeilerLehman, encode_graphs
        >>> path, triangle = ([0, 0, 0], [[0, 1], [1, 2]]), ([0, 0, 0], [[0, 1], [1, 2], [2, 0]])
        >>> x = encode_graphs([path, triangle])
        >>> kbp.gram(WeisfeilerLehman(1), x, x).tolist()
        [[14.0, 12.0], [12.0, 18.0]]
    """

    iterations: int = eqx.field(static=True, converter=_checks.whole)

    def __check_init__(self) -> None:
        ok = isinstance(self.iterations, int | np.integer) and not isinstance(self.iterations, bool)
        ok = ok and self.iterations >= 0
        _checks.require(ok, "iterations", "must be an integer >= 0", repr(self.iterations), "Pass for instance 3.")

    def colors(self, x: Shaped[Array, "node column"]) -> UInt32[Array, "round node"]:
        """Return the colors of a single graph's nodes after each round; those of padding mean nothing."""
        return _colours(*_parts(x), self.iterations)

    def __call__(self, x: Shaped[Array, "node column"], y: Shaped[Array, "node column"]) -> Float[Array, ""]:
        """Return the number of pairs of nodes with equal colors, summed over the rounds."""
        equal = _equal_pairs(self.colors(x), self.colors(y), x[:, 0] > 0, y[:, 0] > 0)
        return equal.astype(as_floats(x).dtype)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError, naming the argument, unless points are encoded graphs."""
        _check_encoded(argument, points)


class ShortestPath(Kernel):
    """Pairs of shortest paths with equal length and equal labels at their ends (Borgwardt and Kriegel 2005).

    The paths of a graph are between its unordered pairs {u, v} of different nodes that are connected, each pair once,
    and its length is the number of edges. The kernel is the inner product of how often each (labels, length) occurs.
    Labels of edges and weights are not looked at. Programs differ: some also count each node as a path of length 0, or
    ordered pairs, by which paths between equal labels weigh more.

    Counts are exact up to 2^24 in 32 bit floats. A graph costs n^3 and num_labels (num_labels + 1) n / 2 numbers, once
    for each point of `gram`; a pair costs one inner product.

    Args:
        num_labels: how many labels of nodes there are, >= 1: they are 0 to num_labels - 1.

    Raises:
        ValueError: num_labels is not an integer >= 1.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.kernels.graphs import ShortestPath, encode_graphs
        >>> path, triangle = ([0, 0, 0], [[0, 1], [1, 2]]), ([0, 0, 0], [[0, 1], [1, 2], [2, 0]])
        >>> x = encode_graphs([path, triangle])
        >>> kbp.gram(ShortestPath(1), x, x).tolist()
        [[5.0, 6.0], [6.0, 9.0]]
    """

    num_labels: int = eqx.field(static=True, converter=_checks.whole)

    def __check_init__(self) -> None:
        _checks.require_count("num_labels", self.num_labels)

    def counts(self, x: Shaped[Array, "node column"]) -> Float[Array, " feature"]:
        """Return how often each (labels at the ends, length) occurs in a single graph."""
        return _path_counts(*_parts(x), self.num_labels, as_floats(x).dtype)

    def __call__(self, x: Shaped[Array, "node column"], y: Shaped[Array, "node column"]) -> Float[Array, ""]:
        """Return the number of pairs of paths with equal lengths and labels."""
        of_x = self.counts(x)
        return matmul(of_x, self.counts(y).astype(of_x.dtype))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError, naming the argument, unless points are encoded graphs with labels below num_labels."""
        _check_encoded(argument, points)
        if not _checks.is_traced(points):
            largest = int(np.max(np.asarray(points)[..., 0], initial=0)) - 1
            rule = f"must have node labels < num_labels = {self.num_labels}"
            _checks.require(largest < self.num_labels, argument, rule, largest, "Raise num_labels.")


def encode_graphs(graphs: Any, num_nodes: Any = None) -> Int[Array, "graph node column"]:
    """Make points of the kernels on graphs: undirected graphs with integers as labels, in one array.

    Args:
        graphs: graphs, each a networkx graph whose nodes and edges may have the attribute "label", by default 0, or
            arrays (node labels [node], edges [edge, 2]) or (node labels, edges, edge labels [edge]), nodes counted from
            0. Labels are integers from 0 to 2^24 - 2. Edges given twice, in either direction, are one edge.
        num_nodes: room for nodes; None: as many as the largest graph has. Points to be compared must have the same.

    Returns:
        The points [graph, num_nodes, 1 + num_nodes].

    Raises:
        ValueError: something that is not a graph, or is directed; no nodes, or more than num_nodes; labels that are not
            such numbers; edges from a node to itself or to none, or given twice with different labels.

    Examples:
        >>> from kbpjax.kernels.graphs import encode_graphs
        >>> encode_graphs([([4, 7], [[0, 1]])], num_nodes=3)[0].tolist()
        [[5, 0, 1, 0], [8, 1, 0, 0], [0, 0, 0, 0]]
    """
    fix = "Pass a list of graphs."
    _checks.require(isinstance(graphs, Iterable), "graphs", "must be several graphs", repr(graphs), fix)
    read = [_read(f"graphs[{i}]", graph) for i, graph in enumerate(graphs)]
    _checks.require(bool(read), "graphs", "must be one or more graphs", "none", fix)
    most = max(len(labels) for labels, *_ in read)
    size = most if num_nodes is None else num_nodes
    _checks.require_count("num_nodes", size)
    rule = "must be at least the nodes of the largest graph"
    _checks.require(size >= most, "num_nodes", rule, f"{size} < {most}", "Make more room.")
    encoded = np.zeros((len(read), size, 1 + size), np.int32)
    for point, (labels, edges, edge_labels) in zip(encoded, read, strict=True):
        point[: len(labels), 0] = labels + 1
        first, second = edges.T
        point[first, 1 + second] = point[second, 1 + first] = edge_labels + 1
    return jnp.asarray(encoded)


def _read(argument: str, graph: Any) -> tuple[NDArray, NDArray, NDArray]:
    """Return a graph's node labels [node], edges [edge, 2] and edge labels [edge], checked."""
    if hasattr(graph, "nodes") and hasattr(graph, "edges"):
        directed = hasattr(graph, "is_directed") and graph.is_directed()
        fix = "Pass graph.to_undirected()."
        _checks.require(not directed, argument, "must be undirected", "a directed graph", fix)
        numbers = {node: i for i, node in enumerate(graph.nodes)}
        node_labels = [label for _, label in graph.nodes(data="label", default=0)]
        joined = list(graph.edges(data="label", default=0))
        given = node_labels, [(numbers[u], numbers[v]) for u, v, _ in joined], [label for *_, label in joined]
    else:
        ok = isinstance(graph, tuple | list) and len(graph) in (2, 3)
        fix = "Pass (node labels, edges), (node labels, edges, edge labels) or a networkx graph."
        _checks.require(ok, argument, "must be a graph", f"{type(graph).__name__} {graph!r:.80}", fix)
        given = graph if len(graph) == 3 else (*graph, np.zeros(len(np.asarray(graph[1])), int))
    rule, fix = f"must have node labels that are integers from 0 to {LARGEST_LABEL}", "Give one label a node."
    labels = _whole_numbers(argument, rule, given[0], LARGEST_LABEL)
    _checks.require(labels.ndim == 1 and len(labels) > 0, argument, "must have a node", f"shape {labels.shape}", fix)
    rule = f"must have edges [edge, 2] between nodes 0 to {len(labels) - 1}"
    edges = _whole_numbers(argument, rule, given[1], len(labels) - 1)
    edges = edges if edges.size else edges.reshape(0, 2)
    ok = edges.ndim == 2 and edges.shape[1] == 2
    _checks.require(ok, argument, rule, f"shape {edges.shape}", "Pass pairs of nodes.")
    rule = f"must have edge labels that are integers from 0 to {LARGEST_LABEL}, one an edge"
    edge_labels = _whole_numbers(argument, rule, given[2], LARGEST_LABEL)
    ok = edge_labels.shape == (len(edges),)
    _checks.require(ok, argument, rule, f"shape {edge_labels.shape}", "Give one label an edge, or leave them out.")
    _check_edges(argument, edges, edge_labels)
    return labels, edges, edge_labels


def _whole_numbers(argument: str, rule: str, values: Any, largest: int) -> NDArray:
    """Return integers from 0 to the largest, as integers."""
    array = np.asarray(values)
    number = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    fix = "Number what there is from 0."
    _checks.require(number, argument, rule, f"dtype {array.dtype}", fix)
    wrong = array[~((array >= 0) & (array <= largest) & (array == np.round(array)))]
    _checks.require(wrong.size == 0, argument, rule, wrong.ravel()[:5].tolist(), fix)
    return array.astype(np.int64)


def _check_edges(argument: str, edges: NDArray, edge_labels: NDArray) -> None:
    """Refuse edges from a node to itself, and edges with two labels."""
    loops = edges[edges[:, 0] == edges[:, 1]]
    rule = "must have no edges from a node to itself"
    _checks.require(len(loops) == 0, argument, rule, loops[:5].tolist(), "Keep such a mark in the node's label.")
    pairs = np.sort(edges, axis=1)
    with_labels = np.unique(np.column_stack([pairs, edge_labels]), axis=0)
    one_each = len(with_labels) == len(np.unique(pairs, axis=0))
    rule, fix = "must have one label an edge", "Drop edges, or number the sets of labels."
    _checks.require(one_each, argument, rule, "an edge given twice, with different labels", fix)


def _check_encoded(argument: str, points: Shaped[Array, "sample *dim"]) -> None:
    """Raise ValueError unless points are graphs as `encode_graphs` makes them; values of tracers are not looked at."""
    fix = "Use encode_graphs."
    shaped = points.ndim == 3 and points.shape[2] == points.shape[1] + 1
    _checks.require(shaped, argument, "must be graphs [graph, node, 1 + node]", f"shape {points.shape}", fix)
    if _checks.is_traced(points):
        return
    known = np.asarray(points, np.float64)
    nodes, edges = known[..., 0] > 0, known[..., 1:]
    may_join = nodes[:, :, None] & nodes[:, None] & ~np.eye(nodes.shape[1], dtype=bool)[None]
    whole = (known == np.round(known)) & (known >= 0) & (known <= LARGEST_LABEL + 1)
    for rule, holds in (
        (f"must hold integers from 0 to {LARGEST_LABEL + 1}", whole),
        ("must have padding (0 in column 0) after all nodes", nodes[:, :-1] | ~nodes[:, 1:]),
        ("must have the same edges in both directions", edges == edges.swapaxes(1, 2)),
        ("must have no edges of padding, nor from a node to itself", (edges == 0) | may_join),
    ):
        bad = np.flatnonzero(~holds.all(axis=tuple(range(1, holds.ndim))))
        _checks.require(bad.size == 0, argument, rule, f"others in graphs {bad[:5].tolist()}", fix)


def _parts(x: Shaped[Array, "node column"]) -> tuple[Int[Array, " node"], Int[Array, "node node"]]:
    """Return 1 + labels of nodes and of edges of a single graph."""
    rule, fix = "must be single graphs [node, 1 + node]", "Use encode_graphs."
    _checks.require(x.ndim == 2 and x.shape[1] == x.shape[0] + 1, "x, y", rule, f"shape {x.shape}", fix)
    whole = x.astype(jnp.int32)
    return whole[:, 0], whole[:, 1:]


@partial(jax.jit, static_argnums=2)
def _colours(
    labels: Int[Array, " node"], edges: Int[Array, "node node"], iterations: int
) -> UInt32[Array, "round node"]:
    """Color nodes, round by round."""
    of_edges = edges.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)

    def refine(color: Array, _: None) -> tuple[Array, Array]:
        of_neighbours = jnp.where(edges > 0, _mix(color[None] + of_edges), jnp.uint32(0))
        # A sum, as of a multiset, does not depend on the order of the neighbors.
        refined = _mix(color * jnp.uint32(0x2C1B3C6D) + jnp.sum(of_neighbours, axis=1, dtype=jnp.uint32))
        return refined, refined

    first = _mix(labels.astype(jnp.uint32))
    return jnp.concatenate([first[None], jax.lax.scan(refine, first, length=iterations)[1]])


@jax.jit  # in one loop: pairs of nodes of all pairs of graphs would not fit in memory
def _equal_pairs(
    left: UInt32[Array, "round node"],
    right: UInt32[Array, "round node"],
    left_there: Bool[Array, " node"],
    right_there: Bool[Array, " node"],
) -> Int[Array, ""]:
    """Count pairs of nodes of equal color, over all rounds."""
    equal = (left[:, :, None] == right[:, None]) & (left_there[:, None] & right_there[None])[None]
    return jnp.sum(equal, dtype=jnp.int32)


@partial(jax.jit, static_argnums=(2, 3))
def _path_counts(
    labels: Int[Array, " node"], edges: Int[Array, "node node"], num_labels: int, dtype: Any
) -> Float[Array, " feature"]:
    """Count shortest paths by the labels at their ends and by length."""
    size, ends = len(labels), labels - 1
    low, high = jnp.minimum(ends[:, None], ends[None]), jnp.maximum(ends[:, None], ends[None])
    lengths = _path_lengths(edges)
    found = (jnp.triu(lengths, 1) > 0) & (lengths < size) & (high < num_labels)
    table = jnp.zeros((num_labels * (num_labels + 1) // 2, size), dtype)
    return table.at[high * (high + 1) // 2 + low, lengths].add(found.astype(dtype), mode="drop").ravel()


def _path_lengths(edges: Int[Array, "node node"]) -> Int[Array, "node node"]:
    """Return lengths of shortest paths between different nodes, at least the number of nodes where there is none."""
    size = jnp.int32(len(edges))

    def through(node: Array, lengths: Array) -> Array:
        """Allow paths through one more node (Floyd 1962, Warshall 1962)."""
        to_node = lengths[node]
        return jnp.minimum(lengths, to_node[:, None] + to_node[None])

    return jax.lax.fori_loop(0, len(edges), through, jnp.where(edges > 0, jnp.int32(1), size))


def _mix(x: UInt32[Array, "*dim"]) -> UInt32[Array, "*dim"]:
    """Scramble 32 bits, one to one: the finalizer of MurmurHash3 (Appleby)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
