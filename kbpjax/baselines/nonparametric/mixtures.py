"""Mixtures of Gaussians with one bandwidth for all components, such as kernel density estimates."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kbpjax import _checks
from kbpjax._misc import einsum, show_fields
from kbpjax._public import Checked, finite

__all__ = ["GaussianMixture"]

LEAST = -1e30
"""Smallest exponent of a normal density; below, squares of distances may overflow in single precision."""


class GaussianMixture(Checked):
    """The density sum_i weights_i N(x; means_i, diag(bandwidth^2)); `jax.vmap` handles several at once.

    Attributes:
        weights: weights of the components [component], >= 0, summing to 1.
        means: their means [component, dim].
        bandwidth: standard deviation of every component in each coordinate [dim], > 0.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures
        >>> mixture = mixtures.GaussianMixture(jnp.array([0.5, 0.5]), jnp.array([[-2.0], [2.0]]), jnp.ones(1))
        >>> mixture.mean.tolist(), mixture.variance.tolist()
        ([0.0], [5.0])
        >>> round(float(jnp.exp(mixture.log_density(jnp.zeros((1, 1))))[0]), 3)
        0.054
    """

    requires_finite = True

    weights: Float[Array, " component"]
    means: Float[Array, "component dim"]
    bandwidth: Float[Array, " dim"]

    @finite("x")
    def log_density(self, x: Float[Array, "point dim"]) -> Float[Array, " point"]:
        """Return the logarithm of the density at points [point, dim]."""
        return jax.nn.logsumexp(log_normal(x, self.means, self.bandwidth) + jnp.log(self.weights)[None], axis=1)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "sample dim"]:
        """Draw samples [sample, dim]."""
        _checks.require_draws(num_samples, self.means.shape[-1])
        which, noise = jax.random.split(key)
        chosen = jax.random.categorical(which, jnp.log(self.weights), shape=(num_samples,))
        spread = jax.random.normal(noise, (num_samples, self.means.shape[1]), self.means.dtype)
        return self.means[chosen] + self.bandwidth[None] * spread

    @property
    def mean(self) -> Float[Array, " dim"]:
        """The mean of the density."""
        return einsum("c,cd->d", self.weights, self.means)

    @property
    def variance(self) -> Float[Array, " dim"]:
        """The variance of each coordinate."""
        return einsum("c,cd->d", self.weights, (self.means - self.mean[None]) ** 2) + self.bandwidth**2

    __repr__ = show_fields


def log_normal(
    x: Float[Array, "point dim"], means: Float[Array, "component dim"], bandwidth: Float[Array, " dim"]
) -> Float[Array, "point component"]:
    """Return log N(x_i; means_j, diag(bandwidth^2)) for all pairs."""
    scaled = (x[:, None] - means[None]) / bandwidth[None, None]
    scale = jnp.sum(jnp.log(bandwidth)) + 0.5 * means.shape[1] * jnp.log(2 * jnp.pi).astype(x.dtype)
    return jnp.maximum(-0.5 * jnp.sum(scaled**2, axis=-1), LEAST) - scale


def rule_of_thumb(
    x: Float[Array, "sample dim"], weights: Float[Array, " sample"], min_bandwidth: Float[Array, " dim"]
) -> Float[Array, " dim"]:
    """Return Silverman's bandwidth (4 / ((d + 2) n))^(1 / (d + 4)) std, where n is the effective number of samples.

    Args:
        x: samples [sample, dim].
        weights: their weights, summing to 1 [sample].
        min_bandwidth: smallest bandwidth in each coordinate [dim], > 0, for samples that coincide.
    """
    dim = x.shape[1]
    number = 1 / jnp.sum(weights**2)
    deviations = (x - einsum("s,sd->d", weights, x)[None]) ** 2
    spread = jnp.sqrt(einsum("s,sd->d", weights, deviations))
    return jnp.maximum((4 / ((dim + 2) * number)) ** (1 / (dim + 4)) * spread, min_bandwidth)


def as_vectors(argument: str, x: Array) -> Float[Array, "sample dim"]:
    """Return samples [sample, *dim] as vectors of floats [sample, dim]; numbers are vectors of length 1."""
    _checks.require(x.ndim >= 1 and x.size > 0, argument, "must hold samples", f"shape {x.shape}", "Pass some.")
    values = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
    return values.reshape(len(x), -1)
