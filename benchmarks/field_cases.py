"""Solve questions that users of other packages asked in public, as a newcomer would, and compare with right answers.

    python -m benchmarks.field_cases [--only NAME ...] [--accept]

Each case is drawn anew from its description; `fit` and `infer` get no options but the kernel that the question names.
Right answers are computed here by other means: filters, smoothers and conditionals in closed form, sums on grids, sums
over all states. Seconds are those of `fit` and of the first answers together, with compilation.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

import kbpjax as kbp
from experiments.lib import command_line, results, tables
from kbpjax.baselines import discrete, elimination

SAVED, OUT = Path("benchmarks/results"), Path("benchmarks/out")
SHOWN = ("case", "quantity", "found", "right", "asked", "good", "seconds", "warned", "failed")
Row = dict[str, Any]
Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Answer:
    """One number of a case.

    Attributes:
        quantity: what it is.
        found: ours.
        right: the right one.
        asked: how far from it is good enough: a largest value, or (smallest, largest).
    """

    quantity: str
    found: float
    right: float
    asked: float | tuple[float, float]

    @property
    def good(self) -> bool:
        """Whether it is good enough."""
        low, high = (-np.inf, self.asked) if isinstance(self.asked, float | int) else self.asked
        return bool(low <= self.found <= high)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field_cases", description=description)
    command_line.add_common_arguments(parser, OUT)
    parser.add_argument("--accept", action="store_true", help="write the run into the committed file")
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help=f"cases: {', '.join(CASES)}")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the cases; results are written after each."""
    rows: list[Row] = []
    for name in args.only or CASES:
        asked = len(rows)
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                answers, failed = CASES[name](args.seed), ""
            except Exception as error:  # any failure is a result
                answers, failed = [], f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - start
        warned = sorted({type(w.message).__name__ for w in caught if issubclass(w.category, kbp.KbpWarning)})
        shared = {"case": name, "question": (CASES[name].__doc__ or "").split("\n")[0]}
        for one in answers:
            row = {"quantity": one.quantity, "found": one.found, "right": one.right, "asked": _words(one.asked)}
            rows.append(shared | row | {"good": one.good, "seconds": seconds, "warned": ", ".join(warned)})
        if failed:
            rows.append(shared | {"failed": failed, "good": False, "seconds": seconds})
        tables.print_table(rows[asked:], [key for key in SHOWN if any(key in row for row in rows[asked:])])
        jax.clear_caches()
        if args.only is None or not args.accept:
            path = (SAVED if args.accept else args.out) / "field_cases.json"
            results.write_results(path, {"seed": args.seed}, rows)


def _words(asked: float | tuple[float, float]) -> str:
    return f"<= {asked:g}" if isinstance(asked, float | int) else f"{asked[0]:g} .. {asked[1]:g}"


def rmse(found: Any, truth: Any, where: Any = slice(None)) -> float:
    """Return the root mean square error where it is asked."""
    return float(np.sqrt(np.mean((np.asarray(found) - np.asarray(truth))[where] ** 2)))


def answers(model: kbp.KernelMRF, graph: kbp.Graph, y: Any, **options: Any) -> kbp.Posterior:
    """Return the posteriors of many cases."""
    return jax.vmap(lambda one: kbp.infer(model, graph, one, **options))(jax.tree.map(jnp.asarray, y))


def filled(model: kbp.KernelMRF, graph: kbp.Graph, rows: Array) -> kbp.Posterior:
    """Return the posteriors of rows of known values with holes."""
    return jax.vmap(lambda row: kbp.infer(model, graph, evidence=kbp.clamp(model, graph, None, row)))(jnp.asarray(rows))


def on_grid(start: Array, step: Array, likelihood: Array) -> Array:
    """Return the marginals [time, state] of a chain of states: start [state], step [state, next], [time, state]."""
    forward, backward = np.array(likelihood), np.ones_like(likelihood)
    forward[0] *= start
    forward[0] /= forward[0].sum()
    for t in range(1, len(forward)):
        forward[t] *= forward[t - 1] @ step
        forward[t] /= forward[t].sum()
    for t in range(len(forward) - 2, -1, -1):
        backward[t] = step @ (likelihood[t + 1] * backward[t + 1])
        backward[t] /= backward[t].sum()
    product = forward * backward
    return product / product.sum(axis=1, keepdims=True)


