"""`infer`, the automatic choice of hyperparameters, and the warnings on the way."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.learn import candidate_points
from kbpjax.posterior.beliefs import lengths_of, spacing
from kbpjax.tuning import comparison, line_search, projections
from kbpjax.tuning.held_out import hold_out
from kbpjax.tuning.search import Search

KERNELS = {"kernel": kbp.RBF(0.7), "obs_kernel": kbp.RBF(0.7)}


def field(graph, cases, seed=0):
    """Values with a common part in each case, and noisy observations."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(cases, 1)) + 0.4 * rng.normal(size=(cases, graph.num_nodes))
    return x.astype(np.float32), (x + 0.5 * rng.normal(size=x.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def grid():
    graph = kbp.grid_graph(4, 4)
    x, y = field(graph, 60)
    return graph, kbp.fit(kbp.pool(graph, x, y), **KERNELS, ridge=1e-3), y[0]


@pytest.fixture(scope="module")
def chain():
    graph = kbp.chain_graph(8)
    x, y = field(graph, 60)
    return graph, kbp.fit(kbp.pool(graph, x, y), **KERNELS, ridge=1e-3), y[0]


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_chain_is_solved_exactly(chain):
    graph, model, y = chain
    belief = kbp.infer(model, graph, y)
    evidence = kbp.observe(model, graph, y)
    want = kbp.beliefs(model, graph, evidence, kbp.run_tree(model, graph, evidence), model.candidates[0])
    same(belief.weights, want.weights)


def test_a_grid_converges_to_the_fixed_point_of_nonnegative_tree_reweighted_messages(grid):
    graph, model, y = grid
    belief = kbp.infer(model, graph, y, tol=1e-5)
    x, observed = field(graph, 60)
    other = kbp.fit(kbp.pool(graph, x, observed), **KERNELS, ridge=1e-3, nonnegative=kbp.Clipped())
    evidence, exponents = kbp.observe(other, graph, y), kbp.tree_reweighting(graph)
    solution = kbp.run(other, graph, evidence, exponents=exponents, damping=0.5, tol=1e-5, num_iters=500)
    assert belief.solution.converged
    assert solution.converged
    want = kbp.beliefs(other, graph, evidence, solution, model.candidates[0])
    np.testing.assert_allclose(belief.weights, want.weights, atol=1e-3)


def test_missing_observations_are_nan_or_masked(grid):
    graph, model, y = grid
    mask = np.arange(16) % 3 > 0
    masked, holes = kbp.infer(model, graph, y, mask=mask), kbp.infer(model, graph, np.where(mask, y, np.nan))
    same(masked.weights, holes.weights)
    with pytest.raises(ValueError, match=r"^mask: must be None without y"):
        kbp.infer(model, graph, mask=mask)


def test_further_evidence_is_multiplied(chain):
    graph, model, y = chain
    belief = kbp.infer(model, graph, y, evidence=kbp.clamp(model, graph, [2], [0.5]))
    assert abs(float(kbp.mean(belief)[2]) - 0.5) < 0.05


@pytest.mark.slow
def test_jit_vmap_and_gradients(grid):
    graph, model, y = grid
    points = np.linspace(-2, 2, 9)
    mean = lambda y: kbp.mean(kbp.infer(model, graph, y, points=points, tol=1e-6))
    eager = mean(y)
    batch = jax.jit(jax.vmap(mean))(jnp.stack([y, y + 0.1]))
    np.testing.assert_allclose(batch[0], eager, atol=1e-4)
    slope = jax.jit(jax.jacfwd(lambda shift: mean(y + shift)))(jnp.float32(0.0))
    np.testing.assert_allclose(slope, (mean(y + 0.02) - mean(y - 0.02)) / 0.04, atol=5e-3)


def test_messages_that_have_not_converged_warn(grid):
    graph, model, y = grid
    with pytest.warns(kbp.ConvergenceWarning, match="residual"):
        kbp.infer(model, graph, y, num_iters=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kbp.infer(model, graph, y)


def test_candidates_are_distinct_values_a_grid_or_samples():
    assert candidate_points(jnp.array([2.0, 1.0, 2.0])).tolist() == [1.0, 2.0]
    even = np.asarray(candidate_points(jnp.asarray(np.random.default_rng(0).normal(size=999))))
    assert len(even) == 256
    np.testing.assert_allclose(np.diff(even), np.diff(even)[0], rtol=1e-3)
    vectors = np.random.default_rng(0).normal(size=(2000, 2))
    chosen = np.asarray(candidate_points(jnp.asarray(vectors), 10))
    assert (chosen[:, None] == vectors.astype(chosen.dtype)[None]).all(axis=2).any(axis=1).all()


def test_spacing_equals_the_lengths_of_cells():
    x = np.array([3.0, 0.0, 1.0, 7.0])
    want = np.array([3.0, 1.0, 1.5, 4.0])  # cells [-.5, .5], [.5, 2], [2, 5], [5, 9]
    np.testing.assert_allclose(spacing(jnp.asarray(x)), want / want.mean(), rtol=1e-6)
    np.testing.assert_allclose(spacing(jnp.linspace(0, 1, 7)), 1, rtol=1e-5)
    assert spacing(jnp.array([4])).tolist() == spacing(jnp.array([4.0])).tolist() == [1.0]
    assert spacing(jnp.zeros(3)).tolist() == [1.0, 1.0, 1.0]
    assert spacing(jnp.array([[0.0, 1.0], [5.0, 1.0], [7.0, 1.0]])).tolist() == [1.0, 1.0, 1.0]
    for points in (x, x[:, None]):  # lengths are those of numbers only
        np.testing.assert_allclose(lengths_of(jnp.asarray(points), jnp.float32), want / want.mean(), rtol=1e-6)
    for points in (x[:, None, None], x.astype(int), np.stack([x, x], axis=1), x[:, None][:, :0]):
        assert lengths_of(jnp.asarray(points), jnp.float32) is None


def test_more_candidates_on_one_side_do_not_move_the_mean(chain):
    graph, model, y = chain
    even = np.linspace(-3, 3, 241)
    dense = np.concatenate([np.linspace(-3, 0, 400, endpoint=False), np.linspace(0, 3, 61)])
    means = [kbp.mean(kbp.infer(model, graph, y, points=points)) for points in (even, dense)]
    np.testing.assert_allclose(*means, atol=0.02)


def test_candidates_far_from_the_samples_are_refused(chain):
    graph, model, y = chain
    with pytest.raises(
        ValueError, match=r"^points: must lie near the training samples from .* got candidates from 1000"
    ):
        kbp.infer(model, graph, y, points=np.linspace(1000, 2000, 5))
    with pytest.warns(kbp.CandidateWarning, match="cover"):
        kbp.infer(model, graph, y, points=np.linspace(0, 0.1, 5))


def test_too_few_landmarks_warn():
    graph = kbp.chain_graph(8)
    data = kbp.pool(graph, *field(graph, 60))
    with pytest.warns(kbp.RankWarning, match="3 landmarks leave a residual"):
        kbp.fit(data, **KERNELS, rule=kbp.ConstantTime(max_rank=3))


@pytest.mark.slow
def test_choices_are_deterministic_and_keep_what_is_given():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (0, 3)], 4, node_type=[0, 0, 0, 1])
    rng = np.random.default_rng(0)
    speed = rng.normal(size=(24, 1)) + 0.3 * rng.normal(size=(24, 3))
    angle = rng.uniform(-np.pi, np.pi, size=(24, 1))
    samples = {0: speed, 1: angle}
    data = kbp.pool(graph, samples, {0: speed + 0.3 * rng.normal(size=speed.shape), 1: angle})
    given = {"kernel": {1: kbp.kernels.Periodic(2 * np.pi)}, "obs_kernel": {1: kbp.kernels.Periodic(2 * np.pi)}}
    models = [kbp.fit(data, **given, ridge=1e-3) for _ in range(2)]
    chosen = models[0].hyperparameters
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), chosen, models[1].hyperparameters))
    assert (float(chosen.kernel[1].period), float(chosen.ridge)) == (pytest.approx(2 * np.pi), pytest.approx(1e-3))
    belief = kbp.infer(models[0], graph, {0: speed[0], 1: angle[0]})
    assert np.isfinite(belief[0].weights).all()
    refit = chosen.fit(data)  # what was chosen can be passed back in
    same(refit.operators.project, models[0].operators.project)


