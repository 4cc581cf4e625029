"""Message passing on levels for many cases of one graph at once, to differentiate through.

The updates are those of `infer`, in logarithms, synchronous and damped. A message is [edge, case, level]: with an own
matrix for each edge, an iteration is one batched product over all cases, which the general engine under `jax.vmap` is
not (`benchmarks/training.py`).
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.infer import recipe
from kbpjax.training.potentials import ClosedForm, Potentials

DAMPING = 0.3
"""Weight of the old message."""

TINY = 1e-30
"""What is added to messages before their logarithm."""


class Network(eqx.Module):
    """A graph for messages on levels, whose edges are sorted by their types.

    Networks of several graphs have the same shapes and share compiled programs: edges between a node that no graph has,
    the last one, fill those with fewer edges of a type. Their appearance is 0.

    Attributes:
        senders, receivers: ends of the edges, first forth, then back [2 edge].
        node_type: [node].
        appearance: edge appearance probabilities [edge].
        types: positions of the edges' types in the tables, ascending.
        counts: number of edges of each type.
        num_nodes: number of nodes.
    """

    senders: Int[Array, " two_edges"]
    receivers: Int[Array, " two_edges"]
    node_type: Int[Array, " node"]
    appearance: Float[Array, " edge"]
    types: tuple[int, ...] = eqx.field(static=True)
    counts: tuple[int, ...] = eqx.field(static=True)
    num_nodes: int = eqx.field(static=True)

    @classmethod
    def of(cls, graphs: Sequence[Graph], closed: ClosedForm) -> list["Network"]:
        """Return the networks of graphs whose edges have types of the closed form, of the same shapes."""
        place = {k: i for i, k in enumerate(closed.types)}
        halves = [graph.num_edges // 2 for graph in graphs]
        of_types = [np.asarray(graph.edge_type)[:half] for graph, half in zip(graphs, halves, strict=True)]
        kinds = [np.array([place[k] for k in of_graph.tolist()], int) for of_graph in of_types]
        most = np.max([np.bincount(of_graph, minlength=len(place)) for of_graph in kinds], axis=0)
        types = np.flatnonzero(most).tolist()
        counts = most[types].tolist()
        num_nodes = max(graph.num_nodes for graph in graphs) + (len(graphs) > 1)
        found = []
        for graph, half, of_graph in zip(graphs, halves, kinds, strict=True):
            by = recipe(graph)
            appearance = np.ones(half) if by is None or by.exponents is None else np.asarray(by.exponents, float)
            first, second = (np.append(np.asarray(x)[:half], num_nodes - 1) for x in (graph.senders, graph.receivers))
            rows = [np.flatnonzero(of_graph == k) for k in types]
            filled = [np.pad(own, (0, count - len(own)), constant_values=half) for own, count in zip(rows, counts)]
            chosen = np.concatenate([np.zeros(0, int), *filled])
            both = first[chosen], second[chosen]
            node_type = np.pad(np.asarray(graph.node_type), (0, num_nodes - graph.num_nodes))
            network = cls(
                senders=_checks.to_jax(np.concatenate(both), np.int32),
                receivers=_checks.to_jax(np.concatenate(both[::-1]), np.int32),
                node_type=_checks.to_jax(node_type, np.int32),
                appearance=_checks.to_jax(np.append(appearance, 0)[chosen], closed.log_ratios.dtype),
                types=tuple(types),
                counts=tuple(counts),
                num_nodes=num_nodes,
            )
            found.append(network)
        return found

    @property
    def kinds(self) -> NDArray[np.integer]:
        """Positions of the edges' types in the tables [edge]."""
        return np.repeat(self.types, self.counts)

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
        matrices, half = self._matrices(closed, potentials), len(self.appearance)
        evidence = potentials.evidence * evidence
        weights = jnp.tile(jnp.minimum(self.appearance * potentials.reweighting, 1), 2)[:, None, None]

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
        moved = jnp.max(jnp.abs(jnp.exp(update(messages)) - jnp.exp(messages)), axis=2)
        residual = jnp.max(moved, axis=0, initial=0, where=jnp.tile(self.appearance > 0, 2)[:, None])
        logs = (total(messages) + closed.priors(potentials)[1][self.node_type][:, None]) * jnp.exp(-potentials.heat)
        # Lengths of intervals are no densities, which a temperature changes.
        lengths = closed.log_lengths[self.node_type][:, None]
        return jax.nn.softmax(logs + (1 - jnp.exp(-potentials.heat)) * lengths, axis=-1), residual

    def _matrices(self, closed: ClosedForm, potentials: Potentials) -> Float[Array, "way_type level level"]:
        """Return the matrices of the updates of each type forth, then back, from rows to columns."""
        tables = closed.tables(potentials)[np.array(self.types, int)]
        return jnp.swapaxes(jnp.concatenate([tables[:, 0], tables[:, 1]]), 1, 2)

    def _sent(
        self, matrices: Float[Array, "way_type level level"], cavity: Float[Array, "edge case level"]
    ) -> Float[Array, "edge case level"]:
        """Return the sums over the levels of the senders."""
        if len(matrices) == len(cavity):
            return jnp.einsum("eqp,ecq->ecp", matrices, cavity)
        parts = jnp.split(cavity, np.cumsum(np.tile(self.counts, 2))[:-1])
        return jnp.concatenate([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])
