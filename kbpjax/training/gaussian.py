r"""Gaussian potentials: the Gaussian copula of a graph whose messages converge, learned without message passing.

On the normal scores u of the variables (Liu, Lafferty, Wasserman 2009), the density of a copula with the precision
matrix J, which has an entry for each edge, is

$$p(x) \propto \prod_s p_s(x_s) \, e^{u_s^2 / 2} \; e^{-(u - \mu)' J (u - \mu) / 2}.$$

The maximum likelihood J is the joint answer of all neighbors, which relations of pairs cannot give. Belief propagation
is exact for the means of Gaussians that are walk-summable (Malioutov, Johnson, Willsky 2006): with
J = D (I - R) D and D diagonal, the spectral radius of |R| is below 1. Then it converges, whatever is observed. So the
likelihood is maximized under this constraint, by expectation maximization where values are missing.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import matmul
from kbpjax.kernels import RBF
from kbpjax.learning.data import Cases
from kbpjax.learning.model import KernelMRF
from kbpjax.training.examples import values_of
from kbpjax.training.potentials import LABELS, LEAST, ClosedForm, Potentials, model_of, normal_scores, prior_of

LIMIT = 0.98
"""Largest spectral radius of |R|."""

NODES = 256
"""Largest number of coordinates: a step takes the third power of it."""

VALUES = 10
"""Smallest number of known values for each entry of the precision matrix."""

MOST_SHRUNK = 0.5
"""Largest share of independence in the covariance; it is the number of entries over that of known values."""

ROUNDS = 8
"""Number of rounds of expectation maximization; 1 where nothing is missing."""

STEPS = 60
"""Number of steps in a round."""

RATE = 0.05
"""Learning rate of a step (Adam)."""

CASES = 64
"""Number of cases whose missing values are expected at once."""

PLAIN = 1e3
"""Factor of the exponents that makes them 1: belief propagation."""


class Gaussian(NamedTuple):
    """A Gaussian with an entry of the precision matrix for each edge.

    Attributes:
        mean: [node].
        diagonal: diagonal of J [node].
        entries: J of the ends of each edge [edge].
    """

    mean: Float[Array, " node"]
    diagonal: Float[Array, " node"]
    entries: Float[Array, " edge"]


def can_be_gaussian(model: KernelMRF, cases: Cases) -> bool:
    """Return whether variables are numbers or labels, on a small enough graph with enough values."""
    graph = cases.graph
    sizes = {v: _size(model, v) for v in model.points}
    if not graph.num_edges or None in sizes.values():
        return False
    of_nodes = np.array([sizes[v] for v in np.asarray(graph.node_type).tolist()])
    half = graph.num_edges // 2
    ends = np.stack([np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]])
    entries = int(np.sum(of_nodes) + np.sum(of_nodes[ends[0]] * of_nodes[ends[1]]))
    known = sum(int(np.sum(np.asarray(mask))) for mask in cases.present.values())
    return known >= VALUES * entries and int(np.sum(of_nodes)) <= NODES


def _size(model: KernelMRF, node_type: int) -> int | None:
    """Return the number of Gaussian coordinates of a node type; None if it can have none."""
    x, kernel = model.points[node_type], getattr(model.bases[node_type], "kernel", None)
    if x.ndim != 1:
        return None
    if isinstance(kernel, RBF):
        return 1
    if jnp.issubdtype(x.dtype, jnp.floating):
        return None
    return len(x) - 1 if 2 <= len(x) <= LABELS else None


def gaussian_model(model: KernelMRF, cases: Cases, chosen: NDArray, observer: KernelMRF) -> KernelMRF:
    """Return a model with the potentials of the Gaussian of the chosen cases.

    Args:
        model: a model of smoothed counts.
        cases: the cases, of one graph.
        chosen: numbers of the cases that the Gaussian is learned from.
        observer: the model whose evidence is used, where observations are not the values themselves.
    """
    closed, values = ClosedForm.of(model, cases.graph, own=True), values_of(cases)
    potentials = gaussian_potentials(closed, model, cases, chosen)
    power = jnp.ones(()) if set(values) == set(model.points) else observer.evidence_power
    potentials = dataclasses.replace(potentials, evidence=power.astype(potentials.evidence.dtype))
    return model_of(model, closed, potentials, values, cases.graph.num_nodes, observer)


class Coordinates(NamedTuple):
    """Gaussian coordinates of a node type, z = L f - o, of its features f: with mean 0 and covariance I.

    Numbers have one coordinate, their score. Labels have one fewer than indicators, whose sum is constant.

    Attributes:
        map: L [coordinate, feature].
        offset: o [coordinate].
    """

    map: NDArray[np.floating]
    offset: NDArray[np.floating]

    @classmethod
    def of(cls, model: KernelMRF, node_type: int, features: NDArray[np.floating]) -> "Coordinates":
        """Return the coordinates of a node type, from its features at the levels [level, feature]."""
        size = _size(model, node_type)
        assert size is not None
        matrix = np.zeros((size, features.shape[1]))
        if isinstance(getattr(model.bases[node_type], "kernel", None), RBF):
            matrix[0, 0] = 1
            return cls(matrix, np.zeros(1))
        used = size + 1
        weights = np.maximum(prior_of(model, node_type), 0) + LEAST
        weights = weights / weights.sum()
        linear = features[: len(weights), :used]
        mean = weights @ linear
        values, vectors = np.linalg.eigh((linear - mean).T @ (weights[:, None] * (linear - mean)))
        matrix[:, :used] = (vectors[:, -size:] / np.sqrt(np.maximum(values[-size:], LEAST))).T
        return cls(matrix, matrix[:, :used] @ mean)


def gaussian_potentials(closed: ClosedForm, model: KernelMRF, cases: Cases, chosen: NDArray) -> Potentials:
    """Return the potentials of the Gaussian of the chosen cases; each edge has a separate type.

    With coordinates z of the nodes, mean mu and precision J, they are exp(-z' J z' / 2) of pairs of nodes, and of each
    node exp(z' (I - J) z / 2 + z' J mu) beside its marginal, shared among its edges. Of a label given numbers, that is
    linear discriminant analysis (Lauritzen and Wermuth 1989).
    """
    place = {k: i for i, k in enumerate(closed.types)}
    rows = np.array([place[own] for _, _, own, _ in closed.own])
    ends = np.array([edge[:2] for edge in closed.own])
    kinds = np.asarray(cases.graph.node_type)
    at_levels = np.asarray(closed.features, float)
    of_type = {v: Coordinates.of(model, v, at_levels[v]) for v in model.points}
    first = np.concatenate([[0], np.cumsum([len(of_type[v].offset) for v in kinds.tolist()])])
    own = [np.arange(*first[i : i + 2]) for i in range(len(kinds))]
    pairs = [[(i, j) for i in own[a] for j in own[b]] for a, b in ends.tolist()]
    inside = [(i, j) for one in own for n, i in enumerate(one) for j in one[n + 1 :]]
    joined = np.array([pair for one in pairs for pair in one] + inside, int)
    z = _coordinates(model, cases, chosen, of_type, at_levels)
    shrinkage = min((len(joined) + z.shape[1]) / max(np.sum(~np.isnan(z)), 1), MOST_SHRUNK)
    found = walk_summable(z, joined, shrinkage)
    precision = np.diag(np.asarray(found.diagonal, float))
    precision[joined[:, 0], joined[:, 1]] = precision[joined[:, 1], joined[:, 0]] = np.asarray(found.entries, float)
    drift = precision @ np.asarray(found.mean, float)
    degree = np.maximum(np.bincount(ends.reshape(-1), minlength=len(kinds)), 1)
    start = closed.start(model)
    product, linear = (np.zeros(getattr(start, name).shape) for name in ("product", "first"))
    linear = [linear, linear.copy()]
    for row, both in zip(rows.tolist(), ends.tolist(), strict=True):
        maps = [of_type[int(kinds[node])] for node in both]
        block = precision[np.ix_(own[both[0]], own[both[1]])]
        product[row] = -maps[0].map.T @ block @ maps[1].map
        # What the offsets of the other end leave in each.
        linear[0][row] += maps[0].map.T @ block @ maps[1].offset
        linear[1][row] += maps[1].map.T @ block.T @ maps[0].offset
        for end, (node, one) in enumerate(zip(both, maps, strict=True)):
            extra = np.eye(len(own[node])) - precision[np.ix_(own[node], own[node])]
            linear[end][row] += _node_function(at_levels[kinds[node]], one, extra, drift[own[node]]) / degree[node]
    dtype = start.product.dtype
    return dataclasses.replace(
        start,
        power=start.power.at[rows].set(0),
        product=_checks.to_jax(product, dtype),
        first=_checks.to_jax(linear[0], dtype),
        second=_checks.to_jax(linear[1], dtype),
        heat=jnp.zeros_like(start.heat),
        reweighting=jnp.full_like(start.reweighting, PLAIN),
    )


def _node_function(
    features: NDArray[np.floating], one: Coordinates, extra: NDArray[np.floating], drift: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Return the weights of features that make z' extra z / 2 + drift' z at the levels, up to a constant."""
    if len(one.offset) == 1 and not one.offset.any():  # numbers, whose second feature is the square
        weights = np.zeros(features.shape[1])
        weights[0], weights[1] = drift[0], extra[0, 0]
        return weights
    used = np.any(features, axis=1)
    z = features[used] @ one.map.T - one.offset
    wanted = np.einsum("li,ij,lj->l", z, extra, z) / 2 + z @ drift
    table = np.concatenate([features[used], np.ones((int(used.sum()), 1))], axis=1)
    return np.linalg.lstsq(table, wanted, rcond=1e-9)[0][:-1]


