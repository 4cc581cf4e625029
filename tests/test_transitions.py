"""Given transitions: forward-backward with exact zeros, other node types as learned, and what is refused."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import io

A = np.array([[0.8, 0.2, 0.0], [0.0, 0.9, 0.1], [0.05, 0.0, 0.95]])
START = np.array([0.7, 0.3, 0.0])
NAMES = np.array(["dry", "moist", "wet"])
LENGTH = 8


def series(rng, count):
    x = np.zeros((count, LENGTH), int)
    x[:, 0] = rng.choice(3, size=count, p=START)
    for t in range(1, LENGTH):
        x[:, t] = (rng.random(count)[:, None] > np.cumsum(A[x[:, t - 1]], axis=1)).sum(axis=1)
    return x


@pytest.fixture(scope="module")
def learned():
    rng = np.random.default_rng(0)
    x = series(rng, 200)
    graph = kbp.chain_graph(LENGTH)
    y = x + 0.7 * rng.normal(size=x.shape)
    return graph, kbp.fit(kbp.pool(graph, NAMES[x], y), effort="low"), y[0]


def forward_backward(start, transitions, local):
    forth, back = np.zeros_like(local), np.ones_like(local)
    forth[0] = start * local[0]
    for t in range(1, len(local)):
        forth[t] = forth[t - 1] @ transitions * local[t]
    for t in reversed(range(len(local) - 1)):
        back[t] = transitions @ (back[t + 1] * local[t + 1])
    found = forth * back
    return found / found.sum(axis=1, keepdims=True)


def test_beliefs_are_those_of_forward_backward(learned):
    graph, model, y = learned
    given = kbp.with_transitions(model, A, START)
    y = np.where(np.arange(LENGTH) == 4, np.nan, y)
    local = np.asarray(kbp.observe(given, graph, y).local, float)
    posterior = kbp.infer(given, graph, y)
    expected = forward_backward(START, A, local)
    chex.assert_trees_all_close(posterior.by_type[0].weights, expected, rtol=1e-9)
    assert posterior.by_type[0].weights[0, 2] == 0  # exactly
    drawn = np.asarray(kbp.sample(posterior, jax.random.key(0), 300))
    codes = np.searchsorted(NAMES, drawn)
    assert (A[codes[:, :-1], codes[:, 1:]] > 0).all() and (codes[:, 0] != 2).all()
    shares = (codes[..., None] == np.arange(3)).mean(axis=0)
    chex.assert_trees_all_close(shares, expected, atol=0.12)
    pairs = kbp.edge_beliefs(posterior).weights
    assert (np.asarray(pairs)[:, A == 0] == 0).all()
    chex.assert_trees_all_close(pairs.sum(axis=2), expected[:-1], rtol=1e-6, atol=1e-9)
    best = np.asarray(kbp.mode(posterior, joint=True))
    score = lambda path: (
        np.log(local[0, path[0]] * START[path[0]])
        + sum(np.log(A[a, b] * local[t + 1, b]) for t, (a, b) in enumerate(itertools.pairwise(path)))
    )
    with np.errstate(divide="ignore"):
        assert tuple(NAMES.searchsorted(best)) == max(itertools.product(range(3), repeat=LENGTH), key=score)


def test_a_clamp_excludes_what_cannot_come_before_or_after(learned):
    graph, model, _ = learned
    forward = kbp.with_transitions(model, [[0.8, 0.2, 0], [0, 0.9, 0.1], [0, 0, 1]], [1, 0, 0])
    weights = kbp.infer(forward, graph, evidence=kbp.clamp(forward, graph, [3], ["moist"])).by_type[0].weights
    assert (weights[:3, 2] == 0).all() and (weights[4:, 0] == 0).all() and weights[0, 0] == 1
    chex.assert_trees_all_close(weights[7, 1], 0.9**4, rtol=1e-9)
    chex.assert_trees_all_close(weights[1, 0], (0.64 * 0.2 + 0.8 * 0.2 * 0.9) / (0.434), rtol=1e-9)


def test_starts_are_those_of_the_samples_by_default(learned):
    graph, model, _ = learned
    given = kbp.with_transitions(model, A)
    shares = kbp.infer(given, graph, np.full(LENGTH, np.nan)).by_type[0].weights
    start = np.asarray(given.starts[0].probabilities, float)
    chex.assert_trees_all_close(shares, forward_backward(start, A, np.ones((LENGTH, 3))), rtol=1e-9)
    again = kbp.with_transitions(given, A)
    chex.assert_trees_all_close(again.starts[0].probabilities, start, rtol=1e-9)
    chex.assert_trees_all_close(again.operators, given.operators, rtol=1e-9)


@pytest.mark.slow
def test_other_node_types_stay_as_learned():
    """Each state has a neighbor of another type, with states of its own: exact by enumeration."""
    rng = np.random.default_rng(1)
    x = series(rng, 3000)[:, :3]
    emission = np.array([[0.8, 0.2], [0.5, 0.5], [0.1, 0.9]])
    z = (rng.random(x.shape)[..., None] > np.cumsum(emission[x], axis=-1)).sum(axis=-1)
    kinds = [0, 0, 0, 1, 1, 1]
    edges, edge_type = [(0, 1), (1, 2), (0, 3), (1, 4), (2, 5)], [0, 0, 1, 1, 1]
    graph = kbp.Graph.from_edges(edges, 6, node_type=kinds, edge_type=edge_type)
    data = kbp.pool(graph, {0: x, 1: z})
    model = kbp.fit(data, kernel=kbp.Delta(), ridge=0.0, starts="pooled")
    given = kbp.with_transitions(model, A, START)
    counts = np.array([[np.sum((x == i) & (z == j)) for j in range(2)] for i in range(3)], float)
    conditional = counts / counts.sum(axis=1, keepdims=True)
    expected = np.zeros((6, 3))
    for states in itertools.product(range(3), range(3), range(3), range(2), range(2)):
        *path, first, last = states
        chance = START[path[0]] * A[path[0], path[1]] * A[path[1], path[2]]
        chance *= conditional[path[0], first] * conditional[path[1], 1] * conditional[path[2], last]
        for node, state in enumerate((*path, first, 1, last)):
            expected[node, state] += chance
    expected /= expected.sum(axis=1, keepdims=True)
    posterior = kbp.infer(given, graph, evidence=kbp.clamp(given, graph, [4], {1: [1]}))
    chex.assert_trees_all_close(posterior.by_type[0].weights, expected[:3], rtol=1e-6, atol=1e-12)
    chex.assert_trees_all_close(posterior.by_type[1].weights, expected[3:, :2], rtol=1e-6, atol=1e-12)


def test_save_and_load(learned, tmp_path):
    graph, model, y = learned
    given = kbp.with_transitions(model, A, START)
    io.save(tmp_path / "model.kbp", given)
    chex.assert_trees_all_equal(kbp.infer(io.load(tmp_path / "model.kbp"), graph, y), kbp.infer(given, graph, y))


def test_gradient(learned):
    """Through evidence: of the expected number of wet nodes, against finite differences."""
    graph, model, y = learned
    given = kbp.with_transitions(model, A, START)
    wet = lambda y: jnp.sum(kbp.infer(given, graph, y).by_type[0].weights[:, 2])
    step = 1e-5 * np.eye(LENGTH)[3]
    expected = (wet(jnp.asarray(y + step)) - wet(jnp.asarray(y - step))) / 2e-5
    chex.assert_trees_all_close(jax.grad(wet)(jnp.asarray(y))[3], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transitions": np.eye(2)}, r"transitions: must have shape \(3, 3\).*got \(2, 2\)"),
        ({"transitions": A.T}, "transitions: must be probabilities >= 0 with sum 1 in each row"),
        ({"transitions": A, "start": [0.5, 0.6, -0.1]}, "start: must be probabilities"),
        ({"transitions": A, "start": [np.nan, 1, 0]}, "start: must be probabilities"),
        ({"transitions": A, "edge_type": 3}, "node_type, edge_type: must leave one edge type"),
    ],
)
def test_refused(learned, given, message):
    with pytest.raises(ValueError, match=message):
        kbp.with_transitions(learned[1], **given)


def test_numbers_are_refused():
    x = np.linspace(0, 1, 200).reshape(20, 10)
    model = kbp.fit(kbp.pool(kbp.chain_graph(10), x), kernel=kbp.RBF(0.3))
    with pytest.raises(ValueError, match="model: must be a model of states"):
        kbp.with_transitions(model, np.eye(3))
