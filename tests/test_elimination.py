"""Exact answers by elimination against enumeration, and models in the UAI format."""

import dataclasses
import itertools
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines import discrete, elimination
from kbpjax.baselines.elimination import Factors


def _random(seed: int, pairs_only: bool = False) -> Factors:
    """A model of up to seven variables, with zeros, unordered scopes, and a constant."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    sizes = rng.integers(1, 4, count)
    scopes = [()]
    for _ in range(int(rng.integers(1, 10))):
        size = int(rng.integers(1, 3 if pairs_only else min(count, 4) + 1))
        scopes.append(tuple(rng.permutation(count)[:size].tolist()))
    tables = [np.exp(rng.normal(size=tuple(sizes[v] for v in scope))) for scope in scopes]
    for table in tables[1:]:
        table[rng.random(table.shape) < 0.1] = 0
    return Factors(sizes.tolist(), scopes, tables)


def _enumerated(factors: Factors) -> np.ndarray:
    """The product of the tables at all joint states."""
    joint = np.ones(factors.sizes)
    for scope, table in zip(factors.scopes, factors.tables, strict=True):
        order = sorted(range(len(scope)), key=lambda i: scope[i])
        shape = [factors.sizes[v] if v in scope else 1 for v in range(len(factors.sizes))]
        joint = joint * table.transpose(order).reshape(shape)
    return joint


def test_equals_enumeration() -> None:
    possible = 0
    for seed in range(300):
        factors = _random(seed)
        joint, found = _enumerated(factors), elimination.solve(factors)
        if joint.sum() == 0:
            assert found.log_partition == -math.inf
            assert all(np.isnan(one).all() for one in found.marginals)
            continue
        possible += 1
        np.testing.assert_allclose(found.log_partition, np.log(joint.sum()), atol=1e-10)
        for v, own in enumerate(found.marginals):
            others = tuple(u for u in range(joint.ndim) if u != v)
            np.testing.assert_allclose(own, joint.sum(axis=others) / joint.sum(), atol=1e-12)
        states, top = elimination.mode(factors)
        np.testing.assert_allclose(np.exp(top), joint.max(), rtol=1e-10)
        np.testing.assert_allclose(joint[tuple(states)], joint.max(), rtol=1e-10)
    assert possible > 200


def test_draws_have_the_joint_frequencies() -> None:
    for seed in (0, 1, 2, 5):
        factors = _random(seed)
        joint = _enumerated(factors)
        assert joint.sum() > 0
        draws = elimination.solve(factors).sample(20000, seed=seed)
        counts = np.zeros(joint.shape)
        np.add.at(counts, tuple(draws.T), 1)
        expected = joint / joint.sum()
        error = np.sqrt(expected * (1 - expected) / len(draws))
        assert np.all(np.abs(counts / len(draws) - expected) <= 4.5 * error + 1e-9)


def test_a_grid_is_as_narrow_as_its_side_and_a_wide_one_is_refused() -> None:
    def grid(side: int) -> Factors:
        number = np.arange(side**2).reshape(side, side)
        pairs = [*zip(number[:, 1:].ravel(), number[:, :-1].ravel()), *zip(number[1:].ravel(), number[:-1].ravel())]
        return Factors([2] * side**2, pairs, [np.array([[2.0, 1.0], [1.0, 2.0]])] * len(pairs))

    assert elimination.order(grid(8))[1] <= 9
    found = elimination.solve(grid(8))
    np.testing.assert_allclose(found.marginals, 0.5)
    with pytest.raises(ValueError, match=r"factors: .* width 2\d"):
        elimination.solve(grid(20), max_cells=2**18)


def test_factors_are_checked() -> None:
    table = np.ones((2, 2))
    for sizes, scopes, tables, text in [
        ([], [], [], "sizes"),
        ([2, 0], [], [], "sizes"),
        ([2, 2], [(0, 1)], [], "as many"),
        ([2, 2], [(0, 0)], [table], "different"),
        ([2, 2], [(0, 2)], [table], "different"),
        ([2, 2], [(0, 1)], [np.ones((2, 3))], "shape"),
        ([2, 2], [(0, 1)], [-table], ">= 0"),
        ([2, 2], [(0, 1)], [table * np.nan], ">= 0"),
    ]:
        with pytest.raises(ValueError, match=text):
            Factors(sizes, scopes, tables)
    impossible = Factors([2], [(0,)], [[0.0, 0.0]])
    with pytest.raises(ValueError, match="possible joint state"):
        elimination.mode(impossible)
    with pytest.raises(ValueError, match="possible joint state"):
        elimination.solve(impossible).sample(3)
    with pytest.raises(ValueError, match="known variables"):
        impossible.given({0: 2})


def test_evidence_is_conditioning() -> None:
    factors = _random(5)
    joint = _enumerated(factors)
    (first, *_) = np.argwhere(joint.sum(axis=tuple(range(1, joint.ndim))) > 0)[0]
    found = elimination.solve(factors.given({0: int(first)}))
    np.testing.assert_allclose(found.log_partition, np.log(joint[first].sum()), atol=1e-10)
    np.testing.assert_allclose(found.marginals[0], np.eye(factors.sizes[0])[first])


def test_files(tmp_path: Path) -> None:
    path, evidence = tmp_path / "one.uai", tmp_path / "one.evid"
    for seed in range(20):
        factors = _random(seed)
        discrete.write_uai(path, factors)
        read = discrete.read_uai(path)
        assert (read.sizes, read.scopes) == (factors.sizes, factors.scopes)
        for a, b in itertools.zip_longest(read.tables, factors.tables):
            np.testing.assert_array_equal(a, b)
    factors = Factors([2, 3], [(0, 1)], [np.arange(6.0).reshape(2, 3)])
    discrete.write_uai(path, factors)
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(ValueError, match="path: must be new, or a file in the UAI format; got .*, another file"):
        discrete.write_uai(notes, factors)
    assert notes.read_text() == "mine"
    notes.write_text("")
    discrete.write_uai(notes, factors)
    assert discrete.read_uai(notes).sizes == factors.sizes
    for text in ("1 1 2\n", "1\n1 1 2\n"):  # of 2014, of 2010
        evidence.write_text(text)
        found = elimination.solve(discrete.read_uai(path, evidence))
        np.testing.assert_allclose(found.marginals[0], [2 / 7, 5 / 7])
    for text in ("", "0"):
        evidence.write_text(text)
        assert len(discrete.read_uai(path, evidence).tables) == 1
    evidence.write_text("2 1 1")
    with pytest.raises(ValueError, match="evidence"):
        discrete.read_uai(path, evidence)
    wrong = ["", "GRAPH 1", "MARKOV", "MARKOV 1 x", "MARKOV -1", "MARKOV 1 2 1 1 0 2 1.0", "MARKOV 1 2 1 1 0 2 1.0 one"]
    for text in [*wrong, "MARKOV 1 2 1 1 0 3 1 1 1", "MARKOV 1 2 1 1 4 2 1 1"]:
        path.write_text(text)
        with pytest.raises(ValueError, match=r"path: .*; got .*\. \w.*\.$"):
            discrete.read_uai(path)
    with pytest.raises(ValueError, match="path"):
        discrete.read_uai(tmp_path / "none.uai")


def test_message_passing_on_factors_of_a_tree_is_exact() -> None:
    """Also with a table of three variables, which becomes a node."""
    rng = np.random.default_rng(0)
    sizes, scopes = [2, 3, 2, 3, 2], [(1, 0), (1, 2, 3), (4, 3), (3,), ()]
    tables = [rng.uniform(0.2, 2, [sizes[v] for v in scope]) for scope in scopes]
    tables[1][0, 0] = 0
    factors = Factors(sizes, scopes, tables)
    exact = elimination.solve(factors)
    model, graph, evidence = discrete.from_factors(factors)
    assert graph.num_nodes == 6
    solution = kbp.run_tree(model, graph, evidence)
    np.testing.assert_allclose(kbp.log_partition(model, graph, evidence, solution), exact.log_partition, rtol=1e-4)
    posterior = kbp.infer(model, graph, evidence=evidence)
    for v in range(len(sizes)):
        own = posterior.by_type[int(graph.node_type[v])]
        place = np.flatnonzero(np.asarray(graph.node_type) == graph.node_type[v]).tolist().index(v)
        np.testing.assert_allclose(own.weights[place], exact.marginals[v], atol=1e-5)
    with pytest.raises(ValueError, match="joint states"):
        discrete.from_factors(factors, max_states=3)


def _loop(seed: int) -> tuple[Factors, kbp.Posterior]:
    """A square with a diagonal and random tables, and its posterior by message passing."""
    rng = np.random.default_rng(seed)
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]
    tables = [rng.uniform(0.2, 2, (3, 3)) for _ in pairs]
    singles = [rng.uniform(0.2, 2, 3) for _ in range(4)]
    factors = Factors([3] * 4, [*pairs, *((v,) for v in range(4))], [*tables, *singles])
    model, graph, evidence = discrete.from_factors(factors)
    return factors, kbp.infer(model, graph, evidence=evidence)


def test_exact_beliefs_of_a_posterior_with_cycles() -> None:
    for seed in range(3):
        factors, posterior = _loop(seed)
        found, right = elimination.beliefs(posterior), np.stack(elimination.solve(factors).marginals)
        assert isinstance(found, kbp.Belief)
        np.testing.assert_allclose(found.weights, right, atol=1e-5)
        assert np.abs(posterior.weights - right).max() > 1e-4  # message passing is not exact here


def test_exact_beliefs_of_a_learned_chain_are_those_of_messages() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 1)) + 0.7 * rng.normal(size=(800, 4))
    graph = kbp.chain_graph(4)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.4), relation="counts")
    evidence = kbp.likelihood(
        model, graph, lambda z: jnp.exp(-((z[None] - jnp.array([[0.0], [2.0], [1.0], [-1.0]])) ** 2) / 2)
    )
    posterior = kbp.infer(model, graph, evidence=evidence)
    found = elimination.beliefs(posterior)
    assert isinstance(found, kbp.Belief)
    np.testing.assert_allclose(kbp.mean(found), kbp.mean(posterior), atol=0.06)
    hot = kbp.infer(dataclasses.replace(model, temperature=jnp.asarray(2.0)), graph, evidence=evidence)
    np.testing.assert_allclose(kbp.mean(elimination.beliefs(hot)), kbp.mean(hot), atol=0.06)
