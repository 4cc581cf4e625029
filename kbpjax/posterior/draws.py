"""Joint answers of a posterior: draws, expectations of functions of several nodes, the most probable joint state."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import quick_jit, show_fields
from kbpjax._public import Checked, public
from kbpjax.graphs.graph import Graph
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.cycles import NUM_TREES, Order, best, draw, order_of
from kbpjax.posterior.evidence import expand
from kbpjax.posterior.joint import own_candidates, points_of
from kbpjax.posterior.posterior import Posterior
from kbpjax.posterior.summaries import (
    check_belief,
    chosen_points,
    each_node,
    keep_nan,
    node_expectations,
    node_modes,
    refuse_nan,
    with_labels,
)

NUM_SWEEPS = 10
"""Sweeps of Gibbs sampling on graphs with cycles, by default (docs/joint.md)."""

MODE_TREES = 4
"""Number of spanning trees from whose joint modes the best joint state of a graph with cycles is searched."""

LEVELS = 256
"""Number of evenly spaced candidates from which on they are not the levels of the data."""


@public
def sample(
    belief: Posterior | Belief | Mapping[int, Belief],
    key: PRNGKeyArray,
    num_samples: int,
    *,
    joint: bool | None = None,
    num_sweeps: int | None = None,
) -> Any:
    r"""Return draws from a posterior: joint draws of all nodes, from which any joint question can be answered.

    On a forest, the draws are exact: their margins and those of all edges are the beliefs, and all else follows from
    conditional independence. On a graph with cycles, draws from random spanning trees, whose margins are the beliefs,
    are followed by sweeps of Gibbs sampling on the potentials of the messages; margins are then approximately the
    beliefs. Draws of numbers lie between the candidates, unless these are the levels of the data. A clamped node keeps
    its value. Draws have no gradient; `expectation` of a function of several nodes has one.

    Args:
        belief: the posterior, or beliefs, whose nodes are drawn independently of each other.
        key: random key.
        num_samples: number of draws, >= 1.
        joint: False: each node by itself, from its belief. None: True for a posterior.
        num_sweeps: number of sweeps on a graph with cycles, >= 0. None: 10.

    Returns:
        The draws [sample, node, *dim]; for several node types {node type: draws}. For a posterior with batch axes,
        these come first.

    Raises:
        ValueError: an invalid key, num_samples or num_sweeps out of range; joint draws of beliefs, of a posterior of
            maxima, or of a traced graph with cycles.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.1))
        >>> draws = kbp.sample(kbp.infer(model, graph), jax.random.key(0), 1000)
        >>> draws.shape, bool(np.corrcoef(draws[:, 0], draws[:, 2])[0, 1] > 0.9)
        ((1000, 3), True)
        >>> bool((draws.max(axis=1) > 0.5).mean() < 0.4)  # probability that any of the three is above 0.5
        True
    """
    _checks.require_key(key)
    by_type = (
        belief.by_type if isinstance(belief, Posterior) else belief if isinstance(belief, Mapping) else {0: belief}
    )
    _checks.require_draws(num_samples, sum(one.weights[..., 0].size * math.prod(one.dim) for one in by_type.values()))
    joint = _is_joint(belief, joint)
    if not joint:
        return _independent(key, belief, num_samples)
    assert isinstance(belief, Posterior)
    for one in belief.by_type.values():
        refuse_nan(one)
    drawn = _joint(belief, key, num_samples, _sweeps(num_sweeps))
    return with_labels(belief, drawn)


def _is_joint(belief: Any, joint: bool | None) -> bool:
    fix = "Pass the posterior of kbpjax.infer, or joint=False."
    is_posterior = isinstance(belief, Posterior)
    _checks.require(is_posterior or not joint, "joint", "must be False for beliefs", "True", fix)
    return is_posterior if joint is None else joint


def _sweeps(num_sweeps: int | None) -> int:
    if num_sweeps is None:
        return NUM_SWEEPS
    ok = _checks.is_whole(num_sweeps) and num_sweeps >= 0
    _checks.require(ok, "num_sweeps", "must be an integer >= 0", repr(num_sweeps), "Pass for instance 10.")
    return int(num_sweeps)


def _independent(key: PRNGKeyArray, belief: Any, num_samples: int) -> Any:
    if isinstance(belief, Posterior):
        for one in belief.by_type.values():
            refuse_nan(one)
        keys = jax.random.split(key, belief.batch) if belief.batch else key
        return with_labels(belief, _apart(belief, keys, num_samples))
    if isinstance(belief, Mapping):
        return {v: _independent(jax.random.fold_in(key, v), one, num_samples) for v, one in belief.items()}
    check_belief(belief)
    refuse_nan(belief)
    places, second = _places(key, belief, num_samples)
    return with_labels(belief, jnp.swapaxes(_between(belief, places, second, jnp.array(False)), 0, 1))


@partial(jax.jit, static_argnames="num_samples")
def _apart(posterior: Posterior, keys: Array, num_samples: int) -> Any:
    """Return draws of each node by itself."""

    def of_case(posterior: Posterior, key: PRNGKeyArray) -> Any:
        levels, values = _levels(posterior), {}
        for v, belief in posterior.by_type.items():
            own = jax.random.fold_in(key, v) if len(levels) > 1 else key
            places, second = _places(own, belief, num_samples)
            drawn = _with_clamps(posterior, v, _between(belief, places, second, levels[v]))
            values[v] = jnp.swapaxes(drawn, 0, 1)
        return values if len(values) > 1 else next(iter(values.values()))

    return _each_case(of_case, posterior.batch)(posterior, keys)


@partial(jax.jit, static_argnames="num_samples")
def _places(key: PRNGKeyArray, belief: Belief, num_samples: int) -> tuple[Int[Array, "node draw"], PRNGKeyArray]:
    """Return the places of independent draws among the candidates, and a key for what is left to be drawn."""
    first, second = jax.random.split(key)
    logits = jnp.log(belief.weights)
    return jax.random.categorical(first, logits, axis=-1, shape=(num_samples, len(logits))).T, second


@jax.jit
def _between(belief: Belief, places: Array, key: PRNGKeyArray, levels: Array) -> Array:
    """Return a random value in the interval of each chosen candidate [node, ..., *dim]; the candidates of levels.

    Args:
        belief: the beliefs.
        places: places of the chosen candidates [node, ...].
        key: random key.
        levels: whether the candidates are levels.
    """
    chosen = chosen_points(belief, places)
    if belief.lengths is None or belief.num_points < 2:
        return keep_nan(belief, chosen)
    low, high = (each_node(belief, lambda one, at, end=end: _ends(one.points)[end][at], places) for end in (0, 1))
    share = jax.random.uniform(key, places.shape, low.dtype)
    value = (low + share * (high - low)).reshape(chosen.shape)
    return keep_nan(belief, jnp.where(levels, chosen, value))


def _ends(points: Array) -> tuple[Array, Array]:
    """Return the ends of the intervals of scalar points, halfway to the next ones; none is outside their range."""
    flat = points.reshape(-1)
    order = jnp.argsort(flat)
    ranked = flat[order]
    middle = (ranked[1:] + ranked[:-1]) / 2
    low, high = jnp.concatenate([ranked[:1], middle]), jnp.concatenate([middle, ranked[-1:]])
    return jnp.zeros_like(flat).at[order].set(low), jnp.zeros_like(flat).at[order].set(high)


def _levels(posterior: Posterior) -> dict[int, Array]:
    """Return whether the candidates of each node type are levels: evenly spaced data, fewer than 256."""
    return {v: _are_levels(x, posterior.own_points) for v, x in points_of(posterior).items()}


def _are_levels(points: Array, of_model: bool) -> Array:
    scalar = points.shape[1:] in ((), (1,)) and jnp.issubdtype(points.dtype, jnp.floating)
    if not (of_model and scalar and 1 < len(points) < LEVELS):
        return jnp.array(False)
    gaps = jnp.diff(jnp.sort(points.reshape(-1)))
    steps = gaps / jnp.min(gaps)
    return jnp.all(jnp.abs(steps - jnp.round(steps)) < 1e-3)


def _joint(posterior: Posterior, key: PRNGKeyArray, num_samples: int, num_sweeps: int) -> Any:
    order = _order(posterior, key, num_samples)
    keys = jax.random.split(key, posterior.batch) if posterior.batch else key
    return _drawn(posterior, order, keys, num_samples, num_sweeps)


@partial(quick_jit, static_argnames=("num_samples", "num_sweeps"))
def _drawn(posterior: Posterior, order: Order, keys: Array, num_samples: int, num_sweeps: int) -> Any:
    def of_case(posterior: Posterior, key: PRNGKeyArray) -> Any:
        first, second = jax.random.split(key)
        posterior = own_candidates(posterior)
        places, _ = draw(posterior, order, first, num_samples, num_sweeps)
        return _values(posterior, places, second)

    return jax.lax.stop_gradient(_each_case(of_case, posterior.batch)(posterior, keys))


def _each_case(function: Callable[..., Any], batch: tuple[int, ...]) -> Callable[..., Any]:
    """Return a function that is mapped over the batch axes of its arguments."""
    for _ in batch:
        function = jax.vmap(function)
    return function


def _order(posterior: Posterior, key: PRNGKeyArray, num_samples: int) -> Order:
    """Return the order of the draws; the trees of a traced key are always the same."""
    seed = 0 if _checks.is_traced(key) else _checks.host_seed(key)
    return order_of(posterior.graph, min(num_samples, NUM_TREES), seed)


def _values(posterior: Posterior, places: Int[Array, "node draw"], key: PRNGKeyArray | None) -> Any:
    """Return the values of drawn candidates [draw, node, *dim], by node type if there are several; those of clamps."""
    levels, values = _levels(posterior), {}
    for v, belief in posterior.by_type.items():
        own = places[posterior.graph.nodes_of_type(v)]
        if key is None:
            drawn = keep_nan(belief, chosen_points(belief, own))
        else:
            drawn = _between(belief, own, jax.random.fold_in(key, v), levels[v])
        values[v] = jnp.swapaxes(_with_clamps(posterior, v, drawn), 0, 1)
    return values if len(values) > 1 else next(iter(values.values()))


def _with_clamps(posterior: Posterior, node_type: int, drawn: Array) -> Array:
    """Return drawn values [node, draw, *dim] with those of clamped nodes."""
    evidence, model = posterior.evidence, posterior.model
    if evidence is None or node_type not in evidence.values:
        return drawn
    clamped, values = evidence.values[node_type]
    if node_type in model.margins:
        values = model.margins[node_type].of_nodes(len(values)).restored(values)
    return jnp.where(expand(clamped, drawn.ndim), values[:, None].astype(drawn.dtype), drawn)


@public
def mode(belief: Posterior | Belief | Mapping[int, Belief], *, joint: bool = False) -> Any:
    """Return the mode of each node, or the most probable values of all nodes together.

    On a forest, the joint mode is exact among the candidates (the Viterbi path of a chain). On a graph with cycles, it
    is the best that was found from the joint modes of four spanning trees, each improved node by node: no single
    node can be changed to a more probable candidate, and better ones may exist.

    Args:
        belief: the posterior, or beliefs.
        joint: False: the candidate of largest belief of each node; of numbers, of largest density. True: the candidates
            of all nodes with the largest joint density, of a posterior.

    Returns:
        The modes [node, *dim]; for several node types {node type: modes}; with the batch axes of a posterior.

    Raises:
        ValueError: a joint mode of beliefs, of a posterior of maxima, or of a traced graph with cycles.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.2, 0.5, 0.3]]))
        >>> kbp.mode(belief).tolist()
        [1.0]
        >>> from kbpjax.baselines import discrete
        >>> model = discrete.from_potentials([0, 1, 2], [1.0, 1.0, 1.0], [[[0, 3, 3], [4, 0, 0], [1, 1, 0]]])
        >>> posterior = kbp.infer(model, kbp.chain_graph(2))
        >>> kbp.mode(posterior).tolist(), kbp.mode(posterior, joint=True).tolist()  # (0, 0) is impossible
        ([0, 0], [1, 0])
    """
    if not joint:
        return node_modes(belief)
    _is_joint(belief, joint)
    assert isinstance(belief, Posterior)
    for one in belief.by_type.values():
        refuse_nan(one)
    order = order_of(belief.graph, MODE_TREES, 0)
    return with_labels(belief, _joint_modes(belief, order))


@quick_jit
def _joint_modes(posterior: Posterior, order: Order) -> Any:
    def of_case(posterior: Posterior) -> Any:
        posterior = own_candidates(posterior)
        return _values(posterior, best(posterior, order, NUM_SWEEPS)[:, None], None)

    axis = len(posterior.batch)
    modes = _each_case(of_case, posterior.batch)(posterior)
    return jax.tree.map(lambda x: jnp.squeeze(x, axis), modes)


class Estimate(Checked):
    """An expectation, estimated from draws.

    Attributes:
        value: the mean over draws.
        error: its standard error, of the number of draws only [*value].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kbp.Estimate(jnp.array(0.25), jnp.array(0.01)).value.tolist()
        0.25
    """

    requires_finite = True

    value: Float[Array, "*value"]
    error: Float[Array, "*value"]

    __repr__ = show_fields


@public
def expectation(
    belief: Posterior | Belief | Mapping[int, Belief],
    fn: Callable[[Array], Array] | Mapping[int, Callable[[Array], Array]],
    nodes: Numbers | None = None,
    *,
    key: PRNGKeyArray | None = None,
    num_samples: int = 1000,
    num_sweeps: int | None = None,
) -> Any:
    r"""Return E[fn(X) | evidence] of each node, or of a function of several nodes together.

    Of each node, it is the sum over candidates. Of several nodes, it is the mean over joint draws (`sample`), with its
    standard error: probabilities, such as that of a path below a threshold, are expectations of 0 and 1.

    The gradient of the mean over draws is that of the expectation, without bias on forests (score function):

    $$\nabla E[f] = E\big[\nabla f + (f - E[f])\, \nabla \log p\big].$$

    Args:
        belief: the posterior; for nodes by themselves, also beliefs.
        fn: function with values of any fixed shape: of a point [*dim], or of the values of the `nodes` [some, *dim]. Of
            labels, their codes. For nodes by themselves, also {node type: function}.
        nodes: node numbers [some], of types whose values have one shape; None: each node by itself.
        key: random key of the draws. None: `jax.random.key(0)`.
        num_samples: number of draws, >= 2.
        num_sweeps: sweeps on graphs with cycles, as in `sample`.

    Returns:
        The expectations [node, *value], for several node types {node type: expectations}; with `nodes` an `Estimate`.

    Raises:
        ValueError: `fn` is not a function; node numbers out of range; as `sample`.

    Examples:
        >>> import jax.numpy as jnp, numpy as np, kbpjax as kbp
        >>> belief = kbp.Belief(jnp.array([-1.0, 0.0, 1.0]), jnp.array([[0.25, 0.5, 0.25]]))
        >>> kbp.expectation(belief, lambda x: x**2).tolist()
        [0.5]
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> posterior = kbp.infer(kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.1)), graph)
        >>> above = kbp.expectation(posterior, lambda path: path.max() > 0.5, nodes=[0, 1, 2])
        >>> bool(0.2 < above.value < 0.35), bool(above.error < 0.02)
        (True, True)
    """
    if nodes is None:
        return node_expectations(belief, fn)
    fix = "Pass the posterior of kbpjax.infer, or leave nodes out."
    _checks.require(isinstance(belief, Posterior), "nodes", "must be None for beliefs", "nodes", fix)
    assert isinstance(belief, Posterior)
    _checks.require(callable(fn), "fn", "must be a function of the values of nodes", repr(fn), "Pass one function.")
    _checks.require_count("num_samples", num_samples)
    _checks.require(num_samples >= 2, "num_samples", "must be >= 2", num_samples, "Pass for instance 1000.")
    key = jax.random.key(0) if key is None else key
    _checks.require_key(key)
    chosen = _nodes(belief.graph, nodes)
    order, sweeps = _order(belief, key, num_samples), _sweeps(num_sweeps)
    keys = jax.random.split(key, belief.batch) if belief.batch else key
    types = None
    if not _checks.is_traced(belief.graph):
        types = tuple(np.unique(np.asarray(belief.graph.node_type)[chosen]).tolist())
    drawn, logs = _draws_of_nodes(belief, order, keys, tuple(chosen.tolist()), types, num_samples, sweeps)
    at_draws = jax.vmap(lambda x: _checks.as_array("fn", fn(x)))  # type: ignore[operator]
    return _each_case(lambda drawn, logs: _estimate(at_draws(drawn), logs), belief.batch)(drawn, logs)


@partial(quick_jit, static_argnames=("nodes", "types", "num_samples", "num_sweeps"))
def _draws_of_nodes(
    posterior: Posterior,
    order: Order,
    keys: Array,
    nodes: tuple[int, ...],
    types: tuple[int, ...] | None,
    num_samples: int,
    num_sweeps: int,
) -> tuple[Array, Array]:
    """Return the values of some nodes in joint draws [draw, some, *dim], and the logarithms of probabilities [draw]."""

    def of_case(posterior: Posterior, key: PRNGKeyArray) -> tuple[Array, Array]:
        first, second = jax.random.split(key)
        posterior = own_candidates(posterior)
        places, logs = draw(posterior, order, first, num_samples, num_sweeps)
        drawn = _of_nodes(posterior.graph, _values(posterior, places, second), nodes, types)
        return jax.lax.stop_gradient(drawn), logs

    return _each_case(of_case, posterior.batch)(posterior, keys)


def _estimate(found: Array, logs: Array) -> Estimate:
    """Return the mean of values [draw, ...] and its error; its gradient is that of the expectation."""
    found = found if jnp.issubdtype(found.dtype, jnp.floating) else found.astype(logs.dtype)
    mean, count = jnp.mean(found, axis=0), len(found)
    centered = jax.lax.stop_gradient(found - mean[None])
    score = jnp.tensordot((logs - jax.lax.stop_gradient(logs)).astype(mean.dtype), centered, axes=1) / (count - 1)
    return Estimate.trusted(mean + score, jnp.std(found, axis=0, ddof=1) / math.sqrt(count))


def _nodes(graph: Graph, nodes: Numbers) -> np.ndarray:
    """Return node numbers [some]."""
    chosen = np.asarray(nodes)
    ok = chosen.ndim == 1 and len(chosen) > 0 and np.issubdtype(chosen.dtype, np.integer)
    fix = "Pass a list of node numbers, for instance range(10)."
    _checks.require(ok, "nodes", "must be integers [some]", f"shape {chosen.shape}, {chosen.dtype}", fix)
    outside = chosen[(chosen < 0) | (chosen >= graph.num_nodes)][:3].tolist()
    _checks.require(not outside, "nodes", f"must be among {graph.num_nodes} nodes", outside, "Count from 0.")
    return chosen


def _of_nodes(graph: Graph, drawn: Any, nodes: tuple[int, ...], types: tuple[int, ...] | None) -> Array:
    """Return the drawn values of some nodes [draw, some, *dim]; `types` are theirs, None if the graph is traced."""
    if not isinstance(drawn, dict):
        return drawn[:, list(nodes)]
    drawn = drawn if types is None else {v: drawn[v] for v in types}
    shapes = {x.shape[2:] for x in drawn.values()}
    fix = "Use the draws of kbpjax.sample, which are by node type."
    _checks.require(len(shapes) == 1, "nodes", "must have values of one shape", f"shapes {sorted(shapes)}", fix)
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*drawn.values())
    first = next(iter(drawn.values()))
    every = jnp.zeros((len(first), graph.num_nodes, *first.shape[2:]), dtype)
    for v, x in drawn.items():
        every = every.at[:, graph.nodes_of_type(v)].set(x.astype(dtype))
    return every[:, list(nodes)]
