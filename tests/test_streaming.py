"""Learning from chunks equals learning from all data at once, whatever stops it half way."""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import kbpjax as kbp
from kbpjax.features import RandomFourier
from kbpjax.learning import checkpoint as checkpoints
from kbpjax.learning import streaming, sums
from kbpjax.learning.streaming import chunked, fit_chunks
from tests.programs import python

# Two node types, of numbers and of pairs of numbers, three edge types, observations of one node type.
EXAMPLES = (
    kbp.kernels.Transformed(jnp.log, kbp.RBF(1.0)),
    kbp.kernels.Transformed(jnp.exp, kbp.RBF(1.0)),
    kbp.kernels.Transformed(jnp.log, kbp.RBF(2.0)),
    jax.random.key(3),
    "text",
)
KERNELS = {"kernel": {0: kbp.RBF(1.0), 1: kbp.RBF(1.4)}, "obs_kernel": {0: kbp.RBF(0.8)}}
OPTIONS = {"ridge": {0: 1e-3, 1: 2e-3, 2: 1e-2}, "obs_ridge": 1e-3, "floor": 1e-3}
RULE = kbp.ConstantTime(eps=0.1, max_rank=8)
ENDS = {"ends": {0: (0, 0), 1: (0, 1), 2: (0, 0)}, "degrees": {0: 3, 1: 4}}


def draw(dtype=np.float64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 1)) + 0.5 * rng.normal(size=(60, 4))
    z = np.stack([x, x**2 + 0.2 * rng.normal(size=x.shape)], axis=-1)
    x, z = x.astype(dtype), z.astype(dtype)
    edges = {0: (x[:, 0], x[:, 1]), 1: (x[:40, 1], z[:40, 2]), 2: (x[:, 2], x[:, 3])}
    seen = {0: (x[:, 0], (x[:, 0] + 0.3 * rng.normal(size=60)).astype(dtype))}
    return {"edges": edges, "nodes": {0: x.reshape(-1), 1: z[:, 2]}, "observations": seen}


ARRAYS = draw()
DATA = kbp.TrainingData(**ARRAYS, **ENDS)
CHUNKS = chunked(**ARRAYS, **ENDS, size=60)  # 240 samples of a node type make four chunks


@pytest.fixture(scope="module")
def expected():
    return kbp.fit(DATA, rule=RULE, **KERNELS, **OPTIONS)


def learn(chunks=CHUNKS, **options):
    return fit_chunks(chunks, **{"rule": RULE} | KERNELS | OPTIONS | options)


def same(one, other, **tolerance):
    """Compare models; only a model of data in memory has candidates."""
    if isinstance(one, kbp.KernelMRF):
        one, other = (eqx.tree_at(lambda m: m.candidates, m, None, is_leaf=lambda x: x is None) for m in (one, other))
    left, right = jax.tree.leaves(one), jax.tree.leaves(other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, **{"rtol": 0, "atol": 0} | tolerance)


def interrupted(after, error=KeyboardInterrupt):
    """Return chunks that fail once in a while: every time that so many have been read."""
    left = [after]

    def chunks():
        for chunk in CHUNKS:
            if not left[0]:
                left[0] = after
                raise error
            left[0] -= 1
            yield chunk

    return chunks


# --- the same model ---------------------------------------------------------------------------------------------------


def test_chunks_give_the_model_of_all_data(expected):
    assert len(CHUNKS) == 4 and sorted({len(c.edges[1][0]) for c in CHUNKS}) == [10]
    same(learn(), expected, rtol=1e-9, atol=1e-9)
    same(learn(lambda: iter(CHUNKS)), expected, rtol=1e-9, atol=1e-9)


def test_a_held_rule_reads_the_chunks_once(expected):
    held = kbp.fix_landmarks(DATA, rule=RULE, **KERNELS)
    reads = []

    def chunks():
        for chunk in CHUNKS:
            reads.append(1)
            yield chunk

    model = learn(chunks, rule=held)
    assert np.isnan(model.residuals[0][0])  # a held rule does not look at them
    same(model.operators, expected.operators, rtol=1e-9, atol=1e-9)
    same(model.moments, expected.moments, rtol=1e-9, atol=1e-9)
    assert len(reads) == len(CHUNKS) + 1  # the first one twice: it tells the types


