"""Every kind of evidence against brute-force joints of discrete variables, and beliefs of edges against their pairs.

On finitely many states a kernel of full rank represents every function, so with ridge = 0 and floor = 0 the learned
messages are those of the discrete model of `tests.test_exactness`. All expected numbers come from one NumPy array, the
joint of all variables, times factors on single nodes.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from tests.test_exactness import table

TOL = 1e-6

RULES = {
    "constant": kbp.ConstantTime(eps=1e-6),
    "linear": kbp.LinearTime(eps=1e-6),
    "full": kbp.FullRank(),
}
SOLVERS = {
    "run": lambda model, graph, evidence=None: kbp.run(model, graph, evidence, num_iters=9, damping=0.0),
    "run_tree": kbp.run_tree,
}
FORMS = {"expectation": kbp.Expectation(), "ratio": kbp.DensityRatio()}
# One rule where all share the code: most of the time goes into compiling the same for other sizes.
one_rule = pytest.mark.parametrize("rule", ["constant"])
every_solver = pytest.mark.parametrize("solver", ["run", pytest.param("run_tree", marks=pytest.mark.slow)])
every_form = pytest.mark.parametrize("form", FORMS)


# --- the oracle ---------------------------------------------------------------------------------------------------


class Joint:
    """p(x) ~ prod_s p_s(x_s) f_s(x_s) prod_st p(x_s, x_t) / (p_s(x_s) p_t(x_t)), as one array with an axis a node."""

    def __init__(self, states, edges, node, pair, factors=None):
        self.states, self.edges, self.node, self.pair_tables = states, edges, node, pair
        self.weights = np.ones(states)
        for s in range(len(states)):
            self.weights = self.weights * self.on_axes(node[s], s)
        for (a, b), joint in zip(edges, pair, strict=True):
            ratio = joint / (node[a][:, None] * node[b][None, :])
            self.weights = self.weights * (self.on_axes(ratio, a, b) if a < b else self.on_axes(ratio.T, b, a))
        for s, factor in (factors or {}).items():
            self.weights = self.weights * self.on_axes(factor, s)
        self.weights = self.weights / self.weights.sum()

    def on_axes(self, array, *axes):
        shape = [k if s in axes else 1 for s, k in enumerate(self.states)]
        return np.reshape(array, shape)

    def given(self, factors):
        return Joint(self.states, self.edges, self.node, self.pair_tables, factors)

    def of(self, *nodes):
        """Marginal of one node or of two, the axes in the order asked for."""
        rest = tuple(s for s in range(len(self.states)) if s not in nodes)
        marginal = self.weights.sum(axis=rest)
        return marginal if len(nodes) == 1 or nodes[0] < nodes[1] else marginal.T


def times(*pieces):
    """Multiply {node: factor} dicts."""
    result = {}
    for piece in pieces:
        for s, factor in piece.items():
            result[s] = result.get(s, 1) * np.asarray(factor, float)
    return result


# --- what is learned --------------------------------------------------------------------------------------------------

# Pairs of each edge type, so counted that all types agree on how often a state of a node type occurs, and so that the
# two directions of an edge differ: pooled over edges, the discrete model is consistent.
COUNTS = {
    (0, 0): np.array([[9, 4, 1], [1, 5, 5], [4, 2, 6]]),
    (0, 1): np.array([[6, 2, 5, 1], [1, 4, 3, 3], [4, 5, 1, 2]]),
    (1, 1): np.array([[5, 3, 2, 1], [1, 4, 4, 2], [3, 2, 2, 2], [2, 2, 1, 1]]),
    (0, 2): np.array([[8, 1, 2, 3], [0, 6, 4, 1], [2, 2, 3, 5]]),  # a sensor that shows numbers
    (0, 3): np.array([[2, 4, 8], [6, 4, 1], [1, 9, 2]]),  # and one that shows points of a plane
}
EDGE_TYPES = list(COUNTS)
PAIRS = {ends: counts / counts.sum() for ends, counts in COUNTS.items()}
NODES = {0: PAIRS[0, 0].sum(axis=1), 1: PAIRS[0, 1].sum(axis=0)}
CORNERS = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
SEEN = {0: np.array([[7, 4, 3], [2, 6, 3], [1, 2, 9]]), 1: np.array([[6, 2, 3], [1, 7, 3], [3, 1, 5], [2, 2, 2]])}
LIKELIHOOD = {v: counts / counts.sum(axis=1, keepdims=True) for v, counts in SEEN.items()}  # P(y | x) [x, y]


def spell_out(counts, seed):
    """Samples (first, second) that occur so often, in any order."""
    pairs = np.repeat(np.argwhere(counts >= 0), counts.ravel(), axis=0)
    return tuple(pairs[np.random.default_rng(seed).permutation(len(pairs))].T)


@functools.cache
def data():
    edges = {k: spell_out(counts, k) for k, counts in enumerate(COUNTS.values())}
    edges[4] = edges[4][0], CORNERS[edges[4][1]]
    nodes = {0: edges[0][0], 1: edges[1][1], 2: edges[3][1], 3: edges[4][1]}
    observations = {v: spell_out(counts, 7 + v) for v, counts in SEEN.items()}
    degrees = {0: 5, 1: 5, 2: 1, 3: 1}
    return kbp.TrainingData(edges, nodes, observations, ends=dict(enumerate(COUNTS)), degrees=degrees)


@functools.cache
def delta_model(rule):
    # With repeated samples the full-rank Gram matrix is singular, and a density ratio divides by its rounding error.
    ridge = 1e-9 if rule == "full" else 0.0
    return kbp.fit(data(), kernel=kbp.Delta(), obs_kernel=kbp.Delta(), rule=RULES[rule], ridge=ridge, floor=0.0)


def test_the_counts_agree():
    for (a, b), pair in PAIRS.items():
        np.testing.assert_allclose(pair.sum(axis=1), NODES[a], atol=1e-12)
        if b in NODES:
            np.testing.assert_allclose(pair.sum(axis=0), NODES[b], atol=1e-12)
    for k, (ends, counts) in enumerate(list(COUNTS.items())[:4]):
        np.testing.assert_array_equal(table(*data().edges[k], *counts.shape) * counts.sum(), counts, err_msg=str(ends))
    assert np.abs(PAIRS[0, 0] - PAIRS[0, 0].T).max() > 0.05 and np.abs(PAIRS[1, 1] - PAIRS[1, 1].T).max() > 0.05


# --- a forest ---------------------------------------------------------------------------------------------------------

EDGES = [(0, 1), (1, 2), (3, 1), (3, 4), (5, 3), (7, 6)]  # a tree, an edge, and node 8 alone
NODE_TYPE = [1, 0, 0, 1, 1, 0, 1, 1, 0]  # the first and the third edge are turned round
STATES = tuple(3 + v for v in NODE_TYPE)
NODES_OF_TYPE = {v: np.flatnonzero(np.array(NODE_TYPE) == v).tolist() for v in (0, 1)}
LEAVES, INNER = [0, 4, 5, 6], [1, 3]


def pair_table(a, b):
    """P(x_a, x_b) of nodes of two types."""
    return PAIRS[a, b] if a <= b else PAIRS[b, a].T


@functools.cache
def forest():
    """(graph, Joint)."""
    ends = [(NODE_TYPE[a], NODE_TYPE[b]) for a, b in EDGES]
    types = [EDGE_TYPES.index(tuple(sorted(pair))) for pair in ends]
    graph = kbp.Graph.from_edges(EDGES, len(STATES), node_type=NODE_TYPE, edge_type=types)
    joint = Joint(STATES, EDGES, [NODES[v] for v in NODE_TYPE], [pair_table(*pair) for pair in ends])
    return graph, joint


STATES_OF_TYPE = {0: np.arange(3), 1: np.arange(4)}


def forest_beliefs(model, evidence, solver, **options):
    """Beliefs of the nodes at their states, in order of node number."""
    graph = forest()[0]
    answer = kbp.beliefs(model, graph, evidence, SOLVERS[solver](model, graph, evidence), STATES_OF_TYPE, **options)
    return by_node({v: belief.weights for v, belief in answer.items()})


def by_node(weights):
    """Sort rows given by type into the order of node numbers."""
    return [np.asarray(weights[v][NODES_OF_TYPE[v].index(s)]) for s, v in enumerate(NODE_TYPE)]


def assert_equal_to_joint(got, factors, joint=None):
    joint = (forest()[1] if joint is None else joint).given(factors)
    for s, weights in enumerate(got):
        np.testing.assert_allclose(weights, joint.of(s), atol=TOL, rtol=0, err_msg=f"node {s}")


# Each piece of evidence: the package's evidence, and the same as factors on nodes.


def observed(nodes, y, form="expectation"):
    """The factor is P(y | x); the one by which the density ratio differs from it, 1 / P(y), is no function of x."""

    def make(model):
        mask = np.isin(np.arange(len(STATES)), nodes)
        return kbp.observe(model, forest()[0], np.asarray(y), mask=mask, evidence_model=FORMS[form])

    return make, {s: LIKELIHOOD[NODE_TYPE[s]][:, y[s]] for s in nodes}


def lookup(rows):
    """The function of points that looks likelihoods up in rows [node, state]."""
    rows = jnp.asarray(rows)
    return lambda points: rows[:, points]


LIKELIHOODS = np.exp(2 * np.random.default_rng(5).normal(size=(len(STATES), max(STATES))))


def known_of_some(nodes, scale=1.0):
    """{type: function} for the types of these nodes only, 1 for the other nodes of those types."""

    def make(model):
        rows = np.where(np.isin(np.arange(len(STATES)), nodes)[:, None], scale * LIKELIHOODS, 1.0)
        types = {NODE_TYPE[s] for s in nodes}
        return kbp.likelihood(model, forest()[0], {v: lookup(rows[NODES_OF_TYPE[v]]) for v in types})

    return make, {s: LIKELIHOODS[s, : STATES[s]] for s in nodes}


def known_of_all():
    factors = {s: LIKELIHOODS[s, :k] for s, k in enumerate(STATES)}
    return lambda model: kbp.likelihood(model, forest()[0], lookup(LIKELIHOODS)), factors


def clamped(values, form="expectation"):
    def make(model):
        return kbp.clamp(model, forest()[0], list(values), list(values.values()), evidence_model=FORMS[form])

    return make, {s: np.eye(STATES[s])[value] for s, value in values.items()}


Y0, Y1 = [0, 2, 1, 0, 2, 1, 1, 0, 2], [1, 1, 0, 2, 2, 0, 0, 1, 1]

PIECES = {
    "nothing": [],
    "a leaf": [observed([4], Y0)],
    "leaves": [observed(LEAVES, Y0)],
    "inner nodes": [observed(INNER, Y1)],
    "all": [observed(range(9), Y0)],
    "none of all": [observed([], Y0)],
    "leaves, by ratio": [observed(LEAVES, Y1, "ratio")],
    "inner nodes, by ratio": [observed(INNER, Y0, "ratio")],
    "all, by ratio": [observed(range(9), Y1, "ratio")],
    "likelihood of a leaf": [known_of_some([0])],
    "likelihood of inner nodes": [known_of_some([1, 3, 8])],
    "likelihood of another scale": [known_of_some([1, 4], scale=1e-30)],
    "likelihood of all": [known_of_all()],
    "two likelihoods": [known_of_some([1, 4]), known_of_some([3, 4])],
    "clamped leaf": [clamped({4: 2})],
    "clamped inner node": [clamped({3: 1})],
    "clamped inner node, by ratio": [clamped({1: 0}, "ratio")],
    "clamped neighbors": [clamped({1: 2, 3: 0})],
    "clamped leaf and inner node, by ratio": [clamped({3: 3, 0: 1}, "ratio")],
    "clamped in turn": [clamped({5: 1}), clamped({1: 1}, "ratio"), clamped({6: 0})],
    "all clamped": [clamped(dict.fromkeys(range(9), 1))],
    "observed twice": [observed([0, 1, 4], Y0), observed([1, 4, 3], Y1, "ratio")],
    "clamped and observed": [observed(range(9), Y0), clamped({3: 1})],
    "clamped, observed, with a likelihood": [known_of_all(), clamped({1: 1}), observed([1, 0], Y1)],
    "mixed": [
        observed([0, 1], Y0),
        known_of_some([1, 2, 7]),
        clamped({4: 0, 6: 2}, "ratio"),
        observed([5, 1, 8], Y1, "ratio"),
    ],
}
COVERED = {
    "a leaf",
    "leaves",
    "leaves, by ratio",
    "all, by ratio",
    "likelihood of a leaf",
    "likelihood of inner nodes",
    "clamped leaf",
    "clamped inner node",
    "clamped inner node, by ratio",
    "clamped and observed",
}
"""Pieces of which others have all parts."""


def combine(pieces, model):
    """Return the evidence of all pieces (None for none) and the product of their factors."""
    evidence = [make(model) for make, _ in pieces]
    return functools.reduce(lambda a, b: a * b, evidence) if evidence else None, times(*(f for _, f in pieces))


def test_the_oracle_itself():
    """Without evidence its marginals are the frequencies; pairs sum to nodes; conditioning is by Bayes' rule."""
    joint = forest()[1]
    for s, v in enumerate(NODE_TYPE):
        np.testing.assert_allclose(joint.of(s), NODES[v], atol=1e-12)
    for s, t in EDGES:
        np.testing.assert_allclose(joint.of(s, t), pair_table(NODE_TYPE[s], NODE_TYPE[t]), atol=1e-12)
    given = joint.given({3: np.eye(4)[2]})
    np.testing.assert_allclose(given.of(1), joint.of(1, 3)[:, 2] / joint.of(3)[2], atol=1e-12)


