"""Pairwise beliefs: the joint posterior of both ends of an edge."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul, values_or_shapes
from kbpjax._public import Checked, public
from kbpjax.features import features
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import InLogs, MaxProduct
from kbpjax.learning.labels import Values
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import log_or_zero, log_values, raise_logs, somewhere_positive
from kbpjax.posterior.posterior import Posterior

SWEEPS = 100
"""Number of times that both margins are fitted."""


class EdgeBelief(Checked):
    """Joint distributions of both ends of some edges, on a product of candidate points.

    Attributes:
        first, second: candidates of the first and second ends [point, *dim]; where nodes have own candidates, those of
            each edge [edge, point, *dim].
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

    first: Shaped[Array, "..."]
    second: Shaped[Array, "..."]
    weights: Float[Array, "edge first second"]

    @values_or_shapes
    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.weights.shape[1:]))
        return f"EdgeBelief({len(self.weights)} edges on {sizes} points)"


@public
def edge_beliefs(
    posterior: Posterior,
    edges: Numbers | None = None,
    points: Values | Mapping[int, Values] | None = None,
) -> EdgeBelief:
    r"""Return the pairwise beliefs of edges, whose margins are the beliefs of their nodes.

    Without its margins, the belief of an edge is the ratio of the pair, `r(x, y) = P*(x, y) / (P*(x) P*(y))`, of which
    the operators of the messages are made (`KernelMRF.interaction`). Of all tables with these interactions, it is the
    one whose margins are the beliefs of the nodes, with all evidence in them:

    $$b_{st}(x, y) = f(x)\, r(x, y)^{1/T}\, g(y), \qquad \sum_y b_{st}(x, y) = b_s(x), \quad
    \sum_x b_{st}(x, y) = b_t(y),$$

    with the temperature T of the beliefs. The functions f and g are found by fitting the margins in turn (iterative
    proportional fitting), from the beliefs without the messages along the edge: where those messages are exact, as for
    states, this start is the answer. On trees, and at fixed points with exponents, it is the belief of the edge. With
    `MaxProduct`, maxima take the place of the sums.

    A graph may be an argument of `jax.jit` if its edges join nodes of one type. Pairs may then have different edge
    types, and the belief of a pair that is not an edge is NaN.

    Args:
        posterior: the posterior, of `infer` or `Posterior.of`.
        edges: pairs of neighbors [some, 2], all of one edge type and, if node types differ, in one orientation; edges
            with relations of their own count as of the type that they share. None: all edges, in the order in which
            they were given.
        points: candidates of both ends [point, *dim], or {node type: candidates}. None: those of the posterior.

    Returns:
        The beliefs of the pairs, with ends in the given order.

    Raises:
        ValueError: pairs that are not edges or are of several types; a posterior with batch axes (use `jax.vmap`); a
            traced graph with several node types at its edges; as `beliefs`.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> posterior = kbp.infer(kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5)), graph)
        >>> pair = kbp.edge_beliefs(posterior, [(0, 1), (2, 1)], np.linspace(-1, 1, 5))
        >>> pair.weights.shape
        (2, 5, 5)
    """
    posterior.require_one()
    posterior = posterior.showing(None)
    model, graph = posterior.model, posterior.graph
    pairs = _all_pairs(graph) if edges is None else _checked_pairs(graph, edges)
    found = _traced_pairs(graph, pairs) if _checks.is_traced(graph) else _known_pairs(model, graph, pairs)
    beliefs: Any = posterior.by_type
    if points is not None:
        types = [v for v, *_ in graph.node_types]
        beliefs = posterior.at(points if isinstance(points, Mapping) else dict.fromkeys(types, points))
    weights = {v: one.weights for v, one in beliefs.items()}
    first, second = found.types
    size = len(pairs) * weights[first].shape[1] * weights[second].shape[1]
    fix = "Pass some of the edges, or fewer points."
    _checks.require_memory("edges", "the tables of all pairs", 3 * size * weights[first].dtype.itemsize, fix)
    margins = tuple(weights[v][position] for v, position in zip(found.types, found.positions, strict=True))
    arrays = found.numbers, found.reverse, found.forward, found.kind
    both = [_ends(model, v, beliefs[v], place) for v, place in zip(found.types, found.positions, strict=True)]
    ends, own = tuple(z for _, z in both), [x for x, _ in both]
    tables, impossible = _fitted(
        model, posterior.solution, arrays, margins, ends, edge_types=found.edge_types, types=found.types
    )
    if found.present is None:
        _checks.read_and_check([somewhere_positive("edges", lambda: pairs, impossible)])
    else:
        tables = jnp.where(found.present[:, None, None], tables, jnp.nan)
    return EdgeBelief.trusted(own[0], own[1], tables)


