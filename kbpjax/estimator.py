"""Structured regression as a scikit-learn estimator; needs `pip install 'kbpjax[estimator]'`.

A sample assigns values to the nodes of a graph that all samples share: the pixels of an image, the positions of a
sequence, the nodes of a network. Each node has an observation (X) and a target value (y).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from kbpjax import _checks
from kbpjax.inference.acceleration import check_damping

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as missing:
    raise ImportError("this needs scikit-learn. Install it: pip install 'kbpjax[estimator]'") from missing


class GraphRegressor(RegressorMixin, BaseEstimator):
    """Kernel belief propagation with RBF kernels as a scikit-learn estimator, for instance in `GridSearchCV`.

    Args:
        bandwidth: bandwidth of the kernel of y, in units of the median distance, > 0.
        obs_bandwidth: bandwidth of the kernel of X, in units of the median distance, > 0.
        ridge: ridge of the message operators, > 0.
        obs_ridge: ridge of the observation operators; None: `ridge`.
        evidence_power: likelihood tempering exponent, > 0; use less than 1 if errors of neighboring observations are
            correlated.
        max_rank: maximum number of landmarks, >= 1.
        num_iters: number of iterations on graphs with cycles; trees take two exact passes.
        damping: weight of the old message in [0, 1).
        num_points: number of evaluation points of a belief, evenly spaced over the range of y.

    Attributes:
        model_: the fitted `KernelMRF`.
        graph_: the graph.
        points_: evaluation points of beliefs.

    Examples:
        >>> import numpy as np
        >>> from kbpjax.estimator import GraphRegressor
        >>> rng = np.random.default_rng(0)
        >>> y = np.cumsum(rng.normal(size=(40, 12)), axis=1)  # 40 chains of 12 variables
        >>> x = y + rng.normal(size=y.shape)
        >>> GraphRegressor().fit(x[:30], y[:30]).score(x[30:], y[30:]) > 0.8
        True
    """

    def __init__(
        self,
        bandwidth: float = 0.25,
        obs_bandwidth: float = 0.25,
        ridge: float = 1e-3,
        obs_ridge: float | None = None,
        evidence_power: float = 1.0,
        max_rank: int = 64,
        num_iters: int = 15,
        damping: float = 0.2,
        num_points: int = 200,
    ):
        self.bandwidth = bandwidth
        self.obs_bandwidth = obs_bandwidth
        self.ridge = ridge
        self.obs_ridge = obs_ridge
        self.evidence_power = evidence_power
        self.max_rank = max_rank
        self.num_iters = num_iters
        self.damping = damping
        self.num_points = num_points

    def fit(self, X: Any, y: Any, graph: kbp.Graph | None = None) -> "GraphRegressor":
        """Fit the model to samples, and return the estimator.

        Args:
            X: observations [sample, node, *dim], or [sample, row, column, *dim] of images.
            y: values [sample, node], or [sample, row, column].
            graph: graph of the nodes; None: a chain of the nodes, or the grid of the pixels.

        Returns:
            The estimator.

        Raises:
            ValueError: shapes do not match, X or y has NaN, or an option is out of range.
        """
        values, observed = np.asarray(y), np.asarray(X)
        fix = "Pass y [sample, node] or [sample, row, column], and X with the same first axes."
        if not np.issubdtype(values.dtype, np.floating):
            values = values.astype(float)
        fits = values.ndim in (2, 3) and observed.shape[: values.ndim] == values.shape
        got = f"{observed.shape} and {values.shape}"
        _checks.require(fits, "X, y", "must have the same samples and nodes", got, fix)
        _checks.require_number("bandwidth", self.bandwidth, above=0)
        _checks.require_number("obs_bandwidth", self.obs_bandwidth, above=0)
        _checks.require_number("evidence_power", self.evidence_power, above=0)
        _checks.require_count("num_points", self.num_points)
        _checks.require_count("num_iters", self.num_iters)
        check_damping(self.damping)
        _checks.require_finite("y", values, "Drop incomplete samples.")
        self.shape_ = values.shape[1:]
        if graph is None:
            graph = kbp.grid_graph(*self.shape_) if values.ndim == 3 else kbp.chain_graph(*self.shape_)
        self.graph_ = graph
        _checks.require_finite("X", observed, "Drop incomplete samples; only predict accepts NaN.")
        flat = values.reshape(len(values), -1)
        observed = observed.reshape(len(values), flat.shape[1], *observed.shape[values.ndim :])
        kernel = kbp.RBF(self.bandwidth * kbp.median_bandwidth(flat.ravel()))
        obs_kernel = kbp.RBF(
            self.obs_bandwidth * kbp.median_bandwidth(observed.reshape(flat.size, *observed.shape[2:]))
        )
        rule = kbp.ConstantTime(max_rank=self.max_rank)
        obs_ridge = self.ridge if self.obs_ridge is None else self.obs_ridge
        data = kbp.pool(graph, flat, observed)
        kernels: dict[str, Any] = {"kernel": kernel, "obs_kernel": obs_kernel}
        self.model_ = kbp.fit(data, rule=rule, ridge=self.ridge, obs_ridge=obs_ridge, **kernels)
        self.points_ = jnp.linspace(flat.min(), flat.max(), self.num_points, dtype=data.nodes[0].dtype)
        self.obs_shape_ = observed.shape[2:]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the means of the beliefs, in the shape of y.

        Args:
            X: observations as in `fit`; a node with NaN is treated as unobserved.

        Raises:
            ValueError: the samples have another shape than in `fit`.
        """
        return self._summarize(X)[0]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper ends of central credible intervals, each in the shape of y.

        Args:
            X: as in `predict`.
            coverage: nominal coverage in (0, 1). Beliefs on graphs with cycles are overconfident: check the empirical
                coverage.

        Raises:
            ValueError: as `predict`, or the coverage is out of range.
        """
        _checks.require_number("coverage", coverage, above=0, below=1)
        _, low, high = self._summarize(X, coverage)
        return low, high

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R squared, the fraction of the variance of all values that the predictions explain.

        Args:
            X: observations.
            y: true values.
            sample_weight: weight of each sample; None: equal weights.
        """
        values, predicted = np.asarray(y, float), self.predict(X)
        weight = np.ones(len(values)) if sample_weight is None else np.asarray(sample_weight, float)
        weight = weight.reshape(-1, *[1] * (values.ndim - 1)) * np.ones_like(values)
        center = np.average(values, weights=weight)
        return float(1 - np.sum(weight * (values - predicted) ** 2) / np.sum(weight * (values - center) ** 2))

    def _summarize(self, x: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return means, lower ends and upper ends, each in the shape of y."""
        check_is_fitted(self, "model_")
        y = np.asarray(x)
        shape = (*self.shape_, *self.obs_shape_)
        fix = "Pass samples on the graph of fit."
        _checks.require(y.shape[1:] == shape, "X", f"must have samples of shape {shape}", y.shape[1:], fix)
        y = y.reshape(len(y), -1, *self.obs_shape_)
        mask = np.isfinite(y).reshape(*y.shape[:2], -1).all(axis=2)
        dtype = self.points_.dtype
        options = tuple(jnp.asarray(value, dtype) for value in (self.evidence_power, self.damping, coverage))
        filled = jnp.asarray(np.nan_to_num(y), dtype)
        summaries = _summaries(
            self.model_, self.graph_, filled, jnp.asarray(mask), self.points_, options, self.num_iters
        )
        mean, low, high = (np.asarray(summary).reshape(len(y), *self.shape_) for summary in summaries)
        return mean, low, high


@partial(jax.jit, static_argnames="num_iters")
def _summaries(
    model: kbp.KernelMRF, graph: kbp.Graph, y: Any, mask: Any, points: Any, options: Any, num_iters: int
) -> tuple[Any, Any, Any]:
    """Return the posterior summaries of samples, computed one sample at a time to bound memory."""
    power, damping, coverage = options

    def summarize(sample: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        observed, given = sample
        evidence = kbp.observe(model, graph, observed, mask=given) ** power
        if graph.forest is None:
            solution = kbp.run(model, graph, evidence, num_iters=num_iters, damping=damping)
        else:
            solution = kbp.run_tree(model, graph, evidence)
        belief = kbp.beliefs(model, graph, evidence, solution, points)
        return kbp.mean(belief), *kbp.interval(belief, coverage)

    return jax.lax.map(summarize, (y, mask))
