"""Posterior summaries of the beliefs of nodes: point estimates, variances, expectations.

Every summary takes a `Posterior`, or a belief. It also takes {node type: belief}, as `beliefs` returns for points given
by type, or a posterior with several node types, and then returns {node type: summary}. Its other arguments may then be
{node type: argument}. Of a posterior with batch axes, summaries have these axes, too.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, overload, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum, quick_jit
from kbpjax._public import public
from kbpjax.learning.labels import decode
from kbpjax.posterior.beliefs import Belief, log_or_zero, raise_logs, spacing
from kbpjax.posterior.posterior import Posterior

Options = ParamSpec("Options")
Result = TypeVar("Result")


class NodeBelief(NamedTuple):
    """The belief of one node, the argument of a function that `each_node` maps.

    Attributes:
        points: candidates [point, *dim].
        weights: probabilities [point].
        lengths: lengths of the intervals of the candidates [point], or None.
    """

    points: Array
    weights: Array
    lengths: Array | None


def each_node(belief: Belief, summary: Callable[..., Any], *rows: Array) -> Any:
    """Return a summary of each node, mapped over the nodes; common points are not copied for each node.

    Args:
        belief: the beliefs.
        summary: function of a `NodeBelief` and of an entry of each of `rows`.
        rows: arrays [node, ...].

    Returns:
        The summaries [node, ...].
    """
    own = 0 if belief.own_points else None
    parts = NodeBelief(belief.points, belief.weights, belief.lengths)
    axes = NodeBelief(own, 0, 0 if belief.lengths is not None and belief.lengths.ndim == 2 else None)  # type: ignore
    return jax.vmap(summary, in_axes=(axes, *(0 for _ in rows)))(parts, *rows)


@runtime_checkable
class Summary(Protocol[Options, Result]):
    """A function of a posterior, of one belief, or of {node type: belief}."""

    @overload
    def __call__(self, belief: Posterior, *args: Options.args, **options: Options.kwargs) -> Any: ...

    @overload
    def __call__(self, belief: Belief, *args: Options.args, **options: Options.kwargs) -> Result: ...

    @overload
    def __call__(
        self, belief: Mapping[int, Belief], *args: Options.args, **options: Options.kwargs
    ) -> dict[int, Result]: ...


def by_type(
    summary: Callable[Concatenate[Belief, Options], Result],
    *,
    has_points: bool = False,
    of_nodes: tuple[str, ...] = (),
    shared: tuple[str, ...] = (),
) -> Summary[Options, Result]:
    """Return a summary that also takes a posterior or {node type: belief}, and arguments as {node type: argument}.

    With `has_points`, its values are candidates, and are returned as labels if the candidates are codes of labels. For
    a posterior with batch axes, arguments in `of_nodes` and `shared` are read as in `Posterior.map_cases`.
    """
    signature = inspect.signature(summary)
    checked: Any = public(summary)
    call: Any = wraps(checked)(lambda b, *args, **options: with_labels(b, checked(b, *args, **options)))
    call = call if has_points else checked

    @wraps(call)
    def apply(belief: Any, *args: Any, **options: Any) -> Any:
        if isinstance(belief, Posterior):
            _, *given = signature.bind(belief, *args, **options).arguments.items()
            found = belief.map_cases(apply, dict(given), of_nodes, shared)
            return with_labels(belief, found) if has_points and belief.batch else found
        if not isinstance(belief, Mapping):
            return call(belief, *args, **options)

        def pick(value: Any, v: int) -> Any:
            if not isinstance(value, Mapping):
                return value
            fix = "Pass one for each node type of the beliefs."
            _checks.require(v in value, call.__name__, f"must have arguments of node type {v}", list(value), fix)
            return value[v]

        return {
            v: call(one, *(pick(arg, v) for arg in args), **{name: pick(arg, v) for name, arg in options.items()})
            for v, one in belief.items()
        }

    return apply


def with_labels(belief: Any, values: Any) -> Any:
    """Return candidates as labels where they are codes of labels; unchanged under tracing."""
    if isinstance(belief, Posterior):
        return (
            {v: with_labels(belief.by_type[v], x) for v, x in values.items()}
            if isinstance(values, dict)
            else (with_labels(next(iter(belief.by_type.values())), values))
        )
    labels = getattr(belief, "labels", None)
    return values if labels is None or _checks.is_traced(values) else decode(values, labels)


@partial(by_type, has_points=True)
def node_modes(belief: Belief) -> Shaped[Array, "node *dim"]:
    """Return the mode of each node (see `kbpjax.mode`)."""
    check_belief(belief)
    refuse_nan(belief)
    return _mode(belief)


@jax.jit
def _mode(belief: Belief) -> Array:
    return keep_nan(belief, chosen_points(belief, jnp.argmax(belief.heights, axis=-1)))


def chosen_points(belief: Belief, places: Array) -> Array:
    """Return the candidates of each node at some places [node, ...], numbers of candidates."""
    return each_node(belief, lambda one, places: one.points[places], places)


@by_type
def mean(belief: Belief) -> Float[Array, "node *dim"]:
    """Return the posterior mean of each node, for numeric points or vectors.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.mean(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.25, 0.75]])))[0]), 2)
        0.75
    """
    check_belief(belief)
    require_numbers(belief)
    return _mean(belief)


@jax.jit
def _mean(belief: Belief) -> Array:
    return each_node(belief, _mean_of)


def _mean_of(one: NodeBelief) -> Array:
    return einsum("p,p...->...", one.weights, one.points.astype(one.weights.dtype))


@by_type
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
    check_belief(belief)
    require_numbers(belief)
    fix = "Use kbpjax.variance, or reshape the points to vectors."
    got = f"points of shape {belief.points.shape}"
    _checks.require(len(belief.dim) == 1, "belief", "must have points [point, dim]", got, fix)
    return _covariance(belief)


@jax.jit
def _covariance(belief: Belief) -> Array:
    def of_node(one: NodeBelief) -> Array:
        deviations = one.points.astype(one.weights.dtype) - _mean_of(one)[None]
        return einsum("p,pi,pj->ij", one.weights, deviations, deviations)

    return each_node(belief, of_node)


@by_type
def temper(belief: Belief, temperature: ScalarLike) -> Belief:
    """Return beliefs proportional to belief ** (1 / temperature): wider above 1, narrower below.

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
    check_belief(belief)
    temperature = jnp.asarray(_checks.in_range("temperature", temperature, belief.weights.dtype))
    weights = _tempered(belief, temperature)
    return Belief.trusted(belief.points, weights, belief.lengths, belief.labels, belief.own_points)


