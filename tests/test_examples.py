"""Every public name shows how it is used: an Example in its docstring, which the doctests run."""

import dataclasses
import importlib
import inspect

import numpy as np
import pytest

import kbpjax as kbp

COLLECTIONS = ("kbpjax", "kbpjax.kernels", "kbpjax.features", "kbpjax.ep")
MODULES = ("kbpjax.sharded", "kbpjax.plotting", "kbpjax.io", "kbpjax.estimator")
BASELINES = {
    "discrete": "Indicators bins fit from_potentials run",
    "evidence": "transfer_evidence",
    "gaussian": "GaussianFactors GaussianMRF GaussianSolution GaussianTemplate beliefs check fit likelihood observe run"
    " thin_membrane walk_summability",
    "nonparametric": "ExactSampler GibbsSampler MultiscaleSampler NonparametricSolution beliefs run",
    "nonparametric.density": "ConditionalDensity RegressionLikelihood fit_conditional fit_likelihood fit_parzen",
    "nonparametric.expectation_particle": "run",
    "nonparametric.mixtures": "GaussianMixture",
    "nonparametric.pairwise": "Conditionals EdgePotential NodePotential PairwiseMRF Ratios fit",
    "nonparametric.particle": "ParticleSolution beliefs mean run variance",
    "nonparametric.products": "ProductFactors exact_product sample_gibbs sample_multiscale",
}


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
    assert names
    assert not without_example(names)


@pytest.mark.parametrize("module", BASELINES)
def test_every_name_of_the_baselines_that_users_meet_has_an_example(module):
    home = importlib.import_module(f"kbpjax.baselines.{module}")
    assert not without_example({key: getattr(home, key) for key in BASELINES[module].split()})


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
