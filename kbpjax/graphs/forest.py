"""The elimination order of exact inference on a forest, computed once in NumPy.

Each tree is rooted near its center. A cell represents the message from a node towards the root, and the reverse
message, or it is a copy: the product of two other cells. Copies merge the children of nodes with more than two, the
lowest first, so that every cell has at most two children and the height grows by about log2(children). Products of two
need no division, and are exact at zeros.

Cells of equal height and kind (edge type and direction, or copy) are packed into rows of one width; each row uses one
matrix. Cells are numbered row by row, the lowest first, padding included, so that a scan over the rows writes one block
of the table of values at a time. The position after the last cell holds ones, for missing children and parents.
"""

import heapq
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.graphs.counting import stable_order
from kbpjax.graphs.plan import Sizes, round_up

OVERHEAD = 64
"""Cost of one more row, in cells."""

WIDEST = 1024
"""Largest number of cells in a row."""


class Forest(eqx.Module):
    """Rows of cells, the leaves' first, for the pass to the roots and, in reverse, for the pass back.

    Attributes:
        direction: the matrix of `Operators.project` for the upward messages of each row [row]; `direction ^ 1` is that
            of the downward messages.
        sender_type, receiver_type: node types at the ends of the upward messages [row].
        copies: True if the cells of a row are copies [row], which have no message.
        sender: the node that sends each cell's message [row, cell]; the number of nodes for copies and padding.
        owner, receiver: the node whose incoming messages each cell multiplies, and the node that uses its value [row,
            cell]; the number of nodes for padding.
        above: `receiver`, or the number of nodes if the cell's parent is a copy, whose value includes that node's local
            factor already.
        children: positions of the children of each cell [row, cell, 2].
        parent, sibling: positions of the parent and of its other child [row, cell].
        message_place: position of each directed edge in the messages of all rows, upward and then downward [edge].
        height: levels from the leaves to the roots, copies included.
    """

    direction: Int[Array, " row"]
    sender_type: Int[Array, " row"]
    receiver_type: Int[Array, " row"]
    copies: Bool[Array, " row"]
    sender: Int[Array, "row cell"]
    owner: Int[Array, "row cell"]
    receiver: Int[Array, "row cell"]
    above: Int[Array, "row cell"]
    children: Int[Array, "row cell 2"]
    parent: Int[Array, "row cell"]
    sibling: Int[Array, "row cell"]
    message_place: Int[Array, " edge"]
    height: int = eqx.field(static=True)

    @classmethod
    def build(cls, pairs: NDArray, edge_type: NDArray, node_type: NDArray, *, rounded: bool = False) -> "Forest | None":
        """Return the elimination order of a forest; None for a graph with a cycle or without edges.

        Args:
            pairs: ends of the undirected edges [edge, 2].
            edge_type: type of each [edge].
            node_type: type of each node [node].
            rounded: whether the numbers of rows and levels are rounded up, as in `Plan.of`.
        """
        up: Sizes = round_up if rounded else int
        num_pairs, num_nodes = len(pairs), len(node_type)
        if not 0 < num_pairs < num_nodes:
            return None
        order = _peel(pairs, num_nodes)
        if len(order.node) < num_pairs:
            return None
        cells = _cells(order, num_nodes)

        real, edge = cells.edge >= 0, np.maximum(cells.edge, 0)
        back = cells.owner != pairs[edge, 0]
        direction = np.where(real, 2 * edge_type[edge] + back, -1)
        layout = _Layout.of(cells.height, direction, up)
        first = layout.first_cells
        message_place = np.empty(2 * num_pairs, int)
        message_place[(edge + back * num_pairs)[real]] = layout.position[real]
        message_place[(edge + ~back * num_pairs)[real]] = layout.position[real] + layout.size

        def index(array: NDArray) -> Array:
            return _checks.to_jax(array, np.int32)

        return cls(
            direction=index(np.maximum(direction[first], 0)),
            sender_type=index(node_type[cells.owner[first]]),
            receiver_type=index(node_type[cells.receiver[first]]),
            copies=_checks.to_jax(~real[first]),
            sender=index(layout.to_rows(np.where(real, cells.owner, num_nodes), num_nodes)),
            owner=index(layout.to_rows(cells.owner, num_nodes)),
            receiver=index(layout.to_rows(cells.receiver, num_nodes)),
            above=index(layout.to_rows(cells.above, num_nodes)),
            children=index(layout.positions_to_rows(cells.children)),
            parent=index(layout.positions_to_rows(cells.parent)),
            sibling=index(layout.positions_to_rows(cells.sibling)),
            message_place=index(message_place),
            height=up(int(cells.height.max())),
        )

    def without_incoming(self, nodes: Bool[Array, " node"]) -> "Forest":
        """Return the order in which the incoming messages of the marked (clamped) nodes count as 1."""
        marked, ones = jnp.append(nodes, False), self.sender.size
        return replace(
            self,
            children=jnp.where(marked[self.owner][..., None], ones, self.children),
            parent=jnp.where(marked[self.above], ones, self.parent),
            sibling=jnp.where(marked[self.receiver], ones, self.sibling),
        )


class _Cells(NamedTuple):
    """Cells, children before parents; -1 means none."""

    owner: NDArray
    receiver: NDArray
    above: NDArray
    edge: NDArray
    height: NDArray
    children: NDArray
    parent: NDArray
    sibling: NDArray


