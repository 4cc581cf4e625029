"""How an update multiplies messages and adds over points: with sums or with maxima, plainly or in logarithms.

With sums, beliefs are marginals; with maxima over tables of potentials >= 0, max-marginals, whose modes are on trees
the most probable joint state (max-product). Both are one update with another addition.

Arrays have their points last, as everywhere, but are computed on with their points first (`kbpjax.layout`):
in memory the many messages stand one after the other, which is up to four times as fast.
"""

import math
from functools import reduce

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kbpjax._precision import einsum, matmul
from kbpjax.layout import (
    add_rows,
    largest_row,
    long_first,
    long_last,
    slot_axis,
    slots_first,
    slots_last,
    split,
    spread,
)

FEW = 16
"""Tiles up to which each has a matrix product of its own, which is faster than one product of all."""

SHORT = 8
"""Slots up to which products are formed slot by slot."""

UNROLL = 8
"""Points whose maxima are taken in one pass over memory."""

FAINT = 40.0
"""Minus the logarithm of the size to which products in logarithms are scaled where they are smaller."""


class SumProduct(eqx.Module):
    """Add: the update is a matrix product."""

    def others(
        self, values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"]
    ) -> Float[Array, "*axes deg point"]:
        """Return, for each slot, `whole` times the product of the other slots."""
        return leave_one_out(values, whole)

    def apply(
        self, matrices: Float[Array, "tile_or_1 rank point"], products: Float[Array, "*tiles edge point"]
    ) -> Float[Array, "*tiles edge rank"]:
        """Return sum_p matrices_rp products_ep of each tile; a single matrix serves all tiles."""
        return apply_by_tile(matrices, products)


