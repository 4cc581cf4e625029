r"""Belief propagation: the update of messages (see `kbpjax.update`) in a loop, for a fixed count or to a tolerance.

Damping mixes the old message, of norm 1, with the new one before that is normalised, so an update that is small
(incoming messages that disagree) moves a message little. From nine incoming messages on, their product is rescaled on
the way, and its size no longer says so much.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from kbpjax import _checks, parts
from kbpjax.acceleration import AdaptiveDamping, Anderson
from kbpjax.graph import Graph
from kbpjax.implicit import InParts, Iteration, fixed_point, in_parts, trust
from kbpjax.loops import BPState as BPState
from kbpjax.loops import iterate, start_state
from kbpjax.schedules import Coloured, InPlace, ResidualFirst, Schedule, Synchronous
from kbpjax.update import Operators, check_types, coefficients, of_type, unit, untile

Exponents = _checks.Numbers | ScalarLike | None


class Solution(eqx.Module):
    """The outcome of `run` or `run_tree`.

    Attributes:
        messages: coefficients of each directed edge's message [edge, rank].
        converged: whether the last residual is at most the tolerance asked for (1e-3 where none was).
        num_iters: iterations done.
        residuals: residual of each iteration [max_iters]; NaN after the last one done.
        exponents: exponent of each undirected edge [pair]; None: 1, belief propagation.
        values: values of the messages at the points of their receivers [edge, point], of 2-norm 1, where the model is
            positive and these are passed on; else None.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(3), jnp.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
        >>> solution = kbp.run(agree, graph, local, tol=1e-4)
        >>> bool(solution.converged), solution.messages.shape  # two directed edges for each of the two
        (True, (4, 2))
        >>> bool(solution.residuals[solution.num_iters - 1] <= 1e-4)
        True
    """

    messages: Float[Array, "edge rank"]
    converged: Bool[Array, ""]
    num_iters: Int[Array, ""]
    residuals: Float[Array, " max_iters"]
    exponents: Float[Array, " pair"] | None = None
    values: Float[Array, "edge point"] | None = None

    @property
    def passed_on(self) -> Float[Array, "edge coordinate"]:
        """The messages in the form in which they are passed on: `values`, or `messages`."""
        return self.messages if self.values is None else self.values


def init(model: Any, graph: Graph) -> BPState:
    """Return the state before the first iteration: each message is the update of 1, in a learned model the constant.

    Args:
        model: a `KernelMRF`, or `Operators` of one's own.
        graph: the graph; its types must be among those of the model.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(3), jnp.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
        >>> state = kbp.init(agree, graph)
        >>> int(state.count), bool(jnp.allclose(state.messages, state.messages[0, 0]))  # all constant
        (0, True)
    """
    operators, _, _ = problem(model, graph, None)
    check_types(operators, graph)
    return _init(operators, graph)


@jax.jit
def _init(operators: Operators, graph: Graph) -> BPState:
    ones = jnp.sum(of_type(operators.passed_on, graph.edge_tiles.types), axis=-1)
    spread = jnp.broadcast_to(ones[:, None], (*graph.edge_tiles.rows.shape, ones.shape[-1]))
    return start_state(unit(untile([spread], graph.edge_place))[0])


def step(
    model: Any,
    graph: Graph,
    evidence: Any,
    state: BPState,
    *,
    damping: ScalarLike = 0.2,
    exponents: Exponents = None,
    schedule: Schedule = Synchronous(),
) -> BPState:
    """Return the state after one iteration: `run` without `tol` does this `num_iters` times.

    Args:
        model: a `KernelMRF`, or `Operators` of one's own.
        graph: the graph; its types must be among those of the model.
        evidence: `Evidence`, or local factors [node, point], or None for none.
        state: the state before, of `init` or `step`.
        damping: weight of the old message, in [0, 1), against that of the update before it is scaled to norm 1.
        exponents: exponent of each undirected edge, > 0, or one for all; None: 1.
        schedule: which messages are updated, and from which others.

    Returns:
        The next state.

    Raises:
        ValueError: an option out of range, a type that the model has not learned, or evidence of another shape.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(3), jnp.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
        >>> state = kbp.init(agree, graph)
        >>> for _ in range(3):
        ...     state = kbp.step(agree, graph, local, state, damping=0.0)
        >>> int(state.count), bool(state.residual < 1e-4)  # twice to reach the other end, once more to see no change
        (3, True)
    """
    check_damping(damping)
    operators, known, local = problem(model, graph, evidence)
    check_types(operators, graph)
    schedule = _for_evidence(schedule, graph, evidence)
    weight = jnp.asarray(damping, state.messages.dtype)
    powers = pair_exponents(graph, exponents, state.messages.dtype)
    return _step(operators, known, local, state, weight, powers, schedule)


@jax.jit
def _step(
    operators: Operators,
    graph: Graph,
    local: Array,
    state: BPState,
    weight: Array,
    powers: Array | None,
    schedule: Schedule,
) -> BPState:
    messages, change = schedule.sweep(operators, graph, local, state.messages, weight, powers)
    return BPState(messages, change, state.count + 1)


def run(
    model: Any,
    graph: Graph,
    evidence: Any = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike | AdaptiveDamping = 0.2,
    tol: ScalarLike | None = None,
    exponents: Exponents = None,
    schedule: Schedule = Synchronous(),
    acceleration: Anderson | None = None,
    start: "Solution | Array | None" = None,
) -> Solution:
    r"""Run `step` a fixed number of times, or until the residual is at most `tol`.

    One iteration evaluates the incoming messages of each node, multiplies them with the evidence, and projects the
    product (eq. 15):

    $$m_{ts} \leftarrow \mathrm{project}_{ts} \Big(\mathrm{local}_t \odot
    \prod_{u \in \Gamma_t \setminus s} \mathrm{evaluate}_t \, m_{ut}\Big).$$

    With damping $d$, the new message is $d$ times the old message plus $1 - d$ times this update. It is then scaled to
    norm 1.

    Args:
        model: a `KernelMRF`, or `Operators` of one's own.
        graph: the graph; its types must be among those of the model.
        evidence: `Evidence`, or local factors [node, point], or None for none.
        num_iters: iterations, >= 1; with `tol` the most there can be.
        damping: weight of the old message, in [0, 1), against that of the update before it is scaled to norm 1: an
            update that is small, because incoming messages disagree, moves a message less than the number says. Or
            `AdaptiveDamping()`.
        tol: stop once the residual is at most this: no coefficient of any message (of 2-norm 1) differs by more from
            its undamped update; of positive messages, no value (maximum 1). Derivatives, in either mode, are then those
            of the fixed point (implicit function theorem), in the memory of a few iterations; to a relative accuracy
            of about tol; NaN unless converged. None: run all iterations, and differentiate through them.
        exponents: exponent of each undirected edge [pair], > 0, in the order in which the edges were given, or one for
            all. None: 1, belief propagation; `tree_reweighting(graph)`: tree-reweighted belief propagation;
            others: fractional belief propagation.
        schedule: `Synchronous()`, `coloured(graph)` or `ResidualFirst(share)`.
        acceleration: `Anderson(depth)`, or None. Best with damping 0.
        start: where to start: a solution (of another number of iterations, evidence, or damping), or messages as
            `Solution.passed_on` has them. None: constant messages.

    Returns:
        The messages and how they got there. Not to have converged is no error: see `check`, `Solution.converged` and
        `residuals`.

    Raises:
        ValueError: an option out of range, a type that the model has not learned, evidence or a start of another shape.

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
    operators, known, local = problem(model, graph, evidence)
    schedule = _for_evidence(schedule, graph, evidence)
    powers = pair_exponents(graph, exponents, local.dtype)
    first = None if start is None else first_messages(operators, graph, start)
    # Arrays of one type: a Python number, one of NumPy and one of JAX would each compile a program of its own.
    damping = damping if isinstance(damping, AdaptiveDamping) else jnp.asarray(damping, local.dtype)
    tol = None if tol is None else jnp.asarray(tol, local.dtype)
    parts = None
    differentiable = tol is not None and _checks.is_traced((operators, local, powers, damping))
    if differentiable and not isinstance(schedule, Coloured) and not _checks.is_traced(graph):
        parts = in_parts(graph, None if known is graph else evidence.clamped)
    return _run(operators, known, local, first, powers, damping, schedule, acceleration, parts, tol, num_iters)


