"""Particle belief propagation against linear algebra on Gaussians, and against sums over fine grids of points."""

import dataclasses
import inspect
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from jaxtyping import Array, Float

import kbpjax as kbp
from kbpjax.baselines import density, expectation_particle, pairwise, particle

GRID = kbp.grid_graph(4, 4)
TREE = kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3), (3, 4)], 5)
# The grid and, apart from it, the tree: one program answers for both.
BOTH = kbp.Graph.from_edges(
    np.concatenate([np.stack([g.senders, g.receivers], 1)[: g.num_edges // 2] + k for g, k in ((GRID, 0), (TREE, 16))]),
    21,
)
METHODS = [
    partial(particle.run, num_iters=12, resample_every=5, num_moves=5, damping=0.0),
    partial(expectation_particle.run, num_iters=12),
]
NAMES = ["moves", "expectation"]
KEYS = jax.random.split(jax.random.key(1), 30)


class Normal(pairwise.NodePotential):
    mean: Float[Array, " dim"]
    deviation: Float[Array, " dim"]

    def log_density(self, x):
        return -0.5 * jnp.sum(((x - self.mean[None]) / self.deviation[None]) ** 2, axis=1)

    def sample(self, key, num_samples):
        noise = jax.random.normal(key, (num_samples, len(self.mean)), self.mean.dtype)
        return self.mean[None] + self.deviation[None] * noise


class Spring(pairwise.EdgePotential):
    stiffness: Float[Array, ""]

    def log_table(self, receiver, sender):
        return -0.5 * self.stiffness * jnp.sum((receiver[:, None] - sender[None]) ** 2, axis=2)

    def propose(self, key, sender):
        raise AssertionError("particles are never drawn along edges")


def springs(stiffness=1.0, dtype=jnp.float64, dim=1):
    nodes = Normal(jnp.full((1, dim), 0.5, dtype), jnp.full((1, dim), 2.0, dtype))
    return pairwise.PairwiseMRF(nodes, Spring(jnp.full(1, stiffness, dtype)), () if dim == 1 else (dim,))


def near(y, deviation, x):
    return jnp.exp(-0.5 * ((y[:, None] - jnp.atleast_2d(x)) / deviation) ** 2)


def near_vectors(y, x):
    return jnp.exp(-0.5 * jnp.sum((y[:, None] - (x if x.ndim == 3 else x[None])) ** 2, axis=-1))


def seen(model, graph, deviation=1.0, seed=0):
    """Return observations of all nodes, and the evidence of them."""
    y = 2 * np.random.default_rng(seed).standard_normal(graph.num_nodes)
    y = jnp.asarray(y, model.sizes[2])
    return np.asarray(y), kbp.likelihood(model, graph, Partial(near, y, deviation))


@cache
def on_both():
    """Return a model, observations and evidence: one object, so that compiled programs are shared."""
    model = springs()
    return model, *seen(model, BOTH)


def exact(graph, y, stiffness=1.0, deviation=1.0):
    """Return means and variances from the matrix of all variables."""
    half = graph.num_edges // 2
    matrix = np.diag(np.full(graph.num_nodes, 1 / 2.0**2 + 1 / deviation**2))
    for a, b in zip(np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half], strict=True):
        matrix[[a, b, a, b], [a, b, b, a]] += stiffness * np.array([1, 1, -1, -1])
    return np.linalg.solve(matrix, 0.5 / 2.0**2 + y / deviation**2), np.diag(np.linalg.inv(matrix))


@partial(jax.jit, static_argnums=(0, 5))
def many(method, model, graph, evidence, keys, num_particles):
    """Run with each key: ten at a time, and these one after the other."""
    run = lambda key: method(model, graph, evidence, key=key, num_particles=num_particles)
    solution = jax.lax.map(run, keys, batch_size=10)
    return solution, jax.vmap(particle.mean)(solution), jax.vmap(particle.variance)(solution)


@cache
def repeated(number):
    """Return solutions, means and variances [key, node] of the grid and the tree."""
    model, _, evidence = on_both()
    solution, *moments = many(METHODS[number], model, BOTH, evidence, KEYS, 100)
    return solution, *(np.asarray(of)[..., 0] for of in moments)


def agree(got, expected, most):
    """Assert that the means over keys are the expected ones, and known well enough for this to say something."""
    error = got.std(axis=0, ddof=1) / len(got) ** 0.5
    assert np.all(np.abs(got.mean(axis=0) - expected) < 4 * error) and np.all(error < most)


@pytest.mark.parametrize("number", [0, 1], ids=NAMES)
@pytest.mark.slow
def test_means_on_a_grid_are_those_of_the_dense_solve(number):
    solution, means, _ = repeated(number)
    truth, _ = exact(BOTH, on_both()[1])
    agree(means[:, :16], truth[:16], 0.05 * np.ptp(truth[:16]))
    sizes = np.asarray(solution.effective_sizes)
    assert np.all((sizes >= 1) & (sizes <= 100)) and sizes[:, -1].min() > 60
    if number == 0:
        rates, residuals = np.asarray(solution.acceptance), np.asarray(solution.residuals)
        assert np.all((rates > 0.3) & (rates < 0.6))
        assert np.all(residuals[:, 4] < residuals[:, 0]) and np.all(residuals[:, 9] < 0.1)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)], ids=NAMES)
