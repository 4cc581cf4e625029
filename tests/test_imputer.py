"""The imputer: beliefs of rows against `infer` and exact Gaussians, kinds of columns, frames, bad input, reports."""

import copy
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import kbpjax as kbp
from kbpjax.estimator import GraphImputer, reports
from kbpjax.estimator.columns import Angles, Labels, Numbers, are_dates, code_of, kind_of, odd_among_numbers
from kbpjax.estimator.dependence import learned_graph
from kbpjax.estimator.joint import Coordinates, Held, Joint, conditional_draws, conditionals, learn_joint, moments
from kbpjax.estimator.rows import interval_ends
from kbpjax.estimator.tables import Table, warn_of_gaps
from kbpjax.estimator.variables import kinds_of
from kbpjax.training.folds import Folds

COVARIANCE = np.array([[1, 0.8, 0.3], [0.8, 1, 0.4], [0.3, 0.4, 1]])


def gaussian_rows(count, seed=0):
    return np.random.default_rng(seed).multivariate_normal([1, 2, 3], COVARIANCE, count)


@pytest.fixture(scope="module")
def gaussian():
    """An imputer of three correlated numbers, all joined, learned from rows of which a fifth is missing."""
    x = gaussian_rows(3000)
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    return GraphImputer(effort="low").fit(x)


def mixed_frame(count=300):
    rng = np.random.default_rng(0)
    z = rng.normal(size=count)
    return pd.DataFrame(
        {
            "number": z + 0.3 * rng.normal(size=count),
            "positive": np.exp(z + 0.3 * rng.normal(size=count)),
            "many": pd.array(rng.poisson(np.exp(z + 2)), dtype="Int64"),
            "few": rng.poisson(np.exp(z / 2)).astype(float),
            "label": pd.Categorical.from_codes(np.digitize(z, [-0.5, 0.5]), ["small", "middle", "large"]),
            "flag": pd.array(z + rng.normal(size=count) > 0, dtype="boolean"),
            "angle": np.degrees(0.4 * z + 0.2 * rng.normal(size=count)) % 360,
        },
        index=np.arange(count) + 7,
    )


@pytest.fixture(scope="module")
def mixed():
    """A frame without holes, with holes, and an imputer of it on a star of columns."""
    frame = mixed_frame()
    holes = frame.mask(np.random.default_rng(1).random(frame.shape) < 0.15)
    edges = [("number", name) for name in frame.columns[1:]]
    return frame, holes, GraphImputer(kinds={"angle": "angle"}, graph=edges, effort="low").fit(holes)


def exact(row):
    """Return mean and covariance of the missing entries of a Gaussian row."""
    gone, mean = np.isnan(row), np.array([1.0, 2.0, 3.0])
    gain = COVARIANCE[np.ix_(gone, ~gone)] @ np.linalg.inv(COVARIANCE[np.ix_(~gone, ~gone)])
    return mean[gone] + gain @ (row - mean)[~gone], COVARIANCE[np.ix_(gone, gone)] - gain @ COVARIANCE[
        np.ix_(~gone, gone)
    ]


