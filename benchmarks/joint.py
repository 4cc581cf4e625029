"""Joint draws on graphs with cycles, against enumeration, and on real data against a joint Gaussian.

    python -m benchmarks.joint [--only graphs wind] [--accept]

*graphs*: twenty random graphs of five to eight variables with three states, tables exp(strength * N(0, 1)) and evidence
on all nodes. Error: total variation between the frequencies of pairs in 20,000 draws and those of enumeration, the mean
over all pairs, and over neighbors. The last columns are the log probability that the joint mode, and the modes of all
nodes by themselves, lack of the best joint state.

*wind*: days of which 30 % of the stations are hidden. Energy score of 200 joint draws of the hidden stations, in
standard deviations of each, and the share of days on which the largest hidden value is in its central 90 %.
"""

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from benchmarks.first_try import networks
from benchmarks.first_try.__main__ import SAVED, build, parser_of
from benchmarks.first_try.problems import hide
from experiments.lib import command_line, datasets, results, tables
from kbpjax.baselines import discrete

ALONE = "each by itself"
SWEEPS = (0, 1, 3, 10, 30)
STATES, DRAWS, STRENGTHS, PER_STRENGTH = 3, 20_000, (0.5, 1.0, 1.5, 2.5), 5
CASES, IMPUTATIONS = 200, 200
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    return command_line.main(run, parser_of("benchmarks.joint", __doc__, ("graphs", "wind")), argv)


def run(args: argparse.Namespace) -> None:
    """Run the parts; the rows of parts that were not run are kept."""
    if args.quick and args.accept:
        raise ValueError("--accept: must not be with --quick; got both. A quick run does not replace results.")
    path: Path = (SAVED if args.accept else args.out) / "joint.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    for part in args.only or ("graphs", "wind"):
        print(f"{part} ...", flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kbp.KbpWarning)
            if part == "graphs":
                found = list(graphs(args.quick))
            else:
                found = list(wind(args.seed, args.quick, datasets.data_directory(args.data)))
        rows = [{"part": part, **row} for row in found]
        tables.print_table(rows)
        kept = [row for row in kept if row["part"] != part] + rows
        results.write_results(path, {"quick": args.quick, "seed": args.seed}, kept)


def graphs(quick: bool) -> Iterator[Row]:
    """Yield the errors of draws by strength of the tables."""
    rng = np.random.default_rng(0)
    for strength in STRENGTHS[: 1 if quick else None]:
        errors: dict[str, list[tuple[float, float]]] = {}
        lacking = []
        for _ in range(1 if quick else PER_STRENGTH):
            count = int(rng.integers(5, 9))
            pairs = [pair for pair in itertools.combinations(range(count), 2) if rng.random() < 0.5]
            graph = kbp.Graph.from_edges(pairs, count, edge_type=np.arange(len(pairs)))
            tables_ = np.exp(strength * rng.normal(size=(len(pairs), STATES, STATES)))
            local = jnp.exp(jnp.asarray(rng.normal(size=(count, STATES)), jnp.float32))
            model = discrete.from_potentials(np.arange(STATES), np.ones(STATES), tables_)
            posterior = kbp.infer(model, graph, evidence=kbp.likelihood(model, graph, lambda x, local=local: local))
            every = np.array(list(itertools.product(range(STATES), repeat=count)))
            logs = np.log(np.asarray(local))[np.arange(count), every].sum(axis=1)
            logs += sum(np.log(tables_[e, every[:, a], every[:, b]]) for e, (a, b) in enumerate(pairs))
            exact = np.exp(logs - logs.max())
            right = frequencies(every, exact / exact.sum())
            ways: dict[str, dict[str, Any]] = {ALONE: {"joint": False}}
            ways |= {f"{sweeps} sweeps": {"num_sweeps": sweeps} for sweeps in SWEEPS}
            joined = [list(itertools.combinations(range(count), 2)).index(pair) for pair in pairs]
            for name, options in ways.items():
                drawn = np.asarray(kbp.sample(posterior, jax.random.key(0), DRAWS, **options)).astype(int)
                apart = np.abs(frequencies(drawn, np.full(DRAWS, 1 / DRAWS)) - right).sum(axis=(1, 2)) / 2
                errors.setdefault(name, []).append((apart.mean(), apart[joined].mean()))
            score = dict(zip(map(tuple, every.tolist()), logs, strict=True))
            modes = [kbp.mode(posterior, joint=joint) for joint in (True, False)]
            lacking.append([logs.max() - score[tuple(np.asarray(one).tolist())] for one in modes])
        for name, found in errors.items():
            mean, near = np.mean(found, axis=0)
            row = {"strength": strength, "draws": name, "pairs": mean, "neighbors": near}
            if name == ALONE:
                row |= dict(zip(("joint mode lacks", "node modes lack"), np.mean(lacking, axis=0), strict=True))
            yield row


