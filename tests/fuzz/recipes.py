"""One right call of every public function and class; the fuzzer makes one argument at a time wrong.

`RECIPES` maps names of the reference (`.ci/docs_reference.py`), "." and methods to functions that return the callable
and its arguments. A name may end in "/" and a variant. `NOT_CALLED` says why a name has no recipe.
"""

import functools
import inspect
import os
import tempfile

import jax
import jax.numpy as jnp
import networkx
import numpy as np

import kbpjax as kbp
from kbpjax import ep, estimator, features, kernels, plotting, series, sharded
from kbpjax.baselines import (
    density,
    discrete,
    elimination,
    expectation_particle,
    gaussian,
    mixtures,
    nonparametric,
    pairwise,
    particle,
    products,
    transfer_evidence,
)
from kbpjax.graphs.spanning_trees import tree_reweighting
from kbpjax.learning import embedding
from kbpjax.tuning import scores

RNG = np.random.default_rng(0)
GRAPH = kbp.chain_graph(3)
X = (0.7 * RNG.standard_normal((20, 1)) + 0.3 * RNG.standard_normal((20, 3))).astype(np.float32)
Y = (X + 0.2 * RNG.standard_normal(X.shape)).astype(np.float32)
POINTS = np.linspace(-2, 2, 9, dtype=np.float32)
RULE = kbp.ConstantTime(2e-2, 6)
TABLES = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
LOCAL = np.array([[4.0, 1.0], [1.0, 1.0], [1.0, 1.0]], np.float32)
KEY = jax.random.key(0)
FOLDER = tempfile.mkdtemp()
WEIGHTS = np.array([[0.25, 0.5, 0.25], [0.6, 0.4, 0.0]], np.float32)
PLANE = np.array([[0.0, 5.0], [1.0, 5.0], [0.0, 6.0]], np.float32)

RECIPES = {}


def arguments_of(function, *values, **options):
    """Return a callable and {argument: value}, with the default values of arguments that are not given."""
    signature = inspect.signature(function)
    bound = signature.bind(*values, **options)
    bound.apply_defaults()
    given = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            given |= value
        else:
            given[name] = value
    return function, given


def recipe(name, find, *values, **options):
    """Add a call; values may be functions of no arguments without a name, which are called when needed."""

    def make():
        function = find() if is_late(find) else find
        ready = [value() if is_late(value) else value for value in values]
        return arguments_of(function, *ready, **{k: v() if is_late(v) else v for k, v in options.items()})

    RECIPES[name] = make


class Late:
    """A value that is computed when first needed."""

    def __init__(self, make):
        self.make = functools.cache(make)

    def __call__(self):
        return self.make()


def is_late(value):
    return isinstance(value, Late)


# --- shared values ----------------------------------------------------------------------------------------------------

data = Late(lambda: kbp.pool(GRAPH, X, Y))
model = Late(
    lambda: kbp.fit(data(), kernel=kbp.RBF(0.7), obs_kernel=kbp.RBF(0.7), rule=RULE, ridge=1e-2, obs_ridge=1e-2)
)
evidence = Late(lambda: kbp.observe(model(), GRAPH, Y[0]))
solution = Late(lambda: kbp.run(model(), GRAPH, evidence(), num_iters=4))
belief = Late(lambda: kbp.Belief(jnp.array([0.0, 1.0, 2.0]), jnp.asarray(WEIGHTS)))
belief_of_model = Late(lambda: kbp.beliefs(model(), GRAPH, evidence(), solution(), POINTS))
plane = Late(lambda: kbp.Belief(jnp.asarray(PLANE), jnp.asarray(WEIGHTS)))
tables_solution = Late(lambda: kbp.run(TABLES, GRAPH, LOCAL, num_iters=4))
start = Late(lambda: kbp.Hyperparameters(kbp.RBF(0.7), kbp.RBF(0.7), ridge=1e-2, rule=RULE, num_iters=3))
basis = Late(lambda: features.cholesky_basis(kbp.RBF(1.0), jnp.array([0.0, 1.0, 2.0])))
partition = Late(lambda: sharded.partition_graph(GRAPH, 1))
numbers = Late(lambda: discrete.fit(data(), [-1.0, 0.0, 1.0]))
membrane = Late(lambda: gaussian.thin_membrane(GRAPH, edge_precision=1.0, prior_precision=1.0))
template = Late(lambda: gaussian.fit(data()))
noisy = Late(lambda: gaussian.likelihood(membrane(), GRAPH, np.array([0.1, 0.2, 0.3]), noise=0.5))
of_template = Late(lambda: gaussian.observe(template(), GRAPH, Y[0]))
densities = Late(lambda: pairwise.fit(KEY, data(), num_centers=6, widths=[0.5], ridges=[0.1], marginal_widths=[0.5]))
particles = Late(lambda: particle.run(densities(), GRAPH, key=KEY, num_particles=5, num_iters=2))
mixed = Late(
    lambda: nonparametric.run(
        densities(), GRAPH, key=KEY, num_components=4, num_iters=2, sampler=nonparametric.GibbsSampler(1)
    )
)
mixture = Late(lambda: mixtures.GaussianMixture(jnp.array([0.5, 0.5]), jnp.array([[-2.0], [2.0]]), jnp.ones(1)))
two = Late(
    lambda: jax.vmap(mixtures.GaussianMixture)(jnp.ones((2, 1)), jnp.array([[[0.0]], [[2.0]]]), jnp.ones((2, 1)))
)
conditional = Late(
    lambda: density.ConditionalDensity(
        jnp.array([0.5, 0.5]), jnp.array([[0.0], [9.0]]), jnp.array([[1.0], [5.0]]), jnp.ones(1), jnp.ones(1)
    )
)
regression = Late(lambda: density.RegressionLikelihood(*map(jnp.array, ([[1.0]], [2.0], [[0.0]], [1.0], [1.0]))))
few = Late(lambda: ep.Learner(num_inner=20, num_outer=20))
incoming = Late(lambda: (ep.Beta(jnp.full(30, 2.0), jnp.ones(30)), ep.Gaussian(jnp.ones(30), jnp.linspace(-3, 3, 30))))
truth = Late(lambda: ep.logistic_integrals(*incoming()).z)
operator = Late(lambda: ep.learn(KEY, incoming(), truth(), variable=1, learner=few()))
regressed = Late(lambda: ep.logistic_regression(jax.random.normal(KEY, (10, 2)), np.arange(10) % 2, num_sweeps=3))
saved = Late(lambda: (kbp.save(os.path.join(FOLDER, "kernel.kbp"), kbp.RBF(2.0)), FOLDER + "/kernel.kbp")[1])
strings = Late(lambda: kernels.Alphabet("ACGT").encode(["GATTACA", "CAT"]))
DISTRIBUTIONS = np.array([[[0.3], [0.5]], [[-0.2], [1.1]], [[0.9], [0.7]]], np.float32)
SPHERE = np.eye(3, dtype=np.float32)
TURNS = np.stack([np.eye(3), np.diag([1.0, -1.0, -1.0])]).astype(np.float32)
RANKINGS = np.array([[0, 1, 2], [0, 2, 1]])
SETS = np.array([[1, 1, 0, 0], [0, 1, 1, 1]])
PATH, TRIANGLE = ([0, 0, 0], [[0, 1], [1, 2]]), ([0, 0, 0], [[0, 1], [1, 2], [2, 0]])
LIKELIHOOD = lambda x: jnp.exp(-((jnp.asarray(Y[0])[:, None] - x[None]) ** 2))


