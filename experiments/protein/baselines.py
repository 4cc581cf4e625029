"""Baselines: predictors of one residue from its window of profiles, and particle belief propagation on the chain."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.tree_util import Partial

import kbpjax as kbp
from experiments.protein import data
from experiments.protein.data import RESIDUES, Chains, harmonics, sphere_grid, unit
from kbpjax.baselines import expectation_particle, pairwise, particle

GROUPS = 3
"""Parts of the training chains; what is predicted for one is learned from the others."""
PART = 100
"""Residues of each of a few chains that particle belief propagation answers in each fold."""
BLOCK = 2048
PAIRS, PARTICLES = 4000, 30
Options = dict[str, Any]


class Task(NamedTuple):
    """The data of one fold for all methods."""

    chains: Chains
    x: np.ndarray  # windows of profiles [residue, feature]
    group: np.ndarray  # which part of the training chains each residue is in, -1 in test chains [residue]
    width: int  # residues in a window

    @property
    def train(self) -> np.ndarray:
        """Numbers of the training residues with known angles and profile."""
        return np.flatnonzero((self.group >= 0) & self.chains.scored & self.chains.observed)

    @property
    def test(self) -> np.ndarray:
        """Numbers of all residues of the test chains."""
        return np.flatnonzero(self.group < 0)

    def validation(self) -> "Task":
        """Return the task of predicting the first part of the training chains from the others."""
        keep = np.unique(self.chains.chain[self.group >= 0])
        rows = self.group >= 0
        group = self.group[rows] - 1
        return Task(self.chains.part(keep), self.x[rows], group, self.width)


def graph_of(task: Task, rows: np.ndarray, by_residue: bool, cut: int | None = None) -> kbp.Graph:
    """Join neighbors of an unbroken chain among some residues, which are in order.

    Args:
        task: the fold.
        rows: numbers of the residues.
        by_residue: whether each ordered pair of residue types is an edge type of its own.
        cut: no edge after each `cut` residues.
    """
    joined = task.chains.linked[rows[:-1]] & (np.diff(rows) == 1)
    first = np.flatnonzero(joined & ((np.arange(1, len(rows)) % cut != 0) if cut else True))
    kinds = task.chains.kinds[rows]
    edge_type = len(RESIDUES) * kinds[first] + kinds[first + 1] if by_residue else None
    return kbp.Graph.from_edges(np.stack([first, first + 1], axis=1), len(rows), edge_type=edge_type)


def part_of(task: Task, count: int) -> tuple[np.ndarray, kbp.Graph]:
    """Return the first residues of a few test chains that have no gap there, and their graph, of one shape always."""
    starts = task.chains.offsets[:-1]
    starts = starts[(task.group[starts] < 0) & (np.diff(task.chains.offsets) >= PART)]
    whole = [task.chains.linked[i : i + PART - 1].all() & task.chains.observed[i : i + PART].all() for i in starts]
    starts = starts[np.array(whole, bool)][:count]
    if len(starts) == 0:
        raise ValueError(f"data must have test chains of {PART} residues without a gap; got none. Use more chains.")
    rows = (starts[:, None] + np.arange(PART)).reshape(-1)
    return rows, graph_of(task, rows, False, PART)


def ridge(task: Task, options: Options) -> np.ndarray:
    """Predict the vectors of the test residues by ridge regression [residue, 3]."""
    from sklearn.linear_model import Ridge

    x, y = task.x.astype(np.float64), task.chains.vectors.astype(np.float64)
    model = Ridge(alpha=options["ridge"] * len(task.train)).fit(x[task.train], y[task.train])
    return model.predict(x[task.test])


def boosting(task: Task, options: Options) -> np.ndarray:
    """Predict the vectors of the test residues by gradient boosting, a model for each coordinate [residue, 3]."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    x, y = task.x[task.train], task.chains.vectors[task.train]
    new = task.x[task.test]
    settings: Any = {**options, "early_stopping": False, "random_state": 0}
    models = (HistGradientBoostingRegressor(**settings) for _ in range(3))
    return np.stack([model.fit(x, y[:, i]).predict(new) for i, model in enumerate(models)], axis=1)


def summaries(task: Task, options: Options) -> np.ndarray:
    """Predict `harmonics` of all residues from their windows of profiles [residue, 8]; see `kernel_regression`."""
    return kernel_regression(task, faded(task.x, task.width, options["decay"]), options)[0]


