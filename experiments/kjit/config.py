"""Sizes of the experiments on just-in-time learning of messages, and the simulated problems that they share."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from kbpjax import ep

Row = dict[str, Any]


class Settings(NamedTuple):
    """Sizes of the experiments; the defaults are those of Jitkrittum et al. (2015).

    Attributes:
        seed: of all random numbers.
        dim, data: of a logistic problem, of which there are `sets` for the batches, and `problems` in the stream.
        collected: sweeps whose messages make a batch of `train` and `test` messages.
        tuned: most messages that kernels are chosen on, with the features `few`; `many` are those learned with.
        trees: in a forest.
        initial: messages that the operator of the stream asks for first.
        sweeps: of EP in the stream.
        sampled: problems of the stream by importance sampling, with so many `particles`.
        precisions: in bits, of the stream with the exact oracle.
        gamma: problems of the compound gamma stream.
        wide: features of the operators of the compound gamma and the real streams.
        real: messages that the operator of the real sets asks for first, and the sets.
    """

    seed: int = 0
    quick: bool = False
    dim: int = 20
    data: int = 300
    sets: int = 20
    collected: int = 5
    train: int = 5000
    test: int = 3000
    tuned: int = 1500
    few: tuple[int, int] = (300, 500)
    many: tuple[int, int] = (500, 1000)
    trees: int = 100
    problems: int = 30
    sampled: int = 10
    particles: int = 500_000
    initial: int = 300
    sweeps: int = 10
    precisions: tuple[int, ...] = (64, 32)
    fresh: int = 10_000
    gamma: int = 1500
    wide: tuple[int, int] = (400, 800)
    real: int = 500
    real_sets: tuple[str, ...] = ("banknote", "blood_transfusion", "fertility", "ionosphere")


def quick(seed: int) -> Settings:
    """Return settings of a run of less than a minute."""
    small = {"dim": 5, "data": 60, "sets": 6, "train": 300, "test": 200, "tuned": 150, "few": (60, 80)}
    small |= {"many": (80, 120), "trees": 10, "problems": 3, "sampled": 1, "particles": 2000, "initial": 60}
    small |= {"precisions": (64,), "fresh": 1000, "gamma": 150, "wide": (60, 80), "real": 100}
    return Settings(seed=seed, quick=True, real_sets=("fertility",), **small)


TARGETS = {"relative": ep.RelativeBelief(), "absolute": ep.AbsoluteBelief()}


def problems(settings: Settings, count: int, rng: np.random.Generator, shared: bool) -> tuple[np.ndarray, ...]:
    """Simulate logistic regressions: weights [problem, dim], x [problem, datum, dim] and y [problem, datum].

    `shared`: one vector of weights for all.
    """
    weights = rng.standard_normal((count, settings.dim))
    weights = np.broadcast_to(weights[:1], weights.shape) if shared else weights
    x = rng.standard_normal((count, settings.data, settings.dim))
    odds = np.einsum("pnd,pd->pn", x, weights)
    return weights, x, (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(int)


@partial(jax.jit, static_argnames="num_sweeps")
def exact(x: jax.Array, y: jax.Array, num_sweeps: int) -> ep.LinearPosterior:
    """Infer all problems with exact messages."""
    return jax.lax.map(lambda of: ep.logistic_regression(*of, num_sweeps=num_sweeps), (x, y))


def describe(values: np.ndarray) -> Row:
    """Return mean, standard deviation and quantiles of log divergences; those not finite are counted only."""
    fine = values[np.isfinite(values)]
    shares = {"q5": 5, "q25": 25, "median": 50, "q75": 75, "q95": 95, "q99": 99}
    if not len(fine):
        return {**dict.fromkeys(("mean", "sd", *shares)), "not_finite": len(values)}
    quantiles = dict(zip(shares, np.percentile(fine, list(shares.values())).tolist(), strict=True))
    return {"mean": float(fine.mean()), "sd": float(fine.std()), **quantiles, "not_finite": len(values) - len(fine)}


def log_kl(truth: Any, guess: Any) -> np.ndarray:
    """Return log KL(truth || guess); NaN where the guess is no distribution."""
    value = np.maximum(np.asarray(ep.kl(truth, guess), np.float64), 1e-16)
    return np.where(np.asarray(guess.proper), np.log(value), np.nan)
