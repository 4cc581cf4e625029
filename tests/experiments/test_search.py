"""The search for options: its order, its ties, and what it records."""

import math

import pytest

from experiments.lib.search import coordinate_search, on_edge


def test_each_option_takes_its_best_value_in_turn():
    losses = {(1, 1): 5.0, (2, 1): 3.0, (3, 1): 4.0, (2, 0): 2.0, (2, 2): 6.0}
    space = {"a": (1, 2, 3), "b": (1, 0, 2)}
    best, trials = coordinate_search({"a": 1, "b": 1, "other": "x"}, space, lambda of: losses[of["a"], of["b"]])
    assert best == {"a": 2, "b": 0, "other": "x"}
    assert [(trial.option, trial.value, trial.loss) for trial in trials] == [
        ("a", 1, 5.0),
        ("a", 2, 3.0),
        ("a", 3, 4.0),
        ("b", 0, 2.0),
        ("b", 2, 6.0),
    ]
    assert trials[3].options == best


def test_ties_keep_the_earlier_value():
    best, trials = coordinate_search({"a": 1}, {"a": (1, 2)}, lambda of: 0.0)
    assert best == {"a": 1} and len(trials) == 2


def test_budget_is_spent_and_edges_are_extended():
    loss = lambda of: abs(math.log(of["ridge"] / 3e-5)) + (of["kind"] == "b")
    start, space = {"kind": "a", "ridge": 1e-2}, {"kind": ("a", "b"), "ridge": (1e-2, 1e-1)}
    best, trials = coordinate_search(start, space, loss, budget=12, extensions=2)
    assert len(trials) == 12 and len({tuple(trial.options.items()) for trial in trials}) == 12
    assert best == {"kind": "a", "ridge": 1e-4}
    assert on_edge(best, trials) == ["ridge"]  # two extensions did not reach the minimum
    best, trials = coordinate_search(start, space, loss, budget=12, extensions=4)
    assert 1e-5 <= best["ridge"] <= 1e-4 and on_edge(best, trials) == []


def test_grids_are_extended_up_to_their_limits():
    given = {"budget": 9, "extensions": 3, "limits": {"n": 10}}
    _, trials = coordinate_search({"n": 2}, {"n": (2, 4)}, lambda of: -of["n"], **given)
    assert max(trial.value for trial in trials) == 10


def test_search_ends_where_nothing_is_left_to_try():
    best, trials = coordinate_search({"a": "x"}, {"a": ("x", "y")}, lambda of: 0.0, budget=9, extensions=2)
    assert best == {"a": "x"} and len(trials) == 2 and on_edge(best, trials) == []


def test_integers_stay_integers():
    _, trials = coordinate_search({"n": 2}, {"n": (2, 4)}, lambda of: -of["n"], budget=5, extensions=2)
    assert {trial.value for trial in trials} == {2, 3, 4, 8, 16}


def test_a_budget_of_no_trials_is_refused():
    with pytest.raises(ValueError, match="budget must be at least 1; got 0"):
        coordinate_search({"a": 1}, {"a": (1, 2)}, lambda of: 0.0, budget=0)
