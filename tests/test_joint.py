"""Joint draws, joint modes and expectations, against enumeration and Gaussians: trees, chains, cycles and batches."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import kbpjax as kbp
from kbpjax.baselines import discrete
from kbpjax.learning.learn import learn_model
from kbpjax.learning.model import with_chosen
from kbpjax.learning.relations import with_own_relations
from tests import discrete as discrete_models
from tests import reweighted

KEY = jax.random.key(0)


def joint_of(num_nodes, factors):
    """Return the probabilities of all joint states, from pairs of nodes and the tables of their states."""
    operands = [part for nodes, table in factors for part in (np.asarray(table), list(nodes))]
    joint = np.einsum(*operands, list(range(num_nodes)))
    return joint / joint.sum()


def margin(joint, nodes):
    """Return the joint probabilities of some nodes, in ascending order."""
    return joint.sum(axis=tuple(set(range(joint.ndim)) - set(nodes)))


def frequencies(places, sizes):
    """Return how often each joint state occurs among draws [draw, some]."""
    flat = np.ravel_multi_index(tuple(places.T), sizes)
    return np.bincount(flat, minlength=np.prod(sizes)).reshape(sizes) / len(places)


def errors(places, joint, num_nodes):
    """Return the errors of the frequencies of all tuples of nodes, in standard errors of draws and one draw."""
    found = []
    for nodes in itertools.combinations(range(joint.ndim), num_nodes):
        want = margin(joint, nodes).clip(0, 1)
        got = frequencies(places[:, list(nodes)], want.shape)
        assert not got[want == 0].any()
        found.append(np.abs(got - want) / (np.sqrt(want * (1 - want) / len(places)) + 1 / len(places)))
    return np.concatenate([one.ravel() for one in found])


def log_of_mode(joint, places):
    """Return the logarithm of the probability of a joint state, less that of the most probable one."""
    return np.log(joint[tuple(places)]) - np.log(joint.max())


# --- trees of states --------------------------------------------------------------------------------------------------

NODES = 6
STATES = {0: np.array([3, 7]), 1: np.array([1, 2, 5])}
DRAWS = 100_000


def random_tree(shape):
    """Return the edges of a random forest, from smaller to larger node types, and the types of its nodes."""
    rng = np.random.default_rng(shape)
    types = rng.permutation([0, 0, 1, 1, 1, 1])
    edges = [(int(rng.integers(node)), node) for node in range(1, NODES) if shape % 3 != 2 or node != 3]
    edges = [edge[::-1] if rng.random() < 0.5 else edge for edge in edges]
    return [edge if types[edge[0]] <= types[edge[1]] else edge[::-1] for edge in edges], types


def at_states(table, states, x):
    """Return the values of states in a table [node, state]."""
    return table[:, jnp.searchsorted(states, x)]


def tree_problem(shape, seed):
    """Return a posterior of a random forest, with hard constraints, evidence and a clamp, and its joint table."""
    (edges, types), rng = random_tree(shape), np.random.default_rng(100 + seed)
    sizes = [len(STATES[v]) for v in types]
    kinds = sorted({(int(types[a]), int(types[b]), k % 2) for k, (a, b) in enumerate(edges)})
    kind = [kinds.index((int(types[a]), int(types[b]), k % 2)) for k, (a, b) in enumerate(edges)]
    draw = lambda *shape: np.exp(rng.normal(size=shape))
    tables = {k: draw(len(STATES[a]), len(STATES[b])) for k, (a, b, _) in enumerate(kinds)}
    tables[0][0, 1] = 0
    nodes, local = {v: draw(len(x)) for v, x in STATES.items()}, [draw(size) for size in sizes]
    local[4][1], fixed, value = 0, shape % 4, int(rng.integers(2))
    of_type = {v: np.stack([local[s] for s in range(NODES) if types[s] == v]) for v in STATES}

    graph = kbp.Graph.from_edges(edges, NODES, edge_type=kind, node_type=types)
    ends = {k: (a, b) for k, (a, b, _) in enumerate(kinds)}
    model = discrete.from_potentials(STATES, nodes, tables, ends=ends)
    known = {v: Partial(at_states, jnp.asarray(of_type[v]), jnp.asarray(x)) for v, x in STATES.items()}
    v = int(types[fixed])
    clamp = kbp.clamp(model, graph, [fixed], {v: [STATES[v][value]]})
    posterior = kbp.infer(model, graph, evidence=kbp.likelihood(model, graph, known) * clamp)

    local[fixed] = local[fixed] * np.eye(sizes[fixed])[value]
    factors = [([s], nodes[int(types[s])] * local[s]) for s in range(NODES)]
    return posterior, joint_of(NODES, factors + [(edge, tables[k]) for edge, k in zip(edges, kind, strict=True)])


def places_of(posterior, values):
    """Return the numbers of the states [draw, node] of {type: values [draw, node_of_type]}."""
    places = np.zeros((len(values[0]), NODES), int)
    for v, x in values.items():
        assert np.isin(x, STATES[v]).all()
        places[:, posterior.graph.nodes_of_type(v)] = np.searchsorted(STATES[v], x)
    return places


@pytest.mark.slow
@pytest.mark.parametrize("shape", range(10))
def test_answers_of_a_tree_are_those_of_enumeration(shape):
    """Of some trees of each shape: pairs and triples, the joint mode, the expectation of a function of three nodes."""
    types, nodes = random_tree(shape)[1], [4, 0, 5]
    fn = lambda x: jnp.stack([x[0] * x[1], (x[2] > x[0]).astype(x.dtype)])
    for seed in range(5):
        posterior, joint = tree_problem(shape, seed)
        places = places_of(posterior, kbp.sample(posterior, jax.random.key(seed), DRAWS))
        of_pairs, of_triples = (errors(places, joint, count) for count in (2, 3))
        assert np.quantile(of_pairs, 0.99) < 4 and np.quantile(of_triples, 0.998) < 4, seed
        assert max(of_pairs.max(), of_triples.max()) < 5, seed

        mode = kbp.mode(posterior, joint=True)
        best = places_of(posterior, {v: np.asarray(x)[None] for v, x in mode.items()})[0]
        assert abs(log_of_mode(joint, best)) < 1e-9, seed

        values = [STATES[int(types[s])] for s in range(NODES)]
        x = np.stack([values[s][np.indices(joint.shape)[s]] for s in nodes])
        expected = np.sum(joint * np.stack([x[0] * x[1], x[2] > x[0]]), axis=tuple(range(1, NODES + 1)))
        got = kbp.expectation(posterior, fn, nodes, num_samples=DRAWS)
        assert isinstance(got, kbp.Estimate) and got.value.shape == got.error.shape == (2,)
        assert (np.abs(got.value - expected) <= 5 * got.error + 1e-12).all(), seed
        assert (got.error < 0.05).all()


def test_logarithms_and_temperatures_are_drawn_as_the_beliefs_say():
    """With a temperature, pairs are those of the beliefs of edges; of a model in logarithms, as without."""
    table, local = np.exp(np.random.default_rng(0).normal(size=(3, 3))), np.exp(np.random.default_rng(1).normal(size=3))
    graph, draws = kbp.chain_graph(2), []
    for arithmetic, heat in ((kbp.SumProduct(), 1.0), (kbp.InLogs(), 1.0), (kbp.SumProduct(), 0.4)):
        model = discrete.from_potentials([0, 1, 2], local, table[None], arithmetic=arithmetic)
        posterior = kbp.infer(with_chosen(model, kbp.Expectation(), 1.0, heat), graph)
        draws.append(np.asarray(kbp.sample(posterior, KEY, DRAWS)))
        want = np.asarray(kbp.edge_beliefs(posterior, [(0, 1)]).weights[0])
        assert errors(draws[-1], want, 2).max() < 4
    assert (draws[0] == draws[1]).mean() > 0.999 and (draws[0] != draws[2]).any()


# --- a Gaussian chain -------------------------------------------------------------------------------------------------

LENGTH, DECAY, NOISE = 12, 0.9, 0.5
GRID = np.linspace(-4, 4, 81)
SEEN = np.full(LENGTH, np.nan)
SEEN[[1, 6, 11]] = [1.0, -0.5, 0.8]


@pytest.fixture(scope="module")
def gaussian():
    """An AR(1) chain on a fine grid, three of whose nodes are seen with noise; the exact mean and covariance."""
    single = np.exp(-(GRID**2) / 2)
    x, y = GRID[:, None], GRID[None]
    pair = np.exp(-(x**2 + y**2 - 2 * DECAY * x * y) / (2 * (1 - DECAY**2))) / np.outer(single, single)
    graph, model = kbp.chain_graph(LENGTH), discrete.from_potentials(GRID, single, pair[None])
    there = ~np.isnan(SEEN)
    known = np.where(there[:, None], np.exp(-((np.nan_to_num(SEEN)[:, None] - y) ** 2) / (2 * NOISE**2)), 1)
    posterior = kbp.infer(model, graph, evidence=kbp.likelihood(model, graph, lambda x: jnp.asarray(known)))
    at = np.arange(LENGTH)
    precision = np.linalg.inv(DECAY ** np.abs(at[:, None] - at)) + np.diag(there / NOISE**2)
    covariance = np.linalg.inv(precision)
    return posterior, covariance @ (np.nan_to_num(SEEN) / NOISE**2), covariance


def test_paths_of_a_gaussian_chain_have_its_covariance(gaussian):
    posterior, mean, covariance = gaussian
    draws = np.asarray(kbp.sample(posterior, KEY, 40_000))
    assert np.isin(draws, GRID).all()
    assert abs(draws.sum(axis=1).var() / covariance.sum() - 1) < 0.03
    assert np.abs(draws.mean(axis=0) - mean).max() < 0.02 and np.abs(np.cov(draws.T) - covariance).max() < 0.02
    total = kbp.expectation(posterior, jnp.sum, range(LENGTH), num_samples=40_000)
    assert abs(total.value - mean.sum()) < 5 * total.error
    assert abs(total.error / np.sqrt(covariance.sum() / 40_000) - 1) < 0.03


@pytest.mark.slow
def test_few_draws_at_a_time_are_drawn_from_the_same_distribution(gaussian):
    """Fewer draws than states: a row of the table for each draw."""
    posterior, mean, covariance = gaussian
    draws = jax.jit(jax.vmap(lambda key: kbp.sample(posterior, key, 50)))(jax.random.split(KEY, 400))
    draws = np.asarray(draws).reshape(-1, LENGTH)
    assert abs(draws.sum(axis=1).var() / covariance.sum() - 1) < 0.04
    assert np.abs(draws.mean(axis=0) - mean).max() < 0.02


@pytest.mark.slow
def test_the_joint_mode_of_a_gaussian_chain_is_its_mean_on_the_grid(gaussian):
    posterior, mean, covariance = gaussian
    mode = np.asarray(kbp.mode(posterior, joint=True))
    distance = lambda x: (x - mean) @ np.linalg.solve(covariance, x - mean)
    rounded = GRID[np.abs(mean[:, None] - GRID).argmin(axis=1)]
    assert distance(mode) <= distance(rounded) + 1e-9
    assert distance(mode) < distance(np.asarray(kbp.mode(posterior))) + 1e-9


# --- learned chains ---------------------------------------------------------------------------------------------------

CHAIN = kbp.chain_graph(6)
OPTIONS = {"kernel": kbp.RBF(0.5), "obs_kernel": kbp.RBF(0.5), "ridge": 1e-3}
Y = np.array([1.0, np.nan, np.nan, -0.5, np.nan, np.nan])


def paths(cases, seed=0):
    """Standard normal chains with correlation .9 and noisy observations of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(cases, 6))
    for t in range(1, 6):
        x[:, t] = 0.9 * x[:, t - 1] + np.sqrt(0.19) * x[:, t]
    return x, x + 0.5 * rng.normal(size=x.shape)


