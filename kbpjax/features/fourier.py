"""Random Fourier features of the Gaussian kernel (Rahimi and Recht 2007), independent of the samples.

The Gaussian kernel is the mean of cos(w . (x - y) / bandwidth) over standard normal w (Bochner), and cos(a - b) =
cos a cos b + sin a sin b. With D / 2 fixed draws w_j, the features of a point are

    phi(x) = sqrt(2 / D) [cos(w_j . x / bandwidth), sin(w_j . x / bandwidth)]_j,

with norm 1. The error of <phi(x), phi(y)> as an estimate of k(x, y) is about D^{-1/2}, for points of any dimension.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._misc import matmul
from kbpjax.features.base import FeatureMap, LandmarkSelector, features
from kbpjax.features.cholesky import PivotedCholesky
from kbpjax.kernels import RBF, Kernel, Power, gram
from kbpjax.kernels.base import as_floats

PROBES = 256
"""Maximum number of samples whose pairs give the error estimate of the features."""


class FourierBasis(FeatureMap):
    """Random Fourier features of the Gaussian kernel; differentiable in the bandwidth and in the points.

    An angle w . x / bandwidth has the relative precision of its dtype: center the points near 0.

    Attributes:
        frequencies: standard normal directions w [pair of features, *dim].
        bandwidth: bandwidth of the kernel.
        dtype: dtype of the points.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> x = jnp.linspace(0, 1, 50)
        >>> basis, _ = kbp.RandomFourier(1000).feature_map(kbp.RBF(1.0), x, 1e-2, 20)
        >>> phi = basis(x)
        >>> phi.shape, bool(abs((phi**2).sum(axis=1) - 1).max() < 1e-4)  # every point has norm 1
        ((50, 1000), True)
    """

    frequencies: Float[Array, "pair *dim"]
    bandwidth: Float[Array, ""]
    dtype: np.dtype = eqx.field(static=True)

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of points [sample, *dim]: all cosines, then all sines."""
        x = as_floats(x)
        axes = tuple(range(1, x.ndim))
        scaled = x / self.bandwidth.astype(x.dtype)
        angles = jnp.tensordot(scaled, self.frequencies.astype(x.dtype), (axes, axes), precision="highest")
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1) / len(self.frequencies) ** 0.5

    @property
    def rank(self) -> int:
        """The number of features, two per frequency."""
        return 2 * len(self.frequencies)

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point."""
        return jax.ShapeDtypeStruct(self.frequencies.shape[1:], self.dtype)


class RandomFourier(LandmarkSelector):
    """Random Fourier features of a Gaussian kernel or its powers; products of messages use pivoted Cholesky.

    Args:
        num_features: number of features D, even and >= 2; the error of the kernel decreases as D^{-1/2}.
        seed: seed of the draw, an integer >= 0; not a key, because this object is hashable and compared by value.

    Raises:
        ValueError: num_features or seed is out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import RandomFourier
        >>> basis, residual = RandomFourier(1000).feature_map(kbp.RBF(1.0), jnp.linspace(0, 1, 50), 1e-2, 20)
        >>> basis.rank, bool(residual < 0.3)
        (1000, True)
    """

    num_features: int = eqx.field(static=True, converter=_checks.whole)
    seed: int = eqx.field(static=True, default=0, converter=_checks.whole)

    def __check_init__(self) -> None:
        count = self.num_features
        ok = isinstance(count, int) and not isinstance(count, bool) and count >= 2 and count % 2 == 0
        fix = "Features come in pairs of a cosine and a sine."
        _checks.require(ok, "num_features", "must be an even integer >= 2", repr(count), fix)
        _checks.require_seed(self.seed)

    def feature_map(
        self, kernel: Kernel, x: Shaped[Array, "sample *dim"], eps: ScalarLike, max_rank: int
    ) -> tuple[FourierBasis, Float[Array, ""]]:
        """Return random features; they depend only on the shape and dtype of samples. `eps` and `max_rank` are ignored.

        Returns:
            The features, and the residual sqrt(max |k(x, y) - <phi(x), phi(y)>|) over the pairs of at most 256 evenly
            thinned samples.

        Raises:
            ValueError: the kernel is not RBF or one of its powers.
        """
        bandwidth = _bandwidth(kernel, kernel)
        # Draws in single precision give the same frequencies in every precision.
        shape = (self.num_features // 2, *x.shape[1:])
        frequencies = jax.random.normal(jax.random.key(self.seed), shape, jnp.float32)
        basis = FourierBasis(frequencies.astype(jax.eval_shape(as_floats, x).dtype), bandwidth, x.dtype)
        probes = np.linspace(0, len(x) - 1, min(len(x), PROBES)).round().astype(np.int32)
        return basis, jax.lax.stop_gradient(_residual(kernel, basis, x[probes]))

    @property
    def products(self) -> PivotedCholesky:
        """`PivotedCholesky`, because products of messages are represented by values at landmarks."""
        return PivotedCholesky()


def _bandwidth(kernel: Kernel, given: Kernel) -> Float[Array, ""]:
    """Return the bandwidth of a Gaussian kernel or of a power of one; errors name the kernel `given`."""
    if isinstance(kernel, Power):
        return _bandwidth(kernel.base, given) / kernel.exponent**0.5
    fix = "Use kbpjax.RBF(bandwidth) or an integer power of it, or landmarks: kbpjax.PivotedCholesky()."
    _checks.require(isinstance(kernel, RBF), "kernel", "must be RBF or a power of it for Fourier features", given, fix)
    assert isinstance(kernel, RBF)
    return kernel.bandwidth


@jax.jit
def _residual(kernel: Kernel, basis: FourierBasis, x: Shaped[Array, "sample *dim"]) -> Float[Array, ""]:
    phi = features(basis, x)
    return jnp.sqrt(jnp.max(jnp.abs(gram(kernel, x, x) - matmul(phi, phi.T))))
