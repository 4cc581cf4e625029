r"""A graph of the columns of a table: those that say most about each other, as many as pay.

Columns have features: of numbers, the score u, u^2 and Gaussians of it, of angles cosine and sine, of labels one
indicator each. The dependence of two columns is their normalized Hilbert-Schmidt independence criterion in these
features (Gretton et al. 2005; kernel alignment, Cortes et al. 2012),

$$\mathrm{HSIC}(s, t) = \|C_{st}\|_F^2 / (\|C_{ss}\|_F \|C_{tt}\|_F),$$

and the strength of an edge beside all others is the same of the blocks of the shrunk precision matrix of all features.
The maximum spanning tree of the first comes first, then edges in the order of the second, while the error of a ridge
regression of each column on its neighbors becomes smaller on held-out rows.
"""

import numpy as np
from numpy.typing import NDArray

from kbpjax.graphs.graph import Graph

DENSE = 16
"""Number of columns up to which all pairs are joined, if rows are enough for that."""

ROWS = 1
"""Smallest number of rows for each edge of a graph with cycles."""

DEGREES = (2, 3, 4, 6, 8, 12, 16)
"""Mean numbers of neighbors that are compared."""

GAIN = 0.005
"""Relative gain on held-out rows that larger graphs must have."""

SHRINKAGE = 0.1
"""Share of independence in the covariance whose inverse orders the edges."""

RIDGE = 0.03
"""Ridge of the regressions, in variances of a feature."""

HELD = 0.25
"""Share of the rows that are held out."""

MOST = 5000
"""Largest number of rows that are used."""

WAVES = np.linspace(-2, 2, 4)
"""Centers of the Gaussians among the features of numbers."""


def features_of(codes: NDArray[np.floating], kind: str) -> NDArray[np.floating]:
    """Return the centered features of a column [row, feature], 0 where it is missing.

    Args:
        codes: the codes of the column [row], NaN where missing.
        kind: "number", "angle" or "label".
    """
    there = ~np.isnan(codes)
    safe = np.where(there, codes, 0)
    if kind == "number":
        table = np.concatenate([safe[:, None], np.exp(-0.5 * (safe[:, None] - WAVES) ** 2)], axis=1)
    elif kind == "angle":
        table = np.stack([np.cos(safe), np.sin(safe)], axis=1)
    else:
        table = np.eye(int(safe.max()) + 1)[safe.astype(int)]
    known = table[there]
    scale = known.std(axis=0)
    table = (table - known.mean(axis=0)) / np.where(scale > 1e-9, scale, np.inf)
    return np.where(there[:, None], table, 0) / np.sqrt(max(there.mean(), 1e-9) * table.shape[1])


def learned_graph(
    codes: NDArray[np.floating], kinds: list[str], start: Graph | None = None, seed: int = 0
) -> tuple[NDArray[np.integer], NDArray[np.floating]]:
    """Return the edges [edge, 2] of a graph of columns, and the dependence of all pairs [column, column].

    Args:
        codes: codes of the columns [row, column], NaN where missing.
        kinds: "number", "angle" or "label" for each column.
        start: a graph whose edges come first; None: the maximum spanning tree of the dependence.
        seed: seed of the rows that are used and held out.
    """
    rows, count = codes.shape
    order = np.random.default_rng(seed).permutation(rows)[:MOST]
    tables = [features_of(codes[order, i], kind) for i, kind in enumerate(kinds)]
    sizes = np.array([one.shape[1] for one in tables])
    ends = np.concatenate([[0], np.cumsum(sizes)])
    table = np.concatenate(tables, axis=1)
    covariance = table.T @ table / len(table)
    block = lambda matrix: np.sqrt(np.add.reduceat(np.add.reduceat(matrix**2, ends[:-1], 0), ends[:-1], 1))
    norms = block(covariance)
    own = np.maximum(np.diag(norms), 1e-12)
    dependence = norms**2 / (own[:, None] * own[None])
    np.fill_diagonal(dependence, 0)
    useful = [i for i in range(count) if np.any(table[:, ends[i] : ends[i + 1]])]
    if len(useful) < 2:
        return np.zeros((0, 2), int), dependence
    first = _tree(dependence, useful) if start is None else np.stack([start.senders, start.receivers], 1)
    first = first[: start.num_edges // 2] if start is not None else first
    first = np.array([pair for pair in np.sort(first, axis=1).tolist() if set(pair) <= set(useful)], int).reshape(-1, 2)
    possible = len(useful) * (len(useful) - 1) // 2
    if rows < ROWS * possible and rows < 2 * ROWS * len(first):
        return first, dependence
    if len(useful) <= DENSE and rows >= ROWS * possible:
        pairs = np.array([(i, j) for n, i in enumerate(useful) for j in useful[n + 1 :]], int)
        return pairs, dependence
    precision = np.linalg.inv(covariance + SHRINKAGE * np.diag(np.maximum(np.diag(covariance), 1e-9)))
    strength = block(precision)
    strength = strength / np.sqrt(np.maximum(np.outer(np.diag(strength), np.diag(strength)), 1e-12))
    taken = {tuple(pair) for pair in first.tolist()}
    rest = [(i, j) for n, i in enumerate(useful) for j in useful[n + 1 :] if (i, j) not in taken]
    rest.sort(key=lambda pair: -strength[pair])
    proposed = np.concatenate([first, np.array(rest, int).reshape(-1, 2)])
    held = max(int(HELD * len(table)), 1)
    moments = [part.T @ part / len(part) for part in (table[held:], table[:held])]
    best, least = first, _error(first, ends, count, *moments)
    for degree in DEGREES:
        size = int(degree * len(useful) // 2)
        if not len(first) < size <= len(proposed) or rows < ROWS * size:
            continue
        error = _error(proposed[:size], ends, count, *moments)
        if error > (1 - GAIN) * least:
            break
        best, least = proposed[:size], error
    return best, dependence


def _tree(dependence: NDArray[np.floating], nodes: list[int]) -> NDArray[np.integer]:
    """Return the edges of the spanning tree of the largest dependences."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    inside = dependence[np.ix_(nodes, nodes)]
    pairs = np.stack(minimum_spanning_tree(2 * (1 + inside.max()) - inside).nonzero(), axis=1)
    return np.array(nodes)[pairs]


def _error(edges: NDArray[np.integer], ends: NDArray[np.integer], count: int, fitted: NDArray, held: NDArray) -> float:
    """Return the mean squared error of the features of each column given its neighbors, on the held-out moments."""
    total = 0.0
    for node in range(count):
        of = np.arange(int(ends[node]), int(ends[node + 1]))
        near = np.concatenate([edges[edges[:, 0] == node, 1], edges[edges[:, 1] == node, 0]])
        total += float(np.trace(held[np.ix_(of, of)]))
        if not len(near):
            continue
        at = np.concatenate([np.arange(int(ends[i]), int(ends[i + 1])) for i in near])
        matrix = fitted[np.ix_(at, at)]
        weights = np.linalg.solve(matrix + RIDGE * np.diag(np.maximum(np.diag(matrix), 1e-9)), fitted[np.ix_(at, of)])
        total += float(np.sum(weights * (held[np.ix_(at, at)] @ weights - 2 * held[np.ix_(at, of)])))
    return total