def test_the_evidence_of_these_tests_matters():
    """No test here can pass by evidence that says nothing."""
    for name, pieces in PIECES.items():
        factors = times(*(f for _, f in pieces))
        change = max(np.abs(forest()[1].given(factors).of(s) - forest()[1].of(s)).max() for s in range(len(STATES)))
        assert (change > 0.02) == (name not in ("nothing", "none of all")), name


# All evidence with one rule, and with the others what shows that they give operators alike.
@pytest.mark.parametrize(
    "rule, name",
    [
        *(pytest.param("constant", name, marks=pytest.mark.slow if name in COVERED else ()) for name in PIECES),
        *(
            pytest.param(rule, name, marks=pytest.mark.slow)
            for rule in ("linear", "full")
            for name in ("nothing", "mixed")
        ),
    ],
)
def test_beliefs_equal_the_joint(rule, name):
    model = delta_model(rule)
    evidence, factors = combine(PIECES[name], model)
    for solver in SOLVERS:
        assert_equal_to_joint(forest_beliefs(model, evidence, solver), factors)


@pytest.mark.parametrize(
    "rule, solver, name",
    [
        ("constant", "run", "nothing"),
        ("constant", "run_tree", "inner nodes, by ratio"),
        ("constant", "run", "clamped neighbors"),
        ("constant", "run_tree", "mixed"),
        pytest.param("full", "run", "mixed", marks=pytest.mark.slow),
    ],
)
def test_edge_beliefs_equal_the_pairs_of_the_joint(rule, solver, name):
    model, graph = delta_model(rule), forest()[0]
    evidence, factors = combine(PIECES[name], model)
    joint = forest()[1].given(factors)
    solution = SOLVERS[solver](model, graph, evidence)
    nodes = forest_beliefs(model, evidence, solver)
    for v, w in itertools.product((0, 1), repeat=2):
        both_ways = [*EDGES, *(edge[::-1] for edge in EDGES)]
        edges = [(a, b) for a, b in both_ways if (NODE_TYPE[a], NODE_TYPE[b]) == (v, w)]
        pairs = kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution, STATES_OF_TYPE), edges)
        np.testing.assert_array_equal(pairs.first, np.arange(3 + v))
        np.testing.assert_array_equal(pairs.second, np.arange(3 + w))
        for (a, b), weights in zip(edges, np.asarray(pairs.weights), strict=True):
            np.testing.assert_allclose(weights, joint.of(a, b), atol=TOL, rtol=0)
            np.testing.assert_allclose(weights.sum(axis=1), nodes[a], atol=TOL, rtol=0)
            np.testing.assert_allclose(weights.sum(axis=0), nodes[b], atol=TOL, rtol=0)


