"""Predict the backbone angles of proteins from PSI-BLAST profiles: directions hidden on chains, profiles observed.

The protein experiment of Song et al. (2011, section 7): each residue has a pair of C-alpha angles (theta, tau), a point
on the sphere, and chains of such points are learned from structures. Ten-fold cross-validation by chain, once from the
profile of the residue itself, as in the paper, and once from a window of seven, which every method gets.

The observation of kernel belief propagation is the prediction of a kernel regression for eight spherical harmonics of
the angles of a residue (out of fold for the training chains). Its evidence model is P(y | x) / P(y). As in the paper,
one variant observes the window itself with a linear kernel. Operators are learned for each ordered pair of residue
types, with some pairs of all residues among their samples, or are shared by all types. Options of all methods are
chosen on a part of the training chains of the first fold and kept; the ridge of the kernel regression is chosen in each
fold. A quick run searches nothing, and omits particle belief propagation and the variants.
"""

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, datasets, results, steps, tables, timing
from experiments.lib.results import standard_error
from experiments.lib.search import coordinate_search
from experiments.protein import baselines, data
from experiments.protein.baselines import PART, Options, Task, graph_of, part_of
from experiments.protein.data import Chains, unit
from experiments.protein.figure import paint
from experiments.protein.models import infer, learn, observations

OURS, SHARED, LINEAR = "kernel BP", "kernel BP, shared operators", "kernel BP, linear"
ON_PART = f"{OURS}, part"
BOOSTING = {
    "learning_rate": 0.15,
    "max_iter": 150,
    "max_features": 0.3,
    "min_samples_leaf": 50,
    "l2_regularization": 10.0,
}
# Sharpness and bandwidth in multiples of the median rule; the first value of each option is where the search starts.
OF_MODEL = {
    "by_residue": (True,),
    "concentration": (6.0, 12.0),
    "bandwidth": (0.7, 0.5, 1.0),
    "ridge": (1e-3, 3e-4, 3e-3),
    "obs_ridge": (1e-4, 3e-5, 3e-4),
    "power": (0.85, 0.7, 1.0),
}
OF_SHARED = {**OF_MODEL, "by_residue": (False,), "ridge": (1e-4, 3e-5, 3e-4)}
OF_LINEAR = {
    "by_residue": (False,),
    "concentration": (6.0, 1.0),
    "ridge": (3e-4, 1e-4, 1e-3),
    "obs_ridge": (1e-3, 1e-4, 1e-2),
    "power": (1.0, 0.85, 0.6),
}
SEARCH: dict[str, dict[str, tuple[Any, ...]]] = {
    "ridge": {"ridge": (1e-4, 1e-3)},
    "boosting": {
        **{name: (value,) for name, value in BOOSTING.items()},
        "max_leaf_nodes": (63, 31),
    },
    "kernel regression": {
        "scale": (0.6, 0.8),
        "decay": (0.75, 0.9),
        "landmarks": (1500,),
        "ridges": ((1e-6, 3e-6, 1e-5, 3e-5, 1e-4),),
    },
    OURS: OF_MODEL,
    SHARED: OF_SHARED,
    LINEAR: OF_LINEAR,
    "particle BP": {
        "power": (1.0, 0.6, 1.4),
        "sampler": ("particle", "expectation"),
        "potentials": ("ratios", "conditionals"),
        "chains": (6,),
        "sweeps": (20,),
    },
}


