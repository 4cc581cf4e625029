"""Training data of a pairwise Markov random field: samples pooled by node type and edge type."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_lines, show_list, values_or_shapes
from kbpjax.graphs.graph import Graph


class TrainingData(eqx.Module):
    """Training samples pooled by type; `pool` builds them from samples on a graph.

    Args:
        edges: {edge type: (x_first, x_second)}, pairs of samples [sample, *dim] each, in the orientation of `ends`.
        nodes: {node type: x}, samples [sample, *dim] of the variables.
        observations: {node type: (x, y)}, pairs of a variable and its observation, for observed node types.
        ends: {edge type: (node type of first end, node type of second end)}; optional with a single node type.
        degrees: {node type: maximum number of neighbors, with an observation counted as one neighbor}; sets the tensor
            power. The default for a missing type is 5.
        rows: {edge type: (rows of first ends, rows of second ends)}, indices into `nodes` of the samples of each pair.
            With them, the full-rank and linear-time rules share points between edges. None: unknown.

    Raises:
        ValueError: samples are missing, empty or not finite, or their numbers or shapes do not match.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.linspace(0, 1, 50)
        >>> data = kbp.TrainingData(edges={0: (x, x**2)}, nodes={0: x}, observations={0: (x, 1 - x)})
        >>> data.nodes[0].shape
        (50,)
    """

    edges: dict[int, tuple[Array, Array]]
    nodes: dict[int, Array]
    observations: dict[int, tuple[Array, Array]]
    ends: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    degrees: tuple[tuple[int, int], ...] = eqx.field(static=True)
    rows: dict[int, tuple[Array, Array]] | None

    def __init__(
        self,
        edges: Mapping[int, tuple[Any, Any]],
        nodes: Mapping[int, Any],
        observations: Mapping[int, tuple[Any, Any]] | None = None,
        *,
        ends: Mapping[int, tuple[int, int]] | None = None,
        degrees: Mapping[int, int] | None = None,
        rows: Mapping[int, tuple[Any, Any]] | None = None,
    ):
        _checks.require(bool(nodes), "nodes", "must hold samples of at least one node type", "none", "Pass {0: x}.")
        self.nodes = {v: _samples(f"nodes[{v}]", x) for v, x in _typed("nodes", nodes).items()}
        pairs = {k: _pairs(f"edges[{k}]", pair) for k, pair in _typed("edges", edges).items()}
        observed = _typed("observations", observations or {})
        self.observations = {v: _pairs(f"observations[{v}]", pair) for v, pair in observed.items()}
        if ends is None:
            fix = "Pass ends={edge type: (first, second)}, or build the data with kbpjax.pool."
            ok = len(self.nodes) == 1 or not pairs
            _checks.require(ok, "ends", "must be given if there are several node types", "None", fix)
        joined = dict.fromkeys(pairs, (min(self.nodes),) * 2) if ends is None else dict(ends)
        rule = f"must have a pair of node types for each of the edge types {sorted(pairs)}"
        matched = sorted(joined) == sorted(pairs) and all(np.shape(pair) == (2,) for pair in joined.values())
        _checks.require(matched, "ends", rule, joined, "Pass one (first, second) per edge type.")
        # As in a graph, edges are oriented from the smaller to the larger node type.
        forward = {k: joined[k][0] <= joined[k][1] for k in pairs}
        self.edges = {k: (a, b) if forward[k] else (b, a) for k, (a, b) in pairs.items()}
        self.ends = tuple((k, min(joined[k]), max(joined[k])) for k in sorted(pairs))
        given = dict(degrees or {})
        fix = "Pass {node type: maximum number of neighbors}, or leave it out."
        ok = set(given) <= set(self.nodes) and all(d >= 0 for d in given.values())
        _checks.require(ok, "degrees", f"must be >= 0, with node types among {sorted(self.nodes)}", given, fix)
        self.degrees = tuple(sorted((int(v), int(d)) for v, d in given.items()))
        self.rows = None if rows is None else {k: _rows(rows.get(k), forward[k]) for k in pairs}
        self._check()

    def points(self, node_type: int) -> Array:
        """Return the points of a node type at which the full-rank and linear-time rules multiply messages."""
        if self.rows is not None or not any(node_type in ends for _, *ends in self.ends):
            return self.nodes[node_type]
        ends = [x for k, *ends in self.ends for v, x in zip(ends, self.edges[k], strict=True) if v == node_type]
        return jnp.concatenate(ends)

    def places(self, edge_type: int) -> tuple[Array, Array]:
        """Return indices into `points` of the first and second ends of an edge type's pairs."""
        if self.rows is not None:
            return self.rows[edge_type]
        offsets = dict.fromkeys(self.nodes, 0)
        indices = {}
        for k, *ends in self.ends:
            for end, v in enumerate(ends):
                count = len(self.edges[k][end])
                indices[k, end] = jnp.arange(offsets[v], offsets[v] + count, dtype=jnp.int32)
                offsets[v] += count
        return indices[edge_type, 0], indices[edge_type, 1]

    def _check(self) -> None:
        for k, *pair in self.ends:
            for end, (v, x) in enumerate(zip(pair, self.edges[k], strict=True)):
                self._check_domain(f"edges[{k}]", v, x)
                if self.rows is not None:
                    self._check_rows(k, end, v, x)
        for v, (x, _) in self.observations.items():
            self._check_domain(f"observations[{v}]", v, x)

    def _check_rows(self, edge_type: int, end: int, node_type: int, x: Array) -> None:
        assert self.rows is not None
        rows, samples = self.rows[edge_type][end], self.nodes[node_type]
        rule = f"must have {len(x)} rows of nodes[{node_type}] with the samples of edges[{edge_type}]"
        fix = "Leave rows out, or build the data with kbpjax.pool."
        argument = f"rows[{edge_type}]"
        _checks.require(rows.shape == (len(x),), argument, rule, f"shape {rows.shape}", fix)
        if not _checks.is_traced((rows, samples, x)):
            inside = np.all((np.asarray(rows) >= 0) & (np.asarray(rows) < len(samples)))
            same = bool(inside) and np.array_equal(np.asarray(samples)[np.asarray(rows)], np.asarray(x))
            _checks.require(same, argument, rule, "other rows", fix)

    def _check_domain(self, argument: str, node_type: int, x: Array) -> None:
        types = sorted(self.nodes)
        fix = "Pass samples of every node type in `nodes`."
        _checks.require(node_type in self.nodes, argument, f"must use node types {types}", node_type, fix)
        shape, got = self.nodes[node_type].shape[1:], x.shape[1:]
        fix = f"Points of node type {node_type} have shape {shape}."
        _checks.require(got == shape, argument, f"must have points of shape {shape}", got, fix)

    @values_or_shapes
    def __repr__(self) -> str:
        nodes = [f"node type {v}: {len(x)} samples of shape {x.shape[1:]}" for v, x in self.nodes.items()]
        edges = [f"edge type {k}: {len(self.edges[k][0])} pairs of node types {a} and {b}" for k, a, b in self.ends]
        observed = [
            f"observations of node type {v}: {len(y)} of shape {y.shape[1:]}" for v, (_, y) in self.observations.items()
        ]
        return show_lines("TrainingData", [line for lines in (nodes, edges, observed) for line in show_list(lines)])


