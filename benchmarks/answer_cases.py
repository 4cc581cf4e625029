"""Problems whose answers `equal_answers` compares between two checkouts.

A case is a function of the package `kbp` that returns arrays by name. It must run on either side of a change of the
public API: it passes every option that has a default which may change (`damping=0.0` above all), draws its inputs from
NumPy, and looks names that may move up with `pick`. Nothing here imports kbpjax, so that any checkout can be passed in.
Problems are small, take few iterations and contract, so that rounding does not grow.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ITERS = 8
DEVICES = 4
Case = Callable[[Any], Any]
CASES: dict[str, Case] = {}


class Missing(Exception):
    """A checkout lacks a name that a case uses."""


def case(name: str) -> Callable[[Case], Case]:
    """Register a function of the package under a name."""

    def register(fn: Case) -> Case:
        if name in CASES:
            raise ValueError(f"name must be new; got {name!r} twice. Choose another.")
        CASES[name] = fn
        return fn

    return register


RENAMED = {
    "colored": "coloured",
    "fix_landmarks": "hold",
    "PivotedCholesky": "Greedy",
    "RandomlyPivotedCholesky": "RandomPivots",
    "sharded": "parallel",
    "InLogs": "arithmetic.InLogs",
    "MaxProduct": "arithmetic.MaxProduct",
    "SumProduct": "arithmetic.SumProduct",
}
"""{name of today: name in kbpjax 0.1}."""
OPTIONS = {"nonnegative": "positive", "evidence_model": "form", "colors": "colours"}
"""The same of arguments."""


class Package:
    """The package of a checkout, by the names of today whatever its age."""

    def __init__(self, module: ModuleType):
        self.module = module

    def __getattr__(self, name: str) -> Any:
        found = pick(self.module, name, RENAMED.get(name, name))
        if not inspect.isfunction(inspect.unwrap(found)):
            return found
        accepted = inspect.signature(found).parameters

        def call(*args: Any, **options: Any) -> Any:
            old = {OPTIONS[key]: key for key in options if key in OPTIONS and key not in accepted}
            return found(*args, **{next((o for o, n in old.items() if n == k), k): v for k, v in options.items()})

        return call


def pick(kbp: Any, *names: str) -> Any:
    """Return the first of some dotted names that the package has, submodules included."""
    for name in names:
        found: Any = kbp.module if isinstance(kbp, Package) else kbp
        try:
            for part in name.split("."):
                if isinstance(found, ModuleType) and not hasattr(found, part):
                    found = importlib.import_module(f"{found.__name__}.{part}")
                else:
                    found = getattr(found, part)
        except (AttributeError, ModuleNotFoundError):
            continue
        return found
    raise Missing(" or ".join(names))


def floats(values: Any) -> jax.Array:
    """Return an array in the default precision."""
    return jnp.asarray(np.asarray(values, np.float64).astype(jnp.result_type(float)))


def messages_of(solution: Any) -> dict[str, Any]:
    """Return the messages of a solution, and the coefficients that beliefs are computed from."""
    coefficients = solution.coefficients if hasattr(solution, "coefficients") else solution.messages
    return {"messages": passed_on(solution), "coefficients": coefficients}


def passed_on(solution: Any) -> jax.Array:
    """Return the messages in the form in which they are passed on."""
    return solution.passed_on if hasattr(solution, "passed_on") else solution.messages


# Graphs, each with its numbers of node types and edge types.


def grid(kbp: Any) -> tuple[Any, int, int]:
    return kbp.grid_graph(5, 6), 1, 1


def chain(kbp: Any) -> tuple[Any, int, int]:
    return kbp.chain_graph(7), 1, 1


def star(kbp: Any) -> tuple[Any, int, int]:
    return kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 13)], 13), 1, 1


def complete(kbp: Any) -> tuple[Any, int, int]:
    return kbp.Graph.from_edges([(a, b) for a in range(5) for b in range(a + 1, 5)], 5), 1, 1


def tree(kbp: Any) -> tuple[Any, int, int]:
    child = np.arange(1, 20)
    parent = np.random.default_rng(1).integers(0, child)
    node_type = np.arange(20) % 2
    ends = np.sort(node_type[np.stack([parent, child], axis=1)], axis=1)
    edge_type = ends[:, 0] + ends[:, 1]
    graph = kbp.Graph.from_edges(np.stack([parent, child], axis=1), 20, node_type=node_type, edge_type=edge_type)
    return graph, 2, 3


def forest(kbp: Any) -> tuple[Any, int, int]:
    return kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3), (5, 6), (6, 7)], 9), 1, 1


def typed(kbp: Any) -> tuple[Any, int, int]:
    """Return a random graph of 24 nodes of three types, with two kinds of edges between each pair of types."""
    rng = np.random.default_rng(2)
    node_type = rng.integers(0, 3, 24)
    every = np.array([(a, b) for a in range(24) for b in range(a + 1, 24)])
    edges = every[np.sort(rng.choice(len(every), 40, replace=False))]
    low, high = np.sort(node_type[edges], axis=1).T
    edge_type = 2 * (3 * low + high) + rng.integers(0, 2, len(edges))
    return kbp.Graph.from_edges(edges, 24, node_type=node_type, edge_type=edge_type), 3, 18


def rows(kbp: Any) -> tuple[Any, int, int]:
    """Return a grid whose rows have edge types of their own, more than get a matrix product each."""
    height, width = 10, 4
    across, down = np.repeat(np.arange(height), width - 1), np.repeat(np.arange(height, 2 * height - 1), width)
    return kbp.grid_graph(height, width, edge_type=np.concatenate([across, down])), 1, 2 * height - 1


def hub(kbp: Any) -> tuple[Any, int, int]:
    """Return a ring with two hubs of degrees 15 and 11, and so several classes of degrees."""
    ring = [(i, (i + 1) % 30) for i in range(30)]
    spokes = [(30, i) for i in range(15)] + [(31, i) for i in range(0, 30, 3)] + [(30, 32), (31, 32)]
    return kbp.Graph.from_edges(ring + spokes, 33), 1, 1


def isolated(kbp: Any) -> tuple[Any, int, int]:
    return kbp.Graph.from_edges([(1, 2), (2, 3), (3, 1), (5, 6)], 8, node_type=[0, 0, 0, 0, 1, 1, 1, 0]), 2, 2


def edgeless(kbp: Any) -> tuple[Any, int, int]:
    return kbp.Graph.from_edges(np.zeros((0, 2), int), 3), 1, 1


GRAPHS = {f.__name__: f for f in (grid, chain, star, complete, tree, forest, typed, rows, hub, isolated, edgeless)}
TREES = ("chain", "star", "tree", "forest", "edgeless")


def problem(
    kbp: Any,
    of: Callable[[Any], tuple[Any, int, int]],
    *,
    rank: int = 4,
    points: int = 6,
    positive: bool = False,
    shared: bool = False,
    signed: bool = False,
    near: bool = False,
    arithmetic: Any = None,
    seed: int = 0,
) -> tuple[Any, Any, jax.Array]:
    """Return operators, a graph, and local factors.

    `signed` operators make messages dip below the floor; `near` ones are close to those of the constant message, and
    converge quickly.
    """
    graph, node_types, edge_types = of(kbp)
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> jax.Array:
        if near:
            return floats(1 + 0.1 * rng.normal(size=shape)) / shape[-1]
        return floats(rng.normal(0.3, 1, shape) if signed else rng.uniform(0.2, 1, shape))

    of_nodes, of_edges = (1, 1) if shared else (node_types, 2 * edge_types)
    evaluate, project = draw(of_nodes, points, rank), draw(of_edges, rank, points)
    table = draw(of_edges, points, points) if positive else None
    prior = floats(rng.uniform(0.5, 1, (node_types, points)))
    floor = floats(np.linspace(1e-3, 2e-3, node_types))
    options = {} if arithmetic is None else {"arithmetic": arithmetic}
    operators = kbp.Operators(evaluate, project, floor, table, prior, **options)
    return operators, graph, floats(rng.uniform(0.3, 1, (graph.num_nodes, points)))


def arithmetics(kbp: Any) -> dict[str, Any]:
    sums, maxima, logs = (
        pick(kbp, name, f"arithmetic.{name}", f"engine.{name}", f"inference.{name}", f"update.{name}")
        for name in ("SumProduct", "MaxProduct", "InLogs")
    )
    return {"sums": sums(), "maxima": maxima(), "sums in logs": logs(sums()), "maxima in logs": logs(maxima())}


def schedule_of(kbp: Any, graph: Any, name: str) -> Any:
    return kbp.colored(graph) if name == "colored" else kbp.Synchronous()


def solve(kbp: Any, operators: Any, graph: Any, local: Any, **options: Any) -> Any:
    return kbp.run(operators, graph, local, **{"num_iters": ITERS, "damping": 0.0, **options})


# Messages of operators given as matrices.


def on_graph(kbp: Any, *, of: Any, schedule: str = "synchronous", kind: str = "plain") -> Any:
    operators, graph, local = problem(kbp, of, positive=kind == "positive", shared=kind == "shared")
    exponents = None
    if kind == "exponents":
        exponents = floats(np.random.default_rng(5).uniform(0.4, 1.2, graph.num_edges // 2))
    return messages_of(
        solve(kbp, operators, graph, local, schedule=schedule_of(kbp, graph, schedule), exponents=exponents)
    )


for _name, _of in GRAPHS.items():
    case(f"run/{_name}")(partial(on_graph, of=_of))
for _name in ("typed", "rows"):
    case(f"run/{_name}, shared operators")(partial(on_graph, of=GRAPHS[_name], kind="shared"))
for _name in ("grid", "typed", "hub", "isolated"):
    for _kind in ("positive", "exponents"):
        case(f"run/{_name}, {_kind}")(partial(on_graph, of=GRAPHS[_name], kind=_kind))
for _schedule, _names in (("colored", ("grid", "typed", "hub", "rows")),):
    for _name in _names:
        case(f"{_schedule}/{_name}")(partial(on_graph, of=GRAPHS[_name], schedule=_schedule))
    for _kind in ("positive", "exponents"):
        case(f"{_schedule}/typed, {_kind}")(partial(on_graph, of=typed, schedule=_schedule, kind=_kind))


def with_arithmetic(kbp: Any, *, of: Any, kind: str, positive: bool = False, schedule: str = "synchronous") -> Any:
    operators, graph, local = problem(kbp, of, arithmetic=arithmetics(kbp)[kind], positive=positive)
    return messages_of(solve(kbp, operators, graph, local, schedule=schedule_of(kbp, graph, schedule)))


for _kind in ("maxima", "sums in logs", "maxima in logs"):
    for _name in ("typed", "hub"):
        case(f"{_kind}/{_name}")(partial(with_arithmetic, of=GRAPHS[_name], kind=_kind))
for _kind in ("maxima", "sums in logs"):
    case(f"{_kind}/colored typed")(partial(with_arithmetic, of=typed, kind=_kind, schedule="colored"))
case("sums in logs/positive hub")(partial(with_arithmetic, of=hub, kind="sums in logs", positive=True))


@case("run/signed operators, floor acts")
def floor_acts(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, typed, signed=True)
    return messages_of(solve(kbp, operators, graph, local, num_iters=3))


@case("run/zeros in local factors")
def zeros(kbp: Any) -> Any:
    found = {}
    for name in ("sums", "sums in logs"):
        operators, graph, local = problem(kbp, hub, arithmetic=arithmetics(kbp)[name])
        local = jnp.where(jnp.arange(local.shape[1])[None] == jnp.arange(len(local))[:, None] % 6, 0, local)
        found[name] = passed_on(solve(kbp, operators, graph, local))
    return found


@case("run/no local factors")
def no_evidence(kbp: Any) -> Any:
    operators, graph, _ = problem(kbp, typed)
    return messages_of(solve(kbp, operators, graph, None))


@case("run/large ranks")
def large(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, grid, rank=17, points=31)
    return messages_of(solve(kbp, operators, graph, local))


@case("run/one number exponent")
def one_exponent(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, hub)
    return messages_of(solve(kbp, operators, graph, local, exponents=0.7))


@case("run/start from messages")
def warm(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, typed)
    start = floats(np.random.default_rng(8).uniform(0.1, 1, (graph.num_edges, 4)))
    once = solve(kbp, operators, graph, local, start=start, num_iters=2)
    return {"messages": once.messages, "go on": passed_on(solve(kbp, operators, graph, local, start=once, num_iters=2))}


@case("run/residuals")
def residuals(kbp: Any) -> Any:
    found = {}
    for name in ("synchronous", "colored"):
        operators, graph, local = problem(kbp, typed)
        found[name] = solve(kbp, operators, graph, local, schedule=schedule_of(kbp, graph, name)).residuals[:4]
    return found


@case("run/to a tolerance")
def to_tolerance(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, grid, near=True)
    solution = solve(kbp, operators, graph, local, num_iters=100, tol=3e-6)
    return {"messages": passed_on(solution), "converged": solution.converged}


@case("run/number of iterations to a tolerance")
def count(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, grid)
    return {"num_iters": solve(kbp, operators, graph, local, num_iters=100, tol=1e-3).num_iters}


@case("run/jit with the graph as an argument")
def jitted(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, typed)
    return {"messages": jax.jit(lambda *given: passed_on(solve(kbp, *given)))(operators, graph, local)}


@case("run/vmap over local factors")
def mapped(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, hub)
    batch = jnp.stack([local, local**2])
    return {"messages": jax.vmap(lambda local: passed_on(solve(kbp, operators, graph, local)))(batch)}


@case("run/permuted edges")
def permuted(kbp: Any) -> Any:
    rng = np.random.default_rng(6)
    edges = np.array([(i, (i + 1) % 12) for i in range(12)] + [(0, 6), (3, 9), (2, 7)])
    edges = np.where(rng.uniform(size=(len(edges), 1)) < 0.5, edges, edges[:, ::-1])[rng.permutation(len(edges))]

    def made(kbp: Any) -> tuple[Any, int, int]:
        return kbp.Graph.from_edges(edges, 12, edge_type=np.arange(len(edges)) % 3), 1, 3

    operators, graph, local = problem(kbp, made)
    return messages_of(solve(kbp, operators, graph, local)) | {"senders": graph.senders, "reverse": graph.reverse}


@case("colored/custom colors")
def own_colours(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, chain)
    return messages_of(solve(kbp, operators, graph, local, schedule=kbp.colored(graph, colors=np.arange(7) % 3)))


@case("tree reweighting/grid, hub, complete")
def reweighted(kbp: Any) -> Any:
    found = {}
    for of in (grid, hub, complete):
        operators, graph, local = problem(kbp, of, positive=of is grid)
        rho = kbp.tree_reweighting(graph)
        found[f"rho {of.__name__}"] = rho
        found[of.__name__] = passed_on(solve(kbp, operators, graph, local, exponents=rho))
    return found


@case("tree reweighting/colored")
def reweighted_colored(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, grid)
    options = {"exponents": kbp.tree_reweighting(graph), "schedule": kbp.colored(graph)}
    return messages_of(solve(kbp, operators, graph, local, **options))


@case("Anderson/first iterations")
def anderson_early(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, complete)
    return messages_of(solve(kbp, operators, graph, local, num_iters=3, acceleration=kbp.Anderson(3)))


@case("Anderson/fixed point")
def anderson_late(kbp: Any) -> Any:
    found = {}
    for name in ("synchronous", "colored"):
        operators, graph, local = problem(kbp, grid)
        options = {"schedule": schedule_of(kbp, graph, name), "acceleration": kbp.Anderson(5), "num_iters": 60}
        found[name] = passed_on(solve(kbp, operators, graph, local, **options))
    return found


@case("adaptive damping/falling residuals")
def adaptive(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, grid, near=True)
    return messages_of(solve(kbp, operators, graph, local, damping=kbp.AdaptiveDamping(), num_iters=4))


@case("adaptive damping/fixed point where the plain iteration swings")
def adaptive_late(kbp: Any) -> Any:
    graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
    differ = kbp.Operators(floats(np.eye(2)[None]), floats([[[1.0, 4.0], [4.0, 1.0]]]))
    local = floats([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
    return messages_of(solve(kbp, differ, graph, local, damping=kbp.AdaptiveDamping(), num_iters=400))


# Trees.


def exact(kbp: Any, *, of: Any, kind: str = "sums", positive: bool = False) -> Any:
    operators, graph, local = problem(kbp, of, arithmetic=arithmetics(kbp)[kind], positive=positive)
    return messages_of(kbp.run_tree(operators, graph, local))


for _name in TREES:
    case(f"run_tree/{_name}")(partial(exact, of=GRAPHS[_name]))
for _kind in ("maxima", "sums in logs", "maxima in logs"):
    for _name in ("star", "tree"):
        case(f"run_tree/{_name}, {_kind}")(partial(exact, of=GRAPHS[_name], kind=_kind))
case("run_tree/tree, positive")(partial(exact, of=tree, positive=True))


@case("run_tree/star of 59 factors in logs")
def wide_star(kbp: Any) -> Any:
    graph = kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 60)], 60)
    table = floats(np.random.default_rng(0).uniform(0.2, 1, (2, 4, 4)))
    in_logs = arithmetics(kbp)["sums in logs"]
    operators = kbp.Operators(floats(np.eye(4)[None]), table, floor=0.0, arithmetic=in_logs)
    local = floats(np.exp(-np.random.default_rng(1).uniform(0, 9, (60, 4))))
    return messages_of(kbp.run_tree(operators, graph, local))


@case("run_tree/star whose products underflow outside of logs")
def sharp_star(kbp: Any) -> Any:
    graph = kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 101)], 101)
    table = floats(np.eye(4)[None] + 1e-12)
    operators = kbp.Operators(floats(np.eye(4)[None]), table, floor=0.0, arithmetic=arithmetics(kbp)["sums in logs"])
    sharp = np.where(np.arange(4)[None] == np.arange(101)[:, None] * 4 // 101, 1, 1e-12)
    return messages_of(
        kbp.run_tree(operators, graph, floats(sharp * np.random.default_rng(1).uniform(0.9, 1, (101, 4))))
    )


# Estimates of the free energy.


@case("log_partition/trees and loops")
def free_energy(kbp: Any) -> Any:
    found = {}
    for of in (chain, star, tree):
        operators, graph, local = problem(kbp, of)
        found[of.__name__] = kbp.log_partition(operators, graph, local, kbp.run_tree(operators, graph, local))
    for of in (grid, typed, hub):
        for positive in (False, True):
            operators, graph, local = problem(kbp, of, positive=positive)
            solution = solve(kbp, operators, graph, local)
            found[f"{of.__name__} {positive}"] = kbp.log_partition(operators, graph, local, solution)
    return found


@case("log_partition/tree-reweighted")
def free_energy_reweighted(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, grid, positive=True)
    solution = solve(kbp, operators, graph, local, exponents=kbp.tree_reweighting(graph))
    return {"log_z": kbp.log_partition(operators, graph, local, solution)}


@case("log_partition/in logs")
def free_energy_in_logs(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, hub, arithmetic=arithmetics(kbp)["sums in logs"])
    return {"log_z": kbp.log_partition(operators, graph, local, solve(kbp, operators, graph, local))}


# Gradients.


def weighed(messages: jax.Array) -> jax.Array:
    """Return a scalar of messages that no symmetry makes stationary."""
    return jnp.sum(floats(np.random.default_rng(9).normal(size=messages.shape)) * messages**2)


def gradient(
    kbp: Any,
    *,
    of: Any,
    kind: str = "sums",
    schedule: str = "synchronous",
    positive: bool = False,
    exponents: float | None = None,
    near: bool = False,
    **options: Any,
) -> Any:
    """Differentiate with respect to operators, local factors and exponents."""
    operators, graph, local = problem(kbp, of, arithmetic=arithmetics(kbp)[kind], positive=positive, near=near)
    options = {"schedule": schedule_of(kbp, graph, schedule), "num_iters": 5, **options}
    power = None if exponents is None else jnp.full(graph.num_edges // 2, exponents)

    def loss(operators: Any, local: jax.Array, power: Any) -> jax.Array:
        return weighed(passed_on(solve(kbp, operators, graph, local, exponents=power, **options)))

    matrices, factors, powers = jax.jit(jax.grad(loss, (0, 1, 2)))(operators, local, power)
    found = {"evaluate": matrices.evaluate, "project": matrices.project, "local": factors}
    if exponents is not None:
        found["exponents"] = powers
    return found | ({"positive": pick(matrices, "nonnegative", "positive")} if positive else {})


for _name in ("grid", "typed", "hub", "isolated"):
    case(f"gradient/{_name}")(partial(gradient, of=GRAPHS[_name]))
case("gradient/colored typed")(partial(gradient, of=typed, schedule="colored"))
case("gradient/positive")(partial(gradient, of=typed, positive=True))
case("gradient/exponents")(partial(gradient, of=hub, exponents=0.8))
case("gradient/positive, exponents")(partial(gradient, of=grid, positive=True, exponents=0.8))
case("gradient/maxima")(partial(gradient, of=grid, kind="maxima"))
case("gradient/sums in logs")(partial(gradient, of=hub, kind="sums in logs"))


def implicit(kbp: Any, **options: Any) -> Any:
    tol = 1e-12 if jnp.result_type(float) == jnp.float64 else 1e-6
    if options.pop("anderson", False):
        options["acceleration"] = kbp.Anderson(4)
    return gradient(kbp, near=True, num_iters=200, tol=tol, **options)


for _name in ("typed", "hub"):
    case(f"implicit gradient/{_name}")(partial(implicit, of=GRAPHS[_name]))
case("implicit gradient/colored")(partial(implicit, of=typed, schedule="colored"))
case("implicit gradient/Anderson")(partial(implicit, of=grid, anderson=True))
case("implicit gradient/positive, exponents")(partial(implicit, of=grid, positive=True, exponents=0.8))


def forward(kbp: Any, **options: Any) -> Any:
    """Push a direction of local factors and operators through a run."""
    near = "tol" in options
    operators, graph, local = problem(kbp, hub, near=near)
    rng = np.random.default_rng(4)
    direction = jax.tree.map(lambda a: floats(rng.normal(size=a.shape)) * jnp.mean(a), (operators.project, local))

    def messages(project: jax.Array, local: jax.Array) -> jax.Array:
        changed = kbp.Operators(operators.evaluate, project, floor=operators.floor)
        return passed_on(solve(kbp, changed, graph, local, **options))

    tangent = jax.jit(lambda *given: jax.jvp(messages, given, direction)[1])
    return {"tangent": tangent(operators.project, local)}


case("forward mode/unrolled")(partial(forward, num_iters=5))


@case("forward mode/implicit")
def forward_implicit(kbp: Any) -> Any:
    return forward(kbp, num_iters=200, tol=1e-12 if jnp.result_type(float) == jnp.float64 else 1e-6)


@case("forward mode/over reverse")
def second(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, grid)

    def loss(local: jax.Array) -> jax.Array:
        return weighed(passed_on(solve(kbp, operators, graph, local, num_iters=3)))

    return {"product": jax.jit(lambda local: jax.jvp(jax.grad(loss), (local,), (local**2,))[1])(local)}


def tree_gradient(kbp: Any, *, of: Any, kind: str = "sums", positive: bool = False) -> Any:
    operators, graph, local = problem(kbp, of, arithmetic=arithmetics(kbp)[kind], positive=positive)

    def loss(operators: Any, local: jax.Array) -> jax.Array:
        return weighed(passed_on(kbp.run_tree(operators, graph, local)))

    def of_local(local: jax.Array) -> jax.Array:
        return passed_on(kbp.run_tree(operators, graph, local))

    matrices, factors = jax.jit(jax.grad(loss, (0, 1)))(operators, local)
    found = {"evaluate": matrices.evaluate, "project": matrices.project, "local": factors}
    return found | {"forward": jax.jit(lambda x: jax.jvp(of_local, (x,), (x**2,))[1])(local)}


for _name in ("star", "tree"):
    case(f"run_tree gradient/{_name}")(partial(tree_gradient, of=GRAPHS[_name]))
case("run_tree gradient/positive")(partial(tree_gradient, of=tree, positive=True))
case("run_tree gradient/star in logs")(partial(tree_gradient, of=star, kind="sums in logs"))


@case("gradient/log_partition")
def free_energy_gradient(kbp: Any) -> Any:
    operators, graph, local = problem(kbp, hub)

    def log_z(operators: Any, local: jax.Array) -> jax.Array:
        return kbp.log_partition(operators, graph, local, solve(kbp, operators, graph, local, num_iters=4))

    matrices, factors = jax.jit(jax.grad(log_z, (0, 1)))(operators, local)
    return {"project": matrices.project, "prior": matrices.prior, "local": factors}


# Learned models.

POINTS = np.linspace(-2, 2, 9)


def samples(count: int = 30, nodes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Draw samples of a chain of dependent variables in (-2.5, 2.5), and observations of them."""
    rng = np.random.default_rng(3)
    x = 2.5 * np.tanh(0.5 * rng.normal(size=(count, 1)) + 0.4 * np.cumsum(rng.normal(size=(count, nodes)), axis=1))
    return x, x + 0.4 * rng.normal(size=x.shape)


