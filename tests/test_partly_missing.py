"""Vectors of which some entries are missing: the entries that are there count, or a warning says how many are lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import Basis
from kbpjax.learning.patterns import MOST_PATTERNS, PatternFeatures, common_patterns
from kbpjax.learning.streaming import fit_chunks
from kbpjax.tuning.held_out import hold_out
from kbpjax.tuning.search import Search

LENGTH, NOISE, STAY = 8, np.array([0.3, 0.6]), 0.9
GRAPH = kbp.chain_graph(LENGTH)
WIDTH = 0.3  # of the kernel that smooths the noise of `Expectation`
OPTIONS = {"kernel": kbp.RBF(0.5), "obs_kernel": kbp.RBF(WIDTH), "rule": kbp.ConstantTime(eps=1e-3, max_rank=60)}


def draw(count, seed=0):
    """Return stationary chains, and two numbers seen of each state, a third of which are missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, LENGTH))
    for t in range(1, LENGTH):
        x[:, t] = STAY * x[:, t - 1] + np.sqrt(1 - STAY**2) * x[:, t]
    y = x[..., None] + NOISE * rng.normal(size=(count, LENGTH, 2))
    y[rng.random(y.shape) < 0.35] = np.nan
    return x, y


def exact(y):
    """Return the posterior means and standard deviations of one chain, as the Kalman smoother does."""
    at, variance = np.arange(LENGTH), NOISE**2 + WIDTH**2
    precision = np.linalg.inv(STAY ** abs(at[:, None] - at[None]))
    there = ~np.isnan(y)
    information = np.sum(np.where(there, np.nan_to_num(y) / variance, 0), axis=1)
    covariance = np.linalg.inv(precision + np.diag(np.sum(there / variance, axis=1)))
    return covariance @ information, np.sqrt(np.diag(covariance))


@pytest.fixture(scope="module")
def fitted():
    x, y = draw(400)
    data = kbp.pool(GRAPH, x, y)
    return data, kbp.fit(data, **OPTIONS, ridge=1e-4)


def test_a_chain_with_partly_missing_observations_has_the_posterior_of_the_kalman_smoother(fitted):
    _, model = fitted
    _, y = draw(20, seed=1)
    dropped = np.where(np.isnan(y).any(axis=2, keepdims=True), np.nan, y)

    @jax.jit
    @jax.vmap
    def means(y):
        evidence = kbp.observe(model, GRAPH, y)
        belief = kbp.beliefs(model, GRAPH, evidence, kbp.run_tree(model, GRAPH, evidence))
        return kbp.mean(belief), kbp.std(belief)

    mean, std = zip(*map(exact, y), strict=True)
    found, spread = means(y)
    error, lost = (np.sqrt(np.mean((one - np.array(mean)) ** 2)) for one in (found, means(dropped)[0]))
    assert error < 0.1 < 0.3 < lost
    assert np.mean(np.abs(spread / np.array(std) - 1)) < 0.1
    one = kbp.observe(model, GRAPH, y[3])
    eager = kbp.mean(kbp.beliefs(model, GRAPH, one, kbp.run_tree(model, GRAPH, one)))
    np.testing.assert_allclose(eager, found[3], atol=1e-9)


