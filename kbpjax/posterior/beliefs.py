"""Beliefs: approximate posterior marginals, from evidence and messages.

A belief is a distribution on candidate points (a grid, gray levels, training samples): normalized weights

    b_s(x)  ~  (p(x) local_s(x) prod_{u in G(s)} m_us(x)^rho_us)^(1 / T),

where rho are the exponents of the solution (1 for belief propagation), T is the temperature and p is an estimate of the
marginal, by default `MeanEmbedding()`. Weights of numbers are multiplied by the spacing of the candidates, so that more
candidates in one region do not make it more probable. If candidates are samples of the marginal, pass
`marginal=Empirical()`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum, matmul, quick_jit, show, show_fields, values_or_shapes, vary_like, warn
from kbpjax._public import Checked, public
from kbpjax.features import FAR, Basis, features, represented
from kbpjax.features.cholesky import RelativeBasis, plain_features
from kbpjax.graphs.graph import Graph
from kbpjax.inference.diagnostics import CandidateWarning
from kbpjax.inference.loopy import Solution
from kbpjax.inference.operators import raise_logs as raise_logs
from kbpjax.inference.update import of_edges
from kbpjax.kernels.base import like
from kbpjax.learning.labels import Values, encode
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.starts import add_factors
from kbpjax.posterior.evidence import Evidence, constants, likelihood_values
from kbpjax.posterior.evidence import log_or_zero as log_or_zero
from kbpjax.posterior.likelihood import own_likelihood_values, pointwise_log_likelihoods
from kbpjax.posterior.marginals import Empirical, Marginal, MeanEmbedding, Parzen

COVERED = 0.25
"""Share of the training samples between the candidates below which `CandidateWarning` is given."""


Learned = tuple[Array, Array, Array] | None
"""`Evidence.messages`, `Evidence.observed` and `Evidence.exponents`, or None."""


class Belief(Checked):
    """A distribution of each variable on candidate points, common to all nodes or separate for each.

    Attributes:
        points: candidates [point, *dim], for all nodes; with `own_points`, [node, point, *dim].
        weights: probabilities [node, point]; each row sums to 1.
        lengths: length of the interval that each candidate stands for [point], relative to their mean: a weight is a
            density times a length. With `own_points`, also [node, point]. None: weights are those of states or samples.
        labels: labels whose codes the candidates are, so that `labels[points[i]]` is the label of candidate i; None:
            candidates are values. `mode` and `sample` return labels outside of `jax.jit`.
        own_points: whether each node has its own candidates: `points[s, i]` is candidate i of node s.

    `len(belief)` is the number of nodes. `belief[3]`, `belief[[1, 2]]`, `belief[:10]` and `belief[mask]` are the
    beliefs of some nodes.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]))
        >>> belief
        Belief(2 nodes on 3 points from 0 to 2)
        >>> belief[1].weights.tolist()
        [[1.0, 0.0, 0.0]]
        >>> belief.weights[:, belief.points > 0.5].sum(axis=1).tolist()  # P(x > 0.5 | evidence) of each node
        [0.75, 0.0]
        >>> points, weights = jnp.array([[0.0, 1.0], [5.0, 7.0]]), jnp.array([[0.5, 0.5], [0.25, 0.75]])
        >>> own = kbp.Belief(points, weights, own_points=True)
        >>> own
        Belief(2 nodes on 2 own points each from 0 to 7)
        >>> kbp.mean(own).tolist()
        [0.5, 6.5]
    """

    requires_finite = True

    points: Shaped[Array, "_point *dim"]
    weights: Float[Array, "node point"]
    lengths: Float[Array, "*node point"] | None = None
    labels: tuple[Any, ...] | None = eqx.field(static=True, default=None)
    own_points: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        known = self.labels is None or all(
            isinstance(one, str | int | float | bool | np.generic | None) for one in self.labels
        )
        fix = "Pass a tuple of texts or numbers, one for each code."
        kind = [type(one).__name__ for one in self.labels or ()][:3]
        _checks.require(known, "labels", "must be texts or numbers", f"{', '.join(kind)}", fix)
        if self.labels is not None and not _checks.is_unread(self.points):
            codes, count = np.asarray(self.points), len(self.labels)
            ok = np.issubdtype(codes.dtype, np.integer) and bool(np.all((codes >= 0) & (codes < count)))
            rule = f"must be codes of the {count} labels, integers 0 .. {count - 1}"
            _checks.require(ok, "points", rule, codes.reshape(-1)[:3].tolist(), "Pass one label for each code.")
        ok, fix = self.labels is None or not self.own_points, "Pass common points, the codes of the labels."
        _checks.require(ok, "labels", "must be None with own_points", f"{len(self.labels or ())} labels", fix)
        self._check_shapes()

    def _check_shapes(self) -> None:
        """Raise ValueError unless the shapes of points, weights and lengths fit; those of a batch are not checked."""
        shape, points, lengths = (getattr(x, "shape", None) for x in (self.weights, self.points, self.lengths))
        if shape is None or points is None or len(shape) != 2:
            return
        if self.own_points:
            rule, fix = f"must have shape [{shape[0]}, {shape[1]}, *dim]", "Pass the candidates of each node."
            _checks.require(points[:2] == shape, "points", f"{rule} with own_points", f"shape {points}", fix)
        else:
            rule, fix = f"must have shape [node, {points[0]}]", "Pass a probability for each candidate."
            _checks.require(points[:1] == shape[1:], "weights", rule, f"shape {shape}", fix)
        fits = [shape[1:], shape] if self.own_points else [shape[1:]]
        rule, fix = f"must have shape {' or '.join(map(str, fits))}", "Pass a length for each candidate."
        _checks.require(lengths is None or lengths in fits, "lengths", rule, f"shape {lengths}", fix)

    @staticmethod
    def _upgrade(fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of beliefs that were saved by kbpjax 0.1, with the solution (see `kbpjax.io`)."""
        return {name: value for name, value in fields.items() if name != "solution"}

    @property
    def dim(self) -> tuple[int, ...]:
        """The shape of one point, () for numbers."""
        return self.points.shape[self._batch_axes + 1 + self.own_points :]

    @property
    def num_points(self) -> int:
        """The number of candidates of a node."""
        return self.points.shape[self._batch_axes + self.own_points]

    @property
    def _batch_axes(self) -> int:
        return max(self.weights.ndim - 2, 0)

    def __len__(self) -> int:
        return self.weights.shape[-2]

    def __iter__(self) -> Iterator["Belief"]:
        return (self[node] for node in range(len(self)))

    def __getitem__(self, nodes: Any) -> "Belief":
        """Return the beliefs of some nodes: of a number, a list of numbers, a slice or a mask [node]."""
        count, shape = len(self), self.weights.shape
        fix = "For a batch of beliefs, index inside the function that jax.vmap maps."
        _checks.require(len(shape) == 2, "belief", "must have weights [node, point]", shape, fix)
        if isinstance(nodes, slice):
            return self._of_nodes(nodes)
        chosen = nodes if isinstance(nodes, jax.Array) else np.asarray(nodes, None if np.size(nodes) else int)
        is_mask = chosen.dtype == bool
        ok = chosen.shape == (count,) if is_mask else chosen.ndim <= 1 and jnp.issubdtype(chosen.dtype, jnp.integer)
        rule, fix = f"must be numbers, a slice or a mask of {count} nodes", "Pass for instance belief[[1, 2]]."
        _checks.require(ok, "nodes", rule, f"shape {chosen.shape}, dtype {chosen.dtype}", fix)
        if is_mask:
            return self._of_nodes(chosen)
        chosen = chosen.reshape(-1)
        if not _checks.is_unread(chosen):
            outside = [node for node in chosen.tolist() if not -count <= node < count]
            _checks.require(not outside, "nodes", f"must be among {count} nodes", outside[:3], "Count from 0.")
        return self._of_nodes(chosen)

    def _of_nodes(self, nodes: Any) -> "Belief":
        points = self.points[nodes] if self.own_points else self.points
        lengths = self.lengths
        lengths = lengths[nodes] if lengths is not None and lengths.ndim == 2 else lengths
        return Belief.trusted(points, self.weights[nodes], lengths, self.labels, self.own_points)

    @property
    def lengths_by_node(self) -> Float[Array, "node_or_one point"] | None:
        """The lengths with an axis for nodes [node, point], or [1, point] if they are common to all nodes."""
        if self.lengths is None or self.lengths.ndim == self.weights.ndim:
            return self.lengths
        return self.lengths[..., None, :]

    @property
    def heights(self) -> Float[Array, "node point"]:
        """Weights over lengths: values of the density, up to a factor; the weights where there are no lengths."""
        lengths = self.lengths_by_node
        if lengths is None:
            return self.weights
        return _over_lengths(self.weights, lengths)

    @values_or_shapes
    def __repr__(self) -> str:
        if self.weights.ndim != 2:
            return show_fields(self)
        if self.labels is not None:
            return f"Belief({len(self)} nodes on {len(self.points)} of {len(self.labels)} labels)"
        dim, axes = self.dim, (0, 1) if self.own_points else (0,)
        points = f"{self.num_points} {'own points each' if self.own_points else 'points'}"
        points += f" of shape {dim}" if dim else ""
        ends = [show(end).removesuffix(".0") for end in (self.points.min(axis=axes), self.points.max(axis=axes))]
        return f"Belief({len(self)} nodes on {points}" + (f" from {ends[0]} to {ends[1]})" if len(dim) < 2 else ")")