@quick_jit
def _tempered(belief: Belief, temperature: Array) -> Array:
    logs = log_or_zero(belief.heights)
    logs = logs - jax.lax.stop_gradient(jnp.max(logs, axis=-1, keepdims=True))  # else -inf at low temperatures
    raised = raise_logs(logs, 1 / temperature)
    lengths = belief.lengths_by_node
    if lengths is not None:
        raised = raised + log_or_zero(lengths)
    return jax.nn.softmax(raised, axis=-1)


@by_type
def node_expectations(
    belief: Belief, fn: Callable[[Array], Array] | Mapping[int, Callable[[Array], Array]]
) -> Float[Array, "node *value"]:
    """Return E[fn(X) | evidence] of each node (see `kbpjax.expectation`)."""
    check_belief(belief)
    _checks.require(callable(fn), "fn", "must be a function of a point", repr(fn), "Pass for instance lambda x: x**2.")

    def of_point(x: Array) -> Array:
        try:
            return _checks.as_array("fn", fn(x))  # type: ignore[operator]
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):  # they say themselves what to do
            raise
        except (IndexError, TypeError) as error:
            text = f"fn: must take one point, of shape {x.shape}; it raised {type(error).__name__}: {error}. "
            raise ValueError(text + "For a function of several nodes, pass their numbers as nodes=.") from error

    at_points = jax.vmap(of_point)
    values = (jax.vmap(at_points) if belief.own_points else at_points)(belief.points)
    return einsum(f"np,{'n' * belief.own_points}p...->n...", belief.weights, values.astype(belief.weights.dtype))


@by_type
def variance(belief: Belief) -> Float[Array, "node *dim"]:
    """Return the posterior variance of each node, coordinate by coordinate, in squared units of the points.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.variance(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.5, 0.5]])))[0]), 2)
        0.25
    """
    check_belief(belief)
    require_numbers(belief)
    return _variance(belief)


@jax.jit
def _variance(belief: Belief) -> Array:
    def of_node(one: NodeBelief) -> Array:
        deviations = (one.points.astype(one.weights.dtype) - _mean_of(one)[None]) ** 2
        return einsum("p,p...->...", one.weights, deviations)

    return each_node(belief, of_node)


@by_type
def std(belief: Belief) -> Float[Array, "node *dim"]:
    """Return the posterior standard deviation of each node, coordinate by coordinate, in units of the points.

    Its gradient is taken as 0 where it is 0.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kbp.std(kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.5, 0.5]]))).tolist()
        [0.5]
    """
    check_belief(belief)
    require_numbers(belief)
    return _std(belief)


