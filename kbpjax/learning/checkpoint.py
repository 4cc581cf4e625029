"""How far learning out of core has come, in a file: written whole or not at all, and without code that runs."""

import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kbpjax import _checks
from kbpjax._misc import replacing

FORMAT = "kbpjax.fit_chunks 1"


@dataclasses.dataclass(frozen=True)
class State:
    """How far learning has come; all that a checkpoint holds.

    Attributes:
        stage: "sample", "sum" or "done".
        done: chunks that this stage has behind it.
        total: number of chunks; 0: not known yet.
        types: what all chunks have in common, as JSON.
        landmarks: digest of the landmarks; "" before they are chosen.
        arrays: reservoirs and sums.
    """

    stage: str = "sample"
    done: int = 0
    total: int = 0
    types: str = ""
    landmarks: str = ""
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)


class Checkpoint:
    """A file with a state, and with the settings that led to it."""

    def __init__(self, path: Any, settings: dict[str, str]):
        self.path, self.settings = None if path is None else Path(path), settings
        ok = self.path is None or self.path.parent.is_dir()
        _checks.require(ok, "checkpoint", "must be in a folder that exists", str(path), "Make the folder first.")

    def load(self) -> State:
        """Return what the file holds; the first state if there is no file."""
        if self.path is None or not self.path.exists():
            return State()
        fix = "Pass another path: files that are no checkpoints are not overwritten."
        about, content = {}, {}
        try:
            with self.path.open("rb") as whole, np.load(whole, allow_pickle=False) as file:
                content = {name: file[name] for name in file.files}
            about = json.loads(str(content.pop("about")))
            fine = about.pop("format") == FORMAT
        except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError, zipfile.BadZipFile):
            fine = False
        _checks.require(fine, "checkpoint", "must be a file that fit_chunks has saved", str(self.path), fix)
        before = about.pop("settings")
        other = [name for name in self.settings if before.get(name) != self.settings[name]]
        fix = "Delete the file to start again, pass another path, or the settings as they were."
        got = f"another {', '.join(other)} in {self.path}"
        _checks.require(not other, "checkpoint", "must be of the same settings", got, fix)
        return State(**about, arrays=content)

    def save(self, state: State) -> None:
        """Write a state, whole or not at all."""
        if self.path is None:
            return
        about = {name: value for name, value in vars(state).items() if name != "arrays"}
        about |= {"format": FORMAT, "settings": self.settings}
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about)), **state.arrays}
        with replacing(self.path) as file:
            np.savez(file, **arrays)


def digest(value: Any) -> str:
    """Return a short digest of a pytree, the same in every process."""
    leaves, structure = jax.tree.flatten(value)
    arrays = [np.asarray(leaf) for leaf in leaves]
    text = [str(structure), *(f"{a.dtype} {a.shape}" for a in arrays)]
    return hashlib.sha256(b"\0".join([*map(str.encode, text), *(a.tobytes() for a in arrays)])).hexdigest()[:16]