@overload
def beliefs(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    points: Mapping[int, Values],
    *,
    marginal: Marginal | None = None,
    temperature: ScalarLike | None = None,
) -> dict[int, Belief]: ...


@overload
def beliefs(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    points: None = None,
    *,
    marginal: Marginal | None = None,
    temperature: ScalarLike | None = None,
) -> Belief | dict[int, Belief]: ...


@overload
def beliefs(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    points: Numbers,
    *,
    marginal: Marginal | None = None,
    temperature: ScalarLike | None = None,
) -> Belief: ...


@public
def beliefs(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    points: Values | Mapping[int, Values] | None = None,
    *,
    marginal: Marginal | None = None,
    temperature: ScalarLike | None = None,
) -> Belief | dict[int, Belief]:
    """Return the beliefs of all nodes on candidate points.

    The belief of a clamped node has all weight on the candidate nearest to its value.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`, or None.
        solution: the solution of `run`.
        points: candidates [point, *dim], for all nodes; or {node type: candidates}, if types have different domains.
            None: those of the model, chosen from its training samples (`model.candidates`).
        marginal: the estimate of P*(x): `MeanEmbedding()`, `Parzen(kernel, samples)` or `Empirical()`. None:
            `Empirical()` for vectors at the points of the model, which are training samples; else `MeanEmbedding()`.
        temperature: beliefs are proportional to density ** (1 / temperature), as by `temper`, > 0. None: that of the
            model, which `fit` may have chosen.

    Returns:
        The beliefs of all nodes. If points are given by type, or are those of the model and the graph has several node
        types: {node type: beliefs of its nodes, in order of node number}.

    Raises:
        ValueError: points of another shape than the model's variables, no points, NaN or infinity; a solution or
            evidence of another graph; a belief that is 0 at all points (possible only with floor 0 or a known
            likelihood); candidates that are all far from the training samples.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> evidence = kbp.clamp(model, graph, [0], [0.5])
        >>> solution = kbp.run_tree(model, graph, evidence)
        >>> belief = kbp.beliefs(model, graph, evidence, solution, np.linspace(-1, 1, 5))
        >>> belief.weights.shape, kbp.mode(belief).tolist()
        ((3, 5), [0.5, 0.5, 0.5])
    """
    check_problem(model, graph, evidence, solution)
    types = {v: count for v, count, *_ in graph.node_types}
    estimates = marginals_of(model, graph, points, marginal)
    by_type = isinstance(points, Mapping) or (points is None and len(types) > 1)
    heat = model.temperature
    if temperature is not None:
        heat = jnp.asarray(_checks.in_range("temperature", temperature, solution.messages.dtype))
    checks: list[_checks.Check] = []  # done together at the end: one wait for the device
    known = known_points(model, graph) if points is None else points
    candidates = candidates_by_type(model, graph, known, checks, standardized=points is None)
    sized = {v: stand_for_intervals(model, points, estimates[v]) for v in types}
    own = {v: points is None and v in model.margins for v in types}
    weights = {}
    for v, count in types.items():
        x, z = candidates[v], None
        if v in model.margins:
            margins = model.margins[v].of_nodes(count)
            size = 1 if own[v] else count * len(x) * model.bases[v].rank * solution.messages.dtype.itemsize
            _checks.require_memory("points", "their features at each node", size, "Pass fewer points, or none.")
            x, z = (margins.candidates(x), x) if own[v] else (x, margins.standardized(_for_each(x, count)))
        candidates[v] = x
        likelihoods = log_likelihoods(evidence, v, x, count, solution.messages.dtype, checks, own[v])
        given = learned_factors(evidence), likelihoods, clamped_values(evidence, v)
        at = x if z is None else z
        weights[v], impossible = _weights(model, graph, given, solution, at, estimates[v], heat, v, sized[v])
        checks.append(somewhere_positive("nodes", partial(graph.nodes_of_type, v), impossible))
    _checks.read_and_check(checks)
    lengths = {v: lengths_of(candidates[v], weights[v].dtype, own[v]) if sized[v] else None for v in types}
    labels = dict(model.labels)
    if by_type:
        return {v: Belief.trusted(candidates[v], weights[v], lengths[v], labels.get(v), own[v]) for v in types}
    first = min(types)
    together = weights[first] if len(types) == 1 else _by_node(weights, {v: graph.nodes_of_type(v) for v in types})
    named = {labels.get(v) for v in types}
    shared = named.pop() if len(named) == 1 else None
    return Belief.trusted(candidates[first], together, lengths[first], shared, own[first])


