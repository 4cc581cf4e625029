"""`fit`: a model learned from training data, with what is not given chosen from the data."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ScalarLike

from kbpjax import _checks
from kbpjax._misc import make_room, warn
from kbpjax._public import public
from kbpjax.inference.diagnostics import (
    CandidateWarning,
    MissingWarning,
    RankWarning,
    RelationWarning,
    ScaleWarning,
)
from kbpjax.kernels import RBF, Kernel, median_bandwidth
from kbpjax.learning.data import TrainingData
from kbpjax.learning.far import are_far
from kbpjax.learning.learn import learn_model
from kbpjax.learning.margins import with_own_margins
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.patterns import PatternFeatures
from kbpjax.learning.regression import Positive
from kbpjax.learning.relations import can_have_own_relations, with_cells
from kbpjax.learning.rules import ConstantTime, LinearTime, Rule
from kbpjax.learning.triples import triples_beyond_pairs
from kbpjax.training.compare import can_train, held_out_scores
from kbpjax.training.folds import FEWEST, Folds, data_without
from kbpjax.training.gaussian import can_be_gaussian, gaussian_model
from kbpjax.training.train import train_apart
from kbpjax.tuning.automatic import (
    check_words,
    choose,
    own_margin_types,
    own_start_types,
    use_features,
    warn_of_sharing,
)
from kbpjax.tuning.comparison import is_open
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.tried import Tried, selection_of

SCALES = 30
"""Ratio of the standard deviations of two coordinates above which `ScaleWarning` is given."""

SECONDS = 60
"""Time limit of each way of training in `fit(effort="high")`."""

STEPS, RATE = 60, 0.05
"""Steps and learning rate of the few numbers that are trained on single pictures in `fit(effort="auto")`."""

LEVEL_BANDWIDTH = 0.125
"""Bandwidth of the marginals of levels, in median distances, where relations are not smoothed counts."""

FEW_PAIRS = 20
"""Number of pairs of an edge type below which `RelationWarning` is given."""

COARSE = 0.1
"""Residual of a basis, relative to the largest feature norm, above which `RankWarning` is given."""


@public
def fit(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel] | None = None,
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    rule: Rule | None = None,
    ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    obs_ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    floor: ScalarLike = 1e-6,
    nonnegative: Positive | None = None,
    margins: str | Mapping[int, str] = "auto",
    relation: str = "auto",
    sharing: str = "auto",
    starts: str = "auto",
    effort: str = "auto",
) -> KernelMRF:
    r"""Return a kernel Markov random field fitted to training data (eq. 11 and 14).

    For each edge type and direction, ridge regression estimates the operator from features $\psi$ of the receiver to
    features $\phi$ of the sender. With m pairs of the edge type and ridge $\lambda$, the operator is

    $$\mathcal{C}_{ts} (\mathcal{C}_{ss} + \lambda I)^{-1}, \qquad
    \mathcal{C}_{ts} = \frac{1}{m} \sum_i \phi(x_t^i) \otimes \psi(x_s^i).$$

    What is given is kept. If a kernel is not given, of the variables or of the observations of a node type, all that is
    not given is chosen from the data (`choose_hyperparameters`). With all kernels, nothing is chosen: `ridge` is 1e-6
    by default, the evidence model is `Expectation()`, and power and temperature are 1.

    The nodes of a type share their relations. Where they differ in location or scale, as stations or columns of a table
    do, relations are better learned for values in standard deviations from the mean of each node (`margins`). Answers
    are in the units of the data all the same, and each node has its own candidates.

    Time is linear in the number of samples, except for `FullRank`. With given kernels, differentiable in the kernel
    parameters, `ridge` and `floor`. Inside `jax.jit`, `jax.vmap` and `jax.grad`, pass kernels, and a rule whose
    landmarks `fix_landmarks` selected outside: the number of landmarks depends on values.

    Args:
        data: training data.
        kernel: kernel of the variables, or {node type: kernel}. Kernels of node types that are not in a mapping are
            chosen, and the bandwidths of `kernels.Periodic(period)` unless data are traced. None: all chosen.
        obs_kernel: kernel of the observations, or {node type: kernel}, in the same way.
        rule: the update rule: `ConstantTime`, `LinearTime` or `FullRank`. None: `ConstantTime()`, and for vectors whose
            kernels are chosen with `max_rank` up to 384 (of numbers 256), if a smaller one keeps them too wide.
        ridge: lambda of eq. 11, >= 0, or {edge type: lambda}; multiplied by the number of pairs of each operator. None:
            chosen, or 1e-6. Gradients in float32 hold to about 3 % from 1e-4 on; for smaller ones, enable x64.
        obs_ridge: lambda of the observation and clamping operators, or {node type: lambda}. None: chosen, or `ridge` if
            that is one number, else 1e-6.
        floor: minimum value of an evaluated message, relative to the maximum value that a message of its norm can have,
            in [0, 1). Estimated messages may be negative; the floor makes their products densities.
        nonnegative: `Clipped()` or `ConstrainedFit()`, which make updates nonnegative; None: as estimated. `infer`
            makes them nonnegative where it needs to.
        margins: "node": values are standardized for each node, and given kernels are in standard deviations; "type":
            they are not; "auto": for numbers whose kernels are chosen, whichever has the better held-out beliefs,
            where nodes have 30 values or more and differ. Margins of nodes with few values are drawn to those of all
            nodes. On a graph with another number of nodes, the margins of all nodes are used. Or {node type: word}.
        relation: estimator of the relations. "ridge": the ridge regression above. "counts": smoothed counts, the mean
            over pairs weighted by the kernel between x and their ends (Nadaraya 1964, Watson 1964), which has no
            negative values; ridges are then shares of independence, with which it is mixed, in [0, 1]. "auto": of
            kernels that are chosen, whichever has the better held-out beliefs; "ridge" for given ones. Of numbers and
            states with fewer than 100 pairs of an edge type, it is counts, drawn to independence as far as held-out
            beliefs allow (`choose_hyperparameters`).
        sharing: "type": the edges of a type share one relation; "feature": it varies with the features of the edges
            (`Graph.edge_features`), in at most eight cells of each type, drawn to that of the type; "edge": each edge
            of the graph of the cases has its own, drawn to that of its cell or type as far as is best; "auto": of
            kernels that are chosen, whichever has the better held-out beliefs, "edge" with 30 cases of one graph or
            more; "type" for given ones. Edges of other graphs have the relation of their cell or type.
        starts: "pooled": all nodes of a type have one marginal; "own": nodes without an incoming edge, such as the
            first of a time series, have their own, in directed chains and trees, where no node has several incoming
            edges from its type, of types without own margins; "auto": of kernels that are chosen, with four cases or
            more, "own" where their samples differ clearly and held-out beliefs are not worse; "pooled" for given ones.
        effort: how much is compared where kernels are chosen; other options take precedence. "low": one search over
            bandwidths, ridges and powers; margins are own where nodes differ strongly. Smoothed counts, own relations,
            own starts, front ends and larger ranks are used only if an option requires them. "auto": all of these
            are compared at first values, and taken for a clear gain; for numbers on one graph with cycles, also
            potentials of a joint Gaussian, or on pictures a few numbers trained through inference in half a minute.
            "high": all of these are compared after a search of each, in finer steps, and taken for any gain (numbers,
            of fewer than four cases, for half a percent), up to about three times slower; then, for numbers on one
            graph with cycles, potentials trained through inference (`train`) for some minutes, if held-out beliefs are
            better.

    Returns:
        The model. If hyperparameters were chosen, they are in `model.hyperparameters`, which can fit other data:
        `model.hyperparameters.fit(data)`. What was compared, with scores and seconds, is in `model.selection`.

    Raises:
        ValueError: an option is out of range, a type has no kernel, the matrices would not fit in memory, or landmarks
            would be selected from traced data or kernels; `margins="node"` without numbers or cases; `starts="own"`
            without directed chains or trees.

    Warns:
        MarginWarning: nodes of a type differ much, and their values are not standardized.
        MissingWarning: vectors of which some entries are missing are dropped as a whole (see `pool`).
        RelationWarning: with 30 cases of one graph or more, edges of a type differ and share one relation, which was
            not compared with relations of single edges: `sharing` or all kernels are given, or `effort="low"`. An edge
            type has fewer than 20 pairs, on which all answers rest. With 300 cases of one graph of up to 64 nodes or
            more: a node depends on two neighbors together (see `merge`).

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.linspace(0, 1, 200).reshape(20, 10)
        >>> data = kbp.pool(kbp.chain_graph(10), x, observations=x)
        >>> model = kbp.fit(data, kernel=kbp.RBF(0.3), obs_kernel=kbp.RBF(0.2), rule=kbp.ConstantTime(eps=1e-2))
        >>> model.ranks[0][0] < 10
        True

        With kernels chosen:

        >>> y = x + 0.1 * np.sin(40 * x)
        >>> model = kbp.fit(kbp.pool(kbp.chain_graph(10), x, y), effort="low")
        >>> sorted(model.selection.taken)  # what was chosen: no relation, no margins
        ['numbers', 'temperature']
    """
    options: Any = {"floor": floor, "nonnegative": nonnegative}
    given = {"kernel": kernel, "obs_kernel": obs_kernel, "ridge": ridge, "obs_ridge": obs_ridge}
    check_words(relation, sharing, starts, effort)
    known = not _checks.is_traced(data)
    if not (_misses("kernel", kernel, data.nodes, known) | _misses("obs_kernel", obs_kernel, data.observations, known)):
        data = with_own_margins(data, own_margin_types(data, (), margins)[0])
        rule = ConstantTime() if rule is None else rule
        fix = "Leave a kernel out, or give the edges types: graph.with_edge_types."
        _checks.require(sharing != "edge", "sharing", "must not be 'edge' where all kernels are given", "it", fix)
        if sharing != "feature":
            warn_of_sharing(data, fix)
        options |= {"relation": "ridge" if relation == "auto" else relation}
        if sharing == "feature" and use_features(data, sharing):
            data, options["own"] = with_cells(data)
        options |= {"starts": own_start_types(data) if starts == "own" else ()}
        model = learn_model(data, **(given | options | {"ridge": 1e-6 if ridge is None else ridge, "rule": rule}))
        warn_of_rank(model, rule)
        _warn_of_far(data)
        _warn_of_missing(data, model)
        _warn_of_scales(data, kernel or {})
        _warn_of_triples(data)
        return model
    options |= {"rule": rule, "margins": margins, "relation": relation, "sharing": sharing}
    options |= {"starts": starts, "effort": effort}
    return fit_chosen(data, **given, **options)


def fit_chosen(data: TrainingData, **options: Any) -> KernelMRF:
    """Return the model of `choose_hyperparameters`, which chooses what is None, also if all kernels are given."""
    make_room()
    chosen, predicted, selection = choose(data, **options)
    model = chosen.fit(predicted)
    warn_of_rank(model, chosen.rule)
    _warn_of_far(data)
    _warn_of_missing(data, model)
    _warn_of_triples(data)
    _warn_of_few(data, chosen)
    model = dataclasses.replace(model, hyperparameters=chosen, selection=selection)
    relation, high = options.get("relation", "auto"), options.get("effort") == "high"
    kept = relation == "ridge" or (relation == "counts" and not high)  # `train` starts from counts
    kept |= options.get("effort") == "low" or options.get("nonnegative") is not None
    if kept or not can_train(model, data):
        return model
    both = _Pair(model, None)
    if relation == "auto":
        both = _joint(both, data, options.get("sharing", "auto"))
    if chosen.relation != "counts" and "relation" not in selection.taken:  # given options do not fit smoothed counts
        return both.model
    if high:
        return _trained(both, model, data, options, seconds=SECONDS)
    few = sum(len(next(iter(one.samples.values()))) for one in data.cases) < FEWEST
    return _trained(both, model, data, options, way="scaled", steps=STEPS, rate=RATE) if few else both.model


class _Pair(NamedTuple):
    """A model, and the same learned without what is held out; None where that is not known yet."""

    model: KernelMRF
    apart: KernelMRF | None

    def held_out(self, data: TrainingData) -> KernelMRF:
        """Return the model that is learned without what is held out."""
        if self.apart is not None:
            return self.apart
        rest = _without_held(data)
        return self.model if rest is data else self.model.hyperparameters.fit(rest)


def _without_held(data: TrainingData) -> TrainingData:
    """Return the data without the cases that `train` holds out; all, of few cases and where the rest lacks a type."""
    folds = Folds.of_cases(data.cases[0], 0)
    rest = data_without(data, folds.of == 0) if folds.whole else None
    return data if rest is None else rest


def _joint(both: _Pair, data: TrainingData, sharing: str) -> _Pair:
    """Return the model with potentials of a Gaussian copula of the graph, if its beliefs on held-out cases are better.

    Models are compared that are learned from the other cases; the result is learned from all.
    """
    (cases,), since, model = data.cases, time.perf_counter(), both.model
    folds = Folds.of_cases(cases, 0)
    can = sharing in ("auto", "edge") and can_have_own_relations(data) and can_be_gaussian(model, cases)
    if not (can and folds.whole):
        return both
    chosen = model.hyperparameters
    if chosen.relation != "counts":
        standardized = chosen.standardized(data).nodes
        kernels = {v: RBF(LEVEL_BANDWIDTH * median_bandwidth(np.asarray(x))) for v, x in standardized.items()}
        more: Any = {"kernel": kernels, "ridge": 1e-3, "relation": "counts", "rule": ConstantTime()}
        chosen = dataclasses.replace(chosen, **more, own_strength=None, edge_features=False)
    closed = both.held_out(data)
    joint = gaussian_model(chosen.fit(_without_held(data)), cases, folds.kept, closed)
    scores = held_out_scores([closed, joint], data)
    better = scores[1] < scores[0]
    tried = [Tried("potentials", word, score) for word, score in zip(("closed form", "gaussian"), scores, strict=True)]
    tried[better] = tried[better]._replace(taken=True)
    apart = joint if better else closed
    if better:
        joint = gaussian_model(chosen.fit(data), cases, np.arange(len(folds.of)), model)
        model = dataclasses.replace(joint, hyperparameters=model.hyperparameters, selection=model.selection)
    tried[1] = tried[1]._replace(seconds=time.perf_counter() - since)
    selection = selection_of([*model.selection, *tried], model.selection.unit)
    return _Pair(dataclasses.replace(model, selection=selection), apart)


def _trained(both: _Pair, counts: KernelMRF, data: TrainingData, options: Any, **of_training: Any) -> KernelMRF:
    """Return the model, or that of counts with potentials trained through inference, if its beliefs are better."""
    if counts.hyperparameters.relation != "counts":
        counts = fit_chosen(data, **{**options, "relation": "counts", "effort": "auto"})
    since, model = time.perf_counter(), both.model
    sharing = options.get("sharing", "auto")
    trained, apart = train_apart(counts, data, sharing="type" if sharing == "feature" else sharing, **of_training)
    seconds, scores = time.perf_counter() - since, held_out_scores([both.held_out(data), apart], data)
    better = scores[1] < scores[0]
    tried = [Tried("training", word, score) for word, score in zip(("none", "trained"), scores, strict=True)]
    tried[better] = tried[better]._replace(taken=True)
    tried[1] = tried[1]._replace(seconds=seconds)
    potentials = [one for one in trained.selection if one.choice == "potentials"]
    selection = selection_of([*model.selection, *potentials, *tried], model.selection.unit)
    return dataclasses.replace(trained if better else model, selection=selection)


def _misses(argument: str, kernel: Any, types: Mapping[int, Any], known: bool) -> bool:
    """Return whether a node type has no kernel, or no bandwidth; raise ValueError for kernels of types that data lack.

    Bandwidths can be chosen only of `known` data, which are not traced.
    """
    if isinstance(kernel, Kernel):
        return known and is_open(kernel)
    extra = sorted(set(kernel or {}) - set(types))
    rule = f"must be a kernel, or one kernel per node type {sorted(types)}"
    _checks.require(not extra, argument, rule, f"kernels of the types {extra}", "Leave them out.")
    return any(v not in (kernel or {}) or (known and is_open(kernel[v])) for v in types)


def _warn_of_scales(data: TrainingData, kernel: Kernel | Mapping[int, Kernel]) -> None:
    """Warn if an RBF kernel is used for vectors whose coordinates differ much in scale."""
    for v, x in data.nodes.items():
        of_type = kernel if isinstance(kernel, Kernel) else kernel.get(v)
        if not isinstance(of_type, RBF) or x.ndim != 2 or _checks.is_traced(x):
            continue
        spread = np.std(np.asarray(x, float), axis=0)
        spread = spread[spread > 0]
        if len(spread) and spread.max() > SCALES * spread.min():
            got = f"standard deviations from {spread.min():.2g} to {spread.max():.2g}"
            fix = "Standardize them, or pass kernel=kbpjax.kernels.ARD(bandwidths)."
            text = f"coordinates of node type {v} have {got}: RBF ignores the small ones. {fix}"
            warn(text, ScaleWarning)


def _warn_of_far(data: TrainingData) -> None:
    """Warn of numbers that are far from all others, and so are no candidates of beliefs."""
    for v, x in data.nodes.items():
        if _checks.is_traced(x) or x.ndim > 1 or not jnp.issubdtype(x.dtype, jnp.floating):
            continue
        values = np.asarray(x)
        far = values[are_far(values)]
        if len(far):
            got = f"{len(far)} of {len(values)} values of node type {v} are far from the others, such as {far[0]:.4g}"
            text = f"{got}: they are no candidates of beliefs. Correct or drop them, or pass points= to infer."
            warn(text, CandidateWarning)


def _warn_of_triples(data: TrainingData) -> None:
    """Warn of nodes whose relation with two neighbors pairs cannot say."""
    found = triples_beyond_pairs(data)
    if found:
        first, *_ = found
        got = f"node {first.nodes[0]} depends on nodes {first.nodes[1]} and {first.nodes[2]} together"
        more = f", as {len(found) - 1} others do" if len(found) > 1 else ""
        fix = f"Merge them: kbpjax.merge(graph, data, [{first.nodes[1]}, {first.nodes[2]}])."
        warn(f"data: {got} ({first.nats:.2g} nats that no model of pairs has){more}. {fix}", RelationWarning)


def _warn_of_few(data: TrainingData, chosen: Hyperparameters) -> None:
    """Warn of the number of pairs that relations rest on, where it is small."""
    pairs = {k: len(first) for k, (first, _) in data.edges.items()}
    few = min(pairs, key=lambda k: pairs[k], default=None)
    if few is None or pairs[few] >= FEW_PAIRS:
        return
    share = max(float(one) for one in jax.tree.leaves(chosen.ridge))
    drawn = f", and are drawn to independence by a share of {share:.2g}" if chosen.relation == "counts" else ""
    text = f"data: the relations of edge type {few} rest on {pairs[few]} pairs{drawn}"
    warn(f"{text}. Learn from more cases, or let edges share types.", RelationWarning)


def _warn_of_missing(data: TrainingData, model: KernelMRF) -> None:
    """Warn of vectors of which some entries are missing, and which count as missing as a whole."""
    if _checks.is_traced(data.cases):
        return
    unused = [v for v, one in model.observations.items() if not isinstance(one.basis, PatternFeatures)]
    tables: Any = {"samples": [], "observations": []}
    for one in data.cases:
        dropped = one.dropped.get("samples", {}).items()
        tables["samples"] += [(v, mask, one.present[v]) for v, mask in dropped]
        dropped = [*one.dropped.get("observations", {}).items(), *one.partly.items()]
        tables["observations"] += [(v, mask, one.observed[v]) for v, mask in dropped if v in unused]
    fixes = {
        "samples": "Make entries nodes of their own, or impute them. As observations, such vectors are used.",
        "observations": "Impute them: entries are used of vectors of at most 15, with 10 samples or more.",
    }
    for name, table in tables.items():
        for v in sorted({v for v, *_ in table}):
            masks = [tuple(map(np.sum, both)) for number, *both in table if number == v]
            missing, complete = (int(sum(column)) for column in zip(*masks, strict=True))
            got = f"{missing} of {missing + complete} vectors of node type {v} miss entries, and are dropped as a whole"
            warn(f"{name}: {got}. {fixes[name]}", MissingWarning)


def warn_of_rank(model: KernelMRF, rule: Rule) -> None:
    """Warn if a basis has the maximum rank and a large residual; under tracing, do nothing."""
    if not isinstance(rule, ConstantTime | LinearTime) or _checks.is_traced(model):
        return
    limit = max(COARSE, 10 * rule.eps)
    worst = {v: max(float(residual) for residual in pair) for v, pair in model.residuals.items()}
    coarse = {v: residual for v, residual in worst.items() if residual > limit}
    if coarse:
        v = max(coarse, key=lambda v: coarse[v])
        text = f"{rule.max_rank} landmarks leave a residual of {coarse[v]:.2g} of node type {v} (eps={rule.eps:g})"
        fix = "Pass a wider kernel, or a larger rank: rule=kbpjax.ConstantTime(max_rank=...)."
        warn(f"{text}: messages are coarse. {fix}", RankWarning)
