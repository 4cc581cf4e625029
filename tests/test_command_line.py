"""The command line, as a user types it: pictures, saved models; one line for a mistake."""

import os
import signal
import struct
import subprocess
import sys
import zlib
from functools import partial

import numpy as np
import pytest
from PIL import Image

import kbpjax as kbp
from kbpjax.__main__ import _read, main
from tests.programs import SETTINGS, SHORT, python
from tests.refusals import not_refused


@pytest.fixture
def quick(monkeypatch):
    """Replace the choice of hyperparameters by given ones."""
    options = {"kernel": kbp.RBF(20.0), "obs_kernel": kbp.RBF(25.0), "ridge": 1e-3}
    monkeypatch.setattr(kbp, "fit", partial(kbp.fit, **options))


@pytest.fixture
def heard():
    """Let the programs that a test starts hear an interrupt, which those in the background of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def picture(path, seed=0, colors=1, noise=0.0):
    rng = np.random.default_rng(seed)
    i, j = np.mgrid[:30, :24]
    waves = [128 + 100 * np.sin((i + k * j) / 6 + seed) for k in range(1, colors + 1)]
    pixels = np.stack(waves, axis=-1) + noise * rng.normal(size=(30, 24, colors))
    pixels = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    Image.fromarray(pixels[..., 0] if colors == 1 else pixels).save(path)
    return pixels


def pixels_of(path):
    with Image.open(path) as image:
        return np.asarray(image, float)


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_a_picture_is_cleaned_and_its_model_used_again(tmp_path, capsys, quick):
    picture(tmp_path / "clean.png")
    truth = picture(tmp_path / "other.png", seed=1)[..., 0]
    noisy = picture(tmp_path / "noisy.png", seed=1, noise=30)[..., 0]
    paths = tmp_path / "noisy.png", tmp_path / "cleaned.png"
    assert run("denoise", *paths, "--learn", tmp_path / "clean.png", "--save", tmp_path / "model.kbp") == 0
    said, progress = capsys.readouterr()
    assert "30 x 24 pixels, 1 channel," in said and f"Wrote {paths[1]}" in said and "model.kbp" in said
    assert "Messages converged in" in said and "warning" not in progress
    assert "learning from 30 x 24 pixels" in progress and "denoising channel 1 of 1" in progress
    cleaned = pixels_of(paths[1])
    rmse = [np.sqrt(np.mean((of - truth.astype(float)) ** 2)) for of in (noisy.astype(float), cleaned)]
    assert rmse[1] < 0.5 * rmse[0]
    again = tmp_path / "again.png"
    assert run("denoise", paths[0], again, "--model", tmp_path / "model.kbp") == 0
    np.testing.assert_array_equal(pixels_of(again), cleaned)
    assert run("info", tmp_path / "model.kbp") == 0
    said = capsys.readouterr().out
    assert "kbpjax.learning.model.KernelMRF" in said and repr(kbp.load(tmp_path / "model.kbp")) in said


@pytest.mark.slow
def test_colors_jpeg_and_too_few_iterations(tmp_path, capsys, quick):
    picture(tmp_path / "clean.png", colors=3)
    picture(tmp_path / "noisy.png", seed=1, colors=3, noise=20)
    out = tmp_path / "cleaned.jpg"
    options = ("--learn", tmp_path / "clean.png", "--noise", 20, "--iters", 3)
    assert run("denoise", tmp_path / "noisy.png", out, *options) == 0
    with Image.open(out) as image:
        assert image.format == "JPEG" and image.mode == "RGB" and image.size == (24, 30)
    said, warned = capsys.readouterr()
    assert "3 channels" in said and "converged" not in said
    assert "warning: messages have not converged in 3 iterations: residual 0." in warned
    assert "Pass a larger --iters." in warned


@pytest.mark.slow
def test_hyperparameters_are_chosen_and_saved(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kbp, "fit", partial(kbp.fit, effort="low"))
    i, j = np.mgrid[:30, :30]
    train, truth = (np.minimum(8 * np.hypot(i - row, j - col), 240) for row, col in ((10, 5), (29, 15)))
    noisy = np.clip(truth + 30 * np.random.default_rng(1).standard_normal(truth.shape), 0, 255)
    for name, pixels in {"clean": train, "noisy": noisy}.items():
        Image.fromarray(np.rint(pixels).astype(np.uint8)).save(tmp_path / f"{name}.png")
    paths = tmp_path / "noisy.png", tmp_path / "cleaned.png"
    assert run("denoise", *paths, "--learn", tmp_path / "clean.png", "--save", tmp_path / "model.kbp") == 0
    assert "Messages converged in" in capsys.readouterr().out
    assert np.sqrt(np.mean((pixels_of(paths[1]) - truth) ** 2)) < 10
    assert kbp.load(tmp_path / "model.kbp").hyperparameters is not None


GRADIENT = np.add.outer(np.arange(30) * 4, np.arange(24) * 4).astype(np.uint8)
ALPHA = np.where(np.arange(30) < 5, 0, np.where(np.arange(30) < 10, 102, 255))[:, None] + 0 * GRADIENT
COLORS = np.stack([GRADIENT, 255 - GRADIENT, GRADIENT // 2], axis=-1)


def write(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


def png(path, bits, color, rows, shape=(24, 30)):
    """Write a PNG that Pillow cannot write: 16-bit colors, or a header alone."""
    parts = [b"\x89PNG\r\n\x1a\n"]
    header = struct.pack(">IIBBBBB", *shape, bits, color, 0, 0, 0)
    for kind, content in {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}.items():
        parts.append(struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)))
    path.write_bytes(b"".join(parts))
    return path


def test_every_type_of_picture_has_the_values_of_its_twin_of_8_bits(tmp_path, capsys):
    deep, over = GRADIENT.astype(np.uint16) * 257, lambda pixels: 255 + (pixels - 255.0) * ALPHA[..., None] / 255
    of_rows = lambda pixels: b"".join(b"\0" + (row.astype(">u2") * 257).tobytes() for row in pixels)
    gray = GRADIENT[..., None].astype(float)
    black_is_white = np.where(gray == 0, 255, gray)
    la, rgba = np.dstack([GRADIENT, ALPHA]).astype(np.uint8), np.dstack([COLORS, ALPHA]).astype(np.uint8)
    turned = Image.Exif()
    turned[274] = 3  # half a turn
    pictures = {
        "gray": (write(tmp_path / "gray.png", GRADIENT), gray),
        "16 bits": (write(tmp_path / "deep.png", deep), gray),
        "TIFF": (write(tmp_path / "deep.tif", deep), gray),
        "TIFF, big-endian": (write(tmp_path / "big.tif", deep.astype(">u2")), gray),
        "PGM of 16 bits": (write(tmp_path / "deep.pgm", deep), gray),
        "black and white": (write(tmp_path / "1.png", GRADIENT > 90), np.where(gray > 90, 255.0, 0)),
        "GIF": (write(tmp_path / "gray.gif", GRADIENT), np.repeat(gray, 3, axis=2)),
        "palette": (write(tmp_path / "p.png", np.asarray(COLORS)), COLORS),
        "16-bit colors": (png(tmp_path / "deepc.png", 16, 2, of_rows(COLORS)), COLORS),
        "opaque": (write(tmp_path / "opaque.png", np.dstack([COLORS, 255 + 0 * GRADIENT])), COLORS),
        "turned": (write(tmp_path / "turned.tif", GRADIENT, exif=turned), gray[::-1, ::-1]),
        "CMYK": (tmp_path / "cmyk.tif", COLORS),
    }
    Image.fromarray(COLORS).convert("CMYK").save(tmp_path / "cmyk.tif")
    Image.fromarray(COLORS).quantize(256).save(tmp_path / "p.png")
    for name, (path, expected) in pictures.items():
        np.testing.assert_allclose(_read(path), expected, atol=1.01 if name == "CMYK" else 1e-4, err_msg=name)
    assert capsys.readouterr().err == ""
    transparent = {
        "gray, alpha": (write(tmp_path / "la.png", la), over(gray)),
        "colors, alpha": (write(tmp_path / "rgba.png", rgba), over(COLORS)),
        "16-bit colors, alpha": (png(tmp_path / "deepa.png", 16, 6, of_rows(rgba)), over(COLORS)),
        "transparent value": (write(tmp_path / "t.png", GRADIENT, transparency=0), black_is_white),
        "transparent value of 16 bits": (write(tmp_path / "t16.png", deep, transparency=0), black_is_white),
    }
    for name, (path, expected) in transparent.items():
        np.testing.assert_allclose(_read(path), expected, atol=1.01, err_msg=name)
        assert capsys.readouterr().err == f"note: {path} is transparent; it is laid over white.\n"


def test_pictures_that_have_no_twin_of_8_bits_are_refused(tmp_path):
    deep, more = GRADIENT.astype(np.int32) * 257, {"save_all": True, "append_images": [Image.fromarray(255 - COLORS)]}
    range_unknown, several = "image: must have 8 or 16 bits per channel; got", "image: must be a single picture; got 2"
    pictures = {
        "integers of 32 bits": (write(tmp_path / "i.tif", deep), range_unknown),
        "floats": (write(tmp_path / "f.tif", GRADIENT.astype(np.float32) / 255), range_unknown),
        "animated GIF": (write(tmp_path / "a.gif", COLORS, **more), several),
        "animated PNG": (write(tmp_path / "a.png", COLORS, **more), several),
        "pages": (write(tmp_path / "a.tif", COLORS, **more), several),
        "huge": (png(tmp_path / "huge.png", 8, 0, b"", (60_000, 60_000)), "image: must have at most 89478485 pixels"),
        "large": (png(tmp_path / "large.png", 8, 0, b"", (10_000, 10_000)), "image: must have at most 89478485 pixels"),
        "cut off": (png(tmp_path / "cut.png", 8, 0, b""), "image: must be readable by Pillow"),
        "folder": (tmp_path, "image: must be a file"),
    }
    assert not not_refused({name: (partial(_read, path), said) for name, (path, said) in pictures.items()})


@pytest.mark.slow
def test_16_bits_and_transparency_give_the_output_of_their_twins(tmp_path, quick):
    clean = write(tmp_path / "clean.png", GRADIENT)
    rgba = np.dstack([COLORS, ALPHA]).astype(np.uint8)
    over = Image.alpha_composite(Image.new("RGBA", (24, 30), "white"), Image.fromarray(rgba))
    twins = {
        "deep.png": (GRADIENT.astype(np.uint16) * 257, GRADIENT),
        "alpha.png": (rgba, np.asarray(over.convert("RGB"))),
    }
    for name, (pixels, twin) in twins.items():
        paths = write(tmp_path / name, pixels), write(tmp_path / f"twin of {name}", twin)
        outs = [path.with_stem(f"{path.stem} out") for path in paths]
        for path, out in zip(paths, outs, strict=True):
            assert run("denoise", path, out, "--learn", clean, "--noise", 5, "--iters", 2) == 0
        one, other = map(pixels_of, outs)
        np.testing.assert_array_equal(one, other)
        assert abs(one.mean() - twin.mean()) < 10


def test_files_that_exist_are_replaced_only_if_asked(tmp_path, capsys, quick):
    picture(tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    given = ("denoise", tmp_path / "a.png", tmp_path / "a.png", "--learn", tmp_path / "a.png", "--iters", 1)
    assert run(*given) == 2
    assert "must not exist; got a file. Pass --force" in capsys.readouterr().err
    assert (tmp_path / "a.png").read_bytes() == before
    assert run(*given, "--force") == 0
    assert (tmp_path / "a.png").read_bytes() != before


def wrong(folder):
    picture(folder / "a.png")
    Image.fromarray(np.full((5, 5), 7, np.uint8)).save(folder / "flat.png")
    Image.fromarray(np.zeros((1, 9), np.uint8)).save(folder / "thin.png")
    (folder / "text.png").write_text("no picture")
    kbp.save(folder / "graph.kbp", kbp.chain_graph(3))
    a, out = folder / "a.png", folder / "out.png"
    denoise = lambda *more, noisy=a, out=out: ("denoise", noisy, out, *more)
    return {
        "nothing": ((), "usage"),
        "no source": (denoise(), "one of the arguments --learn --model is required"),
        "both": (denoise("--learn", a, "--model", a), "not allowed with"),
        "missing": (denoise("--learn", a, noisy=folder / "none.png"), "image: must be a file"),
        "no picture": (denoise("--learn", a, noisy=folder / "text.png"), "must be readable by Pillow"),
        "thin": (denoise("--learn", a, noisy=folder / "thin.png"), "must have at least 2 x 2 pixels"),
        "flat": (denoise("--learn", folder / "flat.png"), "--learn: must not be constant; got 7"),
        "noise": (denoise("--learn", a, "--noise", 0), "--noise: must be finite and > 0"),
        "noise of a model": (
            denoise("--model", a, "--noise", 20),
            "--noise: must be left out with --model; got 20",
        ),
        "iters": (denoise("--learn", a, "--iters", 0), "--iters: must be an integer >= 1"),
        "seed": (denoise("--learn", a, "--seed", -1), "must be an integer >= 0"),
        "model": (denoise("--model", folder / "graph.kbp"), "--model: must hold a model"),
        "no model": (denoise("--model", a), "path: must be a file written by kbpjax.save"),
        "folder": (denoise("--learn", a, out=folder / "nowhere" / "out.png"), "must be in an existing folder"),
        "save": (denoise("--learn", a, "--save", a), "must not exist"),
        "save to the image": (
            denoise("--learn", a, "--save", folder / "." / "out.png"),
            "--save: must be another file than the image",
        ),
        "a folder": (denoise("--learn", a, "--force", out=folder), "must be a file; got"),
        "info": (("info", folder / "none.kbp"), "path: must be a file"),
        "bench": (("bench",), "invalid choice: 'bench'"),
    }


def test_mistakes_give_one_line_and_status_2(tmp_path, capsys):
    for arguments, said in wrong(tmp_path).values():
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error
        assert error.startswith("usage") or error.count("\n") == 1
    assert not (tmp_path / "out.png").exists()


def test_an_interrupt_is_no_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("kbpjax.__main__.describe", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run("info", tmp_path) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_keeps_the_model_and_says_where(tmp_path, capsys, monkeypatch, quick):
    clean, model, out = picture(tmp_path / "a.png"), tmp_path / "model.kbp", tmp_path / "out.png"
    assert clean.any()

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(kbp, "infer", stop)
    arguments = ("denoise", tmp_path / "a.png", out, "--learn", tmp_path / "a.png")
    assert run(*arguments) == 130 and capsys.readouterr().err.endswith("\ninterrupted\n")
    assert run(*arguments, "--save", model) == 130
    said = f"interrupted: the model is in {model}; pass --model {model} to go on with it\n"
    assert capsys.readouterr().err.endswith(said)
    assert isinstance(kbp.load(model), kbp.KernelMRF) and not out.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("heard")
def test_ctrl_c_in_a_shell_gives_one_line(tmp_path):
    picture(tmp_path / "a.png")
    command = [sys.executable, "-m", "kbpjax", "denoise", "a.png", "out.png", "--learn", "a.png"]
    with subprocess.Popen(command, cwd=tmp_path, env=SETTINGS, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None and "learning" in program.stderr.readline()
        program.send_signal(signal.SIGINT)
        assert program.stderr.read() == "interrupted\n"
    assert program.returncode == 130
    assert os.listdir(tmp_path) == ["a.png"]


@pytest.mark.slow
def test_help_teaches():
    for command in ((), ("denoise",), ("info",)):
        outcome = python("-m", "kbpjax", *command, "--help", **SHORT)
        assert outcome.returncode == 0 and "usage: python -m kbpjax" in outcome.stdout
        assert not command or f"python -m kbpjax {command[0]} " in outcome.stdout
