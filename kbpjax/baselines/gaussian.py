"""Gaussian belief propagation: messages exp(-x' P x / 2 + mu' x) between scalar or vector nodes.

A Gaussian field p(x) ~ exp(-x' A x / 2 + b' x) is a pairwise model of diagonal blocks A_ss, blocks A_st on edges and
b_s. Means and covariances are exact on trees. On loopy graphs the means are exact where the messages converge, which
they do if `walk_summability` is below 1, and the variances are not (Weiss & Freeman 2001; Malioutov et al. 2006).

`GaussianMRF` and `thin_membrane` make fields, `fit` learns them from samples, and `run` passes the messages.
"""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import einsum
from kbpjax.baselines.gaussian_field import Factors as Factors
from kbpjax.baselines.gaussian_field import GaussianMRF as GaussianMRF
from kbpjax.baselines.gaussian_field import thin_membrane as thin_membrane
from kbpjax.baselines.gaussian_inputs import floats
from kbpjax.baselines.gaussian_template import GaussianTemplate as GaussianTemplate
from kbpjax.baselines.gaussian_template import fit as fit
from kbpjax.graphs.graph import Graph
from kbpjax.inference.acceleration import check_damping
from kbpjax.inference.diagnostics import LOOK_BACK, NotConverged
from kbpjax.posterior.beliefs import Belief


class GaussianSolution(eqx.Module):
    """The outcome of `run`.

    Attributes:
        mean: means [node, dim]; NaN where undefined.
        covariance: covariances [node, dim, dim]; NaN where undefined.
        messages: the messages.
        converged: whether the last residual is at most the tolerance asked for (1e-3 where none was).
        diverged: whether messages or beliefs are no longer those of a normalisable Gaussian.
        num_iters: iterations done.
        residuals: residual of each iteration [max_iters]; NaN after the last one done, and once messages are undefined.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> solution = gaussian.run(gaussian.GaussianMRF([1.0, 1.25], [1.0, 0.0], [-0.5]), kbp.chain_graph(2))
        >>> solution.covariance.ravel().round(4).tolist(), bool(solution.converged)
        ([1.25, 1.0], True)
    """

    mean: Float[Array, "node dim"]
    covariance: Float[Array, "node dim dim"]
    messages: Factors
    converged: Bool[Array, ""]
    diverged: Bool[Array, ""]
    num_iters: Int[Array, ""]
    residuals: Float[Array, " max_iters"]


def run(
    model: GaussianMRF,
    graph: Graph,
    *,
    num_iters: int = 30,
    damping: ScalarLike = 0.0,
    tol: ScalarLike | None = None,
) -> GaussianSolution:
    r"""Pass messages t -> s, all at once, from 1 (supplement of Song et al. 2011, equations 48 and 49; Bickson 2008).

        P_ts = -A_ts' P_t\s^-1 A_ts,    mu_ts = -A_ts' P_t\s^-1 mu_t\s,

    where P_t\s and mu_t\s are A_tt and b_t plus the messages to t but that from s (as printed, P_t\s begins with A_ss).

    Args:
        model: the field.
        graph: the graph.
        num_iters: iterations, >= 1; with `tol` the most there can be. A tree needs its diameter.
        damping: weight of the old message, in [0, 1).
        tol: stop once the residual is at most this: the largest change of a message in an iteration before damping,
            in units of its receiver's exp(-x' A_ss x / 2); of mu relative to the largest. Derivatives are then in
            forward mode only. None: run all iterations, and differentiate through them.

    Returns:
        Means and covariances. That messages did not converge, or diverged, is no error: see `check`.

    Raises:
        ValueError: an option out of range, or a model of another graph.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> solution = gaussian.run(gaussian.GaussianMRF([2.0, 2.0], [3.0, 0.0], [-1.0]), kbp.chain_graph(2))
        >>> solution.mean.ravel().round(4).tolist()
        [2.0, 1.0]
    """
    _checks.require_count("num_iters", num_iters)
    check_damping(damping)
    if tol is not None:
        _checks.require_number("tol", tol, above=0)
    _require_fit(model, graph)
    return _run(model, graph, damping, tol, num_iters)


