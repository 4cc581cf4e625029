"""Gaussian fields learned from samples: potentials of each node and edge type that match the moments of the data."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum, show_fields
from kbpjax._public import Checked, public
from kbpjax.baselines.gaussian.field import GaussianFactors, GaussianMRF, sum_to_senders
from kbpjax.baselines.gaussian.inputs import observations, require_definite
from kbpjax.baselines.nonparametric.mixtures import as_vectors
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Exponents, pair_exponents
from kbpjax.learning.data import TrainingData


class GaussianTemplate(Checked):
    """Gaussian potentials of each node and edge type, for any graph with these types; `fit` learns them.

    Attributes:
        nodes: N(x) of each node type; here and below the row number is the type.
        ends: the factor in x_a of N(x_a, x_b) / (N(x_a) N(x_b)), in row 2 type, and that in x_b, in row 2 type + 1.
        coupling: the block of x_a and x_b in its precision [edge_type, dim, dim].
        observed: the factor in x of N(y | x), of each node type; 1 for types without observations.
        gain: the block of x and y in its precision [node_type, dim, obs_dim].
        node_types: the types learned.
        edge_types: (type, node type of the first end, node type of the second end) of those learned.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> x = np.array([[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [-2.0, -1.0]])
        >>> template, longer = gaussian.fit(kbp.pool(kbp.chain_graph(2), x)), kbp.chain_graph(3)
        >>> gaussian.run(template, longer).covariance.round(2).ravel().tolist()
        [2.5, 2.5, 2.5]
    """

    nodes: GaussianFactors
    ends: GaussianFactors
    coupling: Float[Array, "edge_type dim dim"]
    observed: GaussianFactors
    gain: Float[Array, "node_type dim obs_dim"]
    node_types: tuple[int, ...] = eqx.field(static=True)
    edge_types: tuple[tuple[int, int, int], ...] = eqx.field(static=True)

    @property
    def dim(self) -> int:
        """The length of the vector of a node."""
        return self.nodes.information.shape[1]

    @property
    def dtype(self) -> Any:
        """The precision of the numbers."""
        return self.gain.dtype

    def build(self, graph: Graph, *, exponents: Exponents = None) -> GaussianMRF:
        """Return the field of a graph. `run` does this for a template, with exponents 1.

        Args:
            graph: the graph; the template must have all its types.
            exponents: powers of the pair potentials, > 0, [pair] or one for all. None: 1, exact on trees; on loopy
                graphs the field is not normalizable where neighbors depend strongly (on a wide grid without
                observations, where they correlate by more than 1/3). `kbpjax.tree_reweighting(graph)`: a mean of trees,
                always normalizable, and of scalar nodes walk-summable.

        Raises:
            ValueError: types that were not learned, or exponents out of range.
        """
        self.check_types(graph)
        powers = pair_exponents(graph, exponents, self.dtype)
        return GaussianMRF.trusted(
            *_build(self, graph, jnp.ones(graph.num_edges // 2, self.dtype) if powers is None else powers)
        )

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless the template has potentials for all types of a graph."""
        fix = "Fit the template on data of these types."
        unknown = [v for v, *_ in graph.node_types if v not in self.node_types]
        _checks.require(not unknown, "graph", f"must have node types among {self.node_types}", unknown, fix)
        unknown = [ends for ends in graph.edge_types if ends not in self.edge_types]
        rule = f"must have edge types (type, first, second) among {self.edge_types}"
        _checks.require(not unknown, "graph", rule, unknown, fix)

    __repr__ = show_fields


@jax.jit
def _build(template: GaussianTemplate, graph: Graph, powers: Array) -> tuple[Array, Array, Array]:
    """Multiply the potentials of each node and edge; return precision, information and coupling."""
    half, kinds = graph.num_edges // 2, graph.node_type
    # The senders of the first half of the directed edges are the first ends, those of the second half the second.
    end_types = 2 * graph.edge_type + jnp.repeat(jnp.arange(2, dtype=jnp.int32), half)
    both = jnp.concatenate([powers, powers])
    ends = jax.tree.map(lambda leaf: sum_to_senders(graph, _scale(both, leaf[end_types])), template.ends)
    total = jax.tree.map(lambda own, end: own[kinds] + end, template.nodes, ends)
    return total.precision, total.information, _scale(powers, template.coupling[graph.edge_type[:half]])


@public
def observe(model: GaussianTemplate, graph: Graph, y: Numbers, *, mask: Numbers | None = None) -> GaussianFactors:
    """Return the evidence of observations, by the learned linear regression of y on x: N(x, y) / N(x).

    Args:
        model: the template, fitted on data with observations.
        graph: the graph; the template must have all its types.
        y: one observation for each node [node, *obs_dim].
        mask: observed nodes [node], boolean or 0 and 1; None: all. The entries of y elsewhere are ignored, even
            NaN.
            Nodes of a type without observations in the training data count as unobserved.

    Raises:
        ValueError: a template without observations, types that were not learned, a shape that does not fit, NaN or
            infinity in an observed node.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> x, graph = np.array([[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [-2.0, -1.0]]), kbp.chain_graph(2)
        >>> y = x + np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]]) / 2
        >>> model = gaussian.fit(kbp.pool(graph, x, y))
        >>> evidence = gaussian.observe(model, graph, [1.0, np.nan], mask=[True, False])
        >>> [round(float(x), 2) for x in gaussian.run(model, graph, evidence).mean.ravel()]
        [0.91, 0.73]
    """
    fix = "Fit one with kbpjax.baselines.gaussian.fit; for known noise call gaussian.likelihood."
    ok = isinstance(model, GaussianTemplate)
    _checks.require(ok, "model", "must be a GaussianTemplate", type(model).__name__, fix)
    model.check_types(graph)
    size = model.gain.shape[2]
    fix = "Pass observations to kbpjax.pool before fitting it."
    _checks.require(size > 0, "model", "must have learned observations", "none", fix)
    seen, values = observations(graph, y, mask, model.dtype)
    fix = "Pass observations like those learned."
    _checks.require(values.shape[1] == size, "y", f"must hold {size} numbers a node", values.shape[1], fix)
    return _observe(model, graph.node_type, seen, values)


@jax.jit
def _observe(template: GaussianTemplate, kinds: Array, seen: Array, y: Array) -> GaussianFactors:
    shift = template.observed.information[kinds] - einsum("nij,nj->ni", template.gain[kinds], y)
    return GaussianFactors(_scale(seen, template.observed.precision[kinds]), _scale(seen, shift))


@public
def fit(data: TrainingData, *, ridge: ScalarLike = 0.0) -> GaussianTemplate:
    """Return a Gaussian template learned by pseudo-moment matching (Wainwright, Jaakkola & Willsky 2003).

    Nodes have the potential N(x), edges N(x_a, x_b) / (N(x_a) N(x_b)), and observations N(x, y) / N(x), which is the
    linear regression of y on x. All have the moments of the samples.

    Args:
        data: the samples. The variables of all node types must have the same length, and so must all observations.
        ridge: variance added to each coordinate of every covariance, >= 0, in its units.

    Raises:
        ValueError: types of unequal length, samples whose covariance is singular, or a ridge out of range.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> x, graph = np.array([[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [-2.0, -1.0]]), kbp.chain_graph(2)
        >>> model = gaussian.fit(kbp.pool(graph, x))
        >>> gaussian.run(model, graph).covariance.round(2).ravel().tolist()
        [2.5, 2.5]
    """
    _checks.require_number("ridge", ridge, least=0)
    nodes = {v: as_vectors(f"nodes[{v}]", x) for v, x in data.nodes.items()}
    dim, dtype = _one_length("nodes", nodes), nodes[min(nodes)].dtype
    views = {v: as_vectors(f"observations[{v}]", y) for v, (_, y) in data.observations.items()}
    obs_dim = _one_length("observations", views) if views else 0

    def moments(argument: str, *parts: Array) -> tuple[Array, Array]:
        vectors = [as_vectors(argument, part).astype(dtype) for part in parts]
        return _moments(argument, jnp.concatenate(vectors, axis=1), jnp.asarray(ridge, dtype))

    marginals = {v: _potential(*moments(f"nodes[{v}]", x)) for v, x in nodes.items()}
    joint = {k: _dependence(*moments(f"edges[{k}]", *pair), dim) for k, pair in data.edges.items()}
    view = {v: _dependence(*moments(f"observations[{v}]", *pair), dim) for v, pair in data.observations.items()}
    ends = {2 * k + end: pair[end] for k, pair in joint.items() for end in range(2)}
    none = jnp.zeros((dim, dim), dtype), jnp.zeros(dim, dtype)
    last = max(nodes)
    return GaussianTemplate(
        nodes=GaussianFactors(*_table(marginals, none, last)),
        ends=GaussianFactors(*_table(ends, none, max(ends, default=1))),
        coupling=_table({k: block for k, (*_, block) in joint.items()}, none[0], max(joint, default=0)),
        observed=GaussianFactors(*_table({v: first for v, (first, *_) in view.items()}, none, last)),
        gain=_table({v: block for v, (*_, block) in view.items()}, jnp.zeros((dim, obs_dim), dtype), last),
        node_types=tuple(sorted(nodes)),
        edge_types=data.ends,
    )


def _moments(argument: str, x: Array, ridge: Array) -> tuple[Array, Array]:
    """Return the mean and the covariance of samples [sample, dim], which must not be singular."""
    mean, covariance = _mean_and_covariance(x, ridge)
    fix = "Pass more samples, drop coordinates that others determine, or pass a ridge."
    require_definite(argument, covariance[None], fix, "must have a covariance that is positive definite")
    return mean, covariance


@jax.jit
def _mean_and_covariance(x: Array, ridge: Array) -> tuple[Array, Array]:
    mean = jnp.mean(x, axis=0)
    deviations = x - mean[None]
    covariance = einsum("si,sj->ij", deviations, deviations) / len(x)
    return mean, covariance + ridge * jnp.eye(x.shape[1], dtype=x.dtype)


@jax.jit
def _potential(mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Return a Gaussian's precision and information."""
    inverse = jnp.linalg.inv(covariance)
    precision = (inverse + inverse.T) / 2
    return precision, einsum("ij,j->i", precision, mean)


@partial(jax.jit, static_argnames="dim")
def _dependence(mean: Array, covariance: Array, dim: int) -> tuple[Any, Any, Array]:
    """Return N(x, y) / (N(x) N(y)): its factor in x [dim], its factor in y, and the block of x and y."""
    precision, information = _potential(mean, covariance)

    def without_marginal(end: slice) -> tuple[Array, Array]:
        marginal = _potential(mean[end], covariance[end, end])
        return precision[end, end] - marginal[0], information[end] - marginal[1]

    return without_marginal(slice(dim)), without_marginal(slice(dim, None)), precision[:dim, dim:]


def _table(rows: dict[int, Any], empty: Any, last: int) -> Any:
    """Stack arrays by type, 0 .. last."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(rows.get(row, empty) for row in range(last + 1)))


def _one_length(argument: str, samples: dict[int, Array]) -> int:
    lengths = {v: x.shape[1] for v, x in samples.items()}
    fix = "Pad the shorter ones, or use separate models."
    _checks.require(len(set(lengths.values())) == 1, argument, "must be of one length in all types", lengths, fix)
    return min(lengths.values())


def _scale(factors: Array, values: Array) -> Array:
    """Multiply each of some values [some, ..] by a factor [some]."""
    return factors.reshape(-1, *(1,) * (values.ndim - 1)).astype(values.dtype) * values
