"""Denoise images: learn a kernel Markov random field from one image and a noisy copy of it, clean new noisy images.

The main experiment of the paper (Song et al. 2011, section 7, Figure 1): grey images, Gaussian noise of standard
deviation 30, a four-neighbour grid with an observation at each pixel, all operators and the likelihood learned from one
image pair.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments import _harness, data

SIGMA = 30.0
"""Standard deviation of the noise, in grey levels of 0 .. 255."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Choices relative to the data: bandwidths in medians of the pairwise distances, the ridge as lambda m."""

    bandwidth: float
    obs_bandwidth: float
    ridge_m: float
    damping: float


SETTINGS = {
    # The authors' program: exp(-0.5 d^2 / median^2) on grey levels, exp(-d^2 / median^2) on observations.
    "paper": Setting(bandwidth=1.0, obs_bandwidth=0.5**0.5, ridge_m=1e-2, damping=0.8),
    # A quarter of the bandwidth resolves single grey levels, half the other sharpens the likelihood.
    "narrow": Setting(bandwidth=0.25, obs_bandwidth=0.5**1.5, ridge_m=1.0, damping=0.2),
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """One image to learn from and one to clean, grey values 0 .. 255."""

    name: str
    train: np.ndarray
    test: np.ndarray


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.denoising", description=(__doc__ or "").split("\n")[0])
    _harness.add_common_arguments(parser)
    whole = data.SUNSET_LEVELS
    parser.add_argument(
        "--levels",
        type=int,
        nargs="+",
        help=f"grey levels of the sunset image, of {whole} (default: all; 10 100 if quick)",
    )
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="bandwidths and ridge")
    parser.add_argument("--draws", type=int, help="noisy images to clean (default: 10; 3 if quick)")
    parser.add_argument("--iters", type=int, default=30, help="iterations of belief propagation (default: 30)")
    parser.add_argument("--damping", type=float, help="weight of the old message (default: 0.8 paper, 0.2 narrow)")
    parser.add_argument("--bandwidth", type=float, help="of the grey levels, in grey levels (default: the setting's)")
    parser.add_argument("--obs-bandwidth", type=float, help="of the noisy grey levels (default: the setting's)")
    parser.add_argument(
        "--ridge", type=float, help="lambda; it multiplies the number of pairs (default: the setting's)"
    )
    parser.add_argument("--eps", type=float, default=1e-2, help="residual norm of the landmarks (default: 0.01)")
    parser.add_argument("--image", type=Path, help="PNG or JPEG to learn from and to clean, instead of the sunset")
    parser.add_argument("--train", type=Path, help="PNG or JPEG to learn from; with --test")
    parser.add_argument("--test", type=Path, help="PNG or JPEG to clean; with --train")
    parser.add_argument(
        "--size", type=int, default=200, help="most pixels a side; larger images are reduced (default: 200)"
    )
    return _harness.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    draws = (3 if args.quick else 10) if args.draws is None else args.draws
    if draws < 1:
        raise ValueError(f"--draws: must be at least 1; got {draws}. Ask for one or more noisy images.")
    problems, source = read_problems(args)
    jobs = [(problem, name) for problem in problems for name in dict.fromkeys(args.settings)]
    rows, pictures = [], []
    for problem, name in _harness.progress(jobs, "denoising"):
        setting = dataclasses.replace(SETTINGS[name], **({} if args.damping is None else {"damping": args.damping}))
        row, picture = denoise(problem, setting, draws, args)
        rows.append({"image": problem.name, "setting": name, **row})
        pictures.append(picture)
    report(args, draws, source, rows, pictures)


def report(args: argparse.Namespace, draws: int, source: str, rows: list[dict], pictures: list[dict]) -> None:
    """Write JSON and PNG, print the table and where they are."""
    path, image = args.out / "denoising.json", args.out / "denoising.png"
    settings = {name: dataclasses.asdict(SETTINGS[name]) for name in args.settings}
    config = {**vars(args), "draws": draws, "source": source, "settings": settings}
    residuals = [picture["residuals"] for picture in pictures]
    _harness.write_results(path, config, rows, residuals=residuals)
    _harness.save_figure(draw(rows, pictures, args.iters), image)
    _harness.print_table(rows, [key for key in rows[0] if key not in ("bandwidth", "obs_bandwidth", "ridge")])
    print(f"\nRMSE of grey values 0 .. 255, mean over {draws} noisy images ({source}); cover90: share of pixels inside")
    print("their 90 % interval; run_s: seconds for all noisy images in one call, after compilation.")
    print(f"Figures: {path}\nPicture: {image}")


