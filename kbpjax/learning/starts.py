r"""Starts: nodes without an incoming edge, whose marginal may differ from that of the other nodes.

An edge points from its first to its second end. Where no node has more than one incoming edge from nodes of its type,
the nodes of a type form chains and trees that begin at the nodes without one, such as the first values of time series:

$$p(x) = \prod_{\text{starts}} p_1(x_s) \prod_{s \to t} p(x_t | x_s).$$

The operators are relative to P*, the marginal of all nodes of the type, and beliefs begin with it. So starts have the
factor p_1(x) / P*(x) as their own. Both densities are estimated with the same kernel, the model's raised to a power,
which makes it narrower. That power is the one with the largest likelihood of the samples of starts, each left out.
Finally P* is mixed in, which counts for half a sample: no start is certain.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit, values_or_shapes
from kbpjax._public import Checked
from kbpjax.graphs.graph import Graph
from kbpjax.kernels import Kernel, diagonal, gram
from kbpjax.kernels.base import like, random_rows
from kbpjax.learning.far import are_far

POWERS = 4.0 ** np.arange(6)
"""Powers of a kernel that are compared: those of a Gaussian kernel halve its bandwidth."""

PRIOR = 0.5
"""Number of samples that the marginal of all nodes counts for in that of starts."""

LEVELS = 256
"""Number of levels on which numbers are counted."""

SOME = 256, 768
"""Largest number of samples, of starts and of other nodes, of values that are not counted on levels."""

MANY = 2**16
"""Largest number of samples of numbers that are counted, in the same order."""

CLEAR = 0.02, 3.0
"""Mean of log p_1 / P* at samples of starts that were left out, and the same in standard errors, above which starts
count as different."""


def start_nodes(graph: Graph) -> Bool[Array, " node"] | None:
    """Return the mask of the starts; None for a graph with a cycle.

    A node type of which a node has several incoming edges from its own type has no starts.
    """
    if graph.forest is None and graph.num_edges > 0:
        return None
    half = graph.num_edges // 2
    first, second, kind = graph.senders[:half], graph.receivers[:half], graph.node_type
    inside = (kind[first] == kind[second]).astype(jnp.int32)
    incoming = jnp.zeros(graph.num_nodes, jnp.int32).at[second].add(inside)
    most = jnp.zeros(1 + max(v for v, *_ in graph.node_types), jnp.int32).at[kind].max(incoming)
    return (incoming == 0) & (most[kind] <= 1)


def starts_by_type(graph: Graph) -> dict[int, NDArray[np.bool_]]:
    """Return {node type: mask of the starts [node_of_type]} of the node types that have some, of a known graph."""
    with jax.ensure_compile_time_eval():
        found = start_nodes(graph)
    if found is None:
        return {}
    mask, kind = np.asarray(found), np.asarray(graph.node_type)
    return {v: mask[kind == v] for v, *_ in graph.node_types if mask[kind == v].any()}


class StartSamples(Checked):
    """Samples of the starts of a node type and of its other nodes, counted at points.

    Attributes:
        points: the points [point, *dim].
        own: number of samples of starts at each point [point].
        others: the same of other nodes [point].
        unit: what one sample of a start counts for: 1, or more if some of them were selected.
    """

    points: Shaped[Array, "point *dim"]
    own: Float[Array, " point"]
    others: Float[Array, " point"]
    unit: Float[Array, ""]


def start_samples(own: NDArray, others: NDArray) -> StartSamples | None:
    """Return the counted samples of starts [sample, *dim] and of other nodes; None if one of them has none.

    Numbers are counted on levels: their distinct values, or evenly spaced ones and quantiles of the starts. Of other
    values, some samples are selected.
    """
    own, others = np.asarray(own), np.asarray(others)
    counts = len(own), len(others)
    if 0 in counts:
        return None
    own, others = (x[random_rows(len(x), MANY if x.ndim == 1 else most)] for x, most in zip((own, others), SOME))
    weights = counts[0] / len(own), counts[1] / len(others)
    levels = _levels(own, others) if own.ndim == 1 else None
    if levels is None:
        own, others = (x[random_rows(len(x), most)] for x, most in zip((own, others), SOME))
        weights = counts[0] / len(own), counts[1] / len(others)
        at_points = np.repeat(weights[0], len(own)), np.repeat(weights[1], len(others))
        zeros = np.zeros(len(own)), np.zeros(len(others))
        points = np.concatenate([own, others])
        columns = np.concatenate([at_points[0], zeros[1]]), np.concatenate([zeros[0], at_points[1]])
    else:
        points = levels
        between = (levels[1:].astype(float) + levels[:-1].astype(float)) / 2
        columns = tuple(
            weight * np.bincount(np.searchsorted(between, x.astype(float)), minlength=len(levels))
            for x, weight in zip((own, others), weights)
        )
    dtype = jnp.result_type(float)
    return StartSamples(_checks.to_jax(points), *(_checks.to_jax(x, dtype) for x in (*columns, np.array(weights[0]))))


def _levels(own: NDArray, others: NDArray) -> NDArray | None:
    """Return sorted numbers; None for integers with too many values."""
    distinct = np.unique(np.concatenate([own, others]))
    if len(distinct) <= LEVELS:
        return distinct
    if not np.issubdtype(distinct.dtype, np.floating):
        return None
    near = distinct[~are_far(distinct)]
    quantiles = np.quantile(own, (np.arange(LEVELS // 4) + 0.5) / (LEVELS // 4))
    return np.unique(np.concatenate([np.linspace(near[0], near[-1], LEVELS), quantiles]).astype(distinct.dtype))


class Start(Checked):
    """The marginal of the starts of a node type, relative to that of all its nodes.

    Attributes:
        samples: the samples of starts and of other nodes.
        kernel: the kernel.
        power: the power to which its normalized values are raised.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.learning.starts import Start, start_samples
        >>> start = Start(start_samples(np.array([0, 0, 0, 1]), np.array([1, 1, 1, 1])), kbp.Delta(), 1.0)
        >>> np.exp(start.log_ratio(np.array([0, 1]))).round(2).tolist()  # 3/4 over 3/8, 1/4 over 5/8, drawn to 1
        [1.89, 0.47]
    """

    samples: StartSamples
    kernel: Kernel
    power: Float[Array, ""]

    def __init__(self, samples: StartSamples, kernel: Kernel, power: float | Array):
        self.samples, self.kernel, self.power = samples, kernel, jnp.asarray(power, samples.own.dtype)

    def log_ratio(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, " sample"]:
        """Return the logarithms of p_1 / P* at points [sample, *dim]."""
        own, others = (
            matmul(_raised(self._near(x), self.power), one) for one in (self.samples.own, self.samples.others)
        )
        return _log_ratio(own, others, jnp.sum(self.samples.own), jnp.sum(self.samples.others))

    def _near(self, x: Array) -> Float[Array, "sample point"]:
        """Return the normalized values of the kernel between points and those of the samples, in [0, 1]."""
        points = self.samples.points
        x = like(jnp.asarray(x), points.dtype)
        norms = jnp.sqrt(diagonal(self.kernel, x)[:, None] * diagonal(self.kernel, points)[None])
        values = gram(self.kernel, x, points) / jnp.where(norms > 0, norms, 1)
        return jnp.clip(values, 0, 1).astype(self.samples.own.dtype)

    @values_or_shapes
    def __repr__(self) -> str:
        own, others = (float(jnp.sum(one)) for one in (self.samples.own, self.samples.others))
        return f"Start({own:.0f} samples of starts, {others:.0f} of other nodes, power {float(self.power):.3g})"


def _raised(near: Array, power: Array) -> Array:
    """Return values to a power; 0 stays 0, with a derivative of 0."""
    return jnp.where(near > 0, jnp.where(near > 0, near, 1) ** power, 0)


def _log_ratio(own: Array, others: Array, count: Array, count_others: Array) -> Array:
    """Return log p_1 / P* from the sums over samples of starts and of other nodes, and the numbers of these."""
    every = own + others
    ratio = jnp.where(every > 0, own / jnp.where(every > 0, every, 1), 0) * (count + count_others)
    return jnp.log((ratio + PRIOR) / (count + PRIOR))


class _Gain(NamedTuple):
    """Mean of log p_1 / P* at samples of starts that were left out, its standard error, and the best power."""

    mean: Array
    error: Array
    power: Array


@quick_jit
def gain(samples: StartSamples, kernel: Kernel) -> _Gain:
    """Return how much likelier samples of starts are under p_1 than under P*, each left out, at the best power."""
    own, unit = samples.own, samples.unit
    near = Start(samples, kernel, 1.0)._near(samples.points)
    count, count_others = jnp.sum(own), jnp.sum(samples.others)
    there = own > 0

    def at(power: Array) -> tuple[Array, Array]:
        sums = (matmul(_raised(near, power), one) for one in (own, samples.others))
        ratios = _log_ratio(jnp.maximum(next(sums) - unit, 0), next(sums), count - unit, count_others)
        mean = jnp.sum(jnp.where(there, own * ratios, 0)) / count
        variance = jnp.sum(jnp.where(there, own * (ratios - mean) ** 2, 0)) / count
        return mean, jnp.sqrt(variance * unit / count)

    powers = jnp.asarray(POWERS, own.dtype)
    means, errors = jax.lax.map(at, powers)
    best = jnp.argmax(means)
    return _Gain(means[best], errors[best], jax.lax.stop_gradient(powers[best]))


def learn_start(samples: StartSamples, kernel: Kernel) -> Start:
    """Return the marginal of starts, with the power of the kernel that explains their samples best."""
    return Start(samples, kernel, gain(samples, kernel).power)


def differs(samples: StartSamples, kernel: Kernel) -> bool:
    """Return whether the samples of starts differ clearly from those of all nodes."""
    mean, error, _ = gain(samples, kernel)
    return bool(mean > CLEAR[0]) and bool(mean > CLEAR[1] * error)


def require_starts(argument: str, node_types: Sequence[int], data: Any) -> None:
    """Raise ValueError unless training data have samples of the starts of node types, which have no own margins."""
    rule = f"must be of node types whose nodes form directed chains or trees, here {sorted(data.starts)}"
    fix = "Pass data of kbpjax.pool, where each node has at most one incoming edge, or starts='pooled'."
    _checks.require(set(node_types) <= set(data.starts), argument, rule, sorted(node_types), fix)
    margins, fix = sorted(set(node_types) & set(data.margins)), "Pass margins='type', or starts='pooled'."
    _checks.require(not margins, argument, "must be of node types without own margins", margins, fix)


@jax.jit
def start_factors(starts: dict[int, Start], points: dict[int, Array], graph: Graph, local: Array) -> Array:
    """Return local factors [node, point] times those of the starts at the evaluation points."""
    found = start_nodes(graph)
    for v, count, *_ in graph.node_types:
        if v in starts and found is not None:
            nodes, size = graph.nodes_of_type(v), len(points[v])
            logs = jnp.where(found[nodes][:, None], starts[v].log_ratio(points[v])[None], 0)
            local = local.at[nodes, :size].multiply(jnp.exp(logs).astype(local.dtype))
    return local


def add_start(start: Start | None, graph: Graph, node_type: int, logs: Array, points: Array) -> Array:
    """Return logarithms at points with those of the starts of a node type.

    Args:
        start: the marginal of the starts; None: nothing is added.
        graph: the graph.
        node_type: the node type.
        logs: logarithms [node_of_type, point].
        points: common points [point, *dim], or those of all nodes after each other [node point, *dim].
    """
    found = None if start is None else start_nodes(graph)
    if start is None or found is None:
        return logs
    own = start.log_ratio(points).reshape(-1, logs.shape[1]).astype(logs.dtype)
    return logs + jnp.where(found[graph.nodes_of_type(node_type)][:, None], own, 0)
