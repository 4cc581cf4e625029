"""Front ends: regressions of a variable on its observation, for observations of many coordinates.

In hundreds of dimensions, a kernel of a few dozen landmarks sees little of a patch or a profile. A front end predicts
the variable from it, and the observation model is learned for these predictions, of which there are as many numbers as
the variable has. It is learned on predictions out of fold (`kbpjax.tuning.front_ends`): those of the samples that a
regression was fitted to are more exact than those of new observations, and the evidence would be too strong.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kbpjax._misc import matmul, values_or_shapes, vary_like
from kbpjax._public import Checked
from kbpjax.features import FeatureMap
from kbpjax.kernels import Kernel, gram
from kbpjax.kernels.base import like
from kbpjax.learning.observations import ObservationModel


class FrontEnd(Checked):
    """A regression of a variable on its observation, in arrays.

    Attributes:
        kind: the name by which `Hyperparameters` names it.
        offset: what is added to the regression [*dim].
        width: the number of coordinates of an observation.
    """

    kind: ClassVar[str] = ""

    offset: Float[Array, "*dim"]
    width: int = eqx.field(static=True)

    @abc.abstractmethod
    def __call__(self, y: Float[Array, "node obs_dim"]) -> Float[Array, "node *dim"]:
        """Return predictions of the variables from observations."""


class KernelRidge(FrontEnd):
    """Kernel ridge regression with the kernel functions of landmarks.

    Attributes:
        landmarks: observations [landmark, obs_dim].
        kernel: kernel of the observations.
        weights: coefficients of the kernel functions of the landmarks [landmark, coordinate of the variable].

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.learning.front_ends import KernelRidge
        >>> weights, offset = jnp.array([[1.0], [3.0]]), jnp.array(5.0)
        >>> KernelRidge(offset, 2, jnp.eye(2), kbp.kernels.Linear(), weights)(jnp.eye(2)).tolist()
        [6.0, 8.0]
    """

    kind: ClassVar[str] = "kernel ridge"

    landmarks: Float[Array, "landmark obs_dim"]
    kernel: Kernel
    weights: Float[Array, "landmark coordinate"]

    def __call__(self, y: Float[Array, "node obs_dim"]) -> Float[Array, "node *dim"]:
        """Return predictions of the variables from observations."""
        values = matmul(gram(self.kernel, like(y, self.landmarks.dtype), self.landmarks), self.weights)
        return self.offset[None] + values.reshape(len(y), *self.offset.shape)

    @values_or_shapes
    def __repr__(self) -> str:
        return f"kernel ridge regression with {len(self.landmarks)} landmarks"


class Trees(FrontEnd):
    """A sum of regression trees: each adds the value of the leaf of an observation to one coordinate.

    A node sends an observation to the left if its coordinate `feature` is at most `threshold`. Leaves send it to
    themselves. Node 0 is the root.

    Attributes:
        feature, threshold, left, right, value: of the nodes [tree, node].
        coordinate: the coordinate of the variable to which a tree adds [tree].
        depth: largest number of steps from the root to a leaf.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.learning.front_ends import Trees
        >>> left, right, zero = jnp.array([[1, 1, 2]]), jnp.array([[2, 1, 2]]), jnp.array([[0, 0, 0]])
        >>> values, first, at = jnp.array([[0.0, -1.0, 1.0]]), jnp.array([0]), jnp.full((1, 3), 0.5)
        >>> stump = Trees(jnp.array(10.0), 1, zero, at, left, right, values, first, depth=1)
        >>> stump(jnp.array([[0.2], [0.5], [0.7]])).tolist()
        [9.0, 9.0, 11.0]
    """

    kind: ClassVar[str] = "trees"

    feature: Int[Array, "tree node"]
    threshold: Float[Array, "tree node"]
    left: Int[Array, "tree node"]
    right: Int[Array, "tree node"]
    value: Float[Array, "tree node"]
    coordinate: Int[Array, " tree"]
    depth: int = eqx.field(static=True)

    def __call__(self, y: Float[Array, "node obs_dim"]) -> Float[Array, "node *dim"]:
        """Return predictions of the variables from observations."""
        y, rows = like(y, self.threshold.dtype), jnp.arange(len(y), dtype=jnp.int32)

        def add(total: Array, tree: tuple[Array, ...]) -> tuple[Array, None]:
            feature, threshold, left, right, value, coordinate = tree

            def descend(_: Any, at: Array) -> Array:
                return jnp.where(y[rows, feature[at]] <= threshold[at], left[at], right[at])

            leaf = jax.lax.fori_loop(0, self.depth, descend, vary_like(jnp.zeros(len(y), left.dtype), (y, left)))
            return total.at[:, coordinate].add(value[leaf]), None

        trees = self.feature, self.threshold, self.left, self.right, self.value, self.coordinate
        start = jnp.broadcast_to(self.offset.reshape(1, -1), (len(y), self.offset.size))
        total, _ = jax.lax.scan(add, vary_like(start, (y, trees)), trees)
        return total.reshape(len(y), *self.offset.shape)

    @values_or_shapes
    def __repr__(self) -> str:
        return f"{len(self.feature)} regression trees"


class PredictedFeatures(FeatureMap):
    """Features of the predictions of a front end, as functions of the observations.

    Attributes:
        front_end: the front end.
        base: the features of predictions.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax.features import cholesky_basis
        >>> from kbpjax.learning.front_ends import KernelRidge, PredictedFeatures
        >>> front_end = KernelRidge(jnp.array(5.0), 2, jnp.eye(2), kbp.kernels.Linear(), jnp.array([[1.0], [3.0]]))
        >>> base = cholesky_basis(kbp.RBF(1.0), jnp.array([5.0, 8.0]))
        >>> bool((PredictedFeatures(front_end, base)(jnp.eye(2)) == base(jnp.array([6.0, 8.0]))).all())
        True
    """

    front_end: FrontEnd
    base: FeatureMap

    def __call__(self, x: Float[Array, "sample obs_dim"]) -> Float[Array, "sample rank"]:
        """Return the features of the predictions from observations."""
        return self.base(like(self.front_end(x), self.base.point.dtype))

    @property
    def rank(self) -> int:
        """The number of features."""
        return self.base.rank

    @property
    def point(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of an observation."""
        return jax.ShapeDtypeStruct((self.front_end.width,), self.base.point.dtype)

    def __repr__(self) -> str:
        return f"{getattr(self.base, 'kernel', self.base)!r} of {self.front_end!r}"


def with_front_ends(
    observations: Mapping[int, ObservationModel], front_ends: Mapping[int, FrontEnd]
) -> dict[int, ObservationModel]:
    """Return the models of observations from models of predictions by front ends {node type: front end}."""

    def of(front_end: FrontEnd, observation: ObservationModel) -> ObservationModel:
        return dataclasses.replace(observation, basis=PredictedFeatures(front_end, observation.basis))

    return dict(observations) | {v: of(one, observations[v]) for v, one in front_ends.items()}
