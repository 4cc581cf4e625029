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
from kbpjax.training.potentials import ClosedForm, Potentials, model_of, normal_scores

LIMIT = 0.98
"""Largest spectral radius of |R|."""

NODES = 128
"""Largest number of nodes: a step takes the third power of it."""

VALUES = 30
"""Smallest number of known values for each entry of the precision matrix."""

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
    """Return whether variables are numbers, on a small enough graph with enough values."""
    graph = cases.graph
    number = all(isinstance(getattr(basis, "kernel", None), RBF) for basis in model.bases.values())
    single = all(x.ndim == 1 and jnp.issubdtype(x.dtype, jnp.floating) for x in model.points.values())
    known = sum(int(np.sum(np.asarray(mask))) for mask in cases.present.values())
    enough = known >= VALUES * (graph.num_nodes + graph.num_edges // 2)
    return number and single and enough and graph.num_edges > 0 and graph.num_nodes <= NODES


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


def gaussian_potentials(closed: ClosedForm, model: KernelMRF, cases: Cases, chosen: NDArray) -> Potentials:
    """Return the potentials of the Gaussian of the chosen cases; edges have types of their own."""
    place = {k: i for i, k in enumerate(closed.types)}
    rows = np.array([place[own] for _, _, own, _ in closed.own])
    ends = np.array([edge[:2] for edge in closed.own])
    found = walk_summable(_scores(model, cases, chosen), ends)
    start, degree = closed.start(model), np.bincount(ends.reshape(-1), minlength=cases.graph.num_nodes)
    drift = found.diagonal * found.mean
    drift = drift.at[ends[:, 0]].add(found.entries * found.mean[ends[:, 1]])
    drift = drift.at[ends[:, 1]].add(found.entries * found.mean[ends[:, 0]])
    share = lambda x: x / jnp.asarray(np.maximum(degree, 1), x.dtype)  # of an edge in what its ends have
    drift, more = share(drift), share(1 - found.diagonal)
    of_ends = [getattr(start, name).at[rows, 0].set(drift[ends[:, i]]) for i, name in enumerate(("first", "second"))]
    first, second = (one.at[rows, 1].set(more[ends[:, i]]) for i, one in enumerate(of_ends))
    return dataclasses.replace(
        start,
        power=start.power.at[rows].set(0),
        product=start.product.at[rows, 0, 0].set(-found.entries),
        first=first,
        second=second,
        heat=jnp.zeros_like(start.heat),
        reweighting=jnp.full_like(start.reweighting, PLAIN),
    )


def _scores(model: KernelMRF, cases: Cases, chosen: NDArray) -> NDArray:
    """Return the normal scores of the values [case, node], NaN where they are missing and in cases not chosen."""
    count = len(next(iter(cases.samples.values())))
    scores, left = np.full((count, cases.graph.num_nodes), np.nan), np.ones(count, bool)
    left[chosen] = False
    for v, x in cases.samples.items():
        nodes, values = np.asarray(cases.graph.nodes_of_type(v)), np.asarray(x)
        if v in model.margins:
            margins = model.margins[v].of_nodes(len(nodes)).at_nodes(jnp.arange(len(nodes), dtype=jnp.int32))
            values = np.asarray(margins.standardized(jnp.asarray(values.T))).T
        at = np.interp(values.astype(float), np.asarray(model.points[v], float), normal_scores(model, v))
        scores[:, nodes] = np.where(np.asarray(cases.present[v]), at, np.nan)
    scores[left] = np.nan  # of one shape, whatever is chosen
    return scores


def walk_summable(scores: NDArray, ends: NDArray) -> Gaussian:
    """Return the walk-summable Gaussian of largest likelihood.

    Args:
        scores: values [case, node], NaN where missing.
        ends: both ends of each edge [edge, 2].
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
        free = _maximized(free, ends, moment, steps)
    scale, entries = _parameters(free, ends)
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
