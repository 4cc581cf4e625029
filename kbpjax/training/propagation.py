"""Message passing on levels for many cases of one graph at once, to differentiate through.

The updates are those of `infer`, in logarithms, synchronous and damped. A message is [edge, case, level]: with an own
matrix for each edge, an iteration is one batched product over all cases, which the general engine under `jax.vmap` is
not (`benchmarks/training.py`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.infer import recipe
from kbpjax.training.potentials import ClosedForm, Potentials

DAMPING = 0.3
"""Weight of the old message."""

TINY = 1e-30
"""What is added to messages before their logarithm."""


class Network(eqx.Module):
    """A graph for messages on levels.

    Attributes:
        senders, receivers: ends of the edges, first forth, then back [2 edge].
        kinds: positions of the edges' types in the tables [edge].
        node_type: [node].
        appearance: edge appearance probabilities [edge].
        num_nodes: number of nodes.
        groups: (position of the type, its edges), if types are shared.
    """

    senders: np.ndarray
    receivers: np.ndarray
    kinds: np.ndarray
    node_type: np.ndarray
    appearance: Array
    num_nodes: int = eqx.field(static=True)
    groups: tuple[tuple[int, np.ndarray], ...]

    @classmethod
    def of(cls, graph: Graph, closed: ClosedForm) -> "Network":
        """Return the network of a graph whose edges have types of the closed form."""
        half = graph.num_edges // 2
        by = recipe(graph)
        appearance = jnp.ones(half) if by is None or by.exponents is None else by.exponents
        place = {k: i for i, k in enumerate(closed.types)}
        kinds = np.array([place[k] for k in np.asarray(graph.edge_type)[:half].tolist()], np.int32)
        each = len(np.unique(kinds)) == len(kinds)
        groups = () if each else tuple((int(k), np.flatnonzero(kinds == k)) for k in np.unique(kinds))
        senders, receivers = (np.asarray(one, np.int32) for one in (graph.senders, graph.receivers))
        dtype = closed.log_ratios.dtype
        node_type, appearance = np.asarray(graph.node_type, np.int32), _checks.to_jax(np.asarray(appearance), dtype)
        return cls(senders, receivers, kinds, node_type, appearance, graph.num_nodes, groups)

    def beliefs(
        self, closed: ClosedForm, potentials: Potentials, evidence: Float[Array, "node case level"], num_iters: int
    ) -> tuple[Float[Array, "node case level"], Float[Array, " case"]]:
        """Return beliefs, and the residual of each case: the largest difference of a message to its update.

        Args:
            closed: the closed form.
            potentials: the numbers.
            evidence: logarithms of the local factors, before the power of the evidence.
            num_iters: number of iterations.
        """
        tables, half = closed.tables(potentials), len(self.kinds)
        evidence = potentials.evidence * evidence
        weights = jnp.tile(jnp.minimum(self.appearance * potentials.reweighting, 1), 2)[:, None, None]
        back = np.concatenate([np.arange(half) + half, np.arange(half)])

        def total(messages: Array) -> Array:
            return evidence + jax.ops.segment_sum(weights * messages, self.receivers, self.num_nodes)

        def update(messages: Array) -> Array:
            cavity = total(messages)[self.senders] - messages[back]
            cavity = jnp.exp(cavity - jax.lax.stop_gradient(jnp.max(cavity, axis=-1, keepdims=True)))
            sent = [self._send(tables[:, way], cavity[way * half : (way + 1) * half]) for way in (0, 1)]
            return _normalized(jnp.log(jnp.concatenate(sent) + TINY))

        @jax.checkpoint
        def step(messages: Array, _: None) -> tuple[Array, None]:
            return DAMPING * messages + (1 - DAMPING) * update(messages), None

        equal = jnp.full((2 * half, *evidence.shape[1:]), -np.log(evidence.shape[-1]), evidence.dtype)
        first = update(equal)
        messages, _ = jax.lax.scan(step, first, None, length=num_iters)
        residual = jnp.max(jnp.abs(jnp.exp(update(messages)) - jnp.exp(messages)), axis=(0, 2), initial=0)
        logs = (total(messages) + closed.priors(potentials)[1][self.node_type][:, None]) * jnp.exp(-potentials.heat)
        # Lengths of intervals are no densities, which a temperature changes.
        lengths = closed.log_lengths[self.node_type][:, None]
        return jax.nn.softmax(logs + (1 - jnp.exp(-potentials.heat)) * lengths, axis=-1), residual

    def _send(self, tables: Float[Array, "type level level"], cavity: Array) -> Array:
        """Return the sums over the levels of the senders [edge, case, level]."""
        if not self.groups:
            return jnp.einsum("tpq,tcq->tcp", tables[self.kinds], cavity)
        sent = jnp.zeros_like(cavity)
        for kind, edges in self.groups:
            sent = sent.at[edges].set(cavity[edges] @ tables[kind].T)
        return sent


def _normalized(logs: Array) -> Array:
    return logs - jax.scipy.special.logsumexp(logs, axis=-1, keepdims=True)
