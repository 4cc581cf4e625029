"""How an update multiplies messages and adds over points: with sums or with maxima, plainly or in logarithms.

With sums, beliefs are marginals; with maxima over tables of potentials >= 0, max-marginals, whose modes are on trees
the most probable joint state (max-product). Both are one update with another addition.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kbpjax._precision import einsum

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
        self, matrices: Float[Array, "tile rank point"], products: Float[Array, "tile edge point"]
    ) -> Float[Array, "tile edge rank"]:
        """Return sum_p matrices_rp products_ep of each tile."""
        return einsum("tep,trp->ter", products, matrices)


class MaxProduct(eqx.Module):
    """Take the largest term instead of the sum; for tables with entries >= 0."""

    def others(
        self, values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"]
    ) -> Float[Array, "*axes deg point"]:
        """Return, for each slot, `whole` times the product of the other slots."""
        return leave_one_out(values, whole)

    def apply(
        self, matrices: Float[Array, "tile rank point"], products: Float[Array, "tile edge point"]
    ) -> Float[Array, "tile edge rank"]:
        """Return max_p matrices_rp products_ep of each tile."""

        def larger(best: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
            of_ranks, of_edges = column
            return jnp.maximum(best, of_edges[:, :, None] * of_ranks[:, None, :]), None

        columns = jnp.moveaxis(matrices, -1, 0), jnp.moveaxis(products, -1, 0)
        least = jnp.zeros((*products.shape[:2], matrices.shape[1]), products.dtype)
        return jax.lax.scan(larger, least, columns, unroll=UNROLL)[0]


class InLogs(eqx.Module):
    """Multiply in logarithms, so that messages that contradict each other do not underflow to a product of 0.

    Needed where potentials are so sharp that the probable states of one message have less than about 1e-10 in another
    (f32); slower than plain products. For `kbpjax.run`: `run_tree` multiplies plainly.

    Args:
        addition: `SumProduct()` or `MaxProduct()`.
    """

    addition: SumProduct | MaxProduct = SumProduct()

    def others(
        self, values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"]
    ) -> Float[Array, "*axes deg point"]:
        """Return, for each slot, `whole` times the product of the other slots, scaled up where that is very small."""
        logs, known = log_or_least(values), log_or_least(whole)[..., None, :]
        others = jnp.sum(logs, axis=-2, keepdims=True) - logs + known
        largest = jax.lax.stop_gradient(jnp.max(others, axis=-1, keepdims=True))
        products = jnp.exp(others - jnp.minimum(largest + FAINT, 0))
        return jnp.where(whole[..., None, :] > 0, products, 0)

    def apply(
        self, matrices: Float[Array, "tile rank point"], products: Float[Array, "tile edge point"]
    ) -> Float[Array, "tile edge rank"]:
        """Return what the addition does."""
        return self.addition.apply(matrices, products)


Arithmetic = SumProduct | MaxProduct | InLogs


def log_or_least(values: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return logarithms, of what is smaller than the least normal number that of the least; NaN stays."""
    return jnp.log(jnp.maximum(values, jnp.finfo(values.dtype).tiny))


def leave_one_out(
    values: Float[Array, "*axes deg point"], whole: Float[Array, "*axes point"], level: int = 0
) -> Float[Array, "*axes deg point"]:
    """Return, for each slot, `whole` times the product of the other slots: a balanced tree, exact at zeros.

    The product of every eight slots is scaled to largest value 1, so that no number of messages underflows.
    """
    num_slots = values.shape[-2]
    if num_slots == 1:
        return whole[..., None, :]
    if num_slots % 2:
        values = jnp.concatenate([values, jnp.ones_like(values[..., :1, :])], axis=-2)
    left, right = values[..., 0::2, :], values[..., 1::2, :]
    pairs = left * right
    if level % 3 == 2:
        largest = jnp.max(pairs, axis=-1, keepdims=True)
        pairs = pairs / jnp.where(largest > 0, largest, 1)
    above = leave_one_out(pairs, whole, level + 1)
    others = jnp.stack([above * right, above * left], axis=-2)
    return others.reshape(values.shape)[..., :num_slots, :]
