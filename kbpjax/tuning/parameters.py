"""Unconstrained parametrization of hyperparameters: logarithms of positive numbers, logits of shares."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from kbpjax import _checks
from kbpjax.kernels import Kernel

KERNELS = ("kernel", "obs_kernel")
SHARES = ("floor", "damping")
SMOOTHING = {"ridge": 1e3, "obs_ridge": 1e3, "floor": 1e2}
"""Factors with which messages converge that otherwise do not: of floors, the odds are multiplied."""
OTHERS = ("ridge", "obs_ridge", "exponents", "evidence_power", "temperature")


def _same(value: Array) -> Array:
    return value


def _logit(value: Array) -> Array:
    return jnp.log(value) - jnp.log1p(-value)


@dataclasses.dataclass(frozen=True)
class FreeNumbers:
    """The hyperparameters that are optimized, and their transformations to unconstrained parameters.

    Attributes:
        start: initial hyperparameters.
        names: paths of the optimized numbers in the hyperparameters.
    """

    start: Any
    names: tuple[str, ...]
    _forms: tuple[tuple[int, Callable, Callable], ...]

    @classmethod
    def of(cls, hyperparameters: Any, frozen: Callable[[Any], Any]) -> "FreeNumbers":
        """Optimize all numbers except frozen ones and nonnegative numbers that are 0."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(hyperparameters)
        numbered = jax.tree.unflatten(tree, list(range(len(leaves))))
        fixed = set(jax.tree.leaves(frozen(numbered))) | set(_constants(numbered))
        names, forms = [], []
        for i, (path, leaf) in enumerate(leaves):
            form = _form(path[0].name, leaf)
            if form is not None and i not in fixed:
                names.append(jax.tree_util.keystr(path).removeprefix("."))
                forms.append((i, *form))
        fix = "Leave one of them out of `frozen`, or start it above 0."
        _checks.require(bool(names), "hyperparameters", "must have numbers to optimize", "none", fix)
        return cls(hyperparameters, tuple(names), tuple(forms))

    def free(self) -> list[Array]:
        """Return the unconstrained parameters of the initial hyperparameters."""
        leaves = jax.tree.leaves(self.start)
        # Strong types: a step would change a weak type and be compiled twice.
        return [into(leaf := leaves[i]).astype(leaf.dtype) for i, into, _ in self._forms]

    def smoother(self) -> list[Array]:
        """Return the initial parameters with much larger ridges and floor, where learned: messages converge there."""
        factors = [SMOOTHING.get(re.split(r"\W", name)[0], 1.0) for name in self.names]
        return [value + math.log(factor) for value, factor in zip(self.free(), factors, strict=True)]

    def values(self, free: list[Array]) -> list[Array]:
        """Return the constrained numbers of unconstrained parameters."""
        return [out(value) for (_, _, out), value in zip(self._forms, free, strict=True)]

    def hyperparameters(self, free: list[Array]) -> Any:
        """Return the hyperparameters of unconstrained parameters."""
        leaves, tree = jax.tree.flatten(self.start)
        for (i, _, _), value in zip(self._forms, self.values(free), strict=True):
            leaves[i] = value
        return jax.tree.unflatten(tree, leaves)


def descend(
    optimizer: optax.GradientTransformation, slopes: list[Array], state: Any, free: list[Array]
) -> tuple[list[Array], Any]:
    """Return parameters and optimizer state after one step of an optax optimizer."""
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        change, state = optimizer.update(slopes, state, free)
        after: Any = optax.apply_updates(free, change)
    return after, state


def _constants(numbered: Any) -> Iterator[int]:
    """Yield the leaves that kernels declare as constants."""
    for kernel in jax.tree.leaves(numbered, is_leaf=lambda node: isinstance(node, Kernel) and bool(node.constants)):
        for name in kernel.constants if isinstance(kernel, Kernel) else ():
            yield from jax.tree.leaves(getattr(kernel, name))


def _form(field: str, leaf: Array) -> tuple[Callable, Callable] | None:
    """Return the transformation to unconstrained values and its inverse; None if the number is not optimized."""
    if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)):
        return None
    positive = bool(np.all(np.asarray(leaf) > 0))
    if field in KERNELS:
        return (jnp.log, jnp.exp) if positive else (_same, _same)
    if field in OTHERS:
        return (jnp.log, jnp.exp) if positive else None
    if field in SHARES:
        return (_logit, jax.nn.sigmoid) if positive else None
    return None
