"""Synthetic problems: correlated numbers, chains, drawn pictures, a simulated network of sensors, random graphs."""

from functools import partial

import numpy as np

import kbpjax as kbp
from benchmarks.first_try import baselines, networks
from benchmarks.first_try.scoring import Distribution, Draw, Prediction, Problem, Quantity, wrapped
from experiments.convergence.run import regular_edges, small_world_edges

Rng = np.random.Generator


CORRELATION = np.array([[1, 0.8, 0.6, 0.7], [0.8, 1, 0.75, 0.5], [0.6, 0.75, 1, 0.65], [0.7, 0.5, 0.65, 1]])
"""Of four numbers."""


def four_numbers(rng: Rng, quick: bool) -> Problem:
    """Rows of four correlated Gaussian numbers, one node each, all joined; 25 % missing, in training too.

    1,500 rows to learn from, 500 others to fill; 100 more to choose options.
    """
    rows = 400 if quick else 2000
    x = rng.multivariate_normal(np.zeros(4), CORRELATION, rows)
    y = np.where(rng.random(x.shape) < 0.25, np.nan, x)
    learn = rows * 3 // 4
    test = Draw(y[learn:], np.where(np.isnan(y), x, np.nan)[learn:])
    validation = hide(rng, rng.multivariate_normal(np.zeros(4), CORRELATION, 100), 0.25)

    def exact(draw: Draw) -> dict[str, Distribution]:
        """Return the conditional Gaussians of the true model."""
        found = networks.gaussian(np.zeros(4), CORRELATION)(problem, draw)[""]
        assert isinstance(found, Prediction) and found.std is not None
        grid, std = np.linspace(-6, 6, 601), np.maximum(found.std, 0.02)[..., None]  # those seen are not scored
        weights = np.exp(-(((grid - found.mean[..., None]) / std) ** 2) / 2)
        return {"": Distribution(grid, weights / weights.sum(axis=-1, keepdims=True))}

    methods = {
        "joint Gaussian": networks.joint_gaussian(y[:learn], 5 if quick else 30),
        "copula": networks.copula(y[:learn], 5 if quick else 30),
        "IterativeImputer": networks.imputer(y[:learn]),
    }
    graph = kbp.Graph.from_edges([(i, j) for i in range(4) for j in range(i)], 4)
    problem = Problem(graph, y[:learn], y[:learn], test, validation, baselines=methods, exact=exact)
    return problem


def hide(rng: Rng, values: np.ndarray, share: float) -> Draw:
    """Return cases whose observations are the values themselves, a share of them hidden; these are scored."""
    hidden = rng.random(values.shape) < share
    return Draw(np.where(hidden, np.nan, values), np.where(hidden, values, np.nan))


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
    length = 15 if quick else 40

    def draw(cases: int) -> Draw:
        count = 3 * cases
        angle, speed = rng.uniform(-2.2, 2.2, count), rng.standard_normal(count)
        states = []
        for _ in range(length):
            states.append(np.stack([angle, speed], axis=-1))
            speed = speed - STEP * 9 * np.sin(angle) + PUSH * rng.standard_normal(count)
            angle = angle + STEP * speed
        x = np.stack(states, axis=1)
        x = x[np.abs(x[..., 0]).max(axis=1) < 3][:cases]  # none goes over the top
        return Draw(np.sin(x[..., 0]) + BLUR * rng.standard_normal(x.shape[:2]), x)

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
        exact=swing,
    )


STEP, PUSH, BLUR = 0.1, 0.2, 0.1
"""Of the pendulum: seconds of a step, noise of the speed in a step, and noise of the observations."""


def swing(draw: Draw, width: float = 0.01) -> dict[str, Distribution]:
    """Return the true posterior of the pendulum, by forward-backward passes on a grid.

    The noise of a step goes into the speed only, so that the angles of two successive times give the speed. States of
    the grid are angles and their increments, multiples of one width, which makes angle + increment a shift.
    Backward simulation with particles would fail: a particle has one possible predecessor.

    Args:
        draw: cases.
        width: spacing of the grid; half of the noise of an increment by default.
    """
    reach, most = round(3 / width) - 1, round(0.8 / width)
    angle, increment = width * np.arange(-reach, reach + 1), width * np.arange(-most, most + 1)
    expected = increment[None] - STEP**2 * 9 * np.sin(angle)[:, None]
    transition = np.exp(-((increment - expected[..., None]) ** 2) / (2 * (STEP * PUSH) ** 2)).astype(np.float32)
    transition /= transition.sum(axis=-1, keepdims=True)  # [angle, increment, next increment]
    start = (np.abs(angle) < 2.2)[:, None, None] * np.exp(-((increment / STEP) ** 2) / 2)
    own, shift = np.arange(len(angle))[:, None], np.arange(-most, most + 1)

    def moved(table: np.ndarray, sign: int) -> np.ndarray:
        """Return the entries at angle + sign * increment, 0 outside."""
        at = own + sign * shift
        inside = (at >= 0) & (at < len(angle))
        taken = table[np.clip(at, 0, len(angle) - 1), :, np.arange(len(shift))]  # [angle, increment, case]
        return np.swapaxes(np.where(inside[..., None], taken, 0), 1, 2)

    def smoothed(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return probabilities [case, time, point] of angles and of increments; tables are [angle, case, increment]."""
        likelihood = np.exp(-((y[..., None] - np.sin(angle)) ** 2) / (2 * BLUR**2)).astype(np.float32)
        likelihood = np.moveaxis(likelihood, -1, 1)[..., None]  # [time, angle, case, 1]
        forward = [(start * likelihood[0]).astype(np.float32)]
        for local in likelihood[1:]:
            table = moved(forward[-1] @ transition, -1) * local
            forward.append(table / table.sum(axis=(0, 2), keepdims=True))
        ahead, found = np.ones_like(forward[-1]), []
        for t in range(len(y) - 1, -1, -1):
            joint = forward[t] * ahead
            joint /= joint.sum(axis=(0, 2), keepdims=True)
            found.append((joint.sum(axis=2).T, joint.sum(axis=0)))
            ahead = moved(ahead * likelihood[t], 1) @ np.swapaxes(transition, 1, 2)
            ahead /= ahead.max(axis=(0, 2), keepdims=True)
        angles, increments = zip(*found[::-1], strict=True)
        return np.stack(angles, axis=1), np.stack(increments, axis=1)

    parts = [smoothed(part.T) for part in np.array_split(draw.y, len(draw.y) // 10 + 1)]
    angles, increments = (np.concatenate(one) for one in zip(*parts, strict=True))
    both = lambda points: np.stack([points, points], axis=-1)  # a quantity reads its coordinate of the points
    return {"angle": Distribution(both(angle), angles), "speed": Distribution(both(increment / STEP), increments)}


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
    apart = np.tile(distance, (2, 2))[edges[:, 0], edges[:, 1]]
    of_nodes = np.repeat([0, 1], sites)
    graph = kbp.Graph.from_edges(edges, 2 * sites, node_type=of_nodes, edge_type=kinds, edge_features=apart)
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
        {
            "joint ridge": baselines.joint_ridge(train),
            "kriging": baselines.kriging(train, distance),
            "IterativeImputer": networks.imputer_of_both(train, 10 if quick else 30),
        },
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
    "four-numbers": four_numbers,
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
