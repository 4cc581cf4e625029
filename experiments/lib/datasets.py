"""The folder of the data sets and files in it.

No experiment downloads anything. The folder is the option `--data` or the environment variable `KBPJAX_DATA`.
"""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np


def data_directory(given: str | Path | None = None) -> Path | None:
    """Find the folder that holds the data sets.

    Args:
        given: The value of `--data`; None takes the environment variable `KBPJAX_DATA`.

    Returns:
        The folder, or None where neither names one.

    Raises:
        ValueError: The folder that was named does not exist.
    """
    name, value = ("data", given) if given else ("KBPJAX_DATA", os.environ.get("KBPJAX_DATA"))
    if not value:
        return None
    directory = Path(value)
    if not directory.is_dir():
        raise ValueError(
            f"{name} must be an existing folder; got {str(directory)!r}. "
            "Name the folder that holds the data sets, or leave it out."
        )
    return directory


def read(directory: Path | None, name: str, layout: str, read: Callable[[Path], Any]) -> Any:
    """Return the content of a file of the data sets; the error names the missing file and its source.

    Args:
        directory: the folder of `data_directory`.
        name: the file's path inside it.
        layout: what the file holds and where it is made from, for messages.
        read: reads it; OSError, EOFError, ValueError, LookupError, zlib.error and BadZipFile mean that it is damaged.

    Raises:
        ValueError: no such file, or a damaged one.
    """
    if directory is None or not (Path(directory) / name).is_file():
        where = "no folder of data sets" if directory is None else f"{str(directory)!r} without {name}"
        raise ValueError(f"data must be a folder with {layout}; got {where}. Pass --data or set KBPJAX_DATA.")
    try:
        return read(Path(directory) / name)
    except (OSError, EOFError, ValueError, LookupError, zlib.error, BadZipFile) as fault:
        raise ValueError(
            f"data must be readable; got {name}, which is damaged ({type(fault).__name__}). It is {layout}."
        ) from None


def evenly(rows: Any, most: int = 3000) -> Any:
    """Return at most `most` rows, evenly spaced: those that the bandwidths of committed results were computed from."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(int)]
