"""Beliefs and joint draws of many rows of a table at once, under a model of potentials on levels.

The same updates as `infer`, synchronous and damped, for a block of rows: an iteration is one batched product for all
rows and edges, which the general engine under `jax.vmap` is not (`benchmarks/training.py`). A row whose messages have
converged is left as it is, so a row alone has the same beliefs as among others.
"""

from collections.abc import Iterator
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.estimator.joint import Joint
from kbpjax.features import FeatureMap, features
from kbpjax.graphs.graph import Graph
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import spacing
from kbpjax.posterior.infer import recipe

DAMPING = (0.3, 0.6, 0.8)
"""Weights of the old message, each for a third of the iterations: rows whose messages swing need larger ones."""

TINY = 1e-30
"""What is added to messages before their logarithm."""

ABSENT = -80.0
"""Logarithm of the weight of levels that pad those of a node type, and of those that a value excludes."""

TOLERANCE = 1e-3
"""Largest difference of a message, whose largest entry is 1, to its update in a row that has converged."""

NUM_ITERS = 200
"""Largest number of iterations."""

FIRST_ITERS = 12
"""Number of iterations of all rows. Rows that have not converged by then are iterated again from the start."""

PART = 2**20
"""Number of entries of the messages of the rows that are iterated at a time: they stay in the cache.

A row takes 0.2 ms in parts of 64 rows and 1.4 ms in one of 4096 (66 edges, 48 levels, 30 iterations, two cores).
"""

BLOCK = 2**26
"""Number of entries of the messages of a block of rows."""


class Rows(eqx.Module):
    """A model on levels and its graph, as arrays for blocks of rows.

    Attributes:
        tables: matrices of updates, from levels of the sender to levels of the receiver [edge, level, level], first
            forth, then back.
        prior: logarithms of the weights of levels that evidence is relative to [node, level].
        local: logarithms of the marginal in beliefs [node, level].
        lengths: logarithms of the lengths of the intervals of the levels [node, level].
        weights: exponents of the messages in beliefs [edge].
        heat: temperature.
        senders, receivers, back: ends and reverses of the directed edges [edge].
        inbox: incoming edges of each node [node, slot]; padding holds the number of edges.
        sizes: numbers of levels of each node [node].
    """

    tables: Float[Array, "edge level level"]
    prior: Float[Array, "node level"]
    local: Float[Array, "node level"]
    lengths: Float[Array, "node level"]
    weights: Float[Array, " edge"]
    heat: Float[Array, ""]
    senders: Int[Array, " edge"]
    receivers: Int[Array, " edge"]
    back: Int[Array, " edge"]
    inbox: Int[Array, "node slot"]
    sizes: Int[Array, " node"]

    @classmethod
    def of(cls, model: KernelMRF, graph: Graph) -> "Rows":
        """Return the arrays of a model of `train` or `gaussian_model`, whose observations are values themselves."""
        graph = model.graph_of(graph)
        assert model.operators.prior is not None
        kinds, size = np.asarray(graph.node_type), model.operators.evaluate.shape[1]
        prior, local, lengths = (np.full((1 + kinds.max(), size), ABSENT) for _ in range(3))
        for v, x in model.points.items():
            own = slice(0, len(x))
            prior[v, own] = np.log(np.asarray(model.operators.prior[v, own]) + TINY)
            local[v, own] = np.log(np.asarray(model.marginals[v]) + TINY)
            lengths[v, own] = np.log(np.asarray(spacing(x)) + TINY)
        by, half = recipe(graph), graph.num_edges // 2
        exponents = np.ones(half) if by is None or by.exponents is None else np.asarray(by.exponents)[:half]
        weights = np.minimum(np.tile(exponents, 2) * float(model.reweighting), 1)
        rows = 2 * np.asarray(graph.edge_type)[:half]
        tables = model.operators.project[np.concatenate([rows, rows + 1])]
        receivers = np.asarray(graph.receivers)
        degree = np.bincount(receivers, minlength=graph.num_nodes)
        inbox = np.full((graph.num_nodes, max(degree.max(), 1)), graph.num_edges)
        for node in range(graph.num_nodes):
            inbox[node, : degree[node]] = np.flatnonzero(receivers == node)
        count = np.array([len(model.points[v]) for v in kinds.tolist()])
        dtype = tables.dtype
        to_jax = lambda x: _checks.to_jax(np.asarray(x), dtype)
        index = lambda x: _checks.to_jax(np.asarray(x), np.int32)
        at_nodes = [to_jax(one[kinds]) for one in (prior, local, lengths)]
        indices = [index(one) for one in (graph.senders, receivers, graph.reverse, inbox, count)]
        heat = jnp.asarray(model.temperature, dtype)
        return cls(tables, at_nodes[0], at_nodes[1], at_nodes[2], to_jax(weights), heat, *indices)

    def evidence(
        self, model: KernelMRF, graph: Graph, codes: Float[Array, "row node"]
    ) -> Float[Array, "node row level"]:
        """Return the logarithms of local factors: of a value, the hats at its levels over the prior."""
        kinds = np.asarray(graph.node_type)
        nodes = {v: np.flatnonzero(kinds == v) for v in model.points}
        return _evidence({v: (model.bases[v], x) for v, x in model.points.items()}, self.prior, nodes, codes)


