"""Random Fourier features of kernels on distributions, with one or two stages (Jitkrittum et al. 2015, section 4).

With frequencies w_j ~ N(0, diag(bandwidths^-2)) and phases b_j ~ U[0, 2 pi], the features of a Gaussian N(m, V)

    phi_j = sqrt(2 / D) E cos(w_j . x + b_j) = sqrt(2 / D) cos(w_j . m + b_j) exp(-w_j' V w_j / 2)

have inner products close to `kernels.ExpectedProduct`. Random Fourier features of phi (the second stage) have inner
products close to `kernels.EmbeddingRBF`. Points are distributions [2, d] or [1 + d, d], as in the kernels. Draws are in
single precision, so a key gives the same features in every precision.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul
from kbpjax._public import finite, public
from kbpjax.features.base import FeatureMap
from kbpjax.kernels.base import as_floats, positive_number
from kbpjax.kernels.distributions import (
    check_distributions,
    check_independent,
    check_range,
    check_shape,
    marginal,
    positive_numbers,
)


class _Cosines(FeatureMap):
    """Base class of random cosine features, one per frequency."""

    frequencies: Float[Array, "feature *dim"]
    phases: Float[Array, " feature"]

    @property
    def rank(self) -> int:
        """The number of features."""
        return len(self.phases)


class EmbeddingFeatures(_Cosines):
    """Features of `ExpectedProduct`: expectations of random cosines under Gaussians with given moments.

    Attributes:
        frequencies: w [feature, d], in units of 1 / coordinate.
        phases: b [feature], in radians.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> x = jnp.array([[[0.3], [0.5]], [[-0.2], [1.1]]])  # N(0.3, 0.5) and N(-0.2, 1.1)
        >>> phi = kbp.features.EmbeddingFeatures.draw(jax.random.key(0), 4000, 1, bandwidths=0.9)(x)
        >>> exact = kbp.gram(kbp.kernels.ExpectedProduct(0.9), x, x)
        >>> phi.shape, bool(jnp.abs(phi @ phi.T - exact).max() < 0.05)
        ((2, 4000), True)
    """

    @classmethod
    def draw(
        cls, key: PRNGKeyArray, num_features: int, num_coordinates: int, bandwidths: Numbers
    ) -> "EmbeddingFeatures":
        """Return random features.

        Args:
            key: random key.
            num_features: number of features D, >= 1.
            num_coordinates: number of coordinates d, >= 1.
            bandwidths: bandwidths of `ExpectedProduct`, > 0: one number, or one per coordinate; their dtype is the
                dtype of the features.

        Raises:
            ValueError: an argument is out of range.
        """
        _checks.require_count("num_coordinates", num_coordinates)
        drawn = _draw(key, num_features, (num_coordinates,), positive_numbers("bandwidths", bandwidths))
        return _checks.finite_result("key, num_features, num_coordinates, bandwidths", cls(*drawn))

    @finite("x")
    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of distributions [sample, 2, d] or [sample, 1 + d, d]."""
        check_shape("points", x.shape[1:])
        _check_last(x, self.frequencies)
        x = as_floats(x)
        frequencies = self.frequencies.astype(x.dtype)
        angles = matmul(x[:, 0], frequencies.T) + self.phases.astype(x.dtype)[None]
        if x.shape[1] == 2:
            spread = matmul(x[:, 1], (frequencies**2).T)
        else:
            products = frequencies[:, :, None] * frequencies[:, None, :]
            spread = matmul(x[:, 1:].reshape(len(x), -1), products.reshape(len(products), -1).T)
        return _amplitude(self.phases) * jnp.cos(angles) * jnp.exp(-0.5 * spread)

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are distributions."""
        check_distributions(argument, x)

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point, as means and variances."""
        return jax.ShapeDtypeStruct((2, self.frequencies.shape[1]), self.frequencies.dtype)


