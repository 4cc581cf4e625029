"""Templates: many types of edges in one graph, one model on many graphs, many graphs in one training set."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning import regression
from tests import reference
from tests.refusals import complaints

HEIGHT, WIDTH = 107, 86
KERNELS = {"kernel": kbp.RBF(0.8), "obs_kernel": kbp.RBF(0.6)}
OPTIONS = {"ridge": 1e-3, "floor": 1e-6}
RULE = kbp.ConstantTime(eps=1e-2, max_rank=9)


def row_types(height, width):
    """Number the edges of a grid: a type for each row of horizontal ones, then one for each row of vertical ones."""
    return np.concatenate([np.repeat(np.arange(height), width - 1), height + np.repeat(np.arange(height - 1), width)])


def images(count, height, width, seed=0):
    """Draw smooth random images, whose rows differ in how neighbors depend on each other."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, height, width))
    x[:, :, 1:] += np.linspace(-0.9, 0.9, height)[None, :, None] * x[:, :, :-1]
    x[:, 1:] += 0.6 * x[:, :-1]
    x = np.tanh(x).reshape(count, -1)
    return x, x + 0.3 * rng.normal(size=x.shape)


def twin_fit(graph, x, y, pooled=None):
    edges, nodes, observed, degrees = reference.pool(graph, x, y) if pooled is None else pooled
    kernels, obs_kernels = {v: reference.rbf(0.8) for v in nodes}, {v: reference.rbf(0.6) for v in nodes}
    settings = {"eps": RULE.eps, "max_rank": RULE.max_rank} | OPTIONS
    return reference.fit(edges, nodes, observed, graph.ends(), degrees, kernels, obs_kernels, **settings)


def grid_twin(height, width, edge_type):
    graph = kbp.grid_graph(height, width, edge_type=edge_type)
    half = graph.num_edges // 2
    edges = list(zip(graph.senders[:half].tolist(), graph.receivers[:half].tolist()))
    return graph, reference.Graph(edges, [0] * (height * width), list(map(int, edge_type)))


def assert_same_inference(model, graph, twin_model, twin, y, num_iters=4):
    mask = np.arange(len(y)) % 3 > 0
    evidence = kbp.observe(model, graph, y, mask=mask)
    solution = kbp.run(model, graph, evidence, num_iters=num_iters, damping=0.2)
    known = reference.observe(twin_model, twin, y, mask)
    messages = reference.run(twin_model, twin, known, num_iters, 0.2)
    assert len(messages) == graph.num_edges
    for edge, pair in enumerate(zip(graph.senders.tolist(), graph.receivers.tolist())):
        np.testing.assert_allclose(solution.messages[edge, : len(messages[pair])], messages[pair], atol=1e-7)
    points = np.linspace(-1, 1, 5)
    weights = kbp.beliefs(model, graph, evidence, solution, points).weights
    expected = [reference.beliefs(twin_model, twin, known, messages, points, node) for node in range(len(y))]
    np.testing.assert_allclose(weights, expected, atol=1e-7)
    assert np.ptp(expected, axis=0).max() > 0.05


# --- many types -------------------------------------------------------------------------------------------------------


@functools.cache
def large():
    """Return a grid with two directed types a row of edges, training data on it and a model of them."""
    graph = kbp.grid_graph(HEIGHT, WIDTH, edge_type=row_types(HEIGHT, WIDTH))
    data = kbp.pool(graph, *images(2, HEIGHT, WIDTH))
    before = regression._learn_pairs.program()._cache_size()
    model = kbp.fit(data, rule=RULE, **KERNELS, **OPTIONS)
    return graph, data, model, regression._learn_pairs.program()._cache_size() - before


@pytest.mark.slow
def test_hundreds_of_types_are_learned_in_one_program():
    graph, data, _, compiled = large()
    assert len(graph.edge_types) == 2 * HEIGHT - 1 and compiled <= 2  # as all have 170 or 172 pairs
    before = regression._learn_pairs.program()._cache_size()
    more = kbp.pool(graph, *images(2, HEIGHT, WIDTH, seed=1))
    kbp.fit(more, kernel=kbp.RBF(0.8), obs_kernel=kbp.RBF(0.6), rule=kbp.ConstantTime(eps=1e-9, max_rank=3))
    after = regression._learn_pairs.program()._cache_size()
    kbp.fit(data, kernel=kbp.RBF(0.7), obs_kernel=kbp.RBF(0.6), rule=kbp.ConstantTime(eps=1e-9, max_rank=3), ridge=1e-2)
    assert after - before <= 2
    assert regression._learn_pairs.program()._cache_size() == after  # for other data of the same shapes none


