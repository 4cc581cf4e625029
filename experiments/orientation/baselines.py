"""Baselines: regression and nearest neighbor of single frames, chains of nearest neighbors."""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from scipy.spatial.distance import cdist

import kbpjax as kbp
from experiments.lib.datasets import evenly
from experiments.orientation.data import Frames, features_of
from experiments.orientation.models import Estimates, Options, cosines, mean_near_mode


def regress(train: Frames, test: Frames, options: Options) -> Estimates:
    """Return the nearest rotations to the predictions of kernel ridge regression from single frames."""
    seen, y = features_of(train, test, options["components"])
    flat, asked = (f.reshape(-1, f.shape[-1]).astype(np.float64) for f in (seen, y))
    bandwidth = options["scale"] * float(kbp.median_bandwidth(evenly(flat)))
    start = time.perf_counter()
    targets = train.rotations.reshape(-1, 9).astype(np.float64)
    gram = np.exp(-cdist(flat, flat, "sqeuclidean") / (2 * bandwidth**2))
    gram[np.diag_indices_from(gram)] += options["ridge"] * len(flat)
    weights = scipy.linalg.solve(gram, targets - targets.mean(axis=0), assume_a="pos", overwrite_a=True)
    fit_s = time.perf_counter() - start
    start = time.perf_counter()
    entries = np.exp(-cdist(asked, flat, "sqeuclidean") / (2 * bandwidth**2)) @ weights + targets.mean(axis=0)
    rotations = np.asarray(kbp.kernels.nearest_rotations(entries.reshape(test.rotations.shape)))
    return Estimates({"": rotations}, fit_s, (time.perf_counter() - start) / len(y))


def nearest(train: Frames, test: Frames, options: Options) -> Estimates:
    """Return the rotation of the nearest training frame."""
    seen, y = features_of(train, test, options["components"])
    start = time.perf_counter()
    distance = cdist(y.reshape(-1, y.shape[-1]), seen.reshape(-1, seen.shape[-1]))
    rotations = train.rotations.reshape(-1, 3, 3)[np.argmin(distance, axis=1)].reshape(test.rotations.shape)
    return Estimates({"": rotations}, 0.0, (time.perf_counter() - start) / len(y))


def link(train: Frames, test: Frames, options: Options, *, best_path: bool) -> Estimates:
    """Return estimates on a chain of the nearest neighbors of each frame, with Gaussian noise and Gaussian motion.

    Either the most probable path (Viterbi), or the mean near the mode of each frame's marginal (forward-backward).
    """
    seen, y = features_of(train, test, options["components"])
    arrays = seen.reshape(-1, seen.shape[-1]), train.rotations.reshape(-1, 3, 3), y
    motion, sharpness = np.float32(np.deg2rad(options["motion"])), np.float32(options["sharpness"])
    count = min(options["neighbors"], len(arrays[0]))
    ask = partial(_link, motion=motion, sharpness=sharpness, count=count, best_path=best_path)
    start = time.perf_counter()
    rotations = np.asarray(ask(*map(jnp.asarray, arrays)))
    return Estimates({"": rotations}, 0.0, (time.perf_counter() - start) / len(y))


@partial(jax.jit, static_argnames=("count", "best_path"))
def _link(seen: Any, rotations: Any, y: Any, motion: Any, sharpness: Any, count: int, best_path: bool) -> Any:
    gather = jnp.max if best_path else jax.nn.logsumexp

    def one(y):
        distance = jnp.sum(seen**2, axis=1)[None] - 2 * y @ seen.T
        closeness, numbers = jax.lax.top_k(-distance, count)
        local, candidates = sharpness * closeness, rotations[numbers]

        def step(before, now):
            (message, there), (factor, here) = before, now
            moves = -((jnp.arccos(cosines(here, there)) / motion) ** 2) / 2
            message = gather(moves + message[None], axis=1)
            message = message - jnp.max(message)
            return (message + factor, here), message

        nothing = jnp.zeros(count, local.dtype)
        _, forth = jax.lax.scan(step, (local[0], candidates[0]), (local[1:], candidates[1:]))
        _, back = jax.lax.scan(step, (local[-1], candidates[-1]), (local[:-1], candidates[:-1]), reverse=True)
        logs = local + jnp.concatenate([nothing[None], forth]) + jnp.concatenate([back, nothing[None]])
        if best_path:
            return candidates[jnp.arange(len(logs)), jnp.argmax(logs, axis=1)]
        return jax.vmap(mean_near_mode)(jax.nn.softmax(logs, axis=1), candidates)

    return jax.lax.map(one, y)