def test_answers_of_a_gaussian_table_are_nearly_its_conditionals(gaussian):
    x = gaussian_rows(400, seed=2)
    asked = np.where(np.arange(3) == (np.arange(400) % 3)[:, None], np.nan, x)
    filled, std = gaussian.transform(asked, return_std=True)
    gone = np.isnan(asked)
    expected = [exact(row) for row in asked]
    np.testing.assert_array_equal(filled[~gone], x[~gone])
    assert np.all(std[~gone] == 0)
    assert np.sqrt(np.mean((filled[gone] - np.concatenate([mean for mean, _ in expected])) ** 2)) < 0.1
    assert np.mean(std[gone] / np.sqrt([spread[0, 0] for _, spread in expected])) == pytest.approx(1, abs=0.08)
    low, high = gaussian.interval(asked, 0.9)
    assert 0.85 < np.mean((x >= low)[gone] & (x <= high)[gone]) < 0.95


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_conditionals_are_those_of_the_gaussian_by_the_missing_or_by_the_others(share):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(7, 7))
    mean, covariance = rng.normal(size=7), root @ root.T + np.eye(7)
    z = rng.normal(size=(70, 7))
    z[rng.random(z.shape) < share] = np.nan
    found, variance = (np.asarray(one) for one in conditionals(mean, covariance, z))
    for row, own, spread in zip(z, found, variance, strict=True):
        gone = np.isnan(row)
        gain = covariance[np.ix_(gone, ~gone)] @ np.linalg.inv(covariance[np.ix_(~gone, ~gone)])
        expected = mean[gone] + gain @ (row - mean)[~gone]
        np.testing.assert_allclose(own[gone], expected, rtol=1e-3, atol=1e-3)
        rest = np.diag(covariance[np.ix_(gone, gone)] - gain @ covariance[np.ix_(~gone, gone)])
        np.testing.assert_allclose(spread[gone], rest, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(own[~gone], row[~gone].astype(own.dtype))


def test_a_gaussian_with_holes_is_recovered_and_drawn():
    rng = np.random.default_rng(0)
    z = rng.multivariate_normal(np.zeros(3), COVARIANCE, 4000)
    z[rng.random(z.shape) < 0.3] = np.nan
    mean, covariance = moments(z, np.eye(3), 0.0)
    np.testing.assert_allclose(covariance, COVARIANCE, atol=0.08)
    np.testing.assert_allclose(mean, 0, atol=0.05)
    codes = [Numbers.of(np.linspace(-1, 1, 9), "number")] * 3
    joint = Joint.of(Coordinates.of(codes, [np.linspace(-4, 4, 9)] * 3, 9), np.zeros(3), COVARIANCE)
    row = np.array([np.nan, np.nan, 1.0])
    given = np.tile(row, (4000, 1)).astype(joint.mean.dtype)
    draws = np.asarray(conditional_draws(joint, jnp.asarray(given), jax.random.key(0)))
    gain = COVARIANCE[:2, 2:]
    np.testing.assert_allclose(draws[:, :2].mean(axis=0), gain[:, 0], atol=0.06)
    np.testing.assert_allclose(np.cov(draws[:, :2].T), COVARIANCE[:2, :2] - gain @ gain.T, atol=0.06)


def test_places_help_where_rows_are_few():
    rng = np.random.default_rng(0)
    places = rng.random((40, 2))
    near = np.exp(-np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=-1)) / 0.4)
    z = rng.multivariate_normal(np.zeros(40), near, 60)
    codes, levels = [Numbers.of(np.linspace(-1, 1, 9), "number")] * 40, [np.linspace(-4, 4, 9)] * 40
    error = {}
    for known, positions in ((True, places), (False, None)):
        found = learn_joint(codes, levels, 9, z, np.arange(45), Held.of(z[45:], 0), positions)
        assert found is not None
        error[known] = np.abs(np.asarray(found[1].covariance) - near).mean()
    assert error[True] < 0.95 * error[False]


def test_a_column_with_values_in_held_out_rows_alone_is_no_error():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    x[:, 2] = np.nan
    held = Folds.of_cases(kbp.pool(kbp.chain_graph(3), x).cases[0], 0).held[:3]
    x[held, 2] = rng.normal(size=3)
    assert np.isfinite(GraphImputer(effort="low").fit(x).transform(x)).all()


@pytest.mark.slow
def test_joint_draws_have_the_conditional_covariance(gaussian):
    row = np.array([[np.nan, np.nan, 4.0]])
    draws = np.stack(gaussian.sample(row, 3000))[:, 0]
    mean, spread = exact(row[0])
    np.testing.assert_allclose(draws[:, :2].mean(axis=0), mean, atol=0.15)
    _, std = gaussian.transform(row, return_std=True)
    np.testing.assert_allclose(draws[:, :2].std(axis=0), std[0, :2], rtol=0.08)
    exact_correlation = spread[0, 1] / np.sqrt(spread[0, 0] * spread[1, 1])
    assert np.corrcoef(draws[:, :2].T)[0, 1] == pytest.approx(exact_correlation, abs=0.05)
    assert len(np.unique(draws[:, 0])) > 2900  # no levels
    assert (draws[:, 2] == 4).all()


