"""The model that messages are of: `infer` iterates those of nonnegative operators, and solves forests without."""

import contextlib
from typing import Any

import equinox as eqx
import jax

from kbpjax import _checks
from kbpjax.inference.loopy import Solution
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.nonnegative import clipped


def iterated_model(model: KernelMRF) -> KernelMRF:
    """Return the model whose messages `infer` iterates: with nonnegative operators, unless it is of tables."""
    if model.operators.nonnegative is not None or model.has_potentials:
        return model
    # A known model inside jax.jit: XLA would fold these products in minutes where edges have own relations.
    known = contextlib.nullcontext() if _checks.is_traced(model) else jax.ensure_compile_time_eval()
    with known:
        return with_nonnegative(model, clipped(model.operators, model.edge_types))


def with_nonnegative(model: KernelMRF, tables: Any) -> KernelMRF:
    """Return the model with other nonnegative operators, or with none."""
    return eqx.tree_at(lambda m: m.operators.nonnegative, model, tables, is_leaf=lambda leaf: leaf is None)


def model_of_messages(model: KernelMRF, solution: Solution) -> KernelMRF:
    """Return the model with the operators that the messages of a solution are of, from the model of `infer`."""
    return with_nonnegative(model, None) if solution.projected is None else iterated_model(model)
