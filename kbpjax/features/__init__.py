"""Finite feature maps: vectors phi(x) in R^l with <phi(x), phi(y)> close to k(x, y)."""

from kbpjax.features.base import FeatureMap, LandmarkSelector, features
from kbpjax.features.cholesky import (
    FAR,
    Basis,
    PivotedCholesky,
    Pivots,
    RandomlyPivotedCholesky,
    cholesky_basis,
    incomplete_cholesky,
    represented,
)
from kbpjax.features.distributions import (
    Concatenated,
    EmbeddingFeatures,
    Kronecker,
    MeanVarianceFeatures,
    Restricted,
    SampleFeatures,
    TwoStage,
    cosines,
    draw_frequencies,
    draw_phases,
)
from kbpjax.features.fourier import FourierBasis, RandomFourier

__all__ = [
    "FAR",
    "Basis",
    "Concatenated",
    "EmbeddingFeatures",
    "FeatureMap",
    "FourierBasis",
    "Kronecker",
    "LandmarkSelector",
    "MeanVarianceFeatures",
    "PivotedCholesky",
    "Pivots",
    "RandomFourier",
    "RandomlyPivotedCholesky",
    "Restricted",
    "SampleFeatures",
    "TwoStage",
    "cholesky_basis",
    "cosines",
    "draw_frequencies",
    "draw_phases",
    "features",
    "incomplete_cholesky",
    "represented",
]
