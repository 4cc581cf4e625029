"""The README tells the truth: its example prints what it says, its table is what the committed results say."""

import re
import subprocess
import sys
from pathlib import Path

from experiments import readme

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_example_prints_what_the_readme_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))  # later blocks go on where the first ends
    (said,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    numbers = [[float(x) for x in re.findall(r"\d+\.?\d*", text)] for text in (outcome.stdout, said)]
    # Another processor may round otherwise: one unit of the last figure shown.
    assert all(abs(got - shown) <= (0.1 if shown < 60 else 1.0) for got, shown in zip(*numbers, strict=True))


def test_table_is_what_the_results_say():
    assert readme.main(["--check"]) == 0


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^make (\w+)", TEXT, re.MULTILINE))
    assert targets == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
