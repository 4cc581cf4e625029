"""`infer`: the posterior in one call, by the method that suits the graph.

A forest is solved exactly. On a graph with cycles, nonnegative tree-reweighted messages are iterated to a tolerance,
color by color and with Anderson acceleration: of the methods that `experiments.convergence` compares, the one that
converged in all cases. Models of given tables (`kbpjax.baselines.discrete`) are solved by belief propagation with
damping 1/2, color by color: exponents would change the potentials.
"""

import functools
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import warn
from kbpjax._public import public
from kbpjax.graphs.graph import Graph, StaticGraph
from kbpjax.graphs.spanning_trees import NUM_TREES, has_large_component, tree_reweighting
from kbpjax.inference.acceleration import Anderson
from kbpjax.inference.diagnostics import ConvergenceWarning, MarginWarning, NotConverged, RelationWarning, check
from kbpjax.inference.loopy import Solution, run
from kbpjax.inference.schedules import Colored, Schedule, colored
from kbpjax.inference.tree import run_tree
from kbpjax.learning.labels import Values
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.evidence import Evidence, observe
from kbpjax.posterior.iterated import iterated_model, with_nonnegative
from kbpjax.posterior.marginals import Marginal
from kbpjax.posterior.posterior import Posterior

DAMPING = 0.5
"""Damping for models of given tables: they keep their zeros, which extrapolation by `Anderson` would move."""


@public
def infer(
    model: KernelMRF,
    graph: Graph,
    y: Values | Mapping[int, Values] | None = None,
    *,
    mask: Numbers | None = None,
    evidence: Evidence | None = None,
    points: Values | Mapping[int, Values] | None = None,
    marginal: Marginal | None = None,
    tol: ScalarLike = 1e-3,
    num_iters: int = 200,
    schedule: Schedule | None = None,
) -> Posterior:
    """Return the posterior of all nodes given observations, by the method that suits the graph.

    A forest is solved exactly (`run_tree`). On a graph with cycles, nonnegative tree-reweighted messages are iterated
    to a tolerance, with the schedule `colored(graph)` and Anderson acceleration. Evidence model, power, temperature and
    the factor of the exponents (`model.reweighting`) are the model's.
    The long form gives the same numbers: `observe`, `run_tree` or `run`, and `Posterior.of`.

    A model of tables, of `kbpjax.baselines.discrete`, is solved by belief propagation (exponents 1) with damping 1/2
    and that schedule, so that the potentials are those that were given.

    Works under `jax.jit`, `jax.vmap` and `jax.grad` for a graph that is not traced. There, no warning is given: look at
    `posterior.solution.converged` of the result.

    Args:
        model: the model.
        graph: the graph; the model must have all its types.
        y: observations, as in `observe`: one for each node [node, *obs_dim], or {node type: observations}; NaN where
            missing. None, or all missing: no observations, so that beliefs are those of the model alone.
        mask: observed nodes [node]; None: all nodes whose observation is not NaN.
        evidence: further evidence, of `clamp`, `likelihood` or `observe`; it is multiplied with that of y.
        points: candidate points of the beliefs, as in `beliefs`. None: those of the model, chosen from its training
            samples (`model.candidates`).
        marginal: the estimate of the marginal, as in `beliefs`.
        tol: largest residual at which iterations stop.
        num_iters: largest number of iterations.
        schedule: the schedule of iterations, also on a forest; a partition of `kbpjax.sharded` runs on several devices.
            None: `colored(graph)`, and exact messages on a forest.

    Returns:
        The posterior, which every summary takes: `mean(posterior)`, `interval(posterior, 0.9)`, and so on.

    Raises:
        ValueError: as `observe`, `run` and `beliefs`; no candidates.

    Warns:
        MarginWarning: the nodes of the training data have own margins (`fit(margins=)`), and their number differs.
        RelationWarning: edges of the training data have own relations (`fit(sharing=)`), and the graph lacks some; or
            relations vary with features of edges, and the graph has none.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> rng = np.random.default_rng(0)
        >>> graph, x = kbp.grid_graph(4, 4), rng.normal(size=(60, 1)) + 0.3 * rng.normal(size=(60, 16))
        >>> model = kbp.fit(
        ...     kbp.pool(graph, x, x + rng.normal(size=x.shape)), kernel=kbp.RBF(0.7), obs_kernel=kbp.RBF(0.7)
        ... )
        >>> posterior = kbp.infer(model, graph, np.full(16, 1.0))
        >>> bool(posterior.solution.converged), bool((kbp.mean(posterior) > 0.4).all())
        (True, True)
    """
    _warn_of_margins(model, graph)
    _warn_of_features(model, graph)
    graph = model.graph_of(graph)
    _warn_of_relations(model, graph)
    if y is not None:
        observed = observe(model, graph, y, mask=mask)
        evidence = observed if evidence is None else observed * evidence
    else:
        _checks.require(mask is None, "mask", "must be None without y", "a mask", "Pass y, or leave mask out.")
    by = recipe(graph, exact=schedule is None, reweighted=not model.has_potentials)
    solution = solve(model, graph, evidence, by, tol=tol, num_iters=num_iters, schedule=schedule)
    posterior = Posterior.of(model, graph, evidence, solution, points, marginal=marginal)
    warn_unless_converged(solution, of_tables=model.has_potentials)
    return posterior


