"""Categories of papers: reading and splitting networks, baselines against plain formulas, and the experiment as run."""

import json
from functools import partial

import jax
import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Ridge, orthogonal_mp

import kbpjax as kbp
from experiments.categories import baselines, data, models, run
from tests.programs import SHORT, experiment, inside, needs

program = partial(experiment, "categories", **SHORT)


def network(folder, **changed):
    """Write six papers: one without words, one without categories, one without links."""
    counts = sp.csr_matrix(np.array([[1, 0, 2], [0, 0, 0], [1, 1, 0], [0, 3, 0], [1, 1, 1], [0, 0, 1]], np.uint16))
    labels = sp.csr_matrix(np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [0, 1]]))
    arrays = {f"X_{key}": getattr(counts, key) for key in ("data", "indices", "indptr", "shape")}
    arrays |= {f"Y_{key}": getattr(labels, key) for key in ("indices", "indptr", "shape")}
    arrays |= {"edges": np.array([[0, 1], [1, 2], [2, 1], [3, 0], [4, 4]], np.int32), **changed}
    (folder / "citations").mkdir()
    np.savez(folder / "citations" / "citeulike_t.npz", **arrays)


def star(hubs, leaves):
    """Papers of which `hubs` have `leaves` links each."""
    links = np.array([(h, hubs + h * leaves + i) for h in range(hubs) for i in range(leaves)])
    count = hubs * (leaves + 1)
    labels = np.random.default_rng(0).random((count, 4)) < 0.5
    return data.Papers("star", sp.csr_matrix(np.eye(count)), labels, links)


def test_papers_without_words_categories_or_links_are_kept_and_counted(tmp_path):
    network(tmp_path)
    read = data.load(tmp_path, "citeulike_t")
    found = data.counts(read)
    assert {key: found[key] for key in ("papers", "links")} == {"papers": 6, "links": 3}
    assert [found[f"without {what}"] for what in ("words", "categories", "links")] == [1, 1, 2]
    np.testing.assert_array_equal(read.links, [[0, 1], [0, 3], [1, 2]])
    np.testing.assert_array_equal(read.labels[1], [True, True])
    idf = 1 + np.log(7 / np.array([4, 4, 4]))
    first = np.array([1, 0, 1 + np.log(2)]) * idf
    np.testing.assert_allclose(read.texts[0].toarray()[0], first / np.linalg.norm(first))
    np.testing.assert_array_equal(read.texts[1].toarray(), 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"edges": np.array([[0, 6]], np.int32)},
        {"edges": np.zeros(3, np.int32)},
        {"X_indptr": np.array([0, 2, 2, 4, 5, 8], np.int32)},
        {"X_indices": np.full(9, 7, np.int32)},
        {"X_data": np.full(9, np.nan)},
        {"Y_shape": np.array([5, 2])},
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(changed, tmp_path):
    network(tmp_path, **changed)
    with pytest.raises(ValueError, match=r"data must be readable; got citations/citeulike_t.npz, which is damaged"):
        data.load(tmp_path, "citeulike_t")


def test_truncated_and_missing_files_name_the_source(tmp_path):
    with pytest.raises(ValueError, match="js05212/citeulike-t"):
        data.load(tmp_path, "citeulike_t")
    network(tmp_path)
    path = tmp_path / "citations" / "citeulike_t.npz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="js05212/citeulike-t"):
        data.load(tmp_path, "citeulike_t")


def test_a_third_is_for_training_and_papers_with_many_links_are_among_it():
    network = star(5, 11)
    for seed in range(3):
        split = data.split(network, np.random.default_rng(seed))
        assert len(split.train) == 20 and set(range(5)) <= set(split.train.tolist())
        assert sorted([*split.train, *split.test]) == list(range(60))
        inner = data.hold_out(network, split.train, np.random.default_rng(seed))
        assert len(inner.test) == 5 and set(range(5)) <= set(inner.train.tolist())
        assert sorted([*inner.train, *inner.test]) == split.train.tolist()


