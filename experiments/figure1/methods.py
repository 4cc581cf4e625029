"""The methods of Figure 1 as functions of one shape: learn from an image, then clean noisy copies.

Every method gets the same gray levels as candidates and the same training image. All but `KERNEL`, which learns it, are
given the true likelihood, Gaussian noise of standard deviation `SIGMA`, as in the paper.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.denoising.data import SIGMA
from experiments.denoising.models import SETTINGS, Setting, learn
from experiments.lib.schedules import Agreement
from kbpjax.baselines import discrete, expectation_particle, gaussian, nonparametric, pairwise, particle

Options = Mapping[str, Any]
POTENTIALS = {"conditionals": pairwise.Conditionals(), "ratios": pairwise.Ratios()}


@dataclasses.dataclass(frozen=True)
class TrainingPair:
    """A clean image and a noisy copy of it [h, w], from which methods learn."""

    clean: np.ndarray
    noisy: np.ndarray

    @property
    def gray(self) -> np.ndarray:
        """The gray levels of the image."""
        return np.unique(self.clean)

    @property
    def data(self) -> kbp.TrainingData:
        """The pairs of neighbors."""
        return kbp.pool(kbp.grid_graph(*self.clean.shape), self.clean.reshape(1, -1))


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """One method.

    Attributes:
        name: as in tables.
        learn: from a training pair and options to a model.
        solve: from a model, a graph, options, a noisy image [node] and a random key to a solution.
        beliefs: from a model, a graph, a noisy image, a solution and gray levels to the belief.
        paper: options as in the paper, or near them where it is silent.
        search: {option: values to try}, one after the other, each with the best of those before; grids with a 0 are
            neither extended nor refined.
        start: options with which the search starts, where they differ from the paper's.
        slow: whether it takes minutes for an image: measured on a part of it, with grids that are not extended.
    """

    name: str
    learn: Callable[[TrainingPair, Options], Any]
    solve: Callable[[Any, kbp.Graph, Options, jax.Array, jax.Array], Any]
    beliefs: Callable[[Any, kbp.Graph, jax.Array, Any, jax.Array], kbp.Belief]
    paper: Options
    search: Mapping[str, tuple]
    start: Options = dataclasses.field(default_factory=dict)
    slow: bool = False


def known_noise(y: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Return the true likelihood of all pixels, at common points or at points of their own."""
    return lambda x: jnp.exp(-0.5 * ((y[:, None] - jnp.atleast_2d(x)) / SIGMA) ** 2)


def _learn_kernel(training_pair: TrainingPair, options: Options) -> kbp.KernelMRF:
    names = [field.name for field in dataclasses.fields(Setting)]
    unset = argparse.Namespace(bandwidth=None, obs_bandwidth=None, ridge=None, eps=1e-2)
    setting = Setting(**{name: options[name] for name in names})
    positive = kbp.Clipped() if options["reweighted"] else None
    return learn(training_pair.clean, training_pair.noisy, setting, unset, positive)[0]


def _solve_kernel(model: kbp.KernelMRF, graph: kbp.Graph, options: Options, y: jax.Array, key: jax.Array) -> Any:
    del key
    evidence = kbp.observe(model, graph, y)
    return _run(model, graph, evidence, options)


def _run(model: kbp.KernelMRF, graph: kbp.Graph, evidence: kbp.Evidence, options: Options) -> kbp.Solution:
    schedule = Agreement() if options["agreement"] else kbp.Synchronous()
    exponents = kbp.tree_reweighting(graph) if options["reweighted"] else None
    how: Any = {"num_iters": options["num_iters"], "damping": options["damping"], "schedule": schedule}
    return kbp.run(model, graph, evidence, exponents=exponents, **how)


def _beliefs_kernel(model: kbp.KernelMRF, graph: kbp.Graph, y: jax.Array, solution: Any, gray: jax.Array) -> kbp.Belief:
    return kbp.beliefs(model, graph, kbp.observe(model, graph, y), solution, gray)


def _learn_discrete(training_pair: TrainingPair, options: Options) -> kbp.KernelMRF:
    return discrete.fit(training_pair.data, training_pair.gray, pseudo_count=options["pseudo_count"])


