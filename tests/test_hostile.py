"""Hostile arguments, each once found to give a wrong answer, NaN, a hang or a raw error, are refused by name."""

import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import ep, features
from kbpjax.baselines import density, discrete, gaussian, pairwise, particle
from kbpjax.learning import embedding
from kbpjax.tuning import scores
from tests.refusals import not_refused

GRAPH = kbp.chain_graph(3)
X = np.linspace(-1, 1, 24).reshape(8, 3)
DATA = kbp.pool(GRAPH, X, observations=X)
RBF, RULE = kbp.RBF(0.5), kbp.ConstantTime(max_rank=5)
FIT = kbp.ConstantTime(max_rank=5, eps=0.1)
POINTS = np.linspace(-1, 1, 5)
EYE = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
BELIEF = kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.array([[0.25, 0.5, 0.25]]))
SINGLE = kbp.Belief(*(array.astype(jnp.float32) for array in (BELIEF.points, BELIEF.weights)))
MASKED = np.ma.array([0.1, 999.0, 0.3], mask=[False, True, False])
RAGGED = [[1.0, 2.0], [1.0]]


@pytest.fixture(scope="module")
def model():
    return kbp.fit(DATA, kernel=RBF, obs_kernel=RBF, rule=RULE)


@pytest.fixture(scope="module")
def solution(model):
    return kbp.run(model, GRAPH, num_iters=2)


def single(function):
    """Run in single precision, as users do."""

    def call():
        with jax.enable_x64(False):
            return function()

    return call


def test_missing_values_are_not_read(model, solution):
    """A4: what a NumPy masked array hides is missing, or refused."""
    samples = np.ma.array(X, mask=X > 0.9)
    assert kbp.pool(GRAPH, samples.filled(999.0), mask=~samples.mask).nodes[0].max() < 1
    assert kbp.pool(GRAPH, samples).nodes[0].max() < 1
    assert kbp.observe(model, GRAPH, MASKED).observed.tolist() == [[True, False, True]]
    calls = {
        "clamp": (lambda: kbp.clamp(model, GRAPH, [0, 1, 2], MASKED), "values: must have no masked entries; got 1"),
        "points": (lambda: kbp.beliefs(model, GRAPH, None, solution, MASKED), "points: must have no masked"),
        "log_density": (lambda: kbp.log_density(BELIEF, MASKED[1:2]), "x: must have no masked"),
        "parzen": (lambda: kbp.Parzen(kbp.RBF(1.0), MASKED), "samples: must have no masked"),
        "gram": (lambda: kbp.gram(kbp.RBF(1.0), MASKED, POINTS), "x: must have no masked"),
    }
    assert not not_refused(calls)


