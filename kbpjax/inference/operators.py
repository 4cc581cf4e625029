"""The matrices of a model, and the arithmetic of message products and of sums over points.

With sums, beliefs are marginals. With maxima over nonnegative tables, beliefs are max-marginals: on trees, their modes
are the most probable joint state (max-product). Both can multiply plainly or in logarithms.

In the engine, messages are rows [row, coordinate] in the order of a `Plan`: to gather them copies them whole, and a
matrix product needs no other order. With the long axis last, XLA:CPU (jax 0.10.2) computes what it gathers entry by
entry, and many coordinates take up to three times as long (`benchmarks/side_by_side.py`).
"""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from kbpjax import _checks
from kbpjax._misc import einsum, matmul, show_fields, vary_like
from kbpjax._public import Checked
from kbpjax.graphs.graph import Graph

SHORT_AXIS = 16
"""Largest number of coordinates that are not added or compared by reductions, which are slow over a short axis
(`benchmarks/side_by_side.py`)."""

SHORT = 8
"""Largest number of slots for which products are formed slot by slot."""

MANY = 32
"""Largest number of slots that are added slot by slot: twice as fast as a sum over their axis
(`benchmarks/side_by_side.py`)."""


class Products(NamedTuple):
    """Products of incoming messages.

    Attributes:
        values: the products [tile, slot, size, point], each slot up to a scale.
        removed: logarithm of the scale that was divided out [tile, slot, size, 1]; None: 0.
    """

    values: Float[Array, "tile slot size point"]
    removed: Float[Array, "tile slot size one"] | None = None


class SumProduct(Checked):
    """Add: the update is a matrix product.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> kbp.Operators(jnp.eye(2)[None], jnp.ones((1, 2, 2))).arithmetic
        SumProduct()
    """

    def cavity_products(
        self, values: Float[Array, "tile slot size point"], local: Float[Array, "tile size point"]
    ) -> "Products":
        """Return the cavity products: for each slot, `local` times the product of the other slots."""
        return multiply_others(values, local)

    def apply(
        self, matrices: Float[Array, "type out point"], types: Int[Array, "*tiles"], x: Float[Array, "*tiles row point"]
    ) -> Float[Array, "*tiles row out"]:
        """Return sum_p matrices_op x_p, each tile with the matrix of its type."""
        return by_tile(matrices, types, x)

    def apply_to_one(self, matrices: Float[Array, "type out point"]) -> Float[Array, "type out"]:
        """Return sum_p matrices_op of each matrix: the update of the constant 1."""
        return jnp.sum(matrices, axis=-1)

    __repr__ = show_fields


