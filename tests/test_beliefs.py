import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import features
from kbpjax.posterior.beliefs import raise_logs
from tests import reference
from tests.loopy import GRAPH, TWIN_GRAPH, Y, loopy_model, twin_model
from tests.refusals import complaints

POINTS = np.linspace(-1.5, 1.5, 9)


@functools.cache
def solved(with_evidence):
    evidence = kbp.observe(loopy_model(), GRAPH, Y) if with_evidence else None
    return evidence, kbp.run(loopy_model(), GRAPH, evidence, num_iters=3, damping=0.2)


@functools.cache
def twin_solved(with_evidence):
    evidence = reference.observe(twin_model(), TWIN_GRAPH, Y, [True] * 7) if with_evidence else {}
    return evidence, reference.run(twin_model(), TWIN_GRAPH, evidence, 3, 0.2)


def twin_beliefs(with_evidence, points, node):
    return reference.beliefs(twin_model(), TWIN_GRAPH, *twin_solved(with_evidence), points, node)


@pytest.mark.parametrize("with_evidence", [True, False])
def test_beliefs_equal_twin(with_evidence):
    belief = kbp.beliefs(loopy_model(), GRAPH, *solved(with_evidence), POINTS)
    assert belief.weights.shape == (7, 9)
    np.testing.assert_array_equal(belief.points, POINTS)
    for node in range(7):
        np.testing.assert_allclose(belief.weights[node], twin_beliefs(with_evidence, POINTS, node), atol=1e-8)
    np.testing.assert_allclose(belief.weights.sum(axis=1), 1, rtol=1e-14)


def test_belief_of_a_hub_is_the_product_of_all_its_messages():
    """Messages to a node of many neighbors stand in several rows."""
    graph = kbp.Graph.from_edges([(3, i) for i in range(40) if i != 3], 40)
    x = np.random.default_rng(0).normal(size=(12, 1)) + 0.3 * np.random.default_rng(1).normal(size=(12, 40))
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.7))
    evidence = kbp.clamp(model, graph, np.arange(4, 40), 0.2 + 0.01 * np.arange(36))
    solution = kbp.run(model, graph, evidence, num_iters=2)
    assert len(graph.inboxes[0][0]) > 40
    belief = kbp.beliefs(model, graph, evidence, solution, POINTS)
    to_hub = np.asarray(solution.messages)[np.asarray(graph.receivers) == 3]
    values = to_hub @ np.asarray(jax.jit(features)(model.bases[0], POINTS)).T
    logs = np.log(np.maximum(values, model.floor_of(0))).sum(axis=0)
    logs += np.log(jax.jit(lambda: kbp.MeanEmbedding().density(model, 0, jnp.asarray(POINTS)))())
    expected = np.exp(logs - logs.max())
    np.testing.assert_allclose(belief.weights[3], expected / expected.sum(), atol=1e-9)


def test_belief_of_a_clamped_node_is_the_nearest_candidate_also_where_features_differ_in_length():
    x = np.linspace(-2, 2, 30).reshape(15, 2)
    graph = kbp.chain_graph(2)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.kernels.Polynomial(1))
    evidence = kbp.clamp(model, graph, [0], [1.0])
    solution = kbp.run_tree(model, graph, evidence)
    belief = kbp.beliefs(model, graph, evidence, solution, np.array([0.0, 0.5, 0.9, 1.6, 2.0]))
    assert belief.weights[0].tolist() == [0, 0, 1, 0, 0]


def test_a_power_of_nothing_is_nothing_and_has_no_slope():
    logs = jnp.array([-jnp.inf, -2.0])
    assert jax.jit(raise_logs)(logs, 0.5).tolist() == [-np.inf, -1.0]
    slope = jax.jit(jax.grad(lambda power: jnp.exp(raise_logs(logs, power)).sum()))(0.5)
    np.testing.assert_allclose(slope, -2 * np.exp(-1.0), rtol=1e-12)


