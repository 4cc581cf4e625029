"""Denoise images: learn a kernel Markov random field from one image and a noisy copy of it, clean new noisy images.

The main experiment of the paper (Song et al. 2011, section 7, Figure 1): gray images, Gaussian noise of standard
deviation 30, a four-neighbor grid with an observation at each pixel, all operators and the likelihood learned from one
image pair.

On the sunset images the training image is the test image, as in the paper: only the noise is new. That replicates the
paper and is no test on unseen images. The problem `circles` learns from one drawing and cleans another one.

Settings `paper` and `narrow` run 30 iterations of plain belief propagation, which does not converge. `convergent` runs
tree-reweighted messages of nonnegative operators to a fixed point and raises an error if it finds none. A quick run
(`make demo`) cleans `circles` with the setting `automatic`: `kbpjax.fit` and `kbpjax.infer` without options.
"""

import argparse
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.denoising import figure
from experiments.denoising.data import Problem, add_noise, read_problems
from experiments.denoising.models import (
    ALL_SETTINGS,
    AUTOMATIC,
    COVERAGES,
    Setting,
    calibrate,
    infer,
    learn,
    learn_automatically,
    loop_options,
    rmse,
)
from experiments.lib import command_line, gray_images, results, steps, tables, timing


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.denoising", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/denoising/results")
    add = parser.add_argument
    levels = (
        f"gray levels of the sunset image, of {gray_images.SUNSET_LEVELS} (default: all, and circles; circles if quick)"
    )
    add("--levels", type=int, nargs="+", help=levels)
    add(
        "--settings",
        nargs="+",
        choices=[AUTOMATIC, *ALL_SETTINGS],
        help="default: all but automatic; automatic if quick",
    )
    add("--draws", type=int, help="noisy images to clean (default: 10; 3 if quick)")
    add("--iters", type=int, default=30, help="iterations of paper and narrow (default: 30)")
    add("--damping", type=float, help="weight of the old message (default: 0.8 paper, 0.2 narrow, 0 convergent)")
    add("--bandwidth", type=float, help="of the gray levels, in gray levels (default: the setting's)")
    add("--obs-bandwidth", type=float, help="of the noisy gray levels (default: the setting's)")
    add("--ridge", type=float, help="lambda; it multiplies the number of pairs (default: the setting's)")
    add("--eps", type=float, default=1e-2, help="residual norm of the landmarks (default: 0.01)")
    add("--image", type=Path, help="PNG or JPEG to learn from and to clean, instead of the sunset")
    add("--train", type=Path, help="PNG or JPEG to learn from; with --test")
    add("--test", type=Path, help="PNG or JPEG to clean; with --train")
    add("--size", type=int, default=200, help="maximum pixels per side; larger images are reduced (default: 200)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    draws = (3 if args.quick else 10) if args.draws is None else args.draws
    if draws < 1:
        raise ValueError(f"--draws: must be at least 1; got {draws}. Ask for one or more noisy images.")
    by_hand = {"bandwidth": args.bandwidth, "obs_bandwidth": args.obs_bandwidth, "ridge": args.ridge}
    if args.settings is None and any(value is not None for value in (*by_hand.values(), args.damping)):
        args.settings = list(ALL_SETTINGS)  # automatic has no such option
    args.settings = list(dict.fromkeys(args.settings or ([AUTOMATIC] if args.quick else ALL_SETTINGS)))
    problems, source = read_problems(args)
    jobs = [(problem, name) for problem in problems for name in args.settings]
    rows, pictures = [], []
    for problem, name in command_line.progress(jobs, "denoising"):
        given = {} if args.damping is None else {"damping": args.damping}
        setting = None if name == AUTOMATIC else dataclasses.replace(ALL_SETTINGS[name], **given)
        row, picture = steps.step(f"{problem.name}, {name}", denoise, problem, setting, draws, args)
        rows.append({"image": problem.name, "setting": name, **row})
        pictures.append(picture)
    report(args, draws, source, rows, pictures)


def report(args: argparse.Namespace, draws: int, source: str, rows: list[dict], pictures: list[dict]) -> None:
    """Write JSON and PNG, print the table and where they are."""
    path, image = args.out / "denoising.json", args.out / "denoising.png"
    settings = {name: dataclasses.asdict(ALL_SETTINGS[name]) for name in args.settings if name in ALL_SETTINGS}
    config = {**vars(args), "draws": draws, "source": source, "settings": settings}
    curves = {key: [picture[key] for picture in pictures] for key in ("residuals", "coverages")}
    results.write_results(path, config, rows, nominal=COVERAGES, **curves)
    results.save_figure(figure.draw(rows, pictures), image)
    shown = ["image", "setting", "rank", "products", "noisy", "rmse_mode", "rmse_mean", "cover90", "temperature"]
    tables.print_table(rows, [*shown, "converged", "iterations", "residual", "fit_s", "compile_s", "run_s"])
    print(f"\nRMSE of gray values 0 .. 255, mean over {draws} noisy images ({source}).")
    print("cover90: share of pixels inside their 90 % interval; 0.90 is right, more means that intervals are too wide.")
    print("residual: largest change of a message in an iteration; it falls below the tolerance if messages converge.")
    print("converged, iterations, residual: of the worst noisy image. run_s: seconds for all noisy images in one call.")
    print(f"Figures: {path}\nPicture: {image}")


def denoise(problem: Problem, setting: Setting | None, draws: int, args: argparse.Namespace) -> tuple[dict, dict]:
    """Learn from one pair, clean `draws` noisy images in one call; return a flat record and what the figure shows.

    Without a setting, `kbpjax.fit` and `kbpjax.infer` choose everything.
    """
    rng = np.random.default_rng(args.seed)
    train, clean = (image.astype(np.float32) for image in (problem.train, problem.test))
    first = add_noise(rng, train)
    noisy = np.stack([add_noise(rng, clean) for _ in range(draws)]).reshape(draws, -1)
    graph = kbp.grid_graph(*clean.shape)
    if setting is None:
        model, record = learn_automatically(train, first)
        temperature, damping = float(cast(Any, model.hyperparameters).temperature), 0.0

        def automatic(model, y):
            found = kbp.infer(model, graph, y)
            return found.belief, found.solution

        posterior = automatic
    else:
        model, record = learn(train, first, setting, args, kbp.Clipped() if setting.convergent else None)
        gray_levels = np.unique(train)
        again = jnp.asarray(add_noise(rng, train).reshape(-1))
        temperature = calibrate(model, train, again, setting, gray_levels) if setting.convergent else 1.0
        options, damping = loop_options(graph, setting, args.iters), setting.damping

        def by_hand(model, y):
            belief, solution = infer(model, graph, y, gray_levels, options)
            return kbp.temper(belief, temperature), solution

        posterior = by_hand

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def clean_up(model, y):
        belief, solution = posterior(model, y)
        ends = jnp.stack([jnp.stack(kbp.interval(belief, share)) for share in COVERAGES])
        return kbp.mode(belief), kbp.mean(belief), kbp.std(belief), ends, solution

    (*estimates, solution), first_s, run_s = timing.timed(partial(clean_up, model), jnp.asarray(noisy))
    if setting is None or setting.convergent:
        kbp.check(solution)
    mode, mean, deviation, ends = map(np.asarray, estimates)
    truth = clean.reshape(1, -1)
    inside = (ends[:, :, 0] <= truth[:, None]) & (truth[:, None] <= ends[:, :, 1])
    coverages = inside.mean(axis=(0, 2)).tolist()
    residuals = np.nanmax(np.asarray(solution.residuals), axis=0, initial=0)[: int(jnp.max(solution.num_iters))]
    row = {
        "levels": len(np.unique(clean)),
        **dict(zip(("rank", "products"), model.ranks[0], strict=True)),
        "noisy": rmse(noisy, truth),
        "rmse_mode": rmse(mode, truth),
        "rmse_mean": rmse(mean, truth),
        "cover90": coverages[COVERAGES.index(0.9)],
        "temperature": temperature,
        "damping": damping,
        "converged": bool(jnp.all(solution.converged)),
        "iterations": len(residuals),
        "residual": float(residuals[-1]),
        "fit_s": record.pop("fit_s"),
        "compile_s": max(first_s - run_s, 0.0),
        "run_s": run_s,
        **record,
    }
    images = [train, *(image.reshape(clean.shape) for image in (clean, noisy[0], mean[0], deviation[0]))]
    return row, {"images": images, "residuals": residuals.tolist(), "coverages": coverages}
