"""Imputers: a method learns from rows and returns tables filled with draws [draw, row, column]."""

import importlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.first_try import networks
from experiments.imputation.data import Task
from kbpjax.estimator import GraphImputer

DRAWS = 100
"""Number of draws, of methods that take seconds."""

FEW = 20
"""Number of draws of methods that take a pass of regressions for each."""

BOOSTED = 3
"""Rounds of miceforest."""

ROUNDS = 12
"""Rounds of expectation maximization."""

OURS = "GraphImputer"

Method = Callable[[Task, int], np.ndarray]


def graph_imputer(task: Task, seed: int, **options: Any) -> np.ndarray:
    """Return draws of `GraphImputer` without options, but for places and kinds where there are."""
    imputer = GraphImputer(kinds=dict(task.kinds), positions=task.position, random_state=seed, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer.fit(task.train)
        return np.stack(imputer.sample(task.test, DRAWS))


def own_distribution(task: Task, seed: int) -> np.ndarray:
    """Draw from the values of the column: what every score is relative to."""
    rng = np.random.default_rng(seed)
    return _filled(task, lambda rows, column: rng.choice(_known(task.train[:, column]), (DRAWS, len(rows))))


def joint_gaussian(task: Task, seed: int, lags: int = 0, scores: bool = False) -> np.ndarray:
    """Joint Gaussian of all columns by expectation maximization; labels as indicators, drawn in proportion.

    Args:
        task: the task.
        seed: seed of the draws.
        lags: number of rows before and after that are seen, too.
        scores: whether columns of numbers become normal scores first: a Gaussian copula.
    """
    rng, code = np.random.default_rng(seed), Encoded(task, scores)
    train, test = (_around(code.encode(x), lags) for x in (task.train, task.test))
    variances = np.diag(np.nanvar(train, axis=0) + 1e-9)  # a little of it: indicators of labels have sum 1
    mean, covariance = networks.expectation_maximization(train, ROUNDS, variances, 1e-3)
    covariance = covariance + 1e-6 * np.diag(np.diag(covariance) + 1e-9)
    drawn = np.repeat(test[None, :, : code.size], DRAWS, axis=0)
    for row, x in enumerate(test):
        gone = np.isnan(x)
        if not gone[: code.size].any():
            continue
        gain = np.linalg.solve(covariance[np.ix_(~gone, ~gone)], covariance[np.ix_(~gone, gone)]).T
        center = mean[gone] + gain @ (x[~gone] - mean[~gone])
        spread = covariance[np.ix_(gone, gone)] - gain @ covariance[np.ix_(~gone, gone)]
        values, vectors = np.linalg.eigh((spread + spread.T) / 2)
        noise = rng.standard_normal((DRAWS, len(values))) * np.sqrt(np.maximum(values, 0))
        now = np.flatnonzero(gone[: code.size])
        drawn[:, row, now] = (center + noise @ vectors.T)[:, : len(now)]
    return np.stack([np.where(np.isnan(task.test), code.decode(one), task.test) for one in drawn])


def iterative(task: Task, seed: int) -> np.ndarray:
    """IterativeImputer of scikit-learn with Bayesian ridges, of the nearest columns where many, and posterior draws."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    code = Encoded(task, False)
    nearest = None if code.size <= 40 else 20
    learned = IterativeImputer(
        sample_posterior=True, random_state=seed, n_nearest_features=nearest, keep_empty_features=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learned.fit(code.encode(task.train))
        filled = [code.decode(np.asarray(learned.transform(code.encode(task.test)))) for _ in range(FEW)]
    return np.stack([np.where(np.isnan(task.test), one, task.test) for one in filled])


def forests(task: Task, seed: int) -> np.ndarray:
    """Random forests in turn (MissForest): a draw is a training row of a leaf in a tree that is drawn, per column."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401

    rng = np.random.default_rng(seed)
    x = np.concatenate([task.train, task.test])
    first, gone = len(task.train), np.isnan(x)
    filled = np.where(gone, [_center(task, column) for column in range(x.shape[1])], x)
    order = np.argsort(gone[:first].sum(axis=0))
    draws = np.repeat(task.test[None], DRAWS, axis=0)
    rounds = 4
    for turn, column in itertools.product(range(rounds), order):
        others = np.delete(filled, column, axis=1)
        known = np.flatnonzero(~gone[:first, column])
        kind: Any = RandomForestClassifier if column in task.labels else RandomForestRegressor
        forest = kind(
            100, min_samples_leaf=5, max_features=1 / 3 if x.shape[1] > 3 else 1.0, random_state=seed, n_jobs=2
        )
        forest.fit(others[known], x[known, column])
        rows = np.flatnonzero(gone[:, column])
        if not len(rows):
            continue
        filled[rows, column] = forest.predict(others[rows])
        asked = rows[rows >= first]
        if turn == rounds - 1 and len(asked):
            leaves, ends = forest.apply(others[known]), forest.apply(others[asked])
            for draw, tree in enumerate(rng.integers(0, leaves.shape[1], DRAWS)):
                members = np.argsort(leaves[:, tree], kind="stable")
                low = np.searchsorted(leaves[members, tree], ends[:, tree])
                high = np.searchsorted(leaves[members, tree], ends[:, tree], side="right")
                taken = members[np.minimum((low + rng.random(len(asked)) * (high - low)).astype(int), len(known) - 1)]
                draws[draw, asked - first, column] = x[known[taken], column]
    return draws


def miceforest(task: Task, seed: int) -> np.ndarray:
    """The package miceforest: gradient boosting in turn, with predictive mean matching.

    Matching is "normal", and "fast" where that fails: on labels of which some have probability 0.
    """
    import pandas as pd

    mf = importlib.import_module("miceforest")  # so that type checks do not need the package

    def frame(x: np.ndarray) -> Any:
        table = pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])])
        for i in task.labels:
            table[f"c{i}"] = pd.Categorical(table[f"c{i}"], categories=np.unique(_known(task.train[:, i])))
        return table

    def completed(matching: str) -> list[Any]:
        kernel = mf.ImputationKernel(
            frame(task.train),
            num_datasets=FEW,
            random_state=seed,
            save_all_iterations_data=True,
            mean_match_strategy=matching,
        )
        kernel.mice(BOOSTED, verbose=False, num_threads=1)
        new = kernel.impute_new_data(frame(task.test), verbose=False, random_state=seed)
        # Without the number, it takes that of the first column, which is 0 where nothing of it was missing.
        return [new.complete_data(i, iteration=BOOSTED) for i in range(FEW)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tables = completed("normal")
        except ValueError:
            tables = completed("fast")
    filled = [one.astype(float).to_numpy() for one in tables]
    return np.stack([np.where(np.isnan(task.test), one, task.test) for one in filled])


def nearest_rows(task: Task, seed: int) -> np.ndarray:
    """Nearest rows (KNNImputer's distance): a draw is the value of one of the ten nearest that have the cell."""
    from sklearn.metrics.pairwise import nan_euclidean_distances

    rng, code = np.random.default_rng(seed), Encoded(task, False)
    train, test = code.encode(task.train), code.encode(task.test)
    scale = np.nanstd(train, axis=0) + 1e-9
    away = nan_euclidean_distances(test / scale, train / scale)
    away = np.where(np.isnan(away), np.inf, away)

    def draw(rows: np.ndarray, column: int) -> np.ndarray:
        known = np.flatnonzero(~np.isnan(task.train[:, column]))
        near = np.argsort(away[rows][:, known], axis=1, kind="stable")[:, :10]
        which = rng.integers(0, near.shape[1], (DRAWS, len(rows)))
        return task.train[known[near[np.arange(len(rows)), which]], column]

    return _filled(task, draw)


def kriging(task: Task, seed: int) -> np.ndarray:
    """Kriging of the standardized columns, exponential covariance with a nugget fitted to the correlations."""
    assert task.position is not None
    radians = np.deg2rad(task.position)
    place = np.stack([radians[:, 0], radians[:, 1] * np.cos(radians[:, 0].mean())], axis=1)
    distance = np.linalg.norm(place[:, None] - place[None], axis=-1)
    mean, covariance = networks.spatial_covariance(task.train, distance)
    rng = np.random.default_rng(seed)
    drawn = np.repeat(task.test[None], DRAWS, axis=0)
    for row, x in enumerate(task.test):
        gone = np.isnan(x)
        if not gone.any():
            continue
        gain = np.linalg.solve(covariance[np.ix_(~gone, ~gone)], covariance[np.ix_(~gone, gone)]).T
        spread = covariance[np.ix_(gone, gone)] - gain @ covariance[np.ix_(~gone, gone)]
        center = mean[gone] + gain @ (x[~gone] - mean[~gone])
        drawn[:, row, gone] = rng.multivariate_normal(center, spread, DRAWS, check_valid="ignore", method="eigh")
    return drawn


class Encoded:
    """Columns as numbers: labels as indicators, numbers as they are or as normal scores."""

    def __init__(self, task: Task, scores: bool):
        self.task, self.scores = task, scores
        self.counts = [len(np.unique(_known(x))) if i in task.labels else 1 for i, x in enumerate(task.train.T)]
        self.size = sum(self.counts)
        means, stds = np.nanmean(task.train, axis=0), np.nanstd(task.train, axis=0) + 1e-9
        both = zip(task.train.T, means, stds, strict=True)
        self.quantiles = [networks._quantiles(*one) for one in both]

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Return the table [row, number], NaN where missing."""
        parts = []
        for i, count in enumerate(self.counts):
            if i in self.task.labels:
                hot = np.eye(count)[np.nan_to_num(x[:, i]).astype(int) % count]
                parts.append(np.where(np.isnan(x[:, [i]]), np.nan, hot))
            elif self.scores:
                parts.append(np.interp(x[:, i], self.quantiles[i], networks.LEVELS)[:, None])
            else:
                parts.append(x[:, [i]])
        return np.concatenate(parts, axis=1)

    def decode(self, table: np.ndarray) -> np.ndarray:
        """Return the table of values; a label is that of the largest indicator."""
        columns, start = [], 0
        for i, count in enumerate(self.counts):
            part = table[:, start : start + count]
            start += count
            if i in self.task.labels:
                columns.append(np.argmax(part, axis=1).astype(float))
            elif self.scores:
                columns.append(np.interp(part[:, 0], networks.LEVELS, self.quantiles[i]))
            else:
                columns.append(part[:, 0])
        return np.stack(columns, axis=1)


def _around(x: np.ndarray, lags: int) -> np.ndarray:
    padded = np.pad(x, ((lags, lags), (0, 0)), constant_values=np.nan)
    steps = [0, *(s for k in range(1, lags + 1) for s in (-k, k))]
    return np.concatenate([padded[lags + s : lags + s + len(x)] for s in steps], axis=1)


def _known(x: np.ndarray) -> np.ndarray:
    return x[np.isfinite(x)]


def _center(task: Task, column: int) -> float:
    known = _known(task.train[:, column])
    return float(np.bincount(known.astype(int)).argmax() if column in task.labels else known.mean())


def _filled(task: Task, draw: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Return tables filled column by column: `draw(rows, column)` returns values [draw, row]."""
    drawn = np.repeat(task.test[None], DRAWS, axis=0)
    for column in range(task.test.shape[1]):
        rows = np.flatnonzero(np.isnan(task.test[:, column]))
        if len(rows):
            drawn[:, rows, column] = draw(rows, column)
    return drawn
