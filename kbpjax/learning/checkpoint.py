"""Checkpoints of long computations, written atomically and without executable code."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kbpjax import _checks
from kbpjax._misc import DAMAGE, replacing


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of out-of-core learning, the content of a checkpoint.

    Attributes:
        stage: "sample", "sum" or "done".
        done: number of chunks that this stage has processed.
        total: total number of chunks; 0: not yet counted.
        types: types, shapes and dtypes that all chunks share, as JSON.
        landmarks: digest of the landmarks; "" before their selection.
        chunks: digests of the chunks that have been read.
        arrays: reservoirs and sums.
    """

    FORMAT: ClassVar[str] = "kbpjax.fit_chunks 2"
    stage: str = "sample"
    done: int = 0
    total: int = 0
    types: str = ""
    landmarks: str = ""
    chunks: tuple[str, ...] = ()
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)


class Checkpoint:
    """A file with a state and the options of a call: the words of the key, and digests of the others.

    The state is a frozen dataclass with the name and number of its format, fields that JSON can hold, and `arrays`.
    """

    def __init__(self, path: Any, options: Mapping[str, str | list[int]], kind: Any = Progress):
        self.path = None if path is None else _checks.path_to_write("checkpoint", path)
        self.options, self.kind = options, kind

    def load(self) -> Any:
        """Return the state in the file; an initial state if the file does not exist."""
        if self.path is None or not self.path.exists():
            return self.kind()
        wanted = self.kind.FORMAT
        writer, _, version = wanted.removeprefix("kbpjax.").partition(" ")
        fix = "Pass another path, or delete it if it is damaged: only whole checkpoints are overwritten."
        header, content, written = {}, {}, ""
        try:
            with self.path.open("rb") as whole, np.load(whole, allow_pickle=False) as file:
                content = {name: file[name] for name in file.files}
            header = json.loads(str(content.pop("about")))
            written, saved = str(header.pop("format")), dict(header.pop("settings"))
            if header.pop("names", []) != list(content):  # damage of an index of the archive can hide some
                raise KeyError("names")
            header = {name: _tuples(value) for name, value in header.items()}
            state = self.kind(**header, arrays=content) if written == wanted else None
        except DAMAGE:
            state, saved, written = None, {}, "" if written == wanted else written
        ours = written.split(" ")[0] == wanted.split(" ")[0]
        _checks.require(ours, "checkpoint", f"must be a file written by {writer}", str(self.path), fix)
        fix = "Delete the file to restart, or resume with the version of kbpjax that wrote it."
        got = f"{written!r} in {self.path}"
        _checks.require(state is not None, "checkpoint", f"must have format {version}", got, fix)
        changed = [name for name in self.options if saved.get(name) != self.options[name]]
        fix = "Delete the file to restart, pass another path, or pass the saved options."
        got = f"another {', '.join(changed)} in {self.path}"
        _checks.require(not changed, "checkpoint", "must have been written with the same options", got, fix)
        return state

    def save(self, state: Any) -> None:
        """Write a state atomically."""
        if self.path is None:
            return
        header = {name: value for name, value in vars(state).items() if name != "arrays"}
        header |= {"format": self.kind.FORMAT, "settings": self.options, "names": list(state.arrays)}
        arrays: dict[str, Any] = {"about": np.array(json.dumps(header)), **state.arrays}
        with replacing(self.path) as file:
            np.savez(file, **arrays)

    def resumable(self, stop: BaseException, done: str) -> None:
        """Add to an exception what is kept, where, and how to resume."""
        if self.path is not None:
            stop.add_note(f"{done} in {self.path}; the same call resumes.")


def digest(value: Any) -> str:
    """Return a short digest of a pytree, equal in every process; of functions, only the names count."""
    leaves, structure = jax.tree.flatten(value)
    arrays = [array for leaf in leaves for array in _arrays(leaf)]
    text = [re.sub(r" at 0x[0-9a-f]+", "", str(structure)), *(f"{a.dtype} {a.shape}" for a in arrays)]
    return hashlib.sha256(b"\0".join([*map(str.encode, text), *(a.tobytes() for a in arrays)])).hexdigest()[:16]


def _tuples(value: Any) -> Any:
    """Return a value of JSON with its lists as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _arrays(leaf: Any) -> list[np.ndarray]:
    """Return a leaf of a pytree as arrays on this host; an object without numbers as its name."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return [np.asarray(shard.data) for shard in leaf.addressable_shards]
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return [np.asarray(getattr(leaf, "__qualname__", type(leaf).__name__)) if array.dtype == object else array]
