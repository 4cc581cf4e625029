"""Optimize the numbers of `Hyperparameters` by gradient descent on a loss of the beliefs.

Each step fits a model, passes messages and differentiates through both. The selection of landmarks has no gradient:
landmarks are fixed for a few steps and then selected again. Positive numbers are optimized by their logarithms.
"""

import dataclasses
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial
from jaxtyping import Array, PRNGKeyArray

from kbpjax import _checks
from kbpjax._misc import show_lines
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.rules import Rule
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.losses import SquaredError
from kbpjax.tuning.parameters import FreeNumbers, descend


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        hyperparameters: those with the lowest validation loss.
        model: the model fitted with these hyperparameters.
        losses: loss of each step [step].
        checks: {step: validation loss before the step, with newly selected landmarks}.
        history: {name of an optimized number: its values before each step [step, ...]}.
        stopped: stop reason: "all steps done", "no better", "interrupted" or "not finite".

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(2), *np.linspace(-1, 1, 20).reshape(2, 5, 2))
        >>> best = kbp.Hyperparameters(kbp.RBF(0.5), kbp.RBF(0.5), ridge=2e-3, rule=kbp.FullRank())
        >>> losses, checks, ridges = np.array([1.0, 0.8]), {0: 1.0, 2: 0.75}, np.array([1e-3, 2e-3])
        >>> tuned = kbp.Tuned(best, best.fit(data), losses, checks, {"ridge": ridges}, "all steps done")
        >>> min(tuned.checks.values()) / tuned.checks[0]  # validation loss relative to the start
        0.75
        >>> tuned.history["ridge"].tolist(), round(float(tuned.hyperparameters.ridge), 4)
        ([0.001, 0.002], 0.002)
    """

    hyperparameters: Hyperparameters
    model: KernelMRF
    losses: np.ndarray
    checks: dict[int, float]
    history: dict[str, np.ndarray]
    stopped: str

    def plot(self, *, axes: Any = None) -> Any:
        """Plot the losses, and the optimized numbers relative to their first values; return the two axes.

        Args:
            axes: two matplotlib axes; None: a new figure. Needs matplotlib: pip install 'kbpjax[plot]'.
        """
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(10, 4), layout="constrained").subplots(1, 2)
        left, right = axes
        left.plot(self.losses, color="0.6", label="of a step")
        left.plot(list(self.checks), list(self.checks.values()), "o-", color="#0072B2", label="validation")
        left.set(xlabel="step", ylabel="loss")
        left.legend()
        for name, values in self.history.items():
            curves = values.reshape(len(values), -1)
            ratios = curves / np.where(curves[:1] == 0, np.nan, curves[:1])  # undefined for a start at 0
            right.plot(ratios, label=[name, *[None] * (ratios.shape[1] - 1)])
        right.set(xlabel="step", ylabel="multiple of the first value", yscale="log")
        if self.history:
            right.legend(fontsize="small", ncols=2)
        return left, right

    def __repr__(self) -> str:
        first, best = next(iter(self.checks.values()), math.nan), min(self.checks.values(), default=math.nan)
        losses = f"validation loss {first:.4g} at the start, {best:.4g} at best"
        return show_lines("Tuned", [f"{losses}, {len(self.losses)} steps ({self.stopped})", repr(self.hyperparameters)])


@public
def tune(
    hyperparameters: Hyperparameters,
    data: TrainingData,
    graph: Graph,
    truth: Any,
    observations: Any,
    points: Any,
    *,
    loss: Callable[[Any, Any], Array] = SquaredError(),
    validation: tuple[Any, Any] | None = None,
    frozen: Callable[[Hyperparameters], Any] = lambda hyperparameters: (),
    answer: Callable[..., Any] = Hyperparameters.answer,
    steps: int = 60,
    optimizer: optax.GradientTransformation | None = None,
    every: int = 15,
    batch: int | None = None,
    patience: int = 3,
    key: PRNGKeyArray | None = None,
    progress: bool = True,
) -> Tuned:
    """Return hyperparameters optimized by gradient descent on a loss of the beliefs, and their model.

    The optimized numbers are bandwidths, ridges, floor, damping, exponents, evidence power and temperature. Each step
    fits a model to `data`, infers beliefs from `observations` and compares them with `truth`. An interrupt (Ctrl-C)
    ends the descent and returns the best hyperparameters so far.

    Args:
        hyperparameters: initial hyperparameters. Kernel parameters are optimized by their logarithms, or directly if an
            entry is <= 0. Damping and floor are optimized by their logits. Other numbers that are 0 stay 0.
        data: training data of the model.
        graph: graph of the validation problems.
        truth: true values [case, node, *dim], NaN where unknown; {node type: [case, node_of_type, *dim]} if `points` is
            a mapping.
            Prefer samples that are not in `data`: a model is overconfident on its training data, and hyperparameters
            tuned there give intervals that are too narrow on new data.
        observations: observations of the truth [case, node, *obs_dim] (or by node type), or a function
            key -> observations, which draws new observations in every step.
        points: evaluation points of the beliefs, as in `beliefs`.
        loss: `SquaredError()`, `NegativeLogBelief()`, `IntervalScore(coverage)`, or a function (belief, truth of one
            case) -> number.
        validation: (truth, observations) for selecting the best hyperparameters. None: the training cases, with one
            new draw of the observations if `observations` is a function.
        frozen: function that returns the parts of the hyperparameters to keep fixed.
        answer: function (hyperparameters, model, graph, observations of one case, points) -> first argument of `loss`.
        steps: maximum number of steps, >= 1.
        optimizer: optax optimizer; None: Adam with learning rate 0.08 and cosine decay to a tenth of it.
        every: number of steps between selections of landmarks and evaluations of the validation loss, >= 1.
        batch: number of cases per step, drawn at random; None: all cases.
        patience: number of checks without a lower validation loss before stopping, >= 1.
        key: random key of noise and batches; None: `jax.random.key(0)`.
        progress: whether to show a progress bar if standard error is a terminal (and tqdm is installed).

    Returns:
        The best hyperparameters, their model, and the history of the descent.

    Raises:
        ValueError: an option is out of range or no key, numbers of cases differ, or the initial loss is not finite.

    Examples:
        >>> import jax, numpy as np, kbpjax as kbp
        >>> rng = np.random.default_rng(0)
        >>> graph, x = kbp.chain_graph(8), np.cumsum(rng.normal(size=(40, 8)), axis=1)
        >>> data = kbp.pool(graph, x[:30], observations=x[:30] + rng.normal(size=(30, 8)))
        >>> start = kbp.Hyperparameters(kbp.RBF(3.0), kbp.RBF(3.0), ridge=1e-3, num_iters=3)
        >>> noisy = lambda key: x[30:] + jax.random.normal(key, (10, 8))
        >>> tuned = kbp.tune(start, data, graph, x[30:], noisy, np.linspace(-8, 8, 33), steps=6, every=3)
        >>> len(tuned.losses), sorted(tuned.checks), tuned.stopped
        (6, [0, 3, 6], 'all steps done')
    """
    for name, count in {"steps": steps, "every": every, "patience": patience}.items():
        _checks.require_count(name, count)
    key = _checks.random_key(key)
    learned = FreeNumbers.of(hyperparameters, frozen)
    cases = _Cases.of(truth, observations, validation, batch, key)

    def of_cases(free: list[Array], rule: Rule, data: TrainingData, graph: Graph, truth: Any, y: Any) -> Array:
        """Return the mean loss over cases."""
        current = dataclasses.replace(learned.hyperparameters(free), rule=rule)
        model = current.fit(data)
        return jnp.mean(jax.vmap(lambda x, y: loss(answer(current, model, graph, y, points), x))(truth, y))

    chosen = _adam(steps) if optimizer is None else optimizer
    validate, advance = _compiled(learned, of_cases, chosen)
    given = {"data": data, "graph": graph, "cases": cases}  # as arguments: constants would be compiled in
    search = _Search(learned, data, partial(validate, **given), partial(advance, **given))
    search.descend(chosen.init(learned.free()), _bar(steps, progress), every, patience)
    best = learned.hyperparameters(search.best)
    history = {name: np.stack(values) for name, values in search.history.items() if values}
    return Tuned(best, best.fit(data), np.asarray(search.losses), search.checks, history, search.stopped)


def _adam(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(0.08, steps, alpha=0.1))


class _Cases(eqx.Module):
    """Training and validation cases: true values and observations."""

    truth: Any
    observations: Any
    validation: tuple[Any, Any]
    batch: int = eqx.field(static=True)
    key: Array

    @classmethod
    def of(cls, truth: Any, observations: Any, validation: Any, batch: int | None, key: PRNGKeyArray) -> "_Cases":
        """Return checked cases; all arrays must have the same number of cases."""
        truth = jax.tree.map(jnp.asarray, truth)
        count = _count("truth", truth)
        key, held_out = jax.random.split(key)
        if not callable(observations):
            observations = jax.tree.map(jnp.asarray, observations)
        elif not isinstance(observations, Partial):
            observations = Partial(observations)
        if validation is None:
            validation = truth, observations(held_out) if callable(observations) else observations
            _same_count("observations", validation[1], count)
        validation = jax.tree.map(jnp.asarray, tuple(validation))
        _same_count("validation", validation[1], _count("validation", validation[0]))
        batch = count if batch is None else batch
        _checks.require_count("batch", batch)
        _checks.require(batch <= count, "batch", f"must be at most the {count} cases", batch, "Pass None for all.")
        return cls(truth, observations, validation, batch, key)

    def draw(self, step: Array) -> tuple[Any, Any]:
        """Return the true values and observations of one step."""
        noise, choice = jax.random.split(jax.random.fold_in(self.key, step))
        observations = self.observations(noise) if callable(self.observations) else self.observations
        count = _count("truth", self.truth)
        _same_count("observations", observations, count)
        if self.batch == count:
            return self.truth, observations
        rows = jax.random.choice(choice, count, (self.batch,), replace=False)
        return jax.tree.map(lambda a: a[rows], (self.truth, observations))


def _count(argument: str, cases: Any) -> int:
    leaves = jax.tree.leaves(cases)
    fix = "Pass arrays [case, node, ...]; a single case as x[None]."
    counts = sorted({len(a) if jnp.ndim(a) else 0 for a in leaves})
    rule = "must have the same number of cases in all arrays, at least 1"
    _checks.require(len(counts) == 1 and counts[0] > 0, argument, rule, counts, fix)
    return counts[0]


def _same_count(argument: str, cases: Any, count: int) -> None:
    got = _count(argument, cases)
    _checks.require(got == count, argument, f"must have {count} cases, as truth", got, "Pass one per true case.")


def _compiled(
    learned: FreeNumbers, of_cases: Callable[..., Array], optimizer: optax.GradientTransformation
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two compiled functions: the validation loss, and a gradient step."""

    @jax.jit
    def validate(free: list[Array], rule: Rule, data: TrainingData, graph: Graph, cases: _Cases) -> Array:
        return of_cases(free, rule, data, graph, *cases.validation)

    @jax.jit
    def advance(
        free: list[Array], state: Any, rule: Rule, step: Array, data: TrainingData, graph: Graph, cases: _Cases
    ) -> tuple[list[Array], Any, Array]:
        value, slopes = jax.value_and_grad(of_cases)(free, rule, data, graph, *cases.draw(step))
        finite = jnp.isfinite(value) & jnp.all(jnp.stack([jnp.all(jnp.isfinite(slope)) for slope in slopes]))
        free, state = descend(optimizer, slopes, state, free)
        return free, state, jnp.where(finite, value, jnp.nan)

    return validate, advance