def test_periodic_kernels_without_a_bandwidth_are_gaussian_on_circles():
    """Their unit is the median distance on the circle, across its end, and the period stays; a given one is kept."""
    hours = np.array([23.0, 0.0, 1.0, 2.0])
    angles = 2 * np.pi * hours / 24
    chord = np.hypot(*(part[:, None] - part[None] for part in (np.cos(angles), np.sin(angles))))
    unit = np.median(chord[np.triu_indices(4, 1)])
    kernels = comparison.ScaledKernels.of("kernel", kbp.kernels.Periodic(24.0), {0: hours})
    assert kernels.vary
    scaled = kernels.scaled(0.5)[0]
    assert (float(scaled.period), float(scaled.bandwidth)) == (24, pytest.approx(unit / 2, rel=1e-6))
    assert not scaled.to_choose
    expected = np.exp(-((chord / (unit / 2)) ** 2) / 2)
    np.testing.assert_allclose(kbp.gram(scaled, hours, hours), expected, rtol=1e-5)
    assert not comparison.ScaledKernels.of("kernel", kbp.kernels.Periodic(24.0, 1.0), {0: hours}).vary


def test_inside_of_jit_a_periodic_kernel_has_bandwidth_1():
    data = kbp.pool(kbp.chain_graph(4), np.linspace(0, 24, 40).reshape(10, 4))
    rule = kbp.fix_landmarks(data, kernel=kbp.kernels.Periodic(24.0), rule=kbp.ConstantTime(max_rank=6))
    fitted = lambda data, *bandwidth: (
        kbp.fit(data, kernel=kbp.kernels.Periodic(24.0, *bandwidth), ridge=1e-3, rule=rule).operators.project
    )
    np.testing.assert_allclose(jax.jit(fitted)(data), fitted(data, 1.0), rtol=1e-6, atol=1e-9)