# --- graphs and data --------------------------------------------------------------------------------------------------

recipe(
    "Graph.from_edges",
    kbp.Graph.from_edges,
    np.array([[0, 1], [1, 2]]),
    3,
    edge_type=[0, 1],
    node_type=[0, 0, 0],
    edge_features=[0.5, 1.5],
)
recipe("Graph.from_networkx", kbp.Graph.from_networkx, networkx.path_graph(3))
recipe("Graph.networkx_types", kbp.Graph.networkx_types, networkx.path_graph(3))
recipe("Graph.to_networkx", GRAPH.to_networkx)
recipe("Graph.nodes_of_type", GRAPH.nodes_of_type, 0)
recipe("Graph.subgraph", GRAPH.subgraph, np.array([0, 1]))
recipe("Graph.with_edge_types", GRAPH.with_edge_types, np.arange(GRAPH.num_edges // 2))
recipe("grid_graph", kbp.grid_graph, 2, 3)
recipe("chain_graph", kbp.chain_graph, 3, edge_type=[0, 0], node_type=[0, 0, 0], edge_features=[0.5, 1.5])
recipe("neighbor_graph", kbp.neighbor_graph, np.array([[0.0, 1.0], [2.0, 0.5], [1.0, 1.0]]), 1, node_type=[0, 0, 0])
NUMBERS = np.random.default_rng(3).normal(size=(40, 3))
recipe("choose_edges", kbp.choose_edges, NUMBERS, start=GRAPH, most=2, progress=False)
recipe("windows", kbp.windows, X[0], (3,), 1)
recipe("grid_symmetries", kbp.grid_symmetries, (2, 3))
recipe("window_orbits", kbp.window_orbits, 1, 2)
recipe(
    "TrainingData",
    kbp.TrainingData,
    {0: (X[:, 0], X[:, 1])},
    {0: X[:, 0]},
    {0: (X[:, 0], Y[:, 0])},
    ends={0: (0, 0)},
    degrees={0: 2},
)
recipe("TrainingData.points", Late(lambda: data().points), 0)
recipe("pool", kbp.pool, GRAPH, X, Y, mask=np.ones((20, 3), bool), observation_mask=np.ones((20, 3), bool))
recipe("chunked", kbp.chunked, {0: (X[:, 0], X[:, 1])}, {0: X[:, 0]}, {0: (X[:, 0], Y[:, 0])}, size=8)

# --- kernels ----------------------------------------------------------------------------------------------------------

RBF = kbp.RBF(1.0)
VECTORS = np.array([[0.0, 1.0], [2.0, 0.5]], np.float32)
recipe("Kernel.__call__", RBF.__call__, jnp.zeros(2), jnp.ones(2))
recipe("Kernel.check", RBF.check, "points", jnp.ones(3))
recipe("Kernel.__add__", RBF.__add__, RBF)
recipe("Kernel.__mul__", RBF.__mul__, RBF)
recipe("Kernel.__pow__", RBF.__pow__, 2)
recipe("kernels.Sum", kernels.Sum, RBF, RBF)
recipe("kernels.Constant", kernels.Constant, 1.0)
recipe("kernels.Product", kernels.Product, RBF, RBF)
recipe("kernels.Power", kernels.Power, RBF, 2)
recipe("kernels.Scaled", kernels.Scaled, RBF, 0.5)
recipe("kernels.Normalized", kernels.Normalized, RBF)
recipe("kernels.Transformed", kernels.Transformed, jnp.sin, RBF)
recipe("kernels.Part", kernels.Part, RBF, 0, 2, (2,))
recipe("kernels.diagonal", kernels.diagonal, RBF, VECTORS)
recipe("RBF", kbp.RBF, 1.0)
recipe("kernels.ARD", kernels.ARD, [1.0, 2.0], [0, 1, 0])
recipe("kernels.Laplace", kernels.Laplace, 1.0)
recipe("kernels.Matern", kernels.Matern, 1.0, 1.5)
recipe("kernels.RationalQuadratic", kernels.RationalQuadratic, 1.0, 0.5)
recipe("kernels.Periodic", kernels.Periodic, 24.0, 1.0)
recipe("kernels.Periodic.with_bandwidth", kernels.Periodic(24.0).with_bandwidth, 0.5)
recipe("Linear", kbp.Linear)
recipe("kernels.Polynomial", kernels.Polynomial, 2, 1.0)
recipe("kernels.RandomProjection", kernels.RandomProjection, 5, 2)
recipe("kernels.Projected", kernels.Projected, [[1.0, -1.0]], kbp.RBF(1.0))
recipe("median_bandwidth", kbp.median_bandwidth, VECTORS, max_points=10)
recipe("Delta", kbp.Delta)
recipe("kernels.Jaccard", kernels.Jaccard)
recipe("kernels.Kendall", kernels.Kendall)
recipe("kernels.Mallows", kernels.Mallows, 3.0)
recipe("kernels.Precomputed", kernels.Precomputed, [[2.0, 1.0], [1.0, 2.0]])
recipe("kernels.nearest_gram", kernels.nearest_gram, np.array([[0.0, 1.0], [1.0, 0.0]]))
recipe("kernels.Sphere", kernels.Sphere, 2.0)
recipe("kernels.Rotations", kernels.Rotations, 1.0)
recipe("kernels.Heat", kernels.Heat, 0.5, 10)
recipe("kernels.median_concentration", kernels.median_concentration, SPHERE, max_points=10)
recipe("kernels.unit_vectors", kernels.unit_vectors, np.array([[3.0, 4.0], [1.0, 0.0]], np.float32))
recipe("kernels.nearest_rotations", kernels.nearest_rotations, 0.5 * SPHERE)
recipe("kernels.Spectrum", kernels.Spectrum, 2)
recipe("kernels.Mismatch", kernels.Mismatch, 2, 1, 4)
recipe("kernels.Subsequence", kernels.Subsequence, 2, 0.5)
recipe("kernels.LocalAlignment", kernels.LocalAlignment, 3 * np.eye(4) - 1, 1.0, 0.5, 0.5)
recipe("kernels.Alphabet", kernels.Alphabet, "ACGT")
recipe("kernels.Alphabet.of", kernels.Alphabet.of, ["cat", "car"])
recipe("kernels.Alphabet.encode", kernels.Alphabet("ACGT").encode, ["GATTACA", "CAT"], 8)
recipe("kernels.Alphabet.decode", kernels.Alphabet("ACGT").decode, strings)
recipe("kernels.mask", kernels.mask, strings)
recipe("kernels.ShortestPath", kernels.ShortestPath, 1)
recipe("kernels.WeisfeilerLehman", kernels.WeisfeilerLehman, 1)
recipe("kernels.encode_graphs", kernels.encode_graphs, [PATH, TRIANGLE], 4)
recipe("kernels.ExpectedProduct", kernels.ExpectedProduct, 0.8)
recipe("kernels.EmbeddingRBF", kernels.EmbeddingRBF, 0.9, 0.3)
recipe("kernels.MeanVariance", kernels.MeanVariance, 1.0, 1.0)
recipe("kernels.Coordinates", kernels.Coordinates, kernels.ExpectedProduct(1.0), 0, 1)
recipe("kernels.median_embedding", kernels.median_embedding, DISTRIBUTIONS, max_points=10)
recipe("kernels.median_mean_variance", kernels.median_mean_variance, DISTRIBUTIONS, max_points=10)

DOMAINS = {
    "RBF": (RBF, VECTORS),
    "ARD": (kernels.ARD([1.0, 2.0]), VECTORS),
    "tied ARD": (kernels.ARD([1.0], [0, 0]), VECTORS),
    "Laplace": (kernels.Laplace(1.0), VECTORS),
    "Matern": (kernels.Matern(1.0), VECTORS),
    "RationalQuadratic": (kernels.RationalQuadratic(1.0), VECTORS),
    "Periodic": (kernels.Periodic(24.0), VECTORS[:, 0]),
    "Linear": (kbp.Linear(), VECTORS),
    "Polynomial": (kernels.Polynomial(2), VECTORS),
    "RandomProjection": (kernels.RandomProjection(5, 2), VECTORS),
    "Projected": (kernels.Projected([[1.0, -1.0]], kbp.RBF(1.0)), VECTORS),
    "Delta": (kbp.Delta(), np.array([0, 1, 2])),
    "Jaccard": (kernels.Jaccard(), SETS),
    "Kendall": (kernels.Kendall(), RANKINGS),
    "Mallows": (kernels.Mallows(3.0), RANKINGS),
    "Precomputed": (kernels.Precomputed([[2.0, 1.0], [1.0, 2.0]]), np.array([0, 1])),
    "Sphere": (kernels.Sphere(2.0), SPHERE),
    "Rotations": (kernels.Rotations(1.0), TURNS),
    "Heat": (kernels.Heat(0.5, 10), TURNS),
    "Spectrum": (kernels.Spectrum(2), strings),
    "Mismatch": (kernels.Mismatch(2, 1, 4), strings),
    "Subsequence": (kernels.Subsequence(2, 0.5), strings),
    "LocalAlignment": (kernels.LocalAlignment(3 * np.eye(4) - 1, 1.0, 0.5, 0.5), strings),
    "ShortestPath": (kernels.ShortestPath(1), Late(lambda: kernels.encode_graphs([PATH, TRIANGLE]))),
    "WeisfeilerLehman": (kernels.WeisfeilerLehman(1), Late(lambda: kernels.encode_graphs([PATH, TRIANGLE]))),
    "ExpectedProduct": (kernels.ExpectedProduct(0.8), DISTRIBUTIONS),
    "EmbeddingRBF": (kernels.EmbeddingRBF(0.9, 0.3), DISTRIBUTIONS),
    "MeanVariance": (kernels.MeanVariance(1.0, 1.0), DISTRIBUTIONS),
    "Coordinates": (kernels.Coordinates(kernels.ExpectedProduct(1.0), 0, 1), DISTRIBUTIONS),
    "Normalized": (kernels.Normalized(kbp.Linear()), VECTORS),
    "Transformed": (kernels.Transformed(jnp.sin, RBF), VECTORS),
    "Part": (kernels.Part(RBF, 0, 1), VECTORS),
    "Sum": (0.5 * RBF + kbp.Linear() * RBF**2, VECTORS),
}
for kind, (kernel, points) in DOMAINS.items():
    recipe(f"gram/{kind}", kbp.gram, kernel, points, points)

# --- features ---------------------------------------------------------------------------------------------------------

LINE = np.linspace(0, 1, 9, dtype=np.float32)
phi = Late(lambda: features.EmbeddingFeatures.draw(KEY, 6, 1, 0.9))
recipe("PivotedCholesky", kbp.PivotedCholesky)
recipe("RandomlyPivotedCholesky", kbp.RandomlyPivotedCholesky, 1)
recipe("RandomFourier", kbp.RandomFourier, 10, 1)
recipe("features.LandmarkSelector.feature_map", kbp.PivotedCholesky().feature_map, RBF, jnp.asarray(LINE), 1e-2, 5)
recipe("features.FeatureMap.__call__", Late(lambda: basis().__call__), jnp.asarray(LINE))
recipe("features.FeatureMap.check", Late(lambda: basis().check), "points", jnp.asarray(LINE))
recipe("features.features", features.features, basis, jnp.asarray(LINE))
recipe("features.cholesky_basis", features.cholesky_basis, RBF, jnp.asarray(LINE[:3]))
recipe("features.incomplete_cholesky", features.incomplete_cholesky, RBF, jnp.asarray(LINE), 1e-2, 5, KEY)
recipe("features.represented", features.represented, basis, jnp.asarray(LINE))
recipe("features.SampleFeatures.draw", features.SampleFeatures.draw, KEY, 6, 1, 1.0)
recipe("features.EmbeddingFeatures.draw", features.EmbeddingFeatures.draw, KEY, 6, 1, 0.9)
recipe("features.MeanVarianceFeatures.draw", features.MeanVarianceFeatures.draw, KEY, 6, 1, 1.0, 0.5)
recipe("features.TwoStage.draw", features.TwoStage.draw, KEY, 6, phi, 0.5)
recipe("features.Concatenated", features.Concatenated, basis, basis)
recipe("features.Kronecker", features.Kronecker, basis, basis)
recipe("features.Restricted", features.Restricted, phi, 0, 1)
recipe("features.cosines", features.cosines, jnp.zeros((1, 2)), jnp.ones((1, 2)), jnp.zeros(1))
recipe("features.draw_frequencies", features.draw_frequencies, KEY, (5,), jnp.array(0.5))
recipe("features.draw_phases", features.draw_phases, KEY, 5, np.dtype("float32"))

# --- learning ---------------------------------------------------------------------------------------------------------

OPTIONS = {"kernel": kbp.RBF(0.7), "obs_kernel": kbp.RBF(0.7), "rule": RULE, "ridge": 1e-2, "obs_ridge": 1e-2}
recipe("fit", kbp.fit, data, **OPTIONS)
recipe("choose_hyperparameters", kbp.choose_hyperparameters, data, **OPTIONS)
chunks = Late(lambda: kbp.chunked({0: (X[:, 0], X[:, 1])}, {0: X[:, 0]}, {0: (X[:, 0], Y[:, 0])}, size=8))
recipe("fit_chunks", kbp.fit_chunks, chunks, **OPTIONS, reservoir=15, key=KEY)
recipe("Operators", kbp.Operators, jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]), 0.0)
recipe("ConstantTime", kbp.ConstantTime, 1e-2, 6, tensor_eps=0.1, tensor_rank=5)
recipe("LinearTime", kbp.LinearTime, 1e-2, 6)
recipe("FullRank", kbp.FullRank)
recipe("fix_landmarks", kbp.fix_landmarks, data, kernel=kbp.RBF(0.7), obs_kernel=kbp.RBF(0.7), rule=RULE)
recipe("Parzen", kbp.Parzen, RBF, POINTS)
recipe("MeanEmbedding", kbp.MeanEmbedding)
recipe("Empirical", kbp.Empirical)
recipe("Clipped", kbp.Clipped)
recipe("ConstrainedFit", kbp.ConstrainedFit, 10)
recipe(
    "learning.embedding.conditional_operator",
    embedding.conditional_operator,
    basis,
    basis,
    jnp.asarray(LINE),
    jnp.asarray(LINE),
    0.1,
)
recipe("learning.embedding.ridge_solve", embedding.ridge_solve, jnp.eye(3), jnp.ones((3, 2)), 0.1)
recipe("learning.embedding.error_bound", embedding.error_bound, 1e-3, 0.25)
recipe(
    "learning.embedding.operator_error",
    embedding.operator_error,
    *(RBF, RBF, basis, basis),
    *(jnp.asarray(LINE), jnp.asarray(LINE[::-1]), 0.1),
)
recipe("learning.embedding.feature_residual", embedding.feature_residual, RBF, basis, jnp.asarray(LINE))

