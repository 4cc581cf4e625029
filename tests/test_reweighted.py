"""Tests of the oracle `tests/reweighted.py` itself, against enumeration, closed forms and an optimizer."""

import itertools

import numpy as np
import pytest

from tests import reweighted as rw


def discrete(seed, edges, sizes):
    """Return a model with random potentials that are not symmetric."""
    rng = np.random.default_rng(seed)
    node = [np.exp(rng.normal(size=k)) for k in sizes]
    return rw.Discrete(edges, node, [np.exp(rng.normal(size=(sizes[s], sizes[t]))) for s, t in edges])


def value_of(model, rho, solution):
    """Return the value of the beliefs of a solution."""
    return rw.free_energy_log_partition(model, rho, solution.node_beliefs, solution.edge_beliefs)


def inconsistency(model, solution):
    """Return the largest difference between a margin of an edge's belief and the belief of its node."""
    gaps = [0.0]
    for (s, t), belief in zip(model.edges, solution.edge_beliefs, strict=True):
        gaps.append(np.max(np.abs(belief.sum(axis=1) - solution.node_beliefs[s])))
        gaps.append(np.max(np.abs(belief.sum(axis=0) - solution.node_beliefs[t])))
    return max(gaps)


def spanning_trees(edges, num_nodes):
    """Return each spanning tree as a tuple of positions in the list of edges."""
    trees = []
    for tree in itertools.combinations(range(len(edges)), num_nodes - 1):
        label = list(range(num_nodes))
        for e in tree:
            a, b = (label[i] for i in edges[e])
            label = [a if x == b else x for x in label]
        if len(set(label)) == 1:
            trees.append(tree)
    return trees


# --- enumeration ------------------------------------------------------------------------------------------------------


def test_enumeration_is_the_sum_over_all_states_in_plain_loops():
    model = discrete(0, [(0, 1), (2, 1), (2, 0)], [2, 3, 4])
    total, nodes, edges = 0.0, [np.zeros(k) for k in (2, 3, 4)], [np.zeros(psi.shape) for psi in model.edge]
    for x in itertools.product(range(2), range(3), range(4)):
        weight = model.node[0][x[0]] * model.node[1][x[1]] * model.node[2][x[2]]
        weight *= model.edge[0][x[0], x[1]] * model.edge[1][x[2], x[1]] * model.edge[2][x[2], x[0]]
        total += weight
        for s in range(3):
            nodes[s][x[s]] += weight
        edges[0][x[0], x[1]] += weight
        edges[1][x[2], x[1]] += weight
        edges[2][x[2], x[0]] += weight
    np.testing.assert_allclose(rw.enumerate_log_partition(model), np.log(total), rtol=1e-13)
    for got, want in zip(rw.enumerate_marginals(model), nodes, strict=True):
        np.testing.assert_allclose(got, want / total, rtol=1e-12)
    for got, want in zip(rw.enumerate_edge_marginals(model), edges, strict=True):
        np.testing.assert_allclose(got, want / total, rtol=1e-12)


def test_ising_is_a_grid_of_signed_couplings():
    model = rw.ising(np.random.default_rng(0), 3, 4, 0.7, 0.2)
    assert len(model.node) == 12 and len(model.edges) == 17
    assert sorted(map(sorted, model.edges)) == sorted(
        [a, b] for a in range(12) for b in range(12) if b - a == 4 or (b - a == 1 and b % 4)
    )
    couplings = np.array([np.log(psi[0, 0]) for psi in model.edge])
    np.testing.assert_allclose(np.abs(couplings), 0.7)
    assert np.ptp(couplings) > 1  # both signs
    for j, psi in zip(couplings, model.edge, strict=True):
        np.testing.assert_allclose(np.log(psi), [[j, -j], [-j, j]])
    for psi in model.node:
        assert abs(np.log(psi[1])) <= 0.2
        np.testing.assert_allclose(psi[0] * psi[1], 1)


