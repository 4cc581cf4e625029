"""Data as they come: missing values, node types of different shapes, masks of all kinds, frames, whole cases."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.baselines import density, discrete, gaussian
from kbpjax.learning.data import Cases
from kbpjax.learning.streaming import chunked, fit_chunks
from tests.refusals import complaints, not_refused

RNG = np.random.default_rng(0)
CHAIN = kbp.chain_graph(3)
X = np.array([[0.0, 1.0, np.nan], [3.0, 4.0, 5.0], [np.nan, 7.0, 8.0]])
Y = X + 10
Y[1, 1] = np.nan
THERE, SEEN = ~np.isnan(X), ~np.isnan(Y)
NA = type("NAType", (), {})()  # as of pandas, which need not be installed

# Type 0 has numbers, type 1 vectors; edge type 0 joins numbers, 1 numbers with vectors, 2 vectors.
MIXED = kbp.Graph.from_edges([(0, 2), (1, 0), (3, 1), (2, 3), (4, 2)], 5, node_type=[1, 0, 0, 1, 0])


def mixed_samples(count, seed):
    rng = np.random.default_rng(seed)
    samples = {0: rng.normal(size=(count, 3)), 1: rng.normal(size=(count, 2, 2))}
    observations = {0: rng.normal(size=(count, 3, 4))}
    for values in (*samples.values(), *observations.values()):
        values[rng.random(values.shape) < 0.15] = np.nan
    return samples, observations


def by_loops(graphs, samples, observations):
    """Pool with plain loops: {edge type: pairs}, {node type: samples}, {node type: (x, y)}; lists of flat rows."""
    edges, nodes, observed = {}, {}, {}
    for graph, x, y in zip(graphs, samples, observations):
        types = graph.node_type.tolist()
        place = [types[:n].count(v) for n, v in enumerate(types)]
        half = graph.num_edges // 2
        ends = zip(graph.senders.tolist()[:half], graph.receivers.tolist()[:half], graph.edge_type.tolist())
        ends = list(ends)
        for case in range(len(x[0])):
            value = [np.ravel(x[v][case, i]) for v, i in zip(types, place)]
            there = [not np.isnan(one).any() for one in value]
            for a, b, k in ends:
                if there[a] and there[b]:
                    edges.setdefault(k, []).append([*value[a], *value[b]])
            for n, (v, i) in enumerate(zip(types, place)):
                if there[n]:
                    nodes.setdefault(v, []).append(value[n].tolist())
                if there[n] and v in y and not np.isnan(y[v][case, i]).any():
                    observed.setdefault(v, []).append([*value[n], *np.ravel(y[v][case, i])])
    return edges, nodes, observed


def as_rows(*columns):
    return sorted(np.concatenate([np.asarray(c).reshape(len(c), -1) for c in columns], axis=1).tolist())


@pytest.mark.parametrize("several", [False, True])
def test_pool_keeps_what_is_complete_and_drops_nothing_else(several):
    graphs = [MIXED, kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4, node_type=[0, 0, 1, 1])] if several else [MIXED]
    samples, observations = (list(parts) for parts in zip(mixed_samples(6, 0), mixed_samples(5, 1)))
    for values in (samples[1], observations[1]):
        values[0] = values[0][:, :2]
    if several:
        data = kbp.pool(graphs, samples, observations)
    else:
        data = kbp.pool(MIXED, samples[0], observations[0])
    edges, nodes, observed = by_loops(graphs, samples, observations)
    assert data.edges.keys() == edges.keys() and data.nodes.keys() == nodes.keys() == {0, 1}
    assert data.observations.keys() == observed.keys() == {0}
    for k, expected in edges.items():
        assert as_rows(*data.edges[k]) == sorted(expected)
    for v, expected in nodes.items():
        assert as_rows(data.nodes[v]) == sorted(expected)
    assert as_rows(*data.observations[0]) == sorted(observed[0])
    for k, a, b in data.ends:
        for v, x, place in zip((a, b), data.edges[k], data.places(k)):
            np.testing.assert_array_equal(data.nodes[v][place], x)


def test_a_type_without_observations_has_one_neighbor_less():
    samples, observations = mixed_samples(6, 0)
    assert dict(kbp.pool(MIXED, samples).degrees) == {0: 3, 1: 2}
    assert dict(kbp.pool(MIXED, samples, observations).degrees) == {0: 4, 1: 2}


def equal(data, expected):
    left, right = jax.tree.leaves(data), jax.tree.leaves(expected)
    return len(left) == len(right) and all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(left, right))


class Pandas:
    """Columns with missing values as pandas has them: of dtype object, unless asked for numbers."""

    def __init__(self, values):
        self.values = np.asarray(values, float)

    def to_numpy(self, dtype=object, na_value=None):
        if dtype is object:
            return np.where(np.isnan(self.values), na_value, self.values.astype(object))
        return np.where(np.isnan(self.values), na_value, self.values).astype(dtype)


class Polars:
    """A frame of another library: `to_numpy` has no options."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return self.values


