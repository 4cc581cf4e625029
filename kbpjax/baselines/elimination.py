r"""Exact answers of discrete models, by variable elimination in logarithms.

Eliminating $x_v$ multiplies the tables $F_v$ that contain it and sums it out: the sum $m_v$ is a table of the variables
that are left of them. With the sums kept, the conditionals $p(x_v \mid \text{rest}) = F_v / m_v$ give, in the reverse
order, marginals, joint draws and, with maxima instead of sums, the most probable joint state (Koller and Friedman 2009,
chapters 9, 10 and 13). Time and memory grow exponentially with the width of the order, the largest number of variables
beside $x_v$ in an $F_v$: `solve` searches an order, and refuses where its tables do not fit.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import by_value
from kbpjax._public import public
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.cycles import log_potentials
from kbpjax.posterior.joint import own_candidates, parts_of
from kbpjax.posterior.posterior import Posterior

__all__ = ["Factors", "Solution", "beliefs", "mode", "order", "solve"]

Floats = NDArray[np.floating]
Scope = tuple[int, ...]

CELLS = 2**24
"""Largest number of entries of a table, by default."""

MOST_AXES = 60
"""Largest number of variables of a table; arrays of NumPy have at most 64 axes."""

TRIES = 4
"""Number of orders of each greedy rule that are tried, with other choices among equals."""


@by_value
@dataclasses.dataclass(frozen=True)
class Factors:
    """A discrete model as a product of tables, each of any number of variables.

    Attributes:
        sizes: number of states of each variable.
        scopes: variables of each table, each variable once.
        tables: the tables, >= 0, with an axis for each variable of the scope.

    Raises:
        ValueError: a size below 1, an unknown or repeated variable in a scope, or a table of another shape, negative,
            or not finite.

    Examples:
        >>> from kbpjax.baselines import elimination
        >>> agree = [[3.0, 1.0], [1.0, 3.0]]
        >>> factors = elimination.Factors([2, 2, 2], [(0, 1), (1, 2), (0,)], [agree, agree, [1.0, 2.0]])
        >>> elimination.solve(factors).marginals[2].round(3).tolist()
        [0.458, 0.542]
    """

    sizes: Sequence[int]
    scopes: Sequence[Scope]
    tables: Sequence[Any]

    def __post_init__(self) -> None:
        fix = "Give the number of states of each variable."
        sizes = _listed("sizes", self.sizes, fix)
        ok = len(sizes) > 0 and all(_checks.is_whole(n) and n >= 1 for n in sizes)
        _checks.require(ok, "sizes", "must be integers >= 1", repr(sizes[:5]), fix)
        given, fix = _listed("scopes", self.scopes, "Give the variables of each table."), "Give a table for each scope."
        arrays = _listed("tables", self.tables, fix)
        got = f"{len(given)} scopes, {len(arrays)} tables"
        _checks.require(len(given) == len(arrays), "scopes, tables", "must be as many", got, fix)
        scopes, tables = [], []
        for i, (variables, array) in enumerate(zip(given, arrays, strict=True)):
            fix = "Variables are numbered from 0; a table has each at most once."
            scope = _listed(f"scopes[{i}]", variables, fix)
            whole = all(_checks.is_whole(v) and 0 <= v < len(sizes) for v in scope)
            known = whole and len(set(scope)) == len(scope)
            _checks.require(known, f"scopes[{i}]", f"must be different numbers < {len(sizes)}", repr(scope[:8]), fix)
            numbers = np.asarray(_checks.as_numpy(f"tables[{i}]", array))
            _checks.require_real(f"tables[{i}]", numbers)
            table = numbers.astype(float)
            shape = tuple(int(sizes[v]) for v in scope)
            fix = "Give an axis for each variable of the scope."
            _checks.require(table.shape == shape, f"tables[{i}]", f"must have shape {shape}", table.shape, fix)
            ok = bool(np.all(np.isfinite(table)) and np.all(table >= 0))
            fix = "Pass potentials, not logarithms."
            _checks.require(ok, f"tables[{i}]", "must be finite numbers >= 0", "others", fix)
            scopes.append(tuple(map(int, scope)))
            tables.append(table)
        for name, value in ("sizes", tuple(map(int, sizes))), ("scopes", tuple(scopes)), ("tables", tuple(tables)):
            object.__setattr__(self, name, value)

    @public
    def given(self, values: Mapping[int, int]) -> "Factors":
        """Return the model of which some variables have known states {variable: state}; they keep their numbers.

        Its partition function is the sum over the states of the others.

        Raises:
            ValueError: an unknown variable or state.
        """
        sizes = self.sizes
        whole = lambda x, most: _checks.is_whole(x) and 0 <= x < most
        bad = [v for v, x in values.items() if not (whole(v, len(sizes)) and whole(x, sizes[v]))]
        fix = "Pass {variable: number of its state}, both from 0."
        _checks.require(not bad, "values", "must name known variables and states", {v: values[v] for v in bad[:3]}, fix)
        one_hot = [np.eye(sizes[v])[x] for v, x in values.items()]
        return Factors(sizes, [*self.scopes, *((v,) for v in values)], [*self.tables, *one_hot])


def _listed(argument: str, given: Any, fix: str) -> list[Any]:
    """Return what is given in order as a list."""
    ok = given.ndim > 0 if isinstance(given, np.ndarray) else isinstance(given, Sequence) and not isinstance(given, str)
    _checks.require(ok, argument, "must be a list", repr(given)[:60], fix)
    return list(given)


@by_value
@dataclasses.dataclass(frozen=True)
class Solution:
    """Exact answers of a discrete model.

    Attributes:
        log_partition: logarithm of the sum over all joint states of the product of the tables; -inf if no joint state
            is possible.
        marginals: probabilities of the states of each variable [state]; NaN if no joint state is possible.
        width: the largest number of variables that a table had beside the one that was summed out.

    Examples:
        >>> from kbpjax.baselines import elimination
        >>> factors = elimination.Factors([2, 2], [(0, 1), (0,)], [[[3.0, 1.0], [1.0, 3.0]], [1.0, 3.0]])
        >>> solution = elimination.solve(factors)
        >>> round(solution.log_partition, 3), solution.marginals[0].round(3).tolist()
        (2.773, [0.25, 0.75])
        >>> solution.sample(100).shape
        (100, 2)
    """

    log_partition: float
    marginals: tuple[Floats, ...]
    width: int
    _buckets: "tuple[_Bucket, ...]" = dataclasses.field(repr=False)
    _states: tuple[NDArray[np.integer], ...] = dataclasses.field(repr=False)

    @public
    def sample(self, n: int, seed: int = 0) -> NDArray[np.integer]:
        """Return joint draws [draw, variable], as numbers of states.

        Args:
            n: number of draws, >= 1.
            seed: seed of the draws.

        Raises:
            ValueError: a number out of range, or no joint state is possible.
        """
        _checks.require_count("n", n)
        _checks.require_seed(seed)
        possible = self.log_partition > -math.inf
        _checks.require(possible, "factors", "must have a possible joint state", "none", "Look for tables of zeros.")
        rng, sizes = np.random.default_rng(seed), [len(one) for one in self._states]
        found = np.zeros((n, len(sizes)), int)
        for bucket in reversed(self._buckets):
            logs = bucket.product(sizes)[(slice(None), *found[:, bucket.rest].T)]
            logs = logs.T if bucket.rest else np.broadcast_to(logs, (n, len(logs)))
            # The largest of logarithms with Gumbel noise is a draw.
            found[:, bucket.variable] = np.argmax(logs + rng.gumbel(size=logs.shape), axis=1)
        return np.stack([states[own] for states, own in zip(self._states, found.T, strict=True)], axis=1)


@by_value
@dataclasses.dataclass(frozen=True)
class _Bucket:
    """What is multiplied when a variable is summed out.

    Attributes:
        variable: the variable.
        rest: the other variables of the tables, in the order in which they are eliminated.
        parts: (scope, logarithms) of the tables, axes in the order of elimination.
        total: logarithm of the sum, a table of `rest`.
    """

    variable: int
    rest: list[int]
    parts: "list[tuple[Scope, Floats]]"
    total: Floats

    def product(self, sizes: Sequence[int]) -> Floats:
        """Return the logarithms of the product [variable, *rest]."""
        return _product(self.variable, self.rest, self.parts, sizes)


def _product(variable: int, rest: Sequence[int], parts: Sequence[tuple[Scope, Floats]], sizes: Sequence[int]) -> Floats:
    axes = [variable, *rest]
    total = np.zeros([sizes[v] for v in axes])
    for scope, logs in parts:
        total += logs.reshape([sizes[v] if v in scope else 1 for v in axes])
    return total


def _log_sum(logs: Floats) -> Floats:
    """Return the logarithm of the sum over the first axis."""
    top = logs.max(axis=0)
    finite = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(logs - finite), axis=0)) + finite


def _possible(factors: Factors) -> tuple[Factors, list[NDArray[np.integer]]]:
    """Return the model without states that some table makes impossible, and the states of each variable that are left.

    A variable without a possible state keeps its first one, at which the tables are 0.
    """
    left = [np.ones(n, bool) for n in factors.sizes]
    while True:
        before = sum(int(one.sum()) for one in left)
        for scope, table in zip(factors.scopes, factors.tables, strict=True):
            inside = table[np.ix_(*(left[v] for v in scope))] > 0
            for axis, v in enumerate(scope):
                others = tuple(i for i in range(len(scope)) if i != axis)
                left[v][np.flatnonzero(left[v])[~inside.any(axis=others)]] = False
        if not all(one.any() for one in left) or sum(int(one.sum()) for one in left) == before:
            break
    states: list[Any] = [np.flatnonzero(one) if one.any() else np.zeros(1, int) for one in left]
    tables = [
        table[np.ix_(*(states[v] for v in scope))] for scope, table in zip(factors.scopes, factors.tables, strict=True)
    ]
    if not all(one.any() for one in left):
        return Factors([len(one) for one in states], [*factors.scopes, ()], [*tables, 0.0]), states
    return Factors([len(one) for one in states], factors.scopes, tables), states


def _joined(factors: Factors) -> list[set[int]]:
    """Return the neighbors of each variable: those with which it is in a table."""
    neighbors: list[set[int]] = [set() for _ in factors.sizes]
    for scope in factors.scopes:
        for v in scope:
            neighbors[v].update(scope)
    for v, own in enumerate(neighbors):
        own.discard(v)
    return neighbors


def _greedy(neighbors: list[set[int]], weights: Floats, rule: str, rng: np.random.Generator) -> Iterator[int]:
    """Yield variables in an order of elimination: the cheapest first, by edges to be added, or by entries."""
    joined = [set(own) for own in neighbors]

    def cost(v: int) -> float:
        own = joined[v]
        if rule == "entries":
            return float(weights[v] + weights[list(own)].sum()) if own else float(weights[v])
        return sum(len(own) - 1 - len(joined[u] & own) for u in own) / 2

    costs = np.array([cost(v) for v in range(len(joined))])
    noise = 1e-6 * rng.random(len(joined))
    for _ in range(len(joined)):
        v = int(np.argmin(costs + noise))
        costs[v] = np.inf
        own = joined[v]
        near = set(own)
        for u in own:
            joined[u] |= own
            joined[u] -= {u, v}
            if rule != "entries":
                near |= joined[u]
        for u in near:
            if np.isfinite(costs[u]):
                costs[u] = cost(u)
        yield v


def _entries(neighbors: list[set[int]], found: Sequence[int], weights: Floats) -> tuple[float, float, int]:
    """Return logarithms of the largest and of the total number of entries of the tables of an order, and its width."""
    joined = [set(own) for own in neighbors]
    logs, width = [], 0
    for v in found:
        own = joined[v]
        logs.append(float(weights[v] + (weights[list(own)].sum() if own else 0)))
        width = max(width, len(own))
        for u in own:
            joined[u] |= own
            joined[u] -= {u, v}
    return max(logs), float(np.logaddexp.reduce(logs)), width


@public
def order(factors: Factors, seed: int = 0) -> tuple[list[int], int, float]:
    """Return a good order of elimination, its width, and the logarithm to base 2 of the entries of its largest table.

    The best of several orders is taken: fewest edges added first, smallest table first, as numbered, and along bands
    (reverse Cuthill-McKee). None of them need be optimal: the best order is hard to find.

    Args:
        factors: the model.
        seed: seed of the choices among equals, an integer >= 0.

    Raises:
        ValueError: the seed is out of range.

    Examples:
        >>> from kbpjax.baselines import elimination
        >>> pairs = [(0, 1), (1, 2), (2, 3), (0, 3)]
        >>> elimination.order(elimination.Factors([2] * 4, pairs, [[[2.0, 1.0], [1.0, 2.0]]] * 4))[1:]
        (2, 3.0)
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    _checks.require_seed(seed)
    neighbors, count = _joined(factors), len(factors.sizes)
    weights = np.log(np.array(factors.sizes, float))
    pairs = np.array([(v, u) for v, own in enumerate(neighbors) for u in own], int).reshape(-1, 2)
    near = coo_array((np.ones(len(pairs)), tuple(pairs.T)), shape=(count, count)).tocsr()
    band = reverse_cuthill_mckee(near, symmetric_mode=True).tolist()
    tried = [list(range(count)), band]
    for i in range(TRIES):
        rng = np.random.default_rng([seed, i])
        tried += [list(_greedy(neighbors, weights, rule, rng)) for rule in ("edges", "entries")]
    found = min(tried, key=lambda one: _entries(neighbors, one, weights)[:2])
    largest, _, width = _entries(neighbors, found, weights)
    return found, width, largest / math.log(2)