def _coordinates(
    model: KernelMRF, cases: Cases, chosen: NDArray, of_type: dict[int, Coordinates], at_levels: NDArray
) -> NDArray[np.floating]:
    """Return the coordinates of the values [case, coordinate], NaN where they are missing and in cases not chosen."""
    count, left = len(next(iter(cases.samples.values()))), []
    parts: dict[int, NDArray[np.floating]] = {}
    gone = np.ones(count, bool)
    gone[chosen] = False
    for v, x in cases.samples.items():
        nodes, values = np.asarray(cases.graph.nodes_of_type(v)), np.asarray(x)
        if v in model.margins:
            margins = model.margins[v].of_nodes(len(nodes)).at_nodes(jnp.arange(len(nodes), dtype=jnp.int32))
            values = np.asarray(margins.standardized(jnp.asarray(values.T))).T
        levels, one = np.asarray(model.points[v], float), of_type[v]
        if len(one.offset) == 1 and not one.offset.any():
            z = np.interp(values.astype(float), levels, normal_scores(model, v))[..., None]
        else:
            right = np.clip(np.searchsorted(levels, values), 1, len(levels) - 1)
            nearest = right - (values - levels[right - 1] < levels[right] - values)
            z = at_levels[v][nearest] @ one.map.T - one.offset
        z = np.where(np.asarray(cases.present[v])[..., None], z, np.nan)
        parts |= dict(zip(nodes.tolist(), np.moveaxis(z, 1, 0), strict=True))
    left = np.concatenate([parts[node] for node in range(cases.graph.num_nodes)], axis=1)
    left[gone] = np.nan  # of one shape, whatever is chosen
    return left