def _learn_smoothed(training_pair: TrainingPair, options: Options) -> kbp.KernelMRF:
    """Return the pseudo-moment potentials of counts that a Gaussian of a width in gray values has smoothed."""
    gray, (edges,) = training_pair.gray, training_pair.data.edges.values()
    spread = np.exp(-0.5 * ((gray[:, None] - gray) / options["width"]) ** 2)
    spread /= spread.sum(0)
    first, second = (np.searchsorted(gray, np.asarray(x)) for x in edges)
    counts = np.zeros((len(gray), len(gray)))
    np.add.at(counts, (first, second), 1)
    joint = spread @ counts @ spread.T + options["pseudo_count"]
    nodes = spread @ np.bincount(np.searchsorted(gray, training_pair.clean.ravel()), minlength=len(gray))
    nodes += options["pseudo_count"] * len(gray)
    nodes /= nodes.sum()
    ratio = joint * joint.sum() / (joint.sum(1, keepdims=True) * joint.sum(0))
    return discrete.from_potentials(gray, *(x.astype(np.float32) for x in (nodes, ratio[None])))


def _solve_known(model: kbp.KernelMRF, graph: kbp.Graph, options: Options, y: jax.Array, key: jax.Array) -> Any:
    del key
    return _run(model, graph, kbp.likelihood(model, graph, known_noise(y)), options)


def _beliefs_known(model: kbp.KernelMRF, graph: kbp.Graph, y: jax.Array, solution: Any, gray: jax.Array) -> kbp.Belief:
    return kbp.beliefs(model, graph, kbp.likelihood(model, graph, known_noise(y)), solution, gray)


def _learn_gaussian(training_pair: TrainingPair, options: Options) -> dict[str, Any]:
    x = training_pair.clean
    steps = np.concatenate([np.diff(x, axis=0).ravel(), np.diff(x, axis=1).ravel()])
    return {
        "edge_precision": float(options["stiffness"] / np.mean(steps**2)),
        "prior_mean": float(x.mean()),
        "prior_precision": float(options["prior"] / x.var()),
    }


def _solve_gaussian(
    model: dict[str, Any], graph: kbp.Graph, options: Options, y: jax.Array, key: jax.Array
) -> gaussian.GaussianSolution:
    del key
    field = gaussian.thin_membrane(graph, **model)
    evidence = gaussian.likelihood(field, graph, y, noise=SIGMA)
    return gaussian.run(field, graph, evidence, num_iters=options["num_iters"], damping=0.0)


def _beliefs_gaussian(model: Any, graph: kbp.Graph, y: jax.Array, solution: Any, gray: jax.Array) -> kbp.Belief:
    field = gaussian.thin_membrane(graph, **model)
    return gaussian.beliefs(field, graph, gaussian.likelihood(field, graph, y, noise=SIGMA), solution, gray)


def _learn_pairwise(training_pair: TrainingPair, options: Options) -> pairwise.PairwiseMRF:
    return pairwise.fit(jax.random.key(0), training_pair.data, potentials=POTENTIALS[options["potentials"]])


