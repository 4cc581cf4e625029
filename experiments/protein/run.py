"""Predict the backbone angles of proteins from PSI-BLAST profiles: directions hidden on chains, profiles observed.

The protein experiment of Song et al. (2011, section 7): each residue has a pair of C-alpha angles (theta, tau), a point
on the sphere, and chains of such points are learned from structures. Cross-validation by chain, once from the profile
of the residue itself, as in the paper, and once from a window of seven, which every method gets.

The observation of kernel belief propagation is what a regression predicts for eight spherical harmonics of the angles
of a residue (out of fold for the training chains): a kernel regression on its window; a second one on the predictions
of the first for the residues around; or a small bidirectional network on the chain. Its evidence model is
P(y | x) / P(y). As in the paper, one variant observes the window itself with a linear kernel. Each is answered without
messages, too.

Half of the chains are tested, in five folds; each fold learns from all other chains. The options of all methods are
chosen on the chains that are never tested, by the same number of trials, and kept; so are the temperatures of the
beliefs that credible sets are of. A quick run searches nothing, and omits particle belief propagation.
"""

import argparse
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, datasets, results, steps, tables, timing
from experiments.lib.choices import Choices, add_use_argument
from experiments.lib.search import coordinate_search, on_edge
from experiments.protein import baselines, data, network
from experiments.protein.baselines import PART, Options, Task, graph_of, part_of
from experiments.protein.data import Chains, unit
from experiments.protein.figure import paint
from experiments.protein.models import infer, learn, observations

OURS, LINEAR = "kernel BP", "kernel BP, linear"
ON_STACKING, ON_NETWORK = "kernel BP on stacking", "kernel BP on the network"
ON_PART = f"{OURS}, part"
HEADLINE = ON_NETWORK
"""Ours that the others are compared with: it has the evidence of the strongest baseline."""
EVIDENCE = {LINEAR: "windows", OURS: "kernel regression", ON_STACKING: "stacking", ON_NETWORK: "network"}
TRIALS, PARTS, FOLDS = 6, 10, 5
"""Trials of the search for the options of each method; parts of the chains; those of them that are tested."""
LEVELS = (0.5, 0.9)
"""Levels of the credible sets."""
TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0)
# Concentration and bandwidth in multiples of the median rule; the first value of each option is where a search starts.
OF_MODEL = {
    "by_residue": (True,),
    "concentration": (6.0,),
    "linked": (1.0, 0.5),
    "power": (0.85, 1.0),
    "bandwidth": (0.7,),
    "ridge": (1e-3,),
    "obs_ridge": (3e-5, 1e-4),
}
OF_LINEAR = {
    "by_residue": (False,),
    "concentration": (6.0,),
    "linked": (1.0, 0.5),
    "ridge": (1e-4,),
    "obs_ridge": (1e-4, 1e-3),
    "power": (1.0, 0.85),
}
RIDGES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3)
SEARCH: dict[str, dict[str, tuple[Any, ...]]] = {
    "ridge": {"ridge": (1e-4, 1e-3)},
    "boosting": {
        "max_leaf_nodes": (63, 31),
        "learning_rate": (0.15, 0.1),
        "min_samples_leaf": (50, 100),
        "max_iter": (150,),
        "max_features": (0.3,),
        "l2_regularization": (10.0,),
    },
    "kernel regression": {
        "scale": (0.8, 0.6),
        "decay": (0.75, 0.9),
        "landmarks": (1500,),
        "ridges": (RIDGES,),
    },
    "stacking": {
        "scale": (1.2, 0.8),
        "decay": (0.9, 0.95),
        "reach": (8,),
        "landmarks": (1000,),
        "ridges": (RIDGES,),
    },
    "network": {"rate": (5e-3, 3e-3), "dropout": (0.3, 0.45), "hidden": (64,), "epochs": (60,)},
    LINEAR: OF_LINEAR,
    OURS: OF_MODEL,
    ON_STACKING: OF_MODEL,
    ON_NETWORK: OF_MODEL,
    "particle BP": {
        "power": (1.4, 1.0),
        "sampler": ("particle", "expectation"),
        "potentials": ("ratios", "conditionals"),
        "chains": (6,),
        "sweeps": (20,),
    },
}
QUICK: dict[str, Options] = {
    "boosting": {"max_iter": 30, "max_leaf_nodes": 15},
    "kernel regression": {"landmarks": 300},
    "stacking": {"landmarks": 300},
    "network": {"epochs": 20, "hidden": 16},
}