class _Layout(NamedTuple):
    """The layout of cells in rows: the shape of all rows, each cell's position, and the first cell of each row."""

    shape: tuple[int, int]
    position: NDArray
    first_cells: NDArray

    @property
    def size(self) -> int:
        """The number of positions, which is also the position that represents missing cells."""
        return self.shape[0] * self.shape[1]

    @classmethod
    def of(cls, height: NDArray, kind: NDArray, up: Sizes) -> "_Layout":
        """Return the layout of cells, packed by height and kind into rows of the width with the lowest cost."""
        order = np.lexsort([kind, height])
        new = (np.diff(height[order]) != 0) | (np.diff(kind[order]) != 0)
        starts = np.flatnonzero(np.append(True, new))
        counts = np.diff(np.append(starts, len(order)))
        widths = 2 ** np.arange(WIDEST.bit_length())
        num_rows = np.sum(-(-counts[:, None] // widths), axis=0)
        best = np.argmin(num_rows * (OVERHEAD + widths))
        width, total = int(widths[best]), int(num_rows[best])
        rows_of_group = -(-counts // width)
        first_position = width * (np.cumsum(rows_of_group) - rows_of_group)
        within = np.arange(len(order)) - np.repeat(starts, counts)
        position = np.empty_like(order)
        position[order] = np.repeat(first_position, counts) + within
        spare = up(total) - total  # rows of padding
        return cls((total + spare, width), position, np.pad(order[within % width == 0], (0, spare), mode="edge"))

    def to_rows(self, values: NDArray, padding: int) -> NDArray:
        """Return values of the cells in rows; `padding` replaces -1 and fills the rest."""
        rows = np.full((self.size, *values.shape[1:]), padding)
        rows[self.position] = np.where(values < 0, padding, values)
        return rows.reshape(*self.shape, *values.shape[1:])

    def positions_to_rows(self, cells: NDArray) -> NDArray:
        """Return the positions of cells (-1: none) in rows."""
        return self.to_rows(np.append(self.position, self.size)[cells], self.size)


class _Order(NamedTuple):
    """Nodes below roots, their parents and the edges between them, in the order of removing leaves, outermost first."""

    node: NDArray
    parent: NDArray
    edge: NDArray


def _peel(pairs: NDArray, num_nodes: int) -> _Order:
    """Return the order of removing leaves; edges of cycles are left out."""
    degree = np.bincount(pairs.reshape(-1), minlength=num_nodes).tolist()
    last_edge = np.zeros(num_nodes, int)  # sum of a node's remaining edges: its last edge, in the end
    np.add.at(last_edge, pairs, np.arange(len(pairs))[:, None])
    edge_of, ends = last_edge.tolist(), pairs.sum(axis=1).tolist()
    queue = [node for node, count in enumerate(degree) if count == 1]
    nodes, edges = [], []
    for node in queue:
        if degree[node] == 0:  # a root: the last node of its tree
            continue
        edge = edge_of[node]
        parent = ends[edge] - node
        nodes.append(node)
        edges.append(edge)
        degree[parent] -= 1
        edge_of[parent] -= edge
        if degree[parent] == 1:
            queue.append(parent)
    node, edge = np.array(nodes, int), np.array(edges, int)
    return _Order(node, pairs[edge].sum(axis=1) - node, edge)


def _cells(order: _Order, num_nodes: int) -> _Cells:
    """Return a cell for each edge, and the copies that merge the children of nodes with more than two."""
    many = (np.bincount(order.parent, minlength=num_nodes) > 2).tolist()
    waiting: dict[int, list[tuple[int, int]]] = {v: [] for v, wide in enumerate(many) if wide}  # (height, cell)
    owners: list[int] = []
    receivers: list[int] = []
    edges: list[int] = []
    heights: list[int] = []
    merged: list[tuple[int, int]] = []  # (cell, copy that it is merged into)
    top = [0] * num_nodes  # height of the highest cell below each node

    def add(node: int, to: int, edge: int, height: int) -> None:
        if many[to]:
            heapq.heappush(waiting[to], (height, len(owners)))
        elif height > top[to]:
            top[to] = height
        owners.append(node)
        receivers.append(to)
        edges.append(edge)
        heights.append(height)

    def merge(node: int) -> None:
        while len(waiting[node]) > 2:
            pair = [heapq.heappop(waiting[node]) for _ in range(2)]
            merged.extend((cell, len(owners)) for _, cell in pair)
            add(node, node, -1, 1 + pair[1][0])
        top[node] = max(height for height, _ in waiting[node])

    for node, parent, edge in zip(*(array.tolist() for array in order), strict=True):
        if many[node]:
            merge(node)
        add(node, parent, edge, 1 + top[node])
    is_root = np.zeros(num_nodes, bool)
    is_root[order.parent] = True
    is_root[order.node] = False
    roots = np.flatnonzero(is_root)
    for root in roots.tolist():
        if many[root]:
            merge(root)

    owner, receiver, edge, height = (np.array(column) for column in (owners, receivers, edges, heights))
    count, own = len(owner), np.flatnonzero(edge >= 0)
    above = np.full(num_nodes, -1)  # the cell of each node, and a number of its own of each root
    above[owner[own]] = own
    above[roots] = count + np.arange(len(roots))
    family = above[receiver]
    copied, copy = np.array(merged, int).reshape(-1, 2).T
    family[copied] = copy
    by_height = stable_order(height)
    sorted_cells = by_height[stable_order(family[by_height])]  # by family, then height, then number
    second = np.append(False, np.diff(family[sorted_cells]) == 0).astype(int)
    both = np.full((count + len(roots), 2), -1)
    both[family[sorted_cells], second] = sorted_cells
    first_one, other = both[family].T
    return _Cells(
        owner,
        receiver,
        np.where(np.append(edge, np.zeros(len(roots), int))[family] >= 0, receiver, -1),
        edge,
        height,
        both[:count],
        np.where(family < count, family, -1),
        np.where(first_one == np.arange(count), other, first_one),
    )
