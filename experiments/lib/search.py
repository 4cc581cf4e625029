"""Search for the options of a method, one option after the other."""

import itertools
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
    start: Mapping[str, Any],
    space: Mapping[str, Sequence[Any]],
    loss: Callable[[Options], float],
    *,
    budget: int | None = None,
    extensions: int = 0,
    limits: Mapping[str, float] | None = None,
) -> tuple[Options, list[Trial]]:
    """Return the best options and all trials of a coordinate search.

    Each option takes the value of the lowest loss, given the best values of the options before it and the initial
    values of those after it. Ties keep the earlier trial. No options are evaluated twice.

    Args:
        start: Initial value of each option; may hold options that are not searched.
        space: Values to try of each option, in this order.
        loss: Function of the options that is minimized.
        budget: Number of trials. The search goes through the options again, with geometric means of neighboring
            values added to the grids, until it has made so many, or none is left. None: one pass over the grids.
        extensions: How often at most the grid of an option is continued in each direction, by the ratio of its last
            two values, while its best value is at that end. Only grids of numbers above 0 are continued.
        limits: Largest values to which grids are continued, of options whose time or memory grows with them.
    """
    if budget is not None and budget < 1:
        raise ValueError(f"budget must be at least 1; got {budget}. Give the number of trials.")
    best, lowest = dict(start), math.inf
    trials: list[Trial] = []
    grids = {option: list(values) for option, values in space.items()}
    ends = {option: [extensions, extensions] for option in grids}  # extensions left at the lower and the upper end
    while True:
        before = len(trials)
        for option, grid in grids.items():
            queue = list(grid)
            while queue:
                value = queue.pop(0)
                options = {**best, option: value}
                if all(options != trial.options for trial in trials):
                    if len(trials) == budget:
                        return best, trials
                    trials.append(Trial(option, value, options, loss(options)))
                    if trials[-1].loss < lowest:
                        best, lowest = options, trials[-1].loss
                if not queue:
                    queue = _continued(grid, best[option], ends[option], (limits or {}).get(option, math.inf))
        refined = {option: _refined(grid) for option, grid in grids.items()}
        if budget is None or (len(trials) == before and refined == grids):
            return best, trials
        grids = refined


def on_edge(best: Options, trials: Sequence[Trial]) -> list[str]:
    """Return the options whose best value is the least or the largest of all numbers tried."""
    tried = {option: {trial.options[option] for trial in trials} for option in best}
    edges = {option: (min(of), max(of)) for option, of in tried.items() if len(of) > 1 and _numbers(list(of))}
    return [option for option, ends in edges.items() if best[option] in ends]


def _numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers above 0."""
    return all(isinstance(x, (int, float)) and not isinstance(x, bool) and x > 0 for x in values)


def _continued(grid: list[Any], best: Any, left: list[int], limit: float) -> list[Any]:
    """Extend a grid, in place, where its best value is at an end; return the values that were added, at most one."""
    if len(grid) < 2 or not _numbers(grid) or best not in grid:
        return []
    values = sorted(grid)
    for side, (last, other) in enumerate(((values[0], values[1]), (values[-1], values[-2]))):
        new = _like(min(last * last / other, limit), grid)
        if best == last and left[side] and new not in grid:
            left[side] -= 1
            grid.append(new)
            return [new]
    return []


def _refined(grid: list[Any]) -> list[Any]:
    """Return a grid with the geometric means of neighboring numbers."""
    if not _numbers(grid):
        return grid
    values = sorted(grid)
    means = [_like(math.sqrt(a * b), grid) for a, b in itertools.pairwise(values)]
    return sorted({*values, *means} - {0})


def _like(value: float, grid: list[Any]) -> int | float:
    """Round a value to an integer >= 1 if the grid holds integers, else to four digits."""
    return max(1, round(value)) if all(isinstance(x, int) for x in grid) else float(f"{value:.4g}")
