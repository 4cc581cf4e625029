"""`Regression`: from sums over samples to the operators of a model, by ridge regression or smoothed counts."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ScalarLike

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit
from kbpjax.features import Basis, FeatureMap, features
from kbpjax.features.cholesky import RelativeBasis, plain_features
from kbpjax.inference.operators import Operators
from kbpjax.learning.embedding import ridge_solve
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.nonnegative import Clipped, ConstrainedFit
from kbpjax.learning.observations import counted_model, regressed_model
from kbpjax.learning.rules import NodeBasis
from kbpjax.learning.sums import EdgeSums, NodeSums, ObservationSums

Positive = Clipped | ConstrainedFit

RELATIONS = ("ridge", "counts")
"""Estimators of conditional expectations: ridge regression, and smoothed counts."""


@dataclasses.dataclass(frozen=True)
class Regression:
    """Options of the regressions from sums over samples to a model.

    Attributes:
        ends: (edge type, node type of first end, node type of second end) of each edge type.
        ridges: {edge type: lambda of eq. 11}.
        obs_ridges: {node type: lambda of the observation operators}.
        floor: relative minimum value of an evaluated message.
        nonnegative: method that makes updates nonnegative, or None.
        counts: whether conditional expectations are smoothed counts, not ridge regressions; see `kbpjax.fit`.
    """

    ends: tuple[tuple[int, int, int], ...]
    ridges: dict[int, ScalarLike]
    obs_ridges: dict[int, ScalarLike]
    floor: ScalarLike
    nonnegative: Positive | None
    counts: bool = False

    @classmethod
    def of(
        cls,
        ends: tuple[tuple[int, int, int], ...],
        nodes: Sequence[int],
        ridge: Any,
        obs_ridge: Any,
        floor: ScalarLike,
        nonnegative: Any,
        relation: str = "ridge",
    ) -> "Regression":
        """Return the options of `fit`, checked against the edge and node types of the training data."""
        ridges = _ridges("ridge", ridge, [k for k, *_ in ends], "edge")
        of_observations = 1e-6 if obs_ridge is None and isinstance(ridge, Mapping) else obs_ridge
        obs_ridges = _ridges("obs_ridge", ridge if of_observations is None else of_observations, nodes, "node")
        _checks.require_number("floor", floor, least=0, below=1)
        fix = "Pass kbpjax.Clipped(), kbpjax.ConstrainedFit() or None."
        ok = nonnegative is None or isinstance(nonnegative, Positive)
        _checks.require(ok, "nonnegative", "must be Clipped, ConstrainedFit or None", repr(nonnegative), fix)
        known = relation in RELATIONS
        _checks.require(known, "relation", f"must be one of {RELATIONS}", repr(relation), "Pass one of them.")
        counts = relation == "counts"
        if counts:
            fix, shares = "Pass Clipped() or None.", [*ridges.values(), *obs_ridges.values()]
            ok = not isinstance(nonnegative, ConstrainedFit)
            _checks.require(ok, "nonnegative", "must not be ConstrainedFit with relation='counts'", "it", fix)
            for share in shares:
                _checks.require_number("ridge", share, least=0, most=1)
        return cls(ends, ridges, {v: obs_ridges[v] for v in nodes}, floor, nonnegative, counts)

    def model(
        self,
        bases: Mapping[int, NodeBasis],
        obs_bases: Mapping[int, tuple[FeatureMap, Array]],
        edges: Iterable[tuple[list[int], EdgeSums]],
        nodes: Mapping[int, NodeSums],
        observations: Mapping[int, ObservationSums],
    ) -> KernelMRF:
        """Return the model estimated from sums over samples.

        Args:
            bases: {node type: bases of messages and products}.
            obs_bases: {node type: (features of observations, residual)}.
            edges: groups of edge types between the same node types, and their sums [type, ...].
            nodes: {node type: sums over samples}.
            observations: {node type: sums over observations}.
        """
        everywhere = None
        if self.counts:
            bases = {v: _relative(basis, nodes[v]) for v, basis in bases.items()}
            everywhere = {v: _mean_product(basis, nodes[v]) for v, basis in bases.items()}
        sums = bases, obs_bases, nodes, observations, self.obs_ridges, self.floor
        evaluate, floor, prior, averages, observed, ridges = _learn_nodes(
            *sums, nonnegative=self.nonnegative is not None, counts=self.counts
        )
        project, tables = self._edges(bases, edges, evaluate.shape[1:][::-1], evaluate.dtype, everywhere)
        return KernelMRF(
            bases={v: basis.messages for v, basis in bases.items()},
            points={v: basis.points for v, basis in bases.items()},
            operators=Operators.trusted(evaluate, project, floor, tables, prior),
            observations=observed,
            marginals={v: mean for v, (mean, _) in averages.items()},
            moments={v: moment for v, (_, moment) in averages.items()},
            residuals={v: basis.residuals for v, basis in bases.items()},
            ridges=ridges,
            edge_types=self.ends,
        )

    def _edges(
        self,
        bases: Mapping[int, NodeBasis],
        edges: Iterable[Any],
        size: tuple[int, int],
        dtype: jnp.dtype,
        everywhere: dict[int, Array] | None,
    ) -> tuple[Array, Array | None]:
        """Return updates [2 type + direction, rank, point], and nonnegative tables."""
        ends = {k: (a, b) for k, a, b in self.ends}
        num_types, (rank, points) = 1 + max(ends, default=0), size
        project: Any = np.zeros((2 * num_types, rank, points), dtype)
        tables: Any = None if self.nonnegative is None else np.zeros((2 * num_types, points, points), dtype)
        for types, sums in edges:
            pair = ends[types[0]]
            first, second = (bases[v] for v in pair)
            means = None if everywhere is None else (everywhere[pair[0]], everywhere[pair[1]])
            options = [self.ridges[k] for k in types], self.nonnegative
            known = isinstance(sums.count, np.ndarray) and not _checks.is_traced((first, second, means, options))
            if means is not None and self.nonnegative is None and known:  # sums of NumPy: without a program
                project = np.array(project) if isinstance(project, Array) else project
                for place, k in enumerate(types):
                    both = _count_operators(first, second, sums, place, float(np.asarray(self.ridges[k])), means)
                    for way, update in enumerate(both):
                        project[2 * k + way, : update.shape[0], : update.shape[1]] = update
                continue
            learned = _learn_pairs(first, second, sums, *options, means)
            project, tables = _place((project, tables), np.array(types, np.int32), learned)
        return _checks.to_jax(project), None if tables is None else _checks.to_jax(tables)


@partial(quick_jit, static_argnames=("nonnegative", "counts"))
def _learn_nodes(
    bases: Mapping[int, NodeBasis],
    obs_bases: Mapping[int, tuple[FeatureMap, Array]],
    nodes: Mapping[int, NodeSums],
    observations: Mapping[int, ObservationSums],
    obs_ridges: dict[int, ScalarLike],
    floor: ScalarLike,
    nonnegative: bool,
    counts: bool,
) -> tuple[Any, ...]:
    """Return the parts of a model that belong to node types.

    Returns:
        Values at the points [node_type, point, rank], the floor of each type, quadrature weights, {node type: means of
        the features and of their outer products}, {node type: observation model}, {node type: ridge}.
    """
    matrices = {v: features(basis.messages, basis.points) for v, basis in bases.items()}
    size = tuple(max(matrix.shape[i] for matrix in matrices.values()) for i in (0, 1))
    evaluate = _stack(matrices, size)
    plain = evaluate
    if counts:  # whose features are large where samples are rare
        plain = _stack({v: plain_features(basis.messages, basis.points) for v, basis in bases.items()}, size)
    largest = jnp.sqrt(jnp.max(jnp.sum(plain**2, axis=-1), axis=-1))  # of each node type
    averages = {v: _averages(bases[v], sums, nonnegative) for v, sums in nodes.items()}
    prior = _stack({v: weights for v, (_, _, weights) in averages.items()}, (size[0], 1))
    if counts:
        observed = {v: counted_model(*obs_bases[v], observations[v], obs_ridges[v], averages[v][0]) for v in obs_bases}
    else:
        observed = {v: regressed_model(*obs_bases[v], observations[v], obs_ridges[v]) for v in obs_bases}
    return (
        evaluate,
        jnp.asarray(floor, largest.dtype) * largest,
        prior[..., 0].astype(evaluate.dtype),
        {v: (mean, moment) for v, (mean, moment, _) in averages.items()},
        observed,
        {v: jnp.asarray(ridge, largest.dtype) for v, ridge in obs_ridges.items()},
    )


@quick_jit
def _place(arrays: tuple[Any, ...], types: Any, learned: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arrays of all edge types with the learned operators of some types written into them."""

    def write(array: Array, direction: int, new: Array) -> Array:
        return jnp.asarray(array).at[2 * types + direction, : new.shape[1], : new.shape[2]].set(new)

    project, tables = arrays
    for direction, (update, table) in enumerate(learned):
        project = write(project, direction, update)
        tables = None if tables is None else write(tables, direction, table)
    return project, tables


