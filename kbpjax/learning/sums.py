"""All that `fit` takes from training data once landmarks are chosen: sums over samples.

Ridge regression and means need no more than outer products of features, summed over pairs (eq. 11, 12 and 15), so they
can be summed chunk by chunk, file by file, or device by device, and added. Samples that are sharded over devices on
axis 0 are summed where they lie.
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
from kbpjax._misc import matmul
from kbpjax.features import FeatureMap
from kbpjax.learning.data import TrainingData
from kbpjax.learning.embedding import covariances, sum_chunks
from kbpjax.learning.rules import NodeBasis

T = TypeVar("T")

# Fields have a leading axis in stacks of many types, and are NumPy arrays where they outlive a chunk: hence `Any`.


class EdgeSums(eqx.Module):
    """Sums over the pairs of an edge type; phi are features of messages, psi of products.

    Attributes:
        count: number of pairs.
        first: sum of phi(x_first) phi(x_first)' [rank, rank].
        second: the same of second ends.
        forth: sum of phi(x_second) psi(x_first)' [rank, point]; where products are known at samples, psi is 1 at the
            sample's point and 0 elsewhere.
        back: sum of phi(x_first) psi(x_second)' [rank, point].
        joint: sum of phi(x_first) phi(x_second)' [rank, rank].
    """

    count: Any
    first: Any
    second: Any
    forth: Any
    back: Any
    joint: Any


class NodeSums(eqx.Module):
    """Sums over the samples of a node type.

    Attributes:
        count: number of samples.
        mean: sum of phi(x) [rank].
        moment: sum of phi(x) phi(x)' [rank, rank].
        products: sum of psi(x) [point]; None where products are known at samples.
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
    """

    count: Any
    variable: Any
    cross: Any
    observed: Any


def edge_sums(bases: Mapping[int, NodeBasis], data: TrainingData) -> Iterator[tuple[list[int], EdgeSums]]:
    """Sum over pairs; yield edge types that are alike and their sums [type, ...].

    Types between the same node types with about equally many pairs are summed in one compiled loop.
    """
    alike: dict[tuple, list[int]] = {}
    for k, a, b in data.ends:
        sharding = _sharding(data.edges[k])
        size = len(data.edges[k][0])
        alike.setdefault((a, b, size.bit_length() if sharding is None else size, sharding), []).append(k)
    for (a, b, _, sharding), types in alike.items():
        columns = [[data.edges[k][end] for k in types] for end in (0, 1)]
        if bases[a].products is None:
            places = [data.places(k) for k in types]
            columns += [[place[end] for place in places] for end in (0, 1)]
        counts = np.array([len(x) for x in columns[0]], np.int32)
        if sharding is None:
            columns = [_pad(column, int(counts.max())) for column in columns]
        yield types, _sum_pairs(bases[a], bases[b], columns, counts, sharding)


def node_sums(basis: NodeBasis, x: Array) -> NodeSums:
    """Sum over the samples of a node type."""
    return _sum_samples(basis, x, _sharding((x,)))


def observation_sums(basis: FeatureMap, observed: FeatureMap, x: Array, y: Array) -> ObservationSums:
    """Sum over pairs of a variable and its observation."""
    return _sum_observations(basis, observed, x, y, _sharding((x, y)))


def _sharding(arrays: Sequence[Array]) -> NamedSharding | None:
    """Return how arrays are spread over devices along axis 0, if they all are and the same way."""
    if _checks.is_traced(arrays):
        return None
    found = {_first_axis(x.sharding) if isinstance(x, jax.Array) else None for x in arrays}
    return found.pop() if len(found) == 1 else None


def _first_axis(sharding: Any) -> NamedSharding | None:
    """Return the sharding of axis 0 alone; None if it is not sharded."""
    split = isinstance(sharding, NamedSharding) and len(sharding.spec) > 0 and sharding.spec[0] is not None
    return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0])) if split else None


def _over_devices(total: Callable[..., T], columns: Any, sharding: NamedSharding | None) -> T:
    """Sum samples where they lie, and then over devices."""
    if sharding is None:
        return total(columns)
    axis = sharding.spec[0]

    def local(own: Any) -> T:
        return jax.lax.psum(total(own), axis)

    # Loops start from zeros, which do not vary over devices as the sums do.
    spread = jax.shard_map(
        local, mesh=sharding.mesh, in_specs=(sharding.spec,), out_specs=PartitionSpec(), check_vma=False
    )
    return spread(columns)


def _pad(arrays: list[Array], size: int) -> Any:
    """Stack arrays of different length, padded with copies of their first rows."""
    if _checks.is_traced(arrays):
        return jnp.stack([jnp.concatenate([array, array[: size - len(array)]]) for array in arrays])
    rows = map(np.asarray, arrays)  # a compiled copy for each length would cost more
    return np.stack([np.concatenate([row, row[: size - len(row)]]) for row in rows])


@partial(jax.jit, static_argnames="sharding")
def _sum_pairs(
    first: NodeBasis, second: NodeBasis, columns: Any, counts: Any, sharding: NamedSharding | None
) -> EdgeSums:
    """Sum edge types one after another from their pairs [type, sample, *dim], of which `counts` are no padding."""

    def total(own: Any) -> EdgeSums:
        stacked = own if sharding is None else [jnp.stack(column) for column in own]
        known = jnp.asarray(counts) if sharding is None else jnp.full(len(counts), stacked[0].shape[1], jnp.int32)
        return jax.lax.map(lambda one: _pairs(first, second, one[1], *one[0]), (stacked, known))

    return _over_devices(total, columns, sharding)


def _pairs(
    first: NodeBasis, second: NodeBasis, count: Array, x_first: Array, x_second: Array, *places: Array
) -> EdgeSums:
    """Sum one edge type."""
    if first.products is None or second.products is None:
        own_second, forth = _at_samples(second, len(first.points), x_second, places[0], count)
        own_first, back = _at_samples(first, len(second.points), x_first, places[1], count)
        _, joint = covariances(first.messages, second.messages, x_first, x_second, count)
        return EdgeSums(count, own_first, own_second, forth, back, joint)
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
            matmul(phi.T, phi_.astype(phi.dtype)),
        )

    return sum_chunks(products, (x_first, x_second), count)


def _at_samples(basis: NodeBasis, points: int, x: Array, places: Array, count: Array) -> tuple[Array, Array]:
    """Sum the receiver's features, and by the sender's point, of which sample i has number places[i]."""
    valid = jnp.arange(len(places), dtype=jnp.int32) < count
    at_pairs = jnp.where(valid[:, None], basis.messages(x), 0)
    cross = jnp.zeros((points, at_pairs.shape[1]), at_pairs.dtype).at[places].add(at_pairs).T
    return matmul(at_pairs.T, at_pairs), cross


@partial(jax.jit, static_argnames="sharding")
def _sum_samples(basis: NodeBasis, x: Array, sharding: NamedSharding | None) -> NodeSums:
    def products(valid: Array, x: Array) -> NodeSums:
        phi = jnp.where(valid, basis.messages(x), 0)
        psi = None if basis.products is None else jnp.where(valid, basis.products(x), 0)
        total = None if psi is None else jnp.sum(psi, axis=0)
        return NodeSums(jnp.sum(valid, dtype=jnp.int32), jnp.sum(phi, axis=0), matmul(phi.T, phi), total)

    return _over_devices(lambda own: sum_chunks(products, own), (x,), sharding)


@partial(jax.jit, static_argnames="sharding")
def _sum_observations(
    basis: FeatureMap, observed: FeatureMap, x: Array, y: Array, sharding: NamedSharding | None
) -> ObservationSums:
    def products(valid: Array, x: Array, y: Array) -> ObservationSums:
        phi = jnp.where(valid, basis(x), 0)
        chi = jnp.where(valid, observed(y), 0)
        cross = matmul(phi.T, chi.astype(phi.dtype))
        return ObservationSums(jnp.sum(valid, dtype=jnp.int32), matmul(phi.T, phi), cross, matmul(chi.T, chi))

    return _over_devices(lambda own: sum_chunks(products, own), (x, y), sharding)
