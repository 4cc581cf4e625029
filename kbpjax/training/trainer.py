"""`Trainer`: the cases of a model on levels, scores on held-out cases, and the descent that `train` runs."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax.graphs.graph import Graph
from kbpjax.inference.diagnostics import ConvergenceWarning
from kbpjax.kernels import RBF
from kbpjax.learning.checkpoint import Checkpoint
from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.relations import can_have_own_relations
from kbpjax.training.examples import Examples, Given, Hide, Place, values_of
from kbpjax.training.folds import Folds, Refit, closed_forms
from kbpjax.training.gaussian import can_be_gaussian, gaussian_potentials
from kbpjax.training.potentials import ClosedForm, Potentials, model_of
from kbpjax.training.propagation import Network
from kbpjax.training.pseudo import one_of, pseudo_likelihood
from kbpjax.tuning.parts import parts_of
from kbpjax.tuning.tried import Tried
from kbpjax.tuning.tune import progress_bar

STARTS = ("closed form", "gaussian", "pseudo-likelihood")
"""What training starts from: ratios of pairs, the Gaussian copula of the graph, or each node given its neighbors."""

WAYS = ("scaled", "corrected")
"""What is trained: the few numbers, or these and the corrections of the potentials."""

LOSSES = ("crps", "log")
"""Scores of beliefs."""

FEW = ("power", "marginal", "evidence", "heat")
"""The few numbers."""

CORRECTIONS = ("product", "first", "second")
"""The corrections of the potentials."""

NODES = 1500
"""Largest number of nodes in a step, unless each edge has its own potential; of larger graphs parts are used."""

PARTS = 12
"""Largest number of parts of a graph: each step is on one of them."""

MOST = 2**20
"""Largest number of nodes of all parts times cases: a gigabyte on levels."""

LONG = 60
"""Number of iterations on held-out cases; their residual shows whether messages converge."""

CONVERGED = 1e-2
"""Largest residual of a converged case."""

EVERY = 25
"""Number of steps between evaluations on held-out cases, and between checkpoints."""


class Options(NamedTuple):
    """Options of `train` that say how a step is computed.

    Attributes:
        sharing: "type", "edge" or "auto", as in `train`.
        hide: what is hidden in a case.
        loss: the score of beliefs.
        batch: number of cases in a step.
        rate: learning rate.
        penalty: weights of the squares of the corrections, each of which is tried.
        steps: number of steps.
        num_iters: number of iterations that are differentiated.
        seconds: time limit.
        seed: seed of batches and of what is hidden.
    """

    sharing: str
    hide: Hide
    loss: str
    batch: int
    rate: float
    penalty: tuple[float, ...]
    steps: int
    num_iters: int
    seconds: float
    seed: int


class Result(NamedTuple):
    """Potentials and how good they are on held-out cases.

    Attributes:
        potentials: the numbers.
        score: the score.
        unconverged: share of the cases whose messages have not converged.
        steps: number of steps that were taken.
        seconds: how long they took.
    """

    potentials: Potentials
    score: Any
    unconverged: Any
    steps: Any = 0
    seconds: Any = 0.0

    def record(self, word: str) -> Tried:
        """Return what is shown of it."""
        return Tried("potentials", word, float(self.score), int(self.steps), float(self.seconds))


@dataclasses.dataclass(frozen=True)
class State:
    """State of the training, the content of a checkpoint.

    Attributes:
        finished: number of ways whose training has ended.
        running: whether another one has begun.
        arrays: leaves of the results of these ways, then of the free numbers and the optimizer of the last one.
    """

    FORMAT: ClassVar[str] = "kbpjax.train 2"
    finished: int = 0
    running: bool = False
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)


class Trainer:
    """Training cases of a model, and compiled steps; relations of folds are those of models that `refit` returns."""

    def __init__(
        self, model: KernelMRF, data: TrainingData, options: Options, saved: Checkpoint, refit: Refit | None = None
    ):
        (cases,) = data.cases
        own = options.sharing == "edge" or (options.sharing == "auto" and can_have_own_relations(data))
        self.model, self.cases, self.own, self.options = model, cases, own, options
        self.saved, self.state = saved, saved.load()
        self.closed = ClosedForm.of(model, cases.graph, own)
        self.values = values_of(cases)
        as_model = model_of(model, self.closed, self._exact(self.closed.start(model)), self.values, self.num_nodes)
        graphs, nodes, scored = _parts(as_model.graph_of(cases.graph), cases, own, options.seed)
        self.networks = Network.of(graphs, self.closed)
        every = np.unique(np.concatenate(nodes))
        whole = as_model.graph_of(cases.graph).subgraph(every) if len(graphs) > 1 else graphs[0]
        self.examples = Examples(as_model, whole, cases, self.values, every)
        size = self.networks[0].num_nodes
        filled = [np.pad(np.searchsorted(every, part), (0, size - len(part))) for part in nodes]
        self.places = [Place(r, np.pad(m, (0, size - len(m)))) for r, m in zip(filled, scored, strict=True)]
        self.folds = Folds.of_cases(cases, options.seed)
        self.apart = closed_forms(self.closed, own, data, self.folds, refit)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph of the cases."""
        return self.cases.graph.num_nodes

    def starts(self, start: str) -> tuple[str, ...]:
        """Return the starts that are compared."""
        can = self.own and can_be_gaussian(self.model, self.cases)
        rule, fix = "must not be 'gaussian' for these data", "Leave it out: see the conditions in the reference."
        _checks.require(can or start != "gaussian", "start", rule, "it", fix)
        numbers = all(isinstance(getattr(basis, "kernel", None), RBF) for basis in self.model.bases.values())
        if start in ("auto", "all"):
            return STARTS[: 1 + (can and (numbers or start == "all"))]
        return (start,)

    def start_of(self, word: str) -> Result:
        """Return the potentials of a start."""
        since = time.perf_counter()
        if word == "gaussian":
            potentials = gaussian_potentials(self.closed, self.model, self.cases, self.folds.kept)
        elif word == "pseudo-likelihood":
            start = self.closed.start(self.model)
            given, options = (self.examples, self.networks, self.places, self.folds.kept), self.options
            potentials = pseudo_likelihood(self.closed, start, *given, options.penalty[0], options.seed)
        else:
            potentials = self.closed.start(self.model)
        return self.result(self._exact(potentials), seconds=time.perf_counter() - since)

    def _exact(self, potentials: Potentials) -> Potentials:
        """Return potentials with a power of the evidence of 1 if observations are the values: exact at any power."""
        if set(self.values) != set(self.model.points):
            return potentials
        return dataclasses.replace(potentials, evidence=jnp.ones_like(potentials.evidence))

    def result(self, potentials: Potentials, steps: int = 0, seconds: float = 0.0) -> Result:
        """Return potentials with their score on held-out cases, and the share of them that has not converged."""
        rng, chosen = np.random.default_rng(self.options.seed + 1), self.folds.held
        total, weight, failed = 0.0, 0, 0
        parts = np.array_split(chosen, -(-len(chosen) // self.options.batch))
        for part in parts:  # padded to one size
            extra = len(parts[0]) - len(part)
            hidden = np.concatenate([self.options.hide(rng, len(part)), np.zeros((extra, self.num_nodes), bool)])
            inside = np.arange(len(hidden)) < len(part)
            for i, network in enumerate(self.networks):
                given = self._given(np.append(part, part[:extra]), hidden, 0, i)
                given = given._replace(there=given.there & _checks.to_jax(inside)[None])
                score, residual = _score(network, self.options.loss, LONG, self.apart[0], potentials, given)
                count = int(np.sum(given.there))
                total, weight = total + float(score) * count, weight + count
                failed += int(np.sum(np.asarray(residual)[inside] > CONVERGED))
        asked = len(chosen) * len(self.networks)
        return Result(potentials, total / max(weight, 1), failed / asked, steps, seconds)

    def _given(self, chosen: NDArray, hidden: NDArray, fold: int, part: int) -> Given:
        """Return what a score of some cases needs at a network's nodes, of which the values of a fold count."""
        place = self.places[part]
        given = self.examples.batch(chosen, hidden, place)
        asked = self.folds.of[chosen][:, self.examples.nodes[place.rows]] == fold
        return given._replace(there=given.there & _checks.to_jax(asked.T))

    def _draw(self, rng: np.random.Generator) -> tuple[NDArray, NDArray, int, int]:
        """Return the cases of a step, what is hidden in them, the fold that they are of, and the network."""
        fold = int(rng.choice(self.folds.trained))
        cases = self.folds.cases(fold)
        chosen = rng.choice(cases, self._batch, replace=len(cases) < self._batch)
        return chosen, self.options.hide(rng, len(chosen)), fold, one_of(rng, self.networks)

    @property
    def _batch(self) -> int:
        """Number of cases of a step, the same for all folds."""
        return min(self.options.batch, max(len(self.folds.cases(fold)) for fold in self.folds.trained))

    def train(self, start: Result, way: str, penalty: float, earlier: Sequence[Result], progress: bool) -> Result:
        """Return the best potentials on held-out cases; an interrupt ends the training and keeps the best so far.

        Args:
            start: what training starts from.
            way: one of `WAYS`.
            penalty: weight of the squares of the corrections.
            earlier: the results of the ways that have ended.
            progress: whether to show a progress bar.
        """
        place = len(earlier)
        if self.state.finished > place:
            return self._restored(start, place)
        options, since = self.options, time.perf_counter()
        names = [*FEW, *(CORRECTIONS if way == "corrected" else ())]
        if self.examples.hidden.all():  # values are exact at any power
            names.remove("evidence")
        descent = Descent(options.loss, options.num_iters, options.rate, options.steps, penalty)
        free: Any = {name: getattr(start.potentials, name) for name in names}
        moving, best, done = (free, descent.optimizer.init(free)), start, 0
        if self.state.running and self.state.finished == place:
            best, moving = self._restored((start, moving), place)
            done, since = int(best.steps), since - float(best.seconds)
        rng = np.random.default_rng(options.seed)
        for _ in range(done):
            self._draw(rng)  # the same batches as without the interrupt
        try:
            bar = progress_bar(options.steps - done, progress, name=way)
            for _ in bar:
                chosen, hidden, fold, part = self._draw(rng)
                given = self._given(chosen, hidden, fold, part)
                network, closed = self.networks[part], self.apart[fold]
                moving = _advance(network, descent, moving[0], moving[1], closed, start.potentials, given)
                done += 1
                late = time.perf_counter() - since > options.seconds
                if done % EVERY == 0 or done == options.steps or late:
                    found = self.result(dataclasses.replace(start.potentials, **moving[0]))
                    best = found if found.score < best.score else best
                    best = best._replace(steps=done, seconds=time.perf_counter() - since)
                    self._save(State(place, True), [*earlier, best, moving])
                    if hasattr(bar, "set_postfix"):
                        bar.set_postfix(score=f"{found.score:.4g}", best=f"{best.score:.4g}")
                    if not np.isfinite(found.score):
                        text = f"the score of training is {found.score} after {done} steps: the best before is kept"
                        warn(f"{text}. Pass a smaller rate.", ConvergenceWarning)
                        break
                if late:
                    break
        except KeyboardInterrupt:
            return best._replace(steps=done, seconds=time.perf_counter() - since)
        best = best._replace(steps=done, seconds=time.perf_counter() - since)
        self._save(State(place + 1, False), [*earlier, best])
        return best

    def _save(self, state: State, tree: list[Any]) -> None:
        arrays = {f"{i:05d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}
        self.saved.save(dataclasses.replace(state, arrays=arrays))

    def _restored(self, like: Any, place: int) -> Any:
        """Return what was saved after some results, of the structure and dtypes of a tree that begins with a result."""
        leaves, structure = jax.tree.flatten(like)
        first = place * len(jax.tree.leaves(like if isinstance(like, Result) else like[0]))
        saved = list(self.state.arrays.values())[first : first + len(leaves)]
        both = zip(leaves, saved, strict=True)
        return jax.tree.unflatten(
            structure, [jnp.asarray(one, old.dtype) if isinstance(old, jax.Array) else one[()] for old, one in both]
        )


def _parts(
    graph: Graph, cases: Cases, own: bool, seed: int
) -> tuple[list[Graph], list[NDArray[np.integer]], list[NDArray[np.bool_]]]:
    """Return the graphs of the steps: one, or parts of it; their nodes, and which of these are scored."""
    count = graph.num_nodes
    if own or count <= NODES:
        return [graph], [np.arange(count)], [np.ones(count, bool)]
    most = MOST // (NODES * len(next(iter(cases.samples.values()))))
    found = parts_of(graph, NODES, min(max(most, 1), PARTS), seed)
    return [part.graph for part in found], [part.nodes for part in found], [part.scored for part in found]


class Descent(NamedTuple):
    """What a step is compiled for, of `Options`."""

    loss: str
    num_iters: int
    rate: float
    steps: int
    penalty: float

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer."""
        return optax.adam(optax.cosine_decay_schedule(self.rate, self.steps))


def mean_score(
    network: Network, loss: str, num_iters: int, closed: ClosedForm, potentials: Potentials, given: Given
) -> tuple[Array, Array]:
    """Return the mean score of the scored nodes, and the residual of each case."""
    beliefs, residual = network.beliefs(closed, potentials, given.evidence, num_iters)
    there, weights = given.there, given.weights
    if loss == "log":
        nearest = jnp.argmin(given.distances, axis=-1, keepdims=True)
        lengths = jnp.exp(closed.log_lengths)[network.node_type][:, None]
        density = jnp.take_along_axis(beliefs / lengths, nearest, axis=-1)[..., 0]
        score = jnp.where(there, -jnp.log(density + jnp.finfo(density.dtype).tiny), 0)
        weights = there.astype(score.dtype)
    else:
        between = given.between[network.node_type]
        spread = jnp.sum(jnp.einsum("ncp,npq->ncq", beliefs, between) * beliefs, axis=-1) / 2
        score = jnp.where(there, jnp.sum(beliefs * given.distances, axis=-1) - spread, 0)
    return jnp.sum(weights * score) / jnp.maximum(jnp.sum(there, dtype=score.dtype), 1), residual


_score = eqx.filter_jit(mean_score)
"""Compiled once for all trainers of a graph."""


@eqx.filter_jit
def _advance(
    network: Network,
    descent: Descent,
    free: dict[str, Array],
    state: Any,
    closed: ClosedForm,
    start: Potentials,
    given: Given,
) -> tuple[Any, Any]:
    """Take a step of the descent: return the free numbers and the state of the optimizer."""

    def objective(free: dict[str, Array]) -> Array:
        moved = [jnp.sum((free[n] - getattr(start, n)) ** 2) for n in (*CORRECTIONS, "power") if n in free]
        potentials = dataclasses.replace(start, **free)
        score = mean_score(network, descent.loss, descent.num_iters, closed, potentials, given)[0]
        return score + descent.penalty * sum(moved) / len(start.power)

    slopes = jax.grad(objective)(free)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        change, state = descent.optimizer.update(slopes, state)
        return optax.apply_updates(free, change), state