# --- evidence and inference -------------------------------------------------------------------------------------------

recipe("Evidence.__mul__", Late(lambda: evidence().__mul__), evidence)
recipe("Evidence.__pow__", Late(lambda: evidence().__pow__), 0.5)
recipe("observe", kbp.observe, model, GRAPH, Y[0], mask=np.array([True, False, True]))
recipe("likelihood", kbp.likelihood, model, GRAPH, LIKELIHOOD)
recipe("clamp", kbp.clamp, model, GRAPH, np.array([0]), np.array([0.25], np.float32))
recipe("Expectation", kbp.Expectation)
recipe("DensityRatio", kbp.DensityRatio)
recipe("infer", kbp.infer, model, GRAPH, Y[0], points=POINTS, num_iters=5)
recipe("run", kbp.run, model, GRAPH, evidence, num_iters=4, tol=1e-3, exponents=1.0, start=solution)
recipe("run/operators", kbp.run, TABLES, GRAPH, LOCAL, num_iters=4)
recipe("run_tree", kbp.run_tree, model, GRAPH, evidence)
recipe("run_tree/operators", kbp.run_tree, TABLES, GRAPH, LOCAL)
recipe("Synchronous", kbp.Synchronous)
recipe("colored", kbp.colored, GRAPH, colors=[0, 1, 0])
recipe("AdaptiveDamping", kbp.AdaptiveDamping, 0.1, 0.9)
recipe("Anderson", kbp.Anderson, 5)
recipe("tree_reweighting", tree_reweighting, kbp.Graph.from_edges([(0, 1), (1, 2), (2, 0)], 3), num_trees=4, key=KEY)
recipe("inference.operators.SumProduct", kbp.SumProduct)
recipe("MaxProduct", kbp.MaxProduct)
recipe("InLogs", kbp.InLogs, kbp.SumProduct())
states_model = Late(
    lambda: kbp.fit(
        kbp.pool(GRAPH, np.random.default_rng(0).integers(0, 3, (30, GRAPH.num_nodes))), kernel=kbp.Delta(), ridge=1e-2
    )
)
recipe("with_transitions", kbp.with_transitions, states_model, np.full((3, 3), 1 / 3), [0.2, 0.3, 0.5])
recipe("check", kbp.check, Late(lambda: kbp.run_tree(TABLES, GRAPH, LOCAL)))
recipe("skip_value_checks", kbp.skip_value_checks)
recipe("diagnose", kbp.diagnose, TABLES, GRAPH, LOCAL, tables_solution, num_iters=5)
recipe("log_partition", kbp.log_partition, TABLES, GRAPH, LOCAL, tables_solution)