@jax.jit
def _evidence(
    levels: dict[int, tuple[FeatureMap, Array]], prior: Array, nodes: dict[int, Array], codes: Array
) -> Float[Array, "node row level"]:
    found = jnp.zeros((codes.shape[1], codes.shape[0], prior.shape[1]), prior.dtype)
    for v, (basis, x) in levels.items():
        own = codes[:, nodes[v]].T
        seen = ~jnp.isnan(own)
        flat = jnp.where(seen, own, x[0].astype(own.dtype)).reshape(-1)
        hats = features(basis, flat.astype(x.dtype)).reshape(*own.shape, -1).astype(found.dtype)
        logs = jnp.log(hats + TINY) - prior[nodes[v]][:, None, : len(x)]
        found = found.at[nodes[v], :, : len(x)].set(jnp.where(seen[..., None], jnp.maximum(logs, ABSENT), 0))
    return found


def size_of(count: int) -> int:
    """Return the number of rows that a block is padded to: few sizes are compiled."""
    return 1 << max(count - 1, 0).bit_length() if count < 4096 else count


def padded_evidence(rows: Rows, model: KernelMRF, graph: Graph, codes: NDArray) -> Float[Array, "node row level"]:
    """Return the evidence of a block of rows, padded to one of few sizes."""
    padded = np.full((size_of(len(codes)), codes.shape[1]), np.nan)
    padded[: len(codes)] = codes
    return rows.evidence(model, graph, _checks.to_jax(padded, rows.tables.dtype))


def settled_beliefs(rows: Rows, evidence: Array, count: int) -> tuple[NDArray, NDArray]:
    """Return beliefs [node, row, level] and residuals [row] of the first rows of a padded block."""
    found, residual = row_beliefs(rows, evidence, FIRST_ITERS)
    weights, residual = np.array(found[:, :count]), np.array(residual[:count])
    late = np.flatnonzero(residual > TOLERANCE)
    if len(late):
        again = np.resize(late, min(size_of(len(late)), evidence.shape[1]))  # repeats fill one of few sizes
        found, left = row_beliefs(rows, jnp.asarray(np.asarray(evidence)[:, again]), NUM_ITERS)
        weights[:, late], residual[late] = found[:, : len(late)], left[: len(late)]
    return weights, residual


