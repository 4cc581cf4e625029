"""Hyperparameters chosen from the data, for `fit`: those whose beliefs are best on held-out problems.

The score is the energy score of the beliefs (for numbers: the continuous ranked probability score, CRPS), after message
passing on held-out cases or blocks of nodes (`kbpjax.tuning.held_out`). It is a proper score: in expectation it is
smallest for the true posterior. One compiled function evaluates it for given numbers (`kbpjax.tuning.comparison`), and
coordinate search minimizes it. The search is deterministic.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ScalarLike

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import public
from kbpjax.features import RandomFourier
from kbpjax.inference.diagnostics import MarginWarning
from kbpjax.kernels import Delta, Kernel, gram
from kbpjax.kernels.base import random_rows
from kbpjax.learning.data import TrainingData
from kbpjax.learning.margins import differences, with_own_margins
from kbpjax.learning.model import RELATIONS, Positive
from kbpjax.learning.nonnegative import ConstrainedFit
from kbpjax.learning.observations import DensityRatio, Expectation
from kbpjax.learning.relations import can_have_own_relations, with_own_relations
from kbpjax.learning.rules import ConstantTime, Rule
from kbpjax.tuning.comparison import Comparison, Given, Outcome, ScaledKernels, evaluate, make_comparison
from kbpjax.tuning.front_ends import of_predictions, with_best_front_ends
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.search import Choice, Search

SHIFT, SPREAD = 0.02, 0.1
"""Share of the variance that is between nodes, and standard deviation of the logarithms of their scales, above which
nodes count as different."""

SOME = 200
"""Number of samples at which the sign of a kernel is looked at."""

STRONG_SHIFT, STRONG_SPREAD = 0.2, 0.5
"""The same, above which `MarginWarning` is given if relations are learned without margins."""


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
) -> Hyperparameters:
    """Return the hyperparameters whose beliefs are best on held-out problems; deterministic.

    With four cases or more, a quarter of them is left out (at most 2500 nodes); with fewer, blocks of neighboring
    nodes. The beliefs of the left-out nodes, after message passing, are scored by the energy score in median distances:
    for numbers, the continuous ranked probability score. Without observations, half of the nodes are clamped and the
    others scored. Coordinate search varies bandwidths, ridges, evidence model, power of the evidence, temperature, and
    on graphs with cycles a factor of the exponents.
    Of the temperatures that score about as well as the best, the one is taken whose regions of 90 % hold nearest to
    90 % of the held-out values.

    Kernels that are chosen are RBF (numbers), ARD (vectors whose coordinates differ in scale) or Delta (labels and
    booleans). Other domains, such as angles or strings that resemble each other, need a kernel. Observations of 16
    coordinates or more may get an RBF of their projection (`kernels.Projected`) by a ridge regression of the variables
    on them, if held-out beliefs are better. They may also have a front end, a kernel ridge regression or boosted trees
    (with scikit-learn) that predict the variable; the evidence is then learned on predictions out of fold.

    Args:
        data: training data of `pool`. From a `TrainingData` without cases, nothing can be held out: bandwidths are then
            a quarter of the median distance, and ridges 1e-3. So they are for fewer than 20 values of variables.
        kernel: as in `fit`; given kernels are kept.
        obs_kernel: as in `fit`.
        ridge: as in `fit`; given ridges are kept.
        obs_ridge: as in `fit`.
        rule: as in `fit`. The compared models have rank 48 at most (vectors: 96, or 384 if the rule allows it and
            narrow kernels need it), whatever the rule.
        floor: as in `fit`.
        nonnegative: as in `fit`.
        margins: as in `fit`.
        relation: as in `fit`.
        sharing: as in `fit`.

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
    options |= {"margins": margins, "relation": relation, "sharing": sharing}
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
) -> tuple[Hyperparameters, TrainingData]:
    """Return the hyperparameters of `choose_hyperparameters`, and the data with predictions of their front ends."""
    fix = "Choose outside of jax.jit and jax.vmap, and pass the kernels in."
    _checks.require(
        not _checks.is_traced(data), "data", "must be known where hyperparameters are chosen", "tracers", fix
    )
    for name, given in (("ridge", ridge), ("obs_ridge", obs_ridge)):
        for value in jax.tree.leaves(given):
            _checks.require_number(name, value, least=0)
    check_words(relation, sharing)
    observed = {v: y for v, (_, y) in data.observations.items()}
    kernel = _with_delta(kernel, data.nodes, dict(data.labels))
    obs_kernel = _with_delta(obs_kernel, observed, dict(data.obs_labels))
    search, rest = Search(), {"ridge": ridge, "obs_ridge": obs_ridge, "floor": floor}
    asked, own = own_margin_types(data, [v for v in data.nodes if not _is_given(kernel, v)], margins)
    few = sum(x.size and len(x) * x.shape[1] for one in data.cases for x in one.samples.values()) < search.fewest
    both = () if few else own  # compared in units of the nodes' standard deviations

    def problem_of(data: TrainingData, chosen: tuple[int, ...]) -> _Problem:
        pooled = with_own_margins(data, chosen)
        of_observations = {v: y for v, (_, y) in pooled.observations.items()}
        kernels = ScaledKernels.of("kernel", kernel, pooled.nodes)
        obs_kernels = ScaledKernels.of("obs_kernel", obs_kernel, of_observations)
        compare = partial(make_comparison, data=data, search=search, own_margins=chosen, in_units_of=both)
        return _Problem(pooled, Given(kernels, obs_kernels, **rest), search, compare, chosen, rule)

    problems = [problem_of(data, chosen) for chosen in ((asked, asked + both) if both else (asked,))]
    problem = min(problems, key=_Problem.first_score) if both else problems[0]
    own = problem.own_margins
    with_front_ends = data if few else with_best_front_ends(data, problem.wide)
    if with_front_ends.front_ends:
        other = problem_of(with_front_ends, own)
        if other.best_first_score() < (1 - search.better) * problem.best_first_score():
            search = of_predictions(search, data.cases)
            problem, data = problem_of(with_front_ends, own), with_front_ends
    may_count = relation == "auto" and not few and _may_count(ridge, obs_ridge, rule, nonnegative)
    if relation == "counts" or (may_count and problem.can_count()):
        counted = problem.with_counts()
        number = sum(len(next(iter(one.samples.values()))) for one in data.cases)
        limit = 1 - search.clear if number >= search.min_cases else 1 + search.same
        gains = relation == "counts" or counted.best_first_score() < limit * problem.best_first_score()
        problem = counted if gains else problem
    kernels = problem.given.kernels
    if few:
        strength = search.strengths[-1] if sharing == "edge" else 0.0
        choice, temperature = Choice(ridge=1e-3, obs_ridge=1e-3, strength=strength), 1.0
        obs_kernels = problem.given.obs_kernels
        rule = ConstantTime() if rule is None else rule
    else:
        found = _search(problem)
        may = sharing == "edge" or (sharing == "auto" and problem.scalar and can_have_own_relations(data))
        choice, temperature, obs_kernels, rule = _with_own(problem, data, found, sharing) if may else found[:-1]
    chosen = Hyperparameters(
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
        own_margins=own,
        relation=problem.relation,
        reweighting=choice.reweighting,
        own_strength=choice.strength or None,
        front_ends=tuple((v, one.kind) for v, one in data.front_ends.items()),
    )
    return chosen, data


