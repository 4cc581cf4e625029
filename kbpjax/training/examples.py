"""Training cases on levels: evidence, true values, and which of them are scored."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import quick_jit
from kbpjax.graphs.graph import Graph, StaticGraph
from kbpjax.kernels import RBF, gram
from kbpjax.learning.data import Cases
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.evidence import observe

BATCH = 32
"""Number of cases whose evidence is computed at once."""


Hide = Callable[[np.random.Generator, int], NDArray[np.bool_]]
"""From a random generator and a number of cases to a mask of what is hidden [case, node]."""


SHARES, BESIDE_HOLES = (0.1, 0.3, 0.6), (0.1, 0.2)
"""Shares of the observations that are hidden, in cases without holes, and beside the holes of others."""

COMPLETE = 0.05
"""Largest share of missing values of cases that count as without holes."""


def has_holes(cases: Cases) -> bool:
    """Return whether values are missing, where observations are the values themselves."""
    masks = [np.asarray(cases.present[v]) for v in values_of(cases)]
    return bool(masks) and bool(np.mean(np.concatenate([~mask.ravel() for mask in masks])) > COMPLETE)


def hide_shares(num_nodes: int, shares: Sequence[float]) -> Hide:
    """Return a function that hides a random share of each case, each share as often as the others."""
    return lambda rng, count: rng.random((count, num_nodes)) < rng.choice(shares, (count, 1))


class Given(NamedTuple):
    """What a score of some cases needs; see `Examples`.

    Attributes:
        evidence: logarithms of the local factors [node, case, level].
        distances: distances of the true values to the levels [node, case, level].
        between: distances between the levels [node_type, level, level].
        weights: weights of the scores [node, case].
        there: which true values count [node, case].
    """

    evidence: Array
    distances: Array
    between: Array
    weights: Array
    there: Array


class Place(NamedTuple):
    """The nodes of a network among those of the examples.

    Attributes:
        rows: their positions, of the examples' nodes; any, where the network has none [node].
        scored: which of them are scored: not those near the edge of a part of a graph [node].
    """

    rows: NDArray[np.integer]
    scored: NDArray[np.bool_]


class Examples:
    """Cases of one graph.

    Attributes:
        evidence: logarithms of the local factors of all observations [node, case, level].
        distances: distances of the true values to the levels [node, case, level], in units of the scores.
        between: distances between the levels [node_type, level, level].
        units: scale of each node relative to the mean of its type, the weight of scores of standardized values [node].
        there: which true values are known [node, case].
        hidden: which nodes have the value itself as observation: they are scored only where it is hidden [node].
        nodes: numbers of the nodes in the whole graph [node].
    """

    evidence: NDArray[np.floating]
    distances: NDArray[np.floating]
    between: Array
    units: NDArray[np.floating]
    there: NDArray[np.bool_]
    hidden: NDArray[np.bool_]
    nodes: NDArray[np.integer]

    def __init__(self, model: KernelMRF, graph: Graph, cases: Cases, values: tuple[int, ...], nodes: NDArray):
        """Compute all of it.

        Args:
            model: the closed form as a model (`model_of`).
            graph: its graph, of the chosen nodes.
            cases: the cases, of the whole graph.
            values: node types whose observations are the values themselves.
            nodes: the chosen nodes.
        """
        kinds, count = np.asarray(graph.node_type), len(next(iter(cases.samples.values())))
        size = model.operators.evaluate.shape[1]
        dtype = np.dtype(jnp.result_type(float))
        memory = 2 * graph.num_nodes * count * size * dtype.itemsize
        _checks.require_memory("data", "evidence and distances on levels", memory, "Pool fewer cases.")
        place = np.cumsum(np.eye(1 + kinds.max(), dtype=int)[np.asarray(cases.graph.node_type)], axis=0) - 1
        own = {v: place[nodes[kinds == v], v] for v in np.unique(kinds).tolist()}
        self.evidence = _evidence(model, graph, cases, own, values).astype(dtype)
        self.distances = np.zeros((graph.num_nodes, count, size), dtype)
        self.there = np.zeros((graph.num_nodes, count), bool)
        self.units = np.ones(graph.num_nodes, dtype)
        between = np.zeros((1 + kinds.max(), size, size), dtype)
        for v, rows in own.items():
            x, levels = np.asarray(cases.samples[v])[:, rows], model.points[v]
            if v in model.margins:
                margins = model.margins[v].of_nodes(len(cases.samples[v][0])).at_nodes(_checks.to_jax(rows, np.int32))
                x = np.swapaxes(np.asarray(margins.standardized(jnp.asarray(np.swapaxes(x, 0, 1)))), 0, 1)
                scale = np.asarray(margins.scale, float)
                self.units[kinds == v] = np.where(scale > 0, scale, scale.mean()) / scale.mean()
            distance = _distance(model, v)
            flat = _checks.to_jax(x.reshape(-1, *x.shape[2:]), levels.dtype)
            to_levels = np.asarray(distance(flat)).reshape(*x.shape[:2], -1)
            self.distances[kinds == v, :, : len(levels)] = np.swapaxes(to_levels, 0, 1)
            between[v, : len(levels), : len(levels)] = distance(levels)
            self.there[kinds == v] = np.asarray(cases.present[v])[:, rows].T
        self.between = _checks.to_jax(between, dtype)
        self.hidden, self.nodes = np.isin(kinds, values), nodes

    def batch(self, chosen: NDArray, hidden: NDArray[np.bool_], place: Place) -> Given:
        """Return what a score of some cases needs, at the nodes of a network.

        Nodes whose observations are the values themselves are scored where they are `hidden` [case, node].
        """
        rows, both = place.rows, np.ix_(place.rows, chosen)
        values = self.hidden[rows, None]
        away = values & hidden[:, self.nodes[rows]].T
        there = self.there[both] & (away | ~values) & place.scored[:, None]
        evidence = np.where(away[..., None], 0, self.evidence[both])
        weights = np.where(there, self.units[rows, None], 0)
        of_cases = evidence, self.distances[both], weights, there
        evidence, distances, weights, there = map(_checks.to_jax, of_cases)
        return Given(evidence, distances, self.between, weights, there)


def values_of(cases: Cases) -> tuple[int, ...]:
    """Return the node types whose observations are the values themselves, or all if nothing is observed."""
    if not cases.observations:
        return tuple(cases.samples)
    found = []
    for v, y in cases.observations.items():
        both = np.asarray(cases.present[v]) & np.asarray(cases.observed[v])
        x, y = np.asarray(cases.samples[v])[both], np.asarray(y)[both]
        if len(x) and x.shape == y.shape and np.array_equal(x, y):
            found.append(v)
    return tuple(found)


def _evidence(
    model: KernelMRF, graph: Graph, cases: Cases, own: dict[int, NDArray], values: tuple[int, ...]
) -> NDArray[np.floating]:
    """Return the logarithms of the local factors that `observe` gives [node, case, level]."""
    given = dict(cases.observations) or {v: cases.samples[v] for v in values}
    masks = dict(cases.observed) or cases.present
    y = {v: _checks.to_jax(np.asarray(given[v])[:, rows]) for v, rows in own.items() if v in given}
    kinds = np.asarray(graph.node_type)
    seen = np.zeros((len(next(iter(cases.samples.values()))), graph.num_nodes), bool)
    for v in y:
        seen[:, kinds == v] = np.asarray(masks[v])[:, own[v]]

    return np.swapaxes(np.asarray(_logs(model, (y, _checks.to_jax(seen)), fixed=StaticGraph(graph))), 0, 1)


@partial(quick_jit, static_argnames="fixed")
def _logs(model: KernelMRF, given: Any, *, fixed: StaticGraph) -> Array:
    """Return the logarithms of the local factors of cases [case, node, level]."""

    def one(case: Any) -> Array:
        y, mask = case
        return jnp.log(observe(model, fixed.graph, y, mask=mask, power=1.0).local)

    return jax.lax.map(one, given, batch_size=BATCH)


def _distance(model: KernelMRF, node_type: int) -> Callable[[Array], Array]:
    """Return a function from values to their distances from the levels.

    Of numbers with an RBF, absolute ones in standard deviations; else, distances of features relative to their norm.
    """
    levels, kernel = model.points[node_type], getattr(model.bases[node_type], "kernel", None)
    if levels.ndim == 1 and isinstance(kernel, RBF):
        spread = jnp.std(levels.astype(jnp.result_type(float)))
        return lambda x: jnp.abs(x[:, None] - levels[None]).astype(spread.dtype) / jnp.where(spread > 0, spread, 1)
    assert kernel is not None
    at = jax.vmap(lambda x: kernel(x, x))
    norm = jnp.sqrt(jnp.mean(at(levels)))
    square = lambda x: at(x)[:, None] + at(levels)[None] - 2 * gram(kernel, x, levels)
    return lambda x: jnp.sqrt(jnp.maximum(square(x), 0)) / jnp.where(norm > 0, norm, 1)