def test_values_beyond_the_precision_are_refused(model, solution):
    """B1 to B4: finiteness is checked after the cast."""
    beyond = r"must be finite in float32, up to 3\.4e38; got values up to 1e\+39"
    factors = np.ones((3, 2))
    calls = {
        "points": (
            single(lambda: kbp.beliefs(model, GRAPH, None, solution, np.array([0.0, 1e39]))),
            f"points: {beyond}",
        ),
        "pool": (single(lambda: kbp.pool(GRAPH, X * 1e39)), "samples: must be finite, or NaN where missing"),
        "data": (single(lambda: kbp.TrainingData({}, {0: [1e39, 1.0]})), r"nodes\[0\]: must be finite"),
        "gram": (single(lambda: kbp.gram(kbp.RBF(1.0), np.array([1e39]), [0.0])), f"x: {beyond}"),
        "parzen": (lambda: kbp.Parzen(kbp.RBF(1.0), np.array([np.nan])), "samples: must be finite; got 1 NaN"),
        "log_density": (lambda: kbp.log_density(BELIEF, [np.nan]), "x: must be finite; got 1 NaN"),
        "factors of NaN": (lambda: kbp.run(EYE, GRAPH, factors * np.nan), "evidence: must be finite; got 6 NaN"),
        "factors of 0": (
            lambda: kbp.run_tree(EYE, GRAPH, factors * [[1], [0], [1]]),
            r"evidence: local factors must be > 0 at a point of each node; got 0 at all points of nodes \[1\]",
        ),
        "negative": (
            lambda: kbp.run(EYE, GRAPH, -factors),
            "evidence: local factors must be >= 0; got -1 as the least",
        ),
        "a little negative": (
            lambda: kbp.run(EYE, GRAPH, factors - [[0, 1.5], [0, 0], [0, 0]]),
            "evidence: local factors must be >= 0; got -0.5 as the least",
        ),
        "many factors of 0": (
            lambda: kbp.run(EYE, kbp.chain_graph(5), np.zeros((5, 2))),
            r"evidence: local factors must be > 0 at a point of each node; got 0 at all points of nodes \[0, 1, 2\]\.",
        ),
        "many exponents": (
            lambda: kbp.run(EYE, kbp.chain_graph(6), exponents=[-1.0, -2, 1, -3, -4]),
            r"exponents: must be > 0 and finite; got \[-1.0, -2.0, -3.0\]\.",
        ),
        "temperature": (single(lambda: kbp.temper(SINGLE, 1e-50)), "temperature: must be finite and >= 1.1"),
        "power": (lambda: kbp.observe(model, GRAPH, X[0]) ** 1e-320, "power: must be finite and >= 2.2"),
        "ridge": (
            single(lambda: kbp.fit(DATA, kernel=RBF, obs_kernel=RBF, ridge=1e39)),
            "ridge: must be finite in float32",
        ),
    }
    assert not not_refused(calls)
    cold = kbp.temper(kbp.Belief(jnp.arange(3.0), jnp.array([[1e-3, 2e-3, 1e-3]])), 1e-300)
    assert cold.weights.tolist() == [[0.0, 1.0, 0.0]]


def test_sizes_that_take_all_memory_are_refused():
    """C1 and D4."""
    calls = {
        "iterations": (lambda: kbp.run(EYE, GRAPH, num_iters=10**10), "num_iters: must be an integer >= 1 and < 2.31"),
        "residuals": (
            lambda: discrete.run(discrete.fit(DATA, POINTS), GRAPH, num_iters=2**31 - 1),
            "num_iters: the residuals of all iterations must fit in half of|num_iters: must be",
        ),
        "edge type": (
            lambda: kbp.chain_graph(3, edge_type=[0, 2**40]),
            "edge_type: must be numbered from 0; got 10995",
        ),
        "node type": (
            lambda: kbp.chain_graph(3, node_type=[0, 1, 10**8]),
            "node_type: must be numbered from 0; got 10",
        ),
        "keys": (lambda: kbp.TrainingData({}, {10**8: X[0]}), "nodes: must be numbered from 0; got 100000000, for wh"),
    }
    assert not not_refused(calls)


def test_half_precision_and_foreign_byte_order_are_read():
    """D5: as floats of 32 bits, and in the order of this machine."""
    expected = kbp.fit(kbp.pool(GRAPH, X), kernel=RBF, rule=FIT).marginals[0]
    for kind in ("f2", ">f8", ">f4", jnp.bfloat16):
        data = kbp.pool(GRAPH, X.astype(kind))
        assert data.nodes[0].dtype == (jnp.float64 if kind == ">f8" else jnp.float32)
        marginal = kbp.fit(data, kernel=RBF, rule=FIT).marginals[0]
        assert marginal.shape == expected.shape and bool(jnp.isfinite(marginal).all())


