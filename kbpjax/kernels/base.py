"""Base class of kernels, operators that combine kernels, and Gram matrices.

A kernel implements one method on single points. `+`, `*` and integer `**` combine kernels, and `gram` evaluates them.

For positive definite k1 and k2, w >= 0 and any function f, the kernels k1 + k2, w k1, k1 k2, k1^p and k1(f(x), f(y))
are positive definite too. The p-th power is the kernel of the p-fold tensor product feature; products of p messages lie
in its RKHS (Song et al. 2011, section 5.2).

`gram` computes features and norms of single points once per point, not once per pair, because `jax.vmap` moves them out
of the inner loop.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show, show_fields
from kbpjax._public import Checked, finite, public


def _on_arrays(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the `__call__` of a kernel, with numbers and lists converted to arrays."""

    @functools.wraps(call)
    def converted(self: Kernel, x: Any, y: Any) -> Any:
        x, y = _point("x", x), _point("y", y)
        shapes = [getattr(one, "shape", None) for one in (x, y)]
        try:
            return call(self, x, y)
        except (TypeError, ValueError) as error:
            if shapes[0] == shapes[1]:
                raise
            fix = "For sets of points use kbpjax.gram."
            raise ValueError(f"x, y: must be two points of one shape; got {shapes}. {fix}") from error

    return converted


def _point(argument: str, x: Any) -> Any:
    """Return a point, also one of a frame, as an array; arrays and other pytrees are unchanged."""
    if isinstance(x, bool | int | float | list | tuple | str | bytes | _checks.Frame) or x is None:
        x = _checks.as_array(argument, x)
    if isinstance(x, np.ndarray | jax.Array):
        _checks.require_finite(argument, x, "Drop this point.")
    return x


class Kernel(Checked):
    """A positive definite function of two points; a pytree whose leaves are its parameters.

    A point is an array, a number or a nested list of numbers; `__call__` of a subclass always gets arrays.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> class Angle(kbp.Kernel):  # on a circle
        ...     def __call__(self, x, y):
        ...         return (1 + jnp.cos(x - y)) / 2
        >>> kbp.gram(Angle(), jnp.array([0.0, jnp.pi]), jnp.array([0.0])).tolist()
        [[1.0], [0.0]]
        >>> kernel = (Angle() + kbp.RBF(1.0)) ** 2  # also a kernel
    """

    requires_finite = True

    __array_ufunc__ = None  # so that NumPy defers `number * kernel` to the kernel

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of fields that are data, not parameters; `tune` does not optimize them."""
        return ()

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            cls.__call__ = _on_arrays(vars(cls)["__call__"])

    @abc.abstractmethod
    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(x, y) for two single points of the same shape.

        Examples:
            >>> import kbpjax as kbp
            >>> round(float(kbp.RBF(1.0)([0.0, 0.0], [1.0, 1.0])), 3)  # exp(-1)
            0.368
        """

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError, naming the argument, unless points lie in the kernel's domain.

        `gram`, `fit`, `observe`, `clamp` and `beliefs` call it on their arguments; tracers pass. The default accepts
        any points.
        """
        del argument, points

    def __add__(self, other: "Kernel | ScalarLike") -> "Kernel":
        """Return the kernel k1(x, y) + k2(x, y), or k(x, y) + c for a number c > 0.

        Examples:
            >>> import kbpjax as kbp
            >>> kernel = kbp.Linear() + 2.0
            >>> float(kernel(1.5, 2.0))  # 1.5 * 2 + 2
            5.0
        """
        if isinstance(other, Kernel):
            return Sum(self, other)
        if not _is_number(other):
            return NotImplemented
        return self if isinstance(other, int) and other == 0 else Sum(self, Constant(other))  # sum(kernels) starts at 0

    __radd__ = __add__

    def __mul__(self, other: "Kernel | ScalarLike") -> "Product | Scaled":
        """Return the kernel k1(x, y) k2(x, y), or w k(x, y) for a number w > 0.

        Examples:
            >>> import kbpjax as kbp
            >>> kernel = 0.5 * kbp.Linear() * kbp.Delta()
            >>> float(kernel(2.0, 2.0)), float(kernel(2.0, 3.0))  # 0.5 * 4, and 0 for different points
            (2.0, 0.0)
        """
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, other) if _is_number(other) else NotImplemented

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> "Power":
        """Return the kernel k(x, y)^p for an integer p >= 1.

        Examples:
            >>> import kbpjax as kbp
            >>> kernel = (kbp.Linear() + 1.0) ** 2
            >>> float(kernel(1.0, 2.0))  # (1 * 2 + 1)^2
            9.0
        """
        return Power(self, exponent)

    __repr__ = show_fields


class Sum(Kernel):
    """The sum of two kernels: k1(x, y) + k2(x, y).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = kbp.Linear() + kbp.Delta()
        >>> float(kernel(jnp.array(3.0), jnp.array(3.0))), float(kernel(jnp.array(3.0), jnp.array(2.0)))
        (10.0, 6.0)
    """

    left: Kernel
    right: Kernel

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k1(x, y) + k2(x, y)."""
        return self.left(x, y) + self.right(x, y)

    def __repr__(self) -> str:
        return " + ".join(show(k.value) if isinstance(k, Constant) else repr(k) for k in (self.left, self.right))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points lie in the domains of both kernels."""
        self.left.check(argument, points)
        self.right.check(argument, points)


class Product(Kernel):
    """The product of two kernels: k1(x, y) k2(x, y).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = kbp.Linear() * kbp.Delta()
        >>> float(kernel(jnp.array(3.0), jnp.array(3.0))), float(kernel(jnp.array(3.0), jnp.array(2.0)))
        (9.0, 0.0)
    """

    left: Kernel
    right: Kernel

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k1(x, y) k2(x, y)."""
        return self.left(x, y) * self.right(x, y)

    def __repr__(self) -> str:
        return f"{_in_brackets(self.left, Sum)} * {_in_brackets(self.right, Sum)}"

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points lie in the domains of both kernels."""
        self.left.check(argument, points)
        self.right.check(argument, points)


class Constant(Kernel):
    """The constant kernel, k(x, y) = c, whose functions are constants; `kernel + 1.0` adds it.

    Args:
        value: number c > 0; a trainable parameter.

    Raises:
        ValueError: value is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = kbp.Linear() + 1.0  # functions a x + b
        >>> float(kernel(jnp.array(3.0), jnp.array(2.0)))
        7.0
        >>> mixture = sum(kbp.RBF(width) for width in (0.1, 1.0))
        >>> float(mixture(jnp.array(1.0), jnp.array(1.0)))
        2.0
    """

    value: Float[Array, ""]

    def __init__(self, value: ScalarLike):
        self.value = positive_number("value", value)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return c."""
        del y
        return self.value.astype(as_floats(x).dtype)


