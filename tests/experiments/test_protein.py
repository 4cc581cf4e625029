"""Protein chains: reading them, angles as vectors and back, credible sets, and the experiment as a user runs it."""

import argparse
import json
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

import kbpjax as kbp
from experiments.protein import baselines, data, models, network, run
from tests.programs import SHORT, experiment, inside, needs

program = partial(experiment, "protein", **SHORT)


def arrays(lengths=(5, 4), seed=0):
    """Random chains in the layout of the file."""
    rng, count = np.random.default_rng(seed), sum(lengths)
    offsets = np.cumsum([0, *lengths])
    found = {
        "offsets": offsets,
        "aa": rng.integers(0, 20, count).astype(np.int8),
        "pssm": rng.integers(-13, 14, (count, 20)).astype(np.float32),
        "theta": rng.uniform(0, 180, count).astype(np.float32),
        "tau": rng.uniform(-180, 180, count).astype(np.float32),
        "ca_bond": np.full(count, 3.8, np.float32),
    }
    found["ca_bond"][offsets[1:] - 1] = np.nan
    return found


def written(folder, content):
    (folder / "protein").mkdir(exist_ok=True)
    np.savez(folder / data.NAME, **content)
    return folder


def made(lengths, seed=0):
    """Chains without a file, all known."""
    content = arrays(lengths, seed)
    linked = np.isfinite(content["ca_bond"])
    profiles = (1 / (1 + np.exp(-content["pssm"] / 5))).astype(np.float32)
    vectors = data.vectors_of(content["theta"], content["tau"]).astype(np.float32)
    return data.Chains(content["offsets"], content["aa"].astype(int), profiles, vectors, linked)


def test_chains_are_cut_where_they_break_and_what_is_missing_is_counted(tmp_path):
    content = arrays()
    content["ca_bond"][1] = 9.0  # a gap
    content["ca_bond"][6] = np.nan  # an unknown distance
    content["theta"][2] = np.nan
    content["tau"][[2, 8]] = np.nan
    content["pssm"][3, 7] = np.nan
    found = data.load(written(tmp_path, content))
    assert found.linked.tolist() == [True, False, True, True, False, True, False, True, False]
    assert np.flatnonzero(~found.scored).tolist() == [2, 8]
    assert np.flatnonzero(~found.observed).tolist() == [3]
    expected = {"chains": 2, "residues": 9, "without_angles": 2, "without_profile": 1, "breaks": 2}
    assert found.counts() == expected
    np.testing.assert_allclose(found.profiles[0], 1 / (1 + np.exp(-content["pssm"][0])), rtol=1e-5)
    assert found.chain.tolist() == [0] * 5 + [1] * 4


def test_part_keeps_chains_whole():
    every = made((5, 4, 6))
    some = every.part(np.array([2, 0]))
    assert some.offsets.tolist() == [0, 6, 11]
    np.testing.assert_array_equal(some.vectors, np.concatenate([every.vectors[9:], every.vectors[:5]]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content.pop("tau"),
        lambda content: content.update(theta=content["theta"][:-1]),
        lambda content: content.update(offsets=np.array([0, 5, 5, 9])),
        lambda content: content.update(tau=content["tau"] * 3),
        lambda content: content.update(aa=content["aa"] + 20),
    ],
    ids=["no key", "other length", "empty chain", "no angles", "no residue"],
)
def test_arrays_that_do_not_fit_are_refused(spoil, tmp_path):
    content = arrays()
    spoil(content)
    with pytest.raises(ValueError, match=r"data must be readable; got .*, which is damaged .*GraphPPIS"):
        data.load(written(tmp_path, content))


def test_a_truncated_file_is_refused(tmp_path):
    path = written(tmp_path, arrays()) / data.NAME
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="which is damaged"):
        data.load(tmp_path)


def test_without_data_one_line_says_where_to_get_them(tmp_path):
    outcome = inside("protein", "--quick", "--out", tmp_path, KBPJAX_DATA="")
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1
    assert "rcsb.org" in outcome.stderr and "Pass --data or set KBPJAX_DATA" in outcome.stderr


