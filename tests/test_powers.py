"""Evidence to a power, tempered beliefs and exponents above 1, against oracles in NumPy and differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax.features import features
from tests import discrete
from tests import reweighted as rw

# --- a learned model of numbers ---------------------------------------------------------------------------------------

CHAIN = kbp.chain_graph(4)
POINTS = np.linspace(-2, 2, 7)
SEEN, OTHER = np.array([0.6, -0.4, 0.1, 1.0]), np.array([0.2, 0.0, -0.7, 0.5])
FIRST, SECOND = np.array([True, True, False, True]), np.array([True, False, True, True])


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 1)) + 0.5 * rng.normal(size=(30, 4))
    data = kbp.pool(CHAIN, x, x + 0.5 * rng.normal(size=x.shape))
    rule = kbp.ConstantTime(eps=1e-2, max_rank=6)
    return kbp.fit(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(0.8), rule=rule, ridge=1e-3, floor=1e-2)


def observed(model):
    return kbp.observe(model, CHAIN, SEEN, mask=FIRST)


def answer(model, evidence):
    solution = kbp.run(model, CHAIN, evidence, num_iters=3)
    return kbp.beliefs(model, CHAIN, evidence, solution, POINTS).weights


def at_points(model, messages):
    """Evaluate messages at the points in NumPy, with the floor."""
    table = np.asarray(features(model.bases[0], jnp.asarray(POINTS)))
    return np.maximum(np.asarray(messages) @ table.T, float(model.floor_of(0)))


@pytest.mark.parametrize("power", [0.4, 2.5])
def test_observations_to_a_power_multiply_logarithms(model, power):
    """Messages are those of bare operators with local ** power; the belief is a product written out in NumPy."""
    plain, evidence = observed(model), observed(model) ** power
    np.testing.assert_allclose(evidence.local, np.asarray(plain.local) ** power, rtol=1e-12)
    solution = kbp.run(model, CHAIN, evidence, num_iters=3)
    bare = kbp.run(model.operators, CHAIN, jnp.asarray(np.asarray(plain.local) ** power), num_iters=3)
    np.testing.assert_allclose(solution.messages, bare.messages, atol=1e-12)
    logs = np.where(FIRST[:, None], power * np.log(at_points(model, plain.messages[0])), 0)
    logs += np.log(at_points(model, model.marginals[0]))[None]
    along = np.log(at_points(model, bare.messages))
    for e, (a, b) in enumerate([(0, 1), (1, 2), (2, 3)]):
        logs[b] += along[e]
        logs[a] += along[e + 3]
    expected = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    got = kbp.beliefs(model, CHAIN, evidence, solution, POINTS).weights
    np.testing.assert_allclose(got, expected, atol=1e-10)
    assert np.abs(got - answer(model, plain)).max() > 0.01


def test_powers_of_one_and_whole_numbers(model):
    plain = observed(model)
    for a, b in zip(jax.tree.leaves(plain**1), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(answer(model, plain**2), answer(model, plain * plain), atol=1e-10)
    np.testing.assert_allclose(answer(model, (plain**0.5) ** 3), answer(model, plain**1.5), atol=1e-10)


def kinds(model):
    """Observations, a likelihood, and observations beside a clamp."""
    likely = kbp.likelihood(model, CHAIN, lambda x: jnp.exp(-0.5 * (x[None] - jnp.asarray(OTHER)[:, None]) ** 2))
    clamp = kbp.clamp(model, CHAIN, [2], [0.7])
    return {"observed": kbp.observe(model, CHAIN, OTHER, mask=SECOND), "likelihood": likely, "clamped": clamp}


@pytest.mark.parametrize("kind", ["observed", "likelihood", "clamped"])
def test_the_power_of_a_product_is_the_product_of_the_powers(model, kind):
    one, other = observed(model), kinds(model)[kind]
    together, apart = (one * other) ** 0.6, one**0.6 * other**0.6
    np.testing.assert_allclose(together.local, apart.local, rtol=1e-12)
    np.testing.assert_allclose(answer(model, together), answer(model, apart), atol=1e-12)
    assert np.abs(answer(model, together) - answer(model, one * other)).max() > 1e-3


def test_clamped_values_stay(model):
    clamp = kbp.clamp(model, CHAIN, [1], [0.7])
    np.testing.assert_array_equal((clamp**3.0).local, clamp.local)
    np.testing.assert_array_equal(answer(model, clamp**3.0), answer(model, clamp))
    mixed = (clamp * observed(model)) ** 0.3
    assert answer(model, mixed)[1].tolist() == [0, 0, 0, 0, 1, 0, 0]


def test_powers_reach_log_beliefs_at_own_points(model):
    evidence = observed(model) ** 1.7
    solution = kbp.run(model, CHAIN, evidence, num_iters=3)
    own = jnp.asarray(np.tile(POINTS, (4, 1)))
    logs = kbp.log_belief(kbp.Posterior.of(model, CHAIN, evidence, solution), own)
    np.testing.assert_allclose(jax.nn.softmax(logs, axis=-1), answer(model, evidence), atol=1e-10)


def test_gradient_with_respect_to_the_power_and_vmap(model):
    evidence = observed(model) * kinds(model)["likelihood"]

    def loss(p):
        return jnp.sum(answer(model, evidence**p) ** 2)

    both = jax.jit(jax.vmap(jax.value_and_grad(loss)))
    values, slopes = both(jnp.array([0.8, 0.8 - 1e-4, 0.8 + 1e-4, 0.8 - 2e-4, 0.8 + 2e-4]))
    near, far = (values[2] - values[1]) / 2e-4, (values[4] - values[3]) / 4e-4
    np.testing.assert_allclose(slopes[0], (4 * near - far) / 3, rtol=1e-6)
    assert abs(slopes[0]) > 1e-2
    np.testing.assert_allclose(values[0], loss(0.8), rtol=1e-10)


@pytest.mark.parametrize("power", [0.0, -1, np.nan, np.inf])
def test_powers_out_of_range_are_refused(model, power):
    with pytest.raises(ValueError, match="^power: must be"):
        observed(model) ** power


# --- discrete models: the oracle --------------------------------------------------------------------------------------

GRID = discrete.grid()
TREE = (0, 1, 2, 4, 6)


@pytest.mark.parametrize(("power", "rho"), [(1.8, 0.7), pytest.param(0.8, 1.3, marks=pytest.mark.slow)])
def test_likelihoods_to_a_power_equal_the_oracle(power, rho):
    model, local = discrete.learned(), discrete.likelihoods(0)
    evidence = discrete.evidence(model, GRID, local) ** power
    solution = kbp.run(model, GRID, evidence, exponents=rho, num_iters=800, damping=0.4, tol=1e-11)
    oracle = rw.reweighted(discrete.learned_twin(rho, local**power), rho)
    assert oracle.residual < 1e-11
    got = kbp.beliefs(model, GRID, evidence, solution, np.arange(3)).weights
    np.testing.assert_allclose(got, oracle.node_beliefs, atol=1e-7)
    table = kbp.edge_beliefs(
        kbp.Posterior.of(model, GRID, evidence, solution, np.arange(3)), [discrete.EDGES[3]]
    ).weights[0]
    np.testing.assert_allclose(table, oracle.edge_beliefs[3], atol=1e-7)


def test_log_partition_counts_the_power():
    model, graph, local = discrete.learned(), discrete.grid(TREE), discrete.likelihoods(1)
    evidence = discrete.evidence(model, graph, local) ** 1.6
    solution = kbp.run_tree(model, graph, evidence)
    expected = rw.enumerate_log_partition(discrete.learned_twin(1.0, local**1.6, TREE))
    np.testing.assert_allclose(kbp.log_partition(model, graph, evidence, solution), expected, atol=1e-7)


@pytest.mark.parametrize("rho", [pytest.param(1.3, marks=pytest.mark.slow), np.array([1.2, 0.7, 1.0, 1.5])])
def test_exponents_above_one_equal_the_oracle(rho):
    rng, spins = np.random.default_rng(3), np.array([-1.0, 1.0])
    node = [np.exp(0.3 * h * spins) for h in rng.normal(size=4)]
    edge = [np.exp(0.5 * np.outer(spins, spins)) for _ in range(4)]
    model = rw.Discrete([(0, 1), (1, 2), (2, 3), (0, 3)], node, edge)
    operators, graph, local = discrete.problem(model, rho)
    solution = kbp.run(operators, graph, local, exponents=rho, num_iters=500, damping=0.3, tol=1e-12)
    oracle = rw.reweighted(model, rho)
    assert bool(solution.converged)
    np.testing.assert_allclose(discrete.node_beliefs(model, solution, rho), oracle.node_beliefs, atol=1e-8)
    plain = rw.reweighted(model, 1.0)
    assert np.abs(np.array(plain.node_beliefs) - oracle.node_beliefs).max() > 1e-3


@pytest.mark.parametrize("exponents", [0.0, -1.3, np.inf, np.nan])
def test_exponents_that_are_not_positive_and_finite_are_refused(exponents):
    with pytest.raises(ValueError, match="^exponents: must be > 0 and finite"):
        kbp.run(discrete.learned(), GRID, exponents=exponents)


@pytest.fixture(scope="module")
def sure():
    """Neighbors that are always equal, a likelihood of 0 and no floor: messages and factors are exactly 0."""
    graph, x = kbp.chain_graph(3), np.repeat(np.array([[0], [1], [2], [1]]), 3, axis=1)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.Delta(), rule=kbp.ConstantTime(eps=1e-6), ridge=0.0, floor=0.0)
    evidence = kbp.likelihood(model, graph, lambda x: jnp.asarray(FACTOR)[:, x.astype(int)])

    def weights(power, exponent):
        raised = evidence**power
        solution = kbp.run(model, graph, raised, exponents=exponent, num_iters=3, damping=0.0)
        return kbp.beliefs(model, graph, raised, solution, np.arange(3)).weights, solution.messages

    return weights


FACTOR = np.array([[1.0, 0.0, 0.5], [1.0, 1.0, 1.0], [0.4, 1.0, 0.6]])


@pytest.mark.slow
def test_gradients_in_powers_are_finite_and_right_at_zero_factors_and_zero_messages(sure):
    def of(power):
        product = np.array([1, 2, 1]) * np.prod(FACTOR**power, axis=0)
        return np.tile(product / product.sum(), (3, 1))

    got, messages = sure(2.0, None)
    assert bool(jnp.any(messages == 0))
    np.testing.assert_allclose(got, of(2.0), atol=1e-12)
    slope = jax.jit(jax.grad(lambda p: jnp.sum(sure(p, None)[0] ** 2)))(2.0)
    np.testing.assert_allclose(slope, (np.sum(of(2 + 1e-5) ** 2) - np.sum(of(2 - 1e-5) ** 2)) / 2e-5, rtol=1e-6)


def test_gradients_in_exponents_are_finite_at_zero_factors_and_zero_messages(sure):
    slopes = jax.jit(jax.grad(lambda p, e: jnp.sum(sure(p, e)[0] ** 2), (0, 1)))
    for exponent in (1.0, 1.4):  # below 1 an update divides by the message, and there is none where that is 0
        got, messages = sure(2.0, exponent)
        assert bool(jnp.any(messages == 0))
        assert np.all(np.isfinite(got))
        assert np.all(np.isfinite(slopes(2.0, exponent))), exponent


# --- tempered beliefs -------------------------------------------------------------------------------------------------

WEIGHTS = np.array([[0.6, 0.3, 0.1, 0.0], [0.25, 0.25, 0.0, 0.5]])


def belief():
    return kbp.Belief(jnp.arange(4.0), jnp.asarray(WEIGHTS))


@pytest.mark.parametrize("temperature", [0.5, 1, 3.0])
def test_tempered_weights_are_powers(temperature):
    expected = WEIGHTS ** (1 / temperature)
    expected = expected / expected.sum(axis=1, keepdims=True)
    got = kbp.temper(belief(), temperature)
    np.testing.assert_allclose(got.weights, expected, rtol=1e-12)
    np.testing.assert_array_equal(got.points, np.arange(4))


def test_a_high_temperature_is_uniform_where_the_belief_is_not_zero():
    expected = np.array([[1 / 3, 1 / 3, 1 / 3, 0], [1 / 3, 1 / 3, 0, 1 / 3]])
    np.testing.assert_allclose(kbp.temper(belief(), 1e9).weights, expected, atol=1e-8)


def test_a_low_temperature_is_the_mode():
    np.testing.assert_allclose(kbp.temper(belief(), 1e-3).weights[0], [1, 0, 0, 0], atol=1e-12)


def test_tempered_zeros_stay_zero_with_finite_and_right_gradients():
    def loss(weights, temperature):
        tempered = kbp.temper(kbp.Belief(jnp.arange(4.0), weights), temperature).weights
        return jnp.sum(tempered**2), tempered

    slopes, tempered = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(jnp.asarray(WEIGHTS), 1.7)
    assert np.all(np.asarray(tempered)[WEIGHTS == 0] == 0)
    assert all(np.all(np.isfinite(slope)) for slope in slopes)
    ahead, behind = (loss(jnp.asarray(WEIGHTS), 1.7 + step)[0] for step in (1e-5, -1e-5))
    np.testing.assert_allclose(slopes[1], (ahead - behind) / 2e-5, rtol=1e-6)


def test_vmap_over_temperatures_is_a_loop():
    many = jnp.array([0.5, 1.0, 4.0])
    got = jax.jit(jax.vmap(lambda t: kbp.temper(belief(), t).weights))(many)
    for row, t in zip(got, (0.5, 1.0, 4.0), strict=True):
        np.testing.assert_allclose(row, kbp.temper(belief(), t).weights, rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
def test_temperatures_out_of_range_are_refused(temperature):
    with pytest.raises(ValueError, match="^temperature: must be"):
        kbp.temper(belief(), temperature)


def test_what_is_no_belief_is_refused():
    with pytest.raises((ValueError, TypeError)):
        kbp.temper(jnp.asarray(WEIGHTS), 2.0)