class SampleFeatures(_Cosines):
    """Features of distributions given by samples: means of random cosines over draws [draw, d].

    Examples:
        >>> import jax, kbpjax as kbp
        >>> draws = jax.random.exponential(jax.random.key(1), (7, 50, 1))  # of 7 distributions, 50 draws of each
        >>> kbp.features.SampleFeatures.draw(jax.random.key(0), 30, 1, bandwidths=1.0)(draws).shape
        (7, 30)
    """

    @classmethod
    def draw(cls, key: PRNGKeyArray, num_features: int, num_coordinates: int, bandwidths: Numbers) -> "SampleFeatures":
        """Return random features with the arguments and draws of `EmbeddingFeatures.draw`."""
        drawn = EmbeddingFeatures.draw(key, num_features, num_coordinates, bandwidths)
        return cls(drawn.frequencies, drawn.phases)

    @finite("x")
    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of draws [sample, draw, d]."""
        self.check("points", x)
        x = as_floats(x)
        angles = matmul(x, self.frequencies.T.astype(x.dtype)) + self.phases.astype(x.dtype)[None, None]
        return _amplitude(self.phases) * jnp.mean(jnp.cos(angles), axis=1)

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are draws."""
        ok = x.ndim == 3 and x.shape[1] >= 1 and x.shape[2] == self.frequencies.shape[1]
        rule, got = f"must be draws [sample, draw, {self.frequencies.shape[1]}]", f"shape {x.shape}"
        _checks.require(ok, argument, rule, got, "Pass the draws of each distribution.")

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a point with one draw; points may have more draws."""
        return jax.ShapeDtypeStruct((1, self.frequencies.shape[1]), self.frequencies.dtype)


class TwoStage(FeatureMap):
    """Features of a Gaussian kernel on the features of another map, exp(-||phi_x - phi_y||^2 / (2 width^2)).

    With `EmbeddingFeatures` as the inner map, these are features of `EmbeddingRBF` (KJIT). The number of outer features
    affects the accuracy more than the number of inner features.

    Attributes:
        inner: the map phi.
        frequencies: nu [feature, feature of inner].
        phases: c [feature], in radians.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> inner, outer = jax.random.split(jax.random.key(0))
        >>> phi = kbp.features.EmbeddingFeatures.draw(inner, 300, 2, bandwidths=jnp.array([0.2, 1.1]))
        >>> psi = kbp.features.TwoStage.draw(outer, 500, phi, width=0.5)
        >>> psi(jnp.ones((1, 2, 2))).shape
        (1, 500)
    """

    inner: FeatureMap
    frequencies: Float[Array, "feature inner"]
    phases: Float[Array, " feature"]

    @classmethod
    def draw(cls, key: PRNGKeyArray, num_features: int, inner: FeatureMap, width: ScalarLike) -> "TwoStage":
        """Return outer features as `EmbeddingFeatures.draw`; width > 0 is in units of distances of inner features.

        Use another key than for the inner map.
        """
        scale = positive_number("width", width).astype(jax.eval_shape(as_floats, inner.point).dtype)
        made = cls(inner, *_draw(key, num_features, (inner.rank,), scale))
        return _checks.finite_result("key, num_features, inner, width", made)

    @finite("x")
    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of points of the inner map."""
        return cosines(self.inner(x), self.frequencies, self.phases)

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points lie in the domain of the inner map."""
        self.inner.check(argument, x)

    @property
    def rank(self) -> int:
        """The number of features."""
        return len(self.phases)

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point."""
        return self.inner.point


