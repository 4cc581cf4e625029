"""The engine against plain loops, textbook discrete belief propagation, brute force and finite differences."""

import functools
import inspect
import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from experiments.lib.schedules import Agreement
from kbpjax.inference import update
from tests import steps
from tests.engine import leave_one_out, normalize, without_incoming
from tests.refusals import complaints

# --- plain twins ----------------------------------------------------------------------------------


def twin_update(operators, graph, local, messages):
    """Compute the un-normalized new messages, one directed edge at a time."""
    evaluate, project = np.asarray(operators.evaluate), np.asarray(operators.project)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    node_type, edge_type = np.asarray(graph.node_type), np.asarray(graph.edge_type)
    new = np.zeros_like(messages)
    for e, (t, s) in enumerate(zip(senders, receivers, strict=True)):
        product = np.array(local[t])
        for f in np.flatnonzero((receivers == t) & (senders != s)):
            values = evaluate[node_type[t] if len(evaluate) > 1 else 0] @ messages[f]
            product = product * np.maximum(values, operators.floor)
        row = 2 * edge_type[e] + (e >= graph.num_edges // 2)
        new[e] = project[row if len(project) > 1 else 0] @ product
    return new


def twin_step(operators, graph, local, messages, damping):
    """Mix the old messages with their updates of 2-norm 1."""
    new = twin_update(operators, graph, local, messages)
    return damping * messages + (1 - damping) * new / np.linalg.norm(new, axis=1, keepdims=True)


def unit_rows(rng, count):
    """Draw messages of three coefficients and norm 1."""
    rows = rng.normal(size=(count, 3))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def random_typed_graph(seed, num_nodes, num_edges, node_kinds):
    rng = np.random.default_rng(seed)
    pairs = list(itertools.combinations(range(num_nodes), 2))
    edges = [pairs[i] for i in rng.permutation(len(pairs))[:num_edges]]
    node_type = np.minimum(rng.geometric(0.5, num_nodes) - 1, node_kinds - 1)
    return kbp.Graph.from_edges(edges, num_nodes, node_type=node_type)


def random_operators(seed, graph, rank, points, floor):
    rng = np.random.default_rng(seed)
    nodes = 1 + max(v for v, *_ in graph.node_types)
    edges = 2 + 2 * max(k for k, *_ in graph.edge_types)
    evaluate = rng.normal(size=(nodes, points, rank))
    project = rng.normal(size=(edges, rank, points))
    return kbp.Operators(jnp.asarray(evaluate), jnp.asarray(project), floor)


class Discrete:
    """A discrete pairwise model: factors on nodes and edges, and textbook belief propagation with dictionaries."""

    def __init__(self, seed, edges, states):
        rng = np.random.default_rng(seed)
        self.edges, self.num_nodes, self.states = edges, 1 + max(max(edge) for edge in edges), states
        self.node = rng.uniform(0.2, 1.0, (self.num_nodes, states))
        self.pair = {edge: rng.uniform(0.1, 1.0, (states, states)) for edge in edges}
        self.graph = kbp.Graph.from_edges(edges, self.num_nodes, edge_type=list(range(len(edges))))
        forth_and_back = [table for edge in edges for table in (self.pair[edge].T, self.pair[edge])]
        self.operators = kbp.Operators(jnp.eye(states)[None], jnp.asarray(np.stack(forth_and_back)))
        self.local = jnp.asarray(self.node)

    def neighbors(self, t):
        return [b if a == t else a for a, b in self.edges if t in (a, b)]

    def textbook(self, num_iters):
        """Return the messages {(t, s): values at the states of s, summing to 1} after some synchronous iterations."""
        directed = [(a, b) for edge in self.edges for a, b in (edge, edge[::-1])]
        messages = {edge: np.full(self.states, 1 / self.states) for edge in directed}
        for _ in range(num_iters):
            new = {}
            for t, s in directed:
                table = self.pair[t, s] if (t, s) in self.pair else self.pair[s, t].T
                out = np.zeros(self.states)
                for x_s, x_t in itertools.product(range(self.states), repeat=2):
                    term = table[x_t, x_s] * self.node[t, x_t]
                    for u in self.neighbors(t):
                        term *= 1.0 if u == s else messages[u, t][x_t]
                    out[x_s] += term
                new[t, s] = out / out.sum()
            messages = new
        return messages

    def beliefs(self, messages):
        b = self.node.copy()
        for (_, s), values in messages.items():
            b[s] *= values
        return b / b.sum(axis=1, keepdims=True)

    def brute_force(self):
        marginals = np.zeros((self.num_nodes, self.states))
        for x in itertools.product(range(self.states), repeat=self.num_nodes):
            weight = np.prod([self.node[s, x[s]] for s in range(self.num_nodes)])
            weight *= np.prod([table[x[a], x[b]] for (a, b), table in self.pair.items()])
            for s in range(self.num_nodes):
                marginals[s, x[s]] += weight
        return marginals / marginals.sum(axis=1, keepdims=True)

    def of(self, solution):
        """Return the engine's messages in the textbook's form."""
        ends = zip(self.graph.senders.tolist(), self.graph.receivers.tolist(), strict=True)
        return {edge: m / m.sum() for edge, m in zip(ends, np.asarray(solution.messages), strict=True)}


TREE = [(0, 1), (2, 1), (1, 3), (3, 4), (5, 3)]
LOOPY = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3), (3, 4), (4, 0)]


