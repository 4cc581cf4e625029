"""Posterior summaries of beliefs: point estimates, variances, intervals, expectations, samples."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum, matmul
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution
from kbpjax.kernels import Kernel, gram
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import Belief, log_belief, log_or_zero, raise_logs, spacing
from kbpjax.posterior.evidence import Evidence, expand
from kbpjax.posterior.marginals import Marginal, MeanEmbedding


def mode(belief: Belief) -> Shaped[Array, "node *dim"]:
    """Return the mode of each node: the candidate of largest belief.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.2, 0.5, 0.3]]))
        >>> kbp.mode(belief).tolist()
        [1.0]
    """
    _check_belief(belief)
    _refuse_nan(belief)
    return _mode(belief)


@jax.jit
def _mode(belief: Belief) -> Array:
    return _keep_nan(belief, belief.points[jnp.argmax(belief.weights, axis=-1)])


@jax.jit
def mean(belief: Belief) -> Float[Array, "node *dim"]:
    """Return the posterior mean of each node, for numeric points or vectors.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.mean(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.25, 0.75]])))[0]), 2)
        0.75
    """
    _check_belief(belief)
    return einsum("np,p...->n...", belief.weights, belief.points.astype(belief.weights.dtype))


@jax.jit
def covariance(belief: Belief) -> Float[Array, "node dim dim"]:
    """Return the posterior covariance matrix of each node, for points that are vectors [point, dim].

    Raises:
        ValueError: points that are not vectors.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([[0.0, 0.0], [2.0, 2.0]]), jnp.array([[0.5, 0.5]]))
        >>> kbp.covariance(belief).tolist()
        [[[1.0, 1.0], [1.0, 1.0]]]
    """
    _check_belief(belief)
    fix = "Use kbpjax.variance, or reshape the points to vectors."
    got = f"points of shape {belief.points.shape}"
    _checks.require(belief.points.ndim == 2, "belief", "must have points [point, dim]", got, fix)
    deviations = belief.points.astype(belief.weights.dtype)[None] - mean(belief)[:, None]
    return einsum("np,npi,npj->nij", belief.weights, deviations, deviations)


def temper(belief: Belief, temperature: ScalarLike) -> Belief:
    """Return beliefs proportional to weights ** (1 / temperature): wider above 1, narrower below.

    On loopy graphs, evidence is counted more than once, so beliefs are overconfident. A temperature learned on
    held-out data corrects this.

    Args:
        belief: the beliefs.
        temperature: number > 0.

    Raises:
        ValueError: temperature out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> wide = kbp.temper(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.9, 0.1]])), 2.0)
        >>> wide.weights.round(2).tolist()
        [[0.75, 0.25]]
    """
    _check_belief(belief)
    _checks.require_number("temperature", temperature, above=0)
    power = 1 / jnp.asarray(temperature, belief.weights.dtype)
    return Belief(belief.points, jax.nn.softmax(raise_logs(log_or_zero(belief.weights), power), axis=-1))


def expectation(belief: Belief, fn: Callable[[Array], Array]) -> Float[Array, "node *value"]:
    """Return E[fn(X) | evidence] of each node.

    Args:
        belief: the beliefs.
        fn: function of a single point [*dim], with values of any fixed shape.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([-1.0, 0.0, 1.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> kbp.expectation(belief, lambda x: x**2).tolist()
        [0.5]
    """
    _check_belief(belief)
    return einsum("np,p...->n...", belief.weights, jax.vmap(fn)(belief.points).astype(belief.weights.dtype))


@jax.jit
def variance(belief: Belief) -> Float[Array, "node *dim"]:
    """Return the posterior variance of each node, coordinate by coordinate, in squared units of the points.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.variance(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.5, 0.5]])))[0]), 2)
        0.25
    """
    _check_belief(belief)
    points = belief.points.astype(belief.weights.dtype)
    deviations = (points[None] - mean(belief)[:, None]) ** 2
    return einsum("np,np...->n...", belief.weights, deviations)


def quantile(belief: Belief, level: ScalarLike) -> Shaped[Array, "node *dim"]:
    """Return a quantile of each node: the smallest point at which the distribution function reaches `level`.

    The gradient is 0, since the result is one of the points.

    Args:
        belief: beliefs on scalar points [point] or [point, 1].
        level: probability in [0, 1].

    Raises:
        ValueError: points that are not scalar, or a level outside [0, 1].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> kbp.quantile(belief, 0.5).tolist()
        [1.0]
    """
    _check_belief(belief)
    scalar = belief.points.shape[1:] in ((), (1,))
    fix = "Compute quantiles of one coordinate, or use mean and variance."
    _checks.require(scalar, "belief", "must have scalar points", f"points of shape {belief.points.shape}", fix)
    _checks.require_number("level", level, least=0, most=1)
    _refuse_nan(belief)
    return _quantile(belief, jnp.asarray(level, belief.weights.dtype))


@jax.jit
def _quantile(belief: Belief, level: Array) -> Array:
    order = jnp.argsort(belief.points.reshape(-1))
    below = jnp.cumsum(belief.weights[:, order], axis=-1)
    # The last sum may be below 1 by rounding, and a level of 1 must still be reached.
    wanted = jnp.minimum(level, below[:, -1])
    return _keep_nan(belief, belief.points[order][jnp.argmax(below >= wanted[:, None], axis=-1)])


def interval(belief: Belief, coverage: ScalarLike = 0.9) -> tuple[Array, Array]:
    """Return the central credible interval of each node: the quantiles (1 - coverage) / 2 and (1 + coverage) / 2.

    The gradient is 0, since both ends are points.

    Args:
        belief: beliefs on scalar points.
        coverage: probability inside, in [0, 1].

    Returns:
        Lower and upper ends, [node] or [node, 1] each.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.arange(5.0), jnp.array([[0.04, 0.3, 0.3, 0.32, 0.04]]))
        >>> [end.tolist() for end in kbp.interval(belief, 0.9)]
        [[1.0], [3.0]]
    """
    _checks.require_number("coverage", coverage, least=0, most=1)
    return quantile(belief, (1 - coverage) / 2), quantile(belief, (1 + coverage) / 2)


def log_density(belief: Belief, x: Numbers) -> Float[Array, " node"]:
    """Return the log density of each node at one value per node, interpolated linearly between the points.

    The mean over nodes at the true values is the log score of the beliefs.

    Args:
        belief: beliefs on at least two distinct scalar points [point]; their spacing is taken into account.
        x: a value for each node [node]. The result is -inf outside the range of the points.

    Raises:
        ValueError: points that are not scalar, or x of another shape.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> round(float(jnp.exp(kbp.log_density(belief, jnp.array([1.5])))[0]), 2)
        0.5
    """
    _check_belief(belief)
    values = _checks.as_array("x", x)
    scalar = belief.points.shape[1:] in ((), (1,)) and belief.points.size > 1
    got, fix = f"points of shape {belief.points.shape}", "For vectors compare kbpjax.log_belief at some points."
    _checks.require(scalar, "belief", "must have two scalar points or more", got, fix)
    shape = belief.weights.shape[:1]
    _checks.require(values.shape == shape, "x", f"must have shape {shape}", values.shape, "Give a value for each node.")
    return _log_density(belief, values)


@jax.jit
def _log_density(belief: Belief, values: Array) -> Array:
    points = belief.points.reshape(-1).astype(belief.weights.dtype)
    order = jnp.argsort(points)
    lengths = spacing(points)
    heights = belief.weights / jnp.where(lengths > 0, lengths, 1)[None]
    points, heights = points[order], heights[:, order]
    area = jnp.sum((heights[:, 1:] + heights[:, :-1]) / 2 * jnp.diff(points)[None], axis=-1)

    def at(value, row):
        return jnp.interp(value, points, row, left=0, right=0)

    density = jax.vmap(at)(values.astype(points.dtype), heights) / area
    return _keep_nan(belief, log_or_zero(density))


def sample(key: PRNGKeyArray, belief: Belief, num_samples: int) -> Shaped[Array, "sample node *dim"]:
    """Return independent samples from the belief of each node; nodes are independent of each other.

    Args:
        key: random key.
        belief: the beliefs.
        num_samples: samples of each node, >= 1.

    Raises:
        ValueError: an invalid key, or num_samples out of range.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([3.0, 4.0]), jnp.array([[0.0, 1.0]]))
        >>> kbp.sample(jax.random.key(0), belief, 2).tolist()
        [[4.0], [4.0]]
    """
    _checks.require_key(key)
    _check_belief(belief)
    _checks.require_count("num_samples", num_samples)
    _refuse_nan(belief)
    return _sample(key, belief, num_samples)


@partial(jax.jit, static_argnames="num_samples")
def _sample(key: PRNGKeyArray, belief: Belief, num_samples: int) -> Array:
    logits = jnp.log(belief.weights)
    chosen = jax.random.categorical(key, logits, axis=-1, shape=(num_samples, len(logits)))
    return jax.vmap(partial(_keep_nan, belief))(belief.points[chosen])


def herd(belief: Belief, kernel: Kernel, num_samples: int) -> Shaped[Array, "sample node *dim"]:
    """Return kernel herding samples of each node (Chen, Welling, Smola 2010), which are deterministic.

    Sample t + 1 is the point of largest E[k(x, X)] - sum_{i <= t} k(x, x_i) / (t + 1). Averages over herding samples
    converge to expectations faster than averages over random samples. Any first few samples are herding samples too.

    Args:
        belief: the beliefs.
        kernel: kernel whose RKHS contains the functions to average.
        num_samples: samples of each node, >= 1.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 9.0]), jnp.array([[0.5, 0.0, 0.5]]))
        >>> sorted(kbp.herd(belief, kbp.RBF(1.0), 2)[:, 0].tolist())
        [0.0, 9.0]
    """
    _check_belief(belief)
    _checks.require_count("num_samples", num_samples)
    _refuse_nan(belief)
    return _herd(belief, kernel, num_samples)


@partial(jax.jit, static_argnames="num_samples")
def _herd(belief: Belief, kernel: Kernel, num_samples: int) -> Array:
    between = gram(kernel, belief.points, belief.points).astype(belief.weights.dtype)
    target = matmul(belief.weights, between)

    def choose(total, number):
        chosen = jnp.argmax(target - total / number, axis=-1)
        return total + between[chosen], chosen

    numbers = jnp.arange(1, num_samples + 1, dtype=target.dtype)
    chosen = jax.lax.scan(choose, jnp.zeros_like(target), numbers)[1]
    return jax.vmap(partial(_keep_nan, belief))(belief.points[chosen])


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
) -> Float[Array, "node *dim"]:
    """Return the modes of continuous beliefs, by gradient ascent on the log belief from the best few candidates.

    A step is accepted only if it increases the belief; steps grow after success and shrink otherwise. So the result is
    never worse than the best candidate. A clamped node keeps its value.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`, or None.
        solution: the solution of `run`.
        belief: the beliefs of the nodes of one type, on numeric candidates or vectors.
        node_type: that type.
        num_starts: number of candidates of largest belief to start from, >= 1.
        num_steps: number of steps from each, >= 1.
        marginal: as in `beliefs`.
        retract: maps a point [*dim] back to the domain after a step; for unit vectors lambda x: x / |x|.

    Returns:
        The refined modes [node_of_type, *dim].

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
    _check_belief(belief)
    _checks.require_count("num_starts", num_starts)
    _checks.require_count("num_steps", num_steps)
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
    def height(x):
        return log_belief(model, graph, evidence, solution, x, node_type=node_type, marginal=marginal)

    points = belief.points
    start = points[jax.lax.top_k(belief.weights, min(num_starts, len(points)))[1]]
    top, heights = _climb(height, jax.vmap(jax.vmap(retract)), start, num_steps, _spacing(points))
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


def _check_belief(belief: Belief) -> None:
    shape, count = belief.weights.shape, len(belief.points)
    fix = "For a batch of beliefs, call this inside the function that jax.vmap maps."
    _checks.require(len(shape) == 2 and shape[1] == count, "belief", f"must have weights [node, {count}]", shape, fix)


def _refuse_nan(belief: Belief) -> None:
    """Raise ValueError for a NaN belief at integer points, since integers have no NaN."""
    if not jnp.issubdtype(belief.points.dtype, jnp.floating) and not _checks.is_traced(belief.weights):
        has_nan = bool(np.isnan(np.asarray(belief.weights)).any())
        fix = "See the page on troubleshooting for causes of NaN; with float points, summaries are NaN instead."
        _checks.require(not has_nan, "belief", "must have no NaN where points are integers", "NaN", fix)


def _keep_nan(belief: Belief, summary: Array) -> Array:
    """Return the summary with NaN for nodes whose belief is NaN; integers are unchanged."""
    if not jnp.issubdtype(summary.dtype, jnp.floating):
        return summary
    is_nan = jnp.isnan(belief.weights).any(axis=-1).reshape(-1, *(1,) * (summary.ndim - 1))
    return jnp.where(is_nan, jnp.nan, summary)
