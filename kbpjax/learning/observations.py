"""Observation models: what is learned of the observations of a node type, and the two ways to use it as evidence."""

import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from kbpjax import _checks
from kbpjax._misc import show_fields
from kbpjax._public import Checked
from kbpjax.features import FeatureMap
from kbpjax.learning.embedding import ridge_solve
from kbpjax.learning.sums import ObservationSums


class ObservationModel(Checked):
    """The observation model of one node type.

    Attributes:
        basis: features of observations.
        expectation: map from features of an observation to the message E[k(y, Y) | x] [rank, observation_rank].
        ratio: map from features of an observation to the message P(y | x) / P(y) [rank, observation_rank].
        residual: maximum residual norm of training observations, relative to the maximum feature norm.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.linspace(-1, 1, 60).reshape(20, 3)
        >>> data = kbp.pool(kbp.chain_graph(3), x, observations=x)
        >>> model = kbp.fit(data, kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.1))
        >>> observed = model.observations[0]  # of node type 0
        >>> observed.expectation.shape == (model.ranks[0][0], observed.basis.rank)
        True
    """

    basis: FeatureMap
    expectation: Float[Array, "rank observation_rank"]
    ratio: Float[Array, "rank observation_rank"]
    residual: Float[Array, ""]

    __repr__ = show_fields


def counted_model(
    observed: FeatureMap, residual: Array, sums: ObservationSums, share: ScalarLike, mean: Array
) -> ObservationModel:
    """Return the observation model of smoothed counts, mixed with a share of independence; one for both models."""
    count, share = sums.count.astype(sums.cross.dtype), jnp.asarray(share, sums.cross.dtype)
    independent = jnp.outer(mean.astype(sums.cross.dtype), sums.mean.astype(sums.cross.dtype) / count)
    expectation = (1 - share) * sums.cross / count + share * independent
    return ObservationModel(observed, expectation, expectation, residual)


def regressed_model(
    observed: FeatureMap, residual: Array, sums: ObservationSums, ridge: ScalarLike
) -> ObservationModel:
    """Return both evidence models: (C_xx + ridge)^{-1} C_xy, and the same times (C_yy + ridge)^{-1}."""
    penalty = ridge * sums.count.astype(jnp.result_type(ridge, float))
    expectation = ridge_solve(sums.variable, sums.cross, penalty)
    return ObservationModel(observed, expectation, ridge_solve(sums.observed, expectation.T, penalty).T, residual)


class Expectation(Checked):
    """The expectation E[k(y, Y) | x]: the likelihood smoothed by the kernel of y; use a narrow bandwidth.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> data, y = kbp.pool(graph, x, observations=x), np.zeros(3)
        >>> options = dict(kernel=kbp.RBF(0.5), rule=kbp.FullRank())
        >>> models = [kbp.fit(data, obs_kernel=kbp.RBF(s), **options) for s in (0.5, 0.1)]
        >>> wide, narrow = (kbp.observe(model, graph, y, evidence_model=kbp.Expectation()).local[0] for model in models)
        >>> bool((narrow > narrow.max() / 2).sum() < (wide > wide.max() / 2).sum())
        True
    """

    def operator(self, observation: ObservationModel) -> Array:
        """Return the matrix that maps features of an observation to a message."""
        return observation.expectation

    def point_mass(self, at_value: Array, moment: Array, ridge: Array) -> Array:
        """Return the local factor for x_t = value, k(value, x_t), as coefficients [node, rank]."""
        del moment, ridge
        return at_value


class DensityRatio(Checked):
    """The density ratio P(y | x) / P(y) (Song et al. 2010): not smoothed, but sensitive to the ridge.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x, observations=x), kernel=kbp.RBF(0.5), obs_kernel=kbp.RBF(0.5))
        >>> kinds = kbp.Expectation(), kbp.DensityRatio()
        >>> smooth, sharp = (kbp.observe(model, graph, np.zeros(3), evidence_model=kind).local[0] for kind in kinds)
        >>> bool((sharp > sharp.max() / 2).sum() < (smooth > smooth.max() / 2).sum())
        True
    """

    def operator(self, observation: ObservationModel) -> Array:
        """Return the matrix that maps features of an observation to a message."""
        return observation.ratio

    def point_mass(self, at_value: Array, moment: Array, ridge: Array) -> Array:
        """Return the local factor for x_t = value, the point mass relative to P, as coefficients [node, rank]."""
        return ridge_solve(moment, at_value.T, ridge).T


EvidenceModel = Expectation | DensityRatio


def check_evidence_model(evidence_model: object) -> None:
    """Raise ValueError unless `evidence_model` is an evidence model."""
    ok = isinstance(evidence_model, EvidenceModel)
    fix = "Pass kbpjax.Expectation() or kbpjax.DensityRatio()."
    _checks.require(ok, "evidence_model", "must be an evidence model", repr(evidence_model), fix)
