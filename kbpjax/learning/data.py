"""Training data of a pairwise Markov random field: samples pooled by node type and edge type."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_lines, show_list, values_or_shapes
from kbpjax._public import Checked
from kbpjax.graphs.graph import Graph
from kbpjax.learning.labels import ByType
from kbpjax.learning.starts import StartSamples


class Cases(Checked):
    """The samples of one graph as they were given to `pool`: whole cases, with what is missing.

    Pairs of an edge type do not say which of them belong together. Cases do, so that some of them can be held out.

    Attributes:
        graph: the graph.
        samples: {node type: samples [case, node_of_type, *dim]}, in order of node number; 0 where missing.
        observations: {node type: observations [case, node_of_type, *obs_dim]} of the observed node types; 0 where
            missing.
        present: {node type: mask of the samples that are not missing [case, node_of_type]}.
        observed: {node type: mask of the observations that are complete [case, node_of_type]}.
        partly: {node type: mask of the observations of which some entries are there [case, node_of_type]}, whose
            others are NaN; without node types that have none.
        dropped: {"samples" or "observations": {node type: mask of the vectors of which some entries are there, but
            which count as missing [case, node_of_type]}}; without node types that have none.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.array([[0.0, 1.0, 2.0], [3.0, np.nan, 5.0]])
        >>> (cases,) = kbp.pool(kbp.chain_graph(3), x).cases
        >>> cases.samples[0].tolist(), cases.present[0].tolist()
        ([[0.0, 1.0, 2.0], [3.0, 0.0, 5.0]], [[True, True, True], [True, False, True]])
    """

    graph: Graph
    samples: dict[int, Shaped[Array | np.ndarray, "..."]]
    observations: dict[int, Shaped[Array | np.ndarray, "..."]]
    present: dict[int, Bool[Array | np.ndarray, "case _"]]
    observed: dict[int, Bool[Array | np.ndarray, "case _"]]
    partly: dict[int, Bool[Array | np.ndarray, "..."]] = eqx.field(default_factory=dict)
    dropped: dict[str, dict[int, Bool[Array | np.ndarray, "..."]]] = eqx.field(default_factory=dict)

    @property
    def used(self) -> dict[int, Any]:
        """{node type: mask of the observations with any entry that is used}."""
        return {v: np.asarray(mask) | self.partly[v] if v in self.partly else mask for v, mask in self.observed.items()}


class PartlySeen(Checked):
    """Pairs of a variable and its observation, a vector of which entries may be missing.

    Attributes:
        patterns: sets of entries for which observation models are learned, the largest first [pattern, entry].
        counts: number of observations with just these entries [pattern].
        x: values of the variable [sample, *dim].
        y: observations, with NaN where entries are missing [sample, entry].
    """

    patterns: Bool[Array, "pattern entry"]
    counts: Int[Array, " pattern"]
    x: Shaped[Array, "sample *dim"]
    y: Float[Array, "sample entry"]


class TrainingData(Checked):
    """Training samples pooled by type; `pool` builds them from samples on a graph.

    Samples that are incomplete, with NaN or masked entries of a NumPy masked array, are dropped: a pair unless both of
    its points are complete. With `rows` they raise an error.

    Args:
        edges: {edge type: (x_first, x_second)}, pairs of samples [sample, *dim] each, in the orientation of `ends`.
        nodes: {node type: x}, samples [sample, *dim] of the variables.
        observations: {node type: (x, y)}, pairs of a variable and its observation, for observed node types.
        ends: {edge type: (node type of first end, node type of second end)}; optional with a single node type.
        degrees: {node type: maximum number of neighbors, with an observation counted as one neighbor}; sets the tensor
            power. The default for a missing type is 5.
        rows: {edge type: (rows of first ends, rows of second ends)}, indices into `nodes` of the samples of each pair.
            With them, the full-rank and linear-time rules share points between edges. None: unknown.
        cases: the samples before pooling, one entry per graph; (): unknown. `fit` does not use them.
        labels, obs_labels: {node type: labels}, of variables and of observations whose values are codes 0, 1, 2, ... of
            labels, as `pool` makes them of texts. Types without labels are left out.

        partly: {node type: `PartlySeen`} of the observations with missing entries, as `pool` makes them; None: none.
        starts: {node type: `StartSamples`} of the nodes without an incoming edge, as `pool` makes them
            outside of `jax.jit`; None: none.

    Attributes:
        margins, obs_margins: {node type: `Margins`} of the variables and the observations whose values are
            standardized; `fit` fills them in a copy of the data.
        front_ends: {node type: `FrontEnd`} of the observations that are predictions of the variables;
            `fit` fills them in a copy of the data.

    Raises:
        ValueError: no complete samples of a type, infinite samples, or their numbers or shapes do not match.

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
    cases: tuple[Cases, ...] = ()
    labels: ByType = eqx.field(static=True, default=())
    obs_labels: ByType = eqx.field(static=True, default=())
    margins: dict[int, Any] = eqx.field(default_factory=dict)
    obs_margins: dict[int, Any] = eqx.field(default_factory=dict)
    front_ends: dict[int, Any] = eqx.field(default_factory=dict)
    partly: dict[int, PartlySeen] = eqx.field(default_factory=dict)
    starts: dict[int, StartSamples] = eqx.field(default_factory=dict)

    def __init__(
        self,
        edges: Mapping[int, tuple[Any, Any]],
        nodes: Mapping[int, Numbers],
        observations: Mapping[int, tuple[Any, Any]] | None = None,
        *,
        ends: Mapping[int, tuple[int, int]] | None = None,
        degrees: Mapping[int, int] | None = None,
        rows: Mapping[int, tuple[Any, Any]] | None = None,
        cases: Sequence[Cases] = (),
        labels: Mapping[int, Sequence[Any]] | None = None,
        obs_labels: Mapping[int, Sequence[Any]] | None = None,
        partly: Mapping[int, PartlySeen] | None = None,
        starts: Mapping[int, StartSamples] | None = None,
    ):
        _checks.require(bool(nodes), "nodes", "must hold samples of at least one node type", "none", "Pass {0: x}.")
        drop = rows is None
        self.nodes = {v: _samples(f"nodes[{v}]", x, drop) for v, x in with_numbers("nodes", nodes).items()}
        pairs = {k: _pairs(f"edges[{k}]", pair, drop) for k, pair in with_numbers("edges", edges).items()}
        observed = with_numbers("observations", observations or {})
        self.observations = {v: _pairs(f"observations[{v}]", pair, drop) for v, pair in observed.items()}
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
        kinds, fix = [type(one).__name__ for one in cases], "Leave them out, or build the data with kbpjax.pool."
        _checks.require(all(isinstance(one, Cases) for one in cases), "cases", "must be Cases", kinds, fix)
        self.cases = tuple(cases)
        self.margins, self.obs_margins, self.front_ends = {}, {}, {}
        self.partly = with_numbers("partly", partly or {})
        unseen = [v for v, one in self.partly.items() if not isinstance(one, PartlySeen) or v not in self.observations]
        fix = "Leave it out: kbpjax.pool makes it of observations with NaN."
        _checks.require(not unseen, "partly", "must be `PartlySeen` of observed node types", unseen, fix)
        self.starts = with_numbers("starts", starts or {})
        unseen = [v for v, one in self.starts.items() if not isinstance(one, StartSamples) or v not in self.nodes]
        fix = "Leave it out: kbpjax.pool makes it of directed chains and trees."
        _checks.require(not unseen, "starts", "must be `StartSamples` of node types with samples", unseen, fix)
        self.labels, self.obs_labels = (
            tuple((v, tuple(own)) for v, own in sorted((given or {}).items())) for given in (labels, obs_labels)
        )
        self._check()

    def points(self, node_type: int) -> Array:
        """Return the points of a node type at which the full-rank and linear-time rules multiply messages."""
        _checks.require(
            node_type in self.nodes, "node_type", f"must be one of {list(self.nodes)}", node_type, "Choose one."
        )
        if self.rows is not None or not any(node_type in ends for _, *ends in self.ends):
            return self.nodes[node_type]
        ends = [x for k, *ends in self.ends for v, x in zip(ends, self.edges[k], strict=True) if v == node_type]
        return jnp.concatenate(ends)

    def places(self, edge_type: int) -> tuple[Array, Array]:
        """Return indices into `points` of the first and second ends of an edge type's pairs."""
        types = [k for k, *_ in self.ends]
        _checks.require(edge_type in types, "edge_type", f"must be one of {types}", edge_type, "Choose one.")
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