def evenly(kbp: Any) -> Any:
    """Return a choice of landmarks that does not depend on the samples, nor on rounding."""
    basis_of = pick(kbp, "features.cholesky_basis", "features.cholesky.cholesky_basis")

    class Evenly(pick(kbp, "features.LandmarkSelector", "features.Chooser")):
        @property
        def products(self) -> Any:
            return self

        def feature_map(self, kernel: Any, x: Any, eps: Any, max_rank: int) -> Any:
            return basis_of(kernel, floats(np.linspace(-2.5, 2.5, max_rank))), jnp.zeros(())

    return Evenly()


def given_features(kbp: Any) -> Any:
    """Return a choice of random features whose frequencies are given, so that no key decides."""
    basis_of = pick(kbp, "features.FourierBasis", "features.fourier.FourierBasis")
    frequencies = floats(np.random.default_rng(0).normal(size=2))

    class Given(pick(kbp, "features.LandmarkSelector", "features.Chooser")):
        @property
        def products(self) -> Any:
            return evenly(kbp)

        def feature_map(self, kernel: Any, x: Any, eps: Any, max_rank: int) -> Any:
            return basis_of(frequencies, kernel.bandwidth, x.dtype), jnp.zeros(())

    return Given()


RULES: dict[str, tuple[Callable[[Any], Any], float]] = {
    "full rank": (lambda kbp: kbp.FullRank(), 0.4),
    "linear time": (lambda kbp: kbp.LinearTime(max_rank=5, features=evenly(kbp)), 1.0),
    "constant time": (lambda kbp: kbp.ConstantTime(max_rank=5, tensor_rank=7, features=evenly(kbp)), 1.0),
    "random features given": (lambda kbp: kbp.ConstantTime(max_rank=5, features=given_features(kbp)), 1.5),
    "greedy": (lambda kbp: kbp.ConstantTime(eps=1e-6, max_rank=4), 2.5),
    "random pivots": (lambda kbp: kbp.ConstantTime(eps=1e-6, max_rank=4, features=kbp.RandomlyPivotedCholesky(0)), 2.5),
    "random features": (lambda kbp: kbp.ConstantTime(eps=1e-6, max_rank=4, features=kbp.RandomFourier(4)), 2.5),
}
"""{name: (update rule, bandwidth at which its bases are well-conditioned)}"""


