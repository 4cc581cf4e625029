"""Every public name shows how it is used: an Example in its docstring, which the doctests run."""

import importlib
import inspect

import pytest

COLLECTIONS = ("kbpjax", "kbpjax.kernels", "kbpjax.features", "kbpjax.baselines", "kbpjax.ep")
MODULES = ("kbpjax.parallel", "kbpjax.plotting", "kbpjax.io", "kbpjax.estimator")


def public_names(name):
    """Return {name: object} of the classes and functions of kbpjax in a module; of a plain one, its own alone."""
    module = importlib.import_module(name)
    found = {key: value for key, value in vars(module).items() if not key.startswith("_") and callable(value)}
    homes = {key: getattr(value, "__module__", None) or "" for key, value in found.items()}
    ours = {key for key, home in homes.items() if (home == name if name in MODULES else home.startswith("kbpjax"))}
    return {key: found[key] for key in sorted(ours)}


@pytest.mark.parametrize("module", COLLECTIONS + MODULES)
def test_every_public_name_has_an_example(module):
    names = public_names(module)
    without = [key for key, value in names.items() if ">>>" not in (inspect.getdoc(value) or "")]
    assert names
    assert not without
