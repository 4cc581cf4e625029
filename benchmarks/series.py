"""Time series of which neither the steps nor the sensor are given: filter, smoother, forecast and paths.

    python -m benchmarks.series [--only growth ...] [--accept]

`kbpjax.series` learns from series of known states; the exact answers are those of the true model on a grid, of the
pendulum on a grid of angles and speeds. Baselines: the Kalman filter and smoother of the linear Gaussian model that
fits the same training series best, and a quantile regression forest on windows of observations, whose length is chosen
on a part of the training series; "alone" is the belief of the same model without messages. CRPS by task:

- filter, smooth: all states given the observations up to their time, or all observations;
- forecast: the state five steps after three times of each series;
- path maximum: the largest state of a series, from 200 joint draws, and from draws of each state by itself.

"log density" is the mean of the logarithms of the predictive densities of the observations. Seconds are those of one
online step compiled (`step_us`, microseconds), and of filtering 10,000 series at once.
"""

import argparse
import dataclasses
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from benchmarks.first_try import problems
from benchmarks.first_try.__main__ import SAVED, parser_of
from benchmarks.first_try.scoring import Distribution, Quantity, score
from experiments.lib import command_line, results, tables
from kbpjax import series

HORIZON, PATHS, MANY = 5, 200, 10_000
TREES, REACHES = 300, (2, 5, 10, 20)
Row = dict[str, Any]
Rng = np.random.Generator


