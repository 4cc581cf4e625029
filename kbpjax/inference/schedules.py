"""Message schedules for `kbpjax.run`: the messages that an iteration updates, and their order.

- `Synchronous`: all messages at once;
- `colored(graph)`: one color of nodes after another, from the newest messages (red-black on grids);
- `kbpjax.sharded.partition_graph(graph)`: all messages at once, on several devices.

An iteration computes the update of every message once, so that iterations of all schedules cost about the same. To
write another schedule, see `Schedule`.
"""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import values_or_shapes
from kbpjax._public import Checked, public
from kbpjax.graphs.coloring import color_nodes
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.plan import Plan
from kbpjax.inference.operators import Operators, is_zero, largest_coordinate, normalize
from kbpjax.inference.update import PlanPart, damp, factors_of, parts_of, send, update_from

UNROLLED = 16
"""Largest number of colors whose updates are written one after the other: in a loop, XLA copies all messages for each
(`benchmarks/side_by_side.py`)."""


class Problem(eqx.Module):
    """The fixed inputs of all iterations of a run.

    Attributes:
        operators: the model's operators.
        plan: the index tables of the schedule.
        parts: the parts of the plan with their local factors.
    """

    operators: Operators
    plan: Plan
    parts: PlanPart


@runtime_checkable
class Schedule(Protocol):
    """A message schedule: an `equinox.Module`, or another pytree, with these three methods.

    `Synchronous` has them, so a class that inherits from it overrides what differs. `kbpjax.inference.update.send`
    updates the messages of one part of a plan.

    Examples:
        >>> import equinox as eqx, jax, jax.numpy as jnp, kbpjax as kbp
        >>> class Halves(kbp.Synchronous):  # a random half of the messages in each iteration; the state is a key
        ...     def init(self, problem):
        ...         return jax.random.key(0)
        ...
        ...     def sweep(self, problem, state, messages, damping):
        ...         new, residual, _ = super().sweep(problem, (), messages, damping)
        ...         state, now = jax.random.split(state)
        ...         chosen = jax.random.bernoulli(now, shape=messages.shape[:1])
        ...         return jnp.where(chosen[:, None], new, messages), residual, state
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(9), jnp.ones((9, 2)).at[0, 0].set(8.0)
        >>> bool(kbp.run(agree, graph, local, num_iters=200, tol=1e-4, damping=0.0, schedule=Halves()).converged)
        True
    """

    def plan(self, graph: Graph) -> Plan:
        """Return the parts of the nodes that send one after the other; see `Graph.plan` and `Graph.plan_of`."""
        ...

    def init(self, problem: Problem) -> Any:
        """Return the state before the first iteration, a pytree of arrays; () for none."""
        ...

    def sweep(self, problem: Problem, state: Any, messages: Array, damping: Array) -> tuple[Array, Array, Any]:
        """Do one iteration.

        Args:
            problem: the fixed inputs.
            state: the state, of `init` or of the last iteration.
            messages: the messages [row, coordinate], in the order of the plan.
            damping: weight of the old message.

        Returns:
            The new messages, the residual of the old ones (the largest change of an undamped update), and the state.
        """
        ...


@runtime_checkable
class OnDevices(Schedule, Protocol):
    """A schedule that places the messages on several devices, and differentiates fixed points there."""

    def parts(self, plan: Plan, local: Array, clamped: Array | None, exponents: Array | None) -> PlanPart:
        """Return the parts of the plan with their local factors; clamped nodes ignore their incoming messages."""
        ...

    def place(self, rows: Array) -> Array:
        """Return messages split over the devices."""
        ...

    def replicate(self, messages: Array) -> Array:
        """Return messages in the order of edges, on every device."""
        ...

    def iteration(self, operators: Operators, parts: PlanPart, tol: Array, most: Array) -> Any:
        """Return the iteration whose fixed point is differentiated, a `kbpjax.inference.implicit.Iteration`."""
        ...


def problem_of(
    schedule: Schedule,
    plan: Plan,
    operators: Operators,
    local: Float[Array, "node point"],
    clamped: Bool[Array, " node"] | None,
    exponents: Float[Array, " pair"] | None,
) -> Problem:
    """Return the fixed inputs of a schedule's iterations."""
    if isinstance(schedule, OnDevices):
        return Problem(operators, plan, schedule.parts(plan, local, clamped, exponents))
    plan = plan.without_incoming(clamped)
    return Problem(operators, plan, parts_of(plan, local, exponents))


