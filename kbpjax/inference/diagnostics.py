"""Convergence diagnostics: checks with advice, the spectral radius of an iteration, oscillations."""

from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, ScalarLike

from kbpjax import _checks
from kbpjax._misc import KbpWarning as KbpWarning
from kbpjax._misc import MissingWarning as MissingWarning
from kbpjax._misc import show, show_fields, values_or_shapes, vary_like
from kbpjax._public import Checked, public
from kbpjax.graphs.graph import Graph
from kbpjax.graphs.plan import Plan
from kbpjax.inference.acceleration import check_damping
from kbpjax.inference.loopy import Posterior, Solution, check_messages, prepare_inputs, solved
from kbpjax.inference.operators import AnyEvidence, AnyModel, Operators
from kbpjax.inference.schedules import Schedule, Synchronous, problem_of

T = TypeVar("T", bound=Solution | Posterior)

LOOK_BACK = 10
"""Number of iterations over which the trend of the residual is estimated."""

WAYS_OUT = (
    "Try more damping; schedule=kbpjax.colored(graph); or, most reliable, nonnegative tree-reweighted messages: "
    "fit(nonnegative=kbpjax.Clipped()), run(exponents=kbpjax.tree_reweighting(graph), damping=0)."
)


IMPOSSIBLE = (
    "The evidence is impossible under the tables: correct either. If potentials are sharp, products may underflow: use "
    "kbpjax.InLogs() or double precision."
)


class ConvergenceWarning(KbpWarning):
    """Given by `infer` if the messages have not converged: the beliefs are then not those of a fixed point.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.ConvergenceWarning)  # here, it is not shown
    """


class RankWarning(KbpWarning):
    """Given by `fit` if `max_rank` landmarks leave a large residual: messages are then coarse.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.RankWarning)  # here, it is not shown
    """


class CandidateWarning(KbpWarning):
    """Given by `beliefs` and `infer` if most samples lie outside the range of the candidates, by `fit` if some are far.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.CandidateWarning)  # here, it is not shown
    """


class EvidenceWarning(KbpWarning):
    """Given by `observe` and `infer` if observations, or entries of them, have no effect.

    They are far from all training observations, or of a vector some entries are missing, and no evidence was learned
    for just those that are there.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.EvidenceWarning)  # here, it is not shown
    """


class MarginWarning(KbpWarning):
    """Given by `fit` if nodes of one type differ much and are learned together, by `infer` if a graph has other nodes.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.MarginWarning)  # here, it is not shown
    """


class HolesWarning(KbpWarning):
    """Given by `kbpjax.estimator.GraphImputer` if whether cells are missing depends on values of other columns.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.HolesWarning)  # here, it is not shown
    """


class RelationWarning(KbpWarning):
    """Given by `fit` if edges of one type differ much and share a relation, by `infer` if a graph lacks own relations.

    Also given by `fit` if relations rest on few pairs, or if pairs cannot say what three nodes have to do with another.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.RelationWarning)  # here, it is not shown
    """


class ScaleWarning(KbpWarning):
    """Given by `fit` if coordinates of vectors differ so much in scale that an RBF kernel ignores the small ones.

    Examples:
        >>> import warnings, kbpjax as kbp
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kbp.ScaleWarning)  # here, it is not shown
    """


class NotConverged(RuntimeError):
    """Raised by `check` if messages are not at a fixed point; the text gives the symptom and advice.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
        >>> differ = kbp.Operators(jnp.eye(2)[None], jnp.array([[[1.0, 4.0], [4.0, 1.0]]]))  # neighbors tend to differ
        >>> local = jnp.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
        >>> try:
        ...     kbp.check(kbp.run(differ, graph, local, damping=0.0))
        ... except kbp.NotConverged as error:
        ...     print(str(error).partition(":")[0])
        residual 0.53 after 30 iterations, and not falling
    """