@pytest.mark.slow
def test_beliefs_of_rows_are_those_of_infer_and_do_not_depend_on_other_rows(gaussian):
    x = gaussian_rows(6, seed=3)
    x[np.arange(6), [0, 1, 2, 0, 1, 2]] = np.nan
    x[3] = np.nan
    together = gaussian.transform(x)
    alone = copy.copy(gaussian)
    alone._joint = None  # messages alone
    for i in (0, 3):
        np.testing.assert_allclose(gaussian.transform(x[[i]])[0], together[i], atol=1e-4)
        row = jnp.asarray(gaussian._read(x)[1][i])
        found = kbp.infer(gaussian.model_, gaussian.graph_, row, tol=1e-5).by_type[0].weights
        weights = next(alone._beliefs(alone._read(x)[1]))[1][:, i]
        np.testing.assert_allclose(weights[np.isnan(x[i])], np.asarray(found)[np.isnan(x[i])], atol=4e-3)
    posterior = gaussian.posterior(x[:2])
    assert np.shape(posterior.by_type[0].weights)[:2] == (2, 3)


def test_frames_keep_types_index_and_what_is_there(mixed):
    frame, holes, imputer = mixed
    filled = imputer.transform(holes)
    assert list(filled.dtypes) == list(holes.dtypes) and (filled.index == frame.index).all()
    assert not filled.isna().any().any()
    for name in frame:
        there = holes[name].notna().to_numpy()
        assert (filled[name][there] == holes[name][there]).all()
    assert imputer.kinds_ == {
        "number": "number", "positive": "positive", "many": "count", "few": "count", "label": "category",
        "flag": "boolean", "angle": "angle",
    }  # fmt: skip
    assert (filled["positive"] > 0).all() and filled["angle"].between(0, 360).all()
    right = (filled["label"] == frame["label"])[holes["label"].isna()].mean()
    assert right > 0.6
    labels, chances = imputer.probabilities(holes)["label"]
    assert list(labels) == ["small", "middle", "large"]
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)


def test_probabilities_of_a_column_without_labels_are_an_error_that_names_its_kind(mixed):
    _, holes, imputer = mixed
    for found in (imputer.probabilities(holes), copy.deepcopy(imputer.probabilities(holes))):
        assert list(found) == ["few", "label", "flag"] and found.get("number") is None and "number" not in found
        for name, got in (("number", "'number', of the kind 'number'"), ("angle", "'angle', of the"), (0, "0")):
            with pytest.raises(KeyError, match=rf"column: must be one of labels, .*'label'.*; got {got}.* interval\(X"):
                found[name]


@pytest.mark.slow
def test_polars_arrays_and_draws_of_mixed_columns(mixed):
    _, holes, imputer = mixed
    table = pl.DataFrame(
        {
            name: pl.Series(name, [None if pd.isna(one) else one for one in holes[name].tolist()])
            for name in holes.columns
        }
    ).with_columns(pl.col("many").cast(pl.Int64), pl.col("few").cast(pl.Float64))
    filled = imputer.transform(table)
    assert filled.schema == table.schema and sum(filled.null_count().row(0)) == 0
    np.testing.assert_allclose(filled["number"].to_numpy(), imputer.transform(holes)["number"].to_numpy(), rtol=1e-5)
    draws = imputer.sample(holes[:20], 4)
    assert len(draws) == 4 and all(list(one.dtypes) == list(holes.dtypes) for one in draws)
    assert any((draws[0]["number"] != one["number"]).any() for one in draws[1:])


