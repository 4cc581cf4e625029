"""Schedules against a slow Gauss-Seidel twin in NumPy, and against the fixed point of synchronous updates."""

import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
import kbpjax.graphs.plan
from experiments.lib.schedules import ResidualFirst
from kbpjax.graphs.coloring import color_nodes
from tests import discrete, steps
from tests import reweighted as rw
from tests.engine import without_incoming

# --- twins ------------------------------------------------------------------------------------------------------------


def twin_message(operators, graph, local, messages, e, known, rho):
    """Return the update of one directed edge and its size; `known` nodes ignore what they receive."""
    evaluate, project = np.asarray(operators.evaluate), np.asarray(operators.project)
    senders, receivers, half = np.asarray(graph.senders), np.asarray(graph.receivers), graph.num_edges // 2
    node_type, edge_type = np.asarray(graph.node_type), np.asarray(graph.edge_type)
    t, product = senders[e], np.array(local[senders[e]])
    for f in np.flatnonzero(receivers == t) if not known[t] else ():
        values = np.maximum(evaluate[node_type[t] if len(evaluate) > 1 else 0] @ messages[f], operators.floor)
        back = senders[f] == receivers[e]
        product = product * values ** (rho[f % half] - back)
    row = 2 * edge_type[e] + (e >= half)
    new = project[row if len(project) > 1 else 0] @ product
    return new / np.linalg.norm(new), np.linalg.norm(new)


