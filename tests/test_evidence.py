import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import kbpjax as kbp
from tests import reference
from tests.loopy import GRAPH, TWIN_GRAPH, Y, loopy_model, twin_model
from tests.refusals import complaints


def without_type(model, v):
    """The same model, as if no observations of one node type had been seen."""
    observations = {w: observation for w, observation in model.observations.items() if w != v}
    replaced = {field: getattr(model, field) for field in model.__dataclass_fields__}
    return type(model)(**(replaced | {"observations": observations}))


@pytest.mark.parametrize("mask", [None, [True, False, True, True, False, False, True], [False] * 7], ids=str)
def test_observe_equals_twin(mask):
    model, twin = loopy_model(), twin_model()
    evidence = kbp.observe(model, GRAPH, Y, mask=mask)
    seen = [True] * 7 if mask is None else mask
    expected = reference.observe(twin, TWIN_GRAPH, Y, seen)
    assert evidence.observed[0].tolist() == seen
    for node, v in enumerate(TWIN_GRAPH.node_type):
        points, rank = twin.evaluate[v].shape
        if node in expected:
            np.testing.assert_allclose(evidence.messages[0, node, :rank], expected[node], atol=1e-8)
            assert not evidence.messages[0, node, rank:].any()
            values = reference.values(twin, v, expected[node])
            np.testing.assert_allclose(evidence.local[node, :points], values, atol=1e-8)
        else:
            assert (evidence.local[node] == 1).all()


def test_observed_messages_have_norm_one_and_values_at_least_the_floor():
    evidence = kbp.observe(loopy_model(), GRAPH, Y)
    np.testing.assert_allclose(jnp.linalg.norm(evidence.messages[0], axis=1), 1, rtol=1e-12)
    floors = np.asarray(loopy_model().operators.floor)[np.asarray(GRAPH.node_type)]
    assert np.all(np.asarray(evidence.local).min(axis=1) >= floors) and np.all(floors > 0)


def test_an_observation_speaks_for_values_like_it():
    """Observations are the values and a little noise, so the likelihood is largest close to what was observed."""
    graph = kbp.Graph.from_edges([], 5)
    x = np.linspace(-2, 2, 200)
    data = kbp.TrainingData({}, {0: x}, {0: (x, x + 0.05 * np.sin(50 * x))})
    model = kbp.fit(data, kernel=kbp.RBF(0.3), obs_kernel=kbp.RBF(0.3), ridge=1e-5)
    y = np.array([-1.5, -0.5, 0.0, 0.8, 1.6])
    evidence = kbp.observe(model, graph, y)
    belief = kbp.beliefs(model, graph, evidence, kbp.run(model, graph, evidence, num_iters=1), np.linspace(-2, 2, 81))
    np.testing.assert_allclose(kbp.mode(belief), y, atol=0.11)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_the_mask_hides_does_not_matter(bad):
    mask = np.array([True, False, True, True, False, False, True])
    hidden = np.where(mask, Y, bad)
    expected = kbp.observe(loopy_model(), GRAPH, np.where(mask, Y, 123.0), mask=mask)
    for result in (
        kbp.observe(loopy_model(), GRAPH, hidden, mask=mask),
        kbp.observe(loopy_model(), GRAPH, jnp.asarray(hidden), mask=jnp.asarray(mask)),
        jax.jit(lambda y, mask: kbp.observe(loopy_model(), GRAPH, y, mask=mask))(hidden, mask),
    ):
        np.testing.assert_allclose(result.local, expected.local, rtol=1e-12)
        observed = np.asarray(result.observed[0])
        assert observed.tolist() == mask.tolist()
        np.testing.assert_allclose(result.messages[0][observed], expected.messages[0][observed], rtol=1e-12, atol=1e-15)
        assert np.isfinite(result.messages).all()