@quick_jit
def _learn_pairs(
    first: NodeBasis,
    second: NodeBasis,
    sums: EdgeSums,
    ridges: list[ScalarLike],
    nonnegative: Positive | None,
    means: tuple[Array, Array] | None,
) -> tuple[Any, ...]:
    """Return the operators of edge types from their sums [type, ...], computed one type at a time.

    With means of the products at both ends, they are those of smoothed counts.
    """

    def learn(one: tuple[EdgeSums, Array]) -> tuple[Any, ...]:
        sums, ridge = one
        if means is not None:
            forth = _count_operator(second, sums.forth, sums.count, means[0], ridge, nonnegative)
            return forth, _count_operator(first, sums.back, sums.count, means[1], ridge, nonnegative)
        penalty = ridge * sums.count.astype(ridge.dtype)
        forth = _update_operator(second, first, sums.second, sums.forth, penalty, nonnegative)
        back = _update_operator(first, second, sums.first, sums.back, penalty, nonnegative)
        return forth, back

    return jax.lax.map(learn, (sums, jnp.stack([jnp.asarray(ridge, jnp.result_type(float)) for ridge in ridges])))


def _update_operator(
    receiver: NodeBasis,
    sender: NodeBasis,
    covariance: Array,
    cross: Array,
    penalty: Array,
    nonnegative: Positive | None,
) -> tuple[Array, Array | None]:
    """Return the operator from values of a product to message coefficients (eq. 12 and 15) [rank, point].

    If the points are landmarks, a product with values v is the function products(x) @ transform.T @ v. If they are the
    training samples, `cross` is between features and points. The second array maps to values at the receiver's points
    [point, point]; it is None unless `nonnegative` is given.
    """
    project = ridge_solve(covariance, cross, penalty)
    if sender.products is not None:
        project, cross = (matmul(matrix, sender.products.transform.T) for matrix in (project, cross))
    if nonnegative is None:
        return project, None
    at_points = receiver.messages(receiver.points)
    penalized = covariance + penalty.astype(covariance.dtype) * jnp.eye(len(covariance), dtype=covariance.dtype)
    return project, nonnegative.operator(at_points, penalized, cross, project)


