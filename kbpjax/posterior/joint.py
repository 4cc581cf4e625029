r"""Joint draws and joint modes of a posterior on a forest, which are exact.

The posterior is the product of the belief of each root and of the conditionals of all other nodes,

$$p(x) = \prod_{\text{roots}} b_r(x_r) \prod_{s \to t} \frac{b_{st}(x_s, x_t)}{b_t(x_t)},$$

with the beliefs of nodes and edges (`edge_beliefs`): draws have these as their margins. Nodes are drawn from the roots
to the leaves (ancestral sampling; on chains, forward filtering and backward sampling), one row of cells of
`kbpjax.graphs.forest` after another. Every table is that of a pair of candidates. For graphs with cycles, see
`kbpjax.posterior.cycles`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kbpjax import _checks
from kbpjax._misc import matmul, vary_like
from kbpjax.graphs.forest import Forest
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import InLogs, MaxProduct
from kbpjax.inference.update import of_edges
from kbpjax.posterior.beliefs import log_or_zero, log_values, raise_logs
from kbpjax.posterior.edge_beliefs import features_at, log_ratios
from kbpjax.posterior.posterior import Posterior

SWEEPS = 20
"""Number of times that both margins of an edge are fitted, from the start that is exact for states."""

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


def padded(array: Array) -> Array:
    """Return an array of nodes with a row of zeros at its end."""
    return jnp.concatenate([array, jnp.zeros_like(array[:1])])


def table_of(parts: Parts, direction: Array) -> Array:
    """Return the table of one direction of an edge type, from the points of children to those of parents."""
    table = parts.tables[parts.kinds[direction // 2]]
    return jnp.where(direction % 2 == 0, table, table.T)


def _ratio(wanted: Array, got: Array) -> Array:
    return jnp.where(got > 0, wanted / jnp.where(got > 0, got, 1), 0)


def _conditionals(parts: Parts, weights: Array, row: Rows) -> tuple[Array, Array]:
    """Return factors f of the children of a row [cell, point] and a table k: p(child | parent) ~ f(child) k.

    The beliefs of both ends are margins of f(child) k(child, parent) g(parent).
    """
    table = table_of(parts, row.direction)
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


def invert(sums: Array, rows: Array, uniform: Array) -> Array:
    """Return the smallest place at which a row of cumulative sums [row, point] is above its share of the total."""
    size = sums.shape[1]
    wanted = uniform * (1 - 2 * jnp.finfo(sums.dtype).eps) * sums[rows, -1]

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
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
    weights, size = padded(parts.weights), parts.weights.shape[1]
    first, others = jax.random.split(key)
    logs = log_or_zero(parts.weights)

    def root(of_node: tuple[Array, Array]) -> tuple[Array, Array]:
        number, own = of_node
        uniform = jax.random.uniform(jax.random.fold_in(first, number), (num,), own.dtype)
        place = invert(jnp.cumsum(own)[None], jnp.zeros(num, jnp.int32), uniform)
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
            place = invert(sums, at, uniform)
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
    weights, logs = padded(parts.weights), padded(parts.logs)
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
