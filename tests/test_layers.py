"""Which folder of the package may import which: lower layers know nothing of higher ones."""

import ast
import sys
from pathlib import Path

import pytest

import kbpjax

ROOT = Path(kbpjax.__file__).parent
LAYERS = (
    ("_checks", "_misc"),
    ("_public",),
    ("kernels", "graphs"),
    ("features",),
    ("learning", "inference"),  # which do not know each other, but for the operators that a model hands over
    ("posterior",),
    ("tuning", "baselines", "ep"),
    ("training",),
    ("fitting", "series", "io", "cache", "plotting", "estimator", "sharded", "__main__", "__init__"),
)
ALLOWED = {("learning", "inference.operators")}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(file):
    """Yield the modules of the package that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "kbpjax":
            rest = node.module.partition(".")[2]
            yield from ([rest] if rest else [alias.name for alias in node.names if alias.name != "__version__"])
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("kbpjax."))


@pytest.mark.parametrize("folder", sorted(LEVEL))
def test_no_folder_imports_a_higher_one_or_its_neighbor(folder):
    files = sorted((ROOT / folder).rglob("*.py")) or [ROOT / f"{folder}.py"]
    found = {(file.relative_to(ROOT).as_posix(), name) for file in files for name in imports(file)}
    assert {name.partition(".")[0] for _, name in found} <= set(LEVEL)
    wrong = [
        (file, name)
        for file, name in found
        if (other := name.partition(".")[0]) != folder
        and LEVEL[other] >= LEVEL[folder]
        and LEVEL[folder] < len(LAYERS) - 1
        and (folder, name) not in ALLOWED
    ]
    assert not wrong


def test_all_files_have_a_layer_and_few_stand_at_the_top():
    names = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert names == set(LEVEL)
    assert len(list(ROOT.glob("*.py"))) <= 10


def test_no_module_has_the_name_of_one_of_the_standard_library():
    inside = [path for path in ROOT.rglob("*.py") if path.parent != ROOT]
    assert not [path for path in inside if path.stem in sys.stdlib_module_names and path.stem != "__init__"]
