"""Many graphs as one: the same answers as each graph alone."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.graphs.plan import round_up
from kbpjax.posterior.iterated import iterated_model

OPTIONS = {"kernel": kbp.RBF(0.7), "obs_kernel": kbp.RBF(0.7), "ridge": 1e-3, "rule": kbp.ConstantTime(max_rank=16)}


def data_of(graph, count=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 1)) + 0.4 * rng.normal(size=(count, graph.num_nodes))
    return kbp.pool(graph, x, x + 0.4 * rng.normal(size=x.shape))


def model_of(graph, **options):
    return kbp.fit(data_of(graph), **OPTIONS | options)


MODEL = model_of(kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3)], 4))


def tree(rng, size):
    """Return a random tree with up to three children of a node."""
    return np.array([(int(rng.integers(max(0, i - 3), i)), i) for i in range(1, size)]).reshape(-1, 2)


def loopy(rng, size):
    """Return a random tree, a triangle, and a chord for every fourth node."""
    chords = np.sort(rng.integers(0, size, size=(size // 4, 2)), axis=1)
    triangle = np.array([(0, 1), (0, 2), (1, 2)])
    return np.unique(np.concatenate([tree(rng, size), triangle, chords[chords[:, 0] < chords[:, 1]]]), axis=0)


def graphs_of(kind, seed, count=8):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 9, size=count)
    return [kbp.Graph.from_edges(kind(rng, int(size)), int(size)) for size in sizes]


def observations(graphs, seed=1):
    rng = np.random.default_rng(seed)
    y = [rng.normal(size=graph.num_nodes) for graph in graphs]
    return [np.where(rng.random(len(one)) < 0.2, np.nan, one) for one in y]


def assert_same(found, expected, **tolerance):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


@contextlib.contextmanager
def compiled():
    """Collect the number of programs that are compiled."""
    count = []
    listen = lambda event, *_, **__: count.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_trees_have_the_answers_of_each():
    graphs = [*graphs_of(tree, 0, 3), kbp.Graph.from_edges(np.zeros((0, 2), int), 1)]
    packed, y = kbp.pack(graphs), observations(graphs)
    assert packed.graph.forest is not None and packed.graph.rounded
    posterior = kbp.infer(MODEL, packed.graph, packed.join(y))
    alone = [kbp.infer(MODEL, graph, one) for graph, one in zip(graphs, y, strict=True)]
    assert_same(packed.split(kbp.mean(posterior)), [kbp.mean(one) for one in alone], atol=1e-9)
    low, high = zip(*packed.split(kbp.interval(posterior, 0.9)), strict=True)
    expected = [kbp.interval(one, 0.9) for one in alone]
    assert_same(low, [one[0] for one in expected], atol=1e-6)
    assert_same(high, [one[1] for one in expected], atol=1e-6)
    assert_same(packed.log_partition(posterior), [kbp.log_partition(one) for one in alone], atol=1e-9)
    assert packed.residuals(posterior).shape == (4,) and (packed.residuals(posterior) < 1e-9).all()
    np.testing.assert_allclose(posterior[packed.nodes(2)].weights, alone[2].weights, atol=1e-9)


def test_graphs_with_cycles_have_the_answers_of_each():
    graphs = graphs_of(loopy, 3, 3)
    packed, y, options = kbp.pack(graphs), observations(graphs), {"tol": 1e-9, "num_iters": 500}
    weights = kbp.tree_reweighting(packed.graph)
    posterior = kbp.infer(MODEL, packed.graph, packed.join(y), **options)
    alone = [kbp.infer(MODEL, graph, one, **options) for graph, one in zip(graphs, y, strict=True)]
    halves = np.cumsum([graph.num_edges // 2 for graph in graphs])
    assert_same(np.split(weights, halves)[:-1], [kbp.tree_reweighting(graph) for graph in graphs], rtol=1e-12)
    assert posterior.solution.converged and all(one.solution.converged for one in alone)
    assert_same(packed.split(kbp.mean(posterior)), [kbp.mean(one) for one in alone], atol=1e-6)
    inner = iterated_model(MODEL)
    expected = [kbp.log_partition(inner, one.graph, one.evidence, one.solution) for one in alone]
    assert_same(packed.log_partition(posterior), expected, atol=1e-6)


def test_residuals_are_those_of_each_graph():
    graphs = graphs_of(loopy, 3, 3)
    packed, y = kbp.pack(graphs), observations(graphs)
    inner = iterated_model(MODEL)

    def after(graph, y, count):
        evidence = kbp.observe(MODEL, graph, y)
        return kbp.run(inner, graph, evidence, num_iters=count, damping=0.0), evidence

    solution, evidence = after(packed.graph, packed.join(y), 2)
    posterior = kbp.Posterior.of(MODEL, packed.graph, evidence, solution)
    expected = [after(graph, one, 3)[0].residual for graph, one in zip(graphs, y, strict=True)]
    np.testing.assert_allclose(packed.residuals(posterior), expected, rtol=1e-6)
    assert len(set(np.round(expected, 9))) == 3


ENDS, KINDS = [(0, 1), (1, 2), (2, 3)], [0, 1, 2]
TYPES = np.array([0, 0, 1, 1])


def typed(nodes):
    """Return a chain of nodes of two types, joined by three edge types, with a feature of each edge."""
    half = nodes - 1
    return kbp.Graph.from_edges(
        ENDS[:half], nodes, edge_type=KINDS[:half], node_type=TYPES[:nodes], edge_features=np.arange(1.0, nodes)
    )


@pytest.mark.slow
def test_several_types_and_features():
    graphs = [typed(count) for count in (4, 2, 3, 4, 2)]
    packed, y = kbp.pack(graphs), observations(graphs)
    assert (packed.graph.num_edges // 2, packed.graph.node_types) == (12, ((0, 16, 2), (1, 6, 2)))
    assert np.asarray(packed.graph.edge_features)[:, 0].tolist() == [1, 2, 3, 1, 1, 2, 1, 2, 3, 1, 1, 1]
    by_type = [{v: one[TYPES[: len(one)] == v] for v in set(TYPES[: len(one)].tolist())} for one in y]
    model = model_of(graphs[0])
    means = packed.split(kbp.mean(kbp.infer(model, packed.graph, packed.join(by_type))))
    alone = [kbp.mean(kbp.infer(model, graph, one)) for graph, one in zip(graphs, y, strict=True)]
    alone = [one if isinstance(one, dict) else {0: one} for one in alone]
    assert [set(one) for one in means] == [set(one) for one in alone] == [{0, 1}, {0}, {0, 1}, {0, 1}, {0}]
    for one, other in zip(means, alone, strict=True):
        for v in one:
            np.testing.assert_allclose(one[v], other[v], atol=1e-9)


def test_spare_edges_join_the_node_types_of_their_type():
    """Of an edge type between different node types: a star has 1, 2, .. edges, and more spare ones than a chain."""
    star = lambda leaves: kbp.Graph.from_edges(
        [(0, i) for i in range(1, leaves + 1)], leaves + 1, node_type=[0] + [1] * leaves
    )
    packed = kbp.pack([star(60), star(80), star(60)])  # 200 edges
    graph = packed.graph
    assert graph.num_edges // 2 == 256 and graph.edge_types == ((0, 0, 1),) and graph.forest is not None
    ends = np.stack([graph.node_type[graph.senders], graph.node_type[graph.receivers]], axis=1)
    assert (ends[:256] == [0, 1]).all()
    spare = np.concatenate([np.asarray(graph.senders), np.asarray(graph.receivers)])[200:256]
    assert spare.min() >= packed.first[-1]


def test_clamps_and_masks():
    graphs = graphs_of(tree, 5, 3)
    packed, y = kbp.pack(graphs), observations(graphs)
    masks = [~np.isnan(one) for one in y]
    mask = packed.join(masks)
    assert mask.dtype == bool and mask.sum() == sum(one.sum() for one in masks)
    full = [np.nan_to_num(one) for one in y]
    values = packed.split(packed.join([one * 0 + 1 for one in full]))
    evidence = kbp.clamp(MODEL, packed.graph, packed.nodes(1)[:2], values[1][:2])
    posterior = kbp.infer(MODEL, packed.graph, np.nan_to_num(packed.join(y)), mask=mask, evidence=evidence)
    clamps = [None, kbp.clamp(MODEL, graphs[1], [0, 1], [1.0, 1.0]), None]
    alone = [kbp.infer(MODEL, *rest[:2], evidence=rest[2]) for rest in zip(graphs, y, clamps, strict=True)]
    assert_same(packed.split(kbp.mean(posterior)), [kbp.mean(one) for one in alone], atol=1e-9)
    with pytest.raises(ValueError, match="^evidence: must have no clamps"):
        packed.log_partition(posterior)


@pytest.mark.slow
def test_derivatives_and_parts_of_devices():
    """Both make plans of their own from the rounded graph."""
    graphs = graphs_of(loopy, 3, 3)
    packed, y = kbp.pack(graphs), [np.nan_to_num(one) for one in observations(graphs)]
    options = {"tol": 1e-8, "num_iters": 500}
    joined = np.nan_to_num(packed.join(y))
    first, last = int(packed.first[1]), int(packed.first[2])

    @jax.jit
    def slopes(y):
        return jax.grad(lambda y: kbp.mean(kbp.infer(MODEL, packed.graph, y, **options))[first:last].sum())(y)

    alone = jax.jit(jax.grad(lambda y: kbp.mean(kbp.infer(MODEL, graphs[1], y, **options)).sum()))(y[1])
    expected = np.zeros(len(joined))
    expected[first:last] = alone
    np.testing.assert_allclose(slopes(joined), expected, atol=1e-5)
    assert np.abs(alone).max() > 1e-2

    inner, evidence = iterated_model(MODEL), kbp.observe(MODEL, packed.graph, joined)
    schedule = kbp.sharded.partition_graph(packed.graph, 3)
    split = kbp.run(inner, packed.graph, evidence, num_iters=4, schedule=schedule).messages
    np.testing.assert_allclose(split, kbp.run(inner, packed.graph, evidence, num_iters=4).messages, atol=1e-12)


def test_join_and_split():
    packed = kbp.pack([kbp.chain_graph(2), kbp.chain_graph(3)])  # and one spare node
    assert len(packed) == 2 and "2 graphs of 5 nodes" in repr(packed)
    assert np.isnan(packed.join([[[0.0, 1.0]] * 2, [[2.0, 3.0]] * 3])[5]).all()
    assert packed.join([["a", "b"], ["a", None, "b"]]) == ["a", "b", "a", None, "b", None]
    whole = packed.join([np.ma.array([1, 2], mask=[False, True]), [3, 4, 5]])
    assert whole.mask.tolist() == [False, True, False, False, False, True] and whole[2] == 3
    assert packed.split(whole)[0].mask.tolist() == [False, True]
    halves = packed.split({"one": np.arange(6.0), "two": jnp.zeros((6, 2))})
    assert halves[1]["one"].tolist() == [2, 3, 4] and halves[0]["two"].shape == (2, 2)


@pytest.mark.parametrize("kind, one, other", [(tree, 1, 2), (loopy, 3, 4)])
def test_a_batch_of_similar_size_compiles_nothing(kind, one, other):
    """Other graphs, observations and degrees, but about as many nodes, edges and nodes of each degree."""

    def answer(kind, seed):
        graphs = graphs_of(kind, seed, 40)
        packed, y = kbp.pack(graphs), observations(graphs, seed)
        posterior = kbp.infer(MODEL, packed.graph, packed.join(y))
        jax.block_until_ready((packed.residuals(posterior), packed.log_partition(posterior)))
        return packed.first.tolist(), packed.split(kbp.mean(posterior))

    first, _ = answer(kind, one)
    with compiled() as programs:
        second, _ = answer(kind, other)
    assert first != second and not programs


@pytest.mark.parametrize("count, rounded", [(1, 1), (2, 2), (3, 3), (5, 6), (7, 8), (9, 12), (49, 64), (96, 96)])
def test_sizes_are_rounded_up(count, rounded):
    assert round_up(count) == rounded


CHAINS = [kbp.chain_graph(2), kbp.chain_graph(3)]
PACKED = kbp.pack(CHAINS)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: kbp.pack([]), "graphs: must have at least one graph; got none. Pass a list"),
        (
            lambda: kbp.pack(np.array([kbp.chain_graph(2), 3], object).tolist()),
            r"graphs\[1\]: must be a Graph; got 3. Check",
        ),
        (
            lambda: kbp.pack([kbp.chain_graph(2), kbp.chain_graph(2, node_type=[1, 1])]),
            r"graphs: must join nodes by edge type 0 alike; got node types \(0, 0\) in graph 0, \(1, 1\) in",
        ),
        (
            lambda: kbp.pack([kbp.chain_graph(2), kbp.chain_graph(2, edge_features=[1.0])]),
            "graphs: must all have the same number of features of edges, or none; got none in graph 0, 1 in graph 1",
        ),
        (lambda: jax.jit(lambda g: kbp.pack([g]).first)(CHAINS[0]), "graphs: must be known; got a traced graph. Call"),
        (lambda: PACKED.nodes(2), "number: must be 0 .. 1; got 2. Count"),
        (lambda: PACKED.join([[1.0, 2.0]]), "values: must have an entry for each of the 2 graphs; got 1. Pass"),
        (
            lambda: PACKED.join([[1.0], [1.0] * 3]),
            r"values: .* node of a graph; got shape \(1,\) for one of 2 nodes",
        ),
        (lambda: PACKED.join([[1.0] * 2, [[1.0]] * 3]), "values: must have the same shape for all nodes; got"),
        (lambda: PACKED.join([{0: [1.0] * 2}, [1.0] * 3]), "values: must all be of one form; got 1 by node type. Pass"),
        (lambda: PACKED.join([{1: [1.0]}, {}]), r"values: must have node types among \[0\] as keys; got \[1\]. Leave"),
        (
            lambda: PACKED.join([{0: [1.0] * 2}, {}]),
            r"values: must have node type 0 .*; got none for graphs \[1\]",
        ),
        (
            lambda: jax.jit(lambda y: PACKED.join([y[:2], y]))(np.ones(3)),
            "values: must be known; got a traced array. Call",
        ),
        (lambda: PACKED.split(np.zeros(5)), r"values: must have 6 nodes; got shape \(5,\). Pass"),
        (lambda: jax.jit(lambda x: PACKED.split(x))(np.zeros(6)), "values: must be known; got a traced array. Call"),
        (
            lambda: PACKED.residuals(kbp.infer(MODEL, CHAINS[0])),
            "posterior: must be of the packed graph of 6 nodes; got one of 2 nodes. Pass",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
