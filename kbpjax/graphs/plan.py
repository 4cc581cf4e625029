"""Index tables of a graph for message passing, built once in NumPy.

Messages are rows, ordered by the part of the sending node, then by edge type and direction. For each part of the
nodes, a plan lists the rows of the incoming messages, and the positions of the cavity products that become the
outgoing rows. The parts depend on the use:

- one part with all nodes: a synchronous iteration;
- one part per color: the graph-coloring schedule;
- consecutive nodes: derivatives in less memory;
- one part per device: a sharded graph.

Clamped nodes are handled here: `Plan.without_incoming` returns the plan in which their incoming messages count as 1.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.graphs.counting import groups, ranked, stable_order

Sizes = Callable[[int], int]

TILE, TILES = 64, 8
"""If the types have uneven sizes, tiles have at most `TILE` members, or 1 / `TILES` of the mean number of a type: the
product of a larger tile takes less time, and more of it is padding (`benchmarks/side_by_side.py`)."""

SMALL = 4096
"""Number of slots up to which a table is not split by degree."""

MEMBERS = 32
"""Smallest mean size of groups of nodes with equal neighborhood types for which each group has separate tiles."""

LEAST, RARE = 64, 32
"""Smallest tile size in tables of rounded sizes: `LEAST`, or 1 / `RARE` of the mean number of nodes of a type.

The number of nodes of a rare degree varies most between graphs; tables of one size hold few or many of them.
"""

SPARE = 1.25
"""Largest ratio of rows to messages at which padding costs less than reordering products."""


def round_up(count: int) -> int:
    """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, .. that is at least a count >= 1."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


class Block(eqx.Module):
    """Nodes of similar degree, in tiles of one node type each, and their incoming messages.

    Attributes:
        types: node type of each tile [*part, tile].
        nodes: node numbers [*part, tile, size]; padding holds the number of nodes.
        incoming: row of each incoming message [*part, tile, slot, size]; padding holds the number of rows.
    """

    types: Int[Array, "*part tile"]
    nodes: Int[Array, "*part tile size"]
    incoming: Int[Array, "*part tile slot size"]

    def without_incoming(self, nodes: Bool[Array, " node"], num_rows: int) -> "Block":
        """Return the block in which the incoming messages of the marked nodes count as 1."""
        marked = jnp.append(nodes, False)[self.nodes][..., None, :]
        return Block(self.types, self.nodes, jnp.where(marked, num_rows, self.incoming))