def sizes(jaxpr):
    """Yield the number of entries of every array that a program makes, those of its loops and calls included."""
    for equation in jaxpr.eqns:
        yield from (int(np.prod(out.aval.shape)) for out in equation.outvars)
        for value in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes(inner)


@pytest.mark.slow
def test_no_operator_is_copied_to_edges():
    graph, _, model, _ = large()
    y = images(1, HEIGHT, WIDTH, seed=2)[1][0]
    evidence = kbp.observe(model, graph, y)

    def infer(model, evidence):
        return kbp.run(model, graph, evidence, num_iters=2)

    points, rank = model.operators.evaluate.shape[1:]
    one_each = graph.num_edges * points
    assert rank >= 6
    largest = max(sizes(jax.make_jaxpr(infer)(model, evidence).jaxpr))
    # As many incoming messages as slots: 4 a node, and the boundary has fewer; in the engine tiles are padded a little.
    assert one_each / 2 <= largest <= 1.5 * one_each
    program = jax.jit(infer).lower(model, evidence).compile()
    itemsize = model.operators.evaluate.dtype.itemsize
    assert (
        program.memory_analysis().temp_size_in_bytes
        < 4 * one_each * itemsize
        < graph.num_edges * points * rank * itemsize
    )
    solution = program(model, evidence)
    assert np.isfinite(solution.messages).all()
    # One message of the last row against the update written out.
    sender, receiver = (HEIGHT - 1) * WIDTH + 40, (HEIGHT - 1) * WIDTH + 41
    last = dict(zip(zip(graph.senders.tolist(), graph.receivers.tolist()), np.asarray(solution.messages)))
    before = kbp.run(model, graph, evidence, num_iters=1)
    old = dict(zip(last, np.asarray(before.messages)))
    product = np.asarray(evidence.local[sender])
    for other in (sender - 1, sender - WIDTH):
        values = np.asarray(model.operators.evaluate[0]) @ old[other, sender]
        product = product * np.maximum(values, float(model.floor_of(0)))
    update = np.asarray(model.operators.project[2 * (HEIGHT - 1)]) @ product
    expected = 0.2 * old[sender, receiver] + 0.8 * update / np.linalg.norm(update)
    np.testing.assert_allclose(last[sender, receiver], expected, atol=1e-9)


@functools.cache
def by_rows():
    graph, twin = grid_twin(5, 4, row_types(5, 4))
    x, y = images(6, 5, 4)
    model = kbp.fit(kbp.pool(graph, x, y), rule=RULE, **KERNELS, **OPTIONS)
    return graph, twin, model, twin_fit(twin, x, y)


def test_a_type_for_each_row_equals_twin():
    graph, twin, model, twin_model = by_rows()
    assert len(graph.edge_types) == 9
    assert_same_inference(model, graph, twin_model, twin, images(1, 5, 4, seed=3)[1][0])


@pytest.mark.slow
def test_a_type_for_each_edge_equals_twin():
    graph, twin = grid_twin(5, 4, np.random.default_rng(0).permutation(31))
    x, y = images(9, 5, 4)
    model = kbp.fit(kbp.pool(graph, x, y), rule=RULE, **KERNELS, **OPTIONS)
    assert model.operators.project.shape[0] == 62
    assert_same_inference(model, graph, twin_fit(twin, x, y), twin, images(1, 5, 4, seed=3)[1][0])


def test_a_model_serves_grids_of_other_sizes():
    """Rows 1, 2 and 4 of the horizontal types, wider than any that was learned."""
    _, _, model, twin_model = by_rows()
    kinds = np.concatenate([np.repeat([4, 1, 2], 5), np.repeat([5, 8], 6)])
    graph, twin = grid_twin(3, 6, kinds)
    assert_same_inference(model, graph, twin_model, twin, images(1, 3, 6, seed=4)[1][0])
    chain = reference.Graph([(0, 1), (2, 1)], [0, 0, 0], [3, 7])
    typed = kbp.Graph.from_edges(chain.edges, 3, edge_type=chain.edge_type)
    assert_same_inference(model, typed, twin_model, chain, np.array([0.5, -0.8, 0.3]))


