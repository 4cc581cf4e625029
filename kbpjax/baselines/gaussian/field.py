"""Gaussian Markov random fields on graphs: blocks of a precision matrix, the thin membrane, and evidence."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_fields
from kbpjax._public import Checked, public
from kbpjax.baselines.gaussian.inputs import ROUNDING, floats, observations, one_or_each, require_definite
from kbpjax.graphs.graph import Graph


class GaussianMRF(Checked):
    """The field p(x) ~ exp(-x' A x / 2 + b' x) on the edges of a graph.

    Args:
        precision: diagonal blocks A_ss [node, dim, dim], symmetric and positive semidefinite; [node] if
            nodes are scalar.
        information: b_s [node, dim], or [node]. It is A_ss times the mean of a node without neighbors.
        coupling: blocks A_st for s = `graph.senders`, t = `graph.receivers` of the first half of the directed edges
            [pair, dim, dim], or [pair]: the order and orientation in which the edges were given, except that an edge
            between different node types runs from the smaller type to the larger.

    Raises:
        ValueError: other shapes, NaN or infinity, a diagonal block that is not symmetric or not positive
            semidefinite.

    Examples:
        >>> from kbpjax.baselines import gaussian
        >>> model = gaussian.GaussianMRF([2.0, 2.0], [1.0, 0.0], [-1.0])
        >>> model.precision.shape, model.coupling.shape
        ((2, 1, 1), (1, 1, 1))
    """

    requires_finite = True

    precision: Float[Array, "node dim dim"]
    information: Float[Array, "node dim"]
    coupling: Float[Array, "pair dim dim"]

    def __init__(self, precision: Numbers, information: Numbers, coupling: Numbers):
        blocks = floats("precision", precision)
        blocks = blocks[:, None, None] if blocks.ndim == 1 else blocks
        fix = "Pass one symmetric block for each node, or for scalar nodes one number."
        ok = blocks.ndim == 3 and blocks.shape[1] == blocks.shape[2] and blocks.size > 0
        _checks.require(ok, "precision", "must have shape [node, dim, dim] or [node]", blocks.shape, fix)
        require_definite("precision", blocks, "The field is not normalizable otherwise.", semi=True)
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

    @property
    def dim(self) -> int:
        """The length of the vector of a node."""
        return self.information.shape[1]

    @property
    def dtype(self) -> Any:
        """The precision of the numbers."""
        return self.information.dtype

    def check_graph(self, graph: Graph) -> None:
        """Raise ValueError unless the field has the nodes and edges of a graph."""
        wanted, got = (graph.num_nodes, graph.num_edges // 2), (len(self.information), len(self.coupling))
        fix = "Pass the graph that the model was made for."
        _checks.require(
            got == wanted, "model", "must have {} nodes and {} edges, as the graph".format(*wanted), got, fix
        )

    @classmethod
    def from_matrix(cls, graph: Graph, matrix: Numbers, information: Numbers, dim: int = 1) -> "GaussianMRF":
        """Return the field of a precision matrix, split into blocks of a graph's nodes and edges.

        Args:
            graph: the graph; the matrix must be 0 (to rounding) where it has no edge.
            matrix: the precision A [node * dim, node * dim], symmetric and positive definite; the coordinates of a node
                are adjacent.
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
        require_definite("matrix", whole[None], "Such a field is not normalizable: add to the diagonal.")
        _require_within(graph, whole, dim)
        vector = floats("information", information, whole.dtype)
        rule = f"must have shape {(size,)} or {(nodes, dim)}"
        _checks.require(vector.shape in ((size,), (nodes, dim)), "information", rule, vector.shape, fix)
        precision, coupling = _cut(graph, whole, dim)
        made = cls.trusted(precision, vector.reshape(nodes, dim), coupling)
        return _checks.finite_result("graph, matrix, information", made)

    __repr__ = show_fields


class GaussianFactors(Checked):
    """Gaussian factors exp(-x' P x / 2 + mu' x): evidence of nodes, messages of directed edges, or potentials.

    The matrices P of messages are not positive definite in general.

    Attributes:
        precision: P of each factor [factor, dim, dim].
        information: mu of each factor [factor, dim].

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> solution = gaussian.run(gaussian.GaussianMRF([2.0, 2.0], [3.0, 0.0], [-1.0]), kbp.chain_graph(2))
        >>> solution.messages.information.ravel().round(4).tolist()
        [1.5, 0.0]
    """

    precision: Float[Array, "factor dim dim"]
    information: Float[Array, "factor dim"]

    __repr__ = show_fields


