"""Every stage under jit, vmap, map, pmap and sharding; precision; pytrees; and what importing the package does."""

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from experiments.lib.schedules import ResidualFirst
from tests import steps

GRAPH = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (1, 3)], 4)
KERNELS = {"kernel": kbp.RBF(1.2), "obs_kernel": kbp.RBF(1.0)}
POINTS = np.linspace(-2, 2, 7)
RANK = 5  # of every basis, eager or not: all stages then have the same shapes in jit and out of it


def draw(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(25, 1)) + 0.6 * rng.normal(size=(25, 4))
    return x.astype(dtype), (x + 0.5 * rng.normal(size=x.shape)).astype(dtype)


def fit(data, rule=kbp.ConstantTime(1e-6, RANK)):
    return kbp.fit(data, rule=rule, ridge=1e-3, **KERNELS)


def fixed(data):
    """Return the rule with landmarks of the data, for use inside of transformations."""
    return kbp.fix_landmarks(data, rule=kbp.ConstantTime(1e-6, RANK), **KERNELS)


def same(one, other):
    """Compare models but for the residuals, which fixed landmarks leave unknown, and candidates, of known data only."""
    one, other = (eqx.tree_at(lambda m: m.candidates, m, None, is_leaf=lambda x: x is None) for m in (one, other))
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if not np.isnan(left).any():
            close(left, right, rtol=1e-7)


def infer(model, y):
    """Return the belief and what led to it."""
    evidence = kbp.observe(model, GRAPH, y)
    solution = kbp.run(model, GRAPH, evidence, num_iters=4)
    belief = kbp.beliefs(model, GRAPH, evidence, solution, jnp.asarray(POINTS, y.dtype))
    return evidence, solution, belief


def weights(model, y):
    return infer(model, y)[2].weights


def close(one, other, rtol=1e-9):
    chex.assert_trees_all_close(one, other, rtol=rtol, atol=1e-11)


@pytest.fixture(scope="module")
def data():
    return kbp.pool(GRAPH, *draw(0))


@pytest.fixture(scope="module")
def model(data):
    return fit(data)


@pytest.fixture(scope="module")
def seen():
    return np.random.default_rng(1).normal(size=(8, 4))


@pytest.fixture(scope="module")
def expected(model, seen):
    return np.stack([weights(model, jnp.asarray(y)) for y in seen])


# --- jit and vmap ----------------------------------------------------------------------------------


def test_fit_in_jit_equals_eager(data, model):
    jitted = jax.jit(fit)(data, fixed(data))
    assert jitted.ranks == model.ranks == {0: (RANK, RANK)}
    same(jitted, model)


def test_fit_may_be_traced_with_constant_data(data, model):
    close(jax.jit(lambda: fit(data))(), model, rtol=1e-7)  # even landmarks are selected: all values are known


def test_pool_in_jit_equals_eager(data):
    close(jax.jit(partial(kbp.pool, GRAPH))(*draw(0)), data)


def test_inference_in_jit_equals_eager(model, seen):
    y = jnp.asarray(seen[0])
    eager = infer(model, y)
    close(jax.jit(infer)(model, y), eager)
    close(jax.jit(partial(infer, model))(y), eager)


def test_summaries_in_jit_equal_eager(model, seen):
    belief = infer(model, jnp.asarray(seen[0]))[2]

    def summaries(belief, level):
        return (
            kbp.mean(belief),
            kbp.variance(belief),
            kbp.mode(belief),
            kbp.quantile(belief, level),
            kbp.interval(belief),
        )

    close(jax.jit(summaries)(belief, 0.3), summaries(belief, 0.3))


def test_vmap_over_observations_equals_a_loop(model, seen, expected):
    np.testing.assert_allclose(jax.vmap(partial(weights, model))(jnp.asarray(seen)), expected, rtol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.vmap(weights, (None, 0)))(model, seen), expected, rtol=1e-9)


@pytest.mark.slow
def test_map_over_observations_equals_a_loop(model, seen, expected):
    np.testing.assert_allclose(jax.lax.map(partial(weights, model), jnp.asarray(seen)), expected, rtol=1e-9)


