"""Damage files, and kill processes that write them: nothing is read wrongly, and at most the last step is lost.

    python -m tests.fuzz.files --tries 1000 --kills 50

Every bit flip and truncation of a file of `save` or of a checkpoint must be refused, or the object must be identical.
Processes in `save`, `fit_chunks` and `tune` are killed (SIGKILL; with `--interrupt` SIGINT, as Ctrl-C) at random
moments and resumed. The file must hold the
last state that was written, or the one that was being written; the resumed results must be identical, bit by bit.
Each process is a fork of this one, which computes nothing itself.
"""

import argparse
import hashlib
import json
import os
import pickle
import signal
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", tempfile.mkdtemp(prefix="kbpjax-fuzz-"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import kbpjax as kbp
from kbpjax.learning import streaming
from kbpjax.learning.checkpoint import Checkpoint, Progress
from kbpjax.learning.streaming import chunked, fit_chunks
from kbpjax.tuning.tune import Descent

SIZE = 300_000
"""Numbers in the array that is saved again and again."""
LONGEST = 600.0
"""Seconds after which a process that should end by itself is given up."""


# --- the three writers ------------------------------------------------------------------------------------------------


def save_again(path, log):
    """Save the numbers 1, 2, ... as arrays, until killed."""
    start = int(kbp.load(path)["version"]) if path.exists() else 0
    for version in range(start + 1, sys.maxsize):
        log(version - 1, "done")
        kbp.save(path, {"version": version, "values": np.full(SIZE, version, np.int32)})
        log(version, "saved")


def learn(path, log):
    """Learn from twelve chunks."""
    x = np.random.default_rng(0).normal(size=(240, 4))
    chunks = chunked({0: (x[:, 0], x[:, 1])}, {0: x[:, 2]}, {0: (x[:, 0], x[:, 3])}, size=20)
    return fit_chunks(chunks, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(1.0), rule=RULE, reservoir=50, checkpoint=path)


def tune(path, log):
    """Take twelve steps with random noise and batches."""
    rng = np.random.default_rng(0)
    graph, x = kbp.chain_graph(4), np.cumsum(rng.normal(size=(30, 4)), axis=1)
    data = kbp.pool(graph, x[:20], observations=x[:20] + rng.normal(size=(20, 4)))
    start = kbp.Hyperparameters(kbp.RBF(3.0), kbp.RBF(3.0), ridge=1e-2, rule=RULE, num_iters=2)
    noisy = lambda key: x[20:] + jax.random.normal(key, (10, 4))
    options = {"steps": 12, "every": 4, "batch": 5, "progress": False}
    return kbp.tune(start, data, graph, x[20:], noisy, np.linspace(-5, 5, 9), **options, checkpoint=path)


RULE = kbp.ConstantTime(1e-2, 6)
WRITERS = {"save": save_again, "fit_chunks": learn, "tune": tune}


def progress_of(state):
    """Return how far a computation is: each save adds 1."""
    if isinstance(state, Progress):
        return {"sample": 0, "sum": 13, "done": 14}[state.stage] + state.done
    return len(state.losses) + len(state.checks) + bool(state.stopped)


def progress_in(path):
    """Return how far the file is, without JAX; 0 if there is none."""
    if not path.exists():
        return 0
    if path.suffix == ".kbp":
        with zipfile.ZipFile(path) as archive:
            pairs = dict(map(tuple, json.loads(archive.read("kbpjax.json"))["root"]["dict"]))
            assert zipfile.ZipFile(path).testzip() is None
        return pairs["version"]
    with np.load(path) as archive:
        header = json.loads(str(archive["about"]))
        assert all(archive[name] is not None for name in archive.files)
    if "stage" in header:
        return progress_of(Progress(header["stage"], header["done"]))
    return len(header["losses"]) + len(header["checks"]) + bool(header["stopped"])


def digest_of(result):
    """Return a digest of all numbers of a model, or of the result of `tune`."""
    if isinstance(result, kbp.Tuned):
        result = (result.hyperparameters, result.model, result.losses, result.checks, result.history)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result)]
    return hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()


# --- processes --------------------------------------------------------------------------------------------------------


