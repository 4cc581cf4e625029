"""From data to a kernel Markov random field: training pairs in, operators and models of observations out.

For an edge type with pairs (x_t, x_s), the update of a message from t to s is the conditional expectation (eq. 4)

    m_ts(x_s) = E[ prod_u m_ut(X_t) | x_s ],

estimated by ridge regression between two finite sets that the update rule chooses: features in which messages are
linear, and points at which their products are known (section 5). Observations enter as one more message. A model holds
no graph: it is a template for any graph with its types.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped

from kbpjax import _checks
from kbpjax._precision import matmul
from kbpjax.embedding import covariances, ridge_solve
from kbpjax.features import FeatureMap, features
from kbpjax.graph import Graph
from kbpjax.kernels import Kernel
from kbpjax.landmarks import choose
from kbpjax.positivity import Clipped, ConstrainedFit, positivity
from kbpjax.rules import ConstantTime, NodeBasis, Rule
from kbpjax.training import TrainingData
from kbpjax.update import Operators

Positive = Clipped | ConstrainedFit


class ObservationModel(eqx.Module):
    """What the training data say of the observations of one node type.

    Attributes:
        basis: features of observations.
        expectation: from an observation's features to the message E[k(y, Y) | x] [rank, observation_rank].
        ratio: from an observation's features to the message P(y | x) / P(y) [rank, observation_rank].
        residual: largest residual norm of a training observation's feature, as a share of the largest feature norm.
    """

    basis: FeatureMap
    expectation: Float[Array, "rank observation_rank"]
    ratio: Float[Array, "rank observation_rank"]
    residual: Float[Array, ""]


class KernelMRF(eqx.Module):
    """A learned kernel Markov random field: a template for any graph with its node and edge types.

    Attributes:
        bases: {node type: features in which messages are linear}.
        points: {node type: where messages are evaluated and multiplied [point, *dim]}.
        operators: matrices of the updates, ranks padded with zeros to common sizes.
        observations: {node type: model of its observations}.
        marginals: {node type: mean embedding [rank]}; <features(x), marginal> is the marginal density smoothed by the
            kernel.
        moments: {node type: second moment of the features, E[phi(X) phi(X)'] [rank, rank]}.
        joints: E[phi(X_first) phi(X_second)'] of every edge type, the embedding of the pair, padded with zeros to a
            common rank [edge_type, rank, rank].
        residuals: {node type: (message basis, product basis)}, the largest residual norm of each, as a share of the
            largest feature norm. Well above `eps` means that `max_rank` was too small for the kernel's bandwidth.
        ridges: {node type: lambda of eq. 11 for what is learned of its values and their observations}.
        edge_types: (type, node type of first end, node type of second end) of every edge type.
    """

    bases: dict[int, FeatureMap]
    points: dict[int, Shaped[Array, "point ..."]]
    operators: Operators
    observations: dict[int, ObservationModel]
    marginals: dict[int, Array]
    moments: dict[int, Array]
    joints: Float[Array, "edge_type rank rank"]
    residuals: dict[int, tuple[Array, Array]]
    ridges: dict[int, Float[Array, ""]]
    edge_types: tuple[tuple[int, int, int], ...] = eqx.field(static=True)

    @property
    def ranks(self) -> dict[int, tuple[int, int]]:
        """{node type: (rank of messages, number of points where products are known)}."""
        return {v: (basis.rank, len(self.points[v])) for v, basis in self.bases.items()}

    @property
    def sizes(self) -> tuple[int, int, Any]:
        """Numbers of evaluation points and of coefficients of a message, and the precision."""
        _, points, rank = self.operators.evaluate.shape
        return points, rank, self.operators.evaluate.dtype

    @property
    def positivity(self) -> dict[int, tuple[tuple[Array, Array], tuple[Array, Array]]]:
        """{edge type: (forth, back)}: share of negative entries and of their mass in the estimated evaluate @ project.

        A true conditional expectation has none; `fit(positive=...)` replaces the table by one that has none.
        """
        found = {}
        for k, *ends in self.edge_types:
            directions = []
            for direction, (sender, receiver) in enumerate((ends, ends[::-1])):
                at_points = features(self.bases[receiver], self.points[receiver])
                update = self.operators.project[2 * k + direction, : at_points.shape[1], : len(self.points[sender])]
                directions.append(positivity(matmul(at_points, update)))
            found[k] = tuple(directions)
        return found

    def floor_of(self, node_type: int) -> Float[Array, ""]:
        """Return the least value of an evaluated message of a node type."""
        floors = jnp.asarray(self.operators.floor, self.operators.evaluate.dtype).reshape(-1)
        return floors[node_type if len(floors) > 1 else 0]

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless the model has learned every node and edge type of a graph."""
        fix = "Fit the model on data with all of the graph's types, or build the graph with the model's."
        unknown = [v for v, *_ in graph.node_types if v not in self.bases]
        _checks.require(not unknown, "graph", f"must have node types among {sorted(self.bases)}", unknown, fix)
        known = set(self.edge_types)
        strange = [ends for ends in graph.edge_types if ends not in known]
        rule = f"must have edge types (type, first, second) among {list(self.edge_types[:20])}"
        _checks.require(not strange, "graph", rule, strange, fix)


def fit(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel],
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: Rule = ConstantTime(),
    ridge: ScalarLike | Mapping[int, ScalarLike] = 1e-6,
    obs_ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    floor: ScalarLike = 1e-6,
    positive: Positive | None = None,
) -> KernelMRF:
    """Learn a kernel Markov random field from training data (eq. 11 and 14).

    Linear in the number of samples, except for `FullRank`. Differentiable in the kernels' parameters, `ridge` and
    `floor`, with the choice of landmarks held fixed; works inside `jax.jit`, where the bases have `max_rank`.

    Args:
        data: training data.
        kernel: kernel of the variables, or {node type: kernel}.
        obs_kernel: kernel of the observations, or {node type: kernel}; needed if the data have observations.
        rule: the update rule: `ConstantTime`, `LinearTime` or `FullRank`.
        ridge: lambda of eq. 11, >= 0, or {edge type: lambda}; multiplied by the number of pairs of each operator.
        obs_ridge: the same of what is learned of observations (and of values to clamp at), or {node type: lambda};
            None: `ridge`, which must then be one number.
        floor: least value of an evaluated message, as a share of the largest that a message of its norm can have, in
            [0, 1). Estimated messages dip below zero; the floor makes their products densities.
        positive: how to make the updates positive: `Clipped()` or `ConstrainedFit()`; None: as estimated. Loops of
            positive updates, with tree-reweighted exponents, converge where others swing.

    Returns:
        The model.

    Raises:
        ValueError: an option out of range, no kernel for a type, or matrices that would not fit in memory.

    Example:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.linspace(0, 1, 200).reshape(20, 10)
        >>> data = kbp.pool(kbp.chain_graph(10), x, observations=x)
        >>> model = kbp.fit(data, kernel=kbp.RBF(0.3), obs_kernel=kbp.RBF(0.2), rule=kbp.ConstantTime(eps=1e-2))
        >>> model.ranks[0][0] < 10
        True
    """
    fix = "Pass for instance kbpjax.ConstantTime(eps=1e-2)."
    _checks.require(isinstance(rule, Rule), "rule", "must be an update rule", repr(rule), fix)
    ridges = _ridges("ridge", ridge, data.edges, "edge")
    fix = "Pass obs_ridge too where ridges differ between edge types."
    told = obs_ridge is not None or not isinstance(ridge, Mapping)
    _checks.require(told, "obs_ridge", "must be given beside {edge type: ridge}", "None", fix)
    obs_ridges = _ridges("obs_ridge", ridge if obs_ridge is None else obs_ridge, data.nodes, "node")
    _checks.require_number("floor", floor, least=0, below=1)
    fix = "Pass kbpjax.Clipped(), kbpjax.ConstrainedFit() or None."
    ok = positive is None or isinstance(positive, Positive)
    _checks.require(ok, "positive", "must say how to make updates positive", repr(positive), fix)
    rule.check_memory(data, positive is not None)
    chosen, seen = choose(data, kernel, obs_kernel, rule)
    bases = {v: basis.messages for v, basis in chosen.items()}

    evaluate = {v: features(basis.messages, basis.points) for v, basis in chosen.items()}
    size = tuple(max(matrix.shape[i] for matrix in evaluate.values()) for i in (0, 1))
    evaluate = _stack(evaluate, size)
    largest = jnp.sqrt(jnp.max(jnp.sum(evaluate**2, axis=-1), axis=-1))  # of each node type
    project, joints, tables = _learn_edges(data, chosen, size[::-1], evaluate.dtype, ridges, positive)
    priors = {v: _prior(basis, data.nodes[v], positive is not None) for v, basis in chosen.items()}
    prior = _stack(priors, (size[0], 1))[..., 0].astype(evaluate.dtype)
    averages = {v: _averages(basis, data.nodes[v]) for v, basis in bases.items()}
    return KernelMRF(
        bases=bases,
        points={v: basis.points for v, basis in chosen.items()},
        operators=Operators(evaluate, project, jnp.asarray(floor, largest.dtype) * largest, tables, prior),
        observations={
            v: _observation_model(bases[v], basis, residual, *data.observations[v], obs_ridges[v])
            for v, (basis, residual) in seen.items()
        },
        marginals={v: mean for v, (mean, _) in averages.items()},
        moments={v: moment for v, (_, moment) in averages.items()},
        joints=joints,
        residuals={v: basis.residuals for v, basis in chosen.items()},
        ridges={v: jnp.asarray(obs_ridges[v], largest.dtype) for v in data.nodes},
        edge_types=data.ends,
    )


def _learn_edges(
    data: TrainingData,
    bases: dict[int, NodeBasis],
    size: tuple[int, int],
    dtype: jnp.dtype,
    ridges: dict[int, ScalarLike],
    positive: Positive | None,
) -> tuple[Array, Array, Array | None]:
    """Learn updates [2 type + direction, rank, point], joint embeddings [type, rank, rank], and positive tables.

    Types between the same node types with about equally many pairs are learned in one compiled loop.
    """
    alike: dict[tuple, list[int]] = {}
    for k, a, b in data.ends:
        alike.setdefault((a, b, len(data.edges[k][0]).bit_length()), []).append(k)
    num_types, (rank, points) = 1 + max(data.edges, default=0), size
    project = jnp.zeros((num_types, 2, rank, points), dtype)
    joints = jnp.zeros((num_types, rank, rank), dtype)
    tables = None if positive is None else jnp.zeros((num_types, 2, points, points), dtype)
    for (a, b, _), types in alike.items():
        columns = [[data.edges[k][end] for k in types] for end in (0, 1)]
        if bases[a].products is None:
            places = [data.places(k) for k in types]
            columns += [[place[end] for place in places] for end in (0, 1)]
        counts = np.array([len(x) for x in columns[0]], np.int32)
        padded = [_pad(column, int(counts.max())) for column in columns]
        own = jnp.stack([jnp.asarray(ridges[k], jnp.result_type(float)) for k in types])
        learned = _learn_pairs(bases[a], bases[b], padded, jnp.asarray(counts), own, positive)
        project, joints, tables = _place((project, joints, tables), jnp.asarray(types, jnp.int32), learned)
    tables = None if tables is None else tables.reshape(-1, points, points)
    return project.reshape(-1, rank, points), joints, tables


def _pad(arrays: list[Array], size: int) -> Any:
    """Stack arrays of different length, padded with copies of their first rows."""
    if _checks.is_traced(arrays):
        return jnp.stack([jnp.concatenate([array, array[: size - len(array)]]) for array in arrays])
    rows = map(np.asarray, arrays)  # a compiled copy for each length would cost more
    return np.stack([np.concatenate([row, row[: size - len(row)]]) for row in rows])


@jax.jit
def _place(arrays: tuple[Any, ...], types: Array, learned: tuple[Any, ...]) -> tuple[Any, ...]:
    """Write what was learned of some types, forth and back, into the arrays of all."""

    def write(array: Array, direction: int, new: Array) -> Array:
        return array.at[types, direction, : new.shape[1], : new.shape[2]].set(new)

    (project, joints, tables), (forth, back, joint) = arrays, learned
    for direction, (update, table) in enumerate((forth, back)):
        project = write(project, direction, update)
        tables = None if tables is None else write(tables, direction, table)
    return project, joints.at[types, : joint.shape[1], : joint.shape[2]].set(joint), tables


@jax.jit
def _learn_pairs(
    first: NodeBasis,
    second: NodeBasis,
    columns: list[Any],
    counts: Array,
    ridges: Array,
    positive: Positive | None,
) -> tuple[Any, ...]:
    """Learn edge types one after another from their pairs [type, sample, *dim], of which `counts` are no padding."""

    def learn(one):
        (x_first, x_second, *places), count, ridge = one
        place_first, place_second = places or (None, None)
        forth = _update_operator(second, first, x_second, x_first, place_first, count, ridge, positive)
        back = _update_operator(first, second, x_first, x_second, place_second, count, ridge, positive)
        _, joint = covariances(first.messages, second.messages, x_first, x_second, count)
        return forth, back, joint / count.astype(joint.dtype)

    return jax.lax.map(learn, (columns, counts, ridges))


def _update_operator(
    receiver: NodeBasis,
    sender: NodeBasis,
    x_receiver: Array,
    x_sender: Array,
    places: Array | None,
    count: Array,
    ridge: ScalarLike,
    positive: Positive | None,
) -> tuple[Array, Array | None]:
    """Map values of a product at the sender's points to coefficients at the receiver (eq. 12 and 15) [rank, point].

    Where the points are landmarks, a product with values v there is the function products(x) @ transform.T @ v; where
    they are the training samples, sample i of the sender stands in row places[i]. The second array, if wanted, maps to
    values at the receiver's points [point, point].
    """
    penalty = ridge * count.astype(jnp.result_type(ridge, float))
    if sender.products is not None:
        covariance, cross = covariances(receiver.messages, sender.products, x_receiver, x_sender, count)
        project = matmul(ridge_solve(covariance, cross, penalty), sender.products.transform.T)
        cross = matmul(cross, sender.products.transform.T)
    else:
        assert places is not None
        valid = jnp.arange(len(places), dtype=jnp.int32) < count
        at_pairs = jnp.where(valid[:, None], receiver.messages(x_receiver), 0)
        cross = jnp.zeros((len(sender.points), at_pairs.shape[1]), at_pairs.dtype).at[places].add(at_pairs).T
        covariance = matmul(at_pairs.T, at_pairs)
        project = ridge_solve(covariance, cross, penalty)
    if positive is None:
        return project, None
    at_points = receiver.messages(receiver.points)
    penalised = covariance + penalty.astype(covariance.dtype) * jnp.eye(len(covariance), dtype=covariance.dtype)
    return project, positive.operator(at_points, penalised, cross, project)


@partial(jax.jit, static_argnames="positive")
def _prior(basis: NodeBasis, x: Array, positive: bool) -> Array:
    """Weigh values at the points of a node type so that they sum to the expectation over its samples [point, 1]."""
    if basis.products is None:
        return jnp.full((len(basis.points), 1), 1 / len(basis.points), jnp.result_type(float))
    mean, _ = _averages(basis.products, x)
    weights = matmul(basis.products.transform, mean)
    if positive:
        weights = jnp.maximum(weights, 0)
        weights = weights / jnp.sum(weights)
    return weights[:, None]


@jax.jit
def _observation_model(
    basis: FeatureMap, observed: FeatureMap, residual: Array, x: Array, y: Array, ridge: ScalarLike
) -> ObservationModel:
    """Learn both forms of evidence: (C_xx + ridge)^{-1} C_xy, and the same times (C_yy + ridge)^{-1}."""
    penalty = ridge * len(x)
    covariance, cross = covariances(basis, observed, x, y)
    expectation = ridge_solve(covariance, cross, penalty)
    own, _ = covariances(observed, observed, y, y)
    return ObservationModel(observed, expectation, ridge_solve(own, expectation.T, penalty).T, residual)


@jax.jit
def _averages(basis: FeatureMap, x: Array) -> tuple[Array, Array]:
    """Return the means of the features and of their outer products."""
    ones = jnp.ones(len(x), jax.eval_shape(basis, x[:1]).dtype)
    moment, total = covariances(basis, lambda one: one[:, None], x, ones)
    return total[:, 0] / len(x), moment / len(x)


def _ridges(argument: str, ridge: Any, known: Mapping[int, Any], of: str) -> dict[int, Any]:
    """Give every type its ridge."""
    given = dict(ridge) if isinstance(ridge, Mapping) else dict.fromkeys(known, ridge)
    missing = [k for k in known if k not in given]
    rule = f"must be one number, or one for each {of} type {sorted(known)}"
    _checks.require(not missing, argument, rule, f"none for {missing}", "Pass for instance 1e-6.")
    for k, value in given.items() if known or isinstance(ridge, Mapping) else ((0, ridge),):
        _checks.require_number(f"{argument}[{k}]" if isinstance(ridge, Mapping) else argument, value, least=0)
    return given


@partial(jax.jit, static_argnames="size")
def _stack(matrices: dict[int, Array], size: tuple[int, ...]) -> Array:
    """Stack matrices by number, padded with zeros to one size; numbers that are not there hold zeros."""
    dtype = jnp.result_type(*matrices.values()) if matrices else jnp.result_type(float)
    stacked = jnp.zeros((1 + max(matrices, default=0), *size), dtype)
    for number, matrix in matrices.items():
        stacked = stacked.at[number, : matrix.shape[0], : matrix.shape[1]].set(matrix)
    return stacked
