"""Run the benchmarks that tell whether something got slower, and compare with the saved run.

    python -m benchmarks [--repeats 7] [--quick] [--accept]
    python -m benchmarks --device

Every row is a ratio to bare matrix products of the same sizes, measured in turn with them, so that runs on machines of
different speed compare; `now / saved` is that ratio against the one of the committed run. The new run is written to
benchmarks/out; `--accept` writes it over the committed one.
`--device` measures instead what an accelerator does, in at most eight minutes (`benchmarks/device.py`).
The benchmarks beside this file measure more: `propagate.py`, `scale.py`, `fit.py`, `streaming.py`, `gradients.py` and
`discrete.py`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kbpjax as kbp
from benchmarks import device, propagate, scale
from experiments.lib import command_line, results, tables

SAVED, OUT = Path("benchmarks/results"), Path("benchmarks/out")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, OUT)
    parser.add_argument("--accept", action="store_true", help="write the run over the committed one")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each, in turn (default: 7)")
    parser.add_argument("--device", action="store_true", help="measure the accelerator that JAX finds, or this CPU")
    parser.add_argument(
        "--seconds", type=float, default=480.0, help="with --device: begin nothing later (default: 480)"
    )
    parser.add_argument("--largest", type=float, default=1e8, help="with --device: most messages (default: 1e8)")
    return command_line.main(lambda args: device.run(args) if args.device else run(args), parser)


def run(args: argparse.Namespace) -> None:
    if args.repeats < 1:
        raise ValueError(f"--repeats: must be at least 1; got {args.repeats}. Ask for one or more timed runs.")
    repeats = 3 if args.quick else args.repeats
    path = (SAVED if args.accept else args.out) / "all.json"
    saved = saved_ratios(SAVED / path.name)
    total = len(propagate.RANKS) + len(scale.OTHERS)
    rows = [row(found, saved) for found in command_line.progress(measured(repeats), "benchmarks", total)]
    tables.print_table(rows)
    results.write_results(path, {"repeats": repeats}, rows)


def measured(repeats: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield (name, seconds, seconds of the bare products, their ratio) of each benchmark."""
    graph = kbp.grid_graph(propagate.SIDE, propagate.SIDE)
    for rank, points in propagate.RANKS:
        one = propagate.compare(graph, rank, points, repeats)
        yield f"propagate {rank}/{points}", one["loop_s"], one["last_s"], one["loop/last"]
    for case in scale.OTHERS:
        one = scale.alone(case, repeats)
        yield case, one["s"], one["bare_s"], one["loop/bare"]


def row(found: tuple[str, float, float, float], saved: dict[str, float]) -> dict[str, Any]:
    """Lay one benchmark out, beside the saved run."""
    name, seconds, bare, ratio = found
    before = saved.get(name)
    change = None if before is None else ratio / before
    return {"benchmark": name, "s": seconds, "bare_s": bare, "ratio": ratio, "saved": before, "now / saved": change}


def saved_ratios(path: Path) -> dict[str, float]:
    """Read the ratios of the saved run; none where there is no file."""
    if not path.exists():
        return {}
    return {row["benchmark"]: row["ratio"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


if __name__ == "__main__":
    sys.exit(main())