@every_form
@one_rule
def test_the_belief_of_a_clamped_node_is_a_point_mass(rule, form):
    model = delta_model(rule)
    values = {0: 1, 3: 2, 8: 0}
    make, _ = clamped(values, form)
    got = forest_beliefs(model, make(model) * observed([0, 1, 3], Y0)[0](model), "run")
    for s, value in values.items():
        np.testing.assert_array_equal(got[s], np.eye(STATES[s])[value])


@every_solver
def test_evidence_multiplies_in_any_order_and_any_grouping(solver):
    model = delta_model("constant")
    pieces = PIECES["mixed"]
    expected, _ = combine(pieces, model)
    parts = [make(model) for make, _ in pieces]
    for order in itertools.permutations(range(4)):
        a, b, c, d = (parts[i] for i in order)
        for product in (((a * b) * c) * d, a * (b * (c * d)), (a * b) * (c * d)):
            np.testing.assert_allclose(product.local, expected.local, rtol=1e-12)
            np.testing.assert_array_equal(product.clamped, expected.clamped)
    for first, second, third, fourth in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        product = (parts[first] * parts[second]) * (parts[third] * parts[fourth])
        factors = times(*(f for _, f in pieces))
        assert_equal_to_joint(forest_beliefs(model, product, solver), factors)


