"""Time two checkouts against each other on one machine, in turn.

    python -m benchmarks.side_by_side OLD NEW [--repeats 9] [--only TEXT] [--quick] [--cores 0,1] [--accept]

OLD and NEW are folders of the repository, for instance made by `git worktree add ../old COMMIT`. Each has one process
that stays, with the defaults of XLA and on the same cores; a round times one and then the other, the next round the
other way about. `new/old` is the median of the ratios of the rounds, `low` and `high` are their quartiles, and `target`
is what the ratio must not exceed. `old/bare` and `new/bare` compare with the bare matrix products of the same number of
iterations, long axis last, timed beside each run. `differ` is how far the sizes of both answers are apart, as a share:
it must be near 0, or the two do not compute the same. First calls are timed in a fresh process each, without a cache of
compiled programs, from the first call after the import to its end. Timings mean little while other programs run: the
load of the machine is printed, and saved. `--accept` writes benchmarks/results/side_by_side.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import equal_answers

SAVED = Path("benchmarks/results/side_by_side.json")
ROOT = Path(__file__).resolve().parents[1]
SIZES = ((6, 11), (17, 31), (39, 73))
ITERS, UNROLLED, SIDE = 30, 8, 100
BUSY = 0.5
"""Load average of the machine above which a warning is printed."""

Call = Callable[[], Any]


class Workload(NamedTuple):
    """What is timed, and the bare matrix products to compare it with."""

    call: Call
    bare: Call | None


def bare(messages: int, rank: int, points: int, iters: int) -> Call:
    """Return the products of so many iterations: evaluation and projection of all messages, long axis last."""
    rng = np.random.default_rng(0)
    evaluate, project = (jnp.asarray(rng.uniform(size=s), jnp.float32) for s in ((points, rank), (rank, points)))
    start = jnp.ones((rank, messages), jnp.float32)

    @jax.jit
    def products(start: jax.Array) -> jax.Array:
        def once(messages: jax.Array, _: None) -> tuple[jax.Array, None]:
            return project @ (evaluate @ messages) / (rank * points), None

        return jax.lax.scan(once, start, length=iters)[0]

    return lambda: products(start)


def grid(kbp: Any) -> Any:
    return kbp.grid_graph(SIDE, SIDE)


def random_typed(kbp: Any) -> Any:
    """Return a random graph of 5000 nodes and 10000 edges of three types."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.sort(rng.integers(0, 5000, (12_000, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[rng.permutation(len(pairs))[:10_000]]
    return kbp.Graph.from_edges(pairs, 5000, edge_type=rng.integers(0, 3, len(pairs)))


def problem(kbp: Any, graph: Any, rank: int, points: int, kinds: int, near: bool = False) -> tuple[Any, jax.Array]:
    """Return operators and local factors; `near` those of the constant message, whose iterations converge."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        values = (1 + 0.1 * rng.normal(size=shape)) / shape[-1] if near else rng.uniform(0.1, 1, shape)
        return jnp.asarray(values, jnp.float32)

    operators = kbp.Operators(draw(1, points, rank), draw(2 * kinds, rank, points), floor=1e-6)
    return operators, jnp.asarray(rng.uniform(0.1, 1, (graph.num_nodes, points)), jnp.float32)


def forward(kbp: Any, *, build: Callable[[Any], Any], kinds: int, rank: int, points: int, color: bool) -> Workload:
    graph = build(kbp)
    operators, local = problem(kbp, graph, rank, points, kinds)
    options = {"schedule": kbp.colored(graph)} if color else {}

    def call() -> jax.Array:
        return kbp.run(operators, graph, local, num_iters=ITERS, damping=0.0, **options).messages

    return Workload(call, bare(graph.num_edges, rank, points, ITERS))


def many_cases(kbp: Any) -> Any:
    """Return 30 copies of a graph of 80 nodes, about 6 neighbors and 20 edge types."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.sort(rng.integers(0, 80, (250, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    kinds = rng.integers(0, 20, len(pairs))
    every = np.concatenate([pairs + 80 * case for case in range(30)])
    return kbp.Graph.from_edges(every, 80 * 30, edge_type=np.tile(kinds, 30))