def test_frames_are_points_and_local_factors():
    tables, local = (
        kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]])),
        np.ones((3, 2)) + np.eye(3, 2),
    )
    graph = kbp.chain_graph(3)
    expected, found = (kbp.run_tree(tables, graph, given) for given in (local, Pandas(local)))
    np.testing.assert_array_equal(found.messages, expected.messages)
    log_z = [float(kbp.log_partition(tables, graph, given, expected)) for given in (local, Pandas(local))]
    assert log_z[0] == log_z[1]
    assert kbp.RBF(1.0)(Pandas([0.0, 1.0]), np.zeros(2)) == kbp.RBF(1.0)(np.array([0.0, 1.0]), np.zeros(2))
    with pytest.raises(ValueError, match="^x: must be finite"):
        kbp.RBF(1.0)(Polars(np.array([np.nan, 1.0])), np.zeros(2))


def test_frames_of_texts_are_no_numbers():
    """Asked for floats, pandas reads texts of numbers, which arrays and lists of them are not."""

    class Texts(Pandas):
        def to_numpy(self, dtype=object, na_value=None):
            return super().to_numpy(dtype, na_value).astype(str).astype(dtype)

    for texts in (Texts([0.5, 1.5]), [["0.5"], ["1.5"]]):
        with pytest.raises(ValueError, match="^x: must (be rectangular|hold real) numbers"):
            kbp.gram(kbp.RBF(1.0), texts, np.zeros(2))


def test_all_ways_to_say_missing_are_one():
    expected = kbp.pool(CHAIN, X, Y)
    assert [x.tolist() for x in expected.edges[0]] == [[0.0, 3.0, 4.0, 7.0], [1.0, 4.0, 5.0, 8.0]]
    assert expected.observations[0][1].tolist() == [10.0, 11.0, 13.0, 15.0, 17.0, 18.0]
    junk, more = np.where(THERE, X, np.inf), np.where(SEEN, Y, -1e9)
    ways = {
        "lists": kbp.pool(CHAIN, X.tolist(), Y.tolist()),
        "None among numbers": kbp.pool(CHAIN, np.where(THERE, X, None), np.where(SEEN, Y, None).tolist()),
        "NA among numbers": kbp.pool(CHAIN, np.where(THERE, X, NA), {0: np.where(SEEN, Y, NA)}),
        "jax arrays": kbp.pool(CHAIN, jnp.asarray(X), jnp.asarray(Y)),
        "masked arrays": kbp.pool(CHAIN, np.ma.masked_array(junk, ~THERE), np.ma.masked_invalid(Y)),
        "rows that are masked arrays": kbp.pool(CHAIN, list(np.ma.masked_invalid(X)), Y),
        "masks": kbp.pool(CHAIN, junk, more, mask=THERE, observation_mask=SEEN),
        "masks of 0 and 1": kbp.pool(CHAIN, junk, more, mask=1 * THERE, observation_mask=(1 * SEEN).tolist()),
        "masks of jax": kbp.pool(CHAIN, jnp.asarray(junk), more, mask=jnp.asarray(THERE), observation_mask=SEEN),
        "masks and NaN": kbp.pool(CHAIN, X, Y, mask=[True, True, True], observation_mask={0: SEEN}),
        "pandas": kbp.pool(CHAIN, Pandas(X), Pandas(Y)),
        "masks of pandas": kbp.pool(CHAIN, junk, more, mask=Pandas(THERE), observation_mask=Pandas(SEEN)),
        "polars": kbp.pool(CHAIN, Polars(X), Polars(Y)),
        "by type": kbp.pool(CHAIN, {0: junk}, {0: Y}, mask={0: THERE}),
        "a list of graphs": kbp.pool([CHAIN], [junk], [Y], mask=[THERE]),
    }
    assert not [name for name, data in ways.items() if not equal(data, expected)]