@pytest.mark.slow  # a search
def test_headings_that_wander_by_three_degrees():
    """The bandwidth of 1 radian would say so of none of them (an issue of users: given periods stopped the search)."""
    rng = np.random.default_rng(0)
    graph, wrapped = kbp.chain_graph(20), lambda angle: np.angle(np.exp(1j * angle))
    x = rng.uniform(0, 2 * np.pi, (60, 1)) + np.cumsum(np.deg2rad(3) * rng.normal(size=(60, 20)), axis=1)
    y = x + np.deg2rad(10) * rng.normal(size=x.shape)
    periodic = kbp.kernels.Periodic(2 * np.pi)
    model = kbp.fit(
        kbp.pool(graph, wrapped(x[:50]), wrapped(y[:50])), kernel=periodic, obs_kernel=periodic, effort="low"
    )
    assert float(model.hyperparameters.kernel[0].bandwidth) < 0.7
    errors = []
    for truth, seen in zip(x[50:], wrapped(y[50:]), strict=True):
        belief = kbp.infer(model, graph, seen).by_type[0]
        mean = np.asarray(belief.weights) @ np.exp(1j * np.asarray(belief.points))
        errors.append(np.angle(mean / np.exp(1j * truth)))
    assert np.rad2deg(np.sqrt(np.mean(np.square(errors)))) < 6  # of noise 10; the exact smoother: 4.5


@pytest.mark.slow  # a search
def test_choices_without_observations_score_clamped_problems():
    graph = kbp.chain_graph(5)
    x, _ = field(graph, 24)
    model = kbp.fit(kbp.pool(graph, x))
    belief = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0], [1.0]))
    assert model.hyperparameters.obs_kernel is None
    assert np.isfinite(belief.weights).all()


def test_without_cases_bandwidths_are_a_quarter_of_the_median():
    x = np.arange(40.0)
    data = kbp.TrainingData(edges={0: (x[:-1], x[1:])}, nodes={0: x})
    chosen = kbp.choose_hyperparameters(data)
    assert float(chosen.kernel[0].bandwidth) == pytest.approx(float(kbp.median_bandwidth(x)) / 4)


def test_domains_without_a_default_kernel_are_named():
    graph = kbp.chain_graph(2)
    data = kbp.pool(graph, np.zeros((3, 2, 2, 2)))
    with pytest.raises(ValueError, match=r"^kernel\[0\]: must be given unless samples are numbers or vectors"):
        kbp.fit(data)


@pytest.mark.parametrize("cases", [2, 20])
def test_what_is_held_out_is_not_in_the_training_data(cases):
    graph = kbp.grid_graph(6, 6)
    x = np.arange(36.0 * cases).reshape(cases, 36)  # every value once
    train, held = hold_out(kbp.pool(graph, x, x + 0.5))
    truth = np.asarray(held.truth[0])
    used = np.concatenate([np.asarray(a) for a in (*train.edges[0], train.nodes[0], *train.observations[0])])
    assert len(truth) >= 0.15 * x.size
    assert not np.isin(truth, used).any()
    assert not np.isin(truth + 0.5, used).any()
    ends = np.stack([held.graph.senders, held.graph.receivers], axis=1)
    for a, b in truth[ends]:  # neighbors there are neighbors in the same case of the grid
        assert a // 36 == b // 36
        assert abs(a - b) in (1, 6)
    np.testing.assert_allclose(np.asarray(held.observations[0]), truth + 0.5)


