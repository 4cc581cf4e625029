"""Gaussian potentials: the walk-summable Gaussian copula of a graph, against known precisions and exact answers."""

import itertools

import jax
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.training.gaussian import LIMIT, can_be_gaussian, gaussian_model, walk_summable

EDGES = np.array([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (0, 3), (1, 4)])
GRAPH = kbp.Graph.from_edges(EDGES, 6)


def full(found, ends):
    """Return the precision matrix of a Gaussian."""
    matrix = np.diag(np.asarray(found.diagonal, float))
    matrix[ends[:, 0], ends[:, 1]] = matrix[ends[:, 1], ends[:, 0]] = np.asarray(found.entries, float)
    return matrix


def attractive(rng):
    """Return a walk-summable precision matrix of the graph, of values with variance 1, and its covariance."""
    matrix = np.eye(6)
    matrix[EDGES[:, 0], EDGES[:, 1]] = matrix[EDGES[:, 1], EDGES[:, 0]] = -rng.uniform(0.15, 0.33, len(EDGES))
    scale = np.sqrt(np.diag(np.linalg.inv(matrix)))
    return matrix * scale[:, None] * scale[None], np.linalg.inv(matrix) / scale[:, None] / scale[None]


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    matrix, covariance = attractive(rng)
    x = rng.multivariate_normal(np.zeros(6), covariance, 3000)
    return matrix, covariance, x


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_gaussian_is_recovered(drawn, missing):
    matrix, _, x = drawn
    holes = np.where(np.random.default_rng(1).random(x.shape) < missing, np.nan, x)
    found = walk_summable(holes + np.arange(6), EDGES)
    assert np.linalg.norm(full(found, EDGES) - matrix) < (0.05 if missing == 0 else 0.08) * np.linalg.norm(matrix)
    if missing == 0:  # at the largest likelihood, covariances of ends of edges are those of the sample
        left = np.linalg.inv(full(found, EDGES)) - np.cov(x.T, bias=True)
        assert np.abs(left[EDGES[:, 0], EDGES[:, 1]]).max() < 1e-4 and np.abs(np.diag(left)).max() < 1e-4
    assert np.abs(np.asarray(found.mean) - np.arange(6)).max() < 0.08


@pytest.mark.slow
def test_missing_values_are_those_of_the_largest_likelihood(drawn):
    """The likelihood of what is seen has no slope at what is found."""
    _, _, x = drawn
    holes = np.where(np.random.default_rng(2).random((400, 6)) < 0.4, np.nan, x[:400])
    found = walk_summable(holes, EDGES)

    def likelihood(matrix):
        covariance, total = np.linalg.inv(matrix), 0.0
        for row in holes:
            seen = np.flatnonzero(~np.isnan(row))
            if len(seen):
                part, away = covariance[np.ix_(seen, seen)], row[seen] - np.asarray(found.mean, float)[seen]
                total -= (away @ np.linalg.solve(part, away) + np.linalg.slogdet(part)[1]) / 2
        return total / len(holes)

    best = full(found, EDGES)
    for a, b in EDGES.tolist():
        slopes = []
        for step in (-0.05, 0.05):
            other = best.copy()
            other[a, b] = other[b, a] = best[a, b] + step
            slopes.append(likelihood(best) - likelihood(other))
        assert min(slopes) > -2e-4


@pytest.mark.slow
def test_messages_of_frustrated_gaussians_converge_whatever_is_seen():
    """Four numbers whose precision matrix is not walk-summable: the largest likelihood under the constraint."""
    covariance = np.array([[1, 0.8, 0.6, 0.7], [0.8, 1, 0.75, 0.5], [0.6, 0.75, 1, 0.65], [0.7, 0.5, 0.65, 1]])
    ends = np.array(list(itertools.combinations(range(4), 2)))
    x = np.random.default_rng(0).multivariate_normal(np.zeros(4), covariance, 2000)
    found = full(walk_summable(x, ends), ends)
    scale = np.sqrt(np.diag(found))
    strength = np.abs(found / scale[:, None] / scale[None] - np.eye(4))
    assert np.linalg.eigvalsh(strength)[-1] < LIMIT + 1e-4
    exact = np.linalg.inv(covariance)
    exact_scale = np.sqrt(np.diag(exact))
    assert np.linalg.eigvalsh(np.abs(exact / exact_scale[:, None] / exact_scale[None] - np.eye(4)))[-1] > 1.1
    data = kbp.pool(kbp.Graph.from_edges(ends, 4), x, x)
    counts = kbp.fit(data, kernel=kbp.RBF(0.2), obs_kernel=kbp.RBF(0.2), ridge=1e-3, relation="counts")
    model = gaussian_model(counts, data.cases[0], np.arange(2000), counts)
    patterns = [[True] * 4, [False] * 4, *(np.arange(4) != node for node in range(4))]
    y = np.stack([np.where(seen, [1.0, -0.5, 2.0, 0.3], np.nan) for seen in patterns])
    solved = jax.vmap(lambda one: kbp.infer(model, data.cases[0].graph, one).solution.converged)(y)
    assert solved.all()