def walk_summable(scores: NDArray, ends: NDArray, shrinkage: float = 0.0) -> Gaussian:
    """Return the walk-summable Gaussian of largest likelihood.

    Args:
        scores: values [case, node], NaN where missing.
        ends: both ends of each edge [edge, 2].
        shrinkage: share of independence in the covariance.
    """
    dtype, there = jnp.result_type(float), ~np.isnan(scores)
    count = np.maximum(there.sum(axis=0), 1)
    mean = np.where(there, scores, 0).sum(axis=0) / count
    centered = _checks.to_jax(np.where(there, scores - mean, 0), dtype)
    mask = _checks.to_jax(there)
    degree = np.bincount(ends.reshape(-1), minlength=scores.shape[1])
    free = {
        "log_scale": jnp.zeros(scores.shape[1], dtype),
        "entries": jnp.full(len(ends), 0.5 / degree.max(), dtype),
    }
    rounds = ROUNDS if not there[there.any(axis=1)].all() else 1
    steps = STEPS * ROUNDS // rounds
    for _ in range(rounds):
        moment, shift = _expected(free, ends, centered, mask)
        mean = mean + np.asarray(shift)
        centered = jnp.where(mask, centered - shift[None], 0)
        moment = (1 - shrinkage) * moment + shrinkage * jnp.diag(jnp.diag(moment))
        free = _maximized(free, ends, moment, steps)
    scale, entries = jax.jit(_parameters)(free, ends)  # one program instead of one for each operation
    return Gaussian(_checks.to_jax(mean, dtype), scale**2, -entries * scale[ends[:, 0]] * scale[ends[:, 1]])


