"""CONTRIBUTING.md says where things are: of every module of the package, and of no other."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_each_module_is_on_the_map():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("| part | modules of `kbpjax` |")[2]
    named = {name for name in re.findall(r"`(\w+)`", table) if name.islower() and name not in ("fit", "run", "step")}
    paths = (ROOT / "kbpjax").iterdir()
    modules = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {name for name in modules if not name.startswith("_")} <= named
    assert named <= modules | {"linear_model"}