@partial(jax.jit, static_argnames="num_iters")
def _run(
    model: GaussianMRF, graph: Graph, damping: ScalarLike, tol: ScalarLike | None, num_iters: int
) -> GaussianSolution:
    dim, dtype = model.information.shape[1], model.information.dtype
    advance = partial(_advance, model, graph, jnp.asarray(damping, dtype))
    start = Factors(jnp.zeros((graph.num_edges, dim, dim), dtype), jnp.zeros((graph.num_edges, dim), dtype))
    if tol is None:
        enough, count = jnp.asarray(1e-3, dtype), jnp.int32(num_iters)
        messages, residuals = jax.lax.scan(lambda messages, _: advance(messages), start, length=num_iters)
    else:
        enough = jnp.asarray(tol, dtype)
        messages, residuals, count = _until(advance, start, enough, num_iters)
    mean, covariance = _marginals(_beliefs(model, graph, messages))
    sound = jnp.all(jnp.isfinite(mean)) & jnp.all(jnp.isfinite(covariance)) & jnp.isfinite(residuals[count - 1])
    converged = sound & (residuals[count - 1] <= enough)
    return GaussianSolution(mean, covariance, messages, converged, ~sound, count, residuals)


def _until(advance: Any, start: Factors, enough: Array, num_iters: int) -> tuple[Factors, Array, Array]:
    """Iterate until the residual is small enough or NaN; return messages, residuals and the number of iterations."""

    def unfinished(carry: Any) -> Array:
        _, residual, _, count = carry
        return (count < num_iters) & (residual > enough)

    def iterate(carry: Any) -> Any:
        messages, _, residuals, count = carry
        messages, residual = advance(messages)
        return messages, residual, residuals.at[count].set(residual), count + 1

    first = jnp.full(num_iters, jnp.nan, enough.dtype)
    carry = (start, jnp.full((), jnp.inf, enough.dtype), first, jnp.int32(0))
    messages, _, residuals, count = jax.lax.while_loop(unfinished, iterate, carry)
    return messages, residuals, count


def _advance(model: GaussianMRF, graph: Graph, damping: Array, old: Factors) -> tuple[Factors, Array]:
    """Update all messages at once; return them, damped, and the residual."""
    total = _beliefs(model, graph, old)
    cavity = total.precision[graph.senders] - old.precision[graph.reverse]
    known = total.information[graph.senders] - old.information[graph.reverse]
    towards = jnp.concatenate([model.coupling, jnp.swapaxes(model.coupling, 1, 2)])
    halves = _half_solve(cavity, jnp.concatenate([towards, known[..., None]], axis=-1))
    gain, shift = halves[..., :-1], halves[..., -1]
    new = Factors(-einsum("eki,ekj->eij", gain, gain), -einsum("eki,ek->ei", gain, shift))
    damped = jax.tree.map(lambda old, new: damping * old + (1 - damping) * new, old, new)
    return damped, _residual(model, graph, old, new)


def _beliefs(model: GaussianMRF, graph: Graph, messages: Factors) -> Factors:
    """Return the product of each node's factor and its incoming messages, in their form."""
    own = Factors(model.precision, model.information)
    return jax.tree.map(lambda a, m: a + jax.ops.segment_sum(m, graph.receivers, graph.num_nodes), own, messages)


def _marginals(beliefs: Factors) -> tuple[Array, Array]:
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


def _residual(model: GaussianMRF, graph: Graph, old: Factors, new: Factors) -> Array:
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