def _eliminate(factors: Factors, found: Sequence[int], maximum: bool) -> tuple[list[_Bucket], float]:
    """Return the buckets of an order, and the logarithm of the sum (or maximum) over all joint states."""
    place = {v: i for i, v in enumerate(found)}
    waiting: list[list[tuple[Scope, Floats]]] = [[] for _ in factors.sizes]
    constant, buckets = 0.0, []
    for scope, table in zip(factors.scopes, factors.tables, strict=True):
        with np.errstate(divide="ignore"):
            logs = np.log(table)
        if not scope:
            constant += float(logs)
            continue
        axes = sorted(range(len(scope)), key=lambda i: place[scope[i]])
        own = tuple(scope[i] for i in axes)
        waiting[own[0]].append((own, logs.transpose(axes)))
    for v in found:
        parts, waiting[v] = waiting[v], []
        rest = sorted({u for scope, _ in parts for u in scope} - {v}, key=place.__getitem__)
        logs = _product(v, rest, parts, factors.sizes)
        total = logs.max(axis=0) if maximum else _log_sum(logs)
        buckets.append(_Bucket(v, rest, parts, total))
        if rest:
            waiting[rest[0]].append((tuple(rest), total))
        else:
            constant += float(total)
    return buckets, constant


def _require_fits(factors: Factors, max_cells: int) -> tuple[list[int], int]:
    found, width, bits = order(factors)
    fix = "Use message passing (kbpjax.infer), or raise max_cells."
    fits = bits <= math.log2(max_cells) + 1e-9 and width < MOST_AXES
    got = f"width {width}, a table of 2^{bits:.1f} entries"
    _checks.require(fits, "factors", f"must have tables of at most {max_cells} entries in elimination", got, fix)
    return found, width