X, SEEN_X = paths(200)


@pytest.fixture(scope="module")
def chain():
    """A model of data of which every tenth value and observation is missing."""
    there = np.random.default_rng(5).random((2, *X.shape)) < 0.9
    return kbp.fit(kbp.pool(CHAIN, *np.where(there, [X, SEEN_X], np.nan)), **OPTIONS)


@pytest.fixture(scope="module")
def drawn(chain):
    """A posterior whose last node is clamped, and draws from it."""
    posterior = kbp.infer(chain, CHAIN, Y, evidence=kbp.clamp(chain, CHAIN, [5], [0.3]))
    return posterior, np.asarray(kbp.sample(posterior, KEY, 20_000))


def require_margins(posterior, draws, tolerance=0.04):
    """Compare means and standard deviations of draws, in standard deviations, with those of the beliefs."""
    means, spreads = kbp.mean(posterior), kbp.std(posterior)
    if not isinstance(draws, dict):
        means, spreads, draws = {0: means}, {0: spreads}, {0: draws}
    for v, one in draws.items():
        spread, x = np.asarray(spreads[v]), np.asarray(one)
        free = spread > 0
        assert free.sum() > free.size / 2
        assert np.abs((x.mean(axis=0) - means[v]) / np.where(free, spread, 1))[free].max() < tolerance
        assert np.abs(x.std(axis=0) / np.where(free, spread, 1) - 1)[free].max() < tolerance