def in_rows(messages: Float[Array, "edge_direction coordinate"], plan: Plan) -> Float[Array, "row coordinate"]:
    """Return the message of the direction of each row; 0 in padding."""
    kinds = plan.kinds if len(messages) > 1 else jnp.zeros_like(plan.kinds)
    size = len(plan.edges) // max(1, plan.kinds.size)
    rows = jnp.broadcast_to(messages[kinds][..., None, :], (*plan.kinds.shape, size, messages.shape[1]))
    return jnp.where(plan.present.reshape(-1, 1), rows.reshape(-1, messages.shape[1]), 0)


def updates_of_one(operators: Operators) -> Float[Array, "edge_direction coordinate"]:
    """Return the update of 1 of each direction, not normalized."""
    return operators.arithmetic.apply_to_one(operators.update)


def first_messages(operators: Operators, plan: Plan) -> Float[Array, "row coordinate"]:
    """Return the messages before the first iteration, which are constant (see `Operators.constant`)."""
    return normalize(in_rows(constants(operators), plan))


def constants(operators: Operators) -> Float[Array, "edge_direction coordinate"]:
    """Return the constant message of each direction, not normalized."""
    if operators.constant is not None:
        return operators.constant
    return jnp.ones_like(operators.update[..., 0]) if operators.values else updates_of_one(operators)


def all_possible(operators: Operators, rows: Float[Array, "row coordinate"], plan: Plan) -> Bool[Array, ""]:
    """Return whether no message is 0 everywhere, as they are if the evidence is impossible under tables of values."""
    if not operators.values:
        return jnp.array(True)
    return jnp.all(~is_zero(rows) | ~plan.present.reshape(-1))


def send_all(problem: Problem, messages: Array, damping: Array) -> tuple[Array, Array]:
    """Return `send` of a plan with one part: new messages, and their undamped change."""
    part = jax.tree.map(lambda array: array[0], problem.parts)
    return send(problem.operators, part, messages, messages, damping)


def largest_change(operators: Operators, old: Array, change: Array) -> Float[Array, ""]:
    """Return the largest of `changes`."""
    if operators.nonnegative is None:  # one reduction is faster than the maximum of each message
        return jnp.max(jnp.abs(change), initial=0)
    return jnp.max(changes(operators, old, change), initial=0)


def changes(operators: Operators, old: Array, change: Array) -> Float[Array, " sent"]:
    """Return the largest absolute change of a coefficient of each message, whose update has 2-norm 1.

    Messages of nonnegative operators are values: the largest change of a value, relative to the update's maximum.
    """
    if change.size == 0:
        return jnp.zeros_like(change, shape=len(change))
    difference = largest_coordinate(jnp.abs(change))[:, 0]
    if operators.nonnegative is None:
        return difference
    largest = largest_coordinate(jax.lax.stop_gradient(old) + change)[:, 0]
    return difference / jnp.where(largest > 0, largest, 1)


class Synchronous(Checked):
    """Update all messages at once, each from the messages of the iteration before.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(9), jnp.ones((9, 2)).at[0, 0].set(8.0)
        >>> solution = kbp.run(agree, graph, local, damping=0.0, tol=1e-5, schedule=kbp.Synchronous())
        >>> int(solution.num_iters)  # 8 edges, one per iteration, and one more without a change
        9
    """

    def plan(self, graph: Graph) -> Plan:
        """Return the plan of the graph: all nodes in one part."""
        return graph.plan

    def init(self, problem: Problem) -> Any:
        """Return (): there is no state."""
        del problem
        return ()

    def sweep(self, problem: Problem, state: Any, messages: Array, damping: Array) -> tuple[Array, Array, Any]:
        """Do one iteration; return the messages [row, coordinate], the residual of the old ones, and the state."""
        new, change = send_all(problem, messages, damping)
        return new, largest_change(problem.operators, messages, change), state


