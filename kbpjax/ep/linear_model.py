"""Expectation propagation in linear models: weights w, z_i = w'x_i, and a factor between each z_i and a child.

The evidence of a child is a message to its factor: Beta(1 + y, 2 - y) for a label y and the logistic factor. The sites
(messages of the factors to z) are Gaussian, and so is the posterior of w.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Key, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul, show_fields
from kbpjax._public import Checked, finite, public
from kbpjax.ep.beta import Beta
from kbpjax.ep.gaussian import Gaussian
from kbpjax.ep.just_in_time import Record, scan, step
from kbpjax.ep.messages import Distribution, Uniform, ratio
from kbpjax.ep.operators import Operator
from kbpjax.ep.oracles import LogisticToZ, Oracle
from kbpjax.kernels.base import as_floats

PREDICTIVE_NODES = 400
"""Quadrature nodes of the average of the logistic function over a normal density."""


class SiteSchedule(Checked):
    """The order of site updates."""

    __repr__ = show_fields


class Parallel(SiteSchedule):
    """Update all sites at once, from the sites of the previous sweep (the paper's schedule).

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> x = jax.random.normal(jax.random.key(0), (10, 2))
        >>> posterior = ep.logistic_regression(x, x[:, 0] > 0, schedule=ep.Parallel(), damping=0.1)
        >>> bool(posterior.changes[-1] < 0.01 * posterior.changes[0])
        True
    """


class Sequential(SiteSchedule):
    """Update one site after the other, from the newest sites: fewer sweeps, one rank-one update per message.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> x = jax.random.normal(jax.random.key(0), (10, 2))
        >>> in_turn = ep.logistic_regression(x, x[:, 0] > 0, schedule=ep.Sequential(), num_sweeps=5)
        >>> at_once = ep.logistic_regression(x, x[:, 0] > 0, num_sweeps=5)
        >>> bool(in_turn.changes[-1] < at_once.changes[-1])  # the same posterior, in fewer sweeps
        True
    """


class LinearPosterior(Checked):
    """The posterior of the weights, from expectation propagation.

    Attributes:
        mean: mean of the weights [dim].
        covariance: covariance of the weights [dim, dim].
        sites: messages of the factors to z [datum].
        changes: largest change of the mean of the weights in each sweep [sweep]; small after convergence.
        operator: the operator after learning; None if only the oracle was used.
        record: the record of all invocations [sweep, datum].

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> x = jax.random.normal(jax.random.key(0), (10, 2))
        >>> posterior = ep.logistic_regression(x, x[:, 0] > 0)
        >>> posterior.mean.shape, posterior.covariance.shape, posterior.sites.mean.shape
        ((2,), (2, 2), (10,))
        >>> bool(posterior.changes[-1] < 1e-3)  # it has converged
        True
    """

    mean: Float[Array, " dim"]
    covariance: Float[Array, "dim dim"]
    sites: Gaussian
    changes: Float[Array, " sweep"]
    operator: Operator | None
    record: Record

    __repr__ = show_fields


@public
def linear_model(
    x: Numbers,
    child: Distribution,
    *,
    oracle: Oracle,
    operator: Operator | None = None,
    num_sweeps: int = 10,
    damping: ScalarLike = 0.0,
    schedule: SiteSchedule = Parallel(),
    prior_variance: ScalarLike = 1.0,
    key: Key[Array, ""] | None = None,
) -> LinearPosterior:
    """Return the posterior of the weights of a linear model with any factor between z_i = w'x_i and its child.

    Args:
        x: inputs [datum, dim]; append a column of ones for a bias.
        child: messages of the children to the factors [datum], the first incoming message; z's is the second.
        oracle: computes beliefs of z (`variable=1`).
        operator: computes messages if its uncertainty is low, and learns from the oracle otherwise; None: the oracle
            only.
        num_sweeps: number of updates of each site, >= 1.
        damping: weight of the old site in [0, 1).
        schedule: `Parallel()`, or `Sequential()`.
        prior_variance: prior variance of each weight, w ~ N(0, prior_variance I).
        key: random key of sampling oracles; None: `jax.random.key(0)`.

    Returns:
        The posterior; see `changes` for convergence.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, an option out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> x = jax.random.normal(jax.random.key(0), (50, 2))
        >>> y = (x[:, 0] > 0).astype(x.dtype)
        >>> posterior = ep.linear_model(x, ep.Beta(1.0 + y, 2.0 - y), oracle=ep.LogisticToZ())
        >>> bool(posterior.mean[0] > 1), bool(posterior.changes[-1] < 1e-3)
        (True, True)
    """
    inputs = as_floats(_checks.as_array("x", x))
    ok = inputs.ndim == 2 and inputs.size > 0
    rule, fix = "must be [datum, dim], one of each at least", "Give a row to each datum."
    _checks.require(ok, "x", rule, f"shape {inputs.shape}", fix)
    _checks.require_finite("x", inputs, "Fill in or leave out what is missing.")
    shape = jnp.shape(child.mean)
    fix = "Give a message for each row of x."
    _checks.require(shape == inputs.shape[:1], "child", f"must have shape {inputs.shape[:1]}", shape, fix)
    _checks.require(oracle.variable == 1, "oracle", "must answer for variable 1, z", oracle.variable, "Set variable=1.")
    _checks.require_count("num_sweeps", num_sweeps)
    _checks.require_number("damping", damping, least=0, below=1)
    _checks.require_number("prior_variance", prior_variance, above=0)
    kind = inputs.dtype
    child = jax.tree.map(lambda leaf: leaf.astype(kind), child)
    key = jax.random.key(0) if key is None else key
    numbers = jnp.asarray(damping, kind), 1 / jnp.asarray(prior_variance, kind)
    return _infer(inputs, child, oracle, operator, num_sweeps, *numbers, schedule, key)


@public
def logistic_regression(
    x: Numbers, y: Numbers, *, oracle: Oracle = LogisticToZ(), operator: Operator | None = None, **options: Any
) -> LinearPosterior:
    """Return the posterior of the weights of Bayesian logistic regression: P(y_i = 1) = 1 / (1 + exp(-w'x_i)).

    Args:
        x: inputs [datum, dim]; append a column of ones for a bias.
        y: labels 0 or 1 [datum].
        oracle: computes beliefs of z; the default is exact.
        operator: as in `linear_model`.
        **options: options of `linear_model`.

    Raises:
        ValueError: labels other than 0 and 1; as `linear_model`.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> x = jax.random.normal(jax.random.key(0), (50, 2))
        >>> posterior = ep.logistic_regression(x, x[:, 0] > 0)
        >>> bool(ep.logistic_predictive(posterior, x[:1])[0] > 0.5) == bool(x[0, 0] > 0)
        True
    """
    labels = _checks.as_array("y", y)
    if not _checks.is_traced(labels):
        classes = np.unique(np.asarray(labels))
        ok = bool(np.isin(classes, [0, 1]).all())
        _checks.require(ok, "y", "must be labels 0 or 1", classes[:5], "Encode the two classes as 0 and 1.")
    ones = labels.astype(as_floats(_checks.as_array("x", x)).dtype)
    return linear_model(x, Beta(1 + ones, 2 - ones), oracle=oracle, operator=operator, **options)


@finite("x")
@jax.jit
def logistic_predictive(posterior: LinearPosterior, x: Float[Array, "datum dim"]) -> Float[Array, " datum"]:
    """Return P(y = 1) at new inputs: the logistic function averaged over the posterior of w'x, exactly.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax import ep
        >>> x = jax.random.normal(jax.random.key(0), (10, 2))
        >>> posterior = ep.logistic_regression(x, x[:, 0] > 0)
        >>> no, even, yes = ep.logistic_predictive(posterior, jnp.array([[-2.0, 0.0], [0.0, 0.0], [2.0, 0.0]])).tolist()
        >>> no < 0.3, round(even, 3), yes > 0.7
        (True, 0.5, True)
    """
    mean = matmul(x, posterior.mean)[:, None]
    spread = jnp.sqrt(jnp.maximum(jnp.sum(matmul(x, posterior.covariance) * x, axis=1), 0))[:, None]
    nodes = (2 * jnp.arange(PREDICTIVE_NODES, dtype=x.dtype)[None] + 1) / PREDICTIVE_NODES - 1
    # Midpoint rule over the narrower of the two: the normal density, or the slope of the logistic function.
    normal, slope = 9 * nodes, 40 * nodes
    narrow = jnp.mean(18 * norm.pdf(normal) * jax.nn.sigmoid(mean + spread * normal), axis=1)
    clipped = jnp.maximum(spread, 1)
    weight = 80 * jax.nn.sigmoid(slope) * jax.nn.sigmoid(-slope)
    wide = jnp.mean(weight * norm.cdf((mean - slope) / clipped), axis=1)
    return jnp.where(spread[:, 0] < 1, narrow, wide)


@partial(jax.jit, static_argnames=("num_sweeps",))
def _infer(
    x: Array,
    child: Distribution,
    oracle: Oracle,
    operator: Operator | None,
    num_sweeps: int,
    damping: Array,
    prior: Array,
    schedule: SiteSchedule,
    key: Key[Array, ""],
) -> LinearPosterior:
    sweep = _sweep_in_turn if isinstance(schedule, Sequential) else _sweep_at_once
    zeros = jnp.zeros(len(x), x.dtype)

    def body(carry: Any, key: Key[Array, ""]) -> Any:
        sites, operator, before = carry
        sites, operator, record = sweep(x, child, oracle, operator, sites, damping, prior, key)
        mean, _ = _posterior(x, sites, prior)
        return (sites, operator, mean), (jnp.max(jnp.abs(mean - before)), record)

    start = Gaussian.trusted(zeros, zeros), operator, jnp.zeros(x.shape[1], x.dtype)
    (sites, operator, mean), (changes, record) = jax.lax.scan(body, start, jax.random.split(key, num_sweeps))
    return LinearPosterior(mean, _posterior(x, sites, prior)[1], sites, changes, operator, record)


def _posterior(x: Array, sites: Gaussian, prior: Array) -> tuple[Array, Array]:
    """Return mean [dim] and covariance [dim, dim] of the weights."""
    precision = matmul(x.T * sites.precision[None], x) + prior * jnp.eye(x.shape[1], dtype=x.dtype)
    covariance = jnp.linalg.inv(precision)
    covariance = 0.5 * (covariance + covariance.T)
    return matmul(covariance, matmul(x.T, sites.shift)), covariance


def _cavity(mean: Array, variance: Array, site: Gaussian) -> Gaussian:
    """Return the cavity message of z to its factor: its marginal divided by the site."""
    return Gaussian.trusted(1 / variance, mean / variance) / site


def _damped(new: Distribution, old: Gaussian, damping: Array) -> Gaussian:
    """Mix natural parameters."""
    assert isinstance(new, Gaussian)
    return jax.tree.map(lambda a, b: (1 - damping) * a + damping * b, new, old)


def _sweep_at_once(
    x: Array, child: Distribution, oracle: Oracle, operator: Operator | None, sites: Gaussian, *rest: Any
) -> tuple[Gaussian, Operator | None, Record]:
    """Update all sites from the same posterior."""
    damping, prior, key = rest
    mean, covariance = _posterior(x, sites, prior)
    variance = jnp.sum(matmul(x, covariance) * x, axis=1)
    incoming = (child, _cavity(matmul(x, mean), variance, sites))
    keys = jax.random.split(key, len(x))
    if operator is None:
        record = jax.lax.map(lambda of: asked(oracle, *of), (incoming, keys), batch_size=oracle.batch_size)
    else:
        operator, record = scan(keys, operator, incoming, oracle)
    return _damped(record.message, sites, damping), operator, record


def _sweep_in_turn(
    x: Array, child: Distribution, oracle: Oracle, operator: Operator | None, sites: Gaussian, *rest: Any
) -> tuple[Gaussian, Operator | None, Record]:
    """Update one site after the other, with rank-one updates of the posterior, which each sweep recomputes first."""
    damping, prior, key = rest

    def body(carry: Any, of: Any) -> Any:
        mean, covariance, operator = carry
        row, child, site, key = of
        spread = matmul(covariance, row)
        variance, center = jnp.dot(row, spread, precision="highest"), jnp.dot(row, mean, precision="highest")
        incoming = (child, _cavity(center, variance, site))
        if operator is None:
            record = asked(oracle, incoming, key)
        else:
            operator, record = step(key, operator, incoming, oracle)
        new = _damped(record.message, site, damping)
        more = new / site
        total = 1 + more.precision * variance
        covariance = covariance - spread[:, None] * (spread * more.precision / total)[None]
        mean = mean + spread * (more.shift - more.precision * center) / total
        return (mean, covariance, operator), (new, record)

    keys = jax.random.split(key, len(x))
    start = (*_posterior(x, sites, prior), operator)
    (*_, operator), (sites, record) = jax.lax.scan(body, start, (x, child, sites, keys))
    return sites, operator, record


def asked(oracle: Oracle, incoming: tuple[Distribution, ...], key: Key[Array, ""]) -> Record:
    """Return the record of an oracle query; the message is uniform if the query fails."""
    target = incoming[oracle.variable]
    belief = oracle(incoming, key)
    message, fine = ratio(belief, target), belief.proper
    message = jax.tree.map(lambda a, b: jnp.where(fine, a, b), message, Uniform()(belief, target))
    unknown = jnp.full(target.outputs.shape, jnp.nan, target.outputs.dtype)
    return Record(incoming, message, unknown, jnp.asarray(True), ~fine)
