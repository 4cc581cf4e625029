r"""One update of messages: evaluate, multiply, project (eq. 15). It knows no kernel.

A message m_ts is a vector of coefficients on the basis of its receiver. One update evaluates all incoming messages of a
node at a set of points, multiplies them, and projects the product onto the basis of the receiver:

    m_ts  <-  project_ts @ ( local_t * prod_{u in G(t) \ s} evaluate_t @ m_ut )

Every update rule of the paper, and discrete belief propagation (evaluate = identity, project = the conditional table),
is this line with other matrices. Positive operators take the two products in one: a message is then its values at the
points of its receiver, and `positive` = evaluate @ project with entries >= 0. With an exponent for each edge,

    m_ts  <-  project_ts @ ( local_t * prod_{u in G(t)} (evaluate_t @ m_ut)^rho_ut / (evaluate_t @ m_st) ),

which is tree-reweighted (rho: the share of spanning trees that have the edge) or fractional belief propagation; rho = 1
is the first line. The scale of a message is free: messages have 2-norm 1.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from kbpjax import _checks
from kbpjax.arithmetic import Arithmetic, SumProduct, apply_by_tile, log_or_least
from kbpjax.graph import Graph, Tiles
from kbpjax.layout import (
    add_rows,
    add_squares,
    fold,
    largest_row,
    long_first,
    long_last,
    slot_axis,
    slots_first,
    slots_last,
    spread,
)
from kbpjax.parts import Part


class Operators(eqx.Module):
    """What inference needs of a model.

    Attributes:
        evaluate: values of a message at the points of its receiver [node_type, point, rank]; leading size 1: shared by
            all.
        project: the update from values at the sender's points to coefficients at the receiver [edge_direction, rank,
            point]; rows 2 k and 2 k + 1 are edges of type k from first to second end and back; leading size 1: shared
            by all.
        floor: least value of an evaluated message, >= 0, messages having 2-norm 1; keeps estimated messages positive.
            One number, or one for each node type [node_type].
        positive: the update from values at the sender's points to values at the receiver's [edge_direction, point,
            point], entries >= 0; None: evaluate @ project, whatever its signs. Messages are then passed on as values,
            and `project` gives the coefficients that beliefs read from the last of them.
        prior: what the expectation under the marginal of a node type weighs the values at its points with [node_type,
            point]; None: 1 each, a sum over states. Only `log_partition` reads it.
        arithmetic: `SumProduct()`, `MaxProduct()`, or either `InLogs`.
        log_scale: logarithm of what the updates along each edge type have been divided by; None: nothing. Only
            `log_partition` reads it.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[3.0, 1.0], [1.0, 3.0]]]))
        >>> known = jnp.array([[1.0, 0.0], [1.0, 1.0]])  # node 0 is in state 0
        >>> forth, back = kbp.run_tree(agree, kbp.chain_graph(2), known).messages
        >>> round(float(forth[0] / forth[1]), 3)  # so node 1 is three times as likely to be in state 0
        3.0
    """

    evaluate: Float[Array, "node_type point rank"]
    project: Float[Array, "edge_direction rank point"]
    floor: ScalarLike | Float[Array, " node_type"] = 0.0
    positive: Float[Array, "edge_direction point point"] | None = None
    prior: Float[Array, "node_type point"] | None = None
    arithmetic: Arithmetic = SumProduct()
    log_scale: Float[Array, " edge_type"] | None = None

    @property
    def passed_on(self) -> Float[Array, "edge_direction coordinate point"]:
        """The update whose outcome is passed on: `positive`, or `project`."""
        return self.project if self.positive is None else self.positive


def updates(
    operators: Operators,
    part: Graph | Part,
    local: Float[Array, "node point"],
    messages: Float[Array, "edge coordinate"],
    exponents: Float[Array, " pair"] | None,
    matrices: Float[Array, "edge_direction out point"],
) -> Float[Array, "edge_tile edge_tile_size out"]:
    """Compute the updates of the messages that some nodes send, in the order of `edge_tiles`, not normalised.

    Args:
        operators: the model's operators.
        part: the graph, or the part of it whose nodes send.
        local: evidence factor of each node at its evaluation points.
        messages: all messages so far.
        exponents: exponent of each undirected edge; None: 1.
        matrices: what to map products with: `operators.passed_on`, or `operators.project` to read messages.
    """
    return outgoing(operators, part, local, gather(part, messages), exponents, matrices)


def outgoing(
    operators: Operators,
    part: Graph | Part,
    local: Float[Array, "node point"],
    gathered: Sequence[Float[Array, "_ _ _ coordinate"]],
    exponents: Float[Array, " pair"] | None,
    matrices: Float[Array, "edge_direction out point"],
) -> Float[Array, "edge_tile edge_tile_size out"]:
    """Compute what `updates` does, from the incoming messages of each node as `gather` returns them."""
    incoming = _evaluate(operators, part, gathered)
    wholes = [tile_of(part, local, tiles) for tiles in part.node_tiles]
    if exponents is None:
        others = [operators.arithmetic.others(*both) for both in zip(incoming, wholes, strict=True)]
    else:
        others = [
            _reweighted(values, whole, slot_powers(exponents, slots))
            for values, whole, slots in zip(incoming, wholes, part.slots, strict=True)
        ]
    update = long_last(operators.arithmetic.apply(matrices_of(matrices, part.edge_tiles.types), sent(part, others)))
    return long_first(update.reshape(len(update), *part.edge_tiles.rows.shape))


def sent(part: Graph | Part, others: Sequence[Float[Array, "_ _ _ point"]]) -> Float[Array, "*tiles size point"]:
    """Lay products without one message each, in the order of `slots`, out in that of `edge_tiles`."""
    turned = [slots_last(block) for block in others]
    if part.in_columns:
        return long_first(turned[0])
    flat = [block.reshape(len(block), math.prod(block.shape[1:])) for block in turned]
    placed = flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=1)
    return long_first(placed.at[:, part.route].get(mode="clip"))


def slot_powers(exponents: Float[Array, " pair"], slots: Int[Array, "*axes deg"]) -> Float[Array, "*axes deg one"]:
    """Return the exponent of the message in each slot; 1 in empty ones."""
    return jnp.concatenate([exponents, exponents, jnp.ones_like(exponents, shape=1)])[slots][..., None]


def _reweighted(
    values: Float[Array, "*axes deg point"],
    whole: Float[Array, "*axes point"],
    exponents: Float[Array, "*axes deg one"],
) -> Float[Array, "*axes deg point"]:
    """Return, for each slot, `whole` times all slots with their exponents, divided by the slot itself.

    From nine slots on, the largest value is scaled to that of `whole`, so that no number of messages underflows.
    """
    logs, powers, known = slots_last(values), slots_last(exponents), long_last(whole)[None]
    axis, num_points = slot_axis(logs), len(logs)
    num_slots = logs.shape[axis]
    logs = log_or_least(logs)
    total = add_rows(jnp.moveaxis(logs * spread(powers, num_points), axis, 0))
    others = jnp.moveaxis(spread(total, num_slots), 0, axis) - logs
    if num_slots > 8:
        others = others - spread(largest_row(others), num_points)
    return slots_first(jnp.moveaxis(spread(known, num_slots), 0, axis) * jnp.exp(others))


def coefficients(
    operators: Operators,
    graph: Graph,
    local: Float[Array, "node point"],
    messages: Float[Array, "edge coordinate"],
    exponents: Float[Array, " pair"] | None,
) -> Float[Array, "edge rank"]:
    """Return what beliefs read: the messages, or where values are passed on the coefficients of an update."""
    if operators.positive is None:
        return messages
    update = updates(operators, graph, local, messages, exponents, operators.project)
    return unit(untile([update], graph.edge_place))[0]


def evaluate(
    operators: Operators, part: Graph | Part, messages: Float[Array, "edge coordinate"]
) -> tuple[Float[Array, "_ _ _ point"], ...]:
    """Evaluate every incoming message of every node, with a floor; 1 in empty slots; one array for each of `slots`."""
    return _evaluate(operators, part, gather(part, messages))


def gather(
    part: Graph | Part, messages: Float[Array, "edge coordinate"]
) -> tuple[Float[Array, "_ _ _ coordinate"], ...]:
    """Return the incoming messages of every node; any number in empty slots; one array for each of `slots`."""
    if len(messages) == 0:
        return tuple(jnp.zeros_like(messages, shape=(*slots.shape, messages.shape[1])) for slots in part.slots)

    def incoming(slots: Array) -> Array:
        return jnp.swapaxes(messages.at[jnp.swapaxes(slots, -1, -2)].get(mode="clip"), -2, -3)

    return tuple(map(incoming, part.slots))


def _evaluate(
    operators: Operators, part: Graph | Part, gathered: Sequence[Float[Array, "_ _ _ coordinate"]]
) -> tuple[Float[Array, "_ _ _ point"], ...]:
    def values_of(tiles: Tiles, slots: Array, values: Array) -> Array:
        turned = slots_last(values)
        num_columns, num_tiles, num_slots, size = turned.shape
        if operators.positive is None:
            by_tile = long_first(turned.reshape(num_columns, num_tiles, num_slots * size))
            turned = long_last(apply_by_tile(matrices_of(operators.evaluate, tiles.types), by_tile))
            turned = turned.reshape(len(turned), num_tiles, num_slots, size)
        floor = jnp.broadcast_to(of_type(floors(operators), tiles.types), num_tiles)[None, :, None, None]
        present = jnp.swapaxes(slots, -1, -2) < part.num_edges
        return slots_first(jnp.where(present[None], jnp.maximum(turned, floor), 1))

    return tuple(map(values_of, part.node_tiles, part.slots, gathered))


def evaluate_local(
    operators: Operators, graph: Graph, messages: Float[Array, "node rank"]
) -> Float[Array, "node point"]:
    """Evaluate one message for each node at the node's evaluation points, with a floor."""

    def values_of(tiles: Tiles) -> Array:
        tiled = tile_of(graph, messages, tiles)
        values = apply_by_tile(matrices_of(operators.evaluate, tiles.types), tiled)
        return jnp.maximum(values, of_type(floors(operators), tiles.types)[:, None, None])

    return untile([values_of(tiles) for tiles in graph.node_tiles], graph.node_place)