@pytest.mark.parametrize("options", [{"folds": 6}, {"folds": -1}, {"windows": [4]}])
def test_bad_arguments_are_refused(options):
    args = argparse.Namespace(**{"folds": 1, "windows": [7], "quick": True, **options})
    with pytest.raises(ValueError, match="--folds must be 1 .. 5 and --windows odd"):
        run.run(args)


def test_angles_are_vectors_and_back():
    theta, tau = np.array([10.0, 91.0, 123.0, np.nan]), np.array([-170.0, 50.0, 165.0, 20.0])
    vectors = data.vectors_of(theta, tau)
    np.testing.assert_allclose(np.linalg.norm(vectors[:3], axis=1), 1)
    assert np.isnan(vectors[3]).all()
    np.testing.assert_allclose(data.vectors_of(90.0, 90.0), [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(data.vectors_of(0.0, 77.0), [0, 0, 1], atol=1e-12)
    for ours, wanted in zip(data.angles_of(2.5 * vectors[:3]), (theta, tau), strict=True):
        np.testing.assert_allclose(ours, wanted[:3], atol=1e-9)


def test_errors_of_angles_go_the_short_way_round():
    found = data.circular_error(np.array([179.0, -179.0, 10.0, 0.0]), np.array([-179.0, 179.0, -10.0, 180.0]))
    np.testing.assert_allclose(found, [2, 2, 20, 180])


def test_windows_end_with_the_chain_and_leave_out_missing_profiles():
    every = made((3, 2))
    every.profiles[1, 4] = np.nan
    x = data.windows(every, 3).reshape(5, 3, 21)
    assert x[..., 20].tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0], [0, 1, 1], [1, 1, 0]]
    np.testing.assert_array_equal(x[3, 2, :20], every.profiles[4])
    assert np.isfinite(x).all() and not x[2, 2].any() and not x[1, 1].any()


def test_harmonics_are_orthogonal_of_one_size():
    grid = data.sphere_grid(20_000)
    np.testing.assert_allclose(np.linalg.norm(grid, axis=1), 1, rtol=1e-6)
    h = data.harmonics(grid.astype(float))
    np.testing.assert_allclose(h.T @ h / len(h), np.eye(8) / 3, atol=1e-3)
    np.testing.assert_allclose(h.mean(axis=0), 0, atol=1e-3)


def test_credible_sets_hold_the_likeliest_candidates():
    points = np.eye(3)
    weights = np.array([[0.6, 0.35, 0.05]] * 3 + [[0.95, 0.04, 0.01]] * 2)
    true = points[[0, 1, 2, 0, 1]]
    assert data.inside(weights, points, true).tolist() == [True, True, False, True, False]
    near = data.unit(np.array([[0.9, 0.3, 0.1]] * 5))
    assert data.inside(weights, points, near).all()


def test_credible_sets_cover_what_is_drawn_from_the_beliefs():
    rng, points = np.random.default_rng(0), data.sphere_grid(200)
    weights = rng.dirichlet(np.full(200, 0.3), 4000)
    drawn = np.array([rng.choice(200, p=row) for row in weights])
    assert abs(np.mean(data.inside(weights, points, points[drawn])) - 0.9) < 0.03


@pytest.fixture(scope="module")
def task():
    every = made((40, 40, 40, 40), seed=3)
    group = np.repeat([0, 1, 2, -1], 40)
    every.profiles[5] = np.nan
    every.vectors[[7, 130]] = np.nan
    return baselines.Task(every, data.windows(every, 3), group, 3)


def test_a_task_tells_training_from_test_residues(task):
    assert task.test.tolist() == list(range(120, 160))
    assert task.train.tolist() == [i for i in range(120) if i not in (5, 7)]
    inner = task.validation()
    assert inner.test.tolist() == list(range(40)) and set(inner.group) == {-1, 0, 1}
    np.testing.assert_array_equal(inner.chains.vectors, task.chains.vectors[:120])


