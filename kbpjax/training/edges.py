"""`choose_edges`: a graph for numbers, whose edges are added while held-out answers become better."""

import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.repeat import time_windows
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

BLOCK = 20
"""Of windows of a record, which overlap, blocks of this many lengths of a window are held out."""

MOST_HELD = 200
"""Largest number of held-out cases."""

SHRINKAGE = 0.1
"""Share of independence in the correlations from which partial ones are computed."""

DEGREES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Mean numbers of neighbors that are compared."""

GAIN = 0.005
"""Relative difference from the smallest error up to which fewer edges are as good."""

CHANCE = 3.0
"""Of a tree of windows, edges are kept whose correlations are this many times those of independent columns."""

PATIENCE = 2
"""Number of larger graphs in a row that gain nothing, after which no larger ones are compared."""


@public
def choose_edges(
    x: Numbers,
    *,
    start: Graph | None = None,
    steps: int = 1,
    most: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Graph:
    """Return a graph of columns of numbers: edges that say something beside the others, as many as pay.

    Pairs are proposed in the order of their partial correlations: those given all other columns. Graphs with more and
    more of them are compared by the error of held-out values under the Gaussian copula of the graph whose messages
    converge, with exact inference. The smallest graph is taken whose error is within half a percent of the best.
    Relations may be of any form afterwards: `fit` learns them.

    With `steps`, rows are successive times, and the graph is one of windows of that many rows (`time_windows`): a
    column may be a neighbor of another, or of itself, some rows before. An edge is then there at all times of a window.

    Args:
        x: values [case, node], NaN where missing; thirty cases or more, up to 128 nodes in a window.
        start: a graph whose edges are kept, such as that of the nearest places (`neighbor_graph`); its types are not.
            None: the spanning tree of the largest correlations; of windows, without those that may be chance.
        steps: number of rows of a window, >= 1.
        most: largest mean number of neighbors, >= 1, unless the start has more; None: no limit.
        seed: seed of what is held out.
        progress: whether to show a progress bar if standard error is a terminal (and tqdm is installed).

    Returns:
        The graph, with one node type; edges (a, b), a < b, in sorted order. Their type is the number of rows between
        their ends, 0 without `steps`; node s of row t of a window is number t * num_nodes + s, as in `repeat_graph`.

    Raises:
        ValueError: fewer than two columns or thirty cases, more than 128 columns of a window, infinite values, a start
            with another number of nodes, or an option out of range.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.cumsum(np.random.default_rng(0).normal(size=(300, 6)), axis=1)  # each column follows the one before
        >>> graph = kbp.choose_edges(x)
        >>> list(zip(graph.senders[:5].tolist(), graph.receivers[:5].tolist()))
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
        >>> record = np.random.default_rng(0).normal(size=(401, 2))
        >>> record[1:, 1] += 2 * record[:-1, 0]  # the second column follows the first, one row later
        >>> graph = kbp.choose_edges(record, steps=2)
        >>> (0, 3, 1) in zip(graph.senders.tolist(), graph.receivers.tolist(), graph.edge_type.tolist())
        True
        >>> data = kbp.pool(graph, kbp.time_windows(record, 2))
    """
    values = np.asarray(_checks.as_numpy("x", x), float)
    _checks.require_count("steps", steps)
    ok = values.ndim == 2 and values.shape[1] * steps >= 2 and len(values) >= FEWEST
    rule = f"must be values [case, node] of two nodes, or of one with steps, and {FEWEST} cases or more"
    _checks.require(ok, "x", rule, f"shape {values.shape}", "Pass more of them.")
    _checks.require_finite_or_nan("x", values)
    columns = values.shape[1]
    rule, fix = f"must have at most {NODES} columns in a window", "Join the nearest places: kbpjax.neighbor_graph."
    _checks.require(columns * steps <= NODES, "x", rule, columns * steps, fix)
    ok, rule = len(values) - steps + 1 >= FEWEST * steps, f"must leave {FEWEST} windows or more for each of them"
    _checks.require(ok, "steps", rule, f"{steps} of {len(values)} rows", "Pass fewer.")
    if most is not None:
        _checks.require_number("most", most, least=1)
    _checks.require_seed(seed)
    known, got = start is None or start.num_nodes == columns, getattr(start, "num_nodes", 0)
    _checks.require(known, "start", f"must have {columns} nodes", got, "Pass another graph.")
    scores = np.asarray(time_windows(rank_scores(values), steps), float)
    rng = np.random.default_rng(seed)
    held, kept = _split(len(scores), steps, rng)
    hidden = ~np.isnan(scores[held]) & (rng.random((len(held), scores.shape[1])) < HIDDEN)
    proposed, first = _proposed(scores[kept], columns, start)
    ends = [_copies(one, columns, steps) for one in proposed]
    totals = np.cumsum([len(one) for one in ends])
    reached = lambda degree: int(np.searchsorted(totals, degree * scores.shape[1] // 2)) + 1
    sizes = sorted({int(np.clip(reached(degree), first, len(proposed))) for degree in DEGREES} | {first, len(proposed)})
    within = len(proposed) if most is None else int(np.searchsorted(totals, most * scores.shape[1] // 2, side="right"))
    limit = max(first, within)
    sizes = [size for size in sizes if size <= limit]
    errors: dict[int, float] = {}
    for size in (sizes[step] for step in progress_bar(len(sizes), progress, name="edges")):
        pairs = np.concatenate(ends[:size])
        error = _error(walk_summable(scores[kept], pairs), pairs, scores[held], hidden)
        errors[size] = error if np.isfinite(error) else np.inf
        before, last = list(errors.values())[:-PATIENCE], list(errors.values())[-PATIENCE:]
        if before and min(last) > (1 - GAIN) * min(before):
            break
    best = min(size for size, error in errors.items() if error <= (1 + GAIN) * min(errors.values()))
    pairs = np.concatenate(ends[:best])
    kinds = np.repeat(proposed[:best, 2], [len(one) for one in ends[:best]])
    order = np.lexsort(pairs.T[::-1])
    return Graph.from_edges(pairs[order], scores.shape[1], edge_type=kinds[order])


def _split(count: int, steps: int, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Return the numbers of the windows that are held out, and of those that share no row with them."""
    if steps == 1:
        held, kept = np.split(rng.permutation(count), [min(MOST_HELD, int(HELD * count))])
        return held, kept
    blocks = np.arange(count) // min(BLOCK * steps, int(HELD * count))
    some = rng.permutation(1 + blocks[-1])[: max(1, int(HELD * (1 + blocks[-1])))]
    held = rng.permutation(np.flatnonzero(np.isin(blocks, some)))[:MOST_HELD]
    near, apart = held[:, None] + np.arange(1 - steps, steps), np.ones(count, bool)
    apart[np.clip(near, 0, count - 1)] = False
    return held, np.flatnonzero(apart)


