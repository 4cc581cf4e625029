"""Save the answers of a fixed set of problems, and compare those of two checkouts.

    python -m benchmarks.equal_answers save --out NEW.npz [--x64] [--checkout DIR] [--only TEXT ...]
    python -m benchmarks.equal_answers compare OLD.npz NEW.npz [--tol 1e-6] [--exact OLD64.npz] [--all]

`save` imports kbpjax from the folder where it is run, or from `--checkout`: the cases of this checkout then drive the
code of another, for instance `git worktree add ../old COMMIT`. With `--only`, the other answers of the file stay.
`compare` prints the largest difference of each case, as a share of the largest entry of the array. The tolerance is
1e-6, or 1e-10 where both files are of double precision. The exit status is 1 if a difference is above the tolerance and
EXPECTED_DIFFERENCES does not list it, or if a case fails, or is missing from the new code only. With `--exact`, the
answers of the old code in double precision, `rounding` is the difference of OLD from these: in single precision, a
difference of that size is no fault. The problems are in `answer_cases.py`.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import answer_cases


class Expected(NamedTuple):
    """Why the answers of a case may differ, and by how much at most in single and in double precision."""

    reason: str
    single: float = np.inf
    double: float = np.inf


_SOLVED = Expected("solved by GMRES to the tolerance, 1e-6 in single precision", single=1e-5, double=0.0)
_ROUNDED = Expected("terms added in another order: equal in double precision", single=5e-6, double=0.0)
_FIRST = "first messages are the update of 1 by maxima, as documented; they were sums"

EXPECTED_DIFFERENCES: dict[str, Expected] = {
    "run_tree/star whose products underflow outside of logs": Expected(
        "run_tree honours logarithms; before, products underflowed"
    ),
    "beliefs/quantiles": Expected("interpolated between points; before, a point was selected"),
    "beliefs/refine_mode": Expected("a climb whose last steps are rounding", single=1e-3, double=1e-7),
    **dict.fromkeys(("maxima/typed", "maxima/hub"), Expected(_FIRST, single=0.0, double=1e-7)),
    **dict.fromkeys(("maxima in logs/typed", "maxima in logs/hub"), Expected(_FIRST, single=0.0, double=1e-7)),
    "gradient/maxima": Expected(_FIRST, single=1e-3, double=1e-3),
    "gradient/hub": _ROUNDED,
    "gradient/colored typed": _ROUNDED,
    "gradient/exponents": _ROUNDED,
    "gradient/positive, exponents": _ROUNDED._replace(single=2e-5),
    "gradient/sums in logs": _ROUNDED,
    "gradient/bandwidths, ridge and observations": _ROUNDED._replace(single=2e-5),
    "gradient/bandwidths through run_tree": _ROUNDED,
    "forward mode/over reverse": _ROUNDED,
    "run_tree gradient/star": _ROUNDED._replace(single=2e-5),
    "run_tree gradient/tree": _ROUNDED._replace(single=1e-5),
    "run_tree gradient/positive": _ROUNDED._replace(single=1e-5),
    "run_tree gradient/star in logs": _ROUNDED._replace(single=2e-5),
    "implicit gradient/typed": _SOLVED,
    "implicit gradient/hub": _SOLVED,
    "partition/implicit gradient": _SOLVED,
    "implicit gradient/colored": _SOLVED,
    "implicit gradient/Anderson": _SOLVED,
    "implicit gradient/positive, exponents": _SOLVED._replace(single=1e-4),
}
"""{case: why and how far answers may differ from those of 3cc2dd6}; `compare` names those without need.

