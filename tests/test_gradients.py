"""Gradients through fit, observe, run and beliefs against finite differences, with the landmarks held fixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp

GRAPH = kbp.Graph.from_edges([(0, 1), (1, 2), (0, 2)], 3)
RANK = 4
AT = {"bandwidth": 1.3, "obs_bandwidth": 0.9, "ridge": 2e-3, "damping": 0.3}


def draw(duplicates=False):
    """Draw 30 samples of three dependent variables with observations, and new observations."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 1)) + 0.6 * rng.normal(size=(30, 3))
    if duplicates:
        x = np.tile(np.array([-1.0, 0.2, 1.1])[rng.integers(3, size=(10, 3))], (3, 1))
    y = x + 0.4 * rng.normal(size=x.shape)
    y = np.round(y) if duplicates else y
    return {"pooled": kbp.pool(GRAPH, x, y), "seen": np.array([0.6, -0.2, 0.7])}


POINTS, TRUTH = np.linspace(-2, 2, 9), np.array([0.3, -0.4, 0.9])


def held(data, max_rank=RANK, eps=1e-9, pad=False):
    """Return the rule with landmarks selected at the parameters `AT`."""
    kernels = {"kernel": kbp.RBF(AT["bandwidth"]), "obs_kernel": kbp.RBF(AT["obs_bandwidth"])}
    return kbp.fix_landmarks(data["pooled"], rule=kbp.ConstantTime(eps=eps, max_rank=max_rank), pad=pad, **kernels)


def answer(parameters, seen, data, rule):
    """Go from samples to beliefs."""
    model = kbp.fit(
        data["pooled"],
        kernel=kbp.RBF(parameters["bandwidth"]),
        obs_kernel=kbp.RBF(parameters["obs_bandwidth"]),
        rule=rule,
        ridge=parameters["ridge"],
    )
    evidence = kbp.observe(model, GRAPH, seen)
    solution = kbp.run(model, GRAPH, evidence, num_iters=5, damping=parameters["damping"])
    return kbp.beliefs(model, GRAPH, evidence, solution, jnp.asarray(POINTS, data["pooled"].nodes[0].dtype))


def losses(parameters, seen, data, rule):
    """Return the squared error of the posterior means and the negative log belief at the point next to the truth."""
    belief = answer(parameters, seen, data, rule)
    squared_error = jnp.mean((kbp.mean(belief) - jnp.asarray(TRUTH, belief.weights.dtype)) ** 2)
    nearest = np.argmin(np.abs(POINTS - TRUTH[:, None]), axis=1)
    return jnp.stack([squared_error, -jnp.mean(jnp.log(belief.weights[jnp.arange(3), nearest]))])


def shifted(name, step):
    return {**AT, name: AT[name] * (1 + step)}


STEP = 1e-5


@pytest.fixture(scope="module")
def data():
    return draw()


def value_and_gradients(data, **options):
    """Compile the losses together with their gradients in the parameters and the observations."""
    rule = held(data, **options)

    def value(parameters, seen):
        both = losses(parameters, seen, data, rule)
        return both, both

    return jax.jit(jax.jacrev(value, (0, 1), has_aux=True))


@pytest.fixture(scope="module")
def in_double(data):
    return value_and_gradients(data)


@pytest.fixture(scope="module")
def differences(data, in_double):
    """Central finite differences [parameter][loss]."""
    result = {}
    for name, at in AT.items():
        ahead, behind = shifted(name, STEP), shifted(name, -STEP)
        values = [np.asarray(in_double(parameters, data["seen"])[1]) for parameters in (ahead, behind)]
        result[name] = (values[0] - values[1]) / (2 * STEP * at)
    return result


def check(gradients, differences):
    for name, slopes in differences.items():
        assert np.all(np.abs(slopes) > 1e-6), f"the losses do not depend on {name}: nothing is tested"
        np.testing.assert_allclose(gradients[name], slopes, rtol=1e-4)


def test_jitted_gradient_equals_finite_differences(data, in_double, differences):
    check(in_double(AT, data["seen"])[0][0], differences)


@pytest.mark.slow
def test_eager_gradient_equals_finite_differences(data, differences):
    rule = held(data)
    gradients = jax.grad(lambda parameters: losses(parameters, data["seen"], data, rule)[0])(AT)
    for name, slopes in differences.items():
        np.testing.assert_allclose(gradients[name], slopes[0], rtol=1e-4)


def test_forward_mode_equals_finite_differences(data, differences):
    rule = held(data)
    check(jax.jit(jax.jacfwd(lambda parameters: losses(parameters, data["seen"], data, rule)))(AT), differences)


@pytest.fixture(scope="module")
def loose():
    """Three states and a few observed values: the needed rank is far below the room that `max_rank` gives."""
    return draw(duplicates=True)


@pytest.fixture(scope="module")
def roomy(loose):
    """Padded bases have `max_rank` rows, most of them unused here."""
    return value_and_gradients(loose, max_rank=40, eps=1e-3, pad=True)


