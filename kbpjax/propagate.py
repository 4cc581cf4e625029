r"""The engine: synchronous belief propagation on any operators of one shape (eq. 15). It knows no kernel.

A message m_ts is a vector of coefficients on the basis of its receiver. One update evaluates all incoming messages of a
node at a set of points, multiplies them, and projects the product onto the basis of the receiver:

    m_ts  <-  project_ts @ ( local_t * prod_{u in G(t) \ s} evaluate_t @ m_ut )

Every update rule of the paper, and discrete belief propagation (evaluate = identity, project = the conditional table),
is this line with other matrices. The scale of a message is free: messages have 2-norm 1. Damping mixes the old message,
of norm 1, with the new one before that is normalised, so an update that is small (incoming messages that disagree)
moves a message little.
From nine incoming messages on, their product is rescaled on the way, and its size no longer says so much.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from kbpjax import _checks
from kbpjax._precision import einsum
from kbpjax.graph import Graph, Tiles


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
    """

    evaluate: Float[Array, "node_type point rank"]
    project: Float[Array, "edge_direction rank point"]
    floor: ScalarLike | Float[Array, " node_type"] = 0.0


class BPState(eqx.Module):
    """What one iteration leaves to the next.

    Attributes:
        messages: coefficients of each directed edge's message [edge, rank], of 2-norm 1 (or 0).
        residual: largest difference between a coefficient of a message and of its undamped update, both of 2-norm 1; 0
            at a fixed point, at most 2.
        count: iterations done.
    """

    messages: Float[Array, "edge rank"]
    residual: Float[Array, ""]
    count: Int[Array, ""]


class Solution(eqx.Module):
    """The outcome of `run` or `run_tree`.

    Attributes:
        messages: coefficients of each directed edge's message [edge, rank].
        converged: whether the last residual is at most the tolerance asked for (1e-3 where none was).
        num_iters: iterations done.
        residuals: residual of each iteration [max_iters]; NaN after the last one done.
    """

    messages: Float[Array, "edge rank"]
    converged: Bool[Array, ""]
    num_iters: Int[Array, ""]
    residuals: Float[Array, " max_iters"]


def init(operators: Operators, graph: Graph) -> BPState:
    """Return the state before the first iteration: each message is the update of 1, in a learned model the constant."""
    check_types(operators, graph)
    ones = jnp.sum(of_type(operators.project, graph.edge_tiles.types), axis=-1)
    spread = jnp.broadcast_to(ones[:, None], (*graph.edge_tiles.rows.shape, ones.shape[-1]))
    messages, _ = unit(_untile([spread], graph.edge_place))
    return BPState(messages, jnp.array(jnp.inf, messages.dtype), jnp.int32(0))


def step(
    operators: Operators,
    graph: Graph,
    local: Float[Array, "node point"],
    state: BPState,
    *,
    damping: ScalarLike = 0.0,
) -> BPState:
    """Update all messages at once.

    Args:
        operators: the model's operators.
        graph: the graph.
        local: evidence factor of each node at its evaluation points [node, point]; 1 where there is none.
        state: messages so far.
        damping: weight of the old message, in [0, 1), against that of the update before it is scaled to norm 1.

    Returns:
        The next state.

    Raises:
        ValueError: damping out of range, too few operators for the graph's types, or local factors of another shape.
    """
    check_types(operators, graph)
    _check_damping(damping)
    shape = (graph.num_nodes, operators.evaluate.shape[1])
    fix = "Give one factor for each node and evaluation point."
    _checks.require(local.shape == shape, "local", f"must have shape {shape}", local.shape, fix)

    incoming = evaluate(operators, graph, state.messages)
    others = [
        leave_one_out(values, tile(local, tiles, graph.node_place))
        for values, tiles in zip(incoming, graph.node_tiles, strict=True)
    ]
    outgoing = _flatten(others)[graph.route]
    update = einsum("tep,trp->ter", outgoing, of_type(operators.project, graph.edge_tiles.types))
    update, size = unit(_untile([update], graph.edge_place))
    messages = _mix(state.messages, update, size, jnp.asarray(damping, update.dtype))
    change = jnp.max(jnp.abs(jax.lax.stop_gradient(update - state.messages)), initial=0)
    return BPState(messages, change, state.count + 1)


def _mix(old: Array, new: Array, size: Array, damping: Array) -> Array:
    """Mix messages of norm 1 in the proportion damping : (1 - damping) size; return them with norm 1."""
    total = damping + (1 - damping) * size
    weight = jnp.where(total > 0, (1 - damping) * size / jnp.where(total > 0, total, 1), 1)
    mixed = old + weight * (new - old)
    square = jnp.sum(mixed**2, axis=-1, keepdims=True)
    return mixed * jax.lax.rsqrt(jnp.where(square > 0, square, 1))