@pytest.mark.slow
def test_vmap_over_masks_and_damping_equals_a_loop(model, seen):
    masks, damping = np.eye(4, dtype=bool)[:3], jnp.array([0.0, 0.2, 0.5])

    def messages(mask, damping):
        return kbp.run(model, GRAPH, kbp.observe(model, GRAPH, seen[0], mask=mask), damping=damping).messages

    expected = jnp.stack([messages(*each) for each in zip(masks, damping, strict=True)])
    np.testing.assert_allclose(
        jax.jit(jax.vmap(messages))(jnp.asarray(masks), damping), expected, rtol=1e-9, atol=1e-12
    )


def test_vmap_over_a_tolerance_run_stops_each_at_its_own_iteration(model, seen):
    evidence = jax.jit(jax.vmap(partial(kbp.observe, model, GRAPH)))(jnp.asarray(seen))
    run = partial(kbp.run, model, GRAPH, num_iters=60, tol=1e-6)
    together = jax.jit(jax.vmap(run))(evidence)
    for i in range(len(seen)):
        close(jax.tree.map(lambda a, i=i: a[i], together), run(jax.tree.map(lambda a, i=i: a[i], evidence)), rtol=1e-6)
    assert len(set(together.num_iters.tolist())) > 1


@pytest.mark.slow
def test_models_of_several_data_sets_are_learned_in_one_vmap():
    one, other = (kbp.pool(GRAPH, *draw(seed)) for seed in (0, 1))
    stack = partial(jax.tree.map, lambda a, b: jnp.stack([a, b]))
    both = jax.jit(jax.vmap(fit))(stack(one, other), stack(fixed(one), fixed(other)))
    same(jax.tree.map(lambda a: a[1], both), fit(other))


# --- one trace -------------------------------------------------------------------------------------


def test_repeated_calls_with_new_values_compile_nothing(seen):
    def everything(seed, damping, tol, bandwidth):
        graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (1, 3)], 4)
        learned = kbp.fit(
            kbp.pool(graph, *draw(seed)),
            kernel=kbp.RBF(bandwidth),
            obs_kernel=kbp.RBF(2 * bandwidth),
            rule=kbp.ConstantTime(1e-6, RANK),
            ridge=1e-3 * bandwidth,
        )
        evidence = kbp.observe(learned, graph, seen[seed])
        solution = kbp.run(learned, graph, evidence, damping=damping, tol=tol)
        return kbp.beliefs(learned, graph, evidence, solution, POINTS + seed)

    everything(0, 0.1, 1e-3, 1.0)
    with compiled() as programs:
        for i in range(1, 4):
            everything(i, 0.1 * i, 1e-3 / i, 1.0 + 0.1 * i)
    assert programs == []


def test_numbers_of_any_type_compile_once(model, seen):
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (1, 3)], 4)
    evidence = kbp.observe(model, graph, seen[0])
    expected = kbp.run(model, graph, evidence, damping=0.2, tol=1e-3).messages
    with compiled() as programs:
        for damping in (0.2, np.float64(0.2), np.float32(0.2), jnp.float32(0.2), jnp.asarray(0.2), 0):
            for tol in (1e-3, np.float32(1e-3), 1):
                kbp.run(model, graph, evidence, damping=damping, tol=tol)
    assert [program for program in programs if "run" in program] == []
    got = kbp.run(model, graph, evidence, damping=np.float32(0.2), tol=1e-3).messages
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@contextmanager
def compiled():
    """Collect the names of the programs that are compiled."""
    programs = []

    def listen(event, *_, fun_name="", **__):
        if event.endswith("backend_compile_duration"):
            programs.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda x: x + 1)(0.0)
        assert len(programs) == 1  # it does hear of them
        programs.clear()
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_users_jit_traces_once(model, seen):
    @jax.jit
    @chex.assert_max_traces(n=1)
    def answer(model, graph, y):
        evidence = kbp.observe(model, graph, y)
        solution = kbp.run(model, graph, evidence, num_iters=2)
        return kbp.beliefs(model, graph, evidence, solution, POINTS).weights

    for i, y in enumerate(seen[:3]):
        answer(jax.tree.map(lambda a, i=i: a + 0 * i, model), GRAPH, y)
    with pytest.raises(AssertionError, match="is traced > 1 times"):
        answer(model, GRAPH, seen[0].astype(np.float32))


