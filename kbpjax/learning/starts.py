r"""Starts: nodes without an incoming edge, whose marginal may differ from that of the other nodes.

An edge points from its first to its second end. Where no node has more than one incoming edge from nodes of its type,
the nodes of a type form chains and trees that begin at the nodes without one, such as the first values of time series:

$$p(x) = \prod_{\text{starts}} p_1(x_s) \prod_{s \to t} p(x_t | x_s).$$

The operators are relative to P*, the marginal of all nodes of the type, and beliefs begin with it. So starts have the
factor p_1(x) / P*(x) as their own. Both densities are estimated with the same kernel, the model's raised to a power,
which makes it narrower. That power is the one with the largest likelihood of the samples of starts, each left out.
Finally P* is mixed in, which counts for half a sample: no start is certain.

Of states, with pairs of one edge type, the marginals p_a and p_b of the first and second ends of the pairs are used,
too; in short chains, they differ from P*. The conditional of the joint distribution above is r(x_s, x_t) p_b(x_t), with
the ratio r of the pairs. So nodes with an incoming edge have the factor p_b / P*, and the columns of the operators are
multiplied by P* / p_a or P* / p_b, that of the sender's end. Estimates of densities are too noisy for that. On graphs
with cycles, and where a node has several incoming edges, none of this is used.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit, values_or_shapes
from kbpjax._public import Checked
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import Operators
from kbpjax.kernels import Delta, Kernel, diagonal, gram
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


class Places(NamedTuple):
    """Masks of the nodes that start chains and trees, and of those that follow [node]; neither where there are none."""

    first: Bool[Array, " node"]
    later: Bool[Array, " node"]


def places_of(graph: Graph) -> Places | None:
    """Return which nodes start chains and trees, by the edges within node types; None for a graph with a cycle.

    A node type of which a node has several incoming edges has neither.
    """
    if graph.forest is None and graph.num_edges > 0:
        return None
    half = graph.num_edges // 2
    first, second, kind = graph.senders[:half], graph.receivers[:half], graph.node_type
    inside = (kind[first] == kind[second]).astype(jnp.int32)
    incoming = jnp.zeros(graph.num_nodes, jnp.int32).at[second].add(inside)
    most = jnp.zeros(1 + max(v for v, *_ in graph.node_types), jnp.int32).at[kind].max(incoming)
    return Places((incoming == 0) & (most[kind] <= 1), (incoming == 1) & (most[kind] <= 1))


def starts_by_type(graph: Graph) -> dict[int, NDArray[np.bool_]]:
    """Return {node type: mask of the starts [node_of_type]} of the node types that have some, of a known graph."""
    if graph.forest is None and graph.num_edges > 0:
        return {}
    kind, half = np.asarray(graph.node_type), graph.num_edges // 2  # in NumPy, which compiles nothing
    first, second = np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]
    inside = kind[first] == kind[second]
    incoming = np.bincount(second[inside], minlength=graph.num_nodes)
    of_type = {v: kind == v for v, *_ in graph.node_types}
    chains = {v: mask for v, mask in of_type.items() if incoming[mask].max(initial=0) <= 1}
    starts = {v: incoming[mask] == 0 for v, mask in chains.items()}
    return {v: mask for v, mask in starts.items() if mask.any()}


class StartSamples(Checked):
    """Samples of the starts of a node type and of its other nodes, counted at points.

    Attributes:
        points: the points [point, *dim].
        own: number of samples of starts at each point [point].
        others: the same of other nodes [point].
        unit: what one sample of a start counts for: 1, or more if some of them were selected.
        ends: numbers of first and second ends of pairs at each point [end, point]; None for other values than a few
            numbers, or if pairs have several edge types.
    """

    points: Shaped[Array, "point *dim"]
    own: Float[Array, " point"]
    others: Float[Array, " point"]
    unit: Float[Array, ""]
    ends: Float[Array, "2 point"] | None = None


def start_samples(own: Any, others: Any, pairs: Sequence[tuple[Any, Any]] = ()) -> StartSamples | None:
    """Return the counted samples of starts [sample, *dim] and of other nodes; None if one of them has none.

    Numbers are counted on levels: their distinct values, or evenly spaced ones and quantiles of the starts. Of other
    values, some samples are selected.

    Args:
        own: samples of starts.
        others: samples of other nodes.
        pairs: first and second ends of the pairs of each edge type.
    """
    samples: list[NDArray] = [np.asarray(own), np.asarray(others)]
    if not all(map(len, samples)):
        return None
    numbers = samples[0].ndim == 1
    levels = _levels(*(_some(x, MANY) for x in samples)) if numbers else None
    chosen = [_some(x, most) for x, most in zip(samples, SOME if levels is None else (MANY, MANY), strict=True)]
    weights = [len(x) / len(some) for x, some in zip(samples, chosen, strict=True)]
    ends, dtype = None, jnp.result_type(float)
    if levels is None:
        points = np.concatenate(chosen)
        first = np.arange(len(points)) < len(chosen[0])
        counts = [weights[0] * first, weights[1] * ~first]
    else:
        points = levels
        counts = [weight * _counts(levels, x) for weight, x in zip(weights, chosen, strict=True)]
        if len(pairs) == 1 and len(levels) <= LEVELS:
            ends = _checks.to_jax(np.stack([_counts(levels, np.asarray(x)) for x in pairs[0]]), dtype)
    of_starts, of_others, unit = (_checks.to_jax(np.asarray(x), dtype) for x in (*counts, weights[0]))
    return StartSamples(_checks.to_jax(points), of_starts, of_others, unit, ends)


def _some(x: NDArray, most: int) -> NDArray:
    return x[random_rows(len(x), most)]


def _levels(own: NDArray, others: NDArray) -> NDArray | None:
    """Return sorted numbers; None for integers with too many values."""
    values = np.concatenate([own, others])
    distinct = np.unique(values)
    if len(distinct) <= LEVELS:
        return distinct
    if not np.issubdtype(distinct.dtype, np.floating):
        return None
    near = values[~are_far(values)]
    quantiles = np.quantile(own, (np.arange(LEVELS // 4) + 0.5) / (LEVELS // 4))
    return np.unique(np.concatenate([np.linspace(near.min(), near.max(), LEVELS), quantiles]).astype(distinct.dtype))


def _counts(levels: NDArray, x: NDArray) -> NDArray:
    """Return the number of samples nearest to each level."""
    between = (levels[1:].astype(float) + levels[:-1].astype(float)) / 2
    return np.bincount(np.searchsorted(between, x.astype(float)), minlength=len(levels))


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
        return self._log_ratio(self._weights(x), self.samples.own)

    def log_factors(self, x: Shaped[Array, "sample *dim"], places: Places) -> Float[Array, "node sample"]:
        """Return the logarithms of the factors of nodes at points: p_1 / P* of starts, and p_b / P* of those later."""
        near, ends = self._weights(x), self.samples.ends
        first = self._log_ratio(near, self.samples.own)
        later = jnp.zeros_like(first) if ends is None else self._log_ratio(near, ends[1])
        logs = jnp.where(places.later[:, None], later[None], jnp.zeros_like(later[None]))
        return jnp.where(places.first[:, None], first[None], logs)

    @property
    def counts_ends(self) -> bool:
        """Whether marginals of the ends of pairs are used."""
        return self.samples.ends is not None

    def scales(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "2 sample"]:
        """Return P* / p_a and P* / p_b at points; 1 where there are no pairs, or their ends are not counted."""
        if self.samples.ends is None:
            return jnp.ones((2, len(x)), self.power.dtype)
        near, ends = self._weights(x), self.samples.ends
        return jnp.stack([jnp.where(matmul(near, one) > 0, jnp.exp(-self._log_ratio(near, one)), 1) for one in ends])

    def _weights(self, x: Array) -> Float[Array, "sample point"]:
        """Return the kernel between points and those of the samples, normalized and raised to the power."""
        return _raised(self._near(x), self.power)

    def _log_ratio(self, near: Array, counts: Array) -> Float[Array, " sample"]:
        """Return the logarithms of the density of counted samples over P*."""
        every = self.samples.own + self.samples.others
        return _log_ratio(matmul(near, counts), matmul(near, every), jnp.sum(counts), jnp.sum(every))

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


class GivenStart(Checked):
    """Given probabilities of the states of starts (`kbp.with_transitions`).

    Attributes:
        states: the states, sorted [state].
        probabilities: their probabilities [state].

    Examples:
        >>> import numpy as np
        >>> from kbpjax.learning.starts import GivenStart
        >>> GivenStart(np.array([0, 1]), np.array([0.25, 0.75], np.float32)).factors(np.array([1, 0])).tolist()
        [0.75, 0.25]
    """

    states: Shaped[Array, " state"]
    probabilities: Float[Array, " state"]

    def factors(self, x: Shaped[Array, " sample"]) -> Float[Array, " sample"]:
        """Return the probabilities of states; 0 for others."""
        same = x[:, None] == self.states[None]
        return matmul(same.astype(self.probabilities.dtype), self.probabilities)

    def log_factors(self, x: Shaped[Array, " sample"], places: Places) -> Float[Array, "node sample"]:
        """Return the logarithms of the factors of nodes: probabilities of starts, and 1 of others."""
        logs = jnp.log(self.factors(x))[None]
        return jnp.where(places.first[:, None], logs, jnp.zeros_like(logs))

    @values_or_shapes
    def __repr__(self) -> str:
        return f"GivenStart({np.array2string(np.asarray(self.probabilities), precision=3, separator=', ')})"


def _raised(near: Array, power: Array) -> Array:
    """Return values to a power; 0 stays 0, with a derivative of 0."""
    return jnp.where(near > 0, jnp.where(near > 0, near, 1) ** power, 0)


def _log_ratio(some: Array, every: Array, count: Array, count_every: Array) -> Array:
    """Return the logarithm of a density over P*, from kernel sums over some samples and over all, and their numbers."""
    ratio = jnp.where(every > 0, some / jnp.where(every > 0, every, 1), 0) * count_every
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
    count, count_every = jnp.sum(own) - unit, jnp.sum(own) + jnp.sum(samples.others) - unit
    there = own > 0

    def at(power: Array) -> tuple[Array, Array]:
        some, others = (matmul(_raised(near, power), one) for one in (own, samples.others))
        some = jnp.maximum(some - unit, 0)
        ratios = _log_ratio(some, some + others, count, count_every)
        mean = jnp.sum(jnp.where(there, own * ratios, 0)) / jnp.sum(own)
        variance = jnp.sum(jnp.where(there, own * (ratios - mean) ** 2, 0)) / jnp.sum(own)
        return mean, jnp.sqrt(variance * unit / jnp.sum(own))

    powers = jnp.asarray(POWERS, own.dtype)
    means, errors = jax.lax.map(at, powers)
    best = jnp.argmax(means)
    return _Gain(means[best], errors[best], jax.lax.stop_gradient(powers[best]))


def learn_start(samples: StartSamples, kernel: Kernel, *, ends: bool = True) -> Start:
    """Return the marginal of starts, with the power of the kernel that explains their samples best.

    Args:
        samples: the samples.
        kernel: the kernel of the model.
        ends: whether the marginals of the ends of pairs are used, of states: values with the kernel `Delta`.
    """
    if not (ends and isinstance(kernel, Delta)):
        samples = StartSamples(samples.points, samples.own, samples.others, samples.unit)
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


@partial(jax.jit, static_argnames="edge_types")
def with_factors(
    starts: dict[int, Start | GivenStart],
    points: dict[int, Array],
    edge_types: tuple[tuple[int, int, int], ...],
    graph: Graph,
    operators: Operators,
    local: Float[Array, "node point"],
) -> tuple[Operators, Float[Array, "node point"]]:
    """Return operators and local factors with the marginals of starts, and of the ends of pairs.

    Args:
        starts: {node type: marginal of its starts}.
        points: {node type: evaluation points}.
        edge_types: (type, node type of first end, node type of second end) of each edge type of the operators.
        graph: the graph.
        operators: the operators.
        local: the local factors.
    """
    found = places_of(graph)
    if found is None:
        return operators, local
    project, tables = operators.project, operators.nonnegative
    for v in [v for v, *_ in graph.node_types if v in starts]:
        nodes, start, size = graph.nodes_of_type(v), starts[v], len(points[v])
        here = Places(*(mask[nodes] for mask in found))
        factors = jnp.exp(start.log_factors(points[v], here)).astype(local.dtype)
        local = local.at[nodes, :size].multiply(factors, unique_indices=True)
        if isinstance(start, GivenStart) or not start.counts_ends:
            continue
        for k in [k for k, *ends in edge_types if ends == [v, v]]:
            scales = jnp.where(jnp.any(here.later), start.scales(points[v]), 1).astype(project.dtype)[:, None]
            place = jnp.array([2 * k, 2 * k + 1]), slice(None), slice(size)
            project = project.at[place].multiply(scales, unique_indices=True)
            tables = None if tables is None else tables.at[place].multiply(scales, unique_indices=True)
    new = project, tables
    return eqx.tree_at(lambda o: (o.project, o.nonnegative), operators, new, is_leaf=lambda leaf: leaf is None), local


def add_factors(
    start: Start | GivenStart | None,
    graph: Graph,
    node_type: int,
    logs: Float[Array, "node point"],
    points: Shaped[Array, "..."],
) -> Float[Array, "node point"]:
    """Return logarithms at points plus those of the factors of the nodes of a type.

    Args:
        start: the marginal of the starts; None: nothing is added.
        graph: the graph.
        node_type: the node type.
        logs: logarithms of its nodes.
        points: common points [point, *dim], or those of all nodes after each other [node point, *dim].
    """
    found = None if start is None else places_of(graph)
    if start is None or found is None:
        return logs
    here = Places(*(mask[graph.nodes_of_type(node_type)] for mask in found))
    if len(points) == logs.shape[1]:
        return logs + start.log_factors(points, here).astype(logs.dtype)
    each = points.reshape(*logs.shape, *points.shape[1:])
    of_node = lambda x, first, later: start.log_factors(x, Places(first[None], later[None]))[0]
    return logs + jax.vmap(of_node)(each, *here).astype(logs.dtype)