def run(
    model: Any,
    graph: Graph,
    evidence: Any = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike = 0.2,
    tol: ScalarLike | None = None,
) -> Solution:
    """Run `step` a fixed number of times, or until the residual is at most `tol`.

    Args:
        model: a `KernelMRF`, or `Operators` of one's own.
        graph: the graph; its types must be among those of the model.
        evidence: `Evidence`, or local factors [node, point], or None for none.
        num_iters: iterations, >= 1; with `tol` the most there can be.
        damping: weight of the old message, in [0, 1), against that of the update before it is scaled to norm 1: an
            update that is small, because incoming messages disagree, moves a message less than the number says.
        tol: stop once the residual is at most this: no coefficient of any message (of 2-norm 1) differs by more from
            its undamped update. None: run all iterations, and differentiate through them in either mode. With `tol`
            there is forward mode only.

    Returns:
        The messages and how they got there. Not to have converged is no error: see `Solution.converged` and
        `residuals`.

    Raises:
        ValueError: an option out of range, a type that the model has not learned, or evidence of another shape.
    """
    _check_options(num_iters, damping, tol)
    operators, graph, local = problem(model, graph, evidence)
    return _run(operators, graph, local, damping, tol, num_iters)


def problem(model: Any, graph: Graph, evidence: Any) -> tuple[Operators, Graph, Float[Array, "node point"]]:
    """Return what inference works on: operators checked against the graph, the graph after clamps, local factors."""
    if isinstance(model, Operators):
        operators = model
    else:
        operators = model.operators
        model.check_types(graph)
    shape, dtype = (graph.num_nodes, operators.evaluate.shape[1]), operators.evaluate.dtype
    local = jnp.ones(shape, dtype) if evidence is None else jnp.asarray(getattr(evidence, "local", evidence), dtype)
    fix = "Make the evidence with the same model and graph."
    _checks.require(local.shape == shape, "evidence", f"local factors must have shape {shape}", local.shape, fix)
    if not getattr(evidence, "values", None):  # empty where no clamp was made
        return operators, graph, local
    return operators, ignore_incoming(graph, evidence.clamped), local  # pyright: ignore[reportOptionalMemberAccess]


@partial(jax.jit, static_argnames="num_iters")
def _run(
    operators: Operators, graph: Graph, local: Array, damping: ScalarLike, tol: ScalarLike | None, num_iters: int
) -> Solution:
    start = init(operators, graph)
    if tol is None:
        body = jax.checkpoint(partial(step, operators, graph, local, damping=damping), prevent_cse=False)

        def iterate(state, _):
            state = body(state)
            return state, state.residual

        last, residuals = jax.lax.scan(iterate, start, length=num_iters)
        return Solution(last.messages, last.residual <= 1e-3, last.count, residuals)

    tol = jnp.asarray(tol, start.residual.dtype)

    def unfinished(carry):
        state, _ = carry
        return (state.count < num_iters) & (state.residual > tol)

    def advance(carry):
        state, residuals = carry
        new = step(operators, graph, local, state, damping=damping)
        return new, residuals.at[state.count].set(new.residual)

    residuals = jnp.full(num_iters, jnp.nan, start.residual.dtype)
    last, residuals = jax.lax.while_loop(unfinished, advance, (start, residuals))
    return Solution(last.messages, last.residual <= tol, last.count, residuals)


def ignore_incoming(graph: Graph, nodes: Bool[Array, " node"]) -> Graph:
    """Return the graph in which the incoming messages of the marked nodes count as 1, as for a value that is known.

    What a marked node sends depends on its local factor alone. Messages to it are still computed.

    Args:
        graph: the graph.
        nodes: the nodes that ignore their incoming messages [node].
    """
    marked = jnp.append(nodes, False)
    slots = tuple(
        jnp.where(marked[tiles.rows][..., None], graph.num_edges, slots)
        for tiles, slots in zip(graph.node_tiles, graph.slots, strict=True)
    )
    schedule = None if graph.schedule is None else graph.schedule.ignore_incoming(nodes)
    return replace(graph, slots=slots, schedule=schedule)


def evaluate(
    operators: Operators, graph: Graph, messages: Float[Array, "edge rank"]
) -> tuple[Float[Array, "_ _ _ point"], ...]:
    """Evaluate every incoming message of every node, with a floor; 1 in empty slots; one array for each of `slots`."""
    padded = jnp.concatenate([messages, jnp.zeros_like(messages, shape=(1, messages.shape[1]))])

    def values_of(tiles: Tiles, slots: Array) -> Array:
        values = einsum("tndr,tpr->tndp", padded[slots], of_type(operators.evaluate, tiles.types))
        values = jnp.maximum(values, of_type(floors(operators), tiles.types)[:, None, None, None])
        return jnp.where((slots < graph.num_edges)[..., None], values, 1)

    return tuple(map(values_of, graph.node_tiles, graph.slots))


