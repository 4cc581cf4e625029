"""The experiments' images: the authors' files, our drawing of them, photographs."""

import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.lib.datasets import data_directory
from experiments.lib.gray_images import PHOTOGRAPHS, SUNSET_LEVELS, circles, photograph, read_image, rings, sunset

DATA = os.environ.get("KBPJAX_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBPJAX_DATA names no data directory")


def write_sunset(folder: Path, **arrays: np.ndarray) -> Path:
    """Write a data directory with a sunset.npz of the given arrays."""
    (folder / "sunset").mkdir()
    path = folder / "sunset" / "sunset.npz"
    np.savez_compressed(path, **arrays)
    return path


def save(folder: Path, image: Image.Image, name: str = "image.png", **options: object) -> Path:
    """Save an image and return its path."""
    image.save(folder / name, **options)
    return folder / name


# --- data_directory -------------------------------------------------------------------------------


def test_data_directory_prefers_the_argument(tmp_path, monkeypatch):
    given, other = tmp_path / "given", tmp_path / "other"
    given.mkdir()
    other.mkdir()
    monkeypatch.setenv("KBPJAX_DATA", str(other))
    assert data_directory(str(given)) == given
    assert data_directory(given) == given
    assert data_directory(None) == other


@pytest.mark.parametrize("value", [None, ""])
def test_data_directory_without_any_is_none(monkeypatch, value):
    monkeypatch.delenv("KBPJAX_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("KBPJAX_DATA", value)
    assert data_directory(None) is None


def test_data_directory_names_the_missing_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KBPJAX_DATA", str(tmp_path / "unset"))
    with pytest.raises(ValueError, match=r"^data must be an existing folder.*nowhere"):
        data_directory(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"^KBPJAX_DATA must be an existing folder.*unset"):
        data_directory(None)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="existing folder"):
        data_directory(tmp_path / "file")


# --- sunset and rings -----------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("levels", SUNSET_LEVELS)
def test_rings_equal_the_authors_images(levels):
    image, source = sunset(levels, data_directory(None))
    assert source == "authors"
    assert image.shape == (100, 100) and image.dtype == np.float64
    # Share of equal pixels 1, mean absolute difference 0.
    np.testing.assert_array_equal(rings(levels), image)


def test_sunset_reads_the_file_and_not_the_generator(tmp_path):
    marked = np.arange(10_000).reshape(100, 100) % 256
    write_sunset(tmp_path, colors_10=marked.astype(np.uint8))
    image, source = sunset(10, tmp_path)
    assert source == "authors" and image.dtype == np.float64
    np.testing.assert_array_equal(image, marked)


def test_sunset_without_file_is_drawn(tmp_path):
    for directory in (None, tmp_path, str(tmp_path)):
        image, source = sunset(25, directory)
        assert source == "rings"
        np.testing.assert_array_equal(image, rings(25))


@pytest.mark.parametrize("levels", [0, 11, 251, 10.5])
def test_sunset_refuses_other_level_counts(tmp_path, levels):
    write_sunset(tmp_path, colors_11=np.zeros((100, 100)))
    for directory in (None, tmp_path):
        with pytest.raises(ValueError, match=rf"^levels must be one of 10, 25, .*, 250; got {levels}\."):
            sunset(levels, directory)


def test_sunset_without_the_key_says_where_the_file_comes_from(tmp_path):
    write_sunset(tmp_path, colors_10=np.zeros((100, 100), np.uint8))
    with pytest.raises(ValueError, match=r"no key colors_25.*jegonzal/PowerGraph.*source{N}.*third.*offset 1"):
        sunset(25, tmp_path)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((300, 300), np.uint8),
        np.full((100, 100), 256.0),
        np.full((100, 100), -1.0),
        np.full((100, 100), np.nan),
        np.full((100, 100), "text"),
        np.full((100, 100), None),
    ],
    ids=["shape", "above", "below", "nan", "text", "object"],
)
def test_sunset_refuses_arrays_of_another_kind(tmp_path, array):
    write_sunset(tmp_path, colors_10=array)
    with pytest.raises(ValueError, match=r"^sunset.npz must hold arrays \[100, 100\].*PowerGraph"):
        sunset(10, tmp_path)


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "flipped", "npy", "not_an_array"])
def test_sunset_refuses_a_damaged_file(tmp_path, damage):
    rng = np.random.default_rng(0)
    path = write_sunset(tmp_path, colors_10=rng.integers(0, 256, (100, 100), dtype=np.uint8))
    whole = path.read_bytes()
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_bytes(b"this is no archive")
    elif damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        k = len(whole) // 2
        path.write_bytes(whole[:k] + bytes(255 - b for b in whole[k : k + 50]) + whole[k + 50 :])
    elif damage == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros((100, 100)))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("colors_10.npy", b"no array")
    with pytest.raises(ValueError, match=r"^sunset.npz must hold.*PowerGraph, apps/kernelbp/images"):
        sunset(10, tmp_path)


