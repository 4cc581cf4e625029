"""Denoise images with learned bandwidths: and compare with total variation, non-local means and BM3D.

The task of `experiments.denoising`: learn from one image and a noisy copy, clean new noisy images. Bandwidths, ridges
and the rest are learned by `kbpjax.tune` on fresh noise over the training image; test noise is never seen. Answers are
those of messages that have converged; the ablation has iterations that are stopped early.
The baselines are given the standard deviation of the noise, and their options are tuned on a noisy copy of the training
image. Kernel belief propagation is trained with noise of the same standard deviation.

This is part (a), with the sunset images of the paper. Part (b) is `experiments.learned_bandwidths.photographs`.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import kbpjax as kbp
from experiments.denoising.data import SIGMA, add_noise
from experiments.denoising.models import rmse
from experiments.learned_bandwidths import baselines, figure, photographs
from experiments.learned_bandwidths.records import numbers_of
from experiments.lib import command_line, datasets, gray_images, results, steps, tables
from experiments.lib.datasets import evenly

COPIES = 12
"""Noisy copies of the training image from which the operators of the observations are learned."""

HELD_OUT = 4
"""Further noisy copies, on which the learned hyperparameters are compared with those of the start."""

PLACES = {"tv": "total variation", "nlm": "non-local means", "bm3d": "BM3D"}


@dataclasses.dataclass(frozen=True)
class AblationStep:
    """One row of the ablation: hyperparameters that are learned, in addition to those of the row before."""

    name: str
    iters: int
    frozen: Callable[[kbp.Hyperparameters], Any]
    separate_types: bool = False
    exponents: bool = False


ABLATION = (
    AblationStep(
        "bandwidths",
        6,
        lambda s: (s.ridge, s.obs_ridge, s.floor, s.damping, s.evidence_power, s.temperature),
    ),
    AblationStep("ridges, floor, damping, temperature", 6, lambda s: s.evidence_power),
    AblationStep("power of the evidence", 6, lambda s: ()),
    AblationStep("rows and columns apart", 6, lambda s: (), separate_types=True),
    AblationStep("exponents", 6, lambda s: (), separate_types=True, exponents=True),
    AblationStep("12 iterations", 12, lambda s: (), separate_types=True, exponents=True),
)
"""Plain messages that are stopped early. "Learned" elsewhere: messages of `infer`, which have converged."""


@dataclasses.dataclass(frozen=True)
class Task:
    """An image to learn from with noisy copies [copy, h, w], and candidates of the beliefs, as kbpjax takes them."""

    name: str
    image: np.ndarray
    copies: np.ndarray
    points: np.ndarray

    @property
    def noisy(self) -> np.ndarray:
        """The first noisy copy."""
        return self.copies[0]

    def graph(self, separate_types: bool) -> kbp.Graph:
        """Return the grid, with edge type 0 in rows, and 1 in columns if `separate_types`."""
        height, width = self.image.shape
        across = height * (width - 1)
        edge_type = np.repeat([0, int(separate_types)], [across, (height - 1) * width])
        return kbp.grid_graph(height, width, edge_type=edge_type)

    def training(self, separate_types: bool) -> kbp.TrainingData:
        """Return the training data of the image and its first noisy copy."""
        return kbp.pool(self.graph(separate_types), self.image.reshape(1, -1), self.noisy.reshape(1, -1))

    def training_of_copies(self) -> kbp.TrainingData:
        """Return the training data of the image and all its noisy copies; pairs of neighbors are the same in all."""
        one, copies = self.training(separate_types=False), self.copies.reshape(len(self.copies), -1)
        observed = np.broadcast_to(self.image.ravel(), copies.shape)
        observations = {0: (observed.ravel(), copies.ravel())}
        return kbp.TrainingData(one.edges, one.nodes, observations, degrees=dict(one.degrees))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.learned_bandwidths", description=(__doc__ or "").split("\n")[0]
    )
    command_line.add_common_arguments(parser, "experiments/learned_bandwidths/results")
    whole = gray_images.SUNSET_LEVELS
    parser.add_argument("--levels", type=int, nargs="+", help=f"gray levels, of {whole} (default: all; 10 if quick)")
    parser.add_argument("--draws", type=int, help="noisy images to clean (default: 10; 2 if quick)")
    about = "gradient steps of the ablation, a sixth of them otherwise (default: 60; 3 if quick)"
    parser.add_argument("--steps", type=int, help=about)
    parts = ("sunset", "photographs")
    parser.add_argument("--part", nargs="+", choices=parts, default=parts, help="parts to run (default: both)")
    parser.add_argument(
        "--noise", type=float, nargs="+", help="noise of the photographs (default: 15 30 50; 30 if quick)"
    )
    parser.add_argument("--use", type=Path, metavar="JSON", help="photographs.json with the options; no new search")
    parser.add_argument("--image", type=Path, metavar="FILE", help="a noisy picture to clean, at the last --noise")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the parts of the experiment."""
    if "photographs" not in args.part and (args.image or args.use or args.noise):
        raise ValueError("--image, --use, --noise: belong to the photographs; got another part. Add it to --part.")
    if "sunset" in args.part:
        run_sunset(args)
    if "photographs" in args.part:
        photographs.run(args)