def evaluate_local(
    operators: Operators, graph: Graph, messages: Float[Array, "node rank"]
) -> Float[Array, "node point"]:
    """Evaluate one message for each node at the node's evaluation points, with a floor."""

    def values_of(tiles: Tiles) -> Array:
        tiled = tile(messages, tiles, graph.node_place)
        values = einsum("tnr,tpr->tnp", tiled, of_type(operators.evaluate, tiles.types))
        return jnp.maximum(values, of_type(floors(operators), tiles.types)[:, None, None])

    return _untile([values_of(tiles) for tiles in graph.node_tiles], graph.node_place)


def floors(operators: Operators) -> Float[Array, " node_type"]:
    """Return the floor of each node type; length 1: shared by all."""
    return jnp.asarray(operators.floor, operators.evaluate.dtype).reshape(-1)


def of_type(matrices: Float[Array, "type *axes"], types: Int[Array, "*tiles"]) -> Array:
    """Return the matrices of some types; a single matrix serves all."""
    return matrices[types if matrices.shape[0] > 1 else jnp.zeros_like(types)]


def leave_one_out(
    values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"], level: int = 0
) -> Float[Array, "*axes deg point"]:
    """Return, for each slot, `whole` times the product of the other slots: a balanced tree, exact at zeros.

    The product of every eight slots is scaled to largest value 1, so that no number of messages underflows.
    """
    num_slots = values.shape[-2]
    if num_slots == 1:
        return whole[..., None, :]
    if num_slots % 2:
        values = jnp.concatenate([values, jnp.ones_like(values[..., :1, :])], axis=-2)
    left, right = values[..., 0::2, :], values[..., 1::2, :]
    pairs = left * right
    if level % 3 == 2:
        largest = jnp.max(pairs, axis=-1, keepdims=True)
        pairs = pairs / jnp.where(largest > 0, largest, 1)
    above = leave_one_out(pairs, whole, level + 1)
    others = jnp.stack([above * right, above * left], axis=-2)
    return others.reshape(values.shape)[..., :num_slots, :]


def tile(
    rows: Float[Array, "row column"], tiles: Tiles, place: Int[Array, " row"] | None
) -> Float[Array, "tile tile_size column"]:
    """Lay rows out by type; they stand so already where `place` is None; the padding holds copies of the last row."""
    if place is None:
        return rows.reshape(*tiles.rows.shape, -1)
    return rows[jnp.minimum(tiles.rows, len(rows) - 1)]


def _untile(tiled: Sequence[Array], place: Int[Array, " row"] | None) -> Float[Array, "row column"]:
    flat = _flatten(tiled)
    return flat if place is None else flat[place]


def _flatten(blocks: Sequence[Array]) -> Float[Array, "place column"]:
    return jnp.concatenate([block.reshape(-1, block.shape[-1]) for block in blocks])


def unit(messages: Float[Array, "*axes rank"]) -> tuple[Float[Array, "*axes rank"], Float[Array, "*axes one"]]:
    """Scale messages to 2-norm 1, whatever their size, and return their norms; what is zero stays zero."""
    # The sum keeps squares in range as well as the maximum would, and is faster.
    size = jax.lax.stop_gradient(jnp.sum(jnp.abs(messages), axis=-1, keepdims=True))
    zero = size < jnp.finfo(messages.dtype).tiny  # false for NaN, which is to stay
    scale = jnp.where(zero, 0, 1 / jnp.where(zero, 1, size))
    square = jnp.sum((messages * scale) ** 2, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.where(zero, 1, square))
    return messages * (scale * inverse), size * square * inverse


def _check_options(num_iters: int, damping: Any, tol: Any) -> None:
    _checks.require_count("num_iters", num_iters)
    _check_damping(damping)
    if tol is not None:
        _checks.require_number("tol", tol, above=0)


def _check_damping(damping: Any) -> None:
    fix = "It is the weight of the OLD message: 0 takes the new one whole, 0.2 to 0.8 help where loops oscillate."
    _checks.require_number("damping", damping, least=0, below=1, fix=fix)


def check_types(operators: Operators, graph: Graph) -> None:
    """Check that there are operators for all types of a graph."""
    node, edge = operators.evaluate.shape[0], operators.project.shape[0]
    nodes = 1 + max(v for v, *_ in graph.node_types)
    edges = 2 + 2 * max((k for k, *_ in graph.edge_types), default=-1)
    fix = "Pass one matrix for each node type and two for each edge type (forth and back), or one for all."
    _checks.require(node in (1, *range(nodes, node + 1)), "evaluate", f"needs 1 or >= {nodes} matrices", node, fix)
    _checks.require(edge in (1, *range(edges, edge + 1)), "project", f"needs 1 or >= {edges} matrices", edge, fix)
