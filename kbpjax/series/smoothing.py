"""Smoothing, forecasts and paths: states given all observations, states to come, and joint draws of both."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit
from kbpjax._public import public
from kbpjax.learning.labels import Values
from kbpjax.posterior.draws import sample
from kbpjax.posterior.evidence import Evidence, observe
from kbpjax.posterior.infer import infer
from kbpjax.posterior.posterior import Posterior
from kbpjax.series.filtering import Filtered, filter, observations
from kbpjax.series.model import SeriesModel, State


@public
def smooth(model: SeriesModel, y: Values, *, times: Any = None, steps: int = 0) -> Posterior:
    """Return the posterior of all states given all observations, and of some steps to come.

    It is `kbpjax.infer` on a chain of the length of the series: exact messages, forward and back.

    Args:
        model: the model, of `fit`.
        y: observations, as in `filter`.
        times: steps of the observations, as in `filter`.
        steps: number of steps to append to the end, without observations, >= 0.

    Returns:
        The posterior; node t is time t. Several series have a leading axis, as of `jax.vmap`.

    Raises:
        ValueError: as `filter`.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> gap = np.where((np.arange(60) > 20) & (np.arange(60) < 25), np.nan, x[:60])
        >>> low, high = kbp.interval(series.smooth(series.fit(x), gap), 0.9)
        >>> low.shape, bool((high - low)[22] > (high - low)[10])  # wider in the gap
        ((60,), True)
    """
    _checks.require(_checks.is_whole(steps) and steps >= 0, "steps", "must be an integer >= 0", steps, "Pass 10.")
    values, single, _ = observations("y", model, y, times)
    graph = model.chain(values.shape[1] + steps)

    def of_one(y: Array) -> Posterior:
        evidence = _padded(observe(model.model, model.apart(len(y)), y), steps)
        return infer(model.model, graph, evidence=evidence).showing(model.shown)

    return of_one(values[0]) if single else jax.vmap(of_one)(values)


def _padded(evidence: Evidence, steps: int) -> Evidence:
    """Return the evidence of a series that continues for `steps` steps without observations."""
    if steps == 0:
        return evidence
    arrays = evidence.local, evidence.messages, evidence.observed, evidence.clamped
    local, messages, observed, clamped = _longer(arrays, steps)
    return Evidence(local, messages, observed, evidence.exponents, evidence.likelihoods, clamped, evidence.values)


@partial(quick_jit, static_argnames="steps")
def _longer(arrays: tuple[Array, ...], steps: int) -> list[Array]:
    """Return the arrays of evidence with steps more, which say nothing."""
    pads = zip(arrays, (0, 1, 1, 0), (1, 0, False, False), strict=True)  # the axis of time, and the value after the end
    at = lambda x, axis: [(0, steps * (i == axis)) for i in range(x.ndim)]
    return [jnp.pad(x, at(x, axis), constant_values=value) for x, axis, value in pads]


@public
def forecast(model: SeriesModel, past: Values | State | Filtered, steps: int, *, times: Any = None) -> Posterior:
    """Return the posterior of the next states, given the past.

    Args:
        model: the model.
        past: observations, as in `filter`, or the state that `filter` or `update` returned.
        steps: number of steps, >= 1.
        times: steps of the observations, as in `filter`.

    Returns:
        The posterior; node t is t + 1 steps after the last time of each series. `kbpjax.sample` draws joint scenarios
        from it.

    Raises:
        ValueError: as `filter`.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> posterior = series.forecast(series.fit(x), x[:50], 8)
        >>> kbp.mean(posterior).shape, kbp.interval(posterior, 0.9)[0].shape
        ((8,), (8,))
    """
    _checks.require_count("steps", steps)
    if isinstance(past, Filtered):
        past = past.state
    fix = "Pass the observations, or the state after them: series.filter(model, y).state."
    ok = not isinstance(past, Posterior)
    _checks.require(ok, "past", "must be observations, or a state", type(past).__name__, fix)
    if not isinstance(past, State):
        past = filter(model, past, times=times).state
    else:
        _checks.require(times is None, "times", "must be None with a state", "times", "Pass the observations.")
    graph, own = model.chain(steps), model.without_starts()

    def of_one(state: State) -> Posterior:
        first = jnp.arange(steps) == 0
        evidence = model.started(graph, first & ~state.begun)
        rank = evidence.messages.shape[2]
        message = jnp.pad(state.message, (0, rank - len(state.message)))
        point = evidence.local.shape[1]
        values = jnp.maximum(matmul(model.evaluate, state.message), model.floor.astype(message.dtype))
        values = jnp.pad(values, (0, point - len(values)), constant_values=1)
        there = first & state.begun
        factor = Evidence(
            jnp.where(there[:, None], values[None], 1).astype(evidence.local.dtype),
            jnp.where(there[:, None], message[None], 0)[None],
            there[None],
            jnp.ones(1, evidence.local.dtype),
            (),
            jnp.zeros(steps, bool),
            {},
        )
        return infer(own, graph, evidence=evidence * factor).showing(model.shown)

    return jax.vmap(of_one)(past) if past.begun.ndim else of_one(past)


@public
def sample_paths(
    model: SeriesModel, y: Values, key: PRNGKeyArray, num_samples: int, *, steps: int = 0, times: Any = None
) -> Any:
    """Return paths of the states drawn from their joint posterior, and their continuations.

    Args:
        model: the model.
        y: observations, as in `filter`.
        key: random key.
        num_samples: number of paths of each series, >= 1.
        steps: number of steps to append to the end, >= 0.
        times: steps of the observations, as in `filter`.

    Returns:
        The paths [sample, time, *dim]; of several series [series, sample, time, *dim].

    Raises:
        ValueError: as `filter` and `kbpjax.sample`.

    Examples:
        >>> import jax, numpy as np
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> paths = series.sample_paths(series.fit(x), x[:50], jax.random.key(0), 100, steps=8)
        >>> paths.shape, bool((paths[:, 50:].max(axis=1) > 1.5).mean() < 0.2)  # probability of exceeding 1.5
        ((100, 58), True)
    """
    return sample(smooth(model, y, times=times, steps=steps), key, num_samples)