def floors(operators: Operators) -> Float[Array, " node_type"]:
    """Return the floor of each node type; length 1: shared by all."""
    return jnp.asarray(operators.floor, operators.evaluate.dtype).reshape(-1)


def matrices_of(matrices: Float[Array, "type out column"], types: Int[Array, " tile"]) -> Array:
    """Return the matrix of each tile; one for all where there is a single one."""
    return matrices if len(matrices) == 1 else matrices[types]


def of_type(matrices: Float[Array, "type *axes"], types: Int[Array, "*tiles"]) -> Array:
    """Return the matrices of some types; a single matrix serves all."""
    return matrices[types if matrices.shape[0] > 1 else jnp.zeros_like(types)]


def tile_of(
    part: Graph | Part, rows: Float[Array, "node column"], tiles: Tiles
) -> Float[Array, "tile tile_size column"]:
    """Lay rows of nodes out in the order of tiles; the padding holds copies of the last row."""
    by_column = long_last(rows)
    if part.nodes_in_order:
        return long_first(by_column.reshape(len(by_column), *tiles.rows.shape))
    return long_first(by_column.at[:, tiles.rows].get(mode="clip"))


def untile(tiled: Sequence[Array], place: Int[Array, " row"] | None) -> Float[Array, "row column"]:
    """Return rows from the tiles, one after the other, that hold them; None: they stand in order."""
    flat = flatten(tiled)
    return flat if place is None else long_first(long_last(flat).at[:, place].get(mode="clip"))