def test_shared_operators_equal_copies_for_each_type():
    rng = np.random.default_rng(0)
    evaluate, project = jnp.asarray(rng.uniform(size=(1, 7, 4))), jnp.asarray(rng.uniform(size=(1, 4, 7)))
    graph, _ = grid_twin(5, 4, row_types(5, 4))
    local = jnp.asarray(rng.uniform(size=(20, 7)))
    answers = [
        kbp.run(kbp.Operators(e, p), g, local, num_iters=5).messages
        for e, p, g in (
            (evaluate, project, graph),
            (jnp.repeat(evaluate, 2, axis=0), jnp.repeat(project, 18, axis=0), graph),
            (evaluate, project, kbp.grid_graph(5, 4)),
        )
    ]
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-14)
    np.testing.assert_allclose(answers[2], answers[0], atol=1e-14)


@pytest.mark.slow
def test_types_with_unequal_numbers_of_pairs_equal_twin():
    """Types are learned together, padded to the largest: 1, 3, 8, 9, 15 and 40 pairs, in no order."""
    rng = np.random.default_rng(0)
    counts = [9, 40, 1, 15, 8, 3]
    twin = reference.Graph([(i, i + 1) for i in range(6)], [0] * 7, list(range(6)))
    graph = kbp.chain_graph(7, edge_type=range(6))
    first = [rng.normal(size=n) for n in counts]
    edges = {k: (x, 0.7 * x + 0.4 * rng.normal(size=len(x))) for k, x in enumerate(first)}
    nodes = {0: np.concatenate([x for pair in edges.values() for x in pair])}
    observed = {0: (nodes[0], nodes[0] + 0.3 * rng.normal(size=len(nodes[0])))}
    data = kbp.TrainingData(edges, nodes, observed, degrees={0: 3})
    model = kbp.fit(data, rule=RULE, **KERNELS, **OPTIONS)
    twin_model = twin_fit(twin, None, None, (edges, nodes, observed, {0: 3}))
    for k in range(6):
        for back in (0, 1):
            expected = twin_model.project[k, back]
            got = model.operators.project[2 * k + back]
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    assert_same_inference(model, graph, twin_model, twin, rng.normal(size=7))


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(kbp.FullRank(), id="full"),
        pytest.param(kbp.LinearTime(eps=1e-2), id="linear", marks=pytest.mark.slow),
    ],
)
def test_types_with_unequal_numbers_of_pairs_are_the_same_alone(rule):
    rng = np.random.default_rng(0)
    counts = {0: 5, 1: 12, 2: 1, 3: 9}
    edges = {k: tuple(rng.normal(size=(2, n))) for k, n in counts.items()}
    nodes = {0: rng.normal(size=15)}
    model = kbp.fit(kbp.TrainingData(edges, nodes, degrees={0: 3}), kernel=kbp.RBF(0.8), rule=rule, ridge=1e-2)
    points = model.points[0]
    for k, (x_first, x_second) in edges.items():
        place = [int(np.flatnonzero(np.asarray(points) == x)[0]) for x in x_first]
        given = np.asarray(model.bases[0](jnp.asarray(x_second)))
        expected = np.zeros((given.shape[1], len(points)))
        expected[:, place] = reference.conditional_operator(given, np.eye(counts[k]), 1e-2)
        got = np.asarray(model.operators.project[2 * k])
        at = np.asarray(model.operators.evaluate[0])
        np.testing.assert_allclose(at @ got, at @ expected, atol=1e-6 * np.abs(at @ expected).max())
    assert len(points) == 2 * sum(counts.values())


# --- many graphs ------------------------------------------------------------------------------------------------------


def several():
    """Return graphs of different sizes, some of which lack some types, and samples on each."""
    rng = np.random.default_rng(0)
    twins = [
        reference.Graph([(0, 1), (1, 2), (2, 3)], [0, 1, 0, 0], [4, 4, 1]),
        reference.Graph([], [1], []),
        reference.Graph([(0, 1)], [0, 0], [1]),
        reference.Graph([(1, 0), (1, 2), (3, 0)], [0, 1, 0, 1], [4, 4, 4]),
        reference.Graph([(0, 1), (1, 2), (0, 2)], [2, 0, 0], [6, 1, 6]),
    ]
    samples = [rng.normal(size=(n, len(g.node_type))) for g, n in zip(twins, (3, 5, 1, 2, 4))]
    graphs = [
        kbp.Graph.from_edges(
            np.array(g.edges, int).reshape(-1, 2), len(g.node_type), edge_type=g.edge_type, node_type=g.node_type
        )
        for g in twins
    ]
    return twins, graphs, samples, [x + 10 for x in samples]


