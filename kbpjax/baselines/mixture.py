r"""Nonparametric belief propagation: messages are mixtures of Gaussians (Sudderth, Ihler, Freeman, Willsky 2003).

The message from t to s is the density, in x_s, of samples made in three steps:

1. x_t ~ local_t(x_t) psi_t(x_t) prod_{u in G(t) \ s} m_ut(x_t), a product of mixtures, by a sampler;
2. x_s ~ psi_st(. , x_t), one for each x_t;
3. a Gaussian on each x_s, of the width of Silverman's rule of thumb.

psi_t and the known likelihood enter the product as a mixture too, fitted once to `num_components` samples of theirs,
and each x_t has the weight psi_t local_t / that mixture, so that what is smoothed is only where samples are drawn.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax.baselines.mixtures import Mixture, rule_of_thumb
from kbpjax.baselines.multiscale import multiscale
from kbpjax.baselines.pairwise import (
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
from kbpjax.baselines.products import exact, gibbs
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.evidence import Evidence

SPARE = 8
"""Samples of a node's potential for each component of the mixture that stands for its evidence."""


class Exact(eqx.Module):
    """Sample from the exact product, of all combinations of components: for a few components and neighbours.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixture, mixtures
        >>> two = jax.vmap(mixtures.Mixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> draw = jax.jit(mixture.Exact().draw, static_argnums=2)
        >>> samples, bound = draw(jax.random.key(0), two, 1000, jnp.ones(2, bool))
        >>> round(float(samples.mean()), 1), float(bound)
        (1.0, 0.0)
    """

    def draw(self, key: Key[Array, ""], factors: Mixture, num_samples: int, present: Array) -> tuple[Array, Array]:
        """Return samples [sample, dim] and a bound of their error."""
        product, _ = exact(factors, present)
        return product.sample(key, num_samples), jnp.zeros((), factors.means.dtype)


class Gibbs(eqx.Module):
    """Sample from a product by Gibbs sampling of the labels; see `products.gibbs`. Its error is not bounded.

    Args:
        num_sweeps: times that each label is drawn, >= 1.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixture, mixtures
        >>> two = jax.vmap(mixtures.Mixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> draw = jax.jit(mixture.Gibbs(num_sweeps=3).draw, static_argnums=2)
        >>> samples, bound = draw(jax.random.key(0), two, 1000, jnp.ones(2, bool))
        >>> round(float(samples.mean()), 1), float(bound)
        (1.0, nan)
    """

    num_sweeps: int = eqx.field(static=True, converter=_checks.whole, default=5)

    def __check_init__(self) -> None:
        _checks.require_count("num_sweeps", self.num_sweeps)

    def draw(self, key: Key[Array, ""], factors: Mixture, num_samples: int, present: Array) -> tuple[Array, Array]:
        """Return samples [sample, dim], and NaN for a bound of their error."""
        drawn = gibbs(key, factors, num_samples, num_sweeps=self.num_sweeps, present=present)
        return drawn, jnp.full((), jnp.nan, factors.means.dtype)


class Multiscale(eqx.Module):
    """Sample from a product by KD-trees, to an error eps; see `multiscale.multiscale`.

    Args:
        eps: error at which to stop refining, > 0.
        capacity: tuples of tree nodes to split at each level, >= 1; decides the time.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from kbpjax.baselines import mixture, mixtures
        >>> two = jax.vmap(mixtures.Mixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
        >>> draw = jax.jit(mixture.Multiscale(eps=0.01).draw, static_argnums=2)
        >>> samples, bound = draw(jax.random.key(0), two, 1000, jnp.ones(2, bool))
        >>> round(float(samples.mean()), 1), bool(bound <= 0.01)
        (1.0, True)
    """

    eps: float = eqx.field(static=True, default=1e-3)
    capacity: int = eqx.field(static=True, converter=_checks.whole, default=32)

    def __check_init__(self) -> None:
        _checks.require_number("eps", self.eps, above=0)
        _checks.require_count("capacity", self.capacity)

    def draw(self, key: Key[Array, ""], factors: Mixture, num_samples: int, present: Array) -> tuple[Array, Array]:
        """Return samples [sample, dim] and a bound of their error."""
        return multiscale(key, factors, num_samples, eps=self.eps, capacity=self.capacity, present=present)