@dataclasses.dataclass(frozen=True)
class System:
    """A system with numbers as states, which are simulated, and known only to the exact answers.

    Attributes:
        start, step, see: random first states of so many series, next states, and observations.
        log_step: log density of a new state given an old one, up to a constant.
        log_see: log density of an observation given a state.
        grid: points of the exact answers.
        length, train, test: number of times, of training series and of test series.
        missing: share of the observations that is missing.
        linear: function of observations that the linear model sees.
    """

    start: Callable[[Rng, int], np.ndarray]
    step: Callable[[Rng, np.ndarray], np.ndarray]
    see: Callable[[Rng, np.ndarray], np.ndarray]
    log_step: Callable[[np.ndarray, np.ndarray], np.ndarray]
    log_see: Callable[[np.ndarray, np.ndarray], np.ndarray]
    grid: np.ndarray
    length: int
    train: int
    test: int
    missing: float = 0.0
    linear: Callable[[np.ndarray], np.ndarray] = lambda y: y

    def draw(self, rng: Rng, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return states and observations [series, time]."""
        x, states = self.start(rng, count), []
        for _ in range(self.length):
            states.append(x)
            x = self.step(rng, x)
        states = np.stack(states, axis=1)
        y = self.see(rng, states)
        return states, np.where(rng.random(y.shape) < self.missing, np.nan, y)


def gauss(x: np.ndarray, std: float) -> np.ndarray:
    """Return the log density of a centered Gaussian."""
    return -((x / std) ** 2) / 2 - np.log(std * np.sqrt(2 * np.pi))


def _growth() -> System:
    """Growth model of Netto et al. 1978 without its cosine: y sees the square, so that the sign is unknown."""
    drift = lambda x: x / 2 + 25 * x / (1 + x**2)
    spread = np.sqrt(10)
    return System(
        start=lambda rng, n: 5 * rng.standard_normal(n),
        step=lambda rng, x: drift(x) + spread * rng.standard_normal(x.shape),
        see=lambda rng, x: x**2 / 20 + rng.standard_normal(x.shape),
        log_step=lambda new, old: gauss(new - drift(old), spread),
        log_see=lambda y, x: gauss(y - x**2 / 20, 1.0),
        grid=np.linspace(-35, 35, 701),
        length=60,
        train=150,
        test=60,
    )


def _volatility() -> System:
    """Stochastic volatility: x is the logarithm of the variance of y."""
    decay, spread = 0.95, 0.35
    return System(
        start=lambda rng, n: spread / np.sqrt(1 - decay**2) * rng.standard_normal(n),
        step=lambda rng, x: decay * x + spread * rng.standard_normal(x.shape),
        see=lambda rng, x: np.exp(x / 2) * rng.standard_normal(x.shape),
        log_step=lambda new, old: gauss(new - decay * old, spread),
        log_see=lambda y, x: -(y**2) / (2 * np.exp(x)) - x / 2 - np.log(2 * np.pi) / 2,
        grid=np.linspace(-6, 6, 400),
        length=80,
        train=100,
        test=60,
        linear=lambda y: np.log(np.maximum(y**2, 1e-12)),
    )


def _bimodal() -> System:
    """Two wells, and observations that leave the well open; 30 % of them missing."""
    rate, spread, noise = 0.4, 0.35, 1.0
    drift = lambda x: x + rate * (x - x**3)
    return System(
        start=lambda rng, n: rng.choice([-1.0, 1.0], n),
        step=lambda rng, x: drift(x) + spread * rng.standard_normal(x.shape),
        see=lambda rng, x: x + noise * rng.standard_normal(x.shape),
        log_step=lambda new, old: gauss(new - drift(old), spread),
        log_see=lambda y, x: gauss(y - x, noise),
        grid=np.linspace(-3, 3, 400),
        length=100,
        train=60,
        test=60,
        missing=0.3,
    )


def _gaussian() -> System:
    """AR(1) with Gaussian noise, where the linear model is the true one; 30 % missing."""
    decay, noise = 0.95, 0.5
    spread = np.sqrt(1 - decay**2)
    return System(
        start=lambda rng, n: rng.standard_normal(n),
        step=lambda rng, x: decay * x + spread * rng.standard_normal(x.shape),
        see=lambda rng, x: x + noise * rng.standard_normal(x.shape),
        log_step=lambda new, old: gauss(new - decay * old, spread),
        log_see=lambda y, x: gauss(y - x, noise),
        grid=np.linspace(-5, 5, 500),
        length=100,
        train=60,
        test=60,
        missing=0.3,
    )


SYSTEMS = {"gaussian": _gaussian, "bimodal": _bimodal, "volatility": _volatility, "growth": _growth}
PENDULUM = "pendulum"


class Exact:
    """The true posterior on a grid.

    Args:
        system: the system.
        rng: random numbers.
        y: observations [series, time].
    """

    def __init__(self, system: System, rng: Rng, y: np.ndarray):
        self.grid, self.rng = system.grid, rng
        self.step = np.exp(system.log_step(self.grid[None], self.grid[:, None]))
        self.step /= self.step.sum(axis=1, keepdims=True)
        starts = system.start(np.random.default_rng(1), 200_000)
        edges = np.concatenate([[-np.inf], (self.grid[1:] + self.grid[:-1]) / 2, [np.inf]])
        first = np.histogram(starts, edges)[0] / len(starts)
        logs = np.where(np.isnan(y)[..., None], 0.0, system.log_see(np.nan_to_num(y)[..., None], self.grid))
        local = np.exp(logs)
        self.forward, self.log_densities = np.empty_like(local), np.full(y.shape, np.nan)
        for t in range(y.shape[1]):
            ahead = np.broadcast_to(first, local[:, 0].shape) if t == 0 else self.forward[:, t - 1] @ self.step
            both = ahead * local[:, t]
            total = both.sum(axis=1, keepdims=True)
            self.log_densities[:, t] = np.where(np.isnan(y[:, t]), np.nan, np.log(total[:, 0]))
            self.forward[:, t] = both / total
        backward = np.ones_like(local)
        for t in range(y.shape[1] - 2, -1, -1):
            backward[:, t] = (backward[:, t + 1] * local[:, t + 1]) @ self.step.T
            backward[:, t] /= backward[:, t].sum(axis=1, keepdims=True)
        both = self.forward * backward
        self.smoothed = both / both.sum(axis=-1, keepdims=True)

    def forecast(self, at: int) -> np.ndarray:
        """Return the distributions five steps after the first `at` times [series, point]."""
        return self.forward[:, at - 1] @ np.linalg.matrix_power(self.step, HORIZON)

    def paths(self, count: int) -> np.ndarray:
        """Return paths drawn backward [series, path, time]."""
        drawn = np.empty((len(self.forward), count, self.forward.shape[1]))
        for one, (forward, out) in enumerate(zip(self.forward, drawn, strict=True)):
            del one
            sums = np.cumsum(forward[-1])
            place = np.searchsorted(sums / sums[-1], self.rng.random(count))
            out[:, -1] = self.grid[place]
            for t in range(len(forward) - 2, -1, -1):
                weights = forward[t][None] * self.step[:, place].T
                sums = np.cumsum(weights, axis=1)
                place = (sums < self.rng.random((count, 1)) * sums[:, -1:]).sum(axis=1)
                out[:, t] = self.grid[place]
        return drawn


class Kalman:
    """Linear Gaussian model with the moments of training series, and its filter and smoother of numbers."""

    def __init__(self, x: np.ndarray, y: np.ndarray):
        old, new = x[:, :-1].ravel(), x[:, 1:].ravel()
        self.decay, self.shift = np.polyfit(old, new, 1)
        self.spread = np.var(new - self.decay * old - self.shift)
        there = np.isfinite(y)
        self.gain, self.offset = np.polyfit(x[there], y[there], 1)
        self.noise = np.var(y[there] - self.gain * x[there] - self.offset)
        self.first = x[:, 0].mean(), x[:, 0].var()

    def __call__(self, y: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return means and variances of the filter and the smoother [series, time]."""
        mean, var = np.full(len(y), self.first[0]), np.full(len(y), self.first[1])
        before, after = [], []
        for column in y.T:
            before.append((mean, var))
            there = np.isfinite(column)
            gain = np.where(there, var * self.gain / (self.gain**2 * var + self.noise), 0)
            mean = mean + gain * (np.where(there, column, 0) - self.gain * mean - self.offset) * there
            var = (1 - gain * self.gain) * var
            after.append((mean, var))
            mean, var = self.decay * mean + self.shift, self.decay**2 * var + self.spread
        smoothed = [after[-1]]
        for (mean, var), (next_mean, next_var) in zip(after[-2::-1], before[:0:-1], strict=True):
            back = var * self.decay / next_var
            later = smoothed[-1]
            smoothed.append((mean + back * (later[0] - next_mean), var + back**2 * (later[1] - next_var)))
        both = {"filter": after, "smooth": smoothed[::-1]}
        return {
            name: (np.stack([m for m, _ in one], 1), np.stack([v for _, v in one], 1)) for name, one in both.items()
        }

    def forecast(self, mean: np.ndarray, var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances five steps later."""
        for _ in range(HORIZON):
            mean, var = self.decay * mean + self.shift, self.decay**2 * var + self.spread
        return mean, var


class Forest:
    """Quantile regression forest (Meinshausen 2006) from windows of observations, missing ones included, to the state.

    Args:
        x: states of training series [series, time].
        y: their observations.
        ahead: whether windows reach ahead, for the smoother, or only back, for the filter.
    """

    def __init__(self, x: np.ndarray, y: np.ndarray, ahead: bool):
        self.ahead, cut = ahead, max(1, len(x) // 5)
        losses = {}
        for reach in REACHES:
            self._fit(x[cut:], y[cut:], reach)
            losses[reach] = self.crps(y[:cut], x[:cut]).mean()
        self._fit(x, y, min(losses, key=losses.__getitem__))

    def _fit(self, x: np.ndarray, y: np.ndarray, reach: int) -> None:
        from sklearn.ensemble import RandomForestRegressor

        self.reach = reach
        inputs, self.truth = self._windows(y), x.ravel()
        forest = RandomForestRegressor(TREES, min_samples_leaf=5, max_features=0.5, random_state=0, n_jobs=-1)
        self.forest = forest.fit(inputs, self.truth)
        rng, leaves = np.random.default_rng(0), forest.apply(inputs)
        self.member = [_one_of_each(rng, leaf) for leaf in leaves.T]

    def _windows(self, y: np.ndarray) -> np.ndarray:
        reach = (self.reach, self.reach if self.ahead else 0)
        padded = np.pad(y, ((0, 0), reach), constant_values=np.nan)
        columns = [padded[:, i : i + y.shape[1]] for i in range(sum(reach) + 1)]
        return np.stack(columns, axis=-1).reshape(-1, len(columns))

    def crps(self, y: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return the CRPS of each series; a belief is a training state from the leaf of each tree [series]."""
        leaves = self.forest.apply(self._windows(y))
        drawn = self.truth[np.stack([member[leaf] for member, leaf in zip(self.member, leaves.T, strict=True)], axis=1)]
        return ensemble_crps(drawn, truth.ravel()).reshape(truth.shape).mean(axis=1)


def _one_of_each(rng: Rng, leaf: np.ndarray) -> np.ndarray:
    """Return the number of a random training sample of each leaf [leaf]."""
    order = rng.permutation(len(leaf))
    found = np.zeros(leaf.max() + 1, int)
    found[leaf[order]] = order
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return command_line.main(run, parser_of("benchmarks.series", __doc__, (*SYSTEMS, PENDULUM)), argv)


def run(args: argparse.Namespace) -> None:
    """Run the systems; results are written after each, and the rows of systems that were not run are kept."""
    if args.quick and args.accept:
        raise ValueError("--accept: must not be with --quick; got both. A quick run does not replace results.")
    path: Path = (SAVED if args.accept else args.out) / "series.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    for name in args.only or (*SYSTEMS, PENDULUM):
        print(f"{name} ...", flush=True)
        rng = np.random.default_rng([args.seed, len(name)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kbp.KbpWarning)
            rows = pendulum(rng, args.quick) if name == PENDULUM else numbers(SYSTEMS[name](), rng, args.quick)
        rows = [{"system": name, **row} for row in rows]
        tables.print_table(rows)
        kept = [row for row in kept if row["system"] != name] + rows
        results.write_results(path, {"quick": args.quick, "seed": args.seed}, kept)


def numbers(system: System, rng: Rng, quick: bool) -> list[Row]:
    """Return the rows of a system with numbers as states."""
    if quick:
        system = dataclasses.replace(system, length=20, train=30, test=4)
    (x, y), (truth, seen) = system.draw(rng, system.train), system.draw(rng, system.test)
    since = time.perf_counter()
    model = series.fit(x, y)
    fit_seconds = time.perf_counter() - since
    exact = Exact(system, rng, seen)
    kalman = Kalman(x, system.linear(y))
    found = {name: gaussians(*one) for name, one in kalman(system.linear(seen)).items()}
    filtered = series.filter(model, jnp.float32(seen))
    smoothed = series.smooth(model, jnp.float32(seen))
    points = np.asarray(model.points)
    of_points = lambda posterior: Distribution(points, np.asarray(posterior.weights))
    of_grid = lambda weights: Distribution(system.grid, weights)
    rows = [
        row("filter", truth, of_points(filtered.posterior), of_grid(exact.forward), found["filter"]),
        row("smooth", truth, of_points(smoothed), of_grid(exact.smoothed), found["smooth"]),
    ]
    alone = kbp.infer(model.model, kbp.Graph.from_edges(np.zeros((0, 2), int), seen.size), jnp.float32(seen.ravel()))
    alone = crps_of(np.asarray(alone.points), np.asarray(alone.weights), truth)
    for one, posterior in zip(rows, (filtered.posterior, smoothed), strict=True):
        ours = crps_of(points, np.asarray(posterior.weights), truth)
        forest = Forest(x, system.linear(y), one["task"] == "smooth").crps(system.linear(seen), truth)
        others = {"Kalman": kalman_crps(found[one["task"]], truth).mean(axis=1), "forest on windows": forest}
        one |= compared(ours, alone, others)
    rows[0] |= {"log density": float(np.nanmean(filtered.log_densities))}
    rows[0] |= {"exact log density": float(np.nanmean(exact.log_densities)), "fit_s": fit_seconds} | speed(model, seen)
    ends = [system.length * k // 8 for k in (3, 5, 7)]
    ends = [end for end in ends if end + HORIZON <= system.length]
    ahead = [series.forecast(model, jnp.float32(seen[:, :end]), HORIZON).weights[:, -1] for end in ends]
    linear = [
        kalman.forecast(*(part[:, -1] for part in kalman(system.linear(seen[:, :end]))["filter"])) for end in ends
    ]
    rows.append(
        row(
            "forecast",
            np.stack([truth[:, end + HORIZON - 1] for end in ends], axis=1),
            Distribution(points, np.stack(ahead, axis=1)),
            of_grid(np.stack([exact.forecast(end) for end in ends], axis=1)),
            gaussians(*(np.stack(part, axis=1) for part in zip(*linear, strict=True))),
        )
    )
    drawn = np.asarray(kbp.sample(smoothed, jax.random.key(0), PATHS)).max(axis=2)
    apart = np.asarray(kbp.sample(smoothed, jax.random.key(0), PATHS, joint=False)).max(axis=2)
    best = truth.max(axis=1)
    ours, alone, right = (ensemble(one, best) for one in (drawn, apart, exact.paths(PATHS).max(axis=2)))
    rows.append(
        {
            "task": "path maximum",
            "crps": ours[0],
            "exact": right[0],
            "/ exact": ours[0] / right[0],
            "each by itself": alone[0],
            "in 90 %": ours[1],
        }
    )
    return rows


def row(task: str, truth: np.ndarray, ours: Distribution, exact: Distribution, linear: Distribution) -> Row:
    """Return the scores of a task; `linear` has points of its own for each value."""
    own, right = (score(Quantity(), one, truth) for one in (ours, exact))
    return {
        "task": task,
        "crps": own["crps"],
        "exact": right["crps"],
        "/ exact": own["crps"] / right["crps"],
        "Kalman": float(kalman_crps(linear, truth).mean()),
        "in 90 %": own["coverage_90"],
    }


def compared(ours: np.ndarray, alone: np.ndarray, others: dict[str, np.ndarray]) -> Row:
    """Return what messages add, and the paired difference to the best baseline, from CRPS by series [series]."""
    best = min(others, key=lambda name: others[name].mean())
    found: Row = {**{name: float(one.mean()) for name, one in others.items()}, "alone": float(alone.mean())}
    for name, other in (("messages add", alone), ("ahead", others[best])):
        found |= {name: float((other - ours).mean()), f"{name}, se": results.standard_error(other - ours)}
    return found


def crps_of(points: np.ndarray, weights: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the mean CRPS of each series [series].

    Args:
        points: points of the distributions [point].
        weights: weights [series, time, point], or [series * time, point].
        truth: true states [series, time].
    """
    order = np.argsort(points)
    points, weights = points[order], weights.reshape(truth.size, -1)[:, order].astype(float)
    below = np.cumsum(weights, axis=1)
    within = (below * (1 - below))[:, :-1] @ np.diff(points)
    far = (weights * np.abs(points - truth.reshape(-1, 1))).sum(axis=1)
    return (far - within).reshape(truth.shape).mean(axis=1)


def gaussians(mean: np.ndarray, var: np.ndarray) -> Distribution:
    """Return Gaussians as means and standard deviations, in the place of points and weights."""
    return Distribution(mean, np.sqrt(var))


def kalman_crps(found: Distribution, truth: np.ndarray) -> np.ndarray:
    """Return the CRPS of Gaussians (Gneiting and Raftery 2007), of the shape of `truth`."""
    from scipy.stats import norm

    std = np.maximum(found.weights, 1e-9)
    z = (truth - found.points) / std
    return std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))


def ensemble(drawn: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the mean CRPS of ensembles [series, draw], and the share of truths in their central 90 %."""
    low, high = np.quantile(drawn, [0.05, 0.95], axis=1)
    return float(ensemble_crps(drawn, truth).mean()), float(np.mean((low <= truth) & (truth <= high)))


def ensemble_crps(drawn: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the CRPS of ensembles [case, draw]."""
    far = np.abs(drawn - truth[:, None]).mean(axis=1)
    ranked = np.sort(drawn, axis=1)
    count = drawn.shape[1]
    return far - ((2 * np.arange(count) - count + 1) * ranked).sum(axis=1) / count**2


def speed(model: series.SeriesModel, y: np.ndarray) -> Row:
    """Return microseconds of an online step, and seconds of filtering many series at once, both compiled."""
    step = jax.jit(lambda state, one: series.update(model, state, one))
    state, one = series.start(model), jnp.float32(0.5)
    state = jax.block_until_ready(step(state, one)).state
    rounds = []
    for _ in range(9):
        since = time.perf_counter()
        for _ in range(200):
            state, *_ = step(state, one)
        jax.block_until_ready(state)
        rounds.append((time.perf_counter() - since) / 200)
    many = jnp.float32(np.resize(y, (MANY, y.shape[1])))
    states = jax.jit(lambda many: series.filter(model, many).state)
    jax.block_until_ready(states(many))
    since = time.perf_counter()
    jax.block_until_ready(states(many))
    rank = model.forth.shape[0]
    return {"step_us": 1e6 * float(np.median(rounds)), "many_s": time.perf_counter() - since, "rank": rank}


def pendulum(rng: Rng, quick: bool) -> list[Row]:
    """Return the rows of the pendulum of `benchmarks.first_try`: angle and speed, of which the sine is seen."""
    problem = problems.pendulum(rng, quick)
    model = series.fit(np.asarray(problem.samples), np.asarray(problem.observations))
    y, truth = np.asarray(problem.test.y), np.asarray(problem.test.truth)
    filtered = series.filter(model, jnp.float32(y)).posterior
    smoothed = series.smooth(model, jnp.float32(y))
    exact = problem.exact(problem.test) if problem.exact is not None else {}
    particles = particle_filter(rng, y)
    rows = []
    for quantity in problem.quantities:
        own = lambda weights, q=quantity, x=truth: score(
            q, Distribution(np.asarray(model.points), np.asarray(weights)), x
        )
        for task, posterior in (("filter", filtered), ("smooth", smoothed)):
            ours = own(posterior.weights)
            if task == "smooth":
                right = score(quantity, exact[quantity.name], truth)["crps"]
            else:
                right = particle_crps(quantity, particles, truth)
            scores = {
                "crps": ours["crps"],
                "exact": right,
                "/ exact": ours["crps"] / right,
                "in 90 %": ours["coverage_90"],
            }
            rows.append({"task": f"{task}, {quantity.name}", **scores})
    return rows


NUM_PARTICLES = 4000


def particle_filter(rng: Rng, y: np.ndarray) -> np.ndarray:
    """Return particles of the true model of the pendulum given the past [series, time, particle, 2]."""
    found = np.empty((*y.shape, NUM_PARTICLES, 2), np.float32)
    for row, out in zip(y, found, strict=True):
        angle, speed = rng.uniform(-2.2, 2.2, NUM_PARTICLES), rng.standard_normal(NUM_PARTICLES)
        for seen, at in zip(row, out, strict=True):
            logs = -((seen - np.sin(angle)) ** 2) / (2 * problems.BLUR**2)
            weights = np.exp(logs - logs.max())
            chosen = rng.choice(NUM_PARTICLES, NUM_PARTICLES, p=weights / weights.sum())
            angle, speed = angle[chosen], speed[chosen]
            at[:, 0], at[:, 1] = angle, speed
            push = problems.PUSH * rng.standard_normal(NUM_PARTICLES)
            speed = speed - problems.STEP * 9 * np.sin(angle) + push
            angle = angle + problems.STEP * speed
    return found


def particle_crps(quantity: Quantity, particles: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean CRPS of particles, of angles in degrees; 400 of them."""
    (coordinate,) = quantity.coordinates or (0,)
    drawn, right = particles[..., ::10, coordinate], truth[..., coordinate]
    if quantity.angle:
        apart = lambda a, b: np.degrees(np.abs(np.angle(np.exp(1j * (a - b)))))
        crps = [
            apart(own, one).mean() - apart(own[:, None], own[None]).mean() / 2
            for own, one in zip(drawn.reshape(-1, drawn.shape[-1]), right.ravel(), strict=True)
        ]
        return float(np.mean(crps))
    return ensemble(drawn.reshape(-1, drawn.shape[-1]), right.ravel())[0]


if __name__ == "__main__":
    sys.exit(main())
