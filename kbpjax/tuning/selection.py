"""Hyperparameters from training data alone: medians of distances, or closed-form scores of the learned operators.

They need training data alone, take seconds, and are where `tune` should start.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from kbpjax import _checks
from kbpjax.kernels import RBF, median_bandwidth
from kbpjax.learning.data import TrainingData
from kbpjax.learning.embedding import mean_embedding
from kbpjax.learning.rules import Rule, build_bases
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.parameters import Numbers, descend
from kbpjax.tuning.scores import leave_one_out


def median_hyperparameters(data: TrainingData, **options: Any) -> Hyperparameters:
    """Return settings with RBF kernels at the median distance between samples and between observations (section 7).

    Args:
        data: training data.
        options: other fields of `Hyperparameters`; unless given, `ridge` is 1 / (number of pairs of an edge type) for
            each, and `obs_ridge` likewise.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.arange(40.0).reshape(20, 2)
        >>> settings = kbp.median_hyperparameters(kbp.pool(kbp.chain_graph(2), x, observations=2 * x), num_iters=3)
        >>> float(settings.kernel[0].bandwidth), float(settings.obs_kernel[0].bandwidth)
        (12.0, 24.0)
    """
    guessed = {
        "kernel": {v: RBF(median_bandwidth(x)) for v, x in data.nodes.items()},
        "obs_kernel": {v: RBF(median_bandwidth(y)) for v, (_, y) in data.observations.items()} or None,
        "ridge": {k: 1 / len(x) for k, (x, _) in data.edges.items()} or 1e-3,
        "obs_ridge": {v: 1 / len(x) for v, x in data.nodes.items()},
    }
    return Hyperparameters(**{**guessed, **options})


def select(
    settings: Hyperparameters,
    data: TrainingData,
    *,
    score: Callable[..., Array] = leave_one_out,
    frozen: Callable[[Hyperparameters], Any] = lambda settings: (),
    steps: int = 60,
    every: int = 15,
) -> Hyperparameters:
    """Choose kernels and ridges by how well each learned operator predicts pairs that it has not seen.

    The sum of scores of all operators, of edges in both directions and of observations, falls by gradient descent (Adam
    at 0.1, landmarks chosen anew every few steps). All predict the features of the kernels in `settings`, which stay
    what they are compared by, as a share of these features' variance. It does not see how messages are multiplied, and
    where loops lead: `tune` does.

    Args:
        settings: where to start, for instance `median_hyperparameters(data)`; only the numbers of kernels and ridges
            are changed.
        data: training data.
        score: `kbpjax.tuning.scores.leave_one_out` or `generalized_cross_validation`.
        frozen: function from settings to those parts of them that are not to be chosen.
        steps: steps, >= 1.
        every: steps after which landmarks are chosen anew, >= 1.

    Returns:
        The settings of least score.

    Raises:
        ValueError: an option out of range, data without any pairs, or scores that are not finite.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(100, 1)) + 0.1 * rng.normal(size=(100, 4))
        >>> start = kbp.Hyperparameters(kbp.RBF(8.0), ridge=1e-1)
        >>> chosen = kbp.select(start, kbp.pool(kbp.chain_graph(4), x), steps=20)
        >>> bool(chosen.ridge < start.ridge)
        True
    """
    _checks.require_count("steps", steps)
    _checks.require_count("every", every)
    fix = "Pass kbpjax.tuning.scores.leave_one_out or generalized_cross_validation."
    _checks.require(callable(score), "score", "must be a function", repr(score), fix)
    some = bool(data.ends or data.observations)
    fix = "There is nothing to choose by."
    _checks.require(some, "data", "must have pairs of edges or of observations", "none", fix)
    rest = lambda s: (s.floor, s.damping, s.exponents, s.evidence_power, s.temperature)
    learned = Numbers.of(settings, lambda s: (rest(s), frozen(s)))
    parts = _targets(settings, data)
    optimizer = optax.adam(0.1)

    @jax.jit
    def advance(free: list[Array], state: Any, rule: Rule, data: TrainingData) -> tuple[list[Array], Any, Array]:
        value, slopes = jax.value_and_grad(lambda f: _total(learned.settings(f), rule, data, parts, score))(free)
        return *descend(optimizer, slopes, state, free), value

    hold = jax.jit(lambda free, data: learned.settings(free).fix_landmarks(data))
    free = best = learned.free()
    state, rule, least = optimizer.init(free), None, np.inf
    for step in range(steps):
        rule = hold(free, data) if step % every == 0 else rule
        after, state, value = advance(free, state, rule, data)
        if value < least:
            best, least = free, float(value)
        free = after
    _checks.require(bool(np.isfinite(least)), "settings", "must give finite scores", least, "Start with wider kernels.")
    return learned.settings(best)


def _targets(settings: Hyperparameters, data: TrainingData) -> tuple[dict, dict]:
    """Return what is to be predicted: the features of samples and of observations, scaled to variance 1."""
    nodes, seen = build_bases(data, settings.kernel, settings.obs_kernel, settings.rule)
    observed = {v: _scaled(basis, data.observations[v][1]) for v, (basis, _) in seen.items()}
    return {v: _scaled(basis.messages, data.nodes[v]) for v, basis in nodes.items()}, observed


def _scaled(basis: Any, x: Array) -> Callable[[Array], Array]:
    """Scale features so that their variance over samples is 1."""
    center = mean_embedding(basis, x)
    square = mean_embedding(lambda one: jnp.sum((basis(one) - center[None]) ** 2, axis=1, keepdims=True), x)
    return lambda one: basis(one) * jax.lax.rsqrt(square)[None]


def _total(
    settings: Hyperparameters, rule: Rule, data: TrainingData, targets: tuple[dict, dict], score: Callable
) -> Array:
    """Sum the scores of all operators."""
    ridges, obs_ridges = settings.ridge, settings.ridge if settings.obs_ridge is None else settings.obs_ridge
    nodes, seen = build_bases(data, settings.kernel, settings.obs_kernel, rule)
    of_nodes, of_observations = targets
    total = []
    for k, a, b in data.ends:
        ridge = ridges[k] if isinstance(ridges, dict) else ridges
        first, second = data.edges[k]
        total.append(score(nodes[a].messages, of_nodes[b], first, second, ridge))
        total.append(score(nodes[b].messages, of_nodes[a], second, first, ridge))
    for v, (x, y) in data.observations.items():
        ridge = obs_ridges[v] if isinstance(obs_ridges, dict) else obs_ridges
        total.append(score(nodes[v].messages, of_observations[v], x, y, ridge))
        total.append(score(seen[v][0], of_nodes[v], y, x, ridge))
    dtype = jnp.result_type(*total)
    return jnp.sum(jnp.stack([value.astype(dtype) for value in total]))
