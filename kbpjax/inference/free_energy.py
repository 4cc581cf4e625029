r"""Bethe and tree-reweighted estimates of the log-partition function, from the messages at a fixed point.

The learned model is P(x) ~ prod_s P*(x_s) local_s(x_s) prod_st (P*(x_s, x_t) / P*(x_s) P*(x_t))^rho_st (supplement,
sections 5 and 6, for rho = 1; Wainwright et al. 2003 for others). Without evidence, messages and the partition function
are 1: log Z is relative to the learned model without evidence. With

    Z_s  = E*[ local_s prod_u m_us^rho_us ],
    c_ts = the size of the update of m_ts, so that E*[ local_t prod_u m_ut^rho_ut / m_st | x_s ] = c_ts m_ts(x_s),

the normalizer of the belief of an edge is Z_st = c_ts Z_s = c_st Z_t, and the value of the free energy is

    log Z = sum_s log Z_s + sum_st rho_st (log Z_st - log Z_s - log Z_t)
          = sum_s log Z_s + sum_st rho_st / 2 (log c_ts - log Z_t + log c_st - log Z_s).

The derivation is in docs/loops.md.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Posterior, Solution, check_messages, prepare_inputs, solved
from kbpjax.inference.operators import (
    AnyEvidence,
    AnyModel,
    InLogs,
    Operators,
    SumProduct,
    add_others,
    by_tile,
    finite_logs,
    log_or_zero,
    of_type,
    raise_logs,
)
from kbpjax.inference.update import evaluate, gather, in_order_sent, parts_of


@public
def log_partition(
    model: AnyModel | Posterior,
    graph: Graph | None = None,
    evidence: AnyEvidence = None,
    solution: Solution | None = None,
) -> Float[Array, ""]:
    r"""Return an estimate of the log-partition function: minus the Bethe or tree-reweighted free energy.

    With $Z_s$ and $Z_{st}$ the normalizers of the beliefs of nodes and edges, and exponents $\rho_{st}$, it is

    $$\log Z = \sum_s \log Z_s + \sum_{st} \rho_{st} (\log Z_{st} - \log Z_s - \log Z_t).$$

    It is exact on trees. With the exponents of `tree_reweighting`, it is an upper bound at the fixed point of
    nonnegative operators whose two directions belong to one joint table. For a learned model on a tree it is
    $\log E^*[\mathrm{evidence}]$, up to the scale of the learned evidence (messages of norm 1). With cycles it
    estimates the logarithm of the integral of the learned potentials and the evidence; without evidence that integral
    is 1 only in the Bethe approximation. For models of `kbpjax.baselines.discrete` it estimates
    log sum_x prod psi_s prod psi_st prod likelihoods, where node tables, edge tables and known likelihoods have the
    scale that was given. For custom `Operators`, with node potentials as local factors and psi^(1 / rho) as `project`,
    it estimates log sum_x prod psi.

    Args:
        model: a posterior without clamps, whose messages should have converged; no other argument is then needed. Or a
            `KernelMRF`, or custom `Operators`.
        graph: the graph.
        evidence: the evidence of `run`, without clamps, or local factors [node, point], or None.
        solution: the solution of `run` or `run_tree`; it should have converged.

    Returns:
        log Z; -inf for impossible evidence; NaN if estimated messages with negative values give a negative normalizer.

    Raises:
        ValueError: a clamp, a max-product model, or a solution of another model or graph.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[3.0, 1.0], [1.0, 3.0]]]))
        >>> solution = kbp.run_tree(agree, kbp.chain_graph(2))
        >>> round(float(jnp.exp(kbp.log_partition(agree, kbp.chain_graph(2), None, solution))), 4)
        8.0
    """
    learned, graph, evidence, solution = solved(model, graph, evidence, solution)
    return log_partitions(learned, graph, evidence, solution, None, 1)[0]


def log_partitions(
    model: AnyModel,
    graph: Graph,
    evidence: AnyEvidence,
    solution: Solution,
    group_of_node: Int[Array, " node"] | None,
    num_groups: int,
) -> Float[Array, " group"]:
    """Return `log_partition` of groups of nodes without edges between them.

    Args:
        model: the model.
        graph: the graph.
        evidence: the evidence of `run`.
        solution: the solution of `run` or `run_tree`.
        group_of_node: the group of each node [node]; nodes of larger numbers than `num_groups` are in none. None: all
            in one.
        num_groups: number of groups.
    """
    fix = "Use kbpjax.likelihood with a narrow likelihood around the value instead."
    clamps = hasattr(evidence, "local") and getattr(evidence, "values", None)  # a frame has `values`, too
    _checks.require(not clamps, "evidence", "must have no clamps", "some", fix)
    operators, local, _ = prepare_inputs(model, graph, evidence)
    sums = operators.arithmetic in (SumProduct(), InLogs(SumProduct()))
    fix = "Max-product has no partition function: run the same model with sums."
    _checks.require(sums, "model", "must add with sums", repr(operators.arithmetic), fix)
    check_messages("solution", solution.messages, operators, graph)
    log_scale = getattr(evidence, "log_scale", None)
    group = jnp.zeros(graph.num_nodes, jnp.int32) if group_of_node is None else group_of_node
    messages, exponents = solution.messages, solution.exponents
    return _log_partitions(operators, graph, local, log_scale, messages, exponents, group, num_groups)


@partial(jax.jit, static_argnames="num_groups")
def _log_partitions(
    operators: Operators,
    graph: Graph,
    local: Array,
    log_scale: Array | None,
    messages: Array,
    exponents: Array | None,
    group: Array,
    num_groups: int,
) -> Float[Array, " group"]:
    dtype = messages.dtype
    powers = jnp.ones(graph.num_edges // 2, dtype) if exponents is None else exponents.astype(dtype)
    prior = jnp.ones_like(operators.evaluate[..., 0]) if operators.prior is None else operators.prior
    plan, rows = graph.plan, graph.plan.laid_out(messages)
    part = jax.tree.map(lambda array: array[0], parts_of(plan, local, powers))
    log_z, cavities = jnp.zeros(graph.num_nodes, dtype), []
    incoming = gather(part, rows)
    for block, received, factor, exponent in zip(part.blocks, incoming, part.local, part.exponents or (), strict=True):
        logs = log_or_zero(evaluate(operators, block, received, len(rows)))
        local_logs = log_or_zero(factor)
        total = local_logs + jnp.sum(raise_logs(logs, jnp.broadcast_to(exponent[..., None], logs.shape)), axis=1)
        weights = of_type(prior, block.types)[:, None]
        log_z = log_z.at[block.nodes].set(jax.scipy.special.logsumexp(total, b=weights, axis=-1), mode="drop")
        # As in the updates, so that their sizes are those of the messages also where states are impossible.
        cavity = add_others(logs, local_logs) if exponents is None else total[:, None] - finite_logs(logs)
        cavities.append(cavity)

    outgoing = in_order_sent(part, cavities)
    largest = finite_logs(jnp.max(outgoing, axis=-1, keepdims=True))
    update = by_tile(operators.update, part.kinds, jnp.exp(outgoing - largest))
    sizes = (largest[..., 0] + jnp.log(jnp.linalg.norm(update, axis=-1))).reshape(-1)
    log_c = sizes[plan.position]
    if operators.log_scale is not None:
        log_c = log_c + operators.log_scale[graph.edge_type]
    both = jnp.concatenate([powers, powers])
    of_edges, of_nodes = both * (log_c - log_z[graph.senders]) / 2, log_z
    if operators.prior_log_scale is not None:
        of_nodes = of_nodes + of_type(operators.prior_log_scale, graph.node_type)
    of_nodes = of_nodes if log_scale is None else of_nodes + log_scale
    add = partial(jax.ops.segment_sum, num_segments=num_groups)
    total = add(of_nodes, group) + add(of_edges, group[graph.senders])
    impossible = add((log_z == -jnp.inf).astype(jnp.int32), group) > 0
    return jnp.where(impossible, -jnp.inf, total)
