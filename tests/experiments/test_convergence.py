"""The study of convergence, as a user runs it."""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

from experiments.convergence import run as convergence
from tests.programs import experiment, inside

program = partial(experiment, "convergence")


def test_quick_study_reaches_one_fixed_point_and_reports_what_did_not(tmp_path):
    outcome = program("--quick", "--settings", "paper", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    result = json.loads((tmp_path / "convergence.json").read_text())
    (fixed,) = result["fixed_points"]
    assert fixed["colored, Anderson: iters"] < fixed["colored: iters"] < fixed["synchronous: iters"] < 200
    assert fixed["starts_differ_by"] < 1e-3 and fixed["rmse_mode"] < 10
    rows = {(row["problem"], row["method"]): row for row in result["rows"]}
    assert {problem for problem, _ in rows} == {"sunset 10", "grid", "random regular", "small world"}
    assert rows["sunset 10", "BP"]["last_residual"] > 0.1
    assert all(row["iteration_s"] > 0 for row in rows.values())
    assert len(result["traces"]) == len(rows) and len(result["traces"][0]["residuals"]) == 10
    with Image.open(tmp_path / "convergence_paper.png") as picture:
        assert picture.width > 1000 and picture.height > 1000
    assert "colored, Anderson: iters" in outcome.stdout


def test_bad_arguments_give_one_line_and_status_2(tmp_path):
    outcome = inside("convergence", "--out", tmp_path, "--levels", 7)
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1 and "levels" in outcome.stderr


@pytest.mark.parametrize("nodes", [6, 50])
def test_random_graphs_are_simple_and_have_their_degrees(nodes):
    rng = np.random.default_rng(nodes)
    regular = convergence.regular_edges(rng, nodes, 4)
    assert np.all(np.bincount(regular.reshape(-1), minlength=nodes) == 4)
    small = convergence.small_world_edges(rng, nodes, 4, 0.1)
    for edges in (regular, small):
        assert len(np.unique(np.sort(edges, axis=1), axis=0)) == len(edges) and np.all(edges[:, 0] != edges[:, 1])
    assert len(small) > 1.5 * nodes