def check(solution: GaussianSolution) -> GaussianSolution:
    """Return the solution if its messages converged, and raise with advice if they did not; outside `jax.jit`.

    Args:
        solution: what `run` returned; of many problems, where it comes from `jax.vmap`.

    Raises:
        NotConverged: messages that are not at a fixed point, or no longer those of a Gaussian.
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
    """Say what the residuals of a run that did not converge show, and what to try."""
    count, last = len(residuals), float(residuals[-1])
    ways_out = (
        "If gaussian.walk_summability(model, graph) is not below 1, no settings may help: add precision to the nodes, "
        "or build a learned model with exponents=kbpjax.tree_reweighting(graph)."
    )
    if diverged:
        broken = ~np.isfinite(residuals)
        what = f"messages diverged at iteration {1 + int(np.argmax(broken))}" if np.any(broken) else "beliefs diverged"
        return f"{what}: a precision is not positive definite. More damping. {ways_out}"
    back = min(LOOK_BACK, count - 1)
    rate = (last / residuals[-1 - back]) ** (1 / back) if back else 1.0
    text = f"residual {last:.2g} after {count} iterations"
    if rate < 0.99:
        return f"{text}, and falling by {1 - rate:.0%} an iteration. Raise num_iters."
    return f"{text}, and not falling: messages swing or grow. More damping. {ways_out}"


def walk_summability(model: GaussianMRF, graph: Graph, *, num_iters: int = 200) -> Float[Array, ""]:
    """Bound the spectral radius of |R|, R = I - D^-1/2 A D^-1/2, from above; below 1 messages reach the exact means.

    D holds the diagonal blocks of A, and |R| the 2-norm of each block (Malioutov, Johnson & Willsky 2006).

    Args:
        model: the field.
        graph: the graph.
        num_iters: iterations of the power method, >= 1. The bound of Collatz and Wielandt holds at each, and falls.

    Returns:
        The bound: below 1 is a guarantee, undamped too; above, messages may converge all the same.

    Raises:
        ValueError: an option out of range, or a model of another graph.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> model = gaussian.GaussianMRF([2.0, 2.0], [1.0, 0.0], [-1.0])
        >>> round(float(gaussian.walk_summability(model, kbp.chain_graph(2))), 4)
        0.5
    """
    _checks.require_count("num_iters", num_iters)
    _require_fit(model, graph)
    return _walk_summability(model, graph, num_iters)


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


def beliefs(solution: GaussianSolution, points: Numbers) -> Belief:
    """Evaluate the marginals on candidate points, for `kbpjax.mean`, `mode`, `interval` and the like.

    Args:
        solution: what `run` returned.
        points: candidates, [point, dim], or [point] of scalar nodes.

    Returns:
        The beliefs, proportional to N(points; mean, covariance) and normalised over the points; NaN where a mean is.

    Raises:
        ValueError: points of another shape than the nodes, none at all, NaN or infinity.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import gaussian
        >>> solution = gaussian.run(gaussian.GaussianMRF([1.0], [2.0], []), kbp.chain_graph(1))
        >>> kbp.mode(gaussian.beliefs(solution, [0.0, 1.0, 2.0, 3.0])).tolist()
        [2.0]
    """
    dim, dtype = solution.mean.shape[1], solution.mean.dtype
    candidates = floats("points", points, dtype)
    flat = candidates[:, None] if candidates.ndim == 1 else candidates
    rule = f"must have shape [point, {dim}]" + " or [point]" * (dim == 1)
    ok = flat.ndim == 2 and len(flat) > 0 and flat.shape[1] == dim
    _checks.require(ok, "points", rule, candidates.shape, "Pass candidates that are values of a node.")
    return Belief(candidates, _weights(solution.mean, solution.covariance, flat))


@jax.jit
def _weights(mean: Array, covariance: Array, points: Array) -> Array:
    deviations = jnp.swapaxes(points[None] - mean[:, None], 1, 2)
    return jax.nn.softmax(-0.5 * jnp.sum(_half_solve(covariance, deviations) ** 2, axis=1), axis=-1)


def _require_fit(model: GaussianMRF, graph: Graph) -> None:
    wanted = graph.num_nodes, graph.num_edges // 2
    got = len(model.information), len(model.coupling)
    fix = "Pass the graph that the model was made for."
    ok = model.information.ndim == 2 and got == wanted
    _checks.require(ok, "model", "must have {} nodes and {} edges, as the graph".format(*wanted), got, fix)
