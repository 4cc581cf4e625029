"""Depth from a single image: the distance of every patch of a grid, learned from images with measured depth.

The paper's second experiment (Song et al. 2011, section 7), on real images of other sensors than Make3D's, which is
read in its published layout where somebody has it. The variable of a patch is its log10 depth; neighbors in a row and
in a column are joined; the observation of a patch is its features, or the prediction of a regression from them.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.depth import data, figure, models
from experiments.depth.data import Scenes
from experiments.depth.features import patch_features
from experiments.depth.regression import BOOSTING, TRIALS, Regressions, draw_cells, regress, standardize
from experiments.lib import command_line, datasets, results, steps, tables, timing
from experiments.lib.choices import Choices, add_use_argument

BANDS = 9
FEW = 2
"""Test images on which particle belief propagation is run."""
CROP = 24
"""Rows and columns of the part of them on which mixture belief propagation is run."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A set of scenes, its regressions, and what methods are chosen and compared by.

    Attributes:
        scenes: the scenes.
        log_depth: log10 metres [scene, row, column].
        regressions: predictions of the cells by themselves.
        features: standardized [scene, row, column, feature].
        points: candidates [point], log10 metres.
        validation: {fold: numbers of some of its scenes}, those that settings are chosen by.
        calibration: those that temperatures are chosen by: the same, or {None: scenes in no fold}, of models learned
            from all folds.
        test: numbers of the scenes that are predicted.
        seed: of the pairs that are drawn.
    """

    scenes: Scenes
    log_depth: np.ndarray
    regressions: Regressions
    features: np.ndarray
    points: Any
    validation: dict[int, np.ndarray]
    calibration: dict[Any, np.ndarray]
    test: np.ndarray
    seed: int

    def grid(self, bands: int) -> models.Grid:
        """The grid of the scenes."""
        rows, columns = self.log_depth.shape[1:]
        return models.Grid(rows, columns, min(bands, rows))

    def scaled(self, numbers: np.ndarray) -> np.ndarray:
        """Features as they are observed: over the root of their number, and a 1."""
        part = self.features[numbers]
        scaled = part * np.float32(part.shape[-1] ** -0.5)
        return np.concatenate([scaled, np.ones_like(part[..., :1])], axis=-1)


@dataclasses.dataclass(frozen=True)
class Method:
    """A graphical model over one kind of observation.

    Attributes:
        name: as in tables.
        search: which of `models.SEARCH`, or the name of the method before, whose setting it takes.
        observations: observations of scenes [scene, row, column, *dim], by their numbers.
        learn: from a sample and a setting to a model.
        bands: bands of rows with operators and likelihoods of their own.
    """

    name: str
    search: str
    observations: Callable[[Problem, np.ndarray], np.ndarray]
    learn: Callable[[models.Sample, models.Setting], models.Learned]
    bands: int = 1


def of_regression(name: str) -> Callable[[Problem, np.ndarray], np.ndarray]:
    """Return `Method.observations` of a method that observes a regression."""
    return lambda problem, numbers: problem.regressions.of[name][numbers]


def _learn_linear(sample: models.Sample, setting: models.Setting) -> models.Learned:
    return models.learn_kernel(sample, setting, kbp.Linear())


def _learn_rbf(sample: models.Sample, setting: models.Setting) -> models.Learned:
    observations = sample.observed[0][1][:2000]
    return models.learn_kernel(sample, setting, kbp.RBF(kbp.median_bandwidth(observations)))


KERNELS = {"linear": _learn_linear, "rbf": _learn_rbf}
"""Kernels of the features."""
ALONE = "patches alone"
ON_BOOSTING, ON_SECOND = "kernel BP on boosting", "kernel BP on the second stage"
METHODS = (
    Method(ON_BOOSTING, "kernel", of_regression("boosting"), models.learn_kernel),
    Method("discrete BP on boosting", "discrete", of_regression("boosting"), models.learn_discrete),
    Method(ON_SECOND, "kernel", of_regression("second stage"), models.learn_kernel),
    Method("discrete BP on the second stage", "discrete", of_regression("second stage"), models.learn_discrete),
    Method(f"{ON_BOOSTING}, bands of rows", ON_BOOSTING, of_regression("boosting"), models.learn_kernel, BANDS),
)


def methods(args: argparse.Namespace) -> list[Method]:
    """Return the graphical models that are compared."""
    if args.quick:
        return list(METHODS[:2])
    name = f"kernel BP, {args.feature_kernel} kernel on features"
    return [Method(name, "features", Problem.scaled, KERNELS[args.feature_kernel]), *METHODS]


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.depth", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/depth/results")
    add_use_argument(parser)
    every = [name for name in data.SETS if name != "make3d"]
    parser.add_argument("--sets", nargs="+", choices=data.SETS, default=every, help="scenes (default: all but make3d)")
    parser.add_argument("--feature-kernel", choices=KERNELS, default="linear", help="kernel of the features themselves")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    directory, choices = datasets.data_directory(args.data), Choices(args.use)
    start, rows, pictures, configs = steps.clock(), [], {}, []
    loaded = [data.load(name, directory) for name in (args.sets[:1] if args.quick else args.sets)]
    trials = [trial for trial in choices.trials if trial["set"] in {some.name for some in loaded}]
    names = ("quick", "seed", "feature_kernel")
    config = {name: getattr(args, name) for name in names} | {"iterations": models.NUM_ITERS, "trials": TRIALS}
    for some in loaded:
        problem = prepare(some, args, choices)
        found, settings, tried = compare(problem, methods(args), args.quick, choices)
        trials += [{"set": some.name, **trial} for trial in (*problem.regressions.trials, *tried)]
        ours = headline([trial for trial in trials if trial["set"] == some.name])
        rows += table(problem, found, ours)
        pictures[some.name] = (problem, found, ours)
        configs.append({**some.describe(), "headline": ours, **problem.regressions.chosen, **settings})
        more = {"trials": trials, "chosen": choices.chosen, "seconds": steps.clock() - start}
        results.write_results(args.out / "depth.json", config, rows, sets=configs, **more)
        results.save_figure(figure.draw(rows, pictures), args.out / "depth.png")
    tables.print_table(rows, ["set", "method", "scenes", "mae", "se", "relative", "cover", "answer_s"])
    for one in configs:
        print(f"{one['set']}: {one['cells_without_depth']} of {one['cells']} cells have no depth, and are not scored")
    print(f"Wrote {args.out / 'depth.json'} and {args.out / 'depth.png'}")


def prepare(some: Scenes, args: argparse.Namespace, choices: Choices) -> Problem:
    """Compute features, and regressions in and out of fold."""
    if args.quick:
        some = some.part(np.arange(len(some.ids)) % 16 == 0)
    features = patch_features(some, lambda images: command_line.progress(images, f"{some.name}: features"))
    begin = BOOSTING | {"max_iter": 40} if args.quick else BOOSTING
    drawn = draw_cells(some, 8_000 if args.quick else 80_000, args.seed)
    standardize(features, drawn)
    name = f"{some.name}, regressions"
    given = some, features, drawn, begin, args.seed, 1 if args.quick else TRIALS, choices.of(name)
    regressions = steps.step(name, regress, *given, classes=(Regressions,))
    choices.chosen[name] = regressions.chosen
    log_depth = np.log10(some.depth)
    points = jnp.linspace(np.nanmin(log_depth[some.train]), np.nanmax(log_depth[some.train]), models.CANDIDATES)
    validation = {}
    for fold in np.unique(some.folds[some.train]):
        numbers = np.flatnonzero(some.folds == fold)
        validation[int(fold)] = numbers[:: max(1, len(numbers) // 4)]
    known = np.isfinite(some.depth).any(axis=(1, 2))
    between = np.flatnonzero(known & ~some.train & ~some.test)
    calibration = {None: between} if len(between) else validation
    test = np.flatnonzero(some.test)
    return Problem(some, log_depth, regressions, features, points, validation, calibration, test, args.seed)


def compare(
    problem: Problem, kinds: list[Method], quick: bool, choices: Choices
) -> tuple[dict[str, tuple[np.ndarray, Any, np.ndarray]], dict[str, Any], list[dict[str, Any]]]:
    """Compare all methods on the test scenes.

    Returns:
        {method: (estimates [scene, 3, row, column], seconds, scenes)}, {method: setting}, and all trials.
    """
    of_cells = {"constant": np.full_like(problem.log_depth, problem.regressions.constant), **problem.regressions.of}
    found: dict[str, Any] = {name: (of[problem.test][:, None], None, problem.test) for name, of in of_cells.items()}
    settings: dict[str, models.Setting] = {}
    trials: list[dict[str, Any]] = []
    for method in command_line.progress(kinds, f"{problem.scenes.name}: graphs"):
        jax.clear_caches()  # a process can only map so many programs
        name = f"{problem.scenes.name}, {method.name}"
        if method.search in settings:
            setting, tried = settings[method.search], []
        else:
            options, tried = choices.search(name, choose, problem, method, quick)
            setting = models.Setting(**options)
        settings[method.name] = setting
        trials += tried
        found |= steps.step(name, predict, problem, method, setting)
    if not quick:
        given = problem, settings[ON_BOOSTING].power
        found |= steps.step(f"{problem.scenes.name}, samples", predict_by_samples, *given)
    return found, {name: dataclasses.asdict(setting) for name, setting in settings.items()}, trials


def choose(problem: Problem, method: Method, quick: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Choose the setting of least error on held-out folds, of models learned from the other folds; return all trials.

    The temperature is chosen on the scenes that are neither learned from nor tested, or else on the folds.
    """
    if quick:
        return dataclasses.asdict(models.START[method.search]), []
    rng, folds = np.random.default_rng(problem.seed), problem.scenes.folds
    grid = problem.grid(method.bands)
    graph, samples = grid.graph, {}
    for fold in (*problem.validation, None):
        others = np.flatnonzero((folds >= 0) & (folds != (-1 if fold is None else fold)))
        samples[fold] = draw(problem, grid, method, others, rng)

    @cache
    def learn(fold: int | None, setting: models.Setting) -> models.Learned:
        return method.learn(samples[fold], setting)

    def score(key: str, setting: models.Setting, parts: dict[Any, np.ndarray] = problem.validation) -> float:
        found = []
        for fold, numbers in parts.items():
            learned = learn(fold, setting.of_learning)
            estimates = models.estimate(learned, graph, method.observations(problem, numbers), problem.points, setting)
            found.append(_scores(problem, estimates, numbers)[key].mean())
        return float(np.mean(found))

    best, tried = models.search(method.search, partial(score, "mae"))
    best = models.calibrate(partial(score, "cover", parts=problem.calibration), best)
    records = [{"option": one.option, "value": str(one.value), "mae": one.loss} for one in tried]
    return dataclasses.asdict(best), [{"method": method.name, **record} for record in records]


