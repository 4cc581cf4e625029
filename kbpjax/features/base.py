"""What every finite feature map can do, and what every way of choosing one can do."""

import abc

import equinox as eqx
import jax
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax.kernels import Kernel


class FeatureMap(eqx.Module):
    """A map from points to vectors, phi(x) in R^rank, with <phi(x), phi(y)> close to k(x, y)."""

    @abc.abstractmethod
    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of points [sample, *dim]."""

    def check(self, argument: str, x: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError, naming the argument, unless points lie in the domain; tracers pass."""
        del argument, x

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """The number of features."""

    @property
    @abc.abstractmethod
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point."""


class Chooser(eqx.Module):
    """A way to make a feature map for a kernel and samples."""

    @abc.abstractmethod
    def feature_map(
        self, kernel: Kernel, x: Shaped[Array, "sample *dim"], eps: ScalarLike, max_rank: int
    ) -> tuple[FeatureMap, Float[Array, ""]]:
        """Make a feature map, and say how well it represents the samples.

        Args:
            kernel: the kernel.
            x: samples [sample, *dim].
            eps: tolerance > 0 on the residual norms of the samples, as a share of the largest feature norm.
            max_rank: most features, >= 1.

        Returns:
            The feature map, and the largest residual norm as a share of the largest feature norm.
        """

    @property
    @abc.abstractmethod
    def products(self) -> "Chooser":
        """The chooser for bases of products of messages, which need landmarks to be evaluated at."""


@jax.jit
def features(feature_map: FeatureMap, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
    """Return the features phi of points; <phi(x), phi(y)> is close to k(x, y).

    Args:
        feature_map: the feature map.
        x: points [sample, *dim].

    Returns:
        Features [sample, rank].
    """
    return feature_map(x)
