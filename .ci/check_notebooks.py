"""Check the notebooks, or run those whose outputs are stale and write them (`--update`).

The source is the .py. The .ipynb beside it has the same cells, with outputs and a digest of the code that printed them.
The check fails if cells or digest differ, outputs are missing, hold an error or are too large, or if a run in memory
prints other text. Pictures are not compared.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from notebook_files import cells, completed, differences, digest, faults

from kbpjax._misc import replacing

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
CELL_SECONDS, TOGETHER = 1200, 2
SETTINGS = {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
"""What a run depends on, whatever the environment says."""
DPI = 90
REMEDY = "make notebooks-update"


class Failed(Exception):
    """A notebook did not run to its end."""


def main() -> int:
    """Check or update; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="notebooks, such as images; default: all")
    parser.add_argument("--update", action="store_true", help="write those that are stale, or all that are named")
    arguments = parser.parse_args()
    stems = sorted(path.stem for path in FOLDER.glob("*.py"))
    if unknown := set(arguments.names) - set(stems):
        parser.error(f"no notebook {', '.join(sorted(unknown))}; there are {', '.join(stems)}")
    found = [f"{path.name} has no .py" for path in sorted(FOLDER.glob("*.ipynb")) if path.stem not in stems]
    os.environ.update(SETTINGS)
    chosen = arguments.names or stems
    work = (lambda stem: update(stem, again=bool(arguments.names))) if arguments.update else check

    def faults_of(stem: str) -> list[str]:
        start = time.perf_counter()
        new = work(stem)
        print(f"{stem}: {'; '.join(new) or 'ok'} ({time.perf_counter() - start:.0f} s)", flush=True)
        return [f"{stem}: {fault}" for fault in new]

    # Two at a time: each traces in one thread for half of its time.
    with ThreadPoolExecutor(1 if arguments.update else TOGETHER) as pool:
        found += [fault for faults in pool.map(faults_of, chosen) for fault in faults]
    print(f"{len(chosen)} notebooks, {len(found)} faults", *found, sep="\n  ")
    return bool(found)


def check(stem: str) -> list[str]:
    """Say what is wrong with a notebook; it is run in memory."""
    script, paired = read(stem)
    found = [] if paired else [f"the .ipynb is missing; {REMEDY}"]
    if paired:
        if cells(script) != cells(paired):
            found.append(f"the .ipynb has other cells than the .py; {REMEDY}")
        found += [f"{fault}; {REMEDY}" for fault in faults(paired)]
    try:
        run = executed(script)
    except Failed as failed:
        return [*found, str(failed)]
    if not found:
        found += [f"{fault}; {REMEDY} {stem}" for fault in differences(paired, run)]
    return found


def update(stem: str, again: bool) -> list[str]:
    """Write the .ipynb, after a run if its outputs are stale or `again`; keep the old one if that fails."""
    script, paired = read(stem)
    stale = paired is None or bool(faults(paired)) or digest(paired) != digest(script)
    try:
        new = completed(script, executed(script) if stale or again else paired)
    except Failed as failed:
        return [str(failed)]
    if found := faults(new):
        return [f"not written: {fault}" for fault in found]
    text, path = nbformat.writes(new) + "\n", FOLDER / f"{stem}.ipynb"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        with replacing(path) as file:
            file.write(text.encode())
    return []


def read(stem: str) -> tuple[NotebookNode, NotebookNode | None]:
    """Return the .py and the .ipynb of a notebook, None if it is missing."""
    path = FOLDER / f"{stem}.ipynb"
    paired = nbformat.read(path, as_version=4) if path.exists() else None
    return jupytext.read(FOLDER / f"{stem}.py"), paired


def executed(script: NotebookNode) -> NotebookNode:
    """Return the notebook after a run in memory, from its own folder as Jupyter does."""
    client = NotebookClient(
        deepcopy(script),
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--log-level=ERROR", f"--InlineBackend.rc=figure.dpi={DPI}"],
        resources={"metadata": {"path": str(FOLDER)}},
    )
    try:
        return client.execute()
    except (CellExecutionError, RuntimeError, TimeoutError) as error:
        raise Failed(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
