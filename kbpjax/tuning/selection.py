"""Hyperparameters from training data only: the median heuristic, or closed-form scores of the learned operators.

Both take seconds and are good starting points for `tune`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.kernels import RBF, median_bandwidth
from kbpjax.learning.data import TrainingData
from kbpjax.learning.embedding import mean_embedding
from kbpjax.learning.rules import Rule, build_bases
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.parameters import FreeNumbers, descend
from kbpjax.tuning.scores import leave_one_out


@public
def median_hyperparameters(data: TrainingData, **options: Any) -> Hyperparameters:
    """Return hyperparameters with RBF kernels whose bandwidths are the median distances of samples (section 7).

    Args:
        data: training data.
        options: other fields of `Hyperparameters`. The default `ridge` of an edge type is 1 / (its number of pairs),
            and the default `obs_ridge` of a node type is 1 / (its number of samples).

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.arange(40.0).reshape(20, 2)
        >>> data = kbp.pool(kbp.chain_graph(2), x, observations=2 * x)
        >>> start = kbp.median_hyperparameters(data, num_iters=3)
        >>> float(start.kernel[0].bandwidth), float(start.obs_kernel[0].bandwidth)
        (12.0, 24.0)
    """
    defaults = {
        "kernel": {v: RBF(median_bandwidth(x)) for v, x in data.nodes.items()},
        "obs_kernel": {v: RBF(median_bandwidth(y)) for v, (_, y) in data.observations.items()} or None,
        "ridge": {k: 1 / len(x) for k, (x, _) in data.edges.items()} or 1e-3,
        "obs_ridge": {v: 1 / len(x) for v, x in data.nodes.items()},
    }
    return Hyperparameters(**{**defaults, **options})


@public
def select(
    hyperparameters: Hyperparameters,
    data: TrainingData,
    *,
    score: Callable[..., Array] = leave_one_out,
    frozen: Callable[[Hyperparameters], Any] = lambda hyperparameters: (),
    steps: int = 60,
    every: int = 15,
) -> Hyperparameters:
    """Return hyperparameters whose kernels and ridges minimize a held-out score of the learned operators.

    Gradient descent (Adam with learning rate 0.1) minimizes the sum of the scores of all operators: edges in both
    directions, and observations. Landmarks are selected again every few steps. All operators predict the features of
    the initial kernels; each error is relative to the variance of these features. The score ignores products of
    messages and loops, which `tune` includes.

    Args:
        hyperparameters: initial hyperparameters, for instance `median_hyperparameters(data)`; only the numbers of
            kernels and ridges are changed.
        data: training data.
        score: `kbpjax.tuning.scores.leave_one_out` or `generalized_cross_validation`.
        frozen: function that returns the parts of the hyperparameters to keep fixed.
        steps: number of steps, >= 1.
        every: number of steps between selections of landmarks, >= 1.

    Returns:
        The hyperparameters with the lowest score.

    Raises:
        ValueError: an option is out of range, the data have no pairs, or the scores are not finite.

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
    data = hyperparameters.standardized(data)
    fix = "Pass kbpjax.tuning.scores.leave_one_out or generalized_cross_validation."
    _checks.require(callable(score), "score", "must be a function", repr(score), fix)
    some = bool(data.ends or data.observations)
    fix = "The score needs pairs: pass edges or observations."
    _checks.require(some, "data", "must have pairs of edges or of observations", "none", fix)
    rest = lambda s: (s.floor, s.damping, s.exponents, s.evidence_power, s.temperature)
    learned = FreeNumbers.of(hyperparameters, lambda s: (rest(s), frozen(s)))
    parts = _targets(hyperparameters, data)
    optimizer = optax.adam(0.1)

    @jax.jit
    def advance(free: list[Array], state: Any, rule: Rule, data: TrainingData) -> tuple[list[Array], Any, Array]:
        value, slopes = jax.value_and_grad(lambda f: _total(learned.hyperparameters(f), rule, data, parts, score))(free)
        return *descend(optimizer, slopes, state, free), value

    free = best = learned.free()
    state, rule, lowest = optimizer.init(free), None, np.inf
    for step in range(steps):
        if step % every == 0:
            rule = learned.hyperparameters(free).fix_landmarks(data, pad=True)
        after, state, value = advance(free, state, rule, data)
        if value < lowest:
            best, lowest = free, float(value)
        free = after
    fix = "Start with wider kernels."
    _checks.require(bool(np.isfinite(lowest)), "hyperparameters", "must give finite scores", lowest, fix)
    return learned.hyperparameters(best)


def _targets(hyperparameters: Hyperparameters, data: TrainingData) -> tuple[dict, dict]:
    """Return the target features of samples and of observations, scaled to variance 1."""
    nodes, obs_bases = build_bases(data, hyperparameters.kernel, hyperparameters.obs_kernel, hyperparameters.rule)
    observed = {v: _scaled(basis, data.observations[v][1]) for v, (basis, _) in obs_bases.items()}
    return {v: _scaled(basis.messages, data.nodes[v]) for v, basis in nodes.items()}, observed


def _scaled(basis: Any, x: Array) -> Callable[[Array], Array]:
    """Return the feature map scaled to variance 1 over samples."""
    center = mean_embedding(basis, x)
    square = mean_embedding(lambda one: jnp.sum((basis(one) - center[None]) ** 2, axis=1, keepdims=True), x)
    return lambda one: basis(one) * jax.lax.rsqrt(square)[None]


def _total(
    hyperparameters: Hyperparameters, rule: Rule, data: TrainingData, targets: tuple[dict, dict], score: Callable
) -> Array:
    """Return the sum of the scores of all operators."""
    ridges = hyperparameters.ridge
    obs_ridges = ridges if hyperparameters.obs_ridge is None else hyperparameters.obs_ridge
    nodes, obs_bases = build_bases(data, hyperparameters.kernel, hyperparameters.obs_kernel, rule)
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
        total.append(score(obs_bases[v][0], of_nodes[v], y, x, ridge))
    total = [_checks.as_array("score", value) for value in total]
    dtype = jnp.result_type(*total)
    return jnp.sum(jnp.stack([value.astype(dtype) for value in total]))
