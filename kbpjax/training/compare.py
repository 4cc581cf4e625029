"""Whether `fit(effort="high")` takes a trained model: beliefs on held-out cases, against those of the closed form."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._misc import quick_jit
from kbpjax.graphs.graph import Graph, StaticGraph
from kbpjax.kernels import RBF
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.clamp import clamp
from kbpjax.posterior.infer import infer
from kbpjax.training.examples import has_holes, values_of
from kbpjax.training.folds import Folds
from kbpjax.training.trainer import MOST, NODES
from kbpjax.tuning.losses import CRPS

HIDDEN = {False: 0.3, True: 0.1}
"""Share of the observations that are hidden, where they are the values themselves, by whether cases have holes."""


def can_train(model: KernelMRF, data: TrainingData) -> bool:
    """Return whether `fit` may train: cases of one graph with cycles, of numbers without front ends."""
    if len(data.cases) != 1 or data.front_ends or model.hyperparameters.front_ends:
        return False
    (cases,) = data.cases
    few = len(cases.present[min(cases.present)]) * min(cases.graph.num_nodes, NODES) <= MOST
    numbers = all(isinstance(getattr(basis, "kernel", None), RBF) for basis in model.bases.values())
    single = all(x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.floating) for x in model.points.values())
    return few and numbers and single and cases.graph.forest is None


def held_out_scores(models: list[KernelMRF], data: TrainingData, seed: int = 0) -> list[float]:
    """Return the mean CRPS of each model on what `train` with this seed holds out, and models should not have seen.

    It is in standard deviations of each node type.
    """
    (cases,) = data.cases
    folds = Folds.of_cases(cases, seed)
    chosen = folds.held
    rng, values = np.random.default_rng(seed + 1), values_of(cases)
    share = HIDDEN[has_holes(cases)]
    y, truth, units = {}, {}, {}
    for v, x in cases.samples.items():
        spread = float(np.std(np.asarray(x, float)[np.asarray(cases.present[v])]))
        units[v] = spread if spread > 0 else 1.0
        nodes = np.asarray(cases.graph.nodes_of_type(v))
        there = np.asarray(cases.present[v])[chosen] & (folds.of[chosen][:, nodes] == 0)
        if v in cases.observations:
            seen = np.asarray(cases.observed[v])[chosen]
            if v in values:
                hide = rng.random(seen.shape) < share
                seen, there = seen & ~hide, there & hide
            y[v] = np.where(_expand(seen, cases.observations[v]), np.asarray(cases.observations[v])[chosen], np.nan)
        elif not cases.observations:  # values are known or asked for
            hide = rng.random(there.shape) < share
            y[v], there = np.where(there & ~hide, np.asarray(x)[chosen], np.nan), there & hide
        truth[v] = np.where(there, np.asarray(x)[chosen], np.nan)
    return [_score(model, cases.graph, (y, truth, units), bool(cases.observations)) for model in models]


def _expand(mask: np.ndarray, like: Any) -> np.ndarray:
    return mask.reshape(*mask.shape, *(1,) * (np.ndim(like) - mask.ndim))


def _score(model: KernelMRF, graph: Graph, given: Any, observed: bool) -> float:
    """Return the mean CRPS over the true values of all cases in their units, whose y are `observed` or clamped."""
    dtype = np.dtype(jnp.result_type(float))
    y, truth, units = jax.tree.map(lambda x: _checks.to_jax(x, dtype), given)
    totals, counts = _totals(model, (y, truth), units, fixed=StaticGraph(graph), observed=observed)
    return float(jnp.sum(totals) / jnp.sum(counts))


@partial(quick_jit, static_argnames=("fixed", "observed"))
def _totals(
    model: KernelMRF, given: Any, units: dict[int, Array], *, fixed: StaticGraph, observed: bool
) -> tuple[Array, Array]:
    """Return the sum of the CRPS of each case, and the number of its true values."""

    def one(case: Any) -> tuple[Array, Array]:
        y, truth = case
        if observed:
            posterior = infer(model, fixed.graph, y)
        else:
            posterior = infer(model, fixed.graph, evidence=clamp(model, fixed.graph, None, y))
        counts = jnp.stack([jnp.sum(~jnp.isnan(x), dtype=x.dtype) for x in truth.values()])
        scores = [CRPS()(posterior.by_type[v], x).astype(counts.dtype) / units[v] for v, x in truth.items()]
        return jnp.sum(counts * jnp.stack(scores)), jnp.sum(counts)

    # One after the other: under vmap, all cases of a batch iterate until the last one has converged.
    return jax.lax.map(one, given)
