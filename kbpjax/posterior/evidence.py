"""Evidence: local factors of the nodes.

- `observe`: an observation y with a learned observation model, the factor E[k(y, Y) | x_t] or P(y | x_t) / P(y);
- `likelihood`: a known likelihood function;
- `clamp`: a known value of the variable, which fixes the outgoing messages of the node.

Evidence terms combine with `*`: several observations of a node, or different kinds on different nodes.
`evidence ** power` tempers them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import inside_others, matmul, quick_jit, show, show_fields, values_or_shapes, warn
from kbpjax._public import Checked, public
from kbpjax.features import FAR, Basis, features, represented
from kbpjax.features.cholesky import in_gaps
from kbpjax.graphs.graph import Graph
from kbpjax.inference.diagnostics import EvidenceWarning
from kbpjax.inference.operators import log_or_zero as log_or_zero
from kbpjax.inference.operators import normalize
from kbpjax.inference.update import evaluate_local
from kbpjax.kernels.base import as_floats, like
from kbpjax.learning.labels import Values, are_labels, encode
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.observations import EvidenceModel, check_evidence_model
from kbpjax.learning.patterns import PatternFeatures

OUTLIERS = 0.05
"""Share of far observations above which `EvidenceWarning` is given."""


@runtime_checkable
class Model(Protocol):
    """The interface of a model for `likelihood`: `KernelMRF`, or a `PairwiseMRF` of `kbpjax.baselines`."""

    @property
    def points(self) -> Mapping[int, Array]:
        """{node type: evaluation points of messages [point, *dim]}."""
        ...

    @property
    def sizes(self) -> tuple[int, int, Any]:
        """Number of evaluation points, number of coefficients of a message, and dtype."""
        ...

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless the model has all types of a graph."""
        ...


class Evidence(Checked):
    """Local factors of the nodes; made by `observe`, `likelihood` and `clamp`, combined with `*`.

    Attributes:
        local: product of a node's factors at its evaluation points [node, point]; 1 without evidence.
        messages: learned factors as messages of 2-norm 1, coefficients on the node's basis [factor, node, rank]; 0 for
            nodes without the factor.
        observed: mask of the nodes that have each learned factor [factor, node].
        exponents: the power to which each learned factor is raised [factor]; 1 unless `evidence ** power` was used.
        likelihoods: known factors, each {node type: function from points [point, *dim] to [node_of_type, point]}.
        clamped: mask of the nodes with a known value [node].
        values: {node type: (mask of its clamped nodes [node_of_type], their values [node_of_type, *dim])}, for the node
            types whose variables have the shape of the values.
        log_scale: logarithm of the scale that `likelihood` divided out of the local factor of each node [node]; None:
            0. Only `log_partition` uses it.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x, observations=x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
        >>> soft = kbp.observe(model, graph, [0.0, 0.1, np.nan], mask=[True, True, False])
        >>> both = soft**0.5 * kbp.clamp(model, graph, [2], [0.2])  # tempered observations; node 2 is clamped
        >>> both.observed.tolist(), both.exponents.tolist(), both.clamped.tolist()
        ([[True, True, False]], [0.5], [False, False, True])
    """

    local: Float[Array, "node point"]
    messages: Float[Array, "factor node rank"]
    observed: Bool[Array, "factor node"]
    exponents: Float[Array, " factor"]
    likelihoods: tuple[dict[int, Partial], ...]
    clamped: Bool[Array, " node"]
    values: dict[int, tuple[Array, Array]]
    log_scale: Float[Array, " node"] | None = None

    def __mul__(self, other: "Evidence") -> "Evidence":
        """Combine independent evidence terms; a clamped value overrides all other evidence of its node."""
        if not isinstance(other, Evidence):
            return NotImplemented
        shapes, fix = (self.local.shape, other.local.shape), "Make both with the same model and graph."
        same = shapes[0] == shapes[1] and self.messages.shape[1:] == other.messages.shape[1:]
        _checks.require(same, "evidence", "must be of one model and graph", f"factors {shapes}", fix)
        if self.values and other.values:
            _checks.read_and_check([((self.clamped, other.clamped), _clamped_once)])
        values = self.values | other.values
        for v in set(self.values) & set(other.values):
            (mask, value), (other_mask, other_value) = self.values[v], other.values[v]
            values[v] = mask | other_mask, jnp.where(expand(mask, value.ndim), value, other_value)
        local, messages, observed, exponents, clamped, log_scale = _product(self._arrays, other._arrays)
        likelihoods = self.likelihoods + other.likelihoods
        return Evidence(local, messages, observed, exponents, likelihoods, clamped, values, log_scale)

    @property
    def _arrays(self) -> tuple[Array | None, ...]:
        return self.local, self.messages, self.observed, self.exponents, self.clamped, self.log_scale

    def __pow__(self, power: ScalarLike) -> "Evidence":
        """Raise all factors to a power > 0 (likelihood tempering): below 1 flatter, above 1 sharper. Clamps stay."""
        _checks.require_number("power", power, above=0, fix="To ignore evidence, leave it out.")
        power = _checks.in_range("power", power, self.local.dtype)
        return Evidence(
            _raised(self.local, self.clamped, power),
            self.messages,
            self.observed,
            self.exponents * power,
            tuple({v: Partial(raised, power, fn) for v, fn in by_type.items()} for by_type in self.likelihoods),
            self.clamped,
            self.values,
            None if self.log_scale is None else self.log_scale * power,
        )

    @values_or_shapes
    def __repr__(self) -> str:
        if self.clamped.ndim != 1:
            return show_fields(self)
        observed = int(jnp.sum(jnp.any(self.observed, axis=0)))
        parts = [f"{len(self.clamped)} nodes: {observed} observed", f"{int(jnp.sum(self.clamped))} clamped"]
        if len(self.exponents):
            parts.append(f"powers {show(self.exponents)}")
        if self.likelihoods:
            parts.append(f"{len(self.likelihoods)} known likelihoods")
        return f"Evidence({', '.join(parts)})"


