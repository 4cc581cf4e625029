"""Whole inference against exact answers: brute-force joints and textbook loopy propagation."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import features

# --- discrete models -------------------------------------------------------------------------------
#
# With Delta kernels a message is its values at the states and the estimated operators are the empirical conditionals,
# so with ridge = 0 the answers are those of the discrete model
#
#     p(x) ~ prod_s p(x_s) prod_st p(x_s, x_t) / (p(x_s) p(x_t))                          (times prod_s P(y_s | x_s)).
#
# `floor` raises every evaluated message and marginal to a share of the largest value that a message of its norm can
# have, which for Delta kernels is 1: it only binds where a value is truly that small, and with the default stands 1e-6
# in for a zero. The models below have every combination of states, so that the default floor hardly changes them.

TREE = [(0, 1), (2, 1), (1, 3), (3, 4), (5, 3)]
STATES = (2, 3, 2, 4, 3, 2)
NUM_OBS = 3


def all_combinations(states, copies, seed):
    """Draw samples [sample, node] with dependent coordinates, after one copy of every combination of states."""
    rng = np.random.default_rng(seed)
    every = np.array(list(itertools.product(*map(range, states))))
    weights = rng.dirichlet(np.full(len(every), 0.3))
    return np.concatenate([every, every[rng.choice(len(every), copies, p=weights)]])


def noisy(x, seed):
    """Observe x in three symbols: the state modulo 3, seven times of ten; every symbol occurs for every state."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(x.shape) < 0.7, x % NUM_OBS, rng.integers(NUM_OBS, size=x.shape))


def table(x, y, num_x, num_y):
    """Count pairs: joint frequencies [num_x, num_y]."""
    counts = np.zeros((num_x, num_y))
    np.add.at(counts, (x, y), 1)
    return counts / len(x)


class Tables:
    """What a discrete model has estimated: per edge P(x_a, x_b), per node P(x_s), and factors on the nodes."""

    def __init__(self, edges, states, node, pair, factor=None):
        self.edges, self.states, self.node, self.pair = edges, states, node, pair
        self.factor = [np.ones(k) for k in states] if factor is None else factor

    def brute_force(self):
        marginals = [np.zeros(k) for k in self.states]
        for x in itertools.product(*map(range, self.states)):
            weight = np.prod([self.node[s][v] * self.factor[s][v] for s, v in enumerate(x)])
            for (a, b), joint in zip(self.edges, self.pair, strict=True):
                weight *= joint[x[a], x[b]] / (self.node[a][x[a]] * self.node[b][x[b]])
            for s, v in enumerate(x):
                marginals[s][v] += weight
        return [m / m.sum() for m in marginals]

    def textbook(self, num_iters):
        """Synchronous propagation with the conditionals P(x_t | x_s) of each edge, one state at a time."""
        conditional = {}
        for (a, b), joint in zip(self.edges, self.pair, strict=True):
            conditional[a, b] = joint / joint.sum(axis=0)  # P(x_a | x_b), for the message a -> b
            conditional[b, a] = joint.T / joint.sum(axis=1)
        messages = {(t, s): np.ones(self.states[s]) for t, s in conditional}
        for _ in range(num_iters):
            new = {}
            for t, s in conditional:
                product = self.factor[t].copy()
                for u, to in conditional:
                    if to == t and u != s:
                        product = product * messages[u, t]
                values = np.array([sum(conditional[t, s][:, x_s] * product) for x_s in range(self.states[s])])
                new[t, s] = values / values.max()
            messages = new
        result = []
        for s, marginal in enumerate(self.node):
            b = marginal * self.factor[s]
            for (_, to), values in messages.items():
                b = b * values if to == s else b
            result.append(b / b.sum())
        return result


def own_types(edges, states, seed, copies=400):
    """One node type a node, one edge type an edge: (graph, samples, observations, empirical tables)."""
    num_nodes = len(states)
    graph = kbp.Graph.from_edges(
        edges, num_nodes, node_type=list(range(num_nodes)), edge_type=list(range(len(edges)))[::-1]
    )
    x = all_combinations(states, copies, seed)
    y = noisy(x, seed + 1)
    node = [np.bincount(x[:, s], minlength=k) / len(x) for s, k in enumerate(states)]
    pair = [table(x[:, a], x[:, b], states[a], states[b]) for a, b in edges]
    likelihood = [table(x[:, s], y[:, s], k, NUM_OBS) for s, k in enumerate(states)]
    likelihood = [joint / joint.sum(axis=1, keepdims=True) for joint in likelihood]
    return graph, x, y, Tables(edges, states, node, pair), likelihood


