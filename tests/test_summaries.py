"""Summaries of beliefs against NumPy and differences: beliefs by type, nodes, coordinates, circles, sets."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

import kbpjax as kbp
from tests import reference
from tests.refusals import not_refused

RANDOM = np.random.default_rng(0)
POINTS = RANDOM.uniform(-3, 3, 9)
WEIGHTS = np.concatenate([RANDOM.dirichlet(np.ones(9), 3), np.eye(9)[:1]])
BELIEF = kbp.Belief(jnp.asarray(POINTS), jnp.asarray(WEIGHTS))
PLANE = kbp.Belief(jnp.asarray(RANDOM.normal(size=(9, 2))), jnp.asarray(WEIGHTS[1:]))
LETTERS = kbp.Belief(jnp.arange(9), jnp.asarray(WEIGHTS[:2]))
KEY = jax.random.key(0)


def same(got, expected):
    jax.tree.map(np.testing.assert_array_equal, got, expected)


SUMMARIES = {
    "mode": kbp.mode,
    "mean": kbp.mean,
    "std": kbp.std,
    "variance": kbp.variance,
    "entropy": kbp.entropy,
    "quantile": lambda b: kbp.quantile(b, 0.3),
    "interval": lambda b: kbp.interval(b, coverage=0.8),
    "marginal": kbp.marginal,
    "circular mean": lambda b: kbp.circular_mean(b, 24.0),
    "circular interval": kbp.circular_interval,
    "highest density": lambda b: kbp.highest_density(b, 0.5),
    "temper": lambda b: kbp.temper(b, 2.0),
    "expectation": lambda b: kbp.expectation(b, jnp.cos),
}


def test_summaries_of_beliefs_by_type_are_those_of_each():
    by_type = {0: BELIEF, 3: LETTERS}
    for name, summary in SUMMARIES.items():
        got = summary(by_type)
        assert list(got) == [0, 3], name
        same(got, {v: summary(belief) for v, belief in by_type.items()})
    same(kbp.covariance({1: PLANE}), {1: kbp.covariance(PLANE)})
    assert kbp.mean({}) == {}


def test_a_function_of_several_nodes_needs_their_numbers():
    for fn in (lambda path: path[1:].mean(), lambda path: len(path), lambda a, b: a + b):
        with pytest.raises(ValueError, match=r"fn: must take one point, of shape \(\); it raised .* pass .* nodes="):
            kbp.expectation(BELIEF, fn)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        kbp.expectation(BELIEF, lambda x: 1.0 if x > 0 else 0.0)


def test_means_of_labels_name_the_alternatives():
    labels = kbp.Belief(jnp.arange(2), jnp.ones((1, 2)) / 2, labels=("no", "yes"))
    for summary in (kbp.mean, kbp.interval):
        with pytest.raises(ValueError, match=r"belief: must be of numbers; got 2 labels. Use .*mode.* posterior\[v\]"):
            summary({0: BELIEF, 1: labels})


def test_other_arguments_may_be_given_by_type():
    by_type, x = {0: BELIEF, 3: LETTERS}, {0: POINTS[:4], 3: np.array([1.5, 2.5])}
    expected = {v: kbp.log_density(belief, x[v]) for v, belief in by_type.items()}
    same(kbp.log_density(by_type, x), expected)
    same(kbp.log_density(by_type, x=x), expected)
    functions = {0: jnp.sin, 3: lambda x: x == 2}
    got = kbp.expectation(by_type, functions)
    same(got, {v: kbp.expectation(belief, functions[v]) for v, belief in by_type.items()})


def test_samples_of_beliefs_by_type_are_independent():
    got = kbp.sample({0: BELIEF, 3: BELIEF}, KEY, 50)
    assert got[0].shape == (50, 4) and (np.asarray(got[0]) != np.asarray(got[3])).any()
    same(kbp.sample({3: BELIEF}, KEY, 50)[3], got[3])


@pytest.mark.slow
def test_refined_modes_of_beliefs_by_type():
    graph, x = kbp.chain_graph(4, node_type=[0, 0, 1, 1]), np.linspace(-1, 1, 60).reshape(15, 4)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
    solution = kbp.run_tree(model, graph)
    belief = kbp.beliefs(model, graph, None, solution, {v: np.linspace(-1, 1, 5) for v in (0, 1)})
    posterior = kbp.Posterior.of(model, graph, None, solution, {v: np.linspace(-1, 1, 5) for v in (0, 1)})
    got = kbp.refine_mode(posterior, num_steps=20)
    assert sorted(got) == [0, 1]
    for v in (0, 1):
        before, after = (kbp.log_belief(posterior, x[:, None], node_type=v) for x in (kbp.mode(belief[v]), got[v]))
        assert (after >= before).all() and (after > before).any()


def test_nodes_of_a_belief():
    assert len(BELIEF) == 4
    mask = np.array([True, False, True, False])
    chosen = {"number": (2, [2]), "last": (-1, [3]), "NumPy": (np.int32(1), [1]), "JAX": (jnp.array(3), [3])}
    chosen |= {"list": ([1, 2], [1, 2]), "tuple": ((0,), [0]), "array": (np.array([3, 3]), [3, 3]), "none": ([], [])}
    chosen |= {"slice": (slice(1, 3), [1, 2]), "mask": (mask, [0, 2]), "JAX mask": (jnp.asarray(mask), [0, 2])}
    for name, (nodes, rows) in chosen.items():
        np.testing.assert_array_equal(BELIEF[nodes].points, POINTS, err_msg=name)
        np.testing.assert_array_equal(BELIEF[nodes].weights, WEIGHTS[np.array(rows, int)], err_msg=name)
    np.testing.assert_array_equal(jnp.concatenate([one.weights for one in BELIEF]), WEIGHTS)
    traced = jax.jit(jax.vmap(lambda node: kbp.mean(BELIEF[node])[0]))(jnp.arange(4))
    np.testing.assert_allclose(traced, kbp.mean(BELIEF), rtol=1e-14)


def test_standard_deviation_and_entropy():
    np.testing.assert_allclose(kbp.std(BELIEF), np.sqrt(reference.variance(POINTS, WEIGHTS)), atol=1e-7)
    spread = np.sqrt(reference.variance(np.asarray(PLANE.points), WEIGHTS[1:]))
    np.testing.assert_allclose(kbp.std(PLANE), spread, atol=1e-7)
    np.testing.assert_allclose(kbp.std(LETTERS)[0] ** 2, np.cov(np.arange(9), aweights=WEIGHTS[0], ddof=0), rtol=1e-12)
    expected = [-sum(w * np.log(w) for w in row if w > 0) for row in WEIGHTS]
    np.testing.assert_allclose(kbp.entropy(BELIEF), expected, rtol=1e-12, atol=1e-15)
    uniform = kbp.Belief(jnp.arange(5.0), jnp.full((1, 5), 0.2))
    np.testing.assert_allclose(kbp.entropy(uniform), [np.log(5)], rtol=1e-14)


def test_marginal_adds_the_weights_of_equal_values():
    columns = [a.ravel() for a in np.meshgrid([2.0, -1.0, 0.5], [7.0, 5.0])]
    belief = kbp.Belief(jnp.asarray(np.stack(columns, axis=1)), jnp.asarray(RANDOM.dirichlet(np.ones(6), 4)))
    for i, column in enumerate(columns):
        got = kbp.marginal(belief, i)
        values = sorted(set(column))
        expected = [[sum(w for w, x in zip(row, column) if x == value) for value in values] for row in belief.weights]
        assert got.points.tolist() == values
        np.testing.assert_allclose(got.weights, expected, rtol=1e-14)
        np.testing.assert_allclose(kbp.mean(got), kbp.mean(belief)[:, i], rtol=1e-13)
        np.testing.assert_allclose(kbp.variance(got), kbp.variance(belief)[:, i], rtol=1e-12)
    repeated = kbp.marginal(kbp.Belief(jnp.array([3, 1, 3]), jnp.array([[0.25, 0.5, 0.25]])))
    assert repeated.points.tolist() == [1, 3] and repeated.weights.tolist() == [[0.5, 0.5]]

    @jax.jit
    def inside(weights):  # known points, traced weights
        return kbp.mean(kbp.marginal(kbp.Belief(belief.points, weights), 1))

    np.testing.assert_allclose(inside(belief.weights), kbp.mean(belief)[:, 1], rtol=1e-13)


@pytest.mark.parametrize("period", [2 * np.pi, 24.0])
def test_circular_mean_equals_the_argument_of_the_mean_of_complex_numbers(period):
    turned = np.exp(2j * np.pi * POINTS / period)
    expected = np.angle(WEIGHTS @ turned) * period / (2 * np.pi)
    got = kbp.circular_mean(BELIEF, period)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    shifted = kbp.circular_mean(kbp.Belief(BELIEF.points + 5 * period, BELIEF.weights), period)
    np.testing.assert_allclose(shifted, expected, rtol=1e-11)
    together = kbp.circular_mean(
        kbp.Belief(jnp.stack([BELIEF.points, BELIEF.points + 1], axis=1), BELIEF.weights), period
    )
    np.testing.assert_allclose(together[:, 0], expected, rtol=1e-12)
    assert ((np.asarray(together)[:, 1] - expected - 1 + 1e-9) % period < 1e-6).all()


def circular_interval(points, row, coverage, period):
    """Cut the circle opposite to the mean, and walk along it."""
    center = np.angle(np.sum(row * np.exp(2j * np.pi * points / period))) * period / (2 * np.pi)
    deviations = [(x - center + period / 2) % period - period / 2 for x in points]
    levels = (1 - coverage) / 2, (1 + coverage) / 2
    return [center + reference.interpolated_quantile(deviations, row, level) for level in levels]


@pytest.mark.parametrize("period", [2 * np.pi, 7.0])
@pytest.mark.parametrize("column", [False, True])
def test_circular_interval_equals_the_walk(period, column):
    belief = kbp.Belief(BELIEF.points[:, None], BELIEF.weights) if column else BELIEF
    for coverage in (0.0, 0.5, 0.9, 1.0):
        got = np.stack(kbp.circular_interval(belief, coverage, period))
        assert got.shape == ((2, 4, 1) if column else (2, 4))
        expected = [circular_interval(POINTS, row, coverage, period) for row in WEIGHTS]
        np.testing.assert_allclose(got.reshape(2, 4).T, expected, rtol=1e-10, atol=1e-12)


def test_the_circular_interval_of_a_narrow_belief_is_the_interval_turned():
    points = np.linspace(-np.pi, np.pi, 400, endpoint=False)
    weights = np.exp(-((points / 0.2) ** 2) / 2)
    belief = kbp.Belief(jnp.asarray(points), jnp.asarray(weights / weights.sum())[None])
    flat = np.stack(kbp.interval(belief, 0.8))
    np.testing.assert_allclose(np.stack(kbp.circular_interval(belief, 0.8)), flat, atol=1e-9)
    seam = kbp.Belief(jnp.asarray(points), jnp.roll(belief.weights, 199, axis=1))  # around the seam
    got = np.stack(kbp.circular_interval(seam, 0.8)) - points[399]
    np.testing.assert_allclose(np.mod(got + np.pi, 2 * np.pi) - np.pi, flat, atol=1e-9)


def smallest_sets(row, coverage):
    """The sizes and weights of all sets of points that hold the coverage, least size and then most weight first."""
    sets = [[bool(number >> i & 1) for i in range(len(row))] for number in range(2 ** len(row))]
    holding = [chosen for chosen in sets if row[chosen].sum() >= coverage - 1e-12]
    return sorted((sum(chosen), -row[chosen].sum(), chosen) for chosen in holding)


def test_highest_density_is_the_smallest_of_all_sets():
    for coverage in (0.0, 0.3, 0.9, 1.0):
        got = np.asarray(kbp.highest_density(BELIEF, coverage))
        for chosen, row in zip(got, WEIGHTS, strict=True):
            assert chosen.tolist() == smallest_sets(row, coverage)[0][2]
    same(kbp.highest_density(PLANE, 0.5), kbp.highest_density(BELIEF, 0.5)[1:])  # any domain
    same(jax.jit(kbp.highest_density)(BELIEF, 0.5), kbp.highest_density(BELIEF, 0.5))


def test_gradients_equal_differences():
    logits = jnp.asarray(RANDOM.normal(size=(2, 9)))

    @jax.jit
    def summaries(points, logits):
        belief = kbp.Belief(points, jax.nn.softmax(logits, axis=-1))
        circle = kbp.circular_mean(belief, 7.0), *kbp.circular_interval(belief, 0.7, 7.0)
        return jnp.stack([kbp.std(belief), kbp.entropy(belief), *circle])

    jax.test_util.check_grads(summaries, (BELIEF.points, logits), order=1, modes=("fwd", "rev"), rtol=1e-5)
    slopes = jax.jit(jax.jacobian(summaries, 1))(BELIEF.points, logits)
    assert (np.abs(slopes).sum(axis=(2, 3)) > 0.01).all()

    def plane(logits):
        return kbp.marginal(kbp.Belief(PLANE.points.round(), jax.nn.softmax(logits, axis=-1)), 1).weights

    jax.test_util.check_grads(plane, (logits,), order=1, modes=("fwd", "rev"), rtol=1e-6)


def test_gradients_are_finite_where_roots_and_logarithms_have_none():
    @jax.jit
    def summaries(weights):
        belief = kbp.Belief(jnp.array([0.0, jnp.pi]), weights)
        return kbp.std(belief).sum() + kbp.entropy(belief).sum() + kbp.circular_mean(belief).sum()

    assert np.isfinite(jax.grad(summaries)(jnp.array([[1.0, 0.0], [0.5, 0.5]]))).all()


def test_what_is_refused():
    cube = kbp.Belief(jnp.zeros((9, 2, 2)), BELIEF.weights)
    batch = jax.vmap(lambda weights: kbp.Belief(BELIEF.points, weights))(jnp.stack([BELIEF.weights] * 2))
    calls = {
        "node": (lambda: BELIEF[4], r"nodes: must be among 4 nodes; got \[4\]"),
        "nodes": (lambda: BELIEF[[7, 6, 5, 4]], r"nodes: must be among 4 nodes; got \[7, 6, 5\]\."),
        "negative": (lambda: BELIEF[[0, -5]], r"nodes: must be among 4 nodes; got \[-5\]"),
        "float": (lambda: BELIEF[1.0], "nodes: must be numbers, a slice or a mask of 4 nodes"),
        "mask": (lambda: BELIEF[np.ones(9, bool)], "nodes: must be numbers, a slice or a mask"),
        "matrix": (lambda: BELIEF[np.zeros((2, 2), int)], "nodes: must be numbers, a slice or a mask of 4 nodes"),
        "batch": (lambda: batch[0], r"belief: must have weights \[node, point\]"),
        "coordinate": (lambda: kbp.marginal(PLANE, 2), "coordinate: must be one of 2 coordinates; got 2"),
        "coordinates": (lambda: kbp.marginal(cube, 0), r"belief: must have points \[point, dim\]"),
        "traced": (
            lambda: jax.jit(kbp.marginal)(BELIEF),
            "belief: must have known points; got a tracer",
        ),
        "period": (lambda: kbp.circular_mean(BELIEF, 0.0), "period: must be finite and > 0"),
        "period of an arc": (lambda: kbp.circular_interval(BELIEF, 0.9, -1.0), "period: must be finite and > 0"),
        "coverage of an arc": (lambda: kbp.circular_interval(BELIEF, 1.5), "coverage: must be"),
        "arc of vectors": (lambda: kbp.circular_interval(PLANE), "belief: must have scalar points"),
        "coverage of a set": (lambda: kbp.highest_density(BELIEF, -0.1), "coverage: must be"),
        "vectors": (lambda: kbp.interval(PLANE), "belief: must have scalar points.*Use kbpjax.marginal"),
        "missing type": (lambda: kbp.log_density({0: BELIEF}, {1: POINTS[:4]}), "log_density: must have arguments of"),
    }
    assert not_refused(calls) == ""


def test_coverage_is_the_share_of_true_values_inside():
    truth = np.array([0.3, -1.0, np.nan, POINTS[0]])
    levels = (0.0, 0.3, 0.9, 1.0)
    counted = []
    for level in levels:
        low, high = (np.asarray(end) for end in kbp.interval(BELIEF, level))
        counted.append(sum(a <= x <= b for a, x, b in zip(low, truth, high, strict=True)) / 3)
    assert 0 < counted[1] < counted[2]
    np.testing.assert_allclose(kbp.coverage(BELIEF, truth, levels), counted, rtol=1e-12)
    column = kbp.Belief(BELIEF.points[:, None], BELIEF.weights)
    np.testing.assert_allclose(jax.jit(kbp.coverage)(column, truth[:, None], jnp.array(levels)), counted, rtol=1e-12)
    same(kbp.coverage({0: BELIEF, 3: LETTERS}, {0: truth, 3: [4, 9]})[3], kbp.coverage(LETTERS, [4, 9]))
    assert np.isnan(kbp.coverage(BELIEF, np.full(4, np.nan))).all()


def test_coverage_refuses_other_levels_and_values():
    calls = {
        "level": (lambda: kbp.coverage(BELIEF, np.zeros(4), [0.5, 1.5]), "levels: must be finite and >= 0 and <= 1"),
        "one": (lambda: kbp.coverage(BELIEF, np.zeros(4), 0.5), r"levels: must have shape \[level\]; got shape \(\)"),
        "truth": (lambda: kbp.coverage(BELIEF, np.zeros(3)), r"truth: must have shape \(4,\); got \(3,\)"),
        "vectors": (lambda: kbp.coverage(PLANE, np.zeros((3, 2))), "belief: must have scalar points"),
    }
    assert not not_refused(calls)


def own_points(dim=(), nodes=4, count=7, lengths=None, seed=1):
    """Beliefs on scaled and shifted copies of common points, two of which are equal in each coordinate."""
    rng = np.random.default_rng(seed)
    z, center, scale = (
        rng.normal(size=(count, *dim)),
        rng.normal(size=(nodes, *dim)),
        rng.uniform(0.2, 3, (nodes, *dim)),
    )
    z[4] = z[1]
    size = {"common": (count,), "own": (nodes, count)}.get(lengths)
    drawn = None if size is None else jnp.asarray(rng.uniform(0.5, 1.5, size))
    points, weights = center[:, None] + scale[:, None] * z[None], rng.dirichlet(np.ones(count), nodes)
    return kbp.Belief(jnp.asarray(points), jnp.asarray(weights), drawn, own_points=True)


def alone(belief, node):
    """The belief of one node of own points, on common points."""
    lengths = belief.lengths if belief.lengths is None or belief.lengths.ndim == 1 else belief.lengths[node]
    return kbp.Belief(belief.points[node], belief.weights[node : node + 1], lengths)


def close(got, expected):
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13), got, expected)


def equal_rows(got, summary, belief):
    """Check a summary of own points against that of each node by itself."""
    for node in range(len(belief)):
        expected = summary(alone(belief, node))
        if isinstance(got, kbp.Belief):
            row = got[node]
            assert got.own_points and not expected.own_points
            np.testing.assert_array_equal(row.points[0], expected.points)
            close((row.weights, row.heights), (expected.weights, expected.heights))
        else:
            close(jax.tree.map(lambda x, node=node: x[node : node + 1], got), expected)


SCALAR_ONLY = ("quantile", "interval", "circular interval")


@pytest.mark.parametrize(
    "dim, lengths",
    [
        ((), None),
        ((), "own"),
        ((2,), None),
        *(pytest.param(*of, marks=pytest.mark.slow) for of in (((), "common"), ((1,), "own"))),
    ],
)
def test_summaries_on_own_points_are_those_of_each_node(dim, lengths):
    belief = own_points(dim, lengths=lengths)
    assert belief.dim == dim and belief.num_points == 7 and len(belief) == 4
    of_dim = {"median": lambda b: kbp.quantile(b, 0.5)} if dim != (2,) else {"covariance": kbp.covariance}
    for name, summary in (SUMMARIES | of_dim).items():
        if dim == (2,) and name in SCALAR_ONLY:
            continue
        equal_rows(summary(belief), summary, belief)
    equal_rows(belief.heights, lambda one: one.heights, belief)


@pytest.mark.parametrize("column", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_values_of_each_node_are_read_on_its_own_points(column):
    belief = own_points((1,) if column else (), lengths="own")
    truth = np.asarray(belief.points).reshape(4, 7).mean(axis=1) + np.array([0.1, -0.2, 0.0, 90.0])
    each = [kbp.log_density(alone(belief, s), truth[s : s + 1])[0] for s in range(4)]
    np.testing.assert_allclose(kbp.log_density(belief, truth), each, rtol=1e-10)
    assert np.isneginf(each[3])
    plain = kbp.Belief(belief.points, belief.weights, own_points=True)
    each = [kbp.log_density(alone(plain, s), truth[s : s + 1])[0] for s in range(4)]
    np.testing.assert_allclose(kbp.log_density(plain, truth), each, rtol=1e-10)
    truth = truth[:, None] if column else truth
    shares = [kbp.coverage(alone(belief, s), truth[s : s + 1], [0.2, 0.9]) for s in range(4)]
    np.testing.assert_allclose(kbp.coverage(belief, truth, [0.2, 0.9]), np.mean(shares, axis=0), rtol=1e-12)


@pytest.mark.parametrize("dim", [(), (2,)])
def test_samples_on_own_points_are_the_candidates_drawn(dim):
    belief = own_points(dim)
    places = np.asarray(kbp.sample(kbp.Belief(jnp.arange(7), belief.weights), KEY, 20))
    expected = np.stack([np.asarray(belief.points)[node, places[:, node]] for node in range(4)], axis=1)
    np.testing.assert_array_equal(kbp.sample(belief, KEY, 20), expected)


def test_summaries_on_own_points_under_jit_and_vmap():
    batch = [own_points(lengths="own", seed=seed) for seed in (1, 2)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batch)
    assert together.dim == () and together.num_points == 7 and len(together) == 4
    summaries = {name: summary for name, summary in SUMMARIES.items() if name != "marginal"}
    all_of = lambda belief: {name: summary(belief) for name, summary in summaries.items()}
    got = jax.jit(jax.vmap(all_of))(together)
    for case, belief in enumerate(batch):
        for name, summary in summaries.items():
            close(jax.tree.map(lambda x, case=case: x[case], got[name]), summary(belief))
    vectors = own_points((2,))
    traced = jax.jit(lambda weights: kbp.marginal(kbp.Belief(vectors.points, weights, own_points=True), 1))
    equal_rows(traced(vectors.weights), lambda one: kbp.marginal(one, 1), vectors)


def test_own_points_as_copies_of_common_ones_change_nothing():
    points = jnp.stack([BELIEF.points] * 4)
    copies = kbp.Belief(points, BELIEF.weights, own_points=True)
    for summary in SUMMARIES.values():
        got, expected = summary(copies), summary(BELIEF)
        beliefs = isinstance(got, kbp.Belief)
        close(*((got.weights, expected.weights) if beliefs else (got, expected)))
    codes = kbp.Belief(jnp.stack([jnp.arange(9)] * 2), LETTERS.weights, own_points=True)
    for summary in (kbp.mode, lambda b: kbp.quantile(b, 0.4)):
        got = summary(codes)
        assert got.dtype == codes.points.dtype
        same(got, summary(LETTERS))


def test_nodes_of_a_belief_on_own_points():
    for lengths in (None, "common", "own"):
        belief = own_points(lengths=lengths)
        mask = np.array([True, False, True, False])
        for nodes, rows in ((2, [2]), ([1, -1], [1, 3]), (slice(1, 3), [1, 2]), (mask, [0, 2]), ([], [])):
            some = belief[nodes]
            assert some.own_points and len(some) == len(rows)
            np.testing.assert_array_equal(some.points, np.asarray(belief.points)[np.array(rows, int)])
            np.testing.assert_allclose(some.heights, np.asarray(belief.heights)[np.array(rows, int)], rtol=1e-14)
        np.testing.assert_allclose(jnp.stack([kbp.mean(one)[0] for one in belief]), kbp.mean(belief), rtol=1e-12)


def test_marginals_of_own_points_are_merged_where_rounding_hides_differences():
    z = np.array([[2.0, 1.0], [2.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]], np.float32)
    points = np.stack([1e6 + 1e-3 * z, z, 0 * z])  # the values of the first node are equal by rounding
    belief = kbp.Belief(
        jnp.asarray(points), jnp.tile(jnp.array([0.1, 0.2, 0.3, 0.4], jnp.float32), (3, 1)), own_points=True
    )
    got = kbp.marginal(belief)
    np.testing.assert_allclose(got.weights, np.tile([0.7, 0.3], (3, 1)), rtol=1e-6)
    np.testing.assert_allclose(got.points, [[1e6, 1e6], [-1, 2], [0, 0]])


def test_text_of_a_belief_on_own_points():
    points = jnp.array([[-1.0, 0.5], [0.0, 0.0], [0.0, 1.0]])
    belief = kbp.Belief(points, jnp.full((3, 2), 0.5), own_points=True)
    assert repr(belief) == "Belief(3 nodes on 2 own points each from -1 to 1)"
    vectors = kbp.Belief(points[..., None], belief.weights, own_points=True)
    assert repr(vectors) == "Belief(3 nodes on 2 own points each of shape (1,) from [-1] to [1])"


def test_own_points_of_wrong_shapes_are_refused():
    points, weights, ones = jnp.zeros((4, 7)), jnp.full((4, 7), 1 / 7), jnp.ones(7)
    build = lambda *args, **options: lambda: kbp.Belief(*args, own_points=True, **options)
    reversed_points = jnp.stack([jnp.arange(7.0), -jnp.arange(7.0)])
    calls = {
        "common": (build(ones, weights), r"points: must have shape \[4, 7, \*dim\] with own_points; got shape \(7,\)"),
        "nodes": (build(points[:3], weights), r"points: must have shape \[4, 7, \*dim\]"),
        "count": (build(points, weights[:, :5]), r"points: must have shape \[4, 5, \*dim\]"),
        "lengths": (build(points, weights, jnp.ones((3, 7))), r"lengths: must have shape \(7,\) or \(4, 7\)"),
        "labels": (build(points.astype(int), weights, labels=("a",)), "labels: must be None with own_points; got 1"),
        "common lengths": (lambda: kbp.Belief(ones, weights, points), r"lengths: must have shape \(7,\); got shape"),
        "weights": (lambda: kbp.Belief(ones, weights[:, :5]), r"weights: must have shape \[node, 7\]; got shape"),
        "order": (
            lambda: kbp.marginal(kbp.Belief(reversed_points, weights[:2], own_points=True)),
            r"belief: must have points in the same order for all nodes; got another order for nodes \[1\]",
        ),
        "scalar": (lambda: kbp.interval(own_points((2,))), "belief: must have scalar points; got points of shape"),
    }
    assert not_refused(calls) == ""
