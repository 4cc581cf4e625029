"""Positive models: tables of probabilities, messages as values, and what beliefs read of them."""

import functools
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import features
from kbpjax.learning.learn import learn_model
from tests import discrete

CHAIN = kbp.chain_graph(4, node_type=[0, 1, 0, 1])
RING = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], 4, node_type=[0, 1, 0, 1])
POSITIVE = {"clipped": kbp.Clipped(), "fit": kbp.ConstrainedFit(100)}
RULES = {
    "constant": kbp.ConstantTime(eps=0.05, max_rank=20),
    "linear": kbp.LinearTime(eps=0.05),
    "full": kbp.FullRank(),
}
CONSTANT_FIRST = ["constant", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("linear", "full"))]
CLIPPED_FIRST = ["clipped", pytest.param("fit", marks=pytest.mark.slow)]
POINTS = np.linspace(-2, 2, 9)


@functools.cache
def samples():
    """Draw walks on the chain and noisy observations of them."""
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(40, 4)), axis=1) * [1, 0.7, 0.6, 0.5]
    return x, x + 0.5 * rng.normal(size=x.shape)


@functools.cache
def smooth(rule="constant", nonnegative="clipped", ridge=1e-4):
    x, y = samples()
    kernel = {0: kbp.RBF(0.6), 1: kbp.RBF(1.2)}
    options = {"rule": RULES[rule], "ridge": ridge, "nonnegative": POSITIVE.get(nonnegative)}
    return kbp.fit(kbp.pool(CHAIN, x, y), kernel=kernel, obs_kernel=kbp.RBF(0.8), **options)


Y = np.array([0.3, -0.5, 1.0, 0.2])
REWEIGHTED = {"exponents": kbp.tree_reweighting(RING), "damping": 0.1}

# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positive", POSITIVE)
@pytest.mark.parametrize("rule", CONSTANT_FIRST)
def test_tables_are_probabilities_between_the_points_and_padding_is_zero(rule, positive):
    model = smooth(rule, positive)
    plain = smooth(rule, None)
    assert plain.operators.nonnegative is None
    sizes = [points for _, points in model.ranks.values()]
    tables = np.asarray(model.operators.nonnegative)
    assert tables.shape == (2, max(sizes), max(sizes)) and (tables >= 0).all()
    for direction, (sender, receiver) in enumerate([(0, 1), (1, 0)]):
        expected = np.zeros((max(sizes), max(sizes)))
        expected[: sizes[receiver], : sizes[sender]] = 1
        np.testing.assert_allclose(tables[direction].sum(axis=1), expected[:, 0], atol=1e-9)
        assert (tables[direction][expected == 0] == 0).all()
        estimate = np.asarray(plain.operators.evaluate[receiver] @ plain.operators.project[direction])
        assert (estimate < -1e-3).any()  # there was something to mend
        if positive == "clipped":
            clipped = np.maximum(estimate, 0)[: sizes[receiver]]
            got = tables[direction, : sizes[receiver]]
            np.testing.assert_allclose(got, clipped / clipped.sum(axis=1, keepdims=True), atol=1e-6)
    if rule == "constant":
        assert len(set(sizes)) == 2 and len({rank for rank, _ in model.ranks.values()}) == 2


def test_other_matrices_do_not_depend_on_positive():
    model, plain = smooth("constant", "fit"), smooth("constant", None)
    np.testing.assert_allclose(model.operators.project, plain.operators.project, atol=1e-12)
    np.testing.assert_allclose(model.operators.evaluate, plain.operators.evaluate, atol=1e-12)
    assert model.positivity[0][0][0] == plain.positivity[0][0][0]


def test_positivity_of_known_tables():
    """Of nine entries two are negative, and a fifth of the mass."""
    model = discrete.learned()
    table = np.array([[2.0, -1.0, 0.5], [0.5, 1.0, 0.5], [1.0, -1.0, 2.5]])
    at_points = np.asarray(features(model.bases[1], model.points[1]))
    project = model.operators.project.at[0, :3, :3].set(np.linalg.solve(at_points, table))
    (share, mass), (back, _) = eqx.tree_at(lambda m: m.operators.project, model, project).positivity[0]
    np.testing.assert_allclose([share, mass], [2 / 9, 2 / 10], atol=1e-12)
    np.testing.assert_allclose(model.positivity[0][0][1], 0, atol=1e-9)
    np.testing.assert_allclose(back, model.positivity[0][1][0])


