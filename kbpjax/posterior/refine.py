"""Modes of continuous beliefs, by gradient ascent from the best candidates."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import Belief, log_belief
from kbpjax.posterior.evidence import Evidence, expand
from kbpjax.posterior.marginals import Marginal, MeanEmbedding
from kbpjax.posterior.summaries import check_belief


@overload
def refine_mode(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    belief: Belief,
    *,
    node_type: int = 0,
    num_starts: int = 3,
    num_steps: int = 50,
    marginal: Marginal = MeanEmbedding(),
    retract: Callable[[Array], Array] = lambda x: x,
) -> Float[Array, "node *dim"]: ...


@overload
def refine_mode(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    belief: Mapping[int, Belief],
    *,
    node_type: int = 0,
    num_starts: int = 3,
    num_steps: int = 50,
    marginal: Marginal = MeanEmbedding(),
    retract: Callable[[Array], Array] = lambda x: x,
) -> dict[int, Float[Array, "node *dim"]]: ...


@public
def refine_mode(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    belief: Belief | Mapping[int, Belief],
    *,
    node_type: int = 0,
    num_starts: int = 3,
    num_steps: int = 50,
    marginal: Marginal = MeanEmbedding(),
    retract: Callable[[Array], Array] = lambda x: x,
) -> Float[Array, "node *dim"] | dict[int, Float[Array, "node *dim"]]:
    """Return the modes of continuous beliefs, by gradient ascent on the log belief from the best few candidates.

    A step is accepted only if it increases the belief; steps grow after success and shrink otherwise. So the result is
    never worse than the best candidate. A clamped node keeps its value.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`, or None.
        solution: the solution of `run`.
        belief: the beliefs of the nodes of one type, on numeric candidates or vectors; or {node type: beliefs}.
        node_type: that type; ignored for {node type: beliefs}.
        num_starts: number of candidates of largest belief to start from, >= 1; if there are fewer, from all of them.
        num_steps: number of steps from each, >= 1.
        marginal: as in `beliefs`.
        retract: maps a point [*dim] back to the domain after a step; for unit vectors lambda x: x / |x|.

    Returns:
        The refined modes [node_of_type, *dim]; or {node type: modes}.

    Raises:
        ValueError: candidates that are integers, beliefs of other nodes, a node type that the graph does not have,
            an option out of range.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> evidence = kbp.clamp(model, graph, [0], [0.3])
        >>> solution = kbp.run(model, graph, evidence)
        >>> belief = kbp.beliefs(model, graph, evidence, solution, np.linspace(-1, 1, 5))
        >>> modes = jax.jit(kbp.refine_mode)(model, graph, evidence, solution, belief)
        >>> kbp.mode(belief).tolist(), [round(float(x), 1) for x in modes]
        ([0.5, 0.5, 0.5], [0.3, 0.3, 0.3])
    """
    _checks.require_count("num_starts", num_starts)
    _checks.require_count("num_steps", num_steps)
    if isinstance(belief, Mapping):
        climb = partial(refine_mode, model, graph, evidence, solution, num_starts=num_starts, num_steps=num_steps)
        return {v: climb(one, node_type=v, marginal=marginal, retract=retract) for v, one in belief.items()}
    check_belief(belief)
    points, nodes = belief.points, graph.nodes_of_type(node_type)
    real = jnp.issubdtype(points.dtype, jnp.floating)
    fix = "Use kbpjax.mode for integer points, or convert them to float."
    _checks.require(real, "belief", "must have points of floats", points.dtype, fix)
    rule = f"must hold the {len(nodes)} nodes of type {node_type}"
    fix = "Pass the beliefs of that type, as kbpjax.beliefs returns them for points given by type."
    _checks.require(len(belief.weights) == len(nodes), "belief", rule, len(belief.weights), fix)
    problem = model, graph, evidence, solution, belief, marginal
    return _refine(*problem, node_type, num_starts, num_steps, retract)


@partial(jax.jit, static_argnames=("node_type", "num_starts", "num_steps", "retract"))
def _refine(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    solution: Solution,
    belief: Belief,
    marginal: Marginal,
    node_type: int,
    num_starts: int,
    num_steps: int,
    retract: Callable[[Array], Array],
) -> Array:
    def on_domain(x):
        point = _checks.as_array("retract", retract(x))
        fix = "Return a point of the domain."
        _checks.require(point.shape == x.shape, "retract", f"must return shape {x.shape}", point.shape, fix)
        return point

    def height(x):
        return log_belief(model, graph, evidence, solution, x, node_type=node_type, marginal=marginal)

    points = belief.points
    start = points[jax.lax.top_k(belief.heights, min(num_starts, len(points)))[1]]
    top, heights = _climb(height, jax.vmap(jax.vmap(on_domain)), start, num_steps, _spacing(points))
    best = jnp.argmax(heights, axis=1)
    mode = jax.vmap(lambda x, i: x[i])(top, best)
    if evidence is None or node_type not in evidence.values:
        return mode
    clamped, values = evidence.values[node_type]
    return jnp.where(expand(clamped, mode.ndim), values.astype(mode.dtype), mode)


def _climb(
    height: Callable[[Array], Array], retract: Callable[[Array], Array], x: Array, num_steps: int, spacing: Array
) -> tuple[Array, Array]:
    """Return the end points of gradient ascent from points [node, start, *dim], and their heights [node, start]."""

    def gradient(x):
        return jax.grad(lambda x: jnp.sum(height(x)))(x)

    def advance(carry, _):
        x, value, slope, size = carry
        ahead = retract(x + expand(size, x.ndim) * slope)
        new = height(ahead)
        better = new > value
        x = jnp.where(expand(better, x.ndim), ahead, x)
        return (x, jnp.where(better, new, value), gradient(x), jnp.where(better, 1.5 * size, 0.4 * size)), None

    slope = gradient(x)
    norm = jnp.sqrt(jnp.sum(slope**2, axis=tuple(range(2, x.ndim))))
    size = jnp.where(norm > 0, 0.25 * spacing.astype(norm.dtype) / jnp.where(norm > 0, norm, 1), 0)
    (x, value, *_), _ = jax.lax.scan(advance, (x, height(x), slope, size), length=num_steps)
    return x, value


def _spacing(points: Array) -> Array:
    """Return the approximate spacing of points: the diagonal of their bounding box over the points per axis."""
    flat = points.reshape(len(points), -1)
    diagonal = jnp.sqrt(jnp.sum((jnp.max(flat, axis=0) - jnp.min(flat, axis=0)) ** 2))
    return diagonal / len(points) ** (1 / flat.shape[1])