# --- weights of the edges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edges, num_nodes, want",
    [
        ([(0, 1), (2, 1), (1, 3)], 4, 1.0),  # a tree
        ([(i, (i + 1) % 5) for i in range(5)], 5, 4 / 5),  # a cycle
        (list(itertools.combinations(range(6), 2)), 6, 2 / 6),  # a complete graph
    ],
)
def test_spanning_tree_probabilities_in_closed_form(edges, num_nodes, want):
    np.testing.assert_allclose(rw.spanning_tree_probabilities(edges, num_nodes), want, rtol=1e-12)


def test_spanning_tree_probabilities_are_frequencies_among_all_trees():
    edges = rw.grid_edges(2, 3)
    trees = spanning_trees(edges, 6)
    assert len(trees) == 15
    frequency = [sum(e in tree for tree in trees) / 15 for e in range(len(edges))]
    np.testing.assert_allclose(rw.spanning_tree_probabilities(edges, 6), frequency, rtol=1e-12)
    np.testing.assert_allclose(np.sum(rw.spanning_tree_probabilities(rw.grid_edges(4, 4), 16)), 15, rtol=1e-12)


# --- fixed points -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edges, sizes",
    [
        ([(1, 0), (1, 2), (3, 1), (3, 4), (5, 3)], [2, 3, 4, 2, 3, 2]),
        ([(0, 1), (1, 2), (2, 3)], [3, 2, 4, 2]),
        ([(2, 0)], [2, 3, 4]),  # with an isolated node
        ([], [2, 3]),
    ],
)
def test_a_tree_with_weights_1_is_exact(edges, sizes):
    model = discrete(1, edges, sizes)
    solution = rw.reweighted(model, 1.0, damping=0.0)
    assert solution.residual < 1e-12
    for got, want in zip(solution.node_beliefs, rw.enumerate_marginals(model), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)
    for got, want in zip(solution.edge_beliefs, rw.enumerate_edge_marginals(model), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)
    np.testing.assert_allclose(value_of(model, 1.0, solution), rw.enumerate_log_partition(model), rtol=1e-11)


@pytest.mark.parametrize("kind", ["trees", "one", "random"])
def test_a_fixed_point_rewrites_the_model(kind):
    """For each state prod psi = exp(value) prod_s b_s prod_st (b_st / (b_s b_t))^{rho_st}, whatever the weights."""
    model = discrete(2, [(0, 1), (2, 1), (2, 3), (0, 3), (4, 0), (2, 0)], [2, 3, 4, 2, 3])
    random = np.random.default_rng(0).uniform(0.4, 1, 6)
    rho = {"trees": rw.spanning_tree_probabilities(model.edges, 5), "one": 1.0, "random": random}[kind]
    solution = rw.reweighted(model, rho)
    assert solution.residual <= 1e-12
    assert inconsistency(model, solution) < 1e-11
    nodes, edges = solution.node_beliefs, []
    for (s, t), belief, weight in zip(model.edges, solution.edge_beliefs, rw.edge_weights(model, rho), strict=True):
        edges.append((belief / np.outer(nodes[s], nodes[t])) ** weight)
    rewritten = rw.enumerate_log_weights(rw.Discrete(model.edges, nodes, edges))
    constant = rw.enumerate_log_weights(model) - rewritten
    np.testing.assert_allclose(constant, value_of(model, rho, solution), atol=1e-9)


def test_damping_changes_the_way_and_not_the_end():
    model = rw.ising(np.random.default_rng(3), 2, 3, 1.0, 0.5)
    rho = rw.spanning_tree_probabilities(model.edges, 6)
    ends = [rw.reweighted(model, rho, damping=damping) for damping in (0.0, 0.3, 0.6)]
    for other in ends[1:]:
        for edge, message in ends[0].messages.items():
            np.testing.assert_allclose(other.messages[edge], message, atol=1e-9)
    short = rw.reweighted(model, rho, num_iters=3)
    assert short.residual > 1e-4