def test_means_and_variances_on_a_tree_are_exact(number):
    (model, y, evidence), points = on_both(), np.linspace(-8, 8, 161)
    solution, *moments = repeated(number)
    truth = [of[16:] for of in exact(BOTH, y)]
    for got, expected in zip(moments, truth, strict=True):
        agree(got[:, 16:], expected, 0.045)
    read = lambda one: particle.beliefs(model, BOTH, evidence, one, points).weights
    weights = np.asarray(jax.jit(jax.vmap(read))(solution))[:, 16:]
    middle = weights @ points
    agree(middle, truth[0], 0.045)
    agree(np.einsum("knp,knp->kn", weights, (points - middle[..., None]) ** 2), truth[1], 0.045)


@pytest.mark.parametrize("number", [0, 1], ids=NAMES)
@pytest.mark.slow
def test_errors_fall_like_one_over_the_root_of_the_number_of_particles(number):
    """Errors are root mean squares over nodes and keys, more keys where it costs little: the slope is known to 0.06."""
    model, y, evidence = on_both()
    truth, _ = exact(BOTH, y)
    keys = jax.random.split(jax.random.key(2), 120)
    answers = many(METHODS[number], model, BOTH, evidence, keys, 40)[1][..., 0], repeated(number)[1]
    few, more = (np.sqrt(np.mean((np.asarray(means) - truth) ** 2)) for means in answers)
    assert -0.65 < np.log(more / few) / np.log(100 / 40) < -0.35
    assert more < 0.1  # that is 0.03 of 1000 particles


@pytest.mark.slow
def test_points_whose_squared_distance_overflows_have_finite_densities():
    fields = [0.5, 0.5], [[0.0], [9.0]], [[1.0], [5.0]], [1.0], [1.0]
    learned, far = density.ConditionalDensity(*map(jnp.float32, fields)), jnp.full((1, 1), 1e30, jnp.float32)
    assert bool(jnp.isfinite(learned.log_density(far, far)).all())
    assert learned.mixture(far[0]).weights.tolist() == [0.5, 0.5]  # both centers are equally far


def test_the_heaviest_particle_stays():
    """If all weights of a sender are below the least, one would divide by 0."""
    graph, weights = kbp.chain_graph(2), jnp.log(jnp.array([[0.2, 0.3, 0.5], [0.2, 0.2, 0.6]]))
    for least, expected in ((0.0, [0.2, 0.3, 0.5]), (0.25, [0, 0.375, 0.625]), (0.9, [0, 0, 1])):
        found = particle.sender_weights(graph, weights, jnp.zeros((2, 3)), jnp.array(least))
        np.testing.assert_allclose(jnp.exp(found[0]), expected, atol=1e-12)