class Plan(eqx.Module):
    """Parts of the nodes with their incoming and outgoing messages.

    Attributes:
        blocks: the nodes of each part, grouped by degree.
        kinds: 2 type + direction of the edges of each tile of outgoing messages [part, tile]; if `route` is None, of
            each tile and slot of the cavity products [part, tile, slot].
        route: gather indices that map cavity products (blocks [tile, slot, size], flattened and concatenated) to the
            order of the outgoing messages [part, tile, size]; None: the orders agree.
        edges: directed edge of each row [row]; padding holds the number of edges.
        position: row of each directed edge [edge].
        place: place of each row among the incoming messages of all parts and blocks [tile, slot, size], flattened
            and concatenated [row]; padding holds their number.
    """

    blocks: tuple[Block, ...]
    kinds: Int[Array, "*part_and_tiles"]
    route: Int[Array, "*part edge_tile edge_size"] | None
    edges: Int[Array, " row"]
    position: Int[Array, " edge"]
    place: Int[Array, " row"]

    @classmethod
    def of(
        cls,
        senders: NDArray,
        receivers: NDArray,
        edge_type: NDArray,
        node_type: NDArray,
        part_of_node: NDArray | None = None,
        *,
        rounded: bool = False,
    ) -> "Plan":
        """Return the plan of a graph.

        Args:
            senders: sender of each directed edge [edge]; the second half of the edges is the reverse of the first.
            receivers: receiver of each directed edge [edge].
            edge_type: type of each directed edge [edge].
            node_type: type of each node [node].
            part_of_node: part of each node, 0 .. k - 1 [node]; None: all in one.
            rounded: whether tables have rounded sizes, so that similar graphs have tables of the same shapes.
        """
        num_nodes, num_edges = len(node_type), len(senders)
        parts = np.zeros(num_nodes, int) if part_of_node is None else part_of_node
        up: Sizes = round_up if rounded else int
        count = 1 + int(parts.max())
        reverse = np.roll(np.arange(num_edges), num_edges // 2)
        kinds = 2 * edge_type + (np.arange(num_edges) >= num_edges // 2)
        degree = np.bincount(receivers, minlength=num_nodes)
        classes = _degree_classes(degree)
        least = max(LEAST, num_nodes // (RARE * len(np.unique(node_type)))) if rounded else 1
        for group in (node_type if rounded else _like_neighborhoods(node_type, receivers, edge_type), node_type):
            tiled = [_tile_parts(group, members, parts, count, up, least) for members in classes]
            slots = _slots_by_kind(tiled, receivers, group, kinds[reverse])
            if slots is not None:
                break
        slot, slot_kinds = slots or (_slots_in_order(receivers, degree), None)
        up = up if slot_kinds is None else int

        listed_at, shapes, total = _positions([nodes for nodes, _ in tiled], receivers, slot, num_nodes, up)
        part_of_receiver = parts[receivers]
        listed = np.full((count, total), num_edges)
        listed[part_of_receiver, listed_at] = np.arange(num_edges)
        if slot_kinds is not None:
            edges = np.append(reverse, num_edges)[listed].reshape(count, *shapes[0])
            tile_kinds = slot_kinds[tiled[0][1]]
        else:
            edges, tile_kinds = _tile_parts(
                kinds, np.arange(num_edges), parts[senders], count, up, LEAST if rounded else 1
            )
        row = np.zeros(num_edges + 1, int)
        row[edges] = np.arange(edges.size).reshape(edges.shape)
        row[-1] = edges.size

        ends = np.cumsum([np.prod(shape) for shape in shapes])
        incoming = [table.reshape(count, *shape) for table, shape in zip(np.split(listed, ends[:-1], 1), shapes)]
        type_of = np.zeros(1 + group.max(), int)
        type_of[group] = node_type
        return cls(
            blocks=tuple(
                Block(_index(type_of[groups]), _index(nodes), _index(row[table]))
                for (nodes, groups), table in zip(tiled, incoming, strict=True)
            ),
            kinds=_index(tile_kinds),
            route=None if slot_kinds is not None else _index(np.append(listed_at[reverse], 0)[edges]),
            edges=_index(edges.reshape(-1)),
            position=_index(row[:-1]),
            place=_index(np.append(part_of_receiver * total + listed_at, count * total)[edges].reshape(-1)),
        )

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return self.kinds.shape[0]

    @property
    def present(self) -> Bool[Array, "part row"]:
        """True where a row of each part is a message, False for padding."""
        return (self.edges < len(self.position)).reshape(self.num_parts, -1)

    def laid_out(self, messages: Array) -> Array:
        """Return messages [edge, coordinate] in the order of the plan [row, coordinate], with zeros in padding."""
        return messages.at[self.edges].get(mode="fill", fill_value=0)

    def of_edges(self, rows: Array) -> Array:
        """Return messages in the order of the plan [row, coordinate] in that of edges [edge, coordinate]."""
        return rows[self.position]

    def without_incoming(self, nodes: Bool[Array, " node"] | None) -> "Plan":
        """Return the plan in which the incoming messages of clamped nodes count as 1.

        The outgoing messages of these nodes then depend on their local factors only. Messages to them are still
        computed, but have no effect.

        Args:
            nodes: mask of the clamped nodes; None: no clamps.
        """
        if nodes is None:
            return self
        empty = tuple(block.without_incoming(nodes, len(self.edges)) for block in self.blocks)
        return eqx.tree_at(lambda plan: plan.blocks, self, empty)


def _degree_classes(degree: NDArray) -> list[NDArray]:
    """Return groups of nodes of similar degree, to limit the padding of slots."""
    degree = np.maximum(degree, 1)
    if len(degree) * degree.max() <= max(2 * degree.sum(), SMALL):
        return [np.arange(len(degree))]
    exponent = np.frexp(degree - 1)[1]  # degrees 1, 2, 3 .. 4, 5 .. 8, and so on
    return [np.flatnonzero(exponent == e) for e in groups(exponent)[0]]


def _like_neighborhoods(node_type: NDArray, receivers: NDArray, edge_type: NDArray) -> NDArray:
    """Return the group of each node by node type and set of incoming edge types; the node type if groups are small."""
    count = 1 + int(edge_type.max(initial=0))
    if count == 1:
        return node_type
    present = np.zeros((len(node_type), count), bool)
    present[receivers, edge_type] = True
    rows = np.column_stack([node_type.astype(">u4").view(np.uint8).reshape(len(node_type), 4), np.packbits(present, 1)])
    _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    if len(node_type) < MEMBERS * len(first):
        return node_type
    return np.argsort(np.argsort(first))[group.reshape(-1)]


def _tile_parts(
    types: NDArray, members: NDArray, parts: NDArray, count: int, up: Sizes, least: int
) -> tuple[NDArray, NDArray]:
    """Return the members of each part, grouped by type into tiles of equal size.

    Args:
        types: type of every row.
        members: the rows to group.
        parts: part of every row.
        count: number of parts.
        up: rounds sizes up.
        least: smallest tile size.

    Returns:
        Row numbers [part, tile, size], padded with the number of all rows, and the type of each tile [part, tile].
    """
    of_parts = [members[parts[members] == part] for part in range(count)] if count > 1 else [members]
    size = up(max(least, *(_tile_size(types[one]) for one in of_parts)))
    tiled = [_tile(types, one, size) for one in of_parts]
    most = up(max(len(kinds) for _, kinds in tiled))
    rows = [np.pad(rows, ((0, most - len(rows)), (0, 0)), constant_values=len(types)) for rows, _ in tiled]
    return np.stack(rows), np.stack([np.pad(kinds, (0, most - len(kinds))) for _, kinds in tiled])


def _tile_size(types: NDArray) -> int:
    """Return the tile size: the largest count of a type if all types have about equal counts, else smaller ones."""
    counts = groups(types)[1]
    largest = int(counts.max(initial=1))
    if len(counts) * largest <= SPARE * len(types):
        return largest
    return min(largest, max(TILE, len(types) // (TILES * len(counts))))


def _tile(types: NDArray, members: NDArray, size: int) -> tuple[NDArray, NDArray]:
    """Group members by type into tiles: row numbers [tile, size], and the type of each tile."""
    present, counts, _ = groups(types[members])
    tiles_of_type = -(-counts // size)
    within = np.arange(len(members)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(size * (np.cumsum(tiles_of_type) - tiles_of_type), counts)
    rows = np.full(tiles_of_type.sum() * size, len(types))
    rows[first + within] = members[stable_order(types[members])]
    return rows.reshape(-1, size), np.repeat(present, tiles_of_type)


def _slots_by_kind(
    tiled: list[tuple[NDArray, NDArray]], receivers: NDArray, group: NDArray, reply: NDArray
) -> tuple[NDArray, NDArray] | None:
    """Assign slots so that slot j of a group always holds reverse edges of one kind: products need no reordering.

    Args:
        tiled: nodes and groups of the tiles of each degree class.
        receivers: receiver of each directed edge.
        group: group of each node.
        reply: kind of the reverse of each directed edge.

    Returns:
        The slot of each edge, and the kind of each slot [group, slot]; None if that needs too many slots.
    """
    if len(tiled) > 1 or len(receivers) == 0:
        return None
    num_kinds = 1 + int(reply.max())
    both = receivers * num_kinds + reply
    order = stable_order(both)
    both = both[order]
    starts = np.flatnonzero(np.append(True, both[1:] != both[:-1]))
    counts = np.diff(np.append(starts, len(order)))
    pairs = np.stack([group[both[starts] // num_kinds], both[starts] % num_kinds])
    first, inverse = ranked(*pairs)
    of_group = pairs[:, first]
    needed = np.zeros(of_group.shape[1], int)
    np.maximum.at(needed, inverse, counts)
    before = np.cumsum(needed) - needed
    first_of_group = np.searchsorted(of_group[0], of_group[0])
    base = before - before[first_of_group]
    width = int((base + needed).max())
    if width * tiled[0][0].size > SPARE * len(receivers):
        return None
    slot = np.empty(len(order), int)
    slot[order] = np.repeat(base[inverse] - starts, counts) + np.arange(len(order))
    kinds = np.zeros((1 + group.max(), width), int)
    groups = np.repeat(of_group[0], needed)
    kinds[groups, np.arange(len(groups)) - np.repeat(before[first_of_group], needed)] = np.repeat(of_group[1], needed)
    return slot, kinds


def _slots_in_order(receivers: NDArray, degree: NDArray) -> NDArray:
    """Number the incoming edges of each node 0, 1, 2, ..."""
    order = stable_order(receivers)
    slot = np.empty(len(receivers), int)
    slot[order] = np.arange(len(receivers)) - np.repeat(np.cumsum(degree) - degree, degree)
    return slot


def _positions(
    tables: list[NDArray], receivers: NDArray, slot: NDArray, num_nodes: int, up: Sizes
) -> tuple[NDArray, list[tuple[int, int, int]], int]:
    """Return the position of each incoming message in the flattened blocks [tile, slot, size] of its part.

    Args:
        tables: nodes of each block [part, tile, size]; padding holds the number of nodes.
        receivers: receiver of each directed edge.
        slot: slot of each directed edge.
        num_nodes: number of nodes.
        up: rounds numbers of slots up.

    Returns:
        The position of each edge in its part, the shape of each block, and the number of positions of a part.
    """
    width_of = np.ones(num_nodes + 1, int)
    np.maximum.at(width_of, receivers, slot + 1)
    first, stride, shapes, total = np.zeros(num_nodes + 1, int), np.zeros(num_nodes + 1, int), [], 0
    for nodes in tables:
        _, tiles, size = nodes.shape
        width = up(int(width_of[nodes].max(initial=1)))
        first[nodes] = total + np.arange(tiles)[:, None] * width * size + np.arange(size)
        stride[nodes] = size
        shapes.append((tiles, width, size))
        total += tiles * width * size
    return first[receivers] + slot * stride[receivers], shapes, total


def _index(array: NDArray) -> Array:
    return _checks.to_jax(array, np.int32)


INBOX = 8
"""Largest number of slots in a row of an inbox."""


def inboxes(receivers: NDArray, node_type: NDArray, *, rounded: bool = False) -> dict[int, tuple[Array, Array | None]]:
    """Return the incoming edges of the nodes of each type, for their beliefs.

    Args:
        receivers: receiver of each directed edge.
        node_type: type of each node.
        rounded: whether numbers of rows and slots are rounded up, as in `Plan.of`.

    Returns:
        By type: directed edges [row, slot], padded with the number of edges; and the position of each row's node among
        the nodes of the type [row], or None if each node has one row.
    """
    degree = np.bincount(receivers, minlength=len(node_type))
    starts, order = np.cumsum(degree) - degree, np.append(stable_order(receivers), len(receivers))
    up: Sizes = round_up if rounded else int
    found = {}
    for v in groups(node_type)[0].tolist():
        members = node_type == v
        needed, first = degree[members], starts[members]
        width = up(int(np.clip(needed.max(initial=1), 1, INBOX)))
        rows = np.maximum(1, -(-needed // width))
        owner = np.repeat(np.arange(len(needed)), rows)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(rows) - rows, rows)
        number = width * within[:, None] + np.arange(width)
        place = order[np.where(number < needed[owner][:, None], first[owner][:, None] + number, len(receivers))]
        spare = 0 if len(owner) == len(needed) else up(len(owner)) - len(owner)  # rows without messages
        place = np.pad(place, ((0, spare), (0, 0)), constant_values=len(receivers))
        found[v] = _index(place), None if len(owner) == len(needed) else _index(np.pad(owner, (0, spare)))
    return found
