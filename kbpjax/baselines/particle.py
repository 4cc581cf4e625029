r"""Particle belief propagation: messages are weights of particles, drawn anew from the beliefs now and then.

With particles x_t^j of node t drawn from a density W_t, the message to s is (Ihler & McAllester 2009, eq. 8)

    m_ts(x) = sum_j w_ts^j psi_st(x, x_t^j),    w_ts^j ~ psi_t local_t prod_{u != s} m_ut(x_t^j) / W_t(x_t^j)

`run` moves the particles by Metropolis-Hastings steps that target the belief, and from then on takes that belief for W.
`run_expectation` draws them from Gaussians, which it fits to the beliefs by expectation propagation (Lienart, Teh &
Doucet 2015). The error of both falls like one over the square root of the number of particles.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._precision import einsum
from kbpjax.baselines import pairwise
from kbpjax.baselines.pairwise import PairwiseMRF, sum_incoming
from kbpjax.beliefs import Belief, log_likelihoods
from kbpjax.evidence import Evidence
from kbpjax.graph import Graph
from kbpjax.propagate import check_damping

NEVER = -1e30
"""What stands for the logarithm of 0: where all is 0, weights are equal."""

LEAST = -500.0
"""Logarithm of the least value of a message whose largest is 1, so that it can be taken out of a sum again."""

DRAWS = 256
"""Samples of each node potential that tell its mean and width."""

WIDE, SHARE = 2.0, 0.25
"""This share of the particles of `run_expectation` is drawn from a Gaussian so many times wider."""

SHRINK = 0.01
"""Least variance of a fitted Gaussian, in that of the one before."""

NARROW = 1e-5
"""Least standard deviation of a Gaussian to draw from, in that of the node potential."""


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
    """

    particles: Float[Array, "node particle dim"]
    log_weights: Float[Array, "node particle"]
    log_messages: Float[Array, "edge particle"]
    log_senders: Float[Array, "edge particle"]
    effective_sizes: Float[Array, " num_iters"]
    residuals: Float[Array, " num_iters"]
    acceptance: Float[Array, ""]


