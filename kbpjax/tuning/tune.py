"""Learn the numbers of `Hyperparameters` by gradient descent on the error of the answers that they lead to.

Each step learns the model anew, passes messages and differentiates through all of it. Landmarks, whose choice has no
gradient, are held for a few steps and then chosen again. What must be positive is learned by its logarithm.
"""

import dataclasses
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
from jaxtyping import Array

from kbpjax import _checks
from kbpjax.graphs.graph import Graph
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.rules import Rule
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.losses import SquaredError
from kbpjax.tuning.parameters import Numbers, descend


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What `tune` found.

    Attributes:
        settings: those of least validation loss.
        model: the model that they lead to.
        losses: loss at each step [step].
        checks: {step: validation loss of the settings before that step, with landmarks chosen anew}.
        history: {name of a number: its values before each step [step, ...]}, of those that were learned.
        stopped: why it ended: "all steps done", "no better", "interrupted" or "not finite".

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> data = kbp.pool(kbp.chain_graph(2), *np.linspace(-1, 1, 20).reshape(2, 5, 2))
        >>> settings = kbp.Hyperparameters(kbp.RBF(0.5), kbp.RBF(0.5), ridge=2e-3, rule=kbp.FullRank())
        >>> losses, checks, ridges = np.array([1.0, 0.8]), {0: 1.0, 2: 0.75}, np.array([1e-3, 2e-3])
        >>> tuned = kbp.Tuned(settings, settings.fit(data), losses, checks, {"ridge": ridges}, "all steps done")
        >>> min(tuned.checks.values()) / tuned.checks[0]  # validation loss, as a share of that at the start
        0.75
        >>> tuned.history["ridge"].tolist(), round(float(tuned.settings.ridge), 4)
        ([0.001, 0.002], 0.002)
    """

    settings: Hyperparameters
    model: KernelMRF
    losses: np.ndarray
    checks: dict[int, float]
    history: dict[str, np.ndarray]
    stopped: str

    def plot(self, *, axes: Any = None) -> Any:
        """Draw the losses, and the numbers as multiples of their first values; return the two axes.

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
            shares = curves / np.where(curves[:1] == 0, np.nan, curves[:1])  # of what starts at 0 there are none
            right.plot(shares, label=[name, *[None] * (shares.shape[1] - 1)])
        right.set(xlabel="step", ylabel="multiple of the first value", yscale="log")
        if self.history:
            right.legend(fontsize="small", ncols=2)
        return left, right


