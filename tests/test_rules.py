"""The three update rules against eq. 12 written out, against each other, and what they refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import _checks
from kbpjax.features import Basis, FourierBasis, cholesky_basis, features
from kbpjax.learning import rules
from kbpjax.learning.embedding import error_bound, operator_error
from tests import reference
from tests.refusals import complaints

POINTS = np.linspace(-1.5, 1.5, 13)
OPTIONS = {"ridge": 1e-4, "floor": 1e-6}
MASK = [True, False, True, True]
Y = np.array([0.75, 0.0, -0.5, 1.0])
EDGES = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3)]
GRAPHS = {
    "loops": reference.Graph(EDGES, [0, 0, 0, 0], [0, 0, 0, 0, 0]),
    "types": reference.Graph(EDGES, [0, 1, 0, 0], [2, 2, 0, 0, 2]),
    "chain": reference.Graph([(0, 1), (1, 2)], [0, 0, 0], [0, 0]),
}
ITERATIONS = 6
BANDWIDTHS, OBS_BANDWIDTHS = {0: 0.7, 1: 1.0}, {0: 0.6, 1: 0.8}
FULL, TINY = kbp.FullRank(), {"eps": 1e-7, "max_rank": 200}
RULES = {"full": FULL, "linear": kbp.LinearTime(**TINY), "constant": kbp.ConstantTime(**TINY)}
NAMES = ["full", "linear", "constant"]
CONSTANT_FIRST = ["constant", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("full", "linear"))]


def draw(num_samples=10, seed=0):
    """Draw samples of four dependent variables that are neither symmetric nor exchangeable, and observations."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(num_samples, 1))
    x = np.tanh(common * np.array([1.0, -0.8, 0.6, 1.0]) + np.array([0.0, 0.4, -0.4, 0.2]))
    x = x + 0.35 * rng.normal(size=x.shape)
    return x, x + 0.25 * rng.normal(size=x.shape)


def rounded():
    """The same on a coarse lattice, so that most samples repeat."""
    x, y = draw()
    return np.round(2 * x) / 2, np.round(2 * y) / 2


def graph_of(twin):
    count = len(twin.node_type)
    return kbp.Graph.from_edges(twin.edges, count, edge_type=twin.edge_type, node_type=twin.node_type)


def by_hand(twin, x, y):
    """Give the training data without rows, so that where the samples of pairs stand among the nodes' is unknown."""
    edges, nodes, observed, degrees = reference.pool(twin, x, y)
    return kbp.TrainingData(edges, nodes, observed, ends=twin.ends(), degrees=degrees)


def fit(data, rule, scale=1.0, **options):
    options = {
        "kernel": {v: kbp.RBF(scale * BANDWIDTHS[v]) for v in data.nodes},
        "obs_kernel": {v: kbp.RBF(scale * OBS_BANDWIDTHS[v]) for v in data.observations},
    } | options
    return kbp.fit(data, rule=rule, **(OPTIONS | options))


@jax.jit
def infer(model, graph, y=None, points=POINTS, *, damping=0.0, form=kbp.Expectation()):
    """Return the messages as values at the points, of 2-norm 1 there, and the beliefs."""
    mask, y = np.resize(MASK, graph.num_nodes), Y[: graph.num_nodes] if y is None else y
    evidence = kbp.observe(model, graph, y, mask=mask, evidence_model=form)
    solution = kbp.run(model, graph, evidence, num_iters=ITERATIONS, damping=damping)
    messages = jnp.zeros((graph.num_edges, len(points)), solution.messages.dtype)
    for v, basis in model.bases.items():
        values = solution.messages[:, : basis.rank] @ features(basis, jnp.asarray(points)).T
        messages = jnp.where((graph.node_type[graph.receivers] == v)[:, None], values, messages)
    messages = messages / jnp.linalg.norm(messages, axis=1, keepdims=True)
    return messages, kbp.beliefs(model, graph, evidence, solution, jnp.asarray(points)).weights


fit_full_rank = functools.partial(jax.jit, static_argnames="scale")(fit)


def answers(data, graph, rule, *, y=None, points=POINTS, damping=0.0, form=kbp.Expectation(), scale=1.0):
    """Go from samples to messages, beliefs and residuals."""
    model = (fit_full_rank if rule is FULL else fit)(data, rule, scale)
    return *infer(model, graph, y, jnp.asarray(points), damping=damping, form=form), model.residuals


