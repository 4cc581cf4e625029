"""Several devices: batches of problems in parallel, or one graph in blocks that exchange their boundary messages.

A batch needs no special code: `shard_batch` places it, and a function compiled for it runs on all devices. One graph
is split by `partition_graph`; each device then updates the outgoing messages of its nodes, and `run` here returns the
solution of `kbpjax.run`. On several hosts, the application must call `jax.distributed.initialize`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, ScalarLike

from kbpjax import _checks
from kbpjax._public import public
from kbpjax.graphs.partition import Partition as Partition
from kbpjax.graphs.partition import mesh_of
from kbpjax.graphs.partition import partition_graph as partition_graph
from kbpjax.inference.acceleration import AdaptiveDamping, AgreementDamping
from kbpjax.inference.implicit import Iteration, fixed_point, most_products, trust
from kbpjax.inference.loop import iterate
from kbpjax.inference.loopy import (
    Damping,
    Exponents,
    Solution,
    check_options,
    check_start,
    pair_exponents,
    prepare_inputs,
    strong_damping,
)
from kbpjax.inference.operators import AnyEvidence, AnyModel, Operators, normalize
from kbpjax.inference.schedules import (
    Synchronous,
    all_possible,
    first_messages,
    largest_change,
    reference_sizes,
    scaled,
)
from kbpjax.inference.update import PlanPart, lay_out, of_edges, send, update

Batch = TypeVar("Batch")

_SHARED = PartitionSpec()
"""Replicated on every device."""


@public
def shard_batch(batch: Batch, devices: Mesh | int | None = None) -> Batch:
    """Return arrays split along their first axis over devices; a compiled function of them runs on all devices.

    Problems of a batch are independent: `jax.jit(jax.vmap(fn))` of it needs no communication, and results stay where
    they were computed.

    Args:
        batch: arrays whose first axis counts problems [batch, ...], in any pytree.
        devices: a mesh, whose axes all split the batch; or a number of devices, the first of `jax.devices()`; None: all
            of them.

    Returns:
        The same arrays, with an equal share on each device.

    Raises:
        ValueError: an array without axes, or a first axis that the number of devices does not divide.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax.sharded import shard_batch
        >>> shard_batch(jnp.zeros((3, 5)), 1).shape
        (3, 5)
    """
    mesh = mesh_of(devices)
    for leaf in jax.tree.leaves(batch):
        shape, kind = np.shape(leaf), leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        kinds = np.bool_, np.number, jax.dtypes.prng_key
        ok = any(jnp.issubdtype(kind, one) for one in kinds)
        _checks.require(ok, "batch", "must be arrays of numbers", f"dtype {kind}", "Leave it out.")
        fix = "Pass arrays [batch, ...]; leave out arrays that all problems share."
        _checks.require(len(shape) > 0, "batch", "must be arrays with a first axis", "a scalar", fix)
        fix = f"Pad it to {-(-shape[0] // mesh.size) * mesh.size} and drop the results of the padding."
        rule = f"must have a first axis that {mesh.size} devices divide"
        _checks.require(shape[0] % mesh.size == 0, "batch", rule, f"shape {shape}", fix)
    native = lambda leaf: leaf.astype(leaf.dtype.newbyteorder("=")) if isinstance(leaf, np.ndarray) else leaf
    return jax.device_put(jax.tree.map(native, batch), NamedSharding(mesh, PartitionSpec(mesh.axis_names)))


@public
def run(
    model: AnyModel,
    partition: Partition,
    evidence: AnyEvidence = None,
    *,
    num_iters: int = 30,
    damping: Damping | AdaptiveDamping = 0.2,
    tol: ScalarLike | None = None,
    exponents: Exponents = None,
    start: Solution | Array | None = None,
) -> Solution:
    """Run synchronous belief propagation on a graph in blocks, one per device; equivalent to `kbpjax.run`.

    Each device holds the local factors and the outgoing messages of its nodes. An iteration exchanges the halo (the
    messages that cross between blocks) and the residual. The solution is that of the whole graph, on every device.

    Args:
        model: a `KernelMRF`, or custom `Operators`.
        partition: the graph in blocks, of `partition_graph`.
        evidence: `Evidence` of the whole graph, or local factors [node, point], or None for none.
        num_iters: number of iterations, >= 1; with `tol`, the maximum.
        damping: as in `kbpjax.run`.
        tol: stop once the residual is at most this; derivatives are then those of the fixed point. None: run all
            iterations, and differentiate through them.
        exponents: exponent of each undirected edge [pair], > 0, or one for all. None: 1.
        start: initial messages: a solution, or an array of the shape of `Solution.messages`. None: constant messages.

    Returns:
        The solution of the whole graph, as of `kbpjax.run`.

    Raises:
        ValueError: as `kbpjax.run`; `partition` is not a `Partition`.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> from kbpjax import sharded
        >>> graph, table = kbp.chain_graph(4), jnp.array([[2.0, 1.0], [1.0, 2.0]])
        >>> operators = kbp.Operators(jnp.eye(2)[None], table[None])
        >>> solution = sharded.run(operators, sharded.partition_graph(graph, 1), num_iters=3)
        >>> solution.messages.shape, bool(solution.converged)
        ((6, 2), True)
    """
    ok, fix = isinstance(partition, Partition), "Make it with kbpjax.sharded.partition_graph(graph)."
    _checks.require(ok, "partition", "must be a partition of a graph", type(partition).__name__, fix)
    check_options(num_iters, damping, tol, Synchronous(), None)
    graph = partition.graph
    operators, local, clamped = prepare_inputs(model, graph, evidence)
    powers = pair_exponents(graph, exponents, local.dtype)
    first = None if start is None else check_start(start, operators, graph)
    damping = strong_damping(damping, local.dtype)
    given = partition, operators, local, clamped, first, powers, damping
    if tol is None:
        return _run(*given, None, None, num_iters)
    return _run(*given, jnp.asarray(tol, local.dtype), jnp.asarray(num_iters, jnp.int32), None)


class _Devices(Iteration):
    """A synchronous iteration in which each device updates the outgoing messages of its block.

    The columns of messages [coordinate, column] are ordered by device. `parts` has one part per device.

    Attributes:
        partition: the graph in blocks.
        reference: sizes of updates without evidence, for `AgreementDamping`; else None.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> partition = kbp.sharded.partition_graph(kbp.chain_graph(4), 1)
        >>> operators = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> kbp.sharded.run(operators, partition, num_iters=3).messages.shape  # uses this class
        (6, 2)
    """

    partition: Partition
    reference: Float[Array, "one column"] | None = None

    def sweep(self, messages: Array, damping: Array) -> tuple[Array, Array]:
        """Do one iteration; return the messages, and the residual of the old ones."""

        def compute(
            part: PlanPart, operators: Operators, old: Array, received: Array, more: Any
        ) -> tuple[Array, Array]:
            damping, reference = more
            new, change = send(operators, part, reference, old, received, damping)
            every = jax.lax.all_gather(largest_change(operators, old, change), self.partition.axis)
            return new, jnp.max(every)  # pmax ignores NaN on CPUs

        return self._on_devices(compute, (self._columns, PartitionSpec()), messages, (damping, self.reference))

    def updates(self, messages: Array, matrices: Array | None = None) -> Array:
        """Return the updates of all messages, not normalized (`kbpjax.inference.update.update`)."""

        def compute(part: PlanPart, operators: Operators, old: Array, received: Array, more: Any) -> Array:
            del old
            return update(operators, part, received, more)

        return self._on_devices(compute, self._columns, messages, matrices)

    def once(self, messages: Array) -> Array:
        """Do one undamped iteration."""
        return normalize(self.updates(messages))

    def pull(self, messages: Array, cotangent: Array) -> Array:
        """Return the vector-Jacobian product of one iteration: the cotangent of its input messages."""
        # The barrier keeps XLA from moving the forward pass out of the solver's loop, where it would stay in memory.
        messages, cotangent = jax.lax.optimization_barrier((messages, cotangent))
        return jax.vjp(self.once, messages)[1](cotangent)[0]

    @property
    def _columns(self) -> PartitionSpec:
        return PartitionSpec(None, self.partition.axis)

    def _on_devices(self, compute: Callable[..., Any], out: Any, messages: Array, more: Any) -> Any:
        """Return `compute(part, operators, outgoing messages, outgoing messages and halo, more)` of all devices.

        Arrays [1, column] in `more` are split like messages; all else is replicated.
        """

        def on_device(part: PlanPart, outgoing: Any, operators: Operators, own: Array, more: Any) -> Any:
            part, outgoing = jax.tree.map(lambda array: array[0], (part, outgoing))
            pairs = zip(outgoing, self.partition.routes, strict=True)
            received = [jax.lax.ppermute(own[:, columns], self.partition.axis, to) for columns, to in pairs]
            return compute(part, operators, own, jnp.concatenate([own, *received], axis=1), more)

        split = lambda array: self._columns if array.ndim == 2 else PartitionSpec()
        of_device, shared = PartitionSpec(self.partition.axis), PartitionSpec()
        specs = (of_device, of_device, shared, self._columns, jax.tree.map(split, more))
        mapped = jax.shard_map(on_device, mesh=self.partition.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return mapped(self.parts, self.partition.halo.outgoing, self.operators, messages, more)


def _parts(partition: Partition, local: Array, clamped: Array | None, exponents: Array | None) -> PlanPart:
    """Return the parts of the devices, with the local factors of their nodes."""
    plan, halo = partition.plan, partition.halo
    split = NamedSharding(partition.mesh, PartitionSpec(partition.axis))
    blocks, held = plan.blocks, halo.edges.shape[1]
    if clamped is not None:
        of_devices = clamped.at[halo.nodes].get(mode="fill", fill_value=False)
        blocks = jax.vmap(lambda blocks, nodes: tuple(b.without_incoming(nodes, held) for b in blocks))(
            blocks, of_devices
        )
    rows = local.at[halo.nodes].get(mode="fill", fill_value=1)
    powers = None if exponents is None else of_edges(exponents)[halo.edges]
    laid_out = jax.vmap(lay_out)(blocks, rows, powers)
    return jax.lax.with_sharding_constraint(PlanPart(blocks, plan.kinds, plan.route, plan.present, *laid_out), split)


@partial(jax.jit, static_argnames="num_iters")
def _run(
    partition: Partition,
    operators: Operators,
    local: Array,
    clamped: Array | None,
    first: Array | None,
    exponents: Array | None,
    damping: Any,
    tol: Array | None,
    most: Array | None,
    num_iters: int | None,
) -> Solution:
    plan, by_agreement = partition.plan, isinstance(damping, AgreementDamping)
    split = NamedSharding(partition.mesh, PartitionSpec(None, partition.axis))
    threshold = jnp.asarray(1e-3 if tol is None else tol, local.dtype)

    def devices(operators: Operators, local: Array, exponents: Array | None) -> _Devices:
        parts = _parts(partition, local, clamped, exponents)
        steps = jnp.int32(1) if most is None else most_products(most)
        return _Devices(operators, parts, plan.place, threshold, steps, partition)

    fixed = operators, local, exponents
    if tol is not None:  # derivatives are those of the fixed point, not of the iterations
        fixed, first, damping = jax.lax.stop_gradient((fixed, first, damping))
    messages = first_messages(fixed[0], plan) if first is None else plan.columns(first)
    messages = jax.lax.with_sharding_constraint(messages, split)
    iteration = devices(*fixed)
    if by_agreement:
        reference = jax.lax.with_sharding_constraint(reference_sizes(fixed[0], plan).reshape(1, -1), split)
        iteration = replace(devices(fixed[0], scaled(fixed[1]), fixed[2]), reference=reference)
        damping = damping.damping
    last, residuals = iterate(iteration.sweep, messages, damping, None, tol, num_iters if tol is None else most)

    iteration, messages = devices(operators, local, exponents), last.messages
    converged = (last.residual <= threshold) & all_possible(operators, last.messages, plan)
    if tol is not None and partition.graph.num_edges > 0:
        messages = trust(fixed_point(iteration, messages), converged)
    everywhere = NamedSharding(partition.mesh, PartitionSpec())
    rows = lambda columns: jax.lax.with_sharding_constraint(plan.rows(columns), everywhere)
    projected = None
    if operators.nonnegative is not None:
        projected = rows(normalize(iteration.updates(messages, operators.project)))
    return Solution(rows(messages), converged, last.count, last.residual, residuals, exponents, projected)