class Diagnosis(Checked):
    """The local behavior of the iteration at a solution.

    Attributes:
        residual: largest difference between a message and its undamped update.
        spectral_radius: growth factor per iteration of a small disturbance of the messages. Below 1, iterations
            approach the fixed point; above 1, they move away.
        moved_once, moved_twice: largest change of a message after one and after two iterations.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
        >>> differ = kbp.Operators(jnp.eye(2)[None], jnp.array([[[1.0, 4.0], [4.0, 1.0]]]))  # neighbors tend to differ
        >>> local = jnp.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
        >>> solution = kbp.run(differ, graph, local, damping=0.5)
        >>> plain, damped = (kbp.diagnose(differ, graph, local, solution, damping=d) for d in (0.0, 0.5))
        >>> bool(plain.spectral_radius > 1), bool(damped.spectral_radius < 1)  # it converges only if damped
        (True, True)
    """

    residual: Float[Array, ""]
    spectral_radius: Float[Array, ""]
    moved_once: Float[Array, ""]
    moved_twice: Float[Array, ""]

    @property
    def oscillates(self) -> Bool[Array, ""]:
        """Whether messages oscillate with period two: two iterations bring them back."""
        return (self.moved_once > 1e-3) & (self.moved_twice < self.moved_once / 4)

    @values_or_shapes
    def __repr__(self) -> str:
        return show_fields(self)[:-1] + f", oscillates={show(self.oscillates)})"


@public
def diagnose(
    model: AnyModel | Posterior,
    graph: Graph | None = None,
    evidence: AnyEvidence = None,
    solution: Solution | None = None,
    *,
    damping: ScalarLike = 0.2,
    schedule: Schedule = Synchronous(),
    num_iters: int = 40,
    key: PRNGKeyArray | None = None,
) -> Diagnosis:
    """Return the spectral radius of an iteration at a solution, and whether messages oscillate.

    Args:
        model: a posterior; no graph, evidence and solution are then needed. Or the model of `run`.
        graph: the graph.
        evidence: the evidence of `run`.
        solution: the solution of `run`.
        damping: the damping of `run`, in [0, 1).
        schedule: the schedule of `run`.
        num_iters: iterations of the power method, >= 2; each costs about two of `run`.
        key: random key of the disturbance; None: `jax.random.key(0)`.

    Returns:
        The diagnosis. The spectral radius is averaged over the last half of the power iterations, since complex
        eigenvalues make single estimates oscillate.

    Raises:
        ValueError: an option out of range, an invalid key, or a solution of another model or graph.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
        >>> differ = kbp.Operators(jnp.eye(2)[None], jnp.array([[[1.0, 4.0], [4.0, 1.0]]]))  # neighbors tend to differ
        >>> local = jnp.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
        >>> solution = kbp.run(differ, graph, local, damping=0.0)
        >>> bool(kbp.diagnose(differ, graph, local, solution, damping=0.0).oscillates)
        True
    """
    learned, graph, evidence, solution = solved(model, graph, evidence, solution)
    _checks.require_count("num_iters", num_iters)
    key = _checks.random_key(key)
    check_damping(damping)
    _checks.require(num_iters >= 2, "num_iters", "must be at least 2", num_iters, "Pass for instance 40.")
    operators, local, clamped = prepare_inputs(learned, graph, evidence)
    check_messages("solution", solution.messages, operators, graph)
    weight = jnp.asarray(damping, local.dtype)
    return _diagnose(operators, schedule.plan(graph), local, clamped, solution, weight, schedule, num_iters, key)


