"""Margins: location and scale of each node, where the nodes of a type differ.

The relations of an edge type are learned from the pairs of all its edges. Where nodes differ in location or scale, as
stations or columns of a table do, they are learned for standardized values

    z = (x - center_s) / scale_s,

which the nodes of a type share. Evidence is standardized as it comes in, and the candidates of the beliefs of node s
are center_s + scale_s z, so that all answers are in the units of the data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import quick_jit, values_or_shapes
from kbpjax._public import Checked
from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.far import moved_near
from kbpjax.learning.pooling import pool_cases

FEW = 30
"""Number of values of a node from which its margin is compared with that of all nodes."""

MANY = 1000
"""Number of cases, about, in which differences between nodes are looked for."""

TINY = 1e-300
"""A variance that stands for 0 where it divides."""


@quick_jit
def _standardized(x: Array, center: Array, scale: Array) -> Array:
    """Return values in standard deviations from a center; a scale of 0 counts as 1."""
    return (x - center) / jnp.where(scale > 0, scale, 1)


class Margins(Checked):
    """Locations and scales of the nodes of a type.

    Attributes:
        center, scale: of each node [node_of_type, *dim]; a node that is constant has scale 0.
        pooled_center, pooled_scale: of all nodes together [*dim], for the nodes of other graphs.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.learning.margins import Margins
        >>> margins = Margins(jnp.array([0.0, 10.0]), jnp.array([1.0, 2.0]), jnp.array(5.0), jnp.array(5.2))
        >>> margins.standardized(jnp.array([1.0, 12.0])).tolist(), margins.restored(jnp.array([1.0, 1.0])).tolist()
        ([1.0, 1.0], [1.0, 12.0])
    """

    center: Float[Array, "node *dim"]
    scale: Float[Array, "node *dim"]
    pooled_center: Float[Array, "*dim"]
    pooled_scale: Float[Array, "*dim"]

    def __len__(self) -> int:
        return len(self.center)

    def of_nodes(self, count: int) -> "Margins":
        """Return the margins of a number of nodes: the own ones, or those of all nodes if their number differs."""
        if count == len(self):
            return self
        center, scale = (jnp.broadcast_to(one, (count, *one.shape)) for one in (self.pooled_center, self.pooled_scale))
        return Margins(center, scale, self.pooled_center, self.pooled_scale)

    def standardized(self, x: Array) -> Array:
        """Return values [node_of_type, *others, *dim] in standard deviations from the center of their node."""
        return _standardized(x, *self._like(x))

    def restored(self, z: Array) -> Array:
        """Return values in the units of the data of standardized values [node_of_type, *others, *dim]."""
        center, scale = self._like(z)
        return center + scale * z

    def at_nodes(self, nodes: Array) -> "Margins":
        """Return the margins of some nodes, by their numbers within the type, repeated as they are."""
        return Margins(self.center[nodes], self.scale[nodes], self.pooled_center, self.pooled_scale)

    def candidates(self, z: Array) -> Array:
        """Return the candidates of each node [node_of_type, point, *dim] from common standardized ones."""
        return self.restored(jnp.broadcast_to(z[None], (len(self), *z.shape)))

    def pooled(self, x: Array) -> Array:
        """Return values [*others, *dim] in standard deviations from the center of all nodes."""
        return _standardized(x, self.pooled_center, self.pooled_scale).astype(self.center.dtype)

    def _like(self, x: Array) -> tuple[Array, Array]:
        """Return centers and scales with the axes of x between those of nodes and coordinates."""
        others = (1,) * (x.ndim - self.center.ndim)
        shape = (len(self), *others, *self.center.shape[1:])
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else self.center.dtype
        return self.center.reshape(shape).astype(dtype), self.scale.reshape(shape).astype(dtype)

    @values_or_shapes
    def __repr__(self) -> str:
        ends = [f"{float(f(one)):.3g}" for one in (self.center, self.scale) for f in (jnp.min, jnp.max)]
        return f"Margins({len(self)} nodes, centers from {ends[0]} to {ends[1]}, scales from {ends[2]} to {ends[3]})"


ByType = dict[int, Margins]
"""{node type: margins}."""


def estimate_margins(
    cases: Sequence[Cases], node_types: Sequence[int], held: Sequence[NDArray[np.bool_]] | None = None
) -> tuple[ByType, ByType]:
    """Return the margins of the variables and of the observations of node types that can have them.

    A node type can have margins if its values are floats, and all graphs have the same number of its nodes. Means and
    standard deviations are those of values of which those far from the others are moved near (`moved_near`).

    Args:
        cases: the samples.
        node_types: the node types.
        held: masks of the nodes of each graph that are left out [case, node]; None: none.
    """
    found: tuple[ByType, ByType] = ({}, {})
    for v in node_types:
        for values, (name, mask) in zip(found, (("samples", "present"), ("observations", "observed")), strict=True):
            table = _table(cases, v, name, mask, held)
            if table is not None:
                values[v] = _margins(*table)
    return found


def _table(
    cases: Sequence[Cases], node_type: int, name: str, mask: str, held: Sequence[NDArray[np.bool_]] | None
) -> tuple[NDArray, tuple[int, ...]] | None:
    """Return the values of a node type [case, node, coordinate], NaN where missing, and the shape of one."""
    parts, shapes = [], set()
    for number, one in enumerate(cases):
        x = getattr(one, name).get(node_type)
        if x is None:
            return None
        there = np.asarray(getattr(one, mask)[node_type])
        if held is not None:
            there = there & ~held[number][:, np.asarray(one.graph.nodes_of_type(node_type))]
        x = np.asarray(x)
        shapes.add(x.shape[1:])
        flat = x.reshape(*x.shape[:2], -1)
        if not np.issubdtype(x.dtype, np.floating) or flat.ndim != 3:
            return None
        parts.append(np.where(there[..., None], flat, np.nan).astype(np.float64))
    if len(shapes) != 1:
        return None
    return np.concatenate(parts), shapes.pop()[1:]


def _margins(x: NDArray, dim: tuple[int, ...]) -> Margins:
    """Return the margins of values [case, node, coordinate], NaN where missing.

    Means and variances are drawn to those of the other nodes (empirical Bayes): the fewer values a node has, and the
    less the nodes differ, the more.
    """
    mean, std, counts = _moments(x)
    seen, varies = counts > 0, (std > 0) & (counts > 1)
    noise = _mean(np.where(varies, std**2, np.nan), axis=0)  # within a node
    middle = _mean(np.where(seen, mean, np.nan), axis=0)
    between, _ = _spreads(mean, std, counts)
    share = counts * between / np.maximum(counts * between + np.where(varies, std**2, noise), TINY)
    center = share * mean + (1 - share) * middle
    prior, typical = _prior_of_variances(np.where(varies, std, np.nan), counts)
    degrees = np.maximum(counts - 1, 0)
    variance = (degrees * std**2 + prior * typical) / (degrees + prior)
    constant = (std == 0) & (counts >= FEW)
    center = np.where(constant, mean, center)
    scale = np.where(constant, 0, np.sqrt(variance + (1 - share) * between))  # with what the center may be off
    every = moved_near(x.reshape(-1, 1, x.shape[2]))
    pooled = (np.nan_to_num(f(every, axis=(0, 1))) for f in (_mean, _std))
    shaped = [one.reshape((*one.shape[:-1], *dim)) for one in (center, scale, *pooled)]
    return Margins(*(_checks.to_jax(one, jnp.result_type(float)) for one in shaped))


def _spreads(mean: NDArray, std: NDArray, counts: NDArray) -> tuple[NDArray, NDArray]:
    """Return the variances between nodes of the means and of the logarithms of scales, without those of chance."""
    known = counts > 1
    means, stds = np.where(known, mean, np.nan), np.where(known & (std > 0), std, np.nan)
    between = _std(means, axis=0) ** 2 - _mean(stds**2 / np.maximum(counts, 1), axis=0)
    of_logs = _std(np.log(stds), axis=0) ** 2 - _mean(np.where(known, 1 / np.maximum(counts, 1), np.nan), axis=0)
    return np.maximum(between, 0), np.maximum(of_logs, 0)


def _prior_of_variances(std: NDArray, counts: NDArray) -> tuple[NDArray, NDArray]:
    """Return the number of values that other nodes count for in the variance of one node, and their variance."""
    _, of_logs = _spreads(np.zeros_like(std), np.nan_to_num(std), counts)
    number = np.clip(1 / (2 * np.maximum(of_logs, TINY)), 1, 1e6)
    return number, np.exp(_mean(np.log(std**2), axis=0))


def _moments(x: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Return means, standard deviations and numbers of the values of each node [node, coordinate]."""
    near = moved_near(x)
    counts = np.isfinite(x).sum(axis=0)
    return np.nan_to_num(_mean(near, axis=0)), np.nan_to_num(_std(near, axis=0)), counts


