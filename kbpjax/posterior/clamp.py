"""Hard evidence: clamp variables to observed values, which blocks messages through them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul, quick_jit, warn
from kbpjax._public import public
from kbpjax.features import FAR, Basis, FeatureMap, features, represented
from kbpjax.features.cholesky import RelativeBasis, in_gaps
from kbpjax.graphs.graph import Graph
from kbpjax.inference.diagnostics import EvidenceWarning
from kbpjax.kernels.base import like
from kbpjax.learning.labels import Values, are_labels, encode
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.observations import EvidenceModel, Expectation, check_evidence_model
from kbpjax.posterior.evidence import Evidence, constants, expand, nothing, represented_shares


@public
def clamp(
    model: KernelMRF,
    graph: Graph,
    nodes: Numbers | None,
    values: Values | Mapping[int, Values],
    *,
    mask: Numbers | None = None,
    evidence_model: EvidenceModel | None = None,
) -> Evidence:
    """Return evidence that fixes variables at known values: their outgoing messages ignore the incoming ones.

    A message from a node with value v is an estimate of P(v | x_s): smoothed by the kernel, E[k(v, X_t) | x_s], or
    P(v | x_s) / P(v) with `DensityRatio()`. The belief of a clamped node has all weight on the candidate nearest to
    its value.

    Args:
        model: the model.
        graph: the graph.
        nodes: numbers of the clamped nodes [some], each once. None: `values` has an entry for every node, and those
            that are NaN, or where `mask` is False, are not clamped.
        values: their values [some, *dim]; or {node type: values of its nodes among `nodes`, in their order}; without
            `nodes`, [node, *dim] or {node type: values [node_of_type, *dim]}. Labels, if the training data have them.
        mask: clamped nodes [node], boolean or 0 and 1; only without `nodes`. None: all nodes without NaN.
        evidence_model: `Expectation()`, or `DensityRatio()`, which does not smooth by the kernel. None: that of the
            model, which `fit` may have chosen.

    Raises:
        ValueError: nodes out of range or repeated, values of another shape than the nodes' variables, infinity, NaN
            with `nodes` or `mask`, a mask beside `nodes`.

    Warns:
        EvidenceWarning: values far from all training samples, which say nothing about other nodes, as far observations.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> kbp.clamp(model, graph, [0], [0.25]).clamped.tolist()
        [True, False, False]
        >>> kbp.clamp(model, graph, None, [0.25, np.nan, 0.5]).clamped.tolist()
        [True, False, True]
        >>> kbp.clamp(model, graph, None, {0: [0.25, np.nan, 0.5]}).clamped.tolist()
        [True, False, True]
    """
    model.check_types(graph)
    evidence_model = model.evidence_model if evidence_model is None else evidence_model
    check_evidence_model(evidence_model)
    fix = "Leave it out, or pass nodes=None and a value for every node."
    _checks.require(mask is None or nodes is None, "mask", "must be None where nodes are given", "a mask", fix)
    if are_labels(values):
        values = _codes(model, graph, nodes, values)
    if isinstance(values, Mapping):
        return _clamp_by_type(model, graph, nodes, values, mask, evidence_model)
    shapes = {v: model.points[v].shape[1:] for v, *_ in graph.node_types}
    if nodes is None:
        return _clamp_where(model, graph, None, values, mask, shapes, evidence_model)
    numbers, given = _checks.as_array("nodes", nodes), _checks.as_array("values", values)
    fix = "Pass node numbers [some] and one value for each [some, *dim]."
    whole = jnp.issubdtype(numbers.dtype, jnp.integer) or numbers.size == 0
    _checks.require(numbers.ndim == 1 and whole, "nodes", "must be integers [some]", f"{numbers.dtype}", fix)
    count = f"must hold a value for each of the {len(numbers)} nodes"
    _checks.require(given.ndim > 0 and len(given) == len(numbers), "values", count, f"shape {given.shape}", fix)
    shapes = {v: shapes[v] for v in _types_of(graph, numbers)}
    _check_clamped(model, graph, numbers, given, shapes)
    types = tuple(v for v, shape in shapes.items() if shape == given.shape[1:])
    return clamp_types(model, graph, numbers, given, evidence_model, types)


def _codes(model: KernelMRF, graph: Graph, nodes: Any, values: Any) -> Any:
    """Return the codes of labels; without `nodes`, hidden where they are missing."""
    labels = [dict(model.labels).get(v) for v in _types_of(graph, nodes)]
    fix = "Pass {node type: values}."
    _checks.require(len(set(labels)) == 1, "values", "must be by type where labels of types differ", "one list", fix)
    codes = encode("values", values, labels[0])
    return codes if nodes is None else _complete(codes)


def _types_of(graph: Graph, nodes: Any) -> list[int]:
    """Return the types of nodes; all that the graph has, where they are not known."""
    types = [v for v, *_ in graph.node_types]
    if nodes is None or len(types) == 1 or _checks.is_traced((graph, nodes)):
        return types
    numbers = np.asarray(_checks.as_numpy("nodes", nodes)).reshape(-1)
    known = numbers[(numbers >= 0) & (numbers < graph.num_nodes)].astype(int)  # others are refused later
    return np.unique(np.asarray(graph.node_type)[known]).tolist() or types


def _complete(codes: Any) -> Any:
    """Return codes without missing ones."""
    missing = int(np.ma.getmaskarray(codes).sum()) if isinstance(codes, np.ma.MaskedArray) else 0
    _checks.require(missing == 0, "values", "must be known", f"{missing} missing", "Leave these nodes out.")
    return np.ma.getdata(codes) if isinstance(codes, np.ma.MaskedArray) else codes


def _clamp_by_type(
    model: KernelMRF, graph: Graph, nodes: Any, values: Mapping[int, Any], mask: Any, evidence_model: EvidenceModel
) -> Evidence:
    """Return the clamps of nodes of several types, whose values are given by type."""
    types = [v for v, *_ in graph.node_types]
    unknown, fix = [v for v in values if v not in types], "Leave the others out."
    _checks.require(not unknown, "values", f"must have node types among {types} as keys", unknown, fix)
    evidence, labels = nothing(model, graph), dict(model.labels)
    values = {v: encode(f"values[{v}]", given, labels.get(v)) for v, given in values.items()}
    if nodes is None:
        for v, given in values.items():
            where = None if mask is None else _checks.to_jax(_mask(graph, mask)[np.asarray(graph.nodes_of_type(v))])
            shapes = {v: model.points[v].shape[1:]}
            evidence = evidence * _clamp_where(model, graph, v, given, where, shapes, evidence_model)
        return evidence
    fix = "Call clamp outside jax.jit, or pass nodes=None and values for every node of a type."
    _checks.require(not _checks.is_traced((nodes, graph)), "nodes", "must be known", "a traced array", fix)
    numbers = _checks.as_numpy("nodes", nodes)
    fix = "Pass integers [some]."
    within = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
    within = within and bool(np.all((numbers >= 0) & (numbers < graph.num_nodes)))
    _checks.require(within, "nodes", f"must be numbers of {graph.num_nodes} nodes", numbers[:5].tolist(), fix)
    kinds = np.asarray(graph.node_type)[numbers]
    missing = sorted(set(kinds.tolist()) - set(values))
    _checks.require(not missing, "values", "must have the types of all nodes", f"none of {missing}", "Add them.")
    for v, given in values.items():
        own = _complete(given) if v in labels else _checks.as_array(f"values[{v}]", given)
        evidence = evidence * clamp(model, graph, numbers[kinds == v], own, evidence_model=evidence_model)
    return evidence


def _mask(graph: Graph, mask: Any) -> Any:
    fix = "Pass a boolean for each node, True where it is clamped."
    return _checks.as_mask("mask", mask, (graph.num_nodes,), fix=fix)


def _clamp_where(
    model: KernelMRF,
    graph: Graph,
    node_type: int | None,
    values: Any,
    mask: Any,
    shapes: dict[int, tuple[int, ...]],
    evidence_model: EvidenceModel,
) -> Evidence:
    """Return the clamps of values of all nodes, or of all nodes of a type, where they are not NaN or masked."""
    argument = "values" if node_type is None else f"values[{node_type}]"
    array, hidden = _checks.read(argument, values)
    given = _checks.as_array(argument, array)
    count = graph.num_nodes if node_type is None else {v: n for v, n, *_ in graph.node_types}[node_type]
    rule = f"must have an entry for each of the {count} nodes{'' if node_type is None else f' of type {node_type}'}"
    types = tuple(v for v, shape in shapes.items() if shape == given.shape[1:])
    ok, fix = given.ndim > 0 and len(given) == count and bool(types), "Or pass the numbers of the clamped nodes."
    _checks.require(ok, argument, rule, f"shape {given.shape}", fix)
    where = jnp.ones(count, bool)
    if mask is not None:
        where = mask if node_type is not None else _checks.to_jax(_mask(graph, mask))
    elif jnp.issubdtype(given.dtype, jnp.floating):
        where = ~jnp.any(jnp.isnan(given).reshape(count, -1), axis=1)
    if hidden is not None:
        where = where & ~_checks.to_jax(hidden).reshape(count, -1).any(axis=1)
    if not _checks.is_unread((where, given, graph)):
        chosen = np.flatnonzero(np.asarray(where))
        numbers = chosen if node_type is None else np.asarray(graph.nodes_of_type(node_type))[chosen]
        _check_clamped(model, graph, _checks.to_jax(numbers, np.int32), given[chosen], shapes)
    given = jnp.where(expand(where, given.ndim), given, jnp.zeros_like(given))
    if node_type is not None:
        nodes = graph.nodes_of_type(node_type)
        where = jnp.zeros(graph.num_nodes, bool).at[nodes].set(where)
        given = jnp.zeros((graph.num_nodes, *given.shape[1:]), given.dtype).at[nodes].set(given)
    return _fixed(model, graph, where, given, evidence_model, types)


def _check_clamped(
    model: KernelMRF, graph: Graph, nodes: Array, values: Array, shapes: dict[int, tuple[int, ...]]
) -> None:
    """Check nodes and values, after one read from the device; tracers pass."""
    checks: list[_checks.Check] = [(values, lambda read: _checks.require_finite("values", read, "Leave them out."))]
    if not _checks.is_unread((nodes, graph)):
        near = {}
        if not _checks.is_unread((model, values)):
            near = {
                v: _near(model.bases[v], _standardized(model, graph, v, nodes, values))
                for v, shape in shapes.items()
                if shape == values.shape[1:]
            }
        checks.append(((nodes, graph.node_type, near), partial(_check_nodes, model, values, shapes)))
    _checks.read_and_check(checks)


def _standardized(model: KernelMRF, graph: Graph, node_type: int, nodes: Array, values: Array) -> Array:
    """Return values of nodes in the units of the model; those of nodes of other types are of no use."""
    if node_type not in model.margins or len(values) == 0:
        return values
    own = np.asarray(graph.node_type) == node_type
    place = np.maximum(np.cumsum(own) - 1, 0)[np.clip(np.asarray(nodes), 0, len(own) - 1)]
    return model.margins[node_type].of_nodes(int(own.sum())).at_nodes(place).standardized(values)


def _near(basis: FeatureMap, values: Array) -> Array | np.ndarray:
    """Return whether each value is near training samples; a value far from all would send no information."""
    if not isinstance(basis, Basis) or len(values) == 0:
        return np.ones(len(values), bool)
    given = like(values, basis.point.dtype)
    with constants():
        if jnp.issubdtype(given.dtype, jnp.floating):
            given = jnp.nan_to_num(given)  # what is not finite is an error
        return represented_shares(basis, given) >= FAR


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
            far = np.asarray(values)[own & ~near[v]]
            got = f"{len(far)} of {int(own.sum())} values of node type {v} are far from all training samples"
            fix = "Pass values in the units of the training data."
            text = f"values: {got}, such as {far[:3].tolist()}: they say nothing about other nodes"
            warn(f"{text}. {fix}", EvidenceWarning)


def clamp_types(
    model: KernelMRF,
    graph: Graph,
    numbers: Array,
    values: Array,
    evidence_model: EvidenceModel,
    types: tuple[int, ...],
) -> Evidence:
    """Return the clamps of nodes of known types, unchecked; of a traced graph, `clamp` has to look at all types."""
    clamped, of_nodes = _at_nodes(numbers.astype(jnp.int32), values, graph.num_nodes)
    return _fixed(model, graph, clamped, of_nodes, evidence_model, types)


@partial(quick_jit, static_argnames="num_nodes")
def _at_nodes(numbers: Array, values: Array, num_nodes: int) -> tuple[Array, Array]:
    """Return which nodes have values, and the values of all nodes, 0 for others."""
    of_nodes = jnp.zeros((num_nodes, *values.shape[1:]), values.dtype)
    return jnp.zeros(num_nodes, bool).at[numbers].set(True), of_nodes.at[numbers].set(values)


@partial(jax.jit, static_argnames="types")
def _fixed(
    model: KernelMRF,
    graph: Graph,
    clamped: Array,
    of_nodes: Array,
    evidence_model: EvidenceModel,
    types: tuple[int, ...],
) -> Evidence:
    """Return the evidence of a mask of clamped nodes [node] and their values [node, *dim], of some node types."""
    evidence = nothing(model, graph)
    local, by_type = evidence.local, {}
    for v in types:
        nodes, points, basis = graph.nodes_of_type(v), model.points[v], model.bases[v]
        value = of_nodes[nodes]
        if v in model.margins:
            value = model.margins[v].of_nodes(len(nodes)).standardized(value)
        value = value.astype(points.dtype) if jnp.issubdtype(points.dtype, jnp.floating) else value
        kind = Expectation() if isinstance(basis, RelativeBasis) else evidence_model  # which is relative to P*, too
        at, near = value, jnp.ones(len(value), bool)
        if isinstance(basis, Basis):
            at = in_gaps(basis, like(value, basis.point.dtype))
            near = represented(basis, at) >= FAR
        mass = kind.point_mass(features(basis, at), model.moments[v], model.ridges[v])
        factor = matmul(mass, features(basis, points).T).astype(local.dtype)
        factor = jnp.where(near[:, None], factor, 1)
        mask = clamped[nodes]
        local = local.at[nodes, : len(points)].set(jnp.where(mask[:, None], factor, 1))
        by_type[v] = mask, value
    return eqx.tree_at(
        lambda e: (e.local, e.clamped, e.values),
        evidence,
        (local, clamped, by_type),
        is_leaf=lambda x: isinstance(x, dict),
    )
