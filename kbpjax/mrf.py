"""From data to a kernel Markov random field: training pairs in, operators and local evidence out.

For an edge type with pairs (x_t, x_s), the update of a message from t to s is the conditional expectation (eq. 4)

    m_ts(x_s) = E[ prod_u m_ut(X_t) | x_s ],

estimated by ridge regression between two bases: messages live on landmarks of the kernel k, their products on landmarks
of the tensor power k^(d - 1), d being the largest degree with evidence counted as a neighbour (section 5). Observations
enter as one more message, E[k(y, Y) | x], a smoothed likelihood. A model holds no graph: it is a template for any graph
with its types.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ScalarLike

from kbpjax import _checks
from kbpjax._precision import matmul
from kbpjax.embedding import conditional_operator, mean_embedding
from kbpjax.features import Basis, cholesky_basis, features, incomplete_cholesky
from kbpjax.graph import Graph
from kbpjax.kernels import Kernel
from kbpjax.propagate import Operators
from kbpjax.training import TrainingData


class ConstantTime(eqx.Module):
    """The constant-time rule (section 5.3): messages and their products on landmarks; no cost per training sample.

    Args:
        eps: largest residual norm of a training sample's feature, > 0, the largest feature norm being 1. Smaller is
            closer to the full-rank answer and slower; in single precision about 1e-3 is the least that can be seen.
        max_rank: most landmarks of one basis, >= 1.

    Raises:
        ValueError: eps or max_rank out of range.
    """

    eps: float = eqx.field(static=True, default=1e-3, converter=float)
    max_rank: int = eqx.field(static=True, default=128)

    def __check_init__(self) -> None:
        _checks.require_number("eps", self.eps, above=0)
        _checks.require_count("max_rank", self.max_rank)

    def basis(self, kernel: Kernel, x: Array) -> tuple[Basis, Array]:
        """Choose landmarks among samples [sample, *dim]; return the basis and the residual left.

        Outside `jax.jit` the basis has just the rank that was needed; inside, `max_rank`, the rest of it zero.
        """
        pivots = incomplete_cholesky(jax.lax.stop_gradient(kernel), jax.lax.stop_gradient(x), self.eps, self.max_rank)
        if _checks.is_traced(pivots.rank):
            valid = jnp.arange(len(pivots.indices), dtype=jnp.int32) < pivots.rank
            return cholesky_basis(kernel, x[pivots.indices], valid), pivots.residual
        rank = int(pivots.rank)
        fix = "Choose a kernel or bandwidth for which k(x, x) > 0 and finite."
        _checks.require(rank > 0, "kernel", "must not vanish on the training samples", "k(x, x) = 0 or NaN", fix)
        return cholesky_basis(kernel, x[pivots.indices[:rank]]), pivots.residual


DEFAULT_DEGREE = 5
"""Degree taken where the training data do not tell: a grid node with an observation, as in the paper."""


class KernelMRF(eqx.Module):
    """A learned kernel Markov random field: a template for any graph with its node and edge types.

    Attributes:
        bases: {node type: basis of messages}.
        product_bases: {node type: basis of products of messages}, of the kernel's tensor power.
        observation_bases: {node type: basis of observations}.
        operators: matrices of the updates, ranks padded with zeros to common sizes.
        observation_operators: {node type: [rank, observation_rank]}, from an observation's features to its message.
        marginals: {node type: mean embedding [rank]}; <features(x), marginal> is the marginal density smoothed by the
        kernel.
        residuals: {node type: (message basis, product basis)}, the largest residual norm of each, as a share of the
            largest feature norm. Well above `eps` means that `max_rank` was too small for the kernel's bandwidth.
        observation_residuals: {node type: the same of the basis of observations}.
        edge_types: (type, node type of first end, node type of second end) of every edge type.
    """

    bases: dict[int, Basis]
    product_bases: dict[int, Basis]
    observation_bases: dict[int, Basis]
    operators: Operators
    observation_operators: dict[int, Array]
    marginals: dict[int, Array]
    residuals: dict[int, tuple[Array, Array]]
    observation_residuals: dict[int, Array]
    edge_types: tuple[tuple[int, int, int], ...] = eqx.field(static=True)

    @property
    def ranks(self) -> dict[int, tuple[int, int]]:
        """{node type: (rank of messages, rank of products)}."""
        return {
            v: (basis.transform.shape[0], self.product_bases[v].transform.shape[0]) for v, basis in self.bases.items()
        }

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless the model has learned every node and edge type of a graph."""
        fix = "Fit the model on data with all of the graph's types, or build the graph with the model's."
        unknown = [v for v, *_ in graph.node_types if v not in self.bases]
        _checks.require(not unknown, "graph", f"must have node types among {sorted(self.bases)}", unknown, fix)
        strange = [ends for ends in graph.edge_types if ends not in self.edge_types]
        rule = f"must have edge types (type, first, second) among {list(self.edge_types)}"
        _checks.require(not strange, "graph", rule, strange, fix)


