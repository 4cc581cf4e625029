"""Simple methods that a user would try instead; each learns from the training samples of a problem."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.first_try.scoring import Baseline, Draw, Prediction, Problem


def kalman(train: Draw, transform: Callable[[np.ndarray], np.ndarray] = lambda y: y) -> Baseline:
    """Kalman smoother of an AR(1) series with Gaussian noise, whose parameters are estimated from training series.

    It is computed as the regression on all observations with the covariance of the series, which is the same.
    """
    x, z = train.truth, transform(train.y)
    mean, var = x.mean(), x.var()
    first, second = x[:, :-1] - mean, x[:, 1:] - mean
    decay = np.sum(first * second) / np.sum(first**2)
    there = np.isfinite(z)
    offset, noise = np.mean((z - x)[there]), np.var((z - x)[there])
    time = np.arange(x.shape[1])
    covariance = var * decay ** np.abs(time[:, None] - time[None])

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
        found = [condition(covariance, noise, row - offset - mean) for row in transform(np.asarray(draw.y))]
        means, stds = (np.stack(part) for part in zip(*found, strict=True))
        return {"": Prediction(means + mean, stds)}

    return predict


def condition(covariance: np.ndarray, noise: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of a Gaussian of mean 0 given noisy values, NaN where missing."""
    seen = np.isfinite(y)
    among = covariance[np.ix_(seen, seen)] + noise * np.eye(seen.sum())
    gain = np.linalg.solve(among, covariance[seen]).T
    var = np.diag(covariance) - np.einsum("ij,ij->i", gain, covariance[:, seen])
    return gain @ y[seen], np.sqrt(np.maximum(var, 1e-12))


def forest(train: Draw, reach: int) -> Baseline:
    """Random forest from a window of observations to the vector of a node."""
    from sklearn.ensemble import RandomForestRegressor

    def windows(y: np.ndarray) -> np.ndarray:
        padded = np.pad(y, ((0, 0), (reach, reach)), constant_values=np.nan)
        return np.stack([padded[:, i : i + y.shape[1]] for i in range(2 * reach + 1)], axis=-1)

    inputs = windows(train.y).reshape(-1, 2 * reach + 1)
    learned = RandomForestRegressor(60, min_samples_leaf=3, max_features=0.5, random_state=0)
    learned.fit(inputs, train.truth.reshape(len(inputs), -1))

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
        out = learned.predict(windows(draw.y).reshape(-1, inputs.shape[1])).reshape(*draw.y.shape, -1)
        return {q.name: Prediction(out[..., list(q.coordinates)]) for q in problem.quantities if q.coordinates}

    return predict


