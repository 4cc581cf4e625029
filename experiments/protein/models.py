"""Kernel Markov random fields of protein chains: learning and inference."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib.datasets import evenly
from experiments.protein import data
from experiments.protein.baselines import Options, Task

RANK, LINEAR_RANK, CANDIDATES, FLOOR = 100, 150, 600, 1e-3
PRIOR, SAMPLES = 300, 1024
"""Pairs of any residues that the operators of two types of residues learn from too; samples that stand for all."""


def learn(task: Task, observed: np.ndarray, options: Options) -> tuple[kbp.KernelMRF, np.ndarray]:
    """Learn a model; return it and candidates, training residues drawn at random.

    Args:
        task: the fold.
        observed: what is observed of each residue [residue, n].
        options: `by_residue`, whether each ordered pair of residue types has operators of its own; `linked`, the share
            of their samples that are neighbors: the others are unrelated residues, which makes the potentials weaker;
            multiples of the median rules, and ridges.
    """
    y, rows, rng = task.chains.vectors, task.train, np.random.default_rng(0)
    known = np.isin(np.arange(len(y)), rows)
    first = rows[task.chains.linked[rows]]
    first = first[known[first + 1]]
    first, rows = (_repeat(rng.permutation(some)) for some in (first, rows))
    pairs = by_residue(task, first) if options["by_residue"] else first[None]
    near = rng.random(pairs.shape) < options["linked"]
    edges = y[pairs], y[np.where(near, pairs + 1, rng.choice(rows, pairs.shape))]
    kernel = kbp.kernels.Sphere(options["concentration"] * kbp.kernels.median_concentration(evenly(y[rows])))
    narrow = "bandwidth" in options
    width = options["bandwidth"] * float(kbp.median_bandwidth(evenly(observed[rows]))) if narrow else 1.0
    obs_kernel = kbp.RBF(width) if narrow else kbp.Linear()
    ridges = np.float32(options["ridge"]), np.float32(options["obs_ridge"])
    types = range(len(edges[0]))
    pairs = {k: (edges[0][k], edges[1][k]) for k in types}
    own = {0: y[rows]}, {0: (y[rows], observed[rows])}
    samples = kbp.TrainingData(pairs, *own, ends=dict.fromkeys(types, (0, 0)), degrees={0: 3})
    chosen = kbp.ConstantTime(eps=1e-3, max_rank=RANK if narrow else LINEAR_RANK)
    rule = kbp.fix_landmarks(samples, kernel=kernel, obs_kernel=obs_kernel, rule=chosen, pad=True)
    return _fit(samples, kernel, obs_kernel, rule, *ridges), y[rows[:CANDIDATES]]


def by_residue(task: Task, first: np.ndarray) -> np.ndarray:
    """Return training pairs for each ordered pair of residue types, by the number of the first [type, pair].

    The pairs of the two types are mixed with `PRIOR` pairs of any, so that rare ones fall back on what all share.
    """
    kinds, types = task.chains.kinds, len(data.RESIDUES)
    types_of = types * kinds[first] + kinds[first + 1]
    order = np.argsort(types_of, kind="stable")
    own = np.split(first[order], np.cumsum(np.bincount(types_of, minlength=types**2))[:-1])
    shares = [SAMPLES * len(some) // (len(some) + PRIOR) for some in own]
    mixed = [(np.resize(some, n), np.resize(first, SAMPLES - n)) for some, n in zip(own, shares, strict=True)]
    return np.stack([np.concatenate(both) for both in mixed])


def _repeat(rows: np.ndarray, multiple: int = 4096) -> np.ndarray:
    """Repeat some at random up to a round number, so that folds share one compiled program."""
    return np.resize(rows, -(-len(rows) // multiple) * multiple)


@jax.jit
def _fit(samples: kbp.TrainingData, kernel: Any, obs_kernel: Any, rule: Any, ridge: Any, obs_ridge: Any) -> Any:
    """Fit the model on padded landmarks, so that folds share one compiled program."""
    options = {"ridge": ridge, "obs_ridge": obs_ridge, "floor": FLOOR}
    return kbp.fit(samples, kernel=kernel, obs_kernel=obs_kernel, rule=rule, **options)


@jax.jit
def infer(model: Any, graph: Any, y: Any, mask: Any, power: Any, points: Any) -> tuple[kbp.Belief, Any]:
    """Return the beliefs over candidates, and their modes.

    Candidates are samples of the marginal: hence `Empirical`; but where a belief is densest, the marginal counts.
    """
    evidence = kbp.observe(model, graph, y, mask=mask, evidence_model=kbp.DensityRatio()) ** power
    solution = kbp.run_tree(model, graph, evidence)
    mode = kbp.mode(kbp.beliefs(model, graph, evidence, solution, points))
    return kbp.beliefs(model, graph, evidence, solution, points, marginal=kbp.Empirical()), mode


def observations(task: Task, rows: np.ndarray, observed: np.ndarray) -> tuple[Any, Any]:
    """Return what is observed of some residues, and which of them have a profile."""
    return jnp.asarray(observed[rows]), jnp.asarray(task.chains.observed[rows])
