"""What a release is made of agrees: version, date, requirements, commands of the workflow; the changelog is short."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RELEASES = re.split(r"^## \[", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def text(path):
    """Return a file, which the source archive may lack."""
    if not (ROOT / path).exists():
        pytest.skip(f"{path} is in a checkout only")
    return (ROOT / path).read_text(encoding="utf-8")


def test_a_release_has_at_most_40_lines_in_the_changelog():
    assert len(RELEASES) >= 3 and RELEASES[0].startswith("Unreleased]")
    assert not [release.partition("]")[0] for release in RELEASES if len(release.strip().splitlines()) > 40]


def test_the_citation_has_the_date_of_the_release():
    (date,) = re.findall(r"^date-released: (.*)$", text("CITATION.cff"), re.MULTILINE)
    assert RELEASES[1].splitlines()[0].endswith(f" - {date}")


def test_the_recipe_of_conda_has_the_same_requirements():
    run = text("packaging/conda/meta.yaml").partition("  run:\n")[2].partition("\n\n")[0]
    found = [line.strip(" -").replace(" ", "") for line in run.splitlines()]
    assert found == [f"python{PYPROJECT['project']['requires-python']}", *PYPROJECT["project"]["dependencies"]]


def test_workflows_and_hooks_call_targets_that_exist():
    workflow, makefile = text(".github/workflows/ci.yml"), text("Makefile")
    called = re.findall(r"(?:entry: make|run: make|target:) ([\w-]+)", workflow + text(".pre-commit-config.yaml"))
    assert {"test-lowest", "test-newest", "dist", "lint"} <= set(called)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in called)


def test_floors_of_all_requirements_can_be_installed_exactly(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    import check_versions

    floors = check_versions.read_floors()
    assert {"jax", "numpy", "matplotlib", "pytest"} <= {floor.partition("==")[0] for floor in floors}
    assert check_versions.version_of(sys.executable) == sys.version_info[:2]
    assert check_versions.version_of("no-such-python") == (0,)
    sys.modules.pop("check_versions")


def test_the_extra_all_has_what_the_page_on_tables_imports():
    """The first program there is of frames; the tests have pandas of their own."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    (floor,) = [one for one in PYPROJECT["dependency-groups"]["test"] if one.startswith("pandas")]
    assert floor in extras["all"] and "import pandas" in text("docs/tables.md")