def fit_delta(data, floor=0.0):
    observed = kbp.Delta() if data.observations else None
    return kbp.fit(data, kernel=kbp.Delta(), obs_kernel=observed, ridge=0.0, floor=floor)


def infer(model, graph, states, y=None, num_iters=8, damping=0.0):
    """Return the beliefs of each node at its states."""
    evidence = None if y is None else kbp.observe(model, graph, y)
    solution = kbp.run(model, graph, evidence, num_iters=num_iters, damping=damping)
    node_type = graph.node_type.tolist()
    points = {v: np.arange(max(k for k, w in zip(states, node_type, strict=True) if w == v)) for v in set(node_type)}
    answer = kbp.beliefs(model, graph, evidence, solution, points)
    result = [None] * graph.num_nodes
    for v, belief in answer.items():
        for node, weights in zip(np.flatnonzero(np.array(node_type) == v), belief.weights, strict=True):
            result[node] = np.asarray(weights)
    return result


def assert_beliefs(got, expected, tol):
    for b, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(b, e, atol=tol, rtol=0)


@pytest.fixture(scope="module")
def tree():
    graph, x, y, tables, likelihood = own_types(TREE, STATES, seed=0)
    return graph, x, tables, likelihood, fit_delta(kbp.pool(graph, x, y))


def test_tree_without_evidence_gives_the_marginals(tree):
    graph, x, tables, _, model = tree
    marginals = [np.bincount(x[:, s], minlength=k) / len(x) for s, k in enumerate(STATES)]
    assert_beliefs(tables.brute_force(), marginals, 1e-12)  # the oracle itself
    assert_beliefs(infer(model, graph, STATES), marginals, 1e-10)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_tree_with_evidence_equals_the_brute_force_joint(tree, seed):
    graph, _, tables, likelihood, model = tree
    y = np.random.default_rng(seed).integers(NUM_OBS, size=len(STATES))
    tables = Tables(TREE, STATES, tables.node, tables.pair, [p[:, k] for p, k in zip(likelihood, y, strict=True)])
    assert_beliefs(infer(model, graph, STATES, y), tables.brute_force(), 1e-6)


def test_tree_with_some_nodes_unobserved(tree):
    graph, _, tables, likelihood, model = tree
    y, mask = np.array([0, 2, 1, 0, 2, 1]), np.array([True, False, False, True, False, True])
    factor = [p[:, k] if seen else np.ones(len(p)) for p, k, seen in zip(likelihood, y, mask, strict=True)]
    evidence = kbp.observe(model, graph, y, mask=mask)
    solution = kbp.run(model, graph, evidence, num_iters=8, damping=0.0)
    answer = kbp.beliefs(model, graph, evidence, solution, {s: np.arange(k) for s, k in enumerate(STATES)})
    expected = Tables(TREE, STATES, tables.node, tables.pair, factor).brute_force()
    assert_beliefs([np.asarray(answer[s].weights[0]) for s in range(len(STATES))], expected, 1e-6)


def test_damping_leads_to_the_same_beliefs_on_a_tree(tree):
    graph, _, tables, likelihood, model = tree
    y = np.array([1, 0, 2, 0, 1, 1])
    tables = Tables(TREE, STATES, tables.node, tables.pair, [p[:, k] for p, k in zip(likelihood, y, strict=True)])
    assert_beliefs(infer(model, graph, STATES, y, num_iters=300, damping=0.2), tables.brute_force(), 1e-6)


def test_the_default_floor_changes_little(tree):
    graph, x, tables, likelihood, _ = tree
    model = kbp.fit(
        kbp.pool(graph, x, noisy(x, 1)), kernel=kbp.Delta(), obs_kernel=kbp.Delta(), ridge=0.0
    )  # floor: 1e-6
    y = np.array([1, 2, 0, 1, 2, 0])
    tables = Tables(TREE, STATES, tables.node, tables.pair, [p[:, k] for p, k in zip(likelihood, y, strict=True)])
    assert_beliefs(infer(model, graph, STATES, y), tables.brute_force(), 1e-4)


