"""Gaussian belief propagation: Gaussian Markov random fields, with exact means wherever the messages converge.

`GaussianMRF` and `thin_membrane` make fields by hand, and `fit` learns templates of them from samples. Evidence comes
from `observe` (learned) or `likelihood` (known noise). `run` passes the messages, `beliefs` evaluates the marginals.
"""

from kbpjax.baselines.gaussian.field import GaussianFactors, GaussianMRF, likelihood, thin_membrane
from kbpjax.baselines.gaussian.message_passing import GaussianSolution, beliefs, check, run, walk_summability
from kbpjax.baselines.gaussian.template import GaussianTemplate, fit, observe

__all__ = [
    "GaussianFactors",
    "GaussianMRF",
    "GaussianSolution",
    "GaussianTemplate",
    "beliefs",
    "check",
    "fit",
    "likelihood",
    "observe",
    "run",
    "thin_membrane",
    "walk_summability",
]
