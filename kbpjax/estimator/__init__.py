"""Estimators with the interface of scikit-learn; they need `pip install 'kbpjax[estimator]'`.

- `GraphRegressor`: values of the nodes of a graph from their observations.
- `GraphImputer`: tables with holes, whose columns are numbers, angles, categories, texts or vectors.
"""

try:
    import sklearn  # noqa: F401
except ImportError as missing:
    raise ImportError("this needs scikit-learn. Install it: pip install 'kbpjax[estimator]'") from missing

from kbpjax.estimator.imputer import GraphImputer
from kbpjax.estimator.regressor import GraphRegressor

__all__ = ["GraphImputer", "GraphRegressor"]