def _for_each(x: Array, count: int) -> Array:
    """Return common candidates as those of each node [node, point, *dim]."""
    return jnp.broadcast_to(x[None], (count, *x.shape))


def known_points(model: KernelMRF, graph: Graph) -> dict[int, Array]:
    """Return the candidates of the model for each node type of the graph."""
    types, known = [v for v, *_ in graph.node_types], model.candidates or {}
    missing = [v for v in types if v not in known]
    fix = "Pass points=; a model that was fitted inside jax.jit or from chunks has no candidates."
    _checks.require(not missing, "points", "must be given if the model has no candidates", f"types {missing}", fix)
    return {v: known[v] for v in types}


def marginals_of(model: KernelMRF, graph: Graph, points: Any, marginal: Marginal | None) -> dict[int, Marginal]:
    """Return the estimate of the marginal of each node type, as `beliefs` selects it."""
    if marginal is not None:
        check_marginal(marginal)
        own = [v for v, *_ in graph.node_types if v in model.margins]
        rule, fix = "must not be Parzen where nodes have own margins", "Leave it out, or fit with margins='type'."
        _checks.require(not (own and isinstance(marginal, Parzen)), "marginal", rule, f"node types {own}", fix)
        return {v: marginal for v, *_ in graph.node_types}
    chosen = points is None and not model.has_potentials
    sampled = {v: chosen and model.points[v].ndim > 1 for v, *_ in graph.node_types}
    return {v: Empirical() if is_sample else MeanEmbedding() for v, is_sample in sampled.items()}


