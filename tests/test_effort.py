"""How much `fit` compares, and the record of what it compared."""

import dataclasses
import json
import zipfile
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import io
from kbpjax.tuning import automatic
from kbpjax.tuning.comparison import SHORT, Comparison, evaluate
from kbpjax.tuning.search import EFFORTS, Search
from kbpjax.tuning.tried import Log

GRAPH = kbp.chain_graph(3)
Z = np.cumsum(np.random.default_rng(0).normal(size=(60, 3)), axis=1)
X = Z + np.array([0.0, 50.0, 0.0])  # nodes that differ strongly
DATA = kbp.pool(GRAPH, X, X + 0.3)


def fitted(**options):
    """Return a model and the number of compiled scores."""
    evaluate.program().clear_cache()
    model = kbp.fit(DATA, ridge=1e-3, obs_ridge=1e-3, **options)
    return model, evaluate.program()._cache_size()


@pytest.fixture(scope="module")
def auto():
    return fitted()


@pytest.fixture(scope="module")
def low():
    return fitted(effort="low")


def test_a_low_effort_is_one_search_without_comparisons(low, auto):
    (model, programs), (other, more) = low, auto
    assert programs == 1 and more == 3  # with counts, with own relations
    assert [one.choice for one in model.selection] == ["numbers", "temperature", "temperature"]
    assert model.selection.evaluated < 0.7 * other.selection.evaluated
    chosen = model.hyperparameters
    assert (chosen.relation, chosen.own_strength, chosen.front_ends) == ("ridge", None, ())
    assert chosen.own_margins == (0,)  # where nodes differ strongly, without a comparison


def test_the_selection_is_what_was_taken(auto):
    model, _ = auto
    chosen, selection = model.hyperparameters, model.selection
    taken = {
        "margins": "node" if chosen.own_margins else "type",
        "relation": chosen.relation,
        "numbers": "searched",
        "temperature": "one" if chosen.temperature == 1 else "other",
    }
    assert selection.taken == taken and taken["margins"] == "node"
    scores = {(one.choice, one.alternative): one.score for one in selection}
    assert len(scores) == len(selection) == 7 and all(0 < score < 50 for score in scores.values())
    assert scores["margins", "node"] < scores["margins", "type"]
    assert scores["numbers", "searched"] <= scores["relation", chosen.relation]
    assert selection.evaluated == sum(one.evaluated for one in selection) > 20 and selection.seconds > 0
    assert selection.unit == "CRPS in standard deviations of nodes"


def test_it_is_printed_in_a_line_for_each_choice(auto):
    model, _ = auto
    lines = repr(model).splitlines()
    first = lines.index("  tried:") + 1
    assert lines[first].startswith("    margins: type ") and lines[first].endswith(" (taken)")
    assert [line.split(":")[0].strip() for line in lines[first + 1 : first + 4]] == list(model.selection.taken)[1:]
    assert f"{model.selection.evaluated} choices in " in lines[first + 4]
    assert [line.strip() for line in repr(model.selection).splitlines()[1:-1]] == model.selection.lines
    traced = []
    jax.jit(lambda selection: traced.append(repr(selection)))(model.selection)
    assert "numbers=f64[7,4]" in traced[0]


@pytest.mark.slow
def test_words_win_over_the_effort():
    with pytest.warns(kbp.MarginWarning):  # margins of the type, though nodes differ
        model, programs = fitted(effort="low", relation="counts", margins="type")
    assert (model.hyperparameters.relation, model.hyperparameters.own_margins, programs) == ("counts", (), 1)
    assert model.selection.taken.keys() == {"numbers", "temperature"}


@pytest.mark.slow
def test_own_relations_that_are_asked_for_are_taken_at_low_effort():
    model, _ = fitted(effort="low", sharing="edge")
    assert len(model.own_edges) == 2 and model.selection.taken["sharing"] == "edge"


@pytest.mark.slow  # three searches
def test_a_high_effort_compares_after_searches_and_takes_any_gain():
    model, _ = fitted(effort="high")
    scores = {(one.choice, one.alternative): one for one in model.selection}
    taken = model.selection.taken
    for choice in ("margins", "relation", "sharing"):
        assert scores[choice, taken[choice]].score == min(s.score for (c, _), s in scores.items() if c == choice)
    assert scores["numbers", "searched"].evaluated == 0  # of the search before
    data = kbp.pool(GRAPH, X[:40], X[:40] + 0.3)
    of_ridges = kbp.fit(data, ridge=1e-3, obs_ridge=1e-3, effort="high", relation="ridge").selection
    assert of_ridges.taken["rank"] == "large"  # relations with little noise


