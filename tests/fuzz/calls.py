"""Every public function with one argument made wrong: it must answer in finite numbers or raise the documented error.

    python -m tests.fuzz.calls [--each 6] [--seed 0] [--names beliefs kernels.] [--list FILE]

`tests.fuzz.recipes` has a right call of each function, `tests.fuzz.values` the hostile values. Each try ends as one of

- refused: a `ValueError` "argument: rule; got ..."; or what Python itself says of a wrong number of arguments;
- answer: a finite one;
- raw: any other exception, a message without the argument, more than 40 CPU seconds, or more memory than allowed;
- silent: NaN or infinity where the right call has none, a value of a wrong kind that is accepted, or a mask ignored;
  except what `MAY_GIVE_INFINITY` and `TAKES_ANYTHING` list, with reasons.

The tries run in a process of their own, which is replaced if it hangs or dies. Without `--each`, all values are tried.
"""

import argparse
import collections
import contextlib
import inspect
import io
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 40
"""CPU seconds of a try."""
MEMORY = 6 * 2**30
"""Bytes that all tries of a process may add to what it holds at the start."""
IGNORED = "the mask is ignored"
OUTCOMES = ("refused", "answer", "raw", "silent")
MESSAGE = re.compile(r"[A-Za-z_][^:\n]{0,80}: .*; got .*", re.DOTALL)

TAKES_ANYTHING = {
    "save.value": "anything that is data can be saved",
    "estimator.GraphRegressor.*": "scikit-learn: arguments are checked by `fit`",
    "*.progress": "a switch",
    "*.return_std": "a switch, as in scikit-learn",
    "sharded.shard_batch.batch": "any pytree",
    "Packed.join.values": "any arrays of nodes, which `observe` checks",
    "Packed.split.values": "any arrays of nodes, which stay as they are",
    "*.argument": "a text for messages",
    "*.label": "a text",
    "*.ax": "axes of matplotlib",
    "*.axes": "axes of matplotlib",
    "*.frozen": "what it returns may be empty",
    "fit_chunks.checkpoint": "a path",
    "tune.checkpoint": "a path",
    "train.checkpoint": "a path",
    "kernels.Transformed.transform": "any function",
    "ep.ForwardSampler.function": "any function",
    "ep.LogDensity.function": "any function",
}
"""{function.argument: why a value of another kind need not be refused}."""

LABELS = ("labels", "text", "categories of pandas")
"""Values that are labels."""

TAKES_LABELS = {
    "pool.samples": "labels are values",
    "pool.observations": "labels are values",
    "TrainingData.*": "labels are values",
    "series.fit.x": "labels are values",
    "series.fit.y": "labels are values",
    "estimator.GraphRegressor.fit.y": "labels are values",
    "*.X": "scikit-learn reads objects that are texts of numbers as numbers",
    "estimator.GraphRegressor.score.sample_weight": "as X",
}
"""{function.argument: why labels in place of numbers need not be refused}."""

ONE_MAY_CHANGE_NOTHING = {"choose_edges.x": "a graph that one value of 120 need not change"}
"""{function.argument: why an answer may be the same without a mask}."""

MAY_GIVE_INFINITY = {
    "ep.init_operator.threshold": "-inf: always ask the oracle; inf: never",
    "ep.learn.threshold": "as of `init_operator`",
    "sharded.shard_batch.batch": "only placed on devices; NaN marks missing observations",
    "*.tol": "residuals after the last iteration are NaN",
    "windows.values": "NaN where missing stays",
    "Merged.values.given": "NaN where missing stays",
    "Packed.join.values": "NaN where missing stays",
    "Packed.split.values": "NaN where missing stays",
    "coverage.truth": "NaN if no true value is known",
}
"""{function.argument: why the answer need not be finite}."""


# --- one try ----------------------------------------------------------------------------------------------------------


