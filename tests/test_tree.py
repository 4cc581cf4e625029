"""Exact inference on trees against a plain recursion, the engine in a loop, finite differences; cycles are named."""

import re
from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.inference.operators import InLogs
from kbpjax.inference.tree import run_tree
from tests.engine import without_incoming

POINTS, RANK = 4, 3


# --- trees and a plain recursion -------------------------------------------------------------------


def chain(n):
    return [(i, i + 1) for i in range(n - 1)]


def star(n):
    return [(0, i) for i in range(1, n)]


def caterpillar(n):
    return [(max(0, i - 2) if i % 2 == 0 else i - 1, i) for i in range(1, n)]


def broom(n):
    return [(i - 1 if i <= n // 2 else n // 2, i) for i in range(1, n)]


def binary(n):
    return [((i - 1) // 2, i) for i in range(1, n)]


def attachment(seed, n):
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(i)), i) for i in range(1, n)]


def forest(n):
    """Join a chain, a star, a random tree and a single edge, with two isolated nodes between them."""
    edges, first = [], 0
    for part, size in ((chain(n), n), (star(n), n), ([], 1), (attachment(3, n), n), ([], 1), (chain(2), 2)):
        edges += [(a + first, b + first) for a, b in part]
        first += size
    return edges


def side_by_side(forests):
    """Join forests as one graph."""
    edges, first = [], 0
    for part in forests:
        edges += [(a + first, b + first) for a, b in part]
        first += 1 + max(map(max, part))
    return edges


FORESTS = {
    "edge": chain(2),
    "chain": chain(13),
    "even chain": chain(8),
    "star": star(30),
    "triple": star(4),
    "caterpillar": caterpillar(21),
    "broom": broom(24),
    "binary": binary(31),
    "attachment": attachment(0, 40),
    "long": attachment(5, 90),
    "forest": forest(9),
}
FORESTS["all"] = side_by_side(FORESTS.values())


def typed(name, seed, kinds=1):
    """Give a forest random node numbers, orientations and types: two edge types for each pair of node types."""
    rng = np.random.default_rng(seed)
    edges = np.array(FORESTS[name])
    num_nodes = int(edges.max()) + 2  # the last one is isolated
    edges = rng.permutation(num_nodes)[edges]
    edges = np.where(rng.random(len(edges))[:, None] < 0.5, edges[:, ::-1], edges)
    node_type = 2 * rng.integers(kinds, size=num_nodes)
    pairs = np.sort(node_type[edges], axis=1)
    edge_type = 3 * (pairs[:, 0] * 2 * kinds + pairs[:, 1]) + rng.integers(2, size=len(edges))
    return kbp.Graph.from_edges(edges, num_nodes, edge_type=edge_type, node_type=node_type)


def operators_for(graph, seed, floor, least=-1.0):
    rng = np.random.default_rng(seed)
    nodes = 1 + max(v for v, *_ in graph.node_types)
    edges = 2 + 2 * max(k for k, *_ in graph.edge_types)
    evaluate = rng.uniform(least, 1, (nodes, POINTS, RANK))
    project = rng.uniform(0.05, 1, (edges, RANK, POINTS))
    return kbp.Operators(jnp.asarray(evaluate), jnp.asarray(project), floor)


def local_for(graph, seed, zeros=False):
    rng = np.random.default_rng(seed)
    local = rng.uniform(0.2, 1, (graph.num_nodes, POINTS))
    if zeros:
        local *= rng.random(local.shape) < 0.7
        local[:, 0] += 0.1  # so that no message is all zero
    return jnp.asarray(local)


def recursive(operators, graph, local, ignoring=None):
    """Compute every message from those that it needs, one by one."""
    evaluate, project = np.asarray(operators.evaluate), np.asarray(operators.project)
    floor = np.broadcast_to(np.asarray(operators.floor), len(evaluate))
    senders, receivers = graph.senders.tolist(), graph.receivers.tolist()
    node_type, edge_type = graph.node_type.tolist(), graph.edge_type.tolist()
    into = {node: [e for e, to in enumerate(receivers) if to == node] for node in range(graph.num_nodes)}
    known = {}

    def message(e):
        if e in known:
            return known[e]
        t, s = senders[e], receivers[e]
        kind = node_type[t] if len(evaluate) > 1 else 0
        product = np.asarray(local)[t].copy()
        for f in into[t]:
            if senders[f] != s and (ignoring is None or not ignoring[t]):
                product = product * np.maximum(evaluate[kind] @ message(f), floor[kind])
                product /= max(product.max(), 1e-300)
        row = 2 * edge_type[e] + (e >= graph.num_edges // 2) if len(project) > 1 else 0
        new = project[row] @ product
        known[e] = new / max(np.linalg.norm(new), 1e-300)
        return known[e]

    return np.array([message(e) for e in range(graph.num_edges)])


def diameter(graph):
    """Return the number of edges of the longest path."""
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))

    @cache
    def reach(t, s):
        return 1 + max((reach(u, t) for u, to in edges if to == t and u != s), default=0)

    return max(reach(t, s) for t, s in edges)


