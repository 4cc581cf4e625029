"""The search for options: its order, its ties, and what it records."""

from experiments.lib.search import coordinate_search


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