def test_evidence_multiplies_inside_of_jit_and_vmap():
    model, graph = delta_model("constant"), forest()[0]
    mask = np.isin(np.arange(9), LEAVES)

    @jax.jit
    @jax.vmap
    def answer(y, value):
        evidence = kbp.observe(model, graph, y, mask=mask) * kbp.clamp(model, graph, jnp.array([3]), value[None])
        evidence = evidence * known_of_some([1])[0](model)
        solution = kbp.run_tree(model, graph, evidence)
        belief = kbp.beliefs(model, graph, evidence, solution, STATES_OF_TYPE)
        return {v: belief[v].weights for v in belief}

    ys, values = np.array([Y0, Y1, Y0]), np.array([1, 3, 0])
    batch = answer(jnp.asarray(ys), jnp.asarray(values))
    for i, (y, value) in enumerate(zip(ys, values, strict=True)):
        factors = times(observed(LEAVES, y)[1], clamped({3: value})[1], known_of_some([1])[1])
        assert_equal_to_joint(by_node({v: weights[i] for v, weights in batch.items()}), factors)


@pytest.mark.parametrize(
    "rule, solver", [("constant", "run"), ("constant", "run_tree"), pytest.param("full", "run", marks=pytest.mark.slow)]
)
def test_a_likelihood_of_zero_leaves_exactly_no_belief(rule, solver):
    """With floor = 0 a zero stays one, at the node that has it and wherever it rules a value out."""
    model, graph = delta_model(rule), forest()[0]
    zeros = LIKELIHOODS.copy()
    zeros[3, [0, 2]] = zeros[4, 1] = zeros[8, 2] = 0
    evidence = kbp.likelihood(model, graph, lookup(zeros))  # zeros are finite and allowed
    got = forest_beliefs(model, evidence, solver)
    factors = {s: zeros[s, :k] for s, k in enumerate(STATES)}
    assert_equal_to_joint(got, factors)
    assert got[3][0] == got[3][2] == got[4][1] == got[8][2] == 0
    assert got[3][1] > 1e-3 and got[3][3] > 1e-3
    solution = SOLVERS[solver](model, graph, evidence)
    pair = np.asarray(
        kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution, STATES_OF_TYPE), [(3, 4)]).weights[0]
    )
    assert not pair[[0, 2]].any() and not pair[:, 1].any()