def pool(graph: Graph | Sequence[Graph], samples: Numbers, observations: Numbers | None = None) -> TrainingData:
    """Return training data pooled by node and edge type from samples on one or more graphs.

    Args:
        graph: graph of the samples, or a sequence of graphs of any sizes that share node and edge types.
        samples: values of all variables [sample, node, *dim]; for several graphs, a list with one array per graph.
        observations: observations of all variables [sample, node, *obs_dim]; for several graphs, a list with one array
            per graph. None: no observations.

    Returns:
        The training data.

    Raises:
        ValueError: shapes do not match, there are no samples, values are NaN or infinite, or graphs disagree on the
            node types of an edge type.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(3), np.arange(6.0).reshape(2, 3))
        >>> [x.tolist() for x in data.edges[0]]
        [[0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 5.0]]
        >>> chains = [kbp.chain_graph(n) for n in (2, 4)]
        >>> kbp.pool(chains, [np.zeros((1, n)) for n in (2, 4)]).nodes[0].shape
        (6,)
    """
    if isinstance(graph, Graph):
        return _join([_GraphSamples.of("", graph, samples, observations)])
    graphs: list[Any] = list(graph)
    rule = "must be a graph or a sequence of graphs"
    _checks.require(bool(graphs), "graph", rule, "none", "Pass at least one graph.")
    columns = [_per_graph("samples", samples, len(graphs)), _per_graph("observations", observations, len(graphs))]
    return _join([_GraphSamples.of(f"[{i}]", *one) for i, one in enumerate(zip(graphs, *columns, strict=True))])


