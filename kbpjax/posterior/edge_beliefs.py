"""Pairwise beliefs: the joint posterior of both ends of an edge."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul, values_or_shapes
from kbpjax.features import features
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution
from kbpjax.inference.update import of_edges
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import (
    candidates_by_type,
    check_problem,
    check_some,
    clamped_values,
    learned_factors,
    log_factors,
    log_likelihoods,
    log_or_zero,
    log_values,
    nearest_candidate,
    raise_logs,
)
from kbpjax.posterior.evidence import Evidence

CHUNK = 8192
"""Number of messages that are evaluated at a time."""


class EdgeBelief(eqx.Module):
    """Joint distributions of both ends of some edges, on a product of candidate points.

    Attributes:
        first, second: candidates of the first and second ends [point, *dim].
        weights: probabilities [edge, first, second]; those of an edge sum to 1.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> states = jnp.array([0.0, 1.0])
        >>> pair = kbp.EdgeBelief(states, states, jnp.array([[[0.5, 0.0], [0.25, 0.25]]]))
        >>> pair.weights.sum(axis=2).tolist()  # marginal of the first end
        [[0.5, 0.5]]
        >>> pair.weights.trace(axis1=1, axis2=2).tolist()  # probability of equal states
        [0.75]
    """

    first: Shaped[Array, "first ..."]
    second: Shaped[Array, "second ..."]
    weights: Float[Array, "edge first second"]

    @values_or_shapes
    def __repr__(self) -> str:
        sizes = " x ".join(str(len(points)) for points in (self.first, self.second))
        return f"EdgeBelief({len(self.weights)} edges on {sizes} points)"


def edge_beliefs(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    edges: Numbers,
    points: Numbers | Mapping[int, Numbers],
) -> EdgeBelief:
    """Return the pairwise beliefs of edges: P*(x_s, x_t) times all evidence and the messages from other neighbors.

    With exponents rho, messages from other neighbors are raised to rho, and those along the edge itself to rho - 1.

    The joint P* is estimated by its embedding, smoothed by the model's kernel at both ends.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`, or None. A clamped end has all weight on the candidate nearest to its value.
        solution: the solution of `run`.
        edges: pairs of neighbors [some, 2], all of one edge type and, if node types differ, in one orientation.
        points: candidates of both ends [point, *dim], or {node type: candidates}.

    Returns:
        The beliefs of the pairs, with ends in the given order.

    Raises:
        ValueError: pairs that are not edges or are of several types; as `beliefs`.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> pair = kbp.edge_beliefs(model, graph, None, kbp.run(model, graph), [(0, 1), (2, 1)], np.linspace(-1, 1, 5))
        >>> pair.weights.shape
        (2, 5, 5)
    """
    check_problem(model, graph, evidence, solution)
    candidates = candidates_by_type(model, graph, points)
    numbers, edge_type, types = _directed_edges(graph, edges)
    ends, reverse = [], np.asarray(graph.reverse)[numbers]
    for v, all_ends, edge in zip(types, (graph.senders, graph.receivers), (reverse, numbers), strict=True):
        nodes, of_type = np.asarray(all_ends)[numbers], np.asarray(graph.node_type) == v
        position = (np.cumsum(of_type) - 1)[nodes].astype(np.int32)
        likelihoods = log_likelihoods(evidence, v, candidates[v], int(of_type.sum()), solution.messages.dtype)
        ends.append(_End(nodes, position, _incoming(graph, nodes, edge), likelihoods, clamped_values(evidence, v)))
    forward = numbers < graph.num_edges // 2
    given = learned_factors(evidence), solution, tuple(ends), forward, tuple(candidates[v] for v in types)
    weights, impossible = _pair_weights(model, *given, edge_type, types)
    check_some("edges", np.asarray(edges), impossible)
    return EdgeBelief(candidates[types[0]], candidates[types[1]], weights)


class _End(NamedTuple):
    """One end of each of some edges: node numbers, positions among the nodes of the type, messages and evidence."""

    nodes: Any
    position: Any
    incoming: tuple[Any, Any, Any]
    likelihoods: Array | None
    clamped: tuple[Array, Array] | None


@partial(jax.jit, static_argnames=("edge_type", "types"))
def _pair_weights(
    model: KernelMRF,
    learned: Any,
    solution: Solution,
    ends: tuple[_End, _End],
    forward: Array,
    points: tuple[Array, Array],
    edge_type: int,
    types: tuple[int, int],
) -> tuple[Array, Array]:
    """Return the beliefs of some edges, and a mask of those that are 0 at all pairs of points."""
    logs = []
    for v, end, x in zip(types, ends, points, strict=True):
        at_points, floor = features(model.bases[v], x)[None].astype(solution.messages.dtype), model.floor_of(v)
        total = log_factors(learned, end.nodes, at_points, floor)
        total = _add_logs(total, solution, *end.incoming, at_points, floor)
        total = total if end.likelihoods is None else total + end.likelihoods[end.position]
        if end.clamped is not None:
            mask, values = (array[end.position] for array in end.clamped)
            total = jnp.where(mask[:, None], log_or_zero(nearest_candidate(model, values, v, x)), total)
        logs.append(total)
    forth, back = _log_joints(model, edge_type, types, points)
    joint = jnp.where(forward[:, None, None], forth[None], back[None])
    total = logs[0][:, :, None] + logs[1][:, None, :] + joint.astype(logs[0].dtype)
    return jax.nn.softmax(total, axis=(1, 2)), jnp.all(total == -jnp.inf, axis=(1, 2))


def _log_joints(
    model: KernelMRF, edge_type: int, types: tuple[int, int], points: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return the logarithms of P* at pairs of candidates, for pairs in the edge's orientation and in the reverse."""
    first, second = (features(model.bases[v], x) for v, x in zip(types, points, strict=True))
    joint, least = model.joints[edge_type], model.floor_of(types[0]) * model.floor_of(types[1])

    def at_pairs(matrix: Array) -> Array:
        values = matmul(matmul(first, matrix[: first.shape[1], : second.shape[1]]), second.T)
        return log_or_zero(jnp.maximum(values, least))

    return at_pairs(joint), at_pairs(joint.T)


