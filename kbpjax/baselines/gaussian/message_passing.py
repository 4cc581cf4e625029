"""Gaussian belief propagation: messages exp(-x' P x / 2 + mu' x) between scalar or vector nodes.

A Gaussian field p(x) ~ exp(-x' A x / 2 + b' x) is a pairwise model with diagonal blocks A_ss, blocks A_st on edges and
vectors b_s. Means and covariances are exact on trees. On loopy graphs the means are exact if the messages converge,
which they do if `walk_summability` is below 1; the variances are not (Weiss & Freeman 2001; Malioutov et al. 2006).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum, show_fields
from kbpjax._public import Checked, public
from kbpjax.baselines._common import check_options, iterate
from kbpjax.baselines.gaussian.field import GaussianFactors, GaussianMRF
from kbpjax.baselines.gaussian.inputs import floats
from kbpjax.baselines.gaussian.template import GaussianTemplate
from kbpjax.graphs.graph import Graph
from kbpjax.inference.diagnostics import LOOK_BACK, NotConverged
from kbpjax.posterior.beliefs import Belief


class GaussianSolution(Checked):
    """The result of `run`.

    Attributes:
        mean: means [node, dim]; NaN where undefined.
        covariance: covariances [node, dim, dim]; NaN where undefined.
        messages: the message of each directed edge.
        converged: whether the last residual is at most `tol` (None: 1e-3), and nothing diverged.
        diverged: whether messages or beliefs are not those of a normalizable Gaussian.
        num_iters: iterations done.
        residuals: residual of each iteration [max_iters], defined at `run`; NaN after the last iteration, and once
            messages are undefined.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> solution = gaussian.run(gaussian.GaussianMRF([1.0, 1.25], [1.0, 0.0], [-0.5]), kbp.chain_graph(2))
        >>> solution.covariance.ravel().round(4).tolist(), bool(solution.converged)
        ([1.25, 1.0], True)
    """

    mean: Float[Array, "node dim"]
    covariance: Float[Array, "node dim dim"]
    messages: GaussianFactors
    converged: Bool[Array, ""]
    diverged: Bool[Array, ""]
    num_iters: Int[Array, ""]
    residuals: Float[Array, " max_iters"]

    __repr__ = show_fields


@public
def run(
    model: GaussianMRF | GaussianTemplate,
    graph: Graph,
    evidence: GaussianFactors | None = None,
    *,
    num_iters: int = 30,
    damping: ScalarLike = 0.2,
    tol: ScalarLike | None = None,
    key: Key[Array, ""] | None = None,
) -> GaussianSolution:
    r"""Run synchronous Gaussian belief propagation, from constant messages.

    The message from t to s is (supplement of Song et al. 2011, equations 48 and 49; Bickson 2008)

        P_ts = -A_ts' P_t\s^-1 A_ts,    mu_ts = -A_ts' P_t\s^-1 mu_t\s,

    where P_t\s and mu_t\s are A_tt and b_t plus the evidence of t and all messages to t except that from s. (As
    printed, P_t\s begins with A_ss.)

    Args:
        model: a `GaussianMRF` of this graph, or a `GaussianTemplate`, for which `model.build(graph)` is used.
        graph: the graph.
        evidence: Gaussian factors of the nodes, of `observe` or `likelihood`, or None. To combine several evidence
            terms, add their leaves.
        num_iters: number of iterations, >= 1; with `tol`, the maximum. Without damping, a tree needs its diameter.
        damping: weight of the old message, in [0, 1).
        tol: stop once the residual is at most this, > 0. The residual is the largest change of a message in an
            iteration before damping, in units of its receiver's local factor; of mu relative to the largest.
            Derivatives are then in forward mode only. None: run all iterations, and differentiate through them.
        key: not used; the method is deterministic.

    Returns:
        Means, covariances and messages. Messages that did not converge, or diverged, raise no error: see `check`.

    Raises:
        ValueError: an option out of range, a model of another graph, or evidence that is not Gaussian.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> solution = gaussian.run(gaussian.GaussianMRF([2.0, 2.0], [3.0, 0.0], [-1.0]), kbp.chain_graph(2))
        >>> solution.mean.ravel().round(4).tolist()
        [2.0, 1.0]
    """
    del key
    check_options(num_iters, damping, tol)
    field = _field(model, graph, evidence)
    return _run(field, graph, evidence, damping, tol, num_iters)


@partial(jax.jit, static_argnames="num_iters")
def _run(
    model: GaussianMRF,
    graph: Graph,
    evidence: GaussianFactors | None,
    damping: ScalarLike,
    tol: ScalarLike | None,
    num_iters: int,
) -> GaussianSolution:
    model = _posterior(model, evidence)
    dim, dtype = model.dim, model.dtype
    advance = partial(_advance, model, graph, jnp.asarray(damping, dtype))
    start = GaussianFactors(jnp.zeros((graph.num_edges, dim, dim), dtype), jnp.zeros((graph.num_edges, dim), dtype))
    messages, (residuals,), count, converged = iterate(lambda old, _: advance(old), start, None, num_iters, tol)
    mean, covariance = _marginals(_beliefs(model, graph, messages))
    sound = jnp.all(jnp.isfinite(mean)) & jnp.all(jnp.isfinite(covariance)) & jnp.isfinite(residuals[count - 1])
    return GaussianSolution(mean, covariance, messages, sound & converged, ~sound, count, residuals)


def _posterior(model: GaussianMRF, evidence: GaussianFactors | None) -> GaussianMRF:
    """Multiply the factors of the nodes with the evidence."""
    if evidence is None:
        return model
    local = jax.tree.map(jnp.add, GaussianFactors(model.precision, model.information), evidence)
    return GaussianMRF.trusted(local.precision, local.information, model.coupling)


def _advance(
    model: GaussianMRF, graph: Graph, damping: Array, old: GaussianFactors
) -> tuple[GaussianFactors, tuple[Array]]:
    """Update all messages at once; return them, damped, and the residual."""
    total = _beliefs(model, graph, old)
    cavity = total.precision[graph.senders] - old.precision[graph.reverse]
    information = total.information[graph.senders] - old.information[graph.reverse]
    towards = jnp.concatenate([model.coupling, jnp.swapaxes(model.coupling, 1, 2)])
    halves = _half_solve(cavity, jnp.concatenate([towards, information[..., None]], axis=-1))
    gain, shift = halves[..., :-1], halves[..., -1]
    new = GaussianFactors(-einsum("eki,ekj->eij", gain, gain), -einsum("eki,ek->ei", gain, shift))
    damped = jax.tree.map(lambda old, new: damping * old + (1 - damping) * new, old, new)
    return damped, (_residual(model, graph, old, new),)


def _beliefs(model: GaussianMRF, graph: Graph, messages: GaussianFactors) -> GaussianFactors:
    """Return the product of each node's factor and its incoming messages."""
    own = GaussianFactors(model.precision, model.information)
    return jax.tree.map(lambda a, m: a + jax.ops.segment_sum(m, graph.receivers, graph.num_nodes), own, messages)


