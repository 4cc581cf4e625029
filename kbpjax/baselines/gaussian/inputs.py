"""Checks of the inputs of Gaussian fields: numbers, observations and matrices."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax.baselines.nonparametric.mixtures import as_vectors
from kbpjax.graphs.graph import Graph

ROUNDING = 100
"""Multiple of the rounding error that is allowed in symmetry, and in zeros of a matrix where the graph has no edge."""


def floats(argument: str, values: Any, dtype: Any = None) -> Array:
    """Return a finite array of floats."""
    array = _checks.as_array(argument, values)
    _checks.require_finite(argument, array, "Drop or impute what is missing first.")
    own = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.result_type(float)
    return array.astype(own if dtype is None else dtype)


def one_or_each(
    argument: str, value: Numbers, size: int, dtype: Any, *, above: float | None = None, least: float | None = None
) -> Array:
    """Check one number for all or one for each of `size` nodes or edges, and return one for each [size]."""
    array = floats(argument, value, dtype)
    rule = f"must have shape () or ({size},)"
    _checks.require(array.shape in ((), (size,)), argument, rule, array.shape, "Pass one number for all, or one each.")
    if not _checks.is_traced(array) and array.size:
        _checks.require_number(argument, np.asarray(array).min(), above=above, least=least)
    return jnp.broadcast_to(array, (size,))


def observations(graph: Graph, y: Numbers, mask: Numbers | None, dtype: Any = None) -> tuple[Array, Array]:
    """Return which nodes are observed [node], and their observations, 0 elsewhere [node, obs_dim]."""
    count = graph.num_nodes
    seen = _checks.to_jax(np.ones(count, bool) if mask is None else _checks.as_mask("mask", mask, (count,)))
    values = _checks.as_array("y", y)
    fix = "Give one observation for each node."
    ok = values.ndim >= 1 and len(values) == count
    _checks.require(ok, "y", f"must have shape [{count}, *obs_dim]", values.shape, fix)
    values = as_vectors("y", values)
    values = jnp.where(seen[:, None], values, 0).astype(values.dtype if dtype is None else dtype)
    _checks.require_finite("y", values, "Mask nodes that were not observed.")
    return seen, values


def require_definite(
    argument: str, matrices: Array, fix: str, rule: str = "must be positive definite", *, semi: bool = False
) -> None:
    """Check that matrices [matrix, size, size] are symmetric and positive (semi-)definite to rounding."""
    if _checks.is_traced(matrices):
        return
    values = np.asarray(matrices)
    size = np.finfo(values.dtype).eps * np.abs(values).max(axis=(1, 2))
    off = np.abs(values - np.swapaxes(values, 1, 2)).max(axis=(1, 2))
    bad = np.flatnonzero(off > ROUNDING * size)
    got = f"number {bad[0]}, off by {off[bad[0]]:.2g}" if len(bad) else ""
    _checks.require(len(bad) == 0, argument, "must be symmetric", got, "Take (M + M') / 2.")
    least = np.linalg.eigvalsh(values)[:, 0]
    floor = values.shape[1] * size
    bad = np.flatnonzero(~(least >= -floor if semi else least > floor))
    got = f"number {bad[0]} with least eigenvalue {least[bad[0]]:.3g}" if len(bad) else ""
    rule = "must be positive semidefinite" if semi else rule
    _checks.require(len(bad) == 0, argument, rule, got, fix)