def test_masks_of_nodes_and_of_integers():
    whole = np.arange(6, dtype=np.uint8).reshape(2, 3)
    data = kbp.pool(CHAIN, np.ma.masked_equal(whole, 5), mask=[1, 1, 0])
    assert data.nodes[0].tolist() == [0, 1, 3, 4] and data.nodes[0].dtype == np.uint8
    data = kbp.pool(CHAIN, np.ma.masked_equal(whole, 5))
    assert data.nodes[0].tolist() == [0, 1, 2, 3, 4] and data.cases[0].samples[0].tolist() == [[0, 1, 2], [3, 4, 0]]
    mixed, _ = mixed_samples(6, 0)
    some = kbp.pool(MIXED, mixed, mask=np.array([1, 0, 1, 1, 1], bool)), kbp.pool(MIXED, mixed, mask={0: [0, 1, 1]})
    assert equal(*some) and not some[0].cases[0].present[0][:, 0].any()


def test_pool_under_jit_has_masks_with_values():
    where = np.array([[True, True, False], [True, True, True], [False, True, True]])

    @jax.jit
    def pooled(x):
        return kbp.pool(CHAIN, x, x + 10, mask=where, observation_mask=SEEN)

    outside = kbp.pool(CHAIN, X, Y)
    outside = eqx.tree_at(lambda data: data.starts, outside, {}, is_leaf=lambda x: isinstance(x, dict))  # of values
    assert equal(pooled(np.nan_to_num(X)), outside)
    with pytest.raises(ValueError, match=r"^mask: must have values inside of jax.jit; got a tracer"):
        jax.jit(lambda x, mask: kbp.pool(CHAIN, x, mask=mask))(X, where)


def test_cases_are_the_samples_as_given():
    samples, observations = mixed_samples(4, 0)
    (cases,) = kbp.pool(MIXED, samples, observations, mask={1: [True, False]}).cases
    assert cases.graph is MIXED and cases.observations.keys() == cases.observed.keys() == {0}
    missing = {0: np.isnan(samples[0]), 1: np.isnan(samples[1]).any(axis=2) | [False, True]}
    for v, x in samples.items():
        np.testing.assert_array_equal(cases.present[v], ~missing[v])
        hidden = missing[v].reshape(*missing[v].shape, *(1,) * (x.ndim - 2))
        np.testing.assert_array_equal(cases.samples[v], np.where(hidden, 0, x))
    np.testing.assert_array_equal(cases.observed[0], ~np.isnan(observations[0]).any(axis=2))
    there = ~np.isnan(observations[0])
    np.testing.assert_array_equal(cases.partly[0], there.any(axis=2) & ~there.all(axis=2))
    np.testing.assert_array_equal(np.isnan(cases.observations[0]).any(axis=2), cases.partly[0])
    graphs = [CHAIN, kbp.chain_graph(2)]
    several = kbp.pool(graphs, [X, X[:1, :2]]).cases
    assert [c.graph for c in several] == graphs and several[1].samples[0].shape == (1, 2)
    assert several[0].observations == {} == several[0].observed
    own = X.copy()
    copied = kbp.pool(CHAIN, own).cases[0].samples[0]
    own[:] = 7  # of which the cases have a copy
    np.testing.assert_array_equal(copied, kbp.pool(CHAIN, X).cases[0].samples[0])


