"""Bayesian linear regression on features: y = <w, phi(x)> + noise, with w ~ N(0, prior I), one output.

With features of a kernel this is a Gaussian process regression at a cost that does not grow with the number of
observations. Its variance depends on the inputs only; the noise bounds it from below.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Array, Float, ScalarLike

from kbpjax import _checks
from kbpjax._precision import matmul
from kbpjax.ep.messages import Self


class BayesianRegression(eqx.Module):
    """The posterior of the weights; leading axes, where `jax.vmap` adds them, are outputs.

    Attributes:
        mean: [feature].
        covariance: [feature, feature].
        noise: variance of the noise > 0 [].
    """

    mean: Float[Array, " feature"]
    covariance: Float[Array, "feature feature"]
    noise: Float[Array, ""]

    @classmethod
    def prior(cls, num_features: int, *, noise: ScalarLike, variance: ScalarLike = 1.0) -> Self:
        """Return the regression before any observation.

        Args:
            num_features: >= 1.
            noise: variance of the noise > 0.
            variance: of each weight > 0.

        Raises:
            ValueError: any out of range.
        """
        _checks.require_count("num_features", num_features)
        _checks.require_number("noise", noise, above=0)
        _checks.require_number("variance", variance, above=0)
        kind = jnp.result_type(float)
        covariance = jnp.asarray(variance, kind) * jnp.eye(num_features, dtype=kind)
        return cls(jnp.zeros(num_features, kind), covariance, jnp.asarray(noise, kind))

    def predict(self, phi: Float[Array, "sample feature"]) -> tuple[Float[Array, " sample"], Float[Array, " sample"]]:
        """Return mean and variance of an observation, noise included, at features [sample, feature]."""
        spread = jnp.sum(matmul(phi, self.covariance) * phi, axis=1)
        return matmul(phi, self.mean), jnp.maximum(spread, 0) + self.noise

    def update(self, phi: Float[Array, " feature"], y: Float[Array, ""]) -> Self:
        """Learn from one observation, in the gain form that single precision bears: O(feature^2)."""
        gain = matmul(self.covariance, phi)
        total = self.noise + jnp.dot(phi, gain, precision="highest")
        missing = y - jnp.dot(phi, self.mean, precision="highest")
        half = gain * jax.lax.rsqrt(total)  # half half' is symmetric to the last bit: so the covariance stays
        covariance = self.covariance - half[:, None] * half[None, :]
        return type(self)(self.mean + gain * (missing / total), covariance, self.noise)

    def update_block(self, phi: Float[Array, "sample feature"], y: Float[Array, " sample"]) -> Self:
        """Learn from several observations at once, as from one after the other."""
        gain = matmul(self.covariance, phi.T)
        total = matmul(phi, gain) + self.noise * jnp.eye(len(phi), dtype=phi.dtype)
        lower = jnp.linalg.cholesky(total)
        half = solve_triangular(lower, gain.T, lower=True)
        mean = self.mean + matmul(gain, cho_solve((lower, True), y - matmul(phi, self.mean)))
        return type(self)(mean, self.covariance - matmul(half.T, half), self.noise)


def fit_regression(
    phi: Float[Array, "sample feature"], y: Float[Array, " sample"], noise: ScalarLike, variance: ScalarLike = 1.0
) -> BayesianRegression:
    """Learn from all observations in a batch: the ridge regression of ridge noise / variance.

    Args:
        phi: features [sample, feature].
        y: observations [sample].
        noise: variance of the noise > 0.
        variance: of each weight in the prior > 0.

    Returns:
        The posterior; as that of any number of updates in any order.

    Raises:
        ValueError: noise or variance out of range, where they are known; shapes that do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> from kbpjax.ep import fit_regression
        >>> line = fit_regression(jnp.array([[1.0], [2.0]]), jnp.array([2.0, 4.0]), 1e-6)
        >>> round(float(line.predict(jnp.array([[3.0]]))[0][0]), 3)
        6.0
    """
    _check(phi, y, noise=noise, variance=variance)
    return _fit(phi, y, noise, variance)


@jax.jit
def _fit(phi: Array, y: Array, noise: ScalarLike, variance: ScalarLike) -> BayesianRegression:
    ridge = jnp.asarray(noise / variance, phi.dtype)
    factor = cho_factor(_normal(phi, ridge))
    identity = jnp.eye(phi.shape[1], dtype=phi.dtype)
    inverse = cho_solve(factor, identity)
    covariance = jnp.asarray(noise, phi.dtype) * 0.5 * (inverse + inverse.T)
    return BayesianRegression(cho_solve(factor, matmul(phi.T, y)), covariance, jnp.asarray(noise, phi.dtype))


def leave_one_out(
    phi: Float[Array, "sample feature"], y: Float[Array, " sample"], ridge: ScalarLike
) -> Float[Array, " sample"]:
    """Return the residuals of ridge regressions that leave one observation out each, from a single fit [sample].

    The residual of a sample is (y - prediction) / (1 - x' (X'X + ridge I)^-1 x), for one sample x.

    Raises:
        ValueError: ridge out of range, where it is known; shapes that do not fit.
    """
    _check(phi, y, ridge=ridge)
    return _leave_one_out(phi, y, ridge)


@jax.jit
def _leave_one_out(phi: Array, y: Array, ridge: ScalarLike) -> Array:
    factor = cho_factor(_normal(phi, jnp.asarray(ridge, phi.dtype)), lower=True)
    half = solve_triangular(factor[0], phi.T, lower=True)
    weights = cho_solve(factor, matmul(phi.T, y))
    return (y - matmul(phi, weights)) / (1 - jnp.sum(half**2, axis=0))


def log_evidence(
    phi: Float[Array, "sample feature"], y: Float[Array, " sample"], noise: ScalarLike, variance: ScalarLike = 1.0
) -> Float[Array, ""]:
    """Return log p(y) of the regression: log N(y; 0, variance phi phi' + noise I), in O(sample feature^2).

    Raises:
        ValueError: noise or variance out of range, where they are known; shapes that do not fit.
    """
    _check(phi, y, noise=noise, variance=variance)
    return _log_evidence(phi, y, noise, variance)


@jax.jit
def _log_evidence(phi: Array, y: Array, noise: ScalarLike, variance: ScalarLike) -> Array:
    count = len(y)
    noise, variance = jnp.asarray(noise, phi.dtype), jnp.asarray(variance, phi.dtype)
    scaled = jnp.eye(phi.shape[1], dtype=phi.dtype) + matmul(phi.T, phi) * (variance / noise)
    factor = cho_factor(scaled, lower=True)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor[0])))
    inner = matmul(phi.T, y)
    square = (
        jnp.sum(y**2) - (variance / noise) * jnp.dot(inner, cho_solve(factor, inner), precision="highest")
    ) / noise
    return -0.5 * (count * jnp.log(2 * jnp.pi * noise) + log_det + square)


def _check(phi: Array, y: Array, **numbers: ScalarLike) -> None:
    """Check what a fit is made of."""
    fine, got = phi.ndim == 2 and y.shape == phi.shape[:1], f"shapes {phi.shape} and {y.shape}"
    _checks.require(fine, "phi, y", "must be [sample, feature] and [sample]", got, "Pass one y for each row of phi.")
    for name, value in numbers.items():
        _checks.require_number(name, value, above=0)


def _normal(phi: Float[Array, "sample feature"], ridge: Array) -> Float[Array, "feature feature"]:
    return matmul(phi.T, phi) + ridge * jnp.eye(phi.shape[1], dtype=phi.dtype)
