"""Gray images: the image of the paper's denoising experiment, drawn images, photographs, image files."""

import importlib
import importlib.resources
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from PIL import Image, ImageOps

SUNSET_LEVELS = (10, 25, 50, 75, 100, 125, 150, 175, 200, 225, 250)
"""Numbers of gray levels for which the authors published an image."""

PHOTOGRAPHS = {
    **dict.fromkeys(("astronaut", "brick", "camera", "cell", "chelsea"), "skimage.data"),
    **{"china": "sklearn.datasets.images", "clock_motion": "skimage.data", "coffee": "skimage.data"},
    **{"coins": "skimage.data", "flower": "sklearn.datasets.images"},
    **dict.fromkeys(("grass", "gravel", "hubble_deep_field", "ihc", "moon", "motorcycle_left"), "skimage.data"),
    **dict.fromkeys(("page", "retina", "rocket", "text"), "skimage.data"),
}
"""Photographs that come inside the packages scikit-image and scikit-learn, and the package that has each."""

JPEG = ("china", "flower", "hubble_deep_field", "retina", "rocket")
"""Those that are not PNG files."""


def sunset(levels: int, directory: str | Path | None = None) -> tuple[np.ndarray, str]:
    """Load the paper's denoising image, or draw it where the file is absent.

    Args:
        levels: Number of gray levels, one of `SUNSET_LEVELS`.
        directory: The folder of `data_directory`; the file is `sunset/sunset.npz` in it.

    Returns:
        The image [100, 100] with gray values 0..255 as float64, and its source: `"authors"` for the published
        image, `"rings"` for our drawing of it (the two agree, see `rings`).

    Raises:
        ValueError: There is no such image, or the file is damaged or lacks it.
    """
    if levels not in SUNSET_LEVELS:
        accepted = ", ".join(map(str, SUNSET_LEVELS))
        raise ValueError(f"levels must be one of {accepted}; got {levels!r}. Choose one of these.")
    levels = int(levels)
    path = None if directory is None else Path(directory) / "sunset" / "sunset.npz"
    if path is None or not path.is_file():
        return rings(levels), "rings"
    try:
        # Opened here, as np.load leaves the file open when the archive turns out to be damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            image = np.asarray(archive[f"colors_{levels}"]).astype(np.float64)
    except KeyError:
        raise _damaged(path, f"it has no key colors_{levels}") from None
    except (OSError, EOFError, LookupError, RuntimeError, TypeError, ValueError, BadZipFile, zlib.error):
        # NumPy and zipfile report a damaged file as any of these.
        raise _damaged(path, "it cannot be read as an npz archive of numbers") from None
    if image.shape != (100, 100):
        raise _damaged(path, f"colors_{levels} has shape {image.shape}")
    if not (np.isfinite(image).all() and image.min() >= 0 and image.max() <= 255):
        raise _damaged(path, f"colors_{levels} has values outside 0..255")
    return image, "authors"


def _damaged(path: Path, fault: str) -> ValueError:
    """Word the error for a file of the authors' images that cannot be used."""
    return ValueError(
        "sunset.npz must hold arrays [100, 100] of gray values 0..255 under the keys colors_10, ..., "
        f"colors_250; got {str(path)!r}: {fault}. Make it anew from GitHub jegonzal/PowerGraph, "
        "apps/kernelbp/images/source{N}.pgm (every third pixel, offset 1, of each 300 x 300 image), "
        "or remove it to have the same picture drawn."
    )