def test_reports_of_hidden_cells(mixed):
    frame, _, imputer = mixed
    found = {one.column: one for one in imputer.report(frame, share=0.3)}
    assert set(found) == set(frame.columns)
    assert all(one.cells > 50 and 0 <= one.coverage_50 <= one.coverage_90 <= 1 for one in found.values())
    assert found["number"].relative_crps < 0.6 and found["label"].relative_crps < 0.8
    assert imputer.score(frame) > 0.15
    assert imputer.dependence_.shape == (7, 7) and imputer.dependence_[0, 1] > 0.3


def test_reports_of_counts_have_the_coverage_of_their_intervals():
    rng, levels = np.random.default_rng(0), np.linspace(-4, 4, 161)
    mean = 0.9 * rng.normal(size=2000)
    score = mean + np.sqrt(0.19) * rng.normal(size=2000)
    counts = np.floor(np.exp(score))  # half of them are 0, a third of the others 1
    beliefs = np.exp(-((levels - mean[:, None]) ** 2) / 0.38)
    beliefs /= beliefs.sum(axis=1, keepdims=True)
    code = Numbers.of(counts, "count")
    marginal, codes = np.exp(-0.5 * levels**2), code.encode(counts)
    found = reports.report("n", "count", code, levels, marginal, beliefs, codes, np.ones(2000, bool))
    for share, reported in ((0.5, found.coverage_50), (0.9, found.coverage_90)):
        low, high = (code.decode(one) for one in interval_ends(levels, beliefs, ((1 - share) / 2, (1 + share) / 2)))
        assert reported == np.mean((counts >= low) & (counts <= high)) >= share


@pytest.mark.parametrize("kind", ["number", "positive", "count"])
def test_normal_scores_and_back(kind):
    rng = np.random.default_rng(0)
    x = {"number": rng.normal(size=500), "positive": rng.lognormal(size=500), "count": rng.poisson(40, 500) * 1.0}[kind]
    code = Numbers.of(x, kind)
    u = code.encode(np.append(x, np.nan))
    assert np.isnan(u[-1]) and abs(u[:-1].mean()) < 0.05 and abs(u[:-1].std() - 1) < 0.06
    np.testing.assert_allclose(code.decode(u[:-1]), x, rtol=1e-4, atol=1e-4)
    ends = code.decode(np.array([-4.5, 4.5]))
    assert ends[0] <= x.min() and ends[1] >= x.max() and (kind == "number" or ends[0] >= 0)


def test_a_value_that_many_rows_have_keeps_its_share():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(2000) < 0.6, 0.0, rng.exponential(size=2000))
    drawn = Numbers.of(x, "number").decode(rng.normal(size=20000))
    assert np.mean(drawn == 0) == pytest.approx(np.mean(x == 0), abs=0.015) and drawn.min() == 0
    assert drawn.mean() == pytest.approx(x.mean(), abs=0.03)


def test_intervals_of_levels_are_those_of_the_gaussian_and_angles_go_round():
    points = np.linspace(-4, 4, 81)
    weights = np.exp(-0.5 * (points - 0.3) ** 2)[None]
    low, high = interval_ends(points, weights, (0.05, 0.95))
    np.testing.assert_allclose([low[0], high[0]], [0.3 - 1.6449, 0.3 + 1.6449], atol=0.01)
    turn = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    weights = np.exp(20 * np.cos(turn - 0.1))[None]
    low, high = (one[0] for one in interval_ends(turn, weights, (0.05, 0.95), circular=True))
    middle = (low + high) / 2
    assert np.cos(middle - 0.1) > 0.999 and 0.6 < high - low < 0.85
    assert Angles(24.0).decode(Angles(24.0).encode(np.array([25.0, -1.0]))) == pytest.approx([1.0, 23.0])