@jax.jit
def _by_node(weights: dict[int, Array], nodes: dict[int, Array]) -> Array:
    together = jnp.concatenate(list(weights.values()))
    return jnp.zeros_like(together).at[jnp.concatenate(list(nodes.values()))].set(together)


@partial(jax.jit, static_argnames=("node_type", "has_lengths"))
def _weights(
    model: KernelMRF,
    graph: Graph,
    given: tuple[Learned, Array | None, tuple[Array, Array] | None],
    solution: Solution,
    points: Array,
    marginal: Marginal,
    temperature: Array,
    node_type: int,
    has_lengths: bool,
) -> tuple[Array, Array]:
    """Return the beliefs of all nodes of a type, and a mask of those that are 0 at all points.

    `given` holds the learned factors, the logarithms of known likelihoods at the points, and clamped values. Points, in
    the units of the model, are common [point, *dim], or of each node [node_of_type, point, *dim].
    """
    learned, likelihoods, clamped = given
    points = points if points.ndim > model.points[node_type].ndim else points[None]
    each = lambda x: x.reshape(*points.shape[:2], *x.shape[1:])
    flat = points.reshape(-1, *points.shape[2:])
    at_points = each(features(model.bases[node_type], flat))
    logs = _log_messages(model, graph, learned, solution, at_points, node_type)
    logs = logs if likelihoods is None else logs + likelihoods
    logs = logs + each(log_or_zero(marginal.density(model, node_type, flat))).astype(logs.dtype)
    logs = add_factors(model.starts.get(node_type), graph, node_type, logs, flat)
    largest = jax.lax.stop_gradient(jnp.max(logs, axis=-1, keepdims=True))  # subtracted, else -inf at low temperatures
    logs = raise_logs(logs - jnp.where(largest == -jnp.inf, 0, largest), 1 / temperature.astype(logs.dtype))
    if has_lengths:  # relative ones, which a location and a scale do not change
        logs = logs + jnp.log(spacing(points[0]))[None].astype(logs.dtype)
    if clamped is None:
        return jax.nn.softmax(logs, axis=-1), jnp.all(logs == -jnp.inf, axis=-1)
    mask = clamped[0][:, None]
    logs = jnp.where(mask, 0, logs)
    if isinstance(model.bases[node_type], RelativeBasis):
        at_points = each(plain_features(model.bases[node_type], flat))
    nearest = nearest_candidate(model, clamped[1], node_type, at_points).astype(logs.dtype)
    return jnp.where(mask, nearest, jax.nn.softmax(logs, axis=-1)), jnp.all(logs == -jnp.inf, axis=-1)