class Wrapper(Kernel):
    """Base class of kernels that modify another kernel on the same points."""

    base: eqx.AbstractVar[Kernel]

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless points lie in the domain of the base kernel."""
        self.base.check(argument, points)


class Power(Wrapper):
    """An integer power of a kernel: k(x, y)^p.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> float((kbp.Linear() ** 2)(jnp.array(3.0), jnp.array(2.0)))
        36.0
    """

    base: Kernel
    exponent: int = eqx.field(static=True, converter=_checks.whole)

    def __check_init__(self) -> None:
        _checks.require_count("exponent", self.exponent)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(x, y)^p."""
        return self.base(x, y) ** self.exponent

    def __repr__(self) -> str:
        return f"{_in_brackets(self.base, Sum, Product, Scaled, Power)}**{self.exponent}"


class Scaled(Wrapper):
    """A weighted kernel, w k(x, y); `2.0 * kernel` returns it.

    Args:
        base: the kernel.
        weight: number w > 0; a trainable parameter, for instance of a sum of kernels.

    Raises:
        ValueError: weight is not a positive finite number.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = 0.25 * kbp.RBF(1.0) + 0.75 * kbp.RBF(10.0)
        >>> float(kernel(jnp.array(1.0), jnp.array(1.0)))
        1.0
    """

    base: Kernel
    weight: Float[Array, ""]

    def __init__(self, base: Kernel, weight: ScalarLike):
        self.base = base
        self.weight = positive_number("weight", weight)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return w k(x, y)."""
        value = self.base(x, y)
        return self.weight.astype(value.dtype) * value

    def __repr__(self) -> str:
        return f"{show(self.weight)} * {_in_brackets(self.base, Sum)}"


class Normalized(Wrapper):
    r"""The normalized kernel $k(x, y) / \sqrt{k(x, x) \, k(y, y)}$, or 0 if either feature is 0.

    It is the cosine of the angle between features. Use it for strings and graphs, whose kernels grow with their size.

    Args:
        base: the kernel.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> round(float(kbp.kernels.Normalized(kbp.Linear())(jnp.array([3.0, 4.0]), jnp.array([1.0, 0.0]))), 4)
        0.6
    """

    base: Kernel

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(x, y) / sqrt(k(x, x) k(y, y))."""
        return self.base(x, y) * _inverse_root(self.base(x, x)) * _inverse_root(self.base(y, y))


