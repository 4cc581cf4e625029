"""What people ask of beliefs, against NumPy: spreads, densities, samples, refined modes, marginals, gradients."""

import functools
import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.posterior.beliefs import check_marginal
from tests import reference
from tests.loopy import GRAPH, SAMPLES, TWIN_GRAPH, Y, loopy_model, twin_model

RNG = np.random.default_rng(0)
WEIGHTS = np.stack([np.full(9, 1 / 9), np.eye(9)[4], RNG.dirichlet(np.ones(9)), RNG.dirichlet(0.2 * np.ones(9))])
PLANE = RNG.normal(size=(9, 2)) @ np.array([[2.0, 1.5], [0.0, 0.5]])
LINE = np.array([0.3, -2.0, 1.0, 5.0, 1.1, -0.7, 2.5, 0.0, -1.9])  # neither sorted nor even
K = kbp.RBF(0.8)


def belief(points, weights=WEIGHTS):
    return kbp.Belief(jnp.asarray(points), jnp.asarray(weights))


# --- moments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [PLANE, PLANE + 1e5, np.arange(27).reshape(9, 3) ** 2], ids=["plane", "far", "int"])
def test_covariance_equals_numpy(points):
    got = np.asarray(jax.jit(kbp.covariance)(belief(points)))
    spread = np.ptp(points)
    for row, weights in zip(got, WEIGHTS, strict=True):
        expected = np.cov(points.T.astype(float) - points.mean(), aweights=weights, ddof=0)
        np.testing.assert_allclose(row, expected, atol=1e-10 * spread**2)
        np.testing.assert_allclose(row, row.T, atol=1e-12 * spread**2)
        assert np.linalg.eigvalsh(row).min() > -1e-10 * spread**2
    assert np.abs(got[2, 0, 1]) > 1e-3 * spread**2  # there is a covariance to get wrong


@pytest.mark.parametrize("points", [LINE, LINE[:, None, None], np.zeros((9, 2, 2))], ids=["scalars", "1x1", "2x2"])
def test_covariance_needs_vectors(points):
    with pytest.raises(ValueError, match=r"^belief: must have points \[point, dim\]; got points of shape"):
        kbp.covariance(belief(points))


@pytest.mark.parametrize(
    ("fn", "numpy_fn"),
    [
        (lambda x: jnp.sin(x[0]) * x[1], lambda x: np.sin(x[:, 0]) * x[:, 1]),
        (lambda x: x**3, lambda x: x**3),
        (lambda x: jnp.outer(x, x), lambda x: x[:, :, None] * x[:, None, :]),
        (lambda x: x[0] > 0.5, lambda x: x[:, 0] > 0.5),
        (lambda x: jnp.zeros((0,)) * x[0], lambda x: np.zeros((9, 0))),
    ],
    ids=["number", "vector", "matrix", "event", "empty"],
)
def test_expectation_equals_numpy(fn, numpy_fn):
    values = numpy_fn(PLANE).astype(float)
    expected = np.array([sum(w * v for w, v in zip(row, values, strict=True)) for row in WEIGHTS])
    np.testing.assert_allclose(kbp.expectation(belief(PLANE), fn), expected, rtol=1e-12, atol=1e-13)


def test_expectation_on_whole_numbers():
    points = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5])
    got = kbp.expectation(belief(points), lambda x: x * x)
    np.testing.assert_allclose(got, WEIGHTS @ points**2, rtol=1e-12)


# --- densities -----------------------------------------------------------------------------------------------------


log_density = jax.jit(kbp.log_density)


def cells(points):
    """Lengths of the intervals around sorted points; those of the first and the last are symmetric."""
    padded = np.concatenate([[2 * points[0] - points[1]], points, [2 * points[-1] - points[-2]]])
    return (padded[2:] - padded[:-2]) / 2


def interpolated(points, weights, x):
    """Piecewise linear through (point, weight / spacing), zero outside, with integral 1; a loop over the pieces."""
    order = np.argsort(points)
    p, w = np.asarray(points, float)[order], np.asarray(weights)[order]
    if np.issubdtype(np.asarray(points).dtype, np.floating):
        w = w / cells(p)
    pieces = range(len(p) - 1)
    area = sum((w[i] + w[i + 1]) / 2 * (p[i + 1] - p[i]) for i in pieces)
    for i in pieces:
        if p[i] <= x <= p[i + 1]:
            return (w[i] + (w[i + 1] - w[i]) * (x - p[i]) / (p[i + 1] - p[i])) / area
    return 0.0