def fit(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel],
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: ConstantTime = ConstantTime(),
    ridge: ScalarLike = 1e-6,
    floor: ScalarLike = 1e-6,
) -> KernelMRF:
    """Learn a kernel Markov random field from training data (eq. 11 and 14).

    Linear in the number of samples. Differentiable in the kernels' parameters, `ridge` and `floor`, with the choice of
    landmarks held fixed; works inside `jax.jit`, where the bases have `max_rank`.

    Args:
        data: training data.
        kernel: kernel of the variables, or {node type: kernel}.
        obs_kernel: kernel of the observations, or {node type: kernel}; needed if the data have observations.
        rule: the update rule.
        ridge: lambda of eq. 11, >= 0; multiplied by the number of pairs of each operator.
        floor: least value of an evaluated message, as a share of the largest that a message of its norm can have, in
            [0, 1). Estimated messages dip below zero; the floor makes their products densities.

    Returns:
        The model.

    Raises:
        ValueError: an option out of range, or no kernel for a type.

    Example:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.linspace(0, 1, 200).reshape(20, 10)
        >>> data = kbp.pool(kbp.chain_graph(10), x, observations=x)
        >>> model = kbp.fit(data, kernel=kbp.RBF(0.3), obs_kernel=kbp.RBF(0.2), rule=kbp.ConstantTime(eps=1e-2))
        >>> model.ranks[0][0] < 10
        True
    """
    fix = "Pass for instance kbpjax.ConstantTime(eps=1e-2)."
    _checks.require(isinstance(rule, ConstantTime), "rule", "must be an update rule", repr(rule), fix)
    _checks.require_number("ridge", ridge, least=0)
    _checks.require_number("floor", floor, least=0, below=1)
    kernels = _kernels("kernel", kernel, data.nodes)
    obs_kernels = _kernels("obs_kernel", obs_kernel, data.observations)
    degrees = dict(data.degrees)

    chosen = {v: rule.basis(kernels[v], x) for v, x in data.nodes.items()}
    powers = {v: max(1, degrees.get(v, DEFAULT_DEGREE) - 1) for v in data.nodes}
    products = {v: rule.basis(kernels[v] ** powers[v], x) for v, x in data.nodes.items()}
    bases = {v: basis for v, (basis, _) in chosen.items()}
    product_bases = {v: basis for v, (basis, _) in products.items()}
    seen = {v: rule.basis(obs_kernels[v], y) for v, (_, y) in data.observations.items()}
    observed = {v: basis for v, (basis, _) in seen.items()}

    evaluate = {v: features(basis, product_bases[v].landmarks) for v, basis in bases.items()}
    project = {}
    for k, a, b in data.ends:
        x_a, x_b = data.edges[k]
        project[2 * k] = _update_operator(bases[b], product_bases[a], x_b, x_a, ridge)
        project[2 * k + 1] = _update_operator(bases[a], product_bases[b], x_a, x_b, ridge)
    size = tuple(max(matrix.shape[i] for matrix in evaluate.values()) for i in (0, 1))
    evaluate = _stack(evaluate, size)
    largest = jnp.sqrt(jnp.max(jnp.sum(evaluate**2, axis=-1), axis=-1))  # of each node type
    return KernelMRF(
        bases=bases,
        product_bases=product_bases,
        observation_bases=observed,
        operators=Operators(evaluate, _stack(project, size[::-1]), jnp.asarray(floor, largest.dtype) * largest),
        observation_operators={
            v: _observation_operator(bases[v], basis, *data.observations[v], ridge) for v, basis in observed.items()
        },
        marginals={v: _marginal(basis, data.nodes[v]) for v, basis in bases.items()},
        residuals={v: (chosen[v][1], products[v][1]) for v in bases},
        observation_residuals={v: residual for v, (_, residual) in seen.items()},
        edge_types=data.ends,
    )


@jax.jit
def _update_operator(receiver: Basis, products: Basis, x_receiver: Array, x_sender: Array, ridge: ScalarLike) -> Array:
    """Map values at the sender's product landmarks to coefficients at the receiver (eq. 15) [rank, point].

    A product with values v at the landmarks is the function products(x) @ transform.T @ v.
    """
    regression = conditional_operator(
        lambda x: features(receiver, x), lambda x: features(products, x), x_receiver, x_sender, ridge
    )
    return matmul(regression, products.transform.T)


@jax.jit
def _observation_operator(basis: Basis, observed: Basis, x: Array, y: Array, ridge: ScalarLike) -> Array:
    return conditional_operator(lambda x: features(basis, x), lambda y: features(observed, y), x, y, ridge)


@jax.jit
def _marginal(basis: Basis, x: Array) -> Array:
    return mean_embedding(lambda x: features(basis, x), x)


def _kernels(argument: str, kernel: Any, samples: Mapping[int, Any]) -> dict[int, Kernel]:
    """Give every type of `samples` its kernel."""
    if isinstance(kernel, Kernel):
        return dict.fromkeys(samples, kernel)
    given = dict(kernel) if isinstance(kernel, Mapping) else {}
    missing = [v for v in samples if not isinstance(given.get(v), Kernel)]
    rule = f"must be a kernel, or one for each node type {sorted(samples)}"
    got = f"{type(kernel).__name__} without a kernel for {missing}"
    _checks.require(not missing, argument, rule, got, "Pass for instance kbpjax.RBF(bandwidth).")
    return {v: given[v] for v in samples}


@partial(jax.jit, static_argnames="size")
def _stack(matrices: dict[int, Array], size: tuple[int, ...]) -> Array:
    """Stack matrices by number, padded with zeros to one size; numbers that are not there hold zeros."""
    dtype = jnp.result_type(*matrices.values()) if matrices else jnp.result_type(float)
    stacked = jnp.zeros((1 + max(matrices, default=0), *size), dtype)
    for number, matrix in matrices.items():
        stacked = stacked.at[number, : matrix.shape[0], : matrix.shape[1]].set(matrix)
    return stacked
