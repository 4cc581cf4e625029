"""Kernel Markov random fields: operators and observation models learned from training pairs.

For an edge type with pairs (x_t, x_s), the update of a message from t to s is the conditional expectation (eq. 4)

    m_ts(x_s) = E[ prod_u m_ut(X_t) | x_s ],

estimated by ridge regression (section 5). The update rule selects the features in which messages are linear, and the
evaluation points of their products. An observation enters as one more message. A model has no graph: it is a template
for any graph with its node and edge types.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit, show, show_fields, show_lines, show_list, values_or_shapes
from kbpjax._public import Checked
from kbpjax.features import Basis, FeatureMap, features
from kbpjax.features.cholesky import Hats, RelativeBasis, Shares, plain_features
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import Operators
from kbpjax.kernels import Kernel
from kbpjax.kernels.base import random_rows
from kbpjax.learning.data import TrainingData
from kbpjax.learning.embedding import ridge_solve
from kbpjax.learning.far import are_far
from kbpjax.learning.front_ends import with_front_ends
from kbpjax.learning.labels import ByType
from kbpjax.learning.nonnegative import Clipped, ConstrainedFit, positivity
from kbpjax.learning.observations import EvidenceModel, Expectation, ObservationModel, counted_model, regressed_model
from kbpjax.learning.patterns import PatternFeatures, with_patterns
from kbpjax.learning.relations import Cells, OwnRelations, graph_with
from kbpjax.learning.rules import ConstantTime, NodeBasis, Rule, build_bases, kernels_of_observations
from kbpjax.learning.starts import learn_start, require_starts, with_factors
from kbpjax.learning.sums import EdgeSums, NodeSums, ObservationSums, edge_sums, node_sums, observation_sums

Positive = Clipped | ConstrainedFit


CHOSEN = ("evidence_model", "evidence_power", "temperature", "reweighting")
"""What `fit` chooses for inference: fields of `KernelMRF` and of `Hyperparameters`."""


LEVELS = 96
"""Number of levels of numbers with smoothed counts."""

RELATIONS = ("ridge", "counts")
"""Estimators of conditional expectations: ridge regression, and smoothed counts."""


def _number(value: Any) -> Array:
    """Return a number as a strongly typed array of floats."""
    number = jnp.asarray(value)
    return number if jnp.issubdtype(number.dtype, jnp.floating) else number.astype(jnp.result_type(float))


class KernelMRF(Checked):
    """A fitted kernel Markov random field, a template for any graph with its node and edge types.

    Attributes:
        bases: {node type: features in which messages are linear}.
        points: {node type: points at which messages are evaluated and multiplied [point, *dim]}.
        operators: matrices of the updates, padded with zeros to common ranks.
        observations: {node type: observation model}.
        marginals: {node type: mean embedding [rank]}; `features(x) @ marginal` is the marginal density smoothed by the
            kernel.
        moments: {node type: second moment of the features, E[phi(X) phi(X)'] [rank, rank]}.
        residuals: {node type: (message basis, product basis)}, the maximum residual norm of each basis, relative to the
            maximum feature norm. A value well above `eps` means that `max_rank` is too small for the bandwidth.
        ridges: {node type: ridge parameter of its observation and clamping operators}.
        edge_types: (type, node type of first end, node type of second end) of each edge type.
        candidates: {node type: candidate points of beliefs [point, *dim]}, chosen from the training samples, or all
            states; None for a model that was fitted inside `jax.jit` or from chunks.
        evidence_model: evidence model of observations and clamps, the default of `observe` and `clamp`.
        evidence_power: power of the evidence of observations, the default of `observe`.
        temperature: temperature of the beliefs, the default of `beliefs`: they are proportional to
            density ** (1 / temperature).
        reweighting: factor of the exponents of the messages in `infer` on graphs with cycles, which are the edge
            appearance probabilities of `tree_reweighting` times it, at most 1.
        hyperparameters: the `Hyperparameters` that `fit` chose, which can fit other data; None if it chose none.
            Inference does not read it.
        selection: the `Selection` of the alternatives that `fit` compared, with scores and seconds; None if it chose
            nothing.
        labels, obs_labels: (node type, labels) of the variables and of the observations that are codes of labels.
        has_potentials: whether the edges have given or counted tables (`kbpjax.baselines.discrete`), to which `infer`
            applies plain belief propagation; False: operators learned with `fit`.
        margins, obs_margins: {node type: `Margins`} of variables and observations whose nodes have locations and scales
            of their own (`fit(margins=)`). `points` and `candidates` of these types are standardized.
        own_edges: (first node, second node, own edge type, shared edge type) of the edges that have relations of their
            own (`fit(sharing=)`); (): none.
        own_nodes: number of nodes of the graph of these edges.
        cells: (edge type, edge types of cells, centers, units) of the edge types whose relations vary with the features
            of their edges (`Graph.edge_features`); (): none.
        starts: {node type: `Start`} of the node types whose nodes without an incoming edge have a marginal of their own
            (`fit(starts=)`).

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> rank, points = model.ranks[0]
        >>> rank < 20, bool(model.residuals[0][0] < 1e-3)  # of 60 samples
        (True, True)
        >>> kbp.run(model, kbp.chain_graph(9)).messages.shape == (16, rank)  # a template for any graph of its types
        True
    """

    bases: dict[int, FeatureMap]
    points: dict[int, Shaped[Array, "point ..."]]
    operators: Operators
    observations: dict[int, ObservationModel]
    marginals: dict[int, Array]
    moments: dict[int, Array]
    residuals: dict[int, tuple[Array, Array]]
    ridges: dict[int, Float[Array, ""]]
    edge_types: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    candidates: dict[int, Array] | None = None
    evidence_model: EvidenceModel = Expectation()
    evidence_power: Float[Array, ""] = eqx.field(default=1.0, converter=_number)
    temperature: Float[Array, ""] = eqx.field(default=1.0, converter=_number)
    reweighting: Float[Array, ""] = eqx.field(default=1.0, converter=_number)
    hyperparameters: Any = None
    selection: Any = None
    labels: ByType = eqx.field(static=True, default=())
    obs_labels: ByType = eqx.field(static=True, default=())
    has_potentials: bool = eqx.field(static=True, default=False)
    margins: dict[int, Any] = eqx.field(default_factory=dict)
    obs_margins: dict[int, Any] = eqx.field(default_factory=dict)
    own_edges: tuple[tuple[int, int, int, int], ...] = eqx.field(static=True, default=())
    own_nodes: int = eqx.field(static=True, default=0, converter=_checks.whole)
    cells: tuple[Cells, ...] = eqx.field(static=True, default=())
    starts: dict[int, Any] = eqx.field(default_factory=dict)

    @staticmethod
    def _upgrade(fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a model that was saved by kbpjax 0.1 (see `kbpjax.io`)."""
        if "joints" not in fields:
            return fields
        chosen, defaults = fields.get("hyperparameters"), (Expectation(), *(_number(1.0) for _ in CHOSEN[1:]))
        values = {name: getattr(chosen, name, default) for name, default in zip(CHOSEN, defaults, strict=True)}
        given = bool(fields["bases"]) and all(type(one).__name__ == "Indicators" for one in fields["bases"].values())
        kept = {name: value for name, value in fields.items() if name != "joints"}
        return kept | values | {"has_potentials": given}

    @property
    def ranks(self) -> dict[int, tuple[int, int]]:
        """{node type: (rank of messages, number of evaluation points)}."""
        return {v: (basis.rank, len(self.points[v])) for v, basis in self.bases.items()}

    @property
    def sizes(self) -> tuple[int, int, Any]:
        """Number of evaluation points, number of coefficients of a message, and dtype."""
        _, points, rank = self.operators.evaluate.shape
        return points, rank, self.operators.evaluate.dtype

    @property
    def positivity(self) -> dict[int, tuple[tuple[Array, Array], tuple[Array, Array]]]:
        """{edge type: (forth, back)}, the fraction of negative entries and of negative mass in evaluate @ project.

        A true conditional expectation has no negative entries. `fit(nonnegative=...)` replaces the estimate by a table
        without negative entries.
        """
        shares = {}
        for k, *ends in self.edge_types:
            directions = []
            for direction, (sender, receiver) in enumerate((ends, ends[::-1])):
                at_points = features(self.bases[receiver], self.points[receiver])
                update = self.operators.project[2 * k + direction, : at_points.shape[1], : len(self.points[sender])]
                directions.append(positivity(matmul(at_points, update)))
            shares[k] = tuple(directions)
        return shares

    def interaction(self, edge_type: int) -> Float[Array, "first_rank second_rank"]:
        r"""Return R with `phi(x)' R phi(y) = P*(x, y) / (P*(x) P*(y))` at the ends x, y of an edge, up to a scale.

        It is derived from the operators of both directions, which map a point mass at one end, relative to P*, to the
        ratio at the other: R = (A + B') / 2 with

        $$A = \mathrm{project}_{ts}\, \mathrm{evaluate}_t\, (\mathcal{C}_{tt} + \lambda I)^{-1}.$$
        """
        ends = {k: (a, b) for k, a, b in self.edge_types}
        fix = "Pass an edge type of the training data."
        _checks.require(edge_type in ends, "edge_type", f"must be one of {sorted(ends)}", edge_type, fix)
        first, second = ends[edge_type]
        to_second, to_first = (
            self._ratio(2 * edge_type, first, second),
            self._ratio(2 * edge_type + 1, second, first),
        )
        return (to_first + to_second.T) / 2

    def _ratio(self, direction: int, sender: int, receiver: int) -> Array:
        """Return the map from features of a value of the sender to the message of a point mass there."""
        (rank, points), rows = self.ranks[sender], self.ranks[receiver][0]
        project = self.operators.project[direction, :rows, :points]
        if isinstance(self.bases[sender], RelativeBasis):  # of a joint density
            return matmul(project, plain_features(self.bases[sender], self.points[sender]).astype(project.dtype))
        project = matmul(project, self.operators.evaluate[sender, :points, :rank])
        penalized = self.moments[sender] + self.ridges[sender] * jnp.eye(rank, dtype=self.moments[sender].dtype)
        return matmul(project.astype(penalized.dtype), _pseudo_inverse(penalized))

    def graph_of(self, graph: Graph) -> Graph:
        """Return a graph with the edge types of its relations: those of cells of features, or its own.

        `infer`, `run` and `run_tree` do so; schedules are of this graph.
        """
        return graph_with(self.cells, self.own_edges, self.own_nodes, graph)

    def shared_type(self, edge_type: int) -> int:
        """Return the edge type of training data that an edge type of `graph_of` is of."""
        of_edges = {own: k for *_, own, k in self.own_edges}
        kind = of_edges.get(edge_type, edge_type)
        return next((one.shared for one in self.cells if kind in one.types), kind)

    def with_starts(
        self, graph: Graph, local: Float[Array, "node point"]
    ) -> tuple[Operators, Float[Array, "node point"]]:
        """Return operators and local factors with the marginals of the starts of a graph, as `run` uses them."""
        if not self.starts:
            return self.operators, local
        edge_types = tuple(ends for ends in graph.edge_types if ends in self.edge_types)
        return with_factors(self.starts, self.points, edge_types, graph, self.operators, local)

    def floor_of(self, node_type: int) -> Float[Array, ""]:
        """Return the minimum value of an evaluated message of a node type."""
        floors = jnp.asarray(self.operators.floor, self.operators.evaluate.dtype).reshape(-1)
        return floors[node_type if len(floors) > 1 else 0]

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless the model has all node and edge types of a graph."""
        fix = "Fit the model on data with all types of the graph, or build the graph with the types of the model."
        unknown = [v for v, *_ in graph.node_types if v not in self.bases]
        _checks.require(not unknown, "graph", f"must have node types among {sorted(self.bases)}", unknown, fix)
        fitted = set(self.edge_types)
        unknown_edges = [ends for ends in graph.edge_types if ends not in fitted]
        rule = f"must have edge types (type, first, second) among {list(self.edge_types[:20])}"
        _checks.require(not unknown_edges, "graph", rule, unknown_edges, fix)

    @values_or_shapes
    def __repr__(self) -> str:
        if self.operators.evaluate.ndim != 3:
            return show_fields(self)
        nodes = []
        for v, (rank, points) in self.ranks.items():
            messages, products = (f"{float(residual):.2g}" for residual in self.residuals[v])
            nodes.append(
                f"node type {v}: {_show_features(self.bases[v])}, rank {rank}, {points} points,"
                f"\n  residuals {messages} (messages) and {products} (products), floor {float(self.floor_of(v)):.2g},"
                f" obs_ridge {float(self.ridges[v]):.2g}"
            )
        of_cells = {kind for one in self.cells for kind in one.types}
        own_types = {kind for *_, kind, _ in self.own_edges} | of_cells
        edges = [f"edge type {k}: node types {a} and {b}" for k, a, b in self.edge_types if k not in own_types]
        edges += [f"edge type {one.shared} varies with features: {len(one.types)} cells" for one in self.cells]
        if self.own_edges:
            own = f"{len(self.own_edges)} edges of a graph of {self.own_nodes} nodes"
            edges.append(f"{own} have relations of their own")
        observed = [
            f"observations of node type {v}: {_show_features(observation.basis)}, rank {observation.basis.rank},"
            f" residual {float(observation.residual):.2g}"
            for v, observation in self.observations.items()
        ]
        margins = [f"node type {v}: own margins, {one!r}" for v, one in self.margins.items()]
        margins += [f"node type {v}: own starts, {one!r}" for v, one in self.starts.items()]
        sign = "as estimated" if self.operators.nonnegative is None and not self.has_potentials else "nonnegative"
        lines = [line for part in (nodes, margins, edges, observed) for line in show_list(part)]
        chosen = self.hyperparameters
        if chosen is not None:
            lines.append(
                f"chosen from the data: ridge {show(chosen.ridge)}, {self.evidence_model!r} with power"
                f" {show(self.evidence_power)}, temperature {show(self.temperature)}"
            )
        if self.selection is not None and len(self.selection):
            lines.append("\n  ".join(["tried:", *self.selection.lines]))
        return show_lines("KernelMRF", [*lines, f"updates: {sign}"])


def _pseudo_inverse(moment: Float[Array, "rank rank"]) -> Float[Array, "rank rank"]:
    """Return the inverse of a second moment, without its null space: bases of all samples have one.

    The moment is scaled to diagonal 1, so that rare states have full precision. The derivative is that of an inverse.
    """
    diagonal = jnp.diagonal(moment)
    scale = jnp.where(diagonal > 0, jax.lax.rsqrt(jnp.where(diagonal > 0, diagonal, 1)), 0)
    scaled = scale[:, None] * moment * scale[None]
    values, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(scaled))
    kept = values > len(moment) * jnp.finfo(moment.dtype).eps * values[-1]
    inverse = matmul(vectors * jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)[None], vectors.T)
    inverse = 2 * inverse - matmul(inverse, matmul(scaled, inverse))  # the same, with d(A^-1) = -A^-1 dA A^-1
    return scale[:, None] * inverse * scale[None]


def _show_features(basis: FeatureMap) -> str:
    """Return the text of the kernel of a feature map, or of the map if it has no kernel."""
    return show(basis if isinstance(basis, PatternFeatures) else getattr(basis, "kernel", basis))


def learn_model(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel],
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: Rule = ConstantTime(),
    ridge: ScalarLike | Mapping[int, ScalarLike] = 1e-6,
    obs_ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    floor: ScalarLike = 1e-6,
    nonnegative: Positive | None = None,
    relation: str = "ridge",
    levels: Mapping[int, Array] | None = None,
    own: OwnRelations | None = None,
    starts: Sequence[int] = (),
) -> KernelMRF:
    """Return the model of given kernels and ridges; see `kbpjax.fit`, which can choose them.

    With smoothed counts, products of numbers are evaluated at `levels` {node type: sorted numbers}; None: chosen. The
    starts of some node types have a marginal of their own.
    """
    fix = "Pass for instance kbpjax.ConstantTime(eps=1e-2)."
    _checks.require(isinstance(rule, Rule), "rule", "must be an update rule", repr(rule), fix)
    ends, ridges = data.ends, ridge
    if own is not None:
        ends = data.ends + own.ends
        if isinstance(ridge, Mapping):
            ridges = dict(ridge) | {kind: ridge[one.shared] for one in own.cells for kind in one.types}
            ridges |= {kind: ridges[k] for *_, kind, k in own.edges}
    regression = Regression.of(ends, list(data.nodes), ridges, obs_ridge, floor, nonnegative, relation)
    rule.check_memory(data, nonnegative is not None)
    bases, obs_bases = build_bases(data, kernel, obs_kernel, rule)
    if relation == "counts":
        bases = {v: _of_counts(basis, data.nodes[v], (levels or {}).get(v)) for v, basis in bases.items()}
    model = regression.model(
        bases,
        obs_bases,
        edge_sums(bases, data) if own is None else own.drawn(edge_sums(bases, data)),
        {v: node_sums(basis, data.nodes[v]) for v, basis in bases.items()},
        {v: observation_sums(bases[v].messages, obs_bases[v][0], *pair) for v, pair in data.observations.items()},
    )
    more = {"labels": data.labels, "obs_labels": data.obs_labels}
    more |= {"margins": data.margins, "obs_margins": data.obs_margins}
    require_starts("starts", starts, data)
    if own is not None:
        more |= {"own_edges": own.edges, "own_nodes": own.num_nodes, "cells": own.cells}
    kernels = dict.fromkeys(data.nodes, kernel) if isinstance(kernel, Kernel) else kernel
    found = {v: learn_start(data.starts[v], kernels[v], ends=own is None) for v in starts}
    if found:
        more["starts"] = found
    observations = model.observations
    if data.partly:
        ridges, means = regression.obs_ridges, model.marginals if regression.counts else {}
        of_observations = kernels_of_observations(data, obs_kernel)
        observations = observations | {
            v: with_patterns(observations[v], one, bases[v].messages, of_observations[v], ridges[v], means.get(v), rule)
            for v, one in data.partly.items()
        }
    if data.front_ends:
        observations = with_front_ends(observations, data.front_ends)
    if observations is not model.observations:
        more["observations"] = observations
    if any(more.values()):
        model = dataclasses.replace(model, **more)
    if _checks.is_traced(data):
        return model
    candidates = {v: candidate_points(x) for v, x in data.nodes.items()}
    return eqx.tree_at(lambda m: m.candidates, model, candidates, is_leaf=lambda leaf: leaf is None)


def with_chosen(
    model: KernelMRF,
    evidence_model: EvidenceModel,
    evidence_power: ScalarLike,
    temperature: ScalarLike,
    reweighting: ScalarLike = 1.0,
) -> KernelMRF:
    """Return the model with other choices for inference (`CHOSEN`)."""
    values = evidence_model, evidence_power, temperature, reweighting
    return dataclasses.replace(model, **dict(zip(CHOSEN, values, strict=True)))


def _of_counts(basis: NodeBasis, x: Array, levels: Array | None) -> NodeBasis:
    """Return bases for smoothed counts: products are interpolated, linearly or by the shares of their landmarks."""
    rule, fix = "must select landmarks with relation='counts'", "Pass features=PivotedCholesky(), or relation='ridge'."
    _checks.require(isinstance(basis.messages, Basis), "rule", rule, type(basis.messages).__name__, fix)
    assert isinstance(basis.messages, Basis)
    if basis.products is None:
        return basis
    if levels is None and not _checks.is_traced(x):
        levels = count_levels(x, LEVELS)
    if levels is None:
        return dataclasses.replace(basis, products=Shares.of(basis.products))
    residuals = basis.residuals[0], jnp.zeros_like(basis.residuals[1])
    return NodeBasis(basis.messages, Hats.at(basis.messages.kernel, levels), levels, residuals)


def count_levels(x: Shaped[Array, "sample *dim"], count: int) -> Shaped[Array, " level"] | None:
    """Return sorted numbers between which products are interpolated; None for vectors and for many integers."""
    if x.ndim > 1 or (not jnp.issubdtype(x.dtype, jnp.floating) and len(np.unique(np.asarray(x))) > count):
        return None
    return jnp.sort(candidate_points(x, count))


def candidate_points(x: Shaped[Array, "sample *dim"], count: int | None = None) -> Shaped[Array, "point *dim"]:
    """Return candidate points for beliefs, chosen from training samples.

    Args:
        x: samples.
        count: largest number of points. None: 256 for numbers, 512 for others.

    Returns:
        Numbers: their distinct values if there are at most `count`, else evenly spaced points over their range.
        Integers with more: some of the distinct values. Others: samples, repeated as they are, for `Empirical()`. Of
        floats, one in a thousand, or one, may be far from all others: it is left out.
    """
    values = np.asarray(x)
    count = (256 if values.ndim == 1 else 512) if count is None else count
    if values.ndim > 1:
        return _checks.to_jax(values[random_rows(len(values), count)])
    distinct = np.unique(values[~are_far(values)] if np.issubdtype(values.dtype, np.floating) else values)
    if len(distinct) > count and np.issubdtype(values.dtype, np.floating):
        return _checks.to_jax(np.linspace(distinct[0], distinct[-1], count, dtype=values.dtype))
    return _checks.to_jax(distinct[random_rows(len(distinct), count)])


@dataclasses.dataclass(frozen=True)
class Regression:
    """Options of the regressions from sums over samples to a model.

    Attributes:
        ends: (edge type, node type of first end, node type of second end) of each edge type.
        ridges: {edge type: lambda of eq. 11}.
        obs_ridges: {node type: lambda of the observation operators}.
        floor: relative minimum value of an evaluated message.
        nonnegative: method that makes updates nonnegative, or None.
        counts: whether conditional expectations are smoothed counts, not ridge regressions; see `kbpjax.fit`.
    """

    ends: tuple[tuple[int, int, int], ...]
    ridges: dict[int, ScalarLike]
    obs_ridges: dict[int, ScalarLike]
    floor: ScalarLike
    nonnegative: Positive | None
    counts: bool = False

    @classmethod
    def of(
        cls,
        ends: tuple[tuple[int, int, int], ...],
        nodes: Sequence[int],
        ridge: Any,
        obs_ridge: Any,
        floor: ScalarLike,
        nonnegative: Any,
        relation: str = "ridge",
    ) -> "Regression":
        """Return the options of `fit`, checked against the edge and node types of the training data."""
        ridges = _ridges("ridge", ridge, [k for k, *_ in ends], "edge")
        of_observations = 1e-6 if obs_ridge is None and isinstance(ridge, Mapping) else obs_ridge
        obs_ridges = _ridges("obs_ridge", ridge if of_observations is None else of_observations, nodes, "node")
        _checks.require_number("floor", floor, least=0, below=1)
        fix = "Pass kbpjax.Clipped(), kbpjax.ConstrainedFit() or None."
        ok = nonnegative is None or isinstance(nonnegative, Positive)
        _checks.require(ok, "nonnegative", "must be Clipped, ConstrainedFit or None", repr(nonnegative), fix)
        known = relation in RELATIONS
        _checks.require(known, "relation", f"must be one of {RELATIONS}", repr(relation), "Pass one of them.")
        counts = relation == "counts"
        if counts:
            fix, shares = "Pass Clipped() or None.", [*ridges.values(), *obs_ridges.values()]
            ok = not isinstance(nonnegative, ConstrainedFit)
            _checks.require(ok, "nonnegative", "must not be ConstrainedFit with relation='counts'", "it", fix)
            for share in shares:
                _checks.require_number("ridge", share, least=0, most=1)
        return cls(ends, ridges, {v: obs_ridges[v] for v in nodes}, floor, nonnegative, counts)

    def model(
        self,
        bases: Mapping[int, NodeBasis],
        obs_bases: Mapping[int, tuple[FeatureMap, Array]],
        edges: Iterable[tuple[list[int], EdgeSums]],
        nodes: Mapping[int, NodeSums],
        observations: Mapping[int, ObservationSums],
    ) -> KernelMRF:
        """Return the model estimated from sums over samples.

        Args:
            bases: {node type: bases of messages and products}.
            obs_bases: {node type: (features of observations, residual)}.
            edges: groups of edge types between the same node types, and their sums [type, ...].
            nodes: {node type: sums over samples}.
            observations: {node type: sums over observations}.
        """
        everywhere = None
        if self.counts:
            bases = {v: _relative(basis, nodes[v]) for v, basis in bases.items()}
            everywhere = {v: _mean_product(basis, nodes[v]) for v, basis in bases.items()}
        sums = bases, obs_bases, nodes, observations, self.obs_ridges, self.floor
        evaluate, floor, prior, averages, observed, ridges = _learn_nodes(
            *sums, nonnegative=self.nonnegative is not None, counts=self.counts
        )
        project, tables = self._edges(bases, edges, evaluate.shape[1:][::-1], evaluate.dtype, everywhere)
        return KernelMRF(
            bases={v: basis.messages for v, basis in bases.items()},
            points={v: basis.points for v, basis in bases.items()},
            operators=Operators.trusted(evaluate, project, floor, tables, prior),
            observations=observed,
            marginals={v: mean for v, (mean, _) in averages.items()},
            moments={v: moment for v, (_, moment) in averages.items()},
            residuals={v: basis.residuals for v, basis in bases.items()},
            ridges=ridges,
            edge_types=self.ends,
        )

    def _edges(
        self,
        bases: Mapping[int, NodeBasis],
        edges: Iterable[Any],
        size: tuple[int, int],
        dtype: jnp.dtype,
        everywhere: dict[int, Array] | None,
    ) -> tuple[Array, Array | None]:
        """Return updates [2 type + direction, rank, point], and nonnegative tables."""
        ends = {k: (a, b) for k, a, b in self.ends}
        num_types, (rank, points) = 1 + max(ends, default=0), size
        project: Any = np.zeros((2 * num_types, rank, points), dtype)
        tables: Any = None if self.nonnegative is None else np.zeros((2 * num_types, points, points), dtype)
        for types, sums in edges:
            pair = ends[types[0]]
            first, second = (bases[v] for v in pair)
            means = None if everywhere is None else (everywhere[pair[0]], everywhere[pair[1]])
            options = [self.ridges[k] for k in types], self.nonnegative
            learned = _learn_pairs(first, second, sums, *options, means)
            project, tables = _place((project, tables), np.array(types, np.int32), learned)
        return _checks.to_jax(project), None if tables is None else _checks.to_jax(tables)


@partial(quick_jit, static_argnames=("nonnegative", "counts"))
def _learn_nodes(
    bases: Mapping[int, NodeBasis],
    obs_bases: Mapping[int, tuple[FeatureMap, Array]],
    nodes: Mapping[int, NodeSums],
    observations: Mapping[int, ObservationSums],
    obs_ridges: dict[int, ScalarLike],
    floor: ScalarLike,
    nonnegative: bool,
    counts: bool,
) -> tuple[Any, ...]:
    """Return the parts of a model that belong to node types.

    Returns:
        Values at the points [node_type, point, rank], the floor of each type, quadrature weights, {node type: means of
        the features and of their outer products}, {node type: observation model}, {node type: ridge}.
    """
    matrices = {v: features(basis.messages, basis.points) for v, basis in bases.items()}
    size = tuple(max(matrix.shape[i] for matrix in matrices.values()) for i in (0, 1))
    evaluate = _stack(matrices, size)
    plain = evaluate
    if counts:  # whose features are large where samples are rare
        plain = _stack({v: plain_features(basis.messages, basis.points) for v, basis in bases.items()}, size)
    largest = jnp.sqrt(jnp.max(jnp.sum(plain**2, axis=-1), axis=-1))  # of each node type
    averages = {v: _averages(bases[v], sums, nonnegative) for v, sums in nodes.items()}
    prior = _stack({v: weights for v, (_, _, weights) in averages.items()}, (size[0], 1))
    if counts:
        observed = {v: counted_model(*obs_bases[v], observations[v], obs_ridges[v], averages[v][0]) for v in obs_bases}
    else:
        observed = {v: regressed_model(*obs_bases[v], observations[v], obs_ridges[v]) for v in obs_bases}
    return (
        evaluate,
        jnp.asarray(floor, largest.dtype) * largest,
        prior[..., 0].astype(evaluate.dtype),
        {v: (mean, moment) for v, (mean, moment, _) in averages.items()},
        observed,
        {v: jnp.asarray(ridge, largest.dtype) for v, ridge in obs_ridges.items()},
    )


@quick_jit
def _place(arrays: tuple[Any, ...], types: Any, learned: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arrays of all edge types with the learned operators of some types written into them."""

    def write(array: Array, direction: int, new: Array) -> Array:
        return jnp.asarray(array).at[2 * types + direction, : new.shape[1], : new.shape[2]].set(new)

    project, tables = arrays
    for direction, (update, table) in enumerate(learned):
        project = write(project, direction, update)
        tables = None if tables is None else write(tables, direction, table)
    return project, tables


@quick_jit
def _learn_pairs(
    first: NodeBasis,
    second: NodeBasis,
    sums: EdgeSums,
    ridges: list[ScalarLike],
    nonnegative: Positive | None,
    means: tuple[Array, Array] | None,
) -> tuple[Any, ...]:
    """Return the operators of edge types from their sums [type, ...], computed one type at a time.

    With means of the products at both ends, they are those of smoothed counts.
    """

    def learn(one: tuple[EdgeSums, Array]) -> tuple[Any, ...]:
        sums, ridge = one
        if means is not None:
            forth = _count_operator(second, sums.forth, sums.count, means[0], ridge, nonnegative)
            return forth, _count_operator(first, sums.back, sums.count, means[1], ridge, nonnegative)
        penalty = ridge * sums.count.astype(ridge.dtype)
        forth = _update_operator(second, first, sums.second, sums.forth, penalty, nonnegative)
        back = _update_operator(first, second, sums.first, sums.back, penalty, nonnegative)
        return forth, back

    return jax.lax.map(learn, (sums, jnp.stack([jnp.asarray(ridge, jnp.result_type(float)) for ridge in ridges])))


def _update_operator(
    receiver: NodeBasis,
    sender: NodeBasis,
    covariance: Array,
    cross: Array,
    penalty: Array,
    nonnegative: Positive | None,
) -> tuple[Array, Array | None]:
    """Return the operator from values of a product to message coefficients (eq. 12 and 15) [rank, point].

    If the points are landmarks, a product with values v is the function products(x) @ transform.T @ v. If they are the
    training samples, `cross` is between features and points. The second array maps to values at the receiver's points
    [point, point]; it is None unless `nonnegative` is given.
    """
    project = ridge_solve(covariance, cross, penalty)
    if sender.products is not None:
        project, cross = (matmul(matrix, sender.products.transform.T) for matrix in (project, cross))
    if nonnegative is None:
        return project, None
    at_points = receiver.messages(receiver.points)
    penalized = covariance + penalty.astype(covariance.dtype) * jnp.eye(len(covariance), dtype=covariance.dtype)
    return project, nonnegative.operator(at_points, penalized, cross, project)


def _relative(basis: NodeBasis, sums: NodeSums) -> NodeBasis:
    """Return bases whose messages are relative to the density of the samples."""
    mean = sums.mean / jnp.asarray(sums.count, jnp.result_type(sums.mean))
    assert isinstance(basis.messages, Basis)
    return dataclasses.replace(basis, messages=RelativeBasis.of(basis.messages, mean))


def _mean_product(basis: NodeBasis, sums: NodeSums) -> Array:
    """Return the weights of the points in the mean of a product over all samples [point]."""
    if sums.products is None:
        return jnp.full(len(basis.points), 1 / len(basis.points), jnp.result_type(float))
    return sums.products / jnp.asarray(sums.count, jnp.result_type(sums.products))


def _count_operator(
    receiver: NodeBasis, cross: Array, count: Array, mean_product: Array, share: Array, nonnegative: Positive | None
) -> tuple[Array, Array | None]:
    """Return the operator of smoothed counts, as `_update_operator`.

    The message at x is the mean of the product over the pairs, weighted by the kernel between x and the receiver's end,
    mixed with the mean over all pairs: the share of independence.
    """
    cross = cross / count.astype(cross.dtype)  # mean of phi(x_receiver) shares(x_sender)'
    assert isinstance(receiver.messages, RelativeBasis)
    independent = jnp.outer(receiver.messages.mean.astype(cross.dtype), mean_product.astype(cross.dtype))
    share = share.astype(cross.dtype)
    project = (1 - share) * cross + share * independent
    if nonnegative is None:
        return project, None
    at_points = receiver.messages(receiver.points)
    return project, nonnegative.operator(at_points, jnp.eye(len(project), dtype=project.dtype), project, project)


def _averages(basis: NodeBasis, sums: NodeSums, nonnegative: bool) -> tuple[Array, Array, Array]:
    """Return means of the features and of their outer products, and quadrature weights of the points [point, 1].

    Weighted values at the points sum to the expectation over the samples.
    """
    mean, moment = (total / sums.count.astype(total.dtype) for total in (sums.mean, sums.moment))
    if basis.products is None:
        weights = jnp.full(len(basis.points), 1 / len(basis.points), jnp.result_type(float))
    else:
        weights = matmul(basis.products.transform, sums.products / sums.count.astype(sums.products.dtype))
        if nonnegative:
            weights = jnp.maximum(weights, 0)
            weights = weights / jnp.sum(weights)
    return mean, moment, weights[:, None]


def _ridges(argument: str, ridge: Any, types: Sequence[int], of: str) -> dict[int, Any]:
    """Return {type: ridge} for all types."""
    given = dict(ridge) if isinstance(ridge, Mapping) else dict.fromkeys(types, ridge)
    missing = [k for k in types if k not in given]
    rule = f"must be one number, or one number per {of} type {sorted(types)}"
    _checks.require(not missing, argument, rule, f"none for {missing}", "Pass for instance 1e-6.")
    extra = [k for k in given if k not in types]
    _checks.require(not extra, argument, rule, f"extra types {extra}, which the data lack", "Leave them out.")
    most = float(jnp.finfo(jnp.result_type(float)).max)
    for k, value in given.items() if types or isinstance(ridge, Mapping) else ((0, ridge),):
        name = f"{argument}[{k}]" if isinstance(ridge, Mapping) else argument
        _checks.require_number(name, value, least=0, most=most)
    return given


def _stack(matrices: dict[int, Array], size: tuple[int, ...]) -> Array:
    """Return matrices stacked by type and padded with zeros to one size; missing types are zeros."""
    dtype = jnp.result_type(*matrices.values()) if matrices else jnp.result_type(float)
    stacked = jnp.zeros((1 + max(matrices, default=0), *size), dtype)
    for number, matrix in matrices.items():
        stacked = stacked.at[number, : matrix.shape[0], : matrix.shape[1]].set(matrix)
    return stacked
