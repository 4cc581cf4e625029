"""The experiments' harness: exit status, timing, tables, and files that are whole or absent."""

import argparse
import getpass
import io
import json
import os
import platform
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from experiments.lib import command_line, datasets, results, tables, timing


def names(folder: Path) -> list[str]:
    """List everything in a folder, hidden files included."""
    return sorted(entry.name for entry in folder.iterdir())


# --- machine --------------------------------------------------------------------------------------


def test_machine_describes_without_naming():
    description = results.machine()
    assert 1 <= description["cpus"] <= os.cpu_count()
    assert description["python"] == platform.python_version()
    assert description["backend"] == jax.default_backend()
    assert 10 < description["peak_memory_mib"] < 1e6
    text = json.dumps(description)
    for private in (platform.node(), str(Path.home()), os.getcwd()):
        assert len(private) < 3 or private not in text
    assert len(getpass.getuser()) < 3 or getpass.getuser() not in description.values()


# --- write_results --------------------------------------------------------------------------------


def test_results_convert_to_plain_json(tmp_path):
    path = tmp_path / "new" / "folder" / "denoising.json"
    row = {
        "float32": np.float32(0.5),
        "int": np.int64(3),
        "bool": np.bool_(True),
        "jax": jnp.asarray(2.5),
        "bfloat16": jnp.asarray(1.5, jnp.bfloat16),
        "jax_int": jnp.asarray(7),
        "nan": float("nan"),
        "inf": np.float64(-np.inf),
        "jax_nan": jnp.asarray(jnp.nan),
        "none": None,
        "text": "kbp",
    }
    curve = jnp.asarray([1.0, jnp.inf])
    config = {"seeds": (1, 2), "curve": curve, "out": tmp_path / "last", 10: {"a": np.pi}}
    rows = iter([row, {"float32": 1}])
    results.write_results(path, config, rows, note="more", curve=np.ones((1, 2), np.float32))
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert list(content) == ["config", "machine", "provenance", "rows", "note", "curve"]
    assert content["config"] == {"seeds": [1, 2], "curve": [1.0, None], "out": "last", "10": {"a": np.pi}}
    assert content["rows"][0] == {
        "float32": 0.5, "int": 3, "bool": True, "jax": 2.5, "bfloat16": 1.5, "jax_int": 7,
        "nan": None, "inf": None, "jax_nan": None, "none": None, "text": "kbp",
    }  # fmt: skip
    assert content["rows"][0]["bool"] is True and isinstance(content["rows"][0]["int"], int)
    assert content["rows"][1] == {"float32": 1}
    assert content["note"] == "more" and content["curve"] == [[1.0, 1.0]]
    assert content["provenance"]["packages"]["jax"] == jax.__version__
    assert str(tmp_path) not in path.read_text()
    assert names(path.parent) == ["denoising.json"]


def test_results_replace_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    results.write_results(path, {}, [{"rmse": 1.0}] * 100)
    results.write_results(str(path), {}, [{"rmse": 2.0}])
    assert json.loads(path.read_text())["rows"] == [{"rmse": 2.0}]
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("row", [{"a": [1, 2]}, {"a": {"b": 1}}, {"a": np.ones(2)}, [1, 2], 3.0])
def test_results_refuse_rows_that_are_not_flat(tmp_path, row):
    with pytest.raises(ValueError, match=r"^rows must be flat records; got .* as row 1"):
        results.write_results(tmp_path / "a.json", {}, [{"a": 1}, row])
    assert names(tmp_path) == []


def test_results_refuse_values_without_a_form(tmp_path):
    with pytest.raises(ValueError, match=r"^results must hold numbers and text; got a object"):
        results.write_results(tmp_path / "a.json", {"x": object()}, [])
    assert names(tmp_path) == []


def test_results_refuse_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("old")
    for path in (tmp_path / "file" / "a.json", tmp_path / "file" / "deeper" / "a.json"):
        with pytest.raises(ValueError, match=r"^out must be a folder one can write to; got .*file"):
            results.write_results(path, {}, [])
    assert (tmp_path / "file").read_text() == "old"