def correlation(table, points):
    """Return the correlation of a table of probabilities."""
    first, second = table.sum(axis=1), table.sum(axis=0)
    a, b = points - first @ points, points - second @ points
    return np.einsum("fs,f,s->", table, a, b) / np.sqrt((first @ a**2) * (second @ b**2))


def require_edges(posterior, draws, tolerance=0.03):
    """Compare correlations of neighbors, but for the last node, with those of the beliefs of edges."""
    points, pairs = np.asarray(posterior.points), [(a, a + 1) for a in range(4)]
    tables = np.asarray(kbp.edge_beliefs(posterior, pairs).weights, float)
    for (a, b), table in zip(pairs, tables, strict=True):
        assert abs(np.corrcoef(draws[:, a], draws[:, b])[0, 1] - correlation(table, points)) < tolerance


def test_draws_of_a_learned_chain_have_its_margins_and_edges(drawn):
    require_margins(*drawn)
    require_edges(*drawn)


@pytest.mark.slow
def test_draws_of_numbers_lie_between_candidates_and_a_clamp_is_kept(drawn):
    posterior, draws = drawn
    points = np.asarray(posterior.points)
    assert np.isin(draws[:, :5], points).mean() < 0.01 and len(np.unique(draws[:, 0])) > 19_000
    assert points.min() <= draws.min() and draws.max() <= points.max()
    assert (draws[:, 5] == 0.3).all() and 0.3 not in points
    assert kbp.mode(posterior, joint=True)[5] == 0.3