def rings(levels: int, size: int = 100) -> np.ndarray:
    """Draw the paper's denoising image: half rings around the middle of a horizon, black below it.

    The picture is defined on a canvas of 3 `size` pixels a side, of which every third is kept (offset 1), as
    the authors did. With R half the side of the canvas, a pixel of the upper half at distance d from the
    center of the canvas has ring i = min(floor(d (levels - 1) / R), levels - 1) and gray value
    floor(255 i / (levels - 1)).

    At size 100 it equals all eleven images of the authors (`SUNSET_LEVELS`): share of equal pixels 1, mean
    absolute difference 0, at every level count. As in theirs, sampling loses a few levels of the largest
    counts (of 150 remain 148, of 250 remain 245).

    Args:
        levels: Number of gray levels, 2 to 256.
        size: Height and width in pixels, at least 2.

    Returns:
        Image [size, size] with whole gray values 0..255 as float64.

    Raises:
        ValueError: `levels` or `size` is out of its range.
    """
    if not 2 <= levels <= 256:
        raise ValueError(f"levels must be from 2 to 256; got {levels!r}. Choose a number in this range.")
    if size < 2:
        raise ValueError(f"size must be at least 2 pixels; got {size!r}. Choose a larger image.")
    # Twice the distance from the canvas center, in integers: the ring borders are then exact.
    offset = 2 * (3 * np.arange(size) + 1) - 3 * size
    squared = offset[:, None] ** 2 + offset[None, :] ** 2
    # floor(sqrt(floor(x))) = floor(sqrt(x)), so the division may stay whole as well.
    ring = np.floor(np.sqrt(squared * (levels - 1) ** 2 // (3 * size) ** 2)).astype(np.int64)
    image = np.minimum(ring, levels - 1) * 255 // (levels - 1)
    image[offset >= 0] = 0
    return image.astype(np.float64)


def circles(row: float, col: float, size: int = 100) -> np.ndarray:
    """Draw circles around a point: the gray value is three times the distance in pixels, rounded, 240 at most.

    Args:
        row, col: The point, in pixels; it may lie outside the image.
        size: Height and width in pixels, at least 2.

    Returns:
        Image [size, size] with integer gray values 0..240 as float64.

    Raises:
        ValueError: `size` is less than 2.
    """
    if size < 2:
        raise ValueError(f"size must be at least 2 pixels; got {size!r}. Choose a larger image.")
    i, j = np.mgrid[:size, :size]
    return np.minimum(3 * np.hypot(i - row, j - col), 240).round()


def read_image(path: str | Path, max_side: int | None = None) -> np.ndarray:
    """Read a photograph as gray values.

    Color becomes luma (0.299 R + 0.587 G + 0.114 B), transparency is laid over black, 16-bit gray is scaled
    to 0..255, and the camera's orientation mark is obeyed.

    Args:
        path: A PNG or JPEG file.
        max_side: Largest height or width in pixels; a larger image is scaled down by area averages, never up.
            None keeps the size.

    Returns:
        Image [height, width] with gray values 0..255 as float64.

    Raises:
        ValueError: The file is missing, not a whole PNG or JPEG, or smaller than 2 pixels in height or width
            (before or after scaling); or `max_side` is less than 2.
    """
    path = Path(path)
    if max_side is not None and max_side < 2:
        raise ValueError(f"max_side must be at least 2 pixels; got {max_side!r}. Choose a larger one.")
    if not path.is_file():
        raise ValueError(f"image must be an existing file; got {str(path)!r}. Check the name.")
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as opened:
            opened.load()
            gray = _gray(ImageOps.exif_transpose(opened))
    except Image.DecompressionBombError:
        raise ValueError(
            f"image must have at most {2 * (Image.MAX_IMAGE_PIXELS or 0)} pixels; got more in {str(path)!r}. "
            "Scale it down first."
        ) from None
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error):
        # Pillow reports a damaged file as any of these.
        raise ValueError(
            f"image must be a whole PNG or JPEG file; got {str(path)!r}, which is neither or is damaged. "
            "Convert it to PNG or fetch it anew."
        ) from None
    _check_size(gray.shape, path, "Choose a larger image.")
    if max_side is not None and max(gray.shape) > max_side:
        shape = [max(1, round(side * max_side / max(gray.shape))) for side in gray.shape]
        _check_size(shape, path, f"Raise max_side above {max_side}.")
        small = Image.fromarray(gray.astype(np.float32)).resize(shape[::-1], Image.Resampling.BOX)
        gray = np.clip(np.asarray(small, dtype=np.float64), 0, 255)
    return gray


def photograph(name: str, max_side: int | None = None) -> np.ndarray:
    """Read a photograph that comes inside the package scikit-image or scikit-learn; nothing is downloaded.

    Args:
        name: One of `PHOTOGRAPHS`.
        max_side: Largest height or width in pixels, see `read_image`.

    Returns:
        Image [height, width] with gray values 0..255 as float64.

    Raises:
        ValueError: There is no such photograph, a package is missing, or `max_side` is too small.
    """
    if name not in PHOTOGRAPHS:
        raise ValueError(f"name must be one of {', '.join(PHOTOGRAPHS)}; got {name!r}. Choose one of these.")
    try:
        importlib.import_module(PHOTOGRAPHS[name].partition(".")[0])
        folder = importlib.resources.files(PHOTOGRAPHS[name])
    except ImportError:
        raise ValueError(
            "photograph must find the packages scikit-image and scikit-learn, which hold the pictures; got a Python "
            "without one of them. Install them: pip install 'kbpjax[baselines,estimator]'."
        ) from None
    with importlib.resources.as_file(folder / f"{name}.{'jpg' if name in JPEG else 'png'}") as path:
        return read_image(path, max_side)


def _gray(image: Image.Image) -> np.ndarray:
    """Convert a decoded image of any mode to gray values [height, width] in 0..255."""
    if image.mode.startswith("I"):  # 16-bit gray: "I;16" or, in some versions of Pillow, "I"
        values = np.array(image).astype(np.float64)
        values[values == image.info.get("transparency", -1)] = 0
        return np.clip(values / 257, 0, 255)
    red, green, blue, alpha = np.moveaxis(np.asarray(image.convert("RGBA")).astype(np.int64), -1, 0)
    # Integers up to one division: a gray pixel keeps its value exactly.
    return (299 * red + 587 * green + 114 * blue) * alpha / 255_000


def _check_size(shape: tuple[int, ...] | list[int], path: Path, advice: str) -> None:
    """Refuse an image on which no grid with edges in both directions can be built."""
    if min(shape) < 2:
        raise ValueError(
            f"image must have at least 2 pixels in height and width; got {shape[0]} x {shape[1]} "
            f"from {str(path)!r}. {advice}"
        )