def test_bad_positive_is_refused():
    data = kbp.pool(CHAIN, samples()[0])
    with pytest.raises(ValueError, match="^nonnegative: must be Clipped"):
        inspect.unwrap(learn_model)(data, kernel=kbp.RBF(1.0), nonnegative="clipped")  # past the type checks of tests


# --- expectations -----------------------------------------------------------------------------------------------------


def test_prior_of_a_delta_model_is_the_frequencies():
    for positive in (None, kbp.Clipped()):
        model = discrete.learned("constant", positive)
        for s, column in enumerate(discrete.samples().T):
            expected = np.bincount(column, minlength=3) / len(column)
            np.testing.assert_allclose(model.operators.prior[s][np.argsort(model.points[s])], expected, atol=1e-9)


@pytest.mark.parametrize("rule", CONSTANT_FIRST)
def test_prior_gives_means_of_functions_over_the_samples(rule):
    model, (x, _) = smooth(rule), samples()
    assert (np.asarray(model.operators.prior) >= 0).all()
    np.testing.assert_allclose(model.operators.prior.sum(axis=1), 1, atol=1e-12)
    for v, (_, size) in model.ranks.items():
        points, weights = np.asarray(model.points[v]), np.asarray(model.operators.prior[v])
        assert (weights[size:] == 0).all()
        expected = np.exp(-(x[:, v::2] ** 2) / 2).mean()
        np.testing.assert_allclose(np.exp(-(points**2) / 2) @ weights[:size], expected, atol=0.06)


@pytest.mark.parametrize("positive", CLIPPED_FIRST)
def test_without_evidence_messages_are_constant_and_the_value_is_zero(positive):
    model = smooth("constant", positive)
    solution = kbp.run(model, RING, num_iters=4, **REWEIGHTED)
    values = np.asarray(solution.messages)
    assert values.shape == (8, max(points for _, points in model.ranks.values()))
    for message, receiver in zip(values, np.asarray(RING.receivers), strict=True):
        size = model.ranks[receiver % 2][1]
        np.testing.assert_allclose(message[:size], 1 / np.sqrt(size), atol=1e-12)
        assert (message[size:] == 0).all()
    np.testing.assert_allclose(kbp.log_partition(model, RING, None, solution), 0, atol=1e-6)
    got = kbp.beliefs(model, RING, None, solution, POINTS).weights
    for s, weights in enumerate(np.asarray(got)):
        density = np.maximum(features(model.bases[s % 2], jnp.asarray(POINTS)) @ model.marginals[s % 2], 0)
        np.testing.assert_allclose(weights, density / density.sum(), atol=0.03)


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["constant", pytest.param("linear", marks=pytest.mark.slow)])
def test_messages_are_coefficients_of_one_more_projection(rule):
    model, graph = smooth(rule), RING
    evidence = kbp.observe(model, graph, Y)
    solution = kbp.run(model, graph, evidence, num_iters=6, **REWEIGHTED)
    values, rho, local = np.asarray(solution.messages), np.asarray(solution.exponents), np.asarray(evidence.local)
    assert (values >= 0).all() and np.isfinite(values).all() and (values.max(axis=1) > 0).all()
    assert (np.linalg.norm(values, axis=1) <= 1 + 1e-12).all()
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    floors = np.broadcast_to(model.operators.floor, 2)
    expected = []
    for e in range(8):
        t, product = senders[e], local[senders[e]].copy()
        for f in np.flatnonzero(receivers == t):
            product = product * np.maximum(values[f], floors[t % 2]) ** (rho[f % 4] - (senders[f] == receivers[e]))
        row = 2 * int(graph.edge_type[e]) + (e >= 4)
        update = np.asarray(model.operators.project[row]) @ product
        expected.append(update / np.linalg.norm(update))
    np.testing.assert_allclose(solution.projected, expected, atol=1e-9)