@pytest.mark.parametrize("cases, gain", [(1, 5e-3), (4, 1e-3)])
def test_finer_gains_than_those_of_blocks_need_several_cases(cases, gain, monkeypatch):
    found = []

    def stop(problem, log):
        found.append(problem.search.gain)
        raise KeyboardInterrupt

    monkeypatch.setattr(automatic, "search_numbers", stop)
    x = np.random.default_rng(0).normal(size=(cases, 120 // cases))
    data = kbp.pool(kbp.chain_graph(120 // cases), x, x + 0.3)
    with pytest.raises(KeyboardInterrupt):
        kbp.choose_hyperparameters(data, effort="high", margins="type", relation="ridge", starts="pooled")
    assert found == [gain]


def test_unknown_efforts_are_refused_and_given_kernels_need_none():
    for data in (DATA, kbp.TrainingData(edges={0: (X[:, 0], X[:, 1])}, nodes={0: X[:, 0]})):
        for function in (kbp.fit, kbp.choose_hyperparameters):
            with pytest.raises(ValueError, match=r"^effort: must be one of \('low', 'auto', 'high'\); got 'most'"):
                function(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(1.0), effort="most")
    data = kbp.pool(GRAPH, Z, Z)
    models = [kbp.fit(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(1.0), effort=effort) for effort in EFFORTS]
    assert all(eqx.tree_equal(model, models[0]) for model in models) and models[0].selection is None


@pytest.mark.slow
def test_of_few_values_nothing_is_tried():
    with pytest.warns(kbp.RelationWarning, match="rest on 10 pairs"):
        model = kbp.fit(kbp.pool(GRAPH, Z[:5], Z[:5]), effort="low")
    assert len(model.selection) == 0 and "tried" not in repr(model) and model.selection.taken == {}


def test_seconds_and_scores_are_no_part_of_compiled_programs(low):
    model, _ = low
    traces = []

    @jax.jit
    def same(model):
        traces.append(1)
        return model

    slower = dataclasses.replace(model, selection=eqx.tree_at(lambda s: s.numbers, model.selection, jnp.ones((3, 4))))
    assert eqx.tree_equal(same(model), model) and eqx.tree_equal(same(slower), slower) and len(traces) == 1
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), model.selection, slower.selection)
    halves = jax.vmap(lambda selection: selection)(both)
    assert repr(both).startswith("Selection(") and halves.numbers.shape == (2, 3, 4)
    assert all(one.taken and one.evaluated == 1 for one in slower.selection)


@pytest.mark.slow
def test_files_keep_it_and_those_without_it_load(low, tmp_path):
    model, _ = low
    kbp.save(tmp_path / "new.kbp", model)
    assert eqx.tree_equal(kbp.load(tmp_path / "new.kbp"), model)
    assert list(kbp.load(tmp_path / "new.kbp").selection) == list(model.selection)
    with zipfile.ZipFile(tmp_path / "new.kbp") as new, zipfile.ZipFile(tmp_path / "old.kbp", "w") as old:
        header = json.loads(new.read(io.HEADER))
        del header["root"]["fields"]["selection"]
        for name in new.namelist():
            old.writestr(name, json.dumps(header) if name == io.HEADER else new.read(name))
    again = kbp.load(tmp_path / "old.kbp")
    assert again.selection is None and eqx.tree_equal(again, dataclasses.replace(model, selection=None))


def test_time_between_two_alternatives_counts_for_the_second(monkeypatch):
    times = iter([0.0, 2.0, 5.0])
    monkeypatch.setattr("kbpjax.tuning.tried.time.perf_counter", lambda: next(times))
    log = Log()
    log.evaluated = 4
    log.add("relation", "ridge", 0.5)
    log.add("relation", "counts", 0.25)
    log.take("relation", "counts")
    found = log.selection("CRPS")
    assert [tuple(one[2:]) for one in found] == [(0.5, 4, 2.0, False), (0.25, 0, 3.0, True)]
    assert found.taken == {"relation": "counts"} and (found.seconds, found.evaluated) == (5.0, 4)


@pytest.mark.slow  # a search
@pytest.mark.parametrize("effort", ["auto", "high"])
def test_pictures_are_not_trained_with_options_that_counts_do_not_take(effort):
    """A ridge above 1 is no share of independence, so potentials cannot start from smoothed counts."""
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(1, 144)), axis=1)
    data = kbp.pool(kbp.grid_graph(12, 12), x, x + rng.normal(size=x.shape))
    model = kbp.fit(data, ridge=2.0, effort=effort)
    assert model.hyperparameters.relation == "ridge"
    assert "training" not in model.selection.taken


@pytest.mark.parametrize(
    "short, graph, pairs, dim, options",
    [
        (True, kbp.chain_graph(300), 300, (), {}),
        (False, kbp.chain_graph(300), SHORT, (), {}),
        (False, kbp.chain_graph(300), 300, (2,), {}),
        (False, kbp.grid_graph(30, 30), 300, (), {}),
        (False, kbp.chain_graph(300), SHORT // 5, (), {"searched": True}),
        (False, kbp.chain_graph(300), SHORT // 5, (), {"compares": False}),
    ],
    ids=["few", "many pairs", "vectors", "iterations", "searched", "one search"],
)
def test_what_is_compiled_as_quickly_as_can_be(short, graph, pairs, dim, options):
    x = np.zeros((pairs, *dim))
    data = SimpleNamespace(nodes={0: x}, observations={}, edges={0: (x, x)})
    of = SimpleNamespace(data=data, held=SimpleNamespace(graph=graph), search=Search(**options))
    assert Comparison.is_short.fget(of) == short
