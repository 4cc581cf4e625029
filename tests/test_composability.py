"""docs/composing.md runs as written and tells the truth: a network in a kernel, trained by optax or by `tune`."""

import dataclasses
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kbpjax as kbp

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).resolve().parent.parent / "docs" / "composing.md").read_text(encoding="utf-8")


def as_users_have_it():
    """Leave strict mode: optax and the page's own code mix dtypes as JAX allows by default."""
    return jax.numpy_dtype_promotion("standard")


@pytest.fixture(scope="module")
def page(quick_compilation):
    """Run all blocks of the page in order, and return its names."""
    names = {"__name__": "page"}
    with as_users_have_it():
        exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), names)
    return names


@pytest.fixture(scope="module")
def held(page):
    """Landmarks at the start."""
    return page["select"](page["free"])


@pytest.fixture(scope="module")
def slopes(page):
    """Value and gradient of the page's loss over its training cases."""
    return jax.jit(jax.value_and_grad(page["loss"]))


def moved(free, direction, step):
    return jax.tree.map(lambda a, d: a + step * d, free, direction)


def directions(free, count=2):
    """Draw directions that move every number, and one that moves all but the network."""
    leaves, tree = jax.tree.flatten(free)
    rng = np.random.default_rng(1)
    drawn = [jax.tree.unflatten(tree, [jnp.asarray(rng.normal(size=a.shape)) for a in leaves]) for _ in range(count)]
    network = jax.tree.map(jnp.zeros_like, free["kernel"]["obs"])
    return [*drawn, {**drawn[0], "kernel": {**drawn[0]["kernel"], "obs": network}}]


def assert_central_differences(both, free, held, cases):
    value, gradient = both(free, held, cases)
    assert jnp.isfinite(value)
    for direction in directions(free):
        along = sum(jnp.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (gradient, direction)), strict=True))

        def slope(step, direction=direction):
            ahead, behind = (both(moved(free, direction, sign * step), held, cases)[0] for sign in (1, -1))
            return (ahead - behind) / (2 * step)

        expected = (4 * slope(1e-4) - slope(2e-4)) / 3  # without the curvature's share
        assert abs(expected) > 1e-3
        np.testing.assert_allclose(along, expected, rtol=1e-6)


def test_the_network_pays(page):
    prior = jnp.var(page["test"][0])
    assert page["after"] < page["plain"] / 10
    assert page["after"] < page["before"] / 15
    assert page["plain"] < prior  # what it is compared with has learned something
    assert page["ten_steps"]._cache_size() == 1


def test_the_page_says_what_came_out(page):
    (said,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    shown = [float(x) for x in re.findall(r"\d+\.\d+", said)]
    got = [jnp.var(page["test"][0]), page["plain"], page["before"], page["after"]]
    np.testing.assert_allclose(shown[:3], got[:3], rtol=0.25)  # initial weights differ between precisions
    assert max(shown[3], got[3]) < min(shown[2], got[2]) / 5  # and so does the end of training


def test_unrolled_gradients_equal_central_differences(page, held, slopes):
    assert_central_differences(slopes, page["free"], held, page["train"])


def test_implicit_gradients_equal_central_differences(page, held):
    at_fixed_point = partial(page["loss"], num_iters=300, tol=1e-12)
    both = jax.jit(jax.value_and_grad(at_fixed_point))
    few = jax.tree.map(lambda a: a[:6], page["train"])
    assert_central_differences(both, page["free"], held, few)


def test_scan_over_steps_equals_a_python_loop(page, held, slopes):
    with as_users_have_it():
        (_, _), values = page["ten_steps"](page["free"], page["optimizer"].init(page["free"]), held)
    free, state = page["free"], page["optimizer"].init(page["free"])
    for expected in values:
        value, gradient = slopes(free, held, page["train"])
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        with as_users_have_it():
            change, state = page["optimizer"].update(gradient, state)
        free = moved(free, change, 1.0)


def test_tune_learns_the_network(page):
    network = page["Deep"](jax.random.key(0), page["outputs"])
    start = dataclasses.replace(page["start"], obs_kernel=network)
    options = {"steps": 16, "every": 8, "optimizer": optax.adam(0.02), "progress": False}
    tuned = kbp.tune(start, page["data"], page["graph"], *page["train"], page["points"], **options)
    weights = tuned.history["obs_kernel.first.weight"]
    others = {"obs_kernel.second.weight", "obs_kernel.scale", "kernel.bandwidth", "ridge"}
    assert others <= set(tuned.history)
    assert weights.shape == (16, *network.first.weight.shape)
    np.testing.assert_array_equal(weights[0], network.first.weight)
    assert bool(jnp.any(weights[0] < 0)) and bool(jnp.any(weights[0] > 0))
    # Learned as they are: the first step of Adam moves each by its rate, which of logarithms it would not.
    np.testing.assert_allclose(np.abs(weights[1] - weights[0]), 0.02, rtol=1e-2)
    assert min(tuned.checks.values()) < tuned.checks[0] / 3
