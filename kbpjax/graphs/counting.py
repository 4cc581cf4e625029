"""Sorting and grouping of integers, and of nodes into components, in linear time, for graphs of millions of nodes.

`numpy.unique` of rows, and stable sorts, would take most of the time of building these graphs.
"""

import numpy as np
from numpy.typing import NDArray

MANY = 2**16
"""Number of keys from which SciPy, whose import takes about as long as sorting them, counts instead of sorting."""

LARGE = 8
"""Largest key, relative to their number, up to which it counts."""


def stable_order(keys: NDArray) -> NDArray:
    """Return `numpy.argsort(keys, kind="stable")` of integers >= 0."""
    if len(keys) < MANY or keys.max() > LARGE * len(keys):
        return np.argsort(keys, kind="stable")
    from scipy.sparse import coo_array  # a dependency of JAX, imported where it is needed

    index = np.arange(len(keys), dtype=np.int32)
    rows = coo_array((index, (keys.astype(np.int32), index)), shape=(1 + int(keys.max()), len(keys)))
    return rows.tocsr().data.astype(int)


def groups(types: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Return the types that occur, sorted, the number of each, and the place of every entry's type among them.

    As `numpy.unique(types, return_counts=True, return_inverse=True)` of integers >= 0 that are not large.
    """
    counts = np.bincount(types, minlength=1)
    present = np.flatnonzero(counts)
    place = np.zeros(len(counts), int)
    place[present] = np.arange(len(present))
    return present, counts[present], place[types]


def ranked(first: NDArray, second: NDArray) -> tuple[NDArray, NDArray]:
    """Return the index of one entry of each pair that occurs, in sorted order, and each entry's place among the pairs.

    Args:
        first: integers >= 0 [entry].
        second: integers >= 0 [entry]; the largest of both are below 2^31.
    """
    keys = first.astype(np.int64) * (1 + int(second.max(initial=0))) + second
    _, index, place = np.unique(keys, return_index=True, return_inverse=True)
    return index, place.reshape(-1)


def components(first: NDArray, second: NDArray, num_nodes: int) -> NDArray[np.integer]:
    """Return the connected component of each node, numbered from 0 [node], from the ends of all edges [edge]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(first)), (first, second)), shape=(num_nodes, num_nodes))
    return connected_components(edges.tocsr(), directed=False)[1]
