"""Parts of a graph whose nodes send at one time: index arrays of one shape, so that a scan runs over them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from numpy.typing import NDArray

from kbpjax.graph import Graph, Tiles
from kbpjax.tables import tabulate, tile_rows, tile_size


class Part(eqx.Module):
    """Some nodes and the messages that they send: what one update of those needs of a graph.

    Attributes:
        node_tiles, slots: the sending nodes and their incoming directed edges, as in `Graph`.
        edge_tiles, route: the directed edges from them, and where in `slots` each stands, as in `Graph`.
        in_columns: as in `Graph`.
        nodes_in_order: whether the nodes stand in `node_tiles` in the order of their numbers, without padding.
        num_edges: number of directed edges of the graph.
    """

    node_tiles: tuple[Tiles, ...]
    slots: tuple[Int[Array, "*part _ _ _"], ...]
    edge_tiles: Tiles
    route: Int[Array, "*part edge_tile edge_tile_size"]
    in_columns: bool = eqx.field(static=True)
    num_edges: int = eqx.field(static=True)
    nodes_in_order: bool = eqx.field(static=True, default=False)


def ignore_incoming(part: Graph | Part, nodes: Bool[Array, " node"]) -> tuple[Int[Array, "*part _ _ _"], ...]:
    """Return the slots of a graph or of its parts in which those of the marked nodes are empty."""
    marked = jnp.append(nodes, False)
    return tuple(
        jnp.where(marked[tiles.rows][..., None], part.num_edges, slots)
        for tiles, slots in zip(part.node_tiles, part.slots, strict=True)
    )


def by_place(graph: Graph) -> Part:
    """Return a whole graph with directed edges numbered by where they stand in `edge_tiles`, padding included."""
    rows = graph.edge_tiles.rows
    places = jnp.arange(rows.size, dtype=jnp.int32)
    place = places if graph.edge_place is None else graph.edge_place
    place = jnp.append(place, jnp.int32(rows.size))
    return Part(
        node_tiles=graph.node_tiles,
        slots=tuple(place[slots] for slots in graph.slots),
        edge_tiles=Tiles(
            jnp.where(rows < graph.num_edges, places.reshape(rows.shape), rows.size), graph.edge_tiles.types
        ),
        route=graph.route,
        in_columns=graph.in_columns,
        num_edges=rows.size,
        nodes_in_order=graph.node_place is None,
    )


def parts_of(graph: Graph, numbers: NDArray) -> Part:
    """Split a graph by the number of the part that each node belongs to, 0 .. k - 1; stack the parts [part, ...]."""
    receivers, node_type = np.asarray(graph.receivers), np.asarray(graph.node_type)
    count = 1 + int(numbers.max())
    reverse, edge_type = np.asarray(graph.reverse), np.asarray(graph.edge_type)
    of_edges = numbers[np.asarray(graph.senders)]
    nodes, edges, slots, place, in_columns = tabulate(
        node_type,
        edge_type,
        receivers,
        reverse,
        lambda types, members: _stack(types, members, numbers, count),
        lambda kinds: _stack(kinds, np.arange(graph.num_edges), of_edges, count),
    )

    # `place` counts through all parts of one class of degrees before the next class; a route counts inside its part.
    sizes = np.array([slot.size for slot in slots])
    group = np.searchsorted(np.cumsum(sizes), place, side="right")
    own = sizes // count
    first, first_in_part = np.cumsum(sizes) - sizes, np.cumsum(own) - own
    inside = first_in_part[group] + (place - first[group]) % own[group]
    route = np.append(inside[reverse], 0)[edges[0]]
    return Part(
        node_tiles=tuple(Tiles(*map(_index, tiles)) for tiles in nodes),
        slots=tuple(map(_index, slots)),
        edge_tiles=Tiles(*map(_index, edges)),
        route=_index(route),
        in_columns=in_columns,
        num_edges=graph.num_edges,
    )


def _stack(types: NDArray, members: NDArray, numbers: NDArray, count: int) -> tuple[NDArray, NDArray]:
    """Tile the members of each part alike; return rows [part, tile, tile_size] and types [part, tile]."""
    groups = [members[numbers[members] == part] for part in range(count)]
    size = max(tile_size(types[group]) for group in groups)
    tiled = [tile_rows(types, group, size) for group in groups]
    most = max(len(kinds) for _, kinds in tiled)
    rows = [np.pad(rows, ((0, most - len(rows)), (0, 0)), constant_values=len(types)) for rows, _ in tiled]
    return np.stack(rows), np.stack([np.pad(kinds, (0, most - len(kinds))) for _, kinds in tiled])


def _index(array: NDArray) -> Array:
    return jnp.asarray(array, jnp.int32)
