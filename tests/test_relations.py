"""Relations of single edges, drawn to those of their types."""

import dataclasses
import json
import warnings
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import io
from kbpjax.learning.differing import differing_relations
from kbpjax.learning.learn import learn_model
from kbpjax.learning.relations import with_own_relations
from kbpjax.tuning.automatic import warn_of_sharing

KERNELS = {"kernel": kbp.RBF(0.4), "obs_kernel": kbp.RBF(0.2), "ridge": 1e-4}


def draw(rng, count):
    """Return values of a tree whose edges are different functions."""
    a = rng.uniform(-2, 2, count)
    b, c = np.sin(2 * a), -a
    x = np.stack([a, b + 0.2 * rng.normal(size=count), c + 0.2 * rng.normal(size=count), np.abs(b)], axis=1)
    return x


GRAPH = kbp.Graph.from_edges([(0, 1), (0, 2), (1, 3)], 4)
X = draw(np.random.default_rng(0), 400)
DATA = kbp.pool(GRAPH, X, X)


def own(strength, **options):
    data, relations = with_own_relations(DATA, strength)
    return learn_model(data, **KERNELS | options, own=relations)


@pytest.fixture(scope="module")
def chosen():
    alone = kbp.fit(DATA)  # compares, so does not warn
    with pytest.warns(kbp.RelationWarning, match=r"Pass sharing='edge' to fit, or give them edge types\.$"):
        return alone, kbp.fit(DATA, sharing="type")


def errors(models):
    """The errors of the hidden values of a test set."""
    truth = draw(np.random.default_rng(1), 100)
    y = np.where(np.random.default_rng(2).random(truth.shape) < 0.4, np.nan, truth)
    means = [jax.vmap(lambda one, model=model: kbp.mean(kbp.infer(model, GRAPH, one)))(y) for model in models]
    return [np.sqrt(np.mean((mean - truth)[np.isnan(y)] ** 2)) for mean in means]


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["ridge", "counts"])
def test_a_tree_of_different_functions_is_answered_by_their_own(relation):
    alone, shared = errors([own(10.0, relation=relation), learn_model(DATA, **KERNELS, relation=relation)])
    assert alone < 0.8 * shared


@pytest.mark.slow  # two searches
def test_fit_takes_own_relations_where_functions_differ(chosen):
    alone, shared = errors(chosen)
    assert alone < 0.8 * shared
    assert chosen[0].own_edges and not chosen[1].own_edges
    assert "relations of their own" in repr(chosen[0])


@pytest.mark.slow
def test_a_large_strength_shares_and_none_fits_each_edge():
    y = np.array([0.5, np.nan, np.nan, np.nan])
    typed = GRAPH.with_edge_types([0, 1, 2])
    shared, separate = (learn_model(data, **KERNELS) for data in (DATA, kbp.pool(typed, X, X)))
    answers = [kbp.mean(kbp.infer(model, GRAPH, y)) for model in (own(1e7), shared)]
    assert np.allclose(*answers, atol=2e-2)
    by_type = kbp.mean(kbp.infer(separate, typed, y))
    assert np.allclose(kbp.mean(kbp.infer(own(0.0), GRAPH, y)), by_type, atol=2e-2)


@pytest.mark.parametrize("relation", ["ridge", pytest.param("counts", marks=pytest.mark.slow)])
def test_infer_equals_its_long_form(relation, tmp_path):
    model = own(10.0, relation=relation)
    kbp.save(tmp_path / "model.npz", model)
    model = kbp.load(tmp_path / "model.npz")
    y = np.array([0.5, np.nan, -0.5, np.nan])
    evidence = kbp.observe(model, GRAPH, y)
    posterior = kbp.Posterior.of(model, GRAPH, evidence, kbp.run_tree(model, GRAPH, evidence))
    assert np.allclose(posterior.belief.weights, kbp.infer(model, GRAPH, y).belief.weights)
    assert model.graph_of(GRAPH).edge_types != GRAPH.edge_types
    assert model.graph_of(model.graph_of(GRAPH)).edge_types == model.graph_of(GRAPH).edge_types