def _for_evidence(schedule: Schedule, graph: Graph, evidence: Any) -> Schedule:
    """Check that a schedule is of the graph; return that in which clamped nodes ignore their incoming messages."""
    if isinstance(schedule, Coloured):
        schedule.check(graph)
    return schedule.ignore_incoming(evidence.clamped) if getattr(evidence, "values", None) else schedule


def problem(model: Any, graph: Graph, evidence: Any) -> tuple[Operators, Graph, Float[Array, "node point"]]:
    """Return what inference works on: operators checked against the graph, the graph after clamps, local factors."""
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
    shape, dtype = (graph.num_nodes, operators.evaluate.shape[1]), operators.evaluate.dtype
    local = jnp.ones(shape, dtype) if evidence is None else jnp.asarray(getattr(evidence, "local", evidence), dtype)
    fix = "Make the evidence with the same model and graph."
    _checks.require(local.shape == shape, "evidence", f"local factors must have shape {shape}", local.shape, fix)
    if not getattr(evidence, "values", None):  # empty where no clamp was made
        return operators, graph, local
    return operators, ignore_incoming(graph, evidence.clamped), local  # pyright: ignore[reportOptionalMemberAccess]


@partial(jax.jit, static_argnames="num_iters")
def _run(
    operators: Operators,
    graph: Graph,
    local: Array,
    first: Array | None,
    exponents: Array | None,
    damping: Any,
    schedule: Schedule,
    acceleration: Anderson | None,
    parts: InParts | None,
    tol: ScalarLike | None,
    num_iters: int,
) -> Solution:
    given = operators, local, first, exponents, damping
    if tol is not None:  # derivatives are of what is found, not of how
        given = jax.lax.stop_gradient(given)
    last, residuals = _search(graph, *given, schedule, acceleration, tol, num_iters)
    enough = jnp.asarray(1e-3 if tol is None else tol, local.dtype)
    if tol is not None and graph.num_edges > 0:
        turns = parts or (Synchronous() if isinstance(schedule, ResidualFirst) else schedule)
        weight = jnp.asarray(0.5 if isinstance(damping, AdaptiveDamping) else damping, local.dtype)
        iteration = Iteration(operators, graph, local, weight, exponents, turns, enough, 2 * int(num_iters))
        messages = fixed_point(iteration, last.messages)
        last = replace(last, messages=trust(messages, last.residual <= enough))

    if operators.positive is None:
        return Solution(last.messages, last.residual <= enough, last.count, residuals, exponents)
    read = coefficients if parts is None else parts.coefficients
    messages = read(operators, graph, local, last.messages, exponents)
    return Solution(messages, last.residual <= enough, last.count, residuals, exponents, last.messages)


