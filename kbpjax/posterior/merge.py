"""Merged nodes: several variables as one, so that relations of three and more variables can be learned.

A pairwise model says what each neighbor says of a node, and multiplies: x3 = x1 x2 with independent x1 and x2 around 0
is uncorrelated with both, and so is the exclusive or of two bits. If x1 and x2 are one node, whose values are pairs,
its relation with x3 is one of two variables again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import Checked, public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.diagnostics import EvidenceWarning
from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.labels import ByType, Labels, Values, encode
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.observations import DensityRatio
from kbpjax.learning.pooling import pool
from kbpjax.posterior.beliefs import Belief
from kbpjax.posterior.clamp import clamp
from kbpjax.posterior.evidence import Evidence, observe
from kbpjax.posterior.likelihood import likelihood
from kbpjax.posterior.posterior import Posterior
from kbpjax.posterior.summaries import marginal

EXACT = 0.1
"""Standard deviation of what an integer that is known says, in steps."""


def _nearness(known: Array, widths: Array, points: Array) -> Array:
    """Return how near points [point, dim] are to known coordinates [node, dim], NaN where they are not known."""
    given, points = (known[:, None], points[None]) if points.ndim == 2 else (known[:, None], points)
    away = jnp.where(jnp.isnan(given), 0, (points - given) / widths[None, None])
    return jnp.exp(-jnp.minimum(jnp.sum(away**2, axis=-1), FARTHEST) / 2)


FARTHEST = 100.0
"""Largest square of a distance in standard deviations: no likelihood is 0."""


class Part(Checked):
    """A variable within the nodes of a merged graph.

    Attributes:
        node_type: type of its new node.
        place: number of that node among those of its type.
        first, size: its coordinates in the values of the node; size 0: the node is the variable.
        location, scale: its values are `location + scale` times these coordinates.
        whole: whether they are integers, or codes of labels.
        old_type: its own node type.
        old_place: its number among the old nodes of that type.
    """

    node_type: int = eqx.field(static=True)
    place: int = eqx.field(static=True)
    first: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    location: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    whole: bool = eqx.field(static=True)
    old_type: int = eqx.field(static=True)
    old_place: int = eqx.field(static=True)


class Merged(Checked):
    """A graph some of whose nodes are one, and training data on it; returned by `merge`.

    Attributes:
        graph: the graph. Merged nodes have new types.
        data: the training data, with vectors of merged nodes, in standard deviations, which are their observations,
            too.
        new: number of the new node of each old node.
        parts: where each old node is.
        shapes: (old node type, shape of its values) of all types.
        labels: (old node type, its labels) of types with labels.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> graph, x = kbp.chain_graph(4), np.random.default_rng(0).normal(size=(50, 4))
        >>> merged = kbp.merge(graph, kbp.pool(graph, x), [1, 2])
        >>> merged.new, merged.graph.num_nodes, merged.values(x)[1].shape
        ((0, 1, 1, 2), 3, (50, 1, 2))
    """

    graph: Graph
    data: TrainingData
    new: tuple[int, ...] = eqx.field(static=True)
    parts: tuple[Part, ...] = eqx.field(static=True)
    shapes: tuple[tuple[int, tuple[int, ...]], ...] = eqx.field(static=True)
    labels: ByType = eqx.field(static=True, default=())

    @public
    def values(self, given: Values | Mapping[int, Values]) -> dict[int, Any]:
        """Return values of the old nodes as those of the new ones, {node type: values}, as `pool` takes them.

        Args:
            given: values [node] of a case or [case, node] of several; or by old node type, with the shape of its values
                after that of its nodes; NaN where missing. Labels as in the training data.

        Raises:
            ValueError: other node types, or another number of nodes.

        Examples:
            >>> import numpy as np, kbpjax as kbp
            >>> graph = kbp.Graph.from_edges([(0, 2), (1, 2)], 3)
            >>> merged = kbp.merge(graph, kbp.pool(graph, np.random.default_rng(0).normal(size=(50, 3))), [0, 1])
            >>> {v: x.shape for v, x in merged.values([0.5, np.nan, 1.0]).items()}
            {0: (1,), 1: (1, 2)}
        """
        types, labels = [part.old_type for part in self.parts], dict(self.labels)
        if not isinstance(given, Mapping):
            same = len({labels.get(v) for v in types}) == 1
            fix = "Pass {node type: values}."
            _checks.require(same, "given", "must be by type where labels of types differ", "one array", fix)
            codes = _floats("given", encode("given", given, labels.get(types[0])))
            count = f"must have {len(types)} nodes in its last axis"
            good = codes.ndim > 0 and codes.shape[-1] == len(types)
            _checks.require(good, "given", count, f"shape {codes.shape}", "Pass values [*case, node].")
            given = {v: codes[..., [i for i, own in enumerate(types) if own == v]] for v in sorted(set(types))}
        unknown = sorted(set(given) - set(types))
        _checks.require(not unknown, "given", f"must have node types among {sorted(set(types))}", unknown, "Drop them.")
        columns: dict[int, Any] = {}
        for v, values in given.items():
            codes = _floats(f"given[{v}]", encode(f"given[{v}]", values, labels.get(v)))
            count = types.count(v)
            axis = codes.ndim - 1 - len(dict(self.shapes)[v])
            good = axis >= 0 and codes.shape[axis] == count
            fix = "Pass values [*case, node_of_type, *dim]."
            _checks.require(good, f"given[{v}]", f"must have {count} nodes", f"shape {codes.shape}", fix)
            columns[v] = jnp.moveaxis(codes, axis, 0) if _checks.is_traced(codes) else np.moveaxis(codes, axis, 0)
        return _assembled(self.parts, dict(self.shapes), columns)

    @public
    def evidence(self, model: KernelMRF, given: Values | Mapping[int, Values]) -> Evidence:
        """Return the evidence of known values of the old nodes, of all parts of a merged node or of some.

        A merged node of which all parts are known is observed, other nodes are clamped. Of a node of which some parts
        are known, its points count by the kernel of the model on these parts; labels and integers have to be equal.
        Works under `jax.vmap`.

        Args:
            model: the model, of `fit(merged.data)`.
            given: values of a case as in `values`, without an axis of cases.

        Raises:
            ValueError: as `values` and `clamp`; several cases.

        Warns:
            EvidenceWarning: known parts that no point of the model is near to, which say nothing.

        Examples:
            >>> import numpy as np, kbpjax as kbp
            >>> rng, graph = np.random.default_rng(0), kbp.Graph.from_edges([(0, 2), (1, 2)], 3)
            >>> bits = rng.integers(0, 2, (200, 2))
            >>> merged = kbp.merge(graph, kbp.pool(graph, np.c_[bits, bits[:, 0] ^ bits[:, 1]]), [0, 1])
            >>> model = kbp.fit(merged.data, effort="low")
            >>> posterior = kbp.infer(model, merged.graph, evidence=merged.evidence(model, [1, np.nan, 1]))
            >>> kbp.mode(merged.part(posterior, 1)).tolist()
            [0]
        """
        values = self.values(given)
        for v, x in values.items():
            one = np.ndim(x) == 1 + len(self.data.nodes[v].shape[1:])
            fix = "Map it over several: jax.vmap(lambda row: merged.evidence(model, row))."
            _checks.require(one, "given", "must be the values of one case", f"shape {np.shape(x)}", fix)
        shared: Any = jnp if _checks.is_traced(values) else np
        whole = {
            v: shared.where(shared.isnan(x).any(axis=-1, keepdims=True), np.nan, x) for v, x in self._vectors(values)
        }
        mask = shared.zeros(self.graph.num_nodes, bool)
        alone = {}
        for v, x in values.items():
            if v not in whole:
                there = ~shared.isnan(x).reshape(len(x), -1).any(axis=1)
                own = np.asarray(self.graph.node_type) == v
                mask = shared.where(own, there[np.cumsum(own) - 1], mask)
                known = there.reshape(-1, *(1,) * (x.ndim - 1))
                alone[v] = shared.where(known, x, 0).astype(self.data.nodes[v].dtype)
        evidence = clamp(model, self.graph, None, alone, mask=mask, evidence_model=DensityRatio())
        evidence = evidence * observe(model, self.graph, whole)
        some = {
            v: shared.where(shared.isnan(x).any(axis=-1, keepdims=True), x, np.nan) for v, x in self._vectors(values)
        }
        known = some if shared is jnp else {v: x for v, x in some.items() if not np.isnan(x).all()}
        if not known:
            return evidence
        dtype = jnp.result_type(float)
        widths = {v: jnp.asarray(self._widths(model, v), dtype) for v in known}
        parts = {v: Partial(_nearness, jnp.asarray(x, dtype), widths[v]) for v, x in known.items()}
        for v, function in parts.items():
            near = function(model.points[v].astype(dtype))
            if not _checks.is_traced(near) and (np.asarray(near).max(axis=1) <= np.exp(-FARTHEST / 2) * 1.01).any():
                text = f"given: no point of node type {v} is near to the known parts, which say nothing"
                warn(f"{text}. Pass values as in the training data.", EvidenceWarning)
        return evidence * likelihood(model, self.graph, parts)

    def _vectors(self, values: dict[int, Any]) -> list[tuple[int, Any]]:
        return [(v, values[v]) for v in sorted({one.node_type for one in self.parts if one.size})]

    def _widths(self, model: KernelMRF, node_type: int) -> Any:
        """Return the standard deviation of what a known coordinate says: a bandwidth, or less than a step."""
        kernel = getattr(model.bases[node_type], "kernel", None)
        width = float(getattr(kernel, "bandwidth", 1.0)) / 2 if np.ndim(getattr(kernel, "bandwidth", 1.0)) == 0 else 0.5
        own = [one for one in self.parts if one.node_type == node_type and one.place == 0]
        found = [EXACT / one.scale if one.whole else width for one in own for _ in range(one.size)]
        order = np.argsort([one.first + i for one in own for i in range(one.size)])
        return np.array(found)[order]

    @public
    def part(self, posterior: Posterior, node: int) -> Belief:
        """Return the belief of an old node.

        Args:
            posterior: the posterior of one case on the new graph.
            node: number of the old node.

        Raises:
            ValueError: the node is out of range.

        Examples:
            >>> import numpy as np, kbpjax as kbp
            >>> rng, graph = np.random.default_rng(0), kbp.Graph.from_edges([(0, 2), (1, 2)], 3)
            >>> x = rng.normal(size=(400, 3))
            >>> x[:, 2] = x[:, 0] * x[:, 1] + 0.1 * x[:, 2]
            >>> merged = kbp.merge(graph, kbp.pool(graph, x), [0, 1])
            >>> model = kbp.fit(merged.data, effort="low")
            >>> evidence = merged.evidence(model, [1.0, -1.0, np.nan])
            >>> posterior = kbp.infer(model, merged.graph, evidence=evidence)
            >>> bool(abs(kbp.mean(merged.part(posterior, 2))[0] + 1) < 0.3)
            True
        """
        ok = _checks.is_whole(node) and 0 <= node < len(self.parts)
        _checks.require(ok, "node", f"must be one of {len(self.parts)} nodes", repr(node), "Count from 0.")
        one = self.parts[node]
        belief = posterior.by_type[one.node_type][[one.place]]
        if not one.size:
            return belief
        labels = dict(self.labels).get(one.old_type)
        if not dict(self.shapes)[one.old_type]:
            own = marginal(belief, one.first)
            points = one.location + one.scale * own.points
            points = jnp.round(points).astype(jnp.int32) if one.whole else points
            return Belief(points, own.weights, labels=labels)
        points = belief.points[..., one.first : one.first + one.size]
        return Belief(one.location + one.scale * points, belief.weights, own_points=belief.own_points)


@public
def merge(graph: Graph, data: TrainingData, nodes: Sequence[int] | Sequence[Sequence[int]]) -> Merged:
    """Return a graph and training data in which some nodes are one: for relations of three variables and more.

    The values of a merged node are vectors of those of its parts, in standard deviations; its edges are those of its
    parts to other nodes. `Merged.evidence` takes known values of any of the parts,
    and `Merged.part` gives their beliefs.

    Args:
        graph: the graph.
        data: its training data, of `pool`.
        nodes: numbers of two or more nodes, which become one node; or several lists of nodes, one for each new node.

    Raises:
        ValueError: nodes out of range or repeated, data of another graph, or edges with features.

    Examples:
        The exclusive or of two bits, of which each alone says nothing about the third:

        >>> import numpy as np, kbpjax as kbp
        >>> rng, graph = np.random.default_rng(0), kbp.Graph.from_edges([(0, 2), (1, 2)], 3)
        >>> bits = rng.integers(0, 2, (200, 2))
        >>> merged = kbp.merge(graph, kbp.pool(graph, np.c_[bits, bits[:, 0] ^ bits[:, 1]]), [0, 1])
        >>> merged.graph.num_nodes, merged.data.nodes[1].shape
        (2, (200, 2))
        >>> model = kbp.fit(merged.data, effort="low")
        >>> posterior = kbp.infer(model, merged.graph, evidence=merged.evidence(model, [1, 0, np.nan]))
        >>> int(kbp.mode(merged.part(posterior, 2))[0])
        1
    """
    groups = _groups(graph, nodes)
    fix = "Pass kbpjax.pool(graph, samples)."
    ok = len(data.cases) == 1 and data.cases[0].graph.num_nodes == graph.num_nodes
    _checks.require(ok, "data", "must be cases of this graph", f"{len(data.cases)} graphs", fix)
    fix = "Build the graph without them."
    _checks.require(graph.edge_features is None, "graph", "must have no features of edges", "some", fix)
    (cases,) = data.cases
    kinds = np.asarray(graph.node_type)
    new = _numbers(groups, graph.num_nodes)
    place = {node: i for own in groups for i, node in enumerate(own)}
    members = [[node for node, own in enumerate(new) if own == one] for one in range(max(new) + 1)]
    members = [sorted(own, key=lambda node: place.get(node, 0)) for own in members]  # parts in the order given
    last, known = int(kinds.max()), {}
    types: list[int] = []
    for own in members:
        key = tuple(kinds[own].tolist())
        types.append(key[0] if len(own) == 1 else known.setdefault(key, last + 1 + len(known)))
    shapes = {v: tuple(np.shape(x)[2:]) for v, x in cases.samples.items()}
    parts = _parts(cases, kinds, members, types, shapes)
    labels = dict(data.labels)
    columns = {v: np.swapaxes(_with_holes(x, cases.present[v]), 0, 1) for v, x in cases.samples.items()}
    samples = _whole(_assembled(parts, shapes, columns), parts, labels)
    observations: dict[int, Any] = {one.node_type: samples[one.node_type] for one in parts if one.size}
    if cases.observations:
        fix = "Leave the observations out: values are then observed themselves."
        alone = all(one.old_type not in cases.observations for one in parts if one.size)
        _checks.require(alone, "data", "must have no observations of merged nodes", "some", fix)
        seen = {v: _with_holes(y, cases.used[v]) for v, y in cases.observations.items()}
        observations |= {v: y[:, [one.old_place for one in parts if one.node_type == v]] for v, y in seen.items()}
    merged = _merged_graph(graph, new, types)
    return Merged(merged, pool(merged, samples, observations), new, parts, tuple(shapes.items()), tuple(data.labels))


def _with_holes(x: Any, there: Any) -> Any:
    """Return values [case, node, *dim] as floats with NaN where they are missing."""
    values = np.asarray(x, float)
    mask = np.asarray(there).reshape(*np.shape(there), *(1,) * (values.ndim - np.ndim(there)))
    return np.where(mask, values, np.nan)


def _whole(samples: dict[int, Any], parts: Sequence[Part], labels: dict[int, Labels]) -> dict[int, Any]:
    """Return samples whose codes of labels are labels again, in nodes that are not merged."""
    found = dict(samples)
    for v in {one.node_type for one in parts if not one.size} & set(labels):
        known = np.array([*labels[v], None], object)
        found[v] = known[np.where(np.isnan(samples[v]), len(labels[v]), samples[v]).astype(int)]
    return found


def _floats(argument: str, values: Any) -> Any:
    """Return values as floats; masked entries become NaN. Raise ValueError if some are infinite or no numbers."""
    array, hidden = _checks.read(argument, values)
    _checks.require_real(argument, array)
    if _checks.is_traced(array):
        return array
    found = np.array(array, float)
    _checks.require_finite_or_nan(argument, found)
    return found if hidden is None else np.where(hidden, np.nan, found)


def _parts(
    cases: Cases, kinds: Any, members: list[list[int]], types: list[int], shapes: dict[int, tuple[int, ...]]
) -> tuple[Part, ...]:
    """Return where each old node is."""
    found: dict[int, Part] = {}
    taken: dict[int, int] = {}
    for own, v in zip(members, types, strict=True):
        place, first = taken.get(v, 0), 0
        taken[v] = place + 1
        for node in own:
            kind = int(kinds[node])
            old_place = int(np.sum(kinds[:node] == kind))
            if len(own) == 1:
                found[node] = Part(v, place, 0, 0, 0.0, 1.0, False, kind, old_place)
                continue
            x = np.asarray(cases.samples[kind], float)[np.asarray(cases.present[kind])]
            size, scale = int(np.prod(shapes[kind])), float(np.std(x)) or 1.0
            whole = not jnp.issubdtype(cases.samples[kind].dtype, jnp.floating)
            found[node] = Part(v, place, first, size, float(np.mean(x)), scale, whole, kind, old_place)
            first += size
    return tuple(found[node] for node in range(len(kinds)))


def _assembled(parts: Sequence[Part], shapes: dict[int, tuple[int, ...]], columns: dict[int, Any]) -> dict[int, Any]:
    """Return values by new type from those by old type [node_of_type, *case, *dim]; NaN where there are none."""
    case = next((np.shape(x)[1 : np.ndim(x) - len(shapes[v])] for v, x in columns.items()), ())
    module: Any = jnp if _checks.is_traced(columns) else np

    def value(one: Part) -> Any:
        shape = (*case, one.size) if one.size else (*case, *shapes[one.old_type])
        if one.old_type not in columns:
            return np.full(shape, np.nan)
        x = columns[one.old_type][one.old_place]
        return (module.reshape(x, shape) - one.location) / one.scale if one.size else x

    found: dict[int, Any] = {}
    for v in sorted({one.node_type for one in parts}):
        own = sorted((one for one in parts if one.node_type == v), key=lambda one: (one.place, one.first))
        nodes = [[value(one) for one in own if one.place == place] for place in range(1 + own[-1].place)]
        whole = [module.concatenate(one, axis=-1) if own[0].size else one[0] for one in nodes]
        found[v] = module.stack(whole, axis=len(case))
    return found


def _merged_graph(graph: Graph, new: tuple[int, ...], types: list[int]) -> Graph:
    """Return the graph: edges between the same two new nodes are one, of a type for each set of what they were."""
    half = graph.num_edges // 2
    columns = (np.asarray(one)[:half].tolist() for one in (graph.senders, graph.receivers, graph.edge_type))
    between: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for a, b, kind in zip(*columns, strict=True):
        one, two = new[a], new[b]
        if one != two:
            between.setdefault((two, one) if (two, one) in between else (one, two), []).append((kind, a, b))
    counts = np.bincount(new)
    last, known = int(np.max(np.asarray(graph.edge_type), initial=0)), {}
    first = {node: new.index(node) for node in range(len(types))}
    edge_types = []
    for ends, olds in between.items():
        if counts[list(ends)].max() == 1:
            edge_types.append(olds[0][0])
            continue
        key = (
            tuple(types[end] for end in ends),
            tuple(sorted((k, a - first[new[a]], b - first[new[b]]) for k, a, b in olds)),
        )
        edge_types.append(known.setdefault(key, last + 1 + len(known)))
    return Graph.from_edges(
        np.array(list(between), int).reshape(-1, 2), len(types), node_type=types, edge_type=np.array(edge_types, int)
    )


def _groups(graph: Graph, nodes: Any) -> list[list[int]]:
    """Return the lists of nodes that become one."""
    given = list(nodes) if isinstance(nodes, Iterable) else [nodes]
    groups = [list(one) for one in given] if given and all(isinstance(one, Iterable) for one in given) else [given]
    flat = [node for one in groups for node in one]
    fix = "Pass for instance [0, 1]."
    whole = all(_checks.is_whole(node) and 0 <= node < graph.num_nodes for node in flat)
    _checks.require(whole, "nodes", f"must be numbers of {graph.num_nodes} nodes", flat[:5], fix)
    _checks.require(len(set(flat)) == len(flat), "nodes", "must be different", flat[:5], fix)
    _checks.require(all(len(one) > 1 for one in groups), "nodes", "must be two or more for each", groups[:3], fix)
    return [[int(node) for node in one] for one in groups]


def _numbers(groups: list[list[int]], count: int) -> tuple[int, ...]:
    """Return the new number of each node: those of groups first where their first node was."""
    leader = {node: min(own) for own in groups for node in own}
    kept = [node for node in range(count) if leader.get(node, node) == node]
    place = {node: i for i, node in enumerate(kept)}
    return tuple(place[leader.get(node, node)] for node in range(count))
