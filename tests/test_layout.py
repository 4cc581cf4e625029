"""Sums, maxima and broadcasts over a short first axis, against NumPy and finite differences, in both modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from kbpjax import layout

COUNTS = [1, 2, 3, 63, 64, 65, 200]


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 2, 3))


@pytest.mark.parametrize("count", COUNTS)
def test_folds_are_reductions(count):
    array, scale = rows(count), np.abs(rows(1, 1)) + 0.1
    given = jnp.asarray(array)
    np.testing.assert_allclose(layout.add_rows(given), array.sum(axis=0, keepdims=True), rtol=1e-12, atol=1e-12)
    squares = ((array * scale) ** 2).sum(axis=0, keepdims=True)
    np.testing.assert_allclose(layout.add_squares(given, jnp.asarray(scale)), squares, rtol=1e-12)
    np.testing.assert_array_equal(layout.largest_row(given), array.max(axis=0, keepdims=True))
    absolute = layout.fold(jnp.maximum, given, jnp.abs)
    np.testing.assert_array_equal(absolute, np.abs(array).max(axis=0, keepdims=True))
    np.testing.assert_array_equal(layout.spread(given[:1], count), np.broadcast_to(array[:1], array.shape))


@pytest.mark.parametrize("count", [1, 3, 65])
@pytest.mark.parametrize("name", ["add_rows", "add_squares", "largest_row", "spread"])
def test_derivatives_are_right_in_both_modes_and_mapped(name, count):
    scale = jnp.asarray(np.abs(rows(1, 1)) + 0.1)
    functions = {
        "add_rows": layout.add_rows,
        "add_squares": lambda array: layout.add_squares(array, scale),
        "largest_row": layout.largest_row,
        "spread": lambda array: layout.spread(array[:1], count),
    }
    array = jnp.asarray(rows(count))

    def function(array):
        return functions[name](jnp.asarray(array))

    check_grads(function, (array,), order=1, modes=("fwd", "rev"), atol=1e-6, rtol=1e-6)
    check_grads(lambda array: jnp.sin(function(array**2) / 30), (array,), order=2, modes=("rev",), atol=1e-4, rtol=1e-4)
    batch = jnp.stack([array, array + 1])

    def slope(array):
        return jax.grad(lambda array: jnp.sum(function(array) ** 2))(array)

    np.testing.assert_allclose(jax.vmap(slope)(batch), jnp.stack([slope(one) for one in batch]), rtol=1e-12)


def test_the_derivative_of_a_maximum_is_shared_by_ties():
    array = jnp.array([[1.0], [3.0], [3.0]])
    slope = jax.grad(lambda array: jnp.sum(layout.largest_row(array)))(array)
    np.testing.assert_array_equal(slope, [[0.0], [0.5], [0.5]])


def test_a_constant_has_no_slope_and_nan_stays():
    assert jax.grad(lambda x: jnp.sum(layout.add_squares(jnp.ones((3, 1)), x)))(jnp.ones((1, 1))) == 0
    array = jnp.array([[1.0], [jnp.nan], [0.0]])
    assert all(np.isnan(function(array)) for function in (layout.add_rows, layout.largest_row))


@pytest.mark.parametrize("shape", [(4, 3), (5, 4, 3), (2, 5, 4, 3)])
def test_turned_values_have_columns_first_and_slots_last_but_one(shape):
    values = np.random.default_rng(0).normal(size=shape)
    turned = layout.slots_last(jnp.asarray(values))
    assert turned.shape[0] == 3 and turned.shape[layout.slot_axis(turned)] == 4
    np.testing.assert_array_equal(layout.slots_first(turned), values)
    for slot, part in enumerate(layout.split(turned, layout.slot_axis(turned))):
        np.testing.assert_array_equal(layout.long_first(part), values[..., slot, :])
