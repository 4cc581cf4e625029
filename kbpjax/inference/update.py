r"""The message update (eq. 15): evaluate, multiply, project. It needs the operators of a model, not its kernels.

`update` is eq. 15. A message m_ts is a vector of coefficients on the basis of its receiver, a row of `messages`
[row, coordinate] in the order of a `Plan`. The update evaluates the incoming messages of node t at its points,
multiplies all but one with the evidence, and projects this cavity product onto the basis of the receiver:

    m_ts  <-  project_ts @ ( local_t * prod_{u in G(t) \ s} evaluate_t @ m_ut )

In code: `gather` the incoming messages, `evaluate` and multiply them (`cavities`), `project`. `send` adds the damping
(`damp`), which normalizes updates to 2-norm 1. Clamped nodes need no special case here: `Plan.without_incoming`
replaces their incoming messages by 1, so that they send project @ local, whatever their neighbors send.

Every update rule of the paper, and discrete belief propagation (evaluate = identity, project = the conditional table),
is this line with other matrices. Nonnegative operators combine both matrices: a message is then its values at the
points of its receiver, and `nonnegative` = evaluate @ project, with entries >= 0. With an exponent rho for each edge,

    m_ts  <-  project_ts @ ( local_t * prod_{u in G(t)} (evaluate_t @ m_ut)^rho_ut / (evaluate_t @ m_st) ):

tree-reweighted (rho: edge appearance probabilities) or fractional belief propagation; rho = 1 gives the first line.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kbpjax._misc import vary_like
from kbpjax.graphs.plan import Block, Plan
from kbpjax.inference.operators import (
    Operators,
    Products,
    at_least,
    by_tile,
    log_or_least,
    normalize,
    of_type,
    weighted_products,
)


class PlanPart(eqx.Module):
    """A part of the nodes with their local factors; or all parts of a plan, stacked on the first axis.

    Attributes:
        blocks, kinds, route: as in `Plan`.
        present: True where an outgoing row is a message, False for padding [*part, sent].
        local: local factors of the nodes of each block at their points [*part, tile, size, point].
        exponents: exponent of each incoming message of each block [*part, tile, slot, size]; None: 1.
        place: as in `Plan`, if it has one part; else None.
    """

    blocks: tuple[Block, ...]
    kinds: Int[Array, "*part_and_tiles"]
    route: Int[Array, "*part edge_tile edge_size"] | None
    present: Bool[Array, "*part sent"]
    local: tuple[Float[Array, "*part _ _ point"], ...]
    exponents: tuple[Float[Array, "*part _ _ _"], ...] | None
    place: Int[Array, "*part row"] | None = None


def parts_of(plan: Plan, local: Float[Array, "node point"], exponents: Float[Array, " pair"] | None) -> PlanPart:
    """Return the parts of a plan with local factors and exponents in the layout of its blocks; 1 in padding."""
    powers = None if exponents is None else of_edges(exponents)[plan.edges]
    place = plan.place[None] if plan.num_parts == 1 else None
    laid_out = lay_out(plan.blocks, local, powers)
    return PlanPart(plan.blocks, plan.kinds, plan.route, plan.present, *laid_out, place)


def lay_out(
    blocks: tuple[Block, ...], local: Float[Array, "node point"], exponents: Float[Array, " row"] | None
) -> tuple[tuple[Array, ...], tuple[Array, ...] | None]:
    """Return `PlanPart.local` and `PlanPart.exponents`, from local factors of nodes and exponents of rows."""
    padded = jnp.concatenate([local, jnp.ones_like(local[:1])])
    of_blocks = tuple(padded[block.nodes] for block in blocks)
    if exponents is None:
        return of_blocks, None
    powers = jnp.append(exponents, jnp.ones_like(exponents, shape=1))
    return of_blocks, tuple(powers[block.incoming] for block in blocks)


def of_edges(exponents: Float[Array, " pair"]) -> Float[Array, " edge_and_one"]:
    """Return the exponent of each directed edge, and 1 at the end for padding."""
    return jnp.concatenate([exponents, exponents, jnp.ones_like(exponents, shape=1)])


def update(
    operators: Operators,
    part: PlanPart,
    messages: Float[Array, "row coordinate"],
    matrices: Float[Array, "edge_direction out point"] | None = None,
) -> Float[Array, "sent out"]:
    """Return the outgoing messages of one part, not normalized (eq. 15).

    Args:
        operators: the model's operators.
        part: the part.
        messages: all messages.
        matrices: matrices that are applied to the cavity products; None: `operators.update`.
    """
    return update_from(operators, part, factors_of(operators, part, messages), matrices)


def update_from(
    operators: Operators,
    part: PlanPart,
    factors: Float[Array, "row coordinate"],
    matrices: Float[Array, "edge_direction out point"] | None = None,
) -> Float[Array, "sent out"]:
    """Return `update` from the `factors_of` all messages."""
    return project(operators, part, cavities(operators, part, gather(part, factors), len(factors)), matrices)


def factors_of(
    operators: Operators, part: PlanPart, messages: Float[Array, "row coordinate"]
) -> Float[Array, "row coordinate"]:
    """Return the form of messages that is gathered: logarithms of values that have exponents.

    Logarithms of what is gathered take several times as long: XLA:CPU computes them entry by entry
    (`benchmarks/side_by_side.py`).
    """
    return log_or_least(messages) if operators.sends_values and part.exponents is not None else messages


def cavities(
    operators: Operators,
    part: PlanPart,
    incoming: Sequence[Float[Array, "_ _ _ coordinate"]],
    num_rows: int,
) -> list[Products]:
    """Return the cavity products of each block: local factors times all incoming messages but one.

    Args:
        operators: the model's operators.
        part: the part.
        incoming: incoming `factors_of` messages, of `gather`.
        num_rows: number of rows of messages.
    """
    products = []
    for i, block in enumerate(part.blocks):
        if part.exponents is None:
            values = evaluate(operators, block, incoming[i], num_rows)
            products.append(operators.arithmetic.cavity_products(values, part.local[i]))
        else:
            logs = evaluate_logs(operators, block, incoming[i], num_rows)
            products.append(weighted_products(logs, part.local[i], part.exponents[i]))
    return products


def project(
    operators: Operators,
    part: PlanPart,
    products: Sequence[Products],
    matrices: Float[Array, "edge_direction out point"] | None = None,
) -> Float[Array, "sent out"]:
    """Map cavity products to outgoing messages, in the order of the plan's rows; 0 in padding."""
    matrices = operators.update if matrices is None else matrices
    cavity = in_order_sent(part, [product.values for product in products])
    raw = operators.arithmetic.apply(matrices, part.kinds, cavity)
    return jnp.where(part.present[:, None], raw.reshape(-1, raw.shape[-1]), 0)