def run_sunset(args: argparse.Namespace) -> None:
    """Run part (a): tables on standard output, a JSON file and a PNG file in `args.out`."""
    quick = {"levels": [10], "draws": 2, "steps": 3}
    whole = {"levels": list(gray_images.SUNSET_LEVELS), "draws": 10, "steps": 60}
    for key, value in (quick if args.quick else whole).items():
        setattr(args, key, value if getattr(args, key) is None else getattr(args, key))
    for key in ("draws", "steps"):
        if getattr(args, key) < 1:
            raise ValueError(f"--{key}: must be at least 1; got {getattr(args, key)}. Ask for one or more.")
    directory = datasets.data_directory(args.data)
    images = {count: gray_images.sunset(count, directory)[0].astype(np.float32) for count in args.levels}
    if args.quick:
        images = {count: image[30:54, 30:54] for count, image in images.items()}
    rows, pictures = [], {}
    for count in command_line.progress(args.levels, "levels"):
        found, shown, learned = compare(images[count], f"sunset {count}", args)
        rows += found
        if count == _nearest(args.levels, 100):
            pictures["sunset"] = shown
            rows += ablation(images[count], f"sunset {count}", args)
            rows += transfer(learned, images, count, args)
    report(args, rows, pictures)


def _nearest(counts: list[int], wanted: int) -> int:
    return min(counts, key=lambda count: abs(count - wanted))


def report(args: argparse.Namespace, rows: list[dict], pictures: dict[str, Any]) -> None:
    """Write JSON and PNG, print the tables and where they are."""
    path, image = args.out / "learned_bandwidths.json", args.out / "learned_bandwidths.png"
    results.write_results(path, {**vars(args), "sigma": SIGMA}, rows)
    results.save_figure(figure.draw(rows, pictures), image)
    for study in dict.fromkeys(row["study"] for row in rows):
        shown = ["image", "method", "rmse_mean", "rmse_mode", "cover90", "converged", "run_s", "learn_s"]
        print(f"\n{study}")
        tables.print_table([row for row in rows if row["study"] == study], shown)
    print(f"\nRMSE of gray values 0 .. 255, mean over {args.draws} noisy images; cover90: share of pixels inside their")
    print("90 % interval; converged: share of images whose messages did;")
    print("run_s: seconds per image, after compilation; learn_s: seconds to learn or to choose options.")
    print(f"Figures: {path}\nPicture: {image}")


def task_of(image: np.ndarray, name: str, seed: int) -> Task:
    """Make the training task of an image; candidates are its gray levels."""
    rng = np.random.default_rng([seed, 0])
    copies = np.stack([add_noise(rng, image) for _ in range(COPIES)])
    return Task(name, image, copies, np.unique(image).astype(np.float32))


def tests_of(image: np.ndarray, args: argparse.Namespace) -> np.ndarray:
    """Draw noisy images for the test [draw, h, w], of other random numbers than any that are learned from."""
    rng = np.random.default_rng([args.seed, 1])
    return np.stack([add_noise(rng, image) for _ in range(args.draws)])