Sampler = Exact | Gibbs | Multiscale


class MixtureSolution(eqx.Module):
    """The outcome of `run`.

    Attributes:
        messages: the message of each directed edge, a mixture over the values of its receiver, stacked [edge, ...].
        num_iters: iterations done.
        bounds: mean over the messages of the bound of the sampler's error, in each iteration [iteration]; NaN where the
            sampler has none.
        effective: mean over the messages of the share of effective samples, 1 / sum weights^2 / number, in each
            iteration [iteration]; near 0, few samples carry a message.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import mixture, pairwise
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> few = {"num_components": 8, "num_iters": 2, "sampler": mixture.Gibbs()}
        >>> solution = mixture.run(model, graph, key=jax.random.key(1), **few)
        >>> int(solution.num_iters), solution.effective.shape, solution.messages.means.shape
        (2, (2,), (4, 8, 1))
    """

    messages: Mixture
    num_iters: Int[Array, ""]
    bounds: Float[Array, " iteration"]
    effective: Float[Array, " iteration"]


def run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None = None,
    *,
    key: Key[Array, ""],
    num_components: int = 30,
    num_iters: int = 10,
    sampler: Sampler = Multiscale(),
    least_bandwidth: ScalarLike = 0.1,
) -> MixtureSolution:
    """Run nonparametric belief propagation, all messages at once.

    Args:
        model: the model.
        graph: the graph; a product has as many factors as the largest degree, and `Multiscale` costs 2 to that power.
        evidence: known likelihoods, or None.
        key: random key.
        num_components: components of each message, >= 1.
        num_iters: iterations, >= 1.
        sampler: `Multiscale(eps, capacity)`, `Gibbs(num_sweeps)` or `Exact()`.
        least_bandwidth: smallest bandwidth, > 0, as a share of the standard deviation of samples of the node
            potentials. The rule of thumb alone gives samples that agree hardly any width, and what they agree on is
            certain ever after.

    Raises:
        ValueError: an option out of range, no key, a graph without edges, types that the model has no potentials for,
            or evidence that is learned.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import mixture, pairwise
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> few = {"num_components": 8, "num_iters": 2, "sampler": mixture.Gibbs()}
        >>> solution = mixture.run(model, graph, key=jax.random.key(1), **few)
        >>> mixture.beliefs(model, graph, None, solution, np.linspace(-3, 3, 7)).weights.shape
        (3, 7)
    """
    check_problem(model, graph, evidence)
    fix = "Without messages a belief is psi_s local_s: exponentiate kbpjax.baselines.pairwise.log_nodes."
    _checks.require(graph.num_edges > 0, "graph", "must have an edge", "none", fix)
    _checks.require_key(key)
    _checks.require_count("num_components", num_components)
    _checks.require_count("num_iters", num_iters)
    _checks.require_number("least_bandwidth", least_bandwidth, above=0)
    fix = "Pass Multiscale(eps), Gibbs(num_sweeps) or Exact()."
    _checks.require(isinstance(sampler, Sampler), "sampler", "must be a sampler of products", repr(sampler), fix)
    return _run(model, graph, evidence, key, jnp.asarray(least_bandwidth), num_components, num_iters, sampler)