def test_ridge_is_ridge_regression(task):
    x, y = task.x[task.train].astype(float), task.chains.vectors[task.train].astype(float)
    center, offset, count = x.mean(axis=0), y.mean(axis=0), x.shape[1]
    rows = np.concatenate([x - center, np.sqrt(0.01 * len(x)) * np.eye(count)])
    weights = np.linalg.lstsq(rows, np.concatenate([y - offset, np.zeros((count, 3))]))[0]
    expected = (task.x[120:] - center) @ weights + offset
    np.testing.assert_allclose(baselines.ridge(task, {"ridge": 0.01}), expected, atol=1e-8)


def test_kernel_regression_is_learned_from_other_chains(task):
    options = {"scale": 1.0, "landmarks": 1000, "ridges": (1e-2,)}
    seen, ridge = baselines.kernel_regression(task, task.x, options)
    np.testing.assert_array_equal(seen, baselines.summaries(task, {**options, "decay": 1.0}))
    rows = task.train
    y = data.harmonics(task.chains.vectors.astype(float))
    landmarks = task.x[np.random.default_rng(0).permutation(rows)]
    gamma = 1 / (2 * float(kbp.median_bandwidth(landmarks)) ** 2)
    offset = y[rows].mean(axis=0)
    for left_out, observations in ((-1, task.test), (1, np.arange(40, 80))):
        learn = rows[task.group[rows] != left_out]
        regression = KernelRidge(alpha=1e-2 * len(learn), kernel="rbf", gamma=gamma)
        expected = regression.fit(task.x[learn], y[learn] - offset).predict(task.x[observations]) + offset
        np.testing.assert_allclose(seen[observations], expected, atol=2e-3)
    assert ridge == 1e-2


def test_stacking_sees_predictions_around_and_not_the_truth_of_a_part(task):
    options = {"scale": 1.0, "decay": 0.9, "reach": 2, "landmarks": 1000, "ridges": (1e-3,)}
    seen = np.random.default_rng(0).normal(size=(160, 8)).astype(np.float32)
    before = baselines.stacked(task, seen, options)
    moved = seen.copy()
    moved[150] += 1
    changed = np.flatnonzero(np.any(baselines.stacked(task, moved, options) != before, axis=1))
    assert changed.tolist() == [148, 149, 150, 151, 152]
    other = task._replace(chains=task.chains._replace(vectors=task.chains.vectors.copy()))
    other.chains.vectors[40:80] = np.roll(other.chains.vectors[40:80], 7, axis=0)
    after = baselines.stacked(other, seen, options)
    offset = [data.harmonics(of.chains.vectors[of.train].astype(float)).mean(axis=0) for of in (task, other)]
    np.testing.assert_allclose(after[40:80] - offset[1], before[40:80] - offset[0], atol=1e-4)
    assert np.abs(after[120:] - before[120:]).max() > 1e-2


def test_windows_fade_with_the_distance():
    x = np.ones((1, 6))
    assert baselines.faded(x, 3, 0.5).tolist() == [[0.5, 0.5, 1, 1, 0.5, 0.5]]


def test_the_network_reads_a_chain_in_both_directions():
    net = network.Network(4, 6, 0.0, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (9, 4))
    change = np.asarray(jnp.abs(jax.jacobian(net)(x)).sum(axis=(1, 3)))  # [residue of the output, of the input]
    assert np.all(change > 0) and net(x).shape == (9, 8)
    shortened = np.asarray(net(jnp.concatenate([x, jnp.zeros((2, 4))])))
    assert np.abs(shortened[:9] - net(x)).max() > 0  # padding is read backward, as in training


def test_the_network_learns_from_other_chains_only(task, monkeypatch):
    monkeypatch.setattr(network, "BATCH", 8)
    signal = np.nan_to_num(data.harmonics(task.chains.vectors))
    task = task._replace(x=np.concatenate([signal, np.roll(signal, 1, axis=0)], axis=1))
    options = {"hidden": 16, "dropout": 0.0, "epochs": 500, "rate": 1e-2}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        found = network.out_of_fold(task, options)
        spoiled = task._replace(chains=task.chains._replace(vectors=task.chains.vectors.copy()))
        spoiled.chains.vectors[120:] = 0
        again = network.predict(spoiled, options)
    assert run.cosine(task, task.test, found[task.test]) > 0.8 and run.cosine(task, task.train, found[task.train]) > 0.8
    np.testing.assert_array_equal(again, found[task.test])


