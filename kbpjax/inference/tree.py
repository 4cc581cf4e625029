r"""Exact inference on trees and forests: every message once, from the leaves to the roots and back (eq. 15).

The messages are the fixed point of `run` on a tree, which needs as many undamped iterations as the longest path has
edges. Here each message is computed once, from final messages, one row of cells after another (see
`kbpjax.graphs.forest`). The cost is about that of one iteration, plus an overhead for each row.

In the upward pass, a cell holds the values of its message at the points of the receiver,

    up = max(evaluate @ normalize(project @ (local_t * up_child * up_other_child)), floor),

and in the downward pass the values of the reverse message,

    down = max(evaluate @ normalize(project @ (local_s * down_parent * up_sibling)), floor).

A copy only multiplies. With `InLogs`, cells hold logarithms and products are sums: contradicting messages of many
neighbors then do not underflow to 0, in any order of merging.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit, vary_like
from kbpjax._public import public
from kbpjax.graphs.forest import Forest
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.plan import Plan
from kbpjax.inference.loopy import Solution, own_graph, prepare_inputs
from kbpjax.inference.operators import (
    AnyEvidence,
    AnyModel,
    InLogs,
    Operators,
    exp_or_zero,
    finite_logs,
    log_or_zero,
    normalize,
    of_type,
)
from kbpjax.inference.schedules import Problem, Synchronous, all_possible
from kbpjax.inference.update import parts_of, update


@public
def run_tree(model: AnyModel, graph: Graph, evidence: AnyEvidence = None) -> Solution:
    """Return the exact messages of a tree or forest, by one pass from the leaves to the roots and one back.

    Args:
        model: a `KernelMRF`, or custom `Operators`.
        graph: a graph without cycles; the model must have all its types.
        evidence: `Evidence`, or local factors [node, point], or None for none.

    Returns:
        The solution. `residuals` has one entry, the residual of an undamped iteration from the messages: rounding
        error.
        `converged` is True if it is at most 1e-3, and no message of tables is 0 everywhere. `num_iters` counts the
        levels of both passes, including those that merge the messages of nodes with many neighbors.

    Raises:
        ValueError: a graph with a cycle, a type that the model does not have, or evidence of another shape.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> table = jnp.array([[0.9, 0.1], [0.1, 0.9]])  # stay with probability 0.9
        >>> operators = kbp.Operators(jnp.eye(2)[None], table[None])
        >>> local = jnp.array([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])  # the first of three is in state 0
        >>> solution = kbp.run_tree(operators, kbp.chain_graph(3), local)
        >>> message = solution.messages[1]  # from the second to the third
        >>> [round(float(value), 2) for value in message / message.sum()]
        [0.82, 0.18]
    """
    operators, local, clamped = prepare_inputs(model, graph, evidence)
    graph = own_graph(model, graph)
    if graph.forest is None and graph.num_edges > 0:
        got = "a traced graph with one, which cannot be named" if _checks.is_traced(graph) else _name_cycle(graph)
        fix = "Use kbpjax.run, which iterates where there are cycles."
        _checks.require(False, "graph", "must have no cycle", got, fix)
    return _run_tree(operators, graph.forest, graph.plan, local, clamped)


@quick_jit
def _run_tree(operators: Operators, forest: Forest | None, plan: Plan, local: Array, clamped: Array | None) -> Solution:
    plan = plan.without_incoming(clamped)
    if forest is None:
        messages, height = jnp.zeros((0, operators.update.shape[1]), operators.evaluate.dtype), 0
    else:
        forest = forest if clamped is None else forest.without_incoming(clamped)
        messages, height = _messages(operators, forest, local), forest.height
    problem, rows = Problem(operators, plan, parts_of(plan, local, None)), plan.laid_out(messages)
    _, residual, _ = Synchronous().sweep(problem, (), rows, jnp.zeros_like(local, shape=()))
    projected = None
    if operators.nonnegative is not None:
        part = jax.tree.map(lambda array: array[0], problem.parts)
        projected = plan.of_edges(normalize(update(operators, part, rows, operators.project)))
    count = jnp.int32(2 * height)
    converged = (residual <= 1e-3) & all_possible(operators, rows, plan)
    return Solution(messages, converged, count, residual, residual[None], None, projected)


def _messages(operators: Operators, forest: Forest, local: Array) -> Float[Array, "edge coordinate"]:
    num_rows, width = forest.sender.shape
    in_logs = isinstance(operators.arithmetic, InLogs)
    encode, times = (log_or_zero, jnp.add) if in_logs else (lambda values: values, jnp.multiply)
    padded = encode(jnp.concatenate([local, jnp.ones_like(local[:1])]))
    ones = encode(jnp.ones((num_rows * width + 1, local.shape[1]), local.dtype))
    ones = vary_like(ones, (operators, local, forest))

    def write(table: Array, row: Array, values: Array) -> Array:
        return jax.lax.dynamic_update_slice(table, values, (row * width, jnp.zeros_like(row)))

    def up(table: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        number, factor, children, direction, receiver_type, copies = row
        values = table[children]
        product = times(times(factor, values[:, 0]), values[:, 1])
        values, message = _pass_on(operators, product, direction, receiver_type, copies)
        return write(table, number, values), message

    def down(table: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        number, factor, parent, direction, sender_type, copies = row
        values, message = _pass_on(operators, times(factor, table[parent]), direction, sender_type, copies)
        return write(table, number, values), message

    numbers = jnp.arange(num_rows, dtype=jnp.int32)
    rows = (numbers, padded[forest.sender], forest.children)
    table, upward = jax.lax.scan(up, ones, (*rows, forest.direction, forest.receiver_type, forest.copies))
    rows = (numbers, times(padded[forest.above], table[forest.sibling]), forest.parent)
    kinds = (forest.direction ^ 1, forest.sender_type, forest.copies)
    _, downward = jax.lax.scan(down, ones, (*rows, *kinds), reverse=True)
    both = jnp.concatenate([upward, downward])
    return both.reshape(-1, both.shape[-1])[forest.message_place]


def _pass_on(
    operators: Operators, product: Float[Array, "cell point"], direction: Array, receiver_type: Array, copies: Array
) -> tuple[Float[Array, "cell point"], Float[Array, "cell coordinate"]]:
    """Return the values of one row of cells, and its messages; with `InLogs`, `product` and values are logarithms."""
    in_logs = isinstance(operators.arithmetic, InLogs)
    largest = jax.lax.stop_gradient(jnp.max(product if in_logs else jnp.abs(product), axis=-1, keepdims=True))
    if in_logs:
        copied, product = product, exp_or_zero(product - finite_logs(largest))
    else:
        copied = product / jnp.where(largest > 0, largest, 1)
    matrix = of_type(operators.update, direction)[None]
    message = normalize(operators.arithmetic.apply(matrix, jnp.zeros_like(direction), product))
    values = message
    if not operators.sends_values:
        values = matmul(message, of_type(operators.evaluate, receiver_type).T)
    values = jnp.maximum(values, of_type(operators.floors, receiver_type))
    return jnp.where(copies, copied, log_or_zero(values) if in_logs else values), message


def _name_cycle(graph: Graph) -> str:
    """Name one cycle of a graph that has some: a shortest one through an edge outside a spanning forest."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    half = graph.num_edges // 2
    ends = np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]
    edges = coo_array((np.ones(half), ends), shape=(graph.num_nodes, graph.num_nodes)).tocsr()
    first, last = (int(nodes[0]) for nodes in (edges - minimum_spanning_tree(edges)).nonzero())
    edges[first, last] = 0
    edges.eliminate_zeros()
    _, before = breadth_first_order(edges, first, directed=False)
    cycle = [first, last]
    while cycle[-1] != first:
        cycle.append(int(before[cycle[-1]]))
    names = [str(node) for node in cycle]
    return "the cycle " + " - ".join(names if len(names) <= 20 else [*names[:10], "...", *names[-9:]])