def test_answers_are_those_of_the_gaussian(drawn):
    _, covariance, x = drawn
    shifted = 3.0 + 2.0 * x  # in units of the user's
    data = kbp.pool(GRAPH, shifted, shifted)
    counts = kbp.fit(data, kernel=kbp.RBF(0.3), obs_kernel=kbp.RBF(0.3), ridge=1e-3, relation="counts")
    model = gaussian_model(counts, data.cases[0], np.arange(3000), counts)
    seen, hidden = [0, 2, 4], [1, 3, 5]
    value = np.array([0.8, -0.4, 0.3])
    gain = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[np.ix_(seen, hidden)]).T
    spread = covariance[np.ix_(hidden, hidden)] - gain @ covariance[np.ix_(seen, hidden)]
    y = np.full(6, np.nan)
    y[seen] = 3 + 2 * value
    posterior = kbp.infer(model, GRAPH, y)
    np.testing.assert_allclose(kbp.mean(posterior)[np.array(hidden)], 3 + 2 * gain @ value, atol=0.15)
    np.testing.assert_allclose(kbp.std(posterior)[np.array(hidden)], 2 * np.sqrt(np.diag(spread)), rtol=0.08)


@pytest.mark.slow
def test_what_can_be_gaussian(drawn):
    _, _, x = drawn
    options = {"kernel": kbp.RBF(0.3), "obs_kernel": kbp.RBF(0.3), "relation": "counts"}
    few, many = (kbp.pool(GRAPH, rows, rows) for rows in (x[:20], x[:400]))
    assert can_be_gaussian(kbp.fit(many, **options), many.cases[0])
    assert not can_be_gaussian(kbp.fit(few, **options), few.cases[0])
    codes = kbp.pool(GRAPH, (x[:400] > 0).astype(int), (x[:400] > 0).astype(int))
    states = kbp.fit(codes, kernel=kbp.Delta(), obs_kernel=kbp.Delta(), relation="counts")
    assert can_be_gaussian(states, codes.cases[0])
    vectors = np.repeat(x[:400, :, None], 2, axis=2)
    pairs = kbp.pool(GRAPH, vectors, vectors)
    assert not can_be_gaussian(kbp.fit(pairs, **options), pairs.cases[0])


@pytest.mark.slow
def test_a_label_given_numbers_is_that_of_linear_discriminant_analysis():
    rng = np.random.default_rng(0)
    label = rng.choice(3, 4000, p=[0.5, 0.3, 0.2])
    centers = np.array([[-1.0, 0.0], [0.5, 1.0], [1.5, -1.0]])
    numbers = centers[label] + 0.7 * rng.normal(size=(4000, 2))
    graph = kbp.Graph.from_edges([(0, 2), (1, 2), (0, 1)], 3, node_type=[0, 0, 1], edge_type=[0, 1, 2])
    samples = {0: numbers, 1: label[:, None]}
    data = kbp.pool(graph, samples, samples)
    kernel = {0: kbp.RBF(0.2), 1: kbp.Delta()}
    model = kbp.fit(data, kernel=kernel, obs_kernel=kernel, ridge=1e-3, obs_ridge=1e-3, relation="counts")
    model = gaussian_model(model, data.cases[0], np.arange(4000), model)
    at = numbers[:50]
    found = [kbp.infer(model, graph, {0: one, 1: np.array([np.nan])}).by_type[1].weights[0] for one in at]
    logs = np.log([0.5, 0.3, 0.2]) - ((at[:, None] - centers) ** 2).sum(axis=-1) / (2 * 0.7**2)
    exact = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    assert np.mean(np.abs(np.array(found) - exact)) < 0.03


@pytest.mark.slow
def test_training_starts_from_it(drawn):
    _, _, x = drawn
    data = kbp.pool(GRAPH, x[:600], x[:600])
    options = {"kernel": kbp.RBF(0.4), "obs_kernel": kbp.RBF(0.4), "ridge": 1e-2, "relation": "counts"}
    trained = kbp.train(kbp.fit(data, **options), data, steps=2, way="scaled", start="gaussian")
    tried = [one for one in trained.selection if one.choice == "potentials"]
    assert [one.alternative for one in tried] == ["gaussian", "scaled"]
    assert float(trained.reweighting) > 10  # plain belief propagation


@pytest.mark.slow  # a search
def test_fit_takes_it_where_neighbors_say_more_together(drawn):
    _, _, x = drawn
    data = kbp.pool(GRAPH, x[:600], x[:600])
    model, ratios = kbp.fit(data), kbp.fit(data, sharing="type")
    assert model.selection.taken["potentials"] == "gaussian" and "potentials" not in ratios.selection.taken
    truth = x[600:700]
    y = np.where(np.random.default_rng(4).random(truth.shape) < 0.4, np.nan, truth)
    answers = [jax.vmap(lambda one, m=m: kbp.mean(kbp.infer(m, GRAPH, one)))(y) for m in (model, ratios)]
    errors = [np.sqrt(np.mean((answer - truth)[np.isnan(y)] ** 2)) for answer in answers]
    assert errors[0] < errors[1]
