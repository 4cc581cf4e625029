"""Sufficient statistics of `fit` given the landmarks: sums of outer products of features over samples.

Ridge regression and means depend on the data only through these sums (eq. 11, 12 and 15). They can be computed for each
chunk, file or device, and added. Samples that are sharded over devices on axis 0 are summed on their device first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit
from kbpjax.features import FeatureMap
from kbpjax.learning.data import TrainingData
from kbpjax.learning.embedding import CHUNK, sum_chunks
from kbpjax.learning.rules import NodeBasis

T = TypeVar("T")

CELLS = 2**25
"""Largest number of features of nodes at cases that are in memory at a time."""

# Stacks of several types have a leading axis, and sums that outlive a chunk are NumPy arrays: hence `Any`.


class EdgeSums(eqx.Module):
    """Sums over the pairs of an edge type, with features phi of messages and psi of products.

    Attributes:
        count: number of pairs.
        first: sum of phi(x_first) phi(x_first)' [rank, rank].
        second: sum of phi(x_second) phi(x_second)' [rank, rank].
        forth: sum of phi(x_second) psi(x_first)' [rank, point]; if products are evaluated at samples, psi is 1 at the
            point of the sample and 0 elsewhere.
        back: sum of phi(x_first) psi(x_second)' [rank, point].
    """

    count: Any
    first: Any
    second: Any
    forth: Any
    back: Any


class NodeSums(eqx.Module):
    """Sums over the samples of a node type.

    Attributes:
        count: number of samples.
        mean: sum of phi(x) [rank].
        moment: sum of phi(x) phi(x)' [rank, rank].
        products: sum of psi(x) [point]; None if products are evaluated at samples.
    """

    count: Any
    mean: Any
    moment: Any
    products: Any


class ObservationSums(eqx.Module):
    """Sums over the observed samples of a node type, with features chi of observations.

    Attributes:
        count: number of pairs of a variable and its observation.
        variable: sum of phi(x) phi(x)' [rank, rank].
        cross: sum of phi(x) chi(y)' [rank, observation_rank].
        observed: sum of chi(y) chi(y)' [observation_rank, observation_rank].
        mean: sum of chi(y) [observation_rank].
    """

    count: Any
    variable: Any
    cross: Any
    observed: Any
    mean: Any


def edge_sums(bases: Mapping[int, NodeBasis], data: TrainingData) -> Iterator[tuple[list[int], EdgeSums]]:
    """Yield groups of edge types and their sums over pairs [type, ...].

    Edge types between the same node types with similar numbers of pairs are summed in one compiled loop. If every
    edge of one graph has a different type, the features of each node are computed once, not for each of its edges.
    """
    if _own_types(bases, data):
        yield from _sums_of_cases(bases, data)
        return
    groups: dict[tuple, list[int]] = {}
    for k, a, b in data.ends:
        sharding = _sharding(data.edges[k])
        size = len(data.edges[k][0])
        groups.setdefault((a, b, size.bit_length() if sharding is None else size, sharding), []).append(k)
    for (a, b, _, sharding), types in groups.items():
        columns = [[data.edges[k][end] for k in types] for end in (0, 1)]
        if bases[a].products is None:
            indices = [data.places(k) for k in types]
            columns += [[pair[end] for pair in indices] for end in (0, 1)]
        counts = np.array([len(x) for x in columns[0]], np.int32)
        if sharding is None:
            columns = [_pad(column, int(counts.max())) for column in columns]
        yield types, _sum_pairs(bases[a], bases[b], columns, counts, sharding)


def node_sums(basis: NodeBasis, x: Array) -> NodeSums:
    """Return the sums over the samples of a node type."""
    (x,), count = _of_few_sizes(x)
    return _sum_samples(basis, x, count, _sharding((x,)))


def observation_sums(basis: FeatureMap, observed: FeatureMap, x: Array, y: Array) -> ObservationSums:
    """Return the sums over pairs of a variable and its observation."""
    (x, y), count = _of_few_sizes(x, y)
    return _sum_observations(basis, observed, x, y, count, _sharding((x, y)))


def _of_few_sizes(*columns: Any) -> tuple[list[Any], int | None]:
    """Return arrays padded with their first rows to one of few numbers of rows, for few programs, and their number."""
    count = len(columns[0])
    if _checks.is_traced(columns) or _sharding(columns) is not None or not 0 < count < CHUNK:
        return list(columns), None
    return [_pad([column], 1 << (count - 1).bit_length())[0] for column in columns], count


def _own_types(bases: Mapping[int, NodeBasis], data: TrainingData) -> bool:
    """Return whether the sums are those over the cases of one graph in which every edge has a different type."""
    if len(data.cases) != 1 or _checks.is_traced((data, bases)) or data.margins or len(data.ends) < 2:
        return False
    (cases,) = data.cases
    half = cases.graph.num_edges // 2
    kinds = np.asarray(cases.graph.edge_type)[:half]
    if len(data.ends) != half or len(np.unique(kinds)) != half or any(b.products is None for b in bases.values()):
        return False
    if any(_sharding(pair) is not None for pair in data.edges.values()):
        return False
    there = _in_order(cases.graph, {v: np.asarray(mask) for v, mask in cases.present.items()})
    ends = zip(kinds.tolist(), np.asarray(cases.graph.senders)[:half], np.asarray(cases.graph.receivers)[:half])
    return all(len(data.edges[k][0]) == int(np.sum(there[a] & there[b])) for k, a, b in ends)


def _in_order(graph: Any, by_type: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Return the columns of each node [case, ...] of arrays of its type [case, node_of_type, ...]."""
    found: dict[int, np.ndarray] = {}
    for v, array in by_type.items():
        found |= dict(zip(np.asarray(graph.nodes_of_type(v)).tolist(), np.moveaxis(array, 1, 0), strict=True))
    return [found[node] for node in range(graph.num_nodes)]