def _warn_of_margins(model: KernelMRF, graph: Graph) -> None:
    """Warn if a graph has another number of nodes than the margins of the model."""
    for v, count, *_ in graph.node_types:
        known = len(model.margins[v]) if v in model.margins else count
        if count != known:
            got = f"{count} nodes of type {v}, and the model has margins of {known}"
            fix = "Fit with margins='type' for graphs of other sizes."
            warn(f"graph: has {got}: the location and scale of all nodes together are used. {fix}", MarginWarning)


def _warn_of_features(model: KernelMRF, graph: Graph) -> None:
    """Warn if relations vary with features of edges that a graph does not have."""
    if model.cells and graph.edge_features is None and not _checks.is_traced(graph):
        known = {kind for one in model.cells for kind in one.types} | {kind for *_, kind, _ in model.own_edges}
        if not any(k in known for k, *_ in graph.edge_types):
            fix = "Build it with edge_features."
            text = "graph: has no features of edges, with which the relations vary: those of edge types are used"
            warn(f"{text}. {fix}", RelationWarning)


def _warn_of_relations(model: KernelMRF, graph: Graph) -> None:
    """Warn of edges with the relations of their types, in a graph that lacks edges with separate relations."""
    if not model.own_edges:
        return
    known, present = {own for *_, own, _ in model.own_edges}, {k for k, *_ in graph.edge_types}
    others = sum(k not in known for k in present)
    if others and not known <= present:
        got = f"{len(known & present)} of the {len(known)} edges that have relations of their own"
        fix = "Number nodes and direct edges as in training, or fit with sharing='type' for other graphs."
        warn(f"graph: has {got}: its other edges have the relations of their types. {fix}", RelationWarning)


class Recipe(eqx.Module):
    """What the iterations on a graph with cycles need: exponents of `tree_reweighting` or None, and the schedule."""

    exponents: Array | None
    schedule: Colored


def recipe(graph: Graph, *, exact: bool = True, reweighted: bool = True) -> Recipe | None:
    """Return how `infer` solves a graph with cycles; None for a forest to be solved exactly, and without edges."""
    if (exact and graph.forest is not None) or graph.num_edges == 0:
        return None
    fix = "Leave the graph out of the arguments of jax.jit, or choose a schedule: kbpjax.run(..., schedule=...)."
    _checks.require(not _checks.is_traced(graph), "graph", "must be known", "a traced graph", fix)
    return _recipe(StaticGraph(graph), jnp.result_type(float), reweighted)


@functools.lru_cache(maxsize=8)
def _recipe(fixed: StaticGraph, dtype: Any, reweighted: bool) -> Recipe:
    del dtype  # of the exponents: another one after jax_enable_x64 has changed
    graph = fixed.graph
    with jax.ensure_compile_time_eval():  # of index work, inside jax.jit
        num_trees = NUM_TREES if has_large_component(graph) else None  # exact ones of a large component take long
        return Recipe(tree_reweighting(graph, num_trees=num_trees) if reweighted else None, colored(graph))


def solve(
    model: KernelMRF,
    graph: Graph,
    evidence: Evidence | None,
    by: Recipe | None,
    *,
    tol: ScalarLike | None = 1e-3,
    num_iters: int = 200,
    exponents: Array | None = None,
    schedule: Schedule | None = None,
) -> Solution:
    """Return the solution by `recipe(graph)`, exact without one; other exponents or schedules replace the recipe's."""
    if by is None:
        return run_tree(with_nonnegative(model, None), graph, evidence)
    model = iterated_model(model)
    return run(
        model,
        graph,
        evidence,
        num_iters=num_iters,
        tol=tol,
        damping=DAMPING if model.has_potentials else 0.0,
        exponents=_reweighted(model, by.exponents) if exponents is None else exponents,
        schedule=by.schedule if schedule is None else schedule,
        acceleration=None if model.has_potentials else Anderson(),
    )


def _reweighted(model: KernelMRF, appearance: Array | None) -> Array | None:
    """Return the exponents of the model: edge appearance probabilities times its factor, at most 1."""
    if appearance is None:
        return None
    return jnp.minimum(appearance * model.reweighting.astype(appearance.dtype), 1)


def warn_unless_converged(solution: Solution, *, of_tables: bool = False) -> None:
    """Warn if the messages have not converged; under tracing, do nothing."""
    if _checks.is_traced(solution.converged) or bool(jnp.all(solution.converged)):
        return
    try:
        check(solution)
    except NotConverged as error:
        smoother = "a larger ridge or a wider kernel in fit"
        otherwise = "kbpjax.run with other dampings" if of_tables else f"smoother operators: {smoother}"
        advice = f"More iterations: num_iters=1000. Otherwise {otherwise}."
        reason = str(error).partition(". ")[0]
        warn(f"the messages have not converged: {reason}. {advice}", ConvergenceWarning)