@dataclasses.dataclass
class _Search:
    """State of the descent; it survives an interrupt."""

    learned: FreeNumbers
    data: TrainingData
    validate: Callable[..., Array]
    advance: Callable[..., Any]

    def __post_init__(self) -> None:
        self.best = self.learned.free()
        self.losses: list[float] = []
        self.checks: dict[int, float] = {}
        self.history: dict[str, list[np.ndarray]] = {name: [] for name in self.learned.names}
        self.stopped = "all steps done"

    def descend(self, state: Any, bar: Any, every: int, patience: int) -> None:
        """Take steps, and evaluate the validation loss every few steps."""
        try:
            self._descend(state, bar, every, patience)
        except KeyboardInterrupt:
            self.stopped = "interrupted"

    def _descend(self, state: Any, bar: Any, every: int, patience: int) -> None:
        free, rule = self.best, None
        for step in bar:
            if step % every == 0:
                rule = self._validate(free, step)
                values = list(self.checks.values())
                if len(values) - 1 - int(np.nanargmin(values)) >= patience:
                    self.stopped = "no better"
                    return
            for name, value in zip(self.learned.names, self.learned.values(free), strict=True):
                self.history[name].append(np.asarray(value))
            free, state, value = self.advance(free, state, rule, jnp.int32(step))
            self.losses.append(float(value))
            if not np.isfinite(self.losses[-1]):
                self.stopped = "not finite"
                return
            if hasattr(bar, "set_postfix"):
                bar.set_postfix(loss=f"{self.losses[-1]:.4g}", best=f"{min(self.checks.values()):.4g}")
        self._validate(free, len(self.losses))

    def _validate(self, free: list[Array], step: int) -> Any:
        """Select landmarks, evaluate the validation loss, keep the best parameters; return the rule."""
        rule = self.learned.hyperparameters(free).fix_landmarks(self.data, pad=True)
        value = self.validate(free, rule)
        fix = "Start with wider bandwidths, or a larger ridge or floor."
        ok = step > 0 or bool(jnp.isfinite(value))
        _checks.require(ok, "hyperparameters", "must give a finite validation loss", f"{value}", fix)
        if not self.checks or value < min(self.checks.values()):
            self.best = free
        self.checks[step] = float(value)
        return rule


def _bar(steps: int, progress: bool) -> Any:
    """Return a progress bar over steps if standard error is a terminal, else a range."""
    if not (progress and sys.stderr.isatty()):
        return range(steps)
    try:
        from tqdm import tqdm
    except ImportError:
        return range(steps)
    return tqdm(range(steps), desc="tune")
