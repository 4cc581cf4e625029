"""Denoise images: learn a kernel Markov random field from one image and a noisy copy of it, clean new noisy images.

The main experiment of the paper (Song et al. 2011, section 7, Figure 1): grey images, Gaussian noise of standard
deviation 30, a four-neighbour grid with an observation at each pixel, all operators and the likelihood learned from one
image pair.

On the sunset images the training image is the test image, as in the paper: only the noise is new. That replicates the
paper and is no test on unseen images. The problem `circles` learns from one drawing and cleans another one.

Settings `paper` and `narrow` run 30 iterations of plain belief propagation, which does not converge. `convergent` runs
tree-reweighted messages of nonnegative operators to a fixed point and raises an error if it finds none. A quick run
(`make demo`) cleans `circles` with it.
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
    convergent: bool = False
    """Nonnegative operators, tree-reweighted messages, colors in turn, Anderson acceleration, run to `TOL`."""


TOL = 1e-4
"""Residual at which a convergent run ends."""

MAX_ITERS = 200
"""Iterations that a convergent run may take."""

TEMPERATURES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05)
"""Tried for the beliefs of a convergent run, on a second noisy copy of the training image."""

COVERAGES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Probabilities of the intervals whose empirical coverage is reported."""

SETTINGS = {
    # The authors' program: exp(-0.5 d^2 / median^2) on grey levels, exp(-d^2 / median^2) on observations.
    "paper": Setting(bandwidth=1.0, obs_bandwidth=0.5**0.5, ridge_m=1e-2, damping=0.8),
    # A quarter of the bandwidth resolves single grey levels, half the other sharpens the likelihood.
    "narrow": Setting(bandwidth=0.25, obs_bandwidth=0.5**1.5, ridge_m=1.0, damping=0.2),
}
CONVERGENT = Setting(bandwidth=0.25, obs_bandwidth=0.3, ridge_m=20.0, damping=0.0, convergent=True)
ALL_SETTINGS = {"convergent": CONVERGENT, **SETTINGS}
COLORS = ("#009E73", "#0072B2", "#D55E00")


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
    add = parser.add_argument
    levels = f"grey levels of the sunset image, of {data.SUNSET_LEVELS} (default: all, and circles; circles if quick)"
    add("--levels", type=int, nargs="+", help=levels)
    add("--settings", nargs="+", choices=ALL_SETTINGS, help="default: all; convergent if quick")
    add("--draws", type=int, help="noisy images to clean (default: 10; 3 if quick)")
    add("--iters", type=int, default=30, help="iterations of paper and narrow (default: 30)")
    add("--damping", type=float, help="weight of the old message (default: 0.8 paper, 0.2 narrow, 0 convergent)")
    add("--bandwidth", type=float, help="of the grey levels, in grey levels (default: the setting's)")
    add("--obs-bandwidth", type=float, help="of the noisy grey levels (default: the setting's)")
    add("--ridge", type=float, help="lambda; it multiplies the number of pairs (default: the setting's)")
    add("--eps", type=float, default=1e-2, help="residual norm of the landmarks (default: 0.01)")
    add("--image", type=Path, help="PNG or JPEG to learn from and to clean, instead of the sunset")
    add("--train", type=Path, help="PNG or JPEG to learn from; with --test")
    add("--test", type=Path, help="PNG or JPEG to clean; with --train")
    add("--size", type=int, default=200, help="maximum pixels per side; larger images are reduced (default: 200)")
    return _harness.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    draws = (3 if args.quick else 10) if args.draws is None else args.draws
    if draws < 1:
        raise ValueError(f"--draws: must be at least 1; got {draws}. Ask for one or more noisy images.")
    args.settings = list(dict.fromkeys(args.settings or (["convergent"] if args.quick else ALL_SETTINGS)))
    problems, source = read_problems(args)
    jobs = [(problem, name) for problem in problems for name in args.settings]
    rows, pictures = [], []
    for problem, name in _harness.progress(jobs, "denoising"):
        given = {} if args.damping is None else {"damping": args.damping}
        row, picture = denoise(problem, dataclasses.replace(ALL_SETTINGS[name], **given), draws, args)
        rows.append({"image": problem.name, "setting": name, **row})
        pictures.append(picture)
    report(args, draws, source, rows, pictures)


