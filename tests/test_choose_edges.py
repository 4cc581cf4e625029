"""`choose_edges`: graphs of columns of numbers."""

import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.training.edges import _split


def edges_of(graph):
    half = graph.num_edges // 2
    return set(zip(graph.senders[:half].tolist(), graph.receivers[:half].tolist(), strict=True))


def walk(rng, count, nodes):
    return np.cumsum(rng.normal(size=(count, nodes)), axis=1)


@pytest.mark.parametrize("missing", [0.2, pytest.param(0.0, marks=pytest.mark.slow)])
def test_a_chain_is_found(missing):
    """A walk is a chain, and a monotone map of each column changes nothing."""
    rng = np.random.default_rng(0)
    x = walk(rng, 500, 6)
    x[rng.random(x.shape) < missing] = np.nan
    assert edges_of(kbp.choose_edges(np.sinh(x / 2))) == {(i, i + 1) for i in range(5)}


def test_edges_that_say_something_beside_the_others_are_added():
    """A ring of six: its spanning tree lacks an edge, and pairs two steps apart say nothing beside it."""
    matrix = 2.05 * np.eye(6)
    for i in range(6):
        matrix[i, (i + 1) % 6] = matrix[(i + 1) % 6, i] = -1
    x = np.random.default_rng(1).multivariate_normal(np.zeros(6), np.linalg.inv(matrix), 2000)
    assert edges_of(kbp.choose_edges(x)) == {(i, i + 1) for i in range(5)} | {(0, 5)}
    assert kbp.choose_edges(x, most=1).num_edges // 2 == 5  # the tree at least


def test_a_start_is_kept():
    x = walk(np.random.default_rng(2), 300, 5)
    start = kbp.Graph.from_edges([(4, 0), (1, 3)], 5)
    found = edges_of(kbp.choose_edges(x, start=start))
    assert found > {(0, 4), (1, 3)} and {(0, 1), (1, 2), (2, 3), (3, 4)} <= found


def test_columns_without_values_are_joined_by_the_start_alone():
    x = walk(np.random.default_rng(3), 200, 4)
    x[:, 2] = np.nan
    found = edges_of(kbp.choose_edges(x, start=kbp.chain_graph(4)))
    assert found >= {(0, 1), (1, 2), (2, 3)} and not {(0, 2)} & found


def test_neighbors_in_time_are_found():
    """Each column follows the one before it, one row later, and the first follows itself."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(600, 4))
    for t in range(1, len(x)):
        x[t] += 1.5 * x[t - 1, [0, 0, 1, 2]] * [0.6, 1, 1, 1]
    x[rng.random(x.shape) < 0.05] = np.nan
    graph = kbp.choose_edges(x, steps=3)
    half = graph.num_edges // 2
    first, second, rows = (np.asarray(a)[:half] for a in (graph.senders, graph.receivers, graph.edge_type))
    assert graph.num_nodes == 12 and len(kbp.time_windows(x, 3)[0]) == 12
    np.testing.assert_array_equal(second // 4 - first // 4, rows)
    found = {(a % 4, b % 4, lag) for a, b, lag in zip(first.tolist(), second.tolist(), rows.tolist(), strict=True)}
    assert found >= {(0, 1, 1), (1, 2, 1), (2, 3, 1), (0, 0, 1)} and len(found) <= 8
    assert half == sum(3 - lag for *_, lag in found)  # at all times
    few = [kbp.choose_edges(x, steps=3, start=kbp.chain_graph(4), most=most).num_edges for most in (2, 3)]
    assert few[0] <= 2 * 12 and 2 * 12 < few[1] <= 3 * 12
    assert kbp.choose_edges(x[:61], steps=2).num_nodes == 8


def test_windows_that_are_held_out_share_no_row_with_others():
    held, kept = _split(500, 3, np.random.default_rng(0))
    assert len(held) and len(kept) > 200
    assert np.abs(held[:, None] - kept).min() >= 3
    for seed in range(9):  # the fewest windows that are taken
        held, kept = _split(60, 2, np.random.default_rng(seed))
        assert len(held) == 12 and len(kept) >= 46 and np.abs(held[:, None] - kept).min() >= 2
    held, kept = _split(50, 1, np.random.default_rng(0))
    assert len(held) == 10 and sorted([*held, *kept]) == list(range(50))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: kbp.choose_edges(np.zeros((40, 1))), "x"),
        (lambda: kbp.choose_edges(np.zeros((10, 3))), "x"),
        (lambda: kbp.choose_edges(np.full((40, 3), np.inf)), "x"),
        (lambda: kbp.choose_edges(np.zeros((40, 129))), "x"),
        (lambda: kbp.choose_edges(np.zeros((40, 3)), start=kbp.chain_graph(2)), "start"),
        (lambda: kbp.choose_edges(np.zeros((40, 3)), most=0), "most"),
        (lambda: kbp.choose_edges(np.zeros((40, 3)), steps=0), "steps"),
        (lambda: kbp.choose_edges(np.zeros((40, 3)), steps=12), "steps"),
        (lambda: kbp.choose_edges(np.zeros((60, 3)), steps=2), "steps"),
        (lambda: kbp.choose_edges(np.zeros((200, 30)), steps=5), "x"),
        (lambda: kbp.choose_edges(np.zeros((40, 3)), seed=-1), "seed"),
    ],
)
def test_bad_input_is_refused(call, argument):
    with pytest.raises(ValueError, match=f"^{argument}:"):
        call()


def test_constant_columns_and_few_values_give_a_graph():
    x = np.random.default_rng(0).normal(size=(40, 3))
    x[:, 1] = 2.0
    assert kbp.choose_edges(x).num_nodes == 3