def _relative(basis: NodeBasis, sums: NodeSums) -> NodeBasis:
    """Return bases whose messages are relative to the density of the samples."""
    mean = sums.mean / jnp.asarray(sums.count, jnp.result_type(sums.mean))
    assert isinstance(basis.messages, Basis)
    return dataclasses.replace(basis, messages=RelativeBasis.of(basis.messages, mean))


def _mean_product(basis: NodeBasis, sums: NodeSums) -> Array:
    """Return the weights of the points in the mean of a product over all samples [point]."""
    if sums.products is None:
        return jnp.full(len(basis.points), 1 / len(basis.points), jnp.result_type(float))
    return sums.products / jnp.asarray(sums.count, jnp.result_type(sums.products))


def _count_operator(
    receiver: NodeBasis, cross: Array, count: Array, mean_product: Array, share: Array, nonnegative: Positive | None
) -> tuple[Array, Array | None]:
    """Return the operator of smoothed counts, as `_update_operator`.

    The message at x is the mean of the product over the pairs, weighted by the kernel between x and the receiver's end,
    mixed with the mean over all pairs: the share of independence.
    """
    cross = cross / count.astype(cross.dtype)  # mean of phi(x_receiver) shares(x_sender)'
    assert isinstance(receiver.messages, RelativeBasis)
    independent = jnp.outer(receiver.messages.mean.astype(cross.dtype), mean_product.astype(cross.dtype))
    share = share.astype(cross.dtype)
    project = (1 - share) * cross + share * independent
    if nonnegative is None:
        return project, None
    at_points = receiver.messages(receiver.points)
    return project, nonnegative.operator(at_points, jnp.eye(len(project), dtype=project.dtype), project, project)