close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, kinds", [("all", 1), ("all", 3), *((name, 2) for name in FORESTS if name != "all")])
def test_messages_equal_a_recursion_and_run(name, kinds):
    """Each forest by itself, for schedules of all depths; all of them as one graph, for the loop and both floors."""
    graph = typed(name, seed=len(name), kinds=kinds)
    for floor in (0.0, 0.2) if name == "all" else (0.0,):
        operators, local = operators_for(graph, 1, floor), local_for(graph, 2, zeros=floor == 0)
        solution = run_tree(operators, graph, local)
        close(solution.messages, recursive(operators, graph, local))
        assert solution.residuals.shape == (1,) and float(solution.residuals[0]) < 1e-12
        assert bool(solution.converged)
        if name == "all":
            loop = kbp.run(operators, graph, local, num_iters=diameter(graph), damping=0.0)
            close(solution.messages, loop.messages)


def test_local_zeros_and_clipped_values_are_among_the_tests():
    # What the tests above rely on: floor 0 does clip, and whole products have zeros.
    graph = typed("attachment", seed=10)
    operators, local = operators_for(graph, 1, 0.0), local_for(graph, 2, zeros=True)
    values = np.einsum("pr,er->ep", np.asarray(operators.evaluate)[0], run_tree(operators, graph, local).messages)
    assert np.any(values < 0) and np.any(np.asarray(local) == 0)


def test_a_floor_of_each_node_type():
    graph = typed("attachment", seed=3, kinds=3)
    operators, local = operators_for(graph, 1, jnp.array([0.1, 0.2, 0.3, 0.4, 0.5])), local_for(graph, 2)
    close(run_tree(operators, graph, local).messages, recursive(operators, graph, local))


def test_shared_operators_and_no_evidence():
    graph = typed("caterpillar", seed=3, kinds=3)
    own = operators_for(graph, 1, 0.1)
    operators = kbp.Operators(own.evaluate[:1], own.project[:1], 0.1)
    expected = recursive(operators, graph, np.ones((graph.num_nodes, POINTS)))
    close(run_tree(operators, graph).messages, expected)


def test_all_evidence_against_gives_messages_of_zero():
    graph = typed("forest", seed=1)
    operators, local = operators_for(graph, 1, 0.0), jnp.zeros((graph.num_nodes, POINTS))
    messages = jax.jit(lambda local: run_tree(operators, graph, local).messages)(local)  # eager calls refuse it
    assert not np.any(messages)


def test_node_numbers_do_not_matter():
    graph = typed("long", seed=0, kinds=2)
    operators, local = operators_for(graph, 1, 0.1), local_for(graph, 2)
    new = np.random.default_rng(0).permutation(graph.num_nodes)
    half = graph.num_edges // 2
    edges = np.stack([new[np.asarray(graph.senders)], new[np.asarray(graph.receivers)]], axis=1)[:half]
    node_type = np.empty(graph.num_nodes, int)
    node_type[new] = graph.node_type
    other = kbp.Graph.from_edges(edges, graph.num_nodes, edge_type=graph.edge_type[:half], node_type=node_type)
    close(run_tree(operators, other, local[np.argsort(new)]).messages, run_tree(operators, graph, local).messages)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_a_star_of_10000_leaves_does_not_underflow(dtype):
    leaves = np.arange(1, 10_001)
    graph = kbp.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves], axis=1), 10_001)
    operators = kbp.Operators(jnp.eye(2, dtype=dtype)[None], jnp.asarray(np.stack([np.eye(2), np.eye(2)]), dtype))
    local = np.ones((10_001, 2), dtype)
    local[1:, 0] = 1.0002
    solution = run_tree(operators, graph, local)
    log_odds = np.log(np.asarray(solution.messages[0], np.float64))
    np.testing.assert_allclose(
        log_odds[0] - log_odds[1], 9999 * np.log(1.0002), rtol=1e-2 if dtype is np.float32 else 1e-9
    )
    assert solution.messages.dtype == dtype and bool(solution.converged)
    assert int(solution.num_iters) <= 2 * 16  # 10,000 leaves are merged in 14 levels