def _marginals(beliefs: GaussianFactors) -> tuple[Array, Array]:
    """Return means and covariances; NaN where a precision is not positive definite."""
    count, dim = beliefs.information.shape
    unit = jnp.broadcast_to(jnp.eye(dim, dtype=beliefs.information.dtype), (count, dim, dim))
    halves = _half_solve(beliefs.precision, jnp.concatenate([unit, beliefs.information[..., None]], axis=-1))
    root, shift = halves[..., :-1], halves[..., -1]
    return einsum("nki,nk->ni", root, shift), einsum("nki,nkj->nij", root, root)


def _half_solve(matrices: Array, columns: Array) -> Array:
    """Return L^-1 columns for matrices L L' [.., dim, dim]; NaN where one is not positive definite."""
    if matrices.shape[-1] == 1:
        return columns / jnp.sqrt(jnp.where(matrices > 0, matrices, jnp.nan))
    return jax.lax.linalg.triangular_solve(jnp.linalg.cholesky(matrices), columns, left_side=True, lower=True)


def _residual(model: GaussianMRF, graph: Graph, old: GaussianFactors, new: GaussianFactors) -> Array:
    """Return the largest change of a message in the units of its receiver; NaN if any message is not finite."""
    roots = jnp.sqrt(jnp.diagonal(model.precision, axis1=1, axis2=2))
    unit = roots[graph.receivers]
    spread = jnp.abs(new.precision - old.precision) / (unit[:, :, None] * unit[:, None])
    size = jnp.maximum(
        jnp.max(jnp.abs(new.information) / unit, initial=0), jnp.max(jnp.abs(model.information) / roots, initial=0)
    )
    shift = jnp.abs(new.information - old.information) / unit / jnp.where(size > 0, size, 1)
    finite = jnp.all(jnp.isfinite(new.precision)) & jnp.all(jnp.isfinite(new.information))
    return jnp.where(finite, jnp.maximum(jnp.max(spread, initial=0), jnp.max(shift, initial=0)), jnp.nan)


