"""`choose_edges`: a graph for numbers, whose edges are added while held-out answers become better."""

import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.learning.differing import rank_scores
from kbpjax.training.gaussian import Gaussian, walk_summable
from kbpjax.tuning.tune import progress_bar

NODES = 128
"""Largest number of columns."""

FEWEST = 30
"""Smallest number of cases, and of common values of a pair whose correlation is known."""

HELD = 0.2
"""Share of the cases that are held out."""

HIDDEN = 0.3
"""Share of the values of held-out cases that are hidden and predicted."""

MOST_HELD = 200
"""Largest number of held-out cases."""

SHRINKAGE = 0.1
"""Share of independence in the correlations from which partial ones are computed."""

DEGREES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Mean numbers of neighbors that are compared."""

GAIN = 0.005
"""Relative difference from the smallest error up to which fewer edges are as good."""

PATIENCE = 2
"""Number of larger graphs in a row that gain nothing, after which no larger ones are compared."""


@public
def choose_edges(
    x: Numbers, *, start: Graph | None = None, most: int | None = None, seed: int = 0, progress: bool = True
) -> Graph:
    """Return a graph of columns of numbers: edges that say something beside the others, as many as pay.

    Pairs are proposed in the order of their partial correlations: those given all other columns. Graphs with more and
    more of them are compared by the error of held-out values under the Gaussian copula of the graph whose messages
    converge, with exact inference. The smallest graph is taken whose error is within half a percent of the best.
    Relations may be of any form afterwards: `fit` learns them.

    Args:
        x: values [case, node], NaN where missing; thirty cases or more, up to 128 nodes.
        start: a graph whose edges are kept, such as that of the nearest places (`neighbor_graph`); its types are not.
            None: the spanning tree of the largest correlations.
        most: largest mean number of neighbors, >= 1; None: no limit.
        seed: seed of what is held out.
        progress: whether to show a progress bar if standard error is a terminal (and tqdm is installed).

    Returns:
        The graph, with one node type and one edge type; edges (a, b), a < b, in sorted order.

    Raises:
        ValueError: fewer than two columns or thirty cases, more than 128 columns, infinite values, or a start with
            another number of nodes.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.cumsum(np.random.default_rng(0).normal(size=(300, 6)), axis=1)  # each column follows the one before
        >>> graph = kbp.choose_edges(x)
        >>> list(zip(graph.senders[:5].tolist(), graph.receivers[:5].tolist()))
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    """
    values = np.asarray(_checks.as_numpy("x", x), float)
    ok = values.ndim == 2 and values.shape[1] >= 2 and len(values) >= FEWEST
    rule, fix = f"must be values [case, node] of two nodes and {FEWEST} cases or more", "Pass more cases."
    _checks.require(ok, "x", rule, f"shape {values.shape}", fix)
    _checks.require_finite_or_nan("x", values)
    count = values.shape[1]
    fix = "Join the nearest places: kbpjax.neighbor_graph."
    _checks.require(count <= NODES, "x", f"must have at most {NODES} columns", count, fix)
    if most is not None:
        _checks.require_number("most", most, least=1)
    _checks.require_seed(seed)
    known = start is None or start.num_nodes == count
    _checks.require(known, "start", f"must have {count} nodes", getattr(start, "num_nodes", 0), "Pass another graph.")
    scores = rank_scores(values)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(scores))
    held, kept = np.split(order, [min(MOST_HELD, int(HELD * len(scores)))])
    hidden = ~np.isnan(scores[held]) & (rng.random((len(held), count)) < HIDDEN)
    correlation, weight = _correlations(scores[kept])
    first = _tree(np.abs(correlation)) if start is None else _pairs_of(start)
    proposed = _by_strength(correlation, weight, first)
    sizes = sorted({int(np.clip(degree * count // 2, len(first), len(proposed))) for degree in DEGREES})
    limit = len(proposed) if most is None else max(len(first), int(most * count // 2))
    sizes = [size for size in sorted({len(first), *sizes, len(proposed)}) if size <= limit]
    errors: dict[int, float] = {}
    for size in (sizes[step] for step in progress_bar(len(sizes), progress, name="edges")):
        found = walk_summable(scores[kept], proposed[:size])
        error = _error(found, proposed[:size], scores[held], hidden)
        errors[size] = error if np.isfinite(error) else np.inf
        before, last = list(errors.values())[:-PATIENCE], list(errors.values())[-PATIENCE:]
        if before and min(last) > (1 - GAIN) * min(before):
            break
    best = min(size for size, error in errors.items() if error <= (1 + GAIN) * min(errors.values()))
    pairs = np.sort(proposed[:best], axis=1)
    return Graph.from_edges(pairs[np.lexsort(pairs.T[::-1])], count)


def _correlations(scores: NDArray) -> tuple[NDArray, NDArray]:
    """Return correlations over common values, 0 where they are few, and partial correlations of shrunk ones."""
    there = ~np.isnan(scores)
    filled, mask = np.where(there, scores, 0), there.astype(float)
    common = mask.T @ mask
    of_pairs = np.maximum(common, 1)
    mean = filled.T @ mask / of_pairs  # of the first column, where the second is there, too
    variance = (filled**2).T @ mask / of_pairs - mean**2
    covariance = filled.T @ filled / of_pairs - mean * mean.T
    scale = np.sqrt(np.maximum(variance * variance.T, 0))
    known = (common >= FEWEST) & (scale > 1e-9)
    correlation = np.where(known, covariance / np.where(known, scale, 1), 0)
    np.fill_diagonal(correlation, 1)
    values, vectors = np.linalg.eigh((1 - SHRINKAGE) * correlation + SHRINKAGE * np.eye(len(correlation)))
    precision = (vectors / np.maximum(values, SHRINKAGE / 10)) @ vectors.T  # pairs of columns may contradict each other
    roots = np.sqrt(np.diag(precision))
    return correlation, np.abs(precision / roots[:, None] / roots[None])


def _tree(strength: NDArray) -> NDArray:
    """Return the edges of the spanning tree of the largest strengths [edge, 2]."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    found = minimum_spanning_tree(2 - strength)  # all pairs are joined: no entry is 0
    return np.stack(found.nonzero(), axis=1)