def test_objects_of_other_kinds_are_refused_by_name(model, solution):
    """D6, D7, D10."""
    local = np.ones((3, 2))
    calls = {
        "fit None": (lambda: kbp.fit(None), "data: must be a TrainingData; got None"),
        "fit array": (lambda: kbp.fit(X), r"data: must be a TrainingData; got an array float64\[8,3\]"),
        "fit graph": (lambda: kbp.fit(GRAPH), "data: must be a TrainingData; got a Graph"),
        "swapped": (
            lambda: kbp.observe(GRAPH, model, X[0]),
            "model: must be a KernelMRF; got a Graph. It fits graph: are",
        ),
        "likelihood": (lambda: kbp.likelihood(GRAPH, model, jnp.cos), "model: must be a Model; got a Graph"),
        "clamp": (lambda: kbp.clamp(None, GRAPH, [0], [0.1]), "model: must be a KernelMRF; got None"),
        "pool": (lambda: kbp.pool(None, X), "graph: must be a Graph or a sequence, each a Graph; got None"),
        "pool list": (lambda: kbp.pool([GRAPH, model], [X, X]), r"graph\[1\]: must be a Graph; got a KernelMRF"),
        "solution": (lambda: kbp.beliefs(model, GRAPH, None, None, POINTS), "solution: must be a Solution; got None"),
        "evidence": (
            lambda: kbp.beliefs(model, GRAPH, local, solution, POINTS),
            "evidence: must be an Evidence or None",
        ),
        "mean": (lambda: kbp.mean(None), "belief: must be a Belief; got None"),
        "mode": (lambda: kbp.mode({0: None}), r"belief\[0\]: must be a Belief; got None"),
        "check": (lambda: kbp.check(None), "solution: must be a Solution or a Posterior; got None"),
        "log_partition": (lambda: kbp.log_partition(EYE, GRAPH, None, None), "solution: must be a Solution; got None"),
        "tree_reweighting": (lambda: kbp.tree_reweighting(None), "graph: must be a Graph; got None"),
        "colored": (lambda: kbp.colored(None), "graph: must be a Graph; got None"),
        "run None": (lambda: kbp.run(None, GRAPH), "model: must be a KernelMRF or Operators|model: must be an? "),
        "run half a model": (
            lambda: inspect.unwrap(kbp.run)(types.SimpleNamespace(operators=EYE), GRAPH),
            "model: must be a KernelMRF or Operators; got SimpleNamespace",
        ),
        "step": (
            lambda: kbp.run(EYE, GRAPH, local, schedule=None),
            "schedule: must be a Schedule; got None",
        ),
        "expectation": (lambda: kbp.expectation(BELIEF, None), "fn: must be a function or"),
        "gram": (lambda: kbp.gram(None, X, X), "kernel: must be a Kernel; got None"),
        "gram words": (lambda: kbp.gram(kbp.RBF(1.0), ["a"], ["b"]), "x: must hold real numbers; got dtype <U1"),
        "gram scalars": (lambda: kbp.gram(kbp.RBF(1.0), 1.0, 2.0), r"x: must have shape \[point, \*dim\]"),
        "partition": (lambda: kbp.sharded.partition_graph(None, 1), "graph: must be a Graph; got None"),
        "plot": (lambda: kbp.plotting.plot_belief(None, 0), "belief: must be a Belief or a Posterior; got None"),
        "likelihood None": (lambda: kbp.likelihood(model, GRAPH, {0: None}), r"fn.*: must be a function"),
        "likelihood text": (lambda: kbp.likelihood(model, GRAPH, lambda x: "a"), "fn: must hold real numbers"),
        "complex": (
            lambda: kbp.likelihood(model, GRAPH, lambda x: jnp.ones((3, len(x)), complex)),
            "fn: must hold real numb",
        ),
        "edges": (lambda: kbp.TrainingData(None, {0: X[0]}), "edges: must be"),
        "degrees": (lambda: kbp.TrainingData({}, {0: X[0]}, degrees={0: "x"}), r"degrees\[0\]: must be an integer"),
        "degrees list": (
            lambda: kbp.TrainingData({}, {0: X[0]}, degrees=[2]),
            "degrees: must be {integer: an integer}",
        ),
        "ragged edges": (
            lambda: kbp.Graph.from_edges([[0, 1], [1]], 3),
            "edges: must be rectangular numbers; got list of",
        ),
        "ragged points": (
            lambda: kbp.beliefs(model, GRAPH, None, solution, RAGGED),
            "points: must be rectangular numbers",
        ),
        "ragged y": (
            lambda: kbp.observe(model, GRAPH, [[1.0], [1.0, 2.0], 3]),
            "y: must be rectangular numbers; got list",
        ),
        "ragged values": (lambda: kbp.clamp(model, GRAPH, [0, 1], RAGGED), "values: must be rectangular numbers"),
        "None in values of a type": (
            lambda: kbp.clamp(model, GRAPH, None, {0: np.array([0.1, None, 0.2], object)}),
            r"values\[0\]: must be rectangular numbers; got ndarray of dtype object with None. Pass an array of floats",
        ),
        "None in values of nodes": (
            lambda: kbp.clamp(model, GRAPH, [0], {0: [None]}),
            r"values\[0\]: must be rectangular numbers; got list of dtype object with None",
        ),
        "words": (lambda: kbp.clamp(model, GRAPH, "ab", [0.1]), "nodes: must be an array or None; got 'ab'"),
        "start": (lambda: kbp.run(EYE, GRAPH, start="zero"), "start: must be a Solution, an array or None; got 'zero'"),
        "exponents": (lambda: kbp.run(EYE, GRAPH, exponents="one"), "exponents: must be an array or None; got 'one'"),
        "huge node": (lambda: kbp.clamp(model, GRAPH, [2**70], [0.1]), "nodes: must be"),
        "tune": (
            lambda: kbp.tune(kbp.Hyperparameters(kbp.RBF(1.0)), DATA, GRAPH, X, X, POINTS, loss=None),
            "loss: must be a function; got None",
        ),
        "validation": (
            lambda: kbp.tune(kbp.Hyperparameters(kbp.RBF(1.0)), DATA, GRAPH, X, X, POINTS, validation=5),
            "validation: must be a tuple of 2 or None; got 5",
        ),
        "select": (lambda: kbp.select(None, DATA), "hyperparameters: must be a Hyperparameters; got None"),
        "median": (lambda: kbp.median_hyperparameters(None), "data: must be a TrainingData; got None"),
        "fix_landmarks": (
            lambda: kbp.fix_landmarks(None, kernel=kbp.RBF(1.0)),
            "data: must be a TrainingData; got None",
        ),
        "hyperparameters": (lambda: kbp.Hyperparameters(kbp.RBF(1.0), ridge="a"), "ridge: must be"),
        "gaussian": (lambda: gaussian.run(None, GRAPH), "model: must be a GaussianMRF or a GaussianTemplate; got None"),
        "walk": (
            lambda: gaussian.walk_summability(EYE, None),
            "model: must be a GaussianMRF or a Gaussian|graph: must",
        ),
        "membrane": (lambda: gaussian.thin_membrane(None, edge_precision=1.0), "graph: must be a Graph; got None"),
        "template": (lambda: gaussian.fit(None), "data: must be a TrainingData; got None"),
        "states": (lambda: discrete.fit(None), "data: must be a TrainingData; got None"),
        "particles": (lambda: particle.mean(None), "solution: must be a ParticleSolution; got None"),
        "pairwise": (lambda: pairwise.fit(None, DATA), "key: must be a random key; got None"),
    }
    assert not not_refused(calls)


