"""What every experiment needs: arguments, exit status, timing, tables, results and figures on disk."""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, TypeVar

import jax
import numpy as np

from kbpjax._misc import replacing

T = TypeVar("T")
Row = Mapping[str, Any]
Run = Callable[[argparse.Namespace], object]
RESULTS = Path("experiments/results")


def add_common_arguments(parser: argparse.ArgumentParser, results: Path = RESULTS) -> None:
    """Add the options that all experiments share: `--quick`, `--out`, `--data`, `--seed`."""
    out = f"folder of the results (default: {results}, of a quick run {results / 'quick'})"
    parser.add_argument("--quick", action="store_true", help="smoke run of less than a minute")
    parser.add_argument("--out", type=Path, default=results, metavar="DIR", help=out)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data (default: $KBPJAX_DATA)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: 0)")


def main(run: Run, parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Run an experiment from the command line; the folder `--out` is made, or refused, before the run.

    Args:
        run: The experiment; it is called with the parsed arguments.
        parser: Its parser, with `add_common_arguments`.
        argv: The arguments; None takes those of the process.

    Returns:
        Exit status: 0; 2 after wrong arguments or a ValueError, which becomes one line on standard error; 130
        after an interrupt.
    """
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help or its error
        return stop.code if isinstance(stop.code, int) else 2
    try:
        # A quick run must not replace committed results; `is` tells the default from the same path given.
        if args.quick and args.out is parser.get_default("out"):
            args.out = args.out / "quick"
        _make_folder(args.out)
        run(args)
    except ValueError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def machine() -> dict[str, Any]:
    """Describe the machine and versions a result depends on, without names of host, user or folders."""
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "peak_memory_mib": _peak_memory_mib(),
        "python": platform.python_version(),
        **{package: _version(package) for package in ("jax", "jaxlib", "numpy", "kbpjax")},
    }


def _peak_memory_mib() -> float | None:
    """Return the most memory that this process has had; None where it cannot be told."""
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


def _version(package: str) -> str | None:
    """Look up the version of an installed package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def timed(fn: Callable[..., T], *args: Any, repeats: int = 3) -> tuple[T, float, float]:
    """Time a function of JAX arrays, its first call (compilation and run) apart from the following ones.

    Returns:
        The result and the seconds of the first call, the median seconds of the `repeats` (>= 1) following ones.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1; got {repeats!r}. Ask for one or more timed calls.")
    jax.block_until_ready(args)

    def once() -> tuple[T, float]:
        start = time.perf_counter()
        outcome = jax.block_until_ready(fn(*args))
        return outcome, time.perf_counter() - start

    result, first = once()
    return result, first, statistics.median(once()[1] for _ in range(repeats))


def in_turn(calls: Sequence[Callable[[], Any]], repeats: int) -> list[tuple[float, ...]]:
    """Time calls in turn, `repeats` rounds after one that does not count, so that a drifting machine favours none.

    Returns:
        Seconds of each call in each round.
    """

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - start

    for call in calls:
        seconds(call)
    return [tuple(seconds(call) for call in calls) for _ in range(repeats)]


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean of independent values; NaN of a single one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def progress(iterable: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """Iterate with a progress bar on standard error where that is a terminal, silently elsewhere."""
    from tqdm import tqdm

    return tqdm(iterable, desc=description, total=total, disable=not sys.stderr.isatty())


def format_table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """Lay out flat records as text: header, rule, a line each; floats show four significant digits.

    Args:
        rows: The records; a missing, NaN or infinite value shows as `-`.
        columns: Keys to show, in order; None shows all in the order of their first appearance.
    """
    known = list(dict.fromkeys(key for row in rows for key in row))
    columns = known if columns is None else list(columns)
    if rows and not set(columns) <= set(known):
        raise ValueError(f"columns must be keys of the rows; got {columns}. Choose among {known}.")
    table = [[_plain(row.get(key)) for row in rows] for key in columns]
    blocks = []
    for key, column in zip(columns, table, strict=True):
        cells = [key, *map(_cell, column)]
        width = max(map(len, cells))
        align = "<" if any(isinstance(value, str) for value in column) else ">"
        cells.insert(1, "-" * width)
        blocks.append([f"{cell:{align}{width}}" for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*blocks, strict=True)) or "(no rows)"


def print_table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
    """Print `format_table` on standard output."""
    print(format_table(rows, columns))


def write_results(path: str | Path, config: Row, rows: Iterable[Row], **more: Any) -> None:
    """Write an experiment's results as JSON (config, machine, rows, more), whole or not at all.

    Numbers of NumPy and JAX become plain ones, NaN and infinities null, and a `Path` its last part, so that
    the file names no local folder.

    Raises:
        ValueError: The folder cannot be used, a row is not a flat record, a value has no form in JSON.
    """
    records = [_plain(row) for row in rows]
    for i, row in enumerate(records):
        if not isinstance(row, dict) or any(isinstance(value, (dict, list)) for value in row.values()):
            raise ValueError(f"rows must be flat records; got {row!r} as row {i}. Give one value per key.")
    content = {"config": _plain(config), "machine": machine(), "rows": records, **_plain(more)}
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    with _replacing(path) as file:
        file.write(text.encode())


def save_figure(fig: Any, path: str | Path) -> None:
    """Save a matplotlib figure as PNG, whole or not at all; raises ValueError as `write_results` does."""
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f"path must end in .png; got {Path(path).name!r}. Figures are saved as PNG only.")
    with _replacing(path) as file:
        fig.savefig(file, format="png", dpi=150)


@contextmanager
def _replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` that takes its place only if the block ends well."""
    path = Path(path)
    _make_folder(path.parent)
    with replacing(path) as file:
        yield file


def _make_folder(folder: Path) -> None:
    """Create a folder for results, or say in one line that it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        raise ValueError(f"out must be a folder one can write to; got {str(folder)!r}. Choose another --out.")


def _plain(value: Any) -> Any:
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
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    raise ValueError(f"results must hold numbers and text; got a {type(value).__name__}. Convert it first.")


def _cell(value: Any) -> str:
    """Write one plain value for a table."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if not isinstance(value, float):
        return str(value)
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
