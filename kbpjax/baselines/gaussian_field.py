"""Gaussian fields on graphs: blocks of a precision matrix, and the smoother of noisy observations."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax.baselines.gaussian_inputs import ROUNDING, floats, observations, one_or_each, require_definite
from kbpjax.graphs.graph import Graph


class GaussianMRF(eqx.Module):
    """The field p(x) ~ exp(-x' A x / 2 + b' x) on the edges of a graph.

    Args:
        precision: diagonal blocks A_ss [node, dim, dim], symmetric and positive definite; of scalar nodes also [node].
        information: b_s [node, dim], or [node].
        coupling: blocks A_st for s = `graph.senders`, t = `graph.receivers` of the first half of the directed edges
            [pair, dim, dim], or [pair]: the order and orientation in which the edges were given, but that an edge
            between different node types runs from the smaller type to the larger.

    Raises:
        ValueError: other shapes, NaN or infinity, a diagonal block that is not symmetric or not positive definite.

    Examples:
        >>> from kbpjax.baselines import gaussian
        >>> model = gaussian.GaussianMRF([2.0, 2.0], [1.0, 0.0], [-1.0])
        >>> model.precision.shape, model.coupling.shape
        ((2, 1, 1), (1, 1, 1))
    """

    precision: Float[Array, "node dim dim"]
    information: Float[Array, "node dim"]
    coupling: Float[Array, "pair dim dim"]

    def __init__(self, precision: Numbers, information: Numbers, coupling: Numbers):
        blocks = floats("precision", precision)
        blocks = blocks[:, None, None] if blocks.ndim == 1 else blocks
        fix = "Pass one symmetric block for each node, or for scalar nodes one number."
        ok = blocks.ndim == 3 and blocks.shape[1] == blocks.shape[2] and blocks.size > 0
        _checks.require(ok, "precision", "must have shape [node, dim, dim] or [node]", blocks.shape, fix)
        require_definite("precision", blocks, "Each node's own block must be, for the field to be normalisable.")
        nodes, dim, _ = blocks.shape
        vectors, pairs = floats("information", information, blocks.dtype), floats("coupling", coupling, blocks.dtype)
        vectors = vectors[:, None] if vectors.ndim == 1 else vectors
        pairs = pairs[:, None, None] if pairs.ndim == 1 else pairs
        fix = f"The blocks of precision are {nodes} of {dim} x {dim}."
        ok, rule = vectors.shape == (nodes, dim), f"must have shape {(nodes, dim)}"
        _checks.require(ok, "information", rule, vectors.shape, fix)
        ok, rule = pairs.shape[1:] == (dim, dim), f"must have shape [pair, {dim}, {dim}]"
        _checks.require(ok, "coupling", rule, pairs.shape, fix)
        self.precision, self.information, self.coupling = blocks, vectors, pairs

    @classmethod
    def from_matrix(cls, graph: Graph, matrix: Numbers, information: Numbers, dim: int = 1) -> "GaussianMRF":
        """Cut a precision matrix into the blocks of a graph's nodes and edges.

        Args:
            graph: the graph; the matrix must be 0 (to rounding) where it has no edge.
            matrix: the precision A [node * dim, node * dim], symmetric and positive definite; coordinates of a node
                stand next to each other.
            information: b [node * dim], or [node, dim].
            dim: length of the vector of a node, >= 1.

        Raises:
            ValueError: other shapes, NaN or infinity, a matrix that is not symmetric, not positive definite or not
                within the graph.

        Examples:
            >>> import kbpjax as kbp
            >>> from kbpjax.baselines import gaussian
            >>> model = gaussian.GaussianMRF.from_matrix(kbp.chain_graph(2), [[2.0, -1.0], [-1.0, 2.0]], [1.0, 0.0])
            >>> model.coupling.ravel().tolist()
            [-1.0]
        """
        _checks.require_count("dim", dim)
        whole = floats("matrix", matrix)
        nodes, size = graph.num_nodes, graph.num_nodes * dim
        fix = f"The graph has {nodes} nodes of {dim} coordinates."
        _checks.require(whole.shape == (size, size), "matrix", f"must have shape {(size, size)}", whole.shape, fix)
        require_definite("matrix", whole[None], "Such a field is not normalisable: add to the diagonal.")
        _require_within(graph, whole, dim)
        vector = floats("information", information, whole.dtype)
        rule = f"must have shape {(size,)} or {(nodes, dim)}"
        _checks.require(vector.shape in ((size,), (nodes, dim)), "information", rule, vector.shape, fix)
        precision, coupling = _cut(graph, whole, dim)
        return cls(precision, vector.reshape(nodes, dim), coupling)


def thin_membrane(
    graph: Graph,
    y: Numbers,
    *,
    noise: Numbers,
    edge_precision: Numbers,
    prior_mean: Numbers = 0.0,
    prior_precision: Numbers = 0.0,
    mask: Numbers | None = None,
) -> GaussianMRF:
    """Build the smoother of noisy observations: exp(-edge_precision |x_s - x_t|^2 / 2) on each edge.

    Args:
        graph: the graph.
        y: one observation of each node, [node] or [node, dim].
        noise: standard deviation of the observations, > 0, one for all or [node].
        edge_precision: how strongly neighbours hold together, >= 0, in 1 / variance; one for all or [pair].
        prior_mean: mean of the prior factor on each node, one for all or [node].
        prior_precision: its precision, >= 0, one for all or [node]. 0: none, the intrinsic field.
        mask: which nodes are observed [node]; None: all. What y holds elsewhere, even NaN, does not matter.

    Raises:
        ValueError: shapes that do not fit the graph, values out of range, or a node of which nothing at all is known.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> graph = kbp.chain_graph(2)
        >>> model = gaussian.thin_membrane(graph, [0.0, 3.0], noise=1.0, edge_precision=1.0)
        >>> gaussian.run(model, graph).mean.ravel().round(4).tolist()
        [1.0, 2.0]
    """
    seen, values = observations(graph, y, mask)
    dim, dtype, half = values.shape[1], values.dtype, graph.num_edges // 2
    scale = one_or_each("noise", noise, graph.num_nodes, dtype, above=0)
    between = one_or_each("edge_precision", edge_precision, half, dtype, least=0)
    prior = one_or_each("prior_precision", prior_precision, graph.num_nodes, dtype, least=0)
    centre = one_or_each("prior_mean", prior_mean, graph.num_nodes, dtype)
    weight = jnp.where(seen, scale**-2, 0)
    degree = sum_to_senders(graph, jnp.concatenate([between, between]))
    unit = jnp.eye(dim, dtype=dtype)[None]
    return GaussianMRF(
        (weight + prior + degree)[:, None, None] * unit,
        weight[:, None] * values + (prior * centre)[:, None],
        -between[:, None, None] * unit,
    )


class Factors(eqx.Module):
    """Factors exp(-x' P x / 2 + mu' x): messages, of directed edges, whose P are not positive; or potentials.

    Attributes:
        precision: P of each factor [factor, dim, dim].
        information: mu of each factor [factor, dim].

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> solution = gaussian.run(gaussian.GaussianMRF([2.0, 2.0], [3.0, 0.0], [-1.0]), kbp.chain_graph(2))
        >>> isinstance(solution.messages, gaussian.Factors), solution.messages.information.ravel().round(4).tolist()
        (True, [1.5, 0.0])
    """

    precision: Float[Array, "factor dim dim"]
    information: Float[Array, "factor dim"]


def sum_to_senders(graph: Graph, values: Array) -> Array:
    """Sum values of directed edges [edge, ..] at the nodes that send along them."""
    return jax.ops.segment_sum(values, graph.senders, graph.num_nodes)


@partial(jax.jit, static_argnames="dim")
def _cut(graph: Graph, matrix: Array, dim: int) -> tuple[Array, Array]:
    """Return the blocks of nodes and of edges."""
    nodes, half = graph.num_nodes, graph.num_edges // 2
    blocks = jnp.swapaxes(matrix.reshape(nodes, dim, nodes, dim), 1, 2)
    own = jnp.arange(nodes, dtype=jnp.int32)
    return blocks[own, own], blocks[graph.senders[:half], graph.receivers[:half]]


def _require_within(graph: Graph, matrix: Array, dim: int) -> None:
    """Check that a matrix is 0 where a graph has no edge."""
    if _checks.is_traced((matrix, graph)):
        return
    nodes = graph.num_nodes
    values = np.abs(np.asarray(matrix)).reshape(nodes, dim, nodes, dim).max(axis=(1, 3))
    joined = np.eye(graph.num_nodes, dtype=bool)
    joined[np.asarray(graph.senders), np.asarray(graph.receivers)] = True
    outside = np.argwhere(~joined & (values > ROUNDING * np.finfo(matrix.dtype).eps * values.max()))
    fix = "Add the edges to the graph, or set the entries to 0."
    _checks.require(len(outside) == 0, "matrix", "must be 0 off the edges", f"nodes {outside[:3].tolist()}", fix)