@pytest.mark.parametrize("levels", [2, 10, 100, 256])
@pytest.mark.parametrize("size", [31, 50, 100])
def test_rings_structure(levels, size):
    image = rings(levels, size)
    assert image.shape == (size, size) and image.dtype == np.float64
    assert not image[(size + 1) // 2 :].any(), "the lower half is black"
    upper = image[: (size + 1) // 2]
    assert upper.max() == 255
    palette = np.floor(np.arange(levels) * 255 / (levels - 1))
    assert np.isin(upper, palette).all()
    # Gray depends on the distance from the middle alone and grows with it. (Pixel k lies at 3 k + 1 on the
    # canvas, the middle at 1.5 size.)
    place = 3 * np.arange(size) + 1 - 1.5 * size
    distance = np.hypot(place[: len(upper), None], place[None, :])
    order = np.argsort(distance, axis=None, kind="stable")
    assert (np.diff(upper.ravel()[order])[np.diff(distance.ravel()[order]) > 1e-9] >= 0).all()
    # Rings of equal width up to the radius of the inscribed circle, white outside.
    inside = distance < 1.5 * size
    ring = np.searchsorted(palette, upper) if levels < 256 else upper
    expected = distance * (levels - 1) / (1.5 * size)
    assert ((ring <= expected + 1e-9) & (expected < ring + 1 + 1e-9))[inside].all()
    assert (upper[~inside] == 255).all()


def test_circles_grow_with_the_distance():
    image = circles(3, 100, size=5)
    assert image.shape == (5, 5) and image.max() == 240
    assert circles(1, 2, size=4)[1].tolist() == [6, 3, 0, 3]
    with pytest.raises(ValueError, match="size must be at least 2"):
        circles(0, 0, size=1)


@pytest.mark.parametrize("levels", [-3, 1, 257])
def test_rings_refuses_levels(levels):
    with pytest.raises(ValueError, match=f"^levels must be from 2 to 256; got {levels}"):
        rings(levels)


def test_rings_refuses_size():
    with pytest.raises(ValueError, match=r"^size must be at least 2 pixels; got 1"):
        rings(10, 1)
    assert rings(10, 2).shape == (2, 2)


# --- read_image -----------------------------------------------------------------------------------


@pytest.fixture
def gray() -> np.ndarray:
    """Gray values [40, 60] that use the whole range."""
    return np.linspace(0, 255, 2400).astype(np.uint8).reshape(40, 60)


def test_read_gray_png_exactly(tmp_path, gray):
    image = read_image(save(tmp_path, Image.fromarray(gray)))
    assert image.dtype == np.float64
    np.testing.assert_array_equal(image, gray)
    np.testing.assert_array_equal(read_image(str(tmp_path / "image.png")), gray)


def test_read_color_as_luma(tmp_path):
    rgb = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    expected = rgb @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(read_image(save(tmp_path, Image.fromarray(rgb))), expected, atol=1e-10)


def test_read_gray_stored_as_color_exactly(tmp_path, gray):
    image = Image.fromarray(gray).convert("RGB")
    np.testing.assert_array_equal(read_image(save(tmp_path, image)), gray)


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_read_transparency_over_black(tmp_path, mode):
    image = Image.fromarray(np.full((4, 6), 200, np.uint8)).convert(mode)
    alpha = np.linspace(0, 255, 24).astype(np.uint8).reshape(4, 6)
    image.putalpha(Image.fromarray(alpha))
    np.testing.assert_allclose(read_image(save(tmp_path, image)), 200.0 * alpha / 255, atol=1e-10)


@pytest.mark.parametrize("transparency", [None, 1, bytes([255, 0, 128])], ids=["opaque", "index", "bytes"])
def test_read_palette(tmp_path, transparency):
    index = np.arange(12, dtype=np.uint8).reshape(3, 4) % 3
    image = Image.frombytes("P", (4, 3), index.tobytes())
    image.putpalette([10, 10, 10, 255, 0, 0, 250, 250, 250])
    options = {} if transparency is None else {"transparency": transparency}
    red = 0.299 * 255 if transparency is None else 0.0
    last = 250 * 128 / 255 if isinstance(transparency, bytes) else 250.0
    expected = np.array([10.0, red, last])[index]
    np.testing.assert_allclose(read_image(save(tmp_path, image, **options)), expected, atol=1e-10)


def test_read_16_bit(tmp_path):
    deep = np.linspace(0, 65535, 35).astype(np.uint16).reshape(5, 7)
    np.testing.assert_allclose(read_image(save(tmp_path, Image.fromarray(deep))), deep / 257.0, atol=1e-10)


def test_read_16_bit_with_a_transparent_gray(tmp_path):
    deep = np.array([[0, 257], [25700, 65535]], np.uint16)
    path = save(tmp_path, Image.fromarray(deep), transparency=25700)
    np.testing.assert_allclose(read_image(path), [[0, 1], [0, 255]], atol=1e-10)


def test_read_black_and_white(tmp_path):
    bits = np.eye(6, 9, dtype=bool)
    np.testing.assert_array_equal(read_image(save(tmp_path, Image.fromarray(bits))), 255.0 * bits)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_read_jpeg(tmp_path, gray, mode):
    path = save(tmp_path, Image.fromarray(gray).convert("RGB").convert(mode), "photo.jpg", quality=95)
    image = read_image(path)
    assert image.shape == gray.shape and image.min() >= 0 and image.max() <= 255
    assert np.abs(image - gray).mean() < 3


def test_read_obeys_the_orientation_mark(tmp_path, gray):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn by a quarter clockwise to show
    image = read_image(save(tmp_path, Image.fromarray(gray), exif=exif))
    np.testing.assert_array_equal(image, np.rot90(gray, -1))


def test_max_side_scales_by_area_averages(tmp_path, gray):
    path = save(tmp_path, Image.fromarray(gray))
    image = read_image(path, max_side=30)
    expected = gray.reshape(20, 2, 30, 2).mean((1, 3))
    assert image.dtype == np.float64
    np.testing.assert_allclose(image, expected, atol=1e-3)
    assert read_image(path, max_side=31).shape == (21, 31)
    np.testing.assert_array_equal(read_image(path, max_side=60), gray)
    np.testing.assert_array_equal(read_image(path, max_side=1000), gray)


def test_max_side_holds_for_upright_images(tmp_path, gray):
    assert read_image(save(tmp_path, Image.fromarray(gray.T.copy())), max_side=30).shape == (30, 20)


def test_max_side_must_be_two_or_more(tmp_path, gray):
    with pytest.raises(ValueError, match=r"^max_side must be at least 2 pixels; got 1"):
        read_image(save(tmp_path, Image.fromarray(gray)), max_side=1)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1)])