def assert_same(got, expected, tolerance, beliefs=None):
    np.testing.assert_allclose(got[0], expected[0], atol=tolerance, rtol=0)
    np.testing.assert_allclose(got[1], expected[1], atol=beliefs or tolerance, rtol=0)


@functools.cache
def twin_answers(name, damping=0.0, ratio=False, sampler=draw):
    """Return the same by eq. 12, in the order of the graph's directed edges."""
    twin = GRAPHS[name]
    graph, count = graph_of(twin), len(twin.node_type)
    full = reference.FullRank(
        twin,
        reference.pool(twin, *(a[:, :count] for a in sampler())),
        {v: reference.rbf(b) for v, b in BANDWIDTHS.items()},
        {v: reference.rbf(b) for v, b in OBS_BANDWIDTHS.items()},
        **OPTIONS,
    )
    evidence = full.observe(Y[:count], MASK[:count], ratio)
    messages = full.run(evidence, ITERATIONS, damping)
    pairs = zip(graph.senders.tolist(), graph.receivers.tolist())
    values = np.array([full.values(s, messages[t, s], POINTS) for t, s in pairs])
    weights = np.array([full.beliefs(evidence, messages, POINTS, node) for node in range(count)])
    return values / np.linalg.norm(values, axis=1, keepdims=True), weights


def pooled(name, sampler=draw, cast=np.asarray):
    graph = graph_of(GRAPHS[name])
    return kbp.pool(graph, *(cast(a[:, : graph.num_nodes]) for a in sampler())), graph


# --- eq. 12 -----------------------------------------------------------------------------------------------------------


@functools.cache
def eager():
    """The full-rank model of the graph with types, learned outside jit."""
    return fit(pooled("types")[0], FULL)


def test_full_rank_is_equation_12():
    expected = twin_answers("types")
    got = infer(eager(), graph_of(GRAPHS["types"]))
    assert_same(got, expected, 1e-6)
    assert np.abs(expected[0][0] - expected[0][1]).max() > 0.1 and np.ptp(expected[1]) > 0.15


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("chain", False),
        *(pytest.param(*of, marks=pytest.mark.slow) for of in (("types", False), ("loops", True))),
    ],
)
def test_full_rank_is_equation_12_on_any_graph_with_and_without_rows(name, rows):
    data, graph = pooled(name)
    data = data if rows else by_hand(GRAPHS[name], *(a[:, : graph.num_nodes] for a in draw()))
    assert (data.rows is not None) is rows
    for damping in (0.0, 0.3):
        assert_same(answers(data, graph, FULL, damping=damping), twin_answers(name, damping), 1e-6)


def test_full_rank_with_the_density_ratio_is_equation_12():
    # The regression on y is undone as well, and rounding shows more.
    got = infer(eager(), graph_of(GRAPHS["types"]), form=kbp.DensityRatio())
    assert_same(got, twin_answers("types", 0.0, True), 1e-5)
    assert np.abs(got[1] - twin_answers("types")[1]).max() > 1e-3


def test_every_sample_is_a_point_of_the_full_rank_rule():
    x, y = draw()
    _, nodes, _, _ = reference.pool(GRAPHS["types"], x, y)
    assert eager().ranks == {v: (len(x), len(x)) for v, x in nodes.items()}
    for v, x in nodes.items():
        np.testing.assert_array_equal(eager().points[v], x)
        assert eager().residuals[v] == (0, 0)
    # Without rows each end of each pair is a point of its own: type 0 has both ends of 2 edges and one of 3.
    given = by_hand(GRAPHS["types"], *draw())
    assert {v: len(given.points(v)) for v in nodes} == {0: 70, 1: 30}


# --- the three agree --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [draw, pytest.param(rounded, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", CONSTANT_FIRST)
def test_without_tolerance_all_rules_are_equation_12(rule, sampler):
    """Samples that repeat do not matter to eq. 12, whatever stands for them."""
    data, graph = pooled("types", sampler)
    if sampler is rounded:
        assert len(np.unique(rounded()[0])) < 10
    for damping in (0.0, 0.3):
        got = answers(data, graph, RULES[rule], damping=damping)
        assert all(float(residual) <= 1e-7 for both in got[2].values() for residual in both)
        assert_same(got, twin_answers("types", damping, sampler=sampler), 1e-5)