def test_traced_values_that_must_be_known_are_named():
    """D8, and values that a function reads."""
    ends = jnp.array([[0, 1]])
    calls = {
        "from_edges": (
            lambda: jax.jit(lambda e: kbp.Graph.from_edges(e, 2))(ends),
            "edges: must be known; got a traced",
        ),
        "pool": (
            lambda: jax.jit(lambda g: kbp.pool(g, X))(GRAPH),
            "graph: must be known; got a traced array. Call kbpj",
        ),
        "save": (
            lambda: jax.jit(lambda x: kbp.save("never.kbp", x))(ends),
            "value: must be an array with values",
        ),
        "networkx": (lambda: jax.jit(lambda g: len(g.to_networkx()))(GRAPH), ".*must be known"),
    }
    assert not not_refused(calls)
    both = jax.jit(lambda a: kbp.log_density(BELIEF, [a]))(1.0)
    assert np.allclose(both, kbp.log_density(BELIEF, [1.0]))
    with pytest.raises(jax.errors.TracerBoolConversionError):  # the function of a user, whose error it is
        jax.jit(lambda b: kbp.expectation(b, lambda x: x if x > 0 else -x))(BELIEF)


def test_what_was_accepted_without_a_word_is_refused(model, solution):
    """E1 and E4."""
    kernel, data = kbp.RBF(1.0), np.arange(1000.0)
    calls = {
        "eps": (lambda: kbp.ConstantTime(eps=1.5), "eps: must be finite and > 0 and < 1; got 1.5"),
        "a rank as eps": (lambda: kbp.ConstantTime(64), "eps: must be finite and > 0 and < 1; got 64"),
        "tensor_eps": (lambda: kbp.ConstantTime(tensor_eps=2.0), "tensor_eps: must be finite and > 0 and < 1; got 2"),
        "degrees": (
            lambda: kbp.TrainingData({}, {0: X[0]}, degrees={0: 2.5}),
            r"degrees\[0\]: must be an integer; got 2.5",
        ),
        "True": (lambda: kbp.TrainingData({}, {True: X[0]}), "nodes: must have integers >= 0 as keys"),
        "kernel": (
            lambda: kbp.fit(DATA, kernel={0: kernel, 5: kernel}, obs_kernel=kernel),
            "kernel: must be a kernel, or one kernel per node",
        ),
        "points": (
            lambda: kbp.beliefs(model, GRAPH, None, solution, {0: POINTS, 9: POINTS}),
            r"points: must have node types among \[0\] as keys; got \[9\]",
        ),
        "Sum": (lambda: kbp.kernels.Sum(kernel, None), "right: must be a Kernel; got None"),
        "Normalized": (lambda: kbp.kernels.Normalized(None), "base: must be a Kernel; got None"),
        "a class": (
            lambda: kbp.kernels.Normalized(kbp.RBF),
            "base: must be a Kernel; got the class RBF. Pass an object",
        ),
        "Part of None": (lambda: kbp.kernels.Part(None, 0, 1), "base: must be a Kernel; got None"),
        "half": (lambda: kbp.kernels.Part(kernel, 0.5, 1), "start: must be an integer; got 0.5"),
        "ARD": (lambda: kbp.kernels.ARD([]), "bandwidths: must hold a number"),
        "negative node": (lambda: kbp.plotting.plot_belief(BELIEF, -1), "node: must be"),
        "long": (
            lambda: kbp.TrainingData({0: [(data, data)]}, {0: data}),
            r"edges\[0\]: must have 2 items; got 1. Pass",
        ),
    }
    assert not not_refused(calls)