def _proposed(scores: NDArray, columns: int, start: Graph | None) -> tuple[NDArray, int]:
    """Return pairs of columns (first, second, rows in between) [pair, 3] in the order of proposal, and how many begin.

    Pairs without a correlation are proposed only by the start.
    """
    steps = scores.shape[1] // columns
    correlation, weight = (
        [_mean_over_time(one, columns, lag) for lag in range(steps)] for one in _correlations(scores)
    )
    pairs = [np.argwhere(np.triu(correlation[0] > 0, 1)), *(np.argwhere(one > 0) for one in correlation[1:])]
    some = np.concatenate([np.insert(one, 2, lag, axis=1) for lag, one in enumerate(pairs)])
    if start is None:
        strength = np.zeros((steps, columns, steps, columns))
        for t in range(steps):
            for lag in range(steps - t):
                strength[t, :, t + lag] = correlation[lag]
        low, high = np.sort(_tree(strength.reshape(steps * columns, -1)), axis=1).T
        if steps > 1:  # the times need not be joined by what may be chance
            found = strength.reshape(steps * columns, -1)[low, high]
            likely = found >= min(CHANCE / np.sqrt(len(scores)), found.max())
            low, high = low[likely], high[likely]
        first = np.stack([low % columns, high % columns, high // columns - low // columns], axis=1)
    else:
        half = start.num_edges // 2
        ends = np.stack([np.asarray(start.senders)[:half], np.asarray(start.receivers)[:half]], axis=1)
        first = np.insert(np.sort(ends, axis=1), 2, 0, axis=1)
    first = np.unique(first, axis=0)
    is_first = (some[:, None] == first[None]).all(axis=2).any(axis=1)
    others = some[~is_first]
    strengths = np.stack(weight)[others[:, 2], others[:, 0], others[:, 1]]
    return np.concatenate([first, others[np.argsort(-strengths, kind="stable")]]), len(first)


def _copies(pair: NDArray, columns: int, steps: int) -> NDArray:
    """Return the edges of a pair of columns at all times of a window [edge, 2]."""
    first, second, lag = pair
    begins = columns * np.arange(steps - lag)
    return np.stack([begins + first, begins + columns * lag + second], axis=1)


def _mean_over_time(matrix: NDArray, columns: int, lag: int) -> NDArray:
    """Return the mean absolute entries of columns and columns `lag` rows later [first, second]."""
    steps = len(matrix) // columns
    blocks = np.abs(matrix).reshape(steps, columns, steps, columns)
    return np.mean([blocks[t, :, t + lag] for t in range(steps - lag)], axis=0)


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
    """Return the edges of the spanning tree of the largest strengths above the diagonal [edge, 2]."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    found = minimum_spanning_tree(np.triu(2 - strength, 1))  # all pairs are joined: no entry above is 0
    return np.stack(found.nonzero(), axis=1)


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
