"""Beta messages, of probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, digamma, gammaln, polygamma
from jaxtyping import Array, Bool, Float, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul
from kbpjax._public import finite
from kbpjax.ep.messages import Self, TwoPositive, as_parameters, require_positive, require_samples, sample_moments

NEWTON_STEPS = 60
"""Newton steps of the projection; each changes a logarithm by at most 1."""

NODES = 2000
"""Quadrature nodes of the characteristic function."""


def log_beta(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log B(a, b); in double precision without `betaln`, whose error is up to 4e-7 for b near 10."""
    if a.dtype != jnp.float64:
        return betaln(a, b)
    return jnp.where(a + b < 1000, gammaln(a) + gammaln(b) - gammaln(a + b), betaln(a, b))


def _require_room(mean: Float[Array, "..."], variance: Float[Array, "..."]) -> None:
    """Raise ValueError unless the variances are possible on (0, 1); skipped under tracing."""
    if _checks.is_traced((mean, variance)):
        return
    wrong = np.flatnonzero(~np.asarray(variance < mean * (1 - mean)))
    got = ", ".join(f"mean {mean.ravel()[i]} and variance {variance.ravel()[i]}" for i in wrong[:1])
    rule = "must be 0 < mean < 1 and variance < mean (1 - mean)"
    _checks.require(not len(wrong), "mean, variance", rule, got, "No variable in (0, 1) has these moments.")