def tune(
    settings: Hyperparameters,
    data: TrainingData,
    graph: Graph,
    truth: Any,
    observations: Any,
    points: Any,
    *,
    loss: Callable[[Any, Any], Array] = SquaredError(),
    validation: tuple[Any, Any] | None = None,
    frozen: Callable[[Hyperparameters], Any] = lambda settings: (),
    answer: Callable[..., Any] = Hyperparameters.answer,
    steps: int = 60,
    optimizer: optax.GradientTransformation | None = None,
    every: int = 15,
    batch: int | None = None,
    patience: int = 3,
    seed: int = 0,
    progress: bool = True,
) -> Tuned:
    """Learn bandwidths, ridges, floor, damping, exponents and temperature by gradient descent on the error of answers.

    The model is learned from `data`; the loss is of answers on other draws: observations of `truth` that the data do
    not hold, or fresh noise at each step. An interrupt (Ctrl-C) ends it with the best that was found so far.

    Args:
        settings: where to start. Kernel parameters of which one is <= 0 are learned as they are, all others by their
            logarithms (damping and floor by their logits); other numbers that are 0 stay so.
        data: training data of the model.
        graph: graph of the problems to answer.
        truth: true values [case, node, *dim], or {node type: [case, node_of_type, *dim]} where `points` is so. Take
            other draws than those in `data` where you have some: a model is too sure of what it was learned from, and
            settings learned there make intervals that are too narrow elsewhere.
        observations: of the truth [case, node, *obs_dim] (or by node type), or a function key -> observations, with
            which every step draws fresh ones.
        points: candidates of the beliefs, as in `beliefs`.
        loss: `SquaredError()`, `NegativeLogBelief()`, `IntervalScore(coverage)`, or a function (belief, truth of one
            case) -> number.
        validation: (truth, observations) to choose the best settings by. None: the training cases, in one fresh draw
            of noise where they have noise.
        frozen: function from settings to those parts of them that are not to be learned.
        answer: function (settings, model, graph, observations of one case, points) -> what `loss` takes.
        steps: most steps, >= 1.
        optimizer: of optax; None: Adam at 0.08, falling to a tenth of it along a cosine.
        every: steps after which landmarks are chosen anew and the validation loss is taken, >= 1.
        batch: cases of one step, drawn anew each time; None: all.
        patience: checks without a better validation loss after which to stop, >= 1.
        seed: of noise and batches.
        progress: whether to show a bar where standard error is a terminal (and tqdm is installed).

    Returns:
        The best settings, their model, and how they were found.

    Raises:
        ValueError: an option out of range, cases of different number, a loss that is not finite at the start.

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
    _checks.require_seed(seed)
    learned = Numbers.of(settings, frozen)
    cases = _Cases.of(truth, observations, validation, batch, seed)

    def of_cases(free: list[Array], rule: Rule, data: TrainingData, graph: Graph, truth: Any, seen: Any) -> Array:
        """Return the mean loss over cases."""
        now = dataclasses.replace(learned.settings(free), rule=rule)
        model = now.fit(data)
        return jnp.mean(jax.vmap(lambda x, y: loss(answer(now, model, graph, y, points), x))(truth, seen))

    chosen = _adam(steps) if optimizer is None else optimizer
    check, advance = _compiled(learned, of_cases, chosen)
    given = {"data": data, "graph": graph, "cases": cases}  # arguments: constants would be compiled into the program
    search = _Search(learned, partial(check, **given), partial(advance, **given))
    search.descend(chosen.init(learned.free()), _bar(steps, progress), every, patience)
    best = learned.settings(search.best)
    history = {name: np.stack(values) for name, values in search.history.items() if values}
    return Tuned(best, best.fit(data), np.asarray(search.losses), search.checks, history, search.stopped)


def _adam(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(0.08, steps, alpha=0.1))


class _Cases(eqx.Module):
    """True values and observations, to learn from and to choose by."""

    truth: Any
    observations: Any
    validation: tuple[Any, Any]
    batch: int = eqx.field(static=True)
    key: Array

    @classmethod
    def of(cls, truth: Any, observations: Any, validation: Any, batch: int | None, seed: int) -> "_Cases":
        """Check that there are equally many of all."""
        truth = jax.tree.map(jnp.asarray, truth)
        count = _count("truth", truth)
        key, held_out = jax.random.split(jax.random.key(seed))
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
        """Return the true values and observations of a step."""
        noise, choice = jax.random.split(jax.random.fold_in(self.key, step))
        seen = self.observations(noise) if callable(self.observations) else self.observations
        count = _count("truth", self.truth)
        _same_count("observations", seen, count)
        if self.batch == count:
            return self.truth, seen
        rows = jax.random.choice(choice, count, (self.batch,), replace=False)
        return jax.tree.map(lambda a: a[rows], (self.truth, seen))


def _count(argument: str, cases: Any) -> int:
    leaves = jax.tree.leaves(cases)
    fix = "Give arrays [case, node, ...]; a single case as x[None]."
    counts = sorted({len(a) if jnp.ndim(a) else 0 for a in leaves})
    _checks.require(
        len(counts) == 1 and counts[0] > 0, argument, "must hold equally many cases, at least 1", counts, fix
    )
    return counts[0]


def _same_count(argument: str, cases: Any, count: int) -> None:
    got = _count(argument, cases)
    _checks.require(got == count, argument, f"must hold {count} cases, as the true values", got, "Give one for each.")


def _compiled(
    learned: Numbers, of_cases: Callable[..., Array], optimizer: optax.GradientTransformation
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two compiled functions: choose landmarks and take the validation loss; take a gradient step."""

    @jax.jit
    def check(free: list[Array], data: TrainingData, graph: Graph, cases: _Cases) -> tuple[Rule, Array]:
        rule = learned.settings(free).fix_landmarks(data)
        return rule, of_cases(free, rule, data, graph, *cases.validation)

    @jax.jit
    def advance(
        free: list[Array], state: Any, rule: Rule, step: Array, data: TrainingData, graph: Graph, cases: _Cases
    ) -> tuple[list[Array], Any, Array]:
        value, slopes = jax.value_and_grad(of_cases)(free, rule, data, graph, *cases.draw(step))
        fine = jnp.isfinite(value) & jnp.all(jnp.stack([jnp.all(jnp.isfinite(slope)) for slope in slopes]))
        free, state = descend(optimizer, slopes, state, free)
        return free, state, jnp.where(fine, value, jnp.nan)

    return check, advance


@dataclasses.dataclass
class _Search:
    """A descent as far as it has come; what it has found outlives an interrupt."""

    learned: Numbers
    check: Callable[..., Any]
    advance: Callable[..., Any]

    def __post_init__(self) -> None:
        self.best = self.learned.free()
        self.losses: list[float] = []
        self.checks: dict[int, float] = {}
        self.history: dict[str, list[np.ndarray]] = {name: [] for name in self.learned.names}
        self.stopped = "all steps done"

    def descend(self, state: Any, bar: Any, every: int, patience: int) -> None:
        """Take steps, and look at the validation loss every few of them."""
        try:
            self._descend(state, bar, every, patience)
        except KeyboardInterrupt:
            self.stopped = "interrupted"

    def _descend(self, state: Any, bar: Any, every: int, patience: int) -> None:
        free, rule = self.best, None
        for step in bar:
            if step % every == 0:
                rule = self._look(free, step)
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
        self._look(free, len(self.losses))

    def _look(self, free: list[Array], step: int) -> Any:
        """Choose landmarks anew, take the validation loss with them, and keep the settings if they are the best."""
        rule, value = self.check(free)
        fix = "Start from wider bandwidths, a larger ridge or floor."
        ok = step > 0 or bool(jnp.isfinite(value))
        _checks.require(ok, "settings", "must give a finite validation loss", f"{value}", fix)
        if not self.checks or value < min(self.checks.values()):
            self.best = free
        self.checks[step] = float(value)
        return rule


def _bar(steps: int, progress: bool) -> Any:
    """Return a progress bar over steps where somebody sees it."""
    if not (progress and sys.stderr.isatty()):
        return range(steps)
    try:
        from tqdm import tqdm
    except ImportError:
        return range(steps)
    return tqdm(range(steps), desc="tune")