def stand_for_intervals(model: KernelMRF, points: Any, marginal: Marginal) -> bool:
    """Return whether candidates stand for intervals, and are not samples, or the states of tables (without points)."""
    return not (isinstance(marginal, Empirical) or (model.has_potentials and points is None))


def lengths_of(points: Shaped[Array, "..."], dtype: Any, own_points: bool = False) -> Array | None:
    """Return `spacing` of scalar points of floats, of each node if they are `own_points`; None for others."""
    if own_points:
        of_one = points[0]
        return None if lengths_of(of_one, dtype) is None else jax.vmap(lambda x: spacing(x).astype(dtype))(points)
    scalar = points.shape[1:] in ((), (1,)) and jnp.issubdtype(points.dtype, jnp.floating)
    return _lengths(points, dtype) if scalar else None


@partial(quick_jit, static_argnames="dtype")
def _lengths(points: Array, dtype: Any) -> Array:
    return spacing(points).astype(dtype)


@quick_jit
def spacing(points: Shaped[Array, "point *dim"]) -> Float[Array, " point"]:
    """Return the lengths of the intervals around scalar points of floats, relative to their mean; others: ones.

    An interval ends halfway to the next point. Those of the first and last point are symmetric. Evenly spaced points
    have spacing 1.
    """
    dtype = points.dtype if jnp.issubdtype(points.dtype, jnp.floating) else jnp.result_type(float)
    ones = jnp.ones(len(points), dtype)
    if len(points) < 2 or points.shape[1:] not in ((), (1,)) or not jnp.issubdtype(points.dtype, jnp.floating):
        return ones
    flat = points.reshape(-1)
    order = jnp.argsort(flat)
    gaps = jnp.diff(flat[order])
    lengths = (jnp.concatenate([gaps[:1], gaps]) + jnp.concatenate([gaps, gaps[-1:]])) / 2
    mean = jnp.mean(lengths)
    return jnp.where(mean > 0, ones.at[order].set(lengths / jnp.where(mean > 0, mean, 1)), ones)


