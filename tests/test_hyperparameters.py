"""Hyperparameters: the same as the calls they stand for, and right gradients in all their numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp

GRAPH = kbp.Graph.from_edges([(0, 1), (1, 2), (0, 2)], 3, edge_type=[0, 1, 0])
POINTS = np.linspace(-2, 2, 9)
SEEN, TRUTH = np.array([0.6, -0.3, 0.7]), np.array([0.3, -0.4, 0.9])
SMALL = kbp.ConstantTime(eps=1e-2, max_rank=5)


def draw(repeated=False):
    """Draw 6 samples of three dependent variables; repeated: of few values, with which ranks cannot be filled."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 1)) + 0.6 * rng.normal(size=(6, 3))
    y = x + 0.4 * rng.normal(size=x.shape)
    return kbp.pool(GRAPH, *((np.sign(x), np.round(y)) if repeated else (x, y)))


def settings(rule=SMALL, **changed):
    numbers = {
        "ridge": {0: 2e-2, 1: 5e-3},
        "obs_ridge": 1e-2,
        "floor": 0.05,
        "damping": 0.3,
        "exponents": {0: 0.8, 1: 1.2},
        "evidence_power": 0.7,
        "temperature": 1.3,
        "schedule": kbp.Synchronous(),
        "num_iters": 3,
        "tol": None,
    }
    kernels = changed.pop("kernels", (0.9, 0.8))
    return kbp.Hyperparameters(*map(kbp.RBF, kernels), rule=rule, **numbers | changed)


# --- the calls they stand for -----------------------------------------------------------------------------------------


def test_an_answer_is_the_chain_of_calls():
    data, marginal, form = draw(), kbp.Empirical(), kbp.DensityRatio()
    given = settings(
        evidence_model=form, damping=0.1, num_iters=4, schedule=kbp.colored(GRAPH), nonnegative=kbp.Clipped()
    )
    got = jax.jit(lambda model: given.answer(model, GRAPH, SEEN, POINTS, marginal=marginal))(given.fit(data))
    ridges = {"ridge": {0: 2e-2, 1: 5e-3}, "obs_ridge": 1e-2, "floor": 0.05}
    kernels = {"kernel": kbp.RBF(0.9), "obs_kernel": kbp.RBF(0.8), "rule": SMALL, "nonnegative": kbp.Clipped()}
    model = kbp.fit(data, **ridges, **kernels)
    options = {"exponents": np.array([0.8, 1.2, 0.8]), "schedule": kbp.colored(GRAPH)}

    @jax.jit
    def calls(model):
        evidence = kbp.observe(model, GRAPH, SEEN, evidence_model=form) ** 0.7
        solution = kbp.run(model, GRAPH, evidence, num_iters=4, damping=0.1, **options)
        return kbp.temper(kbp.beliefs(model, GRAPH, evidence, solution, POINTS, marginal=marginal), 1.3)

    expected = calls(model)
    np.testing.assert_array_equal(got.points, expected.points)
    np.testing.assert_allclose(got.weights, expected.weights, atol=1e-12)


@pytest.mark.parametrize(
    "graph", [pytest.param(GRAPH, id="cycle"), pytest.param(kbp.chain_graph(3), id="chain", marks=pytest.mark.slow)]
)
def test_defaults_are_those_of_infer(graph):
    x = np.random.default_rng(0).normal(size=(20, 3))
    data, given = kbp.pool(graph, x, x + 0.4), kbp.Hyperparameters(kbp.RBF(0.9), kbp.RBF(0.8), ridge=1e-2, rule=SMALL)
    model = given.fit(data)
    expected = kbp.infer(model, graph, SEEN, points=POINTS)
    got = jax.jit(lambda model: given.answer(model, graph, SEEN, POINTS))(model)
    np.testing.assert_allclose(got.weights, expected.weights, atol=1e-12)
    assert bool(given.run(model, graph, None).converged)
    with pytest.raises(ValueError, match="^damping: must be None without a schedule; got a number. Leave it out"):
        dataclasses.replace(given, damping=0.3)


