"""Several devices against one: messages, residuals and gradients; what is exchanged, read from the compiled program."""

import re
from functools import partial

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import sharded
from tests.refusals import complaints
from tests.test_partition import hub_graph
from tests.test_schedules import random_problem

pytestmark = pytest.mark.slow
GRAPHS = {"grid": kbp.grid_graph(8, 5), "hub": hub_graph(), "chain": kbp.chain_graph(9)}
GRAPHS["no edges"] = kbp.Graph.from_edges([], 5)


@pytest.fixture
def optimized():
    """Compile as users do, for tests that read from compiled programs what these exchange and hold."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def images():
    """Return a model of images, the same with positive messages, their graph, noisy images and gray levels."""
    rng = np.random.default_rng(0)
    graph = kbp.grid_graph(8, 6)
    x = np.sin(np.arange(48) / 5 + rng.uniform(0, 6, (40, 1))) + 0.1 * rng.normal(size=(40, 48))
    y = x + 0.5 * rng.normal(size=x.shape)
    data = kbp.pool(graph, x.astype(np.float32), y.astype(np.float32))
    options = {"kernel": kbp.RBF(0.4), "obs_kernel": kbp.RBF(0.4), "rule": kbp.ConstantTime(eps=0.1), "ridge": 1e-4}
    with pytest.warns(kbp.RelationWarning, match="edges of type 0 differ"):  # waves
        positive = kbp.fit(data, **options, nonnegative=kbp.Clipped())
    plain = eqx.tree_at(lambda model: model.operators.nonnegative, positive, None)
    return {None: plain, "clipped": positive}, graph, jnp.asarray(y[:8], jnp.float32), jnp.linspace(-1, 1, 9)


def positive_problem(graph, seed=0):
    """Return operators whose messages converge, and local factors."""
    rng = np.random.default_rng(seed)
    nodes, edges = 1 + max(v for v, *_ in graph.node_types), 2 + 2 * max(k for k, *_ in graph.edge_types)
    evaluate, project = rng.uniform(0.5, 1, (nodes, 4, 3)), rng.uniform(0.5, 1, (edges, 3, 4))
    return kbp.Operators(jnp.asarray(evaluate), jnp.asarray(project)), rng.uniform(0.5, 1.5, (graph.num_nodes, 4))


def blocks(model, partition, evidence=None, **options):
    """Run on the devices of a partition."""
    return kbp.run(model, partition.graph, evidence, schedule=partition, **options)


def same(got, expected, **tolerance):
    """Check that two pytrees have the same form and numbers."""
    chex.assert_trees_all_close(got, expected, **({"rtol": 1e-10, "atol": 1e-12} | tolerance))


# --- one graph --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("grid", 1), ("grid", 4), ("hub", 3), ("chain", 2), ("no edges", 2)])
def test_blocks_give_the_solution_of_one_device(name, count):
    graph = GRAPHS[name]
    operators, local, _ = random_problem(graph)
    powers = np.random.default_rng(1).uniform(0.5, 1, graph.num_edges // 2)
    partition = sharded.partition_graph(graph, count)
    for options in (
        {"num_iters": 5},
        {"num_iters": 7, "damping": 0.3, "exponents": powers},
        {"num_iters": 6, "damping": 0.2, "acceleration": kbp.Anderson(), "exponents": 0.8},
    ):
        same(blocks(operators, partition, local, **options), kbp.run(operators, graph, local, **options))


def test_going_on_from_a_solution_is_one_run():
    graph = GRAPHS["grid"]
    operators, local, _ = random_problem(graph)
    partition = sharded.partition_graph(graph, 4)
    part_way = kbp.run(operators, graph, local, num_iters=3)
    whole = kbp.run(operators, graph, local, num_iters=7)
    same(blocks(operators, partition, local, num_iters=4, start=part_way).messages, whole.messages)
    given = {"num_iters": 4, "start": 3 * part_way.messages}  # scaled to norm 1
    same(blocks(operators, partition, local, **given), kbp.run(operators, graph, local, **given))


@pytest.mark.parametrize(
    "exponents",
    [None, 0.7],
)
def test_slots_of_other_widths_on_the_devices_change_nothing(exponents):
    edges = [sorted((i, (i + step) % 56)) for i in range(56) for step in range(1, 5)]
    graph = kbp.Graph.from_edges(edges, 56, node_type=np.arange(56) % 4)
    partition = sharded.partition_graph(graph, 3)
    widths = [plan.blocks[0].incoming.shape[-2] for plan in (graph.plan, partition.blocks.plan)]
    assert widths == [10, 8]  # only products of more than eight are rescaled on the way
    operators, local, _ = random_problem(graph)
    options = {"num_iters": 3, "damping": 0.3, "exponents": exponents}
    same(blocks(operators, partition, local, **options), kbp.run(operators, graph, local, **options))


@pytest.mark.parametrize("damping", [kbp.AdaptiveDamping(start=0.5), 0.2])
def test_tolerance_damping_and_a_start(damping):
    graph = GRAPHS["grid"]
    operators, local = positive_problem(graph)
    partition = sharded.partition_graph(graph, 4, parts=np.random.default_rng(0).integers(0, 4, graph.num_nodes))
    options = {"num_iters": 80, "tol": 1e-6, "damping": damping}
    whole = kbp.run(operators, graph, local, **options)
    solution = blocks(operators, partition, local, **options)
    same(solution, whole)
    assert bool(solution.converged) and 2 < int(solution.num_iters) < 80
    again = blocks(operators, partition, local, tol=1e-6, start=solution)
    assert bool(again.converged) and int(again.num_iters) == 1


@pytest.mark.parametrize("positive", [None, "clipped"])
def test_learned_models_with_clamped_nodes(images, positive):
    models, graph, y, levels = images
    model, partition = models[positive], sharded.partition_graph(graph, 4)
    seen = kbp.observe(model, graph, y[0])
    evidence = seen * kbp.clamp(model, graph, [0, 13, 30], [0.5, -0.5, 0.0])
    whole = kbp.run(model, graph, evidence, num_iters=8, damping=0.2)
    solution = blocks(model, partition, evidence, num_iters=8, damping=0.2)
    same(solution, whole, rtol=1e-5, atol=1e-5)
    if positive:
        weights = [kbp.beliefs(model, graph, evidence, each, levels).weights for each in (solution, whole)]
        same(*weights, rtol=1e-5, atol=1e-5)
    else:  # the clamps matter
        free = blocks(model, partition, seen.local, num_iters=8, damping=0.2)
        assert np.abs(free.messages - solution.messages).max() > 1e-3


def loss(run, graph, options):
    """Return a function of everything that can be differentiated by."""

    def function(operators, local, powers, damping):
        messages = run(operators, graph, local, damping=damping, exponents=powers, **options).messages
        return jnp.sum(messages**3)

    return function


@pytest.mark.parametrize(
    "options",
    [
        {"num_iters": 9},
        {"num_iters": 200, "tol": 1e-11},
        {"num_iters": 200, "tol": 1e-11, "acceleration": kbp.Anderson()},
    ],
    ids=["iterations", "tol", "accelerated"],
)
def test_gradients_are_those_of_one_device(options):
    graph = kbp.grid_graph(4, 3)
    operators, local = positive_problem(graph)
    powers = jnp.asarray(np.random.default_rng(1).uniform(0.5, 1, graph.num_edges // 2))
    args = operators, jnp.asarray(local), powers, jnp.array(0.3)
    partition = sharded.partition_graph(graph, 2)
    functions = loss(kbp.run, graph, options), loss(blocks, partition, options)
    whole, parts = (jax.jit(jax.value_and_grad(function, argnums=(0, 1, 2, 3)))(*args) for function in functions)
    same(parts, whole, rtol=1e-7, atol=1e-9)
    assert float(jnp.max(jnp.abs(parts[1][1]))) > 1e-4


@pytest.mark.parametrize("options", [{"num_iters": 3}, {"num_iters": 90, "tol": 1e-11}], ids=["iterations", "tol"])
def test_forward_derivatives_agree_with_finite_differences(options):
    graph = GRAPHS["chain"]
    operators, local = positive_problem(graph)
    partition = sharded.partition_graph(graph, 2)
    direction = jnp.asarray(np.random.default_rng(2).normal(size=local.shape))

    def along(size):
        return jnp.sum(blocks(operators, partition, local + size * direction, **options).messages ** 3)

    both = jax.jit(lambda at: jax.jvp(along, (at,), (jnp.ones(()),)))
    (ahead, _), (behind, _), (_, slope) = map(both, (1e-5, -1e-5, 0.0))
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-6)


def test_gradients_through_a_positive_model(images):
    models, graph, y, _ = images
    partition, local = sharded.partition_graph(graph, 3), kbp.observe(models["clipped"], graph, y[0]).local

    def total(run, where, local):
        return jnp.sum(run(models["clipped"].operators, where, local, num_iters=2).messages ** 3)

    ways = (kbp.run, graph), (blocks, partition)
    whole, parts = (jax.jit(jax.grad(partial(total, *args)))(local) for args in ways)
    same(parts, whole, rtol=1e-4, atol=1e-6)


def test_batch_of_problems_on_one_partition():
    graph = GRAPHS["grid"]
    operators, local, _ = random_problem(graph)
    partition = sharded.partition_graph(graph, 4)
    many = jnp.asarray(local[None] ** np.array([0.5, 1.0, 2.0])[:, None, None])
    together = jax.jit(jax.vmap(lambda local: blocks(operators, partition, local, num_iters=5)))(many)
    expected = jax.jit(jax.vmap(lambda local: kbp.run(operators, graph, local, num_iters=5)))(many)
    same(together, expected)


def test_not_a_number_in_one_block_is_seen_by_all():
    graph = GRAPHS["grid"]
    operators, local, _ = random_problem(graph)
    local[-1] = np.nan
    partition = sharded.partition_graph(graph, 4)
    run = jax.jit(lambda local: blocks(operators, partition, local, num_iters=30, tol=1e-3))
    solution = run(local)  # where values are not checked
    assert int(solution.num_iters) == 1 and np.isnan(solution.residuals[0])


def test_is_traced_once(monkeypatch):
    graph = kbp.grid_graph(5, 4)
    operators, local, _ = random_problem(graph)
    partition, calls = sharded.partition_graph(graph, 2), []
    sweep = sharded.Partition.sweep
    monkeypatch.setattr(sharded.Partition, "sweep", lambda *args: calls.append(1) or sweep(*args))
    first = blocks(operators, partition, local, num_iters=4)
    traced = len(calls)
    second = blocks(operators, sharded.partition_graph(graph, 2), 2 * local, num_iters=4, damping=0.5)
    assert traced > 0 and len(calls) == traced
    assert np.abs(first.messages - second.messages).max() > 1e-3


def test_wrong_arguments_are_refused():
    graph, wrong = kbp.chain_graph(6), []
    operators, local, _ = random_problem(graph)
    given = {"partition": sharded.partition_graph(graph, 2), "evidence": local}
    for other in (kbp.chain_graph(5), kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (3, 5)], 6)):
        wrong += complaints(
            "schedule: must be of", kbp.run, operators, graph, local, schedule=sharded.partition_graph(other, 2)
        )
    for change, words in [
        ({"num_iters": 0}, "num_iters: must be an integer >= 1"),
        ({"damping": 1.0}, "damping: must be finite and >= 0 and < 1"),
        ({"tol": 0.0}, "tol: must be finite and > 0"),
        ({"exponents": np.ones(3)}, "exponents: must have shape"),
        ({"evidence": np.ones((2, 4))}, "evidence: local factors must have shape"),
        ({"start": np.ones((2, 4))}, "start: messages must have shape"),
    ]:
        wrong += complaints(words, blocks, operators, **given | change)
    assert not wrong


# --- what is exchanged and held ---------------------------------------------------------------------------------------


def compiled_run(graph, count, rank=3, points=4):
    """Compile ten iterations in single precision; return the program and the partition."""
    operators, local, _ = random_problem(graph, rank=rank, points=points)
    partition = sharded.partition_graph(graph, count)
    operators, local = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (operators, local))

    solve = jax.jit(partial(blocks, num_iters=10))
    return solve.lower(operators, partition, local).compile(), partition


def collectives(text):
    """Return {computation: [(kind, numbers sent by all devices)]} of a compiled program."""
    found, computation = {}, ""
    for line in text.splitlines():
        if re.match(r"\S.*\{$", line):
            computation = line.split()[0]
        match = re.search(
            r"= \(?(\w+)\[([\d,]*)\]\S* (collective-permute|all-gather|all-reduce|all-to-all|reduce-scatter|"
            r"collective-broadcast|ragged-all-to-all)(?:-start)?\(",
            line,
        )
        if match:
            kind, dims, name = match.groups()
            numbers = int(np.prod([int(d) for d in dims.split(",") if d], initial=1))
            if name == "collective-permute":
                pairs = re.search(r"source_target_pairs=\{(\{[\d,{}]*\})\}", line).group(1)
                numbers *= len(re.findall(r"\{\d+,\d+\}", pairs))
            found.setdefault(computation, []).append((name, int(re.sub(r"\D", "", kind)) // 8 * numbers))
    return found


@pytest.mark.usefixtures("optimized")
def test_an_iteration_exchanges_the_boundary_messages_and_a_residual_of_each_device():
    graph, rank = kbp.grid_graph(16, 7), 3
    program, partition = compiled_run(graph, 4, rank=rank)
    bodies = collectives(program.as_text())
    assert [size for _, size in bodies.pop("ENTRY")] == [graph.num_edges * rank * 4]  # the solution, on all devices
    assert bodies  # one for each loop in which an iteration stands
    for body in bodies.values():
        exchanged = sum(size for name, size in body if name == "collective-permute")
        assert exchanged == partition.boundary * rank * 4 == 3 * 2 * 7 * rank * 4
        assert [entry for entry in body if entry[0] != "collective-permute"] == [("all-gather", 4 * 4)]


@pytest.mark.usefixtures("optimized")
def test_no_neighbors_no_exchange():
    graph = kbp.Graph.from_edges([(0, 1), (2, 3), (4, 5), (6, 7)], 8)
    program, partition = compiled_run(graph, 4)
    assert partition.boundary == 0 and partition.blocks.routes == ()
    assert "collective-permute" not in program.as_text()


@pytest.mark.usefixtures("optimized")
def test_memory_of_a_device_shrinks_with_its_block():
    graph = kbp.grid_graph(64, 32)
    whole, quarter = (compiled_run(graph, count, 8, 16)[0].memory_analysis() for count in (1, 4))
    assert quarter.temp_size_in_bytes < 0.35 * whole.temp_size_in_bytes
    assert quarter.output_size_in_bytes == whole.output_size_in_bytes  # each device has the whole solution


# --- batches ----------------------------------------------------------------------------------------------------------


def denoiser(images):
    """Return a function from one noisy image to its posterior mean."""
    models, graph, _, levels = images

    def denoise(y):
        evidence = kbp.observe(models[None], graph, y)
        solution = kbp.run(models[None], graph, evidence, num_iters=5)
        return kbp.mean(kbp.beliefs(models[None], graph, evidence, solution, levels))

    return denoise


@pytest.mark.usefixtures("optimized")
def test_sharded_batch_gives_what_one_device_gives(images):
    denoise, ys = jax.jit(jax.vmap(denoiser(images))), images[2]
    batch = sharded.shard_batch(ys)
    assert {shard.data.shape for shard in batch.addressable_shards} == {(2, 48)}
    compiled = denoise.lower(batch).compile()
    assert not collectives(compiled.as_text())
    result = denoise(batch)
    assert result.sharding.is_equivalent_to(batch.sharding, 2)
    same(result, denoise(ys), rtol=1e-5, atol=1e-5)


def many_problems(count):
    """Return a function from local factors to messages, and local factors of several problems."""
    graph = kbp.chain_graph(9)
    operators, local = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), random_problem(graph)[:2])
    powers = jnp.linspace(0.5, 2, count, dtype=jnp.float32)[:, None, None]

    def messages(operators, local):
        return kbp.run(operators, graph, local, num_iters=3).messages

    return messages, operators, local[None] ** powers


def test_gradient_of_a_sharded_batch():
    messages, operators, many = many_problems(8)

    @jax.jit
    @jax.grad
    def slope(operators, many):
        return jnp.sum(jax.vmap(partial(messages, operators))(many) ** 3)

    same(slope(operators, sharded.shard_batch(many)), slope(operators, many), rtol=1e-4, atol=1e-4)


def test_inside_a_users_pmap():
    messages, operators, many = many_problems(4)
    result = jax.pmap(partial(messages, operators))(many)
    assert len(result.sharding.device_set) == 4
    expected = jax.jit(jax.vmap(partial(messages, operators)))(many)
    same(np.asarray(result), np.asarray(expected), rtol=1e-5, atol=1e-5)


def test_batches_in_a_mesh_of_two_axes_and_in_a_pytree():
    mesh = jax.make_mesh((2, 2), ("hosts", "local"))
    batch = sharded.shard_batch({"y": np.ones((8, 3)), "mask": np.ones((4,), bool)}, mesh)
    assert {shard.data.shape for shard in batch["y"].addressable_shards} == {(2, 3)}
    assert {shard.data.shape for shard in batch["mask"].addressable_shards} == {(1,)}


def test_batches_that_cannot_be_split():
    with pytest.raises(ValueError, match="batch: must have a first axis that 4 devices divide; .* Pad it to 8"):
        sharded.shard_batch(np.ones((5, 3)), 4)
    with pytest.raises(ValueError, match="batch: must be arrays with a first axis; got a scalar"):
        sharded.shard_batch({"y": np.ones((4, 3)), "sigma": 0.5}, 4)


@pytest.mark.usefixtures("optimized")
def test_thousands_of_problems_in_the_memory_of_a_few():
    """As docs/sharded.md has it: one call, memory of one batch besides inputs and outputs."""
    messages, operators, many = many_problems(19)  # a last batch that is not full

    def first(local):
        return messages(operators, local)[0]

    solve = jax.jit(lambda many: jax.lax.map(first, many, batch_size=8))
    together = jax.jit(jax.vmap(first))

    def memory(solve, count):
        shape = jax.ShapeDtypeStruct((count, *many.shape[1:]), jnp.float32)
        return solve.lower(shape).compile().memory_analysis().temp_size_in_bytes

    outputs = 4096 * 3 * 4  # a copy of which may be made where batches are put together
    assert memory(solve, 4096) <= memory(solve, 64) + outputs
    assert memory(together, 4096) > 10 * (memory(solve, 64) + outputs)
    same(solve(many), together(many), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("optimized")
def test_batches_in_bounded_memory_on_each_device():
    """As docs/sharded.md has it: the batch axis is split, the other is gone through in turn."""
    messages, operators, many = many_problems(12)
    by_device = sharded.shard_batch(many.reshape(3, 4, *many.shape[1:]).swapaxes(0, 1))
    solve = jax.jit(jax.vmap(lambda some: jax.lax.map(partial(messages, operators), some)))
    assert not collectives(solve.lower(by_device).compile().as_text())
    expected = jax.jit(jax.vmap(partial(messages, operators)))(many)
    same(solve(by_device).swapaxes(0, 1).reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


def test_donated_messages_are_used_again():
    """As docs/sharded.md has it: going on from earlier messages without a second copy of them."""
    graph = GRAPHS["grid"]
    operators, local, _ = random_problem(graph)

    def go_on(messages, local):
        return kbp.run(operators, graph, local, num_iters=5, damping=0.0, start=messages).messages

    messages = kbp.run(operators, graph, local, num_iters=5, damping=0.0).messages  # of norm 1, as arrays start with
    expected = kbp.run(operators, graph, local, num_iters=10, damping=0.0).messages
    new = jax.jit(go_on, donate_argnums=0)(messages, local)
    assert messages.is_deleted()
    same(new, expected)


@pytest.mark.parametrize("positive", [None, "clipped"])
def test_the_recipe_of_infer_runs_on_a_partition(images, positive):
    """Nonnegative tree-reweighted messages with Anderson acceleration, with missing values and clamps."""
    models, graph, y, levels = images
    model, partition = models[positive], sharded.partition_graph(graph, 4)
    evidence = kbp.clamp(model, graph, [0, 13], [0.5, -0.5])
    seen = jnp.where(jnp.arange(48) % 5 == 0, jnp.nan, y[0])
    options = {"evidence": evidence, "points": levels, "tol": 1e-5, "num_iters": 400}
    one = kbp.infer(model, graph, seen, **options)
    several = kbp.infer(model, graph, seen, schedule=partition, **options)
    assert bool(one.solution.converged) and bool(several.solution.converged)
    np.testing.assert_allclose(several.weights, one.weights, atol=1e-3)
    alone = kbp.infer(model, graph, seen, schedule=sharded.partition_graph(graph, 1), **options)
    same(alone.weights, kbp.infer(model, graph, seen, schedule=kbp.Synchronous(), **options).weights, atol=1e-5)