# --- precision -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_jit", [False, True])
def test_single_precision_in_single_precision_out(expected, seen, in_jit):
    # With 64 bit available and strict promotion; scalar options are Python floats, NumPy scalars or arrays of 64 bit.
    x, y = draw(0, np.float32)

    def everything(data, y, rule):
        kernels = {"kernel": kbp.RBF(np.float64(1.2)), "obs_kernel": kbp.RBF(jnp.array(1.0))}
        model = kbp.fit(data, rule=rule, ridge=np.float64(1e-3), **kernels)
        evidence = kbp.observe(model, GRAPH, y)
        solution = kbp.run(model, GRAPH, evidence, num_iters=4, damping=np.float64(0.2))
        belief = kbp.beliefs(model, GRAPH, evidence, solution, POINTS.astype(np.float32))
        summaries = kbp.mean(belief), kbp.variance(belief), kbp.mode(belief), *kbp.interval(belief, np.float64(0.9))
        return data, evidence, solution, belief, summaries, model

    data = kbp.pool(GRAPH, x, y)
    rule = fixed(data) if in_jit else kbp.ConstantTime(1e-6, RANK)
    *results, model = (jax.jit(everything) if in_jit else everything)(data, seen[0].astype(np.float32), rule)
    learned = (model.operators.evaluate, model.operators.project, model.observations[0].expectation, model.marginals)
    for leaf in jax.tree.leaves((results, learned, model.residuals)):
        assert leaf.dtype in (jnp.float32, jnp.int32, bool)
    np.testing.assert_allclose(results[3].weights, expected[0], atol=1e-3)


def test_scalar_options_of_64_bit_do_not_disturb_single_precision(seen):
    x, y = draw(0, np.float32)
    data = kbp.pool(GRAPH, x, y)
    kernels = {"kernel": kbp.RBF(1.2), "obs_kernel": kbp.RBF(1.0), "rule": kbp.ConstantTime(1e-6, RANK)}
    for number in (np.float64(1e-3), jnp.array(1e-3)):
        model = kbp.fit(data, floor=number, **kernels)
        solution = kbp.run(model, GRAPH, kbp.observe(model, GRAPH, seen[0].astype(np.float32)), tol=number)
        assert solution.messages.dtype == solution.residuals.dtype == jnp.float32


def test_whole_numbers_are_data_too():
    x = np.random.default_rng(0).integers(3, size=(30, 4))
    data = kbp.pool(GRAPH, x, x)
    model = kbp.fit(data, kernel=kbp.Delta(), obs_kernel=kbp.RBF(1))
    evidence = kbp.observe(model, GRAPH, [0, 1, 2, 1])
    solution = kbp.run(model, GRAPH, evidence, num_iters=3, damping=0)
    belief = kbp.beliefs(model, GRAPH, evidence, solution, [0, 1, 2])
    assert kbp.mode(belief).dtype == x.dtype and kbp.mean(belief).dtype == jnp.float64


# --- several devices -------------------------------------------------------------------------------


@pytest.mark.slow
def test_pmap_equals_one_device(model, seen, expected):
    assert jax.device_count() == 4
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*pmap.*", category=DeprecationWarning
        )  # jax: pmap is on its way out
        pmapped = jax.pmap(partial(weights, model))
        got = np.concatenate([pmapped(seen[:4]), pmapped(seen[4:])])
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_a_sharded_batch_stays_sharded_and_right(model, seen, expected):
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    over_batch = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    got = jax.jit(jax.vmap(partial(weights, model)))(jax.device_put(seen, over_batch))
    assert got.sharding.is_equivalent_to(over_batch, got.ndim)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


# --- pytrees ---------------------------------------------------------------------------------------


