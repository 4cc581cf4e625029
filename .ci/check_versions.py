"""Run the tests with the lowest or the newest versions of the dependencies, in an environment in build.

python .ci/check_versions.py lowest|newest PYTHON [arguments of pytest]

lowest: the floors in pyproject.toml of the package, of the extras that it uses, and of the tests; what these depend on
has its newest version, and old releases may warn that it deprecates what they use. newest: on the newest Python, from
NEWEST on, which has the newest JAX. Both run the tests of the library that are quick.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEWEST = (3, 12)
"""The first Python for which JAX has releases after its floor."""
MISSING = (
    "make test-newest needs Python 3.12 or later, for releases of JAX after its floor; none is on the PATH. "
    "Pass one: make test-newest PYTHON=/path/to/python3.13"
)
NAMES = ("python3.14", "python3.13", "python3.12", "python3", "python")
PARTS = ("plot", "estimator", "serving")
"""Extras whose packages the library uses."""
REQUIREMENT = re.compile(r"([\w.-]+)>=([\w.]+)")
TESTS = ("tests", "--ignore", "tests/experiments", "-m", "not slow and not experiments")


def main(what: str, python: str, *arguments: str) -> int:
    """Install and test; return the exit status."""
    if what == "lowest":
        floors = read_floors()
        print(" ".join(floors), flush=True)
        installed = install(python, "lowest", *floors)
        install(None, "lowest", "--no-deps", "--editable", ".")
        options = ["-W", "ignore::DeprecationWarning"]
    else:
        found = [name for name in (python, *NAMES) if version_of(name) >= NEWEST]
        if not found:
            print(MISSING, file=sys.stderr)
            return 1
        extras = ".[experiments,baselines]"
        installed = install(found[0], "newest", "--upgrade", "--editable", extras, "--group", "test")
        options = []
    command = [str(installed), "-m", "pytest", *TESTS, *options, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def install(python: str | None, name: str, *what: str) -> Path:
    """Install into a folder of build, which a given Python makes anew; return the Python there."""
    folder = ROOT / "build" / name
    if python is not None:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet"]
    subprocess.run([*pip, *what], cwd=ROOT, check=True)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def read_floors() -> list[str]:
    """Return "name==version" of all requirements, each of which must have a floor and no cap."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, groups = content["project"], content["dependency-groups"]
    extras = [line for part in PARTS for line in project["optional-dependencies"][part]]
    found = {}
    for line in [*project["dependencies"], *extras, *groups["test"]]:
        match = REQUIREMENT.fullmatch(line)
        if match is None:
            raise SystemExit(f"pyproject.toml: a requirement must be name>=version; got {line!r}")
        found[match[1]] = match[2]
    return [f"{name}=={version}" for name, version in found.items()]


def version_of(python: str) -> tuple[int, ...]:
    """Return the version of a Python; (0,) if there is none of this name."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        outcome = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return (0,)
    return tuple(int(part) for part in outcome.stdout.split())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
