"""Find the orientation of a turning camera from what it sees: rotations hidden on a chain, frames observed.

The tree experiment of Song, Gretton & Guestrin (2010), with rendered views: a camera at the centre of a room turns at
random, and every frame is small and noisy. Two opposite walls show the same photograph, so that a frame that sees
little else has two answers, half a turn apart; only its neighbours in time can tell which. Nothing is known of motion,
lens or noise: operators and the model of the frames are learned from trajectories with known rotations.

Beliefs use the whole sequence, frames to come included. Every method sees a frame less its mean, over its standard
deviation, on principal components of the training frames. Their number and all other settings of a method are chosen
on validation trajectories, by its mean error over all their frames.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import kbpjax as kbp
from experiments.lib import command_line, results, tables
from experiments.orientation import rendering
from experiments.orientation.figure import paint, paint_beliefs
from experiments.orientation.rendering import degrees_between

AMBIGUOUS = 0.95
"""Share of a frame on the repeated walls from which on it counts as ambiguous."""

GAIN = 0.15
"""Standard deviation of the logarithm of a frame's brightness."""

NEAR = 25.0
"""Degrees about the mode of a belief within which the mean is taken: the mean of two opposite guesses is no guess."""

YAW_BINS = 72
"""Directions in which beliefs over the yaw are kept."""

PAIRED = {"": "degrees", "_stderr": "stderr"}
"""Endings of the columns of paired differences, and the statistics of `summary` that they hold."""