def _search(
    graph: Graph,
    operators: Operators,
    local: Array,
    first: Array | None,
    exponents: Array | None,
    damping: Any,
    schedule: Schedule,
    acceleration: Anderson | None,
    tol: ScalarLike | None,
    num_iters: int,
) -> tuple[BPState, Array]:
    """Iterate; return the last state and all residuals."""
    messages = init(operators, graph).messages if first is None else first
    turns = InPlace.of(graph) if isinstance(schedule, Synchronous) and exponents is None else schedule

    def sweep(local: Array, messages: Array, damping: Array) -> tuple[Array, Array]:
        return turns.sweep(operators, graph, local, messages, damping, exponents)

    if isinstance(turns, InPlace):
        messages = messages.at[turns.rows].get(mode="fill", fill_value=0)
    last, residuals = iterate(sweep, local, messages, damping, acceleration, tol, num_iters)
    if isinstance(turns, InPlace):
        last = replace(last, messages=last.messages[turns.place])
    return last, residuals


def first_messages(operators: Operators, graph: Graph, start: Any) -> Array:
    """Check the messages to start from and scale them to norm 1."""
    messages = start.passed_on if isinstance(start, Solution) else jnp.asarray(start)
    shape = (graph.num_edges, operators.passed_on.shape[1])
    fix = "Pass a solution of the same model and graph, or messages as its `passed_on` has them."
    _checks.require(messages.shape == shape, "start", f"messages must have shape {shape}", messages.shape, fix)
    _checks.require_finite("start", messages, "Start from None, the constant messages.")
    return unit(messages.astype(operators.passed_on.dtype))[0]


def pair_exponents(graph: Graph, exponents: Exponents, dtype: Any) -> Float[Array, " pair"] | None:
    """Check exponents, and return one for each undirected edge; None for belief propagation."""
    if exponents is None:
        return None
    powers = jnp.asarray(exponents, dtype)
    shape = (graph.num_edges // 2,)
    fix = "Pass kbpjax.tree_reweighting(graph), or one number for all edges."
    _checks.require(powers.shape in ((), shape), "exponents", f"must have shape {shape} or ()", powers.shape, fix)
    if not _checks.is_traced(powers):
        values = np.asarray(powers)
        outside = values[~((values > 0) & np.isfinite(values))].reshape(-1)[:3].tolist()
        _checks.require(not outside, "exponents", "must be > 0 and finite", outside, fix)
    return jnp.broadcast_to(powers, shape)


def ignore_incoming(graph: Graph, nodes: Bool[Array, " node"]) -> Graph:
    """Return the graph in which the incoming messages of the marked nodes count as 1, as for a value that is known.

    What a marked node sends depends on its local factor alone. Messages to it are still computed.

    Args:
        graph: the graph.
        nodes: the nodes that ignore their incoming messages [node].
    """
    schedule = None if graph.schedule is None else graph.schedule.ignore_incoming(nodes)
    return replace(graph, slots=parts.ignore_incoming(graph, nodes), schedule=schedule)


def check_options(num_iters: int, damping: Any, tol: Any, schedule: Any, acceleration: Any) -> None:
    """Check the options of `run`."""
    _checks.require_count("num_iters", num_iters)
    if not isinstance(damping, AdaptiveDamping):
        check_damping(damping)
    if tol is not None:
        _checks.require_number("tol", tol, above=0)
    fix = "Pass kbpjax.Synchronous(), kbpjax.coloured(graph) or kbpjax.ResidualFirst(share)."
    _checks.require(isinstance(schedule, Schedule), "schedule", "must be a schedule", repr(schedule), fix)
    ok = acceleration is None or isinstance(acceleration, Anderson)
    fix = "Pass kbpjax.Anderson(depth) or None."
    _checks.require(ok, "acceleration", "must be an acceleration", repr(acceleration), fix)


def check_damping(damping: Any) -> None:
    """Check the weight of the old message."""
    fix = "It is the weight of the OLD message: 0 takes the new one whole, 0.2 to 0.8 help where loops oscillate."
    _checks.require_number("damping", damping, least=0, below=1, fix=fix)
