"""Graphs in space and time: copies of a graph, one for each time, joined from time to time; and their records.

Node s at time t is number t * num_nodes + s of the repeated graph. A record [time, node] is cut into windows of as many
times, which are the cases of `pool`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.graphs.graph import Graph


@public
def repeat_graph(graph: Graph, steps: int, *, lags: Sequence[int] = (1,), across: bool = False) -> Graph:
    """Return copies of a graph, one for each time, with edges from each node to itself at later times.

    Edges within a time keep their types and their features. Edges in time have new types, numbered after those of the
    graph: for each lag, one for each node type; with `across`, then two for each edge type, from first ends to later
    second ends and from second ends to later first ends.

    Args:
        graph: the graph of one time; a graph without edges gives parallel chains.
        steps: number of times, >= 1.
        lags: numbers of steps that edges in time span, >= 1, for instance (1, 24) for hours.
        across: whether neighbors are joined in time, too.

    Returns:
        The graph of steps * num_nodes nodes; node s at time t is number t * num_nodes + s. Features of edges in time,
        if the graph has features, are 0, with the number of steps as one more feature of all edges.

    Raises:
        ValueError: a count out of range, lags that are not distinct, a traced graph.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.repeat_graph(kbp.chain_graph(3), 4)
        Graph(
          12 nodes, 17 edges, with cycles
          edges: type 0 joins node types 0 and 0, type 1 joins node types 0 and 0
        )
    """
    _checks.require_count("steps", steps)
    fix = "Build the graph outside jax.jit."
    _checks.require(not _checks.is_traced(graph), "graph", "must be known", "a tracer", fix)
    spans = list(lags)
    ok = all(_checks.is_whole(lag) and lag >= 1 for lag in spans) and len(set(spans)) == len(spans)
    _checks.require(ok, "lags", "must be distinct integers >= 1", spans, "Pass for instance (1, 24).")
    count, half = graph.num_nodes, graph.num_edges // 2
    pairs = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)[:half]
    kinds, node_type = np.asarray(graph.edge_type)[:half], np.asarray(graph.node_type)
    features = None if graph.edge_features is None else np.asarray(graph.edge_features)
    groups = [(pairs, kinds, features, 0, 0)]  # pairs, types, features, steps from the first to the second end
    own = np.arange(count)
    following = 1 + max((k for k, *_ in graph.edge_types), default=-1)
    for lag in spans:
        groups.append((np.stack([own, own], axis=1), following + node_type, None, lag, lag))
        following += 1 + int(node_type.max())
        if across and half:
            first, wide = following, 1 + int(kinds.max())
            groups.append((pairs, first + kinds, features, lag, lag))
            groups.append((pairs[:, ::-1], first + wide + kinds, features, lag, lag))
            following += 2 * wide
    edges, types, rows = [], [], []
    for ends, kind, feature, lag, span in groups:
        begins = count * np.arange(max(steps - lag, 0))
        moved = ends[None] + np.array([0, count * lag])[None, None]
        edges.append((moved + begins[:, None, None]).reshape(-1, 2))
        types.append(np.tile(kind, len(begins)))
        if features is not None:
            own_rows = np.zeros((len(ends), features.shape[1])) if feature is None else feature
            whole = np.concatenate([own_rows, np.full((len(ends), 1), float(span))], axis=1)
            rows.append(np.tile(whole, (len(begins), 1)))
    return Graph.from_edges(
        np.concatenate(edges),
        count * steps,
        edge_type=np.concatenate(types),
        node_type=np.tile(node_type, steps),
        edge_features=np.concatenate(rows) if rows else None,
    )


@public
def time_windows(values: Any, steps: int, *, stride: int = 1) -> Shaped[Array, "window node *dim"]:
    """Return windows of successive times of a record, as cases of `repeat_graph`.

    Args:
        values: the record [time, node, *dim], or of one variable [time]; NaN where missing.
        steps: number of times of a window, >= 1.
        stride: number of times from the start of one window to that of the next, >= 1.

    Returns:
        The windows [window, steps * node, *dim].

    Raises:
        ValueError: fewer times than `steps`, or a count out of range.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> kbp.time_windows(np.arange(10).reshape(5, 2), 2, stride=2).tolist()  # of two nodes
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    _checks.require_count("steps", steps)
    _checks.require_count("stride", stride)
    record = _checks.as_numpy("values", values)
    _checks.require(record.ndim >= 1, "values", "must have shape [time, node, *dim]", record.shape, "Pass a record.")
    record = record[:, None] if record.ndim == 1 else record
    ok, fix = len(record) >= steps, "Pass a longer record, or fewer steps."
    _checks.require(ok, "values", f"must have {steps} times or more", len(record), fix)
    first = np.arange(0, len(record) - steps + 1, stride)
    cut: Numbers = record[first[:, None] + np.arange(steps)]
    return _checks.as_array("values", np.asarray(cut).reshape(len(first), -1, *record.shape[2:]))