FUNCTIONS = {
    (0, 1): lambda a: np.sin(2 * a),
    (0, 2): lambda a: 0.8 * a**2 - 0.8,
    (1, 3): lambda b: 1.5 * b,
    (2, 4): lambda c: np.tanh(2 * c),
}


def tree_of_functions(seed: int) -> list[Answer]:
    """Fill holes of a table whose columns are a tree of four different functions."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> Array:
        x = np.zeros((count, 5))
        x[:, 0] = rng.normal(size=count)
        for (s, t), function in FUNCTIONS.items():
            x[:, t] = function(x[:, s]) + 0.3 * rng.normal(size=count)
        return x

    train, test = draw(1500), draw(500)
    train = np.where(rng.random(train.shape) < 0.15, np.nan, train)
    hidden = rng.random(test.shape) < 0.3
    rows = np.where(hidden, np.nan, test)
    graph = kbp.Graph.from_edges(list(FUNCTIONS), 5)
    model = kbp.fit(kbp.pool(graph, train))
    found = np.asarray(kbp.mean(filled(model, graph, rows)))

    grid = np.linspace(-5, 5, 401)
    width = 0.0125
    steps = {edge: norm.pdf(grid[None], f(grid)[:, None], 0.3) for edge, f in FUNCTIONS.items()}
    right = np.array([_exact_tree(grid, norm.pdf(grid), steps, row, width) for row in rows])
    return [Answer("RMSE of holes", rmse(found, test, hidden), rmse(right, test, hidden), 0.50)]


def _exact_tree(grid: Array, prior: Array, steps: dict[tuple[int, int], Array], row: Array, width: float) -> Array:
    """Return posterior means of the five columns on a grid; seen values have a narrow likelihood."""
    seen = [np.ones(len(grid)) if np.isnan(v) else np.exp(-0.5 * ((grid - v) / width) ** 2) for v in row]
    up3, up4 = steps[1, 3] @ seen[3], steps[2, 4] @ seen[4]
    up1, up2 = steps[0, 1] @ (seen[1] * up3), steps[0, 2] @ (seen[2] * up4)
    down1, down2 = (prior * seen[0] * up2) @ steps[0, 1], (prior * seen[0] * up1) @ steps[0, 2]
    beliefs = [prior * seen[0] * up1 * up2, seen[1] * up3 * down1, seen[2] * up4 * down2]
    beliefs += [seen[3] * ((seen[1] * down1) @ steps[1, 3]), seen[4] * ((seen[2] * down2) @ steps[2, 4])]
    return np.array([(grid * b).sum() / b.sum() for b in beliefs])


def partly_seen_vectors(seed: int) -> list[Answer]:
    """Smooth series of two numbers whose noisy observations lack half of their entries."""
    rng = np.random.default_rng(seed)
    step, noise, first = np.array([[0.95, 0.2], [-0.2, 0.95]]), 0.3 * np.eye(2), 1.7 * np.eye(2)
    x = np.zeros((200, 60, 2))
    x[:, 0] = rng.multivariate_normal(np.zeros(2), first, 200)
    for t in range(1, 60):
        x[:, t] = x[:, t - 1] @ step.T + rng.multivariate_normal(np.zeros(2), 0.1 * np.eye(2), 200)
    y = x + np.sqrt(0.3) * rng.normal(size=x.shape)
    y[rng.random(y.shape) < 0.5] = np.nan
    graph = kbp.chain_graph(60)
    model = kbp.fit(kbp.pool(graph, x[:100], y[:100]))
    found = np.asarray(kbp.mean(answers(model, graph, y[100:120])))
    right = np.array([_smoothed(row, step, 0.1 * np.eye(2), noise, first) for row in y[100:120]])
    truth = x[100:120]
    return [Answer("RMSE", rmse(found, truth), rmse(right, truth), 0.40)]


def _smoothed(y: Array, step: Array, spread: Array, noise: Array, first: Array) -> Array:
    """Return the means of a Kalman smoother that uses the entries that are there."""
    mean, cov = np.zeros(len(first)), first
    means, covs, ahead_means, ahead_covs = [], [], [], []
    for t, row in enumerate(y):
        if t:
            mean, cov = step @ mean, step @ cov @ step.T + spread
        ahead_means.append(mean)
        ahead_covs.append(cov)
        there = np.isfinite(row)
        seen = np.eye(len(first))[there]
        if there.any():
            gain = cov @ seen.T @ np.linalg.inv(seen @ cov @ seen.T + noise[np.ix_(there, there)])
            mean, cov = mean + gain @ (row[there] - seen @ mean), cov - gain @ seen @ cov
        means.append(mean)
        covs.append(cov)
    for t in range(len(y) - 2, -1, -1):
        gain = covs[t] @ step.T @ np.linalg.inv(ahead_covs[t + 1])
        means[t] = means[t] + gain @ (means[t + 1] - ahead_means[t + 1])
    return np.array(means)


def gap_of_a_walk(seed: int) -> list[Answer]:
    """Fill a gap of thirty steps in a random walk, by joint draws, too; the start of others."""
    rng = np.random.default_rng(seed)
    train, walk = (
        np.cumsum(rng.normal(size=(300, 100)), axis=1),
        np.cumsum(np.random.default_rng(seed + 1).normal(size=100)),
    )
    row = walk.copy()
    row[40:70] = np.nan
    graph = kbp.chain_graph(100)
    model = kbp.fit(kbp.pool(graph, train, train))
    posterior = kbp.infer(model, graph, row)
    draws = np.asarray(kbp.sample(posterior, jax.random.key(0), 200)).reshape(200, 100)
    steps = np.diff(draws[:, 40:70], axis=1)
    k = np.arange(1, 31)
    mean, std = row[39] + (row[70] - row[39]) * k / 31, np.sqrt(k * (31 - k) / 31)
    mine, spread = np.asarray(kbp.mean(posterior)), np.asarray(kbp.std(posterior))

    others = np.cumsum(np.random.default_rng(seed + 3).normal(size=(40, 100)), axis=1)
    late = np.where(np.arange(100) < 30, np.nan, others)
    begun = answers(model, graph, late)
    return [
        Answer("mean in the middle", float(mine[54]), mean[14], (mean[14] - 0.25, mean[14] + 0.25)),
        Answer("sd in the middle", float(spread[54]), std[14], (0.88 * std[14], 1.12 * std[14])),
        Answer("sd of the steps of draws", float(steps.std()), 1.0, (0.9, 1.1)),
        Answer("first 30 missing: sd of the first", float(np.asarray(kbp.std(begun))[:, 0].mean()), 0.98, (0.78, 1.18)),
    ]


STEP6 = np.array([[0.95, 0.04, 0.01], [0.03, 0.94, 0.03], [0.01, 0.04, 0.95]])


def _hidden_states(seed: int, emit: Callable[[np.random.Generator, Array], Array]) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    z = np.zeros((120, 200), int)
    z[:, 0] = rng.integers(0, 3, 120)
    for t in range(1, 200):
        z[:, t] = (rng.random((120, 1)) > np.cumsum(STEP6[z[:, t - 1]], axis=1)).sum(axis=1)
    y = emit(rng, z)
    y[rng.random(y.shape) < 0.3] = np.nan
    return z, y


def _scores_of_states(z: Array, y: Array, density: Callable[[Array, int], Array]) -> tuple[Array, Array]:
    """Return accuracy and mean -log p(true state) on series 100 to 119: ours, and of the true model."""
    graph, truth = kbp.chain_graph(200), z[100:]
    model = kbp.fit(kbp.pool(graph, z[:100], y[:100]))
    beliefs = answers(model, graph, y[100:])
    mine = np.asarray(beliefs.weights)[..., np.argsort(np.asarray(beliefs.points))]
    likelihood = [np.where(np.isnan(y[100:]), 1, density(np.nan_to_num(y[100:]), k)) + 1e-12 for k in range(3)]
    right = np.array([on_grid(np.full(3, 1 / 3), STEP6, one) for one in np.stack(likelihood, axis=-1)])
    scores = []
    for p in (mine, right):
        given = np.take_along_axis(p, truth[..., None], axis=-1)
        scores.append(np.array([(p.argmax(axis=-1) == truth).mean(), -np.log(given).mean()]))
    return scores[0], scores[1]


def hidden_states(seed: int) -> list[Answer]:
    """Find hidden states of three kinds behind Gaussian noise, 30 % missing."""
    means = np.array([-2.0, 0.0, 2.0])
    z, y = _hidden_states(seed, lambda rng, z: means[z] + 1.5 * rng.normal(size=z.shape))
    mine, right = _scores_of_states(z, y, lambda v, k: norm.pdf(v, means[k], 1.5))
    return [
        Answer("share wrong", 1 - mine[0], 1 - right[0], 0.124),
        Answer("-log p of the true state", mine[1], right[1], 0.300),
    ]


def any_emission(seed: int) -> list[Answer]:
    """Find hidden states that emit from an exponential, two peaks, or evenly."""

    def emit(rng: np.random.Generator, z: Array) -> Array:
        peaks = rng.choice([-2.0, 2.0], z.shape) + 0.3 * rng.normal(size=z.shape)
        return np.where(z == 0, rng.exponential(1.0, z.shape), np.where(z == 1, peaks, rng.uniform(-4, 4, z.shape)))

    def density(v: Array, k: int) -> Array:
        one = np.where(v >= 0, np.exp(-np.abs(v)), 0)
        two = 0.5 * norm.pdf(v, -2, 0.3) + 0.5 * norm.pdf(v, 2, 0.3)
        return (one, two, np.where(np.abs(v) < 4, 1 / 8, 0))[k]

    z, y = _hidden_states(seed, emit)
    mine, right = _scores_of_states(z, y, density)
    return [Answer("-log p of the true state", mine[1], right[1], 0.182)]


def strong_chain(seed: int) -> list[Answer]:
    """Smooth twenty strongly coupled numbers seen with noise."""
    rng = np.random.default_rng(seed)
    precision = np.eye(20) * 0.05
    for i in range(19):
        precision[i : i + 2, i : i + 2] += np.array([[4, -4], [-4, 4]])
    x = rng.multivariate_normal(np.zeros(20), np.linalg.inv(precision), 500)
    y = x + rng.normal(size=x.shape)
    graph = kbp.chain_graph(20)
    model = kbp.fit(kbp.pool(graph, x[:400], y[:400]))
    posterior = answers(model, graph, y[400:])
    right = np.linalg.solve(precision + np.eye(20), y[400:].T).T
    std = np.sqrt(np.linalg.inv(precision + np.eye(20))[10, 10])
    found = float(np.asarray(kbp.std(posterior))[:, 10].mean())
    return [
        Answer("RMSE", rmse(kbp.mean(posterior), x[400:]), rmse(right, x[400:]), 0.51),
        Answer("sd of the middle", found, float(std), (0.92 * std, 1.08 * std)),
    ]


STRINGS = ["AGCT", "AGC", "AACT", "TAA", "AAA", "GAACA"]


def strings(seed: int) -> list[Answer]:
    """Regress numbers on six strings from a Gram matrix, four of them known."""
    del seed
    y, known = np.array([1.0, 1, 2, 2, 3, 3]), [0, 1, 3, 4]
    gram = np.array([[sum(1.0 if a == b else 0.5 for a in s for b in t) for t in STRINGS] for s in STRINGS])
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    data = kbp.pool(graph, {0: np.array(known)[:, None], 1: y[known][:, None]})
    model = kbp.fit(data, kernel={0: kbp.kernels.Precomputed(gram)})
    found = [
        float(kbp.mean(kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0], [i])))[1][0]) for i in range(6)
    ]
    right = gram[:, known] @ np.linalg.solve(gram[np.ix_(known, known)] + 0.1 * np.eye(4), y[known])
    return [Answer("largest difference to kernel ridge", float(np.abs(np.array(found) - right).max()), 0.0, 0.15)]


def file_of_tables(seed: int) -> list[Answer]:
    """Read a UAI file of a 4 x 4 grid, and solve it."""
    rng = np.random.default_rng(seed)
    edges = [(4 * i + j, 4 * i + j + 1) for i in range(4) for j in range(3)]
    edges += [(4 * i + j, 4 * i + 4 + j) for i in range(3) for j in range(4)]
    singles, pairs = [np.exp(rng.normal(size=2)) for _ in range(16)], [np.exp(rng.normal(size=(2, 2))) for _ in edges]
    states = (np.arange(2**16)[:, None] >> np.arange(16)) & 1
    logs = sum(np.log(p)[states[:, i]] for i, p in enumerate(singles))
    logs = logs + sum(np.log(p)[states[:, i], states[:, j]] for (i, j), p in zip(edges, pairs, strict=True))
    log_z = np.logaddexp.reduce(logs)
    right = np.exp(logs - log_z) @ states
    lines: list[str] = ["MARKOV", "16", " ".join(["2"] * 16), str(16 + len(edges)), *(f"1 {i}" for i in range(16))]
    lines += [f"2 {i} {j}" for i, j in edges]
    lines += [f"{p.size} " + " ".join(f"{v:.17g}" for v in p.ravel()) for p in (*singles, *pairs)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grid.uai"
        path.write_text("\n".join(lines), encoding="utf-8")
        factors = discrete.read_uai(path)
    exact = elimination.solve(factors)
    model, graph, evidence = discrete.from_factors(factors)
    posterior = kbp.infer(model, graph, evidence=evidence)
    mine = np.asarray(posterior.weights)[:, 1]
    worst = max(abs(float(p[1]) - r) for p, r in zip(exact.marginals, right, strict=True))
    return [
        Answer("largest error of marginals, exact", worst, 0.0, 1e-6),
        Answer("error of log Z, exact", abs(float(exact.log_partition) - log_z), 0.0, 1e-6),
        Answer("largest error of marginals, BP", float(np.abs(mine - right).max()), 0.0, 3e-3),
        Answer("error of log Z, BP", abs(float(kbp.log_partition(posterior)) - log_z), 0.0, 0.01),
    ]


def new_row(seed: int) -> list[Answer]:
    """Fill a single new row of labels and numbers, and a label that nobody has seen."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=400)
    kind = np.digitize(a + 0.3 * rng.normal(size=400), [-0.5, 0.5])
    symbol = np.array(["#", "%", "@"])[kind]
    c = kind + 0.3 * rng.normal(size=400)
    graph = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, node_type=range(3))
    model = kbp.fit(kbp.pool(graph, {0: a[:, None], 1: symbol[:, None], 2: c[:, None]}))

    def one(row: Array) -> kbp.Posterior:
        seen = kbp.clamp(model, graph, [0, 2], row)
        return kbp.infer(model, graph, evidence=seen)

    rows = np.array([[-1.0, 0.1], [0.1, 1.1], [1.2, 2.0]])
    alone = [kbp.mode(one(row))[1][0] for row in rows]
    spread = np.stack([np.asarray(one(row).weights[1]) for row in rows])
    differ = float(np.abs(spread - np.asarray(jax.vmap(one)(jnp.asarray(rows)).weights[1])).max())
    try:
        kbp.clamp(model, graph, [1], ["?"])
        refused = ""
    except ValueError as error:
        refused = str(error)
    return [
        Answer("labels wrong", float(sum(a != b for a, b in zip(alone, "#%@", strict=True))), 0.0, 0.0),
        Answer("alone against in a batch", differ, 0.0, 1e-5),
        Answer("unseen label not named", float("?" not in refused), 0.0, 0.0),
    ]


