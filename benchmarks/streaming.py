"""Time and memory of fit out of core: pairs in memory-mapped files, from 1e5 to 1e7 of them, at rank 100.

    python benchmarks/streaming.py [--most 10000000] [--size 65536]

Each fit runs in a process of its own, whose peak memory is its row's: Python and JAX included. Every pair is of two
neighbors, with an observation of the first. `products_s` is what the matrix products of the normal equations take by
themselves on features that are there, measured in the same process after the fit, so `fit/products` says how much the
rest costs: reading, kernels, changes of basis, reservoirs. `compile_s`: a fit of two chunks that comes before.

A second table: the fit of the most pairs is killed (SIGKILL) once half of its chunks are summed, resumed from its
checkpoint, and compared with the one that nothing stopped.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables, timing
from kbpjax.learning import streaming

RESULTS = Path("benchmarks/results")
RANK = 100
NAMES = ("first", "second", "seen")
PRODUCTS = 9  # rank x rank sums: five of pairs, one of nodes, three of observations


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--most", type=int, default=10_000_000, help="most pairs (default: 1e7; 1e6 if quick)")
    parser.add_argument("--size", type=int, default=65_536, help="pairs of a chunk (default: 65536)")
    parser.add_argument("--one", type=Path, metavar="DIR", help="measure one fit of the files in DIR and print JSON")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="with --one: where to save the sums")
    parser.add_argument("--kill", action="store_true", help="with --one: die once half of the chunks are summed")
    parser.add_argument("--model", type=Path, metavar="FILE", help="with --one: where to save the model's arrays")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.one:
        print(json.dumps(measure(args)))
        return
    if args.most < 100_000 or args.size < 1000:
        raise ValueError(f"--most must be >= 100000 and --size >= 1000; got {args.most} and {args.size}. Raise them.")
    most = min(args.most, 1_000_000) if args.quick else args.most
    counts = [count for count in (100_000, 1_000_000, 10_000_000) if count <= most]
    with tempfile.TemporaryDirectory() as folder:
        rows = [in_process(args, Path(folder), count) for count in command_line.progress(counts, "fit")]
        for row in rows:
            row["per_pair/first"] = row["us_per_pair"] / rows[0]["us_per_pair"]
        tables.print_table(rows)
        print()
        resumed = [killed(args, Path(folder), counts[-1])]
    tables.print_table(resumed)
    results.write_results(args.out / "streaming.json", {"rank": RANK, "size": args.size}, rows, resumed=resumed)


def write_pairs(folder: Path, pairs: int, seed: int) -> Path:
    """Write pairs and observations to disk, piece by piece; return their folder."""
    place = folder / str(pairs)
    if place.is_dir():
        return place
    place.mkdir()
    rng = np.random.default_rng(seed)
    files = [np.lib.format.open_memmap(place / f"{name}.npy", "w+", np.float32, (pairs,)) for name in NAMES]
    for start in range(0, pairs, 100_000):
        x = rng.uniform(0, 1, min(100_000, pairs - start))
        columns = (x, x + 0.1 * rng.standard_normal(len(x)), x + 0.1 * rng.standard_normal(len(x)))
        for file, column in zip(files, columns, strict=True):
            file[start : start + len(x)] = column
    for file in files:
        file.flush()
    return place


def alone(args: argparse.Namespace, place: Path, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, __file__, "--one", str(place), "--size", str(args.size), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def in_process(args: argparse.Namespace, folder: Path, pairs: int) -> dict[str, Any]:
    """Measure one fit in a fresh process."""
    place = write_pairs(folder, pairs, args.seed)
    done = alone(args, place, "--model", str(folder / "whole.npz"))
    if done.returncode:
        raise ValueError(f"fit of {pairs} pairs failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def killed(args: argparse.Namespace, folder: Path, pairs: int) -> dict[str, Any]:
    """Kill a fit half way, resume it, and compare its model with the uninterrupted one, the last that was measured."""
    place, options = write_pairs(folder, pairs, args.seed), ["--checkpoint", str(folder / "sums.npz")]
    died = alone(args, place, *options, "--kill")
    done = alone(args, place, *options, "--model", str(folder / "resumed.npz"))
    if died.returncode != -signal.SIGKILL or done.returncode:
        raise ValueError(f"resuming failed: {died.returncode}, {done.stderr.strip()[-500:]}")
    row = json.loads(done.stdout.splitlines()[-1])
    with np.load(folder / "whole.npz") as one, np.load(folder / "resumed.npz") as other:
        largest = max(float(np.max(np.abs(one[name] - other[name]))) for name in one.files)
    return {"pairs": pairs, "chunks": row["chunks"], "resumed_s": row["fit_s"], "largest_difference": largest}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    first, second, seen = (np.load(args.one / f"{name}.npy", mmap_mode="r") for name in NAMES)
    chunks = streaming.chunked({0: (first, second)}, {0: first}, {0: (first, seen)}, size=args.size)
    passes = []

    def progress(iterable: Any) -> Any:
        passes.append(1)
        for i, chunk in enumerate(iterable):
            if args.kill and len(passes) == 2 and i == len(chunks) // 2 - 1:
                streaming.SAVE_EVERY = -1.0  # this chunk is in the file when the process dies
            if args.kill and len(passes) == 2 and i == len(chunks) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield chunk

    kernels = {"kernel": kbp.RBF(0.01), "obs_kernel": kbp.RBF(0.01)}  # so narrow that all bases take all of the rank
    rule = kbp.ConstantTime(eps=1e-3, max_rank=RANK)
    start = time.perf_counter()
    jax.block_until_ready(streaming.fit_chunks([chunks[0], chunks[-1]], rule=rule, **kernels))  # compiles all shapes
    first_s, start = time.perf_counter() - start, time.perf_counter()
    model = streaming.fit_chunks(chunks, rule=rule, **kernels, checkpoint=args.checkpoint, progress=progress)
    jax.block_until_ready(model)
    seconds = time.perf_counter() - start
    peak = results.machine()["peak_memory_mib"]
    if args.model:
        np.savez(args.model, *map(np.asarray, jax.tree.leaves(model)))
    pairs = len(first)
    products = products_seconds(args.size) * pairs / args.size
    return {
        "pairs": pairs,
        "chunks": len(chunks),
        "rank": model.ranks[0][0],
        "points": model.ranks[0][1],
        "observation_rank": model.observations[0].basis.rank,
        "compile_s": first_s,
        "fit_s": seconds,
        "us_per_pair": 1e6 * seconds / pairs,
        "products_s": products,
        "fit/products": seconds / products,
        "peak_gib": None if peak is None else peak / 2**10,
    }


def products_seconds(size: int) -> float:
    """Time the products of normal equations on the features of one chunk."""
    features = jax.random.uniform(jax.random.key(0), (2, size, RANK), jnp.float32)

    @jax.jit
    def products(one: jax.Array, other: jax.Array) -> list[jax.Array]:
        return [jnp.matmul((one + i).T, other, precision="highest") for i in range(PRODUCTS)]

    return timing.timed(products, *features)[2]


if __name__ == "__main__":
    sys.exit(main())