def values(kbp: Any, *, build: Callable[[Any], Any], kinds: int, points: int, as_infer: bool) -> Workload:
    """Iterate messages of nonnegative operators with exponents; as `infer` does, or all at once."""
    graph = build(kbp)
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.uniform(0.1, 1, shape), jnp.float32)
    tables = draw(2 * kinds, points, points)
    operators = kbp.Operators(jnp.eye(points)[None], tables, floor=1e-6, nonnegative=tables)
    local, options = draw(graph.num_nodes, points), {}
    if as_infer:
        options = {"schedule": kbp.colored(graph), "acceleration": kbp.Anderson(), "tol": 1e-12}

    def call() -> jax.Array:
        return kbp.run(operators, graph, local, num_iters=ITERS, damping=0.0, exponents=0.7, **options).messages

    return Workload(call, bare(graph.num_edges, points, points, ITERS))


def states(kbp: Any, *, arithmetic: Callable[[Any], Any], count: int) -> Workload:
    """Iterate tables of states on a grid, one color after the other."""
    graph = grid(kbp)
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.uniform(0.1, 1, shape), jnp.float32)
    eye, table, local = jnp.eye(count)[None], draw(2, count, count), draw(graph.num_nodes, count)
    operators = kbp.Operators(eye, table, values=True, arithmetic=arithmetic(kbp))
    options = {"num_iters": ITERS, "damping": 0.0, "schedule": kbp.colored(graph)}
    call = lambda: kbp.run(operators, graph, local, **options).messages
    return Workload(call, bare(graph.num_edges, count, count, ITERS))


def gradient(kbp: Any, *, rank: int, points: int, of: str, **options: Any) -> Workload:
    """Differentiate a scalar of the messages on a grid with respect to operators, local factors, or both."""
    graph = grid(kbp)
    operators, local = problem(kbp, graph, rank, points, 1, near=True)
    argnums = {"operators": 0, "local factors": 1, "both": (0, 1)}[of]

    @jax.jit
    @partial(jax.grad, argnums=argnums)
    def slope(operators: Any, local: jax.Array) -> jax.Array:
        return jnp.sum(kbp.run(operators, graph, local, damping=0.0, **options).messages ** 3)

    return Workload(lambda: slope(operators, local), bare(graph.num_edges, rank, points, UNROLLED))


def first_run(kbp: Any) -> Workload:
    graph = kbp.grid_graph(30, 30)
    operators, local = problem(kbp, graph, *SIZES[1], 1)
    return Workload(lambda: kbp.run(operators, graph, local, num_iters=ITERS, damping=0.0).messages, None)


def first_pipeline(kbp: Any) -> Workload:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 16)).cumsum(axis=1).astype(np.float32)
    y = x + rng.normal(size=x.shape).astype(np.float32)

    def call() -> jax.Array:
        graph = kbp.grid_graph(4, 4)
        rule = kbp.ConstantTime(eps=1e-2, max_rank=32)
        kernels = {"kernel": kbp.RBF(1.0), "obs_kernel": kbp.RBF(1.0)}
        model = kbp.fit(kbp.pool(graph, x, observations=y), rule=rule, ridge=1e-3, **kernels)
        evidence = kbp.observe(model, graph, y[0])
        solution = kbp.run(model, graph, evidence, num_iters=ITERS, damping=0.0)
        return kbp.beliefs(model, graph, evidence, solution, np.linspace(-5, 5, 50, dtype=np.float32)).weights

    return Workload(call, None)