def test_without_a_schedule_a_traced_graph_is_refused():
    given = settings(damping=None, schedule=None)
    model = given.fit(draw())
    with pytest.raises(ValueError, match="^graph: must be known; got a traced graph"):
        jax.jit(lambda model, graph: given.answer(model, graph, SEEN, POINTS))(model, GRAPH)


@pytest.mark.parametrize(
    "schedule",
    [pytest.param(None, id="infer"), pytest.param(kbp.Synchronous(), id="synchronous", marks=pytest.mark.slow)],
)
def test_exponents_are_used_on_forests_too(schedule):
    graph = kbp.chain_graph(3)
    x = np.random.default_rng(0).normal(size=(20, 3))
    given = settings(damping=None, ridge=1e-2, schedule=schedule, exponents=0.5, num_iters=50, tol=1e-4)
    solution = given.run(given.fit(kbp.pool(graph, x, x)), graph, None)
    np.testing.assert_array_equal(solution.exponents, [0.5, 0.5])


def test_tolerance_and_iterations_are_passed_on():
    data, given = draw(), settings(tol=1e-6, num_iters=300)
    model = given.fit(data)
    solution = given.run(model, GRAPH, given.observe(model, GRAPH, SEEN))
    assert bool(solution.converged)
    assert 3 < int(solution.num_iters) < 300


def test_exponents_of_types_are_those_of_their_edges():
    graph = kbp.grid_graph(3, 2, edge_type=[0, 0, 0, 2, 2, 2, 2])
    model = kbp.Operators(jnp.eye(2)[None], jnp.tile(jnp.array([[0.8, 0.2], [0.3, 0.7]]), (6, 1, 1)))
    given = settings(exponents={2: 0.5, 0: 1.5, 7: 9.0})
    found = given._exponents(graph)
    np.testing.assert_array_equal(found, [1.5, 1.5, 1.5, 0.5, 0.5, 0.5, 0.5])
    solution = kbp.run(model, graph, exponents=found, num_iters=2)
    np.testing.assert_array_equal(solution.exponents, found)


@pytest.mark.parametrize("exponents", [0.7, np.array([0.7, 0.8, 0.9])], ids=["one", "pairs"])
def test_exponents_of_edges_are_passed_on_as_they_are(exponents):
    data, given = draw(), settings(exponents=exponents)
    solution = given.run(given.fit(data), GRAPH, None)
    np.testing.assert_array_equal(solution.exponents, np.broadcast_to(exponents, 3))


def test_an_edge_type_without_exponent_is_named():
    given = settings(exponents={0: 0.8})
    with pytest.raises(ValueError, match=r"^exponents: .* or one number per edge type.*none for \[1\]"):
        given.run(settings().fit(draw()), GRAPH, None)


def test_points_by_node_type_give_beliefs_by_node_type():
    graph = kbp.chain_graph(3, node_type=[0, 1, 0])
    x = np.random.default_rng(1).normal(size=(8, 3))
    data = kbp.pool(graph, x, x)
    given = kbp.Hyperparameters(
        {0: kbp.RBF(0.9), 1: kbp.RBF(0.7)}, kbp.RBF(0.8), temperature=2.0, rule=SMALL, num_iters=2
    )
    model = given.fit(data)
    seen, points = {0: SEEN[[0, 2]], 1: SEEN[[1]]}, {0: POINTS, 1: POINTS[:4]}
    by_type = jax.jit(lambda model: given.answer(model, graph, seen, points))(model)
    whole = np.asarray(jax.jit(lambda model: given.answer(model, graph, SEEN, POINTS))(model).weights)
    assert sorted(by_type) == [0, 1]
    np.testing.assert_allclose(by_type[0].weights, whole[[0, 2]], atol=1e-12)
    part = whole[1, :4] / np.sum(whole[1, :4])
    np.testing.assert_allclose(by_type[1].weights[0], part, atol=1e-12)


# --- a pytree of numbers ----------------------------------------------------------------------------------------------