@pytest.mark.parametrize("relation", ["ridge", pytest.param("counts", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "evidence_model", [kbp.Expectation(), pytest.param(kbp.DensityRatio(), marks=pytest.mark.slow)]
)
def test_a_pattern_is_learned_as_from_its_entries_alone(relation, evidence_model):
    x, y = draw(60)
    options = OPTIONS | {"ridge": 1e-2, "relation": relation}
    model = kbp.fit(kbp.pool(GRAPH, x, y), **options)
    alone = kbp.fit(kbp.pool(GRAPH, x, y[..., 1:]), **options)
    seen = draw(1, seed=2)[1][0]
    seen[:, 0], seen[:3, 1] = np.nan, [0.3, -1.0, 0.7]
    ours = kbp.observe(model, GRAPH, seen, evidence_model=evidence_model)
    other = kbp.observe(alone, GRAPH, seen[:, 1:], evidence_model=evidence_model)
    np.testing.assert_allclose(ours.local, other.local, atol=1e-6)
    np.testing.assert_array_equal(ours.observed, other.observed)


@pytest.mark.slow
def test_complete_observations_are_learned_as_before():
    x, y = draw(40)
    complete = np.nan_to_num(y)
    data = kbp.pool(GRAPH, x, complete)
    assert data.partly == {} and data.cases[0].partly == {} and data.cases[0].dropped == {}
    model = kbp.fit(data, **OPTIONS)
    assert type(model.observations[0].basis) is Basis
    complete[0, 0, 0] = np.nan  # one entry: all other rows as before
    other = kbp.fit(kbp.pool(GRAPH, x, complete), **OPTIONS)
    ours, theirs = (kbp.observe(m, GRAPH, complete[1]).local for m in (model, other))
    np.testing.assert_allclose(ours, theirs, atol=2e-2)


@pytest.mark.slow
def test_masked_arrays_masks_and_mappings_say_the_same_as_nan(fitted):
    data, model = fitted
    x, y = draw(400)
    masked = np.ma.masked_array(np.nan_to_num(y, nan=np.inf), np.isnan(y))
    same = kbp.pool(GRAPH, x, masked)
    np.testing.assert_array_equal(same.partly[0].y, data.partly[0].y)
    local = kbp.observe(model, GRAPH, y[5]).local
    given = ~np.isnan(y[5]).all(axis=1)
    for other in (kbp.observe(model, GRAPH, masked[5]), kbp.observe(model, GRAPH, {0: y[5]}),
                  kbp.observe(model, GRAPH, y[5], mask=given)):  # fmt: skip
        np.testing.assert_array_equal(other.local, local)
    if not given.all():
        with pytest.raises(ValueError, match=r"^y: must be finite"):
            kbp.observe(model, GRAPH, y[5], mask=np.ones(LENGTH, bool))
    with pytest.raises(ValueError, match=r"^observations: must be finite, or NaN where missing; got infinity in 1 of"):
        kbp.pool(GRAPH, x[:1], np.where(np.isnan(y[:1]), np.nan, np.where(y[:1] == np.nanmax(y[:1]), np.inf, y[:1])))
    with pytest.raises(ValueError, match=r"Vectors have to be complete in some samples"):
        kbp.pool(GRAPH, x[:1], np.stack([x[:1], np.nan * x[:1]], axis=-1))


def test_patterns_that_were_not_learned_use_the_largest_that_was_and_warn():
    rng = np.random.default_rng(0)
    graph, x = kbp.chain_graph(1), rng.normal(size=(300, 1))
    y = x[..., None] + rng.normal(size=(300, 1, 5))
    y[:100, :, 4] = y[100:150, :, :2] = np.nan
    data = kbp.pool(graph, x, y)
    kept = ["".join(map(str, one)) for one in np.asarray(data.partly[0].patterns, int).tolist()]
    assert kept[:2] == ["11110", "00111"] and set(kept[2:]) == {"00001", "00010", "00100", "01000", "10000"}
    assert data.partly[0].counts.tolist() == [100, 50, 0, 0, 0, 0, 0]
    model = kbp.fit(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(3.0), rule=OPTIONS["rule"])
    asked = np.where(np.arange(5) == 1, np.nan, y[-1])  # of "00111" it has all entries
    with pytest.warns(kbp.EvidenceWarning, match=r"y: 1 of 1 observations of node type 0 miss entries, 1 of them in"):
        found = kbp.observe(model, graph, asked)
    np.testing.assert_array_equal(
        found.local, kbp.observe(model, graph, np.where(np.arange(5) < 2, np.nan, y[-1])).local
    )
    with pytest.warns(kbp.EvidenceWarning, match="observations of node type 0 are far"):
        kbp.observe(model, graph, np.array([[np.nan, np.nan, np.nan, np.nan, 99.0]]))
    patterns, _ = common_patterns(rng.random((2000, 9)) < 0.7)
    assert len(patterns) == MOST_PATTERNS + 9 and (np.diff(patterns.sum(axis=1)) <= 0).all()


def test_what_is_dropped_as_a_whole_is_said():
    rng = np.random.default_rng(0)
    graph, x = kbp.chain_graph(2), rng.normal(size=(30, 2, 2))
    wide = rng.normal(size=(30, 2, 20))
    x[:3, 0, 1] = wide[:4, 1, 7] = np.nan
    data = kbp.pool(graph, x, wide)
    assert data.partly == {} and not np.isnan(data.cases[0].samples[0]).any()
    with pytest.warns(kbp.MissingWarning) as given:
        model = kbp.fit(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(6.0), rule=OPTIONS["rule"])
    texts = [str(one.message) for one in given]
    assert texts[0].startswith("samples: 3 of 60 vectors of node type 0 miss entries, and are dropped as a whole. Make")
    assert texts[1].startswith("observations: 4 of 60 vectors of node type 0 miss entries, and are dropped as a whole.")
    with pytest.warns(
        kbp.EvidenceWarning, match="y: 1 of 2 observations of node type 0 miss entries, and count as miss"
    ):
        assert kbp.observe(model, graph, wide[0]).observed.tolist() == [[True, False]]


def test_what_chunks_drop_as_a_whole_is_said(tmp_path):
    """Also of the short vectors whose entries `fit` uses, and where a finished checkpoint is read again."""
    rng = np.random.default_rng(0)
    graph, x, y = kbp.chain_graph(2), rng.normal(size=(30, 2, 2)), rng.normal(size=(30, 2, 3))
    options = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(2.0), "rule": kbp.ConstantTime(0.1, 8)}
    options |= {"checkpoint": tmp_path / "sums"}
    x[:3, 0, 1] = y[4:20, 1, 2] = y[6, 0, :2] = np.nan
    y[29, 0] = np.nan  # nothing is there
    chunks = [kbp.pool(graph, x[rows], y[rows]) for rows in (slice(10), slice(10, 25), slice(25, None))]
    for _ in range(2):
        with pytest.warns(kbp.MissingWarning) as given:
            fit_chunks(chunks, **options)
        texts = [str(one.message) for one in given]
        assert len(texts) == 2
        assert texts[0].startswith("chunks: 17 of 59 observations of node type 0 miss entries, and are dropped as a w")
        assert texts[1].startswith("chunks: 3 of 60 samples of node type 0 miss entries, and are dropped as a whole. ")
    fit_chunks([chunks[2]], **options | {"checkpoint": None})  # no warning


@pytest.mark.slow
def test_missing_entries_of_a_vector_are_answered_where_vectors_are_their_own_observations():
    rng = np.random.default_rng(0)
    graph, full = kbp.chain_graph(1), rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], size=(400, 1))
    rows = np.where(rng.random(full.shape) < 0.2, np.nan, full)
    data = kbp.pool(graph, rows, rows)
    both = len(data.nodes[0])
    assert 200 < both < 300 and len(data.observations[0][0]) == both == len(data.partly[0].x)
    assert data.partly[0].counts.sum() > 80  # patterns are counted where the variable is missing, too
    with pytest.warns(kbp.MissingWarning, match=r"^samples: \d+ of \d+ vectors of node type 0 miss entries"):
        model = kbp.fit(data, kernel=kbp.RBF(0.7), obs_kernel=kbp.RBF(0.3), rule=OPTIONS["rule"], ridge=1e-3)
    at = np.array([-1.0, 0.5, 1.0])
    asked = np.stack([at, np.nan * at], axis=1)[:, None]
    found = jax.vmap(lambda y: kbp.mean(kbp.infer(model, graph, y)))(asked)
    np.testing.assert_allclose(found[:, 0, 1], 0.8 * at, atol=0.15)
    _, held = hold_out(data, Search())
    assert held.observed[0].any()