@pytest.mark.slow
def test_kinds_texts_and_vectors():
    dates = np.array(["2020-01-05", "NaT"], "datetime64[D]")
    columns = {
        "number": np.array([-1.5, np.nan]), "positive": np.array([0.5, 2.0]), "count": np.array([0.0, 3.0, np.nan]),
        "boolean": np.array([True, None], object), "category": np.array(["a", None, "b"], object), "date": dates,
        "text": np.array([f"text number {i}" for i in range(100)], object),
    }  # fmt: skip
    assert {kind: kind_of(x) for kind, x in columns.items()} == {kind: kind for kind in columns}
    code = code_of("t", "text", np.array(["red house", "blue house", "a tree", "a tree!"], object), 360, None)
    assert isinstance(code, Labels)
    assert code.labels[int(code.encode(np.array(["the red house"], object), "t")[0])] == "red house"
    x = np.random.default_rng(0).normal(size=(300, 2))
    code = code_of("v", "vector", x, 360, None)
    assert isinstance(code, Labels) and code.labels.shape == (64, 2)
    codes = code.encode(np.concatenate([x, [[np.nan, 1.0]]]), "v")
    assert np.isnan(codes[-1]) and np.linalg.norm(code.labels[codes[:-1].astype(int)] - x, axis=1).mean() < 0.4


def test_the_spanning_tree_is_that_of_the_data_and_independent_columns_are_far():
    rng = np.random.default_rng(0)
    x = [rng.normal(size=2000)]
    parents = [0, 0, 1, 1, 2]
    x += [x[0]] * 0
    for parent in parents:
        x.append(0.8 * x[parent] + 0.6 * rng.normal(size=2000))
    columns = np.stack([*x, rng.normal(size=2000)], axis=1)
    start = kbp.Graph.from_edges([(0, 1)], 7)
    edges, dependence = learned_graph(columns, ["number"] * 7, start)
    assert {tuple(pair) for pair in edges.tolist()} >= {(0, 1)}
    tree = kbp.Graph.from_edges(learned_graph(columns[:12], ["number"] * 7)[0], 7)
    assert tree.num_edges >= 12
    assert dependence[:6, 6].max() < 0.02 and min(dependence[p, i + 1] for i, p in enumerate(parents)) > 0.2


def holes_of(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(400, 2))
    return rng, x


def test_holes_that_depend_on_another_column_are_named():
    rng, x = holes_of(0)
    x[(x[:, 0] > 0.3) & (rng.random(400) < 0.8), 1] = np.nan
    with pytest.warns(kbp.HolesWarning, match="1 with 0"):
        found = GraphImputer(effort="low", graph=[]).fit(x).holes_
    assert [(one.column, one.other) for one in found] == [(1, 0)] and found[0].area > 0.7


@pytest.mark.slow
def test_holes_at_random_and_constant_columns():
    rng, x = holes_of(1)
    x = np.concatenate([x, np.full((400, 1), 3.0)], axis=1)
    x[rng.random(x.shape) < 0.3] = np.nan
    imputer = GraphImputer(effort="low", graph=[]).fit(x)
    assert imputer.holes_ == []
    assert (imputer.transform(x)[:, 2] == 3).all()
    masked = np.ma.masked_invalid(x)
    np.testing.assert_allclose(imputer.transform(masked), imputer.transform(x))
    frame = clone(imputer).set_output(transform="pandas").fit(x).transform(x)
    assert list(frame.columns) == ["x0", "x1", "x2"] and not frame.isna().any().any()


