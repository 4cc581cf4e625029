"""Learned messages of the logistic factor against exact ones: a batch of messages of EP on simulated problems."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.kjit import forests
from experiments.kjit.config import TARGETS, Row, Settings, describe, exact, log_kl, problems
from experiments.lib import command_line
from experiments.lib.datasets import evenly
from experiments.lib.results import standard_error
from kbpjax import ep, kernels
from kbpjax.features import (
    Concatenated,
    EmbeddingFeatures,
    FeatureMap,
    Kronecker,
    MeanVarianceFeatures,
    Restricted,
    cholesky_basis,
    incomplete_cholesky,
)

PUBLISHED = {
    "KJIT, absolute": (-8.97, 1.57),
    "mean-variance features, absolute": (-6.96, 1.67),
    "joint expected product, absolute": (-2.78, 1.82),
    "sum of expected products, absolute": (-1.05, 1.93),
    "product of expected products, absolute": (-2.64, 1.65),
    "incomplete Cholesky of the sum, absolute": (-2.75, 2.84),
    "incomplete Cholesky of the joint kernel, absolute": (-8.71, 1.69),
    "Breiman forest, absolute": (-8.69, 1.79),
    "extra trees, absolute": (-8.90, 1.59),
}
"""Mean and standard deviation of log KL, Jitkrittum et al. (2015), section 5.1 and supplement. Their targets are
estimates by importance sampling, and their comparison kernels stop after 30 steps of conjugate gradients."""
SWEEPS = {"all": 0, "2-5": 1}
"""The first sweep (from 0) of which messages are taken."""
KEY = 17


class Messages(NamedTuple):
    """Incoming messages of the factor, the exact beliefs of z and p, and the problem that each message is from."""

    incoming: tuple[ep.Beta, ep.Gaussian]
    belief: ep.Gaussian
    belief_p: ep.Beta
    problem: np.ndarray

    def part(self, rows: Any) -> "Messages":
        return jax.tree.map(lambda leaf: leaf[rows], self)


class Batch(NamedTuple):
    """Training and test messages."""

    train: Messages
    test: Messages


@cache
def batch(settings: Settings, sweeps: str) -> Batch:
    """Run exact EP on fresh problems, and draw messages of the sweeps."""
    rng = np.random.default_rng([settings.seed, 1])
    _, x, y = problems(settings, settings.sets, rng, shared=False)
    record = exact(jnp.asarray(x), jnp.asarray(y), settings.collected).record
    kept = jax.tree.map(lambda leaf: leaf[:, SWEEPS[sweeps] :], record.incoming)
    shape = kept[1].shift.shape
    problem = np.broadcast_to(np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)), shape).reshape(-1)
    incoming = jax.tree.map(lambda leaf: leaf.reshape(-1), kept)
    rows = rng.permutation(len(incoming[1].shift))[: settings.train + settings.test]
    chosen = jax.tree.map(lambda leaf: leaf[rows], incoming)
    belief, belief_p = _truth(chosen)
    whole = Messages(chosen, belief, belief_p, problem[rows])
    return Batch(whole.part(slice(settings.train)), whole.part(slice(settings.train, None)))


@jax.jit
def _truth(incoming: tuple[ep.Beta, ep.Gaussian]) -> tuple[Any, Any]:
    def of_one(one: tuple[ep.Beta, ep.Gaussian]) -> tuple[Any, Any]:
        found = ep.logistic_integrals(*one)
        return found.z, ep.KLProjection().beta(found)

    return jax.lax.map(of_one, incoming, batch_size=64)


@cache
def operator(settings: Settings, sweeps: str, targets: str, variable: int = 1) -> ep.Operator:
    """Choose an operator's kernel and noise by leave-one-out error, and learn it."""
    messages = batch(settings, sweeps).train
    few, many = (ep.Learner(*of, targets=TARGETS[targets]) for of in (settings.few, settings.many))
    beliefs = messages.belief if variable else messages.belief_p
    tuned = jax.tree.map(lambda leaf: leaf[: settings.tuned], (messages.incoming, beliefs))
    keys = jax.random.split(jax.random.key(settings.seed + KEY))
    best, _ = ep.select_parameters(keys[0], tuned[0], tuned[1], candidates(settings), variable=variable, learner=few)
    learn = jax.jit(lambda a, b, chosen: ep.learn(keys[1], a, b, variable=variable, learner=many, parameters=chosen))
    return learn(messages.incoming, beliefs, best)


@cache
def forest(settings: Settings, sweeps: str, name: str, targets: str) -> tuple[Any, Row]:
    """Choose a forest's options, and learn it."""
    train = batch(settings, sweeps).train
    return forests.fit(name, train, TARGETS[targets], settings.trees, settings.seed)