def test_all_that_users_hold_is_a_plain_pytree(data, model, seen):
    evidence, solution, belief = infer(model, jnp.asarray(seen[0]))
    for tree in (data, model, GRAPH, evidence, solution, belief, steps.init(model.operators, GRAPH)):
        leaves, structure = jax.tree.flatten(tree)
        assert leaves and all(isinstance(leaf, jax.Array) for leaf in leaves)
        assert hash(structure) == hash(jax.tree.structure(tree))
        for other in (jax.tree.map(lambda a: a, tree), jax.jit(lambda a: a)(tree)):
            assert type(other) is type(tree) and jax.tree.structure(other) == structure
            for a, b in zip(leaves, jax.tree.leaves(other), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


# --- every transformation of jax, from kernels to means --------------------------------------------------

CHAIN = kbp.chain_graph(3)
SAMPLES = draw(2)
CHAIN_DATA = kbp.pool(CHAIN, *(samples[:, :3] for samples in SAMPLES))
SOLVERS = {
    "run": lambda *given: kbp.run(*given, num_iters=4),
    "tol": lambda *given: kbp.run(*given, num_iters=60, tol=1e-12),
    "tree": kbp.run_tree,
}
CASES = np.random.default_rng(3).normal(size=(4, 3))


@pytest.fixture(scope="module")
def landmarks():
    return kbp.fix_landmarks(CHAIN_DATA, rule=kbp.ConstantTime(1e-6, 3), **KERNELS)


@pytest.fixture(
    scope="module", params=["tol", *(pytest.param(name, marks=pytest.mark.slow) for name in ("run", "tree"))]
)
def answer(request, landmarks):
    """Return a function from a bandwidth and observations [1 + node] to posterior means [node]."""

    def means(theta):
        model = kbp.fit(CHAIN_DATA, kernel=kbp.RBF(theta[0]), obs_kernel=kbp.RBF(1.0), rule=landmarks, ridge=1e-2)
        evidence = kbp.observe(model, CHAIN, theta[1:])
        solution = SOLVERS[request.param](model, CHAIN, evidence)
        return kbp.mean(kbp.beliefs(model, CHAIN, evidence, solution, jnp.asarray(POINTS)))

    return means


@pytest.fixture(scope="module")
def thetas():
    return jnp.asarray(np.column_stack([np.linspace(1.1, 1.4, 4), CASES]))


@pytest.fixture(scope="module")
def plain(answer, thetas):
    return np.stack([*map(jax.jit(answer), thetas)])


def central_differences(fn, theta, step=1e-5):
    columns = [(fn(theta + d) - fn(theta - d)) / (2 * step) for d in step * np.eye(len(theta))]
    return np.stack(columns, axis=-1)


@pytest.mark.slow
def test_all_first_derivatives_are_central_differences(answer, thetas):
    @jax.jit
    def derivatives(theta):
        def by_linearize(theta):
            _, push = jax.linearize(answer, theta)
            return jax.vmap(push, out_axes=-1)(jnp.eye(4))

        def by_vjp(theta):
            _, pull = jax.vjp(answer, theta)
            return jax.vmap(lambda ct: pull(ct)[0])(jnp.eye(3))

        kinds = jax.jacfwd(answer), jax.jacrev(answer), jax.jacrev(jax.checkpoint(answer)), by_linearize, by_vjp
        return [kind(theta) for kind in kinds]

    expected = central_differences(jax.jit(answer), thetas[0])
    assert abs(expected).max() > 0.1
    with jax.debug_nans(True):
        found = derivatives(thetas[0])
    for got in found:
        np.testing.assert_allclose(got, expected, atol=1e-7)


@pytest.mark.slow
def test_hessians_are_central_differences_of_gradients(answer, thetas):
    loss = lambda theta: jnp.sum(answer(theta) ** 2)
    hessian = jax.jit(jax.hessian(loss))(thetas[0])
    np.testing.assert_allclose(hessian, central_differences(jax.jit(jax.grad(loss)), thetas[0]), atol=1e-6)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-9)


@pytest.mark.slow
def test_gradients_in_maps_and_loops_equal_those_one_by_one(answer, thetas):
    slope = jax.grad(lambda theta: jnp.sum(answer(theta)))

    def descend(theta, _):
        return theta - 0.1 * slope(theta), theta

    one = jax.jit(slope)
    expected = np.stack([*map(one, thetas)])
    visited = [thetas[0], thetas[0] - 0.1 * expected[0]]
    visited.append(visited[1] - 0.1 * one(visited[1]))
    mapped, in_turn, steps = jax.jit(
        lambda thetas: (
            jax.vmap(slope)(thetas),
            jax.lax.map(slope, thetas, batch_size=3),
            jax.lax.scan(descend, thetas[0], length=3)[1],
        )
    )(thetas)
    for got, expected_ in ((mapped, expected), (in_turn, expected), (steps, np.stack(visited))):
        np.testing.assert_allclose(got, expected_, rtol=1e-7, atol=1e-9)


def mesh_of(kind):
    return jax.make_mesh((4,), ("case",), axis_types=(kind,))


OVER_CASES = jax.sharding.PartitionSpec("case")


