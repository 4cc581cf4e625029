"""Quantiles, credible intervals and sets of beliefs, for scalars, angles and any domain; coverage of true values.

Each takes {node type: belief} too, and then returns {node type: result}.
"""

import math
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.summaries import (
    NodeBelief,
    by_type,
    check_belief,
    each_node,
    keep_nan,
    known_values,
    refuse_nan,
    require_numbers,
)

TWO_PI = 2 * math.pi


@by_type
def quantile(belief: Belief, level: ScalarLike) -> Shaped[Array, "node *dim"]:
    """Return a quantile of each node.

    For points that are floats, the cumulative distribution is interpolated linearly between the points, with half of
    each weight below its point. The result is between the smallest and the largest point, and differentiable in the
    weights, the points and the level. For integer points, it is the smallest point at which the cumulative
    distribution reaches the level.

    Points should be distinct; `marginal` merges repeated points.

    Args:
        belief: beliefs on scalar points [point] or [point, 1].
        level: probability in [0, 1].

    Raises:
        ValueError: points that are not scalar, or a level outside [0, 1].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> weights = jnp.array([[0.25, 0.5, 0.25]])
        >>> round(float(kbp.quantile(kbp.Belief(jnp.array([0.0, 1.0, 2.0]), weights), 0.65)[0]), 2)
        1.4
        >>> kbp.quantile(kbp.Belief(jnp.array([0, 1, 2]), weights), 0.65).tolist()
        [1]
    """
    _check_scalar(belief)
    _checks.require_number("level", level, least=0, most=1)
    refuse_nan(belief)
    return _quantile(belief, jnp.asarray(level, belief.weights.dtype))


@jax.jit
def _quantile(belief: Belief, level: Array) -> Array:
    def of_node(one: NodeBelief) -> Array:
        order = jnp.argsort(one.points.reshape(-1))
        points, weights = one.points[order], one.weights[order]
        if jnp.issubdtype(points.dtype, jnp.floating):
            return _interpolated(points, weights, level)
        below = jnp.cumsum(weights)
        # The last sum may be below 1 by rounding, and a level of 1 must still be reached.
        return points[jnp.argmax(below >= jnp.minimum(level, below[-1]))]

    return keep_nan(belief, each_node(belief, of_node))


def _interpolated(points: Array, weights: Array, level: Array) -> Array:
    """Return a quantile of one node, interpolated between its sorted points."""
    place, share = _locate(weights, level)
    before, after = points[jnp.maximum(place - 1, 0)], points[place]
    return before + share.astype(points.dtype) * (after - before)


def _locate(weights: Array, level: Array) -> tuple[Array, Array]:
    """Return where the cumulative distribution of the sorted points of one node reaches a level.

    Returns:
        The index of the point at which it is reached, >= 1, and the share of the way there from the point before.
    """
    below = jnp.cumsum(weights) - weights / 2
    wanted = jnp.minimum(level, below[-1])
    place = jnp.argmax(below >= wanted)
    place = jnp.clip(place, min(1, len(weights) - 1), None)
    before, after = below[jnp.maximum(place - 1, 0)], below[place]
    rises = (after > before) & (wanted >= before)
    return place, jnp.where(rises, (wanted - before) / jnp.where(rises, after - before, 1), 0)


@by_type
def interval(belief: Belief, coverage: ScalarLike = 0.9) -> tuple[Array, Array]:
    """Return the central credible interval of each node: the quantiles (1 - coverage) / 2 and (1 + coverage) / 2.

    As for `quantile`, ends are interpolated between points that are floats, and are points if these are integers.

    Args:
        belief: beliefs on scalar points.
        coverage: probability inside, in [0, 1].

    Returns:
        Lower and upper ends, [node] or [node, 1] each.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.arange(5.0), jnp.array([[0.05, 0.2, 0.5, 0.2, 0.05]]))
        >>> [round(float(end[0]), 2) for end in kbp.interval(belief, 0.9)]
        [0.2, 3.8]
    """
    _checks.require_number("coverage", coverage, least=0, most=1)
    return quantile(belief, (1 - coverage) / 2), quantile(belief, (1 + coverage) / 2)


