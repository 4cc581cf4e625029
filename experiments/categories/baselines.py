"""Baselines for predicting categories, decoding of sparse vectors, and recall."""

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp


def recall_at(scores: np.ndarray, labels: np.ndarray, most: int) -> np.ndarray:
    """Return the share of each paper's categories among its k best scores, k = 1 .. most [paper, most].

    Papers must have one category at least. Equal scores are ranked by the number of the category.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
    found = np.cumsum(np.take_along_axis(labels, order, 1), axis=1) / labels.sum(1, keepdims=True)
    return np.pad(found, ((0, 0), (0, most - found.shape[1])), mode="edge")


def matching_pursuit(dictionary: np.ndarray, signals: np.ndarray, most: int) -> np.ndarray:
    """Decode sparse vectors by orthogonal matching pursuit: scores of categories [signal, category].

    Each step takes the atom with the largest absolute inner product with the residual and solves least squares again
    (Gram form, all signals at once). An atom scores by the step that took it: the first has the largest score.

    Args:
        dictionary: atoms as columns [feature, category].
        signals: vectors to decode [signal, feature].
        most: steps, at most the number of features and of categories.
    """
    length = np.linalg.norm(dictionary, axis=0)
    atoms = dictionary / np.where(length > 0, length, 1)
    gram, first = atoms.T @ atoms, signals @ atoms
    most = min(most, *dictionary.shape)
    rows = np.arange(len(signals))
    scores, chosen = np.zeros_like(first), np.zeros((len(signals), 0), int)
    correlation = first
    for step in range(most):
        free = np.where(scores > 0, -np.inf, np.abs(correlation))
        best = free.argmax(1)
        chosen = np.concatenate([chosen, best[:, None]], axis=1)
        scores[rows, best] = most - step
        among = gram[chosen[:, :, None], chosen[:, None]] + 1e-10 * np.eye(step + 1)
        weights = np.linalg.solve(among, np.take_along_axis(first, chosen, 1)[..., None])[..., 0]
        spread = np.zeros_like(first)
        np.put_along_axis(spread, chosen, weights, 1)
        correlation = first - spread @ gram
    return scores


def cosines(texts: sp.csr_matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the inner products of texts [row, column], in single precision."""
    return (texts[rows].astype(np.float32) @ texts[columns].astype(np.float32).T).toarray()


def nearest(similar: np.ndarray, neighbors: int) -> sp.csr_matrix:
    """Keep the largest `neighbors` similarities of each row, 0 and less left out."""
    count = min(neighbors, similar.shape[1])
    columns = np.argpartition(-similar, count - 1, axis=1)[:, :count]
    values = np.maximum(np.take_along_axis(similar, columns, 1), 0)
    rows = np.repeat(np.arange(len(similar)), count)
    kept = sp.csr_matrix((values.reshape(-1), (rows, columns.reshape(-1))), shape=similar.shape)
    kept.eliminate_zeros()
    return kept


def vote(weights: sp.csr_matrix, labels: np.ndarray) -> np.ndarray:
    """Return the weighted mean of label vectors, 0 where there is no weight [row, category]."""
    total = np.asarray(weights.sum(1)).reshape(-1, 1)
    return np.divide(weights @ labels, total, out=np.zeros((len(total), labels.shape[1])), where=total > 0)


def label_spreading(
    links: sp.csr_matrix,
    start: np.ndarray,
    known: np.ndarray,
    weight: float,
    iterations: int,
    clamped: bool = True,
    centered: bool = False,
) -> np.ndarray:
    """Return scores spread along links: F <- (F0 + w S F) / (1 + w), S = D^-1/2 A D^-1/2 (Zhou et al. 2004).

    Args:
        links: symmetric adjacency matrix A [paper, paper].
        start: F0, label vectors of known papers and predictions of the others [paper, category].
        known: papers whose rows are label vectors.
        weight: w > 0, of the neighbors; alpha of the reference is w / (1 + w).
        iterations: number of iterations.
        clamped: whether the rows of known papers stay as they are in `start`; the reference lets them change.
        centered: whether deviations from the mean of the known rows are spread, so that a paper without neighbors
            keeps its own scores and one with many does not gain in all categories.
    """
    degree = np.maximum(np.asarray(links.sum(1)).reshape(-1), 1)
    symmetric = sp.diags_array(degree**-0.5) @ links @ sp.diags_array(degree**-0.5)
    mean = start[known].mean(0) if centered else np.zeros_like(start[0])
    kept = known if clamped else known[:0]
    return _spread(symmetric.astype(start.dtype), start - mean, kept, weight, iterations) + mean


def personalized_pagerank(links: sp.csr_matrix, start: np.ndarray, weight: float, iterations: int) -> np.ndarray:
    """Return the mean of `start` under personalized PageRank from each paper: F <- (F0 + w D^-1 A F) / (1 + w).

    The walk restarts with probability 1 / (1 + w). Arguments as in `label_spreading`; no paper is fixed.
    """
    degree = np.maximum(np.asarray(links.sum(1)).reshape(-1), 1)
    walk = (sp.diags_array(1 / degree) @ links).astype(start.dtype)
    return _spread(walk, start, np.zeros(0, int), weight, iterations)


def _spread(matrix: Any, start: np.ndarray, known: np.ndarray, weight: float, iterations: int) -> np.ndarray:
    scores = start
    for _ in range(iterations):
        scores = (start + weight * (matrix @ scores)) / (1 + weight)
        scores[known] = start[known]
    return scores


def regress(papers: Any, known: np.ndarray, ridge: float) -> np.ndarray:
    """Predict categories by ridge regression on all terms: the linear kernel on tf-idf, in its dual form.

    Args:
        papers: the papers.
        known: numbers of the papers whose categories are known; those with words and categories are learned from.
        ridge: lambda > 0 of gram + lambda I.

    Returns:
        Predictions [paper, category], single precision: for the papers learned from those of the regression on all
        others (leave-one-out), for papers without words the mean.
    """
    rows = known[(papers.worded & papers.labeled)[known]]
    labels: Any = papers.labels.astype(np.float32)
    mean = labels[rows].mean(0)
    gram = cosines(papers.texts, rows, rows)
    gram[np.diag_indices(len(gram))] += ridge
    inverse = scipy.linalg.inv(gram, assume_a="pos", lower=True, overwrite_a=True)
    weights = inverse @ (labels[rows] - mean)
    rest = np.setdiff1d(np.arange(len(labels)), rows)
    predicted = np.empty_like(labels)
    predicted[rows] = labels[rows] - weights / np.diag(inverse)[:, None]
    for part in np.array_split(rest, 1 + len(rest) // 4096):
        predicted[part] = cosines(papers.texts, part, rows) @ weights + mean
    return predicted
