"""Kernel Markov random fields: operators and observation models learned from training pairs.

For an edge type with pairs (x_t, x_s), the update of a message from t to s is the conditional expectation (eq. 4)

    m_ts(x_s) = E[ prod_u m_ut(X_t) | x_s ],

estimated by ridge regression (section 5). The update rule selects the features in which messages are linear, and the
evaluation points of their products. An observation enters as one more message. A model has no graph: it is a template
for any graph with its node and edge types.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._misc import matmul, show, show_fields, show_lines, show_list, values_or_shapes
from kbpjax._public import Checked
from kbpjax.features import FeatureMap, features
from kbpjax.features.cholesky import RelativeBasis, plain_features
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import Operators
from kbpjax.learning.labels import ByType
from kbpjax.learning.nonnegative import positivity
from kbpjax.learning.observations import EvidenceModel, Expectation, ObservationModel
from kbpjax.learning.patterns import PatternFeatures
from kbpjax.learning.relations import Cells, graph_with
from kbpjax.learning.starts import with_factors

CHOSEN = ("evidence_model", "evidence_power", "temperature", "reweighting")
"""What `fit` chooses for inference: fields of `KernelMRF` and of `Hyperparameters`."""


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
        starts: {node type: `Start` or `GivenStart`} of the node types whose nodes without an incoming edge have a
            marginal of their own (`fit(starts=)`, `kbp.with_transitions`).

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
