"""Loopy belief propagation: `run` iterates the message update (eq. 15) until the messages converge.

The update itself is in `kbpjax.inference.update`, the order of updates in `schedules`, the iteration in `loop`, and the
derivatives of a fixed point in `implicit`. Clamped nodes ignore their incoming messages (`Plan.without_incoming`).
"""

from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from kbpjax import _checks
from kbpjax._misc import show_number, values_or_shapes, vary_like
from kbpjax._public import Checked, public
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.plan import Plan
from kbpjax.inference.acceleration import AdaptiveDamping, Anderson, check_damping
from kbpjax.inference.implicit import Iteration, fixed_point, most_products, plan_in_parts, trust
from kbpjax.inference.loop import iterate
from kbpjax.inference.operators import AnyEvidence, AnyModel, Operators, normalize
from kbpjax.inference.schedules import OnDevices, Schedule, Synchronous, all_possible, first_messages, problem_of
from kbpjax.inference.update import PlanPart, each_part, parts_of, update

Exponents = _checks.Numbers | ScalarLike | None


class Solution(Checked):
    """The messages of `run` or `run_tree`, and how they converged.

    Attributes:
        messages: message of each directed edge [edge, coordinate]: coefficients in the basis of its receiver; with
            nonnegative operators, values at the points of its receiver.
        converged: whether the last residual is at most the tolerance (1e-3 without one), and no message of
            tables is 0 everywhere, as messages are if the evidence is impossible.
        num_iters: number of iterations done.
        residual: residual of the last iteration: the largest difference between a coefficient of a message and that of
            its undamped update, of 2-norm 1; with nonnegative operators, between values, where the update has maximum
            1. 0 at a fixed point.
        residuals: residual of each iteration [num_iters]. With a tolerance, the length is 1,000, with NaN after the
            last iteration; if `num_iters` is larger, every k-th is kept.
        exponents: exponent of each undirected edge [pair]; None: 1, belief propagation.
        projected: with nonnegative operators, the coefficients of the messages [edge, rank]; else None.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(3), jnp.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
        >>> solution = kbp.run(agree, graph, local, tol=1e-4)
        >>> bool(solution.converged), solution.messages.shape  # two directed edges for each undirected one
        (True, (4, 2))
        >>> bool(solution.residual <= 1e-4)
        True
    """

    messages: Float[Array, "edge coordinate"]
    converged: Bool[Array, ""]
    num_iters: Int[Array, ""]
    residual: Float[Array, ""]
    residuals: Float[Array, " some_iters"]
    exponents: Float[Array, " pair"] | None = None
    projected: Float[Array, "edge rank"] | None = None

    @staticmethod
    def _upgrade(fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a solution that was saved by kbpjax 0.1 (see `kbpjax.io`)."""
        if "residual" in fields:
            return fields
        values = fields.pop("values", None)
        if values is not None:
            fields |= {"messages": values, "projected": fields["messages"]}
        return {**fields, "residual": fields["residuals"][fields["num_iters"] - 1]}

    @property
    def coefficients(self) -> Float[Array, "edge rank"]:
        """Coefficients of the messages in the bases of their receivers; beliefs are computed from them."""
        return self.messages if self.projected is None else self.projected

    @values_or_shapes
    def __repr__(self) -> str:
        if np.ndim(self.converged):
            converged = f"{int(np.sum(self.converged))} of {np.size(self.converged)} problems converged"
            return f"Solution({converged}, residuals up to {show_number(np.max(self.residual))})"
        state = "converged in" if self.converged else "NOT converged after"
        return f"Solution({state} {int(self.num_iters)} iterations, residual {float(self.residual):.2g})"


@public
def run(
    model: AnyModel,
    graph: Graph,
    evidence: AnyEvidence = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike | AdaptiveDamping = 0.2,
    tol: ScalarLike | None = None,
    exponents: Exponents = None,
    schedule: Schedule = Synchronous(),
    acceleration: Anderson | None = None,
    start: "Solution | Array | None" = None,
) -> Solution:
    r"""Run loopy belief propagation, for a fixed number of iterations or until the residual is at most `tol`.

    One iteration evaluates the incoming messages of each node, multiplies them with the evidence, and projects the
    product (eq. 15):

    $$m_{ts} \leftarrow \mathrm{project}_{ts} \Big(\mathrm{local}_t \odot
    \prod_{u \in \Gamma_t \setminus s} \mathrm{evaluate}_t \, m_{ut}\Big).$$

    Updates are normalized to 2-norm 1, so that the scales of tables and evidence do not matter. With damping $d$, the
    new message is $d$ times the old one plus $1 - d$ times its update.

    Args:
        model: a `KernelMRF`, or custom `Operators`.
        graph: the graph; the model must have all its types.
        evidence: `Evidence`, or local factors [node, point], or None for none.
        num_iters: number of iterations, >= 1; with `tol`, the maximum.
        damping: weight d of the old message, in [0, 1); or `AdaptiveDamping()`.
        tol: stop once the residual is at most this: no coefficient of any message (of 2-norm 1) differs by more from
            its undamped update; with nonnegative operators, no value (maximum 1). Derivatives, in both modes, are then
            those of the fixed point (implicit function theorem), in the memory of a few iterations, with relative
            accuracy about tol, and NaN unless converged. None: run all iterations, and differentiate through them.
        exponents: exponent of each undirected edge [pair], > 0, in the order in which the edges were given, or one for
            all. None: 1, belief propagation. Edge appearance probabilities, of `tree_reweighting(graph)`:
            tree-reweighted belief propagation. Others: fractional belief propagation.
        schedule: `Synchronous()`, `colored(graph)`, a partition of `kbpjax.sharded`, or your own `Schedule`.
        acceleration: `Anderson(depth)`, or None. Best with damping 0.
        start: initial messages: a previous solution (of any number of iterations, evidence or damping), so that
            `num_iters=1, start=solution` does one more iteration; or an array of the shape of `Solution.messages`, of
            any scale. None: constant messages (see `Operators.constant`).

    Returns:
        The solution. No error is raised if it has not converged: see `check`, `Solution.converged` and `residuals`.

    Raises:
        ValueError: an option out of range, a type that the model does not have, evidence or start of another shape.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.grid_graph(2, 2), np.linspace(-1, 1, 80).reshape(20, 4)
        >>> model = kbp.fit(kbp.pool(graph, x, observations=x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
        >>> evidence = kbp.observe(model, graph, [0.5, 0.5, 0.5, np.nan], mask=[True, True, True, False])
        >>> solution = kbp.run(model, graph, evidence, num_iters=200, tol=1e-2)
        >>> bool(solution.converged)
        True
        >>> kbp.mode(kbp.beliefs(model, graph, evidence, solution, np.linspace(-1, 1, 5))).tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    check_options(num_iters, damping, tol, schedule, acceleration)
    operators, local, clamped = prepare_inputs(model, graph, evidence)
    graph = own_graph(model, graph)
    powers = pair_exponents(graph, exponents, local.dtype)
    first = None if start is None else check_start(start, operators, graph)
    damping = strong_damping(damping, local.dtype)
    given = operators, local, clamped, first, powers, damping
    plan = _plan(schedule, graph)
    if tol is None:
        return _run(plan, None, *given, schedule, acceleration, None, None, num_iters)
    differentiated = graph.num_edges > 0 and _checks.is_traced((operators, local, powers))
    parts = plan_in_parts(graph) if differentiated and not isinstance(schedule, OnDevices) else None
    tol, most = strong(tol, local.dtype), np.int32(num_iters)
    return _run(plan, parts, *given, schedule, acceleration, tol, most, None)


@partial(jax.jit, static_argnames="num_iters")
def _run(
    plan: Plan,
    parts: Plan | None,
    operators: Operators,
    local: Array,
    clamped: Array | None,
    first: Array | None,
    exponents: Array | None,
    damping: Any,
    schedule: Schedule,
    acceleration: Anderson | None,
    tol: Array | None,
    most: Array | None,
    num_iters: int | None,
) -> Solution:
    """Iterate by `plan`; with a tolerance, differentiate the fixed point by `parts`, one part at a time."""
    fixed = operators, local, exponents, damping
    if tol is not None:  # derivatives are those of the fixed point, not of the iterations
        fixed, first = jax.lax.stop_gradient((fixed, first))
    problem = problem_of(schedule, plan, fixed[0], fixed[1], clamped, fixed[2])
    plan, devices = problem.plan, schedule if isinstance(schedule, OnDevices) else None
    messages = first_messages(fixed[0], plan) if first is None else plan.laid_out(first)
    messages = messages if devices is None else devices.place(messages)
    sweep, messages = partial(schedule.sweep, problem), vary_like(messages, (problem, fixed[3], tol, most))
    start = vary_like(schedule.init(problem), messages)
    limit = num_iters if tol is None else most
    last, residuals = iterate(sweep, start, messages, fixed[3], acceleration, tol, limit)

    converged = (last.residual <= (1e-3 if tol is None else tol)) & all_possible(operators, last.messages, plan)
    threshold = jnp.asarray(1e-3, local.dtype) if tol is None else tol
    limits = threshold, jnp.int32(1) if most is None else most_products(most)
    if devices is not None:
        iteration = devices.iteration(operators, devices.parts(plan, local, clamped, exponents), *limits)
        fixes = tol is not None and plan.position.size > 0
        rows = trust(fixed_point(iteration, last.messages), converged) if fixes else last.messages
        messages, projected = devices.replicate(plan.of_edges(rows)), None
        if operators.nonnegative is not None:
            updates = normalize(iteration.updates(rows, operators.project))
            projected = devices.replicate(plan.of_edges(updates))
        return Solution(messages, converged, last.count, last.residual, residuals, exponents, projected)
    messages = plan.of_edges(last.messages)
    differentiated = parts is not None
    parts = parts.without_incoming(clamped) if differentiated else plan
    laid_out = parts_of(parts, local, exponents)
    if differentiated and tol is not None:
        limits = vary_like(limits, messages)  # within a linear solve, jax does not mark them itself
        iteration = Iteration(operators, laid_out, parts.place, *limits)
        rows = fixed_point(iteration, parts.laid_out(messages))
        messages = parts.of_edges(trust(rows, converged))
    projected = _projected(operators, parts, laid_out, messages)
    return Solution(messages, converged, last.count, last.residual, residuals, exponents, projected)


def constant_messages(model: AnyModel, graph: Graph) -> Float[Array, "edge coordinate"]:
    """Return the messages before the first iteration, in the order of edges."""
    operators, _, _ = prepare_inputs(model, graph, None)
    return graph.plan.of_edges(first_messages(operators, graph.plan))


def coefficients_of(
    model: AnyModel, graph: Graph, evidence: AnyEvidence, messages: Array, exponents: Exponents = None
) -> Float[Array, "edge rank"] | None:
    """Return `Solution.projected` of the messages of nonnegative operators; None for other operators."""
    operators, local, clamped = prepare_inputs(model, graph, evidence)
    plan = graph.plan.without_incoming(clamped)
    powers = pair_exponents(graph, exponents, local.dtype)
    return _projected(operators, plan, parts_of(plan, local, powers), messages)


@jax.jit
def _projected(operators: Operators, plan: Plan, parts: PlanPart, messages: Array) -> Float[Array, "edge rank"] | None:
    """Return the coefficients of messages of nonnegative operators; None for other operators."""
    if operators.nonnegative is None:
        return None
    rows = plan.laid_out(messages)
    coefficients = lambda part: normalize(update(operators, part, rows, operators.project))
    return plan.of_edges(each_part(coefficients, parts))


@runtime_checkable
class Posterior(Protocol):
    """What functions of inference read of a `kbpjax.Posterior`: a problem with its solution."""

    @property
    def model(self) -> Any:
        """The model."""
        ...

    @property
    def model_of_messages(self) -> Any:
        """The model with the operators that the messages are of."""
        ...

    @property
    def graph(self) -> Graph:
        """The graph."""
        ...

    @property
    def evidence(self) -> Any:
        """The evidence; None: none."""
        ...

    @property
    def solution(self) -> Solution:
        """The messages."""
        ...


def solved(model: Any, graph: Any, evidence: Any, solution: Any) -> tuple[Any, Graph, Any, Solution]:
    """Return model, graph, evidence and solution: those of a posterior, or the arguments."""
    if isinstance(model, Posterior):
        ok = graph is None and evidence is None and solution is None
        _checks.require(ok, "graph", "must be left out with a posterior", "one", "Pass the posterior alone.")
        batch = jnp.shape(model.solution.residual)
        fix = "Call this inside the function that jax.vmap maps over the posterior."
        _checks.require(not batch, "posterior", "must be of one problem", f"batch axes {batch}", fix)
        return model.model_of_messages, model.graph, model.evidence, model.solution
    for name, value, kind in (("graph", graph, Graph), ("solution", solution, Solution)):
        fix = "Pass a posterior, or (model, graph, evidence, solution)."
        _checks.require(isinstance(value, kind), name, f"must be a {kind.__name__}", type(value).__name__, fix)
    return model, own_graph(model, graph), evidence, solution


def own_graph(model: Any, graph: Graph) -> Graph:
    """Return the graph with the edge types of a model that has separate relations of single edges or of cells."""
    return model.graph_of(graph) if hasattr(model, "graph_of") else graph


class Inputs(NamedTuple):
    """Checked inputs of inference: operators, local factors [node, point], clamped nodes [node] (None: none)."""

    operators: Operators
    local: Float[Array, "node point"]
    clamped: Bool[Array, " node"] | None


def prepare_inputs(model: AnyModel, graph: Graph, evidence: AnyEvidence) -> Inputs:
    """Check a model and evidence against a graph; return the inputs of inference."""
    ok = isinstance(graph, Graph)
    fix = "The model comes first: run(model, graph, evidence)."
    _checks.require(ok, "graph", "must be a kbpjax.Graph", type(graph).__name__, fix)
    if isinstance(model, Operators):
        operators = model
    else:
        fine = hasattr(model, "operators") and hasattr(model, "check_types")
        fix = "Pass what kbpjax.fit returned."
        _checks.require(fine, "model", "must be a KernelMRF or Operators", type(model).__name__, fix)
        operators = model.operators
        model.check_types(graph)
    Operators.check_types(operators, graph)  # by the class: the bound method of a module is slow to make
    shape, dtype = (graph.num_nodes, operators.evaluate.shape[1]), operators.evaluate.dtype
    is_array = evidence is not None and not hasattr(evidence, "local")  # `isinstance` of a protocol is slow
    if evidence is None:
        local = jnp.ones(shape, dtype)
    else:
        given: Any = evidence
        local = _checks.as_array("evidence", evidence) if is_array else given.local
        local = local if local.dtype == dtype else local.astype(dtype)
    if local.shape != shape:
        fix = "Make the evidence with the same model and graph."
        _checks.require(False, "evidence", f"local factors must have shape {shape}", local.shape, fix)
    if is_array:
        _check_factors(local)
    has_clamps = not is_array and bool(getattr(evidence, "values", None))  # a frame has `values`, too
    clamped = getattr(evidence, "clamped", None) if has_clamps else None
    with_starts = getattr(model, "with_starts", None)
    if with_starts is not None:
        given, (operators, local) = local, with_starts(graph, local)
        local = local if clamped is None else jnp.where(clamped[:, None], given, local)
    return Inputs(operators, local, clamped)


def _check_factors(local: Array) -> None:
    """Raise ValueError unless local factors [node, point] are finite, >= 0, and > 0 at a point of each node."""
    _checks.require_finite("evidence", local, "Use factors >= 0, 1 for nodes without evidence.")
    if _checks.is_traced(local):
        return
    values = np.asarray(local)
    if not (values >= 0).all():
        fix = "Factors are likelihoods, not logarithms."
        _checks.require(False, "evidence", "local factors must be >= 0", f"{values.min():.4g} as the least", fix)
    if not (values > 0).any(axis=1).all():
        empty = np.flatnonzero(~(values > 0).any(axis=1))[:3].tolist()
        rule, fix = "local factors must be > 0 at a point of each node", "Pass 1 for nodes without evidence."
        _checks.require(False, "evidence", rule, f"0 at all points of nodes {empty}", fix)


def strong_damping(damping: Any, dtype: Any) -> Any:
    """Return the damping as a strongly typed array, so that all kinds of numbers use the same compiled program."""
    if isinstance(damping, AdaptiveDamping):
        return damping
    return strong(damping, dtype)


def _plan(schedule: Any, graph: Graph) -> Plan:
    """Return `schedule.plan(graph)`, by the class: the bound method of a module is slow to make."""
    return type(schedule).plan(schedule, graph)


def strong(value: Any, dtype: Any) -> Any:
    """Return a number as an array of a dtype: of NumPy, whose transfer is part of the call, if it is not one of JAX."""
    return jnp.asarray(value, dtype) if isinstance(value, jax.Array) else np.asarray(value, dtype)


def check_start(start: Any, operators: Operators, graph: Graph) -> Float[Array, "edge coordinate"]:
    """Return the initial messages: those of a solution unchanged, arrays normalized to 2-norm 1."""
    messages = jnp.asarray(start.messages if isinstance(start, Solution) else start, operators.update.dtype)
    check_messages("start", messages, operators, graph)
    _checks.require_finite("start", messages, "Start from None, the constant messages.")
    return messages if isinstance(start, Solution) else normalize(messages)


def check_messages(argument: str, messages: Array, operators: Operators, graph: Graph) -> None:
    """Raise ValueError unless messages have the shape of a model and a graph."""
    shape = (graph.num_edges, operators.update.shape[1])
    fix = "Pass what kbpjax returned for this model and graph, or messages of the shape of `Solution.messages`."
    _checks.require(messages.shape == shape, argument, f"messages must have shape {shape}", messages.shape, fix)


def pair_exponents(graph: Graph, exponents: Exponents, dtype: Any) -> Float[Array, " pair"] | None:
    """Check exponents, and return one for each undirected edge; None for belief propagation."""
    if exponents is None:
        return None
    powers = jnp.asarray(exponents, dtype)
    shape = (graph.num_edges // 2,)
    fix = "Pass kbpjax.tree_reweighting(graph), or one number for all edges."
    _checks.require(powers.shape in ((), shape), "exponents", f"must have shape {shape} or ()", powers.shape, fix)
    if not _checks.is_unread(powers):
        values = np.asarray(powers)
        outside = values[~((values > 0) & np.isfinite(values))].reshape(-1)[:3].tolist()
        _checks.require(not outside, "exponents", "must be > 0 and finite", outside, fix)
    return jnp.broadcast_to(powers, shape)


def check_options(num_iters: int, damping: Any, tol: Any, schedule: Any, acceleration: Any) -> None:
    """Check the options of `run`."""
    _checks.require_count("num_iters", num_iters)
    fix = "Pass tol= to stop once the messages have converged."
    if tol is None:
        _checks.require_memory("num_iters", "the residuals of all iterations", 8 * num_iters, fix)
    if not isinstance(damping, AdaptiveDamping):
        check_damping(damping)
    if tol is not None:
        _checks.require_number("tol", tol, above=0)
    if not isinstance(schedule, Schedule):
        fix = "Pass kbpjax.Synchronous() or kbpjax.colored(graph); for your own, see help(kbpjax.Schedule)."
        _checks.require(False, "schedule", "must have the methods plan, init and sweep", repr(schedule)[:80], fix)
    if not (acceleration is None or isinstance(acceleration, Anderson)):
        fix = "Pass kbpjax.Anderson(depth) or None."
        _checks.require(False, "acceleration", "must be an acceleration", repr(acceleration), fix)
