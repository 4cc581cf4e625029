"""The numbers of hyperparameters as flat records, and back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp


def numbers_of(settings: kbp.Hyperparameters) -> dict[str, float]:
    """Name the numbers of settings, for the record."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(_bare(settings))[0]:
        name = _name(path)
        entries = {name: leaf} if np.ndim(leaf) == 0 else {f"{name}[{i}]": entry for i, entry in enumerate(leaf)}
        found |= {key: float(entry) for key, entry in entries.items()}
    return found


def with_numbers(settings: kbp.Hyperparameters, row: Mapping[str, Any]) -> kbp.Hyperparameters:
    """Return settings with the numbers of a record of `numbers_of`.

    Raises:
        ValueError: The record lacks one of them.
    """
    missing = [name for name in numbers_of(settings) if not isinstance(row.get(name), (int, float))]
    if missing:
        raise ValueError(f"--use: must hold {', '.join(missing)}; got a file without. Pass results of this experiment.")
    bare = _bare(settings)
    leaves, structure = jax.tree_util.tree_flatten_with_path(bare)
    changed = [
        jnp.asarray([row[name] for name in row if name.startswith(f"{_name(path)}[")] or row[_name(path)], leaf.dtype)
        for path, leaf in leaves
    ]
    return dataclasses.replace(jax.tree_util.tree_unflatten(structure, changed), rule=settings.rule)


def _bare(settings: kbp.Hyperparameters) -> kbp.Hyperparameters:
    """Return settings without the numbers of their rule."""
    return dataclasses.replace(settings, rule=kbp.FullRank())


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).removeprefix(".")