def test_other_graphs_have_the_relations_of_the_types():
    model, shared = own(10.0), learn_model(DATA, **KERNELS)
    graph = kbp.chain_graph(6)
    y = np.array([0.5, np.nan, np.nan, 0.2, np.nan, np.nan])
    with pytest.warns(kbp.RelationWarning, match="0 of the 3 edges that have relations of their own"):
        own_answer = kbp.mean(kbp.infer(model, graph, y))
    assert np.allclose(own_answer, kbp.mean(kbp.infer(shared, graph, y)), atol=1e-3)
    with pytest.warns(kbp.RelationWarning, match="2 of the 3 edges"):  # one is in the other direction
        kbp.infer(model, kbp.Graph.from_edges([(0, 1), (0, 2), (3, 1)], 4), y[:4])


def test_few_values_keep_what_was_asked_for():
    with pytest.warns(kbp.RelationWarning, match="rest on 9 pairs"):
        model = kbp.fit(kbp.pool(GRAPH, X[:3], X[:3]), sharing="edge")
    assert len(model.own_edges) == 3


@pytest.mark.slow
def test_edges_without_pairs_have_the_relation_of_their_type():
    x = X.copy()
    x[:, 3] = np.nan
    x[:5, 3], x[:5, 1] = X[:5, 3], np.nan  # never together with its neighbor
    data, relations = with_own_relations(kbp.pool(GRAPH, x, X), 1.0)
    assert len(relations.edges) == 2
    model = learn_model(data, **KERNELS, own=relations)
    kinds = np.asarray(model.graph_of(GRAPH).edge_type)[:3].tolist()
    assert kinds[2] == 0 and 0 not in kinds[:2]


