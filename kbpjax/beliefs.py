"""Beliefs: what is known of each variable once messages have been passed, and the answers that people ask of it.

A belief is a distribution on points that the user chooses (a grid, grey levels, training samples): normalised weights

    b_s(x)  ~  p(x) local_s(x) prod_{u in G(s)} m_us(x),

with p the marginal, estimated by its mean embedding: the true marginal smoothed by the kernel, so wide bandwidths make
wide beliefs. The points are candidates: their own density is not corrected for.
"""

from collections.abc import Mapping
from functools import partial
from typing import overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._precision import einsum, matmul
from kbpjax.evidence import Evidence
from kbpjax.features import features
from kbpjax.graph import Graph
from kbpjax.kernels.base import like
from kbpjax.mrf import KernelMRF
from kbpjax.propagate import Solution


class Belief(eqx.Module):
    """A distribution of each variable on common points.

    Attributes:
        points: candidates [point, *dim].
        weights: probabilities [node, point]; each row sums to 1.
    """

    points: Shaped[Array, "point *dim"]
    weights: Float[Array, "node point"]


@overload
def beliefs(
    model: KernelMRF, graph: Graph, evidence: Evidence | None, solution: Solution, points: Numbers
) -> Belief: ...


@overload
def beliefs(
    model: KernelMRF, graph: Graph, evidence: Evidence | None, solution: Solution, points: Mapping[int, Numbers]
) -> dict[int, Belief]: ...


def beliefs(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    points: Numbers | Mapping[int, Numbers],
) -> Belief | dict[int, Belief]:
    """Evaluate the beliefs of all nodes on candidate points.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence that `run` had, or None.
        solution: what `run` returned.
        points: candidates [point, *dim], for all nodes; or {node type: candidates}, where types have domains of their
            own.

    Returns:
        The beliefs of all nodes; for points given by type, {node type: beliefs of its nodes, in order of node number}.

    Raises:
        ValueError: points of another shape than the model's variables, none at all, NaN or infinity; a solution of
            another graph.
    """
    model.check_types(graph)
    shape = (graph.num_edges, model.operators.evaluate.shape[2])
    fix = "Pass what kbpjax.run returned for this model and graph."
    _checks.require(
        solution.messages.shape == shape, "solution", f"messages must be {shape}", solution.messages.shape, fix
    )
    if evidence is not None:
        shape = (graph.num_nodes, shape[1])
        fix = "Pass the evidence that kbpjax.run had."
        got = evidence.messages.shape
        _checks.require(got == shape, "evidence", f"messages must have shape {shape}", got, fix)
    types = [v for v, *_ in graph.node_types]
    by_type = points if isinstance(points, Mapping) else dict.fromkeys(types, points)
    missing = [v for v in types if v not in by_type]
    rule = f"must have an entry for each of the node types {types}"
    _checks.require(not missing, "points", rule, f"none for {missing}", "Add candidates for them.")
    candidates = {v: _candidates(model, v, by_type[v]) for v in types}
    weights = {v: _weights(model, graph, evidence, solution.messages, candidates[v], v) for v in types}
    if isinstance(points, Mapping):
        return {v: Belief(candidates[v], weights[v]) for v in types}
    order = jnp.concatenate([graph.nodes_of_type(v) for v in types])
    together = jnp.concatenate([weights[v] for v in types])
    return Belief(candidates[types[0]], jnp.zeros_like(together).at[order].set(together))


@partial(jax.jit, static_argnames="node_type")
def _weights(
    model: KernelMRF, graph: Graph, evidence: Evidence | None, messages: Array, points: Array, node_type: int
) -> Array:
    """Return the normalised beliefs of the nodes of one type, summing logarithms slot by slot."""
    nodes = graph.nodes_of_type(node_type)
    at_points = features(model.bases[node_type], points).astype(messages.dtype)
    rank = at_points.shape[1]
    floors = jnp.asarray(model.operators.floor, at_points.dtype).reshape(-1)
    floor = floors[node_type if len(floors) > 1 else 0]
    smallest = jnp.finfo(at_points.dtype).tiny

    def log_values(coefficients: Array, present: Array) -> Array:
        values = jnp.maximum(matmul(coefficients[:, :rank], at_points.T), floor)
        return jnp.where(present[:, None], jnp.log(jnp.maximum(values, smallest)), 0)

    padded = jnp.concatenate([messages, jnp.zeros_like(messages, shape=(1, messages.shape[1]))])
    prior = jnp.log(jnp.maximum(jnp.maximum(matmul(at_points, model.marginals[node_type]), floor), smallest))
    total = jnp.broadcast_to(prior[None], (len(nodes), len(points)))
    if evidence is not None:
        total = total + log_values(evidence.messages[nodes], evidence.observed[nodes])

    def add(total, slot):
        return total + log_values(padded[slot], slot < graph.num_edges), None

    return jax.nn.softmax(jax.lax.scan(add, total, graph.incoming(nodes).T)[0], axis=-1)


