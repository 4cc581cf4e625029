"""Uncertainty of operators and forests: against their errors, and away from the training messages."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from experiments.kjit import forests
from experiments.kjit.batch import batch, forest, operator, predict, ranges
from experiments.kjit.config import TARGETS, Row, Settings, log_kl
from kbpjax import ep

PUBLISHED = {"pearson": 0.46, "spearman": 0.35}
"""Of KJIT on 701 test messages, read off a figure of Jitkrittum et al. (2015)."""
PUBLISHED_STEPS = {"KJIT, absolute": (0.054, 0.057), "Eslami et al. forest": (0.24, 0.70)}
"""Mean |step| of the log variance between neighbors on line and parabola, read off their figures."""
CURVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "line": lambda m: 0.02 * m + 2.6,
    "parabola": lambda m: -0.02 * m**2 + 1.6,
}
"""Log precisions of messages N(m, v) that EP hardly sends, from the code of Jitkrittum et al. (2015)."""
PLACES = np.linspace(-13, 13, 500)

Uncertainty = Callable[[Any], np.ndarray]


def methods(settings: Settings, sweeps: str) -> dict[str, tuple[Uncertainty, Uncertainty]]:
    """Return for each method functions of messages: its log uncertainty [message], and log KL [message]."""
    found = {}
    for targets in TARGETS:
        learned = operator(settings, sweeps, targets)
        guess = lambda messages, learned=learned: predict(learned, messages.incoming)
        sure = lambda messages, guess=guess: np.asarray(guess(messages).log_variance).mean(axis=-1)
        found[f"KJIT, {targets}"] = sure, lambda messages, g=guess: log_kl(messages.belief, g(messages).belief)
    for name in forests.FORESTS:
        found[f"{name}, absolute"] = _of_forest(forest(settings, sweeps, name, "absolute")[0])
    return found


def _of_forest(model: Any) -> tuple[Uncertainty, Uncertainty]:
    def wrong(messages: Any) -> np.ndarray:
        outputs = model.predict(forests.tree_inputs(messages.incoming))
        return log_kl(messages.belief, forests.decode(outputs, messages, TARGETS["absolute"]))

    return lambda messages: forests.tree_uncertainty(model, forests.tree_inputs(messages.incoming)), wrong


def uncertainty(settings: Settings) -> tuple[list[Row], dict[str, Any]]:
    """Score the uncertainty of all methods; returns rows, and {method: (uncertainty, log KL, curves)}."""
    rows, shown = [], {}
    for sweeps in ranges(settings):
        test = batch(settings, sweeps).test
        for name, (unsure, wrong) in methods(settings, sweeps).items():
            of_test, errors = unsure(test), wrong(test)
            curves = {curve: unsure(_Curve(curve_messages(curve))) for curve in CURVES}
            row = {"part": "uncertainty", "method": name, "sweeps": sweeps, **correlate(of_test, errors)}
            row |= {f"step_{curve}": mean_step(values) for curve, values in curves.items()}
            row |= {f"rise_{curve}": rise(PLACES, values) for curve, values in curves.items()}
            row["line_above"] = float(np.mean(curves["line"] > curves["parabola"]))
            theirs = name == "KJIT, absolute"
            row |= {f"published_{key}": value if theirs else None for key, value in PUBLISHED.items()}
            steps = PUBLISHED_STEPS.get(name, (None, None))
            rows.append(row | {"published_step_line": steps[0], "published_step_parabola": steps[1]})
            shown[name] = (of_test, errors, curves)
    return rows, shown


class _Curve:
    """Messages without beliefs."""

    def __init__(self, incoming: Any):
        self.incoming = incoming


def curve_messages(name: str) -> tuple[ep.Beta, ep.Gaussian]:
    """Return the messages of a curve [500], with Beta(1, 2)."""
    precision = jnp.exp(jnp.asarray(CURVES[name](PLACES)))
    return ep.Beta(jnp.ones_like(precision), 2 * jnp.ones_like(precision)), ep.Gaussian(precision, precision * PLACES)


def correlate(unsure: np.ndarray, errors: np.ndarray) -> Row:
    """Return correlations of log uncertainty with log KL, and mean log KL in quartiles of the uncertainty."""
    fine = np.isfinite(errors)
    unsure, errors = unsure[fine], errors[fine]
    ranks = float(np.asarray(spearmanr(unsure, errors)[0]))
    found = {"pearson": float(np.corrcoef(unsure, errors)[0, 1]), "spearman": ranks}
    return found | {f"quartile_{i + 1}": value for i, value in enumerate(quartile_means(unsure, errors))}


def quartile_means(unsure: np.ndarray, errors: np.ndarray) -> list[float]:
    """Return the means of log KL over four equal parts of the messages, the surest first."""
    return [float(errors[part].mean()) for part in np.array_split(np.argsort(unsure), 4)]


def mean_step(values: np.ndarray) -> float:
    """Return the mean |difference| of neighbors."""
    return float(np.abs(np.diff(values)).mean())


def rise(places: np.ndarray, values: np.ndarray) -> float:
    """Return the mean where |m| > 11 less that where |m| < 3."""
    return float(values[np.abs(places) > 11].mean() - values[np.abs(places) < 3].mean())