def gather(
    part: PlanPart, messages: Float[Array, "row coordinate"]
) -> tuple[Float[Array, "tile slot size coordinate"], ...]:
    """Return the incoming messages of each block; arbitrary numbers in padding, which `evaluate` replaces by 1."""
    incoming = tuple(block.incoming for block in part.blocks)
    if len(messages) == 0:
        return tuple(jnp.zeros_like(messages, shape=(*table.shape, messages.shape[1])) for table in incoming)
    return take(messages, incoming) if part.place is None else take_each_once(messages, incoming, part.place)


def take(rows: Array, tables: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the rows of each index table."""
    return tuple(rows.at[table].get(mode="clip") for table in tables)


@jax.custom_jvp
def take_each_once(rows: Array, tables: tuple[Array, ...], place: Array) -> tuple[Array, ...]:
    """Return the rows of each index table, like `take`; tables repeat a row only in padding.

    The transpose of `take` adds each value to its row. This one gathers instead, which is several times as fast:
    `place` is the position of each row in the concatenated tables.
    """
    del place
    return take(rows, tables)


@take_each_once.defjvp
def _(primals: Any, tangents: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    rows, tables, place = primals
    index = jnp.concatenate([table.reshape(-1) for table in tables])
    index, place = vary_like((index, place), (rows, tangents[0]))  # the solver below does not mark them itself
    count, ends = len(index), np.cumsum([table.size for table in tables])[:-1]
    length = max(count, len(place))

    def there(_: Any, values: Array) -> Array:
        return jnp.pad(values[jnp.minimum(index, len(place) - 1)], ((0, length - count), (0, 0)))

    def back(_: Any, values: Array) -> Array:
        taken = values[:count].at[place].get(mode="fill", fill_value=0)
        return jnp.pad(taken, ((0, length - len(place)), (0, 0)))

    # A linear map with a transpose of our own: jax has no simpler one that all of its transformations accept.
    padded = jnp.pad(tangents[0], ((0, length - len(place)), (0, 0)))
    moved = jax.lax.custom_linear_solve(partial(back, None), padded, there, back)[:count]
    pieces = [p.reshape(*t.shape, -1) for p, t in zip(jnp.split(moved, ends), tables, strict=True)]
    return take_each_once(rows, tables, place), tuple(pieces)


def evaluate(
    operators: Operators, block: Block, incoming: Float[Array, "tile slot size coordinate"], num_rows: int
) -> Float[Array, "tile slot size point"]:
    """Return the values of incoming messages (of `gather`) at the node's points, at least the floor; 1 in padding."""
    values = incoming if operators.sends_values else by_tile(operators.evaluate, block.types, incoming)
    floor = of_type(operators.floors, block.types)[:, None, None, None]
    return jnp.where((block.incoming < num_rows)[..., None], at_least(values, floor), 1)


def evaluate_logs(
    operators: Operators, block: Block, incoming: Float[Array, "tile slot size coordinate"], num_rows: int
) -> Float[Array, "tile slot size point"]:
    """Return the logarithms of the values of incoming `factors_of` messages with exponents; 0 in padding."""
    if not operators.sends_values:
        return log_or_least(evaluate(operators, block, incoming, num_rows))
    floor = log_or_least(of_type(operators.floors, block.types))[:, None, None, None]
    return jnp.where((block.incoming < num_rows)[..., None], at_least(incoming, floor), 0)


def in_order_sent(part: PlanPart, products: Sequence[Float[Array, "_ _ _ point"]]) -> Float[Array, "*tiles row point"]:
    """Reorder cavity products from the layout of the blocks to the order of the outgoing messages."""
    if part.route is None:
        return products[0]
    flat = [block.reshape(-1, block.shape[-1]) for block in products]
    return jnp.concatenate(flat).at[part.route].get(mode="clip")


def each_part(compute: Callable[[PlanPart], Float[Array, "sent out"]], parts: PlanPart) -> Float[Array, "row out"]:
    """Return `compute` of each part, concatenated; a scan, so that only one part at a time needs memory."""
    if len(parts.present) == 1:
        return compute(jax.tree.map(lambda array: array[0], parts))
    _, stacked = jax.lax.scan(jax.checkpoint(lambda _, part: (None, compute(part)), prevent_cse=False), None, parts)
    return stacked.reshape(-1, stacked.shape[-1])


def damp(
    old: Float[Array, "sent coordinate"], raw: Float[Array, "sent coordinate"], damping: Float[Array, ""]
) -> tuple[Float[Array, "sent coordinate"], Float[Array, "sent coordinate"]]:
    """Return the damped messages d m + (1 - d) normalize(raw), and the undamped change normalize(raw) - m.

    Coordinates whose update is 0 are not damped: states that a neighbor forbids have the value 0 at once.
    """
    new = normalize(raw)
    change = jax.lax.stop_gradient(new - old)
    return jnp.where(new == 0, 0, damping * old) + (1 - damping) * new, change


def send(
    operators: Operators,
    part: PlanPart,
    old: Float[Array, "sent coordinate"],
    messages: Float[Array, "row coordinate"],
    damping: Float[Array, ""],
) -> tuple[Float[Array, "sent coordinate"], Float[Array, "sent coordinate"]]:
    """Return the damped outgoing messages of one part, given all messages, and their undamped change."""
    return damp(old, update(operators, part, messages), damping)


def evaluate_local(operators: Operators, plan: Plan, messages: Float[Array, "node rank"]) -> Float[Array, "node point"]:
    """Return the values of one message per node at the node's points, at least the floor."""
    padded = jnp.concatenate([messages, messages[:1]])
    values = jnp.zeros_like(messages, shape=(len(messages), operators.evaluate.shape[1]))
    for block in plan.blocks:
        types, nodes = block.types[0], block.nodes[0]
        of_block = by_tile(operators.evaluate, types, padded[nodes])
        floor = of_type(operators.floors, types)[:, None, None]
        values = values.at[nodes].set(at_least(of_block, floor), mode="drop")
    return values
