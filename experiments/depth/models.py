"""Graphical models of a depth map: kernel, discrete, particle and mixture belief propagation on the grid of patches.

The variable of a patch is its log10 depth; what is observed of it is a regression's prediction, or its features.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.depth.regression import EXTENSIONS, TRIALS
from experiments.lib.search import Trial, coordinate_search
from kbpjax.baselines import discrete, nonparametric, pairwise, particle

NUM_ITERS = 10
PAIRS = 40_000
"""Pairs of neighbors, and of depth and observation, drawn for each type of edge and node."""
CANDIDATES = 128


@dataclasses.dataclass(frozen=True)
class Setting:
    """Hyperparameters chosen on held-out folds; bandwidths in medians of the pairwise distances.

    `power` is the exponent of the evidence: errors of neighboring patches are correlated, so each counts less than one.
    `exponent` is that of the messages: 1 is belief propagation, 1/2 weighs trees alike. `floor` is that of evaluated
    messages, as pseudo-counts are that of tables: what keeps a neighbor that errs from ruling a depth out.
    """

    power: float = 0.3
    exponent: float = 0.5
    bandwidth: float = 0.25
    obs_bandwidth: float = 0.25
    ridge: float = 1e-2
    obs_ridge: float = 1e-3
    ratio: bool = False
    floor: float = 1e-4
    bins: int = 30
    temperature: float = 1.0

    @property
    def of_learning(self) -> "Setting":
        """The same with all else at its default."""
        names = ("bandwidth", "obs_bandwidth", "ridge", "obs_ridge", "floor", "bins")
        return Setting(**{name: getattr(self, name) for name in names})


TEMPERATURES = tuple(float(f"{2 ** (k / 2):.3g}") for k in range(-4, 10))
"""Of the beliefs that intervals are of: messages around loops, and evidence of neighbors, are too sure."""
SEARCH = {
    "kernel": {
        "power": (0.1, 0.3, 1.0),
        "exponent": (0.5, 1.0),
        "floor": (1e-2, 3e-2),
        "bandwidth": (0.25, 0.125),
        "obs_bandwidth": (0.25, 0.5),
        "ridge": (1e-2, 3e-2),
    },
    "features": {"ratio": (False, True), "power": (0.03, 0.1, 0.3), "obs_ridge": (1e-3, 1e-2), "exponent": (0.5, 1.0)},
    "discrete": {"power": (0.1, 0.3, 1.0), "exponent": (0.5, 1.0), "obs_ridge": (10.0, 1.0), "bins": (30, 60)},
}
"""Values to try, one option after the other, each with the best of those before."""
START = {
    "kernel": Setting(floor=1e-2),
    "features": Setting(),
    "discrete": Setting(obs_ridge=10.0),
}
"""Settings that a search begins with."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Pairs to learn from, in log10 metres: of neighbors by edge type, of depths and observations by node type."""

    edges: dict[int, tuple[np.ndarray, np.ndarray]]
    ends: dict[int, tuple[int, int]]
    observed: dict[int, tuple[np.ndarray, np.ndarray]]

    @property
    def data(self) -> kbp.TrainingData:
        """The pairs in the form that `fit` takes."""
        nodes = {v: depth for v, (depth, _) in self.observed.items()}
        return kbp.TrainingData(self.edges, nodes, self.observed, ends=self.ends)


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The grid of patches, in bands of rows that share what is learned.

    With as many bands as rows it is the model of the paper, with separate operators for each row of horizontal edges
    and each height of vertical edges, and a separate likelihood for each row.
    """

    rows: int
    columns: int
    bands: int = 1

    @property
    def band(self) -> np.ndarray:
        """The band of each row [row]."""
        return np.arange(self.rows) * self.bands // self.rows

    @property
    def types(self) -> tuple[np.ndarray, np.ndarray]:
        """Edge types of a horizontal edge [row] and of a vertical one [row - 1]."""
        band = self.band
        return band, self.bands + band[:-1] + band[1:]

    @property
    def graph(self) -> kbp.Graph:
        """The graph."""
        across, down = self.types
        kinds = np.concatenate([np.repeat(across, self.columns - 1), np.repeat(down, self.columns)])
        return kbp.grid_graph(self.rows, self.columns, edge_type=kinds, node_type=np.repeat(self.band, self.columns))

    def sample(self, depth: np.ndarray, observations: np.ndarray, rng: np.random.Generator) -> Sample:
        """Draw pairs of neighbors, and of depth and observation, where both are known.

        A band in which nothing is known, as above the reach of a laser, learns from all rows.

        Args:
            depth: log10 metres [scene, row, column], NaN where unknown.
            observations: observations [scene, row, column, *dim].
            rng: of the draw.
        """
        known, (across, down) = np.isfinite(depth), self.types
        edges, ends = {}, {}
        beside, below = known[:, :, :-1] & known[:, :, 1:], known[:, :-1] & known[:, 1:]
        for kind in np.unique(across):
            r = _rows(across == kind, beside)
            edges[int(kind)] = _draw(beside[:, r], rng, depth[:, r, :-1], depth[:, r, 1:])
            ends[int(kind)] = (int(kind), int(kind))
        for kind in np.unique(down):
            r, place = _rows(down == kind, below), int(kind) - self.bands
            edges[int(kind)] = _draw(below[:, r], rng, depth[:, r], depth[:, r + 1])
            ends[int(kind)] = (place // 2, (place + 1) // 2)
        rows = {int(v): _rows(self.band == v, known) for v in np.unique(self.band)}
        observed = {v: _draw(known[:, r], rng, depth[:, r], observations[:, r]) for v, r in rows.items()}
        return Sample(edges, ends, observed)


def _rows(chosen: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Return the chosen rows, or all where those have nothing that is usable [scene, row, column]."""
    return np.flatnonzero(chosen | ~usable[:, chosen].any())