def test_a_word_among_numbers_is_named():
    bmi = pd.Series(np.arange(50.0), dtype=object).where(np.arange(50) != 7, "unknown")
    frame = pd.DataFrame({"bmi": bmi, "age": np.arange(50.0), "grade": ["1", "2"] * 25})
    text = (
        r"column 'bmi' is of the kind 'category', .* others are 'unknown'. .*pd.to_numeric.*kinds=\{'bmi': 'category'\}"
    )
    with pytest.warns(kbp.MissingWarning, match=text) as found:
        kinds = GraphImputer(effort="low", graph=[]).fit(frame).kinds_
    assert kinds["bmi"] == "category" and len(found) == 1
    digits = [str(i) for i in range(70)]
    for column, odd in ((digits, []), (["a", "1"] * 9, None), ([True] * 9, None), ([None], None), ([b"1"] * 9, [])):
        assert odd_among_numbers(np.array(column, object)) == odd
    for table in (pl.DataFrame({"zip": digits}), pd.DataFrame({"zip": digits})):
        with pytest.warns(kbp.MissingWarning, match="'zip' is of the kind 'text', .* as texts"):
            kinds_of(Table.of(table), {})
        assert kinds_of(Table.of(table), {"zip": "text"})[0] == {"zip": "text"}
    marked = ["n/a" if i % 7 == 0 else str(i) for i in range(90)]
    with pytest.warns(kbp.MissingWarning, match="'price' is of the kind 'text', .* others are 'n/a'"):
        kinds_of(Table.of(pd.DataFrame({"price": marked})), {})


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%d.%m.%Y", "%m/%d/%y", "%Y-%m-%dT%H:%M"])
def test_texts_that_are_dates_are_named(form):
    texts = pd.date_range("2024-02-11", periods=90).strftime(form).where(np.arange(90) % 9 > 0, None)
    for table, fix in (
        (pd.DataFrame({"day": texts}), r"pd.to_datetime\(column\)"),
        (pl.DataFrame({"day": [one if isinstance(one, str) else None for one in texts]}), r"str.to_datetime\(\)"),
    ):
        with pytest.warns(kbp.MissingWarning, match=f"'day' is of the kind 'text', but .* dates as texts. .*{fix}"):
            kinds_of(Table.of(table), {})
    assert not any(are_dates(np.array([one, one], object)) for one in ("12-05", "1.5", "555-12-3456", "a 2024-01-01"))


@pytest.mark.slow
def test_columns_without_values_stay_missing_and_dates_of_the_kind_number_are_filled():
    rng = np.random.default_rng(0)
    days = rng.uniform(0, 1000, 100)
    when = pd.Timestamp("2020-01-01", tz="Europe/Paris") + pd.to_timedelta(days.round(), unit="D")
    frame = pd.DataFrame({"when": when, "none": np.nan, "x": days / 100 + 0.1 * rng.normal(size=100)})
    holes = frame.assign(when=frame["when"].where(np.arange(100) % 7 > 0))
    imputer = GraphImputer(kinds={"when": "number"}, effort="low", positions=[[0.0], [7.0], [1.0]])
    with pytest.warns(kbp.MissingWarning, match=r"'none' \(1 columns\) have no values"):
        imputer.fit(holes)
    assert imputer.empty_ == ["none"] and list(imputer.kinds_) == ["when", "x"]
    done, spread = imputer.transform(holes, return_std=True)
    assert done.dtypes.equals(frame.dtypes) and done["none"].isna().all() and (spread["none"] == 0).all()
    assert (done["when"] - frame["when"]).abs().max() < pd.Timedelta(days=100)
    assert not imputer.sample(holes, 1)[0]["when"].isna().any()
    low, high = (one["when"] for one in imputer.interval(holes, 0.9))
    gone = holes["when"].isna()
    assert low.dtype == high.dtype == frame["when"].dtype and (low[gone] < done["when"][gone]).all()
    assert ((low <= frame["when"]) & (frame["when"] <= high))[gone].mean() > 0.7
    assert (low[~gone] == holes["when"][~gone]).all() and (high[~gone] == holes["when"][~gone]).all()
    dates = [None if day is pd.NaT else day.date() for day in holes["when"]]
    polars = pl.DataFrame({"when": dates, "x": holes["x"].tolist()})
    imputer = GraphImputer(kinds={"when": "number"}, effort="low").fit(polars)
    filled, (low, high) = imputer.transform(polars), imputer.interval(polars)
    assert filled.schema == polars.schema and not filled["when"].is_null().any()
    assert low.schema == high.schema == polars.schema
    assert (low["when"] <= filled["when"]).all() and (filled["when"] <= high["when"]).all()