def test_one_iteration_is_the_formula():
    """Ihler & McAllester's eq. 8 in NumPy, from the particles that were drawn; damping and least weight, too."""
    model, least, damping = springs(), 0.05, 0.3
    y, evidence = seen(model, TREE)
    options = {"key": jax.random.key(0), "num_particles": 7, "resample_every": 3, "min_weight": least}
    x = np.asarray(particle.run(model, TREE, evidence, num_iters=1, damping=damping, **options).particles)[..., 0]
    edges = list(zip(np.asarray(TREE.senders), np.asarray(TREE.receivers), strict=True))
    local = np.exp(-0.5 * (y[:, None] - x) ** 2)  # psi / W is 1
    messages, old = {edge: np.ones(7) for edge in edges}, {}
    for turn in range(3):
        weights = {}
        for t, s in edges:
            w = local[t] * np.prod([messages[u, v] for u, v in edges if v == t and u != s], axis=0)
            w = np.where(w / w.sum() < least, 0, w)
            weights[t, s] = w / w.sum()
        old = weights if turn == 0 else {e: damping * old[e] + (1 - damping) * weights[e] for e in edges}
        messages = {(t, s): np.exp(-0.5 * (x[s][:, None] - x[t]) ** 2) @ old[t, s] for t, s in edges}
    solution = particle.run(model, TREE, evidence, num_iters=3, damping=damping, **options)
    np.testing.assert_array_equal(solution.particles[..., 0], x)
    np.testing.assert_allclose(np.exp(solution.log_senders), [old[e] for e in edges], atol=1e-12)
    assert np.any(np.asarray(solution.log_senders) == -np.inf)
    expected = np.array([messages[e] / messages[e].max() for e in edges])
    np.testing.assert_allclose(np.exp(solution.log_messages), expected, rtol=1e-10)
    belief = np.stack([local[s] * np.prod([messages[e] for e in edges if e[1] == s], axis=0) for s in range(5)])
    belief /= belief.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(solution.log_weights), belief, rtol=1e-10)
    np.testing.assert_allclose(solution.effective_sizes[-1], np.mean(1 / np.sum(belief**2, axis=1)), rtol=1e-10)
    np.testing.assert_allclose(particle.mean(solution)[:, 0], np.sum(belief * x, axis=1), rtol=1e-10)
    assert np.isnan(solution.acceptance)


def on_points(model, graph, local, points):
    """Pass messages between fine grids of points until they have crossed the graph; return beliefs [node, point]."""
    x = jnp.asarray(points)[:, None]
    kinds = np.asarray(pairwise.directions(graph))
    edges = list(zip(np.asarray(graph.senders), np.asarray(graph.receivers), kinds, strict=True))
    log_table = jax.jit(lambda edges, k: pairwise.of_type(edges, k).log_table(x, x))
    tables = {k: np.exp(log_table(model.edges, k)) for k in set(kinds)}
    log_density = jax.jit(lambda nodes, v: pairwise.of_type(nodes, v).log_density(x))
    psi = np.exp([log_density(model.nodes, v) for v in np.asarray(graph.node_type)]) * local
    messages = {(t, s): np.ones(len(points)) for t, s, _ in edges}
    for _ in range(graph.num_nodes):
        arriving = {(t, s): [messages[u, v] for u, v, _ in edges if v == t and u != s] for t, s, _ in edges}
        messages = {(t, s): tables[k] @ (psi[t] * np.prod(arriving[t, s], axis=0)) for t, s, k in edges}
        messages = {edge: message / message.max() for edge, message in messages.items()}
    belief = [psi[n] * np.prod([messages[t, s] for t, s, _ in edges if s == n], axis=0) for n in range(len(psi))]
    return np.stack(belief) / np.sum(belief, axis=1, keepdims=True)