def flatten(blocks: Sequence[Array]) -> Float[Array, "place column"]:
    """Put the rows of all blocks one after the other."""
    turned = [long_last(block).reshape(block.shape[-1], math.prod(block.shape[:-1])) for block in blocks]
    return long_first(turned[0] if len(turned) == 1 else jnp.concatenate(turned, axis=1))


def unit(
    messages: Float[Array, "*axes rank"], present: Bool[Array, "*axes"] | None = None
) -> tuple[Float[Array, "*axes rank"], Float[Array, "*axes one"]]:
    """Scale messages to 2-norm 1, whatever their size, and return their norms; what is zero or not present is zero."""
    rows = long_last(messages)
    # The sum keeps squares in range as well as the maximum would, and is faster.
    size = jax.lax.stop_gradient(fold(jnp.add, rows, jnp.abs))
    zero = size < jnp.finfo(messages.dtype).tiny  # false for NaN, which is to stay
    if present is not None:
        zero = zero | ~present[None]
    scale = 1 / jnp.where(zero, jnp.inf, size)  # 0 by a selection around the quotient is 10 times as slow
    square = add_squares(rows, scale)
    inverse = jax.lax.rsqrt(jnp.where(zero, 1, square))
    return long_first(rows * spread(scale * inverse, len(rows))), long_first(size * square * inverse)


def check_types(operators: Operators, graph: Graph) -> None:
    """Check that there are operators for all types of a graph."""
    node, edge = operators.evaluate.shape[0], operators.project.shape[0]
    nodes = 1 + max(v for v, *_ in graph.node_types)
    edges = 2 + 2 * max((k for k, *_ in graph.edge_types), default=-1)
    fix = "Pass one matrix for each node type and two for each edge type (forth and back), or one for all."
    _checks.require(node in (1, *range(nodes, node + 1)), "evaluate", f"must have 1 or >= {nodes} matrices", node, fix)
    _checks.require(edge in (1, *range(edges, edge + 1)), "project", f"must have 1 or >= {edges} matrices", edge, fix)
