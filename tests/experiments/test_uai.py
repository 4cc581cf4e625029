"""The experiment on public discrete models, as a user runs it, and its parts on a small model."""

import json

import numpy as np
import pytest

from experiments.uai import run
from kbpjax.baselines import elimination
from kbpjax.baselines.elimination import Factors
from tests.programs import needs

pytestmark = pytest.mark.experiments


def test_merged_factors_are_the_same_model():
    rng = np.random.default_rng(0)
    scopes = [(0, 1), (1, 0), (2, 1), (0,), (0,)]
    factors = Factors([2, 2, 3], scopes, [rng.uniform(0.5, 2, [(2, 2, 3)[v] for v in scope]) for scope in scopes])
    one, other = elimination.solve(factors), elimination.solve(run.merged(factors))
    assert one.log_partition == pytest.approx(other.log_partition)
    assert len({tuple(sorted(scope)) for scope in run.merged(factors).scopes}) == 5


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_message_passing_on_a_tree_is_exact_at_all_exponents(share):
    rng = np.random.default_rng(1)
    scopes = [(0, 1), (1, 2), (1, 3), (0,), (2,)]
    factors = run.merged(Factors([2] * 4, scopes, [rng.uniform(0.5, 20, [2] * len(scope)) for scope in scopes]))
    exact = elimination.solve(factors)
    found, log_z, *_, converged, _ = run.passed(factors, share, True, exact, exact.sample(5))
    assert converged and log_z == pytest.approx(exact.log_partition, abs=1e-3)
    np.testing.assert_allclose(np.stack(found), np.stack(exact.marginals), atol=1e-3)


@needs("uai")
def test_a_quick_run_writes_a_row_for_each_method(tmp_path):
    assert run.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "uai.json").read_text(encoding="utf-8"))["rows"]
    assert {row["model"] for row in rows} == set(run.QUICK)
    of = {row["method"]: row for row in rows if row["model"] == "Grids_12"}
    assert of["elimination"]["error"] == 0 and of["elimination"]["published"] < 1e-6
    chosen = of["exponents chosen by draws"]
    assert chosen["log_likelihood"] >= max(of["BP"]["log_likelihood"], of["tree-reweighted"]["log_likelihood"])
    assert of["elimination"]["log_likelihood"] >= chosen["log_likelihood"]