def test_points_by_type():
    points = {2: POINTS[:4], 0: POINTS, 1: POINTS[::-1][:6]}
    result = kbp.beliefs(loopy_model(), GRAPH, *solved(True), points)
    assert sorted(result) == [0, 1, 2]
    for v, belief in result.items():
        np.testing.assert_array_equal(belief.points, points[v])
        nodes = TWIN_GRAPH.nodes_of_type(v)
        assert belief.weights.shape == (len(nodes), len(points[v]))
        for row, node in zip(belief.weights, nodes):
            np.testing.assert_allclose(row, twin_beliefs(True, points[v], node), atol=1e-8)


def test_beliefs_inside_jit_and_of_lists():
    evidence, solution = solved(True)
    expected = kbp.beliefs(loopy_model(), GRAPH, evidence, solution, POINTS).weights
    listed = kbp.beliefs(loopy_model(), GRAPH, evidence, solution, POINTS.tolist()).weights
    inside = jax.jit(lambda points: kbp.beliefs(loopy_model(), GRAPH, evidence, solution, points).weights)(POINTS)
    np.testing.assert_allclose(listed, expected, rtol=1e-12)
    np.testing.assert_allclose(inside, expected, rtol=1e-9)


def test_one_candidate_has_all_the_belief():
    assert kbp.beliefs(loopy_model(), GRAPH, *solved(True), [0.3]).weights.tolist() == [[1.0]] * 7


def test_far_candidates_have_no_nan():
    belief = kbp.beliefs(loopy_model(), GRAPH, *solved(True), np.array([0.0, 1e6, -1e6]))
    assert np.isfinite(belief.weights).all() and (belief.weights[:, 0] > 0.99).all()
    with pytest.raises(ValueError, match=r"^points: must lie near the training samples"):
        kbp.beliefs(loopy_model(), GRAPH, *solved(True), np.array([1e6, -1e6]))