@pytest.mark.parametrize("rule", ["full", "constant", pytest.param("linear", marks=pytest.mark.slow)])
def test_constant_samples(rule):
    """One feature: every message is k(x, 0.4), and every belief a power of it."""
    data, graph = pooled("types", lambda: (np.full((10, 4), 0.4),) * 2)
    messages, weights, _ = answers(data, graph, RULES[rule])
    kernel = {v: np.exp(-((POINTS - 0.4) ** 2) / (2 * b**2)) for v, b in BANDWIDTHS.items()}
    for message, s in zip(messages, graph.receivers.tolist()):
        expected = kernel[GRAPHS["types"].node_type[s]]
        np.testing.assert_allclose(message, expected / np.linalg.norm(expected), atol=1e-6)
    for node, powers in enumerate((4, 4, 4, 5)):  # marginal, messages, observation
        expected = np.maximum(kernel[GRAPHS["types"].node_type[node]], OPTIONS["floor"]) ** powers
        np.testing.assert_allclose(weights[node], expected / np.sum(expected), atol=1e-6)


def test_linear_time_without_rows_is_equation_12():
    data, (_, graph) = by_hand(GRAPHS["chain"], *(a[:, :3] for a in draw())), pooled("chain")
    assert len(data.points(0)) == 40 and len(data.nodes[0]) == 30
    assert_same(answers(data, graph, RULES["linear"]), twin_answers("chain"), 1e-5)


# --- how far tolerances take them apart -------------------------------------------------------------------------------

EPSILONS = (0.3, 0.01)
RIDGE = 0.05


@functools.cache
def loose(rule, eps=None):
    """Return a model of a chain, whose products are of one message and an observation, with a larger ridge."""
    return fit(pooled("chain")[0], rule() if eps is None else rule(eps=eps), ridge=RIDGE)


def message_error(low, full, direction):
    """Return the largest RKHS norm of the difference of one update of a product of two messages of norm 1."""
    messages = np.random.default_rng(1).normal(size=(50, 2, low.bases[0].rank))
    messages /= np.linalg.norm(messages, axis=-1, keepdims=True)
    samples = np.asarray(full.bases[0].landmarks)
    weights = np.zeros((50, len(samples)))
    for model, sign in ((low, 1), (full, -1)):
        at = np.asarray(features(low.bases[0], model.points[0]))  # the same functions at this model's points
        project = np.asarray(model.operators.project[direction])
        own = np.prod(messages @ at.T, axis=1) @ project.T @ np.asarray(model.bases[0].transform).T
        place = [int(np.flatnonzero(samples == x)[0]) for x in np.asarray(model.bases[0].landmarks)]
        weights[:, place] += sign * own
    inner = reference.gram(reference.rbf(BANDWIDTHS[0]), samples, samples)
    return np.sqrt(max(np.einsum("ni,ij,nj->n", weights, inner, weights)))


compiled_error = jax.jit(operator_error)


@pytest.mark.parametrize("rule", [pytest.param(kbp.LinearTime, marks=pytest.mark.slow), kbp.ConstantTime])
def test_updates_and_beliefs_approach_full_rank_within_the_bound(rule):
    graph, kernel = graph_of(GRAPHS["chain"]), kbp.RBF(BANDWIDTHS[0])
    pairs = tuple(map(jnp.asarray, reference.pool(GRAPHS["chain"], draw()[0][:, :3])[0][0]))
    full = loose(kbp.FullRank)
    expected = infer(full, graph)[1]
    errors, differences = [], []
    for eps in EPSILONS:
        low = loose(rule, eps)
        reported = max(map(float, low.residuals[0]))
        assert 0 < reported <= eps
        products = cholesky_basis(kernel**2, low.points[0]) if rule is kbp.ConstantTime else None
        for direction in (0, 1):  # from x_first to x_second and back
            given, target = pairs[1 - direction], pairs[direction]
            operator = compiled_error(kernel, kernel**2, low.bases[0], products, given, target, RIDGE)
            error = message_error(low, full, direction)
            assert error <= operator * (1 + 1e-6) <= error_bound(reported, RIDGE)
        errors.append(error)
        differences.append(np.abs(infer(low, graph)[1] - expected).max())
    for falling in (errors, differences):
        assert falling[0] > 5 * falling[1] > 0
    assert errors[0] > 1e-2 and differences[1] < 1e-3