@public
def solve(factors: Factors, *, max_cells: int = CELLS) -> Solution:
    """Return the exact marginals and partition function, from which joint draws can be taken.

    Args:
        factors: the model.
        max_cells: largest number of entries of a table (of 8 bytes), >= 1; the default is 128 MiB. Several such
            tables are in memory at a time.

    Raises:
        ValueError: the orders that were found need a larger table; the message has the width.

    Examples:
        >>> from kbpjax.baselines import elimination
        >>> agree = [[3.0, 1.0], [1.0, 3.0]]
        >>> found = elimination.solve(elimination.Factors([2, 2], [(0, 1)], [agree]))
        >>> round(found.log_partition, 4), found.width, found.sample(1000).shape  # log 8
        (2.0794, 1, (1000, 2))
    """
    _checks.require_count("max_cells", max_cells)
    sizes_of_all = factors.sizes
    factors, states = _possible(factors)
    found, width = _require_fits(factors, max_cells)
    buckets, log_partition = _eliminate(factors, found, maximum=False)
    sizes, marginals = factors.sizes, [np.full(n, np.nan) for n in sizes_of_all]
    if log_partition > -math.inf:
        children: dict[int, list[_Bucket]] = {}
        for bucket in buckets:
            if bucket.rest:
                children.setdefault(bucket.rest[0], []).append(bucket)
        joint_of: dict[int, Floats] = {}  # {variable: joint probabilities of the rest of its bucket}
        for bucket in reversed(buckets):
            above = joint_of.pop(bucket.variable, np.ones(()))
            total = np.where(np.isfinite(bucket.total), bucket.total, 0)
            joint = np.exp(bucket.product(sizes) - total) * above
            axes = [bucket.variable, *bucket.rest]
            marginals[bucket.variable][:] = 0
            marginals[bucket.variable][states[bucket.variable]] = joint.sum(axis=tuple(range(1, joint.ndim)))
            for child in children.get(bucket.variable, ()):
                others = tuple(i for i, v in enumerate(axes) if v not in child.rest)
                joint_of[child.variable] = joint.sum(axis=others)
    return Solution(log_partition, tuple(marginals), width, tuple(buckets), tuple(states))


