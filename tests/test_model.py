import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from experiments.lib.schedules import Agreement
from kbpjax.features import features
from tests import reference
from tests.refusals import complaints

TWIN_GRAPH, SAMPLES, OBSERVATIONS = reference.loopy_example()
RULE = kbp.ConstantTime(eps=reference.LOOPY_SETTINGS["eps"], max_rank=reference.LOOPY_SETTINGS["max_rank"])
OPTIONS = {name: reference.LOOPY_SETTINGS[name] for name in ("ridge", "floor")}
KERNELS = {v: kbp.RBF(b) for v, b in reference.LOOPY_BANDWIDTHS.items()}
OBS_KERNELS = {v: kbp.RBF(b) for v, b in reference.LOOPY_OBS_BANDWIDTHS.items()}
GRAPH = kbp.Graph.from_edges(TWIN_GRAPH.edges, 7, edge_type=TWIN_GRAPH.edge_type, node_type=TWIN_GRAPH.node_type)
POINTS = np.linspace(-1.5, 1.5, 9)


@functools.cache
def model_of(dtype=np.float64):
    data = kbp.pool(GRAPH, SAMPLES.astype(dtype), OBSERVATIONS.astype(dtype))
    return kbp.fit(data, kernel=KERNELS, obs_kernel=OBS_KERNELS, rule=RULE, **OPTIONS)


twin_model = functools.cache(reference.loopy_model)


def small_data(x=None, **arguments):
    x = np.random.default_rng(0).normal(size=12) if x is None else np.asarray(x)
    return kbp.TrainingData(**({"edges": {0: (x, x[::-1])}, "nodes": {0: x}, "degrees": {0: 3}} | arguments))


def marginal_weights(model, graph, points):
    return kbp.beliefs(model, graph, None, kbp.run(model, graph, num_iters=3), points).weights


# --- against the twin -------------------------------------------------------------------------------------------------


def test_ranks_and_landmarks_equal_twin():
    model, twin = model_of(), twin_model()
    assert model.ranks == {v: (len(twin.landmarks[v]), len(twin.product_landmarks[v])) for v in range(3)}
    assert len({rank for ranks in model.ranks.values() for rank in ranks}) >= 4, "the example should have uneven ranks"
    for v in range(3):
        np.testing.assert_array_equal(model.bases[v].landmarks, twin.landmarks[v])
        np.testing.assert_array_equal(model.points[v], twin.product_landmarks[v])
        np.testing.assert_array_equal(model.observations[v].basis.landmarks, twin.obs_landmarks[v])


def test_residuals_are_those_left_over():
    _, nodes, _, degrees = reference.pool(TWIN_GRAPH, SAMPLES, OBSERVATIONS)
    for v, reported in model_of().residuals.items():
        kernel = reference.rbf(reference.LOOPY_BANDWIDTHS[v])
        for kernel_, landmarks, residual in zip(
            (kernel, reference.power(kernel, degrees[v] - 1)),
            (twin_model().landmarks[v], twin_model().product_landmarks[v]),
            reported,
        ):
            indices = [int(np.flatnonzero(nodes[v] == x)[0]) for x in landmarks]
            left = np.sqrt(reference.residuals(kernel_, nodes[v], indices).max())
            np.testing.assert_allclose(residual, left, rtol=1e-6)


def test_evaluate_equals_twin_and_its_padding_is_zero():
    model, twin = model_of(), twin_model()
    evaluate = np.array(model.operators.evaluate)
    sizes = np.array([matrix.shape for matrix in twin.evaluate.values()])
    assert evaluate.shape == (3, *sizes.max(axis=0))
    for v, expected in twin.evaluate.items():
        points, rank = expected.shape
        np.testing.assert_allclose(evaluate[v, :points, :rank], expected, atol=1e-9)
        evaluate[v, :points, :rank] = 0
    assert not evaluate.any()