# --- beliefs and summaries --------------------------------------------------------------------------------------------

recipe("beliefs", kbp.beliefs, model, GRAPH, evidence, solution, POINTS)
recipe("Belief", kbp.Belief, np.array([0.0, 1.0, 2.0], np.float32), WEIGHTS)
posterior = Late(lambda: kbp.Posterior.of(model(), GRAPH, evidence(), solution(), POINTS))
recipe("KernelMRF.graph_of", Late(lambda: model().graph_of), GRAPH)
recipe("KernelMRF.shared_type", Late(lambda: model().shared_type), 0)
recipe("KernelMRF.interaction", Late(lambda: model().interaction), 0)
recipe("Posterior.require_one", Late(lambda: posterior().require_one))
recipe("Posterior.of", kbp.Posterior.of, model, GRAPH, evidence, solution, POINTS)
recipe("Posterior.at", Late(lambda: posterior().at), POINTS)
recipe("Posterior.showing", Late(lambda: posterior().showing), None)
recipe("log_belief", kbp.log_belief, posterior, np.zeros((3, 2), np.float32))
recipe("edge_beliefs", kbp.edge_beliefs, posterior, [(0, 1), (2, 1)], POINTS)
recipe("EdgeBelief", kbp.EdgeBelief, np.arange(3.0), np.arange(3.0), np.full((1, 3, 3), 1 / 9, np.float32))
recipe("marginal", kbp.marginal, plane, 1)
recipe("temper", kbp.temper, belief, 2.0)
recipe("mode", kbp.mode, belief)
recipe("mode/joint", kbp.mode, posterior, joint=True)
recipe("refine_mode", kbp.refine_mode, posterior, num_starts=2, num_steps=2)
recipe("mean", kbp.mean, belief)
recipe("circular_mean", kbp.circular_mean, belief, 24.0)
recipe("expectation", kbp.expectation, belief, jnp.square)
recipe("expectation/nodes", kbp.expectation, posterior, jnp.max, [0, 2], key=KEY, num_samples=4, num_sweeps=2)
recipe("Estimate", kbp.Estimate, np.array([0.25, 1.0], np.float32), np.array([0.01, 0.02], np.float32))
recipe("std", kbp.std, belief)
recipe("variance", kbp.variance, belief)
recipe("covariance", kbp.covariance, plane)
recipe("quantile", kbp.quantile, belief, 0.65)
recipe("interval", kbp.interval, belief, 0.9)
recipe("circular_interval", kbp.circular_interval, belief, 0.4, 24.0)
recipe("highest_density", kbp.highest_density, belief, 0.75)
recipe("coverage", kbp.coverage, belief, np.array([0.5, 1.5], np.float32), [0.5, 0.9])
recipe("entropy", kbp.entropy, belief)
recipe("log_density", kbp.log_density, belief, np.array([0.5, 1.5], np.float32))
recipe("sample", kbp.sample, posterior, KEY, 4, num_sweeps=2)
recipe("sample/belief", kbp.sample, belief, KEY, 4, joint=False)

# --- series -----------------------------------------------------------------------------------------------------------

OF_SERIES = {"kernel": kbp.RBF(0.7), "obs_kernel": kbp.RBF(0.7), "rule": RULE}
of_series = Late(lambda: series.fit(X, Y, **OF_SERIES))
recipe("series.fit", series.fit, X, Y, **OF_SERIES)
recipe("series.SeriesModel.of", series.SeriesModel.of, Late(lambda: of_series().model))
recipe("series.SeriesModel.chain", Late(lambda: of_series().chain), 3)
recipe("series.SeriesModel.apart", Late(lambda: of_series().apart), 3)
recipe("series.SeriesModel.without_starts", Late(lambda: of_series().without_starts))
recipe("series.SeriesModel.started", Late(lambda: of_series().started), GRAPH, np.array([True, False, False]))
recipe("series.start", series.start, of_series)
recipe("series.update", series.update, of_series, Late(lambda: series.start(of_series())), 0.5)
recipe("series.filter", series.filter, of_series, Y[0], times=[0, 1, 3])
recipe("series.smooth", series.smooth, of_series, Y[0], steps=1)
recipe("series.forecast", series.forecast, of_series, Y[0], 2)
recipe("series.sample_paths", series.sample_paths, of_series, Y[0], KEY, 3)
plain = Late(lambda: kbp.pool(GRAPH, X))
merged = Late(lambda: kbp.merge(GRAPH, plain(), [0, 1]))
of_merged = Late(lambda: kbp.fit(merged().data, kernel=kbp.RBF(0.7), obs_kernel=kbp.RBF(0.7), rule=RULE, ridge=1e-2))
posterior_of_merged = Late(
    lambda: kbp.infer(of_merged(), merged().graph, evidence=merged().evidence(of_merged(), Y[0]))
)
recipe("merge", kbp.merge, GRAPH, plain, [0, 1])
recipe("Merged.values", Late(lambda: merged().values), Y[0])
recipe("Merged.evidence", Late(lambda: merged().evidence), of_merged, Y[0])
recipe("Merged.part", Late(lambda: merged().part), posterior_of_merged, 2)
packed = Late(lambda: kbp.pack([GRAPH, GRAPH]))
posterior_of_packed = Late(lambda: kbp.infer(model(), packed().graph, packed().join([Y[0], Y[1]])))
recipe("pack", kbp.pack, [GRAPH, kbp.chain_graph(2)])
recipe("Packed.nodes", Late(lambda: packed().nodes), 1)
recipe("Packed.join", Late(lambda: packed().join), [Y[0], Y[1]])
recipe("Packed.split", Late(lambda: packed().split), np.zeros(6, np.float32))
recipe("Packed.residuals", Late(lambda: packed().residuals), posterior_of_packed)
recipe("Packed.log_partition", Late(lambda: packed().log_partition), posterior_of_packed)
recipe("repeat_graph", kbp.repeat_graph, GRAPH, 2, lags=(1,))
recipe("time_windows", kbp.time_windows, X, 3)

