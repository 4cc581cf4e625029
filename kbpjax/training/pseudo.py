r"""Potentials of largest pseudo-likelihood (Besag 1975): of each value given those of its neighbors, without messages.

For a node s all of whose neighbors are known,

$$\log p(x_s \mid x_N) = \log \phi_s(x_s) + \sum_{t \in N(s)} \log \psi_{st}(x_s, x_t) - \log Z(x_N),$$

with the sum over the levels of s in Z. It is concave in the corrections and powers of the potentials, and consistent.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.training.examples import Examples, Place
from kbpjax.training.gaussian import PLAIN
from kbpjax.training.potentials import ClosedForm, Potentials
from kbpjax.training.propagation import Network

LEARNED = ("power", "product", "first", "second")
"""The numbers that are learned."""

STEPS = 300
"""Number of steps of Adam."""

RATE = 0.05
"""Learning rate; it falls to 0."""

BATCH = 128
"""Number of cases in a step."""


def pseudo_likelihood(
    closed: ClosedForm,
    start: Potentials,
    examples: Examples,
    networks: Sequence[Network],
    places: Sequence[Place],
    cases: NDArray,
    penalty: float,
    seed: int,
) -> Potentials:
    """Return the potentials of largest pseudo-likelihood, with exponents 1: a density, not a product of ratios.

    Args:
        closed: the closed form.
        start: its potentials, from which the descent starts.
        examples: the cases on levels.
        networks: the graph, or parts of it, one for each step.
        places: their nodes.
        cases: numbers of the cases that are learned from.
        penalty: weight of the squares of the corrections.
        seed: seed of the batches.
    """
    start = dataclasses.replace(start, reweighting=jnp.full_like(start.reweighting, PLAIN), heat=start.heat * 0)
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    def objective(free: dict[str, Array], network: Network, levels: Array, known: Array) -> Array:
        potentials = dataclasses.replace(start, **free)
        moved = sum(jnp.sum((free[name] - getattr(start, name)) ** 2) for name in LEARNED)
        score = -mean_log_pseudo_likelihood(closed, potentials, network, levels, known)
        return score + penalty * moved / len(start.power)

    @jax.jit
    def advance(free: dict[str, Array], state: Any, network: Network, levels: Array, known: Array) -> tuple[Any, Any]:
        slopes = jax.grad(objective)(free, network, levels, known)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            change, state = optimizer.update(slopes, state)
            return optax.apply_updates(free, change), state

    levels, known = np.argmin(examples.distances, axis=-1).astype(np.int32), examples.there
    free = {name: getattr(start, name) for name in LEARNED}
    state, rng = optimizer.init(free), np.random.default_rng(seed)
    for _ in range(STEPS):
        chosen, i = rng.choice(cases, min(BATCH, len(cases)), replace=False), one_of(rng, networks)
        both = np.ix_(places[i].rows, chosen)
        given = levels[both], known[both] & places[i].scored[:, None]
        free, state = advance(free, state, networks[i], *map(_checks.to_jax, given))
    return dataclasses.replace(start, **free)


def one_of(rng: np.random.Generator, networks: Sequence[Network]) -> int:
    """Return the number of the network of a step."""
    return int(rng.integers(len(networks))) if len(networks) > 1 else 0


def mean_log_pseudo_likelihood(
    closed: ClosedForm, potentials: Potentials, network: Network, levels: Array, known: Array
) -> Array:
    """Return the mean of the logarithms of the probabilities of the levels given those of the neighbors.

    Args:
        closed: the closed form.
        potentials: the numbers.
        network: the graph.
        levels: numbers of the levels of the values [node, case].
        known: whether values are known [node, case]; nodes that are not, or whose neighbors are not, do not count.
    """
    logs, half = closed.logs(potentials)[network.kinds], len(network.appearance)
    at = jax.vmap(lambda table, rows: table[rows])  # of each edge [edge, case, level]
    to_second = at(logs, levels[network.senders[:half]])
    to_first = at(jnp.swapaxes(logs, 1, 2), levels[network.senders[half:]])
    total = jax.ops.segment_sum(jnp.concatenate([to_second, to_first]), network.receivers, network.num_nodes)
    total = total + closed.priors(potentials)[1][network.node_type][:, None]
    missing = jax.ops.segment_sum((~known[network.senders]).astype(jnp.int32), network.receivers, network.num_nodes)
    counts = known & (missing == 0)
    found = jnp.take_along_axis(jax.nn.log_softmax(total, axis=-1), levels[..., None], axis=-1)[..., 0]
    return jnp.sum(jnp.where(counts, found, 0)) / jnp.maximum(jnp.sum(counts, dtype=found.dtype), 1)
