"""Print where the committed results come from, and the number of trials of each method.

python -m experiments.report            # print
python -m experiments.report --check    # and exit with 1 if results are older than the code that makes them
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from experiments.lib.provenance import ROOT, changed_since
from experiments.lib.tables import print_table

SHOWN = 3
"""Number of changed files that are named."""


def main(argv: list[str] | None = None, folder: Path = ROOT / "experiments") -> int:
    """Print both tables; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if a file has a fault")
    check = parser.parse_args(argv).check
    results = {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*/results/*.json"))
    }
    origins = [origin(name, found) for name, found in results.items()]
    print_table(origins)
    print("\nfaults: what has changed since in the code that made a file; comments and docstrings do not count.\n")
    print_table([row for name, found in results.items() for row in trials(name, found)])
    print("\ntrials: evaluations in the search for the options of a method, over all searches of the experiment.")
    return int(check and any(row["faults"] != "none" for row in origins))


def origin(name: str, results: dict[str, Any]) -> dict[str, str]:
    """Return one line of the first table."""
    known = results.get("provenance")
    if known is None:
        return {"results": name, "commit": "?", "date": "?", "command": "?", "faults": "origin unknown"}
    changed = changed_since(known["code"])
    faults = [] if known["clean"] else ["code was not committed"]
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    faults += [f"changed: {', '.join(changed[:SHOWN])}{more}"] if changed else []
    commit = (known["commit"] or "?")[:9]
    return {
        "results": name,
        "commit": commit,
        "date": known["date"],
        "command": known["command"],
        "faults": "; ".join(faults) or "none",
    }


def trials(name: str, results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of the second table: trials of each method, where the results hold them."""
    among_rows = [row for row in results["rows"] if row.get("study") == "trial"]
    tried = results.get("trials") or results.get("searches") or among_rows
    counts = Counter(trial["method"] for trial in tried)
    return [{"results": name, "method": method, "trials": count} for method, count in counts.items()]