def mode(belief: Belief) -> Shaped[Array, "node *dim"]:
    """Return the point of largest belief of each node (the MAP estimate over the candidates).

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.2, 0.5, 0.3]]))
        >>> kbp.mode(belief).tolist()
        [1.0]
    """
    _check_belief(belief)
    return _keep_nan(belief, belief.points[jnp.argmax(belief.weights, axis=-1)])


def mean(belief: Belief) -> Float[Array, "node *dim"]:
    """Return the posterior mean of each node, for points that are numbers or vectors.

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.mean(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.25, 0.75]])))[0]), 2)
        0.75
    """
    _check_belief(belief)
    return einsum("np,p...->n...", belief.weights, belief.points.astype(belief.weights.dtype))


def variance(belief: Belief) -> Float[Array, "node *dim"]:
    """Return the posterior variance of each node, coordinate by coordinate, in squared units of the points.

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.variance(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.5, 0.5]])))[0]), 2)
        0.25
    """
    _check_belief(belief)
    points = belief.points.astype(belief.weights.dtype)
    deviations = (points[None] - mean(belief)[:, None]) ** 2
    return einsum("np,np...->n...", belief.weights, deviations)


def quantile(belief: Belief, level: ScalarLike) -> Shaped[Array, "node *dim"]:
    """Return the least point at which the distribution function of each node reaches `level`.

    Args:
        belief: beliefs on scalar points [point] or [point, 1].
        level: probability in [0, 1].

    Raises:
        ValueError: points that are not scalar, or a level outside [0, 1].

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> kbp.quantile(belief, 0.5).tolist()
        [1.0]
    """
    _check_belief(belief)
    scalar = belief.points.shape[1:] in ((), (1,))
    fix = "Take the quantile of one coordinate, or use mean and variance."
    _checks.require(scalar, "belief", "must have scalar points", f"points of shape {belief.points.shape}", fix)
    _checks.require_number("level", level, least=0, most=1)
    order = jnp.argsort(belief.points.reshape(-1))
    below = jnp.cumsum(belief.weights[:, order], axis=-1)
    # The last sum may miss 1 by rounding, and a level of 1 must still be reached.
    wanted = jnp.minimum(jnp.asarray(level, below.dtype), below[:, -1])
    return _keep_nan(belief, belief.points[order][jnp.argmax(below >= wanted[:, None], axis=-1)])


def interval(belief: Belief, coverage: ScalarLike = 0.9) -> tuple[Array, Array]:
    """Return the central credible interval of each node: the quantiles (1 - coverage) / 2 and (1 + coverage) / 2.

    Args:
        belief: beliefs on scalar points.
        coverage: probability inside, in [0, 1].

    Returns:
        Lower and upper ends, [node] or [node, 1] each.

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.arange(5.0), jnp.array([[0.04, 0.3, 0.3, 0.32, 0.04]]))
        >>> [end.tolist() for end in kbp.interval(belief, 0.9)]
        [[1.0], [3.0]]
    """
    _checks.require_number("coverage", coverage, least=0, most=1)
    return quantile(belief, (1 - coverage) / 2), quantile(belief, (1 + coverage) / 2)


def _check_belief(belief: Belief) -> None:
    shape, count = belief.weights.shape, len(belief.points)
    fix = "Of a batch of beliefs, ask inside the function that jax.vmap maps."
    _checks.require(len(shape) == 2 and shape[1] == count, "belief", f"must have weights [node, {count}]", shape, fix)


def _keep_nan(belief: Belief, answers: Array) -> Array:
    """Answer NaN where the belief is NaN, for points that are floats."""
    if not jnp.issubdtype(answers.dtype, jnp.floating):
        return answers
    broken = jnp.isnan(belief.weights).any(axis=-1).reshape(-1, *(1,) * (answers.ndim - 1))
    return jnp.where(broken, jnp.nan, answers)


def _candidates(model: KernelMRF, node_type: int, points: Numbers) -> Array:
    points = points if isinstance(points, jax.Array) else np.asarray(points)
    shape = model.bases[node_type].landmarks.shape[1:]
    rule = f"must have shape [point, *{shape}], as the variables of node type {node_type}"
    ok = points.ndim >= 1 and len(points) > 0 and points.shape[1:] == shape
    _checks.require(ok, "points", rule, f"shape {points.shape}", "Pass candidates, or {node type: candidates}.")
    _checks.require_finite("points", points, "Drop those points.")
    return like(_checks.as_array("points", points), model.bases[node_type].landmarks)
