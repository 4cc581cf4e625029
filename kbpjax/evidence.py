"""Evidence: what observations say of each node, in the form in which message passing uses it.

An observation y of node t multiplies the product of its messages by E[k(y, Y) | x_t], a Parzen-smoothed likelihood,
learned from pairs (x, y) like any message.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._precision import matmul
from kbpjax.features import features
from kbpjax.graph import Graph
from kbpjax.kernels.base import like
from kbpjax.mrf import KernelMRF
from kbpjax.propagate import evaluate_local, unit


class Evidence(eqx.Module):
    """What observations say of each node.

    Attributes:
        local: factor of each node at its evaluation points [node, point]; 1 where nothing was observed.
        messages: the same factor as a message of 2-norm 1, coefficients on the node's basis [node, rank].
        observed: which nodes have an observation [node].
    """

    local: Float[Array, "node point"]
    messages: Float[Array, "node rank"]
    observed: Bool[Array, " node"]


def observe(
    model: KernelMRF,
    graph: Graph,
    y: Numbers,
    *,
    mask: Numbers | None = None,
) -> Evidence:
    """Turn observations into evidence: the factor E[k(y, Y) | x] on each node (a smoothed likelihood).

    Args:
        model: the model.
        graph: the graph.
        y: one observation for each node [node, *obs_dim].
        mask: which nodes are observed [node]; None: all. What y holds elsewhere, even NaN, does not matter.

    Returns:
        The evidence. Nodes of a type for which the model has seen no observations have none.

    Raises:
        ValueError: a model without observations, a shape that does not fit, NaN or infinity in an observed node.
    """
    model.check_types(graph)
    fix = "Fit it on data with observations and pass obs_kernel."
    _checks.require(bool(model.observation_bases), "model", "must have learned observations", "none", fix)
    y = jnp.asarray(y)
    seen = jnp.ones(graph.num_nodes, bool) if mask is None else jnp.asarray(mask)
    fix = "Pass a boolean for each node, True where it is observed."
    ok = seen.shape == (graph.num_nodes,) and seen.dtype == bool
    _checks.require(ok, "mask", f"must be boolean of shape ({graph.num_nodes},)", f"{seen.dtype}{seen.shape}", fix)
    for v in (v for v, *_ in graph.node_types if v in model.observation_bases):
        expected = (graph.num_nodes, *model.observation_bases[v].landmarks.shape[1:])
        fix = "Give one observation for each node, of the shape of the training observations."
        _checks.require(y.shape == expected, "y", f"must have shape {expected}", y.shape, fix)
    if not _checks.is_traced((y, seen)):
        _checks.require_finite("y", np.asarray(y)[np.asarray(seen)], "Pass mask=, False where nothing was observed.")
    return _observe(model, graph, y, seen)


@jax.jit
def _observe(model: KernelMRF, graph: Graph, y: Array, seen: Array) -> Evidence:
    operators = model.operators
    messages = jnp.zeros((graph.num_nodes, operators.evaluate.shape[2]), operators.evaluate.dtype)
    observed = jnp.zeros(graph.num_nodes, bool)
    y = jnp.where(seen.reshape(-1, *(1,) * (y.ndim - 1)), y, jnp.zeros_like(y))
    for v, *_ in graph.node_types:
        if v in model.observation_bases:
            nodes = graph.nodes_of_type(v)
            basis, operator = model.observation_bases[v], model.observation_operators[v]
            message = matmul(features(basis, like(y[nodes], basis.landmarks)).astype(operator.dtype), operator.T)
            messages = messages.at[nodes, : message.shape[1]].set(message.astype(messages.dtype))
            observed = observed.at[nodes].set(seen[nodes])
    messages = unit(messages)
    local = evaluate_local(operators, graph, messages)
    return Evidence(jnp.where(observed[:, None], local, 1), messages, observed)