def test_project_equals_twin_and_its_padding_is_zero():
    model, twin = model_of(), twin_model()
    project = np.array(model.operators.project)
    assert project.shape == (6, *model.operators.evaluate.shape[:0:-1])
    for (k, back), expected in twin.project.items():
        rank, points = expected.shape
        matrix = project[2 * k + back]
        np.testing.assert_allclose(matrix[:rank, :points], expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())
        matrix[:rank, :points] = 0
    assert not project.any()


def test_update_equals_equation_15_without_orthonormal_bases():
    model, twin = model_of(), twin_model()
    edges, _, _, degrees = reference.pool(TWIN_GRAPH, SAMPLES, OBSERVATIONS)
    for k, (a, b) in TWIN_GRAPH.ends().items():
        matrix = reference.kernel_form_update(
            twin.kernels[b],
            twin.landmarks[b],
            reference.power(twin.kernels[a], degrees[a] - 1),
            twin.product_landmarks[a],
            edges[k][1],
            edges[k][0],
            OPTIONS["ridge"],
        )
        expected = reference.gram(twin.kernels[b], POINTS, twin.landmarks[b]) @ matrix
        at_points = np.asarray(features(model.bases[b], jnp.asarray(POINTS)))
        rank, points = at_points.shape[1], expected.shape[1]
        result = at_points @ np.asarray(model.operators.project[2 * k, :rank, :points])
        np.testing.assert_allclose(result, expected, atol=1e-6 * np.abs(expected).max())


def test_observation_operators_marginals_and_floor_equal_twin():
    model, twin = model_of(), twin_model()
    for v in range(3):
        expected = twin.obs_operators[v]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(model.observations[v].expectation, expected, atol=1e-7 * scale)
        np.testing.assert_allclose(model.marginals[v], twin.marginals[v], atol=1e-10)
    np.testing.assert_allclose(model.operators.floor, twin.floor, rtol=1e-9)


def test_one_node_type_equals_twin():
    graph = reference.Graph([(0, 1), (1, 2)], [0, 0, 0], [0, 0])
    samples, observations = SAMPLES[:, :3], OBSERVATIONS[:, :3]
    edges, nodes, observed, degrees = reference.pool(graph, samples, observations)
    settings = reference.LOOPY_SETTINGS
    twin = reference.fit(
        edges, nodes, observed, {0: (0, 0)}, degrees, {0: reference.rbf(0.6)}, {0: reference.rbf(0.5)}, **settings
    )
    data = kbp.pool(kbp.chain_graph(3), samples, observations)
    model = kbp.fit(data, kernel=kbp.RBF(0.6), obs_kernel=kbp.RBF(0.5), rule=RULE, **OPTIONS)
    assert model.ranks == {0: (len(twin.landmarks[0]), len(twin.product_landmarks[0]))}
    np.testing.assert_allclose(model.operators.evaluate[0], twin.evaluate[0], atol=1e-9)
    for back in (0, 1):
        expected = twin.project[0, back]
        np.testing.assert_allclose(model.operators.project[back], expected, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(model.observations[0].expectation, twin.obs_operators[0], atol=1e-7)
    np.testing.assert_allclose(model.marginals[0], twin.marginals[0], atol=1e-10)


def test_seven_iterations_with_masked_evidence_equal_twin():
    model, twin = model_of(), twin_model()
    mask = [True, False, True, True, False, False, True]
    y = np.random.default_rng(9).normal(size=7)
    evidence = kbp.observe(model, GRAPH, y, mask=mask)
    solution = kbp.run(model, GRAPH, evidence, num_iters=7, damping=0.3)
    belief = kbp.beliefs(model, GRAPH, evidence, solution, POINTS)

    twin_evidence = reference.observe(twin, TWIN_GRAPH, y, mask)
    messages = reference.run(twin, TWIN_GRAPH, twin_evidence, 7, 0.3)
    for node, v in enumerate(TWIN_GRAPH.node_type):
        ones = np.ones(len(twin.evaluate[v]))
        expected = reference.values(twin, v, twin_evidence[node]) if mask[node] else ones
        np.testing.assert_allclose(evidence.local[node, : len(ones)], expected, atol=1e-8)
        expected = reference.beliefs(twin, TWIN_GRAPH, twin_evidence, messages, POINTS, node)
        np.testing.assert_allclose(belief.weights[node], expected, atol=1e-8)
    for edge, pair in enumerate(zip(GRAPH.senders.tolist(), GRAPH.receivers.tolist())):
        expected = messages[pair]
        np.testing.assert_allclose(solution.messages[edge, : len(expected)], expected, atol=1e-8)
        assert not solution.messages[edge, len(expected) :].any()
    assert len(messages) == GRAPH.num_edges


# --- the tensor power -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("degrees", "power"), [({0: 0}, 1), ({0: 2}, 1), ({0: 3}, 2), (None, 4)])
def test_products_live_in_the_tensor_power_of_all_neighbours_but_one(degrees, power):
    data = small_data(degrees=degrees)
    model = kbp.fit(data, kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=0.1))
    x = np.asarray(data.nodes[0])
    chosen, residual = reference.incomplete_cholesky(reference.power(reference.rbf(0.5), power), x, 0.1, 128)
    np.testing.assert_array_equal(model.points[0], x[chosen])
    np.testing.assert_allclose(model.residuals[0][1], residual, rtol=1e-6)