def over_devices(fn, thetas, kind):
    """Return a function of some cases, on four devices, each with its share, with jax's check of what varies."""
    mesh = mesh_of(kind)
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=OVER_CASES, out_specs=OVER_CASES, check_vma=True)
    with jax.set_mesh(mesh):
        return jax.device_get(jax.jit(mapped)(jax.device_put(thetas, jax.NamedSharding(mesh, OVER_CASES))))


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
@pytest.mark.slow
def test_shard_map_equals_one_device(answer, thetas, plain, kind):
    np.testing.assert_allclose(over_devices(jax.vmap(answer), thetas, kind), plain, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_derivatives_in_shard_map_equal_one_device(answer, thetas):
    of_each = jax.vmap(jax.jacrev(answer))
    got = over_devices(of_each, thetas, jax.sharding.AxisType.Auto)
    np.testing.assert_allclose(got, jax.jit(of_each)(thetas), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.slow
def test_cases_on_explicit_axes_stay_there(landmarks, thetas, solver):
    model = kbp.fit(CHAIN_DATA, rule=landmarks, ridge=1e-2, **KERNELS)

    def means(y):
        evidence = kbp.observe(model, CHAIN, y)
        solution = SOLVERS[solver](model, CHAIN, evidence)
        return kbp.mean(kbp.beliefs(model, CHAIN, evidence, solution, jnp.asarray(POINTS)))

    cases, mesh = thetas[:, 1:], mesh_of(jax.sharding.AxisType.Explicit)
    with jax.set_mesh(mesh):
        got = jax.jit(jax.vmap(means))(jax.device_put(cases, jax.NamedSharding(mesh, OVER_CASES)))
    assert jax.typeof(got).sharding.spec[0] == "case"
    np.testing.assert_allclose(jax.device_get(got), jax.jit(jax.vmap(means))(cases), rtol=1e-9, atol=1e-12)


def test_exported_programs_answer_the_same(answer, thetas, plain):
    exported = jax.export.export(jax.jit(answer))(jax.ShapeDtypeStruct((4,), thetas.dtype))
    np.testing.assert_allclose(jax.jit(exported.call)(thetas[0]), plain[0], rtol=1e-12)
    pytest.importorskip("flatbuffers", reason="the extra kbpjax[serving] is not installed")
    loaded = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(jax.jit(loaded.call)(thetas[0]), plain[0], rtol=1e-12)


def test_debug_nans_leak_checks_and_transfer_guards_find_nothing(answer, thetas, plain):
    with jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        compiled, other = jax.jit(answer), thetas[1]
        compiled(thetas[0])
        with jax.transfer_guard("disallow"):
            got = compiled(other)
    np.testing.assert_allclose(got, plain[1], rtol=1e-12)
    with jax.checking_leaks():
        np.testing.assert_allclose(jax.jit(lambda theta: answer(theta))(thetas[1]), plain[1], rtol=1e-12)


@pytest.mark.slow
def test_threads_answer_as_one_does(answer, thetas, plain):
    compiled = jax.jit(answer)
    calls = [(call, i) for call in (compiled, answer) for i in (0, 1, 2, 3)]
    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda call: np.asarray(call[0](thetas[call[1]])), calls))
    np.testing.assert_allclose(got, np.concatenate([plain, plain]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"acceleration": kbp.Anderson(3), "tol": 1e-8, "num_iters": 40},
        {"schedule": kbp.colored(CHAIN), "damping": kbp.AdaptiveDamping(), "num_iters": 4},
        {"schedule": ResidualFirst(0.5), "damping": 0.2, "exponents": 0.8, "num_iters": 11},
    ],
)
@pytest.mark.slow
def test_every_option_of_run_in_shard_map(landmarks, thetas, options):
    model = kbp.fit(CHAIN_DATA, rule=landmarks, ridge=1e-2, **KERNELS)

    def messages(theta):
        evidence = kbp.observe(model, CHAIN, theta[1:]) * kbp.clamp(model, CHAIN, np.array([0]), theta[:1])
        solution = kbp.run(model, CHAIN, evidence, **options)
        pairs = kbp.edge_beliefs(kbp.Posterior.of(model, CHAIN, evidence, solution, jnp.asarray(POINTS)), [(0, 1)])
        return solution.messages, pairs.weights

    mapped = jax.shard_map(
        jax.vmap(messages), mesh=mesh_of(jax.sharding.AxisType.Auto), in_specs=OVER_CASES, out_specs=OVER_CASES
    )
    close(jax.jit(mapped)(thetas), jax.jit(jax.vmap(messages))(thetas), rtol=1e-7)


