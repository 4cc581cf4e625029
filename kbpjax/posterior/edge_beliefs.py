"""Pairwise beliefs: the joint posterior of both ends of an edge."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul, values_or_shapes, vary_like
from kbpjax._public import Checked, public
from kbpjax.features import features
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution
from kbpjax.inference.update import of_edges
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import (
    candidates_by_type,
    check_problem,
    clamped_values,
    learned_factors,
    log_factors,
    log_likelihoods,
    log_or_zero,
    log_values,
    nearest_candidate,
    raise_logs,
    somewhere_positive,
)
from kbpjax.posterior.evidence import Evidence

CHUNK = 8192
"""Number of messages that are evaluated at a time."""


class EdgeBelief(Checked):
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

    requires_finite = True

    first: Shaped[Array, "first ..."]
    second: Shaped[Array, "second ..."]
    weights: Float[Array, "edge first second"]

    @values_or_shapes
    def __repr__(self) -> str:
        sizes = " x ".join(str(len(points)) for points in (self.first, self.second))
        return f"EdgeBelief({len(self.weights)} edges on {sizes} points)"


@public
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

    A graph may be an argument of `jax.jit` if its edges join nodes of one type. Pairs may then have different edge
    types, and the belief of a pair that is not an edge is NaN.

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
        ValueError: pairs that are not edges or are of several types; a traced graph with several node types at its
            edges; as `beliefs`.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> pair = kbp.edge_beliefs(model, graph, None, kbp.run(model, graph), [(0, 1), (2, 1)], np.linspace(-1, 1, 5))
        >>> pair.weights.shape
        (2, 5, 5)
    """
    check_problem(model, graph, evidence, solution)
    checks: list[_checks.Check] = []
    candidates = candidates_by_type(model, graph, points, checks)
    pairs = _checked_pairs(graph, edges)
    found = _traced_pairs(graph, pairs) if _checks.is_traced(graph) else _known_pairs(graph, pairs)
    counts, ends = {v: count for v, count, _ in graph.node_types}, []
    for v, nodes, position, incoming in zip(found.types, pairs.T, found.positions, found.incoming, strict=True):
        likelihoods = log_likelihoods(evidence, v, candidates[v], counts[v], solution.messages.dtype, checks)
        ends.append(_End(nodes, position, incoming, likelihoods, clamped_values(evidence, v)))
    forward = found.numbers < graph.num_edges // 2
    points = tuple(candidates[v] for v in found.types)
    given = learned_factors(evidence), solution, tuple(ends), forward, found.kind, points
    weights, impossible = _pair_weights(model, *given, found.edge_types, found.types)
    if found.present is None:
        checks.append(somewhere_positive("edges", lambda: pairs, impossible))
    else:
        weights = jnp.where(found.present[:, None, None], weights, jnp.nan)
    _checks.read_and_check(checks)
    return EdgeBelief.trusted(points[0], points[1], weights)


class _Pairs(NamedTuple):
    """The directed edges of some pairs of neighbors, and the messages to both ends.

    Attributes:
        numbers: directed edge of each pair [some].
        edge_types: edge types that occur, at least.
        kind: place of each pair's type among `edge_types` [some].
        types: node types of both ends.
        positions: places of both ends among the nodes of their types [some].
        incoming: incoming edges of both ends, the place of the pair of each, and a mask of edges along the pair.
        present: True for pairs that are edges [some]; None if all are.
    """

    numbers: Any
    edge_types: tuple[int, ...]
    kind: Any
    types: tuple[int, int]
    positions: tuple[Any, Any]
    incoming: tuple[Any, Any]
    present: Array | None


class _End(NamedTuple):
    """One end of each of some edges: node numbers, positions among the nodes of the type, messages and evidence."""

    nodes: Any
    position: Any
    incoming: tuple[Any, Any, Any]
    likelihoods: Array | None
    clamped: tuple[Array, Array] | None


