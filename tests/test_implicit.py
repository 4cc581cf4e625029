"""Derivatives of a fixed point (`tol=`) against unrolled iterations, finite differences and exact trees."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from experiments.lib.schedules import ResidualFirst
from kbpjax.inference import loopy
from kbpjax.inference.implicit import gmres
from tests import discrete
from tests import reweighted as rw

EDGES = rw.grid_edges(3, 3)
OPERATORS, GRAPH, LOCAL = discrete.problem(rw.ising(np.random.default_rng(0), 3, 3, 0.8, 0.5))
RHO = jnp.asarray(rw.spanning_tree_probabilities(EDGES, 9))
CLOSE = {"num_iters": 600, "tol": 1e-12}


def loss(tables, local, exponents, **options):
    """Sum products of all values of messages with fixed numbers, whatever their scale."""
    operators = kbp.Operators(OPERATORS.evaluate, tables)
    messages = kbp.run(operators, GRAPH, local, exponents=exponents, **options).messages
    weights = jnp.asarray(np.random.default_rng(1).normal(size=messages.shape))
    return jnp.sum(weights * messages / jnp.sum(messages, axis=1, keepdims=True))


AT = OPERATORS.project, LOCAL, 0.95 * RHO


def gradient(**options):
    """Return the gradient with respect to tables, local factors and exponents."""
    return jax.jit(jax.grad(partial(loss, **options), argnums=(0, 1, 2)))(*AT)


@pytest.fixture(scope="module")
def unrolled():
    """Return the gradient through 300 iterations."""
    return gradient(num_iters=300, damping=0.2)


def close(got, wanted, rtol=1e-9):
    """Compare pytrees by their largest entry."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, atol=rtol * np.abs(b).max())


@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.2},
        {"damping": 0.0, "schedule": kbp.colored(GRAPH), "acceleration": kbp.Anderson(3)},
        pytest.param({"damping": 0.0, "schedule": ResidualFirst(0.5)}, marks=pytest.mark.slow),
        pytest.param({"damping": kbp.AdaptiveDamping()}, marks=pytest.mark.slow),
    ],
    ids=["synchronous", "colored Anderson", "residual first", "adaptive"],
)
def test_reverse_mode_equals_unrolled(options, unrolled):
    close(gradient(**CLOSE, **options), unrolled)


def test_forward_mode_equals_reverse_mode_and_differences(unrolled):
    rng = np.random.default_rng(2)
    directions = tuple(jnp.asarray(rng.normal(size=x.shape)) * x for x in AT)  # relative: tables and factors stay > 0

    @jax.jit
    def along(distance):
        return loss(*(x + distance * d for x, d in zip(AT, directions, strict=True)), damping=0.2, **CLOSE)

    slope = jax.jit(lambda at: jax.jvp(along, (at,), (1.0,))[1])(0.0)
    np.testing.assert_allclose(slope, sum(np.vdot(g, d) for g, d in zip(unrolled, directions, strict=True)), rtol=1e-8)
    np.testing.assert_allclose(slope, (along(1e-5) - along(-1e-5)) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({"tol": 1e-3}, 1), ({}, 0), ({"tol": 1e-3, "schedule": kbp.colored(GRAPH)}, 1)],
    ids=["tolerance", "no tolerance", "colored"],
)
def test_graphs_are_split_only_for_derivatives_of_a_fixed_point(monkeypatch, options, wanted):
    """Parts save the memory of a synchronous sweep's derivative; they cost a copy of the graph's index tables."""
    calls = []
    monkeypatch.setattr(loopy, "plan_in_parts", lambda graph: calls.append(graph) or graph.plan)

    def total(local, graph=GRAPH):
        return jnp.sum(kbp.run(OPERATORS, graph, local, num_iters=3, **options).messages)

    total(LOCAL)
    assert not calls
    jax.eval_shape(jax.grad(total), LOCAL)
    assert len(calls) == wanted


def test_without_a_tolerance_a_residual_of_a_thousandth_counts_as_converged():
    early, late = (kbp.run(OPERATORS, GRAPH, LOCAL, num_iters=n) for n in (2, 200))
    assert early.residuals[-1] > 1e-3 and not early.converged
    assert late.residuals[-1] < 1e-3 and late.converged


def test_thirty_iterations_unless_asked_otherwise():
    assert kbp.run(OPERATORS, GRAPH, LOCAL).residuals.shape == (30,)


def test_derivatives_are_nan_unless_converged():
    few = {"num_iters": 3, "tol": 1e-12, "damping": 0.2}
    value, slope = jax.jit(jax.value_and_grad(partial(loss, **few)))(*AT)
    assert np.isfinite(value) and np.isnan(slope).all()
    assert np.isnan(jax.jit(lambda at: jax.jvp(lambda x: loss(AT[0], x, AT[2], **few), (at,), (at,))[1])(LOCAL))


@pytest.mark.slow
def test_derivatives_at_a_fixed_point_that_the_plain_iteration_leaves():
    """Neighbors that must differ, all of them neighbors: the plain iteration swings, others find its fixed point."""
    graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
    local = jnp.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
    plain = kbp.run(differ(4.0), graph, local, num_iters=200, damping=0.0)
    assert not plain.converged

    def first(strength, **options):
        solution = kbp.run(differ(strength), graph, local, num_iters=2000, tol=1e-12, **options)
        return solution.messages[0, 0] / jnp.sum(solution.messages[0])

    step = 1e-5
    slope = (first(4.0 + step, damping=0.5) - first(4.0 - step, damping=0.5)) / (2 * step)
    for options in (
        {"damping": 0.5},
        {"damping": 0.0, "acceleration": kbp.Anderson(5)},
        {"damping": 0.0, "schedule": ResidualFirst(0.25)},
        {"damping": kbp.AdaptiveDamping()},
    ):
        got = jax.grad(lambda x, options=options: first(x, **options))(4.0)
        np.testing.assert_allclose(got, slope, rtol=1e-5, err_msg=str(options))