def test_an_observation_counts_as_a_neighbour():
    x = np.random.default_rng(0).normal(size=(2, 9))
    data = kbp.pool(kbp.grid_graph(3, 3), x, x)
    assert dict(data.degrees) == {0: 5}
    model = kbp.fit(data, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=0.1))
    chosen, _ = reference.incomplete_cholesky(reference.power(reference.rbf(0.5), 4), x.ravel(), 0.1, 128)
    np.testing.assert_array_equal(model.points[0], x.ravel()[chosen])


# --- types of numbers -------------------------------------------------------------------------------------------------


def float_leaves(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]


def answers(model, dtype, **options):
    y = np.linspace(-1, 1, 7).astype(dtype)
    evidence = kbp.observe(model, GRAPH, y)
    solution = kbp.run(model, GRAPH, evidence, num_iters=3, **options)
    belief = kbp.beliefs(model, GRAPH, evidence, solution, POINTS.astype(dtype))
    return evidence, solution, belief, kbp.mean(belief), kbp.variance(belief), kbp.interval(belief), kbp.mode(belief)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_keep_their_precision(dtype):
    model = model_of(dtype)
    learned = [(seen.expectation, seen.ratio, seen.residual) for seen in model.observations.values()]
    arrays = (model.operators, learned, model.marginals, model.moments, model.residuals, model.ridges)
    found = [leaf.dtype for leaf in float_leaves((arrays, answers(model, dtype)))]
    assert len(found) > 20 and set(found) == {np.dtype(dtype)}
    bases = [*model.bases.values(), *(seen.basis for seen in model.observations.values())]
    transforms = {basis.transform.dtype for basis in bases}
    landmarks = {basis.landmarks.dtype for basis in bases}
    assert transforms == landmarks == {np.dtype(dtype)}


def test_single_precision_beliefs_are_close_to_double():
    # With plain damping 0 the rounding of the learned operators alone makes 3.5e-3.
    options = {"damping": 0.2, "schedule": Agreement()}
    single, double = (answers(model_of(dtype), dtype, **options) for dtype in (np.float32, np.float64))
    np.testing.assert_allclose(single[2].weights, double[2].weights, atol=2e-3)
    np.testing.assert_allclose(single[3], double[3], atol=2e-3)


@pytest.mark.parametrize(
    "number",
    [np.float64, jnp.asarray, *(pytest.param(number, marks=pytest.mark.slow) for number in (np.float32, jnp.float32))],
    ids=lambda number: number.__name__,
)
def test_options_of_any_number_type_keep_single_precision(number):
    data = small_data(np.random.default_rng(0).normal(size=12).astype(np.float32))
    model = kbp.fit(data, kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=0.2), ridge=number(1e-3), floor=number(1e-6))
    expected = kbp.fit(data, kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=0.2), ridge=1e-3, floor=1e-6)
    for leaf, other in zip(jax.tree.leaves(model.operators), jax.tree.leaves(expected.operators)):
        assert leaf.dtype == jnp.float32
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


