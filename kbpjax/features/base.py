"""Base classes of finite feature maps and of landmark selectors."""

import abc

import jax
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax._misc import show_fields
from kbpjax._public import Checked, finite
from kbpjax.kernels import Kernel


class FeatureMap(Checked):
    r"""A map from points to vectors $\phi(x)$ [rank], with $\langle \phi(x), \phi(y) \rangle$ close to $k(x, y)$.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.features import FeatureMap, features
        >>> class Line(FeatureMap):  # of the kernel 1 + x y
        ...     rank, point = 2, jax.ShapeDtypeStruct((), jnp.result_type(float))
        ...
        ...     def __call__(self, x):
        ...         return jnp.stack([jnp.ones_like(x), x], axis=1)
        >>> features(Line(), jnp.array([2.0, 3.0])).tolist()
        [[1.0, 2.0], [1.0, 3.0]]
    """

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

    __repr__ = show_fields


class LandmarkSelector(Checked):
    """A method that builds a feature map for a kernel and samples, usually from selected landmarks.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import LandmarkSelector, cholesky_basis
        >>> class Thinned(LandmarkSelector):  # evenly thinned samples as landmarks
        ...     products = kbp.PivotedCholesky()
        ...
        ...     def feature_map(self, kernel, x, eps, max_rank):
        ...         basis = cholesky_basis(kernel, x[:: -(-len(x) // max_rank)], rounding=max_rank)
        ...         return basis, kbp.learning.embedding.feature_residual(kernel, basis, x)
        >>> basis, residual = Thinned().feature_map(kbp.RBF(1.0), jnp.linspace(0, 1, 50), 1e-2, 5)
        >>> basis.rank, bool(residual < 0.1)
        (5, True)
    """

    @abc.abstractmethod
    def feature_map(
        self, kernel: Kernel, x: Shaped[Array, "sample *dim"], eps: ScalarLike, max_rank: int
    ) -> tuple[FeatureMap, Float[Array, ""]]:
        """Return a feature map and the maximum residual norm of the samples.

        Args:
            kernel: the kernel.
            x: samples [sample, *dim].
            eps: tolerance > 0 on the residual norms of the samples, relative to the maximum feature norm.
            max_rank: maximum number of features, >= 1.

        Returns:
            The feature map, and the maximum residual norm relative to the maximum feature norm.
        """

    @property
    @abc.abstractmethod
    def products(self) -> "LandmarkSelector":
        """The selector for bases of products of messages, which must have landmarks."""

    __repr__ = show_fields


@finite("x")
@jax.jit
def features(feature_map: FeatureMap, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
    r"""Return the features $\phi$ of points; $\langle \phi(x), \phi(y) \rangle$ is close to $k(x, y)$.

    Args:
        feature_map: the feature map.
        x: points [sample, *dim].

    Returns:
        Features [sample, rank].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import cholesky_basis, features
        >>> x, kernel = jnp.array([0.0, 1.0, 3.0]), kbp.RBF(1.0)
        >>> phi = features(cholesky_basis(kernel, x), x)
        >>> bool(abs(phi @ phi.T - kbp.gram(kernel, x, x)).max() < 1e-5)
        True
    """
    return feature_map(x)