@jax.jit
def _std(belief: Belief) -> Array:
    squares = _variance(belief)
    is_zero = squares == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squares)))


@by_type
def entropy(belief: Belief) -> Float[Array, " node"]:
    """Return the entropy of the weights of each node, -sum_i w_i log w_i, in nats.

    It depends on the points: it is 0 if one point has all weight, and the logarithm of the number of points if all
    weights are equal. Compare entropies only on the same points.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0]), jnp.array([[0.5, 0.5], [1.0, 0.0]]))
        >>> [round(float(nats), 4) for nats in kbp.entropy(belief)]
        [0.6931, 0.0]
    """
    check_belief(belief)
    return _entropy(belief)


@jax.jit
def _entropy(belief: Belief) -> Array:
    is_zero = belief.weights == 0
    return 0 - jnp.sum(belief.weights * jnp.log(jnp.where(is_zero, 1, belief.weights)), axis=-1)  # not -0


@by_type
def marginal(belief: Belief, coordinate: int = 0) -> Belief:
    """Return the belief of one coordinate of vectors, on its distinct values in ascending order.

    The weights of points with the same value are added. For scalar points, this merges repeated points. Differentiable
    in the weights. The points must be known: outside `jax.jit`, or constants inside. If each node has its own points,
    those of all nodes must have the same order, and the same ones equal, as scaled and shifted copies of one grid do.

    Args:
        belief: beliefs on points [point, dim] or [point].
        coordinate: number of the coordinate, counted from 0.

    Raises:
        ValueError: points that are not vectors or numbers, or that are traced; a coordinate that they do not have; own
            points in another order for some nodes.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> plane = jnp.array([[0.0, 5.0], [1.0, 5.0], [0.0, 6.0], [1.0, 6.0]])
        >>> one = kbp.marginal(kbp.Belief(plane, jnp.array([[0.25, 0.25, 0.5, 0.0]])), 1)
        >>> one.points.tolist(), one.weights.tolist()
        ([5.0, 6.0], [[0.5, 0.5]])
    """
    check_belief(belief)
    shape, dim = belief.points.shape, belief.dim
    fix = "Reshape the points to vectors."
    _checks.require(len(dim) <= 1, "belief", "must have points [point, dim] or [point]", f"shape {shape}", fix)
    count = 1 if len(dim) == 0 else dim[0]
    ok = isinstance(coordinate, int | np.integer) and 0 <= coordinate < count
    _checks.require(ok, "coordinate", f"must be one of {count} coordinates", repr(coordinate), "Count from 0.")
    fix = "Call it outside jax.jit, jax.vmap or jax.grad, or create the points outside."
    _checks.require(not _checks.is_traced(belief.points), "belief", "must have known points", "a tracer", fix)
    column = np.asarray(belief.points).reshape(*shape[: len(shape) - len(dim)], count)[..., coordinate]
    values, place = _distinct(column) if belief.own_points else np.unique(column, return_inverse=True)
    weights = _merge(belief.weights, place.reshape(-1), values.shape[-1])
    return Belief.trusted(jnp.asarray(values), weights, own_points=belief.own_points)


