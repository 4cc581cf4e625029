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

import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.depth import data, figure, models
from experiments.depth.data import Scenes
from experiments.depth.features import patch_features
from experiments.depth.regression import BOOSTING, Regressions, regress
from experiments.lib import command_line, datasets, results, steps, tables, timing

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
        test: numbers of the scenes that are predicted.
        seed: of the pairs that are drawn.
    """

    scenes: Scenes
    log_depth: np.ndarray
    regressions: Regressions
    features: np.ndarray
    points: Any
    validation: dict[int, np.ndarray]
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
        search: which of `depth_models.SEARCH`, or the name of the method before, whose setting it takes.
        observations: observations of scenes [scene, row, column, *dim], by their numbers.
        learn: from a sample and a setting to a model.
        bands: bands of rows with operators and likelihoods of their own.
    """

    name: str
    search: str
    observations: Callable[[Problem, np.ndarray], np.ndarray]
    learn: Callable[[models.Sample, models.Setting], models.Learned]
    bands: int = 1


def _of_ridge(problem: Problem, numbers: np.ndarray) -> np.ndarray:
    return problem.regressions.ridge[numbers]


def _of_boosting(problem: Problem, numbers: np.ndarray) -> np.ndarray:
    return problem.regressions.boosting[numbers]


def _learn_linear(sample: models.Sample, setting: models.Setting) -> models.Learned:
    return models.learn_kernel(sample, setting, kbp.Linear())


def _learn_rbf(sample: models.Sample, setting: models.Setting) -> models.Learned:
    observations = sample.observed[0][1][:2000]
    return models.learn_kernel(sample, setting, kbp.RBF(kbp.median_bandwidth(observations)))


