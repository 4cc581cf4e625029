r"""Discrete belief propagation: variables with finitely many states and tables as potentials.

    p(x) ~ prod_s psi_s(x_s) prod_st psi_st(x_s, x_t),
    m_ts(x_s) = sum_{x_t} psi_st(x_s, x_t) psi_t(x_t) local_t(x_t) prod_{u in G(t) \ s} m_ut(x_t),

in a `KernelMRF` whose features are indicators of the states, so evidence, `kbpjax.infer`, `run`, `run_tree`, schedules,
beliefs of nodes and edges and `log_partition` apply. Tables are given, or estimated by pseudo-moment matching
(Wainwright, Jaakkola, Willsky 2003; supplement, section 2), which makes the marginals of the data a fixed point:

    psi_s = P(x_s),    psi_st = P(x_s, x_t) / (P(x_s) P(x_t)).

Edges that share a table are updated in one matrix product. Continuous variables must be binned, see `bins`.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import finite, public
from kbpjax.baselines.uai import from_factors, read_uai, write_uai
from kbpjax.features import FeatureMap
from kbpjax.graphs.graph import Graph
from kbpjax.inference import loopy
from kbpjax.inference.loopy import Solution
from kbpjax.inference.operators import Arithmetic, Operators, SumProduct
from kbpjax.kernels.base import as_floats
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import beliefs as beliefs
from kbpjax.posterior.evidence import Evidence

__all__ = ["Indicators", "bins", "fit", "from_factors", "from_potentials", "read_uai", "run", "write_uai"]

States = Numbers | Mapping[int, Numbers]
Tables = Numbers | Mapping[int, Numbers]


class Indicators(FeatureMap):
    """Indicator features: 1 for the state nearest to a point, 0 for the others.

    Attributes:
        states: the states, or centers of bins [state, *dim].
        dtype: floating dtype of the features.

    Raises:
        ValueError: dtype is not a floating dtype.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.baselines import discrete
        >>> indicators = discrete.Indicators(jnp.array([0.0, 1.0, 2.0]), jnp.result_type(float))
        >>> indicators(jnp.array([0.2, 1.9])).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """

    requires_finite = True

    states: Shaped[Array, "state *dim"]
    dtype: Any = eqx.field(static=True)

    def __check_init__(self) -> None:
        ok = isinstance(self.dtype, np.dtype | type) and jnp.issubdtype(self.dtype, np.floating)
        fix = "Pass jnp.result_type(float)."
        _checks.require(ok, "dtype", "must be a floating dtype", repr(self.dtype)[:80], fix)

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the indicators of points [sample, *dim]."""
        return jax.nn.one_hot(self.nearest(x), len(self.states), dtype=self.dtype)

    @finite("x")
    def nearest(self, x: Shaped[Array, "sample *dim"]) -> Array:
        """Return the index of the nearest state of each point [sample].

        A point halfway between two states gets the smaller if they are scalars, and the first otherwise.
        """
        states, points = as_floats(self.states), as_floats(x)
        points = points.astype(states.dtype)
        if states.ndim > 1:
            states, points = states.reshape(len(states), -1), points.reshape(len(points), -1)
            distance = jnp.sum((points[:, None] - states[None]) ** 2, axis=-1)
            return jnp.argmin(distance, axis=1)
        order = jnp.argsort(states)
        middles = (states[order][1:] + states[order][:-1]) / 2
        return order[jnp.searchsorted(middles, points)]

    @property
    def rank(self) -> int:
        """The number of states."""
        return len(self.states)

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point."""
        return jax.ShapeDtypeStruct(self.states.shape[1:], self.states.dtype)


@public
def bins(x: Numbers, num_bins: int) -> Float[Array, " bin"]:
    """Return the centers of bins of equal width between the smallest and the largest of some numbers [bin].

    Args:
        x: numbers [sample].
        num_bins: number of bins, >= 1.

    Raises:
        ValueError: no numbers, NaN or infinity, a number of bins below 1, or several bins for numbers that are all
            equal.

    Examples:
        >>> from kbpjax.baselines import discrete
        >>> discrete.bins([0.0, 4.0], 2).tolist()
        [1.0, 3.0]
    """
    _checks.require_count("num_bins", num_bins)
    values = _checks.as_array("x", x)
    ok = values.ndim == 1 and len(values) > 0
    _checks.require(ok, "x", "must be numbers [sample]", f"shape {values.shape}", "Bin one coordinate at a time.")
    _checks.require_finite("x", values, "Drop those values.")
    low, high = jnp.min(as_floats(values)), jnp.max(as_floats(values))
    differ = num_bins == 1 or _checks.is_traced(values) or bool(high > low)
    _checks.require(differ, "x", "must differ for several bins", f"{low} only", "Pass num_bins=1.")
    return low + (high - low) * (jnp.arange(num_bins, dtype=low.dtype) + 0.5) / num_bins


@public
def fit(
    data: TrainingData,
    states: States | None = None,
    *,
    pseudo_count: ScalarLike = 1.0,
    arithmetic: Arithmetic = SumProduct(),
) -> KernelMRF:
    """Return the model with pseudo-moment potentials, estimated from counts.

    Args:
        data: training data; observations are not used: evidence is a known `kbpjax.likelihood`, or one learned with
            `kbpjax.baselines.nonparametric.density`.
        states: states or centers of bins [state, *dim], or {node type: states}; a sample counts for the nearest state.
            None: all values in the data.
        pseudo_count: number added to the count of every pair of states, >= 0; the count of a state grows by this times
            the number of states of a neighbor. With 0, states and pairs that are not in the data are impossible.
        arithmetic: `SumProduct()`, `MaxProduct()`, or either `InLogs`.

    Raises:
        ValueError: an option out of range, states of another shape than the variables, or with pseudo_count 0 a type
            without data.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import discrete
        >>> graph, x = kbp.chain_graph(4), np.array([[0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 1]])
        >>> model = discrete.fit(kbp.pool(graph, x), pseudo_count=1.0)
        >>> kbp.beliefs(model, graph, None, kbp.run_tree(model, graph), [0, 1]).weights.round(1)[0].tolist()
        [0.5, 0.5]
    """
    _checks.require_number("pseudo_count", pseudo_count, least=0)
    indicators = {v: Indicators.trusted(x, jnp.result_type(float)) for v, x in _states_of(data, states).items()}
    joints, neighbors = {}, {v: [] for v in indicators}
    for k, a, b in data.ends:
        first, second = (indicators[v].nearest(x) for v, x in zip((a, b), data.edges[k], strict=True))
        sizes = indicators[a].rank, indicators[b].rank
        joints[k] = _counts(first * sizes[1] + second, sizes[0] * sizes[1]).reshape(sizes) + pseudo_count
        neighbors[a].append(sizes[1])
        neighbors[b].append(sizes[0])
    nodes = {}
    for v, x in data.nodes.items():
        mean_states = sum(neighbors[v]) / len(neighbors[v]) if neighbors[v] else 1
        counts = _counts(indicators[v].nearest(x), indicators[v].rank) + pseudo_count * mean_states
        nodes[v] = counts / jnp.maximum(jnp.sum(counts), 1)
    edges = {}
    for k, joint in joints.items():
        independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        edges[k] = joint * jnp.sum(joint) / jnp.where(independent > 0, independent, 1)
    ends = {k: (a, b) for k, a, b in data.ends}
    return from_potentials(
        {v: own.states for v, own in indicators.items()}, nodes, edges, ends=ends, arithmetic=arithmetic
    )


@public
def run(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike = 0.2,
    tol: ScalarLike | None = None,
    key: Key[Array, ""] | None = None,
) -> Solution:
    """Run synchronous belief propagation from constant messages; the same as `kbpjax.run`, which has more options.

    Args:
        model: the model, of `fit` or `from_potentials`.
        graph: the graph; the model must have all its types.
        evidence: evidence made with this model, or None. For learned evidence see
            `kbpjax.baselines.transfer_evidence`.
        num_iters: number of iterations, >= 1; with `tol`, the maximum.
        damping: weight of the old message, in [0, 1).
        tol: stop once the residual is at most this, > 0: the largest change of a message, of 2-norm 1, in an iteration
            before damping. None: run all iterations.
        key: not used; the method is deterministic.

    Returns:
        The messages [edge, state].

    Raises:
        ValueError: an option out of range, a type that the model does not have, or evidence of another model.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import discrete
        >>> model, graph = discrete.from_potentials([0, 1], [1.0, 2.0], [[[3.0, 1.0], [1.0, 3.0]]]), kbp.chain_graph(2)
        >>> solution = discrete.run(model, graph, tol=1e-6)
        >>> print(discrete.beliefs(model, graph, None, solution, [0, 1]).weights.round(2))
        [[0.26 0.74]
         [0.26 0.74]]
    """
    del key
    return loopy.run(model, graph, evidence, num_iters=num_iters, damping=damping, tol=tol)


@public
def from_potentials(
    states: States,
    nodes: Tables,
    edges: Tables,
    *,
    ends: Mapping[int, tuple[int, int]] | None = None,
    arithmetic: Arithmetic = SumProduct(),
) -> KernelMRF:
    """Return the model with given potentials: a template for any graph with its types.

    Potentials of single nodes are evidence: `kbpjax.likelihood` with a table. `kbpjax.log_partition` estimates
    log sum_x prod psi_s prod psi_st prod likelihoods, of potentials of any scale; on trees it is exact.

    `kbpjax.infer` uses exponents 1. In `kbpjax.run` with exponents rho, the potential of an edge is psi ** rho: for
    `kbpjax.tree_reweighting` pass psi ** (1 / rho).

    Zeros are hard constraints. A row or column of zeros is a state that no neighbor allows: its belief is 0. If
    evidence leaves no joint state, log Z is -inf, `kbpjax.beliefs` and `kbpjax.infer` raise an error that names nodes,
    and `kbpjax.check` one that names messages.

    Args:
        states: the states [state, *dim], or {node type: states}.
        nodes: potential of each state [state], >= 0, or {node type: potentials}.
        edges: potential of each pair of states [edge_type, first, second], >= 0, or {edge type: [first, second]}; at
            least one entry of each table is > 0.
        ends: {edge type: (node type of first end, node type of second end)}. None: allowed with one node type.
        arithmetic: `SumProduct()`, `MaxProduct()`, or either `InLogs`.

    Raises:
        ValueError: negative entries, NaN, a table of zeros, numbers of states that do not match, or node types without
            potentials.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import discrete
        >>> model, graph = discrete.from_potentials([0, 1], [1.0, 2.0], [[[3.0, 1.0], [1.0, 3.0]]]), kbp.chain_graph(2)
        >>> print(kbp.beliefs(model, graph, None, kbp.run_tree(model, graph), [0, 1]).weights.round(2))
        [[0.26 0.74]
         [0.26 0.74]]
    """
    known = {v: _checks.as_array("states", x) for v, x in _by_type(states).items()}
    own = {v: _checks.as_array("nodes", psi) for v, psi in _by_type(nodes).items()}
    fix = "Pass one potential and one set of states for each node type."
    _checks.require(sorted(own) == sorted(known), "nodes", f"must have node types {sorted(known)}", sorted(own), fix)
    if isinstance(edges, Mapping):
        tables = {k: _checks.as_array(f"edges[{k}]", psi) for k, psi in edges.items()}
    else:
        tables = _checks.as_array("edges", edges)
    fix = "Pass one table for each edge type."
    ok = isinstance(tables, Mapping) or tables.ndim == 3
    _checks.require(ok, "edges", "must have shape [edge_type, first, second]", f"{tables}"[:80], fix)
    kinds = sorted(tables) if isinstance(tables, Mapping) else list(range(len(tables)))
    fix = "Pass ends={edge type: (first, second)}."
    _checks.require(ends is not None or len(known) == 1, "ends", "must be given for several node types", "None", fix)
    alike = min(known), min(known)
    joined = dict.fromkeys(kinds, alike) if ends is None else {k: (int(a), int(b)) for k, (a, b) in ends.items()}
    fix = "Give one (first, second) for each table."
    _checks.require(sorted(joined) == kinds, "ends", f"must name edge types {kinds[:10]}", sorted(joined)[:10], fix)
    for v in known:
        _check_node(v, own[v], known[v])
    _check_edges(tables, joined, {v: len(x) for v, x in known.items()})
    size = max(len(x) for x in known.values())
    stacked = tables if not isinstance(tables, Mapping) else _stack(tables, size)
    return _model(known, own, stacked, tuple((k, joined[k][0], joined[k][1]) for k in kinds), arithmetic)


def _model(
    states: dict[int, Array],
    nodes: dict[int, Array],
    edges: Float[Array, "edge_type first second"],
    ends: tuple[tuple[int, int, int], ...],
    arithmetic: Arithmetic,
) -> KernelMRF:
    size, count = edges.shape[1], 1 + max(states)
    dtype = jnp.result_type(*(as_floats(table).dtype for table in (edges, *nodes.values())))
    nodes, totals = {v: psi.astype(dtype) for v, psi in nodes.items()}, jnp.ones(count, dtype)
    own, present = jnp.zeros((count, size), dtype), jnp.zeros((count, size), dtype)
    for v, psi in nodes.items():
        totals = totals.at[v].set(jnp.sum(psi))
        nodes[v] = psi / totals[v]
        own = own.at[v, : len(psi)].set(nodes[v])
        present = present.at[v, : len(psi)].set(1)
    identity = jax.vmap(jnp.diag)(present)
    first, second = (np.zeros(len(edges), np.int32) for _ in range(2))
    for k, a, b in ends:
        first[k], second[k] = a, b
    forth = edges.mT.astype(dtype) * own[first][:, None]
    back = edges.astype(dtype) * own[second][:, None]
    # Updates of size at most 1; `log_scale` records the factor for `log_partition`, as `totals` does for nodes.
    scale = jnp.maximum(jnp.max(jnp.sum(forth, axis=2), axis=1), jnp.max(jnp.sum(back, axis=2), axis=1))
    scale = jnp.where(scale > 0, scale, 1)
    project = jnp.stack([forth, back], axis=1) / scale[:, None, None, None]
    project = project.reshape(-1, size, size)
    constant = jnp.stack([present[second], present[first]], axis=1).reshape(-1, size)
    zero = jnp.zeros((), dtype)
    return KernelMRF(
        bases={v: Indicators.trusted(x, dtype) for v, x in states.items()},
        points=states,
        operators=Operators.trusted(
            identity, project, zero, None, own, arithmetic, jnp.log(scale), jnp.log(totals), constant, values=True
        ),
        observations={},
        marginals=nodes,
        moments={v: jnp.diag(psi) for v, psi in nodes.items()},
        residuals=dict.fromkeys(states, (zero, zero)),
        ridges=dict.fromkeys(states, zero),
        edge_types=ends,
        candidates=states,
        has_potentials=True,
    )


def _by_type(given: Any) -> Mapping[int, Any]:
    return given if isinstance(given, Mapping) else {0: given}


def _states_of(data: TrainingData, states: States | None) -> dict[int, Array]:
    """Return the checked states of each node type; without states, all values in the data."""
    if states is None:
        fix = "Pass states, which must be known where data are traced."
        _checks.require(not _checks.is_traced(data.nodes), "states", "must be given inside jax.jit", "None", fix)
        return {v: _checks.to_jax(np.unique(np.asarray(x), axis=0)) for v, x in data.nodes.items()}
    given = states if isinstance(states, Mapping) else dict.fromkeys(data.nodes, states)
    fix = "Pass states for each node type, of the shape of its samples."
    for v, x in data.nodes.items():
        _checks.require(v in given, "states", f"must have node type {v}", sorted(given), fix)
        own = _checks.as_array("states", given[v])
        _checks.require_finite("states", own, "Drop those states.")
        ok = own.ndim == x.ndim and len(own) > 0 and own.shape[1:] == x.shape[1:]
        _checks.require(ok, "states", f"must have shape [state, *{x.shape[1:]}]", f"shape {own.shape}", fix)
    return {v: _checks.as_array("states", given[v]) for v in data.nodes}


def _counts(numbers: Array, length: int) -> Float[Array, " length"]:
    return jnp.bincount(numbers, length=length).astype(jnp.result_type(float))


def _check_node(node_type: int, psi: Array, states: Array) -> None:
    argument = f"nodes[{node_type}]"
    fix = "Give one potential for each state."
    ok = states.ndim >= 1 and len(states) > 0 and psi.shape == (len(states),)
    _checks.require_finite("states", states, "Drop those states.")
    rule = f"must have shape ({len(states) if states.ndim else 0},), one for each state"
    _checks.require(ok, argument, rule, f"shape {psi.shape}", fix)
    _check_entries(argument, psi)
    some = _checks.is_traced(psi) or bool(np.any(np.asarray(psi) > 0))
    _checks.require(some, argument, "must have a potential > 0", "zeros", "Give a state that is possible.")


def _check_edges(tables: Any, ends: Mapping[int, tuple[int, int]], sizes: dict[int, int]) -> None:
    invalid = [k for k, pair in ends.items() if not set(pair) <= set(sizes) or pair[0] > pair[1]]
    fix = "As in a graph, an edge runs from the smaller node type to the larger."
    rule = f"must be (first, second) of node types {sorted(sizes)} with first <= second"
    _checks.require(not invalid, "ends", rule, [ends[k] for k in invalid[:3]], fix)
    for k, pair in ends.items() if isinstance(tables, Mapping) else [(0, (min(sizes),) * 2)]:
        table = tables[k] if isinstance(tables, Mapping) else tables
        expected = sizes[pair[0]], sizes[pair[1]]
        fix = "Give an entry for each pair of states: rows are those of the first end."
        argument, got = f"edges[{k}]" if isinstance(tables, Mapping) else "edges", table.shape[-2:]
        _checks.require(got == expected, argument, f"must have {expected} states", f"shape {table.shape}", fix)
        _check_entries(argument, table)
        _check_possible(argument, table)


def _check_entries(argument: str, table: Array) -> None:
    _checks.require_finite(argument, table, "Potentials are finite numbers >= 0.")
    if _checks.is_traced(table):
        return
    least = float(np.min(np.asarray(table), initial=0))
    _checks.require(
        least >= 0, argument, "must have no negative entries", f"{least}", "Pass potentials, not logarithms."
    )


def _check_possible(argument: str, tables: Array) -> None:
    """Raise ValueError for a table of zeros [.., first, second]; rows and columns of zeros are impossible states."""
    if _checks.is_traced(tables):
        return
    possible = np.asarray(tables).max(axis=(-2, -1), initial=0) > 0
    got = "zeros" if possible.ndim == 0 else f"zeros for edge types {np.flatnonzero(~possible)[:5].tolist()}"
    _checks.require(bool(possible.all()), argument, "must have an entry > 0 in each table", got, "Allow some pair.")


def _stack(tables: Mapping[int, Array], size: int) -> Float[Array, "edge_type first second"]:
    """Return tables stacked by edge type and padded with zeros; missing types have zeros."""
    padded = {k: jnp.pad(psi, [(0, size - n) for n in psi.shape]) for k, psi in tables.items()}
    empty = jnp.zeros((size, size), jnp.result_type(float))
    return jnp.stack([padded.get(k, empty).astype(empty.dtype) for k in range(1 + max(padded, default=0))])
