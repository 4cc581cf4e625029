"""Bayesian linear regression on features: y = <w, phi(x)> + noise, with w ~ N(0, prior I), one output.

With kernel features this is a Gaussian process regression whose cost does not grow with the number of observations. Its
variance depends on the inputs only; the noise is a lower bound.

Batch fits use at least the rounding error of phi' phi, machine epsilon times its trace, as ridge. Smaller noise is
numerically invisible, and the factorization then always exists.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Array, Float, ScalarLike

from kbpjax import _checks
from kbpjax._misc import matmul, show_fields
from kbpjax._public import Checked, public
from kbpjax.ep.messages import Self


class BayesianRegression(Checked):
    """The posterior of the weights; leading axes, where `jax.vmap` adds them, are outputs.

    Attributes:
        mean: mean of the weights [feature].
        covariance: covariance of the weights [feature, feature].
        noise: variance of the noise > 0 [].

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.ep import BayesianRegression
        >>> line = BayesianRegression.prior(1, noise=0.01, variance=100.0)
        >>> line = line.update(jnp.array([1.0]), jnp.array(2.0)).update(jnp.array([2.0]), jnp.array(4.0))
        >>> mean, variance = line.predict(jnp.array([[3.0]]))
        >>> round(float(mean[0]), 2), round(float(variance[0]), 3)  # noise included
        (6.0, 0.028)
    """

    mean: Float[Array, " feature"]
    covariance: Float[Array, "feature feature"]
    noise: Float[Array, ""]

    @classmethod
    def prior(cls, num_features: int, *, noise: ScalarLike, variance: ScalarLike = 1.0) -> Self:
        """Return the regression before any observation.

        Args:
            num_features: number of features, >= 1.
            noise: variance of the noise, > 0.
            variance: prior variance of each weight, > 0.

        Raises:
            ValueError: any out of range.
        """
        _checks.require_count("num_features", num_features)
        _checks.require_number("noise", noise, above=0)
        _checks.require_number("variance", variance, above=0)
        kind = jnp.result_type(float)
        covariance = jnp.asarray(variance, kind) * jnp.eye(num_features, dtype=kind)
        made = cls(jnp.zeros(num_features, kind), covariance, jnp.asarray(noise, kind))
        return _checks.finite_result("num_features, noise, variance", made)

    def predict(self, phi: Float[Array, "sample feature"]) -> tuple[Float[Array, " sample"], Float[Array, " sample"]]:
        """Return mean and variance of an observation, noise included, at features [sample, feature]."""
        _require_shape("phi", phi, (len(phi), *self.mean.shape))
        _checks.require_squares("phi", phi)
        spread = jnp.sum(matmul(phi, self.covariance) * phi, axis=1)
        return matmul(phi, self.mean), jnp.maximum(spread, 0) + self.noise

    def update(self, phi: Float[Array, " feature"], y: Float[Array, ""]) -> Self:
        """Return the posterior after one observation, in O(feature^2); the gain form is stable in single precision."""
        _require_shape("phi", phi, self.mean.shape)
        _require_shape("y", y, ())
        gain = matmul(self.covariance, phi)
        total = self.noise + jnp.dot(phi, gain, precision="highest")
        missing = y - jnp.dot(phi, self.mean, precision="highest")
        half = gain * jax.lax.rsqrt(total)  # half half' is exactly symmetric, and so the covariance stays
        covariance = self.covariance - half[:, None] * half[None, :]
        return type(self)(self.mean + gain * (missing / total), covariance, self.noise)

    def update_block(self, phi: Float[Array, "sample feature"], y: Float[Array, " sample"]) -> Self:
        """Return the posterior after several observations; equivalent to one `update` after the other."""
        _require_shape("phi", phi, (len(phi), *self.mean.shape))
        _require_shape("y", y, (len(phi),))
        gain = matmul(self.covariance, phi.T)
        total = matmul(phi, gain) + self.noise * jnp.eye(len(phi), dtype=phi.dtype)
        lower = jnp.linalg.cholesky(total)
        half = solve_triangular(lower, gain.T, lower=True)
        mean = self.mean + matmul(gain, cho_solve((lower, True), y - matmul(phi, self.mean)))
        return type(self)(mean, self.covariance - matmul(half.T, half), self.noise)

    __repr__ = show_fields


@public
def fit_regression(
    phi: Float[Array, "sample feature"], y: Float[Array, " sample"], noise: ScalarLike, variance: ScalarLike = 1.0
) -> BayesianRegression:
    """Return the posterior of a batch of observations: ridge regression with ridge noise / variance.

    Args:
        phi: features [sample, feature].
        y: observations [sample].
        noise: variance of the noise, > 0.
        variance: prior variance of each weight, > 0.

    Returns:
        The posterior, equal to that of single updates in any order.

    Raises:
        ValueError: noise or variance out of range (not checked under tracing); shapes that do not fit.

    Examples:
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
    noise, variance = jnp.asarray(noise, phi.dtype), jnp.asarray(variance, phi.dtype)
    factor, ridge = _normal(phi, noise / variance)
    inverse = cho_solve(factor, jnp.eye(phi.shape[1], dtype=phi.dtype))
    covariance = ridge * variance * 0.5 * (inverse + inverse.T)
    return BayesianRegression(cho_solve(factor, matmul(phi.T, y)), covariance, noise)


