"""Part (b): learn from ten photographs, clean ten others, at three noise levels.

Every picture is reduced to at most 256 pixels on its shorter side, and cut to its middle. The pictures in alphabetical
order are learned from and tested on in turn. The model is fitted to crops of five pictures to learn from, its
hyperparameters are tuned and calibrated on the other five, and the final model is fitted to crops of all ten. The
options of the denoisers are those with the smallest mean RMSE over the ten. Every method has `TRIALS` evaluations.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from experiments.denoising.models import rmse
from experiments.learned_bandwidths import baselines, photograph_figure
from experiments.learned_bandwidths.photograph_models import Learned, Model, clean, fit, learn, start
from experiments.learned_bandwidths.records import numbers_of, with_numbers
from experiments.learned_bandwidths.smoothers import BASES, Copy, copy_of
from experiments.lib import command_line, gray_images, results, steps, tables
from experiments.lib.results import standard_error
from experiments.lib.search import coordinate_search

TRIALS = 8
"""Evaluations of the training error that every method may choose its options by."""

OURS = {"nlm": "kernel BP", "bm3d": "kernel BP with BM3D"}
"""Methods by what their variable is the rest of."""

PLACES = {"tv": "total variation", "nlm": "non-local means", "bm3d": "BM3D"}
NAMES = sorted(gray_images.PHOTOGRAPHS)
SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "tv": {
        "weight": (0.75, 0.5, 0.6, 0.9, 1.1, 1.3),
        "algorithm": ("chambolle", "bregman isotropic", "bregman anisotropic"),
    },
    "nlm": {
        "h": (0.6, 0.45, 0.52, 0.7),
        "patch_size": (5, 3, 7),
        "patch_distance": (9, 13),
        "fast_mode": (True, False),
    },
    "bm3d": {
        "filter_strength": (1.0, 0.9, 1.1, 1.2),
        "profile": ("np", "lc", "vn"),
        "group": (None, 32),
        "transform": (None, "dct"),
        "stages": ("both",),
    },
}
"""Values of each option, at first the first; every space has `TRIALS` trials."""


def alone(method: str) -> str:
    """Return the name of a method without messages."""
    return f"{method}, no messages"


def rmse_of_picture(image: np.ndarray, clean: np.ndarray) -> float:
    """Return the root mean squared error over all pixels of a picture [row, column]."""
    return rmse(image.reshape(1, -1), clean.reshape(-1))


def run(args: argparse.Namespace) -> None:
    """Run this part: tables on standard output, a JSON file and a PNG file in `args.out`."""
    given = None if args.use is None else _read(args.use)
    names = [NAMES[i] for i in (0, 1, 2, 3, 16, 17, 18, 19)] if args.quick else NAMES
    side, sigmas = (40, args.noise or [30.0]) if args.quick else (128, args.noise or [15.0, 30.0, 50.0])
    if min(sigmas) <= 0:
        raise ValueError(f"--noise: must be positive; got {min(sigmas)}. Pass standard deviations such as 15 30 50.")
    picture = None if args.image is None else gray_images.read_image(args.image, 512)
    if picture is not None and min(picture.shape) < 16:
        raise ValueError(f"--image: must have at least 16 pixels a side; got {picture.shape}. Choose a larger picture.")
    pictures = {name: cropped(name, side) for name in names}
    began, rows, shown = steps.clock(), [], {}
    for sigma in command_line.progress(sigmas, "noise levels"):
        found, shown[sigma], model = Level(sigma, pictures, args, given).compare()
        rows += found
        if picture is not None and sigma == sigmas[-1]:
            clean_file(model, picture, args)
    rows += summarize(rows)
    path, image = args.out / "photographs.json", args.out / "photographs.png"
    config = {"noise": sigmas, "side": side, "trials": TRIALS, "seed": args.seed, "quick": args.quick}
    config |= {"learned from": names[::2], "tested on": names[1::2], "use": args.use}
    results.write_results(path, config, rows, seconds=steps.clock() - began)
    results.save_figure(photograph_figure.draw(shown), image)
    columns = ["sigma", "method", "rmse", "rmse_se", "ahead", "ahead, se", "crps", "cover90", "run_s", "learn_s"]
    tables.print_table([row for row in rows if row["study"] == "summary"], columns)
    print(
        f"\nahead: RMSE of {OURS['nlm']} less that of the method, mean over pictures. Figures: {path}\nPicture: {image}"
    )


def cropped(name: str, side: int) -> np.ndarray:
    """Return the middle [side, side] of a photograph that is reduced to 256 pixels on its shorter side."""
    height, width = gray_images.photograph(name).shape
    longest = round(256 * max(height, width) / min(height, width)) if min(height, width) > 256 else None
    image = gray_images.photograph(name, longest)
    top, left = ((length - side) // 2 for length in image.shape)
    return np.round(image[top : top + side, left : left + side]).astype(np.float32)


@dataclasses.dataclass
class Level:
    """The comparison at one noise level; `given` are rows of earlier results, whose choices are taken over."""

    sigma: float
    pictures: Mapping[str, np.ndarray]
    args: argparse.Namespace
    given: list[dict] | None

    def noisy(self, name: str, draw: int) -> np.ndarray:
        """Return a noisy copy; draw 0 is learned from or tested on, draw 1 is calibrated on."""
        rng = np.random.default_rng([self.args.seed, NAMES.index(name), round(10 * self.sigma), draw])
        picture = self.pictures[name]
        return picture + self.sigma * rng.standard_normal(picture.shape).astype(np.float32)

    def copies(self, base: str, names: Sequence[str], draw: int = 0) -> list[Copy]:
        """Return noisy copies of pictures with their evidence."""
        return [copy_of(self.noisy(name, draw), self.sigma, self.pictures[name], base) for name in names]

    def compare(self) -> tuple[list[dict], dict[str, Any], Model]:
        """Return the rows of all methods, pictures and beliefs for the figure, and the model with messages."""
        rows: list[dict] = []
        train, test = list(self.pictures)[::2], list(self.pictures)[1::2]
        for key, method in PLACES.items():
            if baselines.available(key):
                rows += self.by_denoiser(key, method, train, test)
        shown: dict[str, Any] = {"names": test, "pictures": [self.pictures[name] for name in test], "copies": []}
        model = None
        for base in BASES:
            if not baselines.available(base):
                continue
            parts = (train, 0), (train[1::2], 1), (test, 0)
            given = [steps.step(f"{base} {self.sigma}, copies {i}", self.copies, base, *p) for i, p in enumerate(parts)]
            learning, later, copies = given
            shown["copies"] = copies
            for method, messages in ((alone(OURS[base]), False), (OURS[base], True)):
                learned = self.learned(method, messages, learning, later)
                rows += learned.trials
                model = fit(learning, learned.hyperparameters, messages, self.sigma, base)
                answers, seconds = [], []
                for copy in copies:
                    began = time.perf_counter()
                    answers.append(clean(model, copy))
                    seconds.append(time.perf_counter() - began)
                run_s = float(np.median(seconds))
                for name, answer in zip(test, answers, strict=True):
                    row = self.row(method, name, answer.mean, run_s, learned.seconds)
                    rows.append(row | answer.scores(self.pictures[name]))
                shown[method] = answers
        assert model is not None  # of non-local means, whose package is required
        return rows, shown, model

    def row(self, method: str, name: str, image: np.ndarray, run_s: float, learn_s: float) -> dict[str, Any]:
        """Make the record of a cleaned picture."""
        error = rmse_of_picture(image, self.pictures[name])
        where = {"study": "photographs", "sigma": self.sigma, "image": name, "method": method}
        return {**where, "rmse": error, "run_s": run_s, "learn_s": learn_s}

    def by_denoiser(self, key: str, method: str, train: Sequence[str], test: Sequence[str]) -> list[dict]:
        """Choose the options of a denoiser on pictures to learn from; return all trials and rows of the test."""
        where = {"sigma": self.sigma, "method": method}
        began = steps.clock()
        chosen = self.chosen(method)
        if chosen is None:
            options, trials = steps.step(f"{key} {self.sigma}", self.choose, key, train)
        else:
            options, trials = {name: chosen[name] for name in SPACES[key]}, []
        learn_s, denoiser = steps.clock() - began, baselines.Denoiser(key, options, float("nan"), self.sigma)
        edges = " ".join(option for option in SPACES[key] if at_edge(SPACES[key][option], options[option]))
        rows = [{"study": "trial", **where, **trial} for trial in trials]
        rows.append({"study": "options", **where, **options, "at the edge": edges})
        cleaned, run_s = steps.step(f"{key} {self.sigma}, test", self.timed, denoiser, test)
        return rows + [self.row(method, name, one, run_s, learn_s) for name, one in zip(test, cleaned, strict=True)]

    def choose(self, key: str, train: Sequence[str]) -> tuple[dict[str, Any], list[dict]]:
        """Return the best options on the pictures to learn from, and all trials."""

        def loss(options: dict[str, Any]) -> float:
            denoiser = baselines.Denoiser(key, options, float("nan"), self.sigma)
            return float(
                np.mean([rmse_of_picture(denoiser(self.noisy(name, 0)), self.pictures[name]) for name in train])
            )

        space = {name: values[:1] for name, values in SPACES[key].items()} if self.args.quick else SPACES[key]
        best, trials = coordinate_search({name: values[0] for name, values in space.items()}, space, loss)
        return best, [{**trial.options, "loss": trial.loss} for trial in trials]

    def timed(self, denoiser: baselines.Denoiser, names: Sequence[str]) -> tuple[list[np.ndarray], float]:
        """Return the cleaned pictures and the median of the seconds."""
        cleaned, seconds = [], []
        for name in names:
            began = time.perf_counter()
            cleaned.append(denoiser(self.noisy(name, 0)))
            seconds.append(time.perf_counter() - began)
        return cleaned, float(np.median(seconds))

    def learned(self, method: str, messages: bool, learning: Sequence[Copy], later: Sequence[Copy]) -> Learned:
        """Return the hyperparameters of a method: of given results, or tuned and calibrated."""
        where = {"sigma": self.sigma, "method": method}
        chosen = self.chosen(method)
        if chosen is not None or (self.args.quick and not messages):  # a quick run learns once
            settings = start() if chosen is None else with_numbers(start(), chosen)
            return Learned(settings, [{"study": "options", **where, **numbers_of(settings)}], 0.0)
        began = steps.clock()
        given = learning, later, messages, self.args.seed, 2 if self.args.quick else TRIALS - 2
        settings, losses, checks = steps.step(f"{method} {self.sigma}", learn, *given)
        rows = [{"study": "trial", **where, "kind": "step", "loss": loss} for loss in losses]
        rows += [{"study": "trial", **where, "kind": "validation", "loss": loss} for loss in checks]
        rows.append({"study": "options", **where, **numbers_of(settings)})
        return Learned(settings, rows, steps.clock() - began)

    def chosen(self, method: str) -> dict | None:
        """Return the record of what given results chose; None without them."""
        if self.given is None:
            return None
        mine = [row for row in self.given if row["method"] == method]
        found = [row for row in mine if row["sigma"] == self.sigma]
        if not found:
            known = sorted({row["sigma"] for row in mine})
            raise ValueError(f"--use: must hold {method} at noise {self.sigma}; got {known}. Pass --noise of these.")
        return found[0]


def at_edge(values: tuple[Any, ...], best: Any) -> bool:
    """Return whether a number is the smallest or largest of three or more that were tried."""
    return len(values) > 2 and not isinstance(best, str) and best in (min(values), max(values))


def _read(path: Path) -> list[dict]:
    """Read the rows of results."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [row for row in rows if row["study"] == "options"]
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"--use: must be results of this part; got {path.name!r}. Pass a photographs.json.") from None


