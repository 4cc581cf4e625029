"""Folds of training cases: relations of a fold are those of the other folds, and memory of pairs is not rewarded."""

import dataclasses
import itertools

import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning.learn import learn_model
from kbpjax.training.compare import held_out_scores
from kbpjax.training.folds import Folds, closed_forms, data_without
from kbpjax.training.potentials import ClosedForm
from kbpjax.training.train import train_apart
from kbpjax.tuning.hyperparameters import refit_of

KERNELS = {"kernel": kbp.RBF(0.05), "obs_kernel": kbp.RBF(0.05), "ridge": 1e-2, "relation": "counts"}
KERNELS |= {"rule": kbp.ConstantTime()}
GRAPH = kbp.Graph.from_edges(list(itertools.combinations(range(4), 2)), 4)


def rows(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 1)) + 0.5 * rng.normal(size=(count, 4))
    return np.where(rng.random(x.shape) < 0.2, np.nan, x)


@pytest.fixture(scope="module")
def narrow():
    """Rows, and a model of counts with a narrow kernel, which remembers them."""
    x = rows(150, 0)
    data = kbp.pool(GRAPH, x, x)
    chosen = kbp.Hyperparameters(**KERNELS)
    return x, data, dataclasses.replace(chosen.fit(data), hyperparameters=chosen)


def test_folds_are_of_whole_cases_or_of_nodes_of_one_picture():
    (cases,) = kbp.pool(GRAPH, rows(23, 0)).cases
    folds = Folds.of_cases(cases, 0)
    assert folds.whole and np.all(folds.of == folds.of[:, :1])
    assert sorted(np.bincount(folds.of[:, 0])) == [4, 4, 5, 5, 5]
    assert not set(folds.held) & set(folds.kept) and len(folds.held) + len(folds.kept) == 23
    (picture,) = kbp.pool(kbp.grid_graph(40, 40), np.zeros((1, 1600))).cases
    folds = Folds.of_cases(picture, 0)
    assert not folds.whole and list(folds.held) == list(folds.kept) == [0] and list(folds.trained) == [1]
    assert set(np.unique(folds.of)) == {0, 1} and 0.75 < np.mean(folds.of) < 0.85


def test_what_is_apart_is_in_no_pair(narrow):
    x, data, _ = narrow
    apart = np.random.default_rng(1).random(x.shape) < 0.3
    rest, expected = data_without(data, apart), kbp.pool(GRAPH, np.where(apart, np.nan, x))
    np.testing.assert_array_equal(rest.edges[0], expected.edges[0])
    np.testing.assert_array_equal(rest.nodes[0], expected.nodes[0])
    assert len(rest.observations[0][0]) == np.sum(~np.isnan(x) & ~apart)


def test_data_that_would_lose_a_type_are_not_split():
    x = rows(20, 0)
    x[:, 3] = np.where(np.arange(20) == 4, 1.0, np.nan)  # a type with one value
    data = kbp.pool(kbp.chain_graph(4, node_type=[0, 0, 0, 1]), {0: x[:, :3], 1: x[:, 3:]})
    assert data_without(data, np.broadcast_to(np.arange(20)[:, None] == 4, x.shape)) is None
    rest = data_without(data, np.broadcast_to(np.arange(20)[:, None] == 5, x.shape))
    assert rest is not None and set(rest.nodes) == {0, 1}


@pytest.mark.slow
def test_ratios_of_a_fold_are_learned_from_the_others(narrow):
    x, data, model = narrow
    (cases,) = data.cases
    folds, closed = Folds.of_cases(cases, 0), ClosedForm.of(model, GRAPH, own=False)
    found = closed_forms(closed, False, data, folds, refit_of(model))
    others = kbp.pool(GRAPH, x[folds.of[:, 0] != 2], x[folds.of[:, 0] != 2])
    expected = ClosedForm.of(learn_model(others, **KERNELS, floor=1e-3, levels=dict(model.points)), GRAPH, own=False)
    ratios = [np.asarray(one.log_ratios) for one in (found[2], expected, closed)]
    np.testing.assert_allclose(ratios[0], ratios[1], rtol=1e-4, atol=1e-4)
    assert np.abs(ratios[0] - ratios[2]).max() > 0.5  # the pairs that it has not seen
    assert all(one is closed for one in closed_forms(closed, False, data, folds, None))


@pytest.mark.slow
def test_memory_of_pairs_is_not_rewarded(narrow):
    """Scores on what is held out are those of new rows; with relations that have seen it, they are far better."""
    _, data, model = narrow
    options = {"way": "scaled", "start": "closed form", "sharing": "type", "steps": 60, "rate": 0.05}
    new = kbp.pool(GRAPH, *[rows(600, 5)] * 2)
    trained, apart = train_apart(model, data, **options, progress=False)
    remembers, _ = train_apart(dataclasses.replace(model, hyperparameters=None), data, **options, progress=False)
    seen, unseen = held_out_scores([apart, remembers], data), held_out_scores([trained, remembers], new)
    assert unseen[0] < unseen[1] and abs(seen[0] / unseen[0] - 1) < 0.15 and seen[1] < 0.8 * unseen[1]


@pytest.mark.slow
def test_scores_do_not_depend_on_the_units_of_a_node_type():
    x = rows(60, 1)
    graph = kbp.Graph.from_edges([(0, 1), (0, 2), (1, 3), (2, 3)], 4, node_type=[0, 0, 1, 1], edge_type=[0, 1, 1, 2])
    found = []
    for unit in (1.0, 1000.0):
        given = {0: x[:, :2], 1: unit * x[:, 2:]}
        kernels = {0: kbp.RBF(0.5), 1: kbp.RBF(0.5 * unit)}
        data = kbp.pool(graph, given, given)
        model = kbp.fit(data, kernel=kernels, obs_kernel=kernels, ridge=1e-2, relation="counts")
        found.append(held_out_scores([model], data)[0])
    assert 0.1 < found[0] < 1 and abs(found[1] / found[0] - 1) < 1e-3