A bound of 0 is the tolerance.
"""

TOLERANCES = {4: 1e-6, 8: 1e-10}
"""{bytes of a number: tolerance}, of the less precise of both files."""

FLAGS = (
    f"--xla_force_host_platform_device_count={answer_cases.DEVICES}",
    "--xla_backend_optimization_level=0",  # nearly all of the time is compilation
    "--xla_llvm_disable_expensive_passes=true",
)

SETTINGS = "settings"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.equal_answers", description=(__doc__ or "").split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("save", help="run all cases and save their answers")
    one.add_argument("--out", type=Path, required=True, metavar="FILE.npz")
    one.add_argument("--x64", action="store_true", help="compute in double precision")
    one.add_argument("--checkout", type=Path, metavar="DIR", help="folder to import kbpjax from (default: this one)")
    one.add_argument("--only", nargs="+", metavar="TEXT", help="only cases whose name has one of these in it")
    one.add_argument("--verbose", action="store_true", help="show where a case failed")
    two = commands.add_parser("compare", help="compare the answers of two files")
    two.add_argument("old", type=Path, metavar="OLD.npz")
    two.add_argument("new", type=Path, metavar="NEW.npz")
    two.add_argument("--tol", type=float, help="largest relative difference (default: by precision)")
    two.add_argument("--exact", type=Path, metavar="OLD64.npz", help="show how far OLD is from these")
    two.add_argument("--all", action="store_true", help="print equal cases too")
    args = parser.parse_args()
    return save(args) if args.command == "save" else compare(args)


def save(args: argparse.Namespace) -> int:
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS])  # read when a device is first used
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", args.x64)
    kbp = package(args.checkout)
    arrays: dict[str, np.ndarray] = {}
    settings: dict[str, Any] = {"itemsize": 8 if args.x64 else 4, "jax": jax.__version__, "status": {}}
    if args.only and args.out.exists():
        arrays, known = read(args.out)
        arrays = {key: value for key, value in arrays.items() if key.split("::")[0] in answer_cases.CASES}
        if known["itemsize"] != settings["itemsize"]:
            raise SystemExit(
                f"error: {args.out.name} must be of the same precision; got another. Choose another --out."
            )
        settings["status"] = {name: state for name, state in known["status"].items() if name in answer_cases.CASES}
    status = settings["status"]
    for name, case in answer_cases.CASES.items():
        if args.only and not any(text in name for text in args.only):
            continue
        arrays = {key: value for key, value in arrays.items() if not key.startswith(f"{name}::")}
        begin = time.process_time()
        status[name], found = attempt(case, kbp, args.verbose)
        arrays |= {f"{name}::{key}": value for key, value in found.items()}
        if status[name] != "ok" or args.verbose:
            print(f"{name}: {status[name]} ({time.process_time() - begin:.1f} s of CPU)", file=sys.stderr)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("wb") as file:
        np.savez_compressed(file, **{SETTINGS: np.array(json.dumps(settings))}, **arrays)
    counts = {kind: sum(s.split(":")[0] == kind for s in status.values()) for kind in ("ok", "missing", "failed")}
    print(f"{args.out.name}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["failed"] else 0


def package(checkout: Path | None) -> Any:
    """Import kbpjax from a folder, and from nowhere else."""
    folder = (checkout or Path.cwd()).resolve()
    sys.path.insert(0, str(folder))
    import kbpjax

    if not Path(kbpjax.__file__).resolve().is_relative_to(folder):
        raise SystemExit(f"error: kbpjax must come from {folder.name}; got another. Run in a checkout.")
    return answer_cases.Package(kbpjax)


def attempt(case: answer_cases.Case, kbp: Any, verbose: bool) -> tuple[str, dict[str, np.ndarray]]:
    """Run a case; return ok, what is missing, or how it failed, and its arrays by name."""
    try:
        return "ok", {str(name): np.asarray(value) for name, value in case(kbp).items()}
    except answer_cases.Missing as missing:
        return f"missing: {missing}", {}
    except Exception as error:  # one case must not end the others
        if (name := absent(error, kbp.__name__)) is not None:
            return f"missing: {name}", {}
        reason = error
    if verbose:
        with contextlib.suppress(Exception):
            traceback.print_exception(reason)
    return f"failed: {type(reason).__name__}: {' '.join(str(reason).split())[:200]}", {}


def absent(error: Exception, name: str) -> str | None:
    """Return the name of the package that an error says does not exist; None for other errors."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return f"{error.obj.__name__}.{error.name}" if error.obj.__name__.split(".")[0] == name else None
    if isinstance(error, ImportError) and error.name is not None and error.name.split(".")[0] == name:
        return error.name
    return None


