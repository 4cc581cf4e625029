"""How arrays of messages are computed on: with their coordinates or points first, and the long axes last in memory.

Functions take and return messages row by row [edge, rank], values [edge, point], as one reads and writes them. Inside,
each turns its arrays with `long_last` and turns the outcome back with `long_first`; between two such functions, a
compiler drops both. On a CPU this is 2 to 4 times as fast as rows of a few numbers each: matrix products with the long
axis last are. Sums over the short first axis are added up term by term, since a reduction there is some 50 times as
slow; the derivatives of these functions have none either.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

TERMS = 64
"""Most terms of one sum; more are added up in turns."""


def long_last(array: Float[Array, "*axes column"]) -> Float[Array, "column *axes"]:
    """Move the last axis to the front."""
    return jnp.moveaxis(array, -1, 0)


def long_first(array: Float[Array, "column *axes"]) -> Float[Array, "*axes column"]:
    """Move the first axis to the end."""
    return jnp.moveaxis(array, 0, -1)


def slots_last(values: Float[Array, "*axes deg column"]) -> Float[Array, "column *all"]:
    """Move the last axis to the front, and the slots, on the axis before it, to `slot_axis`."""
    turned = long_last(values)
    return jnp.moveaxis(turned, -1, slot_axis(turned))


def slots_first(turned: Float[Array, "column *all"]) -> Float[Array, "*axes deg column"]:
    """Undo `slots_last`."""
    return long_first(jnp.moveaxis(turned, slot_axis(turned), -1))


def slot_axis(turned: Float[Array, "column *all"]) -> int:
    """Return the axis of the slots: the last but one, after that of the columns."""
    return max(1, turned.ndim - 2)


def fold(
    operation: Callable[[Array, Array], Array],
    array: Float[Array, "row *axes"],
    of: Callable[[Array], Array] = lambda term: term,
) -> Float[Array, "one *axes"]:
    """Reduce `of(array)` over its first axis, of length >= 1, by an operation such as `jnp.add` or `jnp.maximum`.

    `of` is applied to each term, so that a compiler makes one loop of all. Derivatives are right, but slow.
    """
    size = -(-len(array) // TERMS)
    terms = [of(array[start : start + size]) for start in range(0, len(array), size)]
    rest = terms.pop() if len(array) % size else None
    whole = reduce(operation, terms)
    if rest is not None:
        whole = jnp.concatenate([operation(whole[: len(rest)], rest), whole[len(rest) :]])
    return whole if size == 1 else fold(operation, whole)


@jax.custom_jvp
def add_rows(array: Float[Array, "row *axes"]) -> Float[Array, "one *axes"]:
    """Add over the first axis."""
    return fold(jnp.add, array)


@add_rows.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return add_rows(*primals), _product(1, *tangents)


@jax.custom_jvp
def add_squares(array: Float[Array, "row *axes"], scale: Float[Array, "one *axes"]) -> Float[Array, "one *axes"]:
    """Add the squares of `array * scale` over the first axis; `scale` counts as constant."""
    return fold(jnp.add, array, lambda term: (term * scale) ** 2)


@partial(add_squares.defjvp, symbolic_zeros=True)
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (array, scale), (change, _) = primals, tangents
    if isinstance(change, jax.custom_derivatives.SymbolicZero):
        return add_squares(array, scale), jnp.zeros_like(scale)
    return add_squares(array, scale), _product(1, 2 * (array * scale) * (scale * change))


@jax.custom_jvp
def largest_row(array: Float[Array, "row *axes"]) -> Float[Array, "one *axes"]:
    """Return the maximum over the first axis; its derivative is the mean of those of the largest."""
    return fold(jnp.maximum, array)


@largest_row.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    array, largest = *primals, largest_row(*primals)
    among = (array == largest).astype(array.dtype)
    return largest, _product(1, among * tangents[0]) / jnp.maximum(_product(1, among), 1)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def spread(row: Float[Array, "one *axes"], count: int) -> Float[Array, "row *axes"]:
    """Repeat the only row."""
    return jnp.broadcast_to(row, (count, *row.shape[1:]))


@spread.defjvp
def _(count: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    return spread(primals[0], count), _product(count, *tangents)


def _product(count: int, rows: Any) -> Float[Array, "count *axes"]:
    """Return `count` sums over the first axis, as a matrix product, which is quick in either mode of derivatives."""
    ones = jnp.ones((count, len(rows)), rows.dtype)
    return jnp.tensordot(ones, rows, axes=1, precision="highest")


def split(array: Array, axis: int) -> list[Array]:
    """Return the slices along an axis, without it; the derivative puts them together again at once."""
    if array.shape[axis] == 1:
        return [jnp.squeeze(array, axis)]
    slices = jax.lax.split(array, [1] * array.shape[axis], axis)
    return [jnp.squeeze(part, axis) for part in slices]
