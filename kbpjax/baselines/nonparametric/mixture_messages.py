r"""Nonparametric belief propagation: messages are mixtures of Gaussians (Sudderth, Ihler, Freeman, Willsky 2003).

The message from t to s is a kernel density estimate from samples that are drawn in three steps:

1. x_t ~ local_t(x_t) psi_t(x_t) prod_{u in G(t) \ s} m_ut(x_t), a product of mixtures, by a sampler;
2. x_s ~ psi_st(. , x_t), one for each x_t;
3. a Gaussian on each x_s, with the bandwidth of Silverman's rule of thumb.

psi_t and the known likelihood enter the product as a mixture, too. It is fitted once, to `num_components` samples, and
each x_t has the weight psi_t local_t / that mixture, so the fit affects only where samples are drawn.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import show_fields
from kbpjax._public import Checked, public
from kbpjax.baselines._common import check_options, iterate
from kbpjax.baselines.nonparametric.mixtures import GaussianMixture, log_normal, rule_of_thumb
from kbpjax.baselines.nonparametric.pairwise import (
    BATCH,
    PairwiseMRF,
    as_belief,
    candidates,
    check_problem,
    directions,
    log_local,
    log_nodes,
    of_type,
)
from kbpjax.baselines.nonparametric.products import exact_product, sample_gibbs, sample_multiscale
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.evidence import Evidence

OVERSAMPLING = 8
"""Number of samples of a node's potential for each component of the mixture that approximates its local factor."""


class ExactSampler(Checked):
    """Sample from the exact product, over all combinations of components; feasible for few components and neighbors.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, nonparametric
        >>> two = jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> draw = jax.jit(nonparametric.ExactSampler().draw, static_argnums=2)
        >>> samples, bound = draw(jax.random.key(0), two, 1000, jnp.ones(2, bool))
        >>> round(float(samples.mean()), 1), float(bound)
        (1.0, 0.0)
    """

    def draw(
        self, key: Key[Array, ""], factors: GaussianMixture, num_samples: int, present: Array
    ) -> tuple[Array, Array]:
        """Return samples [sample, dim] and a bound of the error of their distribution, 0."""
        product, _ = exact_product(factors, present)
        return product.sample(key, num_samples), jnp.zeros((), factors.means.dtype)

    __repr__ = show_fields


class GibbsSampler(Checked):
    """Sample from a product by Gibbs sampling of the labels (see `products.sample_gibbs`), without an error bound.

    Args:
        num_sweeps: number of times that each label is drawn, >= 1.

    Raises:
        ValueError: a number of sweeps below 1.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, nonparametric
        >>> two = jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> draw = jax.jit(nonparametric.GibbsSampler(num_sweeps=3).draw, static_argnums=2)
        >>> samples, bound = draw(jax.random.key(0), two, 1000, jnp.ones(2, bool))
        >>> round(float(samples.mean()), 1), float(bound)
        (1.0, nan)
    """

    num_sweeps: int = eqx.field(static=True, converter=_checks.whole, default=5)

    def __check_init__(self) -> None:
        _checks.require_count("num_sweeps", self.num_sweeps)

    def draw(
        self, key: Key[Array, ""], factors: GaussianMixture, num_samples: int, present: Array
    ) -> tuple[Array, Array]:
        """Return samples [sample, dim], and NaN in place of a bound of their error."""
        drawn = sample_gibbs(key, factors, num_samples, num_sweeps=self.num_sweeps, present=present)
        return drawn, jnp.full((), jnp.nan, factors.means.dtype)

    __repr__ = show_fields