def _pairs_of(graph: Graph) -> NDArray:
    half = graph.num_edges // 2
    return np.stack([np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]], axis=1)


def _by_strength(correlation: NDArray, weight: NDArray, first: NDArray) -> NDArray:
    """Return all pairs [pair, 2]: the first ones, then by partial correlation; those without correlation are left."""
    count = len(weight)
    left = np.triu(correlation != 0, 1)
    low, high = np.sort(first, axis=1).T
    left[low, high] = False
    pairs = np.argwhere(left)
    pairs = pairs[np.argsort(-weight[pairs[:, 0], pairs[:, 1]], kind="stable")]
    return np.concatenate([np.stack([low, high], axis=1), pairs]).astype(int) if count else pairs


def _error(found: Gaussian, ends: NDArray, scores: NDArray, hidden: NDArray) -> float:
    """Return the mean absolute error of hidden values, given the others, in standard deviations."""
    matrix = np.diag(np.asarray(found.diagonal, float))
    matrix[ends[:, 0], ends[:, 1]] = matrix[ends[:, 1], ends[:, 0]] = np.asarray(found.entries, float)
    mean, losses = np.asarray(found.mean, float), []
    for row, asked in zip(scores - mean, hidden, strict=True):
        free = np.flatnonzero(asked | np.isnan(row))
        known = np.flatnonzero(~asked & ~np.isnan(row))
        if not asked.any():
            continue
        covariance = np.linalg.inv(matrix[np.ix_(free, free)])
        away = row[free] + covariance @ (matrix[np.ix_(free, known)] @ row[known])
        losses.append(np.abs(away[asked[free]]))
    return float(np.mean(np.concatenate(losses))) if losses else 0.0