@pytest.mark.slow
def test_problems_that_are_held_out_keep_entries(fitted):
    data, _ = fitted
    train, held = hold_out(data, Search())
    assert len(train.partly[0].x) > len(train.observations[0][0])
    used = held.observations[0][held.observed[0]]
    assert 0.3 < np.isnan(used).any(axis=1).mean() < 0.7 and not np.isnan(used).all(axis=1).any()


@pytest.mark.slow
def test_files_margins_and_text(tmp_path, fitted):
    _, model = fitted
    x, y = draw(60)
    kbp.save(tmp_path / "model.kbp", model)
    loaded, seen = kbp.load(tmp_path / "model.kbp"), y[0]
    np.testing.assert_array_equal(kbp.observe(loaded, GRAPH, seen).local, kbp.observe(model, GRAPH, seen).local)
    assert "2 patterns of entries" in repr(model)
    data = kbp.pool(GRAPH, x, y * [1.0, 5.0])
    at_nodes = kbp.fit(data, **OPTIONS, margins="node", ridge=1e-3)
    assert isinstance(at_nodes.observations[0].basis, PatternFeatures)
    assert kbp.observe(at_nodes, GRAPH, seen * [1.0, 5.0]).observed[0].sum() == (~np.isnan(seen).all(axis=1)).sum()


@pytest.mark.slow
def test_derivatives_and_single_precision():
    x, y = draw(60)
    options = OPTIONS | {"obs_kernel": kbp.RBF(0.8), "rule": kbp.ConstantTime(eps=1e-2, max_rank=15)}
    data = kbp.pool(GRAPH, x, y)
    rule = kbp.fix_landmarks(data, **options)

    @jax.jit
    def loss(bandwidth):
        model = kbp.fit(data, kernel=kbp.RBF(0.8), obs_kernel=kbp.RBF(bandwidth), rule=rule, ridge=1e-2)
        return jnp.sum(kbp.observe(model, GRAPH, y[0]).local[:, ::7])

    step = 1e-5
    slope = (loss(0.8 + step) - loss(0.8 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(loss)(0.8), slope, rtol=1e-4)

    def mean(dtype):
        model = kbp.fit(kbp.pool(GRAPH, x.astype(dtype), y.astype(dtype)), **options, ridge=1e-2)
        return kbp.mean(kbp.infer(model, GRAPH, y[0].astype(dtype)))

    with jax.enable_x64(False):
        single = mean(np.float32)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, mean(float), atol=2e-2)