class MaxProduct(eqx.Module):
    """Take the largest term instead of the sum; for tables with entries >= 0."""

    def others(
        self, values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"]
    ) -> Float[Array, "*axes deg point"]:
        """Return, for each slot, `whole` times the product of the other slots."""
        return leave_one_out(values, whole)

    def apply(
        self, matrices: Float[Array, "tile_or_1 rank point"], products: Float[Array, "*tiles edge point"]
    ) -> Float[Array, "*tiles edge rank"]:
        """Return max_p matrices_rp products_ep of each tile; a single matrix serves all tiles."""
        turned = long_last(products)
        num_points, *tiles, num_edges = turned.shape
        columns = jnp.moveaxis(matrices, 0, -1)[..., None]

        def larger(best: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
            of_ranks, of_edges = column
            return jnp.maximum(best, of_ranks * of_edges[None]), None

        both = jnp.moveaxis(columns, 1, 0), turned.reshape(num_points, math.prod(tiles), num_edges)
        least = jnp.zeros((matrices.shape[1], *both[1].shape[1:]), products.dtype)
        best = jax.lax.scan(larger, least, both, unroll=UNROLL)[0]
        return long_first(best.reshape(len(best), *tiles, num_edges))


class InLogs(eqx.Module):
    """Multiply in logarithms, so that messages that contradict each other do not underflow to a product of 0.

    Needed where potentials are so sharp that the probable states of one message have less than about 1e-10 in another
    (f32); slower than plain products.

    Args:
        addition: `SumProduct()` or `MaxProduct()`.
    """

    addition: SumProduct | MaxProduct = SumProduct()

    def others(
        self, values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"]
    ) -> Float[Array, "*axes deg point"]:
        """Return, for each slot, `whole` times the product of the other slots, scaled up where that is very small."""
        logs, known = log_or_least(slots_last(values)), long_last(whole)
        axis = slot_axis(logs)
        by_slot = jnp.moveaxis(logs, axis, 0)
        total = add_rows(by_slot) + log_or_least(known)[None]
        others = jnp.moveaxis(spread(total, len(by_slot)) - by_slot, 0, axis)
        largest = jax.lax.stop_gradient(largest_row(others))
        products = jnp.exp(others - jnp.minimum(largest + FAINT, 0))
        return slots_first(jnp.where(jnp.expand_dims(known, axis) > 0, products, 0))

    def apply(
        self, matrices: Float[Array, "tile_or_1 rank point"], products: Float[Array, "*tiles edge point"]
    ) -> Float[Array, "*tiles edge rank"]:
        """Return what the addition does."""
        return self.addition.apply(matrices, products)


def apply_by_tile(
    matrices: Float[Array, "tile_or_1 out column"], values: Float[Array, "*tiles row column"]
) -> Float[Array, "*tiles row out"]:
    """Return sum_c matrices_oc values_c of each tile; a single matrix serves all tiles."""
    turned = long_last(values)
    size, *tiles, num_rows = turned.shape
    num_tiles = math.prod(tiles)
    if len(matrices) == 1:
        flat = matmul(matrices[0], turned.reshape(size, num_tiles * num_rows))
    elif 0 < num_tiles <= FEW:
        of_tile = zip(matrices, _by_tile(turned, len(tiles)), strict=True)
        flat = jnp.concatenate([matmul(*both) for both in of_tile], axis=1)
    else:
        by_tile = jnp.moveaxis(turned.reshape(size, num_tiles, num_rows), 1, 0)
        # Without barriers a compiler moves the axes inside the product, which is then five times as slow.
        by_tile = einsum("toc,tca->toa", matrices, jax.lax.optimization_barrier(by_tile))
        flat = jnp.moveaxis(by_tile, 1, 0)
    return long_first(flat.reshape(matrices.shape[1], *tiles, num_rows))


def _by_tile(turned: Array, num_axes: int) -> list[Array]:
    """Take the axes of the tiles apart, the last first, which is the one that products were put together on."""
    if num_axes == 0:
        return [turned]
    of_last = [_by_tile(part, num_axes - 1) for part in split(turned, num_axes)]
    return [part for tiles in zip(*of_last, strict=True) for part in tiles]


Arithmetic = SumProduct | MaxProduct | InLogs


def log_or_zero(values: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return logarithms, -inf of what is not positive, with a derivative of 0 there; NaN stays NaN."""
    dark = values <= 0
    return jnp.where(dark, -jnp.inf, jnp.log(jnp.where(dark, 1, values)))


def log_or_least(values: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return logarithms, of what is smaller than the least normal number that of the least; NaN stays."""
    return jnp.log(jnp.maximum(values, jnp.finfo(values.dtype).tiny))


def leave_one_out(
    values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"]
) -> Float[Array, "*axes deg point"]:
    """Return, for each slot, `whole` times the product of the other slots: a balanced tree, exact at zeros.

    The product of every eight slots is scaled to largest value 1, so that no number of messages underflows.
    """
    turned, known = slots_last(values), long_last(whole)
    axis = slot_axis(turned)
    if turned.shape[axis] > SHORT:
        return slots_first(_others(turned, jnp.expand_dims(known, axis), axis, 0))
    return slots_first(jnp.stack(_each(split(turned, axis), known), axis=axis))


def _each(values: list[Array], whole: Array) -> list[Array]:
    """Return, for each slot, `whole` times the product of the others; a compiler keeps them apart."""
    if len(values) == 1:
        return [whole]
    left, right = values[: len(values) // 2], values[len(values) // 2 :]
    return _each(left, whole * reduce(jnp.multiply, right)) + _each(right, whole * reduce(jnp.multiply, left))


def _others(values: Array, whole: Array, axis: int, level: int) -> Array:
    num_slots = values.shape[axis]
    if num_slots == 1:
        return whole
    if num_slots % 2:
        one = jnp.ones_like(jax.lax.slice_in_dim(values, 0, 1, axis=axis))
        values = jnp.concatenate([values, one], axis=axis)
    left, right = jnp.split(values, 2, axis=axis)
    pairs = left * right
    if level % 3 == 2:
        largest = largest_row(pairs)
        pairs = pairs / spread(jnp.where(largest > 0, largest, 1), len(pairs))
    above = _others(pairs, whole, axis, level + 1)
    others = jnp.concatenate([above * right, above * left], axis=axis)
    return jax.lax.slice_in_dim(others, 0, num_slots, axis=axis)
