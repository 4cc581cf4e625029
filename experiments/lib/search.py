"""Search for the options of a method, one option after the other."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Options = dict[str, Any]


class Trial(NamedTuple):
    """One evaluation of a search.

    Attributes:
        option: The option that was varied.
        value: Its value.
        options: All options of the trial.
        loss: What is minimized.
    """

    option: str
    value: Any
    options: Options
    loss: float


def coordinate_search(
    start: Mapping[str, Any], space: Mapping[str, Sequence[Any]], loss: Callable[[Options], float]
) -> tuple[Options, list[Trial]]:
    """Return the best options and all trials of a coordinate search.

    Each option takes the value of the lowest loss, given the best values of the options before it and the initial
    values of those after it. Ties keep the earlier trial. Every option is searched once; a grid is not extended where
    its best value is at its edge.

    Args:
        start: Initial value of each option; may hold options that are not searched.
        space: Values to try of each option, in this order.
        loss: Function of the options that is minimized.
    """
    best, lowest = dict(start), math.inf
    trials: list[Trial] = []
    for option, values in space.items():
        for value in values:
            if trials and value == best[option]:
                continue
            options = {**best, option: value}
            trials.append(Trial(option, value, options, loss(options)))
            if trials[-1].loss < lowest:
                best, lowest = options, trials[-1].loss
    return best, trials
