"""Steps of an experiment: each result is kept in a file until the run ends, so that an interrupted run resumes."""

import argparse
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import kbpjax as kbp

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]


class _Steps:
    """The folder of the kept steps, and the seconds that those of an earlier run took."""

    def __init__(self, folder: Path | None):
        self.folder, self.seconds = folder, 0.0


_run = _Steps(None)


def step(name: str, compute: Callable[..., T], *given: Any, classes: Sequence[type] = ()) -> T:
    """Return `compute(*given)`, from the file of an earlier run with the same command if it was interrupted.

    Args:
        name: name of the step, unique in the experiment.
        compute: a function of `given` and of the options alone; its result is what `kbpjax.save` can save.
        given: its arguments.
        classes: classes in the result that are not those of kbpjax.
    """
    if _run.folder is None:  # a function of an experiment that is called by a test
        return compute(*given)
    file = _file(_run.folder, name, ".kbp")
    if file.exists():
        seconds, value = kbp.load(file, classes=classes)
        _run.seconds += seconds
    else:
        start = time.perf_counter()
        value = compute(*given)
        kbp.save(file, (time.perf_counter() - start, value))
    return value


def path(name: str, suffix: str) -> Path | None:
    """Return the path of a file that is kept until the run ends, for instance of a checkpoint; None outside a run."""
    return None if _run.folder is None else _file(_run.folder, name, suffix)


def clock() -> float:
    """Return the time in seconds; differences count the steps of an earlier run as they were."""
    return time.perf_counter() + _run.seconds


def _file(folder: Path, name: str, suffix: str) -> Path:
    """Return a file of a folder, which is created; names that differ give different files."""
    folder.mkdir(exist_ok=True)
    words = re.sub(r"\W+", "-", name)[:60]
    return folder / f"{words}-{hashlib.sha256(name.encode()).hexdigest()[:6]}{suffix}"


@contextmanager
def kept(args: argparse.Namespace) -> Iterator[None]:
    """Keep the steps of a run in a folder in `args.out`, which is removed when the run ends well.

    The name of the folder has a digest of the options, the folder of the data and the code: with others, a run starts
    from the beginning.

    Raises:
        KeyboardInterrupt: with what is kept and where, if there is anything.
    """
    global _run
    options = f"{sorted(vars(args).items())} {os.environ.get('KBPJAX_DATA')}"
    folder = args.out / f"unfinished-{_digest(options)}"
    before, _run = _run, _Steps(folder)
    try:
        yield
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        there = folder.is_dir() and any(folder.iterdir())
        said = f"finished steps are kept in {folder}; the same command resumes"
        raise KeyboardInterrupt(*([said] if there else [])) from None
    finally:
        _run = before


def _digest(options: str) -> str:
    """Return a digest of options and of the code of the library and of the experiments."""
    files = sorted(file for folder in ("kbpjax", "experiments") for file in (ROOT / folder).rglob("*.py"))
    content = hashlib.sha256(options.encode())
    for file in files:
        content.update(file.read_bytes())
    return content.hexdigest()[:8]
