"""Graphs of nodes alone: nothing is sent, and everything still answers."""

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X + 0.5 * RNG.normal(size=X.shape)
MODEL = kbp.fit(kbp.pool(kbp.chain_graph(2), X, Y), kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(1.0), ridge=1e-2)
ALONE = kbp.Graph.from_edges([], 3)


def test_gradient_of_a_fixed_point_is_that_of_the_iterations():
    def answer(y, **options):
        evidence = kbp.observe(MODEL, ALONE, y)
        solution = kbp.run(MODEL, ALONE, evidence, **options)
        return kbp.mean(kbp.beliefs(MODEL, ALONE, evidence, solution, np.linspace(-3, 3, 31))).sum()

    y = jnp.asarray(RNG.normal(size=3))
    np.testing.assert_allclose(jax.grad(answer)(y), jax.grad(lambda y: answer(y, tol=1e-6))(y), rtol=1e-6)
    assert np.abs(jax.grad(answer)(y)).min() > 1e-3


def test_log_partition_is_the_sum_over_the_nodes():
    def of(graph, y):
        evidence = kbp.likelihood(MODEL, graph, lambda x: jnp.exp(-((y[:, None] - x[None]) ** 2) / 2))
        return kbp.log_partition(MODEL, graph, evidence, kbp.run(MODEL, graph, evidence))

    y = jnp.asarray(RNG.normal(size=3))
    one = kbp.Graph.from_edges([], 1)
    np.testing.assert_allclose(of(ALONE, y), sum(of(one, y[i : i + 1]) for i in range(3)), rtol=1e-6)
