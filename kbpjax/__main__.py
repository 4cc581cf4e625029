"""The command line: `python -m kbpjax denoise | info`."""

import argparse
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from kbpjax import _checks
from kbpjax._misc import show
from kbpjax.io import describe

DENOISE = """Denoise an image with a model learned from a clean image.

Training adds noise of the given standard deviation to the clean image. The model learns the relation of neighboring
pixels and the noise model, with hyperparameters chosen on parts of the image. Each color channel is then denoised on
the pixel grid. Messages are iterated until they converge.

  python -m kbpjax denoise noisy.png cleaned.png --learn clean.png --noise 30
  python -m kbpjax denoise noisy.png cleaned.png --learn clean.png --noise 30 --save photos.kbp
  python -m kbpjax denoise other.png cleaned2.png --model photos.kbp
"""
INFO = """Describe a file written by kbpjax.save.

  python -m kbpjax info photos.kbp
"""
NOISE = 30.0
"""Standard deviation of the training noise, in gray values."""

GRAY = ("1", "L", "LA", "I", "F")
"""Modes of Pillow without color; "I" and "F" are refused unless they hold 16 bits."""

UNREADABLE = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError),
    *(MemoryError, struct.error, zlib.error),
)
"""Exceptions of Pillow on damaged files."""

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".tif": "TIFF", ".tiff": "TIFF"}
"""{file extension: image format}; other extensions are PNG."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments; None: arguments of the process.

    Returns:
        Exit status: 0; 2 for invalid arguments or input, with one line on standard error; 130 after an interrupt.
    """
    try:
        args = parser().parse_args(argv)
    except SystemExit as stop:  # after argparse printed its help or error
        return stop.code if isinstance(stop.code, int) else 2
    try:
        args.run(args)
    except (ValueError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted", *stop.args, sep=": ", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(prog="python -m kbpjax", description="Kernel belief propagation from the shell.")
    top.add_argument("--version", action="version", version=f"kbpjax {kbp.__version__}, jax {jax.__version__}")
    commands = top.add_subparsers(required=True, metavar="denoise | info")
    layout: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    one = commands.add_parser("denoise", help="denoise an image", description=DENOISE, **layout)
    one.add_argument("noisy", type=Path, help="image to denoise")
    one.add_argument("out", type=Path, help="path of the denoised image; must not exist without --force")
    source = one.add_mutually_exclusive_group(required=True)
    source.add_argument("--learn", type=Path, metavar="CLEAN", help="clean image to learn from")
    source.add_argument("--model", type=Path, metavar="FILE", help="model saved by an earlier run")
    noise_help = f"with --learn: standard deviation of the noise, in gray values 0 .. 255 (default: {NOISE:g})"
    one.add_argument("--noise", type=float, metavar="SD", help=noise_help)
    one.add_argument("--save", type=Path, metavar="FILE", help="path of the learned model")
    one.add_argument("--iters", type=int, default=200, help="maximum number of iterations (default: 200)")
    one.add_argument("--seed", type=int, default=0, help="seed of the training noise (default: 0)")
    one.add_argument("--force", action="store_true", help="replace existing files")
    one.set_defaults(run=denoise)
    two = commands.add_parser("info", help="describe a saved file", description=INFO, **layout)
    two.add_argument("file", type=Path)
    two.set_defaults(run=info)
    return top


def denoise(args: argparse.Namespace) -> None:
    """Write a denoised image."""
    _checks.require_count("--iters", args.iters)
    _checks.require_seed(args.seed)
    if args.noise is not None:
        _checks.require_number("--noise", args.noise, above=0)
        fix = "The saved model fixes the noise. For other noise, learn a model with --learn."
        _checks.require(args.model is None, "--noise", "must be left out with --model", f"{args.noise:g}", fix)
    for path in (args.out, args.save):
        _check_free(path, args.force)
    same = args.save is not None and args.save.resolve() == args.out.resolve()
    _checks.require(not same, "--save", "must be another file than the image", str(args.save), "Name it model.kbp.")
    noisy = _read(args.noisy)
    if args.model is None:
        model = _learn(_read(args.learn), NOISE if args.noise is None else args.noise, args.seed)
    else:
        model = kbp.load(args.model)
        ok = isinstance(model, kbp.KernelMRF) and bool(model.observations)
        rule = "must hold a model of pixels and their observations"
        _checks.require(ok, "--model", rule, type(model).__name__, "Save one with denoise --save.")
    if args.save is not None:
        kbp.save(args.save, model)
    try:
        _denoise(args, model, noisy)
    except KeyboardInterrupt:
        kept = f"the model is in {args.save}; pass --model {args.save} to go on with it"
        raise KeyboardInterrupt(*([] if args.save is None else [kept])) from None


def _denoise(args: argparse.Namespace, model: kbp.KernelMRF, noisy: np.ndarray) -> None:
    """Write the denoised image, and print what was done."""
    graph = kbp.grid_graph(*noisy.shape[:2])

    @jax.jit
    def clean(model: kbp.KernelMRF, y: jax.Array) -> tuple[jax.Array, jax.Array, kbp.Solution]:
        posterior = kbp.infer(model, graph, y, num_iters=args.iters)
        return kbp.mean(posterior), kbp.std(posterior), posterior.solution

    start = time.perf_counter()
    means, deviations, solutions = [], [], []
    for c in range(noisy.shape[2]):
        _progress(f"denoising channel {c + 1} of {noisy.shape[2]}")
        mean, deviation, solution = clean(model, jnp.asarray(noisy[..., c].ravel()))
        means.append(mean)
        deviations.append(deviation)
        solutions.append(solution)
    cleaned = np.stack(means, axis=-1).reshape(noisy.shape)
    _write(args.out, cleaned)
    seconds = time.perf_counter() - start
    channels = "1 channel" if noisy.shape[2] == 1 else f"{noisy.shape[2]} channels"
    print(f"{noisy.shape[0]} x {noisy.shape[1]} pixels, {channels}, in {seconds:.1f} s.")
    residual = max(float(solution.residual) for solution in solutions)
    if all(bool(solution.converged) for solution in solutions):
        print(f"Messages converged in {max(int(solution.num_iters) for solution in solutions)} iterations.")
    else:
        problem = f"messages have not converged in {args.iters} iterations: residual {residual:.2g}"
        print(f"warning: {problem}. Pass a larger --iters.", file=sys.stderr)
    change, deviation = np.sqrt(np.mean((cleaned - noisy) ** 2)), np.mean(deviations)
    print(f"RMS change {change:.1f} gray values; mean standard deviation of beliefs {deviation:.1f}.")
    for path in (args.out, args.save):
        if path is not None:
            print(f"Wrote {path}")


def info(args: argparse.Namespace) -> None:
    """Print a description of a file."""
    for name, value in describe(args.file).items():
        print(f"{name:12} {value}")
    print(show(kbp.load(args.file)))


def _learn(clean: np.ndarray, noise: float, seed: int) -> kbp.KernelMRF:
    """Return a model of all channels of a clean image and a noisy copy."""
    rng = np.random.default_rng(seed)
    values = np.moveaxis(clean, 2, 0).reshape(clean.shape[2], -1)
    noisy = (values + noise * rng.standard_normal(values.shape)).astype(np.float32)
    fix = "Pass an image with more than one gray value."
    _checks.require(bool(np.ptp(values) > 0), "--learn", "must not be constant", values.flat[0], fix)
    _progress(f"learning from {clean.shape[0]} x {clean.shape[1]} pixels; this takes about half a minute")
    return kbp.fit(kbp.pool(kbp.grid_graph(*clean.shape[:2]), values, noisy))


def _progress(text: str) -> None:
    """Print what is being done to standard error."""
    print(f"{text} ...", file=sys.stderr, flush=True)


def _read(path: Path) -> np.ndarray:
    """Return an image as numbers 0 .. 255 [row, column, color]; 16 bits are scaled, transparency is laid over white."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError("image: Pillow must be installed; got none. Install it: pip install pillow") from None
    _checks.require(path.is_file(), "image", "must be a file", str(path), "Check the name.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(path)
        with picture:
            frames = 1 if picture.format == "MPO" else getattr(picture, "n_frames", 1)  # MPO: a photograph, and more
            mode = picture.mode
            deep = mode.startswith("I;16") or (mode == "I" and picture.format in ("PNG", "PPM"))
            whole = ImageOps.exif_transpose(picture)
            pixels, transparent = _deep_pixels(whole) if deep else _pixels(whole)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        rule = f"must have at most {Image.MAX_IMAGE_PIXELS} pixels"
        raise ValueError(f"image: {rule}; got more in {path}. Scale it down, or cut it into parts.") from None
    except UNREADABLE as error:
        raise ValueError(f"image: must be readable by Pillow; got {path}: {error}. Convert it to PNG.") from None
    got = f"{path}, of type {mode}"
    fix = "Its range is not known: scale the values to 0 .. 65535, and save them as PNG of 16 bits."
    _checks.require(deep or mode not in ("I", "F"), "image", "must have 8 or 16 bits per channel", got, fix)
    _checks.require(frames == 1, "image", "must be a single picture", f"{frames} in {path}", "Save one as PNG.")
    if transparent:
        print(f"note: {path} is transparent; it is laid over white.", file=sys.stderr)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    fix = "Pass a larger image."
    _checks.require(min(pixels.shape[:2]) >= 2, "image", "must have at least 2 x 2 pixels", pixels.shape[:2], fix)
    return pixels


def _pixels(picture: Any) -> tuple[np.ndarray, bool]:
    """Return the pixels of a picture of 8 bits, over white where it is transparent, and whether it is."""
    from PIL import Image

    kind, transparent = "L" if picture.mode in GRAY else "RGB", False
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        transparent = picture.getextrema()[3][0] < 255
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return np.asarray(picture.convert(kind), np.float32), transparent


def _deep_pixels(picture: Any) -> tuple[np.ndarray, bool]:
    """Return the pixels of a gray picture of 16 bits, scaled to 0 .. 255, as `_pixels`."""
    values = np.asarray(picture).astype(np.float32)
    hidden = values == picture.info.get("transparency", -1)
    return np.where(hidden, 255, values / 257), bool(hidden.any())


def _write(path: Path, pixels: np.ndarray) -> None:
    """Write an image atomically."""
    from PIL import Image

    from kbpjax._misc import replacing

    rounded = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    image = Image.fromarray(rounded[..., 0] if rounded.shape[2] == 1 else rounded)
    with replacing(path) as file:
        image.save(file, FORMATS.get(path.suffix.lower(), "PNG"))


def _check_free(path: Path | None, force: bool) -> None:
    """Raise ValueError if a path exists without `force`, or its folder does not exist."""
    if path is None:
        return
    _checks.path_to_write(str(path), path)
    _checks.require(force or not path.exists(), str(path), "must not exist", "a file", "Pass --force to replace it.")


if __name__ == "__main__":
    sys.exit(main())