def test_held_random_features_take_the_shapes_of_the_first_chunk():
    x = ARRAYS["nodes"][0]
    data, settings = kbp.TrainingData({0: (x, x[::-1])}, {0: x}), {"kernel": kbp.RBF(1.0), "nonnegative": kbp.Clipped()}
    rule = kbp.ConstantTime(eps=0.1, max_rank=8, features=RandomFourier(6, 2))
    held = kbp.fix_landmarks(data, kernel=kbp.RBF(1.0), rule=rule)
    parts = chunked({0: (x, x[::-1])}, {0: x}, size=120)
    same(fit_chunks(parts, rule=held, **settings), kbp.fit(data, rule=held, **settings), rtol=1e-6, atol=1e-9)


def test_single_precision_stays_and_is_added_in_double():
    x = ARRAYS["nodes"][0].astype(np.float32)
    data = kbp.TrainingData({0: (x[:40], x[40:80])}, {0: x})
    held = kbp.fix_landmarks(data, kernel=kbp.RBF(1.0), rule=RULE)
    chosen, seen = kbp.learning.rules.build_bases(data, kbp.RBF(1.0), None, held)
    state = checkpoints.Progress()
    for _ in range(9):
        before, state = state, streaming._add(state, data, chosen, seen)
    once = sums.node_sums(chosen[0], data.nodes[0])
    assert once.moment.dtype == np.float32
    # nine equal terms round nowhere in double precision
    np.testing.assert_array_equal(state.arrays["nodes/0/moment"], 9 * np.asarray(once.moment, np.float64))
    np.testing.assert_array_equal(state.arrays["edges/0/count"] - before.arrays["edges/0/count"], 40)
    model = fit_chunks([data], kernel=kbp.RBF(1.0), rule=held)
    assert {a.dtype for a in (model.operators.project, model.moments[0])} == {np.dtype(np.float32)}


def test_arrays_on_disk_are_read_in_pieces(tmp_path, expected):
    read = []

    class Disk:
        def __init__(self, name, x):
            np.save(tmp_path / f"{name}.npy", x)
            self.x = np.load(tmp_path / f"{name}.npy", mmap_mode="r")

        def __len__(self):
            return len(self.x)

        def __getitem__(self, rows):
            assert isinstance(rows, slice)
            read.append(len(range(*rows.indices(len(self.x)))))
            return self.x[rows]

    def pairs(kind):
        return {k: tuple(Disk(f"{kind}{k}{i}", x) for i, x in enumerate(p)) for k, p in ARRAYS[kind].items()}

    nodes = {v: Disk(f"node{v}", x) for v, x in ARRAYS["nodes"].items()}
    chunks = chunked(pairs("edges"), nodes, pairs("observations"), **ENDS, size=30)
    assert len(chunks) == 8 and not read
    same(learn(chunks), expected, rtol=1e-9, atol=1e-9)
    assert max(read) == 30


def test_progress_wraps_both_passes():
    lengths = []

    def progress(iterable):
        lengths.append(len(iterable))
        return iter(iterable)

    learn(progress=progress)
    assert lengths == [4, 4]


# --- reservoirs -------------------------------------------------------------------------------------------------------


@functools.cache
def numbered():
    """Return chunks of 7, 13, 5 and 25 samples, which are their numbers."""
    pieces = np.split(np.arange(50.0), (7, 20, 25))
    return [kbp.TrainingData({}, {0: x}, {0: (x, x)}) for x in pieces]


def reservoir(seed, size=10):
    state = checkpoints.Progress()
    for i, chunk in enumerate(numbered(), 1):
        state = dataclasses.replace(streaming._sample(state, chunk, size, seed), done=i)
    return state.arrays


def test_every_sample_is_kept_equally_often():
    kept = np.array([reservoir(seed)["sample/nodes/0/0"] for seed in range(1000)]).astype(int)
    assert all(len(set(row)) == 10 for row in kept)
    counts = np.bincount(kept.reshape(-1), minlength=50)
    # 1000 draws of 10 out of 50: each count has mean 200 and variance 160
    assert np.abs(counts - 200).max() < 4.5 * 160**0.5
    assert abs(((counts - 200) ** 2 / 160).sum() - 50) < 5 * 10


