"""Margins of single nodes: the model of standardized values, with all answers in the units of the data."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import io
from kbpjax.learning.far import are_far
from kbpjax.learning.learn import candidate_points
from kbpjax.learning.margins import Margins, differences, estimate_margins, standardized_cases

NODES = 5
CENTERS, SCALES = np.linspace(-5.0, 20.0, NODES), np.geomspace(0.1, 5.0, NODES)
GRAPH = kbp.chain_graph(NODES)


def draws(cases, seed=0):
    """Standard normal chains with correlation .8."""
    rng, z = np.random.default_rng(seed), np.zeros((cases, NODES))
    z[:, 0] = rng.standard_normal(cases)
    for i in range(1, NODES):
        z[:, i] = 0.8 * z[:, i - 1] + 0.6 * rng.standard_normal(cases)
    return z


@pytest.fixture(scope="module")
def problem():
    """The same problem with and without units, and the margins that lead from one to the other."""
    x = CENTERS + SCALES * draws(200)
    y = x + 0.3 * SCALES * draws(200, 1)
    data = kbp.pool(GRAPH, x, y)
    margins, obs_margins = estimate_margins(data.cases, [0])
    (cases,) = standardized_cases(data.cases, margins, obs_margins)
    options = {"kernel": kbp.RBF(0.7), "obs_kernel": kbp.RBF(0.7), "ridge": 1e-4}  # in standard deviations
    plain = kbp.fit(kbp.pool(GRAPH, cases.samples[0], cases.observations[0]), **options, margins="type")
    own = kbp.fit(data, **options, margins="node")
    return plain, own, margins[0], obs_margins[0], y[3]


def test_margins_are_means_and_deviations_drawn_to_those_of_other_nodes():
    rng = np.random.default_rng(0)
    x = np.arange(20.0) * 3 + (1 + np.arange(20) % 2) * rng.normal(size=(400, 20))
    x[2:, 3], x[:, 4] = np.nan, np.nan
    one = estimate_margins(kbp.pool(kbp.chain_graph(20), x).cases, [0])[0][0]
    rest = np.arange(20) > 4
    assert np.allclose(one.center[rest], x.mean(axis=0)[rest], atol=1e-3)
    assert np.allclose(one.scale[rest], x.std(axis=0)[rest], rtol=0.01)
    assert abs(one.center[3] - x[:2, 3].mean()) < 0.2 and 0.8 < one.scale[3] < 2.5  # two values
    assert abs(one.center[4] - np.nanmean(x)) < 2 and 15 < one.scale[4] < 20  # none: anywhere among the others
    assert np.allclose(one.restored(one.standardized(jnp.arange(20.0))), np.arange(20.0))
    assert np.allclose(one.of_nodes(7).center, np.nanmean(x)) and one.of_nodes(20) is one
    equal = estimate_margins(kbp.pool(GRAPH_OF_3, rng.normal(size=(30, 3))).cases, [0])[0][0]
    assert np.ptp(equal.scale) < 0.05 and np.ptp(equal.center) < 0.15  # of 30 values each


GRAPH_OF_3 = kbp.Graph.from_edges([(0, 1), (0, 2)], 3)


def test_a_far_value_moves_margins_little_and_a_constant_has_no_scale():
    x = np.random.default_rng(0).normal(size=(2000, 3))
    x[:, 2] = 4.0
    clean, spoiled = (estimate_margins(kbp.pool(GRAPH_OF_3, one).cases, [0])[0][0] for one in (x, spoil(x)))
    assert np.allclose(clean.scale, spoiled.scale, rtol=0.05) and np.allclose(clean.center, spoiled.center, atol=0.02)
    assert spoiled.scale[2] == 0 and spoiled.center[2] == 4
    assert spoiled.standardized(jnp.array([0.0, 0.0, 4.0]))[2] == 0


def test_a_constant_variable_is_answered_with_its_constant():
    with pytest.warns(kbp.RelationWarning, match="rest on 10 pairs"):
        model = kbp.fit(kbp.pool(GRAPH_OF_3, np.full((5, 3), 4.0)))
    posterior = kbp.infer(model, GRAPH_OF_3)
    assert kbp.mean(posterior).tolist() == [4, 4, 4] and kbp.std(posterior).tolist() == [0, 0, 0]


def test_far_values_are_no_candidates_and_are_named():
    x = np.random.default_rng(0).normal(size=(300, 3))
    kernels = {"kernel": kbp.RBF(0.5), "ridge": 1e-3}
    clean = kbp.infer(kbp.fit(kbp.pool(GRAPH_OF_3, x), **kernels), GRAPH_OF_3)
    with pytest.warns(kbp.CandidateWarning, match="1 of 900 values of node type 0 are far.*1e"):
        model = kbp.fit(kbp.pool(GRAPH_OF_3, spoil(x)), **kernels, margins="type")
    spoiled = kbp.infer(model, GRAPH_OF_3)
    assert np.ptp(spoiled.points) < 10
    assert np.allclose(kbp.mean(clean), kbp.mean(spoiled), atol=0.05)
    assert np.allclose(kbp.std(clean), kbp.std(spoiled), rtol=0.05)
    tail = np.exp(np.random.default_rng(1).normal(size=5000))  # no fault, but a long tail
    assert are_far(x.ravel()).sum() == 0 and are_far(tail).sum() == 0
    assert are_far(np.array([0.0, 0.1, 0.2, 10.0])).sum() == 0  # too few values to say so
    counts = jnp.asarray(np.r_[np.random.default_rng(2).integers(0, 9, 300), 200], jnp.int32)
    assert candidate_points(counts)[-1] == 200  # a state, not a fault
    assert are_far(spoil(x).ravel()).sum() == 1 and are_far(np.r_[np.zeros(50), 3.0]).sum() == 0


def spoil(x):
    other = x.copy()
    other[7, 0] = 1e6
    return other


def test_differences_are_what_chance_does_not_give():
    x = draws(300)
    same, moved, scaled = (
        differences(kbp.pool(GRAPH, one).cases, 0) for one in (x, x + CENTERS / 10, x * SCALES / SCALES.mean())
    )
    assert same[0] < 0.01 and same[1] < 0.05
    assert moved[0] > 0.3 and moved[1] < 0.05
    assert scaled[0] < 0.01 and 1 < scaled[1] < 2
    assert differences(kbp.pool(GRAPH, x[:20] + CENTERS).cases, 0) == (0, 0)  # too few


@pytest.mark.slow
def test_answers_are_those_of_standardized_values(problem):
    plain, own, margins, obs_margins, y = problem
    posteriors = kbp.infer(plain, GRAPH, obs_margins.standardized(y)), kbp.infer(own, GRAPH, y)
    z, x = posteriors
    assert np.allclose(z.weights, x.weights, atol=1e-6)
    assert np.allclose(x.points, margins.center[:, None] + margins.scale[:, None] * z.points[None])
    for summary in (kbp.mean, kbp.mode, lambda p: kbp.quantile(p, 0.3), kbp.refine_mode):
        assert np.allclose(margins.restored(summary(z)), summary(x), atol=1e-3)
    assert np.allclose(margins.scale * kbp.std(z), kbp.std(x), rtol=1e-4)
    true = jnp.asarray(CENTERS)
    assert np.allclose(
        kbp.log_density(z, margins.standardized(true)) - jnp.log(margins.scale), kbp.log_density(x, true), atol=1e-3
    )
    at = margins.restored(jnp.linspace(-1.0, 1.0, 3)[None] * jnp.ones((NODES, 1)))
    assert np.allclose(kbp.log_belief(z, margins.standardized(at)), kbp.log_belief(x, at), atol=1e-3)


@pytest.mark.slow
def test_beliefs_on_given_points_are_those_on_own_points(problem):
    _, own, _, _, y = problem
    on_own = kbp.infer(own, GRAPH, y)
    points = on_own.points[2]
    with pytest.warns(kbp.CandidateWarning):  # they hold few of the values of all nodes
        given = kbp.infer(own, GRAPH, y, points=points)
    assert given.points.shape == points.shape and not given.belief.own_points
    assert np.allclose(given.weights[2], on_own.weights[2], atol=1e-9)
    assert np.allclose(kbp.log_density(given[2], [9.0]), kbp.log_density(on_own[2], [9.0]), atol=1e-9)


@pytest.mark.slow
def test_evidence_is_in_the_units_of_the_data(problem):
    plain, own, margins, _, _ = problem
    nodes, z = [1, 4], np.array([0.5, -0.25])
    x = np.asarray(margins.center)[nodes] + np.asarray(margins.scale)[nodes] * z
    first = kbp.infer(plain, GRAPH, evidence=kbp.clamp(plain, GRAPH, nodes, z))
    every = jnp.full(NODES, jnp.nan).at[jnp.array(nodes)].set(x)
    for clamps in (kbp.clamp(own, GRAPH, nodes, x), kbp.clamp(own, GRAPH, None, every)):
        second = kbp.infer(own, GRAPH, evidence=clamps)
        assert np.allclose(margins.restored(kbp.mean(first)), kbp.mean(second), atol=1e-5)
        assert np.allclose(kbp.refine_mode(second)[jnp.array(nodes)], x, atol=1e-5)
    with pytest.warns(kbp.EvidenceWarning, match="far from all training samples"):
        kbp.clamp(own, GRAPH, [0], [x[1]])  # the values of node 4 are far from those of node 0

    def around(z):
        return jnp.exp(-((z - 0.3) ** 2))

    soft = kbp.likelihood(plain, GRAPH, lambda z: jnp.broadcast_to(around(z), (NODES, len(z))))
    to_z = lambda x: margins.standardized(x if x.ndim > 1 else jnp.broadcast_to(x, (NODES, len(x))))
    same = kbp.likelihood(own, GRAPH, lambda x: around(to_z(x)))
    means = [kbp.mean(kbp.infer(m, GRAPH, evidence=one)) for m, one in ((plain, soft), (own, same))]
    assert np.allclose(margins.restored(means[0]), means[1], atol=1e-5)


@pytest.mark.slow
def test_edge_beliefs_have_the_candidates_of_their_ends(problem):
    _, own, _, _, y = problem
    posterior = kbp.infer(own, GRAPH, y)
    pair = kbp.edge_beliefs(posterior, [(0, 1), (3, 2)])
    assert np.allclose(pair.first, posterior.points[jnp.array([0, 3])])
    assert np.allclose(pair.weights.sum(axis=2), posterior.weights[jnp.array([0, 3])], atol=1e-4)
    assert np.allclose(pair.weights.sum(axis=1), posterior.weights[jnp.array([1, 2])], atol=1e-4)
    points = np.linspace(-8, 40, 200)
    given = kbp.edge_beliefs(posterior, [(3, 4)], points)
    x, y = given.first, given.second
    assert x.shape == (200,)

    def correlation(weights, x, y):
        mean = [float(jnp.sum(weights * one)) for one in (x[:, None], y[None])]
        apart = (x - mean[0])[:, None], (y - mean[1])[None]
        cov = jnp.sum(weights * apart[0] * apart[1])
        return float(cov / jnp.sqrt(jnp.sum(weights * apart[0] ** 2) * jnp.sum(weights * apart[1] ** 2)))

    own_pair = kbp.edge_beliefs(posterior, [(3, 4)])
    wanted = correlation(own_pair.weights[0], own_pair.first[0], own_pair.second[0])
    assert abs(correlation(given.weights[0], x, y) - wanted) < 0.05


@pytest.mark.slow
def test_batches_and_transformations(problem):
    _, own, _, _, y = problem
    ys = jnp.stack([jnp.asarray(y), jnp.asarray(y) + 0.1 * jnp.asarray(SCALES)])
    one = [kbp.infer(own, GRAPH, each) for each in ys]
    batch = jax.jit(jax.vmap(lambda y: kbp.infer(own, GRAPH, y)))(ys)
    for summary in (kbp.mean, kbp.std, lambda p: kbp.interval(p, 0.9)[0]):
        assert np.allclose(summary(batch), jnp.stack([summary(each) for each in one]), rtol=1e-5, atol=1e-6)
    assert batch.belief.points.shape == (2, *one[0].points.shape)
    slope = jax.grad(lambda y: kbp.mean(kbp.infer(own, GRAPH, y))[2])(jnp.asarray(y))
    ahead = jnp.asarray(y).at[2].add(1e-4), jnp.asarray(y).at[2].add(-1e-4)
    means = [float(kbp.mean(kbp.infer(own, GRAPH, each))[2]) for each in ahead]
    assert abs(slope[2] - (means[0] - means[1]) / 2e-4) < 1e-3 * abs(slope[2])


@pytest.mark.slow
def test_other_graphs_use_the_margins_of_all_nodes(problem):
    _, own, margins, _, _ = problem
    with pytest.warns(kbp.MarginWarning, match="8 nodes of type 0, and the model has margins of 5"):
        posterior = kbp.infer(own, kbp.chain_graph(8))
    assert posterior.points.shape[0] == 8
    assert np.allclose(kbp.mean(posterior), margins.pooled_center, atol=0.3 * float(margins.pooled_scale))


@pytest.mark.slow
def test_saved_models_keep_their_margins(problem, tmp_path):
    _, own, _, _, y = problem
    io.save(tmp_path / "model.npz", own)
    again = io.load(tmp_path / "model.npz")
    assert np.allclose(kbp.mean(kbp.infer(again, GRAPH, y)), kbp.mean(kbp.infer(own, GRAPH, y)))


@pytest.mark.slow
def test_vectors_have_margins_by_coordinate():
    rng = np.random.default_rng(0)
    z = np.stack([draws(150, 2), draws(150, 3)], axis=-1)
    centers = rng.normal(size=(NODES, 2)) * 10
    x = centers + np.array([1.0, 10.0]) * z
    model = kbp.fit(kbp.pool(GRAPH, x), kernel=kbp.RBF(0.8), ridge=1e-3, margins="node")
    posterior = kbp.infer(model, GRAPH)
    assert posterior.points.shape[2:] == (2,) and model.margins[0].center.shape == (NODES, 2)
    assert np.allclose(kbp.mean(posterior), x.mean(axis=0), atol=0.2 * x.std(axis=0).max())
    assert kbp.covariance(posterior).shape == (NODES, 2, 2)


@pytest.mark.slow  # a search
def test_fit_chooses_margins_where_nodes_differ():
    x = CENTERS + SCALES * draws(200)
    hidden = np.random.default_rng(1).random(x.shape) < 0.3
    differ = kbp.fit(kbp.pool(GRAPH, x, x))
    assert differ.hyperparameters.own_margins == (0,) and 0 in differ.margins and 0 in differ.obs_margins
    test = CENTERS + SCALES * draws(50, 7)
    y = jnp.asarray(np.where(hidden[:50], np.nan, test))
    means = np.asarray(kbp.mean(jax.vmap(lambda y: kbp.infer(differ, GRAPH, y))(y)))
    error = np.sqrt(np.mean((((means - test) / SCALES)[hidden[:50]]) ** 2))
    assert error < 0.75  # .6 to .7 for the true model
    again = differ.hyperparameters.fit(kbp.pool(GRAPH, x, x))
    assert np.allclose(kbp.mean(kbp.infer(again, GRAPH, y[0])), means[0], rtol=1e-4, atol=1e-4)
    assert "own margins" in repr(differ)


def test_fit_warns_of_nodes_that_differ_where_a_kernel_is_given():
    data = kbp.pool(GRAPH, CENTERS + SCALES * draws(50))
    with pytest.warns(kbp.MarginWarning, match="margins='node'"):
        kbp.fit(data, kernel=kbp.RBF(3.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kbp.fit(data, kernel=kbp.RBF(1.0), margins="node")
        kbp.fit(kbp.pool(GRAPH, draws(50)), kernel=kbp.RBF(1.0))


@pytest.mark.slow
def test_margins_by_node_type():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4, node_type=[0, 0, 1, 1])
    x = np.array([0.0, 9.0, 1.0, 2.0]) + draws(60)[:, :4]
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(1.0), ridge=1e-3, margins={0: "node"})
    assert list(model.margins) == [0]
    posterior = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [1, 3], [9.5, 2.0]))
    assert posterior.points[0].shape == (2, 120) and posterior.points[1].shape == (120,)
    assert abs(kbp.mean(posterior)[0][0] - 0.4) < 0.3
    assert kbp.edge_beliefs(posterior, [(1, 2)]).first.shape == (1, 120)
    with pytest.raises(ValueError, match="margins: must be a known word, for node types"):
        kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(1.0), margins={2: "node"})


def test_wrong_margins_are_refused(problem):
    data = kbp.pool(GRAPH, CENTERS + SCALES * draws(50))
    with pytest.raises(ValueError, match="margins: must be"):
        kbp.fit(data, kernel=kbp.RBF(1.0), margins="nodes")
    with pytest.raises(ValueError, match="margins: must be of data with cases"):
        kbp.fit(kbp.TrainingData(edges={0: data.edges[0]}, nodes=data.nodes), kernel=kbp.RBF(1.0), margins="node")
    integers = kbp.pool(GRAPH, np.arange(50).reshape(10, NODES))
    with pytest.raises(ValueError, match="margins: must be 'type' where no variable is a float"):
        kbp.fit(integers, kernel=kbp.Delta(), margins="node")
    with pytest.raises(ValueError, match="margins: must be of floats"):
        kbp.fit(integers, kernel=kbp.Delta(), margins={0: "node"})
    with pytest.raises(ValueError, match="margins: must be of known data"):
        jax.jit(lambda x: kbp.fit(kbp.pool(GRAPH, x), kernel=kbp.RBF(1.0), margins="node"))(jnp.ones((40, NODES)))
    with pytest.raises(ValueError, match="marginal: must not be Parzen"):
        kbp.infer(problem[1], GRAPH, marginal=kbp.Parzen(kbp.RBF(0.1), data.nodes[0]))
    with pytest.raises(ValueError, match="points: must lie near"):
        kbp.infer(problem[1], GRAPH, points=[1e5, 2e5])
    assert isinstance(problem[1].margins[0], Margins)
