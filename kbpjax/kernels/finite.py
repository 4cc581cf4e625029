"""Kernels on finite sets."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from kbpjax.kernels.base import Kernel, as_floats


class Delta(Kernel):
    """The Kronecker kernel: 1 where two points are equal in every entry, else 0. With it the model is a discrete one.

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float(kbp.Delta()(jnp.array(3), jnp.array(3)))
        1.0
    """

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return 1 if x equals y, else 0."""
        return jnp.all(x == y).astype(as_floats(x).dtype)
