"""Evidence: what observations say of each node, in the form in which message passing uses it.

An observation y of node t multiplies the product of its messages by E[k(y, Y) | x_t], a Parzen-smoothed likelihood,
learned from pairs (x, y) like any message.
"""

from collections.abc import Mapping

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
        messages: the same factor as a message of 2-norm 1, coefficients on the node's basis [node, rank]; 0 where there
        is none.
        observed: which nodes have an observation that says something [node].
    """

    local: Float[Array, "node point"]
    messages: Float[Array, "node rank"]
    observed: Bool[Array, " node"]


def observe(
    model: KernelMRF,
    graph: Graph,
    y: Numbers | Mapping[int, Numbers],
    *,
    mask: Numbers | None = None,
) -> Evidence:
    """Turn observations into evidence: the factor E[k(y, Y) | x] on each node (a smoothed likelihood).

    An observation so far from all training observations that every kernel value is 0 says nothing, and counts as
    missing.

    Args:
        model: the model.
        graph: the graph.
        y: one observation for each node [node, *obs_dim]; or {node type: one for each of its nodes, in order of node
            number}, where observations differ in shape or only some types have them.
        mask: which nodes are observed [node]; None: all. What y holds elsewhere, even NaN, does not matter.

    Returns:
        The evidence. Nodes of a type for which the model has seen no observations have none.

    Raises:
        ValueError: a model without observations, a shape that does not fit, NaN or infinity in an observed node.
    """
    model.check_types(graph)
    fix = "Fit it on data with observations and pass obs_kernel."
    _checks.require(bool(model.observation_bases), "model", "must have learned observations", "none", fix)
    seen = jnp.ones(graph.num_nodes, bool) if mask is None else jnp.asarray(mask)
    fix = "Pass a boolean for each node, True where it is observed."
    ok = seen.shape == (graph.num_nodes,) and seen.dtype == bool
    _checks.require(ok, "mask", f"must be boolean of shape ({graph.num_nodes},)", f"{seen.dtype}{seen.shape}", fix)
    observable = [v for v, *_ in graph.node_types if v in model.observation_bases]
    if isinstance(y, Mapping):
        strange = [v for v in y if v not in observable]
        fix = "Leave them out, or fit the model on observations of them."
        _checks.require(not strange, "y", f"must have node types among {observable} as keys", strange, fix)
        arrays = {v: _checks.as_array(f"y[{v}]", y[v]) for v in observable if v in y}
    else:
        arrays = dict.fromkeys(observable, _checks.as_array("y", y))
    by_type = {v: _of_nodes(model, graph, v, array, seen, isinstance(y, Mapping)) for v, array in arrays.items()}
    return _observe(model, graph, by_type, seen)


def _of_nodes(model: KernelMRF, graph: Graph, node_type: int, y: Array, seen: Array, own: bool) -> Array:
    """Check the observations of one node type, given for its `own` nodes or for all, and return those of its nodes."""
    nodes = graph.nodes_of_type(node_type)
    expected = (len(nodes) if own else graph.num_nodes, *model.observation_bases[node_type].landmarks.shape[1:])
    rule = f"{f'of node type {node_type} ' if own else ''}must have shape {expected}"
    fix = "Give one observation for each node, of the shape of the training observations, or {node type: observations}."
    _checks.require(y.shape == expected, "y", rule, y.shape, fix)
    known = seen[nodes] if own else seen
    if not _checks.is_traced((y, known)):
        fix = "Pass mask=, False where nothing was observed."
        _checks.require_finite("y", np.asarray(y)[np.asarray(known)], fix)
    return y if own else y[nodes]


@jax.jit
def _observe(model: KernelMRF, graph: Graph, by_type: dict[int, Array], seen: Array) -> Evidence:
    operators = model.operators
    messages = jnp.zeros((graph.num_nodes, operators.evaluate.shape[2]), operators.evaluate.dtype)
    for v, y in by_type.items():
        nodes = graph.nodes_of_type(v)
        known = seen[nodes]
        basis, operator = model.observation_bases[v], model.observation_operators[v]
        y = like(jnp.where(known.reshape(-1, *(1,) * (y.ndim - 1)), y, jnp.zeros_like(y)), basis.landmarks)
        message = matmul(features(basis, y).astype(operator.dtype), operator.T)
        message = jnp.where(known[:, None], message, 0).astype(messages.dtype)
        messages = messages.at[nodes, : message.shape[1]].set(message)
    messages, size = unit(messages)
    observed = size[:, 0] != 0  # true for NaN, which is to stay
    local = evaluate_local(operators, graph, messages)
    return Evidence(jnp.where(observed[:, None], local, 1), messages, observed)
