"""The benchmark of potentials: its tables, and what it hides."""

import json

import numpy as np
import pytest

from benchmarks import potentials
from experiments.readme import benchmarks


def test_each_case_hides_one_node_and_each_node_is_hidden():
    x = np.arange(24.0).reshape(8, 3)
    draw = potentials.whole_nodes(x)
    hidden = np.isnan(draw.y)
    assert (hidden.sum(axis=1) == 1).all() and hidden.any(axis=0).all()
    np.testing.assert_array_equal(np.where(hidden, draw.truth, draw.y), x)


def test_the_joint_gaussian_has_the_score_of_a_gaussian():
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(0.5 + 0.5 * np.eye(3))
    train, test = (rng.normal(size=(4000, 3)) @ root.T for _ in range(2))
    spread = np.sqrt(1 - 2 * 0.5**2 / (1 + 0.5))  # of one number given two others
    assert potentials.joint(train)(potentials.whole_nodes(test)) == pytest.approx(spread / np.sqrt(np.pi), rel=0.03)


def test_tables_put_problems_sizes_and_shares_side_by_side():
    rows = [
        {"part": "wind", "potentials": "fit", "crps": 0.1, "/ baseline": 1.5, "in 90 %": 0.9, "seconds": 3.0},
        {"part": "rain", "potentials": "fit", "crps": 0.2, "/ baseline": 1.25, "in 90 %": 0.8, "seconds": 4.0},
        {"part": "wind", "potentials": "copula", "crps": 0.1, "/ baseline": 1.0},
        {"part": "sizes", "cases": 300, "potentials": "fit", "crps": 0.3},
        {"part": "sizes", "cases": 100, "potentials": "fit", "crps": 0.4},
        {"part": "shares", "hidden": "10%", "potentials": "fit", "crps": 0.5},
    ]
    lines = benchmarks.potentials_methods(rows).splitlines()
    assert lines[0] == "| potentials | wind | wind, in 90 % | wind, s | rain | rain, in 90 % | rain, s |"
    assert lines[2:] == ["| fit | 1.50 | 0.90 | 3 | 1.25 | 0.80 | 4 |", "| copula | 1.00 |  |  |  |  |  |"]
    assert benchmarks.potentials_sizes(rows).splitlines()[0::2] == [
        "| potentials | 100 | 300 |",
        "| fit | 0.400 | 0.300 |",
    ]
    assert benchmarks.potentials_shares(rows).splitlines()[2] == "| fit | 0.500 |"


@pytest.mark.slow
def test_a_quick_run_has_all_parts(tmp_path):
    assert potentials.main(["--quick", "--only", "four-numbers", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "potentials.json").read_text(encoding="utf-8"))["rows"]
    methods = [row["potentials"] for row in rows]
    assert methods[:2] == [potentials.FIT, potentials.COUNTS] and methods[-2:] == [potentials.JOINT, "copula"]
    assert set(potentials.WAYS) >= set(methods[2:-2]) >= {"scaled", potentials.CORRECTED}


def test_a_quick_run_does_not_replace_results(tmp_path):
    assert potentials.main(["--accept", "--quick", "--out", str(tmp_path)]) == 2
