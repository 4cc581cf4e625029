"""Observations of which some entries are missing: evidence learned for each pattern of entries.

A pattern is a set of entries of an observation vector. Its observation model is that of the vectors in which all other
entries are 0, with the kernel of the complete ones: for kernels of differences, such as RBF and ARD, that is the kernel
of the entries in the pattern. It is learned from all pairs in which these entries are there. An observation is used by
the model of the largest pattern whose entries it has.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike, Shaped
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit, show
from kbpjax.features import FeatureMap, cholesky_basis, incomplete_cholesky
from kbpjax.kernels import Kernel, diagonal, gram
from kbpjax.learning.data import PartlySeen
from kbpjax.learning.embedding import sum_chunks
from kbpjax.learning.observations import ObservationModel, counted_model, regressed_model
from kbpjax.learning.rules import ConstantTime, FixedLandmarks, FullRank, Rule
from kbpjax.learning.sums import observation_products

MOST_ENTRIES = 15
"""Largest number of entries of a vector for which patterns are learned."""

ALL_OF = 4
"""Number of entries up to which all patterns are learned, whether they occur or not."""

MOST_PATTERNS = 16
"""Number of the most common patterns that are learned for more entries, besides those of single entries."""

LEAST_PAIRS = 10
"""Smallest number of pairs from which the model of a pattern is learned."""


def can_be_partly_seen(y: Shaped[Array | np.ndarray, "*dim"]) -> bool:
    """Return whether patterns are learned for observations like y: vectors of few floats."""
    return y.ndim == 1 and 1 < len(y) <= MOST_ENTRIES and bool(jnp.issubdtype(y.dtype, jnp.floating))


def common_patterns(entries: Bool[NDArray, "sample entry"]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return patterns to be learned [pattern, entry], the largest and most common first, and how often each occurs.

    Args:
        entries: masks of the entries of the observations that are not complete.
    """
    width = entries.shape[1]
    found, counts = np.unique(entries, axis=0, return_counts=True)
    known = {tuple(one): count for one, count in zip(found.tolist(), counts.tolist(), strict=True)}
    if width <= ALL_OF:
        numbers = np.arange(1, 2**width - 1)
        chosen = [tuple(one) for one in ((numbers[:, None] >> np.arange(width)) % 2 == 1).tolist()]
    else:
        chosen = sorted(known, key=lambda one: -known[one])[:MOST_PATTERNS]
        chosen += [one for one in map(tuple, np.eye(width, dtype=bool).tolist()) if one not in chosen]
    ordered = sorted(chosen, key=lambda one: (-sum(one), -known.get(one, 0)))
    return np.array(ordered), np.array([known.get(one, 0) for one in ordered])


def partly_seen(patterns: Any, counts: Any, x: Any, y: Any, least: int = LEAST_PAIRS) -> PartlySeen | None:
    """Return pairs of which entries of y are NaN, with the patterns of which there are enough; None without any."""
    entries = ~np.isnan(np.asarray(y))
    enough = np.array([np.sum(entries[:, one].all(axis=1)) >= least for one in np.asarray(patterns)], bool)
    if not enough.any():
        return None
    return PartlySeen(*map(_checks.to_jax, (np.asarray(patterns)[enough], np.asarray(counts)[enough], x, y)))


