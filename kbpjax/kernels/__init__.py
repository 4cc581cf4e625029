"""Kernels: positive definite functions on any domain."""

from kbpjax.kernels.base import Kernel as Kernel
from kbpjax.kernels.base import Power as Power
from kbpjax.kernels.base import Product as Product
from kbpjax.kernels.base import Sum as Sum
from kbpjax.kernels.base import diagonal as diagonal
from kbpjax.kernels.base import gram as gram
from kbpjax.kernels.euclidean import RBF as RBF
from kbpjax.kernels.euclidean import Linear as Linear
from kbpjax.kernels.euclidean import median_bandwidth as median_bandwidth
from kbpjax.kernels.finite import Delta as Delta
