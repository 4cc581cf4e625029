"""The texts of objects: values where they are known, shapes inside `jax.jit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kbpjax as kbp
from kbpjax import kernels

GRAPH = kbp.chain_graph(3)
X = np.linspace(-1, 1, 60).reshape(20, 3)
AGREE = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]), 0.125)
COMPLETE = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
DATA = kbp.TrainingData(
    {0: (X[0], X[1][:, None])}, {0: X[0], 1: X[1][:, None]}, {1: (X[1][:, None], X[2])}, ends={0: (0, 1)}
)
RULE = kbp.FullRank()
MODEL = kbp.fit(DATA, kernel={0: kbp.RBF(0.5), 1: kbp.Linear() + 1.0}, obs_kernel=kbp.Delta(), rule=RULE, ridge=0.01)
BELIEF = kbp.Belief(jnp.array([0.0, 3.0, 255.0]), jnp.full((8, 3), 1 / 3))
TUNED = kbp.Tuned(
    kbp.Hyperparameters(kbp.RBF(0.5)),
    MODEL,
    np.array([1.0, 0.8]),
    {0: 1.0, 2: 0.75},
    {"ridge": np.ones(2)},
    "no better",
)


def solved(converged, residual):
    numbers = jnp.asarray(converged), jnp.asarray(12), jnp.asarray(residual)
    return kbp.Solution(jnp.ones((4, 2)), *numbers, jnp.ones(12))


def evidence():
    model = kbp.fit(kbp.pool(GRAPH, X, X), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
    return kbp.observe(model, GRAPH, X[0], mask=[True, True, False]) ** 0.5 * kbp.clamp(model, GRAPH, [2], [0.2])


TEXTS = {
    "RBF": (kbp.RBF(1.0), "RBF(bandwidth=1.0)"),
    "rounded": (kbp.RBF(1 / 3), "RBF(bandwidth=0.3333)"),
    "ARD": (kernels.ARD(jnp.array([1.0, 0.5])), "ARD(bandwidths=[1, 0.5])"),
    "tied ARD": (kernels.ARD([1.0, 0.5], [0, 1, 0]), "ARD(bandwidths=[1, 0.5], groups=(0, 1, 0))"),
    "static": (kernels.Matern(2.0, nu=1.5), "Matern(bandwidth=2.0, nu=1.5)"),
    "product of a sum": ((kbp.RBF(1.0) + kbp.Linear()) * kbp.Delta(), "(RBF(bandwidth=1.0) + Linear()) * Delta()"),
    "sum of products": (2.0 * kbp.Linear() + kbp.Delta() * 0.5 + 3, "2.0 * Linear() + 0.5 * Delta() + 3.0"),
    "power": ((kbp.Linear() * kbp.Delta()) ** 2, "(Linear() * Delta())**2"),
    "power of one": (kbp.Linear() ** 3, "Linear()**3"),
    "transformed": (kernels.Transformed(jnp.sin, kbp.Linear()), "Transformed(transform=sin, base=Linear())"),
    "long array": (kernels.Precomputed(np.eye(12)), "Precomputed(matrix=f64[12,12])"),
    "part": (kernels.Part(kbp.Delta(), 0, 2), "Part(base=Delta(), start=0, stop=2)"),
    "rule": (kbp.ConstantTime(1e-2), "ConstantTime(eps=0.01, max_rank=128, features=PivotedCholesky())"),
    "schedule": (kbp.colored(GRAPH), "Colored(2 colors)"),
    "message": (kbp.ep.Gaussian(4.0, 2.5), "Gaussian(precision=4.0, shift=2.5)"),
    "chain": (GRAPH, "Graph(3 nodes, 2 edges, forest)"),
    "cycle": (COMPLETE, "Graph(4 nodes, 6 edges, with cycles)"),
    "no edges": (kbp.chain_graph(1), "Graph(1 nodes, 0 edges, without edges)"),
    "types": (
        kbp.chain_graph(3, node_type=[0, 0, 4]),
        "Graph(\n  3 nodes, 2 edges, forest\n  nodes: 2 of type 0, 1 of type 4\n"
        "  edges: type 0 joins node types 0 and 0, type 1 joins node types 0 and 4\n)",
    ),
    "operators": (
        AGREE,
        "Operators(evaluate=f64[1,2,2], project=f64[1,2,2], floor=0.125, arithmetic=SumProduct())",
    ),
    "converged": (solved(True, 3e-4), "Solution(converged in 12 iterations, residual 0.0003)"),
    "not converged": (solved(False, 0.5), "Solution(NOT converged after 12 iterations, residual 0.5)"),
    "batch": (
        jax.vmap(solved)(jnp.array([True, False]), jnp.array([0.0, 0.25])),
        "Solution(1 of 2 problems converged, residuals up to 0.25)",
    ),
    "diagnosis": (
        kbp.Diagnosis(*map(jnp.asarray, (0.5, 1.25, 0.5, 0.0))),
        "Diagnosis(residual=0.5, spectral_radius=1.25, moved_once=0.5, moved_twice=0.0, oscillates=True)",
    ),
    "belief": (BELIEF, "Belief(8 nodes on 3 points from 0 to 255)"),
    "vectors": (
        kbp.Belief(jnp.array([[0.0, 1.5], [2.0, 0.5]]), jnp.ones((1, 2)) / 2),
        "Belief(1 nodes on 2 points of shape (2,) from [0, 0.5] to [2, 1.5])",
    ),
    "edges": (kbp.EdgeBelief(jnp.zeros(2), jnp.zeros(3), jnp.zeros((5, 2, 3))), "EdgeBelief(5 edges on 2 x 3 points)"),
    "evidence": (evidence(), "Evidence(3 nodes: 2 observed, 1 clamped, powers [0.5])"),
    "data": (
        DATA,
        "TrainingData(\n  node type 0: 3 samples of shape ()\n  node type 1: 3 samples of shape (1,)\n"
        "  edge type 0: 3 pairs of node types 0 and 1\n  observations of node type 1: 3 of shape ()\n)",
    ),
    "parzen": (kbp.Parzen(kbp.RBF(1.0), X[0]), "Parzen(kernel=RBF(bandwidth=1.0), samples=[-1, -0.9661, -0.9322])"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_objects_print_their_values(name):
    value, text = TEXTS[name]
    assert repr(value) == text


def test_a_model_prints_kernels_ranks_residuals_and_ridges():
    lines = repr(MODEL).splitlines()
    assert lines[0] == "KernelMRF(" and lines[-2:] == ["  updates: as estimated", ")"]
    assert lines[1] == "  node type 0: RBF(bandwidth=0.5), rank 3, 3 points,"
    residuals = [f"{float(r):.2g}" for r in MODEL.residuals[0]]
    assert f"residuals {residuals[0]} (messages) and {residuals[1]} (products)" in lines[2]
    assert "floor 1e-06" in lines[2] and "obs_ridge 0.01" in lines[2]
    assert lines[3].startswith("  node type 1: Linear() + 1.0, rank 3, 3 points,")
    assert "  edge type 0: node types 0 and 1" in lines
    assert any(line.startswith("  observations of node type 1: Delta(), rank 3, residual") for line in lines)
    positive = kbp.fit(DATA, kernel=kbp.RBF(0.5), obs_kernel=kbp.Delta(), nonnegative=kbp.Clipped(), ridge=0.01)
    assert "  updates: nonnegative" in repr(positive).splitlines()


def test_hyperparameters_and_the_result_of_tuning_print_their_numbers():
    lines = repr(TUNED.hyperparameters).splitlines()
    assert {"  kernel=RBF(bandwidth=0.5),", "  ridge=1e-06,", "  temperature=1.0,", "  num_iters=200,"} < set(lines)
    assert "obs_kernel" not in repr(TUNED.hyperparameters)  # which is None
    text = "validation loss 1 at the start, 0.75 at best, 2 steps (no better)"
    assert repr(TUNED).splitlines()[1] == f"  {text}" and "    temperature=1.0," in repr(TUNED)


def test_traced_objects_print_their_shapes():
    texts = []
    values = {name: value for name, (value, _) in TEXTS.items() if name not in ("rule", "transformed")}

    @jax.jit
    def trace(values, model, tuned):
        texts.extend([{name: repr(value) for name, value in values.items()}, repr(model), repr(tuned)])
        texts.append([repr(value) for value, _ in TEXTS.values()])  # constants are known
        return 0

    trace(values, MODEL, TUNED.hyperparameters)
    by_name, model, tuned, known = texts
    assert by_name["RBF"] == "RBF(bandwidth=f64[])"
    assert by_name["belief"] == "Belief(points=f64[3], weights=f64[8,3])"
    assert (
        by_name["converged"].startswith("Solution(messages=f64[4,2], converged=bool[],") or "\n" in by_name["converged"]
    )
    assert by_name["chain"] == repr(GRAPH)
    assert "0: RBF" not in model and "RBF(bandwidth=f64[])" in model and "temperature=f64[]," in tuned
    assert known == [text for _, text in TEXTS.values()]


def test_objects_without_arrays_print_too():
    everything = [value for value, _ in TEXTS.values()] + [MODEL, TUNED.hyperparameters]
    for value in everything:
        halves = [repr(half) for half in eqx.partition(value, eqx.is_inexact_array)]
        assert all(isinstance(value, kbp.Kernel) or text.startswith(type(value).__name__) for text in halves)
        assert repr(jax.tree.map(lambda _: object(), value))