@public
def thin_membrane(
    graph: Graph,
    *,
    edge_precision: Numbers,
    prior_mean: Numbers = 0.0,
    prior_precision: Numbers = 0.0,
    dim: int = 1,
) -> GaussianMRF:
    """Return the thin-membrane field, a smoothness prior: exp(-edge_precision |x_s - x_t|^2 / 2) on each edge.

    Args:
        graph: the graph.
        edge_precision: precision of the difference of two neighbors, >= 0; one for all or [pair].
        prior_mean: mean of the prior factor on each node, one for all or [node].
        prior_precision: its precision, >= 0, one for all or [node]. 0: no prior factor, the intrinsic field. Its means
            are defined only where evidence reaches.
        dim: length of the vector of a node, >= 1.

    Raises:
        ValueError: shapes that do not fit the graph, values out of range, NaN or infinity.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> graph = kbp.chain_graph(2)
        >>> model = gaussian.thin_membrane(graph, edge_precision=1.0)
        >>> evidence = gaussian.likelihood(model, graph, [0.0, 3.0], noise=1.0)
        >>> gaussian.run(model, graph, evidence).mean.ravel().round(4).tolist()
        [1.0, 2.0]
    """
    _checks.require_count("dim", dim)
    half = graph.num_edges // 2
    given = [floats(*pair) for pair in (("edge_precision", edge_precision), ("prior_mean", prior_mean))]
    dtype = jnp.result_type(*(array.dtype for array in given))
    between = one_or_each("edge_precision", edge_precision, half, dtype, least=0)
    prior = one_or_each("prior_precision", prior_precision, graph.num_nodes, dtype, least=0)
    center = one_or_each("prior_mean", prior_mean, graph.num_nodes, dtype)
    degree = sum_to_senders(graph, jnp.concatenate([between, between]))
    unit = jnp.eye(dim, dtype=dtype)[None]
    return GaussianMRF.trusted(
        (prior + degree)[:, None, None] * unit,
        jnp.broadcast_to((prior * center)[:, None], (graph.num_nodes, dim)),
        -between[:, None, None] * unit,
    )


@public
def likelihood(model: Any, graph: Graph, y: Numbers, *, noise: Numbers, mask: Numbers | None = None) -> GaussianFactors:
    """Return the evidence of observations with known noise, N(y_s; x_s, noise^2 I).

    Args:
        model: the `GaussianMRF` or `GaussianTemplate` for `run`.
        graph: the graph.
        y: one observation of each node, [node] or [node, dim].
        noise: standard deviation of the observations, > 0, one for all or [node].
        mask: observed nodes [node], boolean or 0 and 1; None: all. The entries of y elsewhere are ignored, even
            NaN.

    Raises:
        ValueError: shapes that do not fit the model or the graph, values out of range, NaN in an observed node.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> model, graph = gaussian.GaussianMRF([1.0, 1.0], [0.0, 0.0], [-0.5]), kbp.chain_graph(2)
        >>> gaussian.likelihood(model, graph, [1.0, 2.0], noise=0.5, mask=[True, False]).information.ravel().tolist()
        [4.0, 0.0]
    """
    ok, got = hasattr(model, "dim"), type(model).__name__
    _checks.require(ok, "model", "must be a GaussianMRF or a GaussianTemplate", got, "Pass the model of the run.")
    dim, dtype = model.dim, model.dtype
    seen, values = observations(graph, y, mask, dtype)
    fix = "Pass one vector of the length of the variables for each node."
    _checks.require(values.shape[1] == dim, "y", f"must hold {dim} numbers a node", values.shape[1], fix)
    weight = jnp.where(seen, one_or_each("noise", noise, graph.num_nodes, dtype, above=0) ** -2, 0)
    return GaussianFactors(weight[:, None, None] * jnp.eye(dim, dtype=dtype)[None], weight[:, None] * values)


def sum_to_senders(graph: Graph, values: Array) -> Array:
    """Return the sum of values of directed edges [edge, ..] at their senders."""
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
