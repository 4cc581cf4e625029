r"""Joint draws and joint modes of a posterior: exact on forests, and on graphs with cycles from trees and by sweeps.

On a forest, the posterior is the product of the belief of each root and of the conditionals of all other nodes,

$$p(x) = \prod_{\text{roots}} b_r(x_r) \prod_{s \to t} \frac{b_{st}(x_s, x_t)}{b_t(x_t)},$$

with the beliefs of nodes and edges (`edge_beliefs`): draws have these as their margins. Nodes are drawn from the roots
to the leaves (ancestral sampling; on chains, forward filtering and backward sampling), one row of cells of
`kbpjax.graphs.forest` after another.

On a graph with cycles, the same is done on random spanning trees, of which each edge is in a share: the mixture of tree
distributions in which tree-reweighted beliefs are exact (Wainwright et al. 2003). All margins of nodes are the beliefs,
and dependence along edges outside the tree is too weak. Sweeps of Gibbs sampling, one color of nodes after another,
move the draws towards the model whose potentials the messages have used,

$$p(x) \propto \Big(\prod_s p(x_s)\, \mathrm{local}_s(x_s)
\prod_{st} r_{st}(x_s, x_t)^{\rho_{st}}\Big)^{1/T}.$$

Every table is that of a pair of candidates. Draws of numbers on intervals are moved to a place in the interval of their
candidate at random.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kbpjax import _checks
from kbpjax._misc import matmul, vary_like
from kbpjax.graphs.coloring import color_nodes
from kbpjax.graphs.forest import Forest
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import InLogs, MaxProduct
from kbpjax.inference.update import of_edges
from kbpjax.posterior.beliefs import log_or_zero, log_values, raise_logs
from kbpjax.posterior.edge_beliefs import features_at, log_ratios
from kbpjax.posterior.posterior import Posterior

SWEEPS = 10
"""Number of times that both margins of an edge are fitted, from the start that is exact for states."""

NUM_TREES = 8
"""Largest number of spanning trees of the draws of one call."""

CELLS = 2**22
"""Number of entries of tables that are in memory at a time."""


class Parts(NamedTuple):
    """What joint draws need of a posterior, padded to the largest number of candidates of a node type.

    Attributes:
        weights: the beliefs [node, point].
        logs: logarithms of the candidates' lengths [node, point]; 0 where they stand for no interval.
        tables: r^(1/T), with maximum 1, from the points of the first ends to those of the second [kind, point, point].
        kinds: place of each edge type among the tables [type].
        features: features at the candidates of each node type [type, point, rank].
        floors: floor of each node type [type].
        messages: coefficients of the messages [edge + 1, rank], the last 0.
        exponents: exponents of the messages [edge].
        temperature: temperature of the beliefs.
    """

    weights: Float[Array, "node point"]
    logs: Float[Array, "node point"]
    tables: Float[Array, "kind point point"]
    kinds: Int[Array, " type"]
    features: Float[Array, "type point rank"]
    floors: Float[Array, " type"]
    messages: Float[Array, "edge rank"]
    exponents: Float[Array, " edge"]
    temperature: Float[Array, ""]


class Rows(NamedTuple):
    """The edges of a forest from the leaves to the roots, in rows of one direction of one edge type.

    Attributes:
        direction: 2 edge type, if the children are first ends, or 2 edge type + 1 [row].
        parent_type: node type of the parents [row].
        child, parent: the ends of each cell's edge [row, cell]; the number of nodes for padding.
        edge: the directed edge from child to parent [row, cell]; the number of edges for padding.
    """

    direction: Int[Array, " row"]
    parent_type: Int[Array, " row"]
    child: Int[Array, "row cell"]
    parent: Int[Array, "row cell"]
    edge: Int[Array, "row cell"]


def parts_of(posterior: Posterior) -> Parts:
    """Return what joint draws need of a posterior."""
    posterior.require_one()
    model, graph, solution = posterior.model, posterior.graph, posterior.solution
    arithmetic = model.operators.arithmetic
    addition = arithmetic.addition if isinstance(arithmetic, InLogs) else arithmetic
    fix = "Use operators that add: SumProduct()."
    _checks.require(not isinstance(addition, MaxProduct), "posterior", "must be of sums", "MaxProduct()", fix)
    beliefs = posterior.by_type
    size = max(one.num_points for one in beliefs.values())
    kinds = [ends for ends in model.edge_types if ends in graph.edge_types]
    points, dtype = points_of(posterior), solution.messages.dtype
    need = 3 * max(len(kinds), 1) * size**2 * dtype.itemsize
    _checks.require_memory("posterior", "the tables of all edge types", need, "Pass infer fewer points.")
    weights, logs = jnp.zeros((graph.num_nodes, size), dtype), jnp.zeros((graph.num_nodes, size), dtype)
    for v, one in beliefs.items():
        place = graph.nodes_of_type(v), slice(one.num_points)
        weights = weights.at[place].set(one.weights.astype(dtype))
        if one.lengths_by_node is not None:
            logs = logs.at[place].set(log_or_zero(one.lengths_by_node).astype(dtype))
    heat = model.temperature.astype(dtype)
    tables = jnp.zeros((max(len(kinds), 1), size, size), dtype)
    for place, (kind, *ends) in enumerate(kinds):
        found, _ = log_ratios(model, kind, (ends[0], ends[1]), (points[ends[0]], points[ends[1]]))
        found = raise_logs(found[0].astype(dtype), 1 / heat)
        tables = tables.at[place, : found.shape[0], : found.shape[1]].set(jnp.exp(found - jnp.max(found)))
    count, rank = 1 + max(beliefs), solution.coefficients.shape[1]
    at_points = jnp.zeros((count, size, rank), dtype)
    for v, x in points.items():
        found = features_at(model, v, x)[0].astype(dtype)
        at_points = at_points.at[v, : found.shape[0], : found.shape[1]].set(found)
    place_of = np.zeros(1 + max([kind for kind, *_ in kinds], default=0), np.int32)
    place_of[[kind for kind, *_ in kinds]] = np.arange(len(kinds))
    exponents = (
        jnp.ones(graph.num_edges, dtype)
        if solution.exponents is None
        else of_edges(solution.exponents)[: graph.num_edges]
    )
    coefficients = solution.coefficients.astype(dtype)
    padded = jnp.concatenate([coefficients, jnp.zeros_like(coefficients, shape=(1, rank))])
    floors = jnp.stack([model.floor_of(v) if v in beliefs else jnp.zeros(()) for v in range(count)]).astype(dtype)
    return Parts(weights, logs, tables, jnp.asarray(place_of), at_points, floors, padded, exponents.astype(dtype), heat)


def points_of(posterior: Posterior) -> dict[int, Array]:
    """Return the candidates of each node type in the units of the model."""
    model = posterior.model
    types = [v for v, *_ in posterior.graph.node_types]
    if posterior.own_points:
        known: dict[int, Array] = model.candidates or {}
        return {v: known[v] for v in types}
    points = posterior.showing(None).points
    by_type: dict = points if isinstance(points, dict) else dict.fromkeys(types, points)
    return by_type


def own_candidates(posterior: Posterior) -> Posterior:
    """Return the posterior on the candidates of the model if its nodes have own margins, and common candidates."""
    own = [v for v, *_ in posterior.graph.node_types if v in posterior.model.margins]
    if posterior.own_points or not own:
        return posterior
    return Posterior.of(posterior.model, posterior.graph, posterior.evidence, posterior.solution)


def rows_of_forest(forest: Forest | None, graph: Graph) -> Rows | None:
    """Return the edges of a forest from the leaves to the roots; None without edges."""
    if forest is None:
        return None
    size = forest.sender.size
    at = jnp.full(2 * size, graph.num_edges, jnp.int32)
    at = at.at[forest.message_place].set(jnp.arange(graph.num_edges, dtype=jnp.int32))
    edge = at[:size].reshape(forest.sender.shape)
    parent = jnp.where(edge < graph.num_edges, forest.receiver, graph.num_nodes)
    return Rows(forest.direction, forest.receiver_type, forest.sender, parent, edge)


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
    filling = (0, 0, graph.num_nodes, graph.num_nodes, graph.num_edges)

    def padded(array: np.ndarray, fill: int) -> np.ndarray:
        sizes = (length, width)[: array.ndim]
        return np.pad(array, [(0, to - of) for of, to in zip(array.shape, sizes)], constant_values=fill)

    stacked = zip(*([padded(np.asarray(x), fill) for x, fill in zip(rows, filling, strict=True)] for rows in found))
    return Rows(*(_checks.to_jax(np.stack(arrays), np.int32) for arrays in stacked))


def _rows_of_tree(forest: Forest, own: np.ndarray, half: int, num_nodes: int) -> Rows:
    """Return the rows of a tree in NumPy; `own` are the numbers of its edges in the graph."""
    size, message_place = forest.sender.size, np.asarray(forest.message_place)
    at = np.full(2 * size, 2 * half)
    at[message_place] = np.concatenate([own, own + half])
    edge = at[:size].reshape(forest.sender.shape)
    parent = np.where(edge < 2 * half, np.asarray(forest.receiver), num_nodes)
    return Rows(*map(np.asarray, (forest.direction, forest.receiver_type, forest.sender, parent, edge)))  # type: ignore


def _padded(array: Array) -> Array:
    """Return an array of nodes with a row of zeros at its end."""
    return jnp.concatenate([array, jnp.zeros_like(array[:1])])


def _table(parts: Parts, direction: Array) -> Array:
    """Return the table of one direction of an edge type, from the points of children to those of parents."""
    table = parts.tables[parts.kinds[direction // 2]]
    return jnp.where(direction % 2 == 0, table, table.T)


def _ratio(wanted: Array, got: Array) -> Array:
    return jnp.where(got > 0, wanted / jnp.where(got > 0, got, 1), 0)


def _conditionals(parts: Parts, weights: Array, row: Rows) -> tuple[Array, Array]:
    """Return factors f of the children of a row [cell, point] and a table k: p(child | parent) ~ f(child) k.

    The beliefs of both ends are margins of f(child) k(child, parent) g(parent).
    """
    table = _table(parts, row.direction)
    child, parent = weights[row.child], weights[row.parent]
    receivers = jnp.arange(len(row.child), dtype=jnp.int32)
    at_points = parts.features[row.parent_type][None]
    message = log_values(parts.messages[row.edge], receivers, at_points, parts.floors[row.parent_type])
    top = jnp.where(parent > 0, message, jnp.inf)
    top = jax.lax.stop_gradient(jnp.min(top, axis=-1, keepdims=True))
    without = parent * jnp.exp(-jnp.maximum(message - jnp.where(jnp.isfinite(top), top, 0), 0) / parts.temperature)

    def sweep(right: Array, _: None) -> tuple[Array, None]:
        left = _ratio(child, matmul(right, table.T))
        return _ratio(parent, matmul(left, table)), None

    right, _ = jax.lax.scan(jax.checkpoint(sweep), vary_like(without, (child, parent, table)), length=SWEEPS)
    return _ratio(child, matmul(right, table.T)), table


def _invert(sums: Array, rows: Array, uniform: Array) -> Array:
    """Return the smallest place at which a row of cumulative sums [row, point] is above its share of the total."""
    size = sums.shape[1]
    wanted = uniform * (1 - 2 * jnp.finfo(sums.dtype).eps) * sums[rows, -1]

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) // 2
        below = sums[rows, middle] <= wanted
        return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

    ends = jnp.zeros_like(rows), jnp.full_like(rows, size - 1)
    low, _ = jax.lax.fori_loop(0, max(size - 1, 1).bit_length(), halve, vary_like(ends, (sums, rows, uniform)))
    return jnp.minimum(low, size - 1)


def draw_forest(parts: Parts, rows: Rows | None, key: PRNGKeyArray, num: int) -> tuple[Array, Array]:
    """Return the candidates of joint draws on a forest.

    Returns:
        Places among the candidates [node, draw], and logarithms of their probabilities [draw].
    """
    weights, size = _padded(parts.weights), parts.weights.shape[1]
    first, others = jax.random.split(key)
    logs = log_or_zero(parts.weights)

    def root(of_node: tuple[Array, Array]) -> tuple[Array, Array]:
        number, own = of_node
        uniform = jax.random.uniform(jax.random.fold_in(first, number), (num,), own.dtype)
        place = _invert(jnp.cumsum(own)[None], jnp.zeros(num, jnp.int32), uniform)
        return place, log_or_zero(own)[place]

    numbers = jnp.arange(len(logs), dtype=jnp.int32)
    places, found = jax.lax.map(root, (numbers, parts.weights), batch_size=max(1, min(len(logs), CELLS // (8 * num))))
    if rows is None:
        return places, jnp.sum(found, axis=0)
    children = jnp.zeros(len(weights), bool).at[rows.child].set(True)[:-1]
    total = jnp.sum(jnp.where(children[:, None], 0, found), axis=0)
    whole = num > size  # a table of all places of the parent is smaller than one row for each draw

    def below(carry: tuple[Array, Array], numbered: tuple[Array, Rows]) -> tuple[tuple[Array, Array], None]:
        places, total = carry
        number, row = numbered
        factors, table = _conditionals(parts, weights, row)
        at_parents = table.T
        own_key = jax.random.fold_in(others, number)

        def of_cell(cell: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
            number, factor, fallback, parent = cell
            entries = (at_parents if whole else at_parents[parent]) * factor[None]
            entries = jnp.where(jnp.sum(entries, axis=1, keepdims=True) > 0, entries, fallback[None])
            sums = jnp.cumsum(entries, axis=1)
            at = parent if whole else jnp.arange(num, dtype=jnp.int32)
            uniform = jax.random.uniform(jax.random.fold_in(own_key, number), (num,), sums.dtype)
            place = _invert(sums, at, uniform)
            return place, log_or_zero(entries[at, place]) - jnp.log(jnp.sum(entries, axis=1))[at]

        numbers = jnp.arange(len(row.child), dtype=jnp.int32)
        cells = numbers, factors, weights[row.child], places[row.parent]
        batch = max(1, min(len(row.child), CELLS // (min(num, size) * size)))
        drawn, logs = jax.lax.map(of_cell, cells, batch_size=batch)
        total = total + jnp.sum(jnp.where((row.child < len(weights) - 1)[:, None], logs, 0), axis=0)
        return (places.at[row.child].set(drawn), total), None

    start = jnp.concatenate([places, jnp.zeros_like(places[:1])]), total
    numbers = jnp.arange(len(rows.direction), dtype=jnp.int32)
    start = vary_like(start, (parts, rows, key))
    (places, total), _ = jax.lax.scan(below, start, (numbers, rows), reverse=True)
    return places[:-1], total


def best_of_forest(parts: Parts, rows: Rows | None) -> Array:
    """Return the places of the most probable joint candidates of a forest [node]; of numbers, of largest density."""
    weights, logs = _padded(parts.weights), _padded(parts.logs)
    gain = log_or_zero(weights) - logs
    if rows is None:
        return jnp.argmax(gain[:-1], axis=1).astype(jnp.int32)

    def above(values: Array, row: Rows) -> tuple[Array, Array]:
        factors, table = _conditionals(parts, weights, row)
        at_parents = log_or_zero(table.T)

        def of_cell(own: Array) -> tuple[Array, Array]:
            scores = at_parents + own[None]
            return jnp.max(scores, axis=1), jnp.argmax(scores, axis=1).astype(jnp.int32)

        own = log_or_zero(factors) + values[row.child] - logs[row.child]
        batch = max(1, min(len(row.child), CELLS // table.size))
        scores, best = jax.lax.map(of_cell, own, batch_size=batch)
        total = matmul(factors, table)
        scores = scores - jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1)), 0)
        scores = jnp.where((row.child < len(weights) - 1)[:, None], scores, 0)
        return values.at[row.parent].add(scores), best

    values, best = jax.lax.scan(above, vary_like(jnp.zeros_like(weights), (parts, rows)), rows)
    places = jnp.argmax(values + gain, axis=1).astype(jnp.int32)

    def below(places: Array, found: tuple[Rows, Array]) -> tuple[Array, None]:
        row, best = found
        chosen = jnp.take_along_axis(best, places[row.parent][:, None], axis=1)[:, 0]
        return places.at[row.child].set(chosen), None

    return jax.lax.scan(below, places, (rows, best), reverse=True)[0][:-1]


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


def _log_potentials(parts: Parts, graph: Graph) -> Array:
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
    return _padded(jnp.where(own == -jnp.inf, own, own - total))


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
    local = _log_potentials(parts, graph)
    local = local if best else local + _padded(parts.logs)
    both = log_or_zero(jnp.stack([parts.tables, jnp.swapaxes(parts.tables, 1, 2)], axis=1))  # [kind, direction, ...]
    entries = both.reshape(-1, size)
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
        return _invert(sums, jnp.arange(num, dtype=jnp.int32), uniform)

    def once(places: Array, number: Array) -> tuple[Array, None]:
        sweep_key = jax.random.fold_in(key, number)

        def of_color(places: Array, own: Neighbors) -> tuple[Array, None]:
            cells = own.nodes, local[own.nodes], places[own.senders], own.edges
            batch = max(1, min(len(own.nodes), CELLS // (num * size)))
            drawn = jax.lax.map(partial(of_node, sweep_key), cells, batch_size=batch)
            return places.at[own.nodes].set(drawn), None

        return jax.lax.scan(of_color, places, neighbors)

    padded = vary_like(jnp.concatenate([places, jnp.zeros_like(places[:1])]), (parts, graph, neighbors, key))
    return jax.lax.scan(once, padded, jnp.arange(num_sweeps, dtype=jnp.int32))[0][:count]


def log_probability(parts: Parts, graph: Graph, places: Int[Array, "node draw"]) -> Float[Array, " draw"]:
    """Return the unnormalized log density of joint candidates, of the model whose potentials the messages used."""
    half = graph.num_edges // 2
    nodes = jnp.take_along_axis(_log_potentials(parts, graph)[:-1], places, axis=1)
    kinds = parts.kinds[graph.edge_type[:half]][:, None]
    entries = parts.tables[kinds, places[graph.senders[:half]], places[graph.receivers[:half]]]
    return jnp.sum(nodes, axis=0) + jnp.sum(parts.exponents[:half, None] * log_or_zero(entries), axis=0)


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