def ranges(settings: Settings) -> list[str]:
    """Return the ranges of sweeps to draw messages of."""
    return list(SWEEPS)[: 1 if settings.quick else None]


def candidates(settings: Settings) -> ep.Parameters:
    """Return the authors' grid of widths and noises; of a quick run two of each."""
    return ep.grid_candidates((0.5, 2.0), (1e-4, 1e-2)) if settings.quick else ep.grid_candidates()


predict = jax.jit(ep.predict)

Draw = Callable[[Any, int, Any, Any], FeatureMap]
"""Function (key, count, points, scale) that draws features; `scale` is the squared width over that of the heuristic."""


def _bandwidths(points: jax.Array, scale: jax.Array) -> jax.Array:
    """Return those of embeddings: roots of scale x mean variance of each message."""
    return jnp.sqrt(scale * jnp.mean(points[:, 1], axis=0))


def mean_variance(key: Any, count: int, points: jax.Array, scale: jax.Array) -> FeatureMap:
    widths = (scale**0.5 * width for width in kernels.median_mean_variance(evenly(points, 1500), max_points=1500))
    return MeanVarianceFeatures.draw(key, count, 2, *widths)


def joint(key: Any, count: int, points: jax.Array, scale: jax.Array) -> FeatureMap:
    return EmbeddingFeatures.draw(key, count, 2, _bandwidths(points, scale))


