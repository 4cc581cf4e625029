"""Front ends learned out of fold: training data whose observations are replaced by predictions of the variables.

The samples are divided into folds: whole cases, or with few cases blocks of neighboring nodes, which may share noise.
The prediction of a sample is that of a regression on the other folds, so that it errs as on new data. The front end
that is kept is learned from all of them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.graphs.graph import Graph
from kbpjax.kernels.base import random_rows
from kbpjax.kernels.euclidean import ARD, median_distance
from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.front_ends import FrontEnd, KernelRidge, Trees
from kbpjax.learning.pooling import pool_cases
from kbpjax.tuning.parts import neighbors_of
from kbpjax.tuning.search import Search

FOLDS = 5
"""Number of folds."""

MIN_CASES = 4
"""Number of cases from which folds are whole cases; with fewer they are blocks, two for each fold."""

MOST_ROWS = 16_000
"""Largest number of samples from which a regression is learned."""

LANDMARKS = 256
"""Largest number of landmarks of a kernel ridge regression."""

BANDWIDTHS = (0.35, 0.7, 1.4)
"""Bandwidths of kernel ridge regressions that are compared, in median distances."""

RIDGES = 10.0 ** np.arange(-6, 1)
"""Ridges of kernel ridge regressions that are compared."""

JITTER = 1e-6
"""What is added to the diagonal of the Gram matrix of the landmarks."""

TREES: Mapping[str, Any] = {"max_iter": 100, "early_stopping": False}
"""Options of scikit-learn's boosting; the others are its defaults."""

MOST_OUTPUTS = 8
"""Largest number of coordinates of variables for which trees are learned: one regression for each."""

NARROWEST = 1 / 8
"""Smallest bandwidth of the kernel of predictions, in median distances."""

LEAST = 0.05
"""Share of the variance that a front end explains at least: less may be chance."""

CLOSE = 1e-4
"""Difference of the predictions of converted trees from scikit-learn's, relative to the spread of the values, up to
which they are used."""