class Beta(TwoPositive):
    """Beta distributions on (0, 1): x^(alpha - 1) (1 - x)^(beta - 1).

    Args:
        alpha: [*batch]; alpha = beta = 1 is uniform.
        beta: [*batch].

    Examples:
        >>> from kbpjax.ep import Beta
        >>> float((Beta(2.0, 1.0) * Beta(1.0, 2.0)).mean)
        0.5
    """

    alpha: Float[Array, "*batch"]
    beta: Float[Array, "*batch"]

    def __init__(self, alpha: Numbers, beta: Numbers):
        self.alpha, self.beta = as_parameters("alpha, beta", alpha, beta)

    @classmethod
    def from_moments(cls, mean: Numbers, variance: Numbers) -> Self:
        """Return the Beta distribution of a mean in (0, 1) and a variance in (0, mean (1 - mean)) [*batch].

        Raises:
            ValueError: other means or variances (not checked under tracing).
        """
        mean, variance = as_parameters("mean, variance", mean, variance)
        require_positive("variance", variance)
        _require_room(mean, variance)
        total = mean * (1 - mean) / variance - 1
        return _checks.finite_result("mean, variance", cls.trusted(total * mean, total * (1 - mean)))

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The mean [*batch]."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """The variance [*batch]."""
        total = self.alpha + self.beta
        return self.alpha * self.beta / (total**2 * (total + 1))

    def __mul__(self, other: Self) -> Self:
        """Return the product."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.alpha + other.alpha - 1, self.beta + other.beta - 1)

    def __truediv__(self, other: Self) -> Self:
        """Return the ratio; its parameters may be <= 0."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.alpha - other.alpha + 1, self.beta - other.beta + 1)

    def exceeds(self, other: Self) -> Bool[Array, "*batch"]:
        """Return whether neither parameter is less than another's."""
        return (self.alpha >= other.alpha) & (self.beta >= other.beta)

    def keep_mean(self, other: Self) -> Self:
        """Return the message with smallest parameters whose product with another has the mean of this."""
        scale = jnp.maximum(jnp.maximum(other.alpha / self.alpha, other.beta / self.beta), jnp.ones_like(self.alpha))
        return type(self).trusted(scale * self.alpha, scale * self.beta) / other

    def uniform(self) -> Self:
        """Return alpha = beta = 1."""
        return type(self).trusted(jnp.ones_like(self.alpha), jnp.ones_like(self.beta))

    @finite("x")
    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density on (0, 1); -inf elsewhere."""
        inside = (x > 0) & (x < 1)
        x = jnp.where(inside, x, 0.5)
        logs = (self.alpha - 1) * jnp.log(x) + (self.beta - 1) * jnp.log1p(-x) - log_beta(self.alpha, self.beta)
        return jnp.where(inside, logs, -jnp.inf)

    @classmethod
    def project(cls, x: Float[Array, "*batch draw"], weights: Float[Array, "*batch draw"]) -> Self:
        """Match the means of log x and log(1 - x)."""
        require_samples(x, weights)
        tiny = jnp.finfo(x.dtype).tiny
        log_x, log_rest = jnp.log(jnp.maximum(x, tiny)), jnp.log(jnp.maximum(1 - x, jnp.finfo(x.dtype).epsneg))
        logs = jnp.sum(weights * log_x, axis=-1), jnp.sum(weights * log_rest, axis=-1)
        made = cls._of_statistics(jnp.stack(logs, axis=-1), cls._matching(*sample_moments(x, weights)))
        return _checks.finite_result("x, weights", made)

    @classmethod
    def _matching(cls, mean: Float[Array, "*batch"], variance: Float[Array, "*batch"]) -> Self:
        total = mean * (1 - mean) / variance - 1
        return cls.trusted(total * mean, total * (1 - mean))

    @classmethod
    @finite("mean_log", "mean_log_complement")
    def from_statistics(
        cls, mean_log: Float[Array, "*batch"], mean_log_complement: Float[Array, "*batch"], start: Self
    ) -> Self:
        """Return the member with given means of log x and log(1 - x): the KL projection.

        Args:
            mean_log: E log x [*batch].
            mean_log_complement: E log(1 - x) [*batch].
            start: initial value of Newton's method in log alpha and log beta, for instance the member of the same mean
                and variance.

        Raises:
            ValueError: shapes that differ; means that no member has.
        """
        shapes = [array.shape for array in (mean_log, mean_log_complement, start.alpha)]
        fix = "Pass one of each for every member."
        names = "mean_log, mean_log_complement, start"
        _checks.require(len(set(shapes)) == 1, names, "must have one shape", shapes, fix)
        made = cls._of_statistics(jnp.stack([mean_log, mean_log_complement], axis=-1), start)
        return _checks.finite_result(names, made)

    @classmethod
    def _of_statistics(cls, target: Float[Array, "*batch 2"], start: Self) -> Self:
        """Return the member with given means of log x and log(1 - x) [*batch, 2], by Newton's method."""

        def improve(_: Array, logs: Float[Array, "*batch 2"]) -> Float[Array, "*batch 2"]:
            shapes, total = jnp.exp(logs), jnp.sum(jnp.exp(logs), axis=-1, keepdims=True)
            missing = digamma(shapes) - digamma(total) - target
            own, shared = polygamma(1, shapes), polygamma(1, total)
            # (diag(own) - shared 11')^-1 missing, by Sherman and Morrison.
            inner = jnp.sum(missing / own, axis=-1, keepdims=True)
            spread = 1 - shared * jnp.sum(1 / own, axis=-1, keepdims=True)
            step = (missing + shared * inner / spread) / own / shapes
            return logs - jnp.clip(step, -1, 1)

        logs = jax.lax.fori_loop(0, NEWTON_STEPS, improve, start.outputs)
        return cls.trusted(jnp.exp(logs[..., 0]), jnp.exp(logs[..., 1]))

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "draw *batch"]:
        """Draw samples [draw, *batch]."""
        _checks.require_draws(num_samples, self.alpha.size)
        return jax.random.beta(key, self.alpha, self.beta, (num_samples, *self.alpha.shape), self.alpha.dtype)

    @finite("frequencies")
    def characteristic(self, frequencies: Float[Array, " feature"]) -> tuple[Array, Array]:
        """Return E cos(w x) and E sin(w x) [feature], of 1F1(alpha; alpha + beta; i w), by quadrature in log odds."""
        spread = 9 * jnp.sqrt(1 / self.alpha + 1 / self.beta)
        below, above = jnp.maximum(spread, 40 / self.alpha), jnp.maximum(spread, 40 / self.beta)
        nodes = (jnp.arange(NODES, dtype=spread.dtype) + 0.5) / NODES
        odds = jnp.log(self.alpha / self.beta) - below + nodes * (below + above)
        weight = jax.nn.softmax(-self.alpha * jax.nn.softplus(-odds) - self.beta * jax.nn.softplus(odds))
        angles = frequencies[:, None] * jax.nn.sigmoid(odds)[None]
        return matmul(jnp.cos(angles), weight), matmul(jnp.sin(angles), weight)

    def kl(self, other: Self) -> Float[Array, "*batch"]:
        """Return KL(self || other) [*batch]."""
        more_alpha, more_beta = self.alpha - other.alpha, self.beta - other.beta
        logs = log_beta(other.alpha, other.beta) - log_beta(self.alpha, self.beta)
        inner = more_alpha * digamma(self.alpha) + more_beta * digamma(self.beta)
        return logs + inner - (more_alpha + more_beta) * digamma(self.alpha + self.beta)