def blocks(count: int, rows: Rows, more: int = 1) -> Iterator[slice]:
    """Yield slices of rows of bounded memory, all of one size but the last."""
    each = max(1, BLOCK // (int(rows.tables.shape[0] or 1) * rows.tables.shape[1] * more))
    size = min(each, max(count, 1), 4096)
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


@jax.jit
def row_beliefs(
    rows: Rows, evidence: Float[Array, "node row level"], num_iters: int | Int[Array, ""] = NUM_ITERS
) -> tuple[Float[Array, "node row level"], Float[Array, " row"]]:
    """Return beliefs, and the residual of each row."""
    nodes, count, levels = evidence.shape
    part = 1 << max(0, (PART // max(len(rows.senders) * levels, 1)).bit_length() - 1)
    if count <= part:
        return _part_beliefs(rows, evidence, num_iters)
    padded = jnp.pad(evidence, ((0, 0), (0, -count % part), (0, 0))).reshape(nodes, -1, part, levels)
    beliefs, residual = jax.lax.map(lambda own: _part_beliefs(rows, own, num_iters), jnp.moveaxis(padded, 1, 0))
    return jnp.moveaxis(beliefs, 0, 1).reshape(nodes, -1, levels)[:, :count], residual.reshape(-1)[:count]


def _part_beliefs(
    rows: Rows, evidence: Float[Array, "node row level"], num_iters: int | Int[Array, ""]
) -> tuple[Float[Array, "node row level"], Float[Array, " row"]]:
    edges = len(rows.senders)
    if not edges:
        return _normalized_beliefs(rows, evidence), jnp.zeros(evidence.shape[1], evidence.dtype)

    def total(messages: Array) -> Array:
        return evidence + jax.ops.segment_sum(rows.weights[:, None, None] * messages, rows.receivers, len(rows.prior))

    def update(messages: Array) -> Array:
        cavity = total(messages)[rows.senders] - messages[rows.back]
        cavity = jnp.exp(cavity - jnp.max(cavity, axis=-1, keepdims=True))
        sent = jnp.log(jnp.einsum("tpq,tcq->tcp", rows.tables, cavity) + TINY)
        return sent - jnp.max(sent, axis=-1, keepdims=True)

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        messages, residual, step = state
        new = update(messages)
        away = jnp.max(jnp.abs(jnp.exp(new) - jnp.exp(messages)), axis=(0, 2))
        moving = (residual > TOLERANCE)[None, :, None]
        damping = jnp.asarray(DAMPING, new.dtype)[jnp.minimum(3 * step // NUM_ITERS, 2)]
        messages = jnp.where(moving, damping * messages + (1 - damping) * new, messages)
        return messages, jnp.where(residual > TOLERANCE, away, residual), step + 1

    def more(state: tuple[Array, Array, Array]) -> Array:
        return (state[2] < num_iters) & jnp.any(state[1] > TOLERANCE)

    first = update(jnp.zeros((edges, *evidence.shape[1:]), evidence.dtype))
    start = first, jnp.full(evidence.shape[1], jnp.inf, evidence.dtype), jnp.zeros((), jnp.int32)
    messages, residual, _ = jax.lax.while_loop(more, advance, start)
    return _normalized_beliefs(rows, total(messages)), residual


def _normalized_beliefs(rows: Rows, logs: Float[Array, "node row level"]) -> Float[Array, "node row level"]:
    logs = (logs + rows.local[:, None]) / rows.heat + rows.lengths[:, None]
    return jax.nn.softmax(logs, axis=-1)


@partial(jax.jit, static_argnames="num_sweeps")
def row_draws(
    rows: Rows,
    joint: Joint | None,
    evidence: Float[Array, "node row level"],
    beliefs: Float[Array, "node row level"],
    z: Float[Array, "row coordinate"],
    hidden: Array,
    key: Array,
    num_sweeps: int,
) -> Int[Array, "node row"]:
    """Return levels drawn jointly: from the Gaussian or the beliefs, then each node in turn given all others.

    Given all others, no message depends on what is drawn: the conditional of a node is its belief, which training has
    made right. As beliefs, conditionals are combined with those of the Gaussian.

    Args:
        rows: the model.
        joint: the Gaussian; None: none.
        evidence: logarithms of local factors.
        beliefs: the beliefs.
        z: coordinates of the Gaussian, of a draw of it where they are missing (`conditional_draws`).
        hidden: what is drawn [node, row]; the rest keeps its evidence.
        key: random key.
        num_sweeps: number of sweeps.
    """
    edges, nodes = len(rows.senders), len(rows.prior)
    first, rest = jax.random.split(key)
    state = jax.random.categorical(first, jnp.log(beliefs + TINY), axis=-1)
    if joint is not None:
        state = joint.with_numbers(state, z)
        z = jax.lax.fori_loop(0, nodes, lambda node, z: joint.with_state(z, node, state[node], hidden[node]), z)
    if not edges:
        return state
    at = jnp.exp(evidence - jnp.max(evidence, axis=-1, keepdims=True))
    sent = jnp.log(jnp.einsum("tpq,tcq->tcp", rows.tables, at[rows.senders]) + TINY)  # of what is seen
    sent = sent - jnp.max(sent, axis=-1, keepdims=True)
    columns = jnp.swapaxes(rows.tables, 1, 2)  # [edge, sender level, receiver level]
    columns = jnp.log(columns / jnp.max(columns, axis=-1, keepdims=True) + TINY)
    padded = jnp.concatenate([rows.weights, jnp.zeros(1, rows.weights.dtype)])

    def draw(carry: tuple[Array, Array, Array], node: Array) -> tuple[tuple[Array, Array, Array], None]:
        state, z, key = carry
        key, own = jax.random.split(key)
        incoming = rows.inbox[node]
        edge = jnp.minimum(incoming, edges - 1)
        sender = rows.senders[edge]
        drawn = jax.vmap(lambda e, s: columns[e][state[s]])(edge, sender)  # [slot, row, level]
        message = jnp.where(hidden[sender][..., None], drawn, sent[edge])
        logs = jnp.einsum("s,scl->cl", padded[incoming], message) + rows.local[node][None]
        logs = jax.nn.log_softmax(logs / rows.heat + rows.lengths[node][None], axis=-1)
        if joint is not None:
            given = joint.given_others(z, node, rows.local[node] + rows.lengths[node])
            logs = joint.pooled(given, logs, node)
        drawn = jax.random.categorical(own, logs, axis=-1)
        if joint is not None:
            z = joint.with_state(z, node, drawn, hidden[node])
        return (state.at[node].set(drawn), z, key), None

    def sweep(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        return jax.lax.scan(draw, carry, jnp.arange(nodes))[0], None

    (state, _, _), _ = jax.lax.scan(sweep, (state, z, rest), None, length=num_sweeps)
    return state


def level_ends(points: NDArray, circular: bool = False) -> NDArray:
    """Return the ends of the intervals of sorted levels: halfway to the next [level + 1]."""
    if circular:
        step = 2 * np.pi / len(points)
        return points[0] + step * (np.arange(len(points) + 1) - 0.5)
    return np.concatenate([points[:1], (points[1:] + points[:-1]) / 2, points[-1:]])


def interval_ends(
    points: NDArray, weights: NDArray, shares: tuple[float, float], circular: bool = False
) -> tuple[NDArray, NDArray]:
    """Return two quantiles of distributions on sorted levels, spread evenly over the intervals of the levels.

    Args:
        points: the levels [level]; an interval ends halfway to the next.
        weights: the distributions [row, level or more].
        shares: the shares below the quantiles.
        circular: whether levels are directions in [0, 2 pi): quantiles are those around the mean direction.

    Returns:
        The quantiles [row], of directions possibly outside of [0, 2 pi).
    """
    weights = weights[:, : len(points)] / weights[:, : len(points)].sum(axis=1, keepdims=True)
    if circular:
        step = 2 * np.pi / len(points)
        mean = np.angle(weights @ np.exp(1j * points))
        first = np.round((mean - np.pi - points[0]) / step).astype(int)  # the level opposite to the mean
        order = (first[:, None] + np.arange(len(points))[None]) % len(points)
        weights = np.take_along_axis(weights, order, axis=1)
        edges = (points[0] + step * (first[:, None] - 0.5)) + step * np.arange(len(points) + 1)[None]
    else:
        edges = level_ends(points)[None]
    below = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights, axis=1)], axis=1)
    found = []
    for share in shares:
        at = np.clip((below[:, 1:] < share).sum(axis=1), 0, len(points) - 1)
        row = np.arange(len(weights))
        low, high = (np.broadcast_to(edges, (len(weights), edges.shape[1]))[row, at + i] for i in (0, 1))
        inside = np.clip((share - below[row, at]) / np.maximum(weights[row, at], 1e-12), 0, 1)
        found.append(low + inside * (high - low))
    return found[0], found[1]