class MultiscaleSampler(Checked):
    """Sample from a product by KD-trees, to an error eps; see `products.sample_multiscale`.

    Args:
        eps: error at which to stop refining, > 0.
        capacity: number of tuples of tree nodes to split at each level, >= 1; it determines the time.

    Raises:
        ValueError: an option out of range.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixtures, nonparametric
        >>> two = jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> draw = jax.jit(nonparametric.MultiscaleSampler(eps=0.01).draw, static_argnums=2)
        >>> samples, bound = draw(jax.random.key(0), two, 1000, jnp.ones(2, bool))
        >>> round(float(samples.mean()), 1), bool(bound <= 0.01)
        (1.0, True)
    """

    eps: float = eqx.field(static=True, default=1e-3)
    capacity: int = eqx.field(static=True, converter=_checks.whole, default=32)

    def __check_init__(self) -> None:
        _checks.require_number("eps", self.eps, above=0)
        _checks.require_count("capacity", self.capacity)

    def draw(
        self, key: Key[Array, ""], factors: GaussianMixture, num_samples: int, present: Array
    ) -> tuple[Array, Array]:
        """Return samples [sample, dim] and a bound of the error of their distribution."""
        return sample_multiscale(key, factors, num_samples, eps=self.eps, capacity=self.capacity, present=present)

    __repr__ = show_fields


Sampler = ExactSampler | GibbsSampler | MultiscaleSampler


class NonparametricSolution(Checked):
    """The result of `run`.

    Attributes:
        messages: the message of each directed edge, a mixture over the values of its receiver, stacked [edge, ...].
        converged: whether the last residual is at most `tol` (None: 1e-3).
        num_iters: number of iterations.
        residuals: residual of each iteration [max_iters], defined at `run`; NaN after the last iteration.
        bounds: bound of the sampler's error, mean over messages, of each iteration [max_iters]; NaN if the sampler has
            none, and after the last iteration.
        effective: effective share of the samples, 1 / sum weights^2 / number, mean over messages, of each iteration
            [max_iters]; near 0, messages are represented by few samples. NaN after the last iteration.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import nonparametric, pairwise
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
        >>> few = {"num_components": 8, "num_iters": 2, "sampler": nonparametric.GibbsSampler()}
        >>> solution = nonparametric.run(model, graph, key=jax.random.key(1), **few)
        >>> int(solution.num_iters), solution.effective.shape, solution.messages.means.shape
        (2, (2,), (4, 8, 1))
    """

    messages: GaussianMixture
    converged: Bool[Array, ""]
    num_iters: Int[Array, ""]
    residuals: Float[Array, " max_iters"]
    bounds: Float[Array, " max_iters"]
    effective: Float[Array, " max_iters"]

    @staticmethod
    def _upgrade(fields: dict[str, Any]) -> dict[str, Any]:
        """Add the fields that a file of kbpjax 0.1 lacks: it has no residuals (see `kbpjax.io`)."""
        unknown = jnp.full_like(fields["effective"], jnp.nan)
        return {"converged": jnp.array(False), "residuals": unknown, **fields}

    __repr__ = show_fields


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
    num_components: int = 30,
    sampler: Sampler = MultiscaleSampler(),
    min_bandwidth: ScalarLike = 0.1,
) -> NonparametricSolution:
    """Run synchronous nonparametric belief propagation (mixtures of Gaussians).

    Args:
        model: the model.
        graph: the graph. A product has as many factors as the largest degree, and the cost of `MultiscaleSampler` is
            exponential in it.
        evidence: evidence of known likelihoods (`kbpjax.likelihood`), or None. For learned evidence see
            `kbpjax.baselines.transfer_evidence`.
        num_iters: number of iterations, >= 1; with `tol`, the maximum.
        damping: weight of the old message, in [0, 1). The damped message is resampled from the components of the old
            and of the new message, whose weights are multiplied by `damping` and 1 - `damping`. The published method
            has 0.
        tol: stop once the residual is at most this, > 0. The residual is the largest distance of a message from its
            undamped update, |new - old| / sqrt(|new|^2 + |old|^2) in the 2-norm of densities, between 0 and 1. New
            samples in every iteration keep it well above 0 (0.1 to 0.5 with 30 components), so choose `tol` of that
            size. None: run all iterations.
        key: random key; None: `jax.random.key(0)`.
        num_components: number of components of each message, >= 1.
        sampler: `MultiscaleSampler(eps, capacity)`, `GibbsSampler(num_sweeps)` or `ExactSampler()`.
        min_bandwidth: smallest bandwidth, > 0, relative to the standard deviation of samples of the node potentials.
            The rule of thumb alone gives samples that nearly coincide a bandwidth near 0, from which later iterations
            do not recover. The published method has no minimum; 1e-3 is close to it.

    Returns:
        The messages.

    Raises:
        ValueError: an option out of range, a graph without edges, types that the model has no potentials for, or
            evidence of another model.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import nonparametric, pairwise
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
        >>> few = {"num_components": 8, "num_iters": 2, "sampler": nonparametric.GibbsSampler()}
        >>> solution = nonparametric.run(model, graph, key=jax.random.key(1), **few)
        >>> nonparametric.beliefs(model, graph, None, solution, np.linspace(-3, 3, 7)).weights.shape
        (3, 7)
    """
    check_problem(model, graph, evidence)
    fix = "Without messages a belief is psi_s local_s: exponentiate kbpjax.baselines.pairwise.log_nodes."
    _checks.require(graph.num_edges > 0, "graph", "must have an edge", "none", fix)
    check_options(num_iters, damping, tol)
    _checks.require_count("num_components", num_components)
    _checks.require_number("min_bandwidth", min_bandwidth, above=0)
    fix = "Pass MultiscaleSampler(eps), GibbsSampler(num_sweeps) or ExactSampler()."
    _checks.require(isinstance(sampler, Sampler), "sampler", "must be a sampler of products", repr(sampler), fix)
    options = _checks.random_key(key), jnp.asarray(damping, model.sizes[2]), tol, jnp.asarray(min_bandwidth)
    return _run(model, graph, evidence, *options, num_components, num_iters, sampler)


