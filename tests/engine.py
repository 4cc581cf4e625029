"""Parts of the engine in the shapes that tests think in: rows of messages, and graphs whose nodes are deaf."""

import equinox as eqx
import jax
import jax.numpy as jnp

from kbpjax.inference import operators


def without_incoming(graph, nodes):
    """Return the graph in which the incoming messages of the marked nodes count as 1, as of clamped ones."""
    graph = eqx.tree_at(lambda graph: graph.plan, graph, graph.plan.without_incoming(nodes))
    if graph.forest is None:
        return graph
    return eqx.tree_at(lambda graph: graph.forest, graph, graph.forest.without_incoming(nodes))


@jax.jit
def normalize(rows):
    """Scale rows [.., rank] to 2-norm 1."""
    return operators.normalize(jnp.asarray(rows))


@jax.jit
def leave_one_out(values, local):
    """Return, for each slot of values [.., slot, point], `local` [.., point] times the product of the other slots."""
    values, local = jnp.asarray(values), jnp.asarray(local)
    *axes, slots, points = values.shape
    by_slot = values.reshape(1, -1, slots, points).transpose(0, 2, 1, 3)
    products = operators.multiply_others(by_slot, local.reshape(1, -1, points)).values
    return products.transpose(0, 2, 1, 3).reshape(*axes, slots, points)