# --- one node type ----------------------------------------------------------------------------------------------------

SHARED = [(0, 1), (2, 1), (1, 3), (3, 4), (5, 3), (7, 6)]
NUM_SHARED = 9


@functools.cache
def shared():
    """(graph, Joint): all nodes of type 0, all edges of type 0, several of them asked at once."""
    joint = Joint((3,) * NUM_SHARED, SHARED, [NODES[0]] * NUM_SHARED, [PAIRS[0, 0]] * len(SHARED))
    return kbp.Graph.from_edges(SHARED, NUM_SHARED), joint


def shared_beliefs(model, evidence, solver, points=np.arange(3), **options):
    solution = SOLVERS[solver](model, shared()[0], evidence)
    return np.asarray(kbp.beliefs(model, shared()[0], evidence, solution, points, **options).weights)


@one_rule
@every_solver
def test_one_likelihood_for_all_nodes_of_one_type(rule, solver):
    model, (graph, joint) = delta_model(rule), shared()
    factors = {s: LIKELIHOODS[s, :3] for s in range(NUM_SHARED)}
    for fn in (lookup(LIKELIHOODS[:, :3]), {0: lookup(LIKELIHOODS[:, :3])}):
        assert_equal_to_joint(shared_beliefs(model, kbp.likelihood(model, graph, fn), solver), factors, joint)


