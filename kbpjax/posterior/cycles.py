r"""Joint draws and joint modes on graphs with cycles: random spanning trees, then sweeps of Gibbs sampling.

On spanning trees, in a share of which each edge is, nodes are drawn as on a forest: from the mixture of tree
distributions in which tree-reweighted beliefs are exact (Wainwright et al. 2003). All margins of nodes are the beliefs,
and dependence along edges outside the tree is too weak. Sweeps, one color of nodes after another, move the draws
towards the model whose potentials the messages have used,

$$p(x) \propto \Big(\prod_s p(x_s)\, \mathrm{local}_s(x_s)
\prod_{st} r_{st}(x_s, x_t)^{\rho_{st}}\Big)^{1/T}.$$
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kbpjax import _checks
from kbpjax._misc import vary_like
from kbpjax.graphs.coloring import color_nodes
from kbpjax.graphs.forest import Forest
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.beliefs import log_or_zero, log_values
from kbpjax.posterior.joint import (
    CELLS,
    Parts,
    Rows,
    best_of_forest,
    draw_forest,
    invert,
    padded,
    parts_of,
    rows_of_forest,
)
from kbpjax.posterior.posterior import Posterior

IMPOSSIBLE = -1e4
"""Logarithm of a zero of the tables: where all states break constraints, those that break the fewest are drawn."""

NUM_TREES = 8
"""Largest number of spanning trees of the draws of one call."""


def rows_of_trees(graph: Graph, num_trees: int, seed: int) -> Rows:
    """Return the edges of random spanning trees from the leaves to the roots, as `Rows` with a leading axis for trees.

    Each is a minimum spanning tree, with the number of earlier trees that have an edge, and a random number, as its
    weight: all edges are in about as many trees as their cycles allow.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    half = graph.num_edges // 2
    pairs = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)[:half]
    edge_type, node_type = np.asarray(graph.edge_type)[:half], np.asarray(graph.node_type)
    rng, count, found = np.random.default_rng(seed), np.zeros(half), []
    number_of = {pair: number for number, pair in enumerate(map(tuple, pairs.tolist()))}
    for _ in range(num_trees):
        weights = 1 + count + rng.random(half)
        table = coo_array((weights, tuple(pairs.T)), shape=(graph.num_nodes,) * 2).tocsr()
        tree = minimum_spanning_tree(table).tocoo()
        own = np.sort([number_of[pair] for pair in zip(tree.row.tolist(), tree.col.tolist(), strict=True)])
        count[own] += 1
        forest = Forest.build(pairs[own], edge_type[own], node_type)
        assert forest is not None
        found.append(_rows_of_tree(forest, own, half, graph.num_nodes))
    length = max(len(rows.direction) for rows in found)
    length += -length % max(8, length // 8)  # few sizes, so that other keys seldom compile anew
    width = max(rows.child.shape[1] for rows in found)
    width += -width % max(8, width // 4)
    filling = (0, 0, graph.num_nodes, graph.num_nodes, graph.num_edges)

    def filled(array: np.ndarray, fill: int) -> np.ndarray:
        sizes = (length, width)[: array.ndim]
        return np.pad(array, [(0, to - of) for of, to in zip(array.shape, sizes)], constant_values=fill)

    stacked = zip(*([filled(np.asarray(x), fill) for x, fill in zip(rows, filling, strict=True)] for rows in found))
    return Rows(*(_checks.to_jax(np.stack(arrays), np.int32) for arrays in stacked))


def _rows_of_tree(forest: Forest, own: np.ndarray, half: int, num_nodes: int) -> Rows:
    """Return the rows of a tree in NumPy; `own` are the numbers of its edges in the graph."""
    size, message_place = forest.sender.size, np.asarray(forest.message_place)
    at = np.full(2 * size, 2 * half)
    at[message_place] = np.concatenate([own, own + half])
    edge = at[:size].reshape(forest.sender.shape)
    parent = np.where(edge < 2 * half, np.asarray(forest.receiver), num_nodes)
    return Rows(*map(np.asarray, (forest.direction, forest.receiver_type, forest.sender, parent, edge)))  # type: ignore


class Neighbors(NamedTuple):
    """The neighbors of the nodes of each color.

    Attributes:
        nodes: the nodes of each color [color, place]; the number of nodes for padding.
        senders: their neighbors [color, place, slot]; the number of nodes for padding.
        edges: the directed edges from these [color, place, slot]; the number of edges for padding.
    """

    nodes: Int[Array, "color place"]
    senders: Int[Array, "color place slot"]
    edges: Int[Array, "color place slot"]


def neighbors_of(graph: Graph) -> Neighbors:
    """Return the neighbors of the nodes of each color of a known graph."""
    half, count = graph.num_edges // 2, graph.num_nodes
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    color = color_nodes(senders[:half], receivers[:half], count)
    order = np.argsort(receivers, kind="stable")
    degree = np.bincount(receivers, minlength=count)
    slot = np.arange(len(order)) - np.repeat(np.cumsum(degree) - degree, degree)
    incoming = np.full((count + 1, max(int(degree.max(initial=0)), 1)), graph.num_edges)
    incoming[receivers[order], slot] = order
    nodes = np.full((int(color.max()) + 1, int(np.bincount(color).max())), count)
    for c, own in enumerate(nodes):
        mine = np.flatnonzero(color == c)
        own[: len(mine)] = mine
    edges = incoming[nodes]
    found = nodes, np.append(senders, count)[edges], edges
    return Neighbors(*(_checks.to_jax(array, np.int32) for array in found))


def log_potentials(parts: Parts, graph: Graph) -> Array:
    """Return the logarithms of the potentials of nodes [node + 1, point]: beliefs without messages."""
    receiver_type = graph.node_type[graph.receivers]
    owner = jnp.zeros(1, jnp.int32)

    def add(total: Array, edge: tuple[Array, ...]) -> tuple[Array, None]:
        message, receiver, kind, power = edge
        values = log_values(message[None], owner, parts.features[kind][None], parts.floors[kind])[0]
        return total.at[receiver].add(power * values / parts.temperature), None

    edges = parts.messages[:-1], graph.receivers, receiver_type, parts.exponents
    zeros = vary_like(jnp.zeros_like(parts.weights), (parts, graph))
    total, _ = jax.lax.scan(add, zeros, edges)
    own = log_or_zero(parts.weights) - parts.logs
    return padded(jnp.where(own == -jnp.inf, own, own - total))


def sweep(
    parts: Parts,
    graph: Graph,
    neighbors: Neighbors,
    places: Int[Array, "node draw"],
    key: PRNGKeyArray,
    num_sweeps: int,
    best: bool = False,
) -> Int[Array, "node draw"]:
    """Return draws after sweeps of Gibbs sampling; with `best`, of the most probable candidate given the neighbors."""
    size, count = parts.weights.shape[1], graph.num_nodes
    local = log_potentials(parts, graph)
    local = local if best else local + padded(parts.logs)
    both = log_or_zero(jnp.stack([parts.tables, jnp.swapaxes(parts.tables, 1, 2)], axis=1))  # [kind, direction, ...]
    entries = jnp.maximum(both, IMPOSSIBLE).reshape(-1, size)
    half = graph.num_edges // 2
    reverse = (jnp.arange(graph.num_edges, dtype=jnp.int32) >= half).astype(jnp.int32)
    base = (2 * parts.kinds[graph.edge_type] + reverse) * size
    base, powers = (jnp.append(one, jnp.zeros_like(one[:1])) for one in (base, parts.exponents))
    num = places.shape[1]

    def of_node(own_key: PRNGKeyArray, one: tuple[Array, ...]) -> Array:
        number, own, at, edges = one

        def add(total: Array, slot: tuple[Array, Array]) -> tuple[Array, None]:
            edge, at = slot
            return total + powers[edge] * entries[base[edge] + at], None

        start = vary_like(jnp.broadcast_to(own[None], (num, size)), (own, at, edges, entries))
        total, _ = jax.lax.scan(add, start, (edges, at))
        if best:
            return jnp.argmax(total, axis=1).astype(jnp.int32)
        sums = jnp.cumsum(jax.nn.softmax(total, axis=1), axis=1)
        uniform = jax.random.uniform(jax.random.fold_in(own_key, number), (num,), sums.dtype)
        return invert(sums, jnp.arange(num, dtype=jnp.int32), uniform)

    def once(places: Array, number: Array) -> tuple[Array, None]:
        sweep_key = jax.random.fold_in(key, number)

        def of_color(places: Array, own: Neighbors) -> tuple[Array, None]:
            cells = own.nodes, local[own.nodes], places[own.senders], own.edges
            batch = max(1, min(len(own.nodes), CELLS // (num * size)))
            drawn = jax.lax.map(partial(of_node, sweep_key), cells, batch_size=batch)
            return places.at[own.nodes].set(drawn), None

        return jax.lax.scan(of_color, places, neighbors)

    start = vary_like(jnp.concatenate([places, jnp.zeros_like(places[:1])]), (parts, graph, neighbors, key))
    return jax.lax.scan(once, start, jnp.arange(num_sweeps, dtype=jnp.int32))[0][:count]


def log_probability(parts: Parts, graph: Graph, places: Int[Array, "node draw"]) -> Float[Array, " draw"]:
    """Return the unnormalized log density of joint candidates, of the model whose potentials the messages used."""
    half = graph.num_edges // 2
    nodes = jnp.take_along_axis(log_potentials(parts, graph)[:-1], places, axis=1)
    kinds = parts.kinds[graph.edge_type[:half]][:, None]
    entries = parts.tables[kinds, places[graph.senders[:half]], places[graph.receivers[:half]]]
    logs = jnp.maximum(log_or_zero(entries), IMPOSSIBLE)
    return jnp.sum(nodes, axis=0) + jnp.sum(parts.exponents[:half, None] * logs, axis=0)


class Order(NamedTuple):
    """How the nodes of a graph are drawn: the rows of a forest, or of some trees, and neighbors for sweeps."""

    rows: Rows | None
    neighbors: Neighbors | None


def order_of(graph: Graph, num_trees: int, seed: int) -> Order:
    """Return how the nodes of a graph are drawn; one with cycles must be known."""
    if graph.forest is not None or graph.num_edges == 0:
        return Order(rows_of_forest(graph.forest, graph), None)
    fix = "Leave the posterior out of the arguments of jax.jit, or use joint=False."
    _checks.require(not _checks.is_traced(graph), "posterior", "must have a known graph with cycles", "a tracer", fix)
    with jax.ensure_compile_time_eval():
        return Order(rows_of_trees(graph, num_trees, seed), neighbors_of(graph))


def draw(
    posterior: Posterior, order: Order, key: PRNGKeyArray, num: int, num_sweeps: int
) -> tuple[Int[Array, "node draw"], Float[Array, " draw"]]:
    """Return the places of joint draws among the candidates, and the logarithms of their probabilities.

    On a graph with cycles, these are up to a constant, of the model whose potentials the messages used.
    """
    parts, graph = parts_of(posterior), posterior.graph
    if order.neighbors is None:
        return draw_forest(parts, order.rows, key, num)
    assert order.rows is not None
    trees = len(order.rows.direction)
    first, second = jax.random.split(key)
    own, each = (order.rows, jax.random.split(first, trees)), -(-num // trees)
    places, _ = jax.lax.map(lambda one: draw_forest(parts, one[0], one[1], each), own)
    places = jnp.moveaxis(places, 0, -1).reshape(graph.num_nodes, -1)[:, :num]
    if num_sweeps:
        places = sweep(parts, graph, order.neighbors, places, second, num_sweeps)
    return places, log_probability(parts, graph, places)


def best(posterior: Posterior, order: Order, num_sweeps: int) -> Int[Array, " node"]:
    """Return the places of the most probable joint candidates; on graphs with cycles, the best that was found.

    There, the modes of some trees, and those of all nodes by themselves, are improved node by node.
    """
    parts, graph = parts_of(posterior), posterior.graph
    if order.neighbors is None:
        return best_of_forest(parts, order.rows)
    starts = jax.lax.map(lambda one: best_of_forest(parts, one), order.rows)
    alone = jnp.argmax(log_or_zero(parts.weights) - parts.logs, axis=1).astype(jnp.int32)
    starts = jnp.concatenate([starts, alone[None]]).T
    places = sweep(parts, graph, order.neighbors, starts, jax.random.key(0), num_sweeps, best=True)
    return places[:, jnp.argmax(log_probability(parts, graph, places))]