def model_of(kbp: Any, rule: str = "constant time", **options: Any) -> tuple[Any, Any]:
    """Learn a model from samples of a chain; return it with a loopy graph of its types."""
    x, y = samples()
    if rule == "full rank":  # every sample is a landmark
        x = np.random.default_rng(4).permutation(np.linspace(-2.5, 2.5, 12)).reshape(3, 4)
        y = x[:, ::-1]
    made, width = RULES[rule]
    data = kbp.pool(kbp.chain_graph(4), floats(x), floats(y))
    settings = {"kernel": kbp.RBF(width), "obs_kernel": kbp.RBF(width), "ridge": 1e-2, **options}
    return kbp.fit(data, rule=made(kbp), **settings), kbp.grid_graph(3, 3)


SEEN = np.random.default_rng(7).normal(size=9)


def answers(kbp: Any, model: Any, graph: Any, evidence: Any, **options: Any) -> dict[str, Any]:
    """Return messages and beliefs."""
    solution = solve(kbp, model, graph, evidence, **options)
    belief = kbp.beliefs(model, graph, evidence, solution, floats(POINTS))
    return {"messages": passed_on(solution), "beliefs": belief.weights}


def learned(kbp: Any, *, rule: str, **options: Any) -> Any:
    model, graph = model_of(kbp, rule, **options)
    evidence = kbp.observe(model, graph, floats(SEEN))
    operators = {"evaluate": model.operators.evaluate, "project": model.operators.project}
    return answers(kbp, model, graph, evidence) | operators | {"local": evidence.local}