def differ(strength):
    return kbp.Operators(jnp.eye(2)[None], jnp.ones((1, 2, 2)).at[0, [0, 1], [1, 0]].set(strength))


def test_gmres_solves_dense_systems_or_says_that_it_has_not():
    rng = np.random.default_rng(0)
    # Fewer than one cycle, and several; steps that halve the residual, that do not at once, and that increase it.
    for n, shape, scale in ((3, (3,), 0.7), (40, (8, 5), 0.1), (40, (8, 5), 0.7), (3, (3,), 30.0)):
        matrix, rhs = np.eye(n) + scale * rng.normal(size=(n, n)) / n**0.5, rng.normal(size=shape)

        def apply(v, matrix=matrix):
            return (matrix @ v.reshape(-1)).reshape(v.shape)

        got = jax.jit(lambda rhs, apply=apply: gmres(apply, rhs, jnp.array(1e-10), 400))(rhs)
        np.testing.assert_allclose(got.reshape(-1), np.linalg.solve(matrix, rhs.reshape(-1)), rtol=1e-7)
        np.testing.assert_array_equal(gmres(apply, jnp.zeros(shape), jnp.array(1e-10), 400), 0)
    singular = gmres(lambda v: v.at[0].set(0.0), jnp.ones(3), jnp.array(1e-10), 100)
    assert np.isnan(singular).all()


@pytest.mark.slow
def test_gradients_of_a_batch_are_those_of_its_problems():
    many = LOCAL[None] * jnp.asarray(np.random.default_rng(3).uniform(0.5, 1, size=(2, *LOCAL.shape)))
    slope = jax.jit(jax.grad(lambda local: loss(AT[0], local, AT[2], damping=0.2, **CLOSE)))
    close(jax.jit(jax.vmap(slope))(many), np.stack([slope(local) for local in many]))


def test_memory_of_reverse_mode_does_not_grow_with_the_iterations():
    def size(num_iters, tol):
        options = {"num_iters": num_iters, "damping": 0.2, "tol": tol}
        compiled = jax.jit(jax.grad(lambda local: loss(AT[0], local, AT[2], **options))).lower(LOCAL).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    few, many = size(50, 1e-10), size(1050, 1e-10)
    residuals = 1000 * 8
    assert many - few <= 3 * residuals  # the residual of each iteration, and no message


def test_gradient_on_a_tree_is_that_of_exact_inference():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3)], 4)
    operators = kbp.Operators(jnp.eye(2)[None], jnp.array([[[0.8, 0.3], [0.2, 0.7]]]))
    local = jnp.asarray(np.random.default_rng(4).uniform(0.2, 1, size=(4, 2)))
    weights = jnp.asarray(np.random.default_rng(5).normal(size=(6, 2)))
    exact = jax.jit(jax.grad(lambda x: jnp.sum(weights * kbp.run_tree(operators, graph, x).messages)))(local)
    fixed = jax.jit(jax.grad(lambda x: jnp.sum(weights * kbp.run(operators, graph, x, **CLOSE).messages)))(local)
    close(fixed, exact)


@pytest.mark.slow
def test_bandwidths_ridge_and_exponents_of_a_learned_model():
    rng, graph = np.random.default_rng(6), kbp.grid_graph(4, 4)
    x = np.cumsum(rng.normal(size=(150, 16)), axis=1)
    x = (x - x.mean()) / x.std()
    y = x + 0.5 * rng.normal(size=x.shape)
    data, seen, points = kbp.pool(graph, x, y), jnp.asarray(y[0]), jnp.linspace(-2, 2, 9)

    at_start = {"kernel": kbp.RBF(0.8), "obs_kernel": kbp.RBF(0.6)}
    rule = kbp.fix_landmarks(data, rule=kbp.ConstantTime(eps=1e-2, max_rank=8), **at_start)

    def error(parameters):
        bandwidth, obs_bandwidth, ridge, exponent = parameters
        kernels = {"kernel": kbp.RBF(bandwidth), "obs_kernel": kbp.RBF(obs_bandwidth)}
        model = kbp.fit(data, rule=rule, ridge=ridge, nonnegative=kbp.Clipped(), **kernels)
        evidence = kbp.observe(model, graph, seen)
        solution = kbp.run(model, graph, evidence, exponents=exponent, damping=0.0, **CLOSE)
        return jnp.sum((kbp.mean(kbp.beliefs(model, graph, evidence, solution, points)) - x[0]) ** 2)

    at = np.array([0.8, 0.6, 1e-3, 0.55])
    both = jax.jit(jax.value_and_grad(error))
    slope = both(at)[1]
    for i, step in enumerate(1e-5 * at):
        ahead, behind = (both(at + sign * step * np.eye(4)[i])[0] for sign in (1, -1))
        assert abs(slope[i]) > 1e-3
        np.testing.assert_allclose(slope[i], (ahead - behind) / (2 * step), rtol=1e-5)