@pytest.mark.parametrize("points", [LINE, LINE[:, None], np.arange(9) ** 2], ids=["uneven", "column", "int"])
def test_log_density_equals_numpy(points):
    flat = points.reshape(-1)
    for x in (*np.linspace(-3, 6, 13), flat[0], flat.min(), flat.max()):
        got = np.exp(log_density(belief(points), np.full(4, float(x))))
        np.testing.assert_allclose(got, [interpolated(flat, row, x) for row in WEIGHTS], rtol=1e-10, atol=1e-12)


def test_log_density_takes_a_value_for_each_node_and_is_minus_infinity_outside():
    got = kbp.log_density(belief(LINE), [-2.1, 1.1, 5.01, 0.2])
    assert got[0] == got[2] == -jnp.inf
    assert np.exp(got[1]) == pytest.approx(interpolated(LINE, WEIGHTS[1], 1.1))
    assert np.exp(got[3]) == pytest.approx(interpolated(LINE, WEIGHTS[3], 0.2))
    assert log_density(belief(LINE), np.full(4, 4.0))[1] == -jnp.inf  # inside, where there is no weight


def test_log_density_integrates_to_one():
    x = np.linspace(-2.5, 5.5, 80001)
    values = np.exp(jax.vmap(partial(log_density, belief(LINE)))(np.tile(x[:, None], 4)))
    np.testing.assert_allclose(np.sum(values, axis=0) * (x[1] - x[0]), 1, atol=1e-4)


def test_log_density_of_a_gaussian_on_an_uneven_grid():
    points = np.sinh(np.linspace(-3, 3, 2001))
    weights = np.exp(-(points**2) / 2) * cells(points)
    x = np.array([-1.3, 0.0, 0.77])
    got = log_density(belief(points, np.tile(weights / weights.sum(), (3, 1))), x)
    np.testing.assert_allclose(got, -(x**2) / 2 - np.log(np.sqrt(2 * np.pi)), atol=1e-4)


def test_log_density_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"^belief: must have two scalar points or more; got points of shape \(9, 2\)"):
        kbp.log_density(belief(PLANE), np.zeros(4))
    with pytest.raises(ValueError, match="^belief: must have two scalar points or more"):
        kbp.log_density(belief(np.zeros(1), np.ones((4, 1))), np.zeros(4))
    for x in (np.zeros(3), np.zeros((4, 1)), 0.0):
        with pytest.raises(ValueError, match=r"^x: must have shape \(4,\); got"):
            kbp.log_density(belief(LINE), x)