def regressions(train: Draw) -> dict[str, Baseline]:
    """Ridge regression and boosting from the observation of a node to its value, a number or a vector."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.multioutput import MultiOutputRegressor

    width = np.shape(train.y)[-1]
    inputs = np.asarray(train.y).reshape(-1, width)
    targets = np.asarray(train.truth).reshape(len(inputs), -1)
    there = np.isfinite(targets).all(axis=1) & np.isfinite(inputs).all(axis=1)
    boosting = HistGradientBoostingRegressor(max_iter=100, max_leaf_nodes=15, min_samples_leaf=30, random_state=0)
    methods: dict[str, Any] = {
        "ridge": RidgeCV(alphas=np.logspace(-1, 5, 13)),
        "boosting": MultiOutputRegressor(boosting),
    }
    for method in methods.values():
        method.fit(inputs[there], targets[there])

    def of(method: Any) -> Baseline:
        def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
            out = method.predict(np.nan_to_num(np.asarray(draw.y).reshape(-1, width)))
            return {"": Prediction(out.reshape(np.shape(draw.truth)))}

        return predict

    return {name: of(method) for name, method in methods.items()}


def joint_ridge(train: Draw) -> Baseline:
    """Ridge regression of all values on all observations, 0 where missing; ridges by cross-validation.

    Angles (node type 1) are cosines and sines, as inputs and as outputs.
    """
    from sklearn.linear_model import RidgeCV

    center = np.nanmean(train.y[0])

    def inputs(y: Mapping[int, np.ndarray]) -> np.ndarray:
        parts = [y[0] - center, np.cos(y[1]), np.sin(y[1])]
        seen = [np.isfinite(y[v]).astype(float) for v in (0, 1)]
        return np.concatenate([*map(np.nan_to_num, parts), *seen], axis=1)

    targets = {0: train.truth[0], 1: np.concatenate([np.cos(train.truth[1]), np.sin(train.truth[1])], axis=1)}
    alphas = np.logspace(-2, 4, 25)
    learned = {v: RidgeCV(alphas=alphas).fit(inputs(train.y), target) for v, target in targets.items()}

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
        out = {v: one.predict(inputs(draw.y)) for v, one in learned.items()}
        east, north = np.split(out[1], 2, axis=1)
        values = {0: out[0], 1: np.arctan2(north, east)}
        return {q.name: Prediction(values[q.node_type]) for q in problem.quantities}

    return predict


def kriging(train: Draw, distance: np.ndarray) -> Baseline:
    """Gaussian process on the places, with the length scale of largest likelihood on the training samples.

    Angles (node type 1) are cosines and sines, each a process of its own.
    """
    parts = {0: [lambda x: x], 1: [np.cos, np.sin]}
    learned = {}
    for v, functions in parts.items():
        for i, part in enumerate(functions):
            x, y = part(train.truth[v]), part(train.y[v])
            fields = (x - x.mean()) / x.std()

            def likelihood(scale: float, fields: np.ndarray = fields) -> float:
                among = _smooth(distance, scale) + 1e-3 * np.eye(len(distance))
                sizes = np.sum(fields * np.linalg.solve(among, fields.T).T) / len(fields)
                return float(-sizes - np.linalg.slogdet(among)[1])

            scale = max((0.05 * 1.25**k for k in range(14)), key=likelihood)
            noise = np.nanvar(y - x) + 1e-3 * x.var()
            learned[v, i] = x.mean(), x.var() * _smooth(distance, scale), noise

    def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
        means, stds = {}, {}
        for (v, i), (mean, covariance, noise) in learned.items():
            found = [condition(covariance, noise, row - mean) for row in parts[v][i](draw.y[v])]
            means[v, i] = np.stack([one for one, _ in found]) + mean
            stds[v, i] = np.stack([one for _, one in found])
        values = {0: Prediction(means[0, 0], stds[0, 0]), 1: Prediction(np.arctan2(means[1, 1], means[1, 0]))}
        return {q.name: values[q.node_type] for q in problem.quantities}

    return predict


def _smooth(distance: np.ndarray, scale: float) -> np.ndarray:
    return np.exp(-((distance / scale) ** 2) / 2)


def of_neighbors(train: Draw, neighbors: list[np.ndarray]) -> dict[str, Baseline]:
    """The observation, its Gaussian shrinkage, and linear regression on it and on sums over neighbors."""

    def columns(y: np.ndarray, rings: int) -> np.ndarray:
        found = [y]
        for _ in range(rings):
            found.append(np.stack([found[-1][:, near].sum(axis=1) for near in neighbors], axis=1))
        return np.stack([*found, np.ones_like(y)], axis=-1)

    def regression(rings: int) -> Baseline:
        inputs = columns(train.y, rings)
        slopes = np.linalg.lstsq(inputs.reshape(-1, inputs.shape[-1]), train.truth.reshape(-1), rcond=None)[0]
        return lambda problem, draw: {"": Prediction(columns(draw.y, rings) @ slopes)}

    return {
        "observation": lambda problem, draw: {"": Prediction(draw.y)},
        "shrinkage": regression(0),
        "regression on neighbors": regression(3),
    }


def denoisers(train: Draw) -> dict[str, Baseline]:
    """Total variation and a Gaussian filter, whose parameters are best on the training picture; pictures are square."""
    from scipy.ndimage import gaussian_filter
    from skimage.restoration import denoise_tv_chambolle

    scale = float(np.ptp(train.truth)) or 1.0
    filters: dict[str, tuple[Any, tuple[float, ...]]] = {
        "total variation": (
            lambda y, weight: denoise_tv_chambolle(y / scale, weight=weight, max_num_iter=500) * scale,
            tuple(0.02 * 1.3**i for i in range(18)),
        ),
        "Gaussian filter": (gaussian_filter, (0.5, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 3.5, 4.0)),
    }

    def best(method: Any, parameters: tuple[float, ...]) -> Baseline:
        side = math.isqrt(train.y.shape[1])
        clean, noisy = (one[0].reshape(side, side) for one in (train.truth, train.y))
        chosen = min(parameters, key=lambda p: np.mean((method(noisy, p) - clean) ** 2))

        def predict(problem: Problem, draw: Draw) -> Mapping[str, Prediction]:
            pictures = draw.y.reshape(len(draw.y), *[math.isqrt(draw.y.shape[1])] * 2)
            return {"": Prediction(np.stack([method(picture, chosen).reshape(-1) for picture in pictures]))}

        return predict

    return {name: best(*one) for name, one in filters.items()}


def inpainting(train: Draw, side: int) -> dict[str, Baseline]:
    """Biharmonic inpainting, followed by total variation whose weight is best on the training crops."""
    from skimage.restoration import denoise_tv_chambolle, inpaint_biharmonic

    def fill(y: np.ndarray) -> np.ndarray:
        picture = y.reshape(side, side, 3)
        mask = np.isnan(picture).any(axis=-1)
        return inpaint_biharmonic(np.nan_to_num(picture), mask, channel_axis=-1)

    def smooth(picture: np.ndarray, weight: float) -> np.ndarray:
        return denoise_tv_chambolle(picture, weight=weight, channel_axis=-1) if weight else picture

    filled = [fill(y) for y in train.y]
    errors = {
        weight: np.mean([(smooth(f, weight).reshape(-1, 3) - x) ** 2 for f, x in zip(filled, train.truth, strict=True)])
        for weight in (0.02 * 1.25**i for i in range(16))
    }
    chosen = min(errors, key=lambda weight: errors[weight])

    def of(weight: float) -> Baseline:
        return lambda problem, draw: {
            "": Prediction(np.stack([smooth(fill(y), weight).reshape(-1, 3) for y in draw.y]))
        }

    return {"biharmonic": of(0.0), "biharmonic and total variation": of(chosen)}
