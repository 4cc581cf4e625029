"""Kernels on labelled graphs: Weisfeiler-Lehman subtrees and shortest paths.

`encode_graphs` encodes a graph of up to n nodes as an array [n, 1 + n]. Column 0 holds 1 + the label of each node, or 0
for padding. The other columns hold 1 + the label of each edge, or 0 for no edge. Both kernels count pairs of equal
substructures, so their values grow with the size of the graphs: use `Normalized` for cosines.
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
from kbpjax._public import public
from kbpjax.kernels.base import Kernel, as_floats

LARGEST_LABEL = 2**24 - 2
"""Largest label for which label + 1 is exact in 32-bit floats."""


class WeisfeilerLehman(Kernel):
    """The Weisfeiler-Lehman subtree kernel: the number of node pairs with equal color (Shervashidze et al. 2011).

    The count is summed over rounds of color refinement. Round 0 colors nodes by label. A later round colors a node by
    its last color and the multiset of labels of its edges and colors of its neighbors, as in section 3 of the paper
    (the paper has no edge labels; equal edge labels give the same kernel). Nodes with equal colors after round i have
    equal subtrees of depth i.

    A color is a 32-bit hash instead of an entry of a dictionary. Two different neighborhoods collide with probability
    about 2^-32, or 2^(v - 32) if only multiplicities of equal neighbors differ, by multiples of 2^v. Among 10,000
    different neighborhoods there is a collision with probability about 1 %. A collision increases some kernel values;
    the kernel stays positive semidefinite and is identical on every machine.

    Counts are exact up to 2^24 in 32-bit floats. A pair of graphs costs O(iterations n^2). `gram` computes the colors
    once per graph, in O(iterations n^2).

    Args:
        iterations: number of refinement rounds after round 0, >= 0, usually 1 to 10; 0 compares counts of labels.

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
        """Return the colors of the nodes of a single graph after each round; colors of padding are arbitrary."""
        return _colors(*_parts(x), self.iterations)

    def __call__(self, x: Shaped[Array, "node column"], y: Shaped[Array, "node column"]) -> Float[Array, ""]:
        """Return the number of node pairs with equal colors, summed over rounds."""
        equal = _equal_pairs(self.colors(x), self.colors(y), x[:, 0] > 0, y[:, 0] > 0)
        return equal.astype(as_floats(x).dtype)

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError, naming the argument, unless points are encoded graphs."""
        _check_encoded(argument, points)


class ShortestPath(Kernel):
    """The shortest-path kernel: pairs of paths with equal length and end labels (Borgwardt and Kriegel 2005).

    The paths of a graph join its unordered pairs {u, v} of different connected nodes, and the length of a path is its
    number of edges. The kernel is the inner product of the counts of all (end labels, length). Edge labels and weights
    are ignored. Other programs may also count each node as a path of length 0, or count ordered pairs, which increases
    the weight of paths between equal labels.

    Counts are exact up to 2^24 in 32-bit floats. `gram` computes the counts once per graph, in O(n^3) time and
    num_labels (num_labels + 1) n / 2 numbers of memory. A pair of graphs costs one inner product.

    Args:
        num_labels: number of node labels, >= 1; labels are 0 to num_labels - 1.

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
        """Return the counts of all (end labels, length) in a single graph."""
        return _path_counts(*_parts(x), self.num_labels, as_floats(x).dtype)

    def __call__(self, x: Shaped[Array, "node column"], y: Shaped[Array, "node column"]) -> Float[Array, ""]:
        """Return the number of pairs of paths with equal lengths and end labels."""
        of_x = self.counts(x)
        return matmul(of_x, self.counts(y).astype(of_x.dtype))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError, naming the argument, unless points are encoded graphs with labels below num_labels."""
        _check_encoded(argument, points)
        if not _checks.is_traced(points):
            largest = int(np.max(np.asarray(points)[..., 0], initial=0)) - 1
            rule = f"must have node labels < num_labels = {self.num_labels}"
            _checks.require(largest < self.num_labels, argument, rule, largest, "Increase num_labels.")


@public
def encode_graphs(graphs: Any, num_nodes: Any = None) -> Int[Array, "graph node column"]:
    """Return undirected graphs with integer labels as one array of points for kernels on graphs.

    Args:
        graphs: list of graphs. A graph is a networkx graph with optional attributes "label" of nodes and edges (default
            0), or a tuple of arrays (node labels [node], edges [edge, 2]) or (node labels, edges, edge labels [edge]),
            with nodes numbered from 0. Labels are integers from 0 to 2^24 - 2. Repeated edges count once, in either
            direction.
        num_nodes: number of nodes after padding; None: that of the largest graph. Points of one kernel must agree.

    Returns:
        The points [graph, num_nodes, 1 + num_nodes].

    Raises:
        ValueError: an entry is not a graph or is directed; a graph has no nodes, or more than num_nodes; a label is out
            of range; an edge is a self-loop, has an unknown node, or has two different labels.

    Examples:
        >>> from kbpjax.kernels.graphs import encode_graphs
        >>> encode_graphs([([4, 7], [[0, 1]])], num_nodes=3)[0].tolist()
        [[5, 0, 1, 0], [8, 1, 0, 0], [0, 0, 0, 0]]
    """
    fix = "Pass a list of graphs."
    _checks.require(isinstance(graphs, Iterable), "graphs", "must be a list of graphs", repr(graphs), fix)
    read = [_read(f"graphs[{i}]", graph) for i, graph in enumerate(graphs)]
    _checks.require(bool(read), "graphs", "must hold at least one graph", "none", fix)
    largest = max(len(labels) for labels, *_ in read)
    size = largest if num_nodes is None else num_nodes
    _checks.require_count("num_nodes", size)
    rule = "must be at least the number of nodes of the largest graph"
    _checks.require(size >= largest, "num_nodes", rule, f"{size} < {largest}", "Increase num_nodes.")
    encoded = np.zeros((len(read), size, 1 + size), np.int32)
    for point, (labels, edges, edge_labels) in zip(encoded, read, strict=True):
        point[: len(labels), 0] = labels + 1
        first, second = edges.T
        point[first, 1 + second] = point[second, 1 + first] = edge_labels + 1
    return _checks.to_jax(encoded)


def _read(argument: str, graph: Any) -> tuple[NDArray, NDArray, NDArray]:
    """Return the checked node labels [node], edges [edge, 2] and edge labels [edge] of a graph."""
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
        given = graph if len(graph) == 3 else (*graph, None)
    rule, fix = f"must have node labels that are integers from 0 to {LARGEST_LABEL}", "Pass one label per node."
    labels = _integers(argument, rule, given[0], LARGEST_LABEL)
    ok = labels.ndim == 1 and len(labels) > 0
    _checks.require(ok, argument, "must have at least one node", f"shape {labels.shape}", fix)
    rule = f"must have edges [edge, 2] between nodes 0 to {len(labels) - 1}"
    edges = _integers(argument, rule, given[1], len(labels) - 1)
    edges = edges if edges.size else edges.reshape(0, 2)
    ok = edges.ndim == 2 and edges.shape[1] == 2
    _checks.require(ok, argument, rule, f"shape {edges.shape}", "Pass pairs of nodes.")
    rule = f"must have edge labels that are integers from 0 to {LARGEST_LABEL}, one per edge"
    edge_labels = np.zeros(len(edges), int) if given[2] is None else _integers(argument, rule, given[2], LARGEST_LABEL)
    ok = edge_labels.shape == (len(edges),)
    _checks.require(ok, argument, rule, f"shape {edge_labels.shape}", "Pass one label per edge, or no edge labels.")
    _check_edges(argument, edges, edge_labels)
    return labels, edges, edge_labels


def _integers(argument: str, rule: str, values: Any, largest: int) -> NDArray:
    """Return values as integers; raise ValueError unless they are integers from 0 to `largest`."""
    array = np.asarray(_checks.as_numpy(argument, values))
    number = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    fix = "Number nodes and labels from 0."
    _checks.require(number, argument, rule, f"dtype {array.dtype}", fix)
    wrong = array[~((array >= 0) & (array <= largest) & (array == np.round(array)))]
    _checks.require(wrong.size == 0, argument, rule, wrong.ravel()[:5].tolist(), fix)
    return array.astype(np.int64)


def _check_edges(argument: str, edges: NDArray, edge_labels: NDArray) -> None:
    """Raise ValueError if an edge is a self-loop or has two labels."""
    loops = edges[edges[:, 0] == edges[:, 1]]
    rule = "must have no edges from a node to itself"
    _checks.require(len(loops) == 0, argument, rule, loops[:5].tolist(), "Encode self-loops in the node labels.")
    pairs = np.sort(edges, axis=1)
    with_labels = np.unique(np.column_stack([pairs, edge_labels]), axis=0)
    one_each = len(with_labels) == len(np.unique(pairs, axis=0))
    rule, fix = "must have one label per edge", "Drop repeated edges, or use one label per set of labels."
    _checks.require(one_each, argument, rule, "a repeated edge with different labels", fix)


def _check_encoded(argument: str, points: Shaped[Array, "sample *dim"]) -> None:
    """Raise ValueError unless points are encoded graphs; values of tracers are not checked."""
    fix = "Use encode_graphs."
    shaped = points.ndim == 3 and points.shape[2] == points.shape[1] + 1
    _checks.require(shaped, argument, "must be graphs [graph, node, 1 + node]", f"shape {points.shape}", fix)
    if _checks.is_traced(points):
        return
    values = np.asarray(points, np.float64)
    nodes, edges = values[..., 0] > 0, values[..., 1:]
    allowed = nodes[:, :, None] & nodes[:, None] & ~np.eye(nodes.shape[1], dtype=bool)[None]
    integers = (values == np.round(values)) & (values >= 0) & (values <= LARGEST_LABEL + 1)
    for rule, holds in (
        (f"must hold integers from 0 to {LARGEST_LABEL + 1}", integers),
        ("must have padding (0 in column 0) after all nodes", nodes[:, :-1] | ~nodes[:, 1:]),
        ("must have the same edges in both directions", edges == edges.swapaxes(1, 2)),
        ("must have no edges of padding, nor from a node to itself", (edges == 0) | allowed),
    ):
        bad = np.flatnonzero(~holds.all(axis=tuple(range(1, holds.ndim))))
        _checks.require(bad.size == 0, argument, rule, f"violations in graphs {bad[:5].tolist()}", fix)


def _parts(x: Shaped[Array, "node column"]) -> tuple[Int[Array, " node"], Int[Array, "node node"]]:
    """Return 1 + labels of nodes and of edges of a single graph."""
    rule, fix = "must be single graphs [node, 1 + node]", "Use encode_graphs."
    _checks.require(x.ndim == 2 and x.shape[1] == x.shape[0] + 1, "x, y", rule, f"shape {x.shape}", fix)
    integers = x.astype(jnp.int32)
    return integers[:, 0], integers[:, 1:]


@partial(jax.jit, static_argnums=2)
def _colors(
    labels: Int[Array, " node"], edges: Int[Array, "node node"], iterations: int
) -> UInt32[Array, "round node"]:
    """Return the colors of nodes after each round."""
    of_edges = edges.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)

    def refine(color: Array, _: None) -> tuple[Array, Array]:
        of_neighbors = jnp.where(edges > 0, _mix(color[None] + of_edges), jnp.uint32(0))
        # The sum hashes a multiset: it does not depend on the order of neighbors.
        refined = _mix(color * jnp.uint32(0x2C1B3C6D) + jnp.sum(of_neighbors, axis=1, dtype=jnp.uint32))
        return refined, refined

    first = _mix(labels.astype(jnp.uint32))
    return jnp.concatenate([first[None], jax.lax.scan(refine, first, length=iterations)[1]])


@jax.jit  # fused into one loop: node pairs of all graph pairs would not fit in memory
def _equal_pairs(
    left: UInt32[Array, "round node"],
    right: UInt32[Array, "round node"],
    left_valid: Bool[Array, " node"],
    right_valid: Bool[Array, " node"],
) -> Int[Array, ""]:
    """Return the number of node pairs with equal color over all rounds."""
    equal = (left[:, :, None] == right[:, None]) & (left_valid[:, None] & right_valid[None])[None]
    return jnp.sum(equal, dtype=jnp.int32)


@partial(jax.jit, static_argnums=(2, 3))
def _path_counts(
    labels: Int[Array, " node"], edges: Int[Array, "node node"], num_labels: int, dtype: Any
) -> Float[Array, " feature"]:
    """Return the counts of shortest paths by end labels and length."""
    size, ends = len(labels), labels - 1
    low, high = jnp.minimum(ends[:, None], ends[None]), jnp.maximum(ends[:, None], ends[None])
    lengths = _path_lengths(edges)
    found = (jnp.triu(lengths, 1) > 0) & (lengths < size) & (high < num_labels)
    table = jnp.zeros((num_labels * (num_labels + 1) // 2, size), dtype)
    return table.at[high * (high + 1) // 2 + low, lengths].add(found.astype(dtype), mode="drop").ravel()


def _path_lengths(edges: Int[Array, "node node"]) -> Int[Array, "node node"]:
    """Return lengths of shortest paths between different nodes; unconnected nodes have at least the node count."""
    size = jnp.int32(len(edges))

    def through(node: Array, lengths: Array) -> Array:
        """Allow paths through one more node (Floyd 1962, Warshall 1962)."""
        to_node = lengths[node]
        return jnp.minimum(lengths, to_node[:, None] + to_node[None])

    return jax.lax.fori_loop(0, len(edges), through, jnp.where(edges > 0, jnp.int32(1), size))


def _mix(x: UInt32[Array, "*dim"]) -> UInt32[Array, "*dim"]:
    """Return a bijective 32-bit hash: the finalizer of MurmurHash3 (Appleby)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