def _ends(model: KernelMRF, node_type: int, belief: Any, nodes: Any) -> tuple[Array, Array]:
    """Return the candidates of the ends of edges, in the units of the data and of the model.

    They are common [point, *dim], or of each edge [edge, point, *dim] if nodes have own margins.
    """
    points, margins = belief.points, model.margins.get(node_type)
    if margins is None:
        return points, points
    margins = margins.of_nodes(len(belief)).at_nodes(nodes)
    own = points[nodes] if belief.own_points else points
    each = own if belief.own_points else jnp.broadcast_to(points[None], (len(nodes), *points.shape))
    return own, margins.standardized(each)


class _Pairs(NamedTuple):
    """The directed edges of some pairs of neighbors.

    Attributes:
        numbers, reverse: the directed edge from the first to the second end of each pair, and back [some].
        forward: whether the first end of the pair is that of the edge's orientation [some].
        edge_types: edge types that occur, at least.
        kind: place of each pair's type among `edge_types` [some].
        types: node types of both ends.
        positions: places of both ends among the nodes of their types [some].
        present: True for pairs that are edges [some]; None if all are.
    """

    numbers: Any
    reverse: Any
    forward: Any
    edge_types: tuple[int, ...]
    kind: Any
    types: tuple[int, int]
    positions: tuple[Any, Any]
    present: Bool[Array, " some"] | None


@partial(jax.jit, static_argnames=("edge_types", "types"))
def _fitted(
    model: KernelMRF,
    solution: Any,
    pairs: tuple[Any, ...],
    margins: tuple[Array, Array],
    points: tuple[Array, Array],
    edge_types: tuple[int, ...],
    types: tuple[int, int],
) -> tuple[Array, Array]:
    """Return the beliefs of some edges, and a mask of those that are 0 at all pairs of points."""
    forth, back, forward, kind = pairs
    dtype = margins[0].dtype
    heat = model.temperature.astype(dtype)
    each = [log_ratios(model, edge_type, types, points) for edge_type in edge_types]
    of_kind, of_reverse = (_of_kinds(tables, kind, len(forward)) for tables in zip(*each))
    total = raise_logs(jnp.where(forward[:, None, None], of_kind, of_reverse).astype(dtype), 1 / heat)
    for axis, incoming, v, x, margin in zip((2, 1), (back, forth), types, points, margins, strict=True):
        at_points = features_at(model, v, x).astype(dtype)
        owner = jnp.arange(len(incoming), dtype=jnp.int32)
        message = log_values(solution.coefficients[incoming], owner, at_points, model.floor_of(v))
        own = log_or_zero(margin)
        own = jnp.where(own == -jnp.inf, own, own - jnp.where(message == -jnp.inf, 0, message) / heat)
        total = total + jnp.expand_dims(own, axis)
    impossible = jnp.all(total == -jnp.inf, axis=(1, 2))
    arithmetic = model.operators.arithmetic
    addition = arithmetic.addition if isinstance(arithmetic, InLogs) else arithmetic
    add = jnp.max if isinstance(addition, MaxProduct) else jnp.sum
    return fit_margins(jax.nn.softmax(total, axis=(1, 2)), *margins, add), impossible


def fit_margins(
    table: Float[Array, "some first second"],
    first: Float[Array, "some first"],
    second: Float[Array, "some second"],
    add: Any = jnp.sum,
) -> Float[Array, "some first second"]:
    """Return tables with given margins and the interactions of others, by iterative proportional fitting.

    Args:
        table: the tables of the interactions, >= 0.
        first: margins of the first ends.
        second: margins of the second ends.
        add: `jnp.sum`; with `jnp.max`, the margins are maxima, up to a scale.
    """

    def scale(wanted: Array, got: Array) -> Array:
        return jnp.where(got > 0, wanted / jnp.where(got > 0, got, 1), 0)

    def sweep(right: Array, _: None) -> tuple[Array, None]:
        left = scale(first, add(table * right[:, None], axis=2))
        return scale(second, add(table * left[:, :, None], axis=1)), None

    right, _ = jax.lax.scan(jax.checkpoint(sweep), jnp.ones_like(second), length=SWEEPS)
    left = scale(first, add(table * right[:, None], axis=2))
    fitted = table * left[:, :, None] * right[:, None]
    return fitted / jnp.sum(fitted, axis=(1, 2), keepdims=True)


def features_at(model: KernelMRF, node_type: int, points: Array) -> Array:
    """Return features of common points [1, point, rank], or of those of each edge [edge, point, rank]."""
    points = points if points.ndim > model.points[node_type].ndim else points[None]
    flat = features(model.bases[node_type], points.reshape(-1, *points.shape[2:]))
    return flat.reshape(*points.shape[:2], -1)


