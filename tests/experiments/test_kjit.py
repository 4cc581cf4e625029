"""Just-in-time learning of messages as a user runs it; its data, baselines and scores against plain formulas."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from experiments.kjit import batch, data, doc_tables, forests, online, run, uncertainty
from experiments.kjit.config import describe, log_kl, problems, quick
from kbpjax import ep
from tests.programs import SHORT, experiment, inside, needs

program = partial(experiment, "kjit", **SHORT)


def write(folder, name="fertility", **changes):
    """Write a small set."""
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (8, 3))
    x[:, 1] = 5
    some = x[:, [0, 2]]
    norm = (some - some.mean(0)) / some.std(0, ddof=1)
    content = {"X": x, "y": np.array([0, 1] * 4, np.int8), "train": np.arange(8) < 5, "X_norm": norm, **changes}
    (folder / "uci").mkdir(exist_ok=True)
    np.savez(folder / "uci" / f"{name}.npz", **content)
    return norm


def test_sets_are_standardized_and_lose_constant_columns(tmp_path):
    norm = write(tmp_path)
    some = data.load("fertility", tmp_path)
    np.testing.assert_allclose(some.x, norm, atol=1e-12)
    np.testing.assert_allclose(some.x.var(axis=0, ddof=1), 1, rtol=1e-12)
    assert some.dropped == 1 and some.differs < 1e-12
    assert some.train.sum() == 5 and some.y.tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"X": np.full((8, 3), np.nan)},
        {"y": np.arange(8)},
        {"train": np.ones(7, bool)},
        {"X_norm": np.zeros((8, 2))},
        {"X_norm": np.zeros((8, 3))},
    ],
)
def test_other_content_is_refused(tmp_path, changes):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=r"data must be readable; got uci/fertility.npz, which is damaged"):
        data.load("fertility", tmp_path)


def test_truncated_and_missing_sets_are_refused(tmp_path):
    write(tmp_path)
    path = tmp_path / "uci" / "fertility.npz"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"which is damaged .*archive.ics.uci.edu"):
        data.load("fertility", tmp_path)
    with pytest.raises(ValueError, match=r"without uci/banknote.npz. Pass --data or set KBPJAX_DATA"):
        data.load("banknote", tmp_path)


def test_without_data_one_line_says_where_to_get_them(tmp_path):
    outcome = inside("kjit", "--quick", "--out", tmp_path, KBPJAX_DATA="")
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1
    assert "archive.ics.uci.edu" in outcome.stderr and "kernel-ep" in outcome.stderr


@needs("uci")
def test_the_quick_run_learns_messages(tmp_path):
    outcome = program("--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    content = json.loads((tmp_path / "kjit.json").read_text())
    rows = content["rows"]
    batch = {row["method"]: row["mean"] for row in rows if row.get("to") == "z"}
    assert max(batch["KJIT, relative"], batch["KJIT, absolute"]) < batch["the incoming message"] - 2  # nothing learned
    streams = [row for row in rows if row["part"] == "online" and row.get("study") == "problem"]
    exact = [row for row in streams if row["oracle"] == "quadrature"]
    assert len(exact) == 3 and all(row["kl"] < 0.01 and row["failed"] == 0 for row in exact)
    assert 60 <= exact[0]["queries"] < 300 and exact[-1]["queries"] < exact[0]["queries"] / 2
    (gamma,) = (row for row in rows if row["part"] == "gamma" and row["study"] == "summary")
    assert gamma["correlation_rate"] > 0.9998 and 20 <= gamma["queries"] < 60
    real = [row for row in rows if row["part"] == "real" and "set" in row]
    assert [(row["targets"], row["exact_wrong"]) for row in real] == [("relative", 28), ("absolute", 28)]
    bands = {row["what"]: row for row in rows if row["part"] == "bands"}
    assert bands["fertility: exact EP wrong"]["met"] and not bands["queries"]["met"]
    for name in run.PARTS.values():
        assert (tmp_path / f"kjit_{name}.png").stat().st_size > 10_000
    tables = {name: table.splitlines() for name, table in doc_tables.tables(content).items()}
    assert all(len(lines) > 2 and len({line.count("|") for line in lines}) == 1 for lines in tables.values())
    assert len(tables["kjit_bands"]) - 2 == len([row for row in rows if row["part"] == "bands"])


def test_parts_keep_the_rows_of_an_earlier_run_with_the_same_options(tmp_path):
    path, config = tmp_path / "kjit.json", {"quick": True, "seed": 0}
    assert run._before(path, config) == []
    path.write_text(json.dumps({"config": config, "rows": [{"part": "gamma"}]}))
    assert run._before(path, config) == [{"part": "gamma"}]
    assert run._before(path, {"quick": True, "seed": 1}) == []


def test_bands_are_met_within_and_missed_outside():
    row = {"part": "batch", "to": "z", "sweeps": "all", "method": "KJIT, absolute", "mean": -11.0, "q99": -5.9}
    judged = {one["what"]: one["met"] for one in run.judge([row])}
    assert judged == {"KJIT absolute, mean": True, "KJIT absolute, 99 %": False}
    stream = {"part": "online", "study": "summary", "oracle": "quadrature", "targets": "relative", "bits": 64}
    stream |= {"queries": 599, "largest_gap": 0.005, "ms_a_message": 1.0, "predict_ms": 0.1, "predict_and_update_ms": 2}
    oracle = {"part": "online", "study": "oracle", "oracle": "importance sampling", "bits": 64, "ms_a_message": 100}
    judged = {one["what"]: (one["value"], one["met"]) for one in run.judge([stream, oracle])}
    assert judged["queries"] == (599, False) and judged["largest gap of errors"][1]
    assert judged["sampling / predicting, 64 bits"] == (1000, True)
    assert judged["sampling / predicting and updating, 64 bits"] == (50, False)
    nan = run.judge([{**row, "mean": float("nan")}])
    assert not nan[0]["met"]


def test_labels_follow_the_logistic_model():
    settings = quick(0)._replace(data=20_000, dim=3)
    weights, x, y = problems(settings, 2, np.random.default_rng(0), shared=True)
    assert (weights[0] == weights[1]).all() and not (x[0] == x[1]).any()
    odds = x[1] @ weights[1]
    for low, high in ((-3, -1), (-0.3, 0.3), (1, 3)):
        some = (odds > low) & (odds < high)
        assert abs(y[1][some].mean() - np.mean(1 / (1 + np.exp(-odds[some])))) < 0.03


def test_the_variance_of_trees_is_that_of_their_answers():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 2)), rng.normal(size=(50, 2))
    forest = ExtraTreesRegressor(7, min_samples_leaf=3, random_state=0).fit(x, y)
    answers = np.array([[tree.predict(row[None])[0] for tree in forest.estimators_] for row in x])
    expected = np.log(((answers - answers.mean(axis=1, keepdims=True)) ** 2).mean(axis=1)).mean(axis=1)
    np.testing.assert_allclose(forests.tree_uncertainty(forest, x), expected, rtol=1e-8)


def test_trees_see_parameters_moments_and_modes():
    z = ep.Gaussian.from_moments(jnp.array([0.5, -2.0]), jnp.array([4.0, 0.5]))
    found = forests.tree_inputs((ep.Beta(jnp.array([2.0, 3.0]), jnp.array([1.0, 3.0])), z))
    s = lambda t: 1 / (1 + np.exp(-t))
    expected = [[2, 1, 2 / 3, 1 / 18, s(1), 0.5, 4, 0.125, 0.25, s(0.5)]]
    expected += [[3, 3, 0.5, 1 / 28, s(0.5), -2, 0.5, -4, 2, s(-2)]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_steps_rises_and_quartiles():
    places = np.array([-12.0, -5, -2, 0, 2, 5, 12])
    values = np.array([9.0, 4, 1, 2, 3, 5, 7])
    assert uncertainty.mean_step(values) == pytest.approx((5 + 3 + 1 + 1 + 2 + 2) / 6)
    assert uncertainty.rise(places, values) == pytest.approx(8 - 2)
    unsure, errors = np.array([4.0, 1, 3, 2, 8, 7, 6, 5]), np.arange(8.0)
    assert uncertainty.quartile_means(unsure, errors) == [2.0, 1.0, 6.5, 4.5]
    found = uncertainty.correlate(np.arange(10.0), np.append(np.exp(np.arange(9.0)), np.nan))
    assert found["spearman"] == pytest.approx(1) and found["pearson"] < 0.95


def test_curves_are_those_of_the_paper():
    p, z = uncertainty.curve_messages("parabola")
    assert p.beta[0] == 2 and p.alpha[0] == 1
    np.testing.assert_allclose(z.mean, np.linspace(-13, 13, 500), rtol=1e-4)
    np.testing.assert_allclose(jnp.log(z.precision), -0.02 * np.linspace(-13, 13, 500) ** 2 + 1.6, atol=1e-5)


def test_divergences_are_described_with_their_failures():
    truth = ep.Gaussian.from_moments(jnp.zeros(3), jnp.ones(3))
    guess = ep.Gaussian(jnp.array([1.0, 1.0, -1.0]), jnp.array([2.0, 0.0, 0.0]))
    values = log_kl(truth, guess)
    assert values[0] == pytest.approx(np.log(2)) and values[1] == pytest.approx(np.log(1e-16)) and np.isnan(values[2])
    found = describe(values)
    assert found["not_finite"] == 1 and found["mean"] == pytest.approx(values[:2].mean())
    assert describe(np.array([np.nan]))["mean"] is None


def test_the_divergence_of_posteriors_is_that_of_gaussians():
    rng = np.random.default_rng(0)
    posterior = ep.logistic_regression(rng.normal(size=(10, 3)), rng.integers(0, 2, 10))
    other = ep.logistic_regression(rng.normal(size=(10, 3)), rng.integers(0, 2, 10))
    p, q = (ep.MultivariateGaussian.from_moments(of.mean, of.covariance) for of in (posterior, other))
    assert online.divergence(posterior, other) == pytest.approx(float(p.kl(q)), rel=1e-3)
    assert online.divergence(posterior, posterior) == pytest.approx(0, abs=1e-6)


def test_features_of_all_kernels_are_learned_with_their_best_width_and_noise(monkeypatch):
    """Candidates of which one is hopeless: it is not taken."""
    settings = quick(1)._replace(train=150, test=50, few=(30, 40), many=(40, 60))
    grid = ep.grid_candidates((1.0, 1e6), (1e-4, 1e4))
    monkeypatch.setattr(batch, "candidates", lambda settings: grid)
    with jax.enable_x64(True):
        data = batch.batch(settings, "all")
        repeat = log_kl(data.test.belief, data.test.incoming[1]).mean()
        for name, draw in batch.FEATURES.items():
            found = log_kl(data.test.belief, batch.by_features(settings, data, draw))
            assert np.isfinite(found).all(), name
            assert found.mean() < (repeat - 1 if "Cholesky of the joint" in name else -1), name


def test_mistakes_are_counted():
    x, mean = np.array([[1.0, 0], [2, 0], [-1, 5], [-3, 1]]), np.array([1.0, 0])
    assert online.mistakes(mean, x, np.array([1, 0, 1, 0])) == 2