class PatternFeatures(FeatureMap):
    """Features of vectors of which entries may be NaN: one block of features for each pattern, of which one is not 0.

    Attributes:
        whole: features of complete vectors.
        kernel: the kernel of the patterns' features.
        patterns: the patterns, the largest first [pattern, entry].
        landmarks: landmarks of each pattern, 0 in other entries [pattern, rank, entry].
        transforms: change of basis of each pattern, as of a `Basis` [pattern, rank, rank].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import cholesky_basis
        >>> from kbpjax.learning.patterns import PatternFeatures
        >>> whole = cholesky_basis(kbp.RBF(1.0), jnp.array([[0.0, 1.0]]))
        >>> first = jnp.array([[True, False]]), jnp.zeros((1, 1, 2)), jnp.ones((1, 1, 1))
        >>> features = PatternFeatures(whole, kbp.RBF(1.0), *first)
        >>> y = jnp.array([[0.0, 1.0], [0.0, jnp.nan], [jnp.nan, 1.0]])
        >>> features(y).round(3).tolist(), features.pattern(y).tolist()
        ([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [-1, 0, 1])
    """

    whole: FeatureMap
    kernel: Kernel
    patterns: Bool[Array, "pattern entry"]
    landmarks: Shaped[Array, "pattern rank entry"]
    transforms: Float[Array, "pattern rank rank"]

    def pattern(self, y: Shaped[Array, "sample entry"]) -> Int[Array, " sample"]:
        """Return the number of the pattern that is used: -1 for complete vectors, the number of patterns for none."""
        there = ~jnp.isnan(y)
        contained = jnp.all(there[:, None] | ~self.patterns[None], axis=2)
        last = jnp.ones((len(y), 1), bool)
        number = jnp.argmax(jnp.concatenate([contained, last], axis=1), axis=1).astype(jnp.int32)
        return jnp.where(jnp.all(there, axis=1), -1, number)

    def __call__(self, x: Shaped[Array, "sample entry"]) -> Float[Array, "sample rank"]:
        """Return the features of vectors [sample, entry]."""
        number = self.pattern(x)
        filled = jnp.where(jnp.isnan(x), 0, x)
        whole = self.whole(filled)

        def block(one: tuple[Array, ...]) -> Array:
            own, pattern, landmarks, transform = one
            values = matmul(gram(self.kernel, jnp.where(pattern[None], filled, 0), landmarks), transform)
            return jnp.where((number == own)[:, None], values, 0)

        numbers = jnp.arange(len(self.patterns), dtype=jnp.int32)
        blocks = jax.vmap(block)((numbers, self.patterns, self.landmarks, self.transforms))
        columns = jnp.moveaxis(blocks, 0, 1).reshape(len(x), -1).astype(whole.dtype)
        return jnp.concatenate([jnp.where((number == -1)[:, None], whole, 0), columns], axis=1)

    def represented(self, x: Shaped[Array, "sample entry"]) -> Float[Array, " sample"]:
        """Return the share of the squared norm of each feature that is represented, in [0, 1]; 0 without a pattern."""
        number = self.pattern(x)
        every = jnp.concatenate([self.patterns, jnp.zeros_like(self.patterns[:1]), jnp.ones_like(self.patterns[:1])])
        norms = diagonal(self.kernel, jnp.where(every[number] & ~jnp.isnan(x), x, 0))
        return jnp.sum(self(x) ** 2, axis=1).astype(norms.dtype) / jnp.where(norms > 0, norms, 1)

    def check(self, argument: str, x: Shaped[Array, "sample entry"]) -> None:
        """Raise ValueError unless vectors, with 0 where entries are missing, lie in the domain of the kernel."""
        self.whole.check(argument, jnp.where(jnp.isnan(x), 0, x))

    @property
    def rank(self) -> int:
        """The number of features."""
        return self.whole.rank + self.transforms.shape[0] * self.transforms.shape[2]

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a vector."""
        return self.whole.point

    def __repr__(self) -> str:
        return f"{show(self.kernel)} of complete vectors and {len(self.patterns)} patterns of entries"


def with_patterns(
    observation: ObservationModel,
    seen: PartlySeen,
    basis: FeatureMap,
    kernel: Kernel,
    ridge: ScalarLike,
    mean: Array | None,
    rule: Rule,
) -> ObservationModel:
    """Return the observation model of complete vectors with those of the patterns.

    Args:
        observation: the observation model of complete vectors.
        seen: the pairs, and the patterns.
        basis: features of the variables.
        kernel: the kernel of the observations.
        ridge: lambda of the observation operators; with `mean`, the share of independence.
        mean: mean of the features of the variables if the model is one of smoothed counts; None: it is not.
        rule: the update rule, which says how many landmarks are selected.
    """
    try:
        kernel.check("observations", jnp.zeros_like(seen.y[:1]))
    except ValueError:  # 0 is outside of the domain of the kernel: vectors count as missing as a whole
        return observation
    base = rule.rule if isinstance(rule, FixedLandmarks) else rule
    limits = ConstantTime() if isinstance(base, FullRank) else base
    learned = _learn(seen, basis, kernel, ridge, mean, limits.eps, max_rank=limits.max_rank)
    landmarks, transforms, expectations, ratios = learned
    if not _checks.is_traced(learned):  # landmarks are selected one after the other: the last ones are padding
        most = int(np.max(np.sum(np.diagonal(np.asarray(transforms), axis1=1, axis2=2) != 0, axis=1)))
        landmarks, transforms = landmarks[:, :most], transforms[:, :most, :most]
        expectations, ratios = expectations[..., :most], ratios[..., :most]

    def joined(whole: Array, parts: Array) -> Array:
        return jnp.concatenate([whole, jnp.moveaxis(parts, 0, 1).reshape(len(whole), -1).astype(whole.dtype)], axis=1)

    return ObservationModel(
        PatternFeatures(observation.basis, kernel, seen.patterns, landmarks, transforms),
        joined(observation.expectation, expectations),
        joined(observation.ratio, ratios),
        observation.residual,
    )


@partial(quick_jit, static_argnames="max_rank")
def _learn(
    seen: PartlySeen,
    basis: FeatureMap,
    kernel: Kernel,
    ridge: ScalarLike,
    mean: Array | None,
    eps: ScalarLike,
    max_rank: int,
) -> tuple[Array, Array, Array, Array]:
    """Return landmarks, changes of basis, and both evidence models of each pattern [pattern, ...]."""

    def learn(pattern: Array) -> tuple[Array, Array, Array, Array]:
        known = jnp.all(~jnp.isnan(seen.y) | ~pattern[None], axis=1)
        filled = jnp.where(known[:, None] & pattern[None], seen.y, 0)
        filled = jnp.where(known[:, None], filled, filled[jnp.argmax(known)][None])  # these are no landmarks
        pivots = incomplete_cholesky(jax.lax.stop_gradient(kernel), filled, eps, max_rank)
        valid = jnp.arange(len(pivots.indices), dtype=jnp.int32) < pivots.rank
        observed = cholesky_basis(kernel, filled[pivots.indices], valid)

        def products(valid: Array, x: Array, y: Array, known: Array) -> Any:
            return observation_products(basis, observed, valid & known[:, None], x, y)

        sums = sum_chunks(products, (seen.x, filled, known))
        if mean is None:
            model = regressed_model(observed, pivots.residual, sums, ridge)
        else:
            model = counted_model(observed, pivots.residual, sums, ridge, mean)
        return observed.landmarks, observed.transform, model.expectation, model.ratio

    return jax.lax.map(learn, seen.patterns)
