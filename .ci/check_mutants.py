"""Change the code in many small ways, one at a time, and see whether the tests notice (`make mutants`; not run by CI).

Mutants are made by cosmic-ray's operators: of each place in a module that one of them can change, one change, drawn at
random; annotations are left alone. One run of the tests of a module that `make test` runs, with coverage, says which
tests execute which line, and how long they take. A mutant is killed where one of those that execute its line fails, or
uses more CPU seconds than it may (so that a busy machine kills none). They run up to `--tests` seconds in all, which
can only spare mutants. Each outcome is written at once, to `.ci/mutants.json`, which git ignores: a run continues where
the last one on this machine stopped, with the code that has changed since. `--shard 2/5` does the second fifth of what
is left to do, `--again --tests 60` tries the survivors on more tests, `--fresh` begins again.
"""

import argparse
import ast
import difflib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Queue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "inference/update": (
        "test_semantics.py",
        "test_loopy.py",
        "test_exponents.py",
        "test_evidence.py",
        "test_nonnegative_beliefs.py",
        "test_implicit.py",
    ),
    "inference/loopy": (
        "test_semantics.py",
        "test_without_edges.py",
        "test_loopy.py",
        "test_exactness.py",
        "test_bad_inputs.py",
        "test_transforms.py",
        "test_implicit.py",
        "test_nonnegative_beliefs.py",
        "test_exponents.py",
        "test_print.py",
        "test_io.py",
        "test_hostile.py",
    ),
    "learning/embedding": ("test_embedding.py", "test_bad_inputs.py"),
    "features/cholesky": ("features/test_cholesky.py", "test_features.py", "test_careless.py"),
    "posterior/beliefs": (
        "test_beliefs.py",
        "test_summaries.py",
        "test_powers.py",
        "test_print.py",
        "test_careless.py",
        "test_evidence_exact.py",
        "test_answers.py",
        "test_infer.py",
    ),
}
"""The tests of each module; quick ones first."""
LEFT_ALONE = ("Variable", "RemoveDecorator")
"""Operators that need arguments, or whose mutants do not even import under the shape checks of the tests."""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
IGNORED = "ignore::pytest.PytestAssertRewriteWarning"  # the worker has imported their plugins before


@dataclass
class Mutant:
    """One change of a module: the code that it makes, and the lines of the statement that it is in."""

    module: str
    operator: str
    code: str
    lines: range

    @property
    def change(self):
        """The lines that differ, without context."""
        before = source(self.module).read_text(encoding="utf-8")
        lines = list(difflib.unified_diff(before.split("\n"), self.code.split("\n"), lineterm="", n=0))[2:]
        return [line for line in lines if line[:1] in "@-+"]


def source(module, folder=ROOT):
    return folder / "kbpjax" / f"{module}.py"


def annotations(code):
    """Give the first and last position of each annotation: (line, column) pairs."""
    nodes = list(ast.walk(ast.parse(code)))
    found = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    names = [node.value for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)]
    unions = [value for value in names if isinstance(value.op, ast.BitOr)]
    return [((a.lineno, a.col_offset), (a.end_lineno, a.end_col_offset)) for a in [*found, *unions] if a]


def places(code):
    """Group all mutants of a module by the place that they change: {place: [(operator, occurrence), ...]}."""
    spared, found = annotations(code), defaultdict(list)
    for name in operator_names():
        if any(word in name for word in LEFT_ALONE):
            continue
        operator, occurrence = get_operator(name)(), 0
        for node in ast_nodes(get_ast(code)):
            for first, last in operator.mutation_positions(node):
                if not any(low <= first and last <= high for low, high in spared):
                    found[first, last].append((name, occurrence))
                occurrence += 1
    return found


def mutants(module, limit, seed):
    """Draw one mutant for each place of a module, of at most `limit` places: (number of places, mutants)."""
    code = source(module).read_text(encoding="utf-8")
    draw, groups = random.Random(seed), places(code)
    chosen = sorted(draw.sample(sorted(groups), min(limit, len(groups))))
    drawn = [(place, *draw.choice(groups[place])) for place in chosen]
    made = [
        Mutant(module, name, mutate_code(code, get_operator(name)(), occurrence), statement(code, place[0][0]))
        for place, name, occurrence in drawn
    ]
    return len(groups), [mutant for mutant in made if compiles(mutant.code)]