for _rule in RULES:
    case(f"learned/{_rule}")(partial(learned, rule=_rule))


@case("learned/clipped")
def clipped(kbp: Any) -> Any:
    return learned(kbp, rule="constant time", nonnegative=kbp.Clipped())


@case("learned/constrained fit")
def constrained(kbp: Any) -> Any:
    return learned(kbp, rule="constant time", nonnegative=kbp.ConstrainedFit())


@case("learned/several ridges, floor")
def ridges(kbp: Any) -> Any:
    return learned(kbp, rule="constant time", ridge={0: 3e-2}, obs_ridge={0: 1e-1}, floor=1e-2)


@case("learned/held landmarks")
def held(kbp: Any) -> Any:
    x, y = samples()
    data = kbp.pool(kbp.chain_graph(4), floats(x), floats(y))
    given = {"kernel": kbp.RBF(2.5), "obs_kernel": kbp.RBF(2.5)}
    rule = kbp.fix_landmarks(data, rule=RULES["greedy"][0](kbp), **given)
    given = {"kernel": kbp.RBF(1.5), "obs_kernel": kbp.RBF(1.5)}
    return {"project": kbp.fit(data, rule=rule, ridge=1e-2, **given).operators.project}


def typed_model(kbp: Any) -> tuple[Any, Any]:
    """Learn a model of scalar and vector variables, of which only the scalar ones are observed."""
    rng = np.random.default_rng(11)
    a = rng.normal(size=40)
    b, c = a + 0.5 * rng.normal(size=40), a[:, None] + 0.5 * rng.normal(size=(40, 2))
    y = a + 0.3 * rng.normal(size=40)
    data = kbp.TrainingData(
        {0: (floats(a), floats(b)), 1: (floats(a), floats(c))},
        {0: floats(np.concatenate([a, b])), 1: floats(c)},
        {0: (floats(a), floats(y))},
        ends={0: (0, 0), 1: (0, 1)},
        degrees={0: 3, 1: 2},
    )
    rule = kbp.ConstantTime(eps=1e-6, max_rank=5)
    kernels = {"kernel": {0: kbp.RBF(1.2), 1: kbp.RBF(2.0)}, "obs_kernel": {0: kbp.RBF(1.0)}}
    edges, node_type = [(0, 1), (1, 2), (2, 0), (0, 3), (2, 3), (1, 4)], [0, 0, 0, 1, 1]
    graph = kbp.Graph.from_edges(edges, 5, node_type=node_type, edge_type=[0, 0, 0, 1, 1, 1])
    return kbp.fit(data, rule=rule, ridge=1e-2, **kernels), graph


