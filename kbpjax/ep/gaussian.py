"""Gaussian messages."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_fields
from kbpjax._public import Checked, finite
from kbpjax.ep.messages import (
    Distribution,
    Self,
    as_parameters,
    require_positive,
    require_samples,
    require_two,
    sample_moments,
)
from kbpjax.kernels.base import as_floats


class Gaussian(Distribution):
    """Scalar Gaussians exp(-precision x^2 / 2 + shift x): precision 1 / variance, shift mean / variance.

    Args:
        precision: [*batch]; 0 is uniform.
        shift: [*batch].

    Examples:
        >>> from kbpjax.ep import Gaussian
        >>> both = Gaussian.from_moments(0.0, 1.0) * Gaussian.from_moments(2.0, 1.0)
        >>> float(both.mean), float(both.variance)
        (1.0, 0.5)
    """

    precision: Float[Array, "*batch"]
    shift: Float[Array, "*batch"]

    def __init__(self, precision: Numbers, shift: Numbers):
        self.precision, self.shift = as_parameters("precision, shift", precision, shift)

    @classmethod
    def from_moments(cls, mean: Numbers, variance: Numbers) -> Self:
        """Return the Gaussian of a mean and a variance > 0 [*batch]; raise ValueError for others."""
        mean, variance = as_parameters("mean, variance", mean, variance)
        require_positive("variance", variance)
        return _checks.finite_result("mean, variance", cls.trusted(1 / variance, mean / variance))

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The mean [*batch]."""
        return self.shift / self.precision

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """The variance [*batch]."""
        return 1 / self.precision

    @property
    def outputs(self) -> Float[Array, "*batch out"]:
        """Mean and log variance [*batch, 2]."""
        return jnp.stack([self.mean, -jnp.log(self.precision)], axis=-1)

    @classmethod
    def from_outputs(cls, outputs: Float[Array, "*batch out"]) -> Self:
        """Return the Gaussians of mean and log variance [*batch, 2]."""
        require_two(outputs)
        precision = jnp.exp(-outputs[..., 1])
        return _checks.finite_result("outputs", cls.trusted(precision, precision * outputs[..., 0]))

    def relative_outputs(self, reference: Self) -> Float[Array, "*batch out"]:
        """Return (mean - m) / sqrt(v) and log(variance / v) for a reference N(m, v) [*batch, 2]."""
        moved = (self.mean - reference.mean) * jnp.sqrt(reference.precision)
        return jnp.stack([moved, jnp.log(reference.precision / self.precision)], axis=-1)

    @classmethod
    def from_relative(cls, outputs: Float[Array, "*batch out"], reference: Self) -> Self:
        """Invert `relative_outputs`."""
        require_two(outputs)
        precision = reference.precision * jnp.exp(-outputs[..., 1])
        mean = reference.mean + outputs[..., 0] / jnp.sqrt(reference.precision)
        return _checks.finite_result("outputs, reference", cls.trusted(precision, precision * mean))

    def __mul__(self, other: Self) -> Self:
        """Return the product."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.precision + other.precision, self.shift + other.shift)

    def __truediv__(self, other: Self) -> Self:
        """Return the ratio; its precision may be <= 0."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.precision - other.precision, self.shift - other.shift)

    def exceeds(self, other: Self) -> Bool[Array, "*batch"]:
        """Return whether this is at most as wide as another."""
        return self.precision >= other.precision

    def keep_mean(self, other: Self) -> Self:
        """Return a message of precision 0 whose product with another has the mean of this."""
        return type(self).trusted(jnp.zeros_like(self.precision), self.mean * other.precision - other.shift)

    def uniform(self) -> Self:
        """Return precision 0 and shift 0."""
        return type(self).trusted(jnp.zeros_like(self.precision), jnp.zeros_like(self.shift))

    @finite("x")
    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return log N(x; mean, variance)."""
        return 0.5 * (jnp.log(self.precision / (2 * jnp.pi)) - self.precision * (x - self.mean) ** 2)

    @classmethod
    def project(cls, x: Float[Array, "*batch draw"], weights: Float[Array, "*batch draw"]) -> Self:
        """Match mean and variance."""
        require_samples(x, weights)
        mean, variance = sample_moments(x, weights)
        return _checks.finite_result("x, weights", cls.trusted(1 / variance, mean / variance))

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "draw *batch"]:
        """Draw samples [draw, *batch]."""
        _checks.require_draws(num_samples, self.shift.size)
        noise = jax.random.normal(key, (num_samples, *self.shift.shape), self.shift.dtype)
        return self.mean[None] + noise * jnp.sqrt(self.variance)[None]

    @finite("frequencies")
    def characteristic(self, frequencies: Float[Array, " feature"]) -> tuple[Array, Array]:
        """Return E cos(w x) and E sin(w x) [feature]."""
        modulus = jnp.exp(-0.5 * frequencies**2 * self.variance)
        return modulus * jnp.cos(frequencies * self.mean), modulus * jnp.sin(frequencies * self.mean)

    def kl(self, other: Self) -> Float[Array, "*batch"]:
        """Return KL(self || other) [*batch]."""
        share = other.precision / self.precision
        return 0.5 * (share - 1 - jnp.log(share) + other.precision * (self.mean - other.mean) ** 2)


class MultivariateGaussian(Checked):
    """Gaussians of vectors: exp(-x' precision x / 2 + shift' x).

    Args:
        precision: symmetric [*batch, dim, dim].
        shift: precision times mean [*batch, dim].

    Raises:
        ValueError: shapes that do not fit.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.ep import MultivariateGaussian
        >>> prior = MultivariateGaussian.from_moments(jnp.zeros(2), jnp.eye(2))
        >>> (prior * prior).covariance.tolist()
        [[0.5, 0.0], [0.0, 0.5]]
    """

    requires_finite = True

    precision: Float[Array, "*batch dim dim"]
    shift: Float[Array, "*batch dim"]

    def __init__(self, precision: Numbers, shift: Numbers):
        matrix, vector = (as_floats(_checks.as_array(*given)) for given in (("precision", precision), ("shift", shift)))
        ok = _fit(matrix, vector)
        got, fix = f"{matrix.shape} and {vector.shape}", "Give a matrix and a vector for each."
        _checks.require(ok, "precision, shift", "must have shapes [*batch, dim, dim] and [*batch, dim]", got, fix)
        self.precision, self.shift = matrix, vector

    @classmethod
    def from_moments(cls, mean: Numbers, covariance: Numbers) -> Self:
        """Return the Gaussian of means `[*batch, dim]` and positive definite covariances `[*batch, dim, dim]`.

        Raises:
            ValueError: shapes that do not fit; a covariance that is not finite, symmetric and positive definite.
        """
        center, spread = (as_floats(_checks.as_array(*given)) for given in (("mean", mean), ("covariance", covariance)))
        ok, got = _fit(spread, center), f"{center.shape} and {spread.shape}"
        rule, fix = "must have shapes [*batch, dim] and [*batch, dim, dim]", "Give a vector and a matrix for each."
        _checks.require(ok, "mean, covariance", rule, got, fix)
        _checks.require_finite("covariance", spread, "Leave out what is missing.")
        precision = jnp.linalg.inv(spread)
        if not _checks.is_traced(spread):
            array = np.asarray(spread)
            symmetric = np.allclose(array, array.swapaxes(-1, -2), rtol=1e-4, atol=1e-6 * np.abs(array).max(initial=0))
            fix = "Check that it is a covariance; add a little to its diagonal if it is singular."
            rule = "must be symmetric and positive definite"
            least = np.linalg.eigvalsh(array).min(initial=np.inf)
            got = f"{least:.3g} as the least eigenvalue" if symmetric else "an asymmetric matrix"
            _checks.require(symmetric and least > 0, "covariance", rule, got, fix)
        made = cls.trusted(precision, jnp.einsum("...ij,...j->...i", precision, center))
        return _checks.finite_result("mean, covariance", made)

    @property
    def covariance(self) -> Float[Array, "*batch dim dim"]:
        """The covariance [*batch, dim, dim]."""
        return jnp.linalg.inv(self.precision)

    @property
    def mean(self) -> Float[Array, "*batch dim"]:
        """The mean [*batch, dim]."""
        return jnp.linalg.solve(self.precision, self.shift[..., None])[..., 0]

    def __mul__(self, other: Self) -> Self:
        """Return the product."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.precision + other.precision, self.shift + other.shift)

    def __truediv__(self, other: Self) -> Self:
        """Return the ratio; its precision may not be positive definite."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self).trusted(self.precision - other.precision, self.shift - other.shift)

    def kl(self, other: Self) -> Float[Array, "*batch"]:
        """Return KL(self || other) [*batch], in nats."""
        share = jnp.linalg.solve(self.precision, other.precision)  # its eigenvalues are those of V_other^-1 V_self
        moved = self.mean - other.mean
        square = jnp.einsum("...i,...ij,...j->...", moved, other.precision, moved)
        trace = jnp.trace(share, axis1=-2, axis2=-1) - self.shift.shape[-1]
        return 0.5 * (trace + square - jnp.linalg.slogdet(share)[1])

    __repr__ = show_fields


def _fit(matrix: Array, vector: Array) -> bool:
    """Return whether shapes are [*batch, dim, dim] and [*batch, dim]."""
    return vector.ndim > 0 and matrix.shape == (*vector.shape, vector.shape[-1])
