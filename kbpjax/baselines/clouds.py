"""Particles of all nodes, the messages at them, and the beliefs that they make: what both particle methods share."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum
from kbpjax.baselines import pairwise
from kbpjax.baselines.pairwise import PairwiseMRF, sum_incoming
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.beliefs import Belief, log_likelihoods
from kbpjax.posterior.evidence import Evidence

NEVER = -1e30
"""What stands for the logarithm of 0: where all is 0, weights are equal."""

LEAST = -500.0
"""Logarithm of the least value of a message whose largest is 1, so that it can be taken out of a sum again."""

DRAWS = 256
"""Samples of each node potential that tell its mean and width."""


class ParticleSolution(eqx.Module):
    """The outcome of `run` or `run_expectation`.

    Attributes:
        particles: the particles of each node [node, particle, dim].
        log_weights: logarithms of their weights in the belief, which sum to 1 [node, particle].
        log_messages: the messages at the particles of their receivers, scaled to largest value 1 [edge, particle].
        log_senders: logarithms of the weights w_ts of each sender's particles, of which messages at other points are
            made; they sum to 1 [edge, particle].
        effective_sizes: 1 / sum_j weight_j^2 of the belief, mean over nodes, of each iteration [num_iters].
        residuals: of each iteration [num_iters]: of `run` the largest change of a message at the particles; of
            `run_expectation` the largest move of a Gaussian's mean, in its standard deviations.
        acceptance: share of the Metropolis-Hastings steps that were accepted; NaN where there were none.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> solution = particle.run(model, graph, key=jax.random.key(1), num_particles=10)
        >>> np.allclose(np.exp(solution.log_weights).sum(axis=1), 1), 0 < float(solution.acceptance) < 1
        (True, True)
    """

    particles: Float[Array, "node particle dim"]
    log_weights: Float[Array, "node particle"]
    log_messages: Float[Array, "edge particle"]
    log_senders: Float[Array, "edge particle"]
    effective_sizes: Float[Array, " num_iters"]
    residuals: Float[Array, " num_iters"]
    acceptance: Float[Array, ""]


class Cloud(NamedTuple):
    """Particles, and what is known at them.

    Attributes:
        particles: [node, particle, dim].
        own: log psi_s local_s [node, particle].
        messages: logarithms of what comes in [edge, particle].
    """

    particles: Array
    own: Array
    messages: Array

    def log_belief(self, graph: Graph) -> Array:
        """Return the logarithm of the belief up to a constant of each node [node, particle]."""
        return self.own + sum_incoming(graph, self.messages)


def beliefs(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, solution: ParticleSolution, points: Numbers
) -> Belief:
    """Evaluate the beliefs psi_s local_s prod_u m_us of all nodes on candidate points.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence that `run` had, or None.
        solution: what `run` or `run_expectation` returned.
        points: candidates [point, *dim], for all nodes.

    Raises:
        ValueError: points of another shape than the variables, none at all, NaN or infinity; a solution of another
            graph; a belief that is 0 at all points.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> solution = particle.run(model, graph, key=jax.random.key(1), num_particles=10)
        >>> particle.beliefs(model, graph, None, solution, np.linspace(-3, 3, 7)).weights.shape
        (3, 7)
    """
    pairwise.check_problem(model, graph, evidence)
    got, wanted = (len(solution.particles), len(solution.log_senders)), (graph.num_nodes, graph.num_edges)
    fix = "Pass what run returned for this graph."
    _checks.require(got == wanted, "solution", "must be of {} nodes and {} messages".format(*wanted), got, fix)
    candidates, x = pairwise.candidates(model, points)
    logs = _log_beliefs(model, graph, solution.particles, solution.log_senders, x)
    for v, count, *_ in graph.node_types:
        known = log_likelihoods(evidence, v, x.reshape(-1, *model.shape), count, logs.dtype)
        logs = logs if known is None else logs.at[graph.nodes_of_type(v)].add(known)
    return pairwise.as_belief(candidates, logs)


def mean(solution: ParticleSolution) -> Float[Array, "node dim"]:
    """Return the mean of each belief, straight from the weighted particles [node, dim].

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> solution = particle.run(model, graph, key=jax.random.key(1), num_particles=10)
        >>> weighted = np.exp(solution.log_weights)[:, :, None] * solution.particles
        >>> np.allclose(particle.mean(solution), weighted.sum(axis=1), atol=1e-4)
        True
    """
    return einsum("np,npd->nd", jnp.exp(solution.log_weights), solution.particles)


def variance(solution: ParticleSolution) -> Float[Array, "node dim"]:
    """Return the variance of each coordinate, straight from the weighted particles [node, dim].

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> solution = particle.run(model, graph, key=jax.random.key(1), num_particles=10)
        >>> square = (np.exp(solution.log_weights)[:, :, None] * solution.particles**2).sum(axis=1)
        >>> np.allclose(particle.variance(solution), square - particle.mean(solution) ** 2, atol=1e-3)
        True
    """
    return einsum("np,npd->nd", jnp.exp(solution.log_weights), (solution.particles - mean(solution)[:, None]) ** 2)


@jax.jit
def _log_beliefs(model: PairwiseMRF, graph: Graph, particles: Array, senders: Array, x: Array) -> Array:
    """Return the logarithms of psi_s prod_u m_us at common points [node, point]."""
    prior = jax.vmap(lambda one: one.log_density(x))(model.nodes)
    everywhere = jnp.broadcast_to(x, (graph.num_nodes, *x.shape))
    messages = pairwise.log_messages(model, graph, everywhere, particles, senders)
    return pairwise.of_type(prior, graph.node_type) + sum_incoming(graph, messages)


def outgoing(graph: Graph, base: Array, messages: Array, least: Array) -> Float[Array, "edge particle"]:
    """Return logarithms of the weights of the senders' particles, from the base log psi_t local_t / W_t.

    Weights less than the least are 0.
    """
    total = base + sum_incoming(graph, messages)
    logs = jax.nn.log_softmax(total[graph.senders] - messages[graph.reverse], axis=1)
    return jax.nn.log_softmax(jnp.where(logs < jnp.log(least), -jnp.inf, logs), axis=1)


def scaled(logs: Float[Array, "edge particle"]) -> tuple[Float[Array, "edge particle"], Float[Array, " edge"]]:
    """Scale messages to largest value 1; return what they were divided by, too."""
    finite = jnp.maximum(logs, NEVER)
    largest = jnp.max(finite, axis=1, keepdims=True)
    return jnp.maximum(finite - largest, LEAST), largest[:, 0]


def log_own(model: PairwiseMRF, graph: Graph, evidence: Evidence | None, x: Array) -> Float[Array, "node particle"]:
    """Return log psi_s local_s."""
    return jnp.maximum(pairwise.log_nodes(model, graph, evidence, x), NEVER)


def moments_of_nodes(model: PairwiseMRF, graph: Graph, key: Array) -> tuple[Array, Array]:
    """Return means and standard deviations of samples of the node potentials [node, dim]."""
    keys = jax.random.split(key, len(jax.tree.leaves(model.nodes)[0]))
    x = jax.vmap(lambda one, key: one.sample(key, DRAWS))(model.nodes, keys)
    deviation = jnp.std(x, axis=1)
    moments = jnp.mean(x, axis=1), jnp.where(deviation > 0, deviation, 1)
    return pairwise.of_type(moments, graph.node_type)


def effective_size(logs: Float[Array, "node particle"]) -> Float[Array, " node"]:
    """Return one over the sum of squares of normalised weights."""
    return jnp.exp(-jax.nn.logsumexp(2 * logs, axis=1))


def check_options(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, key: Any, num_particles: int, num_iters: int
) -> None:
    """Raise ValueError for arguments that both methods share."""
    pairwise.check_problem(model, graph, evidence)
    _checks.require_key(key)
    _checks.require_count("num_particles", num_particles)
    _checks.require_count("num_iters", num_iters)