def test_results_refuse_a_folder_without_permission(tmp_path, monkeypatch):
    asked = []
    # Root may write anywhere, so the answer of the system is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(mode) is not None)
    with pytest.raises(ValueError, match=r"^out must be a folder one can write to"):
        results.write_results(tmp_path / "a.json", {}, [])
    assert asked == [os.W_OK | os.X_OK]
    assert names(tmp_path) == []


@pytest.mark.parametrize("fault", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_results_are_whole_or_old(tmp_path, monkeypatch, fault, place):
    path = tmp_path / "a.json"
    results.write_results(path, {}, [{"rmse": 1.0}])
    old = path.read_bytes()
    seen = []

    def fail(*args):
        seen.extend(names(tmp_path))
        raise fault

    monkeypatch.setattr(os, place, fail)
    with pytest.raises(type(fault)):
        results.write_results(path, {}, [{"rmse": 2.0}])
    assert len(seen) == 2, "the new content stood beside the old file in its folder"
    assert path.read_bytes() == old
    assert names(tmp_path) == ["a.json"]


def test_replacing_keeps_the_old_file_when_the_block_fails(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fail_in_the_middle():
        with results._replacing(path) as file:
            file.write(b"half of the new")
            raise RuntimeError("middle")

    with pytest.raises(RuntimeError, match="middle"):
        fail_in_the_middle()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.json"]


# --- save_figure ----------------------------------------------------------------------------------


def test_figure_is_a_png_whole_or_old(tmp_path):
    path = tmp_path / "new" / "a.png"
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1])
    results.save_figure(figure, path)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.size == (300, 150)

    class Broken:
        def savefig(self, file, **options):
            file.write(b"half")
            raise RuntimeError("in the middle")

    old = path.read_bytes()
    with pytest.raises(RuntimeError, match="in the middle"):
        results.save_figure(Broken(), path)
    assert path.read_bytes() == old
    assert names(path.parent) == ["a.png"]


def test_figure_refuses_other_formats(tmp_path):
    with pytest.raises(ValueError, match=r"^path must end in \.png; got 'a.pdf'"):
        results.save_figure(None, tmp_path / "a.pdf")
    assert names(tmp_path) == []


# --- tables ---------------------------------------------------------------------------------------


def test_table_is_aligned():
    rows = [
        {"method": "kbp", "rmse": 5.43219, "seconds": np.float32(0.25), "levels": 10},
        {"method": "discrete", "rmse": jnp.asarray(12.5), "levels": 250, "converged": True},
    ]
    assert tables.format_table(rows).split("\n") == [
        "method     rmse  seconds  levels  converged",
        "--------  -----  -------  ------  ---------",
        "kbp       5.432   0.2500      10          -",
        "discrete  12.50        -     250        yes",
    ]


def test_table_shows_the_columns_asked_for():
    rows = [{"a": 1, "b": 2, "c": "x"}]
    assert tables.format_table(rows, ["c", "a"]).split("\n") == ["c  a", "-  -", "x  1"]
    with pytest.raises(ValueError, match=r"^columns must be keys of the rows; got .*'d'.*Choose among .*'a'"):
        tables.format_table(rows, ["a", "d"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.0, "0"), (1.0, "1.000"), (-12.3456, "-12.35"), (123456.7, "123457"),
        (0.00123456, "0.001235"), (1.23456e-5, "1.235e-05"), (2.5e7, "2.500e+07"), (float("nan"), "-"),
        (float("inf"), "-"), (None, "-"), (1234567, "1234567"), (False, "no"), (np.bool_(True), "yes"),
        (np.int32(0), "0"), ("text", "text"),
    ],
)  # fmt: skip
def test_table_writes_sensible_digits(value, text):
    assert tables.format_table([{"x": value}]).split("\n")[-1].strip() == text


def test_table_without_rows():
    assert tables.format_table([]) == "(no rows)"
    assert tables.format_table([], ["a", "bc"]).split("\n") == ["a  bc", "-  --"]


def test_print_table_writes_to_standard_output(capsys):
    tables.print_table([{"a": 1}])
    assert capsys.readouterr().out == "a\n-\n1\n"


# --- timed and progress ---------------------------------------------------------------------------


