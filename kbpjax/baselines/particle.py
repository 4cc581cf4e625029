r"""Particle belief propagation: messages are weights of particles, drawn anew from the beliefs now and then.

With particles x_t^j of node t drawn from a density W_t, the message to s is (Ihler & McAllester 2009, eq. 8)

    m_ts(x) = sum_j w_ts^j psi_st(x, x_t^j),    w_ts^j ~ psi_t local_t prod_{u != s} m_ut(x_t^j) / W_t(x_t^j)

`run` moves the particles by Metropolis-Hastings steps that target the belief, and from then on takes that belief for W.
`run_expectation` draws them from Gaussians, which it fits to the beliefs by expectation propagation (Lienart, Teh &
Doucet 2015). The error of both falls like one over the square root of the number of particles.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._misc import einsum
from kbpjax.baselines import pairwise
from kbpjax.baselines.clouds import (
    LEAST,
    NEVER,
    Cloud,
    check_options,
    effective_size,
    log_own,
    moments_of_nodes,
    outgoing,
    scaled,
)
from kbpjax.baselines.clouds import ParticleSolution as ParticleSolution
from kbpjax.baselines.clouds import beliefs as beliefs
from kbpjax.baselines.clouds import mean as mean
from kbpjax.baselines.clouds import variance as variance
from kbpjax.baselines.expectation import run_expectation as run_expectation
from kbpjax.baselines.pairwise import PairwiseMRF
from kbpjax.graphs.graph import Graph
from kbpjax.inference.acceleration import check_damping
from kbpjax.posterior.evidence import Evidence


class _State(NamedTuple):
    """What one iteration of `run` leaves to the next.

    Attributes:
        cloud: the particles.
        proposal: log W at the particles [node, particle].
        scales: logarithm of what each message was divided by [edge].
        senders: logarithms of the weights of the senders' particles [edge, particle].
        sizes, residuals: of each iteration [num_iters].
        done: iterations done.
    """

    cloud: Cloud
    proposal: Array
    scales: Array
    senders: Array
    sizes: Array
    residuals: Array
    done: Array


def run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None = None,
    *,
    key: Key[Array, ""],
    num_particles: int = 30,
    num_iters: int = 30,
    resample_every: int = 15,
    num_moves: int = 10,
    damping: ScalarLike = 0.0,
    least_weight: ScalarLike = 1e-7,
) -> ParticleSolution:
    """Run particle belief propagation (Ihler & McAllester 2009), all messages at once.

    The first particles are drawn from the node potentials. Every `resample_every` iterations those of a node are drawn
    anew from among themselves by their weights, and moved by random-walk Metropolis-Hastings steps that target the
    belief, all nodes at once, with messages from where the neighbours were. A step has 2.38 / sqrt(dim) times the
    standard deviation of the belief, or at least that of the node potential divided by the number of particles.

    Args:
        model: the model.
        graph: the graph; its types must be among those of the model.
        evidence: known likelihoods, or None.
        key: random key.
        num_particles: particles of each node, >= 1.
        num_iters: iterations, >= 1.
        resample_every: iterations between two draws of particles, >= 1.
        num_moves: Metropolis-Hastings steps of each particle at a draw, >= 1.
        damping: weight of the old message, in [0, 1); it begins anew with new particles.
        least_weight: particles of a sender whose weight is less are left out of its message, in [0, 1).

    Returns:
        Particles, weights and messages.

    Raises:
        ValueError: an option out of range, no key, a type that the model does not have, learned evidence.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> particle.run(model, graph, key=jax.random.key(1), num_particles=10).particles.shape
        (3, 10, 1)
    """
    check_options(model, graph, evidence, key, num_particles, num_iters)
    _checks.require_count("resample_every", resample_every)
    _checks.require_count("num_moves", num_moves)
    check_damping(damping)
    _checks.require_number("least_weight", least_weight, least=0, below=1)
    options = num_particles, num_iters, resample_every, num_moves
    return _run(model, graph, evidence, key, damping, least_weight, *options)


@partial(jax.jit, static_argnums=(6, 7, 8, 9))
def _run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    damping: ScalarLike,
    least: ScalarLike,
    num_particles: int,
    num_iters: int,
    every: int,
    num_moves: int,
) -> ParticleSolution:
    begin, measure, moving = jax.random.split(key, 3)
    damping, least = (jnp.asarray(number, model.sizes[2]) for number in (damping, least))
    width = moments_of_nodes(model, graph, measure)[1] / num_particles
    periods = np.minimum(num_iters - np.arange(0, num_iters, every), every).astype(np.int32)

    def iterate(state: _State, length: Array) -> _State:
        tables = pairwise.log_tables(model, graph, state.cloud.particles, state.cloud.particles)
        return jax.lax.fori_loop(0, length, lambda _, state: _pass(graph, tables, damping, least, state), state)

    def period(state: _State, each: tuple[Array, Array]) -> tuple[_State, Array]:
        key, length = each
        state, accepted = _move(model, graph, evidence, key, width, least, num_moves, state)
        return iterate(state, length), accepted

    state = iterate(_start(model, graph, evidence, begin, num_particles, num_iters, least), periods[0])
    keys = jax.random.split(moving, len(periods) - 1)
    state, accepted = jax.lax.scan(period, state, (keys, jnp.asarray(periods[1:])))
    cloud, rate = state.cloud, jnp.mean(accepted) if len(periods) > 1 else jnp.array(jnp.nan, accepted.dtype)
    weights = jax.nn.log_softmax(cloud.log_belief(graph) - state.proposal, axis=1)
    solved = cloud.particles, weights, cloud.messages, state.senders
    return ParticleSolution(*solved, state.sizes, state.residuals, rate)


def _start(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    num_particles: int,
    num_iters: int,
    least: Array,
) -> _State:
    """Draw particles from the node potentials; all messages are 1."""

    def draw(one: tuple[Array, Array]) -> Array:
        return pairwise.of_type(model.nodes, one[1]).sample(one[0], num_particles)

    keys = jax.random.split(key, graph.num_nodes)
    particles = jax.lax.map(draw, (keys, graph.node_type), batch_size=pairwise.BATCH)
    proposal = jnp.maximum(pairwise.log_starts(model, graph, particles), NEVER)
    own = log_own(model, graph, evidence, particles)
    ones = jnp.zeros((graph.num_edges, num_particles), particles.dtype)
    senders = outgoing(graph, own - proposal, ones, least)
    history = jnp.zeros(num_iters, particles.dtype)
    return _State(Cloud(particles, own, ones), proposal, ones[:, 0], senders, history, history, jnp.int32(0))


def _pass(graph: Graph, tables: Array, damping: Array, least: Array, state: _State) -> _State:
    """Do one iteration: weights of the senders, messages at the particles of the receivers."""
    cloud = state.cloud
    fresh = outgoing(graph, cloud.own - state.proposal, cloud.messages, least)
    senders = jnp.logaddexp(jnp.log(damping) + state.senders, jnp.log1p(-damping) + fresh)
    messages, scales = scaled(jax.nn.logsumexp(tables + senders[:, None], axis=2))
    change = jnp.max(jnp.abs(jnp.exp(messages) - jnp.exp(cloud.messages)), initial=0)
    cloud = cloud._replace(messages=messages)
    size = effective_size(jax.nn.log_softmax(cloud.log_belief(graph) - state.proposal, axis=1))
    sizes, residuals = state.sizes.at[state.done].set(jnp.mean(size)), state.residuals.at[state.done].set(change)
    return _State(cloud, state.proposal, scales, senders, sizes, residuals, state.done + 1)


def _move(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    width: Array,
    least: Array,
    num_moves: int,
    state: _State,
) -> tuple[_State, Array]:
    """Draw particles from the beliefs, in steps at least as wide as told; return the share of steps accepted, too."""
    choose, walk = jax.random.split(key)
    old = state.cloud
    weights = jax.nn.softmax(old.log_belief(graph) - state.proposal, axis=1)
    chosen = _systematic(choose, weights)
    middle = einsum("np,npd->nd", weights, old.particles)
    spread = jnp.sqrt(einsum("np,npd->nd", weights, (old.particles - middle[:, None]) ** 2))
    step = jnp.maximum(2.38 / model.dim**0.5 * spread, width)[:, None]

    def propose(here: Cloud, key: Array) -> tuple[Cloud, Array]:
        noise, judge = jax.random.split(key)
        particles = here.particles + step * jax.random.normal(noise, here.particles.shape, here.particles.dtype)
        raw = pairwise.log_messages(model, graph, particles, old.particles, state.senders)
        messages = jnp.maximum(raw - state.scales[:, None], LEAST)
        there = Cloud(particles, log_own(model, graph, evidence, particles), messages)
        gain = there.log_belief(graph) - here.log_belief(graph)
        accepted = jnp.log(jax.random.uniform(judge, gain.shape, gain.dtype)) < gain
        masks = Cloud(accepted[:, :, None], accepted, accepted[graph.receivers])
        return Cloud(*map(jnp.where, masks, there, here)), jnp.mean(accepted.astype(gain.dtype))

    indices = Cloud(chosen[:, :, None], chosen, chosen[graph.receivers])
    first = Cloud(*(jnp.take_along_axis(a, i, axis=1) for a, i in zip(old, indices, strict=True)))
    cloud, accepted = jax.lax.scan(propose, first, jax.random.split(walk, num_moves))
    proposal = cloud.log_belief(graph)
    messages, scales = scaled(cloud.messages)
    senders = outgoing(graph, cloud.own - proposal, messages, least)
    new = state._replace(
        cloud=cloud._replace(messages=messages), proposal=proposal, scales=state.scales + scales, senders=senders
    )
    return new, jnp.mean(accepted)


def _systematic(key: Array, weights: Float[Array, "node particle"]) -> Int[Array, "node particle"]:
    """Draw as many particles as there are by their weights, with one random number for each node."""
    nodes, count = weights.shape
    places = jnp.arange(count, dtype=weights.dtype)[None] + jax.random.uniform(key, (nodes, 1), weights.dtype)
    sums = jnp.cumsum(weights, axis=1)
    search = jax.vmap(partial(jnp.searchsorted, side="right"))
    return jnp.minimum(search(sums / sums[:, -1:], places / count), count - 1)
