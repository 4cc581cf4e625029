"""Exact messages of two factors by quadrature: training targets, and ground truth, for operators.

An oracle maps the incoming messages of a factor to the belief of one of its variables, projected onto its family. The
integrands are analytic, so the midpoint rule converges geometrically once its step is small enough. This determines the
number of nodes; with too few nodes, the result is NaN.
"""

import abc
import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Key, ScalarLike

from kbpjax import _checks
from kbpjax._misc import by_value, show_fields
from kbpjax._public import Checked, public
from kbpjax.ep.beta import Beta, log_beta
from kbpjax.ep.gamma import Gamma
from kbpjax.ep.gaussian import Gaussian
from kbpjax.ep.messages import Distribution, as_parameters
from kbpjax.kernels.base import positive_number

MODE_STEPS = 100
"""Newton steps towards the mode of the compound gamma integrand; each changes log t by at most 1."""


class Oracle(Checked):
    """A function from the (single) incoming messages of a factor to the belief of one of its variables.

    Attributes:
        variable: index of the variable among the incoming messages. Custom oracles declare it as
            `variable: int = eqx.field(static=True, default=1)`.

    Examples:
        >>> import equinox as eqx, jax
        >>> from kbpjax import ep
        >>> class Step(ep.Oracle):  # x1 = x0 + noise of variance 1
        ...     variable: int = eqx.field(static=True, default=1)
        ...
        ...     def __call__(self, incoming, key):
        ...         x0, x1 = incoming
        ...         return x1 * ep.Gaussian.from_moments(x0.mean, x0.variance + 1)
        >>> belief = Step()((ep.Gaussian.from_moments(0.0, 1.0), ep.Gaussian.from_moments(3.0, 2.0)), jax.random.key(0))
        >>> float(belief.mean), float(belief.variance)
        (1.5, 1.0)
    """

    variable: eqx.AbstractVar[int]

    def __check_init__(self) -> None:
        ok = isinstance(self.variable, int) and self.variable >= 0
        _checks.require(ok, "variable", "must be an integer >= 0", repr(self.variable), "Count messages from 0.")
        traced = any(of.name == "variable" and not of.metadata.get("static") for of in dataclasses.fields(self))
        fix = "Declare it as variable: int = eqx.field(static=True, default=1)."
        _checks.require(not traced, "variable", "must be a static field", "one that JAX would trace", fix)

    @property
    def batch_size(self) -> int:
        """Number of messages to compute at a time, to limit memory."""
        return 64

    @abc.abstractmethod
    def __call__(self, incoming: tuple[Distribution, ...], key: Key[Array, ""]) -> Distribution:
        """Return the belief; NaN if it cannot be computed. `key` is the random key of sampling oracles."""

    __repr__ = show_fields


class Projection(Checked):
    """A projection of beliefs onto a family."""

    @abc.abstractmethod
    def beta(self, found: "LogisticIntegrals") -> Beta:
        """Project the belief of a probability."""

    @abc.abstractmethod
    def gamma(self, found: "CompoundGammaIntegrals") -> Gamma:
        """Project the belief of a precision."""

    __repr__ = show_fields


class KLProjection(Projection):
    """The member that minimizes KL(belief || member), as in the theory: it keeps the expected sufficient statistics.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> oracle = jax.jit(ep.LogisticToP(projection=ep.KLProjection()))  # the default
        >>> belief = oracle((ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 4.0)))
        >>> round(float(belief.mean), 3), round(float(belief.variance), 4)
        (0.691, 0.0568)
    """

    @_checks.skip_value_checks()
    def beta(self, found: "LogisticIntegrals") -> Beta:
        """Keep E log p and E log(1 - p)."""
        start = MatchingMoments().beta(found)
        return Beta.from_statistics(found.mean_log, found.mean_log_complement, start)

    @_checks.skip_value_checks()
    def gamma(self, found: "CompoundGammaIntegrals") -> Gamma:
        """Keep E t and E log t."""
        return Gamma.from_statistics(found.mean, found.mean_log)


class MatchingMoments(Projection):
    """The member of the same mean and variance, as in the program of the authors of KJIT.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> oracle = jax.jit(ep.LogisticToP(projection=ep.MatchingMoments()))
        >>> belief = oracle((ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 4.0)))
        >>> round(float(belief.mean), 3), round(float(belief.variance), 4)  # those of `logistic_integrals`
        (0.697, 0.0597)
    """

    def beta(self, found: "LogisticIntegrals") -> Beta:
        """Keep E p and Var p."""
        total = found.mean * (1 - found.mean) / found.variance - 1
        return Beta.trusted(total * found.mean, total * (1 - found.mean))

    def gamma(self, found: "CompoundGammaIntegrals") -> Gamma:
        """Keep E t and Var t."""
        return Gamma.trusted(found.mean**2 / found.variance, found.mean / found.variance)


