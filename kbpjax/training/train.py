"""`train`: potentials learned through inference, by hiding values of the training cases and asking for them."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import public
from kbpjax.features.cholesky import RelativeBasis
from kbpjax.inference.diagnostics import ConvergenceWarning
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.relations import can_have_own_relations
from kbpjax.training.examples import Examples, Hide, hide_shares, values_of
from kbpjax.training.gaussian import can_be_gaussian, gaussian_potentials
from kbpjax.training.potentials import ClosedForm, Potentials, model_of
from kbpjax.training.propagation import Network
from kbpjax.tuning.parts import part_of
from kbpjax.tuning.tried import Tried, selection_of
from kbpjax.tuning.tune import progress_bar

STARTS = ("closed form", "gaussian")
"""What training starts from: ratios of pairs, or the Gaussian copula of the graph."""

WAYS = ("scaled", "corrected")
"""What is trained: the few numbers, or these and the corrections of the potentials."""

FEW = ("power", "marginal", "evidence", "heat")
"""The few numbers."""

CORRECTIONS = ("product", "first", "second")
"""The corrections of the potentials."""

NODES = 2500
"""Largest number of nodes of the graph in a step; of larger graphs a part is used."""

HELD = 0.2
"""Share of the cases that are held out, or of the nodes whose true values are not trained on."""

FEWEST = 10
"""Number of cases from which whole cases are held out."""

LONG = 60
"""Number of iterations on held-out cases; their residual shows whether messages converge."""

CONVERGED = 1e-2
"""Largest residual of a converged case."""

FAILED = 0.01
"""Largest share of held-out cases that may not converge, or that of the closed form."""

EVERY = 25
"""Number of steps between evaluations on held-out cases."""

MOST_HELD = 128
"""Largest number of held-out cases that are evaluated."""


def held_cases(count: int, num_nodes: int, seed: int) -> tuple[NDArray, NDArray, NDArray[np.bool_]]:
    """Return the held-out cases, the others, and the nodes whose true values are trained on.

    Of fewer than ten cases none is held out, but the true values of some nodes.
    """
    rng = np.random.default_rng(seed)
    if count < FEWEST:
        return np.array([], int), np.arange(count), rng.random(num_nodes) >= HELD
    order, held = rng.permutation(count), int(HELD * count)
    return order[:held][:MOST_HELD], order[held:], np.ones(num_nodes, bool)


class Descent(NamedTuple):
    """Options of the descent of `train`."""

    steps: int
    rate: float
    penalty: float
    seconds: float


@public
def train(
    model: KernelMRF,
    data: TrainingData,
    *,
    way: str = "auto",
    start: str = "auto",
    sharing: str = "auto",
    shares: Sequence[float] = (0.1, 0.3, 0.6),
    hide: Callable[[np.random.Generator, int], Any] | None = None,
    steps: int = 300,
    batch: int = 32,
    rate: float = 0.02,
    penalty: float = 1e-3,
    num_iters: int = 10,
    seconds: float = math.inf,
    seed: int = 0,
    progress: bool = True,
) -> KernelMRF:
    r"""Return a model whose potentials are trained through inference (Wainwright 2006; Domke 2013).

    The closed form learns each relation from pairs alone, and message passing multiplies them. What several neighbors
    say together, and what messages on graphs with cycles get wrong, only inference shows. Training passes messages on
    the cases of the data, scores the beliefs by CRPS (the energy score of values that are no numbers), and follows the
    gradient through the iterations. Observations that are the values themselves are hidden at random and asked for.

    With $r$ the ratio of the closed form and $f$ some features of the values, the logarithm of a potential becomes

    $$k \log r(x, y) + f(x)' W f(y) + c' f(x) + d' f(y).$$

    A part of the cases is held out. The result is the best of the start, the few numbers ($k$, powers of marginal and
    evidence, temperature), and all numbers, on held-out cases and among those whose messages converge. An interrupt
    (Ctrl-C) ends training and keeps the best so far.

    Args:
        model: a model of smoothed counts, of `fit(data, relation="counts")`, of variables that are single numbers,
            angles or labels.
        data: the cases of one graph, of `pool`; the same as for `fit`.
        way: "scaled" trains the few numbers, "corrected" all; "auto": both, one after the other.
        start: "closed form": ratios of pairs; "gaussian": the Gaussian copula of the graph with the largest likelihood
            among those whose messages converge, for numbers with potentials of each edge; "auto": whichever is better
            on held-out cases, the second with 30 known values or more for each node and edge, and up to 128 nodes.
        sharing: "type": the edges of a type share a potential; "edge": each has its own; "auto": "edge" with 30 cases
            or more, up to 1000 edges, and "type" otherwise.
        shares: shares of the observations that are hidden, each as often as the others, where observations are the
            values themselves.
        hide: a function of a random generator and a number of cases that returns what is hidden instead, as you expect
            it to be: whole nodes, blocks, the end of a series [case, node]; None: random shares.
        steps: number of steps for each way, >= 1.
        batch: number of cases in a step, >= 1.
        rate: learning rate of Adam, > 0; it falls to 0.
        penalty: weight of the squares of the corrections, >= 0.
        num_iters: number of iterations that are differentiated, >= 1.
        seconds: time limit of each way, > 0; the number of steps is then up to the speed of the machine.
        seed: seed of batches and of what is hidden.
        progress: whether to show a progress bar if standard error is a terminal (and tqdm is installed).

    Returns:
        The model, of nonnegative tables on the levels of its variables, which all functions take. Its `selection` holds
        what was tried, as "potentials", with CRPS or energy scores in standard deviations of the levels.

    Raises:
        ValueError: a model of another kind, data without cases of one graph, an option out of range.

    Warns:
        ConvergenceWarning: no trained model converged on held-out cases: the start is returned.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(60, 1)) + 0.5 * rng.normal(size=(60, 4))
        >>> data = kbp.pool(kbp.grid_graph(2, 2), x, x)
        >>> model = kbp.fit(data, relation="counts", effort="low")
        >>> trained = kbp.train(model, data, steps=5, way="scaled")
        >>> [one.alternative for one in trained.selection if one.choice == "potentials"]
        ['closed form', 'gaussian', 'scaled']
    """
    for name, count in {"steps": steps, "batch": batch, "num_iters": num_iters}.items():
        _checks.require_count(name, count)
    _checks.require_number("rate", rate, above=0)
    _checks.require(seconds > 0, "seconds", "must be > 0", seconds, "Leave it out for no limit.")
    _checks.require_number("penalty", penalty, least=0)
    fix = "Pass one of them."
    for name, word, words in (("way", way, WAYS), ("start", start, STARTS)):
        known = ("auto", *words)
        _checks.require(word in known, name, f"must be one of {known}", repr(word), fix)
    _checks.require(sharing in ("auto", "type", "edge"), "sharing", "must be 'auto', 'type' or 'edge'", sharing, fix)
    good = all(0 < share <= 1 for share in shares) and len(shares) > 0
    _checks.require(good, "shares", "must be in (0, 1]", list(shares), "Pass for instance (0.1, 0.5).")
    counted = all(isinstance(basis, RelativeBasis) for basis in model.bases.values())
    single = all(x.ndim == 1 for x in model.points.values())
    fix = "Pass kbpjax.fit(data, relation='counts')."
    _checks.require(counted and single, "model", "must be of smoothed counts of single numbers", repr(model)[:60], fix)
    fix = "Pool the cases of one graph."
    _checks.require(len(data.cases) == 1, "data", "must be cases of one graph", f"{len(data.cases)} graphs", fix)
    (cases,) = data.cases
    model.check_types(cases.graph)
    hides = hide_shares(cases.graph.num_nodes, shares) if hide is None else _checked(hide, cases.graph.num_nodes)
    trainer = _Trainer(model, data, sharing, hides, batch, seed, num_iters)
    found, tried, failed = [], [], []
    for name in trainer.starts(start):
        potentials = trainer.start_of(name)
        score, unconverged = trainer.held_out(potentials)
        found.append(potentials)
        tried.append(Tried("potentials", name, score))
        failed.append(unconverged)
    best = found[int(np.argmin(_ranks(tried, failed)))]
    try:
        for one in WAYS if way == "auto" else (way,):
            best, unconverged, record = trainer.train(best, one, Descent(steps, rate, penalty, seconds), progress)
            found.append(best)
            tried.append(record)
            failed.append(unconverged)
    except KeyboardInterrupt:
        pass  # keep what was found
    ranks = _ranks(tried, failed)
    trained = slice(len(trainer.starts(start)), None)
    if len(tried[trained]) and not np.isfinite(ranks[trained]).any():
        got = f"messages of {min(failed[trained]):.0%} of the held-out cases have not converged"
        warn(f"{got} after training: the start is returned. Pass a smaller rate.", ConvergenceWarning)
    taken = int(np.argmin(ranks))
    tried[taken] = tried[taken]._replace(taken=True)
    result = model_of(model, trainer.closed, found[taken], trainer.values, cases.graph.num_nodes)
    before = model.selection
    unit = "CRPS in standard deviations" if before is None else before.unit
    selection = selection_of([*(() if before is None else before), *tried], unit)
    return eqx.tree_at(lambda m: m.selection, result, selection, is_leaf=lambda leaf: leaf is None)


def _ranks(tried: Sequence[Tried], failed: Sequence[float]) -> NDArray[np.floating]:
    """Return the scores; infinite ones where they are NaN, or fewer cases converge than may, or than at the start."""
    scores = np.array([one.score for one in tried])
    return np.where(np.isfinite(scores) & (np.array(failed) <= max(FAILED, failed[0])), scores, np.inf)


def _checked(hide: Hide, num_nodes: int) -> Hide:
    """Return the function, whose masks are checked."""

    def checked(rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
        mask = np.asarray(hide(rng, count))
        good = mask.shape == (count, num_nodes) and mask.dtype == bool
        rule, fix = f"must return a mask [case, node] of shape {(count, num_nodes)}", "Return booleans of that shape."
        _checks.require(good, "hide", rule, f"shape {mask.shape}, dtype {mask.dtype}", fix)
        return mask

    return checked


class _Trainer:
    """Training cases of a model, and compiled steps."""

    def __init__(
        self,
        model: KernelMRF,
        data: TrainingData,
        sharing: str,
        hide: Hide,
        batch: int,
        seed: int,
        num_iters: int,
    ):
        (cases,) = data.cases
        own = sharing == "edge" or (sharing == "auto" and can_have_own_relations(data))
        self.model, self.cases, self.own = model, cases, own
        self.closed = ClosedForm.of(model, cases.graph, own)
        self.values = values_of(cases)
        as_model = model_of(model, self.closed, self.start_of(STARTS[0]), self.values, cases.graph.num_nodes)
        graph, nodes = as_model.graph_of(cases.graph), np.arange(cases.graph.num_nodes)
        scored = np.ones(len(nodes), bool)
        if graph.num_nodes > NODES:
            part = part_of(graph, NODES, seed)
            graph, nodes, scored = part.graph, part.nodes, part.scored
        self.network = Network.of(graph, self.closed)
        self.examples = Examples(as_model, graph, cases, self.values, nodes)
        self.examples.there &= scored[:, None]
        self.hide, self.size, self.seed = hide, batch, seed
        self.held, self.kept, asked = held_cases(len(cases.present[min(cases.present)]), cases.graph.num_nodes, seed)
        self.asked = asked[nodes]
        self.evaluate = eqx.filter_jit(self._loss)
        self.num_iters = num_iters

    def starts(self, start: str) -> tuple[str, ...]:
        """Return the starts that are compared."""
        can = self.own and can_be_gaussian(self.model, self.cases)
        rule, fix = "must not be 'gaussian' for these data", "Leave it out: see the conditions in the reference."
        _checks.require(can or start != STARTS[1], "start", rule, "it", fix)
        return STARTS[: 1 + can] if start == "auto" else (start,)

    def start_of(self, name: str) -> Potentials:
        """Return the potentials of a start; observations that are the values themselves are exact at any power."""
        if name == STARTS[1]:
            potentials = gaussian_potentials(self.closed, self.model, self.cases, self.kept)
        else:
            potentials = self.closed.start(self.model)
        if set(self.values) == set(self.model.points):
            potentials = dataclasses.replace(potentials, evidence=jnp.ones_like(potentials.evidence))
        return potentials

    def _loss(self, potentials: Potentials, given: tuple[Array, ...], num_iters: int) -> tuple[Array, Array]:
        """Return the mean score of the nodes that are asked for, and the residual of each case."""
        evidence, distances, weights, there = given
        beliefs, residual = self.network.beliefs(self.closed, potentials, evidence, num_iters)
        between = self.examples.between[self.network.node_type]
        spread = jnp.sum(jnp.einsum("ncp,npq->ncq", beliefs, between) * beliefs, axis=-1) / 2
        score = jnp.where(there, jnp.sum(beliefs * distances, axis=-1) - spread, 0)
        return jnp.sum(weights * score) / jnp.maximum(jnp.sum(there, dtype=score.dtype), 1), residual

    def held_out(self, potentials: Potentials) -> tuple[float, float]:
        """Return the score on held-out cases, and the share of them whose messages have not converged."""
        rng = np.random.default_rng(self.seed + 1)
        chosen = self.held if len(self.held) else self.kept
        total, weight, failed = 0.0, 0, 0
        for part in np.array_split(chosen, -(-len(chosen) // self.size)):
            given = self._of(part, rng, ~self.asked if not len(self.held) else np.ones_like(self.asked))
            score, residual = self.evaluate(potentials, given, LONG)
            count = int(np.sum(given[3]))
            total, weight = total + float(score) * count, weight + count
            failed += int(np.sum(np.asarray(residual) > CONVERGED))
        return total / max(weight, 1), failed / len(chosen)

    def _of(self, chosen: NDArray, rng: np.random.Generator, asked: NDArray) -> tuple[Array, ...]:
        evidence, distances, weights, there = self.examples.batch(chosen, self.hide, rng)
        return evidence, distances, weights, there & _checks.to_jax(asked)[:, None]

    def train(self, start: Potentials, way: str, descent: Descent, progress: bool) -> tuple[Potentials, float, Tried]:
        """Return the best potentials on held-out cases, the share of them that has not converged, and the record."""
        since = time.perf_counter()
        steps = descent.steps
        names = [*FEW, *(CORRECTIONS if way == "corrected" else ())]
        if self.examples.hidden.all():  # values are exact at any power
            names.remove("evidence")
        optimizer = optax.adam(optax.cosine_decay_schedule(descent.rate, steps))
        free = {name: getattr(start, name) for name in names}

        def full(free: dict[str, Array]) -> Potentials:
            return dataclasses.replace(start, **free)

        def objective(free: dict[str, Array], given: tuple[Array, ...]) -> Array:
            extra = [jnp.sum((free[n] - getattr(start, n)) ** 2) for n in (*CORRECTIONS, "power") if n in free]
            return self._loss(full(free), given, self.num_iters)[0] + descent.penalty * sum(extra) / len(start.power)

        @jax.jit
        def advance(free: dict[str, Array], state: Any, given: tuple[Array, ...]) -> tuple[Any, Any]:
            slopes = jax.grad(objective)(free, given)
            with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
                change, state = optimizer.update(slopes, state)
                return optax.apply_updates(free, change), state

        rng, state, best = np.random.default_rng(self.seed), optimizer.init(free), start
        score, unconverged = self.held_out(start)
        done = 0
        try:
            bar = progress_bar(steps, progress, name=way)
            for step in bar:
                chosen = rng.choice(self.kept, min(self.size, len(self.kept)), replace=False)
                free, state = advance(free, state, self._of(chosen, rng, self.asked))
                done = step + 1
                late = time.perf_counter() - since > descent.seconds
                if done % EVERY == 0 or done == steps or late:
                    found = self.held_out(full(free))
                    if found[0] < score:
                        best, (score, unconverged) = full(free), found
                    if hasattr(bar, "set_postfix"):
                        bar.set_postfix(score=f"{found[0]:.4g}", best=f"{score:.4g}")
                if late:
                    break
        except KeyboardInterrupt:
            pass  # the best so far
        return best, unconverged, Tried("potentials", way, score, done, time.perf_counter() - since)
