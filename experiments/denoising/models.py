"""Kernel Markov random fields of noisy images: settings, learning, inference, calibration, error."""

import argparse
import dataclasses
import time
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib.datasets import evenly
from experiments.lib.schedules import Agreement


@dataclasses.dataclass(frozen=True)
class Setting:
    """Choices relative to the data: bandwidths in medians of the pairwise distances, the ridge as lambda m."""

    bandwidth: float
    obs_bandwidth: float
    ridge_m: float
    damping: float
    agreement: bool = False
    """Damping that moves a message less where its incoming messages disagree (`lib.schedules.Agreement`)."""
    convergent: bool = False
    """Nonnegative operators, tree-reweighted messages, colors in turn, Anderson acceleration, run to `TOL`."""


TOL = 1e-4
"""Residual at which a convergent run ends."""

MAX_ITERS = 200
"""Iterations that a convergent run may take."""

TEMPERATURES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05)
"""Tried for the beliefs of a convergent run, on a second noisy copy of the training image."""

COVERAGES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Probabilities of the intervals whose empirical coverage is reported."""

SETTINGS = {
    # The authors' program: exp(-0.5 d^2 / median^2) on gray levels, exp(-d^2 / median^2) on observations.
    "paper": Setting(bandwidth=1.0, obs_bandwidth=0.5**0.5, ridge_m=1e-2, damping=0.8, agreement=True),
    # A quarter of the bandwidth resolves single gray levels, half the other sharpens the likelihood.
    "narrow": Setting(bandwidth=0.25, obs_bandwidth=0.5**1.5, ridge_m=1.0, damping=0.2, agreement=True),
}
CONVERGENT = Setting(bandwidth=0.25, obs_bandwidth=0.3, ridge_m=20.0, damping=0.0, convergent=True)
ALL_SETTINGS = {"convergent": CONVERGENT, **SETTINGS}

AUTOMATIC = "automatic"
"""The setting without options: `kbpjax.fit` chooses hyperparameters, `kbpjax.infer` iterates to convergence."""

AUTOMATIC_TOL = 1e-3
"""Residual at which `kbpjax.infer` stops."""


def learn(
    train: np.ndarray, noisy: np.ndarray, setting: Setting, args: argparse.Namespace, positive: Any = None
) -> tuple[kbp.KernelMRF, dict]:
    """Fit the model to an image and its noisy copy; return it with the options used and the seconds it took."""
    graph = kbp.grid_graph(*train.shape)
    options = {"bandwidth": args.bandwidth, "obs_bandwidth": args.obs_bandwidth, "ridge": args.ridge}
    if args.bandwidth is None:
        options["bandwidth"] = setting.bandwidth * float(kbp.median_bandwidth(evenly(train.ravel())))
    if args.obs_bandwidth is None:
        options["obs_bandwidth"] = setting.obs_bandwidth * float(kbp.median_bandwidth(evenly(noisy.ravel())))
    if args.ridge is None:
        options["ridge"] = setting.ridge_m / (graph.num_edges // 2)
    start = time.perf_counter()
    model = kbp.fit(
        kbp.pool(graph, train.reshape(1, -1), noisy.reshape(1, -1)),
        kernel=kbp.RBF(options["bandwidth"]),
        obs_kernel=kbp.RBF(options["obs_bandwidth"]),
        rule=kbp.ConstantTime(eps=args.eps),
        ridge=options["ridge"],
        nonnegative=positive,
    )
    jax.block_until_ready(model)
    return model, {**options, "fit_s": time.perf_counter() - start}


def learn_automatically(train: np.ndarray, noisy: np.ndarray) -> tuple[kbp.KernelMRF, dict]:
    """Fit a model with chosen hyperparameters; return it with the choice and the seconds it took."""
    start = time.perf_counter()
    data = kbp.pool(kbp.grid_graph(*train.shape), train.reshape(1, -1), noisy.reshape(1, -1))
    model = jax.block_until_ready(kbp.fit(data))
    chosen: Any = model.hyperparameters
    record = {
        "bandwidth": float(chosen.kernel[0].bandwidth),
        "obs_bandwidth": float(chosen.obs_kernel[0].bandwidth),
        "ridge": float(chosen.ridge),
        "fit_s": time.perf_counter() - start,
    }
    return model, record


def infer(model: kbp.KernelMRF, graph: kbp.Graph, y: Any, points: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the beliefs over `points` given a noisy image, and the solution."""
    evidence = kbp.observe(model, graph, y)
    solution = kbp.run(model, graph, evidence, **options)
    return kbp.beliefs(model, graph, evidence, solution, points), solution


def damping_of(setting: Setting) -> dict[str, Any]:
    """Return the damping of a setting, and the schedule that applies it, as options of `kbpjax.run`."""
    return {"damping": setting.damping, "schedule": Agreement() if setting.agreement else kbp.Synchronous()}


def loop_options(graph: kbp.Graph, setting: Setting, iters: int) -> dict[str, Any]:
    """Return the options of `kbpjax.run` that belong to a setting."""
    if not setting.convergent:
        return {"num_iters": iters, **damping_of(setting)}
    return {
        "num_iters": MAX_ITERS,
        "tol": TOL,
        "damping": setting.damping,
        "exponents": kbp.tree_reweighting(graph),
        "schedule": kbp.colored(graph),
        "acceleration": kbp.Anderson(),
    }


def calibrate(model: kbp.KernelMRF, train: np.ndarray, noisy: Any, setting: Setting, points: np.ndarray) -> float:
    """Choose the temperature of beliefs by the score of 90 % intervals on a second noisy copy of the training image."""
    graph = kbp.grid_graph(*train.shape)
    options = loop_options(graph, setting, MAX_ITERS)
    belief, _ = jax.jit(lambda y: infer(model, graph, y, points, options))(noisy)
    score, truth = kbp.IntervalScore(0.9), jnp.asarray(train.reshape(-1))
    return min(TEMPERATURES, key=lambda value: float(score(cast(Any, kbp.temper(belief, value)), truth)))


def rmse(estimates: np.ndarray, truth: np.ndarray) -> float:
    """Return the root mean squared error of each image, averaged over images.

    Args:
        estimates: estimates [image, pixel]; each image is one row.
        truth: the true image [pixel], or [1, pixel].
    """
    if estimates.ndim != 2 or truth.reshape(-1).shape != estimates.shape[1:]:
        raise ValueError(f"must be [image, pixel] and [pixel]; got {estimates.shape} and {truth.shape}")
    return float(np.mean(np.sqrt(np.mean((estimates - truth) ** 2, axis=1))))