def test_likelihoods_of_particles_agree_at_common_points_and_at_points_of_each_node():
    rng = np.random.default_rng(0)
    seen, weights = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((5, 8), (9, 8)))
    x = jnp.asarray(data.sphere_grid(7))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        common = baselines._likelihood(seen, weights, np.float32(0.5), x)
        own = baselines._likelihood(seen, weights, np.float32(0.5), jnp.broadcast_to(2 * x, (5, 7, 3)))
    np.testing.assert_allclose(common, own, rtol=1e-4)
    h = np.concatenate([data.harmonics(np.asarray(x)), np.ones((7, 1))], axis=1)
    square = np.sum((np.asarray(seen)[:, None] - h @ np.asarray(weights)) ** 2, axis=2)
    np.testing.assert_allclose(common, np.exp(-0.25 * (square - 8)), rtol=1e-3)


def test_graphs_join_neighbors_of_unbroken_chains_only(task):
    task.chains.linked[125] = False
    graph = baselines.graph_of(task, task.test, False)
    senders = np.asarray(graph.senders)[: graph.num_edges // 2]
    assert graph.num_nodes == 40 and senders.tolist() == [i for i in range(39) if i != 5]
    cut = baselines.graph_of(task, task.test, True, cut=10)
    first = np.asarray(cut.senders)[: cut.num_edges // 2]
    assert sorted(first.tolist()) == [i for i in range(39) if i not in (5, 9, 19, 29)]
    kinds = task.chains.kinds[task.test]
    np.testing.assert_array_equal(cut.edge_type[: len(first)], 20 * kinds[first] + kinds[first + 1])


def test_pairs_of_residues_learn_from_their_own_samples_and_some_of_all(task, monkeypatch):
    monkeypatch.setattr(models, "PRIOR", 3)
    monkeypatch.setattr(models, "SAMPLES", 400)
    first = np.arange(30)
    found, kinds = models.by_residue(task, first), task.chains.kinds
    types = 20 * kinds[first] + kinds[first + 1]
    for k in range(400):
        own = np.isin(found[k], first[types == k]).mean()
        count = np.sum(types == k)
        assert set(first[types == k]) <= set(found[k]) and abs(own - (count + 3 * count / 30) / (count + 3)) < 0.02


def test_gains_are_paired_over_chains():
    cosines = {run.HEADLINE: 0.6, f"{run.HEADLINE}, no chain": 0.55, "boosting": 0.5}
    part = {run.ON_PART: 0.55, "particle BP": 0.4}
    rows, rng = [], np.random.default_rng(0)
    for fold in range(2):
        shared, counts = rng.normal(size=30), rng.integers(5, 20, 30)
        for method, value in (cosines | part).items():
            sums = (value + shared + 0.01 * rng.normal(size=30)) * counts
            texts = {"sums": " ".join(map(str, sums)), "counts": " ".join(map(str, counts))}
            rows.append({"study": "fold", "window": 7, "fold": fold, "method": method, "theta": fold, **texts})
    found = {row["method"]: row for row in run.summarize(rows)}
    assert found["boosting"]["gain"] == pytest.approx(0.1, abs=0.01)
    assert found["boosting"]["gain_se"] == pytest.approx(0.01 * np.sqrt(2 / 60), rel=0.5)
    assert found["particle BP"]["gain"] == pytest.approx(0.15, abs=0.01) and found["boosting"]["theta"] == 0.5
    assert found[run.HEADLINE]["messages"] == pytest.approx(0.05, abs=0.01) and "messages" not in found["boosting"]
    counts = run.by_chain([row for row in rows if row["method"] == "boosting"], "counts")
    assert found["boosting"]["residues"] == counts.sum() and found["boosting"]["se"] > 0.05


def test_errors_over_chains_are_those_of_a_mean_when_all_are_as_long():
    sums = np.random.default_rng(0).normal(size=12)
    mean, error = run.ratio(sums * 5, np.full(12, 5))
    assert mean == pytest.approx(sums.mean()) and error == pytest.approx(sums.std(ddof=1) / np.sqrt(12))


def test_tested_chains_are_in_one_fold_and_options_are_chosen_on_others():
    every, args = made((3,) * 40), argparse.Namespace(seed=0)
    folds = [run.groups(every, [fold], args) < 0 for fold in range(run.FOLDS)]
    development = run.groups(every, range(run.FOLDS), args)
    np.testing.assert_array_equal(np.sum(folds, axis=0), development < 0)
    assert np.mean(development < 0) == 0.5 and set(development) == {-1, 0, 1, 2}


def test_temperatures_bring_credible_sets_to_their_level(task):
    points = data.sphere_grid(300)
    true = task.chains.vectors[task.test]
    rng = np.random.default_rng(0)
    heights = np.exp(8 * data.unit(np.nan_to_num(true) + 0.35 * rng.normal(size=true.shape)) @ points.T)
    belief = kbp.Belief(jnp.asarray(points), jnp.asarray(heights / heights.sum(axis=1, keepdims=True), jnp.float32))
    known = task.chains.scored[task.test]
    chosen = run.temperature(task, kbp.temper(belief, 0.5))
    cover = [
        run.held(kbp.Belief(belief.points, kbp.temper(belief, 0.5 * value).weights[known]), true[known], 1.0, 0.9)
        for value in (1.0, chosen)
    ]
    assert abs(cover[1] - 0.9) <= abs(cover[0] - 0.9)


def test_options_are_chosen_on_a_part_of_the_training_chains_and_all_trials_told(monkeypatch):
    search = {name: {option: values[:1] for option, values in of.items()} for name, of in run.SEARCH.items()}
    search["ridge"] = {"ridge": (1e-4, 10.0)}
    for name in ("stacking", "network", run.LINEAR, run.ON_STACKING, run.ON_NETWORK):
        del search[name]  # for the time they take
    search[run.OURS] |= {"power": (0.8, 1e-3)}
    search["particle BP"] |= {"power": (1.0, 0.6), "sweeps": (2,)}
    monkeypatch.setattr(run, "SEARCH", search)
    monkeypatch.setattr(models, "RANK", 20)
    monkeypatch.setattr(models, "CANDIDATES", 50)
    every = made((100, 100, 100, 100), seed=1)
    signal = data.harmonics(every.vectors)  # what the profiles tell
    profiles = np.concatenate([signal, signal, signal[:, :4]], axis=1)
    task = baselines.Task(every._replace(profiles=profiles), np.zeros(0), np.repeat([0, 1, 2, -1], 100), 1)
    task = task._replace(x=data.windows(task.chains, 1))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        best, trials = run.choose(task, quick=False)
    assert best["ridge"]["ridge"] < 1 and best[run.OURS]["power"] > 0.01
    counts = Counter(trial["method"] for trial in trials)
    assert counts["ridge"] == counts[run.OURS] == run.TRIALS
    assert all(trial["cosine"] > 0.5 for trial in trials if trial["method"] in ("ridge", run.OURS) and trial["chosen"])
    assert best[run.OURS]["temperature"] in run.TEMPERATURES and best[run.OURS]["alone"] in run.TEMPERATURES
    assert np.isfinite([trial["cosine"] for trial in trials]).all()


@needs(data.NAME)
def test_quick_run_scores_every_method(tmp_path):
    outcome = program("--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads((tmp_path / "protein.json").read_text())["rows"]
    found = {row["method"]: row["cosine"] for row in rows if row["study"] == "summary"}
    assert {run.OURS, f"{run.OURS}, no chain", "ridge"} <= set(found)
    assert all(0 < cosine < 1 for cosine in found.values())  # a constant direction, orthogonal on average, has 0
    (ours,) = (row for row in rows if row["study"] == "fold" and row["method"] == run.OURS)
    assert 0.7 < ours["coverage"] < 0.95 and ours["residues"] > 1000
    assert (tmp_path / "protein.png").stat().st_size > 10_000