def forked(function, *given):
    """Start a process that computes; return its number and the end of a pipe from which the pickled result comes."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of threads, of which this process has none
        child = os.fork()
    if child:
        os.close(write)
        return child, read
    status = 1
    try:
        os.close(read)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        content = pickle.dumps(function(*given))
        while content:
            content = content[os.write(write, content) :]
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(status)


def ended(child, read, after=None, how=signal.SIGKILL):
    """Wait for a process, or send it a signal after some seconds; return its result, or None if it got the signal."""
    deadline = time.monotonic() + (LONGEST if after is None else after)
    with os.fdopen(read, "rb") as pipe:
        os.set_blocking(pipe.fileno(), False)
        content = b""
        while time.monotonic() < deadline:
            content += pipe.read() or b""
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                content += pipe.read() or b""
                if status:
                    raise RuntimeError(f"a process ended with status {status}")
                return pickle.loads(content)
            time.sleep(0.002)
        os.kill(child, how if after is not None else signal.SIGKILL)
        deadline = time.monotonic() + LONGEST
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                raise RuntimeError("a process ignores signals")
            pipe.read()
            time.sleep(0.002)
    if after is None:
        raise RuntimeError(f"a process did not end in {LONGEST:.0f} seconds")
    return None


def work(kind, path, place):
    """Run a writer; write what is done, before and after each save, to a file. Return the digest of its result."""
    with open(place, "ab", buffering=0) as file:
        log = lambda number, what: file.write(f"{number} {what}\n".encode())
        streaming.SAVE_EVERY = -1.0
        write = Checkpoint.save

        def save(self, state):
            log(progress_of(state), "done")
            write(self, state)
            log(progress_of(state), "saved")

        Checkpoint.save = save
        return digest_of(WRITERS[kind](path, log))


# --- what is measured -------------------------------------------------------------------------------------------------


def killed(kind, kills, rng, folder, how):
    """Kill or interrupt a writer at random moments, and resume it each time."""
    path, place = folder / f"{kind}{'.kbp' if kind == 'save' else '.npz'}", folder / f"{kind}.log"
    expected, length = None, 2.0
    if kind != "save":
        expected = ended(*forked(work, kind, path, place))  # which compiles everything
        path.unlink()
        start = time.monotonic()
        again = ended(*forked(work, kind, path, place))
        length = time.monotonic() - start
        assert again == expected
        path.unlink()
    row = Counter(kills=0, lost=0, damaged=0, finished=0, different=0, while_writing=0, most_lost=0)
    while row["kills"] < kills:
        place.write_bytes(b"")
        before = progress_in(path)
        found = ended(*forked(work, kind, path, place), after=rng.uniform(0.0, 1.2 * length), how=how)
        if found is not None:
            row["finished"] += 1
            row["different"] += found != expected
            path.unlink()
            continue
        row["kills"] += 1
        lines = [line.split() for line in place.read_text().splitlines() if line.endswith(("done", "saved"))]
        done = max((int(number) for number, _ in lines), default=before)
        saved = max((int(number) for number, what in lines if what == "saved"), default=before)
        try:
            there = progress_in(path)
        except Exception as error:
            print(f"{kind}: {type(error).__name__}: {error}")
            row["damaged"] += 1
            continue
        row["most_lost"] = max(row["most_lost"], done - there)
        row["lost"] += there < saved or done - there > 1
        left = list(folder.glob(f".{path.name}.*.tmp"))
        row["while_writing"] += bool(left)
        for file in left:
            file.unlink()
    if kind != "save" and path.exists():
        row["finished"] += 1
        row["different"] += ended(*forked(work, kind, path, place)) != expected
    return dict(row)


def damaged(tries, seed, folder):
    """Flip bits of files of `save` and of checkpoints, and cut them off; count what comes of it."""
    rng = np.random.default_rng(seed)
    values = {
        "model": learn(folder / "fit_chunks.npz", None),
        "tuned": vars(tune(folder / "tune.npz", None)),
        "arrays": {"a": np.arange(5), "b": (jax.random.key(1), [jax.numpy.ones(3, "bfloat16"), None, "text", 1.5])},
    }
    counts = Counter(refused=0, identical=0, different=0, raw=0)
    readers = {}
    for name, value in values.items():
        kbp.save(folder / f"{name}.kbp", value)
        readers[folder / f"{name}.kbp"] = lambda path: [bits(leaf) for leaf in jax.tree.leaves(kbp.load(path))]
    for name, kind in {"fit_chunks": Progress, "tune": Descent}.items():
        readers[folder / f"{name}.npz"] = lambda path, kind=kind: fields_of(Checkpoint(path, {}, kind).load())
    whole = {path: (path.read_bytes(), read(path)) for path, read in readers.items()}
    paths = list(whole)
    for i in range(tries):
        path = paths[i % len(paths)]
        content, expected = whole[path]
        changed = bytearray(content)
        if rng.random() < 0.2:
            del changed[rng.integers(len(content)) :]
        else:
            changed[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        try:
            same = readers[path](path) == expected
            counts["identical" if same else "different"] += 1
            if not same:
                print(f"{path.name}, try {i}: another object")
        except ValueError as error:
            counts["refused" if str(error).startswith(("path: ", "checkpoint: ")) else "raw"] += 1
            if not str(error).startswith(("path: ", "checkpoint: ")):
                print(f"{path.name}, try {i}: {error}")
        except Exception as error:
            counts["raw"] += 1
            print(f"{path.name}, try {i}: {type(error).__name__}: {error}")
    return dict(counts)


def fields_of(state):
    """Return the fields of the state in a checkpoint, its arrays bit by bit."""
    return {**vars(state), "arrays": {name: bits(array) for name, array in state.arrays.items()}}


def bits(leaf):
    """Return what a leaf of a pytree is, bit by bit."""
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return type(leaf).__name__, str(array.dtype), array.shape, array.tobytes()


def main(argv=None):
    """Print what was tried and what came of it as lines of JSON; return 1 if anything was lost or read wrongly."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.files", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tries", type=int, default=1000, help="damaged files")
    parser.add_argument("--kills", type=int, default=50, help="kills of each writer")
    parser.add_argument("--writers", nargs="+", choices=WRITERS, default=list(WRITERS))
    parser.add_argument("--interrupt", action="store_true", help="send SIGINT instead of SIGKILL")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    bad, rng = 0, np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as name:
        for kind in args.writers if args.kills else ():
            row = killed(kind, args.kills, rng, Path(name), signal.SIGINT if args.interrupt else signal.SIGKILL)
            bad += row["lost"] + row["damaged"] + row["different"]
            print(json.dumps({"killed": kind, **row}), flush=True)
        if args.tries:
            folder = Path(name) / "damaged"
            folder.mkdir()
            row = ended(*forked(damaged, args.tries, args.seed, folder))
            bad += row["different"] + row["raw"] + args.tries - sum(row.values())
            print(json.dumps({"damaged": args.tries, **row}), flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