@case("learned/typed, observations and points by type")
def by_type(kbp: Any) -> Any:
    model, graph = typed_model(kbp)
    evidence = kbp.observe(model, graph, {0: floats([0.3, -0.5, 0.0])}, mask=np.array([True, True, False, True, True]))
    evidence = evidence * kbp.clamp(model, graph, [4], floats([[0.5, -0.5]]))
    solution = solve(kbp, model, graph, evidence)
    points = {0: floats(POINTS), 1: floats(np.random.default_rng(1).normal(size=(7, 2)))}
    belief = kbp.beliefs(model, graph, evidence, solution, points)
    pairs = kbp.edge_beliefs(kbp.Posterior.of(model, graph, evidence, solution, points), [(0, 3), (2, 3)])
    found = {f"beliefs {v}": belief[v].weights for v in (0, 1)} | {"pairs": pairs.weights}
    return found | {"messages": passed_on(solution), "local": evidence.local}


# Evidence.


def evidences(kbp: Any, model: Any, graph: Any) -> dict[str, Callable[[], Any]]:
    seen, some = floats(SEEN), np.arange(9) % 2 == 0

    def likelihood() -> Any:
        return kbp.likelihood(model, graph, lambda x: jnp.exp(-((seen[:, None] - x[None]) ** 2)))

    def clamp(*nodes: int, **options: Any) -> Any:
        return kbp.clamp(model, graph, list(nodes), floats(np.linspace(-1, 1, len(nodes))), **options)

    return {
        "observations": lambda: kbp.observe(model, graph, seen),
        "density ratio": lambda: kbp.observe(model, graph, seen, evidence_model=kbp.DensityRatio()),
        "mask": lambda: kbp.observe(model, graph, jnp.where(some, seen, jnp.nan), mask=some),
        "power": lambda: kbp.observe(model, graph, seen) ** 0.5,
        "likelihood": likelihood,
        "likelihood of some types": lambda: kbp.likelihood(
            model, graph, {0: jax.tree_util.Partial(lambda of, x: 1 / (1 + (of[:, None] - x[None]) ** 2), seen)}
        ),
        "clamps": lambda: clamp(0, 4, 8),
        "clamps, density ratio": lambda: clamp(1, 3, evidence_model=kbp.DensityRatio()),
        "product": lambda: kbp.observe(model, graph, seen) * likelihood() ** 0.7 * clamp(2, 6),
        "two observations": lambda: kbp.observe(model, graph, seen) * kbp.observe(model, graph, -seen, mask=some) ** 2,
    }