def test_recall_is_the_share_of_categories_among_the_best():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(20, 7)), rng.random((20, 7)) < 0.4
    labels[:, 0] = True
    found = baselines.recall_at(scores, labels, 9)
    for i in range(20):
        best = sorted(range(7), key=lambda j, i=i: -scores[i, j])
        for k in range(9):
            assert found[i, k] == pytest.approx(np.mean([j in best[: k + 1] for j in np.flatnonzero(labels[i])]))


def test_matching_pursuit_recovers_sparse_sets_as_scikit_learn_does():
    rng = np.random.default_rng(1)
    dictionary = rng.normal(size=(60, 90))
    sets = np.zeros((8, 90))
    for row in sets:
        row[rng.permutation(90)[:4]] = 1
    found = baselines.matching_pursuit(dictionary, sets @ dictionary.T, 4)
    np.testing.assert_array_equal(found > 0, sets > 0)
    atoms = dictionary / np.linalg.norm(dictionary, axis=0)
    noisy = rng.normal(size=(5, 60))
    expected = orthogonal_mp(atoms, noisy.T, n_nonzero_coefs=6).T
    np.testing.assert_array_equal(baselines.matching_pursuit(dictionary, noisy, 6) > 0, expected != 0)


def test_regression_is_ridge_regression_and_leaves_one_out_in_training():
    network, train = star(3, 6), np.arange(12)
    rng = np.random.default_rng(2)
    network = network._replace(texts=sp.csr_matrix(rng.random((21, 5))), labels=rng.random((21, 4)) < 0.5)
    network.labels[:, 0] = True
    found = baselines.regress(network, train, 0.7)
    x, y = network.texts.toarray(), network.labels.astype(float)
    mean = y[train].mean(0)
    model = Ridge(alpha=0.7, fit_intercept=False).fit(x[train], y[train] - mean)
    np.testing.assert_allclose(found[12:], model.predict(x[12:]) + mean, atol=1e-4)
    rest = np.delete(train, 3)
    left_out = Ridge(alpha=0.7, fit_intercept=False).fit(x[rest], y[rest] - mean)
    np.testing.assert_allclose(found[3], left_out.predict(x[[3]])[0] + mean, atol=1e-4)


def test_votes_are_means_of_the_most_similar():
    similar = np.array([[0.5, 0.1, 0.4], [0.0, -0.2, 0.0]])
    labels = np.array([[1.0, 0], [0, 1], [1, 1]])
    np.testing.assert_allclose(baselines.vote(baselines.nearest(similar, 2), labels), [[1, 4 / 9], [0, 0]])


def test_label_spreading_reaches_its_fixed_point_and_keeps_known_labels():
    network = star(2, 3)
    links, start = data.adjacency(network), np.random.default_rng(5).random((8, 4))
    known, others = np.array([0, 3]), np.array([1, 2, 4, 5, 6, 7])
    found = baselines.label_spreading(links, start, known, 4.0, 200)
    degree = np.asarray(links.sum(1)).reshape(-1) ** -0.5
    symmetric = degree[:, None] * links.toarray() * degree
    right = start[others] + 4 * symmetric[np.ix_(others, known)] @ start[known]
    expected = np.linalg.solve(5 * np.eye(6) - 4 * symmetric[np.ix_(others, others)], right)
    np.testing.assert_array_equal(found[known], start[known])
    np.testing.assert_allclose(found[others], expected, atol=1e-10)


def test_label_spreading_of_deviations_lets_known_labels_change():
    network = star(2, 3)
    links, start = data.adjacency(network), np.random.default_rng(5).random((8, 4))
    known = np.array([0, 3])
    found = baselines.label_spreading(links, start, known, 4.0, 200, clamped=False, centered=True)
    degree = np.asarray(links.sum(1)).reshape(-1) ** -0.5
    symmetric, mean = degree[:, None] * links.toarray() * degree, start[known].mean(0)
    np.testing.assert_allclose(found, np.linalg.solve(5 * np.eye(8) - 4 * symmetric, start - mean) + mean, atol=1e-10)


