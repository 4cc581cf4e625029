"""The benchmark of first tries: its problems have the shapes that the library takes, and scores are right."""

import json

import jax
import numpy as np
import pytest

import kbpjax as kbp
from benchmarks.first_try import __main__ as program
from benchmarks.first_try import baselines, problems, real
from benchmarks.first_try.scoring import Distribution, Prediction, Quantity, of_type, score, score_prediction

DRAWN = [*problems.PROBLEMS, "sunset-10", "inpainting"]
"""Problems that need no file."""


def build(name, data=None):
    rng = np.random.default_rng(0)
    return problems.PROBLEMS[name](rng, True) if name in problems.PROBLEMS else real.PROBLEMS[name](rng, True, data)


@pytest.mark.parametrize("name", DRAWN)
def test_problems_fit_the_library_and_their_methods(name):
    problem = build(name)
    data = problem.pool()
    assert data.observations.keys() >= {quantity.node_type for quantity in problem.quantities}
    for draw in (problem.test, problem.validation):
        graph = problem.graph if draw is problem.test else problem.validation_graph or problem.graph
        cases = {len(leaf) for leaf in jax.tree.leaves(draw)}
        assert len(cases) == 1
        for quantity in problem.quantities:
            nodes = graph.nodes_of_type(quantity.node_type)
            assert of_type(draw.y, quantity.node_type).shape[1] == len(nodes)
            assert of_type(draw.truth, quantity.node_type).shape[1] == len(nodes)
    assert problem.baselines
    for quantity in problem.quantities:
        spread = np.nanstd(of_type(problem.test.truth, quantity.node_type))
        best = min(
            score_prediction(quantity, found[quantity.name], problem.test.truth, np.zeros(0))[0]
            for found in (method(problem, problem.test) for method in problem.baselines.values())
        )
        assert np.isfinite(best) and best < 60 * spread if quantity.angle else best < spread


def test_all_problems_are_in_the_order():
    assert set(program.ORDER) == {*problems.PROBLEMS, *real.PROBLEMS}


@pytest.mark.parametrize("name", ["wind", "pm10", "protein", "depth"])
def test_missing_data_are_a_row_that_names_the_source(name):
    (row,) = program.attempt(name, 0, True, None)
    assert row["failed"].startswith("skipped: data must be a folder with")


def test_scores_of_a_gaussian_are_those_of_its_formula():
    points, rng = np.linspace(-6, 6, 601), np.random.default_rng(0)
    weights = np.exp(-(points**2) / 2) / np.exp(-(points**2) / 2).sum()
    truth = rng.standard_normal((1, 1000))
    found = score(Quantity(), Distribution(points, np.tile(weights, (1, 1000, 1))), truth)
    expected = score_prediction(Quantity(), Prediction(0 * truth, 0 * truth + 1), truth, np.zeros(0))
    np.testing.assert_allclose([found["error"], found["crps"]], expected[:2], rtol=2e-3)
    assert abs(found["coverage_50"] - 0.5) < 0.05 and abs(found["coverage_90"] - 0.9) < 0.03


def test_scores_of_angles_go_around_the_circle():
    points = np.linspace(-np.pi, np.pi, 360, endpoint=False)
    weights = np.where(np.abs(points) > np.pi - 0.3, 1.0, 0)
    found = score(Quantity(angle=True), Distribution(points, weights[None, None] / weights.sum()), np.array([[3.1]]))
    assert found["error"] < 4 and found["crps"] < 5 and found["coverage_50"] == 1


def test_expectation_maximization_finds_a_covariance_from_values_with_holes():
    rng = np.random.default_rng(0)
    root = np.array([[1.0, 0, 0], [0.8, 0.6, 0], [0.5, 0.5, 0.7]])
    x = rng.standard_normal((4000, 3)) @ root.T + 2
    x[rng.random(x.shape) < 0.3] = np.nan
    mean, covariance = baselines.expectation_maximization(x, 20)
    np.testing.assert_allclose(mean, 2, atol=0.1)
    np.testing.assert_allclose(covariance, root @ root.T, atol=0.1)


def test_exact_posterior_of_a_chain_is_that_of_the_kalman_smoother():
    problem = build("gaussian-chain")
    found = problem.exact(problem.test)[""]
    time = np.arange(found.weights.shape[1])
    covariance = 0.95 ** np.abs(time[:, None] - time[None])
    means, stds = zip(*(baselines.condition(covariance, 0.25, y) for y in problem.test.y), strict=True)
    np.testing.assert_allclose(found.weights @ found.points, means, atol=2e-3)
    exact = score(Quantity(), found, problem.test.truth)["crps"]
    kalman = score_prediction(Quantity(), Prediction(np.stack(means), np.stack(stds)), problem.test.truth, np.zeros(0))
    np.testing.assert_allclose(exact, kalman[1], rtol=1e-2)


def test_failures_are_reported_and_do_not_end_a_problem(monkeypatch):
    problem = build("gaussian-chain")

    def refuse(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr(kbp, "fit", refuse)
    (row,) = program.solve("gaussian-chain", problem, True)
    assert row["failed"] == "one_call: RuntimeError: no; tuned: RuntimeError: no"
    assert row["baseline_error"] > 0 and row["exact_error"] > 0


@pytest.mark.slow
def test_one_problem_from_the_command_line(tmp_path):
    assert program.main(["--quick", "--only", "gaussian-chain", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "first_try.json").read_text())
    (row,) = content["rows"]
    assert "failed" not in row and row["converged"] == 1
    assert all(np.isfinite(row[f"error/{other}"]) for other in ("baseline", "exact", "tuned"))