@partial(by_type, of_nodes=("truth",), shared=("levels",))
def coverage(
    belief: Belief, truth: Numbers | Mapping[int, Numbers], levels: Numbers = (0.5, 0.9)
) -> Float[Array, " level"]:
    """Return the empirical coverage: the share of true values inside the central intervals of some levels.

    Beliefs are calibrated if each share is near its level. For integer points, `interval` is wider than its level, so
    shares are larger.

    Args:
        belief: beliefs on scalar points [point] or [point, 1].
        truth: the true value of each node [node] or [node, 1]; NaN where unknown. For beliefs by type {node type:
            values}.
        levels: nominal coverages [level], in [0, 1].

    Returns:
        The shares [level], NaN if no true value is known. A belief that is NaN holds no true value.

    Raises:
        ValueError: points that are not scalar, true values of another shape, or a level outside [0, 1].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.linspace(-2.0, 2.0, 5), jnp.tile(jnp.array([0.1, 0.2, 0.4, 0.2, 0.1]), (4, 1)))
        >>> kbp.coverage(belief, jnp.array([0.1, -0.2, 1.5, jnp.nan]), levels=[0.5, 0.9]).round(2).tolist()
        [0.67, 1.0]
    """
    _check_scalar(belief)
    refuse_nan(belief)
    values, known = known_values(belief, _checks.as_array("truth", truth))
    nominal = _checks.as_array("levels", levels)
    _checks.require(nominal.ndim == 1, "levels", "must have shape [level]", f"shape {nominal.shape}", "Pass [0.9].")
    if not _checks.is_unread(nominal):
        for level in np.asarray(nominal):
            _checks.require_number("levels", level, least=0, most=1)
    return _coverage(belief, values, known, nominal.astype(belief.weights.dtype))


@jax.jit
def _coverage(belief: Belief, values: Array, known: Array, levels: Array) -> Array:
    def share(level: Array) -> Array:
        low, high = (_quantile(belief, end).astype(values.dtype) for end in ((1 - level) / 2, (1 + level) / 2))
        inside = ((low <= values) & (values <= high)).reshape(-1)
        return jnp.sum(inside & known, dtype=values.dtype) / jnp.sum(known, dtype=values.dtype)

    return jax.lax.map(share, levels)


@by_type
def circular_mean(belief: Belief, period: ScalarLike = TWO_PI) -> Float[Array, "node *dim"]:
    """Return the circular mean of each node, coordinate by coordinate, in [-period / 2, period / 2].

    It is the direction of the mean of the points on the unit circle. It is undefined if that mean is 0, as for two
    opposite points of equal weight; the result is then 0 or determined by rounding.

    Args:
        belief: beliefs on angles, or on other periodic numbers.
        period: period of the numbers, > 0, for instance 24 for hours.

    Raises:
        ValueError: period out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> hours = kbp.Belief(jnp.array([1.0, 22.0]), jnp.array([[0.5, 0.5]]))
        >>> (kbp.circular_mean(hours, 24.0) % 24).round(2).tolist()
        [23.5]
    """
    check_belief(belief)
    require_numbers(belief)
    return _circular_mean(belief, _checks.in_range("period", period, belief.weights.dtype))


@jax.jit
def _circular_mean(belief: Belief, period: Array) -> Array:
    return keep_nan(belief, each_node(belief, lambda one: _circular_mean_of(one, period)))


def _circular_mean_of(one: NodeBelief, period: Array) -> Array:
    angles = TWO_PI * (jnp.mod(one.points.astype(one.weights.dtype), period) / period)
    sine, cosine = (einsum("p,p...->...", one.weights, wave(angles)) for wave in (jnp.sin, jnp.cos))
    undefined = (sine == 0) & (cosine == 0)
    return jnp.arctan2(sine, jnp.where(undefined, 1, cosine)) * (period / TWO_PI)