def _count_operators(
    first: NodeBasis, second: NodeBasis, sums: EdgeSums, place: int, share: float, means: tuple[Array, Array]
) -> list[np.ndarray]:
    """Return the operators of smoothed counts of one edge type forth and back, as `_count_operator`, in NumPy."""
    found = []
    for receiver, cross, mean in ((second, sums.forth[place], means[0]), (first, sums.back[place], means[1])):
        assert isinstance(receiver.messages, RelativeBasis)
        independent = np.outer(receiver.messages.mean, mean).astype(cross.dtype)
        found.append((1 - share) * (cross / cross.dtype.type(sums.count[place])) + share * independent)
    return found


def _averages(basis: NodeBasis, sums: NodeSums, nonnegative: bool) -> tuple[Array, Array, Array]:
    """Return means of the features and of their outer products, and quadrature weights of the points [point, 1].

    Weighted values at the points sum to the expectation over the samples.
    """
    mean, moment = (total / sums.count.astype(total.dtype) for total in (sums.mean, sums.moment))
    if basis.products is None:
        weights = jnp.full(len(basis.points), 1 / len(basis.points), jnp.result_type(float))
    else:
        weights = matmul(basis.products.transform, sums.products / sums.count.astype(sums.products.dtype))
        if nonnegative:
            weights = jnp.maximum(weights, 0)
            weights = weights / jnp.sum(weights)
    return mean, moment, weights[:, None]


def _ridges(argument: str, ridge: Any, types: Sequence[int], of: str) -> dict[int, Any]:
    """Return {type: ridge} for all types."""
    given = dict(ridge) if isinstance(ridge, Mapping) else dict.fromkeys(types, ridge)
    missing = [k for k in types if k not in given]
    rule = f"must be one number, or one number per {of} type {sorted(types)}"
    _checks.require(not missing, argument, rule, f"none for {missing}", "Pass for instance 1e-6.")
    extra = [k for k in given if k not in types]
    _checks.require(not extra, argument, rule, f"extra types {extra}, which the data lack", "Leave them out.")
    most = float(jnp.finfo(jnp.result_type(float)).max)
    for k, value in given.items() if types or isinstance(ridge, Mapping) else ((0, ridge),):
        name = f"{argument}[{k}]" if isinstance(ridge, Mapping) else argument
        _checks.require_number(name, value, least=0, most=most)
    return given


def _stack(matrices: dict[int, Array], size: tuple[int, ...]) -> Array:
    """Return matrices stacked by type and padded with zeros to one size; missing types are zeros."""
    dtype = jnp.result_type(*matrices.values()) if matrices else jnp.result_type(float)
    stacked = jnp.zeros((1 + max(matrices, default=0), *size), dtype)
    for number, matrix in matrices.items():
        stacked = stacked.at[number, : matrix.shape[0], : matrix.shape[1]].set(matrix)
    return stacked