A = np.arange(20.0).reshape(10, 2)


def small_frame_imputer():
    """Return an imputer of the columns a and b."""
    return GraphImputer(effort="low", graph=[]).fit(pd.DataFrame(A, columns=["a", "b"]))


BAD = {
    "no values": (lambda: GraphImputer().fit(np.full((5, 2), np.nan)), "^X: must have values"),
    "no rows": (lambda: GraphImputer().fit(A[:0]), "^X: must have 1 row"),
    "a column less": (
        lambda: small_frame_imputer().transform(pd.DataFrame({"b": A[:, 1]})),
        r"^X has 1 features, but .* 2 features as input, without \['a'\]\. Pass the columns of fit",
    ),
    "no columns": (lambda: GraphImputer().fit(A[:, :0]), "^X: must have 1 row and 1 column"),
    "one axis": (lambda: GraphImputer().fit(A[0]), "^X: must be a table"),
    "infinity": (lambda: GraphImputer().fit(np.where(A == 3, np.inf, A)), "^X: column '1' must be finite"),
    "text": (
        lambda: GraphImputer(kinds={0: "number"}).fit(np.array([["a", 1], [2, 3]], object)),
        "^X: column '?0'? must have numbers; got 'a'",
    ),
    "twice": (lambda: GraphImputer().fit(pd.DataFrame(A, columns=["a", "a"])), "^X: must have column names"),
    "kind": (lambda: GraphImputer(kinds={0: "numbr"}).fit(A), r"^kinds\[0\]: must be one of"),
    "kind of nothing": (lambda: GraphImputer(kinds={5: "number"}).fit(A), "^kinds: must be of columns"),
    "period": (lambda: GraphImputer(kinds={0: ("angle", -1)}).fit(A), r"^kinds\[0\]: must be"),
    "effort": (lambda: GraphImputer(effort="most").fit(A), "^effort: must be"),
    "lags": (lambda: GraphImputer(lags=-1).fit(A), "^lags: must be"),
    "graph of others": (lambda: GraphImputer(graph=[(0, 7)]).fit(A), "^graph: must join columns"),
    "graph of three": (lambda: GraphImputer(graph=kbp.chain_graph(3)).fit(A), "^graph: must have 2 nodes"),
    "both": (lambda: GraphImputer(graph=[], positions=A[:2]).fit(A), "^graph, positions: must not both"),
    "positions": (lambda: GraphImputer(positions=A[:3]).fit(A), "^positions: must be of 2 columns"),
    "negative counts": (lambda: GraphImputer(kinds={0: "positive"}).fit(A - 5), "^X: column 0 must have values >= 0"),
    "sparse": (lambda: Table.of(type("S", (), {"toarray": lambda self: A})()), "^X: must be dense"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_what_is_wrong(case):
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text):
        call()


def test_bad_input_to_a_fitted_imputer(mixed, gaussian):
    _, holes, imputer = mixed
    new = holes.copy()
    new["label"] = new["label"].astype(object)
    new.iloc[0, 4] = "huge"
    calls = {
        "^X: column 'label' must have categories of fit": lambda: imputer.transform(new),
        "^X has 2 features": lambda: gaussian.transform(np.zeros((4, 2))),
        "^X: must have the columns": lambda: imputer.transform(holes[list(holes.columns[::-1])]),
        "^coverage: must": lambda: gaussian.interval(np.zeros((4, 3)), 1.0),
        "^share: must": lambda: gaussian.report(np.zeros((4, 3)), 0),
        "^n: must": lambda: gaussian.sample(np.zeros((4, 3)), 0),
    }
    for text, call in calls.items():
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.slow
def test_rows_around_fill_what_a_row_alone_cannot():
    rng = np.random.default_rng(0)
    x = np.stack([np.convolve(rng.normal(size=1010), np.ones(10), "valid") / 3 for _ in range(2)], axis=1)
    holes = np.where(rng.random(x.shape) < 0.15, np.nan, x)
    gone = np.isnan(holes)
    error = {
        lags: np.std((GraphImputer(effort="low", lags=lags).fit(holes).transform(holes) - x)[gone]) for lags in (0, 1)
    }
    assert error[1] < 0.6 * error[0]


PERIODS = {
    "h": "1 hours",
    "6h": "6 hours",
    "D": "1 days",
    "B": "1 days",
    "MS": "31 days",
    "QE": "92 days",
    "YE": "365 days",
}


@pytest.mark.parametrize("zone", [None, "Europe/Paris"])
@pytest.mark.parametrize("period", PERIODS)
def test_regular_dates_of_all_periods_have_no_gaps(period, zone):
    """Also across changes of the clock and weekends; an index that was read from a file has no `freq`."""
    count = 3000 if period == "h" else 200
    regular = pd.DatetimeIndex(list(pd.date_range("2020-01-06", periods=count, freq=period, tz=zone)))
    warn_of_gaps(pd.Series(0.0, regular))
    gap = pd.Series(0.0, regular.delete(70))
    with pytest.warns(kbp.MissingWarning, match=rf"^X: 1 of .* the usual {PERIODS[period]}"):
        warn_of_gaps(gap)
    with pytest.warns(kbp.MissingWarning, match=r"^X: (\d+) of \1 "):
        warn_of_gaps(pd.Series(0.0, regular[::-1]))


def test_dates_that_are_left_out_are_counted_where_rows_are_successive():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 1)) + 0.5 * rng.normal(size=(40, 2)), columns=["a", "b"])
    frame.index = pd.date_range("2020-01-01", periods=40)
    gaps = frame.drop(frame.index[[7, 8, 30]])
    text = r"^X: 2 of 36 steps between its dates are not the usual 1 days, .* X.asfreq"
    with pytest.warns(kbp.MissingWarning, match=text):
        imputer = GraphImputer(effort="low", lags=1, graph=[]).fit(gaps)
    with pytest.warns(kbp.MissingWarning, match=text):
        imputer.transform(gaps)
    filled = imputer.transform(gaps.asfreq("D"))  # no warning
    assert len(filled) == 40 and not filled.isna().any().any()
    GraphImputer(effort="low", graph=[]).fit(gaps)