def outcome_of(call: Callable, given: dict[str, Any], name: str, value: Any, finite: bool) -> tuple[str, str]:
    """Return the outcome of a call with one argument replaced, and a line about it.

    Args:
        call: the function.
        given: its right arguments.
        name: the argument that is replaced.
        value: a `Value`.
        finite: whether the right answer is finite.
    """
    import jax

    from tests.fuzz.values import Kind

    given = {**given, name: value.value}
    try:
        if value.traced:
            jax.eval_shape(lambda tracer: (call(**{**given, name: tracer}), 0)[1], value.value)
            return "answer", "traced"
        answer = call(**given)
        if answer is NotImplemented:
            return "refused", "NotImplemented"
        if value.kind is Kind.WRONG:
            return "silent", f"accepted: {one_line(answer)}"
        if finite and not is_finite(answer, getattr(call, "__name__", "").startswith("log_")):
            return "silent", f"not finite: {one_line(answer)}"
        if value.plain is not None and same(answer, call(**{**given, name: value.plain})):
            return "silent", IGNORED
        return "answer", ""
    except TooLong:
        return "raw", f"more than {SECONDS} CPU seconds"
    except Exception as error:
        refused = is_documented(error)
        return (
            "refused" if refused else "raw",
            f"{type(error).__name__}: {one_line(error)}{'' if refused else where(error)}",
        )


def is_documented(error: Exception) -> bool:
    """Return whether an exception is one that the documentation promises."""
    text = str(error)
    if isinstance(error, ValueError) and (MESSAGE.match(text) or is_of_scikit_learn(error)):
        return True
    if isinstance(error, TypeError) and "argument must be a string" in text:  # as `check_estimator` demands of X
        return is_of_scikit_learn(error)
    return isinstance(error, TypeError) and ("unexpected keyword" in text or "required positional" in text)


def is_of_scikit_learn(error: Exception) -> bool:
    """Return whether scikit-learn itself refuses X or y, in the words that its `check_estimator` demands."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("sklearn.utils")


def is_finite(answer: Any, logarithms: bool = False) -> bool:
    """Return whether all numbers of an answer are finite; of `logarithms` and of fields `log_...`, or -inf."""
    import jax
    import numpy as np

    def finite(path: Any, leaf: Any) -> bool:
        array = np.asarray(leaf)
        if array.dtype.kind not in "fcV":
            return True
        array = array.astype(complex)
        logs = logarithms or getattr(path[-1] if path else None, "name", "").startswith("log_")
        return bool((np.isfinite(array) | (logs & np.isneginf(array.real))).all())

    leaves = jax.tree.leaves_with_path(answer)
    return all(finite(path, leaf) for path, leaf in leaves if is_number(leaf))


def is_number(leaf: Any) -> bool:
    """Return whether a leaf holds numbers and is no random key."""
    import jax
    import numpy as np

    keys = isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return isinstance(leaf, jax.Array | np.ndarray | np.number | float) and not keys


def same(one: Any, other: Any) -> bool:
    """Return whether two answers have the same numbers, none of them masked."""
    import jax
    import numpy as np

    pairs = [list(filter(is_number, jax.tree.leaves(answer))) for answer in (one, other)]
    if len(pairs[0]) != len(pairs[1]) or not pairs[0]:
        return False
    if any(isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf) for leaf in pairs[0]):
        return False
    arrays = [[np.asarray(leaf) for leaf in leaves] for leaves in pairs]
    return all(a.shape == b.shape and np.array_equal(np.ma.getdata(a), b) for a, b in zip(*arrays, strict=True))


def one_line(value: Any) -> str:
    """Return the beginning of a text in one line."""
    try:
        return " ".join(str(value).split())[:160]
    except Exception as error:
        return f"{type(value).__name__} without a text ({type(error).__name__})"


def where(error: Exception) -> str:
    """Return the last place in the package that an exception passed."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if f"{os.sep}kbpjax{os.sep}" in file:
            place = f" @ {file.rpartition(f'{os.sep}kbpjax{os.sep}')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


