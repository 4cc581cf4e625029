"""Landmarks that are held while kernels move, and ridges of their own for edge types and observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import RandomFourier, RandomlyPivotedCholesky, incomplete_cholesky

# Two node types, of numbers and of pairs of numbers, three edge types.
KINDS = np.array([0, 0, 1, 1])
GRAPH = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4, edge_type=[0, 1, 2], node_type=KINDS)
KERNELS = {"kernel": {0: kbp.RBF(1.0), 1: kbp.RBF(1.4)}, "obs_kernel": {0: kbp.RBF(0.8), 1: kbp.RBF(1.1)}}
OTHER = {"kernel": {0: kbp.RBF(0.3), 1: kbp.RBF(0.4)}, "obs_kernel": {0: kbp.RBF(1.2), 1: kbp.RBF(0.9)}}


def draw():
    """Draw 20 samples of a chain of four variables."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 1)) + 0.5 * rng.normal(size=(20, 4))
    z = np.stack([x, x**2 + 0.2 * rng.normal(size=x.shape)], axis=-1)
    pairs = {0: (x[:, 0], x[:, 1]), 1: (x[:, 1], z[:, 2]), 2: (z[:, 2], z[:, 3])}
    nodes = {0: x[:, :2].T.reshape(-1), 1: z[:, 2:].transpose(1, 0, 2).reshape(-1, 2)}
    rows = np.arange(20)
    places = {0: (rows, 20 + rows), 1: (20 + rows, rows), 2: (rows, 20 + rows)}
    seen = {v: (n, (n if v == 0 else n[:, 0]) + 0.3 * rng.normal(size=40)) for v, n in nodes.items()}
    return kbp.TrainingData(pairs, nodes, seen, ends={0: (0, 0), 1: (0, 1), 2: (1, 1)}, rows=places)


DATA = draw()
RULES = {
    "constant": kbp.ConstantTime(eps=1e-2, max_rank=6, tensor_eps=0.05, tensor_rank=4),
    "linear": kbp.LinearTime(eps=1e-2, max_rank=6, features=RandomlyPivotedCholesky(3)),
    "fourier": kbp.ConstantTime(eps=1e-2, max_rank=6, features=RandomFourier(6, 2)),
}


def fit(rule, kernels=KERNELS, data=DATA, **options):
    return kbp.fit(data, rule=rule, **{"ridge": 1e-3, "floor": 1e-3} | kernels | options)


def same(one, other, **tolerance):
    """Compare models but for the residuals, which a held rule does not know."""
    for field in ("points", "operators", "observations", "marginals", "moments", "ridges", "bases"):
        left, right = (getattr(model, field) for model in (one, other))
        if field == "observations":
            left, right = ({v: (o.basis, o.expectation, o.ratio) for v, o in side.items()} for side in (left, right))
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
            np.testing.assert_allclose(a, b, err_msg=field, **tolerance)


# --- holding landmarks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", ["constant", *(pytest.param(x, marks=pytest.mark.slow) for x in RULES if x != "constant")]
)
def test_at_the_same_kernels_the_held_rule_gives_the_plain_model(rule):
    held = kbp.fix_landmarks(DATA, rule=RULES[rule], **KERNELS)
    same(fit(held), fit(RULES[rule]), rtol=0, atol=0)


def test_full_rank_has_nothing_to_hold():
    rule = kbp.FullRank()
    assert kbp.fix_landmarks(DATA, rule=rule, **KERNELS) is rule


def test_a_held_rule_holds_itself():
    held = kbp.fix_landmarks(DATA, rule=RULES["linear"], **KERNELS)
    assert kbp.fix_landmarks(DATA, rule=held, **OTHER) is held


def test_held_landmarks_stay_where_chosen_ones_move():
    plain, held = RULES["constant"], kbp.fix_landmarks(DATA, rule=RULES["constant"], **KERNELS)
    here, there, chosen = fit(plain), fit(held, OTHER), fit(plain, OTHER)
    for v in (0, 1):
        moved, stayed = (set(map(str, m.bases[v].landmarks.tolist())) for m in (chosen, here))
        assert moved != stayed
        for of in (lambda m, v=v: m.bases[v].landmarks, lambda m, v=v: m.points[v]):
            np.testing.assert_array_equal(of(there), of(here))
        np.testing.assert_array_equal(there.observations[v].basis.landmarks, here.observations[v].basis.landmarks)
        assert there.bases[v].kernel.bandwidth == OTHER["kernel"][v].bandwidth
        assert np.all(np.isnan(there.residuals[v]))