@pytest.mark.slow
def test_what_the_mask_hides_does_not_matter_to_gradients():
    mask, model = jnp.asarray([True, False, True, True, False, False, True]), loopy_model()

    @jax.jit
    def total(y):
        evidence = kbp.observe(model, GRAPH, y, mask=mask)
        solution = kbp.run(model, GRAPH, evidence, num_iters=2)
        return jnp.sum(kbp.mean(kbp.beliefs(model, GRAPH, evidence, solution, np.linspace(-1, 1, 5))) ** 2)

    gradient = np.asarray(jax.jit(jax.grad(total))(jnp.where(mask, Y, jnp.nan)))
    assert np.isfinite(gradient).all()
    assert not gradient[~np.asarray(mask)].any()
    h = 1e-5
    for node in (0, 3):
        step = h * np.eye(7)[node]
        expected = (total(jnp.where(mask, Y + step, 0)) - total(jnp.where(mask, Y - step, 0))) / (2 * h)
        np.testing.assert_allclose(gradient[node], expected, rtol=1e-4, atol=1e-8)


def test_types_without_observations_have_no_evidence():
    model = without_type(loopy_model(), 1)
    evidence = kbp.observe(model, GRAPH, Y)
    node_type = np.asarray(GRAPH.node_type)
    assert evidence.observed[0].tolist() == (node_type != 1).tolist()
    assert (evidence.local[node_type == 1] == 1).all()
    full = kbp.observe(loopy_model(), GRAPH, Y)
    np.testing.assert_allclose(evidence.local[node_type != 1], full.local[node_type != 1], rtol=1e-12)
    solution = kbp.run(model, GRAPH, evidence, num_iters=2)
    result = kbp.beliefs(model, GRAPH, evidence, solution, np.linspace(-1, 1, 5))
    masked = kbp.observe(loopy_model(), GRAPH, Y, mask=node_type != 1)
    same = kbp.run(loopy_model(), GRAPH, masked, num_iters=2)
    expected = kbp.beliefs(loopy_model(), GRAPH, masked, same, np.linspace(-1, 1, 5))
    np.testing.assert_allclose(result.weights, expected.weights, rtol=1e-9)


def test_masking_all_is_having_no_evidence():
    evidence = kbp.observe(loopy_model(), GRAPH, np.full(7, np.nan), mask=np.zeros(7, bool))
    none = kbp.run(loopy_model(), GRAPH, num_iters=2)
    masked = kbp.run(loopy_model(), GRAPH, evidence, num_iters=2)
    np.testing.assert_allclose(masked.messages, none.messages, rtol=1e-12, atol=1e-15)


def test_observe_names_what_is_wrong():
    wrong = []
    for y, mask, argument, rule in [
        (np.zeros(6), None, "y", r"must have shape \(7,\); got \(6,\)"),
        (np.zeros((7, 1)), None, "y", r"must have shape \(7,\); got \(7, 1\)"),
        (0.0, None, "y", r"must have shape \(7,\); got \(\)"),
        (np.where(np.arange(7) == 2, np.inf, 0), None, "y", "must be finite; got 1 NaN or infinite of 7"),
        (np.where(np.arange(7) == 2, np.nan, 0), [True] * 7, "y", "must be finite; got 1 NaN or infinite of 7"),
        (np.zeros((9, 7)), None, "y", r"must have shape \(7,\); got \(9, 7\). For a batch of cases, use jax.vmap"),
        (np.full(7, np.inf), [True] + 6 * [False], "y", "must be finite; got 1 NaN or infinite of 1"),
        (Y, [True] * 6, "mask", r"must be boolean, or 0 and 1, of shape \(7,\)"),
        (
            Y,
            np.ones((2, 7), bool),
            "mask",
            r"must be boolean, .*got bool\(2, 7\). .*For a batch of cases, use jax.vmap",
        ),
        (Y, np.ones(7), "mask", r"must be boolean, or 0 and 1, of shape \(7,\); got float64"),
        (Y, [2] * 7, "mask", r"must be boolean, or 0 and 1, of shape \(7,\); got int.* with \[2\]"),
    ]:
        wrong += complaints(f"{argument}: {rule}", kbp.observe, loopy_model(), GRAPH, y, mask=mask)
    assert not wrong


def test_a_model_without_observations():
    model = without_type(without_type(without_type(loopy_model(), 0), 1), 2)
    with pytest.raises(ValueError, match="^model: must have learned observations; got none. .*kbpjax.clamp"):
        kbp.observe(model, GRAPH, Y)


def test_a_graph_of_other_types():
    with pytest.raises(ValueError, match="^graph: must have node types among"):
        kbp.observe(loopy_model(), kbp.chain_graph(2, node_type=[0, 9]), np.zeros(2))


