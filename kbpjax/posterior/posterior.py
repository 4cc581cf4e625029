"""The posterior of one problem: its model, graph, evidence and messages, and the beliefs of all nodes.

All answers are computed from these parts, so that they belong to the same problem: summaries, beliefs of edges, modes,
the evidence of the data, diagnostics, plots.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax import _checks
from kbpjax._misc import show_lines, values_or_shapes
from kbpjax._public import Checked, public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.loopy import Solution
from kbpjax.learning.labels import Values
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.beliefs import Belief, beliefs, lengths_of, marginals_of
from kbpjax.posterior.evidence import Evidence
from kbpjax.posterior.iterated import model_of_messages
from kbpjax.posterior.marginals import Empirical, Marginal

ARRAYS = (jax.Array, np.ndarray)


class Constants:
    """Arrays that are not traced where a posterior is made; equal if they are the same objects, or have equal values.

    `jax.vmap` and `jax.jit` hand them on as they are: a batch of posteriors has one model, not a copy for each case.
    """

    def __init__(self, tree: Any):
        self.tree = tree
        self.leaves, self.structure = jax.tree.flatten(tree)
        self.kinds = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in self.leaves)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constants) or (self.kinds, self.structure) != (other.kinds, other.structure):
            return False
        pairs = zip(self.leaves, other.leaves, strict=True)
        return all(one is two or np.array_equal(one, two) for one, two in pairs)

    def __hash__(self) -> int:
        return hash(self.kinds)

    def __reduce__(self) -> Any:  # the structure of a copy would have other sentinels of equinox, and be another one
        return Constants, (self.tree,)

    def __repr__(self) -> str:
        return f"Constants({len(self.leaves)} arrays)"


class Posterior(Checked):
    """What is known of all variables of a graph, given evidence; returned by `infer`, made by `Posterior.of`.

    All summaries take a posterior, as do `edge_beliefs`, `log_partition`, `log_belief`, `refine_mode`, `diagnose` and
    `check`. It is a pytree. `jax.vmap` of `infer` returns a posterior with batch axes, which all summaries take, too.

    Attributes:
        model: the model.
        graph: the graph.
        evidence: the evidence; None: none.
        solution: the messages.
        marginals: {node type: the estimate of the marginal in its beliefs}.
        probabilities: {node type: probabilities of its nodes on the candidates [node_of_type, point]}.
        belief: the beliefs of all nodes, a `Belief`; for a graph with several node types, {node type: `Belief`}.
        points: the candidates [point, *dim], or of each node [node, point, *dim] if nodes have own margins
            (`fit(margins=)`); for several node types, {node type: candidates}.
        own_points: whether the candidates are those of the model, so that nodes with own margins have own candidates.
        weights: the probabilities [node, point]; for several node types, {node type: probabilities}.
        shown: the shape of the leading coordinates of vectors that answers are of; None: whole values. States of
            `kbpjax.series` with order 2 are a value and the one before, and answers are of the first.

    `posterior[key]` is `posterior.belief[key]`: the belief of some nodes, or of a node type.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
        >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.1))
        >>> posterior = kbp.infer(model, graph, evidence=kbp.clamp(model, graph, [0], [0.5]))
        >>> print(kbp.mean(posterior).round(1))
        [0.5 0.5 0.6]
        >>> pair = kbp.edge_beliefs(posterior, [(0, 1)])
        >>> bool(np.allclose(pair.weights[0].sum(axis=0), posterior[1].weights[0], atol=1e-5))
        True
    """

    evidence: Evidence | None
    solution: Solution
    probabilities: dict[int, Float[Array, "node_of_type point"]]
    traced: Any
    constants: Constants | None = eqx.field(static=True, default=None)
    of_states: bool = eqx.field(static=True, default=False)
    own_points: bool = eqx.field(static=True, default=False)
    shown: tuple[int, ...] | None = eqx.field(static=True, default=None)

    @classmethod
    @public
    def of(
        cls,
        model: KernelMRF,
        graph: Graph,
        evidence: Evidence | None,
        solution: Solution,
        points: Values | Mapping[int, Values] | None = None,
        *,
        marginal: Marginal | None = None,
    ) -> "Posterior":
        """Return the posterior of messages that `run` or `run_tree` has computed.

        Args:
            model: the model of `run`.
            graph: the graph.
            evidence: the evidence of `run`, or None.
            solution: the solution of `run`.
            points: candidates, as in `beliefs`. None: those of the model.
            marginal: the estimate of the marginal, as in `beliefs`.

        Raises:
            ValueError: as `beliefs`.

        Examples:
            >>> import numpy as np, kbpjax as kbp
            >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
            >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
            >>> posterior = kbp.Posterior.of(model, graph, None, kbp.run_tree(model, graph))
            >>> posterior.weights.shape
            (3, 60)
        """
        graph, types = model.graph_of(graph), [v for v, *_ in graph.node_types]
        estimates = marginals_of(model, graph, points, marginal)
        given = dict.fromkeys(types, points) if points is not None and not isinstance(points, Mapping) else points
        computed: Any = beliefs(model, graph, evidence, solution, given, marginal=marginal)
        computed = computed if isinstance(computed, dict) else dict.fromkeys(types, computed)
        weights = {v: computed[v].weights for v in types}
        parts = model, graph, {v: computed[v].points for v in types}, estimates
        traced, constants = parts, None
        if _checks.is_traced((weights, solution)):
            traced, rest = eqx.partition(parts, lambda leaf: _checks.is_traced(leaf))
            constants = Constants(rest)
        known = points is None
        return cls.trusted(evidence, solution, weights, traced, constants, model.has_potentials and known, known)

    @property
    def _parts(self) -> Any:
        return self.traced if self.constants is None else eqx.combine(self.traced, self.constants.tree)

    @property
    def model(self) -> KernelMRF:
        """The model."""
        return self._parts[0]

    @property
    def model_of_messages(self) -> KernelMRF:
        """The model with the operators that the messages are of: nonnegative ones, where `infer` has iterated."""
        return model_of_messages(self.model, self.solution)

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._parts[1]

    @property
    def points(self) -> Any:
        """The candidates of all nodes; {node type: candidates} for a graph with several node types."""
        return _only({v: leading(x, self.shown) for v, x in self._parts[2].items()})

    @property
    def weights(self) -> Any:
        """The probabilities of all nodes [node, point]; {node type: those of its nodes} for several node types."""
        return _only(self.probabilities)

    @property
    def marginals(self) -> dict[int, Marginal]:
        """The estimate of the marginal of each node type."""
        return self._parts[3]

    @property
    def batch(self) -> tuple[int, ...]:
        """The sizes of the batch axes; () for one problem."""
        return self.solution.residual.shape

    @property
    def belief(self) -> Any:
        """The beliefs of all nodes: a `Belief`, or {node type: `Belief`} for a graph with several node types."""
        return _only(self.by_type)

    @property
    def by_type(self) -> dict[int, Belief]:
        """The beliefs of each node type, also if there is one."""
        return {v: self._belief(v) for v in self.probabilities}

    def _belief(self, node_type: int) -> Belief:
        build = lambda points, lengths, weights: Belief.trusted(points, weights, lengths, *self._kind(node_type))
        points, lengths = self._candidates(node_type)
        if self._batched(node_type) != self.batch:
            points, lengths = jax.tree.map(lambda x: jnp.broadcast_to(x, (*self.batch, *x.shape)), (points, lengths))
        for _ in self.batch:
            build = jax.vmap(build)
        return build(points, lengths, self.probabilities[node_type])

    def _kind(self, node_type: int) -> tuple[Any, bool]:
        """Return the labels of the beliefs of a node type, or None, and whether each node has its own points."""
        return dict(self.model.labels).get(node_type), self.own_points and node_type in self.model.margins

    def _candidates(self, node_type: int) -> tuple[Array, Array | None]:
        """Return the candidates of a node type and their lengths, with the batch axes that the candidates have."""
        points, dtype = self._parts[2][node_type], self.probabilities[node_type].dtype
        if self.shown is not None:
            return leading(points, self.shown), None
        if self.of_states or isinstance(self.marginals[node_type], Empirical):
            return points, None
        own = self._kind(node_type)[1]
        lengths = lambda x: lengths_of(x, dtype, own)
        for _ in self._batched(node_type):
            lengths = jax.vmap(lengths)
        return points, lengths(points)

    def _batched(self, node_type: int) -> tuple[int, ...]:
        """Return the batch axes of the candidates: all of the posterior's if they are traced, else none."""
        constant = self.constants is not None and self.constants.tree[2][node_type] is not None
        return () if constant else self.batch

    @public
    def at(
        self, points: Values | Mapping[int, Values], *, marginal: Marginal | None = None
    ) -> Belief | dict[int, Belief]:
        """Return the beliefs at other candidates, as `beliefs` does.

        Args:
            points: candidates [point, *dim], or {node type: candidates}.
            marginal: the estimate of the marginal; None: `MeanEmbedding()`.

        Examples:
            >>> import numpy as np, kbpjax as kbp
            >>> graph, x = kbp.chain_graph(3), np.linspace(-1, 1, 60).reshape(20, 3)
            >>> model = kbp.fit(kbp.pool(graph, x), kernel=kbp.RBF(0.5))
            >>> kbp.infer(model, graph).at([-1.0, 0.0, 1.0])
            Belief(3 nodes on 3 points from -1 to 1)
        """
        self.require_one()
        return beliefs(self.model, self.graph, self.evidence, self.solution, points, marginal=marginal)

    def showing(self, shape: tuple[int, ...] | None) -> "Posterior":
        """Return the posterior with answers of the leading coordinates of a shape; None: of whole values."""
        fields = self.evidence, self.solution, self.probabilities, self.traced, self.constants
        return Posterior.trusted(*fields, self.of_states, self.own_points, shape)

    def require_one(self) -> None:
        """Raise ValueError for a posterior with batch axes."""
        fix = "Call this inside the function that jax.vmap maps over the posterior."
        _checks.require(not self.batch, "posterior", "must be of one problem", f"batch axes {self.batch}", fix)

    @property
    def only_belief(self) -> Belief:
        """The beliefs of a problem whose nodes have one type; raises ValueError for others."""
        self.require_one()
        types, fix = list(self.probabilities), "Pass the belief of one type: posterior[node_type]."
        _checks.require(len(types) == 1, "belief", "must be of one node type", f"types {types}", fix)
        return self._belief(types[0])

    def map_cases(
        self,
        summary: Callable[..., Any],
        options: Mapping[str, Any],
        of_nodes: tuple[str, ...] = (),
        shared: tuple[str, ...] = (),
    ) -> Any:
        """Return a summary of the beliefs, mapped over the batch axes.

        Args:
            summary: the summary.
            options: its arguments other than the beliefs. Arrays with the batch axes are mapped, too.
            of_nodes: names of those that have a value for each node [node, *dim]: mapped if they have the batch axes.
            shared: names of those that are the same for all cases.
        """
        if not self.batch:
            return summary(self.belief, **options)
        axes, kinds = len(self.batch), {v: self._kind(v) for v in self.probabilities}
        candidates = {v: self._candidates(v) for v in self.probabilities}
        at = {v: candidates[v] for v in candidates if self._batched(v)}
        sizes = [(*self.batch, weights.shape[-2]) for weights in self.probabilities.values()]
        least = axes + min(points.ndim - kinds[v][1] - axes * (v in at) for v, (points, _) in candidates.items())

        def has_cases(name: str, value: Any) -> bool:
            if name in shared or not isinstance(value, ARRAYS):
                return False
            if name in of_nodes:
                return value.shape[: axes + 1] in sizes and value.ndim >= least
            return value.shape[:axes] == self.batch

        read = lambda name, x: (
            {v: read(name, one) for v, one in x.items()} if isinstance(x, Mapping) else (_checks.as_array(name, x))
        )
        options = {name: read(name, value) if name in of_nodes else value for name, value in options.items()}
        leaves, structure = jax.tree.flatten(options)
        names = [path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(options)]
        mapped = [x if has_cases(name, x) else None for name, x in zip(names, leaves, strict=True)]

        def of_case(weights: dict[int, Array], at: dict[int, Any], mapped: list[Any]) -> Any:
            parts = candidates | at
            own = {v: Belief.trusted(x, weights[v], lengths, *kinds[v]) for v, (x, lengths) in parts.items()}
            given = [whole if case is None else case for case, whole in zip(mapped, leaves, strict=True)]
            return summary(_only(own), **jax.tree.unflatten(structure, given))

        for _ in self.batch:
            of_case = jax.vmap(of_case)
        return of_case(self.probabilities, at, mapped)

    def __getitem__(self, key: Any) -> Belief:
        types, several = list(self.probabilities), len(self.probabilities) > 1
        known = not several or (isinstance(key, int | np.integer) and key in types)
        fix = "Pass a node type, then the place among its nodes: posterior[node_type][place]."
        _checks.require(known, "key", f"must be one of the node types {types}", repr(key), fix)
        return self.belief[key]

    def __len__(self) -> int:
        return len(self.belief)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.belief)

    @values_or_shapes
    def __repr__(self) -> str:
        lines = [repr(self.graph).partition("\n")[0]]
        if self.batch:
            lines.append(f"batch axes {self.batch}")
        else:
            several = len(self.probabilities) > 1
            lines += [f"node type {v}: {one!r}" if several else repr(one) for v, one in self.by_type.items()]
        return show_lines("Posterior", [*lines, repr(self.solution)])


def leading(points: Array, shape: tuple[int, ...] | None) -> Array:
    """Return the leading coordinates of vectors [..., coordinate]: the first, of shape (), or (some,) of them."""
    if shape is None:
        return points
    return points[..., 0] if shape == () else points[..., : shape[0]]


def _only(by_type: dict[int, Any]) -> Any:
    """Return the entry of the only node type, or all entries."""
    return next(iter(by_type.values())) if len(by_type) == 1 else by_type


def as_belief(belief: Belief | Posterior) -> Belief:
    """Return the belief of a posterior with one node type, and beliefs unchanged."""
    return belief.only_belief if isinstance(belief, Posterior) else belief