@partial(jax.jit, static_argnames=("num_components", "num_iters", "sampler"))
def _run(
    model: PairwiseMRF,
    graph: Graph,
    evidence: Evidence | None,
    key: Array,
    least: Array,
    num_components: int,
    num_iters: int,
    sampler: Sampler,
) -> MixtureSolution:
    key, own_key = jax.random.split(key)
    own, spread = _evidence_mixtures(model, graph, evidence, own_key, num_components)
    least = least.astype(spread.dtype) * spread
    own = Mixture(own.weights, own.means, jnp.maximum(own.bandwidth, least[None]))
    inbox = _others(graph)
    share = jnp.full((graph.num_edges, num_components), 1 / num_components, spread.dtype)
    nothing = Mixture(
        share,
        jnp.zeros((graph.num_edges, num_components, model.dim), spread.dtype),
        jnp.ones((graph.num_edges, model.dim), spread.dtype),
    )

    def iterate(messages: Mixture, turn: tuple[Array, Array]) -> tuple[Mixture, tuple[Array, Array]]:
        number, key = turn
        heard = (inbox < graph.num_edges) & (number > 0)
        keys = jax.random.split(key, (2, graph.num_edges))
        padded = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), messages)

        def sample(edge: tuple[Array, ...]) -> tuple[Array, Array]:
            key, sender, slots, present = edge
            factors = jax.tree.map(lambda a, b: jnp.concatenate([a[slots], b[sender][None]]), padded, own)
            return sampler.draw(key, factors, num_components, jnp.append(present, True))

        drawn, bounds = jax.lax.map(sample, (keys[0], graph.senders, inbox, heard), batch_size=BATCH)
        log_weights = _evidence_weights(model, graph, evidence, own, drawn)
        messages = _pass_on(model, graph, keys[1], drawn, log_weights, least)
        effective = 1 / (num_components * jnp.sum(messages.weights**2, axis=1))
        return messages, (jnp.mean(bounds), jnp.mean(effective))

    turns = jnp.arange(num_iters, dtype=jnp.int32), jax.random.split(key, num_iters)
    messages, (bounds, effective) = jax.lax.scan(iterate, nothing, turns)
    return MixtureSolution(messages, jnp.int32(num_iters), bounds, effective)


def _evidence_mixtures(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, key: Array, count: int
) -> tuple[Mixture, Array]:
    """Return a mixture of `count` components for psi_s local_s of every node, and the spread of psi_s [dim]."""
    keys = jax.random.split(key, (2, graph.num_nodes))

    def draw(node: tuple[Array, Array]) -> Array:
        key, kind = node
        return of_type(model.nodes, kind).sample(key, SPARE * count)

    drawn = jax.lax.map(draw, (keys[0], graph.node_type), batch_size=BATCH)
    logs = log_local(model, graph, evidence, drawn)
    share = jnp.full(count, 1 / count, drawn.dtype)
    none = jnp.zeros(model.dim, drawn.dtype)

    def choose(node: tuple[Array, Array, Array]) -> Mixture:
        key, x, log = node
        kept = x[_systematic(key, jax.nn.softmax(log), count)]
        return Mixture(share, kept, rule_of_thumb(kept, share, none))

    return jax.vmap(choose)((keys[1], drawn, logs)), jnp.std(drawn, axis=(0, 1))


def _evidence_weights(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, own: Mixture, drawn: Float[Array, "edge sample dim"]
) -> Float[Array, "edge sample"]:
    """Return log (psi_t local_t / the mixture that stood for it) at the samples of the sender of every edge."""
    total = jnp.zeros(drawn.shape[:2], drawn.dtype)
    # One outgoing message of each node at a time, so that functions of points of each node's own can be asked.
    numbers = _places(graph.senders, graph.num_nodes, _largest_degree(graph), graph.num_edges)
    padded = jnp.concatenate([drawn, drawn[:1]])

    def ask(total: Array, edges: Array) -> tuple[Array, None]:
        logs = log_nodes(model, graph, evidence, padded[edges])
        logs = logs - jax.lax.map(lambda one: one[0].log_density(one[1]), (own, padded[edges]), batch_size=BATCH)
        return total.at[edges].set(logs, mode="drop"), None

    return jax.lax.scan(ask, total, numbers.T)[0]