def test_a_chain_of_10000_nodes_in_single_precision():
    graph = kbp.chain_graph(10_000)
    rng = np.random.default_rng(0)
    table = np.array([[0.9, 0.2], [0.1, 0.8]])
    operators = kbp.Operators(jnp.eye(2, dtype=np.float32)[None], jnp.asarray(table, np.float32)[None])
    local = rng.uniform(0.2, 1, (10_000, 2))
    solution = run_tree(operators, graph, jnp.asarray(local, np.float32))
    message, forward = np.ones(2), []
    for values in local[:-1]:
        message = table @ (values * message)
        message /= np.linalg.norm(message)
        forward.append(message)
    np.testing.assert_allclose(solution.messages[:9999], forward, rtol=1e-5)
    assert solution.residuals.dtype == np.float32 and bool(solution.converged)
    assert int(solution.num_iters) == 10_000  # half of the chain, there and back


def test_beliefs_of_a_discrete_tree_are_those_of_the_joint():
    rng = np.random.default_rng(0)
    edges, states = [(0, 1), (2, 1), (1, 3), (3, 4), (5, 3), (1, 6)], 3
    graph = kbp.Graph.from_edges(edges, 7, edge_type=range(6))
    node, pair = rng.uniform(0.2, 1, (7, states)), rng.uniform(0.1, 1, (6, states, states))
    tables = np.stack([pair.transpose(0, 2, 1), pair], axis=1).reshape(12, states, states)
    messages = np.asarray(run_tree(kbp.Operators(jnp.eye(states)[None], jnp.asarray(tables)), graph, node).messages)
    belief = node.copy()
    for message, to in zip(messages, graph.receivers.tolist(), strict=True):
        belief[to] *= message
    operands = [part for s in range(7) for part in (node[s], [s])]
    operands += [part for (a, b), table in zip(edges, pair, strict=True) for part in (table, [a, b])]
    expected = np.array([np.einsum(*operands, [s]) for s in range(7)])
    close(belief / belief.sum(axis=1, keepdims=True), expected / expected.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_a_star_of_contradicting_leaves_is_right_in_any_order(dtype):
    """In logarithms: 29 leaves are in one state and 30 in the other, with next to no error in the tables."""
    num_leaves, eps = 59, 1e-6
    leaves = np.arange(1, num_leaves + 1)
    graph = kbp.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves], axis=1), num_leaves + 1)
    table = jnp.asarray([[[1, eps], [eps, 1]]], dtype)
    operators = kbp.Operators(jnp.eye(2, dtype=dtype)[None], table, arithmetic=InLogs())
    for order in (leaves, np.random.default_rng(0).permutation(leaves), leaves[::-1]):
        states = np.where(np.argsort(np.argsort(order)) < 29, 0, 1)
        local = np.concatenate([np.ones((1, 2)), np.eye(2)[states]]).astype(dtype)
        solution = kbp.run_tree(operators, graph, jnp.asarray(local))
        to_leaves = np.asarray(solution.messages[:num_leaves])  # the hub's number is the smaller one of each edge
        # To a leaf of state 0, 28 say 0 and 30 say 1: odds eps^2; to one of state 1, 29 and 29: even.
        odds = np.where(states == 0, eps**2, 1.0)
        by_hand = np.stack([odds + eps, eps * odds + 1], axis=1)
        by_hand /= np.linalg.norm(by_hand, axis=1, keepdims=True)
        np.testing.assert_allclose(to_leaves, by_hand, rtol=1e-3 if dtype is np.float32 else 1e-9)
        assert bool(solution.converged)


def test_logarithms_change_nothing_where_products_do_not_underflow():
    graph = typed("all", seed=3, kinds=3)
    plain, local = operators_for(graph, 1, 0.0, least=0.1), local_for(graph, 2, zeros=True)
    in_logs = kbp.Operators(plain.evaluate, plain.project, plain.floor, arithmetic=InLogs())
    close(run_tree(in_logs, graph, local).messages, run_tree(plain, graph, local).messages)


# --- edges of the domain --------------------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_a_graph_without_edges(num_nodes):
    operators = kbp.Operators(jnp.eye(2)[None], jnp.eye(2)[None])
    solution = run_tree(operators, kbp.Graph.from_edges([], num_nodes))
    assert solution.messages.shape == (0, 2) and bool(solution.converged) and int(solution.num_iters) == 0