class MaxProduct(SumProduct):
    """Take the largest term instead of the sum; for tables with entries >= 0.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> table = jnp.array([[[3.0, 1.0], [1.0, 2.0]]])  # the most probable pair of states is (0, 0)
        >>> operators = kbp.Operators(jnp.eye(2)[None], table, arithmetic=kbp.MaxProduct())
        >>> message = kbp.run_tree(operators, kbp.chain_graph(2)).messages[0]
        >>> round(float(message[0] / message[1]), 3)
        1.5
    """

    def apply(
        self, matrices: Float[Array, "type out point"], types: Int[Array, "*tiles"], x: Float[Array, "*tiles row point"]
    ) -> Float[Array, "*tiles row out"]:
        """Return max_p matrices_op x_p, each tile with the matrix of its type."""
        columns = jnp.moveaxis(of_type(matrices, types), -1, 0)[..., None, :]

        def larger(best: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
            entries, values = column
            return jnp.maximum(best, entries * values[..., None]), None

        smallest = jnp.zeros_like(x, shape=(*x.shape[:-1], matrices.shape[1]))
        start = vary_like(smallest, (matrices, x))
        return jax.lax.scan(larger, start, (columns, jnp.moveaxis(x, -1, 0)), unroll=8)[0]

    def apply_to_one(self, matrices: Float[Array, "type out point"]) -> Float[Array, "type out"]:
        """Return max_p matrices_op of each matrix: the update of the constant 1."""
        return jnp.max(matrices, axis=-1, initial=0)


class InLogs(Checked):
    """Multiply in logarithms: products of contradicting messages do not underflow to 0.

    Needed for sharp potentials: where states that are probable under one message have less than about 1e-10 under
    another (f32). Slower than plain products.

    Args:
        addition: `SumProduct()` or `MaxProduct()`.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> star = kbp.Graph.from_edges([(0, leaf) for leaf in range(1, 60)], 60)
        >>> local = jnp.array([[1.0, 1e-12], [1e-12, 1.0]])[jnp.arange(60) % 2]  # leaves disagree
        >>> tables = jnp.eye(2)[None], jnp.array([[[1.0, 1e-9], [1e-9, 1.0]]])
        >>> logs = kbp.Operators(*tables, arithmetic=kbp.InLogs())
        >>> bool(kbp.run_tree(logs, star, local).messages.any(axis=1).all())  # no message is 0
        True
    """

    addition: SumProduct | MaxProduct = SumProduct()

    def cavity_products(
        self, values: Float[Array, "tile slot size point"], local: Float[Array, "tile size point"]
    ) -> "Products":
        """Return the cavity products, scaled to maximum 1; 0 only where a factor is 0."""
        cavity = add_others(log_or_zero(values), log_or_zero(local))
        removed = finite_logs(jax.lax.stop_gradient(largest_coordinate(cavity)))
        return Products(exp_or_zero(cavity - removed), removed)

    def apply(
        self, matrices: Float[Array, "type out point"], types: Int[Array, "*tiles"], x: Float[Array, "*tiles row point"]
    ) -> Float[Array, "*tiles row out"]:
        """Apply `addition`."""
        return self.addition.apply(matrices, types, x)

    def apply_to_one(self, matrices: Float[Array, "type out point"]) -> Float[Array, "type out"]:
        """Apply `addition`."""
        return self.addition.apply_to_one(matrices)

    __repr__ = show_fields


@runtime_checkable
class LearnedModel(Protocol):
    """A model with operators, such as `kbpjax.KernelMRF`."""

    @property
    def operators(self) -> "Operators":
        """The operators of messages."""
        ...

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless the model has all types of a graph."""
        ...


@runtime_checkable
class LocalFactors(Protocol):
    """Evidence, such as `kbpjax.Evidence`."""

    @property
    def local(self) -> Float[Array, "node point"]:
        """The local factors of the nodes."""
        ...


Arithmetic = SumProduct | MaxProduct | InLogs


class Operators(Checked):
    """The matrices and the arithmetic of a model, for inference.

    Attributes:
        evaluate: maps coefficients of a message to values at the points of its receiver [node_type, point, rank];
            leading size 1: shared by all.
        project: maps cavity products at the sender's points to coefficients at the receiver [edge_direction, rank,
            point]; rows 2 k and 2 k + 1 are edges of type k from first to second end and back; leading size 1: shared
            by all.
        floor: smallest value of an evaluated message, >= 0, for messages of 2-norm 1; keeps estimated messages
            positive. One number, or one for each node type [node_type].
        nonnegative: maps cavity products at the sender's points to values at the receiver's [edge_direction, point,
            point], entries >= 0. Messages are then values; beliefs use their coefficients, which `project` computes
            after the last iteration. None: messages are coefficients, of any sign.
        prior: quadrature weights of the marginal of each node type at its points [node_type, point]; None: 1 each, a
            sum over states. Only `log_partition` uses it.
        arithmetic: `SumProduct()`, `MaxProduct()`, or either `InLogs`.
        log_scale: logarithm of the scale divided out of the updates of each edge type; None: 0. Only `log_partition`
            uses it.
        prior_log_scale: logarithm of the scale divided out of the prior of each node type; None: 0. Only
            `log_partition` uses it.
        constant: the first messages of each direction [edge_direction, coordinate], of any scale; leading size 1:
            shared by all. None: 1 if `values`; otherwise the update of the constant 1, which in a learned model is the
            constant.
        values: True if messages are values at the points, as for tables of states: `evaluate` is the identity, and is
            not applied.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[3.0, 1.0], [1.0, 3.0]]]))
        >>> local = jnp.array([[1.0, 0.0], [1.0, 1.0]])  # node 0 is in state 0
        >>> forth, back = kbp.run_tree(agree, kbp.chain_graph(2), local).messages
        >>> round(float(forth[0] / forth[1]), 3)  # so node 1 is three times as likely to be in state 0
        3.0
    """

    requires_finite = True

    evaluate: Float[Array, "node_type point rank"]
    project: Float[Array, "edge_direction rank point"]
    floor: ScalarLike | Float[Array, " node_type"] = 0.0
    nonnegative: Float[Array, "edge_direction point point"] | None = None
    prior: Float[Array, "node_type point"] | None = None
    arithmetic: Arithmetic = SumProduct()
    log_scale: Float[Array, " edge_type"] | None = None
    prior_log_scale: Float[Array, " node_type"] | None = None
    constant: Float[Array, "edge_direction coordinate"] | None = None
    values: bool = eqx.field(static=True, default=False)

    @property
    def update(self) -> Float[Array, "edge_direction coordinate point"]:
        """The matrices that map cavity products to messages: `nonnegative`, or else `project`."""
        return self.project if self.nonnegative is None else self.nonnegative

    @property
    def sends_values(self) -> bool:
        """Whether messages are values at the points of their receivers, not coefficients to evaluate."""
        return self.values or self.nonnegative is not None

    @property
    def floors(self) -> Float[Array, " node_type"]:
        """The floor of each node type; length 1: shared by all."""
        return jnp.asarray(self.floor, self.evaluate.dtype).reshape(-1)

    def check_types(self, graph: Graph) -> None:
        """Raise ValueError unless there are matrices for all node and edge types of a graph."""
        node, edge = self.evaluate.shape[0], self.project.shape[0]
        nodes = 1 + max(v for v, *_ in graph.node_types)
        edges = 2 + 2 * max((k for k, *_ in graph.edge_types), default=-1)
        fix = "Pass one matrix for each node type and two for each edge type (forth and back), or one for all."
        rule = f"must have 1 or >= {nodes} matrices"
        _checks.require(node in (1, *range(nodes, node + 1)), "evaluate", rule, node, fix)
        rule = f"must have 1 or >= {edges} matrices"
        _checks.require(edge in (1, *range(edges, edge + 1)), "project", rule, edge, fix)

    __repr__ = show_fields


AnyModel = Operators | LearnedModel
"""What functions of inference accept as a model."""
AnyEvidence = LocalFactors | _checks.Numbers | None
"""What they accept as evidence; an array holds local factors [node, point]."""


def of_type(matrices: Float[Array, "type *axes"], types: Int[Array, "*tiles"]) -> Array:
    """Return the matrix of each type; a single matrix is shared by all."""
    return matrices[types if len(matrices) > 1 else jnp.zeros_like(types)]


def by_tile(
    matrices: Float[Array, "type out column"], types: Int[Array, "*tiles"], x: Float[Array, "*axes column"]
) -> Float[Array, "*axes out"]:
    """Return sum_c matrices_oc x_c, each tile with the matrix of its type.

    Args:
        matrices: one matrix per type, or one for all.
        types: the type of each tile; its axes are the first of x.
        x: array [*tiles, *more, column].
    """
    if len(matrices) == 1 or types.size == 0:
        product = einsum("ac,oc->ao", x.reshape(-1, x.shape[-1]), matrices[0])  # derivatives need two axes
        return product.reshape(*x.shape[:-1], matrices.shape[1])
    tiles = x.reshape(types.size, -1, x.shape[-1])
    product = einsum("toc,tac->tao", matrices[types.reshape(-1)], tiles)
    return product.reshape(*x.shape[:-1], matrices.shape[1])


def multiply_others(values: Float[Array, "tile slot size point"], local: Float[Array, "tile size point"]) -> Products:
    """Return the cavity products by a balanced tree of products, exact at zeros.

    With more than eight slots, the product of every eight is scaled to maximum 1, to prevent underflow.
    """
    if values.shape[1] > SHORT:
        return Products(*_halve(values, jnp.zeros_like(values[..., :1]), local[:, None], 0))
    return Products(jnp.stack(_each(jnp.multiply, split(values, 1), local), axis=1))


def add_others(logs: Float[Array, "tile slot size point"], local: Float[Array, "tile size point"]) -> Array:
    """Return, for each slot, `local` plus the logarithms of the other slots, exact at -inf."""
    num_slots = logs.shape[1]
    if num_slots <= SHORT:
        return jnp.stack(_each(jnp.add, split(logs, 1), local), axis=1)
    left, right = jnp.split(jnp.pad(logs, ((0, 0), (0, num_slots % 2), (0, 0), (0, 0))), 2, axis=1)
    cavity = add_others(left + right, local)
    return jnp.concatenate([cavity + right, cavity + left], axis=1)[:, :num_slots]


def _each(combine: Callable[[Array, Array], Array], values: list[Array], local: Array) -> list[Array]:
    if len(values) == 1:
        return [local]
    left, right = values[: len(values) // 2], values[len(values) // 2 :]
    of_right, of_left = reduce(combine, right), reduce(combine, left)
    return _each(combine, left, combine(local, of_right)) + _each(combine, right, combine(local, of_left))


def _halve(values: Array, removed: Array, local: Array, level: int) -> tuple[Array, Array]:
    """Return cavity products of any number of slots, halving them recursively; the pair of fields of `Products`."""
    num_slots = values.shape[1]
    if num_slots == 1:
        return local, jnp.zeros_like(local[..., :1])
    if num_slots % 2:
        values = jnp.concatenate([values, jnp.ones_like(values[:, :1])], axis=1)
        removed = jnp.concatenate([removed, jnp.zeros_like(removed[:, :1])], axis=1)
    left, right = jnp.split(values, 2, axis=1)
    left_removed, right_removed = jnp.split(removed, 2, axis=1)
    pairs, pairs_removed = left * right, left_removed + right_removed
    if level % 3 == 2:
        largest = largest_coordinate(pairs)
        largest = jnp.where(largest > 0, largest, 1)
        pairs, pairs_removed = pairs / largest, pairs_removed + jnp.log(largest)
    cavity, cavity_removed = _halve(pairs, pairs_removed, local, level + 1)
    both = jnp.concatenate([cavity * right, cavity * left], axis=1)
    both_removed = jnp.concatenate([cavity_removed + right_removed, cavity_removed + left_removed], axis=1)
    return both[:, :num_slots], both_removed[:, :num_slots]


def weighted_products(
    logs: Float[Array, "tile slot size point"],
    local: Float[Array, "tile size point"],
    exponents: Float[Array, "tile slot size"],
) -> Products:
    """Return, for each slot, `local` times all messages raised to their exponents, divided by that of the slot.

    A state with a value 0 is impossible: all products are 0 there, also that of the slot with the 0. The product of all
    slots is scaled, not those of all but one, which takes half of the time (`benchmarks/side_by_side.py`).

    Args:
        logs: logarithms of the messages (`log_or_least`).
        local: local factors.
        exponents: exponents of the messages.
    """
    limits = jnp.finfo(logs.dtype)
    zero = math.log(limits.tiny) * (1 - 1e-5)  # not exactly: logarithms are rounded
    weighted = jnp.where(logs < zero, -jnp.inf, logs * exponents[..., None])  # false for NaN, which stays
    few = logs.shape[1] <= MANY
    total = reduce(jnp.add, split(weighted, 1)) if few else jnp.sum(weighted, axis=1)
    # Without a slot whose values are small there, the product is larger than that of all: the margin is for that.
    largest = finite_logs(jax.lax.stop_gradient(largest_coordinate(total))) - math.log(limits.eps) / 2
    products = local[:, None] * jnp.exp((total - largest)[:, None] - logs)
    return Products(products, jnp.broadcast_to(largest[:, None], (*exponents.shape, 1)))


def log_or_zero(values: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return logarithms; -inf, with derivative 0, where values are <= 0; NaN stays NaN."""
    is_zero = values <= 0
    return jnp.where(is_zero, -jnp.inf, jnp.log(jnp.where(is_zero, 1, values)))