@quick_jit
def _product(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arrays of a product of evidence, from those of its factors."""
    (local, *joined, clamped, scale), (other_local, *other_joined, other_clamped, other_scale) = one, other
    both = jnp.where(other_clamped[:, None], other_local, local * other_local)
    scales = [one for one in (scale, other_scale) if one is not None]
    return (
        jnp.where(clamped[:, None], local, both),
        *(jnp.concatenate(pair) for pair in zip(joined, other_joined, strict=True)),
        clamped | other_clamped,
        sum(scales[1:], scales[0]) if scales else None,
    )


def _clamped_once(clamped: tuple[np.ndarray, np.ndarray]) -> None:
    twice = np.flatnonzero(clamped[0] & clamped[1])
    rule = "must clamp each node once"
    _checks.require(len(twice) == 0, "evidence", rule, f"nodes {twice[:5]} twice", "Drop one of the values.")


def raised(power: Array, fn: Partial, points: Array) -> Array:
    """Return the values of a likelihood at points, raised to a power."""
    return raise_values(jnp.asarray(fn(points)), power)


def raise_values(values: Array, power: Array) -> Array:
    """Raise values to a power; 0 stays 0, with a derivative of 0."""
    values = as_floats(values)
    return jnp.where(values > 0, jnp.where(values > 0, values, 1) ** power.astype(values.dtype), values)


def expand(mask: Array, ndim: int) -> Array:
    """Append axes of size 1 to a mask up to a number of axes."""
    return mask.reshape(*mask.shape, *(1,) * (ndim - mask.ndim))


BATCH = "For a batch of cases, use jax.vmap(lambda y: kbpjax.observe(model, graph, y))(y)."


@public
def observe(
    model: KernelMRF,
    graph: Graph,
    y: Values | Mapping[int, Values],
    *,
    mask: Numbers | None = None,
    evidence_model: EvidenceModel | None = None,
    power: ScalarLike | None = None,
) -> Evidence:
    """Return the evidence of observations: E[k(y, Y) | x] on each node, a smoothed likelihood, or P(y | x) / P(y).

    An observation far from all training observations, with all kernel values 0, counts as missing; an `EvidenceWarning`
    is given if many are far. Of a vector with NaN, the entries that are there are used, if evidence was learned for
    them (see `pool`), or the largest pattern of them for which it was; an `EvidenceWarning` says where entries are not
    used. For several observations of a node, multiply their evidence. For observations of several
    kinds, make each a separate node, joined by an edge, and `clamp` it. Without any observation, the evidence is empty,
    and beliefs are those of the model alone.

    Args:
        model: the model.
        graph: the graph.
        y: one observation for each node [node, *obs_dim]; or {node type: one for each of its nodes, in order of node
            number}, if observations differ in shape or only some types have them. Masked entries of a NumPy masked
            array are missing. Labels, if the training data have them; None is missing.
        mask: observed nodes [node], boolean or 0 and 1. Entries of y elsewhere are ignored, and may be NaN. None: all
            nodes whose observation is not NaN.
        evidence_model: `Expectation()`, or `DensityRatio()`, which does not smooth by the kernel of y. None: that of
            the model, which `fit` may have chosen.
        power: the power to which the evidence is raised, > 0. None: that of the model.

    Returns:
        The evidence. Node types without observations in the training data have no evidence.

    Raises:
        ValueError: a model without observations, a shape that does not fit, infinity in an observed node, or NaN in a
            node that the mask says is observed.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x, observations=x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
        >>> evidence = kbp.observe(model, graph, [0.5, 0.5, np.nan])  # node 2 is not observed
        >>> solution = kbp.run_tree(model, graph, evidence)
        >>> kbp.mode(kbp.beliefs(model, graph, evidence, solution, np.linspace(-1, 1, 5))).tolist()
        [0.5, 0.5, 0.5]
    """
    model.check_types(graph)
    evidence_model = model.evidence_model if evidence_model is None else evidence_model
    check_evidence_model(evidence_model)
    if power is not None:
        _checks.require_number("power", power, above=0, fix="To ignore evidence, leave it out.")
    exponent = model.evidence_power if power is None else jnp.asarray(power)
    fix = "Fit it on data with observations and pass obs_kernel; or fix known variables by kbpjax.clamp."
    _checks.require(bool(model.observations), "model", "must have learned observations", "none", fix)
    fix = f"Pass a boolean for each node, True where it is observed. {BATCH}"
    shape = (graph.num_nodes,)
    observed = _checks.to_jax(np.ones(shape, bool) if mask is None else _checks.as_mask("mask", mask, shape, fix=fix))
    observable, labels = [v for v, *_ in graph.node_types if v in model.observations], dict(model.obs_labels)
    if isinstance(y, Mapping):
        unknown = [v for v in y if v not in observable]
        fix = "Leave them out, or fit the model on observations of them."
        _checks.require(not unknown, "y", f"must have node types among {observable} as keys", unknown, fix)
        read = {
            v: _checks.read(f"y[{v}]", encode(f"y[{v}]", y[v], labels.get(v)), gaps=True) for v in observable if v in y
        }
    elif are_labels(y):
        read = {v: _checks.read("y", encode("y", y, labels.get(v), used=_own(graph, v, y))) for v in observable}
    else:
        read = dict.fromkeys(observable, _checks.read("y", y, gaps=True))
    by_type, nan_missing, arrays = isinstance(y, Mapping), mask is None, {}
    for v, (array, hidden) in read.items():
        arrays[v] = _checks.as_array(f"y[{v}]" if by_type else "y", array)
        _check_shape(model, graph, v, arrays[v], by_type)
        arrays[v] = _standardized(model, graph, v, arrays[v], by_type)
        if hidden is not None:
            nodes = graph.nodes_of_type(v)
            if isinstance(model.observations[v].basis, PatternFeatures):
                arrays[v], hidden = jnp.where(hidden, jnp.nan, arrays[v]), hidden & _all_axes(hidden)[:, None]
            there = _checks.to_jax(_all_axes(~hidden))
            observed = observed.at[nodes].set(observed[nodes] & (there if by_type else there[nodes]))
    _check_values(model, graph, arrays, observed, by_type, nan_missing)
    return _observe(model, graph, arrays, observed, evidence_model, exponent, by_type, nan_missing)


def _standardized(model: KernelMRF, graph: Graph, node_type: int, y: Array, by_type: bool) -> Array:
    """Return observations in the units of the model, of the nodes of a type (`by_type`) or of all nodes."""
    if node_type not in model.obs_margins:
        return y
    nodes = graph.nodes_of_type(node_type)
    margins = model.obs_margins[node_type].of_nodes(len(nodes))
    if by_type:
        return margins.standardized(y)
    y = as_floats(y)
    return y.at[nodes].set(margins.standardized(y[nodes]).astype(y.dtype))


def _own(graph: Graph, node_type: int, y: Any) -> Any:
    """Return a mask of the nodes of a type, if y has an entry for each node of the graph."""
    own = np.asarray(graph.node_type) == node_type
    return own if len(own) == len(y) else None


def likelihood_values(
    function: Callable[[Array], Array], points: Array, num_nodes: int, checks: list[_checks.Check]
) -> Array:
    """Return the values of a likelihood at points [point, *dim], [node, point]; append their check to `checks`."""
    values = _checks.as_array("fn", function(points))
    shape = (num_nodes, len(points))
    _checks.require(values.shape == shape, "fn", f"must return values of shape {shape}", values.shape, "Broadcast it.")
    checks.append((values, check_likelihoods))
    return values


def check_likelihoods(values: np.ndarray) -> None:
    """Raise ValueError unless the values of a likelihood are finite and >= 0."""
    ok = bool(np.isfinite(values).all() and (values >= 0).all())
    fix = "Return likelihoods, not their logarithms."
    _checks.require(ok, "fn", "must return finite values >= 0", f"{np.min(values)} as the least", fix)


def nothing(model: Model, graph: Graph) -> Evidence:
    """Return empty evidence: all local factors 1."""
    nodes, (points, rank, dtype) = graph.num_nodes, model.sizes
    arrays = np.ones((nodes, points)), np.zeros((0, nodes, rank)), np.zeros((0, nodes), bool), np.zeros(0)
    local, messages, observed, exponents = (_checks.to_jax(a, bool if a.dtype == bool else dtype) for a in arrays)
    return Evidence(local, messages, observed, exponents, (), _checks.to_jax(np.zeros(nodes, bool)), {})


def _check_shape(model: KernelMRF, graph: Graph, node_type: int, y: Array, by_type: bool) -> None:
    """Check the shape of observations, given for the nodes of a type (`by_type`) or for all nodes."""
    count = {v: n for v, n, *_ in graph.node_types}[node_type]
    expected = (count if by_type else graph.num_nodes, *model.observations[node_type].basis.point.shape)
    rule = f"{f'of node type {node_type} ' if by_type else ''}must have shape {expected}"
    fix = "Give one observation for each node, of the shape of the training observations, or {node type: observations}."
    _checks.require(y.shape == expected, "y", rule, y.shape, BATCH if y.shape[1:] == expected else fix)


def _check_values(
    model: KernelMRF,
    graph: Graph,
    arrays: dict[int, Array],
    observed: Array,
    by_type: bool,
    nan_missing: bool,
) -> None:
    """Check observations {node type: y}; tracers pass."""
    if _checks.is_unread((arrays, observed, graph)):
        return
    shares = {}
    numbers = {}
    for v, y in arrays.items():
        basis = model.observations[v].basis
        if isinstance(basis, Basis | PatternFeatures) and not _checks.is_traced(model):
            with constants():
                shares[v] = represented_shares(basis, y)
                if isinstance(basis, PatternFeatures):
                    numbers[v] = basis.patterns, basis.pattern(y)
    ys, observed_, node_type, shares, numbers = jax.device_get((arrays, observed, graph.node_type, shares, numbers))
    for v, y in ys.items():
        mask = observed_[node_type == v] if by_type else observed_
        own = np.ones_like(mask) if by_type else node_type == v
        if np.issubdtype(y.dtype, np.floating):
            there = ~np.isnan(y).reshape(len(y), -1)
            in_patterns = isinstance(model.observations[v].basis, PatternFeatures)
            if v in numbers or (nan_missing and not in_patterns):
                _warn_of_partly(there[mask & own], v, numbers.get(v), mask & own)
            if in_patterns:
                y = np.where(there | ~there.any(axis=1, keepdims=True), y, 0)
            if nan_missing:
                mask = mask & _all_axes(~np.isnan(y))
        fix = "Pass mask=, False where nothing was observed, or NaN there and no mask."
        _checks.require_finite("y", y[mask], fix)
        rows = np.where(mask, np.arange(len(mask)), np.argmax(mask))  # of one shape, however many are observed
        model.observations[v].basis.check("y", jnp.asarray(y[rows] if mask.any() else y[mask]))
        if v in shares:
            _warn_of_far(shares[v][mask & own], v)


@quick_jit
def _raised(local: Array, clamped: Array, power: Array) -> Array:
    """Return local factors to a power, except those of clamped nodes."""
    positive = local > 0  # 0 ** power is 0, and its derivative too
    raised = jnp.where(positive, jnp.where(positive, local, 1) ** power, 0)
    return jnp.where(clamped[:, None], local, raised)


@quick_jit
def represented_shares(basis: Basis | PatternFeatures, x: Array) -> Array:
    """Return `represented` of points, where NaN counts as 0, or of the entries that are there."""
    if isinstance(basis, PatternFeatures):
        return basis.represented(like(x, basis.point.dtype))
    return represented(basis, in_gaps(basis, like(jnp.where(x == x, x, jnp.zeros_like(x)), basis.point.dtype)))


def _warn_of_far(shares: np.ndarray, node_type: int) -> None:
    """Warn if many observations are far from all training observations."""
    far = int(np.sum(shares < FAR))
    if far > OUTLIERS * len(shares):
        got = f"{far} of {len(shares)} observations of node type {node_type} are far from all training observations"
        fix = "Pass values in the units of the training data, or a wider obs_kernel in fit."
        warn(f"y: {got} and have no effect. {fix}", EvidenceWarning)


def _warn_of_partly(there: np.ndarray, node_type: int, used: Any, mask: np.ndarray) -> None:
    """Warn of observations of which entries are there that are not used [node, entry]."""
    partly = there.any(axis=1) & ~there.all(axis=1)
    if not partly.any():
        return
    what, fix = f"{partly.sum()} of {len(there)} observations of node type {node_type} miss entries", ""
    if used is None:
        got = f"{what}, and count as missing as a whole"
        fix = "Fit on observations with entries missing like these, of at most 15 entries, or impute them."
    else:
        patterns, number = used[0], used[1][mask]
        known = np.concatenate([patterns, np.zeros_like(patterns[:1]), np.ones_like(patterns[:1])])[number]
        rest = int(np.sum(partly & (there & ~known).any(axis=1)))
        if not rest:
            return
        got = f"{what}, {rest} of them in patterns that were not learned, of which only a part is used"
        fix = "Fit on more observations with entries missing like these, or observe them at nodes of their own."
    warn(f"y: {got}. {fix}", EvidenceWarning)


@contextmanager
def constants() -> Iterator[None]:
    """Compute with constants at once, also inside `jax.jit` and on a mesh with explicit axes."""
    if not inside_others():  # there, what is traced would compile operation by operation
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            yield
        return
    with jax.ensure_compile_time_eval(), jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        yield


def _all_axes(ok: Any) -> Any:
    """Return whether all entries of each node are True [node]."""
    return ok.reshape(len(ok), -1).all(axis=1)


@partial(quick_jit, static_argnames=("by_type", "nan_missing"))
def _observe(
    model: KernelMRF,
    graph: Graph,
    observations: dict[int, Array],
    mask: Array,
    evidence_model: EvidenceModel,
    power: Array,
    by_type: bool,
    nan_missing: bool,
) -> Evidence:
    operators = model.operators
    messages = jnp.zeros((graph.num_nodes, operators.evaluate.shape[2]), operators.evaluate.dtype)
    for v, y in observations.items():
        nodes = graph.nodes_of_type(v)
        given = mask[nodes]
        basis, operator = model.observations[v].basis, evidence_model.operator(model.observations[v])
        y = y if by_type else y[nodes]
        if isinstance(basis, PatternFeatures):
            given = given & (basis.pattern(y) < len(basis.patterns))
        elif nan_missing and jnp.issubdtype(y.dtype, jnp.floating):
            given = given & _all_axes(~jnp.isnan(y))
        y = jnp.where(expand(given, y.ndim), y, jnp.zeros_like(y))
        at = like(y, basis.point.dtype)
        at = in_gaps(basis, at) if isinstance(basis, Basis) else at
        message = matmul(features(basis, at).astype(operator.dtype), operator.T)
        message = jnp.where(given[:, None], message, 0).astype(messages.dtype)
        messages = messages.at[nodes, : message.shape[1]].set(message)
    messages = normalize(messages)
    observed = jnp.any(messages != 0, axis=1)  # True for NaN, which stays NaN
    local = jnp.where(observed[:, None], evaluate_local(operators, graph.plan, messages), 1)
    clamped, power = jnp.zeros(graph.num_nodes, bool), power.astype(local.dtype)
    local = jnp.where(power == 1, local, raise_values(local, power))  # x ** 1 may differ from x in the last digit
    return Evidence(local, messages[None], observed[None], power[None], (), clamped, {})