@pytest.fixture(scope="module")
def loopy():
    return Discrete(1, LOOPY, 3)


# --- leave_one_out --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slots", range(1, 9))
def test_leave_one_out_is_the_product_of_the_others(num_slots):
    rng = np.random.default_rng(num_slots)
    values, whole = rng.normal(size=(5, num_slots, 4)), rng.normal(size=(5, 4))
    values[0, rng.integers(num_slots), :] = 0  # one zero: only its own product lives
    values[1, :2, 1] = 0  # two zeros: none does
    whole[2, 0] = 0
    expected = np.stack([whole * np.delete(values, j, axis=1).prod(axis=1) for j in range(num_slots)], axis=1)
    got = leave_one_out(jnp.asarray(values), jnp.asarray(whole))
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("num_slots", [9, 17, 100, 300])
def test_many_slots_give_the_product_of_the_others_up_to_scale(num_slots):
    rng = np.random.default_rng(num_slots)
    values, whole = rng.uniform(0.01, 1, (5, num_slots, 4)), rng.uniform(0.01, 1, (5, 4))
    logs = np.log(values).sum(axis=1, keepdims=True) - np.log(values) + np.log(whole)[:, None]
    expected = np.exp(logs - logs.max(axis=2, keepdims=True))
    for dtype, rtol in ((np.float32, 1e-4), (np.float64, 1e-12)):
        got = np.asarray(leave_one_out(jnp.asarray(values, dtype), jnp.asarray(whole, dtype)))
        np.testing.assert_allclose(got / got.max(axis=2, keepdims=True), expected, rtol=rtol, atol=1e-30)


@pytest.mark.parametrize("num_slots", [1, 2, 3, 5])
def test_leave_one_out_has_the_right_gradient_at_zeros(num_slots):
    rng = np.random.default_rng(num_slots)
    values, whole = rng.normal(size=(num_slots, 3)), rng.normal(size=3)
    values[0, 0] = 0
    values[:2, 1] = 0
    weight = jnp.asarray(rng.normal(size=(num_slots, 3)))
    loss = jax.jit(lambda v, w: jnp.sum(weight * leave_one_out(v, w)))
    gradients = jax.jit(jax.grad(loss, (0, 1)))(values, whole)
    for which, array in enumerate((values, whole)):
        for place in np.ndindex(array.shape):
            shifted = [[values.copy(), whole.copy()] for _ in range(2)]
            shifted[0][which][place] += 0.5
            shifted[1][which][place] -= 0.5
            slope = loss(*shifted[0]) - loss(*shifted[1])  # exact: linear in each entry
            np.testing.assert_allclose(gradients[which][place], slope, rtol=1e-12, atol=1e-13)


# --- step -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed, num_nodes, num_edges, node_kinds, floor, damping",
    [(0, 2, 1, 1, 0.0, 0.0), (1, 9, 17, 3, 0.1, 0.3), (2, 150, 180, 3, 0.2, 0.7)],
)
def test_step_equals_plain_loops(seed, num_nodes, num_edges, node_kinds, floor, damping):
    graph = random_typed_graph(seed, num_nodes, num_edges, node_kinds)
    operators = random_operators(seed, graph, rank=3, points=4, floor=floor)
    rng = np.random.default_rng(seed)
    local = rng.uniform(0.2, 1, (num_nodes, 4))
    messages = unit_rows(rng, graph.num_edges)
    state = steps.State(jnp.asarray(messages), jnp.array(np.inf), jnp.int32(4))
    new = steps.step(operators, graph, jnp.asarray(local), state, damping=damping)
    expected = twin_step(operators, graph, local, messages, damping)
    np.testing.assert_allclose(new.messages, expected, rtol=1e-10, atol=1e-12)
    undamped = twin_step(operators, graph, local, messages, 0.0)
    np.testing.assert_allclose(new.residual, np.abs(undamped - messages).max(), rtol=1e-10)
    assert int(new.count) == 5


