"""Expectation particle belief propagation: particles drawn from Gaussians that are fitted to the beliefs.

In every iteration a node's particles come from a product of Gaussian factors, one for each message and one for what is
known of the node, which expectation propagation fits to them (Lienart, Teh & Doucet 2015).
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, ScalarLike

from kbpjax._misc import einsum
from kbpjax.baselines import pairwise
from kbpjax.baselines.clouds import (
    Cloud,
    ParticleSolution,
    check_options,
    effective_size,
    log_own,
    moments_of_nodes,
    outgoing,
    scaled,
)
from kbpjax.baselines.pairwise import PairwiseMRF, sum_incoming
from kbpjax.graphs.graph import Graph
from kbpjax.inference.acceleration import check_damping
from kbpjax.posterior.evidence import Evidence

WIDE, SHARE = 2.0, 0.25
"""This share of the particles of `run_expectation` is drawn from a Gaussian so many times wider."""

SHRINK = 0.01
"""Least variance of a fitted Gaussian, in that of the one before."""

NARROW = 1e-5
"""Least standard deviation of a Gaussian to draw from, in that of the node potential."""


def run_expectation(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None = None,
    *,
    key: Key[Array, ""],
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

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import pairwise, particle
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> particle.run_expectation(model, graph, key=jax.random.key(1), num_particles=10).particles.shape
        (3, 10, 1)
    """
    check_options(model, graph, evidence, key, num_particles, num_iters)
    check_damping(damping)
    return _run_expectation(model, graph, evidence, key, damping, num_particles, num_iters)


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
    middle, width = moments_of_nodes(model, graph, measure)
    flat = jnp.zeros((graph.num_edges, model.dim), middle.dtype)
    damping, least = jnp.asarray(damping, middle.dtype), jnp.zeros((), middle.dtype)

    def draw(key: Array, whole: _Gaussian) -> tuple[Array, Array, Array]:
        return _draw(key, whole.shift / whole.precision, _deviation(whole, width), num_particles)

    def iterate(carry: Any, key: Array) -> Any:
        near, far, particles, senders = carry
        whole = _whole(graph, near, far)
        x, log_draw, log_whole = draw(key, whole)
        raw = pairwise.log_messages(model, graph, x, particles, senders)
        cloud = Cloud(x, log_own(model, graph, evidence, x), scaled(raw)[0])
        weights = jax.nn.log_softmax(cloud.log_belief(graph) - log_draw, axis=1)
        senders = outgoing(graph, cloud.own - log_draw, cloud.messages, least)
        tilt, at = log_whole - log_draw, graph.receivers
        around = _Gaussian(whole.precision[at], whole.shift[at])
        far = _project(cloud.messages + tilt[at], x[at], far, around, damping)
        near = _project(cloud.own + tilt, x, near, whole, damping)
        after = _whole(graph, near, far)
        shift = after.shift / after.precision - whole.shift / whole.precision
        moved = jnp.max(jnp.abs(shift) / _deviation(whole, width))
        return (near, far, x, senders), (weights, cloud.messages, jnp.mean(effective_size(weights)), moved)

    near, far = _Gaussian(1 / width**2, middle / width**2), _Gaussian(flat, flat)
    x, log_draw, _ = draw(begin, near)
    ones = jnp.zeros((graph.num_edges, num_particles), x.dtype)
    senders = outgoing(graph, log_own(model, graph, evidence, x) - log_draw, ones, least)
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
