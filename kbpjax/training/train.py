"""`train`: potentials learned through inference, by hiding values of the training cases and scoring their beliefs."""

import dataclasses
import inspect
import itertools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from numpy.typing import NDArray

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import public
from kbpjax.features.cholesky import RelativeBasis
from kbpjax.inference.diagnostics import ConvergenceWarning
from kbpjax.kernels.base import random_rows
from kbpjax.learning.checkpoint import Checkpoint, digest
from kbpjax.learning.data import TrainingData
from kbpjax.learning.model import CHOSEN, KernelMRF
from kbpjax.training.examples import BESIDE_HOLES, SHARES, Hide, has_holes, hide_shares
from kbpjax.training.potentials import model_of
from kbpjax.training.trainer import LOSSES, STARTS, WAYS, Options, Result, State, Trainer
from kbpjax.tuning.hyperparameters import refit_of
from kbpjax.tuning.tried import selection_of

LEVELS = 512
"""Largest number of levels of strings and the like, which are different samples."""

FAILED = 0.01
"""Largest share of held-out cases that may not converge, or that of the closed form."""


CLOSE = 1.15
"""Largest score, relative to that of the best start, of another start that is trained, too."""


@public
def train(
    model: KernelMRF,
    data: TrainingData,
    *,
    way: str = "auto",
    start: str = "auto",
    sharing: str = "auto",
    shares: Sequence[float] | None = None,
    hide: Callable[[np.random.Generator, int], Any] | None = None,
    loss: str = "crps",
    steps: int = 300,
    batch: int = 32,
    rate: float = 0.02,
    penalty: float | Sequence[float] = 1e-3,
    num_iters: int = 10,
    seconds: float = math.inf,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
) -> KernelMRF:
    r"""Return a model whose potentials are trained through inference (Wainwright 2006; Domke 2013).

    The closed form learns each relation from pairs alone, and message passing multiplies them. What several neighbors
    say together, and what messages on graphs with cycles get wrong, only inference shows. Training passes messages on
    the cases of the data, scores the beliefs of what is known, and follows the gradient through the iterations.
    Observations that are the values themselves are hidden at random, and the beliefs of the hidden values are scored.

    With $r$ the ratio of the closed form and $f$ some features of the values, the logarithm of a potential becomes

    $$k \log r(x, y) + f(x)' W f(y) + c' f(x) + d' f(y).$$

    Smoothed counts remember the pairs that they are learned from. So a case is trained on, or held out, with relations
    that are learned from others, in five folds, by the model's `hyperparameters`. Without these, and with fewer than
    ten cases, relations are the model's. The result has relations of all data.

    Messages and beliefs are values on levels: of numbers a grid; of strings, sets, rankings and the like up to 512
    different samples, or the landmarks where `fit` was given all kernels. Between them, functions are interpolated.

    Of graphs with more than 1500 nodes each step is on one of up to 12 parts of that size, unless each edge has its own
    potential. Nodes near the edge of a part pass messages, but are not scored.

    A part of the cases is held out. The result is the best of the start, the few numbers ($k$, powers of marginal and
    evidence, temperature), and all numbers, on held-out cases and among those whose messages converge. An interrupt
    (Ctrl-C) ends training and keeps the best so far.

    Args:
        model: a model of smoothed counts, of `fit(data, relation="counts")`, of any variables but vectors and matrices
            of floats: samples are too far apart to be their levels.
        data: the cases of one graph, of `pool`; the same as for `fit`.
        way: "scaled" trains the few numbers, "corrected" all; "auto": both, one after the other.
        start: "closed form": ratios of pairs; "gaussian": the Gaussian copula of the graph with the largest likelihood
            among those whose messages converge, with potentials of each edge; of labels, a Gaussian of their
            indicators; "pseudo-likelihood": the corrections that make values likely given all neighbors (Besag 1975),
            from cases that have them; "auto": the first or, of numbers, the second, whichever is better on held-out
            cases; "all": the first and the second, also of labels, each of which is trained if it is nearly as good as
            the other. The second needs 10 known values for each entry of its precision matrix.
        sharing: "type": the edges of a type share a potential; "edge": each has its own; "auto": "edge" with 30 cases
            or more, up to 1000 edges, and "type" otherwise.
        shares: shares of the observations that are hidden, each as often as the others, where observations are the
            values themselves. None: 0.1, 0.3 and 0.6, or 0.1 and 0.2 where more than 5 % of them are missing already.
        hide: a function of a random generator and a number of cases that returns what is hidden instead, as you expect
            it to be: whole nodes, blocks, the end of a series [case, node]; None: random shares.
        loss: the score: "crps", the continuous ranked probability score (the energy score of values that are no
            numbers), or "log", minus the logarithm of the density of the true value, to the resolution of the levels.
        steps: number of steps for each way, >= 1.
        batch: number of cases in a step, >= 1.
        rate: learning rate of Adam, > 0; it falls to 0.
        penalty: weight of the squares of the corrections, >= 0. Of several, corrections are trained with each, and the
            best on held-out cases is kept; the few numbers are trained with the first.
        num_iters: number of iterations that are differentiated, >= 1.
        seconds: time limit of each way, > 0; the number of steps is then up to the speed of the machine.
        seed: seed of batches and of what is hidden.
        checkpoint: path of a checkpoint, written every 25 steps and after each way. The same call with the file resumes
            and gives the same model. It is compared with the model, the data and the options, functions by name only.
            None: no checkpoint.
        progress: whether to show a progress bar if standard error is a terminal (and tqdm is installed).

    Returns:
        The model, of nonnegative tables on the levels of its variables, which all functions take. Its `selection` holds
        what was tried, as "potentials", with CRPS or energy scores in standard deviations of the levels, or log scores
        with the distances of levels in their units.

    Raises:
        ValueError: a model of another kind or with own starts, data without cases of one graph, an option out of range,
            a checkpoint of other data or options.

    Warns:
        ConvergenceWarning: no trained model converged on held-out cases: the start is returned. Or the score became NaN
            or infinite, and training ended there.

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
    given: dict[str, Any] = {"way": way, "start": start, "sharing": sharing, "shares": shares, "hide": hide}
    given |= {"loss": loss, "steps": steps, "batch": batch, "rate": rate, "penalty": penalty, "num_iters": num_iters}
    given |= {"seconds": seconds, "seed": seed, "checkpoint": checkpoint, "progress": progress}
    return _trained(model, data, **given)[0]


def train_apart(model: KernelMRF, data: TrainingData, **options: Any) -> tuple[KernelMRF, KernelMRF]:
    """Return the model of `train`, and the same with relations that have not seen what it holds out.

    Args:
        model: as in `train`.
        data: as in `train`.
        options: as in `train`.
    """
    known = {
        one.name: one.default for one in inspect.signature(train).parameters.values() if one.kind == one.KEYWORD_ONLY
    }
    return _trained(model, data, **(known | options))


def _trained(
    model: KernelMRF,
    data: TrainingData,
    *,
    way: str,
    start: str,
    sharing: str,
    shares: Sequence[float] | None,
    hide: Callable[[np.random.Generator, int], Any] | None,
    loss: str,
    steps: int,
    batch: int,
    rate: float,
    penalty: float | Sequence[float],
    num_iters: int,
    seconds: float,
    seed: int,
    checkpoint: str | os.PathLike | None,
    progress: bool,
) -> tuple[KernelMRF, KernelMRF]:
    """Return the models of `train_apart`."""
    for name, count in {"steps": steps, "batch": batch, "num_iters": num_iters}.items():
        _checks.require_count(name, count)
    _checks.require_number("rate", rate, above=0)
    _checks.require(seconds > 0, "seconds", "must be > 0", seconds, "Leave it out for no limit.")
    penalties = tuple(penalty) if isinstance(penalty, Sequence) else (penalty,)
    _checks.require(len(penalties) > 0, "penalty", "must be a number or several", penalty, "Pass for instance 1e-3.")
    for one in penalties:
        _checks.require_number("penalty", one, least=0)
    words = (("way", way, ("auto", *WAYS)), ("start", start, ("auto", "all", *STARTS)), ("loss", loss, LOSSES))
    for name, word, known in (*words, ("sharing", sharing, ("auto", "type", "edge"))):
        _checks.require(word in known, name, f"must be one of {known}", repr(word), "Pass one of them.")
    good = shares is None or (all(0 < share <= 1 for share in shares) and len(shares) > 0)
    _checks.require(good, "shares", "must be in (0, 1]", shares, "Pass for instance (0.1, 0.5).")
    counted = all(isinstance(basis, RelativeBasis) for basis in model.bases.values())
    fix = "Pass kbpjax.fit(data, relation='counts')."
    _checks.require(counted, "model", "must be of smoothed counts", repr(model)[:60], fix)
    vectors = [v for v, x in model.points.items() if x.ndim > 1 and np.issubdtype(x.dtype, np.floating)]
    rule, fix = "must not have vectors of floats", "Make a node of each coordinate."
    _checks.require(not vectors, "model", rule, f"node types {vectors}", fix)
    fix = "On trees messages are exact: there is little to train. Or pass kbpjax.fit(data, starts='pooled')."
    _checks.require(not model.starts, "model", "must not have own starts, which training does not keep", "some", fix)
    fix = "Pool the cases of one graph."
    _checks.require(len(data.cases) == 1, "data", "must be cases of one graph", f"{len(data.cases)} graphs", fix)
    graph = data.cases[0].graph
    model.check_types(graph)
    model = _finer(model, data)
    if shares is None:
        shares = BESIDE_HOLES if has_holes(data.cases[0]) else SHARES
    hides = hide_shares(graph.num_nodes, shares) if hide is None else _checked(hide, graph.num_nodes)
    options = Options(sharing, hides, loss, batch, rate, penalties, steps, num_iters, seconds, seed)
    given: dict[str, Any] = {"model": model, "data": data, "way": way, "start": start, "shares": shares, "hide": hide}
    given |= {name: value for name, value in options._asdict().items() if name != "hide"}
    digests = {name: digest(value) for name, value in given.items()} if checkpoint is not None else {}
    trainer = Trainer(model, data, options, Checkpoint(checkpoint, digests, State), refit_of(model))
    words = trainer.starts(start)
    found = [trainer.start_of(word) for word in words]
    ranks = _ranks(found)
    order = [i for i in np.argsort(ranks, kind="stable").tolist() if ranks[i] <= CLOSE * ranks.min()]
    order = order if start == "all" else order[:1]
    ways = WAYS if way == "auto" else (way,)
    first = penalties if ways[0] == "corrected" else penalties[:1]
    named = lambda name, weight: name if len(penalties) == 1 or name == "scaled" else f"{name}, penalty {weight:g}"
    trained, names, complete = [], [], True
    for i, weight in itertools.product(order, first):
        trained.append(trainer.train(found[i], ways[0], weight, trained, progress))
        name = named(ways[0], weight)
        names.append(name if i == order[0] else f"{name}, {words[i]}")
        complete = trained[-1].steps >= steps or trained[-1].seconds >= seconds
        if not complete:  # interrupted: keep what was found
            break
    best = trained[int(np.argmin(_ranks([found[order[0]], *trained])[1:]))]
    for weight in penalties if len(ways) > 1 else ():
        if not complete:
            break
        trained.append(trainer.train(best, ways[-1], weight, trained, progress))
        names.append(named(ways[-1], weight))
        complete = trained[-1].steps >= steps or trained[-1].seconds >= seconds
    found += trained
    ranks = _ranks(found)
    if not np.isfinite(ranks[len(words) :]).any():
        failed = min(one.unconverged for one in trained)
        got = f"messages of {failed:.0%} of the held-out cases have not converged"
        warn(f"{got} after training: the start is returned. Pass a smaller rate.", ConvergenceWarning)
    taken = int(np.argmin(ranks))
    tried = [one.record(word) for one, word in zip(found, (*words, *names), strict=True)]
    tried[taken] = tried[taken]._replace(taken=True)
    result, apart = (
        model_of(model, closed, found[taken].potentials, trainer.values, graph.num_nodes)
        for closed in (trainer.closed, trainer.apart[0])
    )
    before = model.selection
    unit = "CRPS in standard deviations" if before is None else before.unit
    selection = selection_of([*(() if before is None else before), *tried], unit)
    return eqx.tree_at(lambda m: m.selection, result, selection, is_leaf=lambda leaf: leaf is None), apart


def _finer(model: KernelMRF, data: TrainingData) -> KernelMRF:
    """Return the model with different samples as the levels of strings and the like.

    Landmarks are fewer, and far apart. They are kept by a model of given kernels, without hyperparameters.
    """
    chosen, others = model.hyperparameters, [v for v, x in model.points.items() if x.ndim > 1]
    if chosen is None or not others:
        return model
    different = {v: np.unique(np.asarray(x), axis=0) for v, x in chosen.standardized(data).nodes.items() if v in others}
    levels = {v: _checks.to_jax(x[random_rows(len(x), LEVELS)]) for v, x in different.items()}
    refit = refit_of(model, levels)
    assert refit is not None  # a model of smoothed counts
    same = {name: getattr(model, name) for name in (*CHOSEN, "hyperparameters", "selection")}
    return dataclasses.replace(refit(data), **same)


def _ranks(found: Sequence[Result]) -> NDArray[np.floating]:
    """Return the scores; infinite ones where they are NaN, or fewer cases converge than may, or than at the start."""
    scores, failed = (np.array([getattr(one, name) for one in found], float) for name in ("score", "unconverged"))
    return np.where(np.isfinite(scores) & (failed <= max(FAILED, failed[0])), scores, np.inf)


def _checked(hide: Hide, num_nodes: int) -> Hide:
    """Return the function, whose masks are checked."""
    fix = "Pass a function of a random generator and a number."
    _checks.require(not isinstance(hide, type), "hide", "must be a function", "a class", fix)

    def checked(rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
        mask = np.asarray(hide(rng, count))
        good = mask.shape == (count, num_nodes) and mask.dtype == bool
        rule, fix = f"must return a mask [case, node] of shape {(count, num_nodes)}", "Return booleans of that shape."
        _checks.require(good, "hide", rule, f"shape {mask.shape}, dtype {mask.dtype}", fix)
        return mask

    return checked
