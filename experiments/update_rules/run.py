"""Compare the update rules: constant time, linear time and full rank, at three residuals eps.

The supplementary study of the paper (Song et al. 2011, supplement section 3, Figures 4 to 6) on the denoising problem:
constant against linear time at all numbers of gray levels, and both against full rank on a 50 x 50 image, on the same
noise. Times are those of one image, 30 iterations, without compilation and beliefs.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from experiments.denoising.data import add_noise
from experiments.denoising.models import SETTINGS, damping_of, rmse
from experiments.lib import command_line, datasets, gray_images, results, steps, tables, timing
from experiments.lib.datasets import evenly

EPS = (1e-1, 1e-2, 1e-3)
SMALL_LEVELS = 100
"""Gray levels of the small image on which full rank runs too."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.update_rules", description=(__doc__ or "").split("\n")[0]
    )
    command_line.add_common_arguments(parser, "experiments/update_rules/results")
    levels = f"gray levels of the sunset image, of {gray_images.SUNSET_LEVELS} (default: all; 10 if quick)"
    parser.add_argument("--levels", type=int, nargs="+", help=levels)
    parser.add_argument("--iters", type=int, default=30, help="iterations of belief propagation (default: 30)")
    parser.add_argument("--settings", choices=SETTINGS, default="paper", help="bandwidths and ridge (default: paper)")
    parser.add_argument(
        "--side", type=int, default=100, help="pixels a side of the large image (default: 100; 20 if quick)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of constant time (default: 5); others run once"
    )
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, a JSON and a PNG file in `args.out`."""
    if not 2 <= args.side <= 100 or args.repeats < 1 or args.iters < 1:
        raise ValueError(
            f"--side must be 2 .. 100, --repeats and --iters at least 1; got {args.side}, {args.repeats}, {args.iters}."
        )
    side, small = (20, 10) if args.quick else (args.side, max(2, args.side // 2))
    levels = args.levels or ((10,) if args.quick else gray_images.SUNSET_LEVELS)
    landmarked = [(rule, eps) for eps in EPS for rule in ("constant", "linear")]
    jobs = [(count, side, *job) for count in levels for job in landmarked]
    jobs += [(SMALL_LEVELS, small, *job) for job in [*landmarked, ("full", None)]]
    rows = [steps.step(str(job), compare, *job, args) for job in command_line.progress(jobs, "update rules")]
    report(args, rows, small)


def compare(levels: int, side: int, rule: str, eps: float | None, args: argparse.Namespace) -> dict[str, Any]:
    """Learn from one image pair by one rule and clean one noisy image; return a flat record."""
    image = gray_images.sunset(levels, datasets.data_directory(args.data))[0].astype(np.float32)
    pick = np.linspace(0, 99, side).round().astype(int)
    clean = image[np.ix_(pick, pick)]
    rng = np.random.default_rng(args.seed)
    noisy, y = add_noise(rng, clean), add_noise(rng, clean).ravel()
    graph, setting = kbp.grid_graph(side, side), SETTINGS[args.settings]
    rules = {"full": kbp.FullRank, "linear": kbp.LinearTime, "constant": kbp.ConstantTime}
    start = time.perf_counter()
    model = kbp.fit(
        kbp.pool(graph, clean.reshape(1, -1), noisy.reshape(1, -1)),
        kernel=kbp.RBF(setting.bandwidth * kbp.median_bandwidth(evenly(clean.ravel()))),
        obs_kernel=kbp.RBF(setting.obs_bandwidth * kbp.median_bandwidth(evenly(noisy.ravel()))),
        rule=rules[rule]() if eps is None else rules[rule](eps=eps),
        ridge=setting.ridge_m / (graph.num_edges // 2),
    )
    jax.block_until_ready(model)
    fit_s = time.perf_counter() - start
    evidence = kbp.observe(model, graph, y)

    @jax.jit
    def infer(evidence):
        return kbp.run(model, graph, evidence, num_iters=args.iters, **damping_of(setting))

    compiled = infer.lower(evidence).compile()
    start = time.perf_counter()
    solution = jax.block_until_ready(compiled(evidence))
    run_s = time.perf_counter() - start
    if rule == "constant":
        *_, run_s = timing.timed(compiled, evidence, repeats=args.repeats)
    belief = kbp.beliefs(model, graph, evidence, solution, np.unique(clean))
    rank, points = model.ranks[0]
    return {
        "levels": levels,
        "side": side,
        "rule": rule,
        "eps": eps,
        "rank": rank,
        "points": points,
        "residual": float(model.residuals[0][0]),
        "product_residual": float(model.residuals[0][1]),
        "rmse_mode": rmse(np.asarray(kbp.mode(belief))[None], clean.reshape(1, -1)),
        "rmse_mean": rmse(np.asarray(kbp.mean(belief))[None], clean.reshape(1, -1)),
        "fit_s": fit_s,
        "run_s": run_s,
    }


def report(args: argparse.Namespace, rows: list[dict], small: int) -> None:
    """Write JSON and PNG, print the tables and where they are."""
    path, picture = args.out / "update_rules.json", args.out / "update_rules.png"
    results.write_results(path, vars(args), rows)
    results.save_figure(draw(rows, small), picture)
    tables.print_table(rows)
    print(f"\nAgainst full rank on the {small} x {small} image of {SMALL_LEVELS} gray levels:")
    tables.print_table(ratios(rows, small))
    print("\nRMSE in gray values 0 .. 255 of one noisy image; run_s: seconds of message passing, compiled.")
    print(f"Figures: {path}\nPicture: {picture}")


def ratios(rows: list[dict], small: int) -> list[dict]:
    """Put the rules side by side on the small image: errors over full rank's, times over constant's."""
    mine = [row for row in rows if row["side"] == small]
    (full,) = (row for row in mine if row["rule"] == "full")
    table = []
    for eps in EPS:
        constant, linear = (
            next(r for r in mine if (r["rule"], r["eps"]) == (rule, eps)) for rule in ("constant", "linear")
        )
        table.append(
            {
                "eps": eps,
                "ranks": f"{constant['rank']}, {constant['points']}",
                "constant/full rmse": constant["rmse_mode"] / full["rmse_mode"],
                "linear/full rmse": linear["rmse_mode"] / full["rmse_mode"],
                "constant s": constant["run_s"],
                "linear/constant s": linear["run_s"] / constant["run_s"],
                "full/constant s": full["run_s"] / constant["run_s"],
            }
        )
    return table


def draw(rows: list[dict], small: int) -> Any:
    """Draw errors, times and ranks over gray levels, and the three rules on the small image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    colors = dict(zip(EPS, ("#009E73", "#D55E00", "#0072B2"), strict=True))
    large = [row for row in rows if row["side"] != small]
    for eps, color in colors.items():
        for rule, style in (("constant", "o-"), ("linear", "s--")):
            mine = [row for row in large if (row["rule"], row["eps"]) == (rule, eps)]
            levels = [row["levels"] for row in mine]
            label = f"{rule}, eps {eps:g}"
            axes[0, 0].plot(levels, [row["rmse_mode"] for row in mine], style, color=color, label=label, alpha=0.8)
            axes[0, 1].plot(levels, [row["run_s"] for row in mine], style, color=color, label=label)
            if rule == "constant":
                axes[1, 0].plot(
                    levels, [row["rank"] for row in mine], "o-", color=color, label=f"messages, eps {eps:g}"
                )
                axes[1, 0].plot(
                    levels, [row["points"] for row in mine], "^:", color=color, label=f"products, eps {eps:g}"
                )
    axes[0, 0].set_ylabel("RMSE of the mode (gray levels of 0 .. 255)")
    axes[0, 1].set(ylabel="seconds per image, 30 iterations", yscale="log")
    axes[1, 0].set_ylabel("rank")
    for ax in (axes[0, 0], axes[0, 1], axes[1, 0]):
        ax.set_xlabel(f"gray levels, {large[0]['side']} x {large[0]['side']} pixels")
        ax.legend(fontsize=8, ncols=2)
    for rule, marker in (("constant", "o"), ("linear", "s"), ("full", "*")):
        for row in (row for row in rows if row["side"] == small and row["rule"] == rule):
            name = rule if row["eps"] is None else f"{rule}, eps {row['eps']:g}"
            color = "black" if row["eps"] is None else colors[row["eps"]]
            axes[1, 1].plot(row["run_s"], row["rmse_mode"], marker, color=color, markersize=11, label=name)
    axes[1, 1].set(xscale="log", xlabel="seconds per image, 30 iterations", ylabel="RMSE of the mode")
    axes[1, 1].set_title(f"{small} x {small} pixels, {SMALL_LEVELS} gray levels", fontsize=10)
    axes[1, 1].legend(fontsize=8)
    for ax in axes.flat:
        ax.grid(alpha=0.3)
    for ax in (axes[0, 0], axes[1, 0], axes[1, 1]):
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
    return figure