def _with_solver(run: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return `Method.solve` of a method that draws samples; `names` are the options that its `run` takes."""

    def solve(model: pairwise.PairwiseMRF, graph: kbp.Graph, options: Options, y: jax.Array, key: jax.Array) -> Any:
        evidence = kbp.likelihood(model, graph, known_noise(y))
        given = {name: options[name] for name in names}
        given |= {"sampler": SAMPLERS[given["sampler"]]} if "sampler" in given else {}
        return run(model, graph, evidence, key=key, **given)

    return solve


def _with_beliefs(beliefs: Callable[..., kbp.Belief]) -> Callable[..., kbp.Belief]:
    """Return `Method.beliefs` of a method that draws samples."""

    def at_levels(model: Any, graph: kbp.Graph, y: jax.Array, solution: Any, gray: jax.Array) -> kbp.Belief:
        return beliefs(model, graph, kbp.likelihood(model, graph, known_noise(y)), solution, gray)

    return at_levels


LOOP = {"reweighted": (False, True), "agreement": (False, True)}
"""Searched for messages that are tables or functions: exponents of `tree_reweighting`, and damping by agreement."""

SAMPLERS = {"multiscale": nonparametric.MultiscaleSampler(capacity=32), "Gibbs": nonparametric.GibbsSampler(5)}
"""Of products of mixtures."""

KERNEL = Method(
    "kernel BP",
    _learn_kernel,
    _solve_kernel,
    _beliefs_kernel,
    {**dataclasses.asdict(SETTINGS["paper"]), "reweighted": False, "num_iters": 30},
    {
        "bandwidth": (1.0, 0.5, 0.25),
        "obs_bandwidth": (0.5**0.5, 0.5**1.5),
        "ridge_m": (1e-2, 1.0),
        "damping": (0.8, 0.2, 0.0),
        **LOOP,
        "num_iters": (30, 15),
    },
    {"agreement": False},
)
KERNEL_KNOWN = Method(
    "kernel BP, true likelihood",
    _learn_kernel,
    _solve_known,
    _beliefs_known,
    KERNEL.paper,
    {option: values for option, values in KERNEL.search.items() if option != "obs_bandwidth"},
    KERNEL.start,
)
DISCRETE = Method(
    "discrete BP",
    _learn_discrete,
    _solve_known,
    _beliefs_known,
    {"pseudo_count": 1.0, "damping": 0.2, "reweighted": False, "agreement": False, "num_iters": 30},
    {"pseudo_count": (1.0, 1e-2, 1e-4), "damping": (0.2, 0.8, 0.0), **LOOP, "num_iters": (30, 15)},
)
SMOOTHED = Method(
    "discrete BP, smoothed table",
    _learn_smoothed,
    _solve_known,
    _beliefs_known,
    {**DISCRETE.paper, "pseudo_count": 1e-2, "width": 8.0},
    {"width": (8.0, 4.0, 2.0), **DISCRETE.search},
)
GAUSSIAN = Method(
    "Gaussian BP",
    _learn_gaussian,
    _solve_gaussian,
    _beliefs_gaussian,
    {"stiffness": 1.0, "prior": 1.0, "num_iters": 100},
    {"stiffness": (1.0, 0.5, 2.0), "prior": (1.0, 0.1)},
)
MIXTURE = Method(
    "mixture BP",
    _learn_pairwise,
    _with_solver(nonparametric.run, "num_components", "num_iters", "damping", "min_bandwidth", "sampler"),
    _with_beliefs(nonparametric.beliefs),
    {
        "potentials": "conditionals",
        "min_bandwidth": 1e-3,
        "num_components": 30,
        "num_iters": 10,
        "damping": 0.0,
        "sampler": "multiscale",
    },
    {
        "min_bandwidth": (1e-3, 0.1, 0.2, 0.3),
        "damping": (0.0, 0.5),
        "sampler": tuple(SAMPLERS),
    },
    slow=True,
)
PARTICLE = Method(
    "particle BP",
    _learn_pairwise,
    _with_solver(particle.run, "num_particles", "num_iters", "resample_every", "num_moves", "damping"),
    _with_beliefs(particle.beliefs),
    {
        "potentials": "ratios",
        "num_particles": 30,
        "num_iters": 30,
        "resample_every": 15,
        "num_moves": 10,
        "damping": 0.0,
    },
    {
        "potentials": ("ratios", "conditionals"),
        "damping": (0.0, 0.5, 0.8),
        "resample_every": (15, 5),
        "num_particles": (30, 50),
        "num_moves": (10, 20),
    },
    slow=True,
)
EXPECTATION = Method(
    "expectation particle BP",
    _learn_pairwise,
    _with_solver(expectation_particle.run, "num_particles", "num_iters", "damping"),
    _with_beliefs(particle.beliefs),
    {"potentials": "ratios", "num_particles": 30, "num_iters": 30, "damping": 0.5},
    {"potentials": ("ratios", "conditionals"), "damping": (0.5, 0.8), "num_particles": (30, 50)},
    slow=True,
)
_ALL = (KERNEL, KERNEL_KNOWN, DISCRETE, SMOOTHED, GAUSSIAN, MIXTURE, PARTICLE, EXPECTATION)
METHODS = {method.name: method for method in _ALL}