def test_cases_pass_through_jit_and_files(tmp_path):
    data = kbp.pool(CHAIN, X, Y)
    assert isinstance(jax.jit(lambda d: d)(data).cases[0], Cases)
    assert equal(jax.jit(lambda d: d)(data), data)
    kbp.save(tmp_path / "data.kbp", data)
    loaded = kbp.load(tmp_path / "data.kbp")
    assert equal(loaded, data) and jax.tree.structure(loaded) == jax.tree.structure(data)
    made = kbp.TrainingData(data.edges, data.nodes)
    assert made.cases == ()


def test_a_file_of_the_first_version_has_no_cases(tmp_path, monkeypatch):
    data = kbp.TrainingData({0: (X[1], X[1])}, {0: X[1]})
    described = kbp.io._describe

    def without_cases(value, path, arrays):
        description = described(value, path, arrays)
        if isinstance(value, kbp.TrainingData):
            del description["fields"]["cases"]
        return description

    monkeypatch.setattr(kbp.io, "_describe", without_cases)
    kbp.save(tmp_path / "data.kbp", data)
    monkeypatch.undo()
    loaded = kbp.load(tmp_path / "data.kbp")
    assert loaded.cases == () and equal(loaded, data)


def test_training_data_drop_incomplete_pairs():
    first, second = np.array([0.0, np.nan, 2.0, 3.0]), np.array([[0.0, 1.0], [2.0, 3.0], [np.nan, 5.0], [6.0, 7.0]])
    ends = {"ends": {0: (0, 1)}}
    data = kbp.TrainingData(
        {0: (first, second)}, {0: first, 1: second}, {0: (first, np.ma.masked_equal(first, 3))}, **ends
    )
    assert data.nodes[0].tolist() == [0.0, 2.0, 3.0] and len(data.nodes[1]) == 3
    assert data.edges[0][0].tolist() == [0.0, 3.0] and data.edges[0][1].tolist() == [[0.0, 1.0], [6.0, 7.0]]
    assert data.observations[0][1].tolist() == [0.0, 2.0]
    with pytest.raises(ValueError, match=r"^nodes\[0\]: must be finite and complete with rows=; got 1 missing of 4"):
        kbp.TrainingData({0: (first, first)}, {0: first}, rows={0: ([0, 1, 2, 3], [0, 1, 2, 3])})


@pytest.mark.slow
def test_chunks_drop_incomplete_pairs():
    x = RNG.normal(size=(40, 2))
    holes = np.where(RNG.random(x.shape) < 0.2, np.nan, x)
    kernel, rule = kbp.RBF(1.0), kbp.ConstantTime(1e-2, 8)
    options = {"kernel": kernel, "rule": rule, "ridge": 1e-2}
    for values in (holes, np.ma.masked_array(np.nan_to_num(holes), np.isnan(holes))):
        chunks = chunked({0: (values[:, 0], values[:, 1])}, {0: values.ravel()}, size=40)
        model = fit_chunks(chunks, **options)
        whole = ~np.isnan(holes).any(axis=1)
        data = kbp.TrainingData({0: tuple(holes[whole].T)}, {0: holes[~np.isnan(holes)]})
        expected = kbp.fit(data, **options)
        np.testing.assert_allclose(model.operators.project, expected.operators.project, rtol=1e-6, atol=1e-9)
    pools = [kbp.pool(kbp.chain_graph(2), part) for part in (holes[:20], holes[20:])]
    assert fit_chunks(pools, **options).operators.project.shape == expected.operators.project.shape


def holes_fitted():
    return kbp.fit(kbp.pool(CHAIN, X, Y), kernel=kbp.RBF(2.0), obs_kernel=kbp.RBF(2.0), rule=kbp.FullRank(), ridge=1e-2)


