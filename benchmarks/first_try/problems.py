"""Synthetic problems: chains, pictures that are drawn, a simulated network of sensors, random graphs."""

from functools import partial

import numpy as np

import kbpjax as kbp
from benchmarks.first_try import baselines
from benchmarks.first_try.scoring import Distribution, Draw, Problem, Quantity, wrapped
from experiments.convergence.run import regular_edges, small_world_edges

Rng = np.random.Generator


def gaussian_chain(rng: Rng, quick: bool) -> Problem:
    """AR(1) series of 300 values, 30 % of the noisy observations missing."""
    length, decay, noise = (40 if quick else 300), 0.95, 0.5

    def step(x: np.ndarray) -> np.ndarray:
        return decay * x + np.sqrt(1 - decay**2) * rng.standard_normal(x.shape)

    start = rng.standard_normal
    density = lambda new, old: -((new - decay * old) ** 2) / (2 * (1 - decay**2))
    return _chain(rng, length, step, start, density, noise, np.linspace(-5, 5, 400), quick)


def bimodal_chain(rng: Rng, quick: bool) -> Problem:
    """Series of 300 values with two wells, -1 and 1, and observations that leave the well open."""
    length, rate, spread, noise = (40 if quick else 300), 0.4, 0.35, 1.0

    def step(x: np.ndarray) -> np.ndarray:
        return x + rate * (x - x**3) + spread * rng.standard_normal(x.shape)

    start = lambda count: rng.choice([-1.0, 1.0], count)
    density = lambda new, old: -((new - old - rate * (old - old**3)) ** 2) / (2 * spread**2)
    return _chain(rng, length, step, start, density, noise, np.linspace(-3, 3, 400), quick)


def _chain(rng, length, step, start, density, noise, grid, quick) -> Problem:
    """Simulate series with Gaussian noise, of which 30 % is missing."""

    def draw(cases: int) -> Draw:
        x = _simulate(step, start(cases), length)
        y = x + noise * rng.standard_normal(x.shape)
        return Draw(np.where(rng.random(x.shape) < 0.3, np.nan, y), x)

    train, validation, test = (draw(n) for n in ((8, 4, 4) if quick else (20, 8, 20)))
    log_likelihood = lambda y: -((y[..., None] - grid) ** 2) / (2 * noise**2)
    return Problem(
        kbp.chain_graph(length),
        train.truth,
        train.y,
        test,
        validation,
        baselines={"Kalman smoother, learned": baselines.kalman(train)},
        exact=partial(_exact, grid, density, log_likelihood),
    )


def stochastic_volatility(rng: Rng, quick: bool) -> Problem:
    """Log volatilities x of 80 days, 100 training series, y = exp(x / 2) times standard noise."""
    length, decay, spread = (30 if quick else 80), 0.95, 0.35
    grid = np.linspace(-5, 5, 400)

    def step(x: np.ndarray) -> np.ndarray:
        return decay * x + spread * rng.standard_normal(x.shape)

    def draw(cases: int) -> Draw:
        x = _simulate(step, spread / np.sqrt(1 - decay**2) * rng.standard_normal(cases), length)
        return Draw(np.exp(x / 2) * rng.standard_normal(x.shape), x)

    train, validation, test = (draw(n) for n in ((20, 4, 4) if quick else (100, 20, 60)))
    density = lambda new, old: -((new - decay * old) ** 2) / (2 * spread**2)
    log_likelihood = lambda y: -(y[..., None] ** 2) / (2 * np.exp(grid)) - grid / 2
    log_square = lambda y: np.log(np.maximum(y**2, 1e-12))
    return Problem(
        kbp.chain_graph(length),
        train.truth,
        train.y,
        test,
        validation,
        baselines={"Kalman smoother on log y²": baselines.kalman(train, log_square)},
        exact=partial(_exact, grid, density, log_likelihood),
    )


def pendulum(rng: Rng, quick: bool) -> Problem:
    """Angle and speed of a pendulum at 40 times, as vectors; the sine of the angle is seen, with noise."""
    length, step = (15 if quick else 40), 0.1

    def draw(cases: int) -> Draw:
        count = 3 * cases
        angle, speed = rng.uniform(-2.2, 2.2, count), rng.standard_normal(count)
        states = []
        for _ in range(length):
            states.append(np.stack([angle, speed], axis=-1))
            speed = speed - step * 9 * np.sin(angle) + 0.2 * rng.standard_normal(count)
            angle = angle + step * speed
        x = np.stack(states, axis=1)
        x = x[np.abs(x[..., 0]).max(axis=1) < 3][:cases]  # none goes over the top
        return Draw(np.sin(x[..., 0]) + 0.1 * rng.standard_normal(x.shape[:2]), x)

    train, validation, test = (draw(n) for n in ((30, 4, 4) if quick else (200, 10, 30)))
    quantities = Quantity("angle", coordinates=(0,), angle=True), Quantity("speed", coordinates=(1,))
    return Problem(
        kbp.chain_graph(length),
        train.truth,
        train.y,
        test,
        validation,
        quantities,
        {"random forest on windows": baselines.forest(train, reach=4 if quick else 10)},
    )