def regression_backwards(seed: int) -> list[Answer]:
    """Learn y = 2 x + 1 + noise, and ask for x where y = 3."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=1000)
    y = 2 * x + 1 + 0.5 * rng.normal(size=1000)
    graph = kbp.Graph.from_edges([(0, 1)], 2)
    model = kbp.fit(kbp.pool(graph, np.stack([x, y], axis=1)))
    posterior = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [1], [3.0]))
    right, std = 2 * 2 / 4.25, np.sqrt(1 / 17)
    mean, spread = float(kbp.mean(posterior)[0]), float(kbp.std(posterior)[0])
    return [
        Answer("mean", mean, right, (right - 0.05, right + 0.05)),
        Answer("sd", spread, float(std), (0.88 * std, 1.12 * std)),
    ]


CORRELATION = np.array([[1, 0.8, 0.6, 0.7], [0.8, 1, 0.75, 0.5], [0.6, 0.75, 1, 0.65], [0.7, 0.5, 0.65, 1]])


def correlated_numbers(seed: int) -> list[Answer]:
    """Fill rows of four correlated numbers, a quarter of them missing; as one vector, too."""
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(np.zeros(4), CORRELATION, 2000)
    hidden = rng.random(x.shape) < 0.25
    rows = np.where(hidden, np.nan, x)
    right = rows.copy()
    for row, gone in zip(right, hidden, strict=True):
        there = ~gone
        if gone.any():
            gain = CORRELATION[np.ix_(gone, there)] @ np.linalg.inv(CORRELATION[np.ix_(there, there)])
            row[gone] = gain @ row[there]
    test = slice(1500, 2000)
    ask = hidden[test]
    exact = rmse(right[test], x[test], ask)
    graph = kbp.Graph.from_edges([(i, j) for i in range(4) for j in range(i)], 4)
    model = kbp.fit(kbp.pool(graph, rows[:1500]))
    found = np.asarray(kbp.mean(filled(model, graph, rows[test])))
    node = kbp.Graph.from_edges(np.zeros((0, 2), int), 1)
    vectors = kbp.fit(kbp.pool(node, x[:1500, None], rows[:1500, None]))
    other = np.asarray(kbp.mean(answers(vectors, node, rows[test][:, None])))[:, 0]
    return [
        Answer("RMSE of holes", rmse(found, x[test], ask), exact, 0.59),
        Answer("RMSE of holes, one vector", rmse(other, x[test], ask), exact, 0.60),
    ]


def growth_model(seed: int) -> list[Answer]:
    """Smooth the growth model, whose posteriors have two modes: y = x^2 / 20 + noise."""
    rng = np.random.default_rng(seed)
    move = lambda v: v / 2 + 25 * v / (1 + v * v)
    x = np.zeros((200, 60))
    x[:, 0] = 5 * rng.normal(size=200)
    for t in range(1, 60):
        x[:, t] = move(x[:, t - 1]) + np.sqrt(10) * rng.normal(size=200)
    y = x**2 / 20 + rng.normal(size=x.shape)
    graph = kbp.chain_graph(60)
    model = kbp.fit(kbp.pool(graph, x[:150], y[:150]))
    posterior = answers(model, graph, y[150:])
    grid = np.linspace(-35, 35, 701)
    step = norm.pdf(grid[None], move(grid)[:, None], np.sqrt(10))
    step /= step.sum(axis=1, keepdims=True)
    likelihood = [norm.pdf(row[:, None], grid[None] ** 2 / 20, 1) + 1e-300 for row in y[150:]]
    exact = np.array([on_grid(norm.pdf(grid, 0, 5), step, one) for one in likelihood])
    found = _crps(np.asarray(posterior.points), np.asarray(posterior.weights), x[150:])
    return [Answer("CRPS", found, _crps(grid, exact, x[150:]), 4.45)]


def _crps(points: Array, p: Array, truth: Array) -> float:
    """Return the mean continuous ranked probability score of distributions [..., point] on points."""
    order = np.argsort(points.reshape(-1))
    points, below = points[order], np.cumsum(p[..., order], axis=-1)
    gaps = np.diff(points)
    square = (below - (points >= truth[..., None])) ** 2
    return float(np.mean((square[..., :-1] * gaps).sum(axis=-1)))


def few_rows(seed: int) -> list[Answer]:
    """Learn three independent columns from twenty rows, ten times, and ask what one says of another."""
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (0, 2)], 3, node_type=range(3))
    errors, spreads = [], []
    for number in range(10):
        rng = np.random.default_rng([seed, number])
        a, b, c = rng.uniform(size=20), rng.integers(0, 3, 20), rng.uniform(size=20)
        model = kbp.fit(kbp.pool(graph, {0: a[:, None], 1: b[:, None], 2: c[:, None]}), kernel={1: kbp.Delta()})
        ask = rng.uniform(size=(20, 3))
        share = np.bincount(b, minlength=3) / 20
        for one in ask:
            of_label = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0, 2], one[:2]))
            labels, belief = np.unique(b), np.asarray(of_label.weights[1])[0]
            got = np.zeros(3)
            got[labels.astype(int)] = belief[np.argsort(np.asarray(of_label.points[1]))]
            errors.append(np.abs(got - share).max())
            known = {1: [int(3 * one[2])], 2: one[:1]}
            spreads.append(
                float(kbp.std(kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [1, 2], known)))[0][0])
            )
    return [
        Answer("largest error of a label's belief, mean", float(np.mean(errors)), 0.0, 0.15),
        Answer("sd of a number, mean", float(np.mean(spreads)), 0.29, (0.2, 0.35)),
    ]


CASES: dict[str, Callable[[int], list[Answer]]] = {
    "tree-of-functions": tree_of_functions,
    "partly-seen-vectors": partly_seen_vectors,
    "gap-of-a-walk": gap_of_a_walk,
    "hidden-states": hidden_states,
    "any-emission": any_emission,
    "strong-chain": strong_chain,
    "strings": strings,
    "file-of-tables": file_of_tables,
    "few-rows": few_rows,
    "new-row": new_row,
    "regression-backwards": regression_backwards,
    "correlated-numbers": correlated_numbers,
    "growth-model": growth_model,
}


if __name__ == "__main__":
    sys.exit(main())
