"""Discrete belief propagation against enumeration of all joint states and an independent NumPy loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import kbpjax as kbp
from experiments.lib.schedules import ResidualFirst
from kbpjax.baselines import discrete
from kbpjax.inference.operators import InLogs, MaxProduct, SumProduct
from tests import reweighted as rw
from tests.refusals import not_refused

TREE = [(0, 1), (1, 2), (1, 3), (3, 4)]


def random_model(edges, num_nodes, states=3, seed=0, sharp=1.0):
    """Return a model of the oracle with potentials exp(sharp * normal)."""
    rng = np.random.default_rng(seed)
    node = [np.exp(sharp * rng.standard_normal(states)) for _ in range(num_nodes)]
    return rw.Discrete(edges, node, [np.exp(sharp * rng.standard_normal((states, states))) for _ in edges])


def look_up(node, x):
    return jnp.asarray(node)[:, x]


@partial(jax.jit, static_argnums=1)
def built(tables, arithmetic):
    states = tables.shape[-1]
    return discrete.from_potentials(np.arange(states), np.ones(states, tables.dtype), tables, arithmetic=arithmetic)


def ours(model, arithmetic=SumProduct(), rho=1.0, dtype=np.float64):
    """Return the package's model, its graph with a type for each edge, and the potentials of the nodes as evidence."""
    powers = 1 / rw.edge_weights(model, rho)
    tables = np.stack([psi**power for psi, power in zip(model.edge, powers, strict=True)]).astype(dtype)
    graph = kbp.Graph.from_edges(model.edges, len(model.node), edge_type=np.arange(len(model.edges)))
    return built(tables, arithmetic), graph, np.stack(model.node).astype(dtype)


def told(known, graph, evidence):
    """Return potentials of nodes as evidence, inside the programs that need it."""
    is_array = isinstance(evidence, np.ndarray | jax.Array)
    return kbp.likelihood(known, graph, partial(look_up, evidence)) if is_array else evidence


@jax.jit
def solved(known, graph, evidence, x):
    """Return the solution of one sweep over a tree, and the beliefs."""
    evidence = told(known, graph, evidence)
    solution = kbp.run_tree(known, graph, evidence)
    return solution, kbp.beliefs(known, graph, evidence, solution, x)


@partial(jax.jit, static_argnames=("num_iters", "damping"))
def looped(known, graph, evidence, x, num_iters, damping):
    """Return the solution of synchronous updates, and the beliefs."""
    evidence = told(known, graph, evidence)
    solution = kbp.run(known, graph, evidence, num_iters=num_iters, damping=damping)
    return solution, kbp.beliefs(known, graph, evidence, solution, x)


@jax.jit
def both_ways(*problem):
    """Return solutions and beliefs of both, as one program."""
    return solved(*problem), looped(*problem, num_iters=10, damping=0.0)


def edge_beliefs(known, graph, evidence, solution, edges, x):
    """The edges and the graph must be known to the program."""

    @jax.jit
    def of(known, evidence, solution):
        return kbp.edge_beliefs(kbp.Posterior.of(known, graph, told(known, graph, evidence), solution, x), edges)

    return of(known, evidence, solution)


@jax.jit
def log_partition(known, graph, evidence, solution):
    return kbp.log_partition(known, graph, told(known, graph, evidence), solution)


fit = jax.jit(discrete.fit)


def max_marginals(model):
    """Return, for each node, the largest joint weight of each of its states, scaled to sum 1."""
    joint = np.exp(rw.enumerate_log_weights(model))
    nodes = range(joint.ndim)
    best = np.stack([joint.max(axis=tuple(other for other in nodes if other != s)) for s in nodes])
    return best / best.sum(axis=1, keepdims=True)


