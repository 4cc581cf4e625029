"""Conversion of the learned evidence of a kernel model to the models of the baselines."""

import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.features import FeatureMap, features
from kbpjax.graphs.graph import Graph
from kbpjax.kernels.base import like
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import Learned, learned_factors, log_factors
from kbpjax.posterior.evidence import Evidence, Model
from kbpjax.posterior.likelihood import likelihood

__all__ = ["transfer_evidence"]


@public
def transfer_evidence(model: Model, graph: Graph, evidence: Evidence, source: KernelMRF) -> Evidence:
    """Return evidence for `model` with the factors of evidence that was made for another model.

    Learned factors are functions in the feature space of `source`. They become known likelihoods, which evaluate these
    functions wherever a baseline needs them, with the floor of `source`. So one `kbpjax.observe` serves all methods.

    Args:
        model: the model of a baseline: of `discrete.fit`, `pairwise.fit` or their like.
        graph: the graph; both models must have all its types.
        evidence: evidence that `kbpjax.observe` or `kbpjax.likelihood` made with `source`, or a product of these.
        source: the kernel model of the evidence, with variables of the same shape.

    Returns:
        Evidence of known likelihoods. For Gaussian belief propagation use `gaussian.observe` instead.

    Raises:
        ValueError: clamped nodes, evidence of another model than `source`, or variables of different shapes.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import discrete, transfer_evidence
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> data, kernel = kbp.pool(graph, x, observations=x), kbp.RBF(0.5)
        >>> source, model = kbp.fit(data, kernel=kernel, obs_kernel=kernel), discrete.fit(data, [-1.0, 0.0, 1.0])
        >>> learned = kbp.observe(source, graph, [0.9, 0.9, np.nan], mask=[True, True, False])
        >>> evidence = transfer_evidence(model, graph, learned, source)
        >>> solution = discrete.run(model, graph, evidence)
        >>> kbp.mode(discrete.beliefs(model, graph, evidence, solution, [-1.0, 0.0, 1.0])).tolist()
        [1.0, 1.0, 1.0]
    """
    fix = "Clamp on the baseline's own model with kbpjax.clamp, or pass a narrow kbpjax.likelihood."
    _checks.require(not evidence.values, "evidence", "must have no clamped nodes", "clamped nodes", fix)
    rank = source.operators.evaluate.shape[2]
    shape, got = (graph.num_nodes, rank), evidence.messages.shape[1:]
    fix = "Pass the model and graph that the evidence was made with."
    _checks.require(got == shape, "evidence", f"must have messages of shape {shape}", got, fix)
    model.check_types(graph)
    source.check_types(graph)
    learned, functions = learned_factors(evidence), {}
    for v, *_ in graph.node_types:
        expected, got = model.points[v].shape[1:], source.points[v].shape[1:]
        fix = "Learn both models from the same data."
        _checks.require(expected == got, "source", f"must have variables of shape {expected}", got, fix)
        functions[v] = Partial(_evaluate, source.bases[v], source.floor_of(v), learned, graph.nodes_of_type(v))
    transferred = likelihood(model, graph, functions) if len(evidence.messages) else None
    for functions_by_type in evidence.likelihoods:
        term = likelihood(model, graph, functions_by_type)
        transferred = term if transferred is None else transferred * term
    fix = "Leave it out."
    _checks.require(transferred is not None, "evidence", "must have a factor", "none", fix)
    assert transferred is not None
    return transferred


def _evaluate(basis: FeatureMap, floor: Array, learned: Learned, nodes: Array, points: Array) -> Array:
    """Return learned factors at common points [point, *dim], or at per-node points [node, own, *dim]."""
    shape = basis.point.shape
    at_points = features(basis, like(points.reshape(-1, *shape), basis.point.dtype))
    per_node = points.ndim > 1 + len(shape)
    at_points = at_points.reshape(*points.shape[:2], -1) if per_node else at_points[None]
    return jnp.exp(log_factors(learned, nodes, at_points, floor))