def read_problems(args: argparse.Namespace) -> tuple[list[Problem], str]:
    """Read the images that the arguments name; return them and where they come from."""
    if (args.train is None) != (args.test is None) or (args.image and args.train):
        raise ValueError("--image: give --image A, or both of --train A --test B; got another mixture of the three.")
    if args.image or args.train:
        if args.levels:
            raise ValueError(f"--levels: belongs to the sunset image; got {args.levels} with an image. Leave one out.")
        train = np.round(data.read_image(args.image or args.train, args.size))
        test = train if args.image else np.round(data.read_image(args.test, args.size))
        if np.ptp(train) == 0:
            raise ValueError(
                f"--image: must have at least two grey levels; got only {train.flat[0]:.0f}. Choose another."
            )
        return [Problem(Path(args.image or args.test).stem, train, test)], "image file"
    levels = args.levels or ((10, 100) if args.quick else data.SUNSET_LEVELS)
    directory = data.data_directory(args.data)
    images = [data.sunset(count, directory) for count in levels]
    problems = [Problem(f"sunset {count}", image, image) for count, (image, _) in zip(levels, images, strict=True)]
    return problems, f"sunset by the {'authors' if images[0][1] == 'authors' else 'ring generator'}"


def denoise(problem: Problem, setting: Setting, draws: int, args: argparse.Namespace) -> tuple[dict, dict]:
    """Learn from one pair, clean `draws` noisy images in one call; return a flat record and what the figure shows."""
    rng = np.random.default_rng(args.seed)
    train, clean = (image.astype(np.float32) for image in (problem.train, problem.test))
    model, record = learn(train, add_noise(rng, train), setting, args)
    noisy = np.stack([add_noise(rng, clean) for _ in range(draws)]).reshape(draws, -1)
    graph, grey_levels = kbp.grid_graph(*clean.shape), np.unique(train)

    @jax.jit
    @jax.vmap
    def clean_up(y):
        evidence = kbp.observe(model, graph, y)
        solution = kbp.run(model, graph, evidence, num_iters=args.iters, damping=setting.damping)
        belief = kbp.beliefs(model, graph, evidence, solution, grey_levels)
        low, high = kbp.interval(belief, 0.9)
        deviation = jnp.sqrt(kbp.variance(belief))
        return kbp.mode(belief), kbp.mean(belief), deviation, low, high, solution.residuals

    results, first_s, run_s = _harness.timed(clean_up, jnp.asarray(noisy))
    mode, mean, deviation, low, high, residuals = map(np.asarray, results)
    truth = clean.reshape(1, -1)
    row = {
        "levels": len(grey_levels),
        **dict(zip(("rank", "products"), model.ranks[0], strict=True)),
        "noisy": rmse(noisy, truth),
        "rmse_mode": rmse(mode, truth),
        "rmse_mean": rmse(mean, truth),
        "cover90": float(np.mean((low <= truth) & (truth <= high))),
        "damping": setting.damping,
        "fit_s": record.pop("fit_s"),
        "compile_s": max(first_s - run_s, 0.0),
        "run_s": run_s,
        **record,
    }
    images = [image.reshape(clean.shape) for image in (clean, noisy[0], mean[0], deviation[0])]
    return row, {"images": images, "residuals": residuals.mean(axis=0).tolist()}


