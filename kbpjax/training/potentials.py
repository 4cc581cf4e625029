r"""Potentials on levels: the closed form of smoothed counts, and the numbers that training changes.

On the levels p of the variables, the potential of an edge between nodes of the types a and b is

$$\log \psi(p, q) = k \log r(p, q) + f_a(p)' W f_b(q) + c' f_a(p) + d' f_b(q), \qquad
r = \frac{P(p, q)}{P(p) P(q)},$$

with r of the closed form, and features f. The closed form is k = 1 and W, c, d = 0. An update is

$$m_{ts}(p) \propto \sum_q \psi(p, q) \, P(q)^g \, w_q \, \mathrm{cavity}_t(q),$$

and a belief is proportional to $(P(p)^g \prod m^\rho)^{1/T}$ times the length of the interval of its level. All that is
a model of nonnegative tables, so `infer` and all other functions take it as any other.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._misc import matmul
from kbpjax.features import features
from kbpjax.features.cholesky import Basis, Levels, Neighbors, plain_features
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import Operators
from kbpjax.kernels import RBF, diagonal
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.observations import DensityRatio, ObservationModel
from kbpjax.learning.relations import Own, graph_with
from kbpjax.posterior.beliefs import spacing
from kbpjax.posterior.marginals import MeanEmbedding

LEAST = 1e-6
"""Smallest ratio of the closed form, and smallest share of a level in a marginal."""

FLOOR = 1e-12
"""Floor of evaluated messages: exponents below 1 raise it, and training has none."""

SMALLEST = float(np.finfo(np.float32).tiny)
"""Smallest density of a level relative to the largest one: its logarithm is finite."""

ABSENT = -60.0
"""Logarithm of the weight of levels that pad those of a node type."""

BALANCED = 20
"""Number of rounds in which a ratio is scaled (Sinkhorn 1964)."""

WAVES = 7
"""Number of Gaussians among the features of numbers."""

LABELS = 24
"""Largest number of states that have an indicator each."""


class Potentials(eqx.Module):
    """The numbers that training changes.

    Attributes:
        power: k of each edge type [type].
        product: W of each edge type [type, feature, feature].
        first, second: c and d of each edge type [type, feature].
        marginal: g of each node type [node_type].
        evidence: power of the evidence [].
        heat: logarithm of the temperature [].
        reweighting: factor of the exponents [], as in `KernelMRF`; training keeps it.
    """

    power: Float[Array, " type"]
    product: Float[Array, "type feature feature"]
    first: Float[Array, "type feature"]
    second: Float[Array, "type feature"]
    marginal: Float[Array, " node_type"]
    evidence: Float[Array, ""]
    heat: Float[Array, ""]
    reweighting: Float[Array, ""]


class ClosedForm(eqx.Module):
    """A model of smoothed counts on its levels, padded to a common number.

    Attributes:
        log_ratios: log r of each edge type, at the levels of its first and second end [type, level, level].
        log_prior: logarithms of the weights of the levels in the sums of updates [node_type, level].
        log_marginal: logarithms of the marginal in beliefs [node_type, level].
        log_lengths: logarithms of the lengths of the intervals of the levels; of strings and the like, of the shares of
            the samples that are near [node_type, level].
        features: f at the levels [node_type, level, feature].
        ends: node types of the ends of each edge type [type, 2].
        types: the numbers of the edge types.
        own: (first node, second node, own edge type, shared edge type) of the edges that have their own.
    """

    log_ratios: Float[Array, "type level level"]
    log_prior: Float[Array, "node_type level"]
    log_marginal: Float[Array, "node_type level"]
    log_lengths: Float[Array, "node_type level"]
    features: Float[Array, "node_type level feature"]
    ends: np.ndarray
    types: tuple[int, ...] = eqx.field(static=True)
    own: Own = eqx.field(static=True)

    @classmethod
    def of(cls, model: KernelMRF, graph: Graph, own: bool) -> "ClosedForm":
        """Return the closed form of a model of smoothed counts.

        Args:
            model: the model.
            graph: the graph of the training cases.
            own: whether each edge of the graph has its own potential, besides those of the shared types.
        """
        levels = model.points
        size = max(map(len, levels.values()))
        count = 1 + max(levels)
        prior, marginal, lengths = (np.full((count, size), ABSENT) for _ in range(3))
        found = {v: features_of(model, v) for v in levels}
        most = max(one.shape[1] for one in found.values())
        at_levels = np.zeros((count, size, most))
        for v, x in levels.items():
            weights = prior_of(model, v)
            prior[v, : len(x)] = np.log(np.maximum(weights / weights.sum(), LEAST / len(x)))
            if x.ndim > 1:  # candidates are samples: their density relative to them is 1
                marginal[v, : len(x)], lengths[v, : len(x)] = 0, prior[v, : len(x)]
            else:
                density = np.asarray(MeanEmbedding().density(model, v, x))
                marginal[v, : len(x)] = np.log(np.maximum(density / density.max(), SMALLEST))
                lengths[v, : len(x)] = np.log(np.maximum(np.asarray(spacing(x)), LEAST))
            at_levels[v, : len(x), : found[v].shape[1]] = found[v]
        ends = {k: (a, b) for k, a, b in model.edge_types}
        of_messages = {v: np.asarray(features(model.bases[v], x)) for v, x in levels.items()}
        ratios = {k: _log_ratio(model, k, a, b, prior, of_messages) for k, (a, b) in ends.items()}
        shared = [k for k in ends if k not in {kind for *_, kind, _ in model.own_edges}]
        edges = _own_edges(model, graph, shared) if own else model.own_edges
        source = {kind: kind for kind in ends} if not own else {k: k for k in shared}
        if own:
            source |= dict(zip((kind for *_, kind, _ in edges), _types_of(model, graph), strict=True))
        types = tuple(source)
        dtype = jnp.result_type(float)
        to_jax = lambda x: _checks.to_jax(np.asarray(x), dtype)
        return cls(
            to_jax(np.array([_padded(ratios[source[k]], size) for k in types]).reshape(-1, size, size)),
            to_jax(prior),
            to_jax(marginal),
            to_jax(lengths),
            to_jax(at_levels),
            np.array([ends[source[k]] for k in types], int).reshape(-1, 2),
            types,
            edges,
        )

    def start(self, model: KernelMRF) -> Potentials:
        """Return the numbers of the closed form, with the power of the evidence and the temperature of the model."""
        count, rank, dtype = len(self.types), self.features.shape[2], self.log_ratios.dtype
        ends = jnp.zeros((count, rank), dtype)
        return Potentials(
            power=jnp.ones(count, dtype),
            product=jnp.zeros((count, rank, rank), dtype),
            first=ends,
            second=ends,
            marginal=jnp.ones(len(self.log_prior), dtype),
            evidence=model.evidence_power.astype(dtype),
            heat=jnp.log(model.temperature).astype(dtype),
            reweighting=model.reweighting.astype(dtype),
        )

    def priors(self, potentials: Potentials) -> tuple[Array, Array]:
        """Return the logarithms of the weights of levels in updates, and in beliefs [node_type, level]."""
        tilt = (potentials.marginal[:, None] - 1) * self.log_marginal
        return self.log_prior + tilt, self.log_marginal + self.log_lengths + tilt

    def logs(self, potentials: Potentials) -> Float[Array, "type level level"]:
        """Return the logarithms of the potentials at the levels of the first and the second end."""
        first, second = self.features[self.ends[:, 0]], self.features[self.ends[:, 1]]
        logs = potentials.power[:, None, None] * self.log_ratios
        logs += jnp.einsum("tpf,tfg,tqg->tpq", first, potentials.product, second, precision="highest")
        logs += jnp.einsum("tpf,tf->tp", first, potentials.first)[:, :, None]
        return logs + jnp.einsum("tqf,tf->tq", second, potentials.second)[:, None, :]

    def tables(self, potentials: Potentials) -> Float[Array, "type 2 level level"]:
        """Return the matrices of updates forth and back, from levels of the sender to levels of the receiver."""
        logs, prior = self.logs(potentials), self.priors(potentials)[0]
        forth = jnp.swapaxes(logs, 1, 2) + prior[self.ends[:, 0]][:, None]
        both = jnp.stack([forth, logs + prior[self.ends[:, 1]][:, None]], axis=1)
        return jnp.exp(both - jax.lax.stop_gradient(jnp.max(both, axis=(2, 3), keepdims=True)))


@eqx.filter_jit
def _at_levels_of(closed: ClosedForm, potentials: Potentials) -> tuple[Array, Array, Array]:
    """Return the tables and the priors, by one program instead of one for each operation."""
    return closed.tables(potentials), *closed.priors(potentials)


def features_of(model: KernelMRF, node_type: int) -> np.ndarray:
    """Return the features of corrections at the levels of a node type [level, feature].

    Of numbers with the hats of sorted levels: u, u^2 / 2 and Gaussians of the normal scores u; of up to
    `LABELS` states, an indicator of each; of others, features of the first landmarks, of mean
    norm 1.
    """
    x = model.points[node_type]
    kernel = getattr(model.bases[node_type], "kernel", None)
    if x.ndim == 1 and isinstance(kernel, RBF):
        u = normal_scores(model, node_type)
        waves = np.exp(-0.5 * (u[:, None] - np.linspace(-2.5, 2.5, WAVES)) ** 2)
        return np.concatenate([u[:, None], u[:, None] ** 2 / 2, waves], axis=1)
    if x.ndim == 1 and len(x) <= LABELS and not jnp.issubdtype(x.dtype, jnp.floating):
        return np.eye(len(x))
    at = np.asarray(plain_features(model.bases[node_type], x))
    norm = 1.0 if kernel is None else float(jnp.sqrt(jnp.mean(diagonal(kernel, x))))
    return at[:, : WAVES + 2] / (norm or 1.0)


def normal_scores(model: KernelMRF, node_type: int) -> np.ndarray:
    """Return the quantiles of the normal distribution at the levels of numbers [level]."""
    from scipy.special import ndtri  # a dependency of JAX, imported where it is needed

    weights = prior_of(model, node_type)
    weights = weights / weights.sum() + LEAST  # different, where there are no samples
    return ndtri((np.cumsum(weights) - weights / 2) / weights.sum())


def prior_of(model: KernelMRF, node_type: int) -> np.ndarray:
    """Return the weights of the levels of a node type in means over its marginal [level]."""
    prior = model.operators.prior
    assert prior is not None  # of learned models
    return np.asarray(prior[node_type, : len(model.points[node_type])], float)


def _log_ratio(
    model: KernelMRF, edge_type: int, first: int, second: int, prior: np.ndarray, at_levels: dict[int, np.ndarray]
) -> np.ndarray:
    """Return the mean over both directions of the logarithm of the ratio at the levels [first level, second level]."""
    logs = []
    for direction, (sender, receiver) in enumerate(((first, second), (second, first))):
        points, rows = len(model.points[sender]), at_levels[receiver].shape[1]
        project = np.asarray(model.operators.project)[2 * edge_type + direction, :rows, :points]
        ratio = np.asarray(at_levels[receiver] @ project, float) / np.exp(prior[sender, :points])
        logs.append(np.log(np.maximum(ratio, LEAST)))
    return _balanced((logs[0].T + logs[1]) / 2, *(prior[v, : len(model.points[v])] for v in (first, second)))


def _balanced(logs: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the logarithm of a ratio scaled so that means over either end are 1: no evidence, no message."""
    for _ in range(BALANCED):
        logs = logs - np.logaddexp.reduce(logs + second, axis=1, keepdims=True)
        logs = logs - np.logaddexp.reduce(logs + first[:, None], axis=0, keepdims=True)
    return logs


