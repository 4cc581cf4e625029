"""The score of given hyperparameters: how good the beliefs on held-out problems are, in one compiled function.

`make_comparison` holds problems out (`kbpjax.tuning.held_out`), and `evaluate` learns a model with the numbers of a
`Choice`, passes messages, and scores the beliefs. The compared models are small, and their shapes do not depend on the
numbers, so that the function is compiled once.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, ScalarLike, Shaped
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import matmul, quick_jit
from kbpjax.features import Basis, LandmarkSelector, cholesky_basis, incomplete_cholesky
from kbpjax.graphs.counting import components
from kbpjax.graphs.graph import Graph
from kbpjax.kernels import RBF, Kernel, gram, median_bandwidth
from kbpjax.kernels.euclidean import ARD, Periodic, Projected
from kbpjax.learning.data import PartlySeen, TrainingData
from kbpjax.learning.far import are_far, moved_near
from kbpjax.learning.learn import candidate_points, count_levels, learn_model
from kbpjax.learning.margins import estimate_margins
from kbpjax.learning.nonnegative import Clipped
from kbpjax.learning.observations import DensityRatio, Expectation, ObservationModel
from kbpjax.learning.relations import OwnRelations
from kbpjax.learning.rules import ConstantTime
from kbpjax.posterior.beliefs import Belief, beliefs
from kbpjax.posterior.clamp import clamp_types
from kbpjax.posterior.evidence import observe
from kbpjax.posterior.infer import Recipe, recipe, solve
from kbpjax.posterior.summaries import temper
from kbpjax.tuning.held_out import HeldOut, hold_out
from kbpjax.tuning.losses import energy_score
from kbpjax.tuning.projections import regression_matrix
from kbpjax.tuning.search import Choice, Search

SHORT = 10_000
"""Largest number of pairs and of messages in all iterations of a compared model whose program is compiled as quickly as
can be: the evaluations of a search then take less time than it takes to optimize the program
(`benchmarks/first_call.py`)."""

SAME = 1e-5
"""Relative difference up to which mean distances count as equal."""


UNLIKE, UNLIKE_OF_MANY, FEW = 1.5, 3.0, 8
"""Ratios of the deviations of coordinates from which these have own bandwidths: of few coordinates, and of more."""


class ScaledKernels(eqx.Module):
    """Kernels of all types: given, or Gaussian with bandwidths in units of the median distances of the samples.

    Of types with a matrix, the Gaussian kernels are those of projected samples. Periodic kernels without a bandwidth
    are Gaussian on circles: (kernel, median distance there).
    """

    given: dict[int, Kernel]
    scales: dict[int, Array]
    matrices: dict[int, Array] = eqx.field(default_factory=dict)
    periodic: dict[int, tuple[Periodic, Array]] = eqx.field(default_factory=dict)

    @classmethod
    def of(cls, argument: str, kernel: Any, samples: Mapping[int, Array]) -> "ScaledKernels":
        """Return the given kernels, and the scales of the samples of the other types."""
        given = dict.fromkeys(samples, kernel) if isinstance(kernel, Kernel) else dict(kernel or {})
        given = {v: one for v, one in given.items() if v in samples}
        return cls(
            {v: one for v, one in given.items() if not is_open(one)},
            {v: _scale(f"{argument}[{v}]", x) for v, x in samples.items() if v not in given},
            periodic={v: (one, _distance_on_circles(one, samples[v])) for v, one in given.items() if is_open(one)},
        )

    @property
    def vary(self) -> bool:
        """Whether a kernel has a bandwidth that is chosen."""
        return bool(self.scales or self.periodic)

    def scaled(self, factor: ScalarLike) -> dict[int, Kernel]:
        """Return {type: kernel}, with the bandwidths of the Gaussian kernels a multiple of the scales."""
        gaussian: dict[int, Kernel] = {
            v: (ARD if scale.ndim else RBF)(scale * jnp.asarray(factor, scale.dtype))
            for v, scale in self.scales.items()
        }
        projected = {v: Projected(matrix, gaussian[v]) for v, matrix in self.matrices.items()}
        periodic: dict[int, Kernel] = {
            v: kernel.with_bandwidth(scale * jnp.asarray(factor, scale.dtype))
            for v, (kernel, scale) in self.periodic.items()
        }
        return self.given | gaussian | projected | periodic

    def projected(self, data: TrainingData, numbers: Iterable[int], many: int) -> "ScaledKernels | None":
        """Return kernels of linear features of observations of many coordinates; None if there are none.

        The features are those of a ridge regression of the variables on their observations.

        Args:
            data: the data of the regression.
            numbers: the node types whose variables are numbers or vectors of numbers.
            many: smallest number of coordinates of observations that are projected.
        """
        wide = {v: data.observations[v] for v in self.scales if v in numbers and v in data.observations}
        wide = {v: (x, y) for v, (x, y) in wide.items() if y.ndim == 2 and x.size // len(x) < many <= y.shape[1]}
        found = {v: regression_matrix(np.asarray(x), np.asarray(y)) for v, (x, y) in wide.items()}
        matrices = {v: matrix for v, matrix in found.items() if matrix is not None}
        if not matrices:
            return None
        features = {v: jnp.asarray(np.asarray(wide[v][1], float) @ matrix.T) for v, matrix in matrices.items()}
        scales = {v: _scale(f"obs_kernel[{v}]", f[:, 0] if f.shape[1] == 1 else f) for v, f in features.items()}
        dtype = jnp.result_type(float)
        matrices = {v: jnp.asarray(matrix, dtype) for v, matrix in matrices.items()}
        return ScaledKernels(self.given, self.scales | scales, matrices, self.periodic)


def is_open(kernel: Any) -> TypeGuard[Periodic]:
    """Return whether a kernel has no bandwidth, which is to be chosen."""
    return isinstance(kernel, Periodic) and kernel.to_choose


def _scale(argument: str, x: Array) -> Array:
    """Return the median distance of samples; for vectors whose coordinates differ in scale, times that of each."""
    fix = "Pass a kernel for this type: kbpjax.fit(data, kernel={node type: kernel})."
    values = np.asarray(x)
    numbers = values.ndim <= 2 and np.issubdtype(values.dtype, np.number)
    _checks.require(
        numbers, argument, "must be given unless samples are numbers or vectors", f"{values.dtype}{values.shape}", fix
    )
    dtype = jnp.result_type(float)
    if np.all(values == values[:1]):  # a constant, of which any kernel knows all
        return jnp.ones((), dtype)
    if values.ndim == 1:
        return jnp.asarray(median_bandwidth(values), dtype)
    spread = np.std(moved_near(values.astype(float)), axis=0)
    varies, unlike = spread > 0, UNLIKE if values.shape[1] <= FEW else UNLIKE_OF_MANY
    if values.shape[1] == 1 or (varies.all() and spread.max() <= unlike * spread.min()):
        return jnp.asarray(median_bandwidth(values), dtype)
    spread = np.where(varies, spread, 1.0)
    return jnp.asarray(float(median_bandwidth(values / spread)) * spread, dtype)


def _on_circles(kernel: Periodic, x: Array) -> Array:
    """Return points on circles of radius 1, whose distances the Gaussian kernel of the bandwidth compares."""
    dtype = jnp.result_type(float)
    angles = 2 * jnp.pi * (jnp.asarray(x).astype(dtype) / kernel.period.astype(dtype))
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1).reshape(len(x), -1)


def _distance_on_circles(kernel: Periodic, x: Array) -> Array:
    """Return the median distance of samples on circles."""
    values = np.asarray(_on_circles(kernel, x))
    same = np.all(values == values[:1])
    return jnp.ones((), jnp.result_type(float)) if same else median_bandwidth(values)


class PaddedCholesky(LandmarkSelector):
    """Pivoted Cholesky of static shape: `max_rank` features, of which those beyond the rank for `eps` are 0."""

    def feature_map(
        self, kernel: Kernel, x: Shaped[Array, "sample *dim"], eps: ScalarLike, max_rank: int
    ) -> tuple[Basis, Float[Array, ""]]:
        """Return the basis of the landmarks, whose other features are 0, and the residual."""
        pivots = incomplete_cholesky(kernel, x, eps, max_rank)
        valid = jnp.arange(len(pivots.indices), dtype=jnp.int32) < pivots.rank
        return cholesky_basis(kernel, x[pivots.indices], valid), pivots.residual

    @property
    def products(self) -> "PaddedCholesky":
        """This selector."""
        return self


class _Either(Expectation):
    """Either evidence model, by a number that may be traced."""

    ratio: Any

    def operator(self, observation: ObservationModel) -> Array:
        """Return the matrix that maps features of an observation to a message."""
        chosen = self.ratio > 0.5
        return jnp.where(chosen, observation.ratio, observation.expectation)

    def point_mass(self, at_value: Array, moment: Array, ridge: Array) -> Array:
        """Return the local factor for x_t = value."""
        both = [kind.point_mass(at_value, moment, ridge) for kind in (DensityRatio(), Expectation())]
        return jnp.where(self.ratio > 0.5, *both)


class Outcome(NamedTuple):
    """How good the beliefs on the held-out problems are.

    Attributes:
        scores: energy score at each of `Search.temperatures`.
        inside: share of the true values in regions that hold `Search.inside` of a belief, at each temperature.
        converged: whether the messages converged.
        residual: the largest residual of a basis, those of observations that are numbers included.
        errors: standard errors of the differences of the scores from that at temperature 1, over the held-out problems.
        sums: sum of the energy scores of each problem at temperature 1 [problem].
        counts: number of scored values of each problem [problem].
    """

    scores: Any
    inside: Any
    converged: Any
    residual: Any
    errors: Any = 0.0
    sums: Any = 0.0
    counts: Any = 0.0


class Given(eqx.Module):
    """The options of learning that a search starts from; ridges that are None are chosen."""

    kernels: ScaledKernels
    obs_kernels: ScaledKernels
    ridge: Any = None
    obs_ridge: Any = None
    floor: Any = 1e-6


class Comparison(eqx.Module):
    """All that one evaluation of the score needs, as arguments of the compiled function.

    `units` holds factors of the scores of the nodes [node_of_type] by type: 1, or, where relations with and without own
    margins are compared, the factors that convert scores to standard deviations of each node. `starts` are the node
    types whose starts have a separate marginal. `problems` is the number of held-out cases, or 1 for blocks of nodes.
    The scores of blocks have no standard error: blocks are few, and each holds many nodes that hardly depend on each
    other.
    """

    data: TrainingData
    given: Given
    held: HeldOut
    clamped: Any
    scored: dict[int, Array]
    points: dict[int, Array]
    levels: dict[int, Array]
    units: dict[int, Array]
    recipe: Recipe | None
    rank: int = eqx.field(static=True)
    relation: str = eqx.field(static=True)
    own: OwnRelations | None = eqx.field(static=True)
    search: Search = eqx.field(static=True)
    problems: int = eqx.field(static=True)
    starts: tuple[int, ...] = eqx.field(static=True, default=())

    @property
    def is_short(self) -> bool:
        """Whether the program is compiled as quickly as can be; a tenth of `SHORT` where it has many evaluations."""
        data = self.data
        variables = *data.nodes.values(), *(y for _, y in data.observations.values())
        if any(x.ndim > 1 for x in variables):  # kernels of other values than numbers may take long
            return False
        pairs = sum(len(first) for first, _ in data.edges.values())
        sent = self.held.graph.num_edges * (1 if self.held.graph.forest is not None else self.search.num_iters)
        few = self.search.compares and not self.search.searched
        return pairs + sent <= (SHORT if few else SHORT // 10)

    def score(self, choice: Choice) -> Outcome:
        """Return how good the beliefs are at each temperature."""
        given, search = self.given, self.search
        model = learn_model(
            self.data,
            kernel=given.kernels.scaled(choice.bandwidth),
            obs_kernel=given.obs_kernels.scaled(choice.obs_bandwidth) or None,
            rule=ConstantTime(eps=1e-3, max_rank=self.rank, features=PaddedCholesky()),
            ridge=choice.ridge if given.ridge is None else given.ridge,
            obs_ridge=choice.obs_ridge if given.obs_ridge is None else given.obs_ridge,
            floor=given.floor,
            nonnegative=None if self.recipe is None else Clipped(),
            relation=self.relation,
            levels=self.levels,
            own=None if self.own is None else self.own._replace(strength=choice.strength),
            starts=self.starts,
        )
        model = eqx.tree_at(lambda m: m.reweighting, model, choice.reweighting)
        graph, either = self.held.graph, _Either(choice.ratio)
        if self.clamped is None:
            observed = jnp.zeros(graph.num_nodes, bool)
            for v, mask in self.held.observed.items():
                observed = observed.at[graph.nodes_of_type(v)].set(mask)
            options: Any = {"mask": observed, "evidence_model": either, "power": choice.power}
            evidence = observe(model, graph, self.held.observations, **options)
        else:
            known = self.clamped.items()
            parts = [clamp_types(model, graph, nodes, values, either, (v,)) for v, (nodes, values) in known]
            evidence = parts[0]
            for part in parts[1:]:
                evidence = evidence * part
        solution = solve(model, graph, evidence, self.recipe, tol=search.tol, num_iters=search.num_iters)
        model = eqx.tree_at(lambda m: m.candidates, model, self.points, is_leaf=lambda leaf: leaf is None)
        found = beliefs(model, graph, evidence, solution)
        computed = found if isinstance(found, dict) else dict.fromkeys(self.points, found)
        at = partial(self._at, computed, self.distances())
        sums, inside, counts = jax.lax.map(at, jnp.asarray(search.temperatures, evidence.local.dtype))
        total = jnp.maximum(jnp.sum(counts[0]), 1)
        scores = jnp.sum(sums, axis=1) / total
        errors, plain = jnp.zeros_like(scores), sums[search.temperatures.index(1.0)]
        if self.problems > 1:
            apart = sums - plain[None]
            centered = apart - jnp.sum(apart, axis=1, keepdims=True) / total * counts
            errors = jnp.sqrt(jnp.sum(centered**2, axis=1) * self.problems / (self.problems - 1)) / total
        residuals = [jnp.max(jnp.stack(pair)) for pair in model.residuals.values()]
        numbers = [v for v, (_, y) in self.data.observations.items() if y.ndim == 1]  # else no kernel is resolved
        residuals += [model.observations[v].residual.astype(residuals[0].dtype) for v in numbers]
        residual = jnp.max(jnp.stack(residuals))
        return Outcome(scores, inside, solution.converged, residual, errors, plain, counts[0])

    def distances(self) -> dict[int, tuple[Array, Array]]:
        """Return {node type: distances between the points, and from each true value to the points}."""
        return {v: (self._distances(v, x), self._distances(v, x, self.held.truth[v])) for v, x in self.points.items()}

    def _at(
        self, computed: dict[int, Belief], distances: dict[int, tuple[Array, Array]], temperature: Array
    ) -> tuple[Array, Array, Array]:
        """Return, of the scored nodes at one temperature, energy scores and numbers by problem, and the share inside.

        A region holds `Search.inside` of a belief, the points of smallest mean distance from a draw: for numbers, an
        interval.
        Of states at its boundary, it has the share that makes it hold exactly that much: whole states would make it
        hold more, and temperatures below 1 seem right.
        """
        inside, count = jnp.zeros_like(temperature), jnp.zeros_like(temperature, shape=(self.problems,))
        total = count
        for v, belief in computed.items():
            weights = temper(belief, temperature).weights
            between, to_truth = (distance.astype(weights.dtype) for distance in distances[v])
            mask = self.scored[v]
            energy = self.units[v].astype(weights.dtype) * energy_score(weights, to_truth, between)
            total = total.at[self.held.problem[v]].add(jnp.where(mask, energy, 0).astype(total.dtype))
            at_truth, at_points = jnp.sum(weights * to_truth, axis=1, keepdims=True), matmul(weights, between)
            same = jnp.abs(at_points - at_truth) <= SAME * at_truth
            nearer = jnp.sum(jnp.where((at_points < at_truth) & ~same, weights, 0), axis=1)
            level = jnp.sum(jnp.where(same, weights, 0), axis=1)
            share = jnp.clip((self.search.inside - nearer) / jnp.where(level > 0, level, 1), 0, 1)
            held = jnp.where(level > 0, share, (nearer <= self.search.inside).astype(share.dtype))
            inside = inside + jnp.sum(jnp.where(mask, held, 0)).astype(count.dtype)
            count = count.at[self.held.problem[v]].add(mask.astype(count.dtype))
        return total, inside / jnp.maximum(jnp.sum(count), 1), count

    def _distances(self, node_type: int, points: Array, truth: Array | None = None) -> Array:
        """Return distances between points, or from each true value to the points, in median distances."""
        others = points if truth is None else truth
        if node_type in self.given.kernels.given:  # the distance of the features
            kernel = self.given.kernels.given[node_type]
            at = lambda x: jax.vmap(kernel)(x, x)
            squared = at(others)[:, None] + at(points)[None] - 2 * gram(kernel, others, points)
            return jnp.sqrt(jnp.maximum(squared, 0))
        if node_type in self.given.kernels.periodic:
            round_, scale = self.given.kernels.periodic[node_type]
            others, points = _on_circles(round_, others), _on_circles(round_, points)
        else:
            scale = self.given.kernels.scales[node_type]
        flat = [(x.astype(scale.dtype) / scale).reshape(len(x), -1) for x in (others, points)]
        return jnp.sqrt(jnp.sum((flat[0][:, None] - flat[1][None]) ** 2, axis=-1))


def _are_values(values: Any, observations: Any) -> bool:
    """Return whether the observations are the values themselves."""
    return len(values) > 0 and values.shape == observations.shape and np.array_equal(values, observations)


def _partly(y: NDArray, seen: PartlySeen, rng: np.random.Generator) -> NDArray:
    """Return observations with NaN for entries, in patterns as often as they occur."""
    counts = np.asarray(seen.counts)
    chosen = rng.choice(len(counts), size=len(y), p=counts / counts.sum()) if counts.any() else np.zeros(len(y), int)
    return np.where(np.asarray(seen.patterns)[chosen], y, np.nan).astype(y.dtype)


@partial(quick_jit, level=lambda comparison, choice: "quickest" if comparison.is_short else "quick")
def evaluate(comparison: Comparison, choice: Choice) -> Outcome:
    """Return how good the beliefs of a choice are at each temperature."""
    return comparison.score(choice)


def make_comparison(
    data: TrainingData,
    given: Given,
    search: Search = Search(),
    *,
    projected: bool = False,
    own_margins: Sequence[int] = (),
    in_units_of: Sequence[int] = (),
    relation: str = "ridge",
    own: OwnRelations | None = None,
    fold: int = 0,
) -> Comparison:
    """Hold out problems, and return what the score needs.

    Args:
        data: the training data.
        given: the options of learning.
        search: the options of the search.
        projected: whether observations of many coordinates are projected.
        own_margins: the node types whose values are standardized.
        in_units_of: the node types whose scores are in standard deviations of each node.
        relation: the estimator of relations.
        own: the edges with separate relations, if `data` are those of `with_own_relations`.
        fold: which of several splits into training data and held-out cases.
    """
    train, held = hold_out(data, search, own_margins, fold)
    if own is not None:
        own, held = _of_training(own, train, held)
    if projected:
        kernels = given.obs_kernels.projected(train, given.kernels.scales, search.many)
        given = eqx.tree_at(lambda g: g.obs_kernels, given, kernels or given.obs_kernels)
    if sum(len(next(iter(one.samples.values()))) for one in data.cases) < search.min_cases:
        held = held._replace(problem={v: np.zeros_like(number) for v, number in held.problem.items()})
    graph, scored, clamped = held.graph, dict(held.present), None
    rng = np.random.default_rng(1)
    for v, seen in held.observed.items():
        y = held.observations[v]
        complete = seen & ~np.isnan(y).any(axis=1) if v in train.partly else seen
        if not _are_values(held.truth[v][complete], y[complete]):
            continue
        if v in train.partly:  # observations are the values: hide some of their entries
            held = held._replace(observations={**held.observations, v: _partly(y, train.partly[v], rng)})
        else:  # hide half of them, and do not score the others
            hidden = rng.random(len(seen)) < 0.5
            held = held._replace(observed={**held.observed, v: seen & ~hidden})
            scored[v] = held.present[v] & ~(seen & ~hidden)
    if not held.observations:
        clamped = {}
        for v, truth in held.truth.items():
            known = held.present[v] & (rng.random(len(truth)) < 0.5)
            clamped[v] = np.asarray(graph.nodes_of_type(v))[known].astype(np.int32), truth[known]
            scored[v] = held.present[v] & ~known
    of_type = {v: np.asarray(graph.nodes_of_type(v)) for v in scored}
    known = [nodes for nodes, _ in (clamped or {}).values()] + [of_type[v][seen] for v, seen in held.observed.items()]
    told = _told(graph, np.concatenate(known))
    informed = {v: mask & told[of_type[v]] for v, mask in scored.items()}
    scored = informed if any(mask.any() for mask in informed.values()) else scored
    nodes = {v: train.nodes[v] for v in held.truth}
    scalar = all(x.ndim == 1 for x in train.nodes.values())
    for v, x in held.truth.items():
        if x.ndim == 1 and np.issubdtype(x.dtype, np.floating):
            scored[v] = scored[v] & ~are_far(x)  # whose error would hide those of all others
    return Comparison(
        data=train,
        given=given,
        held=jax.tree.map(_checks.to_jax, held),
        clamped=jax.tree.map(_checks.to_jax, clamped),
        scored=jax.tree.map(_checks.to_jax, scored),
        points={
            v: candidate_points(x, search.number_points if x.ndim == 1 else search.points) for v, x in nodes.items()
        },
        levels=_levels(train, search.count_rank) if relation == "counts" else {},
        units=_units(data, given, held, own_margins, in_units_of),
        recipe=recipe(graph),
        rank=(search.count_rank if relation == "counts" else search.rank) if scalar else search.vector_rank,
        relation=relation,
        own=own,
        search=search,
        problems=1 + max(int(number.max(initial=0)) for number in held.problem.values()),
    )


def _told(graph: Graph, known: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which nodes hear of a known or observed node [node]; beliefs of others say nothing of the relations."""
    part = components(np.asarray(graph.senders), np.asarray(graph.receivers), graph.num_nodes)
    return np.isin(part, part[known])


