"""Hard evidence: clamp variables to observed values, which blocks messages through them."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul
from kbpjax._public import public
from kbpjax.features import FAR, Basis, FeatureMap, features
from kbpjax.graphs.graph import Graph
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.evidence import (
    DensityRatio,
    Evidence,
    Expectation,
    check_evidence_model,
    constants,
    nothing,
    represented_shares,
)


@public
def clamp(
    model: KernelMRF,
    graph: Graph,
    nodes: Numbers,
    values: Numbers,
    *,
    evidence_model: Expectation | DensityRatio = Expectation(),
) -> Evidence:
    """Return evidence that fixes variables at known values: their outgoing messages ignore the incoming ones.

    A message from a node with value v is an estimate of P(v | x_s): smoothed by the kernel, E[k(v, X_t) | x_s], or
    P(v | x_s) / P(v) with `DensityRatio()`. The belief of a clamped node has all weight on the candidate nearest to
    its value.

    Args:
        model: the model.
        graph: the graph.
        nodes: numbers of the clamped nodes [some], each once.
        values: their values [some, *dim].
        evidence_model: `Expectation()`, or `DensityRatio()`, which does not smooth by the kernel.

    Raises:
        ValueError: nodes out of range or repeated, values of another shape than the nodes' variables, NaN or infinity,
            or far from all training samples.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> kbp.clamp(model, graph, [0], [0.25]).clamped.tolist()
        [True, False, False]
    """
    model.check_types(graph)
    check_evidence_model(evidence_model)
    numbers, given = _checks.as_array("nodes", nodes), _checks.as_array("values", values)
    fix = "Pass node numbers [some] and one value for each [some, *dim]."
    whole = jnp.issubdtype(numbers.dtype, jnp.integer) or numbers.size == 0
    _checks.require(numbers.ndim == 1 and whole, "nodes", "must be integers [some]", f"{numbers.dtype}", fix)
    count = f"must hold a value for each of the {len(numbers)} nodes"
    _checks.require(given.ndim > 0 and len(given) == len(numbers), "values", count, f"shape {given.shape}", fix)
    shapes = {v: model.points[v].shape[1:] for v, *_ in graph.node_types}
    _check_clamped(model, graph, numbers, given, shapes)
    types = tuple(v for v, shape in shapes.items() if shape == given.shape[1:])
    return _clamp(model, graph, numbers, given, evidence_model, types)


def _check_clamped(
    model: KernelMRF, graph: Graph, nodes: Array, values: Array, shapes: dict[int, tuple[int, ...]]
) -> None:
    """Check nodes and values, after one read from the device; tracers pass."""
    checks: list[_checks.Check] = [(values, lambda read: _checks.require_finite("values", read, "Leave them out."))]
    if not _checks.is_unread((nodes, graph)):
        near = {}
        if not _checks.is_unread((model, values)):
            near = {v: _near(model.bases[v], values) for v, shape in shapes.items() if shape == values.shape[1:]}
        checks.append(((nodes, graph.node_type, near), partial(_check_nodes, model, values, shapes)))
    _checks.read_and_check(checks)


def _near(basis: FeatureMap, values: Array) -> Array | np.ndarray:
    """Return whether each value is near training samples; a value far from all would send no information."""
    if not isinstance(basis, Basis) or len(values) == 0:
        return np.ones(len(values), bool)
    with constants():
        return represented_shares(basis, values) >= FAR


def _check_nodes(
    model: KernelMRF,
    values: Array,
    shapes: dict[int, tuple[int, ...]],
    read: tuple[np.ndarray, np.ndarray, dict[int, np.ndarray]],
) -> None:
    numbers, node_type, near = read
    ok = bool(np.all((numbers >= 0) & (numbers < len(node_type)))) and len(np.unique(numbers)) == len(numbers)
    rule = f"must be different nodes among 0 .. {len(node_type) - 1}"
    _checks.require(ok, "nodes", rule, numbers[:10].tolist(), "Name each node once.")
    types = node_type[numbers.astype(int)]
    for v in np.unique(types).tolist():
        fix = "Clamp nodes of other types in a separate call, and multiply the evidence."
        rule = f"must have shape [some, *{shapes[v]}], as the variables of node type {v}"
        _checks.require(values.shape[1:] == shapes[v], "values", rule, f"shape {values.shape}", fix)
        own = types == v
        model.bases[v].check("values", values if own.all() else values[own])
        if v in near and not near[v][own].all():
            far = np.asarray(values)[own & ~near[v]][:3].tolist()
            rule = f"must lie near the training samples of node type {v}"
            fix = "Pass values in the units of the training data."
            _checks.require(False, "values", rule, f"{far}, far from all", fix)


@partial(jax.jit, static_argnames="types")
def _clamp(
    model: KernelMRF,
    graph: Graph,
    numbers: Array,
    values: Array,
    evidence_model: Expectation | DensityRatio,
    types: tuple[int, ...],
) -> Evidence:
    numbers = numbers.astype(jnp.int32)
    clamped = jnp.zeros(graph.num_nodes, bool).at[numbers].set(True)
    of_nodes = jnp.zeros((graph.num_nodes, *values.shape[1:]), values.dtype).at[numbers].set(values)
    evidence = nothing(model, graph)
    local, by_type = evidence.local, {}
    for v in types:
        nodes, points, basis = graph.nodes_of_type(v), model.points[v], model.bases[v]
        value = of_nodes[nodes]
        value = value.astype(points.dtype) if jnp.issubdtype(points.dtype, jnp.floating) else value
        mass = evidence_model.point_mass(features(basis, value), model.moments[v], model.ridges[v])
        factor = matmul(mass, features(basis, points).T).astype(local.dtype)
        mask = clamped[nodes]
        local = local.at[nodes, : len(points)].set(jnp.where(mask[:, None], factor, 1))
        by_type[v] = mask, value
    return eqx.tree_at(
        lambda e: (e.local, e.clamped, e.values),
        evidence,
        (local, clamped, by_type),
        is_leaf=lambda x: isinstance(x, dict),
    )
