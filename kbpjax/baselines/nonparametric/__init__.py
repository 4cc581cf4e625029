"""Nonparametric belief propagation of vectors: messages that are mixtures of Gaussians, or weighted particles.

`nonparametric.run` passes mixtures of Gaussians; `particle` and `expectation_particle` pass particles. All three work
on a `pairwise.PairwiseMRF`, whose potentials are functions, or densities learned by `density`.
"""

from kbpjax.baselines.nonparametric.mixture_messages import ExactSampler as ExactSampler
from kbpjax.baselines.nonparametric.mixture_messages import GibbsSampler as GibbsSampler
from kbpjax.baselines.nonparametric.mixture_messages import MultiscaleSampler as MultiscaleSampler
from kbpjax.baselines.nonparametric.mixture_messages import NonparametricSolution as NonparametricSolution
from kbpjax.baselines.nonparametric.mixture_messages import beliefs as beliefs
from kbpjax.baselines.nonparametric.mixture_messages import run as run