def test_whole_numbers_as_samples():
    x = np.random.default_rng(0).integers(0, 256, 40).astype(np.uint8)
    model = kbp.fit(small_data(x), kernel=kbp.RBF(40.0), rule=kbp.ConstantTime(max_rank=3), ridge=1e-3)
    same = kbp.fit(small_data(x.astype(float)), kernel=kbp.RBF(40.0), rule=kbp.ConstantTime(max_rank=3), ridge=1e-3)
    np.testing.assert_allclose(model.operators.project, same.operators.project, rtol=1e-12)
    weights = marginal_weights(model, kbp.chain_graph(3), np.array([0, 100, 200], np.uint8))
    expected = marginal_weights(same, kbp.chain_graph(3), np.array([0.0, 100.0, 200.0]))
    np.testing.assert_allclose(weights, expected, rtol=1e-9)


# --- transformations --------------------------------------------------------------------------------------------------


def test_inside_jit_beliefs_are_the_same():
    data = kbp.pool(GRAPH, SAMPLES, OBSERVATIONS)
    y = jnp.linspace(-1, 1, 7)

    bandwidths = {v: kbp.RBF(b) for v, b in reference.LOOPY_BANDWIDTHS.items()}
    rule = kbp.fix_landmarks(data, kernel=bandwidths, obs_kernel=OBS_KERNELS, rule=RULE)

    @jax.jit
    def weights(data, bandwidth, ridge, y):
        kernels = {v: kbp.RBF(bandwidth * b) for v, b in reference.LOOPY_BANDWIDTHS.items()}
        model = kbp.fit(data, kernel=kernels, obs_kernel=OBS_KERNELS, rule=rule, ridge=ridge, floor=OPTIONS["floor"])
        evidence = kbp.observe(model, GRAPH, y)
        solution = kbp.run(model, GRAPH, evidence, num_iters=3)
        return kbp.beliefs(model, GRAPH, evidence, solution, POINTS).weights

    inside = weights(data, 1.0, OPTIONS["ridge"], y)
    outside = answers(model_of(), np.float64)[2].weights
    np.testing.assert_allclose(inside, outside, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_with_padding_the_scale_of_the_kernel_does_not_matter(scale):
    """Padding must not be seen by kernels of very small or large values."""
    data = small_data(scale * np.random.default_rng(0).normal(size=(12, 2)))
    rule = kbp.ConstantTime(eps=1e-9 * min(1, scale) ** 2, max_rank=5)

    def evaluate(data, rule):
        return kbp.fit(data, kernel=kbp.Linear(), rule=rule, ridge=1e-3).operators.evaluate[0]

    outside = np.asarray(evaluate(data, rule))
    points, rank = outside.shape
    assert rank == 2 and points == 3  # of <x, y>^2 in the plane
    inside = np.asarray(jax.jit(evaluate)(data, kbp.fix_landmarks(data, kernel=kbp.Linear(), rule=rule, pad=True)))
    assert inside.shape == (5, 5)
    np.testing.assert_allclose(inside[:points, :rank], outside, atol=1e-9 * np.abs(outside).max())


def test_gradients_with_landmarks_held_fixed():
    data, graph = small_data(), kbp.chain_graph(3)
    rule = kbp.fix_landmarks(data, kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=0.05, max_rank=9))

    @jax.jit
    def total(bandwidth, ridge, floor):
        model = kbp.fit(data, kernel=kbp.RBF(bandwidth), rule=rule, ridge=ridge, floor=floor)
        solution = kbp.run(model, graph, num_iters=2)
        return jnp.sum(kbp.mean(kbp.beliefs(model, graph, None, solution, np.array([-1.0, 0.1, 0.8]))) ** 2)

    start = (0.5, 1e-2, 0.6)
    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*start)
    for i, gradient in enumerate(gradients):
        h = 1e-5 * start[i]
        up, down = (total(*(v + sign * h * (i == j) for j, v in enumerate(start))) for sign in (1, -1))
        assert abs(gradient) > 1e-6
        np.testing.assert_allclose(gradient, (up - down) / (2 * h), rtol=1e-4)