def rule_of(task: Task) -> kbp.ConstantTime:
    """Return the rule: no more landmarks than gray levels."""
    count = len(np.unique(task.image))
    return kbp.ConstantTime(eps=1e-3, max_rank=min(30, count), tensor_rank=min(40, count))


def authors(task: Task) -> kbp.Hyperparameters:
    """Return the settings of the authors' program, as in `experiments.denoising`."""
    pairs = len(task.training(separate_types=False).edges[0][0])
    return kbp.Hyperparameters(
        kbp.RBF(kbp.median_bandwidth(evenly(task.image.ravel()))),
        kbp.RBF(0.5**0.5 * kbp.median_bandwidth(evenly(task.noisy.ravel()))),
        ridge=1e-2 / pairs,
        floor=1e-6,
        damping=0.8,
        rule=kbp.ConstantTime(eps=1e-2),
        schedule=kbp.Synchronous(),
        num_iters=30,
        tol=None,
    )


def start(task: Task, ablation_step: AblationStep) -> kbp.Hyperparameters:
    """Return the settings to learn from: a quarter of the median bandwidth, and of that of observations about half."""
    training = task.training(ablation_step.separate_types)
    ridge = 1 / sum(len(first) for first, _ in training.edges.values())
    return kbp.Hyperparameters(
        kbp.RBF(0.25 * kbp.median_bandwidth(evenly(task.image.ravel()))),
        kbp.RBF(0.5**1.5 * kbp.median_bandwidth(evenly(task.noisy.ravel()))),
        ridge=dict.fromkeys(training.edges, ridge),
        obs_ridge=ridge,
        exponents=dict.fromkeys(training.edges, 0.8) if ablation_step.exponents else None,
        damping=0.2,
        rule=rule_of(task),
        schedule=kbp.Synchronous(),
        num_iters=ablation_step.iters,
        tol=None,
    )


def learn_early(task: Task, ablation_step: AblationStep, args: argparse.Namespace) -> tuple[kbp.Tuned, float]:
    """Learn settings of a row of the ablation; return them with the seconds that it took."""
    options = {"frozen": ablation_step.frozen, "steps": args.steps, "every": min(15, args.steps)}
    options |= {"optimizer": optax.adam(optax.cosine_decay_schedule(0.1, args.steps, alpha=0.1))}
    settings, name = start(task, ablation_step), f"{task.name}, {ablation_step.name}"
    graph, data = task.graph(ablation_step.separate_types), task.training(ablation_step.separate_types)
    return steps.step(f"learn {name}", _learn, task, settings, graph, data, options, args, name)


