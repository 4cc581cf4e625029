"""Positive operators: projection, clipping and constrained fit against independent solvers and exact expectations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.optimize import brentq, nnls

import kbpjax as kbp
from kbpjax.features import features
from kbpjax.learning.embedding import covariances, ridge_solve
from kbpjax.learning.nonnegative import Clipped, ConstrainedFit, positivity, simplex_rows

GOOD = ConstrainedFit(3000)
operator = eqx.filter_jit(lambda positive, *arguments: positive.operator(*arguments))
project_rows = jax.jit(simplex_rows)


def random_problem(seed, points=4, rank=3, other=5, penalty=1e-2):
    """A problem whose constraints can be met: the first feature is constant; its solution lies on the boundary."""
    rng = np.random.default_rng(seed)
    evaluate = np.concatenate([np.ones((points, 1)), rng.standard_normal((points, rank - 1))], axis=1)
    given = evaluate[rng.integers(points, size=60)] + 0.1 * rng.standard_normal((60, rank))
    target = 1 / other + 0.3 * (rng.standard_normal((60, other)) + given @ rng.standard_normal((rank, other)))
    covariance = given.T @ given + penalty * np.eye(rank)
    cross = given.T @ target
    return tuple(map(jnp.asarray, (evaluate, covariance, cross, np.linalg.solve(covariance, cross))))


def gaussian_problem(correlation, scale, seed, m, eps=1e-3, check=False):
    """Points of a Gaussian pair and the arguments of `operator`; bandwidth in units of the median heuristic.

    With `check` the operators must be those of a model that is fitted to the same samples.
    """
    rng = np.random.default_rng(seed)
    first, noise = rng.standard_normal((2, m))
    samples = np.stack([first, correlation * first + np.sqrt(1 - correlation**2) * noise], axis=1)
    data = kbp.pool(kbp.chain_graph(2), samples)
    kernel, rule = kbp.RBF(scale * kbp.median_bandwidth(samples[:, 0])), kbp.ConstantTime(eps=eps)
    basis = rule.node_basis(kernel, 1, data, 0)
    assert basis.products is not None
    sender, receiver = map(jnp.asarray, data.edges[0])
    covariance, cross = covariances(basis.messages, basis.products, receiver, sender)
    penalty = jnp.asarray(1e-5 * m, covariance.dtype)
    cross = cross @ basis.products.transform.T
    evaluate, project = features(basis.messages, basis.points), ridge_solve(covariance, cross, penalty)
    if check:
        model = kbp.fit(data, kernel=kernel, rule=rule, ridge=1e-5)
        learned = np.asarray(model.operators.evaluate[0]) @ np.asarray(model.operators.project[0])
        np.testing.assert_allclose(np.asarray(evaluate) @ np.asarray(project), learned, atol=1e-6)
    covariance = np.asarray(covariance) + float(penalty) * np.eye(len(covariance), dtype=covariance.dtype)
    return np.asarray(basis.points, np.float64), (evaluate, covariance, cross, project)


def gaussian_error(correlation, points, operator):
    """Relative error of E[exp(-(X_t - c)^2 / 2 s^2) | x_s] at points with |x_s| < 2; the exact value is a Gaussian."""
    squares = []
    for width in (0.3, 1.0):
        for center in (-1.0, 0.0, 1.5):
            bump = np.exp(-((points - center) ** 2) / 2 / width**2)
            spread = 1 - correlation**2 + width**2
            exact = width / np.sqrt(spread) * np.exp(-((correlation * points - center) ** 2) / 2 / spread)
            error = np.asarray(operator, np.float64) @ bump - exact
            seen = np.abs(points) < 2
            squares.append(np.mean(error[seen] ** 2) / np.mean(exact[seen] ** 2))
    return np.sqrt(np.mean(squares))


@pytest.mark.parametrize("size", [1, 2, 7, 40])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_simplex_projection_meets_its_optimality_conditions_and_a_root_finder(size, scale):
    values = scale * np.random.default_rng(size).standard_normal((3, 5, size))
    got = np.asarray(project_rows(values))
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-12)
    assert got.min() >= 0
    for row, projected in zip(values.reshape(-1, size), got.reshape(-1, size)):
        excess = lambda t, row=row: np.maximum(row - t, 0).sum() - 1
        threshold = brentq(excess, row.min() - 2, row.max(), xtol=1e-13)
        np.testing.assert_allclose(projected, np.maximum(row - threshold, 0), atol=1e-11)
        moved = row - projected  # t on the support, at most t elsewhere
        np.testing.assert_allclose(moved[projected > 0], moved.max(), atol=1e-11 * max(scale, 1))


def test_simplex_projection_of_minus_infinity_ties_and_large_single_precision_values():
    inf = np.inf
    rows = jnp.array([[-inf, 2.0, 2.0], [-inf, -5.0, -inf], [-inf, -inf, -inf], [0.25, 0.25, 0.5]])
    expected = [[0, 0.5, 0.5], [0, 1, 0], [0, 0, 0], [0.25, 0.25, 0.5]]
    np.testing.assert_array_equal(project_rows(rows), expected)
    large = project_rows(np.array([65536.0, 65536.5, 0.0], np.float32))
    np.testing.assert_array_equal(large, np.array([0.25, 0.75, 0.0], np.float32))


def test_clipped_by_hand():
    evaluate = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    project = jnp.array([[3.0, 1.0, -4.0, 0.0], [-1.0, -2.0, -3.0, 0.0]])
    got = operator(Clipped(), evaluate, jnp.eye(2), project, project)
    np.testing.assert_array_equal(got, [[0.75, 0.25, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])


def test_positivity_by_hand_and_over_axes():
    one = jnp.array([[1.5, -0.5], [0.0, 2.0]])
    share, mass = jax.jit(positivity)(jnp.stack([one, jnp.zeros((2, 2)), -one]))
    np.testing.assert_allclose(share, [0.25, 0, 0.5])
    np.testing.assert_allclose(mass, [0.125, 0, 0.875])
    share, mass = jax.jit(positivity)(one)
    assert share.shape == mass.shape == ()


def least_distance_table(evaluate, covariance, cross):
    """Solve the constrained fit by least distance programming (Lawson and Hanson 1974, chapter 23): exact, no loop.

    The rows of evaluate @ U sum to 1 where those of U sum to the first unit vector: the last column of U is what the
    others leave, U = free @ change + rest.
    """
    rank, other = cross.shape
    change = np.concatenate([np.eye(other - 1), -np.ones((other - 1, 1))], axis=1)
    rest = np.outer(np.eye(rank)[0], np.eye(other)[-1])
    factor = np.linalg.cholesky(np.kron(covariance, change @ change.T))
    center = np.linalg.solve(factor, ((cross - covariance @ rest) @ change.T).ravel())
    # In y = factor' free - center the objective is |y|^2, and evaluate @ U >= 0 reads: normals @ y >= offsets.
    normals = np.linalg.solve(factor, np.kron(evaluate, change.T).T).T
    offsets = -(evaluate @ rest).ravel() - normals @ center
    system = np.concatenate([normals.T, offsets[None]])
    goal = np.eye(len(system))[-1]
    residual = system @ nnls(system, goal)[0] - goal
    free = np.linalg.solve(factor.T, center - residual[:-1] / residual[-1])
    return evaluate @ (free.reshape(rank, other - 1) @ change + rest)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("points, rank", [(4, 3), (4, 4), (6, 2)])
def test_constrained_fit_agrees_with_an_active_set_solver(seed, points, rank):
    arguments = random_problem(seed, points, rank)
    evaluate, covariance, cross, project = map(np.asarray, arguments)
    expected = least_distance_table(evaluate, covariance, cross)
    assert expected.min() > -1e-9
    assert (expected < 1e-9).sum() >= 2  # constraints bind
    nearest = project_rows(evaluate @ project)
    assert np.abs(expected - nearest).max() > 1e-3  # and projecting the unconstrained fit is not enough
    np.testing.assert_allclose(operator(GOOD, *arguments), expected, atol=1e-6)


def test_constrained_fit_of_a_discrete_table_is_the_table():
    counts = np.random.default_rng(0).integers(1, 20, size=(4, 6)).astype(float)
    covariance, table = np.diag(counts.sum(1)), counts / counts.sum(1, keepdims=True)
    evaluate, covariance, cross, project = map(jnp.asarray, (np.eye(4), covariance, counts, table))
    once = operator(ConstrainedFit(1), evaluate, covariance, cross, project)
    np.testing.assert_allclose(once, table, atol=1e-12)
    without_start = operator(ConstrainedFit(500), evaluate, covariance, cross, jnp.zeros_like(project))
    np.testing.assert_allclose(without_start, table, atol=1e-9)


@pytest.mark.parametrize("num_iters", [1, 500])
def test_any_number_of_iterations_gives_rows_of_probabilities(num_iters):
    rng = np.random.default_rng(0)
    evaluate, cross = jnp.asarray(rng.standard_normal((6, 3))), jnp.asarray(rng.standard_normal((3, 5)))
    got = np.asarray(operator(ConstrainedFit(num_iters), evaluate, jnp.eye(3), cross, cross))  # no U reaches a table
    assert got.min() >= 0
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-12)


@pytest.mark.parametrize("positive", [Clipped(), GOOD])
def test_padding_has_no_weight(positive):
    evaluate, covariance, cross, project = random_problem(1)
    padded = (
        np.pad(evaluate, ((0, 2), (0, 1))),
        block_diag(covariance, [[1e-2]]),
        np.pad(cross, ((0, 1), (0, 3))),
        np.pad(project, ((0, 1), (0, 3))),
    )
    expected = np.pad(operator(positive, evaluate, covariance, cross, project), ((0, 2), (0, 3)))
    got = np.asarray(operator(positive, *padded))
    np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_array_equal(got[expected.shape[0] - 2 :], 0)
    np.testing.assert_array_equal(got[:, expected.shape[1] - 3 :], 0)


@pytest.mark.parametrize("positive", [Clipped(), ConstrainedFit(20)])
def test_padding_alone_gives_zeros(positive):
    evaluate, covariance, cross, project = random_problem(1)
    no_points = operator(positive, jnp.zeros_like(evaluate), covariance, cross, project)
    no_senders = operator(positive, evaluate, covariance, jnp.zeros_like(cross), jnp.zeros_like(project))
    np.testing.assert_array_equal(no_points, 0)
    np.testing.assert_array_equal(no_senders, 0)


@pytest.mark.parametrize("positive", [Clipped(), ConstrainedFit(100)])
def test_transforms_do_not_change_the_operator(positive):
    problems = [random_problem(seed) for seed in range(3)]
    eager = np.stack([positive.operator(*problem) for problem in problems])
    stacked = tuple(jnp.stack(parts) for parts in zip(*problems))
    np.testing.assert_allclose(jax.jit(positive.operator)(*problems[0]), eager[0], atol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.vmap(positive.operator))(*stacked), eager, atol=1e-12)
    mapped = jax.jit(lambda all: jax.lax.map(lambda one: positive.operator(*one), all))(stacked)
    np.testing.assert_allclose(mapped, eager, atol=1e-12)


@pytest.mark.parametrize("positive", [Clipped(), pytest.param(ConstrainedFit(), marks=pytest.mark.slow)])
def test_single_precision_is_close_to_double(positive):
    _, (evaluate, covariance, cross, project) = gaussian_problem(0.9, 0.5, seed=0, m=3000, check=positive == Clipped())
    narrow = (np.asarray(x, np.float32) for x in (evaluate, covariance, cross, project))
    single = operator(positive, *narrow)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(single).sum(1), 1, rtol=1e-5)
    # Single precision adds its own rounding error to the penalty, which moves entries by a few thousandths.
    rounding = float(np.finfo(np.float32).eps) * np.trace(covariance) * np.eye(len(covariance))
    np.testing.assert_allclose(single, operator(positive, evaluate, covariance, cross, project), atol=5e-3)
    np.testing.assert_allclose(single, operator(positive, evaluate, covariance + rounding, cross, project), atol=1e-4)


@pytest.mark.parametrize("correlation, scale, most", [(0.98, 0.5, 0.7), (0.9, 1.0, 0.85)])
@pytest.mark.slow
def test_constrained_fit_is_closer_to_gaussian_conditionals_than_clipping(correlation, scale, most):
    errors = {"clipped": [], "constrained": []}
    for seed in range(3):
        points, arguments = gaussian_problem(correlation, scale, seed, m=20_000)
        share, _ = jax.jit(positivity)(np.asarray(arguments[0]) @ np.asarray(arguments[3]))
        assert share > 0.25
        errors["clipped"].append(gaussian_error(correlation, points, operator(Clipped(), *arguments)))
        errors["constrained"].append(gaussian_error(correlation, points, operator(ConstrainedFit(100), *arguments)))
    assert np.mean(errors["constrained"]) < most * np.mean(errors["clipped"])


@pytest.mark.parametrize("num_iters", [0, -1, 2.0, True, "many"])
def test_number_of_iterations_is_checked(num_iters):
    with pytest.raises((ValueError, TypeError), match="num_iters"):
        ConstrainedFit(num_iters)