class Colored(Synchronous):
    """Update the outgoing messages of one color of nodes after another; built by `colored`.

    Attributes:
        colors: the plan with one part per color.
        made_for: senders, receivers, edge types and node types of the graph.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(9), jnp.ones((9, 2)).at[0, 0].set(8.0)
        >>> schedules = kbp.Synchronous(), kbp.colored(graph)
        >>> [int(kbp.run(agree, graph, local, damping=0.0, tol=1e-5, schedule=s).num_iters) for s in schedules]
        [9, 5]
    """

    colors: Plan
    made_for: tuple[Int[Array, " edge"], Int[Array, " edge"], Int[Array, " edge"], Int[Array, " node"]]

    @values_or_shapes
    def __repr__(self) -> str:
        return f"Colored({self.colors.num_parts} colors)"

    def plan(self, graph: Graph) -> Plan:
        """Return the plan with one part per color; raise ValueError for another graph.

        For a traced graph, only the numbers of nodes and edges are compared.
        """
        given, fix = _identity(graph), "Make it with kbpjax.colored(graph) for the same graph."
        got, needed = ((len(a[3]), len(a[0])) for a in (self.made_for, given))
        _checks.require(got == needed, "schedule", f"must be of a graph of (nodes, edges) {needed}", got, fix)
        if not _checks.is_unread((self.made_for, given)):
            pairs = zip(self.made_for, given, strict=True)
            same = all(made is other or np.array_equal(made, other) for made, other in pairs)
            _checks.require(same, "schedule", "must be of this graph", "one of the same size", fix)
        return self.colors

    def sweep(self, problem: Problem, state: Any, messages: Array, damping: Array) -> tuple[Array, Array, Any]:
        """Do one iteration; return the messages [row, coordinate], the largest change, and the state."""
        operators = problem.operators
        logs = factors_of(operators, problem.parts, messages)

        def body(carry: tuple[Array, Array | None, Array], part: PlanPart) -> tuple[Any, Array]:
            messages, logs, first = carry
            old = jax.lax.dynamic_slice_in_dim(messages, first, problem.parts.present.shape[-1])
            new, change = damp(old, update_from(operators, part, messages if logs is None else logs), damping)
            put = lambda rows, array: jax.lax.dynamic_update_slice_in_dim(array, rows, first, axis=0)
            logs = None if logs is None else put(factors_of(operators, part, new), logs)
            return (put(new, messages), logs, first + len(old)), largest_change(operators, old, change)

        unroll = problem.plan.num_parts if problem.plan.num_parts <= UNROLLED else 1
        start = messages, None if logs is messages else logs, jnp.int32(0)
        (messages, *_), change = jax.lax.scan(body, start, problem.parts, unroll=unroll)
        return messages, jnp.max(change, initial=0), state


@public
def colored(graph: Graph, *, colors: NDArray | None = None) -> Colored:
    """Return the graph-coloring schedule, which updates one color of nodes after another.

    Neighbors have different colors. Grids, chains and trees need two; an iteration then does the work of two
    synchronous ones at the cost of one. Build it once per graph, outside `jax.jit`, and pass it in.

    Args:
        graph: the graph.
        colors: color of each node [node], integers >= 0. None: two colors for components without odd cycles, else a
            greedy coloring.

    Returns:
        The schedule.

    Raises:
        ValueError: a traced graph, colors of another shape, or neighbors of one color.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.colored(kbp.grid_graph(3, 3)).colors.num_parts
        2
    """
    fix = "Call colored outside jax.jit, jax.vmap and jax.grad, and pass its result in."
    _checks.require(not _checks.is_traced(graph), "graph", "must be known", "a traced graph", fix)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    if colors is None:
        colors = color_nodes(senders, receivers, graph.num_nodes)
    colors = np.asarray(colors)
    ok = np.issubdtype(colors.dtype, np.integer) and colors.min(initial=0) >= 0 and colors.shape == (graph.num_nodes,)
    rule, fix = f"must be {graph.num_nodes} integers >= 0", "Pass one color for each node, or None."
    _checks.require(ok, "colors", rule, f"shape {colors.shape}, {colors.dtype}", fix)
    same = np.flatnonzero(colors[senders] == colors[receivers])[:3]
    got = f"one color for {[(int(senders[e]), int(receivers[e])) for e in same]}"
    _checks.require(len(same) == 0, "colors", "must differ between neighbors", got, "Give them two.")
    return Colored(graph.plan_of(np.unique(colors, return_inverse=True)[1].reshape(-1)), _identity(graph))


def _identity(graph: Graph) -> tuple[Array, Array, Array, Array]:
    return graph.senders, graph.receivers, graph.edge_type, graph.node_type
