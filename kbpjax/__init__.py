"""kbpjax: kernel belief propagation in JAX."""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

from kbpjax import kernels as kernels
from kbpjax import sharded as sharded
from kbpjax._checks import skip_value_checks as skip_value_checks
from kbpjax.features import PivotedCholesky as PivotedCholesky
from kbpjax.features import RandomFourier as RandomFourier
from kbpjax.features import RandomlyPivotedCholesky as RandomlyPivotedCholesky
from kbpjax.fitting import fit as fit
from kbpjax.graphs.graph import Graph as Graph
from kbpjax.graphs.graph import chain_graph as chain_graph
from kbpjax.graphs.graph import grid_graph as grid_graph
from kbpjax.graphs.spanning_trees import tree_reweighting as tree_reweighting
from kbpjax.graphs.windows import grid_symmetries as grid_symmetries
from kbpjax.graphs.windows import window_orbits as window_orbits
from kbpjax.graphs.windows import windows as windows
from kbpjax.inference.acceleration import AdaptiveDamping as AdaptiveDamping
from kbpjax.inference.acceleration import Anderson as Anderson
from kbpjax.inference.diagnostics import CandidateWarning as CandidateWarning
from kbpjax.inference.diagnostics import ConvergenceWarning as ConvergenceWarning
from kbpjax.inference.diagnostics import Diagnosis as Diagnosis
from kbpjax.inference.diagnostics import EvidenceWarning as EvidenceWarning
from kbpjax.inference.diagnostics import KbpWarning as KbpWarning
from kbpjax.inference.diagnostics import NotConverged as NotConverged
from kbpjax.inference.diagnostics import RankWarning as RankWarning
from kbpjax.inference.diagnostics import ScaleWarning as ScaleWarning
from kbpjax.inference.diagnostics import check as check
from kbpjax.inference.diagnostics import diagnose as diagnose
from kbpjax.inference.free_energy import log_partition as log_partition
from kbpjax.inference.loopy import Solution as Solution
from kbpjax.inference.loopy import run as run
from kbpjax.inference.operators import InLogs as InLogs
from kbpjax.inference.operators import MaxProduct as MaxProduct
from kbpjax.inference.operators import Operators as Operators
from kbpjax.inference.operators import SumProduct as SumProduct
from kbpjax.inference.schedules import Colored as Colored
from kbpjax.inference.schedules import Schedule as Schedule
from kbpjax.inference.schedules import Synchronous as Synchronous
from kbpjax.inference.schedules import colored as colored
from kbpjax.inference.tree import run_tree as run_tree
from kbpjax.io import load as load
from kbpjax.io import save as save
from kbpjax.kernels import RBF as RBF
from kbpjax.kernels import Delta as Delta
from kbpjax.kernels import Kernel as Kernel
from kbpjax.kernels import Linear as Linear
from kbpjax.kernels import gram as gram
from kbpjax.kernels import median_bandwidth as median_bandwidth
from kbpjax.learning.data import TrainingData as TrainingData
from kbpjax.learning.model import KernelMRF as KernelMRF
from kbpjax.learning.nonnegative import Clipped as Clipped
from kbpjax.learning.nonnegative import ConstrainedFit as ConstrainedFit
from kbpjax.learning.observations import DensityRatio as DensityRatio
from kbpjax.learning.observations import Expectation as Expectation
from kbpjax.learning.pooling import pool as pool
from kbpjax.learning.rules import ConstantTime as ConstantTime
from kbpjax.learning.rules import FullRank as FullRank
from kbpjax.learning.rules import LinearTime as LinearTime
from kbpjax.learning.rules import fix_landmarks as fix_landmarks
from kbpjax.learning.streaming import chunked as chunked
from kbpjax.learning.streaming import fit_chunks as fit_chunks
from kbpjax.posterior.beliefs import Belief as Belief
from kbpjax.posterior.beliefs import beliefs as beliefs
from kbpjax.posterior.clamp import clamp as clamp
from kbpjax.posterior.edge_beliefs import EdgeBelief as EdgeBelief
from kbpjax.posterior.edge_beliefs import edge_beliefs as edge_beliefs
from kbpjax.posterior.evidence import Evidence as Evidence
from kbpjax.posterior.evidence import observe as observe
from kbpjax.posterior.infer import infer as infer
from kbpjax.posterior.intervals import circular_interval as circular_interval
from kbpjax.posterior.intervals import circular_mean as circular_mean
from kbpjax.posterior.intervals import coverage as coverage
from kbpjax.posterior.intervals import highest_density as highest_density
from kbpjax.posterior.intervals import interval as interval
from kbpjax.posterior.intervals import quantile as quantile
from kbpjax.posterior.likelihood import likelihood as likelihood
from kbpjax.posterior.marginals import Empirical as Empirical
from kbpjax.posterior.marginals import MeanEmbedding as MeanEmbedding
from kbpjax.posterior.marginals import Parzen as Parzen
from kbpjax.posterior.posterior import Posterior as Posterior
from kbpjax.posterior.refine import log_belief as log_belief
from kbpjax.posterior.refine import refine_mode as refine_mode
from kbpjax.posterior.summaries import covariance as covariance
from kbpjax.posterior.summaries import entropy as entropy
from kbpjax.posterior.summaries import expectation as expectation
from kbpjax.posterior.summaries import log_density as log_density
from kbpjax.posterior.summaries import marginal as marginal
from kbpjax.posterior.summaries import mean as mean
from kbpjax.posterior.summaries import mode as mode
from kbpjax.posterior.summaries import sample as sample
from kbpjax.posterior.summaries import std as std
from kbpjax.posterior.summaries import temper as temper
from kbpjax.posterior.summaries import variance as variance
from kbpjax.tuning.automatic import choose_hyperparameters as choose_hyperparameters
from kbpjax.tuning.calibration import calibrate as calibrate
from kbpjax.tuning.hyperparameters import Hyperparameters as Hyperparameters
from kbpjax.tuning.losses import CRPS as CRPS
from kbpjax.tuning.losses import IntervalScore as IntervalScore
from kbpjax.tuning.losses import NegativeLogBelief as NegativeLogBelief
from kbpjax.tuning.losses import SquaredError as SquaredError
from kbpjax.tuning.selection import median_hyperparameters as median_hyperparameters
from kbpjax.tuning.selection import select as select
from kbpjax.tuning.tune import Tuned as Tuned
from kbpjax.tuning.tune import tune as tune

if TYPE_CHECKING:
    from kbpjax import baselines as baselines
    from kbpjax import ep as ep
    from kbpjax import estimator as estimator
    from kbpjax import plotting as plotting

_LAZY = ("baselines", "ep", "estimator", "plotting")
"""Modules that are imported when first used: they are large, or need other packages."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'kbpjax' has no attribute {name!r}")
    import importlib

    try:
        return importlib.import_module(f"kbpjax.{name}")
    except ImportError as error:  # as AttributeError, so that hasattr and help work without the other package
        raise AttributeError(f"kbpjax.{name}: {error}") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