@pytest.fixture(scope="module")
def padded():
    """Landmarks with room that is not needed: eps ends the choice before max_rank."""
    rule = kbp.ConstantTime(eps=0.3, max_rank=14)
    return rule, kbp.fix_landmarks(DATA, rule=rule, pad=True, **KERNELS)


@pytest.mark.parametrize("name", RULES)
def test_landmarks_are_not_chosen_inside_transformations(name):
    """Nor silently padded to `max_rank`, at many times the work."""
    text = (
        "^rule: must have fixed landmarks inside jax.jit, vmap or grad; got .*. Select them outside: rule=kbpjax.fix_"
    )

    def of_bandwidth(bandwidth):
        moved = {"kernel": {0: kbp.RBF(bandwidth), 1: kbp.RBF(1.4)}, "obs_kernel": KERNELS["obs_kernel"]}
        return jnp.sum(fit(RULES[name], moved).marginals[0])

    def of_data(data):
        return fit(RULES[name], data=data).marginals

    calls = (
        lambda: jax.jit(of_bandwidth)(1.0),
        lambda: jax.grad(of_bandwidth)(1.0),
        lambda: jax.vmap(of_bandwidth)(jnp.ones(2)),
        lambda: jax.jit(of_data)(DATA),
        lambda: jax.vmap(of_data, axis_size=2)(jax.tree.map(lambda a: jnp.stack([a, a]), DATA)),
        lambda: jax.jit(lambda data: kbp.fix_landmarks(data, rule=RULES[name], **KERNELS))(DATA),
    )
    for call in calls:
        with pytest.raises(ValueError, match=text):
            call()


def test_what_needs_no_landmarks_is_fitted_inside_transformations():
    x = np.random.default_rng(2).normal(size=(12, 3))
    data, random = kbp.pool(kbp.chain_graph(3), x), kbp.LinearTime(features=RandomFourier(6, 2))
    for rule in (random, kbp.FullRank()):
        learn = lambda data, rule=rule: kbp.fit(data, kernel=kbp.RBF(0.5), rule=rule, ridge=1e-2).operators
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), jax.jit(learn)(data), learn(data)
        )


@pytest.mark.slow
def test_held_padded_equals_held_as_they_are(padded):
    rule, inside = padded
    outside = kbp.fix_landmarks(DATA, rule=rule, **KERNELS)
    for v, (landmarks, used) in inside.messages.items():
        rank = len(outside.messages[v][0])
        assert rank < len(landmarks) == 14
        assert used.tolist() == [True] * rank + [False] * (14 - rank)
        np.testing.assert_array_equal(landmarks[:rank], outside.messages[v][0])
    y, points = {0: np.array([0.5, -0.3]), 1: np.array([0.1, 0.9])}, {0: np.linspace(-2, 2, 5), 1: np.eye(2)}

    @jax.jit
    def answer(held):
        model = fit(held, OTHER)
        evidence = kbp.observe(model, GRAPH, y)
        return kbp.beliefs(model, GRAPH, evidence, kbp.run(model, GRAPH, evidence, num_iters=4), points)

    one, other = answer(inside), answer(outside)
    for v in (0, 1):
        np.testing.assert_allclose(one[v].weights, other[v].weights, atol=1e-9)


def test_a_held_rule_serves_other_data_of_the_same_types():
    """The landmarks are data of the rule: other pairs are learned from with the landmarks of the first."""
    held = kbp.fix_landmarks(DATA, rule=RULES["constant"], **KERNELS)
    edges = {k: (np.asarray(a)[::-1], np.asarray(b)) for k, (a, b) in DATA.edges.items()}
    data = kbp.TrainingData(edges, DATA.nodes, DATA.observations, ends={0: (0, 0), 1: (0, 1), 2: (1, 1)})
    here, there = fit(held), fit(held, data=data)
    np.testing.assert_array_equal(here.points[1], there.points[1])
    assert np.abs(here.operators.project - there.operators.project).max() > 1e-3