def statement(code, line):
    """Give the lines of the innermost statement that a line is in; of one with a body, its head."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(code)):  # outer nodes first
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno:
            end = node.body[0].lineno - 1 if getattr(node, "body", None) else node.end_lineno
            if line <= end:
                found = range(node.lineno, end + 1)
    return found


def compiles(code):
    """Leave out what Python itself refuses."""
    try:
        compile(code, "mutant", "exec")
    except (SyntaxError, TypeError):
        return False
    return True


def workplace(folder):
    """Copy the files that git knows to a folder."""
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, known):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return folder


class Place:
    """A copy of the checkout, and a process beside it that runs tests there."""

    def __init__(self, folder):
        self.folder, self.writes = workplace(folder), 0
        environment = {**os.environ, **ENVIRONMENT, "JAX_COMPILATION_CACHE_DIR": str(folder / "xla")}
        command = [sys.executable, str(ROOT / ".ci" / "mutant_worker.py")]
        pipe = subprocess.PIPE
        self.worker = subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, module, seconds, *arguments, chosen=(), **request):
        """Run tests of a module, and say whether they pass."""
        options = [
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-W",
            IGNORED,
            "-m",
            "not slow and not experiments",
            *arguments,
        ]
        options += [f"tests/{name}" for name in TESTS[module]]
        request |= {"arguments": options, "tests": list(chosen), "seconds": seconds}
        self.worker.stdin.write(json.dumps(request) + "\n")
        self.worker.stdin.flush()
        status = os.waitstatus_to_exitcode(int(self.worker.stdout.readline()))
        if status == 5:
            raise RuntimeError(f"{module}: no tests were found")
        return status == 0

    def survives(self, mutant, tests, seconds):
        """Run tests with a mutant in the place of its module."""
        file = source(mutant.module, self.folder)
        before = file.read_text(encoding="utf-8")
        self.write(file, mutant.code)
        try:
            return self.run(mutant.module, seconds, chosen=tests)
        finally:
            self.write(file, before)

    def write(self, file, code):
        """Write a file with a time of its own, so that Python compiles it again."""
        file.write_text(code, encoding="utf-8")
        self.writes += 1
        os.utime(file, (self.writes, self.writes))

    def covered(self, module, seconds):
        """Give the seconds of each test of a module, and {line: tests that execute it}; None where a test fails.

        Lines that are executed at import have no tests, and lines that are never executed are not in the second.
        """
        data, times = self.folder / "coverage", self.folder / "times.json"
        arguments = ("--cov=kbpjax", "--cov-context=test", "--cov-report=", "--cov-fail-under=0")
        environment = {"COVERAGE_FILE": str(data)}
        if not self.run(module, seconds, *arguments, times=str(times), environment=environment):
            return None
        coverage = CoverageData(str(data))
        coverage.read()
        contexts = coverage.contexts_by_lineno(str(source(module, self.folder)))
        tests = {line: {name.partition("|")[0] for name in names} - {""} for line, names in contexts.items()}
        return json.loads(times.read_text(encoding="utf-8")), tests


def chosen_tests(mutant, seconds, tests, limit):
    """Choose the tests that execute a mutant's lines (all, if at import), up to a limit.

    The quickest of each file come first, then the second of each, and so on: files test different things.
    """
    executed = [tests[line] for line in mutant.lines if line in tests]
    found = set().union(*executed) or set(seconds if executed else ())
    files = defaultdict(list)
    for name in sorted(found, key=lambda name: seconds.get(name, 0.0)):
        files[name.partition("::")[0]].append(name)
    total, chosen = 0.0, []
    for name in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*files.values()))):
        total += seconds.get(name, 0.0)
        if chosen and total > limit:
            break
        chosen.append(name)
    return chosen


def try_all(drawn, chosen, spots, seconds, keep):
    """Try each mutant in one of the places, and have each outcome kept."""
    free = Queue()
    for spot in spots:
        free.put(spot)

    def attempt(mutant):
        spot, start = free.get(), time.perf_counter()
        tests = chosen(mutant)
        try:
            survived = not tests or spot.survives(mutant, tests, seconds)
        finally:
            free.put(spot)
        word = "SURVIVED" if survived else "killed"
        print(f"{mutant.module} {mutant.operator} {word}, {time.perf_counter() - start:.0f} s", flush=True)
        if survived:
            print("\n".join("    " + line for line in mutant.change), flush=True)
        return {"module": mutant.module, "operator": mutant.operator, "survived": survived, "change": mutant.change}

    with ThreadPoolExecutor(len(spots)) as pool:
        for row in pool.map(attempt, drawn):
            keep(row)


def part(text):
    """Read "2/5" as (2, 5)."""
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError
    return number, count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modules", nargs="+", choices=TESTS, default=list(TESTS))
    parser.add_argument("--limit", type=int, default=10**6, help="places of each module, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", type=float, default=15, help="seconds of the tests that are chosen for one mutant")
    parser.add_argument("--seconds", type=int, default=600, help="CPU seconds that the tests of one mutant may use")
    parser.add_argument("--out", type=Path, default=ROOT / ".ci" / "mutants.json")
    parser.add_argument("--shard", type=part, default=(1, 1), metavar="K/N", help="the K-th of N parts of what is left")
    parser.add_argument("--fresh", action="store_true", help="forget the outcomes that --out has")
    parser.add_argument("--again", action="store_true", help="try once more those that survived, as --out has them")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() and not options.fresh else []
    rows = [row for row in kept if not (options.again and row["survived"] and row["module"] in options.modules)]
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def keep(row):
        rows.append(row)
        options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")

    with tempfile.TemporaryDirectory() as scratch:
        spots = [Place(Path(scratch) / str(job)) for job in range(options.jobs)]
        for module in options.modules:
            total, drawn = mutants(module, options.limit, options.seed)
            current = [mutant.change for mutant in drawn]
            if options.limit >= total:  # those of code that has changed are gone
                rows[:] = [row for row in rows if row["module"] != module or row["change"] in current]
            done = [row["change"] for row in rows if row["module"] == module]
            left = [mutant for mutant in drawn if mutant.change not in done]
            left = left[options.shard[0] - 1 :: options.shard[1]]
            if left:
                found = spots[0].covered(module, options.seconds)
                if found is None:
                    print(f"{module}: its tests fail, or take too long, without any change", file=sys.stderr)
                    return 1
                for other in spots[1:]:  # what is compiled once serves all
                    shutil.copytree(spots[0].folder / "xla", other.folder / "xla", dirs_exist_ok=True)
                chosen = partial(chosen_tests, seconds=found[0], tests=found[1], limit=options.tests)
                try_all(left, chosen, spots, options.seconds, keep)
            killed = [not row["survived"] for row in rows if row["module"] == module]
            print(f"{module}: {sum(killed)} of {len(killed)} mutants killed, of {total} places", flush=True)
    killed = sum(not row["survived"] for row in rows)
    print(f"{killed} of {len(rows)} killed: {killed / max(len(rows), 1):.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