def test_read_refuses_an_image_without_a_grid(tmp_path, shape):
    path = save(tmp_path, Image.fromarray(np.zeros(shape, np.uint8)))
    with pytest.raises(ValueError, match=f"at least 2 pixels.*got {shape[0]} x {shape[1]} from .*image.png"):
        read_image(path)
    assert read_image(save(tmp_path, Image.fromarray(np.zeros((2, 2), np.uint8)))).shape == (2, 2)


def test_read_refuses_what_scaling_makes_too_thin(tmp_path):
    path = save(tmp_path, Image.fromarray(np.zeros((3, 300), np.uint8)))
    assert read_image(path).shape == (3, 300)
    with pytest.raises(ValueError, match=r"got 1 x 30 .*Raise max_side above 30"):
        read_image(path, max_side=30)


def test_read_names_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"^image must be an existing file; got .*nothing.png"):
        read_image(tmp_path / "nothing.png")
    with pytest.raises(ValueError, match=r"^image must be an existing file"):
        read_image(tmp_path)


@pytest.mark.parametrize("name", ["whole.png", "whole.jpg"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
def test_read_refuses_a_truncated_image(tmp_path, name, share):
    noise = np.random.default_rng(0).integers(0, 256, (80, 80), dtype=np.uint8)
    path = save(tmp_path, Image.fromarray(noise), name)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=f"^image must be a whole PNG or JPEG file; got .*{name}"):
        read_image(path)


def test_read_refuses_other_files(tmp_path, gray):
    (tmp_path / "text.png").write_text("no image at all")
    for path in (tmp_path / "text.png", save(tmp_path, Image.fromarray(gray), "image.bmp")):
        with pytest.raises(ValueError, match=r"^image must be a whole PNG or JPEG file"):
            read_image(path)


def test_read_refuses_a_decompression_bomb(tmp_path, gray, monkeypatch):
    path = save(tmp_path, Image.fromarray(gray))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"^image must have at most 2000 pixels"):
        read_image(path)


# --- photograph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs_are_gray_images(name):
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    image = photograph(name, max_side=64)
    assert max(image.shape) == 64 and image.dtype == np.float64
    assert image.min() >= 0 and image.max() <= 255 and np.ptp(image) > 50


def test_photograph_is_the_file_of_scikit_image():
    data = pytest.importorskip("skimage.data", reason="scikit-image is not installed")
    np.testing.assert_array_equal(photograph("camera"), data.camera())
    luma = data.astronaut() @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(photograph("astronaut"), luma, atol=1e-10)


@pytest.mark.parametrize("name", ["lena", "camera.png", ""])
def test_photograph_refuses_other_names(name):
    with pytest.raises(ValueError, match=rf"^name must be one of astronaut, .*, text; got '{name}'\."):
        photograph(name)


def test_photograph_without_scikit_image_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    with pytest.raises(ValueError, match=r"^photograph must find .*scikit-image.*pip install 'kbpjax\[baselines,"):
        photograph("camera")