Options = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Frames:
    """Trajectories of the camera: rotations [m, T, 3, 3], frames [m, T, pixel], and which are ambiguous [m, T]."""

    rotations: np.ndarray
    pixels: np.ndarray
    ambiguous: np.ndarray


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a method says of some frames.

    Attributes:
        rotations: {kind of the answer, "" for the method's own: [m, T, 3, 3]}.
        fit_s, run_s: seconds to learn, and to answer one trajectory.
        yaw: {kind: beliefs over `YAW_BINS` directions [m, T, bin]}, of methods that have some.
    """

    rotations: dict[str, np.ndarray]
    fit_s: float
    run_s: float
    yaw: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Method:
    """A way from frames to rotations.

    Attributes:
        answer: function (training frames, frames to answer, options) -> answers.
        search: values to try of each option, in this order; the first is where the search starts.
    """

    answer: Callable[[Frames, Frames, Options], Answers]
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
    methods, best, searches, rows, found, ours = methods_of(args), {}, [], [], {}, None
    draws = [draw(args, seed) for seed in range(args.seed, args.seed + args.seeds)]
    tests = [test for *_, test in draws]
    for name, method in command_line.progress(methods.items(), "methods"):
        best[name], trials = (method.start, []) if args.quick else search(method, *draws[0][:2])
        searches += [{"method": name, **trial} for trial in trials]
        answers = [method.answer(train, test, best[name]) for train, _, test in draws]
        found[name] = answers[0]
        ours = answers if ours is None else ours
        rows += rows_of(name, answers, tests, ours)
    report(args, rows, best, searches, paint(rows, found, tests[0]), paint_beliefs(found, tests[0]))


def methods_of(args: argparse.Namespace) -> dict[str, Method]:
    """Return all methods by name."""
    # Bandwidths of frames (scale) are multiples of the median distance; those of rotations, and motion, in degrees.
    of_frames = {"components": (20, 10, 40)}
    of_chain = {**of_frames, "motion": (9.0, 6.0, 13.0), "sharpness": (40.0, 20.0, 80.0), "neighbours": (100, 30, 200)}
    of_model = {**of_frames, "power": (0.7, 0.5, 1.0), "obs_ridge": (1e-5, 1e-4, 1e-6), "ridge": (1e-3, 1e-2, 1e-4)}
    of_model |= {"obs_scale": (1.0, 0.5, 2.0), "bandwidth": (11.0, 9.0, 14.0), "form": ("ratio", "expectation")}
    of_regression = {"components": (40, 20, 80), "scale": (0.5, 0.25, 1.0), "ridge": (1e-5, 1e-4, 1e-6)}
    ours = {kernel: partial(propagate, kernel=kernel, rank=args.rank) for kernel in args.kernels}
    return {
        **{f"kernel BP, {kernel}": Method(answer, of_model) for kernel, answer in ours.items()},
        "regression": Method(regress, of_regression),
        "nearest neighbour": Method(nearest, of_frames),
        "neighbours, Viterbi": Method(partial(link, best_path=True), of_chain),
        "neighbours, forward-backward": Method(partial(link, best_path=False), of_chain),
    }


def draw(args: argparse.Namespace, seed: int) -> tuple[Frames, Frames, Frames]:
    """Draw frames to learn from, to choose settings by, and to test on."""
    rng, room, camera = np.random.default_rng(seed), rendering.Room.of_photographs(), rendering.Camera()
    sets = []
    for count, length in ((args.trajectories, 100), (3 * args.tests, 80), (args.tests, 80)):
        rotations = walk(rng, count, length)
        flat = rotations.reshape(-1, 3, 3)
        frames = room.frames(camera, flat)
        frames = frames * np.exp(GAIN * rng.standard_normal((len(flat), 1, 1)))
        frames = frames + args.noise * rng.standard_normal(frames.shape)
        ambiguous = room.share(camera, flat) >= AMBIGUOUS
        pixels = frames.reshape(count, length, -1).astype(np.float32)
        sets.append(Frames(rotations.astype(np.float32), pixels, ambiguous.reshape(count, length)))
    train, validation, test = sets
    return train, validation, test


def walk(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Draw smooth random motion [count, length, 3, 3]: all around in yaw, some degrees in pitch and roll."""

    def process(deviation: float, memory: float) -> np.ndarray:
        """Draw stationary autoregressive processes [count, length] in degrees."""
        noise = rng.standard_normal((length, count)) * np.sqrt(1 - memory**2)
        values = [noise[0] / np.sqrt(1 - memory**2)]
        for step in noise[1:]:
            values.append(memory * values[-1] + step)
        return deviation * np.stack(values, axis=1)

    yaw = rng.uniform(0, 360, (count, 1)) + np.cumsum(process(4.0, 0.9), axis=1)
    pitch, roll = process(10.0, 0.95), process(6.0, 0.95)
    return rendering.rotations_of(*map(np.deg2rad, (yaw, pitch, roll)))


def features_of(train: Frames, test: Frames, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Free frames of brightness, and project them on principal components of the training frames [m, T, component]."""
    plain = []
    for pixels in (train.pixels, test.pixels):
        centred = pixels - pixels.mean(axis=-1, keepdims=True)
        plain.append(centred / np.linalg.norm(centred, axis=-1, keepdims=True))
    flat = plain[0].reshape(-1, plain[0].shape[-1])
    centre = flat.mean(axis=0)
    _, axes = np.linalg.eigh((flat - centre).T @ (flat - centre))
    ours, theirs = ((frames - centre) @ axes[:, : -components - 1 : -1] for frames in plain)
    return ours, theirs


def propagate(train: Frames, test: Frames, options: Options, *, kernel: str, rank: int) -> Answers:
    """Answer by kernel belief propagation on the chain of frames, and by its evidence alone."""
    seen, y = features_of(train, test, options["components"])
    lengths = train.rotations.shape[1], test.rotations.shape[1]
    data = kbp.pool(kbp.chain_graph(lengths[0]), train.rotations, seen)
    bandwidth = np.deg2rad(options["bandwidth"])
    of_rotations = {"trace": lambda: kbp.kernels.Rotations(bandwidth**-2), "heat": lambda: kbp.kernels.Heat(bandwidth)}
    start = time.perf_counter()
    model = kbp.fit(
        data,
        kernel=of_rotations[kernel](),
        obs_kernel=kbp.RBF(options["obs_scale"] * kbp.median_bandwidth(data.observations[0][1])),
        rule=kbp.ConstantTime(eps=1e-3, max_rank=rank),
        ridge=options["ridge"],
        obs_ridge=options["obs_ridge"],
    )
    jax.block_until_ready(model)
    fit_s = time.perf_counter() - start
    form = kbp.DensityRatio() if options["form"] == "ratio" else kbp.Expectation()
    ask = partial(infer, model, y=jnp.asarray(y), candidates=data.nodes[0], power=options["power"], form=form)
    start = time.perf_counter()
    near, mode, mean, yaw = jax.block_until_ready(ask(kbp.chain_graph(lengths[1])))
    run_s = (time.perf_counter() - start) / len(y)
    alone, *_, alone_yaw = ask(kbp.Graph.from_edges(np.zeros((0, 2), int), lengths[1]))
    found = {"": near, ", mode": mode, ", mean": mean, ", no chain": alone}
    beliefs = {"": np.asarray(yaw), ", no chain": np.asarray(alone_yaw)}
    return Answers({kind: np.asarray(value) for kind, value in found.items()}, fit_s, run_s, beliefs)


@jax.jit
def infer(model: kbp.KernelMRF, graph: kbp.Graph, y: Any, candidates: Any, power: Any, form: Any) -> tuple[Any, ...]:
    """Return mean near the mode, mode and mean of all frames of all trajectories, and beliefs over the yaw.

    Candidates are the training rotations, which are samples of the marginal: hence `Empirical`.
    """
    bins = jax.nn.one_hot(yaw_bins(candidates), YAW_BINS, dtype=candidates.dtype)

    def one(y):
        evidence = kbp.observe(model, graph, y, form=form) ** power
        solution = kbp.run_tree(model, graph, evidence)
        belief = kbp.beliefs(model, graph, evidence, solution, candidates, marginal=kbp.Empirical())
        near = jax.vmap(mean_near_mode, in_axes=(0, None))(belief.weights, candidates)
        mean = kbp.kernels.nearest_rotations(kbp.mean(belief))
        return near, kbp.mode(belief), mean, belief.weights @ bins

    return jax.lax.map(one, y)


def yaw_bins(rotations: Any) -> Any:
    """Return the bin of the direction in which each camera looks, from yaw -180 on."""
    turns = jnp.arctan2(rotations[:, 1, 0], rotations[:, 0, 0]) / (2 * jnp.pi) + 0.5
    return jnp.minimum((turns * YAW_BINS).astype(jnp.int32), YAW_BINS - 1)


def mean_near_mode(weights: Any, candidates: Any) -> Any:
    """Return the mean of the candidates within `NEAR` degrees of the one of largest weight, made a rotation."""
    to_mode = cosines(candidates, candidates[jnp.argmax(weights)][None])[:, 0]
    kept = jnp.where(to_mode >= float(np.cos(np.deg2rad(NEAR))), weights, 0)
    return kbp.kernels.nearest_rotations(jnp.einsum("p,pij->ij", kept, candidates))


def cosines(x: Any, y: Any) -> Any:
    """Return the cosines of the angles between rotations [point, 3, 3] and [other, 3, 3]."""
    return jnp.clip((jnp.einsum("pij,qij->pq", x, y) - 1) / 2, -1, 1)


def regress(train: Frames, test: Frames, options: Options) -> Answers:
    """Answer by kernel ridge regression from each frame alone to the nine entries, made a rotation."""
    seen, y = features_of(train, test, options["components"])
    flat, asked = (f.reshape(-1, f.shape[-1]).astype(np.float64) for f in (seen, y))
    bandwidth = options["scale"] * kbp.median_bandwidth(flat)
    start = time.perf_counter()
    targets = train.rotations.reshape(-1, 9).astype(np.float64)
    gram = np.exp(-squares(flat, flat) / (2 * bandwidth**2))
    gram[np.diag_indices_from(gram)] += options["ridge"] * len(flat)
    weights = scipy.linalg.solve(gram, targets - targets.mean(axis=0), assume_a="pos", overwrite_a=True)
    fit_s = time.perf_counter() - start
    start = time.perf_counter()
    entries = np.exp(-squares(asked, flat) / (2 * bandwidth**2)) @ weights + targets.mean(axis=0)
    rotations = np.asarray(kbp.kernels.nearest_rotations(entries.reshape(test.rotations.shape)))
    return Answers({"": rotations}, fit_s, (time.perf_counter() - start) / len(y))


def nearest(train: Frames, test: Frames, options: Options) -> Answers:
    """Answer with the rotation of the training frame that looks most alike."""
    seen, y = features_of(train, test, options["components"])
    start = time.perf_counter()
    distance = squares(y.reshape(-1, y.shape[-1]), seen.reshape(-1, seen.shape[-1]))
    rotations = train.rotations.reshape(-1, 3, 3)[np.argmin(distance, axis=1)].reshape(test.rotations.shape)
    return Answers({"": rotations}, 0.0, (time.perf_counter() - start) / len(y))


def squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return squared distances between rows."""
    return np.maximum(np.sum(x**2, axis=1)[:, None] - 2 * x @ y.T + np.sum(y**2, axis=1), 0)


def link(train: Frames, test: Frames, options: Options, *, best_path: bool) -> Answers:
    """Answer on a chain of the nearest neighbours of each frame, with Gaussian noise and Gaussian motion.

    Either the most probable path (Viterbi), or the mean near the mode of each frame's marginal (forward-backward).
    """
    seen, y = features_of(train, test, options["components"])
    arrays = seen.reshape(-1, seen.shape[-1]), train.rotations.reshape(-1, 3, 3), y
    motion, sharpness = np.float32(np.deg2rad(options["motion"])), np.float32(options["sharpness"])
    count = min(options["neighbours"], len(arrays[0]))
    ask = partial(_link, motion=motion, sharpness=sharpness, count=count, best_path=best_path)
    start = time.perf_counter()
    rotations = np.asarray(ask(*map(jnp.asarray, arrays)))
    return Answers({"": rotations}, 0.0, (time.perf_counter() - start) / len(y))


@partial(jax.jit, static_argnames=("count", "best_path"))
def _link(seen: Any, rotations: Any, y: Any, motion: Any, sharpness: Any, count: int, best_path: bool) -> Any:
    gather = jnp.max if best_path else jax.nn.logsumexp

    def one(y):
        distance = jnp.sum(seen**2, axis=1)[None] - 2 * y @ seen.T
        closeness, numbers = jax.lax.top_k(-distance, count)
        local, candidates = sharpness * closeness, rotations[numbers]

        def step(before, now):
            (message, there), (factor, here) = before, now
            moves = -((jnp.arccos(cosines(here, there)) / motion) ** 2) / 2
            message = gather(moves + message[None], axis=1)
            message = message - jnp.max(message)
            return (message + factor, here), message

        nothing = jnp.zeros(count, local.dtype)
        _, forth = jax.lax.scan(step, (local[0], candidates[0]), (local[1:], candidates[1:]))
        _, back = jax.lax.scan(step, (local[-1], candidates[-1]), (local[:-1], candidates[:-1]), reverse=True)
        logs = local + jnp.concatenate([nothing[None], forth]) + jnp.concatenate([back, nothing[None]])
        if best_path:
            return candidates[jnp.arange(len(logs)), jnp.argmax(logs, axis=1)]
        return jax.vmap(mean_near_mode)(jax.nn.softmax(logs, axis=1), candidates)

    return jax.lax.map(one, y)


def search(method: Method, train: Frames, validation: Frames) -> tuple[Options, list[dict[str, Any]]]:
    """Choose options by the mean error on validation frames, one after the other; return them and all trials."""
    best, least, trials = method.start, np.inf, []
    for option, values in method.search.items():
        for value in values:
            if trials and value == best[option]:
                continue
            options = {**best, option: value}
            rotations = method.answer(train, validation, options).rotations[""]
            error = float(np.mean(degrees_between(rotations, validation.rotations)))
            trials.append({"option": option, "value": str(value), "degrees": error})
            if error < least:
                least, best = error, options
    return best, trials


def rows_of(name: str, answers: list[Answers], tests: list[Frames], ours: list[Answers]) -> list[dict[str, Any]]:
    """Return a flat record for each kind of answer and each subset of the test frames, over all seeds.

    `ours_ahead`: by how many degrees the error exceeds that of `ours` on the same frames, with its standard error.
    """
    truth, ambiguous = (np.concatenate([getattr(test, key) for test in tests]) for key in ("rotations", "ambiguous"))
    fit_s, run_s = (float(np.median([getattr(one, key) for one in answers])) for key in ("fit_s", "run_s"))
    errors_of = lambda found, kind: degrees_between(np.concatenate([one.rotations[kind] for one in found]), truth)
    rows = []
    for kind in answers[0].rotations:
        errors = errors_of(answers, kind)
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
    best: dict[str, Options],
    searches: list[dict],
    picture: Any,
    beliefs: Any,
) -> None:
    """Write JSON and PNG files, print the table and where they are."""
    path, image = args.out / "orientation.json", args.out / "orientation.png"
    camera = dataclasses.asdict(rendering.Camera())
    config = {**vars(args), "camera": camera, "walls": rendering.PICTURES, "ambiguous": AMBIGUOUS, "options": best}
    results.write_results(path, config, rows, searches=searches)
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