def test_the_default_floor_stands_in_for_a_zero():
    # x_1 = x_0: without evidence on node 1 its belief follows node 0, exactly with floor = 0 and else up to the floor.
    x = np.stack([np.arange(20) % 2] * 2, axis=1)
    graph = kbp.chain_graph(2)
    data = kbp.pool(graph, x, x)
    mask = np.array([True, False])
    got = {}
    for floor in (0.0, 1e-6):
        model = fit_delta(data, floor)
        evidence = kbp.observe(model, graph, np.array([1, 0]), mask=mask)
        solution = kbp.run(model, graph, evidence, num_iters=4, damping=0.0)
        got[floor] = np.asarray(kbp.beliefs(model, graph, evidence, solution, np.arange(2)).weights)
    np.testing.assert_allclose(got[0.0], [[0, 1], [0, 1]], atol=1e-100)
    np.testing.assert_allclose(got[1e-6], [[0, 1], [0, 1]], atol=1e-5)
    assert np.all(got[1e-6][:, 0] > 1e-13)


def test_shared_types_on_a_tree_equal_the_brute_force_joint():
    # Two node types (2 and 3 states), one edge type; the pairs' marginals are the nodes': the model is consistent.
    rng = np.random.default_rng(3)
    a, b = all_combinations((2, 3), 300, 3).T
    y_a, y_b = noisy(a, 4), noisy(b, 5)
    data = kbp.TrainingData(
        edges={0: (a, b)},
        nodes={0: a, 1: b},
        observations={0: (a, y_a), 1: (b, y_b)},
        ends={0: (0, 1)},
        degrees={0: 4, 1: 4},
    )
    edges, node_type = [(0, 1), (1, 2), (3, 0), (2, 4), (5, 2), (4, 6)], [0, 1, 0, 1, 1, 1, 0]
    graph = kbp.Graph.from_edges(edges, 7, node_type=node_type)
    states, y = [2 + v for v in node_type], rng.integers(NUM_OBS, size=7)
    joint = table(a, b, 2, 3)
    likelihood = [table(x, seen, k, NUM_OBS) for x, seen, k in ((a, y_a, 2), (b, y_b, 3))]
    likelihood = [counts / counts.sum(axis=1, keepdims=True) for counts in likelihood]
    node = [joint.sum(axis=1 - v) for v in node_type]
    pair = [joint if node_type[s] == 0 else joint.T for s, _ in edges]
    factor = [likelihood[v][:, k] for v, k in zip(node_type, y, strict=True)]
    model = fit_delta(data)
    expected = Tables(edges, states, node, pair, factor).brute_force()
    assert_beliefs(infer(model, graph, states, y), expected, 1e-6)
    assert_beliefs(infer(model, graph, states), Tables(edges, states, node, pair).brute_force(), 1e-6)


LOOPY = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)]


@pytest.mark.slow
def test_twenty_loopy_iterations_equal_textbook_iterations():
    graph, x, y, tables, likelihood = own_types(LOOPY, (2, 3, 3, 2), seed=5)
    seen = np.array([0, 2, 1, 1])
    tables.factor = [p[:, k] for p, k in zip(likelihood, seen, strict=True)]
    model = fit_delta(kbp.pool(graph, x, y))
    got = infer(model, graph, tables.states, seen, num_iters=20)
    assert_beliefs(got, tables.textbook(20), 1e-9)
    assert max(np.abs(a - b).max() for a, b in zip(got, tables.brute_force(), strict=True)) > 1e-4  # loops do count


def test_pooled_loopy_iterations_equal_textbook_iterations():
    # One node type and one edge type on a grid: all edges share the two directed conditionals of the pooled pairs.
    graph = kbp.grid_graph(3, 3)
    rng = np.random.default_rng(7)
    base = rng.integers(3, size=(300, 1))
    x = np.where(rng.random((300, 9)) < 0.6, base, rng.integers(3, size=(300, 9)))
    y = noisy(x, 8)
    edges = list(zip(graph.senders.tolist()[:12], graph.receivers.tolist()[:12], strict=True))
    joint = np.mean([table(x[:, a], x[:, b], 3, 3) for a, b in edges], axis=0)
    likelihood = table(x.ravel(), y.ravel(), 3, NUM_OBS)
    likelihood /= likelihood.sum(axis=1, keepdims=True)
    node = np.bincount(x.ravel(), minlength=3) / x.size
    seen = rng.integers(NUM_OBS, size=9)
    tables = Tables(edges, [3] * 9, [node] * 9, [joint] * 12, [likelihood[:, k] for k in seen])
    got = infer(fit_delta(kbp.pool(graph, x, y)), graph, [3] * 9, seen, num_iters=20)
    assert_beliefs(got, tables.textbook(20), 1e-9)


# --- no evidence -----------------------------------------------------------------------------------


def message_values(model, solution, points):
    """Evaluate all messages at points, for a model of one node type."""
    basis = model.bases[0]
    return np.asarray(solution.messages[:, : len(basis.landmarks)] @ features(basis, points).T)


