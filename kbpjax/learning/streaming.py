"""Out-of-core learning: `fit` on chunks of training data, with one chunk in memory at a time.

The first pass keeps a uniform sample (a reservoir) of each node type and of its observations, from which landmarks are
selected. The second pass adds the sums over samples (`kbpjax.learning.sums`). Memory holds one chunk, the reservoirs
and the sums, independent of the number of samples. Sums within a chunk have the precision of the samples; sums of
chunks are added in double precision.
"""

import collections
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, ScalarLike

from kbpjax import _checks
from kbpjax._misc import MissingWarning, warn
from kbpjax._public import describe, public
from kbpjax.features import FeatureMap
from kbpjax.kernels import Kernel
from kbpjax.learning.checkpoint import Checkpoint, Progress, digest
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.regression import Regression
from kbpjax.learning.rules import ConstantTime, FixedLandmarks, NodeBasis, Rule, build_bases, check_kernels
from kbpjax.learning.sums import EdgeSums, NodeSums, ObservationSums, edge_sums, node_sums, observation_sums

SAVE_EVERY = 10.0
"""Seconds between checkpoints."""


@public
def fit_chunks(
    chunks: Any,
    *,
    kernel: Kernel | Mapping[int, Kernel],
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: Rule = ConstantTime(),
    ridge: ScalarLike | Mapping[int, ScalarLike] = 1e-6,
    obs_ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    floor: ScalarLike = 1e-6,
    nonnegative: Any = None,
    reservoir: int = 20_000,
    key: PRNGKeyArray | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: Callable[[Iterable], Iterable] | None = None,
) -> KernelMRF:
    """Return the model that `fit` would learn from all chunks, with landmarks selected from a subsample.

    Time is linear in the number of samples; memory is independent of it. The chunks are read twice, or once if `rule`
    has fixed landmarks. The `residuals` of the model are maxima over the reservoirs.

    Args:
        chunks: chunks of training data with the same types, ends, degrees and shapes of points. Pass a sequence, for
            instance `chunked` of arrays on disk, or a function that returns a new iterator over the same chunks at each
            call.
        kernel: as in `fit`.
        obs_kernel: as in `fit`.
        rule: `ConstantTime`, or the result of `kbpjax.fix_landmarks` with it.
        ridge: as in `fit`.
        obs_ridge: as in `fit`.
        floor: as in `fit`.
        nonnegative: as in `fit`.
        reservoir: number of samples to keep per node type, and per node type's observations, >= 1. Smaller data are
            kept completely and in order; the landmarks are then the same as in `fit`.
        key: random key of the reservoirs; None: `jax.random.key(0)`.
        checkpoint: path of a checkpoint, written about every ten seconds, after an exception or interrupt, and at the
            end. A call with the same file compares the chunks that it has, resumes after the last one and gives the
            same model. A finished checkpoint gives models with other `ridge`, `obs_ridge`, `floor` or `nonnegative`;
            its chunks are only compared. Delete the file to restart. None: no checkpoint.
        progress: function that wraps the iterable of each pass, for instance `tqdm`. None: no progress bar.

    Returns:
        The model.

    Raises:
        ValueError: as `fit`; the rule multiplies messages at all samples; there are no chunks; a chunk differs from the
            first in types or shapes, or from the same chunk in the first pass or the checkpoint; the checkpoint has
            other options, or is not a checkpoint.

    Warns:
        MissingWarning: vectors of which some entries are missing, in chunks of `pool`, are dropped as a whole.
            Observations, too: evidence for the entries that are there is learned by `fit` alone.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax.learning.streaming import chunked, fit_chunks
        >>> x = np.random.default_rng(0).normal(size=(1000, 2))
        >>> chunks = chunked(edges={0: (x[:, 0], x[:, 1])}, nodes={0: x[:, 0]}, size=100)
        >>> model = fit_chunks(chunks, kernel=kbp.RBF(1.0), rule=kbp.ConstantTime(eps=1e-2))
        >>> len(chunks), model.ranks[0][0] < 20
        (10, True)
    """
    _check_options(rule, reservoir)
    seed = _checks.host_seed(key)
    source = _Source(chunks, progress)
    options = {"kernel": kernel, "obs_kernel": obs_kernel, "rule": rule, "reservoir": reservoir}
    options |= {"number of chunks": source.total}
    digests = {name: digest(value) for name, value in options.items()}
    saved = Checkpoint(checkpoint, digests | {"key": _checks.words_of_key(key)})
    state = saved.load()
    if not state.types:
        state = source.first("sum" if isinstance(rule, FixedLandmarks) else "sample")
    types = json.loads(state.types)
    ends = tuple((k, a, b) for k, a, b in types["ends"])
    regression = Regression.of(ends, [v for v, *_ in types["nodes"]], ridge, obs_ridge, floor, nonnegative)
    build = partial(build_bases, kernel=kernel, obs_kernel=obs_kernel, rule=rule)
    if state.stage == "sample":
        check_kernels(_training_data(types, {}), kernel, obs_kernel, rule)  # before reading chunks
        state = source.read(state, saved, lambda state, chunk: _sample(state, chunk, reservoir, seed))
        state = dataclasses.replace(state, stage="sum", done=0, total=state.done)
        saved.save(state)
    bases, obs_bases = build(_training_data(types, state.arrays))
    state = _with_landmarks(state, saved, rule.fix_landmarks(bases, {v: basis for v, (basis, _) in obs_bases.items()}))
    state = source.read(state, saved, lambda state, chunk: _add(state, chunk, bases, obs_bases))
    fix = "The function must return the same chunks at every call."
    ok = state.total in (0, state.done)
    _checks.require(ok, "chunks", f"must have the same number in both passes, {state.total}", state.done, fix)
    source.warn_of_missing()
    if state.stage == "sum":
        saved.save(dataclasses.replace(state, stage="done", total=state.done))
    model = regression.model(bases, obs_bases, *_totals(ends, bases, obs_bases, state.arrays))
    labels = {name: tuple((v, tuple(own)) for v, own in types.get(name, ())) for name in ("labels", "obs_labels")}
    return dataclasses.replace(model, **labels) if any(labels.values()) else model