@pytest.mark.slow
def test_spare_rank_changes_neither_value_nor_gradient(loose, roomy):
    needed = len(np.unique(loose["pooled"].observations[0][1]))
    assert 3 < needed < 12
    gradients, value = roomy(AT, loose["seen"])
    eager = losses(AT, loose["seen"], loose, held(loose, max_rank=40, eps=1e-3))  # with just the rank that was needed
    np.testing.assert_allclose(value, eager, rtol=1e-8)
    rule = held(loose, max_rank=needed, eps=1e-3)
    exact = jax.jit(lambda parameters, seen: losses(parameters, seen, loose, rule))
    np.testing.assert_allclose(value, exact(AT, loose["seen"]), rtol=1e-8)
    for name, at in AT.items():
        ahead, behind = (exact(shifted(name, step), loose["seen"]) for step in (STEP, -STEP))
        np.testing.assert_allclose(gradients[0][name], (ahead - behind) / (2 * STEP * at), rtol=1e-4, atol=1e-8)
    for node, step in enumerate(STEP * np.eye(3)):
        ahead, behind = (exact(AT, loose["seen"] + sign * step) for sign in (1, -1))
        np.testing.assert_allclose(gradients[1][:, node], (ahead - behind) / (2 * STEP), rtol=1e-4, atol=1e-8)


@pytest.mark.slow
def test_gradients_are_finite_and_right_with_duplicates_in_the_data(loose, roomy):
    gradients = roomy(AT, loose["seen"])[0][0]
    for name, at in AT.items():
        ahead, behind = (roomy(shifted(name, step), loose["seen"])[1] for step in (STEP, -STEP))
        np.testing.assert_allclose(gradients[name], (ahead - behind) / (2 * STEP * at), rtol=1e-4, atol=1e-8)


def test_gradient_with_respect_to_observations(data, in_double):
    gradient = np.asarray(in_double(AT, data["seen"])[0][1])
    for node in range(3):
        step = STEP * np.eye(3)[node]
        ahead, behind = (np.asarray(in_double(AT, data["seen"] + sign * step)[1]) for sign in (1, -1))
        slopes = (ahead - behind) / (2 * STEP)
        assert np.all(np.abs(slopes) > 1e-6)
        np.testing.assert_allclose(gradient[:, node], slopes, rtol=1e-4)


def single(tree):
    """Cast floats to single precision."""
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


@pytest.fixture(scope="module")
def in_single(data):
    return value_and_gradients(single(data))


@pytest.mark.slow
def test_single_precision_gradient_is_near_the_double_one(data, differences, in_single):
    gradients = in_single(single(AT), single(data["seen"]))[0][0]
    for name, slopes in differences.items():
        assert gradients[name].dtype == jnp.float32
        np.testing.assert_allclose(gradients[name], slopes, rtol=0.02)


@pytest.mark.parametrize("far", [8.0, 30.0, 1e3])
def test_gradient_is_finite_at_an_outlier(data, in_double, in_single, far):
    # Its features are tiny or, far out, exactly 0; then the observation says nothing, and that is no reason for a NaN.
    seen = data["seen"].copy()
    seen[1] = far
    for gradients, _ in (in_double(AT, seen), in_single(single(AT), single(seen))):
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradients))


# --- every update rule ------------------------------------------------------------------------------------------------

RULES = {
    "full": kbp.FullRank(),
    "linear": kbp.LinearTime(eps=1e-3, max_rank=6),
    "constant": kbp.ConstantTime(eps=1e-3, max_rank=6),
}
RULE_AT = {"bandwidth": 0.4, "obs_bandwidth": 0.6, "ridge": 2e-3}


def few(repeated):
    """Draw few samples, for a bandwidth that keeps their Gram matrix from being singular but for repeats."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 1)) + 0.6 * rng.normal(size=(6, 3))
    y = x + 0.3 * rng.normal(size=x.shape)
    return kbp.pool(GRAPH, *((np.round(2 * x) / 2, np.round(2 * y) / 2) if repeated else (x, y)))


def rule_loss(parameters, data, rule):
    model = kbp.fit(
        data,
        kernel=kbp.RBF(parameters["bandwidth"]),
        obs_kernel=kbp.RBF(parameters["obs_bandwidth"]),
        rule=rule,
        ridge=parameters["ridge"],
    )
    evidence = kbp.observe(model, GRAPH, np.array([0.6, 0.0, -0.7]), mask=np.array([True, False, True]))
    solution = kbp.run(model, GRAPH, evidence, num_iters=3, damping=0.2)
    belief = kbp.beliefs(model, GRAPH, evidence, solution, jnp.asarray(POINTS))
    return jnp.mean((kbp.mean(belief) - TRUTH) ** 2) - jnp.mean(jnp.log(belief.weights[:, 5]))


@pytest.mark.parametrize(
    "rule", ["constant", *(pytest.param(rule, marks=pytest.mark.slow) for rule in ("full", "linear"))]
)
def test_gradients_of_all_rules_equal_central_differences(rule):
    both, kernels = jax.jit(jax.value_and_grad(rule_loss)), {"kernel": kbp.RBF(0.4), "obs_kernel": kbp.RBF(0.6)}
    for data in (few(False), few(True)):
        fixed = kbp.fix_landmarks(data, rule=RULES[rule], pad=True, **kernels)
        gradients = both(RULE_AT, data, fixed)[1]
        for name, at in RULE_AT.items():

            def slope(step, data=data, fixed=fixed, name=name, at=at):
                ahead, behind = (both({**RULE_AT, name: at + sign * step}, data, fixed)[0] for sign in (1, -1))
                return (ahead - behind) / (2 * step)

            # Two spacings, so that neither curvature nor rounding shows in the sixth digit.
            expected = (4 * slope(5e-4 * at) - slope(1e-3 * at)) / 3
            assert abs(expected) > 1e-3
            np.testing.assert_allclose(gradients[name], expected, rtol=1e-5, err_msg=name)