# One node type, for a loss as a function of one bandwidth.
CHAIN = kbp.chain_graph(4)
RULE = kbp.ConstantTime(eps=1e-2, max_rank=5)


def chain_data():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(16, 1)) + 0.5 * rng.normal(size=(16, 4))
    return kbp.pool(CHAIN, x, x + 0.4 * rng.normal(size=x.shape))


def chosen(data, bandwidth):
    return incomplete_cholesky(kbp.RBF(bandwidth), data.nodes[0], 1e-2, 5).indices.tolist()


def crossing(data, low=0.6, high=1.6):
    """Bisect to a bandwidth at which the choice of landmarks changes."""
    first = chosen(data, low)
    assert first != chosen(data, high)
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if chosen(data, middle) == first else (low, middle)
    return middle


@pytest.mark.slow
def test_with_held_landmarks_the_loss_is_smooth_where_the_choice_would_change():
    data = chain_data()
    at = crossing(data)

    def loss(bandwidth, rule):
        model = kbp.fit(data, kernel=kbp.RBF(bandwidth), obs_kernel=kbp.RBF(0.7), rule=rule, ridge=1e-2)
        evidence = kbp.observe(model, CHAIN, np.array([0.6, -0.4, 0.1, 1.0]))
        solution = kbp.run(model, CHAIN, evidence, num_iters=3)
        return jnp.sum(kbp.mean(kbp.beliefs(model, CHAIN, evidence, solution, np.linspace(-2, 2, 7))) ** 2)

    held = kbp.fix_landmarks(data, kernel=kbp.RBF(at), obs_kernel=kbp.RBF(0.7), rule=RULE)
    both = jax.jit(jax.value_and_grad(loss))
    h = 1e-3 * at
    assert chosen(data, at - h) != chosen(data, at + h)
    slopes = [(both(at + s, held)[0] - both(at - s, held)[0]) / (2 * s) for s in (h, 2 * h)]
    np.testing.assert_allclose(both(at, held)[1], (4 * slopes[0] - slopes[1]) / 3, rtol=1e-5)
    assert abs(slopes[0]) > 1e-2


def test_hold_names_what_is_missing():
    with pytest.raises(ValueError, match="^kernel: must be a kernel, or one kernel per node type"):
        kbp.fix_landmarks(DATA, kernel={0: kbp.RBF(1.0)})
    with pytest.raises(ValueError, match="^obs_kernel: must be a kernel"):
        kbp.fix_landmarks(DATA, kernel=KERNELS["kernel"])


# --- ridges -----------------------------------------------------------------------------------------------------------

RIDGES = {0: 1e-2, 1: 0.1, 2: 1.0}


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(RULES["constant"], id="constant"),
        pytest.param(RULES["linear"], id="linear", marks=pytest.mark.slow),
        pytest.param(kbp.FullRank(), id="full", marks=pytest.mark.slow),
    ],
)
def test_each_edge_type_has_the_operators_of_its_own_ridge(rule):
    mixed = fit(rule, ridge=RIDGES, obs_ridge=0.3)
    for k, ridge in RIDGES.items():
        single = fit(rule, ridge=ridge)
        np.testing.assert_array_equal(mixed.operators.project[2 * k : 2 * k + 2], single.operators.project[2 * k :][:2])
        other = (k + 1) % 3
        assert np.abs(mixed.operators.project[2 * other] - single.operators.project[2 * other]).max() > 1e-4


def test_the_observations_have_a_ridge_of_their_own():
    mixed, single, plain = (
        fit(RULES["constant"], obs_ridge=0.3),
        fit(RULES["constant"], ridge=0.3),
        fit(RULES["constant"]),
    )
    np.testing.assert_array_equal(mixed.operators.project, plain.operators.project)
    for v in (0, 1):
        for form in ("expectation", "ratio"):
            a, b, c = (getattr(model.observations[v], form) for model in (mixed, single, plain))
            np.testing.assert_array_equal(a, b)
            assert np.abs(a - c).max() > 1e-3