def test_log_density_has_a_gradient():
    @jax.jit
    def score(x):
        return jnp.sum(kbp.log_density(belief(LINE, WEIGHTS[[0, 2]]), x))

    x, h = np.array([0.65, 1.7]), 1e-6
    expected = [(score(jnp.asarray(x + h * e)) - score(jnp.asarray(x - h * e))) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(jax.jit(jax.grad(score))(jnp.asarray(x)), expected, atol=1e-6)


@pytest.mark.parametrize(
    "ask",
    [
        kbp.variance,
        lambda b: kbp.expectation(b, lambda x: x),
        lambda b: kbp.log_density(b, jnp.array([1.5, 1.5])),
        lambda b: kbp.sample(b, jax.random.key(0), 2)[0],
    ],
    ids=["variance", "expectation", "log_density", "sample"],
)
def test_a_belief_that_is_nan_has_no_number_as_answer(ask):
    unknown = jax.jit(belief)(jnp.array([1.0, 2.0]), jnp.array([[np.nan, np.nan], [0.0, 1.0]]))
    got = np.asarray(jax.jit(ask)(unknown))
    assert np.isnan(got[0]) and not np.isnan(got[1])


# --- samples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [LINE, PLANE, np.arange(9), RNG.normal(size=(9, 2, 3))], ids=str)
def test_samples_have_shape_and_type_of_the_points_and_follow_the_key(points):
    draw = jax.jit(partial(kbp.sample, belief=belief(points), num_samples=5))
    first, again, other = (np.asarray(draw(key=jax.random.key(seed))) for seed in (0, 0, 1))
    assert first.shape == (5, 4, *points.shape[1:]) and first.dtype == points.dtype
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(first[:, 1], np.stack([points[4]] * 5))  # all weight on one point


def test_frequencies_of_samples_are_the_weights():
    count = 40000
    drawn = np.asarray(jax.jit(kbp.sample, static_argnums=2)(belief(np.arange(9)), jax.random.key(3), count))
    frequency = np.stack([np.bincount(node, minlength=9) for node in drawn.T]) / count
    error = np.sqrt(WEIGHTS * (1 - WEIGHTS) / count)
    assert (np.abs(frequency - WEIGHTS) <= 4 * error + 1e-12).all()
    pair = np.zeros((9, 9))  # nodes are drawn independently of each other
    np.add.at(pair, (drawn[:, 0], drawn[:, 2]), 1 / count)
    expected = np.outer(WEIGHTS[0], WEIGHTS[2])
    assert (np.abs(pair - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / count)).all()


@pytest.mark.parametrize("count", [0, -1])
def test_counts_of_samples_must_be_positive(count):
    for ask in (lambda: kbp.sample(belief(LINE), jax.random.key(0), count),):
        with pytest.raises(ValueError, match=f"^num_samples: must be an integer >= 1; got {count}"):
            ask()


# --- log beliefs and marginals, against the twin --------------------------------------------------------------------


@functools.cache
def solved():
    evidence = kbp.observe(loopy_model(), GRAPH, Y)
    return evidence, kbp.run(loopy_model(), GRAPH, evidence, num_iters=3, damping=0.2)


@functools.cache
def twin_solved():
    evidence = reference.observe(twin_model(), TWIN_GRAPH, Y, [True] * 7)
    return evidence, reference.run(twin_model(), TWIN_GRAPH, evidence, 3, 0.2)


def twin_product(points, node):
    """Evidence times messages, without a marginal [point]."""
    twin, (evidence, messages), v = twin_model(), twin_solved(), TWIN_GRAPH.node_type[node]
    at_points = reference.gram_schmidt(twin.kernels[v], twin.landmarks[v], points)
    incoming = [evidence[node]] + [messages[u, node] for u in TWIN_GRAPH.neighbors(node)]
    return np.prod([np.maximum(at_points @ message, twin.floor) for message in incoming], axis=0)


def twin_marginal(points, v):
    twin = twin_model()
    at_points = reference.gram_schmidt(twin.kernels[v], twin.landmarks[v], points)
    return np.maximum(at_points @ twin.marginals[v], twin.floor)


def parzen(width, samples, points):
    return reference.gram(reference.rbf(width), points, samples).mean(axis=1)


NODE_SAMPLES = {v: SAMPLES[:, TWIN_GRAPH.nodes_of_type(v)].ravel() for v in (0, 1, 2)}
POINTS = np.linspace(-1.4, 1.4, 8)
MARGINALS = {
    "mean embedding": (kbp.MeanEmbedding(), lambda x, v: twin_marginal(x, v)),
    "empirical": (kbp.Empirical(), lambda x, v: np.ones(len(x))),
    "parzen": (
        kbp.Parzen(
            {v: kbp.RBF(0.2 + 0.1 * v) for v in NODE_SAMPLES}, {v: jnp.array(x) for v, x in NODE_SAMPLES.items()}
        ),
        lambda x, v: parzen(0.2 + 0.1 * v, NODE_SAMPLES[v], x),
    ),
    "one parzen for all": (
        kbp.Parzen(kbp.RBF(0.3), jnp.asarray(NODE_SAMPLES[0])),
        lambda x, v: parzen(0.3, NODE_SAMPLES[0], x),
    ),
}


@pytest.mark.parametrize("name", MARGINALS)
def test_beliefs_with_each_marginal_equal_numpy(name):
    marginal, numpy_marginal = MARGINALS[name]
    got = kbp.beliefs(loopy_model(), GRAPH, *solved(), POINTS, marginal=marginal).weights
    for node, v in enumerate(TWIN_GRAPH.node_type):
        expected = twin_product(POINTS, node) * numpy_marginal(POINTS, v)
        np.testing.assert_allclose(got[node], expected / expected.sum(), atol=1e-8)


# A known likelihood is a factor beside the marginal, whichever that is.
@pytest.mark.parametrize(
    ("with_likelihood", "name"),
    [
        (False, "mean embedding"),
        pytest.param(False, "parzen", marks=pytest.mark.slow),
        (True, "empirical"),
        pytest.param(False, "empirical", marks=pytest.mark.slow),
        pytest.param(False, "one parzen for all", marks=pytest.mark.slow),
        pytest.param(True, "mean embedding", marks=pytest.mark.slow),
    ],
)
def test_log_belief_equals_numpy_at_points_of_each_node(with_likelihood, name):
    marginal, numpy_marginal = MARGINALS[name]
    evidence, solution = solved()
    centers = np.linspace(-1, 1, 7)
    if with_likelihood:
        known = kbp.likelihood(
            loopy_model(), GRAPH, lambda x: jnp.exp(-((x[None] - jnp.asarray(centers)[:, None]) ** 2))
        )
        evidence = evidence * known
    for v in (0, 1, 2):
        nodes = TWIN_GRAPH.nodes_of_type(v)
        own = np.random.default_rng(v).uniform(-1.2, 1.2, size=(len(nodes), 5))
        got = kbp.log_belief(
            kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution, marginal=marginal), jnp.asarray(own), node_type=v
        )
        for row, x, node in zip(np.asarray(got), own, nodes, strict=True):
            expected = np.log(twin_product(x, node) * numpy_marginal(x, v))
            expected = expected - with_likelihood * (x - centers[node]) ** 2
            np.testing.assert_allclose(row - row[0], expected - expected[0], atol=1e-7)


