"""Pooling: training data from samples on graphs, by node type and edge type, without what is missing."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.learning.data import Cases, PartlySeen, TrainingData, with_numbers
from kbpjax.learning.labels import ByType, Labels, Values, are_labels, encode, labels_in
from kbpjax.learning.patterns import can_be_partly_seen, common_patterns, partly_seen
from kbpjax.learning.starts import StartSamples, start_samples, starts_by_type

Masks = Numbers | Mapping[int, Numbers]


@public
def pool(
    graph: Graph | Sequence[Graph],
    samples: Values | Mapping[int, Values] | Sequence[Values],
    observations: Values | Mapping[int, Values] | Sequence[Values] | None = None,
    *,
    mask: Masks | Sequence[Masks | None] | None = None,
    observation_mask: Masks | Sequence[Masks | None] | None = None,
) -> TrainingData:
    """Return training data pooled by node and edge type from samples on one or more graphs.

    Texts and categories of pandas are labels: they are encoded as numbers, the model keeps the labels, and `mode` and
    `sample` return them. Their kernel is `Delta`, unless another one is given. A label that is None or NaN is missing.

    Values may be missing: NaN in arrays of floats, None or NA among numbers, masked entries of NumPy masked arrays, or
    False in a mask. A pair of neighbors is used if both are present, a pair of a sample and its observation if both are
    present, and a sample if it is present. Nothing else is dropped.

    A sample that is a vector with a missing entry is missing. Of observations that are vectors of fewer than 16
    numbers, the entries that are there are used: evidence is learned for each pattern of entries, of up to four entries
    for all patterns, of more for the 16 most common ones and the single entries, as far as 10 pairs have them. Longer
    ones are missing as a whole.

    Args:
        graph: graph of the samples, or a sequence of graphs of any sizes that share node and edge types.
        samples: values of all variables [sample, node, *dim]; or {node type: values [sample, node_of_type, *dim]}, in
            order of node number, for node types with different shapes. For several graphs, a list with one entry per
            graph.
        observations: observations of all variables [sample, node, *obs_dim]; or {node type: observations [sample,
            node_of_type, *obs_dim]} of the observed node types. For several graphs, a list with one entry per graph.
            None: no observations.
        mask: samples that are present, boolean or 0 and 1 [sample, node], or [node] for all samples; or {node type:
            mask [sample, node_of_type] or [node_of_type]}. For several graphs, a list with one entry per graph. None:
            all. Entries of samples elsewhere are ignored.
        observation_mask: the same for observations.

    Returns:
        The training data. Their `cases` are the samples as given.

    Raises:
        ValueError: shapes do not match, there are no samples, values are infinite, a node type or an edge type has
            nothing that is present, graphs disagree on the node types of an edge type, or a mask is traced.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(3), np.arange(6.0).reshape(2, 3))
        >>> [x.tolist() for x in data.edges[0]]
        [[0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 5.0]]
        >>> chains = [kbp.chain_graph(n) for n in (2, 4)]
        >>> kbp.pool(chains, [np.zeros((1, n)) for n in (2, 4)]).nodes[0].shape
        (6,)
        >>> data = kbp.pool(kbp.chain_graph(3), [[0.0, 1.0, np.nan]])
        >>> data.nodes[0].tolist(), [x.tolist() for x in data.edges[0]]
        ([0.0, 1.0], [[0.0], [1.0]])
        >>> pair = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
        >>> kbp.pool(pair, {0: np.zeros((5, 1)), 1: np.zeros((5, 1, 3))}).nodes[1].shape  # numbers and vectors
        (5, 3)
    """
    if isinstance(graph, Graph):
        types = [v for v, *_ in graph.node_types]
        (samples,), labels = _encoded("samples", [samples], types)
        (observations,), obs_labels = _encoded("observations", [observations], types)
        return _join([_GraphSamples.of("", graph, samples, observations, mask, observation_mask)], labels, obs_labels)
    graphs: list[Any] = list(graph)
    rule = "must be a graph or a sequence of graphs"
    _checks.require(bool(graphs), "graph", rule, "none", "Pass at least one graph.")
    given = {"samples": samples, "observations": observations, "mask": mask, "observation_mask": observation_mask}
    columns = [_per_graph(name, values, len(graphs)) for name, values in given.items()]
    types = sorted({v for one in graphs if isinstance(one, Graph) for v, *_ in one.node_types})
    columns[0], labels = _encoded("samples", columns[0], types)
    columns[1], obs_labels = _encoded("observations", columns[1], types)
    parts = [_GraphSamples.of(f"[{i}]", *one) for i, one in enumerate(zip(graphs, *columns, strict=True))]
    return _join(parts, labels, obs_labels)


def pool_cases(cases: Sequence[Cases], labels: ByType = (), obs_labels: ByType = ()) -> TrainingData:
    """Return training data pooled from cases, whose labels are codes."""
    parts = []
    for i, one in enumerate(cases):
        values = one.samples, one.observations or None, one.present, one.used or None
        if not _checks.is_traced(values):
            values = jax.tree.map(np.asarray, values)  # index work in NumPy compiles nothing
        samples, observations, present, used = values
        parts.append(_GraphSamples.of(f"[{i}]", one.graph, samples, observations, present, used))
    return _join(parts, dict(labels), dict(obs_labels))


def _encoded(argument: str, values: Sequence[Any], types: list[int]) -> tuple[list[Any], dict[int, Labels]]:
    """Return values of each graph with labels as codes, and {node type: its labels}; types in one array share them."""
    groups: dict[Any, list[Any]] = {}
    for given in values:
        for v, one in given.items() if isinstance(given, Mapping) else ((None, given),):
            if are_labels(one):
                groups.setdefault(v, []).append(one)
    if not groups:
        return list(values), {}
    known = {v: labels_in(argument if v is None else f"{argument}[{v}]", own) for v, own in groups.items()}

    def code(v: int | None, one: Any) -> Any:
        return encode(argument if v is None else f"{argument}[{v}]", one, known.get(v))

    found = [
        {v: code(v, one) for v, one in given.items()} if isinstance(given, Mapping) else code(None, given)
        for given in values
    ]
    return found, dict.fromkeys(types, known[None]) if None in known else known


def _per_graph(argument: str, arrays: Any, count: int) -> Sequence[Any]:
    ok = arrays is None or (isinstance(arrays, list | tuple) and len(arrays) == count)
    fix = "Pass one array per graph."
    got = f"{len(arrays)}" if isinstance(arrays, list | tuple) else type(arrays).__name__
    _checks.require(ok, argument, f"must be a list of {count} arrays", got, fix)
    return [None] * count if arrays is None else arrays


@dataclasses.dataclass(frozen=True)
class _Values:
    """Samples or observations of one graph by node type, which may be missing.

    Attributes:
        arrays: {node type: values [case, node_of_type, *dim]}, 0 where missing, and NaN where some entries are.
        present: {node type: mask of the values that are not missing [case, node_of_type]}.
        partly: {node type: mask of the vectors of which some entries are missing [case, node_of_type]}, if any.
    """

    arrays: dict[int, Any]
    present: dict[int, Any]
    partly: dict[int, Any]

    @classmethod
    def of(cls, which: str, name: str, values: Any, mask_name: str, mask: Any, of_type: dict[int, Any]) -> "_Values":
        """Return values of all nodes, or by type, as {node type: values}.

        Args:
            which: the index of the graph, for errors.
            name: the argument's name.
            values: the values.
            mask_name: the name of the argument `mask`.
            mask: mask of the values, or None.
            of_type: {node type: numbers of its nodes}.
        """
        argument = f"{name}{which}"
        if isinstance(values, Mapping):
            given = _of_types(argument, values, of_type)
            groups = {f"{argument}[{v}]": (given[v], {v: of_type[v]}) for v in of_type if v in given}
        else:
            groups = {argument: (values, of_type)}
        read = {one: _field(one, array, sum(map(len, types.values()))) for one, (array, types) in groups.items()}
        counts = {one: len(array) for one, (array, *_) in read.items()}
        fix = "Pass one row per sample for every node type, with NaN where values are missing."
        same = len(set(counts.values())) <= 1
        _checks.require(same, argument, "must have the same number of samples for all node types", counts, fix)
        shape = next(iter(counts.values()), 0), sum(map(len, of_type.values()))
        full = _mask(f"{mask_name}{which}", mask, shape, of_type)
        arrays, present, partly = {}, {}, {}
        for one, (array, there, some, infinite) in read.items():
            types = groups[one][1]
            nodes = np.sort(np.concatenate(list(types.values())))
            seen = full[:, nodes]
            bad, fix = int(np.sum(infinite & seen)), "Correct these values, or mark them as missing by NaN or a mask."
            got = f"infinity in {bad} of {infinite.size} values"
            _checks.require(bad == 0, one, "must be finite, or NaN where missing", got, fix)
            for v, own in types.items():
                columns = np.searchsorted(nodes, own)
                present[v] = (there & seen)[:, columns]
                some_of_type = (some & seen)[:, columns]
                arrays[v] = _without_missing(array[:, columns], present[v] | some_of_type)
                if some_of_type.any():
                    partly[v] = some_of_type
        return cls(arrays, present, partly)

    def without(self, dropped: Mapping[int, Any]) -> dict[int, Any]:
        """Return the arrays, with 0 for vectors that are dropped."""
        return {v: _without_missing(one, ~dropped[v]) if v in dropped else one for v, one in self.arrays.items()}


def _of_types(argument: str, values: Mapping[int, Any], of_type: dict[int, Any]) -> dict[int, Any]:
    """Return values by type; raise ValueError for types that the graph does not have."""
    given = with_numbers(argument, values)
    rule, fix = f"must have node types among {list(of_type)} as keys", "Leave the others out."
    _checks.require(set(given) <= set(of_type), argument, rule, list(given), fix)
    return given


def _mask(argument: str, mask: Any, shape: tuple[int, int], of_type: dict[int, Any]) -> np.ndarray:
    """Return a mask, which may be by type or the same for all samples, as a mask [case, node]."""
    fix = "Build the data outside of jax.jit, or use a NumPy mask inside."
    _checks.require(not _checks.is_traced(mask), argument, "must have values inside of jax.jit", "a tracer", fix)
    full = np.ones(shape, bool)
    if mask is None:
        return full
    if not isinstance(mask, Mapping):
        return full & np.asarray(_checks.as_mask(argument, mask, shape, shape[1:]))
    for v, one in _of_types(argument, mask, of_type).items():
        size = len(of_type[v])
        full[:, of_type[v]] = _checks.as_mask(f"{argument}[{v}]", one, (shape[0], size), (size,))
    return full


def _without_missing(array: Any, present: np.ndarray) -> Any:
    """Return an array with 0 where values are missing, and floats in the precision of JAX."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    if present.all():
        return array
    there = present.reshape(*present.shape, *(1,) * (array.ndim - 2))
    return (jnp if isinstance(array, jax.Array) else np).where(there, array, np.zeros((), array.dtype))