@partial(jax.jit, static_argnames="num_iters")
def _diagnose(
    operators: Operators,
    plan: Plan,
    local: Array,
    clamped: Array | None,
    solution: Solution,
    damping: Array,
    schedule: Schedule,
    num_iters: int,
    key: PRNGKeyArray,
) -> Diagnosis:
    problem = problem_of(schedule, plan, operators, local, clamped, solution.exponents)
    of_schedule = schedule.init(problem)
    iterate = lambda messages: schedule.sweep(problem, of_schedule, messages, damping)[:2]
    start = plan.laid_out(solution.messages)
    (once, residual), push = jax.linearize(iterate, start)
    twice, _ = iterate(once)

    def power(disturbance: Array, _: None) -> tuple[Array, Array]:
        moved, _ = push(disturbance)
        size = jnp.linalg.norm(moved)
        return moved / jnp.where(size > 0, size, 1), size

    first = jax.random.normal(key, start.shape, start.dtype)
    _, sizes = jax.lax.scan(power, vary_like(first / jnp.linalg.norm(first), residual), length=num_iters)
    radius = jnp.exp(jnp.mean(jnp.log(sizes[num_iters // 2 :])))
    return Diagnosis(
        residual, radius, jnp.max(jnp.abs(once - start), initial=0), jnp.max(jnp.abs(twice - start), initial=0)
    )


@public
def check(solution: T, diagnosis: Diagnosis | None = None) -> T:
    """Return a solution or posterior if its messages converged, and raise with advice if not; outside `jax.jit`.

    Args:
        solution: the solution of `run` or `run_tree`, or a posterior; or a batch of them from `jax.vmap`.
        diagnosis: the result of `diagnose` (for a single problem), for more specific advice.

    Returns:
        The same object.

    Raises:
        NotConverged: messages that are not at a fixed point, are NaN, or are 0 everywhere (impossible evidence).
        ValueError: a traced solution.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> tables = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> bool(kbp.check(kbp.run(tables, kbp.chain_graph(3))).converged)
        True
    """
    of: Any = getattr(solution, "solution", solution)
    _check(of, diagnosis)
    return solution


def _check(solution: Solution, diagnosis: Diagnosis | None) -> None:
    """Raise NotConverged with advice if the messages of a solution did not converge."""
    fix = "Return the solution from the compiled function, and check it there."
    _checks.require(not _checks.is_traced(solution), "solution", "must be known", "a tracer", fix)
    converged = np.asarray(solution.converged).reshape(-1)
    if np.all(converged):
        return
    failed = np.flatnonzero(~converged)
    count = np.asarray(solution.num_iters).reshape(-1)[failed]
    last = np.asarray(solution.residual).reshape(-1)[failed]
    worst = int(np.argmax(np.where(np.isnan(last), np.inf, last)))
    residuals = np.asarray(solution.residuals).reshape(len(converged), -1)[failed[worst]]
    edges = np.asarray(solution.messages).reshape(len(converged), *solution.messages.shape[-2:])[failed[worst]]
    empty = np.flatnonzero((edges == 0).all(axis=-1))[:5].tolist()
    which = "" if len(converged) == 1 else f"{len(failed)} of {len(converged)} problems; number {failed[worst]}: "
    if empty:
        raise NotConverged(f"{which}messages of directed edges {empty} are 0 everywhere. {IMPOSSIBLE}")
    raise NotConverged(which + _advice(residuals, int(count[worst]), float(last[worst]), diagnosis))


def _advice(residuals: np.ndarray, count: int, last: float, diagnosis: Diagnosis | None) -> str:
    """Return a description of the residuals of a run that did not converge, and advice."""
    if not np.isfinite(last):
        finite = np.isfinite(residuals[:count])
        first = count if finite.all() or len(residuals) < count else 1 + int(np.argmin(finite))
        return f"messages are not finite since iteration {first}. Fit with a larger ridge, or a floor above 0."
    stride = -(-count // len(residuals))  # a long run with a tolerance keeps every k-th residual
    kept = residuals[np.isfinite(residuals)]
    back = min(-(-LOOK_BACK // stride), len(kept) - 1)
    rate = (last / kept[-1 - back]) ** (1 / (back * stride)) if back else 1.0
    text = f"residual {last:.2g} after {count} iterations"
    if diagnosis is not None:
        text += f", spectral radius {float(diagnosis.spectral_radius):.3g}"
        if bool(diagnosis.oscillates):
            return f"{text}: messages oscillate with period two. {WAYS_OUT}"
    if rate < 0.99:
        more = int(np.ceil(np.log(1e-3 / last) / np.log(rate))) if last > 1e-3 else back
        return f"{text}, and falling by {1 - rate:.0%} per iteration. Resume with start=solution: at least {more} more."
    return f"{text}, and not falling: messages oscillate or diverge. {WAYS_OUT}"