def _distinct(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values of each node in ascending order, and the place of each candidate among them [point].

    The order is that of the node whose values are best resolved: a narrow range far from 0 may have rounded some to
    be equal.

    Args:
        column: values of the candidates of each node [node, point].
    """
    if not len(column):
        return column, np.arange(column.shape[1])
    width = np.nan_to_num(np.ptp(column, axis=1).astype(float))
    widest = np.argmax(width / np.maximum(np.abs(column).max(axis=1), np.finfo(np.float32).tiny))
    _, first, place = np.unique(column[widest], return_index=True, return_inverse=True)
    values, slack = column[:, first], 1e-4 * width[:, None]
    differs = np.any(np.abs(column - values[:, place]) > slack, axis=1) | np.any(
        np.diff(values, axis=1) < -slack, axis=1
    )
    nodes, fix = np.flatnonzero(differs)[:3].tolist(), "Call it for each node: marginal(belief[node], coordinate)."
    rule = "must have points in the same order for all nodes"
    _checks.require(not nodes, "belief", rule, f"another order for nodes {nodes}", fix)
    return values, place


@partial(jax.jit, static_argnames="count")
def _merge(weights: Array, place: Array, count: int) -> Array:
    return jnp.zeros((len(weights), count), weights.dtype).at[:, place].add(weights)


@partial(by_type, of_nodes=("x",))
def log_density(belief: Belief, x: Numbers | Mapping[int, Numbers]) -> Float[Array, " node"]:
    """Return the log density of each node at one value per node, interpolated linearly between the points.

    The mean over nodes at the true values is the log score of the beliefs.

    Args:
        belief: beliefs on at least two distinct scalar points [point]; their spacing is taken into account.
        x: a value for each node [node]; for beliefs by type {node type: values}. The result is -inf outside the range
            of the points.

    Raises:
        ValueError: points that are not scalar, or x of another shape.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> round(float(jnp.exp(kbp.log_density(belief, jnp.array([1.5])))[0]), 2)
        0.5
    """
    check_belief(belief)
    require_numbers(belief)
    values = _checks.as_array("x", x)
    _checks.require_finite("x", values, "Leave out nodes without a true value: belief[nodes].")
    scalar = belief.dim in ((), (1,)) and belief.num_points > 1
    got, fix = f"points of shape {belief.points.shape}", "For vectors compare kbpjax.log_belief at some points."
    _checks.require(scalar, "belief", "must have two scalar points or more", got, fix)
    shape = belief.weights.shape[:1]
    _checks.require(values.shape == shape, "x", f"must have shape {shape}", values.shape, "Give a value for each node.")
    return _log_density(belief, values)


@jax.jit
def _log_density(belief: Belief, values: Array) -> Array:
    def density(one: NodeBelief, value: Array) -> Array:
        points = one.points.reshape(-1).astype(one.weights.dtype)
        order = jnp.argsort(points)
        lengths = spacing(one.points).astype(points.dtype) if one.lengths is None else one.lengths
        heights = one.weights / jnp.where(lengths > 0, lengths, 1)
        points, heights = points[order], heights[order]
        area = jnp.sum((heights[1:] + heights[:-1]) / 2 * jnp.diff(points))
        return jnp.interp(value, points, heights, left=0, right=0) / area

    return keep_nan(belief, log_or_zero(each_node(belief, density, values.astype(belief.weights.dtype))))


def check_belief(belief: Belief) -> None:
    """Raise ValueError unless weights are [node, point]."""
    shape, count = belief.weights.shape, belief.points.shape[belief.own_points]
    fix = "For a batch of beliefs, call this inside the function that jax.vmap maps."
    _checks.require(len(shape) == 2 and shape[1] == count, "belief", f"must have weights [node, {count}]", shape, fix)


def require_numbers(belief: Belief) -> None:
    """Raise ValueError if the candidates are codes of labels, which have no mean or quantile."""
    got = f"{len(belief.labels or ())} labels"
    fix = "Use kbpjax.mode, or belief.weights, the probabilities; for the numbers of another node type v, posterior[v]."
    _checks.require(belief.labels is None, "belief", "must be of numbers", got, fix)


def refuse_nan(belief: Belief) -> None:
    """Raise ValueError for a NaN belief at integer points, since integers have no NaN."""
    if not jnp.issubdtype(belief.points.dtype, jnp.floating) and not _checks.is_traced(belief.weights):
        has_nan = bool(np.isnan(np.asarray(belief.weights)).any())
        fix = "See the page on troubleshooting for causes of NaN; with float points, summaries are NaN instead."
        _checks.require(not has_nan, "belief", "must have no NaN where points are integers", "NaN", fix)


def keep_nan(belief: Belief, summary: Array) -> Array:
    """Return the summary with NaN for nodes whose belief is NaN; integers are unchanged."""
    if not jnp.issubdtype(summary.dtype, jnp.floating):
        return summary
    is_nan = jnp.isnan(belief.weights).any(axis=-1).reshape(-1, *(1,) * (summary.ndim - 1))
    return jnp.where(is_nan, jnp.nan, summary)


def known_values(belief: Belief, truth: Array) -> tuple[Array, Bool[Array, " node"]]:
    """Return the true values, 0 where they are NaN, in the precision of the belief, and a mask of the known ones."""
    check_belief(belief)
    shape = (len(belief.weights), *belief.dim)
    fix = "Pass one value per node, each with the shape of a point."
    _checks.require(truth.shape == shape, "truth", f"must have shape {shape}", truth.shape, fix)
    values = truth.astype(belief.weights.dtype)
    _checks.require_finite_or_nan("truth", values)
    return _without_nan(values)


@quick_jit
def _without_nan(values: Array) -> tuple[Array, Array]:
    missing = jnp.isnan(values)
    return jnp.where(missing, 0, values), ~jnp.any(missing.reshape(len(values), -1), axis=1)