@dataclasses.dataclass(frozen=True)
class _GraphSamples:
    """Samples of one graph that are present, by type."""

    edges: dict[int, tuple[Any, Any]]  # row indices into `nodes`
    nodes: dict[int, Any]
    observations: dict[int, tuple[Any, Any]]  # row indices into `nodes`, and observations
    partly: dict[int, tuple[Any, Any, Any]]  # likewise, with NaN where entries are missing; and entries of all of them
    ends: dict[int, tuple[int, int]]
    degrees: dict[int, int]
    starts: dict[int, np.ndarray]  # masks of rows of `nodes`
    cases: Cases

    @classmethod
    def of(
        cls, which: str, graph: Graph, samples: Any, observations: Any, mask: Any, observation_mask: Any
    ) -> "_GraphSamples":
        node_type = np.asarray(graph.node_type)
        of_type = {v: np.flatnonzero(node_type == v) for v, *_ in graph.node_types}
        x = _Values.of(which, "samples", samples, "mask", mask, of_type)
        rule = f"must have samples of every node type {list(of_type)}"
        fix = "Add them; an array of NaN if a type was never measured on this graph."
        _checks.require(list(x.arrays) == list(of_type), f"samples{which}", rule, list(x.arrays), fix)
        y = _Values({}, {}, {})
        fix = "Pass observations too, or leave the mask out."
        ok = observation_mask is None or observations is not None
        _checks.require(ok, f"observation_mask{which}", "must be None without observations", "a mask", fix)
        if observations is not None:
            y = _Values.of(which, "observations", observations, "observation_mask", observation_mask, of_type)
        count, got = (len(next(iter(one.present.values()), ())) for one in (x, y))
        fix = "Pass one observation per node and sample, with NaN where they are missing."
        rule = f"must have {count} samples, as samples"
        _checks.require(got == count or not y.arrays, f"observations{which}", rule, got, fix)
        forward = graph.num_edges // 2
        pairs = np.stack([np.asarray(graph.senders)[:forward], np.asarray(graph.receivers)[:forward]])
        edge_type = np.asarray(graph.edge_type)[:forward]
        within = np.empty(graph.num_nodes, int)
        for nodes in of_type.values():
            within[nodes] = np.arange(len(nodes))
        present = {v: mask.reshape(-1) for v, mask in x.present.items()}
        row = {v: np.cumsum(mask) - 1 for v, mask in present.items()}

        def rows(ends: tuple[int, int], pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Return the rows of both ends of the pairs whose ends are present."""
            case = np.arange(count)[:, None]
            first, second = (
                (len(of_type[v]) * case + within[nodes]).reshape(-1) for v, nodes in zip(ends, pairs, strict=True)
            )
            used = present[ends[0]][first] & present[ends[1]][second]
            return row[ends[0]][first[used]], row[ends[1]][second[used]]

        observed = {v: present[v] & mask.reshape(-1) for v, mask in y.present.items()}
        used = {v: mask for v, mask in y.partly.items() if can_be_partly_seen(y.arrays[v][0, 0])}
        dropped = {"samples": x.partly, "observations": {v: mask for v, mask in y.partly.items() if v not in used}}
        tables = x.without(x.partly), y.without(dropped["observations"]), x.present, y.present, used
        tables = *tables, {name: masks for name, masks in dropped.items() if masks}
        return cls(
            edges={k: rows((a, b), pairs[:, edge_type == k]) for k, a, b in graph.edge_types},
            nodes={v: _select(array, present[v]) for v, array in x.arrays.items()},
            observations={v: (row[v][observed[v]], _select(array, observed[v])) for v, array in y.arrays.items()},
            partly={
                v: (row[v][both], _select(y.arrays[v], both), ~np.isnan(_select(y.arrays[v], mask.reshape(-1))))
                for v, mask in used.items()
                for both in [present[v] & mask.reshape(-1)]
            },
            ends={k: (a, b) for k, a, b in graph.edge_types},
            degrees={v: degree + (v in y.arrays) for v, _, degree in graph.node_types},
            starts={
                v: np.broadcast_to(mask, x.present[v].shape).reshape(-1)[present[v]]
                for v, mask in starts_by_type(graph).items()
            },
            cases=Cases(graph, *jax.tree.map(_checks.to_jax, tables)),
        )


def _select(array: Any, used: np.ndarray) -> Any:
    """Return the rows of an array [case, node, *dim] that are used [case node], as an array [row, *dim]."""
    flat = array.reshape(-1, *array.shape[2:])
    return flat if used.all() else flat[np.flatnonzero(used)]


def _join(parts: list[_GraphSamples], labels: Mapping[int, Labels], obs_labels: Mapping[int, Labels]) -> TrainingData:
    """Concatenate the samples of each type over graphs."""
    ends: dict[int, tuple[int, int]] = {}
    for i, part in enumerate(parts):
        clash = {k: pair for k, pair in part.ends.items() if ends.setdefault(k, pair) != pair}
        rule = f"must have edge types that join the same node types in all graphs, {ends}"
        _checks.require(not clash, f"graph[{i}]", rule, clash, "Use a separate edge type for each pair of node types.")
    nodes: dict[int, list] = {}
    y: dict[int, tuple[list, list]] = {}
    partly: dict[int, list] = {}
    rows: dict[int, tuple[list, list]] = {}
    degrees: dict[int, int] = {}
    offsets: dict[int, int] = {}
    for part in parts:
        for k, pair in part.edges.items():
            for end, indices in enumerate(pair):
                rows.setdefault(k, ([], []))[end].append(indices + offsets.get(ends[k][end], 0))
        for v, (indices, observed) in part.observations.items():
            of_samples, of_type = y.setdefault(v, ([], []))
            of_samples.append(indices + offsets.get(v, 0))
            of_type.append(observed)
        for v, (indices, *entries) in part.partly.items():
            partly.setdefault(v, []).append((indices + offsets.get(v, 0), *entries))
        for v, x in part.nodes.items():
            nodes.setdefault(v, []).append(x)
            offsets[v] = offsets.get(v, 0) + len(x)
            degrees[v] = max(degrees.get(v, 0), part.degrees[v])
    joined = {v: _concatenate(f"samples of node type {v}", x) for v, x in nodes.items()}
    indices = {k: (np.concatenate(first), np.concatenate(second)) for k, (first, second) in rows.items()}
    seen = {
        v: (np.concatenate(of_samples), _concatenate(f"observations of node type {v}", of_type))
        for v, (of_samples, of_type) in y.items()
    }
    _check_some(joined, indices, seen)
    observed = {
        v: (joined[v] if len(used) == len(joined[v]) else joined[v][used], of_type)
        for v, (used, of_type) in seen.items()
    }
    found = {v: _partly_seen(parts, joined[v], observed[v]) for v, parts in partly.items()}
    edges = {k: (joined[ends[k][0]][first], joined[ends[k][1]][second]) for k, (first, second) in indices.items()}
    return TrainingData(
        edges=edges,
        nodes=joined,
        observations=observed,
        ends=ends,
        degrees=degrees,
        rows=indices,
        cases=[part.cases for part in parts],
        labels=labels,
        obs_labels={v: own for v, own in obs_labels.items() if v in seen},
        partly={v: one for v, one in found.items() if one is not None},
        starts=_starts(parts, joined, [(ends[k], pair) for k, pair in edges.items()]),
    )


def _starts(parts: list[_GraphSamples], nodes: dict[int, Any], pairs: list[Any]) -> dict[int, StartSamples]:
    """Return the samples of the starts of node types whose nodes form directed chains or trees in all graphs."""
    found = {}
    for v, x in nodes.items():
        among = [part for part in parts if v in part.nodes]
        if not _checks.is_traced(x) and all(v in part.starts for part in among):
            starts = np.concatenate([part.starts[v] for part in among])
            found[v] = start_samples(x[starts], x[~starts], [pair for ends, pair in pairs if ends == (v, v)])
    return {v: one for v, one in found.items() if one is not None}


def _partly_seen(parts: list[tuple[Any, Any, Any]], x: Any, complete: tuple[Any, Any]) -> PartlySeen | None:
    """Return the pairs of all observations with some entries, complete ones too, and the patterns to be learned."""
    rows, y, entries = (np.concatenate(column) for column in zip(*parts, strict=True))
    patterns, counts = common_patterns(entries)
    return partly_seen(patterns, counts, np.concatenate([complete[0], x[rows]]), np.concatenate([complete[1], y]))


def _check_some(
    nodes: dict[int, Any], edges: dict[int, tuple[Any, Any]], observations: dict[int, tuple[Any, Any]]
) -> None:
    """Raise ValueError if a node type, an edge type or the observations of a node type are all missing."""
    rule, got = "must have at least one {} that is not missing", "none"
    for v, x in nodes.items():
        fix = "Add samples with this type, or remove its nodes from the graph."
        _checks.require(len(x) > 0, "samples", rule.format(f"value of node type {v}"), got, fix)
    for k, (first, _) in edges.items():
        fix = "Add samples in which both ends of an edge are present, or remove these edges from the graph."
        _checks.require(len(first) > 0, "samples", rule.format(f"pair of edge type {k}"), got, fix)
    for v, (used, _) in observations.items():
        fix = (
            "Add samples with both, or leave this type out: {node type: observations}. Vectors have to be complete in"
            " some samples: observe entries that are never seen together at nodes of their own."
        )
        what = f"pair of a sample and an observation of node type {v}"
        _checks.require(len(used) > 0, "observations", rule.format(what), got, fix)


def _concatenate(argument: str, arrays: list[Any]) -> Any:
    shapes = {array.shape[1:] for array in arrays}
    fix = "Samples of one type must have the same shape in all graphs."
    _checks.require(len(shapes) == 1, argument, "must have one shape", sorted(shapes), fix)
    return arrays[0] if len(arrays) == 1 else (jnp if _checks.is_traced(arrays) else np).concatenate(arrays)


def _hint(shape: tuple[int, ...], num_nodes: int) -> str:
    """Return how values of a shape can become [sample, node, *dim]; "" where that is not known."""
    if math.prod(shape[1:]) == num_nodes and len(shape) > 2:
        return f": pictures.reshape({shape[0]}, -1)"
    if math.prod(shape) == num_nodes and len(shape) > 1:
        return ": picture.reshape(1, -1)"
    return "; one sample is x[None]" if shape[:1] == (num_nodes,) else ""


def _field(argument: str, values: Any, num_nodes: int) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Return values [sample, node, *dim], and masks of those that are complete, partly missing, and infinite.

    Hidden entries of the latter are NaN.
    """
    values, hidden = _checks.read(argument, values, gaps=True)
    shaped = values.ndim >= 2 and values.shape[1] == num_nodes
    fix = f"Put samples on axis 0 and nodes on axis 1{_hint(values.shape, num_nodes)}."
    rule = f"must have shape [sample, {num_nodes}, ...]"
    _checks.require(shaped, argument, rule, f"shape {values.shape}", fix)
    fix = "Pass at least one sample."
    _checks.require(values.size > 0, argument, "must hold at least one sample", f"shape {values.shape}", fix)
    there, infinite = _checks.complete(argument, values, hidden, 2)
    some = np.zeros_like(there)
    if values.ndim > 2 and jnp.issubdtype(values.dtype, jnp.floating) and not there.all():
        values = values if hidden is None else np.where(hidden, np.nan, values)
        entries = np.asarray(values).reshape(*there.shape, -1)
        some = ~there & ~np.isnan(entries).all(axis=2)
        infinite = infinite | (some & (np.isinf(entries) | _checks.overflows(entries)).any(axis=2))
    return values, there, some, infinite