@by_value
class LogisticIntegrals(NamedTuple):
    """Expectations under s(z)^(a-1) s(-z)^(b-1) N(z; m, v), where p = s(z); all [*batch].

    Attributes:
        log_normalizer: log of the integral divided by the normalizer of Beta(a, b), for normalized messages.
        z: the belief of z.
        mean: E p.
        variance: Var p.
        mean_log: E log p.
        mean_log_complement: E log(1 - p).
    """

    log_normalizer: Array
    z: Gaussian
    mean: Array
    variance: Array
    mean_log: Array
    mean_log_complement: Array


@public
def logistic_integrals(p: Beta, z: Gaussian, *, num_nodes: int | None = None) -> LogisticIntegrals:
    """Return expectations under the logistic factor delta(p - 1 / (1 + exp(-z))) times its incoming messages.

    Args:
        p: message from the probability [*batch].
        z: message from the log odds [*batch].
        num_nodes: number of nodes of the midpoint rule. None: as many as the messages need; under `jax.jit` 1,200,
            enough for alpha and beta up to 2 with variances up to 280.

    Returns:
        Expectations [*batch], accurate to about 1e-12 in double precision; NaN if num_nodes is too small, and for
        improper messages.

    Raises:
        ValueError: num_nodes < 1; batches that do not broadcast.

    Examples:
        >>> from kbpjax.ep import Beta, Gaussian, logistic_integrals
        >>> found = logistic_integrals(Beta(2.0, 1.0), Gaussian.from_moments(0.0, 1.0))
        >>> round(float(found.z.mean), 4), round(float(found.z.variance), 4)
        (0.4132, 0.8292)
    """
    a, b, precision, shift = as_parameters("p, z", p.alpha, p.beta, z.precision, z.shift)
    m, v = shift / precision, 1 / precision
    below = v * jnp.maximum(jnp.maximum(b - 1, 1 - a), 0) + 9 * jnp.sqrt(v)
    above = v * jnp.maximum(jnp.maximum(a - 1, 1 - b), 0) + 9 * jnp.sqrt(v)
    step = 0.5 * jnp.minimum(1, jax.lax.rsqrt(precision + jnp.maximum(a + b - 2, 0) / 4))
    needed = (below + above) / step
    count = _count(num_nodes, needed, 1200)
    nodes = _midpoints(count, m)
    a, b, m, v, below, above = (of[..., None] for of in (a, b, m, v, below, above))
    moved = nodes * (above + below) - below  # relative to m, to keep precision for narrow messages
    log_p, log_rest = -jax.nn.softplus(-(m + moved)), -jax.nn.softplus(m + moved)
    log_weight = (a - 1) * log_p + (b - 1) * log_rest - 0.5 * moved**2 / v - 0.5 * jnp.log(2 * jnp.pi * v)
    fine = (needed <= count) & jnp.isfinite(needed) & (precision > 0)
    weight, log_total = _normalize(log_weight, fine)

    def mean(of: Array) -> Array:
        return jnp.sum(weight * of, axis=-1)

    at, center = jnp.exp(log_p), mean(moved)
    log_step = jnp.log((above + below)[..., 0] / count)
    variance = mean((moved - center[..., None]) ** 2)
    expected = mean(at)
    return LogisticIntegrals(
        log_total + log_step - log_beta(a[..., 0], b[..., 0]),
        Gaussian.trusted(1 / variance, (m[..., 0] + center) / variance),
        expected,
        mean((at - expected[..., None]) ** 2),
        mean(log_p),
        mean(log_rest),
    )


def _count(num_nodes: int | None, needed: Float[Array, "..."], traced: int) -> int:
    """Return the number of nodes: `num_nodes`, or enough for all messages, rounded up to hundreds to limit compiles."""
    if num_nodes is not None:
        _checks.require_count("num_nodes", num_nodes)
        return num_nodes
    if _checks.is_traced(needed):
        return traced
    array = np.asarray(needed)
    return 100 * max(1, int(np.ceil(np.max(array, initial=1, where=np.isfinite(array)) / 100)))


def _midpoints(count: int, like: Float[Array, "*batch"]) -> Float[Array, "*ones node"]:
    """Return the midpoints of `count` cells of (0, 1), broadcastable against an array."""
    return ((jnp.arange(count, dtype=like.dtype) + 0.5) / count).reshape(*(1 for _ in like.shape), count)


