"""Tables with zeros, and the units of log Z, against enumeration of all joint states."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from experiments.lib.schedules import Agreement, ResidualFirst
from kbpjax.baselines import discrete
from tests import reweighted as rw
from tests import steps

ARITHMETICS = {
    "sum": kbp.SumProduct(),
    "max": kbp.MaxProduct(),
    "sum in logs": kbp.InLogs(),
    "max in logs": kbp.InLogs(kbp.MaxProduct()),
}
STATES, NODES = 3, 6


def random_tree(rng):
    """Return a tree with a zero row, a zero column or single zeros in its tables, and some joint state."""
    while True:
        edges = [(int(rng.integers(t)), t) for t in range(1, NODES)]
        node = [rng.uniform(0.5, 4, STATES) for _ in range(NODES)]
        edge = [7 * rng.uniform(0.1, 1, (STATES, STATES)) for _ in edges]
        edge[0][rng.integers(STATES)] = 0
        edge[1][:, rng.integers(STATES)] = 0
        for table in edge[2:]:
            table[rng.random(table.shape) < 0.4] = 0
        node[3][rng.integers(STATES)] = 0
        model = rw.Discrete(edges, node, edge)
        if joint_of(model).sum() > 0 and all(table.any() for table in edge):
            return model


def joint_of(model):
    with np.errstate(divide="ignore"):
        return np.exp(rw.enumerate_log_weights(model))


def look_up(node, x):
    return jnp.asarray(node)[:, x]


def problem(model, arithmetic, own=None):
    """Return model, graph and evidence; `own` is the table of all nodes in the model."""
    graph = kbp.Graph.from_edges(model.edges, NODES, edge_type=np.arange(len(model.edges)))
    own = np.ones(STATES) if own is None else own
    known = discrete.from_potentials(np.arange(STATES), own, np.stack(model.edge), arithmetic=arithmetic)
    return known, graph, kbp.likelihood(known, graph, jax.tree_util.Partial(look_up, np.stack(model.node) / own))


@jax.jit
def weights_of(known, graph, evidence):
    """Return the beliefs after one sweep, and after synchronous updates with damping 0 and 0.3."""
    solutions = [kbp.run_tree(known, graph, evidence), kbp.run(known, graph, evidence, num_iters=NODES, damping=0.0)]
    solutions.append(kbp.run(known, graph, evidence, num_iters=80, damping=0.3))
    found = [kbp.beliefs(known, graph, evidence, solution, np.arange(STATES)).weights for solution in solutions]
    return found, jnp.stack([solution.converged for solution in solutions])


@jax.jit
def log_partition(known, graph, evidence):
    return kbp.log_partition(known, graph, evidence, kbp.run_tree(known, graph, evidence))


@pytest.mark.parametrize(
    "name", ["sum", *(pytest.param(name, marks=pytest.mark.slow) for name in ("max in logs", "max", "sum in logs"))]
)
def test_trees_with_zeros_are_exact(name):
    rng = np.random.default_rng(0)
    for _ in range(4):
        model = random_tree(rng)
        joint = joint_of(model)
        others = [tuple(t for t in range(NODES) if t != s) for s in range(NODES)]
        expected = np.stack([(joint.max if "max" in name else joint.sum)(axis=axes) for axes in others])
        expected /= expected.sum(axis=1, keepdims=True)
        own = rng.uniform(1, 5, STATES)
        known, graph, evidence = problem(model, ARITHMETICS[name], own)
        found, converged = weights_of(known, graph, evidence)
        assert converged.all()
        for weights in found:
            np.testing.assert_allclose(weights, expected, atol=1e-9)
            assert (np.asarray(weights)[expected == 0] == 0).all()
        belief = kbp.infer(known, graph, evidence=evidence)
        np.testing.assert_allclose(belief.weights, expected, atol=1e-9)
        if "max" in name:
            best = np.unravel_index(np.argmax(joint), joint.shape)
            np.testing.assert_array_equal(kbp.mode(belief), best)
        else:
            np.testing.assert_allclose(log_partition(known, graph, evidence), np.log(joint.sum()), rtol=1e-9)


@pytest.mark.parametrize("name", ["sum in logs", pytest.param("sum", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_edges_with_zeros_are_exact(name):
    model = random_tree(np.random.default_rng(1))
    known, graph, evidence = problem(model, ARITHMETICS[name])
    joint, solution = joint_of(model), kbp.run_tree(known, graph, evidence)
    for s, t in model.edges[:3]:
        pair = kbp.edge_beliefs(
            kbp.Posterior.of(known, graph, evidence, solution, np.arange(STATES)), [(s, t)]
        ).weights[0]
        expected = joint.sum(axis=tuple(u for u in range(NODES) if u not in (s, t)))
        np.testing.assert_allclose(pair, expected / expected.sum(), atol=1e-9)


@pytest.mark.parametrize("name", ["sum in logs", pytest.param("sum", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_reweighted_messages_and_zeros(name):
    """With exponents below 1 and psi^(1 / rho) a state that a neighbor forbids stays impossible."""
    table = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    ring = [(0, 1), (1, 2), (0, 2)]
    model = rw.Discrete(ring, list(np.random.default_rng(0).uniform(0.5, 2, (3, 3))), [table] * 3)
    allowed = rw.Discrete(ring, [node[:2] for node in model.node], [table[:2, :2]] * 3)
    rho, expected = 2 / 3, rw.reweighted(allowed, 2 / 3)
    graph = kbp.Graph.from_edges(ring, 3)
    known = discrete.from_potentials(np.arange(3), np.ones(3), table[None] ** (1 / rho), arithmetic=ARITHMETICS[name])
    evidence = kbp.likelihood(known, graph, partial(look_up, np.stack(model.node)))
    solution = kbp.run(known, graph, evidence, num_iters=300, tol=1e-12, exponents=rho)
    weights = kbp.beliefs(known, graph, evidence, solution, np.arange(3)).weights
    assert solution.converged
    np.testing.assert_allclose(weights, np.pad(np.stack(expected.node_beliefs), ((0, 0), (0, 1))), atol=1e-6)
    log_z = rw.free_energy_log_partition(allowed, rho, expected.node_beliefs, expected.edge_beliefs)
    np.testing.assert_allclose(kbp.log_partition(known, graph, evidence, solution), log_z, atol=1e-6)


FORBIDS = np.array([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
IMPOSSIBLE = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
"""Nodes 0 and 2 of a chain are in classes that the table keeps apart."""


# Each arithmetic on one graph, each graph with sums and maxima, in logs and not.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if (i in (0, 3)) == (kind == "tree") else pytest.mark.slow)
        for i, name in enumerate(ARITHMETICS)
        for kind in ("tree", "cycle")
    ],
)
def test_impossible_evidence_is_an_error_that_names_nodes(name, kind):
    graph = kbp.chain_graph(4) if kind == "tree" else kbp.grid_graph(2, 2)
    known = discrete.from_potentials(np.arange(3), np.ones(3), FORBIDS, arithmetic=ARITHMETICS[name])
    local = IMPOSSIBLE if graph.forest is not None else IMPOSSIBLE[[0, 1, 3, 2]]
    evidence = kbp.likelihood(known, graph, partial(look_up, local))
    error = r"^nodes: must have a belief > 0 at one point at least; got 0 everywhere for \[0, 1, 2, 3\].*impossible"
    with pytest.raises(ValueError, match=error):
        kbp.infer(known, graph, evidence=evidence)
    solutions = [
        kbp.run(known, graph, evidence, **options)
        for options in (
            {},
            {"damping": 0.9, "num_iters": 200, "tol": 1e-6},
            {"damping": 0.5, "schedule": Agreement()},
            {"damping": 0.0, "acceleration": kbp.Anderson(), "num_iters": 50, "tol": 1e-6},
            {"schedule": kbp.colored(graph), "damping": 0.5},
            {"schedule": ResidualFirst(0.5), "num_iters": 60},
        )
    ]
    solutions += [kbp.run_tree(known, graph, evidence)] if graph.forest is not None else []
    for solution in solutions:
        assert not solution.converged and not np.isnan(solution.messages).any()
        with pytest.raises(ValueError, match=error):
            kbp.beliefs(known, graph, evidence, solution, np.arange(3))
        with pytest.raises(ValueError, match=r"^nodes: must have a belief > 0"):
            kbp.edge_beliefs(kbp.Posterior.of(known, graph, evidence, solution, np.arange(3)), [(0, 1)])
        with pytest.raises(kbp.NotConverged, match=r"messages of directed edges .* are 0 everywhere.*impossible"):
            kbp.check(solution)
        if "max" not in name:
            assert kbp.log_partition(known, graph, evidence, solution) == -np.inf


def test_logs_tell_rare_from_impossible():
    """In f32, 30 leaves that speak against a state by e^-4 each do not make it as unlikely as a forbidden one."""
    star = kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 32)], 32, edge_type=[0] * 30 + [1])
    contrast = np.array([[1.0, np.exp(4.0)], [np.exp(4.0), 1.0]], np.float32)
    forbid = np.array([[1.0, 1.0], [0.0, 0.0]], np.float32)
    tables = np.stack([contrast, forbid])
    known = discrete.from_potentials([0, 1], np.ones(2, np.float32), tables, arithmetic=kbp.InLogs())
    local = np.ones((32, 2), np.float32)
    local[1:31, 1] = 0  # the leaves are in state 0, which speaks for state 1 of the hub, which leaf 31 forbids
    for solution in kbp.run_tree(known, star, local), kbp.run(known, star, local, num_iters=3, damping=0.0):
        weights = kbp.beliefs(known, star, None, solution, [0, 1]).weights
        np.testing.assert_array_equal(weights[0], [1, 0])


@pytest.mark.parametrize("kind", ["kernel", pytest.param("discrete", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_log_partition_counts_the_scale_of_known_likelihoods(kind):
    graph, rng = kbp.chain_graph(3), np.random.default_rng(0)
    if kind == "discrete":
        model = discrete.from_potentials(np.arange(3), rng.uniform(1, 2, 3), rng.uniform(1, 2, (1, 3, 3)))
    else:
        model = kbp.fit(kbp.pool(graph, rng.integers(3, size=(40, 3))), kernel=kbp.Delta(), ridge=1e-3)
    row = jnp.array([0.5, 1.0, 0.2])

    def log_z(scale, power=1.0, twice=False):
        evidence = kbp.likelihood(model, graph, lambda x: scale[:, None] * row[x.astype(int)][None])
        evidence = evidence**power if power != 1.0 else evidence
        evidence = evidence * kbp.likelihood(model, graph, lambda x: 3 * jnp.ones((3, len(x)))) if twice else evidence
        return kbp.log_partition(model, graph, evidence, kbp.run_tree(model, graph, evidence))

    ones, scale = jnp.ones(3), jnp.array([5.0, 1.0, 0.1])
    np.testing.assert_allclose(log_z(scale) - log_z(ones), np.log(0.5), rtol=1e-9)
    np.testing.assert_allclose(log_z(scale, 2.0) - log_z(ones, 2.0), 2 * np.log(0.5), rtol=1e-9)
    np.testing.assert_allclose(log_z(scale, twice=True) - log_z(scale), 3 * np.log(3), rtol=1e-9)
    np.testing.assert_allclose(jax.grad(log_z)(scale), 1 / scale, rtol=1e-9)


def test_infer_answers_for_the_given_tables():
    """With the exponents of tree reweighting the potentials would be psi^rho."""
    graph, rng = kbp.grid_graph(3, 3), np.random.default_rng(0)
    table, node = np.exp(0.6 * rng.normal(size=(1, 3, 3))), np.exp(rng.normal(size=(9, 3)))
    known = discrete.from_potentials(np.arange(3), np.ones(3), table)
    evidence = kbp.likelihood(known, graph, partial(look_up, node))
    belief = kbp.infer(known, graph, evidence=evidence, tol=1e-10)
    edges = list(zip(*(np.asarray(ends)[:12].tolist() for ends in (graph.senders, graph.receivers)), strict=True))
    expected = rw.enumerate_marginals(rw.Discrete(edges, list(node), [table[0]] * 12))
    assert belief.solution.converged and belief.solution.exponents is None
    np.testing.assert_allclose(belief.weights, np.stack(expected), atol=0.01)
    plain = kbp.run(known, graph, evidence, tol=1e-10, num_iters=500)
    same = kbp.beliefs(known, graph, evidence, plain, np.arange(3)).weights
    np.testing.assert_allclose(belief.weights, same, atol=1e-8)


def test_states_that_the_data_lack_are_impossible_without_a_pseudo_count():
    data = kbp.pool(kbp.chain_graph(2), np.array([[0, 1], [0, 0], [1, 0]]))
    model = discrete.fit(data, np.arange(4), pseudo_count=0)
    belief = kbp.infer(model, kbp.chain_graph(2))
    np.testing.assert_allclose(belief.weights, [[2 / 3, 1 / 3, 0, 0]] * 2, atol=1e-12)
    solution = kbp.run_tree(model, kbp.chain_graph(2))
    np.testing.assert_allclose(kbp.log_partition(model, kbp.chain_graph(2), None, solution), 0, atol=1e-12)


@pytest.mark.slow
def test_first_messages_are_constant_over_the_states_of_the_receiver():
    rng = np.random.default_rng(0)
    known = discrete.from_potentials(
        {0: [0, 1], 1: [0, 1, 2]}, {0: np.ones(2), 1: np.ones(3)}, {0: rng.random((2, 3))}, ends={0: (0, 1)}
    )
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    expected = np.array([[1, 1, 1], [1, 1, 0]]) / np.sqrt([[3], [2]])
    np.testing.assert_allclose(steps.init(known, graph).messages, expected)
