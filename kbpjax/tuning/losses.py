"""Losses of beliefs for `tune`: averages over the nodes whose true value is known, differentiable in the beliefs.

A true value that is NaN is unknown.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from kbpjax import _checks
from kbpjax._public import Checked
from kbpjax.posterior.beliefs import Belief, log_or_zero
from kbpjax.posterior.intervals import quantile
from kbpjax.posterior.summaries import mean


class SquaredError(Checked):
    """The squared error of the posterior mean.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> float(kbp.SquaredError()(belief, jnp.array([1.5])))  # or loss=kbp.SquaredError() in kbp.tune
        0.25
    """

    def __call__(self, belief: Belief, truth: Shaped[Array, "node *dim"]) -> Float[Array, ""]:
        """Return the mean loss over nodes."""
        values, known = _known(belief, truth)
        squares = (mean(belief) - values) ** 2
        return _average(jnp.sum(squares.reshape(len(squares), -1), axis=1), known)


class NegativeLogBelief(Checked):
    """The negative logarithm of the weight at the evaluation point nearest to the true value.

    The weight of one point depends on the spacing of the points: compare losses only on the same points.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> round(float(kbp.NegativeLogBelief()(belief, jnp.array([0.9]))), 4)  # -log 0.5
        0.6931
    """

    def __call__(self, belief: Belief, truth: Shaped[Array, "node *dim"]) -> Float[Array, ""]:
        """Return the mean loss over nodes."""
        values, known = _known(belief, truth)
        dtype = belief.weights.dtype
        points, values = (a.reshape(len(a), -1).astype(dtype) for a in (belief.points, values))
        nearest = jnp.argmin(jnp.sum((values[:, None] - points[None]) ** 2, axis=-1), axis=-1)
        weights = jnp.take_along_axis(belief.weights, nearest[:, None], axis=-1)
        return -_average(log_or_zero(jnp.maximum(weights, jnp.finfo(dtype).tiny))[:, 0], known)


class IntervalScore(Checked):
    """The interval score (Gneiting and Raftery 2007): interval width, plus a penalty if the true value lies outside.

    It is a proper score: the true quantiles minimize its expectation. It rewards narrow and calibrated central
    intervals. Quantiles are interpolated between evaluation points.

    Args:
        coverage: nominal coverage of the central interval, in (0, 1).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> score = kbp.IntervalScore(coverage=0.5)
        >>> [round(float(score(belief, jnp.array([truth]))), 2) for truth in (1.0, 3.0)]  # penalty: 4 per unit
        [1.33, 6.67]
    """

    coverage: float = eqx.field(static=True, default=0.9, converter=float)

    def __check_init__(self) -> None:
        _checks.require_number("coverage", self.coverage, above=0, below=1)

    def __call__(self, belief: Belief, truth: Shaped[Array, "node *one"]) -> Float[Array, ""]:
        """Return the mean score over nodes, for scalar points [point] or [point, 1]."""
        scalar = belief.points.shape[1:] in ((), (1,))
        fix = "Use SquaredError() or NegativeLogBelief()."
        _checks.require(scalar, "belief", "must have scalar points", f"shape {belief.points.shape}", fix)
        values, known = _known(belief, truth)
        dtype, outside = belief.weights.dtype, 1 - self.coverage
        values = values.reshape(-1)
        floats = Belief(belief.points.reshape(-1).astype(dtype), belief.weights)  # for integers it does not interpolate
        low, high = (quantile(floats, level) for level in (outside / 2, 1 - outside / 2))
        penalty = jnp.maximum(low - values, 0) + jnp.maximum(values - high, 0)
        return _average(high - low + 2 / outside * penalty, known)


def _average(losses: Float[Array, " node"], known: Bool[Array, " node"]) -> Float[Array, ""]:
    """Return the mean loss over the nodes with a known value."""
    count = jnp.maximum(jnp.sum(known, dtype=losses.dtype), 1)
    return jnp.sum(jnp.where(known, losses, 0)) / count


def _known(belief: Belief, truth: Array) -> tuple[Array, Bool[Array, " node"]]:
    """Return the true values, 0 where they are NaN, in the precision of the belief, and a mask of the known ones."""
    shape = (len(belief.weights), *belief.points.shape[1:])
    fix = "Pass one value per node, each with the shape of a point."
    _checks.require(truth.shape == shape, "truth", f"must have shape {shape}", truth.shape, fix)
    values = truth.astype(belief.weights.dtype)
    known = jnp.all(~jnp.isnan(values).reshape(len(values), -1), axis=1)
    return jnp.where(jnp.isnan(values), 0, values), known
