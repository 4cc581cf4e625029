"""What the first `fit` and `infer` of a process cost: without and with a cache of compiled functions on disk.

    python benchmarks/first_call.py [--repeats 3]

Each call runs in a process of its own. `cold`: nothing is compiled yet. `cached`: `kbp.enable_compilation_cache` on a
folder that an earlier process wrote. `again`: the same problem with other values in the same process. Numbers are
medians; programs are what was compiled, counted by JAX.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables

RESULTS = Path("benchmarks/results")


def chain(rng: np.random.Generator) -> tuple[kbp.TrainingData, Any]:
    """One series of 300 values, and noisy observations of it."""
    x = np.zeros((2, 300))
    for t in range(1, 300):
        x[:, t] = 0.9 * x[:, t - 1] + 0.4 * rng.normal(size=2)
    y = x + 0.5 * rng.normal(size=x.shape)
    return kbp.pool(kbp.chain_graph(300), x[:1], y[:1]), y[1]


def columns(rng: np.random.Generator) -> tuple[kbp.TrainingData, Any]:
    """1,500 rows of four numbers, which have no observations."""
    x = np.cumsum(rng.normal(size=(1500, 4)), axis=1)
    return kbp.pool(kbp.chain_graph(4), x), None


def states(rng: np.random.Generator) -> tuple[kbp.TrainingData, Any]:
    """100 series of 200 states, observed with noise: a hidden Markov model."""
    x = np.cumsum(rng.random((101, 200)) < 0.1, axis=1) % 3
    y = x + 0.7 * rng.normal(size=x.shape)
    return kbp.pool(kbp.chain_graph(200), x[:100], y[:100]), y[100]


def picture(rng: np.random.Generator) -> tuple[kbp.TrainingData, Any]:
    """A smooth picture of 48 x 48 pixels, and noise."""
    x = np.zeros((2, 48, 48))
    waves = np.linspace(0, 4, 48)
    for i in range(2):
        phase = rng.uniform(0, 6, size=2)
        x[i] = np.sin(waves + phase[0])[:, None] * np.cos(waves + phase[1])[None]
    x = x.reshape(2, -1)
    y = x + 0.3 * rng.normal(size=x.shape)
    return kbp.pool(kbp.grid_graph(48, 48), x[:1], y[:1]), y[1]


PROBLEMS: dict[str, Callable[[np.random.Generator], tuple[kbp.TrainingData, Any]]] = {
    "chain of 300 numbers": chain,
    "4 columns x 1,500 rows": columns,
    "100 series of 200 states": states,
    "picture of 48 x 48": picture,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind (default: 3)")
    parser.add_argument("--one", nargs=2, metavar=("PROBLEM", "FOLDER"), help="measure one process and print JSON")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    if args.repeats < 1:
        raise ValueError(f"--repeats must be >= 1; got {args.repeats}. Ask for one or more processes.")
    names = list(PROBLEMS)[:2] if args.quick else list(PROBLEMS)
    rows = [compare(name, 1 if args.quick else args.repeats) for name in command_line.progress(names, "first calls")]
    tables.print_table(rows)
    results.write_results(args.out / "first_call.json", {"repeats": args.repeats}, rows)


def compare(name: str, repeats: int) -> dict[str, Any]:
    """Return medians over processes without and with a cache."""
    with tempfile.TemporaryDirectory() as folder:
        cold = [alone(name, "") for _ in range(repeats)]
        alone(name, folder)
        cached = [alone(name, folder) for _ in range(repeats)]
    middle = lambda found, key: statistics.median(row[key] for row in found)
    return {
        "problem": name,
        "import_s": middle(cold, "import_s"),
        "cold_s": middle(cold, "first_s"),
        "programs": middle(cold, "programs"),
        "cached_s": middle(cached, "first_s"),
        "cached / cold": middle(cached, "first_s") / middle(cold, "first_s"),
        "again_s": middle(cold, "again_s"),
        "again_programs": middle(cold, "again_programs"),
    }


def alone(name: str, folder: str) -> dict[str, Any]:
    """Measure the calls in a fresh process; an empty folder is no cache."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import kbpjax"], check=True)
    seconds = time.perf_counter() - start
    command = [sys.executable, __file__, "--one", name, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{name} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1]) | {"import_s": seconds}


def measure(name: str, folder: str) -> dict[str, Any]:
    """Return the seconds and the numbers of compiled programs of two calls."""
    if folder:
        kbp.enable_compilation_cache(folder)
    warnings.simplefilter("ignore", kbp.KbpWarning)
    count = [0]

    def listen(event: str, *_: Any, **_named: Any) -> None:
        count[0] += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    found: dict[str, Any] = {}
    for seed, word in enumerate(("first", "again")):
        data, y = PROBLEMS[name](np.random.default_rng(seed))
        before, start = count[0], time.perf_counter()
        model = kbp.fit(data)
        if y is not None:
            jax.block_until_ready(kbp.infer(model, data.cases[0].graph, y).probabilities)
        found[f"{word}_s"] = time.perf_counter() - start
        found["programs" if word == "first" else "again_programs"] = count[0] - before
    return found


if __name__ == "__main__":
    sys.exit(main())