def operators(model, graph):
    """The updates of each edge of a graph, in both directions [edge, direction, rank, point]."""
    types = np.asarray(model.graph_of(graph).edge_type)[: graph.num_edges // 2]
    return np.stack([np.asarray(model.operators.project)[2 * k : 2 * k + 2] for k in types])


def test_sums_are_those_of_the_own_pairs_and_of_average_pairs_of_the_type():
    """With as many average pairs as the type has, they are those of the own pairs and of all pairs."""
    rule = kbp.fix_landmarks(DATA, kernel=KERNELS["kernel"], obs_kernel=KERNELS["obs_kernel"])
    pairs = {k: (X[:, a], X[:, b]) for k, (a, b) in enumerate([(0, 1), (0, 2), (1, 3)])}
    every = [np.concatenate([pair[end] for pair in pairs.values()]) for end in (0, 1)]
    pairs[1] = tuple(np.concatenate([pairs[1][end], every[end]]) for end in (0, 1))
    ends, degrees = dict.fromkeys(pairs, (0, 0)), dict(DATA.degrees)
    repeated = kbp.TrainingData(pairs, DATA.nodes, DATA.observations, ends=ends, degrees=degrees)
    expected = operators(learn_model(repeated, **KERNELS, rule=rule), GRAPH.with_edge_types([0, 1, 2]))
    found = operators(own(3.0 * len(X), rule=rule), GRAPH)
    assert np.allclose(found[1], expected[1], atol=1e-6 * np.abs(found).max())


@pytest.mark.slow
def test_edges_keep_their_relation_in_another_order_and_on_another_graph():
    model, y = own(10.0), np.array([0.5, np.nan, -0.5, np.nan])
    other = kbp.Graph.from_edges([(1, 3), (0, 1), (0, 2)], 4)
    assert np.allclose(operators(model, other), operators(model, GRAPH)[[2, 0, 1]])
    first, second = (kbp.infer(model, graph, y).belief.weights for graph in (GRAPH, other))
    assert np.allclose(first, second)
    types = np.asarray(model.graph_of(kbp.chain_graph(4)).edge_type)[:3].tolist()
    assert types[0] == model.own_edges[0][2] and types[1:] == [0, 0]  # of the pair (0, 1) alone


@pytest.mark.slow
def test_a_traced_graph_has_the_relations_of_its_types():
    """Inside `jax.jit`, pass `model.graph_of(graph)`."""
    model, y = own(10.0), np.array([0.5, np.nan, -0.5, np.nan])
    answer = jax.jit(lambda graph: kbp.run_tree(model, graph, kbp.observe(model, graph, y)).messages)
    assert np.allclose(answer(model.graph_of(GRAPH)), kbp.infer(model, GRAPH, y).solution.messages, atol=1e-9)
    shared = learn_model(DATA, **KERNELS)
    assert np.allclose(answer(GRAPH), kbp.infer(shared, GRAPH, y).solution.messages, atol=1e-5)


@pytest.mark.slow
def test_questions_of_pairs_use_own_relations():
    model, y = own(10.0), np.array([0.5, np.nan, np.nan, np.nan])
    posterior = kbp.infer(model, GRAPH, y)
    pairs, nodes = np.asarray(kbp.edge_beliefs(posterior).weights), np.asarray(posterior.belief.weights)
    for pair, (a, b) in zip(pairs, [(0, 1), (0, 2), (1, 3)], strict=True):
        assert np.allclose(pair.sum(axis=1), nodes[a], atol=1e-6) and np.allclose(pair.sum(axis=0), nodes[b], atol=1e-6)
    backward = kbp.edge_beliefs(posterior, [(2, 0), (3, 1)]).weights
    assert np.allclose(backward, pairs[1:].transpose(0, 2, 1), atol=1e-6)
    evidence = kbp.observe(model, GRAPH, y)
    long = kbp.log_partition(model, GRAPH, evidence, kbp.run_tree(model, GRAPH, evidence))
    assert np.isclose(long, kbp.log_partition(posterior))
    schedule = kbp.colored(model.graph_of(GRAPH))
    assert bool(kbp.infer(model, GRAPH, y, schedule=schedule).solution.converged)
    with pytest.raises(ValueError, match="^schedule: must be of this graph"):
        kbp.infer(model, GRAPH, y, schedule=kbp.colored(GRAPH))


def test_data_without_cases_of_one_known_graph_are_refused():
    halves = kbp.pool([GRAPH, GRAPH], [X[:200], X[200:]])
    with pytest.raises(ValueError, match="^data: must be cases of one graph where edges have own relations; got 2 gra"):
        with_own_relations(halves, 1.0)
    numbers = kbp.Hyperparameters(kbp.RBF(0.4), kbp.RBF(0.2), own_strength=1.0)
    with pytest.raises(ValueError, match="^own_strength: must be None where data are traced; got a number. Give the"):
        jax.eval_shape(numbers.fit, DATA)
    with pytest.raises(ValueError, match="^edge_type: must"):
        GRAPH.with_edge_types([0, 1, -1])
    with pytest.raises(ValueError, match="^edge_type: must"):
        GRAPH.with_edge_types([0, 1])


@pytest.mark.slow  # two searches
def test_fit_takes_no_harm_where_all_edges_have_one_function():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(100, 4))
    for a, b in [(0, 1), (0, 2), (1, 3)]:
        x[:, b] = 0.8 * x[:, a] + 0.6 * x[:, b]
    y = x + 0.5 * rng.normal(size=x.shape)
    models = [kbp.fit(kbp.pool(GRAPH, x[:60], y[:60]), sharing=word) for word in ("auto", "type")]
    means = [jax.vmap(lambda one, model=model: kbp.mean(kbp.infer(model, GRAPH, one)))(y[60:]) for model in models]
    alone, shared = (np.sqrt(np.mean((mean - x[60:]) ** 2)) for mean in means)
    assert alone < 1.02 * shared


@pytest.fixture(scope="module")
def cyclic():
    rng = np.random.default_rng(9)
    x = rng.normal(size=(60, 1)) + 0.5 * rng.normal(size=(60, 6))
    numbers = kbp.Hyperparameters(kbp.RBF(0.5), kbp.RBF(0.4), ridge=1e-2, tol=1e-11, num_iters=1000)
    return kbp.grid_graph(2, 3), numbers, numbers.fit(kbp.pool(kbp.grid_graph(2, 3), x, x))


