"""What people get wrong, over all public functions: each mistake raises the documented error, and none gives NaN.

The table is of single mistakes; the properties draw whole calls at random and ask that they either answer in finite
numbers or raise a ValueError.
"""

import json
import re
from types import SimpleNamespace

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest
from hypothesis import given, settings

import kbpjax as kbp
from kbpjax import ep, kernels
from kbpjax.baselines import density, discrete, gaussian, pairwise
from kbpjax.features import EmbeddingFeatures
from kbpjax.kernels.graphs import encode_graphs
from tests.programs import SHORT, python

RNG = np.random.default_rng(0)
CHAIN = kbp.chain_graph(4)
X = RNG.normal(size=(20, 4))
Y = X + 0.3 * RNG.normal(size=X.shape)
KERNELS = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.0)}
RULE = kbp.ConstantTime(2e-2, 12)
POINTS = np.linspace(-2, 2, 9)


def right():
    """Return a model, evidence, solution and belief that are right."""
    model = kbp.fit(kbp.pool(CHAIN, X, Y), rule=RULE, ridge=1e-2, **KERNELS)
    evidence = kbp.observe(model, CHAIN, Y[0])
    solution = kbp.run_tree(model, CHAIN, evidence)
    return model, evidence, solution, kbp.beliefs(model, CHAIN, evidence, solution, POINTS)


def fit(**changed):
    return kbp.fit(kbp.pool(CHAIN, X, Y), **{"rule": RULE, **KERNELS, **changed})


def named(**types):
    """Return a networkx graph of one edge whose first node has a type."""
    graph = networkx.path_graph(2)
    graph.nodes[0].update(types)
    return graph