def _of_training(own: OwnRelations, train: TrainingData, held: HeldOut) -> tuple[OwnRelations, HeldOut]:
    """Return the relations of types with pairs outside of what is held out; other edges have those of their type."""
    kept, half = {k for k, *_ in train.ends}, held.graph.num_edges // 2
    types = np.asarray(held.graph.edge_type)[:half].tolist()
    left, known = own.of_types(kept), {kind: own.known(kind, kept) for kind in set(types)}
    others = any(kind != k for kind, k in known.items())
    return left, held._replace(graph=held.graph.with_edge_types([known[k] for k in types]) if others else held.graph)


def _levels(data: TrainingData, count: int) -> dict[int, Array]:
    """Return the levels of smoothed counts of the node types that have them."""
    found = {v: count_levels(x, count) for v, x in data.nodes.items()}
    return {v: levels for v, levels in found.items() if levels is not None}


def _units(
    data: TrainingData, given: Given, held: HeldOut, own_margins: Sequence[int], in_units_of: Sequence[int]
) -> dict[int, Array]:
    """Return the factors of the scores of the held-out nodes by type [node_of_type]."""
    units = {v: np.ones(len(x)) for v, x in held.truth.items()}
    margins, _ = estimate_margins(data.cases, in_units_of)
    for v in set(margins) & set(units):
        own = np.asarray(margins[v].scale)
        own = np.where(own > 0, own, np.mean(own))  # of a constant, any error counts
        scale = float(given.kernels.scales[v])  # of standardized values where they have own margins
        units[v] = np.full(len(units[v]), scale) if v in own_margins else scale / own[held.place[v]]
    return {v: _checks.to_jax(unit, jnp.result_type(float)) for v, unit in units.items()}