@pytest.mark.slow
def test_gradient_outside_jit():
    rule = kbp.fix_landmarks(small_data(), kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=0.5))

    def total(bandwidth, ridge):
        model = kbp.fit(small_data(), kernel=kbp.RBF(bandwidth), rule=rule, ridge=ridge)
        return jnp.sum(jnp.sin(model.operators.project)) + jnp.sum(model.marginals[0])

    gradients = jax.grad(total, argnums=(0, 1))(0.5, 1e-2)
    expected = [(total(0.5 + 1e-6, 1e-2) - total(0.5 - 1e-6, 1e-2)) / 2e-6]
    expected.append((total(0.5, 1e-2 + 1e-7) - total(0.5, 1e-2 - 1e-7)) / 2e-7)
    np.testing.assert_allclose(gradients, expected, rtol=1e-4)


# --- edge cases -------------------------------------------------------------------------------------------------------


def test_one_sample():
    model = kbp.fit(small_data([0.5]), kernel=kbp.RBF(0.5), ridge=1e-3)
    assert model.ranks == {0: (1, 1)}
    weights = marginal_weights(model, kbp.chain_graph(4), np.array([-0.5, 0.0, 0.5]))
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (np.argmax(weights, axis=1) == 2).all()


@pytest.mark.parametrize("value", [1.0, 1e6, 1e-6])
def test_constant_data(value):
    model = kbp.fit(small_data(np.full(12, value)), kernel=kbp.RBF(value), ridge=1e-3)
    assert model.ranks == {0: (1, 1)}
    weights = marginal_weights(model, kbp.chain_graph(3), np.array([value, 2 * value]))
    assert np.isfinite(weights).all() and (weights[:, 0] > weights[:, 1]).all()


def test_rank_one():
    model = kbp.fit(small_data(), kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(max_rank=1))
    assert model.ranks == {0: (1, 1)} and float(model.residuals[0][0]) > 0.1
    assert np.isfinite(marginal_weights(model, kbp.chain_graph(3), POINTS)).all()


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_unit_of_the_data_does_not_matter(scale, dtype):
    x = np.random.default_rng(0).normal(size=12).astype(dtype)
    rule = kbp.ConstantTime(eps=0.1)
    graph = kbp.chain_graph(3)
    factor = dtype(scale)
    scaled = kbp.fit(small_data(factor * x), kernel=kbp.RBF(0.5 * scale), rule=rule, ridge=1e-2)
    plain = kbp.fit(small_data(x), kernel=kbp.RBF(0.5), rule=rule, ridge=1e-2)
    points = POINTS.astype(dtype)
    np.testing.assert_allclose(
        marginal_weights(scaled, graph, factor * points),
        marginal_weights(plain, graph, points),
        atol=1e-4 if dtype == np.float32 else 1e-9,
    )


def test_data_without_edges():
    data = kbp.TrainingData({}, {0: np.linspace(0, 1, 12)}, degrees={0: 0})
    model = kbp.fit(data, kernel=kbp.RBF(0.5), ridge=1e-3)
    graph = kbp.Graph.from_edges([], 3)
    weights = marginal_weights(model, graph, POINTS)
    expected = features(model.bases[0], jnp.asarray(POINTS)) @ model.marginals[0]
    np.testing.assert_allclose(weights, np.tile(expected / expected.sum(), (3, 1)), atol=1e-6)
    with pytest.raises(ValueError, match="^graph: must have edge types"):
        kbp.run(model, kbp.chain_graph(3))


