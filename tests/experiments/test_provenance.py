"""Where results come from, and when they are older than their code."""

import json
from types import SimpleNamespace

import jax
import numpy as np

from experiments.lib import provenance, results
from experiments.report.run import main

SPEC = SimpleNamespace(name="experiments.words.__main__")


def test_a_description_holds_what_a_reader_needs_to_run_it_again():
    found = provenance.provenance()
    assert found["packages"]["jax"] == jax.__version__ and found["packages"]["numpy"] == np.__version__
    assert {"kbpjax/inference/loopy.py", "experiments/lib/results.py"} <= set(found["code"])
    assert provenance.changed_since(found["code"]) == []


def test_commands_are_those_typed_without_names_of_folders():
    argv = ["/home/me/experiments/words/__main__.py", "--quick", "--data", "/home/me/data"]
    assert provenance.command(argv, SPEC) == "python -m experiments.words --quick --data data"
    assert provenance.command(["/bin/tool", "x"], None) == "python tool x"


def test_only_code_counts_in_a_digest(tmp_path):
    texts = ["x = 1\n", '"""Text."""\n# more\n\nx = (1)\n', "x = 2\n"]
    files = [tmp_path / f"{number}.py" for number in range(3)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    first, commented, other = map(provenance.digest, files)
    assert first == commented != other


def test_without_git_the_commit_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = provenance.provenance()
    assert found["commit"] is None and found["clean"] is None


def test_a_report_finds_results_whose_code_has_changed(tmp_path, capsys):
    file = tmp_path / "words" / "results" / "words.json"
    results.write_results(file, {}, [], trials=[{"method": "ridge"}] * 3)
    content = json.loads(file.read_text())
    content["provenance"]["clean"] = True
    file.write_text(json.dumps(content))
    assert main(["--check"], tmp_path) == 0
    assert "ridge" in (printed := capsys.readouterr().out) and "none" in printed
    content["provenance"]["code"]["experiments/lib/results.py"] = "0" * 12
    file.write_text(json.dumps(content))
    assert main(["--check"], tmp_path) == 1
    assert "changed: experiments/lib/results.py" in capsys.readouterr().out
    file.write_text(json.dumps({"rows": []}))
    assert main([], tmp_path) == 0 and main(["--check"], tmp_path) == 1
    assert "origin unknown" in capsys.readouterr().out