@public
def mode(factors: Factors, *, max_cells: int = CELLS) -> tuple[NDArray[np.integer], float]:
    """Return the most probable joint state [variable] and the logarithm of the product of its tables.

    Args:
        factors: the model.
        max_cells: as in `solve`.

    Raises:
        ValueError: as `solve`, or no joint state is possible.

    Examples:
        >>> from kbpjax.baselines import elimination
        >>> states, log_value = elimination.mode(elimination.Factors([2, 2], [(0, 1)], [[[1.0, 4.0], [2.0, 1.0]]]))
        >>> states.tolist(), round(log_value, 4)  # log 4
        ([0, 1], 1.3863)
    """
    _checks.require_count("max_cells", max_cells)
    factors, left = _possible(factors)
    found, _ = _require_fits(factors, max_cells)
    buckets, top = _eliminate(factors, found, maximum=True)
    possible = top > -math.inf
    _checks.require(possible, "factors", "must have a possible joint state", "none", "Look for tables of zeros.")
    states = np.zeros(len(factors.sizes), int)
    for bucket in reversed(buckets):
        logs = bucket.product(factors.sizes)[(slice(None), *states[bucket.rest])]
        states[bucket.variable] = int(np.argmax(logs))
    return np.array([own[state] for own, state in zip(left, states, strict=True)]), top