def twin_sweep(operators, graph, local, messages, colors, damping, known=None, rho=None):
    """Update the messages of one color of senders after another; return them and the largest change."""
    known = np.zeros(graph.num_nodes, bool) if known is None else known
    rho = np.ones(graph.num_edges // 2) if rho is None else rho
    messages, largest = np.array(messages), 0.0
    for color in np.unique(colors):
        for e in np.flatnonzero(colors[np.asarray(graph.senders)] == color):
            new, _ = twin_message(operators, graph, local, messages, e, known, rho)
            largest = max(largest, np.abs(new - messages[e]).max())
            messages[e] = damping * messages[e] + (1 - damping) * new
    return messages, largest


def random_problem(graph, seed=0, rank=3, points=4):
    """Return positive-ish operators for all types of a graph, local factors and unit messages."""
    rng = np.random.default_rng(seed)
    nodes = 1 + max(v for v, *_ in graph.node_types)
    edges = 2 + 2 * max((k for k, *_ in graph.edge_types), default=0)
    evaluate, project = rng.normal(size=(nodes, points, rank)), rng.normal(size=(edges, rank, points))
    messages = rng.normal(size=(graph.num_edges, rank))
    messages = messages / np.linalg.norm(messages, axis=1, keepdims=True)
    operators = kbp.Operators(jnp.asarray(evaluate), jnp.asarray(project), 0.1)
    return operators, rng.uniform(0.5, 1.5, size=(graph.num_nodes, points)), messages


def sweep(graph, schedule, operators, local, messages, damping=0.0, **options):
    """Do one step; return the messages and the residual."""
    state = steps.State(jnp.asarray(messages), jnp.array(np.inf), jnp.int32(0))
    new = steps.step(operators, graph, jnp.asarray(local), state, schedule=schedule, damping=damping, **options)
    return np.asarray(new.messages), float(new.residual)


@jax.jit
def ignored(graph, schedule, mask):
    colors = schedule.colors.without_incoming(mask)
    return without_incoming(graph, mask), eqx.tree_at(lambda s: s.colors, schedule, colors)


@functools.cache
def spins(seed=0, coupling=0.4, height=3, width=3):
    model = rw.ising(np.random.default_rng(seed), height, width, coupling, 0.5)
    return *discrete.problem(model), model


HUBS = [(0, s) for s in range(1, 9)] + [(9, s) for s in range(1, 4)] + [(9, 10), (11, 12)]  # and isolated nodes
GRAPHS = {
    "grid": lambda: kbp.grid_graph(3, 4),
    "types": lambda: kbp.grid_graph(3, 3, node_type=[0, 1, 1, 2, 0, 1, 0, 2, 2]),
    "odd": lambda: kbp.Graph.from_edges([(0, 1), (1, 2), (2, 0), (2, 3), (3, 5)], 7, edge_type=[0, 1, 0, 2, 1]),
    "hubs": lambda: kbp.Graph.from_edges(HUBS, 18, node_type=[1] + 8 * [0] + [1] + 8 * [0]),
}

# --- one color after another -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["hubs", "odd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("grid", "types"))]
)
def test_coloured_iteration_equals_the_twin(name, monkeypatch):
    monkeypatch.setattr(kbpjax.graphs.plan, "SMALL", 0)
    graph = GRAPHS[name]()
    assert (len(graph.plan.blocks) > 1) == (name == "hubs")
    operators, local, messages = random_problem(graph)
    colors = color_nodes(np.asarray(graph.senders), np.asarray(graph.receivers), graph.num_nodes)
    assert colors.max() == (2 if name == "odd" else 1)
    rho = np.random.default_rng(1).uniform(0.5, 1, size=graph.num_edges // 2)
    for damping, exponents in ((0.0, None), (0.3, rho)):
        got, residual = sweep(
            graph, kbp.colored(graph), operators, local, messages, damping=damping, exponents=exponents
        )
        expected, change = twin_sweep(operators, graph, local, messages, colors, damping, rho=exponents)
        np.testing.assert_allclose(got, expected, atol=1e-12)
        np.testing.assert_allclose(residual, change, atol=1e-12)
        other, _ = sweep(graph, kbp.Synchronous(), operators, local, messages, damping=damping, exponents=exponents)
        assert np.abs(other - expected).max() > 0.01


def test_given_colours_say_who_sends_first():
    graph = GRAPHS["odd"]()
    operators, local, messages = random_problem(graph, 1)
    for colors in ([5, 0, 2, 0, 9, 5, 0], [0, 1, 2, 3, 4, 5, 6]):
        got, residual = sweep(graph, kbp.colored(graph, colors=np.array(colors)), operators, local, messages)
        expected, change = twin_sweep(operators, graph, local, messages, np.array(colors), 0.0)
        np.testing.assert_allclose(got, expected, atol=1e-12)
        np.testing.assert_allclose(residual, change, atol=1e-12)


@pytest.mark.parametrize("name", ["types", "hubs"])
def test_marked_nodes_ignore_their_incoming_messages(name, monkeypatch):
    monkeypatch.setattr(kbpjax.graphs.plan, "SMALL", 0)
    graph = GRAPHS[name]()
    operators, local, messages = random_problem(graph, 2)
    known = np.zeros(graph.num_nodes, bool)
    known[[0, 4]] = True
    mask = jnp.asarray(known)
    marked, schedule = ignored(graph, kbp.colored(graph), mask)
    colors = color_nodes(np.asarray(graph.senders), np.asarray(graph.receivers), graph.num_nodes)
    got, _ = sweep(marked, schedule, operators, local, messages)
    expected, _ = twin_sweep(operators, graph, local, messages, colors, 0.0, known)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    without, _ = twin_sweep(operators, graph, local, messages, colors, 0.0)
    assert np.abs(without - expected).max() > 0.01


@pytest.mark.parametrize("schedule", ["colored", pytest.param("residual", marks=pytest.mark.slow)])
def test_clamped_learned_model_has_the_same_fixed_point(schedule):
    model, graph = discrete.learned(), discrete.grid()
    evidence = discrete.evidence(model, graph, discrete.likelihoods(4)) * kbp.clamp(model, graph, [1, 5], [2, 0])
    chosen = {"colored": kbp.colored(graph), "residual": ResidualFirst(0.3)}[schedule]
    options = {"num_iters": 300, "tol": 1e-12}
    plain = kbp.run(model, graph, evidence, **options)
    other = kbp.run(model, graph, evidence, schedule=chosen, **options)
    assert bool(plain.converged) and bool(other.converged)
    np.testing.assert_allclose(other.messages, plain.messages, atol=1e-9)
    free = kbp.run(model, graph, discrete.evidence(model, graph, discrete.likelihoods(4)), **options)
    assert np.abs(free.messages - plain.messages).max() > 1e-3


@pytest.mark.parametrize("rho", [0.6, pytest.param(None, marks=pytest.mark.slow)])
def test_all_schedules_have_the_same_fixed_point_and_coloured_is_faster(rho):
    operators, graph, local, _ = spins()
    options = {"num_iters": 1000, "damping": 0.0, "tol": 1e-12, "exponents": rho}
    plain = kbp.run(operators, graph, local, **options)
    chosen = [kbp.colored(graph), ResidualFirst(0.25)]
    colored, first = [kbp.run(operators, graph, local, schedule=schedule, **options) for schedule in chosen]
    for other in (colored, first):
        assert bool(other.converged)
        np.testing.assert_allclose(other.messages, plain.messages, atol=1e-10)
    assert int(colored.num_iters) < 0.75 * int(plain.num_iters)


def test_a_chain_is_solved_in_as_many_coloured_iterations_as_colours_alternate():
    """An iteration passes every message on by two edges."""
    model = rw.ising(np.random.default_rng(3), 1, 9, 1.0, 0.5)
    operators, graph, local = discrete.problem(model)
    exact = kbp.run_tree(operators, graph, local)
    options = {"num_iters": 4, "damping": 0.0}
    colored = kbp.run(operators, graph, local, schedule=kbp.colored(graph), **options)
    np.testing.assert_allclose(colored.messages, exact.messages, atol=1e-12)
    plain = kbp.run(operators, graph, local, **options)
    assert np.abs(plain.messages - exact.messages).max() > 1e-3


@pytest.mark.parametrize("share", [None, 0.5])
def test_graph_without_edges(share):
    graph = kbp.Graph.from_edges([], 3)
    schedule = kbp.colored(graph) if share is None else ResidualFirst(share)
    operators, _, _, _ = spins()
    solution = kbp.run(operators, graph, schedule=schedule, num_iters=2)
    assert solution.messages.shape == (0, 2) and bool(solution.converged)
    np.testing.assert_array_equal(solution.residuals, [0, 0])


def test_coloured_under_jit_and_vmap():
    operators, graph, local, _ = spins()
    schedule, rng = kbp.colored(graph), np.random.default_rng(5)
    many = jnp.asarray(np.asarray(local) * rng.uniform(0.3, 1, size=(3, *local.shape)))

    @jax.jit
    def run(graph, schedule, local):
        return kbp.run(operators, graph, local, num_iters=5, schedule=schedule).messages

    loop = np.stack([kbp.run(operators, graph, one, num_iters=5, schedule=schedule).messages for one in many])
    np.testing.assert_allclose(run(graph, schedule, many[0]), loop[0], atol=1e-13)
    np.testing.assert_allclose(jax.jit(jax.vmap(run, (None, None, 0)))(graph, schedule, many), loop, atol=1e-13)
    assert np.ptp(loop, axis=0).max() > 1e-3


# --- largest change first ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "share, count", [(0.25, 6), (1, 24), *(pytest.param(*of, marks=pytest.mark.slow) for of in ((0.01, 1), (0.5, 12)))]
)
def test_only_the_messages_that_change_most_move(share, count):
    operators, graph, local, _ = spins()
    messages = np.random.default_rng(6).uniform(0.1, 1, size=(24, 2))
    messages = messages / np.linalg.norm(messages, axis=1, keepdims=True)
    whole, most = sweep(graph, kbp.Synchronous(), operators, local, messages)
    change = np.abs(whole - messages).max(axis=1)
    chosen = np.argsort(change)[-count:]
    damped, _ = sweep(graph, kbp.Synchronous(), operators, local, messages, damping=0.4)
    for damping, target in ((0.0, whole), (0.4, damped)):
        got, residual = sweep(graph, ResidualFirst(share), operators, local, messages, damping=damping)
        expected = messages.copy()
        expected[chosen] = target[chosen]
        np.testing.assert_allclose(got, expected, atol=1e-13)
        np.testing.assert_allclose(residual, most, atol=1e-14)