@one_rule
@every_solver
def test_everything_at_once_on_one_node_type(rule, solver):
    """Several nodes of one type are clamped apart, observed twice, and have a likelihood that is 1 for the others."""
    model, (graph, joint), seen = delta_model(rule), shared(), LIKELIHOOD[0]
    y0, y1 = np.array(Y0), np.array(Y1)
    rows = np.where(np.isin(np.arange(NUM_SHARED), [2, 5, 8])[:, None], LIKELIHOODS[:, :3], 1.0)
    masks = [np.isin(np.arange(NUM_SHARED), nodes) for nodes in ([0, 1, 4, 6], [1, 2, 6])]
    evidence = (
        kbp.observe(model, graph, y0, mask=masks[0])
        * kbp.clamp(model, graph, np.array([4]), np.array([1]))
        * kbp.likelihood(model, graph, lookup(rows))
        * kbp.clamp(model, graph, [3, 7], [2, 0], evidence_model=kbp.DensityRatio())
        * kbp.observe(model, graph, {0: y1}, mask=masks[1], evidence_model=kbp.DensityRatio())
    )
    factors = times(
        {s: seen[:, y0[s]] for s in np.flatnonzero(masks[0])},
        {s: seen[:, y1[s]] for s in np.flatnonzero(masks[1])},
        dict(enumerate(rows)),
        {s: np.eye(3)[value] for s, value in {4: 1, 3: 2, 7: 0}.items()},
    )
    assert_equal_to_joint(shared_beliefs(model, evidence, solver), factors, joint)
    solution = SOLVERS[solver](model, graph, evidence)
    edges = [SHARED[4], SHARED[0][::-1], SHARED[5], SHARED[1][::-1]]
    pairs = kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution, np.arange(3)), edges)
    for edge, weights in zip(edges, pairs.weights, strict=True):
        np.testing.assert_allclose(weights, joint.given(factors).of(*edge), atol=TOL, rtol=0)


def test_clamps_in_one_call_or_several_are_the_same():
    model, graph = delta_model("constant"), shared()[0]
    together = kbp.clamp(model, graph, [5, 0, 3], [2, 1, 0])
    apart = kbp.clamp(model, graph, [0], [1]) * (kbp.clamp(model, graph, [3], [0]) * kbp.clamp(model, graph, [5], [2]))
    for a, b in ((together.local, apart.local), (together.clamped, apart.clamped), (together.messages, apart.messages)):
        np.testing.assert_array_equal(a, b)
    for evidence in (together, apart):
        assert evidence.values[0][1][np.array([0, 3, 5])].tolist() == [1, 0, 2]
        assert np.flatnonzero(evidence.clamped).tolist() == np.flatnonzero(evidence.values[0][0]).tolist() == [0, 3, 5]


@every_solver
def test_clamping_no_node_says_nothing(solver):
    model, (graph, joint) = delta_model("constant"), shared()
    nothing = kbp.clamp(model, graph, np.zeros(0, int), np.zeros(0, int))
    assert_equal_to_joint(shared_beliefs(model, nothing, solver), {}, joint)


# --- kernels that smooth: the two forms differ ------------------------------------------------------------------------

WIDTH, OBS_WIDTH = 0.8, 0.9


def rbf(width):
    return np.exp(-(np.subtract.outer(np.arange(3), np.arange(3)) ** 2) / (2 * width**2))


@functools.cache
def smooth_model(rule):
    x, seen = data().edges[0], data().observations[0]
    samples = kbp.TrainingData(
        {0: (x[0].astype(float), x[1].astype(float))},
        {0: x[0].astype(float)},
        {0: (seen[0].astype(float), seen[1].astype(float))},
        degrees={0: 4},
    )
    options = {"rule": RULES[rule], "ridge": 0.0, "floor": 0.0}
    return kbp.fit(samples, kernel=kbp.RBF(WIDTH), obs_kernel=kbp.RBF(OBS_WIDTH), **options)


def smooth_beliefs(model, evidence, solver):
    """With the frequencies as marginals: the model's own embedding of the marginal is smoothed."""
    frequencies = kbp.Parzen(kbp.Delta(), data().nodes[0].astype(float))
    return shared_beliefs(model, evidence, solver, np.arange(3.0), marginal=frequencies)


@one_rule
@every_solver
def test_with_a_smoothing_kernel_the_expectation_is_smoothed_and_the_ratio_is_not(rule, solver):
    model, (graph, joint), seen = smooth_model(rule), shared(), LIKELIHOOD[0]
    y, mask = np.array(Y0), np.isin(np.arange(NUM_SHARED), [0, 1, 3, 4, 6])
    smooth = seen @ rbf(OBS_WIDTH)  # E[k(y, Y) | x] [x, y]
    for form, factor in ((kbp.Expectation(), smooth), (kbp.DensityRatio(), seen)):
        evidence = kbp.observe(model, graph, y.astype(float), mask=mask, evidence_model=form)
        factors = {s: factor[:, y[s]] for s in np.flatnonzero(mask)}
        assert_equal_to_joint(smooth_beliefs(model, evidence, solver), factors, joint)
        at_points = np.asarray(model.bases[0](jnp.arange(3.0)) @ evidence.messages[0, 3])
        np.testing.assert_allclose(at_points / at_points.sum(), factor[:, y[3]] / factor[:, y[3]].sum(), atol=TOL)
    assert np.abs(smooth / smooth.sum(axis=0) - seen / seen.sum(axis=0)).max() > 0.1


