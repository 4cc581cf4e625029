"""Checkpoints of out-of-core learning, written atomically and without executable code."""

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kbpjax import _checks
from kbpjax._misc import replacing

FORMAT = "kbpjax.fit_chunks 1"


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of out-of-core learning, the content of a checkpoint.

    Attributes:
        stage: "sample", "sum" or "done".
        done: number of chunks that this stage has processed.
        total: total number of chunks; 0: not yet counted.
        types: types, shapes and dtypes that all chunks share, as JSON.
        landmarks: digest of the landmarks; "" before their selection.
        arrays: reservoirs and sums.
    """

    stage: str = "sample"
    done: int = 0
    total: int = 0
    types: str = ""
    landmarks: str = ""
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)


class Checkpoint:
    """A file with a state and the options of `fit_chunks`: the words of the key, and digests of the others."""

    def __init__(self, path: Any, options: Mapping[str, str | list[int]]):
        self.path, self.options = None if path is None else Path(path), options
        ok = self.path is None or self.path.parent.is_dir()
        _checks.require(ok, "checkpoint", "must be in an existing folder", str(path), "Create the folder first.")

    def load(self) -> Progress:
        """Return the state in the file; an initial state if the file does not exist."""
        if self.path is None or not self.path.exists():
            return Progress()
        fix = "Pass another path: only checkpoints are overwritten."
        header, content = {}, {}
        try:
            with self.path.open("rb") as whole, np.load(whole, allow_pickle=False) as file:
                content = {name: file[name] for name in file.files}
            header = json.loads(str(content.pop("about")))
            valid = header.pop("format") == FORMAT
        except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError, zipfile.BadZipFile):
            valid = False
        _checks.require(valid, "checkpoint", "must be a file written by fit_chunks", str(self.path), fix)
        saved = header.pop("settings")
        changed = [name for name in self.options if saved.get(name) != self.options[name]]
        fix = "Delete the file to restart, pass another path, or pass the saved options."
        got = f"another {', '.join(changed)} in {self.path}"
        _checks.require(not changed, "checkpoint", "must have been written with the same options", got, fix)
        return Progress(**header, arrays=content)

    def save(self, state: Progress) -> None:
        """Write a state atomically."""
        if self.path is None:
            return
        header = {name: value for name, value in vars(state).items() if name != "arrays"}
        header |= {"format": FORMAT, "settings": self.options}
        arrays: dict[str, Any] = {"about": np.array(json.dumps(header)), **state.arrays}
        with replacing(self.path) as file:
            np.savez(file, **arrays)


def digest(value: Any) -> str:
    """Return a short digest of a pytree, equal in every process."""
    leaves, structure = jax.tree.flatten(value)
    arrays = [np.asarray(leaf) for leaf in leaves]
    text = [str(structure), *(f"{a.dtype} {a.shape}" for a in arrays)]
    return hashlib.sha256(b"\0".join([*map(str.encode, text), *(a.tobytes() for a in arrays)])).hexdigest()[:16]