@public
def chunked(
    edges: Mapping[int, tuple[Any, Any]],
    nodes: Mapping[int, Any],
    observations: Mapping[int, tuple[Any, Any]] | None = None,
    *,
    ends: Mapping[int, tuple[int, int]] | None = None,
    degrees: Mapping[int, int] | None = None,
    size: int = 65_536,
) -> "Chunks":
    """Return a sequence of chunks of training data that are read lazily from arrays.

    Args:
        edges: as in `TrainingData`, with arrays that support `len` and slices, for instance NumPy arrays or
            `numpy.load(path, mmap_mode="r")`.
        nodes: as in `TrainingData`.
        observations: as in `TrainingData`.
        ends: as in `TrainingData`.
        degrees: as in `TrainingData`.
        size: maximum number of rows of an array in one chunk, >= 1.

    Returns:
        A sequence of training data. Chunk i of c has rows n i // c up to n (i + 1) // c of an array of n rows.

    Raises:
        ValueError: an array has fewer rows than there are chunks; reading a chunk raises as `TrainingData`.

    Examples:
        >>> import numpy as np
        >>> from kbpjax.learning.streaming import chunked
        >>> x = np.arange(10.0)
        >>> [chunk.nodes[0].tolist() for chunk in chunked({0: (x, x)}, {0: x[:5]}, size=4)]
        [[0.0], [1.0, 2.0], [3.0, 4.0]]
    """
    _checks.require_count("size", size)
    missing = [v for v, x in nodes.items() if isinstance(x, str | bytes) or not hasattr(x, "__len__")]
    _checks.require(not missing, "nodes", "must hold arrays", f"none for the types {missing}", "Leave these types out.")
    pairs = [("edges", edges), ("observations", observations or {})]
    named = {f"{name}[{k}][{i}]": x for name, both in pairs for k, pair in both.items() for i, x in enumerate(pair)}
    lengths = {name: len(x) for name, x in (named | {f"nodes[{v}]": x for v, x in nodes.items()}).items()}
    count = -(-max(lengths.values(), default=0) // size)
    short = [name for name, length in lengths.items() if length < max(count, 1)]
    fix = "Pass a larger size, or more rows."
    rule = f"must have at least one row per chunk, {count}"
    _checks.require(not short, ", ".join(short), rule, [lengths[name] for name in short], fix)
    return Chunks(edges, nodes, observations, {"ends": ends, "degrees": degrees}, count)


@dataclasses.dataclass(frozen=True, eq=False)
class Chunks(Sequence):
    """A lazy sequence of training data, the result of `chunked`."""

    edges: Mapping[int, tuple[Any, Any]]
    nodes: Mapping[int, Any]
    observations: Mapping[int, tuple[Any, Any]] | None
    options: dict[str, Any]
    number: int

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: Any) -> Any:
        i = range(self.number)[index]  # indexes like a list, with negative indices and IndexError

        def rows(x: Any) -> np.ndarray:
            return np.asanyarray(x[len(x) * i // self.number : len(x) * (i + 1) // self.number])

        def pairs(both: Mapping[int, tuple[Any, Any]] | None) -> dict[int, Any]:
            return {k: tuple(map(rows, pair)) for k, pair in (both or {}).items()}

        nodes = {v: rows(x) for v, x in self.nodes.items()}
        return TrainingData(pairs(self.edges), nodes, pairs(self.observations), **self.options)


class _Source:
    """A source of chunks: a sequence, or a function that returns an iterator."""

    def __init__(self, chunks: Any, progress: Callable[[Iterable], Iterable] | None):
        ok = isinstance(chunks, Sequence) or (callable(chunks) and not isinstance(chunks, type))
        fix = "Pass a function that returns a new iterator, or a list; an iterator can be read only once."
        _checks.require(ok, "chunks", "must be a function or a sequence", type(chunks).__name__, fix)
        self.chunks: Any = chunks
        self.progress = progress or iter
        self.total = len(chunks) if isinstance(chunks, Sequence) else None
        self.missing: collections.Counter = collections.Counter()

    def first(self, stage: str) -> Progress:
        """Return the initial state, with the types and shapes of the first chunk."""
        for chunk in self.all():
            _check_chunk(0, chunk)
            return Progress(stage, types=_types(chunk))
        raise ValueError("chunks: must hold at least one chunk; got none. Pass chunks of training data.")

    def all(self) -> Any:
        """Return an iterable over all chunks."""
        return self.chunks() if self.total is None else self.chunks

    def shown(self) -> Any:
        """Return an iterator over all chunks, wrapped by `progress`."""
        chunks = self.all()
        try:
            return iter(self.progress(chunks))
        except TypeError as error:
            rule, fix = "must be a function of an iterable to an iterable", "Pass for instance tqdm."
            raise ValueError(f"progress: {rule}; got {describe(self.progress)}: {error}. {fix}") from error

    def read(
        self, state: Progress, saved: "Checkpoint", step: Callable[[Progress, TrainingData], Progress]
    ) -> Progress:
        """Return the state after one step per chunk; checkpoints are saved in between.

        Chunks that were read before are compared with their digests; those that the state has take no step.
        """
        last, count = time.monotonic(), 0
        self.missing.clear()
        try:
            for i, chunk in enumerate(self.shown()):
                count = i + 1
                state = _compared(state, i, chunk)
                self.missing += _missing(chunk)
                if i < state.done:
                    continue
                state = dataclasses.replace(step(state, chunk), done=count)
                if time.monotonic() - last > SAVE_EVERY:
                    saved.save(state)
                    last = time.monotonic()
            expected, fix = len(state.chunks), "The function must return the same chunks at every call."
            rule = f"must have the same number in both passes, {expected}"
            _checks.require(count == expected, "chunks", rule, count, fix)
        except BaseException as stop:
            saved.save(state)
            if isinstance(stop, KeyboardInterrupt):
                saved.resumable(stop, f"{state.done} chunks of the pass '{state.stage}' are kept")
            raise
        return state

    def warn_of_missing(self) -> None:
        """Warn of the vectors of the last pass of which some entries are missing."""
        for name, v in sorted({key[:2] for key in self.missing if key[2] == "partly"}):
            partly, whole = (self.missing[name, v, which] for which in ("partly", "whole"))
            text = f"{partly} of {partly + whole} {name} of node type {v} miss entries, and are dropped as a whole"
            of_observations = "use kbpjax.fit, which uses the entries of vectors of at most 15"
            fix = "make entries nodes of their own" if name == "samples" else of_observations
            warn(f"chunks: {text}. Impute them, or {fix}.", MissingWarning)


def _missing(data: TrainingData) -> collections.Counter:
    """Return {("samples" or "observations", node type, "partly" or "whole"): number of vectors} of a chunk's cases."""
    found = collections.Counter()
    for one in data.cases:
        for name, whole, partly in (("samples", one.present, {}), ("observations", one.observed, one.partly)):
            found.update({(name, v, "whole"): int(np.sum(mask)) for v, mask in whole.items()})
            for masks in (one.dropped.get(name, {}), partly):
                found.update({(name, v, "partly"): int(np.sum(mask)) for v, mask in masks.items()})
    return found


def _compared(state: Progress, i: int, chunk: Any) -> Progress:
    """Return the state with the digest of a chunk; raise ValueError if the chunk differs from what was read before."""
    _check_chunk(i, chunk)
    fix, types = "Use the same types, ends, degrees, shapes and dtypes in all chunks.", _types(chunk)
    _checks.require(types == state.types, f"chunk {i}", f"must match the first chunk, {state.types}", types, fix)
    found = digest(chunk)
    if i == len(state.chunks):
        return dataclasses.replace(state, chunks=(*state.chunks, found))
    fix = "Return the same chunks at every call. If the data have changed, delete the checkpoint."
    rule = "must be the same as in the first pass and in the checkpoint"
    _checks.require(found == state.chunks[i], f"chunk {i}", rule, "other values", fix)
    return state


def _check_chunk(number: int, chunk: Any) -> None:
    ok = isinstance(chunk, TrainingData)
    fix = "Build it with kbpjax.pool or kbpjax.TrainingData."
    _checks.require(ok, f"chunk {number}", "must be TrainingData", type(chunk).__name__, fix)


def _check_options(rule: Any, reservoir: Any) -> None:
    base = rule.rule if isinstance(rule, FixedLandmarks) else rule
    fix = "Use kbpjax.ConstantTime(...), or kbpjax.fix_landmarks with it."
    ok = isinstance(base, ConstantTime)
    _checks.require(ok, "rule", "must not multiply messages at all samples", type(base).__name__, fix)
    _checks.require_count("reservoir", reservoir)


def _with_landmarks(state: Progress, saved: Checkpoint, rule: Rule) -> Progress:
    """Return the state with the digest of the landmarks; raise ValueError if its sums use other landmarks."""
    landmarks = digest(rule)
    ok = state.landmarks in ("", landmarks)
    fix = "Delete the file to restart: another machine or version selected other landmarks."
    _checks.require(ok, "checkpoint", "must have sums on the landmarks of its reservoirs", f"{saved.path}", fix)
    return dataclasses.replace(state, landmarks=landmarks)


def _types(data: TrainingData) -> str:
    """Return the types, shapes and dtypes of a chunk as JSON."""

    def point(x: Any) -> list[Any]:
        return [list(x.shape[1:]), str(x.dtype)]

    description = {
        "ends": data.ends,
        "degrees": data.degrees,
        "nodes": [[v, *point(x)] for v, x in sorted(data.nodes.items())],
        "observations": [[v, *point(y)] for v, (_, y) in sorted(data.observations.items())],
    }
    labels = {"labels": data.labels, "obs_labels": data.obs_labels}
    return json.dumps(description | {name: own for name, own in labels.items() if own})


def _training_data(types: dict[str, Any], arrays: Mapping[str, Any]) -> TrainingData:
    """Return the reservoirs as training data, or one row of zeros: fixed landmarks need only shapes."""

    def column(name: str, shape: list[int], dtype: str) -> np.ndarray:
        return arrays.get(name, np.zeros((1, *shape), jnp.dtype(dtype)))

    points = {v: point for v, *point in types["nodes"]}
    nodes = {v: column(f"sample/nodes/{v}/0", *point) for v, point in points.items()}
    observations = {
        v: (column(f"sample/observations/{v}/0", *points[v]), column(f"sample/observations/{v}/1", *point))
        for v, *point in types["observations"]
    }
    return TrainingData({}, nodes, observations, degrees=dict(types["degrees"]))


def _sample(state: Progress, chunk: TrainingData, size: int, seed: int) -> Progress:
    """Return the state with a chunk added to the reservoirs (Vitter 1985, algorithm R), each with a separate seed."""
    arrays = dict(state.arrays)
    pools = [("nodes", v, (x,)) for v, x in chunk.nodes.items()]
    pools += [("observations", v, pair) for v, pair in chunk.observations.items()]
    for kind, v, columns in pools:
        name = f"sample/{kind}/{v}"
        before = int(arrays.get(f"{name}/seen", 0))
        after = before + len(columns[0])
        rng = np.random.default_rng([seed, state.done, int(kind == "nodes"), v])
        numbers = np.arange(before, after)
        slots = np.where(numbers < size, numbers, rng.integers(0, numbers + 1))
        rows = np.flatnonzero(slots < size)
        for i, column in enumerate(map(np.asarray, columns)):
            pool = np.empty((min(after, size), *column.shape[1:]), column.dtype)
            pool[: min(before, size)] = arrays.get(f"{name}/{i}", pool[:0])
            pool[slots[rows]] = column[rows]  # the last sample of a slot wins
            arrays[f"{name}/{i}"] = pool
        arrays[f"{name}/seen"] = np.asarray(after)
    return dataclasses.replace(state, arrays=arrays)


def _add(
    state: Progress,
    chunk: TrainingData,
    bases: Mapping[int, NodeBasis],
    obs_bases: Mapping[int, tuple[FeatureMap, Any]],
) -> Progress:
    """Return the state with the sums over a chunk added."""
    arrays = dict(state.arrays)

    def add(kind: str, types: list[int], sums: Any) -> None:
        """Add sums [type, ...] to the totals of each type."""
        for name, values in vars(sums).items():
            for k, value in zip(types, np.asarray(values, np.float64), strict=True):
                arrays[f"{kind}/{k}/{name}"] = arrays.get(f"{kind}/{k}/{name}", 0.0) + value

    for types, sums in edge_sums(bases, chunk):
        add("edges", types, sums)
    for v, x in chunk.nodes.items():
        add("nodes", [v], jax.tree.map(lambda a: a[None], node_sums(bases[v], x)))
    for v, pair in chunk.observations.items():
        sums = observation_sums(bases[v].messages, obs_bases[v][0], *pair)
        add("observations", [v], jax.tree.map(lambda a: a[None], sums))
    return dataclasses.replace(state, arrays=arrays)


def _totals(
    ends: Sequence[tuple[int, int, int]],
    bases: Mapping[int, NodeBasis],
    obs_bases: Mapping[int, tuple[FeatureMap, Any]],
    arrays: Mapping[str, Any],
) -> tuple[Iterable[tuple[list[int], EdgeSums]], dict[int, NodeSums], dict[int, ObservationSums]]:
    """Return the sums of edge types grouped by ends, of node types and of observations, in the dtype of the data."""
    floats = {v: _dtype(basis.messages) for v, basis in bases.items()}

    def totals(kind: str, types: list[int], of: Any, dtype: Any, **other: Any) -> Any:
        names = [field.name for field in dataclasses.fields(of)]
        stacks = {name: np.stack([arrays[f"{kind}/{k}/{name}"] for k in types]) for name in names}
        return of(**{name: _checks.to_jax(stack, other.get(name, dtype)) for name, stack in stacks.items()})

    edges = []
    for a, b in sorted({(a, b) for _, a, b in ends}):
        types = [k for k, *pair in ends if pair == [a, b]]
        edges.append((types, totals("edges", types, EdgeSums, floats[a], second=floats[b], forth=floats[b])))
    nodes = {v: totals("nodes", [v], NodeSums, floats[v]) for v in bases}
    observations = {
        v: totals("observations", [v], ObservationSums, floats[v], observed=_dtype(basis))
        for v, (basis, _) in obs_bases.items()
    }
    one = jax.tree.map(lambda a: a[0], (nodes, observations))
    return edges, *one


def _dtype(feature_map: FeatureMap) -> Any:
    point = feature_map.point
    return jax.eval_shape(feature_map, jax.ShapeDtypeStruct((1, *point.shape), point.dtype)).dtype