def evidence_case(kbp: Any, *, name: str, schedule: str = "synchronous", **options: Any) -> Any:
    model, graph = model_of(kbp, **options)
    evidence = evidences(kbp, model, graph)[name]()
    found = answers(kbp, model, graph, evidence, schedule=schedule_of(kbp, graph, schedule))
    return found | {"local": evidence.local}


for _name in (
    "observations",
    "density ratio",
    "mask",
    "power",
    "likelihood",
    "likelihood of some types",
    "clamps",
    "clamps, density ratio",
    "product",
    "two observations",
):
    case(f"evidence/{_name}")(partial(evidence_case, name=_name))
for _schedule in ("colored",):
    case(f"evidence/product, {_schedule}")(partial(evidence_case, name="product", schedule=_schedule))


@case("evidence/clamps on positive updates")
def clamped_positive(kbp: Any) -> Any:
    return evidence_case(kbp, name="product", nonnegative=kbp.Clipped())


@case("evidence/clamps on a tree")
def clamped_tree(kbp: Any) -> Any:
    model, _ = model_of(kbp)
    graph = kbp.chain_graph(9)
    evidence = evidences(kbp, model, graph)["product"]()
    solution = kbp.run_tree(model, graph, evidence)
    return {
        "messages": passed_on(solution),
        "beliefs": kbp.beliefs(model, graph, evidence, solution, floats(POINTS)).weights,
    }


# Beliefs and what is read of them.


def solved(kbp: Any, name: str = "product", **options: Any) -> tuple[Any, Any, Any, Any]:
    model, graph = model_of(kbp, **options)
    evidence = evidences(kbp, model, graph)[name]()
    return model, graph, evidence, solve(kbp, model, graph, evidence)


@case("beliefs/marginals")
def marginals(kbp: Any) -> Any:
    given = solved(kbp)
    x = floats(samples()[0].reshape(-1))
    names = {"MeanEmbedding": (), "Parzen": (kbp.RBF(0.5), x), "Empirical": ()}
    return {
        name: kbp.beliefs(*given, floats(POINTS), marginal=getattr(kbp, name)(*arguments)).weights
        for name, arguments in names.items()
    }


@case("beliefs/with exponents and hubs")
def beliefs_of_hub(kbp: Any) -> Any:
    model, _ = model_of(kbp)
    graph, *_ = hub(kbp)
    evidence = kbp.observe(model, graph, floats(np.random.default_rng(2).normal(size=33)))
    solution = solve(kbp, model, graph, evidence, exponents=0.8, num_iters=4)
    return {"beliefs": kbp.beliefs(model, graph, evidence, solution, floats(POINTS)).weights}


@case("beliefs/log_belief and its gradient")
def log_belief(kbp: Any) -> Any:
    given = solved(kbp)
    own = floats(np.random.default_rng(5).normal(size=(9, 3)))
    return {
        "logs": kbp.log_belief(kbp.Posterior.of(*given), own),
        "slopes": jax.grad(lambda own: jnp.sum(kbp.log_belief(kbp.Posterior.of(*given), own)))(own),
    }


@case("edge_beliefs/observed and clamped ends")
def pair_beliefs(kbp: Any) -> Any:
    edges = [(0, 1), (4, 1), (2, 5), (7, 6)]
    return {
        name: kbp.edge_beliefs(kbp.Posterior.of(*solved(kbp, name), floats(POINTS)), edges).weights
        for name in ("product", "clamps")
    }