def _draw(usable: np.ndarray, rng: np.random.Generator, *arrays: np.ndarray) -> Any:
    """Draw places where `usable`, and return what all arrays hold there."""
    places = np.flatnonzero(usable)
    drawn = rng.choice(places, min(PAIRS, len(places)), replace=False)
    return tuple(array.reshape(usable.size, *array.shape[usable.ndim :])[drawn] for array in arrays)


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """A model of one kind and what its evidence takes."""

    model: Any
    tables: Any = None  # of discrete belief propagation: P(bin of the prediction | bin) [bin, bin] and bins


def learn_kernel(sample: Sample, setting: Setting, obs_kernel: kbp.Kernel | None = None) -> Learned:
    """Learn the operators.

    Args:
        sample: the pairs.
        setting: bandwidths and ridges.
        obs_kernel: of the observations; None: RBF, for predictions of log10 depth.
    """
    depth, observations = (np.concatenate([pair[i] for pair in sample.observed.values()]) for i in (0, 1))
    rng = np.random.default_rng(0)
    depth, observations = rng.choice(depth, 2000), rng.choice(observations, 2000)
    kernel = kbp.RBF(setting.bandwidth * kbp.median_bandwidth(depth))
    if obs_kernel is None:
        obs_kernel = kbp.RBF(setting.obs_bandwidth * kbp.median_bandwidth(observations))
    rank = 40 if observations.ndim == 1 else 300
    rule = kbp.ConstantTime(eps=1e-3, max_rank=rank)
    ridges = {"ridge": setting.ridge, "obs_ridge": setting.obs_ridge}
    options = {"floor": setting.floor, "nonnegative": kbp.Clipped()}
    return Learned(kbp.fit(sample.data, kernel=kernel, obs_kernel=obs_kernel, rule=rule, **ridges, **options))


def learn_discrete(sample: Sample, setting: Setting) -> Learned:
    """Count pairs of bins, of neighbors and of depths and predictions; `setting.obs_ridge` is the pseudo-count."""
    (depth, observations), *more = sample.observed.values()
    if more:
        raise ValueError("sample must have one band of rows; got several. Compare discrete belief propagation at one.")
    states = discrete.bins(depth, setting.bins)
    model = discrete.fit(sample.data, states, pseudo_count=setting.obs_ridge)
    cells = np.searchsorted(_middles(states), depth), np.searchsorted(_middles(states), observations)
    counts = np.full((setting.bins, setting.bins), setting.obs_ridge, np.float32)
    np.add.at(counts, cells, 1)
    return Learned(model, (jnp.asarray(counts / counts.sum(1, keepdims=True)), states))


def _middles(states: Any) -> np.ndarray:
    states = np.asarray(states)
    return (states[1:] + states[:-1]) / 2


def _evidence(
    learned: Learned, graph: kbp.Graph, observations: jax.Array, power: jax.Array, ratio: bool
) -> kbp.Evidence:
    """Turn the observations of an image [node, *dim] into evidence."""
    if learned.tables is None:
        form = kbp.DensityRatio() if ratio else kbp.Expectation()
        by_type = {v: observations[graph.nodes_of_type(v)] for v, *_ in graph.node_types}
        return kbp.observe(learned.model, graph, by_type, evidence_model=form) ** power
    counts, states = learned.tables
    known = states.astype(observations.dtype), counts.astype(observations.dtype)
    of_seen = jax.vmap(jnp.interp, (None, None, 0), 1)(observations, *known)
    nearest = jax.tree_util.Partial(_nearest, of_seen, states)
    return kbp.likelihood(learned.model, graph, nearest) ** power


def _nearest(of_seen: jax.Array, states: jax.Array, points: jax.Array) -> jax.Array:
    return of_seen[:, jnp.searchsorted((states[1:] + states[:-1]) / 2, points)]


