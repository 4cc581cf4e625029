"""An interrupted experiment keeps its finished steps, says where, and resumes with the same command."""

import argparse
import json
import re

import pytest

import kbpjax as kbp
from experiments.lib import command_line, steps
from tests.programs import SHORT, needs, python

EXPERIMENTS = {
    "update_rules": (),
    "orientation": (),
    "words": ("--splits", "2"),
    "retrieval": (),
    "protein": (),
    "depth": (),
}
"""Quick runs with two steps or more, and kinds of results that differ: numbers, arrays, beliefs, settings."""
DATA = {"words": "strings", "retrieval": "europarl", "protein": "protein", "depth": "depth"}

INTERRUPTED = """
import importlib, sys, kbpjax as kbp
from experiments.lib import steps
save = kbp.save
def save_and_stop(*given):
    save(*given)
    raise KeyboardInterrupt
kbp.save = save_and_stop
sys.exit(importlib.import_module(f"experiments.{sys.argv[1]}.run").main(sys.argv[2:]))
"""


@pytest.fixture
def parser(tmp_path):
    parser = argparse.ArgumentParser()
    command_line.add_common_arguments(parser, tmp_path)
    return parser


def test_steps_are_computed_once(tmp_path, parser, capsys):
    calls, stop = [], [True]

    def compute(i):
        calls.append(i)
        if i == 2 and stop:
            stop.pop()
            raise KeyboardInterrupt
        return {"i": i, "more": (None, [kbp.RBF(1.0)])}

    def run(args):
        start = steps.clock()
        found = [steps.step(f"step {i}", compute, i) for i in range(4)]
        assert [one["i"] for one in found] == [0, 1, 2, 3] and found[0]["more"][1] == [kbp.RBF(1.0)]
        assert steps.clock() - start >= 0 and steps.path("checkpoint", ".npz").parent.is_dir()

    assert command_line.main(run, parser, []) == 130
    (folder,) = tmp_path.iterdir()
    said = f"interrupted: finished steps are kept in {folder}; the same command resumes\n"
    assert capsys.readouterr().err == said and len(list(folder.iterdir())) == 2
    stop.append(True)
    assert command_line.main(run, parser, ["--seed", "1"]) == 130  # another command starts from the beginning
    assert calls == [0, 1, 2, 0, 1, 2]
    assert command_line.main(run, parser, []) == 0
    assert calls == [0, 1, 2, 0, 1, 2, 2, 3] and not folder.exists()
    assert steps.step("outside of a run", lambda: 5) == 5 and steps.path("a", ".npz") is None


def test_nothing_is_said_of_steps_where_there_are_none(tmp_path, parser, capsys):
    def stop(args):
        raise KeyboardInterrupt

    assert command_line.main(stop, parser, []) == 130
    assert capsys.readouterr().err == "interrupted\n" and list(tmp_path.iterdir()) == []


def test_other_code_starts_from_the_beginning(tmp_path, monkeypatch):
    for folder in ("kbpjax", "experiments"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    before = steps._digest("")
    (tmp_path / "kbpjax" / "new.py").write_text("x = 1\n")
    assert steps._digest("") != before and steps._digest("") == steps._digest("")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[needs(DATA[name])] if name in DATA else []) for name in EXPERIMENTS]
)
def test_experiments_resume(tmp_path, name):
    options = ("--quick", "--out", tmp_path, *EXPERIMENTS[name])
    stopped = python("-c", INTERRUPTED, name, *options, **SHORT)
    last = stopped.stderr.splitlines()[-1]
    found = re.fullmatch(r"interrupted: finished steps are kept in (.*); the same command resumes", last)
    assert stopped.returncode == 130 and found, stopped.stderr
    (folder,) = tmp_path.glob("unfinished-*")
    assert found[1] == str(folder) and "Traceback" not in stopped.stderr
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert any(file.endswith(".kbp") for file in before)
    done = python("-c", INTERRUPTED.replace("raise KeyboardInterrupt", "pass"), name, *options, **SHORT)
    assert done.returncode == 0, done.stderr
    assert not folder.exists() and json.loads((tmp_path / f"{name}.json").read_text())["rows"]
