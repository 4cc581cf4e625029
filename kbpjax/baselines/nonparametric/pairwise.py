r"""Pairwise models of vectors whose potentials are functions, for nonparametric and particle belief propagation.

    p(x) ~ prod_s psi_s(x_s) local_s(x_s) prod_st psi_st(x_s, x_t)

`PairwiseMRF` holds custom potentials, or those that `fit` learns from the same data as `kbpjax.fit` (supplement,
section 1), by least-squares conditional density estimation and Parzen estimates of the marginals. With `Ratios`,

    psi_s = P(x_s),    psi_st = P(x_t | x_s) / P(x_t),

so a message is the same conditional expectation as in kernel belief propagation (eq. 4). With `Conditionals`, psi_s =
1 and psi_st = P(x_s | x_t) in the message to s. The marginal of a node then counts once for each neighbor, but there is
no division by a density estimate, and messages made of samples have a smaller variance.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_fields
from kbpjax._public import Checked, public
from kbpjax.baselines.nonparametric import density
from kbpjax.baselines.nonparametric.density import ConditionalDensity
from kbpjax.baselines.nonparametric.mixtures import GaussianMixture
from kbpjax.baselines.nonparametric.potentials import Conditionals as Conditionals
from kbpjax.baselines.nonparametric.potentials import EdgePotential as EdgePotential
from kbpjax.baselines.nonparametric.potentials import NodePotential as NodePotential
from kbpjax.baselines.nonparametric.potentials import Ratios as Ratios
from kbpjax.graphs.graph import Graph
from kbpjax.learning.data import TrainingData
from kbpjax.posterior.beliefs import Belief, somewhere_positive
from kbpjax.posterior.evidence import Evidence
from kbpjax.posterior.likelihood import pointwise_log_likelihoods

__all__ = ["Conditionals", "EdgePotential", "NodePotential", "PairwiseMRF", "Ratios", "fit"]

BATCH, PAIRS = 64, 2**22
"""Largest number of edges, and of pairs of points, for which potentials are evaluated at a time."""


class PairwiseMRF(Checked):
    """A pairwise Markov random field of vectors: a template for any graph with its types.

    Attributes:
        nodes: `NodePotential` or `GaussianMixture` with arrays stacked on a first axis [node_type]; an axis of size 1
            is shared by all types.
        edges: `EdgePotential` whose arrays are stacked on a first axis [edge_direction]; rows 2 k and 2 k + 1 are for
            messages along edges of type k from first to second end and back. An axis of size 1 is shared by all.
        shape: the shape of one variable, () for numbers; potentials get them as vectors [dim].

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.baselines import density, mixtures, pairwise
        >>> weights, x, one = jnp.full(5, 0.2), jnp.linspace(-2.0, 2.0, 5)[:, None], jnp.ones(1)
        >>> node, near = mixtures.GaussianMixture(weights, x, one), density.ConditionalDensity(weights, x, x, one, one)
        >>> edge = pairwise.Conditionals().edge(near, near, node, node)
        >>> model = pairwise.PairwiseMRF(*jax.tree.map(lambda a: a[None], (node, edge)))  # shared by all types
        >>> model.check_types(kbp.chain_graph(3))  # fits: ready for particle.run(model, graph, key=key)
        >>> model.dim, model.edges.receiver.weights.shape
        (1, (1, 5))
    """

    nodes: NodePotential | GaussianMixture
    edges: EdgePotential
    shape: tuple[int, ...] = eqx.field(static=True, default=())

    def __check_init__(self) -> None:
        for name, one in (("nodes", self.nodes), ("edges", self.edges)):
            leaves = [jnp.shape(leaf) for leaf in jax.tree.leaves(one)]
            stacked = bool(leaves) and all(shape and shape[0] == leaves[0][:1][0] for shape in leaves)
            fix = "Stack them: jax.tree.map(lambda *a: jnp.stack(a), ...); for one shared by all, a[None]."
            _checks.require(stacked, name, "must have arrays with a common first axis of types", leaves[:4], fix)

    @property
    def dim(self) -> int:
        """The number of entries of a variable."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    @property
    def points(self) -> dict[int, Float[Array, "_ ..."]]:
        """No points [0, *dim] for each node type: methods choose where they evaluate messages."""
        count = len(jax.tree.leaves(self.nodes)[0])
        return {v: jnp.zeros((0, *self.shape), self.sizes[2]) for v in range(count)}

    @property
    def sizes(self) -> tuple[int, int, Any]:
        """Numbers of points and of coefficients of messages, both 0, and the dtype."""
        return 0, 0, jnp.result_type(*jax.tree.leaves(self.nodes))

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless there are potentials for all types of a graph."""
        nodes, edges = (len(jax.tree.leaves(one)[0]) for one in (self.nodes, self.edges))
        wanted = 1 + max(v for v, *_ in graph.node_types), 2 + 2 * max((k for k, *_ in graph.edge_types), default=-1)
        fix = "Build the graph with the model's types, or fit on data with all of them."
        ok = nodes in (1, *range(wanted[0], nodes + 1)) and edges in (1, *range(wanted[1], edges + 1))
        rule = f"must have potentials of {wanted[0]} node types and {wanted[1]} edge directions, or one for all"
        _checks.require(ok, "model", rule, f"{nodes} and {edges}", fix)

    __repr__ = show_fields


@public
def fit(
    key: Key[Array, ""],
    data: TrainingData,
    *,
    potentials: Ratios | Conditionals = Ratios(),
    num_centers: int = 100,
    widths: Numbers | None = None,
    ridges: Numbers | None = None,
    marginal_widths: Numbers | None = None,
) -> PairwiseMRF:
    """Return a model of learned Parzen marginals, and conditional densities of both directions of every edge type.

    Args:
        key: random key, for the choice of centers and the folds of cross-validation.
        data: training data; observations are not used. Evidence is a known `kbpjax.likelihood`, or learned with a
            kernel model (`kbpjax.baselines.transfer_evidence`) or by regression
            (`kbpjax.baselines.density.fit_likelihood`).
        potentials: `Ratios()` or `Conditionals()`.
        num_centers: number of components of each estimate, also of the marginals, >= 1.
        widths: candidates for `density.fit_conditional`; None: its default.
        ridges: candidates for `density.fit_conditional`; None: its default.
        marginal_widths: candidates for `density.fit_parzen`; None: its default.

    Raises:
        ValueError: an option out of range, no key, no pairs, or variables of different shapes.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise
        >>> x = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(kbp.chain_graph(3), x), num_centers=20)
        >>> model.edges.sender.weights.shape
        (2, 20)
    """
    _checks.require_key(key)
    _checks.require_count("num_centers", num_centers)
    shapes = {x.shape[1:] for x in data.nodes.values()}
    fix = "Pad the smaller ones, or use kernel belief propagation, which takes any domains."
    _checks.require(len(shapes) == 1, "data", "must have variables of one shape", sorted(shapes), fix)
    fix = "Nodes without edges need no messages: use density.fit_parzen."
    _checks.require(bool(data.ends), "data", "must have pairs of at least one edge type", "none", fix)
    keys = jax.random.split(key, 1 + max(data.nodes) + 2 * (1 + max((k for k, *_ in data.ends), default=-1)))
    marginals = {
        v: density.fit_parzen(x, widths=marginal_widths, num_centers=min(num_centers, len(x)), key=keys[v])
        for v, x in data.nodes.items()
    }
    conditionals = {}
    for k, a, b in data.ends:
        first, second = data.edges[k]
        options = {"num_centers": num_centers, "widths": widths, "ridges": ridges}
        of_second = density.fit_conditional(keys[-1 - 2 * k], second, first, **options)
        of_first = density.fit_conditional(keys[-2 - 2 * k], first, second, **options)
        marginals[a] = _at_least_as_wide(marginals[a], of_first)
        marginals[b] = _at_least_as_wide(marginals[b], of_second)
        conditionals[k] = a, b, of_first, of_second
    edges = {}
    for k, (a, b, of_first, of_second) in conditionals.items():
        edges[2 * k] = potentials.edge(of_first, of_second, marginals[a], marginals[b])
        edges[2 * k + 1] = potentials.edge(of_second, of_first, marginals[b], marginals[a])
    nodes = {v: potentials.node(marginal) for v, marginal in marginals.items()}
    return PairwiseMRF(_stack(nodes), _stack(edges), next(iter(shapes)))


def _at_least_as_wide(marginal: GaussianMixture, conditional: ConditionalDensity) -> GaussianMixture:
    """Widen a marginal to the tails of a conditional density of the same variable, so that their ratio is bounded."""
    bandwidth = jnp.maximum(marginal.bandwidth, conditional.bandwidth)
    return GaussianMixture.trusted(marginal.weights, marginal.means, bandwidth)


def _stack(parts: dict[int, Any]) -> Any:
    """Stack pytrees by number; a missing number gets a copy of another."""
    other = next(iter(parts.values()))
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *(parts.get(i, other) for i in range(1 + max(parts))))


def of_type(stacked: Any, types: Array) -> Any:
    """Return the potentials of some types [*types]; a single potential is shared by all."""
    shared = len(jax.tree.leaves(stacked)[0]) == 1
    return jax.tree.map(lambda a: a[jnp.zeros_like(types) if shared else types], stacked)


def directions(graph: Graph) -> Array:
    """Return 2 type + (0 forward or 1 backward) of each directed edge [edge]."""
    back = jnp.arange(graph.num_edges, dtype=jnp.int32) >= graph.num_edges // 2
    return 2 * graph.edge_type + back.astype(jnp.int32)


def log_nodes(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, x: Float[Array, "node own dim"]
) -> Float[Array, "node own"]:
    """Return log psi_s + log local_s of every node at per-node points [node, own, dim]."""

    def prior(one: tuple[Array, Array]) -> Array:
        points, kind = one
        return of_type(model.nodes, kind).log_density(points)

    logs = jax.lax.map(prior, (x, graph.node_type), batch_size=BATCH)
    return logs + log_local(model, graph, evidence, x)


def log_starts(model: PairwiseMRF, graph: Graph, x: Float[Array, "node own dim"]) -> Float[Array, "node own"]:
    """Return the log densities of the node potentials' samplers at per-node points [node, own, dim]."""

    def start(one: tuple[Array, Array]) -> Array:
        points, kind = one
        potential = of_type(model.nodes, kind)
        return (potential.log_density if isinstance(potential, GaussianMixture) else potential.log_start)(points)

    return jax.lax.map(start, (x, graph.node_type), batch_size=BATCH)