def _normalize(log_weight: Float[Array, "*batch node"], fine: Array) -> tuple[Array, Array]:
    """Return normalized weights and the logarithm of their sum before normalization; NaN where not `fine`."""
    weight = jax.nn.softmax(jnp.where(fine[..., None], log_weight, jnp.nan), axis=-1)
    return weight, jax.nn.logsumexp(jnp.where(fine[..., None], log_weight, jnp.nan), axis=-1)


class LogisticToZ(Oracle):
    """Exact messages from the logistic factor to the log odds z; incoming messages are (Beta of p, Gaussian of z).

    Args:
        num_nodes: number of nodes of the midpoint rule, >= 1; the result is NaN if the messages need more.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> belief = jax.jit(ep.LogisticToZ())((ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)))  # of a label 1
        >>> round(float(belief.mean), 3), round(float(belief.variance), 3)
        (0.413, 0.829)
    """

    num_nodes: int = eqx.field(static=True, converter=_checks.whole, default=1200)
    variable: int = eqx.field(static=True, default=1, init=False)

    def __check_init__(self) -> None:
        _checks.require_count("num_nodes", self.num_nodes)

    def __call__(self, incoming: tuple[Distribution, ...], key: Key[Array, ""] | None = None) -> Gaussian:
        """Return the belief of z."""
        p, z = _two(incoming)
        return logistic_integrals(p, z, num_nodes=self.num_nodes).z


class LogisticToP(Oracle):
    """Exact messages from the logistic factor to the probability p; incoming messages are (Beta of p, Gaussian of z).

    Args:
        projection: `KLProjection()`, or `MatchingMoments()`.
        num_nodes: number of nodes of the midpoint rule, >= 1; the result is NaN if the messages need more.

    Examples:
        >>> import jax
        >>> from kbpjax import ep
        >>> belief = jax.jit(ep.LogisticToP())((ep.Beta(1.0, 1.0), ep.Gaussian.from_moments(2.0, 1.0)))  # no label seen
        >>> round(float(belief.mean), 2), round(float(belief.variance) ** 0.5, 2)
        (0.84, 0.12)
    """

    projection: Projection = KLProjection()
    num_nodes: int = eqx.field(static=True, converter=_checks.whole, default=1200)
    variable: int = eqx.field(static=True, default=0, init=False)

    def __check_init__(self) -> None:
        _checks.require_count("num_nodes", self.num_nodes)

    def __call__(self, incoming: tuple[Distribution, ...], key: Key[Array, ""] | None = None) -> Beta:
        """Return the belief of p."""
        p, z = _two(incoming)
        return self.projection.beta(logistic_integrals(p, z, num_nodes=self.num_nodes))


def _two(incoming: tuple[Distribution, ...]) -> tuple[Beta, Gaussian]:
    """Return the checked incoming messages of the logistic factor."""
    names = [type(message).__name__ for message in incoming]
    fix = "Pass the message from the probability and that from the log odds."
    ok = len(incoming) == 2 and isinstance(incoming[0], Beta) and isinstance(incoming[1], Gaussian)
    _checks.require(ok, "incoming", "must be a Beta and a Gaussian message", names, fix)
    p, z = incoming
    assert isinstance(p, Beta) and isinstance(z, Gaussian)
    return p, z


@by_value
class CompoundGammaIntegrals(NamedTuple):
    """Expectations of a precision t under the compound gamma factor and its incoming message; all [*batch].

    Attributes:
        log_normalizer: log of the integral of factor and normalized message.
        mean: E t.
        variance: Var t.
        mean_log: E log t.
    """

    log_normalizer: Array
    mean: Array
    variance: Array
    mean_log: Array


