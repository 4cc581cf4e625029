r"""Particle belief propagation: messages are sums over weighted particles, which are resampled from the beliefs.

With particles x_t^j of node t drawn from a density W_t, the message to s is (Ihler & McAllester 2009, eq. 8)

    m_ts(x) = sum_j w_ts^j psi_st(x, x_t^j),    w_ts^j ~ psi_t local_t prod_{u != s} m_ut(x_t^j) / W_t(x_t^j)

`run` moves the particles by Metropolis-Hastings steps that target the belief, and from then on takes that belief for W.
`kbpjax.baselines.expectation_particle` draws them from Gaussians instead, and shares the rest of this module. The error
of both is proportional to 1 / sqrt(number of particles).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum, show_fields
from kbpjax._public import Checked, public
from kbpjax.baselines._common import CONVERGED, check_options
from kbpjax.baselines.nonparametric import pairwise
from kbpjax.baselines.nonparametric.pairwise import PairwiseMRF, sum_incoming
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.beliefs import Belief, log_likelihoods
from kbpjax.posterior.evidence import Evidence

__all__ = ["ParticleSolution", "beliefs", "mean", "run", "variance"]

NEVER = -1e30
"""The logarithm of 0 in sums over particles: if all weights of a node are 0, they count as equal."""

LEAST = -500.0
"""Smallest logarithm of a message of largest value 1, so that it can be subtracted from a sum again."""

DRAWS = 256
"""Number of samples of each node potential from which its mean and standard deviation are estimated."""


class ParticleSolution(Checked):
    """The result of particle and of expectation particle belief propagation.

    Attributes:
        particles: the particles of each node [node, particle, dim].
        log_weights: logarithms of their weights in the belief, normalized [node, particle].
        log_messages: logarithms of the messages at the particles of their receivers, of largest value 1
            [edge, particle].
        log_senders: logarithms of the weights w_ts of each sender's particles, normalized; they define the messages at
            other points [edge, particle].
        converged: whether the last residual is at most `tol` (None: 1e-3).
        num_iters: number of iterations.
        residuals: residual of each iteration [max_iters], defined at `run`; NaN after the last iteration.
        effective_sizes: effective number of particles in the belief, 1 / sum_j weight_j^2, mean over nodes, of each
            iteration [max_iters]; NaN after the last iteration.
        acceptance: share of the Metropolis-Hastings steps that were accepted; NaN if there were none.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
        >>> solution = particle.run(model, graph, key=jax.random.key(1), num_particles=10)
        >>> np.allclose(np.exp(solution.log_weights).sum(axis=1), 1), 0 < float(solution.acceptance) < 1
        (True, True)
    """

    particles: Float[Array, "node particle dim"]
    log_weights: Float[Array, "node particle"]
    log_messages: Float[Array, "edge particle"]
    log_senders: Float[Array, "edge particle"]
    converged: Bool[Array, ""]
    num_iters: Int[Array, ""]
    residuals: Float[Array, " max_iters"]
    effective_sizes: Float[Array, " max_iters"]
    acceptance: Float[Array, ""]

    @staticmethod
    def _upgrade(fields: dict[str, Any]) -> dict[str, Any]:
        """Add the fields that a file of kbpjax 0.1 lacks (see `kbpjax.io`)."""
        residuals = fields["residuals"]
        return {"converged": residuals[-1] <= CONVERGED, "num_iters": jnp.int32(len(residuals)), **fields}

    __repr__ = show_fields


class ParticleSet(NamedTuple):
    """Particles of all nodes, and functions at them.

    Attributes:
        positions: the particles [node, particle, dim].
        local: log psi_s local_s [node, particle].
        messages: logarithms of the incoming messages [edge, particle].
    """

    positions: Array
    local: Array
    messages: Array

    def log_belief(self, graph: Graph) -> Array:
        """Return the logarithm of the belief up to a constant of each node [node, particle]."""
        return self.local + sum_incoming(graph, self.messages)


class _State(NamedTuple):
    """The state of `run` between iterations.

    Attributes:
        current: the particles.
        proposal: log W at the particles [node, particle].
        scales: logarithm of the number by which each message was divided [edge].
        senders: logarithms of the weights of the senders' particles [edge, particle].
        sizes, residuals: of each iteration [num_iters].
        iteration: number of iterations so far.
    """

    current: ParticleSet
    proposal: Array
    scales: Array
    senders: Array
    sizes: Array
    residuals: Array
    iteration: Array


@public
def run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike = 0.2,
    tol: ScalarLike | None = None,
    key: Key[Array, ""] | None = None,
    num_particles: int = 30,
    resample_every: int = 15,
    num_moves: int = 10,
    min_weight: ScalarLike = 1e-7,
) -> ParticleSolution:
    """Run synchronous particle belief propagation (Ihler & McAllester 2009).

    The first particles are drawn from the node potentials. Every `resample_every` iterations the particles of a node
    are resampled by their weights and moved by random-walk Metropolis-Hastings steps that target the belief. All nodes
    move at once, with messages from the neighbors' old particles. A step has 2.38 / sqrt(dim) times the standard
    deviation of the belief, and at least that of the node potential divided by the number of particles.

    Args:
        model: the model.
        graph: the graph; the model must have all its types.
        evidence: evidence of known likelihoods (`kbpjax.likelihood`), or None. For learned evidence see
            `kbpjax.baselines.transfer_evidence`.
        num_iters: number of iterations, >= 1; with `tol`, the maximum.
        damping: weight of the old message, in [0, 1); new particles start undamped. The published method has 0.
        tol: stop once the residual is at most this, > 0, but not before particles have been resampled once (if
            `resample_every` < `num_iters`). The residual is the largest change of a message, of largest value 1, at the
            particles of its receiver in an iteration. It measures convergence for these particles, not the error due to
            their finite number. None: run all iterations.
        key: random key; None: `jax.random.key(0)`.
        num_particles: number of particles of each node, >= 1.
        resample_every: number of iterations between resamplings, >= 1.
        num_moves: number of Metropolis-Hastings steps of each particle at a resampling, >= 1.
        min_weight: particles of a sender with a smaller weight are left out of its message, except the heaviest; in
            [0, 1).

    Returns:
        Particles, weights and messages.

    Raises:
        ValueError: an option out of range, a type that the model does not have, or evidence of another model.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
        >>> particle.run(model, graph, key=jax.random.key(1), num_particles=10).particles.shape
        (3, 10, 1)
    """
    pairwise.check_problem(model, graph, evidence)
    check_options(num_iters, damping, tol)
    _checks.require_count("num_particles", num_particles)
    _checks.require_count("resample_every", resample_every)
    _checks.require_count("num_moves", num_moves)
    _checks.require_number("min_weight", min_weight, least=0, below=1)
    counts = num_particles, num_iters, resample_every, num_moves
    return _run(model, graph, evidence, _checks.random_key(key), damping, tol, min_weight, *counts)


@public
def beliefs(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, solution: ParticleSolution, points: Numbers
) -> Belief:
    """Return the beliefs psi_s local_s prod_u m_us of all nodes on candidate points.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`, or None.
        solution: the solution of `run`.
        points: candidates [point, *dim], for all nodes.

    Returns:
        The beliefs [node, point], normalized over the points.

    Raises:
        ValueError: points of another shape than the variables, no points, NaN or infinity; a solution of another
            graph; a belief that is 0 at all points.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
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
    checks: list[_checks.Check] = []
    for v, count, *_ in graph.node_types:
        likelihoods = log_likelihoods(evidence, v, x.reshape(-1, *model.shape), count, logs.dtype, checks)
        logs = logs if likelihoods is None else logs.at[graph.nodes_of_type(v)].add(likelihoods)
    _checks.read_and_check(checks)
    return pairwise.as_belief(candidates, logs)


@public
def mean(solution: ParticleSolution) -> Float[Array, "node dim"]:
    """Return the mean of each belief [node, dim], computed from the weighted particles.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
        >>> solution = particle.run(model, graph, key=jax.random.key(1), num_particles=10)
        >>> weighted = np.exp(solution.log_weights)[:, :, None] * solution.particles
        >>> np.allclose(particle.mean(solution), weighted.sum(axis=1), atol=1e-4)
        True
    """
    return einsum("np,npd->nd", jnp.exp(solution.log_weights), solution.particles)


@public
def variance(solution: ParticleSolution) -> Float[Array, "node dim"]:
    """Return the variance of each coordinate [node, dim], computed from the weighted particles.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
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


@partial(jax.jit, static_argnums=(7, 8, 9, 10))
def _run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    damping: ScalarLike,
    tol: ScalarLike | None,
    min_weight: ScalarLike,
    num_particles: int,
    num_iters: int,
    resample_every: int,
    num_moves: int,
) -> ParticleSolution:
    begin, measure, moving = jax.random.split(key, 3)
    dtype = model.sizes[2]
    damping, min_weight = jnp.asarray(damping, dtype), jnp.asarray(min_weight, dtype)
    threshold = jnp.asarray(CONVERGED if tol is None else tol, dtype)
    min_step = moments_of_nodes(measure, model, graph)[1] / num_particles
    lengths = np.minimum(num_iters - np.arange(0, num_iters, resample_every), resample_every).astype(np.int32)
    periods, keys = len(lengths), jax.random.split(moving, len(lengths) - 1)

    def stopped(state: _State) -> Array:
        """Return whether the tolerance is met, with particles that have been resampled if resampling is due."""
        if tol is None:
            return jnp.array(False)
        return (state.iteration > (lengths[0] if periods > 1 else 0)) & (
            state.residuals[state.iteration - 1] <= threshold
        )

    def iterate(state: _State, length: Array) -> _State:
        tables = pairwise.log_tables(model, graph, state.current.positions, state.current.positions)
        unfinished = lambda carry: (carry[1] < length) & ~stopped(carry[0])
        step = lambda carry: (_advance(graph, tables, damping, min_weight, carry[0]), carry[1] + 1)
        return jax.lax.while_loop(unfinished, step, (state, jnp.int32(0)))[0]

    def period(carry: tuple[_State, Array, Array]) -> tuple[_State, Array, Array]:
        state, number, total = carry
        state, accepted = _move(model, graph, evidence, keys[number - 1], min_step, min_weight, num_moves, state)
        return iterate(state, jnp.asarray(lengths)[number]), number + 1, total + accepted

    state = iterate(
        _start(model, graph, evidence, begin, num_particles, num_iters, min_weight), jnp.asarray(lengths[0])
    )
    acceptance = jnp.array(jnp.nan, dtype)
    if periods > 1:
        unfinished = lambda carry: (carry[1] < periods) & ~stopped(carry[0])
        state, number, total = jax.lax.while_loop(unfinished, period, (state, jnp.int32(1), jnp.zeros((), dtype)))
        acceptance = total / (number - 1).astype(dtype)
    current = state.current
    weights = jax.nn.log_softmax(current.log_belief(graph) - state.proposal, axis=1)
    converged = state.residuals[state.iteration - 1] <= threshold
    found = current.positions, weights, current.messages, state.senders, converged, state.iteration
    return ParticleSolution(*found, state.residuals, state.sizes, acceptance)


def _start(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    num_particles: int,
    num_iters: int,
    min_weight: Array,
) -> _State:
    """Draw particles from the node potentials; all messages are 1."""

    def draw(one: tuple[Array, Array]) -> Array:
        return pairwise.of_type(model.nodes, one[1]).sample(one[0], num_particles)

    keys = jax.random.split(key, graph.num_nodes)
    positions = jax.lax.map(draw, (keys, graph.node_type), batch_size=pairwise.BATCH)
    proposal = jnp.maximum(pairwise.log_starts(model, graph, positions), NEVER)
    local = log_local_belief(model, graph, evidence, positions)
    ones = jnp.zeros((graph.num_edges, num_particles), positions.dtype)
    senders = sender_weights(graph, local - proposal, ones, min_weight)
    empty = jnp.full(num_iters, jnp.nan, positions.dtype)
    return _State(ParticleSet(positions, local, ones), proposal, ones[:, 0], senders, empty, empty, jnp.int32(0))


def _advance(graph: Graph, tables: Array, damping: Array, min_weight: Array, state: _State) -> _State:
    """Do one iteration: weights of the senders, messages at the particles of the receivers."""
    current = state.current
    new = sender_weights(graph, current.local - state.proposal, current.messages, min_weight)
    senders = jnp.logaddexp(jnp.log(damping) + state.senders, jnp.log1p(-damping) + new)
    messages, scales = scaled(jax.nn.logsumexp(tables + senders[:, None], axis=2))
    change = jnp.max(jnp.abs(jnp.exp(messages) - jnp.exp(current.messages)), initial=0)
    current = current._replace(messages=messages)
    size = effective_size(jax.nn.log_softmax(current.log_belief(graph) - state.proposal, axis=1))
    sizes, residuals = (
        state.sizes.at[state.iteration].set(jnp.mean(size)),
        state.residuals.at[state.iteration].set(change),
    )
    return _State(current, state.proposal, scales, senders, sizes, residuals, state.iteration + 1)


def _move(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    min_step: Array,
    min_weight: Array,
    num_moves: int,
    state: _State,
) -> tuple[_State, Array]:
    """Return the state with resampled particles that target the beliefs, and the share of accepted steps."""
    choose, walk = jax.random.split(key)
    old = state.current
    weights = jax.nn.softmax(old.log_belief(graph) - state.proposal, axis=1)
    chosen = _systematic(choose, weights)
    middle = einsum("np,npd->nd", weights, old.positions)
    deviation = jnp.sqrt(einsum("np,npd->nd", weights, (old.positions - middle[:, None]) ** 2))
    step = jnp.maximum(2.38 / model.dim**0.5 * deviation, min_step)[:, None]

    def propose(here: ParticleSet, key: Array) -> tuple[ParticleSet, Array]:
        noise, judge = jax.random.split(key)
        positions = here.positions + step * jax.random.normal(noise, here.positions.shape, here.positions.dtype)
        raw = pairwise.log_messages(model, graph, positions, old.positions, state.senders)
        messages = jnp.maximum(raw - state.scales[:, None], LEAST)
        there = ParticleSet(positions, log_local_belief(model, graph, evidence, positions), messages)
        gain = there.log_belief(graph) - here.log_belief(graph)
        accepted = jnp.log(jax.random.uniform(judge, gain.shape, gain.dtype)) < gain
        masks = ParticleSet(accepted[:, :, None], accepted, accepted[graph.receivers])
        return ParticleSet(*map(jnp.where, masks, there, here)), jnp.mean(accepted.astype(gain.dtype))

    indices = ParticleSet(chosen[:, :, None], chosen, chosen[graph.receivers])
    first = ParticleSet(*(jnp.take_along_axis(a, i, axis=1) for a, i in zip(old, indices, strict=True)))
    moved, accepted = jax.lax.scan(propose, first, jax.random.split(walk, num_moves))
    proposal = moved.log_belief(graph)
    messages, scales = scaled(moved.messages)
    senders = sender_weights(graph, moved.local - proposal, messages, min_weight)
    moved = moved._replace(messages=messages)
    new = state._replace(current=moved, proposal=proposal, scales=state.scales + scales, senders=senders)
    return new, jnp.mean(accepted)


def _systematic(key: Array, weights: Float[Array, "node particle"]) -> Int[Array, "node particle"]:
    """Return the indices of systematic resampling by the weights, with one random number per node."""
    nodes, count = weights.shape
    levels = jnp.arange(count, dtype=weights.dtype)[None] + jax.random.uniform(key, (nodes, 1), weights.dtype)
    sums = jnp.cumsum(weights, axis=1)
    search = jax.vmap(partial(jnp.searchsorted, side="right"))
    return jnp.minimum(search(sums / sums[:, -1:], levels / count), count - 1)


def sender_weights(graph: Graph, base: Array, messages: Array, min_weight: Array) -> Float[Array, "edge particle"]:
    """Return logarithms of the normalized weights of the senders' particles; `base` is log psi_t local_t / W_t.

    Weights below `min_weight` become 0, except the largest.
    """
    total = base + sum_incoming(graph, messages)
    logs = jax.nn.log_softmax(total[graph.senders] - messages[graph.reverse], axis=1)
    least = jnp.minimum(jnp.log(min_weight), jnp.max(logs, axis=1, keepdims=True))
    return jax.nn.log_softmax(jnp.where(logs < least, -jnp.inf, logs), axis=1)


def scaled(logs: Float[Array, "edge particle"]) -> tuple[Float[Array, "edge particle"], Float[Array, " edge"]]:
    """Return messages scaled to maximum 1, and the logarithms of the divisors."""
    finite = jnp.maximum(logs, NEVER)
    largest = jnp.max(finite, axis=1, keepdims=True)
    return jnp.maximum(finite - largest, LEAST), largest[:, 0]


def log_local_belief(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, x: Array
) -> Float[Array, "node particle"]:
    """Return log psi_s local_s."""
    return jnp.maximum(pairwise.log_nodes(model, graph, evidence, x), NEVER)


def moments_of_nodes(key: Array, model: PairwiseMRF, graph: Graph) -> tuple[Array, Array]:
    """Return means and standard deviations of samples of the node potentials [node, dim]."""
    keys = jax.random.split(key, len(jax.tree.leaves(model.nodes)[0]))
    x = jax.vmap(lambda one, key: one.sample(key, DRAWS))(model.nodes, keys)
    deviation = jnp.std(x, axis=1)
    moments = jnp.mean(x, axis=1), jnp.where(deviation > 0, deviation, 1)
    return pairwise.of_type(moments, graph.node_type)


def effective_size(logs: Float[Array, "node particle"]) -> Float[Array, " node"]:
    """Return one over the sum of squares of normalized weights."""
    return jnp.exp(-jax.nn.logsumexp(2 * logs, axis=1))