@pytest.mark.slow
def test_the_gradient_in_the_factor_of_the_exponents_is_a_difference(cyclic):
    graph, numbers, model = cyclic
    y = jnp.array([1.0, 0.1, 0.5, 0.0, 0.3, 0.2])

    @jax.jit
    @jax.value_and_grad
    def both(factor):
        one = dataclasses.replace(model, reweighting=factor)
        evidence = kbp.observe(one, graph, y)
        return jnp.sum(kbp.mean(kbp.beliefs(one, graph, evidence, numbers.run(one, graph, evidence))))

    at, step = jnp.array(0.9), 1e-5
    expected = (both(at + step)[0] - both(at - step)[0]) / (2 * step)
    assert abs(expected) > 1e-4 and np.isclose(both(at)[1], expected, rtol=1e-4)


def test_models_of_earlier_files_share_by_type_and_have_factor_1(cyclic, tmp_path):
    graph, numbers, model = cyclic
    kbp.save(tmp_path / "new.kbp", [model, numbers])
    with zipfile.ZipFile(tmp_path / "new.kbp") as new, zipfile.ZipFile(tmp_path / "old.kbp", "w") as old:
        header = json.loads(new.read(io.HEADER))
        of_model, of_numbers = (described["fields"] for described in header["root"]["list"])
        del of_model["reweighting"], of_model["own_edges"], of_model["own_nodes"]
        del of_numbers["reweighting"], of_numbers["own_strength"], of_numbers["relation"]
        for name in new.namelist():
            old.writestr(name, json.dumps(header) if name == io.HEADER else new.read(name))
    again, given = kbp.load(tmp_path / "old.kbp")
    assert again.own_edges == () and given.relation == "ridge" and given.own_strength is None
    assert again.reweighting == given.reweighting == 1
    found = [kbp.infer(one, graph, [1.0, 0.1, 0.5, 0.0, 0.3, 0.2]).belief.weights for one in (again, model)]
    assert np.allclose(*found, atol=1e-12)


@pytest.mark.slow
def test_fit_warns_of_edges_that_differ_and_share():
    text = "^edges of type 0 differ, and share one relation: given one end, the other is 1.[4-9]. times as wide"
    with pytest.warns(kbp.RelationWarning, match=f"{text}.* Leave a kernel out, or give the edges types") as caught:
        kbp.fit(DATA, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), margins="node")
    correlations = [float(word) for word in str(caught[0].message).split("from ")[1].split(". ")[0].split(" to ")]
    assert abs(correlations[0] + 1) < 0.1 and abs(correlations[1]) < 0.7  # of -a, and of sin(2 a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        typed = GRAPH.with_edge_types([0, 1, 2])
        kbp.fit(kbp.pool(typed, X, X), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), margins="node")
        kbp.fit(kbp.pool(GRAPH, X[:25], X[:25]), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))  # too few to say


@pytest.mark.slow  # a search
def test_fit_warns_of_edges_that_differ_where_little_is_compared():
    with pytest.warns(kbp.RelationWarning, match="Pass sharing='edge'"):
        kbp.fit(DATA, effort="low")


