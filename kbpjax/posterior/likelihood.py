"""Likelihoods that are known as functions: at the points of a model, and at points of each node."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks
from kbpjax.graphs.graph import Graph
from kbpjax.inference.operators import log_or_zero
from kbpjax.posterior.evidence import Evidence, Model, likelihood_values, nothing, raise_values, raised


def likelihood(
    model: Model,
    graph: Graph,
    fn: Callable[[Array], Array] | Mapping[int, Callable[[Array], Array]],
) -> Evidence:
    """Turn a known likelihood into evidence, exact at the points where it is asked for.

    Messages see it at the model's evaluation points only: one that is narrower than their spacing wants a smaller
    `eps`. To let evidence pass through `jax.jit` or `jax.vmap` as an argument or a result, make fn a
    `jax.tree_util.Partial` of a function and its arrays.

    Args:
        model: the model.
        graph: the graph.
        fn: function from points [point, *dim] to likelihoods >= 0 of any scale [node, point], all 1 for a node of which
            nothing is known; or {node type: such a function for its nodes [node_of_type, point]}, the other types
            having no evidence. One that also takes points of each node's own, [node, point, *dim], as a function that
            broadcasts does, is asked for these where they are needed (`log_belief`, particles); one that does not
            costs the number of nodes squared there.

    Raises:
        ValueError: unknown node types, values of another shape, negative or not finite, or 0 at all evaluation points
            of a node.

    Examples:
        >>> import jax.numpy as jnp, numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> seen = jnp.array([0.5, 0.1, -0.5])
        >>> evidence = kbp.likelihood(model, graph, lambda x: jnp.exp(-((seen[:, None] - x[None]) ** 2)))
    """
    model.check_types(graph)
    types = [v for v, *_ in graph.node_types]
    if isinstance(fn, Mapping):
        strange = [v for v in fn if v not in types]
        _checks.require(not strange, "fn", f"must have node types among {types} as keys", strange, "Leave them out.")
        functions = {v: _partial(f) for v, f in fn.items()}
    else:
        _checks.require(callable(fn), "fn", "must be a function of points", repr(fn), "Pass fn(points [point, *dim]).")
        functions = {v: Partial(of_all_nodes, _partial(fn), graph.node_type, graph.nodes_of_type(v)) for v in types}
    evidence = nothing(model, graph)
    local = evidence.local
    for v, function in functions.items():
        nodes, points = graph.nodes_of_type(v), model.points[v]
        if len(points) == 0:  # of particles and mixtures, which ask where they need to
            continue
        values = likelihood_values(function, points, len(nodes)).astype(local.dtype)
        local, zero = _with_values(local, nodes, values)
        if not _checks.is_traced(zero):
            dark = np.asarray(nodes)[np.asarray(zero)]
            rule = "must be > 0 at one of the model's evaluation points of each node"
            fix = "Widen it, or fit with a smaller eps, which makes more points."
            _checks.require(len(dark) == 0, "fn", rule, f"0 at all of them for nodes {dark[:5].tolist()}", fix)
    return dataclasses.replace(evidence, local=local, likelihoods=(functions,))


def _partial(fn: Callable[[Array], Array]) -> Partial:
    """Make a function a pytree; a `Partial` stays as it is, since another around it would hide its arrays."""
    return fn if isinstance(fn, Partial) else Partial(fn)


@jax.jit
def _with_values(local: Array, nodes: Array, values: Array) -> tuple[Array, Array]:
    """Write local factors of some nodes, scaled to maximum 1; return them all, and which of the nodes have only 0."""
    largest = jnp.max(values, axis=-1, keepdims=True)
    scaled = values / jnp.where(largest > 0, largest, 1)
    return local.at[nodes, : values.shape[1]].set(scaled), largest[:, 0] == 0


def of_all_nodes(fn: Callable[[Array], Array], every: Array, nodes: Array, points: Array) -> Array:
    """Ask a likelihood of all nodes, and keep those of one type."""
    values = jnp.asarray(fn(points))
    shape, fix = (len(every), len(points)), "Broadcast it: nodes on axis 0, points on axis 1."
    _checks.require(values.shape == shape, "fn", f"must return values of shape {shape}", values.shape, fix)
    return values[nodes]


def own_log_likelihoods(
    evidence: Evidence | None, node_type: int, points: Shaped[Array, "node own *dim"]
) -> Float[Array, "node own"]:
    """Sum the logarithms of the known likelihoods of the nodes of a type at points of each node's own.

    Args:
        evidence: the evidence, or None.
        node_type: the node type.
        points: points of each of its nodes [node_of_type, own, *dim].
    """
    floating = jnp.issubdtype(points.dtype, jnp.floating)
    total = jnp.zeros(points.shape[:2], points.dtype if floating else jnp.result_type(float))
    for functions in () if evidence is None else evidence.likelihoods:
        if node_type in functions:
            total = total + log_or_zero(_own(functions[node_type], points)).astype(total.dtype)
    return total


def _own(function: Partial, points: Array) -> Array:
    if function.func is raised:
        power, inner = function.args
        return raise_values(_own(inner, points), power)
    if function.func is of_all_nodes:
        fn, every, nodes = function.args
        spread = jnp.zeros((len(every), *points.shape[1:]), points.dtype).at[nodes].set(points)
        return _ask(fn, spread)[nodes]
    return _ask(function, points)


def _ask(fn: Callable[[Array], Array], points: Array) -> Array:
    """Ask for all points at once where the function broadcasts, else node by node, of which each call knows all."""
    try:
        broadcasts = jax.eval_shape(fn, points).shape == points.shape[:2]
    except (TypeError, ValueError, IndexError):
        broadcasts = False
    if broadcasts:
        return jnp.asarray(fn(points))
    shape = points.shape[:2]
    told = jax.eval_shape(fn, points[0]).shape
    _checks.require(told == shape, "fn", f"must return values of shape {shape}", told, "Broadcast it.")
    return jax.lax.map(lambda number: fn(points[number])[number], jnp.arange(len(points), dtype=jnp.int32))
