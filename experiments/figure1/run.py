"""Compare kernel belief propagation with discrete, Gaussian, mixture and particle belief propagation: Figure 1 again.

Denoising of the sunset images as in section 7 of the paper, each method at the paper's settings and at settings tuned
on noise of their own, with the same number of trials: options are searched one after the other at a few numbers of gray
levels, and each image takes those of the nearest. Methods that take minutes for an image clean a part of it, and the
fast ones that part too, with options that were searched on it.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.denoising.data import add_noise
from experiments.figure1.methods import METHODS, Method, TrainingPair
from experiments.lib import command_line, datasets, gray_images, results, steps, tables
from experiments.lib.choices import Choices, add_use_argument
from experiments.lib.search import coordinate_search

PART = (slice(20, 60), slice(30, 70))
"""The part of an image that slow methods clean: 40 x 40 pixels, rings and the black below the horizon."""

SIZES = {"part": PART, "whole": (slice(None), slice(None))}
"""What is cleaned, by name; slow methods clean parts only."""

TUNED_AT = {"part": (10, 100), "whole": (10, 50, 100, 250)}
"""Numbers of gray levels at which options are searched."""

TRIALS = 20
"""Settings that are tried for each method, size and number of gray levels of `TUNED_AT`."""

EXTENSIONS = 2
"""How often the grid of an option is extended at each end, for fast methods."""

COLORS = ("#D55E00", "#8B3A00", "#0072B2", "#000000", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.figure1", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/figure1/results")
    add_use_argument(parser)
    levels = f"gray levels of the image, of {gray_images.SUNSET_LEVELS} (default: all; 10 if quick)"
    parser.add_argument("--levels", type=int, nargs="+", help=levels)
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="methods (default: all; the fast if quick)")
    parser.add_argument("--draws", type=int, help="noisy images to clean, of whole images (default: 10; 2 if quick)")
    parser.add_argument("--part-draws", type=int, default=3, help="the same of parts (default: 3)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    draws = (2 if args.quick else 10) if args.draws is None else args.draws
    for name, count in (("--draws", draws), ("--part-draws", args.part_draws)):
        if count < 1:
            raise ValueError(f"{name}: must be at least 1; got {count}. Ask for one or more noisy images.")
    levels = tuple(args.levels or ((10,) if args.quick else gray_images.SUNSET_LEVELS))
    names = args.methods or [name for name, method in METHODS.items() if not (args.quick and method.slow)]
    directory = datasets.data_directory(args.data)
    images = {count: gray_images.sunset(count, directory)[0].astype(np.float32) for count in levels}
    path = args.out / "figure1.json"
    choices = Choices(args.use)
    rows: list[dict[str, Any]] = []
    searches: list[dict[str, Any]] = []
    config = {**vars(args), "levels": levels, "methods": names, "draws": draws, "tuned_at": dict(TUNED_AT)}
    config |= {"part": [[cut.start, cut.stop] for cut in PART], "trials": TRIALS, "extensions": EXTENSIONS}
    for name in command_line.progress(names, "methods"):
        compile_once.cache_clear()
        jax.clear_caches()  # a process can only map so many programs
        method, best = METHODS[name], {}
        for size in () if args.quick and args.use is None else sizes_of(method):
            searched = [count for count in TUNED_AT[size] if count in levels] or levels[:1]
            at = searched if args.use is None else TUNED_AT[size]
            for count in command_line.progress(at, f"search {name}, {size}"):
                given = method, images.get(count), size, args.seed
                best[size, count], trials = choices.search(f"{size} {count}: {name}", search, *given)
                searches += [{"method": name, "image": size, "levels": count, **trial} for trial in trials]
        for count in command_line.progress(levels, name):
            tuned = {size: nearest(best, size, count) for size in sizes_of(method) if best}
            rows += steps.step(f"{name} {count}", measure, method, images[count], tuned, draws, args)
            results.write_results(path, config, rows, searches=searches, chosen=choices.chosen)
    results.save_figure(draw(rows), args.out / "figure1.png")
    tables.print_table(rows, [key for key in rows[0] if key not in ("options", "errors")])
    print("\nRMSE of gray values 0 .. 255, mean over the noisy images; run_s: seconds per image, after compilation.")
    print(f"Figures: {path}\nPicture: {args.out / 'figure1.png'}")


def training_pair_of(image: np.ndarray, seed: int) -> TrainingPair:
    """Return the training pair of all methods: the image and a noisy copy of it."""
    return TrainingPair(image, add_noise(np.random.default_rng([seed, 0]), image))


def sizes_of(method: Method) -> list[str]:
    """Return what a method cleans: parts, and whole images if it is fast."""
    return [size for size in SIZES if not (method.slow and size == "whole")]


def nearest(best: Mapping[tuple[str, int], dict[str, Any]], size: str, levels: int) -> dict[str, Any]:
    """Return the options searched for images of a size at the nearest number of gray levels."""
    return best[min((key for key in best if key[0] == size), key=lambda key: abs(key[1] - levels))]


def search(
    method: Method, image: np.ndarray, size: str, seed: int, trials: int = TRIALS
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the best options of a coordinate search on a separate noisy image, and all trials."""
    training_pair, target = training_pair_of(image, seed), image[SIZES[size]]
    noisy = add_noise(np.random.default_rng([seed, 1]), target)[None]
    estimates: list[str] = []

    def loss(options: dict[str, Any]) -> float:
        errors = clean(method, training_pair, target, noisy, options, warm_up=False)[0]
        error, estimate = min((float(errors[key][0]), key) for key in ("mode", "mean"))
        estimates.append(estimate)
        return error

    extensions = 0 if method.slow else EXTENSIONS
    best, tried = coordinate_search(
        {**method.paper, **method.start}, method.search, loss, budget=trials, extensions=extensions
    )
    records = [
        {"option": trial.option, "value": str(trial.value), "estimate": estimate, "rmse": trial.loss}
        for trial, estimate in zip(tried, estimates, strict=True)
    ]
    lowest = min(range(len(tried)), key=lambda i: tried[i].loss)
    return {**best, "estimate": estimates[lowest]}, records