@pytest.mark.parametrize("heat", [1.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_answers_of_a_learned_chain_are_those_of_its_edges(chain, heat):
    """On few candidates at uneven distances, the joint distribution is that of the beliefs of edges, nearly."""
    model, points = with_chosen(chain, kbp.Expectation(), 1.0, heat), np.array([-2.0, -1.0, -0.3, 0.0, 0.5, 1.5, 2.5])
    posterior = kbp.infer(model, kbp.chain_graph(4), Y[:4], points=points)
    pairs = np.asarray(kbp.edge_beliefs(posterior, [(0, 1), (1, 2), (2, 3)]).weights)
    inner = np.asarray(posterior.weights)[1:3]
    joint = joint_of(4, [([s, s + 1], pairs[s]) for s in range(3)] + [([s + 1], 1 / inner[s]) for s in range(2)])
    draws = np.asarray(kbp.sample(posterior, KEY, DRAWS))
    places = np.searchsorted((points[1:] + points[:-1]) / 2, draws)
    for nodes in ((0, 3), (0, 1, 2), (1, 2, 3)):
        assert np.abs(frequencies(places[:, list(nodes)], (7,) * len(nodes)) - margin(joint, nodes)).max() < 0.005
    lengths = np.asarray(posterior.belief.lengths)
    density = joint / joint_of(4, [([s], lengths) for s in range(4)])
    best = np.searchsorted(points, kbp.mode(posterior, joint=True))
    assert abs(log_of_mode(density, best)) < 1e-6


LETTERS = np.array(["a", "b", "c"])
VALUES = {
    "levels": (np.round(2 * X) / 2, 0.5, OPTIONS["kernel"]),
    "integers": (np.round(X).astype(int), 1, kbp.Delta()),
    "labels": (LETTERS[np.digitize(X, [-0.5, 0.5])], "b", kbp.Delta()),
    "vectors": (np.stack([X, X**2], axis=-1)[:40], [0.25, 0.5], OPTIONS["kernel"]),
}


@pytest.mark.parametrize(
    "kind", ["labels", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("levels", "integers", "vectors"))]
)
def test_states_levels_labels_and_vectors_come_back_as_they_were(kind):
    x, value, kernel = VALUES[kind]
    model = kbp.fit(kbp.pool(CHAIN, x, SEEN_X[: len(x)]), **OPTIONS | {"kernel": kernel})
    posterior = kbp.infer(model, CHAIN, Y, evidence=kbp.clamp(model, CHAIN, [5], [value]))
    drawn = kbp.sample(posterior, KEY, 10_000)
    for draws in (drawn, kbp.mode(posterior, joint=True)[None]):
        assert draws.shape[1:] == x.shape[1:] and draws.dtype == x.dtype
        seen = x.reshape(-1, *x.shape[2:])
        for node in range(5):
            own = np.unique(np.asarray(draws[:, node]), axis=0)
            assert all((one == seen).reshape(len(seen), -1).all(axis=1).any() for one in own)
            assert len(own) == 1 or len(own) < len(seen)
        assert (np.asarray(draws[:, 5]) == np.asarray(value)).all()
    if kind != "labels":
        require_margins(posterior, drawn, 0.05)


# --- each node by itself ----------------------------------------------------------------------------------------------


def test_draws_that_are_not_joint_are_independent(drawn):
    posterior, draws = drawn
    alone = np.asarray(kbp.sample(posterior, KEY, 5000, joint=False))
    assert np.abs(np.corrcoef(alone[:, :5].T) - np.eye(5)).max() < 0.06 < 0.5 < np.corrcoef(draws[:, :5].T)[0, 1]
    require_margins(posterior, alone, 0.06)
    assert (alone[:, 5] == 0.3).all()


def test_a_belief_is_drawn_from_as_a_posterior_that_is_not_joint(drawn):
    posterior, draws = drawn
    alone = np.asarray(kbp.sample(posterior.belief, KEY, 5000))
    assert alone.shape[1:] == draws.shape[1:] and alone.dtype == draws.dtype
    require_margins(posterior, alone, 0.06)
    assert np.abs(np.corrcoef(alone[:, :5].T) - np.eye(5)).max() < 0.06
    assert np.isin(alone[:, :5], np.asarray(posterior.points)).mean() < 0.01


def test_what_is_wrong_is_named(drawn):
    posterior, _ = drawn
    belief = posterior.belief
    tables = discrete.from_potentials([0, 1], [1.0, 1.0], np.ones((1, 2, 2)), arithmetic=kbp.MaxProduct())
    maxima = kbp.infer(tables, kbp.chain_graph(2))
    calls = {
        "joint": [lambda: kbp.sample(belief, KEY, 3, joint=True), lambda: kbp.mode(belief, joint=True)],
        "num_sweeps": [lambda: kbp.sample(posterior, KEY, 3, num_sweeps=-1)],
        "num_samples": [lambda: kbp.sample(posterior, KEY, 0), lambda: expect(num_samples=1)],
        "key": [lambda: kbp.sample(posterior, 0, 3), lambda: expect(key=0)],
        "nodes": [lambda: kbp.expectation(belief, jnp.sum, [0]), *(lambda n=n: expect(nodes=n) for n in WRONG)],
        "fn": [lambda: kbp.expectation(posterior, {0: jnp.sum}, [0])],
        "posterior": [lambda: kbp.sample(maxima, KEY, 3), lambda: kbp.mode(maxima, joint=True)],
    }
    expect = lambda nodes=(0, 1), **options: kbp.expectation(posterior, jnp.sum, nodes, **options)
    for name, wrong in calls.items():
        for call in wrong:
            with pytest.raises(ValueError, match=f"^{name}: must be "):
                call()


WRONG = [[6], [-1], [], [0.5], 3]


# --- cycles -----------------------------------------------------------------------------------------------------------

LOOPS = {
    "ring": (5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]),
    "grid": (6, [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)]),
    "chords": (5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (1, 3)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chords", "ring", "grid"])
def test_draws_of_a_loopy_graph_are_nearly_those_of_enumeration(name):
    (count, edges), rng = LOOPS[name], np.random.default_rng(list(LOOPS).index(name))
    table, single = np.exp(0.6 * rng.normal(size=(3, 3))), np.exp(0.3 * rng.normal(size=3))
    local = np.exp(0.7 * rng.normal(size=(count, 3)))
    graph, model = kbp.Graph.from_edges(edges, count), discrete.from_potentials([0, 1, 2], single, table[None])
    posterior = kbp.infer(model, graph, evidence=kbp.likelihood(model, graph, lambda x: jnp.asarray(local)[:, x]))
    joint = joint_of(count, [([s], single * local[s]) for s in range(count)] + [(edge, table) for edge in edges])

    def distance(draws):
        """The largest total variation of a pair of nodes."""
        found = []
        for pair in itertools.combinations(range(count), 2):
            got = frequencies(np.asarray(draws)[:, list(pair)], (3, 3))
            found.append(np.abs(got - margin(joint, pair)).sum() / 2)
        return max(found)

    swept, trees = kbp.sample(posterior, KEY, 20_000), kbp.sample(posterior, KEY, 20_000, num_sweeps=0)
    alone = kbp.sample(posterior, KEY, 20_000, joint=False)
    assert distance(swept) < 0.03 and distance(swept) < distance(alone)
    shares = np.stack([frequencies(np.asarray(trees)[:, [s]], (3,)) for s in range(count)])
    np.testing.assert_allclose(shares, posterior.weights, atol=0.015)
    assert abs(log_of_mode(joint, kbp.mode(posterior, joint=True))) < 1e-9


@pytest.mark.slow
def test_draws_of_a_learned_loopy_graph_are_those_of_the_potentials_of_its_messages():
    """With exponents and a temperature: the product of marginals, likelihoods and ratios of pairs to the power rho."""
    heat, local, graph = 1.7, discrete_models.likelihoods(3), discrete_models.grid()
    model = with_chosen(discrete_models.learned(), kbp.Expectation(), 1.0, heat)
    posterior = kbp.infer(model, graph, evidence=discrete_models.evidence(model, graph, local))
    rho = np.asarray(posterior.solution.exponents)
    assert rho.max() < 0.9
    logs = reweighted.enumerate_log_weights(discrete_models.learned_twin(rho, local)) / heat
    joint = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    both = []
    for sweeps in (0, 10):
        draws = kbp.sample(posterior, KEY, 40_000, num_sweeps=sweeps)
        both.append(errors(np.stack([draws[v][:, 0] for v in range(6)], axis=1), joint, 2).max())
    assert both[1] < 4 < 10 < both[0]
    mode = kbp.mode(posterior, joint=True)
    assert abs(log_of_mode(joint, [int(mode[v][0]) for v in range(6)])) < 1e-6


@pytest.mark.slow
def test_constraints_on_a_grid_hold_in_nearly_all_draws_and_in_the_joint_mode():
    """Neighbors have different colors; trees know only of some neighbors."""
    graph, model = kbp.grid_graph(4, 4), discrete.from_potentials([0, 1, 2], [1.0, 1.1, 0.9], (1 - np.eye(3))[None])
    posterior = kbp.infer(model, graph)
    ends = np.stack([graph.senders, graph.receivers])
    is_wrong = lambda x: (x[..., ends[0]] == x[..., ends[1]]).any(axis=-1)
    assert not is_wrong(np.asarray(kbp.mode(posterior, joint=True)))
    assert is_wrong(np.asarray(kbp.sample(posterior, KEY, 1000))).mean() < 0.02
    share = kbp.expectation(posterior, is_wrong, range(16), num_samples=1000)
    assert share.value < 0.02 and share.error < 0.01


# --- models with more in them -----------------------------------------------------------------------------------------


def own_margins():
    scales, centers = np.arange(1.0, 7.0), 10 * np.arange(6.0)
    data = kbp.pool(CHAIN, centers + scales * X, centers + scales * SEEN_X)
    model = kbp.fit(data, **OPTIONS, margins="node")
    return model, CHAIN, centers + scales * Y, kbp.clamp(model, CHAIN, [5], [53.0])


def own_relations():
    data, relations = with_own_relations(kbp.pool(CHAIN, X, SEEN_X), 10.0)
    model = learn_model(data, **OPTIONS, own=relations)
    return model, CHAIN, Y, None


def types():
    """Floats and integers by turns."""
    of = lambda x: {0: x[..., ::2], 1: x[..., 1::2]}
    graph = kbp.chain_graph(6, node_type=[0, 1] * 3)
    x = of(X) | {1: np.round(of(X)[1]).astype(int)}
    model = kbp.fit(kbp.pool(graph, x, of(SEEN_X)), **OPTIONS | {"kernel": {0: kbp.RBF(0.5), 1: kbp.Delta()}})
    return model, graph, of(Y), None


def cycles():
    graph = kbp.grid_graph(2, 3)
    model = kbp.fit(kbp.pool(graph, X, SEEN_X), **OPTIONS)
    return model, graph, Y, kbp.clamp(model, graph, [5], [0.3])


SETUPS = {one.__name__: one for one in (own_margins, own_relations, types, cycles)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
def test_draws_of_other_models_have_the_margins_of_the_beliefs(name):
    model, graph, y, evidence = SETUPS[name]()
    posterior = kbp.infer(model, graph, y, evidence=evidence)
    draws = kbp.sample(posterior, KEY, 20_000, num_sweeps=0)
    require_margins(posterior, draws)
    modes = kbp.mode(posterior, joint=True)
    if evidence is not None:
        value = 53.0 if name == "own_margins" else 0.3
        np.testing.assert_allclose(draws[:, 5], value, rtol=1e-12)
        np.testing.assert_allclose(modes[5], value, rtol=1e-12)
    if name == "types":
        total, means = kbp.expectation(posterior, jnp.sum, range(6)), kbp.mean(posterior)
        assert abs(total.value - sum(map(np.sum, means.values()))) < 5 * total.error
        assert {v: x.dtype.kind for v, x in draws.items()} == {v: x.dtype.kind for v, x in modes.items()}
        assert draws[0].dtype.kind == "f" and draws[1].dtype.kind == "i"


@pytest.mark.slow
def test_own_margins_at_points_that_are_given():
    model, graph, y, _ = own_margins()
    posterior = kbp.infer(model, graph, y, points=np.linspace(-10, 70, 321))
    draws = np.asarray(kbp.sample(posterior, KEY, 20_000))
    require_margins(posterior, draws)
    require_edges(posterior, draws)


@pytest.mark.slow
def test_expectations_of_nodes_of_one_type_among_others_of_another_shape():
    states, nodes = {0: [0, 1], 1: [[0.0, 1.0], [2.0, 0.5]]}, {0: [1.0, 2.0], 1: [1.0, 1.0]}
    model = discrete.from_potentials(states, nodes, {0: [[2.0, 1.0], [1.0, 2.0]]}, ends={0: (0, 1)})
    posterior = kbp.infer(model, kbp.Graph.from_edges([(0, 1), (2, 1)], 3, node_type=[0, 1, 0]))
    for v, some in ((0, [2, 0]), (1, [1])):
        got, means = kbp.expectation(posterior, lambda x: x.sum(axis=0), some), kbp.mean(posterior)[v]
        assert (abs(got.value - means.sum(axis=0)) < 5 * got.error).all()
    with pytest.raises(ValueError, match="^nodes: must have values of one shape"):
        kbp.expectation(posterior, jnp.sum, [0, 1])


@pytest.mark.parametrize("dtype", [int, float])
def test_a_posterior_that_is_nan_has_no_draws(dtype):
    """Numbers are NaN then, and states are refused, as where nodes are drawn by themselves."""
    graph, states = kbp.chain_graph(2), np.array([0, 1], dtype)
    model = discrete.from_potentials(states, [1.0, 1.0], np.eye(2)[None])
    known = lambda a: kbp.likelihood(model, graph, lambda x: jnp.stack([a, 1 - a]))
    unknown = jax.jit(lambda a: kbp.infer(model, graph, evidence=known(a)))(jnp.array([1.0, 0.0]))
    for ask in (lambda: kbp.sample(unknown, KEY, 3), lambda: kbp.mode(unknown, joint=True)):
        if dtype is float:
            assert np.isnan(ask()).all()
        else:
            with pytest.raises(ValueError, match="^belief: must have no NaN"):
                ask()
    assert np.isnan(kbp.expectation(unknown, jnp.sum, [0, 1]).value)


# --- batches, compiled functions, small graphs ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_is_drawn_case_by_case(chain):
    y, points = paths(3, seed=1)[1], np.linspace(-3, 3, 121)
    batch = jax.vmap(lambda one: kbp.infer(chain, CHAIN, one, points=points))(y)
    draws, modes = np.asarray(kbp.sample(batch, KEY, 4000)), kbp.mode(batch, joint=True)
    assert draws.shape == (3, 4000, 6) and modes.shape == (3, 6)
    assert kbp.sample(batch, KEY, 5, joint=False).shape == (3, 5, 6)
    totals = kbp.expectation(batch, jnp.sum, range(6), num_samples=4000)
    assert totals.value.shape == totals.error.shape == (3,)
    for case, one in enumerate(y):
        alone = kbp.infer(chain, CHAIN, one, points=points)
        require_margins(alone, draws[case], 0.08)
        require_edges(alone, draws[case], 0.06)
        np.testing.assert_array_equal(modes[case], kbp.mode(alone, joint=True))
        assert abs(totals.value[case] - np.sum(kbp.mean(alone))) < 5 * totals.error[case]


def test_draws_compile_with_the_posterior_of_a_forest_as_an_argument(drawn):
    posterior, _ = drawn
    draw = jax.jit(lambda posterior, key: kbp.sample(posterior, key, 10))
    got = draw(posterior, KEY)
    np.testing.assert_allclose(got, kbp.sample(posterior, KEY, 10), rtol=1e-9)
    np.testing.assert_array_equal(got, draw(posterior, KEY))
    assert (np.asarray(got) != np.asarray(draw(posterior, jax.random.key(1))))[:, :5].all()


@pytest.mark.slow
def test_draws_compile_on_a_graph_with_cycles_that_is_known():
    graph = kbp.grid_graph(2, 2)
    posterior = kbp.infer(discrete.from_potentials([0, 1], [1.0, 2.0], [[[2.0, 1.0], [1.0, 2.0]]]), graph)
    draws = jax.jit(lambda key: kbp.sample(posterior, key, 10))(KEY)
    assert draws.shape == (10, 4) and np.isin(draws, [0, 1]).all()
    np.testing.assert_array_equal(kbp.sample(posterior, KEY, 10), kbp.sample(posterior, KEY, 10))
    for ask in (
        lambda posterior: kbp.sample(posterior, KEY, 10),
        lambda posterior: kbp.mode(posterior, joint=True),
        lambda posterior: kbp.expectation(posterior, jnp.sum, [0, 1]),
    ):
        with pytest.raises(ValueError, match="^posterior: must have a known graph with cycles; got a tracer"):
            jax.jit(ask)(posterior)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.slow
def test_nodes_without_edges_have_joint_answers(count):
    graph, weights = kbp.Graph.from_edges([], count), np.array([0.2, 0.5, 0.3])
    x = np.random.default_rng(0).choice(3, size=(200, count), p=weights)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.Delta())
    posterior = kbp.infer(model, graph)
    draws = np.asarray(kbp.sample(posterior, KEY, 20_000))
    assert draws.shape == (20_000, count)
    shares = np.stack([np.bincount(one, minlength=3) for one in draws.T]) / 20_000
    np.testing.assert_allclose(shares, posterior.weights, atol=0.015)
    np.testing.assert_array_equal(kbp.mode(posterior, joint=True), kbp.mode(posterior))
    if count == 3:
        ones = kbp.expectation(posterior, lambda x: jnp.sum(x == 1), range(count))
        assert abs(ones.value - count * posterior.weights[0, 1]) < 5 * ones.error


# --- gradients and dtypes ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_gradient_of_an_expectation_is_that_of_enumeration():
    """Through potentials and evidence, with a state that is impossible, and through the function itself."""
    edges, rng = [(0, 1), (1, 2), (1, 3)], np.random.default_rng(0)
    table, local, slope = rng.normal(size=(3, 3)), np.exp(rng.normal(size=(4, 3))), rng.normal(size=(4, 3))
    local[3, 0] = 0
    graph = kbp.Graph.from_edges(edges, 4)

    def estimate(theta):
        model = discrete.from_potentials([0, 1, 2], [1.0, 2.0, 1.5], jnp.exp(theta * table)[None])
        known = jnp.asarray(local) * jnp.exp(theta * slope)
        posterior = kbp.infer(model, graph, evidence=kbp.likelihood(model, graph, lambda x: known[:, x]))
        fn = lambda x: theta * jnp.prod(x + 1).astype(theta.dtype)
        return kbp.expectation(posterior, fn, [0, 2, 3], num_samples=100_000).value

    def exact(theta):
        factors = [([s], np.array([1.0, 2.0, 1.5]) * local[s] * np.exp(theta * slope[s])) for s in range(4)]
        joint = joint_of(4, factors + [(edge, np.exp(theta * table)) for edge in edges])
        x = np.indices(joint.shape) + 1
        return theta * np.sum(joint * x[0] * x[2] * x[3])

    value, gradient = jax.value_and_grad(estimate)(0.7)
    expected = (exact(0.7 + 1e-5) - exact(0.7 - 1e-5)) / 2e-5
    assert abs(value - exact(0.7)) < 0.05 and abs(gradient - expected) < 0.1 < 1 < abs(expected)


@pytest.mark.slow
def test_the_gradient_of_an_expectation_of_numbers_is_that_of_the_edge(chain):
    """The slope of E[x y] of neighbors in the observations, which the belief of the edge has without noise."""
    small, points = kbp.chain_graph(3), jnp.linspace(-2.5, 2.5, 41)

    def both(y, fn):
        return fn(kbp.infer(chain, small, y, points=points))

    drawn = lambda p: kbp.expectation(p, jnp.prod, [0, 1], num_samples=100_000).value
    known = lambda p: points @ kbp.edge_beliefs(p, [(0, 1)]).weights[0] @ points
    y = jnp.array([0.8, -0.2, 0.5])
    got, expected = jax.grad(both)(y, drawn), jax.grad(both)(y, known)
    np.testing.assert_allclose(got, expected, atol=0.02)
    assert np.abs(expected).max() > 0.2


@pytest.mark.slow
def test_draws_of_single_precision_are_single_and_others_double(drawn):
    x, y, value = X.astype(np.float32), SEEN_X.astype(np.float32), np.float32(0.3)
    model = kbp.fit(kbp.pool(CHAIN, x, y), **OPTIONS)
    posterior = kbp.infer(model, CHAIN, Y.astype(np.float32), evidence=kbp.clamp(model, CHAIN, [5], [value]))
    draws = kbp.sample(posterior, KEY, 20_000)
    assert draws.dtype == kbp.mode(posterior, joint=True).dtype == jnp.float32 and drawn[1].dtype == jnp.float64
    found = kbp.expectation(posterior, jnp.max, range(6))
    assert found.value.dtype == found.error.dtype == jnp.float32
    require_margins(posterior, draws)
    assert (draws[:, 5] == value).all()
