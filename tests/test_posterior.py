"""The posterior: equal to its long form, one object for every question, with batch axes, given is kept."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from benchmarks.first_try import problems, real
from kbpjax.baselines import discrete
from kbpjax.learning.model import with_chosen

CHAIN, GRID = kbp.chain_graph(8), kbp.grid_graph(3, 3)
DRAWN = [*problems.PROBLEMS, "sunset-10", "inpainting"]
"""Problems of the first try that need no file."""


def walk(graph, count=60, seed=0):
    rng = np.random.default_rng(seed)
    x = np.cumsum(rng.normal(size=(count, graph.num_nodes)), axis=1)
    return x, x + rng.normal(size=x.shape)


def fitted(graph, **options):
    """A model with chosen evidence model, power and temperature, as `fit` may choose them."""
    x, y = walk(graph)
    kernels = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(0.7), "ridge": 1e-3}
    model = kbp.fit(kbp.pool(graph, x, y), **(kernels | options))
    return with_chosen(model, kbp.DensityRatio(), 1.4, 0.7), y


def spelled_out(model, graph, y):
    """The long form of `infer`; on graphs with cycles for a model with nonnegative operators."""
    evidence = kbp.observe(model, graph, y)
    if graph.forest is not None or graph.num_edges == 0:
        solution = kbp.run_tree(model, graph, evidence)
    else:
        exponents, schedule = kbp.tree_reweighting(graph), kbp.colored(graph)
        how = {"num_iters": 200, "tol": 1e-3, "damping": 0.0, "acceleration": kbp.Anderson()}
        solution = kbp.run(model, graph, evidence, exponents=exponents, schedule=schedule, **how)
    return kbp.Posterior.of(model, graph, evidence, solution), kbp.beliefs(model, graph, evidence, solution)


def assert_same(posterior, model, graph, y):
    long, beliefs = spelled_out(model, graph, y)
    for v, weights in posterior.probabilities.items():
        np.testing.assert_array_equal(weights, long.probabilities[v])
        np.testing.assert_array_equal(weights, (beliefs[v] if isinstance(beliefs, dict) else beliefs).weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_infer_equals_its_long_form_on_the_problems_of_the_first_try(name):
    rng = np.random.default_rng(0)
    problem = problems.PROBLEMS[name](rng, True) if name in problems.PROBLEMS else real.PROBLEMS[name](rng, True, None)
    data = problem.pool()
    kernel = {v: problem.kernel.get(v) or kbp.RBF(kbp.median_bandwidth(x) / 4) for v, x in data.nodes.items()}
    observed = {v: y for v, (_, y) in data.observations.items()}
    obs_kernel = {v: problem.obs_kernel.get(v) or kbp.RBF(kbp.median_bandwidth(y) / 4) for v, y in observed.items()}
    options = {"ridge": 1e-3, "rule": kbp.ConstantTime(max_rank=48)}
    positive = None if problem.graph.forest is not None or problem.graph.num_edges == 0 else kbp.Clipped()
    model = kbp.fit(data, kernel=kernel, obs_kernel=obs_kernel, nonnegative=positive, **options)
    model = with_chosen(model, kbp.DensityRatio(), 1.3, 0.8)
    y = jax.tree.map(lambda y: y[0], problem.test.y)
    assert_same(kbp.infer(model, problem.graph, y), model, problem.graph, y)


# Chains of two types and of states are in the next test.
@pytest.mark.parametrize(
    "graph", [pytest.param(CHAIN, id="chain", marks=pytest.mark.slow), pytest.param(GRID, id="grid")]
)
def test_infer_equals_its_long_form(graph):
    model, y = fitted(graph, nonnegative=None if graph is CHAIN else kbp.Clipped())
    posterior = kbp.infer(model, graph, y[0])
    assert_same(posterior, model, graph, y[0])
    plain = kbp.observe(model, graph, y[0], evidence_model=kbp.Expectation(), power=1.0)
    other = kbp.infer(model, graph, evidence=plain)
    assert np.abs(kbp.mean(other) - kbp.mean(posterior)).max() > 1e-2  # the model's choices matter
    cold = kbp.beliefs(model, graph, posterior.evidence, posterior.solution, temperature=1.0)
    np.testing.assert_allclose(kbp.temper(cold, 0.7).weights, posterior.weights, atol=1e-6)


@pytest.mark.slow
def test_infer_equals_its_long_form_on_states_and_types():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4, node_type=[0, 1, 0, 1])
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(50, 4)), axis=1)
    kernels = {0: kbp.RBF(1.0), 1: kbp.RBF(2.0)}
    model = kbp.fit(kbp.pool(graph, x, x), kernel=kernels, obs_kernel=kernels, ridge=1e-3)
    model = with_chosen(model, kbp.DensityRatio(), 2.0, 0.5)
    assert_same(kbp.infer(model, graph, x[0]), model, graph, x[0])
    chain = kbp.chain_graph(5)
    tables = discrete.from_potentials([0, 1], [1.0, 2.0], [[[3.0, 1.0], [1.0, 2.0]]])
    evidence = kbp.likelihood(tables, chain, lambda x: jnp.exp(jnp.linspace(-1, 1, 5)[:, None] * x[None].astype(float)))
    want = kbp.beliefs(tables, chain, evidence, kbp.run_tree(tables, chain, evidence), np.array([0, 1]))
    got = kbp.infer(tables, chain, evidence=evidence, points=np.array([0, 1]))
    np.testing.assert_array_equal(got.weights, want.weights)


def test_beliefs_of_unknown_node_types_are_refused():
    graph = kbp.Graph.from_edges([(0, 2), (2, 1)], 3, node_type=[0, 0, 4])
    model = discrete.from_potentials(
        {0: jnp.arange(2), 4: jnp.arange(3)},
        {0: jnp.ones(2), 4: jnp.ones(3)},
        {0: jnp.ones((2, 3))},
        ends={0: (0, 4)},
    )
    posterior = kbp.infer(model, graph)
    assert [len(posterior[v]) for v in (0, np.int64(4))] == [2, 1]
    for key in (2, "price", slice(None), [0, 1], -1):
        with pytest.raises(
            ValueError, match=r"key: must be one of the node types \[0, 4\]; got .*posterior\[node_type\]"
        ):
            posterior[key]


def test_clamps_use_the_evidence_model_of_the_model():
    model, _ = fitted(CHAIN)
    chosen, given = (
        kbp.clamp(model, CHAIN, [0], [1.0], **more) for more in ({}, {"evidence_model": kbp.DensityRatio()})
    )
    np.testing.assert_array_equal(chosen.local, given.local)
    other = kbp.clamp(model, CHAIN, [0], [1.0], evidence_model=kbp.Expectation())
    assert np.abs(other.local - chosen.local).max() > 1e-2


@pytest.mark.slow
def test_every_question_is_answered_from_the_posterior():
    model, y = fitted(GRID, nonnegative=kbp.Clipped())
    posterior = kbp.infer(model, GRID, y[0])
    parts = model, GRID, posterior.evidence, posterior.solution
    np.testing.assert_array_equal(kbp.log_partition(posterior), kbp.log_partition(*parts))
    assert kbp.check(posterior) is posterior
    spectrum = kbp.diagnose(posterior), kbp.diagnose(*parts)
    np.testing.assert_array_equal(spectrum[0].spectral_radius, spectrum[1].spectral_radius)
    wide = np.linspace(-6, 6, 5)
    np.testing.assert_array_equal(posterior.at(wide).weights, kbp.beliefs(*parts, wide).weights)
    heights = kbp.log_belief(posterior, jnp.tile(posterior.points, (9, 1)))
    logs = np.where(np.asarray(posterior.weights) > 1e-12, np.log(posterior.weights), np.nan)
    np.testing.assert_allclose(np.nanstd(heights - logs, axis=1), 0, atol=1e-4)  # evenly spaced points
    truth = np.zeros(9)
    for loss in (kbp.CRPS(), kbp.SquaredError(), kbp.NegativeLogBelief(), kbp.IntervalScore()):
        np.testing.assert_array_equal(loss(posterior, truth), loss(posterior.belief, truth))
    assert len(posterior) == 9 and posterior[2].weights.shape == (1, len(posterior.points))
    assert "Posterior(\n  Graph(9 nodes" in repr(posterior)


SUMMARIES = {
    "mean": kbp.mean,
    "mode": kbp.mode,
    "std": kbp.std,
    "variance": kbp.variance,
    "entropy": kbp.entropy,
    "quantile": lambda p: kbp.quantile(p, 0.3),
    "interval": lambda p: jnp.stack(kbp.interval(p, 0.9)),
    "expectation": lambda p: kbp.expectation(p, jnp.sin),
    "temper": lambda p: kbp.temper(p, 2.0).weights,
    "marginal": lambda p: kbp.marginal(p).weights,
    "highest_density": kbp.highest_density,
}


@pytest.mark.slow
def test_iterated_messages_have_a_partition_function_and_a_diagnosis():
    """Messages of `infer` on a graph with cycles are those of nonnegative operators, which the model need not have."""
    graph = kbp.grid_graph(2, 3)
    model, y = fitted(graph)
    posterior = kbp.infer(model, graph, y[0])
    clipped, evidence = fitted(graph, nonnegative=kbp.Clipped())[0], posterior.evidence
    expected = kbp.log_partition(clipped, graph, evidence, posterior.solution)
    np.testing.assert_allclose(kbp.log_partition(posterior), expected, rtol=1e-3)  # whose prior is of clipped operators
    # On the tree that remains without its cycles, it is that of exact inference.
    tree = kbp.Graph.from_edges([(0, 1), (1, 2), (3, 4), (4, 5), (0, 3)], 6)
    exact = kbp.log_partition(kbp.infer(model, tree, y[0]))
    iterated = kbp.run(clipped, tree, evidence, num_iters=40, damping=0.0)
    np.testing.assert_allclose(kbp.log_partition(clipped, tree, evidence, iterated), exact, rtol=0.02)
    assert kbp.diagnose(posterior).residual <= 1e-3


@pytest.mark.slow
def test_summaries_of_a_batch_equal_those_of_its_cases():
    model, y = fitted(CHAIN)
    cases = y[:6].reshape(2, 3, -1)
    one = lambda case: kbp.infer(model, CHAIN, case)
    batch = jax.vmap(jax.vmap(one))(cases)
    assert batch.batch == (2, 3) and batch.model is not model and batch.model.operators is not None
    assert batch.graph.senders.shape == CHAIN.senders.shape  # not a copy for each case
    compiled = jax.jit(jax.vmap(jax.vmap(one)))(cases)
    for name, summary in SUMMARIES.items():
        got, again = np.asarray(summary(batch)), np.asarray(summary(compiled))
        got = np.moveaxis(got, 0, 2) if name == "interval" else got
        again = np.moveaxis(again, 0, 2) if name == "interval" else again
        for i, j in itertools.product(range(2), range(3)):
            want = np.asarray(summary(one(cases[i, j])))
            np.testing.assert_allclose(got[i, j], want, atol=2e-4, err_msg=name)
            np.testing.assert_allclose(again[i, j], want, atol=2e-4, err_msg=name)
    truth = np.zeros((2, 3, 8))
    np.testing.assert_allclose(
        kbp.log_density(batch, truth)[1, 2], kbp.log_density(one(cases[1, 2]), truth[1, 2]), atol=1e-3
    )
    assert kbp.coverage(batch, truth).shape == (2, 3, 2)
    drawn = kbp.sample(batch, jax.random.key(0), 5)
    assert drawn.shape == (2, 3, 5, 8) and (np.asarray(drawn[0, 0]) != np.asarray(drawn[0, 1])).any()
    pairs = jax.vmap(jax.vmap(lambda p: kbp.edge_beliefs(p, [(0, 1)]).weights))(batch)
    np.testing.assert_allclose(pairs[1, 2], kbp.edge_beliefs(one(cases[1, 2]), [(0, 1)]).weights, atol=1e-5)
    for ask in (lambda p: kbp.edge_beliefs(p, [(0, 1)]), kbp.log_partition, lambda p: p.at([0.0, 1.0])):
        with pytest.raises(ValueError, match=r"^posterior: must be of one problem; got batch axes \(2, 3\)"):
            ask(batch)


@pytest.mark.slow
def test_a_compiled_posterior_is_compiled_once_and_differentiable():
    model, y = fitted(CHAIN)
    compiled = jax.jit(kbp.infer)
    posterior, *_ = [compiled(model, CHAIN, case) for case in y[:3]]
    assert compiled._cache_size() == 1
    np.testing.assert_allclose(kbp.mean(posterior), kbp.mean(kbp.infer(model, CHAIN, y[0])), atol=1e-4)
    mean = jax.jit(lambda p: kbp.mean(p)[0])
    [mean(kbp.infer(model, CHAIN, case)) for case in y[:3]]
    assert mean._cache_size() == 1

    def correlation(y):
        pair = kbp.edge_beliefs(kbp.infer(model, CHAIN, y), [(3, 4)])
        return jnp.einsum("efs,f,s->", pair.weights, pair.first, pair.second)

    y = jnp.asarray(y[0])
    step = jnp.zeros(8).at[3].set(1e-2)
    slope = jax.grad(correlation)(y)[3]
    np.testing.assert_allclose(slope, (correlation(y + step) - correlation(y - step)) / 2e-2, rtol=0.05)


def test_a_case_without_observations_has_the_beliefs_of_the_model():
    model, y = fitted(CHAIN)
    missing = np.full(8, np.nan)
    alone = kbp.infer(model, CHAIN)
    prior = kbp.infer(model, CHAIN, missing)
    np.testing.assert_allclose(prior.weights, alone.weights, atol=1e-6)
    np.testing.assert_allclose(kbp.infer(model, CHAIN, y[0], mask=np.zeros(8, bool)).weights, alone.weights, atol=1e-6)
    batch = jax.vmap(lambda y: kbp.infer(model, CHAIN, y))(np.stack([missing, y[0], missing]))
    np.testing.assert_allclose(batch.weights[0], alone.weights, atol=1e-5)
    np.testing.assert_allclose(batch.weights[1], kbp.infer(model, CHAIN, y[0]).weights, atol=1e-5)


@pytest.mark.slow
def test_values_by_type_are_clamped_and_holes_are_not():
    graph = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3)], 4, node_type=[0, 1, 0, 1])
    x = np.cumsum(np.random.default_rng(0).normal(size=(50, 4)), axis=1)
    model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(1.0), ridge=1e-3)
    want = kbp.clamp(model, graph, [0, 3], [0.5, -0.2])
    ways = {
        "numbers": kbp.clamp(model, graph, [0, 3], {0: [0.5], 1: [-0.2]}),
        "all of a type": kbp.clamp(model, graph, None, {0: [0.5, np.nan], 1: [np.nan, -0.2]}),
        "all": kbp.clamp(model, graph, None, [0.5, np.nan, np.nan, -0.2]),
        "mask": kbp.clamp(model, graph, None, [0.5, 9.0, 9.0, -0.2], mask=[True, False, False, True]),
        "masked": kbp.clamp(model, graph, None, np.ma.array([0.5, 9, 9, -0.2], mask=[0, 1, 1, 0])),
        "compiled": jax.jit(lambda x: kbp.clamp(model, graph, None, x))(jnp.array([0.5, jnp.nan, jnp.nan, -0.2])),
    }
    for name, got in ways.items():
        np.testing.assert_allclose(got.local, want.local, rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(got.clamped, want.clamped, err_msg=name)
        means = [kbp.mean(kbp.infer(model, graph, evidence=e)) for e in (got, want)]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *means)
    wrong = {
        "nodes and a mask": lambda: kbp.clamp(model, graph, [0], [0.5], mask=[True] * 4),
        "another type": lambda: kbp.clamp(model, graph, None, {2: [0.5, 0.5]}),
        "no values of a type": lambda: kbp.clamp(model, graph, [0, 3], {0: [0.5]}),
        "too few": lambda: kbp.clamp(model, graph, None, [0.5]),
        "infinite": lambda: kbp.clamp(model, graph, None, {0: [np.inf, np.nan]}),
    }
    for call in wrong.values():
        with pytest.raises(ValueError, match=r"^(mask|values)"):
            call()


@pytest.mark.slow  # five searches
def test_what_is_given_is_kept_and_the_rest_is_chosen():
    rng = np.random.default_rng(0)
    x = (rng.random((40, 6)) < 0.5).astype(int)
    y = x + 0.5 * rng.normal(size=x.shape)
    data = kbp.pool(kbp.chain_graph(6), x, y)
    kernels, ridges = (None, kbp.Delta(), {0: kbp.Delta()}), (None, 1e-3, {0: 1e-3})
    for kernel, obs_kernel, ridge in itertools.product(kernels, (None, kbp.RBF(0.3)), ridges):
        model = kbp.fit(data, kernel=kernel, obs_kernel=obs_kernel, ridge=ridge)
        assert kernel is None or isinstance(model.bases[0].kernel, kbp.Delta)
        own = model.observations[0].basis.kernel
        assert obs_kernel is None or float(own.bandwidth) == pytest.approx(0.3)
        given = model.hyperparameters
        assert (given is None) == (kernel is not None and obs_kernel is not None)
        if given is not None and ridge is not None:
            assert float(jax.tree.leaves(given.ridge)[0]) == pytest.approx(1e-3)
        assert np.isfinite(kbp.mean(kbp.infer(model, kbp.chain_graph(6), y[0]))).all()


@pytest.mark.slow
def test_hyperparameters_give_their_choices_to_the_model():
    x, y = walk(CHAIN)
    numbers = {"evidence_power": 2.0, "temperature": 0.5, "evidence_model": kbp.DensityRatio(), "ridge": 1e-3}
    chosen = kbp.Hyperparameters(kbp.RBF(1.0), kbp.RBF(0.7), **numbers)
    model = chosen.fit(kbp.pool(CHAIN, x, y))
    points = np.asarray(model.candidates[0])
    posterior, answer = kbp.infer(model, CHAIN, y[0], points=points), chosen.answer(model, CHAIN, y[0], points)
    np.testing.assert_array_equal(posterior.weights, answer.weights)


@pytest.mark.parametrize("cases", [3, *(pytest.param(cases, marks=pytest.mark.slow) for cases in (2, 8))])
def test_arguments_of_a_batch_are_mapped_by_what_they_are_not_by_the_size_of_the_batch(cases):
    model, y = fitted(CHAIN)
    batch = jax.vmap(lambda y: kbp.infer(model, CHAIN, y))(y[:cases])
    for levels in ([0.5, 0.9], np.linspace(0.1, 0.9, 3), np.linspace(0.1, 0.9, 8)):
        for truth in (y[:cases], y[:cases].tolist(), y[0]):  # one of each case, or one for all
            of_case = [truth] * cases if np.ndim(truth) == 1 else truth
            one_by_one = [kbp.coverage(kbp.infer(model, CHAIN, y[i]), of_case[i], levels=levels) for i in range(cases)]
            np.testing.assert_allclose(kbp.coverage(batch, truth, levels=levels), one_by_one, atol=1e-6)
    shared = kbp.log_density(batch, y[0])
    np.testing.assert_allclose(shared, kbp.log_density(batch, np.tile(y[0], (cases, 1))), rtol=1e-5)
    with pytest.raises(TypeError, match="argument"):
        kbp.interval(batch, 0.5, 0.9)


@pytest.mark.slow
def test_posteriors_on_points_of_equal_values_compile_once():
    model, y = fitted(CHAIN)
    traced = []
    answer = jax.jit(lambda posterior: traced.append(posterior) or kbp.mean(posterior))
    for shift in range(3):
        points = np.linspace(-7, 7, 9)
        batch = jax.vmap(lambda y, points=points: kbp.infer(model, CHAIN, y, points=points))(y[:4] + shift)
        answer(batch)
    assert len(traced) == 1
    other = jax.vmap(lambda y: kbp.infer(model, CHAIN, y, points=np.linspace(-6, 6, 9)))(y[:4])
    np.testing.assert_allclose(answer(other), kbp.mean(other), rtol=1e-5)
    assert len(traced) == 2
