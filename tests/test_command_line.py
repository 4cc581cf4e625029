"""The command line, as a user types it: pictures, saved models; one line for a mistake."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

import kbpjax as kbp
from kbpjax.__main__ import main
from tests.programs import SHORT, python


@pytest.fixture
def quick(monkeypatch):
    """Replace the choice of hyperparameters by given ones."""
    options = {"kernel": kbp.RBF(20.0), "obs_kernel": kbp.RBF(25.0), "ridge": 1e-3}
    monkeypatch.setattr(kbp, "fit", partial(kbp.fit, **options))


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
def test_hyperparameters_are_chosen_and_saved(tmp_path, capsys):
    i, j = np.mgrid[:60, :60]
    train, truth = (np.minimum(5 * np.hypot(i - row, j - col), 240) for row, col in ((20, 10), (59, 30)))
    noisy = np.clip(truth + 30 * np.random.default_rng(1).standard_normal(truth.shape), 0, 255)
    for name, pixels in {"clean": train, "noisy": noisy}.items():
        Image.fromarray(np.rint(pixels).astype(np.uint8)).save(tmp_path / f"{name}.png")
    paths = tmp_path / "noisy.png", tmp_path / "cleaned.png"
    assert run("denoise", *paths, "--learn", tmp_path / "clean.png", "--save", tmp_path / "model.kbp") == 0
    assert "Messages converged in" in capsys.readouterr().out
    assert np.sqrt(np.mean((pixels_of(paths[1]) - truth) ** 2)) < 10
    assert kbp.load(tmp_path / "model.kbp").hyperparameters is not None


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


def test_help_teaches():
    for command in ((), ("denoise",), ("info",)):
        outcome = python("-m", "kbpjax", *command, "--help", **SHORT)
        assert outcome.returncode == 0 and "usage: python -m kbpjax" in outcome.stdout
        assert not command or f"python -m kbpjax {command[0]} " in outcome.stdout
