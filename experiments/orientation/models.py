"""Kernel belief propagation on a chain of frames whose rotations are hidden."""

import dataclasses
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib.datasets import evenly
from experiments.orientation.data import Frames, features_of

NEAR = 25.0
"""Degrees about the mode of a belief within which the mean is taken: the mean of two opposite guesses is no guess."""

YAW_BINS = 72
"""Directions in which beliefs over the yaw are kept."""

Options = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Estimates:
    """Estimates of a method for some frames.

    Attributes:
        rotations: {kind of the answer, "" for the method's own: [m, T, 3, 3]}.
        fit_s, run_s: seconds to learn, and to answer one trajectory.
        yaw: {kind: beliefs over `YAW_BINS` directions [m, T, bin]}, of methods that have some.
    """

    rotations: dict[str, np.ndarray]
    fit_s: float
    run_s: float
    yaw: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def propagate(train: Frames, test: Frames, options: Options, *, kernel: str, rank: int) -> Estimates:
    """Return estimates of kernel belief propagation on the chain of frames, and of its evidence without messages."""
    seen, y = features_of(train, test, options["components"])
    lengths = train.rotations.shape[1], test.rotations.shape[1]
    data = kbp.pool(kbp.chain_graph(lengths[0]), train.rotations, seen)
    bandwidth = np.deg2rad(options["bandwidth"])
    of_rotations = {"trace": lambda: kbp.kernels.Rotations(bandwidth**-2), "heat": lambda: kbp.kernels.Heat(bandwidth)}
    start = time.perf_counter()
    model = kbp.fit(
        data,
        kernel=of_rotations[kernel](),
        obs_kernel=kbp.RBF(options["obs_scale"] * kbp.median_bandwidth(evenly(data.observations[0][1]))),
        rule=kbp.ConstantTime(eps=1e-3, max_rank=rank),
        ridge=options["ridge"],
        obs_ridge=options["obs_ridge"],
    )
    jax.block_until_ready(model)
    fit_s = time.perf_counter() - start
    form = kbp.DensityRatio() if options["form"] == "ratio" else kbp.Expectation()
    ask = partial(infer, model, y=jnp.asarray(y), candidates=data.nodes[0], power=options["power"], form=form)
    start = time.perf_counter()
    near, mode, mean, yaw = jax.block_until_ready(ask(kbp.chain_graph(lengths[1])))
    run_s = (time.perf_counter() - start) / len(y)
    no_edges, *_, yaw_no_edges = ask(kbp.Graph.from_edges(np.zeros((0, 2), int), lengths[1]))
    found = {"": near, ", mode": mode, ", mean": mean, ", no chain": no_edges}
    beliefs = {"": np.asarray(yaw), ", no chain": np.asarray(yaw_no_edges)}
    return Estimates({kind: np.asarray(value) for kind, value in found.items()}, fit_s, run_s, beliefs)


@jax.jit
def infer(model: kbp.KernelMRF, graph: kbp.Graph, y: Any, candidates: Any, power: Any, form: Any) -> tuple[Any, ...]:
    """Return mean near the mode, mode and mean of all frames of all trajectories, and beliefs over the yaw.

    Candidates are the training rotations, which are samples of the marginal: hence `Empirical`.
    """
    bins = jax.nn.one_hot(yaw_bins(candidates), YAW_BINS, dtype=candidates.dtype)

    def one(y):
        evidence = kbp.observe(model, graph, y, evidence_model=form) ** power
        solution = kbp.run_tree(model, graph, evidence)
        belief = kbp.beliefs(model, graph, evidence, solution, candidates, marginal=kbp.Empirical())
        near = jax.vmap(mean_near_mode, in_axes=(0, None))(belief.weights, candidates)
        mean = kbp.kernels.nearest_rotations(kbp.mean(belief))
        return near, kbp.mode(belief), mean, belief.weights @ bins

    return jax.lax.map(one, y)


def yaw_bins(rotations: Any) -> Any:
    """Return the bin of the direction in which each camera looks, from yaw -180 on."""
    turns = jnp.arctan2(rotations[:, 1, 0], rotations[:, 0, 0]) / (2 * jnp.pi) + 0.5
    return jnp.minimum((turns * YAW_BINS).astype(jnp.int32), YAW_BINS - 1)


def mean_near_mode(weights: Any, candidates: Any) -> Any:
    """Return the mean of the candidates within `NEAR` degrees of the one of largest weight, made a rotation."""
    to_mode = cosines(candidates, candidates[jnp.argmax(weights)][None])[:, 0]
    kept = jnp.where(to_mode >= float(np.cos(np.deg2rad(NEAR))), weights, 0)
    return kbp.kernels.nearest_rotations(jnp.einsum("p,pij->ij", kept, candidates))


def cosines(x: Any, y: Any) -> Any:
    """Return the cosines of the angles between rotations [point, 3, 3] and [other, 3, 3]."""
    return jnp.clip((jnp.einsum("pij,qij->pq", x, y) - 1) / 2, -1, 1)