KERNELS = {"linear": _learn_linear, "rbf": _learn_rbf}
"""Kernels of the features."""
ON_RIDGE, ON_BOOSTING = "kernel BP on ridge", "kernel BP on boosting"
METHODS = (
    Method(ON_RIDGE, "kernel", _of_ridge, models.learn_kernel),
    Method("discrete BP on ridge", "discrete", _of_ridge, models.learn_discrete),
    Method(ON_BOOSTING, "kernel", _of_boosting, models.learn_kernel),
    Method("discrete BP on boosting", "discrete", _of_boosting, models.learn_discrete),
    Method(f"{ON_BOOSTING}, bands of rows", ON_BOOSTING, _of_boosting, models.learn_kernel, BANDS),
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
    every = [name for name in data.SETS if name != "make3d"]
    parser.add_argument("--sets", nargs="+", choices=data.SETS, default=every, help="scenes (default: all but make3d)")
    parser.add_argument("--feature-kernel", choices=KERNELS, default="linear", help="kernel of the features themselves")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    directory = datasets.data_directory(args.data)
    start, rows, pictures, configs = steps.clock(), [], {}, []
    settings: dict[str, models.Setting] = {}
    names = ("quick", "seed", "feature_kernel")
    config = {name: getattr(args, name) for name in names} | {"iterations": models.NUM_ITERS}
    loaded = [data.load(name, directory) for name in (args.sets[:1] if args.quick else args.sets)]
    for some in loaded:
        problem = prepare(some, args)
        found = compare(problem, methods(args), args.quick, settings)
        rows += table(problem, found)
        pictures[some.name] = (problem, found)
        configs.append({**some.describe(), **problem.regressions.chosen})
        chosen = {name: dataclasses.asdict(setting) for name, setting in settings.items()}
        more = {"sets": configs, "settings": chosen, "seconds": steps.clock() - start}
        results.write_results(args.out / "depth.json", config, rows, **more)
        results.save_figure(figure.draw(rows, pictures), args.out / "depth.png")
    tables.print_table(rows, ["set", "method", "scenes", "mae", "se", "relative", "cover", "answer_s"])
    for one in configs:
        print(f"{one['set']}: {one['cells_without_depth']} of {one['cells']} cells have no depth, and are not scored")
    print(f"Wrote {args.out / 'depth.json'} and {args.out / 'depth.png'}")


def prepare(some: Scenes, args: argparse.Namespace) -> Problem:
    """Compute features, and regressions in and out of fold."""
    if args.quick:
        some = some.part(np.arange(len(some.ids)) % 16 == 0)
    features = patch_features(some, lambda images: command_line.progress(images, f"{some.name}: features"))
    kinds = [{**BOOSTING[0], "max_iter": 40}] if args.quick else BOOSTING
    regressions = regress(some, features, 8_000 if args.quick else 80_000, kinds, args.seed)
    log_depth = np.log10(some.depth)
    points = jnp.linspace(np.nanmin(log_depth[some.train]), np.nanmax(log_depth[some.train]), models.CANDIDATES)
    validation = {}
    for fold in np.unique(some.folds[some.train]):
        numbers = np.flatnonzero(some.folds == fold)
        validation[int(fold)] = numbers[:: max(1, len(numbers) // 4)]
    test = np.flatnonzero(some.test)
    return Problem(some, log_depth, regressions, features, points, validation, test, args.seed)


def compare(
    problem: Problem, kinds: list[Method], quick: bool, settings: dict[str, models.Setting]
) -> dict[str, tuple[np.ndarray, Any, np.ndarray]]:
    """Return the test scenes' {method: (estimates [scene, 3, row, column], seconds, scenes)}.

    Settings are chosen on the folds of the first set, and kept in `settings` for others.
    """
    of_cells = {"constant": np.full_like(problem.log_depth, problem.regressions.constant)}
    of_cells |= {"ridge": problem.regressions.ridge, "boosting": problem.regressions.boosting}
    found: dict[str, Any] = {name: (of[problem.test][:, None], None, problem.test) for name, of in of_cells.items()}
    for method in command_line.progress(kinds, f"{problem.scenes.name}: graphs"):
        start = models.Setting(obs_ridge=10.0) if method.search == "discrete" else models.Setting()
        known = settings.get(method.name) or settings.get(method.search)
        name = f"{problem.scenes.name}, {method.name}"
        if known is None and not quick:
            known = steps.step(f"choose {name}", choose, problem, method, start, classes=(models.Setting,))
        settings[method.name] = setting = known or start
        found |= steps.step(name, predict, problem, method, setting)
    if not quick:
        given = problem, settings[ON_RIDGE].power
        found |= steps.step(f"{problem.scenes.name}, samples", predict_by_samples, *given)
    return found


def choose(problem: Problem, method: Method, start: models.Setting) -> models.Setting:
    """Choose the setting of least error on held-out folds, of models learned from the other folds."""
    rng, folds = np.random.default_rng(problem.seed), problem.scenes.folds
    grid = problem.grid(method.bands)
    graph, samples = grid.graph, {}
    for fold in problem.validation:
        others = np.flatnonzero((folds >= 0) & (folds != fold))
        samples[fold] = draw(problem, grid, method, others, rng)

    @cache
    def learn(fold: int, setting: models.Setting) -> models.Learned:
        return method.learn(samples[fold], setting)

    def score(key: str, setting: models.Setting) -> float:
        found = []
        for fold, numbers in problem.validation.items():
            learned = learn(fold, setting.of_learning)
            estimates = models.estimate(learned, graph, method.observations(problem, numbers), problem.points, setting)
            found.append(_scores(problem, estimates, numbers)[key].mean())
        return float(np.mean(found))

    best = models.search(method.search, partial(score, "mae"), start)
    return models.calibrate(partial(score, "cover"), best)


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
    label = f"{method.name}, patches alone"
    return {method.name: (estimates, seconds, problem.test), label: (single, None, problem.test)}


def predict_by_samples(problem: Problem, power: float) -> dict[str, Any]:
    """Return estimates of a few scenes by particles, and of parts of them by mixtures, given ridge regression."""
    rng, grid = np.random.default_rng(problem.seed), problem.grid(1)
    train = np.flatnonzero(problem.scenes.train)
    sample = draw(problem, grid, METHODS[0], train, rng)
    spread = float(np.nanstd(problem.regressions.ridge[train] - problem.log_depth[train]))
    numbers = problem.test[:: max(1, len(problem.test) // FEW)][:FEW]
    observations = problem.regressions.ridge[numbers]
    part = observations[:, -CROP:, :CROP]
    found = {}
    for kind, images in (("particle", observations), ("mixture", part)):
        graph = kbp.grid_graph(*images.shape[1:])
        edge_type = np.asarray(graph.senders[: graph.num_edges // 2] + 1 != graph.receivers[: graph.num_edges // 2])
        graph = kbp.grid_graph(*images.shape[1:], edge_type=edge_type.astype(int))
        begin = time.perf_counter()
        estimates = models.estimate_by_samples(sample, graph, images, problem.points, spread, kind, power)
        found[f"{kind} BP on ridge"] = (estimates, (time.perf_counter() - begin) / len(images), numbers)
    return found


def table(problem: Problem, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Score all methods over the measured cells they answer, and beside kernel belief propagation on the same."""
    rows = []
    references = {name: (estimates, numbers) for name, (estimates, _, numbers) in found.items()}
    for name, (estimates, seconds, numbers) in found.items():
        score = _scores(problem, estimates, numbers)
        row = {"set": problem.scenes.name, "method": name, "scenes": len(numbers), "cells_each": estimates[0, 0].size}
        row |= {"mae": float(score["mae"].mean()), "se": results.standard_error(score["mae"])}
        row |= {key: float(np.mean(score[key])) for key in ("relative", "cover")} | {"answer_s": seconds}
        for reference in (ON_RIDGE, ON_BOOSTING):
            if reference in references:
                theirs = _scores(problem, *_same(references[reference], estimates, numbers))["mae"] - score["mae"]
                row |= {f"{reference} less this": float(theirs.mean())}
                row |= {f"{reference} less this, se": results.standard_error(theirs)}
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