def stationary(rng, kind, count, nodes):
    """Return draws [count, nodes] whose edges have one relation, and the edges."""
    x, chain = rng.normal(size=(count, nodes + 40)), [(i, i + 1) for i in range(nodes - 1)]
    if kind == "star":
        return np.concatenate([x[:, :1], 0.8 * x[:, :1] + 0.6 * x[:, 1:nodes]], axis=1), [
            (0, i) for i in range(1, nodes)
        ]
    if kind == "grid":
        graph = kbp.grid_graph(4, nodes // 4)
        ends = np.stack([np.asarray(graph.senders), np.asarray(graph.receivers)], axis=1)
        links = np.zeros((nodes, nodes))
        links[ends[:, 0], ends[:, 1]] = 1
        precision = 1.05 * np.linalg.eigvalsh(links)[-1] * np.eye(nodes) - links
        root = np.linalg.cholesky(np.linalg.inv(precision))
        return x[:, :nodes] @ root.T, ends[: len(ends) // 2]
    if kind == "walk":  # not stationary, but one relation all the same
        return np.cumsum(x[:, :nodes], axis=1), chain
    steps = {
        "narrow": lambda z, e: 0.99 * z + np.sqrt(1 - 0.99**2) * e,
        "two modes": lambda z, e: np.clip(1.3 * z - 0.3 * z**3, -2, 2) + 0.4 * e,
        "volatile": lambda z, e: 0.5 * z + np.exp(np.clip(z, -2, 2)) * e,
    }
    for t in range(1, nodes + 40):
        x[:, t] = steps[kind](x[:, t - 1], x[:, t])
    return x[:, 40:], chain


@pytest.mark.parametrize(
    "kind",
    [
        "star",
        "two modes",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("grid", "walk", "narrow", "volatile")),
    ],
)
def test_edges_of_one_relation_are_no_reason_for_a_warning(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(40):
            rng = np.random.default_rng(seed)
            count, nodes = ((30, 8), (60, 4), (200, 8), (500, 16))[seed % 4]
            x, edges = stationary(rng, kind, count, nodes)
            x[rng.random(x.shape) < 0.05 * (seed % 2)] = np.nan
            warn_of_sharing(kbp.pool(kbp.Graph.from_edges(edges, nodes), x), "")


@pytest.mark.parametrize("count", [100, 1000])
def test_a_network_of_correlations_from_weak_to_strong_is_a_reason(count):
    rng, rho = np.random.default_rng(0), np.array([0.4, 0.6, 0.8, 0.9, 0.99])
    center = rng.normal(size=(count, 1))
    x = np.concatenate([center, rho * center + np.sqrt(1 - rho**2) * rng.normal(size=(count, 5))], axis=1)
    data = kbp.pool(kbp.Graph.from_edges([(0, i) for i in range(1, 6)], 6), x)
    with pytest.warns(kbp.RelationWarning, match=r"are from 0\.[234].* to 0\.99"):
        warn_of_sharing(data, "")


def test_the_loss_of_sharing_is_that_of_gaussians_in_bins():
    """Against a loop over edges and bins; and two edges of opposite slopes, whose mixture has slope 0."""
    rng, signs = np.random.default_rng(0), np.array([1.0, -1.0])
    center = rng.normal(size=(800, 1))
    x = np.concatenate([center, 0.8 * signs * center + 0.6 * rng.normal(size=(800, 2))], axis=1)
    (found,) = differing_relations(kbp.pool(kbp.Graph.from_edges([(0, 1), (0, 2)], 3), x)).values()
    ranks = np.argsort(np.argsort(x, axis=0), axis=0)
    z = np.asarray(jax.scipy.special.ndtri((ranks + 1) / 801))
    losses = []
    for ends in ((0, 1), (1, 0)):
        pairs = [np.stack([z[:, 0], z[:, i]])[list(ends)] for i in (1, 2)]
        every = np.concatenate(pairs, axis=1)
        place = lambda given, every=every: np.searchsorted(np.quantile(every[0], np.arange(1, 8) / 8), given)
        least, gains, chance = 0.01 * every[1].var(), 0.0, 0.0
        for b in range(8):
            shared = every[1][place(every[0]) == b]
            chance -= len(shared) / (len(shared) - 1)
            for given, other in pairs:
                own = other[place(given) == b]
                gains += len(own) / 2 * np.log((shared.var() + least) / (own.var() + least))
                chance += len(own) / (len(own) - 1)
        losses.append((gains - chance) / 1600)
    assert np.isclose(found.loss, min(losses), rtol=0.02)  # or of ranks among all nodes, if that is smaller
    assert 0.35 < found.loss < -np.log(0.6) and np.isclose(found.chance, np.sqrt(8) / 1600)
    assert -0.85 < found.lowest < -0.75 and 0.75 < found.highest < 0.85


def test_equal_values_and_constant_nodes_are_no_difference():
    rng = np.random.default_rng(0)
    x = np.round(np.clip(rng.normal(size=(300, 1)) + rng.normal(size=(300, 6)), 0, None))  # half of them are 0
    x[:, 5] = 7.0
    (found,) = differing_relations(kbp.pool(kbp.chain_graph(6), x)).values()
    assert abs(found.loss) < 0.02 and found.lowest > 0.2
    assert differing_relations(kbp.pool(kbp.chain_graph(6), x.astype(int))) == {}  # labels, or counts
