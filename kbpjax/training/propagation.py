"""Message passing on levels for many cases of one graph at once, to differentiate through.

The updates are those of `infer`, in logarithms, synchronous and damped. A message is [edge, case, level]: with an own
matrix for each edge, an iteration is one batched product over all cases, which the general engine under `jax.vmap` is
not (`benchmarks/training.py`).
"""

import dataclasses
import functools

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


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A graph for messages on levels, whose edges are sorted by their types; a static argument of compiled functions.

    Attributes:
        senders, receivers: ends of the edges, first forth, then back [2 edge].
        kinds: positions of the edges' types in the tables [edge].
        node_type: [node].
        appearance: edge appearance probabilities [edge].
        num_nodes: number of nodes.
    """

    senders: np.ndarray
    receivers: np.ndarray
    kinds: np.ndarray
    node_type: np.ndarray
    appearance: np.ndarray
    num_nodes: int

    @classmethod
    def of(cls, graph: Graph, closed: ClosedForm) -> "Network":
        """Return the network of a graph whose edges have types of the closed form."""
        half = graph.num_edges // 2
        by = recipe(graph)
        appearance = np.ones(half) if by is None or by.exponents is None else np.asarray(by.exponents)
        place = {k: i for i, k in enumerate(closed.types)}
        kinds = np.array([place[k] for k in np.asarray(graph.edge_type)[:half].tolist()], np.int32)
        order = np.argsort(kinds, kind="stable")
        both = np.concatenate([order, half + order])
        senders, receivers = (np.asarray(one, np.int32)[both] for one in (graph.senders, graph.receivers))
        node_type = np.asarray(graph.node_type, np.int32)
        return cls(senders, receivers, kinds[order], node_type, appearance[order], graph.num_nodes)

    @functools.cached_property
    def key(self) -> tuple[bytes, ...]:
        """What is the same for equal networks."""
        arrays = self.senders, self.receivers, self.kinds, self.node_type, self.appearance
        return tuple(array.tobytes() for array in arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

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
        matrices, half = self._matrices(closed, potentials), len(self.kinds)
        evidence = potentials.evidence * evidence
        appearance = _checks.to_jax(self.appearance, evidence.dtype)
        weights = jnp.tile(jnp.minimum(appearance * potentials.reweighting, 1), 2)[:, None, None]

        def total(messages: Array) -> Array:
            return evidence + jax.ops.segment_sum(weights * messages, self.receivers, self.num_nodes)

        def update(messages: Array) -> Array:
            cavity = total(messages)[self.senders] - jnp.concatenate([messages[half:], messages[:half]])
            cavity = jnp.exp(cavity - jax.lax.stop_gradient(jnp.max(cavity, axis=-1, keepdims=True)))
            sent = self._sent(matrices, cavity) + TINY
            # Not the logarithm of a share, whose derivative has the square of the sum: that may underflow.
            return jnp.log(sent) - jnp.log(jnp.sum(sent, axis=-1, keepdims=True))

        def step(messages: Array, _: None) -> tuple[Array, None]:
            return DAMPING * messages + (1 - DAMPING) * update(messages), None

        # What is kept for the gradient are the products; the rest is cheaper to compute again.
        step = jax.checkpoint(step, policy=jax.checkpoint_policies.dots_saveable)
        equal = jnp.full((2 * half, *evidence.shape[1:]), -np.log(evidence.shape[-1]), evidence.dtype)
        messages, _ = jax.lax.scan(step, update(equal), None, length=num_iters)
        residual = jnp.max(jnp.abs(jnp.exp(update(messages)) - jnp.exp(messages)), axis=(0, 2), initial=0)
        logs = (total(messages) + closed.priors(potentials)[1][self.node_type][:, None]) * jnp.exp(-potentials.heat)
        # Lengths of intervals are no densities, which a temperature changes.
        lengths = closed.log_lengths[self.node_type][:, None]
        return jax.nn.softmax(logs + (1 - jnp.exp(-potentials.heat)) * lengths, axis=-1), residual

    def _matrices(self, closed: ClosedForm, potentials: Potentials) -> Float[Array, "way_type level level"]:
        """Return the matrices of the updates of each type forth, then back, from rows to columns."""
        tables = closed.tables(potentials)[np.unique(self.kinds)]
        return jnp.swapaxes(jnp.concatenate([tables[:, 0], tables[:, 1]]), 1, 2)

    def _sent(
        self, matrices: Float[Array, "way_type level level"], cavity: Float[Array, "edge case level"]
    ) -> Float[Array, "edge case level"]:
        """Return the sums over the levels of the senders."""
        if len(matrices) == len(cavity):
            return jnp.einsum("eqp,ecq->ecp", matrices, cavity)
        counts = np.tile(np.unique(self.kinds, return_counts=True)[1], 2)
        parts = jnp.split(cavity, np.cumsum(counts)[:-1])
        return jnp.concatenate([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])
