"""The benchmark of first tries: its problems have the shapes that the library takes, and scores are right."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import kbpjax as kbp
from benchmarks.first_try import __main__ as program
from benchmarks.first_try import baselines, networks, problems, real
from benchmarks.first_try.scoring import (
    Distribution,
    Draw,
    Prediction,
    Problem,
    Quantity,
    of_type,
    score,
    score_prediction,
)

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


@pytest.mark.parametrize("name", ["wind", "pm10", "rain", "protein", "depth"])
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
    mean, covariance = networks.expectation_maximization(x, 20)
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


def test_four_numbers_have_the_errors_of_another_program():
    problem = problems.four_numbers(
        np.random.default_rng(0), False
    )  # errors are those of a NumPy program on the same rows
    found = {"exact": problem.exact, **problem.baselines}
    call = lambda name: found[name](problem.test) if name == "exact" else found[name](problem, problem.test)
    errors = {name: score_prediction(Quantity(), call(name)[""], problem.test.truth, np.zeros(0))[0] for name in found}
    np.testing.assert_allclose([errors["exact"], errors["IterativeImputer"]], [0.5785, 0.580], atol=5e-4)
    np.testing.assert_allclose([errors["joint Gaussian"], errors["copula"]], errors["exact"], rtol=0.02)


def draws(x, share=0.3):
    """A problem whose cases are the last 50 rows of Gaussian training data."""
    test = problems.hide(np.random.default_rng(1), x[-50:], share)
    return Problem(kbp.chain_graph(x.shape[1]), x, x, test, test)


def test_copula_of_gaussian_values_is_the_joint_gaussian():
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([1, 2, 3, 4], problems.CORRELATION, 5000)
    x[rng.random(x.shape) < 0.2] = np.nan
    problem = draws(x)
    found = [method(x, 20)(problem, problem.test)[""] for method in (networks.copula, networks.joint_gaussian)]
    means = np.einsum("cnp,np->cn", found[0].weights, found[0].points)
    np.testing.assert_allclose(means, found[1].mean, atol=0.25)
    assert np.mean(np.abs(means - found[1].mean)) < 0.02
    scores = [score_prediction(Quantity(), one, problem.test.truth, np.zeros(0))[1] for one in found]
    np.testing.assert_allclose(*scores, rtol=0.02)


def test_copula_maps_scores_back_to_skewed_values():
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal(np.zeros(4), problems.CORRELATION, 5000)
    problem = draws(np.exp(z))
    found = networks.copula(np.exp(z), 1)(problem, problem.test)[""]
    expected = networks.gaussian(np.zeros(4), problems.CORRELATION)(problem, Draw(np.log(problem.test.y), None))[""]
    hidden = np.isnan(problem.test.y)
    median = np.argmax(np.cumsum(found.weights, axis=-1) >= 0.5, axis=-1)
    values = found.points[np.arange(4), median][hidden]
    np.testing.assert_allclose(np.log(values), expected.mean[hidden], atol=0.15)


def test_kriging_finds_the_range_and_the_nugget():
    rng = np.random.default_rng(0)
    place = rng.random((15, 2))
    distance = np.linalg.norm(place[:, None] - place[None], axis=-1)
    true = 4 * (0.8 * np.exp(-distance / 0.5) + 0.2 * np.eye(15))
    x = 1 + rng.multivariate_normal(np.zeros(15), true, 3000)
    x[rng.random(x.shape) < 0.3] = np.nan
    mean, covariance = networks.spatial_covariance(x, distance)
    np.testing.assert_allclose(mean, 1, atol=0.2)
    np.testing.assert_allclose(covariance, true, atol=0.35)


def test_three_days_are_conditioned_on_the_days_around_in_the_test_draw_only():
    rng = np.random.default_rng(0)
    x = [rng.standard_normal(2)]
    for _ in range(6000):
        x.append(0.9 * x[-1] + np.sqrt(1 - 0.81) * rng.standard_normal(2))
    x = np.stack(x)
    y = x[:9].copy()
    y[4, 0] = np.nan
    problem = dataclasses.replace(draws(x), test=Draw(y, None))
    predict = networks.three_days(x, 1)
    found, alone = predict(problem, problem.test)[""], predict(problem, Draw(y, None))[""]
    np.testing.assert_allclose(found.mean[4, 0], 0.9 / 1.81 * (x[3, 0] + x[5, 0]), atol=0.1)
    np.testing.assert_allclose(found.std[4, 0], np.sqrt(0.19 / 1.81), rtol=0.05)
    np.testing.assert_allclose([alone.mean[4, 0], alone.std[4, 0]], [0, 1], atol=0.15)


def test_posterior_of_the_pendulum_is_that_of_a_bootstrap_particle_smoother():
    problem, rng = build("pendulum"), np.random.default_rng(0)
    y = problem.test.y[:1, :6]
    count = 200_000
    angle, speed, paths = rng.uniform(-2.2, 2.2, count), rng.standard_normal(count), np.zeros((count, 0, 2))
    for t in range(y.shape[1]):
        if t:
            speed = speed - 0.9 * np.sin(angle) + 0.2 * rng.standard_normal(count)
            angle = angle + 0.1 * speed
        weight = np.exp(-((y[0, t] - np.sin(angle)) ** 2) / 0.02) * (np.abs(angle) < 3)
        kept = rng.choice(count, count, p=weight / weight.sum())
        paths = np.concatenate([paths, np.stack([angle, speed], axis=1)[:, None]], axis=1)[kept]
        angle, speed = paths[:, -1].T
    found = problems.swing(Draw(y, None), 0.02)
    for i, one in enumerate((found["angle"], found["speed"])):
        points = one.points[:, i]
        mean = one.weights[0] @ points
        np.testing.assert_allclose(mean, paths[..., i].mean(axis=0), atol=0.03)
        std = np.sqrt(one.weights[0] @ points**2 - mean**2)
        np.testing.assert_allclose(std, paths[..., i].std(axis=0), atol=0.03)


def test_a_method_that_sees_more_is_never_the_best_baseline():
    problem = build("gaussian-chain")
    better = lambda problem, draw: {"": Prediction(draw.truth)}
    (row,) = program._baselines(dataclasses.replace(problem, seeing_more={"the truth": better}), True)
    assert row["baseline"] == "Kalman smoother, learned"
    assert row["error of the truth"] == 0 < row["baseline_error"]


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