@public
def beliefs(posterior: Posterior, *, max_cells: int = CELLS) -> Belief | dict[int, Belief]:
    r"""Return the exact beliefs of the model of a posterior on its candidates.

    On its candidates a model is discrete: with the tables $r_{st}$ of pairs of candidates, the exponents of messages,
    and the length $\ell_s$ of the interval that a candidate stands for,

    $$p(x) \propto \prod_s p(x_s)\, \mathrm{local}_s(x_s)\, \ell_s(x_s) \prod_{st} r_{st}(x_s, x_t)^{\rho_{st}}.$$

    Message passing is exact on trees, up to the difference between candidates and the model's own points, and between
    the two directions of learned relations (their mean is used here), and approximate on graphs with cycles. This is
    the answer that it approximates: with the same potentials, exponents and temperature, and all dependence along
    cycles. Time and memory grow exponentially with the tree-width of the graph, with the number of candidates as base:
    pass few points to `infer`.

    Args:
        posterior: the posterior of one problem; it should have converged.
        max_cells: largest number of entries of a table in elimination (of 8 bytes), >= 1.

    Returns:
        A `Belief`, or {node type: `Belief`} for several node types, of the same candidates as `posterior.belief`.

    Raises:
        ValueError: a table would be larger than `max_cells`, a max-product model, no joint state is possible, or a
            posterior with batch axes.

    Examples:
        >>> import kbpjax as kbp
        >>> from kbpjax.baselines import discrete, elimination
        >>> model = discrete.from_potentials([0, 1], [2.0, 1.0], [[[3.0, 1.0], [1.0, 3.0]]])
        >>> posterior = kbp.infer(model, kbp.grid_graph(2, 2))
        >>> float(posterior.weights[0, 0].round(3)), float(elimination.beliefs(posterior).weights[0, 0].round(3))
        (0.863, 0.85)
    """
    _checks.require_count("max_cells", max_cells)
    fix = "Call it outside of jax.jit."
    _checks.require(not _checks.is_traced(posterior), "posterior", "must be known", "a tracer", fix)
    posterior = own_candidates(posterior)
    parts, graph = parts_of(posterior), posterior.graph
    heat = float(parts.temperature)
    by_type = posterior.by_type
    types, half = np.asarray(graph.node_type), graph.num_edges // 2
    count = {v: one.num_points for v, one in by_type.items()}
    sizes = [count[v] for v in types.tolist()]
    local = np.asarray(log_potentials(parts, graph)[:-1], float) * heat + np.asarray(parts.logs, float)
    scopes: list[Any] = [(node,) for node in range(len(sizes))]
    tables = [_exp(local[node, :size]) for node, size in enumerate(sizes)]
    with np.errstate(divide="ignore"):
        logs = np.log(np.asarray(parts.tables, float)) * heat
    senders, receivers = np.asarray(graph.senders)[:half], np.asarray(graph.receivers)[:half]
    kinds, powers = np.asarray(parts.kinds)[np.asarray(graph.edge_type)[:half]], np.asarray(parts.exponents, float)
    for edge, (a, b) in enumerate(zip(senders.tolist(), receivers.tolist(), strict=True)):
        scopes.append((a, b))
        tables.append(_exp(powers[edge] * logs[kinds[edge], : sizes[a], : sizes[b]]))
    solution = solve(Factors(sizes, scopes, tables), max_cells=max_cells)
    fix = "Look for evidence and tables that exclude each other."
    _checks.require(solution.log_partition > -math.inf, "posterior", "must have a possible joint state", "none", fix)
    found, answer = solution.marginals, {}
    for v, one in by_type.items():
        nodes = np.flatnonzero(types == v)
        weights = np.stack([found[node] for node in nodes])
        if heat != 1:
            lengths = np.exp(np.asarray(parts.logs, float)[nodes, : count[v]])
            weights = (weights / lengths) ** (1 / heat) * lengths
        weights = weights / weights.sum(axis=1, keepdims=True)
        answer[v] = dataclasses.replace(one, weights=jnp.asarray(weights, one.weights.dtype))
    return answer if len(answer) > 1 else answer[min(answer)]


def _exp(logs: np.ndarray) -> np.ndarray:
    """Return a table with maximum 1."""
    top = logs.max(initial=-math.inf)
    return np.exp(logs - (top if math.isfinite(top) else 0))