class TooLong(BaseException):
    """A try takes too long."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooLong` after some CPU seconds, as soon as Python runs."""

    def stop(number: int, frame: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


# --- the worker -------------------------------------------------------------------------------------------------------


def tries_of(
    name: str, call: Callable, given: dict[str, Any], each: int | None, seed: int
) -> Iterator[tuple[str, Any]]:
    """Yield (argument, value) for a function, `each` values of each argument, chosen by the seed."""
    from tests.fuzz import recipes, values

    parameters = inspect.signature(call).parameters
    for argument, good in given.items():
        stranger = recipes.TABLES if isinstance(good, type(recipes.GRAPH)) else recipes.GRAPH
        optional = good is None or may_be_none(argument, parameters.get(argument))
        chosen = [one for one in values.hostile(good, stranger) if not (one.value is None and optional)]
        rest = [other for key, other in given.items() if key != argument and values.is_record(other)]
        if values.is_record(good):
            chosen += [
                values.Value("another argument", one, values.Kind.WRONG) for one in rest if type(one) is not type(good)
            ]
        if each is not None and each < len(chosen):
            chosen = random.Random(f"{seed} {name} {argument}").sample(chosen, each)
        for value in chosen:
            yield argument, value


def may_be_none(name: str, parameter: inspect.Parameter | None) -> bool:
    """Return whether an argument may be None, by its default value or annotation; all evidence may."""
    if parameter is None or name == "evidence":
        return True
    return parameter.default is None or "None" in str(parameter.annotation)


def work(options: argparse.Namespace) -> None:
    """Try all recipes of the names; write a line of JSON before and after each try."""
    import jax
    import matplotlib

    matplotlib.use("Agg")
    jax.config.update("jax_disable_most_optimizations", True)  # the programs are short: most of the time is compilation
    from matplotlib import pyplot

    from tests.fuzz import recipes, values

    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else None
    if pages is not None:
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    done = {tuple(line["try"]) for line in read(options.log)}
    with options.log.open("a") as log, tempfile.TemporaryDirectory() as folder:

        def write(**line: Any) -> None:
            log.write(json.dumps(line) + "\n")
            log.flush()

        os.chdir(folder)  # functions that write files write them here
        for name in options.names:
            try:
                call, given = recipes.RECIPES[name]()
                finite = is_finite(call(**given))
            except Exception as error:
                write(**{"try": [name, "", "the right call"], "outcome": "raw", "text": one_line(error) + where(error)})
                continue
            for argument, value in tries_of(name, call, given, options.each, options.seed):
                label = [name, argument, value.label]
                if tuple(label) in done:
                    continue
                done.add(tuple(label))
                write(**{"start": label})
                begin = time.process_time()
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    try:
                        with limited(SECONDS):
                            needed = finite and not is_listed(name, argument, MAY_GIVE_INFINITY)
                            outcome, text = outcome_of(call, given, argument, value, needed)
                    except TooLong:
                        outcome, text = "raw", f"more than {SECONDS} CPU seconds"
                taken = TAKES_ANYTHING | (TAKES_LABELS if value.label in LABELS else {})
                if outcome == "silent" and value.kind is values.Kind.WRONG and is_listed(name, argument, taken):
                    outcome = "answer"
                if text == IGNORED and is_listed(name, argument, ONE_MAY_CHANGE_NOTHING):
                    outcome = "answer"
                seconds = round(time.process_time() - begin, 2)
                write(**{"try": label, "outcome": outcome, "text": text, "seconds": seconds})
            pyplot.close("all")


def is_listed(name: str, argument: str, exceptions: dict[str, str]) -> bool:
    """Return whether an argument of a function is among the exceptions to a rule."""
    keys = {f"{name}.{argument}", f"{name}.*", f"*.{argument}"}
    return not keys.isdisjoint(exceptions)


def read(log: Path) -> list[dict[str, Any]]:
    """Return the finished tries of a log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if "try" in line]


# --- the watcher ------------------------------------------------------------------------------------------------------


def watch(options: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """Run workers until all names are done; a try during which a worker hangs or dies is raw."""
    log = options.log
    log.touch()
    arguments = ["--log", str(log), "--seed", str(options.seed)]
    arguments += [] if options.each is None else ["--each", str(options.each)]
    while True:
        command = [sys.executable, "-m", "tests.fuzz.calls", "--work", *arguments, "--names", *names]
        with tempfile.TemporaryFile() as errors:
            worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors)
            hung = not wait(worker, log)
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        if worker.returncode == 0:
            return read(log)
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        if not lines or "start" not in lines[-1]:
            raise SystemExit(f"the worker ended with status {worker.returncode}: {last}")
        label, text = lines[-1]["start"], "hangs" if hung else f"the process died ({worker.returncode}): {last}"
        with log.open("a") as file:
            file.write(json.dumps({"try": label, "outcome": "raw", "text": text, "seconds": SECONDS}) + "\n")
        names = names[names.index(label[0]) :]


def wait(worker: subprocess.Popen, log: Path) -> bool:
    """Wait for a worker; return False if it was killed because one try used more than twice its CPU seconds."""
    size, since = -1, 0.0
    while worker.poll() is None:
        time.sleep(0.2)
        now, used = log.stat().st_size if log.exists() else 0, cpu_seconds(worker.pid)
        if now != size:
            size, since = now, used
        if used - since > 2 * SECONDS and '"start"' in "".join(log.read_text().splitlines()[-1:]):
            worker.kill()
            worker.wait()
            return False
    return True


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds that a process has used; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the report -------------------------------------------------------------------------------------------------------


def table(lines: list[dict[str, Any]]) -> str:
    """Return the table of outcomes by module."""
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for line in lines:
        parts = line["try"][0].split("/")[0].split(".")
        lower = [part for part in parts[:-1] if part[:1].islower()]
        counts[".".join(["kbpjax", *lower[:2]])][line["outcome"]] += 1
    rows = [("module", "tried", *OUTCOMES)]
    for module, count in sorted(counts.items()):
        rows.append((module, str(count.total()), *(str(count[outcome]) for outcome in OUTCOMES)))
    total = sum(counts.values(), collections.Counter())
    rows.append(("all", str(total.total()), *(str(total[outcome]) for outcome in OUTCOMES)))
    return "\n".join(f"{row[0]:32}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)


def findings(lines: list[dict[str, Any]]) -> list[str]:
    """Return the raw and silent tries by cause, the most frequent first: a line for the cause, and one for each try."""
    causes = collections.defaultdict(list)
    for line in lines:
        if line["outcome"] in ("raw", "silent"):
            text, place = re.fullmatch(r"(.*?)(?: @ (\S+:\d+))?", line["text"], re.DOTALL).groups(default="")
            kind = text.partition(":")[0] if line["outcome"] == "silent" else re.sub(r"[\d'.]+", "", text)[:48]
            causes[f"{line['outcome']}: {kind}" if not place else line["outcome"], place].append(line)
    found = []
    for (kind, place), group in sorted(causes.items(), key=lambda item: -len(item[1])):
        found.append(f"{len(group)} {kind}{' @ ' if place else ''}{place}")
        found += [f"    {line['try'][0]}({line['try'][1]}={line['try'][2]}): {line['text']}" for line in group]
    return found


def public_names() -> set[str]:
    """Return the names of all public functions, classes and methods."""
    sys.path.insert(0, str(ROOT / ".ci"))
    import docs_reference

    found = set()
    for entry in docs_reference.entries():
        name = entry.name.removeprefix("kbpjax.")
        found.add(name)
        for member in entry.members():
            static = inspect.getattr_static(entry.value, member)
            if not isinstance(static, property) and callable(getattr(entry.value, member)):
                found.add(f"{name}.{member}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; the exit status is 1 if a try is raw or silent."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.calls", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--each", type=int, help="number of values of each argument (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="chooses them")
    parser.add_argument("--names", nargs="*", default=[], help="only recipes that begin so")
    parser.add_argument("--list", type=Path, help="write the raw and silent tries to a file")
    parser.add_argument("--log", type=Path, help="keep the log of all tries here, and go on from it")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(options)
        return 0
    from tests.fuzz.recipes import RECIPES

    names = [name for name in RECIPES if not options.names or name.startswith(tuple(options.names))]
    with tempfile.TemporaryDirectory() as folder:
        options.log = options.log or Path(folder) / "log"
        lines = watch(options, names)
    bad = findings(lines)
    if options.list:
        options.list.write_text("\n".join(bad) + "\n")
    print(*bad, sep="\n")
    print(table(lines))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
