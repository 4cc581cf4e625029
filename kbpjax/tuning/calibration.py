"""`calibrate`: the power of the evidence and the temperature of the beliefs, chosen by a score on held-out cases.

Hyperparameters that give accurate means need not give honest intervals. On graphs with cycles evidence is counted more
than once, and evidence terms of neighbors may be correlated. Both numbers can be chosen without another fit: messages
depend on the power only, and beliefs of one run have a score at each temperature.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kbpjax import _checks
from kbpjax._misc import warn
from kbpjax._public import public
from kbpjax.graphs.graph import Graph
from kbpjax.inference.diagnostics import KbpWarning
from kbpjax.learning.model import KernelMRF
from kbpjax.posterior.summaries import temper
from kbpjax.tuning.hyperparameters import Hyperparameters
from kbpjax.tuning.losses import CRPS

OCTAVES = 4
"""The first grid has factors from 2^-4 to 2^4."""

POWERS, TEMPERATURES = (np.array(sorted(np.linspace(-OCTAVES, OCTAVES, size), key=abs)) for size in (9, 17))
"""Octaves of the factors on the first grid, the smallest change first: of equal losses, the first is chosen."""

FINER = ((1, 1), (4, 8), (16, 64))
"""The factors by which the spacings of the grids are smaller; each covers one step of the grid before."""


@public
def calibrate(
    hyperparameters: Hyperparameters,
    model: KernelMRF,
    graph: Graph,
    truth: Any,
    observations: Any,
    points: Any,
    *,
    loss: Callable[[Any, Any], Array] = CRPS(),
) -> Hyperparameters:
    """Return hyperparameters whose evidence power and temperature minimize a proper score on held-out cases.

    All other hyperparameters stay, and the model is not fitted again. Both numbers are searched on a grid of factors
    from 1/16 to 16, and on two finer grids around the best, 27 runs of message passing in all. The loss is never larger
    than at the start. A `KbpWarning` is given if the best factor of the first grid is 1/16 or 16.

    Args:
        hyperparameters: hyperparameters, for instance of `tune`; they run the messages, as in `hyperparameters.answer`.
        model: the model that was fitted with them.
        graph: graph of the cases.
        truth: true values [case, node, *dim], NaN where unknown, of cases that neither `fit` nor `tune` has seen; or
            {node type: values [case, node_of_type, *dim]}.
        observations: observations of the cases [case, node, *obs_dim], NaN where missing; or {node type: observations}.
        points: evaluation points of the beliefs, or {node type: points}, as in `beliefs`.
        loss: function of (beliefs, true values) of one case, by type if points are by type: a proper score such as
            `CRPS()` or `IntervalScore()`. The mean over cases is minimized.

    Returns:
        The hyperparameters with the best `evidence_power` and `temperature`.

    Raises:
        ValueError: numbers of cases differ, an argument is traced, or no loss is finite.

    Examples:
        >>> import dataclasses, numpy as np, kbpjax as kbp
        >>> rng = np.random.default_rng(0)
        >>> graph, x = kbp.chain_graph(6), np.cumsum(rng.normal(size=(80, 6)), axis=1)
        >>> y, points = x + rng.normal(size=x.shape), np.linspace(-8, 8, 65)
        >>> start = kbp.Hyperparameters(kbp.RBF(1.0), kbp.RBF(1.0), ridge=1e-3, temperature=0.2)  # overconfident
        >>> model = start.fit(kbp.pool(graph, x[:40], y[:40]))
        >>> calibrated = kbp.calibrate(start, model, graph, x[40:], y[40:], points)
        >>> bool(calibrated.temperature > 2 * start.temperature)
        True
    """
    given = {"hyperparameters": hyperparameters, "model": model, "graph": graph, "truth": truth}
    for name, value in (given | {"observations": observations, "points": points}).items():
        fix = "Call calibrate outside jax.jit, jax.vmap and jax.grad."
        _checks.require(not _checks.is_traced(value), name, "must be known", "traced arrays", fix)
    cases = _checks.as_arrays("truth", truth), _checks.as_arrays("observations", observations)
    counts = sorted({len(array) if array.ndim else 0 for array in jax.tree.leaves(cases)})
    rule, fix = "must have the same number of cases, at least 1", "Pass arrays [case, node, ...]; one case as x[None]."
    _checks.require(len(counts) == 1 and counts[0] > 0, "truth, observations", rule, counts, fix)

    @jax.jit
    def losses_at(powers: Array, temperatures: Array, start: Hyperparameters, model: KernelMRF, cases: Any) -> Array:
        """Return the mean loss over cases [power, temperature]."""

        def of_power(power: Array) -> Array:
            current = dataclasses.replace(start, evidence_power=power, temperature=1.0)

            def of_case(true: Any, y: Any) -> Array:
                belief = current.answer(model, graph, y, points)
                return jax.lax.map(lambda temperature: loss(temper(belief, temperature), true), temperatures)

            return jnp.mean(jax.vmap(of_case)(*cases), axis=0)

        return jax.lax.map(of_power, powers)

    power, temperature = hyperparameters.evidence_power, hyperparameters.temperature
    for of_powers, of_temperatures in FINER:
        octaves = POWERS / of_powers, TEMPERATURES / of_temperatures
        grid = power * _powers_of_2(octaves[0], power), temperature * _powers_of_2(octaves[1], temperature)
        losses = np.asarray(losses_at(*grid, hyperparameters, model, cases))
        finite = np.isfinite(losses)
        fix = "Check the beliefs of one case: hyperparameters.answer(model, graph, y, points)."
        _checks.require(bool(finite.any()), "loss", "must be finite at some power and temperature", "none", fix)
        best = np.unravel_index(np.argmin(np.where(finite, losses, np.inf)), losses.shape)
        power, temperature = grid[0][best[0]], grid[1][best[1]]
        _warn_at_the_edge({"evidence_power": octaves[0][best[0]], "temperature": octaves[1][best[1]]})
    return dataclasses.replace(hyperparameters, evidence_power=power, temperature=temperature)


def _powers_of_2(octaves: np.ndarray, like: Array) -> Array:
    return jnp.asarray(2.0**octaves, like.dtype)


def _warn_at_the_edge(octaves: dict[str, Any]) -> None:
    """Warn if a number is the largest or smallest of the first grid."""
    names = [name for name, octave in octaves.items() if abs(octave) == OCTAVES]
    if names:
        text = f"the best {' and '.join(names)} is at the edge of the range, a factor of {2**OCTAVES} from the start"
        warn(f"{text}. Calibrate the result again; if it moves on, try another model.", KbpWarning)