class Rows(NamedTuple):
    """The observed samples of a node type.

    Attributes:
        x: values of the variables [row, coordinate].
        y: observations [row, obs_dim].
        known: mask of the rows whose value is not missing [row].
        fold: fold of each row [row].
        dim: shape of a value.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    known: NDArray[np.bool_]
    fold: NDArray[np.int64]
    dim: tuple[int, ...]

    def train(self, fold: int | None = None) -> NDArray[np.int64]:
        """Return the rows from which a regression without a fold is learned."""
        rows = np.flatnonzero(self.known & (self.fold != fold))
        return rows[random_rows(len(rows), MOST_ROWS)]


class Learned(NamedTuple):
    """A front end, and what its regressions predict for the folds that they have not seen [row, coordinate]."""

    front_end: FrontEnd
    predicted: NDArray[np.float64]


def with_front_ends(data: TrainingData, kinds: Sequence[tuple[int, str]]) -> TrainingData:
    """Return training data with predictions out of fold for observations; as they are if they have front ends.

    Args:
        data: the training data.
        kinds: (node type, kind of its front end).

    Raises:
        ValueError: traced data, observations that are not vectors of numbers, too few samples, or trees without
            scikit-learn.
    """
    if data.front_ends or not kinds:
        return data
    fix = "Learn front ends outside of jax.jit: hyperparameters.standardized(data)."
    _checks.require(not _checks.is_traced(data), "front_ends", "must be of known data", "tracers", fix)
    found = {}
    for v, kind in kinds:
        rows = _rows(data, v)
        fix, rule = "Choose hyperparameters for these data.", "must be of observations of numbers with two folds"
        _checks.require(rows is not None, "front_ends", rule, f"node type {v}", fix)
        assert rows is not None
        found[v] = KINDS[kind](rows)
        fix = "Install a version of scikit-learn that kbpjax knows, or choose hyperparameters anew."
        _checks.require(found[v] is not None, "front_ends", "must be learned", f"no {kind} of node type {v}", fix)
    return _replaced(data, found)


def with_best_front_ends(
    data: TrainingData, node_types: Sequence[int], kinds: Sequence[str] | None = None
) -> TrainingData:
    """Return training data with the front ends of smallest error out of fold, where they explain something.

    Args:
        data: the training data.
        node_types: the node types that may have front ends.
        kinds: the kinds that are compared; None: all.
    """
    found = {}
    for v in node_types:
        rows = _rows(data, v)
        learned = [] if rows is None else [one for kind in kinds or KINDS if (one := KINDS[kind](rows)) is not None]
        if rows is not None and learned:
            error = lambda predicted, rows=rows: np.mean(((predicted - rows.x) ** 2)[rows.known])
            best = min(learned, key=lambda one: error(one.predicted))
            if error(best.predicted) < (1 - LEAST) * error(np.mean(rows.x[rows.known], axis=0)):
                found[v] = best
    return _replaced(data, found) if found else data


def _rows(data: TrainingData, node_type: int) -> Rows | None:
    """Return the observed samples of a node type; None if no regression can be learned from them out of fold."""
    if node_type not in data.observations:
        return None
    if data.cases:
        tables = [(one, folds) for one, folds in zip(data.cases, _folds(data.cases), strict=True)]
        columns = []
        for one, folds in tables:
            if node_type in one.observations:
                seen = np.asarray(one.observed[node_type])
                arrays = one.samples[node_type], one.observations[node_type], one.present[node_type]
                of_type = folds[:, np.asarray(one.graph.nodes_of_type(node_type))]
                columns.append([np.asarray(array)[seen] for array in (*arrays, of_type)])
        x, y, known, fold = (np.concatenate(column) for column in zip(*columns, strict=True))
    else:
        x, y = (np.asarray(array) for array in data.observations[node_type])
        known, fold = np.ones(len(x), bool), _blocks(len(x))
    numbers = all(np.issubdtype(array.dtype, np.number) and array.ndim <= 2 for array in (x, y))
    if not numbers or y.ndim != 2 or len(np.unique(fold[known])) < 2:
        return None
    return Rows(x.reshape(len(x), -1).astype(float), y.astype(float), known, fold, x.shape[1:])


def _folds(cases: Sequence[Cases]) -> list[NDArray[np.int64]]:
    """Return the folds of the nodes of each graph [case, node]: whole cases, or blocks of nodes."""
    shapes = [(len(next(iter(one.samples.values()))), one.graph.num_nodes) for one in cases]
    total = sum(count for count, _ in shapes)
    if total < MIN_CASES:
        return [np.broadcast_to(_pieces(one.graph), shape) for one, shape in zip(cases, shapes, strict=True)]
    of_cases = np.split(np.arange(total) * FOLDS // total, np.cumsum([count for count, _ in shapes])[:-1])
    return [np.broadcast_to(own[:, None], shape) for own, shape in zip(of_cases, shapes, strict=True)]


def _blocks(count: int) -> NDArray[np.int64]:
    """Return the folds of rows in blocks, two for each fold."""
    return np.arange(count) * 2 * FOLDS // max(count, 1) % FOLDS


def _pieces(graph: Graph) -> NDArray[np.int64]:
    """Return the folds of the nodes of a graph in connected pieces, two or more for each fold [node]."""
    neighbors, fold = neighbors_of(graph), np.full(graph.num_nodes, -1)
    size, piece = -(-graph.num_nodes // (2 * FOLDS)), 0
    for start in range(graph.num_nodes):
        if fold[start] >= 0:
            continue
        queue = [start]
        fold[start] = piece % FOLDS
        for node in queue:
            for other in neighbors[node].tolist():
                if len(queue) < size and fold[other] < 0:
                    fold[other] = piece % FOLDS
                    queue.append(other)
        piece += 1
    return fold


def of_predictions(search: Search, cases: Sequence[Cases]) -> Search:
    """Return a search of kernels of predictions, that holds out blocks of all cases where whole ones would be few.

    One or two may be harder or easier than the others. Predictions are out of fold in parts of cases, too. Kernels are
    not so narrow that predictions fall between the landmarks.
    """
    search = dataclasses.replace(search, lowest=search.lowest._replace(obs_bandwidth=NARROWEST))
    counts = [len(next(iter(one.samples.values()))) for one in cases]
    total = sum(count * one.graph.num_nodes for count, one in zip(counts, cases, strict=True))
    few = len(cases) == 1 and 2 * cases[0].graph.num_nodes > min(search.most_nodes, total // search.share)
    return dataclasses.replace(search, min_cases=counts[0] + 1) if few else search


def _replaced(data: TrainingData, found: Mapping[int, Any]) -> TrainingData:
    """Return training data with predictions for observations, and the front ends."""
    dtype = jnp.result_type(float)
    front_ends = {v: one.front_end for v, one in found.items()}
    shaped = {v: one.predicted.reshape(-1, *one.front_end.offset.shape).astype(dtype) for v, one in found.items()}
    if not data.cases:
        pairs = {v: (data.observations[v][0], _checks.to_jax(one)) for v, one in shaped.items()}
        return _with(data, observations=data.observations | pairs, front_ends=front_ends)
    cases, used = [], dict.fromkeys(shaped, 0)
    for one in data.cases:
        observations = dict(one.observations)
        for v in set(shaped) & set(observations):
            seen = np.asarray(one.observed[v])
            table = np.zeros((*seen.shape, *shaped[v].shape[1:]), dtype)
            table[seen] = shaped[v][used[v] : used[v] + seen.sum()]
            used[v] += int(seen.sum())
            observations[v] = table
        partly = {v: mask for v, mask in one.partly.items() if v not in shaped}
        cases.append(Cases(one.graph, one.samples, observations, one.present, one.observed, partly, one.dropped))
    pooled = pool_cases(cases, data.labels, data.obs_labels)
    return _with(pooled, margins=data.margins, obs_margins=data.obs_margins, front_ends=front_ends)


def _with(data: TrainingData, **fields: dict[int, Any]) -> TrainingData:
    """Return training data with some other fields, which are mappings."""
    of = lambda data: [getattr(data, name) for name in fields]
    return eqx.tree_at(of, data, list(fields.values()), is_leaf=lambda x: isinstance(x, dict))


def kernel_ridge(rows: Rows) -> Learned | None:
    """Return the kernel ridge regression whose bandwidth and ridge have the smallest error out of fold."""
    train = rows.train()
    x, y, fold = rows.x[train], rows.y[train], rows.fold[train]
    spread = np.std(y, axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    if not np.ptp(y, axis=0).any():
        return None
    landmarks = (y / spread)[random_rows(len(y), LANDMARKS)]
    offset = np.mean(x, axis=0)  # of all folds: it says nothing about differences
    median, squared = median_distance(y / spread, 1000), _squared_distances(y / spread, landmarks)
    best: Any = np.inf, None
    for bandwidth in (factor * median for factor in BANDWIDTHS):
        root = _root(landmarks, bandwidth)
        error, weights, full = _ridges(np.exp(-squared / (2 * bandwidth**2)) @ root, x - offset, fold)
        if error < best[0]:
            best = error, (bandwidth, {f: root @ one for f, one in weights.items()}, root @ full)
    if best[1] is None:
        return None
    bandwidth, by_fold, full = best[1]
    predicted = np.empty((len(rows.y), len(offset)))
    for start in range(0, len(rows.y), MOST_ROWS):
        part = slice(start, start + MOST_ROWS)
        values = np.exp(-_squared_distances(rows.y[part] / spread, landmarks) / (2 * bandwidth**2))
        for f in np.unique(rows.fold[part]):
            own = rows.fold[part] == f
            predicted[part][own] = offset + values[own] @ by_fold.get(f, full)
    dtype = jnp.result_type(float)
    arrays = landmarks * spread, full, offset.reshape(rows.dim)
    landmarks, weights, offset = (_checks.to_jax(array, dtype) for array in arrays)
    kernel = ARD(_checks.to_jax(bandwidth * spread, dtype))
    return Learned(KernelRidge(offset, y.shape[1], landmarks, kernel, weights), predicted)


def _squared_distances(x: NDArray, y: NDArray) -> NDArray:
    squares = (np.sum(one**2, axis=1) for one in (x, y))
    return np.maximum(np.add.outer(*squares) - 2 * x @ y.T, 0)


def _root(landmarks: NDArray, bandwidth: float) -> NDArray:
    """Return the matrix that makes kernel functions of landmarks orthonormal features [landmark, landmark]."""
    among = np.exp(-_squared_distances(landmarks, landmarks) / (2 * bandwidth**2))
    return np.linalg.inv(np.linalg.cholesky(among + JITTER * np.eye(len(among)))).T


def _ridges(features: NDArray, x: NDArray, fold: NDArray) -> tuple[float, dict[int, NDArray], NDArray]:
    """Return, at the ridge of smallest error out of fold, the error, the weights without each fold, and of all."""
    moments = {int(f): (features[fold == f], x[fold == f]) for f in np.unique(fold)}
    sums = {f: (one.T @ one, one.T @ values) for f, (one, values) in moments.items()}
    moment, cross = (np.sum(part, axis=0) for part in zip(*sums.values(), strict=True))
    found = {f: _solutions(moment - a, cross - b, len(x) - len(moments[f][0])) for f, (a, b) in sums.items()}
    errors = [np.sum((one @ found[f] - values) ** 2, axis=(1, 2)) for f, (one, values) in moments.items()]
    best = int(np.argmin(np.sum(errors, axis=0)))
    error = float(np.sum(errors, axis=0)[best])
    return error, {f: one[best] for f, one in found.items()}, _solutions(moment, cross, len(x))[best]


def _solutions(moment: NDArray, cross: NDArray, count: int) -> NDArray:
    """Return the weights of ridge regressions at all ridges [ridge, feature, coordinate]."""
    values, vectors = np.linalg.eigh(moment)
    shrunk = 1 / (np.maximum(values, 0) + count * RIDGES[:, None])
    return vectors @ (shrunk[..., None] * (vectors.T @ cross))


def trees(rows: Rows) -> Learned | None:
    """Return trees learned by scikit-learn's boosting; None without a version of it whose trees can be converted."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits  # which scikit-learn requires
    except ImportError:
        return None
    if rows.x.shape[1] > MOST_OUTPUTS:
        return None

    def learn(train: NDArray) -> list[Any]:
        models = (HistGradientBoostingRegressor(**TREES, random_state=0) for _ in rows.x.T)
        with threadpool_limits(1):  # threads that wait for busy cores cost 15 times what they save
            return [model.fit(rows.y[train], values) for model, values in zip(models, rows.x[train].T, strict=True)]

    full = learn(rows.train())
    front_end = converted(full, rows.dim, rows.y.shape[1])
    some = rows.y[random_rows(len(rows.y), 1000)]
    if front_end is None or not _agree(front_end, full, some, float(np.std(rows.x[rows.known]))):
        return None
    predicted = np.empty_like(rows.x)
    for fold in np.unique(rows.fold):
        own = rows.fold == fold
        predicted[own] = _predictions(learn(rows.train(int(fold))), rows.y[own])
    return Learned(front_end, predicted)