@functools.cache
def two_domains():
    """Numbers of type 0 joined to vectors of type 1: y = (x, -x) and a little noise."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, size=60)
    vectors = np.stack([x, -x], axis=1) + 0.05 * random.normal(size=(60, 2))
    data = kbp.TrainingData({0: (x, vectors)}, {0: x, 1: vectors}, {0: (x, x)}, ends={0: (0, 1)})
    rule = kbp.ConstantTime(eps=0.05)
    return kbp.fit(data, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.3), rule=rule, ridge=1e-4)


@pytest.mark.slow
def test_types_on_different_domains():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, node_type=[0, 1, 0])
    learned = two_domains()
    evidence = kbp.observe(learned, graph, np.array([0.6, np.nan, 0.7]), mask=[True, False, True])
    solution = kbp.run(learned, graph, evidence, num_iters=5)
    line = np.linspace(-1, 1, 9)
    plane = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    result = kbp.beliefs(learned, graph, evidence, solution, {0: line, 1: plane})
    assert result[0].weights.shape == (2, 9) and result[1].weights.shape == (1, 81)
    assert kbp.mean(result[1]).shape == kbp.mode(result[1]).shape == (1, 2)
    np.testing.assert_allclose(kbp.mean(result[1])[0], [0.65, -0.65], atol=0.25)
    np.testing.assert_allclose(kbp.mean(result[0]), [0.65, 0.65], atol=0.25)
    with pytest.raises(ValueError, match="^points: must have shape"):
        kbp.beliefs(learned, graph, evidence, solution, line)
    with pytest.raises(ValueError, match="^points: must have shape"):
        kbp.beliefs(learned, graph, evidence, solution, {0: plane, 1: plane})


def test_beliefs_name_what_is_wrong_with_points():
    wrong = []
    for points, rule in [
        (np.zeros((3, 1)), "must have shape"),
        (np.zeros(0), "must have shape"),
        (0.0, "must have shape"),
        ([0.0, np.nan], "must be finite; got 1 NaN or infinite of 2"),
        ([0.0, np.inf], "must be finite; got 1 NaN or infinite of 2"),
        ({0: POINTS, 1: POINTS}, r"must have an entry .*\[0, 1, 2\]; got none for \[2\]"),
        ({}, r"must have an entry .* none for \[0, 1, 2\]"),
        ({0: POINTS, 1: POINTS, 2: np.zeros(0)}, "must have shape"),
    ]:
        wrong += complaints(f"points: {rule}", kbp.beliefs, loopy_model(), GRAPH, *solved(False), points)
    assert not wrong


def test_a_solution_of_another_graph():
    small = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    for graph, other in ((GRAPH, small), (small, GRAPH)):
        solution = kbp.run(loopy_model(), other, num_iters=1)
        with pytest.raises(ValueError, match=rf"^solution: messages must be \({graph.num_edges}, "):
            kbp.beliefs(loopy_model(), graph, None, solution, POINTS)


def test_evidence_of_another_graph():
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    with pytest.raises(ValueError, match="^evidence: "):
        kbp.beliefs(loopy_model(), GRAPH, kbp.observe(loopy_model(), graph, np.zeros(2)), solved(False)[1], POINTS)


# --- answers on hand-made weights -----------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
WEIGHTS = np.stack(
    [
        np.full(8, 1 / 8),
        np.eye(8)[3],
        np.eye(8)[0] / 4 + np.eye(8)[7] * 3 / 4,
        RANDOM.dirichlet(np.ones(8)),
        RANDOM.dirichlet(0.1 * np.ones(8)),
    ]
)
DOMAINS = {
    "sorted": np.linspace(-2, 5, 8),
    "unsorted": RANDOM.permutation(np.linspace(-2, 5, 8)),
    "bytes": np.array([0, 3, 10, 20, 100, 200, 250, 255], np.uint8),
    "column": RANDOM.normal(size=(8, 1)),
    "vectors": RANDOM.normal(size=(8, 3)),
    "large": 1e6 + np.arange(8.0),
    "small": 1e-6 * RANDOM.normal(size=8),
}
SCALARS = [name for name in DOMAINS if name != "vectors"]
quantiles = jax.jit(jax.vmap(kbp.quantile, (None, 0)))


def belief_on(name):
    return kbp.Belief(jnp.asarray(DOMAINS[name]), jnp.asarray(WEIGHTS))


@pytest.mark.parametrize("name", DOMAINS)
def test_mode_mean_and_variance(name):
    belief, points = belief_on(name), DOMAINS[name]
    spread = np.ptp(points.astype(float))
    mode, mean, variance = jax.jit(lambda belief: (kbp.mode(belief), kbp.mean(belief), kbp.variance(belief)))(belief)
    np.testing.assert_array_equal(mode, reference.mode(points, WEIGHTS))
    assert mode.dtype == points.dtype
    assert mean.shape == variance.shape == (5, *points.shape[1:])
    np.testing.assert_allclose(mean, reference.mean(points, WEIGHTS), rtol=1e-13, atol=1e-14 * spread)
    centered = points.astype(float) - points.astype(float).mean(axis=0)  # the twin's E[X^2] - E[X]^2 cancels
    np.testing.assert_allclose(variance, reference.variance(centered, WEIGHTS), rtol=1e-9, atol=1e-9 * spread**2)
    for i, row in enumerate(WEIGHTS):
        expected = np.average(points.astype(float), axis=0, weights=row)
        np.testing.assert_allclose(np.asarray(mean)[i], expected, rtol=1e-12, atol=1e-13 * spread)
        if points.ndim == 1 or points.shape[1] == 1:
            expected = np.cov(centered.ravel(), aweights=row, ddof=0)
            np.testing.assert_allclose(
                np.asarray(variance)[i], expected.reshape(points.shape[1:]), atol=1e-9 * spread**2
            )
    assert (np.asarray(variance) >= 0).all()


def test_the_mode_of_equal_weights_is_the_first():
    belief = kbp.Belief(jnp.array([3.0, 1.0, 2.0]), jnp.array([[0.4, 0.4, 0.2]]))
    assert kbp.mode(belief).tolist() == [3.0]


@pytest.mark.parametrize("name", SCALARS)
def test_quantile_equals_twin_and_numpy(name):
    belief, points = belief_on(name), DOMAINS[name]
    levels = np.array([0.0, 0.1, 0.25, 0.33, 0.5, 0.75, 0.99, 1.0])
    results = np.asarray(quantiles(belief, levels))
    assert results.dtype == points.dtype and results.shape == (8, 5, *points.shape[1:])
    for level, result in zip(levels, results.reshape(8, 5), strict=True):
        if name != "bytes":
            expected = [reference.interpolated_quantile(points.ravel(), row, level) for row in WEIGHTS]
            np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12 * np.ptp(points))
            continue
        np.testing.assert_array_equal(result, reference.quantile(points.ravel().tolist(), WEIGHTS, level))
        if 0 < level < 1:  # at 0 NumPy skips points of weight 0
            expected = [np.quantile(points.ravel(), level, method="inverted_cdf", weights=row) for row in WEIGHTS]
            np.testing.assert_array_equal(result, expected)


def test_quantile_at_the_ends():
    weights = jnp.array([[0.5, 0.0, 0.5, 0.0]])
    belief = kbp.Belief(jnp.array([2, 0, 1, 3]), weights)
    levels = np.array([0.0, 1e-9, 0.5, 0.5000001, 1.0])
    assert quantiles(belief, levels)[:, 0].tolist() == [0, 1, 1, 2, 2]
    assert kbp.quantile(belief, 0).tolist() == [0] and kbp.quantile(belief, 1).tolist() == [2]
    belief = kbp.Belief(jnp.array([2.0, 0.0, 1.0, 3.0]), weights)
    got = quantiles(belief, np.array([0.0, 0.125, 0.25, 0.5, 0.875, 1.0]))[:, 0]
    np.testing.assert_allclose(got, [0, 0.5, 1, 1.5, 2.5, 3], rtol=1e-14)
    one = kbp.Belief(jnp.array([2.0]), jnp.array([[1.0]]))
    assert quantiles(one, np.array([0.0, 0.3, 0.5, 1.0])).tolist() == [[2.0]] * 4


def test_quantiles_of_many_points_are_those_of_the_density():
    points = np.linspace(-8, 8, 1001)
    belief = kbp.Belief(jnp.asarray(points), jax.nn.softmax(-((jnp.asarray(points) - 0.3) ** 2) / 2)[None])
    low, high = kbp.interval(belief, 0.9)
    np.testing.assert_allclose([low[0], high[0]], [0.3 - 1.6448536, 0.3 + 1.6448536], atol=2e-4)


def test_gradients_of_interval_equal_differences():
    points, logits = jnp.asarray(RANDOM.normal(size=6)), jnp.asarray(RANDOM.normal(size=(2, 6)))

    @jax.jit
    def ends(points, logits, coverage):
        low, high = kbp.interval(kbp.Belief(points, jax.nn.softmax(logits, axis=-1)), coverage)
        return jnp.concatenate([low, high])

    jax.test_util.check_grads(ends, (points, logits, 0.4), order=1, modes=("fwd", "rev"), rtol=1e-6)
    assert (np.abs(jax.jit(jax.jacobian(ends, 1))(points, logits, 0.4)).sum(axis=(1, 2)) > 0.1).all()


def test_the_gradient_at_the_median_of_a_symmetric_belief():
    def median(weight):
        return kbp.quantile(kbp.Belief(jnp.arange(3.0), jnp.stack([weight, 1 - 2 * weight, weight])[None]), 0.5)[0]

    def shifted(weight):  # F reaches 0.5 exactly at the middle point: derivatives of both sides agree
        return kbp.quantile(kbp.Belief(jnp.arange(3.0), jnp.stack([weight, 0.5, 0.5 - weight])[None]), 0.5)[0]

    assert jax.grad(median)(0.25) == 0
    step = 1e-6
    np.testing.assert_allclose(
        jax.grad(shifted)(0.25), (shifted(0.25 + step) - shifted(0.25 - step)) / (2 * step), rtol=1e-5
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_level_one_is_reached_despite_rounding(dtype):
    weights = np.full((1, 1000), 1 / 1000, dtype)
    belief = kbp.Belief(jnp.arange(1000.0), jnp.asarray(weights))
    half, last = np.asarray(quantiles(belief, np.array([0.5, 1.0])))[:, 0]
    assert last >= 990 and abs(half - 499) <= 1


def test_quantile_of_a_traced_level():
    belief = belief_on("unsorted")
    levels = np.array([0.1, 0.5, 0.9])
    for level, row in zip(levels, np.asarray(quantiles(belief, levels)), strict=True):
        np.testing.assert_array_equal(row, kbp.quantile(belief, level))


@pytest.mark.parametrize("name", ["unsorted", "column", "bytes"])
def test_interval(name):
    belief, points = belief_on(name), DOMAINS[name]
    for coverage in (0, 0.5, 0.8, 1):
        lower, upper = (np.asarray(end) for end in kbp.interval(belief, coverage))
        np.testing.assert_array_equal(lower, kbp.quantile(belief, (1 - coverage) / 2))
        np.testing.assert_array_equal(upper, kbp.quantile(belief, (1 + coverage) / 2))
        inside = (points.reshape(1, -1) >= lower.reshape(-1, 1)) & (points.reshape(1, -1) <= upper.reshape(-1, 1))
        if name == "bytes":
            assert (np.sum(WEIGHTS * inside, axis=1) >= coverage - 1e-12).all()


def test_the_usual_interval_covers_nine_tenths():
    belief = belief_on("sorted")
    for usual, expected in zip(kbp.interval(belief), kbp.interval(belief, 0.9)):
        np.testing.assert_array_equal(usual, expected)


@pytest.mark.parametrize("level", [-0.1, 1.1, float("nan"), float("inf"), 2])
def test_levels_must_be_probabilities(level):
    with pytest.raises(ValueError, match="^level: must be"):
        kbp.quantile(belief_on("sorted"), level)
    with pytest.raises(ValueError, match="^coverage: must be"):
        kbp.interval(belief_on("sorted"), level)


def test_quantiles_need_scalar_points():
    with pytest.raises(ValueError, match=r"^belief: must have scalar points; got points of shape \(8, 3\)"):
        kbp.quantile(belief_on("vectors"), 0.5)
    with pytest.raises(ValueError, match="^belief: must have scalar points"):
        kbp.interval(belief_on("vectors"))


def test_a_batch_of_beliefs_is_refused_outside_of_vmap():
    batch = jax.vmap(lambda weights: kbp.Belief(jnp.zeros(3), weights))(jnp.full((5, 2, 3), 1 / 3))
    for ask in (kbp.mode, kbp.mean, kbp.variance, kbp.interval):
        with pytest.raises(ValueError, match=r"^belief: must have weights \[node, 5\]; got \(5, 2, 3\)"):
            ask(batch)
    assert jax.jit(jax.vmap(kbp.mode))(batch).shape == (5, 2)


def test_a_belief_that_is_nan_has_no_finite_answer():
    belief = jax.jit(kbp.Belief)(jnp.array([1.0, 2.0]), jnp.array([[jnp.nan, jnp.nan], [0.0, 1.0]]))
    for ask in (kbp.mode, kbp.mean, lambda belief: kbp.quantile(belief, 0.5)):
        np.testing.assert_array_equal(ask(belief), [np.nan, 2.0])
    np.testing.assert_array_equal(kbp.circular_interval(belief)[0], [np.nan, 1.1])
    np.testing.assert_allclose(kbp.circular_mean(belief), [np.nan, 2.0])
    np.testing.assert_array_equal(kbp.std(belief), [np.nan, 0.0])
    assert kbp.highest_density(belief).tolist() == [[False, False], [False, True]]


# --- beliefs of edges, and what is refused ---------------------------------------------------------------------------


def interactions(table):
    """Return the log odds of all pairs of rows and columns, relative to the first."""
    logs = np.log(table)
    return logs - logs[:1] - logs[:, :1] + logs[:1, :1]


def test_edge_beliefs_have_the_interactions_of_the_operators_and_the_margins_of_the_nodes():
    model, (evidence, solution) = loopy_model(), solved(True)
    points = {v: np.linspace(-0.8, 0.8, 4 + v) for v in model.bases}
    posterior = kbp.Posterior.of(model, GRAPH, evidence, solution, points)
    phi = {v: np.asarray(model.bases[v](jnp.asarray(x))) for v, x in points.items()}

    def ratio(row, sender, receiver):
        """Return the message to each point of the receiver of a point mass, relative to P*, at each of the sender."""
        (rank, count), rows = model.ranks[sender], model.ranks[receiver][0]
        moment = np.asarray(model.moments[sender]) + float(model.ridges[sender]) * np.eye(rank)
        at_points = np.asarray(model.operators.evaluate[sender, :count, :rank]) @ np.linalg.solve(moment, phi[sender].T)
        return phi[receiver] @ np.asarray(model.operators.project[row, :rows, :count]) @ at_points

    for k, v, w in model.edge_types:
        own = [(a, b) for kind, a, b in TWIN_GRAPH.oriented() if kind == k][::-1]
        got = np.asarray(kbp.edge_beliefs(posterior, own).weights)
        back = np.asarray(kbp.edge_beliefs(posterior, [(b, a) for a, b in own]).weights)
        np.testing.assert_allclose(back, got.transpose(0, 2, 1), atol=1e-12)
        both = (ratio(2 * k, v, w).T + ratio(2 * k + 1, w, v)) / 2
        both = np.maximum(both, float(model.floor_of(v) * model.floor_of(w)) * both.max())
        for (a, b), table in zip(own, got, strict=True):
            np.testing.assert_allclose(interactions(table), interactions(both), atol=1e-5)
            for node, margin in ((a, table.sum(1)), (b, table.sum(0))):
                v_of = int(GRAPH.node_type[node])
                place = np.asarray(GRAPH.nodes_of_type(v_of)).tolist().index(node)
                np.testing.assert_allclose(margin, posterior[v_of].weights[place], atol=1e-9)


def test_edge_beliefs_name_what_is_wrong_with_edges():
    wrong = []
    for edges, rule in [
        (
            [(0, 1), (1, 2)],
            r"must be of one \(edge type, first node type, second node type\); got .*Call edge_beliefs once",
        ),
        ([(0, 1), (4, 3)], r"must be of one \(edge type, first .*; got \[\(0, 0, 1\), \(0, 1, 0\)\]"),
        ([(0, 1), (0, 6)], r"must be edges of the graph; got \[\[0, 6\]\]"),
        ([(0, 0)], r"must be edges of the graph; got \[\[0, 0\]\]"),
        ([(0, 7)], r"must be edges of the graph; got \[\[0, 7\]\]"),
        ([(1, -7)], r"must be edges of the graph; got \[\[1, -7\]\]"),
        (np.zeros((0, 2), int), r"must be integers \[some, 2\]; got shape \(0, 2\)"),
        ([], r"must be integers \[some, 2\]"),
        ([(0.0, 1.0)], r"must be integers \[some, 2\]; got shape \(1, 2\), float64"),
        ([0], r"must be integers \[some, 2\]; got shape \(1,\)"),
        ([(0, 1, 2)], r"must be integers \[some, 2\]; got shape \(1, 3\)"),
        (0, r"must be integers \[some, 2\]; got shape \(\)"),
    ]:
        posterior = kbp.Posterior.of(loopy_model(), GRAPH, *solved(True), POINTS)
        wrong += complaints(f"edges: {rule}", kbp.edge_beliefs, posterior, edges)
    assert not wrong


def test_edge_beliefs_name_what_else_is_wrong():
    evidence, solution = solved(True)
    small = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    for points in (np.zeros((2, 1)), [np.nan], {0: POINTS}):
        with pytest.raises(ValueError, match="^points: must"):
            kbp.edge_beliefs(kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution, points), [(0, 1)])
    with pytest.raises(ValueError, match=r"^solution: messages must be \(14, "):
        kbp.edge_beliefs(
            kbp.Posterior.of(loopy_model(), GRAPH, None, kbp.run(loopy_model(), small, num_iters=1), POINTS), [(0, 1)]
        )
    with pytest.raises(ValueError, match="^evidence: messages must have shape"):
        kbp.edge_beliefs(
            kbp.Posterior.of(loopy_model(), GRAPH, kbp.observe(loopy_model(), small, np.zeros(2)), solution, POINTS),
            [(0, 1)],
        )
    with pytest.raises(ValueError, match="^edges: must be known; got a tracer"):
        jax.jit(
            lambda e: kbp.edge_beliefs(kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution, POINTS), e).weights
        )(jnp.array([[0, 1]]))


def test_edge_beliefs_inside_jit():
    evidence, solution = solved(True)

    def weights(solution, points):
        return kbp.edge_beliefs(
            kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution, points), [(1, 0), (4, 3)]
        ).weights

    expected = weights(solution, POINTS)
    np.testing.assert_allclose(jax.jit(weights)(solution, jnp.asarray(POINTS)), expected, rtol=1e-9)


@pytest.mark.parametrize("exponent", [None, 0.7])
@pytest.mark.slow
def test_edge_beliefs_of_a_graph_that_is_an_argument(exponent):
    """A hub of 12 neighbors, two edge types that alternate, a cycle, a clamp and a likelihood."""
    rng = np.random.default_rng(0)
    pairs = np.array([*((3, s) for s in range(13) if s != 3), (0, 1), (5, 4)])
    graph = kbp.Graph.from_edges(pairs, 14, edge_type=np.arange(14) % 2)  # node 13 has no edge
    x = rng.normal(size=(30, 1)) + 0.5 * rng.normal(size=(30, 14))
    model = kbp.fit(kbp.pool(graph, x, x), kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(1.0), rule=kbp.ConstantTime(1e-2, 6))
    evidence = kbp.observe(model, graph, x[0], mask=np.arange(14) % 3 == 0) * kbp.clamp(model, graph, [4], [0.2])
    evidence = evidence * kbp.likelihood(
        model, graph, lambda points: jnp.exp(-points[None] * jnp.linspace(0, 1.5, 14)[:, None])
    )
    solution = kbp.run(model, graph, evidence, num_iters=4, exponents=exponent)

    @functools.partial(jax.jit, static_argnums=3)
    def weights(graph, evidence, solution, edges):
        return kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution, POINTS), edges).weights

    of_type = [tuple(map(tuple, pairs[k::2].tolist())) for k in (0, 1)]
    expected = [
        kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution, POINTS), own).weights for own in of_type
    ]
    mixed = sum(of_type, ())  # pairs of both types, which only a traced graph admits: types are not known there
    got = weights(graph, evidence, solution, mixed)
    np.testing.assert_allclose(got, np.concatenate(expected), rtol=1e-7, atol=1e-12)
    back = weights(graph, evidence, solution, tuple((b, a) for a, b in mixed))
    np.testing.assert_allclose(back, np.asarray(got).transpose(0, 2, 1), rtol=1e-7, atol=1e-12)
    absent = np.asarray(weights(graph, evidence, solution, ((3, 0), (0, 2), (0, 13), (5, 5))))
    np.testing.assert_allclose(absent[0], got[0], rtol=1e-7)
    assert np.isnan(absent[1:]).all()
    other = kbp.Graph.from_edges(pairs[:, ::-1], 14, edge_type=np.arange(14) % 2)  # the same shapes: the same program
    weights(other, evidence, solution, mixed)
    assert weights._cache_size() == 3


def test_edge_beliefs_of_a_traced_graph_need_one_node_type_at_edges():
    evidence, solution = solved(True)
    rule = r"^graph: must have edges of one node type if it is traced; got \[0, 1, 2\]. Build the graph outside jax.jit"
    with pytest.raises(ValueError, match=rule):
        jax.jit(
            lambda g: kbp.edge_beliefs(kbp.Posterior.of(loopy_model(), g, evidence, solution, POINTS), [(0, 1)]).weights
        )(GRAPH)


@functools.cache
def certain():
    """A chain of two equal bits with floor 0, one end seen: a belief can be zero everywhere."""
    x = np.stack([np.arange(20) % 2] * 2, axis=1)
    model = kbp.fit(kbp.pool(kbp.chain_graph(2), x, x), kernel=kbp.Delta(), obs_kernel=kbp.Delta(), ridge=0, floor=0)
    return model, kbp.chain_graph(2)


def test_a_belief_that_is_zero_everywhere():
    model, graph = certain()
    evidence = kbp.observe(model, graph, np.array([1, 1]), mask=[True, False])
    solution = kbp.run_tree(model, graph, evidence)

    def weights(points):
        return kbp.beliefs(model, graph, evidence, solution, points).weights

    np.testing.assert_array_equal(weights(np.array([0, 1])), [[0, 1], [0, 1]])
    rule = r"^nodes: must have a belief > 0 at one point at least; got 0 everywhere for \[0, 1\]. Add candidate points"
    with pytest.raises(ValueError, match=rule):
        weights(np.array([0]))
    assert np.isnan(jax.jit(weights)(np.array([0, 0]))).all()
    with pytest.raises(ValueError, match=rule):
        kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution), [(0, 1)], np.array([0]))


def test_contradicting_evidence_names_only_the_nodes_it_makes_impossible():
    model, _ = certain()
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (3, 4)], 5)
    evidence = kbp.clamp(model, graph, [0, 2, 3], [0, 1, 1])
    solution = kbp.run_tree(model, graph, evidence)
    with pytest.raises(ValueError, match=r"^nodes: .* got 0 everywhere for \[1\]"):
        kbp.beliefs(model, graph, evidence, solution, np.arange(2))
    weights = jax.jit(lambda e, s: kbp.beliefs(model, graph, e, s, np.arange(2)).weights)(evidence, solution)
    assert np.isnan(weights[1]).all()
    np.testing.assert_array_equal(weights[np.array([0, 2, 3, 4])], np.eye(2)[[0, 1, 1, 1]])


def test_query_points_must_fit_the_variables_in_log_belief():
    evidence, solution = solved(True)
    for points in (jnp.zeros((3, 4)), jnp.zeros((2, 4, 1))):  # there are two nodes of type 0
        with pytest.raises(ValueError, match=r"^points: must have shape \[2, own, \*\(\)\]; got shape"):
            kbp.log_belief(kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution), points)


@pytest.mark.slow
def test_uneven_candidates_change_neither_mode_nor_tempered_beliefs_nor_sets():
    """A weight is a density times the length around its candidate; modes and powers are those of the density."""
    rng = np.random.default_rng(0)
    graph, x = kbp.chain_graph(2), rng.normal(size=(200, 1)) + 0.3 * rng.normal(size=(200, 2))
    model = kbp.fit(
        kbp.pool(graph, x, observations=x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), ridge=1e-2, obs_ridge=1e-2
    )
    evidence = kbp.observe(model, graph, [0.2, 0.2])
    solution = kbp.run_tree(model, graph, evidence)
    even = np.linspace(-2.5, 2.5, 501)
    uneven = np.unique(np.concatenate([even[even < 0.4], even[even > 0.1][::8]]))
    one, other = (kbp.beliefs(model, graph, evidence, solution, points) for points in (even, uneven))
    step = even[1] - even[0]
    assert other.lengths.max() > 3 * other.lengths.min()
    wrong = kbp.mode(kbp.Belief(other.points, other.weights))
    assert not np.allclose(wrong, kbp.mode(one), atol=8 * step)
    for before, after in ((one, other), (kbp.temper(one, 0.3), kbp.temper(other, 0.3))):
        np.testing.assert_allclose(kbp.mode(after), kbp.mode(before), atol=8 * step)
        np.testing.assert_allclose(kbp.mean(after), kbp.mean(before), atol=0.01)
        np.testing.assert_allclose(kbp.std(after), kbp.std(before), atol=0.01)
        sizes = [jnp.where(kbp.highest_density(b), b.lengths, 0).sum(axis=1) / b.lengths.sum() for b in (before, after)]
        np.testing.assert_allclose(*sizes, atol=0.02)


def test_heights_are_weights_over_lengths_and_0_at_repeated_points():
    weights, lengths = jnp.array([[0.1, 0.2, 0.3, 0.4]]), jnp.array([0.5, 1.5, 0.0, 2.0])

    def heights(weights):
        return kbp.Belief(jnp.arange(4.0), weights, lengths=lengths).heights

    np.testing.assert_allclose(heights(weights), [[0.2, 0.4 / 3, 0.0, 0.2]], rtol=1e-12)
    slope = jax.grad(lambda weights: jnp.sum(heights(weights)))(weights)
    np.testing.assert_allclose(slope, [[2.0, 2 / 3, 0.0, 0.5]], rtol=1e-12)
    np.testing.assert_array_equal(kbp.Belief(jnp.arange(4.0), weights).heights, weights)