def learn(
    train: np.ndarray, noisy: np.ndarray, setting: Setting, args: argparse.Namespace, positive: Any = None
) -> tuple[kbp.KernelMRF, dict]:
    """Fit the model to an image and its noisy copy; return it with the options used and the seconds it took."""
    graph = kbp.grid_graph(*train.shape)
    options = {"bandwidth": args.bandwidth, "obs_bandwidth": args.obs_bandwidth, "ridge": args.ridge}
    if args.bandwidth is None:
        options["bandwidth"] = setting.bandwidth * kbp.median_bandwidth(train.ravel())
    if args.obs_bandwidth is None:
        options["obs_bandwidth"] = setting.obs_bandwidth * kbp.median_bandwidth(noisy.ravel())
    if args.ridge is None:
        options["ridge"] = setting.ridge_m / (graph.num_edges // 2)
    start = time.perf_counter()
    model = kbp.fit(
        kbp.pool(graph, train.reshape(1, -1), noisy.reshape(1, -1)),
        kernel=kbp.RBF(options["bandwidth"]),
        obs_kernel=kbp.RBF(options["obs_bandwidth"]),
        rule=kbp.ConstantTime(eps=args.eps),
        ridge=options["ridge"],
        positive=positive,
    )
    jax.block_until_ready(model)
    return model, {**options, "fit_s": time.perf_counter() - start}


def draw(rows: list[dict[str, Any]], pictures: list[dict[str, Any]], iters: int) -> Any:
    """Draw clean, noisy, denoised and uncertainty of one image, RMSE over grey levels, and residuals."""
    from matplotlib.figure import Figure

    shown = min(range(len(rows)), key=lambda i: (abs(rows[i]["levels"] - 100), rows[i]["rmse_mean"]))
    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplot_mosaic([["clean", "noisy", "mean", "deviation"], ["rmse", "rmse", "residual", "residual"]])
    titles = (
        f"clean ({rows[shown]['image']})",
        f"noisy: RMSE {rows[shown]['noisy']:.1f}",
        f"posterior mean: RMSE {rows[shown]['rmse_mean']:.1f} ({rows[shown]['setting']})",
        "posterior standard deviation",
    )
    for name, title, image in zip(
        ("clean", "noisy", "mean", "deviation"), titles, pictures[shown]["images"], strict=True
    ):
        span = {"cmap": "magma", "vmin": 0} if name == "deviation" else {"cmap": "gray", "vmin": 0, "vmax": 255}
        shade = axes[name].imshow(image, interpolation="nearest", **span)
        axes[name].set_title(title, fontsize=10)
        axes[name].set_axis_off()
        if name == "deviation":
            figure.colorbar(shade, ax=axes[name], shrink=0.8, label="grey levels")
    for setting, colour in zip(dict.fromkeys(row["setting"] for row in rows), ("#0072B2", "#D55E00"), strict=False):
        mine = [i for i, row in enumerate(rows) if row["setting"] == setting]
        levels = [rows[i]["levels"] for i in mine]
        for key, style, answer in (("rmse_mode", "o-", "mode"), ("rmse_mean", "s--", "mean")):
            axes["rmse"].plot(levels, [rows[i][key] for i in mine], style, color=colour, label=f"{setting}: {answer}")
        for i in mine:
            label = setting if i == mine[0] else None
            axes["residual"].plot(range(1, iters + 1), pictures[i]["residuals"], color=colour, alpha=0.6, label=label)
    axes["rmse"].set(xlabel="grey levels in the image", ylabel="RMSE (grey levels of 0 .. 255)")
    axes["rmse"].set_ylim(0, 1.3 * max(max(row["rmse_mode"], row["rmse_mean"]) for row in rows))
    axes["residual"].set(xlabel="iteration", ylabel="residual (distance to the undamped update)", ylim=(0, 2))
    for name in ("rmse", "residual"):
        axes[name].grid(alpha=0.3)
        axes[name].legend(fontsize=9, ncols=2, loc="upper left" if name == "rmse" else "lower right")
    return figure


def add_noise(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Return a noisy copy of a float32 image."""
    return image + SIGMA * rng.standard_normal(image.shape).astype(np.float32)


def rmse(estimates: np.ndarray, truth: np.ndarray) -> float:
    """Return the root mean squared error of each image, averaged over images."""
    return float(np.mean(np.sqrt(np.mean((estimates - truth) ** 2, axis=1))))


if __name__ == "__main__":
    sys.exit(main())