def _per_graph(argument: str, arrays: Any, count: int) -> Sequence[Any]:
    ok = arrays is None or (isinstance(arrays, list | tuple) and len(arrays) == count)
    fix = "Pass one array per graph."
    got = f"{len(arrays)}" if isinstance(arrays, list | tuple) else type(arrays).__name__
    _checks.require(ok, argument, f"must be a list of {count} arrays", got, fix)
    return [None] * count if arrays is None else arrays


@dataclasses.dataclass(frozen=True)
class _GraphSamples:
    """Samples of one graph by type."""

    edges: dict[int, tuple[Any, Any]]  # row indices into `nodes`
    nodes: dict[int, Any]
    observations: dict[int, Any] | None
    ends: dict[int, tuple[int, int]]
    degrees: dict[int, int]

    @classmethod
    def of(cls, which: str, graph: Graph, samples: Any, observations: Any) -> "_GraphSamples":
        x = _field(f"samples{which}", samples, graph)
        y = None if observations is None else _field(f"observations{which}", observations, graph)
        if y is not None:
            fix = "Pass one observation per node and sample."
            rule = f"must have {len(x)} samples, as samples"
            _checks.require(len(y) == len(x), f"observations{which}", rule, len(y), fix)
        forward = graph.num_edges // 2
        ends = np.stack([np.asarray(graph.senders)[:forward], np.asarray(graph.receivers)[:forward]])
        edge_type, node_type = np.asarray(graph.edge_type)[:forward], np.asarray(graph.node_type)
        of_type = {v: np.flatnonzero(node_type == v) for v, *_ in graph.node_types}
        within = np.empty(graph.num_nodes, int)
        for nodes in of_type.values():
            within[nodes] = np.arange(len(nodes))

        def rows(v: int, nodes: np.ndarray) -> np.ndarray:
            return (len(of_type[v]) * np.arange(len(x))[:, None] + within[nodes]).reshape(-1)

        def gather(array: Any, nodes: np.ndarray) -> Any:
            return array[:, nodes].reshape(-1, *array.shape[2:])

        on_edges = {k: ends[:, edge_type == k] for k, *_ in graph.edge_types}
        return cls(
            edges={k: (rows(a, on_edges[k][0]), rows(b, on_edges[k][1])) for k, a, b in graph.edge_types},
            nodes={v: gather(x, nodes) for v, nodes in of_type.items()},
            observations=None if y is None else {v: gather(y, nodes) for v, nodes in of_type.items()},
            ends={k: (a, b) for k, a, b in graph.edge_types},
            degrees={v: degree + (y is not None) for v, _, degree in graph.node_types},
        )


