"""Wall time of functions of JAX arrays."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def timed(fn: Callable[..., T], *args: Any, repeats: int = 3) -> tuple[T, float, float]:
    """Time a function of JAX arrays, its first call (compilation and run) apart from the following ones.

    Returns:
        The result and the seconds of the first call, the median seconds of the `repeats` (>= 1) following ones.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1; got {repeats!r}. Ask for one or more timed calls.")
    jax.block_until_ready(args)

    def once() -> tuple[T, float]:
        start = time.perf_counter()
        outcome = jax.block_until_ready(fn(*args))
        return outcome, time.perf_counter() - start

    result, first = once()
    return result, first, statistics.median(once()[1] for _ in range(repeats))


def in_turn(calls: Sequence[Callable[[], Any]], repeats: int) -> list[tuple[float, ...]]:
    """Time calls in turn, `repeats` rounds after one that does not count, so that a drifting machine favors none.

    Returns:
        Seconds of each call in each round.
    """

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        jax.block_until_ready(call())
        return time.perf_counter() - start

    for call in calls:
        seconds(call)
    return [tuple(seconds(call) for call in calls) for _ in range(repeats)]
