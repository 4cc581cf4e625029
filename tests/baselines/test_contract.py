"""The contract of all baselines: one call, one kind of solution and of beliefs, one way to pass evidence."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import kbpjax as kbp
from kbpjax.baselines import (
    density,
    discrete,
    expectation_particle,
    gaussian,
    nonparametric,
    pairwise,
    particle,
    transfer_evidence,
)
from tests.refusals import not_refused

GRAPH, POINTS, ITERS = kbp.chain_graph(3), np.linspace(-4, 4, 17), 4
SEEN = np.array([1.0, np.nan, 2.0]), np.array([True, False, True])
SMALL = {
    "discrete": {},
    "gaussian": {},
    "nonparametric": {"num_components": 8, "sampler": nonparametric.GibbsSampler(2)},
    "particle": {"num_particles": 8, "resample_every": 2, "num_moves": 2},
    "expectation_particle": {"num_particles": 40},
}
METHODS = {
    "discrete": discrete,
    "gaussian": gaussian,
    "nonparametric": nonparametric,
    "particle": particle,
    "expectation_particle": expectation_particle,
}
STOCHASTIC = ("nonparametric", "particle", "expectation_particle")
NAMES = pytest.mark.parametrize("name", METHODS)


@functools.cache
def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).cumsum(axis=1)
    return kbp.pool(GRAPH, x, x + 0.5 * rng.standard_normal(x.shape))


def near(y, x):
    """The likelihood at common points or at per-node points; 1 for nodes without observation."""
    return jnp.where(jnp.isnan(y)[:, None], 1, jnp.exp(-2 * (jnp.nan_to_num(y)[:, None] - jnp.atleast_2d(x)) ** 2))


@functools.cache
def problem(name):
    """Return model, graph and evidence."""
    if name == "discrete":
        model = discrete.fit(data(), POINTS)
    elif name == "gaussian":
        model = gaussian.fit(data())
        return model, GRAPH, gaussian.likelihood(model, GRAPH, SEEN[0], noise=0.5, mask=SEEN[1])
    else:
        model = densities()
    return model, GRAPH, kbp.likelihood(model, GRAPH, Partial(near, jnp.asarray(SEEN[0])))


@functools.cache
def densities():
    options = {"num_centers": 15, "widths": [0.5], "ridges": [0.1], "marginal_widths": [0.5]}
    return pairwise.fit(jax.random.key(0), data(), **options)


@functools.cache
def solved(name, seed=None, **options):
    key = None if seed is None else jax.random.key(seed)
    return METHODS[name].run(*problem(name), num_iters=ITERS, key=key, **SMALL[name], **options)


def messages(solution):
    return jax.tree.leaves(solution.log_messages if hasattr(solution, "log_messages") else solution.messages)


@NAMES
def test_signatures_and_defaults_are_the_same(name):
    run, beliefs = (inspect.signature(f).parameters for f in (METHODS[name].run, METHODS[name].beliefs))
    contract = ["model", "graph", "evidence", "num_iters", "damping", "tol", "key"]
    assert list(run)[:7] == contract and list(beliefs)[:5] == ["model", "graph", "evidence", "solution", "points"]
    damping = 0.5 if name == "expectation_particle" else 0.2  # its docstring says why
    assert [run[of].default for of in contract[2:]] == [None, 30, damping, None, None]
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in list(run.values())[3:])
    reference = inspect.signature(kbp.run).parameters
    assert all(reference[of].default == run[of].default for of in ("evidence", "num_iters", "tol"))


@NAMES
def test_a_solution_has_messages_and_says_whether_they_converged(name):
    solution = solved(name)
    assert solution.residuals.shape == (ITERS,) and np.isfinite(solution.residuals).all()
    assert solution.converged.shape == () and solution.converged.dtype == bool
    assert solution.num_iters == ITERS
    assert all(len(leaf) == GRAPH.num_edges and np.isfinite(leaf).all() for leaf in messages(solution))
    assert solution.converged == (solution.residuals[-1] <= 1e-3)


# Methods that share a loop are tested by those that compile quickly; particles have a loop of their own.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("nonparametric", "expectation_particle") else ())
        for name in METHODS
    ],
)
def test_a_tolerance_stops_the_run(name):
    residuals = np.asarray(solved(name).residuals)
    first = 2 if name == "particle" else 1  # particles are resampled once before
    tol = float(np.sort(residuals[first:])[-1]) * (1 + 1e-6)
    expected = 1 + first + int(np.argmax(residuals[first:] <= tol)) if residuals[:first].min() > tol else None
    solution = solved(name, tol=tol)
    count = int(solution.num_iters)
    assert solution.converged and solution.residuals[count - 1] <= tol
    assert np.isnan(solution.residuals[count:]).all() and np.isfinite(solution.residuals[:count]).all()
    np.testing.assert_allclose(solution.residuals[:count], residuals[:count], rtol=1e-6, atol=1e-12)
    assert count < ITERS or tol < residuals[:-1].min() or name == "particle"
    assert expected is None or count == expected
    assert not solved(name, tol=1e-30).converged or residuals[-1] == 0


@NAMES
def test_beliefs_are_normalized_and_near_what_was_observed(name):
    belief = METHODS[name].beliefs(*problem(name), solved(name), POINTS)
    assert isinstance(belief, kbp.Belief) and belief.weights.shape == (3, len(POINTS))
    np.testing.assert_array_equal(belief.points, POINTS)
    np.testing.assert_allclose(belief.weights.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(kbp.mean(belief), [1, 1.4, 2], atol=1.0)


@NAMES
def test_keys_decide_what_is_drawn(name):
    """No key is key 0; deterministic methods ignore it."""
    default, again, other = (messages(solved(name, seed)) for seed in (None, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(default, again, strict=True))
    assert (name in STOCHASTIC) != all(np.array_equal(a, b) for a, b in zip(default, other, strict=True))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "gaussian"])
@pytest.mark.slow
def test_learned_evidence_becomes_evidence_of_any_model(name):
    """Evidence of a kernel model, and of a regression, gives beliefs near the observations."""
    kernel = kbp.RBF(1.0)
    source = kbp.fit(data(), kernel=kernel, obs_kernel=kernel)
    learned = kbp.observe(source, GRAPH, np.nan_to_num(SEEN[0]), mask=SEEN[1])
    model, run = problem(name)[0], functools.partial(METHODS[name].run, num_iters=ITERS, **SMALL[name])
    regression = density.fit_likelihood(jax.random.key(0), *data().observations[0], num_centers=10)
    for evidence in (
        transfer_evidence(model, GRAPH, learned, source),
        regression.evidence(model, GRAPH, SEEN[0], mask=SEEN[1]),
    ):
        belief = METHODS[name].beliefs(model, GRAPH, evidence, run(model, GRAPH, evidence), POINTS)
        np.testing.assert_allclose(kbp.mean(belief)[::2], SEEN[0][::2], atol=1.2)


def test_transferred_evidence_is_what_the_kernel_model_evaluates():
    kernel = kbp.RBF(1.0)
    source, model = kbp.fit(data(), kernel=kernel, obs_kernel=kernel), problem("discrete")[0]
    learned = kbp.observe(source, GRAPH, np.nan_to_num(SEEN[0]), mask=SEEN[1]) ** 0.5
    both = learned * kbp.likelihood(source, GRAPH, Partial(near, jnp.asarray(SEEN[0])))
    got = transfer_evidence(model, GRAPH, both, source)
    factors = jnp.einsum("nr,pr->np", learned.messages[0], kbp.features.features(source.bases[0], jnp.asarray(POINTS)))
    expected = jnp.maximum(factors, source.floor_of(0)) ** 0.5
    expected = jnp.where(SEEN[1][:, None], expected, 1) * near(jnp.asarray(SEEN[0]), jnp.asarray(POINTS))
    expected /= expected.max(axis=1, keepdims=True)
    np.testing.assert_allclose(got.local / got.local.max(axis=1, keepdims=True), expected, rtol=1e-9)
    per_node = got.likelihoods[0][0](jnp.asarray(POINTS)[None].repeat(3, axis=0))
    np.testing.assert_allclose(per_node, got.likelihoods[0][0](jnp.asarray(POINTS)), rtol=1e-9)


def test_wrong_arguments_are_named():
    kernel = kbp.RBF(1.0)
    source = kbp.fit(data(), kernel=kernel, obs_kernel=kernel)
    learned = kbp.observe(source, GRAPH, np.nan_to_num(SEEN[0]), mask=SEEN[1])
    table = {}
    for name, method in METHODS.items():
        model, graph, evidence = problem(name)
        run = functools.partial(method.run, model, graph)
        for option, value in {"num_iters": 0, "damping": 1.0, "tol": 0.0}.items():
            table[f"{name} {option}"] = functools.partial(run, **{option: value}), f"{option}: must be"
        table[f"{name} graph"] = (
            functools.partial(method.run, model, model),
            "graph: must be a Graph; got a .* It fits model",
        )
        table[f"{name} model"] = functools.partial(method.run, 3, graph), "model: must be"
        table[f"{name} evidence"] = functools.partial(run, learned), "evidence: "
        table[f"{name} points"] = (
            functools.partial(method.beliefs, model, graph, evidence, solved(name), []),
            "points: ",
        )
        other = model, kbp.chain_graph(2), None
        table[f"{name} solution"] = functools.partial(method.beliefs, *other, solved(name), POINTS), "solution: "
        if name in STOCHASTIC:
            table[f"{name} key"] = functools.partial(run, key=0), "key: must be a random key or None; got 0"
    clamped = kbp.clamp(source, GRAPH, [0], [0.0])
    models = problem("discrete")[0], problem("particle")[0]
    table["clamps"] = functools.partial(transfer_evidence, models[0], GRAPH, clamped, source), "evidence: must have no"
    nothing = problem("particle")[2]
    table["source"] = (
        functools.partial(transfer_evidence, models[1], GRAPH, nothing, source),
        "evidence: must have mess",
    )
    assert not not_refused(table)