def test_a_model_serves_any_graph_of_its_types():
    model = model_of()
    graph = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, node_type=[0, 1, 0], edge_type=[0, 0])
    assert np.isfinite(marginal_weights(model, graph, POINTS)).all()
    strange = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 3], edge_type=[0])
    with pytest.raises(ValueError, match=r"^graph: must have node types among \[0, 1, 2\]; got \[3\]"):
        kbp.run(model, strange)
    joined = kbp.Graph.from_edges([(0, 1)], 2, node_type=[2, 2], edge_type=[0])
    with pytest.raises(ValueError, match=r"^graph: must have edge types .* got \[\(0, 2, 2\)\]"):
        kbp.run(model, joined)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_fit_names_what_is_wrong():
    wrong = []
    for options, argument in [
        ({"ridge": -1e-9}, "ridge"),
        ({"ridge": float("nan")}, "ridge"),
        ({"ridge": float("inf")}, "ridge"),
        ({"floor": -1e-9}, "floor"),
        ({"floor": 1.0}, "floor"),
        ({"floor": float("nan")}, "floor"),
        ({"kernel": {1: kbp.RBF(1.0)}}, "kernel"),
    ]:
        wrong += complaints(f"{argument}: must be", kbp.fit, small_data(), **{"kernel": kbp.RBF(0.5)} | options)
    assert not wrong


@pytest.mark.filterwarnings("ignore:data. the relations of edge type 0 rest on 12 pairs")
@pytest.mark.parametrize("obs_kernel", [None, {}], ids=str)
def test_a_kernel_of_observations_that_is_not_given_is_chosen(obs_kernel):
    x = np.linspace(0, 1, 12)
    model = kbp.fit(small_data(observations={0: (x, x)}), kernel=kbp.RBF(0.5), obs_kernel=obs_kernel)
    assert float(model.bases[0].kernel.bandwidth) == 0.5 and model.observations[0].basis.kernel.bandwidth > 0


def test_a_kernel_of_observations_that_there_are_not():
    x = np.linspace(0, 1, 12)
    with pytest.raises(ValueError, match=r"^obs_kernel: must be a kernel, or one kernel per node type \[0\]"):
        kbp.fit(small_data(observations={0: (x, x)}), kernel=kbp.RBF(0.5), obs_kernel={1: kbp.RBF(1.0)})


def test_rule_names_what_is_wrong():
    wrong = []
    for options, argument in [
        ({"eps": 0.0}, "eps"),
        ({"eps": -1e-3}, "eps"),
        ({"eps": float("nan")}, "eps"),
        ({"eps": float("inf")}, "eps"),
        ({"max_rank": 0}, "max_rank"),
        ({"max_rank": -2}, "max_rank"),
        ({"max_rank": True}, "max_rank"),
    ]:
        wrong += complaints(f"{argument}: must be", kbp.ConstantTime, **options)
    assert not wrong


def test_a_kernel_that_vanishes_on_all_samples():
    with pytest.raises(ValueError, match="^kernel: must not vanish on the training samples"):
        kbp.fit(small_data(np.zeros(12)), kernel=kbp.Linear())


def test_a_kernel_that_overflows_on_samples():
    x = np.array([1e30, -1e30], np.float32)
    with pytest.raises(ValueError, match="^kernel: "):
        kbp.fit(small_data(x), kernel=kbp.Linear())


def test_the_floor_of_a_type_does_not_depend_on_other_types():
    x = np.linspace(-1, 1, 30)
    data = kbp.TrainingData({0: (x, 1e5 * x)}, {0: x, 1: 1e5 * x}, ends={0: (0, 1)})
    model = kbp.fit(data, kernel={0: kbp.RBF(0.5), 1: kbp.Linear()}, floor=1e-6)
    np.testing.assert_allclose(model.operators.floor, [1e-6, 0.1], rtol=1e-3)


def test_residuals_tell_of_a_max_rank_that_was_too_small():
    x = np.linspace(0, 1, 60)
    data = kbp.TrainingData({}, {0: x}, {0: (x, x)})
    narrow, rule = kbp.RBF(1e-3), kbp.ConstantTime(eps=1e-2, max_rank=8)
    model = kbp.fit(data, kernel=kbp.RBF(0.5), obs_kernel=narrow, rule=rule)
    assert float(model.residuals[0][0]) <= 1e-2 < 0.9 < float(model.observations[0].residual)