def test_timed_takes_the_first_call_apart(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 11.0, 20.0, 25.0, 30.0, 32.0])  # calls of 9, 1, 5, 2 seconds
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    calls = []
    result, first, median = timing.timed(lambda x: calls.append(x) or len(calls), "x")
    assert (result, first, median) == (1, 9.0, 2.0)
    assert calls == ["x"] * 4


def test_timed_waits_for_the_result(monkeypatch):
    waited = []
    monkeypatch.setattr(timing.jax, "block_until_ready", lambda tree: waited.append(tree) or tree)
    result, _, _ = timing.timed(lambda x: {"y": 2 * x}, jnp.ones(3), repeats=1)
    np.testing.assert_array_equal(result["y"], 2 * np.ones(3))
    assert [type(tree) for tree in waited] == [tuple, dict, dict]


def test_timed_refuses_no_repeats():
    with pytest.raises(ValueError, match=r"^repeats must be at least 1; got 0"):
        timing.timed(lambda: 1, repeats=0)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_on_a_terminal_only(monkeypatch, terminal):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(command_line.progress(iter("abc"), "images", total=3)) == ["a", "b", "c"]
    assert ("images" in stream.getvalue() and "3/3" in stream.getvalue()) == terminal
    assert terminal or stream.getvalue() == ""


# --- main -----------------------------------------------------------------------------------------


@pytest.fixture
def parser(tmp_path, monkeypatch) -> argparse.ArgumentParser:
    """Build a parser with the common arguments, in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser(prog="experiment")
    command_line.add_common_arguments(parser, "experiments/results")
    return parser


def test_common_arguments(parser):
    args = parser.parse_args([])
    assert (args.quick, args.out, args.data, args.seed) == (False, Path("experiments/results"), None, 0)
    args = parser.parse_args(["--quick", "--out", "o", "--data", "d", "--seed", "7"])
    assert (args.quick, args.out, args.data, args.seed) == (True, Path("o"), Path("d"), 7)


@pytest.mark.parametrize(
    ("argv", "out"),
    [
        ([], "experiments/results"),
        (["--quick"], "experiments/results/quick"),
        (["--quick", "--out", "experiments/results"], "experiments/results"),
        (["--out", "elsewhere/deep"], "elsewhere/deep"),
    ],
)
def test_main_makes_the_folder_before_the_run(parser, argv, out):
    seen = []
    assert command_line.main(lambda args: seen.append((args.out, args.out.is_dir())), parser, argv) == 0
    assert seen == [(Path(out), True)]


def test_main_takes_the_arguments_of_the_process(parser, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["experiment", "--seed", "5"])
    seen = []
    assert command_line.main(lambda args: seen.append(args.seed), parser) == 0
    assert seen == [5]


def test_main_reports_a_value_error_in_one_line(parser, capsys):
    def run(args):
        raise ValueError("levels must be 10;\n   got 11.")

    assert command_line.main(run, parser, []) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: levels must be 10; got 11.\n")


def test_main_refuses_the_folder_before_the_run(parser, tmp_path, capsys):
    (tmp_path / "file").touch()
    ran = []
    assert command_line.main(ran.append, parser, ["--out", "file"]) == 2
    assert not ran
    assert capsys.readouterr().err.startswith("error: out must be a folder one can write to; got 'file'")


def test_main_returns_the_status_of_argparse(parser, capsys):
    ran = []
    assert command_line.main(ran.append, parser, ["--seed", "many"]) == 2
    assert "experiment: error: argument --seed" in capsys.readouterr().err
    assert command_line.main(ran.append, parser, ["--help"]) == 0
    assert "--quick" in capsys.readouterr().out
    assert not ran


def test_main_on_an_interrupt(parser, capsys):
    def run(args):
        raise KeyboardInterrupt

    assert command_line.main(run, parser, []) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_main_lets_other_faults_show_their_place(parser):
    def run(args):
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        command_line.main(run, parser, [])


def test_evenly_spaced_rows_hold_both_ends():
    np.testing.assert_array_equal(datasets.evenly(np.arange(10), 4), [0, 3, 6, 9])
    np.testing.assert_array_equal(datasets.evenly(np.arange(10), 20), np.arange(10))
