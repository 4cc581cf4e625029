"""Build the documentation site into build/site, strictly: links, names of the reference, pages in the menu.

The sources are README.md and the pages of docs, which are read in the repository too, so that their links go to files
of the repository. This copies them to build/pages in the same places, adds the reference, the notebooks and the
gallery, and runs mkdocs.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import check_site
import notebook_pages
from docs_reference import write_reference

import kbpjax

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE")
FOLDERS = ("docs", "benchmarks/results")
GALLERY = {
    "denoising": ("Denoising", "A noisy image, its posterior mean and standard deviation, coverage, and residuals."),
    "figure1": ("Five kinds of belief propagation", "Error and run time against the number of gray levels."),
    "update_rules": ("Update rules", "Run time, ranks and error of the three update rules."),
    "learned_bandwidths": ("Learned bandwidths", "What learned hyperparameters change, and other image denoisers."),
    "photographs": (
        "Photographs",
        "Pictures that no method has seen: cleaned, with uncertainty and reliability.",
    ),
    "convergence_paper": ("Convergence", "Residual and error over iterations, with the bandwidths of the paper."),
    "convergence_narrow": ("Convergence, narrow bandwidth", "The same with half the bandwidth of the observations."),
    "orientation_beliefs": ("Camera direction", "Beliefs about the yaw of a camera, without and with messages."),
    "orientation": ("Camera rotations", "The room, errors over time, and errors of all methods."),
    "retrieval": ("Document retrieval", "Finding translations through a tree of languages."),
    "words": ("Words", "Predicting a word from the words for the same concept in other languages."),
    "depth": ("Depth", "Depth from single images: predictions, width of the intervals, and errors."),
    "protein": ("Proteins", "Backbone angles predicted from sequence profiles."),
    "categories": ("Paper categories", "Recall of categories predicted from texts and citations."),
    "kjit_batch": ("Learned messages", "Errors of learned messages of expectation propagation."),
    "kjit_uncertainty": ("Uncertainty of learned messages", "Predictive variance along two curves of messages."),
    "kjit_online": ("Learning just in time", "Queries to the oracle and errors over a stream of problems."),
    "kjit_gamma": ("Learned messages of precisions", "Posteriors from learned messages against exact ones."),
    "kjit_real": ("Logistic regression", "Errors and queries on four data sets."),
}
"""{picture of an experiment: (title, caption)}, in the order of the page."""


def main() -> int:
    """Build; return the exit status."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, PAGES / name)
    results = (str(folder.relative_to(ROOT)) for folder in (ROOT / "experiments").glob("*/results"))
    for folder in (*FOLDERS, *results):
        shutil.copytree(ROOT / folder, PAGES / folder)
    notebooks()
    write_reference(PAGES / "reference")
    gallery()
    pages = {"README.md": "index.md", **{f"docs/{p.name}": f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")}}
    for source, target in pages.items():
        (PAGES / target).write_text(linked((ROOT / source).read_text(encoding="utf-8")), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(SITE)]
    path = os.pathsep.join([str(ROOT / ".ci"), *filter(None, [os.environ.get("PYTHONPATH")])])  # of the hooks
    title = f"kbpjax {kbpjax.__version__}"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": path, "KBPJAX_VERSION": title}
    status = subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode
    return status or check_site.main(SITE)


def linked(text: str) -> str:
    """Let links to notebooks and to the README lead to their pages; drop links to what the site does not have."""
    text = re.sub(r"\]\(((?:\.\./)?notebooks/\w+)\.ipynb\)", r"](\1.md)", text)
    text = text.replace("](../README.md", "](../index.md")
    return re.sub(r"\[([^]]+)\]\((?:benchmarks/results|(?:\.\./)?experiments(?:/\w+/README\.md)?)\)", r"\1", text)


def notebooks() -> None:
    """Write the notebooks as pages, with their outputs."""
    notebook_pages.write(ROOT / "notebooks", PAGES / "notebooks")


def gallery() -> None:
    """Write a page of all pictures of the experiments, each with the command that makes it."""
    paths = {path.stem: path.relative_to(ROOT) for path in (ROOT / "experiments").glob("*/results/*.png")}
    without = set(paths) ^ set(GALLERY)
    if without:
        raise SystemExit(f"GALLERY of .ci/build_docs.py and the pictures of the experiments differ: {sorted(without)}")
    lines = ["# Gallery", "", "Figures of the experiments, each with the command that makes it.", ""]
    for picture, (title, caption) in GALLERY.items():
        path = paths[picture]  # experiments/NAME/results/PICTURE.png
        lines += [f"## {title}", "", f"{caption} Made by `python -m experiments.{path.parts[1]}`.", ""]
        lines += [f"![{title}: {caption}]({path.as_posix()})", ""]
    (PAGES / "gallery.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
