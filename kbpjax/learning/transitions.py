r"""Given transitions: a hidden Markov model whose probabilities of states are known, and whose emissions are learned.

Let A be the probabilities of the second end of an edge given its first, and pi those of the starts, the nodes without
an incoming edge. The model is

$$p(x) = \prod_{\text{starts}} \pi(x_s) \prod_{s \to t} A(x_s, x_t),$$

with messages that are values at the states: forth $m(x_t) = \sum_{x_s} A(x_s, x_t) f(x_s)$ and back
$m(x_s) = \sum_{x_t} A(x_s, x_t) f(x_t)$, where f is the product of the other messages and the local factor. There is no
ridge and no floor, so a probability of 0 stays 0. Beliefs begin with 1 for each state instead of the marginal P* of
the samples, by which what other node types hear of the states is divided.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul
from kbpjax._public import public
from kbpjax.features import features
from kbpjax.features.cholesky import Basis, Levels, plain_features
from kbpjax.inference.operators import Operators
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.observations import ObservationModel
from kbpjax.learning.starts import GivenStart

CLOSE = 1e-3
"""Largest difference from 1 of the sum of given probabilities."""


@public
def with_transitions(
    model: KernelMRF,
    transitions: Numbers,
    start: Numbers | None = None,
    *,
    node_type: int | None = None,
    edge_type: int | None = None,
) -> KernelMRF:
    """Return a model whose states have given transitions, as in a hidden Markov model; emissions stay as learned.

    Beliefs are those of forward-backward with the learned evidence, at temperature 1. A probability of 0 stays exactly
    0. Relations with other node types stay as learned.

    Args:
        model: a model of `fit` whose variables of the node type are labels, integers or booleans.
        transitions: probability of each state of the second end of an edge, given the state of the first
            [state, state]: row i holds those after state i. States are in sorted order.
        start: probabilities of the states of nodes without an incoming edge, in directed chains and trees [state].
            None: those of the training samples: of starts where the model has them, else of all nodes.
        node_type: the node type of the states. None: the only one with edges among its nodes.
        edge_type: the edge type of the transitions. None: the only one among nodes of the type.

    Returns:
        The model. `kbp.mode`, `kbp.sample`, `kbp.edge_beliefs` and all others take it.

    Raises:
        ValueError: variables that are not states, probabilities that are negative or do not sum to 1, or of another
            number of states than the training samples have; several node or edge types to choose from.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> rng = np.random.default_rng(0)
        >>> states = np.sort(rng.integers(0, 3, (50, 8)), axis=1)  # never back
        >>> graph = kbp.chain_graph(8)
        >>> model = kbp.fit(kbp.pool(graph, states, states + 0.5 * rng.normal(size=states.shape)), effort="low")
        >>> given = kbp.with_transitions(model, [[0.8, 0.2, 0], [0, 0.9, 0.1], [0, 0, 1]], start=[1, 0, 0])
        >>> posterior = kbp.infer(given, graph, evidence=kbp.clamp(given, graph, [3], [1]))
        >>> np.asarray(posterior.by_type[0].weights, float)[[0, 7]].round(3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.656, 0.344]]
    """
    fix = "Call it outside of jax.jit, and pass the model in."
    _checks.require(not _checks.is_traced((model, transitions, start)), "model", "must be known", "tracers", fix)
    v, k = _types(model, node_type, edge_type)
    order = np.argsort(np.asarray(model.points[v]))
    states, count = np.asarray(model.points[v])[order], len(order)
    matrix = _probabilities("transitions", transitions, (count, count))
    points, dtype = _checks.to_jax(states), model.operators.project.dtype
    density = np.asarray(plain_features(model.bases[v], points) @ model.marginals[v], float)
    prior = np.maximum(density, 0) / np.maximum(density, 0).sum()
    own = model.starts.get(v)
    if start is not None:
        given = _probabilities("start", start, (count,))
    elif own is None:
        given = prior
    else:
        given = np.asarray(
            own.factors(points) if isinstance(own, GivenStart) else prior * np.exp(own.log_ratio(points))
        )
    old = model.bases[v]
    assert isinstance(old, Basis)  # of a model of states
    basis = Levels.at(old.kernel, points)
    observed = {v: _at_states(model, v, points)} if v in model.observations else {}
    to_jax = lambda x: _checks.to_jax(np.asarray(x, float), dtype)
    removed = {one[2] for one in model.own_edges if one[3] == k}
    removed |= {kind for one in model.cells if one.shared == k for kind in one.types}
    zero = to_jax(0)
    return dataclasses.replace(
        model,
        bases={**model.bases, v: basis},
        points={**model.points, v: points},
        operators=_operators(model, v, k, states, order, matrix, prior),
        observations={**model.observations, **observed},
        marginals={**model.marginals, v: to_jax(np.ones(count))},
        moments={**model.moments, v: to_jax(np.eye(count) / count)},
        residuals={**model.residuals, v: (zero, zero)},
        ridges={**model.ridges, v: zero},
        edge_types=tuple(one for one in model.edge_types if one[0] not in removed),
        candidates=None if model.candidates is None else {**model.candidates, v: points},
        temperature=1.0,
        own_edges=tuple(one for one in model.own_edges if one[3] != k),
        cells=tuple(one for one in model.cells if one.shared != k),
        starts={**model.starts, v: GivenStart(points, to_jax(given / given.sum()))},
        hyperparameters=None,
        selection=None,
    )


def _at_states(model: KernelMRF, node_type: int, states: Array) -> ObservationModel:
    """Return the observation model of a node type with messages as values at its states."""
    one, at_states = model.observations[node_type], features(model.bases[node_type], states)
    at = lambda operator: matmul(at_states.astype(operator.dtype), operator)
    return ObservationModel(one.basis, at(one.expectation), at(one.ratio), one.residual)


def _types(model: KernelMRF, node_type: int | None, edge_type: int | None) -> tuple[int, int]:
    """Return the node type of the states and the edge type of the transitions."""
    own = {kind for *_, kind, _ in model.own_edges} | {kind for one in model.cells for kind in one.types}
    inside = [(k, a) for k, a, b in model.edge_types if a == b and k not in own]
    found = [pair for pair in inside if node_type in (None, pair[1]) and edge_type in (None, pair[0])]
    rule, fix = "must leave one edge type among nodes of one type", "Pass node_type= and edge_type=."
    _checks.require(len(found) == 1, "node_type, edge_type", rule, f"{(node_type, edge_type)} of {inside}", fix)
    ((k, v),) = found
    x, rule = model.points[v], "must be a model of states: labels, integers or booleans of which all are known"
    known = x.ndim == 1 and not jnp.issubdtype(x.dtype, jnp.floating) and isinstance(model.bases[v], Basis)
    all_known = model.candidates is None or len(model.candidates[v]) == len(x)
    got, fix = f"{x.dtype} with {len(x)} points for node type {v}", "Fit with labels or integers as samples."
    _checks.require(known and all_known and not model.has_potentials, "model", rule, got, fix)
    return v, k


def _probabilities(argument: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return probabilities, which sum to 1 over the last axis; raise ValueError for others."""
    array = np.asarray(_checks.as_numpy(argument, given), float)
    rule, fix = f"must have shape {shape}: one entry for each state of the training samples", "Add states or samples."
    _checks.require(array.shape == shape, argument, rule, array.shape, fix)
    sums = array.sum(axis=-1)
    ok = bool((array >= 0).all() and (np.abs(sums - 1) <= CLOSE).all())  # false for NaN
    got = f"values from {array.min():.3g} and sums from {sums.min():.4g} to {sums.max():.4g}"
    _checks.require(ok, argument, "must be probabilities >= 0 with sum 1 in each row", got, "Normalize its rows.")
    return array / sums[..., None]