def test_vector_observations():
    random = np.random.default_rng(0)
    x = random.normal(size=12)
    y = np.stack([x, x**2], axis=1)
    data = kbp.TrainingData({}, {0: x}, {0: (x, y)})
    rule = kbp.ConstantTime(eps=0.1)
    model = kbp.fit(data, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.8), rule=rule, ridge=1e-3)
    evidence = kbp.observe(model, kbp.Graph.from_edges([], 3), y[:3])
    kernel, obs_kernel = reference.rbf(0.5), reference.rbf(0.8)
    landmarks, obs_landmarks = np.asarray(model.bases[0].landmarks), np.asarray(model.observations[0].basis.landmarks)
    operator = reference.conditional_operator(
        reference.gram_schmidt(kernel, landmarks, x), reference.gram_schmidt(obs_kernel, obs_landmarks, y), 1e-3
    )
    for node in range(3):
        observed = reference.gram_schmidt(obs_kernel, obs_landmarks, y[node : node + 1])[0]
        np.testing.assert_allclose(evidence.messages[0, node], reference.normalized(operator @ observed), atol=1e-9)
    with pytest.raises(ValueError, match=r"^y: must have shape \(3, 2\); got \(3,\)"):
        kbp.observe(model, kbp.Graph.from_edges([], 3), x[:3])


@pytest.mark.filterwarnings("ignore:y. 1 of 3 observations")
def test_an_observation_that_says_nothing_counts_as_missing():
    """Kernel values of an observation 1e6 bandwidths away are 0: as if it had not been made, not as if all were
    unlikely."""
    far = np.array(Y)
    far[2] = 1e6
    got = kbp.observe(loopy_model(), GRAPH, far)
    expected = kbp.observe(loopy_model(), GRAPH, Y, mask=np.arange(7) != 2)
    assert not bool(got.observed[0, 2])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_observations_by_type_equal_those_of_all_nodes():
    kinds = np.asarray(GRAPH.node_type)
    expected = kbp.observe(loopy_model(), GRAPH, Y)
    got = kbp.observe(loopy_model(), GRAPH, {v: np.asarray(Y)[kinds == v] for v in set(kinds.tolist())})
    np.testing.assert_array_equal(got.messages, expected.messages)
    only = kbp.observe(loopy_model(), GRAPH, {1: np.asarray(Y)[kinds == 1]})
    np.testing.assert_array_equal(only.observed[0], kinds == 1)
    np.testing.assert_array_equal(np.asarray(only.local)[kinds == 1], np.asarray(expected.local)[kinds == 1])
    assert np.all(np.asarray(only.local)[kinds != 1] == 1)


def test_two_node_types_with_observations_of_different_shape():
    random = np.random.default_rng(0)
    x = random.normal(size=40)
    plane = np.stack([x, x**2], axis=1)
    data = kbp.TrainingData({0: (x, x)}, {0: x, 1: x}, {0: (x, x), 1: (x, plane)}, ends={0: (0, 1)})
    model = kbp.fit(data, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), ridge=1e-3)
    graph = kbp.Graph.from_edges([(0, 1), (2, 1)], 3, node_type=[0, 1, 0])
    evidence = kbp.observe(model, graph, {0: [0.5, 0.5], 1: [[0.5, 0.25]]})
    assert np.all(evidence.observed)
    with pytest.raises(ValueError, match=r"^y: of node type 1 must have shape \(1, 2\); got \(2, 2\)"):
        kbp.observe(model, graph, {1: plane[:2]})
    with pytest.raises(ValueError, match=r"^y: must have node types among \[0, 1\] as keys; got \[7\]"):
        kbp.observe(model, graph, {7: x[:1]})


# --- likelihoods, clamps and products: what is refused ---------------------------------------------------------------

NUMBERS = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, node_type=[0, 0, 1])


