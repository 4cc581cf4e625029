"""Write the measured tables into README.md and the pages of docs, from the committed results.

python -m experiments.readme            # write
python -m experiments.readme --check    # exit with 1 if they do not hold what the results say
"""

import argparse
import importlib
import json
import re
from pathlib import Path

from experiments.lib.markdown import Results, markdown_table
from experiments.readme import benchmarks, summary

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/images.md",
    "docs/loops.md",
    "docs/learning.md",
    "docs/baselines.md",
    "docs/performance.md",
    "docs/structured.md",
    "docs/depth.md",
    "docs/protein.md",
    "docs/papers.md",
    "docs/expectation_propagation.md",
    "docs/first_try.md",
    "docs/choosing.md",
    "docs/composing.md",
    "docs/joint.md",
    "docs/time_series.md",
    "docs/tables.md",
    "docs/comparisons.md",
)
EXPERIMENTS = (
    "denoising",
    "update_rules",
    "convergence",
    "learned_bandwidths",
    "figure1",
    "orientation",
    "retrieval",
    "words",
    "depth",
    "protein",
    "categories",
    "kjit",
    "imputation",
    "uai",
)
"""Those with tables in the pages, which their module `doc_tables` makes."""
SERIES = "benchmarks/results/series.json"
BLOCK = re.compile(r"(<!-- begin (\w+): .*? -->\n)(.*?)(<!-- end \w+ -->)", re.DOTALL)


def main(argv: list[str] | None = None) -> int:
    """Write or check the tables; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.readme", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a file is out of date")
    check = parser.parse_args(argv).check
    results = {name: _read(f"experiments/{name}/results/{name}.json") for name in EXPERIMENTS}
    tables = of_benchmarks()
    for name, found in results.items():
        tables |= importlib.import_module(f"experiments.{name}.doc_tables").tables(found)
    photographs = _read("experiments/learned_bandwidths/results/photographs.json")
    tables |= importlib.import_module("experiments.learned_bandwidths.doc_tables").tables_of_photographs(photographs)
    results["photographs"] = photographs
    rows = {name: found["rows"] for name, found in results.items()} | {"series": _read(SERIES)["rows"]}
    tables |= {"summary": markdown_table(*summary.summary(rows)), "short": markdown_table(*summary.short(rows))}
    stale = 0
    for path in (ROOT / name for name in PAGES):
        old = path.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda found: found[1] + tables[found[2]] + found[4], old)
        stale += new != old
        if not check:
            path.write_text(new, encoding="utf-8")
    return int(check and stale > 0)


def of_benchmarks() -> dict[str, str]:
    """Return the tables of the benchmarks by the name of their place in the pages."""
    names = ("propagate", "scale", "streaming", "fit", "gradients", "discrete", "first_try", "ablation")
    names += ("decomposition", "precision", "potentials", "joint", "series", "field_cases", "first_call", "pack")
    names += ("first_try_high",)
    found = {name: _read(f"benchmarks/results/{name}.json") for name in names}
    rows = {name: results["rows"] for name, results in found.items()}
    return {
        "propagate": benchmarks.propagate(rows["propagate"]),
        "floor": benchmarks.propagate(rows["propagate"]),
        "scale": benchmarks.scale(rows["scale"]),
        "expect": benchmarks.expect(rows["scale"]),
        "streaming": benchmarks.streaming(rows["streaming"]),
        "trees": benchmarks.trees(found["propagate"]["trees"]),
        "fit": benchmarks.fit(rows["fit"]),
        "gradients": benchmarks.gradients(rows["gradients"]),
        "precision": benchmarks.precision(rows["precision"]),
        "decomposition": benchmarks.decomposition(rows["decomposition"]),
        "potentials_methods": benchmarks.potentials_methods(rows["potentials"]),
        "potentials_sizes": benchmarks.potentials_sizes(rows["potentials"]),
        "potentials_shares": benchmarks.potentials_shares(rows["potentials"]),
        "joint_graphs": benchmarks.joint_graphs(rows["joint"]),
        "joint_wind": benchmarks.joint_wind(rows["joint"]),
        "series_tasks": benchmarks.series_tasks(rows["series"]),
        "series_speed": benchmarks.series_speed(rows["series"]),
        "tables": benchmarks.tables_of_states(rows["discrete"]),
        "first_try": benchmarks.first_try(rows["first_try"]),
        "first_try_compared": benchmarks.first_try_compared(rows["first_try"]),
        "first_try_summary": benchmarks.first_try_summary(rows["first_try"]),
        "first_try_ablation": benchmarks.first_try_ablation(rows["ablation"], rows["first_try"]),
        "first_try_efforts": benchmarks.first_try_efforts(rows["first_try"], rows["first_try_high"]),
        "first_call": benchmarks.first_call(rows["first_call"]),
        "pack": benchmarks.pack(rows["pack"]),
        "field_cases": benchmarks.field_cases(rows["field_cases"]),
        "first_try_failed": benchmarks.first_try_failed(rows["first_try"]),
    }


def _read(path: str) -> Results:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))
