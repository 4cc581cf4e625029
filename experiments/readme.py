"""Write the measured table of the denoising experiment into README.md, from its committed results.

    python -m experiments.readme            # write
    python -m experiments.readme --check    # exit with 1 if README.md does not hold what the results say
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "denoising.json"
BLOCK = re.compile(r"(<!-- begin table: .*? -->\n)(.*?)(<!-- end table -->)", re.DOTALL)
COLUMNS = ("levels", "paper: ranks", "mode", "mean", "cover", "run s", "narrow: ranks", "mode", "mean", "cover", "run s")


def main(argv: list[str] | None = None) -> int:
    """Write or check the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.readme", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if README.md is out of date")
    check = parser.parse_args(argv).check
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = BLOCK.sub(lambda found: found[1] + table(json.loads(RESULTS.read_text())["rows"]) + found[3], old)
    if check:
        return int(new != old)
    readme.write_text(new, encoding="utf-8")
    return 0


def table(rows: list[dict]) -> str:
    """Lay the rows of the experiment out as Markdown, the two settings side by side."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " ---: |" * len(COLUMNS)]
    for image in dict.fromkeys(row["image"] for row in rows):
        by_setting = {row["setting"]: row for row in rows if row["image"] == image}
        cells = [image.removeprefix("sunset ")]
        for setting in ("paper", "narrow"):
            row = by_setting[setting]
            cells += [f"{row['rank']}, {row['products']}", f"{row['rmse_mode']:.1f}", f"{row['rmse_mean']:.1f}"]
            cells += [f"{row['cover90']:.2f}", f"{row['run_s']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