def log_local(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, x: Float[Array, "node own dim"]
) -> Float[Array, "node own"]:
    """Return the log likelihood of every node at per-node points [node, own, dim]."""
    logs = jnp.zeros(x.shape[:2], x.dtype)
    points = x.reshape(*x.shape[:2], *model.shape)
    for v, *_ in graph.node_types if evidence is not None else ():
        nodes = graph.nodes_of_type(v)
        logs = logs.at[nodes].add(pointwise_log_likelihoods(evidence, v, points[nodes]).astype(x.dtype))
    return logs


def log_tables(
    model: PairwiseMRF, graph: Graph, receivers: Float[Array, "node p dim"], senders: Float[Array, "node q dim"]
) -> Float[Array, "edge p q"]:
    """Return log psi_st of every directed edge between points of its receiver and of its sender."""

    def table(edge: tuple[Array, Array, Array]) -> Array:
        sender, receiver, direction = edge
        return of_type(model.edges, direction).log_table(receivers[receiver], senders[sender])

    edges = graph.senders, graph.receivers, directions(graph)
    return jax.lax.map(table, edges, batch_size=_batch(receivers, senders))


def log_messages(
    model: PairwiseMRF,
    graph: Graph,
    receivers: Float[Array, "node p dim"],
    senders: Float[Array, "node q dim"],
    log_weights: Float[Array, "edge q"],
) -> Float[Array, "edge p"]:
    """Return log sum_j psi_st(x_s, x_t^j) weight_j of every directed edge at points of its receiver."""

    def message(edge: tuple[Array, Array, Array, Array]) -> Array:
        sender, receiver, direction, weights = edge
        return of_type(model.edges, direction).log_message(receivers[receiver], senders[sender], weights)

    edges = graph.senders, graph.receivers, directions(graph), log_weights
    return jax.lax.map(message, edges, batch_size=_batch(receivers, senders))