@case("edge_beliefs/with exponents")
def pair_beliefs_reweighted(kbp: Any) -> Any:
    model, graph = model_of(kbp)
    evidence = kbp.observe(model, graph, floats(SEEN))
    solution = solve(kbp, model, graph, evidence, exponents=kbp.tree_reweighting(graph))
    return {
        "pairs": kbp.edge_beliefs(
            kbp.Posterior.of(model, graph, evidence, solution, floats(POINTS)), [(0, 1), (4, 1)]
        ).weights
    }


@case("log_partition/learned")
def learned_free_energy(kbp: Any) -> Any:
    return {name: kbp.log_partition(*solved(kbp, name)) for name in ("observations", "likelihood")}


@case("beliefs/point summaries")
def summaries(kbp: Any) -> Any:
    given = solved(kbp)
    belief = kbp.beliefs(*given, floats(POINTS))
    found = {name: getattr(kbp, name)(belief) for name in ("mode", "mean", "variance")}
    vectors = kbp.Belief(belief.points[:, None], belief.weights)
    return found | {
        "covariance": kbp.covariance(vectors),
        "expectation": kbp.expectation(belief, lambda x: x**3),
        "temper": kbp.temper(belief, 1.5).weights,
        "log_density": kbp.log_density(belief, floats(SEEN / 2)),
    }


@case("beliefs/quantiles")
def quantiles(kbp: Any) -> Any:
    belief = kbp.beliefs(*solved(kbp), floats(POINTS))
    return {"quantile": kbp.quantile(belief, 0.3), "interval": jnp.stack(kbp.interval(belief, 0.8))}


@case("beliefs/refine_mode")
def refined(kbp: Any) -> Any:
    given = solved(kbp)
    return {"modes": kbp.refine_mode(kbp.Posterior.of(*given, kbp.beliefs(*given, floats(POINTS)).points))}


@case("gradient/bandwidths, ridge and observations")
def bandwidths(kbp: Any) -> Any:
    return whole_gradient(kbp, "run")


@case("gradient/bandwidths through run_tree")
def bandwidths_tree(kbp: Any) -> Any:
    return whole_gradient(kbp, "run_tree")


def whole_gradient(kbp: Any, how: str) -> Any:
    """Differentiate the beliefs with respect to all numbers from samples on, the landmarks held."""
    x, y = samples()
    data = kbp.pool(kbp.chain_graph(4), floats(x), floats(y))
    rule = kbp.fix_landmarks(data, kernel=kbp.RBF(1.0), obs_kernel=kbp.RBF(1.0), rule=RULES["constant time"][0](kbp))
    graph = kbp.grid_graph(3, 3) if how == "run" else kbp.chain_graph(9)

    def loss(numbers: dict[str, jax.Array]) -> jax.Array:
        kernels = {"kernel": kbp.RBF(numbers["kernel"]), "obs_kernel": kbp.RBF(numbers["obs_kernel"])}
        model = kbp.fit(data, rule=rule, ridge=numbers["ridge"], **kernels)
        evidence = kbp.observe(model, graph, numbers["seen"]) * kbp.clamp(model, graph, [5], numbers["clamped"])
        run = kbp.run_tree(model, graph, evidence) if how == "run_tree" else solve(kbp, model, graph, evidence)
        belief = kbp.beliefs(model, graph, evidence, run, floats(POINTS))
        return jnp.sum((kbp.mean(belief) - 0.3) ** 2)

    numbers = {"kernel": 1.1, "obs_kernel": 0.9, "ridge": 1e-2, "seen": SEEN, "clamped": [0.4]}
    return jax.jit(jax.grad(loss))({name: floats(value) for name, value in numbers.items()})


# One graph over several devices.


def blocks(kbp: Any, *, of: Any, positive: bool = False, exponents: float | None = None, own: bool = False) -> Any:
    if len(jax.devices()) < DEVICES:
        raise ValueError(f"there must be {DEVICES} devices; got {len(jax.devices())}. Set XLA_FLAGS.")
    operators, graph, local = problem(kbp, of, positive=positive)
    parts = np.arange(graph.num_nodes) * 7 % DEVICES if own else None
    partition = kbp.sharded.partition_graph(graph, DEVICES, parts=parts)
    given = {"num_iters": ITERS, "damping": 0.0, "exponents": exponents}
    return messages_of(kbp.run(operators, graph, local, schedule=partition, **given))


case("partition/grid")(partial(blocks, of=grid))
case("partition/typed")(partial(blocks, of=typed))
case("partition/hub, exponents")(partial(blocks, of=hub, exponents=0.8))
case("partition/grid, positive")(partial(blocks, of=grid, positive=True))
case("partition/isolated, parts given")(partial(blocks, of=isolated, own=True))


@case("partition/evidence with clamps")
def blocks_with_clamps(kbp: Any) -> Any:
    model, graph = model_of(kbp)
    evidence = evidences(kbp, model, graph)["product"]()
    partition = kbp.sharded.partition_graph(graph, DEVICES)
    return messages_of(kbp.run(model, graph, evidence, schedule=partition, num_iters=ITERS, damping=0.0))


def blocks_gradient(kbp: Any, **options: Any) -> Any:
    operators, graph, local = problem(kbp, grid, near="tol" in options)
    partition = kbp.sharded.partition_graph(graph, DEVICES)

    def loss(local: jax.Array) -> jax.Array:
        return weighed(passed_on(kbp.run(operators, graph, local, schedule=partition, damping=0.0, **options)))

    return {"local": jax.jit(jax.grad(loss))(local)}


case("partition/gradient")(partial(blocks_gradient, num_iters=4))


@case("partition/implicit gradient")
def blocks_implicit(kbp: Any) -> Any:
    return blocks_gradient(kbp, num_iters=100, tol=1e-12 if jnp.result_type(float) == jnp.float64 else 1e-6)


# Learning in pieces.