# --- waiting for the device -----------------------------------------------------------------------------


@contextmanager
def counted(monkeypatch):
    """Collect the places that wait for values of arrays on several devices; one `jax.device_get` waits once."""
    waits, array, get = [], type(jnp.zeros(())), jax.device_get
    value = array._value

    def read(self):
        waits.append(self.shape)
        return value.fget(self)

    def read_together(tree):
        before = len(waits)
        try:
            return get(tree)
        finally:
            waits[before:] = [waits[before:]] if len(waits) > before else []

    with monkeypatch.context() as patched:
        patched.setattr(array, "_value", property(read))
        patched.setattr(jax, "device_get", read_together)
        yield waits


def test_eager_calls_wait_for_the_device_once_at_most_and_not_where_checks_are_skipped(model, seen, monkeypatch):
    everywhere = jax.NamedSharding(mesh_of(jax.sharding.AxisType.Auto), jax.sharding.PartitionSpec())
    there, mask, powers = jax.device_put((model, np.array([True, False, True, True]), np.full(5, 0.9)), everywhere)
    y, points, nodes, values = jax.device_put((seen[0], POINTS, np.array([1]), seen[1][:1]), everywhere)
    steps = {  # name: (the call, with earlier results, and how often it waits)
        "observe": (lambda **_: kbp.observe(there, GRAPH, y, mask=mask), 1),
        "clamp": (lambda **_: kbp.clamp(there, GRAPH, nodes, values), 1),
        "likelihood": (lambda **_: kbp.likelihood(there, GRAPH, lambda x: jnp.exp(-((y[:, None] - x[None]) ** 2))), 1),
        "product": (lambda observe, clamp, likelihood, **_: observe * clamp * likelihood**0.5, 0),
        "run": (lambda product, **_: kbp.run(there, GRAPH, product, num_iters=4), 0),
        "run_with_arrays": (lambda product, **_: kbp.run(there, GRAPH, product, exponents=powers, num_iters=4), 1),
        "beliefs": (lambda product, run, **_: kbp.beliefs(there, GRAPH, product, run, points), 1),
        "mean": (lambda beliefs, **_: kbp.mean(beliefs), 0),
    }
    results = []
    for skipped in (False, True):
        made = {}
        with kbp.skip_value_checks() if skipped else nullcontext():
            for name, (call, expected) in steps.items():
                call(**made)  # lowering reads constants
                with counted(monkeypatch) as waits:
                    made[name] = call(**made)
                assert len(waits) == (0 if skipped else expected), (name, waits)
        results.append(made["mean"])
    np.testing.assert_array_equal(*results)
    with counted(monkeypatch) as waits:  # it does notice
        float(y[0])
        np.asarray(y)
        jax.device_get((y, points))
    assert len(waits) == 3


def test_skipped_checks_are_those_of_values(model, seen):
    bad, mask = jnp.asarray(seen[0]).at[1].set(jnp.nan), np.ones(4, bool)
    with kbp.skip_value_checks():
        evidence = kbp.observe(model, GRAPH, bad, mask=mask)  # as inside jit
        assert not jnp.isfinite(evidence.local).all()
        with pytest.raises(ValueError, match="^y: must have shape"):
            kbp.observe(model, GRAPH, bad[:3], mask=mask)
        with ThreadPoolExecutor(1) as threads, pytest.raises(ValueError, match="^y: must be finite"):
            threads.submit(kbp.observe, model, GRAPH, bad, mask=mask).result()
    with pytest.raises(ValueError, match="^y: must be finite"):
        kbp.observe(model, GRAPH, bad, mask=mask)


# --- guests ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_inside_a_module_of_flax_trains(landmarks, thetas):
    nnx = pytest.importorskip("flax.nnx", reason="flax, which kbpjax does not need, is not installed")

    class Smoother(nnx.Module):
        def __init__(self):
            self.width, self.held = nnx.Param(jnp.array(1.2)), nnx.data(landmarks)

        def __call__(self, y):
            kernels = {"kernel": kbp.RBF(self.width[...]), "obs_kernel": kbp.RBF(1.0)}
            model = kbp.fit(CHAIN_DATA, rule=self.held, ridge=1e-2, **kernels)
            evidence = kbp.observe(model, CHAIN, y)
            solution = kbp.run_tree(model, CHAIN, evidence)
            return kbp.mean(kbp.beliefs(model, CHAIN, evidence, solution, jnp.asarray(POINTS)))

    y = thetas[0, 1:]
    slopes = nnx.jit(nnx.grad(lambda smoother: jnp.sum(smoother(y))))(Smoother())

    def loss(width):
        smoother = Smoother()
        smoother.width[...] = width
        return jnp.sum(smoother(y))

    expected = jax.jit(jax.grad(loss))(jnp.array(1.2))
    np.testing.assert_allclose(slopes["width"][...], expected, rtol=1e-9)
    assert abs(expected) > 1e-3


