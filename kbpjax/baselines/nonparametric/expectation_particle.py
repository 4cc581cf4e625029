"""Expectation particle belief propagation: particles drawn from Gaussians that are fitted to the beliefs.

In every iteration a node's particles come from a product of Gaussian factors, one for each message and one for the
local factor of the node. Expectation propagation fits the factors to the particles (Lienart, Teh & Doucet 2015).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, ScalarLike

from kbpjax import _checks
from kbpjax._misc import einsum
from kbpjax._public import public
from kbpjax.baselines._common import check_options, iterate
from kbpjax.baselines.nonparametric import pairwise
from kbpjax.baselines.nonparametric.pairwise import PairwiseMRF, sum_incoming
from kbpjax.baselines.nonparametric.particle import (
    ParticleSet,
    effective_size,
    log_local_belief,
    moments_of_nodes,
    scaled,
    sender_weights,
)
from kbpjax.baselines.nonparametric.particle import ParticleSolution as ParticleSolution
from kbpjax.baselines.nonparametric.particle import beliefs as beliefs
from kbpjax.baselines.nonparametric.particle import mean as mean
from kbpjax.baselines.nonparametric.particle import variance as variance
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.evidence import Evidence

__all__ = ["run"]

WIDE, SHARE = 2.0, 0.25
"""A share `SHARE` of the particles is drawn from a Gaussian `WIDE` times wider."""

SHRINK = 0.01
"""Smallest variance of a fitted Gaussian, relative to that of the previous one."""

NARROW = 1e-5
"""Smallest standard deviation of a Gaussian to draw from, relative to that of the node potential."""


@public
def run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike = 0.5,
    tol: ScalarLike | None = None,
    key: Key[Array, ""] | None = None,
    num_particles: int = 30,
) -> ParticleSolution:
    """Run synchronous expectation particle belief propagation (Lienart, Teh & Doucet 2015).

    In every iteration all particles are drawn anew, from a Gaussian with diagonal covariance for each node. It is a
    product of Gaussian factors eta_us, one for each message, and one for psi_s local_s. A factor becomes the Gaussian
    that, times the other factors, has the mean and variance of m_us times the other factors, estimated from the
    particles. It keeps its value if the precision would not be positive, or if the effective number of particles is
    below two. A quarter of the particles comes from a Gaussian twice as wide, so that all weights are bounded.

    Args:
        model: the model.
        graph: the graph; the model must have all its types.
        evidence: evidence of known likelihoods (`kbpjax.likelihood`), or None. For learned evidence see
            `kbpjax.baselines.transfer_evidence`.
        num_iters: number of iterations, >= 1; with `tol`, the maximum.
        damping: weight of the old factors' natural parameters, in [0, 1). The default is larger than that of the other
            methods, because the factors are refitted to few new particles in every iteration.
        tol: stop once the residual is at most this, > 0. The residual is the largest change of a Gaussian's mean in an
            iteration, in its standard deviations. New particles in every iteration keep it at about one over the square
            root of their effective number, so choose `tol` of that size. None: run all iterations.
        key: random key; None: `jax.random.key(0)`.
        num_particles: number of particles of each node, >= 1.

    Returns:
        Particles, weights and messages.

    Raises:
        ValueError: an option out of range, a type that the model does not have, or evidence of another model.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import expectation_particle, pairwise
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
        >>> expectation_particle.run(model, graph, key=jax.random.key(1), num_particles=10).particles.shape
        (3, 10, 1)
    """
    pairwise.check_problem(model, graph, evidence)
    check_options(num_iters, damping, tol)
    _checks.require_count("num_particles", num_particles)
    return _run(model, graph, evidence, _checks.random_key(key), damping, tol, num_particles, num_iters)


class _Gaussian(NamedTuple):
    """Factors exp(shift x - precision x^2 / 2), a product over coordinates; each field [.., dim]."""

    precision: Array
    shift: Array


class _State(NamedTuple):
    """The state of `run` between iterations.

    Attributes:
        near, far: the Gaussian factors of nodes and of messages.
        positions: the particles [node, particle, dim].
        senders: logarithms of the weights of the senders' particles [edge, particle].
        weights: logarithms of the weights of the particles in the beliefs [node, particle].
        messages: logarithms of the messages at the particles [edge, particle].
    """

    near: _Gaussian
    far: _Gaussian
    positions: Array
    senders: Array
    weights: Array
    messages: Array


@partial(jax.jit, static_argnums=(6, 7))
def _run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    damping: ScalarLike,
    tol: ScalarLike | None,
    num_particles: int,
    num_iters: int,
) -> ParticleSolution:
    measure, begin, drawing = jax.random.split(key, 3)
    middle, width = moments_of_nodes(measure, model, graph)
    flat = jnp.zeros((graph.num_edges, model.dim), middle.dtype)
    damping, min_weight = jnp.asarray(damping, middle.dtype), jnp.zeros((), middle.dtype)

    def draw(key: Array, total: _Gaussian) -> tuple[Array, Array, Array]:
        return _draw(key, total.shift / total.precision, _deviation(total, width), num_particles)

    def advance(state: _State, key: Array) -> tuple[_State, tuple[Array, Array]]:
        total = _multiply(graph, state.near, state.far)
        x, log_draw, log_total = draw(key, total)
        raw = pairwise.log_messages(model, graph, x, state.positions, state.senders)
        current = ParticleSet(x, log_local_belief(model, graph, evidence, x), scaled(raw)[0])
        weights = jax.nn.log_softmax(current.log_belief(graph) - log_draw, axis=1)
        senders = sender_weights(graph, current.local - log_draw, current.messages, min_weight)
        tilt, at = log_total - log_draw, graph.receivers
        around = _Gaussian(total.precision[at], total.shift[at])
        far = _project(current.messages + tilt[at], x[at], state.far, around, damping)
        near = _project(current.local + tilt, x, state.near, total, damping)
        after = _multiply(graph, near, far)
        shift = after.shift / after.precision - total.shift / total.precision
        moved = jnp.max(jnp.abs(shift) / _deviation(total, width))
        state = _State(near, far, x, senders, weights, current.messages)
        return state, (moved, jnp.mean(effective_size(weights)))

    near, far = _Gaussian(1 / width**2, middle / width**2), _Gaussian(flat, flat)
    x, log_draw, _ = draw(begin, near)
    ones = jnp.zeros((graph.num_edges, num_particles), x.dtype)
    senders = sender_weights(graph, log_local_belief(model, graph, evidence, x) - log_draw, ones, min_weight)
    start = _State(near, far, x, senders, jnp.zeros(x.shape[:2], x.dtype), ones)
    keys = jax.random.split(drawing, num_iters)
    last, (residuals, sizes), count, converged = iterate(advance, start, keys, num_iters, tol)
    found = last.positions, last.weights, last.messages, last.senders, converged, count
    return ParticleSolution(*found, residuals, sizes, jnp.array(jnp.nan, x.dtype))


def _multiply(graph: Graph, near: _Gaussian, far: _Gaussian) -> _Gaussian:
    """Multiply the factors of each node."""
    return _Gaussian(*(a + sum_incoming(graph, b) for a, b in zip(near, far, strict=True)))


def _deviation(total: _Gaussian, width: Array) -> Array:
    """Return standard deviations to draw with [node, dim]."""
    return jnp.maximum(1 / jnp.sqrt(total.precision), NARROW * width)


def _draw(key: Array, middle: Array, deviation: Array, count: int) -> tuple[Array, Array, Array]:
    """Draw particles; return the logarithms of their density and of the narrow Gaussian, up to one constant, too."""
    noise, choose = jax.random.split(key)
    dtype = middle.dtype
    wide = jax.random.bernoulli(choose, SHARE, (len(middle), count, 1))
    z = jax.random.normal(noise, (len(middle), count, middle.shape[1]), dtype) * jnp.where(wide, WIDE, 1).astype(dtype)
    half = 0.5 * jnp.sum(z**2, axis=2)
    broad = math.log(SHARE / WIDE ** middle.shape[1]) - half / WIDE**2
    return middle[:, None] + deviation[:, None] * z, jnp.logaddexp(math.log(1 - SHARE) - half, broad), -half


def _project(logs: Array, x: Array, old: _Gaussian, total: _Gaussian, damping: Array) -> _Gaussian:
    """Fit factors to functions so that they agree in mean and variance when multiplied with all other factors.

    Args:
        logs: the functions, times the product of all factors over the density of the particles [factor, particle].
        x: the particles [factor, particle, dim].
        old: the old factors [factor, dim].
        total: product of all factors [factor, dim].
        damping: weight of the old natural parameters.
    """
    middle = total.shift / total.precision
    apart = x - middle[:, None]  # so that large means do not cost precision
    shift = (old.shift - old.precision * middle)[:, None]
    logs = logs - jnp.sum(shift * apart - 0.5 * old.precision[:, None] * apart**2, axis=2)
    weights = jax.nn.softmax(logs, axis=1)
    unequal = 1 - jnp.sum(weights**2, axis=1)  # 1 - 1 / effective size
    move = einsum("np,npd->nd", weights, apart)
    square = einsum("np,npd->nd", weights, (apart - move[:, None]) ** 2)
    variance = jnp.maximum(square / jnp.where(unequal > 0, unequal, 1)[:, None], SHRINK / total.precision)
    precision = 1 / variance - (total.precision - old.precision)
    fitted = _Gaussian(precision, (middle + move) / variance - (total.shift - old.shift))
    good = (precision > 0) & (unequal >= 0.5)[:, None]
    return _Gaussian(*(jnp.where(good, damping * a + (1 - damping) * b, a) for a, b in zip(old, fitted, strict=True)))