@cache
def wells(potentials=pairwise.Ratios()):
    """Return a model learned from a chain of numbers near -2 or 2, mostly near that of their neighbor."""
    rng = np.random.default_rng(0)
    sign = np.cumprod(np.where(rng.random((80, 4)) < [0.4, 0.2, 0.2, 0.2], -1, 1), axis=1)
    x = 2 * sign + 0.5 * rng.standard_normal(sign.shape)
    options = {"widths": [0.2], "ridges": [0.01], "marginal_widths": [0.2], "num_centers": 40}
    return pairwise.fit(jax.random.key(0), kbp.pool(kbp.chain_graph(4), x), potentials=potentials, **options)


@pytest.mark.parametrize("number", [0, 1], ids=NAMES)
@pytest.mark.slow
def test_learned_potentials_give_both_modes_of_beliefs_on_a_fine_grid(number):
    model, points = wells(), np.linspace(-5, 5, 101)
    y = jnp.array([1.0, -4.0, 0.0, 0.0, 2.0])
    evidence = kbp.likelihood(model, TREE, Partial(near, y, 2.0))
    truth = on_points(model, TREE, np.exp(-0.5 * ((np.asarray(y)[:, None] - points) / 2) ** 2), points)
    solution = METHODS[number](model, TREE, evidence, key=jax.random.key(0), num_particles=300)
    got = np.asarray(particle.beliefs(model, TREE, evidence, solution, points).weights)
    mass = truth[:, points < 0].sum(axis=1)
    assert mass.max() - mass.min() > 0.2 and mass.min() > 0.05 and mass.max() < 0.95
    np.testing.assert_allclose(got[:, points < 0].sum(axis=1), mass, atol=0.06)
    assert 0.5 * np.abs(got - truth).sum(axis=1).max() < 0.06
    for side in (points < 0, points > 0):
        found, best = (points[side][belief[:, side].argmax(axis=1)] for belief in (got, truth))
        np.testing.assert_allclose(found, best, atol=0.35)
    shares = np.sum(np.exp(solution.log_weights) * (np.asarray(solution.particles)[..., 0] < 0), axis=1)
    np.testing.assert_allclose(shares, mass, atol=0.1)


@pytest.mark.parametrize("potentials", [pairwise.Ratios(), pairwise.Conditionals()], ids=["ratios", "conditionals"])
def test_a_learned_message_is_that_of_its_table(potentials):
    edge = pairwise.of_type(wells(potentials).edges, jnp.int32(0))
    receiver, sender = jnp.linspace(-4, 4, 9)[:, None], jnp.linspace(-3, 3, 7)[:, None]
    weights = jnp.log(jnp.arange(7.0) / 21)
    expected = np.log(np.exp(edge.log_table(receiver, sender)) @ np.exp(weights))
    np.testing.assert_allclose(edge.log_message(receiver, sender, weights), expected, rtol=1e-9)


@cache
def plain(number, place):
    """Return the solution of one of the keys, by a plain call."""
    model, _, evidence = on_both()
    return METHODS[number](model, BOTH, evidence, key=KEYS[place], num_particles=100)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)], ids=NAMES)