def hub_graph(seed, num_nodes, node_kinds):
    """Draw a graph in which few nodes have most neighbors, with two isolated nodes."""
    rng = np.random.default_rng(seed)
    low = (rng.random(num_nodes - 3) ** 4 * np.arange(1, num_nodes - 2)).astype(int)
    edges = {(int(low[node - 1]), node) for node in range(1, num_nodes - 2)}
    edges |= {(0, int(node)) for node in rng.integers(1, num_nodes - 2, size=num_nodes // 4)}
    node_type = rng.integers(node_kinds, size=num_nodes)
    return kbp.Graph.from_edges(sorted(edges), num_nodes, node_type=node_type)


@pytest.mark.parametrize(
    "seed, num_nodes, node_kinds, floor", [(1, 200, 3, 0.4), pytest.param(0, 120, 1, 0.3, marks=pytest.mark.slow)]
)
def test_step_on_graphs_with_hubs_equals_plain_loops(seed, num_nodes, node_kinds, floor):
    graph = hub_graph(seed, num_nodes, node_kinds)
    assert len(graph.plan.blocks) > 3
    operators = random_operators(seed, graph, rank=3, points=4, floor=floor)
    rng = np.random.default_rng(seed)
    local = jnp.asarray(rng.uniform(0.2, 1, (num_nodes, 4)))
    messages = unit_rows(rng, graph.num_edges)
    state = steps.State(jnp.asarray(messages), jnp.array(np.inf), jnp.int32(0))
    wanted = twin_update(operators, graph, local, messages)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    new = steps.step(operators, graph, local, state, damping=0.0)
    np.testing.assert_allclose(new.messages, wanted, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(new.residual, np.abs(wanted - messages).max(), rtol=1e-8)
    rows = rng.normal(size=(num_nodes, 3))
    expected = np.einsum("npr,nr->np", np.asarray(operators.evaluate)[np.asarray(graph.node_type)], rows)
    got = jax.jit(update.evaluate_local)(operators, graph.plan, jnp.asarray(rows))
    np.testing.assert_allclose(got, np.maximum(expected, floor), rtol=1e-12)


def test_a_star_of_10000_leaves_runs():
    leaves = np.arange(1, 10_001)
    graph = kbp.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves], axis=1), 10_001)
    assert sum(block.incoming.size for block in graph.plan.blocks) < 1e5
    operators = kbp.Operators(jnp.eye(2)[None], jnp.asarray(np.stack([np.eye(2), np.eye(2)])))
    local = np.ones((10_001, 2))
    local[1:, 0] = 1.0002
    solution = kbp.run(operators, graph, local, num_iters=3, damping=0.0)
    log_odds = np.log(np.asarray(solution.messages[0]))
    np.testing.assert_allclose(log_odds[0] - log_odds[1], 9999 * np.log(1.0002), rtol=1e-9)
    assert bool(solution.converged)


