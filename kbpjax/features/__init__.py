"""Finite feature maps: anything that gives a vector phi(x) in R^l with <phi(x), phi(y)> close to k(x, y)."""

from kbpjax.features.base import Chooser as Chooser
from kbpjax.features.base import FeatureMap as FeatureMap
from kbpjax.features.base import features as features
from kbpjax.features.cholesky import Basis as Basis
from kbpjax.features.cholesky import Greedy as Greedy
from kbpjax.features.cholesky import Pivots as Pivots
from kbpjax.features.cholesky import RandomPivots as RandomPivots
from kbpjax.features.cholesky import cholesky_basis as cholesky_basis
from kbpjax.features.cholesky import incomplete_cholesky as incomplete_cholesky
from kbpjax.features.fourier import FourierBasis as FourierBasis
from kbpjax.features.fourier import RandomFourier as RandomFourier