def log_density_at(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    points: Array,
    node_type: int,
    marginal: Marginal,
) -> Float[Array, "node own"]:
    """Return the logarithms of beliefs at separate points for each node, up to a constant (see `log_belief`)."""
    num_nodes, shape = len(graph.nodes_of_type(node_type)), model.points[node_type].shape[1:]
    ok = points.ndim >= 2 and len(points) == num_nodes and points.shape[2:] == shape
    fix = "Give points for each node of the type."
    _checks.require(ok, "points", f"must have shape [{num_nodes}, own, *{shape}]", f"shape {points.shape}", fix)
    _checks.require_finite("points", points, "Drop those points.")
    count = points.shape[:2]
    flat = like(points, model.points[node_type].dtype).reshape(-1, *shape)
    dtype = solution.messages.dtype
    likelihoods = pointwise_log_likelihoods(evidence, node_type, flat.reshape(*count, *shape)).astype(dtype)
    learned = learned_factors(evidence)
    if node_type in model.margins:
        margins = model.margins[node_type].of_nodes(num_nodes)
        flat = margins.standardized(flat.reshape(*count, *shape)).reshape(-1, *shape)
    logs = likelihoods + _log_density(model, graph, learned, solution, flat, marginal, node_type, count)
    return _tempered(logs, model.temperature)


@quick_jit
def _tempered(logs: Array, temperature: Array) -> Array:
    return raise_logs(logs, 1 / temperature.astype(logs.dtype))


@quick_jit
def _over_lengths(weights: Array, lengths: Array) -> Array:
    return jnp.where(lengths > 0, weights / jnp.where(lengths > 0, lengths, 1), 0)


@partial(jax.jit, static_argnames=("node_type", "count"))
def _log_density(
    model: KernelMRF,
    graph: Graph,
    learned: Learned,
    solution: Solution,
    points: Array,
    marginal: Marginal,
    node_type: int,
    count: tuple[int, int],
) -> Array:
    """Sum the logarithms of messages, learned factors and the marginal at per-node points [node_of_type, own]."""
    prior = log_or_zero(marginal.density(model, node_type, points)).reshape(count).astype(solution.messages.dtype)
    at_points = features(model.bases[node_type], points).reshape(*count, -1)
    logs = _log_messages(model, graph, learned, solution, at_points, node_type) + prior
    return add_factors(model.starts.get(node_type), graph, node_type, logs, points)


@partial(jax.jit, static_argnames="node_type")
def _log_messages(
    model: KernelMRF, graph: Graph, learned: Learned, solution: Solution, at_points: Array, node_type: int
) -> Array:
    """Sum the logarithms of learned factors and messages, times exponents, of all nodes of a type [.., point].

    `at_points` holds features of common points [1, point, rank], or of per-node points [node_of_type, point, rank].
    """
    nodes = graph.nodes_of_type(node_type)
    floor = model.floor_of(node_type)
    messages, exponents = solution.coefficients, solution.exponents
    at_points = at_points.astype(messages.dtype)
    total = log_factors(learned, nodes, at_points, floor)
    inbox, owner = graph.inboxes[node_type]
    owner = jnp.arange(len(inbox), dtype=jnp.int32) if owner is None else owner
    padded = jnp.concatenate([messages, jnp.zeros_like(messages, shape=(1, messages.shape[1]))])

    @jax.checkpoint
    def add(total, slot):
        values = log_values(padded[slot], owner, at_points, floor)
        values = values if exponents is None else raise_logs(values, of_edges(exponents)[slot][..., None])
        return total + jnp.where((slot < graph.num_edges)[:, None], values, 0), None

    start = jnp.zeros((len(inbox), total.shape[1]), total.dtype)
    rows, _ = jax.lax.scan(add, vary_like(start, (messages, at_points, floor, exponents, graph)), inbox.T)
    return total + rows if len(rows) == len(total) else total.at[owner].add(rows)


def learned_factors(evidence: Evidence | None) -> Learned:
    """Return the learned factors of evidence, the part that compiled code needs."""
    return None if evidence is None else (evidence.messages, evidence.observed, evidence.exponents)


def log_factors(learned: Learned, nodes: Array, at_points: Array, floor: Array) -> Array:
    """Sum the logarithms of the learned factors of some nodes [some, point]."""
    total = jnp.zeros((len(nodes), at_points.shape[1]), at_points.dtype)
    own = jnp.arange(len(nodes), dtype=jnp.int32)
    for messages, observed, power in zip(*learned, strict=True) if learned is not None else ():
        values = raise_logs(log_values(messages[nodes], own, at_points, floor), power.astype(total.dtype))
        total = total + jnp.where(observed[nodes][:, None], values, 0)
    return total


