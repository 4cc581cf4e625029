"""`learn_model`: the model of training data with given kernels and ridges."""

import dataclasses
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax.features import Basis
from kbpjax.features.cholesky import Hats, Neighbors, Shares
from kbpjax.kernels import Kernel
from kbpjax.kernels.base import random_rows
from kbpjax.learning.data import TrainingData
from kbpjax.learning.far import are_far
from kbpjax.learning.front_ends import with_front_ends
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.patterns import with_patterns
from kbpjax.learning.regression import Positive, Regression
from kbpjax.learning.relations import OwnRelations
from kbpjax.learning.rules import ConstantTime, NodeBasis, Rule, build_bases, kernels_of_observations
from kbpjax.learning.starts import learn_start, require_starts
from kbpjax.learning.sums import edge_sums, node_sums, observation_sums

LEVELS = 96
"""Number of levels of numbers with smoothed counts."""


def learn_model(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel],
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: Rule = ConstantTime(),
    ridge: ScalarLike | Mapping[int, ScalarLike] = 1e-6,
    obs_ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    floor: ScalarLike = 1e-6,
    nonnegative: Positive | None = None,
    relation: str = "ridge",
    levels: Mapping[int, Array] | None = None,
    own: OwnRelations | None = None,
    starts: Sequence[int] = (),
) -> KernelMRF:
    """Return the model of given kernels and ridges; see `kbpjax.fit`, which can choose them.

    With smoothed counts, products are evaluated at `levels` {node type: sorted numbers, or different points}; None:
    chosen levels of numbers, and the landmarks of others.
    `starts` are the node types whose starts have a separate marginal.
    """
    fix = "Pass for instance kbpjax.ConstantTime(eps=1e-2)."
    _checks.require(isinstance(rule, Rule), "rule", "must be an update rule", repr(rule), fix)
    ends, ridges = data.ends, ridge
    if own is not None:
        ends = data.ends + own.ends
        if isinstance(ridge, Mapping):
            ridges = dict(ridge) | {kind: ridge[one.shared] for one in own.cells for kind in one.types}
            ridges |= {kind: ridges[k] for *_, kind, k in own.edges}
    regression = Regression.of(ends, list(data.nodes), ridges, obs_ridge, floor, nonnegative, relation)
    rule.check_memory(data, nonnegative is not None)
    bases, obs_bases = build_bases(data, kernel, obs_kernel, rule)
    if relation == "counts":
        bases = {v: _of_counts(basis, data.nodes[v], (levels or {}).get(v)) for v, basis in bases.items()}
    model = regression.model(
        bases,
        obs_bases,
        edge_sums(bases, data) if own is None else own.drawn(edge_sums(bases, data)),
        {v: node_sums(basis, data.nodes[v]) for v, basis in bases.items()},
        {v: observation_sums(bases[v].messages, obs_bases[v][0], *pair) for v, pair in data.observations.items()},
    )
    more = {"labels": data.labels, "obs_labels": data.obs_labels}
    more |= {"margins": data.margins, "obs_margins": data.obs_margins}
    require_starts("starts", starts, data)
    if own is not None:
        more |= {"own_edges": own.edges, "own_nodes": own.num_nodes, "cells": own.cells}
    kernels = dict.fromkeys(data.nodes, kernel) if isinstance(kernel, Kernel) else kernel
    found = {v: learn_start(data.starts[v], kernels[v], ends=own is None) for v in starts}
    if found:
        more["starts"] = found
    observations = model.observations
    if data.partly:
        ridges, means = regression.obs_ridges, model.marginals if regression.counts else {}
        of_observations = kernels_of_observations(data, obs_kernel)
        observations = observations | {
            v: with_patterns(observations[v], one, bases[v].messages, of_observations[v], ridges[v], means.get(v), rule)
            for v, one in data.partly.items()
        }
    if data.front_ends:
        observations = with_front_ends(observations, data.front_ends)
    if observations is not model.observations:
        more["observations"] = observations
    if any(more.values()):
        model = dataclasses.replace(model, **more)
    if _checks.is_traced(data):
        return model
    candidates = {v: candidate_points(x) for v, x in data.nodes.items()}
    return eqx.tree_at(lambda m: m.candidates, model, candidates, is_leaf=lambda leaf: leaf is None)


def _of_counts(basis: NodeBasis, x: Array, levels: Array | None) -> NodeBasis:
    """Return bases for smoothed counts: products are interpolated between levels, or by shares of their landmarks."""
    rule, fix = "must select landmarks with relation='counts'", "Pass features=PivotedCholesky(), or relation='ridge'."
    _checks.require(isinstance(basis.messages, Basis), "rule", rule, type(basis.messages).__name__, fix)
    assert isinstance(basis.messages, Basis)
    if basis.products is None:
        return basis
    if levels is None and not _checks.is_traced(x):
        levels = count_levels(x, LEVELS)
    if levels is None:
        return dataclasses.replace(basis, products=Shares.of(basis.products))
    residuals = basis.residuals[0], jnp.zeros_like(basis.residuals[1])
    between = Hats if levels.ndim == 1 else Neighbors
    return NodeBasis(basis.messages, between.at(basis.messages.kernel, levels), levels, residuals)


def count_levels(x: Shaped[Array, "sample *dim"], count: int) -> Shaped[Array, " level"] | None:
    """Return sorted numbers between which products are interpolated; None for vectors and for many integers."""
    if x.ndim > 1 or (not jnp.issubdtype(x.dtype, jnp.floating) and len(np.unique(np.asarray(x))) > count):
        return None
    return jnp.sort(candidate_points(x, count))


def candidate_points(x: Shaped[Array, "sample *dim"], count: int | None = None) -> Shaped[Array, "point *dim"]:
    """Return candidate points for beliefs, chosen from training samples.

    Args:
        x: samples.
        count: largest number of points. None: 256 for numbers, 2048 for vectors of floats, 512 for others.

    Returns:
        Numbers: their distinct values if there are at most `count`, else evenly spaced points over their range.
        Integers with more: some of the distinct values. Others: samples, repeated as they are, for `Empirical()`. Of
        floats, one in a thousand, or one, may be far from all others: it is left out.
    """
    values = np.asarray(x)
    floats = np.issubdtype(values.dtype, np.floating)
    if count is None:
        count = {1: 256, 2: 2048 if floats else 512}.get(values.ndim, 512)
    if values.ndim > 1:
        return _checks.to_jax(values[random_rows(len(values), count)])
    distinct = np.unique(values[~are_far(values)] if floats else values)
    if len(distinct) > count and floats:
        return _checks.to_jax(np.linspace(distinct[0], distinct[-1], count, dtype=values.dtype))
    return _checks.to_jax(distinct[random_rows(len(distinct), count)])