class Prediction(NamedTuple):
    """Predictions of a method for some residues.

    Attributes:
        rows: numbers of the residues.
        direction: mean of the belief, or what a regression predicts, of any length [residue, 3].
        seconds: {"fit_s", "run_s"}.
        temperature: of the beliefs that credible sets are of.
        belief, mode: of methods that have one.
    """

    rows: np.ndarray
    direction: np.ndarray
    seconds: dict[str, float]
    temperature: float = 1.0
    belief: kbp.Belief | None = None
    mode: Any = None


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.protein", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/protein/results")
    add_use_argument(parser)
    add = parser.add_argument
    add("--folds", type=int, help=f"folds to test, at most {FOLDS} (default: {FOLDS}; 1 if quick)")
    add("--windows", type=int, nargs="+", metavar="N", help="residues in a window, odd (default: 1 7; 7 if quick)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    folds, widths = args.folds or (1 if args.quick else FOLDS), args.windows or ([7] if args.quick else [1, 7])
    if not 1 <= folds <= FOLDS or any(width < 1 or width % 2 == 0 for width in widths):
        raise ValueError(f"--folds must be 1 .. {FOLDS} and --windows odd and at least 1; got {folds} and {widths}.")
    start = steps.clock()
    every = data.load(datasets.data_directory(args.data))
    if args.quick:
        every = every.part(np.random.default_rng(args.seed).permutation(len(every.offsets) - 1)[:56])
    counts = every.counts()
    tables.print_table([counts])
    choices = Choices(args.use)
    rows: list[dict[str, Any]] = []
    shown: list[Any] = []
    for width in widths:
        x = data.windows(every, width)
        development = Task(every, x, groups(every, range(FOLDS), args), width)
        best, tried = choices.search(f"window of {width}", choose, development, args.quick)
        rows += [{"study": "trial", "window": width, **row} for row in tried]
        for fold in command_line.progress(range(folds), f"folds, window of {width}"):
            task = Task(every, x, groups(every, [fold], args), width)
            given = task, best, args.quick or fold < folds - 1
            predictions, whole = steps.step(f"{width}, {fold}", predict_fold, *given, classes=(Prediction,))
            rows += [{"study": "fold", "window": width, "fold": fold, **row} for row in score(task, predictions)]
            rows += [{"study": "all chains", "window": width, **row} for row in whole]
            shown = [task, predictions[HEADLINE]] if fold == 0 else shown
    rows += summarize(rows)
    tables.print_table([{k: v for k, v in row.items() if k != "study"} for row in rows if row["study"] == "summary"])
    config = {"folds": folds, "windows": " ".join(map(str, widths)), "seed": args.seed, "quick": args.quick, **counts}
    more = {"chosen": choices.chosen, "seconds": steps.clock() - start}
    results.write_results(args.out / "protein.json", config, rows, **more)
    results.save_figure(paint(rows, *shown), args.out / "protein.png")
    print(f"Wrote {args.out / 'protein.json'} and {args.out / 'protein.png'}")


def groups(every: Chains, tested: Iterable[int], args: argparse.Namespace) -> np.ndarray:
    """Return for each residue -1 in some parts of the chains, which are tested, else its training group [residue]."""
    order = np.random.default_rng([args.seed, 1]).permutation(len(every.offsets) - 1)
    parts = np.array_split(order, PARTS)
    group = np.full(len(order), -1)
    rest = np.concatenate([part for i, part in enumerate(parts) if i not in set(tested)])
    group[rest] = np.arange(len(rest)) % baselines.GROUPS
    return group[every.chain]


def choose(task: Task, quick: bool) -> tuple[dict[str, Options], list[dict[str, Any]]]:
    """Return the options of each method with the best mean cosine on a part of the training chains, and all trials."""
    best = {name: {option: values[0] for option, values in of.items()} for name, of in SEARCH.items()}
    if task.width == 1:
        best["kernel regression"]["landmarks"] = 500
    if quick:
        best = {name: options | QUICK.get(name, {}) for name, options in best.items() if name != "particle BP"}
        return {name: options | {"temperature": 1.0, "alone": 1.0} for name, options in best.items()}, []
    inner = task.validation()
    few, seen = {"landmarks": 500}, {"windows": inner.x}  # as many as single precision and the smaller part bear
    rows, cut = part_of(inner, best["particle BP"]["chains"])
    trials: list[dict[str, Any]] = []

    def quality(name: str, options: Options) -> float:
        if name in ("ridge", "boosting"):
            return cosine(inner, inner.test, getattr(baselines, name)(inner, options))
        if name == "kernel regression":
            return cosine(inner, inner.test, baselines.summaries(inner, options | few)[inner.test])
        if name == "stacking":
            return cosine(inner, inner.test, baselines.stacked(inner, seen["kernel regression"], options)[inner.test])
        if name == "network":
            return cosine(inner, inner.test, network.predict(inner, options))
        if name == "particle BP":
            return cosine(inner, rows, kbp.mean(baselines.particles(inner, seen[EVIDENCE[OURS]], cut, rows, options)))
        return cosine(inner, inner.test, kbp.mean(answer(inner, seen[EVIDENCE[name]], options)))

    for name, of in SEARCH.items():
        space = {option: values for option, values in of.items() if len(values) > 1}
        loss = partial(lambda name, options: -quality(name, options), name)
        best[name], tried = coordinate_search(best[name], space, loss, budget=TRIALS, extensions=2)
        edges = ", ".join(on_edge(best[name], tried))
        for trial in tried:
            taken = trial.options == best[name]
            record = {"method": name, **plain(trial.options), "cosine": -trial.loss, "chosen": taken}
            trials.append(record | ({"on_edge": edges} if taken else {}))
        if name == "kernel regression":
            seen[name] = baselines.summaries(inner, best[name] | few)
        elif name == "stacking":
            seen[name] = baselines.stacked(inner, seen["kernel regression"], best[name])
        elif name == "network":
            seen[name] = network.out_of_fold(inner, best[name])
        elif name in EVIDENCE:
            for key, chain in (("temperature", True), ("alone", False)):
                best[name] |= {key: temperature(inner, answer(inner, seen[EVIDENCE[name]], best[name], chain))}
    return best, trials


def answer(task: Task, observed: np.ndarray, options: Options, chain: bool = True) -> kbp.Belief:
    """Return the beliefs of the test residues, with or without messages along the chain."""
    model, points = learn(task, observed, options)
    graph, power = (graph_of(task, task.test, options["by_residue"]), options["power"]) if chain else alone(task.test)
    return infer(model, graph, *observations(task, task.test, observed), power, points)[0]


def alone(rows: np.ndarray) -> tuple[kbp.Graph, float]:
    """Return a graph without edges and the power of its evidence."""
    return kbp.Graph.from_edges(np.zeros((0, 2), int), len(rows)), 1.0


def temperature(task: Task, belief: kbp.Belief) -> float:
    """Return the temperature whose credible sets of the test residues hold nearest to 50 % and 90 %."""
    known = task.chains.scored[task.test]
    belief = kbp.Belief(belief.points, belief.weights[known])
    true = task.chains.vectors[task.test][known]
    return min(TEMPERATURES, key=lambda value: sum(abs(held(belief, true, value, level) - level) for level in LEVELS))


def held(belief: kbp.Belief, true: np.ndarray, temperature: float, level: float) -> float:
    """Return how often the credible sets of tempered beliefs hold the truth."""
    weights = np.asarray(kbp.temper(belief, temperature).weights)
    return float(np.mean(data.inside(weights, np.asarray(belief.points), true, level)))


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
        found[name] = Prediction(test, method(task, of_method(best, name)), {"fit_s": time.perf_counter() - start})
    seen, fit_s, start = {"windows": task.x}, {"windows": 0.0}, time.perf_counter()
    seen["kernel regression"] = baselines.summaries(task, of_method(best, "kernel regression"))
    fit_s["kernel regression"] = time.perf_counter() - start
    seen["stacking"] = baselines.stacked(task, seen["kernel regression"], of_method(best, "stacking"))
    fit_s["stacking"], start = time.perf_counter() - start, time.perf_counter()
    seen["network"] = network.out_of_fold(task, of_method(best, "network"))
    fit_s["network"] = time.perf_counter() - start
    for name in ("kernel regression", "stacking", "network"):
        found[name] = Prediction(test, seen[name][test, :3], {"fit_s": fit_s[name]})
    whole: list[dict[str, Any]] = []
    for name, evidence in EVIDENCE.items():
        options, observed, start = best[name], seen[evidence], time.perf_counter()
        model, points = jax.block_until_ready(learn(task, observed, options))
        learn_s = time.perf_counter() - start + fit_s[evidence]
        predict = partial(predict_rows, task, model, points, observed, learn_s)
        join = partial(graph_of, task, by_residue=options["by_residue"])
        found[name] = predict(test, join(test), options["power"], options["temperature"])
        found[f"{name}, no chain"] = predict(test, *alone(test), options["alone"])
        if name == OURS and not more:
            whole.append(time_all(task, model, observed, options, points))
        if name == OURS and "particle BP" in best:
            rows, cut = part_of(task, best["particle BP"]["chains"])
            found[ON_PART] = predict(rows, join(rows, cut=PART), options["power"], options["temperature"])
            found["particle BP"] = by_particles(task, observed, cut, rows, best["particle BP"])
    return found, whole


def of_method(best: dict[str, Options], name: str) -> Options:
    """Return the options of a method, without temperatures."""
    return {option: value for option, value in best[name].items() if option not in ("temperature", "alone")}


def by_particles(task: Task, seen: np.ndarray, graph: kbp.Graph, rows: np.ndarray, options: Options) -> Prediction:
    """Predict some residues by particle belief propagation; the time includes learning."""
    start = time.perf_counter()
    belief = jax.block_until_ready(baselines.particles(task, seen, graph, rows, options))
    seconds = {"run_s": time.perf_counter() - start}
    return Prediction(rows, np.asarray(kbp.mean(belief)), seconds, 1.0, belief, np.asarray(kbp.mode(belief)))


def predict_rows(
    task: Task,
    model: Any,
    points: Any,
    observed: Any,
    fit_s: float,
    rows: Any,
    graph: Any,
    power: float,
    temperature: float,
) -> Prediction:
    """Predict some residues by kernel belief propagation; the run time is that of a second call."""
    given = observations(task, rows, observed)
    (belief, mode), first, again = timing.timed(infer, model, graph, *given, power, points, repeats=1)
    seconds = {"fit_s": fit_s, "first_s": first, "run_s": again}
    return Prediction(rows, np.asarray(kbp.mean(belief)), seconds, temperature, belief, np.asarray(mode))


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
    return float(np.mean(np.sum(unit(np.asarray(direction)[known, :3]) * task.chains.vectors[rows][known], axis=1)))


def score(task: Task, predictions: dict[str, Prediction]) -> list[dict[str, Any]]:
    """Score the answers of a fold; `sums` are the sums of cosines over the residues of each test chain."""
    rows = []
    for method, found in predictions.items():
        known = task.chains.scored[found.rows]
        true, guess = task.chains.vectors[found.rows][known], unit(np.asarray(found.direction)[known])
        pairs = zip(("theta", "tau"), data.angles_of(guess), data.angles_of(true), strict=True)
        cosines = np.sum(guess * true, axis=1)
        chain = np.unique(task.chains.chain[found.rows], return_inverse=True)[1][known]
        row: dict[str, Any] = {"method": method, "residues": int(known.sum()), "cosine": np.mean(cosines)}
        row["sums"] = " ".join(f"{value:.3f}" for value in np.bincount(chain, cosines))
        row["counts"] = " ".join(map(str, np.bincount(chain)))
        row |= {angle: np.mean(data.circular_error(ours, theirs)) for angle, ours, theirs in pairs}
        if found.belief is not None:
            belief = kbp.Belief(found.belief.points, found.belief.weights[known])
            row["cosine_mode"] = np.mean(np.sum(found.mode[known] * true, axis=1))
            row["untempered"] = held(belief, true, 1.0, LEVELS[1])
            row["half"], row["coverage"] = (held(belief, true, found.temperature, level) for level in LEVELS)
            row["temperature"] = found.temperature
        row |= found.seconds
        rows.append({key: float(v) if isinstance(v, np.floating) else v for key, v in row.items()})
    return rows


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average over all tested residues, with standard errors over chains.

    `gain` is what the headline is ahead of a method on the same residues (of particle BP: kernel BP on a part), and
    `messages` what a method is ahead of itself without messages.
    """
    folds, summary = [row for row in rows if row["study"] == "fold"], []
    for window, method in dict.fromkeys((row["window"], row["method"]) for row in folds):
        of = {
            name: [row for row in folds if (row["window"], row["method"]) == (window, name)]
            for name in (method, HEADLINE, ON_PART, f"{method}, no chain")
        }
        mine = by_chain(of[method])
        counts = by_chain(of[method], "counts")
        row = {"study": "summary", "window": window, "method": method, "residues": int(counts.sum())}
        row["cosine"], row["se"] = ratio(mine, counts)
        row["gain"], row["gain_se"] = ratio(by_chain(of[rival_of(method)]) - mine, counts)
        if of[f"{method}, no chain"]:
            row["messages"], row["messages_se"] = ratio(mine - by_chain(of[f"{method}, no chain"]), counts)
        for key in ("theta", "tau", "cosine_mode", "untempered", "coverage", "half", "fit_s", "first_s", "run_s"):
            if key in of[method][0]:
                row[key] = float(np.mean([r[key] for r in of[method]]))
        summary.append(row)
    return summary


def rival_of(method: str) -> str:
    """Return the method of ours that another is compared with, on the same residues."""
    return ON_PART if method in (ON_PART, "particle BP") else HEADLINE


def by_chain(rows: list[dict[str, Any]], key: str = "sums") -> np.ndarray:
    """Return the sums of cosines, or the counts of residues, of the chains of all folds."""
    return np.array([float(number) for row in rows for number in row[key].split()])


def ratio(sums: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Return the mean over residues of what has these sums in chains, and its standard error over chains."""
    mean, chains = np.sum(sums) / np.sum(counts), len(counts)
    error = np.sqrt(np.sum((sums - mean * counts) ** 2) * chains / max(chains - 1, 1)) / np.sum(counts)
    return float(mean), float(error)