ALONE = kbp.TrainingData({}, {0: X[:, 0]})
MEMBRANE = gaussian.thin_membrane(CHAIN, edge_precision=1.0)
START = kbp.Hyperparameters(**KERNELS, rule=RULE)
NAN = np.where(np.arange(80).reshape(20, 4) == 7, np.nan, X)
GAUSSIAN = ep.Gaussian.from_moments(0.0, 1.0)
MISTAKES = {
    # graphs
    "an edge to nowhere": (lambda m, e, s, b: kbp.Graph.from_edges([(0, 9)], 3), "edges"),
    "an edge to itself": (lambda m, e, s, b: kbp.Graph.from_edges([(1, 1)], 3), "edges"),
    "an edge twice": (lambda m, e, s, b: kbp.Graph.from_edges([(0, 1), (1, 0)], 3), "edges"),
    "edges of three": (lambda m, e, s, b: kbp.Graph.from_edges([(0, 1, 2)], 3), "edges"),
    "edges that are no integers": (lambda m, e, s, b: kbp.Graph.from_edges([(0.5, 1)], 3), "edges"),
    "no nodes": (lambda m, e, s, b: kbp.Graph.from_edges([], 0), "num_nodes"),
    "types of other edges": (lambda m, e, s, b: kbp.Graph.from_edges([(0, 1)], 2, edge_type=[0, 1]), "edge_type"),
    "a negative type": (lambda m, e, s, b: kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, -1]), "node_type"),
    "a grid without columns": (lambda m, e, s, b: kbp.grid_graph(3, 0), "width"),
    "a chain of half a node": (lambda m, e, s, b: kbp.chain_graph(0.5), "must be"),
    "a type that is a word": (lambda m, e, s, b: kbp.Graph.from_networkx(named(type="pixel")), "nodes"),
    "nodes of no type": (lambda m, e, s, b: CHAIN.nodes_of_type(3), "node_type"),
    "colors of neighbors": (lambda m, e, s, b: kbp.colored(CHAIN, colors=[0, 0, 1, 1]), "colors"),
    "trees of no key": (lambda m, e, s, b: kbp.tree_reweighting(CHAIN, key=0), "key"),
    # data
    "ends that are no pair": (lambda m, e, s, b: kbp.TrainingData({0: (X, Y)}, {0: X}, ends={0: 0}), "ends"),
    "samples of another graph": (lambda m, e, s, b: kbp.pool(CHAIN, X[:, :3]), "samples"),
    "samples that are all NaN": (lambda m, e, s, b: kbp.pool(CHAIN, NAN * np.nan), "samples"),
    "samples of different lengths": (lambda m, e, s, b: kbp.pool(CHAIN, [[1.0], [1.0, 2.0]]), "samples"),
    "a mask of another number of samples": (lambda m, e, s, b: kbp.pool(CHAIN, X, mask=X[:3] > 0), "mask"),
    "a mask of observations without any": (
        lambda m, e, s, b: kbp.pool(CHAIN, X, observation_mask=X > 0),
        "observation_mask",
    ),
    "a point of different lengths": (lambda m, e, s, b: kbp.RBF(1.0)([1.0, [2.0]], 0.0), "x"),
    "a batch of observations": (lambda m, e, s, b: kbp.observe(m, CHAIN, Y), "y"),
    "no samples": (lambda m, e, s, b: kbp.pool(CHAIN, X[:0]), "samples"),
    "observations of other samples": (lambda m, e, s, b: kbp.pool(CHAIN, X, Y[:3]), "observations"),
    "samples that are words and numbers": (
        lambda m, e, s, b: kbp.pool(CHAIN, np.array([["a", 1, 2, 3]], object)),
        "samples",
    ),
    "samples that are complex": (lambda m, e, s, b: kbp.pool(CHAIN, X + 1j), "samples"),
    # learning
    "a bandwidth of 0": (lambda m, e, s, b: kbp.RBF(0.0), "bandwidth"),
    "a bandwidth of NaN": (lambda m, e, s, b: kbp.RBF(float("nan")), "bandwidth"),
    "a bandwidth of a kind": (lambda m, e, s, b: kbp.RBF("wide"), "bandwidth"),
    "a negative ridge": (lambda m, e, s, b: fit(ridge=-1.0), "ridge"),
    "a ridge for no edge": (lambda m, e, s, b: fit(ridge={7: 1.0}), "ridge"),
    "a ridge for an edge too many": (lambda m, e, s, b: fit(ridge={0: 1.0, 7: 1.0}, obs_ridge=1.0), "ridge"),
    "an obs_ridge for a node too many": (lambda m, e, s, b: fit(obs_ridge={0: 1.0, 7: 1.0}), "obs_ridge"),
    "a floor of 1": (lambda m, e, s, b: fit(floor=1.0), "floor"),
    "a rank of 0": (lambda m, e, s, b: kbp.ConstantTime(1e-2, 0), "max_rank"),
    "eps of 0": (lambda m, e, s, b: kbp.ConstantTime(0.0), "eps"),
    "a kernel that is none": (lambda m, e, s, b: fit(kernel="rbf"), "kernel"),
    "a kernel of observations of no type": (lambda m, e, s, b: fit(obs_kernel={7: kbp.RBF(1.0)}), "obs_kernel"),
    "points off the sphere": (lambda m, e, s, b: kbp.gram(kernels.Sphere(1.0), 2 * np.eye(3), np.eye(3)), "x"),
    "a median of one point": (lambda m, e, s, b: kbp.median_bandwidth([1.0]), "points"),
    "a power of one half": (lambda m, e, s, b: kbp.RBF(1.0) ** 0.5, "exponent"),
    "a score of a name": (lambda m, e, s, b: kbp.select(START, kbp.pool(CHAIN, X, Y), score="loo"), "score"),
    "a choice by nothing": (lambda m, e, s, b: kbp.select(START, ALONE), "data"),
    "noise of no key": (
        lambda m, e, s, b: kbp.tune(START, kbp.pool(CHAIN, X, Y), CHAIN, X, Y, POINTS, key=0),
        "key",
    ),
    "reservoirs of no key": (
        lambda m, e, s, b: kbp.fit_chunks([kbp.pool(CHAIN, X, Y)], rule=RULE, **KERNELS, key=0),
        "key",
    ),
    "features of no key": (lambda m, e, s, b: EmbeddingFeatures.draw(0, 5, 1, 1.0), "key"),
    "a graph without nodes": (lambda m, e, s, b: encode_graphs([([], [])]), "graphs[0]"),
    "edges of three nodes": (lambda m, e, s, b: encode_graphs([([0, 0, 0], [[0, 1, 2]])]), "graphs[0]"),
    "labels of no edge": (lambda m, e, s, b: encode_graphs([([0, 0], [[0, 1]], [1, 2])]), "graphs[0]"),
    # evidence
    "observations of another graph": (lambda m, e, s, b: kbp.observe(m, CHAIN, Y[0, :3]), "y"),
    "an observation that is infinite": (lambda m, e, s, b: kbp.observe(m, CHAIN, np.full(4, np.inf)), "y"),
    "a mask of numbers": (lambda m, e, s, b: kbp.observe(m, CHAIN, Y[0], mask=np.ones(4)), "mask"),
    "a node clamped twice": (lambda m, e, s, b: kbp.clamp(m, CHAIN, [0, 0], [1.0, 2.0]), "nodes"),
    "a node clamped that is none": (lambda m, e, s, b: kbp.clamp(m, CHAIN, [4], [1.0]), "nodes"),
    "a likelihood of other nodes": (lambda m, e, s, b: kbp.likelihood(m, CHAIN, lambda p: jnp.ones((3, len(p)))), "fn"),
    "a negative power": (lambda m, e, s, b: e**-1.0, "power"),
    # messages
    "no model": (lambda m, e, s, b: kbp.run(None, CHAIN), "model"),
    "half a model": (lambda m, e, s, b: kbp.run(SimpleNamespace(operators=m.operators), CHAIN), "model"),
    "too few matrices": (
        lambda m, e, s, b: kbp.run(m.operators, kbp.chain_graph(4, edge_type=[0, 1, 2]), e),
        "project",
    ),
    "a disturbance of no key": (lambda m, e, s, b: kbp.diagnose(m, CHAIN, e, s, key=0), "key"),
    "no iterations": (lambda m, e, s, b: kbp.run(m, CHAIN, e, num_iters=0), "num_iters"),
    "a damping of 1": (lambda m, e, s, b: kbp.run(m, CHAIN, e, damping=1.0), "damping"),
    "a tolerance of 0": (lambda m, e, s, b: kbp.run(m, CHAIN, e, tol=0.0), "tol"),
    "exponents of other edges": (lambda m, e, s, b: kbp.run(m, CHAIN, e, exponents=np.ones(7)), "exponents"),
    "a cycle as a tree": (lambda m, e, s, b: kbp.run_tree(m, kbp.grid_graph(2, 2), None), "graph"),
    "evidence of another graph": (lambda m, e, s, b: kbp.run(m, kbp.chain_graph(5), e), "must"),
    # answers
    "points of two numbers": (lambda m, e, s, b: kbp.beliefs(m, CHAIN, e, s, np.ones((3, 2))), "points"),
    "points that are NaN": (lambda m, e, s, b: kbp.beliefs(m, CHAIN, e, s, np.full(3, np.nan)), "points"),
    "no points": (lambda m, e, s, b: kbp.beliefs(m, CHAIN, e, s, np.zeros(0)), "points"),
    "a coverage of 1.5": (lambda m, e, s, b: kbp.interval(b, 1.5), "coverage"),
    "a quantile of 2": (lambda m, e, s, b: kbp.quantile(b, 2.0), "level"),
    "a temperature of 0": (lambda m, e, s, b: kbp.temper(b, 0.0), "temperature"),
    "samples of a belief, none": (lambda m, e, s, b: kbp.sample(b, jax.random.key(0), 0), "num_samples"),
    "samples of no key": (lambda m, e, s, b: kbp.sample(b, 0, 3), "key"),
    "a log belief of no type": (
        lambda m, e, s, b: kbp.log_belief(kbp.Posterior.of(m, CHAIN, e, s, b.points), jnp.zeros((4, 1)), node_type=3),
        "node_type",
    ),
    "a Parzen estimate of a width": (lambda m, e, s, b: kbp.Parzen(1.0, X[:, 0]), "kernel"),
    # baselines
    "a density of no key": (lambda m, e, s, b: density.fit_conditional(0, X[:, 0], Y[:, 0]), "key"),
    "a regression of no key": (lambda m, e, s, b: density.fit_likelihood(None, X[:, 0], Y[:, 0]), "key"),
    "potentials of no edges": (lambda m, e, s, b: pairwise.fit(jax.random.key(0), ALONE), "data"),
    "bins of one value": (lambda m, e, s, b: discrete.bins(np.ones(5), 3), "must"),
    "noise of 0": (lambda m, e, s, b: gaussian.likelihood(MEMBRANE, CHAIN, Y[0], noise=0.0), "noise"),
    # expectation propagation
    "a negative variance": (lambda m, e, s, b: ep.Gaussian.from_moments(0.0, -1.0), "variance"),
    "a mean outside": (lambda m, e, s, b: ep.Beta.from_moments(2.0, 0.1), "mean, variance"),
    "noise of 0, as a parameter": (lambda m, e, s, b: ep.Parameters(noise=0), "noise"),
    "a ratio of two families": (lambda m, e, s, b: ep.ratio(GAUSSIAN, ep.Gamma(1.0, 1.0)), "belief, incoming"),
    "labels of 2": (lambda m, e, s, b: ep.logistic_regression(X, np.full(20, 2)), "y"),
    "features, none": (lambda m, e, s, b: ep.Learner(num_outer=0), "num_outer"),
    # files
    "a file that is none": (lambda m, e, s, b: kbp.load("nowhere.kbp"), "path"),
    "a function in a file": (lambda m, e, s, b: kbp.save("kept.kbp", len), "value"),
    # operators
    "pairs with an end missing": (
        lambda m, e, s, b: kbp.learning.embedding.conditional_operator(
            jnp.sin, jnp.cos, jnp.ones((3, 1)), jnp.ones((5, 1)), 0.1
        ),
        "x_given, x_target",
    ),
}


