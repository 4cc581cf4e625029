"""The command line of an experiment: common options, exit status, progress bar."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from experiments.lib import steps
from experiments.lib.results import make_folder

T = TypeVar("T")
Run = Callable[[argparse.Namespace], object]


def add_common_arguments(parser: argparse.ArgumentParser, results: str | Path) -> None:
    """Add the options that all experiments share: `--quick`, `--out`, `--data`, `--seed`.

    Args:
        parser: The parser of the experiment.
        results: Default of `--out`. A quick run writes to the folder `quick` in it.
    """
    results = Path(results)
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
        after an interrupt, with one line that says where the finished steps are.
    """
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help or its error
        return stop.code if isinstance(stop.code, int) else 2
    try:
        # A quick run must not replace committed results; `is` tells the default from the same path given.
        if args.quick and args.out is parser.get_default("out"):
            args.out = args.out / "quick"
        make_folder(args.out)
        with steps.kept(args):
            run(args)
    except ValueError as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("interrupted", *stop.args, sep=": ", file=sys.stderr)
        return 130
    return 0


def progress(iterable: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """Iterate with a progress bar on standard error where that is a terminal, silently elsewhere."""
    from tqdm import tqdm

    return tqdm(iterable, desc=description, total=total, disable=not sys.stderr.isatty())