def _directed_edges(graph: Graph, edges: Numbers) -> tuple[np.ndarray, int, tuple[int, int]]:
    """Return the directed edges of pairs of neighbors, their edge type, and the node types of both ends."""
    concrete = not _checks.is_traced((graph, edges))
    fix = "Close over edges and graph in the compiled function."
    _checks.require(concrete, "edges", "must be known, and so must the graph", "a tracer", fix)
    pairs, count = np.asarray(edges), graph.num_nodes
    ok = pairs.ndim == 2 and pairs.shape[1] == 2 and len(pairs) > 0 and np.issubdtype(pairs.dtype, np.integer)
    fix = "Pass pairs of neighbors, for instance [(0, 1)]."
    _checks.require(ok, "edges", "must be integers [some, 2]", f"shape {pairs.shape}, {pairs.dtype}", fix)
    key = np.asarray(graph.senders).astype(np.int64) * count + np.asarray(graph.receivers)
    order, wanted = np.argsort(key), pairs[:, 0].astype(np.int64) * count + pairs[:, 1]
    position = np.minimum(np.searchsorted(key, wanted, sorter=order), max(len(key) - 1, 0))
    inside = np.all((pairs >= 0) & (pairs < count), axis=1)
    invalid = pairs[~inside | (key[order][position] != wanted)] if len(key) else pairs
    _checks.require(len(invalid) == 0, "edges", "must be edges of the graph", invalid[:3].tolist(), fix)
    numbers, node_type = order[position], np.asarray(graph.node_type)
    kinds = {(int(k), *map(int, ends)) for k, ends in zip(np.asarray(graph.edge_type)[numbers], node_type[pairs])}
    rule = "must be of one (edge type, first node type, second node type)"
    _checks.require(len(kinds) == 1, "edges", rule, sorted(kinds), "Call edge_beliefs once for each of them.")
    ((edge_type, first, second),) = kinds
    return numbers.astype(np.int32), edge_type, (first, second)


def _incoming(graph: Graph, nodes: np.ndarray, exclude: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the incoming edges of some nodes, the index of each edge's node, and a mask of excluded edges."""
    receivers = np.asarray(graph.receivers)
    order = np.argsort(receivers, kind="stable")
    start, stop = (np.searchsorted(receivers[order], nodes, side) for side in ("left", "right"))
    owner = np.repeat(np.arange(len(nodes)), stop - start)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(stop - start) - (stop - start), stop - start)
    edge = order[np.repeat(start, stop - start) + within]
    return edge.astype(np.int32), owner.astype(np.int32), edge == exclude[owner]


def _add_logs(
    total: Array, solution: Solution, edges: Array, owner: Array, own: Array, at_points: Array, floor: Array
) -> Array:
    """Add the logarithm of each edge's message, times its exponent, to the row `owner` of the edge.

    The exponent of messages along the pair itself (mask `own`) is reduced by 1. Edges are processed in chunks.
    """
    powers = jnp.ones(len(edges), total.dtype)
    if solution.exponents is not None:
        powers = of_edges(solution.exponents)[edges].astype(total.dtype)
    powers = powers - own.astype(total.dtype)
    if len(edges) == 0:
        return total
    chunk = min(CHUNK, len(edges))
    padding = -len(edges) % chunk

    def chunks(numbers: Array, value: int) -> Array:
        return jnp.pad(numbers, (0, padding), constant_values=value).reshape(-1, chunk)

    @jax.checkpoint
    def add(total: Array, rows: tuple[Array, ...]) -> tuple[Array, None]:
        edge, row, power = rows
        values = log_values(solution.coefficients[edge], row, at_points, floor)
        values = jnp.where(power[:, None] == 0, 0, raise_logs(values, power[:, None]))  # not 0 * -inf
        return total.at[row].add(values, mode="drop"), None

    return jax.lax.scan(add, total, (chunks(edges, 0), chunks(owner, len(total)), chunks(powers, 0)))[0]
