"""Gamma messages, of precisions and rates."""

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln, polygamma
from jaxtyping import Array, Bool, Float, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import finite
from kbpjax.ep.messages import Self, TwoPositive, as_parameters, require_positive, require_samples

NEWTON_STEPS = 60
"""Newton steps of the projection; each changes a logarithm by at most 1."""


class Gamma(TwoPositive):
    """Gamma distributions on (0, inf): x^(shape - 1) exp(-rate x).

    Args:
        shape: [*batch]; shape 1 and rate 0 is uniform.
        rate: [*batch].

    Examples:
        >>> from kbpjax.ep import Gamma
        >>> float((Gamma(3.0, 1.0) * Gamma(2.0, 1.0)).mean)
        2.0
    """

    shape: Float[Array, "*batch"]
    rate: Float[Array, "*batch"]

    def __init__(self, shape: Numbers, rate: Numbers):
        self.shape, self.rate = as_parameters("shape, rate", shape, rate)

    @classmethod
    def from_moments(cls, mean: Numbers, variance: Numbers) -> Self:
        """Return the Gamma distribution of a mean and a variance > 0 [*batch]; raise ValueError for others."""
        mean, variance = as_parameters("mean, variance", mean, variance)
        require_positive("mean", mean)
        require_positive("variance", variance)
        return _checks.finite_result("mean, variance", cls.trusted(mean**2 / variance, mean / variance))

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The mean [*batch]."""
        return self.shape / self.rate

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """The variance [*batch]."""
        return self.shape / self.rate**2

    def __mul__(self, other: Self) -> Self:
        """Return the product."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.shape + other.shape - 1, self.rate + other.rate)

    def __truediv__(self, other: Self) -> Self:
        """Return the ratio; its parameters may be <= 0."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.shape - other.shape + 1, self.rate - other.rate)

    def exceeds(self, other: Self) -> Bool[Array, "*batch"]:
        """Return whether neither parameter is less than another's."""
        return (self.shape >= other.shape) & (self.rate >= other.rate)

    def keep_mean(self, other: Self) -> Self:
        """Return a message of rate 0, or else of shape 1, whose product with another has the mean of this."""
        shape = self.mean * other.rate + 1 - other.shape
        rate = jnp.where(shape < 1, other.shape / self.mean - other.rate, 0)
        return type(self).trusted(jnp.maximum(shape, jnp.ones_like(shape)), rate)

    def uniform(self) -> Self:
        """Return shape 1 and rate 0."""
        return type(self).trusted(jnp.ones_like(self.shape), jnp.zeros_like(self.rate))

    @finite("x")
    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the log density on (0, inf); -inf elsewhere."""
        inside = x > 0
        x = jnp.where(inside, x, 1)
        logs = self.shape * jnp.log(self.rate) - gammaln(self.shape) + (self.shape - 1) * jnp.log(x) - self.rate * x
        return jnp.where(inside, logs, -jnp.inf)

    @classmethod
    def project(cls, x: Float[Array, "*batch draw"], weights: Float[Array, "*batch draw"]) -> Self:
        """Match the means of x and log x."""
        require_samples(x, weights)
        logs = jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))
        made = cls._of_statistics(jnp.sum(weights * x, axis=-1), jnp.sum(weights * logs, axis=-1))
        return _checks.finite_result("x, weights", made)

    @classmethod
    @finite("mean", "mean_log")
    def from_statistics(cls, mean: Float[Array, "*batch"], mean_log: Float[Array, "*batch"]) -> Self:
        """Return the member with given means of x and log x [*batch]: the KL projection."""
        return _checks.finite_result("mean, mean_log", cls._of_statistics(mean, mean_log))

    @classmethod
    def _of_statistics(cls, mean: Float[Array, "*batch"], mean_log: Float[Array, "*batch"]) -> Self:
        """Return the member with given means of x and log x, by Newton's method."""
        gap = jnp.log(mean) - mean_log
        start = jnp.log((3 - gap + jnp.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap))

        def improve(_: Array, log_shape: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
            shape = jnp.exp(log_shape)
            missing = digamma(shape) - log_shape + gap
            return log_shape - jnp.clip(missing / (shape * polygamma(1, shape) - 1), -1, 1)

        shape = jnp.exp(jax.lax.fori_loop(0, NEWTON_STEPS, improve, start))
        return cls.trusted(shape, shape / mean)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "draw *batch"]:
        """Draw samples [draw, *batch]."""
        _checks.require_draws(num_samples, self.shape.size)
        drawn = jax.random.gamma(key, self.shape, (num_samples, *self.shape.shape), self.shape.dtype)
        return drawn / self.rate[None]

    @finite("frequencies")
    def characteristic(self, frequencies: Float[Array, " feature"]) -> tuple[Array, Array]:
        """Return E cos(w x) and E sin(w x) [feature], of (1 - i w / rate)^-shape."""
        scaled = frequencies / self.rate
        modulus, angle = jnp.exp(-0.5 * self.shape * jnp.log1p(scaled**2)), self.shape * jnp.arctan(scaled)
        return modulus * jnp.cos(angle), modulus * jnp.sin(angle)

    def kl(self, other: Self) -> Float[Array, "*batch"]:
        """Return KL(self || other) [*batch]."""
        logs = (self.shape - other.shape) * digamma(self.shape) - gammaln(self.shape) + gammaln(other.shape)
        scale = other.shape * (jnp.log(self.rate) - jnp.log(other.rate))
        return logs + scale + self.shape * (other.rate - self.rate) / self.rate
