"""Index tables of a graph, built in NumPy: rows grouped by type, and places for the incoming edges of each node."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TILE = 64
"""Rows of one tile where the types are of uneven size."""

INBOX = 8
"""Most slots of one row of an inbox."""

SMALL = 4096
"""Slots below which a table is not worth splitting by degree."""

ALIKE = 32
"""Nodes of a group, on average, from which groups are worth tiles of their own."""

SPARE = 1.25
"""Places for one row up to which padding costs less than what it saves."""


class Tables(NamedTuple):
    """Where nodes, the edges that they get and the edges that they send stand in flat arrays.

    Attributes:
        nodes: rows of nodes, and the node type of each tile, for each class of degrees.
        edges: rows of directed edges, and the kind of each tile: 2 type + (0 forth or 1 back).
        slots: incoming edges, in the order of `nodes`.
        place: each edge's place in all `slots`, flattened.
        in_columns: whether each product stands in `slots` where the edge that sends it stands in `edges`.
    """

    nodes: list[tuple[NDArray, NDArray]]
    edges: tuple[NDArray, NDArray]
    slots: list[NDArray]
    place: NDArray
    in_columns: bool


def tabulate(
    node_type: NDArray,
    edge_type: NDArray,
    receivers: NDArray,
    reverse: NDArray,
    tile_nodes: Callable[[NDArray, NDArray], tuple[NDArray, NDArray]],
    tile_edges: Callable[[NDArray], tuple[NDArray, NDArray]],
) -> Tables:
    """Lay out a graph: products in the columns of the edges that send them where that is cheap.

    Args:
        node_type: type of each node.
        edge_type: type of each directed edge.
        receivers: receiver of each directed edge.
        reverse: the directed edge that goes the other way.
        tile_nodes: from the group of each node, and the nodes of a class, to rows [*part, tile, tile_size] and groups
            [*part, tile] of tiles.
        tile_edges: from the kind of each edge to rows and kinds of tiles.
    """
    num_edges = len(receivers)
    degree = np.bincount(receivers, minlength=len(node_type))
    kinds = 2 * edge_type + (np.arange(num_edges) >= num_edges // 2)
    classes = degree_classes(degree)
    for group in (alike(node_type, receivers, edge_type), node_type):
        tiled = [tile_nodes(group, members) for members in classes]
        rows = [rows for rows, _ in tiled]
        columns = edge_columns(rows, receivers, group, kinds[reverse])
        if columns:
            break
    slots, place = place_slots(rows, receivers, columns[0] if columns else slots_in_order(receivers, degree))
    edges = tile_columns(slots[0], tiled[0][1], columns[1], reverse) if columns else tile_edges(kinds)
    type_of = np.zeros(1 + group.max(), int)
    type_of[group] = node_type
    return Tables([(rows, type_of[groups]) for rows, groups in tiled], edges, slots, place, columns is not None)


def tile_size(types: NDArray) -> int:
    """Return how many rows of these types make a tile: all of a type where the types are of about equal size."""
    counts = np.unique(types, return_counts=True)[1]
    largest = int(counts.max(initial=1))
    return largest if len(counts) * largest <= 1.25 * len(types) else min(TILE, largest)


def tile_rows(types: NDArray, members: NDArray, size: int) -> tuple[NDArray, NDArray]:
    """Group members by type into tiles.

    Args:
        types: type of every row.
        members: the rows to group.
        size: rows of a tile.

    Returns:
        Row numbers [tile, tile_size], padded with the number of all rows, and the type of each tile.
    """
    present, counts = np.unique(types[members], return_counts=True)
    tiles_of_type = -(-counts // size)
    within = np.arange(len(members)) - np.repeat(np.cumsum(counts) - counts, counts)
    first_place = np.repeat(size * (np.cumsum(tiles_of_type) - tiles_of_type), counts)
    rows = np.full(tiles_of_type.sum() * size, len(types))
    rows[first_place + within] = members[np.argsort(types[members], kind="stable")]
    return rows.reshape(-1, size), np.repeat(present, tiles_of_type)


def degree_classes(degree: NDArray) -> list[NDArray]:
    """Split nodes so that slots padded to the largest degree of a class are few: one class where that is so already."""
    degree = np.maximum(degree, 1)
    if len(degree) * degree.max() <= max(4 * degree.sum(), SMALL):
        return [np.arange(len(degree))]
    exponent = np.frexp(degree - 1)[1]  # degrees 1, 2, 3 .. 4, 5 .. 8, and so on
    return [np.flatnonzero(exponent == e) for e in np.unique(exponent)]


def alike(node_type: NDArray, receivers: NDArray, edge_type: NDArray) -> NDArray:
    """Number groups of nodes of one type with neighbours along the same edge types, by their first nodes.

    The types themselves are returned where such groups are small.
    """
    count = 1 + int(edge_type.max(initial=0))
    node, kind = np.divmod(np.unique(receivers.astype(np.int64) * count + edge_type), count)
    marks = np.random.default_rng(0).integers(2**62, size=count + 1 + int(node_type.max()), dtype=np.uint64)
    mark = marks[count + node_type]
    np.add.at(mark, node, marks[kind])
    _, first, group = np.unique(mark, return_index=True, return_inverse=True)
    if len(node_type) < ALIKE * len(first):
        return node_type
    return np.argsort(np.argsort(first))[group.reshape(-1)]


def edge_columns(
    tables: list[NDArray], receivers: NDArray, group: NDArray, reply: NDArray
) -> tuple[NDArray, NDArray] | None:
    """Choose the slot of each incoming edge so that all nodes of a group answer in one slot with edges of one kind.

    Products then stand where the edges do that send them, and need not be moved: on grids, chains and other graphs
    whose nodes are alike.

    Args:
        tables: rows of nodes, one table for each class of degrees; padding holds the number of nodes.
        receivers: receiver of each directed edge.
        group: group of each node.
        reply: kind of the edge that goes back, for each directed edge.

    Returns:
        The slot of each edge, and the kind of each slot [group, slot]; None where that needs too many slots.
    """
    if len(tables) > 1 or len(receivers) == 0:
        return None
    order = np.lexsort((reply, receivers))
    both = np.stack([receivers, reply])[:, order]
    starts = np.flatnonzero(np.append(True, np.any(both[:, 1:] != both[:, :-1], axis=0)))
    counts = np.diff(np.append(starts, len(order)))
    pairs = np.stack([group[both[0, starts]], both[1, starts]])
    of_group, inverse = np.unique(pairs, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    needed = np.zeros(of_group.shape[1], int)
    np.maximum.at(needed, inverse, counts)
    before = np.cumsum(needed) - needed
    first_of_group = np.searchsorted(of_group[0], of_group[0])
    base = before - before[first_of_group]
    width = int((base + needed).max())
    if width * tables[0].size > SPARE * len(receivers):
        return None
    slot = np.empty(len(order), int)
    slot[order] = np.repeat(base[inverse] - starts, counts) + np.arange(len(order))
    kinds = np.zeros((1 + group.max(), width), int)
    groups = np.repeat(of_group[0], needed)
    kinds[groups, np.arange(len(groups)) - np.repeat(before[first_of_group], needed)] = np.repeat(of_group[1], needed)
    return slot, kinds


def tile_columns(slots: NDArray, tile_groups: NDArray, kinds: NDArray, reverse: NDArray) -> tuple[NDArray, NDArray]:
    """Tile directed edges by the slots that their answers stand in, as `edge_columns` chose them.

    Args:
        slots: incoming edges [*part, tile, tile_size, deg].
        tile_groups: group of the nodes of each tile [*part, tile].
        kinds: kind of the edges sent in each slot [group, deg].
        reverse: the directed edge that goes the other way.

    Returns:
        Edges [*part, tile * deg, tile_size], padded with the number of all edges, and their kinds [*part, tile * deg].
    """
    sent = np.swapaxes(np.append(reverse, len(reverse))[slots], -1, -2)
    return sent.reshape(*slots.shape[:-3], -1, slots.shape[-2]), kinds[tile_groups].reshape(*tile_groups.shape[:-1], -1)


def slots_in_order(receivers: NDArray, degree: NDArray) -> NDArray:
    """Number the incoming edges of each node 0, 1, 2, ..."""
    order = np.argsort(receivers, kind="stable")
    slot = np.empty(len(receivers), int)
    slot[order] = np.arange(len(receivers)) - np.repeat(np.cumsum(degree) - degree, degree)
    return slot


def place_slots(tables: list[NDArray], receivers: NDArray, slot: NDArray) -> tuple[list[NDArray], NDArray]:
    """List the incoming edges of the nodes of each table, and find each edge's place.

    Args:
        tables: rows of nodes [*part, tile, tile_size], each node in one; padding holds the number of nodes.
        receivers: receiver of each directed edge.
        slot: number of each edge among those that its receiver gets.

    Returns:
        The edges [*part, tile, tile_size, deg] of each table, padding holding the number of edges; and each edge's
        place in all of them, flattened as [*part, tile, deg, tile_size], one after the other.
    """
    num_edges = len(receivers)
    num_nodes = 1 + max(int(rows.max()) for rows in tables)
    width_of = np.zeros(num_nodes, int)
    np.maximum.at(width_of, receivers, slot + 1)
    widths = [max(1, int(width_of[rows].max())) for rows in tables]
    ends = np.cumsum([rows.size * width for rows, width in zip(tables, widths, strict=True)])
    first, stride = np.empty(num_nodes, int), np.empty(num_nodes, int)
    for rows, width, end in zip(tables, widths, ends, strict=True):
        size = rows.shape[-1]
        tile, inside = np.divmod(np.arange(rows.size), size)
        first[rows.reshape(-1)] = end - rows.size * width + tile * size * width + inside
        stride[rows.reshape(-1)] = size
    place = first[receivers] + slot * stride[receivers]
    flat = np.full(ends[-1], num_edges)
    flat[place] = np.arange(num_edges)
    slots = [
        np.swapaxes(listed.reshape(*rows.shape[:-1], width, rows.shape[-1]), -1, -2)
        for listed, rows, width in zip(np.split(flat, ends[:-1]), tables, widths, strict=True)
    ]
    return slots, place


def inbox(receivers: NDArray, degree: NDArray, members: NDArray) -> tuple[NDArray, NDArray | None]:
    """Lay the incoming edges of some nodes out in rows of a few slots; return them and whose they are."""
    wanted, first = degree[members], (np.cumsum(degree) - degree)[members]
    width = int(np.clip(wanted.max(initial=1), 1, INBOX))
    rows = np.maximum(1, -(-wanted // width))
    owner = np.repeat(np.arange(len(wanted)), rows)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(rows) - rows, rows)
    number = width * within[:, None] + np.arange(width)
    order = np.append(np.argsort(receivers, kind="stable"), len(receivers))
    place = np.where(number < wanted[owner][:, None], first[owner][:, None] + number, len(receivers))
    return order[place], None if len(owner) == len(wanted) else owner


def positions(rows: NDArray, count: int) -> NDArray:
    """Return where each of `count` rows stands in `rows`, whose padding holds `count`."""
    place = np.empty(count + 1, int)
    place[rows] = np.arange(len(rows))
    return place[:count]