def draw(problem: Problem, grid: models.Grid, method: Method, numbers: np.ndarray, rng: Any) -> models.Sample:
    """Draw pairs from scenes; where observations are many numbers, from some of the scenes."""
    if method.observations is Problem.scaled:
        numbers = numbers[:: max(1, len(numbers) // 30)]
    return grid.sample(problem.log_depth[numbers], method.observations(problem, numbers), rng)


def predict(problem: Problem, method: Method, setting: models.Setting) -> dict[str, Any]:
    """Return estimates for the test scenes, with and without edges, and the seconds of one image after compilation."""
    rng, grid = np.random.default_rng(problem.seed), problem.grid(method.bands)
    sample = draw(problem, grid, method, np.flatnonzero(problem.scenes.train), rng)
    learned = method.learn(sample, setting)
    graph, observed = grid.graph, method.observations(problem, problem.test)
    no_edges = kbp.Graph.from_edges(np.zeros((0, 2), int), graph.num_nodes, node_type=np.asarray(graph.node_type))

    def estimate_images(images: np.ndarray, graph: kbp.Graph = graph, setting: models.Setting = setting) -> np.ndarray:
        return models.estimate(learned, graph, images, problem.points, setting)

    estimates = estimate_images(observed)
    _, _, seconds = timing.timed(lambda: estimate_images(observed[:1]), repeats=5)
    single = estimate_images(observed, no_edges, dataclasses.replace(setting, power=1.0, temperature=1.0))
    label = f"{method.name}, {ALONE}"
    return {method.name: (estimates, seconds, problem.test), label: (single, None, problem.test)}


def predict_by_samples(problem: Problem, power: float) -> dict[str, Any]:
    """Return estimates of a few scenes by particles, and of parts of them by mixtures, given boosting."""
    rng, grid = np.random.default_rng(problem.seed), problem.grid(1)
    train = np.flatnonzero(problem.scenes.train)
    sample = draw(problem, grid, METHODS[0], train, rng)
    spread = float(np.nanstd(problem.regressions.of["boosting"][train] - problem.log_depth[train]))
    numbers = problem.test[:: max(1, len(problem.test) // FEW)][:FEW]
    observations = problem.regressions.of["boosting"][numbers]
    part = observations[:, -CROP:, :CROP]
    found = {}
    for kind, images in (("particle", observations), ("mixture", part)):
        graph = kbp.grid_graph(*images.shape[1:])
        edge_type = np.asarray(graph.senders[: graph.num_edges // 2] + 1 != graph.receivers[: graph.num_edges // 2])
        graph = kbp.grid_graph(*images.shape[1:], edge_type=edge_type.astype(int))
        begin = time.perf_counter()
        estimates = models.estimate_by_samples(sample, graph, images, problem.points, spread, kind, power)
        found[f"{kind} BP on boosting"] = (estimates, (time.perf_counter() - begin) / len(images), numbers)
    return found


def headline(trials: list[dict[str, Any]]) -> str:
    """Return the method whose evidence, boosting or the second stage, gives kernel BP the least error out of fold."""
    errors = {ON_BOOSTING: [np.inf], ON_SECOND: [np.inf]}  # a quick run has no trials
    for trial in trials:
        if trial["method"] in errors:
            errors[trial["method"]].append(trial["mae"])
    return min(errors, key=lambda name: min(errors[name]))


def table(problem: Problem, found: dict[str, Any], ours: str) -> list[dict[str, Any]]:
    """Score all methods over the measured cells they answer.

    `gain` is how much lower the error of ours, the headline, is on the same cells; `messages` is how much messages
    lower the error of the method.
    """
    rows = []
    references = {name: (estimates, numbers) for name, (estimates, _, numbers) in found.items()}
    for name, (estimates, seconds, numbers) in found.items():
        score = _scores(problem, estimates, numbers)
        row = {"set": problem.scenes.name, "method": name, "scenes": len(numbers), "cells_each": estimates[0, 0].size}
        row |= {"mae": float(score["mae"].mean()), "se": results.standard_error(score["mae"])}
        row |= {key: float(np.mean(score[key])) for key in ("relative", "cover")} | {"answer_s": seconds}
        for key, reference in (("gain", ours), ("messages", f"{name}, {ALONE}")):
            if reference in references and reference != name:
                theirs = _scores(problem, *_same(references[reference], estimates, numbers))["mae"] - score["mae"]
                sign = -1 if key == "gain" else 1
                row |= {key: sign * float(theirs.mean()), f"{key}_se": results.standard_error(theirs)}
        rows.append(row)
    return rows


def _same(reference: tuple[np.ndarray, np.ndarray], estimates: np.ndarray, numbers: np.ndarray) -> Any:
    """Return the estimates of another method for the same scenes and cells."""
    theirs, known = reference
    rows, columns = estimates.shape[2:]
    return theirs[np.searchsorted(known, numbers)][:, :, -rows:, :columns], numbers


def _scores(problem: Problem, estimates: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Score answers [scene, 3 or 1, row, column] of each scene: errors of the median, cover of the interval."""
    rows, columns = estimates.shape[2:]
    truth = problem.log_depth[numbers][:, -rows:, :columns]
    known, middle = np.isfinite(truth), estimates[:, 0]
    relative = np.where(known, np.abs(10 ** (middle - truth) - 1), np.nan)
    scores = {
        "mae": np.nanmean(np.where(known, np.abs(middle - truth), np.nan), axis=(1, 2)),
        "relative": np.nanmean(relative, axis=(1, 2)),
    }
    if estimates.shape[1] == 1:
        return scores | {"cover": np.full(len(truth), np.nan)}
    inside = (estimates[:, 1] <= truth) & (truth <= estimates[:, 2])
    return scores | {"cover": np.nanmean(np.where(known, inside, np.nan), axis=(1, 2))}
