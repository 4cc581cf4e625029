"""Anderson acceleration, damping that adapts, and warm starts, against plain iterations and linear algebra."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
import kbpjax.inference.acceleration
from tests import discrete, steps
from tests import reweighted as rw

SPINS = np.array([-1.0, 1.0])


def spins(coupling, field, spread=0.05):
    """Return the problem of a 4 x 4 grid with one coupling and nearly one field."""
    edges, rng = rw.grid_edges(4, 4), np.random.default_rng(0)
    fields = field + spread * rng.normal(size=16)
    tables = [np.exp(coupling * np.outer(SPINS, SPINS))] * len(edges)
    return discrete.problem(rw.Discrete(edges, [np.exp(h * SPINS) for h in fields], tables))


SLOW, SWINGING = spins(0.45, 0.02), spins(-1.0, 0.3)
PLAIN = {"num_iters": 2000, "damping": 0.0, "tol": 1e-11}

# --- Anderson ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [8, pytest.param(3, marks=pytest.mark.slow)])
def test_anderson_reaches_the_same_fixed_point_in_fewer_iterations(depth):
    plain = kbp.run(*SLOW, **PLAIN)
    quick = kbp.run(*SLOW, acceleration=kbp.Anderson(depth), **PLAIN)
    assert bool(plain.converged) and bool(quick.converged)
    np.testing.assert_allclose(quick.messages, plain.messages, atol=1e-9)
    assert int(quick.num_iters) < 0.5 * int(plain.num_iters)


@pytest.mark.parametrize("agreement", [2.9, 3.0, 4.0])
def test_anderson_does_not_stay_near_a_fixed_point_that_plain_iterations_leave(agreement):
    """Without the rests these take 253, over 1000 and 184 iterations, against 102, 87 and 40 plain ones."""
    agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[agreement, 1.0], [1.0, agreement]]]))
    problem = agree, kbp.grid_graph(4, 4), jnp.ones((16, 2)).at[0, 0].set(2.0)
    quick = kbp.run(*problem, num_iters=200, damping=0.0, tol=1e-8, acceleration=kbp.Anderson())
    assert bool(quick.converged)


def test_some_of_the_messages_are_enough_to_weigh_updates_by(monkeypatch):
    monkeypatch.setattr(kbpjax.inference.acceleration, "ENOUGH", 20)
    few = kbp.Anderson(4)  # a depth of its own, so that this is compiled anew
    assert few.start(jnp.zeros((48, 2))).differences.shape == (4, 20)  # ten of the 48 messages
    plain, quick = kbp.run(*SLOW, **PLAIN), kbp.run(*SLOW, acceleration=few, **PLAIN)
    assert bool(quick.converged) and int(quick.num_iters) < int(plain.num_iters)
    np.testing.assert_allclose(quick.messages, plain.messages, atol=1e-9)


def test_anderson_is_exact_on_a_linear_problem_after_one_step_more_than_its_dimension():
    """Messages (x, 1) stand for x, whatever their scale; x goes to A x + b."""
    rng = np.random.default_rng(1)
    matrix, offset = 0.3 * rng.normal(size=(3, 3)), rng.normal(size=3)
    matrix = matrix * 0.9 / np.abs(np.linalg.eigvals(matrix)).max()
    fixed = np.linalg.solve(np.eye(3) - matrix, offset)
    anderson, x, errors = kbp.Anderson(5), np.zeros(3), []
    history, advance = anderson.start(jnp.zeros((1, 4))), jax.jit(anderson.advance)
    for _ in range(5):
        new = matrix @ x + offset
        old, updated = (np.append(row, 1.0)[None] for row in (x, new))
        history, mixed = advance(history, old, updated, np.linalg.norm(fixed - x))
        np.testing.assert_allclose(np.linalg.norm(mixed) if len(errors) else 1.0, 1, atol=1e-12)
        x = np.asarray(mixed)[0, :3] / np.asarray(mixed)[0, 3]
        errors.append(np.linalg.norm(x - fixed) / np.linalg.norm(fixed))
    assert errors[2] > 1e-2 and errors[3] < 1e-7 and errors[4] < 1e-7


def test_a_residual_that_doubles_starts_afresh():
    rng = np.random.default_rng(2)
    anderson = kbp.Anderson(3)
    rows = rng.normal(size=(5, 2, 4))
    history, advance = anderson.start(jnp.asarray(rows[0])), jax.jit(anderson.advance)
    residuals = [1.0, 0.5, 0.9, 1.1, np.nan]  # 1.1 > 2 * 0.5 and NaN are no steady progress
    counts, mixes, least = [], [], []
    for new, residual in zip(rows, residuals, strict=True):
        history, mixed = advance(history, np.zeros_like(new), new, residual)
        counts.append(int(history.taken))
        mixes.append(bool(np.any(mixed != new)))
        least.append(float(history.least))
    assert counts == [1, 2, 3, 1, 1] and mixes == [False, True, True, False, False]
    np.testing.assert_array_equal(least, [1, 0.5, 0.5, 1.1, np.nan])


def test_anderson_stays_finite_where_messages_swing():
    plain = kbp.run(*SWINGING, num_iters=200, damping=0.0)
    assert float(plain.residuals[-1]) > 0.1
    for acceleration in (kbp.Anderson(2), kbp.Anderson(5)):
        wild = kbp.run(*SWINGING, num_iters=200, damping=0.0, acceleration=acceleration)
        assert np.isfinite(wild.messages).all() and np.isfinite(wild.residuals).all()
        np.testing.assert_allclose(np.linalg.norm(wild.messages, axis=1), 1, atol=1e-12)


def test_anderson_under_jit_and_vmap():
    operators, graph, local = SLOW
    many = jnp.asarray(np.asarray(local) * np.random.default_rng(3).uniform(0.5, 1, size=(3, 16, 2)))

    def run(local):
        return kbp.run(operators, graph, local, num_iters=12, damping=0.0, acceleration=kbp.Anderson(3)).messages

    loop = np.stack([run(one) for one in many])
    np.testing.assert_allclose(jax.jit(jax.vmap(run))(many), loop, atol=1e-9)
    np.testing.assert_allclose(jax.jit(run)(many[0]), loop[0], atol=1e-9)
    plain = kbp.run(operators, graph, many[0], num_iters=12, damping=0.0).messages
    assert np.abs(plain - loop[0]).max() > 1e-6


@pytest.mark.parametrize("depth", [1, 0, -3, True])
def test_depth_out_of_range(depth):
    with pytest.raises(ValueError, match="^depth: must be"):
        kbp.Anderson(depth)


# --- damping that adapts ----------------------------------------------------------------------------------------------


def test_adaptive_damping_converges_where_plain_messages_swing():
    plain = kbp.run(*SWINGING, **PLAIN)
    assert not bool(plain.converged) and int(plain.num_iters) == 2000
    damped = kbp.run(*SWINGING, **PLAIN | {"damping": kbp.AdaptiveDamping()})
    assert bool(damped.converged) and int(damped.num_iters) < 500
    still = steps.step(*SWINGING, steps.State(damped.messages, jnp.array(np.inf), jnp.int32(0)), damping=0.0)
    assert float(still.residual) < 1e-10


def test_adaptive_damping_is_none_while_residuals_fall():
    plain = kbp.run(*SLOW, num_iters=40, damping=0.0)
    assert (np.diff(plain.residuals) <= 0).all()
    adaptive = kbp.run(*SLOW, num_iters=40, damping=kbp.AdaptiveDamping())
    np.testing.assert_allclose(adaptive.messages, plain.messages, atol=1e-13)
    np.testing.assert_allclose(adaptive.residuals, plain.residuals, atol=1e-13)


@pytest.mark.parametrize("start, most", [(0.0, 0.95), (0.4, 0.7), (0.5, 0.5)])
def test_share_of_the_new_message_is_halved_or_grows_by_a_tenth(start, most):
    adaptive, rng = kbp.AdaptiveDamping(start, most), np.random.default_rng(4)
    residuals, damping, seen = rng.uniform(size=60), start, []
    for before, now in itertools.pairwise(residuals):
        share = (1 - damping) / 2 if now > before else 1.1 * (1 - damping)
        got = float(adaptive.next(jnp.asarray(damping), jnp.asarray(before), jnp.asarray(now)))
        np.testing.assert_allclose(got, np.clip(1 - share, 0, most), atol=1e-15)
        damping = got
        seen.append(got)
    assert min(seen) >= 0 and max(seen) == most


@pytest.mark.parametrize("start, most", [(-0.1, 0.5), (1.0, 0.5), (np.nan, 0.5), (0.5, 0.4), (0.0, 1.0), (0, np.nan)])
def test_bounds_of_damping_out_of_range(start, most):
    with pytest.raises(ValueError, match=r"^(start|most): must be finite and >= .* and < 1"):
        kbp.AdaptiveDamping(start, most)


# --- warm starts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [None, pytest.param(0.7, marks=pytest.mark.slow)])
def test_two_runs_are_one_longer_run(rho):
    options = {"damping": 0.3, "exponents": rho}
    whole = kbp.run(*SLOW, num_iters=12, **options)
    first = kbp.run(*SLOW, num_iters=5, **options)
    second, *scaled = (
        kbp.run(*SLOW, num_iters=7, start=start, **options) for start in (first, first.messages, 7 * first.messages)
    )
    np.testing.assert_allclose(second.messages, whole.messages, atol=1e-13)
    np.testing.assert_allclose(second.residuals, whole.residuals[5:], atol=1e-13)
    np.testing.assert_allclose(scaled[0].messages, scaled[1].messages, atol=1e-13)  # arrays are scaled to norm 1
    assert int(second.num_iters) == 7


def test_a_start_from_similar_evidence_is_closer():
    operators, graph, local = SLOW
    near = kbp.run(operators, graph, jnp.asarray(np.asarray(local) * np.exp(1e-4 * SPINS)), **PLAIN)
    cold, warm = (kbp.run(operators, graph, local, start=start, **PLAIN) for start in (None, near))
    np.testing.assert_allclose(warm.messages, cold.messages, atol=1e-9)
    assert int(warm.num_iters) < 0.8 * int(cold.num_iters)
    assert int(kbp.run(operators, graph, local, start=cold, **PLAIN).num_iters) == 1


def test_a_start_of_a_positive_model_is_its_values():
    model, graph = discrete.learned("constant", kbp.Clipped()), discrete.grid()
    evidence = discrete.evidence(model, graph, discrete.likelihoods(5))
    options = {"num_iters": 300, "damping": 0.2, "tol": 1e-10, "exponents": kbp.tree_reweighting(graph)}
    cold = kbp.run(model, graph, evidence, **options)
    assert int(cold.num_iters) > 10
    for start in (cold, cold.messages):
        warm = kbp.run(model, graph, evidence, start=start, **options)
        assert int(warm.num_iters) == 1
        np.testing.assert_allclose(warm.messages, cold.messages, atol=1e-9)
    for seed in range(10):
        start = jnp.asarray(np.random.default_rng(seed).uniform(0.01, 1, size=cold.messages.shape))
        other = kbp.run(model, graph, evidence, start=start, **options)
        assert bool(other.converged)
        np.testing.assert_allclose(other.messages, cold.messages, atol=1e-8)


def test_reweighted_messages_forget_where_they_start():
    """Plain ones do not: the strong couplings have two fixed points, all up and all down."""
    operators, graph, local = spins(1.0, 0.0, spread=0.02)
    rng, shape = np.random.default_rng(6), (10, graph.num_edges, 2)
    starts = rng.uniform(0.01, 1, size=shape) * np.where(np.arange(10)[:, None, None] % 2, [1, 9], [9, 1])

    def ends(rho):
        run = lambda start: kbp.run(operators, graph, local, num_iters=800, exponents=rho, start=start).messages
        return np.asarray(jax.jit(jax.vmap(run))(starts))

    assert np.ptp(ends(kbp.tree_reweighting(graph)), axis=0).max() < 1e-8
    assert np.ptp(ends(None), axis=0).max() > 0.1


def test_a_start_that_does_not_fit_is_refused():
    operators, graph, local = SLOW
    other = kbp.run(operators, kbp.chain_graph(3, edge_type=[0, 1]), num_iters=1)
    for start in (other, jnp.ones((48, 3)), jnp.ones((47, 2)), jnp.ones(96)):
        with pytest.raises(ValueError, match=r"^start: messages must have shape \(48, 2\)"):
            kbp.run(operators, graph, local, start=start)
    with pytest.raises(ValueError, match="^start: must be finite"):
        kbp.run(operators, graph, local, start=jnp.full((48, 2), np.nan))


def test_a_start_of_another_precision_is_converted():
    operators, graph, local = SLOW
    double = kbp.run(operators, graph, local, num_iters=3)
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (operators, local))
    for start in (double, double.messages):
        for tol in (None, 1e-3):
            found = kbp.run(single[0], graph, single[1], num_iters=2, start=start, tol=tol)
            assert found.messages.dtype == found.residual.dtype == jnp.float32