@pytest.mark.parametrize("seed, draw", [(0, random_typed_graph), (2, None)])
def test_marked_nodes_ignore_their_incoming_messages(seed, draw):
    graph = hub_graph(seed, 120, 2) if draw is None else draw(seed, 30, 60, 3)
    operators = random_operators(seed, graph, rank=3, points=4, floor=0.3)
    rng = np.random.default_rng(seed)
    local = rng.uniform(0.2, 1, (graph.num_nodes, 4))
    marked = rng.random(graph.num_nodes) < 0.3
    marked[0] = True
    messages = unit_rows(rng, graph.num_edges)
    state = steps.State(jnp.asarray(messages), jnp.array(np.inf), jnp.int32(0))
    project, senders, edge_type = map(np.asarray, (operators.project, graph.senders, graph.edge_type))
    expected = twin_update(operators, graph, local, messages)
    for e in np.flatnonzero(marked[senders]):
        expected[e] = project[2 * edge_type[e] + (e >= graph.num_edges // 2)] @ local[senders[e]]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    step = jax.jit(
        lambda marked: (
            steps.step(operators, without_incoming(graph, marked), jnp.asarray(local), state, damping=0.0).messages
        )
    )
    np.testing.assert_allclose(step(jnp.asarray(marked)), expected, rtol=1e-8, atol=1e-10)
    mapped = jax.vmap(step)(jnp.asarray([~marked, marked]))[1]
    np.testing.assert_allclose(mapped, expected, rtol=1e-8, atol=1e-10)


def test_shared_operators_equal_the_same_ones_for_each_type():
    graph = random_typed_graph(3, 12, 20, 3)
    shared = random_operators(0, kbp.chain_graph(2), rank=3, points=4, floor=0.1)
    shared = kbp.Operators(shared.evaluate, shared.project[:1], 0.1)
    own = random_operators(0, graph, rank=3, points=4, floor=0.1)
    own = kbp.Operators(
        jnp.broadcast_to(shared.evaluate, own.evaluate.shape), jnp.broadcast_to(shared.project, own.project.shape), 0.1
    )
    local = jnp.asarray(np.random.default_rng(0).uniform(0.2, 1, (12, 4)))
    one, other = (kbp.run(operators, graph, local, num_iters=3) for operators in (shared, own))
    np.testing.assert_allclose(one.messages, other.messages, rtol=1e-13)
    state = steps.step(shared, graph, local, steps.init(shared, graph), damping=0.0)
    start = np.asarray(steps.init(shared, graph).messages)
    np.testing.assert_allclose(state.messages, twin_step(shared, graph, np.asarray(local), start, 0.0), rtol=1e-10)


def test_evaluate_local_uses_the_matrix_of_each_nodes_type_and_the_floor():
    graph = random_typed_graph(5, 11, 14, 3)
    operators = random_operators(1, graph, rank=3, points=4, floor=0.25)
    messages = np.random.default_rng(2).normal(size=(11, 3))
    expected = [np.asarray(operators.evaluate)[v] @ m for v, m in zip(graph.node_type.tolist(), messages, strict=True)]
    got = jax.jit(update.evaluate_local)(operators, graph.plan, jnp.asarray(messages))
    np.testing.assert_allclose(got, np.maximum(expected, 0.25), rtol=1e-12)


def test_init_is_the_constant_one(loopy):
    # Textbook messages before the first iteration are uniform; a product of ones projects to the sum of the columns.
    start = np.asarray(steps.init(loopy.operators, loopy.graph).messages)
    sums = np.concatenate([np.asarray(loopy.operators.project)[d::2].sum(axis=-1) for d in (0, 1)])
    np.testing.assert_allclose(start, sums / np.linalg.norm(sums, axis=1, keepdims=True), rtol=1e-12)
    assert np.isinf(float(steps.init(loopy.operators, loopy.graph).residual))
    assert int(steps.init(loopy.operators, loopy.graph).count) == 0


def test_damping_mixes_the_old_message_with_its_update_of_norm_one():
    # Two nodes, states 2: the message 0 -> 1 is table @ local_0, of norm 5, whatever came before.
    graph = kbp.chain_graph(2)
    operators = kbp.Operators(jnp.eye(2)[None], jnp.asarray([[[1.0, 2.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]]))
    local = jnp.asarray([[1.0, 1.0], [1.0, 1.0]])
    old = np.array([[0.8, 0.6], [1.0, 0.0]])
    state, updates = steps.State(jnp.asarray(old), jnp.array(1.0), jnp.int32(0)), np.array([[3.0, 4.0], [1.0, 1.0]])
    new = steps.step(operators, graph, local, state, damping=0.75)
    sizes = np.linalg.norm(updates, axis=1, keepdims=True)
    np.testing.assert_allclose(new.messages, 0.75 * old + 0.25 * updates / sizes, rtol=1e-14)


def test_damping_by_agreement_moves_a_message_less_where_its_update_is_small():
    # The evidence of node 0 leaves half of the update of 1; that of node 1, scaled to maximum 1, all of it.
    graph = kbp.chain_graph(2)
    operators = kbp.Operators(jnp.eye(2)[None], 3 * jnp.asarray([[[1.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]))
    local, old = jnp.asarray([[1.0, 0.0], [7.0, 7.0]]), np.array([[0.8, 0.6], [1.0, 0.0]])
    state = steps.State(jnp.asarray(old), jnp.array(1.0), jnp.int32(0))
    new = steps.step(operators, graph, local, state, damping=0.75, schedule=Agreement())
    mixed = 0.75 * old + 0.25 * np.array([[0.5], [1.0]]) * np.sqrt(0.5)
    np.testing.assert_allclose(new.messages, mixed / np.linalg.norm(mixed, axis=1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e15, 1e30])
def test_messages_of_any_size_are_scaled_to_norm_one(dtype, scale):
    # Their squares leave the range of single precision; products of five floored values of 1e-6 are that small.
    message = np.array([[3.0, 4.0], [0.0, 0.0]], dtype) * dtype(scale)
    np.testing.assert_allclose(normalize(message), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-5)


def test_damping_does_not_make_messages_look_converged(loopy):
    # The residual is the distance to the undamped update: heavy damping moves messages little, and is no convergence.
    solution = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=3, damping=0.999, tol=1e-3)
    assert not bool(solution.converged) and float(solution.residual) > 0.01


@pytest.mark.parametrize("num_leaves", [8, 9, pytest.param(12, marks=pytest.mark.slow)])
def test_gradient_at_a_hub_with_damping(num_leaves):
    graph = kbp.Graph.from_edges([(0, leaf) for leaf in range(1, num_leaves + 1)], num_leaves + 1)
    rng = np.random.default_rng(num_leaves)
    operators = kbp.Operators(jnp.asarray(rng.uniform(0.2, 1, (1, 3, 2))), jnp.asarray(rng.uniform(0.2, 1, (1, 2, 3))))
    local = jnp.asarray(rng.uniform(0.2, 1, (num_leaves + 1, 3)))
    weight = jnp.asarray(rng.normal(size=(2 * num_leaves, 2)))

    @jax.jit
    def loss(size):
        solution = kbp.run(operators, graph, local**size, num_iters=4, damping=0.5)
        return jnp.sum(weight * solution.messages)

    slope = (loss(1 + 1e-5) - loss(1 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(1.0), slope, rtol=1e-6)


def test_step_and_init_check_what_they_get(loopy):
    state = steps.init(loopy.operators, loopy.graph)
    few = kbp.Operators(loopy.operators.evaluate, loopy.operators.project[:2])
    with pytest.raises(ValueError, match="^project: "):
        steps.init(few, loopy.graph)
    with pytest.raises(ValueError, match="^project: "):
        steps.step(few, loopy.graph, loopy.local, state)
    with pytest.raises(ValueError, match="^damping: "):
        steps.step(loopy.operators, loopy.graph, loopy.local, state, damping=5.0)
    with pytest.raises(ValueError, match="^evidence: local factors must have shape"):
        steps.step(loopy.operators, loopy.graph, loopy.local[:2], state)


def test_floor_of_each_node_type():
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    evaluate, project = jnp.array([[[-1.0], [1.0]], [[-1.0], [1.0]]]), jnp.ones((2, 1, 2))
    operators = kbp.Operators(evaluate, project, jnp.array([0.25, 0.5]))
    got = jax.jit(update.evaluate_local)(operators, graph.plan, np.ones((2, 1)))
    np.testing.assert_array_equal(got, [[0.25, 1.0], [0.5, 1.0]])


@pytest.mark.parametrize("size", [1e-45, 2e-38, 5e-38, 3e-37, 1e-33, 1e-31, 1e-29])
@pytest.mark.parametrize("rank", [2, 64, 128])
def test_messages_at_the_edge_of_underflow_have_norm_one_or_zero(size, rank):
    norm = float(np.linalg.norm(normalize(np.full((1, rank), size / rank, np.float32))))
    assert norm == 0 or norm == pytest.approx(1, rel=1e-5)


def test_gradient_of_scaling_is_finite_at_zero():
    gradient = jax.jit(jax.grad(lambda m: jnp.sum(normalize(m) ** 2)))(np.zeros(3))
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_messages_from_a_hub_of_500_neighbours_do_not_die(dtype):
    # A star: the hub multiplies 499 values below 1, each of which says that state 0 is 1.1 times as likely as state 1.
    graph = kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 501)], 501)
    project = np.stack([np.eye(2), np.eye(2)]).astype(dtype)
    operators = kbp.Operators(jnp.eye(2, dtype=dtype)[None], jnp.asarray(project))
    local = np.ones((501, 2), dtype)
    local[1:, 0] = 1.002
    solution = kbp.run(operators, graph, jnp.asarray(local), num_iters=2, damping=0.0)
    log_odds = np.log(np.asarray(solution.messages[0], np.float64))
    np.testing.assert_allclose(log_odds[0] - log_odds[1], 499 * np.log(1.002), rtol=1e-3)


# --- discrete belief propagation -------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed, edges, states",
    [(0, TREE, 3), (2, [(0, 1)], 2), pytest.param(1, [(3, 0), (0, 1), (2, 1)], 4, marks=pytest.mark.slow)],
)
def test_discrete_trees_are_exact(seed, edges, states):
    model = Discrete(seed, edges, states)
    solution = kbp.run(model.operators, model.graph, model.local, num_iters=6, damping=0.0)
    np.testing.assert_allclose(model.beliefs(model.of(solution)), model.brute_force(), rtol=1e-11)
    assert bool(solution.converged)


