"""The command line: `python -m kbpjax denoise | info | bench`."""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from kbpjax import _checks
from kbpjax.io import describe

DENOISE = """Clean a noisy picture with a model learned from another one.

The model learns from a clean picture, to which it adds noise of the given strength, what neighboring pixels are like
and what noise does to them; then it cleans each color of the noisy picture on the grid of its pixels.

  python -m kbpjax denoise noisy.png cleaned.png --learn clean.png --noise 30
  python -m kbpjax denoise noisy.png cleaned.png --learn clean.png --noise 30 --save photos.kbp
  python -m kbpjax denoise other.png cleaned2.png --model photos.kbp
"""
INFO = """Say what is in a file that kbpjax.save has written.

  python -m kbpjax info photos.kbp
"""
BENCH = """Time message passing on this machine: a grid at three ranks, beside the matrix products that it needs.

  python -m kbpjax bench --side 100
"""
SIZES = ((6, 11), (17, 31), (39, 73))
"""Ranks of messages and numbers of points: a smooth picture, one with a hundred gray values, a hard one."""
POINTS = 256
FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
"""Of pictures by their endings; others are PNG."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        Exit status: 0; 2 after wrong arguments or input, which become one line on standard error; 130 after an
        interrupt.
    """
    try:
        args = parser().parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help or its error
        return stop.code if isinstance(stop.code, int) else 2
    try:
        args.run(args)
    except (ValueError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(prog="python -m kbpjax", description="Kernel belief propagation from the shell.")
    whole.add_argument("--version", action="version", version=f"kbpjax {kbp.__version__}, jax {jax.__version__}")
    commands = whole.add_subparsers(required=True, metavar="denoise | info | bench")
    layout: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    one = commands.add_parser("denoise", help="clean a noisy picture", description=DENOISE, **layout)
    one.add_argument("noisy", type=Path, help="the picture to clean")
    one.add_argument("out", type=Path, help="where to write the cleaned picture; must not exist, but with --force")
    source = one.add_mutually_exclusive_group(required=True)
    source.add_argument("--learn", type=Path, metavar="CLEAN", help="a clean picture to learn from")
    source.add_argument("--model", type=Path, metavar="FILE", help="a model saved by an earlier run")
    strength = "standard deviation of the noise, in gray values of 0 .. 255 (default: 30)"
    one.add_argument("--noise", type=float, default=30.0, metavar="SD", help=strength)
    one.add_argument("--save", type=Path, metavar="FILE", help="where to save the learned model")
    one.add_argument("--iters", type=int, default=10, help="iterations of message passing (default: 10)")
    one.add_argument("--seed", type=int, default=0, help="of the noise that is learned from (default: 0)")
    one.add_argument("--force", action="store_true", help="replace files that exist")
    one.set_defaults(run=denoise)
    two = commands.add_parser("info", help="say what is in a saved file", description=INFO, **layout)
    two.add_argument("file", type=Path)
    two.set_defaults(run=info)
    three = commands.add_parser("bench", help="time message passing on this machine", description=BENCH, **layout)
    three.add_argument("--side", type=int, default=100, help="of the grid (default: 100)")
    three.add_argument("--iters", type=int, default=30, help="iterations (default: 30)")
    three.add_argument("--repeats", type=int, default=7, help="timed runs of each (default: 7)")
    three.set_defaults(run=bench)
    return whole


def denoise(args: argparse.Namespace) -> None:
    """Clean a picture."""
    _checks.require_count("--iters", args.iters)
    _checks.require_seed(args.seed)
    _checks.require_number("--noise", args.noise, above=0)
    for path in (args.out, args.save):
        _check_free(path, args.force)
    noisy = _read(args.noisy)
    if args.model is None:
        model = _learn(_read(args.learn), args.noise, args.seed)
    else:
        model = kbp.load(args.model)
        fine = isinstance(model, kbp.KernelMRF) and bool(model.observations)
        rule = "must hold a model of pixels and their observations"
        _checks.require(fine, "--model", rule, type(model).__name__, "Save one with denoise --save.")
    if args.save is not None:
        kbp.save(args.save, model)
    graph = kbp.grid_graph(*noisy.shape[:2])
    points = jnp.linspace(0, 255, POINTS)

    @jax.jit
    def clean(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        evidence = kbp.observe(model, graph, y)
        solution = kbp.run(model, graph, evidence, num_iters=args.iters, damping=0.2)
        belief = kbp.beliefs(model, graph, evidence, solution, points)
        return kbp.mean(belief), jnp.sqrt(kbp.variance(belief))

    start = time.perf_counter()
    found = [[np.asarray(of) for of in clean(jnp.asarray(noisy[..., c].ravel()))] for c in range(noisy.shape[2])]
    cleaned, spread = (np.stack([pair[i] for pair in found], axis=-1).reshape(noisy.shape) for i in range(2))
    _write(args.out, cleaned)
    took = time.perf_counter() - start
    print(f"{noisy.shape[0]} x {noisy.shape[1]} pixels, {noisy.shape[2]} colors, in {took:.1f} s.")
    changed, unsure = np.sqrt(np.mean((cleaned - noisy) ** 2)), np.mean(spread)
    print(f"Changed by {changed:.1f} gray values (root mean square); standard deviation of beliefs {unsure:.1f}.")
    for path in (args.out, args.save):
        if path is not None:
            print(f"Wrote {path}")


def info(args: argparse.Namespace) -> None:
    """Print what a file holds."""
    for name, value in describe(args.file).items():
        print(f"{name:12} {value}")
    loaded = kbp.load(args.file)
    if isinstance(loaded, kbp.KernelMRF):
        print(f"{'node types':12} " + ", ".join(f"{v} (rank {r}, {p} points)" for v, (r, p) in loaded.ranks.items()))
        print(f"{'edge types':12} " + ", ".join(f"{k} ({a} - {b})" for k, a, b in loaded.edge_types))
        print(f"{'observed':12} " + (", ".join(map(str, loaded.observations)) or "no node type"))


def bench(args: argparse.Namespace) -> None:
    """Print times of runs beside those of the bare products."""
    for name in ("side", "iters", "repeats"):
        _checks.require_count(f"--{name}", getattr(args, name))
    graph = kbp.grid_graph(args.side, args.side)
    device = jax.devices()[0].device_kind
    print(f"{args.side} x {args.side} grid, {graph.num_edges} messages, {args.iters} iterations, {device}")
    print(f"{'rank':>6} {'points':>6} {'run s':>8} {'ms an iteration':>16} {'run / products':>15}")
    for rank, points in SIZES:
        run, products = _times(graph, rank, points, args.iters, args.repeats)
        ratio = statistics.median(a / b for a, b in zip(run, products, strict=True))
        seconds = statistics.median(run)
        print(f"{rank:6} {points:6} {seconds:8.3f} {1e3 * seconds / args.iters:16.2f} {ratio:15.1f}")


def _times(graph: kbp.Graph, rank: int, points: int, iters: int, repeats: int) -> tuple[list[float], list[float]]:
    """Time runs and the matrix products in them, in turn."""
    keys = jax.random.split(jax.random.key(0), 3)
    evaluate = jax.random.uniform(keys[0], (1, points, rank))
    project = jax.random.uniform(keys[1], (2, rank, points))
    local = jax.random.uniform(keys[2], (graph.num_nodes, points))
    operators = kbp.Operators(evaluate, project, 1e-6)
    messages = jnp.ones((graph.num_edges, rank))

    @jax.jit
    def products(messages: jax.Array) -> jax.Array:
        body = lambda m, _: ((m @ evaluate[0].T) @ project[0].T / points, None)
        return jax.lax.scan(body, messages, length=iters)[0]

    calls = (lambda: kbp.run(operators, graph, local, num_iters=iters).messages, lambda: products(messages))
    for call in calls:
        jax.block_until_ready(call())
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, seconds in zip(calls, found, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds.append(time.perf_counter() - start)
    return found


def _learn(clean: np.ndarray, noise: float, seed: int) -> kbp.KernelMRF:
    """Learn from all colors of a clean picture and a noisy copy; bandwidths are near *narrow* of docs/images.md."""
    rng = np.random.default_rng(seed)
    values = np.moveaxis(clean, 2, 0).reshape(clean.shape[2], -1)
    seen = (values + noise * rng.standard_normal(values.shape)).astype(np.float32)
    fix = "Learn from a picture with more than one gray value."
    _checks.require(bool(np.ptp(values) > 0), "--learn", "must not be of one gray value", values.flat[0], fix)
    kernel = kbp.RBF(0.25 * kbp.median_bandwidth(values.ravel()))
    obs_kernel = kbp.RBF(0.35 * kbp.median_bandwidth(seen.ravel()))
    data = kbp.pool(kbp.grid_graph(*clean.shape[:2]), values, seen)
    return kbp.fit(data, kernel=kernel, obs_kernel=obs_kernel, ridge=1 / values.size)


def _read(path: Path) -> np.ndarray:
    """Read a picture as numbers [row, column, color] of 0 .. 255."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ValueError("picture: must be read by Pillow; got none. Install it: pip install pillow") from None
    _checks.require(path.is_file(), "picture", "must be a file", str(path), "Check the name.")
    try:
        with Image.open(path) as picture:
            gray = picture.mode in ("1", "L", "LA", "I", "I;16", "F")
            pixels = np.asarray(picture.convert("L" if gray else "RGB"), np.float32)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"picture: must be one that Pillow reads; got {path}: {error}. Convert it to PNG.") from None
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    fix = "Take a larger one."
    _checks.require(min(pixels.shape[:2]) >= 2, "picture", "must have 2 x 2 pixels or more", pixels.shape[:2], fix)
    return pixels


def _write(path: Path, pixels: np.ndarray) -> None:
    """Write a picture, whole or not at all."""
    from PIL import Image

    from kbpjax._misc import replacing

    whole = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    with replacing(path) as file:
        Image.fromarray(whole[..., 0] if whole.shape[2] == 1 else whole).save(
            file, FORMATS.get(path.suffix.lower(), "PNG")
        )


def _check_free(path: Path | None, force: bool) -> None:
    """Refuse to replace a file that one has not been asked to."""
    if path is None:
        return
    _checks.require(path.parent.is_dir(), str(path), "must be in a folder that exists", str(path.parent), "Make it.")
    _checks.require(force or not path.exists(), str(path), "must not exist", "a file", "Pass --force to replace it.")


if __name__ == "__main__":
    sys.exit(main())
