"""Denoise one large image as several processes: a graph in blocks over hosts, which exchange only boundary messages.

Started without `--join`, it plays a cluster on this machine: two processes with a CPU each, which find each other over
loopback, then one process alone, and it compares their images. The processes run `clean_up` below. A custom program
needs only these lines:

    jax.distributed.initialize()                # first of all, in every process; the library never does it
    partition = sharded.partition_graph(graph)  # over all devices of all processes
    solution = kbp.run(model, graph, evidence, schedule=partition)  # the whole solution, in every process

On a cluster, start one process for each host (or each accelerator) and let JAX find the others. Slurm and Open MPI tell
it who it is, so that `--join` needs no address:

    srun --ntasks=16 --ntasks-per-node=1 python -m experiments.multihost --join
    mpirun -np 16 --npernode 1 python -m experiments.multihost --join

Elsewhere start on host number I, with one and the same free port of host 0 on all of them:

    python -m experiments.multihost --join HOST0:PORT --process I --processes 16

Every process makes the same graph, model and evidence, from the same files or the same seed; the first writes the image
to `--out`. Processes on CPUs talk by Gloo, which is JAX's default.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.denoising.data import add_noise
from experiments.denoising.models import SETTINGS, learn, rmse
from experiments.lib import command_line, gray_images, results, steps, tables, timing
from kbpjax import sharded

SETTING = SETTINGS["narrow"]

PATIENCE = 600
"""Seconds after which processes that have not ended are stopped."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.multihost", description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, "experiments/multihost/results")
    parser.add_argument("--side", type=int, help="pixels a side of the image (default: 400; 48 if quick)")
    parser.add_argument("--levels", type=int, default=50, help="gray levels of the image (default: 50)")
    parser.add_argument("--iters", type=int, default=30, help="iterations of belief propagation (default: 30)")
    parser.add_argument("--processes", type=int, default=2, help="how many processes there are (default: 2)")
    parser.add_argument("--join", nargs="?", const="", metavar="HOST:PORT", help="be one of them; see above")
    parser.add_argument("--process", type=int, metavar="I", help="which of them, with an address to join")
    parser.set_defaults(bandwidth=None, obs_bandwidth=None, ridge=None, eps=1e-2)  # of `denoising.learn`
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Be one of several processes, or start them and compare."""
    args.side = (48 if args.quick else 400) if args.side is None else args.side
    for name, least in (("side", 4), ("levels", 2), ("iters", 1), ("processes", 1)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name}: must be at least {least}; got {getattr(args, name)}. Ask for more.")
    if args.join is None:
        compare(args)
        return
    if args.join:
        jax.distributed.initialize(args.join, args.processes, args.process)
    else:
        jax.distributed.initialize()
    image, record = clean_up(args, together=True)
    if jax.process_index() == 0:  # beliefs are only wanted once
        np.savez(args.out / "multihost.npz", image=image, **record)
        print(", ".join(f"{key} {value}" for key, value in record.items()))
    jax.distributed.shutdown()


def problem(args: argparse.Namespace) -> tuple[kbp.KernelMRF, np.ndarray, np.ndarray]:
    """Learn from a small image and its noisy copy; return the model, and a large image and its noisy copy."""
    rng = np.random.default_rng(args.seed)
    train, clean = (
        gray_images.rings(args.levels, side).astype(np.float32) for side in (min(args.side, 200), args.side)
    )
    model, _ = learn(train, add_noise(rng, train), SETTING, args)
    return model, clean, add_noise(rng, clean)


def clean_up(args: argparse.Namespace, together: bool) -> tuple[np.ndarray, dict]:
    """Denoise the image, on all devices of all processes together or on one; return it and a flat record."""
    model, clean, noisy = problem(args)
    graph = kbp.grid_graph(*clean.shape)
    evidence = kbp.observe(model, graph, noisy.ravel())
    options: dict[str, Any] = {"num_iters": args.iters, "damping": SETTING.damping}
    if together:
        partition = sharded.partition_graph(graph)
        options["schedule"], boundary = partition, partition.boundary
    else:
        boundary = 0
    solve = partial(kbp.run, model, graph, evidence, **options)

    solution, first_s, run_s = timing.timed(solve)
    solution = jax.device_get(solution)  # each process has all of it
    size = solution.messages.shape[1] * solution.messages.itemsize
    record = {
        "processes": jax.process_count() if together else 1,
        "devices": jax.device_count() if together else 1,
        "exchanged_kib": boundary * size / 1024,
        "messages_kib": graph.num_edges * size / 1024,
        "residual": float(solution.residuals[-1]),
        "compile_s": max(first_s - run_s, 0.0),
        "run_s": run_s,
    }
    if jax.process_index() > 0:
        return clean, record
    belief = kbp.beliefs(model, graph, evidence, jax.tree.map(jnp.asarray, solution), np.unique(clean))
    image = np.asarray(kbp.mean(belief))
    errors = {"noisy": rmse(noisy.reshape(1, -1), clean.ravel()), "rmse_mean": rmse(image[None], clean.ravel())}
    return image, {**record, **errors}


def compare(args: argparse.Namespace) -> None:
    """Denoise with several processes and with one; print and write how they differ."""
    images, rows = [], []
    for several in command_line.progress((True, False), "multihost"):
        start = time.perf_counter()
        image, record = steps.step(str(several), start_processes if several else alone, args)
        images.append(image)
        rows.append({**record, "all_s": time.perf_counter() - start})
    difference = float(np.max(np.abs(images[0] - images[1])))
    path = args.out / "multihost.json"
    results.write_results(path, vars(args), rows, largest_difference=difference)
    tables.print_table(rows)
    print(f"\nLargest difference of a pixel's posterior mean: {difference:.1e} of 255 gray levels.")
    print("exchanged_kib: messages between processes in an iteration, of messages_kib in all; run_s: seconds of all")
    print("iterations, after compilation; all_s: with start and learning. Processes of one machine share its cores.")
    print(f"Figures: {path}")


def alone(args: argparse.Namespace) -> tuple[np.ndarray, dict]:
    """Denoise in this process; return the image and its record."""
    return clean_up(args, together=False)


def start_processes(args: argparse.Namespace) -> tuple[np.ndarray, dict]:
    """Start this program as several processes of this machine; return the image and record of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--seed", args.seed, "--side", args.side, "--levels", args.levels, "--iters", args.iters]
    options += ["--processes", args.processes, "--join", address]
    command = [sys.executable, "-m", "experiments.multihost", *map(str, options)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        logs = [stack.enter_context(Path(folder, f"{i}.log").open("w+")) for i in range(args.processes)]
        running = []
        try:
            for i, log in enumerate(logs):
                mine = [*command, "--out", folder, "--process", str(i)]
                running.append(subprocess.Popen(mine, env=environment, stdout=log, stderr=log))
            wait(running, logs)
        finally:
            for process in running:
                process.kill()
                process.wait()
        with np.load(Path(folder, "multihost.npz")) as found:
            return found["image"], {key: found[key].item() for key in found.files if key != "image"}


def wait(running: list[subprocess.Popen], logs: Sequence[IO[str]]) -> None:
    """Wait until all processes have ended well; show what they wrote where one has not."""
    deadline = time.monotonic() + PATIENCE
    while any(process.poll() is None for process in running) and time.monotonic() < deadline:
        if any(process.poll() for process in running):
            break
        time.sleep(0.05)
    status = [process.poll() for process in running]
    if not any(code is None or code != 0 for code in status):
        return
    for i, (code, log) in enumerate(zip(status, logs, strict=True)):
        log.seek(0)
        print(f"--- process {i} {'was stopped' if code is None else f'ended with status {code}'}:", file=sys.stderr)
        print(log.read().rstrip(), file=sys.stderr)
    raise SystemExit("error: not all processes ended well; what they wrote is above.")