def test_the_score_equals_the_energy_score(chain):
    graph, _, _ = chain
    data = kbp.pool(graph, *field(graph, 24))
    kernels = comparison.ScaledKernels.of("kernel", None, data.nodes)
    observed = comparison.ScaledKernels.of("obs_kernel", None, {0: data.observations[0][1]})
    problem = comparison.make_comparison(data, comparison.Given(kernels, observed))
    weights = np.random.default_rng(0).dirichlet(np.ones(len(problem.points[0])), len(problem.held.truth[0]))
    belief = kbp.Belief(problem.points[0], jnp.asarray(weights, jnp.float32))
    sums, inside, counts = problem._at({0: belief}, problem.distances(), jnp.float32(1.0))
    assert len(counts) == 6  # a quarter of the cases
    got = sums.sum() / counts.sum()
    points, truth, scale = (np.asarray(a, float) for a in (problem.points[0], problem.held.truth[0], kernels.scales[0]))
    near = (weights * abs(points[None] - truth[:, None])).sum(axis=1)
    apart = np.einsum("np,nq,pq->n", weights, weights, abs(points[:, None] - points[None]))
    np.testing.assert_allclose(got, np.mean(near - apart / 2) / scale, rtol=1e-4)
    from_points = weights @ abs(points[:, None] - points[None])
    nearer = np.where(from_points < near[:, None], weights, 0).sum(axis=1)
    assert float(inside) == pytest.approx(np.mean(nearer <= 0.9), abs=1e-6)


def test_of_temperatures_that_score_alike_the_one_whose_intervals_hold_is_taken():
    search = Search()
    scores = np.full(len(search.temperatures), 2.0)
    scores[5:9] = [1.011, 1.009, 1.0, 1.009]
    inside = np.linspace(0.1, 0.9, len(scores))
    inside[5:9] = [0.9, 0.91, 0.84, 0.95]
    found = line_search.Scores(None, search)
    found.tried[comparison.Choice()] = comparison.Outcome(scores, inside, True, 0.0)
    assert found.temperature(comparison.Choice()) == search.temperatures[6]
    assert found(comparison.Choice()) == 1.0


def test_a_temperature_counts_only_if_it_is_better_by_two_standard_errors():
    search = Search()
    scores, inside = np.full(len(search.temperatures), 1.0), np.full(len(search.temperatures), 0.9)
    sharp = search.temperatures.index(0.5)
    scores[sharp] = 0.9
    for error, temperature, score in ((0.06, 1.0, 1.0), (0.04, 0.5, 0.9)):
        found = line_search.Scores(None, search)
        found.tried[comparison.Choice()] = comparison.Outcome(scores, inside, True, 0.0, np.full(len(scores), error))
        assert (found.temperature(comparison.Choice()), found(comparison.Choice())) == (temperature, score)


def test_errors_of_scores_are_those_of_the_mean_over_cases(chain):
    graph, _, _ = chain
    data = kbp.pool(graph, *field(graph, 24))
    kernels = comparison.ScaledKernels.of("kernel", None, data.nodes)
    observed = comparison.ScaledKernels.of("obs_kernel", None, {0: data.observations[0][1]})
    problem = comparison.make_comparison(data, comparison.Given(kernels, observed))
    found = comparison.evaluate(problem, comparison.Choice(*(jnp.asarray(x) for x in comparison.Choice(ridge=1e-3))))
    temperatures = problem.search.temperatures
    one = temperatures.index(1.0)
    assert float(found.errors[one]) == 0
    assert (np.asarray(found.errors)[:one] > 0).all()
    few = comparison.make_comparison(kbp.pool(graph, *field(graph, 2)), comparison.Given(kernels, observed))
    assert few.problems == 1  # blocks of nodes


