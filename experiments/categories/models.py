"""Two kernel Markov random fields of papers: the value of a node is its set of categories, or one category of it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import kbpjax as kbp
from experiments.categories import baselines
from experiments.categories.data import Papers
from kbpjax.kernels import RandomProjection, Transformed

ITERATIONS = 5
MESSAGES = ("tree-reweighted", "plain", "converged")
"""Five synchronous iterations, tree-reweighted or not, or tree-reweighted nonnegative ones to a tolerance (`infer`)."""
FEATURES = 100
"""Rows of the random matrix A of the kernel <A y, A y'>."""
SIZES = {"links": 24_000, "pairs": 300_000, "samples": 30_000, "sets": 8_000, "candidates": 2_000}
"""Numbers of training samples; they are fixed, so that all splits share one compiled program."""
FLOOR = 1e-3
CONSTANT = 1.0
"""Weight of the constant in the kernel of categories, beside 1{x = x'}."""
RANK = 400
"""Most landmarks of a basis."""
SCALE = 100.0
"""Scale of the kernel of the predictions, which need a smaller ridge than the sets."""
STEPS = 20
"""Of the search for the mode among unit vectors."""
LENGTH = 30
"""Categories that are decoded by matching pursuit."""


def size_of(count: int, what: str) -> int:
    """Return how many samples are drawn: SIZES[what], or the largest power of two up to 2 count if that is less."""
    return min(SIZES[what], 1 << max(0, (2 * count).bit_length() - 1))


class Problem(NamedTuple):
    """A split of a data set with the predictions from texts."""

    papers: Papers
    graph: kbp.Graph
    train: np.ndarray  # papers with known categories, one at least
    queries: np.ndarray  # papers with categories to predict
    predicted: np.ndarray  # of the regression from texts, leave-one-out in training [paper, category]
    seed: int
    exponents: jax.Array  # edge appearance probabilities of the links, of tree-reweighted messages [link]

    @property
    def labels(self) -> np.ndarray:
        """Categories of all papers, in single precision [paper, category]."""
        return self.papers.labels.astype(np.float32)

    @property
    def joined(self) -> np.ndarray:
        """Links between papers with known categories, both ways [link, 2]."""
        problem = np.isin(self.papers.links, self.train).all(1)
        return np.concatenate([self.papers.links[problem], self.papers.links[problem][:, ::-1]])

    def draw(self, count: int, what: str) -> np.ndarray:
        """Draw `size_of` numbers below `count`, without replacement where `count` is large enough."""
        size = size_of(count, what)
        return np.random.default_rng(self.seed).choice(count, size, replace=count < size)


def one_category(
    problem: Problem,
    ridge: float,
    min_prediction: float,
    power: float,
    messages: str,
    links: bool = True,
    predicted: np.ndarray | None = None,
) -> np.ndarray:
    """Score categories by the belief of a variable that is one category of the paper, drawn at random.

    With 1{x = x'} as kernel of categories, ridge regression of the sets from texts is the conditional embedding of the
    category given the text: it estimates P(category | text), and divided by P(category) it is the evidence. A known set
    of categories is a value spread over them.

    Args:
        problem: the split with predictions.
        ridge: of the messages along links; the kernel has a constant, so that they shrink to one, not to zero.
        min_prediction: predictions below it are brought between it and 0 (`positive`): what neighbors can lift.
        power: exponent of the texts' evidence.
        messages: one of `MESSAGES`.
        links: whether to listen to neighbors.
        predicted: predictions of the sets that are used instead of those from texts [paper, category].

    Returns:
        Scores [query, category].
    """
    heard = problem.papers.worded if predicted is None else np.ones(len(predicted), bool)
    predicted = problem.predicted if predicted is None else predicted
    rng = np.random.default_rng(problem.seed)
    categories = np.nonzero(problem.papers.labels[problem.train])[1]
    links_known = problem.joined
    pairs = pairs_of_categories(problem.papers.labels, links_known, size_of(10 * len(links_known), "pairs"), rng)
    samples = categories[problem.draw(len(categories), "samples")]
    graph = problem.graph if links else kbp.Graph.from_edges(np.zeros((0, 2), int), len(problem.papers.labels))
    model = _fit_categories([x.astype(np.int32) for x in pairs], samples.astype(np.int32), ridge)
    frequency = (np.bincount(categories, minlength=problem.labels.shape[1]) + 0.5) / (len(categories) + 0.5)
    frequency = frequency.astype(np.float32)
    masses = spread_clamps(problem.labels[problem.train], frequency)
    ratio = (positive(predicted, min_prediction) / frequency) ** power
    told = np.where(heard[:, None], ratio, 1)
    told[problem.train] = 1
    fixed = _spread(model, graph, jnp.asarray(problem.train, jnp.int32), masses)
    evidence = kbp.likelihood(model, graph, jax.tree_util.Partial(_look_up, jnp.asarray(told, jnp.float32))) * fixed
    every = jnp.arange(len(frequency), dtype=jnp.int32)
    if links and messages == "converged":
        belief = kbp.infer(model, graph, evidence=evidence, points=every, marginal=kbp.Empirical())
        scores = belief.weights
    else:
        reweighted = links and messages == "tree-reweighted"
        scores = _category_beliefs(model, graph, evidence, every, problem.exponents if reweighted else None)
    return np.asarray(scores)[problem.queries] * frequency


