"""A kernel is one method on single points; `+`, `*` and integer `**` build kernels from kernels; `gram` does the rest.

For positive definite k1 and k2 the kernels k1 + k2, k1 k2 and k1^p are positive definite too. The p-th power is the
kernel of the p-fold tensor product feature, in which products of p messages live (Song et al. 2011, section 5.2).
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks


class Kernel(eqx.Module):
    """A positive definite function of two points; a pytree whose leaves are its parameters."""

    @abc.abstractmethod
    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(x, y) for two single points of the same shape."""

    def __add__(self, other: "Kernel") -> "Sum":
        """Return the kernel k1(x, y) + k2(x, y)."""
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel") -> "Product":
        """Return the kernel k1(x, y) k2(x, y)."""
        return Product(self, other) if isinstance(other, Kernel) else NotImplemented

    def __pow__(self, exponent: int) -> "Power":
        """Return the kernel k(x, y)^p for a whole number p >= 1."""
        return Power(self, exponent)


class Sum(Kernel):
    """The sum of two kernels: k1(x, y) + k2(x, y)."""

    left: Kernel
    right: Kernel

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k1(x, y) + k2(x, y)."""
        return self.left(x, y) + self.right(x, y)


class Product(Kernel):
    """The product of two kernels: k1(x, y) k2(x, y)."""

    left: Kernel
    right: Kernel

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k1(x, y) k2(x, y)."""
        return self.left(x, y) * self.right(x, y)


class Power(Kernel):
    """A whole power of a kernel: k(x, y)^p."""

    base: Kernel
    exponent: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _checks.require_count("exponent", self.exponent)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(x, y)^p."""
        return self.base(x, y) ** self.exponent


def gram(kernel: Kernel, x: Shaped[Array, "left *dim"], y: Shaped[Array, "right *dim"]) -> Float[Array, "left right"]:
    """Evaluate a kernel at all pairs of two sets of points: K_ij = k(x_i, y_j).

    Example:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kbp.gram(kbp.Linear(), jnp.array([1.0, 2.0]), jnp.array([3.0])).tolist()
        [[3.0], [6.0]]
    """
    return jax.vmap(lambda a: jax.vmap(lambda b: kernel(a, b))(y))(x)


def diagonal(kernel: Kernel, x: Shaped[Array, "sample *dim"]) -> Float[Array, " sample"]:
    """Evaluate a kernel at each point with itself: k(x_i, x_i)."""
    return jax.vmap(lambda a: kernel(a, a))(x)


def as_floats(x: Shaped[Array, "*dim"]) -> Float[Array, "*dim"]:
    """Return floats as they are, and integers or booleans in the default float precision."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def like(x: Shaped[Array, "*dim"], dtype: jnp.dtype) -> Shaped[Array, "*dim"]:
    """Return points in the float precision of known ones; where either are whole numbers, as they are."""
    both = jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.floating)
    return x.astype(dtype) if both else x