def test_loopy_iterations_equal_textbook_iterations(loopy):
    # The engine starts from projected ones: where the factors on nodes are 1, that is one textbook iteration done.
    local = jnp.ones_like(loopy.local)
    model = Discrete(1, LOOPY, 3)
    model.node = np.asarray(local)
    solution = kbp.run(model.operators, model.graph, local, num_iters=20, damping=0.0)
    expected = model.textbook(21)
    for edge, values in model.of(solution).items():
        np.testing.assert_allclose(values, expected[edge], rtol=1e-11)


@pytest.mark.parametrize("num_iters", [1, 2, 20])
def test_loopy_iterations_from_the_same_start_equal_textbook_iterations(loopy, num_iters):
    state = steps.init(loopy.operators, loopy.graph)
    constant = normalize(jnp.ones_like(state.messages))
    state = steps.State(constant, state.residual, state.count)
    advance = partial(steps.step, loopy.operators, loopy.graph, loopy.local, damping=0.0)
    for _ in range(num_iters):
        state = advance(state)
    expected = loopy.textbook(num_iters)
    for edge, values in loopy.of(state).items():
        np.testing.assert_allclose(values, expected[edge], rtol=1e-11)


# --- run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damping", [0.0, 0.4])
def test_run_is_step_in_a_loop(loopy, damping):
    solution = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=7, damping=damping)
    state, residuals = steps.init(loopy.operators, loopy.graph), []
    for _ in range(7):
        state = steps.step(loopy.operators, loopy.graph, loopy.local, state, damping=damping)
        residuals.append(float(state.residual))
    np.testing.assert_allclose(solution.messages, state.messages, rtol=1e-12)
    np.testing.assert_allclose(solution.residuals, residuals, rtol=1e-6, atol=1e-15)
    assert int(solution.num_iters) == 7


