"""Folds of the training cases, and relations that are learned apart from a fold.

Smoothed counts remember the pairs that they are learned from. Trained on the same cases, a power of a relation would
reward this memory, and so would a comparison with other models. So potentials are trained, and compared, on each fold
with relations of the other folds (cross-fitting; Chernozhukov et al. 2018).
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kbpjax.learning.data import Cases, TrainingData
from kbpjax.learning.model import KernelMRF
from kbpjax.learning.pooling import pool_cases
from kbpjax.training.potentials import ClosedForm

FOLDS = 5
"""Number of folds; the first is held out, the others are trained on."""

FEWEST = 10
"""Number of cases from which folds are of whole cases."""

MOST_HELD, MOST_NODES = 500, 4000
"""Largest number of held-out cases that are evaluated, and of their nodes."""

Refit = Callable[[TrainingData], KernelMRF]
"""From training data to the model of the same hyperparameters and levels."""


class Folds(NamedTuple):
    """Folds of the values of some cases of one graph.

    Attributes:
        of: number of the fold of each value [case, node].
        whole: whether folds are of whole cases. Of a few cases, a fifth of the nodes is held out and the others are one
            fold: relations without the values of a part of a picture would lack its gray levels.
    """

    of: NDArray[np.integer]
    whole: bool

    @classmethod
    def of_cases(cls, cases: Cases, seed: int) -> "Folds":
        """Return the folds of some cases, the same for the same seed."""
        rng, count = np.random.default_rng(seed), len(next(iter(cases.samples.values())))
        if count >= FEWEST:
            number = np.empty(count, np.int8)
            number[rng.permutation(count)] = np.arange(count) * FOLDS // count
            return cls(np.broadcast_to(number[:, None], (count, cases.graph.num_nodes)), True)
        number = (rng.random(cases.graph.num_nodes) >= 1 / FOLDS).astype(np.int8)
        return cls(np.broadcast_to(number, (count, cases.graph.num_nodes)), False)

    @property
    def trained(self) -> range:
        """The folds that are trained on."""
        return range(1, FOLDS if self.whole else 2)

    @property
    def held(self) -> NDArray[np.integer]:
        """Numbers of the cases that are evaluated: all of a few cases, of which a fifth of the nodes is held out."""
        most = max(1, min(MOST_HELD, MOST_NODES // self.of.shape[1])) if self.whole else None
        return self.cases(0)[:most]

    @property
    def kept(self) -> NDArray[np.integer]:
        """Numbers of the cases of which something is trained on."""
        return np.flatnonzero((self.of != 0).any(axis=1))

    def cases(self, fold: int) -> NDArray[np.integer]:
        """Return the numbers of the cases of which something is in a fold."""
        return np.flatnonzero((self.of == fold).any(axis=1))


def data_without(data: TrainingData, apart: NDArray[np.bool_]) -> TrainingData | None:
    """Return the data of one graph without some values, and the pairs that they are in; None where a type is lost.

    Args:
        data: the data.
        apart: the values that are left out [case, node].
    """
    (cases,) = data.cases
    nodes = {v: np.asarray(cases.graph.nodes_of_type(v)) for v in cases.present}
    present = {v: np.asarray(mask) & ~apart[:, nodes[v]] for v, mask in cases.present.items()}
    if not all(present[v].any() for v in data.nodes):
        return None
    rest = pool_cases([dataclasses.replace(cases, present=present)], data.labels, data.obs_labels)
    return rest if set(data.edges) <= set(rest.edges) and set(data.observations) <= set(rest.observations) else None


def closed_forms(
    closed: ClosedForm, own: bool, data: TrainingData, folds: Folds, refit: Refit | None
) -> list[ClosedForm]:
    """Return the closed form for each fold, with ratios that are learned from the other folds.

    It is that of all data where the others lack a type, of a few cases, and without `refit`. `own`: as of the closed
    form.
    """
    if refit is None or not folds.whole:
        return [closed] * FOLDS
    (cases,) = data.cases
    found = []
    for fold in range(FOLDS):
        rest, one = data_without(data, folds.of == fold), closed
        if rest is not None:
            apart = ClosedForm.of(refit(rest), cases.graph, own)
            if apart.types == closed.types and apart.log_ratios.shape == closed.log_ratios.shape:
                one = dataclasses.replace(closed, log_ratios=apart.log_ratios)
        found.append(one)
    return found
