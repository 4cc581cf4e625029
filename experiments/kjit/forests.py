"""Baselines of learned messages: Breiman's random forests and extremely randomized trees, with their uncertainty."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from experiments.kjit.config import Row, log_kl
from kbpjax import ep
from kbpjax.ep.targets import Targets

FORESTS = {"Breiman forest": RandomForestRegressor, "extra trees": ExtraTreesRegressor}
GRID = [
    {"min_samples_leaf": leaf, "max_features": share, "bootstrap": bootstrap}
    for leaf in (1, 2, 3, 5, 8)
    for share in (1.0, 0.7, 0.5, 0.3)
    for bootstrap in (True, False)
]
"""As many settings as operators have widths and noises."""
LEAST = 1e-4
"""Variance of trees that agree, as much as operators have of noise at least: the logarithm of 0 would be a step."""


def tree_inputs(incoming: Any) -> np.ndarray:
    """Return what trees split on [message, 10], which is what Eslami et al. gave their forests.

    Parameters, mean, variance and mode of the Beta message, the mode through the logistic function; mean, variance,
    mean x precision and precision of the Gaussian one, and its mean through the logistic function.
    """
    p, z = incoming
    mode = (p.alpha - 1) / (p.alpha + p.beta - 2)
    of_p = (p.alpha, p.beta, p.mean, p.variance, logistic(mode))
    return np.stack([np.asarray(c) for c in (*of_p, z.mean, z.variance, z.shift, z.precision, logistic(z.mean))], 1)


def logistic(x: Any) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(x)))


def fit(name: str, messages: Any, targets: Targets, trees: int, seed: int) -> tuple[Any, Row]:
    """Choose a forest's options by log KL on the last fifth of the messages, and learn from all of them."""
    x, y = tree_inputs(messages.incoming), encode(messages, targets)
    cut = 4 * len(x) // 5
    held_out = messages.part(slice(cut, None))

    def quality(options: Row) -> float:
        few = FORESTS[name](max(10, trees // 4), n_jobs=2, random_state=seed, **options).fit(x[:cut], y[:cut])
        guess = decode(few.predict(x[cut:]), held_out, targets)
        return float(np.nanmean(log_kl(held_out.belief, guess)))

    best = min(GRID if trees > 20 else GRID[:2], key=quality)
    return FORESTS[name](trees, n_jobs=2, random_state=seed, **best).fit(x, y), best


def encode(messages: Any, targets: Targets) -> np.ndarray:
    """Return the outputs to learn [message, out]."""
    z = messages.incoming[1]
    return np.asarray(targets.encode(messages.belief, ep.ratio(messages.belief, z), z))


def decode(outputs: np.ndarray, messages: Any, targets: Targets) -> Any:
    """Return the belief that outputs [message, out] stand for."""
    return targets.decode(jnp.asarray(outputs), messages.incoming[1], ep.MeanPreserving())[0]


def tree_uncertainty(forest: Any, x: np.ndarray) -> np.ndarray:
    """Return the log variance of the trees' predictions, of `LEAST` or more, mean over outputs [message]."""
    answers = np.stack([tree.predict(x) for tree in forest.estimators_])
    return np.log(np.maximum(answers.var(axis=0), LEAST)).mean(axis=1)