def report(args: argparse.Namespace, draws: int, source: str, rows: list[dict], pictures: list[dict]) -> None:
    """Write JSON and PNG, print the table and where they are."""
    path, image = args.out / "denoising.json", args.out / "denoising.png"
    settings = {name: dataclasses.asdict(ALL_SETTINGS[name]) for name in args.settings}
    config = {**vars(args), "draws": draws, "source": source, "settings": settings}
    curves = {key: [picture[key] for picture in pictures] for key in ("residuals", "coverages")}
    _harness.write_results(path, config, rows, nominal=COVERAGES, **curves)
    _harness.save_figure(draw(rows, pictures), image)
    shown = ["image", "setting", "rank", "products", "noisy", "rmse_mode", "rmse_mean", "cover90", "temperature"]
    _harness.print_table(rows, [*shown, "converged", "iterations", "residual", "fit_s", "compile_s", "run_s"])
    print(f"\nRMSE of grey values 0 .. 255, mean over {draws} noisy images ({source}).")
    print("cover90: share of pixels inside their 90 % interval; 0.90 is right, more means that intervals are too wide.")
    print("converged, iterations, residual: of the worst noisy image. run_s: seconds for all noisy images in one call.")
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
    directory = data.data_directory(args.data)
    levels = args.levels or (() if args.quick else data.SUNSET_LEVELS)
    images = [data.sunset(count, directory) for count in levels]
    problems = [Problem(f"sunset {count}", image, image) for count, (image, _) in zip(levels, images, strict=True)]
    if args.levels is None:
        problems.append(Problem("circles", data.circles(30, 20), data.circles(90, 60)))
    by = f"sunset by {'the authors' if images[0][1] == 'authors' else 'the ring generator'}" if images else "drawn"
    return problems, by


def denoise(problem: Problem, setting: Setting, draws: int, args: argparse.Namespace) -> tuple[dict, dict]:
    """Learn from one pair, clean `draws` noisy images in one call; return a flat record and what the figure shows."""
    rng = np.random.default_rng(args.seed)
    train, clean = (image.astype(np.float32) for image in (problem.train, problem.test))
    positive = kbp.Clipped() if setting.convergent else None
    model, record = learn(train, add_noise(rng, train), setting, args, positive)
    noisy = np.stack([add_noise(rng, clean) for _ in range(draws)]).reshape(draws, -1)
    grey_levels = np.unique(train)
    again = jnp.asarray(add_noise(rng, train).reshape(-1))
    temperature = calibrate(model, train, again, setting, grey_levels) if setting.convergent else 1.0
    graph = kbp.grid_graph(*clean.shape)
    options = loop_options(graph, setting, args.iters)

    @jax.jit
    @jax.vmap
    def clean_up(y):
        belief, solution = infer(model, graph, y, grey_levels, options)
        belief = kbp.temper(belief, temperature)
        ends = jnp.stack([jnp.stack(kbp.interval(belief, share)) for share in COVERAGES])
        return kbp.mode(belief), kbp.mean(belief), jnp.sqrt(kbp.variance(belief)), ends, solution

    (*results, solution), first_s, run_s = _harness.timed(clean_up, jnp.asarray(noisy))
    if setting.convergent:
        kbp.check(solution)
    mode, mean, deviation, ends = map(np.asarray, results)
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
        "damping": setting.damping,
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


def loop_options(graph: kbp.Graph, setting: Setting, iters: int) -> dict[str, Any]:
    """Return the options of `kbpjax.run` that belong to a setting."""
    if not setting.convergent:
        return {"num_iters": iters, "damping": setting.damping}
    return {
        "num_iters": MAX_ITERS,
        "tol": TOL,
        "damping": setting.damping,
        "exponents": kbp.tree_reweighting(graph),
        "schedule": kbp.coloured(graph),
        "acceleration": kbp.Anderson(),
    }