@pytest.mark.parametrize("with_likelihood", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_gradient_of_log_belief_in_its_points(with_likelihood):
    evidence, solution = solved()
    if with_likelihood:
        evidence = evidence * kbp.likelihood(
            loopy_model(), GRAPH, {2: lambda x: jnp.stack([1 + x**2, jnp.exp(x), jnp.exp(-(x**2))])}
        )

    @jax.jit
    def total(x):
        return jnp.sum(kbp.log_belief(kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution), x, node_type=2))

    x, h = np.random.default_rng(0).uniform(-1, 1, size=(3, 2)), 1e-5
    gradient = np.asarray(jax.jit(jax.grad(total))(jnp.asarray(x)))
    for place in np.ndindex(3, 2):
        step = np.zeros((3, 2))
        step[place] = h
        expected = (total(jnp.asarray(x + step)) - total(jnp.asarray(x - step))) / (2 * h)
        np.testing.assert_allclose(gradient[place], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_log_belief_where_a_likelihood_is_zero():
    evidence, solution = solved()
    evidence = evidence * kbp.likelihood(loopy_model(), GRAPH, {0: lambda x: jnp.tile(x > 0, (2, 1)).astype(float)})
    x = jnp.array([[-0.5, 0.5], [0.2, -1.0]])
    got = kbp.log_belief(kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution), x)
    assert np.isfinite(np.asarray(got)).tolist() == [[False, True], [True, False]]
    assert got[0, 0] == got[1, 1] == -jnp.inf
    gradient = jax.jit(
        jax.grad(lambda x: jnp.sum(kbp.log_belief(kbp.Posterior.of(loopy_model(), GRAPH, evidence, solution), x)[:, 1]))
    )(x)
    assert np.isfinite(np.asarray(gradient)).all()


def test_marginals_name_what_is_wrong():
    def ask(marginal):
        return kbp.beliefs(loopy_model(), GRAPH, *solved(), POINTS, marginal=marginal)

    samples = jnp.asarray(NODE_SAMPLES[0])
    with pytest.raises(ValueError, match="^Parzen: must have a kernel and samples of node type 1; got none"):
        ask(kbp.Parzen({0: K}, samples))
    with pytest.raises(ValueError, match="^Parzen: must have a kernel and samples of node type 2; got none"):
        ask(kbp.Parzen(K, {0: samples, 1: samples}))
    with pytest.raises(ValueError, match=r"^samples: must have shape \[sample, .*node type 0; got shape \(6, 2\)"):
        ask(kbp.Parzen(K, jnp.zeros((6, 2))))
    with pytest.raises(ValueError, match=r"^marginal: must be an estimate of P\*; got 'Parzen'"):
        inspect.unwrap(check_marginal)("Parzen")  # past the type checks of tests


def test_parzen_without_samples():
    with pytest.raises(ValueError, match="sample"):
        kbp.beliefs(loopy_model(), GRAPH, *solved(), POINTS, marginal=kbp.Parzen(K, jnp.zeros(0)))