def learn(task: Task, args: argparse.Namespace) -> tuple[kbp.Tuned, float]:
    """Learn settings for messages that converge; return them with the seconds that it took.

    The kernels are narrow at the start: the training image is the one to clean, and operators of narrow kernels
    remember more of it. Steps are taken at messages with a residual of 1e-2, answers are given at 1e-3. A few long
    steps suffice; whether they have improved on the start is decided on several noisy copies.
    """
    count, truth = -(-args.steps // 6), task.image.reshape(1, -1)
    rng = np.random.default_rng([args.seed, 3])
    held_out = np.concatenate([add_noise(rng, truth) for _ in range(HELD_OUT)])
    settings = kbp.Hyperparameters(
        kbp.RBF(0.05 * kbp.median_bandwidth(evenly(task.image.ravel()))),
        kbp.RBF(0.2 * kbp.median_bandwidth(evenly(task.noisy.ravel()))),
        ridge=1e-4,
        floor=1e-6,
        evidence_power=2.0,
        temperature=0.5,
        rule=kbp.ConstantTime(eps=1e-3, max_rank=128),
        tol=1e-2,
    )
    options = {"loss": kbp.CRPS(), "steps": count, "every": count}
    options |= {"validation": (np.repeat(truth, HELD_OUT, axis=0), held_out)}
    options |= {"optimizer": optax.adam(optax.cosine_decay_schedule(0.2, count, alpha=0.1))}
    name, graph, data = f"{task.name}, converged", task.graph(separate_types=False), task.training_of_copies()
    tuned, seconds = steps.step(f"learn {name}", _learn, task, settings, graph, data, options, args, name)
    answered = dataclasses.replace(tuned.hyperparameters, tol=1e-3, num_iters=400)
    return dataclasses.replace(tuned, hyperparameters=answered), seconds


def _learn(
    task: Task,
    settings: kbp.Hyperparameters,
    graph: kbp.Graph,
    data: kbp.TrainingData,
    options: dict[str, Any],
    args: argparse.Namespace,
    name: str,
) -> tuple[kbp.Tuned, float]:
    """Learn settings on fresh noise over the training image; return them with the seconds that it took."""
    begin, truth = time.perf_counter(), jnp.asarray(task.image.reshape(1, -1))

    def observations(key: jax.Array) -> jax.Array:
        return truth + SIGMA * jax.random.normal(key, truth.shape, truth.dtype)

    tuned = kbp.tune(
        settings,
        data,
        graph,
        truth,
        observations,
        task.points,
        key=jax.random.key(args.seed),
        checkpoint=steps.path(f"tune {name}", ".npz"),
        **options,
    )
    if tuned.stopped == "interrupted":
        raise KeyboardInterrupt
    return tuned, time.perf_counter() - begin


def by_kbp(
    settings: kbp.Hyperparameters, model: kbp.KernelMRF, graph: kbp.Graph, points: np.ndarray, noisy: np.ndarray
) -> tuple[dict, np.ndarray, np.ndarray]:
    """Clean noisy images one by one; return answers and seconds, and the first mean and standard deviation."""

    @jax.jit
    def clean(y: jax.Array) -> tuple[jax.Array, ...]:
        evidence = settings.observe(model, graph, y)
        solution = settings.run(model, graph, evidence)
        belief = kbp.beliefs(model, graph, evidence, solution, points, temperature=settings.temperature)
        estimates = kbp.mean(belief), kbp.mode(belief), *kbp.interval(belief, 0.9), kbp.std(belief)
        return *estimates, solution.converged

    flat = jnp.asarray(noisy.reshape(len(noisy), -1))
    jax.block_until_ready(clean(flat[0]))
    answers, seconds = [], []
    for y in flat:
        begin = time.perf_counter()
        answers.append(jax.block_until_ready(clean(y)))
        seconds.append(time.perf_counter() - begin)
    mean, mode, low, high, deviation, converged = (np.stack(column) for column in zip(*answers, strict=True))
    found = {"mean": mean, "mode": mode, "low": low, "high": high, "run_s": statistics.median(seconds)}
    found["converged"] = None if settings.tol is None else float(converged.mean())  # None: stopped early
    return found, mean[0].reshape(noisy.shape[1:]), deviation[0].reshape(noisy.shape[1:])


def row_of(study: str, image: str, method: str, found: dict, truth: np.ndarray, learn_s: float, **more: Any) -> dict:
    """Make a flat record of what a method did."""
    flat = truth.reshape(1, -1)
    row = {"study": study, "image": image, "method": method, "rmse_mean": rmse(found["mean"], flat)}
    if "mode" in found:
        inside = (found["low"] <= flat) & (flat <= found["high"])
        row |= {"rmse_mode": rmse(found["mode"], flat), "cover90": float(np.mean(inside))}
        row["converged"] = found["converged"]
    return {**row, "run_s": found["run_s"], "learn_s": learn_s, **more}


def by_baselines(name: str, image: np.ndarray, args: argparse.Namespace) -> Any:
    """Tune the baselines on a noisy copy of an image, and clean the test images with them."""
    copy = add_noise(np.random.default_rng([args.seed, 2]), image)
    noisy, rows, pictures, tuned = tests_of(image, args), [], {}, {}
    for key, search in baselines.SEARCHES.items():
        search = dataclasses.replace(search, stages=(), steps=()) if args.quick else search
        begin = steps.clock()
        given = partial(baselines.tune_denoisers, image, [copy], searches={key: search})
        tuned |= steps.step(f"{key} of {name}", given, classes=(baselines.Denoiser,))
        if key in tuned:
            learn_s = steps.clock() - begin
            found, pictures[PLACES[key]] = _with_denoiser(tuned[key], noisy)
            options = {f"option {option}": value for option, value in tuned[key].options.items()}
            rows.append(row_of("sunset", name, PLACES[key], found, image, learn_s, **options))
    return rows, pictures, tuned


def _with_denoiser(denoiser: baselines.Denoiser, noisy: np.ndarray) -> tuple[dict, np.ndarray]:
    seconds, cleaned = [], []
    for image in noisy:
        begin = time.perf_counter()
        cleaned.append(denoiser(image))
        seconds.append(time.perf_counter() - begin)
    return {"mean": np.stack(cleaned).reshape(len(noisy), -1), "run_s": statistics.median(seconds)}, cleaned[0]


def compare(image: np.ndarray, name: str, args: argparse.Namespace) -> tuple[list, dict, Any]:
    """Compare three ways to choose hyperparameters with the baselines on a sunset image."""
    task, ablation_step, noisy = task_of(image, name, args.seed), ABLATION[-1], tests_of(image, args)
    training = task.training(ablation_step.separate_types)
    variants: dict[str, Any] = {"authors' bandwidths": (authors(task), None, 0.0)}
    begin = steps.clock()
    plain = dataclasses.replace(start(task, ablation_step), exponents=None)
    variants["leave-one-out"] = (
        steps.step(f"select {task.name}", partial(kbp.select, plain, training, steps=min(40, args.steps))),
        None,
        steps.clock() - begin,
    )
    tuned, seconds = learn(task, args)
    variants["learned"] = (tuned.hyperparameters, tuned.model, seconds)
    rows, pictures = [], {"clean": image, "noisy": noisy[0]}
    for method, (settings, model, learn_s) in variants.items():
        split = method == "leave-one-out"
        graph, model = task.graph(split), model or settings.fit(task.training(split))
        found, mean, deviation = by_kbp(settings, model, graph, task.points, noisy)
        rows.append(row_of("sunset", name, method, found, image, learn_s, **numbers_of(settings)))
        pictures |= {method: mean, f"{method}, deviation": deviation}
    more, others, tuned_denoisers = by_baselines(name, image, args)
    return rows + more, pictures | others, (tuned, tuned_denoisers)


def ablation(image: np.ndarray, name: str, args: argparse.Namespace) -> list[dict]:
    """Return the rows of the ablation."""
    task, noisy, rows = task_of(image, name, args.seed), tests_of(image, args), []
    for ablation_step in command_line.progress(ABLATION[:1] if args.quick else ABLATION, "levers"):
        tuned, seconds = learn_early(task, ablation_step, args)
        graph = task.graph(ablation_step.separate_types)
        found, *_ = by_kbp(tuned.hyperparameters, tuned.model, graph, task.points, noisy)
        rows.append(
            row_of("levers", name, ablation_step.name, found, image, seconds, **numbers_of(tuned.hyperparameters))
        )
    return rows


def transfer(learned: Any, images: dict[int, np.ndarray], count: int, args: argparse.Namespace) -> list[dict]:
    """Return rows for images with other levels and for the rotated image, with the model learned on one image."""
    tuned, others = learned
    image = images[count]
    task, size = task_of(image, "", args.seed), len(image)
    tests = {f"sunset {count} turned": np.rot90(image).copy(), "sunset 60": gray_images.rings(60)}
    tests["sunset 250"] = gray_images.sunset(250, datasets.data_directory(args.data))[0]
    rows = []
    for name, test in tests.items():
        test = test.astype(np.float32) if len(test) == size else test[30:54, 30:54].astype(np.float32)
        noisy = tests_of(test, args)
        found, *_ = by_kbp(tuned.hyperparameters, tuned.model, task.graph(separate_types=False), task.points, noisy)
        rows.append(row_of("transfer", name, f"learned on sunset {count}", found, test, 0.0))
        for key, denoiser in others.items():
            rows.append(row_of("transfer", name, PLACES[key], _with_denoiser(denoiser, noisy)[0], test, 0.0))
    return rows
