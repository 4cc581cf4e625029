"""What `fit` tried: the alternatives that it compared, their scores on held-out problems, and what they cost."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kbpjax._misc import show_fields, show_lines, values_or_shapes
from kbpjax._public import Checked


class Tried(NamedTuple):
    """An alternative that `fit` compared.

    Attributes:
        choice: what is chosen, such as "relation".
        alternative: one of the words for it, such as "counts".
        score: score of its beliefs on held-out problems; lower is better.
        evaluated: number of choices of numbers that were evaluated for it and for no earlier alternative.
        seconds: the time that this took, with compilation.
        taken: whether it was taken.
    """

    choice: str
    alternative: str
    score: float
    evaluated: int = 0
    seconds: float = 0.0
    taken: bool = False


class Selection(Checked):
    """The alternatives that `fit` compared, in order: iterate over it for records, print it for a table.

    Each record has the fields `choice`, `alternative`, `score`, `evaluated`, `seconds` and `taken`. The choices are

    - "margins": "type" or "node", as in `fit`.
    - "front end": "none", or the kind of regression.
    - "edge features": "ignored" or "used".
    - "relation": "ridge" or "counts", as in `fit`.
    - "observations": "all" coordinates, or "projected" ones.
    - "numbers": "searched", the bandwidths, ridges and powers after the search. Choices before it are scored at the
      best of some first values (with `effort="high"`: after a search), so only the scores of one choice compare.
    - "rank": "small" or "large".
    - "sharing": "type" or "edge", as in `fit`.
    - "starts": "pooled" or "own", as in `fit`.
    - "potentials": "closed form", the relations of pairs, "gaussian", those of a joint Gaussian (see
      docs/choosing.md), "scaled" or "corrected", as in `train`, where `evaluated` is the number of steps.
    - "temperature": "one" or "other", the chosen temperature or the best one besides 1.

    Scores are energy scores of beliefs on held-out problems: of numbers, continuous ranked probability scores. Messages
    that did not converge add 10 %. Not all best scores are taken: some alternatives need a clear gain, and of
    temperatures that score alike, the one whose regions hold best is taken.

    Attributes:
        alternatives: (choice, alternative) of each record.
        unit: what the scores are, and in which units.
        numbers: score, number of evaluated choices, seconds, and 1 if taken, of each record [record, 4]. An array, so
            that models with other numbers share compiled functions.

    Examples:
        >>> import numpy as np, kbpjax as kbp
        >>> x = np.cumsum(np.random.default_rng(0).normal(size=(40, 6)), axis=1)
        >>> model = kbp.fit(kbp.pool(kbp.chain_graph(6), x, x), effort="low")
        >>> [(one.choice, one.alternative) for one in model.selection]
        [('numbers', 'searched'), ('temperature', 'one'), ('temperature', 'other')]
        >>> model.selection.unit
        'CRPS in median distances'
    """

    alternatives: tuple[tuple[str, str], ...] = eqx.field(static=True)
    unit: str = eqx.field(static=True)
    numbers: Float[Array, "*batch record 4"]

    def __len__(self) -> int:
        return len(self.alternatives)

    def __iter__(self) -> Iterator[Tried]:
        for names, (score, evaluated, seconds, taken) in zip(self.alternatives, np.asarray(self.numbers), strict=True):
            yield Tried(*names, float(score), int(evaluated), float(seconds), bool(taken))

    @property
    def taken(self) -> dict[str, str]:
        """{choice: the alternative that was taken}."""
        return {one.choice: one.alternative for one in self if one.taken}

    @property
    def evaluated(self) -> int:
        """Number of choices of numbers that were evaluated."""
        return sum(one.evaluated for one in self)

    @property
    def seconds(self) -> float:
        """Seconds that all comparisons took."""
        return sum(one.seconds for one in self)

    @property
    def lines(self) -> list[str]:
        """A line of text for each choice, and one for their costs."""
        by_choice: dict[str, list[str]] = {}
        for one in self:
            text = f"{one.alternative} {one.score:.3g}{' (taken)' if one.taken else ''}"
            by_choice.setdefault(one.choice, []).append(text)
        costs = f"{self.evaluated} choices in {self.seconds:.3g} s; scores are {self.unit}, of held-out problems"
        return [*(f"{choice}: {', '.join(texts)}" for choice, texts in by_choice.items()), costs]

    @values_or_shapes
    def __repr__(self) -> str:
        return show_lines("Selection", self.lines) if self.numbers.ndim == 2 else show_fields(self)


def selection_of(tried: Sequence[Tried], unit: str) -> Selection:
    """Return the selection of some records."""
    numbers = np.array([one[2:] for one in tried], float).reshape(-1, 4)
    return Selection(tuple(one[:2] for one in tried), unit, jnp.asarray(numbers, jnp.result_type(float)))


class Log:
    """The alternatives that are tried, one after the other; time between two of them counts for the second."""

    def __init__(self) -> None:
        self.tried: list[Tried] = []
        self.evaluated = 0  # since the last one
        self.since = time.perf_counter()

    def add(self, choice: str, alternative: str, score: float) -> None:
        """Add an alternative, with all that was evaluated since the last one."""
        now = time.perf_counter()
        self.tried.append(Tried(choice, alternative, score, self.evaluated, now - self.since))
        self.evaluated, self.since = 0, now

    def take(self, choice: str, alternative: str) -> None:
        """Mark an alternative as taken."""
        taken = choice, alternative
        self.tried = [one._replace(taken=True) if one[:2] == taken else one for one in self.tried]

    def selection(self, unit: str) -> Selection:
        """Return what was tried."""
        return selection_of(self.tried, unit)