class Prediction(NamedTuple):
    """Predictions of a method for some residues.

    Attributes:
        rows: numbers of the residues.
        direction: mean of the belief, or what a regression predicts, of any length [residue, 3].
        seconds: {"fit_s", "run_s"}.
        belief, mode: of methods that have one.
    """

    rows: np.ndarray
    direction: np.ndarray
    seconds: dict[str, float]
    belief: kbp.Belief | None = None
    mode: Any = None


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.protein", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/protein/results")
    add = parser.add_argument
    add("--folds", type=int, help="folds to test, of ten (default: 10; 1 if quick)")
    add("--windows", type=int, nargs="+", metavar="N", help="residues in a window, odd (default: 1 7; 7 if quick)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    folds, widths = args.folds or (1 if args.quick else 10), args.windows or ([7] if args.quick else [1, 7])
    if not 1 <= folds <= 10 or any(width < 1 or width % 2 == 0 for width in widths):
        raise ValueError(f"--folds must be 1 .. 10 and --windows odd and at least 1; got {folds} and {widths}.")
    start = steps.clock()
    every = data.load(datasets.data_directory(args.data))
    if args.quick:
        every = every.part(np.random.default_rng(args.seed).permutation(len(every.offsets) - 1)[:56])
    counts = every.counts()
    tables.print_table([counts])
    rows: list[dict[str, Any]] = []
    shown: list[Any] = []
    for width in widths:
        x, best = data.windows(every, width), {}
        for fold in command_line.progress(range(folds), f"folds, window of {width}"):
            task = Task(every, x, groups(every, fold, args), width)
            if not best:
                best, tried = steps.step(f"choose {width}", choose, task, args.quick)
                rows += [{"study": "choice", "window": width, **row} for row in tried]
            given = task, best, args.quick or fold < folds - 1
            predictions, whole = steps.step(f"{width}, {fold}", predict_fold, *given, classes=(Prediction,))
            rows += [{"study": "fold", "window": width, "fold": fold, **row} for row in score(task, predictions)]
            rows += [{"study": "all chains", "window": width, **row} for row in whole]
            shown = [task, predictions[OURS]] if fold == 0 else shown
    rows += summarize(rows)
    tables.print_table([{k: v for k, v in row.items() if k != "study"} for row in rows if row["study"] == "summary"])
    config = {"folds": folds, "windows": " ".join(map(str, widths)), "seed": args.seed, "quick": args.quick, **counts}
    results.write_results(args.out / "protein.json", config, rows, seconds=steps.clock() - start)
    results.save_figure(paint(rows, *shown), args.out / "protein.png")
    print(f"Wrote {args.out / 'protein.json'} and {args.out / 'protein.png'}")


def groups(every: Chains, fold: int, args: argparse.Namespace) -> np.ndarray:
    """Return for each residue -1 in the test chains of a fold, else which part of the training chains it is in."""
    order = np.random.default_rng([args.seed, 1]).permutation(len(every.offsets) - 1)
    parts = np.array_split(order, 4 if args.quick else 10)
    group = np.empty(len(order), int)
    rest = np.concatenate([part for i, part in enumerate(parts) if i != fold])
    group[rest] = np.arange(len(rest)) % baselines.GROUPS
    group[parts[fold]] = -1
    return group[every.chain]


def choose(task: Task, quick: bool) -> tuple[dict[str, Options], list[dict[str, Any]]]:
    """Return the options of each method with the best mean cosine on a part of the training chains, and all trials."""
    best = {name: {option: values[0] for option, values in of.items()} for name, of in SEARCH.items()}
    if task.width == 1:
        best["kernel regression"]["landmarks"] = 500
    if quick:
        best["boosting"] |= {"max_iter": 30, "max_leaf_nodes": 15}
        best["kernel regression"]["landmarks"] = 300
        return {name: options for name, options in best.items() if name not in (SHARED, LINEAR, "particle BP")}, []
    inner, trials = task.validation(), []
    few = {"landmarks": 500}
    seen = baselines.summaries(inner, best["kernel regression"] | few)[0]
    rows, cut = part_of(inner, best["particle BP"]["chains"])

    def quality(name: str, options: Options) -> float:
        if name in ("ridge", "boosting"):
            return cosine(inner, inner.test, getattr(baselines, name)(inner, options))
        if name == "kernel regression":
            return cosine(inner, inner.test, baselines.summaries(inner, options | few)[0][inner.test, :3])
        if name == "particle BP":
            return cosine(inner, rows, kbp.mean(baselines.particles(inner, seen, cut, rows, options)))
        observed = seen if "bandwidth" in options else inner.x
        model, points = learn(inner, observed, options)
        given = observations(inner, inner.test, observed)
        graph = graph_of(inner, inner.test, options["by_residue"])
        belief, _ = infer(model, graph, *given, options["power"], points)
        return cosine(inner, inner.test, kbp.mean(belief))

    for name, of in SEARCH.items():
        space = {option: values for option, values in of.items() if len(values) > 1}
        best[name], tried = coordinate_search(best[name], space, lambda options, name=name: -quality(name, options))
        trials += [{"method": name, **plain(trial.options), "cosine": -trial.loss} for trial in tried]
    return best, trials


def plain(options: Options) -> Options:
    """Return options as numbers and text."""
    return {name: " ".join(map(str, of)) if isinstance(of, tuple) else of for name, of in options.items()}


def predict_fold(
    task: Task, best: dict[str, Options], more: bool
) -> tuple[dict[str, Prediction], list[dict[str, Any]]]:
    """Return predictions of all methods for the test chains of a fold; after the last fold, time ours on all chains."""
    test, found = task.test, {}
    for name, method in (("ridge", baselines.ridge), ("boosting", baselines.boosting)):
        start = time.perf_counter()
        found[name] = Prediction(test, method(task, best[name]), {"fit_s": time.perf_counter() - start})
    start = time.perf_counter()
    seen, _ = baselines.summaries(task, best["kernel regression"])
    regression_s = time.perf_counter() - start
    found["kernel regression"] = Prediction(test, seen[test, :3], {"fit_s": regression_s})
    whole: list[dict[str, Any]] = []
    for name in (name for name in (LINEAR, SHARED, OURS) if name in best):
        options, observed, start = best[name], task.x if name == LINEAR else seen, time.perf_counter()
        model, points = jax.block_until_ready(learn(task, observed, options))
        fit_s = time.perf_counter() - start + (0 if name == LINEAR else regression_s)
        predict = partial(predict_rows, task, model, points, observed, fit_s)
        join = partial(graph_of, task, by_residue=options["by_residue"])
        found[name] = predict(test, join(test), options["power"])
        if name != SHARED:
            found[f"{name}, no chain"] = predict(test, kbp.Graph.from_edges(np.zeros((0, 2), int), len(test)), 1.0)
        if name == OURS and not more:
            whole.append(time_all(task, model, observed, options, points))
        if name == OURS and "particle BP" in best:
            rows, cut = part_of(task, best["particle BP"]["chains"])
            found[ON_PART] = predict(rows, join(rows, cut=PART), options["power"])
            found["particle BP"] = by_particles(task, seen, cut, rows, best["particle BP"])
    return found, whole


def by_particles(task: Task, seen: np.ndarray, graph: kbp.Graph, rows: np.ndarray, options: Options) -> Prediction:
    """Predict some residues by particle belief propagation; the time includes learning."""
    start = time.perf_counter()
    belief = jax.block_until_ready(baselines.particles(task, seen, graph, rows, options))
    seconds = {"run_s": time.perf_counter() - start}
    return Prediction(rows, np.asarray(kbp.mean(belief)), seconds, belief, np.asarray(kbp.mode(belief)))


def predict_rows(
    task: Task, model: Any, points: Any, observed: Any, fit_s: float, rows: Any, graph: Any, power: float
) -> Prediction:
    """Predict some residues by kernel belief propagation; the run time is that of a second call."""
    given = observations(task, rows, observed)
    (belief, mode), first, again = timing.timed(infer, model, graph, *given, power, points, repeats=1)
    seconds = {"fit_s": fit_s, "first_s": first, "run_s": again}
    return Prediction(rows, np.asarray(kbp.mean(belief)), seconds, belief, np.asarray(mode))


@jax.jit
def _mean(model: Any, graph: Any, y: Any, mask: Any, power: Any, points: Any) -> Any:
    return kbp.mean(infer(model, graph, y, mask, power, points)[0])


def time_all(task: Task, model: Any, observed: np.ndarray, options: Options, points: np.ndarray) -> dict[str, Any]:
    """Time the means of all residues of all chains, those of training too."""
    rows = np.arange(len(observed))
    given, graph = observations(task, rows, observed), graph_of(task, rows, options["by_residue"])
    _, first, again = timing.timed(_mean, model, graph, *given, options["power"], points)
    return {"method": OURS, "residues": len(rows), "first_s": first, "run_s": again}


def cosine(task: Task, rows: np.ndarray, direction: Any) -> float:
    """Return the mean cosine between answers and truth, over residues that have both angles."""
    known = task.chains.scored[rows]
    return float(np.mean(np.sum(unit(np.asarray(direction)[known]) * task.chains.vectors[rows][known], axis=1)))


def score(task: Task, predictions: dict[str, Prediction]) -> list[dict[str, Any]]:
    """Score the answers of a fold."""
    rows = []
    for method, found in predictions.items():
        known = task.chains.scored[found.rows]
        true, guess = task.chains.vectors[found.rows][known], unit(np.asarray(found.direction)[known])
        pairs = zip(("theta", "tau"), data.angles_of(guess), data.angles_of(true), strict=True)
        row: dict[str, Any] = {
            "method": method,
            "residues": int(known.sum()),
            "cosine": np.mean(np.sum(guess * true, 1)),
        }
        row |= {angle: np.mean(data.circular_error(ours, theirs)) for angle, ours, theirs in pairs}
        if found.belief is not None:
            row["cosine_mode"] = np.mean(np.sum(found.mode[known] * true, axis=1))
            weights, points = np.asarray(found.belief.weights)[known], np.asarray(found.belief.points)
            row["coverage"] = np.mean(data.inside(weights, points, true))
        rows.append({key: v if isinstance(v, str | int) else float(v) for key, v in (row | found.seconds).items()})
    return rows


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over folds; `gain` is what kernel belief propagation is ahead of a method on the same residues."""
    folds, summary = [row for row in rows if row["study"] == "fold"], []
    for window, method in dict.fromkeys((row["window"], row["method"]) for row in folds):
        of = {
            name: [r for r in folds if (r["window"], r["method"]) == (window, name)] for name in (method, OURS, ON_PART)
        }
        mine, ours = (
            np.array([row["cosine"] for row in of[name]])
            for name in (method, ON_PART if method == "particle BP" else OURS)
        )
        row = {
            "study": "summary",
            "window": window,
            "method": method,
            "residues": sum(r["residues"] for r in of[method]),
        }
        row |= {"cosine": float(mine.mean()), "se": standard_error(mine)}
        row |= {"gain": float(np.mean(ours - mine)), "gain_se": standard_error(ours - mine)}
        for key in ("theta", "tau", "cosine_mode", "coverage", "fit_s", "first_s", "run_s"):
            if key in of[method][0]:
                row[key] = float(np.mean([r[key] for r in of[method]]))
        summary.append(row)
    return summary
