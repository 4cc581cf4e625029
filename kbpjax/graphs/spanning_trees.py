"""Edge appearance probabilities, the exponents of tree-reweighted belief propagation, computed once in NumPy.

The bound of Wainwright, Jaakkola and Willsky (2005, A new class of upper bounds on the log partition function) holds
for any distribution over the spanning trees of the graph (spanning forests, if it is not connected). The exponent of an
edge is the probability that it is in the tree. Under the uniform distribution this is the effective resistance of the
edge, from the inverse of the graph Laplacian. On large graphs it is estimated from a sample of trees.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._checks import Numbers
from kbpjax._public import public
from kbpjax.graphs.counting import components
from kbpjax.graphs.graph import Graph

DENSE = 2000
"""Largest number of nodes of a connected component whose Laplacian is inverted as a dense matrix."""

BATCH = 2**23
"""Number of entries of the dense matrices that are inverted at a time, or one matrix."""

EXACT = 10000
"""Largest number of nodes, in components of more than `DENSE`, for which the default is exact."""

BLOCK = 64
"""Number of columns of the inverse that are computed at a time; more or fewer are slower."""

NUM_TREES = 100
"""Number of sampled trees where the default is not exact."""


@public
def tree_reweighting(
    graph: Graph, *, probabilities: Numbers | None = None, num_trees: int | None = None, key: PRNGKeyArray | None = None
) -> Float[Array, " pair"]:
    r"""Return the edge appearance probabilities: the probability that each edge is in a random spanning tree.

    As exponents $\rho_{st}$ of `run`, they give tree-reweighted belief propagation (Wainwright et al. 2003):

    $$m_{ts}(x_s) \propto E\Big[\mathrm{local}_t(X_t) \,
    \frac{\prod_{u \in \Gamma_t} m_{ut}(X_t)^{\rho_{ut}}}{m_{st}(X_t)} \;\Big|\; x_s\Big].$$

    Args:
        graph: the graph, of any number of connected components.
        probabilities: custom probabilities to check and use [pair], in (0, 1], with sum the number of nodes minus the
            number of connected components. (This is necessary, but not sufficient, for a distribution over spanning
            trees to exist.) None: those of the uniform distribution over spanning trees up to 10000 nodes, and in
            connected components of at most 2000, of which there may be many; else those of 100 sampled trees.
        num_trees: number of spanning trees to sample, >= 1. Each tree prefers edges that earlier trees left out, so
            that the trees cover all edges evenly; they are not draws from the uniform distribution. More trees are
            added until every edge is covered: a complete graph needs at least half as many trees as it has nodes.
            None: the default of `probabilities`.
        key: random key of the sampled trees; None: `jax.random.key(0)`.

    Returns:
        The probabilities [pair], in the order in which the edges were given (the first half of the directed edges).
        They are 1 for edges in no cycle. Their sum is the number of nodes minus the number of connected components.

    Raises:
        ValueError: probabilities that break the rules above, probabilities together with `num_trees`, a number of
            trees out of range, an invalid key, or a call inside `jax.jit`.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.graphs.spanning_trees import tree_reweighting
        >>> square_and_tail = kbp.Graph.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4)], 5)
        >>> tree_reweighting(square_and_tail).round(6).tolist()
        [0.75, 0.75, 0.75, 0.75, 1.0]
    """
    concrete = not _checks.is_traced((graph, probabilities))
    fix = "Call tree_reweighting outside jax.jit, jax.vmap and jax.grad, and pass its result in."
    _checks.require(concrete, "graph", "must be known, with its probabilities", "a traced array", fix)
    if num_trees is not None:
        _checks.require_count("num_trees", num_trees)
        fix = "Leave one of the two out."
        _checks.require(probabilities is None, "num_trees", "must be None with probabilities", num_trees, fix)
    seed = _checks.host_seed(key)

    pairs = np.stack([graph.senders, graph.receivers])[:, : graph.num_edges // 2].astype(np.int32)
    component = components(pairs[0], pairs[1], graph.num_nodes)
    if probabilities is not None:
        values = _checked(probabilities, pairs.shape[1], graph.num_nodes - int(component.max()) - 1)
    elif num_trees is None and _nodes_in_large(component) <= EXACT:
        values = _resistances(pairs, component)
    else:
        values = _sampled(pairs, graph.num_nodes, num_trees or NUM_TREES, seed)
    return _checks.to_jax(np.minimum(values, 1), jnp.result_type(float))


def has_large_component(graph: Graph) -> bool:
    """Return whether a connected component has more nodes than are solved as a dense matrix."""
    half = graph.num_edges // 2
    pairs = np.stack([graph.senders, graph.receivers])[:, :half].astype(np.int32)
    return graph.num_nodes > DENSE and _nodes_in_large(components(pairs[0], pairs[1], graph.num_nodes)) > 0


def _nodes_in_large(component: NDArray) -> int:
    """Return the number of nodes in components that are not solved as dense matrices."""
    nodes = np.bincount(component)
    return int(nodes[nodes > DENSE].sum())


def _checked(probabilities: Numbers, num_pairs: int, total: int) -> NDArray:
    """Return custom probabilities after fast checks."""
    array = np.asarray(probabilities)
    rule, fix = f"must have shape ({num_pairs},), one for each undirected edge", "Pass them in the order of the edges."
    _checks.require(array.shape == (num_pairs,), "probabilities", rule, f"shape {array.shape}", fix)
    _checks.require_finite("probabilities", array, "Pass finite probabilities.")
    values = array.astype(jnp.result_type(float))  # also rejects numbers that round to 0
    outside = np.flatnonzero((values <= 0) | (values > 1 + 1e-6))  # allows rounding above 1
    got = ", ".join(f"{values[i]} for edge {i}" for i in outside[:3])
    fix = "Every edge must be in some spanning tree; leave an edge out of the graph rather than give it 0."
    _checks.require(len(outside) == 0, "probabilities", "must be in (0, 1]", got, fix)
    found = float(np.sum(values, dtype=float))
    rule = f"must add up to {total}, the number of nodes less the number of connected components"
    fix = "Average the edge indicators of spanning trees, or pass None."
    _checks.require(abs(found - total) <= 1e-3 * total, "probabilities", rule, f"{found:.6g}", fix)
    return values


def _resistances(pairs: NDArray, component: NDArray) -> NDArray:
    """Return the effective resistance of each edge, with unit resistors as edges; 1 in components without cycles.

    With one node of each component grounded, it is G_aa + G_bb - 2 G_ab. G is the inverse of the remaining Laplacian,
    with zero rows for grounded nodes. Only the entries at edges are kept.
    """
    nodes, of_pair = np.bincount(component), component[pairs[0]]
    cyclic = np.bincount(of_pair, minlength=len(nodes)) >= nodes
    resistance = np.ones(pairs.shape[1])
    order = np.argsort(component, kind="stable")
    within = np.empty(len(component), int)
    within[order] = np.arange(len(order)) - np.repeat(np.cumsum(nodes) - nodes, nodes)
    exponent = np.frexp(nodes - 1)[1]  # components of 3 .. 4, 5 .. 8 nodes, and so on, are padded to one size
    for e in np.unique(exponent[cyclic & (nodes <= DENSE)]):
        members = np.flatnonzero(cyclic & (nodes <= DENSE) & (exponent == e))
        size = int(nodes[members].max())
        for some in np.array_split(members, -(-len(members) * size**2 // BATCH)):
            number = np.full(len(nodes), -1)
            number[some] = np.arange(len(some))
            chosen = np.flatnonzero(number[of_pair] >= 0)
            resistance[chosen] = _dense(number[of_pair[chosen]], within[pairs[:, chosen]], len(some), size)
    large = np.flatnonzero((cyclic & (nodes > DENSE))[of_pair])
    if len(large):
        kept, ends = np.unique(pairs[:, large], return_inverse=True)
        resistance[large] = _sparse(ends.reshape(2, -1), component[kept])
    # An edge in a cycle has a parallel path of at most n - 1 edges in a component of n nodes, so its resistance is at
    # most 1 - 1 / n. Larger values, up to rounding, are bridges.
    return np.where(resistance > 1 - 0.5 / nodes[of_pair], 1, resistance)


def _dense(number: NDArray, ends: NDArray, count: int, size: int) -> NDArray:
    """Return the resistances of edges in small components, by inverses of a batch of Laplacians.

    Args:
        number: the component of each edge, 0 .. count - 1 [edge].
        ends: positions of its ends within the component, of which the first is grounded [2, edge].
        count: number of components.
        size: the largest number of their nodes.
    """
    laplacian = np.zeros((count, size, size))
    (a, b), diagonal = ends, np.arange(size)
    laplacian[number, a, b] = laplacian[number, b, a] = -1
    degree = -laplacian.sum(axis=2)
    laplacian[:, diagonal, diagonal] = np.where(degree > 0, degree, 1)  # padding is a separate 1
    laplacian[:, 0, :] = laplacian[:, :, 0] = 0
    laplacian[:, 0, 0] = 1
    inverse = np.linalg.inv(laplacian)
    inverse[:, 0, 0] = 0
    return inverse[number, a, a] + inverse[number, b, b] - 2 * inverse[number, a, b]


def _sparse(pairs: NDArray, component: NDArray) -> NDArray:
    """Return the resistances of edges in large components, by a sparse factorization."""
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import splu

    num_nodes, num_pairs = len(component), pairs.shape[1]
    free = np.ones(num_nodes, bool)
    free[np.unique(component, return_index=True)[1]] = False
    size = int(free.sum())
    position = np.where(free, np.cumsum(free) - 1, size)
    column, row = np.sort(position[pairs], axis=0)  # an edge has at most one grounded end, which sorts last

    degree = np.bincount(pairs.reshape(-1), minlength=num_nodes)[free].astype(float)
    inner = row < size
    joined = coo_array((np.ones(int(inner.sum())), (row[inner], column[inner])), shape=(size, size))
    laplacian = (diags_array(degree) - joined - joined.T).tocsc()
    # A symmetric, diagonally dominant matrix needs no pivoting, so the order can minimize the fill-in. On a 100 x 100
    # grid, minimum degree has 0.6 times the fill-in of the default order.
    options = {"SymmetricMode": True}
    factors = splu(laplacian, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)

    diagonal, across = np.zeros(size + 1), np.zeros(num_pairs)
    order = np.argsort(column, kind="stable")
    for first in range(0, size, BLOCK):
        within = np.arange(min(BLOCK, size - first))
        unit = np.zeros((size + 1, len(within)), order="F")
        unit[first + within, within] = 1
        part = np.append(factors.solve(unit[:-1]), np.zeros((1, len(within))), axis=0)
        diagonal[first + within] = part[first + within, within]
        start, stop = np.searchsorted(column[order], [first, first + len(within)])
        edges = order[start:stop]
        across[edges] = part[row[edges], column[edges] - first]
    return diagonal[row] + diagonal[column] - 2 * across


def _sampled(pairs: NDArray, num_nodes: int, num_trees: int, seed: int) -> NDArray:
    """Return the fraction of sampled spanning trees that contain each edge.

    Each tree is a minimum spanning tree. The weight of an edge is the number of earlier trees that contain it, plus a
    random number in (0, 1]. The lightest edge is always in the tree, so every tree covers a new edge while there are
    uncovered ones, and the loop ends.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    num_pairs = pairs.shape[1]
    order = np.lexsort((pairs[1], pairs[0]))
    rows, columns = pairs[:, order]
    starts = np.searchsorted(rows, np.arange(num_nodes + 1)).astype(np.int32)
    keys = rows.astype(np.int64) * num_nodes + columns
    rng = np.random.default_rng(seed)
    count, drawn = np.zeros(num_pairs), 0
    while drawn < num_trees or np.any(count == 0):
        weights = count + (1 - rng.random(num_pairs))  # never 0, which would mean no edge
        graph = csr_array((weights, columns, starts), shape=(num_nodes, num_nodes))
        tree = minimum_spanning_tree(graph).tocoo()
        count[np.searchsorted(keys, tree.row.astype(np.int64) * num_nodes + tree.col)] += 1
        drawn += 1
    share = np.empty(num_pairs)
    share[order] = count / drawn
    return share
