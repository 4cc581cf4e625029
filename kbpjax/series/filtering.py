"""Filtering: the belief of each state given the observations up to its time, one observation after another."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kbpjax import _checks
from kbpjax._misc import by_value, matmul, quick_jit
from kbpjax._public import Checked, public
from kbpjax.features import features
from kbpjax.inference.loopy import Solution
from kbpjax.inference.operators import exp_or_zero, finite_logs, log_or_zero, normalize, raise_logs
from kbpjax.kernels import RBF, Delta
from kbpjax.kernels.base import like
from kbpjax.learning.labels import Values, encode
from kbpjax.learning.patterns import PatternFeatures
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.evidence import Evidence, observe
from kbpjax.posterior.posterior import Posterior, leading
from kbpjax.series.dates import check_dates
from kbpjax.series.inputs import as_series
from kbpjax.series.model import SeriesModel, State, start


class Filtered(Checked):
    """What `filter` returns: beliefs given the past, predictive densities, and the state for what comes next.

    Attributes:
        posterior: the beliefs of all times given the observations up to each [time]; every summary takes it.
        log_densities: logarithms of the predictive density of each observation given those before it [time]; NaN where
            nothing was observed. Their sum compares models; low values are outliers.
        state: the state after the last time of each series, for `update` and `forecast`.

    With several series, all have a leading axis.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> found = series.filter(series.fit(x), x[:20])
        >>> kbp.mean(found.posterior).shape, found.log_densities.shape
        ((20,), (20,))
    """

    posterior: Posterior
    log_densities: Float[Array, "*series time"]
    state: State


@by_value
class Update(NamedTuple):
    """What `update` returns.

    Attributes:
        state: the state after the observation.
        belief: the belief of the present state, a `Belief` of one node.
        log_density: logarithm of the predictive density of the observation; NaN without one.
    """

    state: State
    belief: Belief
    log_density: Float[Array, ""]


@public
def update(model: SeriesModel, state: State, y: Values) -> Update:
    """Return the state and the belief after one more observation, in constant time.

    Compiled, a step takes some ten microseconds. Compile it with the model as a constant:
    `step = jax.jit(lambda state, y: series.update(model, state, y))`.

    Args:
        model: the model.
        state: the state before, of `start`, `filter` or an earlier `update`.
        y: the observation [*obs_dim]; NaN if it is missing.

    Raises:
        ValueError: an observation of another shape; as `kbpjax.observe`.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> model = series.fit(x)
        >>> step = jax.jit(lambda state, y: series.update(model, state, y))
        >>> state = series.start(model)
        >>> for y in x[:5]:
        ...     state, belief, log_density = step(state, y)
        >>> bool(abs(kbp.mean(belief)[0] - x[4]) < 0.2)
        True
    """
    encoded = y if isinstance(y, jax.Array) else encode("y", [y], dict(model.model.obs_labels).get(model.node_type))
    values = jnp.asarray(encoded[None] if isinstance(y, jax.Array) else _checks.as_array("y", encoded))
    evidence = observe(model.model, model.apart(1), values)
    density = _marginal_density(model, values, evidence)
    return _update(model, state, evidence.local[0], evidence.messages[0, 0], evidence.exponents[0], density[0])


def _update(model: SeriesModel, state: State, local: Array, observed: Array, power: Array, density: Array) -> Update:
    """Return one step; `local` and `observed` are the evidence at the points and as a message, 0 if missing."""
    floor, heat = model.floor, model.model.temperature.astype(local.dtype)
    place = jnp.where(state.begun, 1, 0)
    dtype, rank = local.dtype, model.at_points.shape[1]
    at = lambda message: log_or_zero(jnp.maximum(matmul(model.at_points, message[:rank]), floor.astype(dtype)))
    predicted = model.prior[place] + jnp.where(state.begun, at(state.message), 0)
    seen = jnp.any(observed != 0)
    factor = jnp.where(seen, raise_logs(at(observed), power.astype(dtype)), 0)
    spaces = 0 if model.lengths is None else log_or_zero(model.lengths)
    logs = predicted + factor
    belief = Belief.trusted(
        leading(model.points, model.shown),
        jax.nn.softmax(raise_logs(logs - finite_logs(jnp.max(logs)), 1 / heat) + spaces)[None],
        model.lengths,
        dict(model.model.labels).get(model.node_type),
    )
    size = jax.scipy.special.logsumexp
    before, prior = predicted + spaces, model.prior[1] + spaces
    gain = (size(before + factor) - size(before)) - (size(prior + factor) - size(prior))
    log_density = jnp.where(seen, gain + density, jnp.nan)
    values = jnp.maximum(matmul(model.evaluate, state.message), floor.astype(dtype))
    own = local[: model.factors.shape[1]] * model.factors[place]
    product = log_or_zero(own) + jnp.where(state.begun, log_or_zero(values), 0)
    product = exp_or_zero(product - finite_logs(jnp.max(product)))
    message = normalize(matmul(model.forth, product))
    return Update(State(message, jnp.array(True)), belief, log_density)


def _marginal_density(model: SeriesModel, y: Array, evidence: Evidence) -> Float[Array, " time"]:
    """Return the log marginal density of observations, smoothed by their kernel; 0 for kernels of unknown integral."""
    basis = model.model.observations[model.node_type].basis
    kernel = getattr(basis, "kernel", None)
    if isinstance(basis, PatternFeatures) or not isinstance(kernel, RBF | Delta):
        return jnp.zeros(len(y), evidence.local.dtype)
    floats = jnp.issubdtype(y.dtype, jnp.floating)
    there = jnp.all(~jnp.isnan(y).reshape(len(y), -1), axis=1) if floats else jnp.ones(len(y), bool)
    y = jnp.where(there.reshape(-1, *(1,) * (y.ndim - 1)), y, jnp.zeros_like(y))
    operator = model.model.observations[model.node_type].expectation
    messages = matmul(features(basis, like(y, basis.point.dtype)).astype(operator.dtype), operator.T)
    spaces = 0 if model.lengths is None else log_or_zero(model.lengths)
    weights = jax.nn.softmax(model.prior[1] + spaces).astype(operator.dtype)
    values = matmul(matmul(messages, model.at_points.astype(operator.dtype).T), weights)
    logs = jnp.log(jnp.maximum(values, jnp.finfo(values.dtype).tiny))
    if isinstance(kernel, RBF):
        axes = max(math.prod(basis.point.shape), 1)
        widths = jnp.broadcast_to(jnp.asarray(kernel.bandwidth), (axes,))
        logs = logs - (jnp.sum(jnp.log(widths)) + axes * math.log(2 * math.pi) / 2).astype(logs.dtype)
    return logs.astype(evidence.local.dtype)


@public
def filter(model: SeriesModel, y: Values, *, times: Any = None, state: State | None = None) -> Filtered:
    """Return the beliefs of all states given the observations up to their time.

    Args:
        model: the model, of `fit`.
        y: observations of one series [time, *obs_dim], of several [series, time, *obs_dim], or a list of series of
            several lengths; NaN where missing. Shorter series are continued without observations.
        times: steps at which the observations were made, increasing integers [time], or a list of them for each series.
            Answers are then of all steps, those without observations included. None: 0, 1, 2, ...
        state: the state before the first time, to continue a series, with a leading axis for several. None: the series
            begins.

    Raises:
        ValueError: observations of another shape, times that are not increasing integers, a state of another number
            of series.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> model = series.fit(x)
        >>> first, rest = series.filter(model, x[:50]), x[50:60]
        >>> later = series.filter(model, rest, state=first.state)
        >>> kbp.mean(later.posterior).shape
        (10,)
    """
    values, single, lengths = observations("y", model, y, times)
    shape = () if single else (len(values),)
    ok, fix = state is None or state.begun.shape == shape, "Pass the state that filter returned for these series."
    _checks.require(ok, "state", f"must have batch axes {shape}", getattr(state and state.begun, "shape", None), fix)
    begin = start(model) if state is None else state
    graph = model.apart(values.shape[1])
    of_one = lambda y, state, length: _filtered(model, graph, observe(model.model, graph, y), y, state, length)
    ends = jnp.asarray(np.array(lengths, np.int32))
    if single:
        return of_one(values[0], begin, ends[0])
    return jax.vmap(of_one, in_axes=(0, None if state is None else 0, 0))(values, begin, ends)


def observations(argument: str, model: SeriesModel, y: Values, times: Any) -> tuple[Any, bool, list[int]]:
    """Return observations as an array [series, time, *obs_dim], labels as codes, and what else `as_series` returns."""
    values, single, lengths = as_series(argument, y, model.obs_axes, times)
    check_dates(argument, y, times)
    labels = dict(model.model.obs_labels).get(model.node_type)
    if labels is not None:
        values = np.stack([encode(argument, row, labels) for row in values])
    return _checks.as_array(argument, values), single, lengths


def _filtered(model: SeriesModel, graph: Any, evidence: Evidence, y: Array, state: State, length: Array) -> Filtered:
    steps = _filter(model, evidence, y, state)
    messages, begun, log_densities, last = steps
    after = lambda before, end: jnp.concatenate([before, end[None]])[length]
    last = State(after(messages, last.message), after(begun, last.begun))
    both = evidence * model.started(graph, ~begun)
    past = Evidence(
        jnp.ones_like(both.local),
        _wide(messages, both.messages.shape[2])[None],
        begun[None],
        jnp.ones_like(both.exponents[:1]),
        (),
        jnp.zeros_like(both.clamped),
        {},
    )
    own = model.without_starts()
    none = jnp.zeros((0, evidence.messages.shape[2]), evidence.local.dtype)
    zero = jnp.zeros_like(log_densities, shape=())
    solution = Solution(none, jnp.array(True), jnp.int32(len(y)), zero, zero[None])
    posterior = Posterior.of(own, graph, both * past, solution).showing(model.shown)
    return Filtered(posterior, log_densities, last)


def _wide(messages: Array, rank: int) -> Array:
    return jnp.pad(messages, ((0, 0), (0, rank - messages.shape[1])))


@quick_jit
def _filter(
    model: SeriesModel, evidence: Evidence, y: Array, state: State
) -> tuple[Float[Array, "time rank"], Bool[Array, " time"], Float[Array, " time"], State]:
    """Return the message to each time, whether any time was before it, predictive densities, and the last state."""
    densities = _marginal_density(model, y, evidence)

    def step(state: State, row: tuple[Array, ...]) -> tuple[State, tuple[Array, ...]]:
        local, observed, density = row
        found = _update(model, state, local, observed, evidence.exponents[0], density)
        return found.state, (state.message, state.begun, found.log_density)

    rows = evidence.local, evidence.messages[0], densities
    last, (messages, begun, log_densities) = jax.lax.scan(step, state, rows)
    return messages, begun, log_densities, last