def log_or_least(values: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return logarithms of values clipped below at the smallest normal number; NaN stays NaN."""
    return jnp.log(jnp.maximum(values, jnp.finfo(values.dtype).tiny))


def finite_logs(logs: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return logarithms with 0 in place of -inf, to subtract from sums that are -inf there."""
    return jnp.where(logs == -jnp.inf, 0, logs)


def exp_or_zero(logs: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return exponentials that are 0 only where logarithms are -inf: others do not underflow, also times a table."""
    limits = jnp.finfo(logs.dtype)
    return jnp.where(logs == -jnp.inf, 0, jnp.maximum(jnp.exp(logs), limits.tiny / limits.eps))


def raise_logs(logs: Array, power: Array) -> Array:
    """Multiply logarithms by a power, with a derivative of 0 where they are -inf."""
    return jnp.where(logs == -jnp.inf, -jnp.inf, finite_logs(logs) * power)


def split(array: Array, axis: int) -> list[Array]:
    """Return the slices along an axis, without that axis; the derivative is a single concatenation."""
    slices = jax.lax.split(array, [1] * array.shape[axis], axis)
    return [jnp.squeeze(part, axis) for part in slices]


def at_least(values: Float[Array, "*axes point"], floor: Float[Array, "..."]) -> Float[Array, "*axes point"]:
    """Return the maximum of values and floor, which broadcasts; the derivative is that of the larger one."""
    return jnp.where(values <= floor, floor, values)  # false for NaN, which stays


@jax.custom_jvp
def normalize(messages: Float[Array, "*axes coordinate"]) -> Float[Array, "*axes coordinate"]:
    """Scale messages to 2-norm 1, without overflow or underflow; zeros stay zero, NaN stays NaN."""
    return messages * _scale(messages)


@normalize.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (messages,), (change,) = primals, tangents
    unit, scaled = normalize(messages), change * _scale(messages)
    along = add_coordinates(unit * scaled)
    return unit, scaled - unit * along  # d(x / |x|) = (dx - u (u . dx)) / |x|


def add_coordinates(messages: Float[Array, "*axes coordinate"]) -> Float[Array, "*axes one"]:
    """Add over the last axis; a product with ones is faster where it is short."""
    if messages.shape[-1] > SHORT_AXIS:
        return jnp.sum(messages, axis=-1, keepdims=True)
    return matmul(messages, jnp.ones((messages.shape[-1], 1), messages.dtype))


def largest_coordinate(messages: Float[Array, "*axes coordinate"]) -> Float[Array, "*axes one"]:
    """Return the maximum over the last axis; that of its halves, and so on, is faster where it is short."""
    half = messages.shape[-1] // 2
    if half == 0 or messages.shape[-1] > SHORT_AXIS:
        return jnp.max(messages, axis=-1, keepdims=True)
    pairs = jnp.maximum(messages[..., :half], messages[..., half : 2 * half])
    return largest_coordinate(jnp.concatenate([pairs, messages[..., 2 * half :]], axis=-1))


def is_zero(messages: Float[Array, "*axes coordinate"]) -> Bool[Array, "*axes"]:
    """Return whether `normalize` of each message is 0."""
    return add_coordinates(jnp.abs(messages))[..., 0] < jnp.finfo(messages.dtype).tiny  # false for NaN


def _scale(messages: Array) -> Float[Array, "*axes one"]:
    """Return 1 / norm, by way of the 1-norm, so that squares neither overflow nor underflow; 0 for zeros."""
    size = add_coordinates(jnp.abs(messages))  # no stop_gradient: second derivatives come from here
    zero = size < jnp.finfo(messages.dtype).tiny  # false for NaN, which stays
    inverse = 1 / jnp.where(zero, jnp.inf, size)
    square = add_coordinates((messages * inverse) ** 2)
    return inverse * jax.lax.rsqrt(jnp.where(zero, 1, square))
