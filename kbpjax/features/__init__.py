"""Finite feature maps: vectors phi(x) in R^l with <phi(x), phi(y)> close to k(x, y)."""

from kbpjax.features.base import FeatureMap as FeatureMap
from kbpjax.features.base import LandmarkSelector as LandmarkSelector
from kbpjax.features.base import features as features
from kbpjax.features.cholesky import FAR as FAR
from kbpjax.features.cholesky import Basis as Basis
from kbpjax.features.cholesky import PivotedCholesky as PivotedCholesky
from kbpjax.features.cholesky import Pivots as Pivots
from kbpjax.features.cholesky import RandomlyPivotedCholesky as RandomlyPivotedCholesky
from kbpjax.features.cholesky import cholesky_basis as cholesky_basis
from kbpjax.features.cholesky import incomplete_cholesky as incomplete_cholesky
from kbpjax.features.cholesky import represented as represented
from kbpjax.features.distributions import Concatenated as Concatenated
from kbpjax.features.distributions import EmbeddingFeatures as EmbeddingFeatures
from kbpjax.features.distributions import Kronecker as Kronecker
from kbpjax.features.distributions import MeanVarianceFeatures as MeanVarianceFeatures
from kbpjax.features.distributions import Restricted as Restricted
from kbpjax.features.distributions import SampleFeatures as SampleFeatures
from kbpjax.features.distributions import TwoStage as TwoStage
from kbpjax.features.distributions import cosines as cosines
from kbpjax.features.distributions import draw_frequencies as draw_frequencies
from kbpjax.features.distributions import draw_phases as draw_phases
from kbpjax.features.fourier import FourierBasis as FourierBasis
from kbpjax.features.fourier import RandomFourier as RandomFourier
