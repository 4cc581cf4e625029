"""Graphs as flat index arrays, built and checked once in NumPy, so that message passing is gathers and matrix products.

Every undirected edge (a, b) is two directed edges: messages a -> b are the first half of the directed edges, in the
order of `edges`, and messages b -> a the second half. An edge type is a template with an orientation: all its edges
join the same two node types. Its two directions have separate operators (rows 2 type and 2 type + 1 of
`Operators.project`), because E[. | x_b] and E[. | x_a] are different functions unless the pair is exchangeable.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._misc import need, show_lines, show_list
from kbpjax._public import Checked, public
from kbpjax.graphs.counting import groups, ranked
from kbpjax.graphs.forest import Forest
from kbpjax.graphs.plan import Plan, inboxes, round_up


class Graph(Checked):
    """An undirected graph with typed nodes and edges; build it with `from_edges`, `grid_graph` or `chain_graph`.

    Attributes:
        senders, receivers: ends of each directed edge [edge].
        reverse: the reverse of each directed edge [edge].
        edge_type: the type of each directed edge [edge], the same in both directions.
        node_type: the type of each node [node].
        plan: index tables for message passing (`kbpjax.graphs.plan`).
        forest: the order of exact inference; None for a graph with a cycle or without edges.
        inboxes: {node type: (incoming directed edges [row, slot], position of each row's node among those of its type
            [row])}; padding holds the number of directed edges. A node with many neighbors has several rows; the second
            entry is None if each node has one row.
        num_nodes, num_edges: numbers of nodes and of directed edges.
        node_types: (type, number of nodes, largest degree) of every node type present.
        edge_types: (type, node type of the first end, node type of the second end) of every edge type present.
        edge_features: numbers on which relations may depend, such as a distance, of each undirected edge
            [pair, feature]; None: edges have no features.
        rounded: whether tables have rounded sizes, as those of `kbpjax.pack`: similar graphs then have tables of the
            same shapes, and share compiled functions.

    Examples:
        >>> import kbpjax as kbp
        >>> graph = kbp.Graph.from_edges([(0, 1), (1, 2), (1, 3)], 4, node_type=[0, 0, 1, 1])
        >>> graph.num_nodes, graph.num_edges  # each edge counts as two directed edges
        (4, 6)
        >>> graph.edge_types  # type 0 joins nodes of type 0, type 1 joins types 0 and 1
        ((0, 0, 0), (1, 0, 1))
    """

    senders: Int[Array, " edge"]
    receivers: Int[Array, " edge"]
    reverse: Int[Array, " edge"]
    edge_type: Int[Array, " edge"]
    node_type: Int[Array, " node"]
    plan: Plan
    forest: Forest | None
    inboxes: dict[int, tuple[Int[Array, "row slot"], Int[Array, " row"] | None]]
    num_nodes: int = eqx.field(static=True)
    num_edges: int = eqx.field(static=True)
    node_types: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    edge_types: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    edge_features: Float[Array, "pair feature"] | None = None
    rounded: bool = eqx.field(static=True, default=False)

    @classmethod
    @public
    def from_edges(
        cls,
        edges: Numbers,
        num_nodes: int,
        *,
        edge_type: Numbers | None = None,
        node_type: Numbers | None = None,
        edge_features: Numbers | None = None,
    ) -> "Graph":
        """Return the graph of a list of undirected edges.

        Args:
            edges: pairs of node numbers [edge, 2], each unordered pair at most once. The order inside a pair matters to
                directed templates: (x_first, x_second) are the training pairs of its type.
            num_nodes: number of nodes, >= 1.
            edge_type: type of each edge [edge], integers >= 0. None: one type per pair of node types that is joined, in
                sorted order (0 for all edges if there is one node type).
            node_type: type of each node [node], integers >= 0. None: 0.
            edge_features: a number of each edge [edge], or several [edge, feature], on which the relation of its ends
                may depend: a distance, a lag, a slope. `fit` learns relations that vary with them. None: none.

        Returns:
            The graph. Edges between different node types are oriented from the smaller type to the larger.

        Raises:
            ValueError: wrong shapes, ends out of range, self-loops, duplicate edges, an edge type whose edges join
                different pairs of node types, or features that are not finite.

        Examples:
            >>> import kbpjax as kbp
            >>> graph = kbp.Graph.from_edges([(0, 1), (1, 2)], 3)
            >>> graph.senders.tolist(), graph.receivers.tolist()
            ([0, 1, 1, 2], [1, 2, 0, 1])
        """
        _checks.require_count("num_nodes", num_nodes)
        pairs = _edge_array(edges, num_nodes)
        node_types = _type_array("node_type", node_type, num_nodes, "node")
        types = _pair_types(node_types[pairs]) if edge_type is None else edge_type
        edge_types = _type_array("edge_type", types, len(pairs), "edge")
        pairs, ends = _orient(pairs, edge_types, node_types)
        return cls._build(pairs, node_types, edge_types, ends, _feature_array(edge_features, len(pairs)))

    @classmethod
    @public
    def from_networkx(cls, graph: Any) -> "tuple[Graph, list[Any]]":
        """Return the graph of a networkx graph, whose nodes and edges may have the attribute "type" (default 0).

        A type is an integer or a name. Names are numbered from 0 in sorted order; `networkx_types` returns the numbers.
        If the first edge has the attribute "features", a number or a list, those of all edges are `edge_features`.

        Args:
            graph: an undirected networkx graph; its nodes are numbered in their order. The ends of an edge are in the
                order of `graph.edges`.

        Returns:
            The graph, and the names of its nodes in order.

        Raises:
            ValueError: a directed graph or a multigraph; a type that is neither an integer nor a string, or names for
                some nodes (or edges) only; as `from_edges`.

        Examples:
            >>> import networkx, kbpjax as kbp
            >>> graph, names = kbp.Graph.from_networkx(networkx.path_graph(["a", "b", "c"]))
            >>> graph.num_nodes, names
            (3, ['a', 'b', 'c'])
        """
        node_types, edge_types = cls.networkx_types(graph)
        names = list(graph.nodes)
        number_of = {name: number for number, name in enumerate(names)}
        edges = [(number_of[a], number_of[b]) for a, b in graph.edges]
        kinds = [edge_types[kind] for *_, kind in graph.edges.data("type", 0)] if edge_types else None
        nodes = [node_types[kind] for _, kind in graph.nodes.data("type", 0)]
        pairs = np.array(edges, int).reshape(-1, 2)
        found = [value for *_, value in graph.edges.data("features")]
        features = found if found and found[0] is not None else None
        return cls.from_edges(pairs, len(names), edge_type=kinds, node_type=nodes, edge_features=features), names

    @staticmethod
    @public
    def networkx_types(graph: Any) -> tuple[dict[Any, int], dict[Any, int]]:
        """Return the numbers of the types in `from_networkx`: {"type" of nodes: number}, {"type" of edges: number}.

        The second mapping is empty if no edge has a "type".

        Args:
            graph: an undirected networkx graph.

        Raises:
            ValueError: as `from_networkx`.

        Examples:
            >>> import networkx, kbpjax as kbp
            >>> sensors = networkx.Graph([("a", "b")])
            >>> networkx.set_node_attributes(sensors, {"a": "wind", "b": "temperature"}, "type")
            >>> node_types, edge_types = kbp.Graph.networkx_types(sensors)
            >>> node_types, edge_types
            ({'temperature': 0, 'wind': 1}, {})
            >>> kbp.Graph.from_networkx(sensors)[0].node_type.tolist()
            [1, 0]
        """
        ok = hasattr(graph, "is_directed") and not (graph.is_directed() or graph.is_multigraph())
        fix = "Convert it: networkx.Graph(graph)."
        _checks.require(ok, "graph", "must be a networkx.Graph", type(graph).__name__, fix)
        given = any("type" in data for *_, data in graph.edges.data())
        edges = [kind for *_, kind in graph.edges.data("type", 0)] if given else []
        return _numbered("nodes", [kind for _, kind in graph.nodes.data("type", 0)]), _numbered("edges", edges)

    @public
    def to_networkx(self) -> Any:
        """Return a networkx graph of nodes 0, 1, .. and edges, with "type", and "features" if any; needs networkx.

        Examples:
            >>> import kbpjax as kbp
            >>> sorted(kbp.chain_graph(3).to_networkx().edges)
            [(0, 1), (1, 2)]
        """
        graph = need("networkx", "plot").Graph()
        graph.add_nodes_from((number, {"type": int(v)}) for number, v in enumerate(np.asarray(self.node_type)))
        half = self.num_edges // 2
        ends = list(zip(*(np.asarray(of)[:half].tolist() for of in (self.senders, self.receivers)), strict=True))
        attributes = {"type": np.asarray(self.edge_type)[:half].tolist()}
        if self.edge_features is not None:
            attributes["features"] = np.asarray(self.edge_features).tolist()
        for name, values in attributes.items():
            graph.add_edges_from((*pair, {name: value}) for pair, value in zip(ends, values, strict=True))
        return graph

    @public
    def plan_of(self, part_of_node: NDArray) -> Plan:
        """Return the plan with given parts of the nodes, which send in order; the graph must not be traced.

        Args:
            part_of_node: the part of each node, 0 .. k - 1 [node].
        """
        ends = np.asarray(self.senders), np.asarray(self.receivers)
        types = np.asarray(self.edge_type), np.asarray(self.node_type)
        return Plan.of(*ends, *types, np.asarray(part_of_node), rounded=self.rounded)

    @public
    def with_edge_types(self, edge_type: Numbers) -> "Graph":
        """Return the graph with other edge types; the graph must not be traced.

        Args:
            edge_type: type of each undirected edge, in the order in which they were given [edge], integers >= 0.

        Raises:
            ValueError: types of another shape, or edges of one type between other pairs of node types.

        Examples:
            >>> import kbpjax as kbp
            >>> kbp.chain_graph(4).with_edge_types([0, 1, 2])
            Graph(
              4 nodes, 3 edges, forest
              edges: type 0 joins node types 0 and 0, type 1 joins node types 0 and 0, type 2 joins node types 0 and 0
            )
        """
        half = self.num_edges // 2
        pairs = np.stack([np.asarray(self.senders), np.asarray(self.receivers)], axis=1)[:half]
        kinds = _type_array("edge_type", edge_type, half, "edge")
        node_type = np.asarray(self.node_type)
        pairs, ends = _orient(pairs, kinds, node_type)
        return self._build(pairs, node_type, kinds, ends, self.edge_features, self.rounded)

    @public
    def subgraph(self, nodes: Numbers) -> "Graph":
        """Return the graph of some nodes and the edges among them; the graph must not be traced.

        Args:
            nodes: numbers of the nodes [node of the subgraph], each at most once; node i of the result is `nodes[i]`.
                Types stay.

        Raises:
            ValueError: no nodes, repeated ones, or numbers that the graph does not have.

        Examples:
            >>> import kbpjax as kbp
            >>> upper = kbp.grid_graph(3, 3).subgraph([0, 1, 2, 3, 4, 5])
            >>> upper.num_nodes, upper.num_edges // 2
            (6, 7)
        """
        fix = "Take subgraphs outside jax.jit, jax.vmap and jax.grad."
        _checks.require(not _checks.is_traced((self, nodes)), "nodes", "must be known", "a traced array", fix)
        chosen = np.asarray(_checks.as_numpy("nodes", nodes))
        integers = np.issubdtype(chosen.dtype, np.integer) and chosen.ndim == 1 and chosen.size > 0
        rule, fix = f"must be different numbers of nodes, 0 .. {self.num_nodes - 1}", "Pass integers [node]."
        _checks.require(integers, "nodes", rule, f"shape {chosen.shape}, dtype {chosen.dtype}", fix)
        unique, count = np.unique(chosen, return_counts=True)
        wrong = unique[(unique < 0) | (unique >= self.num_nodes) | (count > 1)][:3].tolist()
        _checks.require(not wrong, "nodes", rule, wrong, "Leave out numbers that repeat or are out of range.")
        number = np.full(self.num_nodes, -1)
        number[chosen] = np.arange(len(chosen))
        half = self.num_edges // 2
        ends = number[np.stack([np.asarray(self.senders), np.asarray(self.receivers)], axis=1)[:half]]
        inside = np.all(ends >= 0, axis=1)
        kinds = np.asarray(self.edge_type)[:half][inside]
        present = set(kinds.tolist())
        types = tuple(kind for kind in self.edge_types if kind[0] in present)
        features = None if self.edge_features is None else np.asarray(self.edge_features)[inside]
        return self._build(ends[inside], np.asarray(self.node_type)[chosen], kinds, types, features)

    @public
    def nodes_of_type(self, node_type: int) -> Int[Array, " node_of_type"]:
        """Return the numbers of the nodes of one type; raise ValueError for a type that the graph does not have.

        Examples:
            >>> import kbpjax as kbp
            >>> kbp.chain_graph(4, node_type=[0, 1, 0, 1]).nodes_of_type(1).tolist()
            [1, 3]
        """
        counts = {v: n for v, n, *_ in self.node_types}
        fix = "Choose one of the graph's."
        _checks.require(node_type in counts, "node_type", f"must be one of {list(counts)}", node_type, fix)
        if _checks.is_traced(self.node_type):
            if len(counts) == 1:
                return jnp.arange(self.num_nodes, dtype=jnp.int32)
            # not jnp.nonzero: its cumulative sums take long to compile (benchmarks/first_call.py)
            return jnp.argsort(self.node_type != node_type, stable=True)[: counts[node_type]].astype(jnp.int32)
        return _checks.to_jax(np.flatnonzero(np.asarray(self.node_type) == node_type), np.int32)

    @classmethod
    def _upgrade(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a graph that was saved by kbpjax 0.1, with other index tables (see `kbpjax.io`)."""
        if "plan" in fields:
            return fields
        half = fields["num_edges"] // 2
        pairs = np.stack([fields["senders"], fields["receivers"]], axis=1)[:half]
        made = cls._build(
            pairs, np.asarray(fields["node_type"]), np.asarray(fields["edge_type"])[:half], fields["edge_types"]
        )
        return {name: getattr(made, name) for name in cls.__dataclass_fields__}

    @classmethod
    def _build(
        cls,
        pairs: NDArray,
        node_type: NDArray,
        edge_type: NDArray,
        ends: tuple,
        edge_features: Any = None,
        rounded: bool = False,
    ) -> "Graph":
        num_nodes, num_pairs = len(node_type), len(pairs)
        senders, receivers = np.concatenate([pairs, pairs[:, ::-1]]).T
        both = np.concatenate([edge_type, edge_type])
        degree = np.bincount(receivers, minlength=num_nodes)

        up = (lambda count: round_up(max(count, 1))) if rounded else int

        def index(array: NDArray) -> Array:
            return _checks.to_jax(array, np.int32)

        return cls(
            senders=index(senders),
            receivers=index(receivers),
            reverse=index(np.roll(np.arange(2 * num_pairs), num_pairs)),
            edge_type=index(both),
            node_type=index(node_type),
            plan=Plan.of(senders, receivers, both, node_type, rounded=rounded),
            forest=Forest.build(pairs, edge_type, node_type, rounded=rounded),
            inboxes=inboxes(receivers, node_type, rounded=rounded),
            num_nodes=num_nodes,
            num_edges=2 * num_pairs,
            node_types=tuple(
                (int(v), int(n), up(int(degree[node_type == v].max())))
                for v, n in zip(*groups(node_type)[:2], strict=True)
            ),
            edge_types=ends,
            edge_features=None if edge_features is None else _checks.to_jax(edge_features),
            rounded=rounded,
        )

    def __repr__(self) -> str:
        nodes = [f"{count} of type {v}" for v, count, _ in self.node_types]
        edges = [f"type {k} joins node types {a} and {b}" for k, a, b in self.edge_types]
        shape = "forest" if self.forest is not None else "with cycles" if self.num_edges else "without edges"
        parts = [f"{self.num_nodes} nodes, {self.num_edges // 2} edges, {shape}"]
        if len(nodes) > 1:
            parts.append("nodes: " + ", ".join(show_list(nodes)))
        if len(edges) > 1:
            parts.append("edges: " + ", ".join(show_list(edges)))
        if self.edge_features is not None:
            parts.append(f"edges have {self.edge_features.shape[-1]} feature(s)")
        return show_lines("Graph", parts) if len(parts) > 1 else f"Graph({parts[0]})"