@functools.cache
def numbers_and_vectors():
    """Type 0: numbers with observations, type 1: points of a plane without."""
    x = np.random.default_rng(0).normal(size=30)
    plane = np.stack([x, -x], axis=1)
    data = kbp.TrainingData({0: (x, x), 1: (x, plane)}, {0: x, 1: plane}, {0: (x, x)}, ends={0: (0, 0), 1: (0, 1)})
    return kbp.fit(data, kernel=kbp.RBF(0.8), obs_kernel=kbp.RBF(0.5), rule=kbp.ConstantTime(eps=0.05), ridge=1e-3)


def test_observations_by_key_of_a_type_without_any():
    model = numbers_and_vectors()
    with pytest.raises(ValueError, match=r"^y: must have node types among \[0\] as keys; got \[1\]. Leave them out"):
        kbp.observe(model, NUMBERS, {0: np.zeros(2), 1: np.zeros((1, 2))})
    with pytest.raises(ValueError, match=r"^y: of node type 0 must have shape \(2,\); got \(3,\)"):
        kbp.observe(model, NUMBERS, {0: np.zeros(3)})
    with pytest.raises(ValueError, match="^y: must be finite; got 1 NaN or infinite of 2"):
        kbp.observe(model, NUMBERS, {0: np.array([0.0, np.nan])}, mask=[True, True, True])
    seen = kbp.observe(model, NUMBERS, {0: np.array([0.0, np.nan])}, mask=[True, False, True])
    assert seen.observed[0].tolist() == [True, False, False]


def test_likelihood_names_what_is_wrong():
    wrong = []
    for fn, rule in [
        ({7: lambda x: x}, r"fn: must have node types among \[0, 1\] as keys; got \[7\]"),
        ({0: lambda x: x**2}, r"fn: must return values of shape \(2, \d+\); got \(\d+,\)"),
        ({0: lambda x: jnp.ones((3, len(x)))}, r"fn: must return values of shape \(2, \d+\); got \(3, \d+\)"),
        ({1: lambda x: jnp.ones((1, *x.shape))}, r"fn: must return values of shape \(1, \d+\); got \(1, \d+, 2\)"),
        ({0: lambda x: jnp.stack([x, x**2])}, r"fn: must return finite values >= 0; got -\d.*not their logarithms"),
        ({0: lambda x: jnp.full((2, len(x)), jnp.nan)}, "fn: must return finite values >= 0; got nan"),
        ({0: lambda x: jnp.full((2, len(x)), jnp.inf)}, "fn: must return finite values >= 0; got inf"),
        (
            {0: lambda x: jnp.stack([jnp.ones(len(x)), jnp.zeros(len(x))])},
            r"fn: must be > 0 at one of the model's evaluation points .*0 at all of them for nodes \[1\]",
        ),
        (lambda x: jnp.ones(len(x)), r"fn: must return values of shape \(3, \d+\); got \(\d+,\)"),
        (
            lambda x: jnp.ones((3, len(x), 1)),
            r"fn: must return values of shape \(3, \d+\); got \(3, \d+, 1\)",
        ),
        (lambda x: jnp.ones((2, len(x))), "fn: must return values of shape"),
        (lambda x: jnp.ones((1, len(x))), "fn: must return values of shape"),
        (lambda x: jnp.ones((4, len(x))), "fn: must return values of shape"),
    ]:
        wrong += complaints(rule, kbp.likelihood, numbers_and_vectors(), NUMBERS, fn)
    assert not wrong


def test_a_likelihood_that_is_wrong_only_at_the_candidates():
    """It is asked again where beliefs are, which the model's own points did not tell."""
    model = numbers_and_vectors()
    evidence = kbp.likelihood(model, NUMBERS, {0: lambda x: jnp.tile(10 - x, (2, 1))})
    solution = kbp.run(model, NUMBERS, evidence, num_iters=2)
    points = {0: np.array([0.0, 11.0]), 1: np.zeros((1, 2))}
    with pytest.raises(ValueError, match=r"^fn: must return finite values >= 0; got -1\.0"):
        kbp.beliefs(model, NUMBERS, evidence, solution, points)


