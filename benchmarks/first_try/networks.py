"""Methods for networks of fixed nodes, whose cases are rows of a table with holes: imputation and joint Gaussians.

All of them predict the holes of a row from its values that are there.
"""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from scipy.special import ndtr, ndtri

from benchmarks.first_try.scoring import Baseline, Distribution, Draw, Prediction, Problem, Values, score_prediction

RANGES = tuple(0.1 * 1.2**k for k in range(32))
"""Candidates for the range of kriging, in median distances."""

NUGGETS = (0.001, 0.01, 0.03, 0.06, *(0.05 * k for k in range(2, 13)))
"""Candidates for the share of the variance that places near each other do not have in common."""

LEVELS = np.linspace(-5, 5, 201)
"""Standard normal values at which the quantiles of a node are tabulated."""


def best(candidates: Iterable[Baseline], problem: Problem) -> Baseline:
    """Return the method of smallest error on the validation cases of a problem with one quantity."""

    def error(method: Baseline) -> float:
        found = method(problem, problem.validation)[""]
        return score_prediction(problem.quantities[0], found, problem.validation.truth, np.zeros(0))[0]

    return min(candidates, key=error)


def filler(x: np.ndarray, nearest: int | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that fills holes by scikit-learn's IterativeImputer, with its defaults.

    All of its ten rounds are made (`tol=0`): on rows without holes it would stop after one, and fill others by one.

    Args:
        x: training rows [row, node], NaN where missing.
        nearest: `n_nearest_features`; None: all.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    learned = IterativeImputer(tol=0, n_nearest_features=nearest, keep_empty_features=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        learned.fit(x)
    return lambda y: np.asarray(learned.transform(y))


def imputer(x: np.ndarray, *nearest: int | None) -> Baseline:
    """Return IterativeImputer on rows of the values of all nodes.

    Args:
        x: training rows.
        nearest: candidates of `n_nearest_features`; None: all. Of several, the one is taken whose error is smallest on
            the last fifth of the rows, a fifth of them hidden, when it is learned on the others.
    """
    if len(nearest) > 1:
        first = len(x) * 4 // 5
        hidden = np.random.default_rng(0).random(x[first:].shape) < 0.2
        last = np.where(hidden, np.nan, x[first:])
        error = lambda count: np.nanmean((filler(x[:first], count)(last) - x[first:])[hidden] ** 2)
        nearest = (min(nearest, key=error),)
    fill = filler(x, *nearest)
    return lambda problem, draw: {"": Prediction(fill(draw.y))}


def imputer_of_both(train: Draw, nearest: int) -> Baseline:
    """Return IterativeImputer on rows of true values and observations; the true values of a case are holes.

    Values are by node type: numbers, and angles, which become cosines and sines.
    """
    hidden = _columns(train.truth)
    fill = filler(np.concatenate([hidden, _columns(train.y)], axis=1), nearest)

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
        y = _columns(draw.y)
        found = fill(np.concatenate([np.full((len(y), hidden.shape[1]), np.nan), y], axis=1))[:, : hidden.shape[1]]
        number, east, north = np.split(found, 3, axis=1)
        values = {0: number, 1: np.arctan2(north, east)}
        return {q.name: Prediction(values[q.node_type]) for q in problem.quantities}

    return predict


def _columns(values: Values) -> np.ndarray:
    """Return numbers, and cosines and sines of angles, beside each other."""
    return np.concatenate([values[0], np.cos(values[1]), np.sin(values[1])], axis=1)


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> Baseline:
    """Return the conditionals of a joint Gaussian of all nodes."""

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
        return {"": Prediction(*_marginals(draw.y, mean, covariance))}

    return predict


def joint_gaussian(x: np.ndarray, iterations: int, distance: np.ndarray | None = None, weight: float = 0.0) -> Baseline:
    """Joint Gaussian of all nodes, mean and covariance by expectation maximization where values are missing.

    Args:
        x: training rows.
        iterations: iterations of expectation maximization.
        distance: distances of the places, where the covariance shrinks to that of kriging.
        weight: weight of the covariance of kriging.
    """
    return gaussian(*_shrunk(x, iterations, distance, weight))


def _shrunk(
    x: np.ndarray, iterations: int, distance: np.ndarray | None, weight: float
) -> tuple[np.ndarray, np.ndarray]:
    target = None if distance is None else spatial_covariance(x, distance)[1]
    return expectation_maximization(x, iterations, target, weight)


def three_days(x: np.ndarray, iterations: int) -> Baseline:
    """Joint Gaussian of the values of a day, the day before and the day after.

    It sees more than one case: the values that are there on the days around. Rows of the training data and the cases
    of the problem's `test` are consecutive days; cases of other draws are no series and get no days around.
    """

    def around(rows: np.ndarray) -> np.ndarray:
        padded = np.pad(rows, ((1, 1), (0, 0)), constant_values=np.nan)
        return np.concatenate([padded[1:-1], padded[:-2], padded[2:]], axis=1)

    mean, covariance = expectation_maximization(around(x)[1:-1], iterations)
    nodes = x.shape[1]

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
        alone = np.pad(draw.y, ((0, 0), (0, 2 * nodes)), constant_values=np.nan)
        rows = around(draw.y) if draw is problem.test else alone
        means, stds = _marginals(rows, mean, covariance)
        return {"": Prediction(means[:, :nodes], stds[:, :nodes])}

    return predict


def kriging(x: np.ndarray, distance: np.ndarray) -> Baseline:
    """Kriging with the mean and the variance of each place, and an exponential covariance with a nugget."""
    return gaussian(*spatial_covariance(x, distance))


def spatial_covariance(x: np.ndarray, distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the covariance of kriging; range and nugget are the best fit to the training correlations.

    The squares of the differences are weighted by the number of rows in which both places have values.
    """
    mean, std = _moments(x)
    z, seen = np.nan_to_num((x - mean) / std), np.isfinite(x).astype(float)
    counts = seen.T @ seen * (1 - np.eye(len(distance)))
    measured = z.T @ z / np.maximum(counts, 1)
    unit = np.median(distance[distance > 0])

    def correlation(length: float, nugget: float) -> np.ndarray:
        return (1 - nugget) * np.exp(-distance / (length * unit)) + nugget * np.eye(len(distance))

    misfit = lambda options: np.sum(counts * (correlation(*options) - measured) ** 2)
    chosen = min(itertools.product(RANGES, NUGGETS), key=misfit)
    return mean, correlation(*chosen) * std[:, None] * std


def copula(x: np.ndarray, iterations: int, distance: np.ndarray | None = None, weight: float = 0.0) -> Baseline:
    """Gaussian copula: a joint Gaussian of normal scores, one increasing map for each node (a nonparanormal).

    Beliefs are the conditionals of the scores, mapped back to the quantiles of the training values of the node.
    Arguments are those of `joint_gaussian`.
    """
    mean, std = _moments(x)
    quantiles = np.stack([_quantiles(*one) for one in zip(x.T, mean, std, strict=True)])  # [node, level]

    def scores(y: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(one, own, LEVELS) for one, own in zip(y.T, quantiles, strict=True)], axis=1)

    fitted = _shrunk(scores(x), iterations, distance, weight)
    edges = np.concatenate([[-np.inf], (LEVELS[1:] + LEVELS[:-1]) / 2, [np.inf]])

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Distribution]:
        means, stds = _marginals(scores(draw.y), *fitted)
        below = ndtr((edges - means[..., None]) / stds[..., None])
        return {"": Distribution(quantiles, np.diff(below, axis=-1), own_points=True)}

    return predict


def _quantiles(values: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Return increasing values at LEVELS: those of the sample, beyond its ends in steps of its standard deviation.

    Without values they are those of the Gaussian.
    """
    known = np.sort(values[np.isfinite(values)])
    if len(known) < 2:
        return mean + std * LEVELS
    at = ndtri((np.arange(len(known)) + 0.5) / len(known))
    beyond = std * (LEVELS - np.clip(LEVELS, at[0], at[-1]))
    return np.interp(LEVELS, at, known) + beyond + 1e-6 * std * LEVELS  # the last term parts equal values


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column; those of all values where a column has fewer than two."""
    known = np.isfinite(x).sum(axis=0) > 1
    mean, std = np.full(x.shape[1], np.nanmean(x)), np.full(x.shape[1], np.nanstd(x))
    mean[known], std[known] = np.nanmean(x[:, known], axis=0), np.nanstd(x[:, known], axis=0)
    return mean, std


def expectation_maximization(
    x: np.ndarray, iterations: int, target: np.ndarray | None = None, weight: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of rows with missing values; without missing values, one pass gives them.

    A column without values gets the mean and the variance of all values.

    Args:
        x: rows [row, column].
        iterations: number of iterations.
        target: covariance to begin with, and to shrink to; None: variances alone, without shrinking.
        weight: weight of the target in each iteration.
    """
    shrink = lambda covariance: covariance if target is None else (1 - weight) * covariance + weight * target
    if np.isfinite(x).all():
        return x.mean(axis=0), shrink(np.cov(x.T))
    mean, std = _moments(x)
    covariance = np.diag(std**2) if target is None else target
    rows = np.empty_like(x)
    for _ in range(iterations):
        total = np.zeros_like(covariance)
        for part, means, variance in _conditionals(x, mean, covariance):
            rows[part] = means
            total += len(part) * variance
        mean = rows.mean(axis=0)
        covariance = shrink(((rows - mean).T @ (rows - mean) + total) / len(x))
    return mean, covariance


def _marginals(y: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the values of Gaussian rows given those that are not NaN."""
    means, variances = np.empty_like(y), np.empty_like(y)
    for part, found, variance in _conditionals(y, mean, covariance):
        means[part], variances[part] = found, np.diag(variance)
    return means, np.sqrt(np.maximum(variances, 1e-12))


def _conditionals(
    y: np.ndarray, mean: np.ndarray, covariance: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield rows with the same holes, their means given the values that are not NaN, and their common covariance."""
    patterns, which = np.unique(np.isfinite(y), axis=0, return_inverse=True)
    for i, seen in enumerate(patterns):
        part = np.flatnonzero(which.reshape(-1) == i)
        gain = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[seen])
        yield part, mean + (y[np.ix_(part, seen)] - mean[seen]) @ gain, covariance - covariance[:, seen] @ gain