class StaticGraph:
    """A graph as a static argument, or the key of a cache; those with the same edges, types and features are equal."""

    def __init__(self, graph: Graph):
        arrays: tuple[Any, ...] = (graph.senders, graph.receivers, graph.edge_type, graph.node_type)
        arrays += () if graph.edge_features is None else (graph.edge_features,)
        self.graph = graph
        self.key = (graph.num_nodes, graph.rounded, *(np.asarray(array).tobytes() for array in arrays))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticGraph) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@public
def grid_graph(height: int, width: int, *, edge_type: Numbers | None = None, node_type: Numbers | None = None) -> Graph:
    """Return the four-neighbor grid graph of an image; node i * width + j is pixel (i, j).

    Args:
        height: number of rows, >= 1.
        width: number of columns, >= 1.
        edge_type: as in `Graph.from_edges`, for the height (width - 1) horizontal edges, row by row, left to right,
            then the (height - 1) width vertical ones, top to bottom.
        node_type: as in `Graph.from_edges`.

    Examples:
        >>> import kbpjax as kbp
        >>> graph = kbp.grid_graph(2, 3)
        >>> graph.num_nodes, graph.num_edges
        (6, 14)
    """
    _checks.require_count("height", height)
    _checks.require_count("width", width)
    pixel = np.arange(height * width).reshape(height, width)
    horizontal = np.stack([pixel[:, :-1].ravel(), pixel[:, 1:].ravel()], axis=1)
    vertical = np.stack([pixel[:-1].ravel(), pixel[1:].ravel()], axis=1)
    edges = np.concatenate([horizontal, vertical])
    return Graph.from_edges(edges, height * width, edge_type=edge_type, node_type=node_type)