# Trees with zeros, in tests/baselines/test_zeros.py, have sums and maxima in logarithms, too.
@pytest.mark.parametrize(
    "arithmetic", [pytest.param(SumProduct(), id="plain"), pytest.param(InLogs(), id="logs", marks=pytest.mark.slow)]
)
def test_sums_on_a_tree_are_the_marginals(arithmetic):
    model = random_model(TREE, 5)
    known, graph, evidence = ours(model, arithmetic)
    expected = np.stack(rw.enumerate_marginals(model))
    answers = both_ways(known, graph, evidence, np.arange(3))
    for _, belief in answers:
        np.testing.assert_allclose(belief.weights, expected, atol=1e-9)
    solution, _ = answers[1]
    pair = edge_beliefs(known, graph, evidence, solution, [(1, 3)], np.arange(3))
    np.testing.assert_allclose(pair.weights[0], rw.enumerate_edge_marginals(model)[2], atol=1e-9)
    log_z = log_partition(known, graph, evidence, solution)
    np.testing.assert_allclose(log_z, rw.enumerate_log_partition(model), atol=1e-9)


@pytest.mark.parametrize(
    "arithmetic",
    [pytest.param(MaxProduct(), id="plain"), pytest.param(InLogs(MaxProduct()), id="logs", marks=pytest.mark.slow)],
)
def test_maxima_on_a_tree_are_the_max_marginals(arithmetic):
    model = random_model(TREE, 5, states=4)
    known, graph, evidence = ours(model, arithmetic)
    joint = rw.enumerate_log_weights(model)
    best = np.array(np.unravel_index(np.argmax(joint), joint.shape))
    answers = both_ways(known, graph, evidence, np.arange(4))
    for _, belief in answers:
        np.testing.assert_allclose(belief.weights, max_marginals(model), atol=1e-9)
        np.testing.assert_array_equal(kbp.mode(belief), best)
    with pytest.raises(ValueError, match=r"model: must add with sums; .*run the same model with sums"):
        log_partition(known, graph, evidence, answers[1][0])


def test_maxima_in_one_update_are_those_of_numpy_at_any_number_of_states():
    for states in (1, 7, 8, 9, 19):
        rng = np.random.default_rng(states)
        matrices, products = rng.random((2, 5, states)), rng.random((2, 6, states))
        expected = np.einsum("top,tap->taop", matrices, products).max(-1)
        got = jax.jit(kbp.MaxProduct().apply)(matrices, jnp.arange(2), products)
        np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize("rho", [0.6, pytest.param(1.0, marks=pytest.mark.slow)])
def test_loops_reach_the_fixed_point_of_an_independent_implementation(rho):
    model = random_model(rw.grid_edges(2, 3), 6, sharp=0.5)
    expected = rw.reweighted(model, rho).node_beliefs
    known, graph, evidence = ours(model, rho=rho)
    exponents = None if rho == 1 else rho
    schedules = kbp.Synchronous(), kbp.colored(graph), ResidualFirst(0.5)

    @jax.jit
    def each(known, evidence):
        evidence = told(known, graph, evidence)
        options = {"num_iters": 500, "tol": 1e-12, "exponents": exponents}
        solutions = [kbp.run(known, graph, evidence, schedule=schedule, **options) for schedule in schedules]
        found = [kbp.beliefs(known, graph, evidence, solution, np.arange(3)).weights for solution in solutions]
        return [solution.converged for solution in solutions], found

    for converged, weights in zip(*each(known, evidence), strict=True):
        assert converged
        np.testing.assert_allclose(weights, np.stack(expected), atol=1e-6)


def test_node_types_may_have_different_numbers_of_states():
    rng = np.random.default_rng(3)
    a, b, ab, bb = rng.random(2), rng.random(4), rng.random((2, 4)), rng.random((4, 4))
    model = rw.Discrete([(0, 1), (1, 2)], [a, b, b], [ab, bb])
    known = discrete.from_potentials(
        {0: [0, 1], 1: [0, 1, 2, 3]}, {0: a, 1: b}, {5: ab, 7: bb}, ends={5: (0, 1), 7: (1, 1)}
    )
    graph = kbp.Graph.from_edges(model.edges, 3, edge_type=[5, 7], node_type=[0, 1, 1])
    solution, belief = solved(known, graph, None, {0: np.arange(2), 1: np.arange(4)})
    expected = rw.enumerate_marginals(model)
    np.testing.assert_allclose(belief[0].weights[0], expected[0], atol=1e-12)
    np.testing.assert_allclose(belief[1].weights, np.stack(expected[1:]), atol=1e-12)
    log_z = log_partition(known, graph, None, solution)
    np.testing.assert_allclose(log_z, rw.enumerate_log_partition(model), atol=1e-9)


