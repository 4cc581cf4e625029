"""Nonparametric belief propagation of vectors: messages that are mixtures of Gaussians, or weighted particles.

`nonparametric.run` passes mixtures of Gaussians; `particle` and `expectation_particle` pass particles. All three work
on a `pairwise.PairwiseMRF`, whose potentials are functions, or densities learned by `density`.
"""

from kbpjax.baselines.nonparametric.mixture_messages import (
    ExactSampler,
    GibbsSampler,
    MultiscaleSampler,
    NonparametricSolution,
    beliefs,
    run,
)

__all__ = [
    "ExactSampler",
    "GibbsSampler",
    "MultiscaleSampler",
    "NonparametricSolution",
    "beliefs",
    "run",
]
