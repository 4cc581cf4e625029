"""Estimates of the marginal P*(x_s) in a belief, for variables in any domain."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import matmul, show_fields
from kbpjax._public import Checked
from kbpjax.features.cholesky import plain_features
from kbpjax.kernels import Kernel, gram
from kbpjax.kernels.base import like
from kbpjax.learning.embedding import mean_embedding
from kbpjax.learning.model import KernelMRF


class MeanEmbedding(Checked):
    r"""The mean embedding $\langle \phi(x), \mu \rangle$: the marginal smoothed by the model's kernel.

    A wide kernel widens the estimate.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(2), np.linspace(-1, 1, 40).reshape(20, 2)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
        >>> marginal = kbp.MeanEmbedding()
        >>> belief = kbp.beliefs(model, graph, None, kbp.run(model, graph), np.linspace(-4, 4, 81), marginal=marginal)
        >>> bool((kbp.variance(belief) > x.var()).all())  # smoothed by the kernel
        True
    """

    def density(self, model: KernelMRF, node_type: int, points: Array) -> Float[Array, " point"]:
        """Return the estimate at points [point, *dim], of any scale, with the model's floor."""
        at_points = plain_features(model.bases[node_type], points)
        return jnp.maximum(matmul(at_points, model.marginals[node_type]), model.floor_of(node_type))

    __repr__ = show_fields


def _arrays(samples: Numbers | Mapping[int, Numbers]) -> Any:
    if isinstance(samples, Mapping):
        return {v: _samples(f"samples[{v}]", x) for v, x in samples.items()}
    return _samples("samples", samples)


def _samples(argument: str, samples: Any) -> Array:
    _checks.require_finite(argument, samples, "Drop these samples.")
    return _checks.as_array(argument, samples)


class Parzen(Checked):
    """The Parzen estimate mean_i kernel(x, x_i), with a custom kernel, usually narrower than the model's.

    Args:
        kernel: kernel >= 0, or {node type: kernel}; for numbers an RBF, its bandwidth well below the samples' spread.
        samples: training samples [sample, *dim], or {node type: samples}, as in `TrainingData.nodes`.

    Raises:
        ValueError: an invalid kernel; on use, a node type without kernel or samples, or samples of another shape than
            its variables.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> marginal = kbp.Parzen(kbp.RBF(0.2), jnp.linspace(-1, 1, 100))
    """

    kernel: Kernel | dict[int, Kernel]
    samples: Array | dict[int, Array] = eqx.field(converter=_arrays)

    def __check_init__(self) -> None:
        given = self.kernel.values() if isinstance(self.kernel, Mapping) else [self.kernel]
        invalid = [kernel for kernel in given if not isinstance(kernel, Kernel)]
        fix = "Pass for instance kbpjax.RBF(0.2)."
        _checks.require(not invalid, "kernel", "must be a kernel, or {node type: kernel}", repr(invalid)[1:-1], fix)

    def density(self, model: KernelMRF, node_type: int, points: Array) -> Float[Array, " point"]:
        """Return the estimate at points [point, *dim]."""
        kernel = self.kernel.get(node_type) if isinstance(self.kernel, Mapping) else self.kernel
        samples = self.samples.get(node_type) if isinstance(self.samples, Mapping) else self.samples
        given = kernel is not None and samples is not None
        fix = "Pass one for all, or {node type: ...} with all types."
        _checks.require(given, "Parzen", f"must have a kernel and samples of node type {node_type}", "none", fix)
        assert kernel is not None and samples is not None
        shape = model.points[node_type].shape[1:]
        rule = f"must have shape [sample, *{shape}], as the variables of node type {node_type}"
        ok = samples.size > 0 and samples.shape[1:] == shape
        _checks.require(ok, "samples", rule, f"shape {samples.shape}", "Pass data.nodes.")
        return mean_embedding(lambda x: gram(kernel, x, points), like(samples, points.dtype))

    __repr__ = show_fields


class Empirical(Checked):
    """Equal weights: use it when the points were sampled from the marginal.

    The belief is then a conditional embedding: E[f(X) | evidence] is the weighted mean of f over the points. This holds
    on any domain, with or without a density (section 4.2), without the smoothing of the other two estimates.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(2), np.linspace(0, 2, 40).reshape(20, 2) ** 2
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(1.0))
        >>> solution, points = kbp.run(model, graph), x.reshape(-1)  # the points are the samples
        >>> belief = kbp.beliefs(model, graph, None, solution, points, marginal=kbp.Empirical())
        >>> bool((abs(kbp.mean(belief) - x.mean()) < 0.01).all())
        True
    """

    def density(self, model: KernelMRF, node_type: int, points: Array) -> Float[Array, " point"]:
        """Return ones [point]."""
        return jnp.ones(len(points), model.operators.evaluate.dtype)

    __repr__ = show_fields


Marginal = MeanEmbedding | Parzen | Empirical
