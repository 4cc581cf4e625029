"""What the scale of potentials, the number of calls and the type of an option must not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from experiments.lib.schedules import Agreement, ResidualFirst
from kbpjax.inference import loopy
from kbpjax.inference.schedules import Synchronous, first_messages, problem_of
from kbpjax.inference.update import each_part, parts_of, update
from tests import steps

COMPLETE = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
HUB = kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 12)] + [(1, 2), (3, 4), (5, 6)], 12)
DAMPINGS = {"plain": 0.5, "adaptive": kbp.AdaptiveDamping()}


def problem(graph, arithmetic, dtype=jnp.float64):
    rng = np.random.default_rng(0)
    table = jnp.asarray([[[1.0, 4.0, 2.0], [4.0, 1.0, 1.0], [1.0, 3.0, 2.0]]], dtype)
    operators = kbp.Operators(jnp.eye(3, dtype=dtype)[None], table, arithmetic=arithmetic)
    return operators, graph, jnp.asarray(rng.uniform(0.2, 1, (graph.num_nodes, 3)), dtype)


@pytest.mark.parametrize("arithmetic", [kbp.SumProduct(), kbp.MaxProduct(), kbp.InLogs()], ids=["sum", "max", "logs"])
@pytest.mark.parametrize("graph", [pytest.param(COMPLETE, marks=pytest.mark.slow), HUB], ids=["complete", "hub"])
@pytest.mark.parametrize("damping", DAMPINGS)
def test_scales_of_tables_and_evidence_change_no_message(arithmetic, graph, damping):
    """With damping 0.5 a complete graph converged or not by these scales, when damping compared raw updates."""
    operators, graph, local = problem(graph, arithmetic)
    options = {"num_iters": 12, "damping": DAMPINGS[damping]}

    @jax.jit
    @jax.vmap
    def messages(table_scale, local_scale):
        scaled = kbp.Operators(operators.evaluate, table_scale * operators.project, arithmetic=arithmetic)
        return kbp.run(scaled, graph, local_scale * local, **options).messages

    powers = 10.0 ** np.arange(-6, 7)
    ones = np.ones_like(powers)
    by_node = 10.0 ** np.random.default_rng(1).uniform(-6, 6, (13, graph.num_nodes, 1))
    wanted = kbp.run(operators, graph, local, **options).messages
    shaped = powers[:, None, None]
    for tables, locals_ in (
        (powers, ones[:, None, None]),
        (ones, shaped),
        (powers[::-1].copy(), shaped),
        (ones, by_node),
    ):
        got = messages(jnp.asarray(tables), jnp.asarray(locals_))
        np.testing.assert_allclose(got, np.broadcast_to(wanted, got.shape), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("arithmetic", [kbp.SumProduct(), kbp.InLogs()], ids=["sum", "logs"])
@pytest.mark.parametrize("exponents", [None, 1.0])
def test_the_size_of_an_update_counts_what_was_divided_out_of_small_products(arithmetic, exponents):
    operators, graph, local = problem(HUB, arithmetic)
    old = np.where(np.arange(3) == np.arange(graph.num_edges)[:, None] % 3, [1.0, 0.9, 0.7], [1e-4, 1e-5, 1e-6])
    old /= np.linalg.norm(old, axis=1, keepdims=True)
    state = steps.State(jnp.asarray(old), jnp.array(1.0), jnp.int32(0))
    options = {"damping": 0.5, "schedule": Agreement(), "exponents": exponents}
    new = steps.step(operators, graph, local, state, **options).messages

    table, senders, receivers = np.asarray(operators.project[0]), np.asarray(graph.senders), np.asarray(graph.receivers)
    factors = np.asarray(local) / np.max(local, axis=1, keepdims=True)
    sizes = np.zeros(graph.num_edges)
    for edge, (sender, receiver) in enumerate(zip(senders, receivers)):
        others = (receivers == sender) & (senders != receiver)
        raw = table @ (factors[sender] * old[others].prod(axis=0))
        sizes[edge] = np.linalg.norm(raw) / np.linalg.norm(table.sum(axis=1))
        mixed = 0.5 * old[edge] + 0.5 * sizes[edge] * raw / np.linalg.norm(raw)
        np.testing.assert_allclose(new[edge], mixed / np.linalg.norm(mixed), rtol=1e-9, atol=1e-14)
    assert sizes.min() < 1e-20 and (sizes > 1e-3).sum() >= 6


@pytest.mark.parametrize("exponents", [None, 0.8])
def test_parts_of_the_nodes_send_what_all_of_them_send_at_once(exponents):
    """Of nodes with one to eleven neighbors, some of them clamped; local factors and exponents differ."""
    operators, graph, local = problem(HUB, kbp.SumProduct())
    powers = None if exponents is None else jnp.linspace(exponents, 1.2, graph.num_edges // 2)
    messages = jnp.asarray(np.random.default_rng(3).uniform(0.1, 1, (graph.num_edges, 3)))
    clamped = jnp.arange(graph.num_nodes) % 5 == 1

    @jax.jit
    def sent(plan):
        parts, rows = parts_of(plan.without_incoming(clamped), local, powers), plan.laid_out(messages)
        return plan.of_edges(each_part(lambda part: update(operators, part, rows), parts))

    whole = sent(graph.plan_of(np.zeros(graph.num_nodes, int)))
    for part_of_node in (np.arange(12) % 2, np.arange(12) // 4, np.arange(12)):
        np.testing.assert_allclose(sent(graph.plan_of(part_of_node)), whole, rtol=1e-12)


@pytest.mark.parametrize("addition", [kbp.SumProduct(), kbp.MaxProduct()], ids=["sum", "max"])
@pytest.mark.parametrize("wrap", [lambda addition: addition, kbp.InLogs], ids=["plain", "logs"])
def test_the_first_messages_are_the_update_of_one(addition, wrap):
    """Two nodes without evidence send the update of 1 at every iteration."""
    operators, graph, _ = problem(kbp.chain_graph(2), wrap(addition))
    first = steps.init(operators, graph)
    after = steps.step(operators, graph, None, first, damping=0.0)
    np.testing.assert_allclose(after.messages, first.messages, rtol=1e-12)
    table = np.asarray(operators.project[0])
    expected = table.max(axis=1) if isinstance(addition, kbp.MaxProduct) else table.sum(axis=1)
    np.testing.assert_allclose(first.messages[0], expected / np.linalg.norm(expected), rtol=1e-12)


def test_the_first_messages_are_ones_for_values_or_as_given():
    operators, graph, _ = problem(kbp.chain_graph(2), kbp.SumProduct())
    tables = operators.evaluate, operators.project
    for options, expected in (
        ({"values": True}, np.full(3, 1 / np.sqrt(3))),
        ({"constant": jnp.array([[3.0, 4.0, 0.0]])}, [0.6, 0.8, 0.0]),
    ):
        messages = steps.init(kbp.Operators(*tables, **options), graph).messages
        np.testing.assert_allclose(messages, [expected] * 2, rtol=1e-12)
    values = kbp.Operators(*tables, values=True)
    one, other = (kbp.run(model, graph, num_iters=5, damping=0.0).messages for model in (values, operators))
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("name", ["synchronous", "colored", "agreement", "residual first"])
def test_thirty_steps_are_one_run(name):
    operators, graph, local = problem(HUB, kbp.SumProduct())
    schedules = {"synchronous": kbp.Synchronous(), "colored": kbp.colored(graph), "residual first": ResidualFirst()}
    options = {"damping": 0.5, "schedule": (schedules | {"agreement": Agreement()})[name]}
    state = steps.init(operators, graph)
    for _ in range(30):
        state = steps.step(operators, graph, local, state, **options)
    solution = kbp.run(operators, graph, local, **options)
    np.testing.assert_allclose(state.messages, solution.messages, atol=1e-12)
    np.testing.assert_allclose(state.residual, solution.residual, atol=1e-12)


def test_numbers_of_any_type_and_any_number_of_iterations_to_a_tolerance_compile_once(monkeypatch):
    operators, graph, local = problem(COMPLETE, kbp.SumProduct(), jnp.float32)
    loopy._run._clear_cache()
    traced, whole = [], loopy.problem_of
    monkeypatch.setattr(loopy, "problem_of", lambda *given: traced.append(given) or whole(*given))
    for number in (0.2, np.float64(0.2), np.float32(0.2), jnp.float32(0.2), 0):
        kbp.run(operators, graph, local, damping=number, tol=1e-3)
        kbp.run(operators, graph, local, tol=number + 1e-3)
    for most in (1, 30, 1000, 5000):
        solution = kbp.run(operators, graph, local, num_iters=most, tol=1e-30)
        assert solution.num_iters == most and solution.residuals.shape == (1000,)
    assert len(traced) == 1


def test_of_many_iterations_residuals_are_thinned():
    operators, graph, local = problem(COMPLETE, kbp.SumProduct())
    few, many = (kbp.run(operators, graph, local, num_iters=n, damping=0.9, tol=1e-30) for n in (1000, 2500))
    every = kbp.run(operators, graph, local, num_iters=1000, damping=0.9)
    np.testing.assert_allclose(few.residuals, every.residuals, rtol=1e-9)
    kept = np.asarray(many.residuals)
    assert np.isfinite(kept[:834]).all() and np.isnan(kept[834:]).all()  # every third of 2,500
    np.testing.assert_allclose(kept[:50], np.asarray(few.residuals)[2:150:3], rtol=1e-6)
    np.testing.assert_allclose(kept[833], many.residual)


def test_a_sweep_on_a_grid_is_short_and_moves_no_axes():
    """The 229 equations of an earlier engine had 36 transposes."""
    graph, rng = kbp.grid_graph(5, 5), np.random.default_rng(0)
    operators = kbp.Operators(jnp.asarray(rng.random((1, 31, 17))), jnp.asarray(rng.random((2, 17, 31))), 1e-3)
    shared = problem_of(Synchronous(), graph.plan, operators, jnp.ones((25, 31)), None, None)
    sweep = lambda messages: Synchronous().sweep(shared, (), messages, jnp.asarray(0.2))
    names = list(primitives(jax.make_jaxpr(sweep)(first_messages(operators, graph.plan)).jaxpr))
    assert len(names) <= 150 and "transpose" not in names


def primitives(jaxpr):
    """Yield the operations of a program, and of those that it calls."""
    for equation in jaxpr.eqns:
        inner = [value.jaxpr for value in equation.params.values() if hasattr(value, "jaxpr")]
        yield from ([equation.primitive.name] if not inner else [])
        for called in inner:
            yield from primitives(called)


def test_second_derivatives_through_the_loop_equal_differences():
    """Inside a scan JAX differentiates what a rule for derivatives calls: it must be exact there too."""
    graph, rng = kbp.grid_graph(2, 2), np.random.default_rng(0)
    operators = kbp.Operators(jnp.asarray(rng.random((1, 4, 3))), jnp.asarray(rng.random((2, 3, 4))))
    local, weights = jnp.asarray(rng.uniform(0.5, 1, (4, 4))), jnp.asarray(rng.random((8, 3)))
    slope = jax.grad(lambda local: jnp.sum(weights * kbp.run(operators, graph, local, num_iters=3).messages))
    product = jax.jit(lambda local: jax.jvp(slope, (local,), (local**2,))[1])(local)
    ahead, behind = (jax.jit(slope)(local + step * local**2) for step in (1e-5, -1e-5))
    np.testing.assert_allclose(product, (ahead - behind) / 2e-5, atol=1e-8)