def test_logs_keep_what_plain_products_lose():
    """Three neighbors that contradict each other by 1e-200: a product of 1e-400 is 0 in f64, its logarithm is not."""
    tiny = 1e-200
    contrast = np.full((3, 3), tiny) + np.eye(3)
    model = rw.Discrete([(0, 3), (1, 3), (2, 3), (3, 4)], [np.ones(3)] * 5, [contrast] * 4)
    for s in range(3):
        model.node[s] = np.where(np.arange(3) == s, 1.0, tiny * 10.0 ** (2 - s))
    for arithmetic, lost in (
        (SumProduct(), True),
        (InLogs(), False),
        (MaxProduct(), True),
        (InLogs(MaxProduct()), False),
    ):
        known, graph, evidence = ours(model, arithmetic)
        solution, _ = looped(known, graph, evidence, np.arange(3), num_iters=5, damping=0.0)
        message = np.asarray(solution.messages[3])
        assert bool(np.all(message == 0)) == lost
        if not lost:
            assert int(np.argmax(message)) == 2


def test_pseudo_moments_are_ratios_of_counts():
    x = np.array([[0, 0, 1], [2, 2, 2], [0, 1, 0], [1, 1, 2]])
    graph = kbp.chain_graph(3)
    model = discrete.fit(kbp.pool(graph, x), pseudo_count=0.5)
    joint = np.full((3, 3), 0.5)
    np.add.at(joint, (x[:, :-1].ravel(), x[:, 1:].ravel()), 1)
    ratio = joint / np.outer(joint.sum(1), joint.sum(0)) * joint.sum()
    node = np.bincount(x.ravel()) + 0.5 * 3
    node = node / node.sum()
    np.testing.assert_allclose(model.marginals[0], node)
    forth = ratio.T * node
    scale = np.exp(model.operators.log_scale[0])
    np.testing.assert_allclose(model.operators.project[0] * scale, forth)
    np.testing.assert_allclose(model.operators.project[1] * scale, ratio * node)
    np.testing.assert_array_equal(model.points[0], [0, 1, 2])


def test_marginals_of_the_data_are_a_fixed_point_of_pseudo_moments():
    """On a cycle, whose nodes and edges are all alike, without evidence and without a pseudo-count."""
    rng = np.random.default_rng(0)
    joint = rng.integers(1, 9, (4, 4))
    joint += joint.T
    first, second = (np.repeat(i, joint.ravel()) for i in np.indices((4, 4)).reshape(2, -1))
    data = kbp.TrainingData(edges={0: (first, second)}, nodes={0: np.concatenate([first, second])})
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], 4)
    model = fit(data, np.arange(4), pseudo_count=0)
    solution, belief = looped(model, graph, None, np.arange(4), num_iters=20, damping=0.0)
    expected = joint.sum(0) / joint.sum()
    np.testing.assert_allclose(belief.weights, np.tile(expected, (4, 1)), atol=1e-9)
    pair = edge_beliefs(model, graph, None, solution, [(0, 1)], np.arange(4)).weights[0]
    np.testing.assert_allclose(pair, joint / joint.sum(), atol=1e-9)