@public
def chain_graph(
    num_nodes: int,
    *,
    edge_type: Numbers | None = None,
    node_type: Numbers | None = None,
    edge_features: Numbers | None = None,
) -> Graph:
    """Return the chain graph 0 - 1 - ... - (num_nodes - 1); types and features as in `Graph.from_edges`.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.chain_graph(3).senders.tolist()
        [0, 1, 1, 2]
    """
    _checks.require_count("num_nodes", num_nodes)
    edges = np.stack([np.arange(num_nodes - 1), np.arange(1, num_nodes)], axis=1)
    return Graph.from_edges(edges, num_nodes, edge_type=edge_type, node_type=node_type, edge_features=edge_features)


@public
def neighbor_graph(positions: Numbers, num_neighbors: int = 4, *, node_type: Numbers | None = None) -> Graph:
    """Return the graph of places, two of which are joined if one is among the nearest of the other.

    The feature of an edge is the distance of its ends, with which the relations of `fit` may vary.

    Args:
        positions: coordinates of the places [node, dim] or [node], finite; distances are Euclidean.
        num_neighbors: number of nearest places that each place is joined to, >= 1; at most all others.
        node_type: as in `Graph.from_edges`.

    Returns:
        The graph, with edges (a, b), a < b, in sorted order.

    Raises:
        ValueError: positions of another shape, or that are not finite.

    Examples:
        >>> import kbpjax as kbp
        >>> graph = kbp.neighbor_graph([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]], 1)
        >>> graph.senders.tolist()[:2], graph.receivers.tolist()[:2], graph.edge_features.tolist()
        ([0, 1], [1, 2], [[1.0], [2.0]])
    """
    from scipy.spatial import KDTree

    _checks.require_count("num_neighbors", num_neighbors)
    places = np.asarray(_checks.as_numpy("positions", positions), float)
    places = places[:, None] if places.ndim == 1 else places
    ok, fix = places.ndim == 2 and places.size > 0, "Pass coordinates [node, dim]."
    _checks.require(ok, "positions", "must have shape [node, dim]", f"shape {places.shape}", fix)
    _checks.require_finite("positions", places)
    count = len(places)
    nearest = KDTree(places).query(places, k=min(num_neighbors + 1, count))[1].reshape(count, -1)
    pairs = np.stack([np.repeat(np.arange(count), nearest.shape[1]), nearest.reshape(-1)], axis=1)
    pairs = np.stack([pairs.min(axis=1), pairs.max(axis=1)], axis=1)[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[ranked(*pairs.T)[0]]
    distance = np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)
    return Graph.from_edges(pairs, count, node_type=node_type, edge_features=distance)