def test_the_projection_is_the_ridge_regression_of_smallest_cross_validation_error():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(300, 40)) * np.linspace(0.1, 3, 40) + 2
    x = y @ rng.normal(size=(40, 2)) + 3 * rng.normal(size=(300, 2))
    standard, centered = (y - y.mean(axis=0)) / y.std(axis=0), x - x.mean(axis=0)
    errors, matrices = [], []
    for ridge in projections.RIDGES:
        inverse = np.linalg.inv(standard.T @ standard + 300 * ridge * np.eye(40)) @ standard.T
        hat = standard @ inverse
        errors.append(np.mean((centered - hat @ centered) ** 2) / (1 - np.trace(hat) / 300) ** 2)
        matrices.append((inverse @ centered).T / y.std(axis=0))
    best = int(np.argmin(errors))
    assert 0 < best < len(errors) - 1
    np.testing.assert_allclose(projections.regression_matrix(x, y), matrices[best], rtol=1e-9)
    assert projections.regression_matrix(x[:, 0], y).shape == (1, 40)
    assert projections.regression_matrix(x[:40], y[:40]) is None
    assert projections.regression_matrix(x, 0 * y) is None and projections.regression_matrix(0 * x, y) is None
    constant = projections.regression_matrix(x, np.concatenate([y, np.ones((300, 1))], axis=1))
    np.testing.assert_array_equal(constant[:, 40], 0)


def test_kernels_of_many_coordinates_see_what_a_regression_sees():
    rng = np.random.default_rng(0)
    x, few = rng.normal(size=(60, 4)), rng.normal(size=(60, 4, 3))
    many = rng.normal(size=(60, 4, 20))
    many[..., 7] += x
    graph = kbp.chain_graph(4)
    observed = comparison.ScaledKernels.of("obs_kernel", None, {0: many.reshape(-1, 20)})
    assert observed.projected(kbp.pool(graph, x, few), [0], 16) is None
    assert observed.projected(kbp.pool(graph, x, many), [], 16) is None  # variables with a kernel of their own
    projected = observed.projected(kbp.pool(graph, x, many), [0], 16)
    matrix = np.abs(np.asarray(projected.matrices[0]))
    assert matrix.shape == (1, 20) and matrix[0].argmax() == 7
    kernel = projected.scaled(0.5)[0]
    features = many.reshape(-1, 20) @ np.asarray(projected.matrices[0])[0]
    np.testing.assert_allclose(kernel.base.bandwidth, 0.5 * kbp.median_bandwidth(features), rtol=1e-5)


@pytest.mark.slow  # two searches
def test_observations_of_many_coordinates_are_projected_where_beliefs_are_better_so():
    rng, graph = np.random.default_rng(0), kbp.chain_graph(8)
    x = np.cumsum(rng.normal(size=(120, 8)), axis=1)
    y = rng.normal(size=(120, 8, 30))
    y[..., :6] += 0.5 * x[..., None]
    model = kbp.fit(kbp.pool(graph, x[:100], y[:100]))
    assert isinstance(model.hyperparameters.obs_kernel[0], kbp.kernels.Projected)
    means = np.stack([kbp.mean(kbp.infer(model, graph, case)) for case in y[100:]])
    alone = 2 * y[100:, :, :6].mean(axis=-1)
    assert np.mean((means - x[100:]) ** 2) < np.mean((alone - x[100:]) ** 2)


def test_a_period_is_learned_only_if_asked():
    from kbpjax.tuning.parameters import FreeNumbers

    for learn in (False, True):
        start = kbp.Hyperparameters(kbp.kernels.Periodic(6.0, learn_period=learn))
        names = FreeNumbers.of(start, lambda s: ()).names
        assert ("kernel.period" in names) == learn
        assert "kernel.bandwidth" in names


@pytest.mark.slow
def test_numbers_beside_vectors_keep_their_marginal():
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    rng = np.random.default_rng(0)
    x = rng.gamma(2.0, size=(40, 1))  # far from uniform
    data = kbp.pool(graph, {0: x, 1: np.stack([x, -x], axis=2)})
    model = kbp.fit(data, kernel=kbp.RBF(0.5), rule=kbp.FullRank(), ridge=1e-3)
    got = kbp.infer(model, graph)
    solution = kbp.run_tree(model, graph)
    for v, marginal in ((0, kbp.MeanEmbedding()), (1, kbp.Empirical())):
        want = kbp.beliefs(model, graph, None, solution, model.candidates, marginal=marginal)[v]
        same(got[v].weights, want.weights)


def test_candidates_that_are_vectors_repeat_as_the_samples_do():
    colors = jnp.asarray([[0.0, 0.0]] * 3 + [[1.0, 1.0]])
    assert candidate_points(colors).tolist() == colors.tolist()