@partial(jax.jit, static_argnames="ratio")
def infer(
    learned: Learned,
    graph: kbp.Graph,
    observations: Any,
    points: Any,
    power: Any,
    exponent: Any,
    temperature: Any,
    ratio: bool,
) -> Any:
    """Return the median and the 90 % interval of each patch [3, node].

    Likelihoods of predictions between the centers of bins, and beliefs in depths between them, are interpolated.

    Args:
        learned: the model.
        graph: the grid; without edges, patches are independent.
        observations: observations [node, *dim].
        points: candidates [point], log10 metres.
        power: of the evidence.
        exponent: of the messages.
        temperature: of the beliefs that intervals are of.
        ratio: the form of learned evidence: P(y | x) / P(y), or the smoothed likelihood.
    """
    evidence = _evidence(learned, graph, observations, power, ratio)
    exponents = jnp.full(graph.num_edges // 2, exponent, jnp.float32)
    solution = kbp.run(learned.model, graph, evidence, num_iters=NUM_ITERS, damping=0.2, exponents=exponents)
    if learned.tables is None:
        return summarize(kbp.beliefs(learned.model, graph, evidence, solution, points), temperature)
    states = learned.tables[1]
    weights = kbp.beliefs(learned.model, graph, evidence, solution, states).weights.astype(points.dtype)
    between = jax.vmap(jnp.interp, (None, None, 0))(points, states.astype(points.dtype), weights)
    return summarize(kbp.Belief(points, between / between.sum(1, keepdims=True)), temperature)


def summarize(belief: kbp.Belief, temperature: Any) -> jax.Array:
    """Return the median, and lower and upper end of the 90 % interval of the tempered belief [3, node]."""
    return jnp.stack([kbp.quantile(belief, 0.5), *kbp.interval(kbp.temper(belief, temperature), 0.9)])


jax.tree_util.register_dataclass(Learned, ["model", "tables"], [])


def estimate(learned: Learned, graph: kbp.Graph, images: np.ndarray, points: Any, setting: Setting) -> np.ndarray:
    """Return median and interval [image, 3, row, column] given observations [image, row, column, *dim]."""
    grid = images.shape[1:3]
    numbers = [jnp.float32(of) for of in (setting.power, setting.exponent, setting.temperature)]
    found = [
        infer(
            learned,
            graph,
            jnp.asarray(observations.reshape(-1, *observations.shape[2:])),
            points,
            *numbers,
            ratio=setting.ratio,
        )
        for observations in images
    ]
    return np.asarray(jnp.stack(found)).reshape(len(images), 3, *grid)


def calibrate(coverage: Callable[[Setting], float], setting: Setting) -> Setting:
    """Choose the temperature whose intervals cover nearest to 90 %."""
    trials = [dataclasses.replace(setting, temperature=value) for value in TEMPERATURES]
    return min(trials, key=lambda trial: abs(coverage(trial) - 0.9))


def search(kind: str, error: Callable[[Setting], float], trials: int = TRIALS) -> tuple[Setting, list[Trial]]:
    """Return the setting of a coordinate search by the error on held-out folds, and all trials."""
    start, loss = dataclasses.asdict(START[kind]), lambda options: error(Setting(**options))
    best, tried = coordinate_search(start, SEARCH[kind], loss, budget=trials, extensions=EXTENSIONS)
    return Setting(**best), tried


def estimate_by_samples(
    sample: Sample, graph: kbp.Graph, images: np.ndarray, points: Any, spread: float, kind: str, power: float
) -> np.ndarray:
    """Return estimates by particle or mixture belief propagation, as `estimate` does.

    Pair densities are learned from the sample; the evidence is a Gaussian around the prediction, as in the paper.

    Args:
        sample: the pairs.
        graph: the grid.
        images: predictions [image, row, column].
        points: candidates [point].
        spread: standard deviation of the predictions' errors out of fold, in log10 metres.
        kind: "particle" or "mixture".
        power: of the evidence.
    """
    few = {k: (first[:5000], second[:5000]) for k, (first, second) in sample.edges.items()}
    nodes = {v: depth[:5000] for v, (depth, _) in sample.observed.items()}
    model = pairwise.fit(jax.random.key(0), kbp.TrainingData(few, nodes, ends=sample.ends))
    found = []
    for number, observations in enumerate(images):
        around = jax.tree_util.Partial(_gaussian, jnp.asarray(observations.ravel()), jnp.float32(spread * power**-0.5))
        evidence = kbp.likelihood(model, graph, around)
        key = jax.random.key(number)
        if kind == "particle":
            few = {"num_particles": 20, "num_iters": 20, "resample_every": 10}
            solution = particle.run(model, graph, evidence, key=key, damping=0.0, **few)
            belief = particle.beliefs(model, graph, evidence, solution, points)
        else:
            few_components = {"num_components": 10, "num_iters": 5, "sampler": nonparametric.GibbsSampler(5)}
            solution = nonparametric.run(model, graph, evidence, key=key, damping=0.0, **few_components)
            belief = nonparametric.beliefs(model, graph, evidence, solution, points)
        found.append(np.asarray(summarize(belief, 1.0)))
    return np.stack(found).reshape(len(images), 3, *images.shape[1:3])


def _gaussian(observations: jax.Array, spread: jax.Array, points: jax.Array) -> jax.Array:
    return jnp.exp(-0.5 * ((observations[:, None] - jnp.atleast_2d(points)) / spread) ** 2)