def _parameters(free: dict[str, Array], ends: Any) -> tuple[Array, Array]:
    """Return the diagonal of D and the entries of R, of which the spectral radius of |R| is at most `LIMIT`."""
    scale, entries = jnp.exp(free["log_scale"]), free["entries"]
    strength = _symmetric(jnp.zeros((len(scale), len(scale)), scale.dtype), jnp.abs(entries), ends)
    vector = jnp.linalg.eigh(jax.lax.stop_gradient(strength))[1][:, -1]
    return scale, entries * jnp.minimum(1, LIMIT / jnp.maximum(vector @ strength @ vector, 1e-12))


def _symmetric(matrix: Array, entries: Array, ends: Any) -> Array:
    """Return a symmetric matrix with some entries."""
    return matrix.at[ends[:, 0], ends[:, 1]].set(entries).at[ends[:, 1], ends[:, 0]].set(entries)


def _precision(free: dict[str, Array], ends: Any) -> Float[Array, "node node"]:
    scale, entries = _parameters(free, ends)
    matrix = _symmetric(jnp.eye(len(scale), dtype=scale.dtype), -entries, ends)
    return scale[:, None] * matrix * scale[None]


@jax.jit
def _expected(
    free: dict[str, Array], ends: Any, values: Float[Array, "case node"], there: Bool[Array, "case node"]
) -> tuple[Float[Array, "node node"], Float[Array, " node"]]:
    """Return the expected covariance and mean of all values, with the missing ones given the others."""
    covariance = jnp.linalg.inv(_precision(free, ends))

    def one(case: tuple[Array, Array]) -> tuple[Array, Array]:
        value, mask = case
        known = mask.astype(value.dtype)
        seen = covariance * known[:, None] * known[None] + jnp.diag(1 - known)
        gain = jax.scipy.linalg.solve(seen, covariance * known[:, None], assume_a="pos")  # rows of missing ones are 0
        gain = gain * known[:, None]
        return gain.T @ value, covariance - matmul(gain.T, covariance * known[:, None])

    def add(total: tuple[Array, Array], case: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        filled, spread = jax.vmap(one)(case)
        weight = jnp.any(case[1], axis=1).astype(filled.dtype)  # padding has none
        second = matmul((filled * weight[:, None]).T, filled) + jnp.einsum("c,cij->ij", weight, spread)
        return (total[0] + second, total[1] + weight @ filled), None

    count = jnp.sum(jnp.any(there, axis=1), dtype=values.dtype)
    pad = -len(values) % CASES
    blocked = lambda x: jnp.pad(x, ((0, pad), (0, 0))).reshape(-1, CASES, x.shape[1])
    size = values.shape[1]
    zero = jnp.zeros((size, size), values.dtype), jnp.zeros(size, values.dtype)
    (second, first), _ = jax.lax.scan(add, zero, (blocked(values), blocked(there)))
    mean = first / count
    return second / count - jnp.outer(mean, mean), mean


@partial(jax.jit, static_argnames="steps")
def _maximized(free: dict[str, Array], ends: Any, moment: Array, steps: int) -> dict[str, Array]:
    """Return the parameters after some steps of the likelihood."""
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))

    def loss(free: dict[str, Array]) -> Array:
        precision = _precision(free, ends)
        root = jnp.linalg.cholesky(precision)
        return (jnp.sum(precision * moment) - 2 * jnp.sum(jnp.log(jnp.diagonal(root)))) / len(moment)

    def advance(carry: Any, _: None) -> tuple[Any, None]:
        free, state = carry
        slopes = jax.grad(loss)(free)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            change, state = optimizer.update(slopes, state)
            moved = optax.apply_updates(free, change)
        return (moved, state), None

    return jax.lax.scan(advance, (free, optimizer.init(free)), None, length=steps)[0][0]
