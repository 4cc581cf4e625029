"""Scores of tables filled with draws: CRPS, errors, coverage, and the energy score of a row's cells together."""

import numpy as np

from experiments.imputation.data import Task


def scores(task: Task, draws: np.ndarray, base: np.ndarray | None) -> dict[str, float]:
    """Return the scores of draws [draw, row, column] over the values that are asked for.

    Scores are fair: their expectation does not depend on the number of draws (Ferro 2014).

    Args:
        task: the task.
        draws: tables filled with draws.
        base: score of each column's own distribution, to which those of the columns are relative; None: one.

    Returns:
        crps: mean over columns of the relative CRPS, of labels of the probability score. plain: mean CRPS over all
        cells of numbers. rmse: over all cells of numbers, of the means of the draws. wrong: share of wrong labels.
        coverage_50, coverage_90: of the intervals between quantiles of the draws, for numbers. energy: mean energy
        score of the numbers of rows with two cells or more, in standard deviations of the columns.
    """
    asked = np.isfinite(task.truth)
    numbers = np.array([i for i in range(asked.shape[1]) if i not in task.labels])
    by_column = column_scores(task, draws)
    relative = by_column if base is None else by_column / base
    error, crps, inside, wrong = [], [], ([], []), []
    for i in range(asked.shape[1]):
        x, truth = draws[:, asked[:, i], i], task.truth[asked[:, i], i]
        if not len(truth):
            continue
        if i in task.labels:
            wrong.append(_mode(x) != truth)
            continue
        error.append((x.mean(axis=0) - truth) ** 2)
        crps.append(fair_crps(x, truth))
        for found, share in zip(inside, (0.5, 0.9), strict=True):
            low, high = np.quantile(x, [(1 - share) / 2, (1 + share) / 2], axis=0, method="median_unbiased")
            found.append((truth >= low) & (truth <= high))
    mean = lambda parts: float(np.mean(np.concatenate(parts))) if parts else float("nan")
    return {
        "crps": float(np.nanmean(relative)),
        "plain": mean(crps),
        "rmse": float(np.sqrt(mean(error))),
        "wrong": mean(wrong),
        "coverage_50": mean(inside[0]),
        "coverage_90": mean(inside[1]),
        "energy": energy(task, draws, numbers),
    }


def column_scores(task: Task, draws: np.ndarray) -> np.ndarray:
    """Return the mean score of each column, NaN where nothing is asked for."""
    found = np.full(task.truth.shape[1], np.nan)
    for i in range(len(found)):
        asked = np.isfinite(task.truth[:, i])
        if asked.any():
            x, truth = draws[:, asked, i], task.truth[asked, i]
            found[i] = np.mean(fair_probability_score(x, truth) if i in task.labels else fair_crps(x, truth))
    return found


def fair_crps(x: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the CRPS of draws [draw, cell], without the bias of few draws."""
    count, ordered = len(x), np.sort(x, axis=0)
    weight = (2 * np.arange(1, count + 1) - count - 1)[:, None]
    spread = 2 * (weight * ordered).sum(axis=0) / (count * (count - 1))
    return np.abs(x - truth).mean(axis=0) - spread / 2


def fair_probability_score(x: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the Brier score (Brier 1950) of drawn labels [draw, cell], without the bias of few draws."""
    count, labels = len(x), np.unique(np.concatenate([x.reshape(-1), truth]))
    shares = np.stack([(x == label).mean(axis=0) for label in labels])
    hot = np.stack([truth == label for label in labels])
    return ((shares - hot) ** 2 - shares * (1 - shares) / (count - 1)).sum(axis=0)


def energy(task: Task, draws: np.ndarray, numbers: np.ndarray) -> float:
    """Return the mean energy score (Gneiting and Raftery 2007) of the rows with two asked numbers or more."""
    scale = np.nanstd(task.train[:, numbers], axis=0) + 1e-9
    found = []
    for row in range(len(task.truth)):
        asked = np.isfinite(task.truth[row, numbers])
        if asked.sum() < 2:
            continue
        x = draws[:, row, numbers[asked]] / scale[asked]
        truth = task.truth[row, numbers[asked]] / scale[asked]
        between = np.sqrt(np.maximum(((x[:, None] - x[None]) ** 2).sum(axis=-1), 0)).sum() / (len(x) * (len(x) - 1))
        found.append(np.linalg.norm(x - truth, axis=1).mean() - between / 2)
    return float(np.mean(found)) if found else float("nan")


def _mode(x: np.ndarray) -> np.ndarray:
    labels = np.unique(x)
    return labels[np.argmax(np.stack([(x == label).sum(axis=0) for label in labels]), axis=0)]