def test_a_run_starts_from_a_solution_or_from_messages_of_any_scale(loopy):
    run = functools.partial(kbp.run, loopy.operators, loopy.graph, loopy.local, damping=0.5)
    first = run(num_iters=2)
    np.testing.assert_allclose(run(num_iters=2, start=first).messages, run(num_iters=4).messages, rtol=1e-12)
    unit = first.messages / jnp.linalg.norm(first.messages, axis=1, keepdims=True)
    expected = run(num_iters=2, start=unit).messages
    np.testing.assert_allclose(run(num_iters=2, start=7 * first.messages).messages, expected, rtol=1e-12)


def test_tolerance_stops_at_the_first_small_residual(loopy):
    full = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=40, damping=0.3)
    residuals, tol = np.asarray(full.residuals), 1e-4
    stop = 1 + int(np.argmax(residuals <= tol))
    assert 2 < stop < 40
    solution = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=40, damping=0.3, tol=tol)
    assert bool(solution.converged) and int(solution.num_iters) == stop
    np.testing.assert_allclose(solution.residuals[:stop], residuals[:stop], rtol=1e-6)
    assert np.all(np.isnan(solution.residuals[stop:])) and solution.residuals.shape == (1000,)
    endless = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=2**31 - 1, damping=0.3, tol=tol)
    assert endless.num_iters == stop and endless.residuals.shape == (1000,) and bool(endless.converged)
    np.testing.assert_array_equal(endless.messages, solution.messages)
    exact = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=stop, damping=0.3)
    np.testing.assert_allclose(solution.messages, exact.messages, rtol=1e-12)


def test_not_converged_is_said_and_not_raised(loopy):
    solution = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=3, damping=0.3, tol=1e-9)
    assert not bool(solution.converged) and int(solution.num_iters) == 3
    assert np.all(np.isfinite(solution.residuals[:3]))
    assert not bool(kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=2, damping=0.3).converged)


def test_nan_evidence_is_not_converged(loopy):
    local = loopy.local.at[0, 0].set(jnp.nan)
    for tol in (None, 1e-3):  # inside jax.jit, where values are not checked
        run = jax.jit(lambda local, tol=tol: kbp.run(loopy.operators, loopy.graph, local, num_iters=5, tol=tol))
        assert not bool(run(local).converged)