def test_what_the_fuzzer_of_calls_found_is_refused(model, solution):
    belief = kbp.beliefs(model, GRAPH, None, solution, POINTS)
    x, basis = jnp.linspace(0, 1, 6), features.cholesky_basis(RBF, jnp.array([0.0, 0.5, 1.0]))
    densities = pairwise.fit(jax.random.key(0), DATA, num_centers=4, widths=[0.5], ridges=[0.1])
    chunks = kbp.chunked({0: (X[:, 0], X[:, 1])}, {0: X[:, 0]}, size=4)
    stream = {"kernel": RBF, "rule": RULE, "reservoir": 8}
    calls = {
        "ridge": (lambda: kbp.Hyperparameters(RBF, ridge=np.inf), "ridge: must be finite; got inf. Pass a finite"),
        "ridges": (lambda: kbp.Hyperparameters(RBF, obs_ridge={1: np.nan}), r"obs_ridge\[1\]: must be finite; got nan"),
        "vectors": (lambda: kbp.kernels.unit_vectors([np.inf, 1.0]), "x: must be finite"),
        "long vectors": (
            single(lambda: kbp.kernels.unit_vectors([1e30, 1.0])),
            "x: must have norms that are finite in float32; got inf",
        ),
        "bound": (single(lambda: embedding.error_bound(1e-3, 1e-30)), "eps, ridge: must give a bound that is finite"),
        "given": (
            lambda: embedding.conditional_operator(int, basis, x, x, 0.1),
            "given: must be a function; got the class int",
        ),
        "target": (
            lambda: scores.leave_one_out(basis, int, x, x, 0.1),
            "target: must be a function; got the class",
        ),
        "points": (lambda: RBF(jnp.zeros(2), jnp.zeros(0)), r"x, y: must be two points of one shape; got .*\(0,\)"),
        "progress": (lambda: kbp.fit_chunks(chunks, **stream, progress=int), "progress: must be a function of an iter"),
        "text": (lambda: kbp.sharded.shard_batch({"a": np.array(["b"])}, 1), "batch: must be arrays of numbers; got"),
        "hidden": (lambda: kbp.sharded.shard_batch(np.ma.array([1.0], mask=[True]), 1), "batch: must have no masked"),
        "dtype": (lambda: discrete.Indicators(x, int), "dtype: must be a floating dtype; got <class 'int'>"),
        "dtype None": (lambda: discrete.Indicators(x, None), "dtype: must be a floating dtype; got None"),
        "potentials": (
            lambda: pairwise.PairwiseMRF(densities.edges, densities.edges),
            "nodes: must be a NodePotential",
        ),
        "squares": (single(lambda: density.fit_parzen([0.0, 1e30])), "x: must be within 1.3e.19, so that squares do"),
        "regression": (
            single(lambda: ep.NegativeLogEvidence()(jnp.full((3, 1), 1e30), jnp.ones(3), jnp.array(0.1))),
            "phi: must be within",
        ),
        "samples": (
            lambda: kbp.plotting.plot_landmarks(model, samples=[0.0, np.inf]),
            "samples: must be finite; got 1",
        ),
        "indefinite": (
            lambda: embedding.ridge_solve(-jnp.eye(2), jnp.ones((2, 1)), 0.1),
            "covariance: must be positive",
        ),
        "rows": (lambda: embedding.ridge_solve(jnp.eye(3), jnp.ones((2, 1)), 0.1), "covariance, cross: must have shap"),
        "no points": (
            lambda: embedding.operator_error(RBF, RBF, basis, basis, x[:0], x, 0.1),
            "x_given, x_target: must have the same number of points",
        ),
        "masked nodes": (
            lambda: kbp.clamp(model, GRAPH, np.ma.array([0, 1], mask=[False, True]), [0.1, 0.2]),
            "nodes: must have no masked entries",
        ),
        "text of fn": (lambda: kbp.expectation(BELIEF, lambda x: "text"), "fn: must hold real numbers; got dtype <U4"),
        "text of score": (
            lambda: kbp.select(kbp.Hyperparameters(RBF, RBF, rule=RULE), DATA, score=lambda *_: "text", steps=1),
            "score: must hold real numbers",
        ),
        "weights": (
            lambda: jax.tree.map(lambda a: a[0], densities.edges).log_message(x[:, None], x[:, None], x[1:]),
            "log_weights: must be 6 numbers",
        ),
        "few data": (lambda: kbp.choose_hyperparameters(DATA, obs_ridge=np.inf), "obs_ridge: must be finite and >= 0"),
        "text of a type": (lambda: kbp.chunked({}, {0: "text"}), "nodes: must hold arrays; got none for the types"),
        "masked similarities": (
            lambda: kbp.kernels.nearest_gram(np.ma.array(np.eye(2), mask=np.eye(2))),
            "matrix: must have no masked entries",
        ),
        "no edges": (lambda: kbp.kernels.encode_graphs([[[0, 0], 2.0]]), r"graphs\[0\]: must have edges \[edge, 2\]"),
        "text of retract": (
            lambda: kbp.refine_mode(
                kbp.Posterior.of(model, GRAPH, None, solution, belief.points), retract=lambda x: "text"
            ),
            "retract: must hold real numbers; got dtype <U4",
        ),
        "period": (lambda: kbp.circular_mean(BELIEF, 1e-310), "period: must be finite and >= "),
        "widths": (single(lambda: ep.grid_candidates([1e300])), "width_scales: must be finite in float32"),
    }
    assert not not_refused(calls)
    foreign = kbp.clamp(model, GRAPH, np.array([1], ">i8"), [0.1]).clamped
    assert foreign.tolist() == [False, True, False]
    assert kbp.sharded.shard_batch(np.ma.array([1.0]), 1).tolist() == [1.0]
    assert kbp.sharded.shard_batch([np.array([np.nan]), jax.random.split(jax.random.key(0), 2)], 1)[0].shape == (1,)