def _predictions(models: Sequence[Any], y: NDArray) -> NDArray:
    return np.stack([model.predict(y) for model in models], axis=1)


def _agree(front_end: FrontEnd, models: Sequence[Any], y: NDArray, spread: float) -> bool:
    """Return whether a front end predicts what models of scikit-learn predict."""
    dtype = jnp.result_type(float)
    y = y.astype(dtype)
    found = np.asarray(jax.jit(lambda front_end, y: front_end(y))(front_end, _checks.to_jax(y)))
    return bool(np.max(np.abs(found.reshape(len(y), -1) - _predictions(models, y))) <= CLOSE * spread)


def converted(models: Sequence[Any], dim: tuple[int, ...], width: int) -> Trees | None:
    """Return the trees of models of scikit-learn, one for each coordinate; None if their parts have other names."""
    try:
        tables = [(k, trees[0].nodes) for k, model in enumerate(models) for trees in model._predictors]
        offset = np.array([float(np.squeeze(model._baseline_prediction)) for model in models])
        names = "feature_idx", "num_threshold", "left", "right", "value", "is_leaf", "depth"
        columns = [{name: np.asarray(nodes[name]) for name in names} for _, nodes in tables]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    size = max(len(one["value"]) for one in columns)
    dtype: Any = jnp.result_type(float)

    def table(name: str, kind: Any) -> Any:
        padded = np.zeros((len(columns), size), kind)
        for row, one in zip(padded, columns, strict=True):
            itself = np.arange(len(one["value"]))
            values = np.where(one["is_leaf"], itself, one[name]) if name in ("left", "right") else one[name]
            row[: len(values)] = _rounded_down(values, dtype) if name == "num_threshold" else values
        return _checks.to_jax(padded)

    return Trees(
        _checks.to_jax(offset.reshape(dim), dtype),
        width,
        table("feature_idx", np.int32),
        table("num_threshold", dtype),
        table("left", np.int32),
        table("right", np.int32),
        table("value", dtype),
        _checks.to_jax(np.array([k for k, _ in tables], np.int32)),
        int(max(one["depth"].max() for one in columns)),
    )


def _rounded_down(values: NDArray, dtype: Any) -> NDArray:
    """Return the largest numbers of a precision that are not above values: comparisons of its numbers stay the same."""
    near = values.astype(dtype)
    return np.where(near > values, np.nextafter(near, np.array(-np.inf, dtype)), near)


KINDS: dict[str, Callable[[Rows], Learned | None]] = {KernelRidge.kind: kernel_ridge, Trees.kind: trees}
"""{kind of front end: function that learns it}."""