def test_numbers_are_arrays_and_the_pytree_round_trips():
    given = settings(ridge={0: 1, 1: 2})
    leaves, tree = jax.tree.flatten(given)
    assert len(leaves) == 12
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == float for leaf in leaves)
    assert jax.tree.unflatten(tree, leaves) == given
    assert dataclasses.replace(given, num_iters=9).ridge[1] == 2
    assert kbp.Hyperparameters(kbp.RBF(1.0)).exponents is None


def test_settings_pass_through_jit_and_are_held():
    data, given = draw(), settings()
    model = given.fit(data)
    jitted = jax.jit(lambda s, m: s.answer(m, GRAPH, SEEN, POINTS))(given, model)
    np.testing.assert_allclose(jitted.weights, given.answer(model, GRAPH, SEEN, POINTS).weights, atol=1e-10)
    held = dataclasses.replace(given, rule=given.fix_landmarks(data))
    np.testing.assert_array_equal(held.fit(data).operators.project, model.operators.project)


# --- gradients --------------------------------------------------------------------------------------------------------

NAMES = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(settings(kbp.FullRank()))[0]]
RULES = {
    "full": kbp.FullRank(),
    "linear": kbp.LinearTime(eps=1e-6, max_rank=5),
    "constant": kbp.ConstantTime(eps=1e-6, max_rank=5),
}


def numbers(**changed):
    """Return all numbers, of bandwidths that keep the Gram matrix of all samples from being singular."""
    return jnp.stack(jax.tree.leaves(settings(kbp.FullRank(), kernels=(0.3, 0.6), **changed)))


def with_numbers(values, rule):
    tree = jax.tree.structure(settings(kbp.FullRank()))
    return dataclasses.replace(jax.tree.unflatten(tree, list(values)), rule=rule)


def loss(values, held, data):
    given = with_numbers(values, held)
    belief = given.answer(given.fit(data), GRAPH, SEEN, POINTS)
    return kbp.SquaredError()(belief, jnp.asarray(TRUTH)) + 0.3 * kbp.NegativeLogBelief()(belief, jnp.asarray(TRUTH))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name == "constant" else [pytest.mark.slow]) for name in RULES],
)
def of_rule(request):
    """Pad landmarks, so that their number is the same for all data, and compile the loss once."""
    rule = RULES[request.param]
    hold = lambda values, data: with_numbers(values, rule).fix_landmarks(data, pad=True)
    return hold, jax.jit(jax.value_and_grad(loss))