def readme_grid(rng: Rng, quick: bool) -> Problem:
    """Drawn circles of the README's first program: one picture to learn from, another to denoise."""
    side = 20 if quick else 60

    def picture(row: float, column: float) -> np.ndarray:
        i, j = np.mgrid[:side, :side] * (60 / side)
        return np.minimum(5 * np.hypot(i - row, j - column), 240).round().ravel()[None]

    noisy = lambda image: image + 30 * rng.standard_normal(image.shape)
    train, test, validation = picture(20, 10), picture(59, 30), picture(30, 55)
    copy, y = noisy(train), noisy(test)
    return Problem(
        kbp.grid_graph(side, side),
        train,
        copy,
        Draw(y, test),
        Draw(noisy(validation), validation),
        baselines=baselines.denoisers(Draw(copy, train)),
        peak=240.0,
    )


def sensor_network(rng: Rng, quick: bool) -> Problem:
    """Temperature and wind angle at 40 sites; 60 % of thermometers and 25 % of vanes are seen.

    Two node types (0: temperature, 1: wind angle) and three edge types: neighboring sites, and both values of a site.
    """
    sites, cases = (12, (30, 5, 5)) if quick else (40, (150, 20, 60))
    place = rng.random((sites, 2))
    distance = np.linalg.norm(place[:, None] - place[None], axis=-1)
    near = nearest_pairs(distance, 5)
    own = np.arange(sites)
    edges = np.concatenate([near, near + sites, np.stack([own, own + sites], axis=1)])
    kinds = np.repeat([0, 1, 2], [len(near), len(near), sites])
    graph = kbp.Graph.from_edges(edges, 2 * sites, node_type=np.repeat([0, 1], sites), edge_type=kinds)
    roots = [np.linalg.cholesky(np.exp(-((distance / s) ** 2) / 2) + 1e-6 * np.eye(sites)) for s in (0.3, 0.4)]

    def draw(count: int) -> Draw:
        smooth, east, north = (rng.standard_normal((count, sites)) @ roots[i].T for i in (0, 1, 1))
        angle = np.arctan2(north, east + 1.5)
        warm = 15 + 3 * smooth + 2 * np.cos(angle)
        seen = warm + 0.5 * rng.standard_normal(warm.shape), wrapped(angle + 0.3 * rng.standard_normal(angle.shape))
        shares = 0.6, 0.25
        y = {
            v: np.where(rng.random(one.shape) < share, one, np.nan)
            for v, (one, share) in enumerate(zip(seen, shares, strict=True))
        }
        return Draw(y, {0: warm, 1: angle})

    train, validation, test = (draw(n) for n in cases)
    kernel = {1: kbp.kernels.Periodic(2 * np.pi)}
    return Problem(
        graph,
        train.truth,
        train.y,
        test,
        validation,
        (Quantity("temperature", 0), Quantity("wind angle", 1, angle=True)),
        {"joint ridge": baselines.joint_ridge(train), "kriging": baselines.kriging(train, distance)},
        kernel=kernel,
        obs_kernel=kernel,
    )


def random_regular(rng: Rng, quick: bool) -> Problem:
    """Two wells on a random 4-regular graph, with observations that contradict the neighbors."""
    nodes = 30 if quick else 300
    return _wells(rng, nodes, regular_edges(rng, nodes, 4), quick)


def small_world(rng: Rng, quick: bool) -> Problem:
    """The same on a small-world graph."""
    nodes = 30 if quick else 300
    return _wells(rng, nodes, small_world_edges(rng, nodes, 4, 0.1), quick)


COUPLING, WIDTH, NOISE, WRONG = 0.35, 0.3, 1.0, 0.1
"""Of two wells: coupling of neighbors, width of a well, noise, and share of observations of another node."""