@pytest.mark.parametrize("share", [0, -0.1, 1.1, np.nan])
def test_share_out_of_range(share):
    with pytest.raises(ValueError, match="^share: must be finite and > 0 and <= 1"):
        ResidualFirst(share)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thirty_steps_are_one_run_of_a_learned_model_with_evidence():
    """With the defaults of both; observed, clamped and free nodes."""
    graph, x = kbp.grid_graph(3, 3), np.cumsum(np.random.default_rng(0).normal(size=(40, 9)), axis=1)
    kernels = {"kernel": kbp.RBF(2.0), "obs_kernel": kbp.RBF(2.0)}
    model = kbp.fit(kbp.pool(graph, x, x), **kernels, rule=kbp.ConstantTime(1e-2, 6), ridge=1e-2)
    evidence = kbp.observe(model, graph, x[0], mask=np.arange(9) != 3) * kbp.clamp(model, graph, [4, 8], x[0, [4, 8]])
    for schedule in (kbp.Synchronous(), kbp.colored(graph), ResidualFirst()):
        state = steps.init(model, graph)
        for _ in range(30):
            state = steps.step(model, graph, evidence, state, schedule=schedule)
        solution = kbp.run(model, graph, evidence, schedule=schedule)
        np.testing.assert_allclose(state.messages, solution.messages, atol=1e-12)
        np.testing.assert_allclose(state.residual, solution.residuals[-1], atol=1e-12)
        assert int(state.count) == int(solution.num_iters) == 30
    unclamped = kbp.run(model, graph, kbp.observe(model, graph, x[0], mask=np.arange(9) != 3))
    assert np.abs(unclamped.messages - solution.messages).max() > 0.01