def workloads() -> dict[str, tuple[Callable[[Any], Workload], float]]:
    """Return {name: (how to build it, the target of new/old)}."""
    found: dict[str, tuple[Callable[[Any], Workload], float]] = {}
    for name, build, kinds, goal in (("grid", grid, 1, 1.05), ("random typed", random_typed, 3, 0.85)):
        for color in (False, True):
            for rank, points in SIZES:
                label = f"{'colored ' if color else ''}{name} {rank}/{points}"
                made = partial(forward, build=build, kinds=kinds, rank=rank, points=points, color=color)
                found[label] = made, 0.85 if color else goal
    builds = (("grid", grid, 1), ("random typed", random_typed, 3), ("many cases", many_cases, 20))
    for name, build, kinds in builds:
        for points in (4, 16, 48, 96):
            for as_infer in (False, True):
                made = partial(values, build=build, kinds=kinds, points=points, as_infer=as_infer)
                found[f"{'as infer, ' if as_infer else 'exponents, '}{name}, {points} points"] = made, 1.02
    rules = {"sums": lambda kbp: kbp.SumProduct(), "maxima": lambda kbp: kbp.MaxProduct()}
    rules["sums in logs"] = lambda kbp: kbp.InLogs()
    for name, rule in rules.items():
        for count in (3, 10, 50):
            found[f"{name} of {count} states"] = partial(states, arithmetic=rule, count=count), 1.02
    rank, points = SIZES[1]
    for of in ("operators", "local factors", "both"):
        made = partial(gradient, rank=rank, points=points, of=of, num_iters=UNROLLED)
        found[f"gradient of {of} {rank}/{points}"] = made, 1.0
    made = partial(gradient, rank=rank, points=points, of="both", num_iters=100, tol=1e-4)
    found[f"implicit gradient {rank}/{points}"] = made, 1.0
    found["first call of run"] = first_run, 1.0
    found["first calls from fit to beliefs"] = first_pipeline, 1.0
    return found


def is_first(name: str) -> bool:
    return name.startswith("first ")


# The processes.