def frequencies(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the frequencies of the states of all pairs of variables [pair, state, state]."""
    found = []
    for a, b in itertools.combinations(range(x.shape[1]), 2):
        table = np.zeros((STATES, STATES))
        np.add.at(table, (x[:, a], x[:, b]), weights)
        found.append(table)
    return np.array(found)


def wind(seed: int, quick: bool, data: Path | None) -> Iterator[Row]:
    """Yield the scores of joint draws of hidden stations."""
    problem = build("wind", seed=seed, quick=quick, data=data)
    x, every = np.asarray(problem.samples), np.asarray(problem.test.y)
    every = np.where(np.isnan(every), np.asarray(problem.test.truth), every)
    every = every[np.isfinite(every).all(axis=1)][: 5 if quick else CASES]
    draw = hide(np.random.default_rng(0), every, 0.3)
    scale = np.nanstd(x, axis=0)
    model = kbp.fit(problem.pool())
    infer = jax.jit(jax.vmap(lambda y: kbp.infer(model, problem.graph, y)))
    posterior = infer(jnp.asarray(draw.y, jnp.float32))
    ways: dict[str, dict[str, Any]] = {ALONE: {"joint": False}}
    ways |= {f"{sweeps} sweeps": {"num_sweeps": sweeps} for sweeps in SWEEPS}
    key = jax.random.key(0)
    for name, options in ways.items():
        yield {
            "draws": name,
            **joint_scores(np.asarray(kbp.sample(posterior, key, IMPUTATIONS, **options)), draw, scale),
        }
    mean, covariance = networks.expectation_maximization(x, 12)
    yield {"draws": "joint Gaussian", **joint_scores(gaussian_draws(mean, covariance, draw.y), draw, scale)}


def gaussian_draws(mean: np.ndarray, covariance: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return draws of the missing values given those seen [case, draw, node]."""
    rng, found = np.random.default_rng(0), []
    for row in y:
        seen = np.isfinite(row)
        own = np.tile(row, (IMPUTATIONS, 1))
        if not seen.all():
            gain = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[np.ix_(seen, ~seen)]).T
            center = mean[~seen] + gain @ (row[seen] - mean[seen])
            spread = covariance[np.ix_(~seen, ~seen)] - gain @ covariance[np.ix_(seen, ~seen)]
            own[:, ~seen] = rng.multivariate_normal(center, (spread + spread.T) / 2, IMPUTATIONS)
        found.append(own)
    return np.array(found)


def joint_scores(drawn: np.ndarray, draw: Any, scale: np.ndarray) -> Row:
    """Return the mean energy score of the hidden values, and how often the largest is in its central 90 %."""
    scores, inside = [], []
    for own, truth in zip(drawn, draw.truth, strict=True):
        hidden = np.isfinite(truth)
        if not hidden.any():
            continue
        z, right = (own / scale)[:, hidden], (truth / scale)[hidden]
        spread = np.linalg.norm(z[:, None] - z[None], axis=-1).sum() / (len(z) * (len(z) - 1))
        scores.append(np.linalg.norm(z - right[None], axis=1).mean() - spread / 2)
        low, high = np.quantile(z.max(axis=1), [0.05, 0.95])
        inside.append(low <= right.max() <= high)
    return {"energy score": float(np.mean(scores)), "largest in 90 %": float(np.mean(inside))}


if __name__ == "__main__":
    sys.exit(main())