def test_reservoirs_are_seeded_and_keep_pairs_together():
    one, again, other = reservoir(3), reservoir(3), reservoir(4)
    np.testing.assert_array_equal(one["sample/nodes/0/0"], again["sample/nodes/0/0"])
    assert set(one["sample/nodes/0/0"]) != set(other["sample/nodes/0/0"])
    np.testing.assert_array_equal(one["sample/observations/0/0"], one["sample/observations/0/1"])
    assert set(one["sample/observations/0/0"]) != set(one["sample/nodes/0/0"])


def test_landmarks_come_from_the_reservoir():
    x = ARRAYS["nodes"][0]
    parts = chunked({0: (x, x[::-1])}, {0: x}, size=60)
    model = fit_chunks(
        parts, kernel=kbp.RBF(1.0), rule=kbp.ConstantTime(eps=1e-6, max_rank=8), reservoir=5, key=jax.random.key(3)
    )
    assert model.ranks[0] == (5, 5)  # all there are
    state = checkpoints.Progress()
    for i, chunk in enumerate(parts, 1):
        state = dataclasses.replace(streaming._sample(state, chunk, 5, 3), done=i)
    assert set(np.asarray(model.points[0])) == set(state.arrays["sample/nodes/0/0"])


# --- interrupts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [3, 7])  # in the first pass and in the second; one chunk is read to learn the types
def test_resumed_learning_gives_the_same_bits(tmp_path, after, error):
    path = tmp_path / "sums.npz"
    chunks = interrupted(after, error)
    with pytest.raises(error):
        learn(chunks, checkpoint=path)
    state = checkpoints.Checkpoint(path, {}).load()
    assert (state.stage, state.done) == ("sample", 2) if after == 3 else ("sum", 2)
    same(learn(lambda: iter(CHUNKS), checkpoint=path), learn(lambda: iter(CHUNKS)))
    assert os.listdir(tmp_path) == ["sums.npz"]


def test_a_resumed_sequence_only_compares_what_is_done(tmp_path, monkeypatch):
    class Counted(Sequence):
        reads, fail = (), None

        def __len__(self):
            return len(CHUNKS)

        def __getitem__(self, i):
            chunk = CHUNKS[i]
            self.reads = (*self.reads, i)
            if i == self.fail and len(self.reads) > 5:
                raise RuntimeError
            return chunk

    chunks, path = Counted(), tmp_path / "sums.npz"
    chunks.fail = 2
    with pytest.raises(RuntimeError):
        learn(chunks, checkpoint=path)
    assert chunks.reads == (0, 0, 1, 2, 3, 0, 1, 2)
    chunks.reads, chunks.fail = (), None
    steps = []
    add = streaming._add
    monkeypatch.setattr(streaming, "_add", lambda state, *rest: (steps.append(state.done), add(state, *rest))[1])
    learn(chunks, checkpoint=path)
    assert chunks.reads == (0, 1, 2, 3) and steps == [2, 3]  # the first two are only compared
    again = learn(chunks, checkpoint=path, ridge=1e-2, floor=1e-2, nonnegative=kbp.Clipped())
    assert steps == [2, 3]  # a finished file has all that other ridges want
    same(again, learn(ridge=1e-2, floor=1e-2, nonnegative=kbp.Clipped()))