def positive(predicted: np.ndarray, min_prediction: float) -> np.ndarray:
    """Return positive predictions in the same order.

    Those below the minimum m are replaced by m exp(prediction / m - 1).
    """
    low = np.minimum(predicted, min_prediction)
    return np.where(predicted > min_prediction, predicted, min_prediction * np.exp(low / min_prediction - 1))


def pairs_of_categories(
    labels: np.ndarray, links: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs of categories of linked papers, all pairs of all links alike: `count` of each end."""
    numbers, flat = labels.sum(1), np.nonzero(labels)[1]
    starts = np.cumsum(numbers) - numbers
    left, right = links.T
    odds = numbers[left] * numbers[right]
    if not odds.sum():
        raise ValueError("links must join papers with known categories; got none. Take more papers.")
    drawn = rng.choice(len(links), count, p=odds / odds.sum())
    ends = (ends[drawn] for ends in (left, right))
    first, second = (flat[starts[end] + rng.integers(numbers[end])] for end in ends)
    return first, second


def spread_clamps(labels: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Return what a known set says of one of its categories, a function of categories [paper, category].

    The mean over the set of point masses at a category c, 1{x = c} / P(c).
    """
    masses = np.divide(labels, frequency, out=np.zeros_like(labels), where=frequency > 0)
    return masses / labels.sum(1, keepdims=True)


def _fit_categories(pairs: Any, samples: Any, ridge: Any) -> kbp.KernelMRF:
    data = kbp.TrainingData({0: tuple(pairs)}, {0: samples}, degrees={0: 2})
    rule = kbp.ConstantTime(eps=1e-3, max_rank=RANK, features=kbp.RandomlyPivotedCholesky(0))
    return kbp.fit(data, kernel=kbp.Delta() + CONSTANT, rule=rule, ridge=ridge, floor=FLOOR)


def _spread(model: kbp.KernelMRF, graph: kbp.Graph, nodes: jax.Array, masses: np.ndarray) -> Any:
    """Return the evidence of known sets, values that are spread over categories."""
    fixed = kbp.clamp(model, graph, nodes, jnp.argmax(masses, 1).astype(jnp.int32))
    return dataclasses.replace(fixed, local=fixed.local.at[nodes].set(masses[:, model.points[0]]))


@jax.jit
def _category_beliefs(model: Any, graph: Any, evidence: Any, every: Any, exponents: Any) -> jax.Array:
    """Return the beliefs of all papers in all categories [paper, category]."""
    solution = kbp.run(model, graph, evidence, num_iters=ITERATIONS, damping=0.0, exponents=exponents)
    return kbp.beliefs(model, graph, evidence, solution, every, marginal=kbp.Empirical()).weights


def _look_up(table: jax.Array, categories: jax.Array) -> jax.Array:
    return table[:, categories]


class Inferred(NamedTuple):
    """Sets of categories as variables, after belief propagation."""

    model: kbp.KernelMRF
    evidence: kbp.Evidence
    solution: kbp.Solution
    projection: np.ndarray  # A and a constant [feature, category]


def with_constant(projection: jax.Array, points: jax.Array) -> jax.Array:
    """Return (A y, 1): the features of the kernel <A y, A y'> + 1."""
    return jnp.append(projection @ points, jnp.ones((), points.dtype))


def infer_sets(problem: Problem, ridge: float, power: float) -> Inferred:
    """Learn the model of sets of categories and pass messages.

    A known set of categories is a value spread over them.

    Args:
        problem: the split with predictions.
        ridge: of the messages along links.
        power: exponent of the texts' evidence.
    """
    projection = RandomProjection(FEATURES, problem.labels.shape[1], seed=0).matrix
    links = problem.joined
    links = links[problem.draw(len(links), "links")]
    sets = problem.train[problem.draw(len(problem.train), "sets")]
    seen = problem.train[problem.papers.worded[problem.train]]
    seen = seen[problem.draw(len(seen), "sets")]
    labels = problem.labels
    arrays = (labels[links[:, 0]], labels[links[:, 1]]), labels[sets], labels[seen], problem.predicted[seen]
    model = _fit_sets(*arrays, projection, ridge, 1.0)
    arrays = problem.predicted, problem.papers.worded, problem.train, labels[problem.train]
    evidence, solution = _messages_of_sets(model, problem.graph, *arrays, power)
    return Inferred(model, evidence, solution, np.asarray(projection))


def _fit_sets(pairs: Any, sets: Any, seen: Any, texts: Any, projection: Any, ridge: Any, obs_ridge: Any) -> Any:
    features = jax.tree_util.Partial(with_constant, projection)
    kernel = Transformed(features, kbp.Linear())
    own = Transformed(features, kbp.Linear())
    data = kbp.TrainingData({0: tuple(pairs)}, {0: sets}, {0: (seen, texts)}, degrees={0: 3})
    rule = kbp.ConstantTime(eps=1e-2, max_rank=FEATURES + 1, tensor_rank=RANK, features=kbp.RandomlyPivotedCholesky(0))
    options = {"ridge": ridge, "obs_ridge": obs_ridge, "floor": FLOOR}
    return kbp.fit(data, kernel=kernel, obs_kernel=SCALE**2 * own, rule=rule, **options)


@jax.jit
def _messages_of_sets(model: Any, graph: Any, texts: Any, worded: Any, train: Any, sets: Any, power: Any) -> Any:
    ratio = kbp.DensityRatio()
    nodes = jnp.asarray(train, jnp.int32)
    evidence = kbp.observe(model, graph, texts, mask=worded, evidence_model=ratio) ** power
    evidence = evidence * kbp.clamp(model, graph, nodes, sets, evidence_model=ratio)
    return evidence, kbp.run(model, graph, evidence, num_iters=ITERATIONS, damping=0.0)


def unit_mode(problem: Problem, inferred: Inferred) -> np.ndarray:
    """Decode the unit vectors that maximize the beliefs by matching pursuit [paper, category]."""
    model, evidence = inferred.model, inferred.evidence
    receivers = np.asarray(problem.graph.receivers)
    mine = np.isin(receivers, problem.queries)
    seen, power = problem.queries[problem.papers.worded[problem.queries]], float(evidence.exponents[0])
    factors = np.concatenate([np.asarray(evidence.messages[0])[seen], np.asarray(inferred.solution.messages)[mine]])
    powers = np.concatenate([np.full(len(seen), power), np.ones(mine.sum())])
    owner = np.searchsorted(problem.queries, np.concatenate([seen, receivers[mine]]))
    mode = maximize(factors, powers, owner, len(problem.queries))
    basis: Any = model.bases[0]
    landmarks = jax.vmap(lambda y: with_constant(jnp.asarray(inferred.projection), y))(basis.landmarks)
    vectors = mode @ np.asarray(basis.transform).T @ np.asarray(landmarks)
    return baselines.matching_pursuit(inferred.projection, vectors[:, :-1].astype(np.float32), LENGTH)


def maximize(factors: np.ndarray, powers: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Return the unit vectors phi that maximize the products of <m, phi>^p over the factors m of each owner.

    The logarithm is concave where all inner products are positive (here: at least 0.01), and its maximum is the fixed
    point of phi = sum p m / <m, phi>, scaled to norm 1. An owner without factors has 0.

    Args:
        factors: m, of norm 1 [factor, feature].
        powers: p > 0 [factor].
        owner: whose factor each is, 0 .. count - 1 [factor].
        count: number of owners.

    Returns:
        Unit vectors [owner, feature].
    """
    add = sp.csr_matrix((powers, (owner, np.arange(len(owner)))), shape=(count, len(owner)))
    mode = _unit(add @ factors)
    for _ in range(STEPS):
        inner = np.sum(factors * mode[owner], axis=1, keepdims=True)
        mode = _unit(mode + _unit(add @ (factors / np.maximum(inner, 1e-2))))
    return mode


def _unit(rows: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)


def mean_of_sets(problem: Problem, inferred: Inferred) -> np.ndarray:
    """Return the posterior mean of the sets, under beliefs over sets of training papers [paper, category]."""
    candidates = problem.labels[problem.train[problem.draw(len(problem.train), "candidates")]]
    given = inferred.model, problem.graph, inferred.evidence, inferred.solution
    return np.asarray(_means(*given, candidates))[problem.queries]


@jax.jit
def _means(model: Any, graph: Any, evidence: Any, solution: Any, candidates: Any) -> jax.Array:
    belief = kbp.beliefs(model, graph, evidence, solution, candidates, marginal=kbp.Empirical())
    return belief.weights @ candidates
