"""The README tells the truth: its example prints what it says, its table is what the committed results say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kbpjax as kbp
from experiments.readme import run, summary
from tests.checkout import needs_results

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_example_prints_what_the_readme_says():
    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))  # later blocks go on where the first ends
    (said,) = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    numbers = [[float(x) for x in re.findall(r"\d+\.?\d*", text)] for text in (outcome.stdout, said)]
    # Another processor or a busy one may round otherwise, and the search or the iteration then end a step apart.
    assert all(abs(got - shown) <= max(0.1, 0.15 * shown) for got, shown in zip(*numbers, strict=True)), numbers


@needs_results
def test_table_is_what_the_results_say():
    assert run.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("ours", "theirs", "ahead", "error", "bold"),
    [
        (0.9, 0.8, 0.1, 0.04, "ours"),
        (0.9, 0.8, 0.1, 0.06, None),  # within two standard errors
        (0.7, 0.8, -0.1, 0.04, "theirs"),
        (0.7, 0.8, -0.1, None, None),  # nothing is known of the error
    ],
)
def test_only_clear_differences_are_bold(ours, theirs, ahead, error, bold):
    scores = {"ours": summary.Score(ours, 0.01), "best": summary.Score(theirs, 0.01)}
    words = {"task": "t", "page": "p", "measure": "m", "less": False, "shape": ".2f", "without": None}
    line = summary.Line(**words, **scores, baseline="b", ahead=summary.Score(ahead, error))
    cells = summary._cells(line)
    assert [("**" in cells[3]), ("**" in cells[4])] == [bold == "ours", bold == "theirs"]
    assert cells[6] == f"{ahead:+.2f}" + (f" ± {error:.2f}" if error else "")


def test_best_baseline_and_its_difference_are_taken_from_the_rows():
    rows = [
        {"method": "ours", "e": 2.0, "se": 0.3, "d": 0.0, "dse": 0.0},
        {"method": "weak", "e": 5.0, "se": 0.1, "d": 3.0, "dse": 0.5},
        {"method": "strong", "e": 3.0, "se": 0.4, "d": 1.0, "dse": 0.2},
    ]
    words = {"task": "t", "page": "p", "measure": "m", "less": True, "shape": ".2f"}
    independent = summary._line(rows, ("e", "se"), "ours", None, ["weak", "strong"], **words)
    assert (independent.baseline, independent.ahead.value) == ("strong", 1.0)
    assert independent.ahead.error == pytest.approx(0.5)  # of 0.3 and 0.4
    paired = summary._line(rows, ("e", "se"), "ours", "weak", ["weak", "strong"], ("d", "dse", 1), **words)
    assert paired.ahead == (1.0, 0.2) and paired.without == (5.0, 0.1) and paired.messages == (3.0, 0.5)
    assert independent.messages is None


def test_percentages_are_means_over_the_measurements_with_the_error_of_independent_ones():
    Score = summary.Score
    found = summary._percent([(Score(1.0, 0.3), Score(10.0)), (Score(-4.0, 0.8), Score(20.0))])
    assert found.value == pytest.approx((10 - 20) / 2) and found.error == pytest.approx((3**2 + 4**2) ** 0.5 / 2)
    spread = summary._percent([(Score(1.0), Score(10.0)), (Score(-4.0), Score(20.0))])
    assert spread == (pytest.approx(-5.0), pytest.approx(15.0))  # the standard error of 10 and -20


def test_the_version_is_the_same_everywhere():
    cited = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    changes = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert kbp.__version__ == cited[0] == changes[0]


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^make (\w+)", TEXT, re.MULTILINE))
    assert targets == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
