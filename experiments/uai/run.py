"""Answer public discrete models with cycles: loopy methods beside exact answers by elimination."""

import argparse
import math
import time
from typing import Any

import numpy as np

import kbpjax as kbp
from experiments.lib import command_line, datasets, results, steps, tables
from kbpjax.baselines import discrete, elimination
from kbpjax.baselines.elimination import Factors

QUICK = ("Grids_12", "Segmentation_11")
NAMES = (
    *(
        f"{family}_{i}"
        for family, last in (("DBN", 16), ("Grids", 18), ("Segmentation", 16))
        for i in range(11, last + 1)
    ),
    *(f"ObjectDetection_{i}" for i in range(11, 16)),
)
SOURCE = "A model of the UAI 2014 inference competition: folder uai2014 of the public repository mroavi/uai"

ITERS, TOL, DAMPING = 500, 1e-4, 0.5
BETWEEN = (0.25, 0.5, 0.75)
"""Shares of the way from exponents 1 to edge appearance probabilities."""

DRAWS = 500
"""Number of exact draws by whose log-likelihood the exponents are chosen."""

MAX_CELLS = 2**28


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m experiments.uai", description=description)
    command_line.add_common_arguments(parser, "experiments/uai/results")
    return command_line.main(run, parser, argv)


def run(args: argparse.Namespace) -> None:
    """Run the experiment: a table on standard output, and a JSON file in `args.out`."""
    folder, rows = datasets.data_directory(args.data), []
    for name in QUICK if args.quick else NAMES:
        rows += steps.step(name, answers, folder, name, args.seed)
        tables.print_table([row for row in rows if row["model"] == name])
    results.write_results(args.out / "uai.json", {"seed": args.seed, "quick": args.quick}, rows)
    print(f"Wrote {args.out / 'uai.json'}")


def answers(folder: Any, name: str, seed: int) -> list[dict[str, Any]]:
    """Return the errors of all methods on one model."""
    factors = datasets.read(folder, f"uai/{name}.uai", SOURCE, discrete.read_uai)
    published = datasets.read(folder, f"uai/{name}.uai.MAR", SOURCE, marginals)
    factors = merged(factors)
    start = time.perf_counter()
    exact = elimination.solve(factors, max_cells=MAX_CELLS)
    seconds = time.perf_counter() - start
    draws = exact.sample(DRAWS, seed=seed)
    found = [of_method(name, "elimination", exact.marginals, exact.log_partition, exact, draws, True, seconds)]
    found[0]["published"] = max(np.abs(a - b).max() for a, b in zip(exact.marginals, published, strict=True))
    alone = [np.ones(n) for n in factors.sizes]
    for scope, table in zip(factors.scopes, factors.tables, strict=True):
        if len(scope) == 1:
            alone[scope[0]] = alone[scope[0]] * table
    alone = [one / one.sum() for one in alone]
    found.append(of_method(name, "tables of nodes alone", alone, math.nan, exact, draws, True, 0.0))
    shares = {"BP, synchronous": (0.0, False), "BP": (0.0, True)}
    shares |= {f"fractional, {share}": (share, True) for share in BETWEEN} | {"tree-reweighted": (1.0, True)}
    for method, (share, by_color) in shares.items():
        found.append(of_method(name, method, *passed(factors, share, by_color, exact, draws)))
    tuned = [row for row in found if row["method"] in ("BP", "tree-reweighted") or "fractional" in row["method"]]
    best = max(tuned, key=lambda row: (row["log_likelihood"], row["converged"]))
    return [*found, best | {"method": "exponents chosen by draws", "chosen": best["method"]}]


def merged(factors: Factors) -> Factors:
    """Return the model with one table for each pair, and one for each variable."""
    single = {v: np.ones(n) for v, n in enumerate(factors.sizes)}
    pairs: dict[tuple[int, ...], np.ndarray] = {}
    for scope, table in zip(factors.scopes, factors.tables, strict=True):
        if len(scope) == 1:
            single[scope[0]] = single[scope[0]] * table
        else:
            table = table if scope[0] < scope[1] else table.T
            key = tuple(sorted(scope))
            pairs[key] = pairs.get(key, np.ones(())) * table
    return Factors(factors.sizes, [*pairs, *((v,) for v in single)], [*pairs.values(), *single.values()])


def passed(factors: Factors, share: float, by_color: bool, exact: Any, draws: np.ndarray) -> tuple[Any, ...]:
    """Return marginals, log Z and more by message passing with exponents between 1 and appearance probabilities."""
    start = time.perf_counter()
    graph = discrete.from_factors(factors)[1]
    exponents = 1 - share * (1 - np.asarray(kbp.tree_reweighting(graph)))
    powered = list(factors.tables)
    for i, power in enumerate(exponents.tolist()):
        powered[i] = powered[i] ** (1 / power)
        powered[i] = powered[i] / powered[i].max()
    scale = sum(math.log(table.max()) for table in factors.tables[: len(exponents)])
    model, graph, evidence = discrete.from_factors(Factors(factors.sizes, factors.scopes, powered))
    options: Any = {"schedule": kbp.colored(graph)} if by_color else {}
    options |= {"exponents": exponents} if share else {}
    solution = kbp.run(model, graph, evidence, num_iters=ITERS, tol=TOL, damping=DAMPING, **options)
    beliefs, types = kbp.beliefs(model, graph, evidence, solution, model.points), np.asarray(graph.node_type)
    by_type: Any = beliefs if isinstance(beliefs, dict) else {int(types[0]): beliefs}
    found: list[Any] = [None] * len(types)
    for v, one in by_type.items():
        for place, node in enumerate(np.flatnonzero(types == v).tolist()):
            found[node] = np.asarray(one.weights[place], float)
    log_z = float(kbp.log_partition(model, graph, evidence, solution)) + scale
    seconds = time.perf_counter() - start
    return found, log_z, exact, draws, bool(solution.converged), seconds


def of_method(
    name: str, method: str, found: Any, log_z: float, exact: Any, draws: np.ndarray, converged: bool, seconds: float
) -> dict[str, Any]:
    """Return the row of a method: errors of marginals and of log Z, log-likelihood of exact draws for each variable."""
    errors = np.concatenate([np.abs(a - b) for a, b in zip(found, exact.marginals, strict=True)])
    logs = [np.log(np.maximum(own, 1e-12))[draws[:, v]] for v, own in enumerate(found)]
    return {
        "model": name,
        "method": method,
        "error": float(errors.mean()),
        "largest": float(errors.max()),
        "log_z_error": log_z - exact.log_partition,
        "log_likelihood": float(np.mean(logs)),
        "converged": converged,
        "width": exact.width,
        "seconds": seconds,
    }


def marginals(path: Any) -> list[np.ndarray]:
    """Return the marginals of a file NAME.uai.MAR."""
    numbers = iter(path.read_text(encoding="utf-8").split()[1:])
    return [np.array([float(next(numbers)) for _ in range(int(next(numbers)))]) for _ in range(int(next(numbers)))]