def check_words(relation: str, sharing: str) -> None:
    """Raise ValueError unless the estimator of relations and their sharing are known words."""
    given = {"relation": (relation, ("auto", *RELATIONS)), "sharing": (sharing, ("auto", "type", "edge"))}
    for name, (word, known) in given.items():
        _checks.require(word in known, name, f"must be one of {known}", repr(word), "Pass one of them.")


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


class _Problem:
    """The choice of numbers for training data with some margins, and an estimator of relations."""

    def __init__(
        self,
        data: TrainingData,
        given: Given,
        search: Search,
        compare: Callable[..., Comparison],
        own_margins: tuple[int, ...],
        rule: Rule | None,
        relation: str = "ridge",
    ):
        self.rule = rule
        self.relation = relation
        self.data = data
        self.given = given
        self.search = search
        self.compare = compare
        self.own_margins = own_margins
        free = {
            "bandwidth": bool(given.kernels.scales),
            "obs_bandwidth": bool(given.obs_kernels.scales),
            "ridge": given.ridge is None and bool(data.edges),
            "obs_ridge": given.obs_ridge is None and bool(data.observations),
            "ratio": relation == "ridge",
            "power": bool(data.observations),
            "reweighting": any(one.graph.forest is None for one in data.cases),
        }
        self.names = [name for name, varies in free.items() if varies]
        self.starts = {"bandwidth": search.bandwidths, "obs_bandwidth": search.obs_bandwidths, "power": search.powers}
        if relation == "counts":
            self.starts |= {"bandwidth": search.count_bandwidths, "power": (1.0,)}

    def can_count(self) -> bool:
        """Return whether variables are numbers whose kernels are not negative, as weights of counts have to be."""
        if not self.scalar:
            return False
        for v, kernel in self.given.kernels.scaled(1.0).items():
            x = self.data.nodes[v]
            some = x[random_rows(len(x), SOME)]
            if not bool(jnp.all(gram(kernel, some, some) >= 0)):
                return False
        return bool(self.data.edges)

    def with_counts(self) -> "_Problem":
        """Return the same choice for smoothed counts."""
        compare = partial(self.compare, relation="counts")
        return _Problem(self.data, self.given, self.search, compare, self.own_margins, self.rule, "counts")

    @property
    def scalar(self) -> bool:
        """Whether all variables are numbers."""
        return all(x.ndim == 1 for x in self.data.nodes.values())

    @property
    def fine_rank(self) -> int:
        """The rank at which kernels of vectors are compared where a smaller one limits them; 0: at none."""
        most = self.search.fine_rank if self.rule is None else getattr(self.rule, "max_rank", 0)
        return 0 if self.scalar else min(self.search.fine_rank, most)

    @cached_property
    def scores(self) -> "_Scores":
        """The scores of choices."""
        return _Scores(self.compare(given=self.given), self.search, self.scalar)

    def first_score(self) -> float:
        """Return the best score of the first values."""
        return self.scores(_first(self.scores, self.starts, self.names))

    @property
    def wide(self) -> list[int]:
        """The node types of numbers whose observations may have a front end: vectors of many coordinates."""
        given, pairs = self.given, self.data.observations
        chosen = [v for v in given.obs_kernels.scales if v in given.kernels.scales and v not in self.own_margins]
        vectors = [v for v in chosen if pairs[v][1].ndim == 2]
        least = lambda x: max(self.search.wide, 1 + x.size // len(x))
        return [v for v in vectors if pairs[v][1].shape[1] >= least(pairs[v][0])]

    @cached_property
    def compared(self) -> list[tuple[ScaledKernels, "_Scores", dict[str, tuple[float, ...]]]]:
        """Observation kernels, their scores, and first values: with many coordinates, also those of projections."""
        given, search, starts = self.given, self.search, self.starts
        compared = [(given.obs_kernels, self.scores, starts)]
        projected = given.obs_kernels.projected(self.data, given.kernels.scales, search.many)
        if projected is not None:
            comparison = self.compare(given=given, projected=True)
            if comparison.given.obs_kernels.matrices:  # else too few samples are not held out
                of_many = starts | {"obs_bandwidth": search.many_bandwidths}
                compared = [(*compared[0][:2], of_many), (projected, _Scores(comparison, search, self.scalar), starts)]
        return compared

    def best_first_score(self) -> float:
        """Return the best score of the first values of all observation kernels."""
        return min(scores(_first(scores, starts, self.names)) for _, scores, starts in self.compared)


def _with_own(
    problem: _Problem, data: TrainingData, found: tuple[Any, ...], sharing: str
) -> tuple[Choice, float, ScaledKernels, Rule]:
    """Return what was found, or with relations of single edges, if held-out beliefs are better."""
    choice, temperature, obs_kernels, rule, shared = found
    typed, own = with_own_relations(data, 0.0)
    given = eqx.tree_at(lambda g: g.obs_kernels, problem.given, obs_kernels)
    options = {"relation": problem.relation, "projected": bool(obs_kernels.matrices), "own": own}
    comparison = problem.compare(given=given, data=typed, **options)
    score = _Scores(dataclasses.replace(comparison, rank=shared.comparison.rank), problem.search, problem.scalar)
    best = min((choice._replace(strength=value) for value in problem.search.strengths), key=score)
    if sharing == "edge" or score(best) < shared(choice):
        best = _by_coordinates(score, best, ["strength"], 1.0)
    if sharing == "edge" or score(best) < (1 - problem.search.clear) * shared(choice):
        return best, score.temperature(best), obs_kernels, rule
    return choice, temperature, obs_kernels, rule


def _search(problem: _Problem) -> tuple[Choice, float, ScaledKernels, Rule, "_Scores"]:
    """Return the best choice, temperature, observation kernels, rule and scores: search in coarse steps, then fine.

    Where observations have many coordinates, kernels of all of them and of their projections are compared at the start.
    Where kernels of vectors are so narrow that the rank limits them, the search goes on at a larger rank.
    """
    search, names = problem.search, problem.names
    coarse = [(found, score, _coarse(score, starts, names)) for found, score, starts in problem.compared]
    found, score, best = min(coarse, key=lambda one: one[1](one[2]))
    best = _by_coordinates(score, best, [name for name in names if name in search.refined], 0.5)
    rule, rank = ConstantTime() if problem.rule is None else problem.rule, problem.fine_rank
    if rank > score.comparison.rank and score.outcome(best).residual > search.resolved:
        fine = _Scores(dataclasses.replace(score.comparison, rank=rank), search, problem.scalar)
        finer = _by_coordinates(fine, best, [name for name in names if name in search.refined], 0.5)
        if fine(finer) < (1 - search.gain) * score(best):
            score, best, rule = fine, finer, ConstantTime(max_rank=rank) if problem.rule is None else rule
    fix = "Pass kernels and ridges."
    _checks.require(np.isfinite(score(best)), "data", "must give finite beliefs on held-out problems", "NaN", fix)
    return best, score.temperature(best), found, rule, score


def _coarse(score: "_Scores", starts: Mapping[str, tuple[float, ...]], names: list[str]) -> Choice:
    """Return the best choice of a search from the best of the combinations of some values, in coarse steps."""
    return _by_coordinates(score, _first(score, starts, names), names, 1.0)


def _first(score: "_Scores", starts: Mapping[str, tuple[float, ...]], names: list[str]) -> Choice:
    """Return the best of the combinations of some values."""
    varied = {name: values for name, values in starts.items() if name in names}
    choices = (Choice(**dict(zip(varied, values, strict=True))) for values in itertools.product(*varied.values()))
    return min(choices, key=score)


def _by_coordinates(score: "_Scores", best: Choice, names: list[str], root: float) -> Choice:
    """Return the best choice of a search along one number after the other."""
    for _ in range(3):
        before = best
        for name in names:
            best = _line(score, best, name, root)
        if best == before:
            break
    return best


class _Scores:
    """The scores of choices on held-out problems, each computed once."""

    def __init__(self, comparison: Comparison, search: Search, penalized: bool = True):
        self.comparison = comparison
        self.penalized = penalized  # where bases are not resolved
        self.search = search
        self.tried: dict[Choice, Outcome] = {}

    def outcome(self, choice: Choice) -> Outcome:
        """Return how good the beliefs of a choice are; scores that are not finite are infinite."""
        if choice not in self.tried:
            dtype = jnp.result_type(float)
            found = jax.device_get(evaluate(self.comparison, Choice(*(jnp.asarray(value, dtype) for value in choice))))
            scores = np.where(np.isfinite(found.scores), np.asarray(found.scores, float), np.inf)
            self.tried[choice] = found._replace(scores=scores)
        return self.tried[choice]

    def __call__(self, choice: Choice) -> float:
        """Return the score at the best temperature, with penalties for what was not resolved."""
        found = self.outcome(choice)
        unresolved = max(0.0, float(found.residual) - self.search.resolved) if self.penalized else 0.0
        unresolved += 0.0 if bool(found.converged) else self.search.unconverged
        return float(np.min(found.scores)) * (1 + unresolved)

    def temperature(self, choice: Choice) -> float:
        """Return, of the temperatures that score about as well as the best, the one whose regions hold as they should.

        The energy score is flat around its minimum, while the share of true values inside of a region is not.
        """
        found, search = self.outcome(choice), self.search
        flat = found.scores <= (1 + search.flat) * np.min(found.scores)
        gaps = np.where(flat, np.abs(found.inside - search.inside), np.inf)
        right = np.flatnonzero(gaps <= np.min(gaps) + search.tie)
        return min((search.temperatures[number] for number in right), key=lambda one: abs(np.log(one)))


def _line(score: "_Scores", best: Choice, name: str, root: float) -> Choice:
    """Return the best choice along one number: steps in either direction as long as they gain."""
    for step in _steps(name, root, score.search):
        moved = False
        while (following := step(best)) is not None and score(following) < (1 - score.search.gain) * score(best):
            best, moved = following, True
        if moved:
            break
    return best


def _steps(name: str, root: float, search: Search) -> Iterator[Callable[[Choice], Choice | None]]:
    """Yield functions that change one number of a choice; they return None outside of its range."""
    if name == "ratio":
        yield lambda choice: choice._replace(ratio=1.0) if choice.ratio == 0 else None
        yield lambda choice: choice._replace(ratio=0.0) if choice.ratio == 1 else None
        return
    low, high, factor = (getattr(of, name) for of in (search.lowest, search.highest, search.factors))
    for change in (factor**-root, factor**root):

        def step(choice: Choice, change: float = change) -> Choice | None:
            value = getattr(choice, name) * change
            return choice._replace(**{name: value}) if low * 0.99 <= value <= high * 1.01 else None

        yield step


def own_margin_types(
    data: TrainingData, chosen: Sequence[int], margins: str | Mapping[int, str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the node types that have own margins, and those that may; warn of others whose nodes differ strongly.

    Args:
        data: the training data.
        chosen: node types whose kernels are chosen.
        margins: as in `fit`.
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
    candidates = [v for v in numbers if _exceeds(differ[v], SHIFT, SPREAD)]
    for v in sorted(set(differ) - set(candidates)):
        if _exceeds(differ[v], STRONG_SHIFT, STRONG_SPREAD):
            shift, spread = differ[v]
            got = f"{shift:.0%} of the variance is between them, and their scales differ by {np.exp(spread):.2g} times"
            text = f"nodes of type {v} differ, and their relations are learned together: {got}"
            warn(f"{text}. Pass margins='node' to fit, or give them node types.", MarginWarning)
    return tuple(asked), tuple(candidates)


def _exceeds(found: tuple[float, float], shift: float, spread: float) -> bool:
    return found[0] > shift or found[1] > spread