def _rows(pair: Any, forward: bool) -> tuple[Array, Array]:
    """Return the rows of both ends as index arrays, in the orientation of the edge type."""
    fix = "Pass the rows of both ends for every edge type, or leave rows out."
    ok = isinstance(pair, tuple | list) and len(pair) == 2
    _checks.require(ok, "rows", "must hold a pair of index arrays for each edge type", type(pair).__name__, fix)
    first, second = (_checks.to_jax(rows, np.int32) for rows in pair)
    return (first, second) if forward else (second, first)


def with_numbers(argument: str, by_type: Mapping[int, Any]) -> dict[int, Any]:
    """Return a mapping with Python integers as keys; raise ValueError unless they are integers >= 0."""
    integers = all(isinstance(key, int | np.integer) and key is not True and key >= 0 for key in by_type)
    fix = "Number the types 0, 1, 2, ..."
    _checks.require(integers, argument, "must have integers >= 0 as keys", list(by_type)[:5], fix)
    _checks.require_types(argument, int(max(by_type, default=0)))
    return {int(key): value for key, value in by_type.items()}


def _samples(argument: str, x: Any, drop: bool) -> Array:
    """Return samples, without the incomplete ones if they may be dropped."""
    (array,) = _complete({argument: x}, argument, drop)
    return array