def test_parzen_far_from_its_samples_has_no_belief():
    marginal = kbp.Parzen(kbp.RBF(0.01), jnp.array([50.0]))
    with pytest.raises(
        ValueError, match=r"^nodes: must have a belief > 0 at one point at least; got 0 everywhere for \["
    ):
        kbp.beliefs(loopy_model(), GRAPH, *solved(), POINTS, marginal=marginal)
    weights = jax.jit(lambda x: kbp.beliefs(loopy_model(), GRAPH, *solved(), x, marginal=marginal).weights)(POINTS)
    assert np.isnan(weights).all()


# --- a Gaussian chain -----------------------------------------------------------------------------------------------

RHO, OBS_STD, LENGTH = 0.9, 0.65, 6
GRID = np.linspace(-4, 4, 41)


@functools.cache
def chain():
    """(graph, samples, model)."""
    rng = np.random.default_rng(0)
    lag = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    x = rng.multivariate_normal(np.zeros(LENGTH), RHO**lag, size=400)
    y = x + OBS_STD * rng.normal(size=x.shape)
    graph = kbp.chain_graph(LENGTH)
    rule = kbp.ConstantTime(eps=1e-2)
    return graph, x, kbp.fit(kbp.pool(graph, x, y), kernel=K, obs_kernel=kbp.RBF(0.35), rule=rule, ridge=1e-4)


def gaussian_posterior(y):
    prior = RHO ** np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    gain = prior @ np.linalg.inv(prior + OBS_STD**2 * np.eye(LENGTH))
    return gain @ y, np.sqrt(np.diag(prior - gain @ prior))


SEEN = np.array([0.6, -0.2, 0.1, 0.9, 1.4, 0.3])


@functools.cache
def chain_solved():
    graph, _, model = chain()
    evidence = kbp.observe(model, graph, SEEN)
    return model, graph, evidence, kbp.run_tree(model, graph, evidence)


@pytest.mark.slow
def test_empirical_beliefs_on_training_samples_are_the_gaussian_posterior():
    """Weights on samples of the marginal: their weighted means are conditional expectations, with no density at all."""
    graph, x, model = chain()
    means, exact, spreads = [], [], []
    for seed in range(5):
        rng = np.random.default_rng(100 + seed)
        lag = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
        y = rng.multivariate_normal(np.zeros(LENGTH), RHO**lag) + OBS_STD * rng.normal(size=LENGTH)
        evidence = kbp.observe(model, graph, y)
        solution = kbp.run_tree(model, graph, evidence)
        got = kbp.beliefs(model, graph, evidence, solution, x.ravel(), marginal=kbp.Empirical())
        mean, std = gaussian_posterior(y)
        means.append(np.asarray(kbp.mean(got)))
        exact.append(mean)
        spreads.append(np.sqrt(kbp.variance(got)) - std)
    rmse = np.sqrt(np.mean((np.array(means) - exact) ** 2))
    print(f"RMSE of the means {rmse:.3f}, of the spreads {np.sqrt(np.mean(np.square(spreads))):.3f}")
    assert rmse < 0.12
    assert np.sqrt(np.mean(np.square(spreads))) < 0.08
    assert np.sqrt(np.mean(np.square(exact))) > 0.5  # zero would not do


def fine_mode(problem, low=-4.0, high=4.0, count=16001, **options):
    """The argument of the largest log belief on a very fine grid."""
    grid = np.linspace(low, high, count)
    num_nodes = problem[1].node_type.tolist().count(0)
    points = {v: np.linspace(-3, 3, 5) for v, *_ in problem[1].node_types}
    posterior = kbp.Posterior.of(*problem, points, **options)
    heights = kbp.log_belief(posterior, jnp.asarray(np.tile(grid, (num_nodes, 1))))
    return grid[np.argmax(heights, axis=1)]


@pytest.mark.parametrize(
    ("candidates", "marginal"),
    [
        pytest.param(14, kbp.MeanEmbedding(), id="embedding"),
        pytest.param(9, kbp.Empirical(), id="empirical", marks=pytest.mark.slow),
    ],
)
def test_refined_modes_equal_a_very_fine_grid(candidates, marginal):
    points = np.linspace(-3, 3, candidates)
    answer = kbp.beliefs(*chain_solved(), points, marginal=marginal)
    got = kbp.refine_mode(kbp.Posterior.of(*chain_solved(), answer.points, marginal=marginal))
    assert got.shape == (LENGTH,)
    np.testing.assert_allclose(got, fine_mode(chain_solved(), marginal=marginal), atol=1e-3)
    before, after = (
        kbp.log_belief(kbp.Posterior.of(*chain_solved(), marginal=marginal), jnp.asarray(x)[:, None])[:, 0]
        for x in (kbp.mode(answer), got)
    )
    assert (after >= before).all() and (after > before).any()
    assert np.abs(np.asarray(got) - np.asarray(kbp.mode(answer))).max() > 5e-3  # there was something to refine