def _numbered(argument: str, types: list[Any]) -> dict[Any, int]:
    """Return {type of a networkx graph: number}."""
    if types and all(isinstance(kind, str) for kind in types):
        return {name: number for number, name in enumerate(sorted(set(types)))}
    invalid = [kind for kind in types if not isinstance(kind, int | np.integer)]
    rule, fix = 'must have integers as "type", or names for all', "Number the types from 0, or name all of them."
    got = f"{invalid[:3]} and {len(types) - len(invalid)} integers or no type"
    _checks.require(not invalid, argument, rule, got, fix)
    return {kind: int(kind) for kind in sorted(set(types))}


def _edge_array(edges: Numbers, num_nodes: int) -> NDArray:
    fix = "Build graphs outside jax.jit, jax.vmap and jax.grad."
    _checks.require(not _checks.is_traced(edges), "edges", "must be known", "a traced array", fix)
    pairs = np.asarray(_checks.as_numpy("edges", edges))
    if pairs.size == 0:
        return np.zeros((0, 2), int)
    shaped = pairs.ndim == 2 and pairs.shape[1] == 2
    integer = np.issubdtype(pairs.dtype, np.integer)
    got = f"shape {pairs.shape}, dtype {pairs.dtype}"
    _checks.require(shaped and integer, "edges", "must be integers of shape [edge, 2]", got, "Pass pairs of nodes.")
    outside = pairs[np.any((pairs < 0) | (pairs >= num_nodes), axis=1)]
    rule = f"must join nodes 0 .. {num_nodes - 1}"
    _checks.require(len(outside) == 0, "edges", rule, f"{outside[:3].tolist()}", "Correct them or raise num_nodes.")
    loops = pairs[pairs[:, 0] == pairs[:, 1]]
    _checks.require(len(loops) == 0, "edges", "must have no self-loops", f"{loops[:3].tolist()}", "Drop them.")
    keys = np.sort(pairs.min(axis=1).astype(np.int64) * num_nodes + pairs.max(axis=1))
    repeated = np.flatnonzero(keys[1:] == keys[:-1])[:3]
    twice = [list(divmod(int(key), num_nodes)) for key in np.unique(keys[repeated])]
    _checks.require(
        not twice, "edges", "must name each unordered pair once", f"duplicates {twice}", "Drop one of each."
    )
    return pairs.astype(int)