def _wells(rng: Rng, nodes: int, edges: np.ndarray, quick: bool) -> Problem:
    """Put an Ising model with Gaussian wells on a graph.

    Half of the test cases have observations in random order, which contradict everything; they count in `converged`
    and have no truth.
    """
    neighbors = [np.concatenate([edges[edges[:, 0] == i, 1], edges[edges[:, 1] == i, 0]]) for i in range(nodes)]

    def gibbs(bias: np.ndarray, sweeps: int, keep: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sides, and their probabilities averaged over the last sweeps."""
        side, share = rng.choice([-1.0, 1.0], bias.shape), np.zeros(bias.shape)
        for sweep in range(sweeps):
            for i in range(nodes):
                up = 1 / (1 + np.exp(-2 * (COUPLING * side[:, neighbors[i]].sum(axis=1) + bias[:, i])))
                side[:, i] = np.where(rng.random(len(side)) < up, 1.0, -1.0)
                if sweep >= sweeps - keep:
                    share[:, i] += up / keep
        return side, share

    def draw(cases: int) -> Draw:
        side, _ = gibbs(np.zeros((cases, nodes)), 60, 1)
        x = side + WIDTH * rng.standard_normal(side.shape)
        other = rng.choice([-1.0, 1.0], x.shape) + WIDTH * rng.standard_normal(x.shape)
        source = np.where(rng.random(x.shape) < WRONG, other, x)
        return Draw(source + NOISE * rng.standard_normal(x.shape), x)

    def exact(draw: Draw) -> dict[str, Distribution]:
        """Return the posterior of the true model, by long Gibbs sampling of the sides."""
        grid = np.linspace(-2.5, 2.5, 200)
        y = draw.y[..., None]
        normal = lambda mean, var: np.exp(-((y - mean) ** 2) / (2 * var)) / np.sqrt(var)
        any_side = (normal(1, WIDTH**2 + NOISE**2) + normal(-1, WIDTH**2 + NOISE**2)) / 2
        local = {}
        for s in (-1.0, 1.0):
            prior = np.exp(-((grid - s) ** 2) / (2 * WIDTH**2))
            local[s] = prior * ((1 - WRONG) * normal(grid, NOISE**2) + WRONG * any_side)
        bias = np.log(local[1.0].sum(axis=-1) / local[-1.0].sum(axis=-1)) / 2
        _, up = gibbs(bias, 600, 500)
        scaled = {s: one / one.sum(axis=-1, keepdims=True) for s, one in local.items()}
        return {"": Distribution(grid, up[..., None] * scaled[1.0] + (1 - up[..., None]) * scaled[-1.0])}

    train, validation, test = (draw(n) for n in ((20, 4, 4) if quick else (30, 16, 20)))
    mixed = rng.permuted(test.y.reshape(-1)).reshape(test.y.shape)
    test = Draw(np.concatenate([test.y, mixed]), np.concatenate([test.truth, np.full(test.y.shape, np.nan)]))
    graph = kbp.Graph.from_edges(edges, nodes)
    return Problem(
        graph,
        train.truth,
        train.y,
        test,
        validation,
        baselines=baselines.of_neighbors(train, neighbors),
        exact=exact,
    )


def nearest_pairs(distance: np.ndarray, count: int) -> np.ndarray:
    """Return the pairs of places of which one is among the `count` nearest of the other."""
    order = np.argsort(distance, axis=1)[:, 1 : count + 1]
    pairs = np.stack([np.repeat(np.arange(len(order)), order.shape[1]), order.reshape(-1)], axis=1)
    return np.unique(np.sort(pairs, axis=1), axis=0)


def _simulate(step, x: np.ndarray, length: int) -> np.ndarray:
    """Return series [case, time], after 50 steps that do not count."""
    for _ in range(50):
        x = step(x)
    series = []
    for _ in range(length):
        series.append(x)
        x = step(x)
    return np.stack(series, axis=1)


def _exact(grid: np.ndarray, density, log_likelihood, draw: Draw) -> dict[str, Distribution]:
    """Return the posterior of a stationary Markov chain by forward-backward passes on a grid."""
    transition = np.exp(density(grid[None], grid[:, None]))  # [old, new]
    transition /= transition.sum(axis=1, keepdims=True)
    prior = np.full(len(grid), 1 / len(grid))
    for _ in range(500):
        prior = prior @ transition
    logs = log_likelihood(draw.y)
    local = np.where(np.isnan(logs), 1.0, np.exp(logs - np.nanmax(logs, axis=-1, keepdims=True, initial=-np.inf)))
    length = local.shape[1]
    forward, backward = np.empty_like(local), np.ones_like(local)
    for t in range(length):
        ahead = prior if t == 0 else forward[:, t - 1] @ transition
        forward[:, t] = ahead * local[:, t]
        forward[:, t] /= forward[:, t].sum(axis=1, keepdims=True)
    for t in range(length - 2, -1, -1):
        backward[:, t] = (backward[:, t + 1] * local[:, t + 1]) @ transition.T
        backward[:, t] /= backward[:, t].sum(axis=1, keepdims=True)
    weights = forward * backward
    return {"": Distribution(grid, weights / weights.sum(axis=-1, keepdims=True))}


PROBLEMS = {
    "gaussian-chain": gaussian_chain,
    "bimodal-chain": bimodal_chain,
    "stochastic-volatility": stochastic_volatility,
    "pendulum": pendulum,
    "readme-grid": readme_grid,
    "sensor-network": sensor_network,
    "random-regular": random_regular,
    "small-world": small_world,
}
"""{name: builder}; a builder gets random numbers and whether the run is quick."""