def test_checkpoints_are_written_now_and_then(tmp_path, monkeypatch):
    path, saved = tmp_path / "sums.npz", []
    write = checkpoints.Checkpoint.save
    monkeypatch.setattr(streaming, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(
        checkpoints.Checkpoint, "save", lambda self, state: (saved.append(state.done), write(self, state))
    )
    learn(checkpoint=path)
    assert saved == [1, 2, 3, 4, 0, 1, 2, 3, 4, 4]


def test_a_failed_write_leaves_the_file_before(tmp_path, monkeypatch):
    path = tmp_path / "sums.npz"
    learn(checkpoint=path)
    before = path.read_bytes()

    def broken(file, **arrays):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(OSError, match="disk full"):
        checkpoints.Checkpoint(path, {}).save(checkpoints.Progress())
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["sums.npz"]


# --- devices ----------------------------------------------------------------------------------------------------------


def sharded(data):
    mesh = jax.make_mesh((4,), ("sample",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(data, NamedSharding(mesh, PartitionSpec("sample")))


@pytest.mark.slow
def test_fit_sums_where_samples_lie(expected):
    spread = sharded(DATA)
    assert len(spread.nodes[0].sharding.device_set) == 4
    same(kbp.fit(spread, rule=RULE, **KERNELS, **OPTIONS), expected, rtol=1e-7, atol=1e-7)
    same(learn([spread]), expected, rtol=1e-7, atol=1e-7)


def test_sums_go_over_devices_without_moving_samples():
    chosen, seen = kbp.learning.rules.build_bases(DATA, *KERNELS.values(), RULE)
    data = sharded(DATA)
    where = sums._sharding(data.edges[1])
    columns = [[x] for x in data.edges[1]]
    pairs = sums._sum_pairs.program().lower(chosen[0], chosen[1], columns, np.array([40], np.int32), where)
    nodes = sums._sum_samples.program().lower(chosen[0], data.nodes[0], None, where)
    observed = sums._sum_observations.program().lower(
        chosen[0].messages, seen[0][0], *data.observations[0], None, where
    )
    for program in (pairs, nodes, observed):
        text = program.compile().as_text()
        assert "all-reduce" in text and "all-gather" not in text and "all-to-all" not in text


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_rules_that_keep_all_samples_are_refused():
    for rule in (kbp.FullRank(), kbp.LinearTime(), kbp.fix_landmarks(DATA, rule=kbp.LinearTime(max_rank=3), **KERNELS)):
        with pytest.raises(ValueError, match="rule: must not multiply messages at all samples.*ConstantTime"):
            learn(rule=rule)


@pytest.mark.parametrize(
    "change",
    [
        {"degrees": {0: 3, 1: 5}},
        {"ends": ENDS["ends"] | {3: (0, 0)}, "edges": ARRAYS["edges"] | {3: ARRAYS["edges"][0]}},
        {"observations": None},
        draw(np.float32),
    ],
)
def test_a_chunk_unlike_the_first_is_named(change):
    other = kbp.TrainingData(**ARRAYS | ENDS | change)
    with pytest.raises(ValueError, match="chunk 2: must match the first chunk"):
        learn([DATA, DATA, other])


def test_chunks_of_other_kinds_are_refused():
    with pytest.raises(ValueError, match="chunks: must be a function or a sequence; got generator"):
        learn(chunk for chunk in CHUNKS)
    with pytest.raises(ValueError, match="chunks: must hold at least one chunk"):
        learn([])
    with pytest.raises(ValueError, match="chunk 1: must be TrainingData; got dict"):
        learn([DATA, ARRAYS])
    left = [iter(CHUNKS), iter(CHUNKS), iter([CHUNKS[0]])]
    with pytest.raises(ValueError, match="chunks: must have the same number in both passes, 4; got 1"):
        learn(lambda: left.pop(0))


def test_wrong_options_are_refused_before_the_first_pass():
    reads = []

    def chunks():
        for chunk in CHUNKS:
            reads.append(1)
            yield chunk

    for options, match in (
        ({"ridge": -1.0}, "ridge"),
        ({"ridge": {0: 1.0}}, "ridge: .*none for"),
        ({"obs_kernel": None}, "obs_kernel"),
        ({"reservoir": 0}, "reservoir"),
        ({"key": -1}, "key"),
        ({"nonnegative": True}, "nonnegative"),
    ):
        with pytest.raises(ValueError, match=match):
            learn(chunks, **options)
    assert len(reads) <= 4


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    path = tmp_path / "sums.npz"
    learn(checkpoint=path)
    before = path.read_bytes()
    for options, name in (
        ({"kernel": {0: kbp.RBF(1.1), 1: kbp.RBF(1.4)}}, "kernel"),
        ({"rule": kbp.ConstantTime(eps=0.1, max_rank=7)}, "rule"),
        ({"key": jax.random.key(1)}, "key"),
        ({"reservoir": 10}, "reservoir"),
        ({"chunks": [DATA]}, "number of chunks"),
    ):
        with pytest.raises(ValueError, match=f"another {name} in .*sums.npz. Delete the file"):
            learn(checkpoint=path, **options)
    assert path.read_bytes() == before


def test_the_checkpoint_of_a_key_is_resumed_with_any_form_of_it(tmp_path):
    path = tmp_path / "sums.npz"
    first = learn(checkpoint=path, key=jax.random.key(7))
    with np.load(path) as file:
        assert json.loads(str(file["about"]))["settings"]["key"] == [0, 7]
    before = path.read_bytes()
    for key in (jax.random.key(7), jax.random.PRNGKey(7)):
        same(learn(checkpoint=path, key=key), first)
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match="another key in .*sums.npz"):
        learn(checkpoint=path)  # key 0


def scaled(which):
    """Return the chunks, one of them with other values."""
    other = {**ARRAYS, "nodes": {v: 3 * x + 1 for v, x in ARRAYS["nodes"].items()}}
    return [chunked(**(other if i == which else ARRAYS), **ENDS, size=60)[i] for i in range(4)]


@pytest.mark.parametrize("after", [3, 7, None])  # in the first pass, in the second, and finished
def test_a_checkpoint_of_other_data_is_refused(tmp_path, after):
    path = tmp_path / "sums.npz"
    if after is None:
        learn(lambda: iter(CHUNKS), checkpoint=path)
    else:
        with pytest.raises(KeyboardInterrupt) as stop:
            learn(interrupted(after), checkpoint=path)
        kept = f"2 chunks of the pass '{'sample' if after == 3 else 'sum'}' are kept in {path}; the same call resumes."
        assert stop.value.__notes__ == [kept]
    for which in (0, 1, 3) if after != 3 else (0, 1):
        with pytest.raises(ValueError, match=f"chunk {which}: must be the same as in the first pass and in the check"):
            learn(lambda which=which: iter(scaled(which)), checkpoint=path)
    with pytest.raises(ValueError, match="chunks: must have the same number in both passes, .; got 1"):
        learn(lambda: iter([CHUNKS[0]]), checkpoint=path)
    same(learn(lambda: iter(CHUNKS), checkpoint=path), learn(lambda: iter(CHUNKS)))


def test_a_function_that_returns_other_chunks_in_the_second_pass_is_refused():
    passes = [iter(CHUNKS), iter(CHUNKS), iter(scaled(2))]
    with pytest.raises(ValueError, match="chunk 2: must be the same as in the first pass"):
        learn(lambda: passes.pop(0))


def test_a_checkpoint_of_another_version_is_named(tmp_path):
    path = tmp_path / "sums.npz"
    np.savez(path, about=json.dumps({"format": "kbpjax.fit_chunks 1", "settings": {}}))
    with pytest.raises(ValueError, match=r"checkpoint: must have format 2; got 'kbpjax.fit_chunks 1' in"):
        learn(checkpoint=path)


@pytest.mark.slow
def test_digests_are_those_of_another_process():
    """Functions have no address in them; one that is renamed, and any number, changes the digest."""
    here = [checkpoints.digest(value) for value in EXAMPLES]
    code = "from tests.test_streaming import EXAMPLES, checkpoints; print(*map(checkpoints.digest, EXAMPLES))"
    assert python("-c", code, JAX_ENABLE_X64="1").stdout.split() == here and len(set(here)) == len(EXAMPLES)


@pytest.mark.parametrize("content", [b"notes", b"", b"PK\x03\x04half"])
def test_other_files_are_not_overwritten(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checkpoint: must be a file written by fit_chunks"):
        learn(checkpoint=path)
    assert path.read_bytes() == content
    np.savez(tmp_path / "own.npz", x=np.arange(3))
    np.save(tmp_path / "own.npy", np.arange(3))
    for name in ("own.npz", "own.npy"):
        with pytest.raises(ValueError, match="checkpoint: must be a file written by fit_chunks"):
            learn(checkpoint=tmp_path / name)
    with pytest.raises(ValueError, match="checkpoint: must be in an existing folder"):
        learn(checkpoint=tmp_path / "none" / "sums.npz")


def test_arrays_shorter_than_the_number_of_chunks_are_refused():
    with pytest.raises(ValueError, match=r"nodes\[0\]: must have at least one row per chunk, 5"):
        chunked({0: (np.zeros(10), np.zeros(10))}, {0: np.zeros(3)}, size=2)
    with pytest.raises(ValueError, match="size"):
        chunked({}, {0: np.zeros(3)}, size=0)


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parent.parent / "docs" / "streaming.md").read_text(encoding="utf-8")
    monkeypatch.setattr(kbp, "fit_chunks", fit_chunks, raising=False)
    monkeypatch.setattr(kbp, "chunked", chunked, raising=False)
    names = {"__name__": "page"}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), names)
    assert isinstance(names["model"], kbp.KernelMRF) and isinstance(names["wider"], kbp.KernelMRF)
    assert jnp.allclose(names["model"].operators.evaluate, names["wider"].operators.evaluate)
