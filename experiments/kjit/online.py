"""Operators that learn just in time: streams of logistic regressions and of precisions, and four real data sets."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments.kjit import data
from experiments.kjit.config import TARGETS, Row, Settings, describe, exact, log_kl, problems
from experiments.lib import command_line, timing
from kbpjax import ep

PUBLISHED = {"Infer.NET": 0.0711, "KJIT": 0.0712}
"""Mean disagreement over 30 problems, read off the figures of Jitkrittum et al. (2015); ours are other problems."""
PUBLISHED_GAMMA = {"queries": 68, "correlation_rate": 0.999895}
"""Of the compound gamma stream: 20 and 48 more queries; the correlation is in the title of a figure."""
PUBLISHED_REAL = {
    "banknote": (0.0308, 0.0308),
    "blood_transfusion": (0.3494, 0.3166),
    "fertility": (0.560, 0.560),
    "ionosphere": (0.1335, 0.1335),
}
"""Test errors of Infer.NET and of KJIT, read off the figures of Jitkrittum et al. (2015)."""
ORACLES = {
    "quadrature": lambda settings: ep.LogisticToZ(),
    "importance sampling": lambda settings: ep.ImportanceSampling(
        factor=ep.logistic_sampler(), variable=1, num_samples=settings.particles
    ),
}
THRESHOLD, THRESHOLD_REAL, THRESHOLD_GAMMA = -8.5, -9.0, -6.0
INITIAL_GAMMA = 20
STREAMS_GAMMA = 5
KEY = 29


def logistic_operator(settings: Settings, targets: str, bits: int) -> ep.Operator:
    """Make the untrained operator of the stream of logistic regressions."""
    learner = ep.Learner(targets=TARGETS[targets])
    return _untrained(settings, learner, settings.initial, THRESHOLD, bits)


def _untrained(settings: Settings, learner: ep.Learner, initial: int, threshold: float, bits: int = 64) -> ep.Operator:
    kind = jnp.float64 if bits == 64 else jnp.float32
    like = ep.Beta(jnp.asarray(2, kind), jnp.asarray(1, kind)), ep.Gaussian(jnp.ones((), kind), jnp.zeros((), kind))
    key = jax.random.key(settings.seed + KEY)
    return ep.init_operator(key, like, variable=1, num_initial=initial, threshold=threshold, learner=learner)


def solver(x: np.ndarray, y: np.ndarray, start: Any, oracle: Any, sweeps: int) -> Callable[..., ep.LinearPosterior]:
    """Compile EP for problems of one shape: a function of x, y and the operator, whose first call is no slower."""
    infer = partial(ep.logistic_regression, oracle=oracle, num_sweeps=sweeps)
    solve = jax.jit(lambda x, y, operator: infer(x, y, operator=operator))
    return solve.lower(jnp.asarray(x), jnp.asarray(y), start).compile()


def _known(operator: ep.Operator | None) -> ep.Operator:
    assert operator is not None
    return operator


def timed(solve: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    jax.block_until_ready(args)
    start = time.perf_counter()
    outcome = jax.block_until_ready(solve(*args))
    return outcome, time.perf_counter() - start


def run_stream(settings: Settings, given: Any, targets: str, oracle: str, bits: int) -> tuple[list[Any], Row]:
    """Solve problems one after the other with one operator; returns (posterior, seconds) of each, and `speed`."""
    _, x, y = given
    x = x.astype(f"float{bits}")
    count = settings.problems if oracle == "quadrature" else settings.sampled
    with jax.enable_x64(bits == 64):
        operator = logistic_operator(settings, targets, bits)
        solve = solver(x[0], y[0], operator, ORACLES[oracle](settings), settings.sweeps)
        found = []
        for i in command_line.progress(range(count), f"stream, {targets}, {oracle}, {bits} bits"):
            posterior, seconds = timed(solve, jnp.asarray(x[i]), jnp.asarray(y[i]), operator)
            operator = _known(posterior.operator)
            found.append((dataclasses.replace(posterior, operator=None), seconds))
        some = jax.tree.map(lambda leaf: leaf.reshape(-1), found[-1][0].record.incoming)
        return found, speed(operator, some) if oracle == "quadrature" else {}


def online(settings: Settings) -> tuple[list[Row], dict[Any, Any]]:
    """Solve the streams of logistic regressions; returns rows, and {(targets, oracle, bits): log variances}."""
    rng = np.random.default_rng([settings.seed, 2])
    given = problems(settings, settings.problems, rng, shared=True)
    fresh = rng.standard_normal((settings.fresh, settings.dim))
    truth = exact(jnp.asarray(given[1]), jnp.asarray(given[2]), settings.sweeps)
    disagree = lambda mean, i: float(np.mean(np.sign(fresh @ np.asarray(mean)) != np.sign(fresh @ given[0][i])))
    streams = [(targets, "quadrature", bits) for bits in settings.precisions for targets in TARGETS]
    streams += [(targets, "importance sampling", 64) for targets in TARGETS]
    rows, variances = [], {}
    for targets, oracle, bits in streams[::2] if settings.quick else streams:
        found, times = run_stream(settings, given, targets, oracle, bits)
        name = {"targets": targets, "oracle": oracle, "bits": bits}
        mine = []
        for i, (posterior, seconds) in enumerate(found):
            reference = jax.tree.map(lambda leaf, i=i: leaf[i], truth)
            row = {"part": "online", "study": "problem", **name, "problem": i, **outcome(posterior, reference)}
            row |= {"error": disagree(posterior.mean, i), "exact_error": disagree(reference.mean, i)}
            mine.append(row | {"ms": 1e3 * seconds})
        rows += mine
        rows.append({"part": "online", "study": "summary", **name, **summarize(mine), **times})
        variances[targets, oracle, bits] = [np.asarray(p.record.log_variance).max(axis=-1).ravel() for p, _ in found]
    return rows + oracle_speed(settings, given), variances


def outcome(posterior: ep.LinearPosterior, reference: ep.LinearPosterior) -> Row:
    """Return queries, failures, median log variance, and KL(exact posterior of the weights || posterior)."""
    record = posterior.record
    middle = float(np.nanmedian(np.asarray(record.log_variance)))
    counts = {"queries": int(np.sum(record.asked)), "failed": int(np.sum(record.failed))}
    last = {"log_variance": middle, "change": float(posterior.changes[-1])}
    return {**counts, "messages": np.size(record.asked), **last, "kl": divergence(reference, posterior)}


def divergence(truth: ep.LinearPosterior, other: ep.LinearPosterior) -> float:
    """Return KL(truth || other) of the posteriors of the weights, in double precision."""
    m, v = (np.asarray(of, np.float64) for of in (truth.mean, truth.covariance))
    n, w = (np.asarray(of, np.float64) for of in (other.mean, other.covariance))
    share = np.linalg.solve(w, v)
    square = (n - m) @ np.linalg.solve(w, n - m)
    return float(0.5 * (np.trace(share) + square - len(m) - np.linalg.slogdet(share)[1]))


def summarize(rows: list[Row]) -> Row:
    """Return what a stream did in all its problems; the time a message is the median over the last third of them."""
    gaps = np.array([row["error"] - row["exact_error"] for row in rows])
    total = {key: sum(row[key] for row in rows) for key in ("queries", "failed", "messages")}
    first = {f"queries_{i + 1}": rows[i]["queries"] for i in (0, 1, 4, 9, 29) if i < len(rows)}
    errors = {key: float(np.mean([row[key] for row in rows])) for key in ("error", "exact_error")}
    kl = [row["kl"] for row in rows]
    late = rows[-max(1, len(rows) // 3) :]
    more = {"largest_gap": float(np.abs(gaps).max()), "kl_median": float(np.median(kl)), "kl_max": float(np.max(kl))}
    more |= {"log_variance": float(np.median([row["log_variance"] for row in rows]))}
    more |= {"late_queries": sum(row["queries"] for row in late)}
    ms = float(np.median([row["ms"] / row["messages"] for row in late]))
    return {"problems": len(rows), **total, **first, **errors, **more, "ms_a_message": ms}


def speed(operator: ep.Operator, incoming: Any) -> Row:
    """Time messages [message] of a stream: all predicted at once; all queried and learned, one by one.

    The oracle here costs nothing, so the time is that of prediction and update.
    """
    keys = jax.random.split(jax.random.key(KEY), len(incoming[1].shift))
    free = _Free()
    ahead = jax.jit(lambda state: ep.scan(keys, state, incoming, free)[1].asked)
    body = lambda state, of: ep.step(of[1], state, of[0], free)
    in_turn = jax.jit(lambda state: jax.lax.scan(body, state, (incoming, keys))[1].asked)
    found = {}
    for name, threshold, run in (("predict", np.inf, ahead), ("predict_and_update", -np.inf, in_turn)):
        fixed = dataclasses.replace(operator, thresholds=jnp.full_like(operator.thresholds, threshold))
        _, _, seconds = timing.timed(run, fixed, repeats=3)
        found[f"{name}_ms"] = 1e3 * seconds / len(keys)
    return found


class _Free(ep.Oracle):
    """Answers at no cost: half of the incoming variance."""

    variable: int = eqx.field(static=True, default=1)

    def __call__(self, incoming: Any, key: Any = None) -> Any:
        z = incoming[1]
        return ep.Gaussian(2 * z.precision, 2 * z.shift)


def oracle_speed(settings: Settings, given: Any) -> list[Row]:
    """Time EP by an oracle alone, a sweep of messages of one problem, none of them learned."""
    rows = []
    for bits in settings.precisions:
        x, y = given[1][0].astype(f"float{bits}"), given[2][0]
        for name, make in ORACLES.items():
            with jax.enable_x64(bits == 64):
                solve = solver(x, y, None, make(settings), 1)
                posterior, seconds = timed(solve, jnp.asarray(x), jnp.asarray(y), None)
            row = {"part": "online", "study": "oracle", "oracle": name, "bits": bits, "messages": len(x)}
            rows.append(
                row | {"ms_a_message": 1e3 * seconds / len(x), "finite": bool(np.isfinite(posterior.mean).all())}
            )
    return rows


def gamma(settings: Settings) -> tuple[list[Row], dict[str, np.ndarray]]:
    """Solve streams of precisions with a compound gamma prior; returns a row for each, and the figure of the first."""
    found = [gamma_stream(settings, i) for i in range(1 if settings.quick else STREAMS_GAMMA)]
    return [row for row, _ in found], found[0][1]


def gamma_stream(settings: Settings, number: int) -> tuple[Row, dict[str, np.ndarray]]:
    """Solve one stream: the first has the study "summary", others "again"."""
    rng = np.random.default_rng([settings.seed, 3, number])
    counts = rng.integers(10, 101, settings.gamma).astype(np.float64)
    precisions = rng.exponential(1 / rng.exponential(1, settings.gamma))
    squares = rng.chisquare(counts) / precisions
    oracle = ep.CompoundGamma(projection=ep.MatchingMoments())
    learner = ep.Learner(*settings.wide, targets=ep.Message())
    key, like = jax.random.key(settings.seed + KEY + number), (ep.Gamma(2.0, 1.0),)
    options: Any = {"num_initial": INITIAL_GAMMA, "threshold": THRESHOLD_GAMMA, "learner": learner}
    operator = ep.init_operator(key, like, variable=0, **options)
    stream = lambda of: ep.precision_posteriors(counts, squares, oracle=oracle, operator=of)
    truth, _, slow = timing.timed(lambda: stream(None)[0], repeats=1)
    (posterior, _, record), _, seconds = timing.timed(lambda: stream(operator), repeats=1)
    asked, values = np.asarray(record.asked), log_kl(truth, posterior)
    own = ~asked
    both = (("exact", truth), ("kjit", posterior))
    logs = {f"{kind}_{name}": _logs(of, name)[own] for kind, of in both for name in ("shape", "rate")}
    study = "again" if number else "summary"
    row = {"part": "gamma", "study": study, "problems": settings.gamma, "queries": int(asked.sum())}
    row |= {"last_query": int(np.flatnonzero(asked)[-1]), "failed": int(np.sum(record.failed))}
    for name in ("shape", "rate"):
        pair = logs[f"exact_{name}"], logs[f"kjit_{name}"]
        row[f"correlation_{name}"] = float(np.corrcoef(*pair)[0, 1])
    row |= {**describe(values[own]), "ms": 1e3 * seconds / settings.gamma, "oracle_ms": 1e3 * slow / settings.gamma}
    row |= {f"published_{key}": value for key, value in PUBLISHED_GAMMA.items()}
    return row, {**logs, "log_kl": values[own], "asked": asked}


def _logs(of: Any, name: str) -> np.ndarray:
    return np.log(np.asarray(getattr(of, name)))


def real(settings: Settings, directory: Path | None) -> list[Row]:
    """Solve the four real sets in sequence with one operator, once for each kind of targets."""
    sets = [data.load(name, directory) for name in settings.real_sets]
    learners = {targets: ep.Learner(*settings.wide, targets=kind) for targets, kind in TARGETS.items()}
    operators = {
        targets: _untrained(settings, learner, settings.real, THRESHOLD_REAL) for targets, learner in learners.items()
    }
    rows = []
    for some in command_line.progress(sets, "real sets"):
        x, y = some.x[some.train], some.y[some.train]
        truth = jax.tree.map(lambda leaf: leaf[0], exact(jnp.asarray(x[None]), jnp.asarray(y[None]), settings.sweeps))
        wrong = partial(mistakes, x=some.x[~some.train], y=some.y[~some.train])
        published = PUBLISHED_REAL[some.name]
        for targets in operators:
            solve = solver(x, y, operators[targets], ep.LogisticToZ(), settings.sweeps)
            posterior, seconds = timed(solve, jnp.asarray(x), jnp.asarray(y), operators[targets])
            operators[targets] = _known(posterior.operator)
            row = {
                "part": "real",
                "set": some.name,
                "targets": targets,
                "train": len(x),
                "test": int((~some.train).sum()),
            }
            row |= {"differs": some.differs, "dropped": some.dropped, **outcome(posterior, truth)}
            row |= {"exact_wrong": wrong(truth.mean), "wrong": wrong(posterior.mean), "ms": 1e3 * seconds}
            rows.append(row | {"published_exact": published[0], "published_kjit": published[1]})
    return rows


def mistakes(mean: Any, x: np.ndarray, y: np.ndarray) -> int:
    """Return how many labels have the other sign than x'mean."""
    return int(np.sum((x @ np.asarray(mean) > 0) != (y == 1)))