def _pairs(argument: str, pair: tuple[Any, Any], drop: bool) -> tuple[Array, Array]:
    """Return pairs, without the incomplete ones if they may be dropped."""
    fix = "Pass two arrays of samples; x[i] and y[i] form a pair."
    _checks.require(
        isinstance(pair, tuple | list) and len(pair) == 2,
        argument,
        "must be a pair of arrays",
        type(pair).__name__,
        fix,
    )
    x, y = _complete({f"{argument}[0]": pair[0], f"{argument}[1]": pair[1]}, argument, drop)
    return x, y


def _complete(arrays: Mapping[str, Any], argument: str, drop: bool) -> list[Array]:
    """Return the rows of arrays [sample, *dim] that are complete in all of them."""
    read = {name: _checks.read(name, x) for name, x in arrays.items()}
    for name, (x, _) in read.items():
        shape, fix = f"shape {x.shape}", "Pass [sample, *dim]."
        _checks.require(x.ndim >= 1 and x.size > 0, name, "must hold at least one sample", shape, fix)
    counts = [len(x) for x, _ in read.values()]
    fix = "Pass two arrays of samples; x[i] and y[i] form a pair."
    rule = "must have the same number of samples at both ends"
    _checks.require(len(set(counts)) == 1, argument, rule, " and ".join(map(str, counts)), fix)
    used = np.ones(counts[0], bool)
    for name, (x, hidden) in read.items():
        there, infinite = _checks.complete(name, x, hidden, 1)
        bad, missing = int(infinite.sum()), int(np.sum(~there))
        fix, got = "Correct or drop these samples.", f"infinity in {bad} of {len(x)} samples"
        _checks.require(bad == 0, name, "must be finite, or NaN where missing", got, fix)
        fix, got = "Leave rows out, or drop or impute missing samples.", f"{missing} missing of {len(x)} samples"
        _checks.require(drop or missing == 0, name, "must be finite and complete with rows=", got, fix)
        used &= there
    fix = "Pass more samples, or leave this type out."
    _checks.require(bool(used.any()), argument, "must hold a complete sample", f"none of {len(used)}", fix)
    rows = np.flatnonzero(used)
    return [_checks.as_array(name, x if used.all() else x[rows]) for name, (x, _) in read.items()]