@pytest.mark.parametrize(("num_starts", "num_steps"), [(1, 1), pytest.param(1000, 3, marks=pytest.mark.slow)])
def test_a_refined_mode_is_never_below_the_best_candidate(num_starts, num_steps):
    answer = kbp.beliefs(*chain_solved(), np.linspace(-2, 3, 6))
    got = kbp.refine_mode(kbp.Posterior.of(*chain_solved(), answer.points), num_starts=num_starts, num_steps=num_steps)
    before, after = (
        kbp.log_belief(kbp.Posterior.of(*chain_solved()), jnp.asarray(x)[:, None]) for x in (kbp.mode(answer), got)
    )
    assert (after >= before).all()


def two_peaks(points):
    """The narrow peak at 1.25 is higher, but the candidates -1 and 1 make the one at -1 look better; and mirrored."""

    def both(x):
        return jnp.exp(-((x + 1) ** 2) / 0.08) + 1.5 * jnp.exp(-((x - 1.25) ** 2) / 0.08)

    return jnp.stack([both(points), both(-points)])


@pytest.mark.slow
def test_refining_from_several_candidates_finds_the_higher_of_two_modes():
    model, graph = chain()[2], kbp.Graph.from_edges([], 2)
    evidence = kbp.likelihood(model, graph, two_peaks)
    problem = model, graph, evidence, kbp.run(model, graph, evidence, num_iters=1)
    answer = kbp.beliefs(*problem, np.arange(-3, 3.5, 0.5), marginal=kbp.Empirical())
    np.testing.assert_array_equal(kbp.mode(answer), [-1.0, 1.0])
    got = kbp.refine_mode(kbp.Posterior.of(*problem, answer.points, marginal=kbp.Empirical()))
    np.testing.assert_allclose(got, fine_mode(problem, marginal=kbp.Empirical()), atol=1e-3)
    np.testing.assert_allclose(got, [1.25, -1.25], atol=1e-3)
    one = kbp.refine_mode(kbp.Posterior.of(*problem, answer.points, marginal=kbp.Empirical()), num_starts=1)
    np.testing.assert_allclose(one, [-1.0, 1.0], atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["one node of the type", "graph of one node"])
def test_a_node_that_is_alone_of_its_type(of):
    model, graph = chain()[2], kbp.Graph.from_edges([], 1)
    if of == "one node of the type":
        model, graph = loopy_model(), kbp.chain_graph(2, node_type=[0, 1])
    evidence = kbp.observe(model, graph, np.full(graph.num_nodes, 0.3))
    problem = model, graph, evidence, kbp.run(model, graph, evidence, num_iters=2)
    points = np.linspace(-3, 3, 13)
    heights = np.asarray(kbp.log_belief(kbp.Posterior.of(*problem), jnp.asarray(points)[None]))[0]
    answer = kbp.beliefs(*problem, {v: points for v, *_ in graph.node_types})[0]
    np.testing.assert_allclose(np.exp(heights) / np.exp(heights).sum(), answer.weights[0], rtol=1e-9)
    refined = kbp.refine_mode(kbp.Posterior.of(*problem, {v: points for v, *_ in graph.node_types}))
    refined = refined[0] if isinstance(refined, dict) else refined
    np.testing.assert_allclose(refined, fine_mode(problem), atol=1e-3)


def test_a_clamped_node_keeps_its_value():
    graph, _, model = chain()
    evidence = kbp.observe(model, graph, SEEN) * kbp.clamp(model, graph, [2, 4], [0.123, -1.234])
    problem = model, graph, evidence, kbp.run_tree(model, graph, evidence)
    answer = kbp.beliefs(*problem, np.linspace(-3, 3, 13))
    np.testing.assert_array_equal(kbp.mode(answer)[jnp.array([2, 4])], [0.0, -1.0])
    got = kbp.refine_mode(kbp.Posterior.of(*problem, answer.points))
    np.testing.assert_array_equal(got[jnp.array([2, 4])], [0.123, -1.234])
    free = np.array([0, 1, 3, 5])
    np.testing.assert_allclose(got[free], fine_mode(problem)[free], atol=1e-3)