@pytest.mark.parametrize("rule", [kbp.LinearTime, kbp.ConstantTime])
def test_updates_equal_the_kernel_form(rule):
    model = loose(rule, EPSILONS[1])
    edges, nodes, _, degrees = reference.pool(GRAPHS["chain"], *(a[:, :3] for a in draw()))
    assert degrees == {0: 3}
    kernel, landmarks = reference.rbf(BANDWIDTHS[0]), np.asarray(model.bases[0].landmarks)
    at_points = np.asarray(features(model.bases[0], jnp.asarray(POINTS)))
    for back in (0, 1):
        x_sender, x_receiver = edges[0][back], edges[0][1 - back]
        # In linear time a product is known at the samples, where nothing stands for them.
        own, where = (
            (reference.power(kernel, 2), np.asarray(model.points[0]))
            if rule is kbp.ConstantTime
            else (reference.delta(), nodes[0])
        )
        matrix = reference.kernel_form_update(kernel, landmarks, own, where, x_receiver, x_sender, RIDGE)
        expected = reference.gram(kernel, POINTS, landmarks) @ matrix
        got = at_points @ np.asarray(model.operators.project[back])
        np.testing.assert_allclose(got, expected, atol=1e-7 * np.abs(expected).max())


# --- choices of features ----------------------------------------------------------------------------------------------


def bases(rule):
    """Fit to the samples of the chain, as if they had no edges, which does not matter to bases."""
    return fit(kbp.TrainingData({}, {0: draw()[0].ravel()}, degrees={0: 3}), rule)


def test_tensor_eps_is_the_tolerance_of_products_alone():
    x, kernel = draw()[0].ravel(), reference.rbf(BANDWIDTHS[0])
    chosen, messages = reference.incomplete_cholesky(kernel, x, 1e-2, 128)
    counts = []
    for tensor_eps in (None, 0.1, 0.4):
        model = bases(kbp.ConstantTime(eps=1e-2, tensor_eps=tensor_eps))
        landmarks, products = reference.incomplete_cholesky(reference.power(kernel, 2), x, tensor_eps or 1e-2, 128)
        assert model.ranks[0] == (len(chosen), len(landmarks))
        np.testing.assert_array_equal(model.points[0], x[landmarks])
        np.testing.assert_allclose(model.residuals[0], (messages, products), rtol=1e-6)
        counts.append(len(landmarks))
    assert counts[0] > counts[1] > counts[2]


def test_linear_time_reports_the_residual_of_messages_and_none_of_products():
    x = draw()[0].ravel()
    model = bases(kbp.LinearTime(eps=0.1))
    chosen, left = reference.incomplete_cholesky(reference.rbf(BANDWIDTHS[0]), x, 0.1, 128)
    assert model.ranks[0] == (len(chosen), len(x))
    np.testing.assert_allclose(model.residuals[0], (left, 0), rtol=1e-6)


def test_random_pivots_are_those_of_their_seed():
    seeds = [bases(kbp.ConstantTime(eps=0.05, features=kbp.RandomlyPivotedCholesky(seed))) for seed in (3, 3, 4)]
    first, again, other = (model.bases[0].landmarks.tolist() for model in seeds)
    assert first == again != other
    greedy = bases(kbp.ConstantTime(eps=0.05))
    assert first != greedy.bases[0].landmarks.tolist()
    assert all(float(residual) <= 0.05 for both in seeds[0].residuals.values() for residual in both)


@pytest.mark.parametrize("rule", [pytest.param(kbp.LinearTime, marks=pytest.mark.slow), kbp.ConstantTime])
def test_random_pivots_to_a_small_eps_give_the_same_answers(rule):
    data, graph = pooled("chain")
    got = answers(data, graph, rule(eps=1e-6, max_rank=200, features=kbp.RandomlyPivotedCholesky(seed=3)))
    assert_same(got, twin_answers("chain"), 1e-4)


