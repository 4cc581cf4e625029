"""The same problem with options chosen by hand: a small grid of bandwidths and ridges, judged on validation cases."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from benchmarks.first_try.scoring import Distribution, Draw, Problem, score
from kbpjax.kernels.euclidean import ARD
from kbpjax.learning.learn import candidate_points
from kbpjax.tuning.comparison import PaddedCholesky

BANDWIDTHS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
OBS_BANDWIDTHS = (1 / 8, 1 / 4, 1 / 2)
RIDGES = (1e-4, 1e-3)

RANK, VECTOR_RANK = 48, 96
"""Ranks of compared models, of numbers and of vectors; the chosen one has the default rank."""

Found = dict[int, Distribution]


class Options(NamedTuple):
    """Explicit options of `fit`: bandwidths in median distances, and the ridge."""

    bandwidth: Any
    obs_bandwidth: Any
    ridge: Any


def grid(quick: bool) -> Iterator[Options]:
    """Yield the combinations that are compared."""
    everything = itertools.product(BANDWIDTHS, OBS_BANDWIDTHS, RIDGES)
    yield from (Options(*values) for i, values in enumerate(everything) if not quick or i in (8, 15))


def infer(model: kbp.KernelMRF, graph: kbp.Graph, draw: Draw) -> tuple[Found, np.ndarray]:
    """Return the beliefs of all cases by node type, and whether each case converged.

    One case is one call of `kbp.infer`; several are mapped by `jax.lax.map`: each then stops when it has converged.
    """
    first = jax.tree.leaves(draw.y)[0]
    if len(first) == 1:
        posterior = kbp.infer(model, graph, jax.tree.map(lambda y: y[0], draw.y))
        points = {v: one.points for v, one in posterior.by_type.items()}
        weights = {v: weights[None] for v, weights in posterior.probabilities.items()}
        converged = posterior.solution.converged[None]
    else:

        def one(y: Any) -> tuple[Any, Any]:
            posterior = kbp.infer(model, graph, y)
            return posterior.probabilities, posterior.solution.converged

        points = {v: one.points for v, one in kbp.infer(model, graph).by_type.items()}

        y = jax.tree.map(jnp.asarray, draw.y)
        weights, converged = jax.jit(lambda y: jax.lax.map(one, y))(y)
    own = {v: v in model.margins for v in weights}
    found = {v: Distribution(np.asarray(points[v]), np.asarray(w), own[v]) for v, w in weights.items()}
    return found, np.asarray(converged)


class Scales(NamedTuple):
    """Median distances of samples and observations of the types that have no kernel."""

    samples: dict[int, Any]
    observations: dict[int, Any]

    @classmethod
    def of(cls, problem: Problem, data: kbp.TrainingData) -> "Scales":
        """Measure the distances."""
        return cls(
            {v: _scale(x) for v, x in data.nodes.items() if v not in problem.kernel},
            {v: _scale(y) for v, (_, y) in data.observations.items() if v not in problem.obs_kernel},
        )

    def options(self, problem: Problem, chosen: Options) -> dict[str, Any]:
        """Return arguments of `fit`."""
        scaled = lambda scales, factor: {v: (ARD if s.ndim else kbp.RBF)(s * factor) for v, s in scales.items()}
        return {
            "kernel": {**_stated(problem.kernel), **scaled(self.samples, chosen.bandwidth)},
            "obs_kernel": {**_stated(problem.obs_kernel), **scaled(self.observations, chosen.obs_bandwidth)},
            "ridge": chosen.ridge,
        }


def search(problem: Problem, data: kbp.TrainingData, quick: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Choose options on the validation cases.

    Returns:
        Arguments of `fit` and the options as a record. The measure is the sum over quantities of the error in units of
        the smallest one; all compared models are evaluated by one compiled function.
    """
    scales = Scales.of(problem, data)
    graph = problem.validation_graph or problem.graph
    vectors = any(x.ndim > 1 for x in data.nodes.values())
    points = {v: candidate_points(x, 256 if vectors else 128) for v, x in data.nodes.items()}
    # Of known shape, so that one compiled program serves all options.
    rule = kbp.ConstantTime(eps=1e-3, max_rank=VECTOR_RANK if vectors else RANK, features=PaddedCholesky())

    @jax.jit
    def answer(data: kbp.TrainingData, options: Options, y: Any) -> dict[int, Any]:
        model = kbp.fit(data, **scales.options(problem, options), rule=rule)
        marginal = kbp.Empirical() if vectors else kbp.MeanEmbedding()

        def one(y: Any) -> dict[int, Any]:
            return kbp.infer(model, graph, y, points=points, marginal=marginal, num_iters=100).probabilities

        return jax.lax.map(one, y)

    # A part of the cases is enough to compare.
    y, truth = (jax.tree.map(lambda a: np.asarray(a)[:16], part) for part in problem.validation)
    tried = []
    for options in grid(quick):
        weights = answer(data, Options(*map(_number, options)), y)
        errors = []
        for quantity in problem.quantities:
            v = quantity.node_type
            try:
                errors.append(score(quantity, Distribution(np.asarray(points[v]), weights[v]), truth)["error"])
            except ValueError:
                errors.append(np.inf)
        tried.append((options, np.asarray(errors)))
    smallest = np.min([errors for _, errors in tried], axis=0)
    best = min(tried, key=lambda pair: float(np.sum(pair[1] / smallest)))[0]
    return scales.options(problem, Options(*map(_number, best))), best._asdict()


def _stated(kernels: dict[int, Any]) -> dict[int, Any]:
    """Return the given kernels; periodic ones with bandwidth 1, which `fit` would choose."""
    periodic = {v: kernel for v, kernel in kernels.items() if isinstance(kernel, kbp.kernels.Periodic)}
    return kernels | {v: kernel.with_bandwidth(1.0) for v, kernel in periodic.items()}


def _scale(x: Any) -> Any:
    """Return the median distance; for vectors whose coordinates differ in scale, that of each coordinate."""
    values = np.asarray(x)
    spread = np.std(values.reshape(len(values), -1), axis=0)
    if values.ndim == 1 or spread.max() <= 3 * spread.min():
        return jnp.asarray(kbp.median_bandwidth(values), jnp.result_type(float))
    spread = np.where(spread > 0, spread, 1.0)
    return jnp.asarray(kbp.median_bandwidth(values / spread) * spread, jnp.result_type(float))


def _number(value: float) -> Any:
    return jnp.asarray(value, jnp.result_type(float))
