"""Structured regression as a scikit-learn estimator; needs `pip install 'kbpjax[estimator]'`.

A sample assigns values to the nodes of a graph that all samples share: the pixels of an image, the positions of a
sequence, the nodes of a network. Each node has an observation (X) and a target value (y).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import warn
from kbpjax._public import describe, public
from kbpjax.fitting import fit_chosen
from kbpjax.graphs.graph import StaticGraph

__all__ = ["GraphRegressor"]

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as missing:
    raise ImportError("this needs scikit-learn. Install it: pip install 'kbpjax[estimator]'") from missing


class GraphRegressor(RegressorMixin, BaseEstimator):
    """Kernel belief propagation as a scikit-learn estimator.

    `fit` calls `kbpjax.fit`, and predictions come from `kbpjax.infer`: exact on forests, iterated to convergence on
    graphs with cycles. Hyperparameters that are None are chosen from the training data. If kernels and ridges are all
    given, nothing is chosen, and `fit` is fast; use this in `GridSearchCV`.

    Args:
        kernel: kernel of y. None: Gaussian, with a bandwidth chosen from the data.
        obs_kernel: kernel of the observation of a node. None: Gaussian, with bandwidths chosen from the data.
        ridge: ridge of the message operators, >= 0. None: chosen from the data.
        obs_ridge: ridge of the observation operators, >= 0. None: chosen from the data.
        max_rank: maximum number of landmarks, >= 1. None: that of `kbpjax.fit`.
        num_iters: maximum number of iterations on graphs with cycles, >= 1.
        effort: "low", "auto" or "high": how much is compared where hyperparameters are chosen, as in `kbpjax.fit`.

    Attributes:
        model_: the fitted `KernelMRF`; chosen hyperparameters are in `model_.hyperparameters`.
        graph_: the graph.
        n_features_in_: length of the second axis of X.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.estimator import GraphRegressor
        >>> rng = np.random.default_rng(0)
        >>> y = np.cumsum(rng.normal(size=(40, 12)), axis=1)  # 40 chains of 12 variables
        >>> x = y + rng.normal(size=y.shape)
        >>> given = {"kernel": kbp.RBF(0.8), "obs_kernel": kbp.RBF(1.0), "ridge": 1e-3, "obs_ridge": 1e-3}
        >>> GraphRegressor(**given).fit(x[:30], y[:30]).score(x[30:], y[30:]) > 0.8
        True
    """

    def __init__(
        self,
        kernel: kbp.Kernel | None = None,
        obs_kernel: kbp.Kernel | None = None,
        ridge: float | None = None,
        obs_ridge: float | None = None,
        max_rank: int | None = None,
        num_iters: int = 200,
        effort: str = "auto",
    ):
        self.kernel = kernel
        self.obs_kernel = obs_kernel
        self.ridge = ridge
        self.obs_ridge = obs_ridge
        self.max_rank = max_rank
        self.num_iters = num_iters
        self.effort = effort

    @public
    def fit(self, X: Any, y: Any, graph: kbp.Graph | None = None) -> "GraphRegressor":
        """Fit the model to samples, and return the estimator.

        NaN in X or y marks a missing value. Pairs of neighbors in y, and pairs of a value and its observation, are used
        if both are present.

        Args:
            X: observations [sample, node, *dim], or [sample, row, column, *dim] of images, or [sample, *dim].
            y: values [sample, node], or [sample, row, column], or [sample] of a graph with one node.
            graph: graph of the nodes; None: a chain of the nodes, or the grid of the pixels.

        Returns:
            The estimator.

        Raises:
            ValueError: shapes do not match, values are infinite, a sample or a node is never present, or an option is
                out of range.
        """
        _checks.require_count("num_iters", self.num_iters)
        observed: Any = validate_data(self, X, **_READ)
        if y is None:
            missing: Any = y
            validate_data(self, X, missing, **_READ)  # raises scikit-learn's error
        values = _read_targets(y)
        dtype = jnp.result_type(float)
        values, observed = values.astype(dtype), observed.astype(dtype)
        fix = "Pass y [sample, node] or [sample, row, column], and X with the same first axes."
        fits = values.ndim in (1, 2, 3) and observed.shape[: values.ndim] == values.shape
        got = f"{observed.shape} and {values.shape}"
        _checks.require(fits, "X, y", "must have the same samples and nodes", got, fix)
        self.shape_, self.obs_shape_ = values.shape[1:], observed.shape[values.ndim :]
        if graph is None:
            graph = kbp.grid_graph(*self.shape_) if values.ndim == 3 else kbp.chain_graph(*self.shape_ or (1,))
        fix = "Pass a graph of the nodes of y."
        rule = f"must have one node per value of a sample, {values[0].size}"
        _checks.require(graph.num_nodes == values[0].size, "graph", rule, f"{graph.num_nodes} nodes", fix)
        self.graph_ = graph
        data = kbp.pool(graph, values.reshape(len(values), -1), self._by_node(observed))
        self.model_ = self._learn(data)
        return self

    def _learn(self, data: kbp.TrainingData) -> kbp.KernelMRF:
        """Return the model; hyperparameters that are None are chosen."""
        given = {
            "kernel": self.kernel,
            "obs_kernel": self.obs_kernel,
            "ridge": self.ridge,
            "obs_ridge": self.obs_ridge,
        }
        rule = None if self.max_rank is None else kbp.ConstantTime(max_rank=self.max_rank)
        if self.kernel is None or self.obs_kernel is None:
            return kbp.fit(data, **given, rule=rule, effort=self.effort)
        nonnegative = None if self.graph_.forest is not None else kbp.Clipped()
        if self.ridge is None or self.obs_ridge is None:
            return fit_chosen(data, **given, rule=rule, effort=self.effort, nonnegative=nonnegative)
        return kbp.fit(data, **given, rule=rule, effort=self.effort, nonnegative=nonnegative)

    @public
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the means of the beliefs, in the shape of y.

        Args:
            X: observations as in `fit`; NaN where missing.
            return_std: whether to return standard deviations too.

        Returns:
            The means; with `return_std`, the means and the standard deviations.

        Raises:
            ValueError: the samples have another shape than in `fit`.
        """
        mean, std, _, _ = self._summarize(X)
        return (mean, std) if return_std else mean

    @public
    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper ends of central credible intervals, each in the shape of y.

        Args:
            X: as in `predict`.
            coverage: nominal coverage in (0, 1).

        Raises:
            ValueError: as `predict`, or the coverage is out of range.

        Examples:
            >>> import numpy as np, kbpjax as kbp
            >>> from kbpjax.estimator import GraphRegressor
            >>> rng = np.random.default_rng(0)
            >>> y = np.cumsum(rng.normal(size=(40, 12)), axis=1)  # 40 chains of 12 variables
            >>> x = y + rng.normal(size=y.shape)
            >>> given = {"kernel": kbp.RBF(0.8), "obs_kernel": kbp.RBF(1.0), "ridge": 1e-3, "obs_ridge": 1e-3}
            >>> low, high = GraphRegressor(**given).fit(x[:30], y[:30]).predict_interval(x[30:], 0.9)
            >>> bool(np.mean((low < y[30:]) & (y[30:] < high)) > 0.8)
            True
        """
        _checks.require_number("coverage", coverage, above=0, below=1)
        _, _, low, high = self._summarize(X, coverage)
        return low, high

    @public
    def posterior(self, X: Any) -> kbp.Posterior:
        """Return the posterior of all samples, with one batch axis, which all summaries of kbpjax take.

        Args:
            X: as in `predict`.

        Raises:
            ValueError: as `predict`.

        Examples:
            >>> import numpy as np, kbpjax as kbp
            >>> from kbpjax.estimator import GraphRegressor
            >>> y = np.cumsum(np.random.default_rng(0).normal(size=(20, 6)), axis=1)
            >>> given = {"kernel": kbp.RBF(0.8), "obs_kernel": kbp.RBF(1.0), "ridge": 1e-3, "obs_ridge": 1e-3}
            >>> posterior = GraphRegressor(**given).fit(y, y).posterior(y[:3])
            >>> kbp.quantile(posterior, 0.1).shape
            (3, 6)
        """
        check_is_fitted(self, "model_")
        infer = lambda y: kbp.infer(self.model_, self.graph_, y, num_iters=self.num_iters)
        return jax.vmap(infer)(self._cases(X))

    @public
    def score(self, X: Any, y: Any, sample_weight: Numbers | None = None) -> float:
        """Return R squared, the fraction of the variance of all values that the predictions explain.

        Args:
            X: observations.
            y: true values; NaN where missing, which is not scored.
            sample_weight: weight of each sample, >= 0; None: equal weights.

        Returns:
            R squared, as of `sklearn.metrics.r2_score`: if all values are equal, 0, or 1 for exact predictions.

        Raises:
            ValueError: as `predict`; y or the weights have other shapes, or no known value has a weight > 0.
        """
        values = _read_targets(y).astype(float)
        predicted = self.predict(X)
        fix = "Pass the true values of the same samples and nodes."
        _checks.require(values.shape == predicted.shape, "y", f"must have shape {predicted.shape}", values.shape, fix)
        weight = np.ones(len(values)) if sample_weight is None else _checks.as_numpy("sample_weight", sample_weight)
        fix = "Pass one number >= 0 for each sample."
        ok = weight.shape == (len(values),) and bool(np.all(np.isfinite(weight) & (weight >= 0)))
        _checks.require(ok, "sample_weight", f"must be {len(values)} finite weights", f"shape {weight.shape}", fix)
        weight = np.asarray(weight, float).reshape(-1, *[1] * (values.ndim - 1)) * np.ones_like(values)
        known = np.isfinite(values) & (weight > 0)
        fix = "Pass true values."
        _checks.require(bool(known.any()), "y", "must have a value that is known and has a weight > 0", "none", fix)
        return float(r2_score(values[known], predicted[known], sample_weight=weight[known]))

    def _by_node(self, observed: np.ndarray) -> np.ndarray:
        """Return observations [sample, node, *obs_dim]."""
        return observed.reshape(len(observed), self.graph_.num_nodes, *self.obs_shape_)

    def _summarize(self, x: Any, coverage: float = 0.9) -> tuple[np.ndarray, ...]:
        """Return means, standard deviations, lower ends and upper ends, each in the shape of y."""
        check_is_fitted(self, "model_")
        y = self._cases(x)
        level = jnp.asarray(coverage, y.dtype)
        summaries, converged = _summaries(
            self.model_, y, level, graph=StaticGraph(self.graph_), num_iters=self.num_iters
        )
        failed = int(np.sum(~np.asarray(converged)))
        if failed:
            reason = f"the messages of {failed} of {len(y)} samples have not converged in {self.num_iters} iterations"
            advice = "More iterations: num_iters=1000. Otherwise a larger ridge or a wider kernel."
            warn(f"{reason}. {advice}", kbp.ConvergenceWarning)
        return tuple(np.asarray(summary, float).reshape(len(y), *self.shape_) for summary in summaries)

    def _cases(self, x: Any) -> jax.Array:
        """Return the observations of samples [sample, node, *obs_dim]."""
        x = np.ma.filled(x.astype(float), np.nan) if isinstance(x, np.ma.MaskedArray) else x
        observed: Any = validate_data(self, x, reset=False, **_READ)
        shape = (*self.shape_, *self.obs_shape_)
        fix = "Pass samples on the graph of fit."
        _checks.require(
            observed.shape[1:] == shape, "X", f"must have samples of shape {shape}", observed.shape[1:], fix
        )
        return jnp.asarray(self._by_node(observed), jnp.result_type(float))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.three_d_array = tags.target_tags.multi_output = True
        return tags


_READ: Mapping[str, Any] = {"allow_nd": True, "ensure_all_finite": "allow-nan"}
"""Options of scikit-learn's checks: any number of axes, and NaN where values are missing."""


def _read_targets(y: Any) -> np.ndarray:
    """Return y as an array of numbers."""
    try:
        return check_array(y, input_name="y", ensure_2d=False, **_READ)
    except TypeError as error:  # objects, and tracers
        fix = "Pass an array of numbers, outside jax.jit."
        raise ValueError(f"y: must be known real numbers; got {describe(y)}. {fix}") from error


@partial(jax.jit, static_argnames=("graph", "num_iters"))
def _summaries(
    model: kbp.KernelMRF, y: jax.Array, coverage: jax.Array, *, graph: StaticGraph, num_iters: int
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """Return posterior summaries and whether messages converged, computed one sample at a time to bound memory."""

    def summarize(sample: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        posterior = kbp.infer(model, graph.graph, sample, num_iters=num_iters)
        summaries = kbp.mean(posterior), kbp.std(posterior), *kbp.interval(posterior, coverage)
        return summaries, posterior.solution.converged

    return jax.lax.map(summarize, y)