def test_keys_decide_and_transforms_change_nothing(number):
    """The map over keys inside `jax.jit` and `jax.vmap`, which the other tests use, against plain calls."""
    looped, one, other = repeated(number)[0], plain(number, 0), plain(number, 1)
    for i, of in enumerate((one, other)):
        for a, b in zip(jax.tree.leaves(of), jax.tree.leaves(looped), strict=True):
            np.testing.assert_allclose(a, np.asarray(b)[i], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(plain.__wrapped__(number, 0).particles, one.particles)
    assert np.all(np.abs(np.asarray(one.particles) - np.asarray(other.particles)).max(axis=(1, 2)) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=NAMES)
def test_vectors_in_single_precision_beside_likelihoods_that_underflow(number):
    """Two coordinates that know nothing of each other have the answers of two problems of numbers.

    Apart from the tree is a node without edges, of a type of its own, whose particles are all impossible: they have
    equal weights, and nothing is NaN.
    """
    model = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), springs(dtype=jnp.float32, dim=2))
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3), (3, 4)], 6, node_type=[0] * 5 + [1])
    y = np.random.default_rng(5).standard_normal((6, 2)).astype(np.float32)
    y[5] = 40
    evidence = kbp.likelihood(model, graph, {k: Partial(near_vectors, of) for k, of in enumerate((y[:5], y[5:]))})
    solution = METHODS[number](model, graph, evidence, key=jax.random.key(0), num_particles=400)
    floats = [leaf for leaf in jax.tree.leaves(solution) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(floats) == 7 and all(leaf.dtype == jnp.float32 for leaf in floats)
    assert all(np.all(np.isfinite(leaf)) for leaf in (solution.particles, solution.log_weights))
    truth = np.stack([exact(TREE, y[:5, i])[0] for i in range(2)], axis=1)
    np.testing.assert_allclose(particle.mean(solution)[:5], truth, atol=0.15)
    np.testing.assert_allclose(np.exp(solution.log_weights[5]), 1 / 400, rtol=1e-5)
    points = np.stack(np.meshgrid(*[np.linspace(-4, 4, 33)] * 2), axis=-1).reshape(-1, 2)
    belief = particle.beliefs(model, graph, evidence, solution, np.concatenate([points, y[5:]]))
    assert belief.weights.shape == (6, 33**2 + 1) and belief.weights.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(belief.weights[:5, :-1]) @ points, truth, atol=0.15)
    np.testing.assert_allclose(belief.weights[5, -1], 1, rtol=1e-5)  # the only point that is possible


def test_mistakes_are_named():
    model, key = springs(), jax.random.key(0)
    _, evidence = seen(model, TREE)
    two = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), model)
    typed = kbp.Graph.from_edges([], 3, node_type=[0, 1, 0])
    good = {"key": key, "num_particles": 1, "num_iters": 1}

    def fails(text, method, *problem, **options):
        with pytest.raises(ValueError, match=text):
            method(*problem, **options)

    for method in (particle.run, expectation_particle.run):
        for name in ("num_particles", "num_iters"):
            fails(f"{name}: must be an integer >= 1; got 0", method, model, TREE, **(good | {name: 0}))
        fails("key: must be a random key; got 0", inspect.unwrap(method), model, TREE, key=0)
        fails("damping: must be finite and >= 0 and < 1; got 1", method, model, TREE, **good, damping=1.0)
        learned = dataclasses.replace(
            evidence, messages=jnp.zeros((1, 5, 0)), observed=jnp.ones((1, 5), bool), exponents=jnp.ones(1)
        )
        fails("evidence: must be known likelihoods; got learned", method, model, TREE, learned, **good)
        fails("evidence: must be of 16 nodes; got 5", method, model, GRID, evidence, **good)
        fails("model: must have potentials of 3 node types", method, two, kbp.chain_graph(2, node_type=[0, 2]), **good)
        one = method(two, typed, **good)
        assert np.all(np.isfinite(one.particles)) and one.particles.shape == (3, 1, 1)
        np.testing.assert_array_equal(one.log_weights, 0)
    for name in ("resample_every", "num_moves"):
        fails(f"{name}: must be an integer >= 1; got 0", particle.run, model, TREE, **good, **{name: 0})
    fails("min_weight: must be finite and >= 0 and < 1; got 1", particle.run, model, TREE, **good, min_weight=1.0)
    fails("model: must be a PairwiseMRF; got int", pairwise.check_problem, 3, TREE, None)
    fails("graph: must be a kbpjax.Graph; got NoneType", pairwise.check_problem, model, None, None)
    fails("evidence: must be Evidence or None; got int", pairwise.check_problem, model, TREE, 3)
    solution, (_, _, evidence) = plain(0, 0), on_both()
    fails("solution: must be of 16 nodes and 48 messages", particle.beliefs, model, GRID, None, solution, [0.0])
    fails(r"points: must have shape \[point", particle.beliefs, model, BOTH, evidence, solution, [[0.0]])
    fails("points: must be finite", particle.beliefs, model, BOTH, evidence, solution, [np.nan])
    fails("nodes: ", particle.beliefs, model, BOTH, evidence, solution, [1e5])