def test_gradients_in_all_numbers_equal_central_differences(of_rule):
    hold, both = of_rule
    data, at = draw(), numbers()
    held = hold(at, data)
    slopes = both(at, held, data)[1]
    assert len(NAMES) == len(at) == 12
    assert slopes[NAMES.index(".reweighting")] == 0  # a factor of exponents that are given here
    for i, name in enumerate(NAMES):
        if name == ".reweighting":
            continue

        def difference(share, i=i):
            step = share * at[i] * jnp.eye(len(at))[i]
            return (both(at + step, held, data)[0] - both(at - step, held, data)[0]) / (2 * share * at[i])

        # Two spacings, so that neither curvature nor rounding shows in the sixth digit.
        expected = (4 * difference(2e-4) - difference(4e-4)) / 3
        assert abs(expected) > 1e-4, f"the loss does not depend on {name} (a floor: does not bind): nothing is tested"
        np.testing.assert_allclose(slopes[i], expected, rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_gradients_at_the_fixed_point_equal_central_differences():
    start = settings(schedule=None, damping=None, tol=1e-11, num_iters=1000)
    leaves, tree = jax.tree_util.tree_flatten_with_path(start)
    data, at = draw(), jnp.stack([leaf for _, leaf in leaves])
    held = start.fix_landmarks(data, pad=True)

    @jax.jit
    @jax.value_and_grad
    def both(values):
        given = dataclasses.replace(jax.tree.unflatten(tree, list(values)), rule=held)
        belief = given.answer(given.fit(data), GRAPH, SEEN, POINTS)
        return kbp.SquaredError()(belief, jnp.asarray(TRUTH)) + 0.3 * kbp.NegativeLogBelief()(
            belief, jnp.asarray(TRUTH)
        )

    slopes, tested = both(at)[1], []
    for i, (path, _) in enumerate(leaves):
        step = 1e-4 * at[i] * jnp.eye(len(at))[i]
        expected = (both(at + step)[0] - both(at - step)[0]) / (2e-4 * at[i])
        np.testing.assert_allclose(slopes[i], expected, rtol=1e-4, atol=1e-7, err_msg=str(path))
        tested += [jax.tree_util.keystr(path)] if abs(expected) > 1e-4 else []
    untested = {jax.tree_util.keystr(path) for path, _ in leaves} - set(tested)
    assert len(leaves) == 11 and untested <= {".floor", ".reweighting"}  # the exponents are given


def test_gradients_are_right_without_damping(of_rule):
    hold, both = of_rule
    data, at = draw(), numbers(damping=0.0)
    held, place = hold(at, data), NAMES.index(".damping")
    value, slopes = both(at, held, data)
    assert np.all(np.isfinite(slopes))
    steps = [1e-4 * k * jnp.eye(len(at))[place] for k in (1, 2)]
    one, two = (both(at + step, held, data)[0] for step in steps)  # damping must not be negative
    np.testing.assert_allclose(slopes[place], (4 * one - two - 3 * value) / 2e-4, rtol=1e-4)


def test_gradients_are_finite_where_fewer_values_than_the_rank_leave_no_residual(of_rule):
    hold, both = of_rule
    data, at = draw(repeated=True), numbers()
    assert len(np.unique(np.asarray(data.nodes[0]))) == 2
    held = hold(at, data)
    value, slopes = both(at, held, data)
    assert np.all(np.isfinite(slopes))
    for name in (".kernel.bandwidth", ".ridge[0]", ".obs_kernel.bandwidth"):
        i = NAMES.index(name)
        steps = [share * at[i] * jnp.eye(len(at))[i] for share in (1e-4, -1e-4)]
        ahead, behind = (both(at + step, held, data)[0] for step in steps)
        np.testing.assert_allclose(slopes[i], (ahead - behind) / (2e-4 * at[i]), rtol=1e-4, err_msg=name)
    assert np.isfinite(value)


def test_gradients_are_finite_where_messages_lie_exactly_on_the_floor():
    """Variables that are always equal, told apart by `Delta`: values of messages are 0, and so is the floor."""
    x = np.repeat(np.array([[0], [1], [2], [1]]), 3, axis=1)
    data = kbp.pool(GRAPH, x, x)

    def of(floor, power, temperature, damping):
        given = kbp.Hyperparameters(
            kbp.Delta(), kbp.Delta(), ridge=0.0, floor=floor, evidence_power=power, temperature=temperature,
            damping=damping, rule=kbp.ConstantTime(eps=1e-6, max_rank=3), num_iters=2, tol=None, exponents=0.8,
            schedule=kbp.Synchronous(),
        )  # fmt: skip
        given = dataclasses.replace(given, rule=given.fix_landmarks(data))
        belief = given.answer(given.fit(data), GRAPH, np.array([1, 1, 1]), np.arange(3))
        return jnp.sum(belief.weights**2), belief.weights

    slopes, weights = jax.jit(jax.grad(of, (0, 1, 2, 3), has_aux=True))(0.0, 0.7, 1.2, 0.0)
    np.testing.assert_allclose(weights, np.tile([0, 1, 0], (3, 1)), atol=1e-12)
    assert np.all(np.isfinite(slopes))


@pytest.mark.parametrize(
    ("name", "value"),
    [("damping", 1.0), ("damping", -0.1), ("floor", 1.0), ("evidence_power", 0.0), ("temperature", -1)],
)
def test_numbers_out_of_range_are_refused_at_once(name, value):
    with pytest.raises(ValueError, match=f"^{name}: must be finite and"):
        kbp.Hyperparameters(kbp.RBF(1.0), **{name: value})
