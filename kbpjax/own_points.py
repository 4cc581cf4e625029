"""Known likelihoods at points of each node's own: particles, or where a mode is sought."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Shaped

from kbpjax import _checks
from kbpjax.evidence import Evidence, log_or_zero, of_all_nodes, raise_values, raised


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
