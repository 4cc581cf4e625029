"""Hyperparameters chosen from the data, for `fit`: those whose beliefs are best on held-out problems.

The score is the energy score of the beliefs (for numbers: the continuous ranked probability score, CRPS), after message
passing on held-out cases or blocks of nodes (`kbpjax.tuning.held_out`). It is a proper score: in expectation it is
smallest for the true posterior. One compiled function evaluates it for given numbers (`kbpjax.tuning.comparison`), and
coordinate search minimizes it. The search is deterministic.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ScalarLike

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import public
from kbpjax.features import RandomFourier
from kbpjax.inference.diagnostics import MarginWarning, RelationWarning
from kbpjax.kernels import Delta, Kernel
from kbpjax.learning.data import TrainingData
from kbpjax.learning.differing import differing_relations, share_well
from kbpjax.learning.margins import differences, with_own_margins
from kbpjax.learning.nonnegative import ConstrainedFit
from kbpjax.learning.observations import DensityRatio, Expectation
from kbpjax.learning.regression import RELATIONS, Positive
from kbpjax.learning.relations import can_have_own_relations, features_vary
from kbpjax.learning.rules import ConstantTime, Rule
from kbpjax.tuning.comparison import Given, ScaledKernels
from kbpjax.tuning.front_ends import KINDS, of_predictions, with_best_front_ends
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.problem import Problem, drawn_to_independence, fewest_pairs, search_numbers, with_own, with_starts
from kbpjax.tuning.search import EFFORTS, Choice
from kbpjax.tuning.tried import Log, Selection

SHIFT, SPREAD = 0.02, 0.1
"""Share of the variance that is between nodes, and standard deviation of the logarithms of their scales, above which
nodes count as different."""

STRONG_SHIFT, STRONG_SPREAD = 0.2, 0.5
"""The same, above which `MarginWarning` is given if relations are learned without margins."""

SHARING_LOSS, SURE = 0.1, 3
"""Mean logarithm of the factor by which a shared relation widens an end of an edge given the other, above which
`RelationWarning` is given, and by how many standard deviations of chance it has to be above."""


SHARING = "type", "feature", "edge"
"""What relations are shared by."""


@public
def choose_hyperparameters(
    data: TrainingData,
    *,
    kernel: Kernel | Mapping[int, Kernel] | None = None,
    obs_kernel: Kernel | Mapping[int, Kernel] | None = None,
    ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    obs_ridge: ScalarLike | Mapping[int, ScalarLike] | None = None,
    rule: Rule | None = None,
    floor: ScalarLike = 1e-6,
    nonnegative: Positive | None = None,
    margins: str | Mapping[int, str] = "auto",
    relation: str = "auto",
    sharing: str = "auto",
    starts: str = "auto",
    effort: str = "auto",
) -> Hyperparameters:
    """Return the hyperparameters whose beliefs are best on held-out problems; deterministic.

    With four cases or more, a quarter of them is left out (at most 2500 nodes); with fewer, blocks of neighboring
    nodes. The beliefs of the left-out nodes, after message passing, are scored by the energy score in median distances:
    for numbers, the continuous ranked probability score. Without observations, half of the nodes are clamped and the
    others scored. Coordinate search varies bandwidths, ridges, evidence model, power of the evidence, temperature, and
    on graphs with cycles a factor of the exponents.
    A temperature other than 1 counts if its score is better by two standard errors over the held-out cases.
    Where an edge type of numbers or states has fewer than 100 pairs, scores are means over four splits, relations are
    smoothed counts with the largest share of independence whose score is within one standard error of the best
    (Breiman, Friedman, Olshen and Stone 1984), and temperatures are at least 1: few data do not make a belief more
    certain. Several temperatures may score about as well as the best. Of these, the one with the best coverage is
    taken: its 90 % regions contain a share of the held-out values that is closest to 90 %.

    Kernels that are chosen are RBF (numbers), ARD (vectors whose coordinates differ in scale) or Delta (labels and
    booleans). Other domains, such as angles or strings that resemble each other, need a kernel. Observations of 16
    coordinates or more may get an RBF of their projection (`kernels.Projected`) by a ridge regression of the variables
    on them, if held-out beliefs are better. They may also have a front end, a kernel ridge regression or boosted trees
    (with scikit-learn) that predict the variable; the evidence is then learned on predictions out of fold.

    Args:
        data: training data of `pool`. Nothing is held out from a `TrainingData` without cases, or with fewer than 20
            values of variables: bandwidths are then a quarter of the median distance, and ridges 1e-3. Shares of
            independence, with fewer than 100 pairs of an edge type, are then 10 / (10 + pairs).
        kernel: as in `fit`; given kernels are kept.
        obs_kernel: as in `fit`.
        ridge: as in `fit`; given ridges are kept.
        obs_ridge: as in `fit`.
        rule: as in `fit`. The compared models have rank 48 at most (vectors: 96), or 256 (vectors: 384) where narrow
            kernels need it and the rule allows it.
        floor: as in `fit`.
        nonnegative: as in `fit`.
        margins: as in `fit`.
        relation: as in `fit`.
        sharing: as in `fit`.
        starts: as in `fit`.
        effort: as in `fit`.

    Returns:
        The hyperparameters.

    Raises:
        ValueError: variables or observations that are not numbers and have no kernel, or traced data.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> rng = np.random.default_rng(0)
        >>> x = np.cumsum(rng.normal(size=(40, 6)), axis=1)
        >>> data = kbp.pool(kbp.chain_graph(6), x, x + rng.normal(size=x.shape))
        >>> chosen = kbp.choose_hyperparameters(data, ridge=1e-3)
        >>> sorted(chosen.kernel), round(float(chosen.ridge), 4)
        ([0], 0.001)
    """
    options: Any = {"ridge": ridge, "obs_ridge": obs_ridge, "rule": rule, "floor": floor, "nonnegative": nonnegative}
    options |= {"margins": margins, "relation": relation, "sharing": sharing, "starts": starts, "effort": effort}
    return choose(data, kernel=kernel, obs_kernel=obs_kernel, **options)[0]


def choose(
    data: TrainingData,
    *,
    kernel: Any = None,
    obs_kernel: Any = None,
    ridge: Any = None,
    obs_ridge: Any = None,
    rule: Rule | None = None,
    floor: ScalarLike = 1e-6,
    nonnegative: Positive | None = None,
    margins: str | Mapping[int, str] = "auto",
    relation: str = "auto",
    sharing: str = "auto",
    starts: str = "auto",
    effort: str = "auto",
) -> tuple[Hyperparameters, TrainingData, Selection]:
    """Return the hyperparameters of `choose_hyperparameters`, data with predictions of front ends, and what was tried.

    The search has the options of the effort (`EFFORTS`).
    """
    fix = "Choose outside of jax.jit and jax.vmap, and pass the kernels in."
    _checks.require(
        not _checks.is_traced(data), "data", "must be known where hyperparameters are chosen", "tracers", fix
    )
    for name, given in (("ridge", ridge), ("obs_ridge", obs_ridge)):
        for value in jax.tree.leaves(given):
            _checks.require_number(name, value, least=0)
    check_words(relation, sharing, starts, effort)
    observed = {v: y for v, (_, y) in data.observations.items()}
    kernel = _with_delta(kernel, data.nodes, dict(data.labels))
    obs_kernel = _with_delta(obs_kernel, observed, dict(data.obs_labels))
    search, log = EFFORTS[effort], Log()
    number = sum(max(map(len, one.samples.values()), default=0) for one in data.cases)
    if number < search.min_cases:  # blocks of a picture are no evidence of smaller gains
        search = dataclasses.replace(search, gain=max(search.gain, EFFORTS["auto"].gain))
    few = sum(x.size and len(x) * x.shape[1] for one in data.cases for x in one.samples.values()) < search.fewest
    compares = search.compares and not few
    chosen = [v for v in data.nodes if not _is_given(kernel, v)]
    least = (SHIFT, SPREAD) if search.compares else (STRONG_SHIFT, STRONG_SPREAD)
    asked, differ = own_margin_types(data, chosen, margins, least)
    both = differ if compares else ()  # compared in units of the nodes' standard deviations

    def problem_of(data: TrainingData, own: tuple[int, ...]) -> Problem:
        pooled = with_own_margins(data, own)
        of_observations = {v: y for v, (_, y) in pooled.observations.items()}
        kernels = ScaledKernels.of("kernel", kernel, pooled.nodes)
        obs_kernels = ScaledKernels.of("obs_kernel", obs_kernel, of_observations)
        given = Given(kernels, obs_kernels, ridge, obs_ridge, floor)
        return Problem(data, pooled, given, search, own, both, rule, log)

    problem = problem_of(data, asked if compares or few else asked + differ)
    if both:
        score = Problem.searched_score if search.searched else partial(Problem.resolved_score, starts=starts)
        problem = _best(log, "margins", {"type": problem, "node": problem_of(data, asked + both)}.items(), score)
    score = Problem.searched_score if search.searched else Problem.best_first_score
    if compares and (wide := problem.wide):
        learned = _front_ends(data, wide, search.searched)
        others = ((word, problem_of(one, problem.own_margins)) for word, one in learned)
        problem = _best(log, "front end", itertools.chain([("none", problem)], others), score, 1 - search.better)
        if problem.source is not data:
            problem = dataclasses.replace(problem, search=of_predictions(search, data.cases))
    data, varies = problem.source, use_features(problem.source, sharing)
    if varies:
        if sharing == "feature" or not compares:
            problem = problem.with_features()
        else:
            choice = problem.first_choice()
            both_ways = {"ignored": problem, "used": problem.with_features()}
            problem = _best(log, "edge features", both_ways.items(), lambda one: one.scores(choice))
    may_count = relation == "auto" and _may_count(ridge, obs_ridge, rule, nonnegative) and search.compares
    small = may_count and problem.is_small and problem.can_count()
    if small:  # of few data, nothing makes beliefs sharper than they are
        problem = dataclasses.replace(problem, search=search.with_temperatures(least=1.0))
    if relation == "counts" or small:
        problem = problem.with_counts()
    elif may_count and compares and problem.can_count():
        limit = 1 - search.clear if number >= problem.search.min_cases else 1 + search.same
        problem = _best(log, "relation", {"ridge": problem, "counts": problem.with_counts()}.items(), score, limit)
    own_starts = own_start_types(problem.data) if starts == "own" else ()
    if few:
        strength = search.strengths[-1] if sharing == "edge" else 0.0
        share = search.prior / (search.prior + fewest_pairs(problem.data)) if small else 1e-3
        choice, temperature = Choice(ridge=share, obs_ridge=share, strength=strength), 1.0
        obs_kernels = problem.given.obs_kernels
        rule = ConstantTime() if rule is None else rule
    else:
        found = search_numbers(problem, log)
        may = sharing == "auto" and compares and problem.scalar and can_have_own_relations(problem.source)
        alike = may and not search.searched and share_well(problem.source, search.clear)
        may = may and not alike
        if starts == "own" or (starts == "auto" and compares):
            found, own_starts = with_starts(problem, found, starts)
        found = with_own(problem, found, sharing) if may or sharing == "edge" else found
        if not (may or alike or sharing == "edge" or problem.cells):
            warn_of_sharing(problem.data, "Pass sharing='edge' to fit, or give them edge types.")
        found = drawn_to_independence(found, problem.names) if small else found
        choice, scores, obs_kernels, rule = found
        temperature = scores.temperature(choice)
        _add_temperatures(log, scores.by_temperature(choice), temperature)
    kernels = problem.given.kernels
    hyperparameters = Hyperparameters(
        kernel=kernels.scaled(choice.bandwidth),
        obs_kernel=obs_kernels.scaled(choice.obs_bandwidth) or None,
        ridge=choice.ridge if ridge is None else ridge,
        obs_ridge=choice.obs_ridge if obs_ridge is None else obs_ridge,
        floor=floor,
        rule=rule,
        nonnegative=nonnegative,
        evidence_model=DensityRatio() if choice.ratio else Expectation(),
        evidence_power=choice.power,
        temperature=temperature,
        own_margins=problem.own_margins,
        relation=problem.relation,
        reweighting=choice.reweighting,
        own_strength=choice.strength or None,
        front_ends=tuple((v, one.kind) for v, one in data.front_ends.items()),
        edge_features=problem.cells is not None,
        own_starts=own_starts,
    )
    unit = "standard deviations of nodes" if both else "median distances"
    unit = unit if kernels.vary else "distances of the kernels"
    selection = log.selection(f"{'CRPS' if problem.scalar else 'energy scores'} in {unit}")
    return hyperparameters, data, selection


def _best(
    log: Log,
    choice: str,
    alternatives: Iterable[tuple[str, Problem]],
    score: Callable[[Problem], float],
    limit: float = 1.0,
) -> Problem:
    """Return the first alternative, or a later one whose score is below `limit` times that of the one before."""
    taken: tuple[str, Problem, float] | None = None
    for word, problem in alternatives:
        found = score(problem)
        log.add(choice, word, found)
        if taken is None or found < limit * taken[2]:
            taken = word, problem, found
    assert taken is not None
    log.take(choice, taken[0])
    return taken[1]


def _front_ends(data: TrainingData, node_types: Sequence[int], each: bool) -> Iterator[tuple[str, TrainingData]]:
    """Yield the kinds of front ends and the data with them: those of smallest error, or also each kind."""
    seen = {""}
    for kinds in (tuple(KINDS), *(((kind,) for kind in KINDS) if each else ())):
        learned = with_best_front_ends(data, node_types, kinds)
        word = ", ".join(sorted({one.kind for one in learned.front_ends.values()}))
        if word not in seen:
            yield word, learned
        seen.add(word)


def _add_temperatures(log: Log, scores: Mapping[float, float], chosen: float) -> None:
    """Add temperature 1 and another one, the chosen or the best."""
    other = min((one for one in scores if one != 1), key=lambda one: scores[one]) if chosen == 1 else chosen
    log.add("temperature", "one", scores[1.0])
    log.add("temperature", "other", scores[other])
    log.take("temperature", "one" if chosen == 1 else "other")


def check_words(relation: str, sharing: str, starts: str, effort: str) -> None:
    """Raise ValueError unless the estimator of relations, their sharing, the starts and the effort are known words."""
    given = {"relation": (relation, ("auto", *RELATIONS)), "sharing": (sharing, ("auto", *SHARING))}
    given |= {"starts": (starts, ("auto", "pooled", "own"))}
    given["effort"] = effort, tuple(EFFORTS)
    for name, (word, known) in given.items():
        _checks.require(word in known, name, f"must be one of {known}", repr(word), "Pass one of them.")


def use_features(data: TrainingData, sharing: str) -> bool:
    """Return whether relations may vary with features of edges; raise ValueError if they should and have none."""
    varies = sharing != "type" and features_vary(data)
    rule, fix = "must not be 'feature' where edges have no features that vary", "Build graphs with edge_features."
    _checks.require(varies or sharing != "feature", "sharing", rule, "it", fix)
    return varies


def own_start_types(data: TrainingData) -> tuple[int, ...]:
    """Return the node types whose starts can have a separate marginal; raise ValueError if there are none."""
    found = tuple(v for v in data.starts if v not in data.margins)
    rule = "must not be 'own' without node types in directed chains or trees, without own margins"
    fix = "Pass data of kbpjax.pool where each node has at most one incoming edge, or starts='pooled'."
    _checks.require(bool(found), "starts", rule, "none", fix)
    return found


def _may_count(ridge: Any, obs_ridge: Any, rule: Rule | None, nonnegative: Positive | None) -> bool:
    """Return whether the given options fit smoothed counts, which need landmarks and shares of independence."""
    shares = all(bool(value <= 1) for value in jax.tree.leaves((ridge, obs_ridge)))
    random = isinstance(getattr(rule, "features", None), RandomFourier)
    return shares and not random and not isinstance(nonnegative, ConstrainedFit)


def _is_given(kernel: Any, node_type: int) -> bool:
    return isinstance(kernel, Kernel) or node_type in (kernel or {})


def _with_delta(kernel: Any, samples: Mapping[int, Any], labels: Mapping[int, Any]) -> Any:
    """Return kernels with `Delta` for labels and booleans that have none."""
    if isinstance(kernel, Kernel):
        return kernel
    own = {v: Delta() for v, x in samples.items() if v in labels or x.dtype == bool}
    return own | dict(kernel or {})


def own_margin_types(
    data: TrainingData,
    chosen: Sequence[int],
    margins: str | Mapping[int, str],
    least: tuple[float, float] = (SHIFT, SPREAD),
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the node types that have own margins, and those that may; warn of others whose nodes differ strongly.

    Args:
        data: the training data.
        chosen: node types whose kernels are chosen.
        margins: as in `fit`.
        least: share of the variance and spread of scales above which nodes differ.
    """
    given = margins if isinstance(margins, Mapping) else dict.fromkeys(data.nodes, margins)
    fix = "Pass 'auto', 'node' or 'type', or {node type: one of them}."
    words = all(word in ("auto", "node", "type") for word in given.values()) and set(given) <= set(data.nodes)
    _checks.require(words, "margins", f"must be a known word, for node types {list(data.nodes)}", repr(margins), fix)
    floats = [v for v, x in data.nodes.items() if jnp.issubdtype(x.dtype, jnp.floating)]
    asked = [v for v, word in given.items() if word == "node" and (v in floats or isinstance(margins, Mapping))]
    rule, fix = "must be 'type' where no variable is a float", "Leave margins out."
    _checks.require(margins != "node" or bool(asked), "margins", rule, repr(margins), fix)
    if _checks.is_traced(data):  # `with_own_margins` refuses those that are asked for
        return tuple(asked), ()
    differ = {v: differences(data.cases, v) for v in data.nodes if v not in asked} if data.cases else {}
    numbers = [v for v in chosen if v in differ and data.nodes[v].ndim == 1 and given.get(v, "auto") == "auto"]
    candidates = [v for v in numbers if _exceeds(differ[v], *least)]
    for v in sorted(set(differ) - set(candidates)):
        if _exceeds(differ[v], STRONG_SHIFT, STRONG_SPREAD):
            shift, spread = differ[v]
            got = f"{shift:.0%} of the variance is between them, and their scales differ by {np.exp(spread):.2g} times"
            text = f"nodes of type {v} differ, and their relations are learned together: {got}"
            warn(f"{text}. Pass margins='node' to fit, or give them node types.", MarginWarning)
    return tuple(asked), tuple(candidates)


def _exceeds(found: tuple[float, float], shift: float, spread: float) -> bool:
    return found[0] > shift or found[1] > spread


def warn_of_sharing(data: TrainingData, fix: str) -> None:
    """Warn of edge types whose edges share one relation, and differ so much that this loses precision."""
    if _checks.is_traced(data):
        return
    for k, found in differing_relations(data).items():
        if found.loss > SHARING_LOSS + SURE * found.chance:
            got = (
                f"given one end, the other is {np.exp(found.loss):.2f} times as wide as with relations of single edges"
            )
            ranks = f"rank correlations are from {found.lowest:.2f} to {found.highest:.2f}"
            warn(f"edges of type {k} differ, and share one relation: {got}; {ranks}. {fix}", RelationWarning)
