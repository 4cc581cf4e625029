"""Infer the orientation of a rotating camera: rotations are hidden on a chain, frames are observed.

The tree experiment of Song, Gretton & Guestrin (2010), with rendered views: a camera at the center of a room turns at
random, and every frame is small and noisy. Two opposite walls show the same photograph, so that a frame that sees
little else fits two rotations, half a turn apart; only its neighbors in time resolve the ambiguity. Operators and the
model of the frames are learned from trajectories with known rotations; motion, lens and noise are not given.

Beliefs use the whole sequence, frames to come included. Every method sees a frame less its mean, over its standard
deviation, on principal components of the training frames. Their number and all other settings of a method are chosen
on validation trajectories, by its mean error over all their frames.
"""

import argparse
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from experiments.lib import command_line, results, steps, tables
from experiments.lib.choices import Choices, add_use_argument
from experiments.lib.search import coordinate_search
from experiments.orientation import rendering
from experiments.orientation.baselines import link, nearest, regress
from experiments.orientation.data import AMBIGUOUS, Frames, draw
from experiments.orientation.figure import paint, paint_beliefs
from experiments.orientation.models import Estimates, Options, propagate
from experiments.orientation.rendering import degrees_between

TRIALS = 20
"""Settings that are tried for each method."""

EXTENSIONS = 2
"""How often the grid of an option is extended at each end."""

LIMITS = {"components": 160, "neighbors": 400}
"""To which grids are extended: frames have 192 pixels, and time grows with the square of the number of neighbors."""