def _pass_on(model: PairwiseMRF, graph: Graph, keys: Array, drawn: Array, log_weights: Array, least: Array) -> Mixture:
    """Draw values of the receivers given those of the senders, and put Gaussians on them."""

    def pass_on(edge: tuple[Array, ...]) -> Mixture:
        key, direction, x, logs = edge
        proposed, ratio = of_type(model.edges, direction).propose(key, x)
        weights = jax.nn.softmax(logs + ratio)
        return Mixture(weights, proposed, rule_of_thumb(proposed, weights, least))

    return jax.lax.map(pass_on, (keys, directions(graph), drawn, log_weights), batch_size=BATCH)


def _systematic(key: Array, weights: Float[Array, " sample"], count: int) -> Int[Array, " kept"]:
    """Choose `count` samples in proportion to their weights, evenly."""
    places = (jnp.arange(count, dtype=weights.dtype) + jax.random.uniform(key, (), weights.dtype)) / count
    chosen = jnp.searchsorted(jnp.cumsum(weights), places)
    return jnp.minimum(chosen, len(weights) - 1)


def _largest_degree(graph: Graph) -> int:
    return max(degree for _, _, degree in graph.node_types)


def _places(ends: Int[Array, " edge"], num_nodes: int, width: int, empty: int) -> Int[Array, "_ slot"]:
    """List the directed edges with each node at this end [node, slot], padded with the number of edges."""
    order = jnp.argsort(ends).astype(jnp.int32)
    nodes, slot = jnp.arange(num_nodes, dtype=ends.dtype), jnp.arange(width, dtype=jnp.int32)
    first, last = (jnp.searchsorted(ends[order], nodes, side).astype(jnp.int32)[:, None] for side in ("left", "right"))
    place = first + slot[None]
    return jnp.where(place < last, order[jnp.minimum(place, max(len(ends) - 1, 0))], empty)


def _others(graph: Graph) -> Int[Array, "edge slot"]:
    """List, for each directed edge, the other messages into its sender, padded with the number of edges."""
    width = _largest_degree(graph)
    slots = _places(graph.receivers, graph.num_nodes, width, graph.num_edges)[graph.senders]
    slots = jnp.where(slots == graph.reverse[:, None], graph.num_edges, slots)
    return jnp.sort(slots, axis=1)[:, : max(width - 1, 0)]


def beliefs(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, solution: MixtureSolution, points: Numbers
) -> Belief:
    """Evaluate psi_s local_s prod_u m_us of every node on common points.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence that `run` had, or None.
        solution: what `run` returned.
        points: candidates [point, *dim].

    Raises:
        ValueError: points of another shape than the variables, a solution of another graph, or a belief that is 0 at
            all points.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> from kbpjax.baselines import mixture, pairwise
        >>> x, graph = np.random.default_rng(0).standard_normal((40, 3)).cumsum(axis=1), kbp.chain_graph(3)
        >>> model = pairwise.fit(kbp.pool(graph, x), jax.random.key(0), num_centres=20)
        >>> few = {"num_components": 8, "num_iters": 2, "sampler": mixture.Gibbs()}
        >>> solution = mixture.run(model, graph, key=jax.random.key(1), **few)
        >>> belief = mixture.beliefs(model, graph, None, solution, np.linspace(-3, 3, 7))
        >>> np.allclose(belief.weights.sum(axis=1), 1)
        True
    """
    check_problem(model, graph, evidence)
    got, fix = len(solution.messages.weights), "Pass what mixture.run returned for this model and graph."
    rule = f"must have {graph.num_edges} messages"
    _checks.require(got == graph.num_edges, "solution", rule, got, fix)
    given, x = candidates(model, points)
    return as_belief(given, _log_beliefs(model, graph, evidence, solution.messages, x))


@jax.jit
def _log_beliefs(
    model: PairwiseMRF, graph: Graph, evidence: Evidence | None, messages: Mixture, x: Float[Array, "point dim"]
) -> Float[Array, "node point"]:
    own = jnp.broadcast_to(x[None], (graph.num_nodes, *x.shape))
    logs = jax.lax.map(lambda message: message.log_density(x), messages, batch_size=BATCH)
    return log_nodes(model, graph, evidence, own).at[graph.receivers].add(logs)
