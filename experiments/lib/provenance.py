"""Where results come from: commit, date, command, versions of packages, and the code of this project that made them."""

import ast
import hashlib
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS = ("kbpjax", "experiments")


def provenance() -> dict[str, Any]:
    """Describe how the results of this process are made, without names of host, user or folders.

    Returns:
        commit: hash of the commit, None outside of a checkout; clean: whether Python files in it are as committed.
        date: day, in UTC. command: as typed, but paths by their last part. packages: {name: version} of all imported
        distributions. code: {file: digest} of all imported modules of this project.
    """
    changed = _git("status", "--porcelain", "--", "*.py", "pyproject.toml")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "clean": None if changed is None else not changed,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(sys.argv, getattr(sys.modules["__main__"], "__spec__", None)),
        "packages": packages(),
        "code": {str(file.relative_to(ROOT)): digest(file) for file in sorted(_files())},
    }


def command(argv: list[str], spec: Any) -> str:
    """Return the command line of this process, with paths by their last part; `spec`: that of its main module."""
    name = Path(argv[0]).name if spec is None else f"-m {spec.name.removesuffix('.__main__')}"
    return " ".join(["python", name, *(Path(word).name if "/" in word else word for word in argv[1:])])


def packages() -> dict[str, str]:
    """Return the versions of all distributions of which a module is imported."""
    known = packages_distributions()
    names = {name.partition(".")[0] for name in sys.modules}
    found = {distribution for name in names for distribution in known.get(name, [])}
    versions = {}
    for name in sorted(found, key=str.lower):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # removed while this process runs
            continue
    return versions


def digest(file: Path) -> str:
    """Return a digest of the code of a Python file: comments, docstrings and layout do not count."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            kept = [line for line in node.body if not _is_text(line)]
            node.body = kept or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def changed_since(code: dict[str, str]) -> list[str]:
    """Return the files whose code is no longer that of the digests, or that are gone."""
    return [name for name, known in code.items() if not (ROOT / name).exists() or digest(ROOT / name) != known]


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)


def _files() -> set[Path]:
    """Return the files of all imported modules of this project."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in OURS]
    files = {Path(file).resolve() for module in modules if (file := getattr(module, "__file__", None))}
    return {file for file in files if file.is_relative_to(ROOT)}


def _git(*words: str) -> str | None:
    """Return what git prints in this checkout; None without git or outside of a checkout."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