def compare(args: argparse.Namespace) -> int:
    from experiments.lib import tables

    (old, old_settings), (new, new_settings) = read(args.old), read(args.new)
    exact = {} if args.exact is None else read(args.exact)[0]
    itemsize = min(old_settings["itemsize"], new_settings["itemsize"])
    tol = TOLERANCES[itemsize] if args.tol is None else args.tol
    before, after = old_settings["status"], new_settings["status"]
    table = []
    for name in dict.fromkeys([*before, *after]):
        states = before.get(name, "missing: case"), after.get(name, "missing: case")
        worst, where = worst_of(name, old, new) if states == ("ok", "ok") else (None, "")
        table.append(row(name, states, worst, where, tol, itemsize))
        if exact and before.get(name) == "ok":
            table[-1]["rounding"] = worst_of(name, old, exact)[0]
    shown = [line for line in table if args.all or line["ok"] != "yes"]
    if shown:
        columns = ["case", "difference", *(["rounding"] if exact else []), "tolerance", "ok", "what"]
        tables.print_table(shown, columns)
    bad = [line for line in table if line["ok"] == "NO"]
    counts = ", ".join(f"{sum(line['ok'] == kind for line in table)} {kind}" for kind in ("yes", "expected", "-", "NO"))
    print(f"{len(table)} cases: {counts}")
    expected = {name for name, (_, *most) in EXPECTED_DIFFERENCES.items() if most[itemsize == 8] > 0}
    idle = [line["case"] for line in table if line["ok"] == "yes" and line["case"] in expected]
    unknown = [name for name in EXPECTED_DIFFERENCES if name not in {line["case"] for line in table}]
    if idle or unknown:
        print(f"in EXPECTED_DIFFERENCES without need: {', '.join(idle + unknown)}")
    return 1 if bad else 0


def row(
    name: str, states: tuple[str, str], worst: float | None, where: str, tol: float, itemsize: int
) -> dict[str, Any]:
    """Judge one case."""
    line = {"case": name, "difference": worst, "tolerance": tol, "ok": "yes", "what": where}
    if worst is not None and np.isinf(worst):
        line["difference"] = "inf"
    if worst is None:
        told = [f"{side} {state}" for side, state in zip(("old", "new"), states, strict=True) if state != "ok"]
        line["what"] = "; ".join(text if len(text) < 100 else f"{text[:97]}..." for text in told)
        # What the old code lacks cannot be compared; what only the new lacks is a loss.
        lost = states[0] == "ok" or any(state.startswith("failed") for state in states)
        line["ok"] = "NO" if lost else "-"
    elif worst > tol:
        line["ok"] = "NO"
    if line["ok"] == "NO" and name in EXPECTED_DIFFERENCES:
        reason, *most = EXPECTED_DIFFERENCES[name]
        # A case that is missing or fails is expected only where any difference is.
        if (np.inf if worst is None else worst) <= most[itemsize == 8]:
            line |= {"ok": "expected", "what": f"{line['what']} ({reason})"}
    return line


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a file, and its settings."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, json.loads(str(arrays.pop(SETTINGS)))


def worst_of(name: str, old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return the largest relative difference of the arrays of a case, and in which array it is."""
    mine, theirs = ({key for key in arrays if key.startswith(f"{name}::")} for arrays in (old, new))
    if mine != theirs:
        return np.inf, f"other arrays: {', '.join(sorted(key.split('::')[1] for key in mine ^ theirs))}"
    found = {key.split("::")[1]: difference(old[key], new[key]) for key in mine}
    where = max(sorted(found), key=lambda key: found[key], default="")
    return found.get(where, 0.0), where


def difference(old: np.ndarray, new: np.ndarray) -> float:
    """Return the largest difference as a share of the largest entry; infinite for another shape or other NaNs."""
    if old.shape != new.shape:
        return np.inf
    if old.size == 0:
        return 0.0
    old, new = (np.asarray(array, np.float64) for array in (old, new))
    wild = ~np.isfinite(old)
    if not np.array_equal(np.where(wild, old, 0), np.where(np.isfinite(new), 0, new), equal_nan=True):
        return np.inf
    old, new = np.where(wild, 0, old), np.where(wild, 0, new)
    gap, largest = np.max(np.abs(old - new)), np.max(np.abs(old))
    return float(gap / largest) if largest > 0 else (0.0 if gap == 0 else np.inf)


if __name__ == "__main__":
    sys.exit(main())
