"""Gaussian belief propagation against dense linear algebra in NumPy, and templates against dense conditioning."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines import gaussian

GRID = kbp.grid_graph(4, 5)
TREE_EDGES = [(np.random.default_rng(t).integers(t), t)[:: 1 if t % 2 else -1] for t in range(1, 12)]
TREE = kbp.Graph.from_edges(TREE_EDGES, 12)
undamped = functools.partial(gaussian.run, damping=0.0)
GRAPHS = {"grid": GRID, "tree": TREE, "chain": kbp.chain_graph(9)}


def ends(graph):
    """Return the undirected edges as the graph has them."""
    half = graph.num_edges // 2
    return np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]


def block_norms(matrix, dim):
    """Return the 2-norms of the blocks of I - D^-1/2 A D^-1/2, one at a time."""
    nodes = len(matrix) // dim
    blocks = matrix.reshape(nodes, dim, nodes, dim).swapaxes(1, 2)
    roots = []
    for s in range(nodes):
        values, vectors = np.linalg.eigh(blocks[s, s])
        roots.append(vectors @ np.diag(values**-0.5) @ vectors.T)
    norms = np.zeros((nodes, nodes))
    for s in range(nodes):
        for t in range(nodes):
            if s != t:
                norms[s, t] = np.linalg.norm(roots[s] @ blocks[s, t] @ roots[t], 2)
    return norms


@functools.cache
def field(name, dim, radius=0.9):
    """Return a precision matrix on a graph whose block norms have this spectral radius, and an information vector."""
    graph, rng = GRAPHS[name], np.random.default_rng(dim)
    nodes = graph.num_nodes
    matrix = np.zeros((nodes * dim, nodes * dim))
    blocks = matrix.reshape(nodes, dim, nodes, dim)
    for s, t in zip(*ends(graph), strict=True):
        block = rng.normal(size=(dim, dim))
        blocks[s, :, t], blocks[t, :, s] = block, block.T
    unit = np.eye(nodes * dim)
    off = radius * matrix / np.abs(np.linalg.eigvalsh(block_norms(unit + matrix, dim))).max()
    scale = np.zeros_like(matrix)
    for s in range(nodes):
        own = slice(s * dim, (s + 1) * dim)
        scale[own, own] = np.linalg.cholesky(np.cov(rng.normal(size=(dim, 4 * dim + 4)), bias=True).reshape(dim, dim))
    return scale @ (unit + off) @ scale.T, rng.normal(size=nodes * dim)


def model_of(name, dim, dtype=jnp.float64):
    matrix, b = field(name, dim)
    return gaussian.GaussianMRF.from_matrix(GRAPHS[name], jnp.asarray(matrix, dtype), jnp.asarray(b, dtype), dim)


def blocks_of(matrix, dim):
    """Return the diagonal blocks."""
    return np.stack([matrix[s : s + dim, s : s + dim] for s in range(0, len(matrix), dim)])


def relative(got, expected):
    return np.abs(np.asarray(got) - expected).max() / np.abs(expected).max()


# --- means and covariances -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "dtype", "tol", "error"),
    [
        pytest.param(1, jnp.float64, 1e-13, 1e-10, marks=pytest.mark.slow),
        (2, jnp.float64, 1e-13, 1e-10),
        (3, jnp.float32, 1e-6, 1e-5),
    ],
)
def test_means_on_a_grid_are_those_of_the_dense_solve(dim, dtype, tol, error):
    matrix, b = field("grid", dim)
    model = model_of("grid", dim, dtype)
    solution = gaussian.check(undamped(model, GRID, num_iters=400, tol=tol))
    assert solution.mean.dtype == solution.residuals.dtype == dtype
    assert relative(solution.mean.ravel(), np.linalg.solve(matrix, b)) < error
    count = int(solution.num_iters)
    assert count < 400 and solution.residuals[count - 1] <= tol < solution.residuals[count - 2]
    assert np.isnan(solution.residuals[count:]).all() and np.isfinite(solution.residuals[:count]).all()
    assert not solution.diverged
    got, truth = np.asarray(solution.covariance), blocks_of(np.linalg.inv(matrix), dim)
    assert np.linalg.eigvalsh(got).min() > 0
    assert relative(got, truth) > 1e-3  # loops: not exact, so that the tests on trees mean something
    if dtype == jnp.float64:
        slow = gaussian.run(model, GRID, num_iters=400, tol=tol, damping=0.4)
        assert slow.converged and slow.num_iters > count
        assert relative(slow.mean.ravel(), np.linalg.solve(matrix, b)) < error
        assert relative(slow.covariance, got) < error


@pytest.mark.parametrize(
    ("name", "dim"), [("tree", 2), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("tree", "chain"))]
)
def test_means_and_covariances_are_exact_on_trees(name, dim):
    matrix, b = field(name, dim)
    solution = undamped(model_of(name, dim), GRAPHS[name], num_iters=12)
    assert relative(solution.mean.ravel(), np.linalg.solve(matrix, b)) < 1e-9
    assert relative(solution.covariance, blocks_of(np.linalg.inv(matrix), dim)) < 1e-9
    assert solution.converged and solution.num_iters == 12 and solution.residuals[-1] < 1e-14


def test_messages_are_equations_48_and_49():
    """Two iterations with damping, one message at a time."""
    model, dim = model_of("tree", 2), 2
    matrix, b = (np.asarray(array) for array in field("tree", 2))
    edges = list(zip(np.asarray(TREE.senders), np.asarray(TREE.receivers), strict=True))
    blocks = matrix.reshape(12, dim, 12, dim).swapaxes(1, 2)
    old = {edge: (np.zeros((dim, dim)), np.zeros(dim)) for edge in edges}
    for _ in range(2):
        new = {}
        for t, s in edges:
            arriving = [old[u, v] for u, v in edges if v == t and u != s]
            inverse = np.linalg.inv(blocks[t, t] + sum(p for p, _ in arriving))
            shift = b.reshape(12, dim)[t] + sum(m for _, m in arriving)
            fresh = -blocks[t, s].T @ inverse @ blocks[t, s], -shift @ inverse @ blocks[t, s]
            new[t, s] = tuple(0.3 * a + 0.7 * c for a, c in zip(old[t, s], fresh, strict=True))
        old = new
    solution = gaussian.run(model, TREE, num_iters=2, damping=0.3)
    assert not solution.converged and not solution.diverged
    messages = solution.messages
    np.testing.assert_allclose(messages.precision, [old[edge][0] for edge in edges], rtol=1e-12)
    np.testing.assert_allclose(messages.information, [old[edge][1] for edge in edges], rtol=1e-12)


def test_nodes_without_edges_stand_alone():
    model = gaussian.GaussianMRF([2.0], [3.0], [])
    for options in ({}, {"tol": 1e-6}):
        solution = gaussian.check(undamped(model, kbp.chain_graph(1), **options))
        np.testing.assert_allclose([solution.mean.item(), solution.covariance.item()], [1.5, 0.5], rtol=1e-15)
    assert gaussian.walk_summability(model, kbp.chain_graph(1)) == 0


def test_permuted_nodes_have_permuted_answers():
    rng = np.random.default_rng(5)
    matrix, b = field("grid", 1)
    number = rng.permutation(20)  # node s becomes number[s]
    edges = np.stack([number[end] for end in ends(GRID)], axis=1)
    turn = rng.random(len(edges)) < 0.5
    edges[turn] = edges[turn, ::-1]
    graph = kbp.Graph.from_edges(edges[rng.permutation(len(edges))], 20)
    back = np.argsort(number)
    model = gaussian.GaussianMRF.from_matrix(graph, matrix[np.ix_(back, back)], b[back])
    got = undamped(model, graph, num_iters=400, tol=0.01)
    expected = undamped(model_of("grid", 1), GRID, num_iters=400, tol=0.01)
    assert 5 < got.num_iters < 50  # far from the fixed point, which hides the way there
    np.testing.assert_allclose(got.mean[number], expected.mean, rtol=1e-12)
    np.testing.assert_allclose(got.covariance[number], expected.covariance, rtol=1e-12)
    np.testing.assert_allclose(got.residuals, expected.residuals, rtol=1e-9)


# --- transformations -----------------------------------------------------------------------------------------------


def test_jit_vmap_and_gradients_on_a_tree():
    matrix, b = field("tree", 1)
    inverse = np.linalg.inv(matrix)
    model = model_of("tree", 1)

    def mean(precision, information):
        return undamped(gaussian.GaussianMRF(precision, information, model.coupling), TREE, num_iters=12).mean[:, 0]

    many = np.stack([b, 2 * b, b[::-1]])
    together = jax.jit(jax.vmap(mean, in_axes=(None, 0)))(model.precision, jnp.asarray(many))
    for row, information in zip(together, many, strict=True):
        np.testing.assert_allclose(row, mean(model.precision, jnp.asarray(information)), rtol=1e-12)
        np.testing.assert_allclose(row, inverse @ information, rtol=1e-9)
    by_precision, by_information = jax.jit(jax.jacrev(mean, (0, 1)))(model.precision, jnp.asarray(b))
    np.testing.assert_allclose(by_information, inverse, atol=1e-10 * np.abs(inverse).max())
    np.testing.assert_allclose(by_precision[:, :, 0, 0], -inverse * (inverse @ b)[None], rtol=1e-8, atol=1e-10)


def test_vmap_over_information_with_a_tolerance():
    model = model_of("grid", 1)
    many = jnp.asarray(np.random.default_rng(0).normal(size=(3, 20)) * [[1], [0], [1e6]])

    def solve(information):
        same = gaussian.GaussianMRF(model.precision, information, model.coupling)
        return undamped(same, GRID, num_iters=400, tol=1e-13)

    together = jax.jit(jax.vmap(solve))(many)
    assert together.converged.all() and gaussian.check(together) is together
    np.testing.assert_allclose(together.mean[..., 0].T, np.linalg.solve(field("grid", 1)[0], many.T), rtol=1e-8)
    for i, information in enumerate(many):
        assert solve(information).num_iters == together.num_iters[i]
    _, forward = jax.jvp(lambda b: solve(b).mean[:, 0], (many[0],), (many[2],))
    np.testing.assert_allclose(forward, together.mean[2, :, 0], rtol=1e-6)


# --- convergence ---------------------------------------------------------------------------------------------------

CHORD = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)], 4)


def ring_with_chord(r):
    """Return the example of Malioutov et al. 2006, figure 2."""
    matrix = np.array([[1, -r, r, r], [-r, 1, r, 0], [r, r, 1, r], [r, 0, r, 1]])
    return matrix, gaussian.GaussianMRF.from_matrix(CHORD, matrix, np.ones(4))


def test_the_walk_summability_of_malioutov_et_al():
    """Their figure: |R| has radius 1 at r = 0.39, and the field is valid to 0.5."""
    radius = lambda r: float(gaussian.walk_summability(ring_with_chord(r)[1], CHORD))
    assert radius(0.39) < 1 < radius(0.391)
    for r in (0.2, 0.39, 0.45):
        exact = np.linalg.eigvalsh(np.abs(np.eye(4) - ring_with_chord(r)[0])).max()
        np.testing.assert_allclose(radius(r), exact, rtol=1e-10)


@pytest.mark.parametrize("dim", [1, 2])
def test_walk_summability_is_the_spectral_radius(dim):
    model = model_of("grid", dim)
    exact = np.abs(np.linalg.eigvalsh(block_norms(field("grid", dim)[0], dim))).max()
    np.testing.assert_allclose(gaussian.walk_summability(model, GRID), exact, rtol=1e-8)
    np.testing.assert_allclose(exact, 0.9, rtol=1e-9)
    if dim > 1:
        return
    bounds = [float(gaussian.walk_summability(model, GRID, num_iters=n)) for n in (1, 10)]
    assert bounds[0] > bounds[1] > exact


def test_divergence_is_reported():
    matrix, model = ring_with_chord(0.45)
    assert np.linalg.eigvalsh(matrix).min() > 0.05
    assert gaussian.walk_summability(model, CHORD) > 1
    stopped = undamped(model, CHORD, num_iters=200, tol=1e-8)
    for solution in (undamped(model, CHORD, num_iters=200), stopped):
        assert solution.diverged and not solution.converged
        assert np.isnan(solution.mean).any() and np.isnan(solution.residuals[-1])
        with pytest.raises(
            kbp.NotConverged, match=r"^messages diverged at iteration \d+: .* Use more damping.*walk_summ"
        ):
            gaussian.check(solution)
    assert stopped.num_iters < 200 and np.isfinite(stopped.residuals[: stopped.num_iters - 1]).all()
    assert (
        np.isnan(gaussian.beliefs(model, CHORD, None, stopped, [0.0, 1.0]).weights).all(axis=1).tolist()
        == np.isnan(stopped.mean[:, 0]).tolist()
    )
    calm = gaussian.check(undamped(ring_with_chord(0.39)[1], CHORD, num_iters=200, tol=1e-8))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), calm, stopped)
    with pytest.raises(kbp.NotConverged, match=r"^1 of 2 problems; number 1: messages diverged"):
        gaussian.check(both)


def test_messages_at_rest_whose_beliefs_are_not_gaussian_are_reported():
    """Two nodes whose coupling outweighs them: all messages are proper, and no belief is."""
    solution = undamped(gaussian.GaussianMRF([1.0, 1.0], [1.0, 0.0], [2.0]), kbp.chain_graph(2))
    assert solution.residuals[-1] == 0 and solution.diverged and not solution.converged
    assert np.isnan(solution.mean).all() and np.isnan(solution.covariance).all()
    with pytest.raises(kbp.NotConverged, match=r"^beliefs diverged: a precision is not positive definite\."):
        gaussian.check(solution)


def test_check_says_what_the_residuals_show():
    def solution_of(residuals):
        model = gaussian.GaussianMRF([1.0], [0.0], [])
        solution = undamped(model, kbp.chain_graph(1))
        values = solution.mean, solution.covariance, solution.messages, jnp.array(False), jnp.array(False)
        return gaussian.GaussianSolution(*values, jnp.int32(len(residuals)), jnp.asarray(residuals))

    with pytest.raises(
        kbp.NotConverged, match=r"^residual 0\.25 after 3 iterations, and falling by 50% .* num_iters\.$"
    ):
        gaussian.check(solution_of([1.0, 0.5, 0.25]))
    with pytest.raises(
        kbp.NotConverged, match=r"^residual 0\.5 after 30 iterations, and not falling: .* Use more damping\."
    ):
        gaussian.check(solution_of([0.5] * 30))
    with pytest.raises(kbp.NotConverged, match=r"^residual 1 after 1 iterations"):
        gaussian.check(solution_of([1.0]))
    with pytest.raises(ValueError, match="^solution: must be known; got a tracer"):
        jax.jit(gaussian.check)(solution_of([1.0]))


# --- beliefs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2])
def test_beliefs_are_normal_densities(dim):
    model = model_of("tree", dim)
    solution = undamped(model, TREE, num_iters=12)
    points = np.random.default_rng(0).normal(size=(7, dim)) * 3
    got = gaussian.beliefs(model, TREE, None, solution, points)
    assert got.weights.shape == (12, 7) and got.points.shape == (7, dim)
    for mean, covariance, row in zip(*map(np.asarray, (solution.mean, solution.covariance, got.weights)), strict=True):
        deviations = points - mean
        density = np.exp(-0.5 * np.sum(deviations @ np.linalg.inv(covariance) * deviations, axis=1))
        np.testing.assert_allclose(row, density / density.sum(), rtol=1e-9)


def test_beliefs_have_the_moments_of_the_solution():
    problem = model_of("chain", 1), GRAPHS["chain"], None
    solution = undamped(*problem, num_iters=12)
    belief = gaussian.beliefs(*problem, solution, np.linspace(-60, 60, 6001))
    answers = jax.jit(lambda belief: (kbp.mean(belief), kbp.variance(belief), kbp.interval(belief, 0.9)))
    mean, variance, (lower, upper) = answers(belief)
    np.testing.assert_allclose(mean, solution.mean[:, 0], atol=1e-9)
    np.testing.assert_allclose(variance, solution.covariance[:, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(upper - lower, 2 * 1.6448536 * np.sqrt(solution.covariance[:, 0, 0]), atol=0.05)
    far = gaussian.beliefs(*problem, solution, [1e3, 1e4])  # where densities underflow
    np.testing.assert_allclose(far.weights, [[1, 0]] * 9)


# --- thin membrane -------------------------------------------------------------------------------------------------


def test_thin_membrane_is_regularised_least_squares():
    rng = np.random.default_rng(2)
    y, mask = rng.normal(size=20), np.arange(20) % 3 > 0
    noise, strength = rng.uniform(0.5, 1, 20), rng.uniform(0.5, 2, 31)
    laplacian = np.zeros((20, 20))
    for s, t, w in zip(*ends(GRID), strength, strict=True):
        laplacian[[s, t], [s, t]] += w
        laplacian[[s, t], [t, s]] -= w
    weight = mask / noise**2
    expected = np.linalg.solve(laplacian + np.diag(weight + 0.1), weight * y + 0.1 * 3)
    model = gaussian.thin_membrane(GRID, edge_precision=strength, prior_mean=3.0, prior_precision=0.1)
    evidence = gaussian.likelihood(model, GRID, np.where(mask, y, np.nan), noise=noise, mask=mask)
    assert gaussian.walk_summability(model, GRID, evidence) < gaussian.walk_summability(model, GRID) < 1
    solution = gaussian.check(undamped(model, GRID, evidence, num_iters=400, tol=1e-13))
    np.testing.assert_allclose(solution.mean[:, 0], expected, rtol=1e-10)
    plane = gaussian.thin_membrane(GRID, edge_precision=strength, dim=2)
    seen = gaussian.likelihood(plane, GRID, np.stack([y, 2 * y], axis=1), noise=noise)
    expected = np.linalg.solve(laplacian + np.diag(noise**-2), y / noise**2)
    solution = undamped(plane, GRID, seen, num_iters=400, tol=1e-13)
    np.testing.assert_allclose(solution.mean, np.stack([expected, 2 * expected], axis=1), rtol=1e-9)


def test_nodes_without_prior_have_the_mean_of_their_evidence():
    """A field that is improper without evidence: no edges in effect, one node observed and one not."""
    graph = kbp.chain_graph(2)
    model = gaussian.thin_membrane(graph, edge_precision=0.0)
    solution = undamped(model, graph, gaussian.likelihood(model, graph, [3.0, 4.0], noise=2.0))
    np.testing.assert_allclose(solution.mean[:, 0], [3, 4], rtol=1e-12)
    assert solution.converged
    half = undamped(model, graph, gaussian.likelihood(model, graph, [3.0, 4.0], noise=2.0, mask=[True, False]))
    assert half.diverged and np.isnan(half.mean[1]) and not half.converged


# --- templates -----------------------------------------------------------------------------------------------------


def samples_of(rng, mean, covariance, count=40):
    """Return samples whose mean and covariance are these to rounding."""
    z = rng.normal(size=(count, len(mean)))
    z -= z.mean(axis=0)
    z = np.linalg.solve(np.linalg.cholesky(np.cov(z.T, bias=True).reshape(len(mean), -1)), z.T).T
    return mean + z @ np.linalg.cholesky(covariance).T


def condition(mean, covariance, y, slope, offset, noise):
    """Return mean and covariance of x given y = slope x + offset + noise, by dense conditioning."""
    gain = covariance @ slope.T @ np.linalg.inv(slope @ covariance @ slope.T + noise)
    return mean + gain @ (y - slope @ mean - offset), covariance - gain @ slope @ covariance


RHO, STD, SIZE = 0.8, 0.7, 9
AR = RHO ** np.abs(np.subtract.outer(np.arange(SIZE), np.arange(SIZE)))


def test_exact_moments_give_the_posterior_of_a_chain():
    rng = np.random.default_rng(0)
    pair = samples_of(rng, [1.0, 1.0], 4 * AR[:2, :2])
    seen = samples_of(rng, [1.0, 2.5], np.array([[4.0, 2.0], [2.0, 1 + STD**2]]))  # y = x / 2 + 2 + noise
    node = samples_of(rng, [1.0], np.array([[4.0]]))
    data = kbp.TrainingData({0: (pair[:, :1], pair[:, 1:])}, {0: node}, {0: (seen[:, :1], seen[:, 1:])})
    template = gaussian.fit(data)
    chain = GRAPHS["chain"]
    mean, y = np.ones(SIZE), rng.normal(size=SIZE)
    prior = undamped(template, chain, num_iters=12)
    np.testing.assert_allclose(prior.mean[:, 0], mean, rtol=1e-10)
    np.testing.assert_allclose(prior.covariance[:, 0, 0], np.full(SIZE, 4.0), rtol=1e-10)
    for mask in (None, np.arange(SIZE) % 4 != 1):
        kept = np.ones(SIZE, bool) if mask is None else mask
        slope = 0.5 * np.eye(SIZE)[kept]
        expected = condition(mean, 4 * AR, y[kept], slope, 2.0, STD**2 * np.eye(kept.sum()))
        evidence = gaussian.observe(template, chain, np.where(kept, y, np.nan), mask=mask)
        solution = undamped(template, chain, evidence, num_iters=12)
        np.testing.assert_allclose(solution.mean[:, 0], expected[0], rtol=1e-9)
        np.testing.assert_allclose(solution.covariance[:, 0, 0], np.diag(expected[1]), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_give_the_posterior_of_a_chain_to_sampling_error(dtype):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, SIZE)) @ np.linalg.cholesky(AR).T
    y = x + STD * rng.normal(size=x.shape)
    chain = GRAPHS["chain"]
    template = gaussian.fit(kbp.pool(chain, x.astype(dtype), y.astype(dtype)))
    mean, covariance = condition(np.zeros(SIZE), AR, y[0], np.eye(SIZE), 0.0, STD**2 * np.eye(SIZE))
    solution = undamped(template, chain, gaussian.observe(template, chain, y[0].astype(dtype)), num_iters=12)
    assert solution.mean.dtype == dtype
    # Some 1 / sqrt(4000 chains) of the moments, in units of the posterior's standard deviation; the seed decides.
    error = np.abs(np.asarray(solution.mean)[:, 0] - mean) / np.sqrt(np.diag(covariance))
    assert 1e-4 < error.max() < 0.06
    np.testing.assert_allclose(solution.covariance[:, 0, 0], np.diag(covariance), rtol=0.04)


def test_types_have_moments_of_their_own():
    """A tree of nodes of types 0 and 2 in the plane, edges of types 1, 2 and 4; type 2 alone is observed."""
    rng = np.random.default_rng(3)
    edges, node_type = [(0, 1), (2, 1), (1, 3), (4, 3), (3, 5)], np.array([0, 0, 0, 2, 2, 0])
    edge_type = np.array([1, 1, 2, 4, 2])
    graph = kbp.Graph.from_edges(edges, 6, edge_type=edge_type, node_type=node_type)
    spread = {v: np.cov(rng.normal(size=(2, 9))) for v in (0, 2)}
    center = {v: rng.normal(size=2) for v in (0, 2)}
    kinds = {1: (0, 0), 2: (0, 2), 4: (2, 2)}
    root = {v: np.linalg.cholesky(spread[v]) for v in spread}
    cross = {k: root[a] @ (0.3 * rng.normal(size=(2, 2))) @ root[b].T for k, (a, b) in kinds.items()}
    slope, noise = rng.normal(size=(3, 2)), np.cov(rng.normal(size=(3, 9)))

    def pairs(mean, covariance, size):
        z = samples_of(rng, mean, covariance)
        return z[:, :size], z[:, size:]

    joint = {k: np.block([[spread[a], cross[k]], [cross[k].T, spread[b]]]) for k, (a, b) in kinds.items()}
    view = spread[2] @ slope.T
    view = np.block([[spread[2], view], [view.T, slope @ spread[2] @ slope.T + noise]])
    data = kbp.TrainingData(
        {k: pairs(np.concatenate([center[a], center[b]]), joint[k], 2) for k, (a, b) in kinds.items()},
        {v: samples_of(rng, center[v], spread[v]) for v in (0, 2)},
        {2: pairs(np.concatenate([center[2], slope @ center[2] + 1]), view, 2)},
        ends=kinds,
    )
    # The joint covariance of a tree: Cov(t, .) = Cov(t, parent) Cov(parent)^-1 Cov(parent, .), from the root 1 on.
    whole = np.zeros((6, 2, 6, 2))
    whole[1, :, 1] = spread[0]
    known = [1]
    between = {}
    for (a, b), k in zip(zip(*ends(graph), strict=True), np.asarray(graph.edge_type), strict=False):
        between[a, b], between[b, a] = cross[int(k)], cross[int(k)].T
    for t, parent in [(0, 1), (2, 1), (3, 1), (4, 3), (5, 3)]:
        gain = between[t, parent] @ np.linalg.inv(spread[node_type[parent]])
        for s in known:
            whole[t, :, s] = gain @ whole[parent, :, s]
            whole[s, :, t] = whole[t, :, s].T
        whole[t, :, t] = spread[node_type[t]]
        known.append(t)
    mean, y = np.concatenate([center[v] for v in node_type]), rng.normal(size=(6, 3))
    measure = np.kron(np.eye(6)[[3, 4]], slope)
    expected = condition(mean, whole.reshape(12, 12), y[[3, 4]].ravel(), measure, 1.0, np.kron(np.eye(2), noise))
    template = gaussian.fit(data)
    evidence = jax.jit(lambda y: gaussian.observe(template, graph, y))(jnp.asarray(y))
    solution = undamped(template.build(graph), graph, evidence, num_iters=8)
    np.testing.assert_allclose(solution.mean.ravel(), expected[0], rtol=1e-8)
    np.testing.assert_allclose(solution.covariance, blocks_of(expected[1], 2), rtol=1e-8, atol=1e-10)


def test_strong_dependence_on_a_grid_wants_exponents():
    pair = samples_of(np.random.default_rng(0), np.zeros(2), np.array([[1, 0.7], [0.7, 1]]))
    template = gaussian.fit(kbp.TrainingData({0: (pair[:, 0], pair[:, 1])}, {0: pair[:, 0]}))
    model = template.build(GRID)
    assert gaussian.walk_summability(model, GRID) > 1
    safe = template.build(GRID, exponents=kbp.tree_reweighting(GRID))
    dense = lambda model: np.asarray(model.precision)[:, 0, 0] * np.eye(20) + off(model)

    def off(model):
        matrix = np.zeros((20, 20))
        first, second = ends(GRID)
        matrix[first, second] = matrix[second, first] = np.asarray(model.coupling)[:, 0, 0]
        return matrix

    assert np.linalg.eigvalsh(dense(model)).min() < -0.1
    assert np.linalg.eigvalsh(dense(safe)).min() > 0.05
    assert gaussian.walk_summability(safe, GRID) < 1
    assert undamped(safe, GRID, num_iters=400, tol=1e-13).converged
    half = template.build(GRID, exponents=0.5)
    np.testing.assert_allclose(half.coupling, model.coupling / 2, rtol=1e-12)
    np.testing.assert_allclose(half.precision - 1, (model.precision - 1) / 2, rtol=1e-12)


def test_a_ridge_is_added_to_every_covariance():
    x = np.random.default_rng(0).integers(0, 5, size=(50, SIZE))  # integers are numbers too
    chain = GRAPHS["chain"]
    template = gaussian.fit(kbp.pool(chain, np.zeros((50, SIZE)), x), ridge=0.25)
    model, evidence = template.build(chain), gaussian.observe(template, chain, np.arange(SIZE))
    np.testing.assert_allclose((model.precision + evidence.precision)[:, 0, 0], np.full(SIZE, 4.0))
    np.testing.assert_allclose(model.coupling, np.zeros((SIZE - 1, 1, 1)), atol=1e-12)
    single = kbp.TrainingData({}, {0: np.arange(3.0)})
    model = gaussian.fit(single).build(kbp.chain_graph(1))
    np.testing.assert_allclose([model.precision.item(), model.information.item()], [1.5, 1.5])


# --- refusals ------------------------------------------------------------------------------------------------------

PAIR, EYE, SKEW = kbp.chain_graph(2), np.eye(2), np.array([[1.0, 1.0], [0.0, 1.0]])


def field_of(precision=(2.0, 2.0), information=(1.0, 1.0), coupling=(-1.0,)):
    return gaussian.GaussianMRF(precision, information, coupling)


def membrane(y=(0.0, 1.0), **options):
    noise, mask = options.pop("noise", 1.0), options.pop("mask", None)
    model = gaussian.thin_membrane(PAIR, **{"edge_precision": 1.0, **options})
    return gaussian.likelihood(model, PAIR, y, noise=noise, mask=mask)


@functools.cache
def small_template(observed=True):
    x = np.random.default_rng(0).normal(size=(9, 2))
    return gaussian.fit(kbp.pool(PAIR, x, x + x[::-1] if observed else None))


def read(model, graph, points):
    return gaussian.beliefs(model, graph, None, undamped(model, graph, num_iters=12), points)


def learn(x, y=None, **options):
    return gaussian.fit(kbp.TrainingData({}, x, y), **options)


NORMAL = np.random.default_rng(0).normal(size=(9, 3))
REFUSALS = {
    "precision: must have shape [node, dim, dim] or [node]; got (2, 2)": lambda: field_of(EYE),
    "precision: must be symmetric; got number 1, off by 1.": lambda: field_of([EYE, SKEW]),
    "precision: must be positive semidefinite; got number 1 with least eigenvalue -1. The": lambda: field_of(
        [1.0, -1.0]
    ),
    "precision: must be positive semidefinite; got number 0 with least": lambda: field_of([np.ones((2, 2)) - EYE] * 2),
    "precision: must be finite": lambda: field_of([1.0, np.nan]),
    "information: must have shape (2, 1); got (3, 1)": lambda: field_of(information=[1.0, 1.0, 1.0]),
    "information: must be finite": lambda: field_of(information=[1.0, np.inf]),
    "coupling: must have shape [pair, 1, 1]; got (1, 2, 2)": lambda: field_of(coupling=[EYE]),
    "coupling: must be finite": lambda: field_of(coupling=[np.nan]),
    "matrix: must have shape (2, 2); got (3, 3)": lambda: gaussian.GaussianMRF.from_matrix(PAIR, np.eye(3), [0.0, 1.0]),
    "matrix: must be symmetric": lambda: gaussian.GaussianMRF.from_matrix(PAIR, SKEW, [0.0, 1.0]),
    "matrix: must be positive definite; got number 0 with least eigenvalue -1": lambda: (
        gaussian.GaussianMRF.from_matrix(PAIR, 2 - EYE, [0.0, 1.0])
    ),
    "matrix: must be 0 off the edges; got nodes [[0, 2], [2, 0]]. Add the edges": lambda: (
        gaussian.GaussianMRF.from_matrix(kbp.chain_graph(3), np.eye(3) + 0.1, np.zeros(3))
    ),
    "information: must have shape (2,) or (2, 1); got (3,)": lambda: gaussian.GaussianMRF.from_matrix(
        PAIR, EYE, np.zeros(3)
    ),
    "dim: must be an integer >= 1": lambda: gaussian.GaussianMRF.from_matrix(PAIR, EYE, np.zeros(2), 0),
    "model: must have 2 nodes and 1 edges, as the graph; got (3, 1)": lambda: undamped(
        field_of([1.0] * 3, [1.0] * 3), PAIR
    ),
    "model: must have 3 nodes and 2 edges": lambda: gaussian.walk_summability(field_of(), kbp.chain_graph(3)),
    "num_iters: must be an integer >= 1; got 0": lambda: undamped(field_of(), PAIR, num_iters=0),
    "num_iters: must be an integer; got 1.5": lambda: gaussian.walk_summability(field_of(), PAIR, num_iters=1.5),
    "damping: must be finite and >= 0 and < 1; got 1.0": lambda: gaussian.run(field_of(), PAIR, damping=1.0),
    "tol: must be finite and > 0; got 0": lambda: undamped(field_of(), PAIR, tol=0.0),
    "noise: must be finite and > 0; got 0": lambda: membrane(noise=[1.0, 0.0]),
    "edge_precision: must be finite and >= 0; got -1": lambda: membrane(edge_precision=-1.0),
    "edge_precision: must have shape () or (1,); got (2,)": lambda: membrane(edge_precision=[1.0, 1.0]),
    "prior_precision: must be finite and >= 0; got -2": lambda: membrane(prior_precision=-2.0),
    "prior_mean: must be finite": lambda: membrane(prior_mean=np.nan),
    "y: must have shape [2, *obs_dim]; got (3,)": lambda: membrane([0.0, 1.0, 2.0]),
    "y: must be finite; got 1 NaN": lambda: membrane([0.0, np.nan]),
    "mask: must be boolean, or 0 and 1, of shape (2,); got int": lambda: membrane(mask=[2, 0]),
    "y: must hold 1 numbers a node; got 2": lambda: membrane(EYE),
    "dim: must be an integer >= 1; got 0": lambda: membrane(dim=0),
    "points: must have shape [point, 1] or [point]; got (0,)": lambda: read(field_of(), PAIR, []),
    "points: must be finite": lambda: read(field_of(), PAIR, [np.nan]),
    "points: must have shape [point, 2]; got (3,)": lambda: read(model_of("tree", 2), TREE, [0.0, 1.0, 2.0]),
    "solution: must have means (2, 1); got (1, 1)": lambda: gaussian.beliefs(
        field_of(), PAIR, None, undamped(gaussian.GaussianMRF([1.0], [0.0], []), kbp.chain_graph(1)), [0.0]
    ),
    "evidence: must be factors of shape (2, 1); got (2, 2)": lambda: undamped(
        field_of(), PAIR, gaussian.GaussianFactors(jnp.zeros((2, 2, 2)), jnp.zeros((2, 2)))
    ),
    "nodes[0]: must have a covariance that is positive definite; got": lambda: learn({0: np.ones(5)}),
    "observations[0]: must have a covariance that": lambda: learn({0: NORMAL[:, 0]}, {0: (NORMAL[:, 0], NORMAL[:, 0])}),
    "nodes: must be of one length in all types; got {0: 1, 3: 2}": lambda: learn({0: NORMAL[:, 0], 3: NORMAL[:, 1:]}),
    "observations: must be of one length in all types": lambda: learn(
        {0: NORMAL[:, 0], 1: NORMAL[:, 0]}, {0: (NORMAL[:, 0], NORMAL[:, 1]), 1: (NORMAL[:, 0], NORMAL[:, 1:])}
    ),
    "ridge: must be finite and >= 0": lambda: learn({0: NORMAL}, ridge=-1.0),
    "graph: must have node types among (0,); got [2]": lambda: small_template().build(
        kbp.chain_graph(2, node_type=[2, 2])
    ),
    "graph: must have edge types (type, first, second) among ((0, 0, 0),); got [(1, 0, 0)]": lambda: (
        small_template().build(kbp.chain_graph(2, edge_type=[1]))
    ),
    "model: must have learned observations; got none": lambda: gaussian.observe(
        small_template(False), PAIR, [0.0, 1.0]
    ),
    "model: must be a GaussianTemplate; got GaussianMRF": lambda: inspect.unwrap(gaussian.observe)(
        field_of(), PAIR, [0.0, 1.0]
    ),
    "y: must hold 1 numbers a node; got 2.": lambda: gaussian.observe(small_template(), PAIR, EYE),
    "exponents: must be > 0 and finite": lambda: small_template().build(PAIR, exponents=-1.0),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_bad_input_is_refused(text):
    with pytest.raises(ValueError, match="^" + re.escape(text)):
        REFUSALS[text]()
