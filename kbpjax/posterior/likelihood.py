"""Known likelihood functions as evidence: at the evaluation points of a model, and at per-node points."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import log_or_zero
from kbpjax.posterior.evidence import (
    Evidence,
    Model,
    check_likelihoods,
    likelihood_values,
    nothing,
    raise_values,
    raised,
)


@public
def likelihood(
    model: Model,
    graph: Graph,
    fn: Callable[[Array], Array] | Mapping[int, Callable[[Array], Array]],
) -> Evidence:
    """Return the evidence of a known likelihood, exact at all points where it is evaluated.

    Messages use its values at the model's evaluation points only. If it is narrower than their spacing, fit with a
    smaller `eps`. To pass the evidence through `jax.jit` or `jax.vmap`, make fn a `jax.tree_util.Partial` of a function
    and its arrays.

    Args:
        model: the model.
        graph: the graph.
        fn: function from points [point, *dim] to likelihoods >= 0 of any scale [node, point], all 1 for a node without
            evidence; or {node type: function to [node_of_type, point]}, where other types have no evidence. It should
            broadcast over per-node points [node, point, *dim], which `log_belief` and particle methods use; otherwise
            these cost the number of nodes squared.

    Raises:
        ValueError: unknown node types, values of another shape, negative or not finite, or 0 at all evaluation points
            of a node.

    Examples:
        >>> import jax.numpy as jnp, numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> y = jnp.array([0.5, 0.1, -0.5])
        >>> evidence = kbp.likelihood(model, graph, lambda x: jnp.exp(-((y[:, None] - x[None]) ** 2)))
    """
    model.check_types(graph)
    types = [v for v, *_ in graph.node_types]
    if isinstance(fn, Mapping):
        unknown = [v for v in fn if v not in types]
        _checks.require(not unknown, "fn", f"must have node types among {types} as keys", unknown, "Leave them out.")
        functions = {v: _partial(f) for v, f in fn.items()}
    else:
        _checks.require(callable(fn), "fn", "must be a function of points", repr(fn), "Pass fn(points [point, *dim]).")
        functions = {v: Partial(of_all_nodes, _partial(fn), graph.node_type, graph.nodes_of_type(v)) for v in types}
    evidence = nothing(model, graph)
    local, log_scale, checks = evidence.local, jnp.zeros(graph.num_nodes, evidence.local.dtype), []
    for v, function in functions.items():
        nodes, points = graph.nodes_of_type(v), model.points[v]
        if len(points) == 0:  # nonparametric models have no evaluation points: they evaluate it at their particles
            continue
        own = getattr(model, "margins", {}).get(v)
        if own is None:
            values = likelihood_values(function, points, len(nodes), checks).astype(local.dtype)
        else:
            values = own_likelihood_values(function, own.of_nodes(len(nodes)).candidates(points), checks)
            values = values.astype(local.dtype)
        local, log_scale, zero = _with_values(local, log_scale, nodes, values)
        checks.append(((nodes, zero), _check_positive))
    _checks.read_and_check(checks)
    return dataclasses.replace(evidence, local=local, likelihoods=(functions,), log_scale=log_scale)


def _check_positive(values: tuple[np.ndarray, np.ndarray]) -> None:
    empty = values[0][values[1]]
    rule = "must be > 0 at one of the model's evaluation points of each node"
    fix = "Widen it, or fit with a smaller eps, which makes more points."
    _checks.require(len(empty) == 0, "fn", rule, f"0 at all of them for nodes {empty[:5].tolist()}", fix)


def _partial(fn: Callable[[Array], Array]) -> Partial:
    """Return a function as a pytree; a `Partial` is unchanged, since wrapping it would hide its arrays."""
    return fn if isinstance(fn, Partial) else Partial(fn)


@jax.jit
def _with_values(local: Array, log_scale: Array, nodes: Array, values: Array) -> tuple[Array, Array, Array]:
    """Return local factors with those of some nodes replaced, scaled to maximum 1, and a mask of all-zero nodes.

    The logarithms of their maxima are returned in `log_scale`.
    """
    largest = jnp.max(values, axis=-1, keepdims=True)
    zero = largest[:, 0] == 0
    scale = jnp.where(largest > 0, largest, 1)
    log_scale = log_scale.at[nodes].set(jnp.log(scale[:, 0]))
    return local.at[nodes, : values.shape[1]].set(values / scale), log_scale, zero


def of_all_nodes(fn: Callable[[Array], Array], every: Array, nodes: Array, points: Array) -> Array:
    """Return the values of a likelihood of all nodes, for the nodes of one type."""
    values = _checks.as_array("fn", fn(points))
    shape, fix = (len(every), len(points)), "Broadcast it: nodes on axis 0, points on axis 1."
    _checks.require(values.shape == shape, "fn", f"must return values of shape {shape}", values.shape, fix)
    return values[nodes]


def own_likelihood_values(function: Partial, points: Array, checks: list[_checks.Check]) -> Array:
    """Return the values of a likelihood at points of each node [node, point, *dim]; append their check to `checks`."""
    try:
        values = _pointwise(function, points)
    except jax.errors.TracerArrayConversionError:  # a function of NumPy, which needs known points
        values = jnp.stack([jnp.asarray(function(one))[node] for node, one in enumerate(points)])
    checks.append((values, check_likelihoods))
    return values


def pointwise_log_likelihoods(
    evidence: Evidence | None, node_type: int, points: Shaped[Array, "node own *dim"]
) -> Float[Array, "node own"]:
    """Return the sum of the logarithms of known likelihoods at per-node points.

    Args:
        evidence: the evidence, or None.
        node_type: the node type.
        points: points of each of its nodes [node_of_type, own, *dim].
    """
    floating = jnp.issubdtype(points.dtype, jnp.floating)
    total = jnp.zeros(points.shape[:2], points.dtype if floating else jnp.result_type(float))
    for functions in () if evidence is None else evidence.likelihoods:
        if node_type in functions:
            total = total + log_or_zero(_pointwise(functions[node_type], points)).astype(total.dtype)
    return total


def _pointwise(function: Partial, points: Array) -> Array:
    if function.func is raised:
        power, inner = function.args
        return raise_values(_pointwise(inner, points), power)
    if function.func is of_all_nodes:
        fn, every, nodes = function.args
        padded = jnp.zeros((len(every), *points.shape[1:]), points.dtype).at[nodes].set(points)
        return _evaluate(fn, padded)[nodes]
    return _evaluate(function, points)


def _evaluate(fn: Callable[[Array], Array], points: Array) -> Array:
    """Evaluate at all points at once if the function broadcasts; else once per node, for all nodes each time."""
    try:
        broadcasts = jax.eval_shape(fn, points).shape == points.shape[:2]
    except (TypeError, ValueError, IndexError):
        broadcasts = False
    if broadcasts:
        return jnp.asarray(fn(points))
    shape = points.shape[:2]
    got = jax.eval_shape(fn, points[0]).shape
    _checks.require(got == shape, "fn", f"must return values of shape {shape}", got, "Broadcast it.")
    return jax.lax.map(lambda number: fn(points[number])[number], jnp.arange(len(points), dtype=jnp.int32))