@pytest.mark.slow
def test_pooled_regressions_on_draws_are_honest():
    rng = np.random.default_rng(0)
    x = rng.normal(size=1500)
    table = np.stack([x, 1 + 2 * x + rng.normal(size=1500)], axis=1)
    holes = table.copy()
    holes[rng.random(1500) < 1 / (1 + np.exp(-table[:, 1])), 0] = np.nan  # missing given y

    def slope(rows):
        x, y = rows.T - rows.T.mean(axis=1, keepdims=True)
        found = x @ y / (x @ x)
        return found, np.var(y - found * x, ddof=2) / (x @ x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kbp.HolesWarning)
        imputer = GraphImputer(effort="low").fit(holes)
    found, within = np.transpose([slope(one) for one in imputer.sample(holes, 10)])
    error = np.sqrt(within.mean() + 1.1 * found.var(ddof=1))
    complete, exact_variance = slope(table)
    assert abs(found.mean() - complete) < 2.5 * error and error > np.sqrt(exact_variance)
    filled, variance = slope(imputer.transform(holes))
    assert abs(filled - complete) > 2.5 * np.sqrt(variance)  # means overstate the slope


@pytest.mark.slow
def test_training_is_better_where_a_relation_is_not_gaussian():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1600, 1))
    rows = np.concatenate([x, x**2 + 0.3 * rng.normal(size=x.shape), x + 0.5 * rng.normal(size=x.shape)], axis=1)
    scores = {effort: GraphImputer(effort=effort).fit(rows[:1200]).score(rows[1200:]) for effort in ("low", "auto")}
    assert scores["auto"] > scores["low"] + 0.02


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([GraphImputer(effort="low")])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)
