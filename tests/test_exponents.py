"""Messages with exponents against the oracle of `tests.reweighted`, enumeration, closed forms and differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.inference.operators import weighted_products
from tests import discrete, steps
from tests import reweighted as rw

RUN = {"num_iters": 3000, "damping": 0.3, "tol": 1e-12}


def value(model, oracle, rho):
    return rw.free_energy_log_partition(model, rho, oracle.node_beliefs, oracle.edge_beliefs)


def solve(model, rho, **options):
    """Return the solution and log Z of a model of the oracle."""
    operators, graph, local = discrete.problem(model, rho)
    solution = kbp.run(operators, graph, local, exponents=rho, **RUN | options)
    assert bool(solution.converged)
    return solution, float(kbp.log_partition(operators, graph, local, solution))


def small_model(seed=0, coupling=0.8):
    """A cycle of five spins with a chord and a tail."""
    rng, spins = np.random.default_rng(seed), np.array([-1.0, 1.0])
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (1, 4), (3, 5)]
    node = [np.exp(h * spins) for h in rng.normal(size=6)]
    return rw.Discrete(edges, node, [np.exp(j * np.outer(spins, spins)) for j in coupling * rng.normal(size=7)])


# --- grids of spins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_tree_reweighted_grid_equals_the_oracle_and_bounds_the_exact_value(coupling):
    model = rw.ising(np.random.default_rng(0), 4, 4, coupling, 0.5)
    _, graph, _ = discrete.problem(model)
    rho = np.asarray(kbp.tree_reweighting(graph))
    np.testing.assert_allclose(rho, rw.spanning_tree_probabilities(model.edges, 16), atol=1e-12)
    oracle = rw.reweighted(model, rho)
    solution, log_z = solve(model, rho)
    np.testing.assert_allclose(discrete.node_beliefs(model, solution, rho), oracle.node_beliefs, atol=1e-8)
    np.testing.assert_allclose(log_z, value(model, oracle, rho), atol=1e-8)
    assert log_z > rw.enumerate_log_partition(model) + 0.01
    np.testing.assert_array_equal(solution.exponents, rho)


def test_without_fields_the_value_has_a_closed_form():
    rng, spins = np.random.default_rng(4), np.array([-1.0, 1.0])
    edges = rw.grid_edges(4, 4)
    strength = rng.normal(size=len(edges))
    model = rw.Discrete(edges, [np.ones(2)] * 16, [np.exp(j * np.outer(spins, spins)) for j in strength])
    rho = rw.spanning_tree_probabilities(edges, 16)
    start = jnp.asarray(rng.uniform(0.2, 1, size=(2 * len(edges), 2)))
    _, log_z = solve(model, rho, start=start)
    np.testing.assert_allclose(log_z, 16 * np.log(2) + np.sum(rho * np.log(np.cosh(strength / rho))), rtol=1e-10)


@pytest.mark.parametrize("low", [0.5, 1.0])
def test_a_fixed_point_reparametrises_the_distribution(low):
    """log prod psi - log prod b_s prod (b_st / b_s b_t)^rho is one number, the value, at every joint state."""
    rng = np.random.default_rng(2)
    model = rw.ising(rng, 4, 4, 0.3, 0.6)
    rho = rng.uniform(low, 1, size=len(model.edges))
    solution, log_z = solve(model, rho)
    nodes, tables = discrete.node_beliefs(model, solution, rho), discrete.edge_beliefs(model, solution, rho)
    ratios = [(b / np.outer(nodes[s], nodes[t])) ** r for (s, t), b, r in zip(model.edges, tables, rho, strict=True)]
    rest = rw.enumerate_log_weights(model) - rw.enumerate_log_weights(rw.Discrete(model.edges, list(nodes), ratios))
    np.testing.assert_allclose(rest.reshape(-1)[::97], log_z, atol=1e-8)
    for (s, t), table in zip(model.edges, tables, strict=True):
        np.testing.assert_allclose(table.sum(axis=1), nodes[s], atol=1e-9)
        np.testing.assert_allclose(table.sum(axis=0), nodes[t], atol=1e-9)


def test_permuted_node_numbers_give_permuted_answers():
    model, rng = small_model(), np.random.default_rng(1)
    rho = rng.uniform(0.5, 0.9, size=7)
    number, order = rng.permutation(6), rng.permutation(7)
    nodes = [model.node[s] for s in np.argsort(number)]
    flip = [False, True, False, True, True, False, True]
    edges = [(int(number[a]), int(number[b])) for a, b in model.edges]
    edges = [edge[::-1] if back else edge for edge, back in zip(edges, flip, strict=True)]
    tables = [psi.T if back else psi for psi, back in zip(model.edge, flip, strict=True)]
    other = rw.Discrete([edges[e] for e in order], nodes, [tables[e] for e in order])
    (one, log_z), (two, same) = solve(model, rho), solve(other, rho[order])
    np.testing.assert_allclose(same, log_z, rtol=1e-10)
    here, there = discrete.node_beliefs(model, one, rho), discrete.node_beliefs(other, two, rho[order])
    np.testing.assert_allclose(there[number], here, atol=1e-9)


@pytest.mark.parametrize("slots", [2, 9, 40])
def test_products_of_contradicting_messages_are_finite(slots):
    """Values from 1 down to the smallest numbers, in single precision, against logarithms in double precision."""
    rng = np.random.default_rng(slots)
    logs = rng.uniform(-87, 0, (slots, 6)) * (rng.random((slots, 6)) < 0.5)
    logs[0, 2] = -200  # impossible
    rho, local = rng.uniform(0.02, 1, slots), rng.uniform(0.1, 9, 6)
    least = np.log(np.finfo(np.float32).tiny)
    given = jnp.asarray(np.maximum(logs, least), jnp.float32)[None, :, None]
    products = weighted_products(given, jnp.asarray(local, jnp.float32)[None, None], jnp.float32(rho)[None, :, None])
    values, removed = (np.asarray(one, float)[0, :, 0] for one in products)
    expected = (rho[:, None] * logs).sum(axis=0) - logs + np.log(local)
    expected[:, 2] = -np.inf
    largest = expected.max(axis=1, keepdims=True)
    assert np.isfinite(values).all() and (values[:, 2] == 0).all() and (values.max(axis=1) < 1e34).all()
    shown = expected > largest - 15  # what counts in a sum
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose((np.log(values) + removed)[shown], expected[shown], atol=2e-3)


@pytest.mark.parametrize("rho", [0.35, pytest.param(1.0, marks=pytest.mark.slow)])
def test_many_neighbours_are_rescaled_on_the_way(rho):
    """A hub with 20 neighbors on a ring, strong fields: products of unscaled messages would still be right."""
    rng, spins = np.random.default_rng(5), np.array([-1.0, 1.0])
    edges = [(0, s) for s in range(1, 21)] + [(s, s + 1) for s in range(1, 20)]
    node = [np.exp(h * spins) for h in rng.normal(size=21)]
    tables = [np.exp(j * np.outer(spins, spins)) for j in 0.5 * rng.normal(size=39)]
    model = rw.Discrete(edges, node, tables)
    rho = rho if rho == 1 else rw.spanning_tree_probabilities(edges, 21)
    oracle = rw.reweighted(model, rho)
    solution, log_z = solve(model, rho)
    np.testing.assert_allclose(discrete.node_beliefs(model, solution, rho), oracle.node_beliefs, atol=1e-8)
    np.testing.assert_allclose(log_z, value(model, oracle, rho), atol=1e-8)


# --- options ----------------------------------------------------------------------------------------------------------


def test_exponents_of_one_are_belief_propagation():
    operators, graph, local = discrete.problem(small_model())
    plain = kbp.run(operators, graph, local, num_iters=7)
    for ones in (1.0, np.ones(7), jnp.ones(7)):
        same = kbp.run(operators, graph, local, num_iters=7, exponents=ones)
        np.testing.assert_allclose(same.messages, plain.messages, atol=1e-14)
        np.testing.assert_allclose(same.residuals, plain.residuals, atol=1e-14)
    half = kbp.run(operators, graph, local, num_iters=7, exponents=0.5)
    assert np.abs(half.messages - plain.messages).max() > 1e-2
    all_half = kbp.run(operators, graph, local, num_iters=7, exponents=np.full(7, 0.5))
    np.testing.assert_array_equal(half.messages, all_half.messages)
    np.testing.assert_array_equal(half.exponents, np.full(7, 0.5))


def test_gradients_in_exponents_are_differences_and_mutual_informations():
    """With psi^(1 / rho) in the operators the derivative at a fixed point is -I(b_st); at tables held fixed, not."""
    model = small_model()
    operators, graph, local = discrete.problem(model)
    rho, tables = np.random.default_rng(7).uniform(0.6, 0.9, size=7), jnp.log(operators.project)

    @jax.jit
    def log_z(rho, moving):
        powers = jnp.repeat(jnp.where(moving, rho, 1), 2)[:, None, None]
        own = kbp.Operators(operators.evaluate, jnp.exp(tables / powers))
        solution = kbp.run(own, graph, local, num_iters=80, damping=0.2, exponents=rho)
        return kbp.log_partition(own, graph, local, solution), solution

    gradient = jax.jit(jax.grad(lambda rho, moving: log_z(rho, moving)[0]))
    for moving in (True, False):
        got = gradient(jnp.asarray(rho), moving)
        steps = 1e-5 * np.eye(7)
        expected = [(log_z(rho + step, moving)[0] - log_z(rho - step, moving)[0]) / 2e-5 for step in steps]
        np.testing.assert_allclose(got, expected, atol=1e-7)
    information = [rw.mutual_information(b) for b in discrete.edge_beliefs(model, log_z(rho, True)[1], rho)]
    np.testing.assert_allclose(gradient(jnp.asarray(rho), True), -np.array(information), atol=1e-9)


def test_vmap_over_exponents_is_a_loop():
    operators, graph, local = discrete.problem(small_model())
    many = jnp.asarray(np.random.default_rng(8).uniform(0.3, 1, size=(3, 7)))

    def of(rho):
        solution = kbp.run(operators, graph, local, num_iters=9, exponents=rho)
        return solution.messages, kbp.log_partition(operators, graph, local, solution)

    messages, log_z = jax.jit(jax.vmap(of))(many)
    for i, rho in enumerate(many):
        one, value = of(rho)
        np.testing.assert_allclose(messages[i], one, atol=1e-12)
        np.testing.assert_allclose(log_z[i], value, atol=1e-12)
    assert np.ptp(np.asarray(log_z)) > 1e-3


@pytest.mark.parametrize("exponents", [0.0, -0.5, np.inf, np.nan, np.full(7, np.nan), np.append(np.full(6, 0.5), -2.0)])
def test_exponents_out_of_range_are_refused(exponents):
    operators, graph, local = discrete.problem(small_model())
    with pytest.raises(ValueError, match=r"^exponents: must be > 0 and finite"):
        kbp.run(operators, graph, local, exponents=exponents)
    state = steps.init(operators, graph)
    with pytest.raises(ValueError, match=r"^exponents: must be > 0 and finite"):
        steps.step(operators, graph, local, state, exponents=exponents)


@pytest.mark.parametrize("shape", [(1,), (6,), (14,), (7, 1)])
def test_exponents_of_another_shape_are_refused(shape):
    operators, graph, local = discrete.problem(small_model())
    with pytest.raises(ValueError, match=r"^exponents: must have shape \(7,\) or \(\)"):
        kbp.run(operators, graph, local, exponents=np.full(shape, 0.5))


# --- learned models ---------------------------------------------------------------------------------------------------

GRID = discrete.grid()
TREE = (0, 1, 2, 4, 6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["constant", "full"])
def test_learned_grid_equals_the_oracle(rule):
    model, local = discrete.learned(rule), discrete.likelihoods(0)
    rho = np.asarray(kbp.tree_reweighting(GRID))
    evidence = discrete.evidence(model, GRID, local)
    solution = kbp.run(model, GRID, evidence, exponents=rho, num_iters=500, damping=0.2, tol=1e-11)
    twin = discrete.learned_twin(rho, local)
    oracle = rw.reweighted(twin, rho)
    got = kbp.beliefs(model, GRID, evidence, solution, np.arange(3))
    np.testing.assert_allclose(got.weights, oracle.node_beliefs, atol=1e-7)
    np.testing.assert_allclose(kbp.log_partition(model, GRID, evidence, solution), value(twin, oracle, rho), atol=1e-7)
    for e in (0, 3, 6):
        a, b = discrete.EDGES[e]
        table = kbp.edge_beliefs(kbp.Posterior.of(model, GRID, evidence, solution, np.arange(3)), [(a, b)]).weights[0]
        np.testing.assert_allclose(table, oracle.edge_beliefs[e], atol=1e-7)
        np.testing.assert_allclose(table.sum(axis=1), got.weights[a], atol=1e-7)
        np.testing.assert_allclose(table.sum(axis=0), got.weights[b], atol=1e-7)


def test_without_evidence_messages_are_constant_and_the_value_is_zero():
    model = discrete.learned("constant")
    solution = kbp.run(model, GRID, exponents=kbp.tree_reweighting(GRID), num_iters=3)
    np.testing.assert_allclose(kbp.log_partition(model, GRID, None, solution), 0, atol=1e-6)
    got = kbp.beliefs(model, GRID, None, solution, np.arange(3)).weights
    frequencies = [np.bincount(column, minlength=3) / 80 for column in discrete.samples().T]
    np.testing.assert_allclose(got, frequencies, atol=1e-7)


@pytest.mark.parametrize("positive", [None, pytest.param(kbp.Clipped(), marks=pytest.mark.slow)])
def test_trees_have_exponents_of_one_and_the_exact_value(positive):
    """The value is log E*[product of the factors], by enumeration."""
    model, graph, local = discrete.learned("constant", positive), discrete.grid(TREE), discrete.likelihoods(1)
    rho = kbp.tree_reweighting(graph)
    np.testing.assert_array_equal(rho, np.ones(5))
    evidence = discrete.evidence(model, graph, local)
    exact, loop = (
        kbp.run_tree(model, graph, evidence),
        kbp.run(model, graph, evidence, damping=0.0, exponents=rho),
    )
    np.testing.assert_allclose(loop.messages, exact.messages, atol=1e-10)
    expected = rw.enumerate_log_partition(discrete.learned_twin(1.0, local, TREE))
    for solution in (exact, loop):
        np.testing.assert_allclose(kbp.log_partition(model, graph, evidence, solution), expected, atol=1e-7)
    assert expected < -1


def test_clamps_have_no_value():
    model = discrete.learned("constant")
    evidence = kbp.clamp(model, GRID, [2], [1])
    solution = kbp.run(model, GRID, evidence, num_iters=1)
    with pytest.raises(ValueError, match="^evidence: must have no clamps"):
        kbp.log_partition(model, GRID, evidence, solution)
    with pytest.raises(ValueError, match="^solution: messages must have shape"):
        kbp.log_partition(model, discrete.grid(TREE), None, solution)
