"""Programs that are compiled quickly: the same answers, inside other compiled functions too."""

import contextlib
import sys
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import _misc
from tests.programs import python

OPTIMISED = True  # else the options are left out


@contextlib.contextmanager
def as_users_may_set_it():
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


@partial(_misc.quick_jit, static_argnames="power")
def powers(x, power):
    return jnp.cumsum(x**power)


X = np.linspace(0.1, 1.0, 7)
EXPECTED = np.cumsum(X**3)


@pytest.mark.parametrize(
    "nested",
    [
        lambda: jax.jit(lambda x: powers(x, 3))(X),
        lambda: jax.jit(lambda zero: zero + powers(jnp.asarray(X), 3))(0.0),  # of a constant
        lambda: jax.vmap(partial(powers, power=3))(X[None])[0],
        lambda: jax.lax.map(partial(powers, power=3), X[None])[0],
    ],
    ids=["argument", "constant", "vmap", "map"],
)
def test_inside_of_other_functions(nested):
    chex.assert_trees_all_close(nested(), EXPECTED, rtol=1e-12)


def test_outside():
    chex.assert_trees_all_close(powers(X, power=3), EXPECTED, rtol=1e-12)
    before = powers.program()._cache_size()
    powers(2 * X, power=3)
    assert powers.program()._cache_size() == before


def test_derivatives():
    gradient = jax.grad(lambda x: powers(x, 3)[-1])(X)
    chex.assert_trees_all_close(gradient, 3 * X**2, rtol=1e-12)


@pytest.mark.parametrize("level", ["quick", "quickest"])
def test_options_that_this_version_lacks_are_left_out(level, monkeypatch):
    options = _misc.LEVELS[level]
    known = _misc._known_options(level)
    lost = set() if jax.__version__.startswith(("0.10.", "0.11.0")) else {"xla_cpu_use_fusion_emitters"}
    assert known == {name: value for name, value in options.items() if name not in lost}
    monkeypatch.setitem(_misc.LEVELS, level, {"xla_no_such_option": True, **options})
    assert _misc._known_options.__wrapped__(level) == known


def test_levels_depend_on_arguments_and_have_equal_answers(monkeypatch):
    asked, known = [], _misc._known_options
    monkeypatch.setattr(_misc, "_known_options", lambda level: asked.append(level) or known(level))
    of_size = lambda x, power: "quick" if len(x) > 4 else "quickest"
    leveled = _misc.quick_jit(powers.__wrapped__, level=of_size, static_argnames="power")
    for count in (3, 7):
        chex.assert_trees_all_close(leveled(X[:count], 3), EXPECTED[:count], rtol=1e-12)
    assert asked == ["quickest", "quick"]


def test_settings_of_the_user_stay():
    quick = powers.program()
    with as_users_may_set_it():
        plain = powers.program()
        chex.assert_trees_all_close(powers(X, 3), EXPECTED, rtol=1e-12)
    assert plain is not quick and powers.program() is quick


CACHED = """
import sys, jax, kbpjax as kbp
print(kbp.enable_compilation_cache(sys.argv[1]))
read = []
jax.monitoring.register_event_listener(lambda event, **_: read.append(event.endswith("cache_hits")))
jax.jit(lambda x: x + 1)(1.0)
print(any(read))
"""


def test_a_later_process_reads_what_an_earlier_one_compiled(tmp_path):
    folder = tmp_path / "new" / "folder"
    first, second = (python("-c", CACHED, folder).stdout.split() for _ in range(2))
    assert first == [str(folder), "False"] and second == [str(folder), "True"]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"folder: must be a folder that can be written to; got .*Pass another"):
        kbp.enable_compilation_cache(tmp_path / "file")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not count maps")
def test_programs_are_forgotten_before_there_are_too_many():
    """A process that has as many memory maps as it may have ends: fits of many data sets would lose all of them."""
    double = jax.jit(lambda x: 2 * x)
    double(1.0)
    _misc.make_room(10**9)
    assert double._cache_size() == 1
    _misc.make_room(1)
    assert double._cache_size() == 0
    assert double(2.0) == 4.0