def test_only_forests_have_a_schedule():
    assert kbp.chain_graph(2).forest is not None
    assert kbp.chain_graph(1).forest is None
    assert kbp.grid_graph(2, 2).forest is None
    assert kbp.Graph.from_edges([(0, 1), (1, 2), (2, 0)], 9).forest is None  # fewer edges than nodes


def test_nan_is_not_converged():
    graph = typed("chain", seed=0)
    local = local_for(graph, 0).at[:, 0].set(jnp.nan)
    run = jax.jit(lambda local: run_tree(operators_for(graph, 0, 0.1), graph, local))  # where values are not checked
    assert not bool(run(local).converged)


def test_evidence_and_types_are_checked():
    graph = typed("chain", seed=0)
    operators = operators_for(graph, 0, 0.1)
    with pytest.raises(ValueError, match="^evidence: local factors must have shape"):
        run_tree(operators, graph, jnp.ones((3, POINTS)))
    with pytest.raises(ValueError, match="^project: "):
        run_tree(kbp.Operators(operators.evaluate, operators.project[:2]), typed("chain", 0, 3))


# --- transforms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["forest", *(pytest.param(name, marks=pytest.mark.slow) for name in ("star", "chain"))]
)
def test_jit_with_a_traced_graph_and_vmap_over_local(name):
    graph = typed(name, seed=2, kinds=2)
    operators = operators_for(graph, 1, 0.1)
    local = jnp.stack([local_for(graph, seed) for seed in range(3)])
    expected = [recursive(operators, graph, each) for each in local]
    close(jax.jit(run_tree)(operators, graph, local[0]).messages, expected[0])
    close(jax.vmap(partial(run_tree, operators, graph))(local).messages, expected)
    together = jax.jit(jax.vmap(run_tree, (None, None, 0)))(operators, graph, local)
    close(together.messages, expected)
    assert together.converged.tolist() == [True] * 3


def directional(loss, at, seed, h=1e-6):
    """Compare both modes with central differences along a random direction of each argument."""
    rng = np.random.default_rng(seed)
    directions = tuple(jnp.asarray(rng.normal(size=each.shape)) for each in at)
    slopes = []
    for which, direction in enumerate(directions):
        ahead, behind = (loss(*at[:which], at[which] + d * direction, *at[which + 1 :]) for d in (h, -h))
        slopes.append((ahead - behind) / (2 * h))
    assert all(slope != 0 for slope in slopes)
    gradients = jax.jit(jax.grad(loss, tuple(range(len(at)))))(*at)
    got = [jnp.sum(gradient * direction) for gradient, direction in zip(gradients, directions, strict=True)]
    np.testing.assert_allclose(got, slopes, rtol=1e-6, atol=1e-9)
    forward = jax.jit(lambda *at: jax.jvp(loss, at, directions)[1])(*at)
    np.testing.assert_allclose(forward, sum(slopes), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["forest", pytest.param("star", marks=pytest.mark.slow)])
