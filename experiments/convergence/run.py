"""Study convergence on graphs with cycles: estimated and nonnegative updates, exponents, schedules, acceleration.

Sunset images as in the denoising experiment, with the bandwidth of the observations halved and landmarks to a residual
norm of 1e-3; and a learned bimodal model on random graphs with evidence that the neighbors contradict. Residuals of
positive messages are between values scaled to maximum 1, those of others between coefficients of norm 1.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.denoising.data import add_noise
from experiments.denoising.models import SETTINGS as BASE_SETTINGS
from experiments.denoising.models import learn
from experiments.lib import command_line, datasets, gray_images, results, steps, tables, timing
from experiments.lib.schedules import ResidualFirst
from kbpjax.inference.loopy import coefficients_of, constant_messages

TOL = 1e-4
MOST = 200
"""Maximum iterations of the runs to convergence."""

CLOSE = {"num_iters": MOST, "tol": TOL}

POSITIVE = {"estimated": None, "clipped": kbp.Clipped(), "constrained": kbp.ConstrainedFit()}

SETTINGS = {
    name: dataclasses.replace(setting, obs_bandwidth=setting.obs_bandwidth / 2)
    for name, setting in BASE_SETTINGS.items()
}


@dataclasses.dataclass(frozen=True)
class Method:
    """One combination of updates, exponents, schedule and acceleration."""

    name: str
    updates: str = "estimated"
    reweighted: bool = False
    schedule: str = "synchronous"
    anderson: bool = False
    damping: float | kbp.AdaptiveDamping = 0.0

    def options(self, exponents: jax.Array, schedules: dict[str, Any]) -> dict[str, Any]:
        """Return the options of `kbpjax.run`."""
        return {
            "damping": self.damping,
            "exponents": exponents if self.reweighted else None,
            "schedule": schedules[self.schedule],
            "acceleration": kbp.Anderson() if self.anderson else None,
        }


METHODS = (
    Method("BP"),
    Method("BP, damping 0.2", damping=0.2),
    Method("BP, colored", schedule="colored"),
    Method("TRW", reweighted=True),
    Method("positive BP, damping 0.2", updates="clipped", damping=0.2),
    Method("positive TRW", updates="clipped", reweighted=True),
    Method("positive TRW, residual first", updates="clipped", reweighted=True, schedule="residual"),
    Method("positive TRW, colored", updates="clipped", reweighted=True, schedule="colored"),
    Method("positive TRW, Anderson", updates="clipped", reweighted=True, anderson=True),
    Method("positive TRW, colored, Anderson", updates="clipped", reweighted=True, schedule="colored", anderson=True),
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Models, estimated and made positive, with what `run` needs; `truth` on a sunset image."""

    name: str
    setting: str
    graph: kbp.Graph
    exponents: jax.Array
    models: dict[str, kbp.KernelMRF]
    evidence: dict[str, kbp.Evidence]
    truth: jax.Array | None = None

    def schedules(self) -> dict[str, Any]:
        """Return the schedules by name."""
        colored = kbp.colored(self.graph)
        return {"synchronous": kbp.Synchronous(), "colored": colored, "residual": ResidualFirst(0.25)}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.convergence", description=(__doc__ or "").split("\n")[0]
    )
    command_line.add_common_arguments(parser, "experiments/convergence/results")
    whole = gray_images.SUNSET_LEVELS
    parser.add_argument("--levels", type=int, nargs="+", help=f"gray levels, of {whole} (default: all; 10 if quick)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="bandwidths and ridge")
    parser.add_argument("--iters", type=int, help="iterations of the traces (default: 100; 10 if quick)")
    parser.add_argument("--starts", type=int, help="random starts (default: 10; 2 if quick)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the study: tables on standard output, a JSON file and a PNG file for each setting in `args.out`."""
    iters = args.iters or (10 if args.quick else 100)
    starts = args.starts or (2 if args.quick else 10)
    levels = args.levels or ([10] if args.quick else list(gray_images.SUNSET_LEVELS))
    directory = datasets.data_directory(args.data)
    images = {count: gray_images.sunset(count, directory)[0] for count in levels}
    shown = [count for count in (10, 100, 250) if count in levels] or levels[:1]
    jobs = [(setting, count) for setting in dict.fromkeys(args.settings) for count in levels]
    methods = METHODS[::3] if args.quick else METHODS
    traces, fixed = [], []
    for setting, count in command_line.progress(jobs, "sunset"):
        side, some = 30 if args.quick else 100, methods if count in shown else ()

        def study(count: int = count, setting: str = setting, side: int = side, some: Any = some) -> tuple[Any, Any]:
            problem = sunset(images[count], count, setting, args.seed, side)
            return fixed_point(problem, starts, args.seed), [trace(problem, method, iters) for method in some]

        point, found = steps.step(f"{setting} {count}", study)
        fixed.append(point)
        traces += found
    sizes = [(6, 6), 30, 30] if args.quick else [(30, 30), 1000, 1000]
    for problem in command_line.progress(list(random_graphs(sizes, args.seed)), "graphs"):
        traces += [steps.step(f"{problem.name}, {one.name}", trace, problem, one, iters) for one in methods]
    report(args, {"iters": iters, "starts": starts, "tol": TOL}, traces, fixed)


def sunset(image: np.ndarray, levels: int, setting: str, seed: int, side: int) -> Problem:
    """Learn estimated and positive models from an image and a noisy copy, and observe another noisy copy."""
    image = image[:side, :side].astype(np.float32)
    rng = np.random.default_rng(seed)
    noisy, y = add_noise(rng, image), add_noise(rng, image).reshape(-1)
    graph = kbp.grid_graph(*image.shape)
    options = argparse.Namespace(bandwidth=None, obs_bandwidth=None, ridge=None, eps=1e-3)
    models = {name: learn(image, noisy, SETTINGS[setting], options, positive)[0] for name, positive in POSITIVE.items()}
    evidence = {name: kbp.observe(model, graph, y) for name, model in models.items()}
    truth = jnp.asarray(image.reshape(-1))
    return Problem(f"sunset {levels}", setting, graph, kbp.tree_reweighting(graph), models, evidence, truth)


def random_graphs(sizes: list[Any], seed: int) -> Iterator[Problem]:
    """Put one learned bimodal model on a grid, a random regular graph and a small world."""
    rng = np.random.default_rng(seed)
    side = np.where(rng.random(5000) < 0.5, 1.0, -1.0)
    other = np.where(rng.random(5000) < 0.9, side, -side)
    first, second = (center + 0.3 * rng.standard_normal(5000) for center in (side, other))
    both = np.concatenate([first, second]).astype(np.float32)
    seen = (both + rng.standard_normal(both.shape)).astype(np.float32)
    pairs = {0: (both[:5000], both[5000:])}
    training = kbp.TrainingData(edges=pairs, nodes={0: both}, observations={0: (both, seen)})
    kernels = {"kernel": kbp.RBF(0.5), "obs_kernel": kbp.RBF(0.5), "rule": kbp.ConstantTime(eps=1e-3)}
    models = {name: kbp.fit(training, ridge=1e-5, nonnegative=table, **kernels) for name, table in POSITIVE.items()}
    shape, regular, small = sizes
    graphs = {
        "grid": kbp.grid_graph(*shape),
        "random regular": kbp.Graph.from_edges(regular_edges(rng, regular, 4), regular),
        "small world": kbp.Graph.from_edges(small_world_edges(rng, small, 4, 0.1), small),
    }
    for name, graph in graphs.items():
        y = rng.choice(seen, graph.num_nodes)
        evidence = {name: kbp.observe(model, graph, y) for name, model in models.items()}
        yield Problem(name, "graphs", graph, kbp.tree_reweighting(graph), models, evidence)


def regular_edges(rng: np.random.Generator, nodes: int, degree: int) -> np.ndarray:
    """Join random rings through all nodes that share no edge, `degree` / 2 of them."""
    edges = np.zeros((0, 2), int)
    while len(edges) < nodes * degree // 2:
        order = rng.permutation(nodes)
        ring = np.sort(np.stack([order, np.roll(order, 1)], axis=1), axis=1)
        both = np.concatenate([edges, ring])
        edges = both if len(np.unique(both, axis=0)) == len(both) else edges
    return edges


def small_world_edges(rng: np.random.Generator, nodes: int, degree: int, rewired: float) -> np.ndarray:
    """Join the nearest on a ring, then move the far end of a share of the edges anywhere (Watts, Strogatz 1998)."""
    near = np.arange(nodes)
    edges = np.concatenate([np.stack([near, (near + k) % nodes], axis=1) for k in range(1, degree // 2 + 1)])
    moved = rng.random(len(edges)) < rewired
    edges[moved, 1] = rng.integers(nodes, size=moved.sum())
    edges = np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1)
    return np.unique(edges, axis=0)


def trace(problem: Problem, method: Method, iters: int) -> dict[str, Any]:
    """Follow one method: residual and RMSE of the mode after each iteration, and the seconds of an iteration."""
    model, graph = problem.models[method.updates], problem.graph
    evidence, options = problem.evidence[method.updates], method.options(problem.exponents, problem.schedules())
    residuals, errors = map(np.asarray, _follow(model, graph, evidence, problem.truth, options, iters))
    runs = jax.jit(lambda e: kbp.run(model, graph, e, num_iters=20, **options).messages)
    _, _, seconds = timing.timed(runs, evidence)
    below = residuals <= TOL
    return {
        "problem": problem.name,
        "setting": problem.setting,
        "method": method.name,
        "iteration_s": seconds / 20,
        "iters_to_tol": int(np.argmax(below)) + 1 if below.any() else None,
        "last_residual": float(residuals[-1]),
        "best_rmse": float(errors.min()) if len(errors) else None,
        "best_at": int(np.argmin(errors)) + 1 if len(errors) else None,
        "last_rmse": float(errors[-1]) if len(errors) else None,
        "residuals": residuals.tolist(),
        "rmse": errors.tolist(),
    }


def _follow(
    model: kbp.KernelMRF,
    graph: kbp.Graph,
    evidence: kbp.Evidence,
    truth: jax.Array | None,
    options: dict[str, Any],
    iters: int,
) -> tuple[jax.Array, jax.Array]:
    """Return the residual and the RMSE of the mode after each iteration; without a truth no RMSE."""
    operators, anderson, exponents = model.operators, options["acceleration"], options["exponents"]
    fixed = {"damping": options["damping"], "exponents": exponents, "schedule": options["schedule"]}
    levels = jnp.zeros(0) if truth is None else jnp.unique(truth)

    def error(solution: kbp.Solution) -> jax.Array:
        assert truth is not None
        projected = coefficients_of(operators, graph, evidence.local, solution.messages, exponents)
        solution = dataclasses.replace(solution, exponents=exponents, projected=projected)
        mode = kbp.mode(kbp.beliefs(model, graph, evidence, solution, levels))
        return jnp.sqrt(jnp.mean((mode - truth) ** 2))

    def iterate(carry: Any, _: None) -> Any:
        before, history = carry
        new = kbp.run(operators, graph, evidence.local, num_iters=1, start=before, **fixed)
        messages = new.messages
        if anderson is not None:
            history, messages = anderson.advance(history, before.messages.T, messages.T, new.residual)
            messages = messages.T
        after = dataclasses.replace(before, messages=messages)
        return (after, history), (new.residual, jnp.zeros(0) if truth is None else error(after))

    @jax.jit
    def follow() -> Any:
        messages = constant_messages(operators, graph)
        none = jnp.full((), jnp.inf, messages.dtype)
        first = kbp.Solution(messages, jnp.array(False), jnp.int32(0), none, none[None])
        history = None if anderson is None else anderson.start(first.messages.T)
        return jax.lax.scan(iterate, (first, history), length=iters)[1]

    residuals, errors = follow()
    return residuals, errors.reshape(-1)


def fixed_point(problem: Problem, starts: int, seed: int) -> dict[str, Any]:
    """Run nonnegative tree-reweighted messages to convergence, with three schedules and from random starts."""
    model, graph, evidence = problem.models["clipped"], problem.graph, problem.evidence["clipped"]
    assert problem.truth is not None
    levels, truth = np.unique(problem.truth), np.asarray(problem.truth)
    schedules, row = problem.schedules(), {"problem": problem.name, "setting": problem.setting}
    row |= dict(zip(("rank", "points"), model.ranks[0], strict=True))
    for method in METHODS[5], METHODS[7], METHODS[9]:
        options = method.options(problem.exponents, schedules) | CLOSE
        runs = jax.jit(lambda e, options=options: kbp.run(model, graph, e, **options))
        solution, _, seconds = timing.timed(runs, evidence)
        short = method.name.removeprefix("positive TRW").strip(", ") or "synchronous"
        kbp.check(solution)
        row |= {f"{short}: iters": int(solution.num_iters), f"{short}: s": seconds}

    def believe(solution: kbp.Solution) -> kbp.Belief:
        return kbp.beliefs(model, graph, evidence, solution, levels)

    close = METHODS[9].options(problem.exponents, schedules) | {"num_iters": MOST, "tol": TOL / 10}
    belief = believe(kbp.check(kbp.run(model, graph, evidence, **close)))
    row |= {"rmse_mode": _rmse(kbp.mode(belief), truth), "rmse_mean": _rmse(kbp.mean(belief), truth)}
    rng, shape, furthest = np.random.default_rng(seed), solution.messages.shape, 0.0
    again = jax.jit(lambda start: kbp.run(model, graph, evidence, start=start, **close))
    for _ in range(starts):
        other = believe(kbp.check(again(rng.random(shape, np.float32))))
        furthest = max(furthest, float(jnp.max(jnp.abs(other.weights - belief.weights))))
    plain = kbp.run(problem.models["estimated"], graph, problem.evidence["estimated"], num_iters=MOST, damping=0.0)
    row |= {"starts_differ_by": furthest, "bp_residual": float(plain.residuals[-1])}
    other, evidence = problem.models["constrained"], problem.evidence["constrained"]
    solution = kbp.check(kbp.run(other, graph, evidence, **METHODS[5].options(problem.exponents, schedules) | CLOSE))
    mode = kbp.mode(kbp.beliefs(other, graph, evidence, solution, levels))
    return row | {"constrained: iters": int(solution.num_iters), "constrained: rmse_mode": _rmse(mode, truth)}


def _rmse(estimate: jax.Array, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((np.asarray(estimate) - truth) ** 2)))


def report(args: argparse.Namespace, more: dict[str, Any], traces: list[dict], fixed: list[dict]) -> None:
    """Write JSON and PNG, print the tables and where they are."""
    path = args.out / "convergence.json"
    curves = ("residuals", "rmse")
    rows = [{key: value for key, value in row.items() if key not in curves} for row in traces]
    settings = {name: dataclasses.asdict(SETTINGS[name]) for name in args.settings}
    kept = [{key: np.round(np.array(row[key], float), 6).tolist() for key in curves} for row in traces]
    results.write_results(path, {**vars(args), **more, "settings": settings}, rows, traces=kept, fixed_points=fixed)
    tables.print_table(rows)
    print()
    tables.print_table(fixed)
    for setting in dict.fromkeys(args.settings):
        image = args.out / f"convergence_{setting}.png"
        results.save_figure(draw([row for row in traces if row["setting"] in (setting, "graphs")]), image)
        print(f"Picture: {image}")
    print(f"Figures: {path}")


def draw(traces: list[dict[str, Any]]) -> Any:
    """Draw residual and RMSE against iterations and time: a column for each problem, a line for each method."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    problems = list(dict.fromkeys(row["problem"] for row in traces))
    figure = Figure(figsize=(3.4 * len(problems), 12), layout="constrained")
    axes = figure.subplots(4, len(problems), squeeze=False)
    colors = colormaps["tab10"]
    for row in traces:
        column, number = problems.index(row["problem"]), [m.name for m in METHODS].index(row["method"])
        style = {"color": colors(number), "linestyle": "-" if "positive TRW" in row["method"] else "--", "lw": 1.3}
        count = np.arange(1, len(row["residuals"]) + 1)
        for which, curve in enumerate(("residuals", "rmse")):
            for axis, x in zip(
                axes[2 * which : 2 * which + 2, column], (count, count * row["iteration_s"]), strict=True
            ):
                if row[curve]:
                    axis.plot(x, row[curve], label=row["method"], **style)
    for column, name in enumerate(problems):
        axes[0, column].set_title(name)
        for i, (quantity, unit) in enumerate((q, u) for q in ("residual", "RMSE") for u in ("iteration", "seconds")):
            axis = axes[i, column]
            if not axis.lines:
                axis.set_axis_off()
                continue
            label = "residual" if quantity == "residual" else "RMSE of the mode (gray levels)"
            axis.set(xlabel=unit, ylabel=label, xscale="log")
            if quantity == "residual":
                axis.set(yscale="log", ylim=(TOL / 100, 3))
                axis.axhline(TOL, color="0.6", lw=0.8)
            else:
                axis.set_ylim(0, 30)
            axis.grid(alpha=0.3)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)
    return figure
