"""Beliefs of continuous variables at any points, and their modes, by gradient ascent from the best candidates."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import Belief, log_density_at
from kbpjax.posterior.evidence import Evidence, expand
from kbpjax.posterior.marginals import Marginal
from kbpjax.posterior.posterior import Posterior


@public
def log_belief(
    posterior: Posterior, points: Shaped[Array, "node own *dim"], *, node_type: int = 0
) -> Float[Array, "node own"]:
    """Return the logarithms of unnormalized beliefs at separate points for each node; differentiable in the points.

    Args:
        posterior: the posterior; its estimate of the marginal is used.
        points: points of each node of the type [node_of_type, own, *dim].
        node_type: the node type.

    Returns:
        (log p(x) + log local(x) + sum_u log m_us(x)) / temperature, up to one constant per node [node_of_type, own];
        -inf where the belief is 0. Clamps are ignored. A known likelihood that does not broadcast (see
        `kbpjax.likelihood`) costs the number of nodes squared.

    Raises:
        ValueError: points of another shape, NaN or infinity; a posterior with batch axes.

    Examples:
        >>> import jax, jax.numpy as jnp, numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> posterior = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0], [0.5]))
        >>> slope = jax.grad(lambda own: kbp.log_belief(posterior, own).sum())
        >>> (slope(jnp.array([[0.0], [0.0], [0.9]]))[1:] > 0).tolist()  # the belief peaks at 0.5
        [[True], [False]]
    """
    posterior.require_one()
    problem = posterior.model, posterior.graph, posterior.evidence, posterior.solution
    types = [v for v, *_ in posterior.graph.node_types]
    _checks.require(node_type in types, "node_type", f"must be one of {types}", node_type, "Choose one of the graph's.")
    return log_density_at(*problem, points, node_type, posterior.marginals[node_type])


@public
def refine_mode(
    posterior: Posterior,
    *,
    num_starts: int = 3,
    num_steps: int = 50,
    retract: Callable[[Array], Array] = lambda x: x,
) -> Any:
    """Return the modes of continuous beliefs, by gradient ascent on the log belief from the best few candidates.

    A step is accepted only if it increases the belief; steps grow after success and shrink otherwise. So the result is
    never worse than the best candidate. A clamped node keeps its value.

    Args:
        posterior: the posterior, of variables that are numbers or vectors.
        num_starts: number of candidates of largest belief to start from, >= 1; if there are fewer, from all of them.
        num_steps: number of steps from each, >= 1.
        retract: maps a point [*dim] back to the domain after a step; for unit vectors lambda x: x / |x|.

    Returns:
        The refined modes [node, *dim]; for a graph with several node types {node type: modes [node_of_type, *dim]}.

    Raises:
        ValueError: candidates that are integers, an option out of range, a posterior with batch axes.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> evidence = kbp.clamp(model, graph, [0], [0.3])
        >>> posterior = kbp.infer(model, graph, evidence=evidence, points=np.linspace(-1, 1, 5))
        >>> modes = jax.jit(kbp.refine_mode)(posterior)
        >>> kbp.mode(posterior).tolist(), [round(float(x), 1) for x in modes]
        ([0.5, 0.5, 0.5], [0.3, 0.3, 0.3])
    """
    _checks.require_count("num_starts", num_starts)
    _checks.require_count("num_steps", num_steps)
    posterior.require_one()
    problem = posterior.model, posterior.graph, posterior.evidence, posterior.solution
    modes = {}
    for v, one in posterior.by_type.items():
        real = jnp.issubdtype(one.points.dtype, jnp.floating)
        fix = "Use kbpjax.mode for integer points, or convert them to float."
        _checks.require(real, "posterior", "must have points of floats", one.points.dtype, fix)
        modes[v] = _refine(*problem, one, posterior.marginals[v], v, num_starts, num_steps, retract)
    return modes if len(modes) > 1 else next(iter(modes.values()))


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
        return log_density_at(model, graph, evidence, solution, x, node_type, marginal)

    points = belief.points
    best_few = jax.lax.top_k(belief.heights, min(num_starts, belief.weights.shape[1]))[1]
    if belief.own_points:
        start, spacing = jax.vmap(lambda x, rows: x[rows])(points, best_few), jax.vmap(_spacing)(points)[:, None]
    else:
        start, spacing = points[best_few], _spacing(points)
    top, heights = _climb(height, jax.vmap(jax.vmap(on_domain)), start, num_steps, spacing)
    best = jnp.argmax(heights, axis=1)
    mode = jax.vmap(lambda x, i: x[i])(top, best)
    if evidence is None or node_type not in evidence.values:
        return mode
    clamped, values = evidence.values[node_type]
    if node_type in model.margins:
        values = model.margins[node_type].of_nodes(len(values)).restored(values)
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