@partial(jax.jit, static_argnames=("edge_types", "types"))
def _pair_weights(
    model: KernelMRF,
    learned: Any,
    solution: Solution,
    ends: tuple[_End, _End],
    forward: Array,
    kind: Array,
    points: tuple[Array, Array],
    edge_types: tuple[int, ...],
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
    each = [_log_joints(model, edge_type, types, points) for edge_type in edge_types]
    forth, back = (jnp.stack(joints)[kind if len(each) > 1 else np.zeros(1, np.int32)] for joints in zip(*each))
    joint = jnp.where(forward[:, None, None], forth, back)
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


NEIGHBORS = "Pass pairs of neighbors, for instance [(0, 1)]."


def _checked_pairs(graph: Graph, edges: Numbers) -> np.ndarray:
    """Return pairs of nodes of the graph [some, 2]."""
    fix = "Close over them in the compiled function."
    _checks.require(not _checks.is_traced(edges), "edges", "must be known", "a tracer", fix)
    pairs = np.asarray(edges)
    ok = pairs.ndim == 2 and pairs.shape[1] == 2 and len(pairs) > 0 and np.issubdtype(pairs.dtype, np.integer)
    _checks.require(ok, "edges", "must be integers [some, 2]", f"shape {pairs.shape}, {pairs.dtype}", NEIGHBORS)
    invalid = pairs[~np.all((pairs >= 0) & (pairs < graph.num_nodes), axis=1)] if graph.num_edges else pairs
    _checks.require(len(invalid) == 0, "edges", "must be edges of the graph", invalid[:3].tolist(), NEIGHBORS)
    return pairs.astype(np.int32)


def _known_pairs(graph: Graph, pairs: np.ndarray) -> _Pairs:
    """Find pairs of neighbors in a graph whose index arrays are known."""
    count = graph.num_nodes
    key = np.asarray(graph.senders).astype(np.int64) * count + np.asarray(graph.receivers)
    order, wanted = np.argsort(key), pairs[:, 0].astype(np.int64) * count + pairs[:, 1]
    position = np.minimum(np.searchsorted(key, wanted, sorter=order), max(len(key) - 1, 0))
    invalid = pairs[key[order][position] != wanted]
    _checks.require(len(invalid) == 0, "edges", "must be edges of the graph", invalid[:3].tolist(), NEIGHBORS)
    numbers, node_type = order[position].astype(np.int32), np.asarray(graph.node_type)
    kinds = {(int(k), *map(int, ends)) for k, ends in zip(np.asarray(graph.edge_type)[numbers], node_type[pairs])}
    rule = "must be of one (edge type, first node type, second node type)"
    _checks.require(len(kinds) == 1, "edges", rule, sorted(kinds), "Call edge_beliefs once for each of them.")
    ((edge_type, *ends),) = kinds
    along = np.asarray(graph.reverse)[numbers], numbers
    positions = [(np.cumsum(node_type == v) - 1)[nodes].astype(np.int32) for v, nodes in zip(ends, pairs.T)]
    incoming = [_incoming(graph, nodes, edge) for nodes, edge in zip(pairs.T, along)]
    types, kind = (ends[0], ends[1]), np.zeros(len(pairs), np.int32)
    return _Pairs(numbers, (edge_type,), kind, types, (positions[0], positions[1]), (incoming[0], incoming[1]), None)


def _traced_pairs(graph: Graph, pairs: np.ndarray) -> _Pairs:
    """Find pairs of neighbors in a traced graph; the lists of incoming edges are padded to the largest degree."""
    at_edges = sorted({v for _, *ends in graph.edge_types for v in ends})
    fix = "Build the graph outside jax.jit, and close over it in the compiled function."
    _checks.require(len(at_edges) == 1, "graph", "must have edges of one node type if it is traced", at_edges, fix)
    (node_type,) = at_edges
    degree = {v: most for v, _, most in graph.node_types}[node_type]
    order = jnp.argsort(graph.receivers).astype(jnp.int32)
    receivers, own = graph.receivers[order], np.arange(len(pairs), dtype=np.int32)

    def incoming(nodes: np.ndarray) -> tuple[Array, Array]:
        """Return the incoming edges of nodes [some, slot], and a mask of those that are not padding."""
        start, stop = (jnp.searchsorted(receivers, nodes, side=side).astype(jnp.int32) for side in ("left", "right"))
        slots = start[:, None] + np.arange(degree, dtype=np.int32)[None]
        return order[jnp.minimum(slots, graph.num_edges - 1)], slots < stop[:, None]

    both = [incoming(nodes) for nodes in pairs.T]
    edges, present = both[1]
    along = present & (graph.senders[edges] == pairs[:, :1])
    numbers = edges[own, jnp.argmax(along, axis=1)]
    lists = []
    for (edges, present), edge in zip(both, (graph.reverse[numbers], numbers), strict=True):
        owner = jnp.where(present, own[:, None], len(pairs))  # padding is dropped
        lists.append((edges.reshape(-1), owner.reshape(-1), (edges == edge[:, None]).reshape(-1)))
    position = (jnp.cumsum(graph.node_type == node_type) - 1).astype(jnp.int32)
    edge_types = tuple(k for k, *_ in graph.edge_types)
    kind = jnp.searchsorted(np.array(edge_types, np.int32), graph.edge_type[numbers]).astype(jnp.int32)
    positions = position[pairs[:, 0]], position[pairs[:, 1]]
    types = node_type, node_type
    return _Pairs(numbers, edge_types, kind, types, positions, (lists[0], lists[1]), jnp.any(along, axis=1))


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

    rows = chunks(edges, 0), chunks(owner, len(total)), chunks(powers, 0)
    return jax.lax.scan(add, vary_like(total, (solution, at_points, floor, rows)), rows)[0]
