"""Representations of incoming messages as points of feature maps: a tuple of independent distributions is one point.

The kernel between tuples is that of kernel mean embeddings (`kernels.EmbeddingRBF`). The embedding of a Gaussian has a
closed form. Other families are replaced by the Gaussian of the same mean and variance, as the authors of KJIT do, or
embedded exactly by their characteristic functions, or by samples.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from kbpjax import _checks
from kbpjax._public import Checked
from kbpjax.ep.messages import Distribution
from kbpjax.features import EmbeddingFeatures, FeatureMap, SampleFeatures, draw_frequencies
from kbpjax.features.distributions import draw_phases

Incoming = tuple[Distribution, ...]


class Representation(Checked):
    """A map from tuples of messages to points, with features of the points."""

    @abc.abstractmethod
    def points(self, incoming: Incoming) -> Float[Array, "*batch row coordinate"]:
        """Return points [*batch, row, coordinate] of messages [*batch], one column per message."""

    @abc.abstractmethod
    def draw(
        self, key: Key[Array, ""], num_features: int, incoming: Incoming, bandwidths: Float[Array, " coordinate"]
    ) -> FeatureMap:
        """Return a random feature map of the points that approximates the embedding kernel of these bandwidths."""


class Moments(Representation):
    """Means and variances [2, coordinate]: every message as a Gaussian.

    Examples:
        >>> from kbpjax import ep
        >>> ep.Moments().points((ep.Gamma(2.0, 1.0), ep.Gaussian.from_moments(3.0, 4.0))).tolist()  # means, variances
        [[2.0, 3.0], [2.0, 4.0]]
        >>> learner = ep.Learner(representation=ep.Moments())  # the default
    """

    def points(self, incoming: Incoming) -> Float[Array, "*batch row coordinate"]:
        """Return means in the first row and variances in the second."""
        means = jnp.stack([message.mean for message in incoming], axis=-1)
        return jnp.stack([means, jnp.stack([message.variance for message in incoming], axis=-1)], axis=-2)

    def draw(
        self, key: Key[Array, ""], num_features: int, incoming: Incoming, bandwidths: Float[Array, " coordinate"]
    ) -> FeatureMap:
        """Draw `features.EmbeddingFeatures`."""
        return EmbeddingFeatures.draw(key, num_features, len(incoming), bandwidths)


class Draws(Representation):
    """Samples [draw, coordinate], for families without other representations; with common random numbers.

    Args:
        num_draws: number of samples per message.
        seed: seed of the random numbers; not a key, because this object is hashable and compared by value.

    Examples:
        >>> from kbpjax import ep
        >>> messages = ep.Gaussian.from_moments(0.0, 1.0), ep.Gaussian.from_moments(2.0, 4.0)
        >>> ep.Draws(num_draws=100).points(messages).shape
        (100, 2)
        >>> learner = ep.Learner(representation=ep.Draws(num_draws=100))
    """

    num_draws: int = eqx.field(static=True, default=200, converter=_checks.whole)
    seed: int = eqx.field(static=True, default=0, converter=_checks.whole)

    def __check_init__(self) -> None:
        _checks.require_count("num_draws", self.num_draws)
        _checks.require_seed(self.seed)

    def points(self, incoming: Incoming) -> Float[Array, "*batch row coordinate"]:
        """Return samples, one row per draw."""
        keys = jax.random.split(jax.random.key(self.seed), len(incoming))
        drawn = [self._of_each(message, key) for message, key in zip(incoming, keys, strict=True)]
        return jnp.stack(drawn, axis=-1)

    def _of_each(self, message: Distribution, key: Key[Array, ""]) -> Float[Array, "*batch draw"]:
        """Return samples of each message with the same key, so that points are a function of messages."""
        shape = message.mean.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), message)
        return jax.vmap(lambda of: of.sample(key, self.num_draws))(flat).reshape(*shape, self.num_draws)

    def draw(
        self, key: Key[Array, ""], num_features: int, incoming: Incoming, bandwidths: Float[Array, " coordinate"]
    ) -> FeatureMap:
        """Draw `features.SampleFeatures`."""
        return SampleFeatures.draw(key, num_features, len(incoming), bandwidths)


class Exact(Representation):
    """Parameters of the messages [2, coordinate], for families of two parameters with a characteristic function.

    Examples:
        >>> from kbpjax import ep
        >>> messages = ep.Beta(2.0, 1.0), ep.Gaussian(precision=0.5, shift=3.0)
        >>> ep.Exact().points(messages).tolist()  # alpha and precision, beta and shift
        [[2.0, 0.5], [1.0, 3.0]]
        >>> learner = ep.Learner(representation=ep.Exact())
    """

    def points(self, incoming: Incoming) -> Float[Array, "*batch row coordinate"]:
        """Return first parameters in the first row and second ones in the second."""
        leaves = [jax.tree.leaves(message) for message in incoming]
        names = [type(message).__name__ for message in incoming]
        fine, fix = all(len(pair) == 2 for pair in leaves), "Represent messages by Moments() or Draws()."
        _checks.require(fine, "incoming", "must be families of two parameters for Exact()", names, fix)
        return jnp.stack([jnp.stack([pair[i] for pair in leaves], axis=-1) for i in range(2)], axis=-2)

    def draw(
        self, key: Key[Array, ""], num_features: int, incoming: Incoming, bandwidths: Float[Array, " coordinate"]
    ) -> FeatureMap:
        """Draw `ExactFeatures`."""
        families = tuple(jax.tree.structure(message) for message in incoming)
        _checks.require_count("num_features", num_features)
        of_frequencies, of_phases = jax.random.split(key)
        frequencies = draw_frequencies(of_frequencies, (num_features, len(families)), bandwidths)
        return ExactFeatures(frequencies, draw_phases(of_phases, num_features, bandwidths.dtype), families)


class ExactFeatures(FeatureMap):
    """Expectations of random cosines under products of members of the families: sqrt(2 / D) E cos(w_j . x + b_j).

    Attributes:
        frequencies: w [feature, coordinate].
        phases: b [feature].
        families: the tree structure of a message of each coordinate.
    """

    frequencies: Float[Array, "feature coordinate"]
    phases: Float[Array, " feature"]
    families: tuple[Any, ...] = eqx.field(static=True)

    def __call__(self, x: Shaped[Array, "sample *dim"]) -> Float[Array, "sample rank"]:
        """Return the features of parameters [sample, 2, coordinate]."""
        return jax.lax.map(self._of_one, x, batch_size=64)

    def _of_one(self, x: Float[Array, "2 coordinate"]) -> Float[Array, " rank"]:
        real, imaginary = jnp.cos(self.phases).astype(x.dtype), jnp.sin(self.phases).astype(x.dtype)
        for column, family in enumerate(self.families):
            message = jax.tree.unflatten(family, (x[0, column], x[1, column]))
            cosine, sine = message.characteristic(self.frequencies[:, column].astype(x.dtype))
            real, imaginary = real * cosine - imaginary * sine, real * sine + imaginary * cosine
        return np.sqrt(2 / len(self.phases)).astype(x.dtype) * real

    @property
    def rank(self) -> int:
        """The number of features."""
        return len(self.phases)

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a single point."""
        return jax.ShapeDtypeStruct((2, len(self.families)), self.frequencies.dtype)
