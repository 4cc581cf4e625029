"""Optimize the numbers of `Hyperparameters` by gradient descent on a loss of the beliefs.

Each step fits a model, passes messages until they converge, and differentiates both, the messages at their fixed point.
The selection of landmarks has no gradient: landmarks are fixed for a few steps and then selected again. Positive
numbers are optimized by their logarithms. A step on a large graph uses a part of it (`kbpjax.tuning.parts`).
"""

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial
from jaxtyping import Array, PRNGKeyArray

from kbpjax import _checks
from kbpjax._misc import by_value, quick_jit, show_lines
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.schedules import Colored
from kbpjax.learning.checkpoint import Checkpoint, digest
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.rules import Rule
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.losses import SquaredError
from kbpjax.tuning.parameters import FreeNumbers, descend
from kbpjax.tuning.parts import Part, part_of

NODES = 2000
"""Number of nodes that are used of a larger graph."""

RETRIES = 8
"""Number of steps in a row without a finite gradient after which the descent ends."""


@by_value
@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        hyperparameters: those with the lowest validation loss.
        model: the model fitted with these hyperparameters.
        losses: loss of each step [step]; NaN where it or its gradient was not finite, because messages did not
            converge: the next step is then taken halfway back, or from the start, halfway to larger ridges and floor.
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

    @property
    def retried(self) -> int:
        """Number of steps without a finite loss or gradient, which were retried halfway back."""
        return int(np.sum(np.isnan(self.losses)))

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
        steps = f"{len(self.losses)} steps" + (f", {self.retried} of them retried" if self.retried else "")
        return show_lines("Tuned", [f"{losses}, {steps} ({self.stopped})", repr(self.hyperparameters)])


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
    steps: int = 30,
    optimizer: optax.GradientTransformation | None = None,
    every: int = 10,
    batch: int | None = None,
    nodes: int | None = None,
    patience: int = 3,
    key: PRNGKeyArray | None = None,
    progress: bool = True,
    checkpoint: str | os.PathLike | None = None,
) -> Tuned:
    """Return hyperparameters optimized by gradient descent on a loss of the beliefs, and their model.

    The optimized numbers are bandwidths, ridges, floor, damping, exponents, evidence power and temperature. Each step
    fits a model to `data`, infers beliefs from `observations` and compares them with `truth`. Messages are those of
    `infer`, at their fixed point, unless the hyperparameters have a schedule. A step whose loss or gradient is not
    finite, because messages did not converge, is retried halfway back to the last one that was; before there is one,
    halfway to ridges that are 1000 times and a floor that is 100 times larger.

    On graphs with more than 2000 nodes, steps use a part of the graph, if messages are iterated to `tol`. An interrupt
    (Ctrl-C) ends the descent and returns the best hyperparameters so far, or raises KeyboardInterrupt before the first
    check.

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
        optimizer: optax optimizer; None: Adam with learning rate 0.2 and cosine decay to a tenth of it.
        every: number of steps between selections of landmarks and evaluations of the validation loss, >= 1.
        batch: number of cases per step, drawn at random; None: all cases.
        nodes: number of nodes that are used of a larger graph: three connected pieces at random places (from `key`), of
            which nodes within 4 edges of the rest are not scored if `truth` has floats. `answer` gets the graph of this
            part. None: 2000 with the default `answer`, else all, as for hyperparameters with exponents of single edges,
            the schedule of one graph, or without `tol`: the best number of iterations depends on the distance to the
            rest.
        patience: number of checks without a lower validation loss before stopping, >= 1.
        key: random key of noise and batches; None: `jax.random.key(0)`.
        progress: whether to show a progress bar if standard error is a terminal (and tqdm is installed).
        checkpoint: path of a checkpoint, written after every step. The same call with the file resumes after the last
            step and gives the same result; a finished file gives it without steps. Functions are compared by name
            only: delete the file when `loss`, `answer` or `observations` compute something else. None: no checkpoint.

    Returns:
        The best hyperparameters, their model, and the history of the descent.

    Raises:
        ValueError: an option is out of range or no key, numbers of cases differ, the initial loss is not finite, or the
            checkpoint has other data or options or is not a checkpoint.

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
    data = hyperparameters.standardized(data)
    learned = FreeNumbers.of(hyperparameters, frozen)
    nodes = _nodes(nodes, hyperparameters, answer)
    part = None if nodes is None or nodes >= graph.num_nodes else part_of(graph, nodes, _checks.host_seed(key))
    cases = _Cases.of(truth, observations, validation, batch, part, key)
    of_steps = graph if part is None else part.graph

    def of_cases(free: list[Array], rule: Rule, data: TrainingData, truth: Any, y: Any) -> Array:
        """Return the mean loss over cases."""
        current = dataclasses.replace(learned.hyperparameters(free), rule=rule)
        model = current.fit(data)
        return jnp.mean(jax.vmap(lambda x, y: loss(answer(current, model, of_steps, y, points), x))(truth, y))

    options = {"hyperparameters": hyperparameters, "data": data, "graph": graph, "points": points}
    options |= {"truth": cases.truth, "observations": cases.observations, "validation": cases.validation}
    options |= {"loss": loss, "answer": answer, "frozen numbers": learned.names}
    options |= {"steps": steps, "every": every, "batch": cases.batch, "nodes": nodes, "patience": patience}
    digests = {name: digest(value) for name, value in options.items()} if checkpoint is not None else {}
    saved = Checkpoint(checkpoint, digests | {"key": _checks.words_of_key(key)}, Descent)
    chosen = _adam(steps) if optimizer is None else optimizer
    validate, advance = _compiled(of_cases, chosen)
    given = {"data": data, "cases": cases}  # as arguments: constants would be compiled in
    search = _Search(learned, data, chosen, partial(validate, **given), partial(advance, **given), saved)
    stopped = search.descend(progress_bar(steps, progress, len(search.state.losses)), every, patience)
    model = _fit(search.best, data, stopped == "interrupted")
    history = dict(zip(learned.names, search.state.of("history"), strict=True)) if search.state.losses else {}
    return Tuned(search.best, model, np.asarray(search.state.losses), dict(search.state.checks), history, stopped)


def _adam(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(0.2, steps, alpha=0.1))


def _nodes(nodes: int | None, hyperparameters: Hyperparameters, answer: Callable[..., Any]) -> int | None:
    """Return the number of nodes that are used of a larger graph; None: all."""
    schedule, exponents = hyperparameters.schedule, hyperparameters.exponents
    one_graph = isinstance(schedule, Colored) or getattr(exponents, "ndim", 0) == 1
    if nodes is None:
        own = bool(hyperparameters.own_margins)  # of the nodes of the whole graph
        whole = own or one_graph or hyperparameters.tol is None or answer is not Hyperparameters.answer
        return None if whole else NODES
    _checks.require_count("nodes", nodes)
    fix = "Leave nodes out, or pass exponents by edge type and no colored schedule."
    rule = "must be None with exponents of single edges or the schedule of one graph"
    _checks.require(not one_graph, "nodes", rule, nodes, fix)
    return nodes


class _Cases(eqx.Module):
    """Training and validation cases: true values and observations; of a part of the graph, or all of it."""

    truth: Any
    observations: Any
    validation: tuple[Any, Any]
    part: Part | None
    batch: int = eqx.field(static=True)
    key: Array

    @classmethod
    def of(
        cls,
        truth: Any,
        observations: Any,
        validation: Any,
        batch: int | None,
        part: Part | None,
        key: PRNGKeyArray,
    ) -> "_Cases":
        """Return checked cases; all arrays must have the same number of cases."""
        truth = _checks.as_arrays("truth", truth)
        count = _count("truth", truth)
        key, held_out = jax.random.split(key)
        fix = "Pass an array, or a function of a random key."
        _checks.require(not isinstance(observations, type), "observations", "must be no class", observations, fix)
        if not callable(observations):
            observations = _checks.as_arrays("observations", observations)
        elif not isinstance(observations, Partial):
            observations = Partial(observations)
        if validation is None:
            validation = truth, observations(held_out) if callable(observations) else observations
            _same_count("observations", validation[1], count)
        ok = isinstance(validation, tuple | list) and len(validation) == 2
        got, fix = type(validation).__name__, "Pass validation=(truth, observations)."
        _checks.require(ok, "validation", "must be a pair of true values and observations", got, fix)
        validation = tuple(_checks.as_arrays(f"validation[{i}]", values) for i, values in enumerate(validation))
        _same_count("validation", validation[1], _count("validation", validation[0]))
        batch = count if batch is None else batch
        _checks.require_count("batch", batch)
        _checks.require(batch <= count, "batch", f"must be at most the {count} cases", batch, "Pass None for all.")
        if part is not None:
            truth, validation = part.truth(truth), (part.truth(validation[0]), part.cut(validation[1]))
            observations = observations if callable(observations) else part.cut(observations)
        return cls(truth, observations, validation, part, batch, key)

    def draw(self, step: Array) -> tuple[Any, Any]:
        """Return the true values and observations of one step."""
        noise, choice = jax.random.split(jax.random.fold_in(self.key, step))
        observations, count = self.observations, _count("truth", self.truth)
        if callable(observations):
            observations = observations(noise)
            _same_count("observations", observations, count)
            observations = observations if self.part is None else self.part.cut(observations)
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


def _compiled(of_cases: Callable[..., Array], optimizer: optax.GradientTransformation) -> tuple[Callable, Callable]:
    """Return two functions: the validation loss, and a gradient step."""
    loss, loss_and_slopes = quick_jit(of_cases), quick_jit(jax.value_and_grad(of_cases))
    draw = jax.jit(_Cases.draw)

    def validate(free: list[Array], rule: Rule, data: TrainingData, cases: _Cases) -> Array:
        if _count("validation", cases.validation[0]) == cases.batch:  # with unused slopes, for one compilation less
            return loss_and_slopes(free, rule, data, *cases.validation)[0]
        return loss(free, rule, data, *cases.validation)

    @jax.jit
    def move(
        free: list[Array], good: list[Array], state: Any, value: Array, slopes: list[Array]
    ) -> tuple[list[Array], list[Array], Any, Array]:
        finite = jnp.isfinite(value) & jnp.all(jnp.stack([jnp.all(jnp.isfinite(slope)) for slope in slopes]))
        middle = jax.tree.map(lambda one, other: (one + other) / 2, free, good)
        moved = (*descend(optimizer, slopes, state, free), free)
        free, state, good = jax.tree.map(partial(jnp.where, finite), moved, (middle, state, good))
        return free, good, state, jnp.where(finite, value, jnp.nan)

    def advance(
        free: list[Array], good: list[Array], state: Any, rule: Rule, step: Array, data: TrainingData, cases: _Cases
    ) -> tuple[list[Array], list[Array], Any, Array]:
        return move(free, good, state, *loss_and_slopes(free, rule, data, *draw(cases, step)))

    return validate, advance


@dataclasses.dataclass(frozen=True)
class Descent:
    """State of the descent, the content of a checkpoint; it is replaced as a whole, so an interrupt leaves it valid.

    Attributes:
        losses: loss of each step.
        checks: step and validation loss of each check.
        stopped: why the descent has ended; "": it has not.
        arrays: unconstrained numbers: `free`, the last `good` ones, with a finite gradient (before there are any,
            those of `FreeNumbers.smoother`), those of the `last` check and the `best` ones; leaves of the `optimizer`;
            `history` of the optimized numbers.
    """

    FORMAT: ClassVar[str] = "kbpjax.tune 2"
    losses: tuple[float, ...] = ()
    checks: tuple[tuple[int, float], ...] = ()
    stopped: str = ""
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)

    def of(self, name: str) -> list[Any]:
        """Return the arrays of a name, in order."""
        return [self.arrays[key] for key in self.arrays if key.startswith(f"{name}/")]

    def replace(self, lists: Mapping[str, Sequence[Any]], **changes: Any) -> "Descent":
        """Return a state with other lists of arrays and other fields."""
        arrays = {f"{name}/{i}": value for name, values in lists.items() for i, value in enumerate(values)}
        return dataclasses.replace(self, arrays={**self.arrays, **arrays}, **changes)


@dataclasses.dataclass
class _Search:
    """The descent, with its state."""

    learned: FreeNumbers
    data: TrainingData
    optimizer: optax.GradientTransformation
    validate: Callable[..., Array]
    advance: Callable[..., Any]
    saved: Checkpoint

    def __post_init__(self) -> None:
        self.state = self.saved.load()
        free = self.learned.free()
        leaves, self.structure = jax.tree.flatten(self.optimizer.init(free))
        if not self.state.arrays:
            history = [np.empty((0, *np.shape(value))) for value in self.learned.values(free)]
            lists = {"free": free, "good": self.learned.smoother(), "last": free, "best": free}
            lists |= {"optimizer": leaves, "history": history}
            self.state = self.state.replace(lists)
        shapes = [np.shape(leaf) for leaf in leaves]
        same = [np.shape(leaf) for leaf in self.state.of("optimizer")] == shapes
        fix = "Delete the file to restart, pass another path, or pass the saved options."
        got = f"another optimizer in {self.saved.path}"
        _checks.require(same, "checkpoint", "must have been written with the same options", got, fix)

    @property
    def best(self) -> Hyperparameters:
        """The hyperparameters with the lowest validation loss."""
        return self.learned.hyperparameters(_on_device(self.state.of("best")))

    def descend(self, bar: Any, every: int, patience: int) -> str:
        """Take steps, and evaluate the validation loss every few steps; return the stop reason."""
        try:
            if not self.state.stopped:
                self._descend(bar, every, patience)
        except KeyboardInterrupt as stop:
            if not self.state.checks:  # there is nothing to return
                raise
            self.saved.resumable(stop, f"{len(self.state.losses)} steps are kept")
            return "interrupted"
        return self.state.stopped

    def _descend(self, bar: Any, every: int, patience: int) -> None:
        rule = None
        for step in bar:
            if step % every == 0 and step not in dict(self.state.checks):
                rule = self._check(step)
                values = [value for _, value in self.state.checks]
                if len(values) - 1 - int(np.nanargmin(values)) >= patience:
                    self._keep(self.state.replace({}, stopped="no better"))
                    return
            rule = self._rule("last") if rule is None else rule
            self._step(rule, step)
            if not np.isfinite(self.state.losses[-RETRIES:]).any() and len(self.state.losses) >= RETRIES:
                self._keep(self.state.replace({}, stopped="not finite"))
                return
            if hasattr(bar, "set_postfix"):
                lowest = min(value for _, value in self.state.checks)
                bar.set_postfix(loss=f"{self.state.losses[-1]:.4g}", best=f"{lowest:.4g}")
        if len(self.state.losses) not in dict(self.state.checks):
            self._check(len(self.state.losses))
        self._keep(self.state.replace({}, stopped="all steps done"))

    def _step(self, rule: Rule, step: int) -> None:
        """Take one gradient step."""
        free, good, state = (_on_device(self.state.of(name)) for name in ("free", "good", "optimizer"))
        pairs = zip(self.state.of("history"), self.learned.values(free), strict=True)
        history = [np.concatenate([before, np.asarray(value)[None]]) for before, value in pairs]
        state = jax.tree.unflatten(self.structure, state)
        free, good, state, value = self.advance(free, good, state, rule, jnp.int32(step))
        lists = {"free": free, "good": good, "optimizer": jax.tree.leaves(state), "history": history}
        self._keep(self.state.replace(lists, losses=(*self.state.losses, float(value))))

    def _rule(self, name: str) -> Any:
        return self.learned.hyperparameters(_on_device(self.state.of(name))).fix_landmarks(self.data, pad=True)

    def _check(self, step: int) -> Any:
        """Select landmarks, evaluate the validation loss, keep the best parameters; return the rule."""
        rule, free = self._rule("free"), self.state.of("free")
        value = float(self.validate(_on_device(free), rule))
        fix = "Start with wider bandwidths, or a larger ridge or floor."
        ok = step > 0 or bool(np.isfinite(value))
        _checks.require(ok, "hyperparameters", "must give a finite validation loss", f"{value}", fix)
        better = value < min((value for _, value in self.state.checks), default=math.inf)
        lists = {"last": free, "best": free} if better else {"last": free}
        self._keep(self.state.replace(lists, checks=(*self.state.checks, (step, value))))
        return rule

    def _keep(self, state: Descent) -> None:
        self.state = state
        self.saved.save(state)


def _on_device(arrays: Sequence[Any]) -> list[Array]:
    return [_checks.to_jax(array) for array in arrays]


def _fit(best: Hyperparameters, data: TrainingData, interrupted: bool) -> KernelMRF:
    """Fit the model, and once more after the first interrupt: it is short, and the descent would be lost."""
    try:
        return best.fit(data)
    except KeyboardInterrupt:
        if interrupted:
            raise
        return best.fit(data)


def progress_bar(steps: int, progress: bool, start: int = 0, name: str = "tune") -> Any:
    """Return a progress bar over the steps from `start` on if standard error is a terminal, else a range."""
    todo = range(start, steps)
    if not (progress and sys.stderr.isatty()):
        return todo
    try:
        from tqdm import tqdm
    except ImportError:
        return todo
    return tqdm(todo, desc=name, initial=start, total=steps)