@public
def check(solution: GaussianSolution) -> GaussianSolution:
    """Return the solution if its messages converged, and raise with advice if they did not; outside `jax.jit`.

    Args:
        solution: the result of `run`, or a batch of them from `jax.vmap`.

    Raises:
        NotConverged: messages that are not at a fixed point, or that diverged.
        ValueError: a traced solution.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> bool(gaussian.check(gaussian.run(gaussian.GaussianMRF([1.0], [0.0], []), kbp.chain_graph(1))).converged)
        True
    """
    fix = "Return the solution from the compiled function, and check it there."
    _checks.require(not _checks.is_traced(solution), "solution", "must be known", "a tracer", fix)
    converged = np.asarray(solution.converged).reshape(-1)
    if np.all(converged):
        return solution
    count = np.asarray(solution.num_iters).reshape(-1)
    residuals = np.asarray(solution.residuals).reshape(len(converged), -1)
    last = np.where(np.asarray(solution.diverged).reshape(-1), np.inf, residuals[np.arange(len(count)), count - 1])
    worst = int(np.argmax(np.where(converged, -1, last)))
    failed = int(np.sum(~converged))
    which = "" if len(converged) == 1 else f"{failed} of {len(converged)} problems; number {worst}: "
    raise NotConverged(which + _advice(residuals[worst][: count[worst]], bool(np.isinf(last[worst]))))


def _advice(residuals: np.ndarray, diverged: bool) -> str:
    """Return a description of the residuals of a run that did not converge, and advice."""
    count, last = len(residuals), float(residuals[-1])
    remedy = (
        "If gaussian.walk_summability(model, graph) is not below 1, no options may help: add precision to the nodes, "
        "or build a learned model with exponents=kbpjax.tree_reweighting(graph)."
    )
    if diverged:
        broken = ~np.isfinite(residuals)
        what = f"messages diverged at iteration {1 + int(np.argmax(broken))}" if np.any(broken) else "beliefs diverged"
        return f"{what}: a precision is not positive definite. Use more damping. {remedy}"
    back = min(LOOK_BACK, count - 1)
    rate = (last / residuals[-1 - back]) ** (1 / back) if back else 1.0
    text = f"residual {last:.2g} after {count} iterations"
    if rate < 0.99:
        return f"{text}, and falling by {1 - rate:.0%} per iteration. Raise num_iters."
    return f"{text}, and not falling: messages oscillate or grow. Use more damping. {remedy}"


@public
def walk_summability(
    model: GaussianMRF | GaussianTemplate,
    graph: Graph,
    evidence: GaussianFactors | None = None,
    *,
    num_iters: int = 200,
) -> Float[Array, ""]:
    """Return an upper bound of the spectral radius of |R|, R = I - D^-1/2 A D^-1/2.

    Below 1, messages converge to the exact means (Malioutov, Johnson & Willsky 2006). D holds the diagonal blocks of A,
    and |R| the 2-norm of each block.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`, or None.
        num_iters: iterations of the power method, >= 1. The bound of Collatz and Wielandt holds at each, and decreases.

    Returns:
        The bound. Below 1 it guarantees convergence, also without damping; above 1, messages may converge or not.

    Raises:
        ValueError: an option out of range, a model of another graph, or evidence that is not Gaussian.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> model = gaussian.GaussianMRF([2.0, 2.0], [1.0, 0.0], [-1.0])
        >>> round(float(gaussian.walk_summability(model, kbp.chain_graph(2))), 4)
        0.5
    """
    _checks.require_count("num_iters", num_iters)
    return _walk_summability(_posterior(_field(model, graph, evidence), evidence), graph, num_iters)