def _mean(x: NDArray, axis: int | tuple[int, ...]) -> NDArray:
    there = np.isfinite(x)
    return np.where(there, x, 0).sum(axis=axis) / np.maximum(there.sum(axis=axis), 1)


def _std(x: NDArray, axis: int | tuple[int, ...]) -> NDArray:
    deviations = x - np.expand_dims(_mean(x, axis), axis)
    return np.sqrt(_mean(deviations**2, axis))


def differences(cases: Sequence[Cases], node_type: int) -> tuple[float, float]:
    """Return how much the nodes of a type differ, without what chance gives; (0, 0) for too few values.

    Returns:
        The share of the variance that is between nodes, and the standard deviation of the logarithms of their scales;
        of vectors, the largest of the coordinates.
    """
    count = sum(len(one.present.get(node_type, ())) for one in cases)
    table = None if count < FEW else _table(cases, node_type, "samples", "present", None)
    if table is None:
        return 0.0, 0.0
    x = table[0][:: max(1, count // MANY)]
    mean, std, counts = _moments(x)
    known = (counts >= FEW).all(axis=1)
    if known.sum() < 2:
        return 0.0, 0.0
    between, of_logs = _spreads(mean[known], std[known], counts[known])
    total = between + np.mean(std[known] ** 2, axis=0)
    return float(np.max(between / np.maximum(total, TINY))), float(np.sqrt(np.max(of_logs)))


def standardized_cases(cases: Sequence[Cases], margins: ByType, obs_margins: ByType) -> tuple[Cases, ...]:
    """Return cases with standardized values of some node types."""

    def standardize(x: Mapping[int, Any], there: Mapping[int, Any], by: ByType) -> dict[int, Any]:
        return {v: _standardize(one, np.asarray(there[v]), by[v]) if v in by else one for v, one in x.items()}

    def of_one(one: Cases) -> Cases:
        samples = standardize(one.samples, one.present, margins)
        observations = standardize(one.observations, one.used, obs_margins)
        return Cases(one.graph, samples, observations, one.present, one.observed, one.partly, one.dropped)

    return tuple(map(of_one, cases))


def _standardize(x: Any, there: NDArray[np.bool_], margins: Margins) -> NDArray:
    """Return standardized values [case, node, *dim], 0 where missing."""
    z = np.moveaxis(np.asarray(margins.standardized(jnp.moveaxis(jnp.asarray(x), 0, 1))), 0, 1)
    return np.where(there.reshape(*there.shape, *(1,) * (z.ndim - 2)), z, np.zeros((), z.dtype))


def with_own_margins(data: TrainingData, node_types: Sequence[int]) -> TrainingData:
    """Return training data with standardized values of node types, and their margins; as they are if they have some.

    Raises:
        ValueError: data without cases, or node types that cannot have margins.
    """
    if data.margins or not node_types:
        return data
    _checks.require(not _checks.is_traced(data), "margins", "must be of known data", "tracers", "Fit outside jax.jit.")
    fix = "Pass margins='type', or data of kbpjax.pool."
    _checks.require(bool(data.cases), "margins", "must be of data with cases", "none", fix)
    margins, obs_margins = estimate_margins(data.cases, node_types)
    missing = [v for v in node_types if v not in margins]
    rule = "must be of floats, of node types with as many nodes in each graph"
    _checks.require(not missing, "margins", rule, f"node types {missing}", "Pass margins='type'.")
    pooled = pool_cases(standardized_cases(data.cases, margins, obs_margins), data.labels, data.obs_labels)
    fields = margins, obs_margins, data.front_ends
    of = lambda data: (data.margins, data.obs_margins, data.front_ends)
    return eqx.tree_at(of, pooled, fields, is_leaf=lambda x: isinstance(x, dict))