@public
def leave_one_out_residuals(
    phi: Float[Array, "sample feature"], y: Float[Array, " sample"], ridge: ScalarLike
) -> Float[Array, " sample"]:
    """Return the leave-one-out residuals of ridge regression, from a single fit [sample].

    The residual of a sample is (y - prediction) / (1 - x' (X'X + ridge I)^-1 x), for one sample x.

    Raises:
        ValueError: ridge out of range (not checked under tracing); shapes that do not fit.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.ep import leave_one_out_residuals
        >>> residuals = leave_one_out_residuals(jnp.array([[1.0], [2.0], [3.0]]), jnp.array([1.0, 2.0, 9.0]), 1e-6)
        >>> [round(r, 2) for r in residuals.tolist()]  # without the last the line is y = x, which it misses by 6
        [-1.38, -3.6, 6.0]
    """
    _check(phi, y, ridge=ridge)
    return _leave_one_out_residuals(phi, y, ridge)


@jax.jit
def _leave_one_out_residuals(phi: Array, y: Array, ridge: ScalarLike) -> Array:
    factor, ridge = _normal(phi, jnp.asarray(ridge, phi.dtype))
    half = solve_triangular(factor[0], phi.T, lower=True)
    weights = cho_solve(factor, matmul(phi.T, y))
    # 1 - leverage is smallest for an isolated sample; with this bound, rounding cannot make it 0.
    least = ridge / (ridge + jnp.sum(phi**2, axis=1))
    return (y - matmul(phi, weights)) / jnp.maximum(1 - jnp.sum(half**2, axis=0), least)


@public
def log_evidence(
    phi: Float[Array, "sample feature"], y: Float[Array, " sample"], noise: ScalarLike, variance: ScalarLike = 1.0
) -> Float[Array, ""]:
    """Return log p(y) of the regression: log N(y; 0, variance phi phi' + noise I), in O(sample feature^2).

    Raises:
        ValueError: noise or variance out of range (not checked under tracing); shapes that do not fit.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.ep import log_evidence
        >>> phi, y = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([1.1, 1.9, 3.1])
        >>> noises = (1e-4, 1e-2, 1.0)
        >>> max(noises, key=lambda noise: float(log_evidence(phi, y, noise)))
        0.01
    """
    _check(phi, y, noise=noise, variance=variance)
    return _log_evidence(phi, y, noise, variance)


@jax.jit
def _log_evidence(phi: Array, y: Array, noise: ScalarLike, variance: ScalarLike) -> Array:
    variance = jnp.asarray(variance, phi.dtype)
    factor, ridge = _normal(phi, jnp.asarray(noise, phi.dtype) / variance)
    weights = cho_solve(factor, matmul(phi.T, y))
    square = (jnp.sum((y - matmul(phi, weights)) ** 2) + ridge * jnp.sum(weights**2)) / (ridge * variance)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(factor[0]))) - phi.shape[1] * jnp.log(ridge)
    return -0.5 * (len(y) * jnp.log(2 * jnp.pi * ridge * variance) + log_det + square)


def _require_shape(argument: str, array: Array, shape: tuple[int, ...]) -> None:
    fix = "Pass one y for each row of phi, and a number for each feature."
    _checks.require(array.shape == shape, argument, f"must have shape {shape}", f"shape {array.shape}", fix)
    _checks.require_finite(argument, array)


def _check(phi: Array, y: Array, **numbers: ScalarLike) -> None:
    """Raise ValueError for invalid shapes or numbers of a fit."""
    fine, got = phi.ndim == 2 and y.shape == phi.shape[:1], f"shapes {phi.shape} and {y.shape}"
    _checks.require(fine, "phi, y", "must be [sample, feature] and [sample]", got, "Pass one y for each row of phi.")
    _checks.require_squares("phi", phi)
    _checks.require_squares("y", y)
    for name, value in numbers.items():
        _checks.require_in_range(name, value, phi.dtype)


def _normal(phi: Float[Array, "sample feature"], ridge: Array) -> tuple[tuple[Array, bool], Array]:
    """Return the Cholesky factor of phi' phi + ridge I, for `cho_solve`, and the ridge used."""
    covariance = matmul(phi.T, phi)
    ridge = jnp.maximum(ridge, jnp.finfo(phi.dtype).eps * jnp.trace(covariance))
    return cho_factor(covariance + ridge * jnp.eye(phi.shape[1], dtype=phi.dtype), lower=True), ridge