def summed(key: Any, count: int, points: jax.Array, scale: jax.Array) -> FeatureMap:
    return Concatenated(*_of_each(key, count // 2, points, scale))


def product(key: Any, count: int, points: jax.Array, scale: jax.Array) -> FeatureMap:
    return Kronecker(*_of_each(key, int(count**0.5), points, scale))


def _of_each(key: Any, count: int, points: jax.Array, scale: jax.Array) -> list[FeatureMap]:
    """Return features of the expected product kernels of each message."""
    keys, bandwidths = jax.random.split(key), _bandwidths(points, scale)
    draw = lambda i: EmbeddingFeatures.draw(keys[i], count, 1, bandwidths[i])
    return [Restricted(draw(i), i, i + 1) for i in range(2)]


def cholesky_joint(key: Any, count: int, points: jax.Array, scale: jax.Array) -> FeatureMap:
    bandwidths, width = kernels.median_embedding(evenly(points, 1500), max_points=1500)
    return _landmarks(kernels.EmbeddingRBF(bandwidths, scale**0.5 * width), points, count)


def cholesky_sum(key: Any, count: int, points: jax.Array, scale: jax.Array) -> FeatureMap:
    def of(i: int) -> kernels.Kernel:
        bandwidths, width = kernels.median_embedding(evenly(points[:, :, i : i + 1], 1500), max_points=1500)
        width = jnp.where(width > 1e-6, width, jnp.ones_like(width))  # a message of two values may have the median 0
        return kernels.Coordinates(kernels.EmbeddingRBF(bandwidths, scale**0.5 * width), i, i + 1)

    return _landmarks(of(0) + of(1), points, count)


def _landmarks(kernel: kernels.Kernel, points: jax.Array, count: int) -> FeatureMap:
    """Return the basis of at most `count` landmarks, padded to this number, because it is built inside `jax.jit`."""
    pivots = incomplete_cholesky(kernel, points, eps=1e-6, max_rank=count)
    return cholesky_basis(
        kernel, points[pivots.indices], jnp.arange(len(pivots.indices), dtype=jnp.int32) < pivots.rank
    )


FEATURES: dict[str, Draw] = {
    "mean-variance features": mean_variance,
    "joint expected product": joint,
    "sum of expected products": summed,
    "product of expected products": product,
    "incomplete Cholesky of the sum": cholesky_sum,
    "incomplete Cholesky of the joint kernel": cholesky_joint,
}


@partial(jax.jit, static_argnames=("draw", "count"))
def losses(draw: Draw, count: int, key: Any, points: Any, outputs: Any, scales: Any, noises: Any) -> jax.Array:
    """Return mean squares of leave-one-out residuals [scale, noise, out]."""

    def of_scale(scale: jax.Array) -> jax.Array:
        phi = draw(key, count, points, scale)(points)
        one = lambda noise, y: jnp.mean(ep.leave_one_out_residuals(phi, y, noise) ** 2)
        return jax.vmap(lambda noise: jax.vmap(one, in_axes=(None, 1))(noise, outputs))(noises)

    return jax.lax.map(of_scale, scales)


@partial(jax.jit, static_argnames=("draw", "count"))
def regress(
    draw: Draw, count: int, key: Any, points: Any, y: Any, scale: Any, noise: Any, asked: Any
) -> tuple[Any, Any]:
    """Learn one output from features, and predict it at other points."""
    phi = draw(key, count, points, scale)
    return ep.fit_regression(phi(points), y, noise).predict(phi(asked))


def by_features(settings: Settings, data: Batch, draw: Draw) -> ep.Gaussian:
    """Predict beliefs from features of any kernel, its width and noise chosen for each output."""
    targets, represent = TARGETS["absolute"], ep.Moments()
    points, asked = (represent.points(messages.incoming) for messages in data)
    outputs = jnp.asarray(forests.encode(data.train, targets))
    grid = candidates(settings)
    scales, noises = (jnp.unique(of) for of in (grid.width_scale, grid.noise))
    keys = jax.random.split(jax.random.key(settings.seed + KEY))
    some = slice(settings.tuned)
    found = losses(draw, settings.few[1], keys[0], points[some], outputs[some], scales, noises)
    found = np.where(np.isnan(found), np.inf, found)
    answers = []
    for i in range(outputs.shape[1]):
        scale, noise = np.unravel_index(np.argmin(found[:, :, i]), found.shape[:2])
        of_grid = scales[scale], noises[noise]
        answers.append(regress(draw, settings.many[1], keys[1], points, outputs[:, i], *of_grid, asked)[0])
    return forests.decode(np.stack(answers, axis=-1), data.test, targets)


def quality(settings: Settings) -> tuple[list[Row], dict[Any, np.ndarray]]:
    """Score all methods; returns rows, and {(sweeps, method): log KL [message]} of messages to z."""
    found: dict[tuple[str, str], np.ndarray] = {}
    options: dict[tuple[str, str], str] = {}
    for sweeps in ranges(settings):
        test = batch(settings, sweeps).test
        for name, targets in [(name, targets) for name in forests.FORESTS for targets in TARGETS]:
            model, chosen = forest(settings, sweeps, name, targets)
            outputs = model.predict(forests.tree_inputs(test.incoming))
            label = sweeps, f"{name}, {targets}"
            found[label] = log_kl(test.belief, forests.decode(outputs, test, TARGETS[targets]))
            options[label] = str(chosen)
        for targets in TARGETS:
            guess = predict(operator(settings, sweeps, targets), test.incoming)
            found[sweeps, f"KJIT, {targets}"] = log_kl(test.belief, guess.belief)
        found[sweeps, "the incoming message"] = log_kl(test.belief, test.incoming[1])
    chosen = list(FEATURES.items())[: 2 if settings.quick else None]
    for name, draw in command_line.progress(chosen, "features"):
        data = batch(settings, "all")
        found["all", f"{name}, absolute"] = log_kl(data.test.belief, by_features(settings, data, draw))
    rows = []
    for (sweeps, method), values in found.items():
        targets = method.rpartition(", ")[2]
        ours = None if targets not in TARGETS or "KJIT" in method else found[sweeps, f"KJIT, {targets}"]
        problem = batch(settings, sweeps).test.problem
        chosen_options = options.get((sweeps, method))
        rows.append(_row(sweeps, method, "z", values, chosen_options) | _over_problems(values, problem, ours))
    test = batch(settings, "all").test
    for targets in list(TARGETS)[: 1 if settings.quick else None]:
        guess = predict(operator(settings, "all", targets, 0), test.incoming)
        values = log_kl(test.belief_p, guess.belief)
        rows.append(_row("all", f"KJIT, {targets}", "p", values, None) | _over_problems(values, test.problem, None))
    repeat = log_kl(test.belief_p, test.incoming[0])
    rows.append(_row("all", "the incoming message", "p", repeat, None) | _over_problems(repeat, test.problem, None))
    return rows, found


def _over_problems(values: np.ndarray, problem: np.ndarray, ours: np.ndarray | None) -> Row:
    """Return the standard error of the mean over problems, whose messages depend on each other.

    With the values of our operator of the same targets, also the mean of the paired differences and its error.
    """
    means = lambda x: np.array([np.nanmean(x[problem == number]) for number in np.unique(problem)])
    row: Row = {"standard_error": standard_error(means(values)), "difference": None, "difference_error": None}
    if ours is not None:
        apart = means(values - ours)
        row |= {"difference": float(np.mean(apart)), "difference_error": standard_error(apart)}
    return row


def _row(sweeps: str, method: str, to: str, values: np.ndarray, options: str | None) -> Row:
    published = PUBLISHED.get(method, (None, None)) if (sweeps, to) == ("all", "z") else (None, None)
    row = {"part": "batch", "method": method, "to": to, "sweeps": sweeps, **describe(values), "options": options}
    return row | {"published_mean": published[0], "published_sd": published[1]}
