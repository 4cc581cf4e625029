"""Gaussian belief propagation: Gaussian Markov random fields, with exact means wherever the messages converge.

`GaussianMRF` and `thin_membrane` make fields by hand, and `fit` learns templates of them from samples. Evidence comes
from `observe` (learned) or `likelihood` (known noise). `run` passes the messages, `beliefs` evaluates the marginals.
"""

from kbpjax.baselines.gaussian.field import GaussianFactors as GaussianFactors
from kbpjax.baselines.gaussian.field import GaussianMRF as GaussianMRF
from kbpjax.baselines.gaussian.field import likelihood as likelihood
from kbpjax.baselines.gaussian.field import thin_membrane as thin_membrane
from kbpjax.baselines.gaussian.message_passing import GaussianSolution as GaussianSolution
from kbpjax.baselines.gaussian.message_passing import beliefs as beliefs
from kbpjax.baselines.gaussian.message_passing import check as check
from kbpjax.baselines.gaussian.message_passing import run as run
from kbpjax.baselines.gaussian.message_passing import walk_summability as walk_summability
from kbpjax.baselines.gaussian.template import GaussianTemplate as GaussianTemplate
from kbpjax.baselines.gaussian.template import fit as fit
from kbpjax.baselines.gaussian.template import observe as observe