def test_each_node_type_has_the_observations_of_its_own_ridge():
    mixed = fit(RULES["constant"], obs_ridge={0: 0.3, 1: 0.05})
    for v, ridge in ((0, 0.3), (1, 0.05)):
        single = fit(RULES["constant"], obs_ridge=ridge)
        np.testing.assert_array_equal(mixed.observations[v].expectation, single.observations[v].expectation)
        np.testing.assert_array_equal(mixed.observations[v].ratio, single.observations[v].ratio)
        assert mixed.ridges[v] == ridge


def test_a_clamp_at_a_density_ratio_takes_the_ridge_of_observations():
    mixed, single = fit(RULES["constant"], ridge=RIDGES, obs_ridge=0.3), fit(RULES["constant"], ridge=0.3)
    plain = fit(RULES["constant"])
    a, b, c = (
        kbp.clamp(m, GRAPH, [1], [0.4], evidence_model=kbp.DensityRatio()).local[1] for m in (mixed, single, plain)
    )
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 1e-3


def test_gradients_with_respect_to_every_ridge_equal_differences():
    held = kbp.fix_landmarks(DATA, rule=RULES["constant"], **KERNELS)

    @jax.jit
    def both(logs):
        def loss(logs):
            ridges, obs = (jax.tree.map(jnp.exp, part) for part in logs)
            model = fit(held, ridge=ridges, obs_ridge=obs)
            learned = [model.operators.project, *(o.expectation for o in model.observations.values())]
            return sum(jnp.sum(jnp.sin(a)) for a in learned)

        return jax.value_and_grad(loss)(logs)

    at = ({k: np.log(r) for k, r in RIDGES.items()}, {0: np.log(0.3), 1: np.log(0.05)})
    slopes = both(at)[1]
    for part, side in enumerate(at):
        for k in side:

            def moved(step, part=part, k=k):
                return tuple({j: r + step * (i == part and j == k) for j, r in s.items()} for i, s in enumerate(at))

            near, far = ((both(moved(h))[0] - both(moved(-h))[0]) / (2 * h) for h in (1e-3, 2e-3))
            np.testing.assert_allclose(slopes[part][k], (4 * near - far) / 3, rtol=1e-6)
            assert abs(slopes[part][k]) > 1e-3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"ridge": {0: 1e-3, 1: 1e-3}, "obs_ridge": 1e-3},
            r"ridge: must be one number, or one number per edge type .*none for \[2\]",
        ),
        ({"obs_ridge": {1: 1e-3}}, r"obs_ridge: must be one number, or one number per node type .*none for \[0\]"),
        ({"ridge": RIDGES | {1: -1e-3}, "obs_ridge": 1e-3}, r"ridge\[1\]: must be finite and >= 0"),
        ({"ridge": -1.0}, "ridge: must be finite and >= 0"),
        ({"obs_ridge": -1.0}, "obs_ridge: must be finite and >= 0"),
        ({"obs_ridge": {0: np.nan, 1: 1.0}}, r"obs_ridge\[0\]: must be finite and >= 0"),
    ],
)
def test_fit_names_the_ridge_that_is_wrong(options, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        fit(RULES["constant"], **options)


def test_without_edges_a_mapping_of_ridges_may_be_empty():
    x = np.linspace(-1, 1, 8)
    data = kbp.TrainingData({}, {0: x}, {0: (x, x)})
    options = {"kernel": kbp.RBF(0.7), "obs_kernel": kbp.RBF(0.7), "rule": kbp.FullRank()}
    empty, single = kbp.fit(data, ridge={}, obs_ridge=1e-2, **options), kbp.fit(data, ridge=1e-2, **options)
    np.testing.assert_array_equal(empty.observations[0].expectation, single.observations[0].expectation)


def test_landmarks_of_other_types_and_of_observations_are_not_made_up():
    x = np.linspace(-1, 1, 30).reshape(10, 3)
    two = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, edge_type=[0, 1], node_type=[0, 0, 1])
    one = kbp.pool(kbp.chain_graph(3), x)
    held = kbp.fix_landmarks(one, kernel=kbp.RBF(0.5))
    with pytest.raises(ValueError, match=r"^rule: must have landmarks of node type 1"):
        kbp.fit(kbp.pool(two, x), kernel=kbp.RBF(0.5), rule=held)
    with pytest.raises(ValueError, match=r"^rule: must have landmarks of node type 0"):
        kbp.fit(kbp.pool(kbp.chain_graph(3), x, x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5), rule=held)
