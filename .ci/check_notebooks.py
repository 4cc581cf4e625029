"""Check every notebook: its .py and .ipynb have the same cells, the .ipynb no outputs, and it runs."""

import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
CELL_SECONDS = 600
REMEDY = "run: .venv/bin/python -m jupytext --to ipynb notebooks/"


def fault_of_pair(script: Path) -> str | None:
    """Say what is wrong with the .ipynb beside `script`, or None."""
    paired = script.with_suffix(".ipynb")
    if not paired.exists():
        return f"{paired.name} is missing"
    notebook = nbformat.read(paired, as_version=4)
    cells = [(cell.cell_type, cell.source.strip()) for cell in notebook.cells]
    if cells != [(cell.cell_type, cell.source.strip()) for cell in jupytext.read(script).cells]:
        return f"{paired.name} has other cells than {script.name}"
    if any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells):
        return f"{paired.name} has outputs"
    return None


def fault_of_run(script: Path) -> str | None:
    """Run the notebook in memory, from its own folder as Jupyter does; nothing is written back."""
    client = NotebookClient(
        jupytext.read(script),
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
    )
    try:
        client.execute()
    except (CellExecutionError, RuntimeError, TimeoutError) as error:
        return str(error)
    return None


def main() -> int:
    scripts = sorted(FOLDER.glob("*.py"))
    stems = {script.stem for script in scripts}
    faults = [f"{p.name} has no .py" for p in sorted(FOLDER.glob("*.ipynb")) if p.stem not in stems]
    for script in scripts:
        if fault := fault_of_pair(script):
            faults.append(f"{fault}; {REMEDY}{script.name}")
        start = time.perf_counter()
        if fault := fault_of_run(script):
            faults.append(f"{script.name}: {fault}")
        outcome = "failed" if fault else "ran"
        print(f"{script.name}: {outcome}, {time.perf_counter() - start:.0f} s", flush=True)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(scripts)} notebooks, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