def _operators(
    model: KernelMRF, v: int, k: int, states: np.ndarray, order: np.ndarray, matrix: np.ndarray, prior: np.ndarray
) -> Operators:
    """Return the operators with values at the states of type v as messages, and given transitions."""
    old, count = model.operators, len(states)
    at_states = np.asarray(features(model.bases[v], _checks.to_jax(states)), float)
    rank, size = max(old.project.shape[1], count), old.project.shape[2]
    pad = lambda x: np.pad(np.asarray(x, float), ((0, 0), *((0, n - m) for n, m in zip((rank, size), x.shape[1:]))))
    project = pad(old.project)
    evaluate = np.pad(np.asarray(old.evaluate, float), ((0, 0), (0, 0), (0, rank - old.evaluate.shape[2])))
    evaluate[v] = 0
    evaluate[v, :count, :count] = np.eye(count)
    tables = None if old.nonnegative is None else np.array(old.nonnegative, float)
    scale = 1 / np.where(prior > 0, count * prior, np.inf)
    for kind, *ends in model.edge_types:
        for direction, (sender, receiver) in enumerate((ends, ends[::-1])):
            for array, rows in ((project, at_states), (tables, np.eye(count)[order])):
                if array is None:
                    continue
                of_edge = array[2 * kind + direction]
                if receiver == v:
                    values = rows @ of_edge[: rows.shape[1]]
                    of_edge[:] = 0
                    of_edge[:count] = values
                if sender == v:
                    of_edge[:, :count] = of_edge[:, order] * scale[None]
                if kind == k:
                    of_edge[:count, :count] = matrix if direction else matrix.T
    floor = np.broadcast_to(np.asarray(old.floors, float), len(evaluate)).copy()
    floor[v] = 0
    weights = None if old.prior is None else np.array(old.prior, float)
    if weights is not None:
        weights[v, :count] = 1 / count
    dtype = old.project.dtype
    to_jax = lambda x: None if x is None else _checks.to_jax(x, dtype)
    new = {"evaluate": evaluate, "project": project, "nonnegative": tables, "prior": weights, "floor": floor}
    return dataclasses.replace(old, **{name: to_jax(x) for name, x in new.items()}, constant=None)