@partial(jax.jit, static_argnames=("num_components", "num_iters", "sampler"))
def _run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    damping: Array,
    tol: ScalarLike | None,
    min_bandwidth: Array,
    num_components: int,
    num_iters: int,
    sampler: Sampler,
) -> NonparametricSolution:
    key, local_key = jax.random.split(key)
    local, deviation = _local_mixtures(model, graph, evidence, local_key, num_components)
    least = min_bandwidth.astype(deviation.dtype) * deviation
    local = GaussianMixture.trusted(local.weights, local.means, jnp.maximum(local.bandwidth, least[None]))
    cavity = _cavity_edges(graph)
    share = jnp.full((graph.num_edges, num_components), 1 / num_components, deviation.dtype)
    # Not read before the first iteration has replaced them.
    start = GaussianMixture.trusted(
        share,
        jnp.zeros((graph.num_edges, num_components, model.dim), deviation.dtype),
        jnp.ones((graph.num_edges, model.dim), deviation.dtype),
    )

    def advance(old: GaussianMixture, turn: tuple[Array, Array]) -> tuple[GaussianMixture, tuple[Array, Array, Array]]:
        number, key = turn
        present = (cavity < graph.num_edges) & (number > 0)
        keys = jax.random.split(key, (2, graph.num_edges))
        padded = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), old)

        def sample(edge: tuple[Array, ...]) -> tuple[Array, Array]:
            key, sender, incoming, present = edge
            factors = jax.tree.map(lambda a, b: jnp.concatenate([a[incoming], b[sender][None]]), padded, local)
            return sampler.draw(key, factors, num_components, jnp.append(present, True))

        drawn, bounds = jax.lax.map(sample, (keys[0], graph.senders, cavity, present), batch_size=BATCH)
        log_weights = _local_weights(model, graph, evidence, local, drawn)
        new = _propagate(model, graph, keys[1], drawn, log_weights, least)
        effective = 1 / (num_components * jnp.sum(new.weights**2, axis=1))
        residual = jnp.where(number > 0, _largest_distance(old, new), 1)  # from the constant message at first
        mix = lambda: _mix(keys[1], old, new, damping, least)
        messages = jax.lax.cond((damping > 0) & (number > 0), mix, lambda: new)
        return messages, (residual, jnp.mean(bounds), jnp.mean(effective))

    turns = jnp.arange(num_iters, dtype=jnp.int32), jax.random.split(key, num_iters)
    messages, (residuals, bounds, effective), count, converged = iterate(advance, start, turns, num_iters, tol)
    return NonparametricSolution(messages, converged, count, residuals, bounds, effective)


