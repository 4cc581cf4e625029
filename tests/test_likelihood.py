"""Known likelihoods at points of each node's own, asked at once or node by node."""

import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines.discrete import from_potentials
from kbpjax.posterior.likelihood import pointwise_log_likelihoods

SEEN = np.array([0.5, -1.0, 2.0])
POINTS = np.random.default_rng(0).standard_normal((3, 4))
EXPECTED = np.exp(-((SEEN[:, None] - POINTS) ** 2))


def broadcasting(x):
    return jnp.exp(-((jnp.asarray(SEEN)[:, None] - jnp.atleast_2d(x)) ** 2))


def not_broadcasting(x):
    return jnp.exp(-((jnp.asarray(SEEN)[:, None] - x[None]) ** 2))


def model_of(types):
    graph = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, node_type=types)
    states = {v: [0.0, 1.0] for v in sorted(set(types))}
    kinds = {k: (a, b) for k, a, b in graph.edge_types}
    tables = {k: np.ones((2, 2)) for k in kinds}
    return from_potentials(states, {v: [1.0, 1.0] for v in states}, tables, ends=kinds), graph


@pytest.mark.parametrize("fn", [broadcasting, not_broadcasting])
def test_all_nodes_at_points_of_their_own(fn):
    model, graph = model_of([0, 0, 0])
    evidence = kbp.likelihood(model, graph, fn)
    np.testing.assert_allclose(pointwise_log_likelihoods(evidence, 0, jnp.asarray(POINTS)), np.log(EXPECTED))
    sharpened = evidence**2.0 * evidence
    np.testing.assert_allclose(pointwise_log_likelihoods(sharpened, 0, jnp.asarray(POINTS)), 3 * np.log(EXPECTED))
    np.testing.assert_array_equal(pointwise_log_likelihoods(None, 0, jnp.asarray(POINTS)), np.zeros((3, 4)))


@pytest.mark.parametrize("fn", [broadcasting, not_broadcasting])
def test_nodes_of_one_type_of_several(fn):
    model, graph = model_of([0, 1, 0])
    evidence = kbp.likelihood(model, graph, fn)
    np.testing.assert_allclose(
        pointwise_log_likelihoods(evidence, 0, jnp.asarray(POINTS[[0, 2]])), np.log(EXPECTED[[0, 2]])
    )
    np.testing.assert_allclose(pointwise_log_likelihoods(evidence, 1, jnp.asarray(POINTS[[1]])), np.log(EXPECTED[[1]]))
    only = kbp.likelihood(model, graph, {1: lambda x: jnp.atleast_2d(x) ** 2})
    np.testing.assert_allclose(pointwise_log_likelihoods(only, 1, jnp.asarray(POINTS[[1]])), np.log(POINTS[[1]] ** 2))
    np.testing.assert_array_equal(pointwise_log_likelihoods(only, 0, jnp.asarray(POINTS[[0, 2]])), np.zeros((2, 4)))


def test_a_function_of_the_wrong_shape_is_refused():
    model, graph = model_of([0, 0, 0])
    evidence = kbp.likelihood(model, graph, lambda x: jnp.ones((3, 2)))
    with pytest.raises(ValueError, match=r"fn: must return values of shape \(3, 4\); got \(3, 2\)"):
        pointwise_log_likelihoods(evidence, 0, jnp.asarray(POINTS))


def test_many_faint_likelihoods_do_not_underflow_together():
    model, graph = model_of([0, 0, 0])
    faint = kbp.likelihood(model, graph, lambda x: jnp.full((3, jnp.atleast_2d(x).shape[-1]), 1e-200))
    logs = pointwise_log_likelihoods(faint * faint, 0, jnp.asarray(POINTS))
    np.testing.assert_allclose(logs, np.full((3, 4), 2 * np.log(1e-200)))
