"""Time and memory of fit against the number of training pairs and the rank, and the loop's time against both.

    python benchmarks/fit.py [--repeats 15] [--most 1000000]

Each fit runs in a process of its own, whose peak memory is its row's: Python, JAX and the data included. `bound_gib` is
three times the features of all pairs (pairs x rank x 4 bytes) plus 1 GiB. `again_s`: a second fit, without compilation.
A second table runs message passing on a 100 x 100 grid with models of equal rank from more and more pairs, in turn.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, results, tables, timing

RESULTS = Path("benchmarks/results")
ITERS = 30
GRID = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    command_line.add_common_arguments(parser, RESULTS)
    parser.add_argument("--repeats", type=int, default=15, help="timed runs of each loop, in turn (default: 15)")
    parser.add_argument("--most", type=int, default=1_000_000, help="most training pairs (default: 1e6; 1e4 if quick)")
    parser.add_argument("--one", type=int, nargs=2, metavar=("PAIRS", "RANK"), help="measure one fit and print JSON")
    return command_line.main(run, parser)


def run(args: argparse.Namespace) -> None:
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    if args.repeats < 1 or args.most < 1000:
        raise ValueError(f"--repeats must be >= 1 and --most >= 1000; got {args.repeats} and {args.most}. Raise them.")
    most = min(args.most, 10_000) if args.quick else args.most
    counts = [count for count in (1_000, 10_000, 100_000, 1_000_000) if count <= most]
    jobs = [(count, rank) for rank in (25, 100) for count in counts]
    rows = [alone(*job) for job in command_line.progress(jobs, "fit")]
    tables.print_table(rows)
    print()
    loops = loop_times(counts, 3 if args.quick else args.repeats)
    tables.print_table(loops)
    results.write_results(args.out / "fit.json", {"repeats": args.repeats}, rows, loops=loops)


def alone(pairs: int, rank: int) -> dict[str, Any]:
    """Measure one fit in a fresh process."""
    command = [sys.executable, __file__, "--one", str(pairs), str(rank)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"fit of {pairs} pairs failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def training_data(pairs: int) -> kbp.TrainingData:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (pairs, 2)).astype(np.float32)
    neighbor = (x + 0.1 * rng.standard_normal((pairs, 2))).astype(np.float32)
    return kbp.TrainingData(edges={0: (x, neighbor)}, nodes={0: x})


def learn(data: kbp.TrainingData, rank: int) -> kbp.KernelMRF:
    """Fit with a bandwidth so narrow that both bases take all of `rank`."""
    rule = kbp.ConstantTime(eps=1e-3, max_rank=rank)
    return jax.block_until_ready(kbp.fit(data, kernel=kbp.RBF(0.1), rule=rule, ridge=1e-6))


def measure(pairs: int, rank: int) -> dict[str, Any]:
    data, seconds = training_data(pairs), []
    for _ in range(2):
        start = time.perf_counter()
        model = learn(data, rank)
        seconds.append(time.perf_counter() - start)
    peak = results.machine()["peak_memory_mib"]
    return {
        "pairs": pairs,
        "rank": model.ranks[0][0],
        "points": model.ranks[0][1],
        "fit_s": seconds[0],
        "again_s": seconds[1],
        "again_us_per_pair": 1e6 * seconds[1] / pairs,
        "peak_gib": None if peak is None else peak / 2**10,
        "bound_gib": 3 * pairs * rank * 4 / 2**30 + 1,
    }


def loop_times(counts: list[int], repeats: int) -> list[dict[str, Any]]:
    graph = kbp.grid_graph(GRID, GRID)
    models = [learn(training_data(count), 25) for count in counts]
    local = jax.random.uniform(jax.random.key(0), (graph.num_nodes, models[0].ranks[0][1]), jnp.float32, 0.1)

    def loop(model: kbp.KernelMRF) -> Any:
        return lambda: kbp.run(model, graph, local, num_iters=ITERS).messages

    times = timing.in_turn([loop(model) for model in models], repeats)
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    ratios = [statistics.median(row[i] / row[0] for row in times) for i in range(len(models))]
    return [
        {"pairs": count, "rank": model.ranks[0][0], "points": model.ranks[0][1], "loop_s": seconds, "loop/first": ratio}
        for count, model, seconds, ratio in zip(counts, models, medians, ratios, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