# --- tuning -----------------------------------------------------------------------------------------------------------

recipe(
    "Hyperparameters",
    kbp.Hyperparameters,
    RBF,
    RBF,
    1e-2,
    1e-2,
    1e-3,
    0.1,
    1.0,
    0.5,
    2.0,
    schedule=kbp.Synchronous(),
    tol=1e-3,
)
recipe("Hyperparameters.fit", Late(lambda: start().fit), data)
recipe("Hyperparameters.standardized", Late(lambda: start().standardized), data)
recipe("Hyperparameters.fix_landmarks", Late(lambda: start().fix_landmarks), data)
recipe("Hyperparameters.run", Late(lambda: start().run), model, GRAPH, evidence)
recipe("Hyperparameters.observe", Late(lambda: start().observe), model, GRAPH, Y[0])
recipe("Hyperparameters.answer", Late(lambda: start().answer), model, GRAPH, Y[0], POINTS)
recipe("median_hyperparameters", kbp.median_hyperparameters, data, num_iters=3)
recipe("select", kbp.select, start, data, steps=2, every=1)
recipe("tune", kbp.tune, start, data, GRAPH, X[:4], Y[:4], POINTS, steps=2, every=1, batch=2, key=KEY, progress=False)
counted = Late(lambda: kbp.fit(data(), relation="counts", kernel=RBF, obs_kernel=RBF))
recipe("train", kbp.train, counted, data, way="scaled", steps=2, batch=2, num_iters=2)
recipe("calibrate", kbp.calibrate, start, model, GRAPH, X[:2], Y[:2], POINTS)
recipe("SquaredError.__call__", kbp.SquaredError().__call__, belief, np.array([1.5, 0.5], np.float32))
recipe("NegativeLogBelief.__call__", kbp.NegativeLogBelief().__call__, belief, np.array([0.9, 0.5], np.float32))
recipe("IntervalScore.__call__", kbp.IntervalScore(0.5).__call__, belief, np.array([1.0, 0.5], np.float32))
recipe("CRPS.__call__", kbp.CRPS().__call__, belief, np.array([1.0, 0.5], np.float32))
recipe("SquaredError", kbp.SquaredError)
recipe("NegativeLogBelief", kbp.NegativeLogBelief)
recipe("IntervalScore", kbp.IntervalScore, 0.5)
recipe("CRPS", kbp.CRPS)
recipe("tuning.scores.leave_one_out", scores.leave_one_out, basis, basis, jnp.asarray(LINE), jnp.asarray(LINE), 0.1)
recipe(
    "tuning.scores.generalized_cross_validation",
    scores.generalized_cross_validation,
    *(basis, basis, jnp.asarray(LINE), jnp.asarray(LINE), 0.1),
)

# --- files, plots, devices, estimator ---------------------------------------------------------------------------------

recipe("save", kbp.save, os.path.join(FOLDER, "written.kbp"), {"kernel": RBF, "x": X})
recipe("load", kbp.load, saved, classes=[kbp.RBF])
recipe("io.describe", Late(lambda: __import__("kbpjax.io", fromlist=["io"]).describe), saved)
recipe("plotting.plot_belief", plotting.plot_belief, belief, 0, truth=1.2)
recipe("plotting.plot_grid", plotting.plot_grid, belief, (1, 2))
recipe("plotting.plot_residuals", plotting.plot_residuals, tables_solution, tol=1e-3)
recipe("plotting.plot_messages", plotting.plot_messages, model, GRAPH, solution)
recipe("plotting.plot_graph", plotting.plot_graph, GRAPH, belief_of_model)
recipe("plotting.plot_landmarks", plotting.plot_landmarks, model, samples=X.ravel())
recipe("plotting.plot_costs", plotting.plot_costs, {"kernel": ([0.1, 1.0], [5.0, 4.0])}, baseline=6.0)
recipe("plotting.plot_reliability", plotting.plot_reliability, belief, np.array([0.5, 1.5], np.float32))
recipe("sharded.shard_batch", sharded.shard_batch, jnp.zeros((3, 5)), 1)
recipe("sharded.partition_graph", sharded.partition_graph, GRAPH, 1, parts=[0, 0, 0])
recipe("estimator.GraphRegressor", estimator.GraphRegressor, **{k: OPTIONS[k] for k in ("kernel", "ridge")})
regressor = Late(lambda: estimator.GraphRegressor(RBF, RBF, 1e-2, 1e-2, 6, 5))
fitted = Late(lambda: estimator.GraphRegressor(RBF, RBF, 1e-2, 1e-2, 6, 5).fit(Y, X))
recipe("estimator.GraphRegressor.fit", Late(lambda: regressor().fit), Y, X, GRAPH)
recipe("estimator.GraphRegressor.posterior", Late(lambda: fitted().posterior), Y[:4])
recipe("estimator.GraphRegressor.predict", Late(lambda: fitted().predict), Y[:4], True)
recipe("estimator.GraphRegressor.predict_interval", Late(lambda: fitted().predict_interval), Y[:4], 0.8)
recipe("estimator.GraphRegressor.score", Late(lambda: fitted().score), Y[:4], X[:4], np.ones(4))

# --- baselines --------------------------------------------------------------------------------------------------------