def test_bins_take_the_nearest_and_beliefs_are_constant_inside():
    x = np.array([[0.0, 0.9], [0.2, 1.1], [2.0, 1.9]])
    graph = kbp.chain_graph(2)
    centers = discrete.bins(x.ravel(), 4)
    np.testing.assert_allclose(centers, [0.25, 0.75, 1.25, 1.75])
    model = fit(kbp.pool(graph, x), centers, pseudo_count=0.1)
    counts = np.array([2, 1, 1, 2]) + 0.4
    np.testing.assert_allclose(model.marginals[0], counts / counts.sum())
    evidence = kbp.clamp(model, graph, [0], [0.1], evidence_model=kbp.DensityRatio())
    _, belief = solved(model, graph, evidence, np.array([0.3, 0.7, 1.2, 1.8]))
    pairs = np.full((4, 4), 0.1)
    pairs[[0, 0, 3], [1, 2, 3]] += 1
    row = pairs[0] / pairs.sum(0) * counts * [0.4, 0.45, 0.55, 0.6]  # times the spacing of the candidates
    np.testing.assert_allclose(belief.weights[1], row / row.sum(), atol=1e-9)
    vectors = discrete.Indicators(jnp.array([[0.0, 0.0], [1.0, 1.0]]), jnp.dtype("float32"))
    np.testing.assert_array_equal(vectors.nearest(jnp.asarray([[0.1, 0.3], [0.9, 0.8]])), [0, 1])


def test_whole_numbers_in_any_order_are_states():
    x = np.array([[30, 10, 20], [10, 30, 10], [20, 20, 10], [10, 10, 30]])
    graph = kbp.chain_graph(3)
    mixed = fit(kbp.pool(graph, x), np.array([30, 10, 20]))
    sorted_ = discrete.fit(kbp.pool(graph, x))
    one, other = (solved(m, graph, None, np.array([10, 20, 30]))[1].weights for m in (mixed, sorted_))
    np.testing.assert_allclose(one, other, atol=1e-12)
    np.testing.assert_array_equal(sorted_.points[0], [10, 20, 30])


def test_models_without_edges_are_their_potentials():
    graph = kbp.Graph.from_edges([], 3)
    counted = fit(kbp.TrainingData({}, {0: np.array([0, 1, 1, 1])}), np.arange(2), pseudo_count=0)
    for model in (counted, discrete.from_potentials([0, 1], [1.0, 3.0], {})):
        for _, belief in both_ways(model, graph, None, np.arange(2)):
            np.testing.assert_allclose(belief.weights, np.tile([0.25, 0.75], (3, 1)), rtol=1e-12)
    with pytest.raises(ValueError, match="^graph: must have edge types"):
        kbp.run(counted, kbp.chain_graph(3))


@pytest.mark.slow
def test_models_are_compiled_batched_and_differentiated():
    model = random_model(rw.grid_edges(2, 2), 4, sharp=0.3)
    tables = np.stack(model.edge)
    graph = kbp.Graph.from_edges(model.edges, 4, edge_type=np.arange(4))

    def first(tables, node):
        known = discrete.from_potentials(np.arange(3), np.ones(3), tables)
        evidence = kbp.likelihood(known, graph, Partial(look_up, node))
        solution = kbp.run(known, graph, evidence, num_iters=8)
        return kbp.beliefs(known, graph, evidence, solution, np.arange(3)).weights

    nodes = np.random.default_rng(1).random((3, 4, 3)) + 0.1
    batched = jax.jit(jax.vmap(first, (None, 0)))(tables, nodes)
    np.testing.assert_allclose(batched[1], first(jnp.asarray(tables), jnp.asarray(nodes[1])), atol=1e-12)
    loss, step = jax.jit(jax.value_and_grad(lambda t: first(t, nodes[0])[0, 0])), np.zeros_like(tables)
    step[1, 2, 0] = 1e-5
    (up, _), (down, _), (_, slope) = loss(tables + step), loss(tables - step), loss(tables)
    np.testing.assert_allclose(slope[1, 2, 0], (up - down) / 2e-5, rtol=1e-5)


def test_single_precision():
    model = random_model(rw.grid_edges(3, 3), 9, sharp=0.5)
    known, graph, evidence = ours(model, dtype=np.float32)
    options = {"x": np.arange(3), "num_iters": 100, "damping": 0.1}
    _, belief = looped(known, graph, evidence, **options)
    double, _, clues = ours(model)
    _, expected = looped(double, graph, clues, **options)
    assert belief.weights.dtype == jnp.float32
    np.testing.assert_allclose(belief.weights, expected.weights, atol=1e-5)