def test_nan_is_not_observed():
    model, mask = holes_fitted(), np.array([True, False, True])
    expected = kbp.observe(model, CHAIN, [10.0, 99.0, 12.0], mask=mask)
    y = np.array([10.0, np.nan, 12.0])
    batch = jax.vmap(lambda y: kbp.observe(model, CHAIN, y))(jnp.stack([y, y + 1]))
    ways = {
        "NaN": kbp.observe(model, CHAIN, y),
        "None": kbp.observe(model, CHAIN, [10, None, 12]),
        "NA by type": kbp.observe(model, CHAIN, {0: [10.0, NA, 12.0]}),
        "NaN under jit": jax.jit(lambda y: kbp.observe(model, CHAIN, y))(y),
        "by type": kbp.observe(model, CHAIN, {0: y}),
        "a masked array": kbp.observe(model, CHAIN, np.ma.masked_array([10.0, np.inf, 12.0], ~mask)),
        "a masked array of integers": kbp.observe(model, CHAIN, np.ma.masked_array([10, 5, 12], ~mask)),
        "a masked array by type": kbp.observe(
            model, CHAIN, {0: np.ma.masked_array([10, 5, 12], ~mask)}, mask=[1, 1, 1]
        ),
        "a frame": kbp.observe(model, CHAIN, Pandas(y)),
        "0 and 1": kbp.observe(model, CHAIN, y, mask=[1, 0, 1]),
        "0 and 1 under jit": jax.jit(lambda m: kbp.observe(model, CHAIN, y, mask=m))(np.array([1, 0, 1])),
        "a mask of pandas": kbp.observe(model, CHAIN, y, mask=Pandas(mask)),
        "vmap": jax.tree.map(lambda a: a[0], batch),
    }
    for name, evidence in ways.items():
        assert evidence.observed.tolist() == [mask.tolist()], name
        np.testing.assert_allclose(evidence.messages, expected.messages, rtol=1e-12, atol=1e-15, err_msg=name)
        np.testing.assert_allclose(evidence.local, expected.local, rtol=1e-12, err_msg=name)


@pytest.mark.slow
def test_nan_of_one_type_is_no_error():
    samples, observations = mixed_samples(6, 0)
    observations[1] = np.nan_to_num(samples[1])
    data = kbp.pool(MIXED, samples, observations)
    with pytest.warns(kbp.MissingWarning, match="^samples"):  # of vectors
        model = kbp.fit(data, kernel=kbp.RBF(2.0), obs_kernel=kbp.RBF(2.0), rule=kbp.FullRank(), ridge=1e-2)
    y = {0: np.full((3, 4), np.nan), 1: np.array([[1.0, 2.0], [np.nan, 0.0]])}
    with pytest.warns(
        kbp.EvidenceWarning, match="1 of 2 observations of node type 1 miss entries, and count as missing"
    ):
        evidence = kbp.observe(model, MIXED, y)
    assert evidence.observed.tolist() == [[True, False, False, False, False]]


def test_pictures_become_rows():
    grid = kbp.grid_graph(2, 4)
    for shape, hint in (((2, 4), "picture.reshape(1, -1)"), ((1, 2, 4), "pictures.reshape(1, -1)")):
        with pytest.raises(ValueError, match=re.escape(f"nodes on axis 1: {hint}.")):
            kbp.pool(grid, np.zeros(shape))


def test_objects_that_are_no_numbers_are_no_gaps():
    for odd in (1j, 10**400, [1.0], object(), True):
        row = np.array([0.0, None, None], object)
        row[2] = odd
        with pytest.raises(ValueError, match="^samples: must be rectangular numbers; got ndarray of dtype object with"):
            kbp.pool(CHAIN, row[None])