recipe("baselines.transfer_evidence", transfer_evidence, numbers, GRAPH, evidence, model)
recipe("baselines.discrete.fit", discrete.fit, data, [-1.0, 0.0, 1.0])
TABLE = np.array([[[3.0, 1.0], [1.0, 3.0]]])
recipe("baselines.discrete.from_potentials", discrete.from_potentials, [0, 1], [1.0, 2.0], TABLE)
recipe("baselines.discrete.run", discrete.run, numbers, GRAPH, num_iters=3, tol=1e-3, key=KEY)
recipe("baselines.discrete.bins", discrete.bins, LINE, 2)
recipe("baselines.discrete.Indicators", discrete.Indicators, jnp.array([0.0, 1.0]), jnp.result_type(float))
indicators = Late(lambda: discrete.Indicators(jnp.array([0.0, 1.0]), jnp.result_type(float)))
recipe("baselines.discrete.Indicators.nearest", Late(lambda: indicators().nearest), jnp.asarray(LINE))
factors = Late(lambda: elimination.Factors([2, 2], [(0, 1), (0,)], [TABLE[0], [1.0, 2.0]]))
UAI = os.path.join(FOLDER, "two.uai")
written_uai = Late(lambda: discrete.write_uai(UAI, factors()) or UAI)
recipe("baselines.discrete.read_uai", discrete.read_uai, written_uai, {0: 1})
recipe("baselines.discrete.write_uai", discrete.write_uai, os.path.join(FOLDER, "again.uai"), factors)
recipe("baselines.discrete.from_factors", discrete.from_factors, factors, max_states=8)
recipe("baselines.elimination.Factors", elimination.Factors, [2, 2], [(0, 1)], [TABLE[0]])
recipe("baselines.elimination.Factors.given", Late(lambda: factors().given), {0: 1})
recipe("baselines.elimination.order", elimination.order, factors, 3)
recipe("baselines.elimination.solve", elimination.solve, factors, max_cells=2**10)
recipe("baselines.elimination.mode", elimination.mode, factors, max_cells=2**10)
recipe("baselines.elimination.beliefs", elimination.beliefs, posterior, max_cells=2**20)
recipe("baselines.elimination.Solution.sample", Late(lambda: elimination.solve(factors()).sample), 5, 1)
recipe("baselines.gaussian.fit", gaussian.fit, data, ridge=1e-3)
recipe("baselines.gaussian.run", gaussian.run, membrane, GRAPH, noisy, num_iters=3, tol=1e-3, key=KEY)
recipe(
    "baselines.gaussian.beliefs",
    gaussian.beliefs,
    *(membrane, GRAPH, noisy, Late(lambda: gaussian.run(membrane(), GRAPH, noisy())), POINTS),
)
recipe("baselines.gaussian.observe", gaussian.observe, template, GRAPH, Y[0], mask=np.array([True, False, True]))
recipe(
    "baselines.gaussian.likelihood",
    gaussian.likelihood,
    *(membrane, GRAPH, Y[0]),
    noise=0.5,
    mask=np.array([True, False, True]),
)
recipe("baselines.gaussian.check", gaussian.check, Late(lambda: gaussian.run(membrane(), GRAPH, noisy())))
recipe("baselines.gaussian.walk_summability", gaussian.walk_summability, membrane, GRAPH, noisy, num_iters=10)
recipe("baselines.gaussian.thin_membrane", gaussian.thin_membrane, GRAPH, edge_precision=1.0, prior_precision=1.0)
recipe("baselines.gaussian.GaussianTemplate.build", Late(lambda: template().build), GRAPH, exponents=1.0)
recipe("baselines.gaussian.GaussianMRF", gaussian.GaussianMRF, [2.0, 2.0], [1.0, 0.0], [-1.0])
recipe(
    "baselines.gaussian.GaussianMRF.from_matrix",
    gaussian.GaussianMRF.from_matrix,
    *(kbp.chain_graph(2), [[2.0, -1.0], [-1.0, 2.0]], [1.0, 0.0]),
)
SMALL = {"num_centers": 6, "widths": [0.5], "ridges": [0.1]}
recipe("baselines.pairwise.fit", pairwise.fit, KEY, data, **SMALL, marginal_widths=[0.5])
recipe(
    "baselines.pairwise.PairwiseMRF",
    pairwise.PairwiseMRF,
    Late(lambda: densities().nodes),
    Late(lambda: densities().edges),
)


class Peak(pairwise.NodePotential):
    """A potential as a user writes one."""

    def log_density(self, x):
        return -jnp.abs(x[:, 0])

    def sample(self, key, num_samples):
        return jax.random.laplace(key, (num_samples, 1))


edge = Late(lambda: jax.tree.map(lambda a: a[0], densities().edges))
COLUMN = jnp.zeros((4, 1))
recipe("baselines.pairwise.NodePotential.log_start", Late(lambda: Peak().log_start), COLUMN)
recipe("baselines.pairwise.EdgePotential.log_table", Late(lambda: edge().log_table), COLUMN, COLUMN)
recipe("baselines.pairwise.EdgePotential.log_message", Late(lambda: edge().log_message), COLUMN, COLUMN, jnp.zeros(4))
recipe("baselines.pairwise.EdgePotential.propose", Late(lambda: edge().propose), KEY, COLUMN)
for kind in (pairwise.Conditionals, pairwise.Ratios):
    name = f"baselines.pairwise.{kind.__name__}"
    recipe(name, kind)
    recipe(f"{name}.node", kind().node, mixture)
    recipe(f"{name}.edge", kind().edge, conditional, conditional, mixture, mixture)
FEW = {"key": KEY, "num_iters": 2}
recipe(
    "baselines.nonparametric.run",
    nonparametric.run,
    *(densities, GRAPH),
    **FEW,
    tol=1e-3,
    num_components=4,
    sampler=nonparametric.GibbsSampler(1),
)
recipe("baselines.nonparametric.beliefs", nonparametric.beliefs, densities, GRAPH, None, mixed, POINTS)
recipe("baselines.nonparametric.ExactSampler", nonparametric.ExactSampler)
recipe("baselines.nonparametric.GibbsSampler", nonparametric.GibbsSampler, 3)
recipe("baselines.nonparametric.MultiscaleSampler", nonparametric.MultiscaleSampler, 1e-2, 8)
recipe("baselines.particle.run", particle.run, densities, GRAPH, **FEW, num_particles=5, resample_every=1, num_moves=2)
recipe("baselines.expectation_particle.run", expectation_particle.run, densities, GRAPH, **FEW, num_particles=5)
recipe("baselines.particle.beliefs", particle.beliefs, densities, GRAPH, None, particles, POINTS)
recipe("baselines.particle.mean", particle.mean, particles)
recipe("baselines.particle.variance", particle.variance, particles)
PRESENT = np.array([True, True])
recipe("baselines.products.exact_product", products.exact_product, two, PRESENT)
recipe("baselines.products.sample_gibbs", products.sample_gibbs, KEY, two, 4, num_sweeps=2, present=PRESENT)
recipe("baselines.products.sample_multiscale", products.sample_multiscale, KEY, two, 4, capacity=8, present=PRESENT)
recipe(
    "baselines.mixtures.GaussianMixture",
    mixtures.GaussianMixture,
    *(jnp.array([0.5, 0.5]), jnp.array([[-2.0], [2.0]]), jnp.ones(1)),
)
recipe("baselines.mixtures.GaussianMixture.log_density", Late(lambda: mixture().log_density), COLUMN)
recipe("baselines.mixtures.GaussianMixture.sample", Late(lambda: mixture().sample), KEY, 3)
recipe("baselines.density.ConditionalDensity.mixture", Late(lambda: conditional().mixture), jnp.array([9.0]))
recipe("baselines.density.ConditionalDensity.log_density", Late(lambda: conditional().log_density), COLUMN, COLUMN)
recipe("baselines.density.ConditionalDensity.sample", Late(lambda: conditional().sample), KEY, COLUMN)
recipe("baselines.density.RegressionLikelihood.predict", Late(lambda: regression().predict), COLUMN)
recipe(
    "baselines.density.RegressionLikelihood.log_likelihood", Late(lambda: regression().log_likelihood), COLUMN, COLUMN
)
recipe(
    "baselines.density.RegressionLikelihood.evidence",
    Late(lambda: regression().evidence),
    *(numbers, GRAPH, Y[0]),
    mask=np.array([True, False, True]),
)
recipe("baselines.density.fit_conditional", density.fit_conditional, KEY, X[:, 0], X[:, 1], **SMALL, folds=2)
recipe("baselines.density.fit_likelihood", density.fit_likelihood, KEY, X[:, 0], Y[:, 0], **SMALL)
recipe("baselines.density.fit_parzen", density.fit_parzen, X[:, 0], widths=[0.5], num_centers=5, key=KEY)

