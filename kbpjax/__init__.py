"""kbpjax: kernel belief propagation in JAX."""

__version__ = "0.2.0"

from typing import TYPE_CHECKING, Any

from kbpjax import features, kernels, series, sharded
from kbpjax._checks import skip_value_checks
from kbpjax.cache import enable_compilation_cache
from kbpjax.features import PivotedCholesky, RandomFourier, RandomlyPivotedCholesky
from kbpjax.fitting import fit
from kbpjax.graphs.graph import Graph, chain_graph, grid_graph, neighbor_graph
from kbpjax.graphs.repeat import repeat_graph, time_windows
from kbpjax.graphs.spanning_trees import tree_reweighting
from kbpjax.graphs.windows import grid_symmetries, window_orbits, windows
from kbpjax.inference.acceleration import AdaptiveDamping, Anderson
from kbpjax.inference.diagnostics import (
    CandidateWarning,
    ConvergenceWarning,
    Diagnosis,
    EvidenceWarning,
    HolesWarning,
    KbpWarning,
    MarginWarning,
    MissingWarning,
    NotConverged,
    RankWarning,
    RelationWarning,
    ScaleWarning,
    check,
    diagnose,
)
from kbpjax.inference.free_energy import log_partition
from kbpjax.inference.loopy import Solution, run
from kbpjax.inference.operators import InLogs, MaxProduct, Operators, SumProduct
from kbpjax.inference.schedules import Colored, Schedule, Synchronous, colored
from kbpjax.inference.tree import run_tree
from kbpjax.io import load, save
from kbpjax.kernels import RBF, Delta, Kernel, Linear, gram, median_bandwidth
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.nonnegative import Clipped, ConstrainedFit
from kbpjax.learning.observations import DensityRatio, Expectation
from kbpjax.learning.pooling import pool
from kbpjax.learning.rules import ConstantTime, FullRank, LinearTime, fix_landmarks
from kbpjax.learning.streaming import chunked, fit_chunks
from kbpjax.learning.transitions import with_transitions
from kbpjax.posterior.beliefs import Belief, beliefs
from kbpjax.posterior.clamp import clamp
from kbpjax.posterior.draws import Estimate, expectation, mode, sample
from kbpjax.posterior.edge_beliefs import EdgeBelief, edge_beliefs
from kbpjax.posterior.evidence import Evidence, observe
from kbpjax.posterior.infer import infer
from kbpjax.posterior.intervals import circular_interval, circular_mean, coverage, highest_density, interval, quantile
from kbpjax.posterior.likelihood import likelihood
from kbpjax.posterior.marginals import Empirical, MeanEmbedding, Parzen
from kbpjax.posterior.merge import Merged, merge
from kbpjax.posterior.pack import Packed, pack
from kbpjax.posterior.posterior import Posterior
from kbpjax.posterior.refine import log_belief, refine_mode
from kbpjax.posterior.summaries import (
    covariance,
    entropy,
    log_density,
    marginal,
    mean,
    std,
    temper,
    variance,
)
from kbpjax.training.edges import choose_edges
from kbpjax.training.train import train
from kbpjax.tuning.automatic import choose_hyperparameters
from kbpjax.tuning.calibration import calibrate
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.losses import CRPS, IntervalScore, NegativeLogBelief, SquaredError
from kbpjax.tuning.selection import median_hyperparameters, select
from kbpjax.tuning.tried import Selection
from kbpjax.tuning.tune import Tuned, tune

if TYPE_CHECKING:
    from kbpjax import baselines as baselines
    from kbpjax import ep as ep
    from kbpjax import estimator as estimator
    from kbpjax import plotting as plotting

__all__ = [
    "CRPS",
    "RBF",
    "AdaptiveDamping",
    "Anderson",
    "Belief",
    "CandidateWarning",
    "Clipped",
    "Colored",
    "ConstantTime",
    "ConstrainedFit",
    "ConvergenceWarning",
    "Delta",
    "DensityRatio",
    "Diagnosis",
    "EdgeBelief",
    "Empirical",
    "Estimate",
    "Evidence",
    "EvidenceWarning",
    "Expectation",
    "FullRank",
    "Graph",
    "HolesWarning",
    "Hyperparameters",
    "InLogs",
    "IntervalScore",
    "KbpWarning",
    "Kernel",
    "KernelMRF",
    "Linear",
    "LinearTime",
    "MarginWarning",
    "MaxProduct",
    "MeanEmbedding",
    "Merged",
    "MissingWarning",
    "NegativeLogBelief",
    "NotConverged",
    "Operators",
    "Packed",
    "Parzen",
    "PivotedCholesky",
    "Posterior",
    "RandomFourier",
    "RandomlyPivotedCholesky",
    "RankWarning",
    "RelationWarning",
    "ScaleWarning",
    "Schedule",
    "Selection",
    "Solution",
    "SquaredError",
    "SumProduct",
    "Synchronous",
    "TrainingData",
    "Tuned",
    "beliefs",
    "calibrate",
    "chain_graph",
    "check",
    "choose_edges",
    "choose_hyperparameters",
    "chunked",
    "circular_interval",
    "circular_mean",
    "clamp",
    "colored",
    "covariance",
    "coverage",
    "diagnose",
    "edge_beliefs",
    "enable_compilation_cache",
    "entropy",
    "expectation",
    "features",
    "fit",
    "fit_chunks",
    "fix_landmarks",
    "gram",
    "grid_graph",
    "grid_symmetries",
    "highest_density",
    "infer",
    "interval",
    "kernels",
    "likelihood",
    "load",
    "log_belief",
    "log_density",
    "log_partition",
    "marginal",
    "mean",
    "median_bandwidth",
    "median_hyperparameters",
    "merge",
    "mode",
    "neighbor_graph",
    "observe",
    "pack",
    "pool",
    "quantile",
    "refine_mode",
    "repeat_graph",
    "run",
    "run_tree",
    "sample",
    "save",
    "select",
    "series",
    "sharded",
    "skip_value_checks",
    "std",
    "temper",
    "time_windows",
    "train",
    "tree_reweighting",
    "tune",
    "variance",
    "window_orbits",
    "windows",
    "with_transitions",
]

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