@pytest.mark.slow
def test_refine_mode_names_what_is_wrong():
    answer = kbp.beliefs(*chain_solved(), GRID)
    graph, whole = kbp.chain_graph(2), np.arange(12).reshape(6, 2) % 4
    counts = kbp.infer(kbp.fit(kbp.pool(graph, whole), kernel=kbp.RBF(1.0)), graph)
    with pytest.raises(ValueError, match=r"^posterior: must have points of floats; got int64\. Use kbpjax.mode"):
        kbp.refine_mode(counts)
    batch = jax.vmap(lambda y: kbp.infer(*chain_solved()[:2], y, points=GRID))(np.stack([SEEN, SEEN]))
    with pytest.raises(ValueError, match=r"^posterior: must be of one problem; got batch axes \(2,\)"):
        kbp.refine_mode(batch)
    for option in ("num_starts", "num_steps"):
        with pytest.raises(ValueError, match=f"^{option}: must be an integer >= 1; got 0"):
            kbp.refine_mode(kbp.Posterior.of(*chain_solved(), answer.points), **{option: 0})


def test_log_belief_names_what_is_wrong():
    for points in (jnp.zeros((LENGTH - 1, 3)), jnp.zeros((LENGTH, 3, 2))):
        with pytest.raises(ValueError, match=r"^points: must have shape \[6, own, .*; got shape"):
            kbp.log_belief(kbp.Posterior.of(*chain_solved()), points)


def test_log_belief_of_a_type_that_is_not_there():
    with pytest.raises(ValueError, match="^node_type: "):
        kbp.log_belief(kbp.Posterior.of(*chain_solved()), jnp.zeros((LENGTH, 3)), node_type=3)


def test_log_belief_at_nan():
    with pytest.raises(ValueError, match="^points: must be finite"):
        kbp.log_belief(kbp.Posterior.of(*chain_solved()), jnp.full((LENGTH, 3), jnp.nan))


# --- vectors --------------------------------------------------------------------------------------------------------


@functools.cache
def plane():
    """A chain of two points of a plane, each seen in noise."""
    rng = np.random.default_rng(1)
    first = rng.normal(size=(150, 2)) @ np.array([[1.0, 0.4], [0.0, 0.7]])
    x = np.stack([first, 0.8 * first + 0.4 * rng.normal(size=first.shape)], axis=1)
    graph = kbp.chain_graph(2)
    data = kbp.pool(graph, x, x + 0.4 * rng.normal(size=x.shape))
    rule = kbp.ConstantTime(eps=0.03)
    model = kbp.fit(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(0.7), rule=rule, ridge=1e-3)
    evidence = kbp.observe(model, graph, np.array([[0.7, 0.2], [0.4, -0.3]]))
    return model, graph, evidence, kbp.run_tree(model, graph, evidence)


def square(low, high, count):
    line = np.linspace(low, high, count)
    return np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)


@pytest.mark.slow
def test_refined_modes_of_vectors_equal_a_very_fine_grid():
    answer = kbp.beliefs(*plane(), square(-2, 2, 6))
    got = kbp.refine_mode(kbp.Posterior.of(*plane(), answer.points), num_steps=100)
    assert got.shape == (2, 2)
    center = np.zeros((2, 1, 2))
    for width, count in ((2.0, 81), (0.1, 81), (0.005, 41)):
        grid = center + square(-width, width, count)[None]
        heights = np.asarray(kbp.log_belief(kbp.Posterior.of(*plane(), answer.points), jnp.asarray(grid)))
        center = grid[np.arange(2), np.argmax(heights, axis=1)][:, None]
    np.testing.assert_allclose(got, center[:, 0], atol=1e-3)
    assert np.linalg.norm(got - kbp.mode(answer), axis=1).min() > 0.02


@pytest.mark.slow
def test_refined_modes_on_the_unit_circle():
    answer = kbp.beliefs(*plane(), np.stack([np.cos(np.arange(12) * np.pi / 6), np.sin(np.arange(12) * np.pi / 6)], 1))
    got = np.asarray(
        kbp.refine_mode(kbp.Posterior.of(*plane(), answer.points), retract=lambda x: x / jnp.sqrt(jnp.sum(x**2)))
    )
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, rtol=1e-12)
    angles = np.linspace(-np.pi, np.pi, 20001)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    heights = kbp.log_belief(kbp.Posterior.of(*plane(), answer.points), jnp.asarray(np.stack([circle, circle])))
    np.testing.assert_allclose(got, circle[np.argmax(heights, axis=1)], atol=1e-3)
    assert (
        np.linalg.norm(got - kbp.refine_mode(kbp.Posterior.of(*plane(), answer.points)), axis=1).min() > 0.05
    )  # the circle does bind


