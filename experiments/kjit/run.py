"""Learn the messages of expectation propagation with kernels, just in time (Jitkrittum et al. 2015).

Parts: a, quality of learned messages in a batch; b, their uncertainty; c, a stream of logistic regressions with one
operator; d, a stream of precisions with a compound gamma prior; e, four real sets in sequence. Beside our numbers stand
the published ones and the bands that we expected before the runs.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.kjit import batch, data, figure, online, uncertainty
from experiments.kjit.config import Row, Settings, quick
from experiments.lib import command_line, datasets, results, steps, tables

PARTS = {"a": "batch", "b": "uncertainty", "c": "online", "d": "gamma", "e": "real"}
COLUMNS: dict[str, str] = {
    "batch": "method to sweeps mean standard_error difference difference_error sd q5 median q95 q99 not_finite "
    "published_mean published_sd",
    "uncertainty": "method sweeps pearson spearman quartile_1 quartile_4 step_line step_parabola line_above rise_line "
    "rise_parabola",
    "online": "targets oracle bits problems queries failed queries_1 queries_2 error exact_error largest_gap kl_median "
    "kl_max log_variance ms_a_message predict_ms predict_and_update_ms",
    "gamma": "problems queries last_query correlation_shape correlation_rate median q95 q99 ms oracle_ms",
    "real": "set targets test exact_wrong wrong queries kl failed ms published_exact published_kjit",
    "bands": "of what value least most met",
}
"""Columns of the tables on standard output."""


class Band(NamedTuple):
    """A number of the rows of a part, and where it was expected: section 16 of the specification.

    Attributes:
        of: the part.
        what: the number.
        where: what its row holds.
        value: computes it from the row, and all rows.
        least, most: None: no bound.
    """

    of: str
    what: str
    where: Row
    value: Callable[[Row, list[Row]], float]
    least: float | None
    most: float | None


def _key(name: str) -> Callable[[Row, list[Row]], float]:
    return lambda row, rows: row[name]


def _share_of_forests(row: Row, rows: list[Row]) -> float:
    """Return the largest ratio of our steps to those of a forest, over curves."""
    wanted = {"part": "uncertainty", "sweeps": row["sweeps"]}
    forests = [r for r in rows if wanted.items() <= r.items() and "KJIT" not in r["method"]]
    return max(row[key] / f[key] for f in forests for key in ("step_line", "step_parabola"))


def _faster(what: str, where: Row, key: str) -> Band:
    """Expect that a time of ours goes 300 times into that of a message by importance sampling."""

    def ratio(row: Row, rows: list[Row]) -> float:
        wanted = {"part": "online", "study": "oracle", "oracle": "importance sampling", "bits": row["bits"]}
        (oracle,) = (r for r in rows if wanted.items() <= r.items())
        return oracle["ms_a_message"] / row[key]

    return Band("online", f"sampling / {what}", where, ratio, 300, None)


def bands() -> list[Band]:
    """Return all expectations."""
    batch = {"part": "batch", "to": "z"}
    absolute, relative = ({**batch, "sweeps": "all", "method": f"KJIT, {t}"} for t in ("absolute", "relative"))
    late = {**absolute, "sweeps": "2-5"}
    sure = {"part": "uncertainty", "method": "KJIT, absolute", "sweeps": "2-5"}
    stream = {"part": "online", "study": "summary", "oracle": "quadrature", "targets": "relative"}
    bits = {name: {**stream, "bits": name} for name in (64, 32)}
    timed = {"message of the stream": "ms_a_message", "predicting": "predict_ms"}
    timed |= {"predicting and updating": "predict_and_update_ms"}
    of_set = {"banknote": 36, "blood_transfusion": 191, "fertility": 28, "ionosphere": 20}
    gamma = {"part": "gamma", "study": "summary"}
    found = [
        Band("batch", "KJIT absolute, mean", absolute, _key("mean"), None, -11),
        Band("batch", "KJIT absolute, mean, sweeps 2-5", late, _key("mean"), None, -12.5),
        Band("batch", "KJIT absolute, 99 %", absolute, _key("q99"), None, -6),
        Band("batch", "KJIT relative, mean", relative, _key("mean"), None, -15),
        Band("uncertainty", "Spearman with log KL", sure, _key("spearman"), 0.3, None),
        Band("uncertainty", "quartiles rise by", sure, lambda r, _: r["quartile_4"] - r["quartile_1"], 0, None),
        Band("uncertainty", "larger step", sure, lambda r, _: max(r["step_line"], r["step_parabola"]), None, 0.08),
        Band("uncertainty", "steps / those of a forest", sure, _share_of_forests, None, 0.5),
        Band("uncertainty", "share of line above parabola", sure, _key("line_above"), 1, None),
        Band("uncertainty", "lesser rise", sure, lambda r, _: min(r["rise_line"], r["rise_parabola"]), 2.5, None),
        Band("online", "queries", bits[64], _key("queries"), 600, 900),
        Band("online", "largest gap of errors", bits[64], _key("largest_gap"), None, 0.005),
        *(_faster(f"{label}, {name} bits", of, key) for name, of in bits.items() for label, key in timed.items()),
        Band("gamma", "queries", gamma, _key("queries"), 50, 110),
        Band("gamma", "correlation of log rates", gamma, _key("correlation_rate"), 0.9998, None),
    ]
    for name, wrong in of_set.items():
        where = {"part": "real", "set": name, "targets": "relative"}
        found.append(Band("real", f"{name}: exact EP wrong", where, _key("exact_wrong"), wrong, wrong))
        gap = lambda row, _: abs(row["wrong"] - row["exact_wrong"]) / row["test"]
        found.append(Band("real", f"{name}: gap of errors", where, gap, None, 0.01))
    return found


def judge(rows: list[Row]) -> list[Row]:
    """Compare rows with the bands of the parts that are there."""
    judged = []
    for band in bands():
        for row in (row for row in rows if band.where.items() <= row.items()):
            value = float(band.value(row, rows))
            met = (band.least is None or value >= band.least) and (band.most is None or value <= band.most)
            found = {"value": value, "least": band.least, "most": band.most, "met": met}
            judged.append({"part": "bands", "of": band.of, "what": band.what, **found})
    return judged


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.kjit", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/kjit/results")
    label = ", ".join(f"{letter} {name}" for letter, name in PARTS.items())
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help=f"{label} (default: all)")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the parts: tables on standard output, one JSON and a PNG file for each part in `args.out`."""
    settings = quick(args.seed) if args.quick else Settings(seed=args.seed)
    path, config = args.out / "kjit.json", {"quick": args.quick, "seed": args.seed}
    names = [PARTS[letter] for letter in sorted(set(args.parts))]
    if "real" in names:  # before the hours of the others
        for name in settings.real_sets:
            data.load(name, datasets.data_directory(args.data))
    rows = [row for row in _before(path, config) if row["part"] not in (*names, "bands")]
    for name in names:
        start = steps.clock()
        with jax.enable_x64(True):
            found, pictured = steps.step(name, _part, name, settings, args)
        found.append({"part": name, "study": "time", "seconds": steps.clock() - start})
        rows += found
        judged = judge(rows)
        results.write_results(path, config, [*rows, *judged])
        results.save_figure(figure.DRAW[name](found, pictured), args.out / f"kjit_{name}.png")
        report(name, found)
    report("bands", judge(rows))
    print(f"Wrote {path} and {', '.join(f'kjit_{name}.png' for name in names)}")


def _part(name: str, settings: Settings, args: argparse.Namespace) -> tuple[list[Row], Any]:
    """Run one part; returns its rows, and what its picture shows besides."""
    if name == "real":
        return online.real(settings, datasets.data_directory(args.data)), None
    parts = {"batch": batch.quality, "uncertainty": uncertainty.uncertainty}
    parts |= {"online": online.online, "gamma": online.gamma}
    return parts[name](settings)


def _before(path: Path, config: Row) -> list[Row]:
    """Return the rows of an earlier run with the same options, for parts that are not run now."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found["rows"] if found.get("config") == config else []


def report(name: str, rows: list[Row]) -> None:
    """Print the table of a part."""
    some = [row for row in rows if row.get("study", "summary") in ("summary", "again")]
    print(f"\n{name}")
    if some:
        tables.print_table(some, [key for key in COLUMNS[name].split() if any(key in row for row in some)])
    oracles = [row for row in rows if row.get("study") == "oracle"]
    if oracles:
        tables.print_table(oracles, ["oracle", "bits", "messages", "ms_a_message"])
    seconds = [row["seconds"] for row in rows if row.get("study") == "time"]
    print(*(f"{of:.0f} s" for of in seconds))