@pytest.mark.parametrize("zeros", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_equal_finite_differences(name, zeros):
    # The loss is smooth at the zeros of the local factors: with positive operators, no floor is reached.
    graph = typed(name, seed=4, kinds=2)
    operators, local = operators_for(graph, 1, 0.0, least=0.1), local_for(graph, 2, zeros=zeros)
    weight = jnp.asarray(np.random.default_rng(5).normal(size=(graph.num_edges, RANK)))

    @jax.jit
    def loss(evaluate, project, local):
        return jnp.sum(weight * run_tree(kbp.Operators(evaluate, project), graph, local).messages)

    directional(loss, (operators.evaluate, operators.project, local), seed=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triple", "attachment"])
def test_gradients_where_values_are_clipped_to_exactly_zero(name):
    graph = typed(name, seed=4)
    operators, local = operators_for(graph, 1, 0.0), local_for(graph, 2)
    weight = jnp.asarray(np.random.default_rng(5).normal(size=(graph.num_edges, RANK)))

    @jax.jit
    def loss(evaluate, project, local):
        return jnp.sum(weight * run_tree(kbp.Operators(evaluate, project, 0.0), graph, local).messages)

    messages = np.asarray(run_tree(operators, graph, local).messages)
    assert np.mean(messages @ np.asarray(operators.evaluate)[0].T < 0) > 0.05
    directional(loss, (operators.evaluate, operators.project, local), seed=6)


def test_gradient_through_a_long_chain_is_finite():
    graph = kbp.chain_graph(3000)
    operators = operators_for(graph, 0, 1e-6, least=0.1)
    local = local_for(graph, 0)
    gradient = jax.jit(jax.grad(lambda local: jnp.sum(run_tree(operators, graph, local).messages ** 3)))(local)
    assert np.all(np.isfinite(gradient)) and np.any(np.asarray(gradient) != 0)


# --- nodes that ignore their incoming messages -----------------------------------------------------


@pytest.mark.parametrize("name", ["all", *(pytest.param(name, marks=pytest.mark.slow) for name in ("star", "chain"))])
def test_marked_nodes_ignore_their_incoming_messages(name):
    graph = typed(name, seed=7, kinds=2)
    operators, local = operators_for(graph, 1, 0.1), local_for(graph, 2)
    degree = np.bincount(np.asarray(graph.receivers), minlength=graph.num_nodes)
    rng = np.random.default_rng(0)
    hub = degree == degree.max()
    for marked in (hub, ~hub, rng.random(graph.num_nodes) < 0.3, rng.random(graph.num_nodes) < 0.3, hub & ~hub):
        expected = recursive(operators, graph, local, ignoring=marked)
        changed = without_incoming(graph, jnp.asarray(marked))
        close(run_tree(operators, changed, local).messages, expected)
        loop = kbp.run(operators, changed, local, num_iters=diameter(graph), damping=0.0)
        close(loop.messages, expected)
        assert float(run_tree(operators, changed, local).residuals[0]) < 1e-12
    solve = jax.jit(lambda graph, marked: run_tree(operators, without_incoming(graph, marked), local).messages)
    close(solve(graph, jnp.asarray(hub)), recursive(operators, graph, local, ignoring=hub))


def test_marks_may_be_mapped():
    graph = typed("attachment", seed=7)
    operators, local = operators_for(graph, 1, 0.1), local_for(graph, 2)
    marked = np.random.default_rng(0).random((3, graph.num_nodes)) < 0.3
    got = jax.vmap(lambda each: run_tree(operators, without_incoming(graph, each), local).messages)(jnp.asarray(marked))
    close(got, [recursive(operators, graph, local, ignoring=each) for each in marked])


# --- cycles ---------------------------------------------------------------------------------------

LOOPY = {
    "triangle": [(0, 1), (1, 2), (2, 0)],
    "tail": [*chain(6), (5, 3), (6, 0), (7, 6)],
    "second tree": [(0, 1), (1, 2), (3, 4), (4, 5), (5, 6), (6, 3), (8, 9), (9, 10)],
    "grid": [(i, i + 1) for i in range(24) if i % 5 < 4] + [(i, i + 5) for i in range(20)],
    "theta": [(0, 1), (1, 2), (2, 3), (0, 4), (4, 3), (0, 5), (5, 6), (6, 3)],
}


def ring(n):
    return [(i, (i + 1) % n) for i in range(n)]


@pytest.mark.parametrize("name", LOOPY)
@pytest.mark.parametrize("seed", range(4))
def test_a_true_cycle_is_named(name, seed):
    edges = np.array(LOOPY[name])
    num_nodes = int(edges.max()) + 2
    edges = np.random.default_rng(seed).permutation(num_nodes)[edges]
    graph = kbp.Graph.from_edges(edges, num_nodes)
    operators = kbp.Operators(jnp.eye(2)[None], jnp.eye(2)[None])
    with pytest.raises(
        ValueError, match=r"^graph: must have no cycle; got the cycle .*\. Use kbpjax\.run, which"
    ) as info:
        run_tree(operators, graph)
    named = [int(node) for node in re.findall(r"the cycle ([\d -]+)\.", str(info.value))[0].split(" - ")]
    assert named[0] == named[-1] and len(named) >= 4
    assert len(set(named)) == len(named) - 1
    known = {frozenset(edge) for edge in edges.tolist()}
    assert all(frozenset(edge) in known for edge in pairwise(named))


def test_a_long_cycle_is_abridged():
    operators = kbp.Operators(jnp.eye(2)[None], jnp.eye(2)[None])
    with pytest.raises(ValueError, match=r"the cycle \d+( - \d+){9} - \.\.\.( - \d+){9}\. Use"):
        run_tree(operators, kbp.Graph.from_edges(ring(100), 100))


def test_a_traced_graph_with_a_cycle_is_refused():
    operators = kbp.Operators(jnp.eye(2)[None], jnp.eye(2)[None])
    with pytest.raises(ValueError, match="^graph: must have no cycle; got a traced graph"):
        jax.jit(run_tree)(operators, kbp.grid_graph(3, 3))
    graph = kbp.grid_graph(3, 3)
    with pytest.raises(ValueError, match="the cycle"):
        jax.jit(lambda operators: run_tree(operators, graph))(operators)