def test_wrong_data_are_refused():
    text = np.array([["a", 2, "c"]], object)
    wrong = {
        "ragged": (
            [[1.0, 2.0, 3.0], [1.0]],
            {},
            r"samples: must be rectangular numbers; got list of rows of different",
        ),
        "a sample": (X[0], {}, r"samples: must have shape \[sample, 3, ...\]; .* one sample is x\[None\]\.$"),
        "a node too few": (X[:2, :2], {}, r"samples: must have shape .* and nodes on axis 1\.$"),
        "None": ([[1.0, None, 3.0]], {}, "samples: must have at least one pair of edge type 0 that is not missing"),
        "an object": ([[1.0, object(), 3.0]], {}, "samples: must be rectangular numbers; got list of dtype object"),
        "objects": (text, {}, "samples: must have labels of one type"),
        "words in a frame": (Polars(text), {}, "samples: must have labels of one type"),
        "infinity": (
            np.nan_to_num(X, nan=np.inf),
            {},
            "samples: must be finite, or NaN where missing; got infinity in 2",
        ),
        "no node": (
            X * np.nan,
            {},
            "samples: must have at least one value of node type 0 that is not missing; got none",
        ),
        "no pair": (X, {"mask": [1, 0, 1]}, "samples: must have at least one pair of edge type 0 that is not missing"),
        "no observed": (
            (X, X * np.nan),
            {},
            "observations: must have at least one pair of a sample and an observation",
        ),
        "a mask of numbers": (X, {"mask": THERE * 1.0}, "mask: must be boolean, or 0 and 1, of shape .3, 3. or .3,.;"),
        "a mask of twos": (X, {"mask": THERE * 2}, r"mask: must be boolean, .* with \[2\]"),
        "a mask of unknowns": (X, {"mask": Pandas([1, np.nan, 1])}, r"mask: must be boolean, .* with \[nan\]"),
        "a mask of other samples": (X, {"mask": THERE[:2]}, r"mask: must be .* got bool\(2, 3\)"),
        "a mask of another type": (
            X,
            {"mask": {1: [True]}},
            r"mask: must have node types among \[0\] as keys; got \[1\]",
        ),
        "a mask of no observations": (X, {"observation_mask": THERE}, "observation_mask: must be None without obs"),
        "another type": ({0: X, 1: X}, {}, r"samples: must have node types among \[0\] as keys; got \[0, 1\]"),
        "a name as type": ({"pixel": X}, {}, "samples: must have integers >= 0 as keys"),
        "no type": ({}, {}, r"samples: must have samples of every node type \[0\]; got \[\]"),
    }
    calls = {}
    for name, (samples, options, pattern) in wrong.items():
        arrays = samples if isinstance(samples, tuple) else (samples,)
        calls[name] = (lambda arrays=arrays, options=options: kbp.pool(CHAIN, *arrays, **options)), pattern
    assert not not_refused(calls)
    two = kbp.chain_graph(3, node_type=[0, 0, 1])
    mistakes = complaints(r"samples: must have the same number of samples", kbp.pool, two, {0: X[:, :2], 1: X[:2, :1]})
    mistakes += complaints(r"samples: must have samples of every node type", kbp.pool, two, {0: X[:, :2]})
    mistakes += complaints(r"samples\[1\]: must have shape \[sample, 1", kbp.pool, two, {0: X[:, :2], 1: X})
    mistakes += complaints(r"observations: must have 3 samples", kbp.pool, two, X, {0: X[:2, :2]})
    mistakes += complaints("mask: must be a list of 1 arrays", kbp.pool, [CHAIN], [X], mask=THERE)
    mistakes += complaints(r"mask\[0\]: must be boolean", kbp.pool, [CHAIN], [X], mask=[THERE[0, :2]])
    mistakes += complaints("x: must have no masked entries", kbp.gram, kbp.RBF(1.0), np.ma.masked_invalid(X[0]), X[1])
    assert not mistakes


def test_masks_of_baselines_may_be_0_and_1():
    graph, x = kbp.chain_graph(2), jnp.linspace(-1, 1, 40)
    membrane = gaussian.thin_membrane(graph, edge_precision=1.0)
    model = discrete.from_potentials([-1.0, 0.0, 1.0], jnp.ones(3), jnp.ones((1, 3, 3)))
    learned = density.fit_likelihood(jax.random.key(0), x, 2 * x)
    for infer in (
        lambda mask: gaussian.likelihood(membrane, graph, [2.0, np.nan], noise=0.5, mask=mask).information,
        lambda mask: learned.evidence(model, graph, [2.0, np.nan], mask=mask).local,
    ):
        expected = infer(np.array([True, False]))
        assert not np.allclose(expected[0], expected[1])
        for mask in ([1, 0], Pandas([1, 0])):
            np.testing.assert_array_equal(infer(mask), expected)