PAIRED = {"": "degrees", "_stderr": "stderr"}
"""Endings of the columns of paired differences, and the statistics of `summary` that they hold."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method with its search.

    Attributes:
        estimate: function (training frames, frames to answer, options) -> answers.
        search: values to try of each option, in this order; the first is where the search starts.
    """

    estimate: Callable[[Frames, Frames, Options], Estimates]
    search: dict[str, tuple[Any, ...]]

    @property
    def start(self) -> Options:
        """The options where the search starts."""
        return {option: values[0] for option, values in self.search.items()}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    first = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m experiments.orientation", description=first)
    command_line.add_common_arguments(parser, "experiments/orientation/results")
    add_use_argument(parser)
    add = parser.add_argument
    add("--kernels", nargs="+", choices=("trace", "heat"), help="on the rotations (default: both; trace if quick)")
    add("--seeds", type=int, help="number of training and test sets (default: 10; 1 if quick)")
    add("--trajectories", type=int, help="to learn from, of 100 frames each (default: 40; 24 if quick)")
    add("--tests", type=int, help="to test on, of 80 frames (default: 20; 8 if quick); 3 times as many choose settings")
    add("--noise", type=float, default=20.0, help="standard deviation of a pixel's noise, of 0 .. 255 (default: 20)")
    add("--rank", type=int, help="most landmarks of kernel belief propagation (default: 500; 300 if quick)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    usual = {"kernels": ["trace", "heat"], "seeds": 10, "trajectories": 40, "tests": 20, "rank": 500}
    quick = {"kernels": ["trace"], "seeds": 1, "trajectories": 24, "tests": 8, "rank": 300}
    for name, value in (quick if args.quick else usual).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    counts = [args.seeds, args.trajectories, args.tests, args.rank]
    if min(counts) < 1 or not 0 <= args.noise < np.inf:
        rule = "--seeds, --trajectories, --tests and --rank must be at least 1, --noise a number >= 0"
        raise ValueError(f"{rule}; got {counts} and {args.noise:g}.")
    methods, searches, rows, found, ours = methods_of(args), [], [], {}, None
    choices = Choices(args.use)
    draws = [draw(args, seed) for seed in range(args.seed, args.seed + args.seeds)]
    tests = [test for *_, test in draws]
    for name, method in command_line.progress(methods.items(), "methods"):
        best, trials = choices.search(name, search, method, *draws[0][:2], args.quick)
        searches += [{"method": name, **trial} for trial in trials]
        estimates = [
            steps.step(f"{name} {i}", method.estimate, train, test, best, classes=(Estimates,))
            for i, (train, _, test) in enumerate(draws)
        ]
        found[name] = estimates[0]
        ours = estimates if ours is None else ours
        rows += rows_of(name, estimates, tests, ours)
    report(args, rows, choices.chosen, searches, paint(rows, found, tests[0]), paint_beliefs(found, tests[0]))


def methods_of(args: argparse.Namespace) -> dict[str, Method]:
    """Return all methods by name."""
    # Bandwidths of frames (scale) are multiples of the median distance; those of rotations, and motion, in degrees.
    of_frames = {"components": (20, 10, 40)}
    of_chain = {**of_frames, "motion": (9.0, 6.0, 13.0), "sharpness": (40.0, 20.0, 80.0), "neighbors": (100, 30, 200)}
    of_model = {**of_frames, "power": (0.7, 0.5, 1.0), "obs_ridge": (1e-5, 1e-4, 1e-6), "ridge": (1e-3, 1e-2, 1e-4)}
    of_model |= {"obs_scale": (1.0, 0.5, 2.0), "bandwidth": (11.0, 9.0, 14.0), "form": ("ratio", "expectation")}
    of_regression = {"components": (40, 20, 80), "scale": (0.5, 0.25, 1.0), "ridge": (1e-5, 1e-4, 1e-6)}
    ours = {kernel: partial(propagate, kernel=kernel, rank=args.rank) for kernel in args.kernels}
    return {
        **{f"kernel BP, {kernel}": Method(estimate, of_model) for kernel, estimate in ours.items()},
        "regression": Method(regress, of_regression),
        "nearest neighbor": Method(nearest, of_frames),
        "neighbors, Viterbi": Method(partial(link, best_path=True), of_chain),
        "neighbors, forward-backward": Method(partial(link, best_path=False), of_chain),
    }


def search(method: Method, train: Frames, validation: Frames, quick: bool) -> tuple[Options, list[dict[str, Any]]]:
    """Choose options by the mean error on validation frames, one after the other; return them and all trials."""
    if quick:
        return method.start, []

    def degrees(options: Options) -> float:
        rotations = method.estimate(train, validation, options).rotations[""]
        return float(np.mean(degrees_between(rotations, validation.rotations)))

    given = {"budget": TRIALS, "extensions": EXTENSIONS, "limits": LIMITS}
    best, trials = coordinate_search(method.start, method.search, degrees, **given)
    return best, [{"option": trial.option, "value": str(trial.value), "degrees": trial.loss} for trial in trials]


def rows_of(name: str, estimates: list[Estimates], tests: list[Frames], ours: list[Estimates]) -> list[dict[str, Any]]:
    """Return a flat record for each kind of answer and each subset of the test frames, over all seeds.

    `ours_ahead`: by how many degrees the error exceeds that of `ours` on the same frames, with its standard error.
    """
    truth, ambiguous = (np.concatenate([getattr(test, key) for test in tests]) for key in ("rotations", "ambiguous"))
    fit_s, run_s = (float(np.median([getattr(one, key) for one in estimates])) for key in ("fit_s", "run_s"))
    errors_of = lambda found, kind: degrees_between(np.concatenate([one.rotations[kind] for one in found]), truth)
    rows = []
    for kind in estimates[0].rotations:
        errors = errors_of(estimates, kind)
        less = errors - errors_of(ours, "")
        for subset, chosen in (("ambiguous", ambiguous), ("clear", ~ambiguous), ("all", np.ones_like(ambiguous))):
            record = {"method": name + kind, "frames": subset, "count": int(chosen.sum())}
            paired = {f"ours_ahead{end}": summary(less, chosen)[key] for end, key in PAIRED.items()}
            rows.append({**record, **summary(errors, chosen), **paired, "fit_s": fit_s, "run_s": run_s})
    return rows


def summary(errors: np.ndarray, chosen: np.ndarray) -> dict[str, float]:
    """Return mean, its standard error, median and the share below 10 degrees of some errors [m, T]; NaN of none.

    Frames of one trajectory err together: the standard error takes trajectories as the independent draws.
    """
    names, count = ("degrees", "stderr", "median", "below10"), chosen.sum()
    if count == 0:
        return dict.fromkeys(names, np.nan)
    mean = errors[chosen].mean()
    of_trajectories = np.where(chosen, errors - mean, 0).sum(axis=1)
    clusters = len(errors)
    spread = np.sqrt(clusters / max(clusters - 1, 1) * np.sum(of_trajectories**2)) / count
    median, below = np.median(errors[chosen]), np.mean(errors[chosen] < 10)
    return dict(zip(names, map(float, (mean, spread, median, below)), strict=True))


def report(
    args: argparse.Namespace,
    rows: list[dict],
    chosen: dict[str, Options],
    searches: list[dict],
    picture: Any,
    beliefs: Any,
) -> None:
    """Write JSON and PNG files, print the table and where they are."""
    path, image = args.out / "orientation.json", args.out / "orientation.png"
    camera = dataclasses.asdict(rendering.Camera())
    config = {**vars(args), "camera": camera, "walls": rendering.PICTURES, "ambiguous": AMBIGUOUS}
    results.write_results(path, config, rows, searches=searches, chosen=chosen)
    results.save_figure(picture, image)
    results.save_figure(beliefs, args.out / "orientation_beliefs.png")
    tables.print_table(rows)
    print(
        f"\nDegrees between rotations, mean over test frames; ambiguous: at least {AMBIGUOUS:.0%} of the frame shows a"
    )
    print(
        "photograph that hangs twice. Seconds: to learn, and for a trajectory of 80 frames (quick: with compilation)."
    )
    print(f"Figures: {path}\nPicture: {image}")
