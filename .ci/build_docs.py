"""Build the documentation site into build/site, strictly: links, names of the reference, pages in the menu.

The sources are README.md and the pages of docs, which are read in the repository too, so that their links go to files
of the repository. This copies them to build/pages in the same places, adds the reference, the notebooks and the
gallery, and runs mkdocs.
"""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import notebook_pages

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE")
FOLDERS = ("docs", "experiments/results", "benchmarks/results")
MODULES = ("kernels", "features", "baselines", "ep", "parallel", "plotting", "io", "estimator")
"""Of the reference, beside the names of kbpjax itself."""
RIVALS = ("discrete", "gaussian", "mixture", "particle", "pairwise", "density")
"""Modules of the baselines that people call."""


def main() -> int:
    """Build; return the exit status."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, PAGES / name)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, PAGES / folder)
    notebooks()
    reference()
    gallery()
    pages = {"README.md": "index.md", **{f"docs/{p.name}": f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")}}
    for source, target in pages.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        (PAGES / target).write_text(linked(text), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(SITE)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, check=False, env=quiet).returncode


def linked(text: str) -> str:
    """Let links to notebooks and to the README lead to their pages, and those to folders to nothing."""
    text = re.sub(r"\]\(((?:\.\./)?notebooks/\w+)\.ipynb\)", r"](\1.md)", text)
    text = text.replace("](../README.md", "](../index.md")
    return re.sub(r"\[([^]]+)\]\((?:experiments|benchmarks)/results\)", r"\1", text)


def notebooks() -> None:
    """Write the notebooks as pages, with their outputs."""
    notebook_pages.write(ROOT / "notebooks", PAGES / "notebooks")


def reference() -> None:
    """Write a page of reference for kbpjax, its names by the modules they come from, and one for each part of it."""
    import kbpjax

    (PAGES / "reference").mkdir()
    groups: dict[str, list[str]] = {}
    for name, value in sorted(vars(kbpjax).items()):
        if not name.startswith("_") and not inspect.ismodule(value):
            groups.setdefault(value.__module__.split(".")[1], []).append(f"kbpjax.{name}")
    write("kbpjax", "kbpjax", "Everything that `import kbpjax as kbp` gives, by module.", groups)
    for part in MODULES:
        module = importlib.import_module(f"kbpjax.{part}")
        intro = " ".join((module.__doc__ or "").split("\n\n")[0].split())
        names: dict[str, list[str]] = {}
        for path, _ in members(module, part):
            names.setdefault(path.split(".")[-2], []).append(path)
        write(part, f"kbpjax.{part}", intro, names)


def members(module: object, part: str) -> list[tuple[str, object]]:
    """Return the public names of a module or package, with their paths; of packages of modules, those of each."""
    prefix = f"kbpjax.{part}"
    found = []
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or inspect.ismodule(value):
            continue
        home = getattr(value, "__module__", "")
        if home.startswith(prefix) and (inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value))):
            found.append((f"{prefix}.{name}", value))
    if not found:  # baselines: a package of modules
        for stem in RIVALS:
            inner = importlib.import_module(f"{prefix}.{stem}")
            for name, value in sorted(vars(inner).items()):
                home = getattr(value, "__module__", "") or ""
                if home.startswith(prefix) and not name.startswith("_") and callable(value):
                    found.append((f"{prefix}.{stem}.{name}", value))
    return found


def write(stem: str, title: str, intro: str, groups: dict[str, list[str]]) -> None:
    """Write a page of reference."""
    lines = [f"# {title}", "", intro, ""]
    for group, names in groups.items():
        if len(groups) > 1:
            lines += [f"## {group}", ""]
        for name in names:
            lines += [f"::: {name}", ""]
    (PAGES / "reference" / f"{stem}.md").write_text("\n".join(lines), encoding="utf-8")


def gallery() -> None:
    """Write a page of all pictures of the experiments, each with the command that makes it."""
    lines = ["# Gallery", "", "Pictures of the experiments, each with the command that makes it.", ""]
    for picture in sorted((ROOT / "experiments" / "results").glob("*.png")):
        stems = [p.stem for p in (ROOT / "experiments").glob("*.py")]
        (name, *_) = sorted((s for s in stems if picture.stem.startswith(s)), key=len, reverse=True)
        lines += [f"## {picture.stem.replace('_', ' ')}", "", f"`python -m experiments.{name}`", ""]
        lines += [f"![{picture.stem}](experiments/results/{picture.name})", ""]
    (PAGES / "gallery.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
