"""Every public function and class has the layer that checks its arguments."""

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import kbpjax as kbp
from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import Checked, Layer, public
from tests.refusals import not_refused
from tests.test_examples import BASELINES, COLLECTIONS, MODULES, public_names


def all_public():
    """Return {name: object} of the functions and classes that users meet."""
    modules = [*COLLECTIONS, *MODULES, *(f"kbpjax.baselines.{name}" for name in BASELINES)]
    return {f"{module}.{name}": value for module in modules for name, value in public_names(module).items()}


RESULTS = {"Tuned", "Prediction", "Record", "ProductFactors", "NotConverged"}
"""What functions return or raise, and nobody else makes."""
OTHERS = {"Alphabet", "GraphImputer", "GraphRegressor", "skip_value_checks", "Schedule", "enable_compilation_cache"}
"""Checked by their own code, as they are not modules of Equinox; without arguments; or a protocol."""


def has_layer(value):
    if inspect.isclass(value):
        known = issubclass(value, Warning) or value.__name__ in RESULTS | OTHERS
        return known or issubclass(value, Checked)
    return hasattr(value, "__layer__") or value.__name__ in OTHERS


def test_all_public_functions_and_classes_have_the_layer():
    found = all_public()
    assert len(found) > 200
    assert not [name for name, value in found.items() if not has_layer(value)]


def layers(value):
    """Return the layers of a function; or of a class and of its own methods."""
    if not inspect.isclass(value):
        return [value.__layer__] if hasattr(value, "__layer__") else []
    methods = [getattr(method, "__func__", method) for method in vars(value).values()]
    own = [Layer(value.__init__, value)] if issubclass(value, Checked) else []
    return own + [method.__layer__ for method in methods if inspect.isfunction(method) and hasattr(method, "__layer__")]


def test_all_annotations_can_be_read():
    """One that cannot be resolved checks nothing."""
    found = [layer for value in all_public().values() for layer in layers(value)]
    assert len(found) > 400 and sum(len(layer.kinds) for layer in found) > 1000
    for layer in found:
        target = inspect.unwrap(layer.function)
        assert typing.get_type_hints(target).keys() <= {*layer.kinds, "self", "cls", "return"}, layer.name


class Pair(Checked):
    """A class of a user, with a converter and a method."""

    points: Float[Array, "point *dim"]
    count: int = eqx.field(static=True, default=1, converter=lambda value: value)
    kernel: kbp.Kernel | dict[int, kbp.Kernel] | None = None

    def longest(self, others: Sequence[kbp.Kernel], mode: Literal["a", "b"] = "a") -> int:
        return len(others) + len(mode)


@public
def swap(graph: kbp.Graph, belief: kbp.Belief, at: tuple[int, float] = (0, 0.5), **options: bool) -> tuple[Any, ...]:
    return graph, belief, at


def test_kinds_of_arguments_are_refused_or_converted():
    graph, belief = kbp.chain_graph(2), kbp.Belief([0.0, 1.0], [[0.5, 0.5]])
    assert belief.weights.dtype == jnp.result_type(float) and isinstance(belief.points, jax.Array)
    assert Pair(np.float32([1, 2])).points.dtype == jnp.float32
    assert Pair([1, 2], np.int64(3)).count == 3
    assert swap(graph, belief, [np.int32(1), 2])[2] == (1, 2.0)
    pair = Pair([1.0])
    calls = {
        "rank": (lambda: Pair(1.0), r"points: must be a float array \[point, \*dim\]; got an array float64\[\]"),
        "text": (lambda: Pair("a"), "points: must be an array; got 'a'"),
        "a half": (lambda: Pair([1.0], 2.5), "count: must be an integer; got 2.5"),
        "a class": (
            lambda: Pair([1.0], kernel=kbp.RBF),
            "kernel: must be a Kernel, .* or None; got the class RBF. Pass an",
        ),
        "a key": (
            lambda: Pair([1.0], kernel={True: kbp.Linear()}),
            "kernel: must have integers >= 0 as keys; got .True",
        ),
        "an item": (lambda: Pair([1.0], kernel={1: None}), r"kernel\[1\]: must be a Kernel; got None"),
        "swapped": (
            lambda: swap(belief, graph),
            "graph: must be a Graph; got a Belief. It fits belief: are the arguments",
        ),
        "length": (lambda: swap(graph, belief, (1,)), "at: must have 2 items; got 1"),
        "of a tuple": (lambda: swap(graph, belief, (0.5, 1)), r"at\[0\]: must be an integer; got 0.5"),
        "of a method": (lambda: pair.longest([kbp.Linear(), 1]), r"others\[1\]: must be a Kernel; got 1"),
        "a choice": (lambda: pair.longest([], "c"), "mode: must be 'a' or 'b'; got 'c'"),
    }
    assert not not_refused(calls)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        swap(graph)
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        pair.longest([], size=1)


