"""Every public name shows how it is used: an Example in its docstring, which the doctests run."""

import dataclasses
import importlib
import inspect

import numpy as np
import pytest

import kbpjax as kbp

COLLECTIONS = ("kbpjax", "kbpjax.kernels", "kbpjax.features", "kbpjax.ep")
MODULES = ("kbpjax.sharded", "kbpjax.plotting", "kbpjax.io", "kbpjax.estimator")
BASELINES = (
    *("discrete", "evidence", "gaussian", "nonparametric"),
    *("nonparametric.density", "nonparametric.expectation_particle", "nonparametric.mixtures"),
    *("nonparametric.pairwise", "nonparametric.particle", "nonparametric.products"),
)


def public_names(name):
    """Return {name: object} of the classes and functions in `__all__` of a module."""
    module = importlib.import_module(name)
    return {key: getattr(module, key) for key in module.__all__ if callable(getattr(module, key))}


@pytest.mark.parametrize("module", COLLECTIONS + MODULES)
def test_every_public_name_has_an_example(module):
    names = public_names(module)
    assert names
    assert not without_example(names)


@pytest.mark.parametrize("module", BASELINES)
def test_every_name_of_the_baselines_that_users_meet_has_an_example(module):
    assert not without_example(public_names(f"kbpjax.baselines.{module}"))


def without_example(names):
    return [key for key, value in names.items() if ">>>" not in (inspect.getdoc(value) or "")]


BUILT = ("Graph", "Parts", "Tree", "Partition")  # by functions, which make integers of Python


@pytest.mark.parametrize("module", COLLECTIONS)
def test_counts_that_users_pass_may_be_those_of_numpy(module):
    """Equinox warns of a NumPy number in a static field, which sweeps over settings would meet."""
    classes = [value for value in public_names(module).values() if dataclasses.is_dataclass(value)]
    counts = [(c, field) for c in classes for field in dataclasses.fields(c) if field.init and is_count(field)]
    left = {f"{c.__name__}.{field.name}" for c, field in counts if "converter" not in field.metadata}
    assert not {name for name in left if name.partition(".")[0] not in BUILT}


def is_count(field):
    return field.metadata.get("static", False) and field.type in (int, int | None)


def test_counts_of_numpy_become_those_of_python():
    assert type(kbp.Anderson(depth=np.int64(3)).depth) is int
    assert type(kbp.kernels.Polynomial(np.int64(2)).degree) is int
