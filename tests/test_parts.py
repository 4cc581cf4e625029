"""Parts of large graphs, on which `tune` works: subgraphs, margins, and answers near those of the whole."""

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import _checks
from kbpjax.tuning import parts, tune
from tests.refusals import complaints

RNG = np.random.default_rng(0)


def typed_graph(count=300):
    """A connected random graph with two node types and four edge types."""
    found = networkx.connected_watts_strogatz_graph(count, 4, 0.1, seed=1)
    kinds = (np.arange(count) % 5 == 0).astype(int)
    edges = np.array(found.edges)
    edge_type = np.where(kinds[edges[:, 0]] != kinds[edges[:, 1]], 3, 2 * kinds[edges[:, 0]])
    return kbp.Graph.from_edges(edges, count, edge_type=edge_type, node_type=kinds)


def test_a_subgraph_is_that_of_networkx():
    graph = typed_graph()
    nodes = np.random.default_rng(2).permutation(300)[:120]
    part, expected = graph.subgraph(nodes), graph.to_networkx().subgraph(nodes.tolist())
    named = networkx.relabel_nodes(part.to_networkx(), dict(enumerate(nodes.tolist())))
    assert dict(named.nodes.data("type")) == dict(expected.nodes.data("type"))
    assert {frozenset(e): k for *e, k in named.edges.data("type")} == {
        frozenset(e): k for *e, k in expected.edges.data("type")
    }
    assert set(part.edge_types) <= set(graph.edge_types) and part.num_edges == 2 * expected.number_of_edges()
    everything = graph.subgraph(np.arange(300))
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (everything, graph)), strict=True))
    assert kbp.chain_graph(3).subgraph([0, 2]).num_edges == 0


def test_subgraphs_name_what_is_wrong():
    graph, wrong = kbp.chain_graph(3), []
    for nodes in ([], [0, 0], [3], [-1], [0.5], [[0, 1]], [True, False, True]):
        wrong += complaints("nodes: must be different numbers of nodes, 0 .. 2", graph.subgraph, nodes)
    assert not wrong
    with pytest.raises(ValueError, match="^nodes: must be known; got a traced array"):
        jax.jit(lambda nodes: graph.subgraph(nodes))(jnp.arange(2))


@pytest.mark.parametrize("graph", [kbp.grid_graph(40, 40), typed_graph()], ids=["grid", "typed"])
def test_a_part_is_of_its_size_and_scores_what_is_far_from_the_rest(graph):
    size = graph.num_nodes // 3
    part = parts.part_of(graph, size)
    assert part.graph.num_nodes == len(part.nodes) == size
    assert [v for v, *_ in part.graph.node_types] == [v for v, *_ in graph.node_types]
    whole, chosen = graph.to_networkx(), set(part.nodes.tolist())
    others = set(whole) - chosen
    distance = networkx.multi_source_dijkstra_path_length(whole, others, weight=None)
    far = [distance[node] > parts.MARGIN for node in part.nodes.tolist()]
    if np.mean(far) >= parts.LEAST:
        np.testing.assert_array_equal(part.scored, far)
    else:
        assert set(np.flatnonzero(far)) < set(np.flatnonzero(part.scored))
    assert part.scored.mean() >= parts.LEAST
    again, other = parts.part_of(graph, size), parts.part_of(graph, size, seed=1)
    np.testing.assert_array_equal(part.nodes, again.nodes)
    assert not np.array_equal(part.nodes, other.nodes)


def test_values_of_a_part_are_those_of_its_nodes():
    graph = typed_graph()
    part, values = parts.part_of(graph, 100), jnp.arange(600.0).reshape(2, 300)
    np.testing.assert_array_equal(part.cut(values), values[:, part.nodes])
    kinds = np.asarray(graph.node_type)
    cut = part.cut({v: values[:, kinds == v] for v in (0, 1)})
    truth = part.truth({v: values[:, kinds == v] for v in (0, 1)})
    for v in (0, 1):
        own = kinds[part.nodes] == v
        np.testing.assert_array_equal(cut[v], values[:, part.nodes[own]])
        np.testing.assert_array_equal(np.isnan(truth[v][0]), ~part.scored[own])
    np.testing.assert_array_equal(np.isnan(part.truth(values)[1]), ~part.scored)
    vectors = jnp.zeros((1, 300, 2))
    np.testing.assert_array_equal(np.isnan(part.truth(vectors)[0, :, 1]), ~part.scored)
    assert part.truth(values.astype(int)).dtype == int  # cannot be NaN: all are scored


NOISE = 0.5


@pytest.fixture(scope="module")
def picture():
    """A smooth picture with its noisy copy, as tuning cases."""
    i, j = np.mgrid[:40, :40]
    clean = (np.sin(i / 7) + np.cos(j / 5)).reshape(1, -1)
    graph = kbp.grid_graph(40, 40)
    data = kbp.pool(graph, clean, clean + NOISE * np.random.default_rng(0).normal(size=clean.shape))
    start = kbp.Hyperparameters(kbp.RBF(1.0), kbp.RBF(2.0), ridge=1e-3, rule=kbp.ConstantTime(eps=1e-2, max_rank=10))
    noisy = lambda key: clean + NOISE * jax.random.normal(key, clean.shape)
    return start, data, graph, clean, noisy, np.linspace(-2, 2, 17)


@pytest.mark.slow
def test_scored_nodes_of_a_part_have_nearly_the_loss_that_they_have_in_the_whole(picture):
    start, data, graph, clean, noisy, points = picture
    tuned, seen = kbp.tune(*picture, steps=1, progress=False, nodes=600), noisy(jax.random.split(jax.random.key(0))[1])
    part = parts.part_of(graph, 600, _checks.host_seed(jax.random.key(0)))
    model = start.fit(data)
    answer = jax.jit(lambda y: start.answer(model, graph, y, points))(seen[0])
    losses = (np.asarray(kbp.mean(answer)) - clean[0]) ** 2
    assert tuned.checks[0] == pytest.approx(losses[part.nodes[part.scored]].mean(), rel=0.2)


@pytest.mark.slow
def test_large_graphs_are_cut_by_default_and_others_are_not(picture, monkeypatch):
    asked, part_of = [], tune.part_of
    monkeypatch.setattr(tune, "part_of", lambda *given: asked.append(given[1]) or part_of(*given))
    options = {"steps": 1, "progress": False}
    kbp.tune(*picture, **options)
    assert asked == []
    monkeypatch.setattr(tune, "NODES", 400)
    mine = lambda settings, model, graph, y, points: settings.answer(model, graph, y, points)
    kbp.tune(*picture, **options, answer=mine)
    assert asked == []
    start, *rest = picture
    early = kbp.Hyperparameters(start.kernel, start.obs_kernel, ridge=1e-3, rule=start.rule, num_iters=2, tol=None)
    kbp.tune(early, *rest, **options)
    assert asked == []
    kbp.tune(*picture, **options)
    assert asked == [400]
    for own in ({"schedule": kbp.colored(picture[2])}, {"exponents": np.full(picture[2].num_edges // 2, 0.7)}):
        given = kbp.Hyperparameters(start.kernel, start.obs_kernel, ridge=1e-3, rule=start.rule, **own)
        wrong = complaints("nodes: must be None with exponents of single edges or", kbp.tune, given, *rest, nodes=400)
        assert not wrong