def test_signatures_and_documentation_are_those_of_the_function():
    assert list(inspect.signature(kbp.run).parameters)[:3] == ["model", "graph", "evidence"]
    assert list(inspect.signature(kbp.ConstantTime).parameters)[:2] == ["eps", "max_rank"]
    assert "Run loopy belief propagation" in kbp.run.__doc__


def test_modules_pass_through_transformations_unchecked():
    """Leaves that are not arrays, as of a pytree that is being mapped, are not arguments."""
    pair = Pair([1.0, 2.0])
    assert jax.tree.map(lambda leaf: "leaf", pair).points == "leaf"
    assert eqx.partition(pair, eqx.is_array)[1].points is None
    assert jax.vmap(lambda x: Pair(x[None]))(jnp.arange(3.0)).points.shape == (3, 1)


class Interval(Checked):
    """A class of a user, with fields that any numbers become."""

    requires_finite = True

    low: Float[Array, "*batch"]
    width: Float[Array, "*batch"]
    scales: dict[int, Float[Array, ""]] | None
    offset: Float[Array, ""] | None

    def __init__(
        self,
        low: Numbers,
        width: Numbers,
        scales: dict[int, Float[Array, ""]] | None = None,
        offset: Float[Array, ""] | None = None,
    ):
        self.low, self.width, self.scales, self.offset = jnp.asarray(low), jnp.asarray(width), scales, offset

    @classmethod
    def from_logs(cls, low: Numbers, log_width: Numbers) -> "Interval":
        made = cls.trusted(low, jnp.exp(jnp.asarray(log_width)))
        return _checks.finite_result("low, log_width", made)


class Width(kbp.Kernel):
    """A kernel of a user, which requires finite parameters as all do."""

    width: Float[Array, ""]

    def __call__(self, x: Array, y: Array) -> Array:
        return jnp.exp(-self.width * jnp.sum((x - y) ** 2))


@public
def apply(fn: Callable[[Array], Array], wrap: Callable[[Iterable], Iterable] = list) -> Any:
    return [fn(x) for x in wrap(jnp.arange(2.0))]


def test_nan_and_infinity_are_refused_in_objects_that_require_finite_numbers():
    calls = {
        "an array": (lambda: Interval([1.0, np.nan], 1.0), "low: must be finite; got 1 NaN or infinite of 2 values"),
        "an integer": (lambda: Interval(1, -np.inf), "width: must be finite; got -inf"),
        "in a mapping": (
            lambda: Interval(0.0, 1.0, {3: jnp.inf}),
            r"scales\[3\]: must be finite; got inf. Pass a finite number",
        ),
        "optional": (lambda: Interval(0.0, 1.0, offset=jnp.array(np.nan)), "offset: must be finite; got nan"),
        "what becomes a field": (lambda: Interval(np.nan, [1.0]), "low: must be finite; got nan"),
        "the result": (
            lambda: Interval.from_logs(0.0, [1.0, 1e6]),
            "low, log_width: must give a finite Interval; got 1 parameters that are NaN or infinite",
        ),
        "inherited": (lambda: Width(np.nan), "width: must be finite; got nan"),
        "a class": (lambda: apply(complex), "fn: must be a function; got the class complex"),
    }
    assert not not_refused(calls)
    assert float(Interval([0], 3.0, {0: 2.0}, 3.0).width) == 3
    assert [float(x) for x in apply(jnp.square, tuple)] == [0.0, 1.0]


def test_results_may_be_anything_and_are_not_read(monkeypatch):
    """Reading them from the device would wait for it."""
    monkeypatch.setattr(_checks, "require_finite", None)
    assert np.isnan(Interval.trusted(jnp.nan, 1.0).low)
    assert np.isnan(kbp.Belief.trusted([0.0], [[np.nan]]).weights).all()
    uniform = kbp.ep.Gaussian.trusted(0.0, 0.0)
    assert float((uniform * uniform).precision) == 0 and np.isnan((uniform / uniform).mean)


def test_public_names_are_listed():
    named = {name for name, value in vars(kbp).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert named - set(kbp.__all__) == {"Any", "TYPE_CHECKING"}
    assert all(hasattr(kbp, name) for name in kbp.__all__)
