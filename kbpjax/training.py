"""Training data of a pairwise Markov random field: samples pooled by node type, edge type and kind of observation."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax.graph import Graph


class TrainingData(eqx.Module):
    """Training samples pooled by type; `pool` makes it from samples on a graph.

    Args:
        edges: {edge type: (x_first, x_second)}, pairs of samples [sample, *dim] each, in the orientation of `ends`.
        nodes: {node type: x}, samples [sample, *dim] of the variables.
        observations: {node type: (x, y)}, pairs of a variable and its observation, for the types that have one.
        ends: {edge type: (node type of first end, node type of second end)}. May be left out where there is one node
            type.
        degrees: {node type: largest number of neighbours, an observation counted as one}; sets the tensor power. A type
            left out counts as 5.

    Raises:
        ValueError: samples missing, empty, not finite, of unequal number, or of another shape than their node type's.

    Example:
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

    def __init__(
        self,
        edges: Mapping[int, tuple[Any, Any]],
        nodes: Mapping[int, Any],
        observations: Mapping[int, tuple[Any, Any]] | None = None,
        *,
        ends: Mapping[int, tuple[int, int]] | None = None,
        degrees: Mapping[int, int] | None = None,
    ):
        _checks.require(bool(nodes), "nodes", "must hold samples of at least one node type", "none", "Pass {0: x}.")
        self.nodes = {v: _samples(f"nodes[{v}]", x) for v, x in _typed("nodes", nodes).items()}
        pairs = {k: _pairs(f"edges[{k}]", pair) for k, pair in _typed("edges", edges).items()}
        seen = _typed("observations", observations or {})
        self.observations = {v: _pairs(f"observations[{v}]", pair) for v, pair in seen.items()}
        if ends is None:
            fix = "Pass ends={edge type: (first, second)}, or let kbpjax.pool make the data from a graph."
            told = len(self.nodes) == 1 or not pairs
            _checks.require(told, "ends", "must say which node types each edge type joins", "None", fix)
        joined = dict.fromkeys(pairs, (min(self.nodes),) * 2) if ends is None else dict(ends)
        rule = f"must give a pair of node types for each of the edge types {sorted(pairs)}"
        matched = sorted(joined) == sorted(pairs) and all(len(pair) == 2 for pair in joined.values())
        _checks.require(matched, "ends", rule, joined, "Give one (first, second) for each edge type.")
        # As in a graph, a pair of different node types runs from the smaller to the larger.
        self.edges = {k: (a, b) if joined[k][0] <= joined[k][1] else (b, a) for k, (a, b) in pairs.items()}
        self.ends = tuple((k, min(joined[k]), max(joined[k])) for k in sorted(pairs))
        known = dict(degrees or {})
        fix = "Give each node type of `nodes` its largest number of neighbours, or leave it out."
        ok = set(known) <= set(self.nodes) and all(d >= 0 for d in known.values())
        _checks.require(ok, "degrees", f"must be >= 0, of node types among {sorted(self.nodes)}", known, fix)
        self.degrees = tuple(sorted((int(v), int(d)) for v, d in known.items()))
        self._check()

    def _check(self) -> None:
        for k, *pair in self.ends:
            for v, x in zip(pair, self.edges[k], strict=True):
                self._check_domain(f"edges[{k}]", v, x)
        for v, (x, _) in self.observations.items():
            self._check_domain(f"observations[{v}]", v, x)

    def _check_domain(self, argument: str, node_type: int, x: Array) -> None:
        known = sorted(self.nodes)
        fix = "Pass samples of every node type in `nodes`."
        _checks.require(node_type in self.nodes, argument, f"must use node types {known}", node_type, fix)
        shape, got = self.nodes[node_type].shape[1:], x.shape[1:]
        fix = f"Points of node type {node_type} have shape {shape}."
        _checks.require(got == shape, argument, f"must hold points of shape {shape}", got, fix)


def pool(graph: Graph, samples: Numbers, observations: Numbers | None = None) -> TrainingData:
    """Pool samples on a graph by node and edge type: a template's pairs come from all its edges and all samples.

    Args:
        graph: the graph on which the samples lie.
        samples: values of all variables [sample, node, *dim].
        observations: observations of all variables [sample, node, *obs_dim], or None.

    Returns:
        The training data.

    Raises:
        ValueError: shapes that do not fit the graph or each other, no sample, NaN or infinity.

    Example:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(3), np.arange(6.0).reshape(2, 3))
        >>> [x.tolist() for x in data.edges[0]]
        [[0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 5.0]]
    """
    x = _field("samples", samples, graph)
    y = None if observations is None else _field("observations", observations, graph)
    if y is not None:
        fix = "Pass one observation of every node for each sample."
        _checks.require(len(y) == len(x), "observations", f"must have {len(x)} samples, as samples", len(y), fix)
    forward = graph.num_edges // 2
    first, second = np.asarray(graph.senders)[:forward], np.asarray(graph.receivers)[:forward]
    edge_type, node_type = np.asarray(graph.edge_type)[:forward], np.asarray(graph.node_type)

    def gather(array: Array, nodes: np.ndarray) -> Array:
        return array[:, nodes].reshape(-1, *array.shape[2:])

    of_type = {v: np.flatnonzero(node_type == v) for v, *_ in graph.node_types}
    on_edges = {k: np.flatnonzero(edge_type == k) for k, *_ in graph.edge_types}
    return TrainingData(
        edges={k: (gather(x, first[on]), gather(x, second[on])) for k, on in on_edges.items()},
        nodes={v: gather(x, nodes) for v, nodes in of_type.items()},
        observations=None if y is None else {v: (gather(x, i), gather(y, i)) for v, i in of_type.items()},
        ends={k: (a, b) for k, a, b in graph.edge_types},
        degrees={v: degree + (y is not None) for v, _, degree in graph.node_types},
    )


def _typed(argument: str, by_type: Mapping[int, Any]) -> dict[int, Any]:
    whole = all(isinstance(key, int | np.integer) and key >= 0 for key in by_type)
    fix = "Number the types 0, 1, 2, ..."
    _checks.require(whole, argument, "must have types that are whole numbers >= 0 as keys", list(by_type), fix)
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
    fix = "Pass two arrays of samples, x[i] and y[i] being one pair."
    _checks.require(
        isinstance(pair, tuple | list) and len(pair) == 2, argument, "must be a pair of arrays", type(pair), fix
    )
    x, y = _samples(f"{argument}[0]", pair[0]), _samples(f"{argument}[1]", pair[1])
    _checks.require(len(x) == len(y), argument, "must pair as many samples", f"{len(x)} and {len(y)}", fix)
    return x, y


def _field(argument: str, values: Any, graph: Graph) -> Array:
    values = values if isinstance(values, jax.Array) else np.asarray(values)
    shaped = values.ndim >= 2 and values.shape[1] == graph.num_nodes
    fix = "Put samples on axis 0 and nodes on axis 1; one sample is x[None]."
    rule = f"must have shape [sample, {graph.num_nodes}, ...]"
    _checks.require(shaped, argument, rule, f"shape {values.shape}", fix)
    return _samples(argument, values)