@by_type
def circular_interval(
    belief: Belief, coverage: ScalarLike = 0.9, period: ScalarLike = TWO_PI
) -> tuple[Float[Array, "node *one"], Float[Array, "node *one"]]:
    """Return a credible arc of each node, with equal probability outside at both ends.

    The circle is cut opposite to the circular mean, and the ends are the quantiles of the deviations from that mean.
    So the arc contains the circular median, and for a narrow belief it equals `interval`, also across the seam. If a
    belief has several separated modes, `highest_density` is smaller.

    Args:
        belief: beliefs on scalar angles, or on other periodic numbers, [point] or [point, 1].
        coverage: probability inside, in [0, 1].
        period: period of the numbers, > 0.

    Returns:
        Lower and upper ends, [node] or [node, 1] each, with lower <= upper <= lower + period. Either may be outside
        [-period / 2, period / 2]; x is inside where (x - lower) % period <= upper - lower.

    Raises:
        ValueError: points that are not scalar; coverage or period out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> hours = kbp.Belief(jnp.array([22.0, 23.0, 0.0, 1.0, 2.0]), jnp.full((1, 5), 0.2))
        >>> [end.round(2).tolist() for end in kbp.circular_interval(hours, 0.4, 24.0)]
        [[-1.0], [1.0]]
    """
    _check_scalar(belief)
    _checks.require_number("coverage", coverage, least=0, most=1)
    dtype = belief.weights.dtype
    return _circular_interval(belief, jnp.asarray(coverage, dtype), _checks.in_range("period", period, dtype))


@jax.jit
def _circular_interval(belief: Belief, coverage: Array, period: Array) -> tuple[Array, Array]:
    def of_node(one: NodeBelief) -> tuple[Array, ...]:
        points = one.points.astype(one.weights.dtype)
        center = _circular_mean_of(one, period)
        deviations = (jnp.mod(points - center[None] + period / 2, period) - period / 2).reshape(-1)
        order = jnp.argsort(deviations)
        deviations, weights = deviations[order], one.weights[order]
        levels = (1 - coverage) / 2, (1 + coverage) / 2
        return tuple(center + _interpolated(deviations, weights, level) for level in levels)

    low, high = each_node(belief, of_node)
    return keep_nan(belief, low), keep_nan(belief, high)


@by_type
def highest_density(belief: Belief, coverage: ScalarLike = 0.9) -> Bool[Array, "node point"]:
    """Return the smallest set of points of each node whose weights add to the coverage, on any domain.

    It contains the points of largest density. It may consist of several regions, one for each mode. Points that are
    vectors should represent equal volumes, as those of an evenly spaced grid, or be samples.

    Args:
        belief: the beliefs.
        coverage: probability inside, in [0, 1].

    Returns:
        A mask of the points in the set [node, point]; no point for a belief that is NaN.

    Raises:
        ValueError: coverage out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.arange(5.0), jnp.array([[0.4, 0.05, 0.1, 0.05, 0.4]]))
        >>> belief.points[kbp.highest_density(belief, 0.75)[0]].tolist()
        [0.0, 4.0]
    """
    check_belief(belief)
    _checks.require_number("coverage", coverage, least=0, most=1)
    return _highest_density(belief.weights, belief.heights, jnp.asarray(coverage, belief.weights.dtype))


@jax.jit
def _highest_density(weights: Array, heights: Array, coverage: Array) -> Array:
    order = jnp.argsort(-heights, axis=-1)
    total = jnp.cumsum(jnp.take_along_axis(weights, order, axis=-1), axis=-1)
    before = jnp.pad(total[:, :-1], ((0, 0), (1, 0)))
    inside = before < jnp.minimum(coverage, total[:, -1:])
    return jnp.take_along_axis(inside, jnp.argsort(order, axis=-1), axis=-1)


def _check_scalar(belief: Belief) -> None:
    check_belief(belief)
    require_numbers(belief)
    scalar = belief.dim in ((), (1,))
    fix = "Use kbpjax.marginal(belief, coordinate), or mean and std."
    _checks.require(scalar, "belief", "must have scalar points", f"points of shape {belief.points.shape}", fix)