@pytest.mark.parametrize(
    "kind", ["colored", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("synchronous", "residual"))]
)
def test_a_step_is_a_run_of_one_iteration(kind):
    operators, graph, local, _ = spins(1)
    schedules = {"colored": kbp.colored(graph), "residual": ResidualFirst(), "synchronous": kbp.Synchronous()}
    state = steps.init(operators, graph)
    for rho in (None, 0.7):
        options = {"damping": 0.2, "exponents": rho, "schedule": schedules[kind]}
        one = steps.step(operators, graph, local, state, **options)
        run = kbp.run(operators, graph, local, num_iters=1, **options)
        np.testing.assert_allclose(run.messages, one.messages, atol=1e-14)
        np.testing.assert_allclose(run.residuals, [one.residual], atol=1e-14)


def test_wrong_colours_and_graphs_are_refused():
    operators, graph, local, _ = spins()
    bad = [
        (np.zeros(8, int), "must be 9 integers"),
        (np.arange(9.0), "must be 9 int"),
        (-np.arange(9), "must be 9"),
    ]
    for colors, text in [
        *bad,
        (np.array([0, 0, 1, 1, 0, 0, 1, 1, 0]), r"must differ between neighbors; got .*\(0, 1\)"),
    ]:
        with pytest.raises(ValueError, match=f"^colors: {text}"):
            kbp.colored(graph, colors=colors)
    with pytest.raises(ValueError, match="^graph: must be known; .* Call colored outside jax.jit"):
        jax.jit(lambda graph: kbp.colored(graph).colors.kinds)(graph)
    with pytest.raises(ValueError, match="^schedule: must be of a graph"):
        kbp.run(operators, graph, local, schedule=kbp.colored(kbp.grid_graph(3, 4)))
    with pytest.raises(ValueError, match="^schedule: must have the methods plan, init and sweep"):
        inspect.unwrap(kbp.run)(operators, graph, local, schedule="colored")  # past the type checks of tests


def test_a_schedule_of_another_graph_of_the_same_size_is_refused():
    chain, star = kbp.chain_graph(4), kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3)], 4)
    operators = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
    solution = kbp.run(operators, star, schedule=kbp.colored(star))
    with pytest.raises(ValueError, match="^schedule: must be of this graph"):
        kbp.run(operators, star, schedule=kbp.colored(chain))
    with pytest.raises(ValueError, match="^schedule: must be of this graph"):
        kbp.diagnose(operators, star, None, solution, schedule=kbp.colored(chain))