# --- expectation propagation ------------------------------------------------------------------------------------------

FAMILIES = {
    "Gaussian": Late(lambda: ep.Gaussian.from_moments(0.0, 1.0)),
    "Beta": Late(lambda: ep.Beta(2.0, 1.0)),
    "Gamma": Late(lambda: ep.Gamma(3.0, 1.0)),
    "MultivariateGaussian": Late(lambda: ep.MultivariateGaussian.from_moments(jnp.zeros(2), jnp.eye(2))),
}
DATA = Late(lambda: np.asarray(jax.random.normal(KEY, (10, 2))))
LABELS = np.arange(10) % 2
pair = Late(lambda: (ep.Beta(2.0, 1.0), ep.Gaussian.from_moments(0.0, 1.0)))
recipe("ep.logistic_regression", ep.logistic_regression, DATA, LABELS, num_sweeps=2)
recipe("ep.logistic_predictive", ep.logistic_predictive, regressed, np.zeros((3, 2), np.float32))
recipe(
    "ep.linear_model",
    ep.linear_model,
    *(DATA, Late(lambda: ep.Beta(1.0 + jnp.arange(10.0) % 2, 2.0 - jnp.arange(10.0) % 2))),
    oracle=ep.LogisticToZ(12),
    num_sweeps=2,
    key=KEY,
)
recipe("ep.Sequential", ep.Sequential)
recipe("ep.Parallel", ep.Parallel)
recipe(
    "ep.precision_posteriors",
    ep.precision_posteriors,
    *([100.0, 50.0], [25.0, 20.0]),
    oracle=ep.CompoundGamma(num_nodes=50),
    key=KEY,
)
for family, one in FAMILIES.items():
    of = Late(lambda one=one: type(one()))
    path = "ep.Distribution"
    recipe(f"{path}.__mul__/{family}", Late(lambda one=one: one().__mul__), one)
    recipe(f"{path}.kl/{family}", Late(lambda one=one: one().kl), one)
    if family == "MultivariateGaussian":
        continue
    recipe(f"{path}.from_outputs/{family}", Late(lambda of=of: of().from_outputs), Late(lambda one=one: one().outputs))
    recipe(f"{path}.relative_outputs/{family}", Late(lambda one=one: one().relative_outputs), one)
    outputs = Late(lambda one=one: one().relative_outputs(one()))
    recipe(f"{path}.from_relative/{family}", Late(lambda of=of: of().from_relative), outputs, one)
    recipe(f"{path}.exceeds/{family}", Late(lambda one=one: one().exceeds), one)
    recipe(f"{path}.keep_mean/{family}", Late(lambda one=one: one().keep_mean), one)
    recipe(f"{path}.log_density/{family}", Late(lambda one=one: one().log_density), np.array([0.2, 0.6], np.float32))
    weights, places = jnp.array([0.2, 0.5, 0.3]), jnp.array([0.2, 0.5, 0.7])
    recipe(f"{path}.project/{family}", Late(lambda of=of: of().project), places, weights)
    recipe(f"{path}.sample/{family}", Late(lambda one=one: one().sample), KEY, 3)
    recipe(f"{path}.uniform/{family}", Late(lambda one=one: one().uniform))
    recipe(f"{path}.characteristic/{family}", Late(lambda one=one: one().characteristic), jnp.array([0.1, 0.2]))
recipe("ep.Gaussian", ep.Gaussian, 1.0, 0.5)
recipe("ep.Gaussian.from_moments", ep.Gaussian.from_moments, 0.5, 1.0)
recipe("ep.MultivariateGaussian", ep.MultivariateGaussian, jnp.eye(2), jnp.zeros(2))
recipe("ep.MultivariateGaussian.from_moments", ep.MultivariateGaussian.from_moments, jnp.zeros(2), jnp.eye(2))
recipe(
    "ep.MultivariateGaussian.__mul__",
    Late(lambda: FAMILIES["MultivariateGaussian"]().__mul__),
    FAMILIES["MultivariateGaussian"],
)
recipe(
    "ep.MultivariateGaussian.kl", Late(lambda: FAMILIES["MultivariateGaussian"]().kl), FAMILIES["MultivariateGaussian"]
)
recipe("ep.Beta", ep.Beta, 2.0, 1.0)
recipe("ep.Beta.from_moments", ep.Beta.from_moments, 0.4, 0.05)
recipe(
    "ep.Beta.from_statistics",
    ep.Beta.from_statistics,
    jnp.array(-1.0),
    jnp.array(-1.2),
    Late(lambda: ep.Beta(2.0, 1.0)),
)
recipe("ep.Gamma", ep.Gamma, 3.0, 1.0)
recipe("ep.Gamma.from_moments", ep.Gamma.from_moments, 3.0, 2.0)
recipe("ep.Gamma.from_statistics", ep.Gamma.from_statistics, jnp.array(3.0), jnp.array(0.9))
GAUSSIANS = Late(lambda: ep.Gaussian.from_moments(1.0, 0.5)), FAMILIES["Gaussian"]
recipe("ep.ratio", ep.ratio, *GAUSSIANS)
recipe("ep.kl", ep.kl, *GAUSSIANS)
recipe("ep.ImproperHandling.__call__", ep.MeanPreserving().__call__, *GAUSSIANS)
recipe("ep.MeanPreserving", ep.MeanPreserving)
recipe("ep.Uniform", ep.Uniform)
recipe("ep.Oracle.__call__", ep.LogisticToZ(12).__call__, pair, KEY)
recipe("ep.LogisticToZ", ep.LogisticToZ, 12)
recipe("ep.LogisticToP", ep.LogisticToP, ep.KLProjection(), 12)
recipe("ep.CompoundGamma", ep.CompoundGamma, 1.0, 1.0, 1.0, ep.KLProjection(), 50)
recipe("ep.ImportanceSampling", ep.ImportanceSampling, Late(ep.logistic_sampler), 1, 100)
recipe(
    "ep.ForwardSampler", ep.ForwardSampler, lambda key, z: jax.nn.sigmoid(z), Late(lambda: (FAMILIES["Gaussian"](),))
)
recipe("ep.LogDensity", ep.LogDensity, lambda x, y: -((x - y) ** 2) / 2, Late(lambda: [FAMILIES["Gaussian"]()] * 2))
recipe("ep.logistic_sampler", ep.logistic_sampler)
recipe("ep.logistic_integrals", ep.logistic_integrals, FAMILIES["Beta"], FAMILIES["Gaussian"], num_nodes=12)
recipe("ep.KLProjection", ep.KLProjection)
recipe("ep.MatchingMoments", ep.MatchingMoments)
recipe("ep.Learner", ep.Learner, 20, 20)
LEARN = {"variable": 1, "learner": few}
recipe("ep.learn", ep.learn, KEY, incoming, truth, **LEARN)
recipe("ep.predict", ep.predict, operator, incoming)
recipe("ep.init_operator", ep.init_operator, KEY, pair, **LEARN, num_initial=5)
recipe(
    "ep.step",
    ep.step,
    *(KEY, Late(lambda: ep.init_operator(KEY, pair(), variable=1, num_initial=5, learner=few()))),
    *(pair, ep.LogisticToZ(12)),
)
STREAM = Late(lambda: (ep.Beta(jnp.full(3, 2.0), jnp.ones(3)), ep.Gaussian(jnp.ones(3), jnp.arange(3.0))))
recipe(
    "ep.scan",
    ep.scan,
    *(jax.random.split(KEY, 3), Late(lambda: ep.init_operator(KEY, pair(), variable=1, num_initial=5, learner=few()))),
    *(STREAM, ep.LogisticToZ(12)),
)
recipe("ep.Moments", ep.Moments)
recipe("ep.Exact", ep.Exact)
recipe("ep.Draws", ep.Draws, 10, 0)
recipe("ep.Targets.encode", ep.RelativeBelief().encode, *GAUSSIANS, FAMILIES["Gaussian"])
recipe(
    "ep.Targets.decode", ep.RelativeBelief().decode, jnp.array([0.1, -0.2]), FAMILIES["Gaussian"], ep.MeanPreserving()
)
recipe("ep.RelativeBelief", ep.RelativeBelief)
recipe("ep.AbsoluteBelief", ep.AbsoluteBelief)
recipe("ep.Message", ep.Message)
FEATURES, TARGETS = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([1.1, 1.9, 3.1])
LINEAR = Late(lambda: ep.fit_regression(FEATURES, TARGETS, 1e-2))
recipe("ep.fit_regression", ep.fit_regression, FEATURES, TARGETS, 1e-2)
recipe("ep.BayesianRegression.prior", ep.BayesianRegression.prior, 1, noise=0.01, variance=10.0)
recipe("ep.BayesianRegression.predict", Late(lambda: LINEAR().predict), FEATURES)
recipe("ep.BayesianRegression.update", Late(lambda: LINEAR().update), FEATURES[0], TARGETS[0])
recipe("ep.BayesianRegression.update_block", Late(lambda: LINEAR().update_block), FEATURES, TARGETS)
recipe("ep.leave_one_out_residuals", ep.leave_one_out_residuals, FEATURES, TARGETS, 1e-2)
recipe("ep.log_evidence", ep.log_evidence, FEATURES, TARGETS, 1e-2)
CANDIDATES = Late(lambda: ep.random_candidates(KEY, 2))
recipe("ep.select_parameters", ep.select_parameters, KEY, incoming, truth, CANDIDATES, **LEARN)
recipe("ep.LeaveOneOut", ep.LeaveOneOut)
recipe("ep.LeaveOneOut.__call__", ep.LeaveOneOut().__call__, FEATURES, TARGETS, jnp.array(1e-2))
recipe("ep.NegativeLogEvidence", ep.NegativeLogEvidence)
recipe("ep.NegativeLogEvidence.__call__", ep.NegativeLogEvidence().__call__, FEATURES, TARGETS, jnp.array(1e-2))
recipe("ep.Parameters", ep.Parameters, 0.5, 1.0, 1e-3)
recipe("ep.grid_candidates", ep.grid_candidates, (0.5, 1.0), (0.25, 0.125))
recipe("ep.random_candidates", ep.random_candidates, KEY, 2)