def test_without_fields_the_value_has_a_closed_form():
    """Constant messages are the fixed point: each edge gives rho log cosh(J / rho)."""
    model = rw.ising(np.random.default_rng(4), 3, 3, 0.8, 0.0)
    rho = rw.spanning_tree_probabilities(model.edges, 9)
    solution = rw.reweighted(model, rho)
    want = 9 * np.log(2) + np.sum(rho * np.log(np.cosh(0.8 / rho)))
    np.testing.assert_allclose(value_of(model, rho, solution), want, rtol=1e-12)
    for belief in solution.node_beliefs:
        np.testing.assert_allclose(belief, 0.5, atol=1e-12)


# --- the bound --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "coupling, seed, residual",
    [(0.5, 0, 1e-12), (0.5, 1, 1e-12), (0.5, 2, 1e-12), (1.0, 3, 1e-12), (1.0, 4, 1e-12), (2.0, 5, 1e-4)],
)
@pytest.mark.slow
def test_the_value_is_above_log_z(coupling, seed, residual):
    model = rw.ising(np.random.default_rng(seed), 4, 4, coupling, 0.5)
    rho = rw.spanning_tree_probabilities(model.edges, 16)
    solution = rw.reweighted(model, rho)
    assert solution.residual <= residual
    assert inconsistency(model, solution) <= 10 * residual
    assert value_of(model, rho, solution) > rw.enumerate_log_partition(model) + 0.1


def test_the_value_is_the_best_of_the_bounds_by_trees():
    """By convexity log Z <= mean over trees of log Z of the tree that has the potentials psi_st^{1/rho_st}."""
    model = rw.ising(np.random.default_rng(6), 2, 3, 1.0, 0.5)
    rho = rw.spanning_tree_probabilities(model.edges, 6)
    bounds = []
    for tree in spanning_trees(model.edges, 6):
        edges, potentials = [model.edges[e] for e in tree], [model.edge[e] ** (1 / rho[e]) for e in tree]
        bounds.append(rw.enumerate_log_partition(rw.Discrete(edges, model.node, potentials)))
    value = value_of(model, rho, rw.reweighted(model, rho))
    assert rw.enumerate_log_partition(model) < value < np.mean(bounds)


def test_weak_couplings():
    """The value is above Bethe's, near log Z, and by J^2/2 (1/rho - 1) an edge too large; Bethe's errs by less."""
    model = rw.ising(np.random.default_rng(7), 4, 4, 0.05, 0.02)
    rho = rw.spanning_tree_probabilities(model.edges, 16)
    exact = rw.enumerate_log_partition(model)
    value = value_of(model, rho, rw.reweighted(model, rho))
    bethe = value_of(model, 1.0, rw.reweighted(model, 1.0))
    assert value > bethe
    np.testing.assert_allclose(value - exact, np.sum(0.05**2 / 2 * (1 / rho - 1)), rtol=0.05)
    assert abs(bethe - exact) < 0.01 * (value - exact)


@pytest.mark.parametrize("height, width, coupling", [(2, 3, 0.5), (2, 3, 1.5), (3, 3, 1.0)])
def test_the_fixed_point_is_the_optimum(height, width, coupling):
    """SLSQP finds the same value and beliefs, with no messages."""
    model = rw.ising(np.random.default_rng(8), height, width, coupling, 0.5)
    rho = rw.spanning_tree_probabilities(model.edges, height * width)
    solution = rw.reweighted(model, rho)
    value, nodes, edges = rw.maximise_pseudo_marginals(model, rho)
    np.testing.assert_allclose(value_of(model, rho, solution), value, atol=1e-8)
    for got, want in zip(nodes + edges, solution.node_beliefs + solution.edge_beliefs, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_optimiser_finds_exact_marginals_of_a_tree():
    model = discrete(9, [(1, 0), (1, 2), (3, 1)], [2, 2, 2, 2])
    value, nodes, edges = rw.maximise_pseudo_marginals(model, 1.0)
    np.testing.assert_allclose(value, rw.enumerate_log_partition(model), rtol=1e-9)
    exact = rw.enumerate_marginals(model) + rw.enumerate_edge_marginals(model)
    for got, want in zip(nodes + edges, exact, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