def test_discrete_messages_without_evidence_are_constant(tree):
    graph, _, _, _, model = tree
    solution = kbp.run(model, graph, num_iters=5)
    receivers = graph.receivers.tolist()
    for message, s in zip(solution.messages, receivers, strict=True):
        basis = model.bases[s]
        values = np.asarray(features(basis, jnp.arange(STATES[s])) @ message[: len(basis.landmarks)])
        np.testing.assert_allclose(values / values.mean(), 1, atol=1e-10)


def test_rbf_messages_without_evidence_are_almost_constant():
    # The constant is not in the space of a Gaussian kernel; where the data are, ridge regression comes within 2 %.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 1)) * 0.8 + rng.normal(size=(500, 4)) * 0.6
    graph = kbp.chain_graph(4)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.7), rule=kbp.ConstantTime(eps=1e-3), ridge=1e-6)
    solution = kbp.run(model, graph, num_iters=20)
    points = jnp.asarray(np.quantile(x, np.linspace(0.05, 0.95, 19)))
    values = message_values(model, solution, points)
    np.testing.assert_allclose(values / values.mean(axis=1, keepdims=True), 1, atol=0.02)
    marginal = np.asarray(features(model.bases[0], points) @ model.marginals[0])
    belief = kbp.beliefs(model, graph, None, solution, points)
    weights = marginal * np.gradient(np.asarray(points))  # times the spacing of the candidates
    np.testing.assert_allclose(belief.weights, np.tile(weights / weights.sum(), (4, 1)), rtol=0.05)


# --- node numbers ----------------------------------------------------------------------------------


def permuted(edges, order, *per_node):
    """Renumber nodes: node i becomes order[i]. Edges keep their orientation."""
    new = [tuple(int(order[i]) for i in edge) for edge in edges]
    back = np.argsort(order)
    return new, *(np.asarray(values)[back] for values in per_node)


@pytest.mark.slow
def test_beliefs_follow_a_renumbering_of_the_nodes():
    edges, node_type, edge_type = LOOPY, [0, 1, 0, 0], [2, 2, 1, 1, 2]
    edges = [(a, b) if node_type[a] == 0 else (b, a) for a, b in edges]
    graph = kbp.Graph.from_edges(edges, 4, node_type=node_type, edge_type=edge_type)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1)) + 0.5 * rng.normal(size=(60, 4))
    y, seen = x + 0.5 * rng.normal(size=x.shape), rng.normal(size=4)
    kernels = {"kernel": kbp.RBF(1.5), "obs_kernel": kbp.RBF(1.0)}
    model = kbp.fit(kbp.pool(graph, x, y), rule=kbp.ConstantTime(max_rank=5), ridge=1e-4, **kernels)
    points = np.linspace(-2, 2, 9)

    def answer(graph, y):
        evidence = kbp.observe(model, graph, y)
        solution = kbp.run(model, graph, evidence, num_iters=6)
        return np.asarray(kbp.beliefs(model, graph, evidence, solution, points).weights)

    order = np.array([2, 0, 3, 1])
    shuffle = rng.permutation(len(edges))
    new_edges, new_types, new_seen = permuted(edges, order, node_type, seen)
    renumbered = kbp.Graph.from_edges(
        [new_edges[i] for i in shuffle], 4, node_type=new_types, edge_type=[edge_type[i] for i in shuffle]
    )
    expected = answer(graph, seen)
    np.testing.assert_allclose(answer(renumbered, new_seen)[order], expected, rtol=1e-9, atol=1e-12)
    assert np.abs(answer(graph, seen) - answer(graph, new_seen)).max() > 1e-3  # numbers do matter to what is observed


def test_learning_follows_a_renumbering_of_the_nodes():
    # With Delta kernels the landmarks are all states, whatever the order of the pooled samples.
    rng = np.random.default_rng(1)
    edges, order = LOOPY, np.array([3, 1, 0, 2])
    x = all_combinations((3, 3, 3, 3), 100, 2)
    y, seen = noisy(x, 3), rng.integers(NUM_OBS, size=4)
    graph = kbp.Graph.from_edges(edges, 4)
    new_edges, new_x, new_y, new_seen = permuted(edges, order, x.T, y.T, seen)
    renumbered = kbp.Graph.from_edges(new_edges[::-1], 4)
    expected = infer(fit_delta(kbp.pool(graph, x, y)), graph, [3] * 4, seen, num_iters=6)
    got = infer(fit_delta(kbp.pool(renumbered, new_x.T, new_y.T)), renumbered, [3] * 4, new_seen, num_iters=6)
    assert_beliefs([got[i] for i in order], expected, 1e-12)
