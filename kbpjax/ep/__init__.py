"""Expectation propagation, with exact messages or with message operators learned by kernel regression (KJIT)."""

from kbpjax.ep.beta import Beta
from kbpjax.ep.compound_gamma import precision_posteriors
from kbpjax.ep.gamma import Gamma
from kbpjax.ep.gaussian import Gaussian, MultivariateGaussian
from kbpjax.ep.just_in_time import Record, init_operator, scan, step
from kbpjax.ep.linear_model import (
    LinearPosterior,
    Parallel,
    Sequential,
    linear_model,
    logistic_predictive,
    logistic_regression,
)
from kbpjax.ep.messages import Distribution, ImproperHandling, MeanPreserving, Uniform, kl, ratio
from kbpjax.ep.operators import Learner, Operator, Prediction, learn, predict
from kbpjax.ep.oracles import (
    CompoundGamma,
    KLProjection,
    LogisticToP,
    LogisticToZ,
    MatchingMoments,
    Oracle,
    logistic_integrals,
)
from kbpjax.ep.parameters import Parameters, grid_candidates, random_candidates
from kbpjax.ep.regression import BayesianRegression, fit_regression, leave_one_out_residuals, log_evidence
from kbpjax.ep.representations import Draws, Exact, Moments
from kbpjax.ep.sampling import ForwardSampler, ImportanceSampling, LogDensity, logistic_sampler
from kbpjax.ep.selection import LeaveOneOut, NegativeLogEvidence, select_parameters
from kbpjax.ep.targets import AbsoluteBelief, Message, RelativeBelief, Targets

__all__ = [
    "AbsoluteBelief",
    "BayesianRegression",
    "Beta",
    "CompoundGamma",
    "Distribution",
    "Draws",
    "Exact",
    "ForwardSampler",
    "Gamma",
    "Gaussian",
    "ImportanceSampling",
    "ImproperHandling",
    "KLProjection",
    "Learner",
    "LeaveOneOut",
    "LinearPosterior",
    "LogDensity",
    "LogisticToP",
    "LogisticToZ",
    "MatchingMoments",
    "MeanPreserving",
    "Message",
    "Moments",
    "MultivariateGaussian",
    "NegativeLogEvidence",
    "Operator",
    "Oracle",
    "Parallel",
    "Parameters",
    "Prediction",
    "Record",
    "RelativeBelief",
    "Sequential",
    "Targets",
    "Uniform",
    "fit_regression",
    "grid_candidates",
    "init_operator",
    "kl",
    "learn",
    "leave_one_out_residuals",
    "linear_model",
    "log_evidence",
    "logistic_integrals",
    "logistic_predictive",
    "logistic_regression",
    "logistic_sampler",
    "precision_posteriors",
    "predict",
    "random_candidates",
    "ratio",
    "scan",
    "select_parameters",
    "step",
]
