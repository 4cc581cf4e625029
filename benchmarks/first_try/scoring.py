"""What a problem is, and scores of distributions and of point predictions on it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import kbpjax as kbp

Values = Any
"""Values of all nodes [case, node, *dim], or {node type: values [case, node_of_type, *dim]}; NaN where missing."""


class Quantity(NamedTuple):
    """What one row of the table is about: some coordinates of the nodes of one type.

    Attributes:
        name: name in the table; empty if the problem has one quantity.
        node_type: the node type.
        coordinates: coordinates of vectors; None for numbers.
        angle: whether it is an angle in radians; its error is in degrees, around the circle.
    """

    name: str = ""
    node_type: int = 0
    coordinates: tuple[int, ...] | None = None
    angle: bool = False


class Distribution(NamedTuple):
    """Distributions on points.

    Attributes:
        points: [point, *dim]; with `own_points`, those of each node [node, point, *dim].
        weights: [case, node, point].
        own_points: whether each node has its own points.
    """

    points: np.ndarray
    weights: np.ndarray
    own_points: bool = False


class Prediction(NamedTuple):
    """Point predictions and, if the method has them, standard deviations [case, node]."""

    mean: np.ndarray
    std: np.ndarray | None = None


class Draw(NamedTuple):
    """Cases to infer: observations, NaN where missing, and the truth, NaN where it is not scored."""

    y: Values
    truth: Values


Baseline = Callable[["Problem", Draw], Mapping[str, Prediction | Distribution]]
"""Returns {name of a quantity: predictions}; it reads only the observations of the draw."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem as a user has it, with what it is measured by.

    Attributes:
        graph: graph of all cases.
        samples: training samples, as `pool` takes them.
        observations: training observations.
        test: the cases that are scored.
        validation: cases for which hand-tuned options are chosen.
        quantities: the rows of the table.
        baselines: {name: simple method}.
        seeing_more: methods that are given more than the model; they are scored, and are never the best baseline.
        exact: posterior under the true model, by quantity; None if it is not known.
        kernel: kernels of node types whose values are no numbers.
        obs_kernel: kernels of observations that are no numbers.
        train_graph: graph of the training samples; None: `graph`.
        validation_graph: graph of the validation cases; None: `graph`.
        peak: peak of the signal, for problems with a signal-to-noise ratio.
    """

    graph: kbp.Graph
    samples: Values
    observations: Values
    test: Draw
    validation: Draw
    quantities: tuple[Quantity, ...] = (Quantity(),)
    baselines: Mapping[str, Baseline] = dataclasses.field(default_factory=dict)
    seeing_more: Mapping[str, Baseline] = dataclasses.field(default_factory=dict)
    exact: Callable[[Draw], Mapping[str, Distribution]] | None = None
    kernel: dict[int, Any] = dataclasses.field(default_factory=dict)
    obs_kernel: dict[int, Any] = dataclasses.field(default_factory=dict)
    train_graph: kbp.Graph | None = None
    validation_graph: kbp.Graph | None = None
    peak: float | None = None

    def pool(self) -> kbp.TrainingData:
        """Return the training data."""
        return kbp.pool(self.train_graph or self.graph, self.samples, self.observations)


def of_type(values: Values, node_type: int) -> np.ndarray:
    """Return the values of the nodes of a type; problems with several types have their values by type."""
    return np.asarray(values[node_type] if isinstance(values, Mapping) else values)


def truth_of(quantity: Quantity, truth: Values) -> np.ndarray:
    """Return the true values of a quantity [value]; coordinates one after the other."""
    values = of_type(truth, quantity.node_type)
    if quantity.coordinates is None:
        return values.reshape(-1)
    return np.concatenate([values[..., i].reshape(-1) for i in quantity.coordinates])


def score(quantity: Quantity, found: Distribution, truth: Values) -> dict[str, float]:
    """Return error, CRPS and coverages of distributions of a quantity, over the values with a truth."""
    weights = np.asarray(found.weights, np.float64)
    cases, weights = len(weights), weights.reshape(-1, weights.shape[-1])
    if not np.isfinite(weights).all():
        raise ValueError(f"beliefs must be finite; got NaN in {np.isnan(weights).any(axis=1).mean():.0%} of the nodes.")
    values = truth_of(quantity, truth)
    points = np.asarray(found.points, np.float64)
    points = points if found.own_points else points[None]  # [node or 1, point, *dim]
    columns = [points] if quantity.coordinates is None else [points[..., i] for i in quantity.coordinates]
    columns = [np.tile(column, (cases, 1)) if found.own_points else column for column in columns]
    there = np.isfinite(values)
    rows = there.reshape(len(columns), -1)
    parts = [
        (_circular if quantity.angle else _numbers)(column[mask if found.own_points else 0], weights[mask], true[mask])
        for column, true, mask in zip(columns, values.reshape(len(columns), -1), rows, strict=True)
    ]
    error, crps, half, most = (np.concatenate([part[i] for part in parts]) for i in range(4))
    return {
        "error": summary(quantity, error),
        "crps": float(crps.mean()),
        "coverage_50": float(half.mean()),
        "coverage_90": float(most.mean()),
    }


def score_prediction(
    quantity: Quantity, found: Prediction | Distribution, truth: Values, residuals: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """Return the error and the CRPS of predictions, and their residuals; distributions need none.

    Args:
        quantity: the quantity.
        found: predictions; with standard deviations, the CRPS is that of Gaussians.
        truth: the true values.
        residuals: residuals of the method on other cases, which make its predictions distributions otherwise. Empty:
            those of these cases.
    """
    if isinstance(found, Distribution):
        scores = score(quantity, found, truth)
        return scores["error"], scores["crps"], np.zeros(0)
    values = truth_of(quantity, truth)
    there = np.isfinite(values)
    means = np.asarray(found.mean, np.float64)
    means = means if quantity.coordinates is None else np.moveaxis(means, -1, 0)
    own = (values - means.reshape(-1))[there]
    own = np.degrees(wrapped(own)) if quantity.angle else own
    if found.std is not None:
        crps = _gaussian_crps(own, np.asarray(found.std, np.float64).reshape(-1)[there])
    else:
        spread = np.sort(own if residuals.size == 0 else residuals)
        spread = spread[np.linspace(0, len(spread) - 1, 201).round().astype(int)]
        distance = (lambda a: np.abs((a + 180) % 360 - 180)) if quantity.angle else np.abs
        within = distance(spread[:, None] - spread[None]).mean() / 2
        crps = np.concatenate([distance(part[:, None] - spread[None]).mean(axis=1) for part in _blocks(own)]) - within
    return summary(quantity, own), float(crps.mean()), own


def summary(quantity: Quantity, residuals: np.ndarray) -> float:
    """Return the root mean square of residuals; for angles, the mean absolute value."""
    return float(np.abs(residuals).mean() if quantity.angle else np.sqrt(np.mean(residuals**2)))


def wrapped(angle: np.ndarray) -> np.ndarray:
    """Return angles in [-pi, pi)."""
    return (np.asarray(angle) + np.pi) % (2 * np.pi) - np.pi


def _numbers(points: np.ndarray, weights: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return residual of the mean, CRPS, and whether the central intervals hold the truth, of each node.

    Points are common [point] or of each node [node, point], in one order.
    """
    order = np.argsort(points.reshape(-1, points.shape[-1])[0])
    points, weights = points[..., order], weights[:, order]
    own = np.broadcast_to(points, weights.shape)
    residual = truth - np.einsum("np,np->n", weights, own)
    below = np.cumsum(weights, axis=1)
    spread = np.einsum("np,np->n", (below * (1 - below))[:, :-1], np.diff(own, axis=1))
    distance = np.concatenate(
        [
            np.einsum("np,np->n", part, np.abs(at - true[:, None]))
            for part, at, true in zip(_blocks(weights), _blocks(own), _blocks(truth), strict=True)
        ]
    )
    inside = [_inside(points, weights, truth, coverage) for coverage in (0.5, 0.9)]
    return residual, distance - spread, *inside