def _largest_distance(old: GaussianMixture, new: GaussianMixture) -> Float[Array, ""]:
    """Return the largest |new - old| / sqrt(|new|^2 + |old|^2) of mixtures stacked on a first axis, in the 2-norm."""

    def log_inner(p: GaussianMixture, q: GaussianMixture) -> Array:
        width = jnp.sqrt(p.bandwidth**2 + q.bandwidth**2)
        weights = jnp.log(p.weights)[:, None] + jnp.log(q.weights)[None]
        return jax.nn.logsumexp(log_normal(p.means, q.means, width) + weights)

    def distance(pair: tuple[GaussianMixture, GaussianMixture]) -> Array:
        p, q = pair
        cosine = 2 * jnp.exp(log_inner(p, q) - jnp.logaddexp(log_inner(p, p), log_inner(q, q)))
        return jnp.sqrt(jnp.maximum(1 - cosine, 0))

    # No derivative: that of the square root at 0 is infinite.
    return jnp.max(jax.lax.map(distance, jax.lax.stop_gradient((old, new)), batch_size=BATCH))


def _mix(keys: Array, old: GaussianMixture, new: GaussianMixture, damping: Array, least: Array) -> GaussianMixture:
    """Resample the mixtures damping * old + (1 - damping) * new, stacked on a first axis, to the old number."""

    def one(edge: tuple[Array, GaussianMixture, GaussianMixture]) -> GaussianMixture:
        key, p, q = edge
        count = len(p.weights)
        weights = jnp.concatenate([damping * p.weights, (1 - damping) * q.weights])
        chosen = _systematic(jax.random.fold_in(key, 2**31 - 1), weights, count)
        kept, share = jnp.concatenate([p.means, q.means])[chosen], jnp.full(count, 1 / count, weights.dtype)
        return GaussianMixture.trusted(share, kept, rule_of_thumb(kept, share, least))

    return jax.lax.map(one, (keys, old, new), batch_size=BATCH)


def _local_mixtures(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, key: Array, count: int
) -> tuple[GaussianMixture, Array]:
    """Return a mixture for psi_s local_s of every node, and the standard deviation of all psi_s [dim]."""
    keys = jax.random.split(key, (2, graph.num_nodes))

    def draw(node: tuple[Array, Array]) -> Array:
        key, kind = node
        return of_type(model.nodes, kind).sample(key, OVERSAMPLING * count)

    drawn = jax.lax.map(draw, (keys[0], graph.node_type), batch_size=BATCH)
    logs = log_local(model, graph, evidence, drawn)
    share = jnp.full(count, 1 / count, drawn.dtype)
    none = jnp.zeros(model.dim, drawn.dtype)

    def choose(node: tuple[Array, Array, Array]) -> GaussianMixture:
        key, x, log = node
        kept = x[_systematic(key, jax.nn.softmax(log), count)]
        return GaussianMixture.trusted(share, kept, rule_of_thumb(kept, share, none))

    return jax.vmap(choose)((keys[1], drawn, logs)), jnp.std(drawn, axis=(0, 1))


def _local_weights(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    local: GaussianMixture,
    drawn: Float[Array, "edge sample dim"],
) -> Float[Array, "edge sample"]:
    """Return log (psi_t local_t / its mixture) at the samples of the sender of every edge."""
    total = jnp.zeros(drawn.shape[:2], drawn.dtype)
    # One outgoing message of each node at a time: likelihoods take points of every node.
    numbers = _incident_edges(graph.senders, graph.num_nodes, _largest_degree(graph), graph.num_edges)
    padded = jnp.concatenate([drawn, drawn[:1]])

    def weigh(total: Array, edges: Array) -> tuple[Array, None]:
        logs = log_nodes(model, graph, evidence, padded[edges])
        logs = logs - jax.lax.map(lambda one: one[0].log_density(one[1]), (local, padded[edges]), batch_size=BATCH)
        return total.at[edges].set(logs, mode="drop"), None

    return jax.lax.scan(weigh, total, numbers.T)[0]