def _batch(receivers: Array, senders: Array) -> int:
    """Return the number of edges to evaluate at a time, so that memory is bounded."""
    return max(1, min(BATCH, PAIRS // max(1, receivers.shape[1] * senders.shape[1])))


def sum_incoming(graph: Graph, logs: Float[Array, "edge *axes"]) -> Float[Array, "node *axes"]:
    """Sum values of directed edges at their receivers."""
    return jax.ops.segment_sum(logs, graph.receivers, graph.num_nodes)


def candidates(model: PairwiseMRF, points: Any) -> tuple[Shaped[Array, "point *dim"], Float[Array, "point dim"]]:
    """Check candidate points; return them as given and as vectors [point, dim]."""
    x = _checks.as_array("points", points)
    ok = x.ndim >= 1 and len(x) > 0 and x.shape[1:] == model.shape
    fix = "Pass candidates of the shape of the variables."
    _checks.require(ok, "points", f"must have shape [point, *{model.shape}]", f"shape {x.shape}", fix)
    _checks.require_finite("points", x, "Drop those points.")
    return x, x.reshape(len(x), -1).astype(model.sizes[2])


def as_belief(points: Array, logs: Float[Array, "node point"]) -> Belief:
    """Normalize logarithms of beliefs on common points."""
    weights, impossible = _normalize(logs)
    _checks.read_and_check([somewhere_positive("nodes", lambda: np.arange(len(logs)), impossible)])
    return Belief.trusted(points, weights)


@jax.jit
def _normalize(logs: Array) -> tuple[Array, Array]:
    return jax.nn.softmax(logs, axis=1), jnp.all(logs == -jnp.inf, axis=1)


def check_problem(model: Any, graph: Any, evidence: Any) -> None:
    """Raise ValueError unless model, graph and evidence belong together."""
    fix = "Learn one with kbpjax.baselines.nonparametric.pairwise.fit."
    ok = isinstance(model, PairwiseMRF)
    _checks.require(ok, "model", "must be a PairwiseMRF", type(model).__name__, fix)
    fix = "The model comes first: run(model, graph, evidence)."
    _checks.require(isinstance(graph, Graph), "graph", "must be a kbpjax.Graph", type(graph).__name__, fix)
    model.check_types(graph)
    if evidence is not None:
        fix = "Make it with kbpjax.likelihood(model, graph, fn)."
        known = isinstance(evidence, Evidence)
        _checks.require(known, "evidence", "must be Evidence or None", type(evidence).__name__, fix)
        size = len(evidence.clamped)
        fix = "Make it with kbpjax.likelihood(model, graph, fn) for this model and graph."
        _checks.require(size == graph.num_nodes, "evidence", f"must be of {graph.num_nodes} nodes", size, fix)
        fix = "Convert it with kbpjax.baselines.transfer_evidence(model, graph, evidence, source)."
        ok = len(evidence.messages) == 0 and not evidence.values
        _checks.require(ok, "evidence", "must be known likelihoods", "learned evidence or clamps of another model", fix)
