"""Structured regression as an estimator of scikit-learn; needs `pip install 'kbpjax[estimator]'`.

A sample is a graph of variables: the pixels of an image, the places of a sequence, the nodes of a network that all
samples share. Of each variable something is observed (x), and its value is wanted (y).
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
    """Kernel belief propagation with RBF kernels, as an estimator: clonable, and at home in `GridSearchCV`.

    Args:
        bandwidth: of the kernel of y, in medians of its distances, > 0.
        obs_bandwidth: of the kernel of x, likewise.
        ridge: of the messages, > 0.
        obs_ridge: of the observations; None: that of the messages.
        evidence_power: exponent of the evidence, > 0; below 1 where neighbors' observations err alike.
        max_rank: landmarks, >= 1.
        num_iters: iterations on graphs with cycles; trees take two passes and are exact.
        damping: weight of the old message in [0, 1).
        num_points: candidates of a belief, evenly over the range of y.

    Attributes:
        model_: the learned `KernelMRF`.
        graph_: the graph.
        points_: candidates.

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
        """Learn from samples.

        Args:
            X: observations [sample, node, *dim], or [sample, row, column, *dim] of images.
            y: values [sample, node], or [sample, row, column].
            graph: of the nodes; None: a chain of the nodes, or the grid of the pixels.

        Returns:
            Itself.

        Raises:
            ValueError: shapes that do not fit; NaN in y; options out of range.
        """
        values, seen = np.asarray(y), np.asarray(X)
        fix = "Pass y [sample, node] or [sample, row, column], and X of the same first axes."
        if not np.issubdtype(values.dtype, np.floating):
            values = values.astype(float)
        fits = values.ndim in (2, 3) and seen.shape[: values.ndim] == values.shape
        _checks.require(fits, "X, y", "must have the same samples and nodes", f"{seen.shape} and {values.shape}", fix)
        _checks.require_number("bandwidth", self.bandwidth, above=0)
        _checks.require_number("obs_bandwidth", self.obs_bandwidth, above=0)
        _checks.require_number("evidence_power", self.evidence_power, above=0)
        _checks.require_count("num_points", self.num_points)
        _checks.require_count("num_iters", self.num_iters)
        check_damping(self.damping)
        _checks.require_finite("y", values, "Leave out samples that are not complete.")
        self.shape_ = values.shape[1:]
        if graph is None:
            graph = kbp.grid_graph(*self.shape_) if values.ndim == 3 else kbp.chain_graph(*self.shape_)
        self.graph_ = graph
        _checks.require_finite("X", seen, "Leave out what is missing in training; predict takes NaN.")
        flat = values.reshape(len(values), -1)
        seen = seen.reshape(len(values), flat.shape[1], *seen.shape[values.ndim :])
        kernel = kbp.RBF(self.bandwidth * kbp.median_bandwidth(flat.ravel()))
        obs_kernel = kbp.RBF(self.obs_bandwidth * kbp.median_bandwidth(seen.reshape(flat.size, *seen.shape[2:])))
        rule = kbp.ConstantTime(max_rank=self.max_rank)
        obs_ridge = self.ridge if self.obs_ridge is None else self.obs_ridge
        data = kbp.pool(graph, flat, seen)
        kernels: dict[str, Any] = {"kernel": kernel, "obs_kernel": obs_kernel}
        self.model_ = kbp.fit(data, rule=rule, ridge=self.ridge, obs_ridge=obs_ridge, **kernels)
        self.points_ = jnp.linspace(flat.min(), flat.max(), self.num_points, dtype=data.nodes[0].dtype)
        self.obs_shape_ = seen.shape[2:]
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return means of the beliefs, of the shape of y.

        Args:
            X: observations as in `fit`; a node with a NaN is not observed.

        Raises:
            ValueError: another shape of samples than was learned from.
        """
        return self._answer(X)[0]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends of central intervals of the beliefs, of the shape of y each.

        Args:
            X: as in `predict`.
            coverage: in (0, 1). Beliefs on graphs with cycles are too sure: check how many true values are inside.

        Raises:
            ValueError: as `predict`; a coverage out of range.
        """
        _checks.require_number("coverage", coverage, above=0, below=1)
        _, low, high = self._answer(X, coverage)
        return low, high

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of the variance of all values that is explained (R squared).

        Args:
            X: observations.
            y: true values.
            sample_weight: of each sample; None: alike.
        """
        values, found = np.asarray(y, float), self.predict(X)
        weight = np.ones(len(values)) if sample_weight is None else np.asarray(sample_weight, float)
        weight = weight.reshape(-1, *[1] * (values.ndim - 1)) * np.ones_like(values)
        center = np.average(values, weights=weight)
        return float(1 - np.sum(weight * (values - found) ** 2) / np.sum(weight * (values - center) ** 2))

    def _answer(self, x: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, lower and upper end of all values."""
        check_is_fitted(self, "model_")
        seen = np.asarray(x)
        wanted = (*self.shape_, *self.obs_shape_)
        fix = "Pass samples of the graph that it was fitted on."
        _checks.require(seen.shape[1:] == wanted, "X", f"must be samples of shape {wanted}", seen.shape[1:], fix)
        seen = seen.reshape(len(seen), -1, *self.obs_shape_)
        mask = np.isfinite(seen).reshape(*seen.shape[:2], -1).all(axis=2)
        kind = self.points_.dtype
        options = tuple(jnp.asarray(of, kind) for of in (self.evidence_power, self.damping, coverage))
        filled = jnp.asarray(np.nan_to_num(seen), kind)
        found = _answers(self.model_, self.graph_, filled, jnp.asarray(mask), self.points_, options, self.num_iters)
        mean, low, high = (np.asarray(of).reshape(len(seen), *self.shape_) for of in found)
        return mean, low, high


@partial(jax.jit, static_argnames="num_iters")
def _answers(
    model: kbp.KernelMRF, graph: kbp.Graph, seen: Any, mask: Any, points: Any, options: Any, num_iters: int
) -> tuple[Any, Any, Any]:
    """Answer samples one after the other, in bounded memory."""
    power, damping, coverage = options

    def one(of: Any) -> tuple[Any, Any, Any]:
        evidence = kbp.observe(model, graph, of[0], mask=of[1]) ** power
        if graph.forest is None:
            solution = kbp.run(model, graph, evidence, num_iters=num_iters, damping=damping)
        else:
            solution = kbp.run_tree(model, graph, evidence)
        belief = kbp.beliefs(model, graph, evidence, solution, points)
        return kbp.mean(belief), *kbp.interval(belief, coverage)

    return jax.lax.map(one, (seen, mask))
