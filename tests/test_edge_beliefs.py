"""Beliefs of edges against Gaussians and enumeration: margins, standard deviations, correlations."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines import discrete
from kbpjax.learning.model import with_chosen
from kbpjax.posterior.edge_beliefs import fit_margins

NODES = 8
ARITHMETICS = {
    "sums": kbp.SumProduct(),
    "logarithms": kbp.InLogs(),
    "maxima": kbp.MaxProduct(),
    "maxima in logarithms": kbp.InLogs(kbp.MaxProduct()),
}


def gaussian_tree(seed):
    """A random tree whose variables have variance 1 and whose neighbors all have the same correlation."""
    rng = np.random.default_rng(seed)
    edges = [(int(rng.integers(node)), node) for node in range(1, NODES)]
    correlation, covariance = rng.uniform(0.3, 0.95), np.eye(NODES)
    for parent, node in edges:
        covariance[node, :node] = covariance[:node, node] = correlation * covariance[parent, :node]
    return kbp.Graph.from_edges(edges, NODES), edges, covariance


def moments(table, points):
    """Return both means, both standard deviations and the correlation of a table."""
    first, second = table.sum(axis=1), table.sum(axis=0)
    means = first @ points, second @ points
    deviations = np.sqrt([first @ points**2 - means[0] ** 2, second @ points**2 - means[1] ** 2])
    product = np.einsum("fs,f,s->", table, points - means[0], points - means[1])
    return means, deviations, product / np.prod(deviations)


def compare(seed, model_of):
    """Return differences of edge and node means in standard deviations, and errors of deviations and correlations."""
    graph, edges, covariance = gaussian_tree(seed)
    rng, root = np.random.default_rng(100 + seed), np.linalg.cholesky(covariance)
    x = rng.normal(size=(200, NODES)) @ root.T
    model = model_of(kbp.pool(graph, x, x + rng.normal(size=x.shape)))
    exact = np.linalg.inv(np.linalg.inv(covariance) + np.eye(NODES))
    y = root @ rng.normal(size=NODES) + rng.normal(size=NODES)
    posterior = kbp.infer(model, graph, y)
    tables = np.asarray(kbp.edge_beliefs(posterior, edges).weights, float)
    means, points = np.asarray(kbp.mean(posterior), float), np.asarray(posterior.points, float)
    apart, spreads, errors = [], [], []
    for (a, b), table in zip(edges, tables, strict=True):
        of_ends, deviations, correlation = moments(table / table.sum(), points)
        apart += [abs(of_ends[0] - means[a]) / deviations[0], abs(of_ends[1] - means[b]) / deviations[1]]
        spreads += [abs(np.log(deviations[0] ** 2 / exact[a, a])) / 2]
        errors.append(abs(correlation - exact[a, b] / np.sqrt(exact[a, a] * exact[b, b])))
    return apart, spreads, errors


def given(data):
    return kbp.fit(data, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), ridge=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 8])
def test_edges_of_gaussian_trees(count):
    found = [compare(seed, given) for seed in range(count)]
    apart, spreads, errors = (np.concatenate(column) for column in zip(*found, strict=True))
    assert apart.max() < 1e-4
    assert np.median(spreads) < 0.1
    assert np.median(errors) < 0.05


@pytest.mark.slow  # 6 searches
def test_edges_of_gaussian_trees_without_options():
    found = [compare(seed, kbp.fit) for seed in range(6)]
    apart, spreads, errors = (np.concatenate(column) for column in zip(*found, strict=True))
    print(f"apart {apart.max():.1e}, spread {np.median(spreads):.3f}, correlation {np.median(errors):.3f}")
    assert apart.max() < 1e-4
    assert np.median(errors) < 0.05


@pytest.mark.parametrize(
    "arithmetic",
    ["sums", "maxima in logarithms", *(pytest.param(of, marks=pytest.mark.slow) for of in ("logarithms", "maxima"))],
)
def test_edges_of_tables_equal_enumeration(arithmetic):
    """Pair marginals, or maxima over all other states, of a tree with zero entries; and with a temperature."""
    rng, edges = np.random.default_rng(0), [(0, 1), (1, 2), (1, 3)]
    graph, nodes = kbp.Graph.from_edges(edges, 4), rng.random(3) + 0.1
    table, local = rng.random((3, 3)) + 0.1, rng.random((4, 3)) + 0.1
    table[0, 2] = 0
    model = discrete.from_potentials([0, 1, 2], nodes, table[None], arithmetic=ARITHMETICS[arithmetic])
    evidence = kbp.likelihood(model, graph, lambda x: jnp.asarray(local)[:, x])
    joint = np.zeros((3,) * 4)
    for state in itertools.product(range(3), repeat=4):
        factors = [nodes[s] * local[node, s] for node, s in enumerate(state)]
        joint[state] = np.prod(factors) * np.prod([table[state[a], state[b]] for a, b in edges])
    add = np.max if "maxima" in arithmetic else np.sum
    for heat in (1.0, 0.5):
        warm = with_chosen(model, kbp.Expectation(), 1.0, heat)
        posterior = kbp.infer(warm, graph, evidence=evidence, points=[0, 1, 2])
        got = np.asarray(kbp.edge_beliefs(posterior, edges).weights)
        for (a, b), found in zip(edges, got, strict=True):
            want = add(joint, axis=tuple(set(range(4)) - {a, b}))
            if heat == 1.0 or add is np.max:
                np.testing.assert_allclose(found, want ** (1 / heat) / np.sum(want ** (1 / heat)), atol=2e-6)
            for node, margin in ((a, add(found, axis=1)), (b, add(found, axis=0))):
                np.testing.assert_allclose(margin / margin.sum(), posterior.weights[node], atol=2e-6)


def test_all_edges_of_a_loopy_graph_have_the_margins_of_their_nodes():
    graph, rng = kbp.grid_graph(3, 4), np.random.default_rng(0)
    x = rng.normal(size=(80, 1)) + 0.5 * rng.normal(size=(80, 12))
    model = kbp.fit(kbp.pool(graph, x, x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.4), ridge=1e-3)
    model = with_chosen(model, kbp.DensityRatio(), 0.8, 1.5)
    evidence = kbp.clamp(model, graph, [5], [0.3])
    posterior = kbp.infer(model, graph, np.where(np.arange(12) % 2, x[0], np.nan), evidence=evidence)
    pairs = kbp.edge_beliefs(posterior)
    ends = np.stack([graph.senders, graph.receivers], axis=1)[:17]
    for side, axis in ((0, 2), (1, 1)):
        np.testing.assert_allclose(pairs.weights.sum(axis), posterior.weights[ends[:, side]], atol=1e-6)


def test_margins_are_fitted_and_interactions_stay():
    rng = np.random.default_rng(0)
    table = rng.random((1, 4, 5))
    first, second = (w / w.sum() for w in (rng.random((1, 4)), rng.random((1, 5))))
    got = np.asarray(fit_margins(jnp.asarray(table), jnp.asarray(first), jnp.asarray(second)))
    np.testing.assert_allclose(got.sum(2), first, rtol=1e-5)
    np.testing.assert_allclose(got.sum(1), second, rtol=1e-5)
    odds = lambda t: t[0, 0, 0] * t[0, 1, 1] / (t[0, 0, 1] * t[0, 1, 0])
    np.testing.assert_allclose(odds(got), odds(table), rtol=1e-4)
    slope = jax.grad(lambda t: fit_margins(t, jnp.asarray(first), jnp.asarray(second))[0, 1, 2])(jnp.asarray(table))
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0


def test_an_edge_without_edges_in_the_graph():
    x = np.linspace(-1, 1, 20).reshape(10, 2)
    alone = kbp.Graph.from_edges([], 2)
    posterior = kbp.infer(kbp.fit(kbp.pool(alone, x), kernel=kbp.RBF(0.5)), alone)
    with pytest.raises(ValueError, match="^posterior: must be of a graph with edges"):
        kbp.edge_beliefs(posterior)
