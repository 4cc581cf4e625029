"""Relations of three variables that pairs cannot say, found in tables of counts."""

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.learning.data import TrainingData

CASES, NODES, TRIPLES = 300, 64, 200
"""Fewest cases, and most nodes and triples, that are looked at."""

BINS = 4
"""Number of equally likely intervals of a number, and largest number of states of others."""

ROUNDS = 50
"""Rounds of iterative proportional fitting."""

LEAST = 0.1
"""Smallest information, in nats for each case, that is named."""


class Triple(NamedTuple):
    """Three nodes, two of them neighbors of the first.

    Attributes:
        nodes: the nodes.
        nats: information that their joint distribution has beyond all that is said of pairs, for each case.
    """

    nodes: tuple[int, int, int]
    nats: float


def triples_beyond_pairs(data: TrainingData) -> list[Triple]:
    """Return the triples of a node and two neighbors that pairs do not explain, the strongest first.

    Among the tables with the same margins of pairs, the one without interaction of three has the largest entropy
    (iterative proportional fitting; Deming and Stephan 1940). Its divergence from the counts, less what chance gives,
    is what no pairwise model can say.
    """
    if _checks.is_traced(data) or len(data.cases) != 1:
        return []
    (cases,) = data.cases
    count = len(next(iter(cases.samples.values())))
    if not count >= CASES or cases.graph.num_nodes > NODES:
        return []
    codes = _codes(cases)
    half = cases.graph.num_edges // 2
    ends = zip(np.asarray(cases.graph.senders)[:half].tolist(), np.asarray(cases.graph.receivers)[:half].tolist())
    near: dict[int, list[int]] = {}
    for a, b in ends:
        if a in codes and b in codes:
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    named = {
        tuple(sorted((c, *pair))): (c, *pair) for c, own in near.items() for pair in itertools.combinations(own, 2)
    }
    chosen = list(named.values())[:TRIPLES]
    if not chosen:
        return []
    tables = np.stack([_table(*(codes[node] for node in nodes)) for nodes in chosen])
    total = tables.sum(axis=(1, 2, 3), keepdims=True)
    nats = _divergence(tables / np.maximum(total, 1)) - (BINS - 1) ** 3 / (2 * np.maximum(total.reshape(-1), 1))
    found = [Triple(nodes, float(own)) for nodes, own in zip(chosen, nats, strict=True) if own > LEAST]
    return sorted(found, key=lambda one: -one.nats)


def _codes(cases: Any) -> dict[int, NDArray[np.integer]]:
    """Return {node: number of the interval or state of its values, -1 where missing [case]} of the nodes with few."""
    found = {}
    for v, x in cases.samples.items():
        values, there = np.asarray(x), np.asarray(cases.present[v])
        if values.ndim != 2:
            continue
        for place, node in enumerate(np.asarray(cases.graph.nodes_of_type(v)).tolist()):
            own, known = values[:, place], there[:, place]
            states = np.unique(own[known])
            if len(states) > BINS and np.issubdtype(own.dtype, np.floating):
                states = np.quantile(own[known], np.arange(BINS) / BINS)
            if 2 <= len(states) <= BINS:
                code = np.clip(np.searchsorted(states, own, side="right") - 1, 0, BINS - 1)
                found[node] = np.where(known, code, -1)
    return found


def _table(*codes: NDArray[np.integer]) -> NDArray[np.floating]:
    """Return counts of cases [first, second, third]."""
    known = np.all([code >= 0 for code in codes], axis=0)
    place = np.ravel_multi_index([code[known] for code in codes], (BINS,) * 3)
    return np.bincount(place, minlength=BINS**3).reshape((BINS,) * 3).astype(float)


def _divergence(shares: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the divergence of tables from those of the same pairs without interaction of three [table]."""
    model = np.full_like(shares, 1 / BINS**3)
    for _ in range(ROUNDS):
        for axis in (1, 2, 3):
            wanted, own = (one.sum(axis=axis, keepdims=True) for one in (shares, model))
            model = model * np.where(own > 0, wanted / np.where(own > 0, own, 1), 0)
    logs = np.log(np.where(shares > 0, shares, 1)) - np.log(np.where((shares > 0) & (model > 0), model, 1))
    return (shares * logs).sum(axis=(1, 2, 3))