def _of_kinds(tables: tuple[Array, ...], kind: Array, count: int) -> Array:
    """Return the table of each edge, of its edge type [edge or 1, first, second]."""
    if len(tables) == 1:
        return tables[0]
    stacked = jnp.stack([jnp.broadcast_to(one, (count, *one.shape[1:])) if len(one) > 1 else one for one in tables])
    return stacked[kind, jnp.arange(count, dtype=jnp.int32) if stacked.shape[1] > 1 else 0]


def log_ratios(
    model: KernelMRF, edge_type: int, types: tuple[int, int], points: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return the logarithms of r at pairs of candidates, for pairs in the edge's orientation and in the reverse.

    They are [1, first, second], or [edge, first, second] where an end has own candidates.
    """
    first, second = (features_at(model, v, x) for v, x in zip(types, points, strict=True))
    ends = {k: (a, b) for k, a, b in model.edge_types}[edge_type]
    ratio, least = model.interaction(edge_type), model.floor_of(types[0]) * model.floor_of(types[1])

    def at_pairs(matrix: Array) -> Array:
        values = matmul(matmul(first, matrix), jnp.swapaxes(second, 1, 2))
        return log_or_zero(jnp.maximum(values, least * jnp.max(values, axis=(1, 2), keepdims=True)))

    forth = at_pairs(ratio) if types == ends else None
    back = at_pairs(ratio.T) if types == ends[::-1] else None
    return (back if forth is None else forth), (forth if back is None else back)  # type: ignore[return-value]


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


def _all_pairs(graph: Graph) -> np.ndarray:
    """Return the ends of all undirected edges [pair, 2]."""
    fix = "Pass edges, pairs of node numbers."
    _checks.require(not _checks.is_traced(graph), "edges", "must be given if the graph is traced", "None", fix)
    half = graph.num_edges // 2
    _checks.require(half > 0, "posterior", "must be of a graph with edges", "none", "Use its node beliefs.")
    return np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)[:half]


def _known_pairs(model: KernelMRF, graph: Graph, pairs: np.ndarray) -> _Pairs:
    """Find pairs of neighbors in a graph whose index arrays are known."""
    count = graph.num_nodes
    key = np.asarray(graph.senders).astype(np.int64) * count + np.asarray(graph.receivers)
    order, wanted = np.argsort(key), pairs[:, 0].astype(np.int64) * count + pairs[:, 1]
    position = np.minimum(np.searchsorted(key, wanted, sorter=order), max(len(key) - 1, 0))
    invalid = pairs[key[order][position] != wanted]
    _checks.require(len(invalid) == 0, "edges", "must be edges of the graph", invalid[:3].tolist(), NEIGHBORS)
    numbers, node_type = order[position].astype(np.int32), np.asarray(graph.node_type)
    own = np.asarray(graph.edge_type)[numbers].tolist()
    shared = {k: model.shared_type(k) for k in set(own)}
    kinds = {(shared[k], *map(int, ends)) for k, ends in zip(own, node_type[pairs], strict=True)}
    rule = "must be of one (edge type, first node type, second node type)"
    _checks.require(len(kinds) == 1, "edges", rule, sorted(kinds), "Call edge_beliefs once for each of them.")
    ((_, *ends),) = kinds
    edge_types, kind = np.unique(own, return_inverse=True)
    positions = [(np.cumsum(node_type == v) - 1)[nodes].astype(np.int32) for v, nodes in zip(ends, pairs.T)]
    reverse, forward = np.asarray(graph.reverse)[numbers], numbers < graph.num_edges // 2
    kinds, types = tuple(int(k) for k in edge_types), (ends[0], ends[1])
    return _Pairs(numbers, reverse, forward, kinds, kind.astype(np.int32), types, (positions[0], positions[1]), None)


def _traced_pairs(graph: Graph, pairs: np.ndarray) -> _Pairs:
    """Find pairs of neighbors in a traced graph."""
    at_edges = sorted({v for _, *ends in graph.edge_types for v in ends})
    fix = "Build the graph outside jax.jit, and close over it in the compiled function."
    _checks.require(len(at_edges) == 1, "graph", "must have edges of one node type if it is traced", at_edges, fix)
    (node_type,) = at_edges
    same = (graph.senders[None] == pairs[:, :1]) & (graph.receivers[None] == pairs[:, 1:])
    numbers = jnp.argmax(same, axis=1).astype(jnp.int32)
    position = (jnp.cumsum(graph.node_type == node_type) - 1).astype(jnp.int32)
    edge_types = tuple(k for k, *_ in graph.edge_types)
    kind = jnp.searchsorted(np.array(edge_types, np.int32), graph.edge_type[numbers]).astype(jnp.int32)
    positions, forward = (position[pairs[:, 0]], position[pairs[:, 1]]), numbers < graph.num_edges // 2
    present, types = jnp.any(same, axis=1), (node_type, node_type)
    return _Pairs(numbers, graph.reverse[numbers], forward, edge_types, kind, types, positions, present)