@partial(jax.jit, static_argnames="num_iters")
def _walk_summability(model: GaussianMRF, graph: Graph, num_iters: int) -> Array:
    half = graph.num_edges // 2
    left = _half_solve(model.precision[graph.senders[:half]], model.coupling)
    whitened = _half_solve(model.precision[graph.receivers[:half]], jnp.swapaxes(left, 1, 2))
    norms = jnp.abs(whitened[:, 0, 0]) if left.shape[1] == 1 else jnp.linalg.norm(whitened, ord=2, axis=(1, 2))
    weights = jnp.concatenate([norms, norms])

    def step(vector: Array, _: None) -> tuple[Array, Array]:
        # I + |R| has one largest eigenvalue where |R| has two of opposite sign. The bound holds for any vector > 0.
        moved = vector + jax.ops.segment_sum(weights * vector[graph.senders], graph.receivers, graph.num_nodes)
        return jnp.maximum(moved / jnp.max(moved), 1e-30), jnp.max(moved / vector) - 1

    ones = jnp.ones(graph.num_nodes, weights.dtype)
    return jnp.min(jax.lax.scan(step, ones, length=num_iters)[1])


@public
def beliefs(
    model: GaussianMRF | GaussianTemplate,
    graph: Graph,
    evidence: GaussianFactors | None,
    solution: GaussianSolution,
    points: Numbers,
) -> Belief:
    """Return the marginals of all nodes on candidate points, for `kbpjax.mean`, `mode`, `interval` and others.

    Args:
        model: the model of `run`.
        graph: the graph.
        evidence: the evidence of `run`, or None; the solution includes it already.
        solution: the solution of `run`.
        points: candidates, [point, dim], or [point] of scalar nodes.

    Returns:
        The beliefs [node, point], proportional to N(points; mean, covariance) and normalized over the points; NaN for
        nodes with a NaN mean.

    Raises:
        ValueError: points of another shape than the nodes, no points, NaN or infinity; a solution of another graph.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> model, graph = gaussian.GaussianMRF([1.0], [2.0], []), kbp.chain_graph(1)
        >>> solution = gaussian.run(model, graph)
        >>> kbp.mode(gaussian.beliefs(model, graph, None, solution, [0.0, 1.0, 2.0, 3.0])).tolist()
        [2.0]
    """
    _field(model, graph, evidence)
    dim, dtype = model.dim, solution.mean.dtype
    shape, fix = (graph.num_nodes, dim), "Pass what gaussian.run returned for this model and graph."
    _checks.require(solution.mean.shape == shape, "solution", f"must have means {shape}", solution.mean.shape, fix)
    candidates = floats("points", points, dtype)
    flat = candidates[:, None] if candidates.ndim == 1 else candidates
    rule = f"must have shape [point, {dim}]" + " or [point]" * (dim == 1)
    ok = flat.ndim == 2 and len(flat) > 0 and flat.shape[1] == dim
    _checks.require(ok, "points", rule, candidates.shape, "Pass candidates of the shape of a variable.")
    _checks.require_squares("points", candidates)
    return Belief.trusted(candidates, _weights(solution.mean, solution.covariance, flat))


@jax.jit
def _weights(mean: Array, covariance: Array, points: Array) -> Array:
    deviations = jnp.swapaxes(points[None] - mean[:, None], 1, 2)
    return jax.nn.softmax(-0.5 * jnp.sum(_half_solve(covariance, deviations) ** 2, axis=1), axis=-1)


def _field(model: Any, graph: Any, evidence: Any) -> GaussianMRF:
    """Return the field of the graph after checking that model, graph and evidence belong together."""
    fix = "Pass a GaussianMRF, or a GaussianTemplate of kbpjax.baselines.gaussian.fit."
    ok, got = isinstance(model, GaussianMRF | GaussianTemplate), type(model).__name__
    _checks.require(ok, "model", "must be a Gaussian model", got, fix)
    fix = "The model comes first: run(model, graph, evidence)."
    _checks.require(isinstance(graph, Graph), "graph", "must be a kbpjax.Graph", type(graph).__name__, fix)
    if evidence is not None:
        fix = "Make them with kbpjax.baselines.gaussian.observe or likelihood; other evidence is not Gaussian."
        got = type(evidence).__name__
        _checks.require(isinstance(evidence, GaussianFactors), "evidence", "must be GaussianFactors", got, fix)
        shape, got = (graph.num_nodes, model.dim), evidence.information.shape
        fix = "Make it with the same model and graph."
        _checks.require(got == shape, "evidence", f"must be factors of shape {shape}", got, fix)
        _checks.require(
            evidence.information.dtype == model.dtype,
            "evidence",
            f"must be {model.dtype}",
            evidence.information.dtype,
            fix,
        )
    if isinstance(model, GaussianTemplate):
        return model.build(graph)
    model.check_graph(graph)
    return model
