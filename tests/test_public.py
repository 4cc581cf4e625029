"""Every public function and class has the layer that checks its arguments."""

import importlib
import inspect

from kbpjax._public import Checked, Kind
from tests.test_examples import BASELINES, COLLECTIONS, MODULES, public_names


def all_public():
    """Return {name: object} of the functions and classes that users meet."""
    found = {
        f"{module}.{name}": value for module in COLLECTIONS + MODULES for name, value in public_names(module).items()
    }
    for module, names in BASELINES.items():
        home = importlib.import_module(f"kbpjax.baselines.{module}")
        found |= {f"kbpjax.baselines.{module}.{name}": getattr(home, name) for name in names.split()}
    return found


RESULTS = {"Tuned", "Prediction", "Record", "ProductFactors", "NotConverged"}
"""What functions return or raise, and nobody else makes."""
OTHERS = {"Alphabet", "GraphRegressor"}
"""Checked by their own code: not modules of Equinox."""


def has_layer(value):
    if inspect.isclass(value):
        known = issubclass(value, Warning) or value.__name__ in RESULTS | OTHERS
        return known or issubclass(value, Checked)
    return hasattr(value, "layer")


def test_all_public_functions_and_classes_have_the_layer():
    found = all_public()
    assert len(found) > 200
    assert not [name for name, value in found.items() if not has_layer(value)]


def test_all_annotations_can_be_read():
    """An annotation that cannot be resolved would only fail when a user calls the function."""
    layers = [getattr(value, "layer", None) for value in all_public().values() if not inspect.isclass(value)]
    kinds = [kind for layer in layers if layer is not None for kind in layer.kinds.values()]
    assert len(kinds) > 300 and all(isinstance(kind, Kind) for kind in kinds)
