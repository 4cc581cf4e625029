"""Every stage under jit, vmap, map, pmap and sharding; precision; pytrees; and what importing the package does."""

import os
import subprocess
import sys
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp

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


def test_map_over_observations_equals_a_loop(model, seen, expected):
    np.testing.assert_allclose(jax.lax.map(partial(weights, model), jnp.asarray(seen)), expected, rtol=1e-9)


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
    for tree in (data, model, GRAPH, evidence, solution, belief, kbp.init(model.operators, GRAPH)):
        leaves, structure = jax.tree.flatten(tree)
        assert leaves and all(isinstance(leaf, jax.Array) for leaf in leaves)
        assert hash(structure) == hash(jax.tree.structure(tree))
        for other in (jax.tree.map(lambda a: a, tree), jax.jit(lambda a: a)(tree)):
            assert type(other) is type(tree) and jax.tree.structure(other) == structure
            for a, b in zip(leaves, jax.tree.leaves(other), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


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