def log_values(messages: Array, owner: Array, at_points: Array, floor: Array) -> Array:
    """Return the logarithms of messages [some, rank] at the points of their owners, with the floor [some, point]."""
    coefficients = messages[:, : at_points.shape[-1]].astype(at_points.dtype)
    if len(at_points) == 1:
        values = matmul(coefficients, at_points[0].T)
    else:
        values = einsum("er,epr->ep", coefficients, at_points[jnp.minimum(owner, len(at_points) - 1)])
    return log_or_zero(jnp.maximum(values, floor.astype(values.dtype)))


def check_marginal(marginal: Any) -> None:
    """Raise ValueError unless `marginal` is an estimate of the marginal."""
    fix = "Pass kbpjax.MeanEmbedding(), kbpjax.Parzen(kernel, samples) or kbpjax.Empirical()."
    _checks.require(isinstance(marginal, Marginal), "marginal", "must be an estimate of P*", repr(marginal), fix)


def log_likelihoods(
    evidence: Evidence | None,
    node_type: int,
    points: Array,
    num_nodes: int,
    dtype: jnp.dtype,
    checks: list[_checks.Check],
    own_points: bool = False,
) -> Array | None:
    """Sum the logarithms of the known likelihoods at points [node_of_type, point]; None where there are none.

    With `own_points`, the points are [node_of_type, point, *dim]. The checks of their values are appended to `checks`.
    """
    functions = [] if evidence is None else [fns[node_type] for fns in evidence.likelihoods if node_type in fns]
    values = lambda fn: (
        own_likelihood_values(fn, points, checks) if own_points else likelihood_values(fn, points, num_nodes, checks)
    )
    logs = [log_or_zero(values(fn)).astype(dtype) for fn in functions]
    return sum(logs[1:], logs[0]) if logs else None


def clamped_values(evidence: Evidence | None, node_type: int) -> tuple[Array, Array] | None:
    """Return the mask of clamped nodes of a type and their values; None if the type has no clamps."""
    return None if evidence is None else evidence.values.get(node_type)


def nearest_candidate(model: KernelMRF, values: Array, node_type: int, at_points: Array) -> Array:
    """Return weights with all mass on the point nearest to each value in feature space [value, point].

    `at_points` holds the plain features of common points [1, point, rank], or of those of each value
    [value, point, rank].
    """
    at_values = plain_features(model.bases[node_type], values)
    if len(at_points) == 1:
        products = matmul(at_values, at_points[0].T)
    else:
        products = einsum("vr,vpr->vp", at_values, at_points)
    distance = jnp.sum(at_points**2, axis=-1) - 2 * products
    return jax.nn.one_hot(jnp.argmin(distance, axis=-1), at_points.shape[1], dtype=distance.dtype)


def somewhere_positive(argument: str, numbers: Callable[[], Any], impossible: Array) -> _checks.Check:
    """Return a check that no belief is 0 at all points, of nodes or edges of some numbers; else these are NaN."""

    def check(impossible: np.ndarray) -> None:
        zero = np.asarray(numbers())[impossible] if impossible.any() else []
        fix = (
            "Add candidate points that the evidence and the messages allow, or fit with a floor > 0. If the points are "
            "all states of given tables, the evidence is impossible under them: correct either."
        )
        rule = "must have a belief > 0 at one point at least"
        _checks.require(len(zero) == 0, argument, rule, f"0 everywhere for {np.asarray(zero[:5]).tolist()}", fix)

    return impossible, check


def check_problem(model: KernelMRF, graph: Graph, evidence: Evidence | None, solution: Solution) -> None:
    """Raise ValueError unless solution and evidence belong to the model and the graph."""
    model.check_types(graph)
    rank = model.operators.evaluate.shape[2]
    shape, got = (graph.num_edges, rank), solution.coefficients.shape
    fix = "Pass what kbpjax.run returned for this model and graph."
    _checks.require(got == shape, "solution", f"messages must be {shape}", got, fix)
    if evidence is not None:
        shape, got = (graph.num_nodes, rank), evidence.messages.shape[1:]
        fix = "Pass the evidence that was passed to kbpjax.run."
        _checks.require(got == shape, "evidence", f"messages must have shape {shape}", got, fix)


