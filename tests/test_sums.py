"""Sums over samples against NumPy, with edge types of unequal size in one program."""

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from kbpjax.features import features
from kbpjax.learning import sums
from kbpjax.learning.rules import build_bases

SIZES = {0: 40, 1: 60, 2: 60, 3: 9}  # the first and third are of one length in bits, and of the same node types
ENDS = {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 0)}
RULE = kbp.ConstantTime(eps=0.1, max_rank=5, tensor_rank=7)


def draw(seed=0):
    rng = np.random.default_rng(seed)
    edges = {k: (rng.normal(size=n), rng.normal(size=(n, 2)[: 1 + ENDS[k][1]])) for k, n in SIZES.items()}
    nodes = {0: rng.normal(size=80), 1: rng.normal(size=(70, 2))}
    return kbp.TrainingData(edges, nodes, {0: (edges[0][0], rng.normal(size=40))}, ends=ENDS)


def chosen(data):
    return build_bases(data, kbp.RBF(1.0), kbp.RBF(0.5), RULE)


def outer(one, other):
    return sum(np.outer(a, b) for a, b in zip(np.asarray(one), np.asarray(other), strict=True))


def test_sums_of_edge_types_equal_numpy():
    data = draw()
    bases, _ = chosen(data)
    groups = list(sums.edge_sums(bases, data))
    assert sorted(types for types, _ in groups) == [[0, 2], [1], [3]]
    for types, found in groups:
        for i, k in enumerate(types):
            first, second = (bases[v] for v in ENDS[k])
            phi, psi = (features(basis, data.edges[k][0]) for basis in (first.messages, first.products))
            phi_, psi_ = (features(basis, data.edges[k][1]) for basis in (second.messages, second.products))
            expected = {
                "count": SIZES[k],
                "first": outer(phi, phi),
                "second": outer(phi_, phi_),
                "forth": outer(phi_, psi),
                "back": outer(phi, psi_),
            }
            for name, value in expected.items():
                np.testing.assert_allclose(getattr(found, name)[i], value, rtol=1e-10, atol=1e-10, err_msg=name)


def test_sums_of_nodes_and_observations_equal_numpy():
    data = draw()
    bases, seen = chosen(data)
    phi, psi = (np.asarray(features(basis, data.nodes[0])) for basis in (bases[0].messages, bases[0].products))
    found = sums.node_sums(bases[0], data.nodes[0])
    for value, expected in ((found.mean, phi.sum(0)), (found.moment, outer(phi, phi)), (found.products, psi.sum(0))):
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-10)
    x, y = data.observations[0]
    phi, chi = features(bases[0].messages, x), features(seen[0][0], y)
    found = sums.observation_sums(bases[0].messages, seen[0][0], x, y)
    pairs = ((found.variable, outer(phi, phi)), (found.cross, outer(phi, chi)), (found.observed, outer(chi, chi)))
    for value, expected in pairs:
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-10)
    assert int(found.count) == 40


def test_other_numbers_do_not_trace_again():
    programs = (sums._sum_pairs, sums._sum_samples, sums._sum_observations)
    before = []
    for seed in range(3):
        data = draw(seed)
        bases, seen = chosen(data)
        assert bases[0].messages.rank == 5 and bases[0].products.rank == 7  # equal shapes
        jax.block_until_ready([found.first for _, found in sums.edge_sums(bases, data)])
        sums.node_sums(bases[0], data.nodes[0])
        sums.observation_sums(bases[0].messages, seen[0][0], *data.observations[0])
        before.append([program.program()._cache_size() for program in programs])
    assert before[0] == before[1] == before[2]


def test_chunks_add_up_to_the_whole_and_padding_does_not_count():
    x = jnp.arange(20_000.0)  # more than two chunks
    found = sums.sum_chunks(lambda valid, x: jnp.sum(jnp.where(valid[:, 0], x, 0)), (x,))
    assert float(found) == 19_999 * 10_000
    padded = jnp.where(x < 15_000, x, jnp.nan)
    found = sums.sum_chunks(lambda valid, x: jnp.sum(x * valid[:, 0].astype(x.dtype)), (padded,), 15_000)
    assert float(found) == 14_999 * 7_500