@pytest.mark.slow
def test_positive_and_plain_delta_models_have_the_same_beliefs():
    graph, local = discrete.grid(), discrete.likelihoods(6)
    options = {"num_iters": 400, "damping": 0.2, "tol": 1e-11, "exponents": kbp.tree_reweighting(graph)}
    answers = []
    for positive in (None, kbp.Clipped()):
        model = discrete.learned("constant", positive)
        evidence = discrete.evidence(model, graph, local)
        solution = kbp.run(model, graph, evidence, **options)
        assert bool(solution.converged) and (solution.projected is None) == (positive is None)
        node = kbp.beliefs(model, graph, evidence, solution, np.arange(3)).weights
        pair = kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution, np.arange(3)), [(4, 1)]).weights[0]
        np.testing.assert_allclose(pair.sum(axis=1), node[4], atol=1e-6)
        np.testing.assert_allclose(pair.sum(axis=0), node[1], atol=1e-6)
        answers.append((node, pair, kbp.log_partition(model, graph, evidence, solution)))
    for plain, other in zip(*answers, strict=True):
        np.testing.assert_allclose(other, plain, atol=1e-6)


@pytest.mark.parametrize("positive", CLIPPED_FIRST)
def test_tree_of_a_positive_model_is_where_a_run_ends(positive):
    model = smooth("constant", positive)
    evidence = kbp.observe(model, CHAIN, Y)
    exact, run = (
        kbp.run_tree(model, CHAIN, evidence),
        kbp.run(model, CHAIN, evidence, num_iters=4, damping=0.0),
    )
    np.testing.assert_allclose(exact.messages, run.messages, atol=1e-12)
    np.testing.assert_allclose(exact.messages, run.messages, atol=1e-9)
    assert float(exact.residuals[0]) < 1e-12 and (np.asarray(exact.messages) >= 0).all()
    weights = np.asarray(kbp.beliefs(model, CHAIN, evidence, exact, POINTS).weights)
    pair = np.asarray(kbp.edge_beliefs(kbp.Posterior.of(model, CHAIN, evidence, exact, POINTS), [(0, 1)]).weights[0])
    assert np.isfinite(weights).all() and np.isfinite(pair).all()
    np.testing.assert_allclose([weights[0].sum(), pair.sum()], 1, atol=1e-12)
    mean = (weights * POINTS).sum(axis=1)
    assert mean[2] > mean[1] and np.abs(pair.sum(axis=1) @ POINTS - mean[0]) < 0.4


# --- transforms -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_jit_and_vmap_over_observations():
    model, many = smooth(), jnp.asarray(Y + np.arange(3)[:, None] / 2)

    def means(y):
        evidence = kbp.observe(model, RING, y)
        solution = kbp.run(model, RING, evidence, num_iters=6, **REWEIGHTED)
        return kbp.beliefs(model, RING, evidence, solution, POINTS).weights @ POINTS

    loop = np.stack([means(y) for y in many])
    np.testing.assert_allclose(jax.jit(jax.vmap(means))(many), loop, atol=1e-9)
    np.testing.assert_allclose(jax.jit(means)(many[1]), loop[1], atol=1e-9)
    assert np.ptp(loop, axis=0).min() > 0.05


@pytest.mark.slow
def test_gradient_through_fit_and_run_is_a_difference():
    data, y = kbp.pool(CHAIN, *samples()), jnp.asarray(Y)
    rule = kbp.fix_landmarks(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(0.8), rule=RULES["constant"])

    @jax.jit
    def loss(bandwidth):
        model = kbp.fit(data, kernel=kbp.RBF(bandwidth), obs_kernel=kbp.RBF(0.8), rule=rule, nonnegative=kbp.Clipped())
        evidence = kbp.observe(model, RING, y)
        solution = kbp.run(model, RING, evidence, num_iters=5, **REWEIGHTED)
        return jnp.sum((kbp.beliefs(model, RING, evidence, solution, POINTS).weights @ POINTS - y) ** 2)

    value, gradient = jax.jit(jax.value_and_grad(loss))(1.0)
    step = 1e-6
    expected = (loss(1 + step) - loss(1 - step)) / (2 * step)
    assert np.isfinite(gradient) and abs(float(gradient)) > 1e-3 and np.isfinite(value)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3)