def _type_array(argument: str, types: Numbers | None, length: int, axis: str) -> NDArray:
    if types is None:
        return np.zeros(length, int)
    fix = "Build graphs outside jax.jit, jax.vmap and jax.grad."
    _checks.require(not _checks.is_traced(types), argument, "must be known", "a traced array", fix)
    array = np.asarray(_checks.as_numpy(argument, types))
    integer = array.size == 0 or np.issubdtype(array.dtype, np.integer)
    ok = integer and array.shape == (length,) and array.min(initial=0) >= 0
    rule = f"must be {length} integers >= 0, one for each {axis}"
    smallest = f", smallest {array.min()}" if integer and array.size else ""
    got = f"shape {array.shape}, dtype {array.dtype}{smallest}"
    _checks.require(ok, argument, rule, got, f"Pass an integer array of shape ({length},).")
    _checks.require_types(argument, int(array.max(initial=0)))
    return array.astype(int)


def _feature_array(features: Numbers | None, length: int) -> NDArray | None:
    """Return the features of edges [edge, feature], checked."""
    if features is None:
        return None
    fix = "Build graphs outside jax.jit, jax.vmap and jax.grad."
    _checks.require(not _checks.is_traced(features), "edge_features", "must be known", "a traced array", fix)
    array = np.asarray(_checks.as_numpy("edge_features", features))
    numbers = array.ndim in (1, 2) and len(array) == length and (array.dtype.kind in "fiub" or array.size == 0)
    rule, fix = f"must be numbers of {length} edges [edge] or [edge, feature]", "Pass one row for each edge."
    _checks.require(numbers, "edge_features", rule, f"shape {array.shape}, dtype {array.dtype}", fix)
    _checks.require_finite("edge_features", array)
    return (array[:, None] if array.ndim == 1 else array).astype(jnp.result_type(float))