def test_graph_without_edges_converges_at_once():
    operators = kbp.Operators(jnp.eye(2)[None], jnp.eye(2)[None])
    solution = kbp.run(operators, kbp.Graph.from_edges([], 3), num_iters=5, tol=1e-3)
    assert solution.messages.shape == (0, 2) and bool(solution.converged) and int(solution.num_iters) == 1
    assert bool(kbp.run(operators, kbp.Graph.from_edges([], 1), num_iters=5).converged)


def test_no_evidence_is_evidence_of_ones(loopy):
    one = kbp.run(loopy.operators, loopy.graph, None, num_iters=4)
    other = kbp.run(loopy.operators, loopy.graph, jnp.ones_like(loopy.local), num_iters=4)
    np.testing.assert_array_equal(one.messages, other.messages)


def test_an_isolated_node_changes_nothing(loopy):
    graph = kbp.Graph.from_edges(LOOPY, 7, edge_type=list(range(len(LOOPY))))
    local = jnp.concatenate([loopy.local, jnp.ones((2, 3))])
    got = kbp.run(loopy.operators, graph, local, num_iters=5)
    expected = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=5)
    np.testing.assert_allclose(got.messages, expected.messages, rtol=1e-13)


# --- gradients ------------------------------------------------------------------------------------


def test_forward_mode_goes_through_a_tolerance(loopy):
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(loopy.graph.num_edges, 3)))
    direction = jnp.asarray(np.random.default_rng(1).normal(size=loopy.local.shape))

    @jax.jit
    def loss(amount):
        local = loopy.local + amount * direction
        return jnp.sum(weight * kbp.run(loopy.operators, loopy.graph, local, num_iters=200, tol=1e-13).messages)

    slope = jax.jit(lambda at: jax.jvp(loss, (at,), (1.0,))[1])(0.0)
    h = 1e-5
    np.testing.assert_allclose(slope, (loss(h) - loss(-h)) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("num_iters", [300, pytest.param(4, marks=pytest.mark.slow)])
def test_reverse_mode_equals_finite_differences(loopy, num_iters):
    # 300 iterations: the messages have long stopped moving, and the residual is 0 or rounding.
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(loopy.graph.num_edges, 3)))

    @jax.jit
    def loss(evaluate, project, local, damping):
        operators = kbp.Operators(evaluate, project)
        return jnp.sum(weight * kbp.run(operators, loopy.graph, local, num_iters=num_iters, damping=damping).messages)

    at = (loopy.operators.evaluate, loopy.operators.project, loopy.local, jnp.array(0.3))
    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*at)
    assert all(np.all(np.isfinite(g)) for g in gradients)
    rng, h = np.random.default_rng(2), 1e-6
    for which in range(4):
        direction = jnp.asarray(rng.normal(size=at[which].shape))
        ahead, behind = (loss(*at[:which], at[which] + d * direction, *at[which + 1 :]) for d in (h, -h))
        got = float(jnp.sum(gradients[which] * direction))
        np.testing.assert_allclose(got, (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-8)


def test_reverse_mode_is_finite_where_messages_do_not_move_at_all():
    # On a chain without evidence and with doubly stochastic tables the constant is the answer from the start.
    graph = kbp.chain_graph(4)
    table = jnp.full((2, 4, 4), 0.25)

    def loss(local, damping):
        solution = kbp.run(kbp.Operators(jnp.eye(4)[None], table), graph, local, damping=damping)
        return jnp.sum(solution.messages) + jnp.sum(solution.residuals), solution.residuals[-1]

    gradients, residual = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(np.ones((4, 4)), 0.25)
    assert residual <= 1e-16
    for gradient in gradients:
        assert np.all(np.isfinite(gradient))


# --- what is refused -------------------------------------------------------------------------------


def test_bad_options_are_refused_by_name(loopy):
    # A fractional num_iters is tested without the test suite's type checks, in test_transforms.py.
    wrong = []
    for options, message in [
        ({"num_iters": 0}, "num_iters: must be an integer >= 1; got 0"),
        ({"num_iters": True}, "num_iters: must be an integer >= 1; got True"),
        ({"num_iters": 2**31}, "num_iters: must be an integer >= 1 and < 2\\^31; got 2147483648"),
        ({"damping": -0.1}, "damping: must be .*>= 0.*; got -0.1"),
        ({"damping": 1.0}, "damping: must be .*< 1.*; got 1.0"),
        ({"damping": float("nan")}, "damping: must be finite.*; got nan"),
        ({"damping": np.zeros(2)}, "damping: must be a single number; got shape \\(2,\\)"),
        ({"tol": 0.0}, "tol: must be .*> 0.*; got 0.0"),
        ({"tol": -1e-3}, "tol: must be .*> 0.*; got -0.001"),
        ({"tol": float("nan")}, "tol: must be finite.*; got nan"),
    ]:
        wrong += complaints(message, inspect.unwrap(kbp.run), loopy.operators, loopy.graph, loopy.local, **options)
    assert not wrong


@pytest.mark.parametrize("shape", [(4, 3), (5, 4), (5,), (5, 3, 1)])
def test_local_factors_of_another_shape_are_refused(loopy, shape):
    with pytest.raises(ValueError, match="^evidence: local factors must have shape \\(5, 3\\); got"):
        kbp.run(loopy.operators, loopy.graph, jnp.ones(shape))


def test_local_factors_may_be_numpy_arrays(loopy):
    expected = kbp.run(loopy.operators, loopy.graph, loopy.local, num_iters=2).messages
    got = kbp.run(loopy.operators, loopy.graph, np.asarray(loopy.local), num_iters=2).messages
    np.testing.assert_array_equal(got, expected)


def test_operators_with_too_few_types_are_refused():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, node_type=[0, 1, 2])  # edge types 0 and 1
    evaluate, project = jnp.ones((3, 2, 2)), jnp.ones((4, 2, 2))
    kbp.run(kbp.Operators(evaluate, project), graph, num_iters=1)
    with pytest.raises(ValueError, match="^evaluate: must have 1 or >= 3 matrices; got 2"):
        kbp.run(kbp.Operators(evaluate[:2], project), graph)
    for too_few in (2, 3):
        with pytest.raises(ValueError, match=f"^project: must have 1 or >= 4 matrices; got {too_few}"):
            kbp.run(kbp.Operators(evaluate, project[:too_few]), graph)