@pytest.mark.parametrize("rule", [kbp.LinearTime, kbp.ConstantTime])
@pytest.mark.slow
def test_random_fourier_features_come_near_to_full_rank(rule):
    graph = graph_of(GRAPHS["chain"])
    model = fit(pooled("chain")[0], rule(eps=1e-3, features=kbp.RandomFourier(1000, seed=2)), ridge=RIDGE)
    basis = model.bases[0]
    assert isinstance(basis, FourierBasis) and not hasattr(basis, "landmarks") and basis.rank == 1000
    assert isinstance(model.observations[0].basis, Basis)
    assert len(model.points[0]) == 30 if rule is kbp.LinearTime else len(model.points[0]) < 30
    assert 0 < float(model.residuals[0][0]) < 0.5  # the root of the kernel's error, about 1000^(-1/4)
    got, expected = (infer(m, graph)[1] @ POINTS for m in (model, loose(kbp.FullRank)))
    np.testing.assert_allclose(got, expected, atol=0.05)
    assert np.ptp(expected) > 0.1


# --- samples of many kinds --------------------------------------------------------------------------------------------


def lattice():
    return tuple(np.round(4 * a) / 4 for a in draw())


@pytest.mark.parametrize("rule", CONSTANT_FIRST)
def test_whole_numbers_and_vectors_as_samples(rule):
    """Integers, turned and stretched into the plane, where kernels have the same values."""

    def stretch(a):
        return np.stack([12 * a, 16 * a], axis=-1).round().astype(np.int32)  # of length 20 for each unit

    data, graph = pooled("chain", lattice, stretch)
    assert data.nodes[0].shape == (30, 2) and data.nodes[0].dtype == np.int32
    got = answers(data, graph, RULES[rule], y=stretch(Y[:3]), points=stretch(POINTS), scale=20.0)
    assert_same(got, twin_answers("chain", sampler=lattice), 1e-5)
    assert np.ptp(got[1]) > 0.1


SINGLE = {"full": FULL, "linear": kbp.LinearTime(eps=1e-3), "constant": kbp.ConstantTime(eps=1e-3)}


@pytest.mark.slow
@pytest.mark.parametrize("rule", NAMES)
def test_single_precision(rule):
    for sampler in (draw, rounded):
        data, graph = pooled("chain", sampler, np.float32)
        got = answers(data, graph, SINGLE[rule], y=Y[:3].astype(np.float32), points=POINTS.astype(np.float32))
        assert got[0].dtype == got[1].dtype == jnp.float32
        assert_same(got, twin_answers("chain", sampler=sampler), 0.05, 0.02)


@pytest.mark.parametrize("rule", NAMES)
def test_reported_residuals_keep_single_precision(rule):
    data, _ = pooled("chain", cast=np.float32)
    reported = SINGLE[rule].node_basis(kbp.RBF(0.7), 2, data, 0).residuals
    # Found: FullRank reports its zeros in the default precision, whatever that of the samples.
    assert {residual.dtype for residual in reported} == {np.dtype(np.float32)}


@pytest.mark.parametrize("rule", ["constant", pytest.param("full", marks=pytest.mark.slow)])
def test_a_node_type_of_one_sample_without_edges(rule):
    """It has the belief of its marginal and its observation, and does not disturb the others."""
    x, y = (a[:, :3] for a in draw())
    pairs, nodes, observed, _ = reference.pool(GRAPHS["chain"], x, y)
    graph = kbp.Graph.from_edges([(0, 1), (1, 2)], 4, node_type=[0, 0, 0, 1])
    lone = np.array([0.3])
    data = kbp.TrainingData(
        pairs, {**nodes, 1: lone}, {**observed, 1: (lone, lone)}, ends={0: (0, 0)}, degrees={0: 3, 1: 1}
    )
    got = answers(data, graph, RULES[rule])
    expected = np.maximum(np.exp(-((POINTS - 0.3) ** 2) / (2 * BANDWIDTHS[1] ** 2)), OPTIONS["floor"]) ** 2
    np.testing.assert_allclose(got[1][3], expected / expected.sum(), atol=1e-6)
    assert_same((got[0], got[1][:3]), twin_answers("chain"), 1e-5)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_rules_name_what_is_wrong():
    both = [
        ("eps", 0.0),
        ("eps", -1e-3),
        ("eps", float("nan")),
        ("eps", float("inf")),
        ("max_rank", 0),
        ("max_rank", -3),
        ("max_rank", True),
        ("max_rank", 2.5),
        ("features", "greedy"),
        ("features", kbp.PivotedCholesky),
        ("features", kbp.RBF(1.0)),
    ]
    wrong = []
    for name, value in both:
        for rule in (kbp.LinearTime, kbp.ConstantTime):
            wrong += complaints(f"{name}: must be", rule, **{name: value})
    for tensor_eps in (0.0, -1.0, float("nan"), float("inf")):
        wrong += complaints("tensor_eps: must be", kbp.ConstantTime, tensor_eps=tensor_eps)
    # A check of its own must not hide those that it shares with linear time.
    wrong += complaints("eps: must be", kbp.ConstantTime, eps=-1.0, tensor_eps=0.1)
    assert not wrong


