"""Change the code in many small ways, one at a time, and see whether the tests notice (`make mutants`; not run by CI).

Mutants are made by cosmic-ray's operators: of each place in a module that one of them can change, one change, drawn at
random; annotations are left alone. A mutant is killed where one of the tests of its module fails that `make test` runs,
or uses more CPU seconds than it may (so that a busy machine kills none). Each outcome is written at once, and a run
goes on where the last one stopped: `--shard 2/5` does the second fifth of what is left to do, `--fresh` begins again.
"""

import argparse
import ast
import difflib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "inference/update": (
        "test_semantics.py",
        "test_propagate.py",
        "test_exponents.py",
        "test_evidence.py",
        "test_positive.py",
        "test_implicit.py",
    ),
    "inference/loopy": (
        "test_semantics.py",
        "test_without_edges.py",
        "test_propagate.py",
        "test_exactness.py",
        "test_bad_inputs.py",
        "test_transforms.py",
        "test_implicit.py",
        "test_positive.py",
        "test_exponents.py",
    ),
    "learning/embedding": ("test_embedding.py", "test_bad_inputs.py"),
    "features/cholesky": ("features/test_cholesky.py", "test_features.py"),
    "posterior/beliefs": ("test_beliefs.py", "test_powers.py", "test_evidence_exact.py", "test_answers.py"),
}
"""The tests of each module; quick ones first."""
LEFT_ALONE = ("Variable", "RemoveDecorator")
"""Operators that need arguments, or whose mutants do not even import under the shape checks of the tests."""
CACHE = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


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
    """Draw one mutant for each place of a module, of at most `limit` places: [(module, operator, code), ...]."""
    code = (ROOT / "kbpjax" / f"{module}.py").read_text(encoding="utf-8")
    draw, groups = random.Random(seed), places(code)
    chosen = sorted(draw.sample(sorted(groups), min(limit, len(groups))))
    drawn = [draw.choice(groups[place]) for place in chosen]
    made = [(module, name, mutate_code(code, get_operator(name)(), occurrence)) for name, occurrence in drawn]
    return len(groups), [mutant for mutant in made if compiles(mutant[2])]


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


def survives(folder, module, code, seconds):
    """Run the tests of a module with this code in its place."""
    file = folder / "kbpjax" / f"{module}.py"
    before = file.read_text(encoding="utf-8")
    file.write_text(code, encoding="utf-8")
    tests = [f"tests/{name}" for name in TESTS[module]]
    chosen = ["-m", "not slow and not experiments", *tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *chosen]
    settings = {**os.environ, **CACHE, "PYTHONDONTWRITEBYTECODE": "1", "JAX_COMPILATION_CACHE_DIR": str(folder / "xla")}

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    try:
        outcome = subprocess.run(
            command, cwd=folder, env=settings, capture_output=True, preexec_fn=limit, timeout=8 * seconds, check=False
        )
        return outcome.returncode == 0
    except subprocess.TimeoutExpired:  # asleep for good
        return False
    finally:
        file.write_text(before, encoding="utf-8")


def difference(module, code):
    """Show what a mutant changes, without context."""
    before = (ROOT / "kbpjax" / f"{module}.py").read_text(encoding="utf-8").split("\n")
    lines = list(difflib.unified_diff(before, code.split("\n"), lineterm="", n=0))[2:]
    return [line for line in lines if line[:1] in "@-+"]


def try_all(drawn, folders, seconds, keep):
    """Try each mutant in one of the folders, and have each outcome kept."""
    free = Queue()
    for folder in folders:
        free.put(folder)

    def attempt(mutant):
        module, name, code = mutant
        folder, start = free.get(), time.perf_counter()
        survived = survives(folder, module, code, seconds)
        free.put(folder)
        word = "SURVIVED" if survived else "killed"
        print(f"{module} {name} {word}, {time.perf_counter() - start:.0f} s", flush=True)
        if survived:
            print("\n".join("    " + line for line in difference(module, code)), flush=True)
        return {"module": module, "operator": name, "survived": survived, "change": difference(module, code)}

    with ThreadPoolExecutor(len(folders)) as pool:
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
    parser.add_argument("--seconds", type=int, default=900, help="CPU seconds that the tests of one mutant may use")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.json")
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
        folders = [workplace(Path(scratch) / str(job)) for job in range(options.jobs)]
        for module in options.modules:
            total, drawn = mutants(module, options.limit, options.seed)
            done = [row["change"] for row in rows if row["module"] == module]
            left = [mutant for mutant in drawn if difference(module, mutant[2]) not in done]
            left = left[options.shard[0] - 1 :: options.shard[1]]
            if left:
                unchanged = (ROOT / "kbpjax" / f"{module}.py").read_text(encoding="utf-8")
                if not survives(folders[0], module, unchanged, options.seconds):
                    print(f"{module}: its tests fail, or take too long, without any change", file=sys.stderr)
                    return 1
                for other in folders[1:]:  # what is compiled once serves all
                    shutil.copytree(folders[0] / "xla", other / "xla", dirs_exist_ok=True)
                try_all(left, folders, options.seconds, keep)
            killed = [not row["survived"] for row in rows if row["module"] == module]
            print(f"{module}: {sum(killed)} of {len(killed)} mutants killed, of {total} places", flush=True)
    killed = sum(not row["survived"] for row in rows)
    print(f"{killed} of {len(rows)} killed: {killed / max(len(rows), 1):.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