def _inside(points: np.ndarray, weights: np.ndarray, truth: np.ndarray, coverage: float) -> np.ndarray:
    belief = kbp.Belief(jnp.float32(points), jnp.float32(weights), own_points=points.ndim > 1)
    low, high = map(np.asarray, kbp.interval(belief, coverage))
    # The truth in the precision of the ends: levels of gray are on them.
    return (low <= np.float32(truth)) & (np.float32(truth) <= high)


def _circular(points: np.ndarray, weights: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the same for angles, in degrees; intervals are central around the mean direction."""
    own = np.broadcast_to(points, weights.shape)
    mean = np.angle(np.einsum("np,np->n", weights, np.exp(1j * own)))
    residual = np.degrees(wrapped(truth - mean))
    to_truth = np.degrees(np.abs(wrapped(own - truth[:, None])))
    blocks = zip(_blocks(own, 50), _blocks(weights, 50), strict=True)
    within = np.concatenate([_within(at, part) for at, part in blocks])
    crps = np.einsum("np,np->n", weights, to_truth) - within / 2
    turned = np.degrees(wrapped(own - mean[:, None]))
    order = np.argsort(turned, axis=1)
    turned, below = (np.take_along_axis(a, order, 1) for a in (turned, weights))
    below = np.cumsum(below, axis=1)
    inside = []
    for coverage in (0.5, 0.9):
        ends = [
            np.take_along_axis(turned, np.argmax(below >= level * below[:, -1:], axis=1)[:, None], 1)[:, 0]
            for level in ((1 - coverage) / 2, (1 + coverage) / 2)
        ]
        inside.append((ends[0] <= residual) & (residual <= ends[1]))
    return residual, crps, *inside


def _within(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean distance of two draws of each node, in degrees."""
    if np.all(points == points[:1]):
        between = np.degrees(np.abs(wrapped(points[0][:, None] - points[0][None])))
        return np.einsum("np,np->n", weights @ between, weights)
    between = np.degrees(np.abs(wrapped(points[:, :, None] - points[:, None])))
    return np.einsum("np,npq,nq->n", weights, between, weights)


def _gaussian_crps(residual: np.ndarray, std: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    z = residual / std
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))


def _blocks(rows: np.ndarray, size: int = 2000) -> list[np.ndarray]:
    return np.array_split(rows, max(1, len(rows) // size))