def candidates_by_type(
    model: KernelMRF,
    graph: Graph,
    points: Numbers | Mapping[int, Numbers],
    checks: list[_checks.Check],
    standardized: bool = False,
) -> dict[int, Array]:
    """Return the candidates of each node type of the graph; the checks of their values are appended to `checks`."""
    types = [v for v, *_ in graph.node_types]
    by_type = points if isinstance(points, Mapping) else dict.fromkeys(types, points)
    missing, unknown = [v for v in types if v not in by_type], [v for v in by_type if v not in types]
    fix = "Leave the others out."
    _checks.require(not unknown, "points", f"must have node types among {types} as keys", unknown, fix)
    rule = f"must have an entry for each of the node types {types}"
    _checks.require(not missing, "points", rule, f"none for {missing}", "Add candidates for them.")
    return {v: _candidates_of(model, v, by_type[v], checks, standardized) for v in types}


def _candidates_of(
    model: KernelMRF, node_type: int, points: Numbers, checks: list[_checks.Check], standardized: bool
) -> Array:
    codes = encode("points", points, dict(model.labels).get(node_type))
    array = _checks.as_array("points", codes)
    shape = model.points[node_type].shape[1:]
    rule = f"must have shape [point, *{shape}], as the variables of node type {node_type}"
    ok = array.ndim >= 1 and len(array) > 0 and array.shape[1:] == shape
    _checks.require(ok, "points", rule, f"shape {array.shape}", "Pass candidates, or {node type: candidates}.")
    if not isinstance(points, jax.Array):  # known without waiting for the device
        _checks.require_finite("points", array, "Drop those points.")
    candidates = like(array, model.points[node_type].dtype)
    _checks.check_domain(model.bases[node_type].check, "points", candidates)
    if not _checks.is_unread((model, candidates)):
        checks.append(_within_reach(model, node_type, candidates, standardized))
    return candidates


def _within_reach(model: KernelMRF, node_type: int, candidates: Array, standardized: bool) -> _checks.Check:
    """Return a check that candidates are finite, some are near training samples, and they cover enough of these.

    It raises ValueError, and warns if they cover few of the samples. Where nodes have own margins, candidates that are
    not `standardized` are compared with the samples of all nodes.
    """
    basis, samples, margins = model.bases[node_type], model.points[node_type], model.margins.get(node_type)
    with constants():
        at = candidates
        if margins is not None and not standardized:
            at = margins.pooled(candidates)
        facts = _facts(basis, samples, at)
        samples = samples if margins is None or standardized else margins.pooled_center + margins.pooled_scale * samples

    def check(facts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        finite, near, covered = facts
        if finite and near and covered >= COVERED:
            return
        x = np.asarray(candidates)
        _checks.require_finite("points", x, "Drop those points.")
        low, high = np.min(samples), np.max(samples)
        scalar = candidates.ndim == 1
        of_samples = f"training samples from {low:.4g} to {high:.4g}" if scalar else "training samples"
        got = f"candidates from {x.min():.4g} to {x.max():.4g}" if scalar else "candidates"
        fix = "Pass values in the units of the training data, or leave points out of kbpjax.infer."
        rule = f"must lie near the {of_samples} of node type {node_type}"
        _checks.require(bool(near), "points", rule, f"{got}, all far from them", fix)
        text = f"points: {got} cover {covered:.0%} of the {of_samples} of node type {node_type}. {fix}"
        warn(text, CandidateWarning)

    return facts, check


@quick_jit
def _facts(basis: Any, samples: Array, candidates: Array) -> tuple[Array, Array, Array]:
    """Return whether candidates are finite, whether some are near samples, and the share of samples between them."""
    finite = jnp.all(jnp.isfinite(candidates)) if jnp.issubdtype(candidates.dtype, jnp.floating) else jnp.array(True)
    if not isinstance(basis, Basis):
        return finite, jnp.array(True), jnp.ones(())
    near = jnp.max(represented(basis, candidates)) > FAR
    if candidates.ndim > 1 or len(candidates) == 1:
        return finite, near, jnp.ones(())
    inside = (samples >= jnp.min(candidates)) & (samples <= jnp.max(candidates))
    return finite, near, jnp.mean(inside, dtype=jnp.result_type(float))