@one_rule
@every_solver
def test_clamped_with_a_smoothing_kernel(rule, solver):
    """By ratio, conditioning; by expectation, each part of the cut tree sees E[k(value, X) | .], the kernel's blur."""
    model, (graph, joint), seen = smooth_model(rule), shared(), LIKELIHOOD[0]
    y, seen_nodes = np.array(Y1), [0, 2, 4, 5]
    mask = np.isin(np.arange(NUM_SHARED), seen_nodes)
    observed_factors = {s: seen[:, y[s]] for s in seen_nodes}
    observations = kbp.observe(model, graph, y.astype(float), mask=mask, evidence_model=kbp.DensityRatio())
    values = {3: 2, 7: 1}
    evidence = observations * kbp.clamp(model, graph, [3, 7], [2.0, 1.0], evidence_model=kbp.DensityRatio())
    point = {s: np.eye(3)[value] for s, value in values.items()}
    assert_equal_to_joint(smooth_beliefs(model, evidence, solver), times(observed_factors, point), joint)

    evidence = observations * kbp.clamp(model, graph, [3, 7], [2.0, 1.0])
    got = smooth_beliefs(model, evidence, solver)
    blur = {s: rbf(WIDTH)[value] for s, value in values.items()}
    for part in ([0, 1, 2], [4], [5], [6], [8]):  # the rest of the tree says nothing to this part
        factors = times({s: f for s, f in observed_factors.items() if s in part}, blur)
        for s in part:
            np.testing.assert_allclose(got[s], joint.given(factors).of(s), atol=TOL, rtol=0)
    np.testing.assert_array_equal(got[[3, 7]], np.eye(3)[[2, 1]])
    sharp = joint.given(times(observed_factors, point))
    assert max(np.abs(sharp.of(s) - got[s]).max() for s in (1, 4)) > 0.02


@one_rule
@every_solver
def test_edge_beliefs_with_a_smoothing_kernel(rule, solver):
    """Neither the interaction of the pair nor its margins are blurred by the kernel."""
    model, (graph, joint), seen = smooth_model(rule), shared(), LIKELIHOOD[0]
    y, edges = np.array(Y0), [SHARED[5], SHARED[1], SHARED[0][::-1], SHARED[2]]
    evidence = kbp.observe(model, graph, y.astype(float), evidence_model=kbp.DensityRatio())
    solution, frequencies = SOLVERS[solver](model, graph, evidence), data().nodes[0].astype(float)
    marginal = kbp.Parzen(kbp.Delta(), frequencies)
    posterior = kbp.Posterior.of(model, graph, evidence, solution, np.arange(3.0), marginal=marginal)
    given = joint.given({s: seen[:, y[s]] for s in range(NUM_SHARED)})
    for edge, weights in zip(edges, kbp.edge_beliefs(posterior, edges).weights, strict=True):
        np.testing.assert_allclose(weights, given.of(*edge), atol=TOL, rtol=0)


# --- sensors of different kinds ---------------------------------------------------------------------------------------


@one_rule
@every_solver
def test_two_sensors_of_different_kinds_as_clamped_nodes(rule, solver):
    """A chain of three hidden states; each has a sensor of numbers (type 2) and one of points of a plane (type 3)."""
    model = delta_model(rule)
    edges = [(0, 1), (1, 2), (0, 3), (4, 1), (2, 5), (0, 6), (7, 1), (2, 8)]
    kinds, edge_type = [0] * 3 + [2] * 3 + [3] * 3, [0, 0, 3, 3, 3, 4, 4, 4]
    graph = kbp.Graph.from_edges(edges, 9, node_type=kinds, edge_type=edge_type)
    numbers, places = {3: 1, 5: 3}, {6: 2, 8: 0}  # sensors 4 and 7, of the hidden node 1, are missing
    evidence = kbp.clamp(model, graph, list(numbers), list(numbers.values()))
    evidence = kbp.clamp(model, graph, list(places), CORNERS[list(places.values())]) * evidence
    solution = SOLVERS[solver](model, graph, evidence)
    got = kbp.beliefs(model, graph, evidence, solution, {0: np.arange(3), 2: np.arange(4), 3: CORNERS})
    chain = Joint((3, 3, 3), [(0, 1), (1, 2)], [NODES[0]] * 3, [PAIRS[0, 0]] * 2)
    by_number, by_place = (PAIRS[0, v] / PAIRS[0, v].sum(axis=1, keepdims=True) for v in (2, 3))
    hidden = chain.given({0: by_number[:, 1] * by_place[:, 2], 2: by_number[:, 3] * by_place[:, 0]})
    for s in range(3):
        np.testing.assert_allclose(got[0].weights[s], hidden.of(s), atol=TOL, rtol=0)
    np.testing.assert_allclose(got[2].weights, [np.eye(4)[1], hidden.of(1) @ by_number, np.eye(4)[3]], atol=TOL)
    np.testing.assert_allclose(got[3].weights, [np.eye(3)[2], hidden.of(1) @ by_place, np.eye(3)[0]], atol=TOL)