# --- without a recipe -------------------------------------------------------------------------------------------------

RECORD = "a record that functions return; nobody makes one by hand"
BASE = "abstract; its subclasses are called"
WARNING = "an error or a warning"
HOOK = "takes a record of integrals that only oracles compute"
TABLE_OF_COLUMNS = "a fit takes seconds; bad input is in tests/test_imputer.py"

NOT_CALLED = {
    "enable_compilation_cache": "it sets JAX for the whole process (tests/test_compilation.py)",
    "baselines.elimination.Solution": RECORD,
    "Merged": RECORD,
    "Packed": RECORD,
    "estimator.GraphImputer": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.fit": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.get_feature_names_out": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.interval": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.posterior": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.probabilities": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.report": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.sample": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.score": TABLE_OF_COLUMNS,
    "estimator.GraphImputer.transform": TABLE_OF_COLUMNS,
    "Graph": RECORD,
    "learning.data.Cases": RECORD,
    "KernelMRF": RECORD,
    "learning.observations.ObservationModel": RECORD,
    "learning.rules.FixedLandmarks": RECORD,
    "features.Basis": RECORD,
    "features.Pivots": RECORD,
    "features.FourierBasis": RECORD,
    "features.SampleFeatures": RECORD,
    "features.EmbeddingFeatures": RECORD,
    "features.MeanVarianceFeatures": RECORD,
    "features.TwoStage": RECORD,
    "Evidence": RECORD,
    "Solution": RECORD,
    "Colored": RECORD,
    "Diagnosis": RECORD,
    "series.SeriesModel": RECORD,
    "series.Filtered": RECORD,
    "series.State": RECORD,
    "Tuned": RECORD,
    "Selection": RECORD,
    "Tuned.plot": "draws a record",
    "sharded.Partition": RECORD,
    "baselines.gaussian.GaussianTemplate": RECORD,
    "baselines.gaussian.GaussianSolution": RECORD,
    "baselines.gaussian.GaussianFactors": RECORD,
    "baselines.nonparametric.NonparametricSolution": RECORD,
    "baselines.particle.ParticleSolution": RECORD,
    "baselines.products.ProductFactors": RECORD,
    "baselines.density.ConditionalDensity": RECORD,
    "baselines.density.RegressionLikelihood": RECORD,
    "ep.LinearPosterior": RECORD,
    "ep.Operator": RECORD,
    "ep.Prediction": RECORD,
    "ep.Record": RECORD,
    "ep.BayesianRegression": RECORD,
    "Kernel": BASE,
    "features.LandmarkSelector": BASE,
    "features.FeatureMap": BASE,
    "baselines.pairwise.NodePotential": BASE,
    "baselines.pairwise.NodePotential.log_density": BASE,
    "baselines.pairwise.NodePotential.sample": BASE,
    "baselines.pairwise.EdgePotential": BASE,
    "ep.Distribution": BASE,
    "ep.ImproperHandling": BASE,
    "ep.Oracle": BASE,
    "ep.Targets": BASE,
    "ep.KLProjection.beta": HOOK,
    "ep.KLProjection.gamma": HOOK,
    "ep.MatchingMoments.beta": HOOK,
    "ep.MatchingMoments.gamma": HOOK,
    "NotConverged": WARNING,
    "KbpWarning": WARNING,
    "ConvergenceWarning": WARNING,
    "RankWarning": WARNING,
    "CandidateWarning": WARNING,
    "EvidenceWarning": WARNING,
    "MarginWarning": WARNING,
    "MissingWarning": WARNING,
    "HolesWarning": WARNING,
    "RelationWarning": WARNING,
    "ScaleWarning": WARNING,
    "KernelMRF.with_starts": "called by the package, with its own arrays",
    "Schedule": "called by the package, with its own arrays",
    "Schedule.init": "called by the package, with its own arrays",
    "Schedule.plan": "called by the package, with its own arrays",
    "Synchronous.init": "called by the package, with its own arrays",
    "sharded.Partition.init": "called by the package, with its own arrays",
    "sharded.Partition.iteration": "called by the package, with its own arrays",
    "sharded.Partition.parts": "called by the package, with its own arrays",
    "sharded.Partition.place": "called by the package, with its own arrays",
    "sharded.Partition.plan": "called by the package, with its own arrays",
    "sharded.Partition.replicate": "called by the package, with its own arrays",
    "Posterior": "called by the package, with its own arrays",
    "Posterior.map_cases": "called by the package, with its own arrays",
}