class _Cloud(NamedTuple):
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

    cloud: _Cloud
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
    key: Key[Array, ""] | None = None,
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

    Example:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> particle.run(model, graph, key=jax.random.key(1), num_particles=10).particles.shape
        (3, 10, 1)
    """
    _check(model, graph, evidence, key, num_particles, num_iters)
    _checks.require_count("resample_every", resample_every)
    _checks.require_count("num_moves", num_moves)
    check_damping(damping)
    _checks.require_number("least_weight", least_weight, least=0, below=1)
    options = num_particles, num_iters, resample_every, num_moves
    return _run(model, graph, evidence, key, damping, least_weight, *options)


def run_expectation(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None = None,
    *,
    key: Key[Array, ""] | None = None,
    num_particles: int = 30,
    num_iters: int = 30,
    damping: ScalarLike = 0.5,
) -> ParticleSolution:
    """Run expectation particle belief propagation (Lienart, Teh & Doucet 2015), all messages at once.

    In every iteration all particles are drawn anew, from a Gaussian with diagonal covariance for each node: a product
    of Gaussian factors eta_us, one for each message, and one for psi_s local_s. A factor becomes the Gaussian that,
    times the other factors, has the mean and variance of m_us times the other factors, estimated from the particles.
    It stays where its precision would not be positive, or where less than two particles have all the weight. A quarter
    of the particles comes from a Gaussian twice as wide, so that no weight is without bound.

    Args:
        model: the model.
        graph: the graph; its types must be among those of the model.
        evidence: known likelihoods, or None.
        key: random key.
        num_particles: particles of each node, >= 1.
        num_iters: iterations, >= 1.
        damping: weight of the natural parameters of the old factors, in [0, 1).

    Returns:
        Particles, weights and messages.

    Raises:
        ValueError: an option out of range, no key, a type that the model does not have, learned evidence.

    Example:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> particle.run_expectation(model, graph, key=jax.random.key(1), num_particles=10).particles.shape
        (3, 10, 1)
    """
    _check(model, graph, evidence, key, num_particles, num_iters)
    check_damping(damping)
    return _run_expectation(model, graph, evidence, key, damping, num_particles, num_iters)


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

    Example:
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
        logs = logs.at[graph.nodes_of_type(v)].add(known)
    return pairwise.as_belief(candidates, logs)


def mean(solution: ParticleSolution) -> Float[Array, "node dim"]:
    """Return the mean of each belief, straight from the weighted particles [node, dim]."""
    return einsum("np,npd->nd", jnp.exp(solution.log_weights), solution.particles)


def variance(solution: ParticleSolution) -> Float[Array, "node dim"]:
    """Return the variance of each coordinate, straight from the weighted particles [node, dim]."""
    return einsum("np,npd->nd", jnp.exp(solution.log_weights), (solution.particles - mean(solution)[:, None]) ** 2)


@jax.jit
def _log_beliefs(model: PairwiseMRF, graph: Graph, particles: Array, senders: Array, x: Array) -> Array:
    """Return the logarithms of psi_s prod_u m_us at common points [node, point]."""
    prior = jax.vmap(lambda one: one.log_density(x))(model.nodes)
    everywhere = jnp.broadcast_to(x, (graph.num_nodes, *x.shape))
    messages = pairwise.log_messages(model, graph, everywhere, particles, senders)
    return pairwise.of_type(prior, graph.node_type) + sum_incoming(graph, messages)


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
    width = _moments(model, graph, measure)[1] / num_particles
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
    own = _own(model, graph, evidence, particles)
    ones = jnp.zeros((graph.num_edges, num_particles), particles.dtype)
    senders = _outgoing(graph, own - proposal, ones, least)
    history = jnp.zeros(num_iters, particles.dtype)
    return _State(_Cloud(particles, own, ones), proposal, ones[:, 0], senders, history, history, jnp.int32(0))


def _pass(graph: Graph, tables: Array, damping: Array, least: Array, state: _State) -> _State:
    """Do one iteration: weights of the senders, messages at the particles of the receivers."""
    cloud = state.cloud
    fresh = _outgoing(graph, cloud.own - state.proposal, cloud.messages, least)
    senders = jnp.logaddexp(jnp.log(damping) + state.senders, jnp.log1p(-damping) + fresh)
    messages, scales = _scaled(jax.nn.logsumexp(tables + senders[:, None], axis=2))
    change = jnp.max(jnp.abs(jnp.exp(messages) - jnp.exp(cloud.messages)), initial=0)
    cloud = cloud._replace(messages=messages)
    size = _effective_size(jax.nn.log_softmax(cloud.log_belief(graph) - state.proposal, axis=1))
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

    def propose(here: _Cloud, key: Array) -> tuple[_Cloud, Array]:
        noise, judge = jax.random.split(key)
        particles = here.particles + step * jax.random.normal(noise, here.particles.shape, here.particles.dtype)
        raw = pairwise.log_messages(model, graph, particles, old.particles, state.senders)
        messages = jnp.maximum(raw - state.scales[:, None], LEAST)
        there = _Cloud(particles, _own(model, graph, evidence, particles), messages)
        gain = there.log_belief(graph) - here.log_belief(graph)
        accepted = jnp.log(jax.random.uniform(judge, gain.shape, gain.dtype)) < gain
        masks = _Cloud(accepted[:, :, None], accepted, accepted[graph.receivers])
        return _Cloud(*map(jnp.where, masks, there, here)), jnp.mean(accepted.astype(gain.dtype))

    indices = _Cloud(chosen[:, :, None], chosen, chosen[graph.receivers])
    first = _Cloud(*(jnp.take_along_axis(a, i, axis=1) for a, i in zip(old, indices, strict=True)))
    cloud, accepted = jax.lax.scan(propose, first, jax.random.split(walk, num_moves))
    proposal = cloud.log_belief(graph)
    messages, scales = _scaled(cloud.messages)
    senders = _outgoing(graph, cloud.own - proposal, messages, least)
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


class _Gaussian(NamedTuple):
    """Factors exp(shift x - precision x^2 / 2), a product over coordinates; each field [.., dim]."""

    precision: Array
    shift: Array


@partial(jax.jit, static_argnums=(5, 6))
def _run_expectation(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    damping: ScalarLike,
    num_particles: int,
    num_iters: int,
) -> ParticleSolution:
    measure, begin, drawing = jax.random.split(key, 3)
    middle, width = _moments(model, graph, measure)
    flat = jnp.zeros((graph.num_edges, model.dim), middle.dtype)
    damping, least = jnp.asarray(damping, middle.dtype), jnp.zeros((), middle.dtype)

    def draw(key: Array, whole: _Gaussian) -> tuple[Array, Array, Array]:
        return _draw(key, whole.shift / whole.precision, _deviation(whole, width), num_particles)

    def iterate(carry: Any, key: Array) -> Any:
        near, far, particles, senders = carry
        whole = _whole(graph, near, far)
        x, log_draw, log_whole = draw(key, whole)
        raw = pairwise.log_messages(model, graph, x, particles, senders)
        cloud = _Cloud(x, _own(model, graph, evidence, x), _scaled(raw)[0])
        weights = jax.nn.log_softmax(cloud.log_belief(graph) - log_draw, axis=1)
        senders = _outgoing(graph, cloud.own - log_draw, cloud.messages, least)
        tilt, at = log_whole - log_draw, graph.receivers
        around = _Gaussian(whole.precision[at], whole.shift[at])
        far = _project(cloud.messages + tilt[at], x[at], far, around, damping)
        near = _project(cloud.own + tilt, x, near, whole, damping)
        after = _whole(graph, near, far)
        shift = after.shift / after.precision - whole.shift / whole.precision
        moved = jnp.max(jnp.abs(shift) / _deviation(whole, width))
        return (near, far, x, senders), (weights, cloud.messages, jnp.mean(_effective_size(weights)), moved)

    near, far = _Gaussian(1 / width**2, middle / width**2), _Gaussian(flat, flat)
    x, log_draw, _ = draw(begin, near)
    ones = jnp.zeros((graph.num_edges, num_particles), x.dtype)
    senders = _outgoing(graph, _own(model, graph, evidence, x) - log_draw, ones, least)
    last = jnp.zeros(x.shape[:2], x.dtype), ones

    def step(carry: Any, key: Array) -> Any:
        carry, (weights, messages, size, moved) = iterate(carry[0], key)
        return (carry, (weights, messages)), (size, moved)

    keys = jax.random.split(drawing, num_iters)
    ((*_, x, senders), (weights, messages)), history = jax.lax.scan(step, ((near, far, x, senders), last), keys)
    sizes, moves = history
    return ParticleSolution(x, weights, messages, senders, sizes, moves, jnp.array(jnp.nan, x.dtype))


def _whole(graph: Graph, near: _Gaussian, far: _Gaussian) -> _Gaussian:
    """Multiply the factors of each node."""
    return _Gaussian(*(a + sum_incoming(graph, b) for a, b in zip(near, far, strict=True)))


def _deviation(whole: _Gaussian, width: Array) -> Array:
    """Return standard deviations to draw with [node, dim]."""
    return jnp.maximum(1 / jnp.sqrt(whole.precision), NARROW * width)


def _draw(key: Array, middle: Array, deviation: Array, count: int) -> tuple[Array, Array, Array]:
    """Draw particles; return the logarithms of their density and of the narrow Gaussian, up to one constant, too."""
    noise, choose = jax.random.split(key)
    dtype = middle.dtype
    wide = jax.random.bernoulli(choose, SHARE, (len(middle), count, 1))
    z = jax.random.normal(noise, (len(middle), count, middle.shape[1]), dtype) * jnp.where(wide, WIDE, 1).astype(dtype)
    half = 0.5 * jnp.sum(z**2, axis=2)
    broad = math.log(SHARE / WIDE ** middle.shape[1]) - half / WIDE**2
    return middle[:, None] + deviation[:, None] * z, jnp.logaddexp(math.log(1 - SHARE) - half, broad), -half


def _project(logs: Array, x: Array, old: _Gaussian, whole: _Gaussian, damping: Array) -> _Gaussian:
    """Fit factors to functions so that they agree in mean and variance when multiplied with all other factors.

    Args:
        logs: the functions, times the product of all factors over the density of the particles [some, particle].
        x: the particles [some, particle, dim].
        old: the factors so far [some, dim].
        whole: product of all factors [some, dim].
        damping: weight of the old natural parameters.
    """
    middle = whole.shift / whole.precision
    apart = x - middle[:, None]  # so that large means do not cost precision
    shift = (old.shift - old.precision * middle)[:, None]
    logs = logs - jnp.sum(shift * apart - 0.5 * old.precision[:, None] * apart**2, axis=2)
    weights = jax.nn.softmax(logs, axis=1)
    unequal = 1 - jnp.sum(weights**2, axis=1)  # 1 - 1 / effective size
    move = einsum("np,npd->nd", weights, apart)
    square = einsum("np,npd->nd", weights, (apart - move[:, None]) ** 2)
    variance = jnp.maximum(square / jnp.where(unequal > 0, unequal, 1)[:, None], SHRINK / whole.precision)
    precision = 1 / variance - (whole.precision - old.precision)
    fitted = _Gaussian(precision, (middle + move) / variance - (whole.shift - old.shift))
    good = (precision > 0) & (unequal >= 0.5)[:, None]
    return _Gaussian(*(jnp.where(good, damping * a + (1 - damping) * b, a) for a, b in zip(old, fitted, strict=True)))


def _outgoing(graph: Graph, base: Array, messages: Array, least: Array) -> Float[Array, "edge particle"]:
    """Return logarithms of the weights of the senders' particles, from the base log psi_t local_t / W_t.

    Weights less than the least are 0.
    """
    total = base + sum_incoming(graph, messages)
    logs = jax.nn.log_softmax(total[graph.senders] - messages[graph.reverse], axis=1)
    return jax.nn.log_softmax(jnp.where(logs < jnp.log(least), -jnp.inf, logs), axis=1)


def _scaled(logs: Float[Array, "edge particle"]) -> tuple[Float[Array, "edge particle"], Float[Array, " edge"]]:
    """Scale messages to largest value 1; return what they were divided by, too."""
    finite = jnp.maximum(logs, NEVER)
    largest = jnp.max(finite, axis=1, keepdims=True)
    return jnp.maximum(finite - largest, LEAST), largest[:, 0]


def _own(model: PairwiseMRF, graph: Graph, evidence: Evidence | None, x: Array) -> Float[Array, "node particle"]:
    """Return log psi_s local_s."""
    return jnp.maximum(pairwise.log_nodes(model, graph, evidence, x), NEVER)


def _moments(model: PairwiseMRF, graph: Graph, key: Array) -> tuple[Array, Array]:
    """Return means and standard deviations of samples of the node potentials [node, dim]."""
    keys = jax.random.split(key, len(jax.tree.leaves(model.nodes)[0]))
    x = jax.vmap(lambda one, key: one.sample(key, DRAWS))(model.nodes, keys)
    deviation = jnp.std(x, axis=1)
    moments = jnp.mean(x, axis=1), jnp.where(deviation > 0, deviation, 1)
    return pairwise.of_type(moments, graph.node_type)


def _effective_size(logs: Float[Array, "node particle"]) -> Float[Array, " node"]:
    """Return one over the sum of squares of normalised weights."""
    return jnp.exp(-jax.nn.logsumexp(2 * logs, axis=1))


def _check(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, key: Any, num_particles: int, num_iters: int
) -> None:
    pairwise.check_problem(model, graph, evidence)
    pairwise.require_key(key)
    _checks.require_count("num_particles", num_particles)
    _checks.require_count("num_iters", num_iters)