class Side:
    """A checkout, and the process that times it."""

    def __init__(self, checkout: Path):
        self.checkout = checkout
        self.process: subprocess.Popen | None = None

    def prepare(self, name: str) -> float:
        """Build and compile a workload; return the size of its answer."""
        return self._ask("prepare", name)["size"]

    def measure(self, name: str) -> dict[str, float]:
        """Time a workload once, and its bare products."""
        return self._first(name) if is_first(name) else self._ask("measure", name)

    def _first(self, name: str) -> dict[str, float]:
        done = subprocess.run(
            self._command("first", name), capture_output=True, text=True, check=False, env=environment(), cwd=ROOT
        )
        if done.returncode:
            raise ValueError(f"{name}: must run; got exit status {done.returncode}. {done.stderr[-500:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def _ask(self, verb: str, name: str) -> dict[str, float]:
        if self.process is None:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                self._command("serve", ""), stdin=pipe, stdout=pipe, text=True, env=environment(), cwd=ROOT
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, name]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise ValueError(f"{name}: must run; the process of {self.checkout.name} ended. See its error above.")
        found = json.loads(answer)
        if "error" in found:
            raise ValueError(f"{name}: must run in {self.checkout.name}; got {found['error']}.")
        return found

    def _command(self, mode: str, name: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.side_by_side", "--worker", mode, name, str(self.checkout)]

    def close(self) -> None:
        """End the process."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


def environment() -> dict[str, str]:
    """Return the environment without options of XLA or JAX, and without a cache of compiled programs."""
    kept = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS" and not key.startswith("JAX_")}
    return {**kept, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}


def work(mode: str, name: str, checkout: Path) -> int:
    """Be the process of one checkout."""
    with private_output() as out:
        kbp = equal_answers.package(checkout)
        known = workloads()
        if mode == "first":
            jax.block_until_ready(jnp.zeros(1) + 1)  # starting the device is no part of it
            call = known[name][0](kbp).call
            seconds, answer = clock(call)
            print(json.dumps({"s": seconds, "size": size_of(answer)}), file=out, flush=True)
            return 0
        ready: dict[str, Workload] = {}
        for line in sys.stdin:
            verb, name = json.loads(line)
            try:
                if verb == "prepare":
                    ready = {name: known[name][0](kbp)}  # the one before is forgotten
                    found = {"size": size_of(ready[name].call())}
                    if ready[name].bare is not None:
                        clock(ready[name].bare)
                else:
                    found = {"s": clock(ready[name].call)[0]}
                    if ready[name].bare is not None:
                        found["bare_s"] = clock(ready[name].bare)[0]
            except Exception as error:  # the parent names it
                found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            print(json.dumps(found), file=out, flush=True)
    return 0


@contextmanager
def private_output() -> Iterator[Any]:
    """Keep standard output for answers; what else is printed goes to standard error."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield out


def clock(call: Call) -> tuple[float, Any]:
    """Return the seconds of a call, and its result."""
    begin = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - begin, result


def size_of(answer: Any) -> float:
    """Return the 2-norm of all numbers."""
    return float(np.sqrt(sum(np.sum(np.asarray(a, np.float64) ** 2) for a in jax.tree.leaves(answer))))


# The comparison.


def compare(name: str, goal: float, sides: tuple[Side, Side], repeats: int) -> dict[str, Any]:
    """Time one workload on both sides, in turn."""
    sizes = [0.0, 0.0] if is_first(name) else [side.prepare(name) for side in sides]
    rounds: tuple[list[dict[str, float]], list[dict[str, float]]] = [], []
    load = os.getloadavg()[0]
    for number in range(repeats):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            rounds[which].append(sides[which].measure(name))
    if is_first(name):
        sizes = [of[0]["size"] for of in rounds]
    ratios = [new["s"] / old["s"] for old, new in zip(*rounds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if repeats > 1 else ratios * 3
    old, new = (statistics.median(one["s"] for one in of) for of in rounds)
    yards = [yardstick(of) for of in rounds]
    return {
        "workload": name,
        "new/old": middle,
        "low": low,
        "high": high,
        "target": goal,
        "met": middle <= goal,
        "old_s": old,
        "new_s": new,
        "old/bare": yards[0],
        "new/bare": yards[1],
        "differ": abs(sizes[1] - sizes[0]) / max(abs(sizes[0]), 1e-30),
        "load": load,
    }


def yardstick(rounds: list[dict[str, float]]) -> float | None:
    """Return the median ratio to the bare products; None where there are none."""
    ratios = [one["s"] / one["bare_s"] for one in rounds if "bare_s" in one]
    return statistics.median(ratios) if ratios else None


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, with + where files have changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "kbpjax") else "")


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        mode, name, checkout = sys.argv[2:]
        return work(mode, name, Path(checkout))
    from experiments.lib import results, tables

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.side_by_side", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="folder of the checkout to compare with")
    parser.add_argument("new", type=Path, metavar="NEW", help="folder of the checkout to judge")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of each workload (default: 9)")
    parser.add_argument("--only", metavar="TEXT", help="only workloads whose name has this in it")
    parser.add_argument("--quick", action="store_true", help="two rounds, to see that everything runs")
    parser.add_argument("--cores", metavar="0,1", help="cores of both processes (default: those of this one)")
    parser.add_argument("--accept", action="store_true", help=f"write the run to {SAVED}")
    args = parser.parse_args()
    repeats = 2 if args.quick else args.repeats
    if repeats < 1:
        parser.error(f"--repeats: must be at least 1; got {repeats}. Ask for one or more rounds.")
    if args.accept and (args.quick or args.only):
        parser.error("--accept: must be of a whole run; got --quick or --only. Leave one of them out.")
    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})  # processes inherit it
    chosen = {name: goal for name, (_, goal) in workloads().items() if not args.only or args.only in name}
    commits = {"old": commit_of(args.old), "new": commit_of(args.new)}
    load = os.getloadavg()[0]
    print(f"{commits['old']} (old) against {commits['new']} (new), {repeats} rounds, load {load:.1f}")
    if load > BUSY:
        print(f"The machine is busy (load {load:.1f}): timings are not worth keeping.", file=sys.stderr)
    sides = Side(args.old.resolve()), Side(args.new.resolve())
    table = []
    with ExitStack() as stack:
        for side in sides:
            stack.callback(side.close)
        for name, goal in chosen.items():
            try:
                table.append(compare(name, goal, sides, repeats))
                print(f"{name}: {table[-1]['new/old']:.3f}", file=sys.stderr, flush=True)
            except ValueError as error:
                print("error:", error, file=sys.stderr, flush=True)
    tables.print_table(table)
    if args.accept:
        results.write_results(SAVED, {"repeats": repeats, "load": load, **commits}, table)
    return 0 if len(table) == len(chosen) else 2


if __name__ == "__main__":
    sys.exit(main())
