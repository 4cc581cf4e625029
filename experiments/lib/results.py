"""Results of an experiment on disk: flat records as JSON with the machine that made them, figures as PNG."""

import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from experiments.lib.provenance import provenance
from kbpjax._misc import replacing

Row = Mapping[str, Any]


def write_results(path: str | Path, config: Row, rows: Iterable[Row], **more: Any) -> None:
    """Write an experiment's results as JSON (config, machine, provenance, rows, more), whole or not at all.

    Numbers of NumPy and JAX become plain ones, NaN and infinities null, and a `Path` its last part, so that
    the file names no local folder.

    Raises:
        ValueError: The folder cannot be used, a row is not a flat record, a value has no form in JSON.
    """
    records = [plain(row) for row in rows]
    for i, row in enumerate(records):
        if not isinstance(row, dict) or any(isinstance(value, (dict, list)) for value in row.values()):
            raise ValueError(f"rows must be flat records; got {row!r} as row {i}. Give one value per key.")
    origin = {"machine": machine(), "provenance": provenance()}
    content = {"config": plain(config), **origin, "rows": records, **plain(more)}
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    with _replacing(path) as file:
        file.write(text.encode())


def save_figure(fig: Any, path: str | Path) -> None:
    """Save a matplotlib figure as PNG, whole or not at all; raises ValueError as `write_results` does."""
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f"path must end in .png; got {Path(path).name!r}. Figures are saved as PNG only.")
    with _replacing(path) as file:
        fig.savefig(file, format="png", dpi=150)


def machine() -> dict[str, Any]:
    """Describe the machine that a result depends on, without names of host, user or folders."""
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "peak_memory_mib": _peak_memory_mib(),
        "python": platform.python_version(),
    }


def _peak_memory_mib() -> float | None:
    """Return the peak memory of this process; None where it is unknown."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where getrusage would count the process that started this one too
        (peak,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak) / 2**10
    try:
        import resource

        unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    except ImportError:  # Windows
        return None


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean of independent values; NaN of a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


@contextmanager
def _replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` that takes its place only if the block ends well."""
    path = Path(path)
    make_folder(path.parent)
    with replacing(path) as file:
        yield file


def make_folder(folder: Path) -> None:
    """Create a folder for results, or say in one line that it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise ValueError(f"out must be a folder one can write to; got {str(folder)!r}. Choose another --out.")


def plain(value: Any) -> Any:
    """Convert a value to what JSON can hold: None, bool, int, finite float, str, list, dict."""
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        value = np.asarray(value).tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    raise ValueError(f"results must hold numbers and text; got a {type(value).__name__}. Convert it first.")