def test_clamp_names_what_is_wrong():
    wrong = []
    for nodes, values, rule in [
        ([3], [0.0], r"nodes: must be different nodes among 0 .. 2; got \[3\]"),
        ([-1], [0.0], r"nodes: must be different nodes among 0 .. 2; got \[-1\]"),
        ([1, 1], [0.0, 0.5], r"nodes: must be different nodes among 0 .. 2; got \[1, 1\]. Name each node once"),
        ([0.0], [0.0], "nodes: must be integers"),
        ([True], [0.0], "nodes: must be integers"),
        (0, 0.0, "nodes: must be integers"),
        ([[0]], [0.0], "nodes: must be integers"),
        ([0, 1], [0.0], r"values: must hold a value for each of the 2 nodes; got shape \(1,\)"),
        ([0], 0.0, r"values: must hold a value for each of the 1 nodes; got shape \(\)"),
        ([0], [[0.0, 1.0]], r"values: must have shape \[some, \*\(\)\], as the variables of node type 0; got shape"),
        ([2], [0.0], r"values: must have shape \[some, \*\(2,\)\], as the variables of node type 1; got shape \(1,\)"),
        ([0, 2], [0.0, 1.0], "values: must have shape .*of other types in a separate call, and multiply"),
        ([0, 1], [0.0, np.nan], "values: must be finite; got 1 NaN or infinite of 2"),
        ([0], [np.inf], "values: must be finite; got 1 NaN or infinite of 1"),
        ([0], ["0"], "values: must hold real numbers"),
    ]:
        wrong += complaints(rule, kbp.clamp, numbers_and_vectors(), NUMBERS, nodes, values)
    assert not wrong


def test_a_clamp_in_a_gap_is_the_nearest_sample_and_one_beyond_all_says_nothing():
    rng = np.random.default_rng(0)
    ends = np.where(rng.random((80, 1)) < 0.5, -1, 1) + 0.05 * rng.normal(size=(80, 2))
    graph = kbp.chain_graph(2)
    model = kbp.fit(kbp.pool(graph, ends, ends), kernel=kbp.RBF(0.05), obs_kernel=kbp.RBF(0.05))
    at = float(np.max(ends[ends < 0]))
    means = []
    for value in (at, -0.6):  # between the two groups, and far from both
        posterior = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0], [value]))
        seen = kbp.infer(model, graph, np.array([value, np.nan]))
        assert float(kbp.mean(seen)[1]) < -0.9
        means.append(float(kbp.mean(posterior)[1]))
    assert means[1] == pytest.approx(means[0], abs=0.05)
    assert means[1] < -0.9
    prior = float(kbp.mean(kbp.infer(model, graph))[1])
    with pytest.warns(kbp.EvidenceWarning, match="say nothing about other nodes"):
        far = kbp.clamp(model, graph, [0], [40.0])
    with pytest.warns(kbp.EvidenceWarning, match="have no effect"):
        unseen = kbp.infer(model, graph, np.array([40.0, np.nan]))
    assert float(kbp.mean(kbp.infer(model, graph, evidence=far))[1]) == pytest.approx(prior, abs=0.05)
    assert float(kbp.mean(unseen)[1]) == pytest.approx(prior, abs=0.05)


def test_a_clamp_changes_only_its_own_nodes():
    model = numbers_and_vectors()
    evidence = kbp.clamp(model, NUMBERS, [2], [[0.5, -0.5]]) * kbp.clamp(model, NUMBERS, [1], [0.25])
    assert evidence.clamped.tolist() == [False, True, True]
    assert (np.asarray(evidence.local[0]) == 1).all()
    points = np.asarray(model.points[0])
    kernel = np.exp(-((points - 0.25) ** 2) / (2 * 0.8**2))
    np.testing.assert_allclose(evidence.local[1, : len(points)], kernel, atol=0.01)  # up to eps^2
    plane = np.asarray(model.points[1])
    kernel = np.exp(-np.sum((plane - [0.5, -0.5]) ** 2, axis=1) / (2 * 0.8**2))
    np.testing.assert_allclose(evidence.local[2, : len(plane)], kernel, atol=0.01)


