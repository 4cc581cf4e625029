"""Which messages an iteration updates, and from which others: schedules, as small objects for `kbpjax.run`.

All at once (`Synchronous`), one colour of nodes after another, so that each uses what its neighbours have just sent
(`coloured`), or only those that would change most (`ResidualFirst`). One iteration updates every message once, or with
`ResidualFirst` at most once, so iterations compare as work.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax.colouring import colour_nodes
from kbpjax.graph import Graph
from kbpjax.layout import add_squares, fold, long_first, long_last, spread
from kbpjax.parts import Part, by_place, ignore_incoming, parts_of
from kbpjax.update import Operators, flatten, unit, untile, updates

TIE = 1e-3
"""Relative difference up to which changes count as equal, so that rounding does not choose among messages."""

Exponents = Float[Array, " pair"] | None


class Synchronous(eqx.Module):
    """Update all messages at once, each from the messages of the iteration before.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(9), jnp.ones((9, 2)).at[0, 0].set(8.0)
        >>> solution = kbp.run(agree, graph, local, damping=0.0, tol=1e-5, schedule=kbp.Synchronous())
        >>> int(solution.num_iters)  # an edge an iteration: 8, and one more to see no change
        9
    """

    def sweep(
        self, operators: Operators, graph: Graph, local: Array, messages: Array, damping: Array, exponents: Exponents
    ) -> tuple[Array, Array]:
        """Do one iteration; return the messages, and the largest difference between one and its undamped update."""
        update = updates(operators, graph, local, messages, exponents, operators.passed_on)
        update, size = unit(untile([update], graph.edge_place))
        return mix(messages, update, size, damping), largest_change(operators, messages, update)

    def ignore_incoming(self, nodes: Bool[Array, " node"]) -> "Synchronous":
        """Return this: the graph says which messages are ignored."""
        del nodes
        return self


class InPlace(eqx.Module):
    """Update all messages at once, with messages numbered as `kbpjax.parts.by_place` does: each is moved only once.

    Attributes:
        part: the whole graph, so numbered.
        rows: the edge that stands in each place [place]; padding holds the number of edges.
        place: the place of each edge [edge].
    """

    part: Part
    rows: Int[Array, " place"]
    place: Int[Array, " edge"]

    @classmethod
    def of(cls, graph: Graph) -> "InPlace":
        """Number the messages of a graph."""
        rows = graph.edge_tiles.rows.reshape(-1)
        place = jnp.arange(graph.num_edges, dtype=jnp.int32) if graph.edge_place is None else graph.edge_place
        return cls(by_place(graph), rows, place)

    def sweep(
        self, operators: Operators, graph: Graph, local: Array, messages: Array, damping: Array, exponents: Exponents
    ) -> tuple[Array, Array]:
        """Do one iteration; return the messages, and the largest difference between one and its undamped update."""
        del graph
        update = flatten([updates(operators, self.part, local, messages, exponents, operators.passed_on)])
        update, size = unit(update, self.rows < len(self.place))
        return mix(messages, update, size, damping), largest_change(operators, messages, update)


class ResidualFirst(eqx.Module):
    """Update the messages that would change most, and leave the others as they are (after Elidan et al. 2006).

    All updates are computed to know which those are, so an iteration costs as much as a synchronous one; what it gains
    is steadiness where updating all at once oscillates.

    Args:
        share: share of the messages to update, in (0, 1].

    Raises:
        ValueError: share out of range.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> graph = kbp.Graph.from_edges([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 4)
        >>> differ = kbp.Operators(jnp.eye(2)[None], jnp.array([[[1.0, 4.0], [4.0, 1.0]]]))  # neighbours want to differ
        >>> local = jnp.array([[4.0, 1.0], [3.0, 1.0], [2.0, 1.0], [1.0, 1.0]])
        >>> schedules = kbp.Synchronous(), kbp.ResidualFirst(share=0.25)
        >>> [bool(kbp.run(differ, graph, local, num_iters=100, damping=0.0, schedule=s).converged) for s in schedules]
        [False, True]
    """

    share: float = eqx.field(static=True, default=0.25, converter=float)

    def __check_init__(self) -> None:
        _checks.require_number("share", self.share, above=0, most=1)

    def sweep(
        self, operators: Operators, graph: Graph, local: Array, messages: Array, damping: Array, exponents: Exponents
    ) -> tuple[Array, Array]:
        """Do one iteration; return the messages, and the largest difference between one and its undamped update."""
        update = updates(operators, graph, local, messages, exponents, operators.passed_on)
        update, size = unit(untile([update], graph.edge_place))
        change = changes(operators, messages, update)
        if len(change) == 0:
            return messages, jnp.max(change, initial=0)
        count = max(1, round(self.share * len(change)))
        least = jax.lax.top_k(change, count)[0][-1]
        chosen = (change >= (1 - TIE) * least) | jnp.isnan(change)  # NaN is to stay visible
        return jnp.where(chosen[:, None], mix(messages, update, size, damping), messages), jnp.max(change)

    def ignore_incoming(self, nodes: Bool[Array, " node"]) -> "ResidualFirst":
        """Return this: the graph says which messages are ignored."""
        del nodes
        return self


class Coloured(eqx.Module):
    """Update the messages that one colour of nodes sends, then those of the next; make it with `coloured`.

    Attributes:
        parts: the nodes of each colour and what they send, stacked on a first axis [colour, ...].
        made_for: senders, receivers, edge types and node types of the graph.

    Examples:
        >>> import jax.numpy as jnp, kbpjax as kbp
        >>> agree = kbp.Operators(jnp.eye(2)[None], jnp.array([[[2.0, 1.0], [1.0, 2.0]]]))
        >>> graph, local = kbp.chain_graph(9), jnp.ones((9, 2)).at[0, 0].set(8.0)
        >>> schedules = kbp.Synchronous(), kbp.coloured(graph)
        >>> [int(kbp.run(agree, graph, local, damping=0.0, tol=1e-5, schedule=s).num_iters) for s in schedules]
        [9, 5]
    """

    parts: Part
    made_for: tuple[Int[Array, " edge"], Int[Array, " edge"], Int[Array, " edge"], Int[Array, " node"]]

    def check(self, graph: Graph) -> None:
        """Raise ValueError for another graph; where its edges are not known, for one of another size."""
        given, fix = _identity(graph), "Make it with kbpjax.coloured(graph) for the same graph."
        got, needed = ((len(a[3]), len(a[0])) for a in (self.made_for, given))
        _checks.require(got == needed, "schedule", f"must be of a graph of (nodes, edges) {needed}", got, fix)
        if not _checks.is_traced((self.made_for, given)):
            same = all(np.array_equal(mine, other) for mine, other in zip(self.made_for, given, strict=True))
            _checks.require(same, "schedule", "must be of this graph", "one of the same size", fix)

    def sweep(
        self, operators: Operators, graph: Graph, local: Array, messages: Array, damping: Array, exponents: Exponents
    ) -> tuple[Array, Array]:
        """Do one iteration; return the messages, and the largest difference between one and its undamped update."""
        self.check(graph)

        def turn(messages: Array, part: Part) -> tuple[Array, Array]:
            update = updates(operators, part, local, messages, exponents, operators.passed_on)
            update, size = unit(flatten([update]))
            rows = part.edge_tiles.rows.reshape(-1)
            old = messages[jnp.minimum(rows, len(messages) - 1)]
            change = jnp.max(changes(operators, old, update), where=rows < len(messages), initial=0)
            return messages.at[rows].set(mix(old, update, size, damping), mode="drop"), change

        messages, change = jax.lax.scan(turn, messages, self.parts)
        return messages, jnp.max(change, initial=0)

    def ignore_incoming(self, nodes: Bool[Array, " node"]) -> "Coloured":
        """Return the schedule in which the incoming messages of the marked nodes count as 1."""
        return replace(self, parts=replace(self.parts, slots=ignore_incoming(self.parts, nodes)))


Schedule = Synchronous | ResidualFirst | Coloured


def coloured(graph: Graph, *, colours: NDArray | None = None) -> Coloured:
    """Make the schedule that updates one colour of nodes after another, with neighbours of different colours.

    On a grid, a chain or a tree there are two colours, and an iteration does what two synchronous ones do, at the cost
    of one. It is made once for a graph, outside `jax.jit`, and can be passed into it.

    Args:
        graph: the graph.
        colours: colour of each node [node], whole numbers >= 0; None: found by breadth-first search where two are
            enough, else greedily.

    Returns:
        The schedule.

    Raises:
        ValueError: a traced graph, colours of another shape, or neighbours of one colour.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.coloured(kbp.grid_graph(3, 3)).parts.edge_tiles.rows.shape[0]
        2
    """
    fix = "Make the schedule before you compile, and pass it in."
    _checks.require(not _checks.is_traced(graph), "graph", "must be known", "a traced graph", fix)
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    if colours is None:
        colours = colour_nodes(senders, receivers, graph.num_nodes)
    colours = np.asarray(colours)
    whole = np.issubdtype(colours.dtype, np.integer) and colours.min(initial=0) >= 0
    rule, fix = f"must be {graph.num_nodes} whole numbers >= 0", "Pass one colour for each node, or None."
    ok = whole and colours.shape == (graph.num_nodes,)
    _checks.require(ok, "colours", rule, f"shape {colours.shape}, {colours.dtype}", fix)
    same = np.flatnonzero(colours[senders] == colours[receivers])[:3]
    got = f"one colour for {[(int(senders[e]), int(receivers[e])) for e in same]}"
    _checks.require(len(same) == 0, "colours", "must differ between neighbours", got, "Give them two.")
    return Coloured(parts_of(graph, np.unique(colours, return_inverse=True)[1].reshape(-1)), _identity(graph))


def _identity(graph: Graph) -> tuple[Array, Array, Array, Array]:
    return graph.senders, graph.receivers, graph.edge_type, graph.node_type


def largest_change(operators: Operators, old: Array, new: Array) -> Float[Array, ""]:
    """Return the largest of `changes`."""
    if operators.positive is not None:
        return jnp.max(changes(operators, old, new), initial=0)
    # One reduction is quicker than the largest of each message.
    return jnp.max(jnp.abs(jax.lax.stop_gradient(long_last(new) - long_last(old))), initial=0)


def changes(operators: Operators, old: Array, new: Array) -> Float[Array, " message"]:
    """Return the largest difference between coefficients of each message and its update, both of 2-norm 1.

    Positive messages are values: of these, the largest difference when they are scaled to maximum 1.
    """
    if new.shape[-1] == 0:
        return jnp.zeros_like(new, shape=len(new))
    old, new = map(long_last, jax.lax.stop_gradient((old, new)))
    difference = fold(_larger, new - old, jnp.abs)[0]
    if operators.positive is None:
        return difference
    largest = fold(_larger, new)[0]
    return difference / jnp.where(largest > 0, largest, 1)


def _larger(one: Array, other: Array) -> Array:
    """Return the larger; quicker than a maximum that looks for NaN, which a message has everywhere or nowhere."""
    return jnp.where(one > other, one, other)


def mix(old: Array, new: Array, size: Array, damping: Array) -> Array:
    """Mix messages of norm 1 in the proportion damping : (1 - damping) size; return them with norm 1."""
    old, new, size = map(long_last, (old, new, size))
    total = damping + (1 - damping) * size
    total = jnp.where(total > 0, total, jnp.inf)
    keep, take = (spread(share / total, len(old)) for share in (damping, (1 - damping) * size))
    mixed = keep * old + take * new  # not old + take * (new - old), which loses what is small in `new`
    square = add_squares(mixed, jnp.ones_like(size))
    return long_first(mixed * spread(jax.lax.rsqrt(jnp.where(square > 0, square, 1)), len(old)))