def stacked(task: Task, seen: np.ndarray, options: Options) -> np.ndarray:
    """Predict `harmonics` of all residues from the `summaries` of those around, a second regression [residue, 8].

    Args:
        task: the fold.
        seen: `summaries` of all residues, out of fold for training chains [residue, 8].
        options: those of `kernel_regression`, `decay`, and `reach`, the number of residues to either side.
    """
    width, known = 2 * options["reach"] + 1, task.chains.observed[:, None]
    center = seen[task.train].mean(axis=0)
    x = data.around(task.chains, np.where(known, seen - center, 0), width)
    return kernel_regression(task, faded(x, width, options["decay"]), options)[0]


def faded(x: np.ndarray, width: int, decay: float) -> np.ndarray:
    """Return windows [residue, width n] whose values count `decay` times as much for each step away."""
    weights = decay ** np.abs(np.arange(width) - width // 2)
    return (x * np.repeat(weights, x.shape[1] // width)).astype(np.float32)


def kernel_regression(task: Task, x: np.ndarray, options: Options) -> tuple[np.ndarray, float]:
    """Predict `harmonics` of all residues by kernel regression on random landmarks.

    The conditional mean embedding of the angles, cut to degree two. What is predicted for a training chain is learned
    from the other parts of the training chains, as for a new one. The ridge is that of the best mean cosine there.

    Args:
        task: the fold.
        x: inputs [residue, feature].
        options: `scale` of the bandwidth, in median distances of inputs; `landmarks`, their number; `ridges` to choose
            from.

    Returns:
        Predictions [residue, 8], and the ridge.
    """
    rows = task.train
    targets = harmonics(task.chains.vectors[rows].astype(np.float64))
    offset = targets.mean(axis=0)
    landmarks = x[np.random.default_rng(0).permutation(rows)[: options["landmarks"]]]
    bandwidth = np.float32(options["scale"] * kbp.median_bandwidth(landmarks))
    gram = np.asarray(_similar(landmarks, landmarks, bandwidth), np.float64)
    root = np.linalg.cholesky(gram + 1e-5 * np.eye(len(gram)))
    transform = scipy.linalg.solve_triangular(root.T, np.eye(len(gram))).astype(np.float32)
    group, sums = task.group[rows], []
    for g in range(group.max() + 1):
        mine = group == g
        sums.append(_sums(x[rows[mine]], (targets[mine] - offset).astype(np.float32), landmarks, transform, bandwidth))
    total = [np.sum(np.stack(of), axis=0) for of in zip(*sums, strict=True)]
    found = np.zeros((len(options["ridges"]), len(x), 8))
    for g in range(-1, len(sums)):
        gram, cross, count = total if g < 0 else [whole - part for whole, part in zip(total, sums[g], strict=True)]
        solved = [_solve(gram, cross, count * value) for value in options["ridges"]]
        mine = np.flatnonzero(task.group == g)
        predicted = _predict(x[mine], landmarks, transform @ np.concatenate(solved, axis=1), bandwidth)
        found[:, mine] = np.moveaxis(predicted.reshape(len(mine), -1, 8), 1, 0) + offset
    cosines = [np.mean(np.sum(unit(of[rows, :3]) * task.chains.vectors[rows], axis=1)) for of in found]
    best = int(np.argmax(cosines))
    return found[best].astype(np.float32), float(options["ridges"][best])


@jax.jit
def _similar(x: Any, y: Any, bandwidth: Any) -> Any:
    square = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(y**2, axis=1)[None] - 2 * x @ y.T
    return jnp.exp(-jnp.maximum(square, 0) / (2 * bandwidth**2))


@jax.jit
def _block(x: Any, targets: Any, count: Any, landmarks: Any, transform: Any, bandwidth: Any) -> Any:
    """Sum over the first `count` rows of a block."""
    valid = (jnp.arange(len(x)) < count)[:, None]
    features = jnp.where(valid, _similar(x, landmarks, bandwidth) @ transform, 0)
    return features.T @ features, features.T @ targets


def _sums(x: np.ndarray, targets: np.ndarray, landmarks: np.ndarray, transform: np.ndarray, bandwidth: Any) -> Any:
    gram, cross = np.zeros((len(landmarks),) * 2), np.zeros((len(landmarks), targets.shape[1]))
    for start in range(0, len(x), BLOCK):
        part = [_pad(array[start : start + BLOCK]) for array in (x, targets)]
        found = _block(*part, min(BLOCK, len(x) - start), landmarks, transform, bandwidth)
        gram += np.asarray(found[0])
        cross += np.asarray(found[1])
    return gram, cross, len(x)


def _pad(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, np.zeros((BLOCK - len(rows), *rows.shape[1:]), rows.dtype)])


def _solve(gram: np.ndarray, cross: np.ndarray, penalty: float) -> np.ndarray:
    return scipy.linalg.solve(gram + penalty * np.eye(len(gram)), cross, assume_a="pos").astype(np.float32)


@jax.jit
def _project(x: Any, landmarks: Any, weights: Any, bandwidth: Any) -> Any:
    return _similar(x, landmarks, bandwidth) @ weights


def _predict(x: np.ndarray, landmarks: np.ndarray, weights: np.ndarray, bandwidth: Any) -> np.ndarray:
    parts = [_project(_pad(x[i : i + BLOCK]), landmarks, weights, bandwidth) for i in range(0, len(x), BLOCK)]
    return np.concatenate(parts)[: len(x)]


def particles(task: Task, seen: np.ndarray, graph: kbp.Graph, rows: np.ndarray, options: Options) -> kbp.Belief:
    """Return beliefs of particle belief propagation on a grid of the sphere.

    Densities are mixtures of Gaussians in space, which on the sphere are the paper's exp(concentration <x, y>). What is
    seen, `summaries`, is taken for a linear map of the harmonics of the angles with Gaussian noise, both learned.

    Args:
        task: the fold.
        seen: `summaries` of all residues [residue, 8].
        graph: the chains to answer.
        rows: the residues that are its nodes.
        options: `potentials`, `sampler`, `power` of the likelihood, and `sweeps`, the iterations.
    """
    y, rng = task.chains.vectors, np.random.default_rng(0)
    train = task.train
    first = train[task.chains.linked[train]]
    first = rng.permutation(first[np.isin(first + 1, train)])[:PAIRS]
    samples = kbp.TrainingData({0: (y[first], y[first + 1])}, {0: y[first]}, degrees={0: 2})
    potentials = {"ratios": pairwise.Ratios(), "conditionals": pairwise.Conditionals()}[options["potentials"]]
    model = pairwise.fit(jax.random.key(0), samples, potentials=potentials, num_centers=60)
    h = np.concatenate([harmonics(y[train]), np.ones((len(train), 1))], axis=1)
    weights = np.linalg.lstsq(h, seen[train], rcond=None)[0]
    root = np.linalg.cholesky(np.linalg.inv(np.cov((seen[train] - h @ weights).T)))
    arrays = (array.astype(np.float32) for array in (seen[rows] @ root, weights @ root))
    likelihood = Partial(_likelihood, *arrays, np.float32(options["power"]))
    evidence = kbp.likelihood(model, graph, likelihood)
    sampler = {"particle": particle.run, "expectation": expectation_particle.run}[options["sampler"]]
    more = {"resample_every": 5, "damping": 0.0} if options["sampler"] == "particle" else {}
    more |= {"num_particles": PARTICLES, "num_iters": options["sweeps"]}
    solution = sampler(model, graph, evidence, key=jax.random.key(1), **more)
    return particle.beliefs(model, graph, evidence, solution, sphere_grid(600))


def _likelihood(seen: Any, weights: Any, power: Any, x: Any) -> Any:
    """Return the likelihood at points [point, 3], or at each node's own [node, own, 3], brought to length 1."""
    x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-3)
    a, b, c = x[..., 0], x[..., 1], x[..., 2]
    second = [a * b, b * c, a * c, (a * a - b * b) / 2, (3 * c * c - 1) / 12**0.5]
    h = jnp.stack([a, b, c, *(5**0.5 * value for value in second), jnp.ones_like(a)], axis=-1)
    expected = h @ weights
    expected = expected if x.ndim == 3 else expected[None]
    square = jnp.sum((seen[:, None] - expected) ** 2, axis=-1)
    return jnp.exp(jnp.maximum(-power * (square - seen.shape[1]) / 2, -60))  # beyond that single precision holds 0