class CompoundGamma(Oracle):
    """Exact messages to a precision t with t ~ Gamma(shape, r) and r ~ Gamma(rate_shape, rate_rate).

    The rate r is integrated out, so that the density of t is proportional to t^(shape - 1) (t + rate_rate)^-(shape +
    rate_shape).

    Args:
        shape: shape of t, > 0.
        rate_shape: shape of r, > 0.
        rate_rate: rate of r, > 0.
        projection: `KLProjection()`, or `MatchingMoments()`, as in the program of the authors of KJIT.
        num_nodes: number of nodes of the midpoint rule in log t; the result is NaN if the messages need more.

    Raises:
        ValueError: a parameter is not > 0; num_nodes < 1.

    Examples:
        >>> from kbpjax.ep import CompoundGamma, Gamma
        >>> round(float(CompoundGamma().integrals(Gamma(6.0, 1.0)).mean), 3)
        4.423
    """

    shape: Float[Array, ""]
    rate_shape: Float[Array, ""]
    rate_rate: Float[Array, ""]
    projection: Projection
    num_nodes: int = eqx.field(static=True, converter=_checks.whole)
    variable: int = eqx.field(static=True, default=0, init=False)

    def __init__(
        self,
        shape: ScalarLike = 1.0,
        rate_shape: ScalarLike = 1.0,
        rate_rate: ScalarLike = 1.0,
        projection: Projection = KLProjection(),
        num_nodes: int = 4000,
    ):
        _checks.require_count("num_nodes", num_nodes)
        self.shape = positive_number("shape", shape)
        self.rate_shape = positive_number("rate_shape", rate_shape)
        self.rate_rate = positive_number("rate_rate", rate_rate)
        self.projection, self.num_nodes, self.variable = projection, num_nodes, 0

    def __call__(self, incoming: tuple[Distribution, ...], key: Key[Array, ""] | None = None) -> Gamma:
        """Return the belief of t."""
        names = [type(message).__name__ for message in incoming]
        ok = len(incoming) == 1 and isinstance(incoming[0], Gamma)
        _checks.require(ok, "incoming", "must be one Gamma message", names, "Pass (message,).")
        (t,) = incoming
        assert isinstance(t, Gamma)
        return self.projection.gamma(self.integrals(t))

    def integrals(self, t: Gamma) -> CompoundGammaIntegrals:
        """Return expectations under the factor times messages from the precision [*batch]."""
        kind = t.rate.dtype
        s2, s1, r1 = (of.astype(kind) for of in (self.shape, self.rate_shape, self.rate_rate))
        power, decay, b = t.shape + s2 - 1, s1 + s2, t.rate

        def slope(u: Array) -> tuple[Array, Array]:
            t_of, share = jnp.exp(u), jax.nn.sigmoid(u - jnp.log(r1))
            return power - b * t_of - decay * share, b * t_of + decay * share * (1 - share)

        def improve(_: Array, u: Array) -> Array:
            first, curvature = slope(u)
            return u + jnp.clip(first / curvature, -1, 1)

        mode = jax.lax.fori_loop(0, MODE_STEPS, improve, jnp.log(power / b))
        spread = jax.lax.rsqrt(slope(mode)[1])
        below, above = self._reach(power, decay, b, mode, spread)
        fine = ((below + above) / self.num_nodes <= 0.5 * jnp.minimum(1, spread)) & (b > 0) & (power > 0)
        nodes = _midpoints(self.num_nodes, mode)
        mode, below, above = (of[..., None] for of in (mode, below, above))
        moved = nodes * (below + above) - below
        u, tilt = mode + moved, (power - b * jnp.exp(mode[..., 0]))[..., None]
        # Canceling parts of the exponent are combined: b t - b t_mode and power (u - mode).
        grown = b[..., None] * jnp.exp(mode) * (jnp.expm1(moved) - moved)
        log_weight = tilt * moved - grown - decay * (jnp.logaddexp(u, jnp.log(r1)) - jnp.logaddexp(mode, jnp.log(r1)))
        weight, log_total = _normalize(log_weight, fine)
        scale = jnp.exp(mode[..., 0])
        relative = jnp.sum(weight * jnp.exp(moved), axis=-1)
        spread_of = jnp.sum(weight * (jnp.exp(moved) - relative[..., None]) ** 2, axis=-1)
        logs = mode[..., 0] + jnp.sum(weight * moved, axis=-1)
        at_mode = power * mode[..., 0] - b * scale - decay * jnp.logaddexp(mode[..., 0], jnp.log(r1))
        of_factor = gammaln(decay) + s1 * jnp.log(r1) - gammaln(s1) - gammaln(s2)
        of_message = t.shape * jnp.log(b) - gammaln(t.shape)
        log_step = jnp.log((below + above)[..., 0] / self.num_nodes)
        total = log_total + log_step + at_mode + of_factor + of_message
        return CompoundGammaIntegrals(total, scale * relative, scale**2 * spread_of, logs)

    @staticmethod
    def _reach(power: Array, decay: Array, b: Array, mode: Array, spread: Array) -> tuple[Array, Array]:
        """Return the integration range below and above the mode of log t, from the tails of the integrand."""
        below = jnp.maximum(16 * spread, 40 / power)
        falling = jnp.where(decay > power, 40 / jnp.where(decay > power, decay - power, 1), jnp.inf)
        above = jnp.maximum(10 * spread, jnp.minimum(falling, jnp.log((power + 80) / b) - mode))
        return below, above