def measure(
    method: Method, image: np.ndarray, tuned: Mapping[str, Mapping[str, Any]], draws: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return flat records of both settings, the paper's and those tuned for each size, on parts and whole images."""
    training_pair = training_pair_of(image, args.seed)
    rng = np.random.default_rng([args.seed, 2])
    counts = {"part": args.part_draws, "whole": draws}
    noisy = {size: np.stack([add_noise(rng, image[cut]) for _ in range(counts[size])]) for size, cut in SIZES.items()}
    rows = []
    for setting in ("paper", "tuned"):
        for size in sizes_of(method):
            options = {**method.paper, "estimate": "mode"} if setting == "paper" else tuned.get(size)
            if options is None:
                continue
            warm_up = not method.slow or counts[size] == 1  # else the fastest image tells the seconds
            given = training_pair, image[SIZES[size]], noisy[size], options
            errors, learn_s, compile_s, run_s = clean(method, *given, warm_up=warm_up)
            record = {"method": method.name, "setting": setting, "levels": len(training_pair.gray), "image": size}
            record |= {"draws": len(noisy[size]), "iters": options["num_iters"], "estimate": options["estimate"]}
            means = {key: float(np.sqrt(np.mean(each**2))) for key, each in errors.items()}
            record |= {"rmse": means[options["estimate"]], "rmse_mode": means["mode"], "rmse_mean": means["mean"]}
            record |= {"errors": " ".join(f"{error:.4f}" for error in errors[options["estimate"]])}
            record |= {"learn_s": learn_s, "compile_s": compile_s, "run_s": run_s}
            rows.append({**record, "options": ", ".join(f"{name} {value}" for name, value in options.items())})
    return rows


def clean(
    method: Method,
    training_pair: TrainingPair,
    target: np.ndarray,
    noisy: np.ndarray,
    options: Mapping[str, Any],
    *,
    warm_up: bool,
) -> tuple[dict[str, np.ndarray], float, float, float]:
    """Learn, and clean noisy images, the first of them twice with `warm_up`, so that no seconds contain compilation.

    Returns:
        RMSE of modes and of means of each image, and seconds to learn, to compile, and for an image.
    """
    start = time.perf_counter()
    model = jax.block_until_ready(method.learn(training_pair, options))
    learn_s = time.perf_counter() - start
    compiled = compile_once(method, target.shape, tuple(sorted((k, v) for k, v in options.items() if k != "estimate")))
    images, keys = jnp.asarray(noisy.reshape(len(noisy), -1)), jax.random.split(jax.random.key(1), len(noisy))
    gray, estimates, seconds = jnp.asarray(training_pair.gray), [], []
    start = time.perf_counter()
    if warm_up:
        compiled(model, images[0], keys[0], gray)
    compile_s = time.perf_counter() - start
    for y, key in zip(images, keys, strict=True):
        start = time.perf_counter()
        estimates.append([np.asarray(beliefs) for beliefs in compiled(model, y, key, gray)])
        seconds.append(time.perf_counter() - start)
    modes, means = map(np.stack, zip(*estimates, strict=True))
    truth = target.reshape(1, -1)
    errors = {name: np.sqrt(np.mean((x - truth) ** 2, axis=1)) for name, x in (("mode", modes), ("mean", means))}
    return errors, learn_s, compile_s, min(seconds) if method.slow else statistics.median(seconds)


@functools.cache
def compile_once(method: Method, shape: tuple[int, int], options: tuple[tuple[str, Any], ...]) -> Any:
    """Return a function from a model, an image, a key and gray levels to modes and means.

    Models and gray levels are arguments, so that nothing is compiled anew for each image that is learned from.
    """
    graph, chosen = kbp.grid_graph(*shape), dict(options)
    solve = jax.jit(lambda model, y, key: method.solve(model, graph, chosen, y, key))

    @jax.jit
    def beliefs(model: Any, y: jax.Array, solution: Any, gray: jax.Array) -> tuple[jax.Array, jax.Array]:
        belief = method.beliefs(model, graph, y, solution, gray)
        return kbp.mode(belief), kbp.mean(belief)

    return lambda model, y, key, gray: jax.block_until_ready(beliefs(model, y, solve(model, y, key), gray))


def draw(rows: list[dict[str, Any]]) -> Any:
    """Draw RMSE and time against gray levels, whole images and parts in panels of their own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    titles = {"whole": "whole images (100 x 100), ten draws", "part": "parts (40 x 40), three draws, all methods"}
    for column, size in zip(panels.T, titles, strict=True):
        for name, color in zip(METHODS, COLORS, strict=True):
            for setting, style in (("paper", "-"), ("tuned", "--")):
                mine = [row for row in rows if (row["method"], row["setting"], row["image"]) == (name, setting, size)]
                if mine:
                    look = {"color": color, "linestyle": style, "marker": "o", "markersize": 4}
                    look["label"] = name if setting == "paper" else None
                    for panel, key in zip(column, ("rmse", "run_s"), strict=True):
                        panel.plot([row["levels"] for row in mine], [row[key] for row in mine], **look)
        column[0].set_title(titles[size], fontsize=11)
        column[0].legend(fontsize=9, loc="upper right")
        column[1].set(xlabel="gray levels in the image", yscale="log")
        for panel in column:
            panel.grid(alpha=0.3)
    panels[0, 0].set(ylabel="RMSE (gray levels), lower is better", ylim=(0, None))
    panels[1, 0].set(ylabel="seconds per image, lower is better")
    figure.supxlabel("solid: the paper's settings; dashed: tuned", fontsize=10)
    return figure