def _pair_types(ends: NDArray) -> NDArray:
    return ranked(ends.min(axis=1), ends.max(axis=1))[1]


def _orient(pairs: NDArray, edge_type: NDArray, node_type: NDArray) -> tuple[NDArray, tuple]:
    """Return edges oriented from the smaller node type to the larger, and the node types of each edge type."""
    reversed_ends = node_type[pairs[:, 0]] > node_type[pairs[:, 1]]
    pairs = np.where(reversed_ends[:, None], pairs[:, ::-1], pairs)
    present, _, group = groups(edge_type)
    first = np.empty(len(present), int)
    first[group[::-1]] = np.arange(len(group))[::-1]  # the last write of a type is its first edge
    ends = node_type[pairs]
    wrong = np.flatnonzero(np.any(ends != ends[first][group], axis=1))
    if len(wrong):
        i = wrong[0]
        expected = tuple(ends[first][group][i].tolist())
        rule = f"edges of type {edge_type[i]} must all join node types {expected}"
        got = f"edge {tuple(pairs[i].tolist())} of node types {tuple(ends[i].tolist())}"
        _checks.require(False, "edge_type", rule, got, "Give edges between other node types a separate type.")
    return pairs, tuple((int(k), int(a), int(b)) for k, (a, b) in zip(present, ends[first], strict=True))
