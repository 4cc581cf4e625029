r"""The model of a series: a chain of hidden states, each with an observation, any number of times.

The message to the state at time t + 1 is a function of it, made of what was seen up to time t (eq. 15 on a chain):

$$m_{t+1} = \mathrm{project} \big(\mathrm{local}_t \odot \mathrm{evaluate} \, m_t\big).$$

It is all that the past says of the future: a `State` is one message.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Shaped

from kbpjax import _checks
from kbpjax._misc import show_lines, values_or_shapes
from kbpjax._public import Checked, public
from kbpjax.features import features
from kbpjax.graphs.graph import Graph, chain_graph
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.starts import Places
from kbpjax.posterior.beliefs import known_points, lengths_of, log_or_zero, marginals_of, stand_for_intervals
from kbpjax.posterior.evidence import Evidence, nothing


def _require_length(length: int) -> None:
    """Raise ValueError unless a number of times is one of which a graph can be made."""
    _checks.require_count("length", length)
    _checks.require_memory("length", "the graph", 100 * length, "Pass fewer times.")


class SeriesModel(Checked):
    """A model of series: a `KernelMRF` of chains with one node type, and what filtering needs of it.

    Attributes:
        model: the model; `infer` on `kbpjax.chain_graph` of any length uses it.
        order: number of successive values that are one state: with 2, a state is a value and the one before.
        shown: the shape of one value, if a state holds several; else None.
        forth: matrix of the messages to the next time [rank, point].
        evaluate: values of messages at the points at which they are multiplied [point, rank].
        factors: factors of a first state and of later ones, relative to the marginal of all, at these points
            [2, point].
        points: candidates of beliefs [candidate, *dim].
        at_points: features at the candidates [candidate, rank].
        prior: logarithms of the marginal and of these factors at the candidates [2, candidate].
        lengths: lengths of the intervals of the candidates [candidate], or None.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> chains = kbp.pool(kbp.chain_graph(200), x[None], x[None])
        >>> model = series.SeriesModel.of(kbp.fit(chains, kernel=kbp.RBF(0.3), obs_kernel=kbp.RBF(0.3)))
        >>> model.order
        1
    """

    model: KernelMRF
    order: int = eqx.field(static=True)
    shown: tuple[int, ...] | None = eqx.field(static=True)
    forth: Float[Array, "rank point"]
    evaluate: Float[Array, "point rank"]
    factors: Float[Array, "2 point"]
    points: Shaped[Array, "candidate ..."]
    at_points: Float[Array, "candidate rank"]
    prior: Float[Array, "2 candidate"]
    lengths: Float[Array, " candidate"] | None

    @classmethod
    @public
    def of(cls, model: KernelMRF, *, order: int = 1) -> "SeriesModel":
        """Return the model of series of a model that was fitted on chains.

        Args:
            model: a model with one node type and one edge type, from earlier to later, and candidates.
            order: number of successive values that its states hold.

        Raises:
            ValueError: several types, own margins or relations of nodes, or no candidates.
        """
        types, kinds = sorted(model.bases), model.edge_types
        fix = "Fit it with kbpjax.series.fit, or on kbpjax.chain_graph with margins='type' and sharing='type'."
        ok = len(types) == 1 and len(kinds) == 1 and not model.margins and not model.obs_margins
        got = f"node types {types}, {len(kinds)} edge types"
        _checks.require(ok, "model", "must have one node type, one edge type and pooled margins", got, fix)
        _checks.require_count("order", order)
        (v,), ((kind, *_),) = types, kinds
        graph = chain_graph(3, node_type=[v] * 3, edge_type=[kind] * 2)
        points = known_points(model, graph)[v]
        marginal = marginals_of(model, graph, None, None)[v]
        operators, local = model.with_starts(graph, jnp.ones((3, len(model.points[v])), model.operators.evaluate.dtype))
        rank, count = model.ranks[v]
        dtype = local.dtype
        prior = log_or_zero(marginal.density(model, v, points)).astype(dtype)
        own = model.starts.get(v)
        logs = jnp.zeros((2, len(points)), dtype)
        if own is not None:
            logs = own.log_factors(points, Places(jnp.array([True, False]), jnp.array([False, True]))).astype(dtype)
        sized = stand_for_intervals(model, None, marginal)
        return cls(
            model,
            int(order),
            _shown(points.shape[1:], int(order)),
            operators.project[2 * kind, :rank, :count],
            operators.evaluate[v, :count, :rank],
            local[:2, :count],
            points,
            features(model.bases[v], points).astype(dtype),
            prior[None] + logs,
            lengths_of(points, dtype) if sized else None,
        )

    @property
    def node_type(self) -> int:
        """The node type of the states."""
        return next(iter(self.model.bases))

    @property
    def edge_type(self) -> int:
        """The edge type of successive states."""
        return self.model.edge_types[0][0]

    @property
    def floor(self) -> Array:
        """The least value of an evaluated message."""
        return self.model.floor_of(self.node_type)

    @property
    def obs_axes(self) -> int:
        """The number of axes of an observation."""
        fix = "Fit it with observations."
        _checks.require(bool(self.model.observations), "model", "must have learned observations", "none", fix)
        return len(self.model.observations[self.node_type].basis.point.shape)

    def chain(self, length: int) -> Graph:
        """Return the chain of some times."""
        _require_length(length)
        return chain_graph(length, node_type=[self.node_type] * length, edge_type=[self.edge_type] * (length - 1))

    def apart(self, length: int) -> Graph:
        """Return the graph of some times without edges."""
        _require_length(length)
        return Graph.from_edges(np.zeros((0, 2), int), length, node_type=[self.node_type] * length)

    def without_starts(self) -> KernelMRF:
        """Return the model for times whose place in the series is given by `started` evidence."""
        model = self.model
        if not model.starts:
            return model
        ones = jnp.ones((3, len(model.points[self.node_type])), model.operators.evaluate.dtype)
        operators, _ = model.with_starts(self.chain(3), ones)
        return eqx.tree_at(lambda m: (m.operators, m.starts), model, (operators, {}))

    def started(self, graph: Graph, first: Bool[Array, " node"]) -> Evidence:
        """Return the factors of first and later states as evidence of a graph."""
        evidence, own = nothing(self.model, graph), self.model.starts.get(self.node_type)
        if own is None:
            return evidence
        size = self.factors.shape[1]
        local = jnp.where(first[:, None], self.factors[0], self.factors[1]).astype(evidence.local.dtype)
        likelihoods = ({self.node_type: Partial(_factors, own, first)},)
        whole = evidence.local.at[:, :size].set(local)
        return eqx.tree_at(lambda e: (e.local, e.likelihoods), evidence, (whole, likelihoods))

    @values_or_shapes
    def __repr__(self) -> str:
        return show_lines("SeriesModel", [f"order {self.order}", repr(self.model)])


def _shown(shape: tuple[int, ...], order: int) -> tuple[int, ...] | None:
    """Return the shape of one value of states that hold several."""
    if order == 1:
        return None
    ok = len(shape) == 1 and shape[0] % order == 0
    fix = "Pass the order of kbpjax.series.fit."
    _checks.require(ok, "order", "must divide the number of coordinates of a state", f"shape {shape}", fix)
    return () if shape[0] == order else (shape[0] // order,)


def _factors(own: Any, first: Array, points: Array) -> Array:
    return jnp.exp(own.log_factors(points, Places(first, ~first)))


class State(Checked):
    """What was seen up to a time says of the next state: a message.

    Attributes:
        message: its coefficients [rank], of 2-norm 1; without effect before the first time.
        begun: whether any time has passed.

    Examples:
        >>> import jax.numpy as jnp
        >>> from kbpjax import series
        >>> series.State(jnp.zeros(3), jnp.array(False))
        State(before the first time)
    """

    message: Float[Array, " rank"]
    begun: Bool[Array, ""]

    @values_or_shapes
    def __repr__(self) -> str:
        if self.begun.ndim:
            return f"State({self.begun.shape[0]} series)"
        return "State(before the first time)" if not bool(self.begun) else f"State(message of rank {len(self.message)})"


@public
def start(model: SeriesModel) -> State:
    """Return the state before the first time of a series.

    Examples:
        >>> import numpy as np
        >>> from kbpjax import series
        >>> x = np.sin(0.4 * np.arange(200)) + 0.1 * np.random.default_rng(0).normal(size=200)
        >>> series.start(series.fit(x))
        State(before the first time)
    """
    return State(jnp.zeros_like(model.forth[:, 0]), jnp.array(False))