class MeanVarianceFeatures(_Cosines):
    """Features of `MeanVariance`: random cosines of means and variances, with frequencies [feature, 2, d].

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> phi = kbp.features.MeanVarianceFeatures.draw(jax.random.key(0), 30, 1, mean_widths=1.0, variance_widths=0.5)
        >>> phi(jnp.ones((7, 2, 1))).shape
        (7, 30)
    """

    @classmethod
    def draw(
        cls, key: PRNGKeyArray, num_features: int, num_coordinates: int, mean_widths: Numbers, variance_widths: Numbers
    ) -> "MeanVarianceFeatures":
        """Return random features as `EmbeddingFeatures.draw`; widths as in `MeanVariance`."""
        _checks.require_count("num_coordinates", num_coordinates)
        means = _broadcast("mean_widths", mean_widths, num_coordinates)
        variances = _broadcast("variance_widths", variance_widths, num_coordinates)
        widths = jnp.stack([means, variances.astype(means.dtype)])
        names = "key, num_features, num_coordinates, mean_widths, variance_widths"
        return _checks.finite_result(names, cls(*_draw(key, num_features, (2, num_coordinates), widths)))

    @finite("x")
    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of means and variances [sample, 2, d]."""
        check_independent("points", x.shape[1:])
        _check_last(x, self.frequencies)
        flat = self.frequencies.reshape(len(self.frequencies), -1)
        return cosines(as_floats(x).reshape(len(x), -1), flat, self.phases)

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points are means and variances."""
        check_distributions(argument, x)
        check_independent(argument, x.shape[1:])

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point."""
        return jax.ShapeDtypeStruct(self.frequencies.shape[1:], self.frequencies.dtype)


class _Pair(FeatureMap):
    """Base class of feature maps that combine two maps on the same points."""

    left: FeatureMap
    right: FeatureMap

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points lie in the domains of both maps."""
        self.left.check(argument, x)
        self.right.check(argument, x)

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point: the larger of the two, if one map uses only some coordinates."""
        return max(self.left.point, self.right.point, key=lambda point: point.shape)


class Kronecker(_Pair):
    """Features of a product of kernels on the same points: all products of features of `left` and `right`.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> phi = kbp.features.cholesky_basis(kbp.Delta(), jnp.arange(3))
        >>> kbp.features.Kronecker(phi, phi)(jnp.arange(5)).shape
        (5, 9)
    """

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the products of features; the features of `right` vary fastest."""
        return (self.left(x)[:, :, None] * self.right(x)[:, None, :]).reshape(len(x), -1)

    @property
    def rank(self) -> int:
        """The number of features."""
        return self.left.rank * self.right.rank


class Concatenated(_Pair):
    """Features of a sum of kernels on the same points: the features of `left`, then of `right`.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> phi = kbp.features.cholesky_basis(kbp.Delta(), jnp.arange(3))
        >>> kbp.features.Concatenated(phi, phi)(jnp.arange(5)).shape
        (5, 6)
    """

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of `left`, then of `right`."""
        return jnp.concatenate([self.left(x), self.right(x)], axis=1)

    @property
    def rank(self) -> int:
        """The number of features."""
        return self.left.rank + self.right.rank


class Restricted(FeatureMap):
    """Features of the marginal distributions of the coordinates start .. stop - 1, as in `kernels.Coordinates`.

    Attributes:
        base: the feature map of the marginal distributions.
        start, stop: first coordinate, >= 0, and coordinate after the last one, > start.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.features import Concatenated, EmbeddingFeatures, Restricted
        >>> keys = jax.random.split(jax.random.key(0))
        >>> each = [Restricted(EmbeddingFeatures.draw(keys[i], 50, 1, bandwidths=1.0), i, i + 1) for i in range(2)]
        >>> Concatenated(*each)(jnp.ones((7, 2, 2))).shape
        (7, 100)
    """

    base: FeatureMap
    start: int = eqx.field(static=True, converter=_checks.whole)
    stop: int = eqx.field(static=True, converter=_checks.whole)

    def __check_init__(self) -> None:
        check_range(self.start, self.stop)

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of the marginal distributions."""
        return self.base(self._cut(x))

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless the marginal distributions lie in the domain of the base map."""
        check_shape(argument, x.shape[1:])
        self.base.check(argument, self._cut(x))

    def _cut(self, x: Shaped[Array, "sample *dim"]) -> Shaped[Array, "sample *part"]:
        return jax.vmap(lambda one: marginal(one, self.start, self.stop))(x)

    @property
    def rank(self) -> int:
        """The number of features."""
        return self.base.rank

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of the smallest point with all coordinates of the range, as means and variances."""
        return jax.ShapeDtypeStruct((2, self.stop), self.base.point.dtype)