def test_an_orbax_checkpoint_holds_the_arrays_of_a_model(model, seen, tmp_path):
    orbax = pytest.importorskip("orbax.checkpoint", reason="orbax, which kbpjax does not need, is not installed")
    leaves, tree = jax.tree.flatten(model)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "model", leaves)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "model", jax.tree.map(jnp.zeros_like, leaves))
    y = jnp.asarray(seen[0])
    np.testing.assert_array_equal(weights(jax.tree.unflatten(tree, restored), y), weights(model, y))


# --- in a separate process: jax's default settings, no type checks ------------------------------

ROOT = Path(__file__).parents[1]


def run_script(script):
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_ENABLE_X64")}
    environment["JAX_PLATFORMS"] = "cpu"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr


DEFAULT_SETTINGS = """
import numpy as np, jax, kbpjax as kbp
assert not jax.config.jax_enable_x64
rng = np.random.default_rng(0)
x = rng.normal(size=(25, 1)) + 0.6 * rng.normal(size=(25, 3))
y = x + 0.5 * rng.normal(size=x.shape)
assert x.dtype == np.float64
graph = kbp.chain_graph(3)
data = kbp.pool(graph, x, y)
model = kbp.fit(data, kernel=kbp.RBF(1), obs_kernel=kbp.RBF(np.float64(1)), rule=kbp.ConstantTime(0.1, 6), ridge=1e-3)
evidence = kbp.observe(model, graph, y[0])
for options in ({"damping": 0}, {"tol": 1e-3}, {"damping": np.float64(0.5), "tol": np.float64(1e-3)}):
    solution = kbp.run(model, graph, evidence, num_iters=np.int64(4), **options)
    belief = kbp.beliefs(model, graph, evidence, solution, np.linspace(-2, 2, 9))
    assert belief.weights.dtype == np.float32 and abs(float(belief.weights.sum()) - 3) < 1e-5
    assert kbp.mean(belief).dtype == np.float32
kbp.run(kbp.fit(data, kernel=kbp.RBF(1), obs_kernel=kbp.RBF(1), floor=np.float64(1e-3)), graph)
model = kbp.fit(kbp.pool(graph, (x > 0).astype(int)), kernel=kbp.Delta())
belief = kbp.beliefs(model, graph, None, kbp.run(model, graph), [0, 1])
assert abs(float(belief.weights.sum()) - 3) < 1e-5

def refused(argument, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except ValueError as error:
        assert str(error).startswith(argument + ":"), error
    else:
        raise AssertionError(f"{argument} was not refused: {options}")

for bad in (0, -1, 1.5, 2.0, True, "3", None):
    refused("num_iters", kbp.run, model, graph, num_iters=bad)
    refused("num_nodes", kbp.Graph.from_edges, [], bad)
    refused("num_nodes", kbp.chain_graph, bad)
    refused("height", kbp.grid_graph, bad, 2)
    refused("width", kbp.grid_graph, 2, bad)
    refused("max_rank", kbp.ConstantTime, max_rank=bad)
"""


@pytest.mark.slow
def test_default_settings_of_jax():
    run_script(DEFAULT_SETTINGS)


IMPORT = """
import sys
import jax, equinox, jaxtyping
from jax._src import xla_bridge
before, modules = dict(jax.config.values), set(sys.modules)
import kbpjax
assert xla_bridge._backends == {}, "importing kbpjax started a backend"
assert dict(jax.config.values) == before, "importing kbpjax changed jax's settings"
new = {name.split(".")[0] for name in set(sys.modules) - modules}
assert not new & {"matplotlib", "PIL", "tqdm", "scipy", "experiments"}, new
assert kbpjax.run and kbpjax.fit
"""


def test_importing_does_nothing_else():
    run_script(IMPORT)