TABLES = np.ones((1, 2, 2))
BAD = {
    "negative": ([0, 1], [1.0, 1.0], -TABLES, None, r"edges: must have no negative entries; got -1.*not logarithms"),
    "zeros": (
        [0, 1],
        [1.0, 1.0],
        TABLES * [[[1]], [[0]]],
        None,
        r"edges: .*each table; got zeros for edge types \[1\]",
    ),
    "zeros by type": ([0, 1], [1.0, 1.0], {3: np.zeros((2, 2))}, None, r"edges\[3\]: must have an entry > 0 in each"),
    "states": ([0, 1, 2], [1.0, 1.0, 1.0], TABLES, None, r"edges: must have \(3, 3\) states; got shape \(1, 2, 2\)"),
    "node states": ([0, 1], [1.0, 1.0, 1.0], TABLES, None, r"nodes\[0\]: must have shape \(2,\)"),
    "node negative": ([0, 1], [1.0, -1.0], TABLES, None, r"nodes\[0\]: must have no negative entries"),
    "node zero": ([0, 1], [0.0, 0.0], TABLES, None, r"nodes\[0\]: must have a potential > 0"),
    "nan": ([0, 1], [1.0, 1.0], TABLES * np.nan, None, r"edges: must be finite"),
    "shape": ([0, 1], [1.0, 1.0], TABLES[0], None, r"edges: must have shape \[edge_type, first, second\]"),
    "types": ({0: [0, 1]}, {1: [1.0, 1.0]}, TABLES, None, r"nodes: must have node types \[0\]; got \[1\]"),
    "ends": ({0: [0, 1], 1: [0, 1]}, {0: [1.0, 1.0], 1: [1.0, 1.0]}, TABLES, None, r"ends: must be given"),
    "unknown": ([0, 1], [1.0, 1.0], TABLES, {0: (0, 4)}, r"ends: must be \(first, second\) of node types \[0\]"),
    "names": ([0, 1], [1.0, 1.0], TABLES, {2: (0, 0)}, r"ends: must name edge types \[0\]; got \[2\]"),
}


def test_bad_potentials_are_refused():
    make = lambda states, nodes, edges, ends, _: discrete.from_potentials(states, nodes, edges, ends=ends)
    assert not not_refused({name: (partial(make, *case), case[-1]) for name, case in BAD.items()})


def test_bad_data_are_refused():
    data = kbp.pool(kbp.chain_graph(2), np.array([[0, 1], [0, 0]]))
    assert not not_refused({
        "negative": (lambda: discrete.fit(data, pseudo_count=-1), r"pseudo_count: must be finite and >= 0; got -1"),
        "states": (lambda: discrete.fit(data, [[0, 1]]), r"states: .* shape \[state, \*\(\)\]; got shape \(1, 2\)"),
        "bins": (lambda: discrete.bins([1.0], 0), "num_bins: must be an integer >= 1"),
        "numbers": (lambda: discrete.bins([[1.0]], 2), r"x: must be numbers \[sample\]"),
    })  # fmt: skip


@pytest.mark.slow
def test_ten_thousand_tables_of_their_own_are_one_batch():
    rng = np.random.default_rng(0)
    graph = kbp.grid_graph(70, 70)
    count = graph.num_edges // 2
    own = kbp.Graph.from_edges(
        np.asarray(graph.senders)[:count, None] * [1, 0] + np.asarray(graph.receivers)[:count, None] * [0, 1],
        4900,
        edge_type=np.arange(count),
    )
    tables = np.tile(rng.random((1, 3, 3)) + 0.1, (count, 1, 1))
    local = rng.random((4900, 3))
    apart = discrete.from_potentials(np.arange(3), np.ones(3), tables)
    shared = discrete.from_potentials(np.arange(3), np.ones(3), tables[:1])
    run = jax.jit(partial(kbp.run, num_iters=5))
    one, other = run(apart, own, local), run(shared, graph, local)
    np.testing.assert_allclose(one.messages, other.messages, atol=1e-12)