def _own_edges(model: KernelMRF, graph: Graph, shared: list[int]) -> Own:
    """Return the edges of a graph with numbers of own types."""
    half = graph.num_edges // 2
    kinds = np.asarray(graph_with(model.cells, (), 0, graph).edge_type)[:half]
    ends = np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]
    own = 1 + max(shared, default=0) + np.arange(half)
    return tuple(zip(*(column.tolist() for column in (*ends, own, kinds)), strict=True))


def _types_of(model: KernelMRF, graph: Graph) -> list[int]:
    """Return the edge type whose relation the model uses for each edge."""
    return np.asarray(model.graph_of(graph).edge_type)[: graph.num_edges // 2].tolist()


def _padded(logs: np.ndarray, size: int) -> np.ndarray:
    return np.pad(logs, [(0, size - n) for n in logs.shape])


def model_of(
    model: KernelMRF,
    closed: ClosedForm,
    potentials: Potentials,
    values: tuple[int, ...],
    num_nodes: int,
    observer: KernelMRF | None = None,
) -> KernelMRF:
    """Return a model of nonnegative tables on the levels.

    Args:
        model: the model of smoothed counts.
        closed: its closed form.
        potentials: the numbers.
        values: the node types whose observations are the values themselves, which are then exact.
        num_nodes: number of nodes of the graph of the training cases.
        observer: the model whose observation models are used; None: `model`.
    """
    observer = model if observer is None else observer
    tables, prior, in_beliefs = _at_levels_of(closed, potentials)
    size, dtype = tables.shape[2], tables.dtype
    project = jnp.zeros((2 * (1 + max(closed.types, default=0)), size, size), dtype)
    for direction in (0, 1):
        project = project.at[2 * np.array(closed.types, np.int32) + direction].set(tables[:, direction])
    identity = np.zeros((len(prior), size, size))
    bases, marginals, moments, observations = {}, {}, {}, {}
    for v, x in model.points.items():
        count = len(x)
        identity[v, :count, :count] = np.eye(count)
        bases[v] = _basis(model, v)
        weights = jnp.exp(prior[v, :count])
        marginals[v] = jnp.exp((in_beliefs - closed.log_lengths)[v, :count])
        moments[v] = jnp.diag(weights / jnp.sum(weights))
        if v in values:
            inverse = jnp.diag(jnp.exp(-closed.log_prior[v, :count] + jnp.min(closed.log_prior[v, :count])))
            observations[v] = ObservationModel(bases[v], inverse, inverse, jnp.zeros((), dtype))
        elif v in observer.observations:
            observations[v] = _at_levels(observer, v, x)
    shapes = {v: bases[v].rank for v in bases}
    zero = jnp.zeros((), dtype)
    return dataclasses.replace(
        model,
        bases=bases,
        operators=Operators.trusted(
            _checks.to_jax(identity, dtype), project, jnp.full(len(prior), FLOOR, dtype), project, jnp.exp(prior)
        ),
        observations=observations,
        marginals=marginals,
        moments=moments,
        residuals=dict.fromkeys(shapes, (zero, zero)),
        ridges=dict.fromkeys(shapes, zero),
        edge_types=tuple((k, *map(int, pair)) for k, pair in zip(closed.types, closed.ends, strict=True)),
        candidates=dict(model.points) | {v: x for v, x in (model.candidates or {}).items() if x.ndim > 1},
        evidence_model=DensityRatio(),
        evidence_power=potentials.evidence,
        temperature=jnp.exp(potentials.heat),
        reweighting=potentials.reweighting,
        own_edges=closed.own,
        own_nodes=num_nodes,
        starts={},
    )


def _basis(model: KernelMRF, node_type: int) -> Basis:
    """Return the basis in which the coefficients of a message are its values at the levels."""
    basis = model.bases[node_type]
    assert isinstance(basis, Basis)
    points = model.points[node_type]
    return (Levels if points.ndim == 1 else Neighbors).at(basis.kernel, points)


def _at_levels(model: KernelMRF, node_type: int, levels: Array) -> ObservationModel:
    """Return the observation model that the evidence model chooses, with messages as values at the levels."""
    observed = model.observations[node_type]
    operator = model.evidence_model.operator(observed)
    values = matmul(features(model.bases[node_type], levels).astype(operator.dtype), operator)
    return ObservationModel(observed.basis, values, values, observed.residual)