def joined(parts, key):
    """Concatenate by type what the twin has pooled of each graph."""
    result = {}
    for part in parts:
        for k, values in part[key].items():
            result.setdefault(k, []).append(values)
    if key == 1:
        return {k: np.concatenate(v) for k, v in result.items()}
    return {k: tuple(np.concatenate(side) for side in zip(*v)) for k, v in result.items()}


def as_rows(*arrays):
    """Pairs side by side, sorted: pooling promises which samples pair up, not their order."""
    together = np.stack([np.asarray(a) for a in arrays], axis=1)
    return together[np.lexsort(together.T[::-1])]


@pytest.mark.parametrize("observed", [True, False])
def test_pool_of_several_graphs_is_the_concatenation(observed):
    twins, graphs, samples, observations = several()
    data = kbp.pool(graphs, samples, observations if observed else None)
    given = observations if observed else [None] * len(graphs)
    parts = [reference.pool(*one) for one in zip(twins, samples, given)]
    edges, nodes, seen = (joined(parts, key) for key in range(3))
    assert data.edges.keys() == edges.keys() and data.nodes.keys() == nodes.keys()
    assert data.observations.keys() == seen.keys() == (nodes.keys() if observed else set())
    for k, pair in edges.items():
        np.testing.assert_array_equal(as_rows(*data.edges[k]), as_rows(*pair))
    for v, x in nodes.items():
        np.testing.assert_array_equal(np.sort(data.nodes[v]), np.sort(x))
    for v, pair in seen.items():
        np.testing.assert_array_equal(as_rows(*data.observations[v]), as_rows(*pair))
    assert dict(data.degrees) == {v: max(part[3].get(v, 0) for part in parts) for v in nodes}
    assert data.ends == ((1, 0, 0), (4, 0, 1), (6, 0, 2))


def test_rows_are_where_the_samples_of_pairs_stand():
    twins, graphs, samples, _ = several()
    # Integers that name graph, sample and node: equal values cannot hide a wrong row.
    named = [1000.0 * i + np.arange(x.size).reshape(x.shape) for i, x in enumerate(samples)]
    data = kbp.pool(graphs, named)
    for k, *ends in data.ends:
        for end, v in enumerate(ends):
            np.testing.assert_array_equal(data.nodes[v][data.rows[k][end]], data.edges[k][end])
    pairs = {}
    for twin, x in zip(twins, named):
        for k, a, b in twin.oriented():
            pairs.setdefault(k, set()).update((row[a], row[b]) for row in x.tolist())
    for k, expected in pairs.items():
        found = [data.nodes[v][rows].tolist() for v, rows in zip(data.ends[[1, 4, 6].index(k)][1:], data.rows[k])]
        assert sorted(zip(*found)) == sorted(expected)


def test_full_rank_on_chains_of_different_lengths_is_equation_12():
    """The pairs of a chain's two graphs, pooled, against eq. 12 on the graph that holds both."""
    rng = np.random.default_rng(1)
    lengths, count = (2, 4), 6
    both = [np.cumsum(rng.normal(size=(count, n)), axis=1) / 2 for n in lengths]
    seen = [x + 0.3 * rng.normal(size=x.shape) for x in both]
    model = kbp.fit(
        kbp.pool([kbp.chain_graph(n) for n in lengths], both, seen), rule=kbp.FullRank(), **KERNELS, **OPTIONS
    )
    whole = reference.Graph([(0, 1), (2, 3), (3, 4), (4, 5)], [0] * 6, [0] * 4)
    pooled = reference.pool(whole, np.concatenate(both, axis=1), np.concatenate(seen, axis=1))
    kernels = {0: reference.rbf(0.8)}, {0: reference.rbf(0.6)}
    chain = reference.Graph([(0, 1), (1, 2)], [0] * 3, [0] * 2)
    twin = reference.FullRank(chain, pooled, *kernels, **OPTIONS)
    y, points = np.array([0.4, 0.9, -0.3]), np.linspace(-1.5, 1.5, 9)
    evidence = twin.observe(y, [True, False, True])
    messages = twin.run(evidence, 3)
    graph = kbp.chain_graph(3)
    known = kbp.observe(model, graph, y, mask=np.array([True, False, True]))
    solution = kbp.run(model, graph, known, num_iters=3, damping=0.0)
    weights = kbp.beliefs(model, graph, known, solution, points).weights
    expected = [twin.beliefs(evidence, messages, points, node) for node in range(3)]
    np.testing.assert_allclose(weights, expected, atol=1e-6)


