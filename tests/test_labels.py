"""Labels as values: texts, categories of pandas, booleans, integers with gaps; in, and out again."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.learning import labels

GRAPH = kbp.chain_graph(5)
CODES = np.random.default_rng(0).integers(0, 3, size=(40, 5))
Y = CODES + 0.3 * np.random.default_rng(1).normal(size=CODES.shape)
WEATHER = np.array(["cloudy", "rain", "sun"])
OPTIONS = {"kernel": kbp.Delta(), "obs_kernel": kbp.RBF(0.3), "ridge": 1e-3}


class Categorical:
    """A column of pandas with a categorical dtype, as far as it is read; pandas itself need not be installed."""

    def __init__(self, values, categories):
        index = np.array(categories)  # an index of pandas has no truth value either
        self.values, self.dtype = values, type("dtype", (), {"categories": index})

    def to_numpy(self):
        return self.values.astype(object)


class Frame:
    """A frame of such columns."""

    def __init__(self, columns):
        self.columns, self.of = list(columns), columns

    def __getitem__(self, name):
        return self.of[name]

    def to_numpy(self):
        return np.stack([column.to_numpy() for column in self.of.values()], axis=1)


def kinds():
    texts = WEATHER[CODES]
    own = {f"day {i}": Categorical(texts[:, i], ["sun", "cloudy", "rain"]) for i in range(5)}
    return {"texts": texts, "objects": texts.astype(object), "lists": texts.tolist(), "categories": Frame(own)}


def test_a_real_frame_of_categories():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; `Frame` stands for it in the other tests")
    kind = pandas.CategoricalDtype(["sun", "cloudy", "rain"], ordered=True)
    frame = pandas.DataFrame({f"day {i}": pandas.Series(WEATHER[CODES[:, i]], dtype=kind) for i in range(5)})
    assert dict(kbp.pool(GRAPH, frame).labels) == {0: ("sun", "cloudy", "rain")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["texts", "objects", "lists", "categories"])
def test_texts_and_categories_come_back_as_labels(kind):
    x = kinds()[kind]
    data = kbp.pool(GRAPH, x, Y)
    model, numbers = kbp.fit(data, **OPTIONS), kbp.fit(kbp.pool(GRAPH, CODES, Y), **OPTIONS)
    known = ("sun", "cloudy", "rain") if kind == "categories" else tuple(WEATHER.tolist())
    assert dict(data.labels) == dict(model.labels) == {0: known}
    posterior, expected = kbp.infer(model, GRAPH, Y[0]), kbp.infer(numbers, GRAPH, Y[0])
    np.testing.assert_array_equal(kbp.mode(posterior), WEATHER[kbp.mode(expected)])
    order = [known.index(label) for label in WEATHER]
    np.testing.assert_allclose(posterior.weights[:, order], expected.weights, atol=1e-5)
    assert set(np.unique(kbp.sample(posterior, jax.random.key(0), 20))) <= set(WEATHER.tolist())
    assert repr(posterior.belief) == "Belief(5 nodes on 3 of 3 labels)"
    batch = jax.vmap(lambda y: kbp.infer(model, GRAPH, y))(Y[:3])
    np.testing.assert_array_equal(kbp.mode(batch)[0], kbp.mode(posterior))
    assert kbp.sample(batch, jax.random.key(0), 2).dtype.kind == "U"
    assert jax.jit(lambda y: kbp.mode(kbp.infer(model, GRAPH, y)))(Y[0]).dtype.kind == "i"  # codes inside


def test_labels_are_observed_and_clamped():
    x = WEATHER[CODES]
    model = kbp.fit(kbp.pool(GRAPH, x, x), **(OPTIONS | {"obs_kernel": kbp.Delta()}))
    numbers = kbp.fit(kbp.pool(GRAPH, CODES, CODES), **(OPTIONS | {"obs_kernel": kbp.Delta()}))
    seen = np.array(["sun", None, "rain", None, "sun"], object)
    there = np.array([True, False, True, False, True])
    expected = kbp.observe(numbers, GRAPH, [2, 0, 1, 0, 2], mask=there)
    for y in (seen, seen.tolist(), {0: seen}):
        np.testing.assert_allclose(kbp.observe(model, GRAPH, y).local, expected.local, rtol=1e-5)
    expected = kbp.clamp(numbers, GRAPH, [0, 3], [2, 1]).local
    for nodes, values in (
        ([0, 3], ["sun", "rain"]),
        ([0, 3], {0: ["sun", "rain"]}),
        (None, ["sun", None, None, "rain", None]),
    ):
        np.testing.assert_allclose(kbp.clamp(model, GRAPH, nodes, values).local, expected, rtol=1e-5)
    clamped = kbp.infer(model, GRAPH, evidence=kbp.clamp(model, GRAPH, [1], ["rain"]), points=["rain", "sun"])
    assert kbp.mode(clamped)[1] == "rain" and clamped.weights.shape == (5, 2)


def test_booleans_and_integers_with_gaps_are_values():
    for x in (CODES > 0, np.array([3, 10, 700])[CODES]):
        model = kbp.fit(kbp.pool(GRAPH, x, Y), **OPTIONS)
        got = np.asarray(kbp.mode(kbp.infer(model, GRAPH, Y[0])))
        assert got.dtype.kind == x.dtype.kind and np.isin(got, x).all() and (got == x[0]).mean() >= 0.8


def test_types_have_their_own_labels_and_missing_ones_are_missing():
    graph = kbp.chain_graph(4, node_type=[0, 1, 0, 1])
    colors, sizes = np.array(["blue", "red"]), np.array(["large", "medium", "small"])
    first, second = colors[CODES[:, :2] % 2].astype(object), sizes[CODES[:, 2:4]]
    first[0, 0] = None
    data = kbp.pool(graph, {0: first, 1: second})
    assert dict(data.labels) == {0: ("blue", "red"), 1: ("large", "medium", "small")}
    assert len(data.nodes[0]) == 79 and len(data.nodes[1]) == 80
    model = kbp.fit(data, kernel=kbp.Delta(), ridge=1e-3)
    posterior = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0, 1], {0: ["red"], 1: ["small"]}))
    modes = kbp.mode(posterior)
    assert modes[0][0] == "red" and modes[1][0] == "small"
    two = kbp.pool([graph, graph], [{0: first, 1: second}, {0: np.full((1, 2), "green"), 1: second[:1]}])
    assert dict(two.labels)[0] == ("blue", "green", "red")


@pytest.mark.slow  # a search
def test_without_a_kernel_labels_have_delta(tmp_path):
    model = kbp.fit(kbp.pool(GRAPH, WEATHER[CODES], Y))
    assert isinstance(model.bases[0].kernel, kbp.Delta)
    kbp.save(tmp_path / "weather.kbp", model)
    again = kbp.load(tmp_path / "weather.kbp")
    assert again.labels == model.labels
    np.testing.assert_array_equal(kbp.mode(kbp.infer(again, GRAPH, Y[0])), kbp.mode(kbp.infer(model, GRAPH, Y[0])))


def test_what_is_wrong_with_labels_is_named():
    x = WEATHER[CODES]
    model = kbp.fit(kbp.pool(GRAPH, x, x), **(OPTIONS | {"obs_kernel": kbp.Delta()}))
    numbers = kbp.fit(kbp.pool(GRAPH, CODES, CODES), **(OPTIONS | {"obs_kernel": kbp.Delta()}))
    belief = kbp.infer(model, GRAPH)
    calls = {
        "y: must be one of the 3 labels of the training data, such as .* got 'snow'": lambda: kbp.observe(
            model, GRAPH, ["snow"] * 5
        ),
        "values: must be one of the 3 labels .* got 'snow'": lambda: kbp.clamp(model, GRAPH, [0], ["snow"]),
        "y: must hold real numbers; got dtype <U3": lambda: kbp.observe(numbers, GRAPH, ["sun"] * 5),
        "values: must be known; got 1 missing": lambda: kbp.clamp(model, GRAPH, [0, 1], ["sun", None]),
        "samples: must have labels of one type; got .* odd ones: 'n/a'. Use NaN where": lambda: kbp.pool(
            kbp.chain_graph(4), np.array([[1.0, 2.0, "n/a", 3.0]], object)
        ),
        "samples: must have labels of one type; got .'int', 'str'.": lambda: kbp.pool(
            GRAPH, np.array([["a", 1, "b", "a", "b"]], object)
        ),
        "belief: must be of numbers; got 3 labels": lambda: kbp.mean(belief),
        "belief: must be of numbers": lambda: kbp.interval(belief),
    }
    for text, call in calls.items():
        with pytest.raises(ValueError, match=f"^{text}"):
            call()


def test_chunks_have_the_same_labels():
    x = WEATHER[CODES]
    chunks = [kbp.pool(GRAPH, half) for half in (x[:20], x[20:])]
    model = kbp.fit_chunks(lambda: chunks, kernel=kbp.Delta(), ridge=1e-3)
    assert dict(model.labels) == {0: tuple(WEATHER.tolist())}
    other = [chunks[0], kbp.pool(GRAPH, np.full((2, 5), "snow"))]
    with pytest.raises(ValueError, match="^chunk 1: must match the first chunk"):
        kbp.fit_chunks(lambda: other, kernel=kbp.Delta(), ridge=1e-3)


def test_encoding_is_undone_by_decoding():
    known = labels.labels_in("x", [WEATHER, ["sun", None]])
    codes = labels.encode("x", ["rain", None, "sun"], known)
    assert codes.mask.tolist() == [False, True, False]
    assert labels.decode(codes.data, known)[[0, 2]].tolist() == ["rain", "sun"]
    assert not labels.are_labels(jnp.ones(2)) and not labels.are_labels([[1.0], [1.0, 2.0]])


def test_labels_of_a_belief_are_one_text_or_number_for_each_code():
    weights = jnp.full((1, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"^labels: must be texts or numbers; got list"):
        kbp.Belief(jnp.arange(3), weights, labels=(["a"], ["b", "c"], ["d"]))
    for points in (jnp.arange(3), jnp.array([-1, 0, 1]), jnp.array([0.0, 1.0, 1.0])):
        with pytest.raises(ValueError, match=r"^points: must be codes of the 2 labels, integers 0 \.\. 1; got"):
            kbp.Belief(points, weights, labels=("a", "b"))
    assert kbp.mode(kbp.Belief(jnp.arange(3), weights, labels=("a", "b", "c"))).tolist() == ["a"]


def test_one_list_has_the_labels_of_the_given_nodes():
    rng = np.random.default_rng(0)
    graph = kbp.Graph.from_edges([(0, 1)], 2, node_type=[0, 1])
    x = {0: rng.choice(["x", "y"], (40, 1)), 1: rng.choice(["?", "!"], (40, 1))}
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.Delta())
    chex.assert_trees_all_equal(kbp.clamp(model, graph, [1], ["?"]), kbp.clamp(model, graph, [1], {1: ["?"]}))
    with pytest.raises(ValueError, match="values: must be by type where labels of types differ"):
        kbp.clamp(model, graph, [0, 1], ["x", "?"])