def test_personalized_pagerank_is_that_of_networkx():
    links = data.adjacency(star(2, 3)._replace(links=np.array([[0, 1], [0, 2], [1, 2], [2, 3], [4, 5]])))
    start = np.random.default_rng(6).random((8, 4))
    found = baselines.personalized_pagerank(links, start, 3.0, 200)
    ranks = nx.pagerank(nx.from_scipy_sparse_array(links), alpha=0.75, personalization={1: 1}, tol=1e-12)
    np.testing.assert_allclose(found[1], sum(share * start[j] for j, share in ranks.items()), atol=1e-8)


def test_unit_mode_of_a_single_factor_is_the_factor_and_of_more_maximizes_the_product():
    rng = np.random.default_rng(3)
    factors = rng.random((3, 6))
    factors /= np.linalg.norm(factors, axis=1, keepdims=True)
    mode, one, none = models.maximize(factors[[0, 1, 2, 0]], np.ones(4), np.array([0, 0, 0, 1]), 3)
    value = np.log(factors @ mode).sum()
    others = rng.random((2000, 6))
    others /= np.linalg.norm(others, axis=1, keepdims=True)
    assert value >= np.log(others @ factors.T).sum(1).max() - 1e-4
    np.testing.assert_allclose(one, factors[0], atol=1e-6)
    np.testing.assert_array_equal(none, 0)


def test_pairs_of_categories_are_those_of_linked_papers():
    labels = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0]], bool)
    rng = np.random.default_rng(4)
    first, second = models.pairs_of_categories(labels, np.array([[0, 1], [1, 2]]), 4000, rng)
    shares = np.zeros((3, 3))
    np.add.at(shares, (first, second), 1 / 4000)
    np.testing.assert_allclose(shares, np.array([[0, 1, 0], [1, 1, 0], [0, 1, 0]]) / 4, atol=0.03)


def test_without_links_the_belief_on_label_spreading_ranks_as_label_spreading_does():
    network, train, queries = star(3, 6), np.arange(12), np.arange(12, 21)
    network.labels[:, 0] = True
    predicted = np.random.default_rng(7).random((21, 4)).astype(np.float32)
    with jax.enable_x64(False):
        graph = kbp.Graph.from_edges(network.links, 21)
        problem = models.Problem(network, graph, train, queries, predicted, 0, kbp.tree_reweighting(graph))
        spreading = {"weight": 4.0, "iterations": 10}
        settings = {"ridge": 1e-2, "messages": "plain", "min_prediction": 1e-6, "power": 1.0}
        alone = run.on_spreading(problem, spreading, **settings, links=False)
        spread = run.spread(problem, **spreading)
        np.testing.assert_array_equal(np.argsort(-alone, axis=1), np.argsort(-spread, axis=1))
        assert not np.allclose(
            alone, run.on_spreading(problem, spreading, **settings), atol=1e-3
        )  # messages do something


@needs("citations")
def test_quick_run_scores_every_method(tmp_path):
    outcome = program("--quick", "--out", tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    content = json.loads((tmp_path / "categories.json").read_text())
    found = {row["method"]: row["recall"] for row in content["rows"] if (row["papers"], row["k"]) == ("all", 10)}
    assert {run.ON_SPREAD, run.BELIEF, run.COMPRESSED} <= set(found) and all(0 <= r <= 1 for r in found.values())
    assert found[run.BELIEF] > found[run.FREQUENT]  # better than a constant answer
    assert content["sets"][0]["without categories"] > 0
    assert (tmp_path / "categories.png").stat().st_size > 10_000


def test_bad_arguments_and_missing_data_give_one_line_and_status_2(tmp_path):
    outcome = inside("categories", "--out", tmp_path, "--splits", 0)
    assert outcome.returncode == 2 and "--splits must be at least 1" in outcome.stderr
    outcome = inside("categories", "--quick", "--out", tmp_path, KBPJAX_DATA="")
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1 and "citeulike-t" in outcome.stderr