def _propagate(
    model: PairwiseMRF, graph: Graph, keys: Array, drawn: Array, log_weights: Array, least: Array
) -> GaussianMixture:
    """Draw values of the receivers given those of the senders, and return their kernel density estimates."""

    def draw(edge: tuple[Array, ...]) -> GaussianMixture:
        key, direction, x, logs = edge
        proposed, ratio = of_type(model.edges, direction).propose(key, x)
        weights = jax.nn.softmax(logs + ratio)
        return GaussianMixture.trusted(weights, proposed, rule_of_thumb(proposed, weights, least))

    return jax.lax.map(draw, (keys, directions(graph), drawn, log_weights), batch_size=BATCH)


def _systematic(key: Array, weights: Float[Array, " sample"], count: int) -> Int[Array, " kept"]:
    """Return the indices of `count` samples, by systematic resampling."""
    levels = (jnp.arange(count, dtype=weights.dtype) + jax.random.uniform(key, (), weights.dtype)) / count
    chosen = jnp.searchsorted(jnp.cumsum(weights), levels)
    return jnp.minimum(chosen, len(weights) - 1)


def _largest_degree(graph: Graph) -> int:
    return max(degree for _, _, degree in graph.node_types)


def _incident_edges(ends: Int[Array, " edge"], num_nodes: int, width: int, empty: int) -> Int[Array, "_ slot"]:
    """Return the directed edges with each node at this end [node, position], padded with the number of edges."""
    order = jnp.argsort(ends).astype(jnp.int32)
    nodes, slot = jnp.arange(num_nodes, dtype=ends.dtype), jnp.arange(width, dtype=jnp.int32)
    first, last = (jnp.searchsorted(ends[order], nodes, side).astype(jnp.int32)[:, None] for side in ("left", "right"))
    position = first + slot[None]
    return jnp.where(position < last, order[jnp.minimum(position, max(len(ends) - 1, 0))], empty)


def _cavity_edges(graph: Graph) -> Int[Array, "edge slot"]:
    """Return, for each directed edge, the other messages to its sender, padded with the number of edges."""
    width = _largest_degree(graph)
    slots = _incident_edges(graph.receivers, graph.num_nodes, width, graph.num_edges)[graph.senders]
    slots = jnp.where(slots == graph.reverse[:, None], graph.num_edges, slots)
    return jnp.sort(slots, axis=1)[:, : max(width - 1, 0)]


@public
def beliefs(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, solution: NonparametricSolution, points: Numbers
) -> Belief:
    """Return the beliefs psi_s local_s prod_u m_us of every node on common points.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`, or None.
        solution: the solution of `run`.
        points: candidates [point, *dim], for all nodes.

    Returns:
        The beliefs [node, point], normalized over the points.

    Raises:
        ValueError: points of another shape than the variables, a solution of another graph, or a belief that is 0 at
            all points.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import nonparametric, pairwise
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(jax.random.key(0), kbp.pool(graph, x), num_centers=20)
        >>> few = {"num_components": 8, "num_iters": 2, "sampler": nonparametric.GibbsSampler()}
        >>> solution = nonparametric.run(model, graph, key=jax.random.key(1), **few)
        >>> belief = nonparametric.beliefs(model, graph, None, solution, np.linspace(-3, 3, 7))
        >>> np.allclose(belief.weights.sum(axis=1), 1)
        True
    """
    check_problem(model, graph, evidence)
    got, fix = len(solution.messages.weights), "Pass what nonparametric.run returned for this model and graph."
    rule = f"must have {graph.num_edges} messages"
    _checks.require(got == graph.num_edges, "solution", rule, got, fix)
    given, x = candidates(model, points)
    return as_belief(given, _log_beliefs(model, graph, evidence, solution.messages, x))


@jax.jit
def _log_beliefs(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, messages: GaussianMixture, x: Float[Array, "point dim"]
) -> Float[Array, "node point"]:
    own = jnp.broadcast_to(x[None], (graph.num_nodes, *x.shape))
    logs = jax.lax.map(lambda message: message.log_density(x), messages, batch_size=BATCH)
    return log_nodes(model, graph, evidence, own).at[graph.receivers].add(logs)
