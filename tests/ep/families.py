"""A family of messages that a user might write: log-normal distributions, of rates."""

import equinox as eqx
import jax
import jax.numpy as jnp

from kbpjax import ep


class LogNormal(ep.Distribution):
    """exp(z) for a Gaussian z."""

    log: ep.Gaussian

    @classmethod
    def of(cls, mean, variance):
        return cls(ep.Gaussian.from_moments(mean, variance))

    @property
    def mean(self):
        return jnp.exp(self.log.mean + self.log.variance / 2)

    @property
    def variance(self):
        return jnp.expm1(self.log.variance) * self.mean**2

    @property
    def outputs(self):
        return self.log.outputs

    @classmethod
    def from_outputs(cls, outputs):
        return cls(ep.Gaussian.from_outputs(outputs))

    def relative_outputs(self, reference):
        return self.log.relative_outputs(reference.log)

    @classmethod
    def from_relative(cls, outputs, reference):
        return cls(ep.Gaussian.from_relative(outputs, reference.log))

    def __mul__(self, other):
        return type(self)(self.log * other.log)

    def __truediv__(self, other):
        return type(self)(self.log / other.log)

    def exceeds(self, other):
        return self.log.exceeds(other.log)

    def keep_mean(self, other):
        return type(self)(self.log.keep_mean(other.log))

    def uniform(self):
        return type(self)(self.log.uniform())

    def log_density(self, x):
        return self.log.log_density(jnp.log(x)) - jnp.log(x)

    @classmethod
    def project(cls, x, weights):
        return cls(ep.Gaussian.project(jnp.log(x), weights))

    def kl(self, other):
        return self.log.kl(other.log)


class Drawn(LogNormal):
    """One that can be drawn from."""

    def sample(self, key, num_samples):
        return jnp.exp(self.log.sample(key, num_samples))


class Broken(ep.Oracle):
    """An exact oracle that has no answer where z is expected above a bound."""

    bound: jax.Array
    variable: int = eqx.field(static=True, default=1)

    def __call__(self, incoming, key=None):
        belief = ep.LogisticToZ(num_nodes=400)(incoming, key)
        bad = incoming[1].mean > self.bound
        return jax.tree.map(lambda leaf: jnp.where(bad, jnp.nan, leaf), belief)
