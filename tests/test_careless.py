"""Careless calls: each raises an error, or gives a warning, that names what to do."""

import re
import warnings

import jax
import numpy as np
import pytest

import kbpjax as kbp

RNG = np.random.default_rng(0)
CHAIN, GRID = kbp.chain_graph(6), kbp.grid_graph(3, 3)
X = np.cumsum(RNG.normal(size=(30, 6)), axis=1)
Y = X + RNG.normal(size=X.shape)
DATA = kbp.pool(CHAIN, X, Y)
TYPED = kbp.Graph.from_edges([(0, 1), (1, 2)], 3, node_type=[0, 0, 1])
KERNELS = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.0), "ridge": 1e-3}
MIXED = np.stack([RNG.normal(size=(20, 2)), 1e3 * RNG.normal(size=(20, 2))], axis=2)  # two units in one vector


@pytest.fixture(scope="module")
def model():
    return kbp.fit(DATA, **KERNELS)


def fit(**options):
    return kbp.fit(DATA, **(KERNELS | options))


ERRORS = {
    "candidates in other units": (lambda m: kbp.infer(m, CHAIN, Y[0], points=np.linspace(1e3, 2e3, 5)), "units"),
    "candidates with an axis too many": (lambda m: kbp.infer(m, CHAIN, Y[0], points=np.zeros((5, 2))), "points"),
    "no candidates": (lambda m: kbp.infer(m, CHAIN, Y[0], points=[]), "points"),
    "candidates with NaN": (lambda m: kbp.infer(m, CHAIN, Y[0], points=[0.0, np.nan]), "points"),
    "a batch of observations": (lambda m: kbp.infer(m, CHAIN, Y), "jax.vmap"),
    "observations of fewer nodes": (lambda m: kbp.infer(m, CHAIN, Y[0, :3]), "y"),
    "an infinite observation": (lambda m: kbp.infer(m, CHAIN, np.full(6, np.inf)), "y"),
    "a mask of other length": (lambda m: kbp.infer(m, CHAIN, Y[0], mask=[True] * 5), "mask"),
    "a mask of weights": (lambda m: kbp.infer(m, CHAIN, Y[0], mask=np.full(6, 0.5)), "mask"),
    "a mask without observations": (lambda m: kbp.infer(m, CHAIN, mask=[True] * 6), "mask"),
    "a graph with other types": (lambda m: kbp.infer(m, TYPED, Y[0, :3]), "graph"),
    "evidence of another graph": (
        lambda m: kbp.infer(m, CHAIN, evidence=kbp.observe(m, GRID, np.zeros(9))),
        "evidence",
    ),
    "no iterations": (lambda m: kbp.infer(m, GRID, np.zeros(9), num_iters=0), "num_iters"),
    "a negative tolerance": (lambda m: kbp.infer(m, GRID, np.zeros(9), tol=-1e-3), "tol"),
    "damping 1": (lambda m: kbp.run(m, GRID, damping=1.0), "damping"),
    "a node clamped twice": (lambda m: kbp.clamp(m, CHAIN, [1, 1], [0.0, 0.5]), "nodes"),
    "a node that is not there": (lambda m: kbp.clamp(m, CHAIN, [9], [0.0]), "nodes"),
    "a kernel of no observations": (
        lambda m: kbp.fit(DATA, kernel=kbp.RBF(1.0), obs_kernel={3: kbp.RBF(1.0)}),
        "obs_kernel",
    ),
    "a negative ridge": (lambda m: fit(ridge=-1.0), "ridge"),
    "a ridge for other edges": (lambda m: fit(ridge={1: 1e-3}, obs_ridge=1e-3), "ridge"),
    "a rank for a tolerance": (lambda m: kbp.ConstantTime(64), "max_rank"),
    "bandwidth 0": (lambda m: kbp.RBF(0.0), "bandwidth"),
    "period 0": (lambda m: kbp.kernels.Periodic(0.0), "period"),
    "landmarks inside jit": (lambda m: jax.jit(lambda s: fit(kernel=kbp.RBF(s)))(1.0), "fix_landmarks"),
    "choices inside jit": (lambda m: jax.jit(lambda x: kbp.fit(kbp.pool(CHAIN, x)))(X), "data"),
    "axes the other way round": (lambda m: kbp.pool(CHAIN, X.T, Y.T), "samples"),
    "one sample without its axis": (lambda m: kbp.pool(CHAIN, X[0], Y[0]), "samples"),
    "fewer observations": (lambda m: kbp.pool(CHAIN, X, Y[:9]), "observations"),
    "a type without samples": (lambda m: kbp.pool(TYPED, {0: X[:, :2]}), "samples"),
    "only missing samples": (lambda m: kbp.pool(CHAIN, np.full((3, 6), np.nan)), "samples"),
    "infinite samples": (lambda m: kbp.pool(CHAIN, np.full((3, 6), np.inf)), "samples"),
    "ragged samples": (lambda m: kbp.pool(CHAIN, [[1.0], [1.0, 2.0]]), "samples"),
    "words for numbers": (lambda m: kbp.observe(m, CHAIN, ["a"] * 6), "y"),
    "all samples alike": (lambda m: kbp.median_hyperparameters(kbp.pool(CHAIN, np.ones((5, 6)))), "all be equal"),
    "an edge twice": (lambda m: kbp.Graph.from_edges([(0, 1), (1, 0)], 2), "edges"),
    "a node joined to itself": (lambda m: kbp.Graph.from_edges([(0, 0)], 1), "edges"),
    "coverage in percent": (lambda m: kbp.interval(kbp.infer(m, CHAIN, Y[0]), 90), "coverage"),
}
WARNINGS = {
    "too few landmarks": (lambda m: fit(rule=kbp.ConstantTime(max_rank=3)), kbp.RankWarning, "max_rank"),
    "too few iterations": (lambda m: kbp.infer(m, GRID, np.zeros(9), num_iters=1), kbp.ConvergenceWarning, "num_iters"),
    "candidates of a part": (
        lambda m: kbp.infer(m, CHAIN, Y[0], points=np.linspace(0, 0.01, 5)),
        kbp.CandidateWarning,
        "units",
    ),
    "a clamp in other units": (lambda m: kbp.clamp(m, CHAIN, [1], [5e3]), kbp.EvidenceWarning, "units"),
    "observations in other units": (lambda m: kbp.infer(m, CHAIN, 1e3 + Y[0]), kbp.EvidenceWarning, "obs_kernel"),
    "features that are not standardized": (
        lambda m: kbp.fit(kbp.pool(kbp.chain_graph(2), MIXED), kernel=kbp.RBF(100.0)),
        kbp.ScaleWarning,
        "Standardize",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_careless_calls_raise(name, model):
    call, text = ERRORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kbp.KbpWarning)
        with pytest.raises(ValueError, match=re.escape(text)) as error:
            call(model)
    assert "; got " in str(error.value)


@pytest.mark.parametrize("name", WARNINGS)
def test_careless_calls_warn(name, model):
    call, category, text = WARNINGS[name]
    with pytest.warns(category, match=text):
        call(model)
    assert issubclass(category, kbp.KbpWarning)


def test_a_period_stays_what_it_is():
    x = RNG.uniform(-np.pi, np.pi, size=(20, 2))
    start = kbp.Hyperparameters(kbp.kernels.Periodic(2 * np.pi), ridge=1e-3, rule=kbp.ConstantTime(max_rank=20))
    chosen = kbp.select(start, kbp.pool(kbp.chain_graph(2), x), steps=2)
    assert float(chosen.kernel.period) == pytest.approx(2 * np.pi)