def test_the_table_is_long():
    assert len(MISTAKES) >= 40


def tell():
    """Make every mistake, and print what was raised: {mistake: (error, text)}."""
    known, said = right(), {}
    for name, (call, _) in MISTAKES.items():
        try:
            call(*known)
        except Exception as error:
            said[name] = type(error).__name__, str(error)
    print(json.dumps(said))


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Make the mistakes as a user does: without the checks of shapes that tests have."""
    folder = tmp_path_factory.mktemp("mistakes")
    code = f"import os; from tests.test_bad_inputs import tell; os.chdir({str(folder)!r}); tell()"
    outcome = python("-W", "error", "-c", code, **SHORT)
    assert outcome.returncode == 0, outcome.stderr
    assert not list(folder.iterdir())
    return json.loads(outcome.stdout)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_raises_the_documented_error(name, said):
    error, text = said[name]
    assert error == "ValueError"
    assert MISTAKES[name][1] in text and "; got " in text and "\n" not in text, text
    assert re.match(r"^.{1,60}: .*must ", text) and text.endswith((".", ")", "]", "?")), text  # argument, rule, fix


@pytest.fixture(scope="module")
def known():
    return right()


EDGES = st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), max_size=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(edges=EDGES, num_nodes=st.integers(-1, 6))
def test_any_edges_make_a_graph_or_an_error(edges, num_nodes):
    try:
        graph = kbp.Graph.from_edges(edges, num_nodes)
    except ValueError as error:
        wrong = num_nodes < 1 or len({frozenset(e) for e in edges}) < len(edges)
        wrong |= any(a == b or not (0 <= a < num_nodes and 0 <= b < num_nodes) for a, b in edges)
        fine = wrong and "must" in str(error)
    else:
        fine = graph.num_edges == 2 * len(edges) and bool((graph.senders[graph.reverse] == graph.receivers).all())
    assert fine


NUMBERS = st.floats(-1e30, 1e30) | st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e-30])


@pytest.mark.filterwarnings("ignore:y. .* far from all training observations")
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seen=st.lists(NUMBERS, min_size=4, max_size=4), mask=st.lists(st.booleans(), min_size=4, max_size=4))
def test_any_observation_gives_finite_answers_or_an_error(known, seen, mask):
    model = known[0]
    try:
        evidence = kbp.observe(model, CHAIN, np.array(seen), mask=np.array(mask))
    except ValueError:
        evidence = None
    assert (evidence is None) == (not np.isfinite(np.array(seen)[mask]).all())
    belief = kbp.beliefs(model, CHAIN, evidence, kbp.run_tree(model, CHAIN, evidence), POINTS)
    assert np.isfinite(kbp.mean(belief)).all() and np.allclose(belief.weights.sum(axis=1), 1)


MESSAGES = jax.jit(lambda a, b, m, v: (ep.Beta(a, b), ep.Gaussian.from_moments(m, v)))
"""Messages whose parameters are not checked, as those of compiled code."""


@settings(max_examples=25, deadline=None, derandomize=True)
@given(a=NUMBERS, b=NUMBERS, m=NUMBERS, v=NUMBERS)
def test_any_message_gives_a_belief_or_says_nothing(a, b, m, v):
    belief = ep.LogisticToZ()(MESSAGES(a, b, m, v))
    assert not bool(belief.proper) or bool(jnp.isfinite(belief.mean))