def clean_file(model: Model, picture: np.ndarray, args: argparse.Namespace) -> None:
    """Clean a noisy picture with the model of the last noise level; write the mean and the standard deviation."""
    answer = clean(model, copy_of(picture.astype(np.float32), model.sigma, base=model.base))
    for name, image in (("cleaned", answer.mean), ("deviation", 4 * answer.deviation)):
        path = args.out / f"{args.image.stem}-{name}.png"
        Image.fromarray(np.clip(np.round(image), 0, 255).astype(np.uint8)).save(path)
        print(f"{name}{' (times 4)' if name == 'deviation' else ''}: {path}")


def summarize(rows: list[dict]) -> list[dict]:
    """Average over the test pictures; `ahead` is the RMSE of ours less that of the method, on the same pictures.

    `ahead with BM3D` is that of ours with BM3D in its evidence, where it was measured.
    """
    tests, summary = [row for row in rows if row["study"] == "photographs"], []
    errors = {(sigma, method): [] for sigma, method in dict.fromkeys((row["sigma"], row["method"]) for row in tests)}
    for row in tests:
        errors[row["sigma"], row["method"]].append(row["rmse"])
    for (sigma, method), found in errors.items():
        mine = [row for row in tests if (row["sigma"], row["method"]) == (sigma, method)]
        row = {"study": "summary", "sigma": sigma, "method": method, "pictures": len(mine)}
        row |= {"rmse": np.mean(found), "rmse_se": standard_error(np.array(found))}
        for key, ours in zip(("ahead", "ahead with BM3D"), OURS.values(), strict=True):
            if (sigma, ours) in errors:
                less = np.array(errors[sigma, ours]) - np.array(found)
                row |= {key: less.mean(), f"{key}, se": standard_error(less)}
        for key in ("crps", "cover90"):
            if key in mine[0]:
                values = np.array([row[key] for row in mine])
                row |= {key: values.mean(), f"{key}_se": standard_error(values)}
        summary.append(row | {key: mine[0][key] for key in ("run_s", "learn_s")})
    return summary
