"""Starts of chains and trees: marginals of their own, against enumeration and exact Gaussian answers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.starts import PRIOR, Start, differs, gain, places_of, start_samples

FIRST = np.array([0.9, 0.1, 0.0])
STEP = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.0, 0.1, 0.9]])  # states of which the last absorbs
CHAIN, TREE = kbp.chain_graph(4), kbp.Graph.from_edges([(0, 1), (0, 2), (2, 3)], 4)
STATES = np.arange(3)


def draw(rng, weights):
    return (rng.random((len(weights), 1)) > np.cumsum(weights, axis=1)).sum(axis=1).clip(0, weights.shape[1] - 1)


def draw_states(graph, count, seed=0):
    """Return states of a directed chain or tree, whose edges are in the order of their nodes."""
    rng = np.random.default_rng(seed)
    x = np.zeros((count, graph.num_nodes), int)
    x[:, 0] = draw(rng, np.repeat(FIRST[None], count, axis=0))
    half = graph.num_edges // 2
    for parent, child in zip(np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half], strict=True):
        x[:, child] = draw(rng, STEP[x[:, parent]])
    return x, draw(rng, np.repeat((0.2 + 0.4 * np.eye(3))[None], x.size, axis=0)[np.arange(x.size), x.ravel()]).reshape(
        x.shape
    )


def learned(graph=CHAIN, starts="own", **options):
    x, y = draw_states(graph, 400)
    delta = {"kernel": kbp.Delta(), "obs_kernel": kbp.Delta(), "ridge": 1e-9, "floor": 0.0}
    return kbp.fit(kbp.pool(graph, x, y.astype(float)), **delta | {"starts": starts} | options)


def joint(graph, count_of=None):
    """Return the joint distribution of the counted start and transitions, on all states."""
    x, y = draw_states(count_of or graph, 400)
    trained = count_of or graph
    half = trained.num_edges // 2
    pairs = np.stack([np.asarray(trained.senders), np.asarray(trained.receivers)], axis=1)[:half]
    counts = sum(np.bincount(3 * x[:, a] + x[:, b], minlength=9).reshape(3, 3) for a, b in pairs)
    step = counts / counts.sum(axis=1, keepdims=True)
    total = np.bincount(x.ravel(), minlength=3) / x.size
    first = (np.bincount(x[:, 0], minlength=3) + PRIOR * total) / (len(x) + PRIOR)
    emit = np.zeros((3, 3))
    np.add.at(emit, (x.ravel(), y.ravel()), 1)
    half = graph.num_edges // 2
    table = np.zeros((3,) * graph.num_nodes)
    for state in itertools.product(range(3), repeat=graph.num_nodes):
        table[state] = first[state[0]]
        for a, b in zip(np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half], strict=True):
            table[state] *= step[state[a], state[b]]
    return table, emit / emit.sum(axis=1, keepdims=True)


def enumerated(table, emit, y):
    """Return the marginals of all nodes [node, state] given observations, NaN where missing."""
    for node, value in enumerate(y):
        if not np.isnan(value):
            shape = [1] * table.ndim
            shape[node] = 3
            table = table * emit[:, int(value)].reshape(shape)
    others = lambda node: tuple(axis for axis in range(table.ndim) if axis != node)
    return table / table.sum(), np.stack([table.sum(axis=others(n)) / table.sum() for n in range(table.ndim)])


Y = np.array([[np.nan, 2.0, np.nan, 1.0], [np.nan] * 4, [0.0, 0.0, 2.0, 2.0]])


@pytest.mark.parametrize("graph", [CHAIN, pytest.param(TREE, marks=pytest.mark.slow)], ids=["chain", "tree"])
def test_beliefs_are_those_of_the_enumerated_joint(graph):
    model, (table, emit) = learned(graph), joint(graph)
    found = jax.jit(jax.vmap(lambda y: kbp.infer(model, graph, y, points=STATES).weights))(jnp.asarray(Y))
    expected = [enumerated(table, emit, y)[1] for y in Y]
    np.testing.assert_allclose(found, expected, atol=3e-3)  # the pooled marginal counts for half a sample
    pooled = kbp.infer(learned(graph, "pooled"), graph, Y[0], points=STATES).weights
    assert np.abs(pooled - expected[0]).max() > 0.03


@pytest.mark.slow
def test_beliefs_of_another_length_of_edges_and_of_clamps_are_those_of_the_joint():
    model, graph = learned(), kbp.chain_graph(6)
    table, emit = joint(graph, CHAIN)
    y = np.array([np.nan, 1.0, np.nan, np.nan, 2.0, np.nan])
    posterior = kbp.infer(model, graph, y, points=STATES)
    whole, expected = enumerated(table, emit, y)
    np.testing.assert_allclose(posterior.weights, expected, atol=3e-3)
    pairs = kbp.edge_beliefs(posterior).weights
    for i, pair in enumerate(np.asarray(pairs)):
        axes = tuple(axis for axis in range(6) if axis not in (i, i + 1))
        np.testing.assert_allclose(pair, whole.sum(axis=axes), atol=3e-3)
    known = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0, 3], [1, 2]), points=STATES)
    fixed = table * np.eye(3)[1].reshape(3, 1, 1, 1, 1, 1) * np.eye(3)[2].reshape(1, 1, 1, 3, 1, 1)
    np.testing.assert_allclose(known.weights, enumerated(fixed, emit, np.full(6, np.nan))[1], atol=3e-3)


def test_the_log_partition_function_compares_observations():
    model, (table, emit) = learned(evidence := CHAIN), joint(CHAIN)
    logs, sums = [], []
    for y in Y[[0, 2]]:
        fn = lambda x, y=y: jnp.stack([jnp.ones(3) if np.isnan(v) else jnp.asarray(emit[:, int(v)])[x] for v in y])
        given = kbp.likelihood(model, evidence, fn)
        logs.append(kbp.log_partition(kbp.infer(model, evidence, evidence=given, points=STATES)))
        weights = table
        for node, value in enumerate(y):
            shape = [3 if axis == node else 1 for axis in range(4)]
            weights = weights if np.isnan(value) else weights * emit[:, int(value)].reshape(shape)
        sums.append(np.log(weights.sum()))
    np.testing.assert_allclose(logs, sums, atol=5e-3)


def test_the_long_form_gives_the_same_numbers():
    model = learned()
    short = kbp.infer(model, CHAIN, Y[0], points=STATES)
    evidence = kbp.observe(model, CHAIN, Y[0])
    for solution in (
        kbp.run_tree(model, CHAIN, evidence),
        kbp.run(model, CHAIN, evidence, tol=1e-9, num_iters=50, damping=0.0),
    ):
        long = kbp.Posterior.of(model, CHAIN, evidence, solution, STATES)
        np.testing.assert_allclose(long.weights, short.weights, atol=1e-8)
    logs = kbp.log_belief(short, jnp.broadcast_to(jnp.asarray(STATES), (4, 3)))
    np.testing.assert_allclose(jax.nn.softmax(logs, axis=1), short.weights, atol=1e-8)


def test_a_node_alone_has_the_marginal_of_starts():
    alone = kbp.Graph.from_edges(np.zeros((0, 2), int), 1)
    x, _ = draw_states(CHAIN, 400)
    weights = kbp.infer(learned(), alone, points=STATES).weights[0]
    np.testing.assert_allclose(weights, np.bincount(x[:, 0], minlength=3) / 400, atol=2e-3)


@pytest.mark.parametrize(
    "graph",
    [
        kbp.grid_graph(2, 2),
        pytest.param(kbp.Graph.from_edges([(0, 1), (2, 1)], 3), marks=pytest.mark.slow),
        pytest.param(kbp.Graph.from_edges([(0, 1), (1, 2), (2, 0)], 3), marks=pytest.mark.slow),
    ],
    ids=["grid", "two incoming edges", "cycle"],
)
def test_answers_on_other_graphs_are_unchanged(graph):
    y = np.full(graph.num_nodes, 1.0)
    own, pooled = (kbp.infer(learned(starts=word), graph, y, points=STATES) for word in ("own", "pooled"))
    np.testing.assert_array_equal(own.weights, pooled.weights)
    np.testing.assert_array_equal(kbp.edge_beliefs(own).weights, kbp.edge_beliefs(pooled).weights)
    assert kbp.log_partition(own) == kbp.log_partition(pooled)


def test_only_directed_chains_and_trees_have_starts():
    places = places_of(kbp.Graph.from_edges([(0, 1), (1, 2), (3, 4)], 6))
    assert places.first.tolist() == [True, False, False, True, False, True]
    assert places.later.tolist() == [False, True, True, False, True, False]
    several = places_of(kbp.Graph.from_edges([(0, 1), (2, 1)], 3))
    assert not several.first.any() and not several.later.any()
    assert places_of(kbp.grid_graph(2, 2)) is None
    hidden = kbp.Graph.from_edges([(0, 1), (0, 2), (1, 3)], 4, node_type=[0, 0, 1, 1])  # with a visible node each
    assert places_of(hidden).first.tolist() == [True, False, True, True]
    data = kbp.pool(hidden, {0: np.zeros((3, 2)), 1: np.zeros((3, 2))})
    assert list(data.starts) == [0]  # those of visible nodes are all nodes
    graphs = [CHAIN, kbp.grid_graph(2, 2)]
    assert not kbp.pool(graphs, [np.zeros((3, 4)), np.zeros((3, 4))]).starts
    x = np.array([[np.nan, 1.0, 2.0, 3.0], [4.0, np.nan, 6.0, 7.0]])
    starts = kbp.pool(CHAIN, x).starts[0]
    assert starts.points[starts.own > 0].tolist() == [4.0] and starts.others.sum() == 5


def walk_model(starts="own", bandwidth=2.0):
    walks = np.cumsum(np.random.default_rng(0).normal(size=(300, 30)), axis=1)
    data = kbp.pool(kbp.chain_graph(30), walks, walks + 0.5 * np.random.default_rng(1).normal(size=walks.shape))
    rule = kbp.ConstantTime(eps=1e-3, max_rank=60)
    return kbp.fit(data, kernel=kbp.RBF(bandwidth), obs_kernel=kbp.RBF(0.7), ridge=1e-4, rule=rule, starts=starts)


@pytest.mark.slow
def test_the_first_value_of_a_walk_has_the_exact_spread():
    """The first 10 values are missing."""
    graph, points = kbp.chain_graph(30), np.linspace(-25, 25, 501)
    covariance = np.minimum.outer(np.arange(1, 31), np.arange(1, 31)).astype(float)
    seen = np.arange(10, 30)
    y = np.cumsum(np.random.default_rng(2).normal(size=30)) + 3
    y[:10] = np.nan
    gain_ = covariance[:, seen] @ np.linalg.inv(covariance[np.ix_(seen, seen)] + 0.25 * np.eye(20))
    mean, std = gain_ @ y[seen], np.sqrt(np.diag(covariance - gain_ @ covariance[seen]))
    spreads = {}
    for word in ("own", "pooled"):
        belief = kbp.infer(walk_model(word), graph, y, points=points).belief
        spreads[word] = np.asarray(kbp.std(belief))
        if word == "own":
            assert abs(kbp.mean(belief)[0] - mean[0]) < 0.3
    assert abs(spreads["own"][0] - std[0]) < 0.2 * std[0] and abs(spreads["own"][1] - std[1]) < 0.2 * std[1]
    assert spreads["pooled"][0] > 1.5 * std[0]


@pytest.mark.slow
def test_starts_are_differentiable_and_compile():
    graph, y = kbp.chain_graph(5), jnp.array([jnp.nan, jnp.nan, 1.0, 0.5, jnp.nan])
    walks = np.cumsum(np.random.default_rng(0).normal(size=(50, 5)), axis=1)
    data = kbp.pool(graph, walks, walks)
    kernels = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.0)}
    rule = kbp.fix_landmarks(data, **kernels, rule=kbp.ConstantTime(eps=1e-2, max_rank=12))

    def mean(bandwidth, y):
        model = kbp.fit(data, **kernels | {"kernel": kbp.RBF(bandwidth)}, ridge=1e-3, rule=rule, starts="own")
        return kbp.mean(kbp.infer(model, graph, y, points=np.linspace(-6, 6, 61)))[0]

    value = jax.jit(jax.value_and_grad(mean))(1.0, y)
    ahead, behind = (mean(1.0 + step, y) for step in (1e-5, -1e-5))
    np.testing.assert_allclose(value, (mean(1.0, y), (ahead - behind) / 2e-5), rtol=1e-4)
    batch = jnp.stack([y, y.at[2].set(-1.0)])
    together = jax.vmap(lambda y: mean(1.0, y))(batch)
    np.testing.assert_allclose(together, [mean(1.0, one) for one in batch], rtol=1e-9)


@pytest.mark.slow
def test_a_model_with_starts_is_saved(tmp_path):
    model = learned()
    kbp.save(tmp_path / "model", model)
    loaded = kbp.load(tmp_path / "model")
    np.testing.assert_array_equal(*(kbp.infer(one, CHAIN, Y[0], points=STATES).weights for one in (model, loaded)))
    assert "own starts, Start(400 samples of starts, 1200 of other nodes, power 1)" in repr(loaded)


def test_the_ratio_is_that_of_normal_densities_on_numbers_and_vectors():
    rng = np.random.default_rng(0)
    for dim, power in ((1, 16.0), (2, 4.0)):
        own, others = rng.normal(size=(250, dim)), 3 * rng.normal(size=(750, dim))
        own, others = (own[:, 0], others[:, 0]) if dim == 1 else (own, others)
        samples = start_samples(own, others)
        start = Start(samples, kbp.RBF(2.0), gain(samples, kbp.RBF(2.0)).power)
        assert float(start.power) >= power  # much narrower than the kernel of the model
        x = np.linspace(-2, 2, 9) if dim == 1 else np.stack([np.linspace(-1.5, 1.5, 9)] * 2, axis=1)
        squares = x**2 if dim == 1 else (x**2).sum(axis=1)
        ratio = np.exp(-squares / 2) / (0.25 * np.exp(-squares / 2) + 0.75 * np.exp(-squares / 18) / 3**dim)
        np.testing.assert_allclose(np.exp(start.log_ratio(x)), ratio, rtol=0.2, atol=0.3)
        assert differs(samples, kbp.RBF(2.0))
        assert np.all(start.log_ratio(np.full_like(x, 50)) >= np.log(PRIOR / (250 + PRIOR)) - 1e-6)  # never impossible


@pytest.mark.slow
def test_angles_and_integers_have_starts():
    rng = np.random.default_rng(0)
    angles = np.cumsum(0.7 * rng.normal(size=(200, 8)), axis=1) % (2 * np.pi)
    samples = kbp.pool(kbp.chain_graph(8), angles).starts[0]
    kernel = kbp.kernels.Periodic(2 * np.pi, 0.7)
    turns, x = 2 * np.pi * np.arange(-3, 4), np.array([0.1, 1.0, 6.0])
    wrapped = lambda std: (np.exp(-(((x[:, None] + turns) / std) ** 2) / 2) / std).sum(axis=1)
    ratio = wrapped(0.7) / np.mean([wrapped(0.7 * np.sqrt(t)) for t in range(1, 9)], axis=0)
    start = Start(samples, kernel, gain(samples, kernel).power)
    np.testing.assert_allclose(np.exp(start.log_ratio(x)), ratio, rtol=0.2)
    assert start.log_ratio(np.array([np.pi])) < -3 and differs(samples, kernel)
    many = start_samples(np.arange(300), np.arange(5000))
    assert len(many.points) == 256 + 768 and np.isclose(many.own.sum(), 300) and np.isclose(many.others.sum(), 5000)


def test_starts_like_all_other_nodes_are_not_taken():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(100, 10))
        assert not differs(kbp.pool(kbp.chain_graph(10), x).starts[0], kbp.RBF(0.3))
        assert not differs(kbp.pool(kbp.chain_graph(10), rng.integers(3, size=(100, 10))).starts[0], kbp.Delta())


@pytest.mark.slow  # a search
def test_fit_takes_starts_that_differ():
    x, y = draw_states(CHAIN, 200)
    data = kbp.pool(CHAIN, x, y.astype(float))
    model = kbp.fit(data, kernel={0: kbp.Delta()}, sharing="type", relation="ridge")
    assert model.selection.taken["starts"] == "own" and list(model.starts) == [0]
    assert model.hyperparameters.own_starts == (0,)
    scores = {one.alternative: one.score for one in model.selection if one.choice == "starts"}
    assert scores["own"] <= scores["pooled"]
    again = model.hyperparameters.fit(data)
    np.testing.assert_allclose(*(kbp.infer(one, CHAIN, Y[0], points=STATES).weights for one in (model, again)))


def test_nodes_with_own_margins_have_no_starts():
    x = np.cumsum(np.random.default_rng(0).normal(size=(40, 4)), axis=1)
    data = kbp.pool(CHAIN, x, x)
    kernels = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.0)}
    model = kbp.fit(data, **kernels, margins="node")
    assert not model.starts and model.margins
    with pytest.raises(ValueError, match="starts: must .*own margins"):
        kbp.fit(data, **kernels, margins="node", starts="own")
    hyperparameters = kbp.Hyperparameters(**kernels, own_margins=(0,), own_starts=(0,))
    with pytest.raises(ValueError, match="starts: must .*own margins"):
        hyperparameters.fit(data)


@pytest.mark.parametrize(
    "given", [{"effort": "low"}, {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.0)}], ids=["chosen", "given"]
)
def test_bad_starts_are_refused(given):
    x = np.random.default_rng(0).normal(size=(10, 4))
    chain, grid = kbp.pool(CHAIN, x, x), kbp.pool(kbp.grid_graph(2, 2), x, x)
    for data, word in ((chain, "first"), (chain, "type"), (grid, "own")):
        with pytest.raises(ValueError, match="starts: must"):
            kbp.fit(data, starts=word, **given)
    hyperparameters = kbp.Hyperparameters(kbp.RBF(1.0), kbp.RBF(1.0), own_starts=(0,))
    with pytest.raises(ValueError, match="starts: must"):
        hyperparameters.fit(grid)
    with pytest.raises(ValueError, match="starts: must"):
        kbp.TrainingData({0: (x[:, 0], x[:, 1])}, {0: x[:, 0]}, starts={1: chain.starts[0]})