class Transformed(Kernel):
    """A kernel of transformed points, k(f(x), f(y)); with `Linear`, f is an explicit feature map.

    Args:
        transform: a traceable function of a single point [*dim]. Its parameters are trainable if it is a pytree, for
            instance a neural network that is an `equinox.Module`.
        base: the kernel of the transformed points.

    Raises:
        ValueError: transform is not a function, or base is not a kernel.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kernel = kbp.kernels.Transformed(lambda x: jnp.stack([x, x**2]), kbp.Linear())
        >>> float(kernel(jnp.array(2.0), jnp.array(3.0)))
        42.0
    """

    transform: Callable[[Array], Array]
    base: Kernel

    def __init__(self, transform: Any, base: Any):
        _checks.require(callable(transform), "transform", "must be a function", repr(transform), "Pass f(x [*dim]).")
        fix = "Pass for instance kbpjax.Linear()."
        _checks.require(isinstance(base, Kernel), "base", "must be a kernel", repr(base), fix)
        pytree: Any = transform if isinstance(transform, eqx.Module | Partial) else Partial(transform)
        self.transform = pytree
        self.base = base

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(f(x), f(y))."""
        return self.base(self.transform(x), self.transform(y))


class Part(Kernel):
    """A kernel of a slice of a structured variable: k(x[start:stop], y[start:stop]).

    A variable with several parts is the concatenation of its parts. A sum of kernels of parts is large if any part is
    similar, a product only if all parts are similar.

    Args:
        base: the kernel of the part.
        start: first index of the part on the first axis of a point, >= 0.
        stop: index after the last one, > start.
        shape: shape of the part that the kernel expects, for instance (3, 3) or (); None: the shape of the slice.

    Raises:
        ValueError: start or stop is out of range, or the shape has another size.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.kernels import Part
        >>> kernel = Part(kbp.RBF(1.0), 0, 2) * Part(kbp.Delta(), 2, 3)  # a position in the plane, and a label
        >>> float(kernel(jnp.array([0.0, 1.0, 5.0]), jnp.array([0.0, 1.0, 6.0])))
        0.0
    """

    base: Kernel
    start: int = eqx.field(static=True, converter=_checks.whole)
    stop: int = eqx.field(static=True, converter=_checks.whole)
    shape: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        ends = [self.start, self.stop]
        ok = all(isinstance(end, int) for end in ends) and 0 <= self.start < self.stop
        got = f"{self.start}, {self.stop}"
        _checks.require(ok, "start, stop", "must be 0 <= start < stop", got, "Number the entries from 0.")
        if self.shape is not None:
            rule = "must have the size of the part, stop - start"
            fits = math.prod(self.shape) == self.stop - self.start
            _checks.require(fits, "shape", rule, self.shape, f"The part has {self.stop - self.start} entries.")

    def cut(self, x: Shaped[Array, "*dim"]) -> Shaped[Array, "..."]:
        """Return the part of a single point."""
        fix = "Use stop <= the length of a point."
        _checks.require(x.ndim > 0, "points", "must have at least one axis", f"shape {x.shape}", fix)
        fits = self.stop <= x.shape[0]
        _checks.require(fits, "points", f"must have at least {self.stop} entries", f"shape {x.shape}", fix)
        part = x[self.start : self.stop]
        return part if self.shape is None else part.reshape(self.shape)

    def __call__(self, x: Shaped[Array, "*dim"], y: Shaped[Array, "*dim"]) -> Float[Array, ""]:
        """Return k(x[start:stop], y[start:stop])."""
        return self.base(self.cut(x), self.cut(y))

    def check(self, argument: str, points: Shaped[Array, "sample *dim"]) -> None:
        """Raise ValueError unless the parts lie in the domain of the base kernel."""
        self.base.check(argument, jax.vmap(self.cut)(points))


@public
def gram(
    kernel: Kernel,
    x: Shaped[Array, "left *dim"] | Numbers,
    y: Shaped[Array, "right *dim"] | Numbers,
    *,
    block_size: int | None = None,
) -> Float[Array, "left right"]:
    """Return the Gram matrix of two sets of points: $K_{ij} = k(x_i, y_j)$.

    Args:
        kernel: the kernel.
        x: points [left, *dim], an array or a nested list.
        y: points [right, *dim].
        block_size: number of rows to compute at a time. It bounds the memory of kernels with large intermediate
            results, for instance on strings and graphs. None: all rows at once.

    Returns:
        The kernel's values [left, right].

    Raises:
        ValueError: points are outside the domain of the kernel, or block_size < 1.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.gram(kbp.Linear(), [1.0, 2.0], [3.0]).tolist()
        [[3.0], [6.0]]
    """
    left, right = _points("x", x), _points("y", y)
    kernel.check("x", left)
    kernel.check("y", right)
    if block_size is not None:
        _checks.require_count("block_size", block_size)
    return _gram(kernel, left, right, block_size)


@eqx.filter_jit
def _gram(kernel: Kernel, x: Array, y: Array, block_size: int | None) -> Array:
    if block_size is not None:
        return jax.lax.map(lambda a: jax.vmap(lambda b: kernel(a, b))(y), x, batch_size=block_size)
    return jax.vmap(lambda a: jax.vmap(lambda b: kernel(a, b))(y))(x)


@finite("x")
def diagonal(kernel: Kernel, x: Shaped[Array, "sample *dim"]) -> Float[Array, " sample"]:
    """Return the diagonal of the Gram matrix: k(x_i, x_i).

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kbp.kernels.diagonal(kbp.Linear(), jnp.array([1.0, 2.0, 3.0])).tolist()
        [1.0, 4.0, 9.0]
    """
    return jax.vmap(lambda a: kernel(a, a))(x)


def random_rows(count: int, max_points: int) -> np.ndarray:
    """Return the indices of all rows, or of `max_points` of them, a random subset that is the same in every call."""
    if count <= max_points:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, max_points, replace=False))


def _points(argument: str, x: Any) -> Array:
    """Return points [point, *dim] as an array."""
    array = _checks.as_array(argument, x)
    fix = "One point is [x]."
    _checks.require(array.ndim > 0, argument, "must have shape [point, *dim]", f"shape {array.shape}", fix)
    _checks.require_finite(argument, array, "Drop these points.")
    return array


def _in_brackets(kernel: Kernel, *classes: type[Kernel]) -> str:
    """Return the text of a kernel, in brackets if it is of one of the classes."""
    return f"({kernel!r})" if isinstance(kernel, classes) else repr(kernel)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0


def positive_number(argument: str, value: ScalarLike) -> Float[Array, ""]:
    """Return a parameter as a float array; raise ValueError unless it is finite and > 0 in its precision."""
    _checks.require_number(argument, value, above=0)
    array = as_floats(value) if isinstance(value, jax.Array) else _as_known(value)
    _checks.require_number(argument, array, above=0, fix="Scale the data: it vanishes in this precision.")
    return _strong(array)


def _as_known(value: Any) -> np.ndarray:
    """Return a number of Python or NumPy in the precision that JAX gives it, without the device."""
    array = np.asarray(value)
    dtype = array.dtype if jnp.issubdtype(array.dtype, np.floating) else np.float64
    with np.errstate(over="ignore"):
        return array.astype(jax.dtypes.canonicalize_dtype(dtype))


@jax.jit
def _strong(array: Array) -> Array:
    """Return an array with a strong type, for a weak one would compile twice; the call is the quickest transfer."""
    return array.astype(array.dtype)


def _inverse_root(value: Float[Array, ""]) -> Float[Array, ""]:
    """Return value^(-1/2), or 0 unless value > 0."""
    ok = value > 0
    return jnp.where(ok, jax.lax.rsqrt(jnp.where(ok, value, 1)), 0)


def as_floats(x: Shaped[Array, "*dim"]) -> Float[Array, "*dim"]:
    """Return floats unchanged, and integers or booleans in the default float precision."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def like(x: Shaped[Array, "*dim"], dtype: jnp.dtype) -> Shaped[Array, "*dim"]:
    """Return points converted to a float dtype, or unchanged if either dtype is not a float."""
    both = jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.floating)
    return x.astype(dtype) if both else x