def infer(model: kbp.KernelMRF, graph: kbp.Graph, y: Any, points: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the beliefs over `points` given a noisy image, and the solution."""
    evidence = kbp.observe(model, graph, y)
    solution = kbp.run(model, graph, evidence, **options)
    return kbp.beliefs(model, graph, evidence, solution, points), solution


def calibrate(model: kbp.KernelMRF, train: np.ndarray, noisy: Any, setting: Setting, points: np.ndarray) -> float:
    """Choose the temperature of beliefs by the score of 90 % intervals on a second noisy copy of the training image."""
    graph = kbp.grid_graph(*train.shape)
    options = loop_options(graph, setting, MAX_ITERS)
    belief, _ = jax.jit(lambda y: infer(model, graph, y, points, options))(noisy)
    score, truth = kbp.IntervalScore(0.9), jnp.asarray(train.reshape(-1))
    return min(TEMPERATURES, key=lambda value: float(score(kbp.temper(belief, value), truth)))


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


def draw(rows: list[dict[str, Any]], pictures: list[dict[str, Any]]) -> Any:
    """Draw one problem (images, uncertainty), coverage and residuals; with several sunsets, RMSE over grey levels."""
    from matplotlib.figure import Figure

    shown = min(range(len(rows)), key=lambda i: (abs(rows[i]["levels"] - 100), rows[i]["setting"] != "convergent"))
    sunsets = [i for i, row in enumerate(rows) if row["image"].startswith("sunset")]
    top = ["train", "clean", "noisy", "mean", "deviation"]
    panels = [*(["rmse"] if len(sunsets) > 1 else []), "cover", "residual"]
    figure = Figure(figsize=(15, 7), layout="constrained")
    rows_of_panels: Any = figure.subfigures(2, 1, height_ratios=[1, 1.1])
    above, below = rows_of_panels
    axes = dict(zip(top, above.subplots(1, len(top)), strict=True))
    axes |= dict(zip(panels, below.subplots(1, len(panels)), strict=True))
    row = rows[shown]
    titles = (
        "learned from (with a noisy copy)",
        f"truth: {row['image']}",
        f"noisy: RMSE {row['noisy']:.1f}",
        f"posterior mean: RMSE {row['rmse_mean']:.1f}",
        "posterior standard deviation",
    )
    for name, title, image in zip(top, titles, pictures[shown]["images"], strict=True):
        span = {"cmap": "viridis", "vmin": 0} if name == "deviation" else {"cmap": "gray", "vmin": 0, "vmax": 255}
        shade = axes[name].imshow(image, interpolation="nearest", **span)
        axes[name].set_title(title, fontsize=11)
        axes[name].set_axis_off()
        if name == "deviation":
            above.colorbar(shade, ax=axes[name], shrink=0.8, label="grey levels")
    for setting, color in zip(dict.fromkeys(row["setting"] for row in rows), COLORS, strict=False):
        mine = [i for i, row in enumerate(rows) if row["setting"] == setting]
        for i in mine:
            label = setting if i == mine[0] else None
            residuals = pictures[i]["residuals"]
            axes["residual"].semilogy(range(1, len(residuals) + 1), residuals, color=color, alpha=0.6, label=label)
            axes["cover"].plot(COVERAGES, pictures[i]["coverages"], "o-", color=color, alpha=0.6, label=label)
        if "rmse" in axes:
            mine = [i for i in mine if i in sunsets]
            for key, style, answer in (("rmse_mode", "o-", "mode"), ("rmse_mean", "s--", "mean")):
                values = [[rows[i][name] for i in mine] for name in ("levels", key)]
                axes["rmse"].plot(*values, style, color=color, markersize=4, label=f"{setting}: {answer}")
    if "rmse" in axes:
        axes["rmse"].set(xlabel="grey levels of the sunset image", ylabel="RMSE (grey levels), lower is better")
        axes["rmse"].set_ylim(bottom=0)
    axes["cover"].plot([0, 1], [0, 1], ":", color="black", label="calibrated")
    axes["cover"].set(
        xlabel="probability of the interval", ylabel="share of pixels inside", xlim=(0, 1), ylim=(0, 1.02)
    )
    axes["residual"].set(xlabel="iteration", ylabel="residual of the worst noisy image")
    axes["residual"].axhline(TOL, color="black", linestyle=":", label="tolerance")
    for name in panels:
        axes[name].grid(alpha=0.3)
        axes[name].legend(**({"fontsize": 8, "loc": "lower left", "ncols": 3} if name == "rmse" else {"fontsize": 9}))
    return figure


def add_noise(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Return a noisy copy of a float32 image."""
    return image + SIGMA * rng.standard_normal(image.shape).astype(np.float32)


def rmse(estimates: np.ndarray, truth: np.ndarray) -> float:
    """Return the root mean squared error of each image, averaged over images."""
    return float(np.mean(np.sqrt(np.mean((estimates - truth) ** 2, axis=1))))


if __name__ == "__main__":
    sys.exit(main())
