"""Losses of beliefs for `tune`: averages over the nodes whose true value is known, differentiable in the beliefs.

A true value that is NaN is unknown.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit
from kbpjax._public import Checked
from kbpjax.posterior.beliefs import Belief, log_or_zero
from kbpjax.posterior.intervals import quantile
from kbpjax.posterior.posterior import Posterior, as_belief
from kbpjax.posterior.summaries import NodeBelief, each_node, known_values, mean

PAIRS = 2**20
"""Number of pairs of candidates whose distances are in memory at a time where each node has its own candidates."""


class SquaredError(Checked):
    """The squared error of the posterior mean.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> float(kbp.SquaredError()(belief, jnp.array([1.5])))  # or loss=kbp.SquaredError() in kbp.tune
        0.25
    """

    def __call__(self, belief: Belief | Posterior, truth: Shaped[Array, "node *dim"]) -> Float[Array, ""]:
        """Return the mean loss over nodes."""
        belief = as_belief(belief)
        values, known = known_values(belief, truth)
        _checks.require_squares("truth", values)
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

    def __call__(self, belief: Belief | Posterior, truth: Shaped[Array, "node *dim"]) -> Float[Array, ""]:
        """Return the mean loss over nodes."""
        belief = as_belief(belief)
        values, known = known_values(belief, truth)
        weights = jnp.maximum(_nearest_weights(belief, values), jnp.finfo(values.dtype).tiny)
        return -_average(log_or_zero(weights), known)


@jax.jit
def _nearest_weights(belief: Belief, values: Array) -> Array:
    def of_node(one: NodeBelief, value: Array) -> Array:
        squares = (value[None] - one.points.astype(value.dtype)) ** 2
        return one.weights[jnp.argmin(jnp.sum(squares.reshape(len(squares), -1), axis=-1))]

    return each_node(belief, of_node, values)


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

    holds_nan = True  # true values that are unknown
    coverage: float = eqx.field(static=True, default=0.9, converter=float)

    def __check_init__(self) -> None:
        _checks.require_number("coverage", self.coverage, above=0, below=1)

    def __call__(self, belief: Belief | Posterior, truth: Shaped[Array, "node *one"]) -> Float[Array, ""]:
        """Return the mean score over nodes, for scalar points [point] or [point, 1]."""
        belief = as_belief(belief)
        scalar = belief.dim in ((), (1,))
        fix = "Use CRPS() or NegativeLogBelief()."
        _checks.require(scalar, "belief", "must have scalar points", f"shape {belief.points.shape}", fix)
        values, known = known_values(belief, truth)
        dtype, outside = belief.weights.dtype, 1 - self.coverage
        values = values.reshape(-1)
        points = belief.points.astype(dtype)  # of integers, there is no interpolation
        points = points.reshape(points.shape[: 1 + belief.own_points])
        floats = Belief.trusted(points, belief.weights, own_points=belief.own_points)
        low, high = (quantile(floats, level) for level in (outside / 2, 1 - outside / 2))
        penalty = jnp.maximum(low - values, 0) + jnp.maximum(values - high, 0)
        return _average(high - low + 2 / outside * penalty, known)


class CRPS(Checked):
    """The continuous ranked probability score; for vectors, the energy score (Gneiting and Raftery 2007, eqs. 21, 22).

    E||X - x|| - E||X - X'|| / 2, with the true value x and independent X and X' of the belief, in the units of the
    variable. It is a proper score: the true distribution minimizes its expectation. With all weight at one point it is
    the distance of that point from the true value.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> points, truth = jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0])
        >>> rows = ([0.0, 1.0, 0.0], [0.25, 0.5, 0.25], [0.5, 0.0, 0.5])  # sharp, wider, wrong
        >>> [float(kbp.CRPS()(kbp.Belief(points, jnp.array([row])), truth)) for row in rows]
        [0.0, 0.125, 0.5]
    """

    def __call__(self, belief: Belief | Posterior, truth: Shaped[Array, "node *dim"]) -> Float[Array, ""]:
        """Return the mean score over nodes."""
        belief = as_belief(belief)
        values, known = known_values(belief, truth)
        weights, values = belief.weights, values.reshape(len(values), -1)
        points = belief.points.astype(weights.dtype)
        points = points.reshape(*points.shape[: 1 + belief.own_points], -1)
        if points.shape[-1] > 1:
            if belief.own_points:
                return _average(_energy_scores(weights, points, values), known)
            return _average(energy_score(weights, _distances(values, points), _distances(points, points)), known)
        return _average(_crps(belief, values), known)


@jax.jit
def _crps(belief: Belief, values: Array) -> Array:
    """Return the continuous ranked probability score of each node, for numbers, at its true value [node, 1]."""

    def of_node(one: NodeBelief, value: Array) -> Array:
        points = one.points.reshape(-1).astype(value.dtype)
        order = jnp.argsort(points)
        below = jnp.cumsum(one.weights[order])[:-1]
        spread = matmul(below * (1 - below), jnp.diff(points[order]))  # E|X - X'| / 2, without points x points
        return jnp.sum(one.weights * jnp.abs(value - points)) - spread

    return each_node(belief, of_node, values)


@quick_jit
def energy_score(
    weights: Float[Array, "node point"], to_truth: Float[Array, "node point"], between: Float[Array, "point point"]
) -> Float[Array, " node"]:
    """Return E d(X, x) - E d(X, X') / 2 of each node, from distances d to the true values and between points."""
    return jnp.sum(weights * to_truth, axis=1) - jnp.sum(matmul(weights, between) * weights, axis=1) / 2


@jax.jit
def _energy_scores(
    weights: Float[Array, "node point"], points: Float[Array, "node point dim"], values: Float[Array, "node dim"]
) -> Float[Array, " node"]:
    """Return the energy score of each node on its own points, for some nodes at a time to bound memory."""

    @jax.checkpoint
    def of_node(row: tuple[Array, Array, Array]) -> Array:
        weights, points, value = row
        return energy_score(weights[None], _distances(value[None], points), _distances(points, points))[0]

    return jax.lax.map(of_node, (weights, points, values), batch_size=max(PAIRS // points.shape[1] ** 2, 1))


@quick_jit
def _distances(x: Float[Array, "left dim"], y: Float[Array, "right dim"]) -> Float[Array, "left right"]:
    """Return the distances between two sets of points, with gradient 0 where points coincide."""
    squares = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
    apart = squares > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1)), 0)


@quick_jit
def _average(losses: Float[Array, " node"], known: Bool[Array, " node"]) -> Float[Array, ""]:
    """Return the mean loss over the nodes with a known value."""
    count = jnp.maximum(jnp.sum(known, dtype=losses.dtype), 1)
    return jnp.sum(jnp.where(known, losses, 0)) / count