CHAIN, PAIR = kbp.chain_graph(3), kbp.chain_graph(2)
X3, X2 = np.zeros((2, 3)), np.ones((4, 2))


def test_pool_of_several_graphs_names_what_is_wrong():
    wrong = []
    for graphs, samples, observations, message in [
        ([], [], None, "^graph: must be a graph or a sequence of graphs; got none"),
        ([CHAIN, PAIR], [X3], None, "^samples: must be a list of 2 arrays; got 1"),
        ([CHAIN, PAIR], [X3, X2, X2], None, "^samples: must be a list of 2 arrays; got 3"),
        ([CHAIN, CHAIN], np.zeros((2, 2, 3)), None, "^samples: must be a list of 2 arrays; got ndarray"),
        ([CHAIN, PAIR], [X3, X2], [X3], "^observations: must be a list of 2 arrays; got 1"),
        ([CHAIN, PAIR], [X2, X3], None, r"^samples\[0\]: must have shape \[sample, 3, ...\]"),
        ([CHAIN, PAIR], [X3, X3], None, r"^samples\[1\]: must have shape \[sample, 2, ...\]"),
        ([CHAIN, PAIR], [X3, X2], [X3, X3], r"^observations\[1\]: must have shape"),
        ([CHAIN, PAIR], [X3, X2], [X3, X2[:3]], r"^observations\[1\]: must have 4 samples"),
        ([CHAIN, PAIR], [X3, X2 * np.inf], None, r"^samples\[1\]: must be finite"),
        ([CHAIN, PAIR], [X3, np.zeros((4, 2, 5))], None, "^samples of node type 0: must have one shape"),
        ([CHAIN, PAIR], [X3, X2], [X3, np.zeros((4, 2, 5))], "^observations of node type 0: must have one shape"),
        (
            [CHAIN, kbp.chain_graph(2, node_type=[0, 1], edge_type=[0])],
            [X3, X2],
            None,
            r"^graph\[1\]: must have edge types that join the same node types in all graphs",
        ),
    ]:
        wrong += complaints(message, kbp.pool, graphs, samples, observations)
    assert not wrong


@pytest.mark.slow
def test_a_forest_of_chains_is_each_chain_alone():
    _, _, model, _ = by_rows()
    rng = np.random.default_rng(0)
    lengths = (1, 2, 7, 4)
    offsets = np.cumsum((0, *lengths)).tolist()
    edges, kinds = [], []
    for first, n in zip(offsets, lengths):
        edges += [(first + i, first + i + 1) for i in range(n - 1)]
        kinds += [i % 9 for i in range(n - 1)]
    forest = kbp.Graph.from_edges(edges, offsets[-1], edge_type=kinds)
    y, points = rng.normal(size=offsets[-1]), np.linspace(-1, 1, 5)
    mask = rng.random(offsets[-1]) < 0.7

    def means(graph, y, mask, method):
        evidence = kbp.observe(model, graph, y, mask=mask)
        return np.asarray(kbp.mean(kbp.beliefs(model, graph, evidence, method(model, graph, evidence), points)))

    iterate = functools.partial(kbp.run, num_iters=8, damping=0.0)
    together = means(forest, y, mask, kbp.run_tree)
    np.testing.assert_allclose(means(forest, y, mask, iterate), together, atol=1e-9)
    for first, n in zip(offsets, lengths):
        chain, part = kbp.chain_graph(n, edge_type=[i % 9 for i in range(n - 1)]), slice(first, first + n)
        np.testing.assert_allclose(together[part], means(chain, y[part], mask[part], kbp.run_tree), atol=1e-9)
    assert np.ptp(together) > 0.3
