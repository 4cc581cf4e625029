"""Diagnoses against dense Jacobians, and what `check` says of runs that did not converge."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.inference.loopy import prepare_inputs
from tests import discrete, steps
from tests import reweighted as rw

SPINS = np.array([-1.0, 1.0])


def ring(coupling, field, num_nodes=5, chord=True):
    """Return the problem of spins on a ring with a chord."""
    edges = [(s, (s + 1) % num_nodes) for s in range(num_nodes)] + [(0, 2)] * chord
    rng = np.random.default_rng(1)
    node = [np.exp((field + 0.1 * rng.normal()) * SPINS) for _ in range(num_nodes)]
    return discrete.problem(rw.Discrete(edges, node, [np.exp(coupling * np.outer(SPINS, SPINS))] * len(edges)))


def grid(coupling, field):
    edges = rw.grid_edges(3, 3)
    tables = [np.exp(coupling * np.outer(SPINS, SPINS))] * len(edges)
    return discrete.problem(rw.Discrete(edges, [np.exp(field * SPINS)] * 9, tables))


CALM, SWINGING = ring(0.4, 0.3), grid(-1.0, 0.3)


def solution_of(residuals, converged=False):
    """Return a solution with these residuals, or with rows of them one of many problems."""
    residuals = np.asarray(residuals)
    if residuals.ndim == 2:
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(solution_of, residuals, converged))
    count = jnp.int32(np.sum(~np.isnan(residuals)))
    return kbp.Solution(
        jnp.ones((2, 2)), jnp.array(converged), count, jnp.asarray(residuals[count - 1]), jnp.asarray(residuals)
    )


# --- diagnose ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damping, rho, name", [(0.0, None, "all"), (0.3, 0.6, "all"), (0.0, None, "colored")])
def test_spectral_radius_is_that_of_the_dense_jacobian(damping, rho, name):
    operators, graph, local = CALM
    schedule = kbp.colored(graph) if name == "colored" else kbp.Synchronous()
    options = {"damping": damping, "schedule": schedule}
    solution = kbp.run(*CALM, num_iters=150, exponents=rho, **options)

    def iterate(messages):
        state = steps.State(messages, jnp.array(np.inf), jnp.int32(0))
        return steps.step(operators, graph, local, state, exponents=rho, **options).messages

    jacobian = np.asarray(jax.jit(jax.jacobian(iterate))(solution.messages)).reshape(24, 24)
    radius = np.abs(np.linalg.eigvals(jacobian)).max()
    found = kbp.diagnose(operators, graph, local, solution, num_iters=400, **options)
    np.testing.assert_allclose(found.spectral_radius, radius, rtol=0.02)
    assert 0.05 < radius < 1 and float(found.residual) < 1e-6


def test_messages_that_swing_between_two_states_oscillate():
    swinging = kbp.run(*SWINGING, num_iters=200, damping=0.0)
    found = kbp.diagnose(*SWINGING, swinging, damping=0.0)
    assert bool(found.oscillates) and float(found.moved_once) > 0.1 and float(found.moved_twice) < 1e-6
    np.testing.assert_allclose(found.residual, swinging.residuals[-1], rtol=1e-6)
    calm = kbp.run(*CALM, num_iters=100, damping=0.0)
    found = kbp.diagnose(*CALM, calm, damping=0.0)
    assert not bool(found.oscillates) and float(found.moved_once) < 1e-9
    start = kbp.run(*CALM, num_iters=1, damping=0.0)
    moving = kbp.diagnose(*CALM, start, damping=0.0)
    assert not bool(moving.oscillates) and float(moving.moved_once) > 1e-3  # on its way to one place


def test_an_unstable_fixed_point_has_a_radius_above_one():
    """Without fields constant messages stay; disturbances follow the edges, those straight back left out."""
    operators, graph, local = grid(1.0, 0.0)
    solution = kbp.run(operators, graph, local, num_iters=1, damping=0.0)
    found = kbp.diagnose(operators, graph, local, solution, damping=0.0, num_iters=400)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    onward = (receivers[None] == senders[:, None]) & (senders[None] != receivers[:, None])
    radius = np.tanh(1) * np.abs(np.linalg.eigvals(onward.astype(float))).max()
    assert radius > 1.1 and float(found.residual) < 1e-12 and not bool(found.oscillates)
    np.testing.assert_allclose(found.spectral_radius, radius, rtol=0.01)


def test_wrong_arguments_of_diagnose():
    solution = kbp.run(*CALM, num_iters=1)
    with pytest.raises(ValueError, match="^num_iters: must be at least 2"):
        kbp.diagnose(*CALM, solution, num_iters=1)
    with pytest.raises(ValueError, match=r"^solution: messages must have shape \(24, 2\)"):
        kbp.diagnose(*SWINGING, solution)


def test_the_key_of_diagnose_in_any_form_chooses_the_disturbance():
    solution = kbp.run(*CALM, num_iters=3)
    diagnose = jax.jit(lambda key: kbp.diagnose(*CALM, solution, num_iters=2, key=key).spectral_radius)
    default, zero, other = (float(diagnose(key)) for key in (None, jax.random.key(0), jax.random.key(1)))
    assert default == zero != other and other == float(diagnose(jax.random.PRNGKey(1)))


@pytest.mark.parametrize("damping", [1.0, -0.1, np.nan])
def test_damping_of_diagnose_out_of_range(damping):
    with pytest.raises(ValueError, match="^damping: must be"):
        kbp.diagnose(*CALM, kbp.run(*CALM, num_iters=1), damping=damping)


# --- check ------------------------------------------------------------------------------------------------------------


def test_check_returns_what_has_converged():
    solution = kbp.run(*CALM, num_iters=100)
    assert kbp.check(solution) is solution
    many = solution_of(np.full((3, 2), 1e-4), converged=[True, True, True])
    assert kbp.check(many) is many


def raises(text, solution, *args):
    with pytest.raises(kbp.NotConverged, match=text) as caught:
        kbp.check(solution, *args)
    return str(caught.value)


def test_check_counts_the_iterations_that_are_missing_and_a_warm_start_does_them():
    raises(
        r"^residual 0\.013 after 4 iterations, and falling by 50% per iteration\. Resume with start=solution: at least",
        solution_of([0.1, 0.05, 0.025, 0.0125, np.nan, np.nan]),
    )
    slow = ring(1.5, 0.0, chord=False)
    short = kbp.run(*slow, num_iters=5, damping=0.5)
    more = int(re.search(r"at least (\d+) more", raises("start=solution", short)).group(1))
    assert 1 < more < 60
    assert bool(kbp.check(kbp.run(*slow, num_iters=4 * more, damping=0.5, start=short)).converged)


def test_check_names_the_first_iteration_without_numbers():
    text = raises("^messages are not finite since iteration 3", solution_of([0.5, 0.4, np.inf, np.inf]))
    assert "floor" in text and "ridge" in text
    operators, graph, local = CALM
    broken = jax.jit(kbp.Operators)(operators.evaluate, operators.project.at[3, 0, 1].set(np.nan))
    solution = kbp.run(broken, graph, local, num_iters=4, start=jnp.ones((12, 2)))
    raises("^messages are not finite since iteration 1", solution)
    raises("^messages are not finite since iteration 1", kbp.run(broken, graph, local, num_iters=9, tol=1e-3))


def test_check_says_when_residuals_do_not_fall():
    text = raises("^residual 0.5 after 20 iterations, and not falling", solution_of(np.full(20, 0.5)))
    assert "tree_reweighting" in text and "start=solution" not in text
    raises("not falling", solution_of([0.5]))
    raises("not falling", solution_of(np.linspace(0.1, 0.5, 15)))
    swinging = kbp.run(*SWINGING, num_iters=200, damping=0.0)
    diagnosis = kbp.diagnose(*SWINGING, swinging, damping=0.0)
    text = raises(r"spectral radius [\d.]+: messages oscillate with period two", swinging, diagnosis)
    assert "colored" in text and "tree_reweighting" in text


def test_check_of_many_problems_names_the_worst():
    residuals = np.array([[0.1, 1e-4], [0.5, 0.4], [0.5, 0.45], [0.2, 1e-5]])
    raises("^2 of 4 problems; number 2: residual 0.45 after 2", solution_of(residuals, [True, False, False, True]))
    residuals[1, 1] = np.inf
    raises(
        "^2 of 4 problems; number 1: messages are not finite since iteration 2",
        solution_of(residuals, [True, False, False, True]),
    )
    operators, graph, local = SWINGING
    run = lambda local: kbp.run(operators, graph, local, num_iters=100, damping=0.0)
    calm = np.exp(np.linspace(2, 3, 9))[:, None] ** SPINS
    many = jax.vmap(run)(jnp.stack([jnp.asarray(calm), local]))
    raises("^1 of 2 problems; number 1: residual", many)


def test_check_wants_known_solutions():
    with pytest.raises(ValueError, match="^solution: must be known; got a tracer"):
        jax.jit(lambda local: kbp.check(kbp.run(*CALM[:2], local)).messages)(CALM[2])


def test_arguments_in_the_wrong_order_are_named():
    operators, graph, local = CALM
    with pytest.raises(ValueError, match=r"^graph: must be a kbpjax.Graph; got Operators\. The model comes first"):
        inspect.unwrap(prepare_inputs)(graph, operators, local)  # past the type checks of tests
