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
    return jnp.moveaxis(operators.normalize(jnp.moveaxis(jnp.asarray(rows), -1, 0)), 0, -1)


@jax.jit
def leave_one_out(values, local):
    """Return, for each slot of values [.., slot, point], `local` [.., point] times the product of the other slots."""
    values, local = jnp.asarray(values), jnp.asarray(local)
    *axes, slots, points = values.shape
    columns = values.reshape(1, -1, slots, points).transpose(3, 0, 2, 1)
    products = operators.multiply_others(columns, local.reshape(1, -1, points).transpose(2, 0, 1)).values
    return products.transpose(1, 3, 2, 0).reshape(*axes, slots, points)