def test_evidence_that_does_not_combine():
    model, clamped = numbers_and_vectors(), kbp.clamp(numbers_and_vectors(), NUMBERS, [0, 1], [0.0, 0.5])
    with pytest.raises(ValueError, match=r"^evidence: must clamp each node once; got nodes \[1\] twice. Drop one"):
        clamped * kbp.clamp(model, NUMBERS, [1], [0.5])
    other = kbp.clamp(model, kbp.chain_graph(4), [3], [0.0])
    with pytest.raises(ValueError, match="^evidence: must be of one model and graph"):
        clamped * other
    elsewhere = kbp.clamp(loopy_model(), GRAPH, [0], [0.0])
    with pytest.raises(ValueError, match="^evidence: must be of one model and graph"):
        clamped * elsewhere
    with pytest.raises(TypeError, match="unsupported operand"):
        clamped * 2.0
    for solve in (lambda e: kbp.run(model, NUMBERS, e), lambda e: kbp.run_tree(model, NUMBERS, e)):
        with pytest.raises(ValueError, match=r"^evidence: local factors must have shape \(3, \d+\); got \(4, \d+\)"):
            solve(other)


def test_whole_numbers_and_floats_as_values_of_one_type():
    model = numbers_and_vectors()
    evidence = kbp.clamp(model, NUMBERS, [0], [1]) * kbp.clamp(model, NUMBERS, [1], [0.5])
    assert evidence.values[0][1].tolist() == [1.0, 0.5]


def test_a_form_that_is_none():
    for ask in (
        lambda form: inspect.unwrap(kbp.observe)(numbers_and_vectors(), NUMBERS, {0: np.zeros(2)}, evidence_model=form),
        lambda form: inspect.unwrap(kbp.clamp)(numbers_and_vectors(), NUMBERS, [0], [0.0], evidence_model=form),
    ):  # past the type checks of these tests
        with pytest.raises(ValueError, match="^evidence_model: must be an evidence model; got 'ratio'. Pass kbpjax.E"):
            ask("ratio")
    with pytest.raises(ValueError, match="^fn: must be a function of points; got 3. Pass fn"):
        inspect.unwrap(kbp.likelihood)(numbers_and_vectors(), NUMBERS, 3)


def test_a_power_of_a_likelihood_of_whole_numbers_is_that_of_floats():
    model = loopy_model()

    def counts(kind):
        def of_points(x):
            return jnp.broadcast_to(1 + (x > 0).astype(kind), (GRAPH.num_nodes, len(x)))

        return kbp.likelihood(model, GRAPH, of_points)

    whole, floats = (counts(kind) ** 0.5 for kind in (np.int64, np.float64))
    np.testing.assert_allclose(whole.local, floats.local, atol=1e-12)
    for one in (whole, floats):
        (raised,) = (fn(jnp.array([-1.0, 1.0])) for known in one.likelihoods for fn in list(known.values())[:1])
        np.testing.assert_allclose(raised[0], [1, 2**0.5], rtol=1e-12)


def test_a_likelihood_with_arrays_leaves_a_compiled_function():
    """As a `Partial`: its arrays are leaves of the evidence, so nothing leaks."""
    graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))

    def near(y, points):
        return jnp.exp(-((y[:, None] - points[None]) ** 2))

    y, candidates = jnp.array([0.5, 0.1, -0.5]), np.linspace(-1, 1, 5)
    expected = kbp.likelihood(model, graph, lambda points: near(y, points))
    solution = kbp.run(model, graph, expected)
    wanted = kbp.beliefs(model, graph, expected, solution, candidates).weights
    for form in (lambda y: Partial(near, y), lambda y: {0: Partial(near, y)}):
        evidence = jax.jit(lambda y, form=form: kbp.likelihood(model, graph, form(y)))(y)
        got = kbp.beliefs(model, graph, evidence, solution, candidates).weights
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_floats_clamp_states_beside_numbers():
    """One list of values for nodes of two types, one of numbers and one of integer states: none is left out."""
    rng = np.random.default_rng(0)
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    x = {0: rng.normal(size=(60, 1)), 1: rng.integers(0, 3, (60, 1))}
    model = kbp.fit(kbp.pool(graph, x), kernel={0: kbp.RBF(0.5), 1: kbp.RBF(0.5)}, ridge=1e-3)
    got = kbp.clamp(model, graph, [0, 1], [0.5, 2.0])
    by_type = kbp.clamp(model, graph, [0, 1], {0: [0.5], 1: [2]})
    np.testing.assert_allclose(got.local, by_type.local, rtol=1e-6)
    assert sorted(got.values) == [0, 1] and all(mask.all() for mask, _ in got.values.values())