def _sums_of_cases(bases: Mapping[int, NodeBasis], data: TrainingData) -> Iterator[tuple[list[int], EdgeSums]]:
    """Yield edge types and their sums over the cases of one graph in which every edge has a different type."""
    (cases,) = data.cases
    graph, total = cases.graph, len(next(iter(cases.present.values())))
    there = _in_order(graph, {v: np.asarray(mask) for v, mask in cases.present.items()})
    half = graph.num_edges // 2
    columns = (np.asarray(one)[:half].tolist() for one in (graph.edge_type, graph.senders, graph.receivers))
    edges = {k: (a, b) for k, a, b in zip(*columns, strict=True)}
    width = max(basis.messages.rank + len(basis.points) for basis in bases.values())
    rows = max(1, CELLS // (width * graph.num_nodes))
    sums: dict[int, Any] = {}
    for start in range(0, total, rows):
        part = slice(start, min(start + rows, total))
        at_cases = {v: _at_cases(bases[v], np.asarray(x)[part]) for v, x in cases.samples.items()}
        phi, psi = (_in_order(graph, {v: both[i] for v, both in at_cases.items()}) for i in (0, 1))
        seen = [one[part] for one in there]
        phi, psi = ([np.where(m[:, None], f, 0) for f, m in zip(maps, seen, strict=True)] for maps in (phi, psi))
        for k, (a, b) in edges.items():
            first, second = phi[a] * seen[b][:, None], phi[b] * seen[a][:, None]
            count = np.sum(seen[a] & seen[b], dtype=np.int32)
            more = EdgeSums(count, first.T @ first, second.T @ second, phi[b].T @ psi[a], phi[a].T @ psi[b])
            sums[k] = more if start == 0 else jax.tree.map(np.add, sums[k], more)
    groups: dict[tuple[int, int], list[int]] = {}
    for k, a, b in data.ends:
        groups.setdefault((a, b), []).append(k)
    for types in groups.values():
        yield types, jax.tree.map(lambda *each: np.stack(each), *(sums[k] for k in types))


def _at_cases(basis: NodeBasis, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of messages and products at samples [case, node_of_type, rank]."""
    (flat,), _ = _of_few_sizes(x.reshape(-1, *x.shape[2:]))
    found = _both_features(basis, flat)
    return tuple(np.asarray(one)[: x.shape[0] * x.shape[1]].reshape(*x.shape[:2], -1) for one in found)  # type: ignore


@quick_jit
def _both_features(basis: NodeBasis, x: Any) -> tuple[Array, Array]:
    assert basis.products is not None
    return basis.messages(x), basis.products(x)


def _sharding(arrays: Sequence[Any]) -> NamedSharding | None:
    """Return the common sharding of axis 0; None if arrays are not sharded, or sharded differently."""
    if _checks.is_traced(arrays):
        return None
    shardings = {_first_axis(x.sharding) if isinstance(x, jax.Array) else None for x in arrays}
    return shardings.pop() if len(shardings) == 1 else None


def _first_axis(sharding: Any) -> NamedSharding | None:
    """Return the sharding of axis 0; None if axis 0 is not sharded."""
    split = isinstance(sharding, NamedSharding) and len(sharding.spec) > 0 and sharding.spec[0] is not None
    return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0])) if split else None


def _over_devices(total: Callable[..., T], columns: Any, sharding: NamedSharding | None) -> T:
    """Return sums over samples, computed on each device and then added over devices."""
    if sharding is None:
        return total(columns)
    axis = sharding.spec[0]

    def local(shard: Any) -> T:
        return jax.lax.psum(total(shard), axis)

    # No check_vma: loops start from zeros, which do not vary over devices, while sums do.
    summed = jax.shard_map(
        local, mesh=sharding.mesh, in_specs=(sharding.spec,), out_specs=PartitionSpec(), check_vma=False
    )
    return summed(columns)


def _pad(arrays: list[Any], size: int) -> Any:
    """Return a stack of arrays of different lengths, padded with copies of their first rows."""
    if _checks.is_traced(arrays):
        return jnp.stack([jnp.concatenate([array, array[: size - len(array)]]) for array in arrays])
    rows = map(np.asarray, arrays)  # cheaper than compiling a copy for each length
    return np.stack([np.concatenate([row, row[: size - len(row)]]) for row in rows])


@partial(quick_jit, static_argnames="sharding")
def _sum_pairs(
    first: NodeBasis, second: NodeBasis, columns: Any, counts: Any, sharding: NamedSharding | None
) -> EdgeSums:
    """Return the sums of edge types from their pairs [type, sample, *dim]; pairs from `counts` on are padding."""

    def total(shard: Any) -> EdgeSums:
        stacked = shard if sharding is None else [jnp.stack(column) for column in shard]
        valid = jnp.asarray(counts) if sharding is None else jnp.full(len(counts), stacked[0].shape[1], jnp.int32)
        return jax.lax.map(lambda one: _pairs(first, second, one[1], *one[0]), (stacked, valid))

    return _over_devices(total, columns, sharding)


def _pairs(
    first: NodeBasis, second: NodeBasis, count: Array, x_first: Array, x_second: Array, *indices: Array
) -> EdgeSums:
    """Return the sums of one edge type."""
    if first.products is None or second.products is None:
        covariance_second, forth = _at_samples(second, len(first.points), x_second, indices[0], count)
        covariance_first, back = _at_samples(first, len(second.points), x_first, indices[1], count)
        return EdgeSums(count, covariance_first, covariance_second, forth, back)
    maps = (first.messages, first.products), (second.messages, second.products)

    def products(valid: Array, *ends: Array) -> EdgeSums:
        (phi, psi), (phi_, psi_) = (
            [jnp.where(valid, feature_map(x), 0) for feature_map in both] for both, x in zip(maps, ends, strict=True)
        )
        return EdgeSums(
            jnp.sum(valid, dtype=jnp.int32),
            matmul(phi.T, phi),
            matmul(phi_.T, phi_),
            matmul(phi_.T, psi.astype(phi_.dtype)),
            matmul(phi.T, psi_.astype(phi.dtype)),
        )

    return sum_chunks(products, (x_first, x_second), count)


def _at_samples(basis: NodeBasis, points: int, x: Array, indices: Array, count: Array) -> tuple[Array, Array]:
    """Return phi'phi of the receiver, and the sum of phi per sender point; sample i has point indices[i]."""
    valid = jnp.arange(len(indices), dtype=jnp.int32) < count
    at_pairs = jnp.where(valid[:, None], basis.messages(x), 0)
    cross = jnp.zeros((points, at_pairs.shape[1]), at_pairs.dtype).at[indices].add(at_pairs).T
    return matmul(at_pairs.T, at_pairs), cross


@partial(quick_jit, static_argnames="sharding")
def _sum_samples(basis: NodeBasis, x: Any, count: Any, sharding: NamedSharding | None) -> NodeSums:
    def products(valid: Array, x: Array) -> NodeSums:
        phi = jnp.where(valid, basis.messages(x), 0)
        psi = None if basis.products is None else jnp.where(valid, basis.products(x), 0)
        total = None if psi is None else jnp.sum(psi, axis=0)
        return NodeSums(jnp.sum(valid, dtype=jnp.int32), jnp.sum(phi, axis=0), matmul(phi.T, phi), total)

    return _over_devices(lambda shard: sum_chunks(products, shard, count), (x,), sharding)


@partial(quick_jit, static_argnames="sharding")
def _sum_observations(
    basis: FeatureMap, observed: FeatureMap, x: Any, y: Any, count: Any, sharding: NamedSharding | None
) -> ObservationSums:
    products = partial(observation_products, basis, observed)
    return _over_devices(lambda shard: sum_chunks(products, shard, count), (x, y), sharding)


def observation_products(basis: FeatureMap, observed: FeatureMap, valid: Array, x: Array, y: Array) -> ObservationSums:
    """Return the sums over the valid pairs of a chunk."""
    phi = jnp.where(valid, basis(x), 0)
    chi = jnp.where(valid, observed(y), 0)
    cross = matmul(phi.T, chi.astype(phi.dtype))
    count, mean = jnp.sum(valid, dtype=jnp.int32), jnp.sum(chi, axis=0)
    return ObservationSums(count, matmul(phi.T, phi), cross, matmul(chi.T, chi), mean)
