"""Kernel Markov random fields of what a denoiser leaves over in photographs: learning, inference, scores."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import kbpjax as kbp
from experiments.learned_bandwidths.smoothers import Copy, Observer, observer_of

POINTS = np.linspace(-3, 3, 61, dtype=np.float32)
"""Candidates of the variable, in units of sigma."""

CROP = 40
"""Pixels a side of crops: four of each picture to fit the model to, one to calibrate with."""

NODES = 1200
"""Pixels of each picture that a gradient step uses."""


@dataclasses.dataclass(frozen=True)
class Learned:
    """Hyperparameters, the rows of their trials, and the seconds of learning."""

    hyperparameters: kbp.Hyperparameters
    trials: list[dict]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Model:
    """A fitted model, with what makes observations; without messages, pixels are answered one by one."""

    hyperparameters: kbp.Hyperparameters
    model: kbp.KernelMRF
    observer: Observer
    messages: bool
    sigma: float
    base: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """A cleaned picture: mean and standard deviation [h, w], and the beliefs of (clean - smoothed) / sigma."""

    mean: np.ndarray
    deviation: np.ndarray
    belief: kbp.Belief
    smoothed: np.ndarray
    sigma: float

    def residual(self, clean: np.ndarray) -> np.ndarray:
        """Return the true values of the variable [node]."""
        return ((clean - self.smoothed) / self.sigma).ravel()

    def scores(self, clean: np.ndarray) -> dict[str, float]:
        """Return the CRPS in gray levels, and the share of pixels in their 90 % interval."""
        truth = self.residual(clean)
        inside = kbp.coverage(self.belief, truth, [0.9])[0]
        return {"crps": float(self.sigma * kbp.CRPS()(self.belief, jnp.asarray(truth))), "cover90": float(inside)}


def start() -> kbp.Hyperparameters:
    """Return the hyperparameters to learn from; observations are standardized."""
    return kbp.Hyperparameters(
        kbp.RBF(0.25),
        kbp.kernels.ARD(np.ones(3, np.float32)),
        ridge=1e-5,
        obs_ridge=1e-5,
        evidence_model=kbp.DensityRatio(),
        evidence_power=0.7,
        rule=kbp.ConstantTime(eps=1e-3, max_rank=40),
    )


@functools.lru_cache(maxsize=8)
def graph_of(shape: tuple[int, int], messages: bool) -> kbp.Graph:
    """Return the grid of a picture, or its pixels without edges."""
    with jax.ensure_compile_time_eval():  # a known graph, also inside jax.jit
        if messages:
            return kbp.grid_graph(*shape)
        return kbp.Graph.from_edges(np.zeros((0, 2), int), shape[0] * shape[1])


def crops(arrays: Sequence[np.ndarray], side: int) -> np.ndarray:
    """Return four crops of each array [h, w, ...], one of each quarter [crop, node, ...]."""
    found = []
    for array in arrays:
        corners = [(i, j) for i in (0, array.shape[0] // 2) for j in (0, array.shape[1] // 2)]
        found += [array[i : i + side, j : j + side].reshape(side * side, *array.shape[2:]) for i, j in corners]
    return np.stack(found)


def training(copies: Sequence[Copy], observed: Sequence[np.ndarray]) -> kbp.TrainingData:
    """Return the training data of crops, with the pairs of neighbors of both directions as one type."""
    side = min(CROP, copies[0].residual.shape[0] // 2)
    truth = crops([copy.residual for copy in copies], side)
    return kbp.pool(kbp.grid_graph(side, side), truth, crops(observed, side))


def learn(
    learning: Sequence[Copy], later: Sequence[Copy], messages: bool, seed: int, count: int
) -> tuple[kbp.Hyperparameters, list[float], list[float]]:
    """Tune and calibrate hyperparameters; return them with the losses of the steps and of the validation.

    Args:
        learning: copies of the pictures to learn from: the model is fitted to every other one, and tuned on the rest.
        later: other noisy copies of the rest, to calibrate with.
        messages: whether the pixels are joined.
        seed: of the parts of pictures that steps use.
        count: number of gradient steps.
    """
    fitted, rest = learning[::2], learning[1::2]
    observer, observed = observer_of(fitted)
    data = training(fitted, observed)
    shape = rest[0].residual.shape
    truth = np.stack([copy.residual.ravel() for copy in rest])
    tuned = kbp.tune(
        start(),
        data,
        graph_of(shape, messages),
        truth,
        np.stack([observer(copy).reshape(truth.shape[1], -1) for copy in rest]),
        POINTS,
        frozen=lambda s: () if messages else (s.ridge, s.floor),
        nodes=min(NODES, truth.shape[1]),
        steps=count,
        every=count,
        optimizer=optax.adam(optax.cosine_decay_schedule(0.2, count, alpha=0.1)),
        key=jax.random.key(seed),
    )
    if tuned.stopped == "interrupted":
        raise KeyboardInterrupt
    side = min(CROP, shape[0] // 2)
    middle = tuple(slice((length - side) // 2, (length - side) // 2 + side) for length in shape)
    calibrated = kbp.calibrate(
        tuned.hyperparameters,
        tuned.model,
        graph_of((side, side), messages),
        np.stack([copy.residual[middle].ravel() for copy in later]),
        np.stack([observer(copy)[middle].reshape(side * side, -1) for copy in later]),
        POINTS,
    )
    return calibrated, [float(loss) for loss in tuned.losses], list(tuned.checks.values())


def fit(copies: Sequence[Copy], settings: kbp.Hyperparameters, messages: bool, sigma: float, base: str) -> Model:
    """Return the model of all pictures to learn from, whose copies have a base of `smoothers.BASES`."""
    observer, observed = observer_of(copies)
    return Model(settings, settings.fit(training(copies, observed)), observer, messages, sigma, base)


def clean(model: Model, copy: Copy) -> Answer:
    """Return the answer for a noisy copy."""
    shape = copy.smoothed.shape
    weights, mean, deviation = _answer(
        (shape, model.messages), model.hyperparameters, model.model, model.observer(copy).reshape(-1, 3)
    )
    mean, deviation = (model.sigma * np.asarray(part).reshape(shape) for part in (mean, deviation))
    belief = kbp.Belief(jnp.asarray(POINTS), weights)
    return Answer(np.clip(copy.smoothed + mean, 0, 255), deviation, belief, copy.smoothed, model.sigma)


@functools.partial(jax.jit, static_argnums=0)
def _answer(graph: Any, settings: kbp.Hyperparameters, model: kbp.KernelMRF, y: Any) -> tuple[Any, Any, Any]:
    belief = settings.answer(model, graph_of(*graph), y, POINTS)
    return belief.weights, kbp.mean(belief), jnp.sqrt(kbp.variance(belief))