def _join(parts: list[_GraphSamples]) -> TrainingData:
    """Concatenate the samples of each type over graphs."""
    ends: dict[int, tuple[int, int]] = {}
    for i, part in enumerate(parts):
        clash = {k: pair for k, pair in part.ends.items() if ends.setdefault(k, pair) != pair}
        rule = f"must have edge types that join the same node types in all graphs, {ends}"
        _checks.require(not clash, f"graph[{i}]", rule, clash, "Use a separate edge type for each pair of node types.")
    nodes: dict[int, list] = {}
    y: dict[int, list] = {}
    rows: dict[int, tuple[list, list]] = {}
    degrees: dict[int, int] = {}
    offsets: dict[int, int] = {}
    for part in parts:
        for k, pair in part.edges.items():
            for end, indices in enumerate(pair):
                rows.setdefault(k, ([], []))[end].append(indices + offsets.get(ends[k][end], 0))
        for v, x in part.nodes.items():
            nodes.setdefault(v, []).append(x)
            offsets[v] = offsets.get(v, 0) + len(x)
            degrees[v] = max(degrees.get(v, 0), part.degrees[v])
        for v, observed in (part.observations or {}).items():
            y.setdefault(v, []).append(observed)
    joined = {v: _concatenate(f"samples of node type {v}", x) for v, x in nodes.items()}
    indices = {k: (np.concatenate(first), np.concatenate(second)) for k, (first, second) in rows.items()}
    pairs = {v: (joined[v], _concatenate(f"observations of node type {v}", arrays)) for v, arrays in y.items()}
    return TrainingData(
        edges={k: (joined[ends[k][0]][first], joined[ends[k][1]][second]) for k, (first, second) in indices.items()},
        nodes=joined,
        observations=pairs or None,
        ends=ends,
        degrees=degrees,
        rows=indices,
    )


def _concatenate(argument: str, arrays: list[Any]) -> Any:
    shapes = {array.shape[1:] for array in arrays}
    fix = "Samples of one type must have the same shape in all graphs."
    _checks.require(len(shapes) == 1, argument, "must have one shape", sorted(shapes), fix)
    return arrays[0] if len(arrays) == 1 else (jnp if _checks.is_traced(arrays) else np).concatenate(arrays)


def _rows(pair: Any, forward: bool) -> tuple[Array, Array]:
    """Return the rows of both ends as index arrays, in the orientation of the edge type."""
    fix = "Pass the rows of both ends for every edge type, or leave rows out."
    ok = isinstance(pair, tuple | list) and len(pair) == 2
    _checks.require(ok, "rows", "must hold a pair of index arrays for each edge type", type(pair).__name__, fix)
    first, second = (jnp.asarray(rows, jnp.int32) for rows in pair)
    return (first, second) if forward else (second, first)


def _typed(argument: str, by_type: Mapping[int, Any]) -> dict[int, Any]:
    integers = all(isinstance(key, int | np.integer) and key >= 0 for key in by_type)
    fix = "Number the types 0, 1, 2, ..."
    _checks.require(integers, argument, "must have integers >= 0 as keys", list(by_type), fix)
    return {int(key): value for key, value in by_type.items()}


def _samples(argument: str, x: Any) -> Array:
    x = x if isinstance(x, jax.Array) else np.asarray(x)
    shape = f"shape {x.shape}"
    _checks.require(
        x.ndim >= 1 and x.size > 0, argument, "must hold at least one sample", shape, "Pass [sample, *dim]."
    )
    _checks.require_finite(argument, x, "Drop or impute missing samples first.")
    return _checks.as_array(argument, x)


def _pairs(argument: str, pair: tuple[Any, Any]) -> tuple[Array, Array]:
    fix = "Pass two arrays of samples; x[i] and y[i] form a pair."
    _checks.require(
        isinstance(pair, tuple | list) and len(pair) == 2, argument, "must be a pair of arrays", type(pair), fix
    )
    x, y = _samples(f"{argument}[0]", pair[0]), _samples(f"{argument}[1]", pair[1])
    rule = "must have the same number of samples at both ends"
    _checks.require(len(x) == len(y), argument, rule, f"{len(x)} and {len(y)}", fix)
    return x, y


def _field(argument: str, values: Any, graph: Graph) -> Any:
    values = values if isinstance(values, jax.Array) else np.asarray(values)
    shaped = values.ndim >= 2 and values.shape[1] == graph.num_nodes
    fix = "Put samples on axis 0 and nodes on axis 1; one sample is x[None]."
    rule = f"must have shape [sample, {graph.num_nodes}, ...]"
    _checks.require(shaped, argument, rule, f"shape {values.shape}", fix)
    fix = "Drop or impute missing samples first."
    _checks.require(values.size > 0, argument, "must hold at least one sample", f"shape {values.shape}", fix)
    _checks.require_finite(argument, values, fix)
    return values