@case("streaming/fit_chunks")
def streamed(kbp: Any) -> Any:
    x, y = samples(count=60, nodes=2)
    arrays = {"edges": {0: (x[:, 0], x[:, 1])}, "nodes": {0: x.reshape(-1)}}
    arrays |= {"observations": {0: (x.reshape(-1), y.reshape(-1))}}
    arrays = jax.tree.map(lambda a: np.asarray(floats(a)), arrays)
    kernels = {"kernel": kbp.RBF(2.5), "obs_kernel": kbp.RBF(2.5)}
    chunks, rule = kbp.chunked(**arrays, size=16), RULES["greedy"][0](kbp)
    model = kbp.fit_chunks(chunks, rule=rule, ridge=1e-2, **kernels)
    return {"project": model.operators.project, "expectation": model.observations[0].expectation}


# Baselines.


@case("discrete/fit, from_potentials")
def discrete(kbp: Any) -> Any:
    baseline = pick(kbp, "baselines.discrete")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (40, 6))
    graph, loops = kbp.chain_graph(6), kbp.grid_graph(3, 3)
    model = baseline.fit(kbp.pool(graph, x), pseudo_count=1.0)
    found = {"fit": passed_on(solve(kbp, model, loops, None))}
    tables = rng.uniform(0.3, 1, (1, 3, 3))
    factors = floats(rng.uniform(0.3, 1, (9, 3)))
    for name, arithmetic in arithmetics(kbp).items():
        model = baseline.from_potentials([0, 1, 2], floats([1.0, 2.0, 1.5]), floats(tables), arithmetic=arithmetic)
        evidence = kbp.likelihood(model, loops, lambda x: factors)
        solution = solve(kbp, model, loops, evidence)
        found[name] = kbp.beliefs(model, loops, evidence, solution, np.arange(3)).weights
        if "maxima" not in name:
            found[f"log Z, {name}"] = kbp.log_partition(model, loops, evidence, solution)
    return found


@case("gaussian/run, fit, beliefs")
def gaussian(kbp: Any) -> Any:
    baseline = pick(kbp, "baselines.gaussian")
    loops, seen = kbp.grid_graph(3, 3), floats(SEEN)
    old = not hasattr(baseline, "likelihood")  # evidence was part of the model
    if old:
        model, known = baseline.thin_membrane(loops, seen, noise=0.5, edge_precision=1.0), ()
    else:
        model = baseline.thin_membrane(loops, edge_precision=1.0)
        known = (baseline.likelihood(model, loops, seen, noise=0.5),)
    solution = baseline.run(model, loops, *known, num_iters=30, damping=0.0)
    data = kbp.pool(kbp.chain_graph(4), *map(floats, samples()))
    template = baseline.fit(data, ridge=0.1)
    chain = kbp.chain_graph(5)
    fitted = baseline.run(template.build(chain) if old else template, chain, num_iters=10, damping=0.0)
    given = (solution,) if old else (model, loops, *known, solution)
    return {
        "mean": solution.mean,
        "covariance": solution.covariance,
        "beliefs": baseline.beliefs(*given, floats(POINTS)[:, None]).weights,
        "template": fitted.mean,
        "walk": baseline.walk_summability(model, loops, *known),
    }


def pairwise_model(kbp: Any) -> tuple[Any, Any, Any]:
    """Return a chain model of mixtures given by number, and known evidence."""
    density, pairwise, mixtures = (pick(kbp, f"baselines.{name}") for name in ("density", "pairwise", "mixtures"))
    weights, x, one = floats(np.full(5, 0.2)), floats(np.linspace(-2, 2, 5)[:, None]), floats([1.0])
    node, near = (
        pick(mixtures, "GaussianMixture", "Mixture")(weights, x, one),
        density.ConditionalDensity(weights, x, x, one, one),
    )
    edge = pairwise.Conditionals().edge(near, near, node, node)
    model = pairwise.PairwiseMRF(*jax.tree.map(lambda a: a[None], (node, edge)))
    graph, seen = kbp.chain_graph(4), floats(SEEN[:4])
    return model, graph, kbp.likelihood(model, graph, lambda x: jnp.exp(-((seen[:, None] - x) ** 2)))


@case("particle and expectation particle/run")
def particle(kbp: Any) -> Any:
    plain = pick(kbp, "baselines.particle")
    expectation = pick(kbp, "baselines.expectation_particle.run", "baselines.particle.run_expectation")
    model, graph, evidence = pairwise_model(kbp)
    given = {"num_particles": 8, "num_iters": 2, "damping": 0.0, "key": jax.random.key(0)}
    found = {}
    for name, run in (("particle", plain.run), ("expectation", expectation)):
        solution = run(model, graph, evidence, **given)
        found[name] = plain.mean(solution)
        found[f"beliefs of {name}"] = plain.beliefs(model, graph, evidence, solution, floats(POINTS)).weights
    return found


@case("mixture/run")
def mixture(kbp: Any) -> Any:
    baseline = pick(kbp, "baselines.nonparametric", "baselines.mixture")
    model, graph, evidence = pairwise_model(kbp)
    found = {}
    for sampler in ("Gibbs", "Multiscale", "Exact"):
        given = {"num_components": 6, "num_iters": 2, "sampler": pick(baseline, f"{sampler}Sampler", sampler)()}
        given |= {"damping": 0.0} if "damping" in inspect.signature(baseline.run).parameters else {}
        solution = baseline.run(model, graph, evidence, key=jax.random.key(1), **given)
        found[sampler] = baseline.beliefs(model, graph, evidence, solution, floats(POINTS)).weights
    return found


@case("pairwise/fit with a key")
def pairwise_fit(kbp: Any) -> Any:
    pairwise = pick(kbp, "baselines.pairwise")
    data = kbp.pool(kbp.chain_graph(4), floats(samples()[0]))
    name = "num_centers" if "num_centers" in inspect.signature(pairwise.fit).parameters else "num_centres"
    model = pairwise.fit(data=data, key=jax.random.key(0), **{name: 10})  # in any order of versions
    return {"weights": model.edges.sender.weights}


@case("density/parzen")
def parzen(kbp: Any) -> Any:
    found = pick(kbp, "baselines.density.fit_parzen", "baselines.density.parzen")(floats(SEEN))
    return {"means": found.means, "weights": found.weights, "bandwidth": found.bandwidth}


@case("ep/logistic regression")
def logistic(kbp: Any) -> Any:
    rng = np.random.default_rng(0)
    x = floats(rng.normal(size=(12, 2)))
    posterior = kbp.ep.logistic_regression(x, x[:, 0] > 0, num_sweeps=3)
    return {"mean": posterior.mean, "covariance": posterior.covariance}