# --- gradients and transformations ----------------------------------------------------------------------------------

SMALL = np.random.default_rng(2).normal(size=(24, 1, 2)) + 0.5 * np.random.default_rng(3).normal(size=(24, 3, 2))
ASK = {
    "mean": kbp.mean,
    "covariance": kbp.covariance,
    "expectation": lambda b: kbp.expectation(b, lambda x: jnp.sin(x[0]) * x),
}


@pytest.mark.slow
def test_gradients_through_learning_and_inference():
    graph = kbp.chain_graph(3)
    data = kbp.pool(graph, SMALL, SMALL + 0.3)
    points = square(-1.5, 1.5, 4)
    kernels = {"kernel": kbp.RBF(1.2), "obs_kernel": kbp.RBF(1.0)}
    rule = kbp.fix_landmarks(data, **kernels, rule=kbp.ConstantTime(max_rank=6))

    def answers(width):
        model = kbp.fit(data, kernel=kbp.RBF(width), obs_kernel=kbp.RBF(1.0), rule=rule, ridge=1e-2)
        evidence = kbp.observe(model, graph, jnp.asarray(SMALL[0])) * kbp.clamp(model, graph, [2], [[0.3, 0.1]])
        result = kbp.beliefs(model, graph, evidence, kbp.run(model, graph, evidence, num_iters=2), points)
        found = {name: ask(result)[:2] for name, ask in ASK.items()}
        return found, found

    both, h = jax.jit(jax.jacrev(answers, has_aux=True)), 1e-5
    (slope, _), (_, above), (_, below) = map(both, (1.2, 1.2 + h, 1.2 - h))
    for name in ASK:
        expected = (np.asarray(above[name]) - np.asarray(below[name])) / (2 * h)
        np.testing.assert_allclose(slope[name], expected, rtol=1e-4, atol=1e-6)
        assert np.abs(expected).max() > 1e-3


@pytest.mark.slow
def test_everything_under_jit_and_vmap():
    model, graph, *_ = plane()
    points = square(-2, 2, 5)
    key = jax.random.key(7)

    def answers(y):
        evidence = kbp.observe(model, graph, y)
        solution = kbp.run_tree(model, graph, evidence)
        result = kbp.beliefs(model, graph, evidence, solution, points)
        line = kbp.Belief(result.points[:, 0] + 0.01 * result.points[:, 1], result.weights)
        return {
            **{name: ask(result) for name, ask in ASK.items()},
            "log_density": kbp.log_density(line, y[:, 0]),
            "sample": kbp.sample(result, key, 3),
            "refined": kbp.refine_mode(kbp.Posterior.of(model, graph, evidence, solution, result.points), num_steps=20),
            "log_belief": kbp.log_belief(kbp.Posterior.of(model, graph, evidence, solution), y[:, None]),
            "parzen": kbp.beliefs(
                model, graph, evidence, solution, points, marginal=kbp.Parzen(K, jnp.asarray(points[:4]))
            ).weights,
            "empirical": kbp.beliefs(model, graph, evidence, solution, points, marginal=kbp.Empirical()).weights,
        }

    ys = np.random.default_rng(4).normal(size=(3, 2, 2)) * 0.7
    batch = jax.jit(jax.vmap(answers))(jnp.asarray(ys))
    for i, y in enumerate(ys):
        for name, expected in answers(jnp.asarray(y)).items():
            np.testing.assert_allclose(batch[name][i], expected, rtol=1e-6, atol=1e-6, err_msg=name)
    assert (np.asarray(batch["refined"][0]) != np.asarray(batch["refined"][1])).all()


@pytest.mark.parametrize(
    "ask", [kbp.mode, lambda b: kbp.quantile(b, 0.5), lambda b: kbp.sample(b, jax.random.key(0), 2)]
)
def test_a_belief_that_is_nan_has_no_answer_among_whole_numbers(ask):
    with pytest.raises(ValueError, match="belief: must have no NaN"):
        ask(jax.jit(kbp.Belief)(jnp.array([3, 4]), jnp.array([[np.nan, np.nan]])))