@pytest.fixture(scope="module")
def gapped():
    """A model of node types 0 and 2, edge types 0 (from 0 to 2) and 3 (from 0 to 0)."""
    x = np.arange(8) % 2
    return kbp.fit(
        kbp.TrainingData(
            edges={0: (x, x), 3: (x, x)}, nodes={0: x, 2: x}, ends={0: (0, 2), 3: (0, 0)}, degrees={0: 2, 2: 2}
        ),
        kernel=kbp.Delta(),
    )


def test_a_model_runs_on_the_types_that_it_has_learned(gapped):
    graph = kbp.Graph.from_edges([(0, 1), (0, 2)], 3, node_type=[0, 0, 2], edge_type=[3, 0])
    assert bool(kbp.run(gapped, graph).converged)


@pytest.mark.parametrize(
    "node_type, edge_type, message",
    [
        ([0, 1], [0], "graph: must have node types among [0, 2]; got [1]"),  # a gap in what was learned
        ([0, 3], [0], "graph: must have node types among [0, 2]; got [3]"),
        (
            [0, 2],
            [1],
            "graph: must have edge types (type, first, second) among [(0, 0, 2), (3, 0, 0)]; got [(1, 0, 2)]",
        ),
        ([0, 0], [0], "graph: must have edge types (type, first, second) among"),  # ends that do not match
        ([0, 2], [4], "graph: must have edge types (type, first, second) among"),
    ],
)
def test_types_that_a_model_has_not_learned_are_refused(gapped, node_type, edge_type, message):
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=node_type, edge_type=edge_type)
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kbp.run(gapped, graph)


def test_edges_named_the_other_way_round_are_the_same_edges(gapped):
    # Type 0 was learned from node type 0 to 2; the second graph names its one edge from 2 to 0.
    there, back = (kbp.Graph.from_edges([edge], 2, node_type=[0, 2], edge_type=[0]) for edge in ((0, 1), (1, 0)))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), there, back))
    np.testing.assert_array_equal(kbp.run(gapped, there).messages, kbp.run(gapped, back).messages)


def test_training_pairs_named_the_other_way_round_give_the_same_model():
    x, y = np.arange(8) % 2, (np.arange(8) // 2) % 2
    there, back = (
        kbp.fit(kbp.TrainingData(edges={0: pair}, nodes={0: x, 2: y}, ends={0: ends}), kernel=kbp.Delta())
        for pair, ends in (((x, y), (0, 2)), ((y, x), (2, 0)))
    )
    np.testing.assert_array_equal(there.operators.project, back.operators.project)