# --- loops ------------------------------------------------------------------------------------------------------------

LOOPS = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3), (3, 4)]


def loopy_beliefs(factors, values, num_iters):
    """Propagate with the conditional tables, flooding; nodes with a value send P(value | x_s) whatever they receive."""
    pair = PAIRS[0, 0]
    forth = pair / pair.sum(axis=0)  # P(x_first | x_second), for messages from first to second
    back = (pair / pair.sum(axis=1, keepdims=True)).T
    conditional = dict.fromkeys(LOOPS, forth) | {(b, a): back for a, b in LOOPS}
    messages = {edge: np.ones(3) for edge in conditional}
    for _ in range(num_iters):
        new = {}
        for t, s in conditional:
            product = np.array(factors.get(t, np.ones(3)))
            for u, to in conditional:
                if to == t and u != s:
                    product = product * messages[u, t]
            product = np.eye(3)[values[t]] if t in values else product
            new[t, s] = product @ conditional[t, s]
            new[t, s] /= new[t, s].sum()
        messages = new
    result = np.tile(NODES[0], (5, 1))
    for s in range(5):
        for (_, to), message in messages.items():
            result[s] *= message if to == s else 1
        result[s] = np.eye(3)[values[s]] if s in values else result[s] * factors.get(s, 1)
    return result / result.sum(axis=1, keepdims=True)


@one_rule
@every_form
def test_clamping_on_loops_equals_textbook_iterations(rule, form):
    model, graph, y = delta_model(rule), kbp.Graph.from_edges(LOOPS, 5), np.array(Y0[:5])
    factors = {s: LIKELIHOOD[0][:, y[s]] for s in range(5)}
    for values in ({0: 2}, {3: 1}, {4: 0, 1: 2}):
        clamps = kbp.clamp(model, graph, list(values), list(values.values()), evidence_model=FORMS[form])
        evidence = kbp.observe(model, graph, y) * clamps
        for num_iters, damping in ((1, 0.0), (5, 0.0), (200, 0.3)):
            solution = kbp.run(model, graph, evidence, num_iters=num_iters, damping=damping)
            got = kbp.beliefs(model, graph, evidence, solution, np.arange(3)).weights
            expected = loopy_beliefs(factors, values, num_iters)
            np.testing.assert_allclose(got, expected, atol=TOL, err_msg=f"{values} {num_iters}")
        assert np.abs(loopy_beliefs(factors, values, 1) - loopy_beliefs(factors, values, 5)).max() > 1e-3


def test_a_clamp_that_cuts_the_only_loop_makes_it_exact():
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    model, y, graph = delta_model("constant"), np.array(Y1[:4]), kbp.Graph.from_edges(edges, 4)
    joint = Joint((3,) * 4, edges, [NODES[0]] * 4, [PAIRS[0, 0]] * 4)
    factors = times({s: LIKELIHOOD[0][:, y[s]] for s in range(4)}, {2: np.eye(3)[0]})
    evidence = kbp.observe(model, graph, y) * kbp.clamp(model, graph, [2], [0])
    solution = kbp.run(model, graph, evidence, num_iters=6, damping=0.0)
    got = kbp.beliefs(model, graph, evidence, solution, np.arange(3)).weights
    assert_equal_to_joint(np.asarray(got), factors, joint)
    with pytest.raises(ValueError, match="^graph: must have no cycle"):
        kbp.run_tree(model, graph, evidence)  # the graph itself still has one