@public
def draw_frequencies(key: PRNGKeyArray, shape: tuple[int, ...], bandwidths: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return frequencies [feature, *dim] of a Gaussian kernel, normal with standard deviation 1 / bandwidths.

    Bandwidths are > 0 and broadcast to the last axes of a frequency [*dim]; their dtype is the dtype of the result.

    Examples:
        >>> import jax, jax.numpy as jnp, kbpjax as kbp
        >>> w = kbp.features.draw_frequencies(jax.random.key(0), (1000,), jnp.array(0.5))
        >>> round(float(w.std()))
        2
    """
    fix = "Pass positive numbers."
    _checks.require(bandwidths.size > 0, "bandwidths", "must hold a number", f"shape {bandwidths.shape}", fix)
    if not _checks.is_traced(bandwidths):
        least = float(np.min(np.asarray(bandwidths)))
        smallest = float(jnp.finfo(bandwidths.dtype).tiny)
        _checks.require(least >= smallest, "bandwidths", "must be > 0", f"a minimum of {least:g}", fix)
    for size in shape:
        _checks.require_count("shape", size)
    _checks.require_memory("shape", "frequencies", 8 * math.prod(shape), "Draw fewer.")
    normal = jax.random.normal(key, shape, jnp.float32).astype(bandwidths.dtype)
    return normal / jnp.broadcast_to(bandwidths, shape)


@public
def draw_phases(key: PRNGKeyArray, num_features: int, dtype: np.dtype) -> Float[Array, " feature"]:
    """Return random phases, uniform in [0, 2 pi), of the given dtype.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> kbp.features.draw_phases(jax.random.key(0), 5, np.dtype("float32")).shape
        (5,)
    """
    _checks.require_count("num_features", num_features)
    _checks.require_memory("num_features", "phases", 8 * num_features, "Draw fewer.")
    return 2 * jnp.pi * jax.random.uniform(key, (num_features,), jnp.float32).astype(dtype)


@finite("x", "frequencies", "phases")
def cosines(
    x: Float[Array, "sample coordinate"],
    frequencies: Float[Array, "feature coordinate"],
    phases: Float[Array, " feature"],
) -> Float[Array, "sample feature"]:
    r"""Return the random features $\sqrt{2 / D} \cos(w_j^\top x + b_j)$ of vectors.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.features.cosines(jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.zeros(1))[0, 0]), 3)
        1.414
    """
    _checks.require(len(phases) > 0, "phases", "must have at least one feature", 0, "Pass one for each frequency.")
    angles = matmul(x, frequencies.T.astype(x.dtype)) + phases.astype(x.dtype)[None]
    return _amplitude(phases) * jnp.cos(angles)


def _draw(
    key: PRNGKeyArray, num_features: int, shape: tuple[int, ...], bandwidths: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, " feature"]]:
    """Return random frequencies and phases of one stage."""
    _checks.require_key(key)
    _checks.require_count("num_features", num_features)
    fits = bandwidths.shape in ((), shape)
    rule, got = f"must be one number or of shape {shape}", f"shape {bandwidths.shape}"
    _checks.require(fits, "bandwidths", rule, got, "Pass one per coordinate.")
    first, second = jax.random.split(key)
    phases = draw_phases(second, num_features, bandwidths.dtype)
    return draw_frequencies(first, (num_features, *shape), bandwidths), phases


def _broadcast(argument: str, widths: Numbers, count: int) -> Float[Array, " coordinate"]:
    array = positive_numbers(argument, widths)
    fits, got = array.shape in ((), (count,)), f"shape {array.shape}"
    _checks.require(fits, argument, f"must be one number or {count}", got, "Pass one per coordinate.")
    return jnp.broadcast_to(array, (count,))


def _amplitude(phases: Float[Array, " feature"]) -> float:
    """Return sqrt(2 / D)."""
    return (2 / len(phases)) ** 0.5


def _check_last(x: Shaped[Array, "sample *dim"], frequencies: Float[Array, "..."]) -> None:
    count = frequencies.shape[-1]
    rule = f"must have {count} coordinates, as the frequencies"
    _checks.require(x.shape[-1] == count, "points", rule, f"shape {x.shape}", "Draw features with this number.")
