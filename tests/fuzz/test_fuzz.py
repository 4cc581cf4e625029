"""The fuzzer: every public function has a recipe, each kind of outcome is recognized, and short runs are clean."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import ep
from kbpjax.baselines import elimination
from tests.fuzz import calls, enumeration, objects, recipes, values


def test_every_public_function_has_a_recipe_or_a_reason():
    names = calls.public_names()
    covered = {name.split("/")[0] for name in recipes.RECIPES}
    assert sorted(names - covered - set(recipes.NOT_CALLED)) == []
    assert sorted((covered | set(recipes.NOT_CALLED)) - names) == []
    assert covered & set(recipes.NOT_CALLED) == set()


def outcome(function, value, kind, **options):
    one = values.Value("label", value, kind, **options)
    return calls.outcome_of(function, {"x": 1.0}, "x", one, finite=True)[0]


def refuse(x):
    raise ValueError(f"x: must be 1; got {x}. Pass 1.")


def fail(x):
    raise ValueError(f"cannot read {x}")


def test_outcomes():
    hidden = np.ma.array([1.0, 2.0], mask=[False, True])
    plain = {"plain": np.array([1.0, 2.0])}
    wrong, bad, rare = values.Kind.WRONG, values.Kind.BAD, values.Kind.RARE
    assert outcome(refuse, None, wrong) == "refused"
    assert outcome(lambda: 1, None, wrong) == "refused"  # a wrong number of arguments
    assert outcome(fail, None, wrong) == "raw"
    assert outcome(lambda x: x + 1, None, wrong) == "raw"
    assert outcome(lambda x: 1.0, None, wrong) == "silent"
    assert outcome(lambda x: jnp.asarray(x), np.nan, bad) == "silent"
    assert outcome(lambda x: jnp.nan_to_num(x), np.nan, bad) == "answer"
    assert outcome(lambda x: np.asarray(x).sum(), hidden, rare, **plain) == "silent"
    assert outcome(lambda x: x.sum(), hidden, rare, **plain) == "answer"
    assert outcome(lambda x: float(x), 1.0, rare, traced=True) == "raw"
    assert outcome(lambda x: x + 1, 1.0, rare, traced=True) == "answer"


def test_logarithms_may_be_those_of_zero():
    record = ep.Record((), None, jnp.array([-jnp.inf]), jnp.array(True), jnp.array(False))  # has `log_variance`
    assert calls.is_finite(record) and not calls.is_finite(record._replace(log_variance=jnp.inf))
    assert not calls.is_finite(record._replace(message=-np.inf)) and calls.is_finite(-np.inf, logarithms=True)


def test_the_report_groups_by_cause():
    lines = [
        {"try": ["kernels.Sum", "left", "None"], "outcome": "raw", "text": "TypeError: 'int' 3 @ base.py:1"},
        {"try": ["mean", "belief", "text"], "outcome": "raw", "text": "TypeError: 'int' 4 @ base.py:1"},
        {"try": ["mean", "belief", "None"], "outcome": "refused", "text": ""},
    ]
    assert calls.findings(lines)[0] == "2 raw @ base.py:1"
    rows = [row.split() for row in calls.table(lines).splitlines()]
    assert rows[1:] == [
        ["kbpjax", "2", "1", "0", "1", "0"],
        ["kbpjax.kernels", "1", "0", "0", "1", "0"],
        ["all", "3", "1", "0", "2", "0"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("num_cycles", [0, 2])
def test_models_equal_enumeration_and_updates_by_hand(num_cycles):
    rng = np.random.default_rng(7)
    problem = enumeration.random_problem(rng, num_cycles)
    deviations = enumeration.operator_cases(rng, problem, 6, "sum")
    deviations += enumeration.operator_cases(rng, problem, 6, "max in logs")
    deviations += enumeration.learned_cases(rng, problem, 3, "everything")
    assert max(deviations) < enumeration.TARGET


def test_the_comparison_can_fail():
    """A table that differs in one entry by 1e-6 changes the oracle's answer by more than the target."""
    rng = np.random.default_rng(0)
    problem = enumeration.random_problem(rng, 0)
    local = [np.ones(3)] * 6
    tables = [np.exp(rng.normal(size=(3, 3))) for _ in problem.pairs]
    before = enumeration.reduce_to(enumeration.enumerate_joint(problem, local, tables), problem.pairs[0][0])
    tables[0] = tables[0] + np.eye(3)[:1].T @ np.eye(3)[:1] * 1e-6
    after = enumeration.reduce_to(enumeration.enumerate_joint(problem, local, tables), problem.pairs[0][0])
    assert np.abs(after - before).max() > enumeration.TARGET


CLEAN = [
    *("Graph.from_edges", "chain_graph", "pool", "kernels.ARD", "gram/Delta"),
    *("Belief", "mean", "temper", "interval"),
]
"""Functions of the short run."""


def test_what_is_wrong_with_objects_is_found():
    class Whole:  # equal to nothing, and of no module
        __eq__ = __hash__ = None

    tied = ep.Record((), None, jnp.array([0.5, 1.0]), jnp.array(True), jnp.array(False))
    assert list(objects.differences(tied, tied)) == [] == list(objects.faults_beside_others(tied))
    assert list(objects.differences(tied, tied._replace(log_variance=jnp.ones(2)))) == ["other arrays", "== is False"]
    assert "another structure" in objects.differences(tied, tied._replace(incoming=(1.0,)))
    found = objects.faults_of("name", Whole())
    assert "pickle: " in found[0] and len(found) > 2


@pytest.mark.slow
def test_copies_of_posteriors_have_their_structure():
    """A copied structure had other sentinels, so every copy was compiled for anew."""
    answer = jax.vmap(lambda y: kbp.infer(recipes.model(), recipes.GRAPH, y, points=recipes.POINTS))(recipes.Y[:1])
    assert answer.constants is not None and objects.faults_of("infer", answer) == []


def test_records_with_arrays_are_equal_by_value():
    record = ep.Record((), None, jnp.arange(2.0), jnp.array(True), jnp.array(False))
    assert record == record._replace(log_variance=jnp.arange(2.0)) and record != record._replace(asked=jnp.array(False))
    assert record != tuple(record) and record != 1
    factors = elimination.Factors([2], [(0,)], [[1.0, 2.0]])
    assert factors == elimination.Factors([2], [(0,)], [[1.0, 2.0]])
    assert factors != elimination.Factors([2], [(0,)], [[1.0, 3.0]])
    with pytest.raises(TypeError, match="unhashable type: 'Factors'"):
        hash(factors)


@pytest.mark.slow
def test_objects_threads_and_stacked_models():
    found = [fault for name, one in objects.objects_of(CLEAN) for fault in objects.faults_of(name, one)]
    assert found + objects.faults_of_threads() + objects.faults_of_stacks() == []


@pytest.mark.slow
def test_a_short_run_is_clean(tmp_path):
    names = [name for name in recipes.RECIPES if name in CLEAN]
    lines = calls.watch(argparse.Namespace(log=tmp_path / "log", each=3, seed=0), names)
    assert calls.findings(lines) == []
    assert {line["try"][0] for line in lines} == set(CLEAN) and len(lines) > 5 * len(CLEAN)
