"""CONTRIBUTING.md says where things are: of every module of the package, and of no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| part | modules of `kbpjax` |")[2]
FOLDERS = ("graphs", "learning", "inference", "posterior", "tuning")
"""Folders whose modules are on the map, each as `name.py`."""


def public(folder):
    paths = folder.iterdir()
    modules = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()}
    return {name for name in modules if not name.startswith("_")}


def test_each_part_of_the_package_is_on_the_map():
    rows = TABLE.partition("\n\n")[0]
    named = {
        name
        for name in re.findall(r"`(\w+)`", rows)
        if name.islower() and name not in ("fit", "infer", "pool", "run", "step")
    }
    assert named == public(ROOT / "kbpjax")


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_module_of_a_folder_is_on_the_map(folder):
    (row,) = re.findall(rf"^\|[^|]*\| `{folder}`(.*)\|$", TABLE, re.MULTILINE)
    assert set(re.findall(r"(\w+)\.py", row)) == public(ROOT / "kbpjax" / folder)