def test_choosers_of_features_name_what_is_wrong():
    wrong = []
    for count in (0, 1, 3, -2, 999):
        wrong += complaints("num_features: must be an even integer >= 2", kbp.RandomFourier, count)
    wrong += complaints("seed: must be", kbp.RandomlyPivotedCholesky, seed=-1)
    wrong += complaints("seed: must be", kbp.RandomFourier, 10, seed=-1)
    assert not wrong


@pytest.mark.parametrize("rule", [kbp.LinearTime, kbp.ConstantTime])
@pytest.mark.parametrize(
    "kernel", [kbp.Linear(), kbp.Delta(), kbp.RBF(1.0) + kbp.Linear()], ids=["linear", "delta", "sum"]
)
def test_fourier_features_want_a_gaussian_kernel(rule, kernel):
    data = kbp.pool(kbp.chain_graph(3), draw()[0][:, :3])
    with pytest.raises(ValueError, match="^kernel: must be RBF or a power of it"):
        kbp.fit(data, kernel=kernel, rule=rule(features=kbp.RandomFourier(10)))


@pytest.mark.parametrize("rule", [1, "full", kbp.FullRank, kbp.PivotedCholesky()], ids=str)
def test_what_is_no_rule(rule):
    data = kbp.pool(kbp.chain_graph(3), draw()[0][:, :3])
    with pytest.raises(ValueError, match="^rule: must be a FullRank, a LinearTime"):
        kbp.fit(data, kernel=kbp.RBF(1.0), rule=rule)


def test_full_rank_refuses_what_would_not_fit_before_it_allocates(monkeypatch):
    x = np.random.default_rng(0).normal(size=100_000)
    data = kbp.TrainingData({0: (x, x[::-1])}, {0: x}, rows={0: (np.arange(100_000), np.arange(100_000)[::-1])})
    monkeypatch.setattr(rules, "cholesky_basis", lambda *_, **__: pytest.fail("began to allocate"))
    # One evaluate, two project, and the work of the factorization: 6 matrices of 8e10 bytes.
    with pytest.raises(
        ValueError, match=r"^rule: .* must fit in half of .* GiB memory; got 447 GiB for 100000 samples"
    ):
        kbp.fit(data, kernel=kbp.RBF(1.0), rule=FULL)
    with pytest.raises(ValueError, match=r"Use kbpjax\.ConstantTime"):
        kbp.fit(data, kernel=kbp.RBF(1.0), rule=FULL)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_linear_time_refuses_many_types_of_many_samples(dtype, monkeypatch):
    """(1 + 2 x 50) matrices of 1000 samples by rank 20, and the features of the samples."""
    x = np.random.default_rng(0).normal(size=1000).astype(dtype)
    rows = np.arange(1000)
    data = kbp.TrainingData(
        dict.fromkeys(range(50), (x, x[::-1])), {0: x}, rows=dict.fromkeys(range(50), (rows, rows[::-1]))
    )
    rule = kbp.LinearTime(eps=0.1, max_rank=20)
    need = 1000 * 20 * (1 + 100 + 1) * np.dtype(dtype).itemsize
    monkeypatch.setattr(_checks, "memory", lambda: 2 * need - 2)
    with pytest.raises(ValueError, match=r"^rule: matrices of LinearTime .* 1000 samples .* 100 directed edge types"):
        kbp.fit(data, kernel=kbp.RBF(1.0), rule=rule)
    monkeypatch.setattr(_checks, "memory", lambda: 2 * need)
    rule.check_memory(data)
    with pytest.raises(ValueError, match="^rule: matrices of LinearTime"):
        kbp.LinearTime(features=kbp.RandomFourier(22)).check_memory(data)
    with pytest.raises(ValueError, match="^rule: matrices of FullRank"):
        FULL.check_memory(data)
    kbp.ConstantTime().check_memory(data)
